"""The steps of a learning run (Training-Free GRPO): problems, groups, candidate, log, and when the run ends.

A group's own nodes are in nodes/extract/groups.py, the accept test is in nodes/update/accept_test.py.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.types import Overwrite
from typing_extensions import TypedDict

from ...memory.errors import UserError
from ...memory.lessons.library import Library, LibraryLimits
from ...memory.lessons.versions import LibraryVersions, open_library
from ...memory.records import Comparison, Edit, Rollout, Ruling, Task, Usage
from ...memory.storage.cache import cache_key
from ...memory.storage.rows import Rows
from ..act.choose import seeded_random
from ..ask import Ask, estimate_tokens
from ..cached_model import BudgetSpent, SpendingLimit
from ..extract.critic import InventedLessons, ProblemsOfKind
from ..extract.groups import COMPARABLE_KINDS, GroupOutput, StopWhenBudgetSpent, is_lost_comparison
from ..extract.rollouts import RolloutInput, RolloutPlayer
from ..extract.rule_critic import as_library, random_lessons, shuffle_lessons
from ..state import GroupInput, LearningChannels, LearningProgress, LibraryChannels, StepResults
from .consolidate import describe_edit

__all__ = [
    "BeginStep",
    "CachedGroup",
    "Consolidate",
    "Finish",
    "Invent",
    "LearningRunInput",
    "LearningRunResult",
    "RecordStep",
    "RouteArm",
    "RouteCandidate",
    "RouteNextStep",
    "Schedule",
    "Start",
    "choose_problems",
    "passthrough",
]

log = logging.getLogger(__name__)

Node = Callable[[Any], Any] | Runnable[Any, Any]
REJECTED_SHOWN = 3
"""Rejected candidates that the next proposals are shown, the last ones."""


class LearningRunInput(TypedDict):
    """The input of a learning run."""

    run: str
    """Name of the run. Every id and every random draw is made from it."""


class LearningRunResult(TypedDict):
    """The output of a learning run."""

    run: str
    library: str
    """Name of the current version at the end."""
    best: str
    """Name of the product, a version."""
    best_score: float | None
    """Mean reward of the product on the held-out problems; None where nothing was tested."""
    step: int
    """Number of learning steps that were made."""
    stopped: str
    usage: Usage


class NoChange(TypedDict):
    """No channel at all."""


class StepToBegin(LearningRunInput, LibraryChannels):
    """The library that a step begins with, and what its groups are told of earlier steps."""

    step: int
    came: int
    rejected: list[str]
    lesson_rewards: dict[str, list[float]]


class ComparedStep(StepToBegin):
    """The comparisons of a step's groups."""

    comparisons: list[Comparison]
    stops: list[str]


class CandidateMade(TypedDict, total=False):
    """The candidate made of a step's edits, if there is one."""

    candidate: str
    why: str
    came: int
    lesson_rewards: dict[str, list[float]]
    stops: list[str]
    failures: list[str]
    usage: Usage


class LibraryCandidate(LibraryChannels):
    """The candidate, and the library whose place it may take."""

    candidate: str


class StepEnd(LibraryChannels):
    """The place of a run after a step, and the library that it goes on with."""

    step: int
    stalled: int
    stopped: str
    rejected: list[str]
    best: str


class StepsMade(TypedDict):
    """The number of steps made, and the reason for ending before the last one."""

    step: int
    stopped: str


class InventedLibrary(TypedDict, total=False):
    """A library that was written without rollouts, or the reason why there is none."""

    library: str
    best: str
    usage: Usage
    stopped: str


class EndedRun(LearningRunInput, LibraryChannels):
    """The best version of a run that has ended."""

    step: int
    best: str
    stops: list[str]


class RunProduct(LibraryChannels):
    """The product of a run."""

    best: str


# Problems


