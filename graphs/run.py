"""A run: one method plays one task episode after episode. The episode is a subgraph; the run keeps the scores."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add
from typing import Annotated, Any, ClassVar, Literal

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import TypedDict

from ..memory.records import Task
from ..memory.rows import Rows
from ..nodes.state import Played
from .flow import compiled, wire

FLOW = """
flowchart LR
  START --> episode --> tally
  tally -->|another| episode
  tally -->|enough| END
"""


class Plan(TypedDict):
    """What a run is asked to do; its input. `episode` starts at 0."""

    task: Task
    run: str
    """Its name; every id and every random draw is made from it."""
    episode: int
    episodes: int
    """How many to play."""


class Run(Plan, Played):
    """The channels of a run; those of `Played` are about the episode that ended last."""

    scores: Annotated[list[float], add]
    """One per finished episode, in the environment's units."""
    bests: Annotated[list[float], add]
    """The highest score within each episode."""
    lengths: Annotated[list[int], add]
    """Steps taken in each episode."""


@dataclass(frozen=True)
class Tally:
    """Note the finished episode, in the state and as one row of the run's log (once, however often this runs)."""

    role: ClassVar[str] = "memory"

    log: Rows

    def __call__(self, state: Run) -> dict[str, Any]:
        run, episode, usage = state["run"], state["episode"], state["usage"]
        self.log.append(
            {
                "id": f"{run}/{episode}",
                "run": run,
                "episode": episode,
                "task": state["task"].id,
                "score": state["score"],
                "best": state["best"],
                "steps": state["step"],
                "head": state["head"],
                "calls": usage.calls,
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
            }
        )
        self.log.sync()
        return {
            "scores": [state["score"]],
            "bests": [state["best"]],
            "lengths": [state["step"]],
            "episode": episode + 1,
        }


def more(state: Run) -> Literal["another", "enough"]:
    """Router: were all episodes played?"""
    return "another" if state["episode"] < state["episodes"] else "enough"


def build(
    episode: CompiledStateGraph[Any, Any, Any, Any], log: Rows | None = None, **compile: Any
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of a run over the graph of an episode.

    Args:
        episode: a graph from `Attempt` to `Played`, such as `graphs.jitrl.build` makes.
        log: where finished episodes are noted, one row each.
        compile: as for `StateGraph.compile`.
    """
    builder = StateGraph(Run, input_schema=Plan)
    nodes: dict[str, Any] = {"episode": episode, "tally": Tally(log if log is not None else Rows())}
    return compiled(wire(builder, FLOW, nodes, {"tally": more}), **{"name": "run", **compile})
