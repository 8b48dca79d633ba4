"""The graphs that `langgraph.json` names, played as the server plays them: made for an assistant, with a checkpointer put in."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from learngraph.graphs.cli import dev
from learngraph.graphs.cli.dev import DevRequestError
from learngraph.graphs.methods import METHODS
from learngraph.memory.storage.serializer import serializer

ROOT = Path(__file__).parents[3]
GRAPHS = json.loads((ROOT / "langgraph.json").read_text())["graphs"]
TOY = {"env": "toy", "model": "uniform"}
SAVER = InMemorySaver(serde=serializer())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own for every test; what was opened there is closed again."""
    monkeypatch.setattr(dev, "FOLDER", tmp_path)
    yield tmp_path
    if dev._store.cache_info().currsize:
        dev._store().close()
    for cached in (dev._episode_graph, dev._learning_graph, dev._inputs, dev._rows, dev._versions, dev._store):
        cached.cache_clear()


async def make(name: str, **settings: Any) -> Any:
    module, _, attribute = GRAPHS[name]["path"].partition(":")
    factory = getattr(import_module(module), attribute)
    assert iscoroutinefunction(factory)
    graph = await factory({"configurable": settings})
    graph.checkpointer = SAVER
    return graph


def thread() -> Any:
    return {"configurable": {"thread_id": uuid.uuid4().hex}}


def test_every_method_is_listed_with_its_description() -> None:
    assert {name: entry["description"] for name, entry in GRAPHS.items()} == {
        name: method.summary for name, method in METHODS.items() if not method.trains_weights
    }
    assert set(dev.SERVABLE) == GRAPHS.keys()


async def test_the_form_says_what_is_played() -> None:
    form = (await make("jitrl", **TOY)).get_context_jsonschema()
    assert form["properties"].keys() == {"env", "model", "settings"}
    assert all(len(shown["description"]) > 10 for shown in form["properties"].values())


@pytest.mark.parametrize("name", ["jitrl", "random", "tabular", "static"])
async def test_episodes_are_played_and_asked_for_again(name: str, folder: Path) -> None:
    graph, config = await make(name, **TOY), thread()
    out = await graph.ainvoke({"seed": 0, "episodes": 2}, config)
    assert len(out["scores"]) == len(out["lengths"]) == 2
    again = await graph.ainvoke({"seed": 0, "episodes": 1}, config)
    assert again["scores"][:2] == out["scores"]
    assert len(again["scores"]) == 3
    place = "toy-uniform" if name == "jitrl" else f"{name}-toy-uniform"
    rows = [json.loads(line) for line in (folder / place / "episodes.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [f"{config['configurable']['thread_id']}/{n}" for n in range(3)]


NOT_WITH_POCKET = {
    "cot": "reasons in writing",
    "long-cot": "reasons in writing",
    "evotest": "reasons in writing",
    "tool-agent": "use react, or a world that reads",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in GRAPHS if not METHODS[n].has_training_phase and n not in NOT_WITH_POCKET])
async def test_every_method_plays_with_a_model(name: str) -> None:
    graph = await make(name, env="toy", model="pocket")
    out = await graph.ainvoke({"seed": 0, "episodes": 1}, thread())
    assert len(out["scores"]) == 1


@pytest.mark.parametrize("name", NOT_WITH_POCKET)
async def test_a_method_that_this_world_or_model_cannot_play_says_what_would_do(name: str) -> None:
    graph = await make(name, env="toy", model="pocket")
    with pytest.raises(DevRequestError, match=NOT_WITH_POCKET[name]):
        await graph.ainvoke({"seed": 0, "episodes": 1}, thread())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"env": "toyy"}, "toyy"),
        ({"model": "gpt"}, "there is no model 'gpt'; there are pocket"),
        ({"settings": "?beta=much"}, r"jitrl\?beta is .*number.*got much"),
        ({"settings": "papre"}, "no preset 'papre'; did you mean paper"),
        ({"settings": "?k=0"}, "JitRL: k is a whole number of at least 1; got 0"),
        ({"env": 3}, "env is a text, got 3"),
    ],
)
async def test_a_wrong_setting_is_answered_in_words(settings: dict[str, Any], words: str) -> None:
    graph = await make("jitrl", **{**TOY, **settings})
    assert graph.get_context_jsonschema()["properties"]["settings"]
    with pytest.raises(DevRequestError, match=words):  # a ValueError: the server shows its words
        await graph.ainvoke({"seed": 0, "episodes": 1}, thread())


async def test_a_context_that_the_graph_was_not_made_for_is_refused() -> None:
    graph = await make("jitrl", **TOY, settings="?beta=2")
    out = await graph.ainvoke({"seed": 0, "episodes": 1}, thread(), context={**TOY, "settings": "?beta=2.0"})
    assert len(out["scores"]) == 1
    with pytest.raises(DevRequestError, match="knows no 'beta' here"):
        await graph.ainvoke({"seed": 0, "episodes": 1}, thread(), context={"beta": 1})
    with pytest.raises(DevRequestError, match="set it for the assistant"):
        await graph.ainvoke({"seed": 0, "episodes": 1}, thread(), context={**TOY, "settings": "?beta=3"})


async def test_settings_reach_the_method() -> None:
    graph = await make("jitrl", **TOY, settings="paper-equations?beta=3")
    _, choice, _ = graph.builder.nodes["plan"].runnable.func.args
    assert choice.settings == replace(METHODS["jitrl"].settings.paper_equations(), beta=3.0)


@pytest.mark.slow
async def test_lessons_are_learned_and_are_the_output() -> None:
    graph = await make("training-free-grpo", env="toy", model="pocket", settings="?problems=2&held_out=1&group_size=2")
    out = await graph.ainvoke({}, config := thread())
    assert isinstance(out["lessons"], list)
    assert (await graph.ainvoke({}, config)).keys() == out.keys()
