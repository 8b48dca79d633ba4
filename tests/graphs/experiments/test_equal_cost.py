"""Scores by their cost: budgets, running maxima and equal-cost comparisons, by numbers worked out by hand."""

from dataclasses import replace
from typing import Any

from learngraph.graphs.experiments import equal_cost
from learngraph.graphs.experiments.results import SeedResult
from learngraph.nodes.evaluate.statistics import interval


def result(seed: int, scores: list[float], tokens: list[int], method: str = "icrl", **more: Any) -> SeedResult:
    n = len(scores)
    found = SeedResult(method, seed, 1.0, tuple(scores), tuple(scores), (1,) * n, sum(tokens), **more)
    return replace(found, tokens_by_episode=tuple(tokens))


def test_an_episode_counts_once_it_is_over() -> None:
    run = result(0, [0.5, 0.25, 1.0], [100, 200, 300])
    assert equal_cost.tokens_so_far(run) == [100, 300, 600]
    within = [equal_cost.score_within(run, budget) for budget in (99, 100, 299, 300, 599, 600, 10_000)]
    assert within == [None, 0.5, 0.5, 0.25, 0.25, 1.0, 1.0]
    best = [equal_cost.score_within(run, budget, "best") for budget in (99, 100, 300, 600)]
    assert best == [None, 0.5, 0.5, 1.0]


def test_what_was_not_spent_or_not_measured_is_no_cost() -> None:
    assert equal_cost.tokens_so_far(result(0, [1, 1], [0, 0])) is None
    old = SeedResult("icrl", 0, 1.0, (1.0,), (1.0,), (1,), 50)  # made without the tokens of each episode
    assert equal_cost.score_within(old, 1000) is None


def test_rounds_with_their_running_maximum() -> None:
    table = equal_cost.rounds_table([[result(0, [0, 0, 1, 0, 0, 0, 0.0], [1] * 7), result(1, [0.5] * 7, [1] * 7)]])
    assert [cell.strip() for cell in table.splitlines()[0].split("|")[2:-1]] == ["1 round", "2 rounds", "4 rounds", "7 rounds"]
    assert "| icrl              | 0.25 [-2.93, 3.43] | 0.25 [-2.93, 3.43] | 0.75 [-2.43, 3.93] |" in table


def test_methods_at_the_same_cost() -> None:
    """The cheap method plays four rounds for the price of two; at that price it is behind on one seed and ahead on none."""
    ours = [result(s, [0.5, 1.0], [100, 100]) for s in (0, 1)]
    cheap = [result(0, [0.0, 1.0, 0.0, 0.5], [50] * 4, "react"), result(1, [0.0, 0.0, 0.0, 1.0], [50] * 4, "react")]
    none = [result(s, [0.25] * 4, [0] * 4, "random") for s in (0, 1)]
    head, _, first, other = (
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in equal_cost.equal_cost_table([ours, cheap, none]).splitlines()
    )
    assert head == ["after 200 tokens", "episodes", "newest score", "icrl is ahead by", "best so far", "icrl is ahead by"]
    assert first == ["icrl", "2.0", "1 [1, 1]", "–", "1 [1, 1]", "–"]
    assert other[:2] == ["react", "4.0"]
    assert other[2].startswith("0.75 [")
    low, high = interval([0.5, 0.0]) or (0, 0)
    assert other[3] == f"+0.25 [{low:+.3g}, {high:+.3g}]"
    assert equal_cost.equal_cost_table([ours, none]) == equal_cost.equal_cost_table([none]) == ""


def test_leads_are_over_the_seeds_that_both_have_played() -> None:
    ours = [result(s, [1.0], [10]) for s in (0, 1, 2)]
    theirs = [result(s, [0.0], [10], "react") for s in (1, 2, 5)]
    assert "+1 [+1, +1]" in equal_cost.equal_cost_table([ours, theirs])
