"""An agent in a few words, for a model that advises it: how it was told to work, and which tools it has."""

from __future__ import annotations

from textwrap import shorten
from typing import TYPE_CHECKING, Any

from ...nodes.ask import estimate_tokens
from ...nodes.fence import escape_tags
from .agent_identity import tool_schema

if TYPE_CHECKING:
    from langchain.agents.middleware import ModelRequest

__all__ = ["agent_card"]

MAX_INSTRUCTION_TOKENS = 500
"""Tokens of the agent's instructions that are shown: the first ones."""
MAX_DESCRIPTION_CHARS = 80
"""Characters of a tool's description that are shown: about 20 tokens."""


def agent_card(request: ModelRequest[Any]) -> str:
    """The first 500 tokens of an agent's instructions, and its tools: a line each, with what it does in a few words."""
    told = str(request.system_message.text).strip() if request.system_message else ""
    while (tokens := estimate_tokens(told)) > MAX_INSTRUCTION_TOKENS:
        told = told[: len(told) * MAX_INSTRUCTION_TOKENS // tokens]
    tools = [tool_schema(tool) for tool in request.tools]
    lines = [f"- {tool['name']}: {first_words(tool.get('description') or '')}".rstrip(": ") for tool in tools]
    begins = f"How the agent was told to work:\n<instructions>\n{escape_tags(told)}\n</instructions>\n" if told else ""
    return begins + "\n".join(["Its tools:", *map(escape_tags, lines)] if lines else ["Its tools: none"]) + "\n"


def first_words(text: str) -> str:
    """The first line of a description, cut at a word after `MAX_DESCRIPTION_CHARS`."""
    return shorten(text.strip().partition("\n")[0], MAX_DESCRIPTION_CHARS, placeholder=" ...")
