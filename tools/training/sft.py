"""Fine-tune a local model on chats with LoRA: the last reply of each chat is learned, the prompts before it are read.

    L = -E[ log pi(z | s) ]        the mean over the tokens z of all replies, in nats

A chat becomes tokens as `LocalChatModel` makes them (`prompt_ids`, `reply_ids`), so that what is trained is what is scored and
what is generated. Made for AdaMEM's Step-MFT (nodes/synthesize/mft.py): s is the situation with its experiences, z the strategy. The
updates are those of tools/training/lora.py. `train` goes through a data set with them, and writes a folder:

    DIR/                          a checkpoint with the changes merged in: `--model local:DIR`
    DIR/adapter/                  the changes alone, in PEFT's format, for the model that was trained
    DIR/training.json             what was trained on what, and the loss of every step
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from langchain_core.messages import ChatMessage

from ...memory.errors import UserError, WindowError
from ..local.model import LocalChatModel
from .lora import Example, LoRA, attach_lora, make_optimizer, step, write_adapter

__all__ = ["Chat", "DataError", "FineTuningReport", "encode_chat", "learning_rate_factor", "read_chats", "train"]

log = logging.getLogger(__name__)

Chat = Sequence[Mapping[str, str]]
"""Messages, each with a `role` and its `content`; the last one is the reply to learn."""
ROLES = ("system", "user", "assistant", "tool")


class DataError(UserError, ValueError):
    """A data set that cannot be trained on."""


@dataclass(frozen=True)
class FineTuningReport:
    """What a training did."""

    model: str
    """What was trained; of a folder the last part alone."""
    settings: LoRA
    examples: int
    left_out: int
    """Examples that are longer than the model's window: they were not trained on."""
    longest: int
    """Tokens of the longest example, left out or not; of one whose prompt alone is too long, those of the prompt."""
    tokens: int
    """Tokens of the replies that were learned, once."""
    losses: tuple[float, ...]
    """Of every update, before it, in nats per token of the replies."""
    seconds: float
    """Of the updates."""


# Data


def read_chats(path: str | os.PathLike[str]) -> list[Chat]:
    """The chats of a JSONL file: a line is `{"messages": [{"role": ..., "content": ...}, ...]}`, and may say more.

    Raises:
        DataError: naming the line, what was expected and what came.
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
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if role not in ROLES or not isinstance(content, str):
            raise ValueError(f"expected a message with a role ({', '.join(ROLES)}) and a text as content, got {message!r:.80}")
    if messages[-1]["role"] != "assistant" or not messages[-1]["content"].strip():
        raise ValueError(
            f"the last message is the reply to learn, an assistant's that says something; got {messages[-1]!r:.80}"
        )
    return messages


def encode_chat(model: LocalChatModel, chat: Chat) -> Example:
    """The tokens of a chat, as the model is asked and as it replies.

    Raises:
        WindowError: it is longer than the model's window.
        UserError: the chat template or the tokenizer cannot tell prompt and reply apart; see `LocalChatModel.reply_ids`.
    """
    *asked, answer = chat
    prompt = model.prompt_ids([ChatMessage(role=turn["role"], content=turn["content"]) for turn in asked])
    example = Example(tuple(prompt), model.reply_ids(answer["content"]))
    if len(example) > model.window:
        raise WindowError(
            f"{model.model}: an example of {len(example)} tokens does not fit its window of {model.window}", len(example)
        )
    return example


def learning_rate_factor(done: int, steps: int, warmup: float) -> float:
    """The share of the peak rate for the update after `done` of `steps`: up in a line, then down along half a cosine.

    The first update has the first share above 0, and the one after the last would have 0.
    """
    rising = math.ceil(warmup * steps)
    if done < rising:
        return (done + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (done - rising) / (steps - rising)))


# A training


def train(chats: Sequence[Chat], model: LocalChatModel, settings: LoRA, out: Path, name: str | None = None) -> FineTuningReport:
    """Train on chats, and write the folder `out`. Afterwards `model` itself is the trained one.

    `name` is what the record calls the model; if not given, its name on the hub, or the last part of its folder.

    The folder appears when all is done; an interrupted training leaves none.

    Raises:
        UserError: `out` is there already or cannot be written; no example fits the model's window; one cannot be put into tokens;
            a gradient is not finite.
    """
    examples, sizes = [], []
    for number, chat in enumerate(chats, 1):
        try:
            examples.append(encode_chat(model, chat))
            sizes.append(len(examples[-1]))
        except WindowError as error:
            sizes.append(error.tokens)
        except UserError as error:
            raise DataError(f"example {number}: {error}") from error
    left_out = len(chats) - len(examples)
    if not examples:
        raise DataError(
            f"none of {len(chats)} examples fits the window of {model.window} tokens; the longest has {max(sizes, default=0)}"
        )
    if left_out:
        log.warning(
            "%d of %d examples are left out: they do not fit the window of %d tokens (the longest has %d)",
            left_out, len(chats), model.window, max(sizes),
        )  # fmt: skip
    with _atomic_folder(out) as part:
        wrapper = attach_lora(model.network, settings)
        losses, seconds = _run_updates(model.network, examples, settings)
        hub = None if Path(model.model).is_dir() else model.model
        tokens = sum(len(example.reply) for example in examples)
        called = name or hub or Path(model.model).name
        trained = FineTuningReport(
            called, settings, len(examples), left_out, max(sizes), tokens, tuple(losses), round(seconds, 3)
        )
        write_adapter(wrapper, part / "adapter", hub)
        _write_merged_model(wrapper, model, part)
        (part / "training.json").write_text(json.dumps(asdict(trained), indent=2) + "\n", encoding="utf-8")
    return trained


def _run_updates(network: Any, examples: Sequence[Example], settings: LoRA) -> tuple[list[float], float]:
    """The updates: the loss of each, and the seconds they took."""
    updates = make_optimizer(network, settings)
    steps = settings.epochs * -(-len(examples) // settings.batch)
    losses: list[float] = []
    started = perf_counter()
    for epoch in range(settings.epochs):
        order = random.Random(f"{settings.seed}/{epoch}").sample(examples, len(examples))
        for start in range(0, len(order), settings.batch):
            for group in updates.param_groups:
                group["lr"] = settings.rate * learning_rate_factor(len(losses), steps, settings.warmup)
            batch = order[start : start + settings.batch]
            losses.append(step(network, updates, batch, micro_batch_size=settings.micro, max_grad_norm=settings.clip).loss)
            if len(losses) % max(1, steps // 20) == 0 or len(losses) == steps:
                log.info("update %d of %d: loss %.4f nats per token", len(losses), steps, losses[-1])
    return losses, perf_counter() - started


def _write_merged_model(wrapper: Any, model: LocalChatModel, folder: Path) -> None:
    """Merge the changes into the weights, and write them as a checkpoint."""
    from transformers.utils import logging as bars

    wrapper.merge_and_unload()
    model.clear_cache()
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model.network.save_pretrained(folder)
        model.tokenizer.save_pretrained(folder)
    finally:
        if shown:
            bars.enable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def _atomic_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` that becomes `out` when all has gone well, and vanishes otherwise."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already; give another folder, or remove it")
    part = out.with_name(out.name + ".part")
    try:
        shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
        part.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot write {part}: {error.strerror or error}") from error
    try:
        yield part
        for path in filter(Path.is_file, part.rglob("*")):  # a power cut must not leave a finished folder of empty files
            with path.open("rb") as file:
                os.fsync(file.fileno())
        part.replace(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
