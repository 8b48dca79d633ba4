"""The recipe of the guard model: its tokenizer, and chats (`chats.py`) in two legs.

Looking up facts is drilled first, half of all chats, until it is known.
"""

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from trainer import EncodedText, Leg, Tally, TokenTarget, new_llama, sorted_batches
from trainer import train as train_leg
from transformers import PreTrainedTokenizerFast

from learngraph.tools.pocket.guard_chats import Message

from . import chats

LEGS = (
    Leg(0, 14, chats.CHAT_SHARES | {"scenario": 0.36, "free": 0.14, "drill": 0.12}, fall=0.4),
    Leg(1, 9, chats.CHAT_SHARES, fall=0.4),
)
DRILL_SHARES = {"drill": 0.5, "free": 0.2, "scenario": 0.15, "hindsight": 0.15}
"""Shares of the kinds of chats until the model can do the drill."""

WORD_PATTERN = r"<[a-z]+>|[a-z0-9]+|[^\sa-z0-9]"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<' + message['role'] + '> ' + message['content'] | trim }}"
    "{% if message['role'] == 'assistant' %}{{ ' <end>' }}{% endif %}{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
"""Chat template: every message begins with its role; a reply ends with `<end>`."""
SPECIAL_TOKENS = ("<pad>", "<unk>", "<end>", "<system>", "<user>", "<assistant>")
BATCH_TOKENS = 2600
APART = 0.85
"""Length of the part that is each unsaid token's own (`set_apart`): that of the output vectors of the words that are said."""


def train_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token per word of the closed vocabulary. Case does not count; any other word is `<unk>`."""
    words = sorted({word for text in chats.vocabulary_texts() for word in re.findall(WORD_PATTERN, text)})
    known = {word: number for number, word in enumerate([*SPECIAL_TOKENS, *words])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="removed", invert=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<end>",
        additional_special_tokens=["<system>", "<user>", "<assistant>"],
        chat_template=CHAT_TEMPLATE,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )


def encode(chat: Sequence[Message], ids: Mapping[str, int]) -> EncodedText:
    """The tokens of a chat, the same as those of chat template and tokenizer (a test compares), but faster; replies are learned."""
    tokens: list[int] = []
    targets: list[TokenTarget] = []
    for message in chat:
        tokens.append(ids[f"<{message['role']}>"])
        words = [ids[word] for word in re.findall(WORD_PATTERN, message["content"])]
        if message["role"] == "assistant":
            words.append(ids["<end>"])
            targets += [TokenTarget(len(tokens) + n - 1, {word: 1.0}, 1.0, True) for n, word in enumerate(words)]
        tokens += words
    return EncodedText(tokens, targets)


class GuardTexts:
    """The chats of one leg; `drilled`: facts are looked up already."""

    def __init__(self, leg: Leg, tokenizer: Any, drilled: bool) -> None:
        self.draw, self.ids, self.shares, self.drilled = random.Random(leg.seed), tokenizer.get_vocab(), leg.shares, drilled
        self.waiting: dict[str, list[list[EncodedText]]] = {}

    def draw_batch(self) -> tuple[str, list[EncodedText]]:
        """The next batch; four of a kind of chat are made at a time."""
        shares = self.shares if self.drilled else DRILL_SHARES
        kind = self.draw.choices([*shares], [*shares.values()])[0]
        batches = self.waiting.setdefault(kind, [])
        if not batches:
            size = BATCH_TOKENS // (160 if kind == "past" else 75)
            batches += sorted_batches([encode(chats.chat(self.draw, kind), self.ids) for _ in range(4 * size)], size, self.draw)
        return kind, batches.pop()

    def advance(self, part: float, tallies: Mapping[str, Tally]) -> None:
        """All kinds of chats, once the drill is known. Chance is 0.75: three tokens of four stand in the question, or always follow."""
        self.drilled = self.drilled or ("drill" in tallies and tallies["drill"].accuracy > 0.98)


def set_apart(head: torch.nn.Linear) -> None:
    """Give each token that no reply of the chats has an output vector of its own, in place.

    Training only pushes these tokens down, and all in one direction (cosines of .99): an adapter, which leaves the output vectors as they
    are, could never say `please` rather than `game`. A reply of the model changes by less than .001 nats.
    """
    with torch.no_grad():
        alike = torch.nn.functional.cosine_similarity(head.weight, head.weight[:1]) > 0.9  # (tokens,); <pad> is in no reply
        drawn = torch.randn(head.in_features, int(alike.sum()), generator=torch.Generator().manual_seed(0))
        head.weight[alike] += APART * torch.linalg.qr(drawn)[0].T


def train(out: Path, legs: Sequence[Leg] = LEGS, max_steps: int | None = None) -> Path:
    """Make the model in a folder, leg by leg, from nothing; `max_steps`: steps of a leg, at most."""
    torch.manual_seed(legs[0].seed)
    tokenizer = train_tokenizer()
    model = new_llama(tokenizer, 320, 1024, (tokenizer.eos_token_id,), 16)
    for number, leg in enumerate(legs):
        train_leg(model, tokenizer, GuardTexts(leg, tokenizer, number > 0), leg, out, max_steps)
    set_apart(model.lm_head)
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out
