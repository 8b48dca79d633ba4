"""Judges: nodes that give a reward to each step of a finished episode, by the world, by a rule, or by a model.

A judge maps the state to {"rewards": one number or None per step, "unjudged": why some are missing, or empty}. A missing reward
is None, never 0: a zero would be evidence against the actions.

| judge | a step | the last step | the return |
|---|---|---|---|
| `EnvironmentJudge` | the environment's reward: r = r* | | |
| `RuleJudge` | the value of a rule | | |
| `model_judge` (JitRL's, sees the world's rewards; each step's own part, or in hindsight) | -10 to 10 | -10 to 10 | |
| `self_judge` (ICRL's, sees no rewards) | 0 to 3 | 0 to 10, for the whole attempt | 0 to 3 (T - 1) + 10 |
| `self_judge`, sparse | 0 | 0 to 10 | 0 to 10 |
| `pairwise_judge` (against a reference answer, which is worth 5; preference.py) | 0 | .5 to 9.5 | .5 to 9.5 |

In a sparse scheme a step without a reward of its own has the reward 0, by definition of the scheme. A judgement that fails is
missing for every step; where a judge leaves out a step, or gives it no number, only that step's is. Every attempt is judged, also the
first.

A judge may have two attributes. `credits_future`: its reward of a step already counts what followed from the step, so that adding up
or discounting later rewards would count that twice. `full_success`: the return that a perfect attempt has on its scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set, Sized
from dataclasses import dataclass
from itertools import islice
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, NotRequired

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable
from langchain_core.runnables.utils import Input, Output
from typing_extensions import TypedDict

from ...memory.records import Observation, Task, Usage
from ...memory.storage.journal import Journal
from ..ask import Ask, BadReply
from ..prompt import Prompt
from ..read_reply import Unreadable, answer_text, read_number, read_object, read_values
from ..reply_schemas import NUMBER, STEP_REWARDS, reply_schema
from ..state import HeadChannel, RewardChannels, TaskChannel
from ..text import clip_text

__all__ = [
    "NO_REWARDS_REASON",
    "EnvironmentJudge",
    "ModelJudge",
    "NoJudge",
    "RuleJudge",
    "ZeroJudge",
    "model_judge",
    "self_judge",
]

Judge = Callable[[Any], Any] | Runnable[Any, Any]
"""A node from a finished episode to `RewardChannels` (and `usage`, if it asks a model)."""

RewardRule = Callable[[Task, Sequence[str]], Iterable[float | None]]
"""A rule: the task and the actions taken -> a reward per step, None where the rule cannot tell."""

NO_REWARDS_REASON = "this method goes without rewards"
"""The value of `unjudged` that `NoJudge` gives."""

_STEP, _WHOLE, _PER_STEP = (0.0, 3.0), (0.0, 10.0), (-10.0, 10.0)
CONTRIBUTION_PROMPTS = "paper/jitrl/judge", "paper/jitrl_web/judge"
"""The prompts for the step's own part: of games (-10 to 10), and of web pages (-3 to 3)."""


class StepCount(TypedDict):
    """The length of an episode."""

    step: int
    """Number of its steps."""


class Attempt(TaskChannel, HeadChannel):
    """The steps of an attempt at a task."""


class CountedAttempt(Attempt, StepCount):
    """The same, and their number."""


class SeenAttempt(CountedAttempt):
    """The same, and what was seen at the end."""

    observation: NotRequired[Observation]


class ScoredAttempt(SeenAttempt):
    """The same, and the score."""

    score: float


class ModelRewards(RewardChannels, total=False):
    """The rewards that a model gave."""

    usage: Usage


@dataclass(frozen=True)
class EnvironmentJudge:
    """Judge by the environment: r_t is its own reward."""

    role: ClassVar[str] = "compute"

    journal: Journal

    def __call__(self, state: HeadChannel) -> RewardChannels:
        rewards = [step.reward for step in self.journal.history(state["head"])]
        return {"rewards": rewards, "unjudged": _gaps(rewards, "the environment, which could not read the action,")}


@dataclass(frozen=True)
class RuleJudge:
    """Judge by a rule: a verifier, an exact oracle, a reward function of yours.

    A rule returns one finite real number (also numpy's) or None per step, as a sequence or generator. If it raises or returns
    anything else, the attempt's rewards are missing, and `unjudged` says why.
    """

    role: ClassVar[str] = "compute"
    is_blocking: ClassVar[bool] = True
    """The rule is a user's function that may take a while; the node runs in a thread where others would wait for it."""

    reward_rule: RewardRule
    journal: Journal

    def __call__(self, state: Attempt) -> RewardChannels:
        steps = self.journal.history(state["head"])
        actions = tuple(step.action for step in steps if not step.is_lost)
        try:
            found = iter(_parse_rule_rewards(self.reward_rule(state["task"], actions), len(actions)))
            rewards = [0.0 if step.is_lost else next(found) for step in steps]
        except Unreadable as wrong:
            why = str(wrong)
        except Exception as error:  # a user's function
            why = f"the rule raised {type(error).__name__}: {error}"
        else:
            return {"rewards": rewards, "unjudged": _gaps(rewards, "the rule")}
        return {"rewards": [None] * len(steps), "unjudged": " ".join(why.split())}


