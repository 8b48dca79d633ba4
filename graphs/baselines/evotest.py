"""EvoTest (arXiv:2510.13220): between attempts a model rewrites the agent's whole configuration, and a bandit picks which to play.

A configuration is a guide in the prompts, the number of examples from memory, and a routine: Python code that reads the running episode
and says where the agent stands. nodes/update/configuration.py has the bandit's formula.

    select    the configuration with the highest upper confidence bound, of all that were written
    summarize run its routine on the episode so far, in the sandbox
    propose   the policy, with the guide, the routine's text, the examples, and the last steps of the attempt
    evolve    attempt with rewards + configuration + what all have earned -> a child of the configuration
    check     try the child's routine on this attempt, in the sandbox; one that fails is left out, and its error kept
    push      the attempt with the configuration that was played, and its child

A routine runs nowhere but in the sandbox (`run_code`, tools/agent_tools/interpreter.py); without one none is asked for. A model's
own temperature is no part of a configuration here, nor are the history and the step limit: those are the same for all baselines.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

from ...nodes.act.episode import Act
from ...nodes.arguments import Amount, Range
from ...nodes.state import AttemptState
from ...nodes.update.configuration import (
    MAX_EXAMPLES,
    CheckRoutine,
    CodeRunner,
    Configuration,
    ConfigurationChannels,
    ConfigurationPart,
    EvolutionInputs,
    RouteEvolution,
    RunRoutine,
    SelectConfiguration,
    evolve_configuration,
)
from ..wiring.episode import SharedAttemptSettings, attempt_nodes, episode_graph
from ..wiring.flow import Graph, Node
from ..wiring.inputs import NOT_GIVEN, SHARED, MethodInputs, given_settings

__all__ = ["FLOW", "EvoTest", "build"]

FLOW = """
flowchart LR
  START --> begin --> select --> summarize --> propose --> choose --> act
  act -->|next step| summarize
  act -->|over| judge
  judge -->|learn| evolve --> check --> push --> END
  judge -->|go on| push
"""


class EvoTestState(AttemptState, ConfigurationChannels):
    """The channels of an EvoTest episode."""


@dataclass(frozen=True)
class EvoTest(SharedAttemptSettings):
    """Hyper-parameters. With `cross_task` one tree of configurations evolves over all tasks."""

    exploration: Amount = 0.5
    """c: the weight of a configuration's doubt in the bandit; returns are scaled to [0, 1]."""
    examples: Annotated[int, Range(0, MAX_EXAMPLES)] = 3
    """Examples of the configuration that a run starts with, from 0 to 10."""
    evolve_routine: bool = True
    """True if a configuration has a routine, which runs in the sandbox; False: a guide and examples alone."""
    success_threshold: float | None = field(default=None, metadata=SHARED)
    """The return from which nothing is to be improved; the environment's own threshold if not given, and none where that is unknown."""


def build(
    inputs: MethodInputs = NOT_GIVEN, settings: EvoTest | None = None, *, run_code: CodeRunner | None = None, **compile: Any
) -> Graph:
    """The graph of one attempt; arguments as in `graphs.icrl.build`.

    Raises:
        UserError: the model only scores actions, and cannot write a configuration.
    """
    settings = given_settings(inputs, settings, EvoTest)
    inputs.require_writer("evotest")
    buffer, first = settings.buffer(inputs), Configuration(examples=settings.examples)
    run_code = run_code if settings.evolve_routine else None
    layout = inputs.layout()
    prompt = inputs.prompting.load("evotest/evolve")
    rules = f"{inputs.prompting.load('evotest/routine').text()}\n" if run_code else ""
    view = inputs.episode_prompt(
        ConfigurationPart(buffer=buffer, environment=inputs.environment, brief=inputs.prompting.load("evotest/brief").text()),
        layout=inputs.layout(clip=None),
        max_steps=inputs.prompting.history_steps,
    )
    asked = sum(
        inputs.prompting.count_tokens(template.template) for _, template in prompt.parts
    ) + inputs.prompting.count_tokens(rules)
    evolution = EvolutionInputs(
        buffer=buffer,
        journal=inputs.journal,
        first=first,
        layout=layout,
        count_tokens=inputs.prompting.count_tokens,
        window=inputs.prompting.max_prompt_tokens - asked,
        max_guide_tokens=max(1, inputs.prompting.max_prompt_tokens // 4),
        prompt=prompt,
        routine_rules=rules,
    )
    nodes: dict[str, Node] = {
        **attempt_nodes(inputs, settings.temperature, buffer, {"configuration": {}, "digest": ""}),
        "select": SelectConfiguration(buffer, first, settings.exploration),
        "summarize": RunRoutine(run_code, inputs.journal),
        "propose": inputs.make_policy(view),
        "act": Act(inputs.environment, inputs.journal, journal_channels=("candidates", "digest"), clear_lists=("candidates",)),
        "evolve": evolve_configuration(evolution, inputs.require_chat_model("evotest"), inputs.prompting.load("ask/again")),
        "check": CheckRoutine(run_code, inputs.journal),
    }
    full = RouteEvolution(inputs.success_threshold(settings.success_threshold), settings.cross_task)
    return episode_graph("evotest", FLOW, nodes, {"judge": full}, state=EvoTestState, **compile)
