"""A sweep: several methods on several seeds, one run each, in worker processes. It can be resumed from its folder.

    <folder>/settings.json                     the settings; a sweep with other settings needs another folder
    <folder>/<method>-s<seed>/steps.jsonl      one row per step
    <folder>/<method>-s<seed>/episodes.jsonl   one row per episode
    <folder>/<method>-s<seed>/replies.jsonl    what the model answered
    <folder>/<method>-s<seed>/training.jsonl   attempts and trainings, of a method that trains weights
    <folder>/<method>-s<seed>/adapters/        the versions of its adapter that a resumed run needs
    <folder>/<method>-s<seed>/memory/          the method's memory, if it has one
    <folder>/<method>-s<seed>/checkpoints.sqlite   of a finished run, those of its last episodes
    <folder>/<method>-s<seed>/result.json      written last: the run is finished

A run may be killed at any point. With the same settings it goes on from the last checkpoint. Every id and every random draw
comes from (run, episode, step), so the result is the same as without the interruption.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from ...memory.claas.weights import TrainingLog
from ...memory.errors import UserError
from ...memory.records import Task
from ...memory.storage.journal import Journal, JournalError
from ...memory.storage.rows import Rows
from .costs import TRAINING_FILE, run_usage, run_work
from .folder_settings import check_settings
from .results import SeedResult
from .steps import read_rows, read_steps

if TYPE_CHECKING:  # LangGraph and Chroma load only where a run is played: results are read quickly
    from ...memory.records import Trajectory
    from ...memory.storage.record_store import RecordStore

__all__ = ["claim_folder", "write_json"]


KEPT_EPISODES = 3
"""Last episodes of a finished run whose checkpoints stay in its folder, for the studio to look at."""


@dataclass(frozen=True)
class Job:
    """A run to play: one method on one seed."""

    method: str
    """The method's name in tables; with a preset, `jitrl:paper`."""
    seed: int
    """Number of the environment's task that is played."""
    episodes: int
    """Number of episodes to play."""
    folder: Path
    """Folder of the run's files."""
    run: str
    """Name of the run in ids and random draws."""
    thread: str
    """Name of the run's thread among the checkpoints."""
    memory: str
    """Directory or URL of the method's memory; empty if it has none."""
    namespace: tuple[str, ...]
    """Namespace of the records within the memory."""
    checkpoints: str
    """SQLite file or Postgres URL of the checkpoints."""
    max_run_tokens: int = 0
    """Tokens of model calls after which no further episode begins; 0: no limit."""
    stops_at_full_score: bool = False
    """True if the run is over once an episode has earned the highest possible score."""
    attempts_at_once: int = 1
    """Episodes that are played at the same time; more than 1 only where none of them depends on another."""
    trains_weights: bool = False
    """True if the method trains the weights of its model."""


@dataclass(frozen=True)
class RunFailure:
    """A run that ended before its last episode, and the reason."""

    method: str
    seed: int
    reason: str
    """One line for the user."""
    fails_again: bool = False
    """True if the same command would fail in the same way."""
    kind: Literal["failed", "stopped"] = "failed"
    """`stopped`: the budget was spent."""


@contextmanager
def claim_folder(folder: Path, settings: Mapping[str, Any]) -> Iterator[None]:
    """Lock the folder of a sweep while the context lasts, and make it if it is missing.

    Args:
        folder: the sweep's folder.
        settings: the sweep's settings, as JSON values.

    Raises:
        UserError: another process works in the folder, or the folder belongs to a sweep with other settings.
    """
    from filelock import FileLock, Timeout

    owner = folder / "owner.pid"
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(folder / "owner.lock", timeout=0))
        except Timeout:
            pid = owner.read_text().strip() if owner.exists() else "?"
            raise UserError(f"process {pid} is at work in {folder}; wait until it ends, or give another --out") from None
        except OSError as error:
            raise UserError(f"cannot work in {folder}: {error.strerror or error}") from error
        owner.write_text(f"{os.getpid()}\n")
        stack.callback(owner.unlink, missing_ok=True)
        if (record := check_settings(folder, settings)) is not None:
            write_json(folder / "settings.json", record)
        yield


