"""The results of runs, read from their folders: what every table and picture is made of.

A method plays every seed for the same number of episodes. Episodes of one seed depend on each other (that is the point of
learning), so the unit of all statistics is the seed: first a number per seed, then its mean and 95 % interval over seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...memory.errors import plural
from .costs import RunWork

__all__ = ["SeedResult"]


@dataclass(frozen=True)
class SeedResult:
    """The results of one method on one seed, episode by episode."""

    method: str
    seed: int
    optimum: float
    """The highest score that is possible, or (`is_walkthrough`) known to be possible, in the environment's units."""
    scores: tuple[float, ...]
    """The score of each episode, in the environment's units."""
    bests: tuple[float, ...]
    """The highest score within each episode."""
    steps: tuple[int, ...]
    """Steps taken in each episode."""
    tokens: int = 0
    """Input and output tokens of all model calls."""
    calls: int = 0
    """Calls of the model, with those of attempts that did not get to their end."""
    input_tokens: int = 0
    """Tokens that these calls read."""
    output_tokens: int = 0
    """Tokens that these calls wrote."""
    episode_tokens: int = 0
    """Input and output tokens of the finished episodes alone."""
    tokens_by_episode: tuple[int, ...] = ()
    """Input and output tokens of each finished episode."""
    calls_by_episode: tuple[int, ...] = ()
    """Calls of the model in each finished episode."""
    seconds: tuple[float | None, ...] = ()
    """Wall time of each episode; None where it was not measured."""
    answer: int | None = None
    """Number of the episode whose attempt the method submitted as its answer; None if it submitted none."""
    solved: float | None = None
    """Lowest score that counts as solved; None if the environment does not define one."""
    refreshes: tuple[int, ...] = ()
    """Strategies written in each episode; empty if they were not counted."""
    malformed: int = 0
    """Yes-or-no decisions that could not be parsed and were taken as no."""
    studied: int = 0
    """Tokens spent on reading a bank before the first attempt; not part of `tokens`."""
    look_ups: int = 0
    """Steps after the first episode that looked something up in memory, where the method notes it."""
    empty_look_ups: int = 0
    """Those that found nothing."""
    nearest_miss: float | None = None
    """The greatest similarity among what was not similar enough for them, where the method notes it."""
    is_stopped: bool = False
    """True if the run ended before its last episode because one had earned the highest possible score."""
    unreadable: int = 0
    """Replies of the model that could not be used and were asked for again."""
    lost_steps: int = 0
    """Steps for which no reply could be used; the world received nothing."""
    is_walkthrough: bool = False
    """True if `optimum` is only what a known path scores: a higher score may be possible."""
    judged: tuple[float | None, ...] = ()
    """The return of each episode by the judge that the method learned from; None if a reward is missing. Empty without a judge."""
    unjudged: tuple[str | None, ...] = ()
    """Why a reward of each episode is missing; None where none is."""
    tasks: tuple[str, ...] = ()
    """The task of each episode, in a run that plays several; empty where all episodes are of one task."""
    tool_calls: int | None = None
    """Calls of tools, where they were counted."""
    lessons: int | None = None
    """Lessons of the library that the run learned before it played; None without a library."""
    work: RunWork | None = None
    """The work of its model; None if it is unknown."""


def final_count(episodes: int) -> int:
    """The number of episodes that count as the end of a run: a tenth, at least three (or all, if there are fewer)."""
    return min(episodes, max(3, episodes // 10))


def last_episodes(episodes: int) -> str:
    """The head of a column about the end of a run: `last 3 episodes`."""
    return f"last {plural(final_count(episodes), 'episode')}"


def optimum_name(rows: Sequence[SeedResult]) -> str:
    """The name of the best known score: `walkthrough` if a higher one may be possible on some seed, else `optimum`."""
    return "walkthrough" if any(row.is_walkthrough for row in rows) else "optimum"


def with_common_optimum(methods: Sequence[Sequence[SeedResult]]) -> list[list[SeedResult]]:
    """The results with the same optimum for all methods on a seed: the highest that any of their runs recorded.

    Runs of earlier versions may have recorded different ones, where a world solved its tasks by random numbers.
    """
    known: dict[int, SeedResult] = {}
    for result in (result for seeds in methods for result in seeds):
        other = known.setdefault(result.seed, result)
        known[result.seed] = max(other, result, key=lambda one: (one.optimum, not one.is_walkthrough))
    return [
        [replace(a, optimum=known[a.seed].optimum, is_walkthrough=known[a.seed].is_walkthrough) for a in seeds]
        for seeds in methods
    ]
