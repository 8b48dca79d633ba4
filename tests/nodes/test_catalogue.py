"""The catalogue of nodes, and the channels that their types name."""

from collections.abc import Mapping
from typing import Any, NotRequired

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.runnables import RunnableConfig
from typing_extensions import TypedDict

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
    assert sum(bool(entry.reads) for entry in entries) / len(entries) > 0.8
    with pytest.raises(UserError, match="there are act, evaluate"):
        catalogue("remember")


@pytest.mark.parametrize(
    ("name", "kind", "reads", "writes", "settings"),
    [
        ("Choose", "node", {"candidates", "run", "episode", "step"}, {"action"}, {"temperature": "float = 1.0"}),
        ("act_policy", "maker", {"observation"}, {"candidates", "usage", "vote"}, {"name": "str = 'act/write'"}),
        ("GuardedAdvice", "node", {"candidates", "neighbours", "repeats"}, {"value", "estimates"}, {"kappa": "float"}),
        ("synthesize", "maker", set(), {"strategy", "written", "synthesis"}, {}),
        ("StrategyPart", "part", {"strategy"}, set(), {}),
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


def test_it_is_a_table_with_a_search_box_in_a_notebook() -> None:
    shown = catalogue("synthesize")._repr_html_()
    assert '<input type="search"' in shown
    assert "write_about_attempt" in shown


def test_an_object_says_more_than_its_class() -> None:
    world, journal = open_environment("toy"), Journal()
    begin = node_channels(Begin(world, {"mine": 0}))
    assert "mine" in begin.writes
    assert not begin.is_open
    assert node_channels(Begin).is_open
    act = node_channels(Act(world, journal, clear_lists=("neighbours",)))
    assert {"action", "head", "observation"} <= act.needs
    assert "neighbours" in act.writes
    assert {"best", "earned", "lost"} <= act.reads  # what the journal keeps of a step
    asking = node_channels(act_policy(FakeListChatModel(responses=[""]), Seen()))
    assert asking.needs == {"observation"}
    assert asking.may_read_more  # what its view shows
    assert asking.writes == {"candidates", "lost", "usage", "vote"}


class Seen:
    """A view of the state that reads a channel of its own."""

    def __call__(self, state: Mapping[str, Any]) -> dict[str, str]:
        return {"situation": state["mine"], "history": "", "goal": ""}


class Known(TypedDict):
    always: str
    sometimes: NotRequired[str]


class Found(TypedDict, total=False):
    one: str


def find(state: Known) -> Found:
    return {"one": state["always"]}


class Finder:
    def __call__(self, state: Known | Mapping[str, Any], config: RunnableConfig) -> Found | None:
        return None


def test_a_node_says_in_its_types_what_it_reads_and_writes() -> None:
    for node in (find, Finder(), Finder, Finder().__call__):
        channels = node_channels(node)
        assert (channels.reads, channels.needs) == ({"always", "sometimes"}, {"always"})
        assert (channels.writes, channels.is_open, channels.may_read_more) == ({"one"}, False, node is not find)


def test_what_has_no_types_may_write_anything() -> None:
    for node in (lambda state: {"x": 1}, dict, print, object()):
        assert node_channels(node).is_open
    assert node_channels(UniformPolicy()).writes == {"candidates"}
