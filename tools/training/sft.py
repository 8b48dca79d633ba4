"""Fine-tune a local model on chats with LoRA, by TRL's SFTTrainer: the last reply of each chat is learned, what is before it is its prompt.

    L = -E[ log pi(z | s) ]        the mean over the tokens z of all replies, in nats

Chats become tokens as `LocalChatModel` makes them (`prompt_ids`, `reply_ids`), so that training, scoring and generation see the same
tokens; TRL is given these and renders no template. Made for AdaMEM's Step-MFT (nodes/synthesize/mft.py): s is the situation with its
experiences, z the strategy. `train` goes through a data set, and writes a checkpoint with the adapter merged in: `--model local:DIR`.
"""

import json
import logging
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from langchain_core.messages import ChatMessage

from ...memory.claas.settings import LoRA
from ...memory.errors import UserError, WindowError
from ...memory.records import ChatRequest, Exchange, Reply
from ..local.model import LocalChatModel, without_progress_bars
from .calls import publish_folder
from .lora import Example, attach_lora, lora_parameters, make_optimizer
from .trl_trainers import imitate_examples, reply_example, require_trl, trainer_arguments, trainer_surroundings

__all__ = ["Chat", "DataError", "FineTuningSettings", "encode_chat", "read_chats", "read_retention", "train"]

log = logging.getLogger(__name__)

Chat = Sequence[Mapping[str, str]]
"""Messages, each with a `role` and its `content`; the last one is the reply to learn."""


class DataError(UserError, ValueError):
    """A data set that cannot be trained on."""


@dataclass(frozen=True)
class FineTuningSettings:
    """Hyper-parameters of a fine-tuning. "Paper" is AdaMEM's (arXiv:2606.05684, appendix); "not given": the default is ours."""

    lora: LoRA = field(default_factory=lambda: LoRA(rank=32, alpha=64.0))
    """Shape of the adapter. Paper: rank 32."""
    epochs: int = 1
    """Times that each example is seen. Paper: 1."""
    batch_size: int = 64
    """Examples behind one update. Paper: 64."""
    micro_batch_size: int = 4
    """Examples that share a pass, at most; the passes of a batch add up. It changes memory and speed, not the result. Paper: 4 (and
    16 passes)."""
    learning_rate: float = 1e-4
    """Peak learning rate of AdamW. Not given; its code's README: 1e-4."""
    warmup_share: float = 0.1
    """Share of the updates in which the learning rate grows to its peak; then it falls as a cosine. Paper: 0.1."""
    weight_decay: float = 0.0
    """Weight decay of the adapter. Not given."""
    max_grad_norm: float = 1.0
    """Longest gradient; longer ones are shortened to it. Not given."""
    seed: int = 0
    """Seed of the new adapter and of the order of the examples. The same seed, machine and threads give the same weights."""

    def __post_init__(self) -> None:
        counts, above = ("epochs", "batch_size", "micro_batch_size"), ("learning_rate", "max_grad_norm")
        wrong = {name: f"{name} is at least 1" for name in counts if getattr(self, name) < 1}
        wrong |= {name: f"{name} is a number above 0" for name in above if not 0 < getattr(self, name) < math.inf}
        if not 0 <= self.warmup_share <= 1:
            wrong["warmup_share"] = "warmup_share is from 0 to 1"
        if not 0 <= self.weight_decay < math.inf:
            wrong["weight_decay"] = "weight_decay is a number, 0 or more"
        for name, words in wrong.items():
            raise UserError(f"train: {words}, got {getattr(self, name)}")


# Data


def read_chats(path: str | os.PathLike[str]) -> list[Chat]:
    """The chats of a JSONL file: a line is `{"messages": [{"role": ..., "content": ...}, ...]}`, and may say more.

    Raises:
        DataError: names the line, what was expected and what it holds.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    chats = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                chats.append(_parse_chat(json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {number}: {error}") from error
    if not chats:
        raise DataError(f'{path} holds no chats; expected one a line: {{"messages": [{{"role": ..., "content": ...}}, ...]}}')
    return chats


def _parse_chat(row: Any) -> Chat:
    messages = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(messages, list) or len(messages) < 2:
        raise ValueError(f'expected an object with "messages", a list of two or more, got {str(row)[:60]!r}')
    for message in messages:
        match message:
            case {"role": "system" | "user" | "assistant" | "tool", "content": str()}:
                continue
        raise ValueError(
            f"expected a message with a role (system, user, assistant, tool) and a text as content, got {message!r:.80}"
        )
    if messages[-1]["role"] != "assistant" or not messages[-1]["content"].strip():
        raise ValueError(
            f"the last message is the reply to learn, an assistant's that says something; got {messages[-1]!r:.80}"
        )
    return messages


def encode_chat(model: LocalChatModel, chat: Chat) -> Example:
    """The tokens of a chat: prompt and reply.

    Raises:
        WindowError: they do not fit the model's window.
        UserError: the chat template or the tokenizer does not separate prompt and reply; see `LocalChatModel.reply_ids`.
    """
    return reply_example(
        model, [ChatMessage(role=turn["role"], content=turn["content"]) for turn in chat[:-1]], chat[-1]["content"]
    )


def read_retention(model: LocalChatModel, path: Path | None = None) -> list[Exchange]:
    """A model's retention set as exchanges: the chats of a file (`read_chats`), or of `claas/retention.jsonl` beside its weights, or none."""
    own, found = Path(model.model) / "claas" / "retention.jsonl", list[Exchange]()
    for n, chat in enumerate(read_chats(path or own) if path or own.is_file() else ()):
        try:
            example = encode_chat(model, chat)
        except UserError as error:
            raise DataError(f"{path or own}: chat {n + 1}: {error}") from error
        reply = Reply("", example.prompt, example.reply, ())
        found.append(Exchange(f"retention-{n}", "default", ChatRequest(tuple(map(dict, chat[:-1]))), reply, ""))
    return found


