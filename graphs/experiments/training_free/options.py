"""Options of runs whose methods learn on some problems and play others (Training-Free GRPO), and the problems of each seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Literal

from ....memory.errors import CommandError, UserError
from ....memory.records import Task
from ...arms import Arm
from ..options import RunOptions
from ..run_inputs import shared_environment

if TYPE_CHECKING:
    from ....nodes.cached_model import Prices

__all__ = ["LearningOptions", "learning_options", "problem_split"]

ROLLOUT_STAGES = ("rollout", "trial", "test")
"""Stages in which the acting model plays."""
TOOL_NAMES = ("python", "search", "web", "page")
"""Tools that a model may be given."""
_LEAST: Mapping[str, float] = {
    **dict.fromkeys(("test_problems", "test_rollouts", "workers", "concurrency", "tool_turns", "horizon", "window"), 1),
    **dict.fromkeys(("critic_temperature", "test_temperature", "critic_price_in", "critic_price_out"), 0),
}
"""Option -> its least value."""


@dataclass(frozen=True)
class LearningOptions(RunOptions):
    """Options of a run that learns on some problems and plays unseen ones, with its controls."""

    env: str = "toy"
    """The environment: `toy`, `math`, `twx:GAME` … (see `learngraph list`). In the toy a problem is a variant of
    the seed's task: the same hidden rules in another order. In other environments problems are tasks of the folds train, dev (held out)
    and test (unseen), and no two seeds share one."""
    compare: tuple[str, ...] = ()
    """The methods that it is compared with: `METHOD`, or with other settings `METHOD?SETTING=VALUE`, on the same unseen problems.
    Controls: `training-free-grpo?arm=empty` (no lessons), `training-free-grpo?arm=random` (or `shuffled`, or `self-generated`). Other
    ways to learn: `training-free-grpo?truth=implicit`, `training-free-grpo:paper`. Other methods that play one attempt: `react`."""
    critic: str | None = None
    """The model that compares rollouts and edits the library; the acting one if not given. One whose actions are scored then
    writes a single line of what it learned, and the rest works by code; named here as well, it is asked as a critic."""
    critic_temperature: float = 0.0
    """The critic's temperature. The acting model has --temperature."""
    test_temperature: float | None = None
    """Temperature of the test; that of the accept test (--trial.temperature) if not given. The paper tests at 0.3."""
    test_problems: int = 20
    """Unseen problems of each seed, on which all arms are compared."""
    test_rollouts: int = 5
    """Rollouts of each of them, for the mean and Pass@k. The paper has 32."""
    test_env: str | None = None
    """The environment of the unseen problems, if not --env: `math?file=PATH`."""
    curve: bool = False
    """Play the unseen problems with the library of every learning step, too. It takes as many rollouts again for each."""
    tools: str = ""
    """Tools that a model may call while it works on a problem with one written answer, joined by commas: `python`, `search` (of
    --corpus, offline), `web` (with TAVILY_API_KEY), `page` (reads a page of --corpus; with `web`, of the web too)."""
    corpus: Path | None = None
    """The passages that the tools `search` and `page` find: a JSONL file with `text`, `title` and `url`, or a folder of pages; those of
    `hotpot` if not given."""
    tool_turns: int | None = None
    """The number of times that a model with tools is asked in a rollout at most, also in an arm tool-agent; 20 if not given. The paper: 50 for
    mathematics, 20 for the web."""
    critic_base_url: str | None = None
    """The server behind the critic; the same if not given."""
    critic_price_in: float | None = None
    """The same for the critic; those of the model if not given."""
    critic_price_out: float | None = None
    """See --critic-price-in."""

    # Options of methods that learn while they play. Here an episode is a rollout of an unseen problem, and each stage has a
    # temperature of its own.
    episodes: int = field(init=False, default=0)
    split: Literal["train", "dev", "test"] = field(init=False, default="test")
    judge: str = field(init=False, default="environment")
    reference: Path | None = field(init=False, default=None)
    max_run_tokens: int = field(init=False, default=0)
    memory: str | None = field(init=False, default=None)
    checkpoints: str | None = field(init=False, default=None)
    model_temperature: float | None = field(init=False, default=None)
    sizes: tuple[int, int] = field(init=False, default=(0, 0))
    """The greatest numbers of problems that an arm learns on, and holds out; see `learning_options`."""
    sends_temperature: bool = field(init=False, default=True)
    """False if no request names a temperature (`--temperature none`)."""
    timeout: float | None = field(init=False, default=None)
    """Seconds that a rollout of a method without a library may take; see `learning_options`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not low <= value < math.inf:
                raise CommandError(f"--{name.replace('_', '-')} is at least {low:g}, got {value:g}")
        if wrong := [tool for tool in self.tool_names if tool not in TOOL_NAMES]:
            raise CommandError(f"--tools is {', '.join(TOOL_NAMES)}, or several of them joined by commas; got {wrong[0]!r}")
        if self.tool_turns is not None and not self.tool_names:
            raise CommandError(f"--tool-turns {self.tool_turns} is for models with tools, and none are given (--tools python)")
        if self.corpus is not None and not {"search", "page"}.intersection(self.tool_names):
            raise CommandError(
                f"--corpus {self.corpus} is for the tools search and page, and neither is given (--tools search)"
            )
        object.__setattr__(self, "episodes", self.test_problems * self.test_rollouts)

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The names of the tools, in the order given."""
        return tuple(name.strip() for name in self.tools.split(",") if name.strip())

    @property
    def has_prices(self) -> bool:
        """True if a price of the model or of the critic is known."""
        return bool(super().has_prices or self.critic_price_in or self.critic_price_out)

    def stage_prices(self, stage: str) -> Prices:
        """The prices of a stage's calls: those of the model that is asked in it."""
        of_model = super().stage_prices(stage)
        if stage in ROLLOUT_STAGES:
            return of_model
        read, written = self.critic_price_in, self.critic_price_out
        return replace(of_model, **{n: one for n, one in (("input", read), ("output", written)) if one is not None})

    @property
    def critic_model(self) -> str:
        """The critic's model."""
        return self.critic or self.model


