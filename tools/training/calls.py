"""The calls of a learner that works elsewhere, in another process or on another machine: settings, records and errors as messages.

Loads no torch, so that a service that only serves needs no more than the learner's address.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from ...memory.claas.settings import LoRA, Objective
from ...memory.errors import UserError, WindowError, machine_error
from ...memory.records import Minibatch

__all__ = [
    "LearnerSettings",
    "VersionError",
    "decode",
    "decode_error",
    "encode",
    "encode_error",
    "scratch_folder",
    "step_output",
]

Record = TypeVar("Record")


class VersionError(UserError, ValueError):
    """A version's folder that this learner cannot go on from."""


@dataclass(frozen=True)
class LearnerSettings:
    """The settings of a `LoRATrainer`, apart from its model."""

    lora: LoRA = field(default_factory=LoRA)
    objective: Objective = field(default_factory=Objective)
    hindsight: str = "$feedback"
    measure_kl: bool = True


@cache
def _adapter(form: Any) -> TypeAdapter[Any]:
    return TypeAdapter(form)


def encode(record: Any) -> Any:
    """A record as JSON values. Infinite numbers stay numbers, as Python's JSON has them."""
    form: Any = type(record)
    return _adapter(form).dump_python(record, mode="json")


def decode(form: type[Record], values: Any) -> Record:
    """A record from JSON values.

    Raises:
        UserError: they are not those of such a record.
    """
    try:
        any_form: Any = form
        found: Record = _adapter(any_form).validate_python(values)
    except ValidationError as error:
        raise UserError(f"not a {form.__name__}: {error.errors(include_url=False, include_input=False)[:3]}") from error
    return found


def step_output(batch: Minibatch) -> str:
    """The name under which a learner hands over the version that it made of a minibatch, before it has a label."""
    return f"{batch.tenant}/{batch.adapter}.step-{batch.step}"


def decode_error(kind: str, answer: Any) -> Exception:
    """The error of a message of `encode_error`."""
    if kind == "failed":
        return RuntimeError(f"the learner's process failed; this is a bug:\n{answer}")
    name, text, tokens, number = answer
    if name == "OSError":
        return OSError(number, text)
    error: UserError
    if name == "WindowError":
        error = WindowError(text, tokens)
    elif name == "VersionError":
        error = VersionError(text)
    else:
        error = UserError(text)
    if number is not None:  # keeps an error of the machine recognisable
        error.__cause__ = OSError(number, os.strerror(number))
    return error


def encode_error(error: Exception) -> tuple[str, Any]:
    """An error as a message: its class's name, text, tokens and the number of an OSError in its causes."""
    failure = machine_error(error)
    number = None if failure is None else failure.errno or 0
    if isinstance(error, UserError):
        return "raised", (type(error).__name__, str(error), getattr(error, "tokens", 0), number)
    if failure is not None:
        return "raised", ("OSError", failure.strerror or str(error), 0, number)
    return "failed", traceback.format_exc()


@contextmanager
def scratch_folder(scratch: Path | None) -> Iterator[Path]:
    """A folder for a new version, removed afterwards unless it was moved away.

    Raises:
        UserError: it cannot be made.
    """
    try:
        if scratch is not None:
            scratch.mkdir(parents=True, exist_ok=True)
        out = Path(tempfile.mkdtemp(prefix="version-", dir=scratch))
    except OSError as error:
        raise UserError(f"cannot make a folder for the new version: {error}") from error
    try:
        yield out
    finally:
        shutil.rmtree(out, ignore_errors=True)
