"""An engine on a vLLM server, or another OpenAI-compatible server that loads and unloads LoRA adapters at runtime.

    VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve Qwen/Qwen3-8B --enable-lora --max-lora-rank 32 --max-loras 4 \\
        --max-cpu-loras 16 --logprobs-mode processed_logprobs \\
        --enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3
    # it must be able to read the versions' folders; the parsers' names depend on the model

    engine = VllmEngine("Qwen/Qwen3-8B", "http://127.0.0.1:8001/v1", base=fingerprint)

Traps of such a server, and what is done about them:

- The server caches keys and values by an adapter's name, so new weights under an old name may answer with the old ones (vLLM
  issues 30931, 42125). Here the name is a version's label, which contains a hash of its contents and is never used again.
- By default log-probabilities are those before temperature and top-p (`raw_logprobs`), not those that a reply was drawn from.
  The engine finds this out at the start; then it refuses replies at another temperature or top_p than 1.
- The server's prefix cache is shared by all who ask it. Each tenant's requests carry a `cache_salt` of its own, a secret that
  ends with this process: neither the time of a reply nor its count of cached tokens tells what other tenants asked.
- Some releases drop tokens of a stream (before pull request 29074: those of tool calls, with their log-probabilities). The count
  that the server bills is compared with what came; where they differ the reply says so (`Reply.flaw`) and nothing is learned from it.
- Without --enable-auto-tool-choice and --tool-call-parser it refuses tools. The engine tries one at the start, and claims `tools`
  only if it was taken.
- A model may think before it replies. Thoughts are switched off in the template (`enable_thinking`) unless they are asked for, and
  are kept apart from the text, with a --reasoning-parser or without.
- An adapter that the server itself has evicted cannot be unloaded (status 500). That is noted, and no error.
- A model's generation_config.json may set top_k and other options. Neutral values are sent with every request.
- On the CPU (vLLM 0.32) the base model beside a version answers with an adapter added (pull requests 48421, 49656): serve one tenant there;
  and a request with a `seed` whose prompt is read in parts ends the server: start it with --no-enable-chunked-prefill.
- `/pause` and `/sleep` stop all clients. Neither is ever called, nor any path that a client could name.
- A version is unloaded when the requests on it have ended, and not before another one is loaded. Versions of the same adapter that an
  engine before this one left on the server (it was killed) are taken over, and so unloaded when nothing needs them.
- A server on another machine sees the versions' folders elsewhere, and a little later (`here`, `there`): a load is tried again until
  `load_timeout`.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from ...memory.conversations.thoughts import split_leading_thought
from ...memory.errors import AdapterError, Unavailable, UserError, VersionNotLoaded, WindowError
from ...memory.records import ChatRequest, Piece, Reply
from ..models.api_posts import run_in_background, server_message

__all__ = ["VllmEngine"]

log = logging.getLogger(__name__)

FEATURES = ("tools", "tool_choice", "response_format", "logit_bias", "presence_penalty", "frequency_penalty", "raw")
TOOL_FEATURES = ("tools", "tool_choice")
PROBE_TOOL = {"type": "function", "function": {"name": "probe", "parameters": {"type": "object", "properties": {}}}}
NEUTRAL_SAMPLING = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Values of options that would change the distribution, at which they do not."""
PROBES = ("The", "Once upon a time", "1 2", "a")
"""Prompts sent at the start to find out the kind of log-probabilities. The first whose answer is not certain decides."""
LOAD_AGAIN_SECONDS = 1.0
"""Seconds between two tries to load a version that the server does not see yet."""
MAX_LINE_BYTES = 1 << 22
"""Longest line of a stream, in bytes."""


def _unavailable(message: str) -> Unavailable:
    """The error for a server that cannot be reached, is overloaded or broke off. Clients are not told where it is or which key
    it wants."""
    return Unavailable(message, "the model's server does not answer just now; try again")


@dataclass
class _Version:
    """A version on the server."""

    label: str
    folder: Path
    ready: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_listed: bool = False
    is_leaving: bool = False
    num_running: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    unload_task: asyncio.Task[None] | None = None
    """The task that unloads it, one for all callers."""


