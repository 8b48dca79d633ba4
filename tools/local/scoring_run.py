"""Scores of options, and the run of a chat model that callbacks and tracers see while they are computed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from langchain_core.callbacks import CallbackManager
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables.config import ensure_config

__all__ = ["OptionScores"]


class OptionScores(list[float]):
    """Log-probabilities of options, in nats."""

    prompt_tokens: int = 0
    """Tokens of the prompt, cached or not."""


@contextmanager
def scoring_run(
    model: BaseChatModel, messages: Sequence[BaseMessage], options: Sequence[str]
) -> Iterator[Callable[[OptionScores], None]]:
    """A run that the callbacks of the surrounding node, chain or model see. It gives a function that takes the scores."""
    config = ensure_config()
    manager = CallbackManager.configure(
        config.get("callbacks"),
        model.callbacks,
        model.verbose,
        config.get("tags"),
        model.tags,
        config.get("metadata"),
        model.metadata,
    )
    if not manager.handlers:
        yield lambda scores: None
        return
    params = {**model._identifying_params, "_type": model._llm_type, "options": list(options)}
    (run,) = manager.on_chat_model_start(model._serialized, [list(messages)], invocation_params=params, name="score")

    def report(scores: OptionScores) -> None:
        best = max(range(len(scores)), key=scores.__getitem__)
        size = scores.prompt_tokens
        message = AIMessage(
            content=options[best],
            response_metadata={
                "model_name": model._identifying_params["model"],
                "option_logprobs": dict(zip(options, scores, strict=True)),
            },
            usage_metadata=UsageMetadata(input_tokens=size, output_tokens=0, total_tokens=size),
        )
        run.on_llm_end(LLMResult(generations=[[ChatGeneration(message=message)]]))

    try:
        yield report
    except BaseException as error:
        run.on_llm_error(error)
        raise
