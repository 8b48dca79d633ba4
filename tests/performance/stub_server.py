"""A chat server in a process of its own that costs almost nothing: OpenAI's protocol, a fixed latency, always the same answers.

    python tests/performance/stub_server.py LATENCY_SECONDS REPLY [REPLY ...]     prints its base URL
    with stub(0.05, ["Answer: 4 * 6 = 24"]) as url: ...

Requests get the replies in turn. Usage counts three characters of a request's body as a token. It reads just enough of HTTP
to serve clients that behave.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
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
            content = bytes(self.read[end + 4 : end + 4 + length])
            del self.read[: end + 4 + length]
            body, latency = self.reply(content)
            said = json.dumps(body).encode()
            asyncio.get_running_loop().call_later(latency, self.answer, HEAD % len(said) + said)

    def reply(self, content: bytes) -> tuple[dict[str, object], float]:
        """The answer to a request's body, and the seconds until it is sent."""
        return completion(next(self.replies), len(content) // 3, 3), self.latency

    def answer(self, content: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(content)  # type: ignore[attr-defined]


def completion(text: str, read: int, characters: int) -> dict[str, object]:
    """A chat completion after `read` tokens; of its text, so many characters are a token."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop", "logprobs": None}
    written = len(text) // characters
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    return {"id": "stub", "object": "chat.completion", "created": 0, "model": "stub", "choices": [choice], "usage": usage}


async def serve(make: Callable[[], Chat]) -> None:
    """Serve on a free port; prints the base URL. `make`: a connection."""
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


@contextmanager
def started(command: Sequence[str]) -> Iterator[str]:
    """A program in Python that prints its base URL, in a process of its own."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def stub(latency: float, replies: Sequence[str]) -> AbstractContextManager[str]:
    """Such a server in a process of its own; its base URL."""
    return started([__file__, str(latency), *replies])


if __name__ == "__main__":
    turns = cycle(sys.argv[2:])
    asyncio.run(serve(lambda: Chat(float(sys.argv[1]), turns)))
