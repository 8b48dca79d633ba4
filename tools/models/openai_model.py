"""Models behind an OpenAI-compatible API: LangChain's `ChatOpenAI` with one-line errors that say what to do.

Plain chat requests go through the client of api_posts.py, which takes 0.2 ms of CPU a call where the openai client takes 1.5 ms.
Streams, structured output and the Responses API go through the openai client.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, cast
from uuid import uuid4

import openai
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.globals import get_llm_cache
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_openai import ChatOpenAI
from pydantic import PrivateAttr, SecretStr
from typing_extensions import override

from ...memory.errors import UserError
from . import api_posts
from .refused_parameters import is_too_long, refused_by

__all__ = ["OpenAIChatModel"]


WINDOWS: dict[str, int] = {
    "gpt-4.1": 1_047_576,
    "gpt-4o": 128_000,
    "gpt-4-turbo": 128_000,
    "gpt-4": 8_192,
    "gpt-3.5": 16_385,
    "gpt-5": 400_000,
    "gpt-oss": 131_072,
    "o1": 200_000,
    "o3": 200_000,
    "o4": 200_000,
    "claude": 200_000,
    "gemini": 1_048_576,
    "llama-3.1": 131_072,
    "llama-3.2": 131_072,
    "llama-3.3": 131_072,
    "llama-4": 1_048_576,
    "qwen2.5": 32_768,
    "qwen3": 32_768,
    "deepseek": 65_536,
    "mistral-large": 131_072,
    "phi-4": 16_384,
    "gemma-3": 131_072,
}
"""Beginning of a model's name, without its owner -> tokens of prompt and reply together, as its maker states them: a server of the
OpenAI protocol does not tell them."""

KEY_CHARS = 8
"""Fewest characters of a key that errors hide. Shorter keys are words such as `none`, for servers of one's own that take any."""


def known_window(model: str) -> int | None:
    """Tokens of the longest prompt and reply of this model; None if its name tells nothing. The longest matching beginning counts.

    A server may be set up for less than its model can do; `--window` says so.
    """
    name = model.lower().rpartition("/")[2]
    found = [start for start in WINDOWS if name.startswith(start)]
    return WINDOWS[max(found, key=len)] if found else None


