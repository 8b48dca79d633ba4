"""A learning run, step by step: which problems, which edits become a candidate, what is noted, and when it ends (Training-Free
GRPO). What is made of each problem is the group's (nodes/extract/groups.py), how a candidate is tried the accept test's (nodes/update/accept_test.py).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import add
from typing import Annotated, Any, ClassVar, Literal, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.types import Overwrite
from typing_extensions import TypedDict

from ...memory.library import Library, Limits, Versions, opened
from ...memory.records import Comparison, Edit, Rollout, Ruling, Task, Usage, UserError
from ...memory.storage.cache import key
from ...memory.storage.rows import Rows
from ..act.advantage import draw
from ..ask import estimated
from ..cached_model import BudgetSpent, Meter
from ..extract.critic import as_library, random_lessons, shuffled
from ..extract.rollouts import Roll
from ..state import Learning, Problem
from .accept_test import Tested, tested

__all__ = [
    "Asked",
    "Batch",
    "Candidate",
    "Close",
    "Consolidate",
    "Finish",
    "Grouped",
    "Invent",
    "Learns",
    "More",
    "Result",
    "Schedule",
    "Start",
    "State",
    "distinct",
    "nothing",
]

Node = Callable[[Any], Any] | Runnable[Any, Any]
USABLE = ("mixed", "hard")
"""Kinds of groups that have something to compare."""


class Asked(TypedDict):
    """What a learning run is asked for; its input."""

    run: str
    """Its name: every id and every random draw is made from it."""


class State(Learning):
    """The channels of a learning run."""

    before: str
    """Name of the version that this step began with."""
    why: str
    """Why the candidate was accepted or not, or why there is none."""
    stops: Annotated[list[str], add]
    """What was said when the budget was spent in this step."""
    failures: Annotated[list[str], add]
    """What failed in this step outside of its groups."""
    compared: int
    """Groups of this epoch so far that had something to compare."""
    came: int
    """Groups of this epoch so far in which anything came to something."""
    began: float
    """When this step began, in seconds since 1970."""


class Result(TypedDict):
    """What comes out of a learning run."""

    run: str
    library: str
    """Name of the version that holds in the end."""
    best: str
    """Name of the product."""
    best_score: float | None
    step: int
    """Learning steps that were made."""
    stopped: str
    usage: Usage


# Problems


@dataclass(frozen=True)
class Schedule:
    """Which problems are learned on at which step."""

    problems: tuple[Task, ...] = field(repr=False)
    batch: int = 0
    """Problems of a step; 0: all."""
    epochs: int = 1

    @property
    def steps(self) -> int:
        """Of an epoch: what does not fill a batch is one, too."""
        return -(-len(self.problems) // (self.batch or len(self.problems)))

    def place(self, step: int) -> tuple[int, int]:
        """(epoch, batch within it) of a step, from 0."""
        return divmod(step, self.steps)

    def tasks(self, run: str, step: int) -> list[Task]:
        """The problems of a step: those of its batch, in the order that the run's name and the epoch draw."""
        epoch, number = self.place(step)
        order = list(self.problems)
        draw(run, "epoch", epoch).shuffle(order)
        size = self.batch or len(order)
        return order[number * size : (number + 1) * size]


