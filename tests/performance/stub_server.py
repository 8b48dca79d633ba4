"""A chat server in a process of its own that costs almost nothing: OpenAI's protocol, a fixed latency, always the same answers.

    python tests/performance/stub_server.py LATENCY_SECONDS REPLY [REPLY ...]     prints its base URL
    with stub(0.05, ["Answer: 4 * 6 = 24"]) as url: ...

Requests get the replies in turn. Usage counts three characters of a request's body as a token. It reads just enough of HTTP
to serve clients that behave.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


class Chat(asyncio.Protocol):
    """One connection."""

    def __init__(self, latency: float, replies: Iterator[str]) -> None:
        self.latency, self.replies, self.read = latency, replies, bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.read += data
        while (end := self.read.find(b"\r\n\r\n")) >= 0:
            fields = [line.split(b":", 1) for line in bytes(self.read[:end]).lower().split(b"\r\n")[1:]]
            length = next(int(value) for name, value in fields if name == b"content-length")
            if len(self.read) < end + 4 + length:
                return
            del self.read[: end + 4 + length]
            body = json.dumps(reply(next(self.replies), length)).encode()
            asyncio.get_running_loop().call_later(self.latency, self.answer, HEAD % len(body) + body)

    def answer(self, content: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(content)  # type: ignore[attr-defined]


def reply(text: str, length: int) -> dict[str, object]:
    """A chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop", "logprobs": None}
    usage = {"prompt_tokens": length // 3, "completion_tokens": len(text) // 3, "total_tokens": length // 3 + len(text) // 3}
    return {"id": "stub", "object": "chat.completion", "created": 0, "model": "stub", "choices": [choice], "usage": usage}


async def serve(latency: float, replies: Sequence[str]) -> None:
    turns = cycle(replies)
    server = await asyncio.get_running_loop().create_server(lambda: Chat(latency, turns), "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


@contextmanager
def stub(latency: float, replies: Sequence[str]) -> Iterator[str]:
    """Such a server in a process of its own; its base URL."""
    process = subprocess.Popen([sys.executable, __file__, str(latency), *replies], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]), sys.argv[2:]))
