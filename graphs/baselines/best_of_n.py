"""Best-of-N: independent attempts, each judged. The run ends with the one that has the highest reward; no attempt sees another.

N is the number of rounds. The choice goes by the reward that the method is given (graphs/wiring/run.py, `commit`), never by the
true score. The comparison in the paper on ICRL (arXiv:2506.06303) does choose by the true score: that is pass@N, which tables show
beside the choice as `best attempt` and over the rounds as the running maximum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from ...memory.attempts.buffer import Buffer
from ...nodes.act.choose import Choose
from ...nodes.act.episode import Act, Begin, route_episode_end
from ...nodes.retrieve.attempts import EpisodePrompt, Push
from ...nodes.state import ChoiceChannels, EpisodeChannels, EpisodeInput, EpisodeResult, PlanChannels, RewardChannels
from ..wiring.flow import Node, compile_graph, wire
from ..wiring.inputs import SHARED, MethodInputs

FLOW = """
flowchart LR
  START --> begin --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| judge --> push --> END
"""


class BestOfNState(EpisodeChannels, PlanChannels, ChoiceChannels, RewardChannels):
    """The channels of an attempt."""


@dataclass(frozen=True)
class BestOfN:
    """Hyper-parameters."""

    temperature: float = field(default=1.0, metadata=SHARED)
    """The temperature of the softmax over scored actions. With 0 all attempts are the same."""


def build(inputs: MethodInputs, settings: BestOfN | None = None, **compile: Any) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one attempt; arguments as in `graphs.icrl.build`."""
    settings = settings or BestOfN()
    nodes: dict[str, Node] = {
        "begin": Begin(inputs.environment),
        "propose": inputs.make_policy(EpisodePrompt(**inputs.prompt_arguments())),
        "choose": Choose(settings.temperature),
        "act": Act(inputs.environment, inputs.journal, journal_channels=("candidates",), clear_lists=("candidates",)),
        "judge": inputs.judge_node(),
        "push": Push(Buffer(inputs.records), inputs.environment, inputs.journal),
    }
    builder = StateGraph(BestOfNState, input_schema=EpisodeInput, output_schema=EpisodeResult)
    return compile_graph(wire(builder, FLOW, nodes, {"act": route_episode_end}), **{"name": "best-of-n", **compile})
