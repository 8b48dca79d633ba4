"""The turns of a conversation, the ratings on them, and the trajectories that follow: records, and functions without a store.

Feedback rates what happened since the feedback before it: a thread that is rated after its second and its fifth turn gives two
trajectories, of turns 0 to 1 and 2 to 4. A branch of `Send` is a trajectory of its own, with the reward of its own reply or that of the
thread. Feedback on the same turn again takes the place of what the same source said before, its reward and its words each by itself; of the
rewards of several sources the low median counts.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from numbers import Real
from statistics import median_low
from typing import Any

from ..errors import UserError
from ..records import Task, Trajectory, Transition
from .messages import REPLY

__all__ = ["Conversation", "Rating", "Turn", "finite_reward"]

MOST_NOTE_CHARS = 4_000
"""Characters of what was said of a conversation that methods read; all of it is kept with the feedback."""
MOST_REWARD = 1e100
"""Greatest size of a reward: memories compute with its square."""
CONTINUED = "+"
"""The end of the id of a turn that went on, by an event, after it had ended and was rated."""
IMPORTED = "import"
"""The beginning of the source of a rating that was given elsewhere."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The steps of an agent between two messages of the user."""

    id: str
    """Id of the user's message that it answers."""
    steps: tuple[Transition, ...]
    run_id: str = ""
    """Id of the agent's run, as tracers know it; empty where it has none."""
    advice: tuple[dict[str, Any], ...] = ()
    """Records of learning methods, one entry per model call: recalled trajectories, what was added, what was chosen."""
    replies: tuple[str, ...] = ()
    """Ids of the agent's messages in it, by which an app knows what a user's thumb is about."""
    branch_of: str = ""
    """Id of the turn beside which it ran as a branch of `Send`, its own where all branches have ids of their own; empty: it is none."""
    method: str = ""
    """The method that first recorded it, by whose `state_key` its steps have their states."""
    after: str = ""
    """Id of the turn that it followed, where the thread has gone back in time; its own: it began the thread. Empty: the one before it."""
    states: dict[str, list[str]] = field(default_factory=dict)
    """Another method that records it, with a `state_key` of its own -> the state at each step by that."""
    called_by: str = ""
    """Id of the message of another agent whose call of a tool it answers; empty: of none that learns."""
    user: str = ""
    """The user who began it; empty: the one whose conversation it is."""
    secrets: tuple[str, ...] = ()
    """Digests of 12 bits of the words that its thread has told as secrets until then (`Screen.of_thread`)."""

    @property
    def traceparent(self) -> str:
        """The trace context of its last model call (memory/telemetry.py); empty where it was not traced."""
        return next((str(entry["traceparent"]) for entry in reversed(self.advice) if "traceparent" in entry), "")


@dataclass(frozen=True, slots=True)
class Conversation:
    """The recorded turns of a thread."""

    id: str
    """The thread's id."""
    task: Task
    turns: tuple[Turn, ...]
    domain: str = ""
    user: str = ""
    """The user who began it; empty: not known."""

    def user_of(self, turn: Turn) -> str:
        """The user of one of its turns; empty: not known."""
        return turn.user or self.user

    @property
    def users(self) -> set[str]:
        """The users who took part in it, as far as they are known."""
        return {self.user, *(one.user for one in self.turns)} - {""}


