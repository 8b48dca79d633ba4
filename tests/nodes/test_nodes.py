"""Nodes on literal states: what goes in, which channels come out."""

import math
from typing import Any

import pytest

from learngraph.memory.records import Candidate, Estimate, Neighbour, Observation, Task, Trajectory, Transition, Usage
from learngraph.memory.returns.experiences import Experiences
from learngraph.memory.returns.q_table import QTable
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.act.choose import Choose
from learngraph.nodes.act.decide import Modulate
from learngraph.nodes.act.episode import Act, Begin
from learngraph.nodes.act.tabular import EpsilonGreedy, LookUpQValues, UpdateQTable
from learngraph.nodes.evaluate.changed_rewards import shift_judge
from learngraph.nodes.evaluate.judge import EnvironmentJudge
from learngraph.nodes.retrieve.recall import Recall, RecallVisits, ReferenceRecall, Remember
from learngraph.tools.environments.keyword_keep import KeywordKeep

TOY = KeywordKeep()
TASK = TOY.task(0)


def at(*actions: str, **more: Any) -> dict[str, Any]:
    """The state after these actions."""
    seen = TOY.observe(TASK, actions)
    state = {"task": TASK, "run": "r", "episode": 1, "observation": seen, "step": len(actions), "head": "r/1/t", "score": 0.0}
    return {**state, "best": 0.0, "earned": 0.0, **more}


def remembered(*returns: float, state: str, action: str = "back", run: str = "r", episode: int = 0) -> Trajectory:
    """An episode of single visits that were worth this, at gamma 0."""
    steps = tuple(Transition(state, action, g) for g in returns)
    return Trajectory(f"{run}/{episode}", TASK, steps, run, episode, domain=TOY.name)


def test_begin() -> None:
    out = Begin(TOY)({"task": TASK, "run": "r", "episode": 2})  # type: ignore[typeddict-item]
    assert out["observation"] == TOY.observe(TASK, ())
    assert (out["step"], out["score"], out["best"], out["usage"]) == (0, 0.0, 0.0, Usage())
    assert out["head"] == f"r/2/{TASK.id}"


def test_act_writes_the_step_once_and_empties_what_is_spent() -> None:
    journal, gold = Journal(), TOY.gold(TASK)
    act = Act(TOY, journal, journal_channels=("prior",), clear_lists=("prior", "candidates"))
    state = at(action=gold[0], prior=[-1.0], candidates=[Candidate(gold[0], 0.0)])
    out = act(state)
    assert act(state) == out
    assert len(journal) == 1
    assert out["observation"] == TOY.observe(TASK, gold[:1])
    assert journal.history(out["head"]) == (Transition(TOY.abstract(state["observation"]), gold[0], out["score"]),)
    assert (out["step"], out["best"], out["prior"], out["candidates"]) == (1, out["score"], [], [])


def test_best_keeps_what_is_taken_away_again() -> None:
    class Falling(KeywordKeep):
        def observe(self, task: Task, actions: Any) -> Observation:
            return Observation("here", ("on",), -3.0)

    out = Act(Falling(), Journal())({**at(action="on"), "score": 5.0, "best": 5.0, "earned": 5.0})
    assert (out["score"], out["best"]) == (2.0, 5.0)


def test_recall_merges_visits_and_hides_the_present_episode() -> None:
    place = TOY.abstract(at()["observation"])
    memory = Experiences(gamma=0.0)
    memory.add(remembered(1.0, 0.0, 2.0, state=place))
    memory.add(remembered(100.0, state=place, episode=1))
    out = Recall(memory, TOY, k=10, threshold=0.95)(at())  # type: ignore[arg-type]
    assert out["neighbours"] == [Neighbour("r/0/2", 1.0, "back", 3, 1.0, 2.0)]
    assert (out["average"], out["variance"]) == (1.0, 1.0)
    assert Recall(memory, TOY, k=10, threshold=0.95)({**at(), "episode": 0})["neighbours"] == []  # type: ignore[typeddict-item]


def visited(count: int) -> Experiences:
    """`count` visits to the start, worth 0 and 1 in turn, the last worth 1."""
    memory = Experiences(gamma=0.0)
    memory.add(remembered(*[float(n % 2) for n in range(count)], state=TOY.abstract(at()["observation"])))
    return memory


def test_the_papers_k_is_a_cap_and_ties_go_to_the_newest() -> None:
    found = RecallVisits(visited(20), TOY, k=10, threshold=0.95)(at())["neighbours"]  # type: ignore[arg-type]
    assert [n.id for n in found] == [f"r/0/{n}" for n in range(19, 9, -1)]
    assert sum(n.mean for n in found) / 10 == 0.5


def test_the_references_k_is_no_cap_and_its_threshold_falls() -> None:
    recall = ReferenceRecall(visited(20), TOY, k=10, threshold=0.95)
    found = recall(at())["neighbours"]  # type: ignore[arg-type]
    assert [n.mean for n in found] == [1.0] * 10 + [0.0] * 10
    other = Experiences(gamma=0.0, tokens=str.split)
    place = TOY.abstract(at()["observation"])
    other.add(remembered(1.0, state=" ".join(f"w{n}" for n in range(16)) + " " + place))
    near = ReferenceRecall(other, TOY, k=10, threshold=0.2)
    assert near(at())["neighbours"] == []  # type: ignore[arg-type]
    assert len(near({**at(), "step": 20})["neighbours"]) == 1  # type: ignore[typeddict-item]


