"""Self-Refine (arXiv:2303.17651): the model criticises its own attempt, and makes another with the criticism in view.

All pairs of attempt and feedback stay in the prompt, as far as they fit. The answer is the last attempt: Self-Refine has no rule that
chooses one by a reward.

    compose    which pairs are shown
    judge      the steps' rewards, or none
    feedback   the attempt + pairs so far -> what to keep and what to change
    push       the attempt with its feedback

Nobody would read feedback on the last attempt of a run, and none is written.

The method has no rewards. The comparison in the paper on ICRL (arXiv:2506.06303) gives it none where an answer is written; in ScienceWorld,
its text says, the episode's rewards are seen before feedback is written (its code leaves them out): `self-refine:paper?rewards=dense`.
That code asks for feedback and the next attempt in one call where the answer is written at once; here, and there in ScienceWorld, these
are two.
"""

from dataclasses import dataclass
from typing import Any, Literal, Self

from ...memory.attempts.buffer import Buffer
from ...nodes.evaluate.judge import NoJudge
from ...nodes.retrieve.attempts import AttemptsPart
from ...nodes.synthesize.reflect import AttemptPrompt, route_next_attempt, write_about_attempt
from ..wiring.episode import MemorySettings, WordingSettings, attempt_nodes, compose_node, episode_graph
from ..wiring.flow import Graph, Node
from ..wiring.inputs import NOT_GIVEN, MethodInputs, given_settings

__all__ = ["FLOW", "SelfRefine", "build"]

FLOW = """
flowchart LR
  START --> begin --> compose --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| judge
  judge -->|another attempt| feedback --> push --> END
  judge -->|last attempt| push
"""


@dataclass(frozen=True)
class SelfRefine(WordingSettings, MemorySettings):
    """Hyper-parameters. `paper` is the arm of the comparison in the paper on ICRL."""

    selection: Literal["budget", "all"] = "budget"
    """The pairs in a prompt: those within a `budget`, or `all` that fit the window, as in the comparison."""
    rewards: Literal["none", "dense", "sparse"] = "none"
    """The rewards that prompts show: `none`, as in the original; `dense`, each step's and their sum; `sparse`, the sum alone."""

    @classmethod
    def paper(cls) -> Self:
        """The arm of the comparison: the paper's prompt, and all pairs as far as the window goes."""
        return cls(wording="paper", selection="all")


def build(inputs: MethodInputs = NOT_GIVEN, settings: SelfRefine | None = None, **compile: Any) -> Graph:
    """The graph of one attempt; arguments as in `graphs.icrl.build`."""
    settings = given_settings(inputs, settings, SelfRefine)
    if settings.rewards == "none":
        inputs = inputs.without_verdicts()
    buffer = Buffer(inputs.records)
    layout = settings.layout(inputs, settings.rewards, settings.max_state_chars, notes=True)
    brief = settings.brief(inputs, "self_refine/brief")
    request: AttemptPrompt = "self_refine/criticism" if inputs.chats else "self_refine/feedback"
    if settings.rewards != "none":
        request = "self_refine/rewarded_criticism" if inputs.chats else "self_refine/rewarded_feedback"
    nodes: dict[str, Node] = {
        **attempt_nodes(inputs, settings.temperature, buffer),
        "compose": compose_node(
            inputs, buffer, layout.attempt, brief, keep=settings.selection, budget=settings.max_memory_tokens
        ),
        "propose": settings.policy(
            inputs, inputs.episode_prompt(AttemptsPart(buffer=buffer, layout=layout), layout=layout, brief=brief)
        ),
        "judge": NoJudge() if settings.rewards == "none" else inputs.judge_node(),
        "feedback": write_about_attempt(
            request,
            model=inputs.require_chat_model("self-refine"),
            buffer=buffer,
            journal=inputs.journal,
            layout=layout,
            count=inputs.prompting.count_tokens,
            window=inputs.prompting.max_prompt_tokens,
            prompts=inputs.prompting.prompts,
        ),
    }
    return episode_graph("self-refine", FLOW, nodes, {"judge": route_next_attempt}, **compile)
