"""Fine-tuning on chats: what is trained is what is scored, what is written can be opened, seeds decide, data is checked."""

import itertools
import json
import random
import signal
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from chats import CHATS, Chat, chat, reply_scores
from forks import Python
from lora_steps import cross_entropy, reply_logits, step
from waiting import wait_at_random, wait_until

from learngraph.memory.claas.settings import LoRA
from learngraph.memory.errors import UserError
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.models.models import open_model
from learngraph.tools.pocket.guard_chats import retention_probes
from learngraph.tools.training import lora, sft
from learngraph.tools.training.sft import DataError, FineTuningSettings

QUICK = FineTuningSettings(lora=LoRA(rank=4, alpha=8), batch_size=4, learning_rate=0.01)


def written(chats: list[Chat], path: Path) -> Path:
    path.write_text("".join(json.dumps({"messages": c}) + "\n" for c in chats))
    return path


def test_the_rate_rises_and_falls() -> None:
    shares = [sft.learning_rate_factor(n, 20, 0.1) for n in range(20)]
    assert shares[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert shares[11] == pytest.approx(0.5)  # half-way between the peak and the end
    assert all(a > b > 0 for a, b in itertools.pairwise(shares[2:]))
    assert [sft.learning_rate_factor(n, 1, 0.1) for n in range(2)] == [1.0, 0.0], "TRL asks once more after the last update"
    assert sft.learning_rate_factor(0, 4, 0.0) == 1.0
    assert [sft.learning_rate_factor(n, 4, 1.0) for n in range(4)] == [0.25, 0.5, 0.75, 1.0]


# A training


@pytest.mark.slow
def test_training_teaches_and_writes_what_can_be_opened(tiny: str, tmp_path: Path) -> None:
    model = LocalChatModel(model=tiny, threads=1)
    before, tokens = reply_scores(model, CHATS), sum(len(sft.encode_chat(model, c).reply) for c in CHATS)
    losses = sft.train(CHATS, model, replace(QUICK, epochs=30, batch_size=6), tmp_path / "out")
    assert len(losses) == 30
    assert losses[0] == pytest.approx(-sum(before) / tokens, abs=1e-4)
    assert losses[-1] < losses[0] / 2
    merged: Any = open_model(f"local:{tmp_path / 'out'}", threads=1)
    after = reply_scores(merged, CHATS)
    assert sum(after) > sum(before) / 2
    assert after == pytest.approx(reply_scores(model, CHATS), abs=1e-3), "the model that was trained is the trained one"


@pytest.mark.slow
def test_the_updates_are_those_of_the_cross_entropy_whatever_shares_a_pass(tiny: str, tmp_path: Path) -> None:
    """One batch: the mean is over all its tokens, and passes with long replies count for more."""
    settings = replace(QUICK, epochs=3, batch_size=6, warmup_share=0.0, max_grad_norm=1e9)
    model = LocalChatModel(model=tiny, threads=1)
    lora.attach_lora(model.network, settings.lora, settings.seed)
    examples, losses = [sft.encode_chat(model, c) for c in CHATS], []
    updates = lora.make_optimizer(model.network, settings.learning_rate)
    for n in range(3):
        with torch.no_grad():
            losses.append(float(cross_entropy(*reply_logits(model.network, examples))))
        updates.param_groups[0]["lr"] = settings.learning_rate * sft.learning_rate_factor(n, 3, 0.0)
        step(model.network, updates, examples)
    for micro in (1, 4, 6):
        other = LocalChatModel(model=tiny, threads=1)
        found = sft.train(CHATS, other, replace(settings, micro_batch_size=micro), tmp_path / str(micro))
        assert found == pytest.approx(losses, abs=1e-5)


def test_what_is_written_names_no_place_of_this_machine(tiny: str, tmp_path: Path) -> None:
    sft.train(CHATS, LocalChatModel(model=tiny, threads=1), QUICK, tmp_path / "out")
    files = {
        str(path.relative_to(tmp_path / "out")): path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()
    }
    assert {"config.json", "model.safetensors"} <= files.keys()
    assert not any(str(place).encode() in text for text in files.values() for place in (tiny, tmp_path, Path.home()))
    assert not (tmp_path / "out.part").exists()


@pytest.mark.slow
def test_a_seed_decides_everything(tiny: str, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.manual_seed(random.randrange(1000))  # the global generator plays no part
        state = torch.random.get_rng_state()
        settings = FineTuningSettings(lora=LoRA(rank=4), batch_size=2, learning_rate=0.01, seed=seed)
        sft.train(CHATS, LocalChatModel(model=tiny, threads=1), settings, tmp_path / name)
        assert torch.equal(state, torch.random.get_rng_state())
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.slow
def test_examples_longer_than_the_window_are_counted_and_left_out(
    model: LocalChatModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    long = [chat("go " * 600, "north"), chat("hello", "go " * 505)]
    with pytest.raises(UserError, match="does not fit its window of 512"):
        sft.encode_chat(model, long[1])
    assert sft.train([*CHATS, *long], model, QUICK, tmp_path / "out")
    assert "2 of 8 examples are left out: they do not fit the window of 512 tokens (the longest has " in caplog.text
    with pytest.raises(UserError, match="none of 2 examples fits the window of 512 tokens"):
        sft.train(long, model, QUICK, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_reply_that_cannot_be_one_is_refused_by_its_number(tmp_path: Path) -> None:
    pocket: Any = open_model("pocket", threads=1)
    with pytest.raises(DataError, match=r"example 2: .* has the end of a turn in it"):
        sft.train([chat("door black", "mist"), chat("door black", "mist\nfern")], pocket, QUICK, tmp_path / "out")


def test_a_folder_that_is_there_is_left_alone(model: LocalChatModel, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        sft.train(CHATS, model, QUICK, tmp_path)
    assert (tmp_path / "note").read_text() == "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        sft.train(CHATS, model, QUICK, tmp_path / "file" / "out")


@pytest.mark.slow
def test_an_interrupted_training_leaves_nothing(model: LocalChatModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sft, "_write_merged_model", stop)
    with pytest.raises(KeyboardInterrupt):
        sft.train(CHATS, model, QUICK, tmp_path / "out")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_a_killed_training_leaves_no_folder_that_looks_finished(tiny: str, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from learngraph.tools.training import sft; from learngraph.tools.local.model import LocalChatModel\n"
        "chats = sft.read_chats(sys.argv[2])\n"
        "sft.train(chats, LocalChatModel(model=sys.argv[1]), sft.FineTuningSettings(epochs=100_000), Path(sys.argv[3]))\n"
    )
    data = written(CHATS, tmp_path / "data.jsonl")
    process = Python("-c", code, tiny, data, tmp_path / "out")
    wait_until((tmp_path / "out.part").exists)
    wait_at_random(Random(0), 0.5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (tmp_path / "out.part").exists()
    assert not (tmp_path / "out").exists()
    sft.train(CHATS, LocalChatModel(model=tiny, threads=1), QUICK, tmp_path / "out")
    assert (tmp_path / "out" / "config.json").exists()
    assert not (tmp_path / "out.part").exists()


# Data and settings


def test_chats_are_read_back(tmp_path: Path) -> None:
    assert sft.read_chats(written(CHATS, tmp_path / "data.jsonl")) == CHATS


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
        sft.read_chats(path)


def test_no_data_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="holds no chats"):
        sft.read_chats(tmp_path / "empty.jsonl")
    with pytest.raises(DataError, match="cannot read"):
        sft.read_chats(tmp_path / "absent.jsonl")


def test_a_model_may_bring_its_own_retention_set(tmp_path: Path, pocket: LocalChatModel) -> None:
    """The toy's is of chats that it was trained for, and that no study asks."""
    toy, probes = open_model("guard", threads=1), retention_probes(240, seed=7)
    known = [*probes["facts"], *[one for one in probes["wishes"] if len(one[1].split()) > 1]]
    found = sft.read_retention(toy)
    assert [(one.request.messages, one.reply.token_ids) for one in found] == [
        (tuple(chat), toy.reply_ids(said)) for chat, said in known
    ]
    assert sft.read_retention(pocket) == []
    assert len(sft.read_retention(pocket, written(CHATS, tmp_path / "mine.jsonl"))) == len(CHATS)
    long = [*CHATS[0][:-1], {"role": "assistant", "content": "take " * 9999}]
    with pytest.raises(DataError, match=r"mine.jsonl: chat 2: .* window"):
        sft.read_retention(pocket, written([CHATS[0], long], tmp_path / "mine.jsonl"))
