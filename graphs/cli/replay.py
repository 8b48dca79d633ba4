"""`learngraph replay RUN_FOLDER`: play recorded runs again without asking a model, and report the first difference of each.

The model's answers come from the run's `replies.jsonl`; the world, the memory and every node work as they did. So a difference
tells of changed code, of a changed world, or of a folder that was edited. Nothing is written into the folder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from tyro.conf import Positional

from ...memory.errors import CommandError
from .flags import parse_flags

if TYPE_CHECKING:
    from ..experiments.options import SweepSetup
    from ..experiments.sweep import Job

__all__ = ["Divergence", "Replayed", "replay", "replay_runs"]

NOT_COMPARED = ("id", "parent", "head", "run")
"""Fields of rows that only name other rows."""


@dataclass(frozen=True)
class ReplayOptions:
    """Options of `learngraph replay`: the folder, and which of its runs are played again."""

    run_folder: Positional[Path]
    """A folder that `learngraph run` has made."""
    method: str | None = None
    """The method, as the run called it; all if not given."""
    run_seed: int | None = None
    """The seed of the run; all if not given."""


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
        return f"{place}, {self.field}: was {_shown(self.was)}, is {_shown(self.now)}"


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


def replay(args: Sequence[str]) -> int:
    """Play runs again. Returns the exit status: 0 if all are the same, 1 if one differs, 2 if one cannot be played."""
    about = (
        "Play recorded runs again, with the model's recorded answers, and report the first difference: step, field, was, is."
    )
    options = parse_flags(ReplayOptions, args, "learngraph replay", about)
    worst = 0
    for one in replay_runs(options.run_folder, options.method, options.run_seed):
        print(one, flush=True)
        worst = max(worst, 2 if one.problem else 1 if one.divergence else 0)
    return worst


def replay_runs(run_folder: Path | str, method: str | None = None, seed: int | None = None) -> Iterator[Replayed]:
    """Play the runs of a folder again, one after the other.

    Args:
        run_folder: a folder that `learngraph run` has made.
        method: only this method, as the run called it.
        seed: only the run of this seed.

    Raises:
        UserError: there is no such folder, method or seed; names those that there are.
    """
    from ..experiments.folder_settings import read_sweep_settings
    from ..experiments.run_folder import make_job, shares_memory

    folder = Path(run_folder)
    record = read_sweep_settings(folder)
    names, seeds = list(record["methods"]), list(record["seeds"])
    for what, wanted, known in (("method", method, names), ("seed", seed, seeds)):
        if wanted is not None and wanted not in known:
            raise CommandError(f"{folder} has no {what} {wanted}; it has {', '.join(map(str, known))}")
    setup = _setup(folder, record)
    for name in names if method is None else [method]:
        shelf = None
        for number in seeds if seed is None or shares_memory(setup, name) else [seed]:
            job = make_job(setup, folder, name, number)
            shelf = shelf if shelf is not None and shares_memory(setup, name) else _empty_shelf()
            outcome = _replay_job(setup, job, shelf)
            if seed in (None, number):
                yield outcome


def _setup(folder: Path, record: Mapping[str, Any]) -> SweepSetup:
    """The options and settings with which the folder's runs were played."""
    from ..experiments.options import RunOptions, SweepSetup
    from ..methods import find_method

    known = {one.name for one in fields(RunOptions)}
    given: dict[str, Any] = {name: value for name, value in record.items() if name in known}
    given |= {name: Path(given[name]) for name in ("prompts", "reference") if given.get(name) is not None}
    given["seeds"] = ",".join(map(str, record["seeds"])) + ","
    try:
        methods = {name: _typed(find_method(name).settings, values) for name, values in record["methods"].items()}
        return SweepSetup(RunOptions(**given), methods, record.get("paper_temperatures", {}))
    except (TypeError, ValueError) as error:
        raise CommandError(f"{folder}/settings.json cannot be read ({error}); it may be of another version") from error


