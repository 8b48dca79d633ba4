"""The obstacles to an adapter's learning, in words: why nothing is learned, and what would help."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...memory.claas.adapters import Adapters
from ...memory.claas.replay import Replay
from ...memory.claas.settings import Objective
from ...memory.errors import AdapterError, UserError, hide_paths, public_text
from ...nodes.learn.gate import HELD_OUT_CHECK
from ...nodes.learn.gradient_step import least_exchanges, steps_ahead
from ..claas import CLaaS
from .learning_task import TurnReport

__all__ = ["Obstacle", "ObstacleSurvey"]

KINDS = {
    "failure": "the service's log says more; it tries again by itself, and nothing is lost",
    "too few": "more feedback",
    "ahead": "feedback on new replies",
    "nothing to learn": "words, or rewards that differ: feedback on good replies and on bad ones",
    "gate": "feedback on new replies, or a wider bound",
    "resting": "the next feedback wakes it",
    "bound": "a wider bound (--gate.max-kl), or another adapter for other wishes",
    "held out": "rewards, also of the replies that are held out",
}
"""Kind of an obstacle -> what helps against it in general. GET /v1/status has more on each adapter."""
SURVEY_SHARE = 0.05
"""Largest share of the time that surveys take, where they are asked for all the time."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something that holds learning up, or a check of the gate that cannot be made."""

    kind: Literal["failure", "too few", "ahead", "nothing to learn", "gate", "resting", "bound", "held out"]
    why: str
    """What is the case, with its numbers."""
    help: str
    """What would help."""
    missing: int = 0
    """Feedbacks that are missing for the next step, at least; 0: more feedback alone does not help."""


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
        found.append(Obstacle("failure", report.pause, KINDS["failure"]))
    tenant, adapter = versions.tenant, versions.adapter
    ready = counts.get("ready", 0) + counts.get("leased", 0)
    least = least_exchanges(settings.replay.min_exchanges, replay.step(tenant, adapter), counts.get("held", 0))
    ahead = steps_ahead(replay, tenant, adapter, settings.max_lead_steps)
    if ahead and ready >= least:
        times = "the last step" if ahead == 1 else f"the last {ahead} steps"
        why = f"{times} learned from replies of older versions only: what the model says now is in none of them"
        found.append(Obstacle("ahead", why, KINDS["ahead"], 1))
    if ready < least:
        missing = least - ready
        why = f"{ready} of {least} exchanges with feedback are ready for the next step"
        found.append(Obstacle("too few", why, f"{missing} more {'feedback' if missing == 1 else 'feedbacks'}", missing))
    elif report.outcome == "too few" and report.waits and not ahead:
        why = f"{ready} exchanges are ready, most of them of one end user, who alone teaches nothing where several chat"
        found.append(Obstacle("too few", why, "feedback of other end users (--replay.max-user-share)", 1))
    if report.outcome == "skipped":
        found.append(Obstacle("nothing to learn", hide_paths(report.why), _help_with_feedback(settings.loss)))
    drops = versions.drops_in_a_row
    if drops:
        newest = next(line for line in reversed(versions.log()) if line["state"] == "dropped")
        why = f"{drops} {'version' if drops == 1 else 'versions in a row'} failed the gate, the last by: {hide_paths(newest['why'])}"
        found.append(Obstacle("gate", why, _help_with_gate(newest)))
    if report.rests:
        why = f"learning rests: {report.skips} minibatches in a row taught nothing, or made versions that failed the gate"
        found.append(Obstacle("resting", why, KINDS["resting"], 1))
    if newest_update := replay.updates(tenant, adapter, 1):
        found += _find_bound(settings, newest_update[0])
    return [*found, *_find_untested(settings, versions)]


def _help_with_feedback(loss: Objective) -> str:
    if loss.kind == "mixed":
        return "words, or rewards that differ: feedback on good replies and on bad ones"
    if loss.kind == "sdpo":
        return "words with the feedback, or a liked reply to the same prompt; --loss.kind mixed and --loss.kind reinforce learn from rewards"
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


class ObstacleSurvey:
    """The obstacles of all adapters, by tenant. Safe for threads.

    A survey is used again until it is twenty times as old as it took to make (`SURVEY_SHARE`), so that many adapters and frequent health
    checks do not keep the service busy.

    Args:
        scopes: lists (tenant, adapter) of all that may learn.
        find: the obstacles of one.
        clock: seconds.
    """

    def __init__(
        self,
        scopes: Callable[[], Iterable[tuple[str, str]]],
        find: Callable[[str, str], list[Obstacle]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scopes = scopes
        self._find = find
        self._clock = clock
        self._lock = threading.Lock()
        self._found: dict[str, list[Obstacle]] = {}
        self._until = float("-inf")

    def obstacles(self) -> Mapping[str, list[Obstacle]]:
        """Tenant -> the obstacles of its adapters; tenants without any are there, too."""
        with self._lock:
            began = self._clock()
            if began >= self._until:
                found: dict[str, list[Obstacle]] = {}
                for tenant, adapter in self._scopes():
                    found.setdefault(tenant, []).extend(self._of_adapter(tenant, adapter))
                self._found = found
                self._until = self._clock() + (self._clock() - began) / SURVEY_SHARE
            return self._found

    def _of_adapter(self, tenant: str, adapter: str) -> list[Obstacle]:
        try:
            return self._find(tenant, adapter)
        except UserError as error:  # damaged files, or it was deleted meanwhile
            return [Obstacle("failure", public_text(error), KINDS["failure"])]


def summarize_obstacles(found: Iterable[Obstacle]) -> list[dict[str, Any]]:
    """A row for each kind of obstacle that there is: number of `adapters`, `missing` feedbacks, `help`. It names no adapter."""
    rows: dict[str, dict[str, Any]] = {}
    for each in found:
        row = rows.setdefault(each.kind, {"kind": each.kind, "adapters": 0, "missing": 0, "help": KINDS[each.kind]})
        row["adapters"] += 1
        row["missing"] += each.missing
    return [rows[kind] for kind in KINDS if kind in rows]
