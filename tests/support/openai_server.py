"""A server on 127.0.0.1 that speaks the OpenAI chat protocol, for tests: it says what it is told to say.

with OpenAIServer(replies=["go north", {"status": 429}, {"text": "1", "top_logprobs": [{"1": -0.1, "2": -2.3}]}]) as server:
    server.url       # base URL, ending in /v1
    server.requests  # the requests' JSON bodies, in order; their headers in server.headers
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from waiting import wait_until


@dataclass(frozen=True)
class Reply:
    """What to answer one request with."""

    text: str = "hello"
    top_logprobs: Sequence[dict[str, float]] | None = None
    """Per token of the reply: tokens and their log-probabilities, the token said first. Sent if the request asks for them."""
    status: int = 200
    """Anything else is sent as an error, with `text` as its message."""
    delay: float = 0.0
    """Seconds to wait before answering."""
    together: int = 0
    """Answer no sooner than so many requests have come."""
    body: str | None = None
    """Sent as it is, in place of a proper answer."""
    breaks_after: int | None = None
    """Bytes of the body after which the connection breaks."""
    finish_reason: str = "stop"
    refusal: str | None = None
    """The provider's refusal; the reply then has no content."""
    call: str = ""
    """Name of a tool that a streamed reply calls, without arguments."""


Said = str | dict[str, Any]
"""A reply: its text, or `Reply`'s fields."""


class OpenAIServer:
    """Gives `replies` one after another, and the last again and again; or what the function `replies` makes of a request."""

    def __init__(self, replies: Sequence[Said] | Callable[[dict[str, Any]], Said] = ("hello",)) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.lists_models = False
        self._replies = replies
        self._lock = threading.Lock()
        self._closing = threading.Event()
        outer = self

        class Answer(BaseHTTPRequestHandler):
            protocol_version, wbufsize = "HTTP/1.1", -1  # head and body at once: apart, the body waits for 40 ms

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                reply = outer._next(request, dict(self.headers))
                outer._closing.wait(reply.delay)
                wait_until(lambda: len(outer.requests) >= reply.together or outer._closing.is_set())
                stream = bool(request.get("stream")) and reply.status == 200 and reply.body is None
                payload = _events(reply, request) if stream else _body(reply, request)
                self.send_response(reply.status)
                self.send_header("content-type", "text/event-stream" if stream else "application/json")
                self.send_header("content-length", str(len(payload)))
                if reply.status == 429:
                    self.send_header("retry-after-ms", "1")
                self.end_headers()
                self.wfile.write(payload[: reply.breaks_after])
                self.close_connection = reply.breaks_after is not None

            def do_GET(self) -> None:  # the list of models
                self.send_response(200 if outer.lists_models else 500)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", "30")
                self.end_headers()
                self.wfile.write(b'{"object": "list", "data": []}')

            def log_message(self, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._http.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that gave up waiting
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        self.__exit__()

    def _next(self, request: dict[str, Any], headers: dict[str, str]) -> Reply:
        with self._lock:
            self.requests.append(request)
            self.headers.append({name.lower(): value for name, value in headers.items()})
            if callable(self._replies):
                said = self._replies(request)
            else:
                said = self._replies[min(len(self.requests), len(self._replies)) - 1]
        return Reply(said) if isinstance(said, str) else Reply(**said)


def _logprobs(reply: Reply, request: dict[str, Any]) -> dict[str, Any] | None:
    if not request.get("logprobs") or reply.top_logprobs is None:
        return None

    def entry(token: str, value: float) -> dict[str, Any]:
        return {"token": token, "logprob": value, "bytes": list(token.encode())}

    most = request.get("top_logprobs") or 0
    content = []
    for tokens in reply.top_logprobs:
        entries = [entry(*item) for item in tokens.items()]
        best = sorted(entries, key=lambda e: -e["logprob"])[:most]
        content.append(entries[0] | {"top_logprobs": best})
    return {"content": content, "refusal": None}


def _usage(reply: Reply, request: dict[str, Any]) -> dict[str, int]:
    prompt = sum(len(str(message.get("content")).split()) for message in request["messages"])
    said = len(reply.text.split())
    return {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}


def _body(reply: Reply, request: dict[str, Any]) -> bytes:
    if reply.body is not None:
        return reply.body.encode()
    if reply.status != 200:
        return json.dumps({"error": {"message": reply.text, "type": "test", "code": None}}).encode()
    message = {"role": "assistant", "content": None if reply.refusal else reply.text, "refusal": reply.refusal}
    choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason, "logprobs": _logprobs(reply, request)}
    return json.dumps(_head("chat.completion", request) | {"choices": [choice], "usage": _usage(reply, request)}).encode()


def _events(reply: Reply, request: dict[str, Any]) -> bytes:
    head = _head("chat.completion.chunk", request)
    parts = [part + " " for part in reply.text.split(" ")]
    parts[-1] = parts[-1][:-1]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": part} for part in parts)]
    if reply.call:
        function = {"name": reply.call, "arguments": "{}"}
        deltas[1] = {"tool_calls": [{"index": 0, "id": "call-1", "type": "function", "function": function}]}
    events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    events[1]["choices"][0]["logprobs"] = _logprobs(reply, request)
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if (request.get("stream_options") or {}).get("include_usage"):
        events.append({"choices": [], "usage": _usage(reply, request)})  # type: ignore[dict-item]
    lines = [json.dumps(head | event) for event in events]
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()


def _head(kind: str, request: dict[str, Any]) -> dict[str, Any]:
    return {"id": "chatcmpl-test", "object": kind, "created": int(time.time()), "model": request["model"]}
