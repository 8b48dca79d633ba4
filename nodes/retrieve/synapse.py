"""Whole earlier trajectories in every prompt of an episode: Synapse's exemplars (arXiv:2306.07863).

    Attempt 1:                                the most similar one first
    door black
    > mist
    = 1
    total 7
    Attempt 2 (failure; task: feed the cat):  a failure, and the text of its task if it is another one
    …
    Attempt 3:                                the running attempt
    gate wolf                                 the present observation

They are retrieved once, at the start of an episode, and are the same in all of its prompts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...memory.records import Precedent, Trajectory, Transition
from .attempts import EpisodePrompt, Layout, PromptPart
from .recollect import PrecedentMemory, ShownPrecedents

__all__ = ["Exemplars", "ExemplarsPart"]


@dataclass(frozen=True)
class Exemplars:
    """Lay out trajectories as text for prompts, within a number of tokens: the most similar first, and only whole steps."""

    memory: PrecedentMemory
    layout: Layout
    count_tokens: Callable[[str], int] = field(default=len, repr=False)
    """Tokens of a text."""
    max_tokens: int = 2**31
    """Greatest number of tokens of all trajectories together."""
    _texts: dict[tuple[str, tuple[Precedent, ...]], str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The last text by task and precedents: each prompt of an episode needs it again."""

    def __call__(self, instruction: str, precedents: Sequence[Precedent]) -> str:
        """The trajectories of these precedents, for a task with this instruction, and the header of the running attempt.

        The text is empty without precedents, or without room for one step.
        """
        asked = instruction, tuple(precedents)
        shown = self._texts.get(asked)
        if shown is None:
            shown = self._all(instruction, precedents)
            self._texts.clear()  # another thread may do so at any time
            self._texts[asked] = shown
        return shown

    def _all(self, instruction: str, precedents: Sequence[Precedent]) -> str:
        shown, number = "", 1
        for precedent in precedents:
            trajectory = self.memory.trajectory(precedent.trajectory)
            around = self.layout.frame_exemplar(number, trajectory, instruction, precedent.success)
            more = self._fitting(shown, around, trajectory, self.layout.running_head(number + 1))
            if not more:
                break
            shown, number = shown + more, number + 1
        return f"{shown}{self.layout.running_head(number)}" if shown else ""

    def _fitting(self, before: str, around: tuple[str, str], trajectory: Trajectory, after: str) -> str:
        """As many of the first steps as fit between `before` and `after`, within their frame; empty if no step fits."""
        head, end = around

        def cut(length: int) -> str:
            steps: Sequence[Transition] = trajectory.transitions[:length]
            left_out = "…\n" if length < len(trajectory.transitions) else ""
            return f"{head}{self.layout.steps(steps)}{left_out}{end}"

        fits, beyond = 0, len(trajectory.transitions) + 1  # a prefix of each length from 1 to `fits` fits, by bisection
        length = beyond - 1
        while fits < length:
            if self.count_tokens(f"{before}{cut(length)}{after}") <= self.max_tokens:
                fits = length
            else:
                beyond = length
            length = (fits + beyond) // 2
        return cut(fits) if fits else ""


@dataclass(frozen=True, kw_only=True)
class ExemplarsPart(PromptPart[ShownPrecedents]):
    """The exemplars: whole trajectories of tasks like this one."""

    exemplars: Exemplars

    def text(self, state: ShownPrecedents, prompt: EpisodePrompt) -> str:
        """The exemplars, the same at every step of an episode."""
        return self.exemplars(state["task"].instruction, state["precedents"])