@dataclass(frozen=True)
class Schedule:
    """The problems of every step."""

    problems: tuple[Task, ...] = field(repr=False)
    batch_size: int = 0
    """Problems of a step; 0: all."""
    epochs: int = 1

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps of an epoch. The last batch may be smaller."""
        return -(-len(self.problems) // (self.batch_size or len(self.problems) or 1))

    def epoch_and_batch(self, step: int) -> tuple[int, int]:
        """The epoch of a step, and the number of its batch in the epoch, both from 0."""
        return divmod(step, self.steps_per_epoch)

    def tasks(self, run: str, step: int) -> list[Task]:
        """The problems of a step: those of its batch. Every epoch has its own order, drawn from the run's name."""
        epoch, number = self.epoch_and_batch(step)
        order = list(self.problems)
        seeded_random(run, "epoch", epoch).shuffle(order)
        size = self.batch_size or len(order)
        return order[number * size : (number + 1) * size]


def choose_problems(
    environment: Any, count: int, held_out_count: int, *, problems: Sequence[Task] = (), held_out: Sequence[Task] = ()
) -> tuple[list[Task], list[Task], list[str]]:
    """Problems to learn on, held-out problems, and the ids that `deduplicate` dropped; empty without an environment.

    Args:
        environment: where problems come from if none are given: its first tasks of `train`, and of `dev` for the held-out ones.
        count: number of problems to learn on.
        held_out_count: number of held-out problems.
        problems: problems to learn on, if they are given.
        held_out: held-out problems, if they are given.

    Raises:
        UserError: see `deduplicate`.
    """
    if environment is None:  # a drawing has no environment
        return [], [], []
    if not problems:
        problems = [environment.task(n, "train") for n in range(count)]
        held_out = held_out or [environment.task(n, "dev") for n in range(held_out_count if problems else 0)]
    return deduplicate(problems, held_out, hasattr(environment, "answer"))


def deduplicate(
    problems: Sequence[Task], held_out: Sequence[Task], by_instruction: bool
) -> tuple[list[Task], list[Task], list[str]]:
    """Problems and held-out problems without repeats, and the ids that were dropped.

    Args:
        problems: problems to learn on.
        held_out: problems of the accept test.
        by_instruction: whether two problems with the same instruction are the same problem: repeats are dropped then.
    """

    def same(task: Task) -> str:
        return " ".join(task.instruction.split()) if by_instruction else task.id

    for where, tasks in (("problems", problems), ("held-out problems", held_out)):
        doubled = [id for id, count in Counter(task.id for task in tasks).items() if count > 1]
        if doubled:
            raise UserError(f"training-free-grpo: {len(doubled)} of the {where} have an id that another one has: {doubled[:3]}")
    kept: dict[str, Task] = {}
    tests: dict[str, Task] = {}
    dropped = []
    for into, tasks in ((kept, problems), (tests, held_out)):
        for task in tasks:
            if into.setdefault(same(task), task) is not task:
                dropped.append(task.id)
    if both := [task.id for what, task in tests.items() if what in kept]:
        raise UserError(
            f"training-free-grpo: {len(both)} held-out problems are also learned on ({', '.join(both[:3])}): "
            "hold out others, or leave them out of the problems"
        )
    return list(kept.values()), list(tests.values()), dropped


# The run


@dataclass(frozen=True)
class Start:
    """Store the library to start from as version `<run>/0`, and set all channels to their first values."""

    role: ClassVar[str] = "memory"

    versions: LibraryVersions = field(repr=False)
    library: str = ""
    """A YAML file, or the folder of a run whose product it is; empty: no lessons."""
    arm: str = "learned"
    limits: LibraryLimits = field(default_factory=LibraryLimits, repr=False)
    count: Callable[[str], int] = field(default=estimate_tokens, repr=False)
    """Tokens of a text."""
    player: str = field(default="", repr=False)
    """Name of the model that plays."""

    def __call__(self, state: LearningRunInput) -> LearningProgress:
        first = f"{state['run']}/0"
        library, rulings = self._read().trim_to_limits(self.limits, self.count)
        if warning := library.other_model(self.player):
            log.warning("%s: %s", self.library, warning)
        self.versions.put(first, library, why="the start", rulings=rulings)
        found = {"step": 0, "library": first, "best": first, "best_score": None, "stalled": 0, "stopped": ""}
        found |= {"incumbent_probes": [], "rejected": [], "lesson_rewards": {}, "usage": Overwrite(Usage())}
        return cast(LearningProgress, {**found, **_empty_step(first)})

    def _read(self) -> Library:
        if not self.library or self.arm == "empty":
            return Library()
        found = open_library(self.library)
        return found if isinstance(found, Library) else found.at(found.head)


