"""An agent in a few words, for a model that advises it: how it was told to work, and which tools it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...nodes.ask import estimate_tokens
from ...nodes.fence import escape_tags

if TYPE_CHECKING:
    from langchain.agents.middleware import ModelRequest

__all__ = ["agent_card"]

MAX_INSTRUCTION_TOKENS = 500
"""Tokens of the agent's instructions that are shown: the first ones."""


def agent_card(request: ModelRequest[Any]) -> str:
    """The first 500 tokens of an agent's instructions, and the names of its tools."""
    told = str(request.system_message.text).strip() if request.system_message else ""
    while (tokens := estimate_tokens(told)) > MAX_INSTRUCTION_TOKENS:
        told = told[: len(told) * MAX_INSTRUCTION_TOKENS // tokens]
    named = [tool.get("function", tool).get("name", "") if isinstance(tool, dict) else tool.name for tool in request.tools]
    begins = f"How the agent was told to work:\n<instructions>\n{escape_tags(told)}\n</instructions>\n" if told else ""
    return f"{begins}Its tools: {', '.join(filter(None, named)) or 'none'}\n"
