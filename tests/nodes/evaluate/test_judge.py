"""Judges: bad rules, self-evaluation, comparison with a reference. A missing reward is never a zero."""

import asyncio
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage
from pydantic import Field
from scripted_chat import SayingChat, counted

from learngraph.graphs import icrl
from learngraph.graphs.baselines import best_of_n
from learngraph.graphs.experiments.options import RunOptions
from learngraph.graphs.experiments.run_inputs import asks_model, judge_node
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.graphs.wiring.supersteps import merge_steps
from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task, Transition, Usage
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.rows import Rows
from learngraph.nodes.ask import Ask, text
from learngraph.nodes.evaluate.judge import EnvironmentJudge, RuleJudge, model_judge, self_judge
from learngraph.nodes.evaluate.preference import PairwiseJudge, pairwise_judge
from learngraph.nodes.prompt import Prompt
from learngraph.tools.environments.arithmetic import Game24
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.environments.writing import Writing

TASK = Task("t-1", "make 24 of 4 4 6 8")


class Heard(SayingChat):
    """Answers by a function of what it is asked, and keeps it."""

    says: Callable[[str], str]
    heard: list[str] = Field(default_factory=list)

    def say(self, messages: list[BaseMessage], **options: Any) -> AIMessage:
        self.heard.append("\n".join(text(m) for m in messages))
        return counted(self.says(self.heard[-1]), 10, 2)


def model(*replies: str | Callable[[str], str]) -> Heard:
    """Says the replies in order (the last again and again), or what a function makes of the question."""
    left = list(replies)

    def says(asked: str) -> str:
        reply = left.pop(0) if len(left) > 1 else left[0]
        return reply(asked) if callable(reply) else reply

    return Heard(says=says)


def attempt(*actions: str, rewards: Sequence[float | None] = ()) -> tuple[Journal, dict[str, Any]]:
    """A finished attempt: its journal, and the state that a judge sees."""
    journal = Journal()
    head = Journal.start("r", 0, TASK.id)
    for t, action in enumerate(actions):
        head = journal.append(head, Transition(f"state {t}", action, rewards[t] if rewards else 77.0))
    return journal, {"task": TASK, "run": "r", "episode": 0, "step": len(actions), "head": head, "score": 777.0}


THREE = attempt("one", "two", "three")


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Any:
    if request.param == "sync":
        return lambda node, state: node.invoke(state)
    return lambda node, state: asyncio.run(node.ainvoke(state))


# Rules


def ruled(verify: Any, actions: Sequence[str] = ("one", "two", "three")) -> Any:
    journal, state = attempt(*actions)
    return RuleJudge(verify, journal)(state)  # type: ignore[arg-type]


def raising(task: Task, actions: Sequence[str]) -> Any:
    raise ZeroDivisionError("no\n such  luck")


def endless(task: Task, actions: Sequence[str]) -> Iterator[float]:
    while True:
        yield 1.0


def breaking_off(task: Task, actions: Sequence[str]) -> Iterator[float]:
    yield 1.0
    raise KeyError("two")


def emptying(task: Task, actions: Any) -> list[float]:
    actions.clear()
    return []