def write_json(path: Path, value: Any) -> None:
    """Write JSON to a file. A reader sees either the whole new file or the old one."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())  # a power cut must not leave an empty file of that name
        part.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; finished runs are kept") from error


@dataclass(frozen=True)
class RunFiles:
    """The open files of a run: what its graph reads and writes."""

    journal: Journal
    """Its steps."""
    log: Rows
    """A row per finished episode."""
    times: Rows
    """Seconds of each finished episode."""
    replies: Rows
    """What the model answered, to play the run again without it (`learngraph explain --replay`)."""
    records: RecordStore[Trajectory] | None
    """The trajectories that it remembers; None if the method remembers nothing."""
    saver: Any
    """Its checkpoints."""
    training: TrainingLog
    """Its attempts and trainings, if it trains weights."""


@contextmanager
def open_run(job: Job) -> Iterator[RunFiles]:
    """The files of a run, for this process alone. The folder is made if missing."""
    from filelock import FileLock

    from ...memory.records import Trajectory
    from ...memory.storage.checkpoints import open_checkpoints

    with ExitStack() as stack:
        job.folder.mkdir(parents=True, exist_ok=True)
        # The worker of a killed sweep ends a moment after the sweep.
        stack.enter_context(FileLock(job.folder / "owner.lock", timeout=30))
        journal = Journal(job.folder / "steps.jsonl")
        log, times = Rows(job.folder / "episodes.jsonl"), Rows(job.folder / "seconds.jsonl")
        replies = Rows(job.folder / "replies.jsonl")
        for file in (journal, log, times, replies):
            stack.callback(file.close)
        records = None
        if job.memory:
            from ...memory.storage.open_store import open_store
            from ...memory.storage.record_store import RecordStore

            records = RecordStore(stack.enter_context(open_store(job.memory)), job.namespace, Trajectory)
        trainings = Rows(job.folder / TRAINING_FILE) if job.trains_weights else Rows()
        stack.callback(trainings.close)
        saver = stack.enter_context(open_checkpoints(job.checkpoints))
        yield RunFiles(journal, log, times, replies, records, saver, TrainingLog(trainings))


def play_run(
    graph: Any,
    files: RunFiles,
    job: Job,
    task: Task,
    optimum: float,
    solved: float | None = None,
    *,
    is_walkthrough: bool = False,
    full_score: float | None = None,
    count_flops: Callable[[], float] | None = None,
) -> None:
    """Play a run to its end, from wherever it stands, and write its result.

    Args:
        graph: the graph of the run, as `wiring.run.build` makes it.
        files: its files.
        job: which run.
        task: what every episode is about.
        optimum: the highest score that is known to be possible.
        solved: the score from which the task counts as solved, if there is such a thing.
        is_walkthrough: True if `optimum` is only what a known path scores.
        full_score: the return after which the run is over; None: it plays all episodes.
        count_flops: the floating-point operations of its model so far; None: unknown.
    """
    from ...memory.storage.checkpoints import keep_last_checkpoints
    from ..wiring import run

    config: Any = {"configurable": {"thread_id": job.thread}, "recursion_limit": 1_000_000}
    if files.saver.get_tuple(config):
        _rewind(graph, config, job, files.journal, files.log)
    # With a checkpoint, go on from it, without a look at what is next: LangGraph says "nothing" for a node that has ended
    # and whose successor has not begun.
    limits = {"episodes": job.episodes, "tokens": job.max_run_tokens, "full_score": full_score}
    plan = {"task": task, "run": job.run, "episode": 0, **limits}
    begin = None if files.saver.get_tuple(config) else plan
    _stream_episodes(graph, begin, config, job, files.times, count_flops)
    end = graph.get_state(config).values
    stopped = end["episode"] < end["episodes"] and end.get("full_score") != full_score
    if end["episodes"] < job.episodes or stopped:  # it was begun with fewer, or ended before: its end becomes a pause
        graph.update_state(config, limits, as_node="tally")
        _stream_episodes(graph, None, config, job, files.times, count_flops)
        end = graph.get_state(config).values
    found = {"method": job.method, "seed": job.seed, "task": task.id, "task_seed": task.seed, "optimum": optimum}
    found |= {"solved": solved, "is_walkthrough": is_walkthrough, "episodes": end["episode"], "answer": end["answer"]}
    found |= {"tokens": end["spent"], "has_full_score": run.has_full_score(end)}
    write_json(job.folder / "result.json", found)
    if Path(job.checkpoints).parent == job.folder:  # in a place of the user's they stay
        for path in job.folder.glob("*.jsonl"):
            with path.open("rb") as file:
                os.fsync(file.fileno())  # nothing can be played again from checkpoints that are gone
        keep_last_checkpoints(files.saver, KEPT_EPISODES)


def _stream_episodes(
    graph: Any, begin: Any, config: Any, job: Job, times: Rows, count_flops: Callable[[], float] | None
) -> None:
    """Play to the end, and note the seconds of each episode, and its floating-point operations where they are known."""
    started, spent = perf_counter(), count_flops() if count_flops else 0.0
    for update in graph.stream(begin, config, stream_mode="updates", durability="async"):
        if "tally" in update:
            done, now = update["tally"]["episode"] - 1, perf_counter()
            row = {"id": f"{job.run}/{done}", "seconds": round(now - started, 4)}
            if count_flops:
                row, spent = {**row, "flops": count_flops() - spent}, count_flops()
            times.append(row)
            started = now


def _rewind(graph: Any, config: Any, job: Job, journal: Journal, log: Rows) -> None:
    """Go back to the start of the first episode that lost steps or its score in a power cut, if there is one.

    A file can lose its last lines although the checkpoint was already written. Episodes are functions of (run, episode), so
    playing one again gives the same episode.
    """
    state = graph.get_state(config, subgraphs=True)
    done = state.values.get("episode", 0)
    rows = [log.get(f"{job.run}/{episode}") for episode in range(done)]
    lost = next((episode for episode, row in enumerate(rows) if row is None or not _has_history(journal, row["head"])), None)
    if lost is None:
        inside = [task.state.values for task in state.tasks if task.state] + [task.result or {} for task in state.tasks]
        if all(_has_history(journal, values["head"]) for values in (state.values, *inside) if "head" in values):
            return
        lost = done
    if not len(journal) and not len(log) and Path(job.checkpoints).parent != job.folder:
        raise UserError(
            f"the shared checkpoints hold {done} episodes of the run {job.thread}, but {job.folder} is empty: put the run folder "
            "back to resume, or give an --out of another name to play from the start"
        )
    for old in graph.get_state_history(config):
        if [task.name for task in old.tasks] == ["episode"] and old.values["episode"] == lost:
            graph.update_state(old.config, None, as_node="__copy__")  # the copy is the newest, and has no half-played episode
            return
    raise UserError(
        f"{job.folder} lost steps of episode {lost}, and its checkpoints do not reach back to it; "
        "remove the folder to play from the start, or give another --out"
    )


def _has_history(journal: Journal, head: str) -> bool:
    try:
        journal.history(head)
    except JournalError:
        return False
    return True


def is_finished(job: Job) -> bool:
    """True if the run is finished, with as many episodes as are asked for, and its files are complete.

    Raises:
        UserError: a file is damaged, or lacks steps.
    """
    if not (job.folder / "result.json").exists():
        return False
    result, path = _result(job), job.folder / "episodes.jsonl"
    rows = read_rows(path) if path.exists() else []
    is_out_of_tokens = 0 < job.max_run_tokens <= result["tokens"]
    has_enough = job.stops_at_full_score and result.get("has_full_score", False)
    has_all = result["episodes"] >= job.episodes or is_out_of_tokens or has_enough
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
    """(id, `Task.seed`) of a finished run's task; the seed is None in a run of an earlier version."""
    result = _result(job)
    return str(result["task"]), result.get("task_seed")


