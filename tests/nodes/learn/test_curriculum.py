"""WebRL's curriculum: practice comes first, failures choose the next tasks, and only what was solved is learned."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from still_trainer import StillTrainer

from learngraph.graphs.baselines import webrl
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.claas.weights import PlayedAttempt, TrainingLog
from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.learn.curriculum import failures

ROOMS = ("red cellar", "blue attic", "green hall")


@dataclass
class Rooms:
    """A world of one step. Seed s is in room s % 3; in the red cellar nothing can be earned."""

    name: str = "rooms"
    instant: bool = True
    solved: float = 1.0
    size: int = 60
    began: list[str] = field(default_factory=list)

    def task(self, seed: int, split: str) -> Task:
        if seed >= self.size:
            raise UserError(f"rooms: {split} has {self.size} tasks")
        return Task(f"{split}-{seed}", "open it", seed)

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        room = ROOMS[task.seed % 3]
        if not actions:
            return Observation(f"you are in the {room}", ("pull", "push"))
        self.began.append(task.id)
        return Observation(room, (), float(not room.startswith("red")), True)

    def abstract(self, observation: Observation) -> str:
        return observation.text


class Certain:
    window = 1000

    def get_num_tokens(self, text: str) -> int:
        return len(text.split())

    def score(self, messages: Any, options: Any) -> list[float]:
        return [-0.1, -3.0][: len(options)]


@dataclass
class Remembering(StillTrainer):
    perplexity: float = 1.5

    def perplexities(self, version: str, attempts: Sequence[PlayedAttempt]) -> list[float]:
        return [self.perplexity for _ in attempts]


def play(world: Rooms, trainer: Remembering, log: TrainingLog, episodes: int, start: int = 0) -> dict[str, Any]:
    inputs = MethodInputs.with_scoring_model(world, Journal(), Certain())
    chosen = webrl.SelfEvolvingCurriculum(every=2, tasks=3)
    graph = run.build(webrl.build(inputs, chosen, make_trainer=lambda settings: trainer, training_log=log))
    found: dict[str, Any] = graph.invoke(run.RunInput(task=world.task(1, "test"), run="r", episode=start, episodes=episodes))
    return found


def test_failures_choose_the_tasks_of_the_next_phase() -> None:
    world, trainer, log = Rooms(), Remembering(), TrainingLog()
    out = play(world, trainer, log, 4)
    assert out["task"] == world.task(1, "test")
    assert out["scores"] == [1.0] * 4
    assert out["lengths"] == [1] * 4  # the run's own task alone is scored
    # The first phase takes the fold as it comes, the second what looks like the cellar that failed.
    assert world.began == [
        *["train-0", "train-1", "train-2", "test-1", "test-1"],
        *["train-3", "train-6", "train-9"],
        "test-1",
        "test-1",
    ]
    assert [parent for _, parent, *_ in trainer.calls] == ["", "after-0000"]
    assert trainer.loads == ["", "after-0000", "after-0002"]  # the own task is played with what was just learned
    first, second = (attempts for *_, attempts in trainer.calls)
    assert [attempt.value for attempt in first] == [1.0, 1.0]
    assert len(second) == 2  # nothing new was solved; what was solved before is replayed


def test_what_is_known_by_heart_or_absurd_is_not_replayed() -> None:
    for perplexity in (1.01, 5.0):
        trainer, log = Remembering(perplexity=perplexity), TrainingLog()
        play(Rooms(), trainer, log, 4)
        assert len(trainer.calls) == 1
        training = log.training("r", 2)
        assert training is not None
        assert training["version"] == "after-0000"
        assert training["why"] == "none of 3 tasks of the phase was solved, and no earlier one is to be replayed"


def test_a_fold_may_run_out_of_tasks_and_the_own_task_is_never_practised() -> None:
    world, log = Rooms(size=4), TrainingLog()
    play(world, Remembering(), log, 6)
    practised = [row["task"] for row in log.attempts("r", 6) if row["practice"]]
    assert practised == ["train-0", "train-1", "train-2", "train-3"]


def test_failures_are_below_the_threshold_or_the_mean() -> None:
    rows = [{"value": 0.0}, {"value": 1.0}, {"value": None}, {"value": 0.6}]
    assert failures(rows, 1.0) == [{"value": 0.0}, {"value": 0.6}]
    assert failures(rows, None) == [{"value": 0.0}]
    assert failures([], None) == []
