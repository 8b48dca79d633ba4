"""Nodes that every episode graph has: begin an episode, act in the environment, write the step into the journal."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, NotRequired, Protocol

from typing_extensions import TypedDict

from ...memory.errors import UserError
from ...memory.records import NO_ACTION, Observation, Task, Trajectory, Transition, Usage
from ...memory.returns.progress import made_progress
from ...memory.storage.journal import Journal
from ..ask import State
from ..state import EpisodeInput, HeadChannel, ObservationChannel, StepResult, StepRewards, TaskChannel

__all__ = [
    "START_VALUES",
    "Act",
    "Begin",
    "EarnedReturn",
    "Environment",
    "FinishedEpisode",
    "WorldWithoutVerdicts",
    "build_trajectory",
    "replay_actions",
    "route_episode_end",
    "takes_unlisted_actions",
    "without_verdicts",
]


class Environment(Protocol):
    """A world as a function of its history, so that resuming, forking and parallel rollouts are right by construction.

    A world that answers within a fraction of a millisecond has `instant = True` and is called in the event loop. Others are
    called in a thread, so that a slow world delays no other rollout.

    A world whose state keys are not best compared by all of their words has a `state_similarity`, a `Similarity`
    (memory/search/similarity.py) such as `SectionSimilarity` (memory/search/sections.py); JitRL's memory then compares by it.

    A world whose observations say how good an action was, beside what became of it, has `hide_verdict`: observation -> its text without
    such words.
    """

    @property
    def name(self) -> str:
        """The domain of its tasks, e.g. `twx:coin`."""

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The observation after these actions; its `reward` is that of the last one."""

    def abstract(self, observation: Observation) -> str:
        """The state key of an observation: JitRL's s = Abstract(o)."""


class WorldWithoutVerdicts:
    """A world that no longer says how good an answer was, for where a judge's rewards, or none, are all that is told.

    Args:
        world: says what to leave out by `hide_verdict(observation)`. Without it, a world that reads a written answer (`read`) answers
            with its verdict, which is left out as a whole.
    """

    def __init__(self, world: Any) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_world":  # asked for while it is unpickled
            raise AttributeError(name)
        return getattr(self._world, name)

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The observation after these actions, without a verdict on them."""
        shown: Observation = self._world.observe(task, actions)
        if hide := getattr(self._world, "hide_verdict", None):
            return replace(shown, text=hide(shown))
        return replace(shown, text="") if shown.over else shown


def without_verdicts(world: Any) -> Any:
    """The world without its verdicts; itself where it gives none."""
    gives_some = hasattr(world, "hide_verdict") or hasattr(world, "read")
    return WorldWithoutVerdicts(world) if gives_some and not isinstance(world, WorldWithoutVerdicts) else world


class EpisodeStart(StepResult):
    """The channels of an episode that has just begun, whether or not its graph has all of them."""

    plan: list[str]
    note: str
    unjudged: str
    usage: Usage


class StepToTake(TaskChannel, StepResult):
    """The chosen action, and the episode that it is taken in."""

    episode: int
    action: str


START_VALUES: Mapping[str, Any] = {
    **{"used": [], "precedents": [], "reasons": [], "declined": [], "vote": False, "written": -1},
    **dict.fromkeys(("strategy", "tentative", "nearest_similarity", "synthesis")),
}
"""Channel of a method that asks memory at its steps -> the value with which it starts an episode."""


@dataclass(frozen=True)
class Begin:
    """Observe the start of the task, and set the episode's counters to zero.

    `usage` keeps adding up if a checkpoint thread is used for another episode; a run gives every episode a new thread.
    """

    role: ClassVar[str] = "environment"

    environment: Environment
    initial_values: Mapping[str, Any] = field(default_factory=dict)
    """Values of a method's own channels at the start."""

    @property
    def is_blocking(self) -> bool:
        """True if the world may take a while; the node then runs in a thread where others would wait for it."""
        return not getattr(self.environment, "instant", False)

    @property
    def further_channels(self) -> tuple[str, ...]:
        """The method's own channels that it sets (nodes/channels.py)."""
        return tuple(self.initial_values)

    def __call__(self, state: EpisodeInput) -> EpisodeStart | dict[str, Any]:
        task, run, episode = state["task"], state["run"], state["episode"]
        return {
            "observation": self.environment.observe(task, ()),
            "step": 0,
            "head": Journal.start(run, episode, task.id),
            "score": 0.0,
            "best": 0.0,
            "lost": "",
            "earned": 0.0,
            "unjudged": "",
            "plan": [],
            "note": "",
            "usage": Usage(),
            **self.initial_values,
        }


