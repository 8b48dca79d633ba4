"""The base class of all learning middlewares: it records an agent's conversations, takes feedback, and has a method advise the agent.

    agent = create_agent(model, tools, middleware=[learner := JitRLMiddleware("memory", decide=["resolve"])], checkpointer=saver)
    agent.invoke({"messages": "..."}, {"configurable": {"thread_id": "t1", "tenant": "acme"}})
    learner.feedback("t1", reward=1.0, tenant="acme")                  # late, twice, or never; from another process, too

A turn is recorded at each of the agent's steps, so that one which fails, hits a limit or waits for a person can be rated as well.
Feedback makes a rated trajectory of what happened since the feedback before it (memory/conversations/store.py), and each method has
its memory of these. Before each model call the method consults its memory, and what it recalled, added and chose stands in the
agent's state under `learning`, in the stream of custom events, and in `explain`.

What cannot be consulted does not stop an agent: where memory fails, it answers without advice, and the log says so. A run that does not
say whose memory is meant is an error (`ScopeError`).
"""

import inspect
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Unpack

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, AgentState, HumanInTheLoopMiddleware, ModelRequest
from langchain.agents.middleware.types import ExtendedModelResponse, ToolCallRequest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.store.base import BaseStore
from langgraph.types import Command

from ...memory.conversations.messages import (
    count_turns_before,
    first_new_message,
    goal_and_last_turn,
    is_summary,
    last_user_message,
    users_messages,
)
from ...memory.conversations.reviews import review_rating
from ...memory.conversations.screen import Suspicion
from ...memory.conversations.store import ConversationStore, RatingOptions
from ...memory.conversations.turns import Turn, newest_read, with_beginning
from ...memory.conversations.write_queue import MOST_OPEN
from ...memory.errors import Unavailable, UserError, plural
from ...memory.records import Task
from ...memory.telemetry import Traced, memory_names, span
from ...nodes.arguments import Count, check_value, checks_arguments, list_options
from ...nodes.text import trim_middle
from .agent_identity import DOMAIN
from .consultation import (
    Advice,
    Consultation,
    HandedTurns,
    PendingCall,
    Place,
    model_response,
    record_for_all,
    recorder_of,
    sent_beside,
    turn_id,
)
from .executed_calls import find_caller, name_caller, refused_result, watch_call
from .given_advice import (
    AdvicePlace,
    AdvisedPrompts,
    LearningState,
    OpenConsultation,
    SentPrompts,
    plain_messages,
    without_forged_advice,
)
from .reward_sources import RewardSource, describe_source, read_reward
from .scope_memories import Index
from .scope_values import AgentScope, ScopeError, ScopeValue, find_tenants, label_values
from .scopes import ScopedLearner, ScopeOptions
from .status import LearnerStatus
from .team_ratings import rate_agents
from .waiting import AwaitedWaits, Waits, finish

__all__ = ["LearnerOptions", "LearningMiddleware", "LearningState", "rate_agents"]

LOG = logging.getLogger(__name__)
RESUMING = "__pregel_resuming"
"""LangGraph's key in the `configurable` of a run that goes on from a checkpoint, for its first step."""
MOST_GOAL_CHARS = 4_000
"""Characters of a user's first message by which a conversation is named in prompts; as a step it is kept whole."""


class LearnerOptions(ScopeOptions, total=False):
    """Options that all learning middlewares take."""

    reward: RewardSource | None
    next_turn: RewardSource | None
    reviews: bool | Sequence[str]
    place: AdvicePlace | None
    max_added_tokens: Count | None


