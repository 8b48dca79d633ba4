"""A Llama with random weights, and a tokenizer of whole words: a network of a given size, made on the spot."""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers


def make_llama(folder: Path, vocabulary: int, layers: int, hidden: int, ffn: int, **config: Any) -> None:
    """Save the network.

    Args:
        folder: where to.
        vocabulary: the number of tokens.
        layers: the number of layers.
        hidden: numbers of a layer's state.
        ffn: numbers in the middle of a feed-forward layer.
        **config: more of its `LlamaConfig`.
    """
    made = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=max(4, hidden // 64),
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        **config,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(made).save_pretrained(folder)


def make_tokenizer(folder: Path, vocabulary: int, template: str | None = None) -> None:
    """Save a tokenizer whose tokens are words w0, w1 and so on, a line break and `>`; `template`: of chats."""
    words = ["<unk>", "\n", ">", *(f"w{i}" for i in range(vocabulary - 3))]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n|[^\s]+"), behavior="removed", invert=True)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