@dataclass(frozen=True)
class Act:
    """Take the chosen action in the environment, and write the step into the journal.

    The environment is a function of its history, and the journal stores a step once, so a repeated call has no further effect.

    On a lost step (`NO_ACTION`) the world receives nothing and stays as it is; the step earns 0 and counts towards the horizon.
    `MAX_LOST_STEPS` of them in a row end the episode.
    """

    role: ClassVar[str] = "environment"

    environment: Environment
    journal: Journal
    journal_channels: tuple[str, ...] = ()
    """Channels that go into the journal's row beside the step, as a record of the run."""
    clear_lists: tuple[str, ...] = ()
    """List channels of the decision just carried out: emptied, so that later checkpoints stay small."""
    clear_values: tuple[str, ...] = ()
    """Other channels of that decision: set to None."""

    @property
    def is_blocking(self) -> bool:
        """True if the world may take a while; the node then runs in a thread. A row of the journal takes some microseconds."""
        return not getattr(self.environment, "instant", False)

    @property
    def further_channels(self) -> tuple[str, ...]:
        """The channels of the decision that it clears (nodes/channels.py)."""
        return (*self.clear_lists, *self.clear_values)

    def __call__(self, state: StepToTake | State) -> StepResult | dict[str, Any]:
        before, action = state["observation"], state["action"]
        after = self._observe(state, self.journal.history(state["head"]))
        score = state["score"] + (after.reward or 0.0)
        head = self.journal.append(
            state["head"],
            build_transition(self.environment, before, action, after.reward),
            episode=state["episode"],
            task=state["task"].id,
            score=score,
            over=after.over,
            **({"last_observation": after.text} if after.over else {}),
            **({"lost": state.get("lost", "")} if action == NO_ACTION else {}),
            **{name: _to_plain_data(state.get(name)) for name in self.journal_channels},  # an old checkpoint may lack some
        )
        return {
            "observation": after,
            "step": state["step"] + 1,
            "head": head,
            "score": score,
            "best": max(state["best"], score),
            "earned": None if after.reward is None or state["earned"] is None else state["earned"] + after.reward,
            "lost": "",
            **{name: [] for name in self.clear_lists},
            **dict.fromkeys(self.clear_values),
        }

    def _observe(self, state: StepToTake | State, history: Sequence[Transition]) -> Observation:
        """The observation after the chosen action; the same as before, without reward, if the step is lost."""
        steps = [*(step.action for step in history), state["action"]]
        actions = [action for action in steps if action != NO_ACTION]
        if state["action"] != NO_ACTION:
            after = self.environment.observe(state["task"], actions)
            if after.reward is not None and not math.isfinite(after.reward):
                name, step = self.environment.name, len(steps)
                raise UserError(f"{name} gives one finite reward or None per step, got {after.reward!r} for step {step}")
        else:
            after = replace(state["observation"], reward=0.0)
        if len(actions) < len(steps):  # the world's own count lacks the lost steps
            is_silent = steps[-MAX_LOST_STEPS:] == [NO_ACTION] * MAX_LOST_STEPS
            if is_silent or len(steps) >= getattr(self.environment, "horizon", math.inf):
                return replace(after, actions=(), over=True)
        return after


MAX_LOST_STEPS = 10
"""Lost steps in a row after which an episode ends: the model does not answer."""


