"""The arithmetic of the gate and of the watch on the live version: what a new version must show before it answers anybody.

Pure functions. CLaaS (arXiv:2606.05559) describes no gate; the estimator is the self-normalised, truncated importance-weighted
mean of Swaminathan and Joachims (NIPS 2015) and Ionides (2008), the interval of the watch that of Agresti and Caffo (2000).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...memory.errors import UserError
from ...memory.records import Check, Exchange, Measured

DROP_STANDARD_ERRORS = 3.2
"""How many standard errors a fall must be above the margin. For a look after every reward, not for one: of a model that has not
changed, less than 5 % of stretches of 64 rewards see a false alarm, with windows that grow from 12 to 64 (1 %) and with two of 12
that move along (4 %); with the 1.645 of a single look it was 14 % and 62 % (tests/nodes/learn/test_gate.py has both). It is a rate: who
looks for ever will see one."""


@dataclass(frozen=True)
class GateThresholds:
    """What passes. No published values: the paper has no gate."""

    margin: float = 0.1
    """Reward by which the candidate's estimate on held-out feedback may lie below the live version's: the estimate is noisy."""
    read: int = 64
    """The newest held-out exchanges that are read, at most."""
    least_rewards: int = 8
    """Rewards, and effective rewards of either version, below which held-out feedback says nothing: then it passes, and says so."""
    liked: float = 0.2
    """Share of what the live version would still say of the liked replies that the candidate must be ready to say."""
    weight_cap: float = 2.0
    """C: importance weights above it are cut to it."""
    tolerance: float = 0.2
    """Nats per token by which the replies of the retention set may become less likely than under the base model."""
    entropy_share: float = 0.6
    """Share of the base model's entropy that must remain."""
    kl_cap: float = 1.0
    """KL(pi || base) per token, in nats, at most."""
    texts: int = 8
    """Texts from which entropy and KL are read, at least, if the buffer has as many."""

    def __post_init__(self) -> None:
        for name in ("margin", "liked", "tolerance", "entropy_share", "kl_cap"):
            if not getattr(self, name) >= 0:
                raise UserError(f"gate: {name} is not negative, got {getattr(self, name)}")
        for name in ("read", "least_rewards", "weight_cap", "texts"):
            if not getattr(self, name) >= 1:
                raise UserError(f"gate: {name} is at least 1, got {getattr(self, name)}")


class RewardEstimate(NamedTuple):
    """An off-policy estimate of a mean reward."""

    value: float
    ess: float
    """(sum w)^2 / sum w^2: how many exchanges it rests on."""


def importance_mean(rewards: Sequence[float], log_ratios: Sequence[float], weight_cap: float = 2.0) -> RewardEstimate:
    """V(pi) = sum_i w_i r_i / sum_i w_i with w_i = min(exp(log pi(y_i | x_i) - log mu(y_i | x_i)), C).

    Args:
        rewards: r_i, n of them, at least one.
        log_ratios: n, nats, of whole replies, however small: the weights are taken relative to the largest.
        truncate: C.

    With mu = pi it is the plain mean. Truncation makes it a little too modest: what a candidate makes much more likely counts at
    most C times. Both sides of a comparison are estimated so, from the same exchanges.
    """
    if len(rewards) != len(log_ratios) or not rewards:
        raise UserError(f"gate: as many ratios as rewards, and one at least; got {len(log_ratios)} and {len(rewards)}")
    cut = [min(x, math.log(weight_cap)) for x in log_ratios]
    top = max(cut)
    weights = [math.exp(x - top) for x in cut]
    total = math.fsum(weights)
    value = math.fsum(w * r for w, r in zip(weights, rewards, strict=True)) / total
    return RewardEstimate(value, total**2 / math.fsum(w * w for w in weights))


def gate_checks(
    candidate: Measured,
    live: Measured,
    base: Measured,
    texts: Sequence[Exchange],
    held_count: int,
    retention_count: int,
    thresholds: GateThresholds,
) -> list[Check]:
    """All lines of a gate.

    Args:
        candidate, live, base: the three versions, read against `texts`.
        texts: the first `held` are held-out exchanges with a reward, the next `kept` the retention set.
    """
    drawn = [  # the most probable reply was not drawn: its log mu is 0, and no ratio to it means anything
        (e.feedback.reward, math.fsum(e.reply.logprobs), new, old)
        for e, new, old in zip(texts[:held_count], candidate.sums[:held_count], live.sums[:held_count], strict=True)
        if e.feedback is not None and e.feedback.reward is not None and e.request.sampling.temperature > 0
    ]
    rewards, behaviour, news, olds = ([row[i] for row in drawn] for i in range(4))
    found = [held_out_check(rewards, behaviour, news, olds, thresholds)]
    if retention_count:
        found.append(
            retention_check(
                candidate.logprobs[held_count : held_count + retention_count],
                base.logprobs[held_count : held_count + retention_count],
                thresholds.tolerance,
            )
        )
    if texts:
        found += [
            entropy_check(candidate.entropy, base.entropy, thresholds.entropy_share),
            divergence_check(candidate.kl, thresholds.kl_cap),
        ]
    return found


