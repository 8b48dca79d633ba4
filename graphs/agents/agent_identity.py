"""The identity of an agent, which says whose memory a middleware works with: its store and its name, as given or as its graph has them."""

import logging
import os
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from textwrap import shorten
from typing import Any
from uuid import uuid4
from weakref import WeakSet, WeakValueDictionary

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.store.base import BaseStore

from ...memory.conversations.reviews import mark_answered
from ...memory.conversations.write_queue import WriteQueue, queue_of
from ...memory.display import short
from ...memory.errors import UserError, asks_store, did_you_mean, plural
from ...nodes.ask import estimate_tokens
from ...nodes.fence import escape_tags
from .scope_values import ROOT, ScopeError, escape_label

__all__ = ["DOMAIN", "AgentIdentity"]

LOG = logging.getLogger(__name__)
DOMAIN = DEFAULT_NAME = "agent"
"""The name of an agent that has none; and the domain of all conversations, which namespaces keep apart by agent."""
SAID_BY = "learngraph_agent"
"""Key of a message's metadata, which no provider is sent: the agent whose node of a graph has said it."""
MAX_INSTRUCTION_TOKENS = 500
"""Tokens of the agent's instructions that are shown: the first ones."""
MAX_DESCRIPTION_CHARS = 80
"""Characters of a tool's description that are shown: about 20 tokens."""
LEAST_COMMON = 0.5
"""Share of the smaller set of tools that two agents of one unnamed memory have in common at least."""


