"""Minibatches for tests of learners, wherever they run, and a place for the versions that learners make."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from learngraph.memory.records import ChatRequest, Exchange, Feedback, Minibatch, Reply, Sampling
from learngraph.tools.local.model import LocalChatModel


def minibatch(model: LocalChatModel, base: str, step: int = 1, parent: str = "", size: int = 4) -> Minibatch:
    """Replies to one question, every second one rewarded and the others punished."""
    question = {"role": "user", "content": "look at the map"}
    prompt = tuple(model.chat_ids([question]))
    exchanges = [
        Exchange(
            *(f"r{n}", "acme", ChatRequest((question,), Sampling(max_tokens=4))),
            reply=Reply("x", prompt, (300 + n, 301, 302), (-1.0 - n, -2.0, -3.0)),
            base=base,
            feedback=Feedback(1.0 if n % 2 else -1.0),
        )
        for n in range(size)
    ]
    return Minibatch(f"acme/default/{step}", "acme", "default", step, parent, tuple(exchanges), seed=7)


def check_same_bytes(
    learner: Any, here: Any, model: LocalChatModel, steps: int, size: int, begin: Callable[[int], None]
) -> None:
    """A learner in another process makes what one in this process makes, byte by byte. `begin` is called before each of its steps."""
    assert learner.base == here.base
    labels: list[list[str]] = [[""], [""]]
    for step in range(1, steps + 1):
        for one, line in zip((here, learner), labels, strict=True):
            batch = minibatch(model, here.base, step, line[-1], size)
            correction = one.correct(batch)
            if one is learner:
                begin(step)
            line.append(one.step(batch, correction).version)
    assert labels[0] == labels[1]
    assert all(labels[0][1:])
    texts = minibatch(model, here.base).exchanges
    for label in (labels[0][-1], ""):
        assert learner.measure(label, texts) == here.measure(label, texts)


class StoredVersions:
    """Versions in folders, named by their contents."""

    def __init__(self, root: Path) -> None:
        self.root, self.told = root, list[dict[str, Any]]()

    def folder(self, label: str) -> Path:
        return self.root / label.replace("/", "-")

    def write(self, batch: Minibatch, folder: Path, about: dict[str, Any]) -> str:
        digest = hashlib.sha256()
        for path in sorted(folder.iterdir()):
            digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
        label = f"{batch.tenant}/{batch.adapter}@{batch.step:06d}-{digest.hexdigest()[:12]}"
        if not self.folder(label).exists():
            shutil.copytree(folder, self.folder(label))
        self.told.append(about)
        return label
