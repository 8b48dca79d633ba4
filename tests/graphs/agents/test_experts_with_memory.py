"""Memory must not make an expert worse: tau2's telecom tickets, solved by a script with JitRL over all tools.

`python -m pytest tests/graphs/agents/test_experts_with_memory.py -m slow -s` prints the share of tickets solved, for each kind of memory.
"""

from random import Random
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore
from telecom_experts import Expert, expert_plan, solve
from worlds_here import needs

from learngraph.graphs.agents.jitrl import JitRLMiddleware
from learngraph.tools.environments.support.tool_episodes import ToolEpisode
from learngraph.tools.environments.tau2_bench import TauBench

TICKETS = 5
KINDS = ("empty", "own", "others", "failures", "noise", "adversarial", "one wrong reward", "other tickets")
ERROR = 0.15
"""The probability of a wrong call with which a script solves about two thirds of the tickets."""


def fill(kind: str, learner: Any, world: TauBench) -> None:
    """Give the learner conversations of this kind, which it observes without advising."""

    def talk(number: int, model: Expert, reward: float | None = None, split: str = "test", again: int = 0) -> None:
        thread = f"{kind} {number}-{again}"
        score, _ = solve(world, world.task(number, split), model, learner, thread)
        learner.feedback(thread, reward=score if reward is None else reward)

    learner.mode, random = "observe", Random(kind)
    for number in range(TICKETS if kind != "empty" else 0):
        plan = expert_plan(world, world.task(number))
        erring = [Expert(plan=plan, error=0.6, seed=f"{kind}{number}{again}") for again in range(3)]
        if kind in ("own", "one wrong reward"):
            talk(number, Expert(plan=plan), reward=0.0 if kind == "one wrong reward" and number == 0 else None)
        elif kind == "others":
            body = list(plan[:-1])
            random.shuffle(body)
            talk(number, Expert(plan=(*body, plan[-1])))
        elif kind == "failures":
            talk(number, erring[0], reward=0.0)
        elif kind == "noise":
            talk(number, erring[0], reward=float(random.random() < 0.5))
        elif kind == "adversarial":
            talk(number, Expert(plan=plan), reward=0.0)
            for again, model in enumerate(erring):
                talk(number, model, reward=1.0, again=again + 1)
        else:
            talk(number, Expert(plan=expert_plan(world, world.task(number, "train"))), split="train")
    learner.mode = "guide"


@needs("tau2")
@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("own", "adversarial"), pytest.param(KINDS, marks=pytest.mark.long)], ids=["some", "all"])
def test_no_memory_makes_an_expert_worse_and_good_ones_help_who_errs(kinds: tuple[str, ...]) -> None:
    world = TauBench()
    names = [tool.name for tool in ToolEpisode(world, world.task(0)).tools]

    def play(error: float, learner: Any = None) -> tuple[float, int]:
        found = []
        for number in range(TICKETS):
            model = Expert(plan=expert_plan(world, world.task(number)), error=error, seed=str(number))
            found.append(solve(world, world.task(number), model, learner, f"played {error} {number}"))
        return sum(score for score, _ in found) / TICKETS, sum(loops for _, loops in found)

    alone, erring = play(0.0)[0], play(ERROR)[0]
    print(f"\nalone: expert {alone:.2f}, erring {erring:.2f}")
    for kind in kinds:
        learner = JitRLMiddleware(InMemoryStore(), decide=names)
        fill(kind, learner, world)
        (expert, loops), (mediocre, more) = play(0.0, learner), play(ERROR, learner)
        print(f"{kind}: expert {expert:.2f}, erring {mediocre:.2f}, loops {loops + more}")
        assert (expert, loops, more) == (alone, 0, 0), kind
        if kind == "own":
            assert mediocre >= erring + 0.15
