"""The picture of a memory."""

import pytest

from learngraph.graphs.wiring import memory_picture, picture
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


def test_graphviz_draws_it_on_this_machine(memory: Experiences) -> None:
    pytest.importorskip("pygraphviz")
    svg = memory_picture.picture_memory(memory).svg()
    assert svg.startswith("<svg")
    assert "north: 2 x, 2" in svg
    assert "You are in the hall (2)" in svg
    assert "It is &lt;dark&gt;." in svg


def test_without_graphviz_it_is_mermaid_text(memory: Experiences, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "has_graphviz", lambda: False)
    shown = memory_picture.picture_memory(memory)._repr_mimebundle_()
    assert set(shown) == {"text/markdown", "text/plain"}


def walk(number: int, *steps: tuple[str, str, float | None]) -> Trajectory:
    return Trajectory(f"r/{number}", Task("t", "do"), tuple(Transition(*step) for step in steps), "r", number)


def test_arrows_have_visits_and_mean_returns() -> None:
    memory = Experiences(gamma=0.5)
    memory.add(walk(0, ("hall", "north", 0.0), ("room", "take", 4.0)))
    memory.add(walk(1, ("hall", "look", 0.0), ("hall", "north", 0.0), ("room", "take", 8.0)))
    found = memory_picture.picture_memory(memory)
    assert found.states == ("hall", "room")
    assert found.arrows == (
        memory_picture.RememberedArrow("hall", "north", "room", 2, 3.0),
        memory_picture.RememberedArrow("room", "take", "", 2, 6.0),
        memory_picture.RememberedArrow("hall", "look", "hall", 1, 2.0),
    )


def test_an_action_with_two_outcomes_has_two_arrows_and_a_missing_step_ends_one() -> None:
    """The middle step of the second episode has no return, and so leaves no experience: what followed the first is unknown."""
    memory = Experiences(gamma=0.0)
    memory.add(walk(0, ("hall", "north", 0.0), ("room", "take", 1.0)))
    memory.add(walk(1, ("hall", "north", 0.0), ("pit", "climb", None), ("room", "take", 1.0)))
    memory.add(walk(2, ("hall", "north", 0.0), ("pit", "climb", 0.0)))
    found = {(arrow.action, arrow.following): arrow.visits for arrow in memory_picture.picture_memory(memory).arrows}
    assert found == {("north", "room"): 1, ("north", ""): 1, ("north", "pit"): 1, ("take", ""): 2, ("climb", ""): 1}
