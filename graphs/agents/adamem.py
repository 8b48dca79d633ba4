"""AdaMEM in an agent of LangChain: a strategy for the next steps, written on the spot from what was done in situations like this.

    agent = create_agent(model, tools, middleware=[learner := AdaMEMMiddleware("memory")], checkpointer=saver)
    learner.feedback("t1", reward=1.0)                                 # rated conversations are the precedents of later ones

Before a model call, steps of rated conversations that were taken in states like the present one are recalled, the model writes a
strategy from them, and the strategy stands in the agent's prompt. The nodes are those of AdaMEM's graph
(graphs/adamem.py): recollect, decide, synthesize, with its routers. `settings.mode` says when memory is asked:

| mode | memory is asked | model calls for one of the agent's |
|---|---|---|
| `low` | at the start of a turn, until there is a strategy; then when the model votes that it no longer helps | 1, 2 or 3 |
| `low-on-request` | when the model votes that it is unsure; the strategy then serves until the model votes for another | 1 or 3 |
| `high` | when the model votes that it is unsure; the strategy serves one call | 1 or 3 |
| `max` | always | 2 |

The model votes by calling a tool, in place of its next step, which the agent never sees. It stands among the tools at every call,
so that a provider's cache of the prompt's beginning stays. A model without tools cannot vote; the other triggers of
nodes/retrieve/triggers.py work for all. A draft comes to a client as a whole, once it is sure that it is kept; the strategist's words
do not. A strategist that found some conversations of no use is not asked about them again in that turn.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Unpack

from langchain.agents.middleware import ModelRequest
from langchain.agents.middleware.types import ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langgraph.store.base import BaseStore

from ...memory.attempts.trajectories import Trajectories, is_rewarded
from ...memory.conversations.messages import REPLY, call_text, last_user_message
from ...memory.conversations.reviews import without_rejected
from ...memory.errors import UserError
from ...memory.records import Strategy, Trajectory, Usage
from ...memory.search.similarity import Similarity
from ...nodes.ask import estimate_tokens
from ...nodes.fence import escape_tags
from ...nodes.prompt import Prompt
from ...nodes.retrieve.triggers import REASONS, route_memory_request
from ...nodes.synthesize.strategy import are_declined, route_precedents, strategy_text
from ...nodes.text import cut_middle
from ..adamem import MODES, AdaMEM, deciding_nodes
from ..wiring.banks import reaches_return
from .agent_identity import DOMAIN, agent_card
from .consultation import Advice, AdviceRoom, Consultation, PendingCall, Place, nearest_words, not_streamed
from .episodes import CHAT_KEYS, ChatInputs, episode_channels
from .learner import LearnerOptions, LearningMiddleware
from .rated_acts import NEWEST
from .study_worker import BackOff

__all__ = ["AdaMEMMiddleware"]

LOG = logging.getLogger(__name__)
NODES_KEPT = 64
"""Memories and models whose nodes are kept; only speed depends on it."""
MAX_PRESENT_TOKENS = 1_000
"""Tokens that the strategist sees of the request, and of what was read last."""
VOTE_TOOL = "ask_memory"
"""The name of the tool by which the model asks for memory."""


class AdaMEMMiddleware(LearningMiddleware[Trajectories]):
    """Writes strategies from rated conversations into the prompt of the agent's model.

    Args:
        store: any LangGraph store, a folder or a URL; None: the store of the agent's graph.
        strategist: writes the strategies; the agent's own model if not given. Its words are not streamed to the client.
        settings: AdaMEM's, with `k=8` if not given. `mode` is `low`, `low-on-request`, `high` or `max`. A conversation succeeded if its
            reward is above 0, or at least `success_threshold`. `distinct` has no effect: the best of equal steps would hide that what went
            well fails now. States are compared by `state_key`; `retrieval_key="whole"` adds all that was read before.
        similarity: another comparison of states than by words, such as by embeddings (`memory.search.vectors.CosineSimilarity`).
        prompts: a directory whose prompt files take the place of those of the same name (`adamem/chat_strategy`, `chat_advice`,
            `ask_memory`).
        options: those of `LearningMiddleware`.

    Raises:
        UserError: a setting cannot work with conversations.
    """

    method: ClassVar[str] = "adamem"

    def __init__(
        self,
        store: BaseStore | str | Path | None = None,
        *,
        strategist: BaseChatModel | None = None,
        settings: AdaMEM | None = None,
        similarity: Similarity | None = None,
        prompts: Path | None = None,
        **options: Unpack[LearnerOptions],
    ) -> None:
        super().__init__(store, **options)
        self.settings = replace(settings or AdaMEM(k=NEWEST), distinct=False)
        _check(self.settings)
        self.strategist, self.similarity, self.prompts = strategist, similarity, prompts
        self._advice = Prompt.load("adamem/chat_advice", prompts)
        self._vote_tool = _tool(VOTE_TOOL, Prompt.load("adamem/ask_memory", prompts).text())
        self._warned_of_votes = False
        self._pauses = dict[tuple[str, ...], BackOff]()
        self._built: dict[tuple[int, int], tuple[dict[str, Any], Trajectories, BaseChatModel]] = {}

    def make_index(self) -> Trajectories:
        """A memory of the steps of rated conversations, found by the state in which they were taken."""
        threshold = self.settings.success_threshold
        return Trajectories(
            key=CHAT_KEYS[self.settings.retrieval_key],
            similarity=self.similarity,
            success=is_rewarded if threshold is None else reaches_return(threshold),
        )

    def adapt(self, trajectory: Trajectory) -> Trajectory | None:
        """A conversation as others may repeat it: without what a person rejected."""
        return without_rejected(trajectory)

    def consult(self, request: ModelRequest[Any], place: Place, memory: Trajectories) -> Consultation:
        """Ask memory where the mode says so, have a strategy written, and ask the model with it."""
        state = episode_channels(request.messages, place, self.state_key) | self._strategy_in_force(request.state, place)
        state |= _present(state, request) | {"declined": self._declined(request.state, place)}
        nodes = self._nodes(memory, request.model)
        if place.trial.begins or not place.trial.is_advised:  # in both arms where memory has something, asked or not
            recalled = self._recollect(nodes, state, place)
            place.trial.left_out(one.trajectory for one in recalled["precedents"])
            if not place.trial.is_advised:
                (response,) = yield PendingCall([request])
                return Advice(response, _entry(state | recalled, Usage()))
        draft: _Draft | None = None
        if self.settings.mode in ("high", "low-on-request") or state["strategy"]:
            (response,) = yield self._call(
                request.override(model=not_streamed(request.model)), state, place.room
            )  # it may not be taken
            draft = _read_draft(response)
            state |= {"action": draft.action, "vote": draft.votes}
            state |= nodes["decide"](state)
            if route_memory_request(state) == "go on":  # type: ignore[arg-type]
                return Advice(draft.response, _entry(state, Usage(), drafted=True) | {"consulted": False})
        state |= self._recollect(nodes, state, place)
        out = place.trial.left_out(one.trajectory for one in state["precedents"])
        state["precedents"] = [one for one in state["precedents"] if one.trajectory not in out]
        usage, failure, written = Usage(), "", False
        if route_precedents(state) == "precedents":  # type: ignore[arg-type]
            pause = self._pauses.get(place.scope, BackOff())
            if left := pause.seconds_left:
                failure = f"the strategist has failed before, and is left alone for {left:.0f} s"
            else:
                try:
                    found = yield PendingCall(runnable=nodes["synthesize"], input=dict(state))
                except Exception as error:
                    failure = f"the strategist cannot be asked: {str(error) or type(error).__name__}"
                else:
                    usage, state, written = found["usage"], {**state, **found}, found["strategy"] is not None
                    replies = f"{usage.unreadable} replies of the strategist cannot be read"
                    failure = replies if usage.malformed and not written else ""
                if failure:
                    self._pause_strategist(place.scope, pause, failure)
                else:
                    self._pauses.pop(place.scope, None)
        if draft is not None and draft.is_whole and not written:
            return Advice(draft.response, _entry(state, usage, drafted=True, failure=failure))
        if draft is not None:
            usage += draft.usage
        (response,) = yield self._call(request, state, place.room)
        answer = _read_draft(response)
        if not answer.is_whole:  # memory was asked already
            usage += answer.usage
            (response,) = yield self._call(request, state, place.room, votes=False)
            answer = _read_draft(response)
        return Advice(answer.response, _entry(state, usage, drafted=draft is not None, failure=failure))

    def _pause_strategist(self, scope: tuple[str, ...], pause: BackOff, failure: str) -> None:
        pause.note_failure()
        self._pauses[scope] = pause
        said = "%s: no strategy was written for %s: %s"
        LOG.warning(said, self.method, "/".join(scope), failure)

    def _recollect(self, nodes: Mapping[str, Any], state: Mapping[str, Any], place: Place) -> dict[str, Any]:
        """The channels of the node `recollect`, of each user within his share."""
        found = dict(nodes["recollect"](state))
        if found["precedents"]:
            found["nearest_similarity"] = None  # it was alike enough, whether it is shown or not
        return found | {"precedents": self.share_out(place, found["precedents"], lambda one: one.trajectory)}

    def _declined(self, state: Mapping[str, Any], place: Place) -> list[str]:
        """The conversations that the strategist has found of no use in this turn."""
        entries = state.get("learning") or ()
        mine = [one for one in entries if one.get("method") == self.method and one.get("turn") == place.turn]
        return [id for entry in mine for id in entry.get("declined", ())]

    def _nodes(self, memory: Trajectories, model: BaseChatModel) -> dict[str, Any]:
        key = id(memory), id(model)
        if (known := self._built.get(key)) is not None:
            return known[0]
        parts = ChatInputs.of(not_streamed(self.strategist or model), DOMAIN, prompts=self.prompts)
        mode = MODES[self.settings.mode]._replace(strategy_prompt="chat_strategy")
        nodes = dict(deciding_nodes(parts, self.settings, memory, mode, ("decide", "recollect", "synthesize")))
        if len(self._built) >= NODES_KEPT:
            self._built.clear()
        self._built[key] = nodes, memory, model  # kept with their ids, which nothing else gets as long as they are here
        return nodes

    def _strategy_in_force(self, state: Mapping[str, Any], place: Place) -> dict[str, Any]:
        """The channels `strategy` and `written`: where it is kept those of this turn's last call, else none."""
        if MODES[self.settings.mode].keeps_strategy:
            for entry in reversed(state.get("learning") or ()):
                if entry.get("method") == self.method and entry.get("turn") == place.turn:
                    kept = entry.get("strategy")
                    return {"strategy": Strategy(**kept) if kept else None, "written": entry.get("written", -1)}
        return {"strategy": None, "written": -1}

    def _call(
        self, request: ModelRequest[Any], state: Mapping[str, Any], room: AdviceRoom, *, votes: bool = True
    ) -> PendingCall:
        """The request with the strategy, and with the tool by which the model votes."""
        if votes and self._can_vote(request):
            request = request.override(tools=[*request.tools, self._vote_tool])
        strategy: Strategy | None = state["strategy"]

        def text(items: Sequence[str]) -> str:
            shown = replace(strategy, text="\n".join(items)) if strategy and items else None
            return self._advice.text(strategy=escape_tags(strategy_text(shown))) if shown else ""

        section = text(room.fit(strategy.text.splitlines(), text)) if strategy else ""
        return PendingCall([request], section=section, sources=_sources(state))

    def _can_vote(self, request: ModelRequest[Any]) -> bool:
        if "vote" not in self.settings.triggers or self.settings.mode == "max":
            return False
        if type(request.model).bind_tools is not BaseChatModel.bind_tools:
            return True
        if not self._warned_of_votes:
            self._warned_of_votes = True
            LOG.warning(
                "%s: %s takes no tools, so it cannot vote on asking memory; use mode max, or other triggers (stalled, repeated)",
                self.method,
                type(request.model).__name__,
            )
        return False


