"""The comparison of a group of rated conversations, and the lessons from it, by the nodes of graphs/training_free_grpo.py."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig

from ...memory.conversations.messages import REPLY
from ...memory.lessons.versions import LibraryVersions
from ...memory.records import Comparison, Rollout, Task, Trajectory
from ...nodes.act.policies import steps_text
from ...nodes.ask import estimate_tokens
from ...nodes.extract.critic import Critic, critic_prompts
from ...nodes.fence import escape_tags
from ...nodes.update.consolidate import ReviseLibrary
from ..training_free_grpo import TrainingFreeGRPO, group_graph
from .episodes import ChatWorld

__all__ = ["GroupComparison"]

SHARE_FOR_PROMPT = 0.75
"""Share of the critic's window that a prompt may take."""


def group_name(group: Sequence[Trajectory]) -> str:
    """The name of a group of conversations, derived from their ids: any process gives it the same."""
    ids = "\n".join(sorted(one.id for one in group))
    return f"conversations/{blake2b(ids.encode(), digest_size=8).hexdigest()}"


def transcript_text(trajectory: Trajectory) -> str:
    """A conversation as text: what was read after `|`, what was done after `>`, and feedback in words."""
    steps = [replace(step, state=_marked(step.observation_text), reward=None) for step in trajectory.transitions]
    words = " ".join(trajectory.note.split())
    return escape_tags(steps_text(steps) + (f"| Feedback in words: {words}\n" if words else ""))


def _marked(text: str) -> str:
    return "\n".join(f"| {line}" for line in text.splitlines()) or "|"


@dataclass(frozen=True)
class GroupComparison:
    """The nodes that compare a group of conversations and edit a library. One group's edits need no consolidation by a model.

    Args:
        versions: the versions of the library; the head is edited.
        critic: the chat model.
        settings: Training-Free GRPO's; those of rollouts, of a run's length and of the accept test have no effect.
        window: tokens that the critic can read at once.
        reward_range: the rewards that count as 0 and as 1 for the critic.
        agent: the agent's instructions and tools, which stand for an objective that the settings do not give.
    """

    versions: LibraryVersions
    critic: Runnable[Any, Any]
    settings: TrainingFreeGRPO
    window: int
    reward_range: tuple[float, float] = (0.0, 1.0)
    agent: str = ""

    def comparison(self, group: Sequence[Trajectory]) -> tuple[Runnable[Any, Any], dict[str, Any]]:
        """The graph of a group (`GROUP_FLOW`), in which these conversations are the rollouts, and its input."""
        player = _PlayedRollouts(tuple(self._rollout(one, number) for number, one in enumerate(group)))
        settings = replace(self.settings, group_size=len(group))
        graph = group_graph(settings, player, self._critic(group), lambda stage: self.critic)  # type: ignore[arg-type]
        return graph, {**self._step(group), "task": _task(group)}

    def edit(self, group: Sequence[Trajectory], comparison: Comparison) -> None:
        """Make a version of the comparison's edits, and make it the head; without edits the version that has its votes."""
        state: Any = {**self._step(group), "comparisons": [comparison]}
        candidate = ReviseLibrary(self._critic(group)).invoke(state)["candidate"]
        kept = f"{group_name(group)}/1-kept"
        if candidate or kept in self.versions.names():
            self.versions.move(candidate or kept, f"{len(group)} conversations were compared")

    def _step(self, group: Sequence[Trajectory]) -> dict[str, Any]:
        return {"run": group_name(group), "step": 0, "library": self.versions.head}

    def _critic(self, group: Sequence[Trajectory]) -> Critic:
        return Critic(
            self.versions,
            critic_prompts(paper=self.settings.wording == "paper"),
            replace(self.settings.lessons, objective=self.settings.lessons.objective or self.agent.rstrip("\n")),
            paper=self.settings.wording == "paper",
            count=estimate_tokens,
            max_prompt_tokens=int(self.window * SHARE_FOR_PROMPT),
            tasks={group[0].task.id: _task(group)},
        )

    def _rollout(self, trajectory: Trajectory, number: int) -> Rollout:
        low, high = self.reward_range
        value = trajectory.value
        reward = None if value is None else min(max((value - low) / (high - low), 0.0), 1.0)
        return Rollout(
            trajectory.id,
            trajectory.task,
            number,
            reward,
            answer=trajectory.transitions[-1].action.removeprefix(REPLY),
            transcript=transcript_text(trajectory),
            steps=len(trajectory.transitions),
            tool_calls=sum(not step.action.startswith(REPLY) for step in trajectory.transitions),
            shown=trajectory.used,
        )


def _task(group: Sequence[Trajectory]) -> Task:
    """The problem of a group: what users asked for first in its conversations."""
    asked = list(dict.fromkeys(one.task.instruction for one in group))
    if len(asked) == 1:
        return group[0].task
    listed = "".join(f"\n- {' '.join(one.split())}" for one in asked)
    return Task(group[0].task.id, f"a conversation with a user, which begins like one of these:{listed}")


@dataclass(frozen=True)
class _PlayedRollouts(Runnable[Any, Rollout]):
    """A stand-in for a `RolloutPlayer`, whose rollouts are conversations that took place."""

    rollouts: tuple[Rollout, ...]
    environment: Any = field(default_factory=lambda: ChatWorld("conversations"))

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Rollout:
        """Rollout `episode` of the group."""
        number: int = input["episode"]
        return self.rollouts[number]
