"""Nodes of an agent that calls tools: think, carry out the calls, submit the answer action by action.

Each rollout has tools of its own (an interpreter's variables last from call to call, and no other rollout sees them). They are
opened at the rollout's first thought, and closed when it answers or a node fails; if a rollout is cancelled between two nodes,
they are closed when its state is garbage collected. The state holds only the name of a session. Where no tools are open under
that name (another process continues from a checkpoint), new ones are opened, without the old ones' memory.
"""

import os
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from threading import RLock
from typing import Any, ClassVar, Literal, NotRequired, Protocol, cast

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp
from typing_extensions import TypedDict

from ...memory.errors import UserError, type_of
from ...memory.lessons.library import Library
from ...memory.lessons.versions import LibraryVersions
from ...memory.records import Task
from ..ask import Ask, BadReply, text
from ..drive import adrive, drive
from ..lesson_prompts import append_lessons, render_lessons, select_lessons
from ..prompt import Prompt
from ..read_reply import CutOff, Refusal, Unreadable, answer_text, visible_text
from ..state import EpisodeInput, ObservationChannel
from ..text import trim_middle
from .choose import ChosenAction
from .episode import Begin, EpisodeStart

__all__ = [
    "BeginWithTools",
    "Dialogue",
    "Submit",
    "Think",
    "ToolChannels",
    "ToolFactory",
    "Toolset",
    "UseTools",
    "route_remaining_answer",
    "route_tool_calls",
]


class ToolFactory(Protocol):
    """A function that opens the tools of a rollout: a context, entered at its first thought and left when it ends in any way.

    The tools of all rollouts have the same names and arguments. Tools without memory may be a plain list.
    """

    def __call__(
        self, run: str, task: str, episode: int, /
    ) -> AbstractContextManager[Sequence[BaseTool]] | Sequence[BaseTool]: ...


class DialogueMessages(TypedDict):
    """The messages of a dialogue with a model that calls tools."""

    messages: list[AnyMessage]
    """Replies of the model and results of tools. The messages before them (system, lessons, task) are made from the state."""


class SessionChannel(TypedDict):
    """The open tools of a rollout."""

    session: str
    """Name of the session under which the rollout's tools are open in this process."""


class DialogueChannels(SessionChannel, DialogueMessages):
    """The dialogue with a model that calls tools."""

    transcript: str
    """The dialogue as text, for comparing rollouts: `> ` before the agent's words and calls, `| ` before tools' results."""


class ToolChannels(DialogueChannels):
    """The dialogue, with the number of its turns and calls, and the answer that it comes to."""

    turn: int
    """Number of replies so far."""
    tool_calls: int
    """Number of calls with a result or an error."""
    answer: str
    """The reply that is submitted; empty until then."""


class DialogueOnTask(EpisodeInput, ObservationChannel, DialogueChannels):
    """The dialogue, and the task that it is about."""

    turn: int
    library: NotRequired[str]


class ReplyInDialogue(TypedDict, total=False):
    """A reply of the model: calls, which join the dialogue, or an answer."""

    turn: int
    messages: list[AnyMessage]
    transcript: str
    answer: str


class CallsToMake(EpisodeInput, DialogueChannels):
    """The dialogue, whose last message has calls, and the rollout that they are for."""

    tool_calls: int


class CallResults(TypedDict):
    """The dialogue with the results of the calls."""

    messages: list[AnyMessage]
    tool_calls: int
    transcript: str


# Open tools


class SessionName(str):
    """A string that can be weakly referenced, so that its session is closed when the last state with it is gone."""


