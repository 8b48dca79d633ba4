"""The pocket model's tokenizer: byte-level BPE, so that any text has tokens, with the layout's separators cheap.

One action of the toy world, and one key (` black`), is one token; `\\n>` (what comes before an action) is one token and
so is a reward, `= 1` or `= 0.25`. Other digits stand alone, so that numbers the transcripts never showed have familiar parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["CHAT_TEMPLATE", "train_tokenizer"]

TOKEN_PATTERN = r"\n>|= -?[0-9](?:\.[0-9]+)?| ?\p{L}+| ?[0-9]| ?[^\s\p{L}0-9]+|\s"
"""Pattern of the places that no token may cross."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ message['content'] | trim }}"
    "{% elif message['role'] == 'assistant' %}{{ '\\n> ' + message['content'] | trim + '\\n' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\n>' }}{% endif %}"
)
"""Chat template: user texts as they are, replies after `\\n>`, a line break after each turn; system messages are left out."""


def train_tokenizer(texts: Iterable[str], words: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """Learn at most `size` tokens from the texts; every one of the words becomes one token, as written."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(TOKEN_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # The repeats outweigh whatever the texts count, so that the words' merges come first.
    repeated = [word for word in words for _ in range(100_000 // max(len(word), 1))]
    tokenizer.train_from_iterator([*texts, *repeated], trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
