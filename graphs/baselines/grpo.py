"""GRPO: the weights learn from groups of attempts at the same task (arXiv:2402.03300), by TRL's GRPOTrainer.

    find_version  the adapter as it was trained last: a group is played with one version
    propose       the policy, as in static.py, with that adapter
    keep          the attempt's steps and its return R, into the log
    train         after every G episodes, from those G attempts

                  A_g = (R_g - mean R) / (std R + 1e-4)
                  L   = - sum min(rho A, clip(rho, 1 - epsilon, 1 + epsilon) A) / tokens,  rho = pi(z) / pi_old(z)

The sum goes over the tokens z of all actions of the group, each behind the prompt that the policy was shown; every step of an attempt
has the attempt's advantage. There is no KL term (DAPO's form, TRL's default). With all returns alike there is no gradient, and the
adapter stays; attempts without a return are left out of the group. tools/training/trl_trainers.py says what is TRL's and what is
ours.
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
    KeepAttempt,
    ReadSteps,
    ReinforceGroup,
    VersionedPolicy,
    make_training_router,
)
from ...nodes.state import EpisodeInput, EpisodeResult
from ..wiring.flow import Node, compile_graph, wire
from ..wiring.parts import SHARED, MethodInputs, check_least
from ..wiring.weights import open_weight_trainer, scoring_policy
from .sft import TrainedState

FLOW = """
flowchart LR
  START --> find_version --> begin --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| judge --> keep
  keep -->|train| train --> END
  keep -->|go on| END
"""


@dataclass(frozen=True)
class GroupRelativeTraining:
    """Hyper-parameters."""

    group_size: int = 5
    """G: attempts of a group, and episodes between two trainings."""
    learning_rate: float = 3e-3
    """Learning rate of AdamW; chosen on the toy's train fold among .001, .003 and .01."""
    epochs: int = 2
    """Updates from each group; the clip acts from the second on."""
    clip: float = 0.2
    """epsilon, the bound on rho."""
    rank: int = 8
    """Rank of the LoRA adapter, on all linear layers; its scale is twice the rank."""
    temperature: float = field(default=1.0, metadata=SHARED)
    """The temperature of the softmax that the action is drawn from; with 0 all attempts of a group are the same."""

    def __post_init__(self) -> None:
        check_least(self, "grpo", group_size=2, learning_rate=0, epochs=1, clip=0, rank=1, temperature=0)

    @property
    def training(self) -> WeightSettings:
        """The settings of its trainings."""
        return WeightSettings(LoRA(self.rank), self.learning_rate, self.epochs, clip=self.clip)


def build(
    parts: MethodInputs, settings: GroupRelativeTraining | None = None, *, chain: bool = False, **compile: Any
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one episode; arguments as in `graphs.icrl.build`."""
    settings = settings or GroupRelativeTraining()
    trainer, log = open_weight_trainer(parts, "grpo", settings.training), parts.training_log
    policy = scoring_policy(parts, "grpo")
    nodes: dict[str, Node] = {
        "find_version": FindVersion(log),
        "begin": Begin(parts.environment),
        "propose": VersionedPolicy(policy, trainer),
        "choose": Choose(settings.temperature),
        "act": Act(parts.environment, parts.journal, journal_channels=("candidates",), clear_lists=("candidates",)),
        "judge": parts.judge_node(),
        "keep": KeepAttempt(log, parts.journal),
        "train": ReinforceGroup(trainer, log, ReadSteps(policy, parts.journal), settings.group_size),
    }
    routers = {"act": route_episode_end, "keep": make_training_router(settings.group_size)}
    builder = StateGraph(TrainedState, input_schema=EpisodeInput, output_schema=EpisodeResult)
    return compile_graph(wire(builder, FLOW, nodes, routers, chain=chain), **{"name": "grpo", **compile})
