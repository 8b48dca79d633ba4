"""Reflexion (arXiv:2303.11366): after every attempt the model writes down what to do differently; the next one reads that.

The prompt holds the last plans, never the attempts or their rewards; the reflection sees both.

    compose   which plans are shown: the last three, or all that fit
    judge     r_t of every step
    reflect   attempt with rewards + plans so far -> a new plan
    push      the attempt with its plan
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from ...memory.buffer import Buffer
from ...nodes.act.decide import Choose
from ...nodes.act.episode import Act, Begin, progress
from ...nodes.prompt import Prompt
from ...nodes.retrieve.attempts import Compose, Layout, Lessons, Push, lesson
from ...nodes.state import Attempt, Choice, Composed, Episode, Judged, Noted, Planned, Played
from ...nodes.synthesize.reflect import reflect
from ..wiring.flow import Node, compiled, wire
from ..wiring.parts import Parts, chosen

FLOW = """
flowchart LR
  START --> begin --> compose --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| judge --> reflect --> push --> END
"""


class State(Episode, Composed, Planned, Choice, Judged, Noted):
    """The channels of a Reflexion attempt."""


@dataclass(frozen=True)
class Reflexion:
    """Hyper-parameters."""

    keep: Literal["last", "budget"] = "last"
    """Plans in the prompt: the `last` ones (original: 3), or all (`budget`: as many as fit; ICRL's comparison)."""
    last: int = 3
    budget: int | None = None
    """Tokens of plans with `keep=budget`; half of the model's window if not given."""
    clip: int = 200
    """Characters of a past state that the prompt keeps."""
    temperature: float = 1.0
    """Of the softmax over scored actions; 0 takes the best."""

    def __post_init__(self) -> None:
        chosen(self, "reflexion")

    @classmethod
    def unlimited(cls) -> Reflexion:
        """All plans, as in the comparison of the ICRL paper."""
        return cls(keep="budget")


def build(
    parts: Parts, settings: Reflexion | None = None, *, chain: bool = False, **compile: Any
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one attempt; arguments as in `graphs.icrl.build`."""
    settings = settings or Reflexion()
    buffer, layout = Buffer(parts.shelf), Layout(clip=settings.clip)
    brief = Prompt.load("reflexion/brief", parts.prompts).text()
    compose = Compose(
        buffer,
        lesson,
        parts.count,
        parts.room - parts.count(brief),
        settings.keep,
        settings.budget,
        settings.last,
        listed=parts.listed,
    )
    nodes: dict[str, Node] = {
        "begin": Begin(parts.environment),
        "compose": compose,
        "propose": parts.policy(Lessons(buffer=buffer, **parts.running(layout, brief))),
        "choose": Choose(settings.temperature),
        "act": Act(parts.environment, parts.journal, detail=("candidates",), spent=("candidates",)),
        "judge": parts.judged(),
        "reflect": reflect(parts.asked("reflexion"), buffer, parts.journal, layout, parts.count, parts.room, parts.prompts),
        "push": Push(buffer, parts.environment, parts.journal),
    }
    builder = StateGraph(State, input_schema=Attempt, output_schema=Played)
    return compiled(wire(builder, FLOW, nodes, {"act": progress}, chain=chain), **{"name": "reflexion", **compile})
