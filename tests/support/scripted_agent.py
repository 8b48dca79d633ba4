"""A chat model that makes given tool calls, for agents of `create_agent`."""

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import BaseTool
from pydantic import Field
from scripted_chat import SayingChat


class ScriptedCalls(SayingChat):
    """Makes one call a reply, in order, from (name, arguments) pairs; at None, and at the end, it says `text` instead."""

    calls: list[tuple[str, dict[str, Any]] | None]
    text: str = "That is all."
    shown: list[str] = Field(default_factory=list)
    """Names of the tools that it was given with each reply, as one text."""
    system: list[str] = Field(default_factory=list)
    """System messages that it read."""

    def bind_tools(self, tools: Sequence[BaseTool | dict[str, Any]], **kwargs: Any) -> Any:
        self.shown.append(" ".join(tool["function"]["name"] if isinstance(tool, dict) else tool.name for tool in tools))
        return self

    def say(self, messages: list[BaseMessage], **options: Any) -> AIMessage:
        self.system += [message.text for message in messages if message.type == "system"]
        call = self.calls.pop(0) if self.calls else None
        if call is None:
            return AIMessage(self.text)
        return AIMessage("", tool_calls=[{"name": call[0], "args": call[1], "id": f"call-{len(messages)}"}])