class _Draft(NamedTuple):
    """The model's answer to a request with the tool for votes."""

    response: ModelResponse[Any]
    """Without the vote."""
    action: str
    """The step that it would take, as text."""
    votes: bool
    is_whole: bool
    """False if it only voted, and said no next step."""
    usage: Usage


def _read_draft(response: ModelResponse[Any]) -> _Draft:
    message = response.result[0]
    usage = Usage.from_reply(message)
    if not isinstance(message, AIMessage):
        return _Draft(response, REPLY + str(message.text), False, True, usage)
    calls = [call for call in message.tool_calls if call["name"] != VOTE_TOOL]
    spoilt = any(call["name"] == VOTE_TOOL for call in message.invalid_tool_calls)
    votes = spoilt or len(calls) < len(message.tool_calls)
    action = "; ".join(call_text({"name": c["name"], "args": c["args"]}) for c in calls) or REPLY + str(message.text)
    if not votes:
        return _Draft(response, action, False, True, usage)
    kept = AIMessage(
        str(message.text),
        tool_calls=calls,
        id=message.id,
        response_metadata=message.response_metadata,
        usage_metadata=message.usage_metadata,
    )
    return _Draft(ModelResponse([kept], response.structured_response), action, True, bool(calls), usage)


def _tool(name: str, description: str) -> dict[str, Any]:
    """A tool without arguments, as OpenAI's API describes it. As a plain object it is none that the agent runs."""
    parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _present(state: Mapping[str, Any], request: ModelRequest[Any]) -> dict[str, Any]:
    """The channels of what the strategist reads of the agent, of the user's request at this turn, and of the present state."""
    seen, messages = state["observation"], request.messages
    asked = str(messages[last_user_message(messages)].text) if messages else ""
    read = "the user's request" if seen.text == asked else _quoted(seen.text)
    task = replace(state["task"], instruction=_quoted(asked or state["task"].instruction))
    return {"agent": agent_card(request), "observation": replace(seen, text=read), "task": task}


