"""The pocket model: what its tokenizer promises, what its transcripts say, and what the shipped weights can do."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from transformers import AutoModelForCausalLM, AutoTokenizer

from learngraph.memory.records import Observation, Task, UserError
from learngraph.tools.environments.keyword_keep import ANSWERS, KEYS, MOVES, KeywordKeep, domain
from learngraph.tools.local_model import LocalChatModel
from learngraph.tools.pocket import evaluate, transcripts
from learngraph.tools.pocket.evaluate import WEIGHTS
from learngraph.tools.pocket.tokenizer import train_tokenizer
from learngraph.tools.pocket.train import Encoder, PocketTraining, train
from learngraph.tools.pocket.transcripts import Decision, Paid

TOKENIZER = AutoTokenizer.from_pretrained(WEIGHTS, local_files_only=True)
Probabilities = Callable[[str, Sequence[str]], dict[str, float]]


@pytest.fixture(scope="module")
def probabilities() -> Probabilities:
    model = LocalChatModel(model=str(WEIGHTS))

    def among(prompt: str, actions: Sequence[str]) -> dict[str, float]:
        logits = torch.tensor(model.score([HumanMessage(prompt)], actions))
        return dict(zip(actions, logits.softmax(-1).tolist(), strict=True))

    return among


def test_plain_transformers_load_it_and_the_card_counts_its_parameters() -> None:
    model = AutoModelForCausalLM.from_pretrained(WEIGHTS, local_files_only=True)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.config.max_position_embeddings >= 2048
    stated = re.search(r"([\d,]+) parameters", (WEIGHTS / "README.md").read_text(encoding="utf-8"))
    assert stated is not None
    assert sum(p.numel() for p in model.parameters()) == int(stated[1].replace(",", ""))


def test_generation_ends_with_the_line() -> None:
    model = AutoModelForCausalLM.from_pretrained(WEIGHTS, local_files_only=True)
    ids = torch.tensor([TOKENIZER("Task: reach the exit\nLessons:\n- door black mist\ndoor black\n>")["input_ids"]])
    reply = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False)[0, ids.shape[1] :]
    assert TOKENIZER.decode(reply) == " mist\n"


def test_every_word_of_the_toy_world_is_one_token() -> None:
    for kind in KEYS:
        for word in (kind, *KEYS[kind], *ANSWERS[kind], *MOVES[kind]):
            assert len(TOKENIZER(f" {word}")["input_ids"]) == 1, word
    assert len(TOKENIZER("\n>")["input_ids"]) == 1
    assert len(TOKENIZER("door black\n> mist\n= 0\n")["input_ids"]) == 7


@settings(deadline=None)
@given(st.text())
def test_any_text_survives_the_tokenizer(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER(text)["input_ids"]) == text


def test_chat_template_drops_system_messages_and_renders_turns_alike() -> None:
    turns = [
        {"role": "system", "content": "ignored"},
        {"role": "user", "content": "Task: reach the exit\ndoor black\n"},
        {"role": "assistant", "content": "mist"},
        {"role": "user", "content": "= 0\ndoor black"},
    ]

    def render(messages: list[dict[str, str]], prompt: bool) -> str:
        return str(TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt))

    assert render(turns, True) == "Task: reach the exit\ndoor black\n> mist\n= 0\ndoor black\n>"
    assert render(turns[:3], False) == render(turns[:2], True) + " mist\n"


def test_pieces_are_tokenised_alike_alone_and_together() -> None:
    draw, encoder = random.Random(1), Encoder(TOKENIZER)
    for _ in range(5):
        pieces = [piece for piece, _ in zip(transcripts.keep(draw, KeywordKeep()), range(60), strict=False)]
        ids = encoder.sequence(pieces, 10_000).ids
        assert ids == TOKENIZER(transcripts.text(pieces))["input_ids"]


def test_transcripts_follow_the_layout_and_the_labels_the_evidence() -> None:
    draw = random.Random(0)
    for _ in range(200):
        pieces = [piece for piece, _ in zip(transcripts.keep(draw, KeywordKeep()), range(90), strict=False)]
        assert transcripts.text(pieces).startswith("Task: reach the exit\n")
        paid: dict[str, str] = {}
        place = ""
        for before, piece, after in zip(pieces, pieces[1:], pieces[2:], strict=False):
            if isinstance(piece, Decision):
                assert isinstance(before, str)
                assert isinstance(after, Paid)
                place = before.removesuffix("\n>")
                kind = place.partition(" ")[0]
                assert sum(piece.probabilities.values()) == pytest.approx(1)
                assert set(piece.probabilities) == {*ANSWERS[kind], *MOVES[kind]}
                assert min(piece.probabilities.values()) > 0
                if place in paid:
                    assert max(piece.probabilities, key=piece.probabilities.__getitem__) == paid[place]
                if after.reward > 0:
                    paid[place] = piece.taken


def test_transcripts_come_from_training_domains_only() -> None:
    class Watched(KeywordKeep):
        def variant(self, task: Task, n: int) -> Task:
            seeds.append(task.seed)
            return super().variant(task, n)

    seeds: list[int] = []
    draw = random.Random(0)
    for _ in range(100):
        list(zip(transcripts.keep(draw, Watched()), range(60), strict=False))
    assert seeds
    assert all(seed % 10 not in (0, 5) for seed in seeds)


class Corridor:
    """Three rooms in a row; `look around` does nothing; the coin in the third pays 1."""

    name = "corridor"
    horizon = 10

    def task(self, seed: int, split: str = "test") -> Task:
        return Task("corridor", "find the coin", seed)

    def abstract(self, observation: Observation) -> str:
        return observation.text.upper()

    def gold(self, task: Task) -> tuple[str, ...]:
        return ("look around", "move east", "move east", "take coin")

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        room, over, reward = 0, False, 0.0
        for action in actions:
            if over or action not in self._actions(room):
                raise UserError("refused")
            room += {"move east": 1, "move west": -1}.get(action, 0)
            over = action == "take coin"
            reward = float(over)
        return Observation(f"room {room}", () if over else self._actions(room), reward, over)

    def _actions(self, room: int) -> tuple[str, ...]:
        ways = {0: ("move east",), 1: ("move east", "move west"), 2: ("move west", "take coin")}
        return tuple(sorted(("look around", *ways[room])))


def test_played_games_have_detours_that_lead_back_and_labels_that_go_on(tmp_path: Path) -> None:
    world = Corridor()
    lengths = set()
    for n in range(20):
        played = transcripts.play(world, world.task(0), random.Random(n), detours=1)
        assert played is not None
        assert sum(reward for *_, reward in played.steps) == 1
        lengths.add(len(played.steps))
        for room, _, decision, _ in played.steps:
            best = max(decision.probabilities, key=decision.probabilities.__getitem__)
            assert best in {"room 0": ("move east",), "room 1": ("move east",), "room 2": ("move west", "take coin")}[room]
    assert min(lengths) == 3  # gold without its idle look
    assert max(lengths) >= 5
    transcripts.save([[played]], tmp_path / "attempts.json")
    assert transcripts.load(tmp_path / "attempts.json") == [[played]]
    texts = {transcripts.text(list(transcripts.window(random.Random(n), [played]))) for n in range(30)}
    assert any("ROOM 0\n> move east\n= 0\nroom 1\n> " in text for text in texts)  # earlier steps by abstract state
    assert any("room 0\n> move east\n= 0\nroom 1\n> " in text for text in texts)


def test_renamed_games_are_the_same_games_with_other_things() -> None:
    step = (
        "You see a shelf that has a coin, and 3 red apples on it.",
        "a shelf",
        Decision("take 3 red apples", {"take 3 red apples": 0.5, "put shelf in box": 0.5}),
        1.0,
    )
    played = transcripts.Played(Task("t", "Take the red apples.", 0), (step,))
    texts = set()
    for n in range(10):
        renamed = transcripts.rename(played, random.Random(n))
        ((seen, _, decision, _),) = renamed.steps
        assert sum(decision.probabilities.values()) == 1
        assert decision.taken in decision.probabilities
        thing = decision.taken.removeprefix("take 3 ")
        assert f"a coin, and 3 {thing} on it" in seen
        assert thing in renamed.task.instruction
        assert any(action.endswith(" in box") for action in decision.probabilities)
        texts.add(seen)
    assert len(texts) == 10


def test_soft_targets_of_a_long_action_are_conditional_on_what_is_written() -> None:
    tokenizer = train_tokenizer(["go go north south"] * 3, [" go", " north", " south", " wait"], 400)
    label = Decision("go north", {"go north": 0.5, "go south": 0.3, "wait": 0.2})
    first, second, end = Encoder(tokenizer).sequence(["x\n>", label], 100).targets

    def named(shares: object) -> dict[str, float]:
        assert isinstance(shares, dict)
        return {tokenizer.decode([token]): share for token, share in shares.items()}

    assert named(first.shares) == pytest.approx({" go": 0.8, " wait": 0.2})
    assert named(second.shares) == pytest.approx({" north": 0.625, " south": 0.375})
    assert named(end.shares) == pytest.approx({"\n": 1.0})


def test_follows_a_lesson_about_the_place_and_is_ignorant_without(probabilities: Probabilities) -> None:
    draw = random.Random(3)
    told, untold = [], []
    for n in range(20):
        rules = domain(KeywordKeep().task(500 + n, "test").seed)
        place = draw.choice(rules.places[:-1])
        kind = place.partition(" ")[0]
        actions = sorted((*ANSWERS[kind], *MOVES[kind]))
        for lessons, found in ((f"Lessons:\n- {rules.lesson(place)}\n", told), ("", untold)):
            chances = probabilities(f"Task: reach the exit\n{lessons}{place}", actions)
            assert min(chances.values()) > 1e-4  # nothing is impossible to it
            found.append(chances[rules.rules[place]])
    assert sum(told) / 20 > 0.8
    assert sum(untold) / 20 < 0.5


def test_takes_the_coin_it_sees(probabilities: Probabilities) -> None:
    prompt = (
        "Task: Your task is to search the environment and find the coin.  Once you find the coin, take it.\n"
        "You are in the pantry. In one part of the room you see a shelf, that has nothing on it. There is also a coin.\n"
        "To the East you see the kitchen.\n\nInventory (maximum capacity is 2 items):\n  Your inventory is currently empty."
    )
    actions = ["inventory", "look around", "move east", "take coin"]
    seen = probabilities(prompt, actions)
    assert max(seen, key=seen.__getitem__) == "take coin"
    hidden = probabilities(prompt.replace(" There is also a coin.", ""), actions)
    assert hidden["take coin"] < seen["take coin"]


@pytest.mark.slow
def test_gate_measures_and_prints() -> None:
    measured = evaluate.gate(WEIGHTS, keeps=2, tasks=0)
    assert measured["games"] == {}
    assert 0 <= measured["keep"]["known accuracy"][0] <= 1
    assert "| score, strategy of 7 rules |" in evaluate.table(measured)
    assert not any(math.isnan(mean) for mean, _ in measured["keep"].values())


def test_training_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="minutes > 0"):
        train(PocketTraining(tmp_path, minutes=0))
    with pytest.raises(UserError, match="multiple of 32"):
        train(PocketTraining(tmp_path, hidden=128))
    with pytest.raises(UserError, match="no model in"):
        train(PocketTraining(tmp_path, start=tmp_path / "nowhere"))


def surprise(folder: Path) -> float:
    """Mean negative log-probability, in nats, of the known answers of the recall exercise."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    encoder = Encoder(AutoTokenizer.from_pretrained(folder))
    draw, found = random.Random(5), []
    for _ in range(20):
        sequence = encoder.sequence(transcripts.recall(draw, 5), 480)
        with torch.inference_mode():
            logps = model(input_ids=torch.tensor([sequence.ids])).logits[0].log_softmax(-1)
        found += [-float(logps[t.at, next(iter(t.shares))]) for t in sequence.targets if t.known]
    return sum(found) / len(found)


@pytest.mark.slow
def test_training_runs_from_nothing_goes_on_from_there_and_learns(tmp_path: Path) -> None:
    first = train(PocketTraining(tmp_path / "first", steps=2, games=0))
    longer = train(PocketTraining(tmp_path / "longer", steps=60, games=0))
    assert surprise(longer) < surprise(first) / 2
    going_on = train(PocketTraining(tmp_path / "on", steps=2, games=0, start=longer, share=0, drill=1))
    assert surprise(going_on) < surprise(first) / 2