@dataclass(eq=False)
class Toolset:
    """The open tools of all rollouts, by session."""

    factory: ToolFactory | None
    """None: the agent has no tools."""
    _open: dict[str, tuple[ExitStack, dict[str, BaseTool]]] = field(default_factory=dict, init=False, repr=False)
    _lock: Any = field(default_factory=RLock, init=False, repr=False)
    """Reentrant, as garbage collection may close a session at any moment."""
    _numbers: Iterator[int] = field(default_factory=count, init=False, repr=False)

    def new_session(self) -> str:
        """The name of a new session, which is closed at the latest when the name is garbage collected."""
        session = SessionName(f"{os.getpid()}/{next(self._numbers)}")
        weakref.finalize(session, self.close, str(session))
        return session

    def open_tools(self, state: Mapping[str, Any]) -> dict[str, BaseTool]:
        """The rollout's tools by name, opened if they are not open."""
        if self.factory is None:
            return {}
        with self._lock:
            found = self._open.get(state["session"])
            if found is None:
                stack, given = ExitStack(), self.factory(state["run"], state["task"].id, state["episode"])
                if isinstance(given, AbstractContextManager):
                    given = stack.enter_context(given)
                found = self._open[str(state["session"])] = stack, {tool.name: tool for tool in given}
            return found[1]

    def list_tools(self) -> list[BaseTool]:
        """The tools of some rollout, for their names and arguments. They are closed again."""
        session = self.new_session()
        with self.close_on_error(session):
            found = [*self.open_tools({"session": session, "run": "", "task": Task("", ""), "episode": 0}).values()]
        self.close(session)
        return found

    def close(self, session: str) -> None:
        """Close the tools of a session, if they are open."""
        with self._lock:
            stack, _ = self._open.pop(session, (None, {}))
        if stack is not None:
            stack.close()

    @contextmanager
    def close_on_error(self, session: str) -> Iterator[None]:
        """Close the session if what follows fails or is cancelled."""
        try:
            yield
        except BaseException:
            self.close(session)
            raise


class DialogueStart(EpisodeStart, ToolChannels):
    """The channels of an episode with tools that has just begun."""


@dataclass(frozen=True)
class BeginWithTools(Begin):
    """Begin an episode with a new session for its tools and an empty dialogue."""

    toolset: Toolset | None = field(default=None, repr=False)

    def __call__(self, state: EpisodeInput) -> DialogueStart | dict[str, Any]:
        begun = super().__call__(state)
        session = self.toolset.new_session() if self.toolset else ""
        return {**begun, "session": session, "messages": [], "turn": 0, "tool_calls": 0, "transcript": "", "answer": ""}


# Think


TURNS_TOLD = 5
"""The number of turns left from which on prompts say how many there are."""