class Opaque:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([1.0, math.nan, 0.0], "asked the rule for finite numbers, got nan"),
        ([1.0, math.inf, 0.0], "asked the rule for finite numbers, got inf"),
        ([1.0, "3", 0.0], "asked the rule for finite numbers, got '3'"),
        ([1.0, True, 0.0], "asked the rule for finite numbers, got True"),
        ([1.0, np.True_, 0.0], "finite numbers, got "),
        ([1.0, 1j, 0.0], "finite numbers, got 1j"),
        ([1.0, Decimal(1), 0.0], "finite numbers, got Decimal"),
        ([1.0, 10**400, 0.0], "finite numbers, got 1000000"),
        ([1.0, 10**5000, 0.0], "finite numbers, got a int"),
        ([1.0, [0.0], 0.0], "finite numbers, got [0.0]"),
        ([1.0, Opaque(), 0.0], "finite numbers, got a Opaque"),
        (np.zeros((3, 2)), "finite numbers, got array"),
        ([1.0, 2.0], "asked the rule for 3 rewards, got 2"),
        ([1.0] * 9, "asked the rule for 3 rewards, got 9"),
        ([], "asked the rule for 3 rewards, got 0"),
        (np.ones(4), "asked the rule for 3 rewards, got 4"),
        (None, "asked the rule for a list of 3 rewards, got None"),
        (2.5, "asked the rule for a list of 3 rewards, got 2.5"),
        ("123", "asked the rule for a list of 3 rewards, got '123'"),
        (b"123", "asked the rule for a list of 3 rewards, got b'123'"),
        ({1: 1.0, 2: 2.0, 3: 3.0}, "asked the rule for a list of 3 rewards, got {1"),
        ({1.0, 2.0, 3.0}, "asked the rule for a list of 3 rewards, got {1.0"),
    ],
)
def test_what_is_no_list_of_numbers_is_no_reward(given: Any, why: str) -> None:
    judged = ruled(lambda task, actions: given)
    assert judged["rewards"] == [None, None, None]
    assert why in judged["unjudged"]


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (raising, "the rule raised ZeroDivisionError: no such luck"),
        (breaking_off, "the rule raised KeyError: 'two'"),
        (endless, "asked the rule for 3 rewards, got 4 or more"),
        (emptying, "the rule raised AttributeError"),
        (lambda task: [], "the rule raised TypeError"),
    ],
)
def test_a_rule_that_goes_wrong_is_no_reward(rule: Any, why: str) -> None:
    judged = ruled(rule)
    assert judged["rewards"] == [None, None, None]
    assert judged["unjudged"].startswith(why)


@pytest.mark.parametrize(
    "given",
    [(0, 1.5, 3), np.array([0, 1.5, 3], dtype=np.float32), [np.int64(0), Fraction(3, 2), np.float16(3)], iter([0, 1.5, 3])],
)
def test_numbers_of_all_kinds_become_plain_floats(given: Any) -> None:
    judged = ruled(lambda task, actions: given)
    assert judged == {"rewards": [0.0, 1.5, 3.0], "unjudged": ""}
    assert all(type(reward) is float for reward in judged["rewards"])


def test_a_rule_may_say_that_it_cannot_tell() -> None:
    assert ruled(lambda task, actions: [1, None, 2]) == {
        "rewards": [1.0, None, 2.0],
        "unjudged": "the rule gave no reward for step 2",
    }


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.complex_numbers(),
    st.decimals(),
    st.fractions(),
    st.floats(width=32).map(np.float32),
)


@given(
    st.one_of(anything, st.lists(anything, max_size=6), st.dictionaries(st.integers(), anything, max_size=4)), st.integers(1, 4)
)
def test_a_rule_gives_finite_floats_or_nothing(given: Any, steps: int) -> None:
    """Whatever a rule returns: a reward per step, each a finite float that it gave, or all missing with a reason."""
    judged = ruled(lambda task, actions: given, [str(t) for t in range(steps)])
    rewards = judged["rewards"]
    assert len(rewards) == steps
    assert all(reward is None or (type(reward) is float and math.isfinite(reward)) for reward in rewards)
    if None in rewards:
        assert judged["unjudged"]
    if any(reward is not None for reward in rewards):
        assert [None if one is None else float(one) for one in given] == rewards


def test_the_rules_of_our_worlds_are_rules() -> None:
    game = Game24({"puzzle": "4 4 6 8"})
    task = game.task(0)
    for actions, rewards in ((game.gold(task), [3.0, 3.0, 3.0, 10.0]), (("6 - 4 = 2", "gibberish"), [3.0, None])):
        journal, state = attempt(*actions)
        judged = RuleJudge(game.verify, journal)({**state, "task": task})  # type: ignore[typeddict-item]
        assert judged["rewards"] == rewards


def test_the_environment_says_where_it_could_not_read() -> None:
    journal, state = attempt("one", "two", rewards=[1.0, None])
    judged = EnvironmentJudge(journal)(state)  # type: ignore[arg-type]
    assert judged["rewards"] == [1.0, None]
    assert "gave no reward for step 2" in judged["unjudged"]


# Self-evaluation


