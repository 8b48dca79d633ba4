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

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from ...memory.claas.settings import LoRA
from ...memory.claas.weights import WeightSettings
from ...nodes.act.choose import Choose
from ...nodes.act.episode import Act, Begin, route_episode_end
from ...nodes.learn.train_weights import (
    FindVersion,
    ImitateBest,
    KeepAttempt,
    ReadSteps,
    VersionChannels,
    VersionedPolicy,
    make_training_router,
)
from ...nodes.state import ChoiceChannels, EpisodeChannels, EpisodeInput, EpisodeResult, RewardChannels
from ..wiring.flow import Node, compile_graph, wire
from ..wiring.parts import SHARED, MethodInputs, check_least
from ..wiring.weights import open_weight_trainer, scoring_policy

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
class RejectionSampling:
    """Hyper-parameters."""

    every: int = 5
    """Episodes between two trainings."""
    best: int = 4
    """Attempts that a training imitates, at most."""
    learning_rate: float = 3e-3
    """Learning rate of AdamW; chosen on the toy's train fold among .001, .003 and .01."""
    epochs: int = 2
    """Times that a training goes over its steps."""
    batch_size: int = 32
    """Steps behind one update."""
    rank: int = 8
    """Rank of the LoRA adapter, on all linear layers; its scale is twice the rank."""
    temperature: float = field(default=1.0, metadata=SHARED)
    """The temperature of the softmax that the action is drawn from; 0 takes the best."""

    def __post_init__(self) -> None:
        check_least(self, "sft", every=1, best=1, learning_rate=0, epochs=1, batch_size=1, rank=1, temperature=0)

    @property
    def training(self) -> WeightSettings:
        """The settings of its trainings."""
        return WeightSettings(LoRA(self.rank), self.learning_rate, self.epochs, self.batch_size)


def build(
    parts: MethodInputs, settings: RejectionSampling | None = None, *, chain: bool = False, **compile: Any
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one episode; arguments as in `graphs.icrl.build`."""
    settings = settings or RejectionSampling()
    trainer, log = open_weight_trainer(parts, "sft", settings.training), parts.training_log
    policy = scoring_policy(parts, "sft")
    nodes: dict[str, Node] = {
        "find_version": FindVersion(log),
        "begin": Begin(parts.environment),
        "propose": VersionedPolicy(policy, trainer),
        "choose": Choose(settings.temperature),
        "act": Act(parts.environment, parts.journal, journal_channels=("candidates",), clear_lists=("candidates",)),
        "judge": parts.judge_node(),
        "keep": KeepAttempt(log, parts.journal),
        "train": ImitateBest(trainer, log, ReadSteps(policy, parts.journal), settings.best),
    }
    routers = {"act": route_episode_end, "keep": make_training_router(settings.every)}
    builder = StateGraph(TrainedState, input_schema=EpisodeInput, output_schema=EpisodeResult)
    return compile_graph(wire(builder, FLOW, nodes, routers, chain=chain), **{"name": "sft", **compile})
