"""Conversations of one scope in any LangGraph store: their turns, the feedback on them, and the trajectories that follow.

    (…scope, "turns")          thread -> its turns, as the agent's process recorded them
    (…scope, "feedback")       thread -> the feedback on it, as whoever gave it wrote it
    (…scope, "trajectories")   thread/turn -> a rated stretch of the conversation; memories are made of these
    (…scope, "reflections")    method/thread/turn -> what a model wrote about a rated stretch
    (…scope, "trials")         method/thread -> a rated conversation with what was drawn for it (trials.py)
    (…scope, "quarantine")     thread -> why nothing is learned from it, and whether a person has released it
    (…scope, "agent")          the agent in a few words, as its last run had it: what critics of other processes read
    (…scope, "changes")        writer -> the trajectories that this process changed last

All ids are derived from those of the thread and of its messages, so that work that is done twice is stored once.

Several processes may share a store. Each writes an item of its own under `changes`, and reads the others': nobody has to read all
trajectories again to learn what is new.
"""

import json
import logging
import os
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from hashlib import blake2b
from typing import Any, TypedDict

from langgraph.store.base import BaseStore, PutOp

from ..errors import UserError, did_you_mean
from ..records import Lesson, Task, Trajectory
from ..storage.branches import current_branch
from ..storage.open_store import all_items
from ..storage.record_store import BadRecord, RecordStore, exchange, to_json
from .trials import MemoryTrial, conversation_trials
from .turns import (
    Conversation,
    Quarantine,
    Rating,
    Turn,
    find_predecessor,
    find_turn,
    finite_reward,
    has_gone_on,
    is_replaced,
    join,
    rated_trajectories,
    rating_to_change,
    set_aside,
    turn_of_id,
    turns_held,
    turns_rated,
    turns_under,
    with_later_part,
    with_turn,
    with_waiting,
    with_words,
    without_source,
)
from .write_queue import UNKNOWN, SharedTurns

__all__ = [
    "ConversationStore",
    "RatingOptions",
    "Reflection",
    "trajectory_digest",
]

LOG = logging.getLogger(__name__)
_UNKEPT = re.compile("[\0\ud800-\udfff]")
UNDOABLE_WRITES = 1_000
"""Writes that a what-if can look behind. A server writes a conversation anew at each of its turns."""
CHANGES_KEPT = 256
"""Changes that a writer names. A reader that missed more reads all trajectories again."""
MOST_MERGES = 4
"""Times that a turn is written where others write into the same conversation."""


class RatingOptions(TypedDict, total=False):
    """Options of `ConversationStore.rate`."""

    turn: str | None
    run_id: str | None
    message_id: str | None
    source: str
    at: str
    of_whole: bool


@dataclass(frozen=True, slots=True)
class Ratings:
    """All feedback on a thread."""

    id: str
    ratings: tuple[Rating, ...]


@dataclass(frozen=True, slots=True)
class Reflection:
    """The lessons or the note that a model wrote about a rated stretch of a conversation, for one method."""

    id: str
    """`<method>/<id of the trajectory>`: written twice, it is stored once."""
    thread: str
    about: str
    """`trajectory_digest` of the stretch as it was then. After other feedback it is another one, and the text no longer holds."""
    note: str = ""
    lessons: tuple[Lesson, ...] = ()
    error: str = ""
    """The reason for which no reply could be read; empty if one could."""
    reward: float | None = None
    """Of the stretch as it was then."""


@dataclass(frozen=True, slots=True)
class ExportedConversation(Conversation):
    """A line of a learner's export."""

    agent: str = ""
    scope: dict[str, str | None] = field(default_factory=dict)
    ratings: tuple[Rating, ...] = ()
    reflections: tuple[Reflection, ...] = ()
    quarantine: Quarantine | None = None


