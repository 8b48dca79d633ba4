"""Step-MFT: which strategies were worth writing, so that a model can be fine-tuned to write such ones (AdaMEM, section 3.3).

From runs in which the agent drafts an action a', reads a strategy z, and acts again (a), the pairs ((s, E), z) are kept where

    1. the episode succeeded, and
    2. the action changed: a != a', without which the strategy cannot have helped (Proposition 3.1, for greedy agents).

Agents that sample change their actions by chance as well, and a changed action need not be a better one. So there are two
estimates that the paper does not have: `share` says how often drafts and actions differ when both are drawn again, `chance` how
often two draws from the same side do; `advantage` plays both actions on, where the world can be replayed.

Pure functions over plain records; tools/training/lora.py trains on what they choose, or anybody's trainer (`chat`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from random import Random
from typing import Any, NamedTuple, Protocol

from ...memory.records import Task, UserError
from ..act.episode import Environment

__all__ = [
    "Advantage",
    "CollectedPairs",
    "MftError",
    "Pair",
    "Policy",
    "PromptMessage",
    "advantage",
    "canonical",
    "chance_change_rate",
    "change_rate",
    "chat",
    "collect_pairs",
    "is_different_action",
    "is_success",
    "null_strategy_pass_rate",
    "outcome_set",
    "play_on",
    "sample_pairs",
    "step_set",
]

ROLES = {"human": "user", "ai": "assistant", "system": "system", "user": "user", "assistant": "assistant"}
"""Who speaks, as LangChain calls it and as chats in files do."""
EDGE_CHARACTERS = " \t\n.,;:!?\"'`*_“”‘’…"
"""What does not count at the ends of an action."""
ARTICLES = re.compile(r"\b(?:the|an|a) (?=\S)")
CALL = re.compile(r"(\w+) ?\[(.*)\]")


class MftError(UserError, ValueError):
    """Pairs that cannot be collected, filtered or estimated."""


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """A message of a prompt."""

    role: str
    """`system`, `user` or `assistant`."""
    text: str


@dataclass(frozen=True, slots=True)
class Pair:
    """A strategy that was written, what it was written from, and what came of it."""

    id: str
    """`<run>/<episode>/<step>`."""
    prompt: tuple[PromptMessage, ...]
    """(s, E): the situation with its experiences, as the writer was asked."""
    reply: str
    """z*: all that the writer said, its reasoning included."""
    strategy: str
    """z: the advice in it, as the agent read it."""
    author: str
    """`model`, or `rule` (`RecallStrategy`)."""
    tentative: str
    """a': what the agent would have done without it."""
    action: str
    """a: what it did."""
    score: float
    """What the environment paid in the whole episode, in its units."""
    solved: float | None = None
    """The score from which the task counts as solved, if the environment says so."""
    before: tuple[str, ...] = ()
    """The actions of the episode up to here."""
    task: str = ""
    """Id of the task."""
    seed: int = 0
    """Number of the task within its split."""
    split: str = "train"
    domain: str = ""
    """The environment that it was played in, without its settings (`webshop`)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", tuple(self.prompt))
        object.__setattr__(self, "before", tuple(self.before))


# Collecting


@dataclass(frozen=True)
class CollectedPairs:
    """The pairs of a run, and what else was there."""

    pairs: tuple[Pair, ...]
    episodes: int
    """Finished episodes that were looked at."""
    steps: int
    """Their steps."""
    undrafted: int
    """Strategies without an action drafted before: whether they changed it, nobody knows."""


def collect_pairs(
    rows: Iterable[Mapping[str, Any]],
    episodes: Iterable[Mapping[str, Any]],
    *,
    solved: float | None = None,
    seed: int = 0,
    split: str = "train",
    domain: str = "",
) -> CollectedPairs:
    """One pair per step of a finished episode at which a strategy was written and used.

    The run was in mode `high`: in mode `low` drafts are made under the strategy at hand, so that they are not a' = pi(s).

    Args:
        rows: of the journal, `tentative`, `strategy` and `synthesis` among their fields. Steps of forks and of episodes that
            did not end are passed over.
        episodes: of the log of episodes; `head` names the last step.
        solved: the score from which the task counts as solved.
        seed: the number of the task that was played.
        split: of that task.
        domain: the environment that was played.

    Raises:
        MftError: an episode's steps are not there, or a row is not one of AdaMEM's.
    """
    known = {row["id"]: row for row in rows}
    pairs: list[Pair] = []
    count = steps = undrafted = 0
    for episode in episodes:
        path = _steps_of_episode(known, episode)
        count, steps = count + 1, steps + len(path)
        for t, row in enumerate(path):
            if not row.get("synthesis") or not row.get("strategy"):
                continue
            if not row.get("tentative"):
                undrafted += 1
                continue
            synthesis = _read_synthesis(row, episode["id"])
            pairs.append(
                Pair(
                    id=f"{episode['id']}/{t}",
                    prompt=synthesis.prompt,
                    reply=synthesis.reply,
                    strategy=synthesis.advice,
                    author=synthesis.author,
                    tentative=row["tentative"],
                    action=row["action"],
                    score=episode["score"],
                    solved=solved,
                    before=tuple(earlier["action"] for earlier in path[:t]),
                    task=row["task"],
                    seed=seed,
                    split=split,
                    domain=domain,
                )
            )
    return CollectedPairs(tuple(pairs), count, steps, undrafted)


def _steps_of_episode(known: Mapping[str, Mapping[str, Any]], episode: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The journal's rows of an episode, first step first."""
    path, head = list[Mapping[str, Any]](), episode["head"]
    while head in known:
        path.append(known[head])
        head = path[-1]["parent"]
    if len(path) != episode["steps"]:
        raise MftError(f"episode {episode['id']} has {episode['steps']} steps, and {len(path)} of them are in the journal")
    return path[::-1]