@dataclass(frozen=True, slots=True)
class Rating:
    """Feedback on the turns since the rating before it."""

    turn: str
    """Id of the last turn that it is about."""
    reward: float | None
    """In the app's units; None: only words. Missing is not 0."""
    text: str = ""
    """The words of its source."""
    source: str = "user"
    """Whose reward counts: `user`, or the name of a function or signal."""
    others: dict[str, str] = field(default_factory=dict)
    """Source -> the words of others that have rated the same."""
    earlier: dict[str, float] = field(default_factory=dict)
    """Source -> the newest reward of another one, which counts again where others are taken back."""
    unlearned: dict[str, str] = field(default_factory=dict)
    """Source -> the reason for which its words are not learned until a person lets them in."""
    readers: tuple[str, ...] = ()
    """The sources whose rewards the app has given: of several the low median counts, and no other source's."""
    is_single: bool = False
    """True: it is about that turn alone, not about what came before it."""
    at: str = ""
    """Time of the app's last feedback, UTC, in ISO 8601; empty: a source of rewards or a review has rated it, or an import."""
    whole: str = field(default="", repr=False)
    """The same of the last one that rated several agents as one (`rate_agents`); empty: none has."""

    @property
    def words(self) -> str:
        """The words of all sources that are learned, each with its name where there are several."""
        all_said = {self.source: self.text, **self.others}
        said = {source: text for source, text in all_said.items() if text and source not in self.unlearned}
        has_others = bool(said.keys() - {self.source})
        return "; ".join(f"{source}: {text}" if has_others else text for source, text in said.items())

    @property
    def is_silent(self) -> bool:
        """True if there is nothing to learn from it: neither a reward nor words."""
        return self.reward is None and not self.words


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A conversation that nothing is learned from until it is released."""

    id: str
    """The thread's id."""
    reason: str
    digest: str = ""
    """Of the text that was found; empty where a person or a rule holds the conversation."""
    released: bool = False
    turns: int = 0
    """Number of turns that it had when it was released: `hold` decides anew about later ones."""
    of: tuple[str, ...] = ()
    """Ids of the turns in which it was found: from these and what followed them nothing is learned. Empty: from all."""


def finite_reward(value: Any) -> float:
    """A number of any library as a reward.

    Raises:
        UserError: it is no number, not finite, or too large to compute with.
    """
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        number = math.inf  # a whole number beyond all floats
    if not abs(number) <= MOST_REWARD:
        size = f" of at most {MOST_REWARD:g} in size" if math.isfinite(number) else ""
        raise UserError(f"a reward is a finite number{size}, got {value!r:.40}")
    return number


def turn_of_id(conversation: Conversation, id: str) -> Turn | None:
    """The turn with an id; None: there is none."""
    return next((one for one in conversation.turns if one.id == id), None)


def with_turn(known: Conversation, turn: Turn) -> Conversation:
    """The conversation with a turn, in place of one with its id, of which it keeps what other methods have recorded."""
    if (before := turn_of_id(known, turn.id)) is not None:
        methods = {entry.get("method") for entry in turn.advice}
        others = [entry for entry in before.advice if entry.get("method") not in methods]
        method, states = before.method or turn.method, before.states
        if turn.method != method:
            states = {**states, turn.method: [step.state for step in turn.steps]}
            first = [replace(step, state=one.state) for step, one in zip(turn.steps, before.steps, strict=False)]
            turn = replace(turn, steps=(*first, *turn.steps[len(first) :]))
        user = before.user or turn.user  # a clerk may go on with it
        turn = replace(turn, method=method, states=states, advice=(*others, *turn.advice), user=user)
    turns = [turn if one.id == turn.id else one for one in known.turns]
    return replace(known, turns=tuple(turns if turn in turns else [*turns, turn]))


def with_beginning(turn: Turn, before: Turn, again: int) -> Turn:
    """A turn, of whose messages a summary has taken the first, with its steps as they were recorded before.

    Args:
        turn: the turn by the messages that are left.
        before: the same as it was recorded before.
        again: the number of steps that are in both.
    """
    replies = [one for one in before.replies if one not in turn.replies]
    steps = (*before.steps[: len(before.steps) - again], *turn.steps)
    return replace(turn, steps=steps, replies=(*replies, *turn.replies))


def has_gone_on(known: Conversation, turn: Turn) -> bool:
    """True if a recorded turn had ended, and has further replies now: a run may begin without a user's message, by an event."""
    before = turn_of_id(known, turn.id)
    has_ended = before is not None and bool(before.steps) and before.steps[-1].action.startswith(REPLY)
    return before is not None and has_ended and {*before.replies} < {*turn.replies}


def is_replaced(known: Conversation, turn: Turn) -> bool:
    """True if a recorded turn has a reply that its new record lacks: another run has taken its place."""
    before = turn_of_id(known, turn.id)
    return before is not None and not {*before.replies} <= {*turn.replies}


def with_later_part(known: Conversation, ratings: Sequence[Rating], turn: Turn) -> Turn:
    """A turn that has gone on: where it was rated before that, its later part as a turn of its own."""
    while (before := turn_of_id(known, turn.id)) and has_gone_on(known, turn) and any(one.turn == turn.id for one in ratings):
        mine = sum(entry.get("method") == turn.method for entry in before.advice)
        replies = tuple(one for one in turn.replies if one not in before.replies)
        later: Any = {"steps": turn.steps[len(before.steps) :], "advice": turn.advice[mine:], "replies": replies}
        turn = replace(turn, id=turn.id + CONTINUED, **later)
    return turn


