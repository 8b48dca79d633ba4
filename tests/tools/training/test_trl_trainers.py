"""TRL's trainers on played episodes: what they are given, what they learn, and the versions they leave."""

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from langchain_core.messages import HumanMessage
from lora_steps import reply_logits
from safetensors.torch import load_file

from learngraph.memory.claas.settings import LoRA
from learngraph.memory.claas.weights import PlayedAttempt, PlayedStep, WeightSettings
from learngraph.memory.errors import UserError
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.training import trl_trainers
from learngraph.tools.training.lora import lora_parameters
from learngraph.tools.training.losses import token_logprobs
from learngraph.tools.training.trl_trainers import TrlTrainer

pytest.importorskip("trl", reason="needs trl")
SETTINGS = WeightSettings(LoRA(4), learning_rate=0.01, epochs=2, batch_size=4)
OPTIONS = ["go north", "go south", "take the lamp", "look"]


def step(seen: str, action: str) -> PlayedStep:
    return PlayedStep((HumanMessage(seen),), action)


GOOD = PlayedAttempt((step("a door", "go north"), step("a lamp", "take the lamp")), 3.0)
BAD = PlayedAttempt((step("a door", "go south"), step("a lamp", "look"), step("a lamp", "look")), 1.0)
UNJUDGED = PlayedAttempt((step("a door", "look"),), None)


def scores(model: LocalChatModel, seen: str = "a door") -> list[float]:
    return list(model.score([HumanMessage(seen)], OPTIONS))


def weights(trainer: TrlTrainer) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in lora_parameters(trainer._model.network).items()}


@pytest.fixture
def trainer(model: LocalChatModel, tmp_path: Path) -> TrlTrainer:
    return TrlTrainer(model, tmp_path / "adapters", SETTINGS)


# Imitation


@pytest.mark.slow
def test_actions_that_are_imitated_become_likely(trainer: TrlTrainer, model: LocalChatModel) -> None:
    before = scores(model)
    global_numbers = torch.get_rng_state(), random.getstate()
    report = trainer.imitate("", "v1", [GOOD], seed=1)
    assert torch.equal(torch.get_rng_state(), global_numbers[0])
    assert random.getstate() == global_numbers[1]
    assert (report.version, report.why, report.attempts, report.examples, report.updates) == ("v1", "", 1, 2, 2)
    assert report.tokens == 2 * sum(len(trainer._example(one)) for one in GOOD.steps)  # type: ignore[arg-type]
    assert report.seconds > 0 < report.flops
    after = scores(model)
    assert after[0] > before[0] + 0.5
    trainer.use("")
    assert scores(model) == before, "the base model is unchanged, bit for bit"
    trainer.use("v1")
    assert scores(model) == after


@pytest.mark.slow
def test_the_loss_is_on_the_tokens_of_actions_alone(trainer: TrlTrainer, model: LocalChatModel) -> None:
    """TRL's first loss, at one update, is our cross-entropy over the tokens of all actions."""
    trainer._settings = WeightSettings(LoRA(4), epochs=1, batch_size=8)
    examples = [trainer._example(one) for one in (*GOOD.steps, *BAD.steps)]
    with torch.no_grad():
        expected = -float(token_logprobs(*reply_logits(model.network, examples)).mean())  # type: ignore[arg-type]
    report = trainer.imitate("", "v1", [GOOD, BAD], seed=0)
    assert report.loss == pytest.approx(expected, abs=1e-4)


# GRPO


@pytest.mark.slow
def test_the_gradient_is_that_of_the_groups_advantages(trainer: TrlTrainer, model: LocalChatModel, monkeypatch: Any) -> None:
    """One update, against the equations by hand: also with attempts of different lengths, whose empty places count for nothing."""
    trainer._settings = WeightSettings(LoRA(4), epochs=1)
    group = [GOOD, BAD, PlayedAttempt((step("a door", "take the lamp"),), 0.0)]
    returns = torch.tensor([3.0, 1.0, 0.0])
    advantages = (returns - returns.mean()) / (returns.std() + 1e-4)
    total, tokens = torch.zeros(()), 0
    for attempt, advantage in zip(group, advantages, strict=True):
        for one in attempt.steps:
            logprobs = token_logprobs(*reply_logits(model.network, [trainer._example(one)]))  # type: ignore[list-item]
            total, tokens = total - advantage * logprobs.sum(), tokens + len(logprobs)
    (total / tokens).backward()
    expected = {name: weight.grad.clone() for name, weight in lora_parameters(model.network).items()}
    norm = torch.sqrt(sum((one**2).sum() for one in expected.values()))
    model.network.zero_grad()
    seen: dict[str, torch.Tensor] = {}
    usual = torch.optim.AdamW.step

    def spy(self: Any, *given: Any, **more: Any) -> Any:
        found = {id(weight): name for name, weight in lora_parameters(model.network).items()}
        seen.update({found[id(w)]: w.grad.clone() for group in self.param_groups for w in group["params"]})
        return usual(self, *given, **more)

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    before = scores(model)
    report = trainer.reinforce("", "v1", [*group, UNJUDGED], seed=3)
    assert (report.version, report.attempts, report.left_out, report.examples, report.updates) == ("v1", 3, 1, 6, 1)
    after = scores(model)
    assert after[0] - after[1] > before[0] - before[1], "better attempts become likelier than worse ones"
    assert seen.keys() == expected.keys()
    shorter = min(1.0, 1.0 / float(norm))  # gradients longer than 1 are clipped to it
    for name, slope in expected.items():
        assert torch.allclose(seen[name], slope * shorter, atol=1e-5), name


