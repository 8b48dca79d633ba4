"""ReAct (graphs/baselines/react.py) with the lessons of a library in its prompts: the rollout of Training-Free GRPO.

Every attempt names the version of the library that it is shown. Without lessons its prompts are those of ReAct, word by word.
"""

from dataclasses import dataclass, replace
from typing import Any

from ...memory.lessons.versions import LibraryVersions
from ...nodes.act.choose import Choose
from ...nodes.act.episode import Act, Begin
from ...nodes.extract.rollouts import LibraryPart, RolloutInput
from ...nodes.state import AttemptState, LibraryChannels
from ..wiring.episode import episode_graph
from ..wiring.flow import Graph, Node
from ..wiring.inputs import NOT_GIVEN, THINK_THEN_ACT, MethodInputs, given_settings
from ..wiring.learning_run import ComparisonSettings, RolloutGraphs
from .react import FLOW

__all__ = ["agent_settings", "build", "fill_in", "library_part"]


class LessonReActState(AttemptState, LibraryChannels):
    """The channels of an episode with lessons."""


@dataclass(frozen=True)
class LessonReAct:
    """Hyper-parameters."""

    lessons_per_prompt: int = 0
    """Lessons in a prompt at most, those that fit the problem best; 0: all."""
    temperature: float = 0.7
    """Temperature of the softmax over scored actions; 0 takes the best. A model that writes has its own."""
    show_rewards: bool = True
    """Show the rewards of earlier steps in prompts. False where learning goes without ground truth."""


def build(
    inputs: MethodInputs = NOT_GIVEN, settings: LessonReAct | None = None, *, lessons: LibraryVersions, **compile: Any
) -> Graph:
    """The graph of one episode, from `RolloutInput` to `EpisodeResult`.

    Args:
        inputs: the environment, the model, the journal.
        lessons: where the library that the input names is looked up.
        compile: as in `graphs.icrl.build`.
    """
    settings = given_settings(inputs, settings, LessonReAct)
    if not settings.show_rewards:
        inputs = inputs.without_verdicts()
    view = inputs.episode_prompt(
        library_part(inputs, lessons, settings.lessons_per_prompt),
        layout=inputs.layout("dense" if settings.show_rewards else "none"),
    )
    nodes: dict[str, Node] = {
        "begin": Begin(inputs.environment),
        "propose": inputs.acting_policy(view, THINK_THEN_ACT),
        "choose": Choose(settings.temperature),
        "act": Act(inputs.environment, inputs.journal, clear_lists=("candidates",)),
    }
    return episode_graph("lesson-react", FLOW, nodes, state=LessonReActState, input_schema=RolloutInput, **compile)


def library_part(inputs: MethodInputs, versions: LibraryVersions, lessons_per_prompt: int = 0) -> LibraryPart:
    """The lessons of an episode's library in its prompts, for a prompt of this method or of another (`EpisodePrompt.show`)."""
    return LibraryPart(
        versions=versions,
        lessons_per_prompt=lessons_per_prompt,
        show_ids=inputs.chats,
        section=inputs.prompting.load("training_free_grpo/lessons") if inputs.chats else None,
        brief=inputs.prompting.load("reasoning_bank/brief").text(),
    )


def agent_settings(settings: ComparisonSettings, temperature: float | None) -> LessonReAct:
    """The settings of a rollout of Training-Free GRPO. Without ground truth it is not shown rewards."""
    drawn_at = 1.0 if temperature is None else temperature
    return LessonReAct(settings.rollouts.lessons_per_prompt, drawn_at, show_rewards=settings.truth == "given")


def fill_in(
    graphs: RolloutGraphs, inputs: MethodInputs, settings: ComparisonSettings, versions: LibraryVersions
) -> RolloutGraphs:
    """The graphs that play rollouts: as given, and where none is given ReAct with lessons."""

    def default(temperature: float | None) -> Graph:
        return build(inputs, agent_settings(settings, temperature), lessons=versions)

    return replace(
        graphs,
        learning=graphs.learning or default(settings.temperature),
        trial=graphs.trial or graphs.learning or default(settings.trial.temperature),
    )