class _Synthesis(NamedTuple):
    """A strategy as it was written at a step."""

    prompt: tuple[PromptMessage, ...]
    reply: str
    advice: str
    author: str


def _read_synthesis(row: Mapping[str, Any], episode: str) -> _Synthesis:
    """The strategy of a row and how it was asked for; an MftError if the row is not one of AdaMEM's."""
    try:
        synthesis, strategy = row["synthesis"], row["strategy"]
        prompt = tuple(PromptMessage(ROLES[role], text) for role, text in synthesis["prompt"])
        return _Synthesis(prompt, synthesis["reply"], strategy["text"], strategy["author"])
    except (KeyError, TypeError, ValueError) as error:
        raise MftError(
            f"step {row['id']} of episode {episode} is not one of AdaMEM's ({type(error).__name__}: {error}); "
            "expected a strategy and the prompt and reply of its synthesis"
        ) from error


# Filtering


def canonical(action: str, domain: str = "") -> str:
    """What two ways to write one action have in common: case, white space, punctuation at the ends and articles do not count.

    `click[Buy Now]` keeps its form, with the same done within. In the domain `webshop` any `search[...]` is `search[]`: the
    published exception, where two different searches count as no change. Where a search is most of what there is to do
    (`hotpot`), it would leave nothing.
    """
    text = " ".join(action.split()).strip(EDGE_CHARACTERS).casefold()
    if call := CALL.fullmatch(text):
        name, argument = call.groups()
        return "search[]" if name == "search" and domain == "webshop" else f"{name}[{canonical(argument, domain)}]"
    bare = ARTICLES.sub("", text)
    return bare if bare == text else canonical(bare, domain)  # without its article, a word may be quoted, or be a call


def is_different_action(action: str, tentative: str, domain: str = "") -> bool:
    """Filter 2: is a another action than a', in this environment?"""
    return canonical(action, domain) != canonical(tentative, domain)


def is_success(pair: Pair, success_threshold: float | None = None) -> bool:
    """Filter 1: did the episode end with a score of at least this?

    Args:
        pair: of that episode.
        least: in the environment's units; the score from which its task counts as solved if not given.

    Raises:
        MftError: neither is known.
    """
    bound = pair.solved if success_threshold is None else success_threshold
    if bound is None:
        raise MftError(f"nobody knows from which score on task {pair.task} is solved; say it with --success")
    return pair.score >= bound


def outcome_set(pairs: Iterable[Pair], success_threshold: float | None = None) -> list[Pair]:
    """Filter 1 alone: the strategies of episodes that succeeded."""
    return [pair for pair in pairs if is_success(pair, success_threshold)]


def step_set(pairs: Iterable[Pair], success_threshold: float | None = None) -> list[Pair]:
    """Both filters: those of them that changed the action."""
    return [
        pair for pair in outcome_set(pairs, success_threshold) if is_different_action(pair.action, pair.tentative, pair.domain)
    ]


def sample_pairs(pairs: Sequence[Pair], count: int, seed: int = 0) -> list[Pair]:
    """At most so many of the pairs, in their order: the outcome arm has as many examples as the step arm."""
    if count >= len(pairs):
        return list(pairs)
    return [pairs[i] for i in sorted(Random(f"{seed} outcome arm").sample(range(len(pairs)), count))]