def _quoted(text: str) -> str:
    return escape_tags(cut_middle(text, MAX_PRESENT_TOKENS, estimate_tokens))


def _entry(state: Mapping[str, Any], usage: Usage, *, drafted: bool = False, failure: str = "") -> dict[str, Any]:
    strategy: Strategy | None = state["strategy"]
    precedents, nearest = state["precedents"], state.get("nearest_similarity")
    entry: dict[str, Any] = {
        "recalled": _sources(state),
        "precedents": [[f"{one.trajectory}/{one.step}", round(one.similarity, 4)] for one in precedents],
        "reasons": list(state["reasons"]),
        "strategy": {**asdict(strategy), "sources": list(strategy.sources)} if strategy else None,
        "written": state["written"],
        "declined": [] if strategy else [one.trajectory for one in precedents if state.get("synthesis")],
        "usage": {name: getattr(usage, name) for name in ("calls", "input_tokens", "output_tokens", "unreadable")},
        "said": _words(state, usage, drafted, failure),
    }
    if failure:
        entry["unwritten"] = failure
    if nearest is not None and not precedents:
        entry["nearest"] = round(nearest, 4)
    return entry


def _sources(state: Mapping[str, Any]) -> list[str]:
    """Ids of the trajectories that the strategy was written from; without one those that were recalled."""
    strategy: Strategy | None = state["strategy"]
    if strategy is None:
        return list(dict.fromkeys(one.trajectory for one in state["precedents"]))
    return list(dict.fromkeys(one.rpartition("/")[0] for one in strategy.sources))


