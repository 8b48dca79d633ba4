"""The Tinker learner through the real client, against a server that trains: its steps are those of our own learner."""

from __future__ import annotations

import math
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from learngraph.memory.claas.settings import LoRA, Objective, PolicyGradient, StalenessCorrection, TeacherSettings
from learngraph.memory.errors import UserError, machine_error
from learngraph.memory.records import ChatRequest, Exchange, Feedback, Minibatch, Reply, Sampling
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.models.models import open_model
from learngraph.tools.training.learner import InProcessLearner
from learngraph.tools.training.tinker_learner import TinkerLearner, find_unmapped_setting
from learngraph.tools.training.version_files import VersionError

pytest.importorskip("tinker")
import tinker_server

RANK = LoRA(rank=4)
REINFORCE = Objective(kind="reinforce", learning_rate=1e-2, weight_decay=0.01)
CORRECTIONS = {
    kind: replace(REINFORCE, correction=StalenessCorrection(kind=kind, veto_ratio=0.0, min_ratio=0.01, max_ratio=100.0))  # type: ignore[arg-type]
    for kind in ("none", "truncated", "decoupled", "rejection")
}
SEVERAL = replace(REINFORCE, updates_per_batch=3, policy=PolicyGradient(dual_clip=math.inf, clip_low=0.01, clip_high=0.01))


class Shelf:
    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, label: str) -> Path:
        return self.root / label

    def write(self, batch: Minibatch, folder: Path, about: dict[str, Any]) -> str:
        assert len(about["losses"]) >= 1
        label = f"{batch.tenant}/{batch.adapter}@{batch.step:06d}-aaaaaaaaaaaa"
        shutil.rmtree(self.root / label, ignore_errors=True)
        shutil.copytree(folder, self.root / label)
        return label

    def weights(self, label: str) -> dict[str, torch.Tensor]:
        return load_file(self.folder(label) / "adapter_model.safetensors")


@pytest.fixture(scope="module")
def pocket() -> LocalChatModel:
    model = open_model("pocket", threads=1)
    assert isinstance(model, LocalChatModel)
    return model


@pytest.fixture(scope="module")
def running(pocket: LocalChatModel) -> Iterator[Any]:
    with tinker_server.TinkerServer(pocket) as server:
        yield server


