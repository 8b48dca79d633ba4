"""`learngraph serve --learn METHOD`: the chat API in front of somebody else's model, which learns in its context."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...memory.errors import UserError, did_you_mean
from ..claas import CLaaS
from .serve_options import ServeOptions

if TYPE_CHECKING:
    from ...memory.claas.replay import Replay
    from ..serving.context_service import ContextService

__all__ = ["build_context_service"]

CONTEXT = "context:"
"""Beginning of the base of what --learn learns; the method follows."""
PROVIDER_SECONDS = 60.0
"""Longest wait for a provider's next piece, before the request is tried a second time, and then fails."""


def build_context_service(options: ServeOptions, settings: CLaaS, replay: Replay, root: Path, name: str) -> ContextService:
    """The service without its web server.

    Raises:
        UserError: as of `context_base`; or there is no such graph, or the model cannot be opened.
    """
    from ...memory.conversations.screen import Screen
    from ...tools.models.models import open_model
    from ..agents.methods import make_learner
    from ..arms import find_user_object
    from ..serving.agent_engine import AgentEngine
    from ..serving.context_service import ContextService

    base = context_base(options, settings)
    model: Any = open_model(options.model, base_url=options.base_url, timeout=PROVIDER_SECONDS, max_retries=1)
    if "stream_usage" in type(model).model_fields:  # without it LangChain asks OpenAI alone what a stream cost
        model.stream_usage = True
    place, _, attribute = options.graph.rpartition(":")
    make_agent = find_user_object(place, attribute) if options.graph else None
    learner = make_learner(
        options.learn,
        options.out / "memory",
        model,
        scope=("tenant", "adapter"),
        name="serve",
        user="user?",
        max_user_share=options.max_user_share,
        raters=options.raters or None,
        hold=options.hold,
        control=options.control,
        screen=Screen(unlearned_tools=options.unlearned_tools),
    )
    try:
        return ContextService(AgentEngine(model, learner, base, make_agent), replay, root, name)
    except BaseException:
        learner.close()
        raise


def context_base(options: ServeOptions, settings: CLaaS) -> str:
    """The name that exchanges of --learn's method belong to: what was learned outlives a change of the model."""
    from ..serving.context_service import LEARNERS

    if options.learn not in LEARNERS:
        raise UserError(
            f"serve: --learn is {', '.join(LEARNERS)}; got {options.learn!r}{did_you_mean(options.learn, LEARNERS)}"
        )
    if settings != CLaaS():
        raise UserError(
            "serve: settings of weights that learn (--loss, --lora, --gate ...) have no effect with --learn; leave them out"
        )
    return CONTEXT + options.learn