def set_aside(known: Conversation, ratings: Sequence[Rating], turn: Turn) -> tuple[Conversation, tuple[Rating, ...]] | None:
    """The conversation and its ratings with a regenerated turn under an id of its own, so that the new one does not take its place; None:
    none was regenerated.

    A turn is regenerated where the new run does not have its reply.
    """
    before = turn_of_id(known, turn.id)
    if before is None or not before.replies or before.replies[-1] in turn.replies or turn.branch_of:
        return None
    id = f"{before.id}/{before.replies[-1]}"
    turns = [replace(one, id=id) if one is before else one for one in known.turns]
    turns = [replace(one, after=id) if one.after == before.id else one for one in turns]
    return replace(known, turns=tuple(turns)), tuple(replace(one, turn=id) if one.turn == turn.id else one for one in ratings)


def find_predecessor(known: Conversation, turn: Turn, read: frozenset[str]) -> str:
    """`Turn.after` of a turn that is recorded next, by the ids of the messages that the agent has.

    The turn that it follows is the newest of which there is a message. Where there is none of any, a summary has taken their place; or,
    of a sub-agent, the agent that calls it has gone back to its beginning.
    """
    if (again := turn_of_id(known, turn.id)) is not None:
        return again.after
    if not turn.called_by and (twin := next((one for one in reversed(known.turns) if one.id.startswith(f"{turn.id}/")), None)):
        way = turns_until(known, twin.id)
        return way[-2].id if len(way) > 1 else turn.id
    beside = _branches(known)
    turns = [one for one in known.turns if one.id not in beside]
    newest = newest_read(turns, read)
    if newest is None and turn.called_by in read and any(one.called_by for one in turns):
        return turn.id
    return "" if newest is None or newest is turns[-1] or turn.branch_of else newest.id


def newest_read(turns: Sequence[Turn], read: Collection[str]) -> Turn | None:
    """The newest of some turns of which the agent has a message; None: of none.

    Args:
        turns: oldest first.
        read: ids of the messages that the agent has.
    """
    return next(
        (one for one in reversed(turns) if any(id in read for id in (one.called_by, *(one.replies or (one.id,))))), None
    )


def turns_until(conversation: Conversation, turn: str = "") -> list[Turn]:
    """The turns of a thread until one of this id, oldest first, without those that the thread has left by going back in time; empty: all."""
    place = _places(conversation)
    return [*_way_back(conversation, place, place.get(turn, len(place) - 1))][::-1]


def turns_left(conversation: Conversation) -> list[Turn]:
    """The turns that a thread has left by going back in time."""
    stands = {one.id for one in turns_until(conversation)}
    return [one for one in conversation.turns if one.id not in stands]


def turns_under(conversation: Conversation, said: Collection[str]) -> set[str]:
    """Ids of the turns with these ids, and of all that the thread had after them: the agent still read what was said there, or a summary
    of it. The turns before them are not among these, nor those of a way that the thread took without them."""
    found, place = set[str](), _places(conversation)
    for number, one in enumerate(conversation.turns):
        was_said = any(one.id == id or one.id.startswith((f"{id}/", f"{id}{CONTINUED}")) for id in said)
        _, before = [*islice(_way_back(conversation, place, number), 2), None][:2]
        if was_said or (before is not None and before.id in found):
            found.add(one.id)
    return found


def turns_held(conversation: Conversation, known: Quarantine | None) -> set[str]:
    """Ids of the turns of a conversation that nothing is learned from; `known`: its quarantine."""
    if known is None or known.released:
        return set()
    return turns_under(conversation, known.of) if known.of else {one.id for one in conversation.turns}


def _places(conversation: Conversation) -> dict[str, int]:
    return {one.id: n for n, one in enumerate(conversation.turns)}


def _way_back(conversation: Conversation, place: Mapping[str, int], number: int) -> Iterator[Turn]:
    """The turn of a number, and those that its thread had before it, newest first."""
    while number >= 0:
        yield (one := conversation.turns[number])
        before = -1 if one.after == one.id else place.get(one.after, number - 1)
        number = min(before, number - 1)