def distinct(problems: Sequence[Task], held_out: Sequence[Task], written: bool) -> tuple[list[Task], list[Task], list[str]]:
    """Problems and held-out problems without repeats, and the ids that were dropped.

    Args:
        written: the answer depends on the instruction alone: two problems with one instruction are the same. Repeats are then
            dropped; two problems of one id are an error anyway.

    Raises:
        UserError: an id stands there twice, or a problem is held out and learned on.
    """

    def same(task: Task) -> str:
        return " ".join(task.instruction.split()) if written else task.id

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
    """Put the library to start from under its name, and set everything to the beginning."""

    role: ClassVar[str] = "memory"

    versions: Versions = field(repr=False)
    library: str = ""
    """A YAML file, or a run whose product it is; empty: no lessons."""
    arm: str = "learned"
    limits: Limits = field(default_factory=Limits, repr=False)
    count: Callable[[str], int] = field(default=estimated, repr=False)
    """Tokens of a text."""

    def __call__(self, state: Asked) -> dict[str, Any]:
        first = f"{state['run']}/0"
        library, rulings = self._read().within(self.limits, self.count)
        self.versions.put(first, library, why="the start", rulings=rulings)
        return {
            "step": 0,
            "library": first,
            "best": first,
            "best_score": None,
            "before": first,
            "candidate": "",
            "accepted": False,
            "why": "",
            "stalled": 0,
            "stopped": "",
            "compared": 0,
            "came": 0,
            "began": 0.0,
            "usage": Overwrite(Usage()),
            **_cleared(),
        }

    def _read(self) -> Library:
        if not self.library or self.arm == "empty":
            return Library()
        found = opened(self.library)
        return found if isinstance(found, Library) else found.at(found.head)


def _cleared() -> dict[str, Any]:
    return {name: Overwrite([]) for name in ("comparisons", "probes", "stops", "failures")}


@dataclass(frozen=True)
class Learns:
    """Router: does the arm learn from rollouts?"""

    arm: str = "learned"

    def __call__(self, state: State) -> Literal["learn", "invent", "as it is"]:
        return "as it is" if self.arm == "empty" else "invent" if self.arm == "self-generated" else "learn"


@dataclass(frozen=True)
class Batch:
    """Begin with a step."""

    role: ClassVar[str] = "compute"

    schedule: Schedule = field(repr=False)

    def __call__(self, state: State) -> dict[str, Any]:
        _, number = self.schedule.place(state["step"])
        fresh = {"candidate": "", "accepted": False, "why": "", "before": state["library"], "began": time.time()}
        so_far = {name: state[name] if number else 0 for name in ("compared", "came")}
        return {**fresh, **_cleared(), **so_far}

    def groups(self, state: State) -> list[Mapping[str, Any]]:
        """Fan-out: a group for every problem of the batch."""
        shared = {"run": state["run"], "step": state["step"], "library": state["library"]}
        return [{**shared, "task": task} for task in self.schedule.tasks(state["run"], state["step"])]


@dataclass(frozen=True)
class Grouped(Runnable[Any, Any]):
    """A group, lived through in one go, and never again: what it came to is in the cache, with what failed in it.

    So a run that starts over comes to the same, also where a rollout that failed would work now. Two kinds of groups are played
    again: one that the budget did not last for, and, as long as its step led to no version, one in which everything failed, for
    it may be the user's to put that right.
    """

    role: ClassVar[str] = "graph"

    graph: Runnable[Any, Any] = field(repr=False)
    roll: Roll = field(repr=False)
    """What plays its rollouts."""
    name: str = field(default="", repr=False)
    """What a group depends on beside its rollouts: who compares, and the settings."""

    def key(self, state: Problem) -> str:
        """Of what it came to, in the cache."""
        task, library = state["task"], self.roll.versions.at(state["library"])
        shown = (library.lessons, library.next)  # critics see all of it
        return key("group", self.name, self.roll.name, self.roll.place(task), task, state["run"], state["step"], shown)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        place = self.key(input)
        return self._known(place, input) or self._kept(place, self.graph.invoke(input, config))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        place = self.key(input)
        return self._known(place, input) or self._kept(place, await self.graph.ainvoke(input, config))

    def _known(self, place: str, state: Problem) -> dict[str, Any] | None:
        known = self.roll.cache.get(place)
        name = candidate(state)
        if known is None and not {name, f"{name}-kept"}.isdisjoint(self.roll.versions.names()):
            known = self.roll.cache.get(key("failed", place))
        return None if known is None else _restored(known)

    def _kept(self, place: str, out: Mapping[str, Any]) -> dict[str, Any]:
        (comparison,) = out["comparisons"]
        if out["stops"]:
            return {"comparisons": [comparison], "usage": out["usage"], "stops": out["stops"][:1]}
        found = {"comparison": asdict(comparison), "usage": asdict(out["usage"])}
        return _restored(self.roll.cache.put(place if came(comparison) else key("failed", place), found, "group"))