def learning_rate_factor(done: int, steps: int, warmup: float) -> float:
    """Factor of the peak learning rate for the update after `done` of `steps`: it rises in a line, then falls along half a cosine.

    The first update's factor is above 0; after the last one it is 0.
    """
    rising = math.ceil(warmup * steps)
    if done >= steps:
        return 0.0
    if done < rising:
        return (done + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (done - rising) / (steps - rising)))


# A training


def train(chats: Sequence[Chat], model: LocalChatModel, settings: FineTuningSettings, out: Path) -> tuple[float, ...]:
    """Train on chats, and write the folder `out`. Afterwards `model` itself is the trained one.

    The folder appears when everything is done; an interrupted training leaves none.

    Args:
        chats: the data set. Those that do not fit the model's window are left out, and a warning says how many.
        model: the model to start from.
        settings: hyper-parameters.
        out: the folder to write.

    Returns:
        The loss before each update, in nats per token of the replies.

    Raises:
        UserError: `out` exists already or cannot be written; no example fits the model's window; a chat cannot be tokenised; a
            gradient is not finite.
    """
    require_trl()
    examples, longest = list[Example](), 0
    for number, chat in enumerate(chats, 1):
        try:
            examples.append(encode_chat(model, chat))
        except WindowError as error:
            longest = max(longest, error.tokens)
        except UserError as error:
            raise DataError(f"example {number}: {error}") from error
    if not examples:
        raise DataError(f"none of {len(chats)} examples fits the window of {model.window} tokens; the longest has {longest}")
    if left_out := len(chats) - len(examples):
        log.warning(
            "%d of %d examples are left out: they do not fit the window of %d tokens (the longest has %d)",
            left_out, len(chats), model.window, longest,
        )  # fmt: skip
    with _atomic_folder(out) as part:
        wrapper = attach_lora(model.network, settings.lora, settings.seed)
        losses = _run_updates(wrapper, model, examples, settings)
        _write_merged_model(wrapper, model, part)
    return losses


def _run_updates(
    wrapper: Any, model: LocalChatModel, examples: Sequence[Example], settings: FineTuningSettings
) -> tuple[float, ...]:
    """Run all updates; returns the loss before each, in nats per token.

    Raises:
        UserError: a weight is not finite afterwards.
    """
    batch = min(settings.batch_size, len(examples))
    micro = math.gcd(batch, settings.micro_batch_size)
    steps = settings.epochs * math.ceil(len(examples) / batch)
    optimizer = make_optimizer(model.network, settings.learning_rate, settings.weight_decay)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: learning_rate_factor(n, steps, settings.warmup_share))
    with trainer_surroundings() as out:
        arguments = trainer_arguments(model, out, settings.learning_rate, settings.seed) | {
            "max_grad_norm": settings.max_grad_norm,
            "logging_strategy": "steps",
            "logging_steps": 1,
            "per_device_train_batch_size": micro,
            "gradient_accumulation_steps": batch // micro,
            "num_train_epochs": settings.epochs,
        }
        try:
            losses = imitate_examples(wrapper, model, examples, arguments, (optimizer, rates)).losses
        finally:
            model.network.eval()
    if not all(bool(torch.isfinite(weight).all()) for weight in lora_parameters(model.network).values()):
        raise UserError(f"the training led to numbers that are not finite; try a smaller learning rate or float32 ({losses=})")
    return losses


def _write_merged_model(wrapper: Any, model: LocalChatModel, folder: Path) -> None:
    """Merge the adapter into the weights, and write a checkpoint."""
    wrapper.merge_and_unload()
    model.clear_cache()
    with without_progress_bars():
        model.network.save_pretrained(folder)
        model.tokenizer.save_pretrained(folder)


@contextmanager
def _atomic_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` that is renamed to `out` at the end, and removed after an error."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already; give another folder, or remove it")
    part = out.with_name(out.name + ".part")
    try:
        shutil.rmtree(part, ignore_errors=True)  # left by a process that was killed
        part.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot write {part}: {error.strerror or error}") from error
    try:
        yield part
        publish_folder(part, out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
