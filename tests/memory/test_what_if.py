"""A what-if leaves what is remembered of the real run as it is, whatever the method."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

import learngraph
from learngraph.graphs.adamem import AdaMEM
from learngraph.graphs.baselines import synapse, tabular
from learngraph.graphs.baselines.synapse import Synapse
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.parts import MethodInputs
from learngraph.memory.records import Trajectory, Transition
from learngraph.memory.storage.checkpoints import serializer
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.rows import Rows
from learngraph.memory.storage.shelf import RecordStore
from learngraph.memory.what_if import WhatIf, current_what_if
from learngraph.tools.environments.keyword_keep import KeywordKeep

WORLD = KeywordKeep()
BUILD: dict[str, Any] = {
    "jitrl": learngraph.jitrl.build,
    "icrl": learngraph.icrl.build,
    "adamem": lambda parts, **more: learngraph.adamem.build(parts, AdaMEM(author="rule"), **more),
    "synapse": lambda parts, **more: synapse.build(parts, Synapse(), **more),
    "tabular": tabular.build,
}


class Real:
    """A real run of a method at the toy: its files, and a walk through an episode of it that has ended."""

    def __init__(self, method: str, folder: Path) -> None:
        self.steps = folder / "steps.jsonl"
        self.shelf: RecordStore[Trajectory] = RecordStore(InMemoryStore(), ("r",), Trajectory)
        parts = MethodInputs(environment=WORLD, journal=Journal(self.steps), shelf=self.shelf)
        graph = BUILD[method](parts, checkpointer=InMemorySaver(serde=serializer()))
        self.walk = learngraph.step(graph, {"task": WORLD.task(0), "run": "r", "episode": 0}).until("act")

    def remembered(self) -> tuple[bytes, list[Trajectory]]:
        return self.steps.read_bytes(), self.shelf.all()


@pytest.mark.parametrize("method", BUILD)
def test_a_fork_that_ends_first_or_last_changes_nothing_that_is_remembered(method: str, tmp_path: Path) -> None:
    real = Real(method, tmp_path)
    before = real.remembered()
    early = real.walk.fork().edit(action="wait").finish()
    assert real.remembered() == before  # nothing yet of an episode that has not ended
    late = real.walk.fork().edit(action="wait")
    real.walk.finish()
    remembered = real.remembered()
    (trajectory,) = remembered[1]
    assert trajectory.transitions[0].action != "wait"
    late.finish()
    assert real.remembered() == remembered
    assert early.state["step"] == late.state["step"] > 1  # they were played to the end, and alike
    assert early.state["head"] == late.state["head"] != real.walk.state["head"]


@pytest.mark.parametrize("method", BUILD)
def test_a_walk_that_went_back_or_was_edited_is_a_what_if(method: str, tmp_path: Path) -> None:
    real = Real(method, tmp_path)
    real.walk.finish()
    remembered = real.remembered()
    real.walk.back(5).edit(action="wait").finish()
    assert real.remembered() == remembered


def test_the_next_episode_of_a_fork_learns_from_the_real_run_alone(tmp_path: Path) -> None:
    log = Rows(tmp_path / "episodes.jsonl")
    parts = MethodInputs(environment=WORLD, journal=Journal(tmp_path / "steps.jsonl"))
    whole = run.build(learngraph.icrl.build(parts), log, checkpointer=InMemorySaver(serde=serializer()))
    walk = learngraph.step(whole, {"task": WORLD.task(0), "run": "r", "episode": 0, "episodes": 3}).until("tally")
    fork = walk.fork().finish()
    assert len(fork.state["scores"]) == 3
    assert len(log) == 0
    assert (tmp_path / "episodes.jsonl").read_bytes() == b""
    walk.finish()
    assert len(log) == 3


def test_rows_of_a_what_if_are_seen_in_it_and_in_its_copies_alone(tmp_path: Path) -> None:
    journal, other = Journal(tmp_path / "steps.jsonl"), WhatIf()
    start = journal.start("r", 0, "t")
    first = journal.append(start, Transition("s", "a", 1.0))
    with other.play():
        assert current_what_if() is other
        second = journal.append(first, Transition("s", "b", 2.0))
        assert [step.action for step in journal.history(second)] == ["a", "b"]
        assert len(journal) == 2
    assert len(journal) == 1
    assert current_what_if() is None
    further = other.copy()
    with further.play():
        third = journal.append(second, Transition("s", "c", 3.0))
        assert len(journal.history(third)) == 3
    with other.play():
        assert len(journal) == 2
    assert replace(journal.history(first)[0], reward=None).action == "a"
    assert (tmp_path / "steps.jsonl").read_bytes().count(b"\n") == 1