def _empty_step(library: str, came: int = 0) -> StepResults:
    """A step without results."""
    lists: Any = {name: Overwrite([]) for name in ("comparisons", "probes", "stops", "failures")}
    found = {"before": library, "candidate": "", "accepted": False, "why": "", "trial": None, "came": came}
    return cast(StepResults, {**found, "began": time.time(), **lists})


@dataclass(frozen=True)
class RouteArm:
    """Router: `learn` from rollouts, `invent` lessons without rollouts, or take the library `as it is`."""

    arm: str = "learned"

    def __call__(self, state: LearningRunInput) -> Literal["learn", "invent", "as it is"]:
        return "as it is" if self.arm == "empty" else "invent" if self.arm == "self-generated" else "learn"


@dataclass(frozen=True)
class BeginStep:
    """Clear the channels of the step before."""

    role: ClassVar[str] = "compute"

    schedule: Schedule = field(repr=False)

    def __call__(self, state: StepToBegin) -> StepResults:
        _, number = self.schedule.epoch_and_batch(state["step"])
        return _empty_step(state["library"], state["came"] if number else 0)

    def fan_out_groups(self, state: StepToBegin) -> list[GroupInput]:
        """One piece of work for every problem of the batch: its group."""
        return [
            {
                "run": state["run"],
                "step": state["step"],
                "library": state["library"],
                "rejected": tuple(state["rejected"]),
                "lesson_rewards": state["lesson_rewards"],
                "task": task,
            }
            for task in self.schedule.tasks(state["run"], state["step"])
        ]


@dataclass(frozen=True)
class CachedGroup(Runnable[GroupInput, GroupOutput]):
    """Run a group once and cache its result, including failures, so that a resumed run does not repeat it.

    A run that starts over then gives the same result, even if a rollout that failed would work now. Two kinds of groups are run
    again: a group for which the budget ran out, and a group in which everything failed, as long as its step has no version yet:
    the user may have repaired the cause.
    """

    role: ClassVar[str] = "graph"

    graph: Runnable[Any, Any] = field(repr=False)
    roll: RolloutPlayer = field(repr=False)
    """Plays its rollouts."""
    name: str = field(default="", repr=False)
    """A fingerprint of all that a group depends on beside its rollouts: models, prompts and settings of the comparison."""

    def key(self, state: GroupInput) -> str:
        """The key of the group's result in the cache."""
        task, library = state["task"], self.roll.versions.at(state["library"])
        shown = (library.lessons, library.next)  # critics see all of it
        told = (state.get("lesson_rewards") or {}, list(state.get("rejected") or ()))
        return cache_key(
            "group", self.name, self.roll.name, self.roll.world_key(task), task, state["run"], state["step"], shown, *told
        )

    def invoke(self, input: GroupInput, config: RunnableConfig | None = None, **kwargs: Any) -> GroupOutput:
        place = self.key(input)
        return self._load(place, input) or self._store(place, self.graph.invoke(input, config))

    async def ainvoke(self, input: GroupInput, config: RunnableConfig | None = None, **kwargs: Any) -> GroupOutput:
        place = self.key(input)
        return self._load(place, input) or self._store(place, await self.graph.ainvoke(input, config))

    def _load(self, place: str, state: GroupInput) -> GroupOutput | None:
        known = self.roll.cache.get(place)
        name = candidate_name(state)
        if known is None and not {name, f"{name}-kept"}.isdisjoint(self.roll.versions.names()):
            known = self.roll.cache.get(cache_key("failed", place))
        return None if known is None else _group_from_json(known)

    def _store(self, place: str, out: GroupOutput) -> GroupOutput:
        (comparison,) = out["comparisons"]
        if out["stops"]:
            return {"comparisons": [comparison], "usage": out["usage"], "stops": out["stops"][:1]}
        found = {"comparison": asdict(comparison), "usage": asdict(out["usage"])}
        return _group_from_json(
            self.roll.cache.put(place if has_result(comparison) else cache_key("failed", place), found, "group")
        )


