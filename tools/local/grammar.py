"""Replies that must have a form: JSON, JSON by a schema, or a tool call. The package llguidance computes which tokens may
follow.

It is optional (`pip install llguidance`). Without it, or with a tokenizer that it does not support,
`open_grammar_factory` returns None, and the engine supports neither `response_format` nor a `tool_choice` that forces a call.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...memory.errors import UserError
from ...memory.records import ChatRequest
from .chats import ReplyFrame

__all__ = ["Grammar", "GrammarFactory"]

log = logging.getLogger(__name__)

COMPACT_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON on one line, as models mostly write it. If white space is free, a model may write nothing but white space."""

OPENING = "<tool_call>"
OPENED_CALL = rf"/(.|\n)*{OPENING}/"
FREE_TEXT = rf"/(.|\n)*/ & ~/(.|\n)*{OPENING}(.|\n)*/"
CALL_REST = '"\\n"? one "\\n"? "</tool_call>"'
"""A call behind its opening. The line ends are optional, because in some templates they end the turn."""


class Grammar:
    """The tokens that one reply may still have. For one reply, and one thread at a time."""

    def __init__(self, matcher: Any, vocabulary: int, stop_ids: Sequence[int]) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._stop_ids = list(stop_ids)

    def token_mask(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Mask of the tokens that may come next, shape (vocabulary,)."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        found = np.zeros(self._vocabulary, dtype=np.bool_)
        known = np.unpackbits(bits, bitorder="little")[: self._vocabulary].astype(np.bool_)
        found[: len(known)] = known
        if not self._matcher.is_accepting():  # a token that ends the turn may be a text as well, such as a line's end
            found[self._stop_ids] = False
        if self._matcher.is_error() or not found.any():
            raise UserError(f"the reply's form cannot be kept: {self._matcher.get_error() or 'no token may follow'}")
        return found

    def advance(self, token: int) -> None:
        """Take account of a token that was drawn."""
        self._matcher.consume_token(token)


class GrammarFactory:
    """A maker of grammars for a model's tokenizer.

    Args:
        tokenizer: the tokenizer.
        frame: what the chat template puts around a reply.
        vocabulary: number of logits of the network.
    """

    def __init__(self, tokenizer: Any, frame: ReplyFrame, vocabulary: int) -> None:
        import llguidance  # type: ignore[import-not-found, unused-ignore]
        import llguidance.hf  # type: ignore[import-not-found, unused-ignore]

        self._library = llguidance
        self._lead = frame.lead
        self._vocabulary = vocabulary
        self._stop_ids = sorted(frame.stop_ids)
        self._tokens = llguidance.hf.from_tokenizer(tokenizer, n_vocab=len(tokenizer), eos_token=self._stop_ids)
        text = '{"a": ["b c", 1.5, true]}'
        if self._tokens.decode_str(tokenizer(text, add_special_tokens=False)["input_ids"]) != text:
            raise ValueError("its tokens cannot write JSON")
        self._make({"start": "%json " + json.dumps({"type": "object", "x-guidance": COMPACT_JSON})}).token_mask()

    def make(self, request: ChatRequest, *, hold_calls: bool = False, single: bool = False) -> Grammar | None:
        """The grammar of a request's reply; None: the reply is free. Call it in a thread, since it may take long.

        Args:
            request: the request.
            hold_calls: where the reply may be a text or call a tool as it likes, hold its calls to the tools' schemas.
            single: allow one call at most.

        Raises:
            UserError: the schema is invalid or not supported, or there is no tool of that name.
        """
        schema = _response_schema(request.response_format)
        choice = request.tool_choice
        forced = _forced_tools(request.tools, choice)
        may_call = hold_calls and bool(request.tools) and choice != "none"
        if schema is None and not forced and not may_call:
            return None
        rules: dict[str, str] = {}
        starts = []
        if forced:
            starts.append("calls" if choice == "required" and not single else "call")
        elif schema is None:
            forced = tuple(request.tools)
            starts += ["TEXT", "called" if single else 'called ("\\n" call)*']
            rules |= {"TEXT": FREE_TEXT, "opening[lazy]": OPENED_CALL, "called": f"opening {CALL_REST}"}
        else:
            starts.append("content")
            rules["content"] = "%json " + json.dumps({**(schema or {}), "x-guidance": COMPACT_JSON})
            if request.tools and choice != "none":  # a schema is for the text; the model may still call a tool instead
                starts.append("calls")
                forced = tuple(request.tools)
        if forced:
            rules["calls"] = 'call ("\\n" call)*'
            rules["call"] = f"{_quote(OPENING)} {CALL_REST}"
            rules["one"] = "%json " + json.dumps({"anyOf": [_call_schema(tool) for tool in forced], "x-guidance": COMPACT_JSON})
        lead = _quote(self._lead) + " " if self._lead else ""
        return self._make({"start": f"{lead}({' | '.join(starts)})", **rules})

    def _make(self, rules: Mapping[str, str]) -> Grammar:
        lark = "\n".join(f"{name}: {rule}" for name, rule in rules.items())
        matcher = self._library.LLMatcher(self._tokens, self._library.LLMatcher.grammar_from_lark(lark), log_level=0)
        if matcher.is_error():
            raise UserError(f"replies cannot be held to this form: {matcher.get_error().strip().splitlines()[0]}")
        return Grammar(matcher, self._vocabulary, self._stop_ids)


def open_grammar_factory(tokenizer: Any, frame: ReplyFrame, vocabulary: int) -> GrammarFactory | None:
    """The maker of grammars for a model, as `GrammarFactory`; None: the package is missing, or does not support the tokenizer."""
    if not frame.stop_ids or frame.end_text:  # a turn must end with a token, which no text can contain
        return None
    try:
        return GrammarFactory(tokenizer, frame, vocabulary)
    except ImportError:
        return None
    except Exception as error:  # the library raises many kinds of error for tokenizers that it does not support
        log.info("response_format is refused: replies of this tokenizer cannot be held to a form (%s)", error)
        return None


_quote = json.dumps  # a text as a terminal of a grammar


def _response_schema(form: Mapping[str, Any] | None) -> dict[str, Any] | None:
    kind = (form or {}).get("type", "text")
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind == "json_schema":
        described = form.get("json_schema")
        schema = described.get("schema") if isinstance(described, Mapping) else None
        if isinstance(schema, Mapping):
            return dict(schema)
    raise UserError(
        f'response_format is {{"type": "text"}}, "json_object", or "json_schema" with {{"json_schema": {{"schema": {{...}}}}}}; got {form!r:.120}'
    )


def _forced_tools(tools: Sequence[Mapping[str, Any]], choice: Any) -> tuple[Mapping[str, Any], ...]:
    """The tools of which the reply must call one; empty: it need not."""
    if choice in (None, "auto", "none"):
        return ()
    if choice == "required":
        found = tuple(tools)
    else:
        function = choice.get("function") if isinstance(choice, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        found = tuple(tool for tool in tools if tool.get("function", {}).get("name") == name)
    if not found:
        names = [tool.get("function", {}).get("name") for tool in tools]
        raise UserError(f"tool_choice {choice!r:.80} is none of the tools that were offered: {names}")
    return found


def _call_schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function", {})
    parameters = function.get("parameters") or {"type": "object"}
    return {
        "type": "object",
        "properties": {
            "name": {"const": function.get("name")},
            "arguments": {**({"additionalProperties": False} if "properties" in parameters else {}), **parameters},
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
