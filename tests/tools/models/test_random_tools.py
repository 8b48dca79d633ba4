"""A model that calls its tools at random."""

from collections import Counter
from typing import Literal

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool

from learngraph.memory.errors import UserError
from learngraph.tools.models.random_tools import RandomToolModel


@tool
def paint(colour: Literal["red", "blue"], bright: bool, note: str = "") -> str:
    """Paint it."""
    return f"painted {colour}"


@tool
def write(text: str) -> str:
    """Write it."""
    return "written"


def test_it_draws_among_listed_values_and_then_says_that_it_is_done() -> None:
    agent = create_agent(RandomToolModel(seed=1), [paint])
    drawn: Counter[tuple[str, bool]] = Counter()
    for _ in range(80):
        _, call, result, last = agent.invoke({"messages": "go on"})["messages"]
        assert last.text == "It is done."
        arguments = call.tool_calls[0]["args"]
        assert result.text == f"painted {arguments['colour']}"
        drawn[arguments["colour"], arguments["bright"]] += 1
    assert set(drawn) == {("red", True), ("red", False), ("blue", True), ("blue", False)}
    assert min(drawn.values()) >= 8
    again = create_agent(RandomToolModel(seed=1), [paint]).invoke({"messages": "go on"})["messages"][1].tool_calls
    assert again == create_agent(RandomToolModel(seed=1), [paint]).invoke({"messages": "go on"})["messages"][1].tool_calls


def test_without_tools_it_says_that_it_is_done_and_a_tool_without_listed_values_is_refused() -> None:
    assert RandomToolModel().invoke("hello").text == "It is done."
    with pytest.raises(UserError, match="lists none for 'text'"):
        create_agent(RandomToolModel(), [write]).invoke({"messages": "go on"})


def test_an_argument_with_a_default_is_left_out_also_where_it_is_the_only_one() -> None:
    def write(text: str = "hello") -> str:
        """Write it."""
        return text

    assert create_agent(RandomToolModel(), [write]).invoke({"messages": "go on"})["messages"][2].text == "hello"
