"""The accept test: a candidate library takes the current one's place only if it does no worse on held-out problems.

Both libraries are tried on the same problems with the same seeds, afresh in every step: a library is never judged by the
rollouts by which it won. d_i is the mean reward of the candidate's rollouts of problem i less that of the current library's; to
these belong its rollouts of earlier steps in which it stayed (pooled evidence). The gain is the mean of d_i over problems, and
its lower bound that of Student's t at 95 %, over n problems, not over rollouts: more rollouts of the same problems do not tell
more about other problems.

    bound = gain - t(0.95, n - 1) * sd(d) / sqrt(n)

| rule | the candidate is accepted if |
|---|---|
| `not-worse` | the bound is above -`margin`: a library that is worse by the margin passes in 5 % of the tests at most |
| `better` | the bound is above 0 |
| `always` | always, without a test; the last version is the product then (as published) |

A share of the held-out problems is a second split, which decides nothing but this: a candidate whose mean there falls by the
margin or more is not accepted.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from statistics import stdev
from typing import Annotated, Any, ClassVar, Literal, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.types import Overwrite
from typing_extensions import TypedDict

from ...memory.errors import UserError
from ...memory.lessons.versions import LibraryVersions
from ...memory.records import Probe, Rollout, Task, Usage
from ...memory.storage.cache import Cache, cache_key
from ..arguments import Amount, ArgumentCheck, Count, Range
from ..cached_model import BudgetSpent
from ..evaluate.statistics import interval, mean
from ..extract.rollouts import RolloutInput, RolloutPlayer
from ..state import LibraryChannels, RunLibrary, TaskChannel

__all__ = [
    "Accept",
    "AcceptSettings",
    "AcceptTestResult",
    "CachedProbes",
    "NewLeaks",
    "PlayProbe",
    "Rule",
    "fan_out_probes",
    "split_held_out",
]

Rule = Literal["not-worse", "better", "always"]
CONFIDENCE = 0.95
"""Confidence of the one-sided bound by which the rules go."""
_SAME = 1e-9


@dataclass(frozen=True)
class AcceptSettings(ArgumentCheck):
    """Settings of the accept test."""

    margin: Amount = 0.1
    """Mean reward, of 1, by which an accepted candidate must be shown not to be worse (non-inferiority); it must not fall by so much
    on the second split either. Paper: none."""
    regression_share: Annotated[float, Range(0, 0.99)] = 0.25
    """Share of the held-out problems that are the second split, on which a candidate must not get worse; 0: none. Paper: none."""
    rollouts: Count = 3
    """Rollouts of a held-out problem under each library, in every step. Paper: none."""
    temperature: Amount = 0.3
    """Temperature of rollouts of the accept test and of evaluation. Paper: 0.3."""


@dataclass(frozen=True, slots=True)
class AcceptTestResult:
    """The result of an accept test; rewards in [0, 1]."""

    candidate: float
    """Mean reward of the candidate, over problems and their rollouts."""
    current: float
    gain: float
    """Mean paired difference, candidate minus current."""
    low: float
    """Lower end of the 95 % interval of the gain, by Student's t; the gain itself with a single problem."""
    high: float
    wins: int
    """Problems on which the candidate did better."""
    losses: int
    problems: int
    bound: float = 0.0
    """Lower end of the one-sided 95 % interval of the gain, by Student's t: the rules go by it."""
    second: float | None = None
    """The gain on the second split; None without one."""
    pooled: int = 0
    """Number of the current library's rollouts of earlier steps that count with those of this step."""


def split_held_out(problems: Sequence[Task], share: float) -> frozenset[str]:
    """Ids of the held-out problems that are the second split: the last ones, as many as the share says, rounded down."""
    return frozenset(task.id for task in problems[len(problems) - int(share * len(problems) + _SAME) :])


