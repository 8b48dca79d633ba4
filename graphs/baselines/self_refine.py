"""Self-Refine (arXiv:2303.17651): the model criticises its own attempt, and makes another with the criticism in view.

All pairs of attempt and feedback stay in the prompt, as far as they fit. No reward is shown, neither for the attempt nor for the
feedback. So the method has nothing to choose by, and its answer is the last attempt.

    compose    which pairs are shown
    feedback   the attempt without rewards + pairs so far -> what to keep and what to change
    push       the attempt with its feedback

Nobody would read feedback on the last attempt of a run, and none is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from ...memory.buffer import Buffer
from ...nodes.act.choose import Choose
from ...nodes.act.episode import Act, Begin, route_episode_end
from ...nodes.evaluate.judge import NoJudge
from ...nodes.prompt import Prompt
from ...nodes.retrieve.attempts import AttemptsPrompt, Compose, Push
from ...nodes.state import (
    AttemptInput,
    ChoiceChannels,
    EpisodeChannels,
    EpisodeResult,
    NoteChannels,
    PlanChannels,
    PromptChannels,
    RewardChannels,
)
from ...nodes.synthesize.reflect import route_next_attempt, write_about_attempt
from ..wiring.flow import Node, compile_graph, wire
from ..wiring.parts import SHARED, MethodInputs

FLOW = """
flowchart LR
  START --> begin --> compose --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| unjudged
  unjudged -->|another attempt| feedback --> push --> END
  unjudged -->|last attempt| push
"""


class SelfRefineState(
    AttemptInput, EpisodeChannels, PromptChannels, PlanChannels, ChoiceChannels, RewardChannels, NoteChannels
):
    """The channels of a Self-Refine attempt."""


@dataclass(frozen=True)
class SelfRefine:
    """Hyper-parameters."""

    max_memory_tokens: int | None = None
    """Tokens of earlier pairs in a prompt; half of the model's window if not given."""
    max_state_chars: int = 200
    """Characters of a past state that the prompt keeps."""
    temperature: float = field(default=1.0, metadata=SHARED)
    """The temperature of the softmax over scored actions; 0 takes the best."""


def build(
    parts: MethodInputs, settings: SelfRefine | None = None, *, chain: bool = False, **compile: Any
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one attempt; arguments as in `graphs.icrl.build`."""
    settings = settings or SelfRefine()
    buffer = Buffer(parts.shelf)
    layout = parts.layout("none", settings.max_state_chars, notes=True)
    brief = Prompt.load("self_refine/brief", parts.prompts).text()
    nodes: dict[str, Node] = {
        "begin": Begin(parts.environment),
        "compose": Compose(
            buffer,
            render=layout.attempt,
            count_tokens=parts.count_tokens,
            window=parts.max_prompt_tokens - parts.count_tokens(brief),
            budget=settings.max_memory_tokens,
            list_actions=parts.list_actions,
        ),
        "propose": parts.make_policy(
            AttemptsPrompt(buffer=buffer, earlier_layout=layout, **parts.prompt_arguments(layout, brief))
        ),
        "choose": Choose(settings.temperature),
        "act": Act(parts.environment, parts.journal, journal_channels=("candidates",), clear_lists=("candidates",)),
        "unjudged": NoJudge(),
        "feedback": write_about_attempt(
            "self_refine/criticism" if parts.chats else "self_refine/feedback",
            model=parts.require_chat_model("self-refine"),
            buffer=buffer,
            journal=parts.journal,
            layout=layout,
            count=parts.count_tokens,
            window=parts.max_prompt_tokens,
            prompts=parts.prompts,
        ),
        "push": Push(buffer, parts.environment, parts.journal),
    }
    builder = StateGraph(SelfRefineState, input_schema=AttemptInput, output_schema=EpisodeResult)
    return compile_graph(
        wire(builder, FLOW, nodes, {"act": route_episode_end, "unjudged": route_next_attempt}, chain=chain),
        **{"name": "self-refine", **compile},
    )
