"""Keyword Keep: a toy world with hidden rules, for unit tests and for controls that need an oracle. It is no benchmark.

A keep is a corridor of nine places: three doors, two gates, two forks and a chest, in some order, then the exit. Each
door, gate and fork carries a key (a colour, a creature, a sign), and each key has one right answer: a word, a gift or a
direction. The rules are the same for every task of one domain and independent of those of any other domain: an agent
learns them by trying, and they do not help it elsewhere.

Everything the agent reads and says is short, so that a small language model trained on it can play: the observation is
`door black`, every action is one word, a lesson is `door black mist`.

| place | answers | the right one | any other answer |
|---|---|---|---|
| door | 5 words | +1 and passes | stays there: costs a step |
| gate | 5 gifts | +1 and passes | passes, pays nothing; so does `attack` |
| fork | left, right | +1 and passes | passes, pays nothing |
| chest | gem | +1 and passes | `on` passes, pays nothing |
| exit | on | +2, the end | |

`back` returns one place, `look` and `wait` do nothing; each costs a step. A place pays once. The best score is 10, in 9
steps of the 16 allowed. The exit is a place of its own so that a reward above 0 always means that the choice was right
(paid with the last choice, its bonus would make a wrong one look right).

Measured over 3,000 held-out domains, as fractions of 10: uniform random 0.20; the exact Bayesian player 0.67, 0.88, 0.92, 0.96,
1.00 in its first five episodes, 1.00 afterwards (standard errors below 0.004).
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ...memory.errors import UserError, plural
from ...memory.records import Observation, Task
from .support.worlds import Solvable

__all__ = ["KeywordKeep"]

KEYS: Mapping[str, tuple[str, ...]] = {
    "door": ("red", "blue", "green", "white", "black", "amber", "violet", "silver"),
    "gate": ("troll", "witch", "knight", "raven", "giant", "monk", "wolf", "ghost"),
    "fork": ("moon", "star", "sun", "crown", "snake", "oak", "anchor", "wheel"),
    "chest": ("gem",),
    "exit": ("keep",),
}
"""Kind of place -> its possible keys: `door black`, `gate wolf`, `fork moon`, `chest gem`, `exit keep`."""

ANSWERS: Mapping[str, tuple[str, ...]] = {
    "door": ("echo", "mist", "fern", "salt", "gold"),
    "gate": ("lamp", "rope", "bell", "coin", "mask"),
    "fork": ("left", "right"),
    "chest": ("gem",),
    "exit": ("on",),
}
"""Kind of place -> the answers, of which one is right."""

MOVES: Mapping[str, tuple[str, ...]] = {
    "door": ("back", "look", "wait"),
    "gate": ("attack", "back", "wait"),
    "fork": ("back", "look", "wait"),
    "chest": ("on", "back", "look", "wait"),
    "exit": ("back", "look", "wait"),
}
"""Kind of place -> the other admissible actions."""

HORIZON = 16
OPTIMUM = 10.0
_ACTIVE = {"door": 3, "gate": 2, "fork": 2}
_TRAIN = (1, 2, 3, 4, 6, 7, 8, 9)


@dataclass(frozen=True, slots=True)
class Domain:
    """The hidden rules of one keep."""

    seed: int
    rules: Mapping[str, str]
    """The right answer of each of the 24 keyed places (`door black` -> `mist`), met in this keep or not, and of the chest
    and the exit. The rules of places that are not here serve as honest but useless lessons."""
    places: tuple[str, ...]
    """The seven keyed places and the chest, before the order of the corridor is drawn."""

    def lesson(self, place: str) -> str:
        """The lesson about a place, e.g. `door black mist`."""
        return f"{place} {self.rules[place]}"


@lru_cache(maxsize=4096)
def domain(seed: int) -> Domain:
    """The rules of a seed, the same on every machine and Python version."""
    draw = random.Random(f"keyword keep {seed}")
    rules = {f"{kind} {key}": draw.choice(ANSWERS[kind]) for kind in _ACTIVE for key in KEYS[kind]}
    places = [f"{kind} {key}" for kind, count in _ACTIVE.items() for key in draw.sample(KEYS[kind], count)]
    return Domain(seed, rules | {"chest gem": "gem", "exit keep": "on"}, (*places, "chest gem"))


class KeywordKeep(Solvable):
    """An environment for the toy world.

    Splits by domain seed: `test` has those divisible by 10, `dev` those ending in 5, `train` all others; so nothing learned
    or trained on one split has met a rule set of another. A task fixes rules and order of places. `variant(task, n)` has
    the same rules and another order: then only knowledge of the rules helps, a remembered action sequence does not.

    The state is the place, which is all that the agent sees. It does not say whether the place was paid before: on its way back
    an agent meets the same state with less to gain.

    Args:
        horizon: number of steps after which an episode ends; the optimum needs 9.
    """

    instant = True
    solved = OPTIMUM

    def __init__(self, horizon: int = HORIZON) -> None:
        super().__init__("toy", horizon)

    def task(self, seed: int, split: str = "test") -> Task:
        """The `seed`-th task of a split; `Task.seed` is the seed of its domain."""
        if seed < 0:
            raise UserError(f"toy: task seeds count from 0, got {seed}")
        match split:
            case "test":
                chosen = 10 * seed
            case "dev":
                chosen = 10 * seed + 5
            case "train":
                chosen = 10 * (seed // len(_TRAIN)) + _TRAIN[seed % len(_TRAIN)]
            case _:
                raise UserError(f"toy: no split {split!r}; there are train, dev, test")
        return Task(f"keep-{split}-{seed}", "reach the exit", chosen)

    def variant(self, task: Task, n: int) -> Task:
        """The task with the same rules and the places in the n-th order; variant 0 is the task itself."""
        stem = task.id.partition("/")[0]
        return replace(task, id=f"{stem}/{n}" if n else stem)

    def path(self, task: Task) -> tuple[str, ...]:
        """The places of the corridor from the entrance to the exit."""
        _, _, variant = task.id.partition("/")
        if variant and not variant.isdecimal():
            raise UserError(f"toy: cannot read the variant in task id {task.id!r}; expected e.g. keep-test-3/7")
        places = list(domain(task.seed).places)
        random.Random(f"keyword keep {task.seed}/{int(variant or 0)}").shuffle(places)
        return (*places, "exit keep")

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The observation after these actions: the place where the agent stands."""
        path, rules = self.path(task), domain(task.seed).rules
        at, reward, paid, over = 0, 0.0, set[int](), False
        for step, action in enumerate(actions):
            if over:
                raise UserError(f"toy: {task.id} was over after {plural(step, 'step')}, got one more action: {action!r}")
            place = path[at]
            admissible = _actions(place)
            if action not in admissible:
                raise UserError(
                    f"toy: {action!r} is not admissible at {place!r} (step {step} of {task.id}): "
                    f"choose one of {', '.join(admissible)}"
                )
            right = action == rules[place]
            reward = 0.0
            if right and at not in paid:
                paid.add(at)
                reward = 2.0 if place == "exit keep" else 1.0
            over = (right and place == "exit keep") or step + 1 == self.horizon
            if action == "back":
                at = max(0, at - 1)
            elif at + 1 < len(path) and (right or (not place.startswith("door") and action not in ("look", "wait"))):
                at += 1
        return Observation(path[at], () if over else _actions(path[at]), reward, over)

    def solution(self, task: Task) -> tuple[str, ...]:
        """The right answer at each place in turn."""
        rules = domain(task.seed).rules
        return tuple(rules[place] for place in self.path(task))

    def optimum(self, task: Task) -> float:
        """The highest score: 10, or less if the horizon is shorter than the corridor."""
        return OPTIMUM if self.horizon > 8 else float(self.horizon)

    def knows_optimum(self, task: Task) -> bool:
        """True: the highest score is known for every horizon."""
        return True


@lru_cache(maxsize=64)
def _actions(place: str) -> tuple[str, ...]:
    kind = place.partition(" ")[0]
    return tuple(sorted(ANSWERS[kind] + MOVES[kind]))