def differences(probes: Sequence[Probe], candidate: str, current: str, earlier: Sequence[Probe] = ()) -> dict[str, float]:
    """Per problem, the mean reward of the candidate's rollouts less that of the current library's, by task id.

    Args:
        probes: the rollouts of this step.
        candidate: name of the candidate.
        current: name of the current library.
        earlier: rollouts of the current library from earlier steps; its name may have been another then.
    """
    rewards: dict[str, dict[tuple[str, int], float]] = {candidate: {}, current: {}}
    for probe in probes:
        if probe.library in rewards:
            rewards[probe.library][probe.task, probe.number] = probe.reward
    new, old = rewards[candidate], rewards[current]
    if alone := sorted(new.keys() ^ old.keys()):
        raise UserError(f"accept test: rollout {alone[0][1]} of {alone[0][0]} was made with one of the two libraries only")
    means = [_mean_by_task([(task, new[task, n]) for task, n in sorted(new)])]
    means.append(_mean_by_task([*((task, old[task, n]) for task, n in sorted(old)), *((p.task, p.reward) for p in earlier)]))
    return {task: reward - means[1][task] for task, reward in means[0].items()}


def _mean_by_task(rewards: Sequence[tuple[str, float]]) -> dict[str, float]:
    by_task: dict[str, list[float]] = {}
    for task, reward in rewards:
        by_task.setdefault(task, []).append(reward)
    return {task: sum(each) / len(each) for task, each in by_task.items()}


def lower_bound(gains: Sequence[float]) -> float:
    """The lower end of the one-sided 95 % interval of the mean, by Student's t; the mean itself of a single value."""
    from scipy.stats import t  # type: ignore[import-untyped, unused-ignore]

    size = len(gains)
    return mean(gains) if size < 2 else mean(gains) - float(t.ppf(CONFIDENCE, size - 1)) * stdev(gains) / math.sqrt(size)


def _passes(bound: float, second: float, rule: Rule, margin: float) -> bool:
    """True if a candidate with this bound, and this gain on the second split, is accepted."""
    if rule == "always":
        return True
    is_clear = bound > (0.0 if rule == "better" else -margin) + _SAME or (rule == "not-worse" and bound >= -_SAME)
    return is_clear and (second > -margin + _SAME or second >= -_SAME)


def accept_test_result(
    probes: Sequence[Probe], candidate: str, current: str, *, earlier: Sequence[Probe] = (), second: Collection[str] = ()
) -> AcceptTestResult | None:
    """The result of an accept test; None without probes."""
    paired = differences(probes, candidate, current, earlier)
    if not paired:
        return None
    there = [gain for task, gain in paired.items() if task in second]
    gains = [paired[task] for task in sorted(paired) if task not in second]
    first = [probe for probe in probes if probe.task not in second]
    pooled = [replace(probe, library=current) for probe in earlier if probe.task not in second]
    gain = mean(gains)
    low, high = interval(gains) or (gain, gain)
    return AcceptTestResult(
        candidate=mean_reward(first, candidate),
        current=mean_reward([*first, *pooled], current),
        gain=gain,
        low=low,
        high=high,
        wins=sum(gain > _SAME for gain in gains),
        losses=sum(gain < -_SAME for gain in gains),
        problems=len(gains),
        bound=lower_bound(gains),
        second=sum(there) / len(there) if there else None,
        pooled=len(pooled),
    )


def refuse_failure(probes: Sequence[Probe]) -> None:
    """Refuse a test in which every rollout failed: it would find the two libraries equally good."""
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


def decide_acceptance(test: AcceptTestResult | None, rule: Rule, margin: float = 0.1) -> tuple[bool, str]:
    """True if the candidate takes the current library's place, and the reason as text. Without a test it does."""
    if test is None:
        return True, "not tested"
    change = f"{test.current:.3f} -> {test.candidate:.3f} ({test.gain:+.3f}, 95 % [{test.low:+.3f}, {test.high:+.3f}])"
    if rule == "always":
        return True, f"always accepted; {change}"
    least = "better" if rule == "better" else f"not worse by {margin:g}" if margin else "not worse"
    if not _passes(test.bound, 0.0, rule, margin):
        what = "worse" if test.gain <= -margin and test.gain < -_SAME else f"not shown to be {least}"
        return False, f"{what}: {change}, lower bound {test.bound:+.3f}"
    if test.second is not None and not _passes(test.bound, test.second, rule, margin):
        return False, f"worse on the second split ({test.second:+.3f}): {change}"
    return True, f"{least}: {change}, lower bound {test.bound:+.3f}"