class VllmEngine:
    """A vLLM server as an `Engine` (nodes/learn/chat_turn.py).

    Args:
        model: name of the base model, as the server lists it.
        url: URL of its API, ending in `/v1`.
        base: fingerprint of the base model, by which the service refuses versions of another one; empty: it is not known.
        key: the server's API key; default: VLLM_API_KEY of the environment.
        timeout: longest wait for the next piece of a reply, or for another answer, in seconds.
        load_timeout: longest time that a version may take to load, in seconds.
        thinking: the model thinks before it replies, if it can; thoughts are kept apart.
        here: a folder with all versions.
        there: the folder under which the server, on another machine, sees `here`; empty: under the same path.

    Raises:
        UserError: the server does not answer, does not have the model, or does not return token ids.
    """

    def __init__(
        self,
        model: str,
        url: str,
        base: str = "",
        *,
        key: str | None = None,
        timeout: float = 120.0,
        load_timeout: float = 300.0,
        thinking: bool = False,
        here: Path | None = None,
        there: str = "",
    ) -> None:
        self.model, self.base, self._thinking = model, base, thinking
        self._here, self._there = here, there
        self._url, self._load_timeout = url.rstrip("/"), load_timeout
        self._root = self._url.removesuffix("/v1")
        key = key if key is not None else os.environ.get("VLLM_API_KEY", "")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=timeout)
        self._salt_key = secrets.token_bytes(32)
        self._session: aiohttp.ClientSession | None = None
        self._versions: dict[str, _Version] = {}
        self._closed = False
        self.window, self.has_processed_logprobs, takes_tools = run_in_background(self._inspect_server())
        self.features = frozenset(FEATURES) - (frozenset() if takes_tools else frozenset(TOOL_FEATURES))

    # At the start

    async def _inspect_server(self) -> tuple[int, bool, bool]:
        """The window in tokens, whether log-probabilities are those of the distribution that was sampled from, and whether it takes
        tools."""
        try:
            cards = (await self._json("GET", f"{self._url}/models"))["data"]
            card = next((card for card in cards if card["id"] == self.model), None)
            if card is None:
                raise UserError(f"{self._url} has no model {self.model!r}; it has {[card['id'] for card in cards]}")
            window = int(card.get("max_model_len") or 2**31)
            return window, await self._probe_logprobs_mode(), await self._probe_tools()
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{self._url} does not answer as a vLLM server does: {error!r}") from error
        finally:
            await self._disconnect()  # this event loop ends

    async def _probe_logprobs_mode(self) -> bool:
        """True if log-probabilities are processed: at two temperatures they differ, raw ones do not."""
        for text in PROBES:
            found: list[float] = []
            for temperature in (1.0, 2.0):
                body: dict[str, Any] = {"model": self.model, "prompt": text, "max_tokens": 1, "temperature": temperature}
                body |= {"top_p": 1.0, "logprobs": 1, "seed": 0, "return_token_ids": True} | NEUTRAL_SAMPLING
                choice = (await self._json("POST", f"{self._url}/completions", body))["choices"][0]
                if not choice.get("token_ids") or not choice.get("prompt_token_ids"):
                    raise UserError(
                        f"{self._url} does not return token ids (return_token_ids), without which nothing can be learned from its "
                        "replies; use vLLM 0.10.2 or later"
                    )
                found.append(float(max(choice["logprobs"]["top_logprobs"][0].values())))
            if found[0] < -0.05:
                return abs(found[0] - found[1]) > 1e-4
        log.warning("%s: cannot tell whether log-probabilities are processed; taken as raw", self._url)
        return False

    async def _probe_tools(self) -> bool:
        """True if the server takes tools: it was started with the flags for them."""
        body: dict[str, Any] = {"model": self.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        body |= {"tools": [PROBE_TOOL], "tool_choice": "auto", "chat_template_kwargs": {"enable_thinking": False}}
        try:
            await self._json("POST", f"{self._url}/chat/completions", body, read=False)
        except _RequestRefused as error:
            log.warning(
                "%s takes no tools (%s); start it with --enable-auto-tool-choice --tool-call-parser NAME", self._url, error
            )
            return False
        return True

    # Requests

    async def stream(self, request: ChatRequest, version: str = "", tenant: str = "") -> AsyncIterator[Piece | Reply]:
        """A reply as it grows, and at last as a whole. Closing the iterator ends the generation on the server, too.

        Args:
            request: what is asked.
            version: label of the version that answers; empty: the base model.
            tenant: whose request it is. Tenants share no cached prompts.

        Raises:
            VersionNotLoaded: the version was not loaded.
            WindowError: the prompt leaves no room in the model's window.
            UserError: what the server refuses, in its words; log-probabilities that would not be those sampled from.
            Unavailable: the server is gone, overloaded, or broke off.
        """
        self._check(request)
        async with self._use_version(version) as name:
            body = self._body(request, name) | {"cache_salt": self._cache_salt(tenant)}
            path = "completions" if request.raw is not None else "chat/completions"
            growing = _StreamedReply(version, request.top_logprobs is not None, can_think=request.raw is None)
            again = 2
            while True:
                try:
                    async for event in self._events(f"{self._url}/{path}", body):
                        if (piece := growing.take(event)) is not None:
                            yield piece
                    break
                except _ModelMissing as error:  # the server was restarted
                    if growing.has_begun or not again or version not in self._versions:
                        raise VersionNotLoaded(f"the server has no version {version or self.model!r}: {error}") from error
                    self._versions[version].is_listed = False
                    await self._load_on_server(self._versions[version])
                except _WindowExceeded as error:
                    room = await self._reply_room(request, name)
                    if growing.has_begun or not again or room < 1 or room >= body["max_tokens"]:
                        raise WindowError(str(error)) from error
                    body["max_tokens"] = room  # the reply may fill the rest of the window
                again -= 1
            yield growing.reply()

    def _check(self, request: ChatRequest) -> None:
        sampling = request.sampling
        if self._closed:
            raise _unavailable("the engine is closed")
        bent = sampling.temperature not in (0, 1) or sampling.top_p != 1 or any(request.more.get(name) for name in FEATURES)
        if bent and not self.has_processed_logprobs:
            raise UserError(
                f"temperature {sampling.temperature:g}, top_p {sampling.top_p:g}, penalties and logit_bias need a server that returns "
                "the log-probabilities it draws from (vllm serve --logprobs-mode processed_logprobs); this one returns those "
                "before, and answers at temperature 1 and top_p 1 only"
            )

    def _body(self, request: ChatRequest, name: str) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            **self._prompt(request, name),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **NEUTRAL_SAMPLING,
            **{key: value for key, value in request.more.items() if value is not None},
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if request.raw is not None:
            return body | {"logprobs": request.top_logprobs or 0}
        body |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
        if request.tool_choice is not None and request.tools:
            body["tool_choice"] = request.tool_choice
        if request.response_format is not None:
            body["response_format"] = request.response_format
        return body

    def _prompt(self, request: ChatRequest, name: str) -> dict[str, Any]:
        """The fields that the prompt is made of."""
        if request.raw is not None:
            return {"model": name, "prompt": request.raw}
        tools = {"tools": list(request.tools)} if request.tools else {}
        thinking = {"chat_template_kwargs": {"enable_thinking": self._thinking}}
        return {"model": name, "messages": list(request.messages), **thinking, **tools}

    def _cache_salt(self, tenant: str) -> str:
        """The name of a tenant's part of the server's prefix cache, which nobody can guess."""
        return base64.urlsafe_b64encode(hmac.digest(self._salt_key, tenant.encode(), "sha256")).decode()

    async def _reply_room(self, request: ChatRequest, name: str) -> int:
        """The number of tokens that a reply to this prompt may have."""
        body = self._prompt(request, name)
        if request.raw is None:
            body["add_generation_prompt"] = True
        if request.tool_choice == "none":
            body.pop("tools", None)
        try:
            return self.window - int((await self._json("POST", f"{self._root}/tokenize", body))["count"])
        except (UserError, KeyError, TypeError, ValueError):
            return 0

    # Versions

    def loaded_versions(self) -> tuple[str, ...]:
        """The labels that requests may name."""
        return tuple(label for label, version in self._versions.items() if version.is_listed and not version.is_leaving)

    async def load(self, version: str, folder: Path | str) -> None:
        """Make the server load a version under its label, and check that it is listed. A second call does nothing. A version
        that is being unloaded is loaded again afterwards.

        Raises:
            AdapterError: the version's files are gone, or the server refuses it; nothing else has changed.
            Unavailable: the server does not answer, or says that it has loaded the version and does not list it.
        """
        folder = Path(folder)
        if not version or version == self.model:
            raise AdapterError(f"a version cannot be called {version!r}: that is the base model")
        while (found := self._versions.get(version)) is not None and found.is_leaving:
            await self.unload(version)
        if found is not None and found.folder != folder:
            raise AdapterError(f"version {version} was loaded from another folder; versions do not change, give it a new label")
        if found is None:
            if not (folder / "adapter_config.json").is_file() or not (folder / "adapter_model.safetensors").is_file():
                raise AdapterError(f"version {version}: its folder has no adapter_config.json or no adapter_model.safetensors")
            found = self._versions[version] = _Version(version, folder)
        try:
            await self._load_on_server(found)
        except BaseException:
            if not found.is_listed and not found.num_running:
                self._versions.pop(version, None)
            raise

    async def _load_on_server(self, version: _Version) -> None:
        async with version.ready:
            if version.is_listed:
                return
            path = str(version.folder.resolve())
            if self._there and self._here is not None:
                path = str(Path(self._there, version.folder.resolve().relative_to(self._here.resolve())))
            until = asyncio.get_running_loop().time() + self._load_timeout
            while (refusal := await self._ask_to_load(version.label, path)) is not None:
                if not self._there:
                    raise AdapterError(f"the server does not load version {version.label}: {refusal}") from refusal
                if asyncio.get_running_loop().time() > until:  # a mount or a mirror that is behind, and not the version's fault
                    raise _unavailable(f"the server does not load version {version.label} from {path}: {refusal}") from refusal
                await asyncio.sleep(LOAD_AGAIN_SECONDS)
            cards = await self._fetch_cards()
            if version.label not in cards:
                raise _unavailable(f"the server says that it has loaded version {version.label}, and does not list it")
            version.is_listed = True
            self._take_over(version, cards)

    async def _ask_to_load(self, label: str, path: str) -> _RequestRefused | None:
        """The server's refusal to load a version; None: it has it."""
        limit = aiohttp.ClientTimeout(total=self._load_timeout)
        try:
            body = {"lora_name": label, "lora_path": path}
            await self._json("POST", f"{self._url}/load_lora_adapter", body, limit, read=False)
        except _RequestRefused as error:
            # It may say "already loaded", by an earlier engine: a label always has the same contents.
            return None if label in await self._fetch_cards() else error
        return None

    def _take_over(self, version: _Version, cards: Mapping[str, Any]) -> None:
        """Note versions of the same adapter and the same folder that an engine before this one loaded, so that they can be unloaded.

        By its name alone a version may be another service's, of a tenant with the same name.
        """
        scope, root = version.label.rpartition("@")[0], cards[version.label].get("root")
        for label, card in cards.items():
            place = Path(str(card.get("root") or ""))
            if not (root and scope and label.startswith(f"{scope}@") and place.parent == Path(root).parent):
                continue
            self._versions.setdefault(label, _Version(label, version.folder.with_name(place.name), is_listed=True))

    async def _fetch_cards(self) -> dict[str, dict[str, Any]]:
        """The server's models and adapters by name."""
        return {str(card.get("id")): card for card in (await self._json("GET", f"{self._url}/models")).get("data", [])}

    @asynccontextmanager
    async def _use_version(self, label: str) -> AsyncIterator[str]:
        """The name of a version on the server. It is not unloaded within the block."""
        if not label:
            yield self.model
            return
        version = self._versions.get(label)
        if version is None or version.is_leaving or not version.is_listed:
            raise VersionNotLoaded(f"version {label} is not loaded; there are {list(self.loaded_versions())}")
        version.num_running += 1
        try:
            yield label
        finally:
            version.num_running -= 1
            if not version.num_running:
                version.idle.set()

    async def unload(self, version: str) -> None:
        """Unload a version when the requests on it have ended. New requests are refused at once; unknown labels are ignored.

        A server that cannot unload it (it has evicted the version itself, or is away) is no error: a label is never used again.
        """
        found = self._versions.get(version)
        if found is None:
            return
        found.is_leaving = True
        if found.unload_task is None:
            found.unload_task = asyncio.create_task(self._unload_when_idle(found))
        await asyncio.shield(found.unload_task)

    async def _unload_when_idle(self, version: _Version) -> None:
        while version.num_running:
            version.idle.clear()
            await version.idle.wait()
        try:
            await self._json("POST", f"{self._url}/unload_lora_adapter", {"lora_name": version.label}, read=False)
        except _ModelMissing:
            pass  # it is gone already
        except UserError as error:
            log.warning("version %s was not unloaded, and is not used any more: %s", version.label, error)
        finally:
            self._versions.pop(version.label, None)

    async def vitals(self) -> dict[str, float]:
        """The number of models that the server says it has. Raises `Unavailable`: it does not answer."""
        return {"models": len(await self._fetch_cards())}

    async def close(self) -> None:
        """Close the connections. Versions stay on the server, for the next engine."""
        self._closed = True
        await self._disconnect()

    async def _disconnect(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # The wire

    def _connection(self) -> aiohttp.ClientSession:
        if self._session is None:
            # The server closes an idle connection after 5 s; a request that is sent just then would fail.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
            self._session = aiohttp.ClientSession(
                connector=connector, headers=self._headers, timeout=self._timeout, read_bufsize=MAX_LINE_BYTES
            )
        return self._session

    async def _json(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None = None,
        timeout: aiohttp.ClientTimeout | None = None,
        *,
        read: bool = True,
    ) -> Any:
        try:
            async with self._connection().request(method, url, json=body, timeout=timeout or self._timeout) as response:
                content = await response.read()
                _raise_for_status(response.status, content)
                return json.loads(content) if read else None
        except TimeoutError as error:
            raise _unavailable(f"{self._url} does not answer in time") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _unavailable(f"{self._url} cannot be reached: {error}") from error

    async def _events(self, url: str, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The objects of an SSE stream, to its `[DONE]`."""
        try:
            async with self._connection().post(url, json=body) as response:
                if response.status >= 400:
                    _raise_for_status(response.status, await response.read())
                async for line in response.content:
                    text = line.strip()
                    if not text.startswith(b"data:"):
                        continue
                    text = text[5:].strip()
                    if text == b"[DONE]":
                        return
                    event = json.loads(text)
                    if "error" in event:
                        _raise_for_status(int(event["error"].get("code") or 500), text)
                    yield event
        except TimeoutError as error:
            raise _unavailable(f"{self._url} has stopped answering in the middle of a reply") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _unavailable(f"{self._url} broke off: {error}") from error
        raise _unavailable(f"{self._url} broke off in the middle of a reply")


# Answers


class _RequestRefused(UserError):
    """The server refused the request as wrong."""


class _ModelMissing(_RequestRefused):
    """The server has no such model."""


class _WindowExceeded(_RequestRefused):
    """The prompt and the reply do not fit the server's window."""


def _raise_for_status(status: int, content: bytes) -> None:
    """Raise the server's error: a wrong request in the server's words, anything else as `Unavailable`."""
    if status < 400:
        return
    text = server_message(content).strip()[:500]
    if status in (401, 403):
        raise _unavailable(f"the vLLM server refuses the key (status {status}); set VLLM_API_KEY")
    if status == 404:
        raise _ModelMissing(text)
    if status in (400, 413, 422):
        long = any(phrase in text.lower() for phrase in ("maximum context length", "max_model_len", "max_tokens is too large"))
        raise (_WindowExceeded if long else _RequestRefused)(text)
    raise _unavailable(f"the vLLM server answers with status {status}: {text}")


class _StreamedReply:
    """A reply that grows with the server's events."""

    def __init__(self, version: str, shown: bool, can_think: bool) -> None:
        self.version, self.shows_logprobs, self.has_begun = version, shown, False
        self.text = ""
        """What may be shown so far."""
        self.thoughts = ""
        self._content = ""  # with thoughts, where the server has no parser for them
        self._can_think = can_think
        self._count: int | None = None  # of the reply's tokens, as the server bills them
        self.prompt: list[int] = []
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.calls: dict[int, dict[str, Any]] = {}
        self.finish = ""
        self.cached = 0

    def take(self, event: Mapping[str, Any]) -> Piece | None:
        """Add an event; returns the piece to show, if there is one."""
        usage = event.get("usage") or {}
        self.cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or self.cached)
        if usage.get("completion_tokens") is not None:
            self._count = int(usage["completion_tokens"])
        self.prompt = list(event.get("prompt_token_ids") or self.prompt)
        for choice in event.get("choices") or ():
            self.has_begun = True
            self.prompt = list(choice.get("prompt_token_ids") or self.prompt)
            self.tokens += choice.get("token_ids") or ()
            delta = choice.get("delta")
            # Its name is `reasoning` now and was `reasoning_content`.
            self.thoughts += str((delta or {}).get("reasoning") or (delta or {}).get("reasoning_content") or "")
            text = self._visible(str((choice.get("text") if delta is None else delta.get("content")) or ""))
            entries = _entries(choice.get("logprobs"))
            self.logprobs += [min(0.0, float(entry["logprob"])) for entry in entries]
            for call in (delta or {}).get("tool_calls") or ():
                self._call(call)
            self.finish = choice.get("finish_reason") or self.finish
            is_thought = not text and not self.text and not self.finish
            if text or (entries and self.shows_logprobs and not is_thought):
                return Piece(text, tuple(entries) if self.shows_logprobs else ())
        return None

    def _visible(self, more: str, is_finished: bool = False) -> str:
        """The text that may be shown now, given more content."""
        self._content += more
        if not self._can_think:
            self.text += more
            return more
        thought, rest = split_leading_thought(self._content, is_finished=is_finished)
        if thought:
            self.thoughts = thought
        new = (rest or "")[len(self.text) :]
        self.text += new
        return new

    def _call(self, part: Mapping[str, Any]) -> None:
        blank = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = self.calls.setdefault(int(part.get("index", 0)), blank)
        call["id"] = part.get("id") or call["id"]
        function = part.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""

    def reply(self) -> Reply:
        if not self.finish:
            raise _unavailable("the vLLM server ended a reply without a finish reason")
        self._visible("", is_finished=True)
        flaw = self._flaw()
        if flaw:  # the reply is served all the same
            log.warning("nothing can be learned from a reply: %s", flaw)
        return Reply(
            self.text,
            tuple(self.prompt),
            tuple(self.tokens),
            () if flaw else tuple(self.logprobs),
            finish=self.finish,
            tool_calls=tuple(call for _, call in sorted(self.calls.items())),
            version=self.version,
            cached=self.cached,
            thoughts=self.thoughts,
            flaw=flaw,
        )

    def _flaw(self) -> str:
        """Reason why nothing can be learned from the reply; empty: there is none."""
        if not self.tokens or not self.prompt:
            return "the vLLM server sent no token ids with it"
        if len(self.logprobs) != len(self.tokens):
            return f"the vLLM server sent {len(self.logprobs)} log-probabilities for its {len(self.tokens)} tokens"
        if self._count is not None and self._count != len(self.tokens):
            return (
                f"the vLLM server made {self._count} tokens and sent {len(self.tokens)} of them; a newer release may send all"
            )
        return ""


def _entries(logprobs: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Log-probabilities in the shape of chat completions, from either that shape or that of text completions."""
    if not logprobs:
        return []
    if "content" in logprobs:
        return [
            {name: entry.get(name) for name in ("token", "logprob", "bytes", "top_logprobs")}
            for entry in logprobs["content"] or ()
        ]
    tops = logprobs.get("top_logprobs") or [None] * len(logprobs.get("tokens") or ())
    return [
        {"token": token, "logprob": value, "bytes": list(token.encode())}
        | {"top_logprobs": [{"token": t, "logprob": v, "bytes": list(t.encode())} for t, v in (top or {}).items()]}
        for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], tops, strict=True)
    ]
