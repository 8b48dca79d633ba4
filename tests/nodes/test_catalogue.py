"""The catalogue of nodes, and the channels that are read from their code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel

import learngraph
from learngraph.memory.errors import UserError
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.act.episode import Act, Begin
from learngraph.nodes.act.policies import UniformPolicy, act_policy
from learngraph.nodes.catalogue import VERBS, catalogue
from learngraph.nodes.channels import node_channels
from learngraph.tools.environments.catalogue import open_environment


def test_every_verb_has_nodes_and_every_node_a_line() -> None:
    entries = learngraph.catalogue()
    assert {entry.verb for entry in entries} == set(VERBS)
    assert all(entry.summary and entry.module.startswith("learngraph.nodes.") for entry in entries)
    assert len({(entry.module, entry.name) for entry in entries}) == len(entries)
    assert sum(bool(entry.reads) for entry in entries) / len(entries) > 0.85
    with pytest.raises(UserError, match="there are act, evaluate"):
        catalogue("remember")


@pytest.mark.parametrize(
    ("name", "kind", "reads", "writes", "settings"),
    [
        ("Choose", "node", {"candidates", "run", "episode", "step"}, {"action"}, {"temperature": "float = 1.0"}),
        ("act_policy", "maker", {"observation"}, {"candidates", "usage", "vote"}, {"name": "str = 'act/write'"}),
        ("GuardedAdvice", "node", {"candidates", "neighbours", "repeats"}, {"value", "estimates"}, {"kappa": "float"}),
        ("synthesize", "maker", set(), {"strategy", "written", "synthesis"}, {}),
        ("route_episode_end", "router", {"observation"}, set(), {}),
    ],
)
def test_an_entry(name: str, kind: str, reads: set[str], writes: set[str], settings: dict[str, str]) -> None:
    entry = next(entry for entry in catalogue() if entry.name == name)
    assert entry.kind == kind
    assert reads <= set(entry.reads)
    assert writes <= set(entry.writes)
    assert settings.items() <= entry.settings.items()
    assert (entry.outcomes == ("next step", "over")) == (kind == "router")


def test_an_object_says_more_than_its_class() -> None:
    world, journal = open_environment("toy"), Journal()
    begin = node_channels(Begin(world, {"mine": 0}))
    assert "mine" in begin.writes
    assert not begin.is_open
    assert node_channels(Begin).is_open
    act = node_channels(Act(world, journal, clear_lists=("neighbours",)))
    assert {"action", "head", "observation"} <= act.needs
    assert "neighbours" in act.writes
    assert "lost" in act.reads - act.needs  # asked for with a default, and only of a lost step
    asking = node_channels(act_policy(FakeListChatModel(responses=[""]), Seen()))
    assert asking.needs >= {"observation", "mine"}
    assert asking.writes == {"candidates", "lost", "usage", "vote"}


class Seen:
    """A view of the state that reads a channel of its own."""

    def __call__(self, state: Mapping[str, Any]) -> dict[str, str]:
        return {"situation": state["mine"], "history": "", "goal": ""}


def test_what_may_not_run_is_not_needed() -> None:
    def node(state: dict[str, Any]) -> dict[str, Any]:
        found = {"one": state["always"]}
        if state["tested"]:
            found["two"] = state["sometimes"]
        for _ in state["many"]:
            found |= {"three": state["within"]}
        text = state["left"] if found else state["right"]
        if text:
            return {"four": text}
        return found | {"five": state["after"]}

    channels = node_channels(node)
    assert channels.needs == {"always", "tested", "many"}
    assert channels.reads == channels.needs | {"sometimes", "within", "left", "right", "after"}
    assert channels.writes == {"one", "two", "three", "four", "five"}
    assert not channels.is_open


def test_what_cannot_be_read_may_write_anything() -> None:
    for node in (lambda state: {"x": 1}, dict, print, object()):
        assert node_channels(node).is_open
    assert node_channels(UniformPolicy()).writes == {"candidates"}


def test_nodes_that_hold_each_other_are_read() -> None:
    """A tool node of LangGraph's holds itself, by a method of its own."""
    prebuilt = pytest.importorskip("langgraph.prebuilt")
    assert node_channels(prebuilt.ToolNode([])).is_open