def test_modulate_floors_the_prior_only_where_something_is_remembered() -> None:
    base = {"candidates": [Candidate("a", -0.01), Candidate("b", -20.0)]}
    estimates = [Estimate("a", 1, 0, -1, -1.0), Estimate("b", 1, 0, 1, 1.0)]
    knows = {**base, "estimates": estimates, "neighbours": [Neighbour("x", 1.0, "a", 1, 0.0)]}
    out = Modulate(beta=2.0, min_prior=0.01)(knows)  # type: ignore[arg-type]
    assert [c.logit for c in out["candidates"]] == pytest.approx([-2.01, math.log(0.01) + 2])
    assert out["prior"] == [-0.01, -20.0]
    out = Modulate(beta=2.0, min_prior=0.01)({**knows, "neighbours": []})  # type: ignore[typeddict-item]
    assert [c.logit for c in out["candidates"]] == pytest.approx([-2.01, -18.0])


def test_choose_draws_by_the_logits_and_the_place() -> None:
    candidates = [Candidate("a", math.log(0.2)), Candidate("b", math.log(0.8))]
    picks = [Choose()({**at(), "candidates": candidates, "run": f"r{n}"})["action"] for n in range(2000)]  # type: ignore[typeddict-item]
    assert picks.count("b") / 2000 == pytest.approx(0.8, abs=0.03)
    state: Any = {**at(), "candidates": candidates}
    assert Choose()(state) == Choose()(state)
    assert Choose(temperature=0)(state) == {"action": "b"}
    assert Choose(temperature=0)({**state, "candidates": [Candidate("x", 1.0), Candidate("y", 1.0)]}) == {"action": "x"}


def test_judge_and_remember() -> None:
    journal, memory = Journal(), Experiences(gamma=0.5)
    head = journal.append("r/1/t", Transition("s", "a", 1.0))
    head = journal.append(head, Transition("t", "b", 2.0))
    state: Any = at(head=head)
    judged = EnvironmentJudge(journal)(state)
    assert judged == {"rewards": [1.0, 2.0], "unjudged": ""}
    remember = Remember(memory, TOY, journal)
    assert remember({**state, **judged}) == {"earned": 3.0}
    remember({**state, **judged})
    assert [(e.id, e.state, e.action, e.value, e.domain) for e in memory] == [
        ("r/1/0", "s", "a", 2.0, TOY.name),
        ("r/1/1", "t", "b", 2.0, TOY.name),
    ]


# The tabular learner


def test_q_learning_backs_up_along_an_episode() -> None:
    """gamma 0.5, rate 0.5: Q(t,b) = 0 + .5 (4 - 0) = 2, then Q(s,a) = .5 (1 + .5 * 2) = 1."""
    table = QTable(gamma=0.5, learning_rate=0.5)
    table.add(Trajectory("r/0", TASK, (Transition("s", "a", 1.0), Transition("t", "b", 4.0)), "r", 0))
    assert table.values("r", 1, "t", ["b", "c"]) == [2.0, 0.0]
    assert table.values("r", 1, "s", ["a"]) == [1.0]
    assert table.values("r", 0, "s", ["a"]) == [0.0], "an earlier episode sees nothing of it"
    assert table.values("other", 1, "s", ["a"]) == [0.0]


def test_q_learning_forgets_a_best_value_that_has_fallen() -> None:
    table = QTable(gamma=1.0, learning_rate=1.0)
    table.add(Trajectory("r/0", TASK, (Transition("s", "a", 10.0),), "r", 0))
    table.add(Trajectory("r/1", TASK, (Transition("p", "go", 0.0), Transition("s", "a", 0.0)), "r", 1))
    assert table.values("r", 2, "s", ["a"]) == [0.0]
    assert table.values("r", 2, "p", ["go"]) == [0.0]


def test_look_up_choose_and_keep() -> None:
    journal, table = Journal(), QTable(gamma=0.5, learning_rate=1.0)
    start: Any = at()
    action = start["observation"].actions[-1]
    head = journal.append("r/1/t", Transition(TOY.abstract(start["observation"]), action, 3.0))
    UpdateQTable(table, TOY, journal)({**start, "head": head})
    later = {**start, "episode": 2}
    found = LookUpQValues(table, TOY)(later)["candidates"]
    assert {c.action: c.logit for c in found}[action] == 3.0
    judged = QTable(gamma=0.5, learning_rate=1.0)
    given = UpdateQTable(judged, TOY, journal, shift_judge(journal, "-1"))({**start, "head": head})
    assert given == {"earned": 2.0, "unjudged": ""}
    assert {c.action: c.logit for c in LookUpQValues(judged, TOY)(later)["candidates"]}[action] == 2.0
    assert EpsilonGreedy(0.0)({**later, "candidates": found}) == {"action": action}
    picks = [EpsilonGreedy(0.5)({**later, "candidates": found, "run": f"r{n}"})["action"] for n in range(1000)]
    assert picks.count(action) / 1000 == pytest.approx(0.5 + 0.5 / len(found), abs=0.05)
