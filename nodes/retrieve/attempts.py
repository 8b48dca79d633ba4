"""Earlier attempts in prompts: how they are written, which of them are shown, and where they come from.

    Task: reach the exit
    Attempt 1:
    door black
    > mist
    = 1
    total 1
    Attempt 2 (x3):                       the same actions were taken three times
    …
    Attempt 5: total 4: mist, lamp, left  an attempt as one line
    Attempt 9:                            the running attempt
    door black
    > mist
    = 1
    Now: exploit                          this round's instruction
    gate wolf                             what the agent sees

What changes from step to step stands at the end: a provider's cache, or a local model's, keeps all that stands before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

from ...memory.buffer import Buffer
from ...memory.errors import UserError
from ...memory.records import Shown, Trajectory, Transition
from ...memory.storage.journal import Journal
from ..act.episode import Environment, FinishedEpisode, build_trajectory
from ..act.policies import PromptView, steps_text
from ..state import Composed, Episode
from .budget import all_attempts, latest_attempts, select_within_budget

__all__ = [
    "AttemptMemory",
    "AttemptsPrompt",
    "Compose",
    "ContextError",
    "EpisodePrompt",
    "InstructionMode",
    "InstructionStrategy",
    "Layout",
    "Push",
    "ReadOnlyMemory",
    "ReflectionsPrompt",
    "attempts_in_prompt",
    "fit_steps",
    "instruction",
    "note_line",
    "notes_text",
]

InstructionMode = Literal["", "explore", "exploit", "explore or exploit"]
InstructionStrategy = Literal["preset", "autonomous", "explore", "exploit", "none"]
MAX_LINE_CHARS = 60
"""Characters of the actions in an attempt shown as one line."""
STEPS_DROPPED_AT_ONCE = 8
"""Steps of a running attempt that are left out at a time when not all fit."""


class ContextError(UserError, ValueError):
    """A prompt that cannot be made to fit the model's window."""


def instruction(strategy: InstructionStrategy, round: int, one_based: bool = False) -> InstructionMode:
    """ICRL's s_ICRL for a round, counted from 0: the preset strategy explores in even rounds, exploits in odd ones.

    Args:
        strategy: `preset`, `autonomous` (the model picks), `explore`, `exploit`, or `none`.
        round: k, from 0.
        one_based: count rounds from 1 as the paper's Algorithm 1 does; its first attempt then exploits an empty buffer.
    """
    match strategy:
        case "preset":
            return "exploit" if (round + one_based) % 2 else "explore"
        case "autonomous":
            return "explore or exploit"
        case "none":
            return ""
        case _:
            return strategy


