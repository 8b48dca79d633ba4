"""A chat model that acts in text worlds and writes beside it, each as a function says."""

from collections.abc import Callable
from typing import Any

from langchain_core.messages import BaseMessage
from pydantic import Field
from scripted_chat import SayingChat


class ActingAgent(SayingChat):
    """Acts and writes as two functions say, and keeps what it was asked."""

    act: Callable[[str], str]
    """Prompt -> action."""
    write: Callable[[int], str]
    """Number of the question that asks for no action, from 0 -> the reply."""
    acted: list[str] = Field(default_factory=list)
    """The prompts for actions."""
    wrote: list[str] = Field(default_factory=list)
    """The other prompts."""
    fails_at: int = -1
    """The question that asks for no action at which the process dies."""

    def say(self, messages: list[BaseMessage], **options: Any) -> str:
        asked = "\n".join(str(message.text) for message in messages)
        if "You act to finish" in asked:
            self.acted.append(asked)
            return f"Action: {self.act(asked)}"
        self.wrote.append(asked)
        if len(self.wrote) - 1 == self.fails_at:
            raise RuntimeError("the process was killed")
        return self.write(len(self.wrote) - 1)
