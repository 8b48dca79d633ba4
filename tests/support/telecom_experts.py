"""Agents that solve telecom tickets of tau2-bench by a script, and memories of conversations with them: does memory harm who knows better?

Expert       looks at three things, then makes the calls of the benchmark's own solution, and ends
Mediocre     the same, but each of its calls is a wrong one with some probability, drawn anew each time it is asked
MEMORIES     name -> the conversations that memory holds: good, bad, wrongly rated, hostile
"""

import itertools
from collections.abc import Sequence
from random import Random
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from pydantic import PrivateAttr
from scripted_chat import SayingChat

from learngraph.memory.conversations.messages import call_text, read_call
from learngraph.memory.records import Task
from learngraph.tools.environments.support.tool_episodes import ToolEpisode
from learngraph.tools.environments.tau2_bench import TauBench

READS = ("check_status_bar()", "check_network_status()", "run_speed_test()")
WRONG = ("toggle_airplane_mode()", "toggle_data()", "disconnect_vpn()", "reseat_sim_card()", "toggle_roaming()", "done()")
MOST_CALLS = 60
"""Calls of an agent in a ticket; one that makes more has run into a loop."""


class Expert(SayingChat):
    """Makes the calls of a plan that it has not made yet, in order.

    Args:
        plan: the calls, the last of which ends the ticket.
        error: the probability with which a call is one of `WRONG`.
        seed: of the errors.
    """

    plan: tuple[str, ...]
    error: float = 0.0
    seed: str = ""
    _replies: Any = PrivateAttr(default_factory=lambda: itertools.count())

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        """The expert, who knows the tools already."""
        return self

    def say(self, messages: list[BaseMessage], **options: Any) -> AIMessage:
        made = [
            call_text({"name": c["name"], "args": c["args"]})
            for m in messages
            if isinstance(m, AIMessage)
            for c in m.tool_calls
        ]
        number = next(self._replies)
        random = Random(f"{self.seed}/{number}")
        action = next((call for call in self.plan if call not in made), self.plan[-1])
        if random.random() < self.error:
            action = random.choice(WRONG)
        name, arguments = read_call(action)
        return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call-{self.seed}-{number}"}])


def expert_plan(world: TauBench, task: Task) -> tuple[str, ...]:
    """What an expert does with a ticket: three looks, the solution, the end."""
    names = [read_call(call) for call in (*READS, *world.solution(task))]
    return tuple(call_text({"name": name, "args": arguments}) for name, arguments in names)


def solve(world: TauBench, task: Task, model: Expert, learner: Any = None, thread: str = "t") -> tuple[float, bool]:
    """Have the model solve a ticket: (its reward, True if it ran into a loop)."""
    episode = ToolEpisode(world, task)
    agent = create_agent(model, episode.tools, middleware=[learner] if learner else [], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": thread}, "recursion_limit": 4 * MOST_CALLS}
    try:
        agent.invoke({"messages": [HumanMessage(episode.request, id=f"{thread}-request")]}, config)
    except GraphRecursionError:
        return 0.0, True
    return episode.score, len(episode.actions) > MOST_CALLS
