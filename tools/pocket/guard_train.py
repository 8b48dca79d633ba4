"""Train the guard model from nothing, on one CPU core in ten minutes: `python -m learngraph.tools.pocket.guard_train OUT`.

The recipe is the pocket model's (`train.py`): attention heads that begin where training would take them, untied embeddings,
AdamW at 1e-3, and a drill in looking up facts, half of all chats until it is known. What the chats are: `guard_chats.py`.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import guard_chats
from .train import imitate

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

__all__ = ["GuardTraining", "main", "train", "train_tokenizer"]

log = logging.getLogger(__name__)

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


@dataclass(frozen=True)
class GuardTraining:
    """Settings of one training run."""

    out: Path
    """Folder for weights, tokenizer, configuration and the record `training.jsonl` (a line every 100 steps)."""
    minutes: float = 10.0
    """Wall-clock time of the training, in minutes."""
    seed: int = 0
    """Seed of the weights and of every draw. The learning rate falls with the time: runs of one seed differ when the machine's speed does."""
    hidden_size: int = 160
    """Width: a multiple of 32, at least 160."""
    layers: int = 3
    intermediate_size: int = 320
    """Width of the feed-forward layers."""
    learning_rate: float = 1e-3
    """Peak learning rate of AdamW (betas 0.9, 0.98, weight decay 0.05); falls linearly over the last 40 % of the time."""
    batch_tokens: int = 2600
    """Tokens of a batch, about."""
    start: Path | None = None
    """Go on from the weights in this folder instead of from nothing."""


DRILL_SHARES = {"drill": 0.5, "free": 0.2, "scenario": 0.15, "hindsight": 0.15}
"""Shares of the kinds of chats until the model can do the drill."""


def train_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token per word of the closed vocabulary. Case does not count; any other word is `<unk>`."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = sorted({word for text in guard_chats.vocabulary_texts() for word in re.findall(WORD_PATTERN, text)})
    known = {word: number for number, word in enumerate([*SPECIAL_TOKENS, *words])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="removed", invert=True)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<end>",
        additional_special_tokens=["<system>", "<user>", "<assistant>"],
        chat_template=CHAT_TEMPLATE,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )


def _model(settings: GuardTraining, tokenizer: Any) -> LlamaForCausalLM:
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=settings.hidden_size,
            intermediate_size=settings.intermediate_size,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.hidden_size // 32,
            num_key_value_heads=settings.hidden_size // 32,
            max_position_embeddings=1024,
            tie_word_embeddings=False,
            attention_bias=True,
            initializer_range=0.02,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    imitate(model)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, max_new_tokens=16
    )
    return model


@dataclass(frozen=True, slots=True)
class _Encoded:
    ids: list[int]
    loss_mask: list[bool]
    """For each token, whether it belongs to a reply (its `<end>` included)."""


def _encode(said: Sequence[guard_chats.Message], ids: dict[str, int]) -> _Encoded:
    """The tokens of a chat, the same as those of chat template and tokenizer (a test compares), but faster."""
    tokens: list[int] = []
    learned: list[bool] = []
    for message in said:
        words = [ids[word] for word in re.findall(WORD_PATTERN, message["content"])]
        replied = message["role"] == "assistant"
        tokens += [ids[f"<{message['role']}>"], *words] + [ids["<end>"]] * replied
        learned += [False] + [replied] * (len(words) + replied)
    return _Encoded(tokens, learned)


