"""Tool calls as decisions that can be learned, without the values that belong to one conversation.

    resolve(how='refund', order='A7')   ->   resolve(how='refund', order=...)

What is learned is the tool and the arguments that say what is done: those with a list of values in the tool's schema (enums,
literals, booleans), or those that the app names. All other values are left out (`...`): they belong to the conversation, and another
one must not see them. A remembered decision can be taken only where a call of the same tool gives these values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Any

from langchain_core.utils.function_calling import convert_to_openai_tool

from ...memory.conversations.messages import REPLY, read_call
from ...memory.errors import UserError

__all__ = ["DecisionForm", "ToolDecisions"]

LEFT_OUT = "..."
"""Stands for a value that belongs to one conversation."""


@dataclass(frozen=True)
class DecisionForm:
    """The decision that a call takes, without the values that belong to its conversation."""

    tool: str
    chosen: tuple[tuple[str, Any], ...]
    """Arguments that say what is done, by name."""
    left_out: tuple[str, ...]
    """Names of the other arguments that are given."""

    def __str__(self) -> str:
        """The text by which memory knows it."""
        parts = {name: f"{name}={value!r}" for name, value in self.chosen} | {
            name: f"{name}={LEFT_OUT}" for name in self.left_out
        }
        return f"{self.tool}({', '.join(parts[name] for name in sorted(parts))})"


@dataclass
class ToolDecisions:
    """The decisions among an agent's tool calls.

    Args:
        decide: names of the tools that are decisions; or tool -> names of the arguments that say what is done.
    """

    decide: Sequence[str] | Mapping[str, Sequence[str]]
    _schemas: dict[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    """Name of a tool -> its arguments' schemas, of all tools that were ever there."""
    _saying: dict[str, frozenset[str]] = field(default_factory=dict, repr=False)
    """Name of a tool -> its arguments that say what is done."""
    _open: frozenset[str] = field(default=frozenset(), repr=False)
    """Names of the tools that are there now."""

    def __post_init__(self) -> None:
        if isinstance(self.decide, str) or not self.decide:
            raise UserError(f"decide names the tools that are decisions, such as ['resolve']; got {self.decide!r}")

    def read_tools(self, tools: Sequence[Any]) -> bool:
        """Take note of the schemas of the tools that the agent has now; returns True if one is new or has changed.

        A tool that is gone for a while keeps its decisions in memory, but none of them can be taken.

        Raises:
            UserError: an argument that was named is none of the tool's.
        """
        found: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = convert_to_openai_tool(tool)["function"]
            if function["name"] in self.decide:
                found[function["name"]] = function.get("parameters", {}).get("properties", {})
        if isinstance(self.decide, Mapping):
            for name, named in self.decide.items():
                if wrong := [one for one in named if name in found and one not in found[name]]:
                    raise UserError(
                        f"decide: the tool {name} has no argument {wrong[0]!r}; it has {', '.join(found[name]) or 'none'}"
                    )
        self._open = frozenset(found)
        changed = any(self._schemas.get(name) != schema for name, schema in found.items())
        if changed:
            self._schemas = {**self._schemas, **found}
            self._saying = {name: frozenset(self._arguments_of_decision(name)) for name in self._schemas}
        return changed

    def form(self, call: Mapping[str, Any]) -> DecisionForm | None:
        """The decision that a call (`name`, `args`) takes; None if it is none, or its tool is gone."""
        name, arguments = call["name"], call["args"]
        if name not in self._schemas:
            return None
        saying, names = self._saying[name], sorted(arguments)
        chosen = tuple([(one, arguments[one]) for one in names if one in saying])
        return DecisionForm(name, chosen, tuple([one for one in names if one not in saying]))

    def form_of_text(self, action: str) -> DecisionForm | None:
        """The decision in the text of an action (`memory.conversations.messages.call_text`); None if it is none."""
        if action.startswith(REPLY) or action.partition("(")[0] not in self._schemas:
            return None
        try:
            name, arguments = read_call(action)
        except UserError:
            return None
        return self.form({"name": name, "args": arguments})

    def form_of_memory(self, text: str) -> DecisionForm | None:
        """The decision that `str(form)` wrote; None if the agent has no such tool any more."""
        form = _read_form(text)
        return form if form.tool in self._schemas else None

    def complete(self, form: DecisionForm, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """The arguments of a call that takes a decision in this conversation.

        Args:
            form: the decision.
            arguments: those of a call of the same tool in this conversation.

        Returns:
            None: a value is missing, or a chosen one is no longer among those that the tool takes.
        """
        schema = self._schemas.get(form.tool)
        if schema is None or form.tool not in self._open or any(name not in arguments for name in form.left_out):
            return None
        for name, value in form.chosen:
            values = _listed_values(schema.get(name, {}))
            if name not in schema or (values is not None and value not in values):
                return None
        return {**{name: arguments[name] for name in form.left_out}, **dict(form.chosen)}

    def alternatives(self, form: DecisionForm, most: int = 64) -> list[DecisionForm]:
        """All decisions with the same tool and arguments, in the order of the listed values.

        Raises:
            UserError: an argument that says what is done has no list of values, or there are more than `most`.
        """
        lists = []
        for name, _ in form.chosen:
            values = _listed_values(self._schemas[form.tool].get(name, {}))
            if values is None:
                raise UserError(
                    f"the tool {form.tool} lists no values for {name!r}, so its calls cannot be enumerated; give it a Literal type, or take candidates='samples'"
                )
            lists.append([(name, value) for value in values])
        if math.prod(map(len, lists)) > most:
            raise UserError(f"the tool {form.tool} has more than {most} calls to weigh; take candidates='samples'")
        return [DecisionForm(form.tool, chosen, form.left_out) for chosen in product(*lists)]

    def _arguments_of_decision(self, tool: str) -> list[str]:
        if isinstance(self.decide, Mapping):
            return list(self.decide[tool])
        return [name for name, schema in self._schemas[tool].items() if _listed_values(schema) is not None]


@lru_cache(maxsize=10_000)
def _read_form(text: str) -> DecisionForm:
    name, arguments = read_call(text)
    chosen = tuple((one, value) for one, value in arguments.items() if value is not ...)
    return DecisionForm(name, chosen, tuple(one for one, value in arguments.items() if value is ...))


def _listed_values(schema: Mapping[str, Any]) -> list[Any] | None:
    if "enum" in schema:
        return list(schema["enum"])
    if "const" in schema:
        return [schema["const"]]
    if schema.get("type") == "boolean":
        return [True, False]
    if options := schema.get("anyOf"):
        lists = [_listed_values(option) if option.get("type") != "null" else [None] for option in options]
        return None if any(one is None for one in lists) else [value for one in lists for value in one or ()]
    return None