def rated_trajectories(
    conversation: Conversation, ratings: Sequence[Rating], without: Collection[str] = ()
) -> list[Trajectory]:
    """The rated stretches of a conversation, oldest first. Turns after the last rating belong to none.

    What begins with the conversation is about its task; each later stretch, and each branch, about what the user asked for then.

    Args:
        conversation: its turns.
        ratings: of these.
        without: ids of turns. A stretch that has one of them is left out.
    """
    ratings = [one for one in ratings if not one.is_silent]
    single = {rating.turn: rating for rating in ratings if rating.is_single}
    shared = {rating.turn: rating for rating in ratings if not rating.is_single}
    found, branches = list[Trajectory](), list[tuple[int, Turn]]()
    beside, place = _branches(conversation), _places(conversation)
    since = _turns_of_each(conversation, shared)
    of_all = {one.id: shared[id] for id, turns in since.items() for one in turns}

    def own(turn: str, of_all: Rating | None) -> Rating:
        """The rating of a turn by itself: a comment leaves it the reward of all."""
        alone = single.get(turn) or of_all or Rating(turn, None)
        return alone if alone.reward is not None or of_all is None else replace(alone, reward=of_all.reward)

    def stretch(turns: Sequence[tuple[int, Turn]], rating: Rating) -> list[Trajectory]:
        if any(one.id in without for _, one in turns):
            return []
        parts = groupby(turns, lambda one: conversation.user_of(one[1]))  # what each has taught is his
        return [made for _, part in parts for made in _stretch(conversation, [*part], rating)]

    for number, turn in enumerate(conversation.turns):
        if turn.id in beside:
            branches.append((number, turn))
        elif turn.id in single:
            found += stretch([(number, turn)], own(turn.id, of_all.get(turn.id)))
        if (rating := shared.get(turn.id)) is not None:
            together = [(place[one.id], one) for one in since[turn.id] if one.id not in beside and one.id not in single]
            found += stretch(together, rating) if together else []
            for one in branches:
                found += stretch([one], own(one[1].id, rating))
            branches = []
    for one in branches:
        if (rating := single.get(one[1].id)) is not None:
            found += stretch([one], rating)
    return found


def turns_rated(conversation: Conversation, ratings: Sequence[Rating]) -> list[list[Turn]]:
    """For each rating the turns that it is about, oldest first: all since the rating before but for turns with a rating of their own; or its
    turn alone."""
    single, shared = ({one.turn for one in ratings if one.is_single == kind} for kind in (True, False))
    since = _turns_of_each(conversation, shared)
    alone = {one.id: [one] for one in conversation.turns if one.id in single}
    of_thread = {id: [one for one in turns if one.id not in single] for id, turns in since.items()}
    return [(alone if one.is_single else of_thread).get(one.turn, []) for one in ratings]


def _turns_of_each(conversation: Conversation, shared: Collection[str]) -> dict[str, list[Turn]]:
    """Id of each turn by which feedback on the thread was given -> the turns that it is about: those until it that none before is about."""
    found, rated, place = dict[str, list[Turn]](), set[str](), _places(conversation)
    for id in (one.id for one in conversation.turns if one.id in shared):
        way = list[Turn]()
        for one in _way_back(conversation, place, place[id]):
            if one.id in rated:  # so were all before it
                break
            way.append(one)
        found[id] = way[::-1]
        rated.update(one.id for one in way)
    return found


def others_wait(conversation: Conversation, ratings: Sequence[Rating], turn: str) -> bool:
    """True if a turn before this one has no rating, since the thread was rated last."""
    waits, rated, shared = False, {one.turn for one in ratings}, {one.turn for one in ratings if not one.is_single}
    for one in turns_until(conversation, turn)[:-1]:
        waits = one.id not in rated or (waits and one.id not in shared)
    return waits