def chat(pair: Pair) -> dict[str, list[dict[str, str]]]:
    """The pair as trainers read it: the prompt's messages, and the reply as the assistant's."""
    turns = [*pair.prompt, PromptMessage("assistant", pair.reply)]
    return {"messages": [{"role": turn.role, "content": turn.text} for turn in turns]}


# Estimating


def change_rate(actions: Sequence[str], drafts: Sequence[str], domain: str = "") -> float:
    """How often an action differs from a draft, over all m x m combinations of what was drawn, in [0, 1].

    Expected: 1 - sum over actions of p(a | s, z) p(a | s).
    """
    sides = [[canonical(action, domain) for action in side] for side in (actions, drafts)]
    return sum(a != b for a, b in product(*sides)) / (len(actions) * len(drafts))


def chance_change_rate(actions: Sequence[str], drafts: Sequence[str], domain: str = "") -> float:
    """How often two draws from one side differ, mean of both sides, in [0, 1]: what `share` would be if the strategy did nothing.

    Expected: 1 - (sum p(a | s, z)^2 + sum p(a | s)^2) / 2. `share` exceeds it by half the squared distance of the two
    distributions, which is 0 only where they are the same. Needs two draws from each side.
    """
    sides = [[is_different_action(a, b, domain) for a, b in permutations(side, 2)] for side in (actions, drafts)]
    return sum(sum(side) / len(side) for side in sides) / 2


def null_strategy_pass_rate(probabilities: Mapping[str, float], domain: str = "") -> float:
    """How often filter 2 lets through a strategy that does nothing: 1 - sum p(a)^2 over canonical actions.

    Args:
        probabilities: of the actions, with the strategy as without it; they sum to 1. All on one action (a greedy agent): 0.
        domain: the environment that they are actions of.
    """
    merged: dict[str, float] = {}
    for action, p in probabilities.items():
        same = canonical(action, domain)
        merged[same] = merged.get(same, 0.0) + p
    return 1 - math.fsum(p * p for p in merged.values())


class Policy(Protocol):
    """The base policy, without memory."""

    def __call__(self, task: Task, actions: Sequence[str], name: str, /) -> str:
        """What to do after these actions. The draw is made from the name and the number of actions: again is the same."""
        ...


@dataclass(frozen=True, slots=True)
class Advantage:
    """A(s, z) = Q(s, a) - Q(s, a') as paired rollouts estimate it, in reward units."""

    mean: float
    error: float | None
    """Standard error of the mean; None for a single rollout."""
    action: float
    """Q(s, a): the mean return from this step on, if the base policy goes on after a."""
    tentative: float
    """Q(s, a'): after a'."""
    rollouts: int


def advantage(
    environment: Environment, task: Task, pair: Pair, policy: Policy, rollouts: int, name: str = "advantage"
) -> Advantage | None:
    """Take a and a' in turn where the pair was made, go on with the base policy, and compare what was earned.

    Rollout i of both sides makes the same draws (common random numbers): where a and a' lead to the same state, the difference
    is 0 and not noise.

    Args:
        environment: that the pair was made in; a function of its history.
        task: what was played.
        pair: with the actions before.
        policy: the base policy.
        rollouts: of each side, at least 1.
        name: with the pair's id, of the random draws.

    Returns:
        None where a reward is missing.
    """
    sides: list[list[float]] = []
    for action in (pair.action, pair.tentative):
        earned = [play_on(environment, task, [*pair.before, action], policy, f"{name}/{pair.id}/{i}") for i in range(rollouts)]
        known = [value for value in earned if value is not None]
        if len(known) < rollouts:
            return None
        sides.append(known)
    gains = [a - b for a, b in zip(*sides, strict=True)]
    mean = math.fsum(gains) / rollouts
    spread = math.fsum((gain - mean) ** 2 for gain in gains)
    error = math.sqrt(spread / (rollouts - 1) / rollouts) if rollouts > 1 else None
    return Advantage(mean, error, math.fsum(sides[0]) / rollouts, math.fsum(sides[1]) / rollouts, rollouts)


def play_on(environment: Environment, task: Task, actions: Sequence[str], policy: Policy, name: str) -> float | None:
    """The return from the last of these actions on, undiscounted, if the policy goes on; None where a reward is missing."""
    taken = list(actions)
    shown = environment.observe(task, taken)
    rewards = [shown.reward]
    while not shown.over:
        taken.append(policy(task, taken, name))
        shown = environment.observe(task, taken)
        rewards.append(shown.reward)
    known = [reward for reward in rewards if reward is not None]
    return math.fsum(known) if len(known) == len(rewards) else None