class AgentIdentity:
    """The store and the name of an agent.

    Args:
        store: where its memory is kept; None: the store of its graph (`create_agent(store=...)`), known from the first run.
        name: the agent's; None: that of `create_agent(name=...)`, else `agent`.

    Raises:
        UserError: the store is none.
    """

    def __init__(self, store: BaseStore | str | Path | None, name: str | None) -> None:
        self._opened: BaseStore | None = None
        self._folder = ""
        self._process = os.getpid()
        if isinstance(store, str | Path):
            self._folder = os.fspath(store)
            store = self._opened = self._open(self._folder)
        if store is not None and not isinstance(store, BaseStore):
            entered = hasattr(store, "__enter__") or hasattr(store, "__aenter__")
            remedy = "; enter it first: `with ... as store:`" if entered else ""
            raise UserError(
                f"store is a LangGraph store, a folder, a URL, or None for the graph's own; got {type(store).__name__}{remedy}"
            )
        if name is not None and not (isinstance(name, str) and name):
            raise UserError(f"name is the agent's, a text; got {name!r}")
        self._store, self._given = store, name
        self._bound: str | None = None
        self.is_node = False
        """True: it is a node of a graph of its own (`LearningMiddleware.node`)."""
        self._of_run: str | None = None
        self._answerable: Collection[str] = ()
        self._tools, self._named = set[str](), set[str]()
        self._refusal: ScopeError | None = None
        self._told: tuple[str, str] | None = None
        self._is_doubled = False
        self.listed = dict[str, frozenset[str]]()
        """Name of a tool -> its arguments whose values its schema lists."""

    def close(self) -> None:
        """Write what waits, and close the store that was opened here, of a folder, or of a URL with the last of its learners; one that the
        app gave is the app's. What the store does not take by then is given up, and told."""
        if self._store is not None:
            self.queue.wait()
        with _OPENING:
            _SHARERS.discard(self)
            if any(one._opened is self._opened for one in _SHARERS):
                return
            for place in [place for place, one in _OPENED.items() if one is self._opened]:
                del _OPENED[place]
        if self._opened is not None:
            self.queue.give_up_failed()
        elif self._store is not None and (failed := self.queue.count_failed()):
            LOG.warning("%s failed, and wait for the next write of this process to the store", plural(failed, "write"))
        if callable(close := getattr(self._opened, "close", None)):
            close()

    def _open(self, where: str) -> BaseStore:
        """The store of a folder, or of a URL, of which learners of one process share the connections, and what waits to be written."""
        from ...memory.storage.open_store import open_agent_store

        with _OPENING:
            if (found := _OPENED.get((self._process, _place_of(where)))) is None:
                found = open_agent_store(where)
                _OPENED[self._process, _place_of(where)] = found
            self._opened = found
            _SHARERS.add(self)
            return found

    @property
    def store(self) -> BaseStore:
        """The store.

        Raises:
            ScopeError: it is the graph's, and the graph has not run yet, or has none.
        """
        if self._store is None:
            raise ScopeError(
                "no store is known: a learner without store= takes that of its graph, create_agent(store=...), when it first runs; "
                "to use it without a run, give it the store"
            )
        return self._store

    @property
    def queue(self) -> WriteQueue:
        """The queue of this process's writes to the store."""
        return queue_of(self.store)

    @property
    def name(self) -> str:
        """The agent's name; before its first run that of the only agent in the store.

        Raises:
            ScopeError: the store has several agents, and it is not said which one is meant.
        """
        if known := self._given or self._bound or self._of_run:
            return known
        names = sorted({labels[1] for labels in self.namespaces((ROOT,), 2)})
        if len(names) > 1:
            raise ScopeError(f"the store has the agents {', '.join(names)}: say which one is meant, with name=...")
        return names[0] if names else DEFAULT_NAME

    @asks_store
    def namespaces(self, prefix: tuple[str, ...], depth: int | None = None) -> list[tuple[str, ...]]:
        """The beginnings of the store's namespaces that have this prefix and so many labels; None: the namespaces, whole."""
        found = list[tuple[str, ...]]()
        while page := self.store.list_namespaces(prefix=prefix, max_depth=depth, limit=1_000, offset=len(found)):
            found += page
        return list(dict.fromkeys(labels for labels in found if depth in (None, len(labels))))

    def label(self) -> str:
        """The name as a label of a namespace; raises UserError in a child of the process that opened the folder or the URL."""
        if self._opened is not None and self._process != os.getpid():
            where = "make it in each worker, as in gunicorn's post_fork or without --preload"
            raise UserError(f"this learner was made before a fork, and its connection belongs to the other process: {where}")
        return escape_label(self.name) if self._given or self._bound or self._of_run else self.name

    def read_run(self, runtime: Any, metadata: Mapping[str, Any]) -> None:
        """Take the store and the name that a run has, where none is given.

        Raises:
            ScopeError: the run has no store; or an agent of another name ran with this middleware.
        """
        if self._store is None:
            self._store = getattr(runtime, "store", None)
            _ = self.store
        said = metadata.get("lc_agent_name") if self._bound is None else self._bound
        self._of_run = self._only(self._of_run, str(said or DEFAULT_NAME))

    def bind(self, name: str, answerable: Collection[str] = ()) -> None:
        """Take the name of the agent that is being made; empty: it has none. A run's is the caller's, where a tool passes its config on.

        Args:
            name: of the agent.
            answerable: names of the tools in whose place a person may answer.

        Raises:
            ScopeError: an agent of another name has this middleware.
        """
        self._bound, self._answerable = self._only(self._bound, name), answerable

    def _only(self, known: str | None, name: str) -> str:
        if self._given is None and known not in (None, name):
            raise ScopeError(
                f"one middleware serves the agents {known or DEFAULT_NAME} and {name or DEFAULT_NAME}: give each its own, or name= to share"
            )
        return name

    @property
    def node_name(self) -> str:
        """The name by which what this agent's node leaves in a graph's state is told from what others do."""
        return self._given or DEFAULT_NAME

    def sign(self, message: Any) -> Any:
        """A message of this agent's node, with an id, and its name in the metadata: other nodes may say something, too."""
        signed = {**message.response_metadata, SAID_BY: self.node_name}
        return message.model_copy(update={"id": message.id or str(uuid4()), "response_metadata": signed})

    def own_messages(self, messages: Sequence[Any], given: Collection[str] = ()) -> list[Any]:
        """The messages without what other agents and nodes of a graph have said and called; what tools told them was read here, too.

        Results that a person wrote in a tool's place are marked. Those of the ids `given` are not the agent's: what begins a run is a user's.
        """
        messages = self._read_as_asked(messages, given) if given else messages
        mine = {n for n, one in enumerate(messages) if self._may_be_own(one)}
        if self.is_node:
            name, turns = self.node_name, [*accumulate(isinstance(one, HumanMessage) for one in messages)]
            mine = {n for n, one in enumerate(messages) if one.response_metadata.get(SAID_BY) == name}
            told = {*turns[-1:], *(turns[n] for n in mine)}  # a history that a client sends is signed by nobody
            mine |= {n for n, turn in enumerate(turns) if turn not in told}
        kept = [one for n, one in enumerate(messages) if n in mine or not isinstance(one, AIMessage)]
        return mark_answered(kept, self._answerable)

    def _may_be_own(self, message: Any) -> bool:
        """True if no other agent of a graph has signed the message."""
        return not self._bound or message.name in (None, self._bound)

    def _read_as_asked(self, messages: Sequence[Any], given: Collection[str]) -> list[Any]:
        """The messages, those `given` from outside as a user's: an event behind the agent's own reply, and a supervisor's task where no
        user has asked. What a colleague has replied to the same user is left out."""
        kept, last = list[Any](), ""  # who spoke last, of the user and the agent itself
        for one in messages:
            is_reply = isinstance(one, AIMessage)
            if one.id in given and (last == "agent" or (is_reply and not last)):
                kept.append(HumanMessage(one.content, id=one.id, name=one.name))
            elif one.id not in given or not is_reply:
                kept.append(one)
                last = "user" if isinstance(one, HumanMessage) else "agent" if is_reply and self._may_be_own(one) else last
        return kept

    def read_tools(self, tools: Sequence[Any]) -> bool:
        """Take note of the tools that the agent has at this call; returns True if one of them is new to this process.

        Raises:
            ScopeError: `compare_tools` has found that this is another agent, too late for the call before.
        """
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal
        named = {getattr(tool, "name", None) or tool_schema(tool)["name"]: tool for tool in tools}
        for name in (new := named.keys() - self.listed.keys()):
            schemas = tool_schema(named[name]).get("parameters", {}).get("properties", {})
            self.listed[name] = frozenset(one for one, schema in schemas.items() if listed_values(schema) is not None)
        self._named = set(named)
        return bool(new)

    @property
    def is_compared(self) -> bool:
        """True if `compare_tools` has nothing to do."""
        return bool(self._given or self._of_run != DEFAULT_NAME or (self._named <= self._tools and self._tools))

    def compare_tools(self) -> None:
        """Compare the tools of an agent without a name with those of the agents that have used this memory before.

        Raises:
            ScopeError: they are other tools, so this is another agent.
        """
        if self.is_compared:
            return
        names = self._named
        item = self.store.get((ROOT, DEFAULT_NAME), "tools")
        known = set(item.value["names"]) if item else names
        fewer = min(len(known), len(names))
        if not self._tools and known != names and len(known & names) < max(LEAST_COMMON * fewer, 1):
            self._refusal = ScopeError(
                f"the memory of the agent without a name belongs to one with the tools {_list(known)}, and this one has "
                f"{_list(names)}: name each agent, create_agent(name=...) or name=..., or say name={DEFAULT_NAME!r} to share one memory"
            )
            raise self._refusal
        self._tools |= names | known
        if item is None or self._tools != known:
            self.store.put((ROOT, DEFAULT_NAME), "tools", {"names": sorted(self._tools)}, index=False)

    def note_instructions(self, node: str, told: str) -> None:
        """Say once in the log that another agent without a name, a node of a graph with other instructions, works with this memory.

        An app may make the same agent anew, so that this is no error.
        """
        if self._given or self._of_run != DEFAULT_NAME or self._told is not None:
            return
        self._told = node, told
        for one in tuple(_UNNAMED):
            is_same_store = one._store is self._store or (one._folder and one._folder == self._folder)
            where, before = one._told or self._told
            if is_same_store and (where != node or not (told.startswith(before) or before.startswith(told))):
                words = "two agents without a name share one memory: %s (%s) and %s (%s); name each, create_agent(name=...) or name=..."
                if not one._is_doubled:
                    LOG.warning(
                        words, where, short(before, 60) or "no instructions", node, short(told, 60) or "no instructions"
                    )
                one._is_doubled = True
                return
        _UNNAMED.add(self)


