"""Playing recorded runs again without asking a model, up to the first difference of each.

The model's answers come from the run's `replies.jsonl`; the world, the memory and every node work as they did. So a difference
tells of changed code, of a changed world, or of a folder that was edited. Nothing is written into the folder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from pydantic import TypeAdapter

from ...memory.claas.weights import TrainingLog
from ...memory.display import short
from ...memory.errors import CommandError, UserError
from ...memory.records import Trajectory
from ...memory.storage.checkpoints import serializer
from ...memory.storage.journal import Journal
from ...memory.storage.record_store import RecordStore
from ...memory.storage.rows import Rows
from ...nodes.recorded_model import RecordedChatModel
from ..arms import Arm
from ..methods import find_method
from .folder import Job, Sweep
from .options import RunOptions
from .play import RunFiles, run_graph
from .recorded import RecordedFolder, RecordedRun, read_rows, rows_file
from .run_inputs import loads_model, shared_environment

__all__ = ["Divergence", "Replayed", "replay_runs"]

NOT_COMPARED = ("id", "parent", "head", "run")
"""Fields of rows that only name other rows."""


@dataclass(frozen=True)
class Divergence:
    """The first difference between a run and its replay."""

    episode: int
    step: int | None
    """None: in the row about the whole episode."""
    field: str
    was: Any
    now: Any

    def __str__(self) -> str:
        place = f"episode {self.episode}" + ("" if self.step is None else f", step {self.step}")
        return f"{place}, {self.field}: was {short(repr(self.was), 100)}, is {short(repr(self.now), 100)}"


@dataclass(frozen=True)
class Replayed:
    """The outcome of one run's replay. `str` gives a line."""

    run: str
    episodes: int = 0
    """Episodes that were played again and are the same."""
    steps: int = 0
    divergence: Divergence | None = None
    problem: str = ""
    """The reason for which it could not be played again, or not to its end; empty if it could."""

    def __str__(self) -> str:
        same = f"{self.episodes} episodes, {self.steps} steps are the same"
        if self.divergence is not None:
            return f"{self.run}: differs at {self.divergence} ({same} before)"
        if self.problem:
            return f"{self.run}: {self.problem}" + (f" ({same} before)" if self.steps else "")
        return f"{self.run}: {same}"


def replay_runs(run_folder: Path | str, method: str | None = None, seed: int | None = None) -> Iterator[Replayed]:
    """Play the runs of a folder again, one after the other.

    Args:
        run_folder: a folder that `learngraph run` has made.
        method: only this method, as the run called it.
        seed: only the run of this seed.

    Raises:
        UserError: there is no such folder, method or seed; names those that there are.
    """
    folder = RecordedFolder(Path(run_folder))
    for what, wanted in (("method", method), ("seed", seed)):
        if wanted is not None:
            folder.check(what, wanted)
    sweep = _sweep(folder.path, folder.settings)
    for name in sweep.arms if method is None else [method]:
        is_shared, memory = sweep.arms[name].shares_memory, _empty_memory()
        for number in sweep.seeds if seed is None or is_shared else [seed]:
            outcome = _replay_job(sweep.job(name, number), memory if is_shared else _empty_memory())
            if seed in (None, number):
                yield outcome


def _sweep(folder: Path, record: Mapping[str, Any]) -> Sweep:
    """The folder's runs, with the options and settings that they were played with."""
    known = {one.name for one in fields(RunOptions)}
    given: dict[str, Any] = {name: value for name, value in record.items() if name in known}
    given |= {name: Path(given[name]) for name in ("prompts", "reference") if given.get(name) is not None}
    given["seeds"] = ",".join(map(str, record["seeds"])) + ","
    try:
        temperatures = record.get("paper_temperatures", {})
        arms = {
            name: Arm(name, TypeAdapter(find_method(name).settings).validate_python(values), name, temperatures.get(name))
            for name, values in record["methods"].items()
        }
        return Sweep(RunOptions(**given), arms, folder, tuple(record["seeds"]))
    except (TypeError, ValueError) as error:
        raise CommandError(f"{folder}/settings.json cannot be read ({error}); it may be of another version") from error


def _empty_memory() -> Any:
    return RecordStore(InMemoryStore(), ("replay",), Trajectory)


