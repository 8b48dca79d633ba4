"""Rated conversations as a log of Inspect (`inspect-ai`): a file that `inspect view` shows and its tools analyse.

    write_inspect_log(trajectories, "conversations.eval")

A conversation is a sample, with its messages and tool calls. Its reward is the score `reward`, and words of feedback are the score's
explanation. A conversation without a reward has no score: that is not a score of 0.

Needs `pip install inspect-ai`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from ..errors import UserError
from ..records import Trajectory
from .messages import messages

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog  # type: ignore[import-not-found, unused-ignore]

__all__ = ["inspect_log", "write_inspect_log"]

SCORE = "reward"
"""The name of the score."""


def write_inspect_log(trajectories: Sequence[Trajectory], path: Path | str, model_name: str = "") -> None:
    """Write conversations as a log of Inspect; the suffix gives its form, `.eval` or `.json`.

    Raises:
        UserError: there is no conversation, the suffix is another one, or `inspect-ai` is missing.
    """
    if Path(path).suffix not in (".eval", ".json"):
        raise UserError(f"a log of Inspect is a file .eval or .json; got {path}")
    log = inspect_log(trajectories, model_name)
    from inspect_ai.log import write_eval_log

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_eval_log(log, str(path))


def inspect_log(trajectories: Sequence[Trajectory], model_name: str = "") -> EvalLog:
    """The log of these conversations, one sample each.

    Args:
        trajectories: rated or not.
        model_name: the model that spoke, `provider/name`; unknown if not given.

    Raises:
        UserError: there is no conversation, or `inspect-ai` is missing.
    """
    try:
        from inspect_ai import log  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise UserError("logs of Inspect need inspect-ai, which is missing: pip install inspect-ai") from error
    if not trajectories:
        raise UserError("asked for a log of Inspect, and there is no conversation to write")
    rewards = [one.value for one in trajectories if one.value is not None]
    mean = {"mean": log.EvalMetric(name="mean", value=sum(rewards) / len(rewards))} if rewards else {}
    count, unscored = len(trajectories), len(trajectories) - len(rewards)
    score = log.EvalScore(name=SCORE, scorer=SCORE, scored_samples=len(rewards), unscored_samples=unscored, metrics=mean)
    return log.EvalLog(
        status="success",
        eval=log.EvalSpec(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            task=trajectories[0].domain or "agent",
            dataset=log.EvalDataset(name="conversations", samples=count),
            model=model_name or "unknown/unknown",
            config=log.EvalConfig(),
        ),
        results=log.EvalResults(total_samples=count, completed_samples=count, scores=[score]),
        samples=[_sample(one) for one in trajectories],
    )


def _sample(trajectory: Trajectory) -> Any:
    """A conversation as a sample."""
    from inspect_ai.log import EvalSample
    from inspect_ai.scorer import Score  # type: ignore[import-not-found, unused-ignore]

    value, shown = trajectory.value, [_message(one) for one in messages(trajectory)]
    scores = None if value is None else {SCORE: Score(value=value, explanation=trajectory.note or None)}
    told = {"note": trajectory.note, "task": trajectory.task.id, "domain": trajectory.domain, "thread": trajectory.run}
    return EvalSample(
        id=trajectory.id,
        epoch=1,
        input=trajectory.task.instruction or (shown[0].text if shown else ""),
        target="",
        messages=shown,
        scores=scores,
        metadata={name: value for name, value in told.items() if value},
    )


def _message(message: AnyMessage) -> Any:
    """A message in Inspect's form."""
    from inspect_ai.model import (  # type: ignore[import-not-found, unused-ignore]
        ChatMessageAssistant,
        ChatMessageTool,
        ChatMessageUser,
    )
    from inspect_ai.tool import ToolCall  # type: ignore[import-not-found, unused-ignore]

    text = str(message.text)
    if isinstance(message, AIMessage):
        calls = [ToolCall(id=c["id"] or "", function=c["name"], arguments=c["args"]) for c in message.tool_calls]
        return ChatMessageAssistant(content=text, tool_calls=calls or None)
    if isinstance(message, ToolMessage):
        return ChatMessageTool(content=text, tool_call_id=message.tool_call_id, function=message.name)
    assert isinstance(message, HumanMessage)
    return ChatMessageUser(content=text)
