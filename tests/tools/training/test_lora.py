"""LoRA on tiny random models: the loss by hand and against `score`, gradients that do not depend on how a batch is cut."""

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from chats import CHATS, chat, reply_scores
from claas_settings import make_objective
from hypothesis import given, settings
from hypothesis import strategies as st
from lora_steps import cross_entropy, reply_logits, step
from variants import quick

from learngraph.memory.claas.settings import LoRA, Objective
from learngraph.memory.errors import UserError
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.models.models import open_model
from learngraph.tools.training import lora, losses, sft
from learngraph.tools.training.lora import Example

QUICK, RATE = LoRA(rank=4, alpha=8), 0.01


def several(model: LocalChatModel) -> list[Example]:
    return [sft.encode_chat(model, c) for c in CHATS]


def weights(model: LocalChatModel) -> dict[str, torch.Tensor]:
    """Copies of the trainable weights."""
    return {name: weight.detach().clone() for name, weight in lora.lora_parameters(model.network).items()}


def gradient(model: LocalChatModel) -> torch.Tensor:
    live = lora.lora_parameters(model.network).values()
    return torch.cat([weight.grad.flatten() for weight in live if weight.grad is not None])


# The loss


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "GPT2", "pocket"])
def test_the_loss_is_what_score_says(checkpoint: Callable[..., str], kind: str) -> None:
    """On all tokens of all replies, whatever shares a pass: L = - (sum of the scores) / (tokens of the replies)."""
    chats: list[Any] = CHATS
    if kind == "pocket":
        chats = [
            chat("Task: reach the exit\ndoor black\n> mist\n= 1\ngate troll\nStrategy:", "gate troll lamp. door black mist"),
            chat("Task: reach the exit\ndoor black", "fern", "a system message, which pocket's template leaves out"),
        ]
    model: Any = open_model("pocket", threads=1) if kind == "pocket" else LocalChatModel(model=checkpoint(kind=kind), threads=1)
    examples = [sft.encode_chat(model, c) for c in chats]
    expected = -sum(reply_scores(model, chats)) / sum(len(e.reply) for e in examples)
    with torch.no_grad():
        assert float(cross_entropy(*reply_logits(model.network, examples))) == pytest.approx(expected, abs=1e-4)


