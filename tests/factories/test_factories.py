"""The texts that pocket and guard are trained on, and the training itself."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import gate
import pytest
from guard import chats
from guard import train as guard_train
from langchain_core.messages import HumanMessage
from pocket import games, strategies, train, transcripts
from pocket.transcripts import DecisionPiece, RewardPiece
from transformers import AutoTokenizer

from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task
from learngraph.tools.environments import hierarchy
from learngraph.tools.environments.keyword_keep import ANSWERS, MOVES, KeywordKeep
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.models.models import POCKET
from learngraph.tools.pocket import guard

TOKENIZER = AutoTokenizer.from_pretrained(POCKET, local_files_only=True)


def pieces_of(draw: random.Random, most: int = 90) -> list[transcripts.TranscriptPiece]:
    return [piece for piece, _ in zip(transcripts.keep_pieces(draw, KeywordKeep(), longest=320), range(most), strict=False)]


def test_pieces_are_tokenised_alike_alone_and_together() -> None:
    draw, encoder = random.Random(1), train.Encoder(TOKENIZER)
    for _ in range(5):
        pieces = [piece for piece, _ in zip(transcripts.keep_pieces(draw, KeywordKeep()), range(60), strict=False)]
        ids = encoder.sequence(pieces, 10_000).ids
        assert ids == TOKENIZER(transcripts.transcript_text(pieces))["input_ids"]


def test_transcripts_follow_the_layout_and_the_labels_the_evidence() -> None:
    draw, asked = random.Random(0), list[str]()
    for _ in range(300):
        pieces = pieces_of(draw)
        assert transcripts.transcript_text(pieces).startswith("Task: reach the exit\n")
        paid: dict[str, str] = {}
        for n, piece in enumerate(pieces):
            if isinstance(piece, DecisionPiece):
                before = pieces[n - 1]
                assert isinstance(before, str)
                place = before.removesuffix("\n>")
                assert sum(piece.probabilities.values()) == pytest.approx(1)
                if place in ("Learned:", "Feedback:"):
                    continue
                kind = place.partition(" ")[0]
                assert set(piece.probabilities) == {*ANSWERS[kind], *MOVES[kind]}
                assert min(piece.probabilities.values()) > 0
                now = pieces[n - 2]
                asked.append(now if isinstance(now, str) and now.startswith("Now: ") else "")
                if place in paid and asked[-1] != "Now: explore\n":
                    assert max(piece.probabilities, key=piece.probabilities.__getitem__) == paid[place]
                after = pieces[n + 1] if n + 1 < len(pieces) else None
                if isinstance(after, RewardPiece) and after.reward > 0:
                    paid[place] = piece.taken
    assert set(asked) == {"", "Now: explore\n", "Now: exploit\n", "Now: explore or exploit\n"}


def test_the_exercise_of_obeying_labels_the_first_item_that_can_be_done_and_was_not() -> None:
    draw, known = random.Random(9), 0
    for _ in range(60):
        items, done = list[str](), list[str]()
        pieces = list(strategies.strategy_pieces(draw, 200))
        for before, piece in pairwise(pieces):
            if isinstance(before, str) and before.startswith("Strategy: "):
                items, done = before.removeprefix("Strategy: ").rstrip("\n").removesuffix(".").split(". "), []
            if not isinstance(piece, DecisionPiece):
                continue
            label = piece.probabilities
            assert sum(label.values()) == pytest.approx(1)
            doable = [item for item in items if item in label and item not in done]
            assert piece.known == bool(doable)
            if doable:
                known += 1
                assert label[doable[0]] > 0.9
            assert all(
                label.get(item.removeprefix("not "), 0.0) < 0.1 for item in items if item.startswith("not ") and not doable
            )
            done.append(piece.taken)
    assert known > 100


def test_the_toy_worlds_strategies_are_what_the_experiences_determine() -> None:
    draw, seen = random.Random(7), set[str]()
    for _ in range(400):
        *pieces, last = strategies.keep_experience_pieces(draw, KeywordKeep())
        text = transcripts.transcript_text(pieces)
        assert isinstance(last, DecisionPiece)
        assert text.startswith("Task: reach the exit\n")
        paid: dict[str, str] = {}
        failed: dict[str, list[str]] = {}
        for place, answer, reward in re.findall(r"^((?:door|gate|fork) \w+)\n> (\w+)\n= (\S+)\n", text, re.M):
            if float(reward) > 0:
                paid.setdefault(place, answer)
            elif answer in ANSWERS[place.partition(" ")[0]] and answer not in failed.setdefault(place, []):
                failed[place].append(answer)
        for place, wrong in failed.items():
            left = [answer for answer in ANSWERS[place.partition(" ")[0]] if answer not in wrong]
            if len(left) == 1:
                paid.setdefault(place, left[0])
        if not text.endswith("Strategy:\n>"):
            place = text.removesuffix("\n>").rpartition("\n")[2]
            if place in paid:
                assert last.probabilities[paid[place]] > 0.9
            continue
        place = text.removesuffix("\nStrategy:\n>").rpartition("\n")[2]
        items = [] if last.taken == "nothing" else last.taken.split(". ")
        assert {item for item in items if " not " not in item} == {f"{there} {answer}" for there, answer in paid.items()}
        if place in paid:
            assert items[0] == f"{place} {paid[place]}"
        else:
            assert [item for item in items if " not " in item] == [f"{place} not {answer}" for answer in failed.get(place, [])]
        assert len(TOKENIZER(f" {last.taken}\n")["input_ids"]) <= 64
        seen.add("paid" if place in paid else "failed" if place in failed else "nothing" if not items else "elsewhere")
    assert seen == {"paid", "failed", "elsewhere", "nothing"}


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


def test_played_games_have_detours_that_lead_back_and_labels_that_go_on() -> None:
    world = Corridor()
    lengths = set()
    for n in range(20):
        played = games.play(world, world.task(0), random.Random(n), detours=1)
        assert played is not None
        assert sum(reward for *_, reward in played.steps) == 1
        lengths.add(len(played.steps))
        for room, _, decision, _ in played.steps:
            best = max(decision.probabilities, key=decision.probabilities.__getitem__)
            assert best in {"room 0": ("move east",), "room 1": ("move east",), "room 2": ("move west", "take coin")}[room]
    assert min(lengths) == 3  # gold without its idle look
    assert max(lengths) >= 5
    texts = {transcripts.transcript_text(list(games.window_pieces(random.Random(n), [played]))) for n in range(30)}
    assert any("ROOM 0\n> move east\n= 0\nroom 1\n> " in text for text in texts)  # earlier steps by abstract state
    assert any("room 0\n> move east\n= 0\nroom 1\n> " in text for text in texts)
    renamed, again = games.rename([played, played], random.Random(0))
    assert renamed == again  # the same names in all attempts
    assert all(decision.taken in decision.probabilities for _, _, decision, _ in renamed.steps)


def test_soft_targets_of_a_long_action_are_conditional_on_what_is_written() -> None:
    tokenizer = train.train_tokenizer(["go go north south"] * 3, [" go", " north", " south", " wait"], 400)
    label = DecisionPiece("go north", {"go north": 0.5, "go south": 0.3, "wait": 0.2})
    first, second, end = train.Encoder(tokenizer).sequence(["x\n>", label], 100).targets

    def named(shares: object) -> dict[str, float]:
        assert isinstance(shares, dict)
        return {tokenizer.decode([token]): share for token, share in shares.items()}

    assert named(first.probabilities) == pytest.approx({" go": 0.8, " wait": 0.2})
    assert named(second.probabilities) == pytest.approx({" north": 0.625, " south": 0.375})
    assert named(end.probabilities) == pytest.approx({"\n": 1.0})


# The guard


def test_training_never_sees_a_held_out_scenario() -> None:
    draw = random.Random(0)
    held = {hierarchy.system_prompt(scenario) for scenario in hierarchy.scenario_stream()}
    for kind in chats.CHAT_SHARES:
        for _ in range(100):
            text = chats.chat(draw, kind)[0]["content"]
            assert text.partition("now : ")[2] or text not in held


def test_a_defender_that_keeps_everything_is_always_right_and_one_that_keeps_nothing_never() -> None:
    draw = random.Random(1)
    for number in range(400):
        scenario = hierarchy.draw_scenario(draw, number % 5, f"t{number}")
        attacked = hierarchy.next_attack(scenario, ())
        kept = chats.hold_probabilities(scenario, attacked)
        right = chats.fallible_reply(scenario, attacked, dict.fromkeys(kept, 1.0), draw)
        assert hierarchy.verify(scenario, attacked.text, right).reward == 1
        if attacked.target:
            wrong = chats.fallible_reply(scenario, attacked, dict.fromkeys(kept, 1.0) | {attacked.target: 0.0}, draw)
            assert attacked.target in hierarchy.verify(scenario, attacked.text, wrong).broken_families


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


@pytest.mark.slow
@pytest.mark.parametrize("made", [train, guard_train], ids=["pocket", "guard"])
def test_training_lowers_the_loss_and_writes_a_model_that_loads(made: ModuleType, tmp_path: Path) -> None:
    legs = [replace(leg, learning_rate=5e-3) for leg in made.LEGS[:2]]  # it rises for 100 steps, of which 30 are done
    games_left_out = {"tasks": 0} if made is train else {}
    made.train(tmp_path, legs, max_steps=2, **games_left_out)
    first = mean_loss(tmp_path)
    made.train(tmp_path, legs[:1], max_steps=30, **games_left_out)
    assert mean_loss(tmp_path) < 0.9 * first
    model = LocalChatModel(model=str(tmp_path))
    assert model.invoke([HumanMessage("key is what ?")]).response_metadata["token_ids"]


def mean_loss(folder: Path) -> float:
    """The mean loss of a record's first line; the record is deleted."""
    record = folder / "training.jsonl"
    line = json.loads(record.read_text(encoding="utf-8").splitlines()[0])
    record.unlink()
    return fmean(tally["loss"] for tally in line.values() if isinstance(tally, dict))


def test_every_leg_has_texts_of_all_its_sources() -> None:
    tokenizer: Any = TOKENIZER
    world = Corridor()
    attempts = [played for n in range(9) if (played := games.play(world, world.task(0), random.Random(n))) is not None]
    for leg in train.LEGS:
        texts = train.PocketTexts(leg, tokenizer, [attempts], 1)
        assert sum(leg.shares.values()) == pytest.approx(1)
        for source in texts.shares:
            size, made = texts._texts(source, 1)
            assert len(made) == size
            assert any(text.targets for text in made)
    assert sum(chats.CHAT_SHARES.values()) == pytest.approx(1)


@pytest.mark.slow
def test_cards_are_measured() -> None:
    assert "| score, strategy of 7 rules |" in gate.measure_pocket(POCKET, domains=2)
    assert "| turns right | 0." in gate.measure_guard(guard.GUARD_WEIGHTS, seeds=1)