@dataclass(frozen=True)
class Layout:
    """How attempts are written."""

    rewards: Literal["dense", "sparse", "zero", "none"] = "dense"
    """`dense`: r_t next to the step that earned it, and their sum; `sparse`: the sum alone; `zero`: as dense, but every
    reward is 0 (an ablation); `none`: no rewards. A missing reward leaves its line out."""
    clip: int | None = 200
    """Characters of a past state that are kept, of its first line; None: all of it."""
    notes: bool = False
    """Whether what the agent wrote about an attempt stands below it."""
    _written: dict[int, tuple[Trajectory, dict[tuple[bool, int], str]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Texts by the trajectory itself (the object, which is kept here so that its id stays its own): each is asked for twice in
    every later round."""

    def attempt(self, trajectory: Trajectory, shown: Shown) -> str:
        """An earlier attempt, whole or as a line; ends with a line break."""
        known = self._written.get(id(trajectory))
        if known is None:
            known = self._written[id(trajectory)] = trajectory, {}
        form = shown.whole, shown.count
        if form not in known[1]:
            known[1][form] = self._text(trajectory, shown)
        return known[1][form]

    def _text(self, trajectory: Trajectory, shown: Shown) -> str:
        number, total = trajectory.episode + 1, self.total(trajectory)
        if not shown.whole:
            actions = ", ".join(" ".join(step.action.split()) for step in trajectory.transitions)
            cut = actions[:MAX_LINE_CHARS] + "…" if len(actions) > MAX_LINE_CHARS else actions
            return f"Attempt {number}: {total.replace(chr(10), ': ')}{cut}\n"
        count = f" (x{shown.count})" if shown.count > 1 else ""
        note = f"Feedback: {' '.join(trajectory.note.split())}\n" if self.notes and trajectory.note else ""
        return f"Attempt {number}{count}:\n{self.steps(trajectory.transitions)}{total}{note}"

    def steps(self, steps: Sequence[Transition]) -> str:
        """Steps with their rewards, each line ended."""
        return steps_text([replace(s, state=self._clip_state(s.state), reward=self._reward(s.reward)) for s in steps])

    def total(self, trajectory: Trajectory) -> str:
        """The line with an attempt's return; empty where it is missing or not to be shown."""
        if trajectory.value is None or self.rewards == "none":
            return ""
        return "total 0\n" if self.rewards == "zero" else f"total {trajectory.value:g}\n"

    def _reward(self, reward: float | None) -> float | None:
        if reward is None or self.rewards in ("none", "sparse"):
            return None
        return 0.0 if self.rewards == "zero" else reward

    def _clip_state(self, state: str) -> str:
        if self.clip is None:
            return state
        line = state.strip().partition("\n")[0]
        return line if len(line) <= self.clip else line[: self.clip].rstrip() + "…"


@dataclass(frozen=True)
class Compose:
    """Decide what this round's prompts show of earlier attempts, and which instruction they carry.

    Raises:
        ContextError: before anything was asked, if the task itself does not fit the model's window, or if all attempts
            are to be shown and do not fit.
    """

    role: ClassVar[str] = "memory"
    is_blocking: ClassVar[bool] = False

    buffer: Buffer
    render: Callable[[Trajectory, Shown], str] = field(repr=False)
    """How an attempt stands in the prompt (`Layout.attempt`, or a note)."""
    count_tokens: Callable[[str], int] = field(repr=False)
    """Tokens of a text."""
    window: int
    """Tokens of the longest prompt, without what stands around what is shown (system message, template)."""
    keep: Literal["budget", "all", "last"] = "budget"
    """The policy: nodes/retrieve/budget.py's, or all, or the `last` ones."""
    budget: int | None = None
    """Tokens for earlier attempts (`budget` policy); half the window if not given."""
    last: int = 3
    block: int = 5
    """With the `budget` policy: every so many rounds the older attempts are arranged anew."""
    strategy: InstructionStrategy = "none"
    one_based: bool = False
    list_actions: bool = False
    """Whether prompts list the admissible actions."""
    _sizes: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, state: Episode) -> Composed:
        task, episode = state["task"], state["episode"]
        needed = self.count_tokens(
            f"Task: {task.instruction}\nAttempt {episode + 1}:\nNow: …\n{_observation_with_actions(state, self.list_actions)}"
        )
        if needed >= self.window:
            raise ContextError(
                f"task {task.id} alone takes {needed} tokens, and the model's window has {self.window}; "
                "use a model with a larger window, or a smaller task"
            )
        attempts = self.buffer.attempts(state["run"], task.id, episode)
        room = min(self.window // 2 if self.budget is None else self.budget, self.window - needed)
        if self.keep == "budget":
            shown = select_within_budget(attempts, self._size, room, self.block)
        else:
            shown = all_attempts(attempts) if self.keep == "all" else latest_attempts(attempts, self.last)
            taken = sum(self._size(s, t) for s, t in zip(shown, attempts[len(attempts) - len(shown) :], strict=True))
            if needed + taken >= self.window:
                raise ContextError(
                    f"{len(shown)} attempts at {task.id} take {taken} tokens with {needed} for the task, and the model's "
                    f"window has {self.window}; keep fewer, or let a budget choose (keep='budget')"
                )
        return {"shown": shown, "mode": instruction(self.strategy, episode, self.one_based)}

    def _size(self, shown: Shown, trajectory: Trajectory) -> int:
        text = self.render(trajectory, shown)
        if text not in self._sizes:
            self._sizes[text] = self.count_tokens(text) + 1  # tokens may merge across the seam of two texts, or fail to
        return self._sizes[text]


@dataclass(frozen=True, kw_only=True)
class EpisodePrompt(PromptView):
    """What a policy is shown of the episode so far: its steps in the layout of attempts, the newest if not all fit."""

    journal: Journal
    layout: Layout = Layout()
    """How the running attempt is written; without rewards where a judge gives them at the end."""
    count_tokens: Callable[[str], int] = field(default=len, repr=False)
    """Tokens of a text."""
    window: int = 2**31
    """Tokens of the longest prompt, without what stands around what is shown (system message, template)."""
    list_actions: bool = False
    """Whether the prompt lists the admissible actions."""
    brief: str = ""
    """What the system message says of the method."""
    max_steps: int | None = None
    """How many steps are shown at most; None: as many as fit."""

    def text_before(self, state: Mapping[str, Any]) -> str:
        """What stands before the steps."""
        return ""

    def text_after(self, state: Mapping[str, Any]) -> str:
        """What stands between the steps and the present observation."""
        return ""

    def __call__(self, state: Mapping[str, Any]) -> dict[str, str]:
        steps = self.journal.history(state["head"], last=self.max_steps) if self.max_steps != 0 else ()
        before, after = self.text_before(state), self.text_after(state)
        frame = f"{self.brief}Task: {state['task'].instruction}\n{before}{after}{_observation_with_actions(state, self.list_actions)}"
        told = fit_steps(steps, self.layout, frame, self.count_tokens, self.window)
        if told is None:
            raise ContextError(
                f"task {state['task'].id} and what stands around it take {self.count_tokens(frame)} tokens, and the model's window has "
                f"room for {self.window}; use a model with a larger window, or show fewer attempts"
            )
        return {
            "brief": self.brief,
            "instruction": state["task"].instruction,
            "steps": before + told + after,
            "observation": state["observation"].text,
        }


def fit_steps(steps: Sequence[Transition], layout: Layout, frame: str, count: Callable[[str], int], window: int) -> str | None:
    """The steps as text, without so many of the oldest that the rest fits in `window` tokens with `frame`; None if none does.

    Oldest steps go `STEPS` at a time, so that the beginning of the prompts of an episode stays for a while.
    """
    for start in (*range(0, len(steps), STEPS_DROPPED_AT_ONCE), len(steps)):
        told = layout.steps(steps[start:])
        if len(frame.encode()) + len(told.encode()) <= window or count(frame + told) <= window:  # a token is a byte at least
            return told
    return None


def _observation_with_actions(state: Mapping[str, Any], listed: bool) -> str:
    """The present observation, with the admissible actions if prompts list them."""
    observation = state["observation"]
    return "".join([observation.text, "\n", *(f"- {action}\n" for action in observation.actions if listed)])


@dataclass(frozen=True, kw_only=True)
class AttemptsPrompt(EpisodePrompt):
    """The attempts that `Compose` chose, the running one, the instruction, the observation."""

    buffer: Buffer
    earlier_layout: Layout = Layout()
    """How earlier attempts are written."""

    def text_before(self, state: Mapping[str, Any]) -> str:
        """The earlier attempts, and the header of the running one."""
        told = "".join(
            self.earlier_layout.attempt(trajectory, shown) for trajectory, shown in attempts_in_prompt(self.buffer, state)
        )
        return f"{told}Attempt {state['episode'] + 1}:\n"

    def text_after(self, state: Mapping[str, Any]) -> str:
        """This round's instruction."""
        return f"Now: {state['mode']}\n" if state["mode"] else ""


@dataclass(frozen=True, kw_only=True)
class ReflectionsPrompt(EpisodePrompt):
    """What was written about earlier attempts, and not the attempts: Reflexion."""

    buffer: Buffer

    def text_before(self, state: Mapping[str, Any]) -> str:
        """The plans that `Compose` chose."""
        return notes_text(self.buffer, state)


def attempts_in_prompt(buffer: Buffer, state: Mapping[str, Any]) -> list[tuple[Trajectory, Shown]]:
    """The attempts that `Compose` chose, in their order. One that a caller put into `shown` and nobody made is an error."""
    attempts = {t.id: t for t in buffer.attempts(state["run"], state["task"].id, state["episode"])}
    for shown in state["shown"]:
        if shown.id not in attempts:
            raise ContextError(
                f"the prompt is to show attempt {shown.id!r}, which the buffer does not hold; it has {list(attempts)}"
            )
    return [(attempts[shown.id], shown) for shown in state["shown"]]


def note_line(trajectory: Trajectory, shown: Shown) -> str:
    """An attempt as what was written about it, in one line; empty if nothing was."""
    note = " ".join(trajectory.note.split())
    return f"- {note}\n" if note else ""


def notes_text(buffer: Buffer, state: Mapping[str, Any]) -> str:
    """The notes of the attempts in `shown`, as a list; empty without any."""
    notes = "".join(note_line(trajectory, shown) for trajectory, shown in attempts_in_prompt(buffer, state))
    return f"Lessons:\n{notes}" if notes else ""


class FinishedWithNote(FinishedEpisode, total=False):
    """A finished episode that something may have been written about."""

    note: str


class AttemptMemory(Protocol):
    """What keeps finished attempts: `memory.buffer.Buffer`, `memory.trajectories.Trajectories`."""

    @property
    def is_durable(self) -> bool: ...

    def add(self, trajectory: Trajectory) -> None: ...


@dataclass(frozen=True)
class ReadOnlyMemory:
    """A memory that nothing is added to: what a run reads stays as it was built."""

    is_durable: ClassVar[bool] = False

    def add(self, trajectory: Trajectory) -> None:
        """Leave it."""


@dataclass(frozen=True)
class Push:
    """Push the finished attempt with its rewards to the memory. Nothing is filtered: failures stay in."""

    role: ClassVar[str] = "memory"

    buffer: AttemptMemory
    environment: Environment
    journal: Journal

    @property
    def is_blocking(self) -> bool:
        """Whether it writes to a disk: see `graphs.flow.waits`."""
        return self.buffer.is_durable or self.journal.is_durable

    def __call__(self, state: FinishedWithNote) -> dict[str, Any]:
        attempt = build_trajectory(state, self.environment, self.journal, state.get("note", ""))
        self.buffer.add(attempt)
        return {"earned": attempt.value}
