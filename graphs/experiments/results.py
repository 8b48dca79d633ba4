"""The results of runs, read from their folders: what every table and picture is made of.

A method plays every seed for the same number of episodes. Episodes of one seed depend on each other (that is the point of
learning), so the unit of all statistics is the seed: first a number per seed, then its mean and 95 % interval over seeds.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...memory.errors import UserError, plural
from ...memory.records import Usage
from .costs import RunWork, row_usage, run_usage, run_work
from .folder import Job
from .recorded import LookUps, read_rows, read_steps

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
    usage: Usage = field(default_factory=Usage)
    """The model's calls and tokens, with those of attempts that did not get to their end, and what went wrong in finished episodes."""
    episode_tokens: int = 0
    """Input and output tokens of the finished episodes alone."""
    tokens_by_episode: tuple[int, ...] = ()
    """Input and output tokens of each finished episode."""
    seconds: tuple[float | None, ...] = ()
    """Wall time of each episode; None where it was not measured."""
    answer: int | None = None
    """Number of the episode whose attempt the method submitted as its answer; None if it submitted none."""
    solved: float | None = None
    """Lowest score that counts as solved; None if the environment does not define one."""
    refreshes: tuple[int, ...] = ()
    """Strategies written in each episode; empty if they were not counted."""
    look_ups: LookUps = field(default_factory=LookUps)
    """What its steps looked up in memory, where the method notes it."""
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


def total_usage(runs: Sequence[SeedResult]) -> Usage:
    """The sum of the calls and tokens of runs."""
    return sum((run.usage for run in runs), Usage())


def final_count(episodes: int) -> int:
    """The number of episodes that count as the end of a run: a tenth, at least three (or all, if there are fewer)."""
    return min(episodes, max(3, episodes // 10))


def last_episodes(episodes: int) -> str:
    """The head of a column about the end of a run: `last 3 episodes`."""
    return f"last {plural(final_count(episodes), 'episode')}"


def optimum_name(rows: Sequence[SeedResult]) -> str:
    """The name of the best known score: `walkthrough` if a higher one may be possible on some seed, else `optimum`."""
    return "walkthrough" if any(row.is_walkthrough for row in rows) else "optimum"


# Read from a run's folder


def is_finished(job: Job) -> bool:
    """True if the run is finished, with as many episodes as are asked for, and its files are complete.

    Raises:
        UserError: a file is damaged, or lacks steps.
    """
    if not (job.folder / "result.json").exists():
        return False
    result, rows = _result(job), read_rows(job.folder / "episodes.jsonl")
    is_out_of_tokens = 0 < job.options.max_run_tokens <= result["tokens"]
    has_all = result["episodes"] >= job.options.episodes or is_out_of_tokens
    if not has_all or len(rows) != result["episodes"]:
        return False
    if (lost := read_steps(job.folder, rows).lost) is not None:
        raise UserError(
            f"{job.folder}/steps.jsonl lacks steps of episode {lost}; put the file back, or remove {job.folder} to play that run from "
            "its start"
        )
    return True


def _result(job: Job) -> dict[str, Any]:
    path = job.folder / "result.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); remove it, and the same command writes it again") from error
    return found


def played_task(job: Job) -> tuple[str, int | None]:
    """(id, `Task.seed`) of a finished run's task."""
    result = _result(job)
    return str(result["task"]), result["task_seed"]


def read_result(job: Job) -> SeedResult:
    """The result of a finished run."""
    rows = sorted(read_rows(job.folder / "episodes.jsonl"), key=lambda row: int(row["episode"]))
    result = _result(job)
    if [row["episode"] for row in rows] != list(range(result["episodes"])):
        raise UserError(
            f"{job.folder}/episodes.jsonl has {len(rows)} of {result['episodes']} episodes; remove the folder and run again"
        )
    earned = tuple(row.get("earned") for row in rows)
    # Judged, if a reward is missing or differs from the score in any episode: a method may make no use of the judge.
    has_judge = job.options.judge != "environment" or getattr(job.arm.settings, "needs_writer", False)
    is_judged = has_judge and any(value != row["score"] for value, row in zip(earned, rows, strict=True))
    counted = ("malformed", "studied", "unreadable", "lost_steps", "refused", "filtered", "cut_off")
    usage = replace(run_usage(job.folder, rows), **{name: sum(row.get(name, 0) for row in rows) for name in counted})
    by_episode = [row_usage(row) for row in rows]
    seconds = {row["id"]: row["seconds"] for row in read_rows(job.folder / "seconds.jsonl")}
    return SeedResult(
        method=job.arm.name,
        seed=job.seed,
        optimum=result["optimum"],
        scores=tuple(row["score"] for row in rows),
        bests=tuple(row["best"] for row in rows),
        steps=tuple(row["steps"] for row in rows),
        # The ledger counts what finished episodes do not: replies of an attempt that failed, and further judgements of ties.
        tokens=max(result["tokens"], usage.tokens - usage.studied),
        usage=usage,
        episode_tokens=sum(one.tokens for one in by_episode),
        tokens_by_episode=tuple(one.tokens for one in by_episode),
        # The time of an episode that began with reading a bank is mostly the reading.
        seconds=tuple(None if row.get("studied") else seconds.get(row["id"]) for row in rows),
        answer=result["answer"],
        solved=result["solved"],
        judged=earned if is_judged else (),
        unjudged=tuple(row.get("unjudged", "") if row.get("earned", 0) is None else None for row in rows),
        is_walkthrough=result["is_walkthrough"],
        refreshes=tuple(row.get("refreshes", 0) for row in rows),
        look_ups=read_steps(job.folder, rows).look_ups,
        work=run_work(job.folder, rows),
        tasks=tuple(row["task"] for row in rows if "task" in row),
        tool_calls=sum(row["tool_calls"] for row in rows) if all("tool_calls" in row for row in rows) else None,
        lessons=result.get("lessons"),
    )
