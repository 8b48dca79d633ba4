"""The pause of a model that fails again and again: a critic's, or a strategist's."""

import time

__all__ = ["BackOff"]

FIRST_PAUSE = 60.0
"""Seconds after the second failure in a row; they double with each further one, up to `LONGEST_PAUSE`."""
LONGEST_PAUSE = 3600.0


class BackOff:
    """The time from which a model is asked again, by its failures in a row."""

    def __init__(self) -> None:
        self.resume_at = 0.0
        """By the monotonic clock."""
        self._failures = 0

    @property
    def seconds_left(self) -> float:
        """Seconds for which the model is still left alone."""
        return max(0.0, self.resume_at - time.monotonic())

    def note_failure(self) -> None:
        """Note that it has failed."""
        self._failures += 1
        if self._failures > 1:
            self.resume_at = time.monotonic() + min(FIRST_PAUSE * 2.0 ** (self._failures - 2), LONGEST_PAUSE)

    def note_answer(self) -> None:
        """Note that it has answered: it is asked again at once."""
        self._failures, self.resume_at = 0, 0.0
