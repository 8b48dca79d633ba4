"""A support agent with tools, and a scripted model that guesses how to resolve an issue, or heeds what its prompt says."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from random import Random
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

RIGHT = {"arrived broken": "replace", "never arrived": "refund", "wrong size": "exchange", "was charged twice": "credit"}
"""What the customer says -> the only resolution that helps."""
HOWS = ("refund", "replace", "exchange", "credit")


@tool
def lookup_order(order: str) -> str:
    """Look an order up."""
    return f"order {order}: shipped"


@tool
def resolve(how: Literal["refund", "replace", "exchange", "credit"], order: str) -> str:
    """Resolve the customer's issue."""
    return f"{order}: {how} arranged"


class SupportModel(BaseChatModel):
    """Looks the order up, then resolves by a guess; a strategy, lesson or rewarded attempt in its prompt is heeded.

    The guess depends on a counter, so that every sample is another one.
    """

    seed: int = 0
    asked: int = 0
    heeds: bool = True
    bound: tuple[str, ...] = ()

    @property
    def _llm_type(self) -> str:
        return "support"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.say(messages))])

    def say(self, messages: Sequence[BaseMessage]) -> AIMessage:
        """The reply."""
        self.asked += 1
        if str(messages[0].text).startswith("An agent with tools is talking"):
            listed = re.findall(r"^- (resolve\(.*\))$", str(messages[-1].text), re.MULTILINE)
            return AIMessage("All may be right. " + json.dumps({"options": [{"action": a, "confidence": 25} for a in listed]}))
        start = max(n for n, m in enumerate(messages) if isinstance(m, HumanMessage))
        order = re.search(r"order (\w+)", messages[start].text)
        results = [m for m in messages[start:] if isinstance(m, ToolMessage)]
        id = f"call-{self.seed}-{self.asked}"
        if not results and order:
            return AIMessage("", tool_calls=[{"name": "lookup_order", "args": {"order": order[1]}, "id": id}])
        if order and not any(m.name == "resolve" for m in results):
            how = Random(f"{self.seed}/{self.asked}").choice(HOWS)
            logprobs = {"logprobs": {"content": [{"token": how, "logprob": -1.4}]}}
            call = {"name": "resolve", "args": {"how": how, "order": order[1]}, "id": id}
            return AIMessage("", tool_calls=[call], response_metadata=logprobs)
        return AIMessage("It is done.")


def issue(messages: Sequence[BaseMessage]) -> str:
    """The state of a support chat: the kind of issue."""
    said = next((m.text for m in reversed(messages) if isinstance(m, HumanMessage)), "")
    return next((kind for kind in RIGHT if kind in said), said)


def ticket(number: int) -> tuple[str, str]:
    """(the customer's words, the kind of issue)."""
    kind = [*RIGHT][number % len(RIGHT)]
    return f"My order A{number} {kind}.", kind


def reward(messages: Sequence[BaseMessage], kind: str) -> float:
    """1 if the issue was resolved in the right way."""
    calls = [call for m in messages if isinstance(m, AIMessage) for call in m.tool_calls if call["name"] == "resolve"]
    return float(bool(calls) and calls[-1]["args"]["how"] == RIGHT[kind])
