"""Reflexion (arXiv:2303.11366): after every attempt the model writes down what to do differently; the next one reads that.

The prompt holds the last plans, never the earlier attempts or their rewards; the reflection sees both, in ScienceWorld too. The comparison
in the paper on ICRL (arXiv:2506.06303) shows all plans as far as the window goes: `reflexion:paper`. Of the running attempt, prompts show as much as those of the
method that Reflexion is compared with: JitRL's last steps, or all of them (`MethodInputs.history_steps`).

    compose   choose the plans that prompts show: the last three, or all that fit
    judge     r_t of every step
    reflect   attempt with rewards + plans so far -> a new plan
    push      the attempt with its plan

After the last attempt of a run there is no plan to make.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self

from ...nodes.arguments import Count
from ...nodes.retrieve.attempts import note_line
from ...nodes.synthesize.reflect import NotesPart, route_next_attempt, route_shared_attempt, write_about_attempt
from ..wiring.episode import MemorySettings, SharedAttemptSettings, WordingSettings, attempt_nodes, compose_node, episode_graph
from ..wiring.flow import Graph, Node
from ..wiring.inputs import NOT_GIVEN, MethodInputs, given_settings

__all__ = ["FLOW", "Reflexion", "build"]

FLOW = """
flowchart LR
  START --> begin --> compose --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| judge
  judge -->|another attempt| reflect --> push --> END
  judge -->|last attempt| push
"""


@dataclass(frozen=True)
class Reflexion(WordingSettings, SharedAttemptSettings, MemorySettings):
    """Hyper-parameters. With `cross_task` the last plans are those of all tasks, each behind its task."""

    selection: Literal["last", "budget", "all"] = "last"
    """The plans in the prompt: the `last` ones, as in the original; within a `budget` of tokens; or `all` that fit the window."""
    last_n: Count = 3
    """Plans shown with `selection="last"`. Original: 3."""

    @classmethod
    def paper(cls) -> Self:
        """The arm of the comparison in the paper on ICRL: its prompt, and all plans as far as the window goes."""
        return cls(wording="paper", selection="all")


def build(inputs: MethodInputs = NOT_GIVEN, settings: Reflexion | None = None, **compile: Any) -> Graph:
    """The graph of one attempt; arguments as in `graphs.icrl.build`."""
    settings = given_settings(inputs, settings, Reflexion)
    buffer = settings.buffer(inputs)
    layout = settings.layout(inputs, clip=settings.max_state_chars)
    brief = settings.brief(inputs, "reflexion/brief")
    selection = {"keep": settings.selection, "budget": settings.max_memory_tokens, "last": settings.last_n}
    nodes: dict[str, Node] = {
        **attempt_nodes(inputs, settings.temperature, buffer),
        "compose": compose_node(inputs, buffer, partial(note_line, names_task=settings.cross_task), brief, **selection),
        "propose": settings.policy(
            inputs,
            inputs.episode_prompt(
                NotesPart(buffer=buffer), layout=layout, brief=brief, max_steps=inputs.prompting.history_steps
            ),
        ),
        "reflect": write_about_attempt(
            "reflexion/plan" if inputs.chats else "reflexion/reflect",
            model=inputs.require_chat_model("reflexion"),
            buffer=buffer,
            journal=inputs.journal,
            layout=layout,
            count=inputs.prompting.count_tokens,
            window=inputs.prompting.max_prompt_tokens,
            prompts=inputs.prompting.prompts,
        ),
    }
    route = route_shared_attempt if settings.cross_task else route_next_attempt
    return episode_graph("reflexion", FLOW, nodes, {"judge": route}, **compile)
