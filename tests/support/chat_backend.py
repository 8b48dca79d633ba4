"""A service behind the chat API for tests, whose engine answers word by word what the test sets.

with serving(FakeBackend(say=lambda request: "hello there")) as url: ...   # a real server, in a thread
"""

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn.server
from waiting import PATIENCE, let_others_run

from learngraph.graphs.claas import CLaaS, ReplaySettings
from learngraph.graphs.serving.service import Service
from learngraph.memory.claas.replay import Replay
from learngraph.memory.records import ChatRequest, Exchange, ExchangeQuery, Piece, Reply
from learngraph.tools.serving import chat_server, tenants

# Uvicorn looks every tenth of a second whether it is to stop, and then whether all have gone. Tests stop a hundred servers.
uvicorn.server.asyncio = SimpleNamespace(**vars(asyncio) | {"sleep": lambda seconds: asyncio.sleep(seconds / 20)})  # type: ignore[assignment,attr-defined]
KEY = "test-key-of-acme"
RIVAL = "test-key-of-rival"
FEATURES = frozenset({"tools", "tool_choice", "response_format", "logit_bias", "presence_penalty", "frequency_penalty", "raw"})


def hello(request: ChatRequest) -> str:
    """The last words of the user, once more; another seed, another number."""
    words = request.raw if request.raw is not None else str(request.messages[-1]["content"])
    return f"you said {words} ({request.sampling.seed})"


class ScriptedEngine:
    """An engine that says what a function makes of a request, in pieces of a word.

    Args:
        say: a text; a `Reply` in part, as a dict; or it raises.
        features: options that it supports.
        delay: seconds before each piece.
        heard: where there is one, what follows the first piece waits until it is set.
        breaks_after: pieces before something breaks.
        error: what breaks.
    """

    base, window = "base", 512

    def __init__(
        self,
        say: Callable[[ChatRequest], Any] = hello,
        features: frozenset[str] = FEATURES,
        delay: float = 0.0,
        heard: threading.Event | None = None,
        breaks_after: int | None = None,
        error: Exception | None = None,
    ) -> None:
        self.say, self.features, self.delay, self.heard, self.breaks_after = say, features, delay, heard, breaks_after
        self.error = error or RuntimeError("secret: /etc/passwd")
        self.requests: list[ChatRequest] = []
        self.cancelled, self.running, self.most, self.pieces = 0, 0, 0, 0
        self.loaded = set[str]()

    async def stream(self, request: ChatRequest, version: str = "", tenant: str = "") -> AsyncIterator[Piece | Reply]:
        self.requests.append(request)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            said = self.say(request)
            parts = said if isinstance(said, dict) else {"text": said}
            words = parts["text"].split(" ") if parts["text"] else []
            pieces = [f"{' ' if i else ''}{word}" for i, word in enumerate(words)]
            finish = parts.get("finish", "stop")
            for stop in request.sampling.stop:
                if stop in parts["text"]:
                    pieces = [parts["text"].split(stop)[0]]
            if len(pieces) > request.sampling.max_tokens:
                pieces, finish = pieces[: request.sampling.max_tokens], "length"
            for i, piece in enumerate(pieces):
                await asyncio.sleep(self.delay)
                while i and self.heard is not None and not self.heard.is_set():
                    await let_others_run()
                self.pieces += 1
                if self.breaks_after == i:
                    raise self.error
                top = request.top_logprobs
                token = {"token": piece, "logprob": -0.5, "bytes": list(piece.encode())}
                yield Piece(piece, ({**token, "top_logprobs": [token] * top},) if top is not None else ())
            yield Reply(
                text="".join(pieces),
                prompt_ids=(1, 2, 3),
                token_ids=tuple(range(len(pieces) or 1)),
                logprobs=(-0.5,) * (len(pieces) or 1),
                finish=finish,
                tool_calls=parts.get("tool_calls", ()),
                version=version,
                cached=2,
                thoughts=parts.get("thoughts", ""),
            )
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def load(self, version: str, folder: Path) -> None:
        self.loaded.add(version)

    async def unload(self, version: str) -> None:
        self.loaded.discard(version)

    def loaded_versions(self) -> tuple[str, ...]:
        return tuple(self.loaded)

    async def vitals(self) -> dict[str, float]:
        return {"running": self.running}

    async def close(self) -> None:
        pass