def test_a_model_judges_its_own_steps(ask: Any) -> None:
    journal, state = THREE
    judge = model('4 + 4 is 8 {fine}, so {"rewards": [3, 1, 10]}')
    judged = ask(self_judge(judge, journal), state)
    assert judged == {"rewards": [3.0, 1.0, 10.0], "unjudged": "", "usage": Usage(1, 10, 2)}
    (asked,) = judge.heard
    assert "Task: make 24 of 4 4 6 8" in asked
    assert "Step 1. You saw:\nstate 0\nAction: one\nStep 2. You saw:\nstate 1\nAction: two\n" in asked
    assert "77" not in asked  # neither the score nor what the world paid


@pytest.mark.parametrize(
    ("reply", "why", "kept"),
    [
        ('{"rewards": [4, 1, 10]}', "asked for rewards from 0 to 3, got 4 for step 1", [None, 1.0, 10.0]),
        ('{"rewards": [3, 1, 11]}', "asked for rewards from 0 to 10, got 11", [3.0, 1.0, None]),
        ('{"rewards": [3, true, 1]}', "got True", [3.0, None, 1.0]),
        ('{"rewards": [3, null, 1]}', "got None", [3.0, None, 1.0]),
        ('{"rewards": [3, NaN, 1]}', "got nan", [3.0, None, 1.0]),
        ('{"rewards": {"1": 3, "3": 9}}', "got no reward for step 2", [3.0, None, 9.0]),
        ('{"1": 3, "3": 9}', "got no reward for step 2", [3.0, None, 9.0]),
        (
            '{"rewards": [{"step": 1, "reason": "fine", "reward": 3}, {"step": 3, "reward": 9}, {"step": 4, "reward": 1}]}',
            "got no reward for step 2",
            [3.0, None, 9.0],
        ),
        ('{"rewards": [3, 10]}', "asked for 3 rewards, got 2 without numbers", [None, None, None]),
        ('{"score": 3}', "got no reward for step 1", [None, None, None]),
        ("all of it was fine", "asked for a JSON object", [None, None, None]),
    ],
)
def test_a_step_without_a_reward_is_asked_for_again_and_then_missing_alone(
    reply: str, why: str, kept: list[float | None], ask: Any
) -> None:
    journal, state = THREE
    judge = model(reply, '{"rewards": [{"step": 2, "reward": 0}, {"step": 1, "reward": 1}, {"step": "3", "reward": 2}]}')
    assert ask(self_judge(judge, journal), state)["rewards"] == [1.0, 0.0, 2.0]
    assert why in judge.heard[1]
    judged = ask(self_judge(model(reply), journal), state)
    assert judged["rewards"] == kept
    assert judged["unjudged"].startswith("judge/self: ")
    assert why in judged["unjudged"]
    assert judged["usage"] == Usage(3, 30, 6, unreadable=3)


def test_a_judge_in_hindsight_says_so_and_sees_how_the_attempt_ended() -> None:
    journal, state = THREE
    judge = model(
        '{"rewards": [{"step": 1, "reason": "found it", "reward": 10}, {"step": 2, "reward": -3}, {"step": 3, "reward": 0}]}'
    )
    node = model_judge(judge, journal)
    judged = node.invoke({**state, "observation": Observation("The ice breaks. You have died.", over=True)})
    assert judged["rewards"] == [10.0, -3.0, 0.0]
    assert "Reward: 77\nAfter the last step:\nThe ice breaks. You have died.\n" in judge.heard[0]
    assert "The world paid 777 in all." in judge.heard[0]
    assert node.credits_future
    assert not self_judge(judge, journal).credits_future


def test_the_self_judge_is_not_told_a_verdict_of_the_world() -> None:
    journal, state = THREE
    ended = {**state, "observation": Observation("wrong: it makes 10, not 24", over=True)}
    judge = model('{"score": 1}')
    for shows_answers in (False, True):
        self_judge(judge, journal, sparse=True, shows_answers=shows_answers).invoke(ended)
    assert [("wrong" in asked) for asked in judge.heard] == [False, True]
    for world, shown in ((Game24(), False), (TextOnly(), True)):
        judge.heard.clear()
        judge_node(RunOptions(env="any", judge="self:sparse"), world, judge, journal).invoke(ended)
        assert ("wrong" in judge.heard[0]) == shown


class TextOnly:
    """A world that is played step by step."""


