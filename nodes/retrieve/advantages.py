"""Advantages written into the prompt: what JitRL adds to the logits, as text (the paper's Prompt Update, arXiv:2601.18510, Sec. 5).

A model that chats reads a line for each action, the best first. Untried actions that share a number share a line:

    +1.00 open the gate (tried 4 times)
    +0.19 every other action (never tried)
    -0.62 go north (tried 2 times)

A model whose actions are scored reads those of tried actions as attempts of one step, in the layout that `pocket` learned, the best
last. They are rounded to whole numbers, because `pocket` reads no others well: on the train fold of the toy (4 tasks, 15 episodes) it
scored 8.4 of 10 with whole numbers, 6.6 with quarters and 4.7 with tenths.

    Attempt 1:
    door black
    > fern
    = -1
    Attempt 2:
    door black
    > mist
    = 1
    Attempt 3:                                the running one
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NotRequired

from ...memory.records import Estimate, Transition
from ..prompt import Prompt
from ..state import ObservationChannel
from .attempts import EpisodePrompt, Layout, PromptPart

__all__ = ["AdvantagesPart"]

MAX_ALIKE = 2
"""Untried actions with one number that have a line each; more of them share one."""


class ShownAdvantages(ObservationChannel):
    """The present observation, and what memory says of each action."""

    estimates: NotRequired[list[Estimate]]


@dataclass(frozen=True, kw_only=True)
class AdvantagesPart(PromptPart[ShownAdvantages]):
    """The advantages of the actions."""

    advice: Prompt | None = None
    """The text around the lines, which stand at the end of the prompt; None: they stand before the steps, as attempts of one step."""
    one_step_layout: Layout = field(default=Layout())
    """Layout of those attempts."""

    def texts(self, state: ShownAdvantages, prompt: EpisodePrompt) -> Iterator[str]:
        """The advantages as attempts of one step; then without the smallest, the two smallest, and so on."""
        rated = _rated(state) if self.advice is None else []
        known = sorted((e for e in rated if not _is_untried(e)), key=lambda e: -abs(e.shift))
        head, write = self.one_step_layout.running_head, self.one_step_layout.steps
        for count in range(len(known), 0, -1):
            text = ""
            for number, estimate in enumerate(sorted(known[:count], key=lambda e: e.shift), 1):
                text += head(number) + write([Transition(state["observation"].text, estimate.action, round(estimate.shift))])
            yield text + head(count + 1)
        yield ""

    def request(self, state: ShownAdvantages) -> str:
        """The advantages as lines under the text that says what they are."""
        rated = _rated(state) if self.advice is not None else []
        return f"{self.advice.text(actions=advantage_lines(rated))}\n\n" if self.advice is not None and rated else ""


def advantage_lines(estimates: Sequence[Estimate]) -> str:
    """One line for each action, the best first; untried actions with the same number share one if they are many."""
    alike: dict[str, list[Estimate]] = {}
    for estimate in estimates:
        if _is_untried(estimate):
            alike.setdefault(f"{estimate.shift:.2f}", []).append(estimate)
    shared = {number: group for number, group in alike.items() if len(group) > MAX_ALIKE}
    lines = [
        (group[0], f"{'every other action' if len(shared) == 1 else ', '.join(map(_name, group))} (never tried)")
        for group in shared.values()
    ]
    for estimate in estimates:
        if not (_is_untried(estimate) and f"{estimate.shift:.2f}" in shared):
            lines.append((estimate, f"{_name(estimate)} ({_visits(estimate)})"))
    lines.sort(key=lambda one: -one[0].shift)
    return "\n".join(f"{round(estimate.shift, 2) + 0.0:+.2f} {line}" for estimate, line in lines)  # no -0.00


def _rated(state: ShownAdvantages) -> list[Estimate]:
    """The estimates of this step; none where memory tells no action from another."""
    estimates: list[Estimate] = state.get("estimates") or []
    return estimates if any(estimate.shift for estimate in estimates) else []


def _is_untried(estimate: Estimate) -> bool:
    """True if nothing speaks for or against the action: it was neither tried nor repeated here."""
    return estimate.count == 0 and estimate.shift >= 0


def _name(estimate: Estimate) -> str:
    return " ".join(estimate.action.split())


def _visits(estimate: Estimate) -> str:
    if _is_untried(estimate):
        return "never tried"
    count = max(1, round(estimate.count))
    return f"tried {count} time{'s' * (count != 1)}"
