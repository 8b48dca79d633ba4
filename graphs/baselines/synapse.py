"""Synapse (arXiv:2306.07863), as AdaMEM compares itself with it: whole earlier trajectories stand in every prompt as exemplars.

They are retrieved once, at the start, by the text of the task alone. The same text then stands in every prompt of the episode,
whatever the agent meets. A model is asked for actions only. What Synapse itself adds for web pages (a filter of raw observations, a
vote on the task's name) is left out, as in AdaMEM's comparison.

    retrieve   the k trajectories whose task's text is most like this one's
    propose    with all of them in the prompt
    remember   the finished attempt joins the memory
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ...memory.attempts.trajectories import Trajectories, goal_key
from ...memory.errors import UserError
from ...nodes.arguments import Count
from ...nodes.retrieve.attempts import Push, ReadOnlyMemory
from ...nodes.retrieve.recollect import Recollect
from ...nodes.retrieve.synapse import Exemplars, ExemplarsPart
from ...nodes.state import AttemptState, PrecedentChannels
from ..wiring.banks import bank_trajectories, require_success_threshold, success_predicate
from ..wiring.episode import MemorySettings, episode_graph, episode_nodes
from ..wiring.flow import Graph, Node
from ..wiring.inputs import NOT_GIVEN, SHARED, THINK_THEN_ACT, MethodInputs, given_settings

__all__ = ["FLOW", "Synapse", "build"]

FLOW = """
flowchart LR
  START --> begin --> retrieve --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| judge --> remember --> END
"""


class SynapseState(AttemptState, PrecedentChannels):
    """The channels of a Synapse episode."""


@dataclass(frozen=True)
class Synapse(MemorySettings):
    """Hyper-parameters. `paper` is Synapse's own number of exemplars, the default that of AdaMEM's comparison."""

    k: Count = field(default=1, metadata=SHARED)
    """k: exemplars in the prompt. AdaMEM's comparison: 1, and up to 16, where it got worse; Synapse: 3."""
    outcomes: Literal["success", "all"] = "success"
    """The attempts that may be exemplars: those that succeeded, as in both papers, or `all`."""
    success_threshold: float | None = field(default=None, metadata=SHARED)
    """The return from which an attempt counts as a success; the environment's own threshold if not given. Under a judge, of this
    run's attempts alone: a bank's count by the environment's."""
    bank: str = field(default="", metadata=SHARED)
    """A file of trajectories to start from (`learngraph memory export`), which stays as it is; a run folder; `react@40`: what react does
    on the first 40 training tasks, played first; `gold@40`: their walkthroughs."""
    online: bool = field(default=True, metadata=SHARED)
    """True if finished episodes join the memory. Papers: no."""
    cross_task: bool = field(default=False, metadata=SHARED)
    """True if the runs of all seeds share one memory; they are then played in turn."""

    @classmethod
    def paper(cls) -> Synapse:
        """Three exemplars from a bank that stays as it is."""
        return cls(k=3, online=False)

    def memory(self, inputs: MethodInputs) -> Trajectories:
        """One record per trajectory, found by its task's text: the bank's, and what the run itself adds.

        Raises:
            UserError: only successes are wanted and the return of a success is unknown, or there is nothing to remember.
        """
        if self.outcomes == "success":
            require_success_threshold(inputs, "synapse", self.success_threshold, self.bank)
        if not self.bank and not self.online and inputs.environment is not None:  # a drawing has no environment, and no bank
            raise UserError("synapse: online=False remembers nothing but a bank; set bank to a file of trajectories")
        bank = bank_trajectories(inputs, self.bank, "synapse")
        return Trajectories(
            inputs.records,
            bank=bank,
            key=goal_key,
            success=success_predicate(inputs, self.success_threshold, bank),
            first_only=True,
            run=inputs.run if self.online else "",
        )


def build(inputs: MethodInputs = NOT_GIVEN, settings: Synapse | None = None, **compile: Any) -> Graph:
    """The graph of one episode; arguments as in `graphs.icrl.build`."""
    settings = given_settings(inputs, settings, Synapse)
    memory = settings.memory(inputs)
    layout = inputs.layout(clip=settings.max_state_chars)
    brief = inputs.prompting.load("synapse/brief").text()
    room = inputs.prompting.max_prompt_tokens // 2 if settings.max_memory_tokens is None else settings.max_memory_tokens
    exemplars = Exemplars(memory, layout, count_tokens=inputs.prompting.count_tokens, max_tokens=room)
    view = inputs.episode_prompt(ExemplarsPart(exemplars=exemplars, brief=brief), layout=layout)
    nodes: dict[str, Node] = {
        **episode_nodes(inputs, settings.temperature, {"precedents": [], "used": []}),
        "retrieve": Recollect(memory, inputs.environment, inputs.journal, k=settings.k, kind=settings.outcomes),
        "propose": inputs.acting_policy(view, THINK_THEN_ACT),
        "judge": inputs.judge_node(),
        "remember": Push(memory if settings.online else ReadOnlyMemory(), inputs.environment, inputs.journal),
    }
    return episode_graph("synapse", FLOW, nodes, state=SynapseState, **compile)
