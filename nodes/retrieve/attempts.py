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

The parts that change from step to step stand at the end, so that a prefix cache keeps all before them. This is the layout for models
whose actions are scored, such as `pocket`, which learned to read it; chat_layout.py has the one for models that chat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, get_args, get_origin

from ...memory.attempts.buffer import Buffer
from ...memory.errors import UserError
from ...memory.records import Shown, Trajectory, Transition
from ...memory.storage.journal import Journal
from ..act.episode import EarnedReturn, Environment, FinishedEpisode, build_trajectory
from ..act.policies import PromptView, ShownEpisode, steps_text
from ..ask import State
from ..prompt import Prompt
from ..state import EpisodeInput, ObservationChannel, PromptChannels, ShownChannel

__all__ = [
    "AttemptMemory",
    "AttemptsPart",
    "Compose",
    "ContextError",
    "EpisodePrompt",
    "InstructionStrategy",
    "Layout",
    "PromptPart",
    "Push",
    "ReadOnlyMemory",
    "ShownNotes",
    "attempts_in_prompt",
    "channels_of_part",
    "fit_steps",
    "note_line",
    "notes_text",
    "plain_instructions",
    "round_instructions",
]

InstructionMode = Literal["", "explore", "exploit", "explore or exploit"]
InstructionStrategy = Literal["preset", "autonomous", "explore", "exploit", "none"]
MAX_LINE_CHARS = 60
"""Characters of the actions in an attempt shown as one line."""
MAX_DEFAULT_BUDGET = 16_384
"""Tokens of earlier attempts in a prompt at most, where no budget is given: windows of a million tokens cost money."""
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


_INSTRUCTION_PROMPTS: Mapping[str, str] = {
    "explore": "icrl/explore",
    "exploit": "icrl/exploit",
    "explore or exploit": "icrl/either",
}
"""Instruction -> name of the prompt that says it in full."""


def round_instructions(buffer: Buffer, prompts: Path | None = None, *, tell_best: bool = True) -> Callable[[State], str]:
    """A function from the state to this round's instruction in full; it is empty where there is none.

    Args:
        buffer: the earlier attempts.
        prompts: a directory whose files override ours.
        tell_best: whether the best total reward of the attempts in the prompt may be told.
    """
    first, unearned = Prompt.load("icrl/first", prompts).text(), Prompt.load("icrl/unearned", prompts)
    texts = {mode: Prompt.load(name, prompts) for mode, name in _INSTRUCTION_PROMPTS.items()}

    def instruct(state: State) -> str:
        if not state["mode"]:
            return ""
        attempts = [trajectory for trajectory, _ in attempts_in_prompt(buffer, state)]
        if not attempts:
            return f"{first}\n"
        tells = tell_best and state["mode"] != "explore"
        totals = [trajectory.value for trajectory in attempts if trajectory.value is not None] if tells else []
        if totals and max(totals) <= 0:
            return f"{unearned.text(number=state['episode'] + 1)}\n"
        best = f"The best attempt above earned {max(totals):g}. " if totals else ""
        return f"{texts[state['mode']].text(number=state['episode'] + 1, best=best)}\n"

    return instruct


def plain_instructions(names: str, prompts: Path | None = None) -> Callable[[State], str]:
    """A function from the state to this round's instruction, which is the same in the first round and after any reward.

    Args:
        names: of the prompts, such as `paper/icrl/{}`, with a place for `explore`, `exploit` and `either`.
        prompts: a directory whose files override ours.
    """
    texts = {
        mode: Prompt.load(names.format(name.partition("/")[2]), prompts).text() for mode, name in _INSTRUCTION_PROMPTS.items()
    }
    return lambda state: f"{texts[state['mode']]}\n\n" if state["mode"] else ""


