"""A sweep: several methods on several seeds, one run each, in worker processes, in a folder from which it can be resumed.

    <folder>/settings.json                     what was asked for; another question needs another folder
    <folder>/<method>-s<seed>/steps.jsonl      one row per step
    <folder>/<method>-s<seed>/episodes.jsonl   one row per episode
    <folder>/<method>-s<seed>/memory/          what the method remembers, if it does
    <folder>/<method>-s<seed>/checkpoints.sqlite
    <folder>/<method>-s<seed>/result.json      written last: the run is finished

A run may be killed at any point. Whoever plays it again with the same settings goes on from the last checkpoint; every id and
every random draw comes from (run, episode, step), so that the end is the same.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, ThreadPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from ...memory.errors import UserError
from ...memory.records import Task
from ...memory.storage.journal import Journal, JournalError
from ...memory.storage.rows import Rows
from .benchmark import SeedResult

# What plays a run (LangGraph, Chroma) is imported where it is needed: reading the results of a finished sweep is quick.


@dataclass(frozen=True)
class Job:
    """One method on one seed."""

    method: str
    """Its name in tables; with a preset, `jitrl:paper`."""
    seed: int
    """Which task of the environment is played."""
    episodes: int
    folder: Path
    run: str
    """Names the run in ids and random draws."""
    thread: str
    """Names it among the checkpoints."""
    memory: str
    """Directory or URL of what it remembers; empty if the method remembers nothing."""
    namespace: tuple[str, ...]
    """Of the memory's shelf."""
    checkpoints: str
    """SQLite file or Postgres URL."""
    max_run_tokens: int = 0
    """Of model calls, after which no further episode begins; 0: any number."""


class SweepEnvironment(Protocol):
    """What a sweep asks of an environment, beside playing it."""

    def task(self, seed: int, split: str = "test") -> Task: ...

    def optimum(self, task: Task) -> float: ...


@contextmanager
def claim_folder(folder: Path, settings: Mapping[str, Any]) -> Iterator[None]:
    """Hold the folder of a sweep with these settings (JSON values), made if missing.

    Raises:
        UserError: another process is at work there, or it belongs to a sweep with other settings.
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
        _check_settings(folder / "settings.json", json.loads(json.dumps(settings)))
        yield


def _check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    if not path.exists():
        write_json(path, settings)
        return
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); give another --out, or remove the folder") from error
    if differing := sorted(_differences(there, settings)):
        raise UserError(
            f"{path.parent} holds a run with other settings: {'; '.join(differing)}; "
            "give the same settings to resume it, or another --out"
        )


def _differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() | new.keys():
            yield from _differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        yield f"{name} is {json.dumps(old)} there, {json.dumps(new)} was asked for"


def write_json(path: Path, value: Any) -> None:
    """Write JSON in one piece: whoever reads sees all of it or the file before."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())  # a power cut must not leave an empty file of that name
        part.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; what was finished is kept") from error


def play_job(
    job: Job, task: Task, optimum: float, build_graph: Callable[[Any, Any, Rows, Any], Any], solved: float | None = None
) -> None:
    """Play a run to its end, from wherever it stands.

    Args:
        job: which run.
        task: what every episode is about.
        optimum: what the task's gold path scores.
        make: makes the graph of the run from a journal, a shelf of trajectories (None without memory), the log of episodes
            and a checkpointer.
        solved: the score from which the task counts as solved, if there is such a thing.
    """
    from filelock import FileLock

    from ...memory.records import Trajectory
    from ...memory.storage.checkpoints import open_checkpoints
    from ..wiring import run

    with ExitStack() as stack:
        job.folder.mkdir(parents=True, exist_ok=True)
        # A worker whose sweep was killed ends a moment after it.
        stack.enter_context(FileLock(job.folder / "owner.lock", timeout=30))
        journal = Journal(job.folder / "steps.jsonl")
        log, times = Rows(job.folder / "episodes.jsonl"), Rows(job.folder / "seconds.jsonl")
        for file in (journal, log, times):
            stack.callback(file.close)
        shelf = None
        if job.memory:
            from ...memory.storage.chroma_store import ChromaStore
            from ...memory.storage.shelf import RecordStore

            shelf = RecordStore(stack.enter_context(ChromaStore.open(job.memory)), job.namespace, Trajectory)
        saver = stack.enter_context(open_checkpoints(job.checkpoints))
        graph = build_graph(journal, shelf, log, saver)
        config: Any = {"configurable": {"thread_id": job.thread}, "recursion_limit": 1_000_000}
        if saver.get_tuple(config):
            _rewind(graph, config, job, journal, log)
        # With a checkpoint, go on from it, without a look at what is next: LangGraph says "nothing" for a node that has ended
        # and whose successor has not begun.
        plan = run.RunInput(task=task, run=job.run, episode=0, episodes=job.episodes, tokens=job.max_run_tokens)
        begin = None if saver.get_tuple(config) else plan
        started = perf_counter()
        for update in graph.stream(begin, config, stream_mode="updates", durability="async"):
            if "tally" in update:
                done, now = update["tally"]["episode"] - 1, perf_counter()
                times.append({"id": f"{job.run}/{done}", "seconds": round(now - started, 4)})
                started = now
        ended = graph.get_state(config).values
    result = {"method": job.method, "seed": job.seed, "task": task.id, "optimum": optimum, "solved": solved}
    write_json(
        job.folder / "result.json",
        {**result, "episodes": ended["episode"], "answer": ended["answer"], "tokens": ended["spent"]},
    )


