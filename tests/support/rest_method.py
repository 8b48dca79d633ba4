"""ReST-style filtered context: prompts show only the attempts of the run whose return is above the median of all.

After ReST (arXiv:2308.08998), which filters its own samples by reward and learns from what is left; here the model reads what is left.
A method of one's own, outside of the package: `learngraph run rest_method:METHOD --env toy`.

    filter    B' = the attempts with return > median(B), the newest that fit      "Improve": threshold on the reward
    propose   A_t ~ pi( . | B', the running attempt)
    push      the attempt joins B, whatever it earned                             "Grow"
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, Any, ClassVar

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from learngraph.graphs.methods import Method
from learngraph.graphs.wiring.flow import Node, compile_graph, wire
from learngraph.graphs.wiring.inputs import SHARED, MethodInputs
from learngraph.memory.attempts.buffer import Buffer
from learngraph.memory.records import Shown
from learngraph.nodes.act.choose import Choose
from learngraph.nodes.act.episode import Act, Begin, route_episode_end
from learngraph.nodes.arguments import ArgumentCheck, Range
from learngraph.nodes.retrieve.attempts import AttemptsPart, Push
from learngraph.nodes.state import (
    ChoiceChannels,
    EpisodeChannels,
    EpisodeInput,
    EpisodeResult,
    PlanChannels,
    PromptChannels,
    RewardChannels,
)

FLOW = """
flowchart LR
  START --> begin --> filter --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| judge --> push --> END
"""


class ReSTState(EpisodeChannels, PromptChannels, PlanChannels, ChoiceChannels, RewardChannels):
    """The channels of an attempt."""


@dataclass(frozen=True)
class ReST(ArgumentCheck):
    """Hyper-parameters."""

    max_attempts: Annotated[int, Range(1)] = 8
    """Attempts in a prompt, at most."""
    temperature: Annotated[float, Range(0)] = field(default=1.0, metadata=SHARED)
    """The temperature of the softmax over scored actions; 0 takes the best."""

    @classmethod
    def greedy(cls) -> ReST:
        """The best action at every step."""
        return cls(temperature=0.0)


@dataclass(frozen=True)
class FilterAttempts:
    """Choose the attempts with a return above the median."""

    role: ClassVar[str] = "memory"

    buffer: Buffer
    max_attempts: int

    def __call__(self, state: EpisodeChannels) -> PromptChannels:
        attempts = self.buffer.attempts(state["run"], state["task"].id, state["episode"])
        returns = [attempt.value for attempt in attempts if attempt.value is not None]
        middle = median(returns) if returns else 0.0
        good = [attempt for attempt in attempts if attempt.value is not None and attempt.value > middle]
        return {"shown": [Shown(attempt.id) for attempt in good[-self.max_attempts :]], "mode": ""}


def build(inputs: MethodInputs, settings: ReST | None = None, **compile: Any) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one attempt."""
    settings = settings or ReST()
    buffer = Buffer(inputs.records)
    nodes: dict[str, Node] = {
        "begin": Begin(inputs.environment),
        "filter": FilterAttempts(buffer, settings.max_attempts),
        "propose": inputs.make_policy(inputs.episode_prompt(AttemptsPart(buffer=buffer))),
        "choose": Choose(settings.temperature),
        "act": Act(inputs.environment, inputs.journal, journal_channels=("candidates",), clear_lists=("candidates",)),
        "judge": inputs.judge_node(),
        "push": Push(buffer, inputs.environment, inputs.journal),
    }
    builder = StateGraph(ReSTState, input_schema=EpisodeInput, output_schema=EpisodeResult)
    return compile_graph(wire(builder, FLOW, nodes, {"act": route_episode_end}), **{"name": "rest", **compile})


METHOD = Method(summary="shows the model its own attempts above the median", settings=ReST, build=build)
