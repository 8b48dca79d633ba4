"""The web shop as web pages, for policies that use a browser: a small local server with fastapi.

Needs the extra `[serve]`: `pip install 'learngraph[serve]'`.

    python -m learngraph.tools.environments.support.shop_server --port 8123 --products 500

| path | shows or does |
|---|---|
| `/` | a form that begins an episode: split and number of the task |
| `POST /begin` | begins the episode and redirects to its page |
| `/shop/N` | the present page of episode N |
| `POST /shop/N` | takes one action: field `query` (the search bar) or `click` (the text of a button) |

An episode is a task and the actions so far. Its page shows what the environment shows after these actions: the pieces of the
text observation in the same order, each an element with the attribute `data-piece`. So text and pages cannot differ. The goal
and the number of steps stand above the page. An action that the page does not offer costs a step, as it does in the environment.
Pages need no scripts, pictures or cookies: a text browser will do, and several episodes may be open at once.

The server listens on 127.0.0.1 by default. It has no passwords: anyone who reaches the port can play every episode.
"""

from __future__ import annotations

import argparse
import itertools
import socket
import sys
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from ....memory.errors import UserError
from ....memory.records import Task
from ..web_shop import Page, PageElement, WebShop

if TYPE_CHECKING:
    from fastapi import FastAPI, Request

__all__ = ["ShopServer", "main", "shop_app"]

_MAX_SESSIONS = 10_000
_MAX_FORM_BYTES = 16_384


@dataclass
class _Session:
    """An episode that is being played."""

    task: Task
    actions: tuple[str, ...] = ()
    lock: threading.Lock = field(default_factory=threading.Lock)


class _BadRequest(Exception):
    """A form that cannot be used. The message says what was expected."""