def candidate(state: Mapping[str, Any]) -> str:
    """The name of the version that a step proposes."""
    return f"{state['run']}/{state['step'] + 1}"


def came(comparison: Comparison) -> bool:
    """Whether anything in a group came to something: there is a reward, or a comparison without."""
    return comparison.kind != "failed" or any(truth is not None for truth in comparison.truths)


def _restored(found: Mapping[str, Any]) -> dict[str, Any]:
    value = dict(found["comparison"])
    value["edits"] = [Edit(**edit) for edit in value["edits"]]
    value["rulings"] = [Ruling(**{**ruling, "edit": Edit(**ruling["edit"])}) for ruling in value["rulings"]]
    return {"comparisons": [Comparison(**value)], "usage": Usage(**found["usage"])}


@dataclass(frozen=True)
class Consolidate(Runnable[Any, Any]):
    """Make a candidate of the groups' edits. Where there is no group to learn from, nobody is asked, and what was shown is
    counted (nodes/update/consolidate.py).

    Raises:
        UserError: no rollout of several problems of the step, or of all of an epoch, came to anything: there is something to put
            right.
    """

    role: ClassVar[str] = "model"

    how: str
    node: Node = field(repr=False)
    schedule: Schedule = field(repr=False)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if known := self._known(input):
            return known
        try:
            node = self.node
            found = node.invoke(input, config) if isinstance(node, Runnable) else node(input)
        except BudgetSpent as spent:
            return {"candidate": "", "stops": [str(spent)], **self._counted(input)}
        return self._found(input, found)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if known := self._known(input):
            return known
        try:
            node = self.node
            found = await node.ainvoke(input, config) if isinstance(node, Runnable) else node(input)
        except BudgetSpent as spent:
            return {"candidate": "", "stops": [str(spent)], **self._counted(input)}
        return self._found(input, found)

    def _known(self, state: State) -> dict[str, Any] | None:
        """What is to be said without asking anybody."""
        counted = self._counted(state)
        if state["stops"]:
            return {"candidate": "", "why": state["stops"][0], **counted}
        self._refuse_failure(state, counted["came"])
        return None

    def _found(self, state: State, found: Mapping[str, Any]) -> dict[str, Any]:
        usable = any(one.kind in USABLE for one in state["comparisons"])
        why = "nothing was to be changed" if usable else "no group had something to compare"
        return {**found, "why": "" if found.get("candidate") else why, **self._counted(state)}

    @staticmethod
    def _counted(state: State) -> dict[str, int]:
        """The epoch's groups so far, with this step's."""
        groups = state["comparisons"]
        usable = sum(one.kind in USABLE for one in groups)
        return {"compared": state["compared"] + usable, "came": state["came"] + sum(map(came, groups))}

    def _refuse_failure(self, state: State, any_came: int) -> None:
        """One problem may be such that nobody can verify it; where none can be, something is to be put right."""
        step, groups = state["step"], state["comparisons"]
        epoch, number = self.schedule.place(step)
        over = number + 1 == self.schedule.steps
        if any(map(came, groups)) or (len(groups) < 2 and (any_came or not over)):
            return
        lost = sum(len(one.truths) for one in groups)
        every = f"all rollouts of epoch {epoch} failed, in the end {lost}" if len(groups) < 2 else ""
        every = every or f"all {lost} rollouts of step {step} failed"
        raise UserError(f"training-free-grpo: {every}, {_told(groups)}")


def _told(groups: Sequence[Comparison]) -> str:
    """Why rollouts failed."""
    told = [failure.partition(": ")[2] for one in groups for failure in one.failures if failure.startswith("rollout ")]
    (first, count), *others = Counter(told).most_common()
    what = "for one reason" if not others else f"for {1 + len(others)} reasons, {count} of them"
    return f"{what}: {first}"


