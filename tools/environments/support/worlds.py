"""The common parts of worlds: known solutions, episodes that follow from their history, and written answers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

from ....memory.errors import UserError
from ....memory.records import Observation, Task
from .arguments import check_actions, check_horizon, check_split, check_step
from .live import LiveGame, LiveGames
from .verifying import Unverified, Workers

__all__ = ["LiveWorld", "Solvable", "TurnWorld", "VerifiedAnswer", "World", "WrittenAnswer"]

_SPLITS = ("test", "dev", "train")


def split_seed(name: str, seed: int, split: str) -> int:
    """The seed of a drawn task, which no other split has: 3 * seed, + 1 in dev, + 2 in train."""
    check_split(name, split)
    if seed < 0:
        raise UserError(f"{name}: task seeds count from 0, got {seed}")
    return len(_SPLITS) * seed + _SPLITS.index(split)


def seed_split(name: str, task: Task) -> tuple[int, str]:
    """The seed and the split from which `split_seed` made a task's seed."""
    if task.seed < 0:
        raise UserError(f"{name}: has no task {task.id} (seed {task.seed})")
    seed, place = divmod(task.seed, len(_SPLITS))
    return seed, _SPLITS[place]


def tidy(text: str) -> str:
    """The text without padding and empty lines, because an empty line separates the parts of an observation."""
    return "\n".join(" ".join(line.split()) for line in text.split("\n") if line.strip())


class World(ABC):
    """A world as a function of its history (`Environment` in nodes/act/episode.py).

    Args:
        name: the world's, with its settings.
        horizon: number of steps after which an episode ends, at least 1.
    """

    def __init__(self, name: str, horizon: int) -> None:
        check_horizon(name, horizon)
        self.name, self.horizon = name, horizon

    @abstractmethod
    def task(self, seed: int, split: str = "test") -> Task:
        """The `seed`-th task of a split: train, dev or test.

        Raises:
            UserError: there is no such split or task, or something has to be installed first.
        """

    @abstractmethod
    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The observation after these actions; its reward is that of the last one.

        Raises:
            UserError: an action is no text or not admissible, the episode was over before it, or the task is of another world.
        """

    def abstract(self, observation: Observation) -> str:
        """The state key of an observation: its text."""
        return observation.text

    def close(self) -> None:  # noqa: B027
        """End what the world has started; the next use starts it again. Here nothing."""


class Solvable(World):
    """A world with a known solution of every task."""

    solved: float = 1.0
    """Lowest score that counts as solved."""

    @abstractmethod
    def solution(self, task: Task) -> tuple[str, ...]:
        """Actions that earn the highest score, whatever the horizon."""

    def gold(self, task: Task) -> tuple[str, ...]:
        """The solution, cut at the horizon."""
        return self.solution(task)[: self.horizon]

    def optimum(self, task: Task) -> float:
        """The highest score; 0, which is what is known, if the horizon is too short for the solution."""
        return self.solved if self.knows_optimum(task) else 0.0

    def knows_optimum(self, task: Task) -> bool:
        """False if the horizon is too short for the solution: another way may earn something."""
        return len(self.solution(task)) <= self.horizon


class LiveWorld(World):
    """A world whose games can only step forward (`support/live.py`).

    Args:
        name: the world's, with its settings.
        horizon: number of steps after which an episode ends.
        live: number of games kept open between steps.
    """

    def __init__(self, name: str, horizon: int, live: int = 16) -> None:
        super().__init__(name, horizon)
        self._live = LiveGames(name, self._start, horizon, size=live, free_text=bool(getattr(self, "free_text", False)))

    @abstractmethod
    def _start(self, task: Task) -> tuple[LiveGame, Observation]:
        """A new game of a task, and its first observation."""

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The observation after these actions; its reward is that of the last one."""
        return self._live.observe(task, actions)

    def close(self) -> None:
        """End the open games. The next use starts new ones."""
        self._live.close()


class _Turn(Protocol):
    @property
    def over(self) -> bool:
        """True if the episode has ended."""


TurnType = TypeVar("TurnType", bound=_Turn)


