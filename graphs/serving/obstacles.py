"""The obstacles to an adapter's learning, in words: why nothing is learned, and what would help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...memory.claas.adapters import Adapters
from ...memory.claas.replay import Replay
from ...memory.claas.settings import Objective
from ...memory.errors import AdapterError, hide_paths
from ...nodes.learn.gate import HELD_OUT_CHECK
from ...nodes.learn.gradient_step import least_exchanges, steps_ahead
from ..claas import CLaaS
from .learning_task import TurnReport

__all__ = ["Obstacle", "find_obstacles"]


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something that holds learning up, or a check of the gate that cannot be made."""

    kind: Literal["failure", "too few", "ahead", "nothing to learn", "gate", "bound", "held out"]
    why: str
    """What is the case, with its numbers."""
    help: str
    """What would help."""


def find_obstacles(
    settings: CLaaS, replay: Replay, versions: Adapters, report: TurnReport, counts: Mapping[str, int]
) -> list[Obstacle]:
    """All that holds an adapter's learning up; empty: nothing does.

    Args:
        settings: CLaaS's settings.
        replay: the buffer.
        versions: the adapter's.
        report: the adapter's last turn at the learner.
        counts: number of its records by state.
    """
    found = []
    if report.pause:
        found.append(
            Obstacle("failure", report.pause, "the service tries again by itself, and its log says more; nothing is lost")
        )
    tenant, adapter = versions.tenant, versions.adapter
    ready = counts.get("ready", 0) + counts.get("leased", 0)
    least = least_exchanges(settings.replay.min_exchanges, replay.step(tenant, adapter), counts.get("held", 0))
    ahead = steps_ahead(replay, tenant, adapter, settings.max_lead_steps)
    if ahead and ready >= least:
        why = f"the model learned for {ahead} steps from replies of older versions: what it says now is in none of them"
        found.append(Obstacle("ahead", why, "feedback on new replies"))
    if ready < least:
        missing = least - ready
        why = f"{ready} of {least} exchanges with feedback are ready for the next step"
        found.append(Obstacle("too few", why, f"{missing} more {'feedback' if missing == 1 else 'feedbacks'}"))
    if report.outcome == "skipped":
        found.append(Obstacle("nothing to learn", hide_paths(report.why), _help_with_feedback(settings.loss)))
    drops = versions.drops_in_a_row
    if drops:
        newest = next(line for line in reversed(versions.log()) if line["state"] == "dropped")
        why = f"{drops} {'version' if drops == 1 else 'versions in a row'} failed the gate, the last by: {hide_paths(newest['why'])}"
        found.append(Obstacle("gate", why, _help_with_gate(newest)))
    if newest_update := replay.updates(tenant, adapter, 1):
        found += _find_bound(settings, newest_update[0])
    return [*found, *_find_untested(settings, versions)]


def _help_with_feedback(loss: Objective) -> str:
    if loss.kind == "mixed":
        return "words, or rewards that differ: feedback on good replies and on bad ones"
    if loss.kind == "sdpo":
        return "words with the feedback, or a liked reply to the same prompt; --preset default and --preset reinforce learn from rewards"
    return "rewards that differ: feedback on good replies and on bad ones"


def _help_with_gate(line: Mapping[str, Any]) -> str:
    """Remedies for the checks that a dropped version failed."""
    failed = {check["name"] for check in line.get("about", {}).get("gate", []) if not check["passed"]}
    help = ["the feedback behind it teaches again, by half the step, when the next feedback comes"]
    if HELD_OUT_CHECK in failed:
        help.append("feedback on new replies shows whether what was liked before is liked still")
    if failed & {"kl", "entropy", "retention"}:
        help.append("a wider bound (--gate.max-kl, --gate.min-entropy-share, --gate.max-logprob-loss), or a rollback")
    return "; ".join(help)


def _find_bound(settings: CLaaS, update: Mapping[str, Any]) -> list[Obstacle]:
    """The bound on the distance from the base model, if the newest step reached it."""
    shrink = float(update.get("shrink", 1.0))
    if not (settings.gate.enabled and shrink < 1.0):
        return []
    why = (
        f"the model is as far from the base model as the gate allows (KL {update.get('kl', 0.0):.2f} of {settings.gate.max_kl:g} nats "
        f"a token): the last step scaled all that was learned by {shrink:.2f}"
    )
    help = "it learns on, and what is not repeated fades; a wider bound (--gate.max-kl), or another adapter for other wishes"
    return [Obstacle("bound", why, help)]


def _find_untested(settings: CLaaS, versions: Adapters) -> list[Obstacle]:
    """Held-out feedback that is too little for the gate, if the live version passed without it."""
    if not (settings.gate.enabled and settings.replay.held_out_share > 0 and versions.current):
        return []
    try:
        checks = versions.version(versions.current).about.get("gate", [])
    except AdapterError:  # a damaged version is withdrawn when it is loaded
        return []
    note = next((check["note"] for check in checks if check["name"] == HELD_OUT_CHECK and check["value"] is None), None)
    if note is None:
        return []
    help = (
        f"rewards: {settings.replay.held_out_share:.0%} of the replies are held out for this test, and those need a reward each"
    )
    return [Obstacle("held out", f"the live version was not tested on held-out feedback: {note}", help)]