def seed_result(job: Job, *, is_judged: bool = False) -> SeedResult:
    """The result of a finished run.

    Args:
        job: which run.
        is_judged: whether the command names a judge. A method that makes no use of it learned from the scores themselves.

    Raises:
        UserError: rows of episodes are missing from its folder.
    """
    rows = sorted(read_rows(job.folder / "episodes.jsonl"), key=lambda row: int(row["episode"]))
    result = _result(job)
    if [row["episode"] for row in rows] != list(range(result["episodes"])):
        raise UserError(
            f"{job.folder}/episodes.jsonl has {len(rows)} of {result['episodes']} episodes; remove the folder and run again"
        )
    earned = tuple(row.get("earned") for row in rows)
    # Judged, if a reward is missing or differs from the score in any episode.
    is_judged = is_judged and any(value != row["score"] for value, row in zip(earned, rows, strict=True))
    usage, studied = run_usage(job.folder, rows), sum(row.get("studied", 0) for row in rows)
    found, times = read_steps(job.folder, rows).look_ups, job.folder / "seconds.jsonl"
    seconds = {row["id"]: row["seconds"] for row in read_rows(times)} if times.exists() else {}
    return SeedResult(
        method=job.method,
        seed=job.seed,
        optimum=result["optimum"],
        scores=tuple(row["score"] for row in rows),
        bests=tuple(row["best"] for row in rows),
        steps=tuple(row["steps"] for row in rows),
        # The ledger counts what finished episodes do not: replies of an attempt that failed, and further judgements of ties.
        tokens=max(result["tokens"], usage.input_tokens + usage.output_tokens - studied),
        calls=usage.calls,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        episode_tokens=sum(row.get("input_tokens", 0) + row.get("output_tokens", 0) for row in rows),
        tokens_by_episode=tuple(row.get("input_tokens", 0) + row.get("output_tokens", 0) for row in rows),
        calls_by_episode=tuple(row.get("calls", 0) for row in rows),
        # The time of an episode that began with reading a bank is mostly the reading.
        seconds=tuple(None if row.get("studied") else seconds.get(row["id"]) for row in rows),
        answer=result["answer"],
        solved=result["solved"],
        judged=earned if is_judged else (),
        unjudged=tuple(row.get("unjudged", "") if row.get("earned", 0) is None else None for row in rows),
        is_walkthrough=result.get("is_walkthrough", True),  # all that a run of an earlier version knew
        refreshes=tuple(row.get("refreshes", 0) for row in rows),  # a run of an earlier version counted none
        malformed=sum(row.get("malformed", 0) for row in rows),
        studied=studied,
        look_ups=found.steps,
        empty_look_ups=found.empty,
        nearest_miss=found.nearest_miss,
        is_stopped=job.stops_at_full_score and result.get("has_full_score", False) and len(rows) < job.episodes,
        unreadable=sum(row.get("unreadable", 0) for row in rows),
        lost_steps=sum(row.get("lost_steps", 0) for row in rows),
        work=run_work(job.folder, rows),
        tasks=tuple(row["task"] for row in rows if "task" in row),
        tool_calls=sum(row["tool_calls"] for row in rows) if all("tool_calls" in row for row in rows) else None,
        lessons=result.get("lessons"),
    )