class LearningMiddleware(AgentMiddleware[AgentState[Any], Any, Any], ScopedLearner[Index]):
    """Records an agent's conversations and their feedback, and consults a method's memory before each model call.

    Args:
        store: any LangGraph store, a folder or a URL; None: the store of the agent's graph.
        reward: a source of rewards for what has happened when a turn ends, since the one that it rated before (graphs/agents/reward_sources.py);
            feedback that comes later holds. It may be awaited. Not given: only feedback rates.
        next_turn: a source that sees the user's next message as well, and rates the turn before it alone. It decides by a signal that the
            user did not mean as feedback: `explain` shows what it decided. Not given: no such signal counts.
        reviews: True, the default: a person's edit or rejection of a tool call (HumanInTheLoopMiddleware) is feedback on the turn by
            itself, until somebody gives it a reward. False: it is not. Names of tools: so is a call of these that a person let pass,
            since he sees them all.
        place: advice is given when it changes (`turn`), or once a thread (given_advice.py). None: as suits the method.
        max_added_tokens: tokens of all advice that stands in a prompt, of all turns of its thread together, by an upper estimate; each
            model call sends them. What is worth least is left out first. None: as many as the method's own limits allow.
        options: those of `ScopedLearner`.
    """

    state_schema = LearningState
    default_place: ClassVar[AdvicePlace] = "turn"

    def __init__(
        self,
        store: BaseStore | str | Path | None = None,
        *,
        reward: RewardSource | None = None,
        next_turn: RewardSource | None = None,
        reviews: bool | Sequence[str] = True,
        place: AdvicePlace | None = None,
        max_added_tokens: Count | None = None,
        **options: Unpack[ScopeOptions],
    ) -> None:
        AgentMiddleware.__init__(self)
        ScopedLearner.__init__(self, store, **options)
        self._reward, self._next_turn, self._reviews = reward, next_turn, reviews
        self.tool_lists = {} if isinstance(reviews, bool) else {"reviews": reviews}
        self.place, self.max_added_tokens, self._sent = place or self.default_place, max_added_tokens, SentPrompts()
        self._logged, self._left_out = deque[tuple[str, str]](maxlen=1_000), list[str]()

    def consult(self, request: ModelRequest[Any], place: Place, memory: Index) -> Consultation:
        """Advise a model call: a generator that yields what it asks for, and returns the response with its entry."""
        raise NotImplementedError

    def ask_with(self, request: ModelRequest[Any], section: str, entry: dict[str, Any]) -> Consultation:
        """Ask the model with a section, which the mode `observe` leaves out."""
        (response,) = yield PendingCall([request], section=section, sources=entry.get("recalled", ()))
        return Advice(response, entry)

    def read_tools(self, tools: Sequence[Any]) -> bool:
        """Take note of the tools that the agent has at this call; returns True if `adapt` works differently from now on."""
        return False

    def check_tools(self, tools: Sequence[Any]) -> None:
        """Raise UserError where an option names a tool that an agent which is made with these has not, and one of these is meant."""

    @checks_arguments
    def node(
        self,
        model: BaseChatModel,
        tools: Sequence[BaseTool | Mapping[str, Any] | Callable[..., Any]] = (),
        system_prompt: str = "",
        messages_key: str = "messages",
    ) -> Runnable[Any, dict[str, Any]]:
        """A node that asks a model, for a graph of one's own: `builder.add_node("model", learner.node(model, tools))`. What other nodes
        say is none of its actions.

        Args:
            model: the chat model, without its tools.
            tools: bound to it.
            system_prompt: the agent's instructions.
            messages_key: the state's channel with the messages, to which its reducer (`add_messages`) adds the replies.
        """
        from .model_node import model_node

        self.check_tools(tools)
        self.agent.bind("")
        self.agent.is_node = True
        return model_node(self, model, tools, system_prompt, messages_key)

    @checks_arguments
    def end_node(self, messages_key: str = "messages") -> Runnable[Any, dict[str, Any]]:
        """A node that ends the turn of `node`, for a graph in which a call of a tool may be the last that the model says: then `reward=`
        is called. After a reply in words, which ends a turn by itself, it does nothing."""
        from .model_node import end_node

        return end_node(self, messages_key)

    @cached_property
    def kept_threads(self) -> Any:
        """The channels of threads whose graph has no room for them in its state."""
        from .model_node import KeptThreads

        return KeptThreads(self.agent.node_name, self.scope.names)

    @property
    def tools(self) -> Sequence[BaseTool]:  # type: ignore[override]
        """None of its own. `create_agent` asks for them, and its frame is the one place where LangChain says the name of the agent that
        is made, and the middlewares beside this one."""
        frame = sys._getframe(1)
        while frame.f_code is not create_agent.__code__ and frame.f_back is not None:
            frame = frame.f_back
        if frame.f_code is create_agent.__code__:
            beside = frame.f_locals.get("middleware") or ()
            tools = [*(frame.f_locals.get("tools") or ())]
            asked = dict[str, Any]()
            for one in beside:
                if not isinstance(one, LearningMiddleware):
                    tools += getattr(one, "tools", ())
                elif one.screen != self.screen:
                    raise UserError(
                        "two learners of one agent read the same conversations, and of one store have one record of them; "
                        f"{self.method} has {self.screen}, {one.method} {one.screen}: give both the same screen="
                    )
                if isinstance(one, HumanInTheLoopMiddleware):
                    asked |= {tool: options["allowed_decisions"] for tool, options in one.interrupt_on.items()}
            self.check_tools(tools)
            self.agent.bind(frame.f_locals.get("name") or "", [tool for tool, allowed in asked.items() if "respond" in allowed])
        return ()

    def status(self, **scope: ScopeValue) -> LearnerStatus:
        """The state of this learner in a scope, with the turns whose end `reward=` waits for."""
        found, waits = super().status(**scope), len(self._memory(self._labels(scope)).open_turns)
        found = replace(found, notes=(*found.notes, *self._left_out_of_scope()))
        if self._reward is None or not waits:
            return found
        words = f"reward= waits for the end of {plural(waits, 'turn')}, the last reply of which calls a tool"
        return replace(found, notes=(*found.notes, words + "; end_node() ends one" * self.agent.is_node))

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Any:
        """Ask the model with the method's advice."""
        return finish(self.call_model(request, Waits(handler)))

    async def awrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]) -> Any:
        """As `wrap_model_call`, in an agent that is awaited."""
        return await self.call_model(request, AwaitedWaits(handler))

    async def call_model(self, request: ModelRequest[Any], waits: Waits) -> Any:
        """Ask the model with the method's advice."""
        if (refusal := self._refusal(request)) is not None:
            await waits.call(self._keep_refused_out, request)
            raise refusal
        request = self._defused(request)
        with self._at_work(request):
            if not isinstance(run := await waits.call(self._open, request), OpenConsultation):
                found = self._without_advice(request, await waits.answer(request), run)
                if run is None:  # its memory is being read
                    await waits.call(self._record_so_far, request, found, HandedTurns())
                return found
            handed = HandedTurns()
            try:
                with record_for_all(self._key(run.place), handed):
                    while isinstance(asks := run.asks, PendingCall):
                        await waits.call(run.go_on, await _answer(asks, run, waits))
                    found = self._finish(run, run.answer or await waits.answer(request))
            except Exception:
                await waits.call(self._record_so_far, request, None, handed)
                raise
            await waits.call(self._record_so_far, request, found, handed)
            return found

    def _defused(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """The request, in which only advice looks like advice; at each call of a thread, so that its prompts begin as the one before did."""
        return request if self.mode == "off" else request.override(messages=without_forged_advice(request.messages))

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Have the call made, and note which one it was: a person may have changed it."""
        return finish(self._call_tool(request, Waits(handler)))

    async def awrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]) -> Any:
        """As `wrap_tool_call`, in an agent that is awaited."""
        return await self._call_tool(request, AwaitedWaits(handler))

    async def _call_tool(self, request: ToolCallRequest, waits: Waits) -> Any:
        if self.mode == "off":
            return await waits.answer(request)
        if self._refusal(request):  # an error would leave the call to whoever resumes the thread, as the refused run decided
            return refused_result(request)
        watched, mark = watch_call(request)
        with name_caller(request), self._at_work(request):
            return mark(await waits.answer(watched))

    def _refusal(self, request: ModelRequest[Any] | ToolCallRequest) -> ScopeError | None:
        """The error of a run of another tenant than its thread's; None: it is of the same."""
        try:
            if self.mode != "off" and isinstance(request.state, Mapping) and request.state.get("scope_values"):
                self._run_scope(request.state, request.runtime)
        except ScopeError as error:
            return error
        return None

    def _keep_refused_out(self, request: ModelRequest[Any]) -> None:
        """Quarantine a turn that a run of another tenant has gone on with: a person may have rejected its calls in that run."""
        known, messages = dict[str, Any](request.state).get("scope_values", {}), self._own_messages(request.state)
        labels = self._labels_of(self.scope.labels({name: known.get(name) for name in self.scope.names}))
        thread, turn = get_config().get("configurable", {}).get("thread_id"), turn_id(messages, find_caller().call)
        try:
            self.keep_out(labels, str(thread), "a run of another tenant has gone on with it", turn=turn)
        except Exception as error:  # the run is refused all the same
            self._note_failure_of(labels, "a turn that another tenant has gone on with is not quarantined", error)

    @contextmanager
    def _at_work(self, request: ModelRequest[Any] | ToolCallRequest) -> Iterator[None]:
        """Note while a call is made that its turn goes on: feedback that names no turn is about the one before."""
        marks, mark = set[tuple[str, str, object]](), ("", "", object())
        if self.mode != "off":
            with suppress(Exception):  # whoever records the turn says why it has no place
                place = self._place(request.state, request.runtime)
                marks, mark = self._memory(place.scope).at_work, (place.thread, place.turn, object())
        marks.add(mark)
        try:
            yield
        finally:
            marks.discard(mark)

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Rate the turn before, where the user's next message says how it was; note what no user has said, where the run begins with it.

        Raises:
            ScopeError: the run does not say whose memory is meant.
        """
        return finish(self.begin_turn(state, runtime, Waits()))

    async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """As `before_agent`, in an agent that is awaited."""
        return await self.begin_turn(state, runtime, AwaitedWaits())

    async def begin_turn(self, state: Any, runtime: Any, waits: Waits) -> dict[str, Any] | None:
        """As `before_agent`."""
        scope = self.find_scope(state, runtime)
        if (source := await waits.call(self._source_of_turn_before, state, runtime)) is not None:
            await self._rate(state, runtime, *source, waits)
        return {**scope, **await waits.call(self._find_given, state, runtime)} or None

    def find_scope(self, state: Any, runtime: Any, *, begins: bool = True) -> dict[str, Any]:
        """The values of the scope and of the user that the run gives, or its caller's, where the thread does not have them yet.

        Raises:
            ScopeError: the run gives another value of the scope than the thread has: what was said in it would go into another memory.
        """
        if self.mode == "off":
            return {}
        known = state.get("scope_values") or {}
        parts = [self._values_of_run(names, state, runtime, begins=begins) for names in (self.scope, self.user)]
        given = label_values(sum(parts, ()))  # that a thread is without a value is known by the run that begins a turn alone
        new = {name: one for name, one in given.items() if one != known.get(name) or (begins and name not in known)}
        return {"scope_values": new} if new else {}

    def _find_given(self, state: Any, runtime: Any) -> dict[str, Any]:
        """The messages since the user's last one that the agent has not said itself: an event, or the task of a supervisor."""
        messages = state["messages"]
        start = last_user_message(messages) if any(isinstance(one, HumanMessage) for one in messages) else -1
        found = [
            one
            for one in messages[start + 1 :]
            if isinstance(one, AIMessage | SystemMessage) and not getattr(one, "tool_calls", ())
        ]
        if not found or self.mode == "off" or self.agent.is_node:
            return {}
        try:
            place = self._place(state, runtime)
            known = self._memory(place.scope).conversations.latest(place.thread)
        except ScopeError:
            raise
        except Exception as error:
            LOG.warning("%s: it is not known what the agent has said before: %s", self.method, error)
            return {}
        own = {id for turn in (known.turns if known else ()) for id in turn.replies}
        return {"given_messages": [str(one.id) for one in found if one.id not in own]}

    def _own_messages(self, state: Any) -> list[Any]:
        return self.agent.own_messages(state["messages"], state.get("given_messages") or ())

    def after_agent(self, state: Any, runtime: Any) -> None:
        """Record the turn that has ended, and rate it if there is a source of rewards."""
        finish(self.end_turn(state, runtime, Waits()))

    async def aafter_agent(self, state: Any, runtime: Any) -> None:
        """As `after_agent`, in an agent that is awaited."""
        await self.end_turn(state, runtime, AwaitedWaits())

    async def end_turn(self, state: Any, runtime: Any, waits: Waits) -> None:
        """As `after_agent`."""
        if (turn := await waits.call(self._record_end, state, runtime)) and self._reward is not None:
            await self._rate(state, runtime, self._reward, {"turn": turn}, waits)

    def _open(self, request: ModelRequest[Any]) -> OpenConsultation | Exception | None:
        """Look into memory for a model call, up to the first thing that the method waits for; the error of that, or None where memory
        is not asked."""
        if self.mode == "off":
            return None
        with span("search_memory") as traced:
            if not isinstance(run := self._begin(request, traced), OpenConsultation):
                return run
            run.go_on()
            if isinstance(asks := run.asks, PendingCall) and asks.runnable is None:
                traced.set({"gen_ai.memory.record.count": len(asks.sources)})
                traced.set_texts("gen_ai.memory.records", [{"content": asks.section}] if asks.section else None)
            return run

    def _begin(self, request: ModelRequest[Any], traced: Traced) -> OpenConsultation | Exception | None:
        try:
            place = self._place(request.state, request.runtime)
            self._check_scope(place)
            place = replace(place, traceparent=traced.traceparent)
            if traced.is_on:
                traced.set(memory_names(place.scope, place.thread))
                traced.set_texts("gen_ai.memory.query.text", str(request.messages[last_user_message(request.messages)].text))
            if self.agent.read_tools(request.tools):
                for sentence in self._unknown_tools():
                    LOG.warning("%s: %s", self.method, sentence)
            told = str(request.system_message.text) if request.system_message else ""
            self.agent.note_instructions(str((get_config().get("metadata") or {}).get("langgraph_node", "")), told)
            if self.read_tools(request.tools):
                self._rebuild_indexes()
            if (memory := self._opened(place.scope, place.thread, goes_on=place.step > 0)) is None:
                return None
            said = self._own_messages(request.state)
            recorded = [one.id for one in memory.conversations.turns_at_hand(place.thread)]
            place = replace(place, number=count_turns_before(said, recorded, place.turn))
            drawn: Any = request.state.get("trials") or {}
            key, known = f"{self.method}/{place.thread}", drawn.get(self.method)
            trial = self.plan.draw(key, memory.ledger, known, is_guided=self.mode == "guide")
            are_known, mark = partial(self.are_known, memory), partial(self.mark_sources, memory)
            prompts = AdvisedPrompts(request, self.method, self.place, trial, are_known, self.max_added_tokens, mark)
            entries: Any = request.state.get("learning") or ()
            state: Any = {**request.state, "learning": [one for one in entries if "failed" not in one]}
            own = self.agent.own_messages(plain_messages(request.messages), request.state.get("given_messages") or ())  # type: ignore[arg-type]
            plain = request.override(messages=own, state=state)
            place = replace(place, trial=trial, room=prompts.room)
            return OpenConsultation(self.consult(plain, place, memory.index), prompts, place)
        except ScopeError:
            raise
        except Exception as error:
            traced.fail(error)
            return error

    def _without_advice(self, request: ModelRequest[Any], answer: Any, error: Exception | None) -> Any:
        """The answer, with an entry for the state that says why memory failed, if it did; the log says so once a turn."""
        if error is None:
            return answer
        turn, failure = turn_id(self._own_messages(request.state), find_caller().call), f"{type(error).__name__}: {error}"
        if (turn, failure) not in self._logged:
            self._logged.append((turn, failure))
            traced = None if isinstance(error, UserError) else error
            words = "%s: the consultation failed, and the agent answers without advice: %s"
            LOG.warning(words, self.method, error, exc_info=traced)
        entry = {"method": self.method, "mode": self.mode, "recalled": [], "failed": failure, "turn": turn}
        self._memory(self._run_scope(request.state, request.runtime)).tally(entry)
        return ExtendedModelResponse(model_response(answer), Command(update={"learning": [entry]}))

    def _finish(self, run: OpenConsultation, answer: Any) -> Any:
        """The response with its entry for the state."""
        advice, prompts, place = run.asks, run.prompts, run.place
        if not isinstance(advice, Advice):
            return self._without_advice(prompts.last, answer, run.error)
        entry = {"method": self.method, "mode": self.mode, "recalled": [], **advice.entry, **prompts.entry(advice.entry)}
        entry["turn"] = place.turn
        if place.traceparent:
            entry["traceparent"] = place.traceparent
        entry["cached"] = round(self._sent.cached_share(prompts.last, (*place.scope, place.thread)), 3)
        self._memory(place.scope).tally(entry)
        prompts.last.runtime.stream_writer({"learning": entry})
        return ExtendedModelResponse(advice.response, Command(update={"learning": [entry], **prompts.update}))

    def _source_of_turn_before(self, state: Any, runtime: Any) -> tuple[RewardSource, RatingOptions] | None:
        """The source that rates the turn before the one that begins, that turn alone; None without a source or such a turn."""
        if self.mode == "off":
            return None
        scope = self._run_scope(state, runtime)
        if self._next_turn is None:
            return None
        try:
            place = self._place(state, runtime)
            known = self._memory(scope).conversations.latest(place.thread)
            turns = known.turns if known is not None else ()
            last = newest_read(turns, {str(one.id) for one in state["messages"]}) or (turns[-1] if turns else None)
            if last is None or last.id == place.turn:
                return None
            return self._next_turn, {"message_id": last.replies[-1]} if last.replies else {"turn": last.id}
        except Exception as error:
            self._note_failure(state, runtime, "the turn before was not rated, since it cannot be read", error)
            return None

    async def _rate(self, state: Any, runtime: Any, source: RewardSource, about: RatingOptions, waits: Waits) -> None:
        """Rate a recorded turn by what a source says; one that says nothing leaves it without a reward."""
        what = f"a turn was not rated by {describe_source(source)}"
        try:
            said = await waits.call(source, state["messages"])
            said = await waits.outcome(said) if inspect.isawaitable(said) else said
            await waits.call(self._keep_rating, state, runtime, source, about, said, what)
        except Exception as error:
            self._note_failure(state, runtime, what, error)

    def _keep_rating(self, state: Any, runtime: Any, source: RewardSource, about: RatingOptions, said: Any, what: str) -> None:
        if (found := read_reward(source, said)) is not None:
            place = self._place(state, runtime)
            reward = self.rewards.read(found[0])
            about = {**about, "source": describe_source(source)}
            rate = partial(self.add_rating, place.scope, place.thread, reward, found[1] or None, **about)
            self.agent.queue.write_turn((place.scope, place.thread), rate, partial(self._note_failure_of, place.scope, what))

    def _record_end(self, state: Any, runtime: Any) -> str:
        """Record the turn that has ended, with what a person changed of its calls; returns its id, empty if it is not recorded."""
        if self.mode == "off":
            return ""
        what = "a turn was not recorded, and nothing is learned from it"
        try:
            place, messages = self._place(state, runtime), self._own_messages(state)
            record: Any = self._recording(place, messages, state.get("learning") or [], runtime)
            turn = messages[last_user_message(messages) :]
            tools = self.tool_lists.get("reviews", ())
            found = review_rating(turn, self.rewards.least, self.rewards.most, tools) if self._reviews else None
            reply = next(one.id for one in reversed(turn) if one.type == "ai") if found else None

            def end() -> None:
                record()
                self._memory(place.scope).open_turns.discard((place.thread, place.turn))
                if found:
                    self._add_review(place, found, reply)

            def fail(error: Exception) -> None:
                for id in (place.thread, *(str(one.id) for one in turn if one.type == "ai")):
                    self.agent.queue.shared.note_loss((place.scope, id), f"{type(error).__name__}: {error}")
                self._note_failure_of(place.scope, what, error)

            return place.turn if self.agent.queue.write_turn((place.scope, place.thread), end, fail) else ""
        except ScopeError:
            raise
        except Exception as error:
            self._note_failure(state, runtime, what, error)
            return ""

    def _add_review(self, place: Place, found: tuple[float | None, str], reply: str | None) -> None:
        """Rate a recorded turn, of which this is a reply's id, by what a person changed of it: no turn before it, which nobody has judged."""
        try:
            self.add_rating(place.scope, place.thread, *found, message_id=reply, source="reviewer")
        except Unavailable:
            raise
        except Exception as error:  # the turn is recorded all the same
            self._note_failure_of(place.scope, "a turn was not rated by its reviewer", error)

    def _record_so_far(self, request: ModelRequest[Any], found: Any, handed: HandedTurns) -> None:
        """Record a turn that goes on after a reply, or that has failed (None): it may never come to its end.

        Args:
            request: of the model call.
            found: what came of it.
            handed: the turn as learners within this call have it, which is written with it. The learner around it does that for all.
        """
        replies = [] if found is None else model_response(found).result
        ends = found is not None and not any(isinstance(one, AIMessage) and one.tool_calls for one in replies)
        if ends or self.mode == "off":  # what ends here is recorded as a whole
            return
        fail = partial(LOG.warning, "%s: a turn is not recorded before its end: %s", self.method)
        try:
            place = self._place(request.state, request.runtime)
            made: Any = found.command.update if isinstance(found, ExtendedModelResponse) and found.command else {}
            known: Any = request.state.get("learning") or []
            entries = [*known, *made.get("learning", ())]
            messages = [*self._own_messages(request.state), *replies]
            goes_on = found is not None
            record = self._recording(place, messages, entries, request.runtime, goes_on=goes_on, handed=handed)

            def keep() -> object:
                is_written = record is not None and record()
                if goes_on and len(waits := self._memory(place.scope).open_turns) < MOST_OPEN:
                    waits.add((place.thread, place.turn))
                return is_written

            if record is None:
                keep()
            else:
                self.agent.queue.write_turn((place.scope, place.thread), keep, fail)
        except Exception as error:
            fail(error)

    def _recording(
        self,
        place: Place,
        messages: Sequence[AnyMessage],
        learning: Any,
        runtime: Any,
        *,
        goes_on: bool = False,
        handed: HandedTurns | None = None,
    ) -> Callable[[], object] | None:
        """Take note of a turn as it is now; returns what records it, or None where a learner around this one does so."""
        caller, conversations = find_caller(), self._memory(place.scope).conversations
        is_suspect = self.screen.suspicion_in(messages) is not None
        # A thread may be older than its first recorded turn: what this turn answers is what it is about.
        asked = trim_middle(str(messages[last_user_message(messages)].text), MOST_GOAL_CHARS)
        known = conversations.turns_at_hand(place.thread)
        screen = self.screen.of_thread(messages, place.thread, [digest for one in known for digest in one.secrets])
        task = replace(place.task, instruction=screen.redact(asked))
        where = last_user_message(messages), self.agent.listed
        try:
            done = screen.steps(messages, self.state_key, *where)
        except Exception as error:  # the app's function; what happened is kept all the same
            if not goes_on:  # once a turn
                self._note_failure_of(place.scope, "a turn was recorded without its state_key", error)
            done = screen.steps(messages, goal_and_last_turn, *where)
        mine = [one for one in learning if (one.get("turn"), one.get("method")) == (place.turn, self.method)]
        entries = tuple({key: value for key, value in one.items() if key != "turn"} for one in mine)
        run = str(getattr(getattr(runtime, "execution_info", None), "run_id", None) or "")
        answered = messages[last_user_message(messages) :]
        replies = tuple(str(one.id) for one in answered if isinstance(one, AIMessage) and one.id)
        about: Any = {"called_by": caller.message, "user": place.user, "secrets": screen.digests}
        turn = Turn(place.turn, done, run, entries, replies, sent_beside(answered), self.method, **about)
        if known and known[-1].id == place.turn and is_summary(answered[0]):  # no message has what was asked
            said = [n for n, one in enumerate(messages) if isinstance(one, AIMessage)]
            after = next((n for n in said if n > where[0] and messages[n].id not in known[-1].replies), len(messages))
            again = len(screen.steps(messages[:after], goal_and_last_turn, *where))
            turn, task = with_beginning(turn, known[-1], again), getattr(conversations.latest(place.thread), "task", task)
        read = caller.read.union(str(one.id) for one in messages)
        before = messages[where[0] - 1] if where[0] > 0 else None
        left = str(before.id) if isinstance(before, AIMessage) and before.tool_calls else ""
        recorder = recorder_of(self._key(place)) if handed is not None and not is_suspect and not left else None
        if recorder is not None:
            recorder[self.method] = turn, task, place.user
            return None
        turns = [*(handed or {}).values(), (turn, task, place.user)]
        about = {"task": turns[0][1], "domain": DOMAIN, "user": turns[0][2]}  # as the innermost learner says
        for one, *_ in turns:
            conversations.note_turn(place.thread, one, **about)
        keep: Callable[..., Any] = partial(conversations.record, place.thread, read=read, **about)

        def record() -> object:  # False: a later record of the turn does so
            if goes_on and self.agent.queue.shared.skip((place.scope, place.thread), turn.id, len(turns)):
                return False
            if is_suspect and (found := self._find_suspicion(conversations, place.thread, messages)) is not None:
                self.keep_out(place.scope, place.thread, *found, place.turn)
            if left:
                self._record_left(messages, place, left, len(done), keep)
            return keep(turn, beside=[one for one, *_ in turns[:-1]], is_noted=True, goes_on=goes_on)

        return record

    def _find_suspicion(self, kept: ConversationStore, thread: str, messages: Sequence[AnyMessage]) -> Suspicion | None:
        """The first text that instructs the agent, of what users have said since the turns before, or that no recorded turn answers, as in a
        history that a client sends along."""
        new = first_new_message(messages)
        if (found := self.screen.suspicion_in(messages[new:])) is not None:
            return found
        known = {turn.id for turn in getattr(kept.turns.get(thread), "turns", ())}
        return self.screen.suspicion_in([one for one in messages[:new] if one.id not in known and not is_summary(one)])

    def _key(self, place: Place) -> Hashable:
        """The key of a conversation's record, the same for all learners of an agent with one store and one scope."""
        return self.agent.queue, place.scope, place.thread

    def _record_left(
        self, messages: Sequence[AnyMessage], place: Place, reply: str, later: int, keep: Callable[..., Any]
    ) -> None:
        """Record a turn anew whose calls waited for a person when the user went on: they were never made.

        Args:
            messages: that the agent has.
            place: of the run.
            reply: id of the message with the calls.
            later: the number of steps after it.
            keep: records a turn.
        """
        known, ids = self._memory(place.scope).conversations.turns.get(place.thread), [str(one.id) for one in messages]
        for one in known.turns if known else ():
            if one.replies[-1:] == (reply,) and one.replies[0] in ids:  # else a summary has taken its beginning
                done = self.screen.steps(messages, self.state_key, ids.index(one.replies[0]), self.agent.listed)
                keep(replace(one, steps=done[: len(done) - later]))

    def _note_failure(self, state: Any, runtime: Any, what: str, error: Exception) -> None:
        """Say in the log, and in `status` where the run says whose it is, what could not be done."""
        try:
            scope = self._run_scope(state, runtime)
        except UserError:
            LOG.warning("%s: %s: %s", self.method, what, error)
        else:
            self._note_failure_of(scope, what, error)

    def _note_failure_of(self, scope: tuple[str, ...], what: str, error: Exception) -> None:
        LOG.warning("%s: %s: %s", self.method, what, error)
        self._memory(scope).note_failure(what, f"{type(error).__name__}: {error}")

    def _run_scope(self, state: Any, runtime: Any) -> tuple[str, ...]:
        """The labels of the memory that a run works with.

        Raises:
            ScopeError: the run does not say whose it is.
        """
        self.agent.read_run(runtime, get_config().get("metadata") or {})
        values = self._values_of_run(self.scope, state, runtime)
        if values and not any("=" in one for one in values) and not self._left_out:
            self._left_out = find_tenants(runtime, get_config().get("configurable", {}))[:1]
            for sentence in self._left_out_of_scope():
                LOG.warning("%s: %s", self.method, sentence)
        return self._labels_of(values)

    def _left_out_of_scope(self) -> list[str]:
        """A sentence about a value of a run that looks like a tenant's, where the scope names another one, and the run gives none."""
        names = " and no ".join(self.scope.names)
        said = "a run gave no {}, but {}, which the scope does not name: what is learned from it goes to all who give no {}; scope=({!r},) keeps them apart, and scope=() says that all share"
        return [said.format(names, one, names, one) for one in self._left_out]

    def _check_scope(self, place: Place) -> None:
        """Raise `ScopeError` if a run goes on with a turn that was begun with a value which this run does not give, and its state has not
        kept: a state that is no `LearningState`, in another process, or the first checkpoint of a thread."""

        def has_turn(kept: ConversationStore) -> bool:
            turns = kept.turns_at_hand(place.thread) or getattr(kept.latest(place.thread), "turns", ())
            return any(one.id == place.turn for one in turns)

        missing = [one for one in place.scope[2:] if "=" not in one]
        goes_on = place.step or get_config().get("configurable", {}).get(RESUMING)
        if not missing or not goes_on or has_turn(self._memory(place.scope).conversations):
            return
        for *labels, kind in self.agent.namespaces(place.scope[:2], 3 + len(self.scope.names)):
            if kind == "turns" and has_turn(ConversationStore(self.agent.store, labels, shared=self.agent.queue.shared)):
                names = [name for name, value in label_values(labels[2:]).items() if name in missing and value is not None]
                raise ScopeError(
                    f"this run goes on with a turn of thread {place.thread!r} that was begun with a {' and a '.join(names)}, and gives "
                    "none: give the same in context= or configurable; in a graph of one's own, a LearningState keeps it"
                )

    def _values_of_run(self, names: AgentScope, state: Any, runtime: Any, *, begins: bool = False) -> tuple[str, ...]:
        """The labels for a run, with the values of the calling agent, else of the thread before, for what the run does not give; where no
        new message begins a turn, as in a resume, with what the turn holds (`AgentScope.is_held`).

        Raises:
            ScopeError: as of `find_scope`.
        """
        known, caller = state.get("scope_values") or {}, find_caller().scope
        all_known = {**known, **caller}
        labels = names.of_run(runtime, get_config().get("configurable", {}), all_known, caller if begins else all_known)
        for name, value in label_values(labels).items() if names is self.scope else ():
            if name not in known or value == known[name] or (begins and known[name] is None):
                continue
            remedy = (
                "give another thread_id; or where threads are shared, name in user=, and not in scope=, who it is that speaks"
            )
            if not begins:
                optional = f"; or where others may resume, name it {name + '?'!r} in scope="
                remedy = "resume it with the same, or with none" + optional * AgentScope([f"{name}?"]).is_held(name)
            begun = "none" if known[name] is None else repr(known[name])
            raise ScopeError(f"this run gives the {name} {value!r}, and its thread was begun with {begun}: {remedy}")
        return labels

    def _place(self, state: Any, runtime: Any) -> Place:
        messages = self._own_messages(state)
        humans = [m for m in messages if isinstance(m, HumanMessage)]
        thread = get_config().get("configurable", {}).get("thread_id") or (humans[0].id if humans else None) or "no thread"
        task = self._task(messages) if self._task is not None else DOMAIN
        check_value("the value of task=", task, str)
        goal = trim_middle(str(users_messages(humans)[0].text), MOST_GOAL_CHARS) if users_messages(humans) else ""
        calls = sum(isinstance(m, AIMessage) for m in messages[last_user_message(messages) :])
        users = self._values_of_run(self.user, state, runtime)
        user = "".join(one for one in users if "=" in one)  # `user_id=ann`; `user_id` where it may be missing, and is
        scope, turn = self._run_scope(state, runtime), turn_id(messages, find_caller().call)
        if humans and is_summary(humans[-1]) and (known := self._memory(scope).conversations.turns_at_hand(str(thread))):
            turn = known[-1].id
        return Place(str(thread), scope, turn, len(humans) - 1, Task(task, goal), calls, user)


async def _answer(asked: PendingCall, run: OpenConsultation, waits: Waits) -> Any:
    """The answer to what a method waits for; its error, where the method may catch it."""
    try:
        if asked.runnable is not None:
            return await waits.output(asked.runnable, asked.input)
        return list(map(model_response, await waits.answers(run.prompts.advise(asked).requests)))
    except GraphBubbleUp:
        raise
    except Exception as error:
        if asked.runnable is None and not asked.may_fail:
            raise
        return error


list_options(LearnerOptions, LearningMiddleware.__mro__)
