"""The control arm and the items that are withheld: what is drawn, what is kept of it, and what follows."""

from random import Random
from typing import Any

import help_desk as desk
import pytest
from langgraph.store.memory import InMemoryStore
from learning_agents import METHODS, PLAIN, advice, make
from variants import quick

from learngraph.graphs.agents.lift import ThreadTrial, TrialLedger, TrialPlan
from learngraph.memory.conversations.trials import MemoryTrial
from learngraph.memory.errors import UserError


@pytest.mark.parametrize("method", quick(METHODS, "icrl", "synapse"))
def test_every_method_has_a_control_arm_and_withholds_items(method: str) -> None:
    """Half of the threads get no advice though memory has some; of the others half have an item withheld. Restarts agree."""
    store = InMemoryStore()
    agent, learner, model = make(method, store, control=0.5, holdout=0.5)
    desk.play(agent, learner, range(24))
    drawn = {n: [one["trial"] for one in advice(learner, f"t{n}") if "trial" in one] for n in range(24)}
    control = [n for n, found in drawn.items() if found and not found[0]["is_advised"]]
    withheld = [n for n, found in drawn.items() if found and not found[0].get("is_shown", True)]
    assert control
    assert withheld
    calls = [one for n in range(24) for one in advice(learner, f"t{n}") if one["recalled"] and one.get("consulted", True)]
    shown = sum(one["trial"]["is_advised"] for one in calls)
    assert learner.status(tenant="acme").recalled == shown < len(calls), "what is withheld helps nobody"
    found = learner.lift(tenant="acme")
    assert found.memory is not None
    assert found.memory.without == len(control)
    assert found.memory.trials == sum(bool(one) for one in drawn.values())
    assert sum(row.without for row in found.items) == len(withheld)
    assert "no advice was given: the thread belongs to the control arm" in learner.explain(f"t{control[0]}", tenant="acme")
    assert "withheld, to see what it is worth" in learner.explain(f"t{withheld[0]}", tenant="acme")
    assert "alike enough; the nearest had similarity 1.00" not in "".join(
        learner.explain(f"t{n}", tenant="acme") for n in range(24)
    )
    model.seen.clear()
    again, _, model = make(method, store, control=0.5, holdout=0.5, model=model)
    desk.play(again, learner, [control[0]])
    assert {text.strip() for text in model.seen} == {PLAIN}
    assert learner.forget(tenant="acme")
    assert learner.lift(tenant="acme").memory is None


def trial(n: int, *, shown: bool, reward: float, item: str = "t0/0") -> MemoryTrial:
    return MemoryTrial(f"synapse/x{n}", f"x{n}", "agent", reward, float(n), True, 1.0, item, shown, 0.5, 10)


def test_equal_rewards_differ_by_nothing() -> None:
    ledger = TrialLedger("synapse")
    ledger.add([trial(n, shown=n % 3 > 0, reward=0.0) for n in range(10)])
    assert [row.lift for row in ledger.lift().items] == [0.0]


def test_an_item_that_harms_is_retired_and_said_to_be() -> None:
    store = InMemoryStore()
    agent, learner, model = make("synapse", store, holdout=0.5, min_lift=0.0, state_key=desk.issue, refresh_seconds=0.0)
    for n in (0, 4):
        agent.invoke({"messages": desk.ticket(0)[0]}, {"configurable": {"thread_id": f"t{n}", "tenant": "acme"}})
        learner.feedback(f"t{n}", reward=1.0, tenant="acme")
    kept = learner._conversations({"tenant": "acme"})
    kept.trials.put([trial(n, shown=bool(n % 2), reward=float(n % 2 == 0)) for n in range(80)])
    learner._rebuild_indexes()
    model.seen.clear()
    for n in range(10, 14):
        agent.invoke({"messages": desk.ticket(0)[0]}, {"configurable": {"thread_id": f"t{n}", "tenant": "acme"}})
    recalled = {id for n in range(10, 14) for one in advice(learner, f"t{n}") for id in one["recalled"]}
    assert recalled == {"t4/0"}
    assert "retired t0/0, whose lift is -0.9" in str(learner.status(tenant="acme"))
    assert learner.lift(tenant="acme").retired == ("t0/0",)
    assert "| t0/0" in learner.lift(tenant="acme").table()


def test_the_item_with_the_fewest_trials_is_tried_and_retired_ones_are_left_out() -> None:
    ledger = TrialLedger("synapse", min_lift=0.0)
    ledger.add([trial(n, shown=bool(n % 2), reward=float(n % 2 == 0), item="bad") for n in range(80)])
    ledger.add([trial(100, shown=True, reward=1.0, item="tried")])
    drawn = TrialPlan(holdout=0.5, min_lift=0.0).draw("synapse/x", ledger, None, is_guided=True)
    out = drawn.left_out(["bad", "tried", "new"])
    assert drawn.record["item"] == "new"
    assert set(out) == ({"bad"} if drawn.record["is_shown"] else {"bad", "new"})
    assert any(one.startswith("left out, since it is retired: bad") for one in drawn.said)
    later = TrialPlan(holdout=0.5).draw("synapse/x", TrialLedger("synapse"), drawn.record, is_guided=True)
    assert set(later.left_out(["tried", "new"])) == set(out) - {"bad"}, "a thread keeps its draw"
    assert not ThreadTrial().left_out(["new"]), "nothing is tried where nothing is asked for"