def _parse_rule_rewards(given: Any, asked: int) -> list[float | None]:
    """The result of a rule as `asked` plain numbers.

    Raises:
        Unreadable: it is anything else.
    """
    # Text, bytes, dicts and sets are iterable too, but their elements are no rewards in order.
    if isinstance(given, str | bytes | bytearray | Mapping | Set) or not isinstance(given, Iterable):
        raise Unreadable(f"asked the rule for a list of {asked} rewards, got {_cut(given)}")
    rewards = [*islice(given, asked + 1)]  # a generator may have no end
    if len(rewards) != asked:
        came = len(given) if isinstance(given, Sized) else f"{len(rewards)}{' or more' * (len(rewards) > asked)}"
        raise Unreadable(f"asked the rule for {asked} rewards, got {came}")
    return [None if reward is None else _finite(reward) for reward in rewards]


def _finite(reward: Any) -> float:
    try:
        number = float(reward) if isinstance(reward, Real) and not isinstance(reward, bool) else math.nan
    except OverflowError:  # a whole number beyond all floats
        number = math.inf
    if not math.isfinite(number):
        raise Unreadable(f"asked the rule for finite numbers, got {_cut(reward)}")
    return number


def _cut(value: Any) -> str:
    try:
        shown = repr(value)
    except Exception:  # its repr fails: name its type
        shown = f"a {type(value).__name__}"
    return clip_text(shown, 80)


def _gaps(rewards: Sequence[float | None], judge: str) -> str:
    """A sentence that names the steps without a reward; empty if all have one."""
    missing = [str(t) for t, reward in enumerate(rewards, 1) if reward is None]
    return f"{judge} gave no reward for step {', '.join(missing)}" if missing else ""


@dataclass(frozen=True)
class ZeroJudge:
    """Give every step the reward 0: ICRL's ablation. The method then cannot choose by rewards either."""

    role: ClassVar[str] = "compute"

    def __call__(self, state: StepCount) -> RewardChannels:
        return {"rewards": [0.0] * state["step"], "unjudged": ""}


@dataclass(frozen=True, kw_only=True)
class ModelJudge(Ask[Input, Output]):
    """A judge that asks a model."""

    credits_future: bool = False
    """True if its reward of a step counts all that followed from the step (hindsight)."""
    full_success: float | None = None
    """The return of a perfect attempt on its scale; None: it depends on the number of steps."""


@dataclass(frozen=True)
class NoJudge:
    """Give no step a reward: for methods without rewards."""

    role: ClassVar[str] = "compute"

    def __call__(self, state: StepCount) -> RewardChannels:
        return {"rewards": [None] * state["step"], "unjudged": NO_REWARDS_REASON}


def model_judge(
    model: Runnable[Any, Any], journal: Journal, prompts: Path | None = None, name: str = "jitrl/judge"
) -> ModelJudge[ScoredAttempt, ModelRewards]:
    """Ask a model for a reward per step, in [-10, 10] or on web pages [-3, 3] (JitRL): for all that followed from it, or for the step's own part alone.

    If no reply can be read, the rewards are missing: the episode leaves no experience, and `unjudged` says why.

    Args:
        model: the judge.
        journal: holds the attempt.
        prompts: a directory whose files override ours.
        name: the prompt. `jitrl/judge` has a reward count what followed, as the authors' code has it, which is not to be discounted
            again; those of CONTRIBUTION_PROMPTS ask for the step's individual contribution, as the paper has it.
    """
    prompt = Prompt.load(name, prompts)

    def messages(state: ScoredAttempt) -> list[BaseMessage]:
        steps = _attempt_text(journal, state, rewards=True)
        return prompt.messages(
            instruction=state["task"].instruction, count=state["step"], score=f"{state['score']:g}", steps=steps
        )

    def limits(state: StepCount) -> list[tuple[float, float]]:
        return [(-3.0, 3.0) if name == CONTRIBUTION_PROMPTS[1] else _PER_STEP] * state["step"]

    return _ask_for_steps(name, model, messages, limits, prompts, credits_future=name not in CONTRIBUTION_PROMPTS)


