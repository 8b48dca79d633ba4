"""JitRL as a graph: it learns, only through its memory; it resumes, forks and embeds like any LangGraph graph."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import variance
from typing import Any, ClassVar

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import StateGraph
from scripted_chat import ScriptedChat
from typing_extensions import TypedDict

from learngraph.graphs import jitrl
from learngraph.graphs.baselines import static, tabular
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.graphs.wiring.supersteps import merge_steps
from learngraph.memory.errors import UserError
from learngraph.memory.records import Candidate, Neighbour, Observation, Task, Trajectory, Transition, Usage
from learngraph.memory.returns.experiences import Experiences
from learngraph.memory.search.sections import Section, SectionSimilarity, join_sections
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.rows import Rows
from learngraph.nodes.evaluate.judge import model_judge
from learngraph.nodes.retrieve.recall import Recall
from learngraph.nodes.state import EpisodeChannels
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.environments.text_world_express import TextWorldExpress

TOY = KeywordKeep()


def episode(memory: Experiences | None = None, journal: Journal | None = None, **more: Any) -> Any:
    """A JitRL episode in the toy world with a uniform prior."""
    settings = more.pop("settings", jitrl.JitRL(gamma=0.5))
    inputs = MethodInputs(TOY, journal if journal is not None else Journal(), judge=more.pop("judge", None))
    return jitrl.build(inputs, settings, experiences=memory, **more)


def scores(graph: Any, seed: int = 0, episodes: int = 20) -> list[float]:
    plan = {"task": TOY.task(seed), "run": f"r{seed}", "episode": 0, "episodes": episodes}
    found: list[float] = run.build(graph).invoke(plan)["scores"]
    return found


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


@pytest.mark.slow
def test_it_learns_and_only_through_its_memory_and_its_rewards() -> None:
    """Toy world, uniform prior, 2 seeds: from .2 of the optimum to over .8; without memory or rewards it stays near static's .2, and
    shuffled returns cost it much."""
    plain, ends = jitrl.JitRL(), dict[str, float]()
    assert mean([scores(merge_steps(episode()), seed, episodes=1)[0] for seed in range(2)]) < 5
    controls = {
        "cut": replace(plain, memory_control="cut"),
        "zero": replace(plain, memory_control="zero"),
        "shuffled": replace(plain, memory_control="shuffled"),
    }
    for name, settings in {"none": plain, **controls}.items():
        ends[name] = mean([mean(scores(merge_steps(episode(settings=settings)), seed, 12)[-5:]) for seed in range(2)])
    assert ends["none"] > 8
    assert max(ends["cut"], ends["zero"]) < 4
    assert ends["shuffled"] < ends["none"] - 1.5


@pytest.mark.slow
def test_it_learns_a_published_game_and_only_through_its_memory() -> None:
    """TextWorldExpress's coin collector, uniform prior, 2 maps: the coin is found again, or not if nothing is remembered."""
    pytest.importorskip("textworld_express", reason="needs the extra [worlds]")
    world = TextWorldExpress("coin")

    def final(**settings: Any) -> float:
        ends = []
        for seed in range(2):
            graph = merge_steps(jitrl.build(MethodInputs(world), jitrl.JitRL(**settings)))
            plan = {"task": world.task(seed), "run": f"r{seed}", "episode": 0, "episodes": 14}
            ends += run.build(graph).invoke(plan)["scores"][-4:]
        return mean(ends)

    try:
        assert final() > 0.9
        assert final(memory_control="cut") < 0.7
    finally:
        world.close()


@pytest.mark.slow
def test_static_does_not_learn_and_a_table_does() -> None:
    still = [scores(merge_steps(static.build(MethodInputs(TOY))), seed) for seed in range(4)]
    assert abs(mean([mean(s[-5:]) for s in still]) - mean([mean(s[:5]) for s in still])) < 1.5
    table = [scores(merge_steps(tabular.build(MethodInputs(TOY))), seed) for seed in range(4)]
    assert mean([mean(s[-5:]) for s in table]) > 6


