"""Generated tokens as a chat API shows them: growing text and tool calls. This file uses no neural network."""

import json
import re
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Literal

from ...memory.conversations.thoughts import split_leading_thought
from .chats import ReplyFrame, visible_text

__all__ = ["StreamingDecoder"]

CALL_OPENING = "<tool_call>"
CALL_PATTERN = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>\s*", re.DOTALL)
"""A call as Hermes and Qwen models write it: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""
STRIDE = 16
"""Tokens after which the text before them counts as decided, and is not decoded again."""


class StreamingDecoder:
    """A decoder of a reply that grows token by token.

    Text that may still become a stop sequence, a tool call or another character is held back. The cost of a token does not
    depend on the reply's length: only the last tokens are decoded again.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        frame: ReplyFrame,
        stops: tuple[str, ...],
        detects_calls: bool,
        thoughts: Literal["none", "possible", "begun"] = "none",
    ) -> None:
        self._decode = decode
        self._lead = frame.lead
        self._stops = tuple(text for text in (*stops, frame.end_text) if text)
        self.detects_calls = detects_calls
        """True if it looks for tool calls."""
        self._kind_of_thoughts = thoughts
        self.thoughts = ""
        """The thought that the reply begins with, which is not part of `text`. `begun`: the prompt has opened it."""
        self._ids: list[int] = []
        self._begins = self._cut = 0
        self._done, self._base = "", ""
        self.text = ""
        """The text that may be shown so far; it only grows."""
        self.decoded_length = 0
        """Characters so far, including those held back."""
        self.is_stopped = False
        """True if the text has a stop sequence."""
        self.text_begin = 0
        """Position of the begin of `text` in the decoded text."""
        self.text_end = 0
        """Position of the end of `text` in the decoded text, which includes the template's text before a reply."""

    def add(self, token: int, *, show: bool = True) -> None:
        """Add a token of the reply. (The token that ends the turn is not part of it.)

        Args:
            show: False: the text is not needed yet. It is decoded with a later token, unless there are stop sequences to look for.
        """
        self._ids.append(token)
        if show or self._stops:
            self._show(over=False)

    def end(self) -> None:
        """Finish the reply: show the text that was held back."""
        self._show(over=True)

    def _show(self, *, over: bool) -> None:
        text = self._decode_text()
        self.decoded_length = len(text)
        shown, self.is_stopped = visible_text(text, self._lead, self._stops, finished=over)
        decoded = shown
        if self._kind_of_thoughts != "none":
            self.thoughts, rest = split_leading_thought(shown, self._kind_of_thoughts == "begun", over)
            shown = rest or ""
        before = len(decoded) - len(shown)
        if self.detects_calls and not over:
            begins = shown.find(CALL_OPENING)
            if begins < 0:
                held = max((n for n in range(1, len(CALL_OPENING)) if shown.endswith(CALL_OPENING[:n])), default=0)
                begins = len(shown) - held
            shown = shown[:begins].rstrip()
        if len(shown) >= len(self.text):
            self.text = shown
        self.text_begin = before + (len(self._lead) if text.startswith(self._lead) else 0)
        self.text_end = self.text_begin + len(self.text)

    def _decode_text(self) -> str:
        tail = self._decode(self._ids[self._begins :])
        text = self._done + tail.removeprefix(self._base)
        if len(self._ids) - self._cut >= STRIDE and not tail.endswith("\ufffd"):
            # The next text is decoded with these tokens before it: some tokenizers drop the space of a first word.
            self._done, self._begins, self._cut = text, self._cut, len(self._ids)
            self._base = self._decode(self._ids[self._begins :])
        return text


def read_calls(text: str) -> tuple[str, tuple[dict[str, Any], ...]]:
    """A reply's text without its tool calls, and the calls in OpenAI's shape. Malformed calls stay in the text."""
    calls: list[dict[str, Any]] = []

    def take(match: re.Match[str]) -> str:
        try:
            call = json.loads(match[1])
        except ValueError:
            return match[0]
        name, arguments = call.get("name"), call.get("arguments", call.get("parameters", {}))
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            return match[0]
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        calls.append({"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function})
        return ""

    rest = CALL_PATTERN.sub(take, text)
    return (rest.rstrip() if calls else text), tuple(calls)


def has_call_format(render: Callable[..., str], roundtrip: Callable[[str], str], template: str) -> bool:
    """True if a chat template writes tools and calls in the form that `read_calls` reads, and the text comes back whole.

    Args:
        render: the template, `render(turns, reply=..., tools=...)`.
        roundtrip: encodes a text and decodes it.
    """
    tool = {"type": "function", "function": {"name": "probe_xyz", "description": "", "parameters": {"type": "object"}}}
    call = {"id": "call_1", "type": "function", "function": {"name": "probe_xyz", "arguments": {"key": "abc"}}}
    asked = {"role": "user", "content": "hi"}
    turns = [
        asked,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "result_xyz"},
    ]
    try:
        offered = render([asked], reply=True, tools=[tool])
        done = render(turns, reply=True, tools=[tool])
    except Exception:  # a template may raise anything for turns that it does not know
        return False
    return (
        CALL_OPENING in template
        and "probe_xyz" in offered
        and all(text in done for text in (CALL_OPENING, "abc", "result_xyz"))
        and CALL_OPENING in roundtrip(f"{CALL_OPENING}{{}}</tool_call>")
    )
