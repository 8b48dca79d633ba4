"""GRPO: the weights learn from groups of attempts at the same task (arXiv:2402.03300), by TRL's GRPOTrainer.

The episode is sft.py's.

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

from dataclasses import dataclass
from typing import Annotated, Any

from ...memory.claas.weights import TrainingLog
from ...nodes.arguments import Amount, Range
from ...nodes.learn.train_weights import ReadSteps, ReinforceGroup, TrainVersion, WeightTrainer
from ..wiring.flow import Graph
from ..wiring.inputs import NOT_GIVEN, MethodInputs, given_settings
from ..wiring.weights import MakeTrainer
from .sft import WeightTraining, trained_nodes, wire_trained

__all__ = ["GroupRelativeTraining", "build"]


@dataclass(frozen=True)
class GroupRelativeTraining(WeightTraining):
    """Hyper-parameters."""

    method = "grpo"

    group_size: Annotated[int, Range(2)] = 5
    """G: attempts of a group, and episodes between two trainings."""
    clip: Amount = 0.2
    """epsilon, the bound on rho; it acts from the second epoch on."""


def build(
    inputs: MethodInputs = NOT_GIVEN,
    settings: GroupRelativeTraining | None = None,
    *,
    make_trainer: MakeTrainer | None = None,
    training_log: TrainingLog | None = None,
    **compile: Any,
) -> Graph:
    """The graph of one episode, of which each group has one version; arguments as in `sft.build`."""
    settings, log = given_settings(inputs, settings, GroupRelativeTraining), training_log or TrainingLog()

    def make_train(trainer: WeightTrainer, steps: ReadSteps) -> TrainVersion:
        return ReinforceGroup(trainer, log, steps, settings.group_size)

    nodes = trained_nodes(inputs, settings, make_trainer, log, make_train)
    return wire_trained(nodes, settings.group_size, **{"name": "grpo", **compile})
