"""What the pocket model is trained on: texts of attempts, with the probabilities an expert gives to each action.

A transcript is a sequence of pieces: text that is only read, a `Decision` where an action was taken, a `Paid` reward.
Joined, they are the prompts of `learngraph`:

    Task: reach the exit
    Strategy: door black mist. gate troll lamp
    Lessons:
    - fork oak left
    Attempt 1:
    door black
    > mist
    = 0
    total 7

Three sources. `recall`: the bare exercise of finding a key's value again, without which nothing else is learned
(one million parameters do not discover it on their own). `keep`: attempts at Keyword Keep, the toy world with hidden rules,
labelled by the exact posterior over what the text so far reveals. `Episodes`: gold paths of TextWorldExpress games with
detours. Training splits only. The experts are asked for labels here and nowhere else.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from ...memory.records import Observation, Task, UserError
from ..environments.keyword_keep import ANSWERS, KEYS, MOVES, KeywordKeep, PosteriorExpert, domain

__all__ = [
    "WORDS",
    "Decision",
    "Paid",
    "Piece",
    "Played",
    "World",
    "keep",
    "load",
    "play",
    "recall",
    "save",
    "text",
    "window",
]

EXPLORE = 0.05
"""Share of the uniform distribution in every label, so that no admissible action has probability 0 (methods that learn
from their own samples need a chance to see it)."""

_KEYED = ("door", "gate", "fork")

WORDS: tuple[str, ...] = (
    *("\n>", "= 0", "= 1", "= 2", "Task", "Strategy", "Lessons", "Attempt", "total"),
    *KEYS,
    *(f" {word}" for table in (KEYS, ANSWERS, MOVES) for kind in table for word in (kind, *table[kind])),
)
"""What has to be a single token: the layout's marks and every word of the toy world, as it stands in the layout."""


class World(Protocol):
    """What transcripts need of an environment."""

    name: str
    horizon: int

    def task(self, seed: int, split: str = "test") -> Task: ...
    def observe(self, task: Task, actions: Sequence[str]) -> Observation: ...
    def abstract(self, observation: Observation) -> str: ...
    def gold(self, task: Task) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Decision:
    """An action taken after `\\n>`, and how probable the expert finds each action there."""

    taken: str
    probabilities: Mapping[str, float]
    """The label, over the admissible actions; sums to 1."""
    known: bool = False
    """Whether the text so far determines the answer (a keyed place of the toy world whose answer it reveals)."""


@dataclass(frozen=True, slots=True)
class Paid:
    """The reward that followed an action."""

    reward: float


Piece = str | Decision | Paid


def text(pieces: Sequence[Piece]) -> str:
    """The transcript as the model reads it."""
    return "".join(write(piece) for piece in pieces)


def write(piece: Piece) -> str:
    """One piece of text. Pieces end where tokens end: they can be tokenised one by one."""
    match piece:
        case Decision(taken):
            return f" {taken}\n"
        case Paid(reward):
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
    return {a: EXPLORE * weight / whole + (1 - EXPLORE) * probabilities.get(a, 0.0) for a, weight in weights.items()}


