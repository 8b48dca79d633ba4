"""`learngraph explain RUN_FOLDER --step N`: why a method took an action, from what the folder of its run holds.

Of JitRL all numbers are computed again from its memory as it was; of other methods the journal tells (explain_recorded.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional

from ...memory.errors import CommandError, UserError
from ..experiments.play import credits_future
from ..experiments.run_folder import run_memory
from .flags import parse_flags

if TYPE_CHECKING:
    from ...memory.records import Observation, Task, Trajectory
    from ...memory.returns.experiences import Experiences
    from ...memory.search.similarity import Similarity
    from ..experiments.decisions import Explanation
    from ..jitrl import JitRL

__all__ = ["RecordedDecision", "explain", "explain_step", "read_decision"]


@dataclass(frozen=True)
class ExplainOptions:
    """Options of `learngraph explain`: the run, and the step whose action is explained."""

    run_folder: Positional[Path]
    """A folder that `learngraph run` has made."""
    step: int
    """Number of the step within its episode, from 0."""
    run_seed: int | None = None
    """The seed of the run that is explained; the first if not given."""
    episode: int | None = None
    """Number of the episode, from 0; the last one with a step if not given."""
    method: str | None = None
    """The method, as the run called it (`jitrl`, `jitrl:paper`); the first one that is JitRL, or else the first, if not given."""


def explain(args: Sequence[str]) -> int:
    """Print why an action was taken. Returns the exit status."""
    options = parse_flags(
        ExplainOptions,
        args,
        "learngraph explain",
        "Why did the agent take this action? What was remembered of states like this one, what that made of each action's value and "
        "logit, and what it would have done without. Of other methods than JitRL: as far as the run's journal tells.",
    )
    print(explain_step(options.run_folder, options.step, seed=options.run_seed, episode=options.episode, method=options.method))
    return 0


def explain_step(
    run_folder: Path | str, step: int, *, seed: int | None = None, episode: int | None = None, method: str | None = None
) -> Explanation:
    """Explain one decision of a run: sentences and two tables, which show themselves in a notebook.

    Args:
        run_folder: a folder that `learngraph run` has made.
        step: number of the step within its episode, from 0.
        seed: the seed of the run; the first if not given.
        episode: number of the episode, from 0; the last one with a step if not given.
        method: the method, as the run called it; the first one that is JitRL, or else the first, if not given.

    Raises:
        UserError: there is no such folder, method, seed, episode or step (it says which there are), or a process has the memory of
            JitRL's run open.
    """
    from ..experiments.decisions import explain_decision
    from ..experiments.folder_settings import read_sweep_settings

    folder = Path(run_folder)
    names = list(read_sweep_settings(folder)["methods"])
    chosen = method or next((name for name in names if _is_jitrl(name)), names[0] if names else "")
    if chosen not in names:
        raise CommandError(f"{folder} has no runs of {method} to explain; it has {', '.join(names)}")
    if not _is_jitrl(chosen):
        return _explain_recorded(folder, chosen, step, seed, episode)
    decision = read_decision(folder, step, seed, episode, method)
    shown = explain_decision(decision.state, decision.settings, decision.memory, decision.domain)
    if decision.changes:
        shown = replace(shown, sentences=(_changed(decision.changes), *shown.sentences))
    return shown


def _is_jitrl(name: str) -> bool:
    return name.partition(":")[0] == "jitrl"


def _explain_recorded(folder: Path, method: str, step: int, seed: int | None, episode: int | None) -> Explanation:
    """A step of another method, as far as its journal tells."""
    from ...memory.errors import UserError
    from ..experiments.folder_settings import read_sweep_settings
    from ..methods import find_method
    from .explain_recorded import explain_row

    options = read_sweep_settings(folder)
    run_name, memory_name = _run_names(folder, options, method, seed)
    row, before = _find_step(folder / run_name, step, episode)
    run = before[0]["parent"].removesuffix(f"/{row['episode']}/{row['task']}")
    settings, known = options["methods"][method], find_method(method)
    remembered: list[Trajectory] | str = []
    try:
        if known.has_memory:
            remembered = _trajectories(*run_memory(folder, options.get("memory"), memory_name), f"{run}/{row['episode']}")
    except UserError as error:
        remembered = f"The memory cannot be read now ({error}), so the recalled steps stand without their states."
    return explain_row(run_name, row, remembered, known.has_memory, settings.get("temperature") or 1.0)


def _run_names(folder: Path, options: Mapping[str, Any], method: str, seed: int | None) -> tuple[str, str]:
    """The names of a run and of its memory."""
    from ..experiments.folder_settings import run_stem

    seeds = options["seeds"]
    if seed is not None and seed not in seeds:
        raise CommandError(f"{folder} has no seed {seed}; it has {', '.join(map(str, seeds))}")
    seed = seeds[0] if seed is None else seed
    run_name = f"{run_stem(method)}-s{seed}"
    shared = options["methods"][method].get("cross_task", False)
    return run_name, run_name.removesuffix(f"-s{seed}") if shared else run_name


@dataclass(frozen=True)
class RecordedDecision:
    """A decision as the run made it, and what its memory held then."""

    state: Mapping[str, Any]
    """The channels of JitRL's graph before the action was taken."""
    settings: JitRL
    memory: Experiences
    """The run's memory without what was stored after the decision."""
    domain: str
    """Name of the environment."""
    changes: tuple[str, ...]
    """The actions of which the memory says something else today than the journal; empty if it was left as it was."""


