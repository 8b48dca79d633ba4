"""Memory: whole transcripts of earlier attempts in the prompt, first in, first out, once the model's window is full.

The plainest way to remember, and a baseline of JitRL's paper (arXiv:2601.18510). Nothing is searched, ranked, shortened or advised:
every attempt is kept as it was, and when they no longer fit the oldest ones are left out. ICRL (graphs/icrl.py) differs in that it
tells the model what the attempts are for, and chooses among them within a budget.

    compose   the newest attempts that fit in the window beside a running attempt of the same length
    propose   the policy, with these attempts and the last steps of the running one, as many as JitRL's policy sees
    push      the attempt with its rewards

The limit is the model's window: `--window TOKENS` sets another one. With `cross_task` the attempts are those of all tasks, by their names.
"""

from dataclasses import dataclass, replace
from typing import Any

from ...nodes.retrieve.attempts import AttemptsPart
from ..wiring.episode import SharedAttemptSettings, attempt_nodes, compose_node, episode_graph
from ..wiring.flow import Graph, Node
from ..wiring.inputs import NOT_GIVEN, MethodInputs, given_settings

__all__ = ["FLOW", "Transcripts", "build"]

FLOW = """
flowchart LR
  START --> begin --> compose --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| judge --> push --> END
"""


@dataclass(frozen=True)
class Transcripts(SharedAttemptSettings):
    """Hyper-parameters."""


def build(inputs: MethodInputs = NOT_GIVEN, settings: Transcripts | None = None, **compile: Any) -> Graph:
    """The graph of one episode; arguments as in `graphs.icrl.build`."""
    settings = given_settings(inputs, settings, Transcripts)
    buffer = settings.buffer(inputs)
    layout = replace(inputs.layout(clip=None), shows_task=settings.cross_task)
    brief = inputs.prompting.load("memory/brief").text()
    nodes: dict[str, Node] = {
        **attempt_nodes(inputs, settings.temperature, buffer),
        "compose": compose_node(inputs, buffer, layout.attempt, brief, keep="all"),
        "propose": inputs.make_policy(
            inputs.episode_prompt(
                AttemptsPart(buffer=buffer, layout=layout), layout=layout, brief=brief, max_steps=inputs.prompting.history_steps
            )
        ),
    }
    return episode_graph("memory", FLOW, nodes, **compile)
