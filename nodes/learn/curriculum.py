"""A curriculum that evolves by itself: practice on tasks of another fold, and after failures on tasks that are close to those.

graphs/baselines/webrl.py wires it. Which tasks a phase has follows from the log (memory/claas/weights.py), so a resumed run practises on
the same ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from typing_extensions import TypedDict

from ...memory.claas.weights import TrainingLog, TrainingReport
from ...memory.errors import UserError
from ...memory.records import Observation, Task
from ...memory.search.similarity import words
from ..state import EpisodeInput, TaskChannel
from .train_weights import TrainVersion, training_seed

__all__ = [
    "ImitateSolved",
    "PickTask",
    "PlanPractice",
    "PracticeChannels",
    "ReturnToTask",
    "TaskWorld",
    "route_phase",
    "route_practice",
]

CANDIDATES = 8
"""Unplayed tasks that are looked at for each task of a phase."""


class TaskWorld(Protocol):
    """A world that numbers its tasks."""

    @property
    def name(self) -> str: ...

    def task(self, seed: int, split: str) -> Task: ...

    def observe(self, task: Task, actions: Sequence[str]) -> Observation: ...


class OwnTask(TypedDict):
    """The task of the run, which is played after the practice."""

    own: Task


class PracticeLeft(TypedDict):
    """The tasks of this phase that are left."""

    practice: list[Task]


class PractisingChannel(TypedDict):
    """True while a task of the phase is played, and not the run's own."""

    practising: bool


class PracticeChannels(OwnTask, PracticeLeft, PractisingChannel):
    """The tasks to practise on before the run's own task is played."""


class PracticeProgress(PracticeLeft, PractisingChannel):
    """The tasks of this phase that are left, and whether one of the phase was played."""


class PickedTask(TaskChannel, PracticeProgress):
    """The task to play now."""


class ResumedTask(TaskChannel, PractisingChannel):
    """The run's own task, to be played now."""


@dataclass(frozen=True)
class PlanPractice:
    """At the start of a phase choose its tasks: close to those that failed in the phase before, and further ones of the fold.

    Close are the unplayed tasks whose instruction and first observation share most words with those of a failed one. A phase
    without failures before it takes the next tasks of the fold. Other episodes have no practice.
    """

    role: ClassVar[str] = "environment"

    environment: TaskWorld
    log: TrainingLog
    every: int
    """Episodes of a phase; its practice comes before the first."""
    count: int
    """Tasks of a phase."""
    threshold: float | None
    """The return from which a task is solved; None: the mean of the phase."""
    split: str = "train"
    """The fold of the practice tasks."""

    def __call__(self, state: EpisodeInput) -> PracticeChannels:
        own, episode = state["task"], state["episode"]
        tasks = [] if episode % self.every else self._tasks(state["run"], episode, own)
        return {"own": own, "practice": tasks, "practising": False}

    def _tasks(self, run: str, episode: int, own: Task) -> list[Task]:
        rows = [row for row in self.log.attempts(run, until=episode - 1) if row["practice"]]
        known = {own.id, *(row["task"] for row in rows)}
        fresh, seed = list[Task](), 0
        while len(fresh) < self.count * (CANDIDATES if rows else 1):
            try:
                task = self.environment.task(seed, self.split)
            except UserError:  # the fold has no more tasks
                break
            seed += 1
            if task.id not in known:
                known.add(task.id)
                fresh.append(task)
        last = [row for row in rows if row["episode"] == episode - self.every]
        failed = [
            self._first_sight(Task(row["task"], row["instruction"], row["seed"])) for row in failures(last, self.threshold)
        ]
        if failed and len(fresh) > self.count:
            close = {task.id: max(_share(self._first_sight(task), text) for text in failed) for task in fresh}
            fresh.sort(key=lambda task: -close[task.id])  # of equal ones the first of the fold
        return fresh[: self.count]

    def _first_sight(self, task: Task) -> str:
        return f"{task.instruction}\n{self.environment.observe(task, ()).text}"


def _share(one: str, other: str) -> float:
    """The share of the words of two texts that both have: their Jaccard similarity."""
    a, b = set(words(one)), set(words(other))
    return len(a & b) / max(1, len(a | b))


def failures(rows: Sequence[Mapping[str, Any]], threshold: float | None) -> list[Mapping[str, Any]]:
    """The attempts that did not reach the threshold, or the mean of all if there is none; those without a return are no failures."""
    known = [row for row in rows if row["value"] is not None]
    bar = threshold if threshold is not None else sum(row["value"] for row in known) / max(1, len(known))
    return [row for row in known if row["value"] < bar - 1e-9]


@dataclass(frozen=True)
class PickTask:
    """Take the next task of the phase."""

    role: ClassVar[str] = "compute"

    def __call__(self, state: PracticeLeft) -> PickedTask:
        first, *rest = state["practice"]
        return {"task": first, "practice": rest, "practising": True}


@dataclass(frozen=True)
class ReturnToTask:
    """Go back to the run's own task."""

    role: ClassVar[str] = "compute"

    def __call__(self, state: OwnTask) -> ResumedTask:
        return {"task": state["own"], "practising": False}


def route_phase(state: PracticeLeft) -> Literal["practise", "play"]:
    """Router: does this episode begin with practice?"""
    return "practise" if state["practice"] else "play"


def route_practice(state: PracticeProgress) -> Literal["next task", "train", "over"]:
    """Router: is there another task of the phase, was it the last one, or was it the run's own?"""
    if not state["practising"]:
        return "over"
    return "next task" if state["practice"] else "train"


@dataclass(frozen=True)
class ImitateSolved(TrainVersion):
    """Train the next version on the tasks that were solved in this phase, and on earlier ones that it finds neither new nor obvious.

    Earlier attempts are replayed if the perplexity of their actions lies within the bounds: what the model knows by heart teaches
    nothing more, and what it finds absurd would pull it far away (arXiv:2411.02337, section 2.3).
    """

    threshold: float | None = None
    """The return from which a task is solved; None: above the mean of the phase."""
    least_perplexity: float = field(default=1 / 0.95)
    most_perplexity: float = field(default=1 / 0.5)

    def train(self, run: str, episode: int, parent: str, version: str) -> TrainingReport:
        rows = self.log.attempts(run, until=episode)
        phase = [row for row in rows if row["episode"] == episode]
        solved = self._solved(phase)
        earlier = [row for row in rows if row["episode"] < episode and row["practice"]]
        replayed = [self.reader.attempt(row) for row in self._solved(earlier)]
        found = zip(replayed, self.trainer.perplexities(parent, replayed) if replayed else (), strict=True)
        kept = [attempt for attempt, value in found if self.least_perplexity <= value <= self.most_perplexity]
        chosen = [*(self.reader.attempt(row) for row in solved), *kept]
        if not chosen:
            return TrainingReport(
                parent, f"none of {len(phase)} tasks of the phase was solved, and no earlier one is to be replayed"
            )
        return self.trainer.imitate(parent, version, chosen, training_seed(run, episode))

    def _solved(self, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The attempts that reached the threshold; without one, those above the mean of their phase."""
        solved = list[Mapping[str, Any]]()
        for episode in sorted({row["episode"] for row in rows}):
            phase = [row for row in rows if row["episode"] == episode and row["value"] is not None]
            mean = sum(row["value"] for row in phase) / max(1, len(phase))
            bar = mean + 1e-9 if self.threshold is None else self.threshold - 1e-9
            solved += [row for row in phase if row["value"] > bar]
        return solved
