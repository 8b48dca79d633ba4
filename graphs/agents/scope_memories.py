"""The memories of a learner, one a scope: opened when they are asked, and renewed by what other processes have learned.

A user never waits for a slow store or a large memory: his agent then answers with the memory as it was, or without advice.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from ...memory.attempts.trajectories import is_rewarded
from ...memory.conversations import write_queue
from ...memory.conversations.origins import WITHHELD
from ...memory.conversations.store import ConversationStore
from ...memory.conversations.turns import Conversation, finite_reward
from ...memory.errors import UserError
from ...memory.records import Trajectory
from .agent_identity import AgentIdentity
from .lift import TrialLedger, TrialPlan, retirement, unrated_draws

__all__ = ["ScopeMemories", "ScopeMemory"]

LOG = logging.getLogger(__name__)
CONSULTATIONS_BEFORE_WARNING = 50
"""Model calls without anything recalled after which the log says so."""
REFRESH_IN_TURN = 60.0
"""Seconds after which a turn that goes on looks for what other processes have learned: one memory serves all calls of a short one."""
MANY_TO_READ = 2_000
"""Conversations from which on a memory is read behind the user's back: to read so many takes less than half a second."""
OPENING_PATIENCE = 0.3
"""Seconds that a first call waits for such a memory."""
MAX_SCOPES = 1_000
"""Scopes whose memories are held open at once; the least recently used is closed."""


class MemoryIndex(Protocol):
    """A method's memory of one scope."""

    def add(self, trajectory: Trajectory, /) -> None:
        """Take in a rated stretch of a conversation; one with a known id takes the place of the former."""


Index = TypeVar("Index", bound=MemoryIndex)


@dataclass
class ScopeMemory(Generic[Index]):
    """The conversations of a scope, and the method's memory of them."""

    conversations: ConversationStore
    index: Index
    seen: dict[str, int] | None = None
    """The changes that the memory holds."""
    looked: float = -1e9
    """Time of the last look for changes."""
    outcomes: dict[str, bool | None] = field(default_factory=dict)
    """Id of each trajectory that it holds -> whether it was a success; None: nobody has said so."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    consulted: int = 0
    """Model calls for which this process looked into it."""
    recalled: int = 0
    """Model calls of these with something recalled, and with room to show it."""
    unshown: int = 0
    """The ones for which `max_added_tokens` had no room for any of it."""
    failures: dict[str, tuple[int, str]] = field(default_factory=dict)
    """What failed here -> how often, and the reason at the last time."""
    left_out: int = 0
    """Of these, the ones for which `max_added_tokens` had no room for all of it."""
    ledger: TrialLedger = field(default_factory=lambda: TrialLedger(""))
    """The trials of its items, where the learner draws any."""
    nearest: float | None = None
    """The greatest similarity where nothing was alike enough; None: not measured."""
    users: dict[str, str] = field(default_factory=dict)
    """Id of a trajectory -> its user."""
    early: int = 0
    """Model calls that came before anything was there to be recalled."""
    alike: int = 0
    """Times that something was alike where users share."""
    guarded: int = 0
    """Of these, the times that too few users had taught it."""
    open_turns: set[tuple[str, str]] = field(default_factory=set)
    """Thread and turn of those that this process has begun to record, and not ended."""
    at_work: set[tuple[str, str, object]] = field(default_factory=set)
    """Thread and turn of each call of a model or a tool that is made now in this process."""
    withheld: dict[str, set[str]] = field(default_factory=dict)
    """Tool -> ids of trajectories that have its results without their words."""
    opening: Future[Any] | None = None
    """A reading of it behind a user's back."""
    agent_model: Any = None
    """The model of the agent's last call in this scope, the critic where none is given: those of other tenants may differ."""

    def note_failure(self, what: str, reason: str) -> None:
        """Count a failure."""
        self.failures[what] = self.failures.get(what, (0, ""))[0] + 1, reason

    def tally(self, entry: Mapping[str, Any]) -> None:
        """Count a consultation by its record. Where nothing is recalled again and again, the log says so once.

        A call of the model for which the method asks no memory (`consulted` is False), as JitRL where it is no decision, or in the control, is none.
        """
        if "failed" in entry:
            self.note_failure("memory could not be consulted, and the agent answered without advice", entry["failed"])
        if "failed" in entry or not entry.get("consulted", True) or not entry.get("trial", {"is_advised": True})["is_advised"]:
            return
        has_room = "left_out" not in entry
        is_shown = has_room or entry.get("added_tokens", 0) > 0
        self.consulted, self.early = self.consulted + 1, self.early + (not getattr(self.index, "reflections", self.outcomes))
        self.recalled += bool(entry["recalled"] or not has_room) and is_shown
        self.left_out, self.unshown = self.left_out + (not has_room), self.unshown + (not is_shown)
        if "unwritten" in entry:
            self.note_failure("no advice was written (another strategist= may do better)", entry["unwritten"])
        if (near := entry.get("nearest")) is not None:
            self.nearest = max(near, self.nearest or 0.0)
        if self.consulted == CONSULTATIONS_BEFORE_WARNING and not self.recalled + self.unshown:
            words = "%s: nothing was recalled for the first %d model calls of %s; status() says why"
            LOG.warning(words, entry["method"], self.consulted, "/".join(self.conversations.scope))