def test_networks_that_give_all_logits_give_the_same(model: LocalChatModel, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = model.network.forward
    with torch.no_grad():
        chosen, targets = reply_logits(model.network, several(model))
        monkeypatch.setattr(model.network, "forward", lambda **given: forward(**given))  # it knows no `logits_to_keep`
        whole, again = reply_logits(model.network, several(model))
    assert chosen.shape == (len(targets), len(model.tokenizer))
    assert torch.equal(targets, again)
    assert torch.allclose(chosen, whole, atol=1e-5)


# A step


@pytest.mark.parametrize(
    ("settings", "said"), [({"rank": 0}, "rank is at least 1"), ({"alpha": math.nan}, "alpha is finite and above 0")]
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        LoRA(**settings)


def test_some_layers_only(model: LocalChatModel, tiny: str) -> None:
    lora.attach_lora(model.network, LoRA(rank=2, targets="q_proj, v_proj"))
    trained = {name.split(".lora")[0].rpartition(".")[2] for name, w in model.network.named_parameters() if w.requires_grad}
    assert trained == {"q_proj", "v_proj"}
    with pytest.raises(UserError, match="targets 'nothing_here'"):
        lora.attach_lora(LocalChatModel(model=tiny).network, LoRA(targets="nothing_here"))


def test_without_peft_it_says_what_to_install(model: LocalChatModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"pip install 'learngraph\[train\]'"):
        lora.attach_lora(model.network, QUICK)


# Passes


@pytest.mark.parametrize("kind", ["Llama", "GPT2"])  # GPT2's layers are no torch.nn.Linear, and stay as they are
def test_shorter_passes_give_what_pefts_give(checkpoint: Callable[..., str], kind: str) -> None:
    model = LocalChatModel(model=checkpoint(kind=kind), threads=1)
    layer = next(one for one in lora.attach_lora(model.network, QUICK).modules() if hasattr(one, "lora_A"))
    trained = [layer.lora_A["default"].weight, layer.lora_B["default"].weight]
    torch.nn.init.normal_(trained[1], generator=torch.Generator().manual_seed(0))

    def passes() -> list[torch.Tensor]:
        """Outputs and gradients for few tokens and for many."""
        chats = [torch.linspace(-1, 1, tokens * trained[0].shape[1]).view(2, tokens // 2, -1) for tokens in (4, 400)]
        with torch.no_grad():
            found = [layer(x) for x in chats]
        return [*found, *(g for x in chats for g in torch.autograd.grad(layer(x).square().mean(), trained))]

    before = passes()
    lora.shorten_passes(model.network)
    assert ("forward" in vars(layer)) == (kind == "Llama")
    assert all(torch.allclose(old, new, atol=1e-4) for old, new in zip(before, passes(), strict=True))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 40), max_size=7), st.integers(1, 120), st.sampled_from([0.0, 3.0, 50.0, 1e9]))
def test_examples_are_packed_at_the_least_cost(sizes: list[int], cap: int, fixed: float) -> None:
    """Against all divisions of the sorted sizes."""

    def cost(parts: list[list[int]]) -> float:
        return sum(len(part) * max(part) + fixed for part in parts)

    ordered = sorted(sizes)
    cheapest = math.inf
    for cuts in itertools.product([False, True], repeat=max(0, len(sizes) - 1)):
        parts: list[list[int]] = [[]] if sizes else []
        for size, cut in zip(ordered, (False, *cuts), strict=True) if sizes else []:
            if cut:
                parts.append([])
            parts[-1].append(size)
        if all(len(part) == 1 or len(part) * max(part) <= cap for part in parts):
            cheapest = min(cheapest, cost(parts))
    found = lora.pack_by_length(sizes, cap, fixed)
    assert sorted(n for pack in found for n in pack) == list(range(len(sizes)))
    assert all(len(pack) == 1 or len(pack) * max(sizes[n] for n in pack) <= cap for pack in found)
    assert cost([[sizes[n] for n in pack] for pack in found]) == pytest.approx(cheapest)


@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_reading_says_what_score_says_however_it_is_packed(checkpoint: Callable[..., str], kind: str) -> None:
    model = LocalChatModel(model=checkpoint(kind=kind), threads=1)
    examples = several(model)
    expected = reply_scores(model, CHATS)
    for cap in (1, 100, 10_000):
        found = lora.reply_logprobs(model.network, examples, max_tokens=cap)
        assert [float(one.logprobs.sum()) for one in found] == pytest.approx(expected, abs=1e-3)
        assert [len(one.logprobs) for one in found] == [len(example.reply) for example in examples]
        assert all((one.entropy > 0).all() and one.kl is None and one.values is None for one in found)


def test_reading_at_a_temperature_and_against_the_base(model: LocalChatModel) -> None:
    examples = [replace(example, temperature=0.5) for example in several(model)]
    with torch.no_grad():
        logits = [reply_logits(model.network, [example])[0] for example in examples]
    scattered(model)
    head = lora.make_critic(model.network)
    torch.nn.init.ones_(head.bias)
    found = lora.reply_logprobs(model.network, examples, base=logits, critic=head)
    for example, plain, one in zip(examples, logits, found, strict=True):
        with torch.no_grad():
            own = reply_logits(model.network, [example])[0]
        at = (own / 0.5).log_softmax(-1).gather(1, torch.tensor(example.reply)[:, None])[:, 0]
        assert torch.allclose(one.logprobs, at, atol=1e-4)
        assert torch.allclose(one.entropy, losses.entropy(own), atol=1e-4)
        assert one.kl is not None
        assert torch.allclose(one.kl, losses.kl_to(plain, own), atol=1e-4)
        assert float(one.kl.min()) > 0
        assert one.values is not None
        assert one.values.tolist() == pytest.approx([1.0] * len(example.reply))


# Updates from feedback


def scattered(model: LocalChatModel, seed: int = 1) -> Any:
    """The network with changes that are not nothing."""
    wrapper = lora.attach_lora(model.network, QUICK)
    place = torch.Generator().manual_seed(seed)
    for name, weight in model.network.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1, generator=place)
    return wrapper


