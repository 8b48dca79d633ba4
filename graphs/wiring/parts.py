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

from ...memory.experiences import TrajectoryShelf
from ...memory.records import Trajectory, UserError
from ...memory.storage.journal import Journal
from ...memory.trajectories import read_bank
from ...nodes.act.episode import Environment
from ...nodes.act.policies import LocalPolicy, Scorer, Seen, UniformPolicy, act_policy, answer_policy
from ...nodes.ask import estimated
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
WINDOW = 32_768
"""Tokens of the window of a model that does not say."""


RESERVE = 4_096
"""Tokens of such a window that are left for the system message, the template and the reply (a long chain of thought, say)."""


def chosen(settings: Any, method: str) -> None:
    """Check that settings which are one of several words are one of them.

    Raises:
        UserError: naming the setting, what came, and what would do.
    """
    for name, hint in get_type_hints(type(settings)).items():
        if get_origin(hint) is Literal and getattr(settings, name) not in get_args(hint):
            raise UserError(f"{method}: {name} is one of {', '.join(get_args(hint))}, got {getattr(settings, name)!r}")


@lru_cache(maxsize=4)
def opened(bank: Path, stamp: int) -> tuple[Trajectory, ...]:
    """The trajectories of a file as it was `written`: many runs of a process start from one bank."""
    return read_bank(bank)


def written(bank: str) -> int:
    """When a file was written last, in nanoseconds; 0 if there is none."""
    file = Path(bank)
    return file.stat().st_mtime_ns if file.exists() else 0


def ended(least: float | None) -> Callable[[Trajectory], bool | None]:
    """Whether an attempt reached this return; None where nobody knows."""
    return lambda attempt: None if least is None or attempt.value is None else attempt.value >= least


def uniform(seen: Seen) -> Node:
    """A policy that looks at nothing: any admissible action."""
    return UniformPolicy()


class Scored(Scorer, Protocol):
    """A model in this process, such as `tools.local_model.LocalChatModel`."""

    @property
    def window(self) -> int: ...

    def get_num_tokens(self, text: str) -> int: ...


class Shown(TypedDict):
    """The arguments of `nodes.attempts.Running` that every method shares."""

    journal: Journal
    layout: Layout
    count: Callable[[str], int]
    window: int
    listed: bool
    brief: str


