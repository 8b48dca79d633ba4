"""Training texts of the pocket model: texts of attempts, with the probabilities that an expert gives to each action.

A transcript is a sequence of pieces: text that is only read, a `DecisionPiece` where something was written, a `RewardPiece`.
Joined, they are the prompts of `learngraph`:

    Task: reach the exit
    Strategy: door black mist. gate troll lamp
    Lessons:
    - fork oak left. door black mist
    Attempt 1:
    door black
    > mist
    = 0
    total 7
    Feedback: fork oak left           (where rewards are left out)
    Attempt 4 (x3): ...               (the same attempt, three times)
    Attempt 5: total 4: mist, lamp    (a digest)
    Attempt 9:
    Now: exploit                      (or explore, or explore or exploit; before the present observation only)
    gate wolf
    > lamp

and, at the end of others, `Learned:` or `Feedback:` with all that the text determines as the reply.

There are four sources. `recall_pieces`: the bare exercise of finding a key's value again, without which nothing else is learned
(one million parameters do not discover it on their own). `keep_pieces`: attempts at Keyword Keep, the toy world with hidden
rules, labelled by the exact posterior given the text so far. `window_pieces`: gold paths of TextWorldExpress games with
detours. `retry_pieces`: several attempts at one task of such a game, labelled by the best one so far. (Texts with strategies
are in strategies.py.) All texts are from training splits. Experts give labels here and nowhere else.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

from ...memory.errors import UserError
from ...memory.records import Observation, Task
from ..environments.keyword_keep import ANSWERS, KEYS, MOVES, KeywordKeep, PosteriorExpert, domain
from .chores import invent_word

__all__ = [
    "SINGLE_TOKEN_WORDS",
    "DecisionPiece",
    "GameAttempt",
    "RewardPiece",
    "TranscriptEnvironment",
    "TranscriptPiece",
    "inverse_action",
    "keep_pieces",
    "load",
    "play",
    "practise",
    "recall_pieces",
    "retry_pieces",
    "save",
    "transcript_text",
    "window_pieces",
]

EXPLORATION_SHARE = 0.05
"""Share of the uniform distribution in every label, so that no admissible action has probability 0 (methods that learn
from their own samples need a chance to see it)."""

_KEYED = ("door", "gate", "fork")

_SHARES = {k / n for n in range(2, 13) for k in (1, 2)}

REWARD_UNITS: tuple[float, ...] = tuple(sorted({n / 100 for n in range(1, 100)} | {float(n) for n in range(3, 10)} | _SHARES))
"""Rewards that are single tokens besides 0, 1 and 2: hundredths, digits, and the shares that games pay for their parts."""

NOW_MODES = ("exploit", "explore", "explore or exploit")
"""Words after `Now:`, which ask for a way to play."""

SINGLE_TOKEN_WORDS: tuple[str, ...] = (
    *("\n>", "= 0", "= 1", "= 2", "Task", "Strategy", "Lessons", "Attempt", "total"),
    *("Learned", "Feedback", "Now", "…", " explore", " exploit", " or", " nothing", " total"),
    *dict.fromkeys(f"= {unit:g}" for unit in (*REWARD_UNITS, *sorted(-share for share in _SHARES))),
    *KEYS,
    *(f" {word}" for table in (KEYS, ANSWERS, MOVES) for kind in table for word in (kind, *table[kind])),
)
"""Texts that have to be a single token: the layout's marks and every word of the toy world, as it stands in the layout."""


class TranscriptEnvironment(Protocol):
    """The part of an environment that transcripts need."""

    name: str
    horizon: int

    def task(self, seed: int, split: str = "test") -> Task: ...
    def observe(self, task: Task, actions: Sequence[str]) -> Observation: ...
    def abstract(self, observation: Observation) -> str: ...
    def gold(self, task: Task) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class DecisionPiece:
    """An action taken after `\\n>`, and how probable the expert finds each action there."""

    taken: str
    probabilities: Mapping[str, float]
    """The label, over the admissible actions; sums to 1."""
    known: bool = False
    """True if the text so far determines the answer (a keyed place of the toy world whose answer it reveals)."""
    weight: float = 1.0
    """Weight of the decision's loss, relative to other decisions."""


@dataclass(frozen=True, slots=True)
class RewardPiece:
    """The reward that followed an action."""

    reward: float


TranscriptPiece = str | DecisionPiece | RewardPiece


def transcript_text(pieces: Sequence[TranscriptPiece]) -> str:
    """The text of a transcript."""
    return "".join(piece_text(piece) for piece in pieces)


def piece_text(piece: TranscriptPiece) -> str:
    """The text of one piece. Pieces end where tokens end, so that they can be tokenised one by one."""
    match piece:
        case DecisionPiece(taken):
            return f" {taken}\n"
        case RewardPiece(reward):
            return f"= {reward:g}\n"
        case _:
            return piece


