"""Paired differences of methods, worked out by hand."""

from __future__ import annotations

import json

import pytest

from learngraph.graphs.experiments import comparison
from learngraph.graphs.experiments.benchmark import SeedResult


def result(method: str, seed: int, *scores: float) -> SeedResult:
    return SeedResult(method, seed, 1.0, scores, scores, (10,) * len(scores))


def test_differences_are_taken_seed_by_seed() -> None:
    """Leads of .1, .2 and .3 over tasks that are worth 0, .5 and .7: mean .2, sd .1, t(2, .975) = 4.302653, half .1 / sqrt(3) of it."""
    ours = [result("jitrl", 0, 0.1), result("jitrl", 1, 0.7), result("jitrl", 2, 1.0)]
    theirs = [result("static", 2, 0.7), result("static", 0, 0.0), result("static", 1, 0.5)]  # in any order
    (lead,) = comparison.leads([ours, theirs])
    half = 4.302653 * 0.1 / 3**0.5
    assert (lead.method, lead.over, lead.seeds) == ("jitrl", "static", 3)
    assert lead.avg.mean == pytest.approx(0.2)
    assert lead.avg.over_seeds == pytest.approx((0.2 - half, 0.2 + half), abs=1e-6)
    assert (lead.avg.wins, lead.avg.losses, lead.avg.ties) == (3, 0, 0)
    assert lead.verdict == "not told apart"  # .2 - .248 is below 0


def test_the_end_is_compared_too_and_only_on_seeds_that_both_have_played() -> None:
    ours = [result("icrl", s, 0, 0, 0, 1, 1, 1) for s in range(4)]
    even, odd, none = (result("random", 0, *[0] * 6), result("random", 1, *[0.1] * 6), result("tabular", 9, 1))
    (lead,) = comparison.leads([ours, [even, odd], [none]])
    assert (lead.over, lead.seeds) == ("random", 2)
    assert (lead.avg.mean, lead.final.mean) == (pytest.approx(0.45), pytest.approx(0.95))
    assert lead.verdict == "not told apart"  # .45 +- 12.7062 * .0707 / sqrt(2)
    assert lead.final.over_seeds == pytest.approx((0.95 - 0.635310, 0.95 + 0.635310), abs=1e-5)


@pytest.mark.parametrize(("gains", "says"), [((0.2, 0.21), "ahead"), ((-0.2, -0.21), "behind"), ((0.0, 0.0), "not told apart")])
def test_what_the_interval_says(gains: tuple[float, float], says: str) -> None:
    ours, theirs = ([result(m, s, 0.5 + g * (m == "a")) for s, g in enumerate(gains)] for m in "ab")
    (lead,) = comparison.leads([ours, theirs])
    assert lead.verdict == says
    assert json.loads(json.dumps(lead.as_dict()))["verdict"] == says


def test_one_seed_has_a_difference_and_no_interval() -> None:
    found = comparison.leads([[result("jitrl", 0, 1.0)], [result("static", 0, 0.75)]])
    assert found[0].as_dict() == {
        "method": "jitrl",
        "over": "static",
        "seeds": 1,
        "avg": 0.25,
        "avg_ci": None,
        "final": 0.25,
        "final_ci": None,
        "wins": 1,
        "losses": 0,
        "ties": 0,
        "verdict": "",
    }
    assert comparison.differences_table(found, 1).splitlines() == [
        "| jitrl minus | mean score | last 1 episode | seeds won / lost / tied | 95 % interval says |",
        "|-------------|-----------:|---------------:|------------------------:|-------------------:|",
        "| static      |      +0.25 |          +0.25 |               1 / 0 / 0 |                  – |",
    ]


def test_one_method_has_nothing_to_lead() -> None:
    assert comparison.leads([[result("jitrl", 0, 1.0)]]) == []
