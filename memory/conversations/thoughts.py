"""Text that a model shows, and text that it only thinks: `<think>…</think>` and the like, and channels of gpt-oss."""

import re

__all__ = ["THOUGHT_START", "split_leading_thought", "split_thoughts"]

THOUGHT_START, THOUGHT_END = "<think>", "</think>"

_THOUGHT_TAG = re.compile(r"<(/?)(?:think|thinking|thoughts?|reasoning)>", re.IGNORECASE)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)[^<]*<\|message\|>")
_END_TOKEN = re.compile(
    r"<\|(?:im_end|eot_id|eom_id|end|return|endoftext|end_of_text)\|>|<end_of_turn>|<eos>|</s>\s*\Z|<｜end▁of▁sentence｜>"
)
_SPECIAL_TOKEN = re.compile(
    r"<\|[^<>|\s]{1,40}\|>|<｜[^<>｜\s]{1,40}｜>|<(?:bos|eos|pad|start_of_turn|end_of_turn)>|</?s>\s*\Z|\A\s*<s>"
)


def split_thoughts(text: str) -> tuple[str, bool]:
    """The text without thoughts and special tokens, and True if it ends within a thought.

    A closing tag without an opening one ends a thought that began in the prompt.
    """
    if channels := list(_CHANNEL.finditer(text)):  # the format of gpt-oss: only the channel `final` is the answer
        if channels[-1][1] != "final":
            return "", True
        text = text[channels[-1].end() :]
    pieces: list[str] = []
    start, in_thought, any_thought = 0, False, False
    for tag in _THOUGHT_TAG.finditer(text):
        if not in_thought:
            pieces.append(text[start : tag.start()])
            if tag[1] and not any_thought:
                pieces.clear()
        in_thought, any_thought, start = not tag[1], True, tag.end()
    if not in_thought:
        pieces.append(text[start:])
    answer = _SPECIAL_TOKEN.sub("", first) if (first := _first_turn("".join(pieces))) else ""
    return answer, in_thought


def split_leading_thought(text: str, is_open: bool = False, is_finished: bool = True) -> tuple[str, str | None]:
    """The thought that a reply begins with, empty if there is none, and the text behind it; None while that is not known yet.

    Args:
        text: the reply so far.
        is_open: the prompt has opened the thought.
        is_finished: no more text will come.
    """
    head = text.lstrip()
    if not is_open:
        if not head.startswith(THOUGHT_START):
            is_undecided = not is_finished and THOUGHT_START.startswith(head)
            return "", None if is_undecided else text
        head = head[len(THOUGHT_START) :]
    thought, end, rest = head.partition(THOUGHT_END)
    return thought.strip(), rest.lstrip() if end else None


def _first_turn(text: str) -> str:
    """The text up to the first token that ends a turn and has something before it."""
    for token in _END_TOKEN.finditer(text):
        if _SPECIAL_TOKEN.sub("", text[: token.start()]).strip():
            return text[: token.start()]
    return text