def learning_arms(arms: Mapping[str, Arm]) -> dict[str, Any]:
    """Name -> settings of the arms with a library, be it empty."""
    return {name: arm.settings for name, arm in arms.items() if hasattr(arm.settings, "arm")}


def learning_options(options: LearningOptions, arms: Mapping[str, Arm]) -> LearningOptions:
    """The options with what a job is to know of the other arms, so that all play the same problems in the same way."""
    known, learning = [*learning_arms(arms).values()], [arm.settings for arm in arms.values() if arm.method.has_training_phase]
    if not learning:
        raise CommandError(
            f"{', '.join(arms)}: asks no model, and the other methods learn before they play with one; leave it out"
        )
    found, learning = options, [one for one in learning if one.problems]
    if known and options.test_temperature is None:
        found = replace(options, test_temperature=known[0].trial.temperature)
    sizes = (max((getattr(one, name) for one in learning), default=0) for name in ("problems", "held_out"))
    object.__setattr__(found, "sizes", tuple(sizes))
    object.__setattr__(found, "sends_temperature", all(one.temperature is not None for one in known))
    object.__setattr__(found, "timeout", known[0].rollouts.timeout if known else None)
    return found


# The problems

_SIZE_FLAGS = ("--problems", "--held-out", "--test-problems")
"""Flags of the numbers of problems that are learned on, held out and unseen."""


@dataclass(frozen=True)
class ProblemSplit:
    """The problems of a seed. No problem is in two of the three parts."""

    train: tuple[Task, ...]
    held_out: tuple[Task, ...]
    test: tuple[Task, ...]

    def for_settings(self, settings: Any) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
        """The problems that an arm with these settings learns on, and those that it holds out."""
        return self.train[: settings.problems], self.held_out[: settings.held_out if settings.problems else 0]


def problem_split(options: LearningOptions, seed: int) -> ProblemSplit:
    """The problems of a seed.

    Raises:
        UserError: the environment has fewer problems, or two of them are the same.
    """
    counts = (*options.sizes, options.test_problems)
    environment = shared_environment(options.env, options.horizon)
    tested = environment if options.test_env is None else shared_environment(options.test_env, options.horizon)
    if hasattr(environment, "variant") and tested is environment:
        return _variants(environment, seed, counts)
    parts = zip((environment, environment, tested), ("train", "dev", "test"), counts, _SIZE_FLAGS, strict=True)
    found = ProblemSplit(*(_tasks(world, fold, count, seed, flag) for world, fold, count, flag in parts))
    _check_distinct(environment, found)
    return found


def _variants(environment: Any, seed: int, counts: Sequence[int]) -> ProblemSplit:
    """Variants of the seed's task: the same rules in different orders."""
    stem, seen, numbers = environment.task(seed), set[Any](), iter(range(1, 100_000))

    def some(count: int) -> Iterator[Task]:
        while count:
            task = environment.variant(stem, next(numbers))
            if (path := environment.gold(task)) not in seen:  # an order that was drawn before would be the same problem
                seen.add(path)
                count -= 1
                yield task

    return ProblemSplit(*(tuple(some(count)) for count in counts))


def _tasks(world: Any, fold: str, count: int, seed: int, flag: str) -> tuple[Task, ...]:
    """The problems of a seed from a fold: numbers that no other seed has.

    Where the fold has an end they are a random draw from it, the same in every run; where it has none, they come in its order.
    """
    first = seed * count
    size = world.size(fold) if hasattr(world, "size") else 0
    order = list(range(max(size, first + count)))
    if first + count <= size:
        Random(f"problems of {fold}").shuffle(order)
    try:
        return tuple(world.task(n, fold) for n in order[first : first + count])
    except UserError as error:
        raise UserError(
            f"{world.name}: seed {seed} is to have {count} tasks of {fold} from number {first} on, and there are not so many "
            f"({error}); ask for fewer ({flag}) or fewer seeds"
        ) from error


def _check_distinct(environment: Any, split: ProblemSplit) -> None:
    """Check that no problem is there twice: it could be learned on and tested on."""
    seen: dict[str, str] = {}
    for task in (*split.train, *split.held_out, *split.test):
        text = " ".join(task.instruction.split()) if hasattr(environment, "read") else task.id
        if text in seen:
            raise UserError(
                f"{environment.name}: problems {seen[text]} and {task.id} say the same; remove the copies from the data, or ask for "
                "fewer problems"
            )
        seen[text] = task.id
