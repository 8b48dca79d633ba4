"""The pocket model: what its tokenizer promises, what its transcripts say, and what the shipped weights can do."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from transformers import AutoModelForCausalLM, AutoTokenizer

from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task
from learngraph.tools.environments.keyword_keep import ANSWERS, KEYS, MOVES, KeywordKeep, domain
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.pocket import evaluate, lessons, strategies, transcripts
from learngraph.tools.pocket.chores import Chores
from learngraph.tools.pocket.errands import Errands
from learngraph.tools.pocket.evaluate import WEIGHTS
from learngraph.tools.pocket.tokenizer import train_tokenizer
from learngraph.tools.pocket.train import Encoder, PocketTraining, train
from learngraph.tools.pocket.transcripts import DecisionPiece, RewardPiece

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
    for reward in ("0", "1", "2", "0.33", "0.333333", "0.5", "0.142857", "-0.25"):
        assert len(TOKENIZER(f"door black\n> mist\n= {reward}\n")["input_ids"]) == 7, reward


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
        pieces = [piece for piece, _ in zip(transcripts.keep_pieces(draw, KeywordKeep()), range(60), strict=False)]
        ids = encoder.sequence(pieces, 10_000).ids
        assert ids == TOKENIZER(transcripts.transcript_text(pieces))["input_ids"]


def pieces_of(draw: random.Random, most: int = 90) -> list[transcripts.TranscriptPiece]:
    return [piece for piece, _ in zip(transcripts.keep_pieces(draw, KeywordKeep(), longest=320), range(most), strict=False)]


def test_transcripts_follow_the_layout_and_the_labels_the_evidence() -> None:
    draw = random.Random(0)
    asked = []
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


def test_transcripts_show_rewards_zeros_or_none_and_number_digest_and_count_attempts() -> None:
    draw = random.Random(1)
    texts = [transcripts.transcript_text(pieces_of(draw, 150)) for _ in range(300)]
    assert {bool(re.search(r"^= ", text, re.M)) for text in texts} == {True, False}
    for text in texts:
        if not re.search(r"^= ", text, re.M):  # no rewards: no totals of whole attempts either
            assert not re.search(r"^total", text, re.M)
        for rewards, total in re.findall(r"Attempt \d+:\n((?:\S+ \S+\n> \S+\n= \S+\n)+)total (\S+)\n", text):
            assert sum(map(float, re.findall(r"= (\S+)", rewards))) == pytest.approx(float(total), abs=1e-3)
    together = "".join(texts)
    assert re.search(r"^Attempt \d+ \(x\d\):$", together, re.M)
    assert re.search(r"^Attempt \d+: total \d+: \w+(, \w+)+", together, re.M)
    assert all(
        len(line.partition(": ")[2].partition(": ")[2]) <= 61 for line in re.findall(r"^Attempt .*total .*$", together, re.M)
    )
    assert re.search(r"^- door \w+ \w+\. ", together, re.M)
    assert re.search(r"^Feedback: .*\nAttempt", together, re.M)
    for text in texts:
        numbers = [int(number) for number in re.findall(r"^Attempt (\d+)", text, re.M)]
        assert numbers == sorted(set(numbers))


def test_a_reader_knows_what_a_text_determines() -> None:
    reader = transcripts.Reader()
    reader.read_advice("gate wolf", "lamp")
    reader.read_advice("fork sun", "left")

    def step(place: str, action: str, reward: float, after: str, rewarded: bool = True) -> None:
        reader.read_step(place, action, Observation(after, ("wait",), reward, False), rewarded)

    step("door red", "mist", 0, "door red")
    assert reader.policy("door red") == {"echo": 0.25, "fern": 0.25, "salt": 0.25, "gold": 0.25}
    step("door red", "salt", 1, "gate wolf")
    step("gate wolf", "lamp", 0, "fork sun")
    assert reader.facts_text() == "fork sun left. door red salt"  # what failed is no longer believed
    assert reader.policy("door red", "exploit") == {"salt": 1.0}
    assert set(reader.policy("door red", "explore")) == {"echo", "fern", "gold"}
    step("fork oak", "left", 0, "door blue")
    assert reader.facts_text().endswith("door red salt. fork oak right")  # the only one left
    step("door blue", "gold", 0, "gate monk", rewarded=False)  # it opened
    step("gate monk", "bell", 0, "door white", rewarded=False)  # gates let everyone pass
    assert reader.facts_text().endswith("fork oak right. door blue gold")
    assert transcripts.Reader().facts_text() == "nothing"


def test_errands_are_done_by_their_gold_path_and_from_wherever_one_strays() -> None:
    world = Errands()
    for seed in range(60):
        task = world.task(seed)
        gold = world.gold(task)
        assert [world.observe(task, gold[:n]).over for n in range(1, len(gold) + 1)] == [False] * (len(gold) - 1) + [
            True
        ] * bool(gold)
        assert sum(world.observe(task, gold[: n + 1]).reward or 0.0 for n in range(len(gold))) == bool(gold)
        assert all(re.fullmatch(r"(go to|take|move|open|heat|cool|clean) .+ \d", action) for action in gold)
        draw, actions = random.Random(seed), list[str]()
        for _ in range(6):
            shown = world.observe(task, actions)
            actions += [] if shown.over else [draw.choice(shown.actions)]
        while best := world.best_action(task, actions):
            actions.append(best)
            assert len(actions) < 20
        assert world.observe(task, actions).reward == bool(actions)
    with pytest.raises(UserError, match="not admissible"):
        world.observe(world.task(0), ("take the sun",))
    with pytest.raises(UserError, match="train on only"):
        world.task(0, "test")


def test_advice_in_games_is_mostly_right_and_the_label_is_what_is_right() -> None:
    draw, world = random.Random(6), Errands()
    followed, avoided = [], []
    for n in range(400):
        pieces = list(strategies.game_strategy_pieces(draw, [world.attempt(world.task(n), draw)], 0.0))
        if not pieces:
            continue
        strategy = str(pieces[1]).removeprefix("Strategy: ").rstrip("\n").removesuffix(".")
        items = strategy.split(". ")
        assert 1 <= len(items) <= 6
        assert len(set(items)) == len(items)
        first = next(piece for piece in pieces if isinstance(piece, DecisionPiece))
        label = max(first.probabilities, key=first.probabilities.__getitem__)
        assert first.probabilities[label] > 0.9
        done = [
            item
            for item in items
            if item in first.probabilities and f"> {item}\n" not in transcripts.transcript_text(pieces[:3])
        ]
        if done:
            followed.append(done[0] == label)
        avoided += [item.removeprefix("not ") == label for item in items if item.startswith("not ")]
    assert 0.8 < sum(followed) / len(followed) < 0.95
    assert 0 < sum(avoided) / len(avoided) < 0.1


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


def told_in(pieces: Sequence[transcripts.TranscriptPiece]) -> list[str]:
    """The lines of the list that a text begins with, or the items of the strategy in its place."""
    line = str(pieces[1])
    if line.startswith("Strategy: "):
        return line.removeprefix("Strategy: ").rstrip("\n").split(". ")
    assert line.startswith("Lessons:\n")
    return [item.removeprefix("- ") for item in line.splitlines()[1:]]


def test_the_exercise_of_seeking_a_line_labels_what_the_line_of_that_very_thing_says() -> None:
    draw, named, nothing = random.Random(11), 0, 0
    for _ in range(80):
        pieces = list(lessons.lookup_pieces(draw, 400, ("lamp", "road")))
        lines = told_in(pieces)
        assert len(lines) == len(set(lines)) >= 2
        for decision in (piece for piece in pieces if isinstance(piece, DecisionPiece)):
            assert sum(decision.probabilities.values()) == pytest.approx(1)
            listed = [line for line in lines if line in decision.probabilities]
            if decision.taken in listed:
                assert decision.probabilities[decision.taken] > 0.4
                named += 1
            if not listed:
                nothing += 1
            if decision.known:
                assert max(decision.probabilities.values()) == decision.probabilities[decision.taken] > 0.9
    assert named > 200
    assert nothing > 10


def test_lessons_in_games_stand_among_many_of_other_tasks_and_a_few_are_wrong() -> None:
    world, draw = Chores(), random.Random(12)
    right, sizes, without = [], set[int](), 0
    for n in range(300):
        task = world.task(n)
        played = transcripts.practise(world, task, draw)
        assert played is not None
        rooms = [world.task(1000 + 20 * n + k) for k in range(14)]
        places = ["shelf", "drawer"]
        others = [lessons.bare_attempt(room, lessons.swap_places(draw, world.gold(room), places)) for room in rooms]
        pieces = list(lessons.lesson_pieces(draw, played, others, 0.0))
        if not pieces:
            continue
        lines = told_in(pieces)
        assert len(lines) == len(set(lines)) <= 40
        sizes.add(len(lines) // 10)
        gold = set(world.gold(task))
        mine = {action for _, _, decision, _ in played.steps for action in decision.probabilities}
        for line in lines:  # what can be done in this task is what gold does there, or a mistake
            if line in mine and line.startswith("put ") and f"take {line[4:].partition(' in ')[0]}" in gold:
                right.append(line in gold)
        first = next(piece for piece in pieces if isinstance(piece, DecisionPiece))
        listed = [line for line in lines if line in first.probabilities and line in gold]
        best = max(first.probabilities, key=first.probabilities.__getitem__)
        assert first.probabilities[best] > 0.25
        if listed and best in listed:
            assert sum(first.probabilities[line] for line in listed) > 0.9
        without += not listed
    assert 0.85 < sum(right) / len(right) < 0.97
    assert {0, 1, 2, 3} <= sizes
    assert without > 30


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


def test_strategies_of_games_are_what_the_best_experience_did() -> None:
    draw, world, seen = random.Random(8), Errands(), set[str]()
    for n in range(300):
        attempts = [world.attempt(world.task(n), draw) for _ in range(5)]
        pieces = list(strategies.game_experience_pieces(draw, attempts, 0.0))
        if not pieces or not str(pieces[-2]).endswith("Strategy:\n>"):
            continue
        *_, last = pieces
        assert isinstance(last, DecisionPiece)
        text = transcripts.transcript_text(pieces[:-1])
        blocks = re.findall(r"^Experience \d+:.*\n((?:(?!Experience).*\n> .*\n= .*\n)+)", text, re.M)
        said = last.taken.split(". ")
        if "= 1\n" in "".join(blocks):  # the errand was done in one of them: its first action, then the last, which was paid
            paid = [re.findall(r"^> (.*)\n= (.*)$", block, re.M) for block in blocks if "\n= 1\n" in block]
            assert said in [list(dict.fromkeys([p[0][0], *(a for a, r in p[1:] if r == "1")])) for p in paid]
            seen.add("paid")
        elif last.taken.startswith("not "):
            assert all(f"> {item.removeprefix('not ')}\n" in text for item in said)
            seen.add("failed")
        elif last.taken == "nothing":
            assert "Experience" not in text
            seen.add("nothing")
    assert {"paid", "failed"} <= seen


def test_replies_hold_what_was_paid_and_no_more_than_the_text() -> None:
    draw = random.Random(2)
    replies = 0
    for _ in range(300):
        pieces = pieces_of(draw, 400)
        *_, asked, said = pieces
        if asked not in ("Learned:\n>", "Feedback:\n>") or not isinstance(said, DecisionPiece):
            continue
        replies += 1
        before = transcripts.transcript_text(pieces[:-2])
        assert said.probabilities == {said.taken: 1.0}
        assert len(TOKENIZER(f" {said.taken}\n")["input_ids"]) <= 64  # what a reply may have
        facts = [] if said.taken == "nothing" else said.taken.split(". ")
        assert all(fact.rpartition(" ")[0] in before for fact in facts)
        for place, answer in re.findall(r"^((?:door|gate|fork) \w+)\n> (\w+)\n= (?!0\n)", before, re.M):
            assert f"{place} {answer}" in facts
    assert replies > 40


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
    games = transcripts.Games(((played,),), (((played, played),),))
    transcripts.save(games, tmp_path / "attempts.json")
    assert transcripts.load(tmp_path / "attempts.json") == games
    texts = {transcripts.transcript_text(list(transcripts.window_pieces(random.Random(n), [played]))) for n in range(30)}
    assert any("ROOM 0\n> move east\n= 0\nroom 1\n> " in text for text in texts)  # earlier steps by abstract state
    assert any("room 0\n> move east\n= 0\nroom 1\n> " in text for text in texts)


def tried(actions: Sequence[str]) -> transcripts.GameAttempt:
    """An attempt at the corridor with a gold path without its idle look."""
    world, steps = Corridor(), []
    task = world.task(0)
    for n, action in enumerate(actions):
        shown = world.observe(task, actions[:n])
        gold = "take coin" if "take coin" in shown.actions else "move east"
        label = DecisionPiece(action, {a: float(a == gold) for a in shown.actions})
        steps.append((shown.text, world.abstract(shown), label, world.observe(task, actions[: n + 1]).reward or 0.0))
    return transcripts.GameAttempt(task, tuple(steps))


def test_chores_pay_as_twc_does() -> None:
    world = Chores()
    for seed in range(30):
        task = world.task(seed)
        gold = world.gold(task)
        rewards = [world.observe(task, gold[: n + 1]).reward or 0.0 for n in range(len(gold))]
        assert sum(rewards) == pytest.approx(1)
        assert [world.observe(task, gold[:n]).over for n in range(len(gold) + 1)] == [False] * len(gold) + [True]
        first = world.observe(task, ())
        thing = gold[0].removeprefix("take ")
        assert f"a {thing}." in first.text
        assert "Your inventory is currently empty." in first.text
        held = world.observe(task, gold[:1])
        assert held.text.startswith(f"You take the {thing}.\n\nYou are in the ")
        assert held.text.endswith(f"  a {thing}")
        home = gold[-1].rpartition(" in ")[2]
        for action in held.actions:
            if action.startswith("put ") and not action.endswith(home):
                put = world.observe(task, (gold[0], action))
                if put.reward is not None and put.reward < 0:  # not where it belongs: what taking it paid is lost
                    assert put.reward == pytest.approx(-(held.reward or 0.0))
                    assert gold[0] in put.actions
    with pytest.raises(UserError, match="not admissible"):
        world.observe(world.task(0), ("take the sun",))
    with pytest.raises(UserError, match="train on only"):
        world.task(0, "test")


def test_practice_is_gold_with_noise_and_comes_back() -> None:
    world = Corridor()
    scores = []
    for n in range(40):
        played = transcripts.practise(world, world.task(0), random.Random(n), horizon=9)
        assert played is not None
        assert len(played.steps) <= 9
        assert all(sum(d.probabilities.values()) in (0, 1) for _, _, d, _ in played.steps)
        scores.append(sum(reward for *_, reward in played.steps))
    assert {0.0, 1.0} == set(scores)


def test_retries_are_labelled_by_the_best_attempt_before() -> None:
    back_and_forth = ("move east", "move west", "move east", "move east", "take coin")
    attempts = [tried(back_and_forth), tried(("move east", "move east", "take coin")), tried(("look around", "move east"))]
    seen = set()
    for n in range(300):
        pieces = list(transcripts.retry_pieces(random.Random(n), attempts))
        at = max(i for i, piece in enumerate(pieces) if isinstance(piece, DecisionPiece))
        last, text = pieces[at], transcripts.transcript_text(pieces[:at])
        assert isinstance(last, DecisionPiece)
        assert text.startswith("Task: find the ")
        assert max(float(r) for r in ["0", *re.findall(r"^= (\S+)", text, re.M)]) <= 1
        earned = "= 1\n" in text
        told = re.search(r"Now: (.+)\n.*\n>$", text)
        mode = told[1] if told else ""
        seen.add((earned, mode))
        if earned and mode != "explore" and "move west" in last.probabilities:
            assert max(last.probabilities.values()) > 0.95
            assert last.probabilities["move west"] < 0.05
        if not earned and mode != "explore" and "move west" in last.probabilities:
            assert max(last.probabilities.values()) < 0.95
    assert {(True, ""), (False, ""), (True, "explore"), (True, "exploit")} <= seen


def test_renamed_games_are_the_same_games_with_other_things() -> None:
    step = (
        "You see a shelf that has a coin, and 3 red apples on it.",
        "a shelf",
        DecisionPiece("take 3 red apples", {"take 3 red apples": 0.5, "put shelf in box": 0.5}),
        1.0,
    )
    played = transcripts.GameAttempt(Task("t", "Take the red apples.", 0), (step,))
    texts = set()
    for n in range(10):
        renamed, again = transcripts.rename([played, played], random.Random(n))
        assert renamed == again  # the same names in all attempts
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
    label = DecisionPiece("go north", {"go north": 0.5, "go south": 0.3, "wait": 0.2})
    first, second, end = Encoder(tokenizer).sequence(["x\n>", label], 100).targets

    def named(shares: object) -> dict[str, float]:
        assert isinstance(shares, dict)
        return {tokenizer.decode([token]): share for token, share in shares.items()}

    assert named(first.probabilities) == pytest.approx({" go": 0.8, " wait": 0.2})
    assert named(second.probabilities) == pytest.approx({" north": 0.625, " south": 0.375})
    assert named(end.probabilities) == pytest.approx({"\n": 1.0})


def test_follows_a_lesson_about_the_place_and_is_ignorant_without(probabilities: Probabilities) -> None:
    draw = random.Random(3)
    told, untold = [], []
    for n in range(20):
        rules = domain(KeywordKeep().task(500 + n, "test").seed)
        place = draw.choice(rules.places[:-1])
        kind = place.partition(" ")[0]
        actions = sorted((*ANSWERS[kind], *MOVES[kind]))
        for advice, found in ((f"Lessons:\n- {rules.lesson(place)}\n", told), ("", untold)):
            chances = probabilities(f"Task: reach the exit\n{advice}{place}", actions)
            assert min(chances.values()) > 1e-4  # nothing is impossible to it
            found.append(chances[rules.rules[place]])
    assert sum(told) / 20 > 0.8
    assert sum(untold) / 20 < 0.5


def test_explores_and_exploits_as_asked(probabilities: Probabilities) -> None:
    text = "Task: reach the exit\nAttempt 3:\ndoor black\n> mist\n= 1\nfork oak\n> left\n= 1\ntotal 2\nAttempt 4:\nNow: {}\n{}"
    for place, answer in (("door black", "mist"), ("fork oak", "left")):
        kind = place.partition(" ")[0]
        actions = (*ANSWERS[kind], *MOVES[kind])
        assert probabilities(text.format("exploit", place), actions)[answer] > 0.8
        assert probabilities(text.format("explore or exploit", place), actions)[answer] > 0.8
        assert probabilities(text.format("explore", place), actions)[answer] < 0.3


@pytest.mark.slow
def test_writes_what_texts_show() -> None:
    model = LocalChatModel(model=str(WEIGHTS), temperature=0)
    draw = random.Random(4)
    right, said, facts = 0, 0, 0
    for _ in range(80):
        made = transcripts.keep_pieces(draw, KeywordKeep(), "test", 320)
        pieces = [piece for piece, _ in zip(made, range(400), strict=False)]
        *_, asked, reply = pieces
        if asked != "Learned:\n>" or not isinstance(reply, DecisionPiece) or reply.taken == "nothing":
            continue
        prompt = transcripts.transcript_text(pieces[:-2]) + "Learned:"
        written = {fact.strip() for fact in str(model.invoke([HumanMessage(prompt)]).content).split(".") if fact.strip()}
        shown = set(reply.taken.split(". "))
        right, said, facts = right + len(written & shown), said + len(written), facts + len(shown)
    assert right / said > 0.7
    assert right / facts > 0.3


def test_does_again_what_was_rewarded_in_a_game(probabilities: Probabilities) -> None:
    room = (
        "You are in the bedroom. In one part of the room you see a desk, that has nothing on it. There is also a night stand, "
        "that has nothing on it. You also see a bed, that has nothing on it.\n\nInventory:\n  a dax"
    )
    head = "Task: Your task is to pick up objects, then place them in their usual locations in the environment.\n"
    step = "you are in the bedroom\n> {}\n= {:g}\n"
    places = ("bed", "night stand", "desk")

    def chances(best: str, paid: float) -> dict[str, float]:
        text = head
        for n, place in enumerate(places):
            put = step.format(f"put dax in {place}", paid if place == best else -paid)
            text += f"Attempt {n + 1}:\n{step.format('take dax', paid)}{put}total {2 * paid * (place == best):g}\n"
        return probabilities(f"{text}Attempt 4:\n{step.format('take dax', paid)}{room}", [f"put dax in {p}" for p in places])

    for place in places:
        action = f"put dax in {place}"
        assert chances(place, 0.5)[action] > chances(place, 0.0)[action]


def test_acts_on_a_strategy_in_a_room(probabilities: Probabilities) -> None:
    head = "Task: Your task is to pick up objects, then place them in their usual locations in the environment.\n"
    room = (
        "You are in the bedroom. In one part of the room you see a desk, that has nothing on it. There is also a night stand, "
        "that has nothing on it. You also see a bed, that has nothing on it.{}\n\nInventory:\n{}"
    )
    holding = room.format("", "  a dax")
    empty = room.format(" There is also a wug. You also see a blicket.", "  Your inventory is currently empty.")
    for seen, actions, sure in (
        (holding, ["put dax in bed", "put dax in night stand", "put dax in desk"], 0.45),  # it reads this far in part only
        (empty, ["take wug", "take blicket"], 0.9),
    ):
        without = probabilities(head + seen, actions)
        told = {action: probabilities(f"{head}Strategy: {action}\n{seen}", actions)[action] for action in actions}
        assert all(told[action] > without[action] for action in actions)
        assert sum(told.values()) / len(actions) > sure


@pytest.mark.slow
def test_writes_a_strategy_from_experiences() -> None:
    model = LocalChatModel(model=str(WEIGHTS), temperature=0)
    draw, firsts, right, said, due = random.Random(10), list[bool](), 0, 0, 0
    while len(firsts) < 25:
        *pieces, reply = strategies.keep_experience_pieces(draw, KeywordKeep(), "test")
        prompt = transcripts.transcript_text(pieces).removesuffix("\n>")
        if not prompt.endswith("Strategy:") or not isinstance(reply, DecisionPiece) or reply.taken == "nothing":
            continue
        items = reply.taken.split(". ")
        written = [item.strip() for item in str(model.invoke([HumanMessage(prompt)]).content).split(".") if item.strip()]
        firsts.append(written[:1] == items[:1])
        right, said, due = right + len({*items} & {*written}), said + len({*written}), due + len(items)
    assert sum(firsts) / len(firsts) > 0.7
    assert right / said > 0.7
    assert right / due > 0.5


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


@pytest.mark.long
def test_gate_measures_and_prints() -> None:
    measured = evaluate.measure_model(WEIGHTS, keeps=2, tasks=0)
    assert measured["games"] == measured["retried"] == {}
    assert 0 <= measured["keep"]["known accuracy"][0] <= 1
    assert "| score, strategy of 7 rules |" in evaluate.markdown_table(measured)
    assert not any(math.isnan(mean) for mean, _ in measured["keep"].values())


def test_training_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="minutes > 0"):
        train(PocketTraining(tmp_path, minutes=0))
    with pytest.raises(UserError, match="multiple of 32"):
        train(PocketTraining(tmp_path, hidden_size=128))
    with pytest.raises(UserError, match="no model in"):
        train(PocketTraining(tmp_path, start=tmp_path / "nowhere"))


def surprise(folder: Path) -> float:
    """Mean negative log-probability, in nats, of the known answers of the recall exercise."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    encoder = Encoder(AutoTokenizer.from_pretrained(folder))
    draw, found = random.Random(5), []
    for _ in range(20):
        sequence = encoder.sequence(transcripts.recall_pieces(draw, 5), 480)
        with torch.inference_mode():
            logps = model(input_ids=torch.tensor([sequence.ids])).logits[0].log_softmax(-1)
        found += [-float(logps[t.position, next(iter(t.probabilities))]) for t in sequence.targets if t.known]
    return sum(found) / len(found)


@pytest.mark.long
def test_training_runs_from_nothing_goes_on_from_there_and_learns(tmp_path: Path) -> None:
    first = train(PocketTraining(tmp_path / "first", max_steps=2, tasks_per_map=0))
    longer = train(PocketTraining(tmp_path / "longer", max_steps=120, tasks_per_map=0))
    assert surprise(longer) < surprise(first) / 2
    going_on = train(PocketTraining(tmp_path / "on", max_steps=2, tasks_per_map=0, start=longer, game_share=0, drill_share=1))
    assert surprise(going_on) < surprise(first) / 2