class FakeBackend(Service):
    """A service in a folder of its own, with a scripted engine and without a learner.

    Args:
        names: tenant -> adapters besides `default`.
        more: put into what `status` says, or (under `adapters`, `exchanges`, `learned`) given in place of what would be.
        script: of the engine.
    """

    engine: ScriptedEngine

    def __init__(self, names: dict[str, list[str]] | None = None, more: dict[str, Any] | None = None, **script: Any) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="chats-")
        root, settings = Path(self.folder.name), CLaaS(replay=ReplaySettings(held_out_share=0.0))
        replay = Replay(root / "replay.sqlite", settings.replay)
        super().__init__(ScriptedEngine(**script), None, replay, root / "adapters", settings, "pocket")
        self._state, self.more = "open", more or {}  # there is nothing to load
        for tenant, adapters in (names or {}).items():
            for adapter in adapters:
                self._live.adapter(tenant, adapter, create=True)

    @property
    def kept(self) -> dict[tuple[str, str], Exchange]:
        """The exchanges by tenant and id, oldest first."""
        rows = [row for tenant in ("acme", "rival") for row in self.replay.rows(ExchangeQuery(tenant, limit=200))[::-1]]
        return {(row.exchange.tenant, row.exchange.id): row.exchange for row in rows}

    def make_version(self, adapter: str = "default", step: int = 1) -> str:
        """The label of a new version of acme's, which is live."""
        (place := Path(self.folder.name) / "new").mkdir()
        (place / "adapter_config.json").write_text(f"{step}")
        label = self.versions("acme", adapter).write(place, step, "", "base")
        self.versions("acme", adapter).promote(label, "asked for")
        self._live.adapter("acme", adapter).refresh()
        return label

    async def experiences(self, query: ExchangeQuery) -> list[dict[str, Any]]:
        if query.learned_by is not None and "adapters" in self.more:
            return list(self.more.get("learned", {}).get(query.learned_by, []))
        return list(self.more["exchanges"]) if "exchanges" in self.more else await super().experiences(query)

    async def train(self, tenant: str, adapter: str, steps: int = 1) -> dict[str, Any]:
        self._live.adapter(tenant, adapter)
        return {"job": f"train-{adapter}-{steps}", "state": "waiting"}

    async def adapters(self, tenant: str) -> list[dict[str, Any]]:
        return list(self.more["adapters"]) if "adapters" in self.more else await super().adapters(tenant)

    async def status(self, tenant: str | None = None) -> dict[str, Any]:
        return await super().status(tenant) | self.more


def two(**limits: Any) -> tenants.Tenants:
    """Tenants `acme`, with these limits, and `rival`, and a key for the metrics."""
    acme = tenants.Tenant("acme", tenants.TenantLimits(**limits))
    return tenants.Tenants(
        {KEY: acme, RIVAL: tenants.Tenant("rival"), "metrics": tenants.Tenant("prometheus", metrics_only=True)}
    )


@contextmanager
def serving(backend: Any = None, who: tenants.Tenants | None = None, **settings: Any) -> Iterator[str]:
    """The URL of a server on a free port, in a thread with an event loop of its own. `settings`: of the application and of `serve`."""
    backend = FakeBackend() if backend is None else backend
    app = {name: settings.pop(name) for name in ("max_body_bytes", "open_metrics", "allowed_hosts") if name in settings}
    application = chat_server.make_app(backend, who or two(), **app)
    ready, found = threading.Event(), []
    loop = asyncio.new_event_loop()

    def tell(url: str) -> None:
        found.append(url)
        ready.set()

    async def serve() -> None:
        try:
            await chat_server.serve(application, port=0, on_ready=tell, grace=1, **settings)
        finally:
            await backend.close()

    task = loop.create_task(serve())

    def run() -> None:
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass
        finally:
            ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait(PATIENCE)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10)
        assert not thread.is_alive()
        loop.close()
