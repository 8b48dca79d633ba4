"""Playing recorded runs again without asking a model, up to the first difference of each.

The model's answers come from the run's `replies.jsonl`; the world, the memory and every node work as they did. So a difference
tells of changed code, of a changed world, or of a folder that was edited. Nothing is written into the folder.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from pydantic import TypeAdapter

from ...memory.claas.weights import TrainingLog
from ...memory.display import short
from ...memory.errors import CommandError, UserError
from ...memory.records import Trajectory
from ...memory.storage.journal import Journal
from ...memory.storage.record_store import RecordStore
from ...memory.storage.rows import Rows
from ...nodes.recorded_model import RecordedChatModel
from ...tools.notebook.walk import Walk
from ..arms import Arm
from ..methods import find_method
from .explain import find_step
from .folder import Job, Sweep
from .options import RunOptions
from .play import RunFiles, run_graph
from .recorded import RecordedFolder, RecordedRun, read_rows
from .run_inputs import loads_model, shared_environment, shared_model

__all__ = ["Divergence", "Replayed", "replay_runs", "step_from"]

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
        replies = read_rows(job.folder / "replies.jsonl")
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
    graph, files, plan = _open_again(job, memory, replies, episodes)
    config: Any = {"configurable": {"thread_id": job.run}, "recursion_limit": 1_000_000}
    for update in graph.stream(plan, config, stream_mode="updates"):
        if "tally" in update:
            row = files.log.values()[-1]
            yield row, files.journal.rows(str(row["head"]))


def _open_again(
    job: Job, memory: Any, replies: Sequence[Mapping[str, Any]], episodes: int, *, walked: bool = False
) -> tuple[Any, RunFiles, dict[str, Any]]:
    """The graph of a run on files in memory, and its input. One that is walked asks the model, too, what the record does not know."""
    record, memory = Rows(), memory if job.arm.method.has_memory else None
    for row in replies:
        record.append(row)
    files = RunFiles(Journal(details=None), Rows(), Rows(), record, memory, InMemorySaver(), TrainingLog())
    environment = shared_environment(job.options.env, job.options.horizon)
    model = None
    if loads_model(job.arm, job.options):
        late = _OpenedLate(lambda: shared_model(job.options.model, job.model_options())) if walked else None
        model = RecordedChatModel(record, late, asks_late=walked)
    task = environment.task(job.seed, job.options.split)
    plan = {"task": task, "run": job.run, "episode": 0, "episodes": episodes, "tokens": 0}
    return run_graph(job, environment, files, model, walked=walked), files, plan


class _OpenedLate:
    """A model that is opened when it is asked for the first time."""

    def __init__(self, open: Callable[[], Any]) -> None:
        self._model = cache(open)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model(), name)


def step_from(
    run_folder: Path | str, step: int, *, seed: int | None = None, episode: int | None = None, method: str | None = None
) -> Walk:
    """A walk that stands before an action of a recorded run: `step`, `edit`, `fork` and `finish` go on from there, live.

    What led there is played again from the run's replies, in this process's memory; the folder stays as it is. What the run was never
    asked, its model is asked now. `out` leads to the run around the episode.

    Args:
        run_folder: a folder that `learngraph run` has made.
        step: number of the step within its episode, from 0.
        seed: as in `explain_step`, like what follows.
        episode: number of the episode.
        method: the method.

    Raises:
        UserError: there is no such step, or it cannot be played again up to there: its weights changed, or the code or the world did
            (it names the first difference).
    """
    found = find_step(Path(run_folder), step, seed, episode, method)
    sweep, name = _sweep(found.folder.path, found.folder.settings), found.run.method
    assert found.run.seed is not None
    job, memory, number = sweep.job(name, found.run.seed), _empty_memory(), int(found.row["episode"])
    if job.arm.method.trains_weights or job.arm.method.has_training_phase:
        raise UserError(
            f"a run of {name} is not walked: what it learned lies in weights or in a phase of its own before its episodes"
        )
    for earlier in sweep.seeds[: sweep.seeds.index(job.seed)] if job.arm.shares_memory else ():
        _replay_job(sweep.job(name, earlier), memory)
    replies = read_rows(job.folder / "replies.jsonl")
    if not replies and loads_model(job.arm, job.options):
        raise UserError(f"{job.folder.name} has no replies.jsonl: it was played before the model's answers were recorded")
    graph, files, plan = _open_again(job, memory, replies, number + 1, walked=True)
    config: Any = {"configurable": {"thread_id": job.run}, "recursion_limit": 1_000_000}
    for given in [plan, *[None] * number]:  # up to the pause before the episode
        graph.invoke(given, config, interrupt_before=["episode"], durability="exit")
    walk = Walk(graph, config).into("episode")
    while walk.until("act").inside and walk.state["step"] < step:
        pass
    rows = found.rows[:-1]
    played = files.journal.rows(str(walk.state["head"])) if walk.inside else []
    different = _first_difference(number, rows, played)
    if different is None and walk.state["action"] != found.row["action"]:
        different = Divergence(number, step, "action", found.row["action"], walk.state["action"])
    if different is not None:
        raise UserError(f"{job.folder.name} cannot be walked from there: it plays otherwise now, at {different}")
    return walk


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
