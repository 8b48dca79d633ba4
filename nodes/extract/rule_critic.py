"""Lessons without a language model: from the steps of a group's rollouts by rule, at random, or shuffled.

Tables name such lessons: rule-written, random, shuffled.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import Any, ClassVar, Literal, NamedTuple, NotRequired

from typing_extensions import TypedDict

from ...memory.lessons.library import Library, LibraryLimits
from ...memory.lessons.versions import LibraryVersions
from ...memory.records import Edit, Lesson, Rollout, Ruling, Trajectory
from ..arguments import Share
from ..ask import estimate_tokens
from ..state import LibraryChannels, TaskChannel
from ..synthesize.strategy import _cue, _item

__all__ = ["RuleCritic", "RuleProposer", "as_library", "random_lessons", "shuffle_lessons"]

Truth = Literal["given", "implicit"]
"""Source of rewards: the environment's verifier, or none."""


class RewardedGroup(TypedDict):
    """The rollouts of a group with their rewards."""

    rollouts: list[Rollout]
    rewards: list[float | None]


class GroupInsights(TypedDict):
    """The conclusions of a comparison, and its votes on the lessons that were shown; a rule votes on none."""

    insights: list[str]
    votes: list[tuple[str, int]]
    failures: NotRequired[list[str]]


class InsightsOnLibrary(RewardedGroup, TaskChannel, LibraryChannels):
    """The conclusions from a group, and the library that they may change."""

    insights: list[str]
    step: int


class ProposedEdits(TypedDict):
    """Proposed changes of the library, and those that were dropped."""

    edits: list[Edit]
    rulings: list[Ruling]
    failures: NotRequired[list[str]]


# Actions of a group in the same states


class ActionWorth(NamedTuple):
    """An action in a state, compared with the other actions tried there."""

    state: str
    action: str
    mean_reward: float
    """Mean over the rollouts that took it, in reward units."""
    gain: float
    """`mean_reward` less the mean of the other actions tried there."""
    rollouts: int
    """Number of rollouts that took it."""


def compare_actions(rollouts: Sequence[Rollout], discount: float = 0.9) -> list[ActionWorth]:
    """Actions in states where different ones were tried, the clearest differences first.

    The value of an action in a rollout is its highest value over the visits of the state (a place may pay only once), and in the
    group the mean of that over the rollouts that took it. The value of a visit is the step's own reward if any step before the
    last was rewarded in this group; later steps then have rewards of their own. If only last steps were rewarded, it is the
    discounted return from the visit on. Steps and rollouts with a missing reward are left out.
    """
    trajectories = [r.trajectory for r in sorted(rollouts, key=lambda r: r.number) if r.trajectory is not None]
    by_step = any(step.reward for trajectory in trajectories for step in trajectory.transitions[:-1])
    earned: dict[str, dict[str, list[float]]] = {}  # state -> action -> one number per rollout
    for trajectory in trajectories:
        best: dict[tuple[str, str], float] = {}
        for step, value in zip(trajectory.transitions, _step_values(trajectory, by_step, discount), strict=True):
            if value is not None:
                here = step.state, step.action
                best[here] = max(value, best.get(here, -math.inf))
        for (state, action), value in best.items():
            earned.setdefault(state, {}).setdefault(action, []).append(value)
    found = []
    for state, actions in earned.items():
        means = {action: math.fsum(values) / len(values) for action, values in actions.items()}
        for action, mean in means.items():
            if others := [other for name, other in means.items() if name != action]:
                found.append(ActionWorth(state, action, mean, mean - math.fsum(others) / len(others), len(actions[action])))
    return sorted(found, key=lambda w: (-round(w.gain, 9), -w.rollouts))  # stable: else in the order in which they were met


def _step_values(trajectory: Trajectory, by_step: bool, discount: float) -> list[float | None]:
    rewards = [step.reward for step in trajectory.transitions]
    if by_step:
        return rewards
    if None in rewards:
        return [None] * len(rewards)
    returns, value = list[float | None](), 0.0
    for reward in reversed(rewards):
        value = (reward or 0.0) + discount * value
        returns.append(value)
    return returns[::-1]


