"""The obstacles to an adapter's learning, in words: why nothing is learned, and what would help."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...memory.claas.adapters import Adapters
from ...memory.claas.replay import Replay
from ...memory.errors import hide_paths, plural
from ...memory.records import LEARNED_ALREADY
from ...nodes.learn.gradient_step import least_exchanges, steps_ahead
from ..claas import CLaaS
from .learning_task import AdapterTurn

__all__ = ["Obstacle"]

KINDS = {
    "failure": "the service's log says more; it tries again by itself, and nothing is lost",
    "critic": "a model that answers, and in the form that is asked for: the served one writes the lessons; GET /v1/status says how it failed",
    "frozen": "POST /v1/adapters/NAME/thaw",
    "erased": "DELETE /v1/experiences with withdraw=true, or POST /v1/adapters/NAME/rollback",
    "too few": "more feedback",
    "ahead": "feedback on new replies",
    "learned": "new wishes are learned as they come; the newest corrections (up to four) teach with the next feedback: the gate reads them first",
    "nothing to learn": "words, or rewards that differ: feedback on good replies and on bad ones",
    "gate": "feedback on new replies, or a wider bound; where the live version itself is wrong, POST /v1/adapters/NAME/rollback",
    "resting": "the next feedback wakes it",
    "bound": "a wider bound, which GET /v1/status names, or another adapter for other wishes",
}
"""Kind of an obstacle -> what helps against it in general. GET /v1/status has more on each adapter."""
KL_BINDS = 0.8
"""Share of the gate's bound on KL from which on it is the bound that holds a step back; below, it is the entropy's."""
HELP_BY_LOSS = {
    "mixed": KINDS["nothing to learn"],
    "sdpo": "words with the feedback, or a liked reply to the same prompt; --loss.kind mixed and --loss.kind reinforce learn from rewards",
}
"""What helps where a minibatch taught nothing, by the kind of loss; for the others rewards that differ."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something that holds learning up, or a check of the gate that cannot be made."""

    kind: str
    """A key of `KINDS`."""
    why: str
    """What is the case, with its numbers."""
    help: str
    """What would help."""
    missing: int = 0
    """Feedbacks that are missing for the next step, at least; 0: more feedback alone does not help."""


def find_obstacles(settings: CLaaS, replay: Replay, versions: Adapters, turn: AdapterTurn, pause: str) -> Iterator[Obstacle]:
    """All that holds an adapter's learning up; nothing: nothing does.

    Args:
        settings: CLaaS's settings.
        replay: the buffer.
        versions: the adapter's.
        turn: the adapter's last turn at the learner.
        pause: why it waits after a failure; empty: it does not.
    """
    if pause:
        yield Obstacle("failure", pause, KINDS["failure"])
    if (live := versions.current) and versions.version(live).tainted:
        yield Obstacle("erased", f"{live} answers, which learned from exchanges that were deleted since", KINDS["erased"])
    scope = versions.tenant, versions.adapter
    counts, ahead = replay.counts(*scope), steps_ahead(replay, *scope, settings.max_lead_steps)
    ready = counts.get("ready", 0) + counts.get("leased", 0)
    least = least_exchanges(settings.replay.min_exchanges, replay.step(*scope), counts.get("held", 0))
    if ahead and ready >= least:
        times = "the last step" if ahead == 1 else f"the last {ahead} steps"
        why = f"{times} learned from replies of older versions only: what the model says now is in none of them"
        yield Obstacle("ahead", why, KINDS["ahead"], 1)
    if ready < least:
        missing = least - ready
        why = f"{ready} of {least} exchanges with feedback are ready for the next step"
        yield Obstacle("too few", why, plural(missing, "more feedback"), missing if ready or not replay.step(*scope) else 0)
    elif turn.outcome == "too few" and not turn.due and not ahead:
        why = f"{ready} exchanges are ready, most of them of one end user, who alone teaches nothing where several chat"
        yield Obstacle("too few", why, "feedback of other end users (--replay.max-user-share)", 1)
    is_learned = turn.outcome == "skipped" and turn.why.startswith(LEARNED_ALREADY)
    if is_learned:
        yield Obstacle("learned", f"all that was asked for is learned ({turn.why})", f"{KINDS['learned']}; {turn.help}")
    elif turn.outcome == "skipped":
        help = turn.help or HELP_BY_LOSS.get(
            settings.loss.kind, "rewards that differ: feedback on good replies and on bad ones"
        )
        yield Obstacle("nothing to learn", hide_paths(turn.why), help)
    if drops := versions.drops_in_a_row:
        newest = next(line for line in reversed(versions.log()) if line["state"] == "dropped")
        which = "version" if drops == 1 else "versions in a row"
        why = f"{drops} {which} failed the gate, the last by: {hide_paths(newest['why'])}"
        yield Obstacle("gate", why, _help_with_gate(newest))
    if turn.rests and not is_learned:
        why = f"learning rests: {turn.skips} minibatches in a row taught nothing, or made versions that failed the gate"
        yield Obstacle("resting", why, KINDS["resting"], 1)
    if settings.gate.enabled:
        yield from _find_bound(settings, replay.updates(*scope, 1))


def _help_with_gate(line: Mapping[str, Any]) -> str:
    """Remedies for the checks that a dropped version failed."""
    failed = {check["name"] for check in line.get("about", {}).get("gate", []) if not check["passed"]}
    help = ["the feedback behind it teaches again when the next feedback comes"]
    if failed & {"shared words lost", "own words lost"}:
        help.append("feedback on new replies shows whether what was liked before is liked still")
    if "corrected replies lost" in failed:
        help.append(
            "more corrections that agree: after learning the present ones, the model gives other corrected prompts a reply that nobody asked for. If "
            "the live version does so already, POST /v1/adapters/NAME/rollback"
        )
    if failed & {"kl", "entropy", "retention"}:
        help.append("a wider bound (--gate.max-kl, --gate.min-entropy-share, --gate.max-retention-loss), or a rollback")
    return "; ".join(help)


def _find_bound(settings: CLaaS, newest: Iterable[Mapping[str, Any]]) -> Iterator[Obstacle]:
    """The bound on the distance from the base model, if the newest step reached it."""
    for update in newest:
        if (shrink := float(update.get("shrink", 1.0))) < 1.0:
            kl, most, least = float(update.get("kl", 0.0)), settings.gate.max_kl, settings.gate.min_entropy_share
            bound, flag = f"KL {kl:.2f} of {most:g} nats a token", "--gate.max-kl"
            if kl < KL_BINDS * most:  # the step was scaled down all the same
                bound, flag = f"entropy: {least:.0%} of the base model's must remain", "--gate.min-entropy-share"
            why = f"the model is as far from the base model as the gate allows ({bound}): the last step scaled all that was learned by {shrink:.2f}"
            help = f"it learns on, and what is not repeated fades; a wider bound ({flag}), or another adapter for other wishes"
            yield Obstacle("bound", why, help)


def summarize_obstacles(found: Iterable[Obstacle]) -> list[dict[str, Any]]:
    """A row for each kind of obstacle that there is: number of `adapters`, `missing` feedbacks, `help`. It names no adapter."""
    rows: dict[str, dict[str, Any]] = {}
    for each in found:
        row = rows.setdefault(each.kind, {"kind": each.kind, "adapters": 0, "missing": 0, "help": KINDS[each.kind]})
        row["adapters"] += 1
        row["missing"] += each.missing
    return [rows[kind] for kind in KINDS if kind in rows]
