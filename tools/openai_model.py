"""Models behind an OpenAI-compatible API: LangChain's `ChatOpenAI`, with errors that say in a line what would do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import openai
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_openai import ChatOpenAI
from typing_extensions import override

from ..memory.records import UserError

__all__ = ["OpenAIChatModel"]


class OpenAIChatModel(ChatOpenAI):
    """`ChatOpenAI` that raises `UserError` where the server, the key, the network or the request is at fault.

    The openai client under it repeats rate-limited, failed and timed-out requests `max_retries` times, waiting as the
    server asks or twice as long each time (0.5 s to 8 s). The original exception is the `UserError`'s `__cause__`.
    """

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        where = self._where()
        tries = (self.max_retries if self.max_retries is not None else openai.DEFAULT_MAX_RETRIES) + 1
        try:
            yield
        except openai.AuthenticationError as error:
            raise UserError(f"{where}: the key is refused ({_said(error)}); set OPENAI_API_KEY to a valid one") from error
        except openai.PermissionDeniedError as error:
            raise UserError(
                f"{where}: the key may not do this ({_said(error)}); a key with access to this model would do"
            ) from error
        except openai.NotFoundError as error:
            raise UserError(
                f"{where}: not found ({_said(error)}); a model this server has, or a base URL that ends in /v1, would do"
            ) from error
        except openai.RateLimitError as error:
            raise UserError(
                f"{where}: rate-limited {tries} times ({_said(error)}); "
                "fewer parallel runs, more retries or a higher quota would do"
            ) from error
        except openai.APITimeoutError as error:
            raise UserError(
                f"{where}: no answer within {self.request_timeout} s, tried {tries} times; a longer timeout would do"
            ) from error
        except openai.APIConnectionError as error:
            reason = error.__cause__ or error
            raise UserError(
                f"{where}: cannot be reached, tried {tries} times ({reason}); check the base URL and that a server runs there"
            ) from error
        except openai.BadRequestError as error:
            hint = (
                "this model gives no log-probabilities: a model that does, or verbalized confidences, would do"
                if "logprob" in str(error)
                else "change what its message names"
            )
            raise UserError(f"{where}: request refused ({_said(error)}); {hint}") from error
        except openai.APIStatusError as error:
            again = f", tried {tries} times" if error.status_code >= 500 else ""
            raise UserError(
                f"{where}: error {error.status_code}{again} ({_said(error)}); see the server's log, or try again later"
            ) from error
        except (openai.APIError, json.JSONDecodeError) as error:
            raise self._garbled(error) from error

    @override
    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with self._in_words():
            return super()._generate(messages, stop, run_manager, **kwargs)

    @override
    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with self._in_words():
            return await super()._agenerate(messages, stop, run_manager, **kwargs)

    @override
    def _create_chat_result(self, response: Any, generation_info: dict[str, Any] | None = None) -> ChatResult:
        try:
            return super()._create_chat_result(response, generation_info)
        except (ValueError, TypeError, KeyError, AttributeError) as error:  # JSON, but no chat completion
            raise self._garbled(error) from error

    def _garbled(self, error: Exception) -> UserError:
        return UserError(
            f"{self._where()}: the answer is not one of the OpenAI chat protocol ({_line(str(error))}); "
            "the base URL of a compatible server, usually ending in /v1, would do"
        )

    def _where(self) -> str:
        return f"model {self.model_name!r} at {self.openai_api_base or 'api.openai.com'}"

    @override
    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        with self._in_words():
            yield from super()._stream(*args, **kwargs)

    @override
    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        with self._in_words():
            async for chunk in super()._astream(*args, **kwargs):
                yield chunk


def _said(error: openai.APIStatusError) -> str:
    """The server's own message, on one line."""
    body = error.body
    message = body.get("message") if isinstance(body, dict) else None
    return _line(str(message or error.message))


def _line(text: str) -> str:
    return " ".join(text.split())[:300]
