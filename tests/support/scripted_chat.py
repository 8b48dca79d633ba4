"""Chat models of tests: one whose replies a subclass writes, and one that says given things in turn."""

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field


def counted(text: str, read: int = 10, written: int = 5) -> AIMessage:
    """A reply with its tokens."""
    return AIMessage(text, usage_metadata={"input_tokens": read, "output_tokens": written, "total_tokens": read + written})


class SayingChat(BaseChatModel):
    """Replies what its `say` makes of the messages and of the call's options."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def say(self, messages: list[BaseMessage], **options: Any) -> str | AIMessage:
        raise NotImplementedError

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        said = self.say(messages, **options)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(said) if isinstance(said, str) else said)])


class ScriptedChat(SayingChat):
    """Says the replies one after another, and begins anew after the last; keeps what it was asked."""

    replies: list[str]
    asked: list[list[BaseMessage]] = Field(default_factory=list)

    def say(self, messages: list[BaseMessage], **options: Any) -> AIMessage:
        self.asked.append(list(messages))
        return counted(self.replies[(len(self.asked) - 1) % len(self.replies)])

    def prompt(self, n: int) -> str:
        """The text of the last message of request n, from 0."""
        return str(self.asked[n][-1].text)
