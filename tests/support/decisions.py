"""A stand-in for `langchain_core.decisions`, in the shape that langchain-core 1.8 documents, for older versions that lack it."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import Any

from langchain_core.runnables import RunnableConfig, RunnableSerializable
from langchain_core.runnables.config import run_in_executor
from pydantic import BaseModel


class Choice(BaseModel):
    type: str = "choice"
    criteria: dict[str, Any]
    instructions: str


class Noul(BaseModel):
    type: str = "noul"
    instructions: str


class Score(BaseModel):
    type: str = "score"
    criteria: list[Any]
    instructions: str


class ChoiceAnswer(BaseModel):
    type: str
    choice: str
    probabilities: dict[str, float]
    confidence: float


class NoulAnswer(BaseModel):
    type: str
    noul: float


class ScoreAnswer(BaseModel):
    type: str
    score: float
    legend: dict[int, Any]
    probabilities: dict[int, float]
    confidence: float


class ClassifierResponse(BaseModel):
    model: str
    answers: dict[str, Any]
    usage: Any = None
    request_id: str | None = None


class BaseDecisionModel(RunnableSerializable[Any, Any], ABC):
    model: str

    @property
    @abstractmethod
    def _provider(self) -> str: ...

    @abstractmethod
    def _classify(self, state: Any, questions: dict[str, Any]) -> Any: ...

    async def _aclassify(self, state: Any, questions: dict[str, Any]) -> Any:
        return await run_in_executor(None, self._classify, state, questions)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:
        def classify(request: Any) -> Any:
            return self._classify(request["state"], dict(request["questions"]))

        return self._call_with_config(classify, input, config, run_type="llm")

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:
        async def classify(request: Any) -> Any:
            return await self._aclassify(request["state"], dict(request["questions"]))

        return await self._acall_with_config(classify, input, config, run_type="llm")


def decisions() -> Any:
    """The module `langchain_core.decisions`: LangChain's own, or this one in its place."""
    try:
        import langchain_core.decisions as found  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        found = sys.modules["langchain_core.decisions"] = sys.modules[__name__]
    return found
