"""A node that asks a model with what a learner knows, for a StateGraph of one's own in the place of `create_agent`."""

import operator
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from langchain.agents.middleware import ModelRequest
from langchain.agents.middleware.types import ExtendedModelResponse, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, convert_to_messages
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import BaseTool
from langchain_core.tools import tool as make_tool
from langgraph.config import get_config
from langgraph.runtime import get_runtime
from pydantic import BaseModel

from ...memory.conversations.messages import last_user_message
from ...memory.errors import UserError
from .consultation import BRANCH_OF, model_response
from .given_advice import keep_given, keep_last_turn
from .waiting import AwaitedWaits, Waits, finish

__all__ = ["model_node"]

CHANNELS: dict[str, Callable[[Any, Any], Any]] = {
    "learning": keep_last_turn,
    "given_advice": keep_given,
    "trials": operator.or_,
    "scope_values": operator.or_,
}
"""Channel of a `LearningState` -> its reducer."""
LISTS = ("learning", "given_advice")
"""The channels whose entries say which agent's node has made them."""
CHECKPOINTER = "__pregel_checkpointer"
"""LangGraph's key in a run's `configurable` for the checkpointer that keeps its thread."""
SENT = "__pregel_push"
"""The beginning of a task's path that `Send` has made."""
MOST_THREADS = 1_000
"""Threads of graphs without these channels of which a process keeps them."""


def model_node(
    learner: Any, model: BaseChatModel, tools: Sequence[Any] = (), system_prompt: str = "", messages_key: str = "messages"
) -> Runnable[Any, dict[str, Any]]:
    """The node, for a `LearningState`, or a state of the graph's own, of which the learner keeps the rest in this process.

    A turn of it ends with a reply that calls no tool, or with `end_node`; each branch of `Send` is a turn of its own.

    Raises:
        UserError: the model has tools, or can have none; when it runs, on a state without messages, or a branch in which no user says
            anything.
    """

    kept, named = learner.kept_threads, _named_tools(model, tools)

    def begin(state: Any) -> ModelRequest[Any]:
        system = SystemMessage(system_prompt) if system_prompt else None
        state, runtime = read_thread(learner, state, messages_key), find_runtime()
        # A call that fails may be made again by a run that gives none.
        kept.keep(state, {"scope_values": state["scope_values"]})
        return ModelRequest(
            model=model, messages=state["messages"], system_message=system, tools=list(named), state=state, runtime=runtime
        )

    def end(state: Any, found: Any) -> tuple[dict[str, Any], Any]:
        """The update of the state, which the request had, and the state at the end of the turn; None if the turn goes on."""
        replies = [learner.agent.sign(one) for one in model_response(found).result]
        made: Any = found.command.update if isinstance(found, ExtendedModelResponse) and found.command else {}
        made = {**made, "scope_values": state["scope_values"]}
        entries = made.get("learning", [])
        goes_on = any(isinstance(one, AIMessage) and one.tool_calls for one in replies)
        learning = [*(state.get("learning") or []), *entries]
        last = {**state, "messages": [*state["messages"], *replies], "learning": learning}
        kept.keep(state, made)
        update = _marked({**made, "learning": entries}, learner.agent.node_name)
        return {**update, messages_key: replies}, None if goes_on else last

    async def work(state: Any, waits: Waits) -> dict[str, Any]:
        request = begin(state)
        if (first := opening(learner, request)) is not None:
            await learner.begin_turn(first, request.runtime, waits)
        update, last = end(request.state, await learner.call_model(request, waits))
        if last is not None:
            await learner.end_turn(last, request.runtime, waits)
        return update

    def call(state: Any) -> dict[str, Any]:
        return finish(work(state, Waits(_ask)))

    async def acall(state: Any) -> dict[str, Any]:
        return await work(state, AwaitedWaits(_aask))

    return RunnableLambda(call, afunc=acall)


def _ask(request: ModelRequest[Any]) -> ModelResponse[Any]:
    bound, messages = bind_tools(request)
    return ModelResponse([bound.invoke(messages)])


async def _aask(request: ModelRequest[Any]) -> ModelResponse[Any]:
    bound, messages = bind_tools(request)
    return ModelResponse([await bound.ainvoke(messages)])


