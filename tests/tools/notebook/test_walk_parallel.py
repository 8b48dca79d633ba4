"""Walks through nodes that run side by side: each walk has answers of its own."""

import operator
import re
from typing import Annotated, Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

from learngraph import step
from learngraph.tools.notebook.compare import compare
from learngraph.tools.notebook.walk import StepperError, Walk


class State(TypedDict):
    n: int
    log: Annotated[list[str], operator.add]


def walk() -> Walk:
    builder = StateGraph(State)
    for name in "ab":
        builder.add_node(name, lambda state, name=name: {"log": [f"{name} {interrupt(name)}"]})
    builder.add_node("first", lambda state: {"log": ["first"]})
    builder.add_node("last", lambda state: {"log": [f"last {state['n']}"]})
    builder.add_edge(START, "first")
    builder.add_edge("first", "a")
    builder.add_edge("first", "b")
    builder.add_edge(["a", "b"], "last")
    builder.add_edge("last", END)
    begin: Any = {"n": 0}
    return step(builder.compile(checkpointer=InMemorySaver()), begin).until("last")


def test_two_walks_answer_the_same_open_questions_apart() -> None:
    real = walk()
    other, (first, second) = real.fork(), real.questions
    other.resume({first: "F"})
    real.resume({first: "R"})
    assert (real.state["log"], other.state["log"]) == (["first", "a R"], ["first", "a F"])
    other.resume({second: "F2"})  # the last one, by its id, too
    real.resume("R2")
    assert real.finish().state["log"] == ["first", "a R", "b R2", "last 0"]
    assert other.finish().state["log"] == ["first", "a F", "b F2", "last 0"]


def test_an_edited_fork_leaves_the_questions_of_the_walk_open() -> None:
    real = walk()
    first, second = real.questions
    real.fork().edit(n=7)
    real.resume({first: 1})
    assert [*real.questions.values()] == ["b"]
    assert real.resume({second: 2}).finish().state["log"] == ["first", "a 1", "b 2", "last 0"]


def test_an_answer_is_changed_while_others_are_open_and_given_anew_after_going_back() -> None:
    real = walk()
    first, second = real.questions
    with pytest.raises(StepperError, match=re.escape("such as resume({'a': ..., 'b': ...})")):
        real.resume("yes")
    with pytest.raises(StepperError, match=r"^'aa' does not ask; did you mean a\?; 2 nodes ask"):
        real.resume({"aa": "yes"})
    assert real.resume({first: 1}).answers == {first: 1}
    assert real.resume({first: 2}).answers == {first: 2}
    assert real.path()[-1].next == real.next == ("b",)
    assert (real.state["log"], [*real.questions.values()]) == (["first", "a 2"], ["b"])
    assert real.resume({second: 3}).state["log"] == ["first", "a 2", "b 3"]
    assert real.answers == {}
    assert real.back(1).resume({first: 4, second: 5}).state["log"] == ["first", "a 4", "b 5"], (
        "resume runs them to their questions"
    )
    with pytest.raises(StepperError, match="nothing asks for an answer at moment 3"):
        real.resume({first: 6})


def test_a_changed_answer_is_a_what_if_that_is_kept_and_runs_no_other_node_again() -> None:
    """The thread kept the old answer, or was left behind without a word, and what had ended beside it ran twice."""
    ran = list[str]()

    def done(state: State) -> dict[str, list[str]]:
        ran.append("done")
        return {"log": ["done"]}

    builder = StateGraph(State).add_node("done", done).add_edge(START, "done")
    for name in "ab":
        builder.add_node(name, lambda state, name=name: {"log": [f"{name} {interrupt(name)}"]}).add_edge(START, name)
    for number, kept_by_fork in enumerate((True, False)):
        real = step(builder.compile(checkpointer=InMemorySaver()), {"n": 0, "log": []}).step().resume({"a": 1})
        other = real.fork() if kept_by_fork else real
        assert [*other.resume({"a": 2}).answers.values()] == [2]
        assert (other.keep().state["log"], other.question, len(ran)) == (["a 2", "done"], "b", number + 1)
        assert step(real.graph, thread="walk-1").resume(3).state["log"] == ["a 2", "b 3", "done"]


