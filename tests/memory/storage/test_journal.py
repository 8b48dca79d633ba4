"""The journal: histories that are kept from step to step are those that its rows hold."""

from pathlib import Path

import pytest

from learngraph.memory.records import Transition
from learngraph.memory.storage import journal as module
from learngraph.memory.storage.branches import Branch, new_moment
from learngraph.memory.storage.journal import Journal, JournalError


def play(journal: Journal, head: str, actions: str) -> list[str]:
    """The heads of an episode."""
    heads = [head]
    for n, action in enumerate(actions):
        heads.append(journal.append(heads[-1], Transition(f"state {n}", action, float(n))))
    return heads


def actions(journal: Journal, head: str, last: int | None = None) -> str:
    """The actions of a history."""
    return "".join(step.action for step in journal.history(head, last))


def test_a_step_reads_one_row_however_long_the_episode_is(monkeypatch: pytest.MonkeyPatch) -> None:
    journal, head, read = Journal(), "run/0/task", []
    rows = type(journal._rows)
    get = rows.get
    monkeypatch.setattr(rows, "get", lambda self, id: read.append(id) or get(self, id))
    counts = []
    for n in range(300):
        head = journal.append(head, Transition(f"state {n}", "on", 0.0))
        read.clear()
        assert len(journal.history(head)) == n + 1
        assert journal.history(head) is journal.history(head)
        counts.append(len(read))
    assert set(counts[1:]) == {3}  # a row for each of the three questions


def test_forks_and_episodes_that_take_turns_have_their_own_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HISTORIES", 2)
    journal = Journal()
    first, second, third = (play(journal, f"run/{n}/task", "abc") for n in range(3))
    for n in range(1, 4):
        for heads in (first, second, third):
            assert actions(journal, heads[n]) == "abc"[:n]
    fork = play(journal, first[1], "xy")
    assert [actions(journal, head) for head in (fork[2], first[3], fork[1], first[1], first[0])] == [
        "axy",
        "abc",
        "ax",
        "a",
        "",
    ]
    assert actions(journal, fork[2], last=2) == "xy"
    assert len(journal._histories) == 2


def test_a_reopened_journal_and_one_without_the_step(tmp_path: Path) -> None:
    heads = play(Journal(tmp_path / "steps.jsonl"), "run/0/task", "abc")
    again = Journal(tmp_path / "steps.jsonl")
    assert again.history(heads[3]) == tuple(Transition(f"state {n}", action, float(n)) for n, action in enumerate("abc"))
    with pytest.raises(JournalError, match="has no step"):
        Journal().history(heads[3])


def test_a_history_of_a_branch_is_not_seen_outside_it() -> None:
    journal = Journal()
    heads = play(journal, "run/0/task", "ab")
    branch = Branch(new_moment())
    with branch.play():
        other = play(journal, heads[2], "c")
        assert actions(journal, other[1]) == "abc"
    with pytest.raises(JournalError, match="has no step"):
        journal.history(other[1])
    assert actions(journal, heads[2]) == "ab"
