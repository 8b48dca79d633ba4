"""A chat model that says given things in turn, and keeps what it was asked."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field


class ScriptedChat(BaseChatModel):
    """Says the replies one after another, and begins anew after the last."""

    replies: list[str]
    asked: list[list[BaseMessage]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        self.asked.append(list(messages))
        reply = self.replies[(len(self.asked) - 1) % len(self.replies)]
        usage: Any = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        return ChatResult(generations=[ChatGeneration(message=AIMessage(reply, usage_metadata=usage))])

    def prompt(self, n: int) -> str:
        """The text of the last message of request n, from 0."""
        return str(self.asked[n][-1].text)