def build_transition(environment: Environment, before: Observation, action: str, reward: float | None) -> Transition:
    """The step that took `action` when `before` was seen. The observation's text is kept where the state says less or other."""
    state = environment.abstract(before)
    return Transition(state, action, reward, "" if before.text == state else before.text)


def _to_plain_data(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_plain_data(v) for v in value]
    # Records in journal channels are flat, so their fields need no deep copy.
    return {f.name: getattr(value, f.name) for f in fields(value)} if is_dataclass(value) else value


def route_episode_end(state: ObservationChannel) -> Literal["next step", "over"]:
    """Router: has the episode ended?"""
    return "over" if state["observation"].over else "next step"


def replay_actions(environment: Environment, task: Task, actions: Sequence[str], run: str, episode: int = 0) -> Trajectory:
    """The trajectory of these actions from the start of the task, as if an agent had played it.

    Args:
        environment: the world.
        task: one of its tasks.
        actions: taken in turn; those after the end of the episode are left out.
        run: name of their source (such as `gold`); with `episode` it makes the trajectory's id.
        episode: the number of the attempt within that run.
    """
    taken: list[str] = []
    shown, steps = environment.observe(task, ()), list[Transition]()
    for action in actions:
        if shown.over:
            break
        taken.append(action)
        after = environment.observe(task, taken)
        steps.append(build_transition(environment, shown, action, after.reward))
        shown = after
    score = math.fsum(step.reward or 0.0 for step in steps)
    last = shown.text if taken else ""
    return Trajectory(f"{run}/{episode}", task, tuple(steps), run, episode, score, environment.name, last_observation=last)


class EarnedReturn(TypedDict):
    """The return of the finished episode that the method learns from."""

    earned: float | None
    """Sum of the judge's rewards; None: one is missing."""


class FinishedEpisode(EpisodeInput, ObservationChannel, HeadChannel, StepRewards):
    """An episode that is over, with a reward (or none) for every step."""

    score: float
    """Sum of the environment's rewards, in its units."""
    used: NotRequired[list[str]]
    """Ids of the trajectories that the episode consulted, if the method consults any."""


def build_trajectory(state: FinishedEpisode, environment: Environment, journal: Journal, note: str = "") -> Trajectory:
    """The trajectory of an episode that is over, with the judge's rewards. Its steps are flushed to the disk.

    Lost steps are left out: nothing was done at them that could be learned from.

    Raises:
        UserError: the judge gave another number of rewards than steps, or one that is not finite.
    """
    steps, rewards = journal.history(state["head"]), state["rewards"]
    wrong = [r for r in rewards if r is not None and not (isinstance(r, float | int) and math.isfinite(r))]
    if len(rewards) != len(steps) or wrong:
        came = f"{wrong[0]!r}" if wrong else f"{len(rewards)} for {len(steps)} steps"
        raise UserError(f"the judge of {environment.name} gives one finite number or None per step, got {came}")
    journal.sync()  # memory must not hold steps that a power cut could take from the journal
    return Trajectory(
        id=f"{state['run']}/{state['episode']}",
        task=state["task"],
        transitions=tuple(
            replace(step, reward=reward) for step, reward in zip(steps, rewards, strict=True) if not step.is_lost
        ),
        run=state["run"],
        episode=state["episode"],
        score=state["score"],
        domain=environment.name,
        note=note,
        used=tuple(state.get("used", ())),
        last_observation=state["observation"].text if steps else "",
        lost=_is_lost(steps, getattr(environment, "horizon", None)),
    )


def _is_lost(steps: Sequence[Transition], horizon: int | None) -> bool:
    # A world that names no step limit leaves unknown who ended the episode. A model that stopped answering ended it itself.
    if horizon is None or not 0 < len(steps) < horizon or steps[-1].is_lost:
        return False
    return not made_progress([step.reward for step in steps])[-1]


def takes_unlisted_actions(environment: Environment) -> bool:
    """True if a model may write actions that the world does not list: it takes any text, and its list is not complete."""
    free_text = bool(getattr(environment, "free_text", hasattr(environment, "read")))
    return free_text and not getattr(environment, "lists_all_actions", False)
