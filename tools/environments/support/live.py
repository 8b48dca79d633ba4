"""A stateful game, made a function of its history.

A game can only step forward. `LiveGames` keeps a few of them open, each with the history that led to its present state;
asked for a history, it steps the game that is nearest to it (usually all but the last action are there) or starts anew and
replays. So resuming after a crash, forking in a notebook and parallel rollouts are right by construction, and cost replayed
steps at worst.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from ....memory.errors import UserError
from ....memory.records import Observation, Task
from .arguments import check_actions, check_step

__all__ = []

_Answer = TypeVar("_Answer")


class LiveGame(Protocol):
    """A running game. Deterministic: the same actions after the same start show the same observations."""

    def step(self, action: str) -> Observation:
        """Take one action. Any exception other than a UserError means that the game is dead."""

    def close(self) -> None:
        """End the game. Never raises, even if the game is dead."""


@dataclass(eq=False)
class _Seat:
    """A live game, the history that led to its present state, and its last observation."""

    game: LiveGame
    task: Task
    actions: tuple[str, ...]
    observation: Observation


class LiveGames:
    """A bounded pool of live games of one environment; safe to share between threads.

    Args:
        name: the environment's name, for messages.
        start: starts the game of a task; returns the game and its first observation.
        horizon: the step limit; the observation after that many actions is over.
        size: number of games kept open; one for each parallel rollout avoids replays.
        free_text: True if the game accepts actions that it does not list (a parser game).
    """

    def __init__(
        self,
        name: str,
        start: Callable[[Task], tuple[LiveGame, Observation]],
        horizon: int,
        *,
        size: int = 16,
        free_text: bool = False,
    ) -> None:
        self.name = name
        self.horizon = horizon
        self.size = size
        self.free_text = free_text
        self._start = start
        self._seats: list[_Seat] = []  # oldest first
        self._lock = threading.Lock()

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The observation after this history; its reward is that of the last action.

        A game that dies on the way is replaced once, by replay.

        Raises:
            UserError: an action is not admissible, the episode was over before it, or the game died twice.
        """
        check_actions(self.name, actions)
        asked = tuple(actions)
        with self._lock:
            for known in self._seats:
                if known.actions == asked and known.task == task:
                    return known.observation
        seat = self._take(task, asked)
        try:
            return self._advance(seat, task, asked)
        except UserError:
            raise
        except Exception:
            return self._advance(None, task, asked, last=True)

    def ask(self, task: Task, actions: Sequence[str], question: Callable[[Any], _Answer]) -> _Answer:
        """A game's answer, after this history, to a question that does not change it. Raises as `observe` does."""
        asked = tuple(actions)
        while True:
            self.observe(task, asked)
            seat = self._take(task, asked)
            if seat is None:
                continue  # another thread has it just now
            try:
                if seat.actions == asked:
                    return question(seat.game)
            finally:
                self._put(seat)

    def cut_at_end(self, task: Task, actions: Sequence[str]) -> tuple[str, ...]:
        """The actions up to the one that ends the episode, at most as many as the horizon allows."""
        path = actions[: self.horizon]
        end = next((n for n in range(len(path)) if self.observe(task, path[:n]).over), len(path))
        return tuple(path[:end])

    def close(self) -> None:
        """End all live games. The next `observe` starts new ones."""
        with self._lock:
            seats, self._seats = self._seats, []
        for seat in seats:
            seat.game.close()

    def _take(self, task: Task, actions: tuple[str, ...]) -> _Seat | None:
        """Take the game with the longest matching history out of the pool, so that no other thread steps it."""
        with self._lock:
            fitting = [s for s in self._seats if s.task == task and s.actions == actions[: len(s.actions)]]
            seat = max(fitting, key=lambda s: len(s.actions), default=None)
            if seat is not None:
                self._seats.remove(seat)
            return seat

    def _put(self, seat: _Seat) -> None:
        with self._lock:
            self._seats.append(seat)
            surplus, self._seats = self._seats[: -self.size], self._seats[-self.size :]
        for old in surplus:
            old.game.close()

    def _advance(self, seat: _Seat | None, task: Task, actions: tuple[str, ...], last: bool = False) -> Observation:
        step = len(seat.actions) if seat else 0
        alive = False
        try:
            if seat is None:
                game, first = self._start(task)
                seat = _Seat(game, task, (), self._limit(first, 0))
            for step in range(len(seat.actions), len(actions)):
                self._check(seat.observation, task, step, actions[step])
                shown = self._limit(seat.game.step(actions[step]), step + 1)
                seat.actions, seat.observation = actions[: step + 1], shown
            alive = True
            return seat.observation
        except UserError:
            alive = True  # the game itself is as it was before the refused action
            raise
        except Exception as cause:
            if not last:
                raise
            where = f"step {step} ({actions[step]!r})" if step < len(actions) else "the start"
            raise UserError(
                f"{self.name}: the game of {task.id} died twice at {where}: {type(cause).__name__}: {cause}"
            ) from cause
        finally:
            if seat is not None:
                if alive:
                    self._put(seat)
                else:
                    seat.game.close()

    def _limit(self, observation: Observation, steps: int) -> Observation:
        if observation.over or steps >= self.horizon:
            return replace(observation, over=True, actions=())
        return observation

    def _check(self, observation: Observation, task: Task, step: int, action: str) -> None:
        check_step(self.name, task, step, action, over=observation.over)
        if not self.free_text and action not in observation.actions:
            listed = ", ".join(observation.actions)
            raise UserError(f"{self.name}: {action!r} is not admissible at step {step} of {task.id}: choose one of {listed}")
