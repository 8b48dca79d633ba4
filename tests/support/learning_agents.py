"""Agents of the help desk with each learning middleware, for what all of them promise."""

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

__all__ = ["BY_ISSUE", "FORGOTTEN", "METHODS", "PLAIN", "advice", "config", "forget_one", "make"]

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
FORGOTTEN = "Zaphodbeeblebrox"
"""A word that only one user says."""
BY_ISSUE: dict[str, dict[str, Any]] = {
    "icrl": {"task": desk.issue},
    "reasoning-bank": {"task": desk.issue, "state_key": desk.issue},
    "reflexion": {"task": desk.issue, "state_key": desk.issue},
    "synapse": {"state_key": desk.issue},
}
"""Options by which conversations about the same issue are found."""


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


def forget_one(method: str, store: Any, name: str = FORGOTTEN) -> Any:
    """A learner that had conversations with Ann and with `FORGOTTEN`, in a thread of this name, and has forgotten the latter's."""
    agent, learner, _ = make(method, store, **BY_ISSUE.get(method, {}))
    for n in range(0, 20, 4):
        who, thread = (FORGOTTEN, name) if n == 4 else ("Ann", f"Ann-{n}")
        agent.invoke({"messages": f"{desk.ticket(n)[0]} I am {who}."}, config(thread))
        learner.feedback(thread, reward=float(n > 0), text=f"{who} says thanks", tenant="acme")
        if hasattr(learner, "learn"):
            learner.learn(tenant="acme")
    assert learner.forget([name], tenant="acme") == 1
    assert FORGOTTEN not in str(list(learner.export(tenant="acme")))
    return learner


def config(thread: str, tenant: str = "acme") -> Any:
    """The config of a thread."""
    return {"configurable": {"thread_id": thread, "tenant": tenant}}


def advice(learner: Any, thread: str) -> list[dict[str, Any]]:
    """The entries of a thread's last turn."""
    return list(learner.conversation(thread, tenant="acme").turns[-1].advice)
