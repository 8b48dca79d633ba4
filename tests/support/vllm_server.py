"""A server on 127.0.0.1 that mimics vLLM's OpenAI API with runtime LoRA, its traps included. Its "model" knows ten words.

with VllmServer(logprobs_mode="raw_logprobs") as server:
    server.url       # base URL, ending in /v1
    server.requests  # (path, JSON body) in order

What a reply is drawn from depends on the prompt and on the adapter's contents, so that whoever answers can be told apart:
`distribution(prompt, contents)`. Traps: KV caches kept by the adapter's name (a same-name reload answers with the old weights),
raw log-probabilities by default, a generation config with top_k 2, unload of what is not there is a 404 and of what its LRU has
evicted a 500, loads that fail or take their time, streams that break off or lack tokens, a restart that forgets the adapters, no
tools without their flags, thoughts in front of replies.
"""

import asyncio
import hashlib
import json
import math
import random
import threading
from pathlib import Path
from typing import Any

from aiohttp import web
from app_in_thread import AppInThread
from waiting import let_others_run

WORDS = ["north", "south", "east", "west", "take", "drop", "open", "read", "wait", "look"]
END = 0
"""The token that ends a turn; words have the ids from 1."""
BASE = ""
"""Contents of no adapter."""


def distribution(prompt: str, contents: str, temperature: float = 1.0, top_k: int = -1) -> list[float]:
    """Probabilities of the words, which are those of every token of a reply."""
    draw = random.Random(f"{prompt}/{contents}")
    logits = [draw.gauss(0, 2) for _ in WORDS]
    if temperature == 0:
        return [float(logit == max(logits)) for logit in logits]
    if top_k > 0:
        least = sorted(logits)[-top_k]
        logits = [logit if logit >= least else -math.inf for logit in logits]
    weights = [math.exp(logit / temperature) for logit in logits]
    return [weight / sum(weights) for weight in weights]


