"""Recollect what was done in states like the present one, and show it: AdaMEM's retrieval from its long-term memory.

Experience 1: success         how that trajectory ended (left out where nobody knows)
door black                    the past state
> mist                        what was done there
= 1                           what that earned
gate troll                    the rest of that trajectory
> lamp
= 1
total 7                       its return
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from ...memory.records import Precedent, Task, Trajectory, Transition
from ...memory.storage.journal import Journal
from ...memory.trajectories import OutcomeFilter
from ..act.episode import Environment
from ..act.policies import steps_text
from ..state import EpisodeChannels, PrecedentChannels
from .attempts import EpisodePrompt, Layout

__all__ = ["Excerpts", "PrecedentMemory", "PrecedentsPrompt", "Recollect", "key_of"]


_LAYOUT = Layout()


class PrecedentMemory(Protocol):
    """What is asked of a long-term memory: `memory.trajectories.Trajectories`."""

    def key(self, task: Task, before: Sequence[Transition], state: str, /) -> str: ...

    def trajectory(self, id: str, /) -> Trajectory: ...

    def search(
        self,
        key: str,
        k: int,
        *,
        kind: OutcomeFilter,
        min_similarity: float,
        per_trajectory: int,
        diversity: float,
        distinct: bool,
        domain: str,
        before: tuple[str, int] | None,
    ) -> list[Precedent]: ...


def key_of(memory: PrecedentMemory, environment: Environment, journal: Journal, state: Mapping[str, Any]) -> str:
    """phi(s_t): the key of the present state."""
    return memory.key(state["task"], journal.history(state["head"]), environment.abstract(state["observation"]))


@dataclass(frozen=True)
class Excerpts:
    """Writes precedents into prompts, within a number of tokens.

    The past state, the past action and how it ended always stay: what does not fit is taken from the rest of the
    trajectories first, then from long states, then the least similar precedents go.
    """

    memory: PrecedentMemory
    count_tokens: Callable[[str], int] = field(default=len, repr=False)
    """Tokens of a text."""
    max_tokens: int = 2**31
    """Tokens of all of them together."""
    max_following_steps: int = 8
    """Steps shown of what followed, at most."""
    clip: int = 400
    """Characters of a past state, at most."""
    _sizes: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Tokens by text: neighbours come again and again."""

    def __call__(self, precedents: Sequence[Precedent]) -> str:
        """The experiences; empty if there are none, or no room for one."""
        return self._fitting(precedents)[1]

    def fitting_precedents(self, precedents: Sequence[Precedent]) -> list[Precedent]:
        """Those of them that there is room for."""
        return list(precedents[: self._fitting(precedents)[0]])

    def _fitting(self, precedents: Sequence[Precedent]) -> tuple[int, str]:
        """How many there is room for, and their text."""
        forms = (
            (self.max_following_steps, self.clip),
            (self.max_following_steps // 2, self.clip),
            (1, self.clip),
            (0, self.clip // 4),
        )
        told = [[self._one(n, p, rest, clip) for n, p in enumerate(precedents, 1)] for rest, clip in forms]
        for some in range(len(precedents), 0, -1):
            for texts in told:
                if sum(map(self._size, texts[:some])) <= self.max_tokens:
                    return some, "".join(texts[:some])
        return 0, ""

    def _size(self, text: str) -> int:
        size = self._sizes.get(text)
        if size is None:
            if len(self._sizes) > 10_000:
                self._sizes.clear()
            size = self._sizes[text] = self.count_tokens(text) + 1  # tokens may merge across the seam of two texts, or fail to
        return size

    def _one(self, number: int, precedent: Precedent, rest: int, clip: int) -> str:
        trajectory = self.memory.trajectory(precedent.trajectory)
        step, *after = trajectory.transitions[precedent.step : precedent.step + 1 + rest]
        state = step.state if len(step.state) <= clip else step.state[:clip].rstrip() + "…"
        told = steps_text([replace(step, state=state)]) + _LAYOUT.steps(after)  # of later states, their first lines
        ended = {True: " success", False: " failure", None: ""}[precedent.success]
        return f"Experience {number}:{ended}\n{told}{_LAYOUT.total(trajectory)}"


class RecollectState(EpisodeChannels, PrecedentChannels):
    """A situation, and what was consulted in the episode so far."""


@dataclass(frozen=True)
class Recollect:
    """E_ret: the k steps of remembered trajectories whose states are most similar to the present one.

    Those that there is no room to show are left out: nobody is to act on what was not read. What the run itself did in this episode or later stays hidden, so that a resumed or forked episode finds what the first one
    found. None are found where nothing is alike enough, or while it is too early to tell situations apart.
    """

    role: ClassVar[str] = "memory"
    is_blocking: ClassVar[bool] = False

    memory: PrecedentMemory
    environment: Environment
    journal: Journal
    k: int = 4
    kind: OutcomeFilter = "all"
    min_similarity: float = 0.0
    """The least similarity."""
    max_per_trajectory: int = 1
    """Steps from one trajectory at most; 0: any number."""
    diversity: float = 0.0
    """Maximal marginal relevance: 0 takes the most similar ones, higher ones that differ from each other."""
    min_steps: int = 0
    """Steps of an episode before the first search: a start says little about what will be needed."""
    distinct: bool = False
    """Of steps with the same key and action, only the newest: they say the same."""
    excerpts: Excerpts | None = None
    """How they will be shown, if they will be."""

    def __call__(self, state: RecollectState) -> dict[str, Any]:
        if state["step"] < self.min_steps:
            return {"precedents": []}
        found = self.memory.search(
            key_of(self.memory, self.environment, self.journal, state),
            self.k,
            kind=self.kind,
            min_similarity=self.min_similarity,
            per_trajectory=self.max_per_trajectory,
            diversity=self.diversity,
            distinct=self.distinct,
            domain=self.environment.name,
            before=(state["run"], state["episode"]),
        )
        if self.excerpts is not None:
            found = self.excerpts.fitting_precedents(found)
        used = [*state["used"], *(precedent.trajectory for precedent in found)]
        return {"precedents": found, "used": list(dict.fromkeys(used))}


@dataclass(frozen=True, kw_only=True)
class PrecedentsPrompt(EpisodePrompt):
    """The episode so far under the raw experiences: AdaMEM without a strategy."""

    excerpts: Excerpts

    def text_before(self, state: PrecedentChannels) -> str:  # type: ignore[override]
        """The precedents."""
        return self.excerpts(state["precedents"])