def recall(draw: random.Random, pairs: int, queries: int = 14) -> list[Piece]:
    """What is known of some places of one kind, in one of the layout's three forms, then queries about them.

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
    pieces: list[Piece] = []
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
        expert.told.update(answers)
        listed = "".join(f"- {lesson}\n" for lesson in told)
        pieces.append(f"Strategy: {'. '.join(told)}\n" if form == "strategy" else f"Lessons:\n{listed}")
    for _ in range(queries):
        place = draw.choice(list(answers))
        probabilities = expert.probabilities(place)
        action = answers[place] if draw.random() < 0.6 else draw.choice(options)
        reward = float(action == answers[place])
        expert.see(place, action, reward)
        pieces += [f"{place}\n>", Decision(action, probabilities, known=len(probabilities) == 1), Paid(reward)]
    return pieces


def keep(draw: random.Random, world: KeywordKeep, split: str = "train") -> Iterator[Piece]:
    """Attempts at one domain of the toy world, without end: take as much as fits.

    With advice or without (true or, sometimes, wrong), by a player that follows the expert most of the time, some of the
    time or never. A part of them is a single attempt, or the rest of one, as agents show it that have no earlier attempts.
    """
    task = world.task(draw.randrange(10**9), split)
    expert = PosteriorExpert()
    yield f"Task: {task.instruction}\n"
    yield from _advice(draw, task, expert)
    careless = draw.choice((0.0, 0.0, 0.1, 0.15, 0.3, 0.5, 1.0))
    single = draw.random() < 0.3
    unseen = draw.randrange(1, 8) if single and draw.random() < 0.3 else 0
    reordered = draw.random() < 0.75
    attempt = 0
    while True:
        if not single:
            yield f"Attempt {attempt + 1}:\n"
        now = world.variant(task, attempt) if reordered else task
        actions: list[str] = []
        shown = world.observe(now, ())
        total = 0.0
        while not shown.over:
            place = shown.text
            probabilities = expert.probabilities(place)
            if draw.random() < careless:
                action = draw.choice(shown.actions)
            else:
                action = draw.choices(list(probabilities), list(probabilities.values()))[0]
            label = soften(probabilities, shown.actions)
            actions.append(action)
            shown = world.observe(now, actions)
            total += shown.reward
            if len(actions) <= unseen:
                continue
            expert.see(place, action, shown.reward)
            yield f"{place}\n>"
            yield Decision(action, label, known=len(probabilities) == 1 and place.partition(" ")[0] in _KEYED)
            yield Paid(shown.reward)
        if single:
            return
        yield f"total {total:g}\n"
        attempt += 1


def _advice(draw: random.Random, task: Task, expert: PosteriorExpert) -> Iterator[str]:
    """Nothing, a strategy, lessons among lessons about places that are not here, or both."""
    rules = domain(task.seed)
    here = [place for place in rules.places if place.partition(" ")[0] in _KEYED]
    elsewhere = [place for place in rules.rules if place.partition(" ")[0] in _KEYED and place not in here]

    def tell(place: str, wrong: float) -> str:
        answer = rules.rules[place]
        if draw.random() < wrong:
            answer = draw.choice([other for other in ANSWERS[place.partition(" ")[0]] if other != answer])
        expert.told[place] = answer
        return f"{place} {answer}"

    form = draw.choices(("none", "strategy", "lessons", "both"), (40, 27, 27, 6))[0]
    if form in ("strategy", "both"):
        wrong = draw.choice((0.0, 0.1, 0.3, 1.0))
        told = [tell(place, wrong) for place in draw.sample(here, draw.randint(1, len(here)))]
        yield f"Strategy: {'. '.join(told)}{draw.choice(('', '.'))}\n"
    if form in ("lessons", "both"):
        told = [tell(place, 0.1) for place in draw.sample(here, draw.randint(0, len(here))) if place not in expert.told]
        told += [rules.lesson(place) for place in draw.sample(elsewhere, draw.randint(0, 8))]
        draw.shuffle(told)
        yield "Lessons:\n" + "".join(f"- {lesson}\n" for lesson in told)


@dataclass(frozen=True, slots=True)
class Played:
    """One attempt at a game along its gold path, with detours."""

    task: Task
    steps: tuple[tuple[str, str, Decision, float], ...]
    """(observation, its abstract state, decision, reward) by step."""


_BACK = {"move north": "move south", "move south": "move north", "move east": "move west", "move west": "move east"}


def play(world: World, task: Task, draw: random.Random, detours: int = 2) -> Played | None:
    """Play the gold path without its idle looks, with up to `detours` random actions that still lead to the full score.

    A step away is walked back. At a detour the label is what gold does there, after it the way back or gold's next action:
    so the labels know the map, which the text does not tell, and the model can learn only what is usual in such games.
    Returns None where the game's gold path does not work (on some maps it takes steps that the game refuses).
    """
    try:
        plan = [(action, action) for action in world.gold(task)]  # (taken, label)
    except UserError:
        return None
    seen = _seen(world, task, plan)
    best = sum(shown.reward for shown in seen)

    def keep_if_as_good(other: list[tuple[str, str]]) -> None:
        nonlocal plan, seen
        shown = _seen(world, task, other)
        if sum(observation.reward for observation in shown) >= best - 1e-6:
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
        (shown.text, world.abstract(shown), Decision(taken, soften({label: 1.0}, shown.actions)), after.reward)
        for (taken, label), shown, after in zip(plan, seen, seen[1:], strict=False)
    ]
    return Played(task, tuple(steps))


def _seen(world: World, task: Task, plan: Sequence[tuple[str, str]]) -> list[Observation]:
    """What a plan shows at each step, from the start on; nothing if the game refuses a step of it."""
    taken = [action for action, _ in plan]
    try:
        return [world.observe(task, taken[:step]) for step in range(len(taken) + 1)]
    except UserError:
        return []


def save(attempts: Sequence[Sequence[Played]], path: Path) -> None:
    """Write attempts as JSON."""
    path.write_text(json.dumps([[asdict(played) for played in group] for group in attempts]), encoding="utf-8")


def load(path: Path) -> list[list[Played]]:
    """Read what `save` wrote."""
    return [
        [Played(Task(**played["task"]), tuple((o, s, Decision(**d), r) for o, s, d, r in played["steps"])) for played in group]
        for group in json.loads(path.read_text(encoding="utf-8"))
    ]


def window(draw: random.Random, attempts: Sequence[Played]) -> Iterator[Piece]:
    """Prompts along one of these attempts, as agents make them.

    Half of the time one decision after up to three earlier steps, which prompts show by their abstract states, and now and
    then a whole earlier attempt; otherwise a run of steps from a random one on. Half of the time the things in it have
    other names: so the names are learned to be read from the text, as those of unseen games must be.
    """
    played = draw.choice(attempts)
    if draw.random() < 0.5:
        played = rename(played, draw)
    yield f"Task: {played.task.instruction}\n"
    if draw.random() < 0.5:
        yield from _steps(played.steps[draw.choice((0, draw.randrange(len(played.steps)))) :])
        return
    at = draw.randrange(len(played.steps))
    recent = played.steps[max(0, at - draw.choice((0, 0, 1, 2, 3))) : at]
    if len(played.steps) <= 8 and draw.random() < 0.2:
        score = sum(reward for *_, reward in played.steps)
        yield f"Attempt 1:\n{_told(played.steps)}total {score:g}\nAttempt 2:\n"
    yield _told(recent)
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


def rename(played: Played, draw: random.Random) -> Played:
    """The same attempt with invented words for most of the things that its actions name, one word for each thing."""
    actions = {action for _, _, decision, _ in played.steps for action in decision.probabilities}
    verbs = {action.partition(" ")[0] for action in actions}
    things = sorted({word for action in actions for word in re.findall(r"[A-Za-z]{3,}", action)} - verbs - _PLAIN)
    names = {thing: _invent(draw) for thing in things if draw.random() < 0.7}
    if not names:
        return played
    pattern = re.compile(rf"\b({'|'.join(names)})\b")

    def put(text: str) -> str:
        return pattern.sub(lambda found: names[found[1]], text)

    return Played(
        replace(played.task, instruction=put(played.task.instruction)),
        tuple(
            (put(seen), put(state), Decision(put(d.taken), {put(a): p for a, p in d.probabilities.items()}), reward)
            for seen, state, d, reward in played.steps
        ),
    )


_SYLLABLE = (
    ("", "b", "bl", "c", "ch", "d", "f", "g", "gr", "h", "j", "k", "l", "m", "n", "p", "pl", "r", "s", "st", "t", "tr", "w"),
    ("a", "e", "i", "o", "u", "ea", "ee", "oo", "ou"),
    ("", "", "b", "ck", "d", "g", "l", "m", "n", "ng", "p", "r", "s", "t", "th"),
)


def _invent(draw: random.Random) -> str:
    return "".join(draw.choice(part) for _ in range(draw.randint(1, 3)) for part in _SYLLABLE)


def _steps(steps: Sequence[tuple[str, str, Decision, float]]) -> Iterator[Piece]:
    for observation, _, decision, reward in steps:
        yield f"{observation.strip()}\n>"
        yield decision
        yield Paid(reward)


def _told(steps: Sequence[tuple[str, str, Decision, float]]) -> str:
    return "".join(f"{state}\n> {decision.taken}\n= {reward:g}\n" for _, state, decision, reward in steps)
