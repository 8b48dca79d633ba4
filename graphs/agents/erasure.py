"""The conversations that all agents of a store keep of a tenant or a user: to find them, and to erase them by one call.

Each agent has its own copies of what it was told, in a memory for each of its scopes, and may name fewer values in `scope=` than
another one: a user is a part of the scope here, and a name beside each conversation there (`user=`).
"""

from collections.abc import Collection, Iterator

from langgraph.store.base import BaseStore

from ...memory.conversations.store import ConversationStore
from ...memory.conversations.write_queue import WriteQueue, queue_of
from ...memory.errors import Unavailable, plural
from ...memory.lessons.versions import LibraryVersions
from ...memory.storage.stored_rows import StoredRows
from .agent_identity import AgentIdentity
from .scope_values import ROOT

__all__ = ["check_written", "comparisons_with", "erase_scope", "find_scopes"]


def find_scopes(agent: AgentIdentity, wanted: Collection[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The scopes of all agents of the store that may have conversations with these values.

    Args:
        wanted: labels, such as `tenant=acme` and `user_id=ann`.

    Returns:
        The labels of each scope, and the user whose conversations are meant; empty: all of it.
    """
    waiting = [(*one, "turns") for one in agent.queue.failed_scopes((ROOT,))]
    for *labels, kind in dict.fromkeys([*agent.namespaces((ROOT,)), *waiting]):
        names = {label.partition("=")[0] for label in labels[2:]}
        beside = [label for label in wanted if label not in labels[2:]]
        if kind == "turns" and len(beside) <= 1 and not any(label.partition("=")[0] in names for label in beside):
            yield tuple(labels), "".join(beside)


def check_written(queue: WriteQueue, labels: tuple[str, ...], user: str) -> None:
    """Raise Unavailable while writes of a scope wait of which it is not known whether they are this user's; empty: all are meant."""
    if user and (failed := queue.count_failed(labels)):
        raise Unavailable(
            f"{plural(failed, 'write')} that may be of {user} failed, and would bring back what is forgotten: ask again once the store has taken them"
        )


def erase_scope(store: BaseStore, labels: tuple[str, ...], user: str) -> int:
    """Delete what an agent keeps in a scope of a user, or of all (empty); returns the number of conversations deleted."""
    check_written(queue := queue_of(store), labels, user)
    if not user:
        queue.drop_failed(labels, None)
    kept = ConversationStore(store, labels)
    threads = [one.id for one in kept.turns.all() if not user or user in one.users]
    if not threads:
        return 0
    erase_comparisons(store, labels, comparisons_with(kept, threads))
    return kept.forget(threads if user else None)


def erase_comparisons(store: BaseStore, labels: tuple[str, ...], groups: Collection[str]) -> None:
    """Take the lessons of comparisons with these names out of all versions of a scope's library."""
    if groups:
        LibraryVersions(rows=StoredRows(store, (*labels, "library"))).erase([f"{group}/1" for group in groups])


def comparisons_with(kept: ConversationStore, threads: Collection[str] | None) -> set[str]:
    """Names of the comparisons, whose lessons are in a library, that one of these threads, or any, was in."""
    notes = [
        one for one in kept.reflections.all() if one.id.startswith("lessons/") and (threads is None or one.thread in threads)
    ]
    return {group for one in notes if (group := one.note.partition(" ")[2])}
