"""Step-MFT: the selection of useful strategies, on which a model is fine-tuned to write such ones (AdaMEM, section 3.3).

In the runs, the agent drafts an action a', reads a strategy z, and acts again (a). A pair ((s, E), z) is kept if

    1. the episode succeeded, and
    2. the action changed: a != a'. Otherwise the strategy cannot have helped (Proposition 3.1, for greedy agents).

Agents that sample also change their actions by chance (a strategy without effect passes filter 2 at the rate 1 - sum p(a)^2), and
a changed action need not be a better one (tests/equations/test_adamem.py).

These are pure functions over plain records. tools/training/sft.py trains on the selected pairs, as may any trainer (`chat`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from ...memory.errors import UserError
from ...memory.records import NO_ACTION
from ..read_reply import normal_form

__all__ = ["MftError", "Pair", "chat", "collect_pairs", "outcome_set", "sample_pairs", "step_set"]

ROLES = {"human": "user", "ai": "assistant", "system": "system", "user": "user", "assistant": "assistant"}
"""Role of a message in LangChain -> its role in chat files."""


class MftError(UserError, ValueError):
    """An error: pairs cannot be collected or filtered."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A strategy with its prompt, the actions before and after it, and the episode's score."""

    id: str
    """`<run>/<episode>/<step>`."""
    prompt: tuple[tuple[str, str], ...]
    """(s, E): role and text of each message of the prompt for the strategy, which shows the state with its precedents."""
    reply: str
    """z*: the whole reply, reasoning included."""
    strategy: str
    """z: the advice in the reply, as the agent read it."""
    author: str
    """`model`, or `rule` (`RecallStrategy`)."""
    tentative: str
    """a': the agent's draft, made without the strategy."""
    action: str
    """a: the action taken with the strategy."""
    score: float
    """Sum of the environment's rewards in the episode, in its units."""
    solved: float | None = None
    """The score from which the task counts as solved, if known."""
    task: str = ""
    """Id of the task."""
    domain: str = ""
    """Name of the environment, without its settings (`webshop`)."""


# Collecting


def collect_pairs(
    rows: Sequence[Mapping[str, Any]], episode: str, score: float, *, solved: float | None = None, domain: str = ""
) -> tuple[list[Pair], int]:
    """One pair per step of a finished episode at which a strategy was written and used.

    The run was in mode `high`: in mode `low` drafts are made under the strategy at hand, so that they are not a' = pi(s).

    Args:
        rows: of the episode's steps, in order, with `tentative`, `strategy` and `synthesis` among their fields.
        episode: its id.
        score: of the episode.
        solved: the score from which the task counts as solved.
        domain: the environment that was played.

    Returns:
        The pairs, and the number of strategies without a draft before or an action after them, whose effect is unknown.

    Raises:
        MftError: a row is not one of AdaMEM's.
    """
    pairs: list[Pair] = []
    undrafted = 0
    for t, row in enumerate(rows):
        if not row.get("synthesis") or not row.get("strategy"):
            continue
        if row.get("tentative") in (None, "", NO_ACTION) or row["action"] == NO_ACTION:
            undrafted += 1
            continue
        try:
            pair = Pair(
                id=f"{episode}/{t}",
                prompt=tuple((ROLES[role], text) for role, text in row["synthesis"]["prompt"]),
                reply=row["synthesis"]["reply"],
                strategy=row["strategy"]["text"],
                author=row["strategy"]["author"],
                tentative=row["tentative"],
                action=row["action"],
                score=score,
                solved=solved,
                task=row["task"],
                domain=domain,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MftError(
                f"step {row['id']} of episode {episode} is not one of AdaMEM's ({type(error).__name__}: {error}); "
                "expected a strategy and the prompt and reply of its synthesis"
            ) from error
        pairs.append(pair)
    return pairs, undrafted


# Filtering


def canonical(action: str, domain: str = "") -> str:
    """The action in normal form (`normal_form`). In the domain `webshop` any `search[...]` is `search[]`.

    That is the published exception, by which two different searches count as no change. In domains where most actions are
    searches (`hotpot`), it would leave no pairs.
    """
    form = normal_form(action)
    return "search[]" if domain == "webshop" and form.startswith("search[") and form.endswith("]") else form


def is_different_action(action: str, tentative: str, domain: str = "") -> bool:
    """Filter 2: a != a', in canonical form. True if the action differs from the draft."""
    return canonical(action, domain) != canonical(tentative, domain)


def outcome_set(pairs: Iterable[Pair], success_threshold: float | None = None) -> list[Pair]:
    """The pairs that pass filter 1: the strategies of episodes whose score is at least the threshold.

    Args:
        pairs: the pairs.
        success_threshold: in the environment's units; None: the score from which each pair's task counts as solved.

    Raises:
        MftError: there is no threshold, and a task's is unknown.
    """
    found = []
    for pair in pairs:
        bound = pair.solved if success_threshold is None else success_threshold
        if bound is None:
            raise MftError(f"the score from which task {pair.task} is solved is unknown; give it with --success-threshold")
        if pair.score >= bound:
            found.append(pair)
    return found


def step_set(pairs: Iterable[Pair], success_threshold: float | None = None) -> list[Pair]:
    """The pairs that pass both filters: strategies of episodes that succeeded which changed the action."""
    return [
        pair for pair in outcome_set(pairs, success_threshold) if is_different_action(pair.action, pair.tentative, pair.domain)
    ]


def sample_pairs(pairs: Sequence[Pair], count: int, seed: int = 0) -> list[Pair]:
    """At most `count` random pairs, in their order. The outcome arm thus has as many examples as the step arm."""
    if count >= len(pairs):
        return list(pairs)
    return [pairs[i] for i in sorted(Random(f"{seed} outcome arm").sample(range(len(pairs)), count))]


def chat(pair: Pair) -> dict[str, list[dict[str, str]]]:
    """The pair in the form of chat trainers: the prompt's messages, and the reply as the assistant's message."""
    turns = [*pair.prompt, ("assistant", pair.reply)]
    return {"messages": [{"role": role, "content": text} for role, text in turns]}
