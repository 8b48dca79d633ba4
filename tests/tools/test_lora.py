"""LoRA on tiny random models: the loss by hand and against `score`, gradients that do not depend on how a batch is cut."""

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from langchain_core.messages import HumanMessage, SystemMessage

from learngraph.memory.records import UserError
from learngraph.tools import lora, sft
from learngraph.tools.local_model import LocalChatModel
from learngraph.tools.lora import Example, LoRA
from learngraph.tools.models import open_model

QUICK = LoRA(rank=4, alpha=8, batch=4, rate=0.01)


def chat(question: str, reply: str, system: str = "") -> sft.Chat:
    before = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": question}, {"role": "assistant", "content": reply}]


CHATS = [
    chat("hello", "go north"),
    chat("You are in the kitchen. There is a lamp on the table. " * 3, "take the lamp", "You are in a game."),
    chat("look at the map", "naïve café 42"),
    chat("how are you", "g"),
    chat("open the door", "open the door and go west, then look"),
    chat("go", "eat"),
]


@pytest.fixture
def model(tiny: str) -> LocalChatModel:
    return LocalChatModel(model=tiny, threads=1)


def scored(model: LocalChatModel, chats: list[sft.Chat]) -> list[float]:
    """What `LocalChatModel.score` says of each reply."""
    kinds: dict[str, Any] = {"system": SystemMessage, "user": HumanMessage}
    return [model.score([kinds[m["role"]](m["content"]) for m in c[:-1]], [c[-1]["content"]])[0] for c in chats]


# The loss


def test_the_loss_is_the_mean_surprise_of_the_tokens_by_hand() -> None:
    """L = -E[ log pi(z | s) ]: two tokens of probability 1/2 and 1/8 out of four."""
    logits = torch.tensor([[3.0, 3.0, -99.0, -99.0], [math.log(1 / 8), math.log(7 / 8), -99.0, -99.0]])
    loss = lora.surprise(logits, torch.tensor([1, 0]))
    assert float(loss) == pytest.approx((math.log(2) + math.log(8)) / 2, abs=1e-6)


def test_the_gradient_of_the_loss_is_the_probability_less_the_target_by_hand() -> None:
    logits = torch.tensor([[0.0, 0.0], [math.log(3.0), 0.0]], requires_grad=True)
    torch.autograd.backward(lora.surprise(logits, torch.tensor([0, 1])))
    assert logits.grad is not None
    assert logits.grad.flatten().tolist() == pytest.approx([-0.25, 0.25, 0.375, -0.375])


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "GPT2"])
def test_the_loss_is_what_score_says(checkpoint: Callable[..., str], kind: str) -> None:
    """On all tokens of all replies, whatever shares a pass: L = - (sum of the scores) / (tokens of the replies)."""
    model = LocalChatModel(model=checkpoint(kind=kind), threads=1)
    examples = [sft.encode(model, c) for c in CHATS]
    expected = -sum(scored(model, CHATS)) / sum(len(e.reply) for e in examples)
    with torch.no_grad():
        assert float(lora.surprise(*lora.replies(model.network, examples))) == pytest.approx(expected, abs=1e-4)


def test_networks_that_give_all_logits_give_the_same(model: LocalChatModel, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = [sft.encode(model, c) for c in CHATS]
    with torch.no_grad():
        chosen, targets = lora.replies(model.network, examples)
        monkeypatch.setattr(lora, "_chooses", lambda network: False)
        whole, again = lora.replies(model.network, examples)
    assert chosen.shape == (len(targets), len(model.tokenizer))
    assert torch.equal(targets, again)
    assert torch.allclose(chosen, whole, atol=1e-5)


def test_the_loss_of_pocket_is_what_score_says() -> None:
    model: Any = open_model("pocket", threads=1)
    chats = [
        chat("Task: reach the exit\ndoor black\n> mist\n= 1\ngate troll\nStrategy:", "gate troll lamp. door black mist"),
        chat("Task: reach the exit\ndoor black", "fern", "a system message, which pocket's template leaves out"),
    ]
    examples = [sft.encode(model, c) for c in chats]
    assert all(model.tokenizer.decode(e.reply).endswith("\n") for e in examples)
    expected = -sum(scored(model, chats)) / sum(len(e.reply) for e in examples)
    with torch.no_grad():
        assert float(lora.surprise(*lora.replies(model.network, examples))) == pytest.approx(expected, abs=1e-4)


# A step


def gradients(model: LocalChatModel, micro: int) -> tuple[lora.Stepped, list[torch.Tensor]]:
    lora.adapt(model.network, QUICK)
    for name, weight in model.network.named_parameters():
        if "lora_B" in name:  # zero at first, which would leave A without a gradient
            torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(len(name)))
    trained = [weight for weight in model.network.parameters() if weight.requires_grad]
    still = torch.optim.SGD(trained, lr=0.0)
    done = lora.step(model.network, still, [sft.encode(model, c) for c in CHATS], micro=micro, clip=1e9)
    return done, [weight.grad for weight in trained if weight.grad is not None]


