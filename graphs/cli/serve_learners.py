"""Learners of `learngraph serve`: one that starts in the background, and one that takes turns with the replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from threading import Event, Thread
from typing import Any

from ...memory.errors import UserError
from ...memory.records import Correction, Exchange, Measured, Minibatch, Update

__all__ = ["InlineLearner", "LazyLearner"]


class LazyLearner:
    """A learner that starts in the background while chats are answered: at low priority a start may take a while.

    Args:
        base: fingerprint of the base model that it must have.
        make: opens it.
    """

    def __init__(self, base: str, make: Callable[[], Any]) -> None:
        self.base, self._make = base, make
        self._learner: Any = None
        self._error: Exception | None = None
        self._settled, self._closed = Event(), False
        self._begin()

    def correct(self, batch: Minibatch) -> Correction:
        """See `AdapterLearner.correct`; waits until the learner has started."""
        found: Correction = self._await_learner().correct(batch)
        return found

    def step(self, batch: Minibatch, correction: Correction) -> Update:
        """See `AdapterLearner.step`; waits until the learner has started."""
        found: Update = self._await_learner().step(batch, correction)
        return found

    def measure(self, label: str, exchanges: Sequence[Exchange]) -> Measured:
        """See `AdapterLearner.measure`; waits until the learner has started."""
        found: Measured = self._await_learner().measure(label, exchanges)
        return found

    def close(self) -> None:
        """End the learner. One that is still starting ends with this process."""
        self._closed = True
        self._settled.set()
        if self._learner is not None:
            self._learner.close()

    def _begin(self) -> None:
        self._error = None
        self._settled.clear()
        Thread(target=self._open_learner, name="learner", daemon=True).start()

    def _open_learner(self) -> None:
        try:
            made = self._make()
            if made.base != self.base or self._closed:
                made.close()
                raise UserError(f"it has base model {made.base}, the engine {self.base}")
            self._learner = made
        except Exception as error:
            self._error = error
        finally:
            self._settled.set()

    def _await_learner(self) -> Any:
        self._settled.wait()
        if self._closed:
            raise RuntimeError("the learner is closed")
        if (error := self._error) is not None:
            self._begin()  # for the next call
            raise RuntimeError(f"the learner cannot be started: {error}") from error  # not the minibatch's fault
        return self._learner


class InlineLearner:
    """A learner that works on the engine's thread, which owns the network, in turns with the replies.

    Args:
        learner: does the work.
        engine: its `run` runs a function on its thread; it belongs to the event loop that runs now.
    """

    def __init__(self, learner: Any, engine: Any) -> None:
        self._learner, self._engine, self._loop = learner, engine, asyncio.get_running_loop()
        self.base: str = learner.base

    def correct(self, batch: Minibatch) -> Correction:
        """See `AdapterLearner.correct`."""
        found: Correction = self._turn(partial(self._learner.correct, batch))
        return found

    def step(self, batch: Minibatch, correction: Correction) -> Update:
        """See `AdapterLearner.step`."""
        found: Update = self._turn(partial(self._learner.step, batch, correction))
        return found

    def measure(self, label: str, exchanges: Sequence[Exchange]) -> Measured:
        """See `AdapterLearner.measure`."""
        found: Measured = self._turn(partial(self._learner.measure, label, exchanges))
        return found

    def _turn(self, work: Callable[[], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(self._engine.run(work), self._loop).result()