@pytest.mark.parametrize(
    ("options", "said"),
    [({"control": 0.7}, "control is a number from 0 to 0.5; got 0.7"), ({"min_lift": 0.0}, "needs holdout=, such as 0.05")],
)
def test_a_plan_that_cannot_work_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        TrialPlan(**options)


def test_without_trials_it_says_what_to_give() -> None:
    _, learner, _ = make("synapse")
    assert "give control=0.1 or holdout=0.05" in str(learner.lift(tenant="acme"))


def test_without_a_control_nobody_is_blamed_for_ratings() -> None:
    ledger = TrialLedger("synapse")
    ledger.add([MemoryTrial(f"synapse/x{n}", f"x{n}", "agent", 1.0, float(n), True, 0.9) for n in range(8)])
    assert "; no conversation of the control is rated yet" in str(ledger.lift())


@pytest.mark.parametrize("seed", range(3))
def test_a_stream_in_which_only_errors_are_rated_is_no_sign_of_harm(seed: int) -> None:
    """Advice halves the errors and more; a person corrects errors alone, and mends an easy one, as most are without advice."""
    random, ledger, unrated = Random(seed), TrialLedger("synapse"), list[dict[str, Any]]()
    for n in range(600):
        advised, luck = random.random() < 0.7, random.random()
        if luck < (0.25 if advised else 0.75):
            reward = float(not advised and luck > 0.1)
            ledger.add([MemoryTrial(f"synapse/x{n}", f"x{n}", "agent", reward, float(n), advised, 0.7)])
        else:
            unrated.append({"is_advised": advised, "share": 0.7})
    naive: Any = ledger.lift().memory
    assert naive.interval[1] < 0, "the rated ones alone look like harm"
    ledger.unrated = unrated
    found: Any = ledger.lift()
    assert found.memory.interval[0] < 0 < found.memory.interval[1]
    assert found.memory.rated == pytest.approx((0.25, 0.75), abs=0.08)
    assert "whether it helps cannot be told: " in str(found)
    assert "earned less than the control" not in str(found)


def test_harm_is_found_where_both_arms_are_rated_alike_and_no_lift_is_beyond_its_interval() -> None:
    random, ledger = Random(0), TrialLedger("synapse")
    drawn = [(n, random.random() < 0.7, random.random()) for n in range(600)]
    ledger.add(
        [MemoryTrial(f"synapse/{n}", f"{n}", "agent", float(luck > 0.2 + 0.5 * a), float(n), a, 0.7) for n, a, luck in drawn]
    )
    ledger.unrated = [{"is_advised": a, "share": 0.7} for _, a, _ in drawn]
    found: Any = ledger.lift().memory
    assert (found.interval[1] < 0, found.is_selected) == (True, False)
    ledger = TrialLedger("synapse")
    ledger.add([MemoryTrial(f"synapse/{n}", f"{n}", "agent", float(n % 2), float(n), n % 2 == 1, 0.9) for n in range(8)])
    found = ledger.lift().memory
    assert found.interval[0] <= found.lift <= found.interval[1]


def test_an_item_is_not_retired_because_those_without_it_are_rated_by_other_people() -> None:
    ledger = TrialLedger("synapse", min_lift=0.0)
    trials = [trial(n, shown=bool(n % 2), reward=float(n % 2 == 0)) for n in range(80)]
    assert not ledger.add(trials, lambda method: [{"is_advised": True, "share": 1.0, "item": "t0/0", "is_shown": True}] * 400)
    assert TrialLedger("synapse", min_lift=0.0).add(trials, lambda method: [])


def test_a_lift_prints_ten_items_and_its_table_has_all() -> None:
    ledger = TrialLedger("synapse")
    ledger.add([trial(n, shown=True, reward=float(n % 2), item=f"one {n}") for n in range(100)])
    ledger.add([trial(n, shown=bool(n % 2), reward=float(n % 2), item="both") for n in range(100, 110)])
    said, lines = str(found := ledger.lift()), found.table().splitlines()
    assert len(lines) == 2 + 101
    assert (len(said.splitlines()), said.splitlines()[-1]) == (1 + 2 + 10 + 1, "91 more items: table() has all")
    assert [line.split("|")[1].strip() for line in said.splitlines()[3:5]] == ["both", "one 0"], "what can be told comes first"
