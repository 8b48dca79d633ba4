"""The gate's arithmetic, by hand and by enumeration."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learngraph.memory.errors import UserError
from learngraph.memory.records import ChatRequest, Exchange, Feedback, Measured, Reply, Sampling
from learngraph.nodes.learn.gate import (
    DROP_STANDARD_ERRORS,
    GateSettings,
    gate_checks,
    held_out_check,
    importance_mean,
    is_gate_passed,
    reward_drop,
    reward_windows,
)
from learngraph.nodes.learn.gradient_step import step_limits

rewards = st.lists(st.floats(-1, 1), min_size=1, max_size=20)


@given(rewards)
def test_on_policy_it_is_the_plain_mean(r: list[float]) -> None:
    found = importance_mean(r, [0.0] * len(r))
    assert found.value == pytest.approx(sum(r) / len(r), abs=1e-12)
    assert found.ess == pytest.approx(len(r))


def test_importance_mean_by_hand() -> None:
    # w = 2, 1, 0.5 for r = 1, 0, -1: (2 - 0.5) / 3.5; ess = 3.5^2 / 5.25
    found = importance_mean([1, 0, -1], [math.log(2), 0, -math.log(2)], max_weight=10)
    assert found.value == pytest.approx(1.5 / 3.5)
    assert found.ess == pytest.approx(3.5**2 / 5.25)
    # cut at 1: w = 1, 1, 0.5
    assert importance_mean([1, 0, -1], [math.log(2), 0, -math.log(2)], max_weight=1).value == pytest.approx(0.5 / 2.5)


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
    found = importance_mean([r[y] for y in drawn], [math.log(pi[y] / mu[y]) for y in drawn], max_weight=100)
    assert found.value == pytest.approx(0.6, abs=0.03)
    cut = importance_mean([r[y] for y in drawn], [math.log(pi[y] / mu[y]) for y in drawn], max_weight=2)
    assert -0.3 < cut.value < found.value  # on the way there from V(mu) = -0.3: modest, and in the right direction


def test_needs_as_many_ratios_as_rewards() -> None:
    for r, x in (([], []), ([1.0], []), ([1.0], [0.0, 0.0])):
        with pytest.raises(UserError, match="as many ratios as rewards"):
            importance_mean(r, x)


def test_held_out_feedback_passes_what_is_too_few_and_says_so() -> None:
    found = held_out_check([-1.0] * 7, [-1.0] * 7, [-9.0] * 7, [-1.0] * 7, GateSettings(min_rewards=8))
    assert (found.passed, found.value) == (True, None)
    assert found.note == "too few: passes by default (7 of 8 rewards)"


def test_held_out_feedback_fails_who_prefers_what_was_disliked() -> None:
    r = [1.0, -1.0] * 8
    mu = [math.log(0.5)] * 16
    worse = [math.log(0.1) if x > 0 else math.log(0.9) for x in r]
    better = [math.log(0.9) if x > 0 else math.log(0.1) for x in r]
    assert not held_out_check(r, mu, worse, mu, GateSettings()).passed
    assert held_out_check(r, mu, better, mu, GateSettings()).passed
    assert held_out_check(r, mu, mu, mu, GateSettings(max_reward_loss=0.0)).passed
    # V(worse) = (.2 - 1.8) / 2 = -.8 against 0
    assert held_out_check(r, mu, worse, mu, GateSettings()).value == pytest.approx(-0.8)
    assert held_out_check(r, mu, worse, mu, GateSettings(max_reward_loss=0.81)).passed


def test_a_version_that_left_everything_that_was_said_does_not_pass() -> None:
    mu = [math.log(0.5)] * 16
    for liked in (4, 8, 15):
        r = [1.0] * liked + [-1.0] * (16 - liked)
        for good, bad in ((-80.0, -15.0), (-15.0, -80.0), (-90.0, -40.0), (-60.0, -60.0), (-1e6, -1e6)):
            found = held_out_check(r, mu, [good] * liked + [bad] * (16 - liked), mu, GateSettings())
            assert not found.passed, (liked, good, bad)
            assert "it would still say 0.000 of the liked replies, the live version 1.000" in found.note
    assert not held_out_check([1.0] * 16, mu, [math.nan] * 16, mu, GateSettings()).passed


def test_leaving_what_was_disliked_is_no_fault() -> None:
    mu = [math.log(0.5)] * 16
    assert held_out_check([-1.0] * 16, mu, [-60.0] * 16, mu, GateSettings()).passed
    found = held_out_check([1.0] * 8 + [-1.0] * 8, mu, [math.log(0.9)] * 8 + [-60.0] * 8, mu, GateSettings())
    assert (found.passed, found.value) == (True, 1.0)


def test_one_exchange_decides_nothing() -> None:
    """Sixteen rewards of which the candidate would say one still: too few, whatever that one was."""
    mu = [math.log(0.5)] * 16
    for first in (1.0, -1.0):
        found = held_out_check(
            [first, *[-first] * 2, *[-1.0] * 13], mu, [math.log(0.5), -2.0, -2.0, *[-12.0] * 13], mu, GateSettings()
        )
        assert (found.passed, found.value) == (True, None), first
        assert found.note.startswith("too few: passes by default (16 rewards, effectively 2.1 and")
    r = [1.0, -1.0] * 8  # the live one has left it, and of it nothing is known then
    found = held_out_check(r, mu, mu, [-0.7, *[-30.0] * 15], GateSettings())
    assert (found.passed, found.value) == (True, None)


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-5, 0.6)), min_size=1, max_size=20), st.floats(-800, 0))
def test_an_estimate_does_not_depend_on_how_far_away_all_of_it_is(rows: list[tuple[float, float]], away: float) -> None:
    r, x = [row[0] for row in rows], [row[1] for row in rows]
    near, far = importance_mean(r, x), importance_mean(r, [one + away for one in x])
    assert (far.value, far.ess) == pytest.approx((near.value, near.ess), abs=1e-9)


def test_greedy_replies_say_nothing_about_ratios() -> None:
    """Nothing was drawn: log mu is 0 for all of them, and a mean over them would look like knowledge."""
    greedy = ChatRequest(sampling=Sampling(temperature=0.0))
    texts = [replace(exchange(i, 1.0 if i % 2 else -1.0), request=greedy) for i in range(16)]
    worse = Measured(tuple([-5.0] * 16), tuple([-10.0] * 16), entropy=1.0, kl=0.0)
    found = gate_checks(worse, worse, worse, texts, 16, 0, GateSettings())
    assert (found[0].name, found[0].value) == ("held-out feedback", None)
    assert found[0].note == "too few: passes by default (0 of 8 rewards)"
    mixed = [*texts, *(exchange(i, 1.0 if i % 2 else -1.0) for i in range(16, 32))]
    same = Measured(tuple([-0.5] * 32), (*[-40.0] * 16, *[-1.0] * 16), entropy=1.0, kl=0.0)
    (first, *_) = gate_checks(same, same, same, mixed, 32, 0, GateSettings())
    assert first.value == 0.0
    assert "16 rewards, effectively 16.0 and 16.0" in first.note


def exchange(i: int, reward: float | None) -> Exchange:
    feedback = None if reward is None else Feedback(reward)
    return Exchange(f"e{i}", "acme", ChatRequest(), Reply("x", (1,), (2, 3), (-0.5, -0.5)), "base", feedback=feedback)


@pytest.mark.parametrize(
    ("candidate", "fails"),
    [
        ({}, []),
        ({"kept": (-1.1, -1.25)}, []),
        ({"kept": (-1.1, -1.32)}, ["retention"]),
        ({"kept": (math.nan, -1.0)}, ["retention"]),
        ({"entropy": 0.6}, []),
        ({"entropy": 0.59}, ["entropy"]),
        ({"entropy": math.nan}, ["entropy"]),
        ({"kl": 1.0}, []),
        ({"kl": 1.01}, ["kl"]),
        ({"kl": math.nan, "entropy": 0.1}, ["entropy", "kl"]),
        ({"kl": math.inf}, ["kl"]),
    ],
)
def test_all_lines_of_a_gate_read_their_own_texts(candidate: dict[str, Any], fails: list[str]) -> None:
    """Eight held-out exchanges, then a retention set of two. Bounds: .2 nats a token, .6 of the base's entropy, 1 nat of KL."""
    texts = [*(exchange(i, 1.0 if i % 2 else -1.0) for i in range(8)), exchange(8, None), exchange(9, None)]
    base = Measured((*[-0.5] * 8, -1.0, -1.0), (-1.0,) * 10, entropy=1.0, kl=0.0)
    kept, numbers = candidate.pop("kept", (-1.0, -1.0)), {"entropy": 1.0, "kl": 0.0, **candidate}
    new = Measured((*[-0.5] * 8, *kept), (-1.0,) * 10, **numbers)
    found = gate_checks(new, base, base, texts, 8, 2, GateSettings(max_kl=1.0))
    assert [check.name for check in found] == ["held-out feedback", "retention", "entropy", "kl"]
    assert [check.name for check in found if not check.passed] == fails
    assert is_gate_passed(found) is not bool(fails)