def rating_to_change(
    conversation: Conversation,
    given: Sequence[Rating],
    turn: str,
    *,
    of_turn: bool,
    of_message: bool,
    for_others: bool,
    has_reward: bool,
    is_feedback: bool,
) -> Rating:
    """The rating that feedback about a turn changes, one of `given` or a new one.

    Args:
        conversation: the thread.
        given: its ratings.
        turn: id of the turn.
        of_turn: whether the app named the turn or its run.
        of_message: whether it named a reply of the turn, which is rated by itself: a reward is not for the turns that were rated with it.
        for_others: whether feedback on the thread is about the turns that nobody has rated by themselves, where there are any.
        has_reward: whether the feedback has a reward.
        is_feedback: whether it is the app's: a reward of others does not stand before the app's of the turns that were rated together.
    """
    there = {one.is_single: one for one in given if one.turn == turn}
    alone, with_others = there.get(True), there.get(False)
    is_branch = turn in _branches(conversation)
    is_single = of_message or (of_turn and is_branch)
    if is_branch:
        found = alone if is_single else with_others
    elif of_message:
        # A comment leaves a turn the reward of all.
        holding = [one for one in given if not one.is_single or one.reward is not None]
        about = turns_rated(conversation, holding)[holding.index(with_others)] if with_others else []
        is_own = has_reward and len(about) > 1 and (is_feedback or not (with_others and with_others.readers))
        found = alone or (None if is_own else with_others)
    else:
        is_for_others = for_others and alone is not None and alone.at and others_wait(conversation, given, turn)
        found = with_others or (None if is_for_others else alone)
    return found or Rating(turn, None, is_single=is_single)


def with_waiting(conversation: Conversation, given: Sequence[Rating], rating: Rating) -> Rating:
    """The rating that an app gives of a thread whose last turn was rated alone, by a review, say: it is about the unrated turns before it,
    too."""
    is_alone = rating.turn in _branches(conversation) or not others_wait(conversation, given, rating.turn)
    return replace(rating, is_single=rating.is_single and is_alone)


def with_words(
    rating: Rating, source: str, reward: float | None, text: str | None, unlearned: str, *, is_feedback: bool
) -> Rating:
    """A rating after a source has said something further.

    Args:
        reward: in the place of the one that the source gave before; None: it gives none.
        text: the words, in the place of what the source said before; None: it says none.
        unlearned: the reason for which they are not learned; the same words that a person has let in are learned all the same.
        is_feedback: whether it is feedback of the app.
    """
    words = {**rating.others, rating.source: rating.text}
    reasons = {name: why for name, why in rating.unlearned.items() if text is None or name != source}
    if unlearned and (words.get(source) != text or source in rating.unlearned):
        reasons[source] = unlearned
    words |= {} if text is None else {source: text}
    rewards = _rewards(rating, without=source) if reward is not None else _rewards(rating)
    if reward is not None:
        rewards[source] = reward
        if is_feedback and source not in rating.readers:
            rating = replace(rating, readers=(*rating.readers, source))
    return _decided(rating, rewards, words, reasons, source)


def without_source(rating: Rating, source: str) -> Rating | None:
    """The rating after one of its sources has taken back what it had said; None: nothing is left of it."""
    words = {name: said for name, said in {rating.source: rating.text, **rating.others}.items() if said and name != source}
    rewards = _rewards(rating, without=source)
    if not rewards and not words:
        return None
    unlearned = {name: why for name, why in rating.unlearned.items() if name != source}
    rest = replace(rating, readers=tuple(one for one in rating.readers if one != source))
    return _decided(rest, rewards, words, unlearned, next(iter(words), ""))


def _rewards(rating: Rating, without: str = "") -> dict[str, float]:
    """Source -> its newest reward."""
    given = rating.earlier if rating.reward is None else {**rating.earlier, rating.source: rating.reward}
    return {name: reward for name, reward in given.items() if name != without}


def _decided(
    rating: Rating, rewards: dict[str, float], words: dict[str, str], unlearned: dict[str, str], speaker: str
) -> Rating:
    """The rating with the reward that counts of several: the low median of the readers', so that none of them turns what most say; the last
    one where no reader has given any. Without a reward its source is the speaker."""
    heard = {name: reward for name, reward in rewards.items() if name in rating.readers} or dict([*rewards.items()][-1:])
    reward = median_low(heard.values()) if heard else None
    decides = next((name for name in reversed(heard) if heard[name] == reward), speaker)
    earlier = {name: given for name, given in rewards.items() if name != decides}
    others = {name: said for name, said in words.items() if said and name != decides}
    about: Any = {"text": words.get(decides, ""), "others": others, "earlier": earlier, "unlearned": unlearned}
    return replace(rating, reward=reward, source=decides, **about)