class ProbeInput(TaskChannel, LibraryChannels):
    """A held-out problem, the library that is tried on it, and the number of the rollout."""

    run: str
    number: int


class ProbeResult(TypedDict, total=False):
    """A rollout of the accept test, or the end of the budget."""

    probes: list[Probe]
    usage: Usage
    stops: list[str]


class TestedCandidate(RunLibrary):
    """A candidate with the rollouts of its accept test."""

    run: str
    step: int
    candidate: str
    probes: list[Probe]
    incumbent_probes: list[Probe]
    stalled: int
    stops: list[str]


class Acceptance(TypedDict, total=False):
    """The decision on a candidate."""

    library: str
    best: str
    best_score: float | None
    accepted: bool
    why: str
    stalled: int
    trial: dict[str, Any] | None
    probes: list[Probe]
    incumbent_probes: list[Probe]


@dataclass(frozen=True)
class PlayProbe(Runnable[ProbeInput, ProbeResult]):
    """Play one rollout of the accept test: a held-out problem under a library. A missing reward counts as 0."""

    role: ClassVar[str] = "graph"

    roll: RolloutPlayer

    def key(self, work: ProbeInput) -> str:
        """The key of the rollout in the cache."""
        return self.roll.key(self._rollout_input(work))

    def invoke(self, input: ProbeInput, config: RunnableConfig | None = None, **kwargs: Any) -> ProbeResult:
        try:
            return self._update(input, self.roll.invoke(self._rollout_input(input), config))
        except BudgetSpent as spent:
            return {"stops": [str(spent)]}

    async def ainvoke(self, input: ProbeInput, config: RunnableConfig | None = None, **kwargs: Any) -> ProbeResult:
        try:
            return self._update(input, await self.roll.ainvoke(self._rollout_input(input), config))
        except BudgetSpent as spent:
            return {"stops": [str(spent)]}

    @staticmethod
    def _rollout_input(state: ProbeInput) -> RolloutInput:
        # The same name and numbers for both libraries: they meet the same draws. Every step has numbers of its own.
        run = f"{state['run']}/trial"
        return {"task": state["task"], "run": run, "episode": state["number"], "library": state["library"]}

    def _update(self, state: ProbeInput, rollout: Rollout) -> ProbeResult:
        probe = Probe(state["library"], rollout.task.id, rollout.number, rollout.reward or 0.0, rollout.error)
        return {"probes": [probe], "usage": rollout.usage}


def fan_out_probes(problems: Sequence[Task], trials: int) -> Callable[[TestedCandidate], list[ProbeInput]]:
    """A fan-out of `trials` rollouts of every held-out problem under the candidate, and as many under the current library.

    Their numbers go on from step to step: the current library is played afresh, not judged by the rollouts by which it won.
    """

    def probes(state: TestedCandidate) -> list[ProbeInput]:
        libraries = (state["library"], state["candidate"])
        return [
            {"task": task, "run": state["run"], "number": number, "library": library}
            for task in problems
            for number in range(state["step"] * trials, (state["step"] + 1) * trials)
            for library in libraries
        ]

    return probes


@dataclass(frozen=True)
class CachedProbes:
    """The probes of an accept test, kept in the cache: a run that starts over decides on the same probes, even if a rollout that
    failed then would work now."""

    cache: Cache
    play_probe: PlayProbe
    probes: Callable[[TestedCandidate], list[ProbeInput]]
    """See `fan_out_probes`."""

    def __call__(self, state: TestedCandidate) -> list[Probe]:
        place = cache_key("trial", state["step"], *map(self.play_probe.key, self.probes(state)))
        return [Probe(**probe) for probe in self.cache.put(place, [asdict(probe) for probe in state["probes"]], "trial")]


