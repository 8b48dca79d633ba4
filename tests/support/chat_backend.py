"""A service behind the chat API for tests: it is in memory and answers word by word what the test sets.

with serving(FakeBackend(say=lambda request: "hello there")) as url: ...   # a real server, in a thread
"""

import asyncio
import tempfile
import threading
import time
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn.server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from waiting import PATIENCE, let_others_run

from learngraph.memory.errors import AdapterConflict, FeedbackConflict, UnknownAdapter, UnknownExchange, UnknownVersion
from learngraph.memory.records import ChatCall, ChatRequest, Exchange, ExchangeQuery, Feedback, FeedbackReceipt, Piece, Reply
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


@dataclass
class FakeBackend:
    say: Callable[[ChatRequest], Any] = hello
    """A text; a `Reply` in part, as a dict; or it raises."""
    model: str = "pocket"
    window: int = 512
    features: frozenset[str] = FEATURES
    delay: float = 0.0
    """Seconds before each piece."""
    heard: threading.Event | None = None
    """Where there is one, what follows the first piece waits until it is set."""
    breaks_after: int | None = None
    """Pieces before something breaks."""
    error: Exception = field(default_factory=lambda: RuntimeError("secret: /etc/passwd"))
    requests: list[ChatRequest] = field(default_factory=list)
    about: list[dict[str, Any]] = field(default_factory=list)
    cancelled: int = 0
    running: int = 0
    most: int = 0
    pieces: int = 0
    kept: dict[tuple[str, str], Exchange] = field(default_factory=dict)
    given: dict[tuple[str, str], FeedbackReceipt] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    """Tenant -> adapters besides `default`."""
    live: dict[tuple[str, str], str] = field(default_factory=dict)
    routes: dict[str, str] = field(default_factory=dict)
    """Request id -> label of the version that answers it."""
    state: str = "ok"
    more: dict[str, Any] = field(default_factory=dict)
    """Put into what `status` says, or (under `adapters`, `exchanges`) given in place of what would be."""

    async def ready(self) -> dict[str, float]:
        return {"running": self.running}

    async def models(self, tenant: str) -> list[dict[str, Any]]:
        names = ["", *self.names.get(tenant, [])]
        return [{"id": f"{self.model}:{name}" if name else self.model, "created": 1} for name in names]

    def version(self, tenant: str, adapter: str, id: str, wanted: str = "") -> str:
        if wanted and wanted != "base" and not wanted.startswith("0000"):
            raise UnknownVersion(f"no version {wanted!r}")
        label = f"{tenant}/{adapter}@{wanted}" if wanted else self.live.get((tenant, adapter), "")
        self.routes[id] = "" if wanted == "base" else label
        return self.routes[id]

    async def chat(self, call: ChatCall) -> AsyncIterator[Piece | Exchange]:
        request = call.request
        self.requests.append(request)
        about = ("family", "scenario", "turn", "store", "adapter")
        self.about.append({name: getattr(call, name) for name in about})
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
            if self.breaks_after is not None and self.breaks_after >= len(pieces):
                raise self.error
            reply = Reply(
                text="".join(pieces),
                prompt_ids=(1, 2, 3),
                token_ids=tuple(range(len(pieces))),
                logprobs=(-0.5,) * len(pieces),
                finish=finish,
                tool_calls=parts.get("tool_calls", ()),
                version=self.routes.get(call.id, ""),
                cached=2,
                thoughts=parts.get("thoughts", ""),
            )
            exchange = Exchange(call.id, call.tenant, request, reply, "base", call.adapter, created=time.time(), user=call.user)
            if call.store:
                self.kept[call.tenant, call.id] = exchange
            yield exchange
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    def advice(self, feedback: Feedback, state: str = "ready") -> str:
        return "" if feedback.text else "say it in words"

    async def feedback(self, tenant: str, response_id: str, feedback: Feedback, key: str = "") -> FeedbackReceipt:
        exchange = self.kept.get((tenant, response_id))
        if exchange is None:
            raise UnknownExchange(f"no response {response_id!r} is waiting for feedback")
        if exchange.feedback is not None:
            if exchange.feedback == feedback or (key and key == self.more.get("key")):
                return replace(self.given[tenant, response_id], is_repeat=True)
            raise FeedbackConflict(f"{response_id} was learned from already")
        self.more["key"] = key
        self.kept[tenant, response_id] = replace(exchange, feedback=feedback)
        receipt = FeedbackReceipt(f"job-{response_id}", response_id, "ready", False)
        self.given[tenant, response_id] = receipt
        return receipt

    def _row(self, exchange: Exchange) -> dict[str, Any]:
        told = exchange.feedback
        return {
            "id": exchange.id,
            "adapter": exchange.adapter,
            "version": exchange.reply.version,
            "state": "pending" if told is None else "ready",
            "reason": "",
            "created": exchange.created,
            "messages": [dict(message) for message in exchange.request.messages],
            "reply": exchange.reply.text,
            "feedback": told and asdict(told),
            "age": 0,
        }

    async def experiences(self, query: ExchangeQuery) -> list[dict[str, Any]]:
        if query.learned_by is not None:
            learned: list[dict[str, Any]] = self.more.get("learned", {}).get(query.learned_by, [])
            return learned[: query.limit]
        if "exchanges" in self.more:
            found: list[dict[str, Any]] = self.more["exchanges"]
            return found
        rows = [self._row(exchange) for (whose, _), exchange in reversed(self.kept.items()) if whose == query.tenant]
        if query.before is not None:
            ids = [row["id"] for row in rows]
            rows = rows[ids.index(query.before) + 1 :] if query.before in ids else []
        rows = [row for row in rows if query.adapter in (None, row["adapter"]) and query.state in (None, row["state"])]
        rows = [row for row in rows if query.user in (None, self.kept[query.tenant, row["id"]].user)]
        return rows[: query.limit]

    async def experience(self, tenant: str, id: str) -> dict[str, Any] | None:
        exchange = self.kept.get((tenant, id))
        return exchange and self._row(exchange)

    async def forget(self, tenant: str, ids: Any, withdraw: bool = False) -> dict[str, Any]:
        gone = [key for key in self.kept if key[0] == tenant and (ids is None or key[1] in ids)]
        for key in gone:
            del self.kept[key]
        return {"deleted": len(gone), "tainted": [], "withdrawn": ["x"] if withdraw else []}

    async def release(self, tenant: str, id: str) -> dict[str, Any]:
        for scope in self.more.get("scopes", []):
            scope.get("held", {}).pop(id, None)
        return {"released": id}

    async def find_ids(self, tenant: str, user: str | None, older_than_days: float) -> list[str]:
        until = time.time() - 86_400 * older_than_days
        return [
            id for (whose, id), one in self.kept.items() if whose == tenant and user in (None, one.user) and one.created < until
        ]

    async def freeze(self, tenant: str, adapter: str, is_frozen: bool) -> dict[str, Any]:
        self._known(tenant, adapter)
        return {"adapter": adapter, "frozen": is_frozen}

    async def job(self, tenant: str, id: str) -> dict[str, Any] | None:
        found = [r for (whose, _), r in self.given.items() if whose == tenant and r.job == id]
        return {"job": id, "kind": "feedback", "state": found[0].state} if found else None

    async def train(self, tenant: str, adapter: str, steps: int = 1) -> dict[str, Any]:
        self._known(tenant, adapter)
        return {"job": f"train-{adapter}-{steps}", "state": "waiting"}

    def _known(self, tenant: str, adapter: str) -> None:
        if adapter != "default" and adapter not in self.names.get(tenant, []):
            raise UnknownAdapter(f"no adapter {adapter!r}")

    def _adapter(self, tenant: str, adapter: str) -> dict[str, Any]:
        return {"adapter": adapter, "live": self.live.get((tenant, adapter), ""), "canary": "", "versions": []}

    async def adapters(self, tenant: str) -> list[dict[str, Any]]:
        if "adapters" in self.more:
            found: list[dict[str, Any]] = self.more["adapters"]
            return found
        return [self._adapter(tenant, name) for name in ("default", *self.names.get(tenant, []))]

    async def create(self, tenant: str, adapter: str) -> dict[str, Any]:
        if adapter == "default" or adapter in self.names.get(tenant, []):
            raise AdapterConflict(f"there is an adapter {adapter!r} already")
        self.names.setdefault(tenant, []).append(adapter)
        return self._adapter(tenant, adapter)

    async def promote(self, tenant: str, adapter: str, version: str) -> dict[str, Any]:
        self._known(tenant, adapter)
        name = version.rpartition("@")[2]
        if not name.startswith("0000"):
            raise UnknownVersion(f"no version {version!r}")
        self.live[tenant, adapter] = f"{tenant}/{adapter}@{name}"
        return self._adapter(tenant, adapter)

    async def roll_back(self, tenant: str, adapter: str, to: str | None = None) -> dict[str, Any]:
        self._known(tenant, adapter)
        self.live[tenant, adapter] = to or ""
        return self._adapter(tenant, adapter)

    async def remove(self, tenant: str, adapter: str, version: str | None = None) -> dict[str, Any]:
        self._known(tenant, adapter)
        if version is not None:
            raise UnknownVersion(f"no version {version!r}")
        if adapter in self.names.get(tenant, []):
            self.names[tenant].remove(adapter)
        return {"deleted": True}

    async def export(self, tenant: str, adapter: str, version: str) -> Path:
        self._known(tenant, adapter)
        if not version.rpartition("@")[2].startswith("0000"):
            raise UnknownVersion(f"no version {version!r}")
        path = Path(tempfile.mkdtemp()) / f"{version.rpartition('@')[2]}.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("adapter_config.json", "{}")
        self.more["exported"] = path
        return path

    async def status(self, tenant: str | None = None) -> dict[str, Any]:
        base = {"state": self.state, "why": "", "model": self.model, "learner": {"state": "idle", "error": ""}}
        return base | {"scopes": []} | self.more

    async def metrics(self) -> list[Metric]:
        updates = CounterMetricFamily("learngraph_updates", "Updates.", labels=["tenant"])
        for tenant, count in (("acme", 3), ("rival", float("nan")), ("rival", 4)):
            updates.add_metric([tenant], count)
        return [updates, GaugeMetricFamily("learngraph_up", "Up.", value=1)]


def two(**limits: Any) -> tenants.Tenants:
    """Tenants `acme`, with these limits, and `rival`, and a key for the metrics."""
    acme = tenants.Tenant("acme", tenants.TenantLimits(**limits))
    return tenants.Tenants(
        {KEY: acme, RIVAL: tenants.Tenant("rival"), "metrics": tenants.Tenant("prometheus", metrics_only=True)}
    )


@contextmanager
def serving(backend: Any, who: tenants.Tenants | None = None, **settings: Any) -> Iterator[str]:
    """The URL of a server on a free port, in a thread with an event loop of its own."""
    application = chat_server.make_app(backend, who or two(), **settings)
    ready, found = threading.Event(), []
    loop = asyncio.new_event_loop()

    def tell(url: str) -> None:
        found.append(url)
        ready.set()

    task = loop.create_task(chat_server.serve(application, port=0, on_ready=tell, grace=1))

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