_IDLE = ("look around", "inventory", "task")


def soften(probabilities: Mapping[str, float], admissible: Sequence[str]) -> dict[str, float]:
    """The expert's probabilities mixed with the uniform distribution over the admissible actions.

    Of the latter, actions that only show what the observation has said already get a fiftieth of the others' share: an
    agent that sees no history would take them for ever.
    """
    weights = {action: 0.02 if action in _IDLE else 1.0 for action in admissible}
    whole = sum(weights.values())
    return {
        a: EXPLORATION_SHARE * weight / whole + (1 - EXPLORATION_SHARE) * probabilities.get(a, 0.0)
        for a, weight in weights.items()
    }


def recall_pieces(draw: random.Random, pairs: int, queries: int = 14) -> list[TranscriptPiece]:
    """Pieces that state answers of some places of one kind, in one of the layout's three forms, then queries about them.

    In the form of attempts, answers that failed stand among those that were paid, and for some places there are only those.
    All places are of one kind, and no answer is right twice while there are others: so picking some word of the right kind
    from the text gains little. Where it gains much (two pairs, say), a model learns that first and stays there.
    """
    kind = draw.choices(_KEYED, (5, 5, 1))[0]
    options = ANSWERS[kind]
    values = [answer for _ in range(len(KEYS[kind])) for answer in draw.sample(options, len(options))]
    answers = {f"{kind} {key}": value for key, value in zip(draw.sample(KEYS[kind], pairs), values, strict=False)}
    expert = PosteriorExpert()
    form = draw.choices(("strategy", "lessons", "attempt"), (1, 1, 2))[0]
    told = [f"{place} {answer}" for place, answer in answers.items()]
    pieces: list[TranscriptPiece] = []
    if form == "attempt":
        tried = []
        for place, answer in answers.items():
            wrong = [option for option in options if option != answer]
            known = draw.random() < 0.75
            tried += [(place, option) for option in draw.sample(wrong, draw.randint(0 if known else 1, len(wrong)) // 2)]
            tried += [(place, answer)] if known else []
        draw.shuffle(tried)
        for place, action in tried:
            reward = float(action == answers[place])
            expert.see(place, action, reward)
            pieces.append(f"{place}\n> {action}\n= {reward:g}\n")
    else:
        expert.advice.update(answers)
        listed = "".join(f"- {lesson}\n" for lesson in told)
        pieces.append(f"Strategy: {'. '.join(told)}\n" if form == "strategy" else f"Lessons:\n{listed}")
    for _ in range(queries):
        place = draw.choice(list(answers))
        probabilities = expert.probabilities(place)
        action = answers[place] if draw.random() < 0.6 else draw.choice(options)
        reward = float(action == answers[place])
        expert.see(place, action, reward)
        pieces += [f"{place}\n>", DecisionPiece(action, probabilities, known=len(probabilities) == 1), RewardPiece(reward)]
    return pieces


@dataclass
class Reader:
    """Reads a text about Keyword Keep while it is written, and keeps the facts that it determines."""

    expert: PosteriorExpert = field(default_factory=PosteriorExpert)
    tried: dict[str, dict[str, None]] = field(default_factory=dict)
    """Answers tried in the text, by place, in the order of the text."""
    facts: dict[str, str] = field(default_factory=dict)
    """Answers that are certain or told and not contradicted, by place, in the order in which the text gives them."""

    def read_advice(self, place: str, answer: str) -> str:
        """Read advice about a place; returns it as written."""
        self.expert.advice[place] = answer
        self._settle(place)
        return f"{place} {answer}"

    def read_warning(self, place: str, answer: str) -> str:
        """Read advice against an answer; returns it as written."""
        self.expert.failed_answers.setdefault(place, set()).add(answer)
        self._settle(place)
        return f"{place} not {answer}"

    def read_step(self, place: str, action: str, after: Observation, rewarded: bool) -> None:
        """Read one step. Without rewards only passing a door shows whether the answer was right."""
        if action not in ANSWERS[place.partition(" ")[0]]:
            return
        self.tried.setdefault(place, {})[action] = None
        if rewarded:
            assert after.reward is not None
            self.expert.see(place, action, after.reward)
        elif place.startswith("door") and not after.over:
            self.expert.see(place, action, float(after.text != place))
        self._settle(place)

    def policy(self, place: str, mode: str = "") -> dict[str, float]:
        """The expert's policy; asked to explore, uniform over the answers not yet tried there, while there are any."""
        if mode == "explore":
            untried = [a for a in ANSWERS[place.partition(" ")[0]] if a not in self.tried.get(place, ())]
            if untried:
                return {answer: 1 / len(untried) for answer in untried}
        return self.expert.probabilities(place)

    def facts_text(self) -> str:
        """The facts as a model is to write them."""
        return ". ".join(f"{place} {answer}" for place, answer in self.facts.items()) or "nothing"

    def strategy_text(self, place: str) -> str:
        """The facts as a model is to write them where it stands at a place: this place's first, or else what failed here."""
        facts = [f"{there} {answer}" for there, answer in self.facts.items()]
        here = [fact for fact in facts if fact.startswith(f"{place} ")]
        if not here:
            failed = self.expert.failed_answers.get(place, set())
            here = [f"{place} not {answer}" for answer in self.tried.get(place, ()) if answer in failed]
        return ". ".join([*here, *(fact for fact in facts if fact not in here)]) or "nothing"

    def _settle(self, place: str) -> None:
        if place.partition(" ")[0] not in _KEYED:
            return
        certain = list(self.expert.probabilities(place))
        if certain != [self.facts.get(place)]:
            self.facts.pop(place, None)
            if len(certain) == 1:
                self.facts[place] = certain[0]


def keep_pieces(draw: random.Random, world: KeywordKeep, split: str = "train", longest: int = 960) -> Iterator[TranscriptPiece]:
    """Attempts at one domain of the toy world in about `longest` tokens, or without end: take as much as fits.

    With advice or without (true or, sometimes, wrong), by a player that follows the expert most of the time, some of the
    time or never; with rewards, with zeros in their place, or without. A part of them is a single attempt, or the rest of
    one, as agents show it that have no earlier attempts. Others end with an attempt under `Now:`, or with what was learned.
    """
    yield from _KeepTranscript.sample(draw, world, split, longest).pieces()


@dataclass
class _KeepTranscript:
    """The form of a transcript of `keep_pieces`, drawn once, and its player."""

    draw: random.Random
    world: KeywordKeep
    task: Task
    longest: int
    """Approximate number of tokens."""
    ends: str
    """`now`, `learned` or `feedback`; empty: without end."""
    rewards: str
    """`shown`, `zeroed` or `none`."""
    unit: float
    """Factor of the rewards."""
    careless: float
    """Probability of a uniformly drawn action."""
    single: bool
    """True if there is only one attempt."""
    unseen: int
    """Steps of a single attempt that are left out."""
    reordered: bool
    """True if each attempt has the places in another order."""
    numbered: bool
    """True if attempts begin at any number and numbers are skipped."""
    digests: bool
    """True if half of the earlier attempts are digests in one line."""
    counted: bool
    """True if headings may count repeats, as `(x3)`."""
    feedback: bool
    """True if remarks stand between attempts."""
    number: int
    """Number of the next attempt."""
    reader: Reader = field(default_factory=Reader)

    @classmethod
    def sample(cls, draw: random.Random, world: KeywordKeep, split: str, longest: int) -> _KeepTranscript:
        """Draw a task and a form. The order of the draws decides the texts of a seed."""
        task = world.task(draw.randrange(10**9), split)
        ends = draw.choices(("", "now", "learned", "feedback"), (45, 30, 15, 10))[0]
        rewards = "none" if ends == "feedback" else draw.choices(("shown", "zeroed", "none"), (84, 9, 7))[0]
        unit = draw.choice(REWARD_UNITS) if draw.random() < 0.12 else 1.0
        careless = draw.choice((0.0, 0.0, 0.1, 0.15, 0.3, 0.5, 1.0))
        single = not ends and draw.random() < 0.33
        unseen = draw.randrange(1, 8) if single and draw.random() < 0.3 else 0
        reordered = draw.random() < 0.75
        numbered = draw.random() < 0.35
        return cls(
            draw=draw,
            world=world,
            task=task,
            longest=longest,
            ends=ends,
            rewards=rewards,
            unit=unit,
            careless=careless,
            single=single,
            unseen=unseen,
            reordered=reordered,
            numbered=numbered,
            digests=draw.random() < 0.2,
            counted=draw.random() < 0.12,
            feedback=rewards == "none" and (ends == "feedback" or draw.random() < 0.6),
            number=draw.randint(1, 60) if numbered else 1,
        )

    def pieces(self) -> Iterator[TranscriptPiece]:
        """The whole transcript."""
        opening = [f"Task: {self.task.instruction}\n", *_advice(self.draw, self.task, self.reader, self.longest)]
        yield from opening
        if self.single:
            yield from self.attempt(0, skipped=self.unseen)
            return
        used, count = sum(map(_size, opening)), 0
        while not self.ends or (used + 130 < self.longest and (count == 0 or self.draw.random() < 0.85)):
            if self.ends == "now" and count == 0 and self.draw.random() < 0.15:
                break
            lines: list[str] = []
            for piece in self.earlier_attempt(count):
                lines.append(piece if isinstance(piece, str) else piece_text(piece))
                yield piece
            used += sum(map(_size, lines))
            self.number += self.draw.randint(1, 5) if self.numbered and self.draw.random() < 0.5 else 1
            count += 1
        yield from self.ending(count)

    def earlier_attempt(self, count: int) -> Iterator[TranscriptPiece]:
        """An attempt with its heading, or a digest of it."""
        draw = self.draw
        if self.digests and draw.random() < 0.5:
            unit = self.unit if self.rewards == "shown" else 0.0
            yield _digest(draw, self.world, self.world.variant(self.task, count), self.number, unit)
            return
        often = f" (x{draw.randint(2, 9)})" if self.counted and draw.random() < 0.4 else ""
        if self.feedback and count and draw.random() < 0.9:
            yield _remark(draw, self.reader)
        yield f"Attempt {self.number}{often}:\n"
        yield from self.attempt(count)

    def ending(self, count: int) -> Iterator[TranscriptPiece]:
        """An attempt under `Now:`, or what was learned."""
        if self.ends != "now":
            facts = self.reader.facts_text()
            yield f"{'Learned' if self.ends == 'learned' else 'Feedback'}:\n>"
            yield DecisionPiece(facts, {facts: 1.0})
            return
        if self.feedback and count:
            yield _remark(self.draw, self.reader)
        mode = self.draw.choice(NOW_MODES)
        yield f"Attempt {self.number}:\n"
        # Half of the time off the layout, with the line at every step: ten times as many decisions for the same tokens.
        yield from self.attempt(count, mode, last=self.draw.choice((None, self.draw.randint(0, 8))))

    def attempt(self, n: int, asked: str = "", skipped: int = 0, last: int | None = None) -> Iterator[TranscriptPiece]:
        """One attempt, all under `Now: asked`; or only its decision after `last` steps, which ends it."""
        now = self.world.variant(self.task, n) if self.reordered else self.task
        actions: list[str] = []
        shown = self.world.observe(now, ())
        total = 0.0
        while not shown.over:
            place = shown.text
            mode = asked if last in (None, len(actions)) else ""
            probabilities = self.reader.policy(place, mode)
            if self.draw.random() < self.careless:
                action = self.draw.choice(shown.actions)
            else:
                action = self.draw.choices(list(probabilities), list(probabilities.values()))[0]
            label = soften(probabilities, shown.actions)
            known = len(probabilities) == 1 and mode != "explore" and place.partition(" ")[0] in _KEYED
            misled = self.reader.expert.advice.get(place) in self.reader.expert.failed_answers.get(place, ())
            actions.append(action)
            shown = self.world.observe(now, actions)
            if len(actions) <= skipped:
                continue
            assert shown.reward is not None
            total += shown.reward * self.unit
            self.reader.read_step(place, action, shown, self.rewards == "shown")
            if mode:
                yield f"Now: {mode}\n"
            yield f"{place}\n>"
            if mode and last is not None:
                yield DecisionPiece(action, label, known, 4.0)
                return
            yield DecisionPiece(action, label, known, 2.0 if mode or misled else 1.0)
            if self.rewards != "none":
                yield RewardPiece(shown.reward * self.unit if self.rewards == "shown" else 0.0)
        if not self.single and self.rewards != "none":
            yield f"total {round(total, 9) if self.rewards == 'shown' else 0:g}\n"


def _size(text: str) -> int:
    """The approximate number of tokens of a text about the toy world."""
    return len(_TOKENS.findall(text))


_TOKENS = re.compile(r"\n>|= -?[0-9](?:\.[0-9]+)?| ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]+|\s")


def _digest(draw: random.Random, world: KeywordKeep, task: Task, number: int, unit: float) -> str:
    """A random player's attempt in one line, without details of single places."""
    actions: list[str] = []
    shown, total = world.observe(task, ()), 0.0
    while not shown.over:
        answers = ANSWERS[shown.text.partition(" ")[0]]
        actions.append(draw.choice(answers if draw.random() < 0.8 else shown.actions))
        shown = world.observe(task, actions)
        total += shown.reward or 0.0
    joined = ", ".join(actions)
    return f"Attempt {number}: total {total * unit:g}: {joined if len(joined) <= 60 else joined[:60] + '…'}\n"


def _remark(draw: random.Random, reader: Reader) -> str:
    """Feedback on the attempts so far: most of what they show, now and then a mistake."""
    told = []
    for place, answer in list(reader.facts.items()):
        if draw.random() < 0.05:
            answer = draw.choice(ANSWERS[place.partition(" ")[0]])
        if draw.random() < 0.95:
            told.append(reader.read_advice(place, answer))
    return f"Feedback: {'. '.join(told) or 'nothing'}\n"


def _others(draw: random.Random, place: str, right: str) -> list[str]:
    """One or more wrong answers of a place."""
    wrong = [answer for answer in ANSWERS[place.partition(" ")[0]] if answer != right]
    return draw.sample(wrong, draw.randint(1, len(wrong)))


def _advice(draw: random.Random, task: Task, reader: Reader, longest: int) -> Iterator[str]:
    """Nothing, a strategy, lessons among lessons about places that are not here, both, or lessons of several facts each."""
    rules = domain(task.seed)
    here = [place for place in rules.places if place.partition(" ")[0] in _KEYED]
    elsewhere = [place for place in rules.rules if place.partition(" ")[0] in _KEYED and place not in here]

    def tell(place: str, wrong: float) -> str:
        answer = rules.rules[place]
        if draw.random() < wrong:
            answer = draw.choice([other for other in ANSWERS[place.partition(" ")[0]] if other != answer])
        return reader.read_advice(place, answer)

    form = draw.choices(("none", "strategy", "lessons", "both", "lines"), (38, 22, 20, 5, 15))[0]
    if form in ("strategy", "both"):
        wrong = draw.choice((0.0, 0.1, 0.5, 1.0))
        told = [tell(place, wrong) for place in draw.sample(here, draw.randint(1, len(here)))]
        if draw.random() < 0.35:  # what failed, too, or nothing else
            open_places = [place for place in here if place not in reader.expert.advice]
            failed = [
                reader.read_warning(place, answer)
                for place in draw.sample(open_places, min(len(open_places), draw.choice((1, 1, 2, 3))))
                for answer in _others(draw, place, rules.rules[place])
            ]
            told = [*told, *failed] if draw.random() < 0.5 else [*failed, *told]
        yield f"Strategy: {'. '.join(told)}{draw.choice(('', '.'))}\n"
    if form in ("lessons", "both"):
        told = [p for p in draw.sample(here, draw.randint(0, len(here))) if p not in reader.expert.advice]
        told += draw.sample(elsewhere, draw.randint(0, 8))
        draw.shuffle(told)
        yield "Lessons:\n"
        yield from (f"- {tell(place, 0.1 if place in here else 0.0)}\n" for place in told)
    if form == "lines":  # what was learned after each of several attempts: more every time
        wrong = draw.choice((0.0, 0.0, 0.1, 0.4))
        told, rest = [], draw.sample(here, len(here))
        whole = draw.random() < 0.7
        yield "Lessons:\n"
        for _ in range(draw.randint(1, 2 if longest < 300 else 5)):
            new = [rest.pop() for _ in range(min(len(rest), draw.randint(0, 5)))]
            told = [*told, *new] if whole else new
            yield f"- {'. '.join(tell(place, wrong) for place in told) or 'nothing'}\n"


@dataclass(frozen=True, slots=True)
class GameAttempt:
    """One attempt at a game along its gold path, with detours."""

    task: Task
    steps: tuple[tuple[str, str, DecisionPiece, float], ...]
    """(observation, its abstract state, decision, reward) by step."""


_BACK = {"move north": "move south", "move south": "move north", "move east": "move west", "move west": "move east"}


def play(world: TranscriptEnvironment, task: Task, draw: random.Random, detours: int = 2) -> GameAttempt | None:
    """Play the gold path without its idle looks, with up to `detours` random actions that still lead to the full score.

    A step away is walked back. At a detour the label is what gold does there, after it the way back or gold's next action:
    so the labels know the map, which the text does not tell, and the model can learn only what is usual in such games.
    Returns None where the game's gold path does not work (on some maps it takes steps that the game refuses).
    """
    try:
        plan = [(action, action) for action in world.gold(task)]  # (taken, label)
    except UserError:
        return None
    seen = _observe_plan(world, task, plan)
    best = sum(shown.reward or 0.0 for shown in seen)

    def keep_if_as_good(other: list[tuple[str, str]]) -> None:
        nonlocal plan, seen
        shown = _observe_plan(world, task, other)
        if sum(observation.reward or 0.0 for observation in shown) >= best - 1e-6:
            plan, seen = other, shown

    if best <= 0:
        return None
    for step in reversed(range(len(plan))):
        if plan[step][0] in _IDLE:
            keep_if_as_good(plan[:step] + plan[step + 1 :])
    for _ in range(detours):
        at = draw.randrange(len(plan))
        aside = draw.choice(seen[at].actions)
        if aside != plan[at][0]:
            back = [(_BACK[aside], _BACK[aside])] if aside in _BACK else []
            keep_if_as_good([*plan[:at], (aside, plan[at][1]), *back, *plan[at:]])
    steps = [
        (shown.text, world.abstract(shown), DecisionPiece(taken, soften({label: 1.0}, shown.actions)), after.reward or 0.0)
        for (taken, label), shown, after in zip(plan, seen, seen[1:], strict=False)
    ]
    return GameAttempt(task, tuple(steps))


def practise(world: TranscriptEnvironment, task: Task, draw: random.Random, horizon: int = 30) -> GameAttempt | None:
    """One attempt by a player that follows the gold path with errors, or up to some step; None without a gold path.

    A step off the path is walked back, a thing put in the wrong place is taken again. Each label here is 1 for gold's next action
    (in twc, where things can be taken and put away in any order, for each of gold's next actions) and 0 for the other admissible
    actions; `retry_pieces` makes the final labels.
    """
    try:
        plan = [action for action in world.gold(task) if action not in _IDLE]
        shown = world.observe(task, ())
    except UserError:
        return None
    if draw.random() < 0.5:
        plan = plan[: draw.randint(0, len(plan))]
    noise = draw.choice((0.0, 0.1, 0.2, 0.35, 0.5))
    actions: list[str] = []
    steps: list[tuple[str, str, DecisionPiece, float]] = []
    while not shown.over and len(actions) < horizon:
        at = next((n for n, action in enumerate(plan) if action in shown.actions), None)
        gold = "" if at is None else plan[at]
        action = (
            gold
            if gold and draw.random() >= noise
            else draw.choice([a for a in shown.actions if a not in _IDLE] or shown.actions)
        )
        actions.append(action)
        goals = list(plan)
        before, state = shown, world.abstract(shown)
        shown = world.observe(task, actions)
        if action == gold:
            plan = plan[(at or 0) + 1 :]
        elif plan and (back := inverse_action(action)) in shown.actions and state != world.abstract(shown):
            plan = [back, *plan]
        as_good = {gold}
        if task.id.startswith(("twc", "chores")) and gold.startswith(("take ", "put ")):
            alike = "take " if gold.startswith("take ") else "put "
            as_good |= set(takewhile(partial(_begins, alike), goals[at:]))
        decision = DecisionPiece(action, {a: float(a in as_good) for a in before.actions})
        steps.append((before.text, state, decision, shown.reward or 0.0))
    return GameAttempt(task, tuple(steps))


def _begins(start: str, action: str) -> bool:
    return action.startswith(start)


def inverse_action(action: str) -> str:
    """The action that undoes an action; None if no single one does."""
    put = re.fullmatch(r"put (.+) in .+", action)
    return f"take {put[1]}" if put else _BACK.get(action, "")


def _observe_plan(world: TranscriptEnvironment, task: Task, plan: Sequence[tuple[str, str]]) -> list[Observation]:
    """The observations of a plan from the start on; None if the game refuses a step of it."""
    taken = [action for action, _ in plan]
    try:
        return [world.observe(task, taken[:step]) for step in range(len(taken) + 1)]
    except UserError:
        return []


@dataclass(frozen=True, slots=True)
class Games:
    """Attempts at TextWorldExpress games."""

    paths: tuple[tuple[GameAttempt, ...], ...]
    """The attempts by map."""
    tries: tuple[tuple[tuple[GameAttempt, ...], ...], ...]
    """Attempts that `practise` made, by map and task."""


def save(games: Games, path: Path) -> None:
    """Write attempts as JSON."""
    path.write_text(json.dumps(asdict(games)), encoding="utf-8")


def load(path: Path) -> Games:
    """Read what `save` wrote."""

    def parse_attempt(made: Any) -> GameAttempt:
        return GameAttempt(Task(**made["task"]), tuple((o, s, DecisionPiece(**d), r) for o, s, d, r in made["steps"]))

    read = json.loads(path.read_text(encoding="utf-8"))
    return Games(
        tuple(tuple(parse_attempt(made) for made in group) for group in read["paths"]),
        tuple(tuple(tuple(parse_attempt(made) for made in task) for task in group) for group in read["tries"]),
    )


def window_pieces(draw: random.Random, attempts: Sequence[GameAttempt]) -> Iterator[TranscriptPiece]:
    """Prompts along one of these attempts, as agents make them.

    Half of the time one decision after up to three earlier steps, which prompts show by their abstract states, and now and
    then a whole earlier attempt; otherwise a run of steps from a random one on. Half of the time the things in it have
    other names: so the names are learned to be read from the text, as those of unseen games must be.
    """
    played = draw.choice(attempts)
    if draw.random() < 0.5:
        (played,) = rename([played], draw)
    yield f"Task: {played.task.instruction}\n"
    if draw.random() < 0.5:
        yield from _steps(played.steps[draw.choice((0, draw.randrange(len(played.steps)))) :])
        return
    at = draw.randrange(len(played.steps))
    recent = played.steps[max(0, at - draw.choice((0, 0, 1, 2, 3))) : at]
    if draw.random() < 0.15:
        yield "Attempt 1:\n"
    yield "".join(_step(state if draw.random() < 0.5 else clip(state), d.taken, reward) for _, state, d, reward in recent)
    yield from _steps(played.steps[at : at + 1])


_PLAIN = frozenset(
    {
        "a",
        "an",
        "and",
        "around",
        "at",
        "box",
        "coin",
        "cookbook",
        "door",
        "down",
        "east",
        "eat",
        "from",
        "in",
        "instructions",
        "book",
        "inventory",
        "knife",
        "look",
        "map",
        "math",
        "meal",
        "move",
        "north",
        "of",
        "off",
        "on",
        "open",
        "or",
        "out",
        "problem",
        "read",
        "room",
        "south",
        "take",
        "task",
        "the",
        "to",
        "up",
        "west",
        "with",
    }
)
"""Words of actions that keep their meaning in all games."""


def rename(attempts: Sequence[GameAttempt], draw: random.Random, words: Sequence[str] = ()) -> list[GameAttempt]:
    """The same attempts with other words for most of the things that their actions name, one word for each thing.

    They are invented, or mostly drawn from `words` if there are any: a word that is a single token is learned to be copied only
    where it stands for things of all kinds.
    """
    actions = {action for played in attempts for _, _, decision, _ in played.steps for action in decision.probabilities}
    verbs = {action.partition(" ")[0] for action in actions}
    things = sorted({word for action in actions for word in re.findall(r"[A-Za-z]{3,}", action)} - verbs - _PLAIN)
    others = draw.sample(list(words), min(len(words), len(things)))
    names = {
        thing: others.pop() if others and draw.random() < 0.75 else invent_word(draw) for thing in things if draw.random() < 0.7
    }
    if not names:
        return list(attempts)
    # States are in lower case, and so are invented words.
    names |= {thing.lower(): name for thing, name in names.items()}
    pattern = re.compile(rf"\b({'|'.join(names)})\b")

    def put(text: str) -> str:
        return pattern.sub(lambda found: names[found[1]], text)

    return [
        GameAttempt(
            replace(played.task, instruction=put(played.task.instruction)),
            tuple(
                (
                    put(seen),
                    put(state),
                    replace(d, taken=put(d.taken), probabilities={put(a): p for a, p in d.probabilities.items()}),
                    reward,
                )
                for seen, state, d, reward in played.steps
            ),
        )
        for played in attempts
    ]


def _steps(steps: Sequence[tuple[str, str, DecisionPiece, float]]) -> Iterator[TranscriptPiece]:
    for observation, _, decision, reward in steps:
        yield f"{observation.strip()}\n>"
        yield decision
        yield RewardPiece(reward)


def _step(state: str, action: str, reward: float) -> str:
    return f"{state}\n> {action}\n= {reward:g}\n"


def clip(state: str, longest: int = 40) -> str:
    """A state as prompts show it of earlier steps: the first line, cut."""
    return state.partition("\n")[0][:longest]


def retry_pieces(draw: random.Random, attempts: Sequence[GameAttempt], longest: int = 1000) -> Iterator[TranscriptPiece]:
    """Several attempts at one task, and one decision of the attempt that runs, as in-context RL shows them.

    The loss is at that decision and, with less weight and with the clipped state for an observation, at those of the earlier
    attempts from the second on. The label: what the best attempt so far did, up to its highest score, else whatever was
    rewarded and can be done, else a prior (gold's action, with other actions that have not failed there). It is what the
    text tells where rewards are shown; where they are zeroed or left out, it is the prior.
    """
    order = draw.sample(list(attempts), len(attempts))
    if draw.random() < 0.5:
        order = rename(order, draw)
    horizon = draw.randint(8, 30)
    rewards = draw.choices(("shown", "zeroed", "none"), (84, 9, 7))[0]
    mode = draw.choice(NOW_MODES) if draw.random() < 0.45 else ""
    number = draw.randint(1, 30) if draw.random() < 0.3 else 1
    # The running attempt: mostly one that got somewhere, since an agent that reads its attempts will.
    order.sort(key=lambda played: sum(reward for *_, reward in played.steps) < draw.random())
    running, *earlier = order
    draw.shuffle(earlier)
    at = draw.randrange(min(len(running.steps), horizon)) if running.steps else 0
    head = f"Task: {running.task.instruction}\n"
    room = longest - 1.2 * _size(head) - 18 * at - (1.2 * _size(running.steps[at][0]) if running.steps else 0) - 30
    yield head
    memory = _Memory(rewards == "shown")
    for played in earlier[: draw.choice((0, 1, 2, 3, 6, 6, 6))]:
        steps = played.steps[:horizon]
        room -= sum(1.3 * _size(clip(state) + d.taken) + 6 for _, state, d, _ in steps) + 8
        if room < 0:
            break
        known = memory.any
        yield f"Attempt {number}:\n"
        number += draw.randint(1, 3) if draw.random() < 0.1 else 1
        yield from memory.attempt(steps, rewards, weight=0.5 if known else 0.0)
        if rewards != "none":
            yield f"total {round(sum(reward for *_, reward in steps), 9) if rewards == 'shown' else 0:g}\n"
    if not running.steps:
        return
    if memory.any or draw.random() < 0.5:
        yield f"Attempt {number}:\n"
    if draw.random() < 0.4:  # off the layout: every step in full, for more decisions in a text
        at = max(0, at - draw.randint(0, 5))
        yield from memory.attempt(running.steps[:at], rewards, weight=0.5 if memory.any else 0.0, end=False)
        yield from memory.attempt(running.steps[at:horizon], rewards, weight=3.0, end=False, mode=mode, full=True)
        return
    yield from memory.attempt(running.steps[:at], rewards, weight=0.5 if memory.any else 0.0, end=False)
    seen, state, decision, _ = running.steps[at]
    yield f"{f'Now: {mode}' if mode else ''}\n{seen.strip()}\n>".lstrip("\n")
    yield DecisionPiece(decision.taken, memory.label(state, decision, mode), weight=4.0)


@dataclass
class _Memory:
    """Knowledge of one task of a game that the attempts of a text give."""

    rewarded: bool
    """True if the text shows rewards."""
    any: bool = False
    best: list[tuple[str, str, float]] = field(default_factory=list)
    """(state, action, reward) of the best attempt so far, up to where its score was highest."""
    paid: set[str] = field(default_factory=set)
    """Actions that were rewarded."""
    tried: dict[str, set[str]] = field(default_factory=dict)
    """Actions that were taken and not rewarded, by state."""
    now: list[tuple[str, str, float]] = field(default_factory=list)
    """The attempt that is running."""

    def attempt(
        self,
        steps: Sequence[tuple[str, str, DecisionPiece, float]],
        rewards: str,
        weight: float,
        end: bool = True,
        mode: str = "",
        full: bool = False,
    ) -> Iterator[TranscriptPiece]:
        """The steps as a prompt shows them, or with full observations; then they are remembered, if the attempt ended."""
        for seen, state, decision, reward in steps:
            yield f"{f'Now: {mode}' if mode else ''}\n{seen.strip() if full else clip(state)}\n>".lstrip("\n")
            if weight:
                yield DecisionPiece(decision.taken, self.label(state, decision, mode), weight=weight)
            else:
                yield f" {decision.taken}\n"
            if rewards == "shown":
                yield f"= {reward:g}\n"
            elif rewards == "zeroed":
                yield "= 0\n"
            self.now.append((state, decision.taken, reward))
        if not end:
            return
        self.any = True
        if self.rewarded:
            paths = [self.best, *(self.now[: n + 1] for n in range(len(self.now)))]
            # The same score with fewer steps is better, too.
            self.best = max(paths, key=lambda path: sum(r for *_, r in path) - 1e-3 * len(path))
            self.paid |= {action for _, action, reward in self.now if reward > 0}
        for state, action, reward in self.now:
            if reward <= 0 or not self.rewarded:
                self.tried.setdefault(state, set()).add(action)
        self.now = []

    def label(self, state: str, decision: DecisionPiece, mode: str = "") -> dict[str, float]:
        """Probabilities of the admissible actions at a state of the running attempt."""
        options = list(decision.probabilities)
        gold = [action for action in options if decision.probabilities[action] > 0]
        done = {action for _, action, _ in self.now}
        tried = self.tried.get(state, set())
        if mode == "explore":
            new = [a for a in options if a not in tried and a not in self.paid and a not in done and a not in _IDLE]
            if new:
                gold = [action for action in gold if action in new]
                return soften(_mix(gold, new, 0.4), options)
        prior = _mix(
            gold,
            [a for a in options if a not in _IDLE and not (self.rewarded and a in tried)] or options,
            0.75 if self.any else 0.9,
        )
        after = [action for there, action, _ in self.best if there == state]
        follow = (
            after[-1:]
            or [
                action
                for _, action, reward in self.best
                if reward >= 0 and action in options and action not in done and not action.startswith(("move ", "close "))
            ][:1]
        )
        follow = follow or [action for action in options if action in self.paid and action not in done]
        follow = [action for action in follow if action in options]
        if not follow:
            return soften(prior, options)
        share = {action: 1 / len(follow) for action in follow}
        return soften({a: 0.92 * share.get(a, 0.0) + 0.08 * prior.get(a, 0.0) for a in options}, options)


def _mix(chosen: Sequence[str], others: Sequence[str], share: float) -> dict[str, float]:
    """`share` of the probability on the chosen actions, if there are any; the rest uniform on the others."""
    share = share if chosen else 0.0
    out = {action: share / len(chosen) for action in chosen}
    for action in others:
        out[action] = out.get(action, 0.0) + (1 - share) / len(others)
    return out
