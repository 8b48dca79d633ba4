"""Sources of rewards for an agent's turns: functions, judges, and comparisons of attempts with each other.

A source is called with the messages of a conversation, and says

- a number; or true for a full success, false for a failure;
- a pair (number, words);
- a mapping with `score` and perhaps `comment`, as evaluators of openevals return it;
- None: it cannot tell. A missing reward is not 0.

`judge_source` makes one of an evaluator with openevals' arguments.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from ...memory.conversations.turns import Rating, finite_reward
from ...memory.errors import UserError

__all__ = ["RewardScale", "judge_source", "read_reward"]

RewardSource = Callable[[Sequence[AnyMessage]], Any]
"""The messages of a conversation -> a reward; see the top of this file."""


@dataclass(frozen=True)
class RewardScale:
    """The scale of an app's rewards, brought onto one from -1 to 1, where methods take a reward above 0 for a success.

    Raises:
        UserError: the range is none.
    """

    range: tuple[float, float] | None = None
    """The least and the greatest reward, such as (1, 5) for stars; None: rewards from -1 to 1 are kept as they are."""

    def __post_init__(self) -> None:
        if self.range is not None and not (len(self.range) == 2 and -math.inf < self.range[0] < self.range[1] < math.inf):
            raise UserError(
                f"reward_range is the least and the greatest reward that is given, such as (1, 5); got {self.range!r}"
            )

    @property
    def least(self) -> float:
        """The reward of a failure."""
        return 0.0 if self.range is None else -1.0

    @property
    def most(self) -> float:
        """The reward of a full success."""
        return 1.0

    def read(self, value: Any) -> float:
        """A reward of the app on our scale. True is a full success, False a failure, whatever the range.

        Raises:
            UserError: it is no number, or lies outside the range.
        """
        low, high = (-1.0, 1.0) if self.range is None else self.range
        if isinstance(value, bool):
            return self.most if value else self.least
        number = finite_reward(value)
        if not low <= number <= high:
            remedy = "; where rewards have another scale, say reward_range=(least, greatest)" if self.range is None else ""
            raise UserError(f"a reward is a number from {low:g} to {high:g}, got {number:g}{remedy}")
        return number if self.range is None else 2 * (number - low) / (high - low) - 1


def read_reward(source: RewardSource, said: Any) -> tuple[float, str] | None:
    """The reward in an answer of a source, a number or a boolean, and its words; None if it cannot tell.

    Args:
        source: the source, for the error's sake.
        said: its answer, which was awaited where it has to be.

    Raises:
        UserError: it said something else, or a number that is not finite.
    """
    found = said[0] if isinstance(said, list) and said else said  # a judge's first result
    text = ""
    if isinstance(found, Mapping):
        text, found = str(found.get("comment") or ""), found.get("score")
    elif isinstance(found, tuple) and len(found) == 2:
        found, text = found[0], str(found[1] or "")
    if found is None:
        return None
    try:
        return found if isinstance(found, bool) else finite_reward(found), text
    except UserError as error:
        raise UserError(
            f"asked {describe_source(source)} for a finite number, a pair (number, words), a mapping with score, or None; got {said!r}"
        ) from error


def describe_source(source: RewardSource) -> str:
    """The name under which a source's ratings stand."""
    return str(getattr(source, "__name__", type(source).__name__))


def judge_source(judge: Callable[..., Any]) -> RewardSource:
    """A source that asks an evaluator with openevals' arguments: `judge(inputs=…, outputs=…)`.

    `inputs` is the user's last message, `outputs` the agent's last reply. An evaluator that returns a list is asked for its first
    result.
    """

    def ask(messages: Sequence[AnyMessage]) -> Any:
        inputs = next((str(m.text) for m in reversed(messages) if isinstance(m, HumanMessage)), "")
        outputs = next((str(m.text) for m in reversed(messages) if isinstance(m, AIMessage)), "")
        return judge(inputs=inputs, outputs=outputs)

    ask.__name__ = describe_source(judge)
    return ask


def rating_text(rating: Rating) -> str:
    """A rating in words, in one line."""
    given = "no reward" if rating.reward is None else f"reward {rating.reward:g}"
    if len(rating.readers) > 1:
        given += f", the low median of {len(rating.readers)} readers"
    unlearned = "".join(f"; the words of {name} are not learned: the feedback {why}" for name, why in rating.unlearned.items())
    return f"{rating.source} gave it {given}{': ' * bool(rating.words)}{' '.join(rating.words.split())}{unlearned}"
