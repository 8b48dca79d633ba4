"""Two walks side by side, where what differs lies in the subgraphs that they have left."""

import operator
import re
from typing import Annotated, Any, Literal

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph
from langgraph.types import Send
from typing_extensions import TypedDict

from learngraph import compare, step, wire
from learngraph.tools.notebook.tables import StepperError
from learngraph.tools.notebook.walk import Walk


class Run(TypedDict):
    round: int
    scores: Annotated[list[int], operator.add]


class Episode(TypedDict):
    move: int
    total: int
    scores: list[int]


def play(state: Episode) -> dict[str, Any]:
    return {"move": state["move"] + 1, "total": state["total"] + state["move"]}


def play_on(state: Episode) -> Literal["again", "over"]:
    return "again" if state["move"] < 4 else "over"


def deal_on(state: Run) -> Literal["next", "done"]:
    return "next" if state["round"] < 2 else "done"


def begin(depth: int = 1, players: int = 1) -> Walk:
    """A walk of a run of two rounds, each with an episode of three moves, or with more side by side, `depth` graphs within."""
    nodes: dict[str, Any] = {"open": lambda state: {"move": 1, "total": 0}, "play": play}
    nodes["score"] = lambda state: {"scores": [state["total"]]}
    flow = "flowchart LR\n START --> open --> play\n play -->|again| play\n play -->|over| score --> END"
    graph: Any = wire(StateGraph(Episode), flow, nodes, {"play": play_on}).compile()
    for _ in range(depth - 1):
        graph = wire(StateGraph(Episode), "flowchart LR\n START --> game --> END", {"game": graph}).compile()
    nodes = {"deal": lambda state: {"round": state["round"] + 1}, "episode": graph, "tally": lambda state: {}}
    fans: Any = {"deal": lambda state: [Send("episode", {"total": 0}) for _ in range(players)]}
    flow = "flowchart LR\n START --> deal -.-> episode --> tally\n tally -->|next| deal\n tally -->|done| END"
    return step(
        wire(StateGraph(Run), flow, nodes, {"tally": deal_on}, fans).compile(checkpointer=InMemorySaver()), {"round": 0}
    )


def test_walks_at_their_ends_are_compared_inside_the_subgraphs_that_they_left() -> None:
    walk = begin().into("episode").until("play").step()
    other = walk.fork().edit(move=3).finish()
    walk.finish()
    assert (walk.state["scores"], other.state["scores"]) == ([6, 6], [4, 6])
    shown = compare(walk, other, before="play", show=["move"])
    assert shown.head == ("", "move", "move ′")
    first = (("moment 1, 0", "1", "1"), ("moment 1, 1", "2", "3"), ("moment 1, 2", "3", "–"))
    assert shown.rows == (*first, *((f"moment 4, {n}", str(n + 1), str(n + 1)) for n in range(3)))
    assert shown.marked == {1, 2}
    assert compare(walk, other, before="play").head == shown.head, "the totals are the same at every pause"
    rows = compare(walk, other).rows
    assert rows[:3] == (
        ("episode > moment 2", "move", "2", "3"),
        ("moment 2", "scores", "[6]", "[4]"),
        ("now", "scores", "[6, 6]", "[4, 6]"),
    )
    parted = (("episode > moment 3", "next", "play", "score"), ("episode > moment 3", "total", "3", "4"))
    assert compare(walk, other, show=["total"]).rows == parted, "at moment 2 the totals are the same"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_walk_inside_and_one_outside_are_compared_from_outside(depth: int) -> None:
    walk = begin(depth).into("episode")
    walk = (walk.into("game") if depth > 1 else walk).until("play").step()
    place = "episode > game > moment 2" if depth > 1 else "episode > moment 2"
    other = walk.fork().edit(move=3)
    assert compare(walk, other).rows[0] == ("moment 2 | 3", "move", "2", "3"), "both are inside"
    other.out()
    assert compare(walk, other).rows[0] == (place, "move", "2", "3")
    rows = compare(walk, other, before="play", show=["move"]).rows
    assert rows == (("0", "1", "1"), ("1", "2", "3"))


def test_side_by_side_each_invocation_is_compared_with_its_own() -> None:
    walk = begin(players=2).into("episode", 1).until("play")
    other = walk.fork().edit(move=3).finish()
    walk.finish()
    assert compare(walk, other).rows[0] == ("episode[1] > moment 1", "move", "1", "3")
    rows = compare(walk, other, before="play", show=["move"]).rows
    assert [row for row in rows if row[1] != row[2]] == [
        ("moment 1, episode[1], 0", "1", "3"),
        ("moment 1, episode[1], 1", "2", "–"),
        ("moment 1, episode[1], 2", "3", "–"),
    ]


def test_what_a_fork_of_the_end_did_not_copy_is_read_from_the_other_record() -> None:
    walk = begin().finish()
    rows = compare(walk, walk.fork(), before="play", show=["move"]).rows
    assert [row[1:] for row in rows] == [("1", "1"), ("2", "2"), ("3", "3")] * 2
    for same in (compare(walk, walk.fork()), compare(walk, walk, before="play")):
        assert str(same).splitlines()[0].endswith(": no difference")
    assert compare(walk, walk.fork()).rows == ()
    assert "no difference" not in str(compare(walk, begin(), before="play"))


def test_what_cannot_be_shown_is_told_with_what_can() -> None:
    walk = begin().finish()
    place = "no channel 'move' at 'tally'; open, play, score have it: before='open'"
    for before, name, said in (
        ("play", "tota", "no channel 'tota'; did you mean total"),
        ("tally", "move", place),
        ("pley", "", "mean play"),
    ):
        with pytest.raises(StepperError, match=re.escape(said)):
            compare(walk, walk.fork(), before=before, show=[name])


def test_a_walk_inside_stays_at_its_moment_where_the_run_has_gone_on() -> None:
    walk = begin().into("episode").until("play").step()
    other = walk.fork().edit(move=3).finish()
    walk.graph.invoke(None, {"configurable": {"thread_id": "walk-1"}})
    assert compare(walk, other).rows[:2] == (("episode > moment 2", "move", "2", "3"), ("now", "next", "episode", "the end"))
    assert str(compare(walk, other, before="tally")).splitlines()[0].endswith("0 and 2 times")


def test_a_node_around_both_walks_is_one_to_compare_before() -> None:
    walk = begin().into("episode")
    assert "no difference" in str(compare(walk, walk.fork(), before="episode"))
    assert "never yet" in str(compare(walk, walk.fork(), before="tally"))
    assert compare(walk, walk.fork().step(), before="open", show="move").rows == (("0", "–", "–"),)
