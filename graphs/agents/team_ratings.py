"""One rating of all agents that took part in a thread: a supervisor and its sub-agents, each with a learner of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from ...memory.conversations.store import ConversationStore
from ...memory.conversations.turns import (
    CONTINUED,
    Conversation,
    Rating,
    Turn,
    only_thread,
    turns_meant,
    turns_of_run,
)
from ...memory.errors import UserError, did_you_mean
from ...nodes.arguments import checks_arguments
from .scope_values import ScopeValue, ThreadId
from .scopes import ScopedLearner

__all__ = ["rate_agents"]

_AgentTurns = tuple[ScopedLearner[Any], tuple[str, ...], Conversation, tuple[Rating, ...]]


def _kept_of(learner: ScopedLearner[Any], scope: Mapping[str, Any]) -> tuple[ConversationStore, str]:
    """A learner's conversations by its own values of a scope, and the user among these."""
    names = (*learner.scope.names, *learner.user.names)
    own, user = learner._split_user({name: value for name, value in scope.items() if name in names})
    return learner._memory(learner._labels(own)).conversations, user


def _agent_turns(
    learners: Sequence[ScopedLearner[Any]],
    thread_id: ThreadId | None,
    source: str,
    scope: Mapping[str, Any],
    **asked: str | None,
) -> list[_AgentTurns]:
    """The turns of a thread by agent, each with the labels of its scope and the ratings; without agents that took no part."""
    known = {name for one in learners for name in (*one.scope.names, *one.user.names)}
    if unknown := [name for name in scope if name not in known]:
        raise UserError(
            f"rate_agents: no learner has {unknown[0]!r} in its scope{did_you_mean(unknown[0], known, 'they have')}"
        )
    names = ", ".join(one.agent.name for one in learners) or "(none)"
    if thread_id is None:
        talks = [talk for one in learners for talk in _kept_of(one, scope)[0].turns.all()]
        thread_id = only_thread(talks, f"the memory of {names}", **asked)
    rows, thread = list[_AgentTurns](), str(thread_id)
    for one in learners:
        one.check_source(source)
        kept, user = _kept_of(one, scope)
        if (talk := kept.turns.get(thread)) is not None:
            one._check_user(talk, user, **asked)
            rows.append((one, kept.scope, talk, kept.ratings(talk.id)))
    if not rows:
        raise UserError(f"rate_agents: thread {thread!r} is recorded of none of the agents {names} in this scope")
    return rows


def _ended_turns(rows: list[_AgentTurns]) -> list[_AgentTurns]:
    """The turns of a thread by agent without those at work, and those called in these; as it was where nothing is at work, or nothing else
    is recorded."""
    gone, before = {turn for one, labels, talk, _ in rows for turn in one._turns_at_work(labels, talk.id)}, 0

    def is_gone(turn: Turn) -> bool:
        return not gone.isdisjoint((turn.id.rstrip(CONTINUED), turn.called_by))

    while len(gone) > before:
        before = len(gone)
        gone |= {reply for row in rows for turn in row[2].turns if is_gone(turn) for reply in turn.replies}
    ended = [
        (one, labels, replace(talk, turns=tuple(turn for turn in talk.turns if not is_gone(turn))), ratings)
        for one, labels, talk, ratings in rows
    ]
    return [row for row in ended if row[2].turns] or rows if gone else rows


@checks_arguments
def rate_agents(
    learners: Sequence[ScopedLearner[Any]],
    thread_id: ThreadId | None = None,
    *,
    reward: float | None = None,
    text: str | None = None,
    run_id: str | UUID | None = None,
    message_id: str | None = None,
    source: str = "user",
    **scope: ScopeValue,
) -> dict[str, Rating]:
    """Rate all agents that took part in a thread since the feedback before this: a supervisor and its sub-agents, say.

    By the thread's id, a rating is about the turns that nobody has rated by themselves; a second one, of a comment after a thumb, about the
    same turns. Where all turns are rated, and the last run by itself after all others, it is about that run; so is a comment where the last
    run is rated. Turns that are at work in this process are left out, as by `feedback`.

    Args:
        learners: of the agents. Each is told its own values of the scope.
        thread_id: the outer thread's id, which sub-agents have as well. Not given: that of the run or the reply, or the only one.
        reward: as of `ScopedLearner.feedback`.
        text: as of `ScopedLearner.feedback`.
        run_id: id of the outer agent's run: the turns of all agents that it called are rated, and no others.
        message_id: id of the outer agent's reply under which a thumb stands: the same, each turn by itself.
        source: who says so.
        scope: the values of the scopes.

    Returns:
        Agent's name -> its rating.

    Raises:
        UserError: none of the agents took part or has the run or the reply, what was said is no feedback, or all turns are rated and it is
            not known which was the last.
    """
    asked = {"run_id": None if run_id is None else str(run_id), "message_id": message_id}
    rows = _agent_turns(learners, thread_id, source, scope, **asked)
    at = datetime.now(UTC).isoformat()
    by_thread, known = message_id is None and run_id is None, rows
    rows = _ended_turns(rows) if by_thread else rows
    talks = [talk for _, _, talk, _ in rows]
    if by_thread:
        about = turns_meant(talks, [ratings for *_, ratings in rows], has_reward=reward is not None)
    else:
        about = [[turn.replies[-1] for turn in turns] for turns in turns_of_run(talks, **asked)]
    given: dict[str, Any] = {"source": source, "at": at, "of_whole": by_thread}
    return {
        one.agent.name: one._take_rating(
            labels,
            talk.id,
            reward,
            text,
            message_id=reply,
            turn=talk.turns[-1].id if rows is not known and reply is None else None,
            **given,
        )
        for (one, labels, talk, _), replies in zip(rows, about, strict=True)
        for reply in replies
    }