def held_out_check(
    rewards: Sequence[float],
    behaviour: Sequence[float],
    candidate: Sequence[float],
    live: Sequence[float],
    thresholds: GateThresholds,
) -> Check:
    """V(candidate) >= V(live) - margin on feedback that was never trained on, and what was liked is not given up.

    An estimate that rests on too few effective exchanges decides nothing. A version that has left everything would always be such a
    one: so the share of liked replies that it would still say, mean min(1, pi / mu) over them, must be a part of the live version's.
    One that left only what was disliked did as it was told; where it went, retention set, entropy and KL must say.

    Args:
        rewards: n, of replies that were drawn (at a temperature above 0).
        behaviour, candidate, live: n each, log-probability of the whole reply in nats: log mu, and under either version.
    """
    name = "held-out feedback"
    if len(rewards) < thresholds.least_rewards:
        return Check(
            name, None, 0.0, True, f"too few: passes by default ({len(rewards)} of {thresholds.least_rewards} rewards)"
        )
    x, y = ([one - mu for one, mu in zip(sums, behaviour, strict=True)] for sums in (candidate, live))
    kept, before = (_liked_share(rewards, ratios) for ratios in (x, y))
    if not kept >= thresholds.liked * before:
        said = f"{kept:.3f} of the liked replies it would still say, the live version {before:.3f}"
        return Check(name, kept, thresholds.liked * before, False, said)
    new, old = importance_mean(rewards, x, thresholds.weight_cap), importance_mean(rewards, y, thresholds.weight_cap)
    rests = f"{len(rewards)} rewards, effectively {new.ess:.1f} and {old.ess:.1f}"
    if min(new.ess, old.ess) < thresholds.least_rewards:
        return Check(name, None, 0.0, True, f"too few: passes by default ({rests}, of {thresholds.least_rewards})")
    limit = old.value - thresholds.margin
    said = f"{new.value:.3f} against {old.value:.3f} of the live version, {rests}"
    return Check(name, new.value, limit, new.value >= limit, said)


def _liked_share(rewards: Sequence[float], log_ratios: Sequence[float]) -> float:
    """mean over r_i > 0 of min(1, pi(y_i) / mu(y_i)), in [0, 1]; 0 where nothing was liked. Its expectation is 1 - TV(pi, mu)
    among the liked replies."""
    said = [math.exp(min(x, 0.0)) for r, x in zip(rewards, log_ratios, strict=True) if r > 0]
    return math.fsum(said) / len(said) if said else 0.0


def retention_check(candidate: Sequence[float], base: Sequence[float], tolerance: float) -> Check:
    """mean over the set of log p(reply) / tokens: candidate >= base - tolerance.

    Args:
        candidate, base: mean log-probability per token of each reply, in nats.
    """
    new, old = math.fsum(candidate) / len(candidate), math.fsum(base) / len(base)
    passes = new >= old - tolerance
    return Check("retention", new, old - tolerance, passes, f"{new:.3f} nats a token, base {old:.3f}, {len(base)} replies")


def entropy_check(candidate: float, base: float, share: float) -> Check:
    """H(candidate) >= share * H(base): a version that says one thing only has collapsed. An entropy of 0 to begin with passes."""
    limit = share * base
    return Check("entropy", candidate, limit, candidate >= limit, f"{candidate:.3f} nats, base {base:.3f}")


def divergence_check(kl: float, limit: float) -> Check:
    """KL(candidate || base) <= limit, per token in nats. What is not a number does not pass."""
    return Check("kl", kl, limit, kl <= limit, f"{kl:.3f} nats a token")


def is_gate_passed(found: Sequence[Check]) -> bool:
    """Whether all of it did."""
    return all(check.passed for check in found)


class RewardDrop(NamedTuple):
    """A version against the one before it, on live feedback."""

    before: float
    after: float
    bound: float
    """Lower end of the one-sided interval of before - after."""
    is_drop: bool


def reward_drop(
    before: Sequence[float], after: Sequence[float], margin: float, min_rewards: int, z: float = DROP_STANDARD_ERRORS
) -> RewardDrop | None:
    """Whether live feedback says that a version is worse than the one before it; None: too few of either.

    d = mean(before) - mean(after); it fell if d - z sqrt(s_b^2 / n_b + s_a^2 / n_a) > margin, means and variances with one reward
    of 1 and one of -1 added to each side (Agresti and Caffo 2000: without them, few and equal rewards look certain).

    Args:
        before, after: rewards in [-1, 1].
        margin: in reward units.
        least: rewards needed on both sides.
        z: standard errors; 1.645 would be a one-sided 95 % for whoever looks once.

    Feedback on the two was given at different times, unless one of them was a canary: a harder time looks like a worse version.
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
    """Two stretches of a line of versions, the newer one that is on trial and the one before."""

    after: tuple[float, ...]
    before: tuple[float, ...]
    rollback_to: str
    """Label of the newest version of the stretch before: where a rollback leads."""


def reward_windows(line: Iterable[tuple[str, Sequence[float]]], min_rewards: int, max_rewards: int) -> RewardWindows | None:
    """The live version, with as many before it as it takes to have `least` rewards; and the same again before these.

    Versions may follow each other faster than feedback comes, so that none has enough by itself.

    Args:
        line: (label, its rewards, oldest first), the live version first, the base model last.
        least: rewards of a stretch.
        recent: rewards of a stretch at most, the newest.
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
