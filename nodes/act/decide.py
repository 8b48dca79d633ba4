"""JitRL's decision: add the actions that memory knows, estimate advantages, update the logits."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, NotRequired

from ...memory.records import Candidate, Estimate, Neighbour, Observation
from ..arguments import Amount, Share
from ..state import (
    AdviceChannels,
    CandidateChannels,
    EpisodeNumber,
    LogitUpdateChannels,
    NeighbourChannels,
    ObservationChannel,
    RecallChannels,
    StepPlace,
)
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
from .choose import seeded_random

__all__ = [
    "Augment",
    "GuardedAdvice",
    "ListActions",
    "Modulate",
    "PaperAdvice",
    "ReferenceAdvice",
    "ReferenceModulate",
    "admit_remembered",
    "loss_shares",
    "route_known_actions",
    "untried_value",
]


class RecalledSituation(ObservationChannel, NeighbourChannels):
    """The present observation, and the remembered states like it."""


class PlacedCandidates(RecalledSituation, StepPlace, CandidateChannels):
    """Candidates, what is observed, the remembered states like it, and the place that seeds the draw among equals."""


class CandidatesWithNeighbours(StepPlace, NeighbourChannels, CandidateChannels):
    """Candidates, the remembered states like this one, and the place that seeds the exploration."""


class CandidatesWithStatistics(RecallChannels, CandidateChannels):
    """Candidates, and all that was recalled."""


class RatedCandidates(CandidateChannels):
    """Candidates with their estimates from memory."""

    estimates: list[Estimate]


class RatedCandidatesInEpisode(RatedCandidates, EpisodeNumber):
    """The same, and the number of the episode."""


class RatedCandidatesWithNeighbours(RatedCandidates, NeighbourChannels):
    """The same, and the neighbours that the estimates come from."""

    variance: NotRequired[float]
    """The variance of all returns in scope; read if only proven actions are lifted."""


@dataclass(frozen=True)
class Augment:
    """Eq. 23: the candidates are the policy's actions and those remembered from similar states, if the world admits them."""

    role: ClassVar[str] = "compute"

    logit: Literal["lowest", "zero"] = "lowest"
    """z of a memory-only action. `lowest`: that of the least likely candidate, since the policy did not propose the action.
    `zero`: as in the paper; on a scale of log-probabilities 0 is the highest value, on one of confidences the lowest."""
    scale: Literal["nats", "confidence"] = "nats"
    """The unit of z. `nats`: log-probabilities; `confidence`: probabilities in [0, 1], as the paper's Tables 7 and 13 have them."""
    count: int = 0
    """k_c: the most candidates that the policy has, its best ones, by a seeded draw among equals; 0: all that it proposes."""
    positive_only: bool = False
    """Only actions with a positive mean return (the reference code)."""
    admit: Callable[[Observation, str], str] | None = field(default=None, repr=False)
    """Of a remembered action that the environment does not list: its form there, empty if it is not possible. None: lists are complete.
    The reference code tries such actions unchecked."""

    def __call__(self, state: PlacedCandidates) -> CandidateChannels:
        candidates, admitted = state["candidates"], state["observation"].actions
        if 0 < self.count < len(candidates):
            random = seeded_random(state["run"], state["episode"], state["step"], "candidates")
            ranked = sorted(range(len(candidates)), key=lambda n: (-candidates[n].logit, random.random()))
            candidates = [candidates[n] for n in sorted(ranked[: self.count])]
        if self.scale == "confidence":
            candidates = [replace(c, logit=math.exp(c.logit)) for c in candidates]
        known = {c.action for c in candidates}
        logit = min(c.logit for c in candidates) if self.logit == "lowest" else 0.0
        added = [
            Candidate(action, logit, source="memory")
            for action, (_, q) in sorted(action_values(state["neighbours"]).items())
            if action not in known
            and (q > 0 or not self.positive_only)
            and (action in admitted or not admitted or (self.admit is not None and self.admit(state["observation"], action)))
        ]
        return {"candidates": candidates + added}


def admit_remembered(environment: Any) -> Callable[[Observation, str], str] | None:
    """The environment's test of remembered actions that it does not list; None if its lists are complete."""
    admit = getattr(environment, "admit", None)
    return partial(admit, remembered=True) if admit else None


