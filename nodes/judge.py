"""Judge a finished episode: what was each step worth? By the environment's own rewards, or by a model in hindsight."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage

from ..memory.journal import Journal
from ..memory.records import Task
from .ask import Ask, BadReply, State, Unreadable, text
from .policies import json_object, steps_text
from .prompt import Prompt
from .state import Episode, Judged


@dataclass(frozen=True)
class EnvironmentJudge:
    """r_t is what the environment paid."""

    role: ClassVar[str] = "compute"

    journal: Journal

    def __call__(self, state: Episode) -> Judged:
        return {"rewards": [step.reward for step in self.journal.history(state["head"])], "unjudged": ""}


Verify = Callable[[Task, Sequence[str]], Sequence[float | None]]
"""A rule: the task and the actions taken -> a reward per step, None where the rule cannot tell."""


@dataclass(frozen=True)
class RuleJudge:
    """r_t by a rule (a verifier, an exact oracle, a reward function of yours).

    A rule that raises, or gives something else than one finite number or None per step, leaves the attempt's rewards missing,
    and `unjudged` says why: a missing reward is not a zero.
    """

    role: ClassVar[str] = "compute"

    verify: Verify
    journal: Journal

    def __call__(self, state: Episode) -> Judged:
        actions = [step.action for step in self.journal.history(state["head"])]
        missing: list[float | None] = [None] * len(actions)
        try:
            rewards = [*self.verify(state["task"], actions)]
        except Exception as error:  # a user's function
            return {"rewards": missing, "unjudged": f"the rule raised {type(error).__name__}: {error}"}
        if len(rewards) != len(actions):
            return {"rewards": missing, "unjudged": f"asked the rule for {len(actions)} rewards, got {len(rewards)}"}
        for reward in rewards:
            number = isinstance(reward, int | float) and not isinstance(reward, bool) and math.isfinite(reward)
            if reward is not None and not number:
                return {"rewards": missing, "unjudged": f"asked the rule for finite numbers, got {reward!r}"}
        return {"rewards": [None if reward is None else float(reward) for reward in rewards], "unjudged": ""}


@dataclass(frozen=True)
class NoJudge:
    """No reward for any step: for methods that go without."""

    role: ClassVar[str] = "compute"

    def __call__(self, state: Episode) -> Judged:
        return {"rewards": [None] * state["step"], "unjudged": "this method goes without rewards"}


def model_judge(model: BaseChatModel, journal: Journal, prompts: Path | None = None) -> Ask:
    """Ask a model for a reward per step, in [-10, 10], in hindsight.

    If no reply can be read, the rewards are missing: the episode leaves no experience behind, and `unjudged` says why.
    A missing reward is never a zero, which would be evidence against the actions.
    """
    prompt = Prompt.load("jitrl/judge", prompts)

    def messages(state: State) -> list[BaseMessage]:
        steps = journal.history(state["head"])
        numbered = "\n".join(f"Step {t}\n{steps_text([step])}" for t, step in enumerate(steps, 1))
        instruction = state["task"].instruction
        return prompt.messages(instruction=instruction, count=len(steps), score=f"{state['score']:g}", steps=numbered)

    def read(reply: AIMessage, state: State) -> Mapping[str, Any]:
        asked = state["step"]
        rewards = json_object(text(reply)).get("rewards")
        if not isinstance(rewards, list) or len(rewards) != asked:
            came = len(rewards) if isinstance(rewards, list) else "none"
            raise Unreadable(f"asked for {asked} rewards, got {came}: {text(reply)[:60]!r}")
        for reward in rewards:
            if not isinstance(reward, int | float) or isinstance(reward, bool) or not -10 <= reward <= 10:
                raise Unreadable(f"asked for rewards from -10 to 10, got {reward!r}")
        return {"rewards": [float(reward) for reward in rewards], "unjudged": ""}

    def lost(bad: BadReply, state: State) -> Mapping[str, Any]:
        return {"rewards": [None] * state["step"], "unjudged": str(bad)}

    return Ask("jitrl/judge", model, messages, read, Prompt.load("ask/again", prompts), lost=lost)
