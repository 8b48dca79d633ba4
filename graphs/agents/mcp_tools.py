"""A learner's memory as tools of the Model Context Protocol, for agents that are not Python's: `learngraph mcp`.

    server = memory_server(make_learner("reasoning-bank", "my-memory", model, scope=("tenant",)))
    server.run("stdio")                                                # or server.run("streamable-http", port=8000)

    recall     messages                          the advice that the middleware would put into this prompt, and the conversation's id
    record     id, messages                      keeps the conversation, with what the agent did
    feedback   id, reward, comment, correction   rates it; late, twice, from another process
    explain    id                                what was recalled and said, in words
    lift                                         what the memory is worth

The learner does the work: a recall is a model call of a one-node graph, whose model is the client's. So scopes, the screen, trials and the
study of conversations are those of the middleware. What a client says wrongly is an error that it can read.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from langchain.agents.middleware import ModelRequest
from langchain.agents.middleware.types import ExtendedModelResponse, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, convert_to_messages
from langchain_core.runnables import RunnableLambda
from langgraph.graph import START, StateGraph
from langgraph.runtime import get_runtime

from ...memory.errors import UserError, plural
from .learner import LearningMiddleware
from .reward_sources import rating_text

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError as error:
    raise UserError("learngraph mcp needs the package mcp: pip install 'learngraph[mcp]'") from error

__all__ = ["MemoryTools", "memory_server"]

Scope = dict[str, str]
Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")


class MemoryTools:
    """The tools. Their descriptions are what a client's model reads.

    Args:
        learner: any learning middleware, with a store and a name.
        model: what the method asks of its own, where it takes the agent's model (AdaMEM).
        fixed: values of the learner's scope that no client may choose.
    """

    def __init__(
        self, learner: LearningMiddleware[Any], model: BaseChatModel | None = None, fixed: Mapping[str, str] | None = None
    ) -> None:
        self.learner, self._model, self._fixed = learner, model, dict(fixed or {})
        self._graphs = {name: _one_node(work) for name, work in (("recall", self._recall), ("record", self._record))}

    def recall(
        self,
        messages: list[dict[str, Any]],
        id: str = "",
        scope: Scope | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> dict[str, str]:
        """Look up what was learned from earlier conversations like this one. Call it before you answer.

        Args:
            messages: the conversation until now, as OpenAI's chat messages, the user's last.
            id: the conversation's id, if it has one already.
            scope: whose memory it is, such as {"tenant": "acme"}.
            tools: your tools, as OpenAI's API describes them.

        Returns:
            `id`: name the conversation so from now on. `advice`: to be read with the user's message; empty if nothing was found.
        """
        whose, id = self._whose(scope), id or uuid.uuid4().hex
        found = self._run("recall", whose, id, messages, tools=tools or [])
        return {"id": id, "advice": found["advice"]}

    def record(self, id: str, messages: list[dict[str, Any]], scope: Scope | None = None) -> str:
        """Keep a conversation, so that it can be learned from once it has feedback. Call it after you have answered.

        Args:
            id: the conversation's id, from recall or your own.
            messages: all of it, as OpenAI's chat messages, with your replies, tool calls and their results.
            scope: as in recall.
        """
        whose = self._whose(scope)
        self._run("record", whose, id, messages)
        turns = self.learner.conversation(id, **whose).turns
        steps = sum(len(turn.steps) for turn in turns)
        return f"{plural(len(turns), 'turn')} of {id} kept, with {plural(steps, 'step')}"

    def feedback(
        self, id: str, reward: float | bool | None = None, comment: str = "", correction: str = "", scope: Scope | None = None
    ) -> str:
        """Say how the agent did in a conversation, or since the last feedback on it. Give one or more of reward, comment, correction.

        Args:
            id: the conversation's id.
            reward: from -1 (bad) to 1 (good), unless this server has another range; of a thumb true or false.
            comment: the user's own words.
            correction: the reply as it should have been.
            scope: as in recall.
        """
        whose = self._whose(scope)
        words = [comment, f"The reply should have been: {correction}" if correction else ""]
        rating = self.learner.feedback(id, reward=reward, text="\n".join(filter(None, words)) or None, **whose)
        done = any(turn.steps for turn in self.learner.conversation(id, **whose).turns)
        more = "" if done else "; nothing is learned from it before record has kept what the agent did"
        return f"{rating_text(rating)}{more}"

    def explain(self, id: str, scope: Scope | None = None) -> str:
        """Say what was recalled for a conversation, why, and how it was rated.

        Args:
            id: the conversation's id.
            scope: as in recall.
        """
        return self.learner.explain(id, **self._whose(scope))

    def lift(self, scope: Scope | None = None) -> str:
        """Say what the memory is worth in reward, with 95 % intervals, from trials with and without advice.

        Args:
            scope: as in recall.
        """
        whose = self._whose(scope)
        return f"{self.learner.lift(**whose)}\n\n{self.learner.status(**whose)}"

    def _whose(self, scope: Scope | None) -> dict[str, Any]:
        """The values of the scope; raises ScopeError where one is missing, is unknown, or is not the client's to choose."""
        given = dict(scope or {})
        for name, value in self._fixed.items():
            if given.setdefault(name, value) != value:
                raise UserError(f"this server's {name} is {value!r}, and no other; got {given[name]!r}")
        self.learner.scope.labels(given)
        return given

    def _run(self, name: str, whose: Mapping[str, Any], id: str, messages: Sequence[Any], **more: Any) -> Any:
        system, said = _read_messages(messages)
        state = {"messages": said, "system": system, "known": self._known_turns(id, whose), **more}
        return self._graphs[name].invoke({"value": state}, {"configurable": {**whose, "thread_id": id}})["value"]

    def _known_turns(self, id: str, whose: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Turn -> the entries of this method that are kept with it, by which what was drawn for a conversation holds."""
        try:
            turns = self.learner.conversation(id, **whose).turns
        except UserError:  # it begins
            return {}
        mine = self.learner.method
        return {turn.id: [{**one, "turn": turn.id} for one in turn.advice if one.get("method") == mine] for turn in turns}

    def _recall(self, state: dict[str, Any]) -> dict[str, Any]:
        """Ask the learner for its advice, with a model that keeps silent, and keep the turn as far as it has come."""
        runtime, messages, known = get_runtime(), state["messages"], state["known"]
        drawn = [one["trial"] for entries in known.values() for one in entries if "trial" in one]
        now: Any = {"messages": messages, "trials": {self.learner.method: drawn[-1]} if drawn else {}}
        request: ModelRequest[Any] = ModelRequest(
            model=self._model,  # type: ignore[arg-type]  # where there is none, no method asks it
            messages=messages,
            system_message=state["system"],
            tools=state["tools"],
            state=now,
            runtime=runtime,
        )
        found = self.learner.wrap_model_call(request, lambda asked: ModelResponse([AIMessage("")]))
        update: Any = found.command.update if isinstance(found, ExtendedModelResponse) and found.command else {}
        self.learner.after_agent({"messages": messages, "learning": update.get("learning", [])}, runtime)
        return {"advice": "\n\n".join(one["text"] for one in update.get("given_advice", ()))}

    def _record(self, state: dict[str, Any]) -> dict[str, Any]:
        """Record each turn as the end of an agent's run."""
        messages: list[AnyMessage] = state["messages"]
        asked = [isinstance(one, HumanMessage) for one in messages]
        ends = [n for n in range(1, len(messages)) if asked[n] and not asked[n - 1]]
        for end in [*ends, len(messages)]:
            read = messages[:end]
            turn = next(str(one.id) for one in reversed(read) if isinstance(one, HumanMessage))
            self.learner.after_agent({"messages": read, "learning": state["known"].get(turn, [])}, get_runtime())
        return {}


def memory_server(
    learner: LearningMiddleware[Any], model: BaseChatModel | None = None, fixed: Mapping[str, str] | None = None
) -> MCPServer:
    """An MCP server with the tools of `MemoryTools`, which takes the same arguments."""
    tools, server = MemoryTools(learner, model, fixed), MCPServer("learngraph", log_level="WARNING")
    for tool in (tools.recall, tools.record, tools.feedback, tools.explain, tools.lift):
        server.tool()(_with_readable_errors(tool))
    return server


def _with_readable_errors(tool: Callable[Asked, Answer]) -> Callable[Asked, Answer]:
    """The tool, whose errors of the client reach it in words; of all others the protocol tells nothing."""

    @wraps(tool)
    def call(*args: Asked.args, **named: Asked.kwargs) -> Answer:
        try:
            return tool(*args, **named)
        except UserError as error:
            raise ToolError(str(error)) from error

    return call


def _one_node(work: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A graph of one node, so that the learner finds a run with its config."""
    builder: Any = StateGraph(dict)
    builder.add_node("call", RunnableLambda(lambda state: {"value": work(state["value"])})).add_edge(START, "call")
    return builder.compile()


def _read_messages(given: Sequence[Any]) -> tuple[SystemMessage | None, list[AnyMessage]]:
    """The system message, and the others with ids that are the same whenever the conversation is sent.

    Raises:
        UserError: they are no chat messages, or no user says anything.
    """
    try:
        read = convert_to_messages(list(given))
    except Exception as error:
        form = '{"role": "user", "content": "..."}'
        raise UserError(f"messages are OpenAI's chat messages, such as {form}: {str(error).splitlines()[0]}") from error
    system = next((one for one in read if isinstance(one, SystemMessage)), None)
    said: list[Any] = [one for one in read if not isinstance(one, SystemMessage)]
    if not any(isinstance(one, HumanMessage) for one in said):
        raise UserError("messages are a conversation with at least one message of a user; got none")
    return system, [one if one.id else one.model_copy(update={"id": f"message {n}"}) for n, one in enumerate(said)]
