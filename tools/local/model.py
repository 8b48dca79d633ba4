"""A chat model in this process: any causal transformers checkpoint, with exact scores of whole replies.

Besides chatting (streaming, stop sequences, log-probabilities), it says how probable each of several actions is as the reply.
`LocalChatModel.score` reads all of them in one pass: the replies form a token trie, whose nodes are fed as one sequence under a
mask that lets every node see only the prompt and its own ancestors. The prompt's keys and values stay cached between calls, so
that a prompt that grows step by step costs only its new tokens.
"""

import inspect
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import AliasChoices, Field, PrivateAttr
from transformers.cache_utils import DynamicCache, DynamicLayer
from typing_extensions import override

from ...memory.errors import UserError, WindowError
from ...memory.records import ChatRequest, Sampling
from .chats import calls_as_text, langchain_turn, openai_turn, read_choice
from .grammar import Grammar, GrammarFactory, open_grammar_factory
from .prefixes import Prefix, Prefixes
from .replies import StreamingDecoder, read_calls
from .sampling import Draw, SampledToken, make_draw, sample_tokens
from .scoring_run import OptionScores, scoring_run
from .template import ChatTemplate
from .token_trie import MASK_VALUE, make_trie, split_replies

__all__ = ["LocalChatModel", "ModelUsage"]

MAX_FUSED_TOKENS = 384
"""Most new prompt tokens that share a pass with the replies, under one dense mask. More are cheaper in a causal pass of their
own, which needs no mask (tests/performance/bench_scoring.py)."""

CALL_OPTIONS = ("temperature", "top_p", "max_tokens", "max_new_tokens", "seed", "logprobs", "top_logprobs")


