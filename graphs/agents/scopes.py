"""Conversations of an agent by scope, with feedback, and a method's memory of each scope. Nothing here needs LangChain's agents.

A scope is a tenant, a user, or all. What was learned in one is never seen in another: each has its own namespace of the store and
its own memory. A memory is made of the rated trajectories of its scope (memory/conversations/store.py), and follows the store: what
other processes have learned is taken in before a consultation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from inspect import signature
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypedDict, TypeVar, Unpack
from urllib.parse import unquote
from uuid import UUID

from langchain_core.messages import AnyMessage
from langgraph.store.base import BaseStore

from ...memory.conversations.messages import StateKey, goal_and_last_turn
from ...memory.conversations.recorded import ConversationSource
from ...memory.conversations.screen import Screen
from ...memory.conversations.store import ConversationStore, RatingOptions, clean_text
from ...memory.conversations.turns import (
    CONTINUED,
    Conversation,
    Rating,
    asked_text,
    find_turn,
    is_asked,
    only_thread,
    turns_held,
    turns_left,
    turns_rated,
)
from ...memory.display import short
from ...memory.errors import Unavailable, UserError, did_you_mean, plural
from ...memory.telemetry import memory_names, span
from ...nodes.arguments import Amount, ArgumentCheck, Range, checks_arguments, list_options
from ...nodes.retrieve.user_share import are_enough, within_share
from .agent_identity import AgentIdentity, unknown_tools
from .erasure import check_written, comparisons_with, erase_comparisons, erase_scope, find_scopes
from .executed_calls import find_caller
from .intake import Admitted, ImportReport, Intake, days_before, write_lift
from .lift import Lift, TrialPlan, TrialShare, measure_lift, retirement
from .reward_sources import RewardScale, RewardSource, rating_text
from .scope_memories import Index, ScopeMemories, ScopeMemory
from .scope_values import ROOT, AgentScope, ScopeError, ScopeValue, ThreadId, scope_of
from .status import FEW, LET_IN, LOW_SHARE, LearnerStatus, trend

if TYPE_CHECKING:
    from .consultation import Place

__all__ = ["ScopedLearner"]

Mode = Literal["guide", "observe", "off"]
"""`guide`: records and advises. `observe`: records, and gives no advice: the control arm. `off`: neither."""
LOG = logging.getLogger(__name__)
DEFAULT_SCREEN, NO_SCREEN = Screen(), Screen(redacts=False, finds_instructions=False)
MOST_SHARED = 200
"""Conversations that are recalled where users share, for the few that are shown."""
LOOK_BACK_DAYS = 7.0
"""Days before the last import that the next one reads again."""
MOST_NAMED = 5
"""Recalled conversations that a line of an account names."""
MOST_LINE_CHARS = 300
"""Characters of a line in an account of a thread."""


Item = TypeVar("Item")
FAILED = " failed"
"""The end of a source of a section that was a failure when the section was given."""


class ScopeOptions(TypedDict, total=False):
    """Options of a learner."""

    name: str | None
    mode: Mode
    scope: Sequence[str]
    task: Callable[[Sequence[AnyMessage]], str] | None
    state_key: StateKey
    reward_range: tuple[float, float] | None
    refresh_seconds: Amount
    screen: Screen | None
    hold: bool | Callable[[Conversation], bool]
    raters: Annotated[Sequence[str], Range(1)] | None
    control: TrialShare
    holdout: TrialShare
    min_lift: float | None
    user: str
    max_user_share: float


class ScopedLearner(ArgumentCheck, ScopeMemories[Index]):
    """Conversations by scope, their feedback, and a method's memory of each scope.

    Args:
        store: any LangGraph store; a folder, `postgresql://host/database`, or a Chroma server's `http://host:port`; None: the store
            of the agent's graph, `create_agent(store=...)`.
        name: of the agent: the beginning of its namespace. Agents of one name share what they learn. Not given: the name of
            `create_agent(name=...)`, else `agent`.
        mode: `guide`, the default, records and advises; `observe` records and gives no advice; `off` does neither.
        scope: names of values in a run's `context`, its `configurable` or its authenticated user that keep conversations apart, such as
            `("tenant", "user_id?")`. What was learned in one scope is never seen in another. A run without a value is an error,
            unless the name has a question mark: then it belongs to those without one. Not given: `("tenant?",)`.
        task: the messages -> an id of the kind of task. Methods that compare attempts at a task compare conversations of the same id. Not
            given: all conversations are attempts at the same.
        state_key: the messages that were read -> the text by which states are compared. Not given: the user's first message and the last
            turn, but for methods that say something else.
        reward_range: the least and the greatest reward that the app gives, such as (1, 5) for stars: they are kept as -1 and 1. Not
            given: rewards from -1 to 1 are kept as they are, and others are refused.
        refresh_seconds: seconds after which a turn that begins looks for what other processes have learned; 1 if not given.
        screen: blackens secrets in what is kept, and finds texts of users and tools that read like instructions to the agent
            (`help(Screen)`, of memory/conversations/screen.py). Not given: `Screen()`. None: neither.
        hold: True: nothing is learned from a rated conversation before a person calls `release`. A function is given the
            conversation, and says whether to hold it: a shadow evaluation, say. Not given: nothing waits.
        raters: who may give feedback, by the `source` that the caller of `feedback` says; not given: anybody. The words of those named
            here are learned also where they read like instructions, but for those of `user`, the source that is not given.
        control: share of the threads in [0, 1], by a hash of their ids, that get no advice: `lift` says what it is worth. Not given: 0.
        holdout: probability in [0, 1] with which a recalled item is withheld from a thread: the one with the fewest trials. Not given: 0.
        min_lift: an item whose lift is surely below this reward is shown no more; None, as if not given: no item is retired. It needs
            `holdout`.
        user: name of the value of a run that says who the user is, as of `scope`, such as `"user_id"`. Given, no user holds more than
            `max_user_share` of what memory shows to another one of his tenant, or of a comparison of conversations
            (nodes/retrieve/user_share.py). Conversations of which no user is known all count: imported ones, and those of runs
            without the value of a name with a question mark. Not given: users are not told apart.
        max_user_share: that share, in (0, 1]; .25 if not given.

    Raises:
        UserError: an argument is not what it may be.
    """

    needs: ClassVar[str] = ""
    """What a conversation takes to be recalled beside feedback of any kind."""
    remedy: ClassVar[str] = LearnerStatus.remedy
    budgets: ClassVar[str] = "max_added_tokens"
    """The options that limit how much is shown."""
    _default_key = staticmethod(goal_and_last_turn)
    """The text by which states are compared where no `state_key` is given."""
    tool_lists: Mapping[str, Sequence[str]] = {}
    """Further options that name tools of the agent, each with what it names."""

    def __init_subclass__(cls, **given: Any) -> None:
        """Have `help` of a learner list all of its options."""
        super().__init_subclass__(**given)
        list_options(cls, cls.__mro__)

    def __init__(self, store: BaseStore | str | Path | None = None, **options: Unpack[ScopeOptions]) -> None:
        given: Any = options
        get = given.get
        self.mode: Mode = get("mode", "guide")
        self.scope = AgentScope(get("scope", ("tenant?",)))
        if not 0 < (share := get("max_user_share", 0.25)) <= 1:
            raise UserError(f"max_user_share is the share of one user in what others are shown, in (0, 1]; got {share}")
        self.user = AgentScope((user,) if (user := get("user", "")) else (), "user")
        self.max_user_share, self.rewards = float(share), RewardScale(get("reward_range"))
        plan = TrialPlan(get("control", 0.0), get("holdout", 0.0), get("min_lift"))
        agent = AgentIdentity(store, get("name"))
        self._set_up(agent, plan, float(get("refresh_seconds", 1.0)), get("hold", False))
        methods = (self.feedback, self.retract, self.quarantine, self.rank, self.forget, self.import_conversations)
        if taken := {one for method in methods for one in _arguments(method)} & {*self.scope.names, *self.user.names}:
            raise UserError(
                f"scope= and user= cannot name {min(taken)!r}, an argument of feedback() and its like: rename the run's value"
            )
        self._task = get("task")
        self.screen: Screen = get("screen", DEFAULT_SCREEN) or NO_SCREEN
        self._has_key = get("state_key") is not None
        self.state_key, self._raters = self.screen.state_key(get("state_key", self._default_key)), get("raters")

    def mark_sources(self, memory: ScopeMemory[Index], ids: Sequence[str]) -> list[str]:
        """The sources of a section, as `are_known` asks for them: here ids of trajectories, those of failures with a mark."""
        return [id + FAILED * (memory.outcomes.get(id) is False) for id in ids]

    def are_known(self, memory: ScopeMemory[Index], sources: Sequence[str]) -> bool:
        """True if all that a section was drawn from is still in the memory of a scope, and no success among it has become a failure since,
        nor a failure a success."""
        plain = [one.removesuffix(FAILED) for one in sources]
        return memory.outcomes.keys() >= {*plain} and self.mark_sources(memory, plain) == [*sources]

    @checks_arguments
    def feedback(
        self,
        thread_id: ThreadId | None = None,
        *,
        reward: float | None = None,
        text: str | None = None,
        run_id: str | UUID | None = None,
        message_id: str | None = None,
        source: str = "user",
        **scope: ScopeValue,
    ) -> Rating:
        """Rate what the agent did in a thread since the feedback before this. Of the same turn, what a source said last holds, field by field.

        It may come late, from another process, or never: a missing reward is not 0. Of several sources' rewards the low median counts.

        Args:
            thread_id: the thread's id, as in the agent's config. Not given: that of the run, or the only thread of the scope.
            reward: a number from -1 to 1, or within `reward_range`; or of a thumb True, a full success, or False, a failure.
            text: the same in words; methods that read words use them. Empty: the words said before are deleted.
            run_id: id of the run that ended the turn; the thread's last turn if not given, or the one before while that is at work in this
                process.
            message_id: id of one of the agent's messages: its turn alone is rated, such as one branch of `Send`.
            source: who says so, such as a reader's name.
            scope: the values of the scope, as in the agent's runs: `tenant="acme"`; where `user=` names a value, that as well: then a
                thread of another user is an error, or a named turn of his; in a thread that users share, it is about the user's last turn alone.

        Raises:
            UserError: the thread, the run or the message is unknown or not given and there are several, the reward is out of range, neither reward
                nor text is given, or the source is none of `raters`.
            Unavailable: the store does not answer. Given again later, the rating counts once.
        """
        asked = {"run_id": None if run_id is None else str(run_id), "message_id": message_id}
        try:
            kept, thread, talk = self._find_talk(thread_id, scope, self.feedback, **asked)
            if asked == dict.fromkeys(asked):
                asked |= self._turn_meant(kept, thread, self._split_user(scope)[1], talk)
            return self._take_rating(kept.scope, thread, reward, text, source, datetime.now(UTC).isoformat(), **asked)
        except Unavailable as away:
            raise Unavailable(f"feedback was not kept: {away}; give it again, also if it was: it counts once") from away
        except UserError:
            raise
        except Exception as error:  # of a store of the app's
            raise Unavailable(
                f"feedback was not kept: {type(error).__name__}: {error}; give it again: it counts once"
            ) from error

    def _turn_meant(self, kept: ConversationStore, thread: str, user: str, talk: Conversation | None) -> dict[str, str | None]:
        """Find the turn that feedback on a thread is about: the last one before those that are at work; empty: the last recorded one.
        In a thread that users share, it is a reply of the user's own last turn, which is rated alone."""
        working = self._turns_at_work(kept.scope, thread)
        talk = kept.latest(thread) if working and not user else talk
        if talk is None:
            return {}
        is_shared = bool(user and talk.users - {user})
        his = [one for one in talk.turns if not is_shared or talk.user_of(one) == user]
        ended = [one for one in his if one.id.rstrip(CONTINUED) not in working]
        own = (ended or (his if is_shared else []))[-1:]
        if is_shared and own and own[0].replies:
            return {"message_id": own[0].replies[-1]}
        return {"turn": own[0].id} if own and (is_shared or working) else {}

    def _turns_at_work(self, labels: tuple[str, ...], thread: str) -> set[str]:
        """Ids of the turns of a thread that are at work in this process; none where a tool rates, which means its own turn."""
        return set() if find_caller().call else {turn for one, turn, _ in [*self._memory(labels).at_work] if one == thread}

    def _take_rating(
        self, labels: tuple[str, ...], thread: str, reward: float | None, text: str | None, source: str, at: str, **more: Any
    ) -> Rating:
        """Keep a rating that an app has given, on its scale and of one of its raters."""
        self.check_source(source)
        text = None if text and not text.strip() else text  # a comment of spaces says nothing, and deletes none
        if reward is None and text is None:
            raise UserError("feedback: give a reward, a text, or both; retract(thread_id) deletes a rating")
        reward = None if reward is None else self.rewards.read(reward)
        self._check_last_turn(labels, thread, run_id=more.get("run_id"), message_id=more.get("message_id"))
        return self.add_rating(labels, thread, reward, text, source=source, at=at, **more)

    def _check_last_turn(self, labels: tuple[str, ...], thread: str, **asked: str | None) -> None:
        """Raise `UserError` where the last turn of a thread was not recorded, as far as this process knows, unless feedback names another."""
        waits, loss_of = self.agent.queue.has_failed((labels, thread)), self.agent.queue.shared.loss_of
        why = loss_of((labels, asked["message_id"] or thread)) or loss_of((labels, thread))
        if not waits and not why:
            return
        known = self._memory(labels).conversations.turns.get(thread)
        if any(asked.values()) and any(is_asked(turn, **asked) for turn in (known.turns if known else ())):
            return
        if waits:
            raise Unavailable(f"the last turn of conversation {thread!r} waits to be written, since the store has failed")
        refused = UserError(
            f"the turn of conversation {thread!r} was not recorded, and cannot be rated: {why}; another one is named by message_id="
        )
        refused.public_message = "its turn could not be written to the learner's memory"  # the store's words may name others
        raise refused

    @checks_arguments
    def retract(
        self,
        thread_id: ThreadId | None = None,
        *,
        run_id: str | UUID | None = None,
        message_id: str | None = None,
        source: str = "user",
        **scope: ScopeValue,
    ) -> Rating:
        """Delete what a source has said of a turn, reward and text, as if it had not: what others have said of it holds again. Returns the
        rating as it was.

        Args:
            thread_id: the thread's id. Not given: that of the run or the message, or the only thread of the scope.
            run_id: id of the run that ended the turn; the thread's last turn if not given.
            message_id: id of one of the agent's messages in the turn.
            source: who gave it.
            scope: the values of the scope, as in `feedback`.

        Raises:
            UserError: the thread or the run is unknown, or the turn has no rating of this source.
        """
        asked = {"run_id": None if run_id is None else str(run_id), "message_id": message_id}
        kept, thread, talk = self._find_talk(thread_id, scope, self.retract, **asked)
        self.check_source(source)
        if asked == dict.fromkeys(asked):
            asked["message_id"] = self._turn_meant(kept, thread, self._split_user(scope)[1], talk).get("message_id")
        groups = comparisons_with(kept, [thread])
        gone = kept.retract(thread, source=source, **asked)
        self.erase_lessons(kept.scope, groups)
        return gone

    def check_source(self, source: str) -> None:
        """Raise `UserError` if feedback of a source is not taken, since it has no name, or is none of `raters`."""
        if not source.strip():
            raise UserError(f"feedback has a source, such as 'user'; got {source!r}")
        if self._raters is not None and source not in self._raters:
            raise UserError(f"feedback of source {source!r} is not taken: raters are {', '.join(self._raters)}")

    def add_rating(
        self, labels: tuple[str, ...], thread: str, reward: float | None, text: str | None, **more: Unpack[RatingOptions]
    ) -> Rating:
        """Keep a rating in the scope with these labels, after the screen has seen its words; `more` as of `ConversationStore.rate`.

        All ratings come this way: of people, of reward sources, and of reviewers.
        """
        conversations = self._memory(labels).conversations
        asked = {"turn": more.get("turn"), "run_id": more.get("run_id"), "message_id": more.get("message_id")}

        def origin() -> Iterator[str]:  # read only where somebody traces
            yield find_turn(conversations.conversation(thread), **asked).traceparent

        with span("upsert_memory", memory_names(labels, thread), origin()) as traced:
            # What nobody told the app (no `at`), such as a review, quotes calls: their words are the model's or a customer's.
            is_rater = (source := more.get("source", "user")) != "user" and source in (self._raters or ()) and "at" in more
            why = found.reason if text and not is_rater and (found := self.screen.suspicion(text)) is not None else ""
            turns = getattr(conversations.latest(thread), "turns", ()) if text else ()
            told = [digest for one in turns for digest in one.secrets]
            words = text and self.screen.of_thread([text], thread, told).redact(text)
            rate = partial(conversations.rate, thread, reward, words, unlearned=why, **more)
            rating: Rating = self.agent.queue.ask((labels, thread), rate)
            if why and rating.unlearned:
                words_of = "%s: the words of %s about conversation %s are not learned: the feedback %s"
                LOG.warning(words_of, self.method, source, thread, why)
            traced.add_evaluation(rating.source, reward, words or "")
            self.note_rating(labels, thread, rating)
        return rating

    def note_rating(self, labels: tuple[str, ...], thread: str, rating: Rating) -> None:
        """Act on a rating that was kept in the scope with these labels; most methods read it when they recall."""

    async def afeedback(self, thread_id: ThreadId | None = None, **said: Any) -> Rating:
        """As `feedback`, with the same arguments, in a program that is awaited."""
        return await asyncio.to_thread(partial(self.feedback, thread_id, **said))

    def status(self, **scope: ScopeValue) -> LearnerStatus:
        """The state of this learner in a scope: what was learned, and what kept it from learning."""
        memory = self._refreshed(labels := self._labels(scope))
        rated = len(known := memory.conversations.trajectories.all())
        kept = [bool(memory.conversations.ratings(one.id)) for one in memory.conversations.open_quarantines()]
        notes = tuple(f"retired {retirement(one)}" for one in memory.ledger.retired.values())
        recorded = [*self._recorded(scope)]
        if any(one != labels for one in recorded):
            more = ", ".join(name for name in self.scope.names if name not in scope)
            notes += (f"not counted here is what has a {more}: give {more}, as scopes() lists",)
        elif scope and not recorded:
            asked = " ".join(map(unquote, self.scope.labels(scope, to_last=True)))
            agents = {str(scope_of(one)["agent"]) for one, _ in find_scopes(self.agent, ()) if one[1] != self.agent.label()}
            others = f"; other agents of this store, which name= names: {', '.join(sorted(agents))}" * bool(agents)
            notes += (f"nothing is recorded of {asked}; scopes() lists those that something is recorded of{others}",)
        if memory.left_out:
            said = f"{self.budgets} had no room for all that was recalled in {plural(memory.left_out, 'model call')}"
            notes += (said + f", and for none of it in {memory.unshown:,} of these" * bool(memory.unshown),)
        if words := memory.conversations.unlearned_words():
            said = f"words of the feedback on {plural(len(words), 'conversation')} are not learned"
            notes += (f"{said}: {LET_IN}",)
        if failed := self.agent.queue.count_failed(labels):
            notes += (
                f"{plural(failed, 'write')} of turns and ratings failed, wait in this process, and are tried again with the next one",
            )
        notes += tuple(f"{what}: {plural(n, 'time')}, the last for {why}" for what, (n, why) in memory.failures.items())
        for tool, ids in memory.withheld.items():
            if self.agent.listed and tool not in self.agent.listed:  # a name that the model made up
                continue
            where, own = f"in {len(ids)} of {plural(rated, 'rated conversation')}", f"Screen(trusted_tools=({tool!r},))"
            notes += (f"the words of {tool} are not kept {where}; if they are the app's own, {own} keeps them",)
        notes += (*self._unknown_tools(),)
        remedy = self.remedy + (", or similarity=, by meaning" if hasattr(self, "similarity") else "")
        if self._has_key and self.remedy == LearnerStatus.remedy:
            remedy = "by the state_key that was given, states are hardly ever alike"
        rewards = tuple(one.value for one in known if one.value is not None and isfinite(one.value))
        recalled = memory.recalled > LOW_SHARE * max(memory.consulted - memory.early, FEW)
        if said := trend(rewards, recalled and self.mode == "guide" and not self._has_key):
            why = "give a state_key that names the kind of case, by which new ratings of an act replace old ones"
            wrong = "retract(thread_id) takes back a wrong rating, and new ones of the same act replace old ones"
            notes += (f"{said}; {wrong if self._has_key else why}",)
        about: Any = {"needs": self.needs, "remedy": remedy, "notes": notes, "quarantined": len(kept), "held": sum(kept)}
        given = () if rated else memory.conversations.feedback.all()
        about["idle"] = 0 if rated else sum(not all(said.is_silent for said in one.ratings) for one in given) - sum(kept)
        is_rare = 2 * (memory.recalled + memory.unshown) < memory.consulted - memory.early
        is_guarded = (4 if is_rare else 2) * memory.guarded > memory.alike
        counts = memory.consulted, memory.recalled, memory.unshown, memory.early, is_guarded
        about["rewards"] = rewards
        return LearnerStatus(self.method, rated, *counts, nearest=memory.nearest, **about)

    def _unknown_tools(self) -> list[str]:
        """Sentences about names in options that are none of the agent's tools, once a call of its model has shown what these are."""
        lists = {"unlearned_tools": self.screen.unlearned_tools, "trusted_tools": self.screen.trusted_tools, **self.tool_lists}
        named = lists.items() if self.agent.listed else ()
        return [said for option, names in named for said in unknown_tools(option, names, self.agent.listed)]

    def learn(self, **scope: ScopeValue) -> LearnerStatus:
        """Learn at once what was rated, also in other processes; returns the status then. Where a critic writes the memory, it studies."""
        found = self.status(**scope)
        said = f"learn() had nothing to do: {self.method} asks no critic, and what is rated counts at once"
        return replace(found, notes=(*found.notes, said))

    async def alearn(self, **scope: ScopeValue) -> LearnerStatus:
        """As `learn`, in a program that is awaited."""
        return await asyncio.to_thread(lambda: self.learn(**scope))

    def scopes(self, **scope: ScopeValue) -> list[dict[str, str | None]]:
        """The values of each scope that has conversations, as `status(**one)` takes them; where first values are given, of those below."""
        return [scope_of(one)["scope"] for one in self._recorded(scope)]

    def learn_all(self, **scope: ScopeValue) -> dict[str, LearnerStatus]:
        """As `learn`, in each of `scopes`; returns their statuses, each by its values, such as `tenant=acme user_id=ann`."""
        return {" ".join(f"{name}={value}" for name, value in one.items()): self.learn(**one) for one in self.scopes(**scope)}

    def lift(self, **scope: ScopeValue) -> Lift:
        """The worth of the memory of a scope and of each item in it, in reward, with 95 % intervals that hold whenever one looks."""
        return measure_lift(self._conversations(scope), self.method, self.plan.min_lift)

    @checks_arguments
    def quarantine(self, thread_id: ThreadId, reason: str, **scope: ScopeValue) -> None:
        """Learn nothing from a thread any more, and withdraw what was derived from it; `release` takes this back.

        Args:
            thread_id: the thread's id.
            reason: why, for the person who looks at it.
            scope: the values of the scope, as in `feedback`.

        Raises:
            UserError: nothing of the thread is recorded.
        """
        kept, thread = self._find_thread(thread_id, scope, self.quarantine)
        self.keep_out(kept.scope, kept.conversation(thread).id, reason)

    def keep_out(self, labels: tuple[str, ...], thread: str, reason: str, digest: str = "", turn: str = "") -> None:
        """As `quarantine`, in the scope with these labels; `digest` and `turn` as of `ConversationStore.quarantine`."""
        kept = self._memory(labels).conversations
        if kept.is_held(thread, digest, turn):  # as at each step of a turn that was found
            return
        groups = comparisons_with(kept, [thread])
        if kept.quarantine(thread, reason, digest, turn):
            self.erase_lessons(labels, groups - comparisons_with(kept, [thread]) if groups else groups)
            LOG.warning("%s: nothing is learned from conversation %s: %s", self.method, thread, clean_text(reason))

    def erase_lessons(self, labels: tuple[str, ...], groups: Collection[str]) -> None:
        """Take the lessons of these comparisons out of the library of a scope: another learner of this agent may write one."""
        erase_comparisons(self.agent.store, labels, groups)

    def critic_failures(self, **scope: ScopeValue) -> list[str]:
        """The failures of the model that writes this memory, a sentence each, as far as this process knows: the store is not asked."""
        return []

    def quarantine_reasons(self, **scope: ScopeValue) -> dict[str, str]:
        """The threads of a scope that nothing is learned from, or not the words of their feedback, each with its reason."""
        kept = self._conversations(scope)
        return kept.unlearned_words() | {one.id: one.reason for one in kept.open_quarantines()}

    @checks_arguments
    def release(self, thread_id: ThreadId, **scope: ScopeValue) -> None:
        """Learn from a quarantined thread after all, and from words of its feedback that were left out.

        Raises:
            UserError: it is not quarantined, and no words are left out.
        """
        kept, thread = self._find_thread(thread_id, scope, self.release)
        kept.release(thread)

    @checks_arguments
    def rank(self, threads: Sequence[ThreadId], **scope: ScopeValue) -> dict[str, float]:
        """Rate conversations by their order, the best first, where nobody can give numbers: the best earns 1, the last 0 (or the
        ends of `reward_range`).

        Args:
            threads: ids of two threads or more, each an attempt at the same.
            scope: the values of the scope, as in `feedback`.

        Returns:
            Thread id -> its reward.
        """
        if len(threads) < 2 or len(set(threads)) < len(threads):
            raise UserError(f"a ranking has two conversations or more, each once; got {list(threads)}")
        low, high = self.rewards.range or (0.0, 1.0)
        rewards = {str(one): high - place / (len(threads) - 1) * (high - low) for place, one in enumerate(threads)}
        for thread, reward in rewards.items():
            self.feedback(thread, reward=reward, source="ranking", **dict[str, Any](scope))
        return rewards

    @checks_arguments
    def conversation(self, thread_id: ThreadId, **scope: ScopeValue) -> Conversation:
        """The recorded turns of a thread, with what the method did in each."""
        kept, thread = self._find_thread(thread_id, scope, self.conversation)
        return kept.conversation(thread)

    @checks_arguments
    def import_trajectories(self, path: Path | str, **scope: ScopeValue) -> int:
        """Take in rated conversations of a file, such as what another learner exported; returns the number of rated stretches learned.

        They become this agent's, whatever agent they were recorded of; without `task=`, attempts at the same as all others. A line whose
        `scope` has other values is left out, and the log says so. Rewards are from -1 to 1, as `export` has them. All are kept as its own
        are: screened, also what the agent said, held if all is, and without what only tools have said (memory/conversations/origins.py).
        """
        intake = Intake(self.screen, self.rewards, self.state_key, self.agent.listed, self._task, self.check_source, self.user)
        values = {name: scope.get(name) for name in self.scope.names}
        return self._take_in(self._labels(scope), intake.read_file(path, values))

    @checks_arguments
    def import_conversations(
        self,
        source: ConversationSource,
        *,
        reward: RewardSource | None = None,
        since: str = "",
        dry_run: bool = False,
        write_back: bool = False,
        **scope: ScopeValue,
    ) -> ImportReport:
        """Take in conversations that another tool has recorded, as if the agent had just had them; twice gives the same.

        Args:
            source: a service, or its export (`open_traces` in tools/traces/sources.py).
            reward: a source of rewards in the place of the recorded ones.
            since: the time from which they are read (ISO 8601). Not given: of a service, a week before the newest one of the import
                before, since feedback comes late.
            dry_run: whether to read alone, and keep nothing.
            write_back: whether to write the lift of this memory back as a score.
            scope: the values of the scope, as in `feedback`. A conversation whose run had other ones is left out.

        Raises:
            UserError: the source cannot be read, or takes no scores.
        """
        labels = self._labels(scope, self.import_conversations)
        place = (*labels, "imports")
        mark = self.agent.store.get(place, source.name) if source.name else None
        until = str(mark.value["until"]) if mark else ""
        found = list(source.read(days_before(since, 0) or days_before(until, LOOK_BACK_DAYS)))
        intake = Intake(self.screen, self.rewards, self.state_key, self.agent.listed, self._task, self.check_source, self.user)
        kept, report = intake.read(found, source.rater, reward, {name: scope.get(name) for name in self.scope.names})
        if not dry_run:
            report.learned = self._take_in(labels, kept)
            if source.name and (newest := max([until, *(one.at for one in found)])):
                self.agent.store.put(place, source.name, {"until": newest}, index=False)
        if write_back and not dry_run:
            report.written = write_lift(source, self._memory(labels).conversations, {one.id: one.trace for one in found})
        return report

    def _take_in(self, labels: tuple[str, ...], found: Sequence[Admitted]) -> int:
        for one in found:
            if one.suspicion is not None:
                self.keep_out(labels, one.conversation.id, *one.suspicion)
        return self._memory(labels).conversations.take_in([one[:2] for one in found])

    def close(self) -> None:
        """Write what waits, and close the store of a folder, which another learner may open then, or of a URL with its last learner; one
        that the app gave stays open."""
        self.agent.close()

    @checks_arguments
    def explain(self, thread_id: ThreadId, **scope: ScopeValue) -> str:
        """An account of a thread in words: what was recalled, added and chosen in each turn; long texts are cut."""
        kept, thread = self._find_thread(thread_id, scope, self.explain)
        lines, talk, ratings = list[str](), kept.conversation(thread), kept.ratings(thread)
        gone, about = {turn.id for turn in turns_left(talk)}, [*zip(ratings, turns_rated(talk, ratings), strict=True)]
        numbered = {turn.id: number for number, turn in enumerate(talk.turns, 1)}
        for turn in talk.turns:
            number = numbered[turn.id]
            sent = f", sent {short(turn.steps[0].observation_text, 60)!r}" if turn.branch_of and turn.steps else ""
            lines.append(f"turn {number}{sent}{', which the thread has left by going back in time' * (turn.id in gone)}:")
            mine = [entry for entry in turn.advice if entry.get("method", self.method) == self.method]
            accounts = [self.describe(entry) for entry in mine] or [["no advice was recorded"]]
            for (first, *more), (_, *before) in zip(accounts, [[""], *accounts], strict=False):
                same = ["the same as before"] if more and more == before else more
                lines += [f"  {first}", *(f"    {line}" for said in same for line in said.splitlines())]
            for rating, rated in about:
                if rating.turn == turn.id:
                    numbers = [numbered[one.id] for one in rated]
                    others = f" (of turns {', '.join(map(str, numbers))})" if numbers != [number] else ""
                    unlearned = "" if any(one.steps for one in rated) else ": nothing is learned, since the agent did nothing"
                    lines.append(f"  {rating_text(rating)}{others}{unlearned}")
        if any(one.unlearned for one in ratings):
            lines.append(f"words of its feedback are not learned; release({thread_id!r}) lets them in")
        if (kept_out := kept.quarantines.get(thread)) is not None and not kept_out.released:
            start = min(map(numbered.__getitem__, turns_held(talk, kept_out)), default=0)
            where = f"turn {start} and what followed" if kept_out.of and start else "it"
            lines.append(f"nothing is learned from {where}: {kept_out.reason}; release({thread_id!r}) lets it in")
        return "\n".join(short(line, MOST_LINE_CHARS) for line in lines)

    def describe(self, entry: Mapping[str, Any]) -> list[str]:
        """An entry in words, a line each."""
        if "failed" in entry:
            return [f"{entry['method']}: no advice, since memory failed: {entry['failed']}"]
        recalled = entry.get("recalled", ())
        cached = f"; {entry['cached']:.0%} of the prompt was sent before" if "cached" in entry else ""
        if entry.get("mode") == "observe" and recalled:
            cached = f", and showed nothing of it, since the mode is observe{cached}"
        # What was recalled may have had no room beside earlier advice.
        named = [", ".join(recalled[n : n + MOST_NAMED]) for n in range(0, len(recalled), MOST_NAMED)]
        words = f"recalled {named[0]}" if named else "added nothing" if "left_out" in entry else "recalled nothing"
        return [f"{entry['method']}: {words}{cached}", *(f"and {one}" for one in named[1:]), *entry.get("said", ())]

    @checks_arguments
    def forget(
        self, threads: Sequence[ThreadId] | Literal["all"] = "all", *, every_agent: bool = False, **scope: ScopeValue
    ) -> int:
        """Delete what is kept of these threads, or of all of the scope; returns the number of conversations deleted.

        What is gone already is no error, so that a job may call it again, or for each learner of an agent. Where nothing is kept of a
        thread, or of all of a scope, the log says so, with the most similar one of those that are.

        Args:
            threads: ids of the threads.
            every_agent: whether all agents of the store forget what they have with these values. Not given: they keep it, and the log
                names them.
            scope: the values of the scope, as in `feedback`. For all threads, the last names may be left out, and stand for all of
                their values: `tenant="acme"` is that tenant with all of its users, and those without (`user_id=None`: these alone). With
                `user="user_id"`, which is no part of the scope, `user_id="ann"` are her conversations.

        Raises:
            UserError: `threads` is None or a text, one of the threads is another user's, or every agent is to forget threads or without
                a value; then nothing is deleted.
            Unavailable: the store fails; or turns of which some may be the user's wait, since it has failed.
        """
        if every_agent and (threads != "all" or not scope):
            raise UserError("every_agent=True forgets all that has some values: give these, such as tenant=..., and no threads")
        own, user = self._split_user(scope)
        if threads != "all":
            named = [self._find_thread(one, scope, self.forget)[1] for one in threads]
            check_written(self.agent.queue, labels := self._labels(own, self.forget), user)
            count = self.forget_in(labels, named)
            if not count and (meant := self._names_meant(own)):
                LOG.warning("%s: nothing is recorded of these values%s", self.method, meant)
            return count
        count = 0
        for labels in self._reached(own, self.forget):
            check_written(self.agent.queue, labels, user)
            hers = [one.id for one in self._memory(labels).conversations.turns.all() if user in one.users] if user else None
            count += self.forget_in(labels, hers) if hers != [] else 0
        wanted = (*self.scope.labels(own, to_last=True), *filter(None, [user]))
        others = [one for one in find_scopes(self.agent, wanted) if one[0][1] != self.agent.label()] if scope else []
        if every_agent:
            count += sum(erase_scope(self.agent.store, *one) for one in others)
        elif names := {scope_of(one)["agent"] for one, _ in others if self.agent.store.search((*one, "turns"), limit=1)}:
            said = "%s: other agents of this store %s conversations of it: %s; every_agent=True has them forget it, too"
            LOG.warning(said, self.method, "may keep" if user else "keep", ", ".join(sorted(names)))
        if not count:
            LOG.warning("%s: nothing was kept of %s%s", self.method, " ".join(map(unquote, wanted)), self._names_meant(own))
        return count

    def _names_meant(self, scope: Mapping[str, ScopeValue]) -> str:
        """The values of a scope that are most like those for which nothing is recorded, as a question; empty if there are none."""
        known = [scope_of(one)["scope"] for one in self._recorded({})]
        values = [(name, {str(one[name]) for one in known if one[name]}) for name in scope if name in self.scope.names]
        return "".join(did_you_mean(str(scope[name]), there) for name, there in values if str(scope[name]) not in there)

    def forget_in(self, labels: tuple[str, ...], threads: Sequence[str] | None) -> int:
        """As `forget`, in the scope with these labels."""
        self.agent.queue.drop_failed(labels, threads)
        kept = self._memory(labels).conversations
        self.erase_lessons(labels, comparisons_with(kept, threads))  # first: what names the comparisons is forgotten then
        return kept.forget(threads)

    def export(self, **scope: ScopeValue) -> Iterator[dict[str, Any]]:
        """All that is kept of a scope, one plain object per conversation, with its agent and the values of its scope; the last names may
        be left out, as in `forget`."""
        scope, user = self._split_user(scope)
        rows = ((labels, row) for labels in self._reached(scope) for row in self._memory(labels).conversations.export(user))
        return (row | scope_of(labels) for labels, row in rows)

    def memory(self, **scope: ScopeValue) -> Index:
        """The method's memory of a scope, with all that was learned until now: to look at, not to change; or to open it ahead."""
        return self._read_all(self._labels(scope)).index

    async def astatus(self, **scope: ScopeValue) -> LearnerStatus:
        """As `status`, in a program that is awaited."""
        return await asyncio.to_thread(lambda: self.status(**scope))

    async def aexplain(self, thread_id: ThreadId, **scope: ScopeValue) -> str:
        """As `explain`, in a program that is awaited."""
        return await asyncio.to_thread(lambda: self.explain(thread_id, **scope))

    async def aforget(
        self, threads: Sequence[ThreadId] | Literal["all"] = "all", *, every_agent: bool = False, **scope: ScopeValue
    ) -> int:
        """As `forget`, in a program that is awaited."""
        return await asyncio.to_thread(lambda: self.forget(threads, every_agent=every_agent, **scope))

    async def aexport(self, **scope: ScopeValue) -> AsyncIterator[dict[str, Any]]:
        """As `export`, in a program that is awaited."""
        for one in await asyncio.to_thread(lambda: list(self.export(**scope))):
            yield one

    async def amemory(self, **scope: ScopeValue) -> Index:
        """As `memory`, in a program that is awaited."""
        return await asyncio.to_thread(lambda: self.memory(**scope))

    def share_out(
        self,
        place: Place,
        found: Sequence[Item],
        id_of: Callable[[Item], str],
        most: int | None = None,
        among: Sequence[str] = (),
    ) -> list[Item]:
        """Those of recalled things, best first, that the user of a run may be shown, so that no other one holds more than his share.

        Args:
            place: of the run.
            found: what was recalled.
            id_of: the id of the trajectory that a thing comes from.
            most: the greatest number that is wanted; None: all. Where users share, it is 2 at least: one is always somebody's alone.
            among: the ids of all trajectories that were alike; none given: what was recalled is all.
        """
        most = len(found) if most is None else most
        if not self.user.names:
            return list(found[:most])
        users = (memory := self._memory(place.scope)).users
        whose = [users.get(id_of(one), "") for one in found]
        all_alike = [users.get(id, "") for id in among] or whose
        if are_enough(all_alike, place.user, self.max_user_share):
            places = within_share(whose, place.user, self.max_user_share, max(most, 2))
        else:  # his own, and nobody's
            places = [n for n, user in enumerate(whose) if user in ("", place.user)][: max(most, 2)]
        shown = [found[n] for n in places]
        memory.alike, memory.guarded = memory.alike + bool(found), memory.guarded + bool(found and not shown)
        return shown

    def reach(self, k: int) -> int:
        """The number to recall where `k` are wanted: more, where some may be left out."""
        return max(MOST_SHARED, k) if self.user.names else k

    def _split_user(self, scope: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """The values of a scope, and the user among them as conversations name him, where `user=` is no part of it; empty: everybody."""
        beside = [name for name in self.user.names if name in scope and name not in self.scope.names]
        user = "".join(self.user.labels({name: scope[name] for name in beside})) if beside else ""
        return {name: value for name, value in scope.items() if name not in beside}, user

    def _find_thread(
        self, thread: ThreadId, scope: Mapping[str, Any], method: Callable[..., Any]
    ) -> tuple[ConversationStore, str]:
        """As `_find_talk`, without the conversation."""
        return self._find_talk(thread, scope, method)[:2]

    def _find_talk(
        self, thread: ThreadId | None, scope: Mapping[str, Any], method: Callable[..., Any], **asked: str | None
    ) -> tuple[ConversationStore, str, Conversation | None]:
        """The conversations of a scope, the id of the thread there that is meant (None: that of the run or the reply, or the only one), and
        where a user asks, its conversation; raises UserError where it is another user's."""
        own, user = self._split_user(scope)
        kept = self._memory(self._labels(own, method, thread)).conversations
        id = only_thread(kept.turns.all(), "/".join(kept.scope), **asked) if thread is None else str(thread)
        if (talk := kept.latest(id) if user else None) is not None:
            self._check_user(talk, user, **asked)
        return kept, id, talk

    def _check_user(self, talk: Conversation, user: str, **asked: str | None) -> None:
        """Raise `UserError` if a conversation, or the turn in it that is asked for, is of others than this user, as of `_split_user`."""
        named = [one for one in talk.turns if is_asked(one, **asked)] if any(asked.values()) else []
        users = {talk.user_of(one) for one in named} - {""} or talk.users
        if user and users and user not in users:
            said, name = unquote(user) if "=" in user else f"{user}=None", user.partition("=")[0]
            what, its = (f"the turn of {asked_text(**asked)} in ", "run") if named else ("", "runs")
            raise UserError(
                f"asked for {what}conversation {talk.id!r} of {said}, and it is another user's: give the {name} that its {its} gave"
            )

    def _reached(self, scope: Mapping[str, Any], method: Callable[..., Any] | None = None) -> list[tuple[str, ...]]:
        prefix = self._labels_of(self.scope.labels(scope, to_last=True, beside=_arguments(method)))
        self.agent.queue.wait()
        found = self.agent.namespaces(prefix, 2 + len(self.scope.names))
        return [*dict.fromkeys([*found, *self.agent.queue.failed_scopes(prefix)])]

    def _recorded(self, scope: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
        """The labels of the scopes with these values that conversations are recorded of."""
        prefix = self._labels_of(self.scope.labels(scope, to_last=True) if scope else ())
        self.agent.queue.wait()
        found = (one for one in self.agent.namespaces(prefix, 3 + len(self.scope.names)) if one[-1] == "turns")
        return (one[:-1] for one in found if self.agent.store.search(one, limit=1))  # stores may list what is empty

    def _conversations(self, scope: Mapping[str, Any]) -> ConversationStore:
        return self._memory(self._labels(scope)).conversations

    def _labels(
        self, values: Mapping[str, Any], method: Callable[..., Any] | None = None, thread: ThreadId | None = None
    ) -> tuple[str, ...]:
        """The labels of a scope for the values that a method was given, once all that was to be written is written; or what was of a thread."""
        if beside := [name for name in values if name in self.user.names and name not in self.scope.names]:
            raise ScopeError(
                f"{beside[0]} tells the users of one memory apart (user=), and this is about all of it: leave it out; "
                "forget, export, and what is asked of a thread take it"
            )
        labels = self._labels_of(self.scope.labels(values, beside=[*self.user.names, *_arguments(method)] if method else ()))
        self.agent.queue.wait(None if thread is None else (labels, str(thread)))
        return labels

    def _labels_of(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        return (ROOT, self.agent.label(), *scope)


list_options(ScopeOptions, ScopedLearner.__mro__)


def _arguments(method: Callable[..., Any] | None) -> list[str]:
    """The names of a method's own arguments, before the values of the scope."""
    return [*signature(method).parameters][:-1] if method else []