def with_final_reward(trajectory: Trajectory, mark: float | None) -> Trajectory:
    """The trajectory with `mark` as its only reward, at the last step: the view of it without ground truth."""
    last = len(trajectory.transitions) - 1
    steps = [replace(step, reward=mark if n == last else 0.0) for n, step in enumerate(trajectory.transitions)]
    return replace(trajectory, transitions=tuple(steps), score=mark or 0.0, note="")


def comparable_rollouts(state: Mapping[str, Any], truth: Truth) -> list[Rollout]:
    """The rollouts of a group that can be compared, by number: those with a reward.

    With ground truth their trajectories carry the environment's rewards; without, the reward that the group gave them.
    """
    found = []
    for rollout in sorted(state["rollouts"], key=lambda r: r.number):
        mark = state["rewards"][rollout.number]
        if mark is None:
            continue
        if truth != "given" and rollout.trajectory is not None:
            rollout = replace(rollout, trajectory=with_final_reward(rollout.trajectory, mark))
        found.append(rollout)
    return found


@dataclass(frozen=True)
class RuleCritic:
    """The comparison without a model, for worlds played step by step: actions that did better than others in the same state.

    `compare_actions` says what better means. Actions with a reward of 0 give no insight. For a state of one short line the insight
    is the state and its best action (`door black mist`); for a longer state the action alone, as the pocket model reads advice.
    """

    role: ClassVar[str] = "compute"

    max_items: int = 12
    """Items from a group at most."""
    discount: Share = 0.9
    """Discount factor of returns, used if only last steps are rewarded."""

    def __call__(self, state: RewardedGroup) -> GroupInsights:
        found = compare_actions(comparable_rollouts(state, "given"), self.discount)
        best: dict[str, ActionWorth] = {}
        for worth in found:
            if worth.gain > 1e-9 and worth.mean_reward > 1e-9:
                best.setdefault(worth.state, worth)
        items = [_item(worth.state, worth.action) for worth in best.values()]
        return {"insights": list(dict.fromkeys(items))[: self.max_items], "votes": []}


# Insights as edits, by code


def named_state(text: str, states: Iterable[str]) -> str:
    """The short state that a lesson begins with, the longest of several; empty if it begins with none."""
    cues = (cue for cue in map(_cue, states) if cue and text.startswith(cue))
    return max(cues, key=len, default="").strip()


@dataclass(frozen=True)
class RuleProposer:
    """Propose edits by code: a new insight is added, a known one is kept, and one that contradicts a lesson about the same state
    replaces it.

    If every state of the group is short, lessons name their states. Then an insight that is no action of this group in one of its
    states is refused: the model made it up.
    """

    role: ClassVar[str] = "compute"

    versions: LibraryVersions

    def __call__(self, state: InsightsOnLibrary) -> ProposedEdits:
        library = self.versions.at(state["library"])
        steps = {(s.state, s.action) for r in state["rollouts"] if r.trajectory is not None for s in r.trajectory.transitions}
        done = {_normalize(f"{_cue(at)}{action}") for at, action in steps}
        named = bool(steps) and all(_cue(at) for at, _ in steps)
        rewards = tuple(reward for reward in state["rewards"] if reward is not None)
        where: dict[str, Any] = {"problems": (state["task"].id,), "rewards": rewards, "step": state["step"]}
        edits: dict[Edit, None] = {}
        rulings: list[Ruling] = []
        changed: set[str] = set()
        for insight in state["insights"]:
            cue = named_state(insight, (at for at, _ in steps))
            why = f"at {cue}: {insight.removeprefix(cue).strip()}" if cue else ""
            here = [lesson for lesson in library.lessons if cue and named_state(lesson.text, [cue])]
            same = next((lesson for lesson in library.lessons if _normalize(lesson.text) == _normalize(insight)), None)
            clashes = [x for x in here if x is not same and x.id not in changed]
            if named and _normalize(insight) not in done:
                rulings.append(Ruling(Edit("add", (), insight, why, **where), False, "no rollout of this group did that"))
                continue
            if same is not None:
                edits[Edit("keep", (same.id,), "", why, **where)] = None
            elif clashes:
                changed.add(clashes[0].id)
                edits[Edit("modify", (clashes.pop(0).id,), insight, why, **where)] = None
            else:
                edits[Edit("add", (), insight, why, **where)] = None
            for other in clashes:
                changed.add(other.id)
                edits[Edit("delete", (other.id,), "", f"it was better to do: {insight}", **where)] = None
        return {"edits": [*edits], "rulings": rulings}


