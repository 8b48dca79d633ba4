"""Several replies of an agent's model to one request, which pays for its prompt once: the parameter `n` of OpenAI's protocol and others."""

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from langchain.agents.middleware import ModelRequest
from langchain.agents.middleware.types import ModelResponse
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.outputs import ChatGeneration, LLMResult

from ...memory.errors import UserError
from ...nodes.ask import is_refused_request, note_refused_options, refused_options
from .consultation import PendingCall

__all__ = ["ask_for_samples", "log_probability"]


class _AllReplies(BaseCallbackHandler):
    """Keeps all replies to a request, of which a chat model returns only the first."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def on_llm_end(self, response: LLMResult, **more: Any) -> None:
        self.messages = [one.message for one in response.generations[0] if isinstance(one, ChatGeneration)]


def ask_for_samples(
    asked: PendingCall, count: int, model: BaseChatModel
) -> Generator[PendingCall, Any, list[ModelResponse[Any]]]:
    """Ask once, for as many replies as the model gives to one request: at most `count`, at least one.

    A model whose server refuses `n`, or ignores it, is not asked for it again; the log says so once.

    Args:
        asked: what is asked: one request, with its advice.
        count: replies that are wanted.
        model: the agent's model, which the request may have a copy of: what its server refuses is known by it.
    """
    (request,) = asked.requests
    if count > 1 and _takes_n(request, model):
        kept = _AllReplies()
        listening = request.model.callbacks if isinstance(request.model.callbacks, list) else []
        update = {"callbacks": [*listening, kept], "disable_streaming": True}
        settings = {**request.model_settings, "n": count}
        try:
            many = request.override(model=request.model.model_copy(update=update), model_settings=settings)
            found = yield replace(asked, requests=[many], may_fail=True)
        except Exception as error:
            if is_refused_request(error) or isinstance(error, TypeError):  # a client of another protocol knows no `n`
                note_refused_options(model, ["n"])
        else:
            if len(kept.messages) == 1:
                note_refused_options(model, ["n"])
            name = found[0].result[0].name
            return [*found, *(ModelResponse([one.model_copy(update={"name": name})]) for one in kept.messages[1:])]
    alone: list[ModelResponse[Any]] = yield asked
    return alone


def _takes_n(request: ModelRequest[Any], model: BaseChatModel) -> bool:
    """True if the model has the parameter, as far as is known. What reads a structured response sees the first reply only."""
    if "n" not in getattr(type(model), "model_fields", ()) or request.response_format or "n" in refused_options(model):
        return False
    return isinstance(request.model.callbacks, list | None)


def log_probability(message: Any) -> float:
    """The log-probability of a reply in nats, as the server gives it.

    Raises:
        UserError: it gives none.
    """
    tokens = (message.response_metadata.get("logprobs") or {}).get("content")
    if not tokens:
        raise UserError(
            "candidates='logprobs' asked for log-probabilities, and the reply has none; make the model with logprobs=True, or take 'samples'"
        )
    return float(sum(token["logprob"] for token in tokens))
