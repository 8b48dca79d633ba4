"""The graph of what a memory has learned."""

from learngraph.memory.records import Task, Trajectory, Transition
from learngraph.memory.returns.experiences import Experiences
from learngraph.memory.returns.transition_graph import RememberedArrow, transition_graph


def walk(number: int, *steps: tuple[str, str, float | None]) -> Trajectory:
    return Trajectory(f"r/{number}", Task("t", "do"), tuple(Transition(*step) for step in steps), "r", number)


def test_arrows_have_visits_and_mean_returns() -> None:
    memory = Experiences(gamma=0.5)
    memory.add(walk(0, ("hall", "north", 0.0), ("room", "take", 4.0)))
    memory.add(walk(1, ("hall", "look", 0.0), ("hall", "north", 0.0), ("room", "take", 8.0)))
    found = transition_graph(memory)
    assert found.states == ("hall", "room")
    assert found.arrows == (
        RememberedArrow("hall", "north", "room", 2, 3.0),
        RememberedArrow("room", "take", "", 2, 6.0),
        RememberedArrow("hall", "look", "hall", 1, 2.0),
    )
    often = transition_graph(memory, least_visits=2)
    assert [(arrow.state, arrow.action) for arrow in often.arrows] == [("hall", "north"), ("room", "take")]


def test_an_action_with_two_outcomes_has_two_arrows_and_a_missing_step_ends_one() -> None:
    """The middle step of the second episode has no return, and so leaves no experience: what followed the first is unknown."""
    memory = Experiences(gamma=0.0)
    memory.add(walk(0, ("hall", "north", 0.0), ("room", "take", 1.0)))
    memory.add(walk(1, ("hall", "north", 0.0), ("pit", "climb", None), ("room", "take", 1.0)))
    memory.add(walk(2, ("hall", "north", 0.0), ("pit", "climb", 0.0)))
    found = {(arrow.action, arrow.following): arrow.visits for arrow in transition_graph(memory).arrows}
    assert found == {("north", "room"): 1, ("north", ""): 1, ("north", "pit"): 1, ("take", ""): 2, ("climb", ""): 1}
