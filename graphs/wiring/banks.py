"""Banks: files of trajectories that a memory starts from, and how precedents of them are judged and shown.

What is read or embedded once serves all runs of a process.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from ...memory.attempts.trajectories import KeyFunction, Trajectories, read_bank, structured_key, whole_prompt_key
from ...memory.errors import UserError
from ...memory.records import Trajectory
from ...memory.search.encoders import EncoderOptions, open_encoder
from ...memory.search.vectors import CosineSimilarity
from ...nodes.act.episode import takes_unlisted_actions
from ...nodes.prompt import Prompt
from ...nodes.retrieve.chat_layout import ChatLayout
from ...nodes.retrieve.recollect import Excerpts, PrecedentMemory, SituationExcerpts
from .inputs import MethodInputs

__all__ = [
    "KEYS",
    "KeyName",
    "admissible_prompt",
    "bank_success_threshold",
    "bank_trajectories",
    "load_bank_memory",
    "open_vectors",
    "precedent_excerpts",
    "reaches_return",
    "require_success_threshold",
    "success_predicate",
]

KeyName = Literal["structured", "whole"]
KEYS: dict[KeyName, KeyFunction] = {"structured": structured_key, "whole": whole_prompt_key}
"""phi(s_t) by name: of the goal and the present state, or of the whole prompt with its history."""


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
    return _memory(Path(path), _mtime_ns(path), key=key, success_threshold=success_threshold, similarity=similarity)


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


def bank_trajectories(inputs: MethodInputs, path: str, method: str) -> tuple[Trajectory, ...]:
    """The trajectories of a bank file; none without a path. The file is read again only when it has changed.

    Raises:
        UserError: the file is no bank, or holds no trajectory of this environment.
    """
    if not path:
        return ()
    bank = _read(Path(path), _mtime_ns(path))
    if not any(trajectory.domain == inputs.environment.name for trajectory in bank):
        raise UserError(f"{method}: {path} holds no trajectory of {inputs.environment.name}; it has those of {bank[0].domain}")
    return bank


def bank_success_threshold(inputs: MethodInputs, given: float | None) -> float | None:
    """The return from which an attempt of a bank counts as a success; None: unknown.

    The rewards of a bank are the environment's, whatever judges the attempts of this run. Under a judge the given threshold
    is on the judge's scale and says nothing about the bank.
    """
    return replace(inputs, judge=None).success_threshold(None if inputs.judge else given)


def require_success_threshold(
    inputs: MethodInputs, method: str, given: float | None, bank: str = "", *, other: str = "take all attempts (outcomes=all)"
) -> float | None:
    """The return from which an attempt is a success, which has to be known in this run and in the bank (if there is one).

    Raises:
        UserError: it is not; names the setting to use, or what `other` says. A drawing has no environment, and nothing is checked.
    """
    found = inputs.success_threshold(given)
    if inputs.environment is None:
        return found
    silent = "a judge's rewards have a scale of their own" if inputs.judge else f"{inputs.environment.name} does not say it"
    if found is None:
        raise UserError(f"{method}: which return is a success? {silent}; set success_threshold to the least one, or {other}")
    if bank and bank_success_threshold(inputs, given) is None:
        raise UserError(
            f"{method}: which return is a success in {bank}? {inputs.environment.name} does not say it, and success_threshold is "
            "on the judge's scale; take all attempts (outcomes=all)"
        )
    return found


def success_predicate(
    inputs: MethodInputs, given: float | None, bank: Sequence[Trajectory]
) -> Callable[[Trajectory], bool | None]:
    """A predicate: did an attempt of this bank or of this run succeed? It gives None where that is unknown."""
    ids = {trajectory.id for trajectory in bank}
    in_bank = reaches_return(bank_success_threshold(inputs, given))
    in_run = reaches_return(inputs.success_threshold(given))
    return lambda attempt: (in_bank if attempt.id in ids else in_run)(attempt)


def precedent_excerpts(
    inputs: MethodInputs, memory: PrecedentMemory, following_steps: int | None, max_state_chars: int | None
) -> Excerpts:
    """The layout of remembered steps in prompts, as suits the model; all of them take half the prompt at most.

    Args:
        memory: holds the steps.
        following_steps: steps shown of those that followed one; None: all.
        max_state_chars: characters of a past state, at most 400 for a model that only scores; None: all.
    """
    room = min(inputs.prompting.max_prompt_tokens // 2, inputs.max_precedent_tokens)
    if inputs.make_writing_policy is None:
        return Excerpts(memory, inputs.prompting.count_tokens, room, following_steps, min(max_state_chars or 400, 400))
    layout = inputs.running_layout()
    if inputs.of_conversations and isinstance(layout, ChatLayout):
        layout = replace(layout, notes=True, names_request=True)
    sizes = memory, inputs.prompting.count_tokens, room, following_steps, max_state_chars
    return SituationExcerpts(*sizes, layout=layout, of_conversations=inputs.of_conversations)


def admissible_prompt(inputs: MethodInputs) -> Prompt | None:
    """The text with which prompts list the admissible actions; None where they do not, or the world lists none."""
    if inputs.make_writing_policy is None:
        return None
    name = "act/suggested" if takes_unlisted_actions(inputs.environment) else "act/admissible"
    return inputs.prompting.load(name)


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
    success = reaches_return(success_threshold)
    return Trajectories(bank=_read(path, stamp), key=KEYS[key], similarity=similarity, success=success)
