"""The arithmetic of CLaaS's gate, and of the watch on the live version. Pure functions.

The gate compares a new version with the live one before it answers anybody; the watch withdraws a live version whose rewards fell.
CLaaS (arXiv:2606.05559) describes neither. The interval of the watch is that of Agresti and Caffo (2000).
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...memory.claas.settings import check_bounds
from ...memory.records import Check, Measured

__all__ = ["GateSettings", "ReleaseSettings", "reward_drop", "reward_windows"]

HALF = math.log(0.5)
"""A probability of 1/2, in nats."""
DROP_STANDARD_ERRORS = 3.2
"""Standard errors by which a fall must exceed the margin, for a look after every reward. With an unchanged model less than 5 % of
stretches of 64 rewards see a false alarm: 1 % with windows that grow from 12 to 64, 4 % with two moving windows of 12. With the 1.645
of a single look it was 14 % and 62 % (tests/nodes/learn/test_gate.py has both). Over an endless stream a false alarm is certain."""


@dataclass(frozen=True)
class GateSettings:
    """Settings of the gate that a version passes before it answers. The paper has no gate: none of these values is published."""

    enabled: bool = True
    """False: every version passes that comes from the live one."""
    every_steps: int = 1
    """Gradient steps between two gates; versions in between are never live. The authors' slides: a reload
    about every 8 steps."""
    min_rewards: int = 8
    """Liked replies, of twice as many rewards, below which they decide nothing."""
    max_shared_loss: float = 0.5
    """Share of the newest liked replies that may lose a word which most of them have (`liked_checks`): habits change."""
    max_own_loss: float = 0.05
    """Share of them that may lose a word of their own: what was said, and is no habit. And of the newest corrected replies, the share that
    may be neither as they were nor as they should have been (`corrected_check`)."""
    max_retention_loss: float = 0.1
    """Share of the retention set's replies that may lose a word of the base model's (`retention_check`)."""
    min_entropy_share: float = 0.6
    """Share of the base model's entropy that must remain. The public code's planned threshold: 0.6."""
    max_kl: float = 8.0
    """Largest KL(pi || base) per token, in nats. In a reply of four tokens, each new word that the base model would never say takes 3."""
    texts: int = 8
    """Newest replies that a step learned from on which entropy and KL of its version are read, at most."""

    def __post_init__(self) -> None:
        least_0 = ("max_shared_loss", "max_own_loss", "max_retention_loss", "min_entropy_share", "max_kl")
        check_bounds(self, "gate", **dict.fromkeys(least_0, (0, math.inf)))
        least_1 = ("every_steps", "min_rewards", "texts")
        check_bounds(self, "gate", **dict.fromkeys(least_1, (1, math.inf)))


@dataclass(frozen=True)
class ReleaseSettings:
    """Settings by which a version that passed the gate takes over or is withdrawn. The paper describes none of this."""

    canary_share: float = 0.0
    """Share of requests, by a hash of their ids, that a new version answers until `watch_rewards` rewards of it have come; 0: all at
    once. While a canary is out, no other version is looked at, so that learning shows late where feedback is rare."""
    watch_rewards: int = 12
    """Rewards of the live version, and of the versions before it, from which on it can be withdrawn; 0: never."""
    watch_window: int = 64
    """The newest rewards of either side that count."""
    max_reward_drop: float = 0.0
    """A version is withdrawn when its mean reward fell by more than this and 3.2 standard errors (`DROP_STANDARD_ERRORS`)."""
    max_lead: int | None = 1
    """Versions that the learner may be ahead of the newest one that has feedback to learn from. Then it waits for feedback on newer
    replies: what it would say by now is in no older one. A version is `gate.every_steps` gradient steps. None: no limit."""
    keep_versions: int = 10
    """Versions of an adapter that were live and stay on disk, at least; as many of the others (dropped ones) stay beside them."""

    def __post_init__(self) -> None:
        check_bounds(self, "rollout", watch_window=(1, math.inf), keep_versions=(1, math.inf), canary_share=(0, 1))
        check_bounds(self, "rollout", watch_rewards=(0, math.inf), max_reward_drop=(0, math.inf))
        if self.max_lead is not None:
            check_bounds(self, "rollout", max_lead=(1, math.inf))


def gate_checks(candidate: Measured, live: Measured | None, settings: GateSettings) -> list[Check]:
    """Checks of a gate on any texts: H >= min(`min_entropy_share` H(base), H(live)); KL to the base <= max(`max_kl`, KL(live || base)).
    NaN passes nothing.

    Args:
        candidate, live: the two versions on the same texts, with KL; without texts there are no checks. None: the live one does not count.
        settings: the thresholds.
    """
    if not candidate.logprobs:
        return []
    # A version that says only one thing has collapsed; one that is no worse than the live one passes.
    least, most = settings.min_entropy_share * candidate.base_entropy, settings.max_kl
    if live is not None:
        least, most = min(least, live.entropy), max(most, live.kl)
    note = f"{candidate.entropy:.3f} nats, base {candidate.base_entropy:.3f}"
    return [
        Check("entropy", candidate.entropy, least, candidate.entropy >= least, note),
        Check("kl", candidate.kl, most, candidate.kl <= most, f"{candidate.kl:.3f} nats a token"),
    ]


def retention_check(candidate: Measured, live: Measured, base: Measured, settings: GateSettings) -> Check:
    """Share of the retention set's replies that would lose a word of the base model's (<= max(`max_retention_loss`, that of the live version)).

    A token is lost where the base model gives it 1/2 or more, and a version less than half of that. First and last tokens do not count:
    what is learned may stand in front of a reply and behind it. Replies without such a token do not count.

    Args:
        candidate, live, base: log-probabilities of the set's replies.
    """
    known = [n for n, row in enumerate(base.logprobs) if any(value >= HALF for value in row[1:-1])]
    new, old = (
        sum(any(map(_is_lost, one.logprobs[n][1:-1], base.logprobs[n][1:-1])) for n in known) for one in (candidate, live)
    )
    count, most = len(known), max(settings.max_retention_loss * len(known), old)
    note = f"{new} of {count} replies to retained chats would lose some"
    return Check("retention", new / max(count, 1), most / max(count, 1), new <= most, note)


def _is_lost(now: float, was: float) -> bool:
    """True if a token with a probability of 1/2 or more has less than half of that now; both in nats."""
    return was >= HALF and not now >= was + HALF


def liked_checks(
    replies: Sequence[Sequence[int]], readings: Sequence[Measured], live: Measured, settings: GateSettings
) -> list[Check]:
    """Shares of liked replies that would lose a shared word (<= `max_shared_loss`), and a word of their own (<= `max_own_loss`).

    A token is lost where the live version gives it 1/2 or more, and the candidate less than half of that. A harmful step flips the token
    that decides an answer, in few replies: no mean shows it. Shared is what at least half of the replies have. They are of the last
    feedbacks only, so that who changes his mind is followed. What is added to a liked reply takes nothing from it: its end of turn does
    not count, and it may stand behind a token that the candidate would put in front.

    Args:
        replies: tokens of each reply, its end of turn apart.
        readings: the candidate's log-probabilities of these tokens, read in several ways; what is lost in all of them is lost.
        live: the live version's.
    """
    counts = Counter(token for reply in replies for token in set(reply))
    shared = {token for token, count in counts.items() if 2 * count >= len(replies)}
    losses = list[list[set[bool]]]()  # for each reply and reading: is what was lost shared?
    for n, (reply, old) in enumerate(zip(replies, live.logprobs, strict=True)):
        rows = [zip(reply, reading.logprobs[n], old, strict=True) for reading in readings]
        losses.append([{t in shared for t, now, was in row if _is_lost(now, was)} for row in rows])
    found = []
    for what, is_shared, most in (("shared", True, settings.max_shared_loss), ("own", False, settings.max_own_loss)):
        loses = sum(all(is_shared in kinds for kinds in one) for one in losses)
        note = f"{loses} of {len(replies)} replies that were liked would lose some"
        found.append(Check(f"{what} words lost", loses / len(replies), most, loses <= most * len(replies), note))
    return found


def corrected_check(candidate: Measured, live: Measured, settings: GateSettings) -> Check:
    """Share of corrected replies that would be said neither as they were, nor as they should have been (<= `max_own_loss`).

    A version that has half learned a correction says what nobody asked for. A reply is lost where the live version says it in one of the
    two ways with a probability of 1/2 or more, and the candidate with less.

    Args:
        candidate, live: log-probabilities of n replies as they were, followed by the same n as they should have been.
    """
    new, old = _said_either_way(candidate), _said_either_way(live)
    count = len(old)
    loses = sum(was >= 0.5 and not now >= 0.5 for now, was in zip(new, old, strict=True))
    note = f"{loses} of {count} corrected replies would be neither as they were nor as they should have been"
    return Check("corrected replies lost", loses / count, settings.max_own_loss, loses <= settings.max_own_loss * count, note)


def _said_either_way(measured: Measured) -> list[float]:
    """Probability of each of n replies in one of its two ways; see `corrected_check`."""
    said = [math.exp(min(total, 0.0)) for total in measured.sums]
    half = len(said) // 2
    return [was + wanted for was, wanted in zip(said[:half], said[half:], strict=True)]


def is_gate_passed(found: Sequence[Check]) -> bool:
    """True if every check passed."""
    return all(check.passed for check in found)


class RewardDrop(NamedTuple):
    """Mean rewards of a version and of the one before it, on live feedback."""

    before: float
    """Mean reward of the earlier version."""
    after: float
    """Mean reward of the later version."""
    bound: float
    """Lower end of the one-sided interval of before - after."""
    is_drop: bool
    """True if the bound exceeds the margin."""


def reward_drop(
    before: Sequence[float], after: Sequence[float], margin: float, min_rewards: int, z: float = DROP_STANDARD_ERRORS
) -> RewardDrop | None:
    """Compares live feedback on a version with that on the one before it. None with fewer than `min_rewards` on either side.

    d = mean(before) - mean(after); the reward dropped if d - z sqrt(s_b^2 / n_b + s_a^2 / n_a) > margin. Means and variances are
    taken with one reward of 1 and one of -1 added to each side (Agresti and Caffo 2000): without them, few and equal rewards look
    certain.

    Args:
        before, after: rewards in [-1, 1].
        margin: in reward units.
        min_rewards: rewards needed on both sides.
        z: standard errors; 1.645 is a one-sided 95 % for a single look.

    Feedback on the two versions came at different times, unless one was a canary: harder requests look like a worse version.
    """
    if min(len(before), len(after)) < min_rewards:
        return None
    (m_b, v_b), (m_a, v_a) = _moments(before), _moments(after)
    bound = m_b - m_a - z * math.sqrt(v_b + v_a)
    return RewardDrop(math.fsum(before) / len(before), math.fsum(after) / len(after), bound, bound > margin)


def _moments(rewards: Sequence[float]) -> tuple[float, float]:
    """Mean, and variance of the mean, with a reward of 1 and one of -1 added."""
    values = [*rewards, 1.0, -1.0]
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((r - mean) ** 2 for r in values) / (len(values) - 1) / len(values)


class RewardWindows(NamedTuple):
    """Rewards of two stretches of a line of versions."""

    after: tuple[float, ...]
    """The newer stretch, oldest reward first."""
    before: tuple[float, ...]
    """The stretch before it, oldest reward first."""
    rollback_to: str
    """Label of the newest version of the earlier stretch: the target of a rollback."""


def reward_windows(line: Iterable[tuple[str, Sequence[float]]], min_rewards: int, max_rewards: int) -> RewardWindows | None:
    """Rewards of the live version and of as many versions before it as give `min_rewards`, and the same again before these.

    Versions may follow each other faster than feedback comes; a single one then has too few rewards.

    Args:
        line: (label, its rewards, oldest first), the live version first, the base model last.
        min_rewards: rewards of a stretch, at least.
        max_rewards: rewards of a stretch, at most; the newest count.

    Returns:
        None if there are too few rewards for two stretches.
    """
    after: list[float] = []
    before: list[float] = []
    back: str | None = None
    for label, rewards in line:
        if len(after) < min_rewards:
            after = [*rewards, *after]
        elif len(before) < min_rewards:
            if back is None and rewards:
                back = label
            before = [*rewards, *before]
        else:
            break
    if len(after) < min_rewards or len(before) < min_rewards or back is None:
        return None
    return RewardWindows(tuple(after[-max_rewards:]), tuple(before[-max_rewards:]), back)