def self_judge(
    model: Runnable[Any, Any],
    journal: Journal,
    prompts: Path | None = None,
    *,
    sparse: bool = False,
    shows_answers: bool = True,
) -> ModelJudge[SeenAttempt, ModelRewards]:
    """ICRL's self-evaluation: the model judges its own attempt without seeing the environment's rewards.

    Dense: 3 (the task can surely still be done), 1 (it may be) or 0 (it cannot) for every step but the last, which gets 0 to
    10 for the whole attempt; numbers between are read too. 3, 1 and 0 are the paper's for a step of Game of 24; at the answer its
    Fig. 10 has the sum of the steps' rewards, and its code 10 or 0, as our rule there. One call judges all steps, where the paper
    asks once per step, so the judge sees each step's consequences and has room to check them first.

    Sparse: 0 to 10 for the whole attempt on its last step, 0 for the steps before.

    The model samples at its own temperature (paper: 0), so that a second judgement of the same attempt adds information.

    Args:
        model: the judge.
        journal: holds the attempt.
        prompts: a directory whose files override ours.
        sparse: one reward for the whole attempt.
        shows_answers: show what the world said to each action; False where it says whether the lines of a written answer are right.
    """
    name = "judge/self_sparse" if sparse else "judge/self"
    prompt = Prompt.load(name, prompts)

    def messages(state: SeenAttempt) -> list[BaseMessage]:
        steps = _attempt_text(journal, state, rewards=False, answers=shows_answers)
        return prompt.messages(instruction=state["task"].instruction, count=state["step"], steps=steps)

    def limits(state: StepCount) -> list[tuple[float, float]]:
        return [_STEP] * (state["step"] - 1) + [_WHOLE]

    if not sparse:
        return _ask_for_steps(name, model, messages, limits, prompts)

    def read(reply: AIMessage, state: SeenAttempt) -> ModelRewards:
        return reward_last_step(read_score(reply, _WHOLE), state)

    again = Prompt.load("ask/again", prompts)
    return ModelJudge(
        name,
        model,
        messages,
        read,
        again,
        on_bad_reply=missing_rewards,
        reply_schema=reply_schema(score=NUMBER),
        full_success=_WHOLE[1],
    )


def _ask_for_steps(
    name: str,
    model: Runnable[Any, Any],
    messages: Callable[[Any], list[BaseMessage]],
    limits: Callable[[StepCount], Sequence[tuple[float, float]]],
    prompts: Path | None,
    *,
    credits_future: bool = False,
) -> ModelJudge[Any, ModelRewards]:
    """Ask for a reward of each step. Gaps are asked for again; those that stay cost their steps alone."""
    from .step_rewards import read_step_rewards  # for judges that ask a model

    def parse(reply: str, state: StepCount) -> tuple[list[float | None], str]:
        found = read_values(reply, "rewards")
        return read_step_rewards(read_object(reply) if found is None else found, limits(state))

    def read(reply: AIMessage, state: StepCount) -> ModelRewards:
        rewards, wrong = parse(answer_text(reply), state)
        if wrong:
            raise Unreadable("asked for a reward of each step, within its limits", error=wrong)
        return {"rewards": rewards, "unjudged": ""}

    def keep_what_is_there(bad: BadReply, state: StepCount) -> ModelRewards:
        try:
            rewards, _ = parse(bad.reply, state)
        except Unreadable:
            return missing_rewards(bad, state)
        return {"rewards": rewards, "unjudged": str(bad)}

    again = Prompt.load("ask/again", prompts)
    return ModelJudge(
        name,
        model,
        messages,
        read,
        again,
        on_bad_reply=keep_what_is_there,
        reply_schema=reply_schema(rewards=STEP_REWARDS),
        credits_future=credits_future,
    )


def _attempt_text(journal: Journal, state: SeenAttempt, *, rewards: bool, answers: bool = True) -> str:
    """The attempt as judges see it: its steps by number, and the world's answer to the last action."""
    from ..retrieve.chat_layout import ChatLayout  # for judges that ask a model

    layout = ChatLayout("dense" if rewards else "none", max_observation_tokens=None, shows_answers=answers)
    answer = state.get("observation")
    seen = f"After the last step:\n{answer.text.strip()}\n" if answers and answer is not None and answer.text.strip() else ""
    return (layout.steps(journal.history(state["head"])) + seen).rstrip()


def reward_last_step(reward: float, state: StepCount) -> ModelRewards:
    """The channels with a reward for the whole attempt on its last step."""
    return {"rewards": [*[0.0] * (state["step"] - 1), reward], "unjudged": ""}


def missing_rewards(bad: BadReply, state: StepCount) -> ModelRewards:
    """The channels of a judgement that failed: no reward for any step, and the reason."""
    return {"rewards": [None] * state["step"], "unjudged": str(bad)}


def read_score(reply: AIMessage, limits: tuple[float, float]) -> float:
    """The number under `score` in a reply's JSON object."""
    value = read_object(answer_text(reply), "score").get("score")
    (low, high), number = limits, read_number(value)
    if number is None or not low <= number <= high:
        raise Unreadable(f"asked for a score from {low:g} to {high:g}", f", got {value!r}")
    return number
