"""The study of JitRL's values: what it plays is what the graphs play, and its worlds, variants, controls and tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, HumanMessage

from learngraph.graphs import jitrl
from learngraph.graphs.baselines import static, tabular
from learngraph.graphs.experiments import jitrl_values
from learngraph.graphs.experiments.jitrl_values import StudyRun, compare_arms, read_runs, read_seed_range, search_table
from learngraph.graphs.experiments.recorded_worlds import RecordedScorer, RecordedWorld
from learngraph.graphs.experiments.reward_variants import (
    GIVE_UP,
    VARIANTS,
    GiveUpPolicy,
    LeaningPolicy,
    RewardVariant,
    VariantWorld,
    hindsight_rewards,
    solution_by_state,
)
from learngraph.graphs.experiments.value_arms import ARMS, StudyArm, play_arm
from learngraph.graphs.jitrl import JitRL
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs, uniform_policy
from learngraph.memory.records import Observation, Task, Trajectory, Transition
from learngraph.memory.returns.q_table import QTable, count_note
from learngraph.memory.storage.cache import Cache
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.act.policies import LocalPolicy, PromptView, UniformPolicy
from learngraph.nodes.prompt import Prompt
from learngraph.tools.environments.keyword_keep import KeywordKeep

PLAIN = VARIANTS["plain"]


class CountingKeep(KeywordKeep):
    """The toy, which counts the observations that it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        self.asked += 1
        return super().observe(task, actions)


class LengthScorer:
    """A model that likes short replies, and counts what it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def score(self, messages: Sequence[BaseMessage], options: Sequence[str]) -> Sequence[float]:
        self.asked += 1
        return [-float(len(option)) for option in options]


def length_policy(view: PromptView) -> Any:
    return LocalPolicy(LengthScorer(), view, Prompt.load("act/score"))


def engine_scores(build: Callable[..., Any], settings: Any, task: Task, episodes: int) -> list[float]:
    """The scores of the real graph, run by LangGraph's engine."""
    inputs = MethodInputs(KeywordKeep(), Journal(), length_policy, history_steps=0)
    found = run.build(build(inputs, settings)).invoke({"task": task, "run": task.id, "episode": 0, "episodes": episodes})
    return list(found["scores"])


@pytest.mark.parametrize(
    ("arm", "build", "settings"),
    [
        ("jitrl", jitrl.build, JitRL()),
        ("paper", jitrl.build, replace(JitRL.paper(), state_key="room", threshold_decay=0.0)),
        ("paper-history", jitrl.build, JitRL.paper()),
        ("reference", jitrl.build, replace(JitRL.reference(), state_key="room")),
        ("reference-history", jitrl.build, JitRL.reference()),
        ("static", static.build, static.Static()),
        ("tabular", tabular.build, tabular.Tabular()),
    ],
)
def test_a_seed_scores_what_the_real_graph_scores(arm: str, build: Callable[..., Any], settings: Any) -> None:
    task = KeywordKeep().task(1, "train")
    scores = play_arm(ARMS[arm], PLAIN, RecordedWorld(KeywordKeep()), task, 12, length_policy)
    assert scores == engine_scores(build, settings, task, 12)
    assert len(set(scores)) > 1


# Records


def test_a_recorded_world_asks_once_and_keeps_it_on_the_disk(tmp_path: Path) -> None:
    keep = CountingKeep()
    task, path = keep.task(0), keep.gold(keep.task(0))
    world = RecordedWorld(keep, tmp_path)
    seen = [world.observe(task, path[:n]) for n in range(4)]
    assert seen == [KeywordKeep().observe(task, path[:n]) for n in range(4)]
    assert keep.asked == 4
    assert world.score(task, path) == keep.optimum(task)
    asked = keep.asked
    world.save()
    again = RecordedWorld(keep, tmp_path)
    assert [again.observe(task, path[:n]) for n in range(4)] == seen
    assert again.score(task, path) == keep.optimum(task)
    assert keep.asked == asked


def test_two_writers_of_one_task_lose_nothing(tmp_path: Path) -> None:
    keep = CountingKeep()
    task = keep.task(0)
    first, second = RecordedWorld(keep, tmp_path), RecordedWorld(keep, tmp_path)
    actions = keep.observe(task, ()).actions
    assert first.observe(task, actions[:1])
    assert second.observe(task, actions[1:2])
    first.save()
    second.save()
    asked, third = keep.asked, RecordedWorld(keep, tmp_path)
    assert third.observe(task, actions[:1]) == KeywordKeep().observe(task, actions[:1])
    assert third.observe(task, actions[1:2]) == KeywordKeep().observe(task, actions[1:2])
    assert keep.asked == asked


