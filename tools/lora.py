"""Fine-tune a local model on chats with LoRA: small changes of its weights, learned from the last reply of each chat.

    L = -E[ log pi(z | s) ]        the mean over the tokens z of all replies, in nats; prompts s are read, not learned

A chat becomes tokens as `LocalChatModel` makes them (`prompt_ids`, `reply_ids`), so that what is trained is what is scored and
what is generated. Made for AdaMEM's Step-MFT (nodes/mft.py): s is the situation with its experiences, z the strategy.

`step` is one update on its own: loss, gradient, AdamW. `train` goes through a data set with it, and writes a folder:

    DIR/                          a checkpoint with the changes merged in: `--model local:DIR`
    DIR/adapter/                  the changes alone, in PEFT's format, for the model that was trained
    DIR/training.json             what was trained on what, and the loss of every step
"""

from __future__ import annotations

import inspect
import json
import logging
import math
import os
import random
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from langchain_core.messages import ChatMessage
from torch import Tensor

from ..memory.records import UserError
from .local_model import LocalChatModel, WindowError

__all__ = [
    "Chat",
    "DataError",
    "Example",
    "LoRA",
    "Stepped",
    "Trained",
    "adapt",
    "encode",
    "optimizer",
    "read_chats",
    "replies",
    "schedule",
    "step",
    "surprise",
    "train",
]

log = logging.getLogger(__name__)

Chat = Sequence[Mapping[str, str]]
"""Messages, each with a `role` and its `content`; the last one is the reply to learn."""
ROLES = ("system", "user", "assistant", "tool")


class DataError(UserError, ValueError):
    """A data set that cannot be trained on."""


