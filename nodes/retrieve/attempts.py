"""Earlier attempts in prompts: their layout, their selection, and the nodes that store and show them.

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
    gate wolf                             the present observation

The parts that change from step to step stand at the end, so that a prefix cache keeps all before them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

from ...memory.buffer import Buffer
from ...memory.errors import UserError
from ...memory.records import Shown, Trajectory, Transition
from ...memory.storage.journal import Journal
from ..act.episode import EarnedReturn, Environment, FinishedEpisode, build_trajectory
from ..act.policies import PromptView, steps_text
from ..state import EpisodeChannels, PromptChannels
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
"""Steps of a running attempt that are left out at a time if not all fit."""


class ContextError(UserError, ValueError):
    """An error: a prompt does not fit the model's window."""


def instruction(strategy: InstructionStrategy, round: int, one_based: bool = False) -> InstructionMode:
    """ICRL's instruction s_ICRL for a round: the preset strategy explores in even rounds and exploits in odd ones.

    Args:
        strategy: `preset`, `autonomous` (the model picks), `explore`, `exploit`, or `none`.
        round: k, from 0.
        one_based: counts rounds from 1 as the paper's Algorithm 1 does; the first attempt then exploits an empty buffer.
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
    """The layout of attempts as text."""

    rewards: Literal["dense", "sparse", "zero", "none"] = "dense"
    """`dense`: r_t next to the step that earned it, and their sum; `sparse`: the sum alone; `zero`: as dense, but every
    reward is 0 (an ablation); `none`: no rewards. A missing reward leaves its line out."""
    clip: int | None = 200
    """Characters shown of a past state's first line; None: the whole state."""
    notes: bool = False
    """True: the agent's note on an attempt stands below it."""
    _texts: dict[int, tuple[Trajectory, dict[tuple[bool, int], str]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Texts by id of the trajectory object, which is kept here so that its id stays unique. Each text is needed twice in every
    later round."""

    def attempt(self, trajectory: Trajectory, shown: Shown) -> str:
        """The text of an earlier attempt, whole or as one line; it ends with a line break."""
        known = self._texts.get(id(trajectory))
        if known is None:
            known = self._texts[id(trajectory)] = trajectory, {}
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
        """The text of steps with their rewards; each line ends with a line break."""
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
    """Choose the earlier attempts and the instruction that this round's prompts show.

    Raises:
        ContextError: the task alone does not fit the model's window, or the attempts to show (`all`, `last`) do not. It is
            raised before any model is asked.
    """

    role: ClassVar[str] = "memory"
    is_blocking: ClassVar[bool] = False

    buffer: Buffer
    render: Callable[[Trajectory, Shown], str] = field(repr=False)
    """Attempt, form -> its text in the prompt (`Layout.attempt`, or a note)."""
    count_tokens: Callable[[str], int] = field(repr=False)
    """Tokens of a text."""
    window: int
    """Tokens of the longest prompt, without the system message and the chat template."""
    keep: Literal["budget", "all", "last"] = "budget"
    """The selection: `budget` (see nodes/retrieve/budget.py), `all`, or the `last` attempts."""
    budget: int | None = None
    """Tokens for earlier attempts (`budget` policy); half the window if not given."""
    last: int = 3
    """Number of attempts (`last` policy)."""
    block: int = 5
    """Rounds after which the older attempts are selected anew (`budget` policy)."""
    strategy: InstructionStrategy = "none"
    one_based: bool = False
    list_actions: bool = False
    """True: prompts list the admissible actions."""
    _sizes: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, state: EpisodeChannels) -> PromptChannels:
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
            self._sizes[text] = self.count_tokens(text) + 1  # one more, since tokens may split differently where two texts meet
        return self._sizes[text]


@dataclass(frozen=True, kw_only=True)
class EpisodePrompt(PromptView):
    """A view of the episode so far: its steps in the layout of attempts, the newest ones if not all fit."""

    journal: Journal
    layout: Layout = Layout()
    """Layout of the running attempt; without rewards where a judge gives them at the end."""
    count_tokens: Callable[[str], int] = field(default=len, repr=False)
    """Tokens of a text."""
    window: int = 2**31
    """Tokens of the longest prompt, without the system message and the chat template."""
    list_actions: bool = False
    """True: the prompt lists the admissible actions."""
    brief: str = ""
    """The method's part of the system message."""
    max_steps: int | None = None
    """Greatest number of steps; None: as many as fit."""

    def text_before(self, state: Mapping[str, Any]) -> str:
        """The text before the steps."""
        return ""

    def text_after(self, state: Mapping[str, Any]) -> str:
        """The text between the steps and the present observation."""
        return ""

    def __call__(self, state: Mapping[str, Any]) -> dict[str, str]:
        steps = self.journal.history(state["head"], last=self.max_steps) if self.max_steps != 0 else ()
        before, after = self.text_before(state), self.text_after(state)
        situation = _observation_with_actions(state, self.list_actions)
        frame = f"{self.brief}Task: {state['task'].instruction}\n{before}{after}{situation}"
        shown = fit_steps(steps, self.layout, frame, self.count_tokens, self.window)
        if shown is None:
            raise ContextError(
                f"task {state['task'].id} and the text around it take {self.count_tokens(frame)} tokens, and the model's window "
                f"has room for {self.window}; use a model with a larger window, or show fewer attempts"
            )
        return {
            "brief": self.brief,
            "instruction": state["task"].instruction,
            "steps": before + shown + after,
            "observation": state["observation"].text,
        }


def fit_steps(steps: Sequence[Transition], layout: Layout, frame: str, count: Callable[[str], int], window: int) -> str | None:
    """The newest steps as text that fits in `window` tokens together with `frame`; None if `frame` alone does not fit.

    The oldest steps are left out `STEPS_DROPPED_AT_ONCE` at a time, so that the beginning of the prompts changes rarely.
    """
    for start in (*range(0, len(steps), STEPS_DROPPED_AT_ONCE), len(steps)):
        shown = layout.steps(steps[start:])
        if len(frame.encode()) + len(shown.encode()) <= window or count(frame + shown) <= window:  # a token has a byte or more
            return shown
    return None


def _observation_with_actions(state: Mapping[str, Any], listed: bool) -> str:
    """The present observation, followed by the admissible actions if `listed`."""
    observation = state["observation"]
    return "".join([observation.text, "\n", *(f"- {action}\n" for action in observation.actions if listed)])


@dataclass(frozen=True, kw_only=True)
class AttemptsPrompt(EpisodePrompt):
    """A view of the attempts that `Compose` chose, the running one, the instruction and the observation."""

    buffer: Buffer
    earlier_layout: Layout = Layout()
    """Layout of earlier attempts."""

    def text_before(self, state: Mapping[str, Any]) -> str:
        """The earlier attempts, and the header of the running one."""
        earlier = "".join(
            self.earlier_layout.attempt(trajectory, shown) for trajectory, shown in attempts_in_prompt(self.buffer, state)
        )
        return f"{earlier}Attempt {state['episode'] + 1}:\n"

    def text_after(self, state: Mapping[str, Any]) -> str:
        """The instruction of this round."""
        return f"Now: {state['mode']}\n" if state["mode"] else ""


@dataclass(frozen=True, kw_only=True)
class ReflectionsPrompt(EpisodePrompt):
    """A view of the notes on earlier attempts, without the attempts: Reflexion."""

    buffer: Buffer

    def text_before(self, state: Mapping[str, Any]) -> str:
        """The notes on the attempts that `Compose` chose."""
        return notes_text(self.buffer, state)


def attempts_in_prompt(buffer: Buffer, state: Mapping[str, Any]) -> list[tuple[Trajectory, Shown]]:
    """The attempts that `Compose` chose, in their order.

    Raises:
        ContextError: `shown` names an attempt that the buffer does not hold.
    """
    attempts = {t.id: t for t in buffer.attempts(state["run"], state["task"].id, state["episode"])}
    for shown in state["shown"]:
        if shown.id not in attempts:
            raise ContextError(
                f"the prompt is to show attempt {shown.id!r}, which the buffer does not hold; it has {list(attempts)}"
            )
    return [(attempts[shown.id], shown) for shown in state["shown"]]


def note_line(trajectory: Trajectory, shown: Shown) -> str:
    """The note on an attempt, as one line; empty without a note."""
    note = " ".join(trajectory.note.split())
    return f"- {note}\n" if note else ""


def notes_text(buffer: Buffer, state: Mapping[str, Any]) -> str:
    """The notes on the attempts in `shown`, as a list; empty without notes."""
    notes = "".join(note_line(trajectory, shown) for trajectory, shown in attempts_in_prompt(buffer, state))
    return f"Lessons:\n{notes}" if notes else ""


class FinishedWithNote(FinishedEpisode, total=False):
    """A finished episode, perhaps with a note."""

    note: str


class AttemptMemory(Protocol):
    """A memory of finished attempts, such as `memory.buffer.Buffer` or `memory.trajectories.Trajectories`."""

    @property
    def is_durable(self) -> bool: ...

    def add(self, trajectory: Trajectory) -> None: ...


@dataclass(frozen=True)
class ReadOnlyMemory:
    """A memory that ignores additions, so that it stays as it was built."""

    is_durable: ClassVar[bool] = False

    def add(self, trajectory: Trajectory) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Push:
    """Add the finished attempt with its rewards to the memory, failures included."""

    role: ClassVar[str] = "memory"

    buffer: AttemptMemory
    environment: Environment
    journal: Journal

    @property
    def is_blocking(self) -> bool:
        """True if it writes to a disk; the node then runs in a thread where others would wait for it."""
        return self.buffer.is_durable or self.journal.is_durable

    def __call__(self, state: FinishedWithNote) -> EarnedReturn:
        attempt = build_trajectory(state, self.environment, self.journal, state.get("note", ""))
        self.buffer.add(attempt)
        return {"earned": attempt.value}