def told(model: LocalChatModel) -> list[lora.TrainingSample]:
    """Every chat with a reward and a hindsight prompt, as sampled by a slightly other policy."""
    samples = []
    for n, (c, example) in enumerate(zip(CHATS, several(model), strict=True)):
        more = sft.encode_chat(model, [{"role": "system", "content": "go north"}, *c[-2:]])
        hindsight = Example(more.prompt, example.reply)
        noise = 0.1 * torch.randn(len(example.reply), generator=torch.Generator().manual_seed(n))
        mu = lora.reply_logprobs(model.network, [example])[0].logprobs
        samples.append(lora.TrainingSample(example, mu + noise, mu, torch.full((len(mu),), (-1.0) ** n), hindsight))
    return samples


OBJECTIVES = [
    make_objective("sdpo", teacher="base"),
    make_objective("sdpo", teacher="ema"),
    make_objective("sdpo", teacher="trust", correction="truncated", kl_weight=0.1),
    Objective(kind="reinforce", kl_weight=0.1, entropy_weight=0.01),
    Objective(kind="ppo"),
]


def update(model: LocalChatModel, objective: Objective, **options: Any) -> tuple[lora.OptimizerStepResult, Any]:
    """One update by `told` of a network with changes; and the critic, if there is one."""
    wrapper = scattered(model)
    samples = [replace(s, returns=torch.ones(len(s.example.reply))) for s in told(model)]
    head = lora.make_critic(model.network) if objective.needs_critic else None
    updates = lora.make_optimizer(model.network, objective.learning_rate, critic=head, critic_learning_rate=1e-3)
    passes: dict[str, Any] = {"base": wrapper.disable_adapter, "teacher": nullcontext, "critic": head}
    return lora.learn(model.network, updates, samples, objective, **passes, **options), head


every_objective = pytest.mark.parametrize(
    "objective",
    quick(OBJECTIVES, OBJECTIVES[0], OBJECTIVES[-1]),
    ids=lambda o: f"{o.kind}-{o.teacher.kind}-{o.kl_weight}",
)


@every_objective
def test_an_update_does_not_depend_on_how_it_is_packed_and_is_the_same_twice(tiny: str, objective: Objective) -> None:
    seen = []
    for cap in (1, 150, 10_000, 150):
        model = LocalChatModel(model=tiny, threads=1)
        done, head = update(model, objective, max_tokens=cap)
        seen.append((done, gradient(model), weights(model)))
        assert done.tokens == sum(len(example.reply) for example in several(model))
        assert done.statistics["entropy"] > 0
        assert ("kl" in done.statistics) == (objective.kl_weight > 0)
        if head is not None:
            assert float(head.bias.detach().abs().sum()) > 0
            assert done.statistics["value"] == pytest.approx(0.5)
    one, cut, whole, again = seen
    assert float(one[1].abs().max()) > 0
    for other in (cut, whole):
        assert other[0].loss == pytest.approx(one[0].loss, abs=1e-5)
        assert other[0].grad_norm == pytest.approx(one[0].grad_norm, rel=1e-3)
        assert other[0].statistics == pytest.approx(one[0].statistics, abs=1e-4)
        assert torch.allclose(other[1], one[1], atol=1e-5)
    assert all(torch.equal(weight, again[2][name]) for name, weight in cut[2].items())


def test_a_teacher_with_weights_of_its_own_is_asked_inside_its_context(model: LocalChatModel) -> None:
    """A network that copies the teacher is where the gradient is 0; and afterwards the learner has its own weights back."""
    scattered(model)
    samples = [replace(s, hindsight=s.example) for s in told(model)]
    own, live = weights(model), lora.lora_parameters(model.network)

    @contextmanager
    def other(scale: float) -> Iterator[None]:
        lora.copy_tensors(live, {name: scale * weight for name, weight in own.items()})
        yield
        lora.copy_tensors(live, own)

    updates = lora.make_optimizer(model.network, RATE)
    away = lora.learn(model.network, updates, samples, Objective(), teacher=lambda: other(2.0), scale=0.0)
    same = lora.learn(model.network, updates, samples, Objective(), teacher=lambda: other(1.0), scale=0.0)
    assert same.grad_norm < 1e-4 < 1e-2 < away.grad_norm
    assert same.loss == pytest.approx(0, abs=1e-6)
    assert all(torch.equal(weight, own[name]) for name, weight in live.items())


