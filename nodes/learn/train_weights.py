"""The nodes of methods that train the model's weights on whole attempts: play with a version, keep the attempt, train the next one.

graphs/baselines/sft.py and grpo.py wire them. They train through a `WeightTrainer`; tools/training/trl_trainers.py has one. A log
(memory/claas/weights.py) decides which version an episode is played with, so every node may run twice after a crash: it finds the same
version, and a training that is in the log is not made again.
"""

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NotRequired, Protocol

from langchain_core.messages import BaseMessage
from typing_extensions import TypedDict

from ...memory.claas.weights import PlayedAttempt, PlayedStep, TrainingLog, TrainingReport, version_label
from ...memory.records import NO_ACTION, Observation, Task
from ...memory.storage.journal import Journal
from ..act.episode import EarnedReturn
from ..act.policies import ScoredCandidates
from ..ask import State
from ..state import EpisodeInput, EpisodeNumber, EpisodePlace, HeadChannel, StepPlace, StepRewards

__all__ = [
    "FindVersion",
    "ImitateBest",
    "KeepAttempt",
    "ReadSteps",
    "ReinforceGroup",
    "TrainVersion",
    "VersionChannels",
    "VersionedPolicy",
    "WeightTrainer",
    "make_training_router",
]


class WeightTrainer(Protocol):
    """Trains an adapter of the model that plays. The same parent, attempts and seed give the same version."""

    def use(self, version: str) -> None:
        """Have the model answer with a version; empty: the base model."""

    def imitate(self, parent: str, version: str, attempts: Sequence[PlayedAttempt], seed: int) -> TrainingReport:
        """Learn the actions of these attempts. The new version is on the disk when this returns."""

    def reinforce(self, parent: str, version: str, attempts: Sequence[PlayedAttempt], seed: int) -> TrainingReport:
        """Learn from a group of attempts at one task by their returns. The new version is on the disk when this returns."""

    def perplexities(self, version: str, attempts: Sequence[PlayedAttempt]) -> list[float]:
        """exp of minus the mean log-probability of the tokens of each attempt's actions, under a version."""

    def keep(self, versions: Collection[str]) -> None:
        """Delete all versions but these."""


class PromptingPolicy(Protocol):
    """A policy whose prompt can be made again: `nodes.act.policies.LocalPolicy`."""

    def messages(self, state: State) -> list[BaseMessage]: ...

    def __call__(self, state: Any) -> Any: ...


class VersionChannels(TypedDict):
    """The version of the adapter that an episode is played with."""

    version: str
    """Its label; empty for the base model."""


@dataclass(frozen=True)
class FindVersion:
    """Find the version that this episode is played with: that of the last training before it."""

    role: ClassVar[str] = "memory"
    is_blocking: ClassVar[bool] = False

    log: TrainingLog

    def __call__(self, state: EpisodePlace) -> VersionChannels:
        return {"version": self.log.version(state["run"], state["episode"])}


class VersionedEpisode(EpisodePlace, VersionChannels):
    """An episode that is played with a version."""


@dataclass(frozen=True)
class VersionedPolicy:
    """Propose actions as a policy does, with the episode's version of the adapter. In a resumed process it is loaded first."""

    role: ClassVar[str] = "model"

    policy: PromptingPolicy
    trainer: WeightTrainer

    @property
    def prompt(self) -> Any:
        """The policy's prompt, for pictures."""
        return getattr(self.policy, "prompt", None)

    def messages(self, state: State) -> list[BaseMessage]:
        """The prompt's messages."""
        return self.policy.messages(state)

    def __call__(self, state: VersionChannels | State) -> ScoredCandidates:
        self.trainer.use(state["version"])
        proposed: ScoredCandidates = self.policy(state)
        return proposed


class RewardedEpisode(EpisodeInput, StepPlace, HeadChannel, StepRewards):
    """An episode that is over, with a reward (or none) for every step."""

    practising: NotRequired[bool]
    """True if it was not the run's own task."""


@dataclass(frozen=True)
class KeepAttempt:
    """Write the finished attempt into the log: where its steps are, and what it earned. A missing reward leaves its return missing."""

    role: ClassVar[str] = "memory"

    log: TrainingLog
    journal: Journal

    @property
    def is_blocking(self) -> bool:
        """True if it writes to a disk; the node then runs in a thread where others would wait for it."""
        return self.log.is_durable or self.journal.is_durable

    def __call__(self, state: RewardedEpisode) -> EarnedReturn:
        rewards = state["rewards"]
        known = [reward for reward in rewards if reward is not None]
        value = float(sum(known)) if len(known) == len(rewards) else None
        self.journal.sync()  # the log must not name steps that a power cut could take from the journal
        practice = bool(state.get("practising", False))
        self.log.add_attempt(state["run"], state["episode"], state["task"], state["head"], value, state["step"], practice)
        return {"earned": value}