def candidate_name(state: Mapping[str, Any]) -> str:
    """The name of the version that a step proposes."""
    return f"{state['run']}/{state['step'] + 1}"


def has_result(comparison: Comparison) -> bool:
    """True if at least one rollout of the group has a reward, or the group was compared without rewards."""
    return comparison.kind != "failed" or any(truth is not None for truth in comparison.truths)


def _group_from_json(found: Mapping[str, Any]) -> GroupOutput:
    value = dict(found["comparison"])
    value["edits"] = [Edit(**edit) for edit in value["edits"]]
    value["rulings"] = [Ruling(**{**ruling, "edit": Edit(**ruling["edit"])}) for ruling in value["rulings"]]
    return {"comparisons": [Comparison(**value)], "usage": Usage(**found["usage"]), "stops": []}


@dataclass(frozen=True)
class Consolidate(Runnable[ComparedStep, CandidateMade]):
    """Make a candidate of the groups' edits (nodes/update/consolidate.py). Without a group to learn from no model is asked, and
    only the counts of shown lessons change.

    Raises:
        UserError: every rollout of a step with several problems failed, or every rollout of an epoch: something needs repair.
    """

    role: ClassVar[str] = "model"

    node: Node = field(repr=False)
    schedule: Schedule = field(repr=False)

    def invoke(self, input: ComparedStep, config: RunnableConfig | None = None, **kwargs: Any) -> CandidateMade:
        if known := self._update_without_asking(input):
            return known
        state = _with_lesson_rewards(input)
        return self._update(state, cast(CandidateMade, self._budgeted_node.invoke(state, config)))

    async def ainvoke(self, input: ComparedStep, config: RunnableConfig | None = None, **kwargs: Any) -> CandidateMade:
        if known := self._update_without_asking(input):
            return known
        state = _with_lesson_rewards(input)
        return self._update(state, cast(CandidateMade, await self._budgeted_node.ainvoke(state, config)))

    @property
    def _budgeted_node(self) -> StopWhenBudgetSpent:
        return StopWhenBudgetSpent(self.node)

    def _update_without_asking(self, state: ComparedStep) -> CandidateMade | None:
        """The update of a step whose budget is spent; None if the node is to be asked."""
        came = self._came(state)
        if state["stops"]:
            return {"candidate": "", "why": state["stops"][0], "came": came}
        self._refuse_failure(state, came)
        return None

    def _update(self, state: ComparedStep, found: CandidateMade) -> CandidateMade:
        if found.get("stops"):
            return {"candidate": "", **found, "came": self._came(state)}
        usable = any(one.kind in COMPARABLE_KINDS for one in state["comparisons"])
        why = "nothing was to be changed" if usable else "no group had something to compare"
        counted: CandidateMade = {"lesson_rewards": state["lesson_rewards"], "came": self._came(state)}
        return {**found, "why": "" if found.get("candidate") else why, **counted}

    @staticmethod
    def _came(state: ComparedStep) -> int:
        """Number of the epoch's groups so far, with this step's, that had a result."""
        return state["came"] + sum(map(has_result, state["comparisons"]))

    def _refuse_failure(self, state: ComparedStep, any_has_result: int) -> None:
        """Raise if no group has a result. A single problem may be impossible to verify, so it takes two, or a whole epoch."""
        step, groups = state["step"], state["comparisons"]
        epoch, number = self.schedule.epoch_and_batch(step)
        over = number + 1 == self.schedule.steps_per_epoch
        if any(map(has_result, groups)) or (len(groups) < 2 and (any_has_result or not over)):
            return
        lost = sum(len(one.truths) for one in groups)
        every = f"all rollouts of epoch {epoch} failed, in the end {lost}" if len(groups) < 2 else ""
        every = every or f"all {lost} rollouts of step {step} failed"
        raise UserError(f"training-free-grpo: {every}, {_failure_reasons(groups)}")


