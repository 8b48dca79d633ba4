"""Step-MFT's filters: worked-out values, and the properties that the paper's sets must have."""

import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learngraph.nodes.synthesize import mft
from learngraph.nodes.synthesize.mft import MftError, Pair

PAIR = Pair(
    id="r/0/2",
    prompt=(("system", "Advise."), ("user", "Task: reach the exit\nStrategy:")),
    reply="Because.\nStrategy: door black mist",
    strategy="door black mist",
    author="model",
    tentative="fern",
    action="mist",
    score=10.0,
    solved=10.0,
    task="keep-train-0",
)


# Canonical actions


@pytest.mark.parametrize(
    ("action", "same"),
    [
        ("go north", "Go  North."),
        ("take the lamp", "take lamp"),
        ("open a drawer 1", "Open drawer 1"),
        ("take an apple", '"take apple"'),
        ("put mug in the sink", "put the mug in sink!"),
        ("open the 'red box'", "open 'red box'"),
        ("the 'lamp'", "lamp"),
        ("click[Buy Now]", "click[ buy now. ]"),
        ("click[the red one]", "Click [red one]"),
        ("Search[red shoes]", "search [ red  shoes. ]"),
        ("look", "look\n"),
    ],
)
def test_ways_to_write_one_action(action: str, same: str) -> None:
    assert mft.canonical(action) == mft.canonical(same)
    assert not mft.is_different_action(action, same)


def test_two_searches_are_the_same_action_in_the_web_shop_alone() -> None:
    red, blue = "search[red shoes]", "Search[blue shoes size 9]"
    assert mft.canonical(red, "webshop") == mft.canonical(blue, "webshop") == "search[]"
    assert mft.is_different_action(red, blue, "hotpot")
    assert mft.is_different_action("click[red]", "click[blue]", "webshop")
    asked = replace(PAIR, action=red, tentative=blue)
    assert mft.step_set([replace(asked, domain="hotpot"), replace(asked, domain="webshop"), asked]) == [
        replace(asked, domain="hotpot"),
        asked,
    ]


@pytest.mark.parametrize(
    ("action", "other"),
    [
        ("go north", "go south"),
        ("take mug 1", "take mug 2"),
        ("click[red]", "search[red]"),
        ("click[red]", "click[blue]"),
        ("select a", "select b"),
        ("a", "the"),
        ("take theory", "take ory"),
        ("put a in b", "put b in a"),
        ("search", "search[lamp]"),
        ("search[red]", "search[blue]"),
        ("", "look"),
        ("-1", "1"),
    ],
)
def test_different_actions(action: str, other: str) -> None:
    assert mft.is_different_action(action, other)
    assert mft.is_different_action(other, action)


@settings(max_examples=200)
@given(st.text(alphabet="aAthe n.[]'! \n1"), st.sampled_from(["", "webshop"]))
def test_canonical_is_settled_at_once(action: str, domain: str) -> None:
    once = mft.canonical(action, domain)
    assert mft.canonical(once, domain) == once


# Filters


def pairs(draw: Random, count: int = 60) -> list[Pair]:
    words = ["mist", "fern", "the mist", "Mist.", "search[a]", "search[b]", "on"]
    return [
        replace(
            PAIR, id=f"r/{n}/0", tentative=draw.choice(words), action=draw.choice(words), score=draw.choice([0.0, 9.0, 10.0])
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("least", [None, 9.0, 11.0])
def test_the_step_set_is_a_subset_of_the_outcome_set(seed: int, least: float | None) -> None:
    made = pairs(Random(seed))
    step, outcome = mft.step_set(made, least), mft.outcome_set(made, least)
    assert set(step) <= set(outcome) <= set(made)
    bound = 10.0 if least is None else least
    assert outcome == [p for p in made if p.score >= bound], "filter 1, in order"
    assert {p for p in outcome if p not in step} == {p for p in outcome if not mft.is_different_action(p.action, p.tentative)}
    shop = mft.step_set([replace(p, domain="webshop") for p in made], least)
    assert {p.id for p in shop} <= {p.id for p in step}
    assert not any(p.action.startswith("search") and p.tentative.startswith("search") for p in shop)
    arm = mft.sample_pairs(outcome, len(step), seed)
    assert len(arm) == len(step)
    assert arm == [p for p in outcome if p in arm], "without repeats, in order"
    assert arm == mft.sample_pairs(outcome, len(step), seed)


def test_the_outcome_arm_is_drawn_by_the_seed_and_evenly() -> None:
    made = pairs(Random(0), 10)
    hits = [0] * 10
    for seed in range(2000):
        for pair in mft.sample_pairs(made, 3, seed):
            hits[made.index(pair)] += 1
    assert all(abs(hit - 600) < 5 * math.sqrt(2000 * 0.3 * 0.7) for hit in hits)
    assert mft.sample_pairs(made, 99) == made


def test_without_a_threshold_success_is_an_error() -> None:
    with pytest.raises(MftError, match=r"task keep-train-0 is solved is unknown; give it with --success"):
        mft.step_set([replace(PAIR, solved=None)])
    assert mft.step_set([replace(PAIR, solved=None)], 9.5)


def test_a_chat_ends_with_the_whole_reply() -> None:
    assert mft.chat(PAIR) == {
        "messages": [
            {"role": "system", "content": "Advise."},
            {"role": "user", "content": "Task: reach the exit\nStrategy:"},
            {"role": "assistant", "content": "Because.\nStrategy: door black mist"},
        ]
    }


# Collecting


def row(id: str, action: str, tentative: str, advice: str | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {"id": id, "action": action, "task": "keep-train-0", "tentative": tentative}
    if advice is None:
        return made | {"strategy": None, "synthesis": None}
    strategy = {"text": advice, "sources": ["gold/0/1"], "step": 0, "author": "model"}
    synthesis = {"prompt": [["system", "Advise."], ["human", "Task: t\nStrategy:"]], "reply": f"Strategy: {advice}"}
    return made | {"strategy": strategy if advice else None, "synthesis": synthesis}


STEPS = [
    row("a", "wait", "wait"),
    row("b", "mist", "fern", "door black mist"),
    row("c", "lamp", "lamp", "door black mist"),
    row("d", "on", "on", ""),  # the writer said there is nothing to say
    row("e", "mist", "", "door black mist"),  # without a draft before
]


def test_a_pair_for_each_strategy_of_a_finished_episode() -> None:
    (first, second), undrafted = mft.collect_pairs(STEPS, "r/0", 10.0, solved=10.0, domain="toy")
    assert undrafted == 1
    told = {"prompt": (("system", "Advise."), ("user", "Task: t\nStrategy:")), "reply": "Strategy: door black mist"}
    assert first == replace(PAIR, id="r/0/1", **told, task="keep-train-0", domain="toy")
    assert (second.id, second.action) == ("r/0/2", "lamp")
    assert mft.step_set([first, second]) == [first]


@pytest.mark.parametrize(
    "broken", [{"synthesis": {"reply": "x"}}, {"strategy": {"text": "x"}}, {"synthesis": {"prompt": [["x"]]}}]
)
def test_rows_that_are_not_adamem_s_are_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(MftError, match=r"step b of episode r/0 is not one of AdaMEM's"):
        mft.collect_pairs([STEPS[0], STEPS[1] | broken, *STEPS[2:]], "r/0", 10.0)