def read_decision(
    folder: Path, step: int, seed: int | None = None, episode: int | None = None, method: str | None = None
) -> RecordedDecision:
    """Read one decision of a run, and compute again what JitRL's nodes made of its memory. Arguments as for `explain_step`.

    Raises:
        UserError: see `explain_step`.
    """
    from ...memory.records import Candidate, Estimate, Observation, Task
    from ...memory.storage.journal import Journal
    from ..experiments.folder_settings import read_sweep_settings
    from ..jitrl import VARIANT_NODES

    options = read_sweep_settings(folder)
    name, settings = _jitrl_settings(folder, options["methods"], method)
    run_name, memory_name = _run_names(folder, options, name, seed)
    row, before = _find_step(folder / run_name, step, episode)
    journal, task = Journal(), Task(row["task"], "")
    run = before[0]["parent"].removesuffix(f"/{row['episode']}/{task.id}")
    head = _replay(journal, before)
    trajectories = _trajectories(*run_memory(folder, options.get("memory"), memory_name), f"{run}/{row['episode']}")
    memory = settings.memory(
        credits_future=credits_future(options.get("judge", "environment")), similarity=_state_similarity(options["env"])
    )
    for trajectory in trajectories:
        memory.add(trajectory)
    world = _RecordedWorld(_domain(trajectories, task.id) or options["env"])
    after = [Candidate(**one) for one in row["candidates"]]
    estimates = [Estimate(**one) for one in row["estimates"]]
    state: dict[str, Any] = {
        "task": task,
        "run": run,
        "episode": row["episode"],
        "step": step,
        "head": head,
        "observation": Observation(row["state"]),
        "candidates": [replace(c, logit=z) for c, z in zip(after, row["prior"], strict=True)],
    }
    nodes: Mapping[str, Any] = VARIANT_NODES[settings.advantage_estimator](settings, memory, world, journal)
    for node in ("recall", "advise", "modulate"):
        state |= nodes[node](state)
    changes = tuple(
        then.action
        for then, now, z, z_now in zip(estimates, state["estimates"], after, state["candidates"], strict=True)
        if not all(
            math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
            for a, b in ((then.count, now.count), (then.value, now.value), (then.shift, now.shift), (z.logit, z_now.logit))
        )
    )
    state |= {"candidates": after, "prior": row["prior"], "estimates": estimates, "action": row["action"]}
    return RecordedDecision(state, settings, memory, world.name, changes)