def test_a_batch_may_be_cut_into_passes_of_any_size(tiny: str) -> None:
    """The mean is over the tokens of the whole batch: passes with long replies count for more."""
    whole, one = gradients(LocalChatModel(model=tiny, threads=1), 6)
    for micro in (1, 2, 4):
        cut, many = gradients(LocalChatModel(model=tiny, threads=1), micro)
        assert cut.loss == pytest.approx(whole.loss, abs=1e-5)
        assert cut.norm == pytest.approx(whole.norm, rel=1e-4)
        assert len(many) == len(one) > 0
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(one, many, strict=True))


def test_a_step_goes_down_the_gradient_of_score(model: LocalChatModel) -> None:
    """The slope of the loss along a step equals the change of the scores, and nothing but the changes moves."""
    frozen = {name: weight.clone() for name, weight in model.network.named_parameters()}
    lora.adapt(model.network, QUICK)
    examples = [sft.encode(model, c) for c in CHATS]
    updates = lora.optimizer(model.network, LoRA(rate=1e-3))
    before = sum(scored(model, CHATS))
    done = lora.step(model.network, updates, examples)
    model.forget()
    after = sum(scored(model, CHATS))
    assert done.tokens == sum(len(e.reply) for e in examples)
    assert done.loss == pytest.approx(-before / done.tokens, abs=1e-4)
    assert after > before
    now = {name.replace(".base_layer", ""): weight for name, weight in model.network.named_parameters() if "lora" not in name}
    assert all(torch.equal(now[name], weight) for name, weight in frozen.items())


def test_another_loss_may_take_the_place_of_the_surprise(model: LocalChatModel) -> None:
    lora.adapt(model.network, QUICK)
    seen: list[tuple[int, ...]] = []

    def constant(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(logits.shape))
        return 2.0 + 0.0 * logits.sum()

    batch = [sft.encode(model, c) for c in CHATS]
    done = lora.step(model.network, lora.optimizer(model.network, QUICK), batch, micro=2, loss=constant)
    assert done.loss == pytest.approx(2.0)
    assert sum(rows for rows, _ in seen) == done.tokens
    assert len(seen) == 3


def test_a_gradient_that_is_not_finite_changes_nothing(model: LocalChatModel) -> None:
    lora.adapt(model.network, QUICK)
    before = [weight.clone() for weight in model.network.parameters()]
    with pytest.raises(UserError, match=r"gradient is nan .* smaller rate"):
        lora.step(
            model.network,
            lora.optimizer(model.network, QUICK),
            [sft.encode(model, CHATS[0])],
            loss=lambda logits, targets: logits.sum() * math.nan,
        )
    assert all(torch.equal(a, b) for a, b in zip(before, model.network.parameters(), strict=True))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rank": 0}, "rank is at least 1"),
        ({"rate": math.nan}, "rate is a number above 0"),
        ({"warmup": 1.5}, "warmup is from 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        LoRA(**settings)


def test_some_layers_only(model: LocalChatModel, tiny: str) -> None:
    lora.adapt(model.network, LoRA(rank=2, targets="q_proj, v_proj"))
    trained = {name.split(".lora")[0].rpartition(".")[2] for name, w in model.network.named_parameters() if w.requires_grad}
    assert trained == {"q_proj", "v_proj"}
    with pytest.raises(UserError, match="targets 'nothing_here'"):
        lora.adapt(LocalChatModel(model=tiny).network, LoRA(targets="nothing_here"))


def test_without_peft_it_says_what_to_install(model: LocalChatModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"pip install 'learngraph\[lora\]'"):
        lora.adapt(model.network, QUICK)


def test_an_example_knows_its_length() -> None:
    assert len(Example((1, 2), (3,))) == 3