REFERENCE = replace(jitrl.JitRL.reference(), evaluator="environment")
OF_TABLES = [
    jitrl.JitRL.paper_equations(),
    REFERENCE,
    replace(jitrl.JitRL.paper_web(), evaluator="environment", state_key="room"),
]


@pytest.mark.parametrize("settings", OF_TABLES)
def test_the_published_presets_run(settings: jitrl.JitRL) -> None:
    assert len(scores(episode(settings=settings), episodes=4)) == 4


@pytest.mark.slow
def test_same_run_same_numbers_whether_chained_async_or_not() -> None:
    plain = scores(episode())
    assert scores(merge_steps(episode())) == plain
    plan = {"task": TOY.task(0), "run": "r0", "episode": 0, "episodes": 20}
    assert asyncio.run(run.build(episode()).ainvoke(plan))["scores"] == plain
    other = {**plan, "run": "another"}
    assert run.build(episode()).invoke(other)["scores"] != plain


class Rooms(KeywordKeep):
    """The toy world, with keys in two sections, of which the room must be equal and the rest hardly counts."""

    state_similarity: ClassVar[SectionSimilarity] = SectionSimilarity(
        {"room": Section(minimum=1.0), "rest": Section(weight=0.01)}
    )

    def abstract(self, observation: Observation) -> str:
        room, _, rest = super().abstract(observation).partition("\n")
        return join_sections({"room": room, "rest": rest})


OF_THE_WORLD = [jitrl.JitRL(), replace(jitrl.JitRL.paper_equations(), state_key="room"), replace(REFERENCE, state_key="room")]


@pytest.mark.parametrize("settings", OF_THE_WORLD, ids=lambda settings: settings.advantage_estimator)
def test_every_estimator_compares_states_as_the_world_says(settings: jitrl.JitRL) -> None:
    world, journal = Rooms(), Journal()
    inputs = MethodInputs(world, journal)
    memory = jitrl.open_memory(settings, inputs)
    assert memory.similarity == world.state_similarity
    assert jitrl.open_memory(settings, MethodInputs(TOY, journal)).similarity != world.state_similarity
    states = [join_sections({"room": room, "rest": "a lamp"}) for room in ("hall", "cave")]
    memory.add(Trajectory("r/0", TOY.task(0), tuple(Transition(one, "go", 1.0) for one in states), run="r", domain=world.name))
    query = join_sections({"room": "cave", "rest": "no lamp at all"})
    (found,) = memory.neighbours(query, 10, settings.min_similarity, task=TOY.task(0).id, domain=world.name)
    assert found.count == 1
    result = merge_steps(jitrl.build(inputs, settings)).invoke({"task": world.task(0), "run": "r0", "episode": 0})
    assert result["step"] > 0


def config(thread: str = "1", **more: Any) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, **more}}


def attempt(number: int = 0) -> dict[str, Any]:
    return {"task": TOY.task(0), "run": "r0", "episode": number}


def test_one_episode_node_by_node() -> None:
    graph = episode(checkpointer=InMemorySaver())
    graph.invoke(attempt(), config(), interrupt_before=["choose"])
    state = graph.get_state(config())
    assert state.next == ("choose",)
    assert len(state.values["candidates"]) == len(state.values["estimates"]) == len(state.values["prior"])
    graph.invoke(None, config(), interrupt_before=["choose"])
    assert graph.get_state(config()).values["step"] == 1
    out = graph.invoke(None, config())
    assert set(out) == {"task", "episode", "score", "best", "earned", "unjudged", "step", "head", "usage"}


def test_edit_the_state_and_fork() -> None:
    """Go back to a decision, take another action there: another future, and the first one is still there."""
    journal = Journal()
    graph = episode(journal=journal, checkpointer=InMemorySaver())
    first = graph.invoke(attempt(), config())
    history = list(graph.get_state_history(config()))
    at = next(s for s in history if s.next == ("act",) and s.values["step"] == 3)
    other = next(a for a in at.values["observation"].actions if a != at.values["action"])
    second = graph.invoke(None, graph.update_state(at.config, {"action": other}))
    one, two = journal.history(first["head"]), journal.history(second["head"])
    assert one[:3] == two[:3]
    assert two[3].action == other != one[3].action
    again = graph.invoke(None, graph.update_state(at.config, {"action": at.values["action"]}))
    assert again["head"] == first["head"]


