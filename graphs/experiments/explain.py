"""Why a method took an action of a recorded run, from what the folder holds.

Of JitRL all numbers are computed again from its memory as it was; of other methods the journal tells. No model is asked.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ...memory.attempts.trajectories import return_to_go
from ...memory.display import short
from ...memory.errors import CommandError, UserError
from ...memory.records import Candidate, Estimate, Observation, Task, Trajectory, Transition
from ...memory.returns.experiences import Experiences
from ...memory.storage.journal import Journal
from ...memory.storage.open_store import open_store
from ...memory.storage.record_store import RecordStore
from ...nodes.act.choose import softmax
from ..jitrl import VARIANT_NODES, JitRL
from ..methods import Method, find_method, split_name
from .decisions import Explanation, explain_decision
from .folder import run_memory
from .recorded import RecordedFolder, RecordedRun, rows_file
from .run_inputs import credits_future

__all__ = ["explain_step"]


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
    found = find_step(Path(run_folder), step, seed, episode, method)
    if not _is_jitrl(found.run.method):
        return _explain_journal(found)
    decision = compute_again(found)
    shown = explain_decision(decision.state, decision.settings, decision.memory, decision.domain)
    if decision.changes:
        shown = replace(shown, sentences=(_changed(decision.changes), *shown.sentences))
    return shown


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


def _is_jitrl(method: str) -> bool:
    return split_name(method)[0] == "jitrl"


@dataclass(frozen=True)
class _Step:
    """A step of a recorded run."""

    folder: RecordedFolder
    run: RecordedRun
    rows: Sequence[Mapping[str, Any]]
    """The rows of its episode up to the step."""

    @property
    def row(self) -> Mapping[str, Any]:
        return self.rows[-1]

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the method."""
        found: Mapping[str, Any] = self.folder.settings["methods"][self.run.method]
        return found

    @property
    def run_id(self) -> str:
        """The name of the run in ids."""
        return str(self.rows[0]["parent"]).removesuffix(f"/{self.row['episode']}/{self.row['task']}")

    def remembered(self) -> list[Trajectory]:
        """The contents of the run's memory when the step's episode was played, oldest first."""
        shared, name = self.settings.get("cross_task", False), self.run.path.name
        place, namespace = run_memory(
            self.folder.path, self.folder.settings.get("memory"), name.rpartition("-s")[0] if shared else name
        )
        if "://" not in place and not (Path(place) / "chroma.sqlite3").is_file():
            return []  # the first episode is not over
        with open_store(place) as store:
            found = RecordStore(store, namespace, Trajectory).all()
        ids, episode = [trajectory.id for trajectory in found], f"{self.run_id}/{self.row['episode']}"
        return found[: ids.index(episode)] if episode in ids else found


def find_step(path: Path, step: int, seed: int | None = None, episode: int | None = None, method: str | None = None) -> _Step:
    """The step that arguments as for `explain_step` name."""
    folder = RecordedFolder(path)
    names = list(folder.settings["methods"])
    run = folder.find(method or next(filter(_is_jitrl, names), names[0] if names else ""), seed)
    if rows_file(run.path / "steps.jsonl").is_file():
        run.refresh()
    if not len(run):
        raise CommandError(f"{run.path} holds no steps yet")
    if episode is not None and episode not in run.episodes:
        raise CommandError(f"{run.path} has no episode {episode}; it has {_span(run.episodes)}")
    chosen = max(run.episodes) if episode is None else episode
    count = len(run.steps(chosen))
    if not isinstance(step, int) or step not in range(count):
        raise CommandError(f"episode {chosen} of {run.path} has no step {step!r}; it has {_span(range(count))}")
    return _Step(folder, run, run.rows(chosen, step + 1))


def _span(numbers: Sequence[int]) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


# JitRL: computed again