def _with_lesson_rewards(state: ComparedStep) -> ComparedStep:
    return {**state, "lesson_rewards": add_lesson_rewards(state)}


def add_lesson_rewards(state: ComparedStep) -> dict[str, list[float]]:
    """The sums and numbers of rewards by lesson, with those of this step's groups. All rollouts of a group show the same lessons."""
    found = {id: list(each) for id, each in state["lesson_rewards"].items()}
    for one in state["comparisons"]:
        known = [reward for reward in one.rewards if reward is not None]
        for id in ("", *(id for id, _ in one.shown)) if known else ():
            sums = found.setdefault(id, [0.0, 0.0])
            sums[0], sums[1] = round(sums[0] + sum(known), 9), sums[1] + len(known)
    return found


def _failure_reasons(groups: Sequence[Comparison]) -> str:
    """The reasons for which rollouts failed, as text: their number, and the most frequent one."""
    reasons = [failure.partition(": ")[2] for one in groups for failure in one.failures if failure.startswith("rollout ")]
    (first, count), *others = Counter(reasons).most_common()
    what = "for one reason" if not others else f"for {1 + len(others)} reasons, {count} of them"
    return f"{what}: {first}"


@dataclass(frozen=True)
class RouteCandidate:
    """Router: `candidate` if there is one to test, `untested` if it needs no test, `no change` without one."""

    shows_same_lessons: Callable[[str, str], bool] = field(repr=False)
    """True if two versions show the same lessons (`SameLessonsShown`)."""
    has_tests: bool = True

    def __call__(self, state: LibraryCandidate) -> Literal["candidate", "untested", "no change"]:
        if not state["candidate"]:
            return "no change"
        return (
            "untested" if not self.has_tests or self.shows_same_lessons(state["candidate"], state["library"]) else "candidate"
        )


def passthrough(state: Any) -> NoChange:
    """A node that changes nothing: a place for a fan-out to start from."""
    return {}


