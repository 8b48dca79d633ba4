"""JitRL as it was published: the nodes and values of the paper (arXiv:2601.18510) and of the authors' code.

`JitRL.paper()` and `JitRL.reference()` (graphs/jitrl.py) give the settings; the drawing is the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...memory.returns.experiences import Experiences
from ...memory.storage.journal import Journal
from ...nodes.act.choose import Choose
from ...nodes.act.decide import Augment, Modulate, PaperAdvice, ReferenceAdvice, ReferenceModulate, admit_remembered
from ...nodes.act.episode import Environment
from ...nodes.retrieve.recall import RecallVisits, ReferenceRecall, ReferenceRemember
from ..wiring.flow import Node

if TYPE_CHECKING:
    from ..jitrl import JitRL

__all__ = ["EQUATIONS", "PAPER", "REFERENCE", "paper_nodes", "reference_nodes"]

_METHOD = {"advantage_estimator": "paper", "beta": 1.0, "candidates": 3, "logit_scale": "confidence"}
_JERICHO = {"gamma": 0.5, "min_similarity": 0.95}
_WEBARENA = {"gamma": 0.1, "min_similarity": 0.8}
_WHOLE = {**_METHOD, "evaluator": "contribution"}

PAPER: Mapping[str, dict[str, Any]] = {
    "jericho": {**_WHOLE, **_JERICHO, "state_key": "summary", "wording": "paper"},
    "webarena": {**_WHOLE, **_WEBARENA, "state_key": "screenshot", "wording": "paper-web", "unseen_bonus_probability": 0.05},
}
"""Benchmark -> the values of the paper's table. It gives no beta: 1 is our reading of its formula."""
EQUATIONS: Mapping[str, Any] = {
    **{"advantage_estimator": "paper", "beta": 1.0, "state_key": "hierarchy", "threshold_decay": 0.1},
    **_JERICHO,
}
"""The values of the paper's equations alone."""
REFERENCE: Mapping[str, Any] = {
    **_JERICHO,
    **{"advantage_estimator": "reference", "threshold_decay": 0.1, "unseen_bonus": 1.0, "temperature": 0.0},
    **{"evaluator": "hindsight", "state_key": "hierarchy"},
}
"""The values of the authors' code for Jericho."""


def paper_nodes(settings: JitRL, memory: Experiences, environment: Environment, journal: Journal) -> Mapping[str, Node]:
    """The nodes of Eq. 4 to 7 and 25 to the letter, over single visits."""
    return {
        "recall": RecallVisits(memory, environment, **settings.recall_arguments),
        "augment": Augment("zero", settings.logit_scale, settings.candidates, admit=admit_remembered(environment)),
        "advise": PaperAdvice(alpha=settings.unseen_bonus, lam=settings.unseen_bonus_probability),
        "modulate": Modulate(beta=settings.beta),
        "choose": Choose(settings.temperature),
    }


def reference_nodes(settings: JitRL, memory: Experiences, environment: Environment, journal: Journal) -> Mapping[str, Node]:
    """The nodes of the authors' code, with its defects."""
    return {
        "recall": ReferenceRecall(memory, environment, **settings.recall_arguments),
        # The authors' code also tries what the world does not admit here; environments that list actions refuse that.
        "augment": Augment("zero", "confidence", settings.candidates, positive_only=True, admit=admit_remembered(environment)),
        "advise": ReferenceAdvice(alpha=settings.unseen_bonus),
        "modulate": ReferenceModulate(),
        "choose": Choose(settings.temperature),
        "remember": ReferenceRemember(
            memory, environment, journal, gamma=settings.gamma, merges=settings.evaluator != "environment"
        ),
    }