def _open_or_make(settings: GuardTraining) -> tuple[Any, Any]:
    """The model to train and its tokenizer: those of `settings.start`, or new ones."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = train_tokenizer() if settings.start is None else AutoTokenizer.from_pretrained(settings.start)
    if settings.start is None:
        return _model(settings, tokenizer), tokenizer
    return AutoModelForCausalLM.from_pretrained(settings.start, dtype=torch.float32), tokenizer


@dataclass
class _Batches:
    """Batches of encoded chats, by kind."""

    draw: random.Random
    ids: dict[str, int]
    """Number of each word."""
    batch_tokens: int
    """Tokens of a batch, about."""
    waiting: dict[str, list[list[_Encoded]]] = field(default_factory=dict)

    def next_batch(self, shares: dict[str, float]) -> tuple[str, list[_Encoded]]:
        """A kind of chat, drawn by its share, and a batch of that kind. Four batches are made at a time."""
        kind = self.draw.choices(list(shares), list(shares.values()))[0]
        batches = self.waiting.setdefault(kind, [])
        if not batches:
            size = self.batch_tokens // (160 if kind == "past" else 75)
            made = [_encode(guard_chats.chat(self.draw, kind), self.ids) for _ in range(4 * size)]
            made.sort(key=lambda one: len(one.ids))  # of about the same length: less padding
            batches += [made[n : n + size] for n in range(0, len(made), size)]
            self.draw.shuffle(batches)
        return kind, batches.pop()


def _train_step(model: Any, optimizer: Any, batch: Sequence[_Encoded], pad: int) -> tuple[float, float, int]:
    """One step of gradient descent on a batch.

    Returns:
        The mean cross-entropy of the reply tokens in nats, the share of them that the model predicts, and the size of the
        padded batch in tokens.
    """
    import torch

    width = max(len(one.ids) for one in batch)
    tokens = torch.tensor([one.ids + [pad] * (width - len(one.ids)) for one in batch])  # (chats, width)
    masks = [one.loss_mask + [False] * (width - len(one.ids)) for one in batch]
    learned = torch.tensor(masks)[:, 1:]  # (chats, width - 1)
    # Padding is on the right: a causal model needs no mask for what comes after the labels.
    hidden = model.model(tokens[:, :-1], use_cache=False).last_hidden_state[learned]  # (reply tokens, hidden)
    logits = model.lm_head(hidden)  # (reply tokens, vocabulary)
    targets = tokens[:, 1:][learned]
    loss = torch.nn.functional.cross_entropy(logits, targets)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach()), float((logits.argmax(-1) == targets).float().mean()), tokens.numel()


def train(settings: GuardTraining) -> Path:
    """Train a model and write it to `settings.out`; returns that folder."""
    import torch

    torch.manual_seed(settings.seed)
    torch.set_num_threads(1)
    draw = random.Random(f"guard {settings.seed} {settings.start}")
    settings.out.mkdir(parents=True, exist_ok=True)
    model, tokenizer = _open_or_make(settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.05)
    drilled = settings.start is not None
    batches = _Batches(draw, tokenizer.get_vocab(), settings.batch_tokens)
    losses: dict[str, list[float]] = {}
    hits: list[float] = []
    begun, step, seen = time.monotonic(), 0, 0
    with (settings.out / "training.jsonl").open("w", encoding="utf-8") as record:
        while (part := (time.monotonic() - begun) / 60 / settings.minutes) < 1:
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * min(1, (step + 1) / 100) * min(1.0, max(0.03, (1 - part) / 0.4))
            kind, batch = batches.next_batch(dict(guard_chats.CHAT_SHARES) if drilled else DRILL_SHARES)
            loss, hit, size = _train_step(model, optimizer, batch, tokenizer.pad_token_id)
            step, seen = step + 1, seen + size
            losses.setdefault(kind, []).append(loss)
            if kind == "drill":
                hits.append(hit)
            if step % 100 == 0:
                # Chance is 0.75: three tokens of four in a drill's replies stand in the question, or always follow.
                known = sum(hits) / max(len(hits), 1)
                drilled = drilled or known > 0.98
                line = {"minutes": round(part * settings.minutes, 2), "step": step, "tokens": seen, "known": round(known, 4)}
                line |= {name: round(sum(some) / len(some), 4) for name, some in sorted(losses.items())}
                record.write(json.dumps(line) + "\n")
                record.flush()
                log.info("%s", line)
                losses, hits = {}, []
    model.to(torch.bfloat16).save_pretrained(settings.out)
    tokenizer.save_pretrained(settings.out)
    return settings.out


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Train the guard model from nothing.")
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("--minutes", type=float, default=GuardTraining.minutes)
    parser.add_argument("--seed", type=int, default=GuardTraining.seed)
    parser.add_argument("--start", type=Path, default=None, help="go on from the weights in this folder")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    train(GuardTraining(out=given.out, minutes=given.minutes, seed=given.seed, start=given.start))


if __name__ == "__main__":
    main()
