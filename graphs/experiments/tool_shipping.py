"""Writes what a seed of the study of tool agents learned into the package, with the evidence for it (memory/shipped).

python -m learngraph.graphs.experiments.tool_shipping --out runs/tools.jsonl --to memory/shipped
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...memory.errors import UserError
from ...memory.shipped import write_shipped
from ...memory.storage.rows import Rows
from ...nodes.evaluate.statistics import interval, mean
from ..cli.flags import parse_flags
from .evaluation import difference
from .tool_agents import ARMS, SETTINGS, Played, Study, ToolStudyOptions, outcomes, play_missing

__all__ = ["evidence_of"]

NAME = "tau2-telecom"
COMMAND = "python -m learngraph.graphs.experiments.tool_agents report --out runs/tools.jsonl"
SHIPPED = ("jitrl", "lessons")
"""The arms whose knowledge is shipped."""


@dataclass(frozen=True)
class ShippingOptions:
    """The folder that is written into, and what goes there."""

    out: Path
    """The study's file of results."""
    to: Path
    """The folder that is written into."""
    seeds: str = "0-9"
    """The seeds of the evidence."""
    prior: str = "uniform"
    """The prior with which it was learned."""
    seed: int = 0
    """The seed whose memory is taken: the first, not the best."""


def evidence_of(played: Sequence[Played], prior: str, seed: int, episodes: int) -> dict[str, Any]:
    """The evidence for what a seed learned: scores of all seeds with their intervals, and this seed's own."""
    arms = {arm: outcomes(played, prior, arm) for arm in ARMS}
    scores: dict[str, Mapping[str, Any]] = {}
    for arm in SHIPPED:
        means = [mean(one.scores) for one in played if (one.prior, one.arm) == (prior, arm)]
        control = next(other for other in ARMS if other.startswith(f"{arm}, shuffled"))
        leads = {name: difference(arms[arm], arms[name]) for name in (ARMS[0], control)}
        scores[arm] = {
            "seeds": len(means),
            "mean": mean(means),
            "interval": interval(means),
            "this seed": next(mean(o.scores) for o in played if (o.prior, o.arm, o.seed) == (prior, arm, seed)),
            **{f"less {name!r}": {"mean": lead.mean, "interval": lead.over_seeds} for name, lead in leads.items()},
        }
    passed = {
        arm: all(entry["interval"] and entry["interval"][0] > 0 for name, entry in score.items() if name.startswith("less "))
        for arm, score in scores.items()
    }
    return {
        "task": "tau2:telecom, tau2-bench's telecom tickets in solo mode, through a checklist of reading calls",
        "split": "learned on the official train split (74 tickets), scores on the official test split (40, of which handing over solves 12)",
        "model": {"writer": "a rule, no model", "reader": f"a rule over a prior: {prior}"},
        "learned by": f"JitRL (`SETTINGS` and `SIMILARITY` of graphs/experiments/tool_agents.py), seed {seed}, {episodes} train episodes with "
        "rewards from the official train solutions; lessons by rule",
        "gate": "ahead of static and of the shuffled control on the test split, 95 % intervals over seeds without 0: "
        + ", ".join(f"{arm} {'passed' if ok else 'did not pass'}" for arm, ok in passed.items()),
        "scores": scores,
        "command": COMMAND,
    }


def main(args: Sequence[str]) -> int:
    """Write the file, and return the exit status."""
    options = parse_flags(
        ShippingOptions, args, "tool_shipping", "Writes what the study of tool agents learned into the package."
    )
    study = Study(ToolStudyOptions("report", options.out, options.seeds, priors=(options.prior,)))  # type: ignore[arg-type]
    learned, played = play_missing(study, Rows(options.out), "as reported", SETTINGS)
    steps = next(one.steps for one in learned if one.seed == options.seed)
    evidence = evidence_of(played, options.prior, options.seed, study.options.episodes)
    write_shipped(options.to, NAME, evidence, study.lessons(steps), study.world.name, steps)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        sys.exit(f"error: {error}")
