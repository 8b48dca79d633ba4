"""The learning middlewares by the names of their methods, for services that know a method by its name alone."""

from importlib import import_module
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langgraph.store.base import BaseStore

from ...memory.errors import UserError, did_you_mean
from .critic import CriticMiddleware
from .learner import LearningMiddleware

__all__ = ["MIDDLEWARES", "make_learner"]

MIDDLEWARES = {
    "adamem": "AdaMEMMiddleware",
    "icrl": "ICRLMiddleware",
    "lessons": "TrainingFreeGRPOMiddleware",
    "reasoning-bank": "ReasoningBankMiddleware",
    "reflexion": "ReflexionMiddleware",
    "synapse": "SynapseMiddleware",
}
"""Name of a method -> its class in this folder: those that need to know nothing of an agent's tools."""


def make_learner(
    method: str, store: BaseStore | Path | str, model: BaseChatModel | None, **options: Any
) -> LearningMiddleware[Any]:
    """The learning middleware of a method.

    Args:
        method: one of `MIDDLEWARES`.
        store: as of every learner.
        model: what a method asks of its own: its critic, its strategist; None: it has none.
        options: those of `LearningMiddleware`.

    Raises:
        UserError: there is no such method, or it asks a model and has none.
    """
    if method not in MIDDLEWARES:
        raise UserError(f"a method is {', '.join(MIDDLEWARES)}; got {method!r}{did_you_mean(method, MIDDLEWARES)}")
    module = "training_free_grpo" if method == "lessons" else method.replace("-", "_")
    kind: Any = getattr(import_module(f".{module}", __package__), MIDDLEWARES[method])
    if issubclass(kind, CriticMiddleware):
        options["critic"] = model
    if model is None and (method == "adamem" or "critic" in options):
        raise UserError(f"{method} asks a model about conversations: give one, such as openai:NAME, or take icrl or synapse")
    made: LearningMiddleware[Any] = kind(store=store, **options)
    return made