_OPENED = WeakValueDictionary[tuple[int, str], BaseStore]()
"""(id of a process, URL or folder) -> the store that it has opened."""
_SHARERS = WeakSet[AgentIdentity]()
"""The agents of this process whose store is one of these."""
_OPENING = threading.Lock()
_UNNAMED = WeakSet[AgentIdentity]()
"""The agents without a name that have run in this process."""


def _place_of(where: str) -> str:
    """The key of the store of a folder or a URL: the URL, or the number of its file, since a folder may be deleted and made anew.
    A folder without a file is like no other."""
    if "://" in where:
        return where
    folder = Path(where.removeprefix("chroma:")).resolve()
    names = ("chroma.sqlite3",) if where.startswith("chroma:") else ("chroma.sqlite3", "memory.sqlite")
    found = next((file.stat() for name in names if (file := folder / name).exists()), None)
    return f"{found.st_dev} {found.st_ino}" if found else uuid4().hex


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "(none)"


def unknown_tools(option: str, names: Iterable[str], tools: Collection[str]) -> list[str]:
    """A sentence about each name of an option that is none of the agent's tools."""
    said = "{} names {}, and the agent has no such tool{}"
    return [said.format(option, name, did_you_mean(name, tools)) for name in names if name not in tools]


def tool_schema(tool: Any) -> dict[str, Any]:
    """A tool's `name`, and as far as known its `description` and the JSON schema of its `parameters`.

    A tool that the provider runs, such as `{"type": "web_search_preview"}` or `{"google_search": {}}`, has a name alone.
    """
    try:
        found = convert_to_openai_tool(tool)
    except ValueError:
        found = tool
    function: dict[str, Any] = found.get("function") or found
    return function if "name" in function else {"name": str(function.get("type") or next(iter(function), ""))}


def listed_values(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values that an argument may have, as its schema lists them; None: it lists none."""
    if "enum" in schema:
        return list(schema["enum"])
    if "const" in schema:
        return [schema["const"]]
    if schema.get("type") == "boolean":
        return [True, False]
    if options := schema.get("anyOf"):
        lists = [listed_values(option) if option.get("type") != "null" else [None] for option in options]
        return None if any(one is None for one in lists) else [value for one in lists for value in one or ()]
    return None


def agent_card(request: Any) -> str:
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
