"""What an env step costs, in things that can be counted: the part of the performance targets that a test can hold."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bench_engine as bench
import pytest
from langchain_core.messages import BaseMessage
from variants import quick

from learngraph.graphs import jitrl
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.graphs.wiring.supersteps import merge_steps
from learngraph.memory.records import Trajectory
from learngraph.memory.returns.experiences import Experiences
from learngraph.memory.storage.chroma_store import ChromaStore
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.record_store import RecordStore
from learngraph.nodes.act.policies import LocalPolicy, RecentStepsPrompt
from learngraph.nodes.prompt import Prompt
from learngraph.tools.environments.keyword_keep import KeywordKeep


@pytest.mark.parametrize(
    ("method", "merged", "expected"), [("static", True, 1), ("jitrl", True, 1), ("static", False, 3), ("jitrl", False, 7)]
)
def test_super_steps_per_env_step(method: str, merged: bool, expected: int) -> None:
    """One for merged nodes, else one per node."""
    taken = []
    for steps in (10, 30):
        graph = bench.build(method, steps)
        graph = merge_steps(graph) if merged else graph
        taken.append(len(list(graph.stream(bench.attempt(), stream_mode="updates"))))
    assert (taken[1] - taken[0]) / 20 == expected


@pytest.mark.parametrize("method", quick(["static", "jitrl"]))
def test_checkpoints_take_the_same_bytes_however_long_an_episode_is(method: str, tmp_path: Path) -> None:
    """Row 7: B(T)/B(60) <= 1.02 per env step. A list that grows in the state would make it 5 here."""
    per_step = {}
    for steps in (60, 300):
        bench.ours(method, steps, path := tmp_path / f"{steps}.sqlite")
        per_step[steps] = sum(bench.stored(path)) / steps
    assert per_step[300] / per_step[60] <= 1.02


class Counting:
    """Scores all options alike, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def score(self, messages: Sequence[BaseMessage], options: Sequence[str]) -> list[float]:
        self.asked += 1
        return [-1.0] * len(options)


def play(method: str, model: Any) -> int:
    """The steps of an episode that a model decides."""
    policy = LocalPolicy(model, RecentStepsPrompt(Journal(), 0), Prompt.load("act/score"))
    graph = bench.build(method, 5, policy=policy)
    return int(merge_steps(graph).invoke(bench.attempt())["step"])


@pytest.mark.parametrize("method", ["static", "jitrl"])
def test_the_model_is_asked_once_per_env_step(method: str) -> None:
    model = Counting()
    assert play(method, model) == model.asked > 0


@pytest.mark.slow
def test_one_forward_pass_per_env_step() -> None:
    """All options of a step are scored in one pass of the pocket model, the prompt included."""
    from learngraph.tools.models.models import open_model

    model: Any = open_model("pocket", threads=1)
    assert play("jitrl", model) == model.usage.forward_passes > 0


def test_memory_calls_no_encoder() -> None:
    """Not even in a store that has one: JitRL's retrieval is lexical, its store asks for no vectors."""
    encoded: list[str] = []

    def embed(texts: Sequence[str]) -> list[list[float]]:
        encoded.extend(texts)
        return [[1.0, 0.0] for _ in texts]

    world = KeywordKeep()
    with ChromaStore.memory(index={"dims": 2, "embed": embed}) as store:
        memory = Experiences(RecordStore(store, ("trajectories",), Trajectory), gamma=0.8)
        episode = merge_steps(jitrl.build(MethodInputs(world), experiences=memory))
        run.build(episode).invoke({**bench.attempt(), "episodes": 3})
        assert len(memory) > 20
    assert not encoded
