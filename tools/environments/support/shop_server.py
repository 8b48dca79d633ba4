"""The web shop as real pages, for policies that use a browser: a small local server, of the standard library.

    python -m learngraph.tools.environments.support.shop_server --port 8123 --products 500

| path | is |
|---|---|
| `/` | a form that begins an episode: split and number of the task |
| `POST /begin` | begins it, and leads to its page |
| `/shop/N` | the present page of episode N |
| `POST /shop/N` | one action: field `query` (the search bar) or `click` (the text of a button) |

An episode is a task and its actions so far, and its page is what the environment shows after them: the pieces of the text
observation in the same order, each an element with the attribute `data-piece`. So text and pages cannot differ. What is wanted,
and the number of steps, stand above; an action that the page does not offer costs its step as it does in the environment.
Pages need neither scripts nor pictures nor cookies: a text browser will do, and several may be open at once.

The server listens on 127.0.0.1 unless told otherwise. It has no passwords: whoever reaches the port can play every episode.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs

from ....memory.errors import UserError
from ....memory.records import Task
from ..web_shop import PageElement, WebShop

__all__ = ["ShopServer", "main"]

_MOST_SESSIONS = 10_000
_LONGEST_FORM = 16_384
"""Bytes."""


@dataclass
class _Session:
    """An episode that somebody plays."""

    task: Task
    actions: tuple[str, ...] = ()
    lock: threading.Lock = field(default_factory=threading.Lock)


class _BadRequest(Exception):
    """A form that cannot be used: what was expected, in words."""


class ShopServer(ThreadingHTTPServer):
    """Serves the pages of a shop, each episode under a path of its own.

    Args:
        environment: the shop as an environment.
        host: where to listen.
        port: 0 takes a free one; `server_port` tells which.

    Raises:
        UserError: the port cannot be had.
    """

    daemon_threads = True

    def __init__(self, environment: WebShop, host: str = "127.0.0.1", port: int = 0) -> None:
        self.environment = environment
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        try:
            super().__init__((host, port), _Pages)
        except (OSError, OverflowError) as cause:
            raise UserError(f"shop server: cannot listen on {host}:{port}: {cause}; --port 0 takes a free port") from cause

    @property
    def url(self) -> str:
        """Of the first page."""
        return f"http://{self.server_address[0]!s}:{self.server_port}/"

    def begin(self, task: Task) -> str:
        """Begin an episode; of more than 10,000 the oldest is forgotten.

        Returns:
            Its path.
        """
        with self._lock:
            name = str(next(self._numbers))
            self._sessions[name] = _Session(task)
            if len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)
        return f"/shop/{name}"

    def session(self, name: str) -> _Session | None:
        """An episode by its number."""
        with self._lock:
            return self._sessions.get(name)


class _Pages(BaseHTTPRequestHandler):
    """Answers one request."""

    server: ShopServer
    server_version = "learngraph-shop"
    protocol_version = "HTTP/1.1"
    timeout: ClassVar[float] = 30

    def do_GET(self) -> None:
        """Show a page."""
        self._answer(self._show_page)

    def do_POST(self) -> None:
        """Begin an episode, or take an action; then lead to the page."""
        self._answer(self._take_action)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""

    def _answer(self, work: Any) -> None:
        try:
            work()
        except (_BadRequest, UserError) as problem:
            self._send(400, _document("Bad request", f"<main><p>{escape(str(problem))}</p></main>"))

    def _show_page(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/":
            self._send(200, _start(self.server.environment))
        elif session := self._session(path):
            self._send(200, _page(self.server.environment, session.task, session.actions))
        else:
            self._missing()

    def _take_action(self) -> None:
        form = self._form()
        if self.path == "/begin":
            return self._redirect(self.server.begin(self._task(form)))
        session = self._session(self.path)
        if not session:
            return self._missing()
        if len(form) != 1 or not form.keys() <= {"query", "click"}:
            raise _BadRequest(f"one field was expected, query or click, got {', '.join(sorted(form)) or 'none'}")
        (name, text), *_ = form.items()
        action = f"{'search' if name == 'query' else 'click'}[{text}]"
        with session.lock:
            actions = (*session.actions, action)
            self.server.environment.page(session.task, actions)  # raises if the episode was over
            session.actions = actions
        return self._redirect(self.path)

    def _session(self, path: str) -> _Session | None:
        found = re.fullmatch("/shop/([0-9]{1,12})", path)
        return self.server.session(found[1]) if found else None

    def _form(self) -> dict[str, str]:
        """The fields of a form, each of which may come once."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal() and int(length) <= _LONGEST_FORM):
            self.close_connection = True  # what was sent remains unread
            raise _BadRequest(
                f"a form of at most {_LONGEST_FORM} bytes with its Content-Length was expected, got {length or 'none'}"
            )
        body = self.rfile.read(int(length))
        try:
            fields = parse_qs(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=20)
        except ValueError as cause:
            raise _BadRequest(f"a form in UTF-8 with a few fields was expected: {cause}") from cause
        if twice := [name for name, values in fields.items() if len(values) > 1]:
            raise _BadRequest(f"the field {twice[0]!r} came twice")
        return {name: values[0] for name, values in fields.items()}

    def _task(self, form: dict[str, str]) -> Task:
        number = form.get("number", "")
        if form.keys() != {"split", "number"} or not re.fullmatch("[0-9]{1,9}", number):
            raise _BadRequest(f"the fields split and number (a number from 0) were expected, got {form}")
        return self.server.environment.task(int(number), form["split"])

    def _missing(self) -> None:
        text = f'<main><p>There is no page {escape(self.path[:200])}.</p><p><a href="/">Begin an episode</a></p></main>'
        self._send(404, _document("Not found", text))

    def _redirect(self, path: str) -> None:
        self.send_response(303)
        self.send_header("Location", path)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, status: int, page: str) -> None:
        body = page.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)


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
    """Serve a drawn shop until interrupted; the exit code."""
    parser = argparse.ArgumentParser(
        prog="shop_server", description="A small web shop as pages, for policies that use a browser."
    )
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default: this machine only)")
    parser.add_argument("--port", type=int, default=8123, help="0 takes a free one (default: 8123)")
    parser.add_argument("--products", default="1000", help="size of the catalogue (default: 1000)")
    parser.add_argument("--seed", default="0", help="of the catalogue (default: 0)")
    parser.add_argument("--horizon", type=int, default=15, help="steps of an episode (default: 15)")
    given = parser.parse_args(arguments)
    try:
        shop = WebShop({"products": given.products, "seed": given.seed}, given.horizon)
        server = ShopServer(shop, given.host, given.port)
    except UserError as problem:
        parser.exit(2, f"{problem}\n")
    with server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
