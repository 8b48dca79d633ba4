"""What methods are put together from: an environment, a way to make policies, a journal, a judge, a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args, get_origin, get_type_hints

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable
from typing_extensions import TypedDict

from ...memory.errors import UserError
from ...memory.experiences import TrajectoryStore
from ...memory.records import Trajectory
from ...memory.storage.journal import Journal
from ...memory.trajectories import read_bank
from ...nodes.act.episode import Environment
from ...nodes.act.policies import LocalPolicy, PromptView, Scorer, UniformPolicy, act_policy, answer_policy
from ...nodes.ask import estimate_tokens
from ...nodes.evaluate.judge import EnvironmentJudge
from ...nodes.prompt import Prompt
from ...nodes.retrieve.attempts import Layout
from .flow import Node

_LAYOUT = Layout()
_ANSWERS = {"react": "cot/answer", "cot": "cot/answer", "long-cot": "cot/long"}
_ACTIONS = {"": "act/write", "react": "act/write", "cot": "cot/act", "long-cot": "cot/act_long"}
"""Prompts by method. Other names are those of prompts for one action; whole answers are asked for by `act/answer` then."""
_VOTES = {"adamem/consider": "Memory", "adamem/reconsider": "Refresh"}
"""Prompts that ask for a decision beside the action, and the mark of the line with it."""
DEFAULT_WINDOW = 32_768
"""Tokens of the window of a model that does not say."""


DEFAULT_RESERVE = 4_096
"""Tokens of such a window that are left for the system message, the template and the reply (a long chain of thought, say)."""


def check_literals(settings: Any, method: str) -> None:
    """Check that settings which are one of several words are one of them.

    Raises:
        UserError: naming the setting, what came, and what would do.
    """
    for name, hint in get_type_hints(type(settings)).items():
        if get_origin(hint) is Literal and getattr(settings, name) not in get_args(hint):
            raise UserError(f"{method}: {name} is one of {', '.join(get_args(hint))}, got {getattr(settings, name)!r}")


@lru_cache(maxsize=4)
def load_bank(bank: Path, stamp: int) -> tuple[Trajectory, ...]:
    """The trajectories of a file as it was `written`: many runs of a process start from one bank."""
    return read_bank(bank)


def mtime_ns(bank: str) -> int:
    """When a file was written last, in nanoseconds; 0 if there is none."""
    file = Path(bank)
    return file.stat().st_mtime_ns if file.exists() else 0


def reaches_return(threshold: float | None) -> Callable[[Trajectory], bool | None]:
    """Whether an attempt reached this return; None where nobody knows."""
    return lambda attempt: None if threshold is None or attempt.value is None else attempt.value >= threshold


def uniform_policy(seen: PromptView) -> Node:
    """A policy that looks at nothing: any admissible action."""
    return UniformPolicy()


class ScoringModel(Scorer, Protocol):
    """A model in this process, such as `tools.local_model.LocalChatModel`."""

    @property
    def window(self) -> int: ...

    def get_num_tokens(self, text: str) -> int: ...


class PromptArguments(TypedDict):
    """The arguments of `nodes.attempts.Running` that every method shares."""

    journal: Journal
    layout: Layout
    count_tokens: Callable[[str], int]
    window: int
    list_actions: bool
    brief: str


@dataclass(frozen=True)
class MethodInputs:
    """What a method is put together from."""

    environment: Environment
    journal: Journal = field(default_factory=Journal)
    make_policy: Callable[[PromptView], Node] = field(default=uniform_policy, repr=False)
    """Makes the node that proposes candidates with logits, from what its prompts show."""
    shelf: TrajectoryStore | None = None
    """Where finished episodes are kept for good; None keeps them in the process."""
    judge: Node | None = None
    """Rewards the steps of a finished episode; None: the environment's own rewards."""
    history_steps: int | None = None
    """How many earlier steps of the episode a policy without a method of its own is shown; None: all."""
    model: Runnable[Any, Any] | None = field(default=None, repr=False)
    """A chat model, for methods that have something written."""
    make_writing_policy: Callable[[PromptView, str], Node] | None = field(default=None, repr=False)
    """Makes a policy that writes with a prompt of that name; None: the model only scores actions."""
    count_tokens: Callable[[str], int] = field(default=estimate_tokens, repr=False)
    """Tokens of a text, as the model counts."""
    window: int = DEFAULT_WINDOW
    """Tokens of the longest prompt and reply together."""
    reserved_tokens: int | None = None
    """Tokens of it that are left for the system message, what the template adds, and the reply; 4096 if not given, but at most a
    quarter of the window."""
    list_actions: bool = False
    """Whether prompts list the admissible actions."""
    run: str = ""
    """Name of the run, where it is known beforehand: a bank with episodes of that name is refused before anything is played."""
    prompts: Path | None = None
    """A directory whose prompt files take the place of those of the same name."""

    @classmethod
    def with_scoring_model(cls, environment: Environment, journal: Journal, model: ScoringModel, **more: Any) -> MethodInputs:
        """With a model in this process, which scores the admissible actions and counts its own tokens."""
        prompt = Prompt.load("act/score", more.get("prompts"))
        # The reply is an action: short. The system message of the prompt counts as it is.
        reserve = 64 + sum(model.get_num_tokens(template.template) for _, template in prompt.parts)
        ours: dict[str, Any] = {
            "history_steps": 0,
            "count_tokens": model.get_num_tokens,
            "window": model.window,
            "reserved_tokens": min(reserve, model.window // 4),
        }
        return cls(environment, journal, lambda seen: LocalPolicy(model, seen, prompt), model=cast(Any, model), **ours | more)

    @classmethod
    def with_chat_model(
        cls, environment: Environment, journal: Journal, model: BaseChatModel, *, stepwise: bool = False, **more: Any
    ) -> MethodInputs:
        """With a chat model, which writes: a whole answer where the environment can read one (it has `read`), else, or if
        `stepwise`, a thought and an action at every step."""
        read, prompts = None if stepwise else getattr(environment, "read", None), more.get("prompts")
        free = bool(getattr(environment, "free_text", hasattr(environment, "read")))

        def write(seen: PromptView, name: str) -> Node:
            thinks = name == "react" or name.startswith("adamem/")  # before every action
            by_step = thinks and getattr(environment, "horizon", 1) > 1
            if read is None or by_step:
                return act_policy(
                    model, seen, _ACTIONS.get(name, name), prompts, free_text=free, vote_mark=_VOTES.get(name, "")
                )
            return answer_policy(model, seen, read, _ANSWERS.get(name, "act/answer"), prompts)

        ours: dict[str, Any] = {"history_steps": 20, "model": model, "make_writing_policy": write, "list_actions": read is None}
        return cls(environment, journal, lambda seen: write(seen, ""), **ours | more)

    def judge_node(self) -> Node:
        """The judge, or the environment's rewards."""
        return self.judge or EnvironmentJudge(self.journal)

    def prompt_arguments(self, layout: Layout = _LAYOUT, brief: str = "") -> PromptArguments:
        """What `Running` and its kind need to know, by name.

        The running attempt is written as `layout` says, but without rewards where a judge will give them at the end, and with
        whole states for a model that writes: what it has read (a page, a passage) it needs at later steps, too.
        """
        rewards: Any = "none" if self.judge else layout.rewards
        return {
            "journal": self.journal,
            "layout": replace(layout, rewards=rewards, clip=None if self.make_writing_policy else layout.clip),
            "count_tokens": self.count_tokens,
            "window": self.max_prompt_tokens,
            "list_actions": self.list_actions,
            "brief": brief,
        }

    def bank_trajectories(self, path: str, method: str) -> tuple[Trajectory, ...]:
        """The trajectories of a bank, read once as long as the file stays the same; none without a path.

        Raises:
            UserError: the file is no bank, or holds nothing of this environment.
        """
        if not path:
            return ()
        bank = load_bank(Path(path), mtime_ns(path))
        if not any(trajectory.domain == self.environment.name for trajectory in bank):
            raise UserError(
                f"{method}: {path} holds no trajectory of {self.environment.name}; it has those of {bank[0].domain}"
            )
        return bank

    def success_threshold(self, success: float | None) -> float | None:
        """The return from which an attempt counts as a success: as given, or the environment's; None if nobody says.

        A judge's rewards are on a scale of their own, of which the environment's threshold says nothing.
        """
        return success if success is not None or self.judge else getattr(self.environment, "solved", None)

    def bank_success_threshold(self, success: float | None) -> float | None:
        """The return from which an attempt of a bank counts as a success; None if nobody says.

        A bank was made elsewhere: its rewards are those of the environment, whatever judges this run's attempts. Under a judge
        the `success` that was given is on the judge's scale, and says nothing of them.
        """
        return replace(self, judge=None).success_threshold(None if self.judge else success)

    def success_predicate(self, success: float | None, bank: Sequence[Trajectory]) -> Callable[[Trajectory], bool | None]:
        """Whether an attempt, one of this bank's or of this run, succeeded; None where nobody knows."""
        ids = {trajectory.id for trajectory in bank}
        in_bank, own = reaches_return(self.bank_success_threshold(success)), reaches_return(self.success_threshold(success))
        return lambda attempt: (in_bank if attempt.id in ids else own)(attempt)

    @property
    def max_prompt_tokens(self) -> int:
        """Tokens of the longest prompt, without what stands around what is shown."""
        return self.window - (min(DEFAULT_RESERVE, self.window // 4) if self.reserved_tokens is None else self.reserved_tokens)

    def acting_policy(self, seen: PromptView, prompt: str) -> Node:
        """A policy that writes with this prompt; the usual one, for a model that only scores actions."""
        return self.make_writing_policy(seen, prompt) if self.make_writing_policy else self.make_policy(seen)

    def require_chat_model(self, method: str) -> Runnable[Any, Any]:
        """The chat model, for a method that cannot do without.

        Raises:
            UserError: there is none.
        """
        if self.model is None:
            raise UserError(f"{method} has a model write; use --model pocket, local:PATH or openai:NAME, not a uniform prior")
        return self.model

    def require_writer(self, method: str) -> Callable[[PromptView, str], Node]:
        """What makes policies that write, for a method that cannot do without.

        Raises:
            UserError: the model only scores actions.
        """
        if self.make_writing_policy is None:
            raise UserError(f"{method} reasons in writing before it acts; give a model that writes (--model openai:NAME)")
        return self.make_writing_policy