@dataclass(frozen=True)
class ListActions:
    """The actions that advice is asked about before a policy proposes any: those that the world lists.

    Where it lists none they are the remembered ones. All are equally likely.
    """

    role: ClassVar[str] = "compute"

    def __call__(self, state: RecalledSituation) -> CandidateChannels:
        actions = state["observation"].actions or sorted(action_values(state["neighbours"]))
        return {"candidates": [Candidate(action, -math.log(len(actions))) for action in actions]}


def route_known_actions(state: CandidateChannels) -> Literal["some actions", "no action known"]:
    """Router: is there an action to ask advice about?"""
    return "some actions" if state["candidates"] else "no action known"


@dataclass(frozen=True)
class PaperAdvice:
    """Eq. 4 to 7 and 25 as in the paper: V, Q and A from the neighbours, A scaled to [-1, 1]."""

    role: ClassVar[str] = "compute"

    alpha: Amount
    """The exploration bonus of Eq. 6, in reward units times visits."""
    lam: Share
    """lambda: the probability that an untried action gets the bonus."""

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
    """The advice of the authors' code: adaptive exploration, a baseline that mixes in pseudo-values, another scaling."""

    role: ClassVar[str] = "compute"

    alpha: Amount
    """The exploration bonus of Eq. 6, in reward units times visits."""

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
class GuardedAdvice:
    """Our own advice: shrunk means, an untried action that is worth no more than usual here, and a guard against idle steps.

    - Q(s, a) = (n mean + kappa U) / (n + kappa), with U = min(average, V(s)): few visits count little, and an untried action has
      the value U. Where the state has paid less than the average, all of its actions start at the state's own mean V(s): the
      last step before the end is worth little by nature, and so is every other action there. Where it has paid more, an
      untried action is worth the average only: what works is kept.
    - The advantage is divided by the largest |A| plus its standard error: a gap that the visits confirm counts fully, however
      small; a gap within the noise counts little.
    - The shift of an action grows by `bonus` / sqrt(1 + visits). Of an action that has earned something and is not behind the others it is
      `bonus` at least, as that of an untried one: curiosity does not turn a success against itself. It falls by `penalty` for each time
      that the running episode took the action in this very state without progress since, and by `penalty` times the share of its
      visits that lost an episode.
    - Nothing is drawn at random. With a constant added to all returns the advantages stay what they are.
    """

    role: ClassVar[str] = "compute"

    kappa: Amount
    """Pseudo-visits with the value U that each action starts with, above 0."""
    bonus: Amount
    """Shift of an untried action, without unit: 1 is that of the largest certain advantage."""
    penalty: Amount
    """Fall of the shift for a visit that led nowhere, without unit."""
    untried_share: Share = 1.0
    """Share of U that an untried action is worth. Below 1, praise counts where nothing else was ever tried, and blame too."""

    def __call__(self, state: CandidatesWithStatistics) -> AdviceChannels:
        neighbours, repeats = state["neighbours"], state["repeats"]
        actions = [c.action for c in state["candidates"]]
        untried = self.untried_share * untried_value(neighbours, state["average"])
        q, counts = shrunk_values(neighbours, actions, self.kappa, untried)
        value = sum(q.values()) / len(q)
        a = advantages(q, value)
        ratios = _confidence_ratios(a, counts, neighbours, state["variance"], self.kappa)
        lost = loss_shares(neighbours)
        shifts = {}
        for action in actions:
            shift = ratios[action] + (self.bonus / (1 + counts[action]) ** 0.5 if neighbours else 0.0)
            if counts[action] and q[action] > 0 and a[action] > -1e-12:
                shift = max(shift, self.bonus)
            shifts[action] = shift - self.penalty * (repeats.get(action, 0) + lost.get(action, 0.0))
        return _advice(state, value, q, a, shifts, counts, set())


def untried_value(neighbours: Sequence[Neighbour], average: float) -> float:
    """The value of an untried action, in reward units: min(average, V(s)), V(s) = sum(w n G) / sum(w n) over the neighbours.

    `average` is the mean of all returns in scope; it is the value where there are no neighbours.
    """
    visits = sum(n.similarity * n.count for n in neighbours)
    return min(average, sum(n.similarity * n.count * n.mean for n in neighbours) / visits) if visits else average


