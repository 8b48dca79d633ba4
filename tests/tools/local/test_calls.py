"""Tools of a local model: calls held by a grammar, agents that use them, and what callbacks see."""

import json
from collections.abc import Callable
from enum import Enum
from typing import Any, Literal

import pytest
from chats import learn_by_heart
from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph import START, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict, override

from learngraph.memory.errors import UserError
from learngraph.tools.local.chats import call_text, calls_as_text
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.models.models import open_model

CALLED: list[tuple[str, Any]] = []


@tool
def resolve(action: Literal["refund", "reship"], urgent: bool) -> str:
    """Resolve the ticket."""
    CALLED.append(("resolve", action))
    return f"done: {action}"


@tool
def escalate() -> str:
    """Hand the ticket to a person."""
    CALLED.append(("escalate", None))
    return "handed over"


@tool
def search(query: str) -> str:
    """Search the handbook."""
    return "nothing"


@pytest.fixture
def writer(hermes: str) -> LocalChatModel:
    """A model whose template writes tool calls, with a grammar."""
    pytest.importorskip("llguidance")
    return LocalChatModel(model=hermes, threads=1, max_tokens=300)


@pytest.fixture(scope="module")
def pocket() -> Any:
    return open_model("pocket", threads=1)


def functions(*tools: Any) -> list[dict[str, Any]]:
    return [convert_to_openai_tool(one) for one in tools]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


# Held by a grammar


@pytest.mark.parametrize("seed", range(3))
def test_a_forced_call_fits_its_schema(writer: LocalChatModel, seed: int) -> None:
    bound = writer.bind_tools([resolve, escalate, search], tool_choice="resolve")
    said = bound.invoke("where is it?", seed=seed)
    (call,) = said.tool_calls
    assert call["name"] == "resolve"
    assert call["args"]["action"] in ("refund", "reship")
    assert isinstance(call["args"]["urgent"], bool)
    assert said.text == ""
    assert said.response_metadata["finish_reason"] == "tool_calls"
    parts = list(bound.stream("where is it?", seed=seed))
    whole = parts[0]
    for part in parts[1:]:
        whole += part
    assert isinstance(whole, AIMessageChunk)
    assert [(one["name"], one["args"]) for one in whole.tool_calls] == [(call["name"], call["args"])]


def test_any_call_and_one_at_most(writer: LocalChatModel) -> None:
    bound = writer.bind_tools([resolve, escalate], tool_choice="any", parallel_tool_calls=False)
    assert {len(bound.invoke("where?", seed=seed).tool_calls) for seed in range(5)} == {1}


@pytest.mark.slow
def test_a_model_that_may_call_writes_text_and_then_a_call_that_is_held_to_its_schema(writer: LocalChatModel) -> None:
    wrong = 'Well. <tool_call>\n{"name": "resolve", "arguments": {"action": "repaint", "urgent": true}}\n</tool_call>'
    learn_by_heart(writer, (writer.chat_ids([{"role": "user", "content": "broken"}], functions(*[resolve, search])), wrong))
    said = writer.bind_tools([resolve, search], temperature=0).invoke("broken")
    assert said.text == "Well."
    (call,) = said.tool_calls
    assert call["name"] == "resolve"
    assert call["args"]["action"] in ("refund", "reship")  # not "repaint", which the schema does not have
    free = writer.invoke("broken", temperature=0, max_tokens=30)
    assert not free.tool_calls


@pytest.mark.slow
def test_an_agent_of_a_model_that_writes_calls(writer: LocalChatModel) -> None:
    call = '<tool_call>\n{"name": "resolve", "arguments": {"action": "reship", "urgent": true}}\n</tool_call>'
    learn_by_heart(writer, (writer.chat_ids([{"role": "user", "content": "broken"}], functions(*[resolve, escalate])), call))
    limit = ModelCallLimitMiddleware(run_limit=1, exit_behavior="end")  # what the random model says afterwards is of no use
    agent = create_agent(writer.model_copy(update={"temperature": 0.0}), [resolve, escalate], middleware=[limit])
    CALLED.clear()
    messages = agent.invoke({"messages": "broken"})["messages"]
    assert CALLED == [("resolve", "reship")]
    assert isinstance(messages[2], ToolMessage)
    assert messages[2].content == "done: reship"


