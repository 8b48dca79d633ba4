"""Chain of thought (arXiv:2201.11903): reason, then answer, in one pass. Nothing is carried from one attempt to the next.

`build(..., long=True)` is the long form: the prompt asks the model to try, check, go back and try again within its one reply.
"""

from dataclasses import dataclass
from typing import Any

from ..wiring.episode import WordingSettings, episode_graph, episode_nodes
from ..wiring.flow import Graph, Node
from ..wiring.inputs import NOT_GIVEN, PAPER_OF_ICRL, MethodInputs, WritingStyle, given_settings

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
class ChainOfThought(WordingSettings):
    """Hyper-parameters. With `wording=paper` the short form's prompt has nothing about how to reason, as CoT-only of the paper on ICRL."""


def build(
    inputs: MethodInputs = NOT_GIVEN, settings: ChainOfThought | None = None, *, long: bool = False, **compile: Any
) -> Graph:
    """The graph of one attempt; arguments as in `graphs.icrl.build`.

    `long`: whether the model is asked for long reasoning with checks.

    Raises:
        UserError: the model only scores actions.
    """
    name = "long-cot" if long else "cot"
    settings = given_settings(inputs, settings, ChainOfThought)
    reason = inputs.require_writer(name)
    style = LONG if long else PAPER_OF_ICRL if settings.wording == "paper" else SHORT
    nodes: dict[str, Node] = {
        **episode_nodes(inputs),
        "reason": reason(inputs.episode_prompt(layout=settings.layout(inputs)), style),
    }
    return episode_graph(name, FLOW, nodes, **compile)
