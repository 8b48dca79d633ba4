"""From candidates to an action: add what memory knows of, update the logits by the advantage, draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from ...memory.records import Candidate, Estimate, Neighbour
from ..state import AdviceChannels, CandidateChannels, EpisodeChannels, LogitUpdateChannels, NeighbourChannels, RecallChannels
from .advantage import (
    action_values,
    advantages,
    normalise_advantages,
    reference_exploration,
    reference_normalise_advantages,
    state_value,
    unseen_value,
    update_logits,
)
from .choose import log_softmax, seeded_random, softmax


class CandidatesWithNeighbours(EpisodeChannels, NeighbourChannels, CandidateChannels):
    """Candidates, and what the memory holds about states like this one."""


class CandidatesWithStatistics(EpisodeChannels, RecallChannels, CandidateChannels):
    """The same, and how returns are distributed."""


class CandidatesWithAdvice(EpisodeChannels, NeighbourChannels, CandidateChannels, AdviceChannels):
    """Candidates with what the memory makes of each."""


@dataclass(frozen=True)
class Augment:
    """Eq. 23: actions that only the memory knows become candidates too, if the world admits them here."""

    role: ClassVar[str] = "compute"

    logit: Literal["lowest", "zero"] = "lowest"
    """z of a memory-only action. `lowest`: the policy's least likely candidate, since the policy did not think of it.
    `zero`: as the paper says; on a scale of log-probabilities that is the highest there is."""
    positive_only: bool = False
    """Only actions with a positive mean return (the reference code)."""
    admissible_only: bool = True
    """Only actions that the environment lists, where it lists any. The reference code does not ask."""

    def __call__(self, state: CandidatesWithNeighbours) -> CandidateChannels:
        candidates, admitted = state["candidates"], state["observation"].actions
        known = {c.action for c in candidates}
        logit = min(c.logit for c in candidates) if self.logit == "lowest" else 0.0
        added = [
            Candidate(action, logit, source="memory")
            for action, (_, q) in sorted(action_values(state["neighbours"]).items())
            if action not in known
            and (q > 0 or not self.positive_only)
            and (action in admitted or not admitted or not self.admissible_only)
        ]
        return {"candidates": candidates + added}


@dataclass(frozen=True)
class PaperAdvice:
    """Eq. 4 to 7 and 25 as the paper states them."""

    role: ClassVar[str] = "compute"

    alpha: float
    lam: float

    def __call__(self, state: CandidatesWithNeighbours) -> AdviceChannels:
        neighbours = state["neighbours"]
        value, seen, visits = state_value(neighbours), action_values(neighbours), sum(n.count for n in neighbours)
        random = seeded_random(state["run"], state["episode"], state["step"], "explore")
        q, explored = {}, set()
        for candidate in state["candidates"]:
            if candidate.action in seen:
                q[candidate.action] = seen[candidate.action][1]
            elif visits:
                explore = random.random() < self.lam
                explored |= {candidate.action} if explore else set()
                q[candidate.action] = unseen_value(value, visits, self.alpha, explore)
            else:
                q[candidate.action] = value
        a = advantages(q, value)
        return _advice(state, value, q, a, normalise_advantages(a), _counts(seen), explored)


@dataclass(frozen=True)
class ReferenceAdvice:
    """What the authors' code does instead: adaptive exploration, a baseline that mixes in pseudo-values, other scaling."""

    role: ClassVar[str] = "compute"

    alpha: float

    def __call__(self, state: CandidatesWithNeighbours) -> AdviceChannels:
        neighbours = state["neighbours"]
        value, seen, visits = state_value(neighbours), action_values(neighbours), sum(n.count for n in neighbours)
        random = seeded_random(state["run"], state["episode"], state["step"], "explore")
        chance = reference_exploration(neighbours)
        q = {action: mean for action, (_, mean) in seen.items()} if visits else {}
        explored = set()
        for candidate in state["candidates"]:
            if candidate.action not in seen:
                explore = bool(visits) and random.random() < chance
                explored |= {candidate.action} if explore else set()
                q[candidate.action] = unseen_value(value, visits, self.alpha, explore) if visits else 0.0
        baseline = value if all(c.action in seen for c in state["candidates"]) else sum(q.values()) / len(q)
        a = advantages(q, baseline)
        return _advice(state, baseline, q, a, reference_normalise_advantages(a), _counts(seen), explored)