def test_a_gate_without_texts_and_one_whose_live_version_is_beyond_the_bounds() -> None:
    nothing = Measured((), ())
    (only,) = gate_checks(nothing, nothing, nothing, [], 0, 0, GateSettings())
    assert only.note.startswith("too few")
    base, live = Measured((-1.0,), (-1.0,), 1.0, 0.0), Measured((-1.0,), (-1.0,), 0.4, 1.2)
    for entropy, kl, fails in ((0.5, 1.1, []), (0.3, 1.3, ["entropy", "kl"]), (0.5, math.nan, ["kl"])):
        new = Measured(
            (-1.0,), (-1.0,), entropy, kl
        )  # on texts that came since; the live one goes on, and must not jam the gate
        found = gate_checks(new, live, base, [exchange(0, None)], 0, 0, GateSettings(max_kl=1.0))
        assert [check.name for check in found if not check.passed] == fails
    certain = Measured((-1.0,), (-1.0,), 0.0, 0.0)  # a base model that is certain has nothing to lose
    assert is_gate_passed(gate_checks(certain, certain, certain, [exchange(0, None)], 0, 0, GateSettings()))


def test_settings_that_mean_nothing_are_refused() -> None:
    for wrong in (
        {"max_reward_loss": -1},
        {"min_liked_share": -1},
        {"min_entropy_share": -0.1},
        {"max_weight": 0.5},
        {"exchanges": 0},
        {"max_kl": math.nan},
    ):
        with pytest.raises(UserError, match=f"gate: {next(iter(wrong))} is"):
            GateSettings(**wrong)


