"""AWM: Agent Workflow Memory (arXiv:2409.07429), learned online: workflows are drawn from attempts and stand in later prompts.

A workflow is a way to reach a goal that has worked: its actions in their order, without the detours. There are two variants:

- `induce`, as in AWM: after a success the model writes down the workflows that the list lacks; failures teach nothing.
- `rewrite`, as in JitRL's comparison on games (arXiv:2601.18510), where an attempt is seldom a success: one workflow per task, which
  the model rewrites after every attempt from the old text, the attempt and what it earned.

With `cross_task` the workflows are those of all tasks of the world, as in AWM; the ones from the tasks whose words are most like this
task's come first where not all fit.

    compose   the workflows that prompts show: all that fit, or the one as it was rewritten last
    propose   the policy, with these workflows and the last steps of the running attempt, as many as JitRL's policy sees
    induce    attempt with rewards + workflows so far -> new workflows, or the workflow anew
    push      the attempt with what was written after it
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from ...nodes.arguments import Count
from ...nodes.retrieve.attempts import note_line
from ...nodes.synthesize.workflows import (
    RouteInduction,
    WorkflowPrompt,
    WorkflowsPart,
    WorkflowWriter,
    note_block,
    write_workflows,
)
from ..wiring.banks import require_success_threshold
from ..wiring.episode import SharedAttemptSettings, attempt_nodes, compose_node, episode_graph
from ..wiring.flow import Graph, Node
from ..wiring.inputs import NOT_GIVEN, SHARED, MethodInputs, given_settings

__all__ = ["FLOW", "WorkflowMemory", "build"]

FLOW = """
flowchart LR
  START --> begin --> compose --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| judge
  judge -->|learn| induce --> push --> END
  judge -->|go on| push
"""


@dataclass(frozen=True)
class WorkflowMemory(SharedAttemptSettings):
    """Hyper-parameters."""

    variant: Literal["induce", "rewrite"] = "induce"
    """`induce`: new workflows after each success (AWM). `rewrite`: one workflow, written anew after every attempt."""
    success_threshold: float | None = field(default=None, metadata=SHARED)
    """The return from which an attempt counts as a success (`induce`); the environment's own threshold if not given."""
    max_state_chars: Count = 200
    """Characters of a past state that the prompt for workflows keeps, of a model that only scores."""

    def threshold(self, inputs: MethodInputs) -> float | None:
        """The return from which an attempt is learned from; None: every attempt is.

        Raises:
            UserError: only successes are to be learned from, and the return of one is unknown.
        """
        if self.variant == "rewrite":
            return None
        other = "play awm?variant=rewrite, which learns from every attempt"
        return require_success_threshold(inputs, "awm", self.success_threshold, other=other)


def build(inputs: MethodInputs = NOT_GIVEN, settings: WorkflowMemory | None = None, **compile: Any) -> Graph:
    """The graph of one attempt; arguments as in `graphs.icrl.build`."""
    settings = given_settings(inputs, settings, WorkflowMemory)
    buffer, lines = settings.buffer(inputs), not inputs.chats
    layout = inputs.layout(clip=settings.max_state_chars)
    brief = inputs.prompting.load("awm/brief").text()
    name: WorkflowPrompt = "awm/line" if lines else "awm/induce" if settings.variant == "induce" else "awm/rewrite"
    share = 8 if settings.variant == "induce" else 4
    prompt = inputs.prompting.load(name)
    writer = WorkflowWriter(
        buffer,
        inputs.journal,
        layout,
        inputs.prompting.count_tokens,
        window=inputs.prompting.max_prompt_tokens
        - sum(inputs.prompting.count_tokens(template.template) for _, template in prompt.parts),
        max_note_tokens=max(1, inputs.prompting.max_prompt_tokens // share),
    )
    nodes: dict[str, Node] = {
        **attempt_nodes(inputs, settings.temperature, buffer),
        "compose": compose_node(
            inputs,
            buffer,
            note_line if lines else note_block,
            brief,
            keep="all" if settings.variant == "induce" else "last",
            last=1,
            by_task=settings.cross_task and settings.variant == "induce",
        ),
        "propose": inputs.make_policy(
            inputs.episode_prompt(
                WorkflowsPart(buffer=buffer, lines=lines, brief=brief),
                layout=inputs.layout(clip=None),
                max_steps=inputs.prompting.history_steps,
            )
        ),
        "induce": write_workflows(name, inputs.require_chat_model("awm"), writer, prompt, inputs.prompting.load("ask/again")),
    }
    route = RouteInduction(settings.threshold(inputs), settings.cross_task)
    return episode_graph("awm", FLOW, nodes, {"judge": route}, **compile)
