"""The layout of attempts for models that chat. (Models whose actions are scored read the layout of attempts.py.)

    <attempt number="1">
    Step 1. You saw:
    You are in the hall. A closed door leads north. A postcard lies on the table.
    Action: open door to north
    Reward: 0
    Step 2. You saw the same as at step 1, but:
    + An open door leads north.
    - A closed door leads north.
    Action: move north
    Reward: 1
    After step 2 you saw:
    You are in the garden. You have won.
    Result: success after 2 steps. Total reward: 1 (a full success is 1).
    </attempt>

    Your steps in this attempt so far:
    Step 1. …

    You have taken 1 step and may take at most 49 more. Total reward so far: 0 (a full success is 1). You now see:
    You are in the hall. …

Steps show what the agent read, not the shorter state that memory is searched by. A text that was seen before, or nearly so, is shown
as what changed. No text that was read or said closes an attempt's tag (nodes/fence.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ...memory.records import Shown, Trajectory, Transition
from ..fence import escape_tags
from ..text import cut_middle
from .attempts import MAX_LINE_CHARS, Layout

__all__ = ["MAX_OBSERVATION_TOKENS", "ChatLayout"]

MAX_OBSERVATION_TOKENS = 600
"""Tokens of an observation in an earlier attempt; a longer one loses its middle."""
MIN_COMPARED_CHARS = 80
"""Characters from which on an observation may be shown as what changed; a shorter one is always shown whole."""
LATEST_COMPARED = 8
"""Observations shown whole, the latest ones, with which a new one is compared."""


@dataclass(frozen=True)
class ChatLayout(Layout):
    """The layout of attempts for models that chat: what was read, what was done, what it earned, and how it ended."""

    count_tokens: Callable[[str], int] = field(default=len, repr=False)
    """Tokens of a text."""
    max_observation_tokens: int | None = MAX_OBSERVATION_TOKENS
    """Tokens of a past observation; a longer one loses its middle. None: the whole of it."""
    full_success: float | None = None
    """The return of a full success, on the scale of the rewards shown; None: unknown."""
    horizon: int | None = None
    """The number of steps after which an episode ends; None: unknown, or one written answer is all."""
    repeats_task: bool = False
    """True: what the world shows at first repeats the task, and is left out: an attempt is one written answer."""
    names_request: bool = False
    """True: what was read first in a conversation is its request, which stands above the steps and is not said again."""

    def steps(self, steps: Sequence[Transition], first: int = 1) -> str:
        """The text of steps with their rewards; `first` is the number of the first step."""
        return self._steps(steps, first, _Comparison())

    def _steps(self, steps: Sequence[Transition], first: int, comparison: _Comparison) -> str:
        text = ""
        for number, step in enumerate(steps, first):
            seen = "" if self.repeats_task else f"Step {number}.\n"
            if not self.repeats_task and (number == 1 or self.shows_answers):
                seen = self._observation(f"Step {number}. You saw", step.observation_text, number, comparison)
            if self.names_request and number == 1:
                seen = "Step 1. You saw the request.\n"
            # Further lines are indented, so that none of them reads as a reward.
            action = escape_tags(step.action.replace("\n", "\n  "))
            reward = self._reward(step.reward)
            text += f"{seen}Action: {action}\n" + ("" if reward is None else f"Reward: {reward:g}\n")
        return text

    def _observation(self, head: str, seen: str, number: int, comparison: _Comparison) -> str:
        whole = seen.strip()
        if self.max_observation_tokens is not None:
            whole = cut_middle(whole, self.max_observation_tokens, self.count_tokens)
        whole = escape_tags(whole)
        return f"{head}{comparison.describe(whole, number)}\n"

    def attempt_end(self, trajectory: Trajectory) -> str:
        """The last observation, and how the attempt ended."""
        return self._end(trajectory, _Comparison())

    def _end(self, trajectory: Trajectory, comparison: _Comparison) -> str:
        count, seen = len(trajectory.transitions), ""
        if self.shows_answers and trajectory.last_observation.strip():
            head = f"After {'the last step' if count > 1 else 'it'} you saw"
            seen = self._observation(head, trajectory.last_observation, count + 1, comparison)
        return seen + self.total(trajectory)

    def total(self, trajectory: Trajectory) -> str:
        """The line with the outcome and the return; empty where the return is missing or not to be shown."""
        if self.rewards == "none" or trajectory.value is None:
            return ""
        if self.rewards == "zero":
            return "Total reward: 0\n"
        total, taken = f"Total reward: {trajectory.value:g}", _count_steps(len(trajectory.transitions))
        if self.full_success is None:
            return f"Result: {total} in {taken}.\n"
        word = "success" if trajectory.value >= self.full_success else "no success"
        return f"Result: {word} after {taken}. {total} (a full success is {self.full_success:g}).\n"

    def _text(self, trajectory: Trajectory, shown: Shown) -> str:
        number = trajectory.episode + 1
        task = f"Its task: {escape_tags(trajectory.task.instruction.strip())}\n" if self.shows_task else ""
        if not shown.whole:
            actions = escape_tags("; ".join(" ".join(step.action.split()) for step in trajectory.transitions))
            cut = actions[: 2 * MAX_LINE_CHARS] + "…" if len(actions) > 2 * MAX_LINE_CHARS else actions
            return f'<attempt number="{number}">\n{task}In short, what was done: {cut}\n{self.total(trajectory)}</attempt>\n\n'
        comparison = _Comparison()
        steps = self._steps(trajectory.transitions, 1, comparison)
        note = self._note(trajectory)
        count = f' made="{shown.count} times"' if shown.count > 1 else ""
        return f'<attempt number="{number}"{count}>\n{task}{steps}{self._end(trajectory, comparison)}{note}</attempt>\n\n'

    def frame_exemplar(self, number: int, trajectory: Trajectory, instruction: str, success: bool | None) -> tuple[str, str]:
        """The texts before and after the steps of an attempt that may be at another task than `instruction`."""
        asked = trajectory.task.instruction
        task = "the same as yours now" if asked == instruction else f"another one: {escape_tags(asked.strip())}"
        outcome = {True: "It succeeded.\n", False: "It did not succeed.\n", None: ""}[success]
        end = f"{self.attempt_end(trajectory)}{outcome}{self._note(trajectory)}</attempt>\n\n"
        return f'<attempt number="{number}">\nIts task: {task}\n', end

    def _note(self, trajectory: Trajectory) -> str:
        note = escape_tags(trajectory.note.strip())
        return f"Feedback on it: {note}\n" if self.notes and note else ""

    def running_head(self, number: int) -> str:
        """Empty: earlier attempts stand within tags, so that the running one needs no number."""
        return ""

    def arrange(self, before: str, steps: str, after: str) -> str:
        """The text of the running attempt's steps under their heading, between what stands before it and after it."""
        running = f"Your steps in this attempt so far:\n{steps}" if steps else ""
        return "".join(f"{part.rstrip()}\n\n" for part in (before, running, after) if part.strip())

    def situation(self, state: Mapping[str, Any]) -> str:
        """The present observation, after what was done and earned so far and what is left."""
        taken, told = state["step"], ""
        if self.horizon is not None:
            left = f"at most {max(self.horizon - taken, 0)}"
            told = (
                f"You have taken {_count_steps(taken)} and may take {left} more. " if taken else f"You may take {left} steps. "
            )
        scale = (
            "" if self.full_success is None or self.rewards in ("none", "zero") else f"a full success is {self.full_success:g}"
        )
        if taken and self.rewards == "dense":
            told += f"Total reward so far: {state['score']:g}{f' ({scale})' if scale else ''}. "
        elif scale:
            told += f"{scale[0].upper()}{scale[1:]} in all. ".replace("success is", "success earns")
        return told if self.repeats_task else f"{told}You now see:\n{state['observation'].text.strip()}"