@dataclass(frozen=True)
class NewLeaks:
    """Gives the reason if a candidate has a lesson that tells an answer and that the current library does not have."""

    versions: LibraryVersions = field(repr=False)
    leak_reason: Callable[[str, Sequence[str], Mapping[str, Task]], str] = field(repr=False)
    """See `nodes.extract.critic.Critic.leak_reason`."""
    tasks: Mapping[str, Task] = field(repr=False)
    """The problems whose answers are looked for: those that are learned on, and those that are held out."""

    def __call__(self, candidate: str, current: str) -> str:
        known = {lesson.text for lesson in self.versions.at(current).lessons}
        new = (lesson for lesson in self.versions.at(candidate).lessons if lesson.text not in known)
        return next(filter(None, (self.leak_reason(lesson.text, lesson.problems, self.tasks) for lesson in new)), "")


@dataclass(frozen=True)
class Accept:
    """Decide whether the candidate takes the library's place, and remember the best version.

    A candidate that was not tested (nothing is held out, or it shows the same lessons) is accepted. If the budget ran out during
    the test, it is not accepted, nor is one that tells the answer of a problem.

    Raises:
        UserError: all rollouts of the test failed.
    """

    role: ClassVar[str] = "compute"

    shows_same_lessons: Callable[[str, str], bool] = field(repr=False)
    """True if two versions show the same lessons (`SameLessonsShown`)."""
    rule: Rule = "not-worse"
    margin: float = 0.1
    """See `AcceptSettings`."""
    second: frozenset[str] = field(default=frozenset(), repr=False)
    """Ids of the problems of the second split."""
    leak_reason: Callable[[str, str], str] | None = field(default=None, repr=False)
    """(candidate, current library) -> the reason if a new lesson tells an answer, else an empty text; None: nothing is compared."""
    _: KW_ONLY
    cached_probes: Callable[[TestedCandidate], list[Probe]] | None = field(default=None, repr=False)
    """Keeps the probes of the decision (`CachedProbes`); None: they are not kept."""

    def __call__(self, state: TestedCandidate) -> Acceptance:
        candidate, current = state["candidate"], state["library"]
        if state["stops"]:
            return {"accepted": False, "why": f"not tested: {state['stops'][0]}"}
        probes = state["probes"]
        refuse_failure(probes)
        if probes and self.cached_probes:
            probes = self.cached_probes(state)
        earlier = state["incumbent_probes"]
        test = accept_test_result(probes, candidate, current, earlier=earlier, second=self.second)
        takes, why = decide_acceptance(test, self.rule, self.margin)
        if leak := self.leak_reason(candidate, current) if self.leak_reason else "":
            takes, why = False, leak
        library = candidate if takes else current
        same = self.shows_same_lessons(candidate, current)
        update: Acceptance = {
            "library": library,
            "accepted": takes,
            "why": "shows the same lessons" if test is None and same and takes else why,
            "best": library,
            "best_score": state["best_score"],
            "stalled": 0 if takes and not same and (test is None or test.gain > _SAME) else state["stalled"] + 1,
            "trial": asdict(test) if test else None,
        }
        if takes and not same:
            update["incumbent_probes"] = []
        elif test is not None:
            update["incumbent_probes"] = [*earlier, *(p for p in probes if p.library == current and not p.error)]
        if test is not None:
            update |= {"probes": cast(Any, Overwrite(probes)), **self._best(state, test, takes)}
        elif same and state["best"] != current:
            update["best"] = state["best"]
        return update

    @staticmethod
    def _best(state: TestedCandidate, test: AcceptTestResult, takes: bool) -> Acceptance:
        """The best version so far. The first test also measures the library that the run began with, and later ones measure the
        best version again where it is the current one."""
        best, known = state["best"], state["best_score"]
        if known is None or best == state["library"]:
            best, known = state["library"], test.current
        if takes and test.candidate >= known - _SAME:
            best, known = state["candidate"], test.candidate
        return {"best": best, "best_score": known}
