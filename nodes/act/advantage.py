"""JitRL's equations (arXiv:2601.18510), from remembered returns to a logit update, one function each.

A `Neighbour` record stands for `count` visits to an action in a remembered state, with mean return `mean`. The paper works on
single visits; a single visit is a neighbour with count 1, so every formula here covers both.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from ...memory.records import Neighbour

__all__ = ["advantages", "reference_exploration", "reference_returns", "unseen_value"]


def state_value(neighbours: Sequence[Neighbour]) -> float:
    """Eq. 4: V(s) = mean of G_i over the neighbours N(s), in reward units; 0 without neighbours."""
    visits = sum(n.count for n in neighbours)
    return sum(n.count * n.mean for n in neighbours) / visits if visits else 0.0


def action_values(neighbours: Sequence[Neighbour]) -> dict[str, tuple[int, float]]:
    """Eq. 5: Q(s, a) = mean of G_i over the neighbours whose action is a. Returned as {a: (visits, Q)}, Q in reward units."""
    totals: dict[str, tuple[int, float]] = {}
    for n in neighbours:
        count, total = totals.get(n.action, (0, 0.0))
        totals[n.action] = (count + n.count, total + n.count * n.mean)
    return {action: (count, total / count) for action, (count, total) in totals.items()}


def unseen_value(value: float, visits: int, alpha: float, explore: bool) -> float:
    """Eq. 6: Q(s, a) = V(s) + alpha / |N(s)| if `explore`, else 0, for an action never tried near s. In reward units."""
    return value + alpha / visits if explore else 0.0


def advantages(q: Mapping[str, float], value: float) -> dict[str, float]:
    """Eq. 7: A(s, a) = Q(s, a) - V(s), in reward units, as {a: A}."""
    return {action: q_a - value for action, q_a in q.items()}


def normalise_advantages(a: Mapping[str, float], epsilon: float = 1e-6) -> dict[str, float]:
    """Eq. 25: A~(s, a) = A(s, a) / (max_b |A(s, b)| + epsilon), in [-1, 1], as {a: A~}."""
    scale = max((abs(x) for x in a.values()), default=0.0) + epsilon
    return {action: x / scale for action, x in a.items()}


def update_logits(logits: Sequence[float], shifts: Sequence[float], beta: float) -> list[float]:
    """Eq. 10: z'(s, a) = z(s, a) + beta * A(s, a), in nats."""
    return [z + beta * shift for z, shift in zip(logits, shifts, strict=True)]


def objective(policy: Sequence[float], prior: Sequence[float], a: Sequence[float], beta: float) -> float:
    """Eq. 8: J(policy) = E_policy[A] - KL(policy || prior) / beta, which Eq. 10 maximises (Theorem 4.1).

    `policy` and `prior` are probabilities, one per action, that sum to 1.
    """
    gain = sum(p * x for p, x in zip(policy, a, strict=True))
    kl = sum(p * math.log(p / q) for p, q in zip(policy, prior, strict=True) if p > 0)
    return gain - kl / beta


# The authors' code differs from the paper. Its arithmetic stands here under names of its own, for comparison; test vectors made
# with that code are in tests/equations.


def reference_exploration(neighbours: Iterable[Neighbour]) -> float:
    """The adaptive exploration probability of the reference code, from 0.8 (no evidence) down to 0.05 (steady high returns).

    For each action with at least two returns: confidence c = (max(0, mu) / (1 + cv))^0.65 * max(n / 4, 1), where cv is
    the population standard deviation over the mean; p = 1 / (1 + max c), clipped to [0.05, 0.8].
    """
    by_action: dict[str, list[float]] = {}
    for n in neighbours:
        by_action.setdefault(n.action, []).extend([n.mean] * n.count)
    confidences = []
    for returns in by_action.values():
        if len(returns) < 2:
            continue
        mu = sum(returns) / len(returns)
        sigma = math.sqrt(sum((g - mu) ** 2 for g in returns) / len(returns))
        cv = sigma / mu if mu > 0 else math.inf
        confidences.append((max(0.0, mu) / (1 + cv)) ** 0.65 * max(len(returns) / 4, 1))
    return min(max(1 / (1 + max(confidences)), 0.05), 0.8) if confidences else 0.8


def reference_normalise_advantages(a: Mapping[str, float]) -> dict[str, float]:
    """The reference code's scaling of advantages: by the largest positive one, else by the size of the smallest, else 0.

    So the best action gets exactly 1, however small the gap (even a rounding error), and negative ones have no bound.
    """
    top, bottom = max(a.values(), default=0.0), min(a.values(), default=0.0)
    scale = top if top > 0 else -bottom
    return {action: x / scale if scale else 0.0 for action, x in a.items()}


def reference_returns(
    scores: Sequence[float | None], rewards: Sequence[float | None], gamma: float, *, is_won: bool
) -> list[float]:
    """The returns of the reference code, in units of its judge, which scores a step by all that follows from it.

    A step counts with its judge's score, and where that is 0 with the world's reward; the last one of an episode that was not won has
    the reward -10. The defect: a later step that still counts 0 has the judge's score of the step whose return it is. So scores of
    [4, 0, 0, 0, 0] and a win without rewards give 7.75 for the first step at gamma 0.5, where Eq. 3 gives 4.
    """
    judged = [score or 0.0 for score in scores]  # that code has no way to say that a score is missing
    paid = [*rewards[:-1], -10.0] if rewards and not is_won else rewards
    merged = [score or reward or 0.0 for score, reward in zip(judged, paid, strict=True)]
    return [sum(gamma**ahead * (x or judged[t]) for ahead, x in enumerate(merged[t:])) for t in range(len(merged))]
