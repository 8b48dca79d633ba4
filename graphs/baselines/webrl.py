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

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from ...memory.claas.settings import LoRA
from ...memory.claas.weights import WeightSettings
from ...nodes.act.choose import Choose
from ...nodes.act.episode import Act, Begin, route_episode_end
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
from ...nodes.learn.train_weights import FindVersion, KeepAttempt, ReadSteps, VersionedPolicy
from ...nodes.state import EpisodeInput, EpisodeResult
from ..wiring.flow import Node, compile_graph, wire
from ..wiring.parts import SHARED, MethodInputs, check_least
from ..wiring.weights import open_weight_trainer, scoring_policy
from .sft import TrainedState

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
class SelfEvolvingCurriculum:
    """Hyper-parameters."""

    every: int = 10
    """Episodes of the run's own task in each phase; practice and training come before the first."""
    tasks: int = 12
    """Tasks of a phase."""
    success_threshold: float | None = field(default=None, metadata=SHARED)
    """The return from which a practice task is solved; the environment's own if not given. Where both are unknown: above the mean."""
    learning_rate: float = 3e-3
    """Learning rate of AdamW."""
    epochs: int = 2
    """Times that a training goes over its steps."""
    batch_size: int = 32
    """Steps behind one update."""
    rank: int = 8
    """Rank of the LoRA adapter, on all linear layers; its scale is twice the rank."""
    temperature: float = field(default=1.0, metadata=SHARED)
    """The temperature of the softmax that the action is drawn from; 0 takes the best."""

    def __post_init__(self) -> None:
        check_least(self, "webrl", every=1, tasks=1, learning_rate=0, epochs=1, batch_size=1, rank=1, temperature=0)

    @property
    def training(self) -> WeightSettings:
        """The settings of its trainings."""
        return WeightSettings(LoRA(self.rank), self.learning_rate, self.epochs, self.batch_size)


def build(
    parts: MethodInputs, settings: SelfEvolvingCurriculum | None = None, *, chain: bool = False, **compile: Any
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one episode; arguments as in `graphs.icrl.build`. The world has `task(seed, split)`."""
    settings = settings or SelfEvolvingCurriculum()
    trainer, log = open_weight_trainer(parts, "webrl", settings.training), parts.training_log
    policy, world = scoring_policy(parts, "webrl"), parts.environment
    threshold = parts.success_threshold(settings.success_threshold)
    practice: TaskWorld = world  # type: ignore[assignment]  # every world that a run opens numbers its tasks
    nodes: dict[str, Node] = {
        "find_version": FindVersion(log),
        "plan": PlanPractice(practice, log, settings.every, settings.tasks, threshold),
        "pick": PickTask(),
        "return_to_task": ReturnToTask(),
        "begin": Begin(world),
        "propose": VersionedPolicy(policy, trainer),
        "choose": Choose(settings.temperature),
        "act": Act(world, parts.journal, journal_channels=("candidates",), clear_lists=("candidates",)),
        "judge": parts.judge_node(),
        "keep": KeepAttempt(log, parts.journal),
        "train": ImitateSolved(trainer, log, ReadSteps(policy, parts.journal), threshold),
    }
    routers = {"plan": route_phase, "act": route_episode_end, "keep": route_practice}
    builder = StateGraph(PractisedState, input_schema=EpisodeInput, output_schema=EpisodeResult)
    return compile_graph(wire(builder, FLOW, nodes, routers, chain=chain), **{"name": "webrl", **compile})