def clean_text(text: str) -> str:
    """The text as every store can keep it: without NUL, and with a mark in place of half a surrogate pair."""
    if not _UNKEPT.search(text):
        return text
    return text.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def clean(value: Any) -> Any:
    """Plain data or a record with all its texts cleaned (`clean_text`)."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, tuple | list):
        return type(value)(clean(one) for one in value)
    if isinstance(value, dict):
        return {clean(key): to_json(clean(one)) for key, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{one.name: clean(getattr(value, one.name)) for one in fields(value)})
    return value


def trajectory_digest(trajectory: Trajectory) -> str:
    """A digest of what happened and of the feedback on it."""
    found = json.dumps({**to_json(replace(trajectory, used=())), "states": None}, sort_keys=True)
    return blake2b(found.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class _Changes:
    """The trajectories that a writer changed last."""

    id: str
    count: int
    """Number of all changes that it ever made."""
    newest: tuple[str, ...]
    """Ids of the last ones, newest last. An empty id stands for a deletion: read everything again."""


def _without_traces(conversation: Conversation, threads: Collection[str]) -> Conversation:
    """A conversation whose records of advice name none of these threads, and quote nothing that was drawn from them."""

    def kept(entry: dict[str, Any]) -> dict[str, Any]:
        recalled = [id for id in entry.get("recalled", ()) if id.rpartition("/")[0] not in threads]
        if len(recalled) == len(entry.get("recalled", ())) and "version" not in entry:
            return entry
        plain = {name: value for name, value in entry.items() if name in ("method", "mode") or isinstance(value, bool | int)}
        return {**plain, "recalled": recalled}

    turns = (replace(turn, advice=tuple(map(kept, turn.advice))) for turn in conversation.turns)
    return replace(conversation, turns=tuple(turns))


class ConversationStore:
    """The conversations of one scope: a tenant's, a user's, or all. It is safe to use from several threads and processes.

    Args:
        store: any LangGraph store.
        scope: labels that the namespace begins with. Nothing is read or written outside of it.
        hold: a rated conversation -> the reason for which it is quarantined at first; empty: it is not.
        shared: what others share in this process that work with the same scope; not given: nobody does.
    """

    def __init__(
        self,
        store: BaseStore,
        scope: Sequence[str],
        hold: Callable[[Conversation], str] | None = None,
        shared: SharedTurns | None = None,
    ) -> None:
        self.store, self.scope, self._hold = store, tuple(scope), hold
        kept = UNDOABLE_WRITES
        self.turns = RecordStore(store, (*scope, "turns"), Conversation, changes_kept=kept)
        self.feedback = RecordStore(store, (*scope, "feedback"), Ratings, changes_kept=kept)
        # What is derived may be left out where it is damaged; what users said is not to be written over without a word.
        derived: Any = {"changes_kept": kept, "on_damage": self._leave_out}
        self.trajectories = RecordStore(store, (*scope, "trajectories"), Trajectory, **derived)
        self.reflections = RecordStore(store, (*scope, "reflections"), Reflection, **derived)
        self.trials = RecordStore(store, (*scope, "trials"), MemoryTrial, **derived)
        self.quarantines = RecordStore(store, (*scope, "quarantine"), Quarantine, changes_kept=kept)
        self._changes = RecordStore(store, (*scope, "changes"), _Changes, **derived)
        self._left_out = set[str]()
        self._name = uuid.uuid4().hex[:12]
        self._count = 0
        self.card = ""
        """The agent in a few words, as this object has written it."""
        self._shared = shared or SharedTurns()
        self._lock = self._shared.lock_of(self.scope)
        self.has_news = False
        """True if this object has changed trajectories; its reader sets it back."""

    @property
    def _writer(self) -> str:
        """The id of this object among all that write into the scope; after a fork it is another one."""
        return f"{self._process}-{self._name}"

    @property
    def _process(self) -> str:
        """The beginning of the ids of all writers of this process that share what they change."""
        return f"{os.getpid()}-{self._shared.id}"

    def _leave_out(self, damage: BadRecord) -> None:
        """Say once that a record is damaged."""
        if str(damage) not in self._left_out:
            self._left_out.add(str(damage))
            LOG.warning("a record is left out, since it cannot be read: %s", damage)

    def conversation(self, thread: str) -> Conversation:
        """The recorded turns of a thread.

        Raises:
            UserError: nothing of it was recorded in this scope.
        """
        found = self.turns.get(thread)
        if found is None:
            raise UserError(
                f"asked for conversation {thread!r}, and none is recorded in {'/'.join(self.scope)}: give the thread_id that the "
                "agent ran with, and the scope's names and values as in its runs; a turn is recorded once the agent has answered"
                f"{did_you_mean(thread, [one.id for one in self.turns.all()])}"
            )
        return found

    def rated_turn(self, trajectory: Trajectory) -> list[Turn]:
        """The turn at which a rated stretch ends; none if it is gone, or the stretch was imported."""
        found = self.turns.get(trajectory.run)
        return [] if found is None else list(found.turns[trajectory.episode : trajectory.episode + 1])

    def ratings(self, thread: str) -> tuple[Rating, ...]:
        """The feedback on a thread, oldest first."""
        found = self.feedback.get(thread)
        return found.ratings if found else ()

    def note_turn(self, thread: str, turn: Turn, task: Task, domain: str = "", user: str = "") -> None:
        """Take note of a turn that is about to be recorded, so that `turns_at_hand` and `latest` have it at once."""
        if current_branch() is None:
            self._shared.note((self.scope, thread), clean(turn), Conversation(thread, clean(task), (), domain, user))

    def record(
        self,
        thread: str,
        turn: Turn,
        task: Task,
        domain: str = "",
        user: str = "",
        *,
        read: frozenset[str] = frozenset(),
        beside: Sequence[Turn] = (),
        is_noted: bool = False,
        goes_on: bool = False,
    ) -> Conversation:
        """Record a turn. It takes the place of one with its id, as after a run that was repeated, and keeps what other methods have
        recorded of their advice. A turn that was regenerated after it had ended stays beside it with its rating.

        Args:
            turn: what was done in it until now.
            task: what the conversation is about.
            domain: of its trajectories.
            user: whose conversation it is; empty: not known.
            read: ids of the messages that the agent has: turns that the thread has left by going back in time are known by these.
            beside: the same turn as other methods have recorded it, which is written with it.
            is_noted: whether `note_turn` was given all of these.
            goes_on: whether the turn will be recorded again soon: then it is not read again before that.
        """
        turns, task = [clean(one) for one in (*beside, turn)], clean(task)
        held, ended = (self.scope, thread), "" if goes_on else turn.id
        with self._lock:
            known = self._shared.take(held) if current_branch() is None else UNKNOWN
            known = self.turns.get(thread) if known is UNKNOWN else known
            ratings: tuple[Rating, ...] = ()
            if known is not None and any(has_gone_on(known, one) for one in turns):
                turns = [with_later_part(known, self.ratings(thread), one) for one in turns]
            if known is not None and any(is_replaced(known, one) for one in turns):
                known = self._set_aside(thread, turns[-1]) or known
            found = stored = known
            for _ in range(MOST_MERGES):
                conversation = known or Conversation(thread, task, (), domain, user)
                if conversation.turns and conversation.turns[0].id == turn.id:  # a later call may tell what is a secret in it
                    conversation = replace(conversation, task=replace(conversation.task, instruction=task.instruction))
                for one in turns:
                    conversation = with_turn(conversation, replace(one, after=find_predecessor(conversation, one, read)))
                if conversation == stored:
                    break
                found, given = exchange([(self.turns, thread), (self.feedback, thread)], [(self.turns, conversation)])
                ratings = given.ratings if given else ()
                if found == stored:
                    break
                known, stored = found, conversation  # another process has recorded something meanwhile
            if current_branch() is None:
                self._shared.keep(held, conversation, ended, len(turns) * is_noted)
            rated, last = {one.turn for one in ratings}, turns[-1]
            place = next(n for n, one in enumerate(conversation.turns) if one.id == last.id)
            if any(one.id in rated for one in conversation.turns[place:]):
                was = turn_of_id(found, last.id) if found else None
                if was and was.steps and not last.steps:  # nothing is left of it
                    self._withdraw({thread}, stay={one.id for one in rated_trajectories(conversation, ratings)})
                self._derive(conversation, ratings)
            return conversation

    def _set_aside(self, thread: str, turn: Turn) -> Conversation | None:
        """Keep the turn that another run takes the place of, with its rating, under an id of its own; None: there is nothing to keep."""
        known, given = exchange([(self.turns, thread), (self.feedback, thread)])
        found = set_aside(known, given.ratings if given else (), turn) if known else None
        if found is not None:
            rated: list[tuple[RecordStore[Any], Any]] = [(self.feedback, Ratings(thread, found[1]))] if given else []
            exchange([], [(self.turns, found[0]), *rated])
        return found[0] if found else None

    def turns_at_hand(self, thread: str) -> tuple[Turn, ...]:
        """The recorded turns of a thread whose turn goes on, oldest first; none of another thread."""
        known = self._shared.get((self.scope, thread))
        return known.now.turns if known and known.now and not known.ended else ()

    def latest(self, thread: str) -> Conversation | None:
        """The conversation with what is still to be written of it; None: nothing was recorded of it."""
        known = self._shared.get((self.scope, thread)) if current_branch() is None else None
        is_ahead = known is not None and (known.ahead or known.stored is UNKNOWN)
        return known.now if known and is_ahead else self.turns.get(thread)

    def rate(
        self,
        thread: str,
        reward: float | None,
        text: str | None = None,
        *,
        turn: str | None = None,
        run_id: str | None = None,
        message_id: str | None = None,
        source: str = "user",
        at: str = "",
        of_whole: bool = False,
        unlearned: str = "",
    ) -> Rating:
        """Keep the feedback on a thread, and the trajectories that follow from it.

        Of a turn that is rated again, what a source said last holds, field by field: a comment does not take the reward back. Of the rewards
        that the app has given, the low median counts.

        Args:
            reward: a finite number; None: only words.
            text: the words; empty: the ones that this source said before are deleted.
            turn: id of the turn; the last recorded one if not given. Of a branch, it alone is rated.
            run_id: id of the agent's run that ended that turn.
            message_id: id of one of the agent's messages in the turn, which alone is rated.
            at: time of the app's feedback, UTC, in ISO 8601; empty: it is none of the app's.
            of_whole: True: it rates several agents as one.
            unlearned: the reason for which the words are kept, and not learned; empty: they are. What a person has let in stays so.

        Raises:
            UserError: the conversation or the turn is unknown, the reward is no finite number, or the rating would be empty.
        """
        with self._lock:
            recorded, kept = exchange([(self.turns, thread), (self.feedback, thread)])
            conversation, given = recorded or self.conversation(thread), kept.ratings if kept else ()
            reward = None if reward is None else finite_reward(reward)
            rated = find_turn(conversation, turn=turn, run_id=run_id, message_id=message_id).id
            has_reward = reward is not None
            about: Any = {"of_turn": bool(turn), "of_message": message_id is not None, "has_reward": has_reward}
            about |= {"for_others": has_reward or of_whole, "is_feedback": bool(at)}
            known = rating_to_change(conversation, given, rated, **about)
            source, text = clean_text(source), None if text is None else clean_text(text)
            rating = replace(with_words(known, source, reward, text, unlearned, is_feedback=bool(at)), at=at or known.at)
            if has_reward and not message_id:
                rating = with_waiting(conversation, given, rating)
            rating = replace(rating, whole=at) if of_whole else rating
            if rating.reward is None and not rating.text and not rating.others:
                raise UserError("feedback: give a reward, a text, or both; retract(thread_id) deletes a rating")
            places = {one.id: n for n, one in enumerate(conversation.turns)}
            left = [one for one in given if one is not known]
            ratings = tuple(sorted([*left, rating], key=lambda one: places.get(one.turn, -1)))
            # All of it again: a crash may have come before.
            self._derive(conversation, ratings, {f"{thread}/{places[rating.turn]}"}, Ratings(thread, ratings))
            if rating.is_silent:  # what it said before may have been learned
                self._withdraw({thread}, stay={one.id for one in rated_trajectories(conversation, ratings)})
            return rating

    def retract(self, thread: str, *, run_id: str | None = None, message_id: str | None = None, source: str = "user") -> Rating:
        """Delete what a source has said of a turn, the last one if no run or message is given, with what was learned from it: what others
        have said of it holds again. Returns the rating as it was; raises UserError where there is none of this source."""
        with self._lock:
            conversation, given = self.conversation(thread), self.ratings(thread)
            turn = find_turn(conversation, run_id=run_id, message_id=message_id).id
            rated = sorted((one for one in given if one.turn == turn), key=lambda one: one.is_single == bool(message_id))
            gone = rated[-1] if rated else None
            if gone is None or source not in (gone.source, *gone.others, *gone.earlier):
                earlier = ": its last turn has none, and an earlier one is named by run_id= or message_id=" * bool(given)
                found = f"there is none{earlier}" if gone is None else f"the one there is of source {gone.source!r}"
                raise UserError(f"asked to retract the rating of conversation {thread!r} of source {source!r}, and {found}")
            rest = without_source(gone, source)
            changed = [rest if one is gone else one for one in given]
            left = tuple(one for one in changed if one is not None)
            self.feedback.put([Ratings(thread, left)])
            new = rated_trajectories(conversation, left)
            known = self.trajectories.get_many([one.id for one in new])
            self._withdraw({thread}, stay={one.id for one in known if one in new})
            self._derive(conversation, left)
            return gone

    def _derive(
        self, conversation: Conversation, ratings: Sequence[Rating], always: Collection[str] = (), told: Ratings | None = None
    ) -> None:
        """Write the trajectories that are new or changed, and those with one of these ids, and say so; before that, what was told."""
        found = rated_trajectories(conversation, ratings)
        asked: list[tuple[RecordStore[Any], str]] = [(self.quarantines, conversation.id), (self._changes, self._writer)]
        first = [(self.feedback, told)] if told else []
        held, mine, *known = exchange([*asked, *((self.trajectories, one.id) for one in found)], first)
        without = self._decide(conversation, held) if found else ()
        free = {one.id for one in rated_trajectories(conversation, ratings, without)}
        pairs = [(one, before) for one, before in zip(found, known, strict=True) if one.id in free]
        self._keep_trials(conversation, [one for one, _ in pairs])
        made = [one for one, before in pairs if one.id in always or one != before]
        if made:
            changes = self._changes_with([one.id for one in made], mine)
            exchange([], [*((self.trajectories, one) for one in made), (self._changes, changes)])
            self._shared.add_changed(self.scope, made)
            if (late := turns_held(conversation, self.quarantines.get(conversation.id))) - set(
                without
            ):  # another process has quarantined it meanwhile
                self._withdraw({conversation.id}, {one.id for one in rated_trajectories(conversation, ratings, late)})

    def _keep_trials(self, conversation: Conversation, rated: Sequence[Trajectory]) -> None:
        advice = [entry for turn in conversation.turns for entry in turn.advice]
        methods = {str(entry["method"]) for entry in advice if "trial" in entry}
        known = {one: kept for one in methods if (kept := self.trials.get(f"{one}/{conversation.id}"))}
        if trials := [one for one in conversation_trials(advice, rated, known) if one not in known.values()]:
            self.trials.put(trials)

    def _decide(self, conversation: Conversation, known: Quarantine | None) -> set[str]:
        """As `turns_held`, after `hold` has decided where nothing is known of a rated conversation, or of its later turns."""
        is_new = known is None or ((known.released or known.of) and known.turns < len(conversation.turns))
        if is_new and self._hold is not None and (reason := self._hold(conversation)):
            if known is not None and not known.released:
                reason = f"{known.reason}; {reason}"
            self.quarantines.put([known := Quarantine(conversation.id, reason, known.digest if known else "")])
        return turns_held(conversation, known)

    def quarantine(self, thread: str, reason: str, digest: str = "", turn: str = "") -> bool:
        """Learn nothing from a conversation any more, and withdraw what was derived from it.

        Args:
            digest: of what was found in it. A conversation that was released in spite of it stays so.
            turn: id of the turn in which it was found: what was before it stays; empty: nothing does.

        Returns:
            True if it was not quarantined before.
        """
        with self._lock:
            if self.is_held(thread, digest, turn):
                return False
            known, conversation = self.quarantines.get(thread), self.turns.get(thread)
            before = () if known is None or known.released else known.of
            found = Quarantine(thread, clean_text(reason), clean_text(digest), of=(*before, clean_text(turn)) if turn else ())
            self.quarantines.put([replace(found, turns=known.turns if known else 0)])
            if turn and conversation is not None:
                given, without = self.ratings(thread), turns_under(conversation, found.of)
                self._withdraw({thread}, {one.id for one in rated_trajectories(conversation, given, without)})
                self._derive(conversation, given)
            else:
                self._withdraw({thread})
            return True

    def is_held(self, thread: str, digest: str = "", turn: str = "") -> bool:
        """True if a conversation, or this turn of it, is quarantined, or was released in spite of the text with this digest."""
        if (known := self.quarantines.get(thread)) is None:
            return False
        return (bool(digest) and known.digest == digest) if known.released else not known.of or turn in known.of

    def is_learned(self, thread: str, rating: Rating) -> bool:
        """True if none of the turns that a rating of a conversation is about is quarantined."""
        conversation, given = self.conversation(thread), self.ratings(thread)
        pairs = zip(given, turns_rated(conversation, given), strict=True)  # another reader may have changed it meanwhile
        about = [turns for one, turns in pairs if (one.turn, one.is_single) == (rating.turn, rating.is_single)]
        held = turns_held(conversation, self.quarantines.get(conversation.id))
        return not any(one.id in held for turns in about for one in turns)

    def open_quarantines(self) -> list[Quarantine]:
        """The conversations that are quarantined."""
        return [one for one in self.quarantines.all() if not one.released]

    def unlearned_words(self) -> dict[str, str]:
        """The threads whose feedback has words that are not learned, each with the reason."""
        found = ((one.id, why) for one in self.feedback.all() for rating in one.ratings for why in rating.unlearned.values())
        return {thread: f"the feedback {why}: its words alone are not learned" for thread, why in found}

    def release(self, thread: str) -> None:
        """Learn from a quarantined conversation after all, and from the words of its feedback.

        Raises:
            UserError: it is not quarantined, and all of these words are learned.
        """
        with self._lock:
            known, given, conversation = self.quarantines.get(thread), self.ratings(thread), self.turns.get(thread)
            is_quarantined, has_words = known is not None and not known.released, any(one.unlearned for one in given)
            if not is_quarantined and not has_words:
                held = ", ".join(sorted({*self.unlearned_words(), *(one.id for one in self.open_quarantines())})) or "none is"
                raise UserError(f"asked to release conversation {thread!r}, which is not quarantined; those that are: {held}")
            if known is not None and is_quarantined:
                self.quarantines.put([replace(known, released=True, turns=len(conversation.turns) if conversation else 0)])
            if has_words:
                given = tuple(replace(one, unlearned={}) for one in given)
                self.feedback.put([Ratings(thread, given)])
            if conversation is not None:
                self._derive(conversation, given)

    def add_reflection(self, reflection: Reflection, trajectory: str) -> bool:
        """Keep a reflection on a trajectory, and have all readers look at that trajectory again; returns False, and keeps nothing, if
        the trajectory was forgotten or withdrawn meanwhile."""
        with self._lock:
            if self.trajectories.get(trajectory) is None:
                return False
            self.reflections.put([clean(reflection)])
            if self.trajectories.get(trajectory) is None:  # another process has withdrawn it meanwhile
                self.reflections.delete([reflection.id])
                return False
            self._announce([trajectory])
            return True

    def agent_card(self) -> str:
        """The agent in a few words, as its last run had it; empty before its first."""
        item = self.store.get((*self.scope, "agent"), "card")
        return str(item.value["text"]) if item else ""

    def note_agent(self, card: str) -> None:
        """Keep the agent in a few words."""
        self.store.put((*self.scope, "agent"), "card", {"text": clean_text(card)}, index=False)
        self.card = card

    def _announce(self, ids: Sequence[str]) -> None:
        self._changes.put([self._changes_with(ids, self._changes.get(self._writer))])

    def _changes_with(self, ids: Sequence[str], mine: _Changes | None) -> _Changes:
        """The record that names further changes of this process; `mine`: as it is, since others blank in it what they have forgotten."""
        if mine is None and self._count:  # all was forgotten: who has not seen that reads everything again
            ids = ["", *ids]
        self._count += len(ids)
        self.has_news = True
        newest = (*(mine.newest if mine else ()), *ids)[-CHANGES_KEPT:]
        return _Changes(self._writer, self._count, newest)

    def changes(self, seen: Mapping[str, int] | None, thread: str = "") -> tuple[list[Trajectory] | None, dict[str, int]]:
        """The trajectories that were added or changed since a look before.

        Args:
            seen: what the look before returned; None: there was none.
            thread: one whose turn begins, which is read in the same batch.

        Returns:
            The trajectories, or None where all have to be read again (`trajectories.all`), and the mark for the next look.
        """
        was = self._shared.get((self.scope, thread))
        writers, *recorded = exchange([(self._changes, None), *([(self.turns, thread)] if thread else [])])
        if thread and current_branch() is None:
            self._shared.begin((self.scope, thread), was, *recorded)
        now = {writer.id: writer.count for writer in writers}
        if seen is None or seen.keys() - now.keys():
            return None, now
        ids, others = list[str](), set[str]()
        for writer in writers:
            if missed := writer.count - seen.get(writer.id, 0):
                if missed > len(writer.newest) or "" in writer.newest[-missed:]:
                    return None, now
                ids += writer.newest[-missed:]
                others |= set() if writer.id.startswith(self._process) else set(writer.newest[-missed:])
        found = self._shared.find_changed(self.scope, set(ids) - others)  # what only this process has changed need not be read
        found |= {one.id: one for one in self.trajectories.get_many([id for id in dict.fromkeys(ids) if id not in found])}
        return [found[id] for id in dict.fromkeys(ids) if id in found], now

    def forget(self, threads: Sequence[str] | None = None) -> int:
        """Delete conversations with their feedback, their trajectories and what models wrote about them.

        Args:
            threads: ids of the threads; None: all of the scope.

        Returns:
            The number of conversations deleted. A thread of which nothing is kept is no error, and the log names it: another call may
            have erased it.
        """
        with self._lock:
            gone, known = set(threads) if threads is not None else None, self.turns.all()
            doomed = [one.id for one in known if gone is None or one.id in gone]
            if missing := sorted((gone or set()).difference(doomed)):
                meant = did_you_mean(missing[0], [one.id for one in known]) if len(missing) == 1 else ""
                words = "nothing is kept of the conversations %s in %s: forgotten before, or misspelt%s"
                LOG.warning(words, ", ".join(missing), "/".join(self.scope), meant)
            beside = [
                (kept, [one.id for one in kept.all() if gone is None or one.id in gone])
                for kept in (self.feedback, self.quarantines)
            ]
            if gone is not None and not doomed and not any(ids for _, ids in beside):
                return 0  # a misspelt scope would get a record of its name by what is written below
            for kept, ids in beside:
                kept.delete(ids)
            self.store.delete((*self.scope, "agent"), "card")  # instructions may name a user; the next run writes it again
            self.card = ""
            for one in known if gone else ():
                if gone and one.id not in gone and (left := _without_traces(one, gone)) != one:
                    self.turns.put([left])
                    self._shared.drop(self.scope, {one.id})
                    self._derive(left, self.ratings(one.id))
            self._withdraw(gone)
            self.turns.delete(doomed)  # last: after a crash these are known, and forgotten when asked again
            self._shared.drop(self.scope, gone)
            if gone is None:
                for place in ((*self.scope, name) for name in ("changes", "imports", "library")):  # a namespace names its user
                    self.store.batch([PutOp(place, i.key, None) for i in all_items(self.store, place) if i.namespace == place])
            return len(doomed)

    def _withdraw(self, threads: Collection[str] | None, stay: Collection[str] = ()) -> None:
        """Delete the trajectories of some threads, or of all, but for those with the ids that stay, and what models wrote about them."""
        doomed = [one.id for one in self.trajectories.all() if (threads is None or one.run in threads) and one.id not in stay]
        self.trajectories.delete(doomed)
        self._shared.drop_changed(self.scope, doomed)
        for records in (self.reflections, self.trials):
            mine = [one.id for one in records.all() if threads is None or one.thread in threads]
            records.delete([id for id in mine if id.partition("/")[2] not in stay])
        self._announce([""])
        gone = set(doomed) if threads is not None else None
        for one in self._changes.all():  # the ids of threads go, too: an empty one says that something was deleted
            newest = tuple("" if gone is None or id in gone else id for id in one.newest)
            if newest != one.newest:
                self._changes.put([replace(one, newest=newest)])

    def export(self, user: str = "") -> Iterator[dict[str, Any]]:
        """All that is kept of this scope, or of a user's turns, one plain object per conversation, without the digests of secrets."""
        ratings = {one.id: one.ratings for one in self.feedback.all()}
        reflections, quarantines = self.reflections.all(), {one.id: one for one in self.quarantines.all()}
        for one in self.turns.all():
            written = [reflection for reflection in reflections if reflection.thread == one.id]
            if user and one.users != {user}:
                if user not in one.users:
                    continue
                turns, written = tuple(turn for turn in one.turns if one.user_of(turn) == user), []
                said = next((step.observation_text for turn in turns for step in turn.steps), "")
                one = replace(one, turns=turns, task=replace(one.task, instruction=said), user=user)
                ratings[one.id] = tuple(r for r in ratings.get(one.id, ()) if turn_of_id(one, r.turn))
            more = {"ratings": ratings.get(one.id, ()), "reflections": written, "quarantine": quarantines.get(one.id)}
            kept = to_json(one) | {name: to_json(value) for name, value in more.items()}
            yield kept | {"turns": [{name: turn[name] for name in turn if name != "secrets"} for turn in kept["turns"]]}

    def take_in(self, found: Sequence[tuple[Conversation, Sequence[Rating]]]) -> int:
        """Add conversations that were had or recorded elsewhere; returns the number of their rated stretches that are learned from.

        A turn that is known, by its id or its run's, stays as it was recorded; feedback that was given here stays before imported.
        """
        with self._lock:
            ids = [one.id for one, _ in found]
            before = {one.id: one for one in self.turns.get_many(ids)}
            known = dict(before)
            given = {one.id: one.ratings for one in self.feedback.get_many(ids)}
            for one, ratings in found:
                old = known.get(one.id, replace(one, turns=()))
                known[one.id], given[one.id] = join(old, given.get(one.id, ()), clean(one), clean(tuple(ratings)))
                self._shared.drop(self.scope, {one.id})
            changed = [one for id, one in known.items() if one != before.get(id)]
            self.turns.put(changed)  # another process may write to the others
            self.feedback.put([Ratings(id, given[id]) for id in known if given[id]])
            held, learned = {one.id: one for one in self.quarantines.all()}, list[Trajectory]()
            for id in known:
                if rated_trajectories(known[id], given[id]):
                    rated = rated_trajectories(known[id], given[id], self._decide(known[id], held.get(id)))
                    self._keep_trials(known[id], rated)
                    learned += rated
            told = {one.id: one for one in self.trajectories.get_many([one.id for one in learned])}
            if new := [one for one in learned if told.get(one.id) != one]:
                self.trajectories.put(new)
                self._announce([one.id for one in new] if len(new) <= CHANGES_KEPT else [""])
            return len(learned)
