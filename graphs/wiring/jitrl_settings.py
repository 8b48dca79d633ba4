"""The check of JitRL's settings: their ranges, which of them have an effect together, and what they need of a run."""

from __future__ import annotations

from typing import Any

from ...memory.errors import UserError
from ...nodes.evaluate.judge import CONTRIBUTION_PROMPTS, model_judge
from .flow import Node
from .inputs import MethodInputs, check_literals, check_task_scope
from .state_keys import WRITTEN_KEYS

__all__ = ["check_inputs", "check_jitrl", "make_judge"]

_RANGES = {
    "beta": (0, 1e6),
    "candidates": (0, 1e9),
    "gamma": (0, 1),
    "k": (1, 1e9),
    "min_similarity": (0, 1),
    "threshold_decay": (0, 1),
    "shrinkage_visits": (1e-9, 1e9),
    "exploration_bonus": (0, 1e6),
    "repeat_penalty": (0, 1e6),
    "min_prior": (0, 1),
    "unseen_bonus": (-1e9, 1e9),
    "unseen_bonus_probability": (0, 1),
    "temperature": (0, 1e6),
}
_UNUSED = {
    "guarded": ("unseen_bonus", "unseen_bonus_probability", "logit_scale"),
    "paper": ("shrinkage_visits", "exploration_bonus", "repeat_penalty", "min_prior"),
    "reference": (
        *(
            "beta",
            "shrinkage_visits",
            "exploration_bonus",
            "repeat_penalty",
            "min_prior",
            "unseen_bonus_probability",
            "logit_scale",
        ),
    ),
}
"""Estimator -> the settings that have no effect with it."""


def check_jitrl(settings: Any) -> None:
    """Check the settings of `graphs.jitrl.JitRL`.

    Raises:
        UserError: a value is out of range, has no effect with the estimator, or lacks another that it goes with.
    """
    check_literals(settings, "jitrl")
    wanted = {"hierarchy": bool(settings.embedder), "summary": bool(settings.embedder)}.get(
        settings.state_key, settings.state_key == "embedding"
    )
    if wanted != bool(settings.embedder):
        raise UserError(
            "jitrl: state_key='embedding' goes with an embedder, and 'hierarchy' and 'summary' may have one; got "
            f"state_key={settings.state_key!r} and embedder={settings.embedder!r}"
        )
    check_task_scope(settings, "jitrl")
    for name, (low, high) in _RANGES.items():
        value = getattr(settings, name)
        if not low <= value <= high:
            raise UserError(f"jitrl: {name} is a number from {low:g} to {high:g}, got {value}")
    for name in _UNUSED[settings.advantage_estimator]:
        usual = type(settings).__dataclass_fields__[name].default
        if getattr(settings, name) != usual:
            raise UserError(
                f"jitrl: {name} has no effect with advantage_estimator='{settings.advantage_estimator}'; leave it at {usual}"
            )


def check_inputs(settings: Any, inputs: MethodInputs) -> None:
    """Check that a run has what the settings need.

    Raises:
        UserError: they need a model that writes, or web pages, or the run has a judge beside theirs.
    """
    needs = {"evaluator": settings.evaluator != "environment", "state_key": settings.state_key in WRITTEN_KEYS}
    world = inputs.environment
    if settings.state_key in ("page", "screenshot") and world is not None and not hasattr(world, "screenshot"):
        raise UserError(
            f"jitrl: state_key={settings.state_key!r} is of web pages, and {world.name} shows none; 'summary' is what a model writes of any world"
        )
    asked = " and ".join(f"{name}={getattr(settings, name)!r}" for name, needed in needs.items() if needed)
    if asked and (inputs.model is None or not inputs.chats):
        came = "none here" if inputs.model is None else "one here that only scores actions"
        raise UserError(
            f"jitrl: {asked} need a model that writes, and there is {came}; evaluator='environment' takes the world's rewards, "
            "state_key='hierarchy' sums up by rule ('room' on web pages), and jitrl:paper-equations is the paper's arithmetic with both"
        )
    if needs["evaluator"] and inputs.judge is not None:
        raise UserError(
            f"jitrl: evaluator={settings.evaluator!r} has the model judge, and the run has a judge of its own (--judge); leave one of them "
            "out: jitrl:paper?evaluator=environment takes the run's"
        )


def make_judge(settings: Any, inputs: MethodInputs) -> Node:
    """The node that rewards a finished episode: the model, or whoever judges the run."""
    if settings.evaluator == "environment" or inputs.model is None:
        return inputs.judge_node()
    prompt = "jitrl/judge" if settings.evaluator == "hindsight" else CONTRIBUTION_PROMPTS[settings.wording == "paper-web"]
    return model_judge(inputs.model, inputs.journal, inputs.prompting.prompts, prompt)
