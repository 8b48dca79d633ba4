"""What a learning middleware adds to a model call of an agent: milliseconds besides the model's own time, and tokens.

    python tests/performance/bench_agents.py [--steps 1000 10000 100000] [--rounds 50]

The memory holds conversations of four decisions each, in as many states as there are kinds of issue (a thousand). A model call is
`wrap_model_call` with a model that answers at once. Printed are the median and the 90th percentile over the rounds, at a decision and
at a call that is none, and what recording a turn and taking in its feedback take.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import support_desk as desk
from langchain.agents.middleware import ModelRequest
from langchain.agents.middleware.types import ModelResponse
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore

from learngraph.graphs.agents.jitrl import JitRLMiddleware
from learngraph.memory.conversations import trajectory
from learngraph.memory.records import Task

KINDS = 1_000
STEPS_PER_CONVERSATION = 4


def issue(messages: Any) -> str:
    """The kind of issue, which the tickets of this benchmark name."""
    return next(str(m.text) for m in reversed(messages) if isinstance(m, HumanMessage))


def call(how: str, number: int) -> AIMessage:
    """A decision of the agent."""
    return AIMessage("", tool_calls=[{"name": "resolve", "args": {"how": how, "order": f"A{number}"}, "id": f"c{number}"}])


def fill(learner: JitRLMiddleware, steps: int) -> None:
    """Give the learner's scope so many remembered decisions."""
    random = Random(0)
    store = learner._memory(learner._labels({})).conversations
    for n in range(steps // STEPS_PER_CONVERSATION):
        said = []
        for turn in range(STEPS_PER_CONVERSATION):
            said += [HumanMessage(f"issue of kind {random.randrange(KINDS)}"), call(random.choice(desk.HOWS), turn)]
        found = trajectory(said, random.random(), run=f"t{n}", task=Task("agent", ""), domain="agent", state_key=issue)
        store.trajectories.put([found])


def timed(work: Callable[[], Any], rounds: int) -> list[float]:
    """Milliseconds of each round."""
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        found.append((time.perf_counter() - start) * 1e3)
    return found


def row(name: str, times: list[float]) -> str:
    """A line of the table."""
    return f"| {name} | {statistics.median(times):.2f} | {sorted(times)[int(0.9 * len(times))]:.2f} |"


def measure(steps: int, rounds: int) -> list[str]:
    """The rows of a memory of this size."""
    learner = JitRLMiddleware(InMemoryStore(), decide=["resolve"], state_key=issue)
    fill(learner, steps)
    config = {"configurable": {"thread_id": "now"}}
    var_child_runnable_config.set(config)  # type: ignore[arg-type]
    tools = [desk.lookup_order, desk.resolve]
    messages = [HumanMessage("issue of kind 7", id="h1")]

    def request(answer: AIMessage) -> tuple[ModelRequest[Any], Any]:
        made = ModelRequest(
            model=desk.SupportModel(), messages=[*messages], tools=[*tools], state={"messages": messages}, runtime=Runtime()
        )
        return made, lambda request: ModelResponse([answer])

    decision, plain = request(call("refund", 1)), request(AIMessage("It is done."))
    start = time.perf_counter()
    learner.wrap_model_call(*decision)
    opening = (time.perf_counter() - start) * 1e3
    calls = timed(lambda: learner.wrap_model_call(*plain), rounds)
    decisions = timed(lambda: learner.wrap_model_call(*decision), rounds)
    state = {"messages": [*messages, call("refund", 1), AIMessage("It is done.")], "learning": []}
    recorded = timed(lambda: learner.after_agent(state, Runtime()), rounds)
    rated = timed(lambda: learner.feedback("now", reward=Random().random()), rounds)
    return [
        row(f"{steps:,} steps: a call that is no decision", calls),
        row(f"{steps:,} steps: a decision (4 samples)", decisions),
        row(f"{steps:,} steps: recording a turn", recorded),
        row(f"{steps:,} steps: feedback", rated),
        row(f"{steps:,} steps: the first call, which reads the memory", [opening]),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    print("| | median, ms | 90th percentile, ms |\n|---|---:|---:|")
    for steps in options.steps:
        print("\n".join(measure(steps, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