class _Sessions:
    """The episodes of a shop by number; beyond 10,000 the oldest is forgotten. Safe to share between threads."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def begin(self, task: Task) -> str:
        """Begin an episode; returns the path of its page."""
        with self._lock:
            number = str(next(self._numbers))
            self._sessions[number] = _Session(task)
            if len(self._sessions) > _MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return f"/shop/{number}"

    def find(self, number: str) -> _Session | None:
        """The episode with this number; None if there is none."""
        with self._lock:
            return self._sessions.get(number)


def shop_app(environment: WebShop, sessions: _Sessions | None = None) -> FastAPI:
    """The ASGI application that serves the pages of a shop, each episode under a path of its own.

    Args:
        environment: the shop.
        sessions: the episodes, if somebody else looks at them too.

    Raises:
        UserError: fastapi is not installed.
    """
    try:
        from fastapi import FastAPI
        from fastapi.concurrency import run_in_threadpool
        from fastapi.responses import HTMLResponse, RedirectResponse, Response
    except ImportError as cause:
        raise UserError(f"the pages of the web shop need fastapi ({cause}): pip install 'learngraph[serve]'") from cause

    sessions = sessions or _Sessions()
    app = FastAPI(title="Web shop", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)

    def send(page: str, status: int = 200) -> Response:
        return HTMLResponse(page, status, {"Cache-Control": "no-store"})

    def missing(path: str) -> Response:
        text = f'<main><p>There is no page {escape(path[:200])}.</p><p><a href="/">Begin an episode</a></p></main>'
        return send(_document("Not found", text), 404)

    async def show_start(request: Request) -> Response:
        return send(_start(environment))

    async def begin(request: Request) -> Response:
        return RedirectResponse(sessions.begin(_read_task(environment, await _read_form(request))), 303)

    async def show_page(request: Request) -> Response:
        session = sessions.find(request.path_params["number"])
        if session is None:
            return missing(request.url.path)
        return send(await run_in_threadpool(_page, environment, session.task, session.actions))

    async def act(request: Request) -> Response:
        form, session = await _read_form(request), sessions.find(request.path_params["number"])
        if session is None:
            return missing(request.url.path)
        await run_in_threadpool(_take_action, environment, session, form)
        return RedirectResponse(request.url.path, 303)

    async def refuse(request: Request, problem: Exception) -> Response:
        return send(_document("Bad request", f"<main><p>{escape(str(problem))}</p></main>"), 400)

    async def show_missing(request: Request, problem: Exception) -> Response:
        return missing(request.url.path)

    app.add_route("/", show_start, methods=["GET"])
    app.add_route("/begin", begin, methods=["POST"])
    app.add_route("/shop/{number}", show_page, methods=["GET"])
    app.add_route("/shop/{number}", act, methods=["POST"])
    for error in (_BadRequest, UserError):
        app.add_exception_handler(error, refuse)
    for status in (404, 405):  # a path with another method is no page either
        app.add_exception_handler(status, show_missing)
    return app


async def _read_form(request: Request) -> dict[str, str]:
    """The fields of a posted form; each may occur once."""
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdecimal() and int(length) <= _MAX_FORM_BYTES):
        raise _BadRequest(
            f"a form of at most {_MAX_FORM_BYTES} bytes with its Content-Length was expected, got {length or 'none'}"
        )
    try:
        body = (await request.body()).decode()
        fields = parse_qs(body, keep_blank_values=True, errors="strict", max_num_fields=20)
    except ValueError as cause:
        raise _BadRequest(f"a form in UTF-8 with a few fields was expected: {cause}") from cause
    if repeated := [name for name, values in fields.items() if len(values) > 1]:
        raise _BadRequest(f"the field {repeated[0]!r} came twice")
    return {name: values[0] for name, values in fields.items()}


def _read_task(environment: WebShop, form: dict[str, str]) -> Task:
    """The task that the form of the first page names."""
    number = form.get("number", "")
    if form.keys() != {"split", "number"} or not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise _BadRequest(f"the fields split and number (a number from 0) were expected, got {form}")
    return environment.task(int(number), form["split"])


def _take_action(environment: WebShop, session: _Session, form: dict[str, str]) -> None:
    """Add the action of a form to an episode. Raises if the form is none, or the episode is over."""
    if len(form) != 1 or not form.keys() <= {"query", "click"}:
        raise _BadRequest(f"one field was expected, query or click, got {', '.join(sorted(form)) or 'none'}")
    ((name, text),) = form.items()
    action = f"{'search' if name == 'query' else 'click'}[{text}]"
    with session.lock:
        actions = (*session.actions, action)
        environment.page(session.task, actions)  # raises if the episode was over
        session.actions = actions


class ShopServer:
    """Serves the pages of a shop over HTTP.

    Args:
        environment: the shop as an environment.
        host: address to listen on.
        port: port to listen on; 0 takes a free one, which `port` then names.

    Raises:
        UserError: the port is not available, or fastapi or uvicorn is not installed.
    """

    def __init__(self, environment: WebShop, host: str = "127.0.0.1", port: int = 0) -> None:
        self._sessions = _Sessions()
        app = shop_app(environment, self._sessions)
        try:
            import uvicorn
        except ImportError as cause:
            raise UserError(f"the pages of the web shop need uvicorn ({cause}): pip install 'learngraph[serve]'") from cause
        self.environment = environment
        try:
            self._socket = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except (OSError, OverflowError) as cause:
            raise UserError(f"shop server: cannot listen on {host}:{port}: {cause}; --port 0 takes a free port") from cause
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://[{host}]:{self.port}/" if ":" in host else f"http://{host}:{self.port}/"
        """Address of the first page."""
        self._server: Any = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, lifespan="off"))

    def serve(self) -> None:
        """Answer requests until `stop`, or until the process is interrupted."""
        self._server.run(sockets=[self._socket])

    def begin(self, task: Task) -> str:
        """Begin an episode without the form; returns the path of its page."""
        return self._sessions.begin(task)

    def page(self, path: str) -> Page:
        """The page that an episode has come to, as the shop itself knows it.

        Raises:
            UserError: there is no such episode (the oldest are forgotten).
        """
        session = self._sessions.find(path.rpartition("/")[2])
        if session is None:
            raise UserError(f"shop server: there is no episode {path}")
        return self.environment.page(session.task, session.actions)

    def stop(self) -> None:
        """Make `serve` return, from any thread."""
        self._server.should_exit = True


def _document(title: str, body: str) -> str:
    head = f'<meta charset="utf-8"><title>{escape(title)}</title>'
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}\n</body>\n</html>\n'


def _start(environment: WebShop) -> str:
    options = "".join(f"<option>{split}</option>" for split in ("test", "dev", "train"))
    return _document(
        "Web shop",
        '<main><form method="post" action="/begin">\n'
        f'<label>Split <select name="split">{options}</select></label>\n'
        '<label>Task <input name="number" type="number" min="0" value="0"></label>\n'
        f"<button>Begin</button>\n</form><p>{escape(environment.name)}: {len(environment.shop.products)} products</p></main>",
    )


def _page(environment: WebShop, task: Task, actions: tuple[str, ...]) -> str:
    """The page after these actions. Once the episode is over there is nothing left to click."""
    page = environment.page(task, actions)
    over = page.kind == "done" or len(actions) >= environment.horizon
    pieces = "\n".join(_element(piece, over) for piece in environment.shop.page_elements(page))
    count = f"Step {len(actions)} of {environment.horizon}" + (f"; the episode is over, score {page.score:.4g}" if over else "")
    header = f'<header><p id="wanted">Wanted: {escape(environment.goal(task).text)}</p><p id="step">{count}</p></header>'
    return _document(f"Web shop: {page.kind}", f'{header}\n<main><form method="post">\n{pieces}\n</form></main>')


def _element(piece: PageElement, over: bool) -> str:
    text = escape(piece.text)
    if piece.role == "text" or over:
        return f"<p data-piece>{text}</p>"
    if piece.role == "search":
        return f'<input name="query" aria-label="Search words" autofocus> <button data-piece>{text}</button>'
    pressed = ' aria-pressed="true"' if piece.chosen else ""
    return f'<button data-piece name="click" value="{escape(piece.click_text)}"{pressed}>{text}</button>'


def main(arguments: list[str] | None = None) -> int:
    """Serve a drawn shop until interrupted; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="shop_server", description="A small web shop as pages, for policies that use a browser."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=8123, help="port to listen on; 0 takes a free one (default: 8123)")
    parser.add_argument("--products", default="1000", help="number of products in the catalogue (default: 1000)")
    parser.add_argument("--seed", default="0", help="seed of the catalogue (default: 0)")
    parser.add_argument("--horizon", type=int, default=15, help="steps of an episode (default: 15)")
    given = parser.parse_args(arguments)
    try:
        shop = WebShop({"products": given.products, "seed": given.seed}, given.horizon)
        server = ShopServer(shop, given.host, given.port)
    except UserError as problem:
        parser.exit(2, f"{problem}\n")
    sys.stdout.write(f"{server.url}\n")
    sys.stdout.flush()
    with suppress(KeyboardInterrupt):
        server.serve()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
