"""Judges that compare two answers to the same task: an attempt with a reference answer, and the answers of two methods.

Judges favour a position, so both orders have to be asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, cast

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig
from typing_extensions import TypedDict

from ...memory.records import Task, Usage
from ...memory.storage.journal import Journal
from ..ask import Ask, State
from ..prompt import Prompt
from ..reply_schemas import NUMBER, reply_schema
from ..state import EpisodePlace
from .judge import CountedAttempt, ModelRewards, StepCount, missing_rewards, read_score, reward_last_step

__all__ = ["PairwiseJudge", "pairwise_judge", "preference_judge"]

_LIMITS = (1.0, 10.0)
"""The least and the greatest score of the first answer; 5 means as good as each other."""


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

    The state holds `instruction`, `first` and `second`. If no reply can be read, `preferred` is None.

    Args:
        model: the judge.
        prompts: a directory whose files override ours.
    """
    prompt = Prompt.load("judge/pairwise", prompts)

    def messages(state: AnswerPair) -> list[BaseMessage]:
        return prompt.messages(instruction=state["instruction"], first=state["first"], second=state["second"])

    def read(reply: AIMessage, state: AnswerPair) -> Preference:
        return {"preferred": read_score(reply, _LIMITS)}

    again, schema = Prompt.load("ask/again", prompts), reply_schema(score=NUMBER)
    return Ask(
        "judge/pairwise", model, messages, read, again, on_bad_reply=lambda bad, state: {"preferred": None}, reply_schema=schema
    )


def pairwise_judge(
    model: Runnable[Any, Any], journal: Journal, reference: Callable[[Task], Sequence[str]], prompts: Path | None = None
) -> PairwiseJudge:
    """Compare the attempt with one fixed reference answer of its task: coherence and quality, where 5 means equally good.

    The model is asked twice, since judges favour a position: s in [1, 10] with the attempt first, s' with the reference first.
    The reward, on the last step, is the mean of s and 10 - s', in [.5, 9.5]; a judge that goes only by position gives 5. If
    one of the two is missing, so is the reward, as a single one would favour a position.

    Args:
        model: the judge.
        journal: holds the attempt.
        reference: task -> the answer to compare with, as a text or as actions (an environment's `gold`). The better it is, the better
            rewards distinguish good attempts.
        prompts: a directory whose files override ours.
    """
    prompt, again = Prompt.load("judge/pairwise", prompts), Prompt.load("ask/again", prompts)
    schema = reply_schema(score=NUMBER)

    def ask_in_order(swapped: bool) -> Ask[CountedAttempt, ModelRewards]:
        def messages(state: CountedAttempt) -> list[BaseMessage]:
            answers = [
                _answer_text([step.action for step in journal.history(state["head"]) if not step.is_lost]),
                _answer_text(reference(state["task"])),
            ]
            first, second = reversed(answers) if swapped else answers
            return prompt.messages(instruction=state["task"].instruction, first=first, second=second)

        def read(reply: AIMessage, state: CountedAttempt) -> ModelRewards:
            score = read_score(reply, _LIMITS)
            return reward_last_step(10 - score if swapped else score, state)

        return Ask("judge/pairwise", model, messages, read, again, on_bad_reply=missing_rewards, reply_schema=schema)

    return PairwiseJudge((ask_in_order(False), ask_in_order(True)))


def _answer_text(answer: Sequence[str]) -> str:
    return answer if isinstance(answer, str) else "\n".join(answer)


class JudgeInput(EpisodePlace, StepCount):
    """The place of an attempt, which seeds the judge, and the number of its steps; it reads more."""


@dataclass(frozen=True)
class PairwiseJudge(Runnable[JudgeInput | State, ModelRewards]):
    """A comparison that is asked for in two orders. The reward of a step is the mean of both, and missing if one of them is."""

    role: ClassVar[str] = "model"

    orders: tuple[Ask[CountedAttempt, ModelRewards], ...]

    def invoke(self, input: JudgeInput | State, config: RunnableConfig | None = None, **kwargs: Any) -> ModelRewards:
        return self._combine([one.invoke(_place(input, n), config) for n, one in enumerate(self.orders)])

    async def ainvoke(self, input: JudgeInput | State, config: RunnableConfig | None = None, **kwargs: Any) -> ModelRewards:
        asked = [one.ainvoke(_place(input, n), config) for n, one in enumerate(self.orders)]
        return self._combine(await asyncio.gather(*asked))

    @staticmethod
    def _combine(judged: Sequence[ModelRewards]) -> ModelRewards:
        steps = zip(*(one["rewards"] for one in judged), strict=True)
        return {
            "rewards": [None if None in both else fmean(cast("Sequence[float]", both)) for both in steps],
            "unjudged": "; ".join(dict.fromkeys(filter(None, (one["unjudged"] for one in judged)))),
            "usage": sum((one["usage"] for one in judged), Usage()),
        }


def _place(state: JudgeInput | State, n: int) -> JudgeInput | State:
    """The state with a run name of its own for each order, since a model that is seeded by the run's name would draw the same."""
    return {**state, "run": f"{state['run']}/judge/{n}"} if n else state