def compute_again(found: _Step) -> RecordedDecision:
    """A decision of JitRL, with what its nodes make of its memory now."""
    row, options = found.row, found.folder.settings
    journal, task = Journal(), Task(row["task"], "")
    head = str(found.rows[0]["parent"])
    for one in found.rows[:-1]:
        head = journal.append(head, Transition(one["state"], one["action"], one["reward"], one.get("observation", "")))
    names = {one.name for one in fields(JitRL)}
    settings = JitRL(**{key: value for key, value in found.settings.items() if key in names})
    memory = settings.memory(
        credits_future=credits_future(options.get("judge", "environment")), similarity=_state_similarity(options["env"])
    )
    trajectories = found.remembered()
    for trajectory in trajectories:
        memory.add(trajectory)
    domains = [one.domain for one in trajectories if one.task.id == task.id] or [one.domain for one in trajectories]
    world = _RecordedWorld((domains or [""])[-1] or options["env"])
    after = [Candidate(**one) for one in row["candidates"]]
    estimates = [Estimate(**one) for one in row["estimates"]]
    state: dict[str, Any] = {
        "task": task,
        "run": found.run_id,
        "episode": row["episode"],
        "step": len(found.rows) - 1,
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


def _state_similarity(spec: str) -> Any:
    """The comparison of states that the environment of a run asks for; None where it has none, or cannot be opened here."""
    from ...tools.environments.catalogue import open_environment

    try:
        environment = open_environment(spec)
    except UserError:
        return None
    similarity = getattr(environment, "state_similarity", None)
    getattr(environment, "close", lambda: None)()
    return similarity


@dataclass(frozen=True)
class _RecordedWorld:
    """A world of which only the name is known; its states are in the journal."""

    name: str

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        raise NotImplementedError("a recorded world is not played")

    def abstract(self, observation: Observation) -> str:
        return observation.text


def _changed(actions: Sequence[str]) -> str:
    return (
        f"The memory says something else today than it said then of {', '.join(map(repr, actions))} (it was pruned or written by "
        "another version): the candidates' numbers below are those of then, the remembered steps those of today."
    )


# Other methods: from the journal


def _explain_journal(found: _Step) -> Explanation:
    method = find_method(found.run.method)
    try:
        remembered: list[Trajectory] | str = found.remembered() if method.has_memory else []
    except UserError as error:
        remembered = f"The memory cannot be read now ({error}), so the recalled steps stand without their states."
    return explain_row(found.run.path.name, found.row, remembered, method, found.settings.get("temperature") or 1.0)


def explain_row(
    name: str, row: Mapping[str, Any], remembered: Sequence[Trajectory] | str, method: Method, temperature: float = 1.0
) -> Explanation:
    """Say what is on record of a step.

    Args:
        name: name of the run.
        row: the journal's row of the step.
        remembered: what the memory held then, oldest first; or the reason for which it cannot be read.
        method: the method that took it.
        temperature: the temperature of the action's draw.
    """
    reward = "its reward is not known" if row["reward"] is None else f"its reward was {row['reward']:g}"
    place = f"Episode {row['episode']}, step {row['step']} of {name} (task {row['task']})"
    sentences = [f"{place}: in the state {_short(row['state'])!r} the agent took {row['action']!r}; {reward}."]
    precedents = row.get("precedents")
    if not method.has_memory:
        sentences.append("The method remembers nothing, so it would have done the same without a memory.")
    elif not method.needs_model:
        sentences.append("The method asks no model: what its memory told it is in the candidates' numbers.")
    elif precedents is None:
        sentences.append(
            "The journal does not record what of its memory stood in this step's prompt, so what the memory changed cannot be told "
            "without asking the model."
        )
    else:
        sentences += _recalled(row, precedents)
    if isinstance(remembered, str):
        sentences.append(remembered)
    table = _precedent_rows(precedents or (), () if isinstance(remembered, str) else remembered)
    return Explanation(tuple(sentences), table, _candidate_rows(row, temperature))


def _recalled(row: Mapping[str, Any], precedents: Sequence[Mapping[str, Any]]) -> list[str]:
    if precedents:
        most = precedents[0]["similarity"]
        sentences = [f"{len(precedents)} remembered steps were recalled, the most similar with {most:.3g}."]
    else:
        near = row.get("nearest_similarity")
        more = f"; the nearest had a similarity of {near:.3g}" if near else ""
        sentences = [f"Nothing was recalled at this step{more}."]
    if strategy := row.get("strategy"):
        sentences.append(f"The strategy at this step, written at step {strategy['step']}: {_short(strategy['text'], 300)!r}.")
    tentative = row.get("tentative")
    before = f"Before it recalled anything it would have taken {tentative!r}"
    if tentative is None:
        before = (
            "The agent drafted no action before it looked into its memory, so what it would have done without is not on record."
        )
    elif tentative == row["action"]:
        before += " as well: memory did not change this action."
    else:
        before += ": memory changed this action."
    return [*sentences, before]


def _precedent_rows(precedents: Sequence[Mapping[str, Any]], remembered: Sequence[Trajectory]) -> tuple[tuple[str, ...], ...]:
    """A header, and a row for each recalled step: similarity, what was done there, what followed, and its age in episodes."""
    known = {one.id: one for one in remembered}
    ages = {one.id: number for number, one in enumerate(reversed(remembered))}
    rows = [("state", "action", "similarity", "return from there", "age in episodes", "step")]
    for one in precedents:
        trajectory, step = known.get(one["trajectory"]), one["step"]
        similarity, place = f"{one['similarity']:.3g}", f"{one['trajectory']}, step {step}"
        if trajectory is None or step >= len(trajectory.transitions):
            rows.append(("not in the memory any more", "", similarity, "", "", place))
            continue
        ahead, there = return_to_go(trajectory, step), trajectory.transitions[step]
        value = "" if ahead is None else f"{ahead:.3g}"
        rows.append((_short(there.state), there.action, similarity, value, str(ages[trajectory.id] + 1), place))
    return tuple(rows)


def _candidate_rows(row: Mapping[str, Any], temperature: float) -> tuple[tuple[str, ...], ...]:
    found = row.get("candidates") or []
    rows = [("action", "logit", "probability")]
    chances = softmax([one["logit"] for one in found], temperature) if found else []
    for one, chance in sorted(zip(found, chances, strict=True), key=lambda pair: -pair[1]):
        taken = "* " if one["action"] == row["action"] else ""
        rows.append((f"{taken}{one['action']}", f"{one['logit']:.3g}", f"{chance:.3g}"))
    return tuple(rows)


def _short(text: str, limit: int = 80) -> str:
    return short(" ".join(text.split()), limit)