def test_the_thread_goes_along_where_a_node_failed_on_an_answer_and_is_given_another() -> None:
    """The walk went on in a record of its own, and the thread stayed at the question."""
    builder = StateGraph(State).add_node("ask", lambda state: {"n": int(interrupt("how many?"))}).add_edge(START, "ask")
    real = step(builder.compile(checkpointer=InMemorySaver()), {"n": 0, "log": []}).step()
    with pytest.raises(ValueError, match="many"):
        real.resume("many")
    assert (real.resume("7").state["n"], real.branch, step(real.graph, thread="walk-1").state["n"]) == (7, None, 7)


def test_a_walk_goes_back_to_the_turn_before() -> None:
    builder = StateGraph(State).add_node("say", lambda state: {"log": [f"said {state['n']}"]}).add_edge(START, "say")
    begin: Any = {"n": 0}
    chat = step(builder.compile(checkpointer=InMemorySaver()), begin).finish().go_on({"n": 1}).finish()
    assert chat.back(2).state["log"] == ["said 0"]
    assert not chat.next
    assert chat.go_on({"n": 2}).finish().state["log"] == ["said 0", "said 2"]
    assert chat.drop().state["log"] == ["said 0", "said 1"]
    assert str(chat) == "turn 2, moment 1, the end"
    with pytest.raises(StepperError, match=r"cannot go back 4 steps: this is turn 2, moment 1, with 3 steps before it$"):
        chat.back(4)
    with pytest.raises(StepperError, match="the real run, which is not dropped; back"):
        chat.drop()


def test_walks_of_a_chat_are_compared_turn_by_turn() -> None:
    builder = StateGraph(State).add_node("say", lambda state: {"log": [f"said {state['n']}"]}).add_edge(START, "say")
    begin: Any = {"n": 0}
    chat = step(builder.compile(checkpointer=InMemorySaver()), begin).finish()
    first = chat.fork().back().edit(n=5).finish()
    chat.go_on({"n": 1}).finish()
    rows = compare(first, chat, before="say", show=["n"]).rows
    assert rows == (("turn 1, 0", "5", "0"), ("turn 2, 0", "–", "1"))
    assert compare(first, chat).rows[0] == ("turn 1, moment 1 | 0", "n", "5", "0")
    other = chat.fork().back().edit(n=2).finish()
    parted = compare(chat, other)
    assert parted.rows[:2] == (("turn 2, moment 0 | 1", "n", "1", "2"), ("now", "n", "1", "2"))
    assert compare(chat, chat.fork().go_on({"n": 1}).finish()).rows == (
        ("now", "log", "['said 0', 'said 1']", "['said 0', 'said 1', 'said 1']"),
    )


@pytest.mark.parametrize("wrong", ["yes", True, {"type": "approve"}, {"decisions": []}, {"decisions": [{"type": "edit"}]}])
def test_a_wrong_answer_to_a_middleware_of_langchain_shows_a_right_one(wrong: Any) -> None:
    review = {"action_requests": [{"name": "pay", "args": {}}], "review_configs": []}
    builder = (
        StateGraph(State)
        .add_node("ask", lambda state: {"log": [interrupt(review)["decisions"][0]["type"]]})
        .add_edge(START, "ask")
    )
    begin: Any = {"n": 0}
    asking = step(builder.compile(checkpointer=InMemorySaver()), begin).step()
    with pytest.raises(StepperError, match=re.escape("resume({'decisions': [{'type': 'approve'}]}) answers")):
        asking.resume(wrong)
    assert asking.resume({"decisions": [{"type": "approve"}]}).state["log"] == ["approve"]
