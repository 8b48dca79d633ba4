"""Banks: files of trajectories that a memory starts from. What is read or embedded once serves all runs of a process."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Literal

from ...memory.attempts.trajectories import KeyFunction, Trajectories, read_bank, structured_key, whole_prompt_key
from ...memory.records import Trajectory
from ...memory.search.encoders import EncoderOptions, open_encoder
from ...memory.search.vectors import CosineSimilarity

KeyName = Literal["structured", "whole"]
KEYS: dict[KeyName, KeyFunction] = {"structured": structured_key, "whole": whole_prompt_key}
"""phi(s_t) by name: of the goal and the present state, or of the whole prompt with its history."""


def load_bank(path: str) -> tuple[Trajectory, ...]:
    """The trajectories of a bank file, which is read again only when it has changed."""
    return _read(Path(path), _mtime_ns(path))


def load_bank_memory(
    path: str, *, key: KeyName, success_threshold: float | None, similarity: CosineSimilarity | None
) -> Trajectories:
    """The memory of a bank to which nothing is added; the runs of a process share it.

    Args:
        path: the bank.
        key: the name of phi(s_t), by which steps are compared.
        success_threshold: the return from which a trajectory counts as a success; None: unknown.
        similarity: compares keys, from `open_vectors`; None: by their words.
    """
    return _memory(
        Path(path),
        _mtime_ns(path),
        key=key,
        success_threshold=success_threshold,
        similarity=similarity,
    )


@lru_cache(maxsize=4)
def open_vectors(options: EncoderOptions, vectors_file: str) -> CosineSimilarity | None:
    """The cosine similarity of an encoder, whose vectors a file keeps; None without a name."""
    if not options.name:
        return None
    encoder, prompts = open_encoder(options)
    return CosineSimilarity(encoder, vectors_file or None, prompts=prompts)


def reaches_return(threshold: float | None) -> Callable[[Trajectory], bool | None]:
    """A predicate: did an attempt earn at least `threshold`? It gives None where the threshold or the return is unknown."""
    return lambda attempt: None if threshold is None or attempt.value is None else attempt.value >= threshold


def _mtime_ns(path: str) -> int:
    """The time of a file's last change in nanoseconds; 0 if there is no file."""
    file = Path(path)
    return file.stat().st_mtime_ns if file.exists() else 0


@lru_cache(maxsize=4)
def _read(path: Path, stamp: int) -> tuple[Trajectory, ...]:
    return read_bank(path)


@lru_cache(maxsize=4)
def _memory(
    path: Path, stamp: int, *, key: KeyName, success_threshold: float | None, similarity: CosineSimilarity | None
) -> Trajectories:
    return Trajectories(
        bank=_read(path, stamp),
        key=KEYS[key],
        similarity=similarity,
        success=reaches_return(success_threshold),
    )
