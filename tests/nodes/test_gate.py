"""The gate's arithmetic, by hand and by enumeration."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learngraph.memory.records import ChatRequest, Exchange, Feedback, Measured, Reply, UserError
from learngraph.nodes.gate import (
    Bar,
    checks,
    divergence,
    entropy,
    fall,
    held_out,
    importance_mean,
    passed,
    retention,
    windows,
)

rewards = st.lists(st.floats(-1, 1), min_size=1, max_size=20)


@given(rewards)
def test_on_policy_it_is_the_plain_mean(r: list[float]) -> None:
    found = importance_mean(r, [0.0] * len(r))
    assert found.value == pytest.approx(sum(r) / len(r), abs=1e-12)
    assert found.ess == pytest.approx(len(r))


def test_importance_mean_by_hand() -> None:
    # w = 2, 1, 0.5 for r = 1, 0, -1: (2 - 0.5) / 3.5; ess = 3.5^2 / 5.25
    found = importance_mean([1, 0, -1], [math.log(2), 0, -math.log(2)], truncate=10)
    assert found.value == pytest.approx(1.5 / 3.5)
    assert found.ess == pytest.approx(3.5**2 / 5.25)
    # cut at 1: w = 1, 1, 0.5
    assert importance_mean([1, 0, -1], [math.log(2), 0, -math.log(2)], truncate=1).value == pytest.approx(0.5 / 2.5)


@given(rewards, st.data())
def test_it_stays_among_the_rewards_whatever_the_ratios(r: list[float], data: st.DataObject) -> None:
    ratios = data.draw(st.lists(st.floats(-1e6, 1e6), min_size=len(r), max_size=len(r)))
    found = importance_mean(r, ratios)
    assert min(r) - 1e-9 <= found.value <= max(r) + 1e-9
    assert 1 - 1e-9 <= found.ess <= len(r) + 1e-9


def test_without_truncation_it_finds_the_value_of_another_policy() -> None:
    """Three replies, mu = (.5, .3, .2), pi = (.1, .2, .7), r = (-1, 0, 1): V(pi) = .6, from 40,000 draws of mu."""
    mu, pi, r = (0.5, 0.3, 0.2), (0.1, 0.2, 0.7), (-1.0, 0.0, 1.0)
    drawn = Random(0).choices(range(3), mu, k=40_000)
    found = importance_mean([r[y] for y in drawn], [math.log(pi[y] / mu[y]) for y in drawn], truncate=100)
    assert found.value == pytest.approx(0.6, abs=0.03)
    cut = importance_mean([r[y] for y in drawn], [math.log(pi[y] / mu[y]) for y in drawn], truncate=2)
    assert -0.3 < cut.value < found.value  # on the way there from V(mu) = -0.3: modest, and in the right direction


def test_needs_as_many_ratios_as_rewards() -> None:
    for r, x in (([], []), ([1.0], []), ([1.0], [0.0, 0.0])):
        with pytest.raises(UserError, match="as many ratios as rewards"):
            importance_mean(r, x)


def test_held_out_feedback_passes_what_is_too_few_and_says_so() -> None:
    found = held_out([-1.0] * 7, [-1.0] * 7, [-9.0] * 7, [-1.0] * 7, Bar(least_rewards=8))
    assert (found.passed, found.value) == (True, None)
    assert found.note == "too few: passes by default (7 of 8 rewards)"


def test_held_out_feedback_fails_who_prefers_what_was_disliked() -> None:
    r = [1.0, -1.0] * 8
    mu = [math.log(0.5)] * 16
    worse = [math.log(0.1) if x > 0 else math.log(0.9) for x in r]
    better = [math.log(0.9) if x > 0 else math.log(0.1) for x in r]
    assert not held_out(r, mu, worse, mu, Bar()).passed
    assert held_out(r, mu, better, mu, Bar()).passed
    assert held_out(r, mu, mu, mu, Bar(margin=0.0)).passed
    # V(worse) = (.2 - 1.8) / 2 = -.8 against 0
    assert held_out(r, mu, worse, mu, Bar()).value == pytest.approx(-0.8)
    assert held_out(r, mu, worse, mu, Bar(margin=0.81)).passed


def test_a_version_that_left_everything_that_was_said_is_judged_by_what_it_left_last() -> None:
    r = [1.0] * 8 + [-1.0] * 8
    gone = [-80.0] * 8 + [-15.0] * 8
    mu = [math.log(0.5)] * 16
    assert not held_out(r, mu, gone, mu, Bar()).passed


def test_retention_entropy_and_kl() -> None:
    assert retention([-1.1, -1.25], [-1.0, -1.0], tolerance=0.2).passed
    assert not retention([-1.1, -1.32], [-1.0, -1.0], tolerance=0.2).passed
    assert entropy(0.6, 1.0, 0.6).passed
    assert not entropy(0.59, 1.0, 0.6).passed
    assert entropy(0.0, 0.0, 0.6).passed  # a base model that is certain has nothing to lose
    assert divergence(1.0, 1.0).passed
    assert not divergence(1.01, 1.0).passed
    for nothing in (math.nan, math.inf):
        assert not divergence(nothing, 1.0).passed
    assert not entropy(math.nan, 1.0, 0.6).passed
    assert not retention([math.nan], [-1.0], 0.2).passed


def exchange(i: int, reward: float | None) -> Exchange:
    feedback = None if reward is None else Feedback(reward)
    return Exchange(f"e{i}", "acme", ChatRequest(), Reply("x", (1,), (2, 3), (-0.5, -0.5)), "base", feedback=feedback)


def test_all_lines_of_a_gate_read_their_own_texts() -> None:
    texts = [*(exchange(i, 1.0 if i % 2 else -1.0) for i in range(8)), exchange(8, None), exchange(9, None)]
    same = Measured(tuple([-0.5] * 10), tuple([-1.0] * 10), entropy=1.0, kl=0.0)
    found = checks(same, same, same, texts, 8, 2, Bar())
    assert [check.name for check in found] == ["held-out feedback", "retention", "entropy", "kl"]
    assert passed(found)
    forgot = Measured(tuple([-0.5] * 8 + [-0.8, -0.8]), same.sums, 1.0, 0.0)
    assert [check.name for check in checks(forgot, same, same, texts, 8, 2, Bar()) if not check.passed] == ["retention"]
    mad = Measured(same.logprobs, same.sums, 0.1, 3.0)
    assert [check.name for check in checks(mad, same, same, texts, 8, 2, Bar()) if not check.passed] == ["entropy", "kl"]
    nothing = Measured((), ())
    (only,) = checks(nothing, nothing, nothing, [], 0, 0, Bar())
    assert only.note.startswith("too few")


def test_bars_that_mean_nothing_are_refused() -> None:
    for wrong in ({"margin": -1}, {"entropy_share": -0.1}, {"weight_cap": 0.5}, {"read": 0}, {"kl_cap": math.nan}):
        with pytest.raises(UserError, match=f"gate: {next(iter(wrong))} is"):
            Bar(**wrong)


def test_a_fall_needs_enough_on_both_sides() -> None:
    assert fall([1.0] * 7, [-1.0] * 100, 0.0, least=8) is None
    assert fall([1.0] * 100, [-1.0] * 7, 0.0, least=8) is None
    found = fall([1.0] * 8, [-1.0] * 8, 0.0, least=8)
    assert found is not None
    # Means .8 and -.8 of ten, variances (8 * .04 + .04 + 3.24) / 9 / 10 = .04: 1.6 - 1.645 * sqrt(.08)
    assert found.bound == pytest.approx(1.6 - 1.645 * math.sqrt(0.08))
    assert found.fell
    assert (found.before, found.after) == (1.0, -1.0)
    assert not fall([1.0] * 8, [-1.0] * 8, 1.2, least=8).fell  # type: ignore[union-attr]


def test_a_fall_is_seldom_seen_where_there_is_none() -> None:
    """The same chance of 70 % on both sides, 16 rewards each: false alarms stay near or below 5 %."""
    draw, alarms = Random(1), 0
    for _ in range(2000):
        before, after = ([draw.choices((1.0, -1.0), (0.7, 0.3))[0] for _ in range(16)] for _ in range(2))
        found = fall(before, after, 0.0, 16)
        alarms += found is not None and found.fell
    assert alarms / 2000 < 0.055


def test_and_mostly_seen_where_there_is_one() -> None:
    draw, seen = Random(2), 0
    for _ in range(500):
        before = [draw.choices((1.0, -1.0), (0.9, 0.1))[0] for _ in range(16)]
        after = [draw.choices((1.0, -1.0), (0.3, 0.7))[0] for _ in range(16)]
        found = fall(before, after, 0.0, 16)
        seen += found is not None and found.fell
    assert seen / 500 > 0.9


def test_windows_join_versions_that_were_live_too_shortly() -> None:
    line = [("v4", [-1.0] * 3), ("v3", [-0.5] * 2), ("v2", [0.5] * 2), ("v1", [0.9] * 3), ("", [1.0] * 5)]
    found = windows(line, least=4, recent=10)
    assert found is not None
    assert found.after == (-0.5, -0.5, -1.0, -1.0, -1.0)  # v3 and v4, oldest first
    assert found.before == (0.9, 0.9, 0.9, 0.5, 0.5)
    assert found.back == "v2"
    assert windows(line, least=4, recent=2).after == (-1.0, -1.0)  # type: ignore[union-attr]
    assert windows(line[:3], least=4, recent=10) is None
    assert windows([("v1", [1.0] * 9)], least=4, recent=10) is None
    assert windows([], least=4, recent=10) is None


def test_windows_look_no_further_than_they_must() -> None:
    def line():  # type: ignore[no-untyped-def]
        yield "v2", [1.0] * 4
        yield "v1", [1.0] * 4
        yield "", [1.0]
        raise AssertionError("not asked for")

    assert windows(line(), least=4, recent=4) is not None
