"""The agent of a run, asked again in any situation that it was in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....memory.records import Task
from ...experiments.options import ModelOptions

if TYPE_CHECKING:
    from ....nodes.synthesize.mft import Pair

__all__ = ["CounterfactualAgent"]


@dataclass
class CounterfactualAgent:
    """The agent of a run, which can be put in any situation of it and asked for a draft, or for an action under a strategy."""

    environment: Any
    inputs: Any
    draft: Any
    """The node that proposes an action without a strategy."""
    act: Any
    """The node that proposes an action under a strategy."""
    choose: Any
    _at: dict[tuple[str, ...], tuple[str, Any]] = field(default_factory=dict)
    """Actions -> the head of the journal and the observation after them, of the task played last."""
    _scored: dict[tuple[tuple[str, ...], str], Any] = field(default_factory=dict)
    """The proposals of a model that scores actions: it would give the same again."""
    _task: str = ""

    @classmethod
    def open(
        cls,
        environment: Any,
        *,
        model: str,
        asked_with: ModelOptions | None = None,
        prompts: Path | None = None,
        window: int | None = None,
        history_steps: int | None = None,
        temperature: float = 1.0,
    ) -> CounterfactualAgent:
        """The agent with a model, and with the prompts of mode `high`; the arguments are the options of `learngraph run`."""
        from ....memory.storage.journal import Journal
        from ....nodes.act.choose import Choose
        from ....nodes.retrieve.attempts import EpisodePrompt
        from ....nodes.synthesize.strategy import StrategyPrompt
        from ....tools.models.models import open_model
        from ...adamem import ACT, DRAFT
        from ...wiring.inputs import MethodInputs

        opened: Any = open_model(model, **(asked_with or ModelOptions()).model_arguments())
        more: dict[str, Any] = {"prompts": prompts}
        if window is not None:
            more["window"] = min(window, getattr(opened, "window", window))
        if hasattr(opened, "score"):
            inputs = MethodInputs.with_scoring_model(environment, Journal(), opened, **more)
        else:
            inputs = MethodInputs.with_chat_model(environment, Journal(), opened, stepwise=True, **more)
        seen: dict[str, Any] = {**inputs.prompt_arguments(), "max_steps": history_steps}
        draft = inputs.acting_policy(EpisodePrompt(**seen), DRAFT)
        return cls(environment, inputs, draft, inputs.acting_policy(StrategyPrompt(**seen), ACT), Choose(temperature))

    def __call__(self, task: Task, actions: Sequence[str], name: str, advice: str = "") -> str:
        """The action of the agent after these actions, under the strategy `advice` if there is one. A `Policy` of `mft.advantage`."""
        from langchain_core.runnables import Runnable

        from ....memory.records import Strategy, Usage

        if task.id != self._task:
            self._task = task.id
            self._at.clear()
            self._scored.clear()
        head, observation = self._after(task, tuple(actions))
        where = {"task": task, "run": name, "episode": 0, "step": len(actions), "head": head, "observation": observation}
        where["score"] = sum(step.reward or 0.0 for step in self.inputs.journal.history(head))
        state = {**where, "strategy": Strategy(advice) if advice else None, "usage": Usage()}
        node = self.act if advice else self.draft
        if isinstance(node, Runnable):
            proposed = node.invoke(state)
        else:
            key = tuple(actions), advice
            if key not in self._scored:
                self._scored[key] = node(state)
            proposed = self._scored[key]
        chosen: str = self.choose({**state, **proposed})["action"]
        return chosen

    def sample_actions(self, task: Task, pair: Pair, count: int, name: str) -> tuple[list[str], list[str]]:
        """`count` actions under the pair's strategy, and `count` drafts, each drawn independently."""
        return (
            [self(task, pair.before, f"{name}/{pair.id}/action/{i}", pair.strategy) for i in range(count)],
            [self(task, pair.before, f"{name}/{pair.id}/draft/{i}") for i in range(count)],
        )

    def _after(self, task: Task, actions: tuple[str, ...]) -> tuple[str, Any]:
        from ....memory.storage.journal import Journal
        from ....nodes.act.episode import build_transition

        if actions not in self._at:
            after = self.environment.observe(task, actions)
            if actions:
                head, before = self._after(task, actions[:-1])
                step = build_transition(self.environment, before, actions[-1], after.reward)
                self._at[actions] = self.inputs.journal.append(head, step), after
            else:
                self._at[actions] = Journal.start("again", 0, task.id), after
        return self._at[actions]