@dataclass(frozen=True)
class Parts:
    """What a method is put together from."""

    environment: Environment
    journal: Journal = field(default_factory=Journal)
    policy: Callable[[Seen], Node] = field(default=uniform, repr=False)
    """Makes the node that proposes candidates with logits, from what its prompts show."""
    shelf: TrajectoryShelf | None = None
    """Where finished episodes are kept for good; None keeps them in the process."""
    judge: Node | None = None
    """Rewards the steps of a finished episode; None: the environment's own rewards."""
    recent: int | None = None
    """How many earlier steps of the episode a policy without a method of its own is shown; None: all."""
    model: Runnable[Any, Any] | None = field(default=None, repr=False)
    """A chat model, for methods that have something written."""
    write: Callable[[Seen, str], Node] | None = field(default=None, repr=False)
    """Makes a policy that writes with a prompt of that name; None: the model only scores actions."""
    count: Callable[[str], int] = field(default=estimated, repr=False)
    """Tokens of a text, as the model counts."""
    window: int = WINDOW
    """Tokens of the longest prompt and reply together."""
    reserve: int | None = None
    """Tokens of it that are left for the system message, what the template adds, and the reply; 4096 if not given, but at most a
    quarter of the window."""
    listed: bool = False
    """Whether prompts list the admissible actions."""
    run: str = ""
    """Name of the run, where it is known beforehand: a bank with episodes of that name is refused before anything is played."""
    prompts: Path | None = None
    """A directory whose prompt files take the place of those of the same name."""

    @classmethod
    def scored(cls, environment: Environment, journal: Journal, model: Scored, **more: Any) -> Parts:
        """With a model in this process, which scores the admissible actions and counts its own tokens."""
        prompt = Prompt.load("act/score", more.get("prompts"))
        # The reply is an action: short. The system message of the prompt counts as it is.
        reserve = 64 + sum(model.get_num_tokens(template.template) for _, template in prompt.parts)
        ours: dict[str, Any] = {
            "recent": 0,
            "count": model.get_num_tokens,
            "window": model.window,
            "reserve": min(reserve, model.window // 4),
        }
        return cls(environment, journal, lambda seen: LocalPolicy(model, seen, prompt), model=cast(Any, model), **ours | more)

    @classmethod
    def written(
        cls, environment: Environment, journal: Journal, model: BaseChatModel, *, stepwise: bool = False, **more: Any
    ) -> Parts:
        """With a chat model, which writes: a whole answer where the environment can read one (it has `read`), else, or if
        `stepwise`, a thought and an action at every step."""
        read, prompts = None if stepwise else getattr(environment, "read", None), more.get("prompts")
        free = bool(getattr(environment, "free_text", hasattr(environment, "read")))

        def write(seen: Seen, name: str) -> Node:
            thinks = name == "react" or name.startswith("adamem/")  # before every action
            by_step = thinks and getattr(environment, "horizon", 1) > 1
            if read is None or by_step:
                return act_policy(model, seen, _ACTIONS.get(name, name), prompts, free=free, vote=_VOTES.get(name, ""))
            return answer_policy(model, seen, read, _ANSWERS.get(name, "act/answer"), prompts)

        ours: dict[str, Any] = {"recent": 20, "model": model, "write": write, "listed": read is None}
        return cls(environment, journal, lambda seen: write(seen, ""), **ours | more)

    def judged(self) -> Node:
        """The judge, or the environment's rewards."""
        return self.judge or EnvironmentJudge(self.journal)

    def running(self, layout: Layout = _LAYOUT, brief: str = "") -> Shown:
        """What `Running` and its kind need to know, by name.

        The running attempt is written as `layout` says, but without rewards where a judge will give them at the end, and with
        whole states for a model that writes: what it has read (a page, a passage) it needs at later steps, too.
        """
        rewards: Any = "none" if self.judge else layout.rewards
        return {
            "journal": self.journal,
            "layout": replace(layout, rewards=rewards, clip=None if self.write else layout.clip),
            "count": self.count,
            "window": self.room,
            "listed": self.listed,
            "brief": brief,
        }

    def banked(self, path: str, method: str) -> tuple[Trajectory, ...]:
        """The trajectories of a bank, read once as long as the file stays the same; none without a path.

        Raises:
            UserError: the file is no bank, or holds nothing of this environment.
        """
        if not path:
            return ()
        bank = opened(Path(path), written(path))
        if not any(trajectory.domain == self.environment.name for trajectory in bank):
            raise UserError(
                f"{method}: {path} holds no trajectory of {self.environment.name}; it has those of {bank[0].domain}"
            )
        return bank

    def least(self, success: float | None) -> float | None:
        """The return from which an attempt counts as a success: as given, or the environment's; None if nobody says.

        A judge's rewards are on a scale of their own, of which the environment's threshold says nothing.
        """
        return success if success is not None or self.judge else getattr(self.environment, "solved", None)

    def theirs(self, success: float | None) -> float | None:
        """The return from which an attempt of a bank counts as a success; None if nobody says.

        A bank was made elsewhere: its rewards are those of the environment, whatever judges this run's attempts. Under a judge
        the `success` that was given is on the judge's scale, and says nothing of them.
        """
        return replace(self, judge=None).least(None if self.judge else success)

    def outcome(self, success: float | None, bank: Sequence[Trajectory]) -> Callable[[Trajectory], bool | None]:
        """Whether an attempt, one of this bank's or of this run, succeeded; None where nobody knows."""
        ids = {trajectory.id for trajectory in bank}
        in_bank, own = ended(self.theirs(success)), ended(self.least(success))
        return lambda attempt: (in_bank if attempt.id in ids else own)(attempt)

    @property
    def room(self) -> int:
        """Tokens of the longest prompt, without what stands around what is shown."""
        return self.window - (min(RESERVE, self.window // 4) if self.reserve is None else self.reserve)

    def acting(self, seen: Seen, prompt: str) -> Node:
        """A policy that writes with this prompt; the usual one, for a model that only scores actions."""
        return self.write(seen, prompt) if self.write else self.policy(seen)

    def asked(self, method: str) -> Runnable[Any, Any]:
        """The chat model, for a method that cannot do without.

        Raises:
            UserError: there is none.
        """
        if self.model is None:
            raise UserError(f"{method} has a model write; use --model pocket, local:PATH or openai:NAME, not a uniform prior")
        return self.model

    def writer(self, method: str) -> Callable[[Seen, str], Node]:
        """What makes policies that write, for a method that cannot do without.

        Raises:
            UserError: the model only scores actions.
        """
        if self.write is None:
            raise UserError(f"{method} reasons in writing before it acts; give a model that writes (--model openai:NAME)")
        return self.write