@dataclass(frozen=True)
class Candidate:
    """Router: is there a candidate, and can it be tested?"""

    same: Callable[[str, str], bool] = field(repr=False)
    """Whether two versions show the same lessons (`nodes.lessons.Alike`)."""
    tests: bool = True

    def __call__(self, state: State) -> Literal["candidate", "untested", "no change"]:
        if not state["candidate"]:
            return "no change"
        return "untested" if not self.tests or self.same(state["candidate"], state["library"]) else "candidate"


def nothing(state: Any) -> dict[str, Any]:
    """A node from which work is handed out."""
    return {}


@dataclass(frozen=True)
class Close:
    """Note the step, once however often this runs, and say whether the run is to end before its last one.

    Where no candidate took its place, the library goes on with the votes of the step, as the version `<run>/<step + 1>-kept`.
    """

    role: ClassVar[str] = "memory"

    log: Rows = field(repr=False)
    versions: Versions = field(repr=False)
    schedule: Schedule = field(repr=False)
    meter: Meter | None = field(default=None, repr=False)
    patience: int = 2
    least_groups: int = 1
    dropped: tuple[str, ...] = field(default=(), repr=False)

    def __call__(self, state: State) -> dict[str, Any]:
        step, stalled = state["step"], state["stalled"] + (not state["candidate"])
        stopped = self._stopped(state, stalled)
        if state["accepted"]:
            self.versions.move(state["library"], state["why"])
        now = {} if state["accepted"] or state["stops"] else self._voted(state)
        self.log.append(self._row(cast(State, {**state, **now}), stopped))
        return {"step": step if state["stops"] else step + 1, "stalled": stalled, "stopped": stopped, **now}

    def _voted(self, state: State) -> dict[str, str]:
        """The library that holds, and the best one if it is the same, with the votes of the step."""
        held, kept = state["library"], f"{candidate(state)}-kept"
        if kept not in self.versions.names():
            return {}
        if self.versions.head == held:
            self.versions.move(kept, "the votes of the step")
        return {"library": kept, "best": kept if state["best"] == held else state["best"]}

    def _stopped(self, state: State, stalled: int) -> str:
        if state["stops"]:
            return str(state["stops"][0])
        epoch, number = self.schedule.place(state["step"])
        if number + 1 == self.schedule.steps and state["compared"] < self.least_groups:
            return (
                f"epoch {epoch}: {state['compared']} of {len(self.schedule.problems)} groups had something to compare, "
                f"and at least {self.least_groups} must"
            )
        if self.patience and stalled >= self.patience:
            why = "" if state["came"] or not state["comparisons"] else f": all rollouts failed, {_told(state['comparisons'])}"
            return f"no gain in {stalled} steps{why}"
        return ""

    def _row(self, state: State, stopped: str) -> dict[str, Any]:
        run, step, candidate = state["run"], state["step"], state["candidate"]
        epoch, number = self.schedule.place(step)
        tasks = [task.id for task in self.schedule.tasks(run, step)]
        groups = sorted(state["comparisons"], key=lambda one: tasks.index(one.task))
        rewards = [reward or 0.0 for one in groups for reward in one.truths]
        test = (
            tested(state["probes"], candidate, state["before"], f"{run}/{step}/accept")
            if candidate and not state["stops"]
            else None
        )
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
            "dropped": list(self.dropped),
            "kinds": dict(Counter(one.kind for one in groups)),
            "groups": {one.task: one.kind for one in groups},
            "compared": sum(one.kind in USABLE for one in groups),
            "rewards": {one.task: list(one.rewards) for one in groups},
            "truths": {one.task: list(one.truths) for one in groups},
            "train": sum(rewards) / len(rewards) if rewards else None,
            "passed": _passed(groups),
            "failures": [*(f"{one.task}: {failure}" for one in groups for failure in one.failures), *state["failures"]],
            "proposed": sum(len(one.edits) for one in groups),
            "edits": {
                "accepted": sum(ruling.accepted for ruling in rulings),
                "rejected": sum(not ruling.accepted for ruling in rulings),
            },
            "candidate": candidate,
            "held_out": self._worth(state, test),
            "trial": asdict(test) if test else None,
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
            "tokens": usage.input_tokens + usage.output_tokens,
            "dollars": self.meter.cost if self.meter else None,
            "seconds": round(time.time() - state["began"], 3),
            "stopped": stopped,
        }

    @staticmethod
    def _worth(state: State, test: Tested | None) -> float | None:
        """What the library that holds now earned on the held-out problems; None where it was not tried."""
        if test is not None:
            return test.candidate if state["accepted"] else test.current
        return state["best_score"] if state["best"] == state["library"] else None


