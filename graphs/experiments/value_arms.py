"""The arms of the study of JitRL's values: methods with settings, and controls whose memory says nothing or lies.

Every arm is the method's own graph (`jitrl.build`, `static.build`, `tabular.build`), played as a plain loop over its nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any, Literal, cast

from ...memory.errors import UserError
from ...memory.records import Task, Trajectory
from ...memory.returns.experiences import Experiences, returns
from ...memory.returns.q_table import QTable
from ...memory.storage.cache import cache_key
from ...memory.storage.journal import Journal
from ...nodes.act.policies import PromptView
from .. import jitrl
from ..baselines import static, tabular
from ..jitrl import JitRL
from ..wiring.inputs import MethodInputs
from ..wiring.supersteps import UncheckpointedGraph
from .recorded_worlds import RecordedWorld
from .reward_variants import HindsightOracle, RewardVariant, VariantWorld, hindsight_rewards, make_policy

__all__ = ["ARMS", "CONSTANTS", "StudyArm", "family", "play_arm"]

CONSTANTS: Mapping[str, float] = {"toy": 0.1, "twx": 0.02, "jericho": 1.0}
"""Family of worlds -> the constant of the variants `plus` and `minus`, in the world's units: no more than the smallest reward."""
Control = Literal["", "cut", "shuffled", "noise"]


@dataclass(frozen=True)
class StudyArm:
    """A method with settings. Settings that depend on the scale of rewards are given by family of worlds."""

    method: Literal["jitrl", "static", "tabular"]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that are not the method's defaults, by name."""
    preset: str = ""
    """JitRL's preset that the settings change: `paper`, `reference`; empty: the defaults."""
    by_family: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Setting -> family of worlds -> value."""
    control: Control = ""
    """The control of JitRL's memory: it keeps nothing (`cut`), the returns of an episode are given to its steps in random order
    (`shuffled`), or returns are drawn from a normal distribution (`noise`)."""
    prior: Literal["", "uniform"] = ""
    """The prior, where it is not the variant's."""

    def method_settings(self, world: str, variant: RewardVariant) -> Any:
        """The settings of the method in a variant of a world."""
        chosen = {**self.settings, **{name: values[family(world)] for name, values in self.by_family.items()}}
        if variant.judged and self.method != "static":
            chosen["gamma"] = 0.0  # the judge's rewards count what followed
            if "unseen_bonus" in chosen:
                chosen["unseen_bonus"] *= 10  # its rewards are about ten times the world's
            if "initial_value" in chosen:
                chosen["initial_value"] *= 10
        match self.method:
            case "jitrl":
                return replace(getattr(JitRL, self.preset)() if self.preset else JitRL(), **chosen)
            case "static":
                return static.Static(**chosen)
            case "tabular":
                return tabular.Tabular(**chosen)

    def digest(self, world: str, variant: RewardVariant) -> str:
        """Eight hexadecimal digits that stand for the method and all of its settings."""
        settings = asdict(self.method_settings(world, variant))
        return cache_key(self.method, settings, self.control, self.prior)[:8]


ARMS: Mapping[str, StudyArm] = {
    "jitrl": StudyArm("jitrl"),
    "static": StudyArm("static"),
    "tabular": StudyArm("tabular"),
    "optimistic-table": StudyArm(
        "tabular",
        by_family={
            "initial_value": {"toy": 0.1, "twx": 0.05, "jericho": 0.5},
            "epsilon": {"toy": 0.1, "twx": 0.0, "jericho": 0.1},
        },
    ),
    "reference": StudyArm("jitrl", {"state_key": "room"}, preset="reference"),
    "reference-history": StudyArm("jitrl", preset="reference"),
    "paper": StudyArm("jitrl", {"state_key": "room", "threshold_decay": 0.0}, preset="paper"),
    "paper-history": StudyArm("jitrl", preset="paper"),
    "jitrl-history": StudyArm("jitrl", {"state_key": "hierarchy"}),
    "paper-well-set": StudyArm(
        "jitrl",
        {"beta": 10.0, "state_key": "room", "threshold_decay": 0.0},
        "paper",
        by_family={"unseen_bonus": {"toy": 0.5, "twx": 0.01, "jericho": 5.0}},
    ),
    "jitrl-uniform": StudyArm("jitrl", prior="uniform"),
    "jitrl-cut": StudyArm("jitrl", control="cut"),
    "jitrl-shuffled": StudyArm("jitrl", control="shuffled"),
    "jitrl-noise": StudyArm("jitrl", control="noise"),
}
"""Name -> arm. `former` has the formulas of our earlier default, `paper-well-set` the paper's with beta and alpha chosen on the
train fold (but for Jericho), `optimistic-table` Q-learning with an initial value and an epsilon chosen there, too. With memory cut,
only what the running episode shows is left. `…-history` compares states with what led to them, `jitrl-patient` gives the prior ten visits to a
state to find something there."""