@dataclass(frozen=True)
class Dialogue:
    """Make the messages for the model: lessons of its library, the task, then the dialogue so far."""

    task_prompt: Prompt
    """Needs $instruction and $observation, and may have $turns (`tool_agent/solve`)."""
    last_turn_prompt: Prompt
    """Added at the last turn (`tool_agent/last`)."""
    turns_left_prompt: Prompt | None = None
    """Added at the turns before it, from `TURNS_TOLD` turns left on; needs $left (`tool_agent/left`)."""
    lessons_prompt: Prompt | None = None
    """The text around lessons; needs $lessons (`training_free_grpo/lessons`)."""
    versions: LibraryVersions | None = field(default=None, repr=False)
    """Libraries by name; None: there are no lessons."""
    lessons_per_prompt: int = 0
    """Greatest number of lessons, those that fit the task best; 0: all."""
    max_turns: int = 20
    """Greatest number of replies."""
    count_tokens: Callable[[str], int] = field(default=len, repr=False)
    max_tokens: int = 2**31
    """Tokens of a dialogue beyond which the model has to answer."""
    _libraries: dict[str, Library] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Loaded libraries by name: a version never changes."""

    def is_last(self, state: Mapping[str, Any]) -> bool:
        """True if the model has to answer now: its turns are used up, or the window is nearly full."""
        if state["turn"] + 1 >= self.max_turns:
            return True
        dialogue_tokens = sum(
            self.count_tokens(text(message)) + sum(self.count_tokens(str(c["args"])) for c in _calls(message))
            for message in state["messages"]
        )
        return (
            bool(state["messages"])
            and dialogue_tokens + sum(self.count_tokens(text(message)) for message in self.head(state)) > self.max_tokens
        )

    def head(self, state: Mapping[str, Any]) -> list[BaseMessage]:
        """The system message and the task: the same at every turn."""
        task, first = state["task"], state["observation"].text
        seen = "" if _repeats(first, task.instruction) else f"\n\n{first}"
        values = {"instruction": task.instruction, "observation": seen, "turns": self.max_turns}
        messages = self.task_prompt.messages(**{name: values[name] for name in self.task_prompt.placeholders & values.keys()})
        if self.versions is None or self.lessons_prompt is None or not state.get("library"):
            return messages
        name = state["library"]
        library = self._libraries.get(name)
        if library is None:
            library = self._libraries[name] = self.versions.at(name)
        return append_lessons(
            messages, render_lessons(select_lessons(library, task, first, self.lessons_per_prompt)), self.lessons_prompt
        )

    def __call__(self, state: Mapping[str, Any]) -> list[BaseMessage]:
        messages = [*self.head(state), *state["messages"]]
        if self.is_last(state):
            return [*messages, *self.last_turn_prompt.messages()]
        left = self.max_turns - state["turn"]
        if self.turns_left_prompt is None or not state["messages"] or left > TURNS_TOLD:
            return messages
        return [*messages, *self.turns_left_prompt.messages(left=left)]


def _repeats(observation: str, instruction: str) -> bool:
    """True if a first observation only repeats the beginning of the task, perhaps after a word or two such as `to solve:`."""
    shown, task = " ".join(observation.split()), " ".join(instruction.split())
    ends = {shown, shown.partition(": ")[2]}
    return any(part and task.startswith(part.removesuffix("…").rstrip()) for part in ends)


@dataclass(frozen=True)
class Think(Runnable[DialogueOnTask, ReplyInDialogue]):
    """Ask the model for its next turn: calls of tools, or an answer.

    A reply with neither is asked for again. At the last turn it is an empty answer, and calls are not carried out.
    """

    role: ClassVar[str] = "model"

    model: Runnable[Any, Any] = field(repr=False)
    """A chat model with `bind_tools`."""
    toolset: Toolset = field(repr=False)
    dialogue: Dialogue = field(repr=False)
    retry_prompt: Prompt = field(repr=False)
    """See `nodes.ask.Ask`."""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options bound to the model at every call, such as its temperature."""
    asks: str = "tool_agent/solve"

    @property
    def max_turns(self) -> int:
        """Greatest number of replies."""
        return self.dialogue.max_turns

    def ask(self, state: DialogueOnTask) -> Ask[DialogueOnTask, ReplyInDialogue]:
        """The question to a model with the rollout's tools bound to it.

        Raises:
            UserError: there are tools, and the model cannot call any.
        """
        tools, last = list(self.toolset.open_tools(state).values()), self.dialogue.is_last(state)
        model: Any = self.model
        if tools:
            if not hasattr(model, "bind_tools"):
                raise UserError(f"tool-agent: {type_of(model)} calls no tools; use a chat model that does, or no tools")
            model = model.bind_tools(tools, **({"tool_choice": "none"} if last else {}), **self.options)
        elif self.options:
            model = model.bind(**self.options)

        def read(reply: AIMessage, state: DialogueOnTask) -> ReplyInDialogue:
            calls, words = _calls(reply), ""
            try:
                words = answer_text(reply).strip()
            except (Refusal, CutOff):
                if not calls:
                    raise
            except Unreadable:  # empty: calls need no words
                if not calls and not last:
                    raise
            transcript = state["transcript"] + (_action_text(words) if words else "")
            if last or not calls:
                return {"turn": state["turn"] + 1, "answer": words, "transcript": transcript}
            shown = reply if visible_text(reply) == text(reply) else reply.model_copy(update={"content": words})
            messages = [*state["messages"], _with_call_ids(shown, state["turn"])]
            return {"turn": state["turn"] + 1, "messages": messages, "transcript": transcript}

        def on_bad_reply(bad: BadReply, state: DialogueOnTask) -> ReplyInDialogue:
            return {"turn": state["turn"] + 1, "answer": ""}  # which the world judges

        return Ask(self.asks, model, self.dialogue, read, self.retry_prompt, on_bad_reply=on_bad_reply)

    def invoke(self, input: DialogueOnTask, config: RunnableConfig | None = None, **kwargs: Any) -> ReplyInDialogue:
        with self.toolset.close_on_error(input["session"]):
            return cast(ReplyInDialogue, self.ask(input).invoke(input, config))

    async def ainvoke(self, input: DialogueOnTask, config: RunnableConfig | None = None, **kwargs: Any) -> ReplyInDialogue:
        with self.toolset.close_on_error(input["session"]):
            return cast(ReplyInDialogue, await self.ask(input).ainvoke(input, config))