def loss_shares(neighbours: Sequence[Neighbour]) -> dict[str, float]:
    """Action -> the share of its remembered visits that lost an episode, in [0, 1], weighted by similarity."""
    visits, losses = dict[str, float](), dict[str, float]()
    for n in neighbours:
        visits[n.action] = visits.get(n.action, 0.0) + n.similarity * n.count
        losses[n.action] = losses.get(n.action, 0.0) + n.similarity * n.losses
    return {action: losses[action] / visits[action] for action in visits if visits[action]}


def _confidence_ratios(
    a: Mapping[str, float], counts: Mapping[str, float], neighbours: Sequence[Neighbour], variance: float, kappa: float
) -> dict[str, float]:
    """A / (the largest |A| + its standard error), in [-1, 1]: Eq. 25 with a doubt that shrinks as visits add up."""
    top = max(a, key=lambda action: abs(a[action]))
    scale = abs(a[top]) + visit_std(neighbours, variance) / (counts[top] + kappa) ** 0.5
    return {action: x / scale if scale > 1e-12 else 0.0 for action, x in a.items()}


def shrunk_values(
    neighbours: Sequence[Neighbour], actions: Sequence[str], kappa: float, average: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Similarity-weighted mean returns, shrunk towards `average` by `kappa` > 0 pseudo-visits: ({a: Q}, {a: weight})."""
    counts, totals = dict.fromkeys(actions, 0.0), dict.fromkeys(actions, 0.0)
    for n in neighbours:
        if n.action in counts:
            counts[n.action] += n.similarity * n.count
            totals[n.action] += n.similarity * n.count * n.mean
    return {a: (totals[a] + kappa * average) / (counts[a] + kappa) for a in actions}, counts


def visit_std(neighbours: Sequence[Neighbour], variance: float) -> float:
    """Standard deviation of a single visit's return, in reward units, pooled over the neighbours' own deviations.

    The variance over everything in scope counts as one more degree of freedom, since a single visit has no deviation.
    """
    freedom = sum(n.count - 1 for n in neighbours)
    return math.sqrt((sum(n.m2 for n in neighbours) + variance) / (freedom + 1))


def _advice(
    state: CandidateChannels,
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
    """Eq. 10: z'(s, a) = z(s, a) + beta * A~(s, a): add beta times the normalised advantage to each candidate's logit."""

    role: ClassVar[str] = "compute"

    beta: Amount
    """Nats by which the largest advantage moves a logit."""
    min_prior: Share = 0.0
    """The least prior probability of a candidate, so that an action which the model all but rules out can still be learned; 0
    leaves the prior unchanged."""
    lift_only_proven: bool = False
    """True: only actions that were tried and found better than the state's value are lifted to `min_prior`, and all of them as long as
    every return in scope is the same: where no episode has yet earned more than another, nothing speaks for a prior that is sure."""

    def __call__(self, state: RatedCandidatesWithNeighbours) -> LogitUpdateChannels:
        # Without neighbours there is no evidence against the model's prior, and it stays unchanged.
        neighbours = state["neighbours"]
        lowest = math.log(self.min_prior) if self.min_prior and neighbours else -math.inf
        lift_all = not self.lift_only_proven or state["variance"] == 0
        lifted = [lift_all or (e.count > 0 and e.advantage > 0) for e in state["estimates"]]
        scores = [max(c.logit, lowest) if lift else c.logit for c, lift in zip(state["candidates"], lifted, strict=True)]
        return _update(state, scores, self.beta)


@dataclass(frozen=True)
class ReferenceModulate:
    """The logit update of the reference code: beta grows from 1 to 1.5 over 50 episodes."""

    role: ClassVar[str] = "compute"

    def __call__(self, state: RatedCandidatesInEpisode) -> LogitUpdateChannels:
        beta = min(1 + 0.5 * state["episode"] / 50, 1.5)
        return _update(state, [c.logit for c in state["candidates"]], beta)


def _update(state: RatedCandidates, scores: Sequence[float], beta: float) -> LogitUpdateChannels:
    logits = update_logits(scores, [e.shift for e in state["estimates"]], beta)
    candidates = [replace(c, logit=z) for c, z in zip(state["candidates"], logits, strict=True)]
    return {"candidates": candidates, "prior": [c.logit for c in state["candidates"]]}
