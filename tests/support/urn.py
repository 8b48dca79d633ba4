"""A small world for CLaaS's graphs: a model that draws one of a few words, an engine that serves its versions, a learner that moves
them by REINFORCE. All of it real, exact and deterministic, without a network; a version is a folder with the words' logits."""

import asyncio
import json
import math
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from learngraph.memory.claas.adapters import Adapters
from learngraph.memory.errors import UserError
from learngraph.memory.records import (
    ChatCall,
    ChatRequest,
    Correction,
    Exchange,
    Measured,
    Minibatch,
    Piece,
    Reply,
    Sampling,
    Update,
)
from learngraph.nodes.learn.chat_turn import read_feedback

WORDS = ("red", "green", "blue", "grey")
BASE = "urn-1"
END = len(WORDS)


def log_softmax(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    total = top + math.log(math.fsum(math.exp(z - top) for z in logits))
    return [z - total for z in logits]


def kl_to_base(logits: Sequence[float]) -> float:
    """KL to the base model, which draws all words alike, in nats."""
    logps = log_softmax(logits)
    return math.log(END) + math.fsum(math.exp(x) * x for x in logps)


def read(folder: Path) -> list[float]:
    found = json.loads((folder / "policy.json").read_text())
    if not isinstance(found, list):
        raise UserError(f"{folder} holds no policy")
    return found


class UrnEngine:
    """Serves every version that was loaded; `pause` seconds before each token."""

    base, window, features = BASE, 4096, frozenset({"raw"})

    def __init__(self, pause: float = 0.0) -> None:
        self.held: dict[str, list[float]] = {}
        self.pause, self.open, self.closed, self.loads = pause, 0, False, list[str]()

    async def stream(self, request: ChatRequest, version: str = "", tenant: str = "") -> AsyncIterator[Piece | Reply]:
        if version and version not in self.held:
            raise UserError(f"no version {version!r} is loaded")
        logps = log_softmax(self.held[version] if version else [0.0] * len(WORDS))
        said = json.dumps(request.messages)
        draw = Random(f"{request.sampling.seed}/{said}/{version}").random()
        word = 0
        while word < END - 1 and draw >= math.exp(logps[word]):
            draw, word = draw - math.exp(logps[word]), word + 1
        self.open += 1
        try:
            for letter in WORDS[word]:
                await asyncio.sleep(self.pause)
                yield Piece(letter)
            yield Reply(WORDS[word], (7, 8), (word, END), (logps[word], 0.0), version=version)
        finally:
            self.open -= 1

    async def load(self, version: str, folder: Path) -> None:
        self.loads.append(version)
        self.held[version] = read(folder)

    async def unload(self, version: str) -> None:
        self.held.pop(version, None)

    def loaded_versions(self) -> tuple[str, ...]:
        return tuple(self.held)

    async def vitals(self) -> dict[str, float]:
        return {"waiting": 0, "running": self.open}

    async def close(self) -> None:
        self.closed = True


class UrnLearner:
    """z <- z + eta mean_i r_i (1[y_i] - p): REINFORCE. `poison`: a word in a feedback's text that it cannot learn from."""

    base = BASE

    def __init__(self, versions: Callable[[str, str], Adapters], rate: float = 2.0, poison: str = "") -> None:
        self.versions, self.rate, self.poison = versions, rate, poison
        self.seen: list[tuple[str, tuple[str, ...], str]] = []
        self.fails: list[Exception] = []
        self.heeds_limits = True
        """Whether a step stays within the correction's limit on KL."""
        self.wreck: list[float] | None = None
        """Logits to write in the place of what was learned, once."""
        self.threads: set[int] = set()

    def logits(self, label: str) -> list[float]:
        if not label:
            return [0.0] * len(WORDS)
        tenant, _, adapter = label.partition("@")[0].partition("/")
        return read(self.versions(tenant, adapter).folder(label))

    def correct(self, batch: Minibatch) -> Correction:
        logps = log_softmax(self.logits(batch.parent))
        kls = [(e.id, math.fsum(e.reply.logprobs) - logps[e.reply.token_ids[0]]) for e in batch.exchanges]
        ratios = [math.exp(-kl) for _, kl in kls]
        ess = math.fsum(ratios) ** 2 / math.fsum(r * r for r in ratios) / len(ratios)
        return Correction(tuple(e.id for e in batch.exchanges), ess=ess, ratio=math.fsum(ratios) / len(ratios), kls=tuple(kls))

    def step(self, batch: Minibatch, correction: Correction) -> Update:
        self.threads.add(threading.get_ident())
        if self.fails:
            raise self.fails.pop(0)
        kept = [e for e in batch.exchanges if e.id in correction.kept]
        if self.poison and any(e.feedback and self.poison in e.feedback.text for e in kept):
            raise UserError(f"cannot learn from {self.poison}")
        rewards = [(e.feedback.reward or 0.0) if e.feedback else 0.0 for e in kept]
        if len(set(rewards)) == 1 and self.poison == "alike":
            return Update("", "all rewards are alike")
        logits = self.logits(batch.parent)
        p = [math.exp(logp) for logp in log_softmax(logits)]
        for e, reward in zip(kept, rewards, strict=True):
            for word in range(END):
                move = self.rate * correction.scale * reward / len(kept)
                logits[word] += move * ((word == e.reply.token_ids[0]) - p[word])
        shrink = 1.0
        while self.heeds_limits and kl_to_base([z * shrink for z in logits]) > correction.max_kl:
            shrink *= 0.98
        logits = [z * shrink for z in logits]
        if self.wreck is not None:
            logits, self.wreck = self.wreck, None
        folder = Path(tempfile.mkdtemp(prefix="urn-"))
        (folder / "policy.json").write_text(json.dumps(logits))
        label = self.versions(batch.tenant, batch.adapter).write(folder, batch.step, batch.parent, BASE, {"batch": batch.id})
        shutil.rmtree(folder, ignore_errors=True)
        self.seen.append((batch.id, tuple(sorted(e.id for e in batch.exchanges)), label))
        return Update(
            label,
            loss=-math.fsum(rewards) / len(rewards),
            norm=1.0,
            rate=self.rate,
            tokens=2 * len(kept),
            kl=kl_to_base(logits),
            shrink=shrink,
        )

    def measure(self, label: str, exchanges: Sequence[Exchange], with_kl: bool = True) -> Measured:
        logps = log_softmax(self.logits(label))
        replies = [e.reply.token_ids for e in exchanges]  # a word and its end
        found = tuple((logps[word], *(0.0 if token == END else -99.0 for token in rest)) for word, *rest in replies)
        entropy = -math.fsum(math.exp(x) * x for x in logps)
        return Measured(found, entropy, math.log(END) - entropy, (logps.index(max(logps)),) * len(replies), math.log(END))


def request(text: str, seed: int | None = None) -> ChatRequest:
    return ChatRequest(({"role": "user", "content": text},), Sampling(seed=seed))


async def say(service: Any, text: str, id: str, tenant: str = "acme", adapter: str = "default", **more: Any) -> Exchange:
    """A chat, whole."""
    call = ChatCall(id, tenant, request(text, more.pop("seed", None)), adapter, **more)
    items = [item async for item in service.chat(call)]
    exchange = items[-1]
    assert isinstance(exchange, Exchange)
    assert "".join(item.text for item in items[:-1]) == exchange.reply.text
    return exchange


async def like(service: Any, exchange: Exchange, word: str = "blue", text: str = "") -> Any:
    """Feedback: only one word is right."""
    answer: Mapping[str, Any] = {"reward": 1.0 if exchange.reply.text == word else -1.0, "text": text}
    return await service.feedback(exchange.tenant, exchange.id, read_feedback(answer))
