"""The baselines that JitRL is compared with are shown what JitRL is shown: the same observations, actions, history and step limit."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from scripted_chat import ScriptedChat
from still_trainer import StillTrainer
from variants import quick

from learngraph.graphs.arms import make_arm, method_settings
from learngraph.graphs.experiments.folder import Job
from learngraph.graphs.experiments.options import RunOptions
from learngraph.graphs.experiments.play import run_graph
from learngraph.graphs.jitrl import JitRL
from learngraph.graphs.methods import METHODS, Method, find_method
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.claas.weights import TrainingLog
from learngraph.memory.records import Candidate, Observation, Task
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.rows import Rows
from learngraph.nodes.act.policies import LocalPolicy, PromptView
from learngraph.nodes.prompt import Prompt
from learngraph.tools.environments.keyword_keep import KeywordKeep

TOY = KeywordKeep()
BASELINES = ("static", "prompt-update", "memory", "awm", "awm?variant=rewrite", "evotest", "reflexion", "sft", "grpo", "webrl")
TRAINED = ("sft", "grpo", "webrl")
CASES = [
    (name, kind)
    for name in BASELINES
    for kind in ("chats", "scores")
    if (name, kind) != ("evotest", "scores") and (kind == "scores" or name not in TRAINED)
]
"""A model that only scores cannot write the configurations of EvoTest; one that writes has no weights to train here."""
WRITTEN = 'Workflow:\n1. go on\n{"guide": "go on", "examples": 2, "routine": "def summarize(steps, observation): return 1"}'
"""A reply in which each method that has a model write finds what it asked for."""
EPISODES = 3


@dataclass
class WordCounter:
    """Scores nothing: it only has a tokenizer and a window, and writes a line, as a scoring model does."""

    chat: ScriptedChat
    window: int = 100_000

    def get_num_tokens(self, text: str) -> int:
        return len(text.split())

    def score(self, messages: Sequence[Any], options: Sequence[str]) -> Sequence[float]:
        raise AssertionError("the policy of this test proposes the actions")

    def invoke(self, *given: Any, **more: Any) -> Any:
        return self.chat.invoke(*given, **more)


@dataclass(frozen=True)
class WitnessedPolicy(LocalPolicy):
    """A policy of a model that scores, whose candidates are a witness's."""

    witness: Any = None

    def __call__(self, state: Any) -> Any:
        return self.witness(state)


@dataclass
class Witness:
    """A policy that acts alike whoever asks, and keeps what it was shown: by (episode, step)."""

    views: dict[tuple[int, int], dict[str, str]] = field(default_factory=dict)
    observations: dict[tuple[int, int], Observation] = field(default_factory=dict)

    def __call__(self, view: PromptView) -> Any:
        def node(state: Any) -> dict[str, Any]:
            at = state["episode"], state["step"]
            self.views[at], self.observations[at] = dict(view(state)), state["observation"]
            taken = random.Random(str(at)).choice(state["observation"].actions)
            # No advantage outweighs a million nats.
            return {"candidates": [Candidate(a, 0.0 if a == taken else -1e6) for a in state["observation"].actions]}

        absent: Any = None
        return WitnessedPolicy(absent, view, Prompt.load("act/score"), node)


@cache
def play(name: str, task: Task, kind: str, history: int | None) -> tuple[Witness, dict[str, Any]]:
    witness, chat = Witness(), ScriptedChat(replies=[WRITTEN])
    if kind == "chats":
        inputs = MethodInputs.with_chat_model(TOY, Journal(), chat)
    else:
        inputs = MethodInputs.with_scoring_model(TOY, Journal(), WordCounter(chat))
    inputs = replace(inputs, make_policy=witness)
    if history is not None:
        inputs = replace(inputs, prompting=replace(inputs.prompting, history_steps=history))
    method, more = find_method(name), dict[str, Any]()
    if method.runs_code:
        more["run_code"] = lambda code: ("said", True)
    if method.trains_weights:
        more["make_trainer"] = lambda settings: StillTrainer()
    settings = JitRL(min_prior=0) if name == "jitrl" else method_settings(name)
    graph = method.build(inputs, settings, **more)
    return witness, run.build(graph).invoke(run.RunInput(task=task, run="r", episode=0, episodes=EPISODES))


