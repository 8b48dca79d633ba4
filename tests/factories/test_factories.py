"""The texts that pocket and guard are trained on, and the training itself."""

import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from types import ModuleType

import gate
import numpy as np
import pytest
import screen
from guard import chats
from guard import train as guard_train
from langchain_core.messages import HumanMessage
from pocket import train, transcripts
from transformers import AutoTokenizer

from learngraph.memory.conversations import linear
from learngraph.memory.records import Task
from learngraph.tools.environments import hierarchy
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.models.models import POCKET
from learngraph.tools.pocket import guard

TOKENIZER = AutoTokenizer.from_pretrained(POCKET, local_files_only=True)


def test_transcripts_come_from_training_domains_only() -> None:
    class Watched(KeywordKeep):
        def variant(self, task: Task, n: int) -> Task:
            seeds.append(task.seed)
            return super().variant(task, n)

    seeds: list[int] = []
    draw = random.Random(0)
    for _ in range(100):
        list(zip(transcripts.keep_pieces(draw, Watched()), range(60), strict=False))
    assert seeds
    assert all(seed % 10 not in (0, 5) for seed in seeds)


# The guard


def test_training_never_sees_a_held_out_scenario() -> None:
    draw = random.Random(0)
    held = {hierarchy.system_prompt(scenario) for scenario in hierarchy.scenario_stream()}
    for kind in chats.CHAT_SHARES:
        for _ in range(100):
            text = chats.chat(draw, kind)[0]["content"]
            assert text.partition("now : ")[2] or text not in held


def test_the_trainer_reads_chats_as_template_and_tokenizer_do() -> None:
    tokenizer = AutoTokenizer.from_pretrained(guard.GUARD_WEIGHTS)
    draw = random.Random(2)
    for kind in chats.CHAT_SHARES:
        for _ in range(20):
            said = chats.chat(draw, kind)
            found = guard_train.encode(said, tokenizer.get_vocab())
            text = tokenizer.apply_chat_template(said, tokenize=False)
            assert found.ids == tokenizer(text, add_special_tokens=False)["input_ids"]
            assert tokenizer.unk_token_id not in found.ids
            learned = [token for target in found.targets for token in target.probabilities]
            assert learned == [found.ids[target.position + 1] for target in found.targets]
            replies = " <end> ".join([message["content"] for message in said if message["role"] == "assistant"])
            assert tokenizer.decode(learned) == f"{replies} <end>"


def test_the_tokenizer_knows_every_word_of_the_scenarios() -> None:
    tokenizer = AutoTokenizer.from_pretrained(guard.GUARD_WEIGHTS)
    assert tokenizer.get_vocab() == guard_train.train_tokenizer().get_vocab()
    for scenario in hierarchy.scenario_stream():
        user = hierarchy.next_attack(scenario, ()).text
        for text in (hierarchy.system_prompt(scenario), user, hierarchy.verify(scenario, user, "").feedback):
            assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"]


@pytest.mark.long
@pytest.mark.parametrize(
    "made",
    [pytest.param(train, id="pocket"), pytest.param(guard_train, id="guard")],
)
def test_training_lowers_the_loss_and_writes_a_model_that_loads(
    made: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = cache(made.train_tokenizer)  # learned once for both trainings, of some of the texts
    monkeypatch.setattr(made, "train_tokenizer", lambda *given: tokenizer(*(tuple(one[:100]) for one in given[:2]), *given[2:]))
    legs = [replace(leg, learning_rate=4e-2) for leg in made.LEGS[:2]]  # it rises for 100 steps, of which 12 are done
    games_left_out = {"tasks": 0} if made is train else {}
    made.train(tmp_path, legs, max_steps=2, **games_left_out)
    first = mean_loss(tmp_path)
    made.train(tmp_path, legs[:1], max_steps=12, **games_left_out)
    assert mean_loss(tmp_path) < 0.9 * first
    model = LocalChatModel(model=str(tmp_path))
    assert model.invoke([HumanMessage("key is what ?")]).response_metadata["token_ids"]


def mean_loss(folder: Path) -> float:
    """The mean loss of a record's first line; the record is deleted."""
    record = folder / "training.jsonl"
    line = json.loads(record.read_text(encoding="utf-8").splitlines()[0])
    record.unlink()
    return fmean(tally["loss"] for tally in line.values() if isinstance(tally, dict))


@pytest.mark.slow
def test_cards_are_measured() -> None:
    assert "| score, strategy of 7 rules |" in gate.measure_pocket(POCKET, domains=1)
    assert "| turns right | 0." in gate.measure_guard(guard.GUARD_WEIGHTS, seeds=1)


# The screen


@pytest.mark.long
def test_the_screens_weights_are_those_that_its_examples_make(tmp_path: Path) -> None:
    with np.load(screen.train(tmp_path / "weights.npz")) as made, np.load(linear.WEIGHTS) as kept:
        assert all(np.abs(made[name] - kept[name]).max() < 0.05 for name in kept)


def test_the_screen_is_measured_on_texts_that_it_was_not_trained_on() -> None:
    for name in sorted(path.name for path in (screen.EXAMPLES / "held_out").iterdir()):
        trained = "ordinary.txt" if name == "requests.txt" else name
        assert not {*screen.read_examples(name, is_held_out=True)} & {*screen.read_examples(trained)}, name
