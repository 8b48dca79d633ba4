"""An agent of LangChain as a method of a comparison: it plays by real tool calls, with a learning middleware or without.

    learngraph.graphs.agents.agent_method:METHOD                            the agent alone
    learngraph.graphs.agents.agent_method:METHOD?learner=reasoning-bank     with a middleware of graphs/agents
    learngraph.graphs.agents.agent_method:METHOD?learner=jitrl&shuffled=true    a control, which is told the rewards of other tasks

The agent plays `problems` tasks of the train fold once each, and its middleware is told their rewards. Then it plays tasks of the test
fold with what was learned, and is told nothing. For worlds whose actions are tool calls, such as tau2 and bfcl.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Any, ClassVar

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, hook_config
from langgraph.errors import GraphRecursionError
from langgraph.graph import StateGraph
from langgraph.store.memory import InMemoryStore
from typing_extensions import TypedDict

from ...memory.errors import UserError, did_you_mean
from ...memory.records import NO_ACTION, Task, Usage
from ...nodes.act.episode import Act, Begin
from ...nodes.act.tool_use import NextAction, PlanChannel, route_remaining_answer
from ...nodes.ask import call_usage
from ...nodes.cached_model import CachedChatModel
from ...nodes.state import ChoiceChannels, EpisodeChannels, EpisodeInput, EpisodeResult, PlanChannels
from ..methods import Method
from ..wiring.flow import Graph, Node, compile_graph, wire
from ..wiring.inputs import MethodInputs
from .jitrl import JitRLMiddleware
from .methods import MIDDLEWARES, make_learner

__all__ = ["METHOD"]

FLOW = """
flowchart LR
  START --> begin --> converse --> submit --> act
  act -->|next step| submit
  act -->|over| END
"""
LEARNERS = ("", "jitrl", *MIDDLEWARES)
SUPERSTEPS = 8
"""Most supersteps of an agent's graph for each call of a tool."""


class ConversationState(EpisodeChannels, PlanChannels, ChoiceChannels):
    """The channels of an episode that an agent plays as a whole."""


@dataclass(frozen=True)
class LearningAgent:
    """Settings of an agent and of what it learns from."""

    learner: str = ""
    """The middleware, by its method; empty: none."""
    problems: int = 20
    """Tasks of the train fold that it learns from; an agent without a middleware plays none of them."""
    held_out: int = 0
    """Tasks that are held out; none here."""
    shuffled: bool = False
    """True: the middleware is told the reward of a task that is drawn from those before."""

    def __post_init__(self) -> None:
        if self.learner not in LEARNERS:
            raise UserError(f"learner: there is no {self.learner!r}{did_you_mean(self.learner, LEARNERS[1:], 'there are')}")
        if self.problems < 1:
            raise UserError(f"problems is at least 1, got {self.problems}")


def open_learner(settings: LearningAgent, world: Any, task: Task, model: Any) -> Any:
    """The middleware with an empty memory in this process."""
    if settings.learner == "jitrl":
        return JitRLMiddleware(InMemoryStore(), decide=[tool.name for tool in world.describe_tools(task)])
    by_critic = {"study": "job"} if settings.learner in ("lessons", "reasoning-bank", "reflexion") else {}
    return make_learner(settings.learner, InMemoryStore(), model, **by_critic)


def teach(graph: Any, learner: Any, tasks: Sequence[Task], run: str, shuffled: bool) -> Iterator[float]:
    """Have the agent play the tasks in turn, and its middleware learn from their rewards, which are yielded one by one."""
    random, seen = Random(f"{run}/rewards"), list[float]()
    for number, task in enumerate(tasks):
        out = graph.invoke({"task": task, "run": f"{run}/{task.id}", "episode": number})
        seen.append(out["score"])
        learner.feedback(f"{run}/{task.id}/{number}", reward=random.choice(seen) if shuffled else seen[-1])
        learner.learn()
        yield seen[-1]


class EndOfEpisode(AgentMiddleware[Any, Any, Any]):
    """Ends the agent's turn once its episode is over: further calls would be paid for and change nothing."""

    def __init__(self, episode: Any) -> None:
        super().__init__()
        self.episode = episode

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        return {"jump_to": "end"} if self.episode.over else None


class EpisodeCalls(TypedDict):
    """The calls of an episode that an agent has played, and what its model has read and written."""

    plan: list[str]
    usage: Usage


@dataclass(frozen=True)
class Converse:
    """Have an agent play the whole episode."""

    role: ClassVar[str] = "model"
    is_blocking: ClassVar[bool] = True

    world: Any
    model: Any
    learner: Any

    def __call__(self, state: EpisodeInput) -> EpisodeCalls:
        thread, number = f"{state['run']}/{state['episode']}", state["episode"]
        episode, model = self.world.episode(state["task"]), self.model
        if isinstance(model, CachedChatModel):  # equal questions are draws of their own, also those of two episodes
            model = replace(model, name=f"{model.name} {number}", draws=defaultdict(count))
        config: Any = {"configurable": {"thread_id": thread}, "recursion_limit": SUPERSTEPS * self.world.horizon}
        middleware = [EndOfEpisode(episode), *([self.learner] if self.learner else [])]

        def make_agent(tools: list[Any], prompt: str | None) -> Any:
            return create_agent(model, tools, system_prompt=prompt, middleware=middleware).with_config(config)

        with suppress(GraphRecursionError):  # it went round in circles, and earned what it earned
            episode.play(make_agent)
        usage = sum((call_usage([], one) for one in episode.messages if one.type == "ai"), Usage())
        return {"plan": [*episode.actions], "usage": usage}


def submit(state: PlanChannel) -> NextAction:
    """Choose the next call of the episode, for the journal."""
    first, *rest = state["plan"] or [NO_ACTION]
    return {"action": first, "plan": rest}


def build(inputs: MethodInputs, settings: LearningAgent | None = None, *, learner: Any = None, **compile: Any) -> Graph:
    """The graph of one episode, whose agent has the middleware `learner`; other arguments as in `graphs.icrl.build`."""
    world = inputs.environment
    if world is not None and not hasattr(world, "episode"):
        raise UserError(f"an agent plays by tool calls, and {world.name} has none: take tau2:telecom or bfcl:base")
    nodes: dict[str, Node] = {
        "begin": Begin(world),
        "converse": Converse(world, inputs.model, learner),
        "submit": submit,
        "act": Act(world, inputs.journal),
    }
    builder = StateGraph(ConversationState, input_schema=EpisodeInput, output_schema=EpisodeResult)
    return compile_graph(wire(builder, FLOW, nodes, {"act": route_remaining_answer}), **{"name": "agent", **compile})


METHOD = Method(
    summary="an agent of LangChain with its real tools, and a middleware that learns from a train fold, or none",
    settings=LearningAgent,
    build=build,
    model_use="chat",
    has_memory=False,
    has_training_phase=True,
)