def running_steps(text: str, kind: str) -> str:
    """The steps of the running episode in a prompt, without what stands before and after them."""
    if kind == "chats":
        _, heading, steps = text.rpartition("Your steps in this attempt so far:\n")
        return steps.partition("Summary of this attempt")[0].strip() if heading else ""
    return re.split(r"^(?:Attempt \d+:|- .*)\n", text, flags=re.MULTILINE)[-1].strip()


@pytest.mark.parametrize("history", quick([None, 0, 3], 3), ids=lambda n: f"{n}-steps")
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_baseline_is_shown_what_jitrl_is_shown(name: str, kind: str, history: int | None) -> None:
    task = TOY.task(3)
    jitrl, expected = play("jitrl", task, kind, history)
    other, out = play(name, task, kind, history)
    assert out["lengths"] == expected["lengths"]  # the same step limit
    assert max(out["lengths"]) <= TOY.horizon
    assert out["scores"] == expected["scores"]
    assert other.observations == jitrl.observations  # text, rewards, admissible actions, end
    assert other.views.keys() == jitrl.views.keys()
    for at, shown in jitrl.views.items():
        beside = other.views[at]
        assert (beside["instruction"], beside["observation"]) == (shown["instruction"], shown["observation"])
        assert running_steps(beside["steps"], kind) == running_steps(shown["steps"], kind)  # as many as JitRL's policy sees
    if history != 0 and kind == "chats":
        assert any(running_steps(shown["steps"], kind) for shown in jitrl.views.values())


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_beside_that_it_is_shown_what_it_learned(name: str, kind: str) -> None:
    """Nothing in the first attempt, and something later; only `static` never learns, nor AWM without a success,
    and weights learn beside the prompt."""
    jitrl, _ = play("jitrl", TOY.task(3), kind, None)
    other, _ = play(name, TOY.task(3), kind, None)
    more = {
        at: (beside["steps"].replace(jitrl.views[at]["steps"], ""), beside.get("request", ""))
        for at, beside in other.views.items()
    }
    headers = {"", "Attempt 1:\n"}
    if name != "prompt-update":  # it recalls what the running attempt repeats
        assert all(before in headers and not request for (episode, _), (before, request) in more.items() if episode == 0)
    later = [texts for (episode, _), texts in more.items() if episode == EPISODES - 1]
    assert any(before not in headers or request for before, request in later) == (name not in ("static", "awm", *TRAINED))


@pytest.mark.parametrize(("given", "shown"), [(None, 0), (4, 4)])
def test_a_baseline_is_shown_as_many_steps_as_jitrl_is(
    given: int | None, shown: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None where the model is in this process; --policy-history-steps says more."""
    seen, reflexion = list[int | None](), METHODS["reflexion"]

    def build(inputs: MethodInputs, *rest: Any, **more: Any) -> Any:
        seen.append(inputs.prompting.history_steps)
        return reflexion.build(inputs, *rest, **more)

    monkeypatch.setitem(cast(dict[str, Method], METHODS), "reflexion", replace(reflexion, build=build))
    options = RunOptions(env="toy", model="pocket", policy_history_steps=given)
    job = Job(make_arm("reflexion"), options, 0, Path(), "r", "t", "", (), "")
    files: Any = SimpleNamespace(journal=Journal(), records=None, log=Rows(), saver=None, training=TrainingLog())
    run_graph(job, TOY, files, WordCounter(ScriptedChat(replies=[WRITTEN])))
    assert seen == [shown]