def test_a_replayed_episode_does_not_see_what_it_learned_the_first_time() -> None:
    memory, journal = Experiences(gamma=0.5), Journal()
    graph = episode(memory, journal, checkpointer=InMemorySaver())
    for n in range(4):
        last = graph.invoke(attempt(n), config(f"{n}"))
    count = len(memory)
    start = list(graph.get_state_history(config("3")))[-2]
    assert graph.invoke(None, start.config)["head"] == last["head"]
    assert len(memory) == count


def test_memory_outlives_the_graph(tmp_path: Path) -> None:
    """What one graph learned, another one starts with."""
    from langgraph.store.memory import InMemoryStore

    from learngraph.memory.storage.record_store import RecordStore

    store = InMemoryStore()
    records = RecordStore(store, ("toy",), Trajectory)
    first = scores(merge_steps(episode(Experiences(records, gamma=0.5))), episodes=15)
    again = Experiences(RecordStore(store, ("toy",), Trajectory), gamma=0.5)
    plan = {"task": TOY.task(0), "run": "later", "episode": 0, "episodes": 5}
    assert mean(run.build(merge_steps(episode(again))).invoke(plan)["scores"]) > mean(first[:2]) + 3


def test_the_memory_is_made_from_the_store_unless_one_is_given() -> None:
    from langgraph.store.memory import InMemoryStore

    from learngraph.memory.storage.record_store import RecordStore

    records = RecordStore(InMemoryStore(), ("toy",), Trajectory)
    assert len(scores(jitrl.build(MethodInputs(TOY, records=records)), episodes=3)) == 3
    assert [trajectory.episode for trajectory in records.all()] == [0, 1, 2]
    memory = Experiences(gamma=0.8)
    scores(jitrl.build(MethodInputs(TOY, records=records), experiences=memory), episodes=2)
    assert len({experience.id.rpartition("/")[0] for experience in memory}) == 2
    assert len([*records.all()]) == 3


def test_cross_task_memory_is_a_switch() -> None:
    memory = Experiences(gamma=0.5)
    scores(merge_steps(episode(memory)), seed=0, episodes=10)
    task = TOY.variant(TOY.task(0), 1)
    plan = {"task": task, "run": "other", "episode": 0, "episodes": 1}

    def recalled(plan: Any, **tasks: bool) -> Any:
        graph = episode(memory, settings=jitrl.JitRL(gamma=0.5, **tasks), checkpointer=InMemorySaver())
        graph.invoke(plan, config(), interrupt_after=["recall"])
        values = graph.get_state(config()).values
        assert values["hits"] == [sum(n.count for n in values["neighbours"]), sum(n.elsewhere for n in values["neighbours"])]
        return values["hits"]

    assert recalled(plan) == [0, 0]
    found, elsewhere = recalled(plan, cross_task=True)
    assert found == elsewhere > 0  # all of it from the other task
    same = {**plan, "task": TOY.task(0)}
    assert recalled(same) == recalled(same, cross_task=True) == [found, 0]
    assert recalled(same, cross_task=True, only_other_tasks=True) == [0, 0]
    with pytest.raises(UserError, match="only_other_tasks=True recalls nothing without cross_task=True"):
        jitrl.JitRL(only_other_tasks=True)


# Visits that led nowhere


class Pit(KeywordKeep):
    """The toy world with a losing action at every place: `jump` ends the episode, and costs no points."""

    name = "pit"

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        if "jump" in actions:
            before = super().observe(task, list(actions)[: list(actions).index("jump")])
            return Observation(before.text, (), 0.0, True)
        shown = super().observe(task, actions)
        return replace(shown, actions=() if shown.over else tuple(sorted((*shown.actions, "jump"))))