@dataclass(frozen=True)
class Layout:
    """The layout of attempts as text, for models whose actions are scored."""

    rewards: Literal["dense", "sparse", "zero", "none"] = "dense"
    """`dense`: r_t next to the step that earned it, and their sum; `sparse`: the sum alone; `zero`: as dense, but every
    reward is 0 (an ablation); `none`: no rewards. A missing reward leaves its line out."""
    clip: int | None = 200
    """Characters shown of a past state's first line; None: the whole state."""
    notes: bool = False
    """True: the agent's note on an attempt stands below it."""
    shows_task: bool = False
    """True: an earlier attempt says at which task it was made."""
    shows_answers: bool = True
    """False: what the world said to an action is not shown, only what there was at first and what was written."""
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
        number, total = str(trajectory.episode + 1), self.total(trajectory)
        if self.shows_task:
            number += f" (task: {' '.join(trajectory.task.instruction.split())})"
        if not shown.whole:
            actions = ", ".join(" ".join(step.action.split()) for step in trajectory.transitions)
            cut = actions[:MAX_LINE_CHARS] + "…" if len(actions) > MAX_LINE_CHARS else actions
            return f"Attempt {number}: {total.replace(chr(10), ': ')}{cut}\n"
        count = f" (x{shown.count})" if shown.count > 1 else ""
        note = f"Feedback: {' '.join(trajectory.note.split())}\n" if self.notes and trajectory.note else ""
        return f"Attempt {number}{count}:\n{self.steps(trajectory.transitions)}{total}{note}"

    def steps(self, steps: Sequence[Transition], first: int = 1) -> str:
        """The text of steps with their rewards; each line ends with a line break. `first` is the number of the first step."""
        return steps_text([Transition(self._clip_state(s.state), s.action, self._reward(s.reward)) for s in steps])

    def total(self, trajectory: Trajectory) -> str:
        """The line with an attempt's return; empty where it is missing or not to be shown."""
        if trajectory.value is None or self.rewards == "none":
            return ""
        return "total 0\n" if self.rewards == "zero" else f"total {trajectory.value:g}\n"

    def attempt_end(self, trajectory: Trajectory) -> str:
        """The text after an attempt's steps."""
        return self.total(trajectory)

    def frame_exemplar(self, number: int, trajectory: Trajectory, instruction: str, success: bool | None) -> tuple[str, str]:
        """The texts before and after the steps of an attempt that may be at another task than `instruction`."""
        marks = ["failure"] * (success is False)
        if trajectory.task.instruction != instruction:
            marks.append(f"task: {' '.join(trajectory.task.instruction.split())}")
        marked = f" ({'; '.join(marks)})" if marks else ""
        return f"Attempt {number}{marked}:\n", self.attempt_end(trajectory)

    def running_head(self, number: int) -> str:
        """The header of the running attempt, which stands after earlier ones."""
        return f"Attempt {number}:\n"

    def arrange(self, before: str, steps: str, after: str) -> str:
        """The text of the running attempt's steps between what stands before it and after it."""
        return before + steps + after

    def situation(self, state: Mapping[str, Any]) -> str:
        """The present observation, as the prompt shows it."""
        return str(state["observation"].text)

    def _reward(self, reward: float | None) -> float | None:
        if reward is None or self.rewards in ("none", "sparse"):
            return None
        return 0.0 if self.rewards == "zero" else reward

    def _clip_state(self, state: str) -> str:
        if self.clip is None:
            return state
        line = state.strip().partition("\n")[0]
        return line if len(line) <= self.clip else line[: self.clip].rstrip() + "…"


class EpisodeToPrompt(EpisodeInput, ObservationChannel):
    """The episode that earlier attempts are chosen for, and what is seen first."""


