"""JitRL in an agent of LangChain: what decisions earned in conversations like this one stands beside the agent's options, and picks among them.

    agent = create_agent(model, tools, middleware=[learner := JitRLMiddleware("memory", decide=["resolve"])])

A capable model knows more than a memory of rewards does. So memory advises it first, and overrules it last:

    recall     the decisions that were taken where conversations read as this one does now, and what they earned
    advise     the model reads these, in words, and answers (nodes/prompts/jitrl/chat_advice.md)
    propose    where it takes a decision, `samples` replies are drawn: in one request, if it takes `n`. Its proposals are the decisions
               that it makes at least half as often as chance would. Their logits are the logs of their shares (or the server's
               log-probabilities, see `candidates`)
    choose     among several proposals by the nodes of JitRL's graph (graphs/jitrl.py): advise, modulate, choose
    overrule   a decision that it did not propose is taken only where the turn has come exactly this far before, with the same
               decisions, and earned more there than what the model prefers, by two standard errors where it is certain

Memory advises from the newest ten visits of a state, and overrules by the newest eight of each decision: a changed truth is followed.

Memory never brings in a decision that ends a conversation or hands it over: a tool that came last wherever more than one
decision was taken. Where the model is certain, memory changes the arguments of its call, never the tool. It overrules at most twice
in a turn, and is silent once it changed two decisions after which nothing new was read. All other calls and replies are the
model's own, at no cost.

A decision is remembered without the values that belong to one conversation (graphs/agents/tool_decisions.py). What a decision
earned is the reward of the feedback: only the end of a conversation pays, so that nothing is discounted.
"""

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Unpack

from langchain.agents.middleware import ModelRequest
from langchain.agents.middleware.types import ModelResponse
from langchain_core.messages import AIMessage, ToolCall
from langgraph.store.base import BaseStore

from ...memory.conversations.messages import last_user_message, steps, text_read, without_values
from ...memory.conversations.reviews import REJECTED
from ...memory.errors import UserError, did_you_mean, plural
from ...memory.records import Candidate, Experience, Neighbour, Observation, Trajectory, Transition
from ...memory.returns.experiences import ExperienceScope
from ...memory.search.similarity import Similarity
from ...nodes.act.advantage import action_values
from ...nodes.act.choose import softmax
from ...nodes.arguments import Count
from ...nodes.fence import escape_tags
from ...nodes.prompt import Prompt
from ...nodes.text import trim_middle
from ..jitrl import VARIANT_NODES, JitRL
from .agent_identity import DOMAIN, tool_schema, unknown_tools
from .consultation import Advice, AdviceRoom, Consultation, PendingCall, Place, not_streamed
from .episodes import ChatWorld
from .learner import LearnerOptions, LearningMiddleware
from .lift import MOST_ITEM_CHARS
from .rated_acts import NEWEST
from .samples import ask_for_samples, log_probability
from .scope_memories import MANY_TO_READ, ScopeMemory
from .scope_values import ScopeValue
from .status import LearnerStatus
from .tool_decisions import (
    DecisionForm,
    DecisionMemory,
    ToolDecisions,
    count_changes,
    decision_entry,
    recalled_ids,
    surely_better,
    trajectory_id,
)

__all__ = ["JitRLMiddleware"]

LOG = logging.getLogger(__name__)
CandidateSource = Literal["samples", "logprobs"]
MIN_SIMILARITY = 0.9
"""The least similarity of texts that count as the same situation."""
UNTRIED_SHARE = 0.5
"""Share of what decisions earn here that an untried one is worth: so praise counts where nothing was ever blamed."""
MOST_VISITS = 10
"""Newest visits of a state that advice is from, the paper's number of neighbours: what failed before a change is soon open again."""
LAST_SHOWN = 3
"""Returns of a decision that the model reads beside their mean, so that it sees what is right no more."""
MOST_CHANGES = 2
"""The number of times in a turn that memory overrules the model, or changes its decision without anything new to read after it."""