def _named_tools(model: Any, tools: Sequence[Any]) -> list[Any]:
    if getattr(model, "kwargs", {}).get("tools"):
        raise UserError("node: the model has tools already, which a learner cannot see: give both, learner.node(model, tools)")
    if tools and not hasattr(model, "bind_tools"):
        raise UserError(f"node: tools are bound to a chat model, and a {type(model).__name__} takes none: leave them out")
    return [one if isinstance(one, BaseTool | dict) else make_tool(one) for one in tools]


def end_node(learner: Any, messages_key: str) -> Runnable[Any, dict[str, Any]]:
    """The node that ends the turn of a learner's nodes, unless a reply has ended it already."""

    async def work(state: Any, waits: Waits) -> dict[str, Any]:
        state = read_thread(learner, state, messages_key)
        messages = learner.agent.own_messages(state["messages"])
        said = [one for one in messages[last_user_message(messages) :] if isinstance(one, AIMessage)]
        if said and said[-1].tool_calls:
            await learner.end_turn(state, find_runtime(), waits)
        return {}

    def call(state: Any) -> dict[str, Any]:
        return finish(work(state, Waits()))

    async def acall(state: Any) -> dict[str, Any]:
        return await work(state, AwaitedWaits())

    return RunnableLambda(call, afunc=acall)


def find_runtime() -> Any:
    """The runtime of the graph that a node runs in; raises UserError outside of a graph."""
    if (runtime := get_runtime()) is None:
        raise UserError("node: it runs as a node of a graph, builder.add_node('model', learner.node(...)), or within one")
    return runtime


def read_state(state: Any, messages_key: str) -> dict[str, Any]:
    """The fields of a graph's state by name, a dict's, a dataclass's or a pydantic model's, with its messages under `messages`.

    A channel without a reducer holds them as the app has written them: as texts, pairs and dicts, too.
    """
    if is_dataclass(state):
        state = {one.name: getattr(state, one.name) for one in fields(state)}
    names = dict(state) if isinstance(state, Mapping | BaseModel) else {}
    if messages_key not in names:
        found = ", ".join(names) or "nothing" if isinstance(state, Mapping | BaseModel) else f"no fields: {state!r:.60}"
        raise UserError(
            f"node: a state has `{messages_key}`, as MessagesState; this one has {found}; messages_key= names another"
        )
    given = names[messages_key]
    try:
        return {**names, "messages": convert_to_messages(given if isinstance(given, list) else [given])}
    except (ValueError, NotImplementedError) as error:
        why = str(error).partition("\n")[0]
        raise UserError(
            f"node: `{messages_key}` of the state are messages, or what makes some; got {given!r:.60} ({why})"
        ) from error


def read_thread(learner: Any, state: Any, messages_key: str) -> dict[str, Any]:
    """The state with the channels of its thread, and with the values of the scope that the run gives, or the thread has."""
    plain, kept = read_state(state, messages_key), learner.kept_threads
    known = kept.added_to(plain)
    begins = begins_turn(learner, known["messages"])  # also anew, where the thread has gone back in time
    values = {**known["scope_values"], **learner.find_scope(known, find_runtime(), begins=begins).get("scope_values", {})}
    return {**kept.added_to(plain, values), "scope_values": values, **({"learning": []} if begins else {})}


def begins_turn(learner: Any, messages: Sequence[Any]) -> bool:
    """True if this node has said nothing yet since the user's last message."""
    own = learner.agent.own_messages(messages)
    return not any(isinstance(one, AIMessage) for one in own[last_user_message(own) :])


def opening(learner: Any, request: ModelRequest[Any]) -> dict[str, Any] | None:
    """The state up to the user's last message, if a turn of this node begins; a branch follows no turn."""
    messages = learner.agent.own_messages(request.messages)
    is_first = begins_turn(learner, request.messages) and not _branch()
    return {**request.state, "messages": messages[: last_user_message(messages) + 1]} if is_first else None


def _marked(update: dict[str, Any], agent: str) -> dict[str, Any]:
    """The update of the channels, with the agent whose node has made it: nodes of several learners share a state."""
    lists = {name: [{**one, "agent": agent} for one in update[name]] for name in LISTS if name in update}
    trials = {f"{method}/{agent}": one for method, one in update.get("trials", {}).items()}
    return {**update, **lists, **({"trials": trials} if trials else {})}