def _passed(groups: Sequence[Comparison]) -> float | None:
    """Pass@G: the mean over groups of the best reward."""
    tops = [max((truth or 0.0 for truth in one.truths), default=0.0) for one in groups]
    return sum(tops) / len(tops) if tops else None


@dataclass(frozen=True)
class More:
    """Router: is there another step?"""

    steps: int
    """In all."""

    def __call__(self, state: State) -> Literal["next step", "enough"]:
        return "enough" if state["stopped"] or state["step"] >= self.steps else "next step"


@dataclass(frozen=True)
class Invent(Runnable[Any, Any]):
    """Have a library written without rollouts, and put it under its name."""

    role: ClassVar[str] = "model"

    ask: Runnable[Any, Any] = field(repr=False)
    versions: Versions = field(repr=False)
    tasks: tuple[Task, ...] = field(repr=False)
    limits: Limits = field(repr=False)
    count: Callable[[str], int] = field(repr=False)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        try:
            return self._found(input, self.ask.invoke(self._asked(input), config))
        except BudgetSpent as spent:
            return {"stopped": str(spent)}

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        try:
            return self._found(input, await self.ask.ainvoke(self._asked(input), config))
        except BudgetSpent as spent:
            return {"stopped": str(spent)}

    def _asked(self, state: State) -> dict[str, Any]:
        return {"run": state["run"], "step": 0, "tasks": list(self.tasks)}

    def _found(self, state: State, found: Mapping[str, Any]) -> dict[str, Any]:
        name = f"{state['run']}/self-generated"
        self.versions.put(name, as_library(found["insights"], self.limits, self.count), why="written without rollouts")
        return {"library": name, "best": name, "usage": found.get("usage", Usage())}


@dataclass(frozen=True)
class Finish:
    """The product: the best version, or the control that the arm makes of it. From now on it holds."""

    role: ClassVar[str] = "memory"

    versions: Versions = field(repr=False)
    roll: Roll = field(repr=False)
    schedule: Schedule = field(repr=False)
    limits: Limits = field(repr=False)
    arm: str = "learned"
    group: int = 0
    count: Callable[[str], int] = field(default=estimated, repr=False)
    """Tokens of a text."""

    def __call__(self, state: State) -> dict[str, Any]:
        return self._made(state, self._played(state))

    def _played(self, state: State) -> list[Rollout]:
        """The rollouts of the first step that are in the cache: all but those that failed. None is played here."""
        if self.arm != "random" or not state["step"]:
            return []
        run, first = f"{state['run']}/0", f"{state['run']}/0"
        tasks = self.schedule.tasks(state["run"], 0)
        asked = [{"task": t, "run": run, "episode": n, "library": first} for t in tasks for n in range(self.group)]
        return [rollout for one in asked if (rollout := self.roll.known(one))]

    def _made(self, state: State, rollouts: Sequence[Rollout]) -> dict[str, Any]:
        best, run = state["best"], state["run"]
        if self.arm in ("random", "shuffled"):
            learned = self.versions.at(best)
            seed = draw(run, self.arm).getrandbits(31)
            many = len(learned.lessons)
            if self.arm == "random":
                control = random_lessons(rollouts, many, self.limits, seed, tokens=self.count)
            else:
                control = shuffled(learned, seed)
            # What is made of a run that the budget ended early is not what will be made of it when it goes on.
            name = f"{run}/{self.arm}/{state['step']}" if state["stops"] else f"{run}/{self.arm}"
            best = self.versions.put(name, control, why=f"control: {self.arm}")
            state = cast(State, {**state, "library": best})
        self.versions.move(best, "the product of the run")
        return {"best": best, "library": state["library"]}