class TurnWorld(Solvable, Generic[TurnType]):
    """A world of turns, each of which follows from the one before and an action. The last few thousand turns are kept."""

    takes_empty = False
    """True if white space alone is an action."""

    def __init__(self, name: str, horizon: int) -> None:
        super().__init__(name, horizon)
        self._turns = lru_cache(maxsize=4096)(self._turn_after)

    @abstractmethod
    def _first(self, task_seed: int) -> TurnType:
        """The first turn of a task, by its seed."""

    @abstractmethod
    def _next(self, before: TurnType, action: str, task_seed: int) -> TurnType:
        """The turn after an action."""

    def turn(self, task: Task, actions: Sequence[str]) -> TurnType:
        """The turn after these actions, which `observe` shows."""
        check_actions(self.name, actions)
        turn = self._turns(task.seed, ())
        for step, action in enumerate(actions):
            check_step(self.name, task, step, action, over=turn.over or step >= self.horizon, empty=self.takes_empty)
            turn = self._turns(task.seed, tuple(actions[: step + 1]))
        return turn

    def _turn_after(self, task_seed: int, actions: tuple[str, ...]) -> TurnType:
        if not actions:
            return self._first(task_seed)
        return self._next(self._turns(task_seed, actions[:-1]), actions[-1], task_seed)


class WrittenAnswer(Solvable):
    """A world in which one written text is the episode."""

    @abstractmethod
    def _ask(self, task: Task) -> str:
        """The first observation of a task; a UserError if the task is of another source."""

    @abstractmethod
    def _verdict(self, task: Task, reply: str) -> tuple[float | None, str]:
        """The reward of a text, None if its worth is unknown, and what is said of it."""

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The request; after the text, the verdict on it.

        Raises:
            UserError: the text is no text, more than one was given, or the task is of another source.
        """
        check_actions(self.name, actions)
        for step, action in enumerate(actions):
            check_step(self.name, task, step, action, over=step > 0, empty=True)
        asked = self._ask(task)
        if not actions:
            return Observation(asked)
        reward, text = self._verdict(task, actions[0])
        return Observation(text, (), reward, True)

    def knows_optimum(self, task: Task) -> bool:
        """True: one text is the episode, and a right one earns the highest score."""
        return True

    def verify(self, task: Task, actions: Sequence[str]) -> list[float | None]:
        """The rewards of the actions: that of the text; None if its worth is unknown."""
        return [self.observe(task, actions).reward] if actions else []

    def read(self, reply: str) -> tuple[str, ...]:
        """The whole reply, as one action."""
        return (reply,)


class VerifiedAnswer(WrittenAnswer):
    """A world that reads an answer in a reply, and checks it."""

    asked = ""
    """What a reply is, for messages: `a solution with its final answer in …`."""
    missing = ""
    """What is said of a reply without an answer."""
    workers: Workers | None = None
    """Processes that check answers (`verifying.py`), which `close` ends; their `seconds` limit the check of one answer."""

    @abstractmethod
    def _statement(self, task: Task) -> str:
        """The text of a task's problem; a UserError if the task is of another source."""

    @abstractmethod
    def _read_answer(self, reply: str) -> str | None:
        """The answer in a reply; None if it has none."""

    @abstractmethod
    def _judge(self, task: Task, answer: str) -> tuple[float | None, str]:
        """The reward of an answer, and the reason why it is not 1; None if it cannot be verified, or Unverified is raised."""

    def _ask(self, task: Task) -> str:
        head = " ".join(self._statement(task).split())
        return f"to solve: {head if len(head) <= 100 else head[:100] + '…'}"

    def _verdict(self, task: Task, reply: str) -> tuple[float | None, str]:
        if not reply.strip():
            return None, f"this cannot be read: {self.asked} was expected"
        answer = self._read_answer(reply)
        if answer is None:
            return 0.0, self.missing
        try:
            reward, why = self._judge(task, answer)
        except Unverified as cause:
            reward, why = None, str(cause)
        return reward, f"could not be verified: {why}" if reward is None else why or f"right: {answer}"

    def close(self) -> None:
        """End the worker processes."""
        if self.workers is not None:
            self.workers.close()