@pytest.mark.slow
def test_what_lost_an_episode_is_not_done_again_though_it_cost_nothing() -> None:
    """A third of all first episodes end in the pit within four steps; without the penalty more of the later ones do."""

    def early_ends(penalty: float) -> int:
        ends = 0
        for seed in range(4):
            graph = merge_steps(jitrl.build(MethodInputs(Pit()), jitrl.JitRL(repeat_penalty=penalty)))
            log = Rows()
            plan = {"task": Pit().task(seed), "run": f"r{seed}", "episode": 0, "episodes": 20}
            run.build(graph, log).invoke(plan)
            ends += sum(row["steps"] < 9 for row in [*log.values()][5:])
        return ends

    assert early_ends(0.5) < 0.7 * early_ends(0.0)


def test_repeats_since_the_last_progress_are_recalled() -> None:
    """Two times `look` at one place, then the right answer: the count of that place starts anew."""
    journal = Journal()
    task = TOY.task(0)
    place, right = TOY.path(task)[0], TOY.gold(task)[0]
    recall = Recall(Experiences(), TOY, k=1, threshold=1.0, journal=journal)
    state = {**attempt(), "observation": TOY.observe(task, ()), "head": Journal.start("r0", 0, task.id)}
    for action, expected in (("wait", {"wait": 1}), ("wait", {"wait": 2})):
        state["head"] = journal.append(state["head"], Transition(place, action, 0.0))
        assert recall(state)["repeats"] == expected  # type: ignore[arg-type]
    state["head"] = journal.append(state["head"], Transition(place, right, 1.0))
    assert recall(state)["repeats"] == {}  # type: ignore[arg-type]


# The judge


def judge(*replies: str) -> Any:
    return ScriptedChat(replies=list(replies))


def test_a_model_can_judge_the_steps() -> None:
    journal, memory = Journal(), Experiences(gamma=0.0)
    rewards = [float(n % 3) for n in range(16)]
    graph = episode(
        memory, journal, settings=jitrl.JitRL(gamma=0.0), judge=model_judge(judge(f'Here: {{"rewards": {rewards}}}'), journal)
    )
    out = graph.invoke(attempt())
    assert out["step"] == 16
    assert [e.value for e in memory] == rewards
    assert out["usage"].calls == 1


def test_a_failed_judge_leaves_nothing_behind_not_zeros() -> None:
    journal, memory = Journal(), Experiences(gamma=0.5)
    node = model_judge(judge("no", '{"rewards": [1]}', '{"rewards": "many"}'), journal)
    graph = episode(memory, journal, judge=node, checkpointer=InMemorySaver())
    graph.invoke(attempt(), config())
    state = graph.get_state(config()).values
    assert "jitrl/judge: asked for" in state["unjudged"]
    assert state["rewards"] == [None] * 16
    assert len(memory) == 0
    assert memory.moments(task=state["task"].id, domain=TOY.name) == (0, 0)


# Embedding


def test_as_a_subgraph_of_a_parent_with_its_own_state_and_context() -> None:
    class Parent(TypedDict):
        task: Task
        run: str
        episode: int
        score: float
        report: str

    class Context(TypedDict):
        language: str

    def report(state: Parent, runtime: Any) -> dict[str, str]:
        return {"report": f"{runtime.context['language']}: {state['score']:g}"}

    builder = StateGraph(Parent, context_schema=Context)
    builder.add_node("play", merge_steps(episode()))
    builder.add_node("report", report)
    builder.add_edge("__start__", "play")
    builder.add_edge("play", "report")
    graph = builder.compile(checkpointer=InMemorySaver())
    out = graph.invoke(attempt(), config(), context={"language": "en"})
    assert out["report"] == f"en: {out['score']:g}"
    assert "usage" not in out


def test_a_stream_names_the_nodes_in_their_order() -> None:
    seen = [name for update in episode().stream(attempt(), stream_mode="updates") for name in update]
    assert seen[:8] == ["begin", "recall", "propose", "augment", "advise", "modulate", "choose", "act"]
    assert seen[-2:] == ["judge", "remember"]


def test_checkpoints_do_not_grow_with_the_episode() -> None:
    """Plain data only, and nothing that accumulates: 300 steps into an episode a checkpoint is as large as after 30."""
    world = KeywordKeep(horizon=300)
    graph = merge_steps(static.build(MethodInputs(world, make_policy=lambda view: Look()), checkpointer=InMemorySaver()))
    graph.invoke({"task": world.task(0), "run": "r", "episode": 0}, config(), durability="async")
    states = [s.values for s in graph.get_state_history(config()) if s.next]
    size = {s["step"]: len(JsonPlusSerializer().dumps_typed(s)[1]) for s in states if "action" in s}
    assert size[299] < size[30] * 1.02 + 4
    assert size[299] < 2500


