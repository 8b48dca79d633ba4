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

from ...memory.records import UserError
from ...memory.trajectories import Trajectories, goal
from ...nodes.act.decide import Choose
from ...nodes.act.episode import Act, Begin, progress
from ...nodes.prompt import Prompt
from ...nodes.retrieve.attempts import Frozen, Layout, Push
from ...nodes.retrieve.recollect import Recollect
from ...nodes.retrieve.synapse import Exemplars, Exemplary
from ...nodes.state import Attempt, Choice, Episode, Judged, Planned, Played, Recollected
from ..wiring.flow import Node, compiled, wire
from ..wiring.parts import Parts, chosen

FLOW = """
flowchart LR
  START --> begin --> retrieve --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| judge --> remember --> END
"""


class State(Episode, Recollected, Planned, Choice, Judged):
    """The channels of a Synapse episode."""


@dataclass(frozen=True)
class Synapse:
    """Hyper-parameters. `paper` is Synapse's own number of exemplars, the default that of AdaMEM's comparison."""

    k: int = 1
    """Exemplars. AdaMEM's comparison: 1, and up to 16, where it got worse; Synapse: 3."""
    kind: Literal["success", "all"] = "success"
    """Only attempts that succeeded, as in both papers, or `all`."""
    success: float | None = None
    """The return from which an attempt counts as a success; the environment's own threshold if not given. Under a judge, of this
    run's attempts alone: a bank's count by the environment's."""
    budget: int | None = None
    """Tokens of all exemplars; half of the model's window if not given. Those that do not fit are cut after a step, the least
    similar ones first. Synapse: the window."""
    clip: int = 200
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
        chosen(self, "synapse")
        for name, least in (("k", 1), ("clip", 1), ("budget", 0), ("temperature", 0)):
            if (given := getattr(self, name)) is not None and given < least:
                raise UserError(f"synapse: {name} is at least {least}, got {given}")

    @classmethod
    def paper(cls) -> Synapse:
        """Three exemplars from a bank that stays as it is."""
        return cls(k=3, online=False)

    def memory(self, parts: Parts) -> Trajectories:
        """One record per trajectory, found by its task's text: the bank's, and what the run itself adds.

        Raises:
            UserError: only successes are wanted, and nobody says from which return on an attempt is one.
        """
        world = parts.environment
        least = parts.least(self.success)
        if least is None and self.kind == "success" and world is not None:  # a drawing has no environment
            silent = "a judge's rewards have a scale of their own" if parts.judge else f"{world.name} does not say it"
            raise UserError(
                f"synapse: which return is a success? {silent}; give the least one (--success), or show all attempts (--kind all)"
            )
        if not self.bank and not self.online and world is not None:
            raise UserError("synapse: online=False remembers nothing but a bank; give one (--bank FILE)")
        bank = parts.banked(self.bank, "synapse")
        if bank and self.kind == "success" and parts.theirs(self.success) is None:
            raise UserError(
                f"synapse: which return is a success in {self.bank}? {world.name} does not say it, and --success is on the "
                "judge's scale; show all attempts (--kind all)"
            )
        return Trajectories(
            parts.shelf,
            bank=bank,
            key=goal,
            success=parts.outcome(self.success, bank),
            first_only=True,
            run=parts.run if self.online else "",
        )


def build(
    parts: Parts, settings: Synapse | None = None, *, chain: bool = False, **compile: Any
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one episode; arguments as in `graphs.icrl.build`."""
    settings = settings or Synapse()
    memory = settings.memory(parts)
    brief = Prompt.load("synapse/brief", parts.prompts).text()
    room = parts.room // 2 if settings.budget is None else settings.budget
    exemplars = Exemplars(memory, Layout(clip=settings.clip), parts.count, room)
    seen = Exemplary(exemplars=exemplars, **parts.running(Layout(clip=settings.clip), brief))
    nodes: dict[str, Node] = {
        "begin": Begin(parts.environment, {"precedents": [], "used": []}),
        "retrieve": Recollect(memory, parts.environment, parts.journal, settings.k, settings.kind),
        "propose": parts.write(seen, "react") if parts.write else parts.policy(seen),
        "choose": Choose(settings.temperature),
        "act": Act(parts.environment, parts.journal, detail=("candidates",), spent=("candidates",)),
        "judge": parts.judged(),
        "remember": Push(memory if settings.online else Frozen(), parts.environment, parts.journal),
    }
    builder = StateGraph(State, input_schema=Attempt, output_schema=Played)
    return compiled(wire(builder, FLOW, nodes, {"act": progress}, chain=chain), **{"name": "synapse", **compile})