class OpenAIChatModel(ChatOpenAI):
    """A `ChatOpenAI` that raises a `UserError` if the server, the key, the network or the request is at fault.

    Rate-limited, failed and timed-out requests are retried `max_retries` times, after the pause that the server asks for, or
    after 0.5 s to 60 s, twice as long each time. A parameter that the server refuses by its name is left out from then on
    (tools/models/refused_parameters.py). The original exception is the `__cause__` of the `UserError`. One model may be used from
    many threads and event loops, at once or one after another.
    """

    takes_reply_schema: ClassVar[bool] = True
    """True: a call's option `reply_schema`, a JSON schema, is sent as `response_format`. A server that has none refuses it."""

    _loop_models: dict[asyncio.AbstractEventLoop, ChatOpenAI] = PrivateAttr(default_factory=dict)
    """For requests through the openai client: by event loop, this model with connections of its own."""
    _target: tuple[Any, str, dict[str, str]] | None = PrivateAttr(default=None)
    """The openai client, and the URL and headers it would post with; kept, because computing them takes as long as a request."""

    @property
    def window(self) -> int | None:
        """Tokens of the longest prompt and reply together, as far as the model's name tells them."""
        return known_window(self.model_name)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        tries = (self.max_retries if self.max_retries is not None else openai.DEFAULT_MAX_RETRIES) + 1
        try:
            yield
        except api_posts.QuotaUsedUp as error:
            means = f"the quota is used up ({_one_line(error.reason)}); add credit to the account, or use another key"
            raise UserError(f"{self._location()}: {means}") from error
        except api_posts.HTTPStatusError as error:
            raise self._refusal(error.status, _one_line(error.reason), error.tries) from error
        except api_posts.RequestTimeout as error:
            raise self._unreached(error.tries) from error
        except api_posts.PostFailed as error:
            raise self._unreached(error.tries, _one_line(error.reason)) from error
        except openai.APITimeoutError as error:
            raise self._unreached(tries) from error
        except openai.APIConnectionError as error:
            raise self._unreached(tries, str(error.__cause__ or error)) from error
        except openai.APIStatusError as error:
            raise self._refusal(error.status_code, _server_message(error), tries) from error
        except (openai.APIError, json.JSONDecodeError) as error:
            raise self._format_error(error) from error

    def _unreached(self, tries: int, reason: str = "") -> UserError:
        """The error for a server that cannot be reached; without a reason: that did not answer in time."""
        means = f"cannot be reached, tried {tries} times ({reason}); check the base URL and that a server runs there"
        if not reason:
            means = (
                f"no answer within {self.request_timeout} s, tried {tries} times; set a longer timeout "
                "(--request-timeout SECONDS, or timeout=SECONDS in open_model)"
            )
        return UserError(f"{self._location()}: {means}")

    def _refusal(self, status: int, message: str, tries: int) -> UserError:
        """The error for an HTTP status: what it means and what to do. A server may repeat the key; the error does not."""
        if isinstance(key := self.openai_api_key, SecretStr) and len(key.get_secret_value()) >= KEY_CHARS:
            message = message.replace(key.get_secret_value(), "[key]")
        match status:
            case 401:
                means = f"the key is refused ({message}); set OPENAI_API_KEY to a valid one"
            case 403:
                means = f"the key may not do this ({message}); use a key with access to this model"
            case 404:
                means = f"not found ({message}); name a model that this server has, or a base URL that ends in /v1"
            case 429:
                means = (
                    f"rate-limited {tries} times ({message}); use fewer parallel runs "
                    "(--workers, --concurrency), more retries (--retries N, or max_retries=N in open_model) or a higher quota"
                )
            case 400 | 413 | 422 if is_too_long(message):
                means = (
                    f"the prompt is longer than the model can read ({message}); say how many tokens it reads at once, "
                    "prompt and reply together: --window N, or a smaller N than now"
                )
            case 400 if "logprob" in message:
                means = (
                    f"request refused ({message}); "
                    "this model gives no log-probabilities: use a model that does, or verbalized confidences"
                )
            case 400:
                means = f"request refused ({message}); change what its message names"
            case _:
                again = f", tried {tries} times" if status >= 500 else ""
                means = f"error {status}{again} ({message}); see the server's log, or try again later"
        error = UserError(f"{self._location()}: {means}")
        error.fails_again = status == 400 and ("logprob" in message or is_too_long(message))
        return error

    async def answer(self, messages: Sequence[BaseMessage], **options: Any) -> AIMessage:
        """The reply of `ainvoke`, without the cost of callbacks, cache and rate limiter where none of them is set."""
        if self.cache or self.rate_limiter or self.callbacks or get_llm_cache() is not None:
            return await self.ainvoke(list(messages), **options)
        result = await self._agenerate(list(messages), **options)
        generation = result.generations[0]
        message = cast(AIMessage, generation.message)
        message.response_metadata = {**(result.llm_output or {}), **(generation.generation_info or {})}
        message.id = message.id or f"lc_run--{uuid4()}-0"
        return message

    @override
    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with self._translate_errors():
            schema = kwargs.pop("reply_schema", None)
            if (payload := self._simple_payload(messages, stop, kwargs, schema)) is not None:
                return self._create_chat_result(api_posts.run_in_background(self._post(payload)))
            return super()._generate(messages, stop, run_manager, **kwargs)

    @override
    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with self._translate_errors():
            schema = kwargs.pop("reply_schema", None)
            if (payload := self._simple_payload(messages, stop, kwargs, schema)) is not None:
                return self._create_chat_result(await self._post(payload))
            return await ChatOpenAI._agenerate(self._model_for_loop(), messages, stop, run_manager, **kwargs)

    def _simple_payload(
        self, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, Any], reply_schema: Any = None
    ) -> dict[str, Any] | None:
        """The request's JSON; None if the request needs the openai client, which goes without the schema: it would raise an error
        for a reply that is cut off."""
        is_direct = not (
            self.http_client or self.http_async_client or self.openai_proxy or self.default_query or self._uses_gateway
        )
        needs_client = self.include_response_headers or not isinstance(self.openai_api_key, SecretStr)
        is_plain_timeout = self.request_timeout is None or isinstance(self.request_timeout, int | float)
        if (
            not is_direct
            or needs_client
            or not is_plain_timeout
            or "response_format" in options
            or "response_format" in self.model_kwargs
        ):
            return None
        payload = self._get_request_payload(messages, stop=stop, **options)
        if reply_schema is not None:
            form = {"name": "reply", "strict": True, "schema": reply_schema}
            payload["response_format"] = {"type": "json_schema", "json_schema": form}
        return payload if "messages" in payload and not payload.keys() & {"extra_headers", "extra_query", "timeout"} else None

    async def _post(self, payload: dict[str, Any]) -> Any:
        """The server's answer to a chat request, as JSON values."""
        if extra := payload.pop("extra_body", None):
            payload |= extra
        if self._target is None or self._target[0] is not self.root_async_client:
            client = self.root_async_client
            headers = {**client.default_headers, **client.auth_headers}
            plain_headers = {name: value for name, value in headers.items() if isinstance(value, str)}
            self._target = client, f"{str(client.base_url).rstrip('/')}/chat/completions", plain_headers
        _, url, headers = self._target
        timeout = 600.0 if self.request_timeout is None else float(cast(float, self.request_timeout))
        retries = openai.DEFAULT_MAX_RETRIES if self.max_retries is None else self.max_retries
        refused = refused_by(url, self.model_name)
        while True:
            sent = refused.without(payload)
            try:
                return json.loads(await api_posts.post(url, json.dumps(sent).encode(), headers, timeout, retries))
            except api_posts.HTTPStatusError as error:
                if error.status not in (400, 422) or not refused.note(sent, error, self._location()):
                    raise

    def _model_for_loop(self) -> ChatOpenAI:
        """A copy of this model whose openai client has connections of the running event loop."""
        if self.http_async_client is not None:
            return self
        loop = asyncio.get_running_loop()
        if loop not in self._loop_models:
            for other in [other for other in self._loop_models if other.is_closed()]:
                self._loop_models.pop(other, None)
            client = self.root_async_client.with_options(http_client=openai.DefaultAsyncHttpxClient())
            here = self.model_copy(update={"root_async_client": client, "async_client": client.chat.completions})
            self._loop_models[loop] = here
        return self._loop_models[loop]

    @override
    def _create_chat_result(self, response: Any, generation_info: dict[str, Any] | None = None) -> ChatResult:
        try:
            result = super()._create_chat_result(response, generation_info)
            if isinstance(response, dict):  # LangChain keeps refusals of the openai client only
                for choice, generation in zip(response["choices"], result.generations, strict=True):
                    if refusal := choice["message"].get("refusal"):
                        generation.message.additional_kwargs["refusal"] = refusal
            return result
        except (ValueError, TypeError, KeyError, AttributeError) as error:  # JSON, but no chat completion
            raise self._format_error(error) from error

    def _format_error(self, error: Exception) -> UserError:
        return UserError(
            f"{self._location()}: the answer is not one of the OpenAI chat protocol ({_one_line(str(error))}); "
            "give the base URL of a compatible server, usually ending in /v1"
        )

    def _location(self) -> str:
        return f"model {self.model_name!r} at {self.openai_api_base or 'api.openai.com'}"

    @override
    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        kwargs.pop("reply_schema", None)
        with self._translate_errors():
            yield from super()._stream(*args, **kwargs)

    @override
    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        kwargs.pop("reply_schema", None)
        with self._translate_errors():
            async for chunk in ChatOpenAI._astream(cast(Any, self._model_for_loop()), *args, **kwargs):
                yield chunk


def _server_message(error: openai.APIStatusError) -> str:
    """The message in the body of an error, on one line."""
    body = error.body
    message = body.get("message") if isinstance(body, dict) else None
    return _one_line(str(message or error.message))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