def _count_steps(count: int) -> str:
    return f"{count} step{'s' * (count != 1)}"


class _Comparison:
    """The observations of an attempt that were shown so far, for showing the next one as what changed."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._whole: list[tuple[int, str]] = []

    def describe(self, seen: str, number: int) -> str:
        """The end of `You saw`: the text after a colon, or what it has in common with one shown before and what changed."""
        if len(seen) >= MIN_COMPARED_CHARS:
            if seen in self._numbers:
                return f" the same as at step {self._numbers[seen]}."
            self._numbers[seen] = number
            changes = [_changes(number, old, seen) for number, old in self._whole[-LATEST_COMPARED:]]
            if changes and 3 * len(shortest := min(changes, key=len)) < 2 * len(seen):
                return shortest
            self._whole.append((number, seen))
        return f":\n{seen}"


@lru_cache(maxsize=4096)
def _changes(number: int, old: str, new: str) -> str:
    """The sentences by which `new` differs from `old`, which was seen at step `number`."""
    before, now = _sentences(old), _sentences(new)
    changed = [f"+ {sentence}" for sentence in now if sentence not in before]
    changed += [f"- {sentence}" for sentence in before if sentence not in now]
    return "\n".join([f" the same as at step {number}, but:", *changed]) if changed else f" the same as at step {number}."


@lru_cache(maxsize=1024)
def _sentences(text: str) -> dict[str, None]:
    """The lines of a text, split at the ends of sentences, in their order."""
    parts = (part.strip() for line in text.splitlines() for part in re.split(r"(?<=[.!?;]) +", line))
    return dict.fromkeys(filter(None, parts))
