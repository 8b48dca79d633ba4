"""A chat model that calls its tools at random: what an agent does that knows nothing. No language model is behind it.

It is to agents with tools what the uniform prior is to games: a baseline, and a start for methods that learn without a model. After a
message of the user it calls one of its tools, with arguments drawn from the values that the tool's schema lists; after the results it
says that it is done.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_core.utils.json_schema import dereference_refs
from pydantic import PrivateAttr

from ...memory.errors import UserError

__all__ = ["HeedfulToolModel", "RandomToolModel"]


class RandomToolModel(BaseChatModel):
    """Calls one of its tools at random after each message of the user, then says that it is done.

    Args:
        seed: of its draws.

    Raises:
        UserError: a tool has an argument whose values are not listed (an enum, a `Literal`, a boolean), and that is required.
    """

    seed: int = 0
    _random: Random = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._random = Random(self.seed)

    @property
    def _llm_type(self) -> str:
        return "random-tools"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        """The model with these tools."""
        return self.bind(tools=[convert_to_openai_tool(tool)["function"] for tool in tools])

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        tools = kwargs.get("tools") or []
        if not tools or not messages or isinstance(messages[-1], ToolMessage):
            return ChatResult(generations=[ChatGeneration(message=AIMessage("It is done."))])
        tool = self._random.choice(tools)
        parameters = dereference_refs(tool.get("parameters", {}))
        properties = parameters.get("properties", {})
        required = parameters.get("required", ())
        arguments = {name: self._draw(tool["name"], name, schema) for name, schema in properties.items() if name in required}
        call = {"name": tool["name"], "args": arguments, "id": f"call-{self._random.getrandbits(64):016x}"}
        return ChatResult(generations=[ChatGeneration(message=AIMessage("", tool_calls=[call]))])

    def _draw(self, tool: str, name: str, schema: Mapping[str, Any]) -> Any:
        kind, properties = schema.get("type"), schema.get("properties", {})
        if union := schema.get("anyOf") or schema.get("oneOf"):
            return self._draw(tool, name, self._random.choice(union))
        if isinstance(kind, list):
            return self._draw(tool, name, {**schema, "type": self._random.choice(kind)})
        if "const" in schema or kind == "null":
            return schema.get("const")
        if "enum" in schema or kind == "boolean":
            return self._random.choice(schema.get("enum", [True, False]))
        if kind == "integer" and {"minimum", "maximum"} <= schema.keys():
            return self._random.randint(int(schema["minimum"]), int(schema["maximum"]))
        if kind == "object" and properties:
            return {key: self._draw(tool, key, value) for key, value in properties.items()}
        raise UserError(
            f"RandomToolModel draws from listed values, and the tool {tool} lists none for {name!r} (it takes any {kind or 'value'}); "
            "give it a Literal type or a default"
        )


_LESSON = re.compile(r"Of '([^\n]*)': (\w+)\(([^\n]*)\) was (right|wrong)(?: \(from (\d+))?")
_ATTEMPT = re.compile(r"Task: ([^\n]*)\n.*?Action: (\w+)\(([^\n]*)\)\n.*?Total reward: (-?[\d.]+)", re.DOTALL)
MOST_DRAWS = 50
"""Draws of a call after which the model makes one that a lesson calls wrong."""


class HeedfulToolModel(RandomToolModel):
    """A toy that reads: it guesses as `RandomToolModel` does, but not against the lessons in its prompt.

    Asked as ReasoningBank's critic, it says whether the first call of the conversation was right. Each lesson speaks for
    or against its call, the more, the more its words are like the user's, and the more conversations are behind it.
    """

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        told = str(messages[0].text) if messages and messages[0].type == "system" else ""
        if "library of lessons" in told and not kwargs.get("tools"):
            found = _ATTEMPT.search(str(messages[-1].text))
            said = f"Of '{found[1]}': {found[2]}({found[3]}) was {'right' if float(found[4]) > 0 else 'wrong'}" if found else ""
            items = [{"title": "A case", "description": "for cases like it", "content": said}] if said else []
            return ChatResult(generations=[ChatGeneration(message=AIMessage(json.dumps({"items": items})))])
        result = super()._generate(messages, stop, run_manager, **kwargs)
        if not (calls := _calls(result)):
            return result
        told, asked = "\n".join(str(one.text) for one in messages), str(messages[-1].text).partition("\n\n")[0]
        votes = defaultdict[tuple[str, str], float](float)
        for case, tool, given, verdict, count in _LESSON.findall(told):
            likeness = len(_words(case) & _words(asked)) / len(_words(case) | _words(asked) | {""})
            votes[tool, given] += likeness**2 * int(count or 1) * (1 if verdict == "right" else -1)
        best = max(votes, key=lambda call: votes[call], default=None)
        for _ in range(MOST_DRAWS):
            made = (calls[0]["name"], ", ".join(f"{name}={value!r}" for name, value in sorted(calls[0]["args"].items())))
            if made == best if best and votes[best] > 0 else votes[made] >= 0:
                break
            result = super()._generate(messages, stop, run_manager, **kwargs)
            calls = _calls(result)
        return result


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower()))


def _calls(result: ChatResult) -> list[Any]:
    message = result.generations[0].message
    return list(message.tool_calls) if isinstance(message, AIMessage) else []
