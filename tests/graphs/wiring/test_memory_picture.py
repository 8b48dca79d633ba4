"""The picture of a memory."""

import pytest

from learngraph.graphs.wiring import memory_picture
from learngraph.memory.records import Task, Trajectory, Transition
from learngraph.memory.returns.experiences import Experiences


@pytest.fixture
def memory() -> Experiences:
    remembered = Experiences(gamma=0.5)
    for number, action in enumerate(("north", "north", "wait")):
        steps = (
            Transition("You are in the hall. It is <dark>.", action, 0.0),
            Transition("You are in the hall. It is light.", "take", 4.0),
        )
        remembered.add(Trajectory(f"r/{number}", Task("t", "do"), steps, "r", number))
    return remembered


def test_states_are_boxes_and_remembered_actions_arrows(memory: Experiences) -> None:
    shown = memory_picture.picture_memory(memory)
    assert shown.mermaid() == (
        "flowchart TD\n"
        '  s0["You are in the hall (1)"]\n'
        '  s1["You are in the hall (2)"]\n'
        '  s0 -->|"north: 2 x, 2"| s1\n'
        '  s1 -->|"take: 3 x, 4"| end\n'
        '  s0 -->|"wait: 1 x, 2"| s1\n'
    )
    assert "wait" not in memory_picture.picture_memory(memory, least_visits=2).mermaid()


def test_graphviz_draws_it_on_this_machine(memory: Experiences) -> None:
    pytest.importorskip("pygraphviz")
    svg = memory_picture.picture_memory(memory).svg()
    assert svg.startswith("<svg")
    assert "north: 2 x, 2" in svg
    assert "You are in the hall (2)" in svg
    assert "It is &lt;dark&gt;." in svg


def test_without_graphviz_it_is_mermaid_text(memory: Experiences, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_picture, "has_graphviz", lambda: False)
    shown = memory_picture.picture_memory(memory)._repr_mimebundle_()
    assert set(shown) == {"text/markdown", "text/plain"}
