"""Texts that are cut to a length, for prompts and messages."""

from collections.abc import Callable

__all__ = ["clip_text", "cut_middle", "shorten", "trim_middle"]


def clip_text(text: str, length: int | None) -> str:
    """The first `length` characters of a text, with a mark where it was cut; None: the whole text."""
    return text if length is None or len(text) <= length else text[:length].rstrip() + "…"


def shorten(text: str, length: int = 80) -> str:
    """The text in quotation marks for a message, at most `length` characters of it."""
    return repr(clip_text(text, length))


def trim_middle(content: str, max_chars: int) -> str:
    """A text of about `max_chars` characters at most: its beginning and its end, with the number of characters cut between."""
    if len(content) <= max_chars:
        return content
    head, tail = max_chars - max_chars // 2, max_chars // 2
    return f"{content[:head]}\n[… {len(content) - max_chars:,} characters cut …]\n{content[len(content) - tail :]}"


def cut_middle(content: str, tokens: int, count: Callable[[str], int]) -> str:
    """A text of at most `tokens` tokens: its beginning and its end, with a mark in place of the middle."""
    size = count(content)
    if size <= tokens:
        return content
    keep = len(content) * max(tokens, 0) // size
    while keep > 0:
        head, tail = content[: keep - keep // 2], content[len(content) - keep // 2 :]
        short = f"{head}\n[... {len(content) - keep} characters left out ...]\n{tail}"
        if count(short) <= tokens:
            return short
        keep = keep * 9 // 10
    return ""