@dataclass(frozen=True)
class Compose:
    """Choose the earlier attempts and the instruction that this round's prompts show.

    Raises:
        ContextError: the task alone does not fit the model's window. It is raised before any model is asked.
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
    """The selection: `budget` (see nodes/retrieve/budget.py), `all`, or the `last` attempts; of the latter two the newest that fit
    beside a running attempt of the same length."""
    by_task: bool = False
    """True: the attempts at the tasks whose words are most like this task's go before newer ones (`all`)."""
    budget: int | None = None
    """Tokens for earlier attempts (`budget` policy); half the window if not given, and at most `MAX_DEFAULT_BUDGET`."""
    last: int = 3
    """Number of attempts (`last` policy)."""
    strategy: InstructionStrategy = "none"
    one_based: bool = False
    list_actions: bool = False
    """True: prompts list the admissible actions."""
    _sizes: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, state: EpisodeToPrompt) -> PromptChannels:
        task, episode = state["task"], state["episode"]
        needed = self.count_tokens(
            f"Task: {task.instruction}\nAttempt {episode + 1}:\nNow: …\n"
            f"{_observation_with_actions(state['observation'].text, state, self.list_actions)}"
        )
        if needed >= self.window:
            raise ContextError(
                f"task {task.id} alone takes {needed} tokens, and the model's window has {self.window}; "
                "use a model with a larger window, or a smaller task"
            )
        attempts = self.buffer.attempts(state["run"], task.id, episode)
        if self.by_task:
            from ...memory.search.similarity import jaccard, words  # here: what one method alone needs

            asked = set(words(task.instruction))
            attempts.sort(key=lambda one: jaccard(asked, set(words(one.task.instruction))))
        budget = min(self.window // 2, MAX_DEFAULT_BUDGET) if self.budget is None else self.budget
        room = min(budget, self.window - needed)
        if self.keep == "budget":
            from .budget import select_within_budget  # here, too

            shown = select_within_budget(attempts, self._size, room, known=self._known)
        else:
            count = len(attempts) if self.keep == "all" else self.last
            shown = self._newest_that_fit(attempts[max(len(attempts) - count, 0) :], needed)
        return {"shown": shown, "mode": instruction(self.strategy, episode, self.one_based)}

    @cached_property
    def _known(self) -> Any:
        """The `KnownAttempts` of all rounds."""
        from .budget import KnownAttempts

        return KnownAttempts()

    def _newest_that_fit(self, attempts: Sequence[Trajectory], needed: int) -> list[Shown]:
        """The last of these, whole, that fit beside `needed` tokens and a running attempt as long as the longest of them."""
        found, total, longest = list[Shown](), 0, 0
        for trajectory in reversed(attempts):
            shown = Shown(trajectory.id)
            if not self.render(trajectory, shown):
                continue  # an attempt that left no note
            size = self._size(shown, trajectory)
            total, longest = total + size, max(longest, size)
            if needed + total + longest >= self.window:
                break
            found.append(shown)
        return found[::-1]

    def _size(self, shown: Shown, trajectory: Trajectory) -> int:
        text = self.render(trajectory, shown)
        if text not in self._sizes:
            self._sizes[text] = self.count_tokens(text) + 1  # one more, since tokens may split differently where two texts meet
        return self._sizes[text]


Read = TypeVar("Read")
"""The TypedDict of the channels that a part of a prompt reads."""


@dataclass(frozen=True, kw_only=True)
class PromptPart(Generic[Read]):
    """One thing that a prompt shows beside the running episode: earlier attempts, lessons, a strategy.

    A subclass says in `Read` which channels it reads. `learngraph list nodes` and the check of a drawing go by it.
    """

    brief: str = ""
    """What the system message says of this part, where it shows something."""

    def text(self, state: Read, prompt: EpisodePrompt) -> str:
        """The text before the steps."""
        return ""

    def texts(self, state: Read, prompt: EpisodePrompt) -> Iterator[str]:
        """The text before the steps, then shorter ones to take its place if it does not fit."""
        yield self.text(state, prompt)

    def system_text(self, state: Read, prompt: EpisodePrompt, text: str) -> str:
        """The text in the system message: `brief`, if there is a `text` before the steps."""
        return self.brief if text else ""

    def text_after(self, state: Read) -> str:
        """The text between the steps and the present observation."""
        return ""

    def request(self, state: Read) -> str:
        """The text at the end of the prompt: what this attempt is for. Empty: nothing but the task."""
        return ""


@dataclass(frozen=True, kw_only=True)
class EpisodePrompt(PromptView):
    """A view of the episode so far: its steps in the layout of attempts, the newest ones if not all fit, and what `show` names.

    Parts of two methods in one prompt are two methods in one agent:

        EpisodePrompt(journal=journal, show=[LibraryPart(versions=versions), StrategyPart()])
    """

    journal: Journal
    show: Sequence[PromptPart[Any]] = ()
    """What the prompt shows beside the episode, in this order. Where not all fits, the last part is shortened first."""
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
    world: str = ""
    """The world's part of it: what one sees there, and how to act."""
    max_steps: int | None = None
    """Greatest number of steps; None: as many as fit."""

    def __post_init__(self) -> None:
        for part in self.show:
            if not isinstance(part, PromptPart):
                came = f"the class {part.__name__}; write {part.__name__}(...)" if isinstance(part, type) else f"{part!r:.60}"
                raise UserError(f"a prompt shows parts, which are objects such as AttemptsPart(buffer=...); got {came}")

    @property
    def shown_channels(self) -> tuple[type, ...]:
        """The TypedDicts of the channels that this prompt shows."""
        return (ShownEpisode, *(channels_of_part(type(part)) for part in self.show))

    def __call__(self, state: Mapping[str, Any]) -> dict[str, str]:
        steps = self.journal.history(state["head"], last=self.max_steps) if self.max_steps != 0 else ()
        after = "".join(part.text_after(state) for part in self.show)
        request = "".join(part.request(state) for part in self.show)
        choices = [part.texts(state, self) for part in self.show]
        texts = [next(one) for one in choices]
        own = (part.system_text(state, self, text) for part, text in zip(self.show, texts, strict=True))
        briefs = [self.world, self.brief, *own]
        situation, taken = self.layout.situation(state), state.get("step", len(steps))
        rest = f"{after}{_observation_with_actions(situation, state, self.list_actions)}{request}"
        for before in _shorter_and_shorter(texts, choices):
            frame = f"{''.join(briefs)}Task: {state['task'].instruction}\n{before}{rest}"
            shown = fit_steps(steps, self.layout, frame, self.count_tokens, self.window, taken - len(steps) + 1)
            if shown is not None:
                break
        else:
            raise ContextError(
                f"task {state['task'].id} and the text around it take {self.count_tokens(frame)} tokens, and the model's window "
                f"has room for {self.window}; use a model with a larger window, or show fewer attempts"
            )
        return {
            "brief": " ".join(filter(None, briefs)),
            "instruction": state["task"].instruction,
            "steps": self.layout.arrange(before, shown, after),
            "observation": situation,
            **({"request": request} if request else {}),
        }


def _shorter_and_shorter(texts: list[str], choices: Sequence[Iterator[str]]) -> Iterator[str]:
    """All texts, one after the other, then with the next `choices` of the last of them, of the one before it, and so on."""
    yield "".join(texts)
    for number, choice in reversed([*enumerate(choices)]):
        for texts[number] in choice:
            yield "".join(texts)


def channels_of_part(part: type[PromptPart[Any]]) -> type:
    """The TypedDict of the channels that a class of parts reads."""
    bases = (base for kind in part.__mro__ for base in getattr(kind, "__orig_bases__", ()) if get_origin(base) is PromptPart)
    found: type = get_args(next(bases))[0]
    return found


def fit_steps(
    steps: Sequence[Transition], layout: Layout, frame: str, count: Callable[[str], int], window: int, first: int = 1
) -> str | None:
    """The newest steps as text that fits in `window` tokens together with `frame`; None if `frame` alone does not fit.

    `first` is the number of the first of the steps.

    The oldest steps are left out `STEPS_DROPPED_AT_ONCE` at a time, so that the beginning of the prompts changes rarely.
    """
    for start in (*range(0, len(steps), STEPS_DROPPED_AT_ONCE), len(steps)):
        shown = layout.steps(steps[start:], first + start)
        if len(frame.encode()) + len(shown.encode()) <= window or count(frame + shown) <= window:  # a token has a byte or more
            return shown
    return None


def _observation_with_actions(observation: str, state: Mapping[str, Any], listed: bool) -> str:
    """The text of the present observation, followed by the admissible actions if `listed`."""
    return "".join([observation, "\n", *(f"- {action}\n" for action in state["observation"].actions if listed)])


class ShownAttempts(EpisodeInput, PromptChannels):
    """The attempts that `Compose` chose for a task, and this round's instruction."""


@dataclass(frozen=True, kw_only=True)
class AttemptsPart(PromptPart[ShownAttempts]):
    """The attempts that `Compose` chose, the number of the running one, and the instruction. It goes last among the parts."""

    buffer: Buffer
    layout: Layout = Layout()
    """Layout of earlier attempts."""

    instructions: Callable[[Mapping[str, Any]], str] | None = field(default=None, repr=False)
    """State -> the instruction of this round in full, for the end of the prompt; None: its name stands before the observation."""

    def texts(self, state: ShownAttempts, prompt: EpisodePrompt) -> Iterator[str]:
        """The earlier attempts, and the header of the running one; then without the oldest, the two oldest, and so on."""
        texts = [self.layout.attempt(trajectory, shown) for trajectory, shown in attempts_in_prompt(self.buffer, state)]
        for first in range(len(texts) + 1):
            yield "".join(texts[first:]) + prompt.layout.running_head(state["episode"] + 1)

    def text_after(self, state: ShownAttempts) -> str:
        """The name of this round's instruction, if its text does not stand at the end."""
        return f"Now: {state['mode']}\n" if state["mode"] and self.instructions is None else ""

    def request(self, state: ShownAttempts) -> str:
        """The instruction of this round in full."""
        return self.instructions(state) if self.instructions else ""


class ShownNotes(EpisodeInput, ShownChannel):
    """The attempts that `Compose` chose for a task."""


def attempts_in_prompt(buffer: Buffer, state: Mapping[str, Any]) -> list[tuple[Trajectory, Shown]]:
    """The attempts that `Compose` chose, in their order.

    Raises:
        ContextError: `shown` names an attempt that the buffer does not hold.
    """
    place, found = (state["run"], state["task"].id, state["episode"]), list[tuple[Trajectory, Shown]]()
    for shown in state["shown"]:
        attempt = buffer.attempt(*place, shown.id)
        if attempt is None:
            held = [one.id for one in buffer.attempts(*place)]
            raise ContextError(f"the prompt is to show attempt {shown.id!r}, which the buffer does not hold; it has {held}")
        found.append((attempt, shown))
    return found


def note_line(trajectory: Trajectory, shown: Shown, names_task: bool = False) -> str:
    """The note on an attempt, as one line, behind its task if `names_task`; empty without a note."""
    note = " ".join(trajectory.note.split())
    task = f"(at another task: {' '.join(trajectory.task.instruction.split())}) " if names_task else ""
    return f"- {task}{note}\n" if note else ""


def notes_text(buffer: Buffer, state: Mapping[str, Any]) -> str:
    """The notes on the attempts in `shown`, as a list; empty without notes."""
    attempts = attempts_in_prompt(buffer, state)
    notes = "".join(note_line(one, shown, one.task.id != state["task"].id) for one, shown in attempts)
    return f"Lessons:\n{notes}" if notes else ""


class FinishedWithNote(FinishedEpisode, total=False):
    """A finished episode, perhaps with a note."""

    note: str


class AttemptMemory(Protocol):
    """A memory of finished attempts, such as `memory.attempts.buffer.Buffer` or `memory.attempts.trajectories.Trajectories`."""

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
