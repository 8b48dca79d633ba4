"""The accept test: a candidate library takes the current one's place only if it does no worse on held-out problems.

Both libraries are tried on the same problems with the same seeds. d_i is the mean difference of the rewards of problem i over
its rollouts, and the gain is the mean of d_i over problems. The interval of the gain is a bootstrap over problems, not over
rollouts: more rollouts of the same problems do not tell more about other problems.

| rule | the candidate is accepted if |
|---|---|
| `not-worse` | the gain is at least 0 |
| `better` | the lower end of the interval is above 0 |
| `always` | always (as published) |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any, ClassVar, Literal

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.types import Overwrite

from ...memory.errors import UserError
from ...memory.records import Probe, Rollout, Task
from ...memory.storage.cache import Cache, cache_key
from ..cached_model import BudgetSpent
from ..extract.groups import net_reward
from ..extract.rollouts import RolloutPlayer
from ..state import LearningChannels

__all__ = [
    "Accept",
    "AcceptSettings",
    "AcceptTestResult",
    "AcceptTestState",
    "CachedProbes",
    "PlayProbe",
    "Rule",
    "accept_test_result",
    "bootstrap",
    "decide_acceptance",
    "differences",
    "fan_out_probes",
]

Rule = Literal["not-worse", "better", "always"]
BOOTSTRAP_RESAMPLES = 4_000
"""Resamples of a bootstrap."""
_SAME = 1e-9


@dataclass(frozen=True)
class AcceptSettings:
    """Settings of the accept test."""

    accept: Rule = "not-worse"
    """Rule by which a candidate replaces the library; see the top of this file. Paper: always."""
    trial_rollouts: int = 1
    """Rollouts of a held-out problem under each library. Paper: none."""
    trial_temperature: float = 0.3
    """Temperature of rollouts of the accept test and of evaluation; see `temperature`. Paper: 0.3."""
    keep_best: bool = True
    """True: the product is the version that did best on the held-out problems. False: the last one. Paper: the last."""


@dataclass(frozen=True, slots=True)
class AcceptTestResult:
    """The result of an accept test; rewards in [0, 1]."""

    candidate: float
    """Mean reward of the candidate, over problems and their rollouts."""
    current: float
    gain: float
    """Mean paired difference, candidate minus current."""
    low: float
    """Lower end of the 95 % interval of the gain."""
    high: float
    wins: int
    """Problems on which the candidate did better."""
    losses: int
    problems: int


def differences(probes: Sequence[Probe], candidate: str, current: str) -> dict[str, float]:
    """Per problem, the mean over its rollouts of (candidate's reward - current's reward), by task id.

    Raises:
        UserError: a rollout of one library has no counterpart of the other.
    """
    rewards: dict[str, dict[tuple[str, int], float]] = {candidate: {}, current: {}}
    for probe in probes:
        if probe.library in rewards:
            rewards[probe.library][probe.task, probe.number] = probe.reward
    new, old = rewards[candidate], rewards[current]
    if alone := sorted(new.keys() ^ old.keys()):
        raise UserError(f"accept test: rollout {alone[0][1]} of {alone[0][0]} was made with one of the two libraries only")
    found: dict[str, list[float]] = {}
    for task, number in sorted(new):
        found.setdefault(task, []).append(new[task, number] - old[task, number])
    return {task: sum(each) / len(each) for task, each in found.items()}


def bootstrap(values: Sequence[float], seed: str, resamples: int = BOOTSTRAP_RESAMPLES) -> tuple[float, float]:
    """The 95 % percentile interval of the mean of `values`; the text `seed` seeds the generator.

    `scipy.stats.bootstrap` gives the same interval up to the last bit, but refuses a single value (one held-out problem), and
    recorded intervals would no longer compare as equal. So these lines stay.
    """
    import numpy as np

    drawn = np.random.default_rng(int.from_bytes(blake2b(seed.encode(), digest_size=8).digest(), "big"))
    known = np.asarray(values, dtype=float)
    means = known[drawn.integers(0, len(known), (resamples, len(known)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def accept_test_result(probes: Sequence[Probe], candidate: str, current: str, seed: str) -> AcceptTestResult | None:
    """The result of an accept test; None without probes."""
    paired = differences(probes, candidate, current)
    if not paired:
        return None
    gains = [paired[task] for task in sorted(paired)]
    low, high = bootstrap(gains, seed)
    return AcceptTestResult(
        candidate=mean_reward(probes, candidate),
        current=mean_reward(probes, current),
        gain=sum(gains) / len(gains),
        low=low,
        high=high,
        wins=sum(gain > _SAME for gain in gains),
        losses=sum(gain < -_SAME for gain in gains),
        problems=len(gains),
    )


def refuse_failure(probes: Sequence[Probe]) -> None:
    """Refuse a test in which every rollout failed: it would find the two libraries equally good.

    Raises:
        UserError: every rollout failed; names the reason.
    """
    if probes and all(probe.error for probe in probes):
        reasons = sorted({probe.error for probe in probes})
        more = f" ({len(reasons) - 1} more reasons)" if len(reasons) > 1 else ""
        raise UserError(f"accept test: all {len(probes)} rollouts failed: {reasons[0]}{more}")


def mean_reward(probes: Sequence[Probe], library: str) -> float:
    """Mean reward of a library's probes; every problem has the same weight."""
    by_task: dict[str, list[float]] = {}
    for probe in sorted(probes, key=lambda probe: (probe.task, probe.number)):
        if probe.library == library:
            by_task.setdefault(probe.task, []).append(probe.reward)
    return sum(sum(each) / len(each) for each in by_task.values()) / len(by_task)