def test_a_judgement_of_the_whole_stands_on_the_last_step(ask: Any) -> None:
    journal, state = THREE
    judged = ask(self_judge(model('{"score": 7.5}'), journal, sparse=True), state)
    assert judged == {"rewards": [0.0, 0.0, 7.5], "unjudged": "", "usage": Usage(1, 10, 2)}
    lost = ask(self_judge(model('{"score": 12}'), journal, sparse=True), state)
    assert lost["rewards"] == [None, None, None]
    assert "asked for a score from 0 to 10, got 12" in lost["unjudged"]


# Pairwise


def place(asked: str, answer: str) -> int:
    """1 if the answer stands first, 2 if second."""
    return 1 if asked.index(answer) < asked.index("The second answer:") else 2


def compared(says: Callable[[str], str], actions: Sequence[str] = ("mine",)) -> tuple[PairwiseJudge, Heard, dict[str, Any]]:
    journal, state = attempt(*actions)
    judge = model(says)
    return pairwise_judge(judge, journal, lambda task: ("theirs", task.id)), judge, state


@pytest.mark.parametrize("favour", [1, 3, 5, 8, 10])
def test_a_judge_that_only_sees_places_gives_five(favour: int, ask: Any) -> None:
    node, _, state = compared(lambda asked: f'{{"score": {favour}}}')
    assert ask(node, state)["rewards"] == [5.0]


@pytest.mark.parametrize(("first", "second", "reward"), [(10, 1, 9.5), (8, 2, 8.0), (5, 5, 5.0), (2, 8, 2.0), (1, 10, 0.5)])
def test_both_orders_are_asked_and_the_mean_counts(first: int, second: int, reward: float, ask: Any) -> None:
    """Scores for the attempt standing first, and for the reference standing first."""
    node, judge, state = compared(lambda asked: f'{{"score": {first if place(asked, "mine") == 1 else second}}}')
    assert ask(node, state) == {"rewards": [reward], "unjudged": "", "usage": Usage(2, 20, 4)}
    assert sorted(place(asked, "mine") for asked in judge.heard) == [1, 2]
    assert all("theirs\nt-1" in asked for asked in judge.heard)


def test_half_a_comparison_is_none(ask: Any) -> None:
    node, _, state = compared(lambda asked: '{"score": 9}' if place(asked, "mine") == 1 else '{"score": 0}', ("mine", "end"))
    judged = ask(node, state)
    assert judged["rewards"] == [None, None]
    assert "judge/pairwise: asked for a score from 1 to 10, got 0" in judged["unjudged"]
    assert judged["usage"] == Usage(4, 40, 8, unreadable=3)


def test_a_comparison_is_asked_for_again(ask: Any) -> None:
    node, judge, state = compared(lambda asked: '{"score": 5}' if "cannot be used" in asked else "A!", ("mine", "end"))
    judged = ask(node, state)
    assert judged["rewards"] == [0.0, 5.0]
    assert len(judge.heard) == 4


def test_a_reference_may_be_a_text_or_an_environments_gold_path() -> None:
    journal, state = attempt("mine")
    judge = model('{"score": 5}')
    pairwise_judge(judge, journal, lambda task: "one text").invoke(state)
    assert "\none text" in judge.heard[0]
    world = Writing({"source": "own"})
    task = world.task(0)
    pairwise_judge(judge, journal, world.gold).invoke({**state, "task": task})
    assert all(sentence in judge.heard[-1] for sentence in world.sentences(task))


def test_a_seeded_model_draws_anew_in_the_other_order(ask: Any) -> None:
    """Two seeds; the whole asked again: the same two."""

    class Seeded(Heard):
        seeded: bool = True
        seeds: list[int] = Field(default_factory=list)

        def say(self, messages: list[BaseMessage], **options: Any) -> AIMessage:
            self.seeds.append(options["seed"])
            return super().say(messages)

    journal, state = THREE
    judge = Seeded(says=lambda asked: '{"score": 7}')
    node = pairwise_judge(judge, journal, lambda task: "one text")
    ask(node, state)
    ask(node, state)
    assert len(set(judge.seeds[:2])) == 2
    assert sorted(judge.seeds[2:]) == sorted(judge.seeds[:2])


# In a run


class Episodes(Rows):
    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self.values()]


