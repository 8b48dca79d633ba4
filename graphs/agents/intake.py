"""The door through which conversations that were had elsewhere come into an agent's memory: the screen, the origins and the scale of rewards
of its own.

    learner.import_conversations(source)      a service that traces agents, or its export (tools/traces/)
    learner.import_trajectories(path)         what another learner has exported
"""

import asyncio
import inspect
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from langchain_core.messages import AnyMessage, HumanMessage

from ...memory.conversations.messages import StateKey, last_user_message
from ...memory.conversations.recorded import ConversationSource, RecordedConversation
from ...memory.conversations.screen import Screen, Suspicion
from ...memory.conversations.store import ConversationStore, ExportedConversation
from ...memory.conversations.turns import IMPORTED, Conversation, Rating, Turn, finite_reward
from ...memory.display import with_interval
from ...memory.errors import UserError, plural
from ...memory.records import Task, Trajectory
from ...memory.storage.record_store import BadRecord, read_jsonl
from ...nodes.arguments import arguments_of, check_value
from .agent_identity import DOMAIN
from .lift import measure_lift
from .reward_sources import RewardScale, RewardSource, describe_source, read_reward
from .scope_values import AgentScope

__all__ = ["ImportReport", "Intake"]

LOG = logging.getLogger(__name__)


@dataclass
class ImportReport:
    """The outcome of an import."""

    read: int = 0
    """Conversations that were read, or runs of the agent."""
    rated: int = 0
    unrated: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason -> number of the ones that are not taken in, or whose feedback is not."""
    learned: int = 0
    """Rated stretches of them that are learned from; of a dry run 0."""
    written: tuple[str, ...] = ()
    """Scores that were written back, in words."""

    def __str__(self) -> str:
        said = [f"read {plural(self.read, 'trace')}: {self.rated} with a reward or words, {self.unrated} without"]
        said += [f"  left out, {plural(count, 'time')}: {reason}" for reason, count in self.left_out.most_common()]
        return "\n".join([*said, *self.written])


class Admitted(NamedTuple):
    """A conversation as it is kept."""

    conversation: Conversation
    ratings: tuple[Rating, ...]
    suspicion: Suspicion | None
    """The reason for which it is quarantined first."""


@dataclass(frozen=True)
class Intake:
    """The rules by which a learner takes conversations in; the fields are its own."""

    screen: Screen
    rewards: RewardScale
    state_key: StateKey
    listed: Mapping[str, Collection[str]]
    task: Callable[[Sequence[AnyMessage]], str] | None
    check_source: Callable[[str], None]
    user: AgentScope

    def read(
        self, found: Iterable[RecordedConversation], rater: str, judge: RewardSource | None, scope: Mapping[str, Any]
    ) -> tuple[list[Admitted], ImportReport]:
        """Recorded conversations as they are kept, without those that are of another scope or cannot be read."""
        kept, report = list[Admitted](), ImportReport()
        for one in found:
            for name, hint in arguments_of(RecordedConversation).items():
                check_value(f"{type(one).__name__}: {name}", getattr(one, name), hint)
            report.read += 1
            elsewhere = _other_values(one.metadata, scope)
            if elsewhere or one.problem:
                report.left_out[[*elsewhere, one.problem][0]] += 1
            if elsewhere or not one.messages:
                continue
            if (admitted := self._admit(one, rater, judge, report)) is None:
                report.left_out["the agent did nothing in it"] += 1
                continue
            kept.append(admitted)
            report.rated += bool(admitted.ratings)
            report.unrated += not admitted.ratings
        return kept, report

    def _admit(
        self, one: RecordedConversation, rater: str, judge: RewardSource | None, report: ImportReport
    ) -> Admitted | None:
        messages: list[Any] = list(one.messages)
        start = last_user_message(messages) if one.trace else 0
        if not (done := self.screen.steps(messages, self.state_key, start, self.listed)):
            return None
        goal = next((str(message.text) for message in messages if isinstance(message, HumanMessage)), "")
        turn = Turn(str(getattr(messages[start], "id", None) or one.trace or "turn 1"), done, one.trace)
        task = Task(self.task(messages) if self.task else DOMAIN, self.screen.of_thread(messages).redact(goal))
        user = "".join(self.user.labels(dict.fromkeys(self.user.names, one.user))) if one.user else ""
        found, ratings = self.screen.suspicion_in(messages), tuple[Rating, ...]()
        try:
            if judge is not None:
                said = judge(messages)
                said = read_reward(judge, asyncio.run(said) if inspect.iscoroutine(said) else said)
                one, rater = replace(one, reward=said and said[0], note=said[1] if said else ""), describe_source(judge)
            ratings = self._ratings(one, turn.id, f"{IMPORTED} {rater}")
        except UserError as error:
            report.left_out[str(error)] += 1
        return Admitted(Conversation(one.id, task, (turn,), DOMAIN, user), ratings, found)

    def _ratings(self, one: RecordedConversation, turn: str, source: str) -> tuple[Rating, ...]:
        if one.reward is None and not one.note:
            return ()
        self.check_source(source)
        reward = None if one.reward is None else self.rewards.read(one.reward)
        return (self._screen_words(Rating(turn, reward, one.note, source)),)

    def _screen_words(self, rating: Rating) -> Rating:
        """A rating with its words as they are kept, and the reason beside those that are not learned."""
        said, redact = {rating.source: rating.text, **rating.others}, self.screen.redact
        unlearned = {source: found.reason for source, text in said.items() if (found := self.screen.suspicion(text))}
        others = {source: redact(text) for source, text in rating.others.items()}
        return replace(rating, text=redact(rating.text), others=others, unlearned=rating.unlearned | unlearned)

    def read_file(self, path: str | os.PathLike[str], scope: Mapping[str, Any]) -> list[Admitted]:
        """Exported conversations or trajectories as they are kept: without what only tools said. The ones in quarantine or of another
        scope are left out."""
        kept, left_out = [], Counter[str]()
        for line, one, ratings, own in _exported(path):
            if elsewhere := _other_values(own, scope):
                left_out[elsewhere[0]] += 1
                continue
            try:
                for step in (step for turn in one.turns for step in turn.steps):
                    finite_reward(step.reward or 0.0)
                if wrong := [one for one in (finite_reward(rating.reward or 0.0) for rating in ratings) if not -1 <= one <= 1]:
                    raise UserError(f"a file has rewards as an export has them, from -1 to 1; got {wrong[0]:g}")
            except UserError as error:
                raise UserError(f"{path}, line {line}: {error}") from error
            kept.append(self._adopt(one, ratings))
        for why, count in left_out.items():
            words = "%s of %s left out: %s in `scope`; import them under that value, or delete `scope` from the rows to give them away"
            LOG.warning(words, plural(count, "conversation"), path, why)
        return kept

    def _adopt(self, one: Conversation, ratings: Sequence[Rating]) -> Admitted:
        """An exported conversation as one of this agent's; its steps are told again as one talk, for each knows what was read before."""
        done, spoken = self.screen.retell([step for turn in one.turns for step in turn.steps], self.listed)
        told, turns = iter(done), list[Turn]()
        for turn in one.turns:
            steps = [next(told) for _ in turn.steps]
            turns.append(Turn(turn.id, tuple(step for step in steps if step is not None), turn.run_id, user=turn.user))
        found = self.screen.suspicion(*spoken, one.task.instruction)
        task = Task(one.task.id if self.task else DOMAIN, self.screen.redact(one.task.instruction), one.task.seed)
        rated = tuple(map(self._screen_words, ratings))
        suspicion = found and found._replace(reason=f"what was imported {found.reason}")
        return Admitted(replace(one, task=task, turns=tuple(turns), domain=DOMAIN), rated, suspicion)