def decide_acceptance(test: AcceptTestResult | None, rule: Rule) -> tuple[bool, str]:
    """True if the candidate takes the current library's place, and the reason as text. Without a test it does."""
    if test is None:
        return True, "not tested"
    change = f"{test.current:.3f} -> {test.candidate:.3f} ({test.gain:+.3f}, 95 % [{test.low:+.3f}, {test.high:+.3f}])"
    match rule:
        case "always":
            return True, f"always accepted; {change}"
        case "better":
            return test.low > _SAME, f"{'better' if test.low > _SAME else 'not clearly better'}: {change}"
        case _:
            return test.gain >= -_SAME, f"{'not worse' if test.gain >= -_SAME else 'worse'}: {change}"


class AcceptTestState(LearningChannels):
    """The channels of a learning run that the accept test reads and writes."""

    before: str
    """Name of the version that this step began with."""
    why: str
    """Reason for accepting or rejecting the candidate."""
    stops: list[str]
    """Messages of `BudgetSpent`; empty as long as the budget lasts."""


@dataclass(frozen=True)
class PlayProbe(Runnable[Any, Any]):
    """Play one rollout of the accept test: a held-out problem under a library. A missing reward counts as 0, and costs of tokens
    and actions are taken off as in learning."""

    role: ClassVar[str] = "graph"

    roll: RolloutPlayer
    token_cost: float = 0.0
    """Reward per 1000 tokens."""
    action_cost: float = 0.0
    """Reward per action."""

    def key(self, work: Mapping[str, Any]) -> str:
        """The key of the rollout in the cache."""
        return self.roll.key(self._rollout_input(work))

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        try:
            return self._update(input, self.roll.invoke(self._rollout_input(input), config))
        except BudgetSpent as spent:
            return {"stops": [str(spent)]}

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        try:
            return self._update(input, await self.roll.ainvoke(self._rollout_input(input), config))
        except BudgetSpent as spent:
            return {"stops": [str(spent)]}

    @staticmethod
    def _rollout_input(state: Mapping[str, Any]) -> dict[str, Any]:
        # The same name for both libraries, and in every step: rollouts of the current library are then in the cache.
        run = f"{state['run']}/trial"
        return {"task": state["task"], "run": run, "episode": state["number"], "library": state["library"]}

    def _update(self, state: Mapping[str, Any], rollout: Rollout) -> dict[str, Any]:
        tokens = rollout.usage.input_tokens + rollout.usage.output_tokens
        worth = net_reward(rollout.reward or 0.0, tokens, rollout.steps, self.token_cost, self.action_cost)
        probe = Probe(state["library"], rollout.task.id, rollout.number, worth, rollout.error)
        return {"probes": [probe], "usage": rollout.usage}


