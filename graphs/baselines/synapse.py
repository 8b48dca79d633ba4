"""Synapse (arXiv:2306.07863), as AdaMEM compares itself with it: whole earlier trajectories stand in every prompt as exemplars.

Retrieved once, at the start, by the text of the task alone; the same text then stands in every prompt of the episode, whatever
the agent meets. Nothing is written, no model is asked but for actions. What Synapse itself adds for web pages (a filter of raw
observations, a vote on the task's name) is left out, as in AdaMEM's comparison.

    retrieve   the k trajectories whose task's text is most like this one's
    propose    with all of them in the prompt
    remember   the finished attempt joins the memory
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from ...memory.errors import UserError
from ...memory.trajectories import Trajectories, goal_key
from ...nodes.act.choose import Choose
from ...nodes.act.episode import Act, Begin, route_episode_end
from ...nodes.prompt import Prompt
from ...nodes.retrieve.attempts import Layout, Push, ReadOnlyMemory
from ...nodes.retrieve.recollect import Recollect
from ...nodes.retrieve.synapse import Exemplars, ExemplarsPrompt
from ...nodes.state import (
    ChoiceChannels,
    EpisodeChannels,
    EpisodeInput,
    EpisodeResult,
    PlanChannels,
    PrecedentChannels,
    RewardChannels,
)
from ..wiring.flow import Node, compile_graph, wire
from ..wiring.parts import MethodInputs, check_literals

FLOW = """
flowchart LR
  START --> begin --> retrieve --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| judge --> remember --> END
"""


class SynapseState(EpisodeChannels, PrecedentChannels, PlanChannels, ChoiceChannels, RewardChannels):
    """The channels of a Synapse episode."""


@dataclass(frozen=True)
class Synapse:
    """Hyper-parameters. `paper` is Synapse's own number of exemplars, the default that of AdaMEM's comparison."""

    k: int = 1
    """Exemplars. AdaMEM's comparison: 1, and up to 16, where it got worse; Synapse: 3."""
    outcomes: Literal["success", "all"] = "success"
    """Only attempts that succeeded, as in both papers, or `all`."""
    success_threshold: float | None = None
    """The return from which an attempt counts as a success; the environment's own threshold if not given. Under a judge, of this
    run's attempts alone: a bank's count by the environment's."""
    max_memory_tokens: int | None = None
    """Tokens of all exemplars; half of the model's window if not given. Those that do not fit are cut after a step, the least
    similar ones first. Synapse: the window."""
    max_state_chars: int = 200
    """Characters of a past state that the prompt keeps."""
    bank: str = ""
    """A JSONL file of trajectories to start from (`learngraph adamem build`, `learngraph memory export`); it stays as it is."""
    online: bool = True
    """Finished episodes join the memory. Papers: no."""
    cross_task: bool = False
    """Runs of all seeds share one memory, and are played in turn."""
    temperature: float = 1.0
    """Of the softmax over scored actions; 0 takes the best."""

    def __post_init__(self) -> None:
        check_literals(self, "synapse")
        for name, least in (("k", 1), ("max_state_chars", 1), ("max_memory_tokens", 0), ("temperature", 0)):
            if (given := getattr(self, name)) is not None and given < least:
                raise UserError(f"synapse: {name} is at least {least}, got {given}")

    @classmethod
    def paper(cls) -> Synapse:
        """Three exemplars from a bank that stays as it is."""
        return cls(k=3, online=False)

    def memory(self, parts: MethodInputs) -> Trajectories:
        """One record per trajectory, found by its task's text: the bank's, and what the run itself adds.

        Raises:
            UserError: only successes are wanted, and nobody says from which return on an attempt is one.
        """
        world = parts.environment
        least = parts.success_threshold(self.success_threshold)
        if least is None and self.outcomes == "success" and world is not None:  # a drawing has no environment
            silent = "a judge's rewards have a scale of their own" if parts.judge else f"{world.name} does not say it"
            raise UserError(
                f"synapse: which return is a success? {silent}; give the least one (--success-threshold), or show all attempts (--outcomes all)"
            )
        if not self.bank and not self.online and world is not None:
            raise UserError("synapse: online=False remembers nothing but a bank; give one (--bank FILE)")
        bank = parts.bank_trajectories(self.bank, "synapse")
        if bank and self.outcomes == "success" and parts.bank_success_threshold(self.success_threshold) is None:
            raise UserError(
                f"synapse: which return is a success in {self.bank}? {world.name} does not say it, and --success-threshold is on the "
                "judge's scale; show all attempts (--outcomes all)"
            )
        return Trajectories(
            parts.shelf,
            bank=bank,
            key=goal_key,
            success=parts.success_predicate(self.success_threshold, bank),
            first_only=True,
            run=parts.run if self.online else "",
        )


def build(
    parts: MethodInputs, settings: Synapse | None = None, *, chain: bool = False, **compile: Any
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one episode; arguments as in `graphs.icrl.build`."""
    settings = settings or Synapse()
    memory = settings.memory(parts)
    brief = Prompt.load("synapse/brief", parts.prompts).text()
    room = parts.max_prompt_tokens // 2 if settings.max_memory_tokens is None else settings.max_memory_tokens
    exemplars = Exemplars(memory, Layout(clip=settings.max_state_chars), parts.count_tokens, room)
    seen = ExemplarsPrompt(exemplars=exemplars, **parts.prompt_arguments(Layout(clip=settings.max_state_chars), brief))
    nodes: dict[str, Node] = {
        "begin": Begin(parts.environment, {"precedents": [], "used": []}),
        "retrieve": Recollect(memory, parts.environment, parts.journal, settings.k, settings.outcomes),
        "propose": parts.make_writing_policy(seen, "react") if parts.make_writing_policy else parts.make_policy(seen),
        "choose": Choose(settings.temperature),
        "act": Act(parts.environment, parts.journal, journal_channels=("candidates",), clear_lists=("candidates",)),
        "judge": parts.judge_node(),
        "remember": Push(memory if settings.online else ReadOnlyMemory(), parts.environment, parts.journal),
    }
    builder = StateGraph(SynapseState, input_schema=EpisodeInput, output_schema=EpisodeResult)
    return compile_graph(wire(builder, FLOW, nodes, {"act": route_episode_end}, chain=chain), **{"name": "synapse", **compile})
