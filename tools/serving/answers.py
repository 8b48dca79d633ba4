"""OpenAI's answers to chats and texts: whole, or as server-sent events."""

import json
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from ...memory.records import Reply
from .openai_wire import ApiError, ParsedRequest

__all__ = ["ChatAnswer", "TextAnswer", "usage"]


def usage(replies: Sequence[Reply], prompts: int) -> dict[str, Any]:
    """OpenAI's `usage` of a request: the tokens of its prompts, each counted once, and of its replies, prompt after prompt."""
    each = max(1, len(replies) // max(1, prompts))
    first = replies[::each]
    thinks = any(reply.thoughts for reply in replies)  # how many of the tokens are thoughts is not known
    asked, said = sum(reply.lengths[0] for reply in first), sum(reply.lengths[1] for reply in replies)
    return {
        "prompt_tokens": asked,
        "completion_tokens": said,
        "total_tokens": asked + said,
        "prompt_tokens_details": {"cached_tokens": min(asked, sum(reply.cached for reply in first)), "audio_tokens": 0},
        "completion_tokens_details": {"audio_tokens": 0} if thinks else {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def reply_calls(reply: Reply, first_only: bool) -> list[dict[str, Any]]:
    """The reply's tool calls in OpenAI's shape; with `first_only`, only the first."""
    return [dict(call) for call in (reply.tool_calls[:1] if first_only else reply.tool_calls)]


def sse_event(data: Mapping[str, Any] | str, name: str = "") -> bytes:
    """A server-sent event, in ASCII: some clients take U+2028 or U+0085 for the end of a line."""
    body = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return f"event: {name}\ndata: {body}\n\n".encode() if name else f"data: {body}\n\n".encode()


class ChatAnswer:
    """An answer of `/v1/chat/completions`: a JSON body, or server-sent events.

    Args:
        id: of the answer; the first characters are `prefix`.
        version: labels of the versions that answer.
        parsed: the request.
    """

    prefix, kind = "chatcmpl-", "chat.completion"

    def __init__(self, id: str, version: str, parsed: ParsedRequest) -> None:
        about = {"object": self.kind, "created": int(time.time()), "model": parsed.model, "system_fingerprint": version}
        self._frame: dict[str, Any] = {"id": id, **about}
        self._parsed = parsed
        self._sent: dict[int, str] = {}  # choice -> its text so far

    def whole(self, replies: Sequence[Reply], logprobs: Sequence[Sequence[Any]], version: str) -> dict[str, Any]:
        """The body with all choices. `logprobs`: those of each choice's tokens; `version`: labels of the versions that answered."""
        choices = []
        for i, reply in enumerate(replies):
            tokens = self._logprobs(logprobs[i], 0) if self._parsed.with_logprobs else None
            choices.append({"index": i, **self._content(reply), "logprobs": tokens, "finish_reason": reply.finish})
        numbers = usage(replies, self._parsed.num_prompts)
        return self._frame | {"system_fingerprint": version, "choices": choices, "usage": numbers}

    def _content(self, reply: Reply) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
        if reply.thoughts:
            message["reasoning_content"] = reply.thoughts
        if calls := reply_calls(reply, self._parsed.one_call):
            message |= {"content": reply.text or None, "tool_calls": calls}
        return {"message": message}

    def _logprobs(self, tokens: Sequence[Mapping[str, Any]], offset: int) -> dict[str, Any]:
        """Log-probabilities of tokens. `offset`: number of the reply's characters before them."""
        return {"content": [dict(token) for token in tokens], "refusal": None}

    def begin(self) -> bytes:
        """The events before the first text."""
        if self._parsed.with_usage:
            self._frame["usage"] = None
        self._frame["object"] = "chat.completion.chunk"
        role = {"role": "assistant", "content": "", "refusal": None}
        return b"".join(self._chunk(i, {"delta": role}) for i in range(len(self._parsed.requests)))

    def _chunk(self, index: int, content: Mapping[str, Any], logprobs: Any = None, finish: str | None = None) -> bytes:
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}
        return sse_event(self._frame | {"choices": [choice]})

    def text(self, index: int, more: str, tokens: Sequence[Mapping[str, Any]] = ()) -> bytes:
        """The events for more text of a choice."""
        before = self._sent.get(index, "")
        self._sent[index] = before + more
        shown = self._logprobs(tokens, len(before)) if self._parsed.with_logprobs else None
        return self._chunk(index, self._delta(more), shown)

    def _delta(self, more: str) -> dict[str, Any]:
        return {"delta": {"content": more}}

    def end(self, index: int, reply: Reply) -> bytes:
        """The events that end a choice: text that was not sent yet, tool calls, and the reason for the end."""
        sent = self._sent.get(index, "")
        is_more = len(reply.text) > len(sent) and reply.text.startswith(sent)
        return (self.text(index, reply.text[len(sent) :]) if is_more else b"") + self._last(index, reply)

    def _last(self, index: int, reply: Reply) -> bytes:
        out = self._chunk(index, {"delta": {"reasoning_content": reply.thoughts}}) if reply.thoughts else b""
        for at, call in enumerate(reply_calls(reply, self._parsed.one_call)):
            out += self._chunk(index, {"delta": {"tool_calls": [{"index": at, **call}]}})
        return out + self._chunk(index, {"delta": {}}, None, reply.finish)

    def finish(self, replies: Sequence[Reply]) -> bytes:
        """The events after all choices have ended."""
        numbers = b""
        if self._parsed.with_usage:
            numbers = sse_event(self._frame | {"choices": [], "usage": usage(replies, self._parsed.num_prompts)})
        return numbers + sse_event("[DONE]")

    def failure(self, error: ApiError) -> bytes:
        """The event for an error in the middle."""
        return sse_event(error.body, "error")


class TextAnswer(ChatAnswer):
    """An answer of `/v1/completions`."""

    prefix, kind = "cmpl-", "text_completion"

    def _content(self, reply: Reply) -> dict[str, Any]:
        return {"text": reply.text}

    def _logprobs(self, tokens: Sequence[Mapping[str, Any]], offset: int) -> dict[str, Any]:
        texts = [str(token["token"]) for token in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [token["logprob"] for token in tokens],
            "top_logprobs": [{top["token"]: top["logprob"] for top in token.get("top_logprobs", ())} for token in tokens],
            "text_offset": [*accumulate(map(len, texts[:-1]), initial=offset)] if texts else [],
        }

    def begin(self) -> bytes:
        if self._parsed.with_usage:
            self._frame["usage"] = None
        return b""

    def _delta(self, more: str) -> dict[str, Any]:
        return {"text": more}

    def _last(self, index: int, reply: Reply) -> bytes:
        return self._chunk(index, {"text": ""}, None, reply.finish)
