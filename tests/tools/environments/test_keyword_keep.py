"""The toy world and its exact player."""

import random
import statistics

import pytest
from pocket.expert import PosteriorExpert

from learngraph.memory.errors import UserError
from learngraph.tools.environments.keyword_keep import ANSWERS, MOVES, KeywordKeep, domain

KNOWN_PLACES = ("door red", "door silver", "door violet", "gate giant", "gate monk", "fork snake", "fork oak", "chest gem")
KNOWN_LESSONS = ["door red mist", "door silver gold"]


def test_splits_never_share_a_domain() -> None:
    env = KeywordKeep()
    seeds = {split: {env.task(n, split).seed for n in range(200)} for split in ("train", "dev", "test")}
    assert all(len(found) == 200 for found in seeds.values())
    assert all(seed % 10 == 0 for seed in seeds["test"])
    assert all(seed % 10 == 5 for seed in seeds["dev"])
    assert not any(seed % 5 == 0 for seed in seeds["train"])


def test_a_domain_is_the_same_everywhere() -> None:
    # Written down once: a changed draw would silently invalidate whatever was trained on the toy world.
    assert domain(0).places == KNOWN_PLACES
    assert [domain(0).lesson(place) for place in KNOWN_PLACES[:2]] == KNOWN_LESSONS


def test_a_domain_has_rules_for_all_keys_and_eight_places() -> None:
    for seed in range(50):
        rules, places = domain(seed).rules, domain(seed).places
        assert len(rules) == 26
        assert [place.split()[0] for place in places] == ["door"] * 3 + ["gate"] * 2 + ["fork"] * 2 + ["chest"]
        assert all(rules[place] in ANSWERS[place.split()[0]] for place in places)


def test_variants_share_rules_and_places_but_not_their_order() -> None:
    env = KeywordKeep()
    task = env.task(3)
    paths = [env.path(env.variant(task, n)) for n in range(6)]
    assert len(set(paths)) > 3
    assert {frozenset(path) for path in paths} == {frozenset(paths[0])}
    assert all(path[-1] == "exit keep" for path in paths)
    assert env.variant(env.variant(task, 4), 0) == task
    assert env.variant(task, 7).id == "keep-test-3/7"
    with pytest.raises(UserError, match="keep-test-3/x"):
        env.path(type(task)("keep-test-3/x", "", task.seed))


def test_what_each_kind_of_place_does_with_a_wrong_answer() -> None:
    env = KeywordKeep()
    for seed in range(20):
        task = env.task(seed)
        path, gold = env.path(task), env.gold(task)
        for n, place in enumerate(path):
            kind = place.split()[0]
            wrong = next((a for a in ANSWERS[kind] if a != gold[n]), None)
            before = list(gold[:n])
            if wrong is not None:
                shown = env.observe(task, [*before, wrong])
                assert shown.reward == 0
                assert shown.text == (place if kind == "door" else path[n + 1])
            for move in MOVES[kind]:
                shown = env.observe(task, [*before, move])
                assert shown.reward == 0
                assert not shown.over
                passes = move in ("attack", "on")
                assert shown.text == (path[n + 1] if passes else path[max(0, n - 1)] if move == "back" else place)


def test_a_place_pays_once_and_the_exit_is_separate_evidence() -> None:
    env = KeywordKeep()
    task = env.task(1)
    gold = env.gold(task)
    assert env.observe(task, [gold[0]]).reward == 1
    assert env.observe(task, [gold[0], "back", gold[0]]).reward == 0
    rewards = [env.observe(task, gold[: n + 1]).reward for n in range(9)]
    assert rewards == [1] * 8 + [2]
    assert env.observe(task, gold).over


def test_a_shorter_horizon_has_a_lower_optimum() -> None:
    env = KeywordKeep(horizon=6)
    assert env.optimum(env.task(0)) == 6
    assert len(env.gold(env.task(0))) == 6


def test_the_expert_learns_as_fast_as_can_be_and_random_does_not() -> None:
    env = KeywordKeep()
    curves, flat = [], []
    for n in range(300):
        expert, draw, curve = PosteriorExpert(), random.Random(n), []
        for episode in range(6):
            task = env.variant(env.task(n), episode)
            actions: list[str] = []
            shown, score = env.observe(task, actions), 0.0
            while not shown.over:
                place, weights = shown.text, expert.probabilities(shown.text)
                actions.append(draw.choices(list(weights), list(weights.values()))[0])
                shown = env.observe(task, actions)
                expert.see(place, actions[-1], shown.reward)
                score += shown.reward
            curve.append(score / env.optimum(task))
        curves.append(curve)
        actions, score = [], 0.0
        shown = env.observe(env.task(n), actions)
        while not shown.over:
            actions.append(draw.choice(shown.actions))
            shown = env.observe(env.task(n), actions)
            score += shown.reward
        flat.append(score / 10)
    # Standard errors over 300 domains are below 0.01.
    means = [statistics.fmean(curve[episode] for curve in curves) for episode in range(6)]
    assert means == pytest.approx([0.67, 0.875, 0.92, 0.96, 1.0, 1.0], abs=0.03)
    assert means[5] == 1.0
    assert statistics.fmean(flat) == pytest.approx(0.20, abs=0.03)


def test_the_expert_believes_advice_until_it_fails() -> None:
    expert = PosteriorExpert(advice={"door black": "mist"})
    assert expert.probabilities("door black") == {"mist": 1.0}
    expert.see("door black", "mist", 0.0)
    assert expert.probabilities("door black") == dict.fromkeys(("echo", "fern", "salt", "gold"), 0.25)
    expert.see("door black", "fern", 1.0)
    expert.see("door black", "fern", 0.0)  # paid before: says nothing
    assert expert.probabilities("door black") == {"fern": 1.0}
