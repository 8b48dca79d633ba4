"""Recollect past steps in states like the present one, and show them: AdaMEM's retrieval from its long-term memory.

Experience 1: success         the outcome of that trajectory (left out if unknown)
door black                    the past state
> mist                        the past action
= 1                           its reward
gate troll                    the rest of that trajectory
> lamp
= 1
total 7                       its return
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Protocol

from typing_extensions import TypedDict

from ...memory.attempts.trajectories import OutcomeFilter
from ...memory.records import Precedent, Task, Trajectory, Transition
from ...memory.storage.journal import Journal
from ..act.episode import Environment
from ..act.policies import steps_text
from ..fence import escape_tags
from ..state import HeadChannel, PrecedentsChannel, Situation, TaskChannel
from ..text import clip_text
from .attempts import EpisodePrompt, Layout, PromptPart

__all__ = ["Excerpts", "PrecedentMemory", "PrecedentsPart", "Recollect", "SituationExcerpts", "without_zero_rewards"]


_LAYOUT = Layout()


class PrecedentMemory(Protocol):
    """The part of a long-term memory that nodes use; `memory.attempts.trajectories.Trajectories` has it."""

    def key(self, task: Task, before: Sequence[Transition], state: str, /) -> str: ...

    def trajectory(self, id: str, /) -> Trajectory: ...

    def search(
        self,
        key: str,
        k: int,
        *,
        kind: OutcomeFilter,
        min_similarity: float | None,
        per_trajectory: int,
        distinct: bool,
        domain: str,
        before: tuple[str, int] | None,
    ) -> list[Precedent]: ...


def key_of(memory: PrecedentMemory, environment: Environment, journal: Journal, state: Mapping[str, Any]) -> str:
    """phi(s_t): the key of the present state."""
    steps = [step for step in journal.history(state["head"]) if not step.is_lost]
    return memory.key(state["task"], steps, environment.abstract(state["observation"]))


@dataclass(frozen=True)
class Excerpts:
    """Lay out precedents as text for prompts, within a number of tokens.

    The past state, the past action and the outcome always stay. To fit, the rest of the trajectories is cut first, then long
    states, then the least similar precedents are left out.
    """

    memory: PrecedentMemory
    count_tokens: Callable[[str], int] = field(default=len, repr=False)
    """Tokens of a text."""
    max_tokens: int = 2**31
    """Greatest number of tokens of all precedents together."""
    max_following_steps: int | None = 8
    """Greatest number of steps shown after the past action; None: all."""
    clip: int | None = 400
    """Greatest number of characters of a past state; None: all."""
    _sizes: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Tokens by text: the same neighbours are found many times."""
    _last: dict[str, tuple[Any, list[Trajectory], tuple[int, str]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The last question of `_fitting`, the trajectories that it was about, and its answer."""

    def __call__(self, precedents: Sequence[Precedent], task: Task | None = None) -> str:
        """The text of the precedents for a reader with this task; empty without any, or without room for one."""
        return self._fitting(precedents, task)[1]

    def fitting_precedents(self, precedents: Sequence[Precedent], task: Task | None = None) -> list[Precedent]:
        """Those of the precedents that fit."""
        return list(precedents[: self._fitting(precedents, task)[0]])

    def _fitting(self, precedents: Sequence[Precedent], task: Task | None) -> tuple[int, str]:
        """The number of precedents that fit, and their text. The last result is kept: a step asks for it several times."""
        asked = task, tuple(precedents)
        trajectories = [self.memory.trajectory(one.trajectory) for one in precedents]
        before = self._last.get("question")
        if before is None or before[0] != asked or any(a is not b for a, b in zip(before[1], trajectories, strict=True)):
            before = self._last["question"] = asked, trajectories, self._fit(precedents, task)
        return before[2]

    def _fit(self, precedents: Sequence[Precedent], task: Task | None) -> tuple[int, str]:
        few = 8 if self.max_following_steps is None else min(self.max_following_steps, 8)
        short = 400 if self.clip is None else min(self.clip, 400)
        forms = ((self.max_following_steps, self.clip), (few // 2, self.clip), (1, self.clip), (0, short // 4))
        layouts: dict[
            tuple[int | None, int | None], list[str]
        ] = {}  # the first one fits nearly always: others are made on demand
        for some in range(len(precedents), 0, -1):
            for form in forms:
                if form not in layouts:
                    layouts[form] = [self.describe(n, p, task, *form) for n, p in enumerate(precedents, 1)]
                texts = layouts[form]
                if sum(map(self._size, texts[:some])) <= self.max_tokens:
                    return some, "".join(texts[:some])
        return 0, ""

    def _size(self, text: str) -> int:
        size = self._sizes.get(text)
        if size is None:
            if len(self._sizes) > 10_000:
                self._sizes.clear()
            # One more, since tokens may split differently where two texts meet.
            size = self._sizes[text] = self.count_tokens(text) + 1
        return size

    def describe(self, number: int, precedent: Precedent, task: Task | None, rest: int | None, clip: int | None) -> str:
        """The text of one precedent, with `rest` of the steps that followed and `clip` characters of its state (None: all)."""
        trajectory = self.memory.trajectory(precedent.trajectory)
        step, *after = trajectory.transitions[precedent.step : rest if rest is None else precedent.step + 1 + rest]
        steps = steps_text([replace(step, state=clip_text(step.state, clip))]) + _LAYOUT.steps(
            after
        )  # later: their first lines
        outcome = {True: " success", False: " failure", None: ""}[precedent.success]
        return f"Experience {number}:{outcome}\n{steps}{_LAYOUT.total(trajectory)}"


@dataclass(frozen=True)
class SituationExcerpts(Excerpts):
    """Lay out precedents for models that chat: with task, earlier steps and outcome, and what was read in place of states.

    Earlier situation 1 (another task: put a plate in the fridge; step 3 of 6; the attempt succeeded, total reward 1; similarity 0.64)
    Done before it: go to shelf 1; take plate 1 from shelf 1
    Step 3. You saw:              from here on in the layout of steps, without rewards of 0
    door black
    Action: mist
    Step 4. …
    After step 4 you saw:         what came of the last step that is shown
    …
    """

    layout: Layout = _LAYOUT
    """The layout of the steps; with `notes`, what was said about an attempt stands below them."""
    of_conversations: bool = False
    """True if the attempts are conversations: what they were about are requests."""

    def describe(self, number: int, precedent: Precedent, task: Task | None, rest: int | None, clip: int | None) -> str:
        """The text of one precedent. `clip` is for each observation; with None, earlier steps are shown whole as well."""
        trajectory = self.memory.trajectory(precedent.trajectory)
        steps, at = trajectory.transitions, precedent.step
        after = steps[at + 1 : rest if rest is None else at + 1 + rest]
        left = len(steps) - at - 1 - len(after)
        if clip is None:
            before = ""
        else:
            done = escape_tags("; ".join(" ".join(step.action.split()) for step in steps[:at]))
            before = f"Done before it: {done}\n" if at else ""
        said = escape_tags(" ".join(trajectory.note.split())) if self.layout.notes else ""
        note = f"Feedback on it: {said}\n" if said else ""
        whose = _whose_request if self.of_conversations else _whose_task
        end = at + 1 + len(after)
        return (
            f"Earlier situation {number} ({whose(trajectory.task, task)}; step {at + 1} of {len(steps)}; "
            f"{_outcome(precedent, trajectory)}; similarity {precedent.similarity:.2f})\n{before}"
            f"{self._steps(steps, 0 if clip is None else at, end, clip)}{self._seen_after(trajectory, end, clip)}"
            + (f"({left} more step{'s' * (left != 1)})\n" if left else "")
            + f"{note}\n"
        )

    def _seen_after(self, trajectory: Trajectory, end: int, clip: int | None) -> str:
        """The answer to the last step that is shown: what came of it."""
        steps = trajectory.transitions
        seen = steps[end].observation_text if end < len(steps) else trajectory.last_observation
        if not self.layout.shows_answers:
            return ""
        return f"After step {end} you saw:\n{escape_tags(clip_text(seen.strip(), clip))}\n" if seen.strip() else ""

    def _steps(self, steps: Sequence[Transition], first: int, end: int, clip: int | None) -> str:
        shown = [Transition(clip_text(step.observation_text, clip), step.action, step.reward) for step in steps[first:end]]
        return self.layout.steps(without_zero_rewards(shown), first + 1)


def without_zero_rewards(steps: Sequence[Transition]) -> list[Transition]:
    """The steps, with rewards of 0 left out, for readers who know that a step without a reward earned nothing."""
    return [Transition(step.state, step.action, step.reward or None, step.observation) for step in steps]


def _whose_task(then: Task, now: Task | None) -> str:
    """The task of an earlier situation, for a reader with the task `now`."""
    if now is not None and then.instruction == now.instruction:
        return "this very task" if (then.id, then.seed) == (now.id, now.seed) else "a task of the same words in another place"
    return f"another task: {escape_tags(' '.join(then.instruction.split()))}"


def _whose_request(then: Task, now: Task | None) -> str:
    """The request of an earlier conversation, for a reader with the task `now`."""
    if now is not None and then.instruction == now.instruction:
        return "a request in the same words; its cause may differ"
    return f"another request: {escape_tags(' '.join(then.instruction.split()))}"


def _outcome(precedent: Precedent, trajectory: Trajectory) -> str:
    total = "" if trajectory.value is None else f"total reward {trajectory.value:g}"
    word = {True: "the attempt succeeded", False: "the attempt did not succeed", None: ""}[precedent.success]
    return ", ".join(filter(None, (word, total))) or "its end is unknown"


class RecollectInput(Situation, HeadChannel):
    """The present situation, the steps that led there, and the trajectories that the episode consulted so far."""

    used: list[str]


class Recollection(TypedDict, total=False):
    """The precedents found at this step."""

    precedents: list[Precedent]
    nearest_similarity: float | None
    used: list[str]


@dataclass(frozen=True)
class Recollect:
    """E_ret: the k steps of remembered trajectories whose states are most similar to the present one.

    Precedents that do not fit the prompt are left out, as they cannot affect the action. Steps of this run's present and later
    episodes stay hidden, so that a resumed or forked episode finds the same ones as the first. The result is empty where
    nothing is similar enough; `nearest_similarity` tells how near the nearest step is.
    """

    role: ClassVar[str] = "memory"
    is_blocking: ClassVar[bool] = False

    memory: PrecedentMemory
    environment: Environment
    journal: Journal
    k: int = 4
    kind: OutcomeFilter = "all"
    min_similarity: float | None = 0.0
    """The least similarity; see `Trajectories.search`."""
    max_per_trajectory: int = 1
    """Greatest number of steps from one trajectory; 0: any number."""
    distinct: bool = False
    """True: of steps with the same key and action only the best counts (`Trajectories.search`)."""
    excerpts: Excerpts | None = None
    """The layout that decides how many fit; None: all of them are used."""

    def __call__(self, state: RecollectInput) -> Recollection:
        search = partial(
            self.memory.search,
            key_of(self.memory, self.environment, self.journal, state),
            kind=self.kind,
            per_trajectory=self.max_per_trajectory,
            distinct=self.distinct,
            domain=self.environment.name,
            before=(state["run"], state["episode"]),
        )
        found = search(self.k, min_similarity=self.min_similarity)
        # The nearest of all tells whether a least similarity is too high.
        similar = [precedent.similarity for precedent in found or search(1, min_similarity=0.0)]
        if self.excerpts is not None:
            found = self.excerpts.fitting_precedents(found, state["task"])
        used = [*state["used"], *(precedent.trajectory for precedent in found)]
        return {"precedents": found, "nearest_similarity": max(similar, default=0.0), "used": list(dict.fromkeys(used))}


class ShownPrecedents(TaskChannel, PrecedentsChannel):
    """A task, and the remembered steps like the present one."""


@dataclass(frozen=True, kw_only=True)
class PrecedentsPart(PromptPart[ShownPrecedents]):
    """The raw precedents: AdaMEM without a strategy."""

    excerpts: Excerpts

    def text(self, state: ShownPrecedents, prompt: EpisodePrompt) -> str:
        """The text of the precedents."""
        return self.excerpts(state["precedents"], state["task"])
