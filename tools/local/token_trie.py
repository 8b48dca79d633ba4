"""Replies as one tree of tokens, which a single pass reads: every node sees the prompt and its own ancestors only."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch

__all__ = ["TokenTrie"]

MASK_VALUE = torch.finfo(torch.float16).min
"""Added to an attention score to hide a token: finite in every number format, and exp of it is 0 in all of them."""

MAX_TRIE_TOKENS = 1024
"""Most tokens of replies in one pass: each needs a row of log-probabilities over the vocabulary."""


@dataclass(frozen=True)
class TokenTrie:
    """Replies as one tree of tokens. The last token of a reply is no node: its log-probability is read at its parent."""

    tokens: list[int]
    depths: list[int]
    """1 for tokens that follow the prompt."""
    mask: torch.Tensor
    """(nodes, nodes): 0 where a node sees an ancestor or itself, else `MASK_VALUE`."""
    firsts: torch.Tensor
    """(replies,): their first tokens."""
    owners: torch.Tensor
    """(scored,): of every other token of a reply, the reply it belongs to, ..."""
    heads: torch.Tensor
    """... the node before it ..."""
    targets: torch.Tensor
    """... and the token itself."""


def split_replies(replies: list[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    part: list[tuple[int, ...]] = []
    size = 0
    for reply in replies:
        if part and size + len(reply) > MAX_TRIE_TOKENS:
            yield part
            part, size = [], 0
        part.append(reply)
        size += len(reply)
    yield part


@lru_cache(maxsize=16)
def make_trie(replies: tuple[tuple[int, ...], ...]) -> TokenTrie:
    """The replies as a trie. The last few are cached, since games list the same actions again and again."""
    tokens: list[int] = []
    depths: list[int] = []
    lines: list[tuple[int, ...]] = []  # each node's ancestors and itself
    nodes: dict[tuple[int, int], int] = {}
    owners, heads, targets = [], [], []
    for owner, reply in enumerate(replies):
        node = -1
        for depth, token in enumerate(reply, 1):
            if depth > 1:
                owners.append(owner)
                heads.append(node)
                targets.append(token)
            if depth == len(reply):
                break
            child = nodes.setdefault((node, token), len(tokens))
            if child == len(tokens):
                tokens.append(token)
                depths.append(depth)
                lines.append((*(lines[node] if node >= 0 else ()), child))
            node = child
    mask = torch.full((len(tokens), len(tokens)), MASK_VALUE)
    for node, line in enumerate(lines):
        mask[node, list(line)] = 0.0
    firsts = torch.tensor([reply[0] for reply in replies])
    return TokenTrie(tokens, depths, mask, firsts, torch.tensor(owners), torch.tensor(heads), torch.tensor(targets))