@dataclass(frozen=True)
class ShrunkAdvice:
    """Our own: means that count for as much as their evidence, and curiosity in proportion to what is untried.

    - Q(s, a) = (n mean + kappa average) / (n + kappa): few visits say little, and an action nobody tried is worth what the
      average experience of this task is worth. No return can be good or bad merely by where zero lies.
    - Neighbours count in proportion to their similarity.
    - The advantage is divided by the largest |A| plus its standard error. A gap that the visits bear out counts fully however
      small it is; a gap within the noise counts little.
    - An untried action is shifted by `bonus`, falling with the square root of the visits; nothing is drawn by lot.
    """

    role: ClassVar[str] = "compute"

    kappa: float
    bonus: float

    def __call__(self, state: CandidatesWithStatistics) -> AdviceChannels:
        actions = [c.action for c in state["candidates"]]
        q, counts = shrunk_values(state["neighbours"], actions, self.kappa, state["average"])
        value = sum(q.values()) / len(q)
        a = advantages(q, value)
        top = max(a, key=lambda action: abs(a[action]))
        scale = abs(a[top]) + visit_std(state["neighbours"], state["variance"]) / (counts[top] + self.kappa) ** 0.5
        shifts = {
            action: (a[action] / scale if scale > 1e-12 else 0.0) + self.bonus / (1 + counts[action]) ** 0.5
            for action in actions
        }
        return _advice(state, value, q, a, shifts, counts, set())


def shrunk_values(
    neighbours: Sequence[Neighbour], actions: Sequence[str], kappa: float, average: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Similarity-weighted mean returns, shrunk towards `average` by `kappa` > 0 pseudo-visits: {a: Q}, {a: weighted count}."""
    counts, totals = dict.fromkeys(actions, 0.0), dict.fromkeys(actions, 0.0)
    for n in neighbours:
        if n.action in counts:
            counts[n.action] += n.similarity * n.count
            totals[n.action] += n.similarity * n.count * n.mean
    return {a: (totals[a] + kappa * average) / (counts[a] + kappa) for a in actions}, counts


def visit_std(neighbours: Sequence[Neighbour], variance: float) -> float:
    """Standard deviation of a single visit's return, in reward units, pooled over the neighbours' own deviations.

    The variance over everything in scope counts as one more degree of freedom: a single visit says nothing about noise.
    """
    freedom = sum(n.count - 1 for n in neighbours)
    return math.sqrt((sum(n.m2 for n in neighbours) + variance) / (freedom + 1))


def _advice(
    state: CandidatesWithNeighbours | CandidatesWithStatistics,
    value: float,
    q: Mapping[str, float],
    a: Mapping[str, float],
    shifts: Mapping[str, float],
    counts: Mapping[str, float],
    explored: set[str],
) -> AdviceChannels:
    estimates = [
        Estimate(c.action, counts.get(c.action, 0.0), q[c.action], a[c.action], shifts[c.action], c.action in explored)
        for c in state["candidates"]
    ]
    return {"value": value, "estimates": estimates}


def _counts(seen: Mapping[str, tuple[int, float]]) -> dict[str, float]:
    return {action: float(count) for action, (count, _) in seen.items()}


@dataclass(frozen=True)
class Modulate:
    """Eq. 10: add beta times the normalised advantage to each candidate's logit."""

    role: ClassVar[str] = "compute"

    beta: float
    """Nats by which the largest advantage moves a logit."""
    min_prior: float = 0.0
    """The least prior probability that a candidate is taken to have, so that what a model all but rules out can still be
    learned; 0 takes the prior as it is."""

    def __call__(self, state: CandidatesWithAdvice) -> LogitUpdateChannels:
        # Where nothing is remembered there is nothing to set against the model's belief, and it stays as it is.
        lowest = math.log(self.min_prior) if self.min_prior and state["neighbours"] else -math.inf
        return _update(state, [max(c.logit, lowest) for c in state["candidates"]], self.beta)


@dataclass(frozen=True)
class ReferenceModulate:
    """The reference code's update: the 'logit' is a probability in [0, 1] (0 for memory-only actions), beta grows from 1 to
    1.5 over 50 episodes."""

    role: ClassVar[str] = "compute"

    def __call__(self, state: CandidatesWithAdvice) -> LogitUpdateChannels:
        policy = [c for c in state["candidates"] if c.source == "policy"]
        chances = softmax(log_softmax([c.logit for c in policy]))
        prior = {c.action: p for c, p in zip(policy, chances, strict=True)}
        beta = min(1 + 0.5 * state["episode"] / 50, 1.5)
        return _update(state, [prior.get(c.action, 0.0) for c in state["candidates"]], beta)


def _update(state: CandidatesWithAdvice, scores: Sequence[float], beta: float) -> LogitUpdateChannels:
    logits = update_logits(scores, [e.shift for e in state["estimates"]], beta)
    candidates = [replace(c, logit=z) for c, z in zip(state["candidates"], logits, strict=True)]
    return {"candidates": candidates, "prior": [c.logit for c in state["candidates"]]}