def _calls(message: BaseMessage) -> list[dict[str, Any]]:
    """All calls of a reply: those that can be read, then those that cannot, which have an `error`."""
    if not isinstance(message, AIMessage):
        return []
    return [*map(dict, message.tool_calls), *map(dict, message.invalid_tool_calls)]


def _with_call_ids(reply: AIMessage, turn: int) -> AIMessage:
    """The reply with a different id for every call, by which its result is matched."""
    taken = set[str]()
    fixed: list[list[Any]] = []
    for kind in (reply.tool_calls, reply.invalid_tool_calls):
        fixed.append([])
        for call in cast("Sequence[Any]", kind):
            id = call.get("id") or ""
            if not id or id in taken:
                id = f"call-{turn}-{len(taken)}"
            taken.add(id)
            fixed[-1].append({**call, "id": id, **({} if call.get("name") or kind is reply.tool_calls else {"name": ""})})
    if fixed == [reply.tool_calls, reply.invalid_tool_calls]:
        return reply
    return reply.model_copy(update={"tool_calls": fixed[0], "invalid_tool_calls": fixed[1]})


def route_tool_calls(state: DialogueMessages) -> Literal["call tools", "answer"]:
    """Router: did the model call tools or answer? Only a reply with calls joins the dialogue."""
    return "call tools" if state["messages"] and isinstance(state["messages"][-1], AIMessage) else "answer"


# Use


