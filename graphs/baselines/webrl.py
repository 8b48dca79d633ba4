"""WebRL's curriculum (arXiv:2411.02337) with SFT: practice on other tasks, and after failures on tasks close to those that failed.

    plan            at the start of a phase its tasks, of the train fold: first any, then those closest to the last phase's failures
    pick            the next of them; it is played as the run's own task is
    train           SFT on the attempts that solved their task, and on those of earlier phases whose actions the model finds neither
                    obvious nor absurd (perplexity from 1 / .95 to 1 / .5)
    return_to_task  the run's own task, which is scored; nothing is learned from it

What is left of WebRL: the curriculum that evolves from failures, the filter of the replay, and an adapter that goes on from phase to
phase. What is not here: new tasks are other seeds of the world and not written by a model, the world's rewards take the place of
the trained judge, and the loss is SFT's and not that of its KL-constrained policy gradient. Practice costs tokens and steps that
the run's episodes do not show: they count in its tokens, seconds and FLOPs.
"""

from dataclasses import dataclass, field
from typing import Any

from langgraph.graph import StateGraph

from ...memory.claas.weights import TrainingLog
from ...nodes.act.episode import route_episode_end
from ...nodes.arguments import Count
from ...nodes.learn.curriculum import (
    ImitateSolved,
    PickTask,
    PlanPractice,
    PracticeChannels,
    ReturnToTask,
    TaskWorld,
    route_phase,
    route_practice,
)
from ...nodes.learn.train_weights import ReadSteps, TrainVersion, WeightTrainer
from ...nodes.state import EpisodeInput, EpisodeResult
from ..wiring.flow import Graph, compile_graph, wire
from ..wiring.inputs import NOT_GIVEN, SHARED, MethodInputs, given_settings
from ..wiring.weights import MakeTrainer
from .sft import TrainedState, WeightTraining, trained_nodes

__all__ = ["FLOW", "SelfEvolvingCurriculum", "build"]

FLOW = """
flowchart LR
  START --> find_version --> plan
  plan -->|practise| pick --> begin --> propose --> choose --> act
  plan -->|play| return_to_task --> begin
  act -->|next step| propose
  act -->|over| judge --> keep
  keep -->|next task| pick
  keep -->|train| train --> return_to_task
  keep -->|over| END
"""


class PractisedState(TrainedState, PracticeChannels):
    """The channels of an episode with practice before it."""


@dataclass(frozen=True)
class SelfEvolvingCurriculum(WeightTraining):
    """Hyper-parameters."""

    method = "webrl"

    every: Count = 10
    """Episodes of the run's own task in each phase; practice and training come before the first."""
    tasks: Count = 12
    """Tasks of a phase."""
    success_threshold: float | None = field(default=None, metadata=SHARED)
    """The return from which a practice task is solved; the environment's own if not given. Where both are unknown: above the mean."""
    batch_size: Count = 32
    """Steps behind one update."""


def build(
    inputs: MethodInputs = NOT_GIVEN,
    settings: SelfEvolvingCurriculum | None = None,
    *,
    make_trainer: MakeTrainer | None = None,
    training_log: TrainingLog | None = None,
    **compile: Any,
) -> Graph:
    """The graph of one episode; arguments as in `sft.build`. The world has `task(seed, split)`."""
    settings, log = given_settings(inputs, settings, SelfEvolvingCurriculum), training_log or TrainingLog()
    threshold = inputs.success_threshold(settings.success_threshold)
    practice: TaskWorld = inputs.environment  # type: ignore[assignment]  # every world that a run opens numbers its tasks

    def make_train(trainer: WeightTrainer, steps: ReadSteps) -> TrainVersion:
        return ImitateSolved(trainer, log, steps, threshold)

    nodes = trained_nodes(inputs, settings, make_trainer, log, make_train) | {
        "plan": PlanPractice(practice, log, settings.every, settings.tasks, threshold),
        "pick": PickTask(),
        "return_to_task": ReturnToTask(),
    }
    routers = {"plan": route_phase, "act": route_episode_end, "keep": route_practice}
    builder = StateGraph(PractisedState, input_schema=EpisodeInput, output_schema=EpisodeResult)
    return compile_graph(wire(builder, FLOW, nodes, routers), **{"name": "webrl", **compile})