def test_a_fall_needs_enough_on_both_sides() -> None:
    assert reward_drop([1.0] * 7, [-1.0] * 100, 0.0, min_rewards=8) is None
    assert reward_drop([1.0] * 100, [-1.0] * 7, 0.0, min_rewards=8) is None
    found = reward_drop([1.0] * 8, [-1.0] * 8, 0.0, min_rewards=8)
    assert found is not None
    # Means .8 and -.8 of ten, variances (8 * .04 + .04 + 3.24) / 9 / 10 = .04: 1.6 - 3.2 * sqrt(.08)
    assert found.bound == pytest.approx(1.6 - DROP_STANDARD_ERRORS * math.sqrt(0.08))
    assert found.is_drop
    assert (found.before, found.after) == (1.0, -1.0)
    assert not reward_drop([1.0] * 8, [-1.0] * 8, 1.2, min_rewards=8).is_drop  # type: ignore[union-attr]


def rewards_of(draw: Random, p: float, n: int) -> list[float]:
    return [1.0 if draw.random() < p else -1.0 for _ in range(n)]


@pytest.mark.parametrize("p", [0.5, 0.7, 0.9])
def test_looking_after_every_reward_seldom_sees_a_fall_where_there_is_none(p: float) -> None:
    """64 looks in a row, as the service takes them: the bound of a single look gave 11 to 65 % of false withdrawals."""

    def grows(draw: Random, z: float) -> bool:
        """One version stays: its window grows to 64, against 64 rewards of the one before."""
        before, after = rewards_of(draw, p, 64), rewards_of(draw, p, 64)
        looks = (reward_drop(before, after[:n], 0.0, 12, z) for n in range(12, 65))
        return any(found is not None and found.is_drop for found in looks)

    def moves(draw: Random, z: float) -> bool:
        """A version for every reward: two windows of 12 move along."""
        line = rewards_of(draw, p, 24 + 64)
        looks = (reward_drop(line[n - 24 : n - 12], line[n - 12 : n], 0.0, 12, z) for n in range(24, len(line) + 1))
        return any(found is not None and found.is_drop for found in looks)

    for stretch in (grows, moves):
        draw = Random(3)
        assert sum(stretch(draw, DROP_STANDARD_ERRORS) for _ in range(300)) / 300 <= 0.05
        assert sum(stretch(draw, 1.645) for _ in range(100)) / 100 > 0.08, "the test sees what repeated looks do"


def test_and_mostly_seen_where_there_is_one() -> None:
    draw, seen = Random(2), 0
    for _ in range(500):
        before, after = rewards_of(draw, 0.9, 24), rewards_of(draw, 0.3, 24)
        found = reward_drop(before, after, 0.0, 24)
        seen += found is not None and found.is_drop
    assert seen / 500 > 0.9


def test_windows_join_versions_that_were_live_too_shortly() -> None:
    line = [("v4", [-1.0] * 3), ("v3", [-0.5] * 2), ("v2", [0.5] * 2), ("v1", [0.9] * 3), ("", [1.0] * 5)]
    found = reward_windows(line, min_rewards=4, max_rewards=10)
    assert found is not None
    assert found.after == (-0.5, -0.5, -1.0, -1.0, -1.0)  # v3 and v4, oldest first
    assert found.before == (0.9, 0.9, 0.9, 0.5, 0.5)
    assert found.rollback_to == "v2"
    assert reward_windows(line, min_rewards=4, max_rewards=2).after == (-1.0, -1.0)  # type: ignore[union-attr]
    assert reward_windows(line[:3], min_rewards=4, max_rewards=10) is None
    assert reward_windows([("v1", [1.0] * 9)], min_rewards=4, max_rewards=10) is None
    assert reward_windows([], min_rewards=4, max_rewards=10) is None


def test_windows_look_no_further_than_they_must() -> None:
    def line():  # type: ignore[no-untyped-def]
        yield "v2", [1.0] * 4
        yield "v1", [1.0] * 4
        yield "", [1.0]
        raise AssertionError("not asked for")

    assert reward_windows(line(), min_rewards=4, max_rewards=4) is not None


def test_a_step_stays_inside_of_the_gate() -> None:
    bounds = GateSettings(max_kl=1.0, min_entropy_share=0.6)
    assert step_limits(bounds) == pytest.approx((0.9, 0.64))
    assert step_limits(replace(bounds, enabled=False)) == (math.inf, 0.0)
    assert step_limits(replace(bounds, max_kl=math.inf, min_entropy_share=0.0)) == (math.inf, 0.0)