@dataclass(frozen=True)
class UseTools(Runnable[CallsToMake, CallResults]):
    """Carry out the calls of the last reply, one after the other, and add a result for each.

    An error of a call (an unknown tool, arguments that cannot be read or do not fit, an error within the tool) becomes the
    result of that call, for the model to read. Only a `UserError` (such as a session that cannot start) is raised.
    """

    role: ClassVar[str] = "environment"

    toolset: Toolset = field(repr=False)
    max_output_chars: int = 8000
    """Characters of a tool's result that the model sees."""
    max_transcript_chars: int = 1000
    """Characters of a tool's result in the transcript."""

    def _play(self, state: CallsToMake) -> Generator[tuple[BaseTool, dict[str, Any]], Any, CallResults]:
        """Yields a tool with its call, is sent the result or an error, and returns the channels' update."""
        tools = self.toolset.open_tools(state)
        answers, transcript = list[ToolMessage](), state["transcript"]
        for call in _calls(state["messages"][-1]):
            name, id = str(call.get("name") or ""), str(call["id"])
            if name not in tools:
                known = ", ".join(sorted(tools)) or "none"
                came: Any = f"There is no tool called {name!r}; there are: {known}."
            elif "args" not in call or not isinstance(call["args"], Mapping):
                why = f" ({call['error']})" if call.get("error") else ""
                came = f"The arguments of {name} cannot be read{why}: they are a JSON object with {_arguments(tools[name])}."
            else:
                try:
                    came = yield tools[name], {"name": name, "args": dict(call["args"]), "id": id, "type": "tool_call"}
                except (UserError, GraphBubbleUp):
                    raise
                except Exception as error:
                    came = error
            message = self._message(came, name, id)
            answers.append(message)
            result = trim_middle(text(message), self.max_transcript_chars)
            transcript += _action_text(_call_text(call)) + _observation_text(result)
        return {
            "messages": [*state["messages"], *answers],
            "tool_calls": state["tool_calls"] + len(answers),
            "transcript": transcript,
        }

    def _message(self, came: Any, name: str, id: str) -> ToolMessage:
        if isinstance(came, ToolMessage):
            content = trim_middle(came.content, self.max_output_chars) if isinstance(came.content, str) else came.content
            return came.model_copy(update={"content": content, "tool_call_id": id, "artifact": None})
        if isinstance(came, Exception):
            came = f"{type(came).__name__}: {came}"
            return ToolMessage(trim_middle(came, self.max_output_chars), tool_call_id=id, name=name, status="error")
        status: Any = "error" if isinstance(came, str) else "success"
        return ToolMessage(trim_middle(str(came), self.max_output_chars), tool_call_id=id, name=name, status=status)

    def invoke(self, input: CallsToMake, config: RunnableConfig | None = None, **kwargs: Any) -> CallResults:
        with self.toolset.close_on_error(input["session"]):
            return drive(self._play(input), lambda tool, call: tool.invoke(call, config))

    async def ainvoke(self, input: CallsToMake, config: RunnableConfig | None = None, **kwargs: Any) -> CallResults:
        with self.toolset.close_on_error(input["session"]):
            return await adrive(self._play(input), lambda tool, call: tool.ainvoke(call, config))


def _arguments(tool: BaseTool) -> str:
    return ", ".join(tool.args) or "no fields"


def _call_text(call: Mapping[str, Any]) -> str:
    """A call as the transcript shows it."""
    args = call.get("args")
    if isinstance(args, Mapping):
        # A single argument, such as a program or a question, stands without its name.
        args = str(*args.values()) if len(args) == 1 else ", ".join(f"{name}={value!r}" for name, value in args.items())
    return f"{call.get('name') or '(no name)'}: {args or ''}"


def _action_text(action: str) -> str:
    """An action of the agent in a transcript; further lines are indented."""
    return "> " + action.replace("\n", "\n  ") + "\n"


def _observation_text(result: str) -> str:
    """An observation of the agent in a transcript."""
    return "".join(f"| {line}\n" for line in result.splitlines())


# Answer


class PlanChannel(TypedDict):
    """The rest of a written answer."""

    plan: list[str]


class AnswerToSubmit(SessionChannel, PlanChannel):
    """A written answer, of which a part may be left to submit."""

    answer: str


class SubmittedAnswer(PlanChannel, ObservationChannel):
    """The rest of a written answer, and what is seen after its last action."""


class NextAction(ChosenAction, PlanChannel):
    """The next action of a written answer, and those after it."""


@dataclass(frozen=True)
class Submit:
    """Close the tools, and choose the next action of the written answer.

    An answer that cannot be read is submitted as it is, and the world rejects it; the model is not asked again.
    """

    role: ClassVar[str] = "compute"
    is_blocking: ClassVar[bool] = True
    """Closing tools may wait for a process to end."""

    read: Callable[[str], Sequence[str]] = field(repr=False)
    """The actions of a written answer (an environment's `read`)."""
    toolset: Toolset = field(repr=False)

    def __call__(self, state: AnswerToSubmit) -> NextAction:
        self.toolset.close(state["session"])
        first, *rest = state["plan"] or [*self.read(state["answer"])] or [state["answer"]]
        return {"action": first, "plan": rest}


def route_remaining_answer(state: SubmittedAnswer) -> Literal["next step", "over"]:
    """Router: is anything of the answer left to submit?"""
    return "next step" if state["plan"] and not state["observation"].over else "over"
