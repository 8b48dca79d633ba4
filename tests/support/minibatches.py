"""Minibatches for tests of learners, wherever they run, and a place for the versions that learners make."""

import hashlib
import shutil
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