class VllmServer(AppInThread):
    """`window` in tokens (a word is one). `breaks`: after how many tokens a stream of the next requests breaks off."""

    def __init__(self, logprobs_mode: str = "raw_logprobs", window: int = 64, key: str = "") -> None:
        self.mode, self.window, self.key = logprobs_mode, window, key
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.adapters: dict[str, str] = {}
        self.roots: dict[str, str] = {}
        """The path that each adapter was loaded from."""
        self.caches: dict[tuple[str, str, str], str] = {}
        """(salt, adapter's name, prompt) -> contents that the keys and values were computed with."""
        self.token_ids = True
        self.load_status, self.loads, self.lists = 200, threading.Event(), True
        self.loads.set()  # cleared, loading takes until it is set again
        self.breaks: list[int] = []
        self.drops: list[int] = []
        """Tokens that the next streams leave out, with their log-probabilities."""
        self.takes_tools = True
        self.evicted: set[str] = set()
        """Adapters that are listed still, and are not in the engine."""
        self.thought = ""
        """A thought before each reply: words."""
        self.parser = ""
        """Field of a thought in a stream's deltas; empty: there is no parser, and thoughts stand in the content."""
        self.pause = 0.0
        """Seconds between two tokens."""
        self.running = 0
        super().__init__()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.requests]

    def restart(self) -> None:
        """Adapters loaded at runtime are gone."""
        self.adapters.clear()
        self.caches.clear()

    def make_app(self) -> web.Application:
        app = web.Application(middlewares=[self._note])
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/load_lora_adapter", self._load)
        app.router.add_post("/v1/unload_lora_adapter", self._unload)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/tokenize", self._tokenize)
        return app

    @web.middleware
    async def _note(self, request: web.Request, handler: Any) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else {}
        self.requests.append((request.path, body))
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return _error(401, "Unauthorized")
        response: web.StreamResponse = await handler(request)
        return response

    async def _models(self, request: web.Request) -> web.Response:
        cards = [{"id": "base", "max_model_len": self.window}]
        cards += [{"id": name, "parent": "base", "root": self.roots[name]} for name in self.adapters if self.lists]
        return web.json_response({"object": "list", "data": cards})

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        while not self.loads.is_set():
            await let_others_run()
        name, folder = body["lora_name"], Path(body["lora_path"])
        if self.load_status != 200:
            return _error(self.load_status, "No adapter found, or no memory for it")
        if name in self.adapters:
            return _error(400, f"The lora adapter '{name}' has already been loaded.")
        weights = folder / "adapter_model.safetensors"
        if not weights.exists():
            return _error(404, f"No adapter found for '{folder}'")
        self.roots[name] = body["lora_path"]
        self.adapters[name] = hashlib.sha256(weights.read_bytes()).hexdigest()
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        if name in self.evicted:
            return _error(500, f"Failed to remove lora adapter '{name}' from the engine.")
        if self.adapters.pop(name, None) is None:
            return _error(404, f"The lora adapter '{name}' cannot be found.")
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        count = len(_prompt(body).split())
        return web.json_response({"count": count, "max_model_len": self.window, "tokens": list(range(count))})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, await request.json(), chat=True)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, await request.json(), chat=False)

    async def _answer(self, request: web.Request, body: dict[str, Any], chat: bool) -> web.StreamResponse:
        name, prompt = body["model"], _prompt(body)
        if name != "base" and name not in self.adapters:
            return _error(404, f"The model `{name}` does not exist.")
        if body.get("tools") and body.get("tool_choice", "auto") == "auto" and not self.takes_tools:
            return _error(400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
        size, longest = len(prompt.split()), body.get("max_tokens", 16)
        if size + longest > self.window:
            return _error(
                400,
                f"This model's maximum context length is {self.window} tokens. However, you requested {size + longest} tokens "
                f"({size} in the messages, {longest} in the completion). Please reduce the length.",
            )
        if body.get("temperature", 1.0) < 0:
            return _error(400, "temperature must be non-negative")
        key = (str(body.get("cache_salt", "")), name, prompt)
        cached = size if key in self.caches else 0
        contents = self.caches.setdefault(key, self.adapters.get(name, BASE))  # the trap: by name
        entries = self._draw(prompt, contents, body)
        if not body.get("stream"):
            return web.json_response(_whole(entries, body, size))
        return await self._stream(request, entries, body, size, cached, chat)

    def _draw(self, prompt: str, contents: str, body: dict[str, Any]) -> list[tuple[int, float, dict[str, float]]]:
        """(token, log-probability, alternatives) of a reply of three words and the end of the turn."""
        temperature, draw = body.get("temperature", 1.0), random.Random(body.get("seed"))
        sampled = distribution(prompt, contents, temperature, body.get("top_k", 2))
        told = sampled if self.mode == "processed_logprobs" else distribution(prompt, contents)
        tops = {word: math.log(p) for word, p in zip(WORDS, told, strict=True) if p > 0}
        found = []
        for _ in range(min(3, body.get("max_tokens", 16))):
            word = draw.choices(range(len(WORDS)), sampled)[0]
            found.append((word + 1, math.log(told[word]), tops))
        if len(found) < body.get("max_tokens", 16):
            found.append((END, 0.0, {"<end>": 0.0}))
        return found

    async def _stream(
        self,
        request: web.Request,
        entries: list[tuple[int, float, dict[str, float]]],
        body: dict[str, Any],
        size: int,
        cached: int,
        chat: bool,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        self.running += 1
        breaks = self.breaks.pop(0) if self.breaks else None
        dropped = self.drops.pop(0) if self.drops else None
        thoughts = self._thoughts(body) if chat else []
        try:
            prompt = list(range(size))
            for n, (field_, text) in enumerate(thoughts):
                entry = {"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}
                choice: dict[str, Any] = {"index": 0, "delta": {field_: text}, "logprobs": {"content": [entry]}}
                event: dict[str, Any] = {"choices": [choice | {"token_ids": [100 + n]}]}
                await response.write(f"data: {json.dumps(event)}\n\n".encode())
            for n, (token, logp, tops) in enumerate(entries):
                if n == breaks:
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                text = "" if token == END else (" " if n else "") + WORDS[token - 1]
                last = n == len(entries) - 1
                finish = ("stop" if token == END else "length") if last else None
                if n == dropped:
                    continue
                choice = {"index": 0, "finish_reason": finish}
                if self.token_ids:
                    choice["token_ids"] = [token]
                if chat:
                    choice["delta"] = {"content": text}
                    alternatives = [{"token": w, "logprob": p, "bytes": None} for w, p in tops.items()]
                    entry = {"token": text, "logprob": logp, "bytes": list(text.encode())}
                    entry["top_logprobs"] = alternatives[: body.get("top_logprobs") or 0]
                    choice["logprobs"] = {"content": [entry]}
                else:
                    choice["text"] = text
                    choice["logprobs"] = {"tokens": [text], "token_logprobs": [logp], "top_logprobs": [tops]}
                event = {"choices": [choice]}
                if n == 0 and self.token_ids:
                    event["prompt_token_ids"] = prompt
                await response.write(f"data: {json.dumps(event)}\n\n".encode())
                await asyncio.sleep(self.pause)
            count = len(entries) + len(thoughts)
            usage = {"prompt_tokens": size, "completion_tokens": count, "prompt_tokens_details": {"cached_tokens": cached}}
            await response.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode())
        finally:
            self.running -= 1
        return response

    def _thoughts(self, body: dict[str, Any]) -> list[tuple[str, str]]:
        """The (field, text) of the tokens of a thought, unless the template's switch is off."""
        if not self.thought or not (body.get("chat_template_kwargs") or {}).get("enable_thinking", True):
            return []
        words = [f"{word} " for word in self.thought.split()]
        if self.parser:
            return [(self.parser, word) for word in words]
        return [("content", part) for part in ("<thi", "nk>\n", *words, "</think>", "\n\n")]


def _prompt(body: dict[str, Any]) -> str:
    return str(body["prompt"]) if "prompt" in body else " ".join(str(message.get("content")) for message in body["messages"])


def _whole(entries: list[tuple[int, float, dict[str, float]]], body: dict[str, Any], size: int) -> dict[str, Any]:
    """A completion in one piece, as the probes at the start ask for it."""
    words = ["" if token == END else WORDS[token - 1] for token, _, _ in entries]
    best = [
        dict(sorted(tops.items(), key=lambda item: -item[1])[: max(1, body.get("logprobs") or 0)]) for _, _, tops in entries
    ]
    told = {"tokens": words, "token_logprobs": [logp for _, logp, _ in entries], "top_logprobs": best}
    choice = {"index": 0, "text": " ".join(words), "finish_reason": "length", "logprobs": told}
    if body.get("return_token_ids"):
        choice |= {"token_ids": [token for token, _, _ in entries], "prompt_token_ids": list(range(size))}
    return {"choices": [choice]}


def _error(status: int, message: str) -> web.Response:
    return web.json_response(
        {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}, status=status
    )
