"""CLaaS's learner on the pocket model: it learns a preference with every loss, to the byte the same again, and says what it
cannot learn from."""

import hashlib
import json
import math
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from learngraph.memory.records import ChatRequest, Exchange, Feedback, Minibatch, Reply, Sampling, UserError
from learngraph.nodes.prompt import Prompt
from learngraph.tools.learner import Learner, VersionError, hindsight_block
from learngraph.tools.local_model import LocalChatModel, fingerprint
from learngraph.tools.lora import LoRA, Objective
from learngraph.tools.models import POCKET, open_model

KITCHEN = "You are in the kitchen.\nnorth: hall\ntake: lamp"
LIKED = (" take", " read")
"""What a reply should begin with; the pocket model does so with a probability of 0.21."""
HINDSIGHT = Prompt.load("claas/hindsight").parts[0][1].template
SMALL = LoRA(rank=8, alpha=16)
QUICK: dict[str, Any] = {"rate": 3e-3, "warmup_steps": 1}


class Shelf:
    """Versions in a folder, named by their contents: as `memory.adapters` keeps them, without its log."""

    def __init__(self, root: Path) -> None:
        self.root, self.told = root, list[dict[str, Any]]()

    def folder(self, label: str) -> Path:
        return self.root / label.replace("/", "-")

    def write(self, batch: Minibatch, folder: Path, about: dict[str, Any]) -> str:
        label = f"{batch.tenant}/{batch.adapter}@{batch.step:06d}-{contents(folder)[:12]}"
        if not self.folder(label).exists():
            shutil.copytree(folder, self.folder(label))
        self.told.append(about)
        return label


def contents(folder: Path) -> str:
    """One hash of names and bytes."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def pocket() -> LocalChatModel:
    model = open_model("pocket", threads=1)
    assert isinstance(model, LocalChatModel)
    return model


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "versions")


Make = Callable[..., Learner]


@pytest.fixture
def learner(pocket: LocalChatModel, shelf: Shelf) -> Make:
    def make(lora: LoRA = SMALL, model: LocalChatModel = pocket, hindsight: str = HINDSIGHT, **settings: Any) -> Learner:
        return Learner(model, shelf.folder, shelf.write, lora, Objective(**(QUICK | settings)), hindsight)

    return make


class Talker:
    """Answers as a version would: PEFT itself reads the folder, so that what we write is what others read."""

    def __init__(self, model: LocalChatModel, folder: Path | None) -> None:
        import peft

        self.model = LocalChatModel(model=model.model, threads=1)
        self.network = peft.PeftModel.from_pretrained(self.model.network, str(folder)) if folder else self.model.network
        self.network.eval()
        self.known: dict[tuple[int, ...], torch.Tensor] = {}

    def logps(self, ids: tuple[int, ...]) -> torch.Tensor:
        if ids not in self.known:
            with torch.no_grad():
                self.known[ids] = self.network(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        return self.known[ids]

    def say(self, question: str, draw: random.Random, tokens: int = 3, temperature: float = 1.0) -> Reply:
        prompt = tuple(self.model.chat_ids([{"role": "user", "content": question}]))
        end = self.model.reply_ids("go")[-1]
        said, logps = list[int](), list[float]()
        while len(said) < tokens and (not said or said[-1] != end):
            now = (self.logps(prompt + tuple(said)) / temperature).log_softmax(-1)
            said.append(draw.choices(range(len(now)), now.exp().tolist())[0])
            logps.append(min(0.0, float(now[said[-1]])))
        return Reply(self.model.tokenizer.decode(said), prompt, tuple(said), tuple(logps))

    def liked(self, question: str = KITCHEN) -> float:
        """How probable it is that a reply is liked, exactly."""
        now = self.logps(tuple(self.model.chat_ids([{"role": "user", "content": question}]))).exp()
        return sum(float(now[self.model.get_token_ids(word)[0]]) for word in LIKED)


def exchange(model: LocalChatModel, reply: Reply, feedback: Feedback | None, n: int = 0, **more: Any) -> Exchange:
    request = ChatRequest(({"role": "user", "content": KITCHEN},), Sampling(max_tokens=3))
    return Exchange(**({"id": f"r{n}", "tenant": "acme", "request": request, "reply": reply, "base": fingerprint(model)}
                       | {"feedback": feedback} | more))  # fmt: skip


def judged(reply: Reply, text: str = "") -> Feedback:
    return Feedback(1.0 if reply.text.startswith(LIKED) else -1.0, text)


def minibatch(exchanges: Sequence[Exchange], step: int = 1, parent: str = "") -> Minibatch:
    return Minibatch(f"acme/default/{step}", "acme", "default", step, parent, tuple(exchanges), seed=step)


def served(model: LocalChatModel, size: int = 8, text: str = "", seed: int = 0, **more: Any) -> list[Exchange]:
    """Exchanges of the base model, with their feedback."""
    talker, draw = Talker(model, None), random.Random(seed)
    replies = [talker.say(KITCHEN, draw) for _ in range(size)]
    return [exchange(model, reply, judged(reply, text), n, **more) for n, reply in enumerate(replies)]


@pytest.fixture(scope="module")
def batch(pocket: LocalChatModel) -> Minibatch:
    """Sixteen replies of the base model, a fifth of them liked, and all with a text that says what would do."""
    return minibatch(served(pocket, 16, "take take take take"))


def course(learner: Learner, shelf: Shelf, model: LocalChatModel, steps: int, text: str = "") -> list[float]:
    """A service in small: a version answers 16 times, learns from that, and so on. How probable a liked reply was, each time."""
    label, found = "", []
    for step in range(1, steps + 1):
        talker, draw = Talker(model, shelf.folder(label) if label else None), random.Random(step)
        found.append(talker.liked())
        replies = [talker.say(KITCHEN, draw) for _ in range(16)]
        exchanges = [exchange(model, reply, judged(reply, text), n, step=step - 1) for n, reply in enumerate(replies)]
        lot = minibatch(exchanges, step, label)
        update = learner.step(lot, learner.correct(lot))
        label = update.version or label
    return [*found, Talker(model, shelf.folder(label)).liked()]


# It learns


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"loss": "reinforce"}, ""),
        ({"loss": "ppo"}, ""),
        ({"loss": "sdpo", "teacher": "sync", "sync_every": 2}, "take take take take"),
    ],
    ids=["reinforce", "ppo", "sdpo"],
)
def test_a_preference_is_learned_in_a_few_steps(
    learner: Make, shelf: Shelf, pocket: LocalChatModel, settings: dict[str, Any], text: str
) -> None:
    found = course(learner(**settings), shelf, pocket, 12, text)
    assert found[0] == pytest.approx(0.213, abs=0.01)
    assert found[-1] > 0.8