def test_another_task_has_a_tree_of_its_own() -> None:
    keep = KeywordKeep()
    world = RecordedWorld(keep)
    for seed in (0, 1, 0):
        assert world.observe(keep.task(seed), ()) == keep.observe(keep.task(seed), ())


def test_recorded_scores_are_asked_for_once_by_all_processes(tmp_path: Path) -> None:
    model = LengthScorer()
    messages = [HumanMessage("door red")]
    for _ in range(2):  # the second one stands for another process
        scorer = RecordedScorer("m", lambda: model, Cache(tmp_path / "scores.sqlite"))
        assert scorer.score(messages, ["a", "bb"]) == [-1, -2] == scorer.score(messages, ["a", "bb"])
    assert model.asked == 1
    scorer.score(messages, ["bb", "a"])
    scorer.score([HumanMessage("door blue")], ["a", "bb"])
    assert model.asked == 3


# Variants


def test_a_constant_is_in_every_reward_and_in_no_score() -> None:
    keep = KeywordKeep()
    task, path = keep.task(0), keep.gold(keep.task(0))
    world = VariantWorld(RecordedWorld(keep), shift=-0.25)
    assert world.observe(task, ()).reward == 0
    assert [world.observe(task, path[: n + 1]).reward for n in range(2)] == [0.75, 0.75]
    assert world.score(task, path) == 10


def test_giving_up_ends_the_episode_and_costs_no_points() -> None:
    keep = KeywordKeep()
    task, path = keep.task(0), keep.gold(keep.task(0))
    world = VariantWorld(RecordedWorld(keep), shift=0.5, gives_up=True)
    assert GIVE_UP in world.observe(task, path[:3]).actions
    assert world.observe(task, path).actions == ()
    end = world.observe(task, [*path[:3], GIVE_UP])
    assert (end.over, end.reward, end.actions) == (True, 0.5, ())
    assert world.score(task, [*path[:3], GIVE_UP]) == 3


def state_at(world: Any, task: Task, actions: Sequence[str] = ()) -> Any:
    return {"task": task, "run": "r", "episode": 0, "step": 0, "head": "", "observation": world.observe(task, actions)}


def test_giving_up_has_the_share_of_one_action() -> None:
    world = VariantWorld(RecordedWorld(KeywordKeep()), gives_up=True)
    state = state_at(world, KeywordKeep().task(0))
    chances = {c.action: math.exp(c.logit) for c in GiveUpPolicy(UniformPolicy())(state)["candidates"]}
    assert tuple(chances) == state["observation"].actions
    assert chances == pytest.approx(dict.fromkeys(chances, 1 / len(chances)))


@pytest.mark.parametrize("is_right", [True, False])
def test_a_leaning_prior_is_sure_of_one_action_along_the_solution(is_right: bool) -> None:
    keep = KeywordKeep()
    world, task = RecordedWorld(keep), keep.task(0)
    policy, solution = LeaningPolicy(world, 0.9, is_right), solution_by_state(world, task)
    for n in range(len(keep.gold(task))):
        shown = state_at(world, task, keep.gold(task)[:n])
        chances = {c.action: math.exp(c.logit) for c in policy(shown)["candidates"]}
        assert math.fsum(chances.values()) == pytest.approx(1)
        sure = max(chances, key=lambda action: chances[action])
        assert chances[sure] == pytest.approx(0.9)
        assert (sure == solution[world.abstract(shown["observation"])]) is is_right
        assert policy(shown) == policy(shown)


def test_hindsight_rewards_worked_out_by_hand() -> None:
    assert hindsight_rewards([0, 0, 1, -1, 0, 2, 0]) == pytest.approx([8.1, 9, 10, -5, 9, 10, -2])
    assert hindsight_rewards([0, -1, 0]) == [-2, -5, -2]
    assert hindsight_rewards([]) == []


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=lambda variant: variant.name)
def test_every_arm_plays_every_variant(variant: RewardVariant) -> None:
    world = RecordedWorld(KeywordKeep())
    task = world.task(1, "train")
    for arm in ARMS.values():
        scores = play_arm(arm, variant, world, task, 2, uniform_policy)
        assert len(scores) == 2
        assert all(0 <= score <= 10 for score in scores)


# Controls


def test_without_memory_nothing_is_learned_from_earlier_episodes() -> None:
    """The same draws then play the same episodes as the arm would as its first."""
    world = RecordedWorld(KeywordKeep())
    task = world.task(2, "train")
    whole, cut = (play_arm(ARMS[name], PLAIN, world, task, 20, uniform_policy) for name in ("jitrl", "jitrl-cut"))
    assert whole[0] == cut[0]
    assert sum(whole[-3:]) > sum(cut[-3:])