@dataclass(frozen=True)
class RecordStep:
    """Write the step's row of the log, once however often this runs, and decide whether the run ends early.

    If no candidate was accepted, the library goes on with the votes of the step, as the version `<run>/<step + 1>-kept`.
    """

    role: ClassVar[str] = "memory"

    log: Rows = field(repr=False)
    versions: LibraryVersions = field(repr=False)
    schedule: Schedule = field(repr=False)
    meter: SpendingLimit | None = field(default=None, repr=False)
    patience: int = 2
    dropped_problems: tuple[str, ...] = field(default=(), repr=False)
    player: str = field(default="", repr=False)
    """Name of the model that plays the accept test; empty where its rule accepts everything."""

    def __call__(self, state: LearningChannels) -> StepEnd:
        step, stalled = state["step"], state["stalled"] + (not state["candidate"])
        stopped = self._stop_reason(state, stalled)
        now: RunProduct = {"library": state["library"], "best": state["best"]}
        if state["accepted"]:
            self.versions.move(state["library"], state["why"], self.player if state["trial"] else "")
        elif not state["stops"]:
            now = self._keep_votes(state)
        self.log.append(self._row({**state, **now}, stopped))
        rejected = [*state["rejected"], *self._rejected_edits(state)][-REJECTED_SHOWN:]
        done = step if state["stops"] else step + 1
        return {"step": done, "stalled": stalled, "stopped": stopped, "rejected": rejected, **now}

    def _rejected_edits(self, state: LearningChannels) -> list[str]:
        """The edits of this step's candidate in words, with the reason, if the accept test rejected it."""
        if state["accepted"] or state["stops"] or not state["trial"]:
            return []
        edits = [ruling.edit for ruling in self.versions.rulings(state["candidate"]) if ruling.accepted]
        told = dict.fromkeys(describe_edit(edit) for edit in edits if edit.op != "keep")
        return [f"step {state['step']}, {state['why']}: {'; '.join(told)}"] if told else []

    def _keep_votes(self, state: LearningChannels) -> RunProduct:
        """The current library with the votes of the step, and the best one, which may be the same."""
        held, kept = state["library"], f"{candidate_name(state)}-kept"
        if kept not in self.versions.names():
            return {"library": held, "best": state["best"]}
        if self.versions.head == held:
            self.versions.move(kept, "the votes of the step")
        return {"library": kept, "best": kept if state["best"] == held else state["best"]}

    def _stop_reason(self, state: LearningChannels, stalled: int) -> str:
        if state["stops"]:
            return str(state["stops"][0])
        if self.patience and stalled >= self.patience:
            why = (
                ""
                if state["came"] or not state["comparisons"]
                else f": all rollouts failed, {_failure_reasons(state['comparisons'])}"
            )
            return f"no gain in {stalled} steps{why}"
        return ""

    def _row(self, state: LearningChannels, stopped: str) -> dict[str, Any]:
        run, step, candidate = state["run"], state["step"], state["candidate"]
        epoch, number = self.schedule.epoch_and_batch(step)
        tasks = [task.id for task in self.schedule.tasks(run, step)]
        groups = sorted(state["comparisons"], key=lambda one: tasks.index(one.task))
        rewards = [reward or 0.0 for one in groups for reward in one.truths]
        test = state["trial"] if candidate and not state["stops"] else None
        rulings = self.versions.rulings(candidate) if candidate else tuple(r for one in groups for r in one.rulings)
        library = self.versions.at(state["library"])
        usage = state["usage"]
        return {
            "id": f"{run}/{step}/stopped" if state["stops"] else f"{run}/{step}",
            "run": run,
            "step": step,
            "epoch": epoch,
            "batch": number,
            "problems": tasks,
            "dropped": list(self.dropped_problems),
            "kinds": dict(Counter(one.kind for one in groups)),
            "groups": {one.task: one.kind for one in groups},
            "compared": sum(one.kind in COMPARABLE_KINDS for one in groups),
            "lost": sum(map(is_lost_comparison, groups)),
            "rewards": {one.task: list(one.rewards) for one in groups},
            "truths": {one.task: list(one.truths) for one in groups},
            "train": sum(rewards) / len(rewards) if rewards else None,
            "passed": _pass_at_g(groups),
            "failures": [*(f"{one.task}: {failure}" for one in groups for failure in one.failures), *state["failures"]],
            "proposed": sum(len(one.edits) for one in groups),
            "edits": {
                "accepted": sum(ruling.accepted for ruling in rulings),
                "rejected": sum(not ruling.accepted for ruling in rulings),
            },
            "candidate": candidate,
            "held_out": self._worth(state, test),
            "trial": test,
            "probe_failures": [f"{p.library} on {p.task}, {p.number}: {p.error}" for p in state["probes"] if p.error],
            "accepted": state["accepted"],
            "why": state["why"],
            "before": state["before"],
            "library": state["library"],
            "lessons": len(library.lessons),
            "best": state["best"],
            "steps": sum(one.steps for one in groups),
            "tool_calls": sum(one.tool_calls for one in groups),
            "usage": asdict(usage),
            "tokens": usage.tokens,
            "dollars": self.meter.cost if self.meter else None,
            "seconds": round(time.time() - state["began"], 3),
            "stopped": stopped,
        }

    @staticmethod
    def _worth(state: LearningChannels, test: Mapping[str, Any] | None) -> float | None:
        """Mean reward of the current library on the held-out problems; None if it was not tested."""
        if test is not None:
            return float(test["candidate"] if state["accepted"] else test["current"])
        return state["best_score"] if state["best"] == state["library"] else None


def _pass_at_g(groups: Sequence[Comparison]) -> float | None:
    """Pass@G: the mean over groups of the best reward, in [0, 1]; None without groups."""
    tops = [max((truth or 0.0 for truth in one.truths), default=0.0) for one in groups]
    return sum(tops) / len(tops) if tops else None