def _replay_job(job: Job, memory: Any) -> Replayed:
    """Play one run again, episode by episode, up to the first difference."""
    run = RecordedRun(job.folder, job.arm.name, job.seed)
    name = job.folder.name
    try:
        run.refresh()
        episodes = run.read_episodes()
        asked = job.folder / "replies.jsonl"
        replies = read_rows(asked) if rows_file(asked).is_file() else []
    except FileNotFoundError:
        return Replayed(name, problem="no episode of it is finished yet")
    except (UserError, OSError) as error:
        return Replayed(name, problem=f"its files are damaged: {error}")
    if damaged := [f"{count} lines of {file}" for file, count in run.damaged.items() if count]:
        return Replayed(name, problem=f"its files are damaged: {' and '.join(damaged)}")
    if not episodes:
        return Replayed(name, problem="no episode of it is finished yet")
    if job.arm.method.trains_weights:
        return Replayed(name, problem="its weights changed as it played; the same command in another folder plays it again")
    if not replies and loads_model(job.arm, job.options):
        return Replayed(name, problem="it has no replies.jsonl: it was played before the model's answers were recorded")
    done = count = 0
    try:
        played = _play_again(job, memory, replies, len(episodes))
        for (number, was), (row, made) in zip(episodes.items(), played, strict=False):
            path = run.rows(number)
            if not path or "/" not in str(path[0]["parent"]) or path[-1]["id"] != was["head"]:
                return Replayed(name, done, count, problem=f"its steps.jsonl lacks steps of episode {number}")
            found = _first_difference(number, path, made) or _row_difference(number, None, was, row)
            if found is not None:
                return Replayed(name, done, count, found)
            done, count = done + 1, count + len(made)
    except UserError as error:
        return Replayed(name, done, count, problem=f"the replay stops in episode {done}: {error}")
    if done < len(episodes):
        return Replayed(name, done, count, problem=f"the replay ends before episode {done}, which the run has")
    return Replayed(name, done, count)


def _play_again(
    job: Job, memory: Any, replies: Sequence[Mapping[str, Any]], episodes: int
) -> Iterator[tuple[Mapping[str, Any], list[Mapping[str, Any]]]]:
    """(row about the episode, rows of its steps) of every episode, as it is played now, in memory."""
    journal, log, record = Journal(details=None), Rows(), Rows()
    for row in replies:
        record.append(row)
    memory = memory if job.arm.method.has_memory else None
    files = RunFiles(journal, log, Rows(), record, memory, InMemorySaver(serde=serializer()), TrainingLog())
    environment = shared_environment(job.options.env, job.options.horizon)
    model = RecordedChatModel(record) if loads_model(job.arm, job.options) else None
    graph = run_graph(job, environment, files, model)
    task = environment.task(job.seed, job.options.split)
    plan = {"task": task, "run": job.run, "episode": 0, "episodes": episodes, "tokens": 0}
    config: Any = {"configurable": {"thread_id": job.run}, "recursion_limit": 1_000_000}
    for update in graph.stream(plan, config, stream_mode="updates"):
        if "tally" in update:
            row = log.values()[-1]
            yield row, journal.rows(str(row["head"]))


def _first_difference(episode: int, was: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> Divergence | None:
    """The first difference between an episode's steps."""
    for step, (old, new) in enumerate(zip(was, now, strict=False)):
        if (found := _row_difference(episode, step, old, new)) is not None:
            return found
    return None if len(was) == len(now) else Divergence(episode, None, "number of steps", len(was), len(now))


def _row_difference(episode: int, step: int | None, was: Mapping[str, Any], now: Mapping[str, Any]) -> Divergence | None:
    plain = json.loads(json.dumps(now))
    for name in dict.fromkeys((*was, *plain)):
        if name not in NOT_COMPARED and (found := _difference(name, was.get(name), plain.get(name))) is not None:
            return Divergence(episode, step, *found)
    return None


def _difference(place: str, was: Any, now: Any) -> tuple[str, Any, Any] | None:
    """(place, old, new) of the first difference between two values of JSON; numbers may differ by rounding."""
    if isinstance(was, dict) and isinstance(now, dict):
        pairs = [(f"{place}.{key}", was.get(key), now.get(key)) for key in dict.fromkeys((*was, *now))]
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        pairs = [(f"{place}[{i}]", a, b) for i, (a, b) in enumerate(zip(was, now, strict=True))]
    else:
        numbers = isinstance(was, int | float) and isinstance(now, int | float)
        same = math.isclose(was, now, rel_tol=1e-9, abs_tol=1e-12) if numbers else was == now
        return None if same else (place, was, now)
    return next((found for pair in pairs if (found := _difference(*pair)) is not None), None)
