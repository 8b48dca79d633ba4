"""LoRA on tiny random models: the loss by hand and against `score`, gradients that do not depend on how a batch is cut, files."""

import itertools
import json
import math
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from langchain_core.messages import HumanMessage, SystemMessage

from learngraph.memory.records import UserError
from learngraph.tools import lora
from learngraph.tools.local_model import LocalChatModel
from learngraph.tools.lora import DataError, Example, LoRA
from learngraph.tools.models import open_model

QUICK = LoRA(rank=4, alpha=8, batch=4, rate=0.01)


def chat(question: str, reply: str, system: str = "") -> lora.Chat:
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


def written(chats: list[lora.Chat], path: Path) -> Path:
    path.write_text("".join(json.dumps({"messages": c}) + "\n" for c in chats))
    return path


def scored(model: LocalChatModel, chats: list[lora.Chat]) -> list[float]:
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
    examples = [lora.encode(model, c) for c in CHATS]
    expected = -sum(scored(model, CHATS)) / sum(len(e.reply) for e in examples)
    with torch.no_grad():
        assert float(lora.surprise(*lora.replies(model.network, examples))) == pytest.approx(expected, abs=1e-4)


def test_networks_that_give_all_logits_give_the_same(model: LocalChatModel, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = [lora.encode(model, c) for c in CHATS]
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
    examples = [lora.encode(model, c) for c in chats]
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
    done = lora.step(model.network, still, [lora.encode(model, c) for c in CHATS], micro=micro, clip=1e9)
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
    examples = [lora.encode(model, c) for c in CHATS]
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

    batch = [lora.encode(model, c) for c in CHATS]
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
            [lora.encode(model, CHATS[0])],
            loss=lambda logits, targets: logits.sum() * math.nan,
        )
    assert all(torch.equal(a, b) for a, b in zip(before, model.network.parameters(), strict=True))


def test_the_rate_rises_and_falls() -> None:
    shares = [lora.schedule(n, 20, 0.1) for n in range(20)]
    assert shares[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert shares[11] == pytest.approx(0.5)  # half-way between the peak and the end
    assert all(a > b > 0 for a, b in itertools.pairwise(shares[2:]))
    assert [lora.schedule(n, 1, 0.1) for n in range(1)] == [1.0]
    assert lora.schedule(0, 4, 0.0) == 1.0
    assert [lora.schedule(n, 4, 1.0) for n in range(4)] == [0.25, 0.5, 0.75, 1.0]


# A training


def test_training_teaches_and_writes_what_can_be_opened(tiny: str, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = LocalChatModel(model=tiny, threads=1)
    before = scored(model, CHATS)
    done = lora.train(CHATS, model, LoRA(rank=4, alpha=8, epochs=30, batch=6, rate=0.01), tmp_path / "out")
    assert (done.examples, done.left_out, len(done.losses)) == (6, 0, 30)
    assert done.losses[0] == pytest.approx(-sum(before) / done.tokens, abs=1e-4)
    assert done.losses[-1] < done.losses[0] / 2
    merged: Any = open_model(f"local:{tmp_path / 'out'}", threads=1)
    after = scored(merged, CHATS)
    assert sum(after) > sum(before) / 2
    assert after == pytest.approx(scored(model, CHATS), abs=1e-3), "the model that was trained is the trained one"
    # PEFT itself reads the adapter, over the model that was trained.
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny), str(tmp_path / "out" / "adapter")).eval()
    examples = [lora.encode(model, c) for c in CHATS]
    with torch.no_grad():
        loss = lora.surprise(*lora.replies(adapted.get_base_model(), examples))
    assert float(loss) == pytest.approx(-sum(after) / done.tokens, abs=1e-3)


def test_what_is_written_names_no_place_of_this_machine(tiny: str, tmp_path: Path) -> None:
    lora.train(CHATS, LocalChatModel(model=tiny, threads=1), QUICK, tmp_path / "out")
    files = {
        str(path.relative_to(tmp_path / "out")): path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()
    }
    assert {"config.json", "model.safetensors", "training.json", "adapter/adapter_model.safetensors"} <= files.keys()
    assert not any(str(place).encode() in text for text in files.values() for place in (tiny, tmp_path, Path.home()))
    assert json.loads(files["adapter/adapter_config.json"])["base_model_name_or_path"] is None
    assert json.loads(files["training.json"])["model"] == Path(tiny).name
    assert not (tmp_path / "out.part").exists()


