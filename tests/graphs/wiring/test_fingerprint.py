"""Fingerprints of rollouts and groups: another prompt, model or setting is another key."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langgraph.graph import StateGraph
from typing_extensions import TypedDict

from learngraph.graphs.baselines import lesson_react, tool_agent
from learngraph.graphs.training_free_grpo import TrainingFreeGRPO
from learngraph.graphs.wiring.fingerprint import group_fingerprint, model_fingerprint, rollout_fingerprint
from learngraph.graphs.wiring.flow import compile_graph, wire
from learngraph.graphs.wiring.inputs import MethodInputs, Prompting
from learngraph.graphs.wiring.learning_run import CriticModel, RunResources, make_critic
from learngraph.memory.lessons.versions import LibraryVersions
from learngraph.memory.storage.cache import Cache
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.cached_model import CachedChatModel
from learngraph.nodes.prompt import PROMPTS_DIR, Prompt
from learngraph.tools.environments.catalogue import open_environment
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.models.models import open_model


class State(TypedDict):
    reply: str


@dataclass(frozen=True)
class Speak:
    prompt: Prompt
    loud: bool = False

    def __call__(self, state: State) -> dict[str, str]:
        return {"reply": self.prompt.text()}


def key(text: str, loud: bool = False, name: str = "") -> str:
    node = Speak(Prompt.read("mine/act", f"## user\n{text}"), loud)
    graph = compile_graph(wire(StateGraph(State), "flowchart LR\n  START --> act --> END", {"act": node}), name="mine")
    return rollout_fingerprint(MethodInputs(KeywordKeep()), graph, name)


def test_a_nodes_settings_and_the_graphs_name_are_in_the_key() -> None:
    assert key("Take the lamp.") == key("Take the lamp.")
    keys = [key("Take it."), key("Leave it."), key("Take it.", loud=True), key("Take it.", name="second prompts")]
    assert len(set(keys)) == 4


def test_a_model_is_known_by_its_settings_and_the_options_bound_to_it() -> None:
    def models() -> list[Any]:
        chat, cache = FakeListChatModel(responses=["a"]), Cache()
        bound = [
            chat.bind(**options)
            for options in ({"temperature": 0.0}, {"temperature": 1.0}, {"stop": ["a", "b"]}, {"stop": ["a"]})
        ]
        recorded = [CachedChatModel(*each, cache) for each in ((chat, "x"), (chat.bind(top_p=0.5), "x"), (chat, "y"))]
        return [chat, *bound, *recorded]

    keys = [model_fingerprint(model) for model in models()]
    assert len(set(keys)) == len(keys)
    assert keys == [model_fingerprint(model) for model in models()]


def test_a_model_behind_an_api_is_known_by_its_address_and_its_sampling() -> None:
    openai: Any = pytest.importorskip("langchain_openai").ChatOpenAI
    known = {"model": "m", "api_key": "none", "base_url": "http://one.test/v1"}
    changes = [{}, {"base_url": "http://other.test/v1"}, {"top_p": 0.5}, {"temperature": 0.5}]
    assert len({model_fingerprint(openai(**known | change)) for change in changes}) == len(changes)


def overridden(name: str, folder: Path) -> Path:
    (folder / name).parent.mkdir(parents=True)
    text = (PROMPTS_DIR / f"{name}.md").read_text(encoding="utf-8")
    (folder / f"{name}.md").write_text(f"{text}\nMind the cat.\n", encoding="utf-8")
    return folder


def rollout_key(kind: str, folder: Path | None) -> str:
    """The key of a rollout of this kind, with the prompt files of a folder."""
    chat: Any = FakeListChatModel(responses=["look"])
    if kind == "scored":
        inputs = MethodInputs.with_scoring_model(KeywordKeep(), Journal(), open_model("pocket"), prompts=folder)
    else:
        world: Any = open_environment("game24") if kind == "tools" else KeywordKeep()
        inputs = MethodInputs.with_chat_model(world, Journal(), chat, prompts=folder)
    graph = tool_agent if kind == "tools" else lesson_react
    return rollout_fingerprint(inputs, graph.build(inputs, lessons=LibraryVersions()))


@pytest.mark.parametrize(("kind", "prompt"), [("scored", "act/score"), ("written", "act/write"), ("tools", "tool_agent/solve")])
def test_an_edited_prompt_file_changes_the_key(kind: str, prompt: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert rollout_key(kind, None) == rollout_key(kind, tmp_path / "empty")
    assert rollout_key(kind, None) != rollout_key(kind, overridden(prompt, tmp_path / "mine"))


def test_a_group_is_known_by_its_critics_prompts(tmp_path: Path) -> None:
    def fingerprint(prompts: Path | None) -> str:
        inputs, resources = MethodInputs(KeywordKeep(), prompting=Prompting(prompts=prompts)), RunResources()
        critic = make_critic(inputs, TrainingFreeGRPO(author="rule"), resources, CriticModel(), [])
        return group_fingerprint(critic, CriticModel().by_stage(inputs, resources, required=False), {})

    assert fingerprint(None) == fingerprint(None)
    assert fingerprint(None) != fingerprint(overridden("training_free_grpo/contrast", tmp_path))
