"""Best-of-N: independent attempts, each judged. The run ends with the one that has the highest reward; no attempt sees another.

N is the number of rounds. The choice goes by the reward that the method is given (graphs/wiring/run.py, `commit`), never by the
true score. The comparison in the paper on ICRL (arXiv:2506.06303) does choose by the true score: that is pass@N, which tables show
beside the choice as `best attempt` and over the rounds as the running maximum.
"""

from dataclasses import dataclass
from typing import Any, Self

from ...memory.attempts.buffer import Buffer
from ..wiring.episode import ChoiceSettings, WordingSettings, attempt_nodes, episode_graph
from ..wiring.flow import Graph, Node
from ..wiring.inputs import NOT_GIVEN, MethodInputs, given_settings

__all__ = ["FLOW", "BestOfN", "build"]

FLOW = """
flowchart LR
  START --> begin --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| judge --> push --> END
"""


@dataclass(frozen=True)
class BestOfN(WordingSettings, ChoiceSettings):
    """Hyper-parameters. `paper` is the arm of the comparison in the paper on ICRL."""

    @classmethod
    def paper(cls) -> Self:
        """The arm of the comparison: the paper's prompt."""
        return cls(wording="paper")


def build(inputs: MethodInputs = NOT_GIVEN, settings: BestOfN | None = None, **compile: Any) -> Graph:
    """The graph of one attempt; arguments as in `graphs.icrl.build`."""
    settings = given_settings(inputs, settings, BestOfN)
    nodes: dict[str, Node] = {
        **attempt_nodes(inputs, settings.temperature, Buffer(inputs.records)),
        "propose": settings.policy(inputs, inputs.episode_prompt(layout=settings.layout(inputs))),
    }
    return episode_graph("best-of-n", FLOW, nodes, **compile)