def _branches(conversation: Conversation) -> set[str]:
    """Ids of the turns that ran beside each other, as branches of `Send`."""
    return {id for one in conversation.turns if one.branch_of for id in (one.id, one.branch_of)}


def _states(turn: Turn, method: str) -> list[str]:
    """The states of a turn's steps by the `state_key` of a method, or by that of the first one where it has recorded none."""
    own = [*turn.states.get(method, ())][: len(turn.steps)]
    return [*own, *(step.state for step in turn.steps[len(own) :])]


def _stretch(conversation: Conversation, turns: Sequence[tuple[int, Turn]], rating: Rating) -> list[Trajectory]:
    """Some numbered turns as a trajectory with a rating; none where nothing was done in them."""
    if not (steps := [step for _, turn in turns for step in turn.steps]):
        return []
    turns = turns[next(n for n, (_, turn) in enumerate(turns) if turn.steps) :]  # in those before, nothing was done
    task, (first, turn), number = conversation.task, turns[0], turns[-1][0]
    if first > 0 or turn.branch_of:
        task = replace(task, instruction=steps[0].observation_text)
    steps[-1] = replace(steps[-1], reward=rating.reward)
    shown = (one for _, turn in turns for one in turn.advice if one.get("added_tokens"))
    used = dict.fromkeys(id for one in shown for id in one.get("recalled", ()))
    methods = {method for _, turn in turns for method in turn.states}
    states = {one: [state for _, turn in turns for state in _states(turn, one)] for one in sorted(methods)}
    made = Trajectory(f"{conversation.id}/{number}", task, tuple(steps), run=conversation.id, episode=number, used=tuple(used))
    about: Any = {
        "states": states,
        "note": rating.words[:MOST_NOTE_CHARS],
        "user": conversation.user_of(turn),
        "domain": conversation.domain,
    }
    return [replace(made, score=rating.reward or 0.0, **about)]


def join(
    known: Conversation, given: Sequence[Rating], one: Conversation, ratings: Sequence[Rating]
) -> tuple[Conversation, tuple[Rating, ...]]:
    """A conversation with the turns and the ratings of another record of it."""
    turns, same = list(known.turns), dict[str, str]()
    for turn in one.turns:
        there = next((old for old in turns if old.id == turn.id or (turn.run_id and old.run_id == turn.run_id)), None)
        same[turn.id] = turn.id if there is None else there.id
        turns += [turn] if there is None else []
    by_turn = {(rating.turn, rating.is_single): rating for rating in given}
    for rating in ratings:
        rating = replace(rating, turn=same.get(rating.turn, rating.turn))
        old = by_turn.get(place := (rating.turn, rating.is_single))
        if old is not None and (old.text, old.others) == (rating.text, rating.others):
            rating = replace(rating, unlearned=old.unlearned)  # a person may have let the words in
        if old is None or old.source.startswith(IMPORTED) or not rating.source.startswith(IMPORTED):
            by_turn[place] = rating
    places = {turn.id: place for place, turn in enumerate(turns)}
    in_order = sorted(by_turn.values(), key=lambda rating: places.get(rating.turn, -1))
    return replace(known, turns=tuple(turns)), tuple(in_order)


def is_asked(one: Turn, *, turn: str | None = None, run_id: str | None = None, message_id: str | None = None) -> bool:
    """True if a turn has these ids, as far as they are given."""
    return turn in (None, one.id) and run_id in (None, one.run_id) and (message_id is None or message_id in one.replies)


def asked_text(**asked: str | None) -> str:
    """The ids that were asked for, in words."""
    names = {"turn": "turn", "run_id": "run", "message_id": "reply"}
    return " and ".join(f"{names[name]} {id!r}" for name, id in asked.items() if id is not None)


def only_thread(known: Sequence[Conversation], place: str, **asked: str | None) -> str:
    """The one thread that has a turn with these ids, or the only one if none is given; raises UserError where there is none, or several.

    Args:
        known: the conversations; several may be of one thread.
        place: where they are kept, for the error's sake.
        asked: as of `is_asked`.
    """
    found = dict.fromkeys(one.id for one in known if any(is_asked(turn, **asked) for turn in one.turns))
    if len(found) == 1:
        return next(iter(found))
    last = ", ".join(map(repr, [*dict.fromkeys(one.id for one in known)][-3:])) or "none"
    has = f"{len(found) or 'no'} conversations" + (f" with {asked_text(**asked)}" if any(asked.values()) else "")
    raise UserError(f"{place} has {has}: give a thread_id; its last threads are {last}")


