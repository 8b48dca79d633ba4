"""A what-if leaves what is remembered of the real run as it is, whatever the method."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from typing_extensions import TypedDict
from variants import quick

import learngraph
from learngraph.graphs import training_free_grpo
from learngraph.graphs.adamem import AdaMEM
from learngraph.graphs.baselines import synapse, tabular
from learngraph.graphs.baselines.synapse import Synapse
from learngraph.graphs.jitrl import JitRL
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.graphs.wiring.learning_run import RunResources
from learngraph.memory.lessons.by_task import Lessons
from learngraph.memory.lessons.versions import LibraryVersions
from learngraph.memory.records import Lesson, Trajectory
from learngraph.memory.storage.branches import Branch, BranchError, new_moment
from learngraph.memory.storage.chroma_store import ChromaStore
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.record_store import RecordStore
from learngraph.memory.storage.rows import Rows
from learngraph.memory.storage.serializer import serializer
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.notebook.walk import StepperError

WORLD = KeywordKeep()
BUILD: dict[str, Any] = {
    "jitrl": learngraph.jitrl.build,
    "icrl": learngraph.icrl.build,
    "adamem": lambda inputs, **more: learngraph.adamem.build(inputs, AdaMEM(author="rule"), **more),
    "synapse": lambda inputs, **more: synapse.build(inputs, Synapse(), **more),
    "tabular": tabular.build,
}


class Real:
    """A real run of a method at the toy: its files, and a walk through an episode of it that has ended."""

    def __init__(self, method: str, folder: Path) -> None:
        self.steps = folder / "steps.jsonl"
        self.records: RecordStore[Trajectory] = RecordStore(InMemoryStore(), ("r",), Trajectory)
        inputs = MethodInputs(environment=WORLD, journal=Journal(self.steps), records=self.records)
        graph = BUILD[method](inputs, checkpointer=InMemorySaver(serde=serializer()))
        self.walk = learngraph.step(graph, {"task": WORLD.task(0), "run": "r", "episode": 0}).until("act")

    def remembered(self) -> tuple[bytes, list[Trajectory]]:
        return self.steps.read_bytes(), self.records.all()


@pytest.mark.parametrize("method", quick(BUILD))
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
    real.walk.back(5).edit(action="wait").finish()  # nor does the walk itself, once it went back
    assert real.remembered() == remembered


def test_the_next_episode_of_a_fork_learns_from_the_real_run_alone(tmp_path: Path) -> None:
    log = Rows(tmp_path / "episodes.jsonl")
    inputs = MethodInputs(environment=WORLD, journal=Journal(tmp_path / "steps.jsonl"))
    whole = run.build(learngraph.icrl.build(inputs), log, checkpointer=InMemorySaver(serde=serializer()))
    walk = learngraph.step(whole, {"task": WORLD.task(0), "run": "r", "episode": 0, "episodes": 3}).until("tally")
    fork = walk.fork().finish()
    assert len(fork.state["scores"]) == 3
    assert len(log) == 0
    assert (tmp_path / "episodes.jsonl").read_bytes() == b""
    walk.finish()
    assert len(log) == 3


def test_a_kept_future_is_remembered_and_a_dropped_one_is_gone(tmp_path: Path) -> None:
    real = Real("jitrl", tmp_path)
    fork, late = (real.walk.fork().edit(action="wait").finish() for _ in range(2))
    assert real.records.all() == []
    fork.keep()
    (trajectory,) = real.records.all()
    assert trajectory.transitions[0].action == "wait"
    assert Journal(real.steps).history(fork.state["head"])[0].action == "wait"
    with pytest.raises(StepperError, match="the real run"):
        fork.keep()
    real.walk.finish()  # the same episode once more: what really happened last is what counts
    assert real.records.all()[0].transitions[0].action != "wait"
    remembered = real.remembered()
    with pytest.raises(BranchError, match="other records of r/0"):
        late.keep()
    assert real.remembered() == remembered
    assert late.drop().next == ("act",)
    assert str(late) == "moment 7 (episode 0, step 0), before act"
    assert real.remembered() == remembered


def test_going_back_sees_the_memory_as_it_was(tmp_path: Path) -> None:
    inputs = MethodInputs(environment=WORLD, journal=Journal(tmp_path / "steps.jsonl"))
    graph = learngraph.jitrl.build(inputs, JitRL(cross_task=True), checkpointer=InMemorySaver(serde=serializer()))
    other = learngraph.step(graph, {"task": WORLD.task(0), "run": "other", "episode": 0}, "other")
    first = learngraph.step(graph, {"task": WORLD.task(0), "run": "r", "episode": 0}).until("advise")
    assert not first.state["neighbours"]
    other.finish()  # another run in the same memory
    assert learngraph.step(graph, {"task": WORLD.task(0), "run": "s", "episode": 0}, "s").until("advise").state["neighbours"]
    assert not first.back().until("advise").state["neighbours"]
    late = learngraph.step(graph, {"task": WORLD.task(0), "run": "u", "episode": 0}, "u").until("advise")
    assert late.fork().back().until("advise").state["neighbours"] == late.state["neighbours"] != []


def test_a_fork_of_a_library_that_is_learned_sees_its_own_versions(tmp_path: Path) -> None:
    resources = RunResources(versions=LibraryVersions(tmp_path / "library.jsonl"), log=Rows(tmp_path / "log.jsonl"))
    graph = training_free_grpo.build(
        MethodInputs(environment=WORLD),
        training_free_grpo.TrainingFreeGRPO(author="rule", epochs=1, batch_size=2),
        problems=[WORLD.task(n) for n in range(4)],
        held_out=[WORLD.task(9)],
        resources=resources,
        checkpointer=InMemorySaver(serde=serializer()),
    )
    walk = learngraph.step(graph, {"run": "r"}).until("consolidate")
    files = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    fork = walk.fork().finish()
    assert fork.branch is not None
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == files
    walk.finish()
    assert resources.versions.names()[-1] != "start"
    done = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    again = walk.back(3)
    again.finish()
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == done
    with again.branch.play() if again.branch else nullcontext():
        names = resources.versions.names()
    assert names == resources.versions.names()  # the same future, made once more
    with pytest.raises(BranchError, match=r"log\.jsonl.*a log keeps what came first"):
        again.keep()  # the second time cost less, as its rollouts were in the cache
    assert again.drop().next == ()
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == done


class Noted(TypedDict):
    said: str


@pytest.mark.parametrize("kind", ["memory", "chroma"])
def test_the_store_of_any_graph_is_branched(kind: str, tmp_path: Path) -> None:
    def note(state: Noted, *, store: BaseStore) -> dict[str, Any]:
        store.put(("notes",), state["said"], {"said": state["said"]})
        return {}

    store: Any = InMemoryStore() if kind == "memory" else ChromaStore.open(tmp_path / "chroma")
    builder = StateGraph(Noted)
    builder.add_node("note", note)
    builder.add_node("end", lambda state: {})
    builder.add_edge(START, "note")
    builder.add_edge("note", "end")
    graph = builder.compile(checkpointer=InMemorySaver(), store=store)
    walk = learngraph.step(graph, {"said": "hello"})
    fork = walk.fork().edit(said="bye").finish()
    assert store.search(("notes",)) == []
    walk.finish()
    assert [one.key for one in store.search(("notes",))] == ["hello"]
    fork.keep()
    assert {one.key for one in store.search(("notes",))} == {"hello", "bye"}


def test_a_log_that_holds_another_future_is_named_before_a_memory_that_could_replace_it() -> None:
    memory, log = Lessons(), Rows()
    branch = Branch(new_moment())
    for told, place in (("one", branch.play()), ("other", branch.outside())):
        with place:
            memory.add([Lesson("r/0/0", told, instruction="a task")])
            log.append({"id": "r/0", "told": told})
    with pytest.raises(BranchError, match="a log keeps what came first"):
        branch.keep()
