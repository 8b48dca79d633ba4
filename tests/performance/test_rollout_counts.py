"""What ICRL's prompts cost, in things that can be counted, and that many rollouts at once are the same as one after another."""

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from itertools import cycle, pairwise
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from waiting import PATIENCE

from learngraph.graphs import icrl
from learngraph.graphs.experiments.pool import play_in_threads
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.graphs.wiring.supersteps import UncheckpointedGraph, merge_steps
from learngraph.memory.attempts.buffer import Buffer
from learngraph.memory.records import Observation, Task
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.act.policies import PromptView, answer_policy
from learngraph.nodes.ask import estimate_tokens
from learngraph.nodes.retrieve.attempts import Layout


class Guess:
    """One written answer, worth its length modulo 7."""

    name = "guess"

    def __init__(self, instant: bool = True) -> None:
        self.instant, self.threads = instant, set[int]()

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """Over after one answer."""
        self.threads.add(threading.get_ident())
        return Observation("say it", (), float(len(actions[-1]) % 7) if actions else 0.0, bool(actions))

    def abstract(self, observation: Observation) -> str:
        """The text."""
        return observation.text

    def read(self, reply: str) -> tuple[str, ...]:
        """The reply as one action."""
        return (reply,)


class Said:
    """Says a longer word each time, and keeps the prompts."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.words = cycle(f"word {'x' * (n % 30)}{n}" for n in range(97))

    def invoke(self, messages: Sequence[BaseMessage], config: Any = None) -> AIMessage:
        """The next one."""
        self.prompts.append("\n".join(str(message.text) for message in messages))
        return AIMessage(next(self.words))

    async def ainvoke(self, messages: Sequence[BaseMessage], config: Any = None) -> AIMessage:
        """A word of the prompt's own, so that the order of rollouts does not matter."""
        await asyncio.sleep(0)
        self.prompts.append(str(messages[-1].text))
        return AIMessage(f"word {'x' * (len(self.prompts[-1]) % 31)}")


def answers(model: Said, world: Guess) -> Any:
    """Prompt view -> the policy that has `model` write an answer to it."""

    def policy(seen: PromptView) -> Any:
        return answer_policy(model, seen, world.read)  # type: ignore[arg-type]

    return policy


def graph(model: Said, settings: icrl.ICRL, world: Guess | None = None, **inputs: Any) -> Any:
    world = world or Guess()
    made = MethodInputs(world, Journal(), make_policy=answers(model, world), **inputs)  # type: ignore[arg-type]
    return run.build(icrl.build(made, settings))


def plan(rounds: int, n: int = 0) -> dict[str, Any]:
    return {"task": Task(f"guess-{n}", "say something", n), "run": f"r{n}", "episode": 0, "episodes": rounds}


def prompts(settings: icrl.ICRL, rounds: int = 60, **inputs: Any) -> list[str]:
    model = Said()
    UncheckpointedGraph(graph(model, settings, **inputs)).invoke(plan(rounds))
    return model.prompts


def test_one_model_call_a_round() -> None:
    assert len(prompts(icrl.ICRL(), 20)) == 20


def test_attempts_in_a_prompt_stay_within_the_budget() -> None:
    frame = len(prompts(icrl.ICRL(), 1)[0])
    for budget in (60, 200, 500):
        for prompt in prompts(icrl.ICRL(selection="budget", max_memory_tokens=budget)):
            assert (
                estimate_tokens(prompt[: len(prompt) - frame]) <= budget + 1
            )  # the number of the running attempt grows a digit


def test_a_budget_makes_prompts_stop_growing() -> None:
    """All attempts: every round's prompt is longer by an attempt, the total quadratic. A budget: a constant, and linear."""
    everything, bounded = (
        [len(p) for p in prompts(icrl.ICRL(selection=keep, max_memory_tokens=300))] for keep in ("all", "budget")
    )  # type: ignore[arg-type]
    growth = [now - before for before, now in pairwise(everything)]
    assert min(growth) > 20
    assert max(bounded[30:]) <= 1.1 * max(bounded[:30])
    assert sum(bounded[40:]) <= 1.1 * sum(bounded[20:40])


def common(before: str, now: str) -> int:
    return next((n for n, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now)))


def test_a_cached_prefix_leaves_what_is_new_to_compute() -> None:
    """Row 16: computed / new <= 1.05 while the budget is not reached, with a perfect cache of the last prompt. What every prompt
    ends with (the situation and the request) stands behind the new attempt, so it counts as new each time."""
    computed = new = 0
    texts = prompts(icrl.ICRL(instruction="none"), 40)
    for before, now in pairwise(texts):
        request = common(before[::-1], now[::-1])
        computed += len(now) - common(before, now) - request
        lines = Counter(now.split("\n")) - Counter(before.split("\n"))
        new += sum(len(line) + 1 for line in lines.elements())
    assert computed / new <= 1.05


def test_an_instruction_costs_no_more_than_itself() -> None:
    """It stands at the end and moves on with it: it and the observation are computed again, and nothing before them."""
    texts = prompts(icrl.ICRL(), 40)
    for before, now in pairwise(texts):
        assert common(before, now) >= before.rindex("Now: ")


async def test_rollouts_at_once_are_those_one_by_one() -> None:
    together = await UncheckpointedGraph(graph(Said(), icrl.ICRL())).abatch([plan(6, n) for n in range(8)])
    alone = [await graph(Said(), icrl.ICRL()).ainvoke(plan(6, n)) for n in range(8)]
    assert together == alone


async def test_a_world_that_waits_is_asked_in_a_thread() -> None:
    for instant in (True, False):
        for play in (merge_steps, UncheckpointedGraph):
            world = Guess(instant)
            await play(icrl.build(MethodInputs(world, make_policy=answers(Said(), world)), icrl.ICRL())).ainvoke(plan(3))
            assert (threading.get_ident() in world.threads) is instant


def test_an_attempt_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    original = Layout._text

    def text(self: Layout, trajectory: Any, shown: Any) -> str:
        written.append(trajectory.id)
        return original(self, trajectory, shown)

    monkeypatch.setattr(Layout, "_text", text)
    prompts(icrl.ICRL(), 30)
    assert len(written) <= 2 * 29  # once to be measured, once to be shown
    assert Buffer().is_durable is False


def test_batches_in_threads() -> None:
    """All at once; one that goes wrong stops no other."""
    meeting = threading.Barrier(4, timeout=PATIENCE)

    def play(batch: int) -> str | None:
        meeting.wait()
        return None

    assert play_in_threads([1, 2, 3, 4], play, 4) == []
    assert sorted(play_in_threads([1, 2, 3], lambda batch: f"{batch} failed" if batch > 1 else None, 2)) == [
        "2 failed",
        "3 failed",
    ]