@dataclass(frozen=True)
class LoRA:
    """How to train. "Paper" is AdaMEM (arXiv 2606.05684); what it does not give is ours, or what trainers usually take."""

    rank: int = 32
    """r: a weight W becomes W + alpha / r B A, with A of shape (r, inputs) and B of shape (outputs, r). Paper: 32."""
    alpha: float = 64.0
    """The scale of the changes. Not given: twice the rank."""
    targets: str = "all-linear"
    """Which weights: all linear layers but the last, or names joined by commas (`q_proj,v_proj`). Not given."""
    epochs: int = 1
    """Times that each example is seen. Paper: 1."""
    batch: int = 64
    """Examples behind one update. Paper: 64."""
    micro: int = 4
    """Examples that share a pass; as many passes as a batch needs add up. Changes memory and speed, not the result. On a CPU 1 and
    4 are about as fast, 16 takes half as long again: short examples are filled up. Paper: 4 (and 16 passes)."""
    rate: float = 1e-4
    """Peak learning rate of AdamW. Missing in the paper; its code's README says 1e-4."""
    warmup: float = 0.1
    """Share of the updates in which the rate grows to its peak; then it falls as a cosine. Paper: 0.1."""
    decay: float = 0.0
    """Weight decay of the changes. Not given."""
    clip: float = 1.0
    """Longest gradient: longer ones are shortened to it. Not given."""
    seed: int = 0
    """Of the first changes and of the order of the examples. The same seed, machine and number of threads: the same weights."""

    def __post_init__(self) -> None:
        for name in ("rank", "epochs", "batch", "micro"):
            if getattr(self, name) < 1:
                raise UserError(f"LoRA: {name} is at least 1, got {getattr(self, name)}")
        for name in ("alpha", "rate", "clip"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise UserError(f"LoRA: {name} is a number above 0, got {getattr(self, name)}")
        if not 0 <= self.warmup <= 1 or not 0 <= self.decay < math.inf:
            raise UserError(f"LoRA: warmup is from 0 to 1 and decay 0 or more, got {self.warmup} and {self.decay}")


@dataclass(frozen=True, slots=True)
class Example:
    """A chat as tokens."""

    prompt: tuple[int, ...]
    """Up to where the reply begins; at least one."""
    reply: tuple[int, ...]
    """From there to the end of the turn, inclusive."""

    def __len__(self) -> int:
        return len(self.prompt) + len(self.reply)


@dataclass(frozen=True, slots=True)
class Stepped:
    """What an update did."""

    loss: float
    """Before it, in nats per token of the replies."""
    norm: float
    """Length of the gradient, before it was shortened."""
    tokens: int
    """Tokens of the replies."""


@dataclass(frozen=True)
class Trained:
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
                chats.append(_chat(json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {number}: {error}") from error
    if not chats:
        raise DataError(f'{path} holds no chats; expected one a line: {{"messages": [{{"role": ..., "content": ...}}, ...]}}')
    return chats


def _chat(row: Any) -> Chat:
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


def encode(model: LocalChatModel, chat: Chat) -> Example:
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


# One step


def surprise(logits: Tensor, targets: Tensor) -> Tensor:
    """L = -E[ log pi(z | s) ]: the mean of -log softmax(logits)[target], in nats.

    Args:
        logits: (tokens, vocabulary), what stands before each token of the replies. Prompts have no row here.
        targets: (tokens,), these tokens.

    Returns:
        () in float32.
    """
    chosen = logits.float().log_softmax(-1).gather(1, targets[:, None])  # (tokens, 1)
    return -chosen.mean()


def replies(network: Any, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """What the network says of each token of the replies, from one pass: logits (tokens, vocabulary), and the tokens (tokens,).

    The tokens stand example after example, in order. Shorter examples are filled up at their ends, which no token before them
    sees, so that no mask is needed. The last layer is computed only where a reply is, if the network lets us choose.
    """
    fed = [example.prompt + example.reply[:-1] for example in examples]  # nothing follows the last token
    longest = max(map(len, fed))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in fed], device=network.device)  # (examples, longest)
    spans = [range(len(example.prompt) - 1, len(example) - 1) for example in examples]  # what stands before a reply's tokens
    rows = [row for row, span in enumerate(spans) for _ in span]  # (tokens,)
    at = [column for span in spans for column in span]  # (tokens,)
    if _chooses(network):
        columns = sorted(set(at))  # (columns,)
        place = {column: n for n, column in enumerate(columns)}
        at = [place[column] for column in at]
        keep = torch.tensor(columns, device=network.device)
        logits = network(input_ids=ids, use_cache=False, logits_to_keep=keep).logits  # (examples, columns, vocabulary)
    else:
        logits = network(input_ids=ids, use_cache=False).logits  # (examples, longest, vocabulary)
    targets = torch.tensor([token for example in examples for token in example.reply], device=network.device)  # (tokens,)
    return logits[rows, at], targets


def _chooses(network: Any) -> bool:
    return "logits_to_keep" in inspect.signature(network.forward).parameters


def step(
    network: Any,
    optimizer: torch.optim.Optimizer,
    batch: Sequence[Example],
    *,
    micro: int = 4,
    clip: float = 1.0,
    loss: Callable[[Tensor, Tensor], Tensor] = surprise,
) -> Stepped:
    """One update: the loss of a batch, its gradient, AdamW.

    The gradient is that of the mean over all the batch's tokens, however it is cut into passes: each pass counts by its share of
    the tokens. Examples of similar length share a pass.

    Args:
        network: a causal model whose trainable parameters are the optimizer's.
        optimizer: steps on the gradient; its rate is set by the caller.
        batch: at least one example.
        micro: examples that share a pass.
        clip: the longest gradient.
        loss: the mean of something over tokens, from logits (tokens, vocabulary) and the tokens (tokens,).

    Raises:
        UserError: the gradient is not finite; nothing was changed.
    """
    tokens = sum(len(example.reply) for example in batch)
    ordered = sorted(batch, key=len)
    optimizer.zero_grad(set_to_none=True)
    total = torch.zeros((), device=network.device)
    for start in range(0, len(ordered), micro):
        part = ordered[start : start + micro]
        logits, targets = replies(network, part)
        share = loss(logits, targets) * (len(targets) / tokens)  # ()
        share.backward()  # type: ignore[no-untyped-call]
        total += share.detach()
    trained = [weight for group in optimizer.param_groups for weight in group["params"]]
    norm = float(torch.nn.utils.clip_grad_norm_(trained, clip))
    if not math.isfinite(norm):
        optimizer.zero_grad(set_to_none=True)
        raise UserError(f"the gradient is {norm} at a loss of {float(total):g}; a smaller rate or dtype float32 would do")
    optimizer.step()
    return Stepped(float(total), norm, tokens)


def adapt(network: Any, settings: LoRA) -> Any:
    """Put changes that are still nothing into the network, in place: from now on they alone are trained. Returns PEFT's wrapper."""
    try:
        import peft
    except ImportError as error:
        raise UserError("LoRA needs a package that is not here: pip install 'learngraph[lora]'") from error

    names = [name.strip() for name in settings.targets.split(",") if name.strip()]
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # a factor; PEFT only ever divides it
        target_modules=names if names != ["all-linear"] else "all-linear",
    )
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PEFT asks transformers for what has another name now
            torch.manual_seed(settings.seed)
            return peft.get_peft_model(network, config)
    except ValueError as error:
        raise UserError(f"LoRA: targets {settings.targets!r}: {str(error).splitlines()[0]}") from error


def optimizer(network: Any, settings: LoRA) -> torch.optim.Optimizer:
    """AdamW over what is trainable."""
    trained = [weight for weight in network.parameters() if weight.requires_grad]
    return torch.optim.AdamW(trained, lr=settings.rate, weight_decay=settings.decay, fused=True)


def schedule(done: int, steps: int, warmup: float) -> float:
    """The share of the peak rate for the update after `done` of `steps`: up in a line, then down along half a cosine.

    The first update has the first share above 0, and the one after the last would have 0.
    """
    rising = math.ceil(warmup * steps)
    if done < rising:
        return (done + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (done - rising) / (steps - rising)))


