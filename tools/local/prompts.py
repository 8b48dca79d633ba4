"""Prompts as tokens, made in a thread of their own: a long prompt takes seconds, for which the event loop must not wait.

prompts = PromptTokenizer(model)
async with prompts.tokenize(request) as ids: ...
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from threading import Lock

from ...memory.errors import UserError, WindowError
from ...memory.records import ChatRequest
from .chats import openai_turn
from .model import LocalChatModel

__all__ = ["PromptTokenizer"]


@dataclass
class _Prompt:
    request: ChatRequest
    ids: Future[list[int]] = field(default_factory=Future)
    users: int = 0


class PromptTokenizer:
    """A tokenizer for the prompts of a model's requests. A prompt with too many characters for the window is refused
    untokenised.

    Args:
        model: provides the chat template and the tokenizer.
    """

    def __init__(self, model: LocalChatModel) -> None:
        self._model = model
        # In all usual kinds of vocabulary, a token has at most as many characters as its name.
        self._longest = max(map(len, model.tokenizer.get_vocab()), default=1)
        self._thread = ThreadPoolExecutor(1, "tokens")
        self._lock = Lock()
        self._shared: dict[tuple[int, ...], _Prompt] = {}
        self._queues: OrderedDict[str, deque[_Prompt]] = OrderedDict()  # by tenant; the one whose turn is next stands first
        self.num_tokenized = 0
        """Number of prompts that were tokenised."""

    @asynccontextmanager
    async def tokenize(self, request: ChatRequest, tenant: str = "") -> AsyncIterator[list[int]]:
        """The prompt's token ids. Simultaneous requests with the same messages (the choices of one) share the work. Tenants take
        turns.

        Raises:
            WindowError: the prompt leaves no room for a reply.
            UserError: the messages cannot be rendered, or there are none.
            RuntimeError: the tokenizer is closed.
        """
        # By identity: the objects cannot be freed while the entry holds them.
        key = (id(request.messages), id(request.tools), id(request.raw), int(request.tool_choice == "none"))
        with self._lock:
            found = self._shared.get(key)
            if found is None:
                self._thread.submit(self._tokenize_next)
                found = self._shared[key] = _Prompt(request)
                self._queues.setdefault(tenant, deque()).append(found)
            found.users += 1
        try:
            yield await asyncio.shield(asyncio.wrap_future(found.ids))
        finally:
            with self._lock:
                found.users -= 1
                if not found.users:
                    del self._shared[key]
                    found.ids.cancel()

    def _tokenize_next(self) -> None:
        """Tokenise one prompt of the tenant whose turn it is, in the thread."""
        with self._lock:
            tenant, queue = self._queues.popitem(last=False)
            prompt = queue.popleft()
            if queue:
                self._queues[tenant] = queue
        if not prompt.ids.set_running_or_notify_cancel():
            return
        try:
            prompt.ids.set_result(self._tokens(prompt.request))
        except BaseException as error:
            prompt.ids.set_exception(error)

    def _tokens(self, request: ChatRequest) -> list[int]:
        """The prompt's token ids, in the thread. Errors do not name the model's folder."""
        model, window = self._model, self._model.window
        try:
            if request.raw is not None:
                text = request.raw
            elif request.messages:
                offered = () if request.tool_choice == "none" else request.tools
                text = model.template.render([openai_turn(message) for message in request.messages], reply=True, tools=offered)
            else:
                raise UserError("asked with no messages; give at least one")
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
            raise UserError("a completion needs a prompt of at least one token; the text was empty")
        if len(ids) >= window:
            raise WindowError(
                f"a prompt of {len(ids)} tokens does not fit the window of {window}; send fewer or shorter messages", len(ids)
            )
        return ids

    def close(self) -> None:
        """Wait for prompts that are being tokenised, and end the thread."""
        self._thread.shutdown()
