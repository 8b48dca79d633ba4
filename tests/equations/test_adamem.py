"""AdaMEM, Proposition 3.1: what a changed action says of a strategy's worth, for agents that are greedy and for those that sample.

The world has six states and can be replayed; all values are exact fractions, by going through everything that can happen.

    start --left--> hall --on--> gate --open--> exit (pays 1)       every other way leads to `lost`, which pays 0:
    start --middle--> hall                                           hall --off-->, gate --wait-->, pit --stay-->
    start --right--> pit --climb--> hall
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import pytest

from learngraph.memory.records import Candidate, Observation, Task
from learngraph.nodes.act.choose import Choose, softmax
from learngraph.nodes.synthesize import mft
from learngraph.nodes.synthesize.mft import Pair

MOVES: Mapping[str, Mapping[str, str]] = {
    "start": {"left": "hall", "middle": "hall", "right": "pit"},
    "hall": {"on": "gate", "off": "lost"},
    "pit": {"climb": "hall", "stay": "lost"},
    "gate": {"open": "exit", "wait": "lost"},
}
TASK = Task("six", "reach the exit")


class Six:
    """The world as a function of its history."""

    name = "six"

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        at = "start"
        for action in actions:
            at = MOVES[at][action]
        return Observation(at, tuple(sorted(MOVES.get(at, ()))), 1.0 if at == "exit" else 0.0, at not in MOVES)

    def abstract(self, observation: Observation) -> str:
        return observation.text


WORLD = Six()
Chances = Mapping[str, Fraction]
Stochastic = Mapping[str, Chances]
"""State -> action -> its probability."""


def value(before: Sequence[str], policy: Stochastic, here: Chances | None = None) -> Fraction:
    """V(s) after these actions: all that the policy may do from here on, weighted; `here` takes its place for the next action."""
    shown = WORLD.observe(TASK, before)
    if shown.over:
        return Fraction(0)
    return sum((p * q([*before], action, policy) for action, p in (here or policy[shown.text]).items() if p), Fraction(0))


def q(before: Sequence[str], action: str, policy: Stochastic) -> Fraction:
    """Q(s, a): a is taken, then the policy goes on."""
    after = [*before, action]
    reward = WORLD.observe(TASK, after).reward
    assert reward is not None
    return Fraction(reward) + value(after, policy)


def worth(before: Sequence[str], policy: Stochastic, advised: Chances) -> Fraction:
    """A(s, z) = V(s) of the agent that reads z for its next action, less V(s) of the one that does not."""
    return value(before, policy, advised) - value(before, policy)


def surely(action: str) -> Chances:
    return {action: Fraction(1)}


def greedy(**choice: str) -> Stochastic:
    return {state: surely(action) for state, action in choice.items()}


GREEDY = [greedy(**dict(zip(MOVES, choice, strict=True))) for choice in product(*(MOVES[state] for state in MOVES))]
"""All 24 deterministic policies."""
WAYS: Sequence[Sequence[str]] = ([], ["left"], ["right"], ["right", "climb"], ["middle", "on"])
"""Ways to states at which a strategy may be read."""
PAIR = Pair("six/0/0", (), "", "", "model", tentative="right", action="left", score=1.0, solved=1.0, task="six")


# Greedy decoding: the proposition holds


def test_under_greedy_decoding_a_is_the_difference_of_two_qs() -> None:
    """Proposition 3.1, all policies, all places, all advised actions: A(s, z) = Q(s, a) - Q(s, a'); a = a' makes it 0."""
    gains = []
    for policy, before in product(GREEDY, WAYS):
        state = WORLD.observe(TASK, before).text
        (draft,) = policy[state]
        for action in MOVES[state]:
            gain = worth(before, policy, surely(action))
            assert gain == q(before, action, policy) - q(before, draft, policy)
            assert gain == 0 or action != draft
            gains.append((gain, action != draft))
    assert all(change for gain, change in gains if gain > 0), "necessary"
    assert {gain for gain, change in gains if change} == {-1, 0, 1}, "and not sufficient"


def test_a_changed_action_may_gain_nothing() -> None:
    """Not sufficient: left and middle lead to the same hall."""
    policy = greedy(start="left", hall="on", pit="stay", gate="open")
    assert mft.is_different_action("middle", "left")
    assert worth([], policy, surely("middle")) == 0
    assert worth([], greedy(start="right", hall="on", pit="stay", gate="open"), surely("left")) == 1


def test_a_step_of_a_success_may_have_lost() -> None:
    """The paper assumes Q(s, a) >= Q(s, a') on successful trajectories. It is not so where later strategies make good what an
    earlier one spoiled: both filters let such a step through."""
    policy = greedy(start="left", hall="on", pit="stay", gate="open")
    played = ["right", "climb", "on", "open"]  # right by a strategy, climb by another one
    end = WORLD.observe(TASK, played)
    assert (end.reward, end.over) == (1.0, True)
    step = replace(PAIR, action="right", tentative="left", score=1.0)
    assert mft.step_set([step]) == [step]
    assert worth([], policy, surely("right")) == -1


# Sampling: it does not


def test_equal_draws_do_not_make_a_strategy_worthless() -> None:
    """By hand: Q(left) = 4/5, Q(right) = 1/2 4/5 = 2/5. z turns 1/4, 3/4 into 3/4, 1/4: A = 1/2 (4/5 - 2/5) = 1/5.
    Both draws are the same in 3/16 + 3/16 of the cases, and filter 2 drops them."""
    base: Stochastic = {
        "start": {"left": Fraction(1, 4), "right": Fraction(3, 4)},
        "hall": {"on": Fraction(4, 5), "off": Fraction(1, 5)},
        "pit": {"climb": Fraction(1, 2), "stay": Fraction(1, 2)},
        "gate": surely("open"),
    }
    advised = {"left": Fraction(3, 4), "right": Fraction(1, 4)}
    assert (q([], "left", base), q([], "right", base)) == (Fraction(4, 5), Fraction(2, 5))
    assert worth([], base, advised) == Fraction(1, 5)
    equal = sum(p * base["start"][action] for action, p in advised.items())
    assert equal == Fraction(3, 8)
    assert not mft.step_set([replace(PAIR, action="left", tentative="left")]), "dropped, with A = 1/5"
    # And what the two drawn actions are worth is not A: here, with a = a' = left, it is 0.
    drawn = q([], "left", base) - q([], "left", base)
    assert drawn == 0 != worth([], base, advised)
    # Only its mean over all draws is A.
    pairs = product(advised.items(), base["start"].items())
    assert sum(p * r * (q([], a, base) - q([], b, base)) for (a, p), (b, r) in pairs) == Fraction(1, 5)


def test_different_draws_do_not_make_a_strategy_worth_something() -> None:
    """By hand: with z as without it 1/4 and 3/4. A = 0, and yet 2 1/4 3/4 = 3/8 of the pairs have a changed action."""
    base: Stochastic = {
        "start": {"left": Fraction(1, 4), "right": Fraction(3, 4)},
        "hall": surely("on"),
        "pit": surely("stay"),
        "gate": surely("open"),
    }
    assert worth([], base, base["start"]) == 0
    different = 1 - sum(p * p for p in base["start"].values())
    assert different == Fraction(3, 8)
    lucky = replace(PAIR, action="left", tentative="right")
    assert mft.step_set([lucky]) == [lucky], "a worthless strategy passes both filters"
    # What is more, success picks such draws: of the changed pairs in successful episodes all went left.
    assert (q([], "left", base), q([], "right", base)) == (1, 0)


# Noise


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_noise_passes_the_filter_as_often_as_the_formula_says(temperature: float) -> None:
    """A strategy that changes nothing: two draws from the softmax of the same logits differ in 1 - sum p^2 of the cases."""
    logits = {"take lamp": -0.7, "the door": -1.6, "Door": -2.0, "search[a]": -2.3, "search[b]": -2.3}
    chances = dict(zip(logits, softmax([*logits.values()], temperature), strict=True))
    same = [chances["take lamp"], chances["the door"] + chances["Door"], chances["search[a]"] + chances["search[b]"]]
    expected = 1 - sum(p * p for p in same)
    choose, count = Choose(temperature), 5_000
    candidates = [Candidate(action, logit) for action, logit in logits.items()]

    def drawn(side: str, n: int) -> str:
        state: Any = {"candidates": candidates, "run": side, "episode": n, "step": 0}
        return choose(state)["action"]

    changed = sum(mft.is_different_action(drawn("with", n), drawn("without", n), "webshop") for n in range(count)) / count
    assert changed == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / count))
    assert 0.3 < expected < 0.7, "no small matter"


def test_a_greedy_agent_makes_no_noise() -> None:
    choose = Choose(0)
    state: Any = {"candidates": [Candidate("left", -0.7), Candidate("right", -0.6)], "run": "r", "episode": 0, "step": 0}
    assert choose(state)["action"] == "right"
