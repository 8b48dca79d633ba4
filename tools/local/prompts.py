"""Prompts as tokens, made beside the event loop: a long one takes seconds, and nobody else shall wait for it.

prompts = Prompts(model)
async with prompts.of(request) as ids: ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from threading import Lock

from ...memory.errors import UserError, WindowError
from ...memory.records import ChatRequest
from .chats import openai_turn
from .model import LocalChatModel

__all__ = ["PromptTokenizer"]


@dataclass
class _Prompt:
    request: ChatRequest
    ids: Future[list[int]]
    users: int = 0


class PromptTokenizer:
    """The prompts of a model's requests. What cannot fit the window by its characters is refused before it is tokenised.

    Args:
        model: its template and tokenizer are used in a thread of their own.
    """

    def __init__(self, model: LocalChatModel) -> None:
        self._model = model
        # No token stands for more characters than its own text has, in any of the usual spellings of vocabularies.
        self._longest = max(map(len, model.tokenizer.get_vocab()), default=1)
        self._thread = ThreadPoolExecutor(1, "tokens")
        self._lock = Lock()
        self._shared: dict[tuple[int, ...], _Prompt] = {}
        self.num_tokenized = 0
        """Prompts that were tokenised."""

    @asynccontextmanager
    async def tokenize(self, request: ChatRequest) -> AsyncIterator[list[int]]:
        """The prompt's tokens. Requests that are under way at once and have the same messages (the choices of one) share them.

        Raises:
            WindowError: they leave no room for a reply.
            UserError: the messages cannot be rendered, or there are none.
            RuntimeError: it is closed.
        """
        # Of the objects themselves, which cannot be freed while they are in there.
        key = (id(request.messages), id(request.tools), id(request.raw), int(request.tool_choice == "none"))
        with self._lock:
            found = self._shared.get(key)
            if found is None:
                found = self._shared[key] = _Prompt(request, self._thread.submit(self._tokens, request))
            found.users += 1
        try:
            yield await asyncio.shield(asyncio.wrap_future(found.ids))
        finally:
            with self._lock:
                found.users -= 1
                if not found.users:
                    del self._shared[key]
                    found.ids.cancel()

    def _tokens(self, request: ChatRequest) -> list[int]:
        """In the thread. Errors do not say where the model lies."""
        model, window = self._model, self._model.window
        try:
            if request.raw is not None:
                text = request.raw
            elif request.messages:
                offered = () if request.tool_choice == "none" else request.tools
                text = model.render_chat([openai_turn(message) for message in request.messages], reply=True, tools=offered)
            else:
                raise UserError("asked with no messages; one message at least would do")
        except UserError as error:
            raise UserError(str(error).replace(model.model, "this model")) from error
        if len(text) > window * self._longest:
            least = -(-len(text) // self._longest)
            raise WindowError(
                f"a prompt of {len(text)} characters does not fit the window of {window} tokens; send fewer or shorter messages",
                least,
            )
        self.num_tokenized += 1
        ids = model.get_token_ids(text)
        if not ids:
            raise UserError("a completion needs a prompt of one token at least; an empty text came")
        if len(ids) >= window:
            raise WindowError(
                f"a prompt of {len(ids)} tokens does not fit the window of {window}; send fewer or shorter messages", len(ids)
            )
        return ids

    def close(self) -> None:
        """Wait for the prompts that are being made."""
        self._thread.shutdown()
