"""Agents of the help desk with each learning middleware, for what all of them promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import help_desk as desk
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from learngraph.graphs.adamem import AdaMEM
from learngraph.graphs.agents.adamem import AdaMEMMiddleware
from learngraph.graphs.agents.icrl import ICRLMiddleware
from learngraph.graphs.agents.jitrl import JitRLMiddleware
from learngraph.graphs.agents.reasoning_bank import ReasoningBankMiddleware
from learngraph.graphs.agents.reflexion import ReflexionMiddleware
from learngraph.graphs.agents.synapse import SynapseMiddleware
from learngraph.graphs.agents.training_free_grpo import TrainingFreeGRPOMiddleware

__all__ = ["METHODS", "PLAIN", "advice", "config", "make"]

PLAIN = "You help customers."
"""The system message without anything that was learned."""
METHODS: dict[str, Callable[..., Any]] = {
    "jitrl": lambda store, **more: JitRLMiddleware(store, **{"decide": ["resolve"], "state_key": desk.issue, **more}),
    "adamem": AdaMEMMiddleware,
    "adamem-high": lambda store, **more: AdaMEMMiddleware(store, **{"settings": AdaMEM(mode="high"), **more}),
    "adamem-max": lambda store, **more: AdaMEMMiddleware(store, **{"settings": AdaMEM(mode="max"), **more}),
    "icrl": ICRLMiddleware,
    "reasoning-bank": ReasoningBankMiddleware,
    "reflexion": ReflexionMiddleware,
    "synapse": SynapseMiddleware,
    "lessons": lambda store, **more: TrainingFreeGRPOMiddleware(
        store=store, **{"critic": desk.HeedfulClerk(), "group_size": 2, **more}
    ),
}
"""Name of a method -> its middleware over a store, with further options."""


def make(
    method: str, store: Any = None, model: Any = None, tools: Sequence[Any] = (desk.lookup_order, desk.resolve), **options: Any
) -> tuple[Any, Any, Any]:
    """An agent with a learning middleware, the middleware, and the model (a `HeedfulClerk` if not given)."""
    if method in ("reasoning-bank", "reflexion", "lessons"):
        options = {"study": "job", **options}  # `learn` studies, so that no test waits for a thread
    learner = METHODS[method](InMemoryStore() if store is None else store, **options)
    model = model or desk.HeedfulClerk()
    agent = create_agent(model, list(tools), system_prompt=PLAIN, middleware=[learner], checkpointer=InMemorySaver())
    return agent, learner, model


def config(thread: str, tenant: str = "acme") -> Any:
    """The config of a thread."""
    return {"configurable": {"thread_id": thread, "tenant": tenant}}


def advice(learner: Any, thread: str) -> list[dict[str, Any]]:
    """The entries of a thread's last turn."""
    return list(learner.conversation(thread, tenant="acme").turns[-1].advice)
