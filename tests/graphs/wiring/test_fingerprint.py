"""Fingerprints of rollouts: two prompt texts give two keys, wherever a node keeps its prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langgraph.graph import StateGraph
from typing_extensions import TypedDict

from learngraph.graphs import training_free_grpo
from learngraph.graphs.baselines import lesson_react, tool_agent
from learngraph.graphs.training_free_grpo import TrainingFreeGRPO
from learngraph.graphs.wiring.fingerprint import group_fingerprint, rollout_fingerprint
from learngraph.graphs.wiring.flow import compile_graph, wire
from learngraph.graphs.wiring.learning_run import NOT_IN_GROUP_KEY, CriticModel, RunResources, make_critic
from learngraph.graphs.wiring.parts import MethodInputs
from learngraph.memory.lessons.library import LibraryVersions
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.prompt import Prompt
from learngraph.tools.environments.catalogue import open_environment
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.models.models import open_model


class State(TypedDict):
    reply: str


def prompt(text: str) -> Prompt:
    return Prompt.read("mine/act", f"## user\n{text}")


@dataclass(frozen=True)
class HoldsPrompt:
    prompt: Prompt

    def __call__(self, state: State) -> dict[str, str]:
        return {"reply": self.prompt.text()}


class PlainClass:
    def __init__(self, text: str) -> None:
        self.options = {"first": [prompt(text)]}

    def __call__(self, state: State) -> dict[str, str]:
        return {"reply": self.options["first"][0].text()}

    def play(self, state: State) -> dict[str, str]:
        return self(state)


def closure(text: str, wrap: Callable[[str], Any] = prompt) -> Callable[[State], dict[str, str]]:
    held = wrap(text)

    def node(state: State) -> dict[str, str]:
        return {"reply": str(held)}

    return node


def nested(text: str) -> Any:
    return closure(text, lambda text: closure(text))


def use(held: Prompt, state: State) -> dict[str, str]:
    return {"reply": held.text()}


SHOUT = "Go!"
LOUD = prompt("Go!")


def constant(state: State) -> dict[str, str]:
    return {"reply": SHOUT + LOUD.text()}


def one_node(node: Any) -> Any:
    return compile_graph(wire(StateGraph(State), "flowchart LR\n  START --> act --> END", {"act": node}), name="mine")


def key(graph: Any, model: Any = None) -> str:
    return rollout_fingerprint(MethodInputs(KeywordKeep(), model=model), graph)


@pytest.mark.parametrize(
    "make",
    [
        lambda text: HoldsPrompt(prompt(text)),
        PlainClass,
        lambda text: PlainClass(text).play,
        closure,
        lambda text: closure(text, str),
        nested,
        lambda text: partial(use, prompt(text)),
        lambda text: RunnableLambda(closure(text)),
        lambda text: closure(text, lambda text: ChatPromptTemplate.from_messages([("user", text)])),
        lambda text: one_node(HoldsPrompt(prompt(text))),
    ],
    ids=["field", "plain class", "method", "closure", "text", "nested", "partial", "runnable", "langchain", "subgraph"],
)
def test_two_prompt_texts_are_two_keys_in_a_graph_from_outside(make: Callable[[str], Any]) -> None:
    first, again, edited = (key(one_node(make(text))) for text in ("Take the lamp.", "Take the lamp.", "Leave the lamp."))
    assert first == again
    assert first != edited


@pytest.mark.parametrize("name", ["SHOUT", "LOUD"])
def test_so_do_constants_of_the_nodes_module(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(one_node(constant))
    assert key(one_node(constant)) == before
    monkeypatch.setitem(globals(), name, "Stay!" if name == "SHOUT" else prompt("Stay!"))
    assert key(one_node(constant)) != before


def test_prompts_are_found_in_runnables_that_are_no_graph() -> None:
    runnables = [RunnableLambda(closure(text)) for text in ("a b", "a b", "c d")]
    first, again, edited = map(key, runnables)
    assert first == again != edited


def test_what_a_node_collects_while_it_plays_changes_no_key() -> None:
    seen: list[str] = []

    def node(state: State) -> dict[str, str]:
        seen.append("played")
        return {"reply": "x"}

    before = key(one_node(node))
    one_node(node).invoke({"reply": ""})
    assert seen
    assert key(one_node(node)) == before


@pytest.mark.parametrize(("name", "used"), [("act/write", True), ("reasoning_bank/brief", True), ("jitrl/judge", False)])
def test_an_edited_prompt_file_changes_the_key_if_the_rollout_uses_it(name: str, used: bool, tmp_path: Path) -> None:
    name = {"act/write": "act/score"}.get(name, name)
    source = Path(training_free_grpo.__file__).parent.parent / "nodes" / "prompts" / f"{name}.md"
    (tmp_path / name).parent.mkdir()
    (tmp_path / f"{name}.md").write_text(source.read_text(encoding="utf-8") + "\nBe quick.\n", encoding="utf-8")

    class Scorer:
        window = 1000

        def get_num_tokens(self, text: str) -> int:
            return len(text)

        def score(self, messages: Any, options: Any) -> list[float]:
            return [0.0 for _ in options]

    def fingerprint(**more: Any) -> str:
        parts = MethodInputs.with_scoring_model(KeywordKeep(), Journal(), Scorer(), **more)  # type: ignore[arg-type]
        graph = lesson_react.build(parts, lessons=LibraryVersions())
        return rollout_fingerprint(parts, graph)

    assert (fingerprint() != fingerprint(prompts=tmp_path)) is used


def test_a_group_is_known_by_the_texts_of_its_critics_prompts(tmp_path: Path) -> None:
    (tmp_path / "training_free_grpo").mkdir()
    source = Path(training_free_grpo.__file__).parent.parent / "nodes" / "prompts" / "training_free_grpo" / "contrast.md"
    text = source.read_text(encoding="utf-8")
    (tmp_path / "training_free_grpo" / "contrast.md").write_text(text + "\nBe kind.\n", encoding="utf-8")
    settings = TrainingFreeGRPO().rule()

    def fingerprint(prompts: Path | None) -> str:
        parts, resources = MethodInputs(KeywordKeep(), prompts=prompts), RunResources()
        critic = make_critic(parts, settings, resources, CriticModel(), [])
        return group_fingerprint(critic, CriticModel().by_stage(parts, resources, required=False), {})

    assert fingerprint(None) == fingerprint(None)
    assert fingerprint(None) != fingerprint(tmp_path)


def test_settings_that_a_groups_key_leaves_out_are_settings() -> None:
    assert {item.name for item in fields(TrainingFreeGRPO)} >= NOT_IN_GROUP_KEY


def prompts_of_a_rollout(kind: str, folder: Path | None) -> Any:
    """The graph of a rollout, with the prompt files of a folder."""
    chat: Any = FakeListChatModel(responses=["look"])
    if kind == "scored":
        parts = MethodInputs.with_scoring_model(KeywordKeep(), Journal(), open_model("pocket"), prompts=folder)
        return parts, lesson_react.build(parts, lessons=LibraryVersions())
    if kind == "tools":
        parts = MethodInputs.with_chat_model(open_environment("game24"), Journal(), chat, prompts=folder)
        return parts, tool_agent.build(parts, lessons=LibraryVersions())
    parts = MethodInputs.with_chat_model(KeywordKeep(), Journal(), chat, stepwise=kind == "stepwise", prompts=folder)
    return parts, lesson_react.build(parts, lessons=LibraryVersions())


@pytest.mark.parametrize("kind", ["scored", "written", "stepwise", "tools"])
def test_every_prompt_that_a_rollout_reads_is_in_its_key(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: dict[str, Prompt] = {}
    load = Prompt.load.__func__  # type: ignore[attr-defined]

    def note(cls: Any, name: str, overrides: Path | None = None) -> Prompt:
        read[name] = load(cls, name, overrides)
        return read[name]

    with monkeypatch.context() as noted:
        noted.setattr(Prompt, "load", classmethod(note))
        before = rollout_fingerprint(*prompts_of_a_rollout(kind, None))
    assert read
    for name, held in read.items():
        folder = tmp_path / name.replace("/", "-")
        (folder / name).parent.mkdir(parents=True)
        assert rollout_fingerprint(*prompts_of_a_rollout(kind, folder)) == before, "an empty folder changes nothing"
        parts = [f"## {role}\n{template.template}" for role, template in held.parts]
        (folder / f"{name}.md").write_text("\n".join([*parts[:-1], f"{parts[-1]} Mind the cat."]))
        assert rollout_fingerprint(*prompts_of_a_rollout(kind, folder)) != before, name