@dataclass
class ModelUsage:
    """Counts of tokens and passes since a model was loaded, or since the caller set a new `ModelUsage`."""

    prompt_tokens: int = 0
    """Tokens of all prompts, cached or not."""
    prefilled_tokens: int = 0
    """The prompts' tokens that were not in the cache."""
    reply_tokens: int = 0
    """Tokens fed for scoring: nodes of the token tries."""
    generated_tokens: int = 0
    forward_passes: int = 0
    """Passes through the network."""


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Within the block, transformers shows no progress bars."""
    from transformers.utils import logging as bars

    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()  # type: ignore[no-untyped-call]


def hub_answers() -> bool:
    """True if the hub can be reached, or lies behind a proxy: without a network its client would try each file for a minute."""
    hub = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        if not getproxies():
            socket.create_connection((hub.hostname or "", hub.port or 443), timeout=5).close()
    except OSError:
        return False
    return True


class LocalChatModel(BaseChatModel):
    """A transformers causal language model as a LangChain chat model, with `score` for whole replies.

    Two calls with the same messages and the same `seed` give the same reply; the global random generator is not used. The
    reply's `response_metadata` has `token_ids` (as sampled, the end of turn included), `sampled_logprobs` (of the distribution
    sampled from) and `model_logprobs` (of the model's own), one number a token, in nats; and, when called or bound with
    `logprobs=True`, `logprobs` in the shape of OpenAI's API. A call may override `temperature`, `top_p`, `max_tokens`, `seed`,
    `logprobs`, `top_logprobs` and `stop`.

    It calls tools (`bind_tools`), so it can be an agent's model. A scoring is a run of a chat model to callbacks and tracers, as
    a reply is; its message is the most probable option.

    Raises `UserError` for a checkpoint that cannot be loaded, messages that are not text or that the chat template refuses,
    and prompts that do not fit the window.
    """

    model: str
    """Folder of a checkpoint, or its name on the Hugging Face hub."""
    device: str = "cpu"
    """Device, as torch names it: `cpu`, `cuda`, `cuda:1`, `mps`."""
    dtype: str = "float32"
    """Number format. In bfloat16 scores change by about 0.02 nats with the other options in the pass; float32 is exact to
    1e-5."""
    temperature: float = 1.0
    """0 takes the most probable token; 1 samples from the model's own distribution."""
    top_p: float = 1.0
    """Samples from the fewest most probable tokens whose probabilities reach this sum."""
    max_new_tokens: int = Field(default=256, validation_alias=AliasChoices("max_new_tokens", "max_tokens"))
    """Longest reply, in tokens."""
    seed: int | None = None
    """Seed of each call's random generator; None: a new one for each call."""
    stop: list[str] | None = None
    """Texts that end a reply and are not part of it."""
    threads: int | None = None
    """Number of torch's threads, for the whole process; None: torch's own setting."""
    thinking: bool | None = None
    """`enable_thinking` of the chat template, for templates that have it (Qwen3); None leaves it to the template."""
    max_prefixes: int = Field(default=4, ge=1)
    """Prompts whose keys and values are kept between calls. An agent that alternates between two kinds of prompt needs two."""

    usage: ModelUsage = Field(default_factory=ModelUsage, exclude=True, repr=False)
    """Counts of tokens and passes."""
    seeded: ClassVar[bool] = True
    """True: calls take a `seed`, and the same messages and seed give the same reply."""

    _network: Any = PrivateAttr()
    _tokenizer: Any = PrivateAttr()
    _window: int = PrivateAttr()
    _tree: bool = PrivateAttr()
    _template: ChatTemplate = PrivateAttr()
    _prefixes: Prefixes = PrivateAttr()
    _fingerprint: tuple[int, str] | None = PrivateAttr(default=None)
    _lock: Any = PrivateAttr(default_factory=threading.RLock)

    @override
    def model_post_init(self, context: Any, /) -> None:
        import transformers

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        dtype = getattr(torch, self.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise UserError(f"dtype {self.dtype!r} is not a torch dtype; use float32, bfloat16 or float16")
        try:
            with without_progress_bars():
                here: Any = {"local_files_only": not Path(self.model).exists() and not hub_answers()}
                self._tokenizer = transformers.AutoTokenizer.from_pretrained(self.model, **here)
                network: Any = transformers.AutoModelForCausalLM.from_pretrained(self.model, dtype=dtype, **here)
            self._network = network.to(self.device).eval()
        except (OSError, ValueError, RuntimeError, AssertionError, ImportError) as error:
            reason = str(error).strip().split("\n")[0]
            raise UserError(
                f"model {self.model!r} cannot be loaded on {self.device}: {reason} "
                "(give a folder with config.json, weights and tokenizer.json, or a causal model's name on the hub)"
            ) from error
        config = network.config.get_text_config(decoder=True)
        self._window = int(getattr(config, "max_position_embeddings", None) or 2**31)
        self._tree = self._can_share_a_pass()
        self._prefixes = Prefixes(network.config, self._tree, self.max_prefixes)
        ends = [self._tokenizer.eos_token_id, getattr(network.generation_config, "eos_token_id", None)]
        end_ids = frozenset(i for end in ends for i in (end if isinstance(end, list) else [end]) if isinstance(i, int))
        self._template = ChatTemplate(self.model, self._tokenizer, end_ids, self.thinking)

    def _can_share_a_pass(self) -> bool:
        """True if replies can share a pass and prompts a cache: full attention in all layers, and positions from outside.

        Sliding-window and recurrent layers forget, so their caches cannot be cut back; models that derive positions from
        the order of tokens cannot place a trie's nodes.
        """
        layers = DynamicCache(config=self._network.config).layers
        positions = "position_ids" in inspect.signature(self._network.forward).parameters
        masks = self._network.config._attn_implementation in ("sdpa", "eager")
        return positions and masks and all(type(layer) is DynamicLayer for layer in layers)

    @property
    def network(self) -> Any:
        """The `PreTrainedModel` itself. Call `clear_cache` after changing its weights."""
        return self._network

    @property
    def tokenizer(self) -> Any:
        """The checkpoint's tokenizer."""
        return self._tokenizer

    @property
    def template(self) -> ChatTemplate:
        """The tokenizer with its chat template."""
        return self._template

    @property
    def window(self) -> int:
        """Longest prompt and reply together, in tokens."""
        return self._window

    @property
    def can_share_passes(self) -> bool:
        """True if sequences can share a pass, and prompts a cache: full attention in all layers."""
        return self._tree

    @property
    def bytes_per_token(self) -> int:
        """Memory for a token's keys and values in all layers."""
        config = self.network.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return int(2 * config.num_hidden_layers * heads * width * self.network.dtype.itemsize)

    def clear_cache(self) -> None:
        """Drop all cached keys and values, after a change of the weights."""
        self._prefixes.clear()

    # Text to tokens

    @override
    def get_token_ids(self, text: str) -> list[int]:
        """Token ids of a text as it is."""
        return self._template.encode(text)

    def prompt_ids(self, messages: Sequence[BaseMessage]) -> list[int]:
        """Token ids of the messages through the chat template, up to where the reply begins."""
        return self._prompt(self._turns(messages))

    def chat_ids(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Token ids of a chat in OpenAI's shape through the chat template, up to where the reply begins.

        `messages` have `role` and `content` (a text, text parts, or None) and may have `tool_calls`, `tool_call_id` and
        `name`; `tools` are functions in OpenAI's shape, which the template must know how to write. The arguments of tool
        calls go to the template as objects, which is what templates expect.
        """
        return self._prompt([openai_turn(message) for message in messages], tools)

    def _turns(self, messages: Sequence[BaseMessage], tools: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
        """Messages as the chat template takes them. One that knows no tools gets them, their calls and results as text."""
        turns = [langchain_turn(message) for message in messages]
        has_calls = bool(tools) or any(turn["role"] == "tool" or "tool_calls" in turn for turn in turns)
        return calls_as_text(turns, tools) if has_calls and not self._template.writes_calls else turns

    def _prompt(self, turns: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        if not turns:
            raise UserError(f"{self.model}: asked with no messages; give at least one")
        ids = self._template.encode(self._template.render(turns, reply=True, tools=tools))
        if len(ids) >= self._window:
            raise WindowError(
                f"{self.model}: prompt of {len(ids)} tokens does not fit its window of {self._window}; "
                "send fewer or shorter messages",
                len(ids),
            )
        return ids

    def reply_ids(self, text: str) -> tuple[int, ...]:
        """Token ids of `text` as a whole assistant reply, end of turn included; see `ChatTemplate.reply_ids`."""
        return self._template.reply_ids(text)

    # Scores

    def score(self, messages: Sequence[BaseMessage], options: Sequence[str]) -> OptionScores:
        """Log-probability in nats (<= 0) of each option as the whole assistant reply, end of turn included.

        Equal to the sum of the token log-probabilities that a separate pass over prompt and option would give (within
        1e-4 in float32), but all options share one pass. Returns one number per option, in their order. They are
        comparable as they are: a longer option is not penalised beyond its own probability, and "go" and "go north"
        exclude each other through the end of turn.

        Raises `UserError` for no options, empty or repeated ones, options that are the same tokens to this model (words it
        does not know), and prompts that do not fit the window.
        """
        if isinstance(options, str) or not options:
            raise UserError(f"{self.model}: asked to score {options!r}; give a list of at least one option")
        replies = self._distinct_replies(options)
        with scoring_run(self, messages, options) as report:
            report(scores := self._score_replies(self.prompt_ids(messages), replies))
        return scores

    def _distinct_replies(self, options: Sequence[str]) -> list[tuple[int, ...]]:
        replies: list[tuple[int, ...]] = []
        seen: dict[tuple[int, ...], str] = {}
        for option in options:
            if not option.strip():
                raise UserError(f"{self.model}: cannot score the empty option among {list(options)}")
            reply = self.reply_ids(option)
            if reply in seen:
                same = "twice" if seen[reply] == option else f"like {seen[reply]!r}: the same tokens to this model"
                raise UserError(f"{self.model}: option {option!r} stands {same}; options must differ")
            seen[reply] = option
            replies.append(reply)
        return replies

    def _score_replies(self, prompt: list[int], replies: list[tuple[int, ...]]) -> OptionScores:
        longest = max(len(reply) for reply in replies)
        if len(prompt) + longest > self._window:
            raise WindowError(
                f"{self.model}: prompt of {len(prompt)} tokens and option of {longest} do not fit "
                f"its window of {self._window}; send fewer or shorter messages",
                len(prompt) + longest,
            )
        with self._lock:
            self.usage.prompt_tokens += len(prompt)
            if self._tree:
                scores = OptionScores(score for part in split_replies(replies) for score in self._score_tree(prompt, part))
            else:
                scores = OptionScores(self._score_each(prompt, replies))
        scores.prompt_tokens = len(prompt)
        return scores

    def _score_tree(self, prompt: list[int], replies: list[tuple[int, ...]]) -> list[float]:
        trie = make_trie(tuple(replies))
        prefix = self._prefixes.take(prompt)
        if len(prompt) - len(prefix.ids) > MAX_FUSED_TOKENS:
            self._prefill(prefix, prompt)
        past, size = len(prefix.ids), len(trie.tokens)
        new = prompt[past:]
        fed = len(new)
        logps = torch.empty(0, 0)
        if fed or size:
            mask = torch.zeros(fed + size, past + fed + size)
            if fed:
                mask[:fed, past:] = torch.full((fed, fed + size), MASK_VALUE).triu_(1)
            mask[fed:, past + fed :] = trie.mask
            positions = [*range(past, past + fed), *(past + fed - 1 + depth for depth in trie.depths)]
            logps = self._forward(new + trie.tokens, prefix.cache, keep=size + bool(fed), mask=mask, positions=positions)
            if size:
                prefix.cache.crop(-size)
            if fed:
                prefix.ids, prefix.logps, logps = prompt, logps[0].clone(), logps[1:]
        self.usage.prefilled_tokens += fed
        self.usage.reply_tokens += size
        assert prefix.logps is not None  # a prefix without them lacks a token of the prompt, and was extended
        # A reply's first token follows the prompt, its others a node of the trie.
        scores = prefix.logps[trie.firsts].double()
        if size:
            scores = scores.index_add(0, trie.owners.to(scores.device), logps[trie.heads, trie.targets].double())
        self._prefixes.keep(prefix)
        return [min(0.0, score) for score in scores.tolist()]

    def _score_each(self, prompt: list[int], replies: list[tuple[int, ...]]) -> list[float]:
        """Scores by one pass per reply, for models whose caches cannot be cut back."""
        scores: list[float] = []
        for reply in replies:
            logps = self._forward(prompt + list(reply[:-1]), None, keep=len(reply))
            values = logps.gather(1, torch.tensor(reply, device=logps.device)[:, None])
            scores.append(min(0.0, float(values.double().sum())))
        self.usage.prefilled_tokens += len(prompt) * len(replies)
        self.usage.reply_tokens += sum(len(reply) - 1 for reply in replies)
        return scores

    # The network and its cache

    @torch.inference_mode()
    def _forward(
        self, ids: list[int], cache: Any, *, keep: int, mask: torch.Tensor | None = None, positions: list[int] | None = None
    ) -> torch.Tensor:
        """Log-probabilities of the token after each of the last `keep` tokens, shape (keep, vocabulary), float32."""
        device = self._network.device
        self.usage.forward_passes += 1
        extra: dict[str, Any] = {}
        if positions is not None and mask is not None:
            extra["position_ids"] = torch.tensor([positions], device=device)
            extra["attention_mask"] = mask[None, None].to(device, self._network.dtype)
        output = self._network(
            input_ids=torch.tensor([ids], device=device),
            past_key_values=cache,
            use_cache=cache is not None,
            logits_to_keep=keep,
            **extra,
        )
        logits: torch.Tensor = output.logits[0, -keep:]
        return logits.log_softmax(-1, dtype=torch.float32)  # ten times faster than logsumexp on a CPU

    def _prefill(self, prefix: Prefix, prompt: list[int]) -> None:
        """Extend the prefix to the whole prompt by a causal pass, so that its `logps` are those of the reply's first token."""
        new = prompt[len(prefix.ids) :]
        if new:
            prefix.logps = self._forward(new, prefix.cache, keep=1)[0]
            prefix.ids = prompt
            self.usage.prefilled_tokens += len(new)

    # Tools

    @cached_property
    def grammar_factory(self) -> GrammarFactory | None:
        """The maker of grammars for replies; None: the package llguidance is missing, or does not support the tokenizer."""
        vocabulary = int(self._network.get_output_embeddings().weight.shape[0])
        return open_grammar_factory(self._tokenizer, self._template.chat_frame(), vocabulary)

    @override
    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: Any = None,
        parallel_tool_calls: bool | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with tools that it may call.

        A chat template that writes tools as Hermes and Qwen models do describes them; for any other template they stand in the
        prompt's text. A grammar holds the calls of replies to the tools' schemas (`pip install llguidance`).

        Args:
            tools: functions, LangChain tools, classes or schemas.
            tool_choice: `auto` or None: as the model likes; `any`: some tool; `none`; or a tool's name.
            parallel_tool_calls: False allows one call a reply.
            strict: of no effect: calls are held to their schemas wherever that is possible.
            kwargs: options of the calls, such as `temperature`.

        Raises:
            UserError: no tool of that name, or there is no grammar, and the model does not write calls by itself.
        """
        functions = [convert_to_openai_tool(tool) for tool in tools]
        bound = {"tools": functions, "tool_choice": tool_choice, "parallel_tool_calls": parallel_tool_calls}
        self._offered(**bound)
        return self.bind(**bound, **kwargs)

    def _offered(
        self, tools: Sequence[Mapping[str, Any]] | None, tool_choice: Any, parallel_tool_calls: bool | None = None
    ) -> ChatRequest:
        """The tools that a reply may call, and which of them it must; a `UserError` where it cannot."""
        functions = tuple(dict(tool) for tool in tools or ())
        choice = read_choice(tool_choice, [str(tool["function"]["name"]) for tool in functions])
        if not functions or choice == "none":
            return ChatRequest()
        if self.grammar_factory is None and (choice != "auto" or not self._template.writes_calls):
            raise UserError(
                f"{self.model}: calls of tools are held to their schemas by a grammar, which this model's tokenizer or installation has "
                "not: pip install llguidance; or let a model that writes tools choose by itself, such as local:Qwen/Qwen3-0.6B"
            )
        return ChatRequest(tools=functions, tool_choice=choice)

    def _sampling(self, stop: list[str] | None, kwargs: dict[str, Any]) -> tuple[Sampling, int | None]:
        """How a call is sampled, and how many likeliest tokens it asks for; None: no log-probabilities."""
        given = {name: value for name, value in kwargs.items() if value is not None}
        given.pop("stream", None)  # LangChain's own
        if unknown := sorted(set(given) - set(CALL_OPTIONS)):
            raise UserError(f"{self.model}: a local model has no {unknown}; it has {list(CALL_OPTIONS)} and 'stop'")
        seed = given.get("seed", self.seed)
        sampling = Sampling(
            float(given.get("temperature", self.temperature)),
            float(given.get("top_p", self.top_p)),
            int(given.get("max_new_tokens", given.get("max_tokens", self.max_new_tokens))),
            None if seed is None else int(seed),
            tuple(stop or self.stop or ()),
        )
        return sampling, given.get("top_logprobs", 0) if given.get("logprobs") else None

    def _generate_tokens(
        self, prefix: Prefix, prompt: list[int], most: int, draw: Draw, grammar: Grammar | None = None
    ) -> Iterator[SampledToken]:
        """Sample at most so many tokens, feeding each back through the cache, until the window is full."""
        self._prefill(prefix, prompt)
        token: SampledToken | None = None
        for _ in range(min(most, self._window - len(prompt))):
            if token is not None:
                prefix.logps = self._forward([token.id], prefix.cache, keep=1)[0]
                prefix.ids = [*prefix.ids, token.id]
            assert prefix.logps is not None  # a prefix without them lacks a token of the prompt, and was extended
            allowed = prefix.logps
            if grammar is not None:
                allowed = allowed.masked_fill(~torch.from_numpy(grammar.token_mask()).to(allowed.device), -torch.inf)
            (token,) = sample_tokens(allowed[None], [draw], prefix.logps[None])
            if grammar is not None:
                grammar.advance(token.id)
            self.usage.generated_tokens += 1
            yield token

    def _reply_parts(
        self, messages: Sequence[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]
    ) -> Iterator[tuple[str, AIMessage | None]]:
        """The reply's text in parts, and last an empty part with the message that has its metadata."""
        frame = self._template.chat_frame()
        single = kwargs.pop("parallel_tool_calls", None) is False
        request = self._offered(kwargs.pop("tools", None), kwargs.pop("tool_choice", None))
        sampling, top = self._sampling(stop, kwargs)
        try:
            draw = make_draw(sampling, top or 0, self._network.device)
        except UserError as error:
            raise UserError(f"{self.model}: {error}") from None
        tools, grammar = request.tools, None
        prompt = self._prompt(self._turns(messages, tools), tools if self._template.writes_calls else ())
        if tools and self.grammar_factory is not None:
            grammar = self.grammar_factory.make(request, hold_calls=True, single=single)
        prefix = self._prefixes.take(prompt)
        reused = len(prefix.ids)
        self.usage.prompt_tokens += len(prompt)
        drawn: list[SampledToken] = []
        decoder = StreamingDecoder(self._template.decode, frame, sampling.stop, bool(tools))
        shown, reason, stopped = 0, "length", False
        for token in self._generate_tokens(prefix, prompt, sampling.max_tokens, draw, grammar):
            drawn.append(token)
            stopped = token.id in frame.stop_ids
            if not stopped:
                decoder.add(token.id)
                if decoder.text[shown:]:
                    yield decoder.text[shown:], None
                    shown = len(decoder.text)
            if stopped or decoder.is_stopped:
                reason = "stop"
                break
        decoder.end()
        text, calls = read_calls(decoder.text) if tools else (decoder.text, ())
        if text[shown:]:
            yield text[shown:], None
        self._prefixes.keep(prefix)
        metadata: dict[str, Any] = {
            "model_name": self.model,
            "finish_reason": "tool_calls" if calls else reason,
            "token_ids": [token.id for token in drawn],
            "sampled_logprobs": [token.sampled_logprob for token in drawn],
            "model_logprobs": [token.model_logprob for token in drawn],
        }
        if top is not None:
            metadata["logprobs"] = {"content": [self._template.openai_logprob(one) for one in drawn[: len(drawn) - stopped]]}
        usage = UsageMetadata(
            input_tokens=len(prompt),
            output_tokens=len(drawn),
            total_tokens=len(prompt) + len(drawn),
            input_token_details={"cache_read": reused},
        )
        made = [
            tool_call(name=call["function"]["name"], args=json.loads(call["function"]["arguments"]), id=call["id"])
            for call in calls
        ]
        yield "", AIMessage(content=text, tool_calls=made, response_metadata=metadata, usage_metadata=usage)

    @override
    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        *_, (_, message) = self._reply_parts(messages, stop, kwargs)
        assert message is not None  # the last part always has one
        return ChatResult(generations=[ChatGeneration(message=message)])

    @override
    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for part, end in self._reply_parts(messages, stop, kwargs):
            chunk = AIMessageChunk(content=part)
            if end is not None:
                chunk = AIMessageChunk(
                    content="",
                    tool_call_chunks=[
                        tool_call_chunk(
                            name=call["name"], args=json.dumps(call["args"], ensure_ascii=False), id=call["id"], index=index
                        )
                        for index, call in enumerate(end.tool_calls)
                    ],
                    response_metadata=end.response_metadata,
                    usage_metadata=end.usage_metadata,
                    chunk_position="last",
                )
            yield ChatGenerationChunk(message=chunk)

    @property
    @override
    def _llm_type(self) -> str:
        return "learngraph-local"

    @property
    @override
    def _identifying_params(self) -> dict[str, Any]:
        names = ("model", "dtype", "temperature", "top_p", "max_new_tokens", "seed", "stop")
        return {name: getattr(self, name) for name in names}

    @override
    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "local"
        params["ls_max_tokens"] = int(kwargs.get("max_tokens") or self.max_new_tokens)
        return params
