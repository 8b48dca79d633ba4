"""SFT: the weights learn from the run's own best attempts (rejection sampling), by TRL's SFTTrainer.

    find_version  the adapter as it was trained last
    propose       the policy, as in static.py, with that adapter
    keep          the attempt's steps and its return, into the log
    train         after every n episodes: cross-entropy of the actions of the best attempts so far

                  L = - mean log pi(z)  over the tokens z of their actions, each behind the prompt that the policy was shown

Best are the attempts with the highest returns, as far as they are above the mean of all: where all attempts earned the same there is
nothing to learn, and the adapter stays. Attempts without a return are left out. Every training goes on from the adapter before it,
and from the moments of its optimizer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from langgraph.graph import StateGraph

from ...memory.claas.settings import LoRA
from ...memory.claas.weights import TrainingLog, WeightSettings
from ...nodes.act.episode import route_episode_end
from ...nodes.arguments import Amount, ArgumentCheck, Count
from ...nodes.learn.train_weights import (
    FindVersion,
    ImitateBest,
    KeepAttempt,
    ReadSteps,
    TrainVersion,
    VersionChannels,
    VersionedPolicy,
    WeightTrainer,
    make_training_router,
)
from ...nodes.state import ChoiceChannels, EpisodeChannels, EpisodeInput, EpisodeResult, RewardChannels
from ..wiring.episode import episode_nodes
from ..wiring.flow import Graph, Node, compile_graph, wire
from ..wiring.inputs import NOT_GIVEN, SHARED, MethodInputs, given_settings
from ..wiring.weights import MakeTrainer, open_weight_trainer, scoring_policy

__all__ = ["FLOW", "RejectionSampling", "build"]

FLOW = """
flowchart LR
  START --> find_version --> begin --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| judge --> keep
  keep -->|train| train --> END
  keep -->|go on| END
"""


class TrainedState(EpisodeChannels, ChoiceChannels, RewardChannels, VersionChannels):
    """The channels of an episode that is played with a version of the adapter."""


@dataclass(frozen=True)
class WeightTraining(ArgumentCheck):
    """Hyper-parameters of all methods that train weights."""

    method: ClassVar[str]
    """The method's name, for errors."""

    learning_rate: Amount = 3e-3
    """Learning rate of AdamW; chosen on the toy's train fold among .001, .003 and .01."""
    epochs: Count = 2
    """Updates from each group (grpo), or times that a training goes over its steps."""
    rank: Count = 8
    """Rank of the LoRA adapter, on all linear layers; its scale is twice the rank."""
    temperature: Amount = field(default=1.0, metadata=SHARED)
    """The temperature of the softmax that the action is drawn from. 0 takes the best action, so that all attempts are the same."""

    @property
    def training(self) -> WeightSettings:
        """The settings of each training."""
        own = {name: getattr(self, name) for name in ("batch_size", "clip") if hasattr(self, name)}
        return WeightSettings(LoRA(self.rank), self.learning_rate, self.epochs, **own)


@dataclass(frozen=True)
class RejectionSampling(WeightTraining):
    """Hyper-parameters."""

    method = "sft"

    every: Count = 5
    """Episodes between two trainings."""
    best: Count = 4
    """Attempts that a training imitates, at most."""
    batch_size: Count = 32
    """Steps behind one update."""


def build(
    inputs: MethodInputs = NOT_GIVEN,
    settings: RejectionSampling | None = None,
    *,
    make_trainer: MakeTrainer | None = None,
    training_log: TrainingLog | None = None,
    **compile: Any,
) -> Graph:
    """The graph of one episode; arguments as in `graphs.icrl.build`.

    Args:
        make_trainer: makes the trainer of the model's weights; a drawing needs none.
        training_log: the log of attempts and trainings; the default lives in this process.

    Raises:
        NoWeightsError: the model that plays has no weights here.
    """
    settings, log = given_settings(inputs, settings, RejectionSampling), training_log or TrainingLog()

    def make_train(trainer: WeightTrainer, steps: ReadSteps) -> TrainVersion:
        return ImitateBest(trainer, log, steps, settings.best)

    nodes = trained_nodes(inputs, settings, make_trainer, log, make_train)
    return wire_trained(nodes, settings.every, **{"name": "sft", **compile})


def trained_nodes(
    inputs: MethodInputs,
    settings: WeightTraining,
    make_trainer: MakeTrainer | None,
    log: TrainingLog,
    make_train: Callable[[WeightTrainer, ReadSteps], TrainVersion],
) -> dict[str, Node]:
    """The nodes of an episode that is played with a version of the adapter and may end in a training.

    Raises:
        NoWeightsError: the model that plays has no weights here.
    """
    trainer = open_weight_trainer(inputs, settings.method, settings.training, make_trainer)
    policy = scoring_policy(inputs, settings.method)
    return {
        "find_version": FindVersion(log),
        **episode_nodes(inputs, settings.temperature),
        "propose": VersionedPolicy(policy, trainer),
        "judge": inputs.judge_node(),
        "keep": KeepAttempt(log, inputs.journal),
        "train": make_train(trainer, ReadSteps(policy, inputs.journal)),
    }


def wire_trained(nodes: dict[str, Node], every: int, **compile: Any) -> Graph:
    """The graph of `FLOW` with a training after every n-th episode."""
    routers = {"act": route_episode_end, "keep": make_training_router(every)}
    builder = StateGraph(TrainedState, input_schema=EpisodeInput, output_schema=EpisodeResult)
    return compile_graph(wire(builder, FLOW, nodes, routers), **compile)
