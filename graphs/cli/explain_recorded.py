"""One step of a run in words, from its journal alone: for methods whose decisions are not made of numbers as JitRL's are.

What the journal does not hold is said to be missing, and no model is asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...memory.records import Trajectory
    from ..experiments.decisions import Explanation

__all__ = ["explain_row"]


def explain_row(
    name: str, row: Mapping[str, Any], remembered: Sequence[Trajectory] | str, remembers: bool, temperature: float = 1.0
) -> Explanation:
    """Say what is on record of a step.

    Args:
        name: name of the run.
        row: the journal's row of the step.
        remembered: what the memory held then, oldest first; or the reason for which it cannot be read.
        remembers: whether the method has a memory.
        temperature: the temperature of the action's draw.
    """
    from ..experiments.decisions import Explanation

    reward = "its reward is not known" if row["reward"] is None else f"its reward was {row['reward']:g}"
    place = f"Episode {row['episode']}, step {row['step']} of {name} (task {row['task']})"
    sentences = [f"{place}: in the state {_short(row['state'])!r} the agent took {row['action']!r}; {reward}."]
    precedents = row.get("precedents")
    if not remembers:
        sentences.append("The method remembers nothing, so it would have done the same without a memory.")
    elif precedents is None:
        sentences.append(
            "The journal does not record what of its memory stood in this step's prompt, so what the memory changed cannot be told "
            "without asking the model."
        )
    else:
        sentences += _recalled(row, precedents)
    if isinstance(remembered, str):
        sentences.append(remembered)
    table = _precedent_rows(precedents or (), () if isinstance(remembered, str) else remembered)
    return Explanation(tuple(sentences), table, _candidate_rows(row, temperature))


def _recalled(row: Mapping[str, Any], precedents: Sequence[Mapping[str, Any]]) -> list[str]:
    told = []
    if not precedents:
        near = row.get("nearest_similarity")
        more = f"; the nearest had a similarity of {near:.3g}" if near else ""
        told.append(f"Nothing was recalled at this step{more}.")
    else:
        told.append(
            f"{len(precedents)} remembered steps were recalled, the most similar with {precedents[0]['similarity']:.3g}."
        )
    if strategy := row.get("strategy"):
        told.append(f"The strategy at this step, written at step {strategy['step']}: {_short(strategy['text'], 300)!r}.")
    tentative = row.get("tentative")
    if tentative is None:
        told.append(
            "The agent drafted no action before it looked into its memory, so what it would have done without is not on record."
        )
    elif tentative == row["action"]:
        told.append(
            f"Before it recalled anything it would have taken {tentative!r} as well: memory did not change this action."
        )
    else:
        told.append(f"Before it recalled anything it would have taken {tentative!r}: memory changed this action.")
    return told


def _precedent_rows(precedents: Sequence[Mapping[str, Any]], remembered: Sequence[Trajectory]) -> tuple[tuple[str, ...], ...]:
    """A header, and a row for each recalled step: similarity, what was done there, what followed, and its age in episodes."""
    from ...memory.attempts.trajectories import return_to_go

    known = {one.id: one for one in remembered}
    ages = {one.id: number for number, one in enumerate(reversed(remembered))}
    rows = [("state", "action", "similarity", "return from there", "age in episodes", "step")]
    for one in precedents:
        trajectory, step = known.get(one["trajectory"]), one["step"]
        similarity, place = f"{one['similarity']:.3g}", f"{one['trajectory']}, step {step}"
        if trajectory is None or step >= len(trajectory.transitions):
            rows.append(("not in the memory any more", "", similarity, "", "", place))
            continue
        ahead, there = return_to_go(trajectory, step), trajectory.transitions[step]
        value = "" if ahead is None else f"{ahead:.3g}"
        rows.append((_short(there.state), there.action, similarity, value, str(ages[trajectory.id] + 1), place))
    return tuple(rows)


def _candidate_rows(row: Mapping[str, Any], temperature: float) -> tuple[tuple[str, ...], ...]:
    found = row.get("candidates") or []
    logits = [one["logit"] / temperature for one in found]
    total = sum(math.exp(z - max(logits)) for z in logits) if logits else 1.0
    rows = [("action", "logit", "probability")]
    for one, z in sorted(zip(found, logits, strict=True), key=lambda pair: -pair[1]):
        taken = "* " if one["action"] == row["action"] else ""
        rows.append((f"{taken}{one['action']}", f"{one['logit']:.3g}", f"{math.exp(z - max(logits)) / total:.3g}"))
    return tuple(rows)


def _short(text: str, limit: int = 80) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
