"""Training texts of the pocket model: attempts at TextWorldExpress games along their gold paths, with detours."""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task

from .transcripts import IDLE_ACTIONS, DecisionPiece, RewardPiece, TranscriptPiece, soften


@dataclass(frozen=True, slots=True)
class GameAttempt:
    """One attempt at a game along its gold path, with detours."""

    task: Task
    steps: tuple[tuple[str, str, DecisionPiece, float], ...]
    """(observation, its abstract state, decision, reward) by step."""


_SYLLABLE = (
    ("", "b", "bl", "c", "ch", "d", "f", "g", "gr", "h", "j", "k", "l", "m", "n", "p", "pl", "r", "s", "st", "t", "tr", "w"),
    ("a", "e", "i", "o", "u", "ea", "ee", "oo", "ou"),
    ("", "", "b", "ck", "d", "g", "l", "m", "n", "ng", "p", "r", "s", "t", "th"),
)


def invent_word(draw: random.Random, max_syllables: int = 3) -> str:
    """An invented word of one to `max_syllables` syllables."""
    return "".join(draw.choice(part) for _ in range(draw.randint(1, max_syllables)) for part in _SYLLABLE)


_BACK = {"move north": "move south", "move south": "move north", "move east": "move west", "move west": "move east"}


def play(world: Any, task: Task, draw: random.Random, detours: int = 2) -> GameAttempt | None:
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
        if plan[step][0] in IDLE_ACTIONS:
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


def _observe_plan(world: Any, task: Task, plan: Sequence[tuple[str, str]]) -> list[Observation]:
    """The observations of a plan from the start on; None if the game refuses a step of it."""
    taken = [action for action, _ in plan]
    try:
        return [world.observe(task, taken[:step]) for step in range(len(taken) + 1)]
    except UserError:
        return []


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
    [
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
    ]
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