def make_training_router(every: int) -> Callable[[EpisodeNumber], Literal["train", "go on"]]:
    """A router that trains after every n-th episode."""

    def route_training(state: EpisodeNumber) -> Literal["train", "go on"]:
        return "train" if (state["episode"] + 1) % every == 0 else "go on"

    return route_training


@dataclass(frozen=True)
class ReadSteps:
    """Reads the decisions of logged attempts back from the journal, each with the prompt that the policy was shown."""

    policy: PromptingPolicy
    journal: Journal

    def attempt(self, row: Mapping[str, Any]) -> PlayedAttempt:
        """An attempt from its row in the log."""
        task = Task(row["task"], row["instruction"], row["seed"])
        steps = []
        for step in self.journal.rows(row["head"]):
            if step["action"] == NO_ACTION:
                continue
            seen = Observation(step.get("observation") or step["state"])
            state = {"run": row["run"], "episode": row["episode"], "task": task, "step": step["step"]}
            messages = self.policy.messages({**state, "head": step["parent"], "observation": seen})
            steps.append(PlayedStep(tuple(messages), step["action"]))
        return PlayedAttempt(tuple(steps), row["value"])


def training_seed(run: str, episode: int) -> int:
    """The seed of all random draws of the training after an episode."""
    return zlib.crc32(f"{run}/{episode}/train".encode())


@dataclass(frozen=True)
class TrainVersion:
    """Train the next version of the adapter, unless the log has it already, and delete those that no resumed run needs."""

    role: ClassVar[str] = "model"
    is_blocking: ClassVar[bool] = True

    trainer: WeightTrainer
    log: TrainingLog
    reader: ReadSteps = field(repr=False)

    def __call__(self, state: VersionedEpisode) -> VersionChannels:
        run, episode = state["run"], state["episode"]
        if (row := self.log.training(run, episode)) is not None:
            return {"version": row["version"]}
        report = self.train(run, episode, state["version"], version_label(episode))
        self.log.add_training(run, episode, report)
        # The version before stays, too: a run that was killed may go back into this episode.
        self.trainer.keep({state["version"], report.version})
        return {"version": report.version}

    def train(self, run: str, episode: int, parent: str, version: str) -> TrainingReport:
        """Train `version` from `parent` on what the log has up to an episode."""
        raise NotImplementedError


def best_attempts(rows: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """The attempts with the highest returns: at most `count`, each above the mean of all; of equal ones the shortest, then the first.

    None if all known returns are alike: no attempt is then better than another.
    """
    known = [row for row in rows if row["value"] is not None]
    if not known:
        return []
    mean = sum(row["value"] for row in known) / len(known)
    above = [row for row in known if row["value"] > mean + 1e-9]
    return sorted(above, key=lambda row: (-row["value"], row["steps"], row["episode"]))[:count]


@dataclass(frozen=True)
class ImitateBest(TrainVersion):
    """Rejection sampling: train the next version on the best attempts of the run so far."""

    count: int = 4
    """Attempts to imitate, at most."""

    def train(self, run: str, episode: int, parent: str, version: str) -> TrainingReport:
        rows = self.log.attempts(run, until=episode)
        best = best_attempts(rows, self.count)
        missing = sum(row["value"] is None for row in rows)
        if not best:
            why = f"none of {len(rows)} attempts earned more than the others"
            return TrainingReport(parent, f"{why}, and {missing} have no return" if missing else why, left_out=missing)
        return self.trainer.imitate(parent, version, [self.reader.attempt(row) for row in best], training_seed(run, episode))


@dataclass(frozen=True)
class ReinforceGroup(TrainVersion):
    """Train the next version on the attempts since the last training: one group, all played with the same version."""

    every: int = 8
    """Attempts of a group."""

    def train(self, run: str, episode: int, parent: str, version: str) -> TrainingReport:
        rows = self.log.attempts(run, until=episode, since=episode + 1 - self.every)
        return self.trainer.reinforce(parent, version, [self.reader.attempt(row) for row in rows], training_seed(run, episode))