def _typed(settings: Any, values: Mapping[str, Any]) -> Any:
    """The settings of a method from JSON values: lists become tuples where the settings hold tuples, objects become settings."""
    hints, given = get_type_hints(settings), {}
    for one in fields(settings):
        if one.name in values:
            value = values[one.name]
            if isinstance(value, dict) and hasattr(hints[one.name], "__dataclass_fields__"):
                value = _typed(hints[one.name], value)
            given[one.name] = _tuples(value)
    return settings(**given)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _empty_shelf() -> Any:
    from langgraph.store.memory import InMemoryStore

    from ...memory.records import Trajectory
    from ...memory.storage.record_store import RecordStore

    return RecordStore(InMemoryStore(), ("replay",), Trajectory)


def _replay_job(setup: SweepSetup, job: Job, shelf: Any) -> Replayed:
    """Play one run again, episode by episode, up to the first difference."""
    from ...memory.errors import UserError
    from ..experiments.play import loads_model
    from ..experiments.run_rows import steps_to
    from ..methods import find_method

    name = job.folder.name
    try:
        episodes = sorted(_rows(job.folder / "episodes.jsonl").values(), key=lambda row: int(row["episode"]))
        steps, replies = _rows(job.folder / "steps.jsonl"), _rows(job.folder / "replies.jsonl")
    except (UserError, ValueError, KeyError, TypeError) as error:
        return Replayed(name, problem=f"its files are damaged: {error}")
    if not episodes:
        return Replayed(name, problem="no episode of it is finished yet")
    if find_method(job.method).trains_weights:
        return Replayed(name, problem="its weights changed as it played; the same command in another folder plays it again")
    if not replies and loads_model(job.method, setup.options):
        return Replayed(name, problem="it has no replies.jsonl: it was played before the model's answers were recorded")
    done = count = 0
    try:
        for was, (row, made) in zip(episodes, _play_again(setup, job, shelf, replies, len(episodes)), strict=False):
            path = steps_to(steps, str(was["head"]))
            if path is None:
                return Replayed(name, done, count, problem=f"its steps.jsonl lacks steps of episode {was['episode']}")
            found = _first_difference(int(was["episode"]), path, made) or _row_difference(int(was["episode"]), None, was, row)
            if found is not None:
                return Replayed(name, done, count, found)
            done, count = done + 1, count + len(made)
    except UserError as error:
        return Replayed(name, done, count, problem=f"the replay stops in episode {done}: {error}")
    if done < len(episodes):
        return Replayed(name, done, count, problem=f"the replay ends before episode {done}, which the run has")
    return Replayed(name, done, count)


def _play_again(
    setup: SweepSetup, job: Job, shelf: Any, replies: Mapping[str, Any], episodes: int
) -> Iterator[tuple[Mapping[str, Any], list[Mapping[str, Any]]]]:
    """(row about the episode, rows of its steps) of every episode, as it is played now, in memory."""
    from langgraph.checkpoint.memory import InMemorySaver

    from ...memory.claas.weights import TrainingLog
    from ...memory.storage.checkpoints import serializer
    from ...memory.storage.journal import Journal
    from ...memory.storage.rows import Rows
    from ...nodes.recorded_model import RecordedChatModel
    from ..experiments.play import loads_model, run_graph, shared_environment
    from ..experiments.sweep import RunFiles
    from ..methods import find_method

    journal, log, record = Journal(details=None), Rows(), Rows()
    for row in replies.values():
        record.append(row)
    shelf = shelf if find_method(job.method).has_memory else None
    files = RunFiles(journal, log, Rows(), record, shelf, InMemorySaver(serde=serializer()), TrainingLog())
    environment = shared_environment(setup.options.env, setup.options.horizon)
    model = RecordedChatModel(record) if loads_model(job.method, setup.options) else None
    graph = run_graph(setup, job, environment, files, model)
    task = environment.task(job.seed, setup.options.split)
    plan = {"task": task, "run": job.run, "episode": 0, "episodes": episodes, "tokens": 0, "full_score": None}
    config: Any = {"configurable": {"thread_id": job.run}, "recursion_limit": 1_000_000}
    for update in graph.stream(plan, config, stream_mode="updates"):
        if "tally" in update:
            row = log.values()[-1]
            yield row, journal.rows(str(row["head"]))


def _rows(path: Path) -> dict[str, Mapping[str, Any]]:
    """The complete rows of a file by id; empty if there is no file."""
    from ..experiments.jsonl import read_rows

    if not path.is_file():
        return {}
    try:
        return {str(row["id"]): row for row in read_rows(path)}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} has a line that is no row with an id ({error})") from error


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


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:99] + "…"