# The table with optimism


def trajectory(*steps: tuple[str, str, float], counts: Sequence[int], episode: int = 0) -> Trajectory:
    transitions = tuple(Transition(*step) for step in steps)
    return Trajectory(f"r/{episode}", Task("t", ""), transitions, "r", episode, note=count_note(counts))


def test_an_optimistic_table_by_hand() -> None:
    """Q0 = 4, gamma 1/2, rate 1/2. The state t has two actions, one of them untried, until the second episode."""
    table = QTable(gamma=0.5, learning_rate=0.5, initial_value=4.0)
    table.add(trajectory(("s", "a", 0.0), ("t", "b", 1.0), counts=(2, 2)))
    assert table.values("r", 1, "t", ["b", "c"]) == [4 + 0.5 * (1 - 4), 4]
    assert table.values("r", 1, "s", ["a", "d"]) == [4 + 0.5 * (0 + 0.5 * 4 - 4), 4]  # max over t: the untried c
    table.add(trajectory(("s", "a", 0.0), ("t", "c", 0.0), counts=(2, 2), episode=1))
    assert table.values("r", 2, "t", ["b", "c"]) == [2.5, 2]
    assert table.values("r", 2, "s", ["a", "d"]) == [3 + 0.5 * (0.5 * 2.5 - 3), 4]  # nothing in t is untried


def test_optimism_tries_every_action_of_a_state() -> None:
    world, table = KeywordKeep(), QTable(initial_value=20.0)
    task = world.task(0)
    graph = tabular.build(MethodInputs(world), tabular.Tabular(epsilon=0.0, initial_value=20.0), table=table)
    start = world.observe(task, ())
    for episode in range(len(start.actions)):
        graph.invoke({"task": task, "run": "r", "episode": episode})
    assert 20.0 not in table.values("r", len(start.actions), world.abstract(start), start.actions)


# The command


def test_seeds_are_numbers_and_ranges() -> None:
    assert read_seed_range("0-3,7") == [0, 1, 2, 3, 7]
    with pytest.raises(jitrl_values.CommandError, match="ranges like 0-19"):
        read_seed_range("three")


def study_run(arm: str, seed: int) -> StudyRun:
    return StudyRun("toy", "test", "plain", arm, seed, 2, "d")


def test_arms_are_compared_task_by_task() -> None:
    runs = {
        study_run("jitrl", 0): [1.0, 3.0],
        study_run("jitrl", 1): [4.0, 6.0],
        study_run("static", 0): [0.0, 1.0],
        study_run("static", 1): [2.0, 5.0],
        study_run("level", 0): [2.0, 2.0],
        study_run("level", 1): [5.0, 5.0],
    }
    ours, theirs, level = compare_arms(runs)
    assert (ours.average, theirs.average, theirs.lead) == (3.5, 2.0, 1.5)
    assert theirs.lead_ci == pytest.approx((1.5, 1.5))
    assert (ours.mark, theirs.mark, level.mark) == ("", "ahead", "")
    assert "| static | +1.5" not in search_table([ours, theirs, level])
    assert search_table([ours, theirs, level]).splitlines()[-1].startswith("| static")


def test_a_report_goes_on_from_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs.jsonl"
    command = ["report", "--out", str(out), "--worlds", "toy", "--variants", "uniform", "--arms", "static"]
    command += ["--episodes", "2", "--cache", str(tmp_path / "cache")]
    assert jitrl_values.main([*command, "--seeds", "0-1"]) == 0
    table = capsys.readouterr().out
    assert "### toy, uniform" in table
    assert "| static" in table
    whole = out.read_text()
    assert len(read_runs(out)) == 4
    out.write_text(whole[:-20])  # the last line was cut off
    assert jitrl_values.main([*command, "--seeds", "0-1"]) == 0
    assert capsys.readouterr().out == table
    assert len(read_runs(out)) == 4
    assert sum(bool(line) for line in out.read_text().splitlines()) == 5  # with the one that was cut off


def test_a_world_that_is_not_installed_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JERICHO_GAMES", raising=False)
    command = ["report", "--out", str(tmp_path / "runs.jsonl"), "--worlds", "jericho:zork1"]
    assert jitrl_values.main(command) == 0
    assert "left out jericho:zork1: jericho:zork1 needs" in capsys.readouterr().err


def test_settings_that_change_make_another_run() -> None:
    usual = StudyArm("jitrl")
    assert usual.digest("toy", PLAIN) == StudyArm("jitrl", {"beta": JitRL().beta}).digest("toy", PLAIN)
    assert usual.digest("toy", PLAIN) != StudyArm("jitrl", {"beta": 3.0}).digest("toy", PLAIN)