def test_a_template_without_tools_gets_them_as_text() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "resolve", "arguments": {"action": "refund"}}}
    turns = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "broken"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "done", "tool_call_id": "c1"},
        {"role": "user", "content": "thanks"},
    ]
    made = calls_as_text(turns, functions(escalate))
    assert [turn["role"] for turn in made] == ["system", "user", "assistant", "user"]
    assert '"name": "escalate"' in made[1]["content"]
    assert made[1]["content"].endswith("broken")
    assert made[2]["content"] == call_text({"name": "resolve", "arguments": {"action": "refund"}})
    assert made[3]["content"] == "Result of resolve: done\nthanks"
    assert turns[3]["role"] == "tool"


def test_an_agent_of_a_template_without_tools_calls_them(pocket: LocalChatModel) -> None:
    pytest.importorskip("llguidance")
    said = pocket.bind_tools([resolve, escalate], tool_choice="any").invoke("my order is broken", seed=1, max_tokens=200)
    assert {call["name"] for call in said.tool_calls} <= {"resolve", "escalate"}
    assert said.tool_calls
    assert not pocket.bind_tools([escalate], tool_choice="none").invoke("broken", max_tokens=3).tool_calls
    with pytest.raises(UserError, match="got 'fly', and the tools are"):
        pocket.bind_tools([escalate], tool_choice="fly")


def test_without_a_grammar_only_a_model_that_writes_calls_may_choose(
    checkpoint: Callable[..., str], writer: LocalChatModel
) -> None:
    other = LocalChatModel(model=checkpoint())
    other.grammar_factory = writer.grammar_factory = None  # as where the package or the tokenizer does not allow one
    assert writer.bind_tools([search]).invoke("hello", max_tokens=3).text is not None
    for model, choice in ((writer, "any"), (other, None)):
        with pytest.raises(UserError, match=r"pip install llguidance; or .*Qwen"):
            model.bind_tools([search], tool_choice=choice)


class Answer(BaseModel):
    """Answer by colour."""

    colour: Colour


def test_structured_output(writer: LocalChatModel, pocket: LocalChatModel) -> None:
    for model in (writer, pocket):
        assert isinstance(model.with_structured_output(Answer).invoke("which?"), Answer)


# Callbacks


class Runs(BaseCallbackHandler):
    def __init__(self) -> None:
        self.starts: list[Any] = []
        self.ends: list[Any] = []
        self.errors: list[Any] = []

    @override
    def on_chat_model_start(self, serialized: Any, messages: Any, **more: Any) -> None:
        self.starts.append((messages, more))

    @override
    def on_llm_end(self, response: Any, **more: Any) -> None:
        self.ends.append((response, more))

    @override
    def on_llm_error(self, error: Any, **more: Any) -> None:
        self.errors.append(error)


class Scored(TypedDict):
    scores: list[float]


def test_a_scoring_is_a_run_of_the_node_that_asked_for_it(pocket: LocalChatModel) -> None:
    asked = "a door"

    def propose(state: Scored) -> Scored:
        return {"scores": pocket.score([HumanMessage(asked)], ["open door", "go"])}

    graph = StateGraph(Scored).add_node(propose).add_edge(START, "propose").compile()
    runs = Runs()
    scores = graph.invoke({"scores": []}, {"callbacks": [runs]})["scores"]
    ((messages, more),), ((result, _),) = runs.starts, runs.ends
    assert messages[0][0].text == "a door"
    assert more["invocation_params"]["options"] == ["open door", "go"]
    assert more["parent_run_id"] is not None
    said = result.generations[0][0].message
    assert said.response_metadata["option_logprobs"] == dict(zip(["open door", "go"], scores, strict=True))
    assert said.text == ["open door", "go"][scores.index(max(scores))]
    assert said.usage_metadata["input_tokens"] > 0
    shown = [chunk.text for chunk, _ in graph.stream({"scores": []}, stream_mode="messages")]
    assert shown == [said.text]
    asked = "door " * 3000
    with pytest.raises(UserError, match="does not fit"):
        graph.invoke({"scores": []}, {"callbacks": [runs]})
    assert len(runs.errors) == 1
    json.dumps(said.response_metadata)