def played(judge: Any, journal: Journal, episodes: int = 2, build: Any = best_of_n.build, **more: Any) -> tuple[Any, Episodes]:
    game, log = Game24({"puzzle": "4 4 6 8"}), Episodes()
    graph = run.build(merge_steps(build(MethodInputs(game, journal, judge=judge), **more)), log)
    plan = {"task": game.task(0), "run": "r", "episode": 0, "episodes": episodes}
    return graph.invoke(plan), log


def test_why_a_reward_is_missing_stands_in_the_log_of_episodes() -> None:
    journal = Journal()
    calls = iter(range(9))
    end, log = played(RuleJudge(lambda task, actions: [1 / next(calls) for _ in actions], journal), journal)
    assert log.column("unjudged") == ["the rule raised ZeroDivisionError: division by zero", ""]
    assert log.column("earned") == [None, pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4)]
    assert end["answer"] == 1


def test_the_first_round_is_judged_too() -> None:
    """The published code gave round 0 a constant."""
    journal = Journal()
    judge = model('{"score": 3}')
    node = pairwise_judge(judge, journal, lambda task: "(4 + 8) * (6 - 4)")
    end, log = played(node, journal, build=icrl.build)
    assert log.column("earned") == [5.0, 5.0]
    assert len(judge.heard) == 4
    assert end["values"] == [5.0, 5.0]


# The command line


def judged_by(name: str, env: Any, llm: Any) -> Any:
    return judge_node(RunOptions(env="it", judge=name), env, llm, Journal())


def test_judges_by_name() -> None:
    game, llm = Game24({"puzzle": "4 4 6 8"}), model("?")
    assert judged_by("environment", game, None) is None
    assert isinstance(judged_by("rule", game, None), RuleJudge)
    for name, asks in (("self", "judge/self"), ("self:sparse", "judge/self_sparse"), ("model", "jitrl/judge")):
        judge = judged_by(name, game, llm)
        assert isinstance(judge, Ask)
        assert judge.asks == asks
    assert isinstance(judged_by("pairwise", game, llm), PairwiseJudge)


@pytest.mark.parametrize(
    ("name", "env", "llm", "words"),
    [
        ("rule", KeywordKeep(), None, "it has no rule to judge by"),
        ("self", KeywordKeep(), None, "--judge self asks a model, and there is none here"),
        ("pairwise", KeywordKeep(), None, "--judge pairwise asks a model"),
        ("pairwise", object(), object(), "no reference answer"),
        ("self:dense", KeywordKeep(), object(), "self:sparse, pairwise, model, hindsight, or shift:C; got 'self:dense'"),
        ("rule+self", Game24(), None, "got 'rule\\+self'"),
        ("", Game24(), None, "got ''"),
    ],
)
def test_a_judge_that_cannot_work_is_an_error(name: str, env: Any, llm: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        judged_by(name, env, llm)


@pytest.mark.parametrize(
    ("name", "asks"),
    [("environment", False), ("rule", False), ("self", True), ("self:sparse", True), ("pairwise", True), ("model", True)],
)
def test_which_judges_ask_a_model(name: str, asks: bool) -> None:
    assert asks_model(name) is asks


@pytest.mark.parametrize(("name", "field"), [("self", "rewards"), ("self_sparse", "score"), ("pairwise", "score")])
def test_the_example_in_a_prompt_is_in_the_form_that_is_read(name: str, field: str) -> None:
    """And the prompt fills without values left over."""
    prompt = Prompt.load(f"judge/{name}")
    values: Mapping[str, Any] = dict.fromkeys(prompt.placeholders, "1")
    last = re.findall(r"\{.*\}", "\n".join(map(text, prompt.messages(**values))))[-1]
    assert f'"{field}"' in last


def test_the_judge_of_jitrl_is_what_it_was() -> None:
    journal, state = THREE
    judge = model('{"rewards": [-10, 0, 10]}')
    judged = model_judge(judge, journal).invoke(state)
    assert judged == {"rewards": [-10.0, 0.0, 10.0], "unjudged": "", "usage": Usage(1, 10, 2)}
    assert "paid 777 in all" in judge.heard[0]  # it is told what the world paid
    assert "Reward: 77\n" in judge.heard[0]