@dataclass(frozen=True)
class Look:
    """A policy that never gets anywhere."""

    def __call__(self, state: EpisodeChannels) -> dict[str, Any]:
        return {"candidates": [Candidate("back", 0.0)]}


def test_neighbours_are_what_the_memory_holds() -> None:
    memory = Experiences(gamma=0.5)
    scores(merge_steps(episode(memory)), episodes=5)
    graph = episode(memory, checkpointer=InMemorySaver())
    graph.invoke({**attempt(), "run": "x"}, config(), interrupt_after=["recall"])
    values = graph.get_state(config()).values
    place = values["observation"].text
    mine = [e for e in memory if e.state == place]
    found = values["neighbours"]
    assert all(isinstance(n, Neighbour) and n.similarity == 1 for n in found)
    assert sum(n.count for n in found) == len(mine)
    returns = [e.value for e in memory]
    assert values["average"] == pytest.approx(mean(returns))
    assert values["variance"] == pytest.approx(variance(returns))


def test_usage_is_counted_per_episode() -> None:
    """Two judged episodes: two rows of one call each, whatever the run has asked before."""
    assert Usage(1, 2, 3) + Usage(1, 1, 1) == Usage(2, 3, 4)
    journal, log = Journal(), Rows()
    replies = [f'{{"rewards": {[0.0] * 16}}}'] * 3
    graph = episode(Experiences(gamma=0.5), journal, judge=model_judge(judge(*replies), journal))
    plan = {"task": TOY.task(0), "run": "r", "episode": 0, "episodes": 3}
    run.build(graph, log).invoke(plan)
    assert [row["calls"] for row in log.values()] == [1, 1, 1]


def test_negative_controls_change_what_is_remembered_and_nothing_else() -> None:
    steps = tuple(Transition(f"s{n}", "a", float(n)) for n in range(4))
    seen = Trajectory("r/0", TOY.task(0), steps, "r", domain="toy")
    scope: Any = {"task": TOY.task(0).id, "domain": "toy"}

    def values(settings: jitrl.JitRL) -> list[float]:
        memory = settings.memory()
        memory.add(seen)
        return [one.mean for n in range(4) for one in memory.neighbours(f"s{n}", 1, 0.9, **scope)]

    plain = jitrl.JitRL(gamma=0.5)
    assert values(plain) == [1.375, 2.75, 3.5, 3.0]
    assert values(replace(plain, memory_control="cut")) == []
    assert values(replace(plain, memory_control="zero")) == [0.0] * 4
    shuffled = values(replace(plain, memory_control="shuffled"))
    assert sorted(shuffled) == sorted(values(plain))
    assert shuffled != values(plain)
    assert values(replace(plain, memory_control="shuffled")) == shuffled  # also when the memory is opened again


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"memory_control": "lost"}, "memory_control is one of none, cut, shuffled, zero; got 'lost'"),
        ({"shrinkage_visits": 0}, "shrinkage_visits is a number of at least 1e-09"),
        ({"temperature": -1}, "temperature is a number of at least 0"),
        ({"exploration_bonus": float("nan")}, "exploration_bonus is a number"),
        ({"beta": float("inf")}, "beta is a number of at least 0, and finite; got inf"),
        ({"min_prior": 2}, "min_prior is a number from 0 to 1"),
        (
            {"advantage_estimator": "paper", "shrinkage_visits": 3},
            "shrinkage_visits has no effect with advantage_estimator='paper'",
        ),
        ({"advantage_estimator": "reference", "beta": 3}, "beta has no effect with advantage_estimator='reference'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        jitrl.JitRL(**settings)


def test_memory_and_settings_must_agree() -> None:
    with pytest.raises(UserError, match=r"the settings say gamma=0.8, the memory has gamma=0.5"):
        jitrl.build(MethodInputs(TOY), experiences=Experiences(gamma=0.5))