@pytest.mark.slow
def test_learning_from_feedback_moves_the_replies(model: LocalChatModel) -> None:
    """Praised replies become more probable, others less; towards the teacher the divergence falls."""
    wrapper = lora.attach_lora(model.network, QUICK)
    samples, before = told(model), reply_scores(model, CHATS)
    objective = Objective(kind="reinforce", learning_rate=0.01)
    updates = lora.make_optimizer(model.network, objective.learning_rate)
    for _ in range(5):
        lora.learn(model.network, updates, samples, objective)
    model.clear_cache()
    moved = [after - then for after, then in zip(reply_scores(model, CHATS), before, strict=True)]
    assert sum(change * (-1) ** n for n, change in enumerate(moved)) > 1
    objective = make_objective("sdpo", teacher="base", learning_rate=0.01)
    updates = lora.make_optimizer(model.network, objective.learning_rate)
    seen = [lora.learn(model.network, updates, samples, objective, base=wrapper.disable_adapter).loss for _ in range(20)]
    assert seen[-1] < 0.7 * seen[0]


def test_no_pass_is_made_that_does_not_count(model: LocalChatModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The public code makes a pass of the base model for a KL of weight 0."""
    wrapper = lora.attach_lora(model.network, QUICK)
    samples, made = told(model), []
    forward = model.network.forward

    def counted(*args: Any, **more: Any) -> Any:
        made.append(torch.is_grad_enabled())
        return forward(*args, **more)

    monkeypatch.setattr(model.network, "forward", counted)
    monkeypatch.setattr(lora, "_pass_overhead_tokens", lambda network: 1e9)
    for objective, expected in (
        (Objective(kind="reinforce"), [True]),
        (Objective(kind="reinforce", kl_weight=0.1), [False, True]),
        (make_objective("sdpo", teacher="base"), [False, True]),
        (make_objective("sdpo", teacher="trust", kl_weight=0.1), [False, False, False, True]),
    ):
        made.clear()
        updates = lora.make_optimizer(model.network, objective.learning_rate)
        lora.learn(model.network, updates, samples, objective, base=wrapper.disable_adapter, max_tokens=100_000)
        assert made == expected


@every_objective
def test_layers_that_are_computed_again_give_the_same_gradient(tiny: str, objective: Objective) -> None:
    gradients, kept = [], []
    for limit in (math.inf, 0.0):
        model, sizes = LocalChatModel(model=tiny, threads=1), list[int]()

        def note(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            update(model, replace(objective, activation_gib=limit))
        gradients.append(gradient(model))
        kept.append(sum(sizes))
        assert not any("forward" in vars(module) for module in model.network.modules())
    assert torch.allclose(*gradients, rtol=1e-5, atol=1e-8)
    assert kept[1] < 0.7 * kept[0]


def test_the_estimate_of_a_pass_is_near_what_it_keeps(checkpoint: Callable[..., str]) -> None:
    """Without the logits, in bytes that are kept once however often."""
    model = LocalChatModel(model=checkpoint(hidden_size=64, intermediate_size=176, num_hidden_layers=6), threads=1)
    scattered(model)
    ids = model.chat_ids([{"role": "user", "content": "go north and take the lamp " * 8}])
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, torch.nn.Parameter) and tensor.numel() >= len(ids):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = model.network.model(input_ids=torch.tensor([ids]), use_cache=False)
    own = {weight.untyped_storage().data_ptr() for weight in model.network.parameters()}
    found = sum(size for place, size in kept.items() if place not in own)
    assert out.last_hidden_state.requires_grad
    assert 0.5 < lora.activation_bytes(model.network, len(ids)) / found < 2


def test_an_update_that_cannot_be_made_changes_nothing(model: LocalChatModel) -> None:
    lora.attach_lora(model.network, QUICK)
    samples, before = told(model), weights(model)
    updates = lora.make_optimizer(model.network, RATE)
    broken = [replace(samples[0], advantage=torch.full((len(samples[0].example.reply),), math.nan))]
    reinforce, sdpo = Objective(kind="reinforce"), Objective("sdpo")
    for learned, objective, teacher, said in (
        ([replace(s, hindsight=None) for s in samples], sdpo, nullcontext, "nothing to learn from"),
        ([], reinforce, None, "nothing to learn from"),
        (samples, sdpo, None, "needs base and teacher passes"),
        (broken, reinforce, None, "gradient is nan"),
    ):
        with pytest.raises(UserError, match=said):
            lora.learn(model.network, updates, learned, objective, teacher=teacher)
    assert all(torch.equal(weight, before[name]) for name, weight in weights(model).items())


# Between updates


def test_the_rate_that_is_asked_for_is_the_one_used_with_a_loaded_state(tiny: str, tmp_path: Path) -> None:
    """The learning rate is the one asked for, not the saved one. And with the same one, going on from the files is going on."""

    def fresh(rate: float) -> tuple[LocalChatModel, Any, torch.optim.Optimizer]:
        model = LocalChatModel(model=tiny, threads=1)
        wrapper = lora.attach_lora(model.network, QUICK)
        return model, wrapper, lora.make_optimizer(model.network, rate, weight_decay=0.01)

    one, _, updates = fresh(1e-3)
    examples = several(one)
    step(one.network, updates, examples)
    lora.write_optimizer(updates, tmp_path / "a.safetensors", {"critic.bias": torch.ones(1)})
    kept = weights(one)
    step(one.network, updates, examples)
    moved = {}
    for rate in (1e-3, 1e-2):
        model, _, again = fresh(rate)
        lora.copy_tensors(lora.lora_parameters(model.network), kept)
        assert lora.read_optimizer(again, tmp_path / "a.safetensors")["critic.bias"].tolist() == [1.0]
        assert [group["lr"] for group in again.param_groups] == [rate]
        step(model.network, again, examples)
        moved[rate] = {name: weight - kept[name] for name, weight in weights(model).items()}
        if rate == 1e-3:
            assert all(torch.equal(weight, weights(one)[name]) for name, weight in weights(model).items())
            lora.write_optimizer(again, tmp_path / "b.safetensors")
            lora.write_optimizer(updates, tmp_path / "c.safetensors")
            assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "c.safetensors").read_bytes()
    for name in kept:
        assert torch.allclose(moved[1e-2][name], 10 * moved[1e-3][name], rtol=1e-2, atol=1e-6), "ten times the rate"


def test_the_scale_of_an_update_holds_for_it_alone(model: LocalChatModel) -> None:
    lora.attach_lora(model.network, QUICK)
    samples, objective = told(model), Objective(kind="reinforce", learning_rate=1e-2)
    updates = lora.make_optimizer(model.network, objective.learning_rate)
    before = weights(model)
    lora.learn(model.network, updates, samples, objective, scale=0.25)
    largest = max(float((weight - before[name]).abs().max()) for name, weight in weights(model).items())
    assert largest == pytest.approx(0.25e-2, rel=1e-2), "AdamW's first step is as long as its rate"
    assert [group["lr"] for group in updates.param_groups] == [1e-2]


def test_files_of_another_adapter_are_refused(model: LocalChatModel, tiny: str, tmp_path: Path) -> None:
    lora.attach_lora(model.network, QUICK)
    updates = lora.make_optimizer(model.network, RATE)
    step(model.network, updates, several(model)[:1])
    lora.write_optimizer(updates, tmp_path / "a.safetensors")
    other = LocalChatModel(model=tiny, threads=1)
    for asked, said in ((LoRA(rank=2), "other shapes there"), (LoRA(rank=4, targets="q_proj"), "not trained here")):
        network = LocalChatModel(model=tiny, threads=1).network
        lora.attach_lora(network, asked)
        with pytest.raises(UserError, match=said):
            lora.read_optimizer(lora.make_optimizer(network, RATE), tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes()[:100])
    lora.attach_lora(other.network, QUICK)
    for name in ("b.safetensors", "absent.safetensors"):
        with pytest.raises(UserError, match="cannot read the optimizer's state"):
            lora.read_optimizer(lora.make_optimizer(other.network, RATE), tmp_path / name)


def test_an_adapter_is_written_the_same_twice_and_peft_reads_it(tiny: str, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = LocalChatModel(model=tiny, threads=1)
    wrapper = scattered(model)
    for name in ("a", "b"):
        lora.write_adapter(wrapper, tmp_path / name, None)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny), str(tmp_path / "a")).eval()
    with torch.no_grad():
        ours, _ = reply_logits(model.network, several(model))
        theirs, _ = reply_logits(again.get_base_model(), several(model))
    assert torch.allclose(ours, theirs, atol=1e-5)