def _rewind(graph: Any, config: Any, job: Job, journal: Journal, log: Rows) -> None:
    """Go back to the start of the first episode of which a power cut took steps or the score, if there is one.

    Files lose their last lines where checkpoints were already safe. Episodes are functions of (run, episode): played again,
    they are the same.
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
    """Whether there is nothing left to play."""
    if not (job.folder / "result.json").exists():
        return False
    episodes = job.folder / "episodes.jsonl"
    return episodes.exists() and len(read_rows(episodes)) == _result(job)["episodes"]


def _result(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((job.folder / "result.json").read_text(encoding="utf-8"))
    return found


def task_id(job: Job) -> str:
    """The id of the task that a finished run played."""
    return str(_result(job)["task"])


def seed_result(job: Job) -> SeedResult:
    """What a finished run did."""
    rows = sorted(read_rows(job.folder / "episodes.jsonl"), key=lambda row: int(row["episode"]))
    result = _result(job)
    if [row["episode"] for row in rows] != list(range(result["episodes"])):
        raise UserError(
            f"{job.folder}/episodes.jsonl has {len(rows)} of {result['episodes']} episodes; remove the folder and run again"
        )
    times = job.folder / "seconds.jsonl"
    seconds = {row["id"]: row["seconds"] for row in read_rows(times)} if times.exists() else {}
    return SeedResult(
        method=job.method,
        seed=job.seed,
        optimum=result["optimum"],
        scores=tuple(row["score"] for row in rows),
        bests=tuple(row["best"] for row in rows),
        steps=tuple(row["steps"] for row in rows),
        tokens=result["tokens"],
        # An episode in which a bank was read first took its time for that.
        seconds=tuple(None if row.get("studied") else seconds.get(row["id"]) for row in rows),
        answer=result["answer"],
        solved=result["solved"],
        refreshes=tuple(row.get("refreshes", 0) for row in rows),  # a run of an earlier version counted none
        malformed=sum(row.get("malformed", 0) for row in rows),
        studied=sum(row.get("studied", 0) for row in rows),
    )


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file that somebody may be writing to."""
    # A last line without its end was cut short by a crash, and its writer will write it again.
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


class ScoreFollower:
    """Reads the scores of a run while another process writes them."""

    def __init__(self, job: Job) -> None:
        self.path = job.folder / "episodes.jsonl"
        self.scores: list[float] = []
        self._at = 0

    def read_scores(self) -> list[float]:
        """All scores so far."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._at)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._at += len(line)
                    self.scores.append(json.loads(line)["score"])
        return self.scores


@contextmanager
def environment_defaults(**variables: str) -> Iterator[None]:
    """Set variables of the environment for the processes started within, where they are not set already."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def run_workers(
    batches: Sequence[Any],
    play: Callable[[Any], str | None],
    workers: int,
    tick: Callable[[], None] = lambda: None,
    concurrency: int = 1,
) -> None:
    """Have worker processes (started by spawn, living as long as there is work) call `play` on every batch.

    Args:
        batches: what to hand out, in this order; must pickle.
        play: a module's function; returns None, or in one line what went wrong.
        workers: how many processes.
        tick: called a few times a second.
        concurrency: how many batches each process plays at the same time, in threads: with more than 1, batches are dealt out
            to the processes beforehand.

    Raises:
        UserError: what went wrong first. The other workers are stopped: what they have finished is kept.
    """
    # Workers end when this pipe does: closed by us, or by the death of this process.
    listen, hold = get_context("spawn").Pipe(duplex=False)
    count = min(workers, len(batches))
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_exit_with_parent, initargs=(listen,))
    try:
        if concurrency == 1:
            pending = {pool.submit(play, batch) for batch in batches}
        else:
            pending = {pool.submit(play_in_threads, batches[n::count], play, concurrency) for n in range(count)}
        while pending:
            done, pending = wait(pending, timeout=0.3, return_when=FIRST_COMPLETED)
            tick()
            for future in done:
                try:
                    wrong = future.result()
                except BrokenProcessPool:
                    wrong = "a worker process was killed (out of memory?)"
                if wrong:
                    raise UserError(wrong)
    except BaseException:
        hold.close()  # now, because the shutdown waits for what is running
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        hold.close()


def play_in_threads(batches: Sequence[Any], play: Callable[[Any], str | None], concurrency: int) -> str | None:
    """Play batches in so many threads. Returns what went wrong first, without waiting for the others: the process will end."""
    pool = ThreadPoolExecutor(min(concurrency, len(batches)))
    try:
        played = as_completed([pool.submit(play, batch) for batch in batches])
        return next((wrong for done in played if (wrong := done.result())), None)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _exit_with_parent(listen: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what follows

    def end() -> None:
        try:
            listen.recv_bytes()
        except (EOFError, OSError):
            os._exit(1)

    threading.Thread(target=end, daemon=True).start()
