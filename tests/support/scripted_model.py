"""A model, and no chat model, that answers as it is told."""

from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable


class Scripted(Runnable[Any, Any]):
    """Answers in turn, the last answer again and again; keeps what it was asked."""

    def __init__(self, *replies: str, of: Callable[[str], str] | None = None) -> None:
        self.replies, self.of = list(replies), of
        self.asked: list[list[BaseMessage]] = []

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> AIMessage:
        self.asked.append(input)
        if self.of is not None:
            return AIMessage(self.of(str(input[0].text)))
        return AIMessage(self.replies.pop(0) if len(self.replies) > 1 else self.replies[0])

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> AIMessage:
        return self.invoke(input)

    @property
    def prompts(self) -> list[str]:
        return ["\n".join(str(message.text) for message in messages) for messages in self.asked]