@pytest.fixture
def server(running: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TINKER_API_KEY", tinker_server.KEY)
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    running.requests.clear()
    running.waits, running.fails, running.exports_more, running.has_exports = 0, "", {}, True
    return running


def learner(server: Any, shelf: Shelf, objective: Objective = REINFORCE) -> TinkerLearner:
    return TinkerLearner("pocket", shelf.folder, shelf.write, RANK, objective, url=server.url)


def minibatch(model: LocalChatModel, base: str, step: int = 1, parent: str = "") -> Minibatch:
    """Replies of other lengths, some likelier now than when they were drawn, some less."""
    question = {"role": "user", "content": "look at the map"}
    prompt = tuple(model.chat_ids([question]))
    exchanges = [
        Exchange(
            *(f"r{n}", "acme", ChatRequest((question,), Sampling(max_tokens=4))),
            reply=Reply("x", prompt, (300 + n, 301, 302)[: 1 + n % 3], (-7.0 - n % 2, -6.0, -8.5)[: 1 + n % 3]),
            base=base,
            feedback=Feedback(1.0 if n % 2 else -1.0),
        )
        for n in range(5)
    ]
    return Minibatch(f"acme/default/{step}", "acme", "default", step, parent, tuple(exchanges), seed=7)


@pytest.mark.parametrize("objective", [*CORRECTIONS.values(), SEVERAL], ids=[*CORRECTIONS, "several updates"])
def test_a_step_there_is_a_step_here(server: Any, pocket: LocalChatModel, tmp_path: Path, objective: Objective) -> None:
    """Two steps of every loss that maps: the weights of both learners agree, and so do the statistics of staleness."""
    ours, theirs = Shelf(tmp_path / "ours"), Shelf(tmp_path / "theirs")
    here = InProcessLearner(pocket, ours.folder, ours.write, RANK, objective, measure_kl=False)
    there = learner(server, theirs, objective)
    labels = ["", ""]
    for step in (1, 2):
        batches = [minibatch(pocket, one.base, step, label) for one, label in zip((here, there), labels, strict=True)]
        first, second = here.correct(batches[0]), there.correct(batches[1])
        assert second.kept == first.kept
        assert (second.ess, second.ratio, second.scale) == pytest.approx((first.ess, first.ratio, first.scale), rel=1e-4)
        labels = [here.step(batches[0], first).version, there.step(batches[1], second).version]
        assert all(labels)
        one, other = ours.weights(labels[0]), theirs.weights(labels[1])
        assert one.keys() == other.keys()
        apart = math.sqrt(sum(float((weight - other[name]).square().sum()) for name, weight in one.items()))
        moved = math.sqrt(sum(float(weight.square().sum()) for name, weight in one.items() if "lora_B" in name))
        # Adam's first steps are signs of the gradient, also where it is float32's noise.
        assert apart < 0.02 * moved
    texts = minibatch(pocket, "any").exchanges
    assert there.measure(labels[1], texts).sums == pytest.approx(here.measure(labels[0], texts).sums, abs=0.02)
    assert there.measure("", texts).sums == pytest.approx(here.measure("", texts).sums, abs=0.02)
    there.close()


def test_learning_goes_on_in_another_process_and_waits_for_a_busy_service(
    server: Any, pocket: LocalChatModel, tmp_path: Path
) -> None:
    shelf = Shelf(tmp_path)
    server.waits = 2
    first = learner(server, shelf)
    batch = minibatch(pocket, first.base)
    label = first.step(batch, first.correct(batch)).version
    whole = minibatch(pocket, first.base, 2, label)
    expected = shelf.weights(first.step(whole, first.correct(whole)).version)
    first.close()
    again = learner(server, shelf)  # a new session: only the version's folder says where to go on
    server.requests.clear()
    found = shelf.weights(again.step(whole, again.correct(whole)).version)
    assert all(torch.equal(weight, found[name]) for name, weight in expected.items())
    assert [body["optimizer"] for body in server.asked("load_weights")] == [True]
    adam = server.asked("optim_step")[0]["adam_params"]
    assert {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01, "grad_clip_norm": 1.0}.items() <= adam.items()
    with pytest.raises(VersionError, match=r"learner\.json cannot be read"):
        again.correct(replace(whole, parent="acme/default@000009-aaaaaaaaaaaa"))
    again.close()


def test_what_goes_wrong_there_is_the_machines_fault_unless_it_says_otherwise(
    server: Any, pocket: LocalChatModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf(tmp_path)
    there = learner(server, shelf)
    batch = minibatch(pocket, there.base)
    server.fails = "server"
    with pytest.raises(OSError, match="could not compute log-probabilities"):
        there.correct(batch)
    server.fails = "user"
    with pytest.raises(UserError, match="it went wrong") as caught:
        there.correct(batch)
    assert machine_error(caught.value) is None
    correction = there.correct(batch)  # it goes on
    server.exports_more = {"..evil": b"x"}
    with pytest.raises(OSError, match=r"exported a file '\.\.evil'"):
        there.step(batch, correction)
    server.exports_more = {}
    assert there.step(batch, correction).version
    alike = replace(batch, exchanges=tuple(replace(each, feedback=Feedback(1.0)) for each in batch.exchanges))
    assert "all rewards are alike" in there.step(alike, correction).skipped
    warm = replace(batch.exchanges[0], request=replace(batch.exchanges[0].request, sampling=Sampling(temperature=0.7)))
    dropped = dict(there.correct(replace(batch, exchanges=(warm, *batch.exchanges[1:]))).dropped)
    assert dropped == {"r0": "was drawn at temperature 0.7; the service computes log-probabilities at 1"}
    with pytest.raises(RuntimeError, match="cannot scale its steps back"):
        there.step(batch, replace(correction, max_kl=4.5))
    there.close()
    monkeypatch.setenv("TINKER_API_KEY", "tml-guessed")
    with pytest.raises(OSError, match="could not open a session"):
        learner(server, shelf)


def test_a_server_without_exports_hands_over_what_it_samples_with(server: Any, pocket: LocalChatModel, tmp_path: Path) -> None:
    server.has_exports, server.exports_more = False, {"../escaped": b"x"}
    there = learner(server, Shelf(tmp_path / "there"))
    batch = minibatch(pocket, there.base)
    label = there.step(batch, there.correct(batch)).version
    files = {path.name for path in (tmp_path / "there" / label).iterdir()}
    assert files == {"adapter_config.json", "adapter_model.safetensors", "learner.json"}
    assert not list(tmp_path.rglob("escaped"))
    more = minibatch(pocket, there.base, 2, label)
    found = Shelf(tmp_path / "there").weights(there.step(more, there.correct(more)).version)
    assert len(server.asked("save_weights_external")) == 1  # it is not asked for again
    there.close()
    server.has_exports, server.exports_more = True, {}
    other = learner(server, Shelf(tmp_path / "other"))
    again = other.step(batch, other.correct(batch)).version
    following = minibatch(pocket, other.base, 2, again)
    expected = Shelf(tmp_path / "other")
    whole = expected.weights(other.step(following, other.correct(following)).version)
    assert all(torch.equal(weight, whole[name]) for name, weight in found.items())
    other.close()


def test_close_ends_a_call_that_the_service_does_not_answer(server: Any, pocket: LocalChatModel, tmp_path: Path) -> None:
    """The client's own futures stay pending for ever when its session ends; a thread that waits for one would never come back."""
    there = learner(server, Shelf(tmp_path))
    server.waits = 1_000_000
    closing = threading.Timer(0.3, there.close)
    closing.start()
    with pytest.raises(OSError, match=r"the learner is closed|could not compute"):  # whoever notices first
        there.correct(minibatch(pocket, there.base))
    closing.join()


@pytest.mark.parametrize(
    ("objective", "lora", "says"),
    [
        (Objective(), RANK, "teaches words by sdpo"),
        (Objective(kind="sdpo"), RANK, "distributions of two models"),
        (Objective(kind="ppo"), RANK, "has a critic"),
        (replace(REINFORCE, kl_weight=0.1), RANK, "need all logits"),
        (replace(REINFORCE, entropy_weight=0.1), RANK, "need all logits"),
        (replace(REINFORCE, policy=PolicyGradient(reward_kl_weight=0.1)), RANK, "need all logits"),
        (replace(REINFORCE, teacher=TeacherSettings(hint_weight=1.0)), RANK, "hint-weight 0"),
        (replace(REINFORCE, updates_per_batch=2), RANK, "dual-clip inf"),
        (replace(SEVERAL, correction=StalenessCorrection(kind="truncated")), RANK, "'truncated'"),
        (REINFORCE, LoRA(alpha=8), "chooses alpha"),
        (REINFORCE, LoRA(targets="q_proj"), "--lora.targets all-linear"),
    ],
)
def test_what_does_not_map_is_refused_in_words(objective: Objective, lora: LoRA, says: str) -> None:
    assert says in find_unmapped_setting(objective, lora)
    with pytest.raises(UserError, match="cannot take these steps"):
        TinkerLearner("pocket", Path, lambda batch, folder, about: "", lora, objective)
    assert find_unmapped_setting(REINFORCE, RANK) == ""