@pytest.mark.slow
def test_passes_of_any_size_give_the_same_version(tiny: str, tmp_path: Path) -> None:
    found = []
    for limit in (8192, 1):
        made = TrlTrainer(
            LocalChatModel(model=tiny, threads=1), tmp_path / str(limit), WeightSettings(LoRA(4), 0.01, max_pass_tokens=limit)
        )
        made.reinforce("", "v1", [GOOD, BAD], seed=3)
        made.imitate("v1", "v2", [GOOD, BAD], seed=3)
        found.append(weights(made))
    for name, tensor in found[0].items():
        assert torch.allclose(tensor, found[1][name], atol=2e-4), name


@pytest.mark.parametrize(
    ("group", "why"),
    [
        ([GOOD, UNJUDGED], "1 of 2 attempts have a return; a group needs two"),
        ([UNJUDGED, UNJUDGED], "0 of 2 attempts"),
        ([GOOD, PlayedAttempt(BAD.steps, 3.0)], "all 2 attempts earned 3: no advantage, and no gradient"),
    ],
)
def test_a_group_without_a_difference_teaches_nothing(trainer: TrlTrainer, group: list[PlayedAttempt], why: str) -> None:
    before = weights(trainer)
    report = trainer.reinforce("", "v1", group, seed=0)
    assert report.version == ""
    assert why in report.why
    assert report.updates == report.flops == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(trainer).items())


@pytest.mark.slow
def test_a_step_that_does_not_fit_the_window_is_left_out(trainer: TrlTrainer, model: LocalChatModel) -> None:
    long = step("go north " * model.window, "look")
    report = trainer.imitate("", "v1", [PlayedAttempt((long, *GOOD.steps), 1.0)], seed=0)
    assert (report.examples, report.left_out) == (2, 1)
    report = trainer.imitate("v1", "v2", [PlayedAttempt((long,), 1.0)], seed=0)
    assert (report.version, report.why) == ("v1", f"none of 1 steps fits the model's window of {model.window} tokens")


# Versions


@pytest.mark.slow
def test_the_same_parent_attempts_and_seed_give_the_same_version(tiny: str, tmp_path: Path) -> None:
    """Also in another process's place: with the files of the version before, and other global random numbers."""
    found = []
    for name in ("one", "two"):
        made = TrlTrainer(LocalChatModel(model=tiny, threads=1), tmp_path / name, SETTINGS)
        made.imitate("", "v1", [GOOD, BAD], seed=5)
        if name == "two":  # as after a crash
            made = TrlTrainer(LocalChatModel(model=tiny, threads=1), tmp_path / name, SETTINGS)
        torch.manual_seed(len(found))
        assert made.reinforce("v1", "v2", [GOOD, BAD], seed=6).updates == 2, "one update an epoch"
        found.append(weights(made))
    assert all(torch.equal(found[0][name], tensor) for name, tensor in found[1].items())


@pytest.mark.slow
def test_old_versions_go_and_one_that_is_missed_is_named(trainer: TrlTrainer, tmp_path: Path) -> None:
    for n, label in enumerate(("v1", "v2", "v3")):
        trainer.imitate(f"v{n}" if n else "", label, [GOOD], seed=0)
        moments = load_file(tmp_path / "adapters" / label / "optimizer.safetensors")
        assert {float(v) for k, v in moments.items() if k.endswith(":step")} == {2.0 * (n + 1)}, "the optimizer's moments go on"
    (tmp_path / "adapters" / "version-killed").mkdir()
    trainer.keep({"v2", "v3"})
    assert sorted(path.name for path in (tmp_path / "adapters").iterdir()) == ["v2", "v3"]
    with pytest.raises(UserError, match=r"stands at version v1 of its adapter, and .* has only v2, v3"):
        trainer.use("v1")
    (tmp_path / "adapters" / "v2" / "adapter_model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"v2: adapter_model\.safetensors cannot be read"):
        trainer.use("v2")


@pytest.mark.slow
def test_numbers_that_are_not_finite_leave_the_parent(tiny: str, tmp_path: Path) -> None:
    made = TrlTrainer(LocalChatModel(model=tiny, threads=1), tmp_path, WeightSettings(LoRA(4), learning_rate=1e38))
    before = weights(made)
    report = made.imitate("", "v1", [GOOD], seed=0)
    assert (report.version, "a smaller learning rate" in report.why) == ("", True)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(made).items())


def test_without_the_extra_it_says_what_to_install(model: LocalChatModel, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(UserError, match=r"pip install 'learngraph\[train\]'"):
        TrlTrainer(model, tmp_path, SETTINGS)


def test_perplexities_are_those_of_the_actions_tokens(trainer: TrlTrainer, model: LocalChatModel) -> None:
    one, two = trainer.perplexities("", [GOOD, BAD])
    with torch.no_grad():
        logprobs = token_logprobs(*reply_logits(model.network, [trainer._example(s) for s in GOOD.steps]))  # type: ignore[misc]
    assert one == pytest.approx(float(torch.exp(-logprobs.mean())), rel=1e-3)
    assert two > 1


def test_another_sampler_of_trls_is_noticed() -> None:
    rollouts = trl_trainers._Rollouts([[None, None]], [1.0, 2.0])
    assert rollouts(["0", "0"], None)["env_mask"] == [[0], [0]]
    with pytest.raises(UserError, match="TRL asked for other rollouts than were played"):
        rollouts(["0", "1"], None)