def family(world: str) -> str:
    """The family of a world: `twx` of `twx:coin`."""
    return world.partition(":")[0]


class _CutMemory(Experiences):
    """A memory that keeps nothing."""

    def add(self, trajectory: Trajectory) -> None:
        pass


class _HindsightTable(QTable):
    """A table that learns from the judge's rewards."""

    def add(self, trajectory: Trajectory) -> None:
        rewards = hindsight_rewards([step.reward for step in trajectory.transitions])
        steps = tuple(replace(s, reward=r) for s, r in zip(trajectory.transitions, rewards, strict=True))
        super().add(replace(trajectory, transitions=steps))


def _make_credit(control: Control, seed: str) -> Callable[[Sequence[float | None], float], Sequence[float | None]]:
    """The function from rewards to returns that a control puts in place of Eq. 3."""
    random = Random(seed)

    def credit(rewards: Sequence[float | None], gamma: float) -> Sequence[float | None]:
        if control == "noise":
            return [random.gauss(0, 1) for _ in rewards]
        found = [*returns(rewards, gamma)]
        random.shuffle(found)
        return found

    return credit


def _make_memory(control: Control, settings: JitRL, run: str) -> Experiences | None:
    """The memory of a control; None: the method's own."""
    if not control:
        return None
    if settings.advantage_estimator in ("paper", "reference"):
        raise UserError(f"controls are of our own estimators, got control={control} with {settings.advantage_estimator}")
    if control == "cut":
        return _CutMemory(gamma=settings.gamma)
    return Experiences(gamma=settings.gamma, credit=_make_credit(control, run))


def build_arm(
    arm: StudyArm, variant: RewardVariant, world: RecordedWorld, journal: Journal, model: Callable[[PromptView], Any], run: str
) -> tuple[UncheckpointedGraph, VariantWorld]:
    """The arm's graph as a plain loop, and the changed world that it plays.

    Args:
        arm: the arm.
        variant: the changes of the world.
        world: the world without changes.
        journal: the log of steps.
        model: the function from a prompt view to the policy of the prior `model`.
        run: name of the run; seeds the controls.
    """
    if arm.prior:
        variant = replace(variant, prior=arm.prior)
    changed = VariantWorld(world, variant.shift * CONSTANTS[family(world.name)], variant.gives_up)
    judge = HindsightOracle(journal) if variant.judged else None
    policy = make_policy(variant, world, model)
    inputs = MethodInputs(changed, journal, policy, judge=judge, history_steps=0)
    settings = arm.method_settings(world.name, variant)
    match arm.method:
        case "jitrl":
            graph = jitrl.build(inputs, settings, experiences=_make_memory(arm.control, settings, run))
        case "static":
            graph = static.build(inputs, settings)
        case "tabular":
            values = (settings.gamma, settings.learning_rate, settings.initial_value)
            graph = tabular.build(inputs, settings, table=_HindsightTable(None, *values) if variant.judged else None)
    loop = UncheckpointedGraph(graph)
    # The record of every decision is not read here, and would take a sixth of the time.
    act = loop.links["act"]
    loop.links["act"] = act._replace(node=replace(cast(Any, act.node), journal_channels=()))
    return loop, changed


def play_arm(
    arm: StudyArm,
    variant: RewardVariant,
    world: RecordedWorld,
    task: Task,
    episodes: int,
    model: Callable[[PromptView], Any],
) -> list[float]:
    """The world's own score of each episode. All arms draw the same random numbers on a task.

    Args:
        arm: the arm.
        variant: the changes of the world.
        world: the world without changes.
        task: one of its tasks.
        episodes: the number of episodes.
        model: the function from a prompt view to the policy of the prior `model`.
    """
    journal = Journal()
    loop, changed = build_arm(arm, variant, world, journal, model, task.id)
    scores = []
    for episode in range(episodes):
        result = loop.invoke({"task": task, "run": task.id, "episode": episode})
        scores.append(changed.score(task, [step.action for step in journal.history(result["head"])]))
    return scores
