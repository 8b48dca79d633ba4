"""JitRL's equations, each with numbers worked out by hand, and the reference code's conformance vectors."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learngraph.graphs.jitrl import VARIANT_NODES, JitRL
from learngraph.memory.records import Candidate, Neighbour, Observation, Task, Trajectory, Transition
from learngraph.memory.returns.experiences import Experiences
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.act.advantage import (
    action_values,
    advantages,
    normalise_advantages,
    objective,
    reference_exploration,
    reference_normalise_advantages,
    reference_returns,
    state_value,
    unseen_value,
    update_logits,
)
from learngraph.nodes.act.choose import sample_index, seeded_random, softmax
from learngraph.nodes.act.decide import (
    Augment,
    GuardedAdvice,
    Modulate,
    PaperAdvice,
    ReferenceAdvice,
    loss_shares,
    shrunk_values,
    untried_value,
)
from learngraph.tools.environments.keyword_keep import KeywordKeep


def visits(**returns: list[float]) -> list[Neighbour]:
    """One neighbour per visit, as the paper counts them."""
    return [Neighbour(f"{a}{i}", 1.0, a, 1, g) for a, gs in returns.items() for i, g in enumerate(gs)]


def test_eq_4_state_value_is_the_mean_return() -> None:
    assert state_value(visits(a=[1, 2], b=[6])) == pytest.approx(3)
    assert state_value([]) == 0


def test_eq_4_and_5_are_the_same_over_merged_statistics() -> None:
    merged = [Neighbour("x", 1.0, "a", 2, 1.5), Neighbour("y", 1.0, "b", 1, 6.0)]
    assert state_value(merged) == state_value(visits(a=[1, 2], b=[6]))
    assert action_values(merged) == action_values(visits(a=[1, 2], b=[6]))


def test_eq_5_action_value_is_the_mean_return_of_that_action() -> None:
    assert action_values(visits(a=[1, 2], b=[6])) == {"a": (2, 1.5), "b": (1, 6.0)}


def test_eq_6_unseen_action() -> None:
    assert unseen_value(3.0, visits=4, alpha=5.0, explore=True) == 3 + 5 / 4
    assert unseen_value(3.0, visits=4, alpha=5.0, explore=False) == 0
    # Over merged statistics too, |N(s)| counts visits: ten visits in one neighbour are ten.
    state = decision([Neighbour("x", 1.0, "a", 10, 2.0)], a=0.5, b=0.5)
    assert PaperAdvice(alpha=5.0, lam=1.0)(state)["estimates"][1].value == 2 + 5 / 10  # type: ignore[arg-type]


def test_eq_7_advantage() -> None:
    assert advantages({"a": 1.5, "b": 6.0}, 3.0) == {"a": -1.5, "b": 3.0}


def test_eq_25_normalised_by_the_largest_size() -> None:
    assert normalise_advantages({"a": -1.5, "b": 3.0}, epsilon=0) == {"a": -0.5, "b": 1.0}
    assert normalise_advantages({"a": 0.0}, epsilon=1e-6) == {"a": 0.0}
    assert normalise_advantages({}) == {}


def test_eq_10_logit_update() -> None:
    assert update_logits([-1.0, -2.0], [-0.5, 1.0], beta=4.0) == [-3.0, 2.0]


@given(st.lists(st.tuples(st.floats(-5, 0), st.floats(-1, 1), st.floats(0.01, 1)), min_size=2, max_size=6), st.floats(0.1, 8))
def test_theorem_4_1_the_additive_update_maximises_the_objective(rows: list[tuple[float, float, float]], beta: float) -> None:
    """Eq. 8 to 10: no distribution does better than softmax(z + beta A)."""
    z, a, other = zip(*rows, strict=True)
    prior = softmax(list(z))
    best = softmax(update_logits(z, a, beta))
    rival = [w / sum(other) for w in other]
    top = objective(best, prior, a, beta)
    assert top >= objective(rival, prior, a, beta) - 1e-9
    assert top >= objective(prior, prior, a, beta) - 1e-9
    # The maximum itself, in closed form: log of the partition function over beta.
    assert top == pytest.approx(math.log(sum(p * math.exp(beta * x) for p, x in zip(prior, a, strict=True))) / beta, abs=1e-9)
    for other_weight in (0.01, 0.3):  # and nearby, in the rival's direction
        mixed = [(1 - other_weight) * b + other_weight * r for b, r in zip(best, rival, strict=True)]
        assert top >= objective(mixed, prior, a, beta) - 1e-9


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.floats(-1e6, 1e6), min_size=1))
def test_normalised_advantages_stay_within_one(a: dict[str, float]) -> None:
    assert all(abs(x) <= 1 for x in normalise_advantages(a).values())


def test_softmax_and_sampling() -> None:
    assert softmax([0.0, math.log(3)]) == pytest.approx([0.25, 0.75])
    assert softmax([1.0, 1.0, 0.0], temperature=0) == [0.5, 0.5, 0.0]
    assert softmax([1000.0, 0.0]) == pytest.approx([1.0, 0.0])
    counts = [sample_index([0.25, 0.75], seeded_random("run", 0, t)) for t in range(4000)]
    assert sum(counts) / 4000 == pytest.approx(0.75, abs=0.03)


def test_a_draw_belongs_to_its_place() -> None:
    assert seeded_random("r", 1, 2).random() == seeded_random("r", 1, 2).random()
    assert seeded_random("r", 1, 2).random() != seeded_random("r", 1, 3).random()


# What the authors' code does: section 12 of the method's notes.


@pytest.mark.parametrize(
    ("returns", "chance"),
    [
        ({"a": [5]}, 0.80),
        ({"a": [5, 5]}, 0.260),
        ({"a": [5] * 8}, 0.149),
        ({"a": [5, 0]}, 0.464),
        ({"a": [-1, -1]}, 0.80),
        ({"a": [10] * 10}, 0.082),
        ({"a": [1, 1]}, 0.50),
        ({"a": [0.2] * 4}, 0.74),
    ],
)
def test_reference_exploration(returns: dict[str, list[float]], chance: float) -> None:
    assert reference_exploration(visits(**returns)) == pytest.approx(chance, abs=0.005)


@pytest.mark.parametrize(
    ("scores", "rewards", "is_won", "expected"),
    [
        ([4, 0, 0, 0, 0], [0] * 5, True, [7.75, 0, 0, 0, 0]),  # each later 0 counts as the first step's own 4
        ([-2, 0, 0, 0, 5], [0] * 5, True, [-3.4375, 0.625, 1.25, 2.5, 5]),
        (
            [4, 0, 0],
            [0, 2, 1],
            False,
            [4 + 2 / 2 - 10 / 4, 2 - 10 / 2, -10],
        ),  # the world's 2 stands in for a 0, -10 for the end
        ([4, 0, 3], [0, 2, 1], False, [4 + 2 / 2 + 3 / 4, 2 + 3 / 2, 3]),  # where the last step has a score, -10 does not count
        ([0, 0, 3], [2, 0, 0], True, [2 + 3 / 4, 3 / 2, 3]),  # the world's 2 is no score of the judge's that could fill a 0
        ([None, 1], [5, 0], True, [5.5, 1]),
    ],
)
def test_reference_returns(scores: list[float | None], rewards: list[float], is_won: bool, expected: list[float]) -> None:
    assert reference_returns(scores, rewards, 0.5, is_won=is_won) == expected


def test_reference_normalisation() -> None:
    q = {"a": 1.01, "b": 1.00, "c": -10.0}
    mean = state_value(visits(a=[1.01], b=[1.00], c=[-10.0]))
    found = reference_normalise_advantages(advantages(q, mean))
    assert [round(found[x], 3) for x in "abc"] == [1.0, 0.997, -1.997]


def test_reference_scaling_of_rounding_errors_and_ours() -> None:
    """D1: equal means become a full bonus there; here they stay a tie."""
    tenths = {"a": [0.1, 0.1, 0.1], "b": [0.1]}
    q = {action: sum(gs) / len(gs) for action, gs in tenths.items()}
    value = sum(g for gs in tenths.values() for g in gs) / 4
    assert set(reference_normalise_advantages(advantages(q, value)).values()) == {1.0, 0.0}
    assert list(advice(visits(**tenths), average=0.1, a=0.5, b=0.5).values()) == pytest.approx([0.0, 0.0])
    # A tie stays a small shift even where the average differs, and one action was tried more often.
    for average in (0.0, 0.5):
        assert all(abs(x) < 0.4 for x in advice(visits(**tenths), average, variance=0.1, a=0.5, b=0.5).values())


def decision(neighbours: list[Neighbour], episode: int = 0, run: str = "r", **chances: float) -> dict[str, object]:
    """A state in which the policy gave each action this probability."""
    return {
        "run": run,
        "episode": episode,
        "step": 0,
        "task": Task("t", "do"),
        "observation": Observation("here", tuple(chances)),
        "neighbours": neighbours,
        "candidates": [Candidate(a, math.log(p)) for a, p in chances.items()],
    }


def reference_choice(state: dict[str, object]) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """(q, shift, z') of every candidate under the reference preset."""
    nodes = dict(
        VARIANT_NODES["reference"](JitRL.reference(), Experiences(), KeywordKeep(), Journal())
    )  # as the preset builds them
    nodes["augment"] = replace(nodes["augment"], admit=lambda seen, action: action)  # type: ignore[type-var]
    for name in ("augment", "advise", "modulate"):
        state |= nodes[name](state)  # type: ignore[operator]
    estimates, candidates = state["estimates"], state["candidates"]
    q = {e.action: round(e.value, 3) for e in estimates}  # type: ignore[attr-defined]
    shift = {e.action: round(e.shift, 3) for e in estimates}  # type: ignore[attr-defined]
    return q, shift, {c.action: round(c.logit, 3) for c in candidates}  # type: ignore[attr-defined]


def seeded(neighbours: list[Neighbour], explored: bool, **chances: float) -> dict[str, object]:
    """A decision in a run whose exploration draw falls as asked."""
    for n in range(200):
        state = decision(neighbours, run=f"r{n}", **chances)
        advice = ReferenceAdvice(alpha=1.0)(state)  # type: ignore[arg-type]
        if any(e.explored for e in advice["estimates"]) == explored:
            return state
    raise AssertionError("no such draw in 200 runs")


def test_reference_policy_when_the_coin_fires() -> None:
    state = seeded(visits(north=[-3, -3]), True, north=0.9, look=0.1)
    q, shift, z = reference_choice(state)
    assert q["look"] == -2.5
    assert shift == {"north": -1.0, "look": 1.0}
    assert z == {"north": -0.1, "look": 1.1}


def test_reference_policy_when_the_coin_is_silent() -> None:
    state = seeded(visits(north=[3, 3]), False, north=0.1, look=0.9)
    q, shift, z = reference_choice(state)
    assert q["look"] == 0
    assert shift == {"north": 1.0, "look": -1.0}
    assert z == {"north": 1.1, "look": -0.1}


@pytest.mark.parametrize(("episode", "expected"), [(0, {"north": -0.01, "look": 1.01}), (50, {"north": -0.51, "look": 1.51})])
def test_reference_policy_overturns_any_prior_for_a_tiny_gap(episode: int, expected: dict[str, float]) -> None:
    state = decision(visits(north=[2.000], look=[2.001]), episode=episode, north=0.99, look=0.01)
    assert reference_choice(state)[2] == expected


def test_reference_policy_takes_an_inadmissible_action_from_memory() -> None:
    state = decision(visits(**{"north": [-1.0], "eat lamp": [1.0]}), north=0.99, look=0.01)
    state["candidates"] = [Candidate("north", 0.0)]
    z = reference_choice(state)[2]
    assert z["eat lamp"] == 1.0


# The listed defects, each with our answer (numbers as in section 9 of the notes).


def advice(
    neighbours: list[Neighbour], average: float = 0.0, bonus: float = 0.0, variance: float = 0.0, **chances: float
) -> dict[str, float]:
    state = {**decision(neighbours, **chances), "average": average, "variance": variance, "repeats": {}}
    advised = GuardedAdvice(kappa=0.5, bonus=bonus, penalty=0.0)(state)  # type: ignore[arg-type]
    return {e.action: e.shift for e in advised["estimates"]}


def test_d1_few_noisy_visits_move_a_logit_less_than_many() -> None:
    few = [Neighbour("1", 1.0, "a", 2, 1.0, m2=2.0), Neighbour("2", 1.0, "b", 2, 0.0, m2=2.0)]
    many = [Neighbour("1", 1.0, "a", 50, 1.0, m2=50.0), Neighbour("2", 1.0, "b", 50, 0.0, m2=50.0)]
    assert 0 < advice(few, 0.5, a=0.5, b=0.5)["a"] < advice(many, 0.5, a=0.5, b=0.5)["a"] <= 1


def test_d1_a_tiny_gap_between_single_visits_is_no_full_bonus() -> None:
    """Means of 2.000 and 2.001 from one visit each: the reference gives the better one all there is, ours well under half."""
    shifts = advice(visits(a=[2.000], b=[2.001]), average=2.0005, variance=0.0005**2 * 2, a=0.99, b=0.01)
    assert 0 < shifts["b"] == pytest.approx(-shifts["a"])
    assert shifts["b"] < 0.4


def test_d1_the_same_gap_counts_when_many_visits_bear_it_out() -> None:
    one = advice(visits(a=[2.000], b=[2.001]), average=2.0005, variance=1e-6, a=0.5, b=0.5)
    many = advice(visits(a=[2.000] * 30, b=[2.001] * 30), average=2.0005, variance=1e-6, a=0.5, b=0.5)
    assert many["b"] > 2 * one["b"]
    assert many["b"] > 0.7


def test_d4_negative_advantages_are_bounded() -> None:
    shifts = advice(visits(a=[1.0], b=[0.9], c=[-10.0]), a=0.3, b=0.3, c=0.4)
    assert all(abs(x) <= 1 for x in shifts.values())


def test_paper_exploration_is_seeded_and_written_down() -> None:
    states = [decision(visits(a=[2.0]), run=f"r{n}", a=0.5, b=0.5) for n in range(2000)]
    marks = [PaperAdvice(alpha=5.0, lam=0.65)(s)["estimates"][1].explored for s in states]  # type: ignore[arg-type]
    assert sum(marks) / 2000 == pytest.approx(0.65, abs=0.05)
    again = [PaperAdvice(alpha=5.0, lam=0.65)(s)["estimates"][1].explored for s in states]  # type: ignore[arg-type]
    assert marks == again


def test_18_a_memory_only_action_gets_the_lowest_logit_not_the_highest() -> None:
    state = decision(visits(c=[1.0]), a=0.9, b=0.1)
    state["observation"] = Observation("here", ("a", "b", "c"))
    candidates = Augment()(state)["candidates"]  # type: ignore[arg-type]
    assert candidates[-1] == Candidate("c", math.log(0.1), "memory")
    assert Augment(logit="zero")(state)["candidates"][-1].logit == 0.0  # type: ignore[arg-type]
    of_paper = Augment("zero", "confidence")(state)["candidates"]  # type: ignore[arg-type]
    assert [c.logit for c in of_paper] == pytest.approx([0.9, 0.1, 0.0])


def test_eq_23_the_models_best_candidates_and_all_of_memory() -> None:
    """k_c = 2: the two most likely ones in their order, and `d`, which memory knows too. Equals are drawn, another two elsewhere."""
    state = decision(visits(d=[1.0]), a=0.3, b=0.1, c=0.4, d=0.2)
    assert [c.action for c in Augment(count=2)(state)["candidates"]] == ["a", "c", "d"]  # type: ignore[arg-type]
    drawn = [Augment(count=1)(decision([], run=f"r{n}", a=0.5, b=0.5))["candidates"] for n in range(400)]  # type: ignore[arg-type]
    assert sum(one[0].action == "a" for one in drawn) / 400 == pytest.approx(0.5, abs=0.1)
    assert Augment(count=1)(decision([], a=0.5, b=0.5)) == Augment(count=1)(decision([], a=0.5, b=0.5))  # type: ignore[arg-type]


def test_16_a_memory_only_action_must_be_admissible() -> None:
    state = decision(visits(**{"eat lamp": [9.0]}), a=0.9, b=0.1)
    assert [c.action for c in Augment()(state)["candidates"]] == ["a", "b"]  # type: ignore[arg-type]


# Our own estimator: Eq. 4' to 7', 25', 6' and 26'.


def guarded(
    neighbours: list[Neighbour],
    average: float = 0.0,
    variance: float = 0.0,
    bonus: float = 0.25,
    penalty: float = 0.5,
    repeats: dict[str, int] | None = None,
    **chances: float,
) -> dict[str, object]:
    """The decision of the default estimator, advised and with its logits updated."""
    known = {"average": average, "variance": variance, "repeats": repeats or {}}
    state: dict[str, object] = {**decision(neighbours, **chances), **known}
    state |= GuardedAdvice(kappa=0.5, bonus=bonus, penalty=penalty)(state)  # type: ignore[arg-type]
    modulate = Modulate(beta=10.0, min_prior=0.01, lift_only_proven=True)
    state |= modulate(state)  # type: ignore[arg-type]
    return state


def shifts_of(state: dict[str, object]) -> dict[str, float]:
    return {e.action: e.shift for e in state["estimates"]}  # type: ignore[attr-defined]


def chances_of(state: dict[str, object]) -> dict[str, float]:
    candidates: list[Candidate] = state["candidates"]  # type: ignore[assignment]
    return dict(zip([c.action for c in candidates], softmax([c.logit for c in candidates]), strict=True))


def test_eq_4_prime_an_untried_action_is_worth_the_lower_of_average_and_state() -> None:
    here = [Neighbour("x", 1.0, "a", 2, 1.0), Neighbour("y", 0.5, "b", 2, 4.0)]  # V(s) = (2 * 1 + 1 * 4) / 3 = 2
    assert untried_value(here, average=5.0) == 2.0
    assert untried_value(here, average=1.5) == 1.5
    assert untried_value([], average=1.5) == 1.5


def test_eq_5_7_25_and_6_prime_by_hand() -> None:
    """One neighbour: two visits to a, mean 3, squared deviations 2. Average 4, variance 7: U = min(4, 3) = 3.

    Q(a) = (2 * 3 + .5 * 3) / 2.5 = 3 and Q(b) = 3: a tie, and since a has earned something, both have the bonus.
    With average 1: U = 1, Q(a) = (6 + .5) / 2.5 = 2.6, Q(b) = 1, their mean 1.8, A = +-.8.
    sigma^2 = (2 + 7) / (1 + 1) = 4.5; the top is a, with n + kappa = 2.5: scale = .8 + sqrt(4.5 / 2.5).
    """
    here = [Neighbour("x", 1.0, "a", 2, 3.0, m2=2.0)]
    tie = guarded(here, average=4.0, variance=7.0, a=0.5, b=0.5)
    assert [e.value for e in tie["estimates"]] == pytest.approx([3.0, 3.0])  # type: ignore[attr-defined]
    assert shifts_of(tie) == pytest.approx({"a": 0.25, "b": 0.25})
    idle = guarded([Neighbour("x", 1.0, "a", 2, 0.0)], average=4.0, variance=7.0, a=0.5, b=0.5)
    assert shifts_of(idle) == pytest.approx({"a": 0.25 / 3**0.5, "b": 0.25})
    above = guarded(here, average=1.0, variance=7.0, a=0.5, b=0.5)
    assert [e.value for e in above["estimates"]] == pytest.approx([2.6, 1.0])  # type: ignore[attr-defined]
    assert [e.advantage for e in above["estimates"]] == pytest.approx([0.8, -0.8])  # type: ignore[attr-defined]
    ratio = 0.8 / (0.8 + (4.5 / 2.5) ** 0.5)
    assert shifts_of(above) == pytest.approx({"a": ratio + 0.25 / 3**0.5, "b": 0.25 - ratio})


def test_eq_26_visits_that_led_nowhere() -> None:
    """Two repeats take 2 rho; three visits of which one lost the episode take rho / 3; without neighbours repeats count alone."""
    here = [Neighbour("x", 1.0, "a", 3, 0.0, losses=1), Neighbour("y", 1.0, "b", 1, 0.0)]
    assert loss_shares(here) == pytest.approx({"a": 1 / 3, "b": 0.0})
    plain, punished = (shifts_of(guarded(here, repeats=repeats, penalty=0.5, a=0.5, b=0.5)) for repeats in ({}, {"b": 2}))
    assert plain["a"] == pytest.approx(0.25 / 4**0.5 - 0.5 / 3)
    assert punished["b"] == pytest.approx(plain["b"] - 2 * 0.5)
    assert shifts_of(guarded([], repeats={"a": 1}, a=0.5, b=0.5)) == {"a": -0.5, "b": 0.0}


def test_eq_10_only_an_action_that_was_found_better_is_lifted() -> None:
    """a paid 1 where the average is 0: it is lifted from .0001 to .01. An untried action and a worse one are not."""
    here = [Neighbour("x", 1.0, "a", 1, 1.0), Neighbour("y", 1.0, "b", 1, -1.0)]
    state = guarded(here, average=0.0, variance=1.0, a=0.0001, b=0.0001, c=0.0001, d=0.9997)
    before, shifts = state["prior"], shifts_of(state)
    after = [c.logit for c in state["candidates"]]  # type: ignore[attr-defined]
    assert before == pytest.approx([math.log(0.0001)] * 3 + [math.log(0.9997)])
    floors = [math.log(0.01), math.log(0.0001), math.log(0.0001), math.log(0.9997)]
    assert after == pytest.approx([z + 10 * shifts[a] for z, a in zip(floors, "abcd", strict=True)])


def test_eq_10_while_all_returns_are_the_same_every_action_is_lifted() -> None:
    """30 episodes without a point: a prior of .9999 on "a" has shown nothing, and "b" and "c" have .01 to begin with. As soon as one
    return differs, they have what the model gives them."""
    here = [Neighbour("x", 1.0, "a", 30, 0.0)]
    nothing = guarded(here, average=0.0, variance=0.0, a=0.9998, b=0.0001, c=0.0001)
    shifts = shifts_of(nothing)
    assert shifts == {"a": 0.25 / math.sqrt(31), "b": 0.25, "c": 0.25}
    floors = [math.log(0.9998), math.log(0.01), math.log(0.01)]
    after = [c.logit for c in nothing["candidates"]]  # type: ignore[attr-defined]
    assert after == pytest.approx([z + 10 * shifts[a] for z, a in zip(floors, "abc", strict=True)])
    assert chances_of(nothing)["b"] > 0.05
    something = guarded(here, average=0.0, variance=1e-6, a=0.9998, b=0.0001, c=0.0001)
    assert chances_of(something)["b"] < 0.01


OTHERS = {f"other {n}": 0.01 / 6 for n in range(6)}


def test_a_right_near_certain_action_stays_first_after_a_win_judged_on_a_dense_scale() -> None:
    """Prior .99, judged 10 of 10 at the last step, where earlier steps returned 15.3 on average. The paper's rule flips it
    in most draws."""
    here, known = [Neighbour("x", 1.0, "take coin", 1, 10.0)], {"average": 15.3, "variance": 20.0}
    won = guarded(here, **known, **{"take coin": 0.99}, **OTHERS)  # type: ignore[arg-type]
    assert chances_of(won)["take coin"] > 0.97


@pytest.mark.parametrize("prior", [0.34, 0.6])
@pytest.mark.parametrize(("average", "wins"), [(15.3, 1), (15.3, 5), (9.0, 1)])
def test_a_success_does_not_lower_an_unsure_winner(prior: float, average: float, wins: int) -> None:
    """Judged 10. Where other steps returned more on average, U = V = 10 and all A are 0: the winner has the bonus of the others, .25, and
    keeps its prior. Where they returned less, it gains."""
    others = dict.fromkeys(OTHERS, (1 - prior) / 6)
    won = guarded(visits(**{"take coin": [10.0] * wins}), average=average, variance=20.0, **{"take coin": prior}, **others)  # type: ignore[arg-type]
    if average > 10:
        assert chances_of(won)["take coin"] == pytest.approx(prior)
        assert set(shifts_of(won).values()) == {0.25}
    else:
        assert chances_of(won)["take coin"] > prior + 0.1


@pytest.mark.parametrize("visits_here", [1, 2, 3])
@pytest.mark.parametrize("payoff", [0.0, 1.0])
def test_small_neighbourhoods_do_not_flip_a_strong_prior_out_of_curiosity(visits_here: int, payoff: float) -> None:
    """One to three visits to the action that the model is sure of, as good as usual: it stays first. With the paper's bonus for
    untried actions, alpha / |N(s)| on top of V(s), it loses the lead in most runs."""
    here = visits(**{"sure": [payoff] * visits_here})
    kept = guarded(here, average=payoff, variance=0.1, sure=0.9, **dict.fromkeys(OTHERS, 0.1 / 6))
    assert chances_of(kept)["sure"] > 0.5
    flips = 0
    for run in range(100):
        state = decision(here, run=f"r{run}", sure=0.9, **dict.fromkeys(OTHERS, 0.1 / 6))
        state |= PaperAdvice(alpha=5.0, lam=0.65)(state)  # type: ignore[arg-type]
        state |= Modulate(beta=10.0)(state)  # type: ignore[arg-type]
        flips += max(chances_of(state).items(), key=lambda one: one[1])[0] != "sure"
    assert flips > 90


@pytest.mark.parametrize("prior", [0.9, 0.99])
def test_a_wrong_near_certain_action_falls_after_failures(prior: float) -> None:
    """Where other states have paid, an action that the model is sure of and that earns nothing loses to the others."""
    others = dict.fromkeys(OTHERS, (1 - prior) / 6)
    chances = [
        chances_of(guarded(visits(sure=[0.0] * n), average=0.0, variance=0.2, repeats={"sure": 1}, sure=prior, **others))[
            "sure"
        ]
        for n in (1, 3)
    ]
    assert chances[0] > chances[1]
    proven = [*visits(sure=[0.0] * 3), *visits(**{"other 0": [1.0]})]
    assert chances_of(guarded(proven, average=0.3, variance=0.2, sure=prior, **others))["other 0"] > 0.5


@given(st.floats(-100, 100), st.lists(st.tuples(st.sampled_from("abc"), st.floats(-5, 5)), min_size=1, max_size=8))
def test_a_constant_added_to_all_returns_changes_no_advantage(offset: float, seen: list[tuple[str, float]]) -> None:
    here = [Neighbour(str(i), 1.0, a, 1, g) for i, (a, g) in enumerate(seen)]
    there = [Neighbour(str(i), 1.0, a, 1, g + offset) for i, (a, g) in enumerate(seen)]
    mean = sum(g for _, g in seen) / len(seen)
    one, two = (
        guarded(n, average=average, variance=1.0, bonus=0.0, a=0.3, b=0.3, c=0.4)
        for n, average in ((here, mean), (there, mean + offset))
    )
    assert list(shifts_of(one).values()) == pytest.approx(list(shifts_of(two).values()), abs=1e-6)


def test_theorems_4_2_and_4_3_values_and_policy_converge() -> None:
    """A state with two actions of expected return 1 and .4 and noise of 1: as visits grow, Q of both estimators goes to the
    expectations, V to their mean under the visits, and the paper's policy to softmax(z + beta A~) of the true advantages."""
    truth, random = {"a": 1.0, "b": 0.4}, seeded_random("theorem 4.2")
    errors, distances = [], []
    goal = softmax(update_logits([math.log(0.5)] * 2, list(normalise_advantages(advantages(truth, 0.7)).values()), 2.0))
    for n in (10, 100, 1000, 10_000):
        returns = {action: [random.gauss(mean, 1.0) for _ in range(n)] for action, mean in truth.items()}
        seen = visits(**returns)
        q = {action: mean for action, (_, mean) in action_values(seen).items()}
        shrunk, _ = shrunk_values(seen, list(truth), kappa=0.5, average=untried_value(seen, average=0.2))
        assert max(abs(shrunk[a] - q[a]) for a in truth) <= 1 / n  # the pseudo-visits are forgotten
        errors.append(max([*(abs(q[a] - truth[a]) for a in truth), abs(state_value(seen) - 0.7)]))
        found = normalise_advantages(advantages(q, state_value(seen)))
        policy = softmax(update_logits([math.log(0.5)] * 2, [found[a] for a in truth], 2.0))
        distances.append(max(abs(p - g) for p, g in zip(policy, goal, strict=True)))
        assert errors[-1] < 5 / n**0.5
    assert errors[-1] < 0.05 < errors[0]
    assert distances[-1] < 0.01


# The paper's formulas from a memory to a decision, by hand.


class Rooms:
    """A world whose observations are its states."""

    name = "rooms"

    def abstract(self, observation: Observation) -> str:
        return observation.text

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        raise NotImplementedError


def two_episodes(memory: Experiences) -> None:
    """In the first one `go` leads to the hall, where `take` pays 4; in the second one `wait` comes before that."""
    paths = ([("red room door", "go", 0.0)], [("red room door", "wait", 0.0), ("red room door", "go", 0.0)])
    for n, path in enumerate(paths):
        steps = tuple(Transition(*step) for step in (*path, ("blue hall lamp", "take", 4.0)))
        memory.add(Trajectory(f"r/{n}", Task("t", "do"), steps, "r", n, 4.0, "rooms"))


@pytest.mark.parametrize("k", [10, 2])
def test_the_paper_from_memory_to_logits(k: int) -> None:
    """gamma .5: `go` returned 2 and 2, `wait` 1. V = 5/3, Q(go) = 2, Q(wait) = 1, an untried `jump` has V + 5/3 or 0. A is divided
    by the largest |A|, which is that of `jump`: 5/3 either way. k = 2 leaves the two newest visits: V = 3/2."""
    settings = replace(JitRL.paper(), k=k)
    memory = settings.memory()
    two_episodes(memory)
    state = {**decision([], episode=2, go=0.2, jump=0.8), "observation": Observation("red room door", ("go", "wait", "jump"))}
    nodes = VARIANT_NODES["paper"](settings, memory, Rooms(), Journal())
    for name in ("recall", "augment", "advise"):
        state |= nodes[name](state)  # type: ignore[operator]
    q = {e.action: e.value for e in state["estimates"]}  # type: ignore[attr-defined]
    if k == 2:
        assert len(state["neighbours"]) == 2  # type: ignore[arg-type]
        assert state["value"] == pytest.approx(1.5)
        return
    assert state["value"] == pytest.approx(5 / 3)
    assert (q["go"], q["wait"]) == (2.0, 1.0)
    assert q["jump"] == pytest.approx(5 / 3 + 5 / 3) or q["jump"] == 0
    state |= nodes["modulate"](state)  # type: ignore[operator]
    logits = {c.action: c.logit for c in state["candidates"]}  # type: ignore[attr-defined]
    scale = 5 / 3 + 1e-6
    assert logits["go"] == pytest.approx(0.2 + (2 - 5 / 3) / scale)
    assert logits["wait"] == pytest.approx(0.0 + (1 - 5 / 3) / scale)  # only memory knows it: 0, the lowest confidence
    assert logits["jump"] == pytest.approx(0.8 + (q["jump"] - 5 / 3) / scale)
