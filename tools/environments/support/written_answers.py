"""The common part of worlds with a written answer: one action is the whole reply, it ends the episode, and its reward is its worth."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ....memory.errors import UserError
from ....memory.records import Observation, Task
from .arguments import check_horizon, check_split, check_written_answer
from .verifying import Unverified, Workers

__all__ = ["Solvable", "VerifiedAnswer", "WrittenAnswer"]

_SPLITS = ("test", "dev", "train")


def split_seed(name: str, seed: int, split: str) -> int:
    """The seed of a drawn task, which no other split has: 3 * seed, + 1 in dev, + 2 in train.

    Raises:
        UserError: there is no such split, or the seed is negative.
    """
    check_split(name, split)
    if seed < 0:
        raise UserError(f"{name}: task seeds count from 0, got {seed}")
    return len(_SPLITS) * seed + _SPLITS.index(split)


def seed_split(name: str, task: Task) -> tuple[int, str]:
    """The seed and the split from which `split_seed` made a task's seed.

    Raises:
        UserError: the task's seed is negative.
    """
    if task.seed < 0:
        raise UserError(f"{name}: has no task {task.id} (seed {task.seed})")
    seed, place = divmod(task.seed, len(_SPLITS))
    return seed, _SPLITS[place]


class Solvable:
    """A world in which every task can be solved, and the highest score is 1."""

    solved = 1.0
    """Lowest score that counts as solved."""

    def optimum(self, task: Task) -> float:
        """The highest score, 1: every task has a solution."""
        return 1.0

    def close(self) -> None:
        """End what the world has started; here nothing."""


class WrittenAnswer(Solvable, ABC):
    """A world in which one written text is the episode.

    Args:
        name: the environment's, with its settings.
        horizon: at least 1; the text ends the episode.
    """

    def __init__(self, name: str, horizon: int) -> None:
        check_horizon(name, horizon)
        self.name, self.horizon = name, horizon

    @abstractmethod
    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The problem; after the text, the verdict on it."""

    def verify(self, task: Task, actions: Sequence[str]) -> list[float | None]:
        """The rewards of the actions: that of the text; None if its worth is unknown."""
        return [self.observe(task, actions).reward] if actions else []

    def read(self, reply: str) -> tuple[str, ...]:
        """The whole reply, as one action."""
        return (reply,)


class VerifiedAnswer(WrittenAnswer):
    """A world whose answers are checked by worker processes (see `verifying.py`), which `close` ends."""

    asked = ""
    """What a reply is, for messages: `a solution with its final answer in …`."""
    missing = ""
    """What is said of a reply without an answer."""
    workers: Workers
    """The processes that check answers; their `seconds` limit the check of one answer."""

    @abstractmethod
    def _statement(self, task: Task) -> str:
        """The text of a task's problem; a UserError if the task is of another source."""

    @abstractmethod
    def _read_answer(self, reply: str) -> str | None:
        """The answer in a reply; None if it has none."""

    @abstractmethod
    def _judge(self, task: Task, answer: str) -> tuple[float | None, str]:
        """The reward of an answer, and the reason why it is not 1; None if it cannot be verified, or Unverified is raised."""

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The problem's first words; after the reply, whether its answer is right, or why that is unknown.

        Raises:
            UserError: the reply is no text, more than one was given, or the task is of another source.
        """
        check_written_answer(self.name, task, actions)
        head = " ".join(self._statement(task).split())
        if not actions:
            return Observation(f"to solve: {head if len(head) <= 100 else head[:100] + '…'}")
        reward, text = self._verdict(task, actions[0])
        return Observation(text, (), reward, True)

    def _verdict(self, task: Task, reply: str) -> tuple[float | None, str]:
        """The reward of a reply, None if unknown, and what is said of it."""
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

    def abstract(self, observation: Observation) -> str:
        """The problem's first words."""
        return observation.text

    def close(self) -> None:
        """End the worker processes."""
        self.workers.close()

    def _ask(self, what: str, **job: Any) -> tuple[Any, str]:
        """The worker's result, or None and the reason. A failure that another try may change is raised, so that it is not cached."""
        try:
            return self.workers.ask(what, **job), ""
        except Unverified as cause:
            if cause.is_transient:
                raise
            return None, str(cause)
