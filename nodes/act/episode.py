"""Begin an episode, act in the environment, write the step down: the frame of every episode graph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Literal, NotRequired, Protocol

from ...memory.errors import UserError
from ...memory.records import Observation, Task, Trajectory, Transition, Usage
from ...memory.storage.journal import Journal
from ..state import Episode, Judged


class Environment(Protocol):
    """A world as a function of its history, so that resuming, forking and parallel rollouts are right by construction.

    One that answers within a fraction of a millisecond says `instant = True`: it is then asked in the event loop itself, where
    others are asked in a thread, so that a slow world keeps no other rollout waiting.
    """

    @property
    def name(self) -> str:
        """The domain of its tasks, e.g. `twx:coin`."""
        ...

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """What the world shows after these actions; `reward` is that of the last one."""
        ...

    def abstract(self, observation: Observation) -> str:
        """The state key of an observation: JitRL's s = Abstract(o)."""
        ...


@dataclass(frozen=True)
class Begin:
    """Show the start of the task, and set the episode's counters to zero.

    `usage` goes on adding up if a thread is used for another episode; a run gives every episode a fresh one.
    """

    role: ClassVar[str] = "environment"

    environment: Environment
    initial_values: Mapping[str, Any] = field(default_factory=dict)
    """What a method's own channels hold at the start."""

    @property
    def is_blocking(self) -> bool:
        """Whether the world may take a while: see `graphs.flow.waits`."""
        return not getattr(self.environment, "instant", False)

    def __call__(self, state: Episode) -> dict[str, Any]:
        task, run, episode = state["task"], state["run"], state["episode"]
        return {
            "observation": self.environment.observe(task, ()),
            "step": 0,
            "head": Journal.start(run, episode, task.id),
            "score": 0.0,
            "best": 0.0,
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

    The environment is a function of its history and the journal of its contents, so doing this twice is doing it once.
    """

    role: ClassVar[str] = "environment"

    environment: Environment
    journal: Journal
    journal_channels: tuple[str, ...] = ()
    """Channels that go into the journal's row beside the step, for whoever reads the run later."""
    clear_lists: tuple[str, ...] = ()
    """Lists that belong to the decision just carried out: emptied, so that later checkpoints do not carry them along."""
    clear_values: tuple[str, ...] = ()
    """Other channels that belong to it: set to None."""

    @property
    def is_blocking(self) -> bool:
        """Whether the world may take a while: see `graphs.flow.waits`. A row of the journal takes some microseconds."""
        return not getattr(self.environment, "instant", False)

    def __call__(self, state: Mapping[str, Any]) -> dict[str, Any]:
        before, action = state["observation"], state["action"]
        actions = [step.action for step in self.journal.history(state["head"])]
        after = self.environment.observe(state["task"], [*actions, action])
        score = state["score"] + (after.reward or 0.0)
        head = self.journal.append(
            state["head"],
            Transition(self.environment.abstract(before), action, after.reward),
            episode=state["episode"],
            task=state["task"].id,
            score=score,
            over=after.over,
            **{name: _to_plain_data(state[name]) for name in self.journal_channels},
        )
        return {
            "observation": after,
            "step": state["step"] + 1,
            "head": head,
            "score": score,
            "best": max(state["best"], score),
            "earned": None if after.reward is None or state["earned"] is None else state["earned"] + after.reward,
            **{name: [] for name in self.clear_lists},
            **dict.fromkeys(self.clear_values),
        }


def _to_plain_data(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_plain_data(v) for v in value]
    # Records are flat where they stand in a list, so that their fields need no deep copy.
    return {f.name: getattr(value, f.name) for f in fields(value)} if is_dataclass(value) else value


def route_episode_end(state: Episode) -> Literal["next step", "over"]:
    """Router: has the episode ended?"""
    return "over" if state["observation"].over else "next step"


def replay_actions(environment: Environment, task: Task, actions: Sequence[str], run: str, episode: int = 0) -> Trajectory:
    """The trajectory of these actions from the start of the task: a walkthrough as an agent would remember it.

    Args:
        environment: where they are taken.
        task: what is played.
        actions: taken in turn; those after the end of the episode are left out.
        run: names where they come from (`gold`, say); with `episode` it makes the trajectory's id.
        episode: the number of the attempt within that run.
    """
    taken: list[str] = []
    shown, steps = environment.observe(task, ()), list[Transition]()
    for action in actions:
        if shown.over:
            break
        taken.append(action)
        after = environment.observe(task, taken)
        steps.append(Transition(environment.abstract(shown), action, after.reward))
        shown = after
    score = math.fsum(step.reward or 0.0 for step in steps)
    return Trajectory(f"{run}/{episode}", task, tuple(steps), run, episode, score, environment.name)


class FinishedEpisode(Episode, Judged):
    """An episode that is over, with a reward (or none) for every step."""

    used: NotRequired[list[str]]
    """Ids of the trajectories it consulted, where the method consults any."""


def build_trajectory(state: FinishedEpisode, environment: Environment, journal: Journal, note: str = "") -> Trajectory:
    """The attempt of an episode that is over, with the rewards that it was judged to deserve; its steps are made durable."""
    steps, rewards = journal.history(state["head"]), state["rewards"]
    wrong = [r for r in rewards if r is not None and not (isinstance(r, float | int) and math.isfinite(r))]
    if len(rewards) != len(steps) or wrong:
        came = f"{wrong[0]!r}" if wrong else f"{len(rewards)} for {len(steps)} steps"
        raise UserError(f"the judge of {environment.name} gives one finite number or None per step, got {came}")
    journal.sync()  # memory must not know of steps that a power cut takes from the journal
    return Trajectory(
        id=f"{state['run']}/{state['episode']}",
        task=state["task"],
        transitions=tuple(Transition(step.state, step.action, reward) for step, reward in zip(steps, rewards, strict=True)),
        run=state["run"],
        episode=state["episode"],
        score=state["score"],
        domain=environment.name,
        note=note,
        used=tuple(state.get("used", ())),
    )
