"""`learngraph adamem train`: fine-tune a local model with LoRA on chats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from ....memory.errors import CommandError
from ..flags import parse_options_and_settings

__all__ = ["TrainOptions", "train"]


@dataclass(frozen=True)
class TrainOptions:
    """Options of `learngraph adamem train`: the model and the data set."""

    data: Positional[Path]
    """A file of chats, one a line: what `learngraph adamem filter` has written, or any other."""
    out: Path
    """The output: a new folder for the trained model, which `--model local:DIR` opens. Its folder `adapter` holds the LoRA
    matrices alone, in PEFT's format."""
    model: str = "pocket"
    """The model: `pocket` or `local:PATH_OR_NAME`. Training starts from it."""
    device: str = "cpu"
    """Device of the model: `cpu`, `cuda`, `cuda:1`, `mps`."""
    dtype: str = "float32"
    """Number format of the model: bfloat16 takes half the memory. LoRA matrices are always float32."""


def train(args: Sequence[str]) -> int:
    """Fine-tune a local model on a data set, and write it to a folder."""
    import logging

    from ....tools.models.models import open_model
    from ....tools.training.sft import FineTuningSettings, read_chats
    from ....tools.training.sft import train as fine_tune

    options, settings = parse_options_and_settings(
        TrainOptions,
        FineTuningSettings(),
        args,
        "learngraph adamem train",
        "Fine-tune a local model with LoRA on chats, one a line.",
        "LoRA: settings of the training",
    )
    if options.model.startswith("openai:"):
        raise CommandError(f"--model {options.model}: weights behind an API cannot be trained; use pocket or local:PATH")
    logging.basicConfig(format="%(message)s")  # to stderr
    logging.getLogger("learngraph").setLevel(logging.INFO)
    chats = read_chats(options.data)
    model: Any = open_model(options.model, device=options.device, dtype=options.dtype)
    done = fine_tune(chats, model, settings, options.out, "pocket" if options.model == "pocket" else None)
    left = f"; {done.left_out} longer than the window of {model.window} tokens were left out" if done.left_out else ""
    print(
        f"{done.examples} examples, {len(done.losses)} updates in {done.seconds:.1f} s: loss {done.losses[0]:.4g} in the first, "
        f"{done.losses[-1]:.4g} in the last, in nats per token{left}\n"
        f"written to {options.out}; --model local:{options.out} plays with it"
    )
    return 0