# A training


def train(chats: Sequence[Chat], model: LocalChatModel, settings: LoRA, out: Path, name: str | None = None) -> Trained:
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
            examples.append(encode(model, chat))
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
    with _written_last(out) as part:
        wrapper = adapt(model.network, settings)
        losses, seconds = _learn(model.network, examples, settings)
        hub = None if Path(model.model).is_dir() else model.model
        tokens = sum(len(example.reply) for example in examples)
        called = name or hub or Path(model.model).name
        trained = Trained(called, settings, len(examples), left_out, max(sizes), tokens, tuple(losses), round(seconds, 3))
        _write_adapter(wrapper, part / "adapter", hub)
        _write_merged(wrapper, model, part)
        (part / "training.json").write_text(json.dumps(asdict(trained), indent=2) + "\n", encoding="utf-8")
    return trained


def _learn(network: Any, examples: Sequence[Example], settings: LoRA) -> tuple[list[float], float]:
    """The updates: the loss of each, and the seconds they took."""
    updates = optimizer(network, settings)
    steps = settings.epochs * -(-len(examples) // settings.batch)
    losses: list[float] = []
    started = perf_counter()
    for epoch in range(settings.epochs):
        order = random.Random(f"{settings.seed}/{epoch}").sample(examples, len(examples))
        for start in range(0, len(order), settings.batch):
            for group in updates.param_groups:
                group["lr"] = settings.rate * schedule(len(losses), steps, settings.warmup)
            batch = order[start : start + settings.batch]
            losses.append(step(network, updates, batch, micro=settings.micro, clip=settings.clip).loss)
            if len(losses) % max(1, steps // 20) == 0 or len(losses) == steps:
                log.info("update %d of %d: loss %.4f nats per token", len(losses), steps, losses[-1])
    return losses, perf_counter() - started


def _write_adapter(wrapper: Any, folder: Path, base: str | None) -> None:
    """As PEFT's `save_pretrained`, but without the model card and without paths of this machine; names in order.

    `base`: the model's name on the hub; None for a folder.
    """
    import peft
    from safetensors.torch import save_file

    folder.mkdir()
    config = wrapper.peft_config["default"].to_dict()
    config |= {"base_model_name_or_path": base, "target_modules": sorted(config["target_modules"]), "inference_mode": True}
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    state = peft.get_peft_model_state_dict(wrapper, save_embedding_layers=False)
    tensors = {name: state[name].detach().cpu().contiguous() for name in sorted(state)}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _write_merged(wrapper: Any, model: LocalChatModel, folder: Path) -> None:
    """Merge the changes into the weights, and write them as a checkpoint."""
    from transformers.utils import logging as bars

    wrapper.merge_and_unload()
    model.forget()
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model.network.save_pretrained(folder)
        model.tokenizer.save_pretrained(folder)
    finally:
        if shown:
            bars.enable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def _written_last(out: Path) -> Iterator[Path]:
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