def _state_similarity(spec: str) -> Similarity | None:
    """The comparison of states that the environment of a run asks for; None where it has none, or cannot be opened here."""
    from ...tools.environments.catalogue import open_environment

    try:
        environment = open_environment(spec)
    except UserError:
        return None
    similarity: Similarity | None = getattr(environment, "state_similarity", None)
    getattr(environment, "close", lambda: None)()
    return similarity


@dataclass(frozen=True)
class _RecordedWorld:
    """A world of which only the name is known; its states are those that the journal holds."""

    name: str

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        raise NotImplementedError("a recorded world is not played")

    def abstract(self, observation: Observation) -> str:
        return observation.text


def _jitrl_settings(folder: Path, methods: Mapping[str, Mapping[str, Any]], method: str | None) -> tuple[str, JitRL]:
    """The name of a method of the folder that is JitRL, and its settings."""
    from ..jitrl import JitRL

    known = [name for name in methods if name.partition(":")[0] == "jitrl"]
    if not known:
        raise CommandError(
            f"{folder} has no runs of jitrl, whose journal alone holds what an action was chosen by; it has {', '.join(methods)}"
        )
    if method is not None and method not in known:
        raise CommandError(f"{folder} has no runs of {method} to explain; it has {', '.join(known)}")
    name = method or known[0]
    names = {one.name for one in fields(JitRL)}
    return name, JitRL(**{key: value for key, value in methods[name].items() if key in names})


def _find_step(run: Path, step: int, episode: int | None) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    """The journal's row of a step, and the rows of its episode up to it."""
    from ..experiments.jsonl import read_rows

    rows = {row["id"]: row for row in read_rows(run / "steps.jsonl")} if (run / "steps.jsonl").is_file() else {}
    if not rows:
        raise CommandError(f"{run} holds no steps yet")
    # The last row of an episode ends the way that was kept: one that went back in a power cut wrote its steps again.
    last = {row["episode"]: id for id, row in rows.items()}
    if (run / "episodes.jsonl").is_file():
        last |= {row["episode"]: row["head"] for row in read_rows(run / "episodes.jsonl") if row["head"] in rows}
    if episode is not None and episode not in last:
        raise CommandError(f"{run} has no episode {episode}; it has {_span(min(last), max(last))}")
    chosen = max(last) if episode is None else episode
    path: list[Mapping[str, Any]] = []
    id = last[chosen]
    while id in rows:
        path.append(rows[id])
        id = rows[id]["parent"]
    path.reverse()
    if not 0 <= step < len(path):
        raise CommandError(f"episode {chosen} of {run} has no step {step}; it has {_span(0, len(path) - 1)}")
    return path[step], path[: step + 1]


def _span(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"


def _replay(journal: Any, rows: Sequence[Mapping[str, Any]]) -> str:
    """Write the steps before the last of these rows into a journal; returns the head that they end with."""
    from ...memory.records import Transition

    head: str = rows[0]["parent"]
    for row in rows[:-1]:
        head = journal.append(head, Transition(row["state"], row["action"], row["reward"], row.get("observation", "")))
    return head


def _trajectories(place: str, namespace: tuple[str, ...], episode: str) -> list[Trajectory]:
    """The contents of a memory when this episode (`<run>/<number>`) was played, oldest first."""
    from ...memory.records import Trajectory
    from ...memory.storage.open_store import open_store
    from ...memory.storage.record_store import RecordStore

    if "://" not in place and not (Path(place) / "chroma.sqlite3").is_file():
        return []  # the first episode is not over
    with open_store(place) as store:
        found = RecordStore(store, namespace, Trajectory).all()
    ids = [trajectory.id for trajectory in found]
    return found[: ids.index(episode)] if episode in ids else found


def _domain(trajectories: Sequence[Trajectory], task: str) -> str:
    """The environment's name, by what was remembered of this task or else of others; empty if nothing was."""
    names = [one.domain for one in trajectories if one.task.id == task] or [one.domain for one in trajectories]
    return names[-1] if names else ""


def _changed(actions: Sequence[str]) -> str:
    return (
        f"The memory says something else today than it said then of {', '.join(map(repr, actions))} (it was pruned or written by "
        "another version): the candidates' numbers below are those of then, the remembered steps those of today."
    )
