"""Step-MFT from run folders (AdaMEM, section 3.3): a bank of trajectories to start from, and the strategies of runs that helped.

nodes/synthesize/mft.py has the filters and the advantage, tools/training/sft.py the training, graphs/cli/adamem.py the commands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langchain_core.runnables import Runnable

from ...memory.errors import UserError
from ...memory.records import Strategy, Task, Trajectory, Transition, Usage
from ...memory.storage.journal import Journal
from ...nodes.act.choose import Choose
from ...nodes.act.episode import build_transition, replay_actions
from ...nodes.retrieve.attempts import EpisodePrompt
from ...nodes.synthesize import mft
from ...nodes.synthesize.strategy import StrategyPrompt
from ..adamem import ACT, DRAFT
from ..wiring.inputs import MethodInputs
from .folder_settings import read_sweep_settings, run_stem
from .steps import read_rows

__all__ = [
    "CollectedRuns",
    "CounterfactualAgent",
    "SavedRun",
    "collect_strategies",
    "estimate_advantages",
    "play_walkthroughs",
    "read_trajectories",
]


@dataclass(frozen=True)
class SavedRun:
    """One run of one method on one task, as read from its folder."""

    folder: Path
    seed: int
    settings: Mapping[str, Any]
    """The settings of the whole run folder."""
    method_settings: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]
    episodes: Sequence[Mapping[str, Any]]
    """The rows of the episodes that have ended."""
    solved: float | None
    """The score from which the task counts as solved; None while the run goes on, or if there is no such score."""


def read_runs(folder: Path) -> list[SavedRun]:
    """The runs in a folder that `learngraph run` has made.

    Raises:
        UserError: the folder is no run folder, is damaged, or has no run that has begun.
    """
    settings = read_sweep_settings(folder)
    methods = {run_stem(name): held for name, held in settings["methods"].items()}
    found = []
    try:
        for log in sorted(folder.glob("*/episodes.jsonl")):
            named = re.fullmatch(r"(.+)-s(\d+)", log.parent.name)
            if named is None or not (log.parent / "steps.jsonl").exists():
                continue
            result = log.parent / "result.json"
            solved = json.loads(result.read_text(encoding="utf-8")).get("solved") if result.exists() else None
            episodes = sorted(read_rows(log), key=lambda row: int(row["episode"]))
            steps = read_rows(log.parent / "steps.jsonl")
            found.append(SavedRun(log.parent, int(named[2]), settings, methods.get(named[1], {}), steps, episodes, solved))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder} cannot be read: {type(error).__name__}: {error}") from error
    if not found:
        raise UserError(f"{folder} has no run that has begun")
    return found


# Banks


def play_walkthroughs(environment: Any, tasks: Sequence[Task]) -> list[Trajectory]:
    """The trajectories of the environment's own walkthroughs."""
    names = [f"gold:{environment.name}:{task.id}" for task in tasks]
    return [
        replay_actions(environment, task, environment.gold(task), run=name) for task, name in zip(tasks, names, strict=True)
    ]


def read_trajectories(folder: Path, environment: Any) -> list[Trajectory]:
    """The trajectories of all finished episodes in a run folder, with the environment's rewards.

    Runs and ids begin with the folder's name, since the next run of the same method uses the same names for its own. What the
    agents' memory holds, with the rewards of a judge, is written by `learngraph memory export`.

    Raises:
        UserError: the folder is no run folder, no run in it has begun, or the environment's tasks have changed.
    """
    return [trajectory for run in read_runs(folder) for trajectory in _run_trajectories(run, environment)]


def _run_trajectories(run: SavedRun, environment: Any) -> Iterator[Trajectory]:
    task, journal = environment.task(run.seed, run.settings["split"]), Journal()
    ends, name = {row["id"]: row.get("last_observation", "") for row in run.steps}, run.folder.resolve().parent.name
    for row in run.steps:
        journal.append(row["parent"], Transition(row["state"], row["action"], row["reward"], row.get("observation", "")))
    for row in run.episodes:
        if row["task"] != task.id:
            raise UserError(f"{run.folder} played {row['task']}, and task {run.seed} of {environment.name} is {task.id} now")
        yield Trajectory(
            id=f"{name}:{row['id']}",
            task=task,
            transitions=tuple(step for step in journal.history(row["head"]) if not step.is_lost),
            run=f"{name}:{row['run']}",
            episode=row["episode"],
            score=row["score"],
            domain=environment.name,
            last_observation=ends.get(row["head"], ""),
        )


# Strategies


