"""A judge that compares two answers to the same task, for win rates between methods."""

from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable
from typing_extensions import TypedDict

from ..ask import Ask
from ..prompt import Prompt
from ..reply_schemas import NUMBER, reply_schema
from .judge import COMPARISON, read_score

__all__ = ["preference_judge"]


class AnswerPair(TypedDict):
    """Two answers to a task."""

    instruction: str
    first: str
    second: str


class Preference(TypedDict):
    """The grade of the first of two answers against the second."""

    preferred: float | None
    """From 1 to 10; None: no reply could be read."""


def preference_judge(model: Runnable[Any, Any], prompts: Path | None = None) -> Ask[AnswerPair, Preference]:
    """Ask how good the first answer is against the second, from 1 to 10, where 5 means as good as each other: the channel `preferred`.

    The state holds `instruction`, `first` and `second`. Judges favour a position, so both orders have to be asked for. If no reply can
    be read, `preferred` is None.

    Args:
        model: the judge.
        prompts: a directory whose files override ours.
    """
    prompt = Prompt.load("judge/pairwise", prompts)

    def messages(state: AnswerPair) -> list[BaseMessage]:
        return prompt.messages(instruction=state["instruction"], first=state["first"], second=state["second"])

    def read(reply: AIMessage, state: AnswerPair) -> Preference:
        return {"preferred": read_score(reply, COMPARISON)}

    again, schema = Prompt.load("ask/again", prompts), reply_schema(score=NUMBER)
    return Ask(
        "judge/pairwise", model, messages, read, again, on_bad_reply=lambda bad, state: {"preferred": None}, reply_schema=schema
    )
