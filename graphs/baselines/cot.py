"""Chain of thought (arXiv:2201.11903): reason, then answer, in one pass. Nothing is carried from one attempt to the next.

`build(..., long=True)` is the long form: the prompt asks the model to try, check, go back and try again within its one reply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from langgraph.graph.state import CompiledStateGraph

from ...nodes.retrieve.attempts import EpisodePrompt
from ..wiring.episode import episode_graph, episode_nodes
from ..wiring.flow import Node
from ..wiring.inputs import MethodInputs, WritingStyle

__all__ = ["FLOW", "ChainOfThought", "build"]

FLOW = """
flowchart LR
  START --> begin --> reason --> choose --> act
  act -->|next step| reason
  act -->|over| END
"""

SHORT = WritingStyle(action_prompt="cot/act", answer_prompt="cot/answer")
LONG = WritingStyle(action_prompt="cot/act_long", answer_prompt="cot/long")


@dataclass(frozen=True)
class ChainOfThought:
    """Hyper-parameters: there are none."""


def build(
    inputs: MethodInputs,
    settings: ChainOfThought | None = None,
    *,
    long: bool = False,
    **compile: Any,
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one attempt; arguments as in `graphs.icrl.build`.

    `long`: whether the model is asked for long reasoning with checks.

    Raises:
        UserError: the model only scores actions.
    """
    name = "long-cot" if long else "cot"
    reason = inputs.require_writer(name)
    nodes: dict[str, Node] = {
        **episode_nodes(inputs),
        "reason": reason(EpisodePrompt(**inputs.prompt_arguments()), LONG if long else SHORT),
    }
    return episode_graph(name, FLOW, nodes, **compile)