def _words(state: Mapping[str, Any], usage: Usage, drafted: bool, failure: str) -> Sequence[str]:
    """The account of a consultation, a line each."""
    strategy, said = state["strategy"], []
    if drafted and not state["reasons"]:
        said.append("drafted a step, and had no reason to ask memory")
    elif state["reasons"]:
        said.append("asked memory: " + "; ".join(REASONS[reason] for reason in state["reasons"]))
    if failure:
        said.append(f"no strategy was written: {failure}")
    elif state["precedents"] and strategy is None and state.get("synthesis"):
        said.append("the strategist found the precedents of no use")
    elif state["precedents"] and strategy is None and are_declined(state):  # type: ignore[arg-type]
        said.append("the strategist was not asked again about what it found of no use in this turn")
    nearest = state.get("nearest_similarity")
    if not state["precedents"] and nearest is not None:
        said.append(nearest_words(nearest))
    if strategy is not None:
        kept = "written now" if strategy.step == state["step"] else f"kept since step {strategy.step + 1}"
        said.append(f"strategy ({kept}): {strategy.text}")
    return said


def _check(settings: AdaMEM) -> None:
    """Refuse settings that have no meaning for conversations."""
    wrong = {
        "wording=paper speaks of environments: take ours": settings.wording != "ours",
        f"mode={settings.mode}: take low, low-on-request, high or max": settings.mode in ("raw", "no-precedents"),
        "author=rule repeats the arguments of other conversations: take model": settings.author != "model",
        "bank: import its trajectories into the store": bool(settings.bank),
        "embedder: give similarity=CosineSimilarity(...)": bool(settings.embedder),
    }
    if found := [text for text, is_wrong in wrong.items() if is_wrong]:
        raise UserError(f"AdaMEMMiddleware cannot use these settings: {'; '.join(found)}")