def _own_channels(state: Any, agent: str) -> dict[str, Any]:
    """The channels as the agent's node has made them, without its mark and without what other nodes have made."""
    mine = {name: [one for one in state.get(name) or () if one.get("agent") == agent] for name in LISTS}
    found: dict[str, Any] = {
        name: [{key: value for key, value in one.items() if key != "agent"} for one in entries]
        for name, entries in mine.items()
    }
    drawn = [(*key.partition("/"), one) for key, one in (state.get("trials") or {}).items()]
    return {**found, "trials": {method: one for method, _, whose, one in drawn if whose == agent}}


def bind_tools(request: ModelRequest[Any]) -> tuple[Any, list[Any]]:
    bound = request.model.bind_tools(request.tools) if request.tools else request.model
    return bound, [*([request.system_message] if request.system_message else []), *request.messages]


class KeptThreads:
    """The channels of a `LearningState` by thread, as the nodes of an agent have made them, for graphs whose state has none of them.

    Tenants may have threads of one id: `names` are those of the values that keep them apart.
    """

    def __init__(self, agent: str, names: Sequence[str]) -> None:
        self._agent, self._names = agent, names
        self._threads = OrderedDict[tuple[str, ...], dict[str, Any]]()
        self._newest = dict[str, tuple[str, ...]]()
        """Id of a thread -> the key of its last run."""

    def added_to(self, state: Any, values: Mapping[str, Any] | None = None) -> Any:
        """The state with its thread's channels, as far as the agent's node has made them; of the last run of its id where the values of the
        scope are not known yet."""
        state = _turn_of_branch(state) if _branch() else state
        key = self._newest.get(_thread(state), ()) if values is None else self._key(state, values)
        known = self._threads.get(key, {})
        # Without a checkpointer, runs of one id need not be of one thread.
        kept = known.get("scope_values", {}) if get_config().get("configurable", {}).get(CHECKPOINTER) else {}
        values = {"scope_values": {**kept, **(state.get("scope_values") or {})}}
        return {**state, **_own_channels(state, self._agent), **values} if "learning" in state else {**known, **state, **values}

    def keep(self, state: Any, made: dict[str, Any]) -> None:
        """Take in the update that a call has made."""
        new = {name: made[name] for name in CHANNELS if name in made}
        known = {name: state[name] for name in CHANNELS if name in state}
        merged = {name: CHANNELS[name](known.get(name) or type(one)(), one) for name, one in new.items()}
        key = self._key(state, merged.get("scope_values", {}))
        self._threads[key] = known | merged
        self._threads.move_to_end(key)
        self._newest[key[0]] = key
        while len(self._threads) > MOST_THREADS:
            oldest, _ = self._threads.popitem(last=False)
            if self._newest.get(oldest[0]) == oldest:
                self._newest.pop(oldest[0], None)  # threads run at once

    def _key(self, state: Any, values: Mapping[str, Any]) -> tuple[str, ...]:
        return _thread(state), *(repr(values.get(name)) for name in self._names)


def _branch() -> str:
    """The number of the branch that runs, where `Send` has begun it; else empty."""
    kind, number, *_ = (get_config().get("metadata") or {}).get("langgraph_path") or ("", "")
    return str(number) if kind == SENT else ""


def _turn_of_branch(state: Any) -> Any:
    """The state of a branch, whose last message of the user has an id that no other branch of the thread has: it names the turn.

    What `Send` hands over went through no reducer, which gives messages their ids; or all branches have the thread's messages.
    """
    messages, number = state["messages"], _branch()
    place = last_user_message(messages)
    if not messages or not isinstance(asked := messages[place], HumanMessage):
        raise UserError(
            "node: a branch of Send has a message of the user, by which its turn is told from others; this one has none"
        )
    id = beside = asked.id or get_config()["metadata"]["langgraph_checkpoint_ns"]
    if asked.id and number == "0":  # the first one may be a loop, which goes on with the turn
        beside = ""
    elif asked.id:
        id = f"{id}/{number}"
    sent = asked.model_copy(update={"id": id, "response_metadata": {**asked.response_metadata, BRANCH_OF: beside}})
    return {**state, "messages": [*messages[:place], sent, *messages[place + 1 :]]}


def _thread(state: Any) -> str:
    """The thread's id, or that of the user's first message."""
    first = next((one.id for one in state["messages"] if isinstance(one, HumanMessage)), None)
    return str(get_config().get("configurable", {}).get("thread_id") or first)
