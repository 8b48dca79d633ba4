"""A tokenizer with its chat template: where a reply stands in a chat, as text and as tokens."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from ...memory.conversations.thoughts import THOUGHT_START
from ...memory.errors import UserError
from .chats import ReplyFrame, token_bytes
from .replies import has_call_format
from .sampling import SampledToken

__all__ = ["ChatTemplate"]

PLAIN_TEMPLATE = (
    "{{ bos_token or '' }}{% for m in messages %}{{ m['role'] | capitalize }}: {{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ eos_token or '' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""The template for a tokenizer that has none: `User: ...`, `Assistant: ...`, a line each. The end-of-sequence token, or the
line's end if there is none, ends a turn."""

MAX_CACHED_REPLIES = 100_000
"""Most replies whose token ids are cached."""

TEXT_BREAK = "\ufdd0"
"""A character that Unicode keeps for no text. A text is tokenised in parts on either side of it."""
PROBE_TEXT = "Qzq"
"""A text that no template writes by itself."""


class ChatTemplate:
    """Renders chats by a tokenizer's template.

    Args:
        name: the model's, for errors.
        tokenizer: the checkpoint's.
        end_ids: tokens that end a text, as the checkpoint lists them.
        thinking: `enable_thinking` of the template; None: not given to it.
    """

    def __init__(self, name: str, tokenizer: Any, end_ids: frozenset[int], thinking: bool | None) -> None:
        self._name, self.tokenizer, self.end_ids, self._thinking = name, tokenizer, end_ids, thinking
        self._frame: ReplyFrame | None = None
        self._replies: dict[str, tuple[int, ...]] = {}

    def reply_ids(self, text: str) -> tuple[int, ...]:
        """Token ids of `text` as a whole assistant reply: from the end of the prompt to the end of the turn, inclusive.

        The reply is tokenised where the template puts it, behind the generation prompt, because tokens depend on what
        stands before them (" go" and "go" differ). What the template puts before and after the text (a space, a token that
        ends the turn) belongs to the reply; what it adds after an end-of-sequence token does not, as generation stops there.

        Raises `UserError` if the template does not render a reply behind its own generation prompt, or if the tokenizer
        merges the end of that prompt with the reply (then no sequence of tokens is "the reply"), or if the text has the
        end of a turn in it.
        """
        found = self._replies.get(text)
        if found is not None:
            return found
        frame = self.reply_frame()
        ids = self.encode(self._render_reply(text, frame.opening))
        before = len(frame.opening_ids)
        if tuple(ids[:before]) != frame.opening_ids:
            raise UserError(
                f"{self._name}: its tokenizer merges the end of the generation prompt {frame.opening[-12:]!r} with the "
                f"reply {text!r}; use a chat template whose generation prompt ends with a special token or a line end"
            )
        end = next((i for i, token in enumerate(ids) if i >= before and token in frame.stop_ids), len(ids) - 1)
        if len(ids) - 1 - end != frame.num_trailing_tokens or (frame.end_text and frame.end_text in text):
            raise UserError(f"{self._name}: the reply {text!r} has the end of a turn in it; give one turn's text")
        if len(self._replies) >= MAX_CACHED_REPLIES:
            self._replies.clear()
        reply = self._replies[text] = tuple(ids[before : end + 1])
        return reply

    def _render_reply(self, text: str, opening: str) -> str:
        turns = [{"role": "user", "content": PROBE_TEXT}, {"role": "assistant", "content": text}]
        whole = self.render(turns, reply=False)
        if not whole.startswith(opening) or text.strip() not in whole[len(opening) :]:
            raise UserError(
                f"{self._name}: its chat template renders the reply {text!r} as {whole!r}, which does not begin with its "
                f"generation prompt {opening!r} and go on with the reply; use a template where it does"
            )
        return whole

    def reply_frame(self) -> ReplyFrame:
        """The template's text and tokens around a reply. Found by rendering a reply once."""
        if self._frame is None:
            opening = self.render([{"role": "user", "content": PROBE_TEXT}], reply=True)
            whole = self._render_reply(PROBE_TEXT, opening)
            lead, _, ending = whole[len(opening) :].partition(PROBE_TEXT)
            tokens = self.encode(ending)
            stops = self.end_ids
            # A special token behind the text ends the turn, even where the checkpoint does not list it as an end.
            if tokens and not stops.intersection(tokens) and tokens[0] in self.tokenizer.all_special_ids:
                stops = stops | {tokens[0]}
            trailing = 0
            if stops.intersection(tokens):
                ending = ""
                trailing = len(tokens) - 1 - next(i for i, token in enumerate(tokens) if token in stops)
            self._frame = ReplyFrame(opening, tuple(self.encode(opening)), lead, ending, stops, trailing)
        return self._frame

    def chat_frame(self) -> ReplyFrame:
        """As `reply_frame`; for a template that cannot frame a reply, only the tokens that end a turn."""
        try:
            return self.reply_frame()
        except UserError:
            return ReplyFrame(stop_ids=self.end_ids)

    def render(self, turns: list[dict[str, Any]], *, reply: bool, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Turns through the chat template; with `reply`, up to where the next reply begins: then what looks like a special token in a
        message is text (`encode`), so that no user can forge a role."""
        import jinja2

        if reply:
            turns = [
                {**turn, "content": self._break_special(turn["content"])} if turn.get("content") else turn for turn in turns
            ]

        plain = PLAIN_TEMPLATE if self.tokenizer.chat_template is None else None
        known = [dict(tool) for tool in tools] or None
        switches = {} if self._thinking is None else {"enable_thinking": self._thinking}
        try:
            text: str = self.tokenizer.apply_chat_template(
                turns, tools=known, chat_template=plain, tokenize=False, add_generation_prompt=reply, **switches
            )
        except jinja2.TemplateError as error:
            roles = ", ".join(turn["role"] for turn in turns)
            raise UserError(f"{self._name}: its chat template refuses messages in the roles {roles}: {error}") from error
        return text

    def _break_special(self, text: str) -> str:
        """A text with a `TEXT_BREAK` inside of each special token's name."""
        for name in self.tokenizer.all_special_tokens:
            if len(name) > 1 and name in text:
                text = text.replace(name, name[0] + TEXT_BREAK + name[1:])
        return text

    def kind_of_thoughts(self, prompt: Sequence[int]) -> Literal["none", "possible", "begun"]:
        """The kind of thoughts that a reply to this prompt may begin with: `possible` is one in `<think>…</think>`; `begun`: the prompt has
        opened it already."""
        template = self.tokenizer.chat_template
        if not isinstance(template, str) or THOUGHT_START not in template:
            return "none"
        return "begun" if self.decode(prompt[-16:]).rstrip().endswith(THOUGHT_START) else "possible"

    def encode(self, text: str) -> list[int]:
        """Token ids of a text as it is."""
        # The template writes its special tokens itself.
        parts = self.tokenizer(text.split(TEXT_BREAK), add_special_tokens=False, verbose=False)["input_ids"]
        return [id for part in parts for id in part]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of generated tokens, without special ones."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    @cached_property
    def writes_calls(self) -> bool:
        """True if the template writes tools and calls in the form that is read from replies."""
        template = self.tokenizer.chat_template
        return isinstance(template, str) and has_call_format(self.render, lambda text: self.decode(self.encode(text)), template)

    def openai_logprob(self, token: SampledToken) -> dict[str, Any]:
        """A token with its log-probability, and the likeliest tokens of its place, in the shape of OpenAI's API."""
        likeliest = [self._openai_token(*one) for one in token.top_logprobs]
        return {**self._openai_token(token.id, token.model_logprob), "top_logprobs": likeliest}

    def _openai_token(self, id_: int, value: float) -> dict[str, Any]:
        token: str = self.tokenizer.decode([id_])
        spelled = token.encode()
        if "\ufffd" in token:  # a part of a character: the token's own name has the bytes
            spelled = token_bytes(self.tokenizer.convert_ids_to_tokens(id_)) or spelled
        return {"token": token, "logprob": value, "bytes": list(spelled)}