def test_a_seed_decides_everything(tiny: str, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.manual_seed(random.randrange(1000))  # the global generator plays no part
        state = torch.random.get_rng_state()
        settings = LoRA(rank=4, batch=2, rate=0.01, seed=seed)
        lora.train(CHATS, LocalChatModel(model=tiny, threads=1), settings, tmp_path / name)
        assert torch.equal(state, torch.random.get_rng_state())
    adapters = [(tmp_path / name / "adapter" / "adapter_model.safetensors").read_bytes() for name in "abc"]
    assert adapters[0] == adapters[1] != adapters[2]
    configs = [(tmp_path / name / "adapter" / "adapter_config.json").read_bytes() for name in "ab"]
    assert configs[0] == configs[1]


def test_examples_longer_than_the_window_are_counted_and_left_out(
    model: LocalChatModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    long = [chat("go " * 600, "north"), chat("hello", "go " * 505)]
    with pytest.raises(UserError, match="does not fit its window of 512"):
        lora.encode(model, long[1])
    done = lora.train([*CHATS, *long], model, QUICK, tmp_path / "out")
    assert (done.examples, done.left_out) == (6, 2)
    assert done.longest > 512
    assert (
        f"2 of 8 examples are left out: they do not fit the window of 512 tokens (the longest has {done.longest})"
        in caplog.text
    )
    with pytest.raises(UserError, match="none of 2 examples fits the window of 512 tokens"):
        lora.train(long, model, QUICK, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_reply_that_cannot_be_one_is_refused_by_its_number(tmp_path: Path) -> None:
    pocket: Any = open_model("pocket", threads=1)
    with pytest.raises(DataError, match=r"example 2: .* has the end of a turn in it"):
        lora.train([chat("door black", "mist"), chat("door black", "mist\nfern")], pocket, QUICK, tmp_path / "out")


def test_a_folder_that_is_there_is_left_alone(model: LocalChatModel, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("mine")
    with pytest.raises(UserError, match="is there already"):
        lora.train(CHATS, model, QUICK, tmp_path)
    assert (tmp_path / "note").read_text() == "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        lora.train(CHATS, model, QUICK, tmp_path / "file" / "out")


def test_an_interrupted_training_leaves_nothing(model: LocalChatModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lora, "_write_merged", stop)
    with pytest.raises(KeyboardInterrupt):
        lora.train(CHATS, model, QUICK, tmp_path / "out")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_a_killed_training_leaves_no_folder_that_looks_finished(tiny: str, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from learngraph.tools import lora; from learngraph.tools.local_model import LocalChatModel\n"
        "chats = lora.read_chats(sys.argv[2])\n"
        "lora.train(chats, LocalChatModel(model=sys.argv[1]), lora.LoRA(epochs=100_000), Path(sys.argv[3]))\n"
    )
    data = written(CHATS, tmp_path / "data.jsonl")
    process = subprocess.Popen([sys.executable, "-c", code, tiny, str(data), str(tmp_path / "out")])
    until = time.monotonic() + 60
    while not (tmp_path / "out.part").exists() and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (tmp_path / "out.part").exists()
    assert not (tmp_path / "out").exists()
    lora.train(CHATS, LocalChatModel(model=tiny, threads=1), QUICK, tmp_path / "out")
    assert (tmp_path / "out" / "config.json").exists()
    assert not (tmp_path / "out.part").exists()


# Data and settings


def test_chats_are_read_back(tmp_path: Path) -> None:
    assert lora.read_chats(written(CHATS, tmp_path / "data.jsonl")) == CHATS


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: "),
        ("[]", r'line 2: expected an object with "messages"'),
        ('{"messages": []}', "a list of two or more"),
        ('{"messages": [{"role": "user", "content": "a"}, {"role": "me", "content": "b"}]}', r"a role \(system, user"),
        ('{"messages": [{"role": "user", "content": ["a"]}, {"role": "assistant", "content": "b"}]}', "a text as content"),
        ('{"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]}', "the last message"),
        ('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": " "}]}', "that says something"),
    ],
)
def test_a_bad_line_is_named(line: str, said: str, tmp_path: Path) -> None:
    path = written(CHATS[:1], tmp_path / "data.jsonl")
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError, match=said):
        lora.read_chats(path)


def test_no_data_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="holds no chats"):
        lora.read_chats(tmp_path / "empty.jsonl")
    with pytest.raises(DataError, match="cannot read"):
        lora.read_chats(tmp_path / "absent.jsonl")


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