class JitRLMiddleware(LearningMiddleware[DecisionMemory]):
    """Adds what decisions earned in similar conversations to the model's own preference among its tool calls.

    Args:
        store: any LangGraph store, a folder or a URL; None: the store of the agent's graph.
        decide: names of the tools that are decisions, or tool -> names of the arguments that say what is done.
        samples: times that the model is asked at a decision, at the temperature that it has.
        candidates: where the candidates and their logits come from. `samples`: the model's calls, and the logs of their shares.
            `logprobs`: its calls, and the log-probabilities that the server gives for the replies (the model has to ask for them:
            `logprobs=True`).
        settings: JitRL's. The default compares states by the words of `state_key`, which in prose are hardly ever the same: a
            `state_key` that names the kind of issue, a smaller `min_similarity`, or embeddings are what makes states alike. Not
            given, `state_key` is the user's first message and the turn's last results without words that have a digit. It
            discounts nothing, and has no bonus for what was never tried: customers are not explored.
        similarity: another comparison of states than by words, such as by embeddings (`memory.search.vectors.CosineSimilarity`).
            Without `settings`, states count from its own least similarity on.
        options: those of `LearningMiddleware`.
    """

    method: ClassVar[str] = "jitrl"
    needs: ClassVar[str] = "a reward, a call of a tool in decide=, and states that are alike"
    _default_key = staticmethod(without_values)

    def __init__(
        self,
        store: BaseStore | str | Path | None = None,
        *,
        decide: Sequence[str] | Mapping[str, Sequence[str]],
        samples: Count = 4,
        candidates: CandidateSource = "samples",
        settings: JitRL | None = None,
        similarity: Similarity | None = None,
        **options: Unpack[LearnerOptions],
    ) -> None:
        super().__init__(store, **options)
        self.similarity = similarity
        floor = MIN_SIMILARITY if similarity is None else similarity.default_floor
        self.settings = settings or JitRL(min_similarity=floor, gamma=1.0, exploration_bonus=0.0)
        if self.settings.advantage_estimator != "guarded":
            raise UserError("the middleware has our own estimator, guarded; the paper's are for graphs/jitrl.py")
        self._advice_prompt = Prompt.load("jitrl/chat_advice")
        self.decisions, self.samples, self.candidates = ToolDecisions(decide), samples, candidates

    def make_index(self) -> DecisionMemory:
        """A memory of returns that compares states as the settings say."""
        return DecisionMemory(self.settings.memory(similarity=self.similarity))

    def prepare(self, memory: ScopeMemory[DecisionMemory]) -> None:
        """Make the indexes of the tasks with many decisions."""
        for task, count in Counter(one.task for one in memory.index.returns).items():
            if count >= MANY_TO_READ:
                memory.index.returns.moments(task=task, domain=DOMAIN)

    def read_tools(self, tools: Sequence[Any]) -> bool:
        """Take note of which arguments of the tools say what is done; returns True if that has changed."""
        before, has_changed = self.decisions.missing, self.decisions.read_tools(tools)
        for said in {*self.decisions.missing} - {*before}:
            LOG.warning("%s: %s", self.method, said)
        return has_changed

    def check_tools(self, tools: Sequence[Any]) -> None:
        """Raise UserError where `decide` names a tool that an agent which is made with these has not, and one of these is meant."""
        names = [str(tool_schema(one)["name"]) for one in tools]
        others = [one for one in names if one not in self.decisions.decide]
        for name in self.decisions.decide:
            if name not in names and did_you_mean(name, others):
                raise UserError(*unknown_tools("decide", [name], others))

    def adapt(self, trajectory: Trajectory) -> Trajectory | None:
        """The decisions alone, the last that was taken with the reward; None without a decision."""
        made = list[Transition]()
        for step in trajectory.transitions:
            action = step.action.removeprefix(REJECTED)
            if (form := self.decisions.form_of_text(action)) is not None:
                rejected = REJECTED if step.action.startswith(REJECTED) else ""
                made.append(replace(step, action=f"{rejected}{form}", reward=0.0))
        if not made:
            return None
        last = max((n for n, step in enumerate(made) if not step.action.startswith(REJECTED)), default=0)
        made[last] = replace(made[last], reward=trajectory.transitions[-1].reward)
        return replace(trajectory, transitions=tuple(made), lost=False)

    def consult(self, request: ModelRequest[Any], place: Place, memory: DecisionMemory) -> Consultation:
        """Ask the model with what memory knows; at a decision weigh its proposals, and overrule it where the past is sure."""
        state = self._recall(request, place, memory)
        guided, section, sources = request, self._advice(state, memory, place.room), recalled_ids(state["neighbours"])
        # Where memory knows nothing, there is nothing to weigh, and the model is asked once.
        knows = bool(state["neighbours"]) and place.trial.is_advised
        if knows:  # what may be replaced is not shown to a client before it is sure
            guided = guided.override(model=not_streamed(request.model))
        draws = self.samples if knows else 1
        first, *more = yield from ask_for_samples(PendingCall([guided], section=section, sources=sources), draws, request.model)
        made = self._decisions(first)
        if not made:
            return Advice(first, {"decision": False, "consulted": False})
        if not place.trial.is_advised:
            chosen = "; ".join(str(form) for form, _ in made)
            return Advice(first, {"decision": True, "recalled": sources, "chosen": chosen, "changed": False})
        if len(more) < draws - 1:
            more += yield PendingCall([guided] * (draws - 1 - len(more)), section=section, sources=sources)
        proposed = [first, *(one for one in more if len(self._decisions(one)) == len(made))]
        entries: Any = request.state.get("learning") or ()
        mine = [one for one in entries if one.get("method") == self.method and one.get("turn") == place.turn]
        overrules, fruitless = count_changes(mine, request.messages, self.state_key)
        state |= {"may_change": fruitless < MOST_CHANGES, "may_overrule": overrules < MOST_CHANGES}
        states = list[dict[str, Any]]()
        for number, (form, _) in enumerate(made):  # several decisions of one message are taken one after the other
            forms, logits = {str(form): form}, {str(form): 0.0}
            if knows:
                logits = self._logits(proposed, number)
                forms |= {str(other): other for one in proposed for other, _ in [self._decisions(one)[number]]}
            calls = [self._decisions(one)[number] for one in reversed(proposed)]
            arguments = {name: call["args"] for other, call in calls for name in (call["name"], str(other))}
            before = (*state["before"], *(one["action"] for one in states))
            states.append(self._decide({**state, "first": str(form), "before": before}, arguments, logits, forms, memory))
        taken = [one["action"] for one in states]
        response = next((one for one in proposed if [str(form) for form, _ in self._decisions(one)] == taken), None)
        return Advice(response or self._calls_from_memory(states, first), decision_entry(states, place.step, sources))

    def status(self, **scope: ScopeValue) -> LearnerStatus:
        """The state of this learner in a scope; also how often memory overruled the model, and what became of it."""
        conversations = self._conversations(scope)
        rewards: dict[bool, list[float]] = {True: [], False: []}
        ratings = {one.id: one.ratings for one in conversations.feedback.all()}
        changes = decisions = 0
        for talk in conversations.turns.all():
            taken = [bool(entry["changed"]) for turn in talk.turns for entry in turn.advice if entry.get("decision")]
            changes, decisions = changes + sum(taken), decisions + len(taken)
            rewards[any(taken)] += [one.reward for one in ratings.get(talk.id, ()) if one.reward is not None and taken]
        earned = {changed: f"{sum(found) / len(found):.2f}" if found else "nothing yet" for changed, found in rewards.items()}
        note = f"memory overruled {changes or 'none'} of {plural(decisions, 'decision')}, before which the model read what memory knows"
        note += f": these conversations earned {earned[True]} on average, the others {earned[False]}" if changes else ""
        found = super().status(**scope)
        return replace(found, notes=(*found.notes, *([note] if decisions else []), *self.decisions.missing))

    def describe(self, entry: Mapping[str, Any]) -> list[str]:
        """An entry in words, a line each."""
        if entry.get("decision", "failed" in entry):
            return super().describe(entry)
        shown = "and the prompt held what decisions earned" if entry.get("added_tokens") else "so memory was not asked"
        return [f"{self.method}: no decision, {shown}"]

    def _decisions(self, response: ModelResponse[Any]) -> list[tuple[DecisionForm, ToolCall]]:
        """The decisions of a reply, each with its call, in their order."""
        message = response.result[0]
        calls = message.tool_calls if isinstance(message, AIMessage) else []
        return [(form, call) for call in calls if (form := self.decisions.form(call)) is not None]

    def _logits(self, proposed: Sequence[ModelResponse[Any]], number: int) -> dict[str, float]:
        """The logit of each decision that replies take at a place: from their shares, or from the server's log-probabilities."""
        actions = [str(self._decisions(one)[number][0]) for one in proposed]
        if self.candidates == "samples":
            counts = Counter(actions)
            order = [actions[0], *sorted(counts.keys() - {actions[0]})]  # samples come in the order of threads
            return {action: math.log(counts[action] / len(actions)) for action in order}
        found: dict[str, float] = {}
        for action, response in zip(actions, proposed, strict=True):
            found[action] = max(log_probability(response.result[0]), found.get(action, -math.inf))
        return found

    def _recall(self, request: ModelRequest[Any], place: Place, memory: DecisionMemory) -> dict[str, Any]:
        """The channels of JitRL's graph after `recall`, with the nodes that follow."""
        key, world = str(self.state_key(request.messages)), ChatWorld(DOMAIN)
        nodes = {**VARIANT_NODES[self.settings.advantage_estimator](self.settings, memory.returns, world, None)}  # type: ignore[arg-type]
        nodes["advise"] = replace(nodes["advise"], untried_share=UNTRIED_SHARE)  # type: ignore[type-var]
        nodes["recall"] = replace(nodes["recall"], newest=MOST_VISITS)  # type: ignore[type-var]
        where = {"task": place.task, "run": place.thread, "episode": place.number, "step": place.step, "head": ""}
        state: dict[str, Any] = {
            **where,
            "observation": Observation(key),
            "before": self._decisions_of_turn(request),
            "nodes": nodes,
        }
        state.update(nodes["recall"](state))  # type: ignore[operator]
        state["scope"] = {"task": place.task.id, "domain": DOMAIN, "before": (place.thread, place.number)}
        if self.user.names:  # each visit by itself, of which each user has some
            visits = memory.returns.raw_neighbours(key, self.settings.min_similarity, **state["scope"])
            state["neighbours"] = self._newest(place, visits, MOST_VISITS, lambda one: one.state)
            state["shared"] = {one.id for one in self._newest(place, visits, NEWEST, lambda one: (one.state, one.action))}
        items = {f"{trim_middle(key, MOST_ITEM_CHARS)}: {one.action}": one.action for one in state["neighbours"]}
        state["left_out"] = {items[item] for item in place.trial.left_out(items)}
        state["neighbours"] = [one for one in state["neighbours"] if one.action not in state["left_out"]]
        return state

    def _newest(
        self, place: Place, visits: Sequence[tuple[float, Experience]], most: int, kind: Callable[[Experience], Hashable]
    ) -> list[Neighbour]:
        """The newest visits of each kind, the most similar first: of another user no more than his share, and none of a decision that
        he alone has made. Given oldest first; `kind` says which visits take each other's place."""
        users, held, found = self._memory(place.scope).users, defaultdict[Any, Counter[str]](Counter), list[Neighbour]()
        made_by, of_other = defaultdict[str, set[str]](set), max(int(most * self.max_user_share), 1)
        for similarity, one in reversed(visits):
            visit = Neighbour(one.id, similarity, one.action, 1, one.value)
            whose, counted = users.get(trajectory_id(visit), ""), held[kind(one)]
            made_by[one.action].add(whose)
            if counted.total() < most and counted[whose] < (most if whose in ("", place.user) else of_other):
                counted[whose] += 1
                found.append(visit)
        own, least = ("", place.user), min(2, 1 / self.max_user_share)
        kept = [one for one in found[::-1] if users.get(trajectory_id(one), "") in own or len(made_by[one.action]) >= least]
        return self.share_out(place, sorted(kept, key=lambda one: -one.similarity), trajectory_id)

    def _advice(self, state: Mapping[str, Any], memory: DecisionMemory, room: AdviceRoom) -> str:
        """The knowledge of memory about this situation in words; empty where each decision was taken once, and earned nothing."""
        lines, says = list[str](), False
        for action, (count, mean) in sorted(action_values(state["neighbours"]).items(), key=lambda one: -one[1][1]):
            if (form := self.decisions.form_of_memory(action)) is not None and self.decisions.is_open(form):
                last = _last_returns([one for one in state["neighbours"] if one.action == action], memory, state["scope"])
                newest = f"; the last first: {', '.join(f'{one:.3g}' for one in last)}" if {*last} != {mean} else ""
                lines.append(f"- {escape_tags(action)}: {plural(count, 'time')}, {mean:.3g}{newest}")
                says = says or count > 1 or mean > self.rewards.least

        def text(shown: Sequence[str]) -> str:
            return self._advice_prompt.text(decisions="\n".join(shown)) if shown else ""

        return text(room.fit(lines, text)) if says else ""

    def _decide(
        self,
        state: dict[str, Any],
        arguments: Mapping[str, Mapping[str, Any]],
        logits: Mapping[str, float],
        forms: Mapping[str, DecisionForm],
        memory: DecisionMemory,
    ) -> dict[str, Any]:
        """The channels of JitRL's graph after `choose`, with the forms of all decisions that could be taken here.

        Args:
            state: what was recalled, the model's first decision, and how often it may still be changed in this turn.
            arguments: tool -> those of its call in this conversation.
            logits: the logit of each decision that the model could take.
            forms: the forms of these decisions.
            memory: the returns of past decisions.
        """
        nodes, first = state["nodes"], state["first"]
        forms = dict(forms) | self._open_forms(state["neighbours"], arguments)
        state["neighbours"] = [one for one in state["neighbours"] if one.action in forms]
        own = forms[first].tool
        shares = dict(zip(logits, softmax(list(logits.values())), strict=True))
        ends = {action for action, form in forms.items() if form.tool != own and memory.ends_conversations(form.tool)}
        allowed = [a for a, share in shares.items() if a not in ends and share >= 0.5 / len(shares)]
        if not state["may_change"] or not allowed:
            allowed = [first]
        state["candidates"] = [Candidate(action, logits.get(action, 0.0)) for action in allowed]
        state["observation"] = replace(state["observation"], actions=tuple(allowed))
        for name in ("advise", "modulate", "choose"):
            state |= nodes[name](state)
        preferred = max(allowed, key=lambda action: (shares.get(action, 0.0), action == first))
        better = None
        if state["may_change"] and state["may_overrule"]:
            share = shares.get(preferred, 1.0)
            # Which tool comes next, a certain model reads from more than memory knows; feedback says how a tool is to be used.
            tools = {forms[preferred].tool} if share == 1.0 else {form.tool for form in forms.values()}
            silent = ends | state["left_out"]
            open_to_memory = {one for one, form in forms.items() if one not in silent and form.tool in tools}
            scope, shared = state["scope"], state.get("shared")
            here = memory.earned_here(state["observation"].text, state["before"], open_to_memory, scope, shared)
            better = surely_better(here, preferred, share)
            state["action"] = better or state["action"]
        return {**state, "forms": forms, "arguments": arguments, "overruled": better is not None}

    def _decisions_of_turn(self, request: ModelRequest[Any]) -> tuple[str, ...]:
        """The decisions that were taken since the user's last message."""
        done = steps(request.messages, text_read, start=last_user_message(request.messages))
        forms = [self.decisions.form_of_text(step.action) for step in done]
        return tuple(str(form) for form in forms if form is not None)

    def _open_forms(
        self, neighbours: Sequence[Neighbour], arguments: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, DecisionForm]:
        """The remembered decisions that can be taken in this conversation: a proposed call of the tool gives the values."""
        found = {}
        for neighbour in neighbours:
            form = self.decisions.form_of_memory(neighbour.action)
            if form is not None and self.decisions.complete(form, arguments.get(form.tool, {})) is not None:
                found[neighbour.action] = form
        return found

    def _calls_from_memory(self, states: Sequence[Mapping[str, Any]], first: ModelResponse[Any]) -> ModelResponse[Any]:
        """The model's first reply with other decisions in the place of its own."""
        message = first.result[0]
        assert isinstance(message, AIMessage)
        taken, calls = iter(states), list[ToolCall]()
        for call in message.tool_calls:
            if self.decisions.form(call) is not None and (state := next(taken))["action"] != state["first"]:
                form: DecisionForm = state["forms"][state["action"]]
                known = state["arguments"].get(str(form)) or state["arguments"].get(form.tool, {})
                complete = self.decisions.complete(form, known) or {}
                call = ToolCall(name=form.tool, args=complete, id=call["id"], type="tool_call")
            calls.append(call)
        return ModelResponse(
            [AIMessage("", tool_calls=calls, id=f"{message.id}-learned", name=message.name)], first.structured_response
        )


def _last_returns(neighbours: Sequence[Neighbour], memory: DecisionMemory, scope: ExperienceScope) -> list[float]:
    """The last `LAST_SHOWN` returns of a decision in the most similar of some states, the last first."""
    nearest = max(one.similarity for one in neighbours)
    found = list[float]()
    for one in neighbours:  # of one state, or single visits, oldest first
        if one.similarity == nearest:
            found += [one.mean] if one.count == 1 else [it.value for it in memory.returns.visits(one.id, one.count, **scope)]
    return found[: -LAST_SHOWN - 1 : -1]
