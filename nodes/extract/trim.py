"""Transcripts that are cut to a number of tokens: long observations lose their middle first."""

import re
from collections.abc import Callable, Sequence

from ..text import cut_middle

__all__ = []


def trim_transcript(transcript: str, tokens: int, count: Callable[[str], int]) -> str:
    """A transcript of at most `tokens` tokens: long observations lose their middle first, then the transcript loses its own."""
    if count(transcript) <= tokens:
        return transcript
    blocks = _ACTION.split(transcript)  # observations and actions, in turn
    actions, observations = blocks[1::2], blocks[0::2]
    if actions:
        sizes = [count(block) for block in observations]
        given = split_tokens(sizes, max(tokens - sum(map(count, actions)), 0))
        observations = [cut_middle(block, share, count) for block, share in zip(observations, given, strict=True)]
    joined = "".join(seen + done for seen, done in zip(observations, [*actions, ""], strict=True))
    return cut_middle(joined, tokens, count)


_ACTION = re.compile(r"^(> [^\n]*\n(?:  [^\n]*\n)*)", re.MULTILINE)
"""An action in a transcript: `> action`, with further lines indented."""


def split_tokens(sizes: Sequence[int], room: int) -> list[int]:
    """The tokens that each of several texts may take: equal shares of `room`; what short texts leave goes to the long ones."""
    given, left = [0] * len(sizes), room
    order = sorted(range(len(sizes)), key=lambda n: sizes[n])
    for place, n in enumerate(order):
        given[n] = min(sizes[n], left // (len(order) - place))
        left -= given[n]
    return given