@dataclass(frozen=True)
class CollectedRuns:
    """The strategies of the runs of a folder."""

    runs: tuple[mft.CollectedPairs, ...]
    """Of each run in mode `high`."""
    left_out: Mapping[str, int]
    """Kind of run -> number of runs without drafts that were made without a strategy."""
    split: str

    @property
    def pairs(self) -> list[mft.Pair]:
        """The strategies of all runs."""
        return [pair for run in self.runs for pair in run.pairs]


def collect_strategies(folder: Path) -> CollectedRuns:
    """The strategies that the agents of a run folder wrote, each with draft, action and score.

    Raises:
        UserError: the folder is no run folder, or no run in it was in mode `high`.
    """
    found, others, split = [], dict[str, int](), "train"
    for run in read_runs(folder):
        method, split = run.method_settings, run.settings["split"]
        if method.get("mode") != "high":
            kind = f"mode {method['mode']}" if method.get("mode") else "other methods"
            others[kind] = others.get(kind, 0) + 1
            continue
        threshold = method.get("success_threshold")
        solved = run.solved if threshold is None else threshold
        domain = re.split("[?:]", run.settings["env"])[0]
        found.append(mft.collect_pairs(run.steps, run.episodes, solved=solved, seed=run.seed, split=split, domain=domain))
    if not found:
        raise UserError(f"{folder} has no run of adamem in mode high, and so no strategies to collect; run adamem --mode high")
    return CollectedRuns(tuple(found), others, split)


def estimate_advantages(
    pairs: Sequence[mft.Pair], environment: Any, again: CounterfactualAgent, rollouts: int, seed: int
) -> list[tuple[mft.Pair, mft.Advantage]]:
    """Pairs with their estimated advantages; pairs with a missing reward are left out.

    Raises:
        UserError: a pair is of a task that the environment does not have.
    """
    found = []
    for pair in pairs:
        task = environment.task(pair.seed, pair.split)
        if task.id != pair.task:
            raise UserError(
                f"pair {pair.id} is of task {pair.task}; task {pair.seed} of {environment.name}, {pair.split}, is {task.id}"
            )
        if (estimate := mft.advantage(environment, task, pair, again, rollouts, str(seed))) is not None:
            found.append((pair, estimate))
    return found


@dataclass
class CounterfactualAgent:
    """The agent of a run in mode `high`, which can be put in any situation and asked for its action there.

    It is the `Policy` of `mft.advantage`.
    """

    inputs: MethodInputs
    """Environment, model and prompts, as in the run."""
    history_steps: int | None = None
    """Earlier steps of the episode that prompts show, as in the run; None: all of them."""
    temperature: float = 1.0
    """Temperature of the softmax that actions are drawn from, as in the run."""
    _at: dict[tuple[str, ...], tuple[str, Any]] = field(default_factory=dict, repr=False)
    """Actions -> the head of the journal and the observation after them, of the task played last."""
    _task: str = ""

    def __post_init__(self) -> None:
        seen: dict[str, Any] = dict(self.inputs.prompt_arguments()) | {"max_steps": self.history_steps}
        self._draft: Any = self.inputs.acting_policy(EpisodePrompt(**seen), DRAFT)
        self._act: Any = self.inputs.acting_policy(StrategyPrompt(**seen), ACT)

    def __call__(self, task: Task, actions: Sequence[str], name: str, advice: str = "") -> str:
        """The action after these actions, under the strategy `advice` if there is one. `name` seeds the draw."""
        if task.id != self._task:
            self._task = task.id
            self._at.clear()
        head, observation = self._after(task, tuple(actions))
        score = sum(step.reward or 0.0 for step in self.inputs.journal.history(head))
        place: dict[str, Any] = {"task": task, "run": name, "episode": 0, "step": len(actions), "head": head, "score": score}
        state = place | {"observation": observation, "strategy": Strategy(advice) if advice else None, "usage": Usage()}
        node = self._act if advice else self._draft
        proposed = node.invoke(state) if isinstance(node, Runnable) else node(state)
        choose: Any = Choose(self.temperature)
        return str(choose({**state, **proposed})["action"])

    def _after(self, task: Task, actions: tuple[str, ...]) -> tuple[str, Any]:
        """The head of the journal and the observation after some actions."""
        if actions not in self._at:
            environment, journal = self.inputs.environment, self.inputs.journal
            after = environment.observe(task, actions)
            head = journal.start("again", 0, task.id)
            if actions:
                head, before = self._after(task, actions[:-1])
                head = journal.append(head, build_transition(environment, before, actions[-1], after.reward))
            self._at[actions] = head, after
        return self._at[actions]