def turns_of_run(talks: Sequence[Conversation], **asked: str | None) -> list[list[Turn]]:
    """Of each agent's record of a thread the turns that took part in the one with these ids, or were called in it; raises UserError where
    none has it."""
    if not (found := [turn for talk in talks for turn in talk.turns if is_asked(turn, **asked)]):
        raise UserError(f"none of the agents has {asked_text(**asked)} in thread {talks[0].id!r}")
    ids, said, before = {turn.id for turn in found}, {one for turn in found for one in turn.replies}, -1
    part = list[list[Turn]]()
    while len(said) > before:
        before = len(said)
        part = [
            [turn for turn in talk.turns if turn.replies and (turn.id in ids | said or turn.called_by in said)]
            for talk in talks
        ]
        said |= {one for turns in part for turn in turns for one in turn.replies}
    return part


def turns_meant(
    talks: Sequence[Conversation], given: Sequence[Sequence[Rating]], *, has_reward: bool
) -> list[list[str | None]]:
    """The turns that a rating by the thread's id of several agents is about.

    They are those that nobody has rated by themselves since the feedback before; where there are none, the same as the last rating
    of its kind was about, or those of the last run, where that was rated later by itself; of a comment, too, where that run is rated.

    Args:
        talks: each agent's record of the thread.
        given: the ratings of each.
        has_reward: whether it has a reward; what has only words waits for one.

    Returns:
        Of each agent ids of replies, whose turns alone are rated; None: the turns since the feedback before.

    Raises:
        UserError: it is not known which agent's turn was the last one.
    """
    ends, left = [talk.turns[-1] for talk in talks], {id for talk in talks for one in turns_left(talk) for id in one.replies}
    of_ends = [[one for one in ratings if one.turn == end.id and one.at] for ratings, end in zip(given, ends, strict=True)]
    waiting = list[bool]()
    for talk, ratings, end, of_end in zip(talks, given, ends, of_ends, strict=True):
        said = [one for one in of_end if one.reward is not None or one.whole or not has_reward]
        is_open = not said or (all(one.is_single for one in said) and others_wait(talk, ratings, end.id))
        waiting.append(is_open and end.called_by not in left)
    replies = {id for talk in talks for one in talk.turns for id in one.replies}
    outer = [n for n, end in enumerate(ends) if end.called_by not in replies] or [*range(len(ends))]
    if any(waiting) and (has_reward or not all(of_ends[n] for n in outer)):
        return [[None] if waits else [] for waits in waiting]
    last = max((one.whole for ratings in given for one in ratings), default="")
    if last and not any(one.at > last != one.whole for n in outer for one in of_ends[n]):
        about = list[list[str | None]]()
        for talk, ratings in zip(talks, given, strict=True):
            alone = {one.turn: one.is_single for one in ratings if one.whole == last}
            about.append([one.replies[-1] if alone[one.id] else None for one in talk.turns if one.id in alone])
        return about
    if len({ends[n].id for n in outer}) > 1:
        raise UserError(
            f"all turns of thread {talks[0].id!r} are rated, and which agent had the last one is not known: name it by message_id= or run_id="
        )
    return [[one.replies[-1] for one in turns] for turns in turns_of_run(talks, turn=ends[outer[0]].id)]


def find_turn(conversation: Conversation, **asked: str | None) -> Turn:
    """The turn with these ids, or the last one if none is given; raises UserError where there is none."""
    while (turn := asked.get("turn")) and any(one.id == turn + CONTINUED for one in conversation.turns):
        asked["turn"] = turn + CONTINUED
    for one in reversed(conversation.turns):
        if is_asked(one, **asked):
            return one
    last = conversation.turns[-3:]
    if not last:
        raise UserError(f"conversation {conversation.id!r} has no turn that could be rated")
    known = [
        id for one in last for id in (one.replies if asked.get("message_id") else [one.id if asked.get("turn") else one.run_id])
    ]
    said = ", ".join(repr(id) for id in known if id) or "none: a run has an id where its config gives one, {'run_id': uuid4()}"
    raise UserError(f"conversation {conversation.id!r} has no {asked_text(**asked)}; its last ones are {said}")