def _normalize(text: str) -> str:
    return " ".join(text.lower().split()).rstrip(".")


# Controls


def as_library(texts: Iterable[str], limits: LibraryLimits, count: Callable[[str], int]) -> Library:
    """Texts as a library within these limits. Texts that do not fit, or that say the same as another one, are left out."""
    return Library().apply([Edit("add", (), text) for text in texts], limits, count)[0]


def random_lessons(
    rollouts: Sequence[Rollout], count: int, limits: LibraryLimits, seed: int, tokens: Callable[[str], int] = estimate_tokens
) -> Library:
    """A library of `count` random pieces of the rollouts, drawn without regard to rewards; fewer if there are not so many, or if
    the limits leave no room for them.

    Worlds played step by step give a state with an action taken there (different states, as long as there are any); written
    answers give sentences of three words or more.

    Args:
        rollouts: the rollouts to draw from.
        count: number of lessons.
        limits: the limits of the library.
        seed: seed of the draw.
        tokens: counts the tokens of a text.
    """
    pools: dict[str, list[str]] = {}
    for rollout in sorted(rollouts, key=lambda r: r.id):
        steps = rollout.trajectory.transitions if rollout.trajectory is not None else ()
        if len(steps) > 1:
            for step in steps:
                pools.setdefault(_cue(step.state) or step.action, []).append(_item(step.state, step.action))
        else:
            for sentence in re.split(r"(?<=[.!?])\s+|\n+", rollout.transcript or rollout.answer):
                if len(sentence.split()) >= 3:
                    pools.setdefault(sentence.strip(), []).append(sentence.strip())
    draw = Random(f"random lessons {seed}")
    drawn = [draw.sample(sorted(set(pool)), len(set(pool))) for _, pool in sorted(pools.items())]
    draw.shuffle(drawn)
    rounds = (pool[n] for n in range(max(map(len, drawn), default=0)) for pool in drawn if n < len(pool))
    fit = (
        x
        for x in dict.fromkeys(rounds)
        if len(x.split()) <= limits.max_words and tokens(f"- [L0] {x}\n") <= limits.max_library_tokens
    )
    texts = list(islice(fit, min(count, limits.max_lessons)))
    return Library(tuple(Lesson(f"L{n}", text) for n, text in enumerate(texts)), len(texts)).trim_to_limits(limits, tokens)[0]


def shuffle_lessons(library: Library, seed: int) -> Library:
    """The lessons with their words exchanged among them. Each place keeps its id and its number of words.

    If all lessons have two to four words, they count as a state and an action of one word: only the actions are exchanged, and each
    goes to another state.
    """
    draw = Random(f"shuffled {seed}")
    texts = [lesson.text for lesson in library.lessons]
    if texts and all(2 <= len(text.split()) <= 4 for text in texts):
        order = draw.sample(range(len(texts)), len(texts))
        after = dict(zip(order, [*order[1:], order[0]], strict=True))
        mixed = [f"{text.rpartition(' ')[0]} {texts[after[n]].rpartition(' ')[2]}" for n, text in enumerate(texts)]
    else:
        words = [word for text in texts for word in text.split()]
        draw.shuffle(words)
        left = iter(words)
        mixed = [" ".join(islice(left, len(text.split()))) for text in texts]
    return replace(library, lessons=tuple(replace(le, text=text) for le, text in zip(library.lessons, mixed, strict=True)))
