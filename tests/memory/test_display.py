"""Memories show themselves as searchable tables, and say why something is recalled."""

import re
from pathlib import Path
from typing import Any

import pytest

from learngraph.memory.attempts.buffer import Buffer
from learngraph.memory.attempts.trajectories import Trajectories
from learngraph.memory.claas.replay import Replay
from learngraph.memory.display import MAX_ROWS, Table, make_table
from learngraph.memory.lessons.by_task import Lessons
from learngraph.memory.lessons.library import Library
from learngraph.memory.lessons.versions import LibraryVersions
from learngraph.memory.records import ChatRequest, Exchange, Feedback, Lesson, Reply, Task, Trajectory, Transition
from learngraph.memory.returns.experiences import Experiences
from learngraph.memory.storage.branches import Branch
from learngraph.memory.storage.journal import Journal


def episode(n: int, action: str = "<b>open</b>", reward: float | None = 1.0) -> Trajectory:
    steps = (Transition("door red", action, reward), Transition(f"hall {n}", "wait", 0.5))
    return Trajectory(f"r/{n}", Task("t", "leave & lock"), steps, "r", n, 1.5, "toy")


def filled(memory: Any) -> Any:
    for n in range(6):
        memory.add(episode(n))
    return memory


def journal() -> Journal:
    made, head = Journal(), Journal.start("r", 0, "t")
    for n in range(9):
        head = made.append(head, Transition(f"door {n}", "<b>open</b>", 1.0))
    return made


def lessons() -> Lessons:
    made = Lessons()
    made.add([Lesson(f"r/{n}/0", "<b>open</b> it", instruction=f"leave room {n}", success=True) for n in range(9)])
    return made


def versions() -> LibraryVersions:
    made = LibraryVersions()
    for n in range(9):
        made.put(f"v{n}", Library((Lesson(f"L{n}", "<b>open</b> it"),)), why="<b>open</b>")
    made.move("v3")
    return made


MEMORIES = {
    "experiences": lambda: filled(Experiences()),
    "trajectories": lambda: filled(Trajectories()),
    "buffer": lambda: filled(Buffer()),
    "lessons": lessons,
    "versions": versions,
    "library": lambda: Library(tuple(Lesson(f"L{n}", "<b>open</b> it") for n in range(9))),
    "journal": journal,
    "trajectory": lambda: episode(0),
}


@pytest.mark.parametrize("name", MEMORIES)
def test_a_memory_shows_itself_without_anything_from_elsewhere(name: str) -> None:
    memory: Any = MEMORIES[name]()
    page = memory._repr_html_()
    assert "<b>open" not in page
    assert not re.search(r"(src|href|url)\s*[=(]|https?:", page)
    rows = page.count("<tr") - 1
    assert rows == len(memory.table().rows) > 0
    assert ('type="search"' in page) is (rows >= 8)
    assert str(memory.table()).count("\n") == rows + 1
    assert "open" in page or name == "trajectories"


def test_the_current_version_is_highlighted_and_reprs_count() -> None:
    table = versions().table()
    assert [table.rows[n][0] for n in table.marked] == ["v3"]
    assert repr(versions()) == "LibraryVersions(9 versions)"
    assert repr(journal()) == "Journal(9 steps)"


def test_why_experiences_are_recalled() -> None:
    memory = filled(Experiences(gamma=0.0))
    memory.add(episode(6, "kick", 3.0))
    memory.add(episode(7, "wait", None))
    table = memory.recall_table("door red", 1, task="t", domain="toy")
    rows = [dict(zip(table.head, row, strict=True)) for row in table.rows]
    assert rows[0] == {
        "similarity": "1",
        "action": "<b>open</b>",
        "visits": "6",
        "mean return": "1",
        "age in episodes": "2",
        "remembered state": "door red",
    }
    assert (rows[1]["action"], rows[1]["mean return"], rows[1]["age in episodes"]) == ("kick", "3", "1")


def test_why_trajectories_and_lessons_are_recalled() -> None:
    memory = filled(Trajectories())
    table = memory.recall_table("goal: leave & lock\nstate: door red", 2, domain="toy")
    assert table.rows[0] == ("1", "<b>open</b>", "1.5", "0", "r/5, step 0", "door red")
    assert lessons().recall_table("leave room 3", 1).rows[0] == ("1", "<b>open</b> it", "5", "leave room 3")


def test_a_branch_shows_its_own() -> None:
    memory = filled(Experiences())
    with Branch().play():
        memory.add(episode(6, "kick"))
        assert "kick" in memory._repr_html_()
    assert "kick" not in memory._repr_html_()


def test_feedback_on_served_replies(tmp_path: Path) -> None:
    replay = Replay(tmp_path / "r.sqlite")
    reply = Reply("Hello!", (1, 2), (7, 8), (-0.5, -0.25))
    replay.append(Exchange("e1", "acme", ChatRequest(({"role": "user", "content": "Hi"},)), reply, base="b", created=5.0))
    assert replay.table("acme").rows[0][:5] == ("e1", "Hello!", "", "", "pending")
    replay.add_feedback("acme", "e1", Feedback(-1.0, "ruder"))
    assert replay.table("acme").rows[0][2:4] == ("-1", "ruder")


def test_long_tables_say_what_is_left_out() -> None:
    table = make_table("all", ("n",), ([n] for n in range(2 * MAX_ROWS)), 2 * MAX_ROWS)
    assert (len(table.rows), table.title) == (500, "all, the first 500 of 1000")
    assert "search 500 rows" in table._repr_html_()
    assert str(Table(("a", "b"), (("x\ny", "z"),), title="t")) == "t\n  a    b\n  x y  z"
