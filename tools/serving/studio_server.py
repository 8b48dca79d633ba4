"""The HTTP side of `learngraph studio`: the page, and JSON answers to its questions, on 127.0.0.1 and for one user.

The page executes steps of the user's code, so three things must hold of a question (POST /ask/NAME): its Host names this machine (a
foreign site cannot point its own name here), its Origin, if it has one, is this server, and it carries the key, which stands in the
link that the command prints and in no page. The key travels in a header that no other site can set. Nothing on the page comes from
elsewhere: its policy is `default-src 'self'` (and `data:` for the small pictures in CodeMirror's own styles), and all libraries lie in tools/serving/pages/library.
"""

import asyncio
import hmac
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import uvicorn
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response

from ...memory.errors import UserError
from .connections import listening_socket
from .page_files import HEADERS, page_response

__all__ = ["Answers", "StudioServer"]

MAX_BYTES = 2_000_000
"""Longest question, in bytes."""
KEY_HEADER = "x-studio-key"

logger = logging.getLogger(__name__)


class Answers(Protocol):
    """The side that knows: answers questions by name."""

    def answer(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The answer, as JSON values.

        Raises:
            UserError: it cannot be answered; the message is shown on the page. Its attribute `details`, if it has one, goes along.
            LookupError: there is no question of this name.
        """


def studio_app(answers: Answers, key: str, port: int) -> FastAPI:
    """The page of a studio.

    Args:
        answers: answers its questions, in threads.
        key: what every question must carry.
        port: the port that it is served at.
    """
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Any]) -> Response:
        problem = _refusal(request, hosts)
        response: Response = _error(problem, 403) if problem else await call_next(request)
        response.headers.update(HEADERS)
        return response

    @app.get("/{path:path}")
    async def page(path: str) -> Response:
        return page_response(path or "index.html") or _error(f"there is no page {path!r}", 404)

    @app.post("/ask/{name}")
    async def ask(name: str, request: Request) -> Response:
        if not hmac.compare_digest(request.headers.get(KEY_HEADER, "").encode(), key.encode()):
            return _error(
                "open the link that `learngraph studio` has printed: this page has no key, or that of another studio", 401
            )
        try:
            arguments = json.loads(await _body(request) or b"{}")
        except ValueError as error:
            return _error(f"a question is a JSON object ({error})", 400)
        if not isinstance(arguments, dict):
            return _error("a question is a JSON object", 400)
        return await run_in_threadpool(_answer, answers, name, arguments)

    return app


def _refusal(request: Request, hosts: set[str]) -> str:
    """The reason why a request is not taken; empty if it is."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if host not in hosts:
        return f"this server answers to {' and '.join(sorted(hosts))} only, not to {host[:80]!r}"
    if origin is not None and origin != f"http://{host}":
        return f"this server takes questions from its own page only, not from {origin[:80]!r}"
    return ""


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BYTES:
            raise ValueError(f"longer than {MAX_BYTES:,} bytes")
    return body


def _answer(answers: Answers, name: str, arguments: Mapping[str, Any]) -> Response:
    try:
        found = answers.answer(name, arguments)
        return Response(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"), media_type="application/json")
    except UserError as error:
        return _error(str(error), 200, **getattr(error, "details", {}))  # an answer, and no error in the browser's console
    except LookupError as error:
        return _error(f"the studio has no answer to {name!r}: {error}", 404)
    except Exception as error:
        logger.exception("studio: %s failed", name)
        return _error(f"{type(error).__name__}: {error}; the terminal of `learngraph studio` shows where", 500)


def _error(message: str, status: int, **details: Any) -> Response:
    return JSONResponse({"error": message, **details}, status)


class StudioServer:
    """A studio on 127.0.0.1.

    Args:
        answers: answers the page's questions.
        key: what every question must carry.
        port: 0 takes any that is free.

    Raises:
        UserError: the port is taken.
    """

    def __init__(self, answers: Answers, key: str, port: int = 0) -> None:
        try:
            self._socket = listening_socket("127.0.0.1", port)
        except (OSError, OverflowError) as error:
            raise UserError(f"port {port} of 127.0.0.1 is not free ({error}); --port 0 takes one that is") from error
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/#key={key}"
        """The link that opens the page. What follows # stays in the browser."""
        config = uvicorn.Config(
            studio_app(answers, key, self.port),
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Serve until Ctrl-C, or until `stop`."""
        try:
            asyncio.run(self._server.serve(sockets=[self._socket]))
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Let `run` return."""
        self._server.should_exit = True
