"""The trainer of a model's weights, as methods that train them ask for it."""

from collections.abc import Callable
from typing import cast

from ...memory.claas.weights import WeightSettings
from ...memory.errors import UserError
from ...nodes.act.policies import LocalPolicy
from ...nodes.learn.train_weights import WeightTrainer
from .inputs import MethodInputs

__all__ = ["MakeTrainer", "NoWeightsError", "open_weight_trainer", "scoring_policy"]


MakeTrainer = Callable[[WeightSettings], WeightTrainer]
"""Settings -> a trainer of the model's weights, such as `tools.training.trl_trainers.TrlTrainer`."""


class NoWeightsError(UserError, ValueError):
    """An error: there are no weights that this method could train."""

    fails_again = True


def open_weight_trainer(
    inputs: MethodInputs, method: str, settings: WeightSettings, make_trainer: MakeTrainer | None
) -> WeightTrainer:
    """The trainer of the weights of the model that plays.

    Raises:
        NoWeightsError: the model has none that could be trained here. A drawing has no environment, and gets no trainer.
    """
    if make_trainer is not None:
        return make_trainer(settings)
    if inputs.environment is None:
        return cast(WeightTrainer, None)
    raise NoWeightsError(
        f"{method} trains the weights of the model that plays, and there are none here: a model behind an API keeps its own, and a "
        "uniform prior has none; give a model of this process (--model pocket or --model local:PATH, --prior model)"
    )


def scoring_policy(inputs: MethodInputs, method: str) -> LocalPolicy:
    """The policy that scores actions with the model's weights; it is shown what JitRL's and static's are shown.

    Raises:
        NoWeightsError: the actions are not drawn from such scores.
    """
    policy = inputs.make_policy(inputs.recent_steps_view())
    if not isinstance(policy, LocalPolicy):
        raise NoWeightsError(
            f"{method} trains the log-probabilities that its actions are drawn from, and here they are drawn from others; play it "
            "with --policy local and --prior model"
        )
    return policy