def fan_out_probes(problems: Sequence[Task], trials: int) -> Callable[[AcceptTestState], list[Mapping[str, Any]]]:
    """A fan-out of `trials` rollouts of every held-out problem under the candidate, and as many under the current library."""

    def probes(state: AcceptTestState) -> list[Mapping[str, Any]]:
        libraries = (state["library"], state["candidate"])
        return [
            {"task": task, "run": state["run"], "number": number, "library": library}
            for task in problems
            for number in range(trials)
            for library in libraries
        ]

    return probes


@dataclass(frozen=True)
class CachedProbes:
    """The probes of an accept test, kept in the cache: a run that starts over decides on the same probes, even if a rollout that
    failed then would work now."""

    cache: Cache
    play_probe: PlayProbe
    probes: Callable[[AcceptTestState], list[Mapping[str, Any]]]
    """See `fan_out_probes`."""

    def __call__(self, state: AcceptTestState) -> list[Probe]:
        place = cache_key(
            "trial",
            state["step"],
            self.play_probe.token_cost,
            self.play_probe.action_cost,
            *map(self.play_probe.key, self.probes(state)),
        )
        return [Probe(**probe) for probe in self.cache.put(place, [asdict(probe) for probe in state["probes"]], "trial")]


@dataclass(frozen=True)
class Accept:
    """Decide whether the candidate takes the library's place, and remember the best version.

    A candidate that was not tested (nothing is held out, or it shows the same lessons) is accepted. If the budget ran out during
    the test, it is not accepted.

    Raises:
        UserError: all rollouts of the test failed.
    """

    role: ClassVar[str] = "compute"

    shows_same_lessons: Callable[[str, str], bool] = field(repr=False)
    """True if two versions show the same lessons (`SameLessonsShown`)."""
    rule: Rule = "not-worse"
    keep_best: bool = True
    """True: the product is the version that did best. False: the last one."""
    cached_probes: Callable[[AcceptTestState], list[Probe]] | None = field(default=None, repr=False)
    """Keeps the probes of the decision (`CachedProbes`); None: they are not kept."""

    def __call__(self, state: AcceptTestState) -> dict[str, Any]:
        candidate, current = state["candidate"], state["library"]
        if state["stops"]:
            return {"accepted": False, "why": f"not tested: {state['stops'][0]}"}
        probes = state["probes"]
        refuse_failure(probes)
        if probes and self.cached_probes:
            probes = self.cached_probes(state)
        test = accept_test_result(probes, candidate, current, f"{state['run']}/{state['step']}/accept")
        takes, why = decide_acceptance(test, self.rule)
        library = candidate if takes else current
        same = self.shows_same_lessons(candidate, current)
        update: dict[str, Any] = {
            "library": library,
            "accepted": takes,
            "why": "shows the same lessons" if test is None and same else why,
            "best": library,
            "best_score": state["best_score"],
            "stalled": 0 if takes and not same and (test is None or test.gain > _SAME) else state["stalled"] + 1,
        }
        if test is not None:
            update |= {"probes": Overwrite(probes), **self._best(state, test, takes)}
        elif same and state["best"] != current:
            update["best"] = state["best"]
        return update if self.keep_best else {**update, "best": library}

    @staticmethod
    def _best(state: AcceptTestState, test: AcceptTestResult, takes: bool) -> dict[str, Any]:
        """The best version so far. The first test also measures the library that the run began with."""
        best, known = state["best"], state["best_score"]
        if known is None or best == state["library"]:
            best, known = state["library"], test.current
        if takes and test.candidate >= known - _SAME:
            best, known = state["candidate"], test.candidate
        return {"best": best, "best_score": known}