@dataclass(frozen=True)
class RouteNextStep:
    """Router: `next step`, or `enough`."""

    steps: int
    """Number of steps of the run."""

    def __call__(self, state: StepsMade) -> Literal["next step", "enough"]:
        return "enough" if state["stopped"] or state["step"] >= self.steps else "next step"


@dataclass(frozen=True)
class Invent(Runnable[LearningRunInput, InventedLibrary]):
    """Have a library written without rollouts, and store it as version `<run>/self-generated`."""

    role: ClassVar[str] = "model"

    ask: Ask[ProblemsOfKind, InventedLessons] | None = field(repr=False)
    """The question to the model; None in other arms, where this node never runs."""
    versions: LibraryVersions = field(repr=False)
    tasks: tuple[Task, ...] = field(repr=False)
    limits: LibraryLimits = field(repr=False)
    count: Callable[[str], int] = field(repr=False)
    author: str = field(default="", repr=False)
    """Name of the model that writes."""

    def invoke(self, input: LearningRunInput, config: RunnableConfig | None = None, **kwargs: Any) -> InventedLibrary:
        assert self.ask is not None
        try:
            return self._store(input, self.ask.invoke(self._ask_input(input), config))
        except BudgetSpent as spent:
            return {"stopped": str(spent)}

    async def ainvoke(self, input: LearningRunInput, config: RunnableConfig | None = None, **kwargs: Any) -> InventedLibrary:
        assert self.ask is not None
        try:
            return self._store(input, await self.ask.ainvoke(self._ask_input(input), config))
        except BudgetSpent as spent:
            return {"stopped": str(spent)}

    def _ask_input(self, state: LearningRunInput) -> ProblemsOfKind:
        return {"run": state["run"], "step": 0, "tasks": list(self.tasks)}

    def _store(self, state: LearningRunInput, found: InventedLessons) -> InventedLibrary:
        name = f"{state['run']}/self-generated"
        library = replace(as_library(found["insights"], self.limits, self.count), written_by=self.author)
        self.versions.put(name, library, why="written without rollouts")
        return {"library": name, "best": name, "usage": found.get("usage", Usage())}


@dataclass(frozen=True)
class Finish:
    """Make the product the current version: the best version, or the control that the arm makes of it."""

    role: ClassVar[str] = "memory"

    versions: LibraryVersions = field(repr=False)
    roll: RolloutPlayer = field(repr=False)
    schedule: Schedule = field(repr=False)
    limits: LibraryLimits = field(repr=False)
    arm: str = "learned"
    group_size: int = 0
    count: Callable[[str], int] = field(default=estimate_tokens, repr=False)
    """Tokens of a text."""

    def __call__(self, state: EndedRun) -> RunProduct:
        return self._make_product(state, self._first_rollouts(state))

    def _first_rollouts(self, state: EndedRun) -> list[Rollout]:
        """The rollouts of the first step from the cache, without those that failed. None is played here."""
        if self.arm != "random" or not state["step"]:
            return []
        run, first = f"{state['run']}/0", f"{state['run']}/0"
        tasks = self.schedule.tasks(state["run"], 0)
        asked: list[RolloutInput] = [
            {"task": t, "run": run, "episode": n, "library": first} for t in tasks for n in range(self.group_size)
        ]
        return [rollout for one in asked if (rollout := self.roll.cached_rollout(one))]

    def _make_product(self, state: EndedRun, rollouts: Sequence[Rollout]) -> RunProduct:
        best, library, run = state["best"], state["library"], state["run"]
        if self.arm in ("random", "shuffled"):
            learned = self.versions.at(best)
            seed = seeded_random(run, self.arm).getrandbits(31)
            many = len(learned.lessons)
            if self.arm == "random":
                control = random_lessons(rollouts, many, self.limits, seed, tokens=self.count)
            else:
                control = shuffle_lessons(learned, seed)
            # A run that the budget ended early may go on and make another control: this one gets a name of its own.
            name = f"{run}/{self.arm}/{state['step']}" if state["stops"] else f"{run}/{self.arm}"
            best = library = self.versions.put(name, control, why=f"control: {self.arm}")
        self.versions.move(best, "the product of the run")
        return {"best": best, "library": library}
