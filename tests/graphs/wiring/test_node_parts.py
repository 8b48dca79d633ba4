"""Nodes by their names: made from a method's inputs, with one memory of a kind, or a sentence that says what is to be given."""

import re
from typing import Any

import pytest

import learngraph
from learngraph.graphs.baselines.evotest import EvoTest
from learngraph.graphs.baselines.tabular import Tabular
from learngraph.graphs.baselines.webrl import SelfEvolvingCurriculum
from learngraph.graphs.jitrl import JitRL
from learngraph.graphs.wiring.flow import rewire, to_mermaid
from learngraph.graphs.wiring.node_parts import NUMBERS
from learngraph.memory.errors import UserError
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.catalogue import catalogue
from learngraph.tools.models.random_tools import HeedfulToolModel


@pytest.fixture
def inputs() -> Any:
    return learngraph.MethodInputs(environment=learngraph.open_environment("toy"))


@pytest.mark.parametrize(("chats", "most"), [(False, 83), (True, 102)])
def test_every_node_is_made_or_says_what_it_lacks(inputs: Any, chats: bool, most: int) -> None:
    said, with_chat_model = {"made": 0}, learngraph.MethodInputs.with_chat_model
    inputs = with_chat_model(inputs.environment, Journal(), HeedfulToolModel(seed=1)) if chats else inputs
    for entry in catalogue():
        try:
            inputs.node(f"{entry.verb}.{entry.name}")
        except UserError as error:
            words = re.search(r"has no default for|has a model write", str(error))
            said[words[0] if words else entry.name] = 1
        else:
            said["made"] += 1
    assert (said.pop("made"), said.keys() - {"has no default for", "has a model write"}) == (most, set())


def test_nodes_of_the_same_inputs_share_a_memory_and_play(inputs: Any) -> None:
    recall, remember = inputs.node("Recall", k=3), inputs.node("Remember")
    assert recall.experiences is remember.experiences
    agent = learngraph.jitrl.build(inputs)
    default = agent.builder.nodes["recall"].runnable.func
    assert (recall.threshold, inputs.node("Recall").k) == (default.threshold, default.k), "numbers are JitRL's"
    drawing = to_mermaid(agent)
    own = rewire(agent, drawing, recall=recall, remember=remember)
    scores = [own.invoke({"task": inputs.environment.task(4), "run": "r", "episode": n})["score"] for n in range(8)]
    assert recall.experiences.table().rows
    assert sum(scores[4:]) > sum(scores[:4])


def test_numbers_without_a_default_are_those_of_jitrl() -> None:
    s = JitRL()
    own = {"k": s.k, "threshold": s.min_similarity, "gamma": s.gamma, "alpha": s.unseen_bonus, "beta": s.beta}
    own |= {"lam": s.unseen_bonus_probability, "kappa": s.shrinkage_visits, "bonus": s.exploration_bonus}
    own |= {"penalty": s.repeat_penalty, "epsilon": Tabular().epsilon, "c": EvoTest().exploration}
    assert own | {"every": SelfEvolvingCurriculum().every, "tasks": SelfEvolvingCurriculum().tasks} == NUMBERS


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("Recal", {}, "no nodes are called 'Recal'; did you mean Recall"),
        ("extract", {}, "2 nodes are called 'extract'; say synthesize.extract or extract.extract"),
        (
            "Submit",
            {},
            "Submit has no default for read (a function) and toolset (Toolset(...)); give inputs.node('Submit', read=..., toolset=...), "
            "in a Python file, as graphs/baselines/tool_agent.py does",
        ),
        ("Recall", {"k": -1}, "Recall: k is a whole number of at least 0; got -1"),
        ("act_policy", {"model": "gpt"}, "act_policy: model is a chat model (init_chat_model makes one of a name); got 'gpt'"),
        ("write_about_attempt", {"name": "x"}, "write_about_attempt: name is one of reflexion/reflect, reflexion/plan,"),
        ("Choose", {"temprature": 2}, "Choose takes temperature, got temprature"),
        ("write_about_attempt", {}, "write_about_attempt has a model write, and there is none here"),
    ],
)
def test_a_wrong_name_or_part_is_a_sentence(inputs: Any, name: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        inputs.node(name, **given)