def _other_values(given: Mapping[str, Any], scope: Mapping[str, Any]) -> list[str]:
    """The values of a recorded run that differ from a scope's, in words; a run that gave none may be of any."""
    found = {name: given.get(name) or value for name, value in scope.items()}
    return [f"its {name} is {value!r}" for name, value in found.items() if str(value) != str(scope[name])]


def _exported(
    path: str | os.PathLike[str],
) -> Iterator[tuple[int, Conversation, Sequence[Rating], Mapping[str, str | None]]]:
    """The conversations of a file, each with its line, its ratings and the values of its scope."""
    try:
        for line, one in read_jsonl(ExportedConversation, path):
            if one.quarantine is None or one.quarantine.released:
                yield line, Conversation(one.id, one.task, one.turns, one.domain, one.user), one.ratings, one.scope
    except BadRecord as wrong:
        try:
            rows = read_jsonl(Trajectory, path)
        except BadRecord as error:
            raise min((wrong, error), key=lambda one: "no such field" in str(one)) from None  # which of both it was to be
        for line, old in rows:  # each is a turn of its run's conversation
            thread, turn = old.run or old.id.rpartition("/")[0], Turn(old.id, old.transitions)
            ratings = [Rating(old.id, step.reward, old.note, IMPORTED) for step in old.transitions[-1:]]
            yield line, Conversation(thread, old.task, (turn,), old.domain, old.user), ratings, {}


def days_before(at: str, days: float) -> str:
    """A time (ISO 8601) some days before another one, in UTC; empty where that is."""
    try:
        return (datetime.fromisoformat(at).astimezone(UTC) - timedelta(days=days)).isoformat() if at else ""
    except ValueError as error:
        raise UserError(f"a time is written as 2026-11-01 or 2026-11-01T12:00:00+01:00, got {at!r}") from error


def write_lift(source: ConversationSource, kept: ConversationStore, traces: Mapping[str, str]) -> tuple[str, ...]:
    """Write the lift of each method's memory as a score on the last trace of its newest trial's thread; returns that in words."""
    said, trials = [], kept.trials.all()
    for method in sorted({one.id.partition("/")[0] for one in trials}):
        known = [one for one in trials if one.id.startswith(f"{method}/") and traces.get(one.thread)]
        if (row := measure_lift(kept, method).memory) is not None and known:
            trace, name = traces[max(known, key=lambda one: one.at).thread], f"learngraph.lift.{method}"
            lift = f"{with_interval(row.lift, row.interval)} over {plural(row.trials, 'conversation')}, {row.without} without advice"
            source.write_score(trace, name, row.lift, f"{lift}; 95 % at any time")
            said.append(f"wrote {name} on trace {trace}: {lift}")
    return tuple(said) or ("no lift was written back: none of these conversations is a rated trial of control=",)