class ScopeMemories(Generic[Index]):
    """The memories of a learner by the labels of their scopes, of which the ones that were used last are held open."""

    method: ClassVar[str] = ""
    """Name of the method in records."""

    def _set_up(  # no __init__, whose arguments would be options of a learner
        self, agent: AgentIdentity, plan: TrialPlan, refresh_seconds: float, hold: bool | Callable[[Conversation], bool]
    ) -> None:
        self.agent, self.plan, self.refresh_seconds, self._hold = agent, plan, refresh_seconds, hold
        self._scopes: OrderedDict[tuple[str, ...], ScopeMemory[Index]] = OrderedDict()
        self._stores: WeakValueDictionary[tuple[str, ...], ConversationStore] = WeakValueDictionary()
        self._lock = threading.Lock()

    def make_index(self) -> Index:
        """An empty memory for a scope."""
        raise NotImplementedError

    def adapt(self, trajectory: Trajectory) -> Trajectory | None:
        """The form in which this method remembers a rated stretch; None: not at all."""
        return trajectory

    def prepare(self, memory: ScopeMemory[Index]) -> None:
        """Do ahead what the first question to a memory that was read would wait for."""

    def _memory(self, scope: tuple[str, ...]) -> ScopeMemory[Index]:
        with self._lock:
            if scope not in self._scopes:
                # A thread may still write to a scope that was closed: two stores of one scope would write over each other.
                if (store := self._stores.get(scope)) is None:
                    hold = partial(self._reason_to_hold, scope)
                    store = ConversationStore(self.agent.store, scope, hold, self.agent.queue.shared)
                    self._stores[scope] = store
                self._scopes[scope] = ScopeMemory(store, self.make_index())
                while len(self._scopes) > MAX_SCOPES:
                    self._scopes.popitem(last=False)
            self._scopes.move_to_end(scope)
            return self._scopes[scope]

    def _reason_to_hold(self, scope: tuple[str, ...], conversation: Conversation) -> str:
        try:
            return "it waits until it is released" if (self._hold(conversation) if callable(self._hold) else self._hold) else ""
        except Exception as error:  # the app's function, and what it did not let pass is not learned from
            why = f"{type(error).__name__}: {error}"
            LOG.warning("%s: hold= failed for conversation %s: %s", self.method, conversation.id, why)
            self._memory(scope).note_failure("a conversation is held, since hold= failed", why)
            return f"it waits until it is released, since hold= failed: {why}"

    def _rebuild_indexes(self) -> None:
        """Make all memories anew when they are used next."""
        with self._lock:
            for memory in self._scopes.values():
                memory.seen = None

    def _opened(self, scope: tuple[str, ...], thread: str, *, goes_on: bool) -> ScopeMemory[Index] | None:
        """As `_refreshed`, for a call that a user waits for; None while a large memory is still being read, behind his back.

        Where the store is slow, it is the memory as it was, or None where it was never read.
        """
        memory, queue = self._memory(scope), self.agent.queue
        if memory.opening is None or memory.opening.done():
            if self._is_fresh(memory, goes_on) and self.agent.is_compared:
                return memory

            def look() -> ScopeMemory[Index] | None:
                self.agent.compare_tools()
                return self._look(scope, thread, goes_on=goes_on, may_wait=False)

            looked: Future[ScopeMemory[Index] | None] = queue.read(look)
            memory.opening = looked
            if queue.is_late(looked, write_queue.STORE_PATIENCE):
                what = "the store was slow, and the agent answered with what memory had before, or without"
                memory.note_failure(what, f"an answer that took more than {write_queue.STORE_PATIENCE:g} seconds")
                LOG.warning("%s: %s", self.method, what)
            elif (found := looked.result()) is not None:
                return found
            else:
                opening = memory.opening = queue.read(partial(self._read_now, scope))
                wait([opening], OPENING_PATIENCE)
                if opening.done():
                    return self._refreshed(scope, thread, goes_on=goes_on)
                words = (
                    "%s: the memory of %s is being read: until it is, the agent answers without advice; memory() opens it ahead"
                )
                LOG.warning(words, self.method, "/".join(scope))
        return memory if memory.seen is not None else None

    def _is_fresh(self, memory: ScopeMemory[Index], goes_on: bool) -> bool:
        """True if a memory has all that it must have of what was learned until now."""
        patience = max(self.refresh_seconds, REFRESH_IN_TURN) if goes_on else self.refresh_seconds
        is_due = time.monotonic() - memory.looked >= patience or memory.conversations.has_news
        return memory.seen is not None and not is_due

    def _read_all(self, scope: tuple[str, ...]) -> ScopeMemory[Index]:
        if (opening := self._memory(scope).opening) is not None:
            wait([opening])
        return self._read_now(scope)

    def _read_now(self, scope: tuple[str, ...]) -> ScopeMemory[Index]:
        memory = self._refreshed(scope)
        self.prepare(memory)
        return memory

    def _refreshed(self, scope: tuple[str, ...], thread: str = "", *, goes_on: bool = False) -> ScopeMemory[Index]:
        """As `_look`, however long it takes, and with what others have learned until now."""
        self._memory(scope).conversations.has_news = True
        found = self._look(scope, thread, goes_on=goes_on, may_wait=True)
        assert found is not None
        return found

    def _look(self, scope: tuple[str, ...], thread: str, *, goes_on: bool, may_wait: bool) -> ScopeMemory[Index] | None:
        """The memory of a scope, with what was learned since the last look, as of the beginning of a thread's turn or while it goes on; None
        where more than `MANY_TO_READ` conversations have to be read, unless it may wait."""
        memory = self._memory(scope)
        with memory.lock:
            now = time.monotonic()
            if self._is_fresh(memory, goes_on):
                return memory
            memory.conversations.has_news = False
            changed, seen = memory.conversations.changes(memory.seen, "" if goes_on else thread)
            changed = self._take_trials(memory, changed)
            if changed is None:
                kept = memory.conversations
                changed = kept.trajectories.all() if may_wait else kept.trajectories.read_few(MANY_TO_READ)
                if changed is None:
                    memory.seen = None
                    return None
                memory.index = self.make_index()
                memory.outcomes, memory.withheld = {}, {}
            memory.seen = seen  # only now: a store that failed is read again
            memory.outcomes |= {one.id: is_rewarded(one) for one in changed}
            for one in changed:
                try:
                    for step in one.transitions:
                        finite_reward(step.reward or 0.0)
                    memory.users[one.id] = one.user
                    for tool in {tool for step in one.transitions for tool in WITHHELD.findall(step.observation)}:
                        memory.withheld.setdefault(tool, set()).add(one.id)
                    if one.id not in memory.ledger.retired and (form := self.adapt(one.for_method(self.method))) is not None:
                        memory.index.add(form)
                except UserError as error:  # one that is damaged must not keep all others from being remembered
                    LOG.warning("%s: %s is left out of memory: %s", self.method, one.id, error)
            memory.looked = now
        return memory

    def _take_trials(self, memory: ScopeMemory[Index], changed: list[Trajectory] | None) -> list[Trajectory] | None:
        """Take in the trials of changed conversations; returns these, or None where all are to be read, since something is retired."""
        if not self.plan.is_on:
            return changed
        if changed is None:
            memory.ledger = TrialLedger(self.method, self.plan.min_lift)
            trials = memory.conversations.trials.all()
        else:
            threads = dict.fromkeys(one.run for one in changed)
            found = [memory.conversations.trials.get(f"{self.method}/{thread}") for thread in threads]
            trials = [one for one in found if one is not None]
        for row in (retired := memory.ledger.add(trials, partial(unrated_draws, memory.conversations))):
            LOG.warning("%s: retired %s", self.method, retirement(row))
        return None if retired else changed
