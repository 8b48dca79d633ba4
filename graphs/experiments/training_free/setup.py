"""The setup of a run of Training-Free GRPO: its options, its arms, and the problems of each seed.

The environment, the models and the tools of a run are opened here, once in a process.

Part of the command line: it joins tools to graphs. Slow imports stand inside the functions that need them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....memory.errors import CommandError, UserError
from ....memory.records import Task
from ..folder import run_stem
from ..options import ModelOptions, SharedOptions

if TYPE_CHECKING:
    from ....nodes.cached_model import Prices

__all__ = ["LibraryArm", "ProblemSplit", "TrainingFreeOptions", "TrainingFreeSetup", "problem_splits"]

TOOL_NAMES = ("python", "search", "web")
"""Tools that a model may be given."""

ROLLOUT_STAGES = ("rollout", "trial", "test")
"""Stages in which the acting model plays."""


@dataclass(frozen=True)
class TrainingFreeOptions(SharedOptions):
    """Options of the study of Training-Free GRPO: learning, its controls, and the test on unseen problems."""

    env: str = "toy"
    """The environment: `toy`, `math`, `reasoning:NAME`, `twx:GAME` … (see `learngraph list`). In the toy a problem is a variant of
    the seed's task: the same hidden rules in another order. In other environments problems are tasks of --splits, and no two seeds
    share one."""
    compare: tuple[str, ...] = ()
    """The methods that it is compared with: `METHOD`, or with other settings `METHOD?SETTING=VALUE`, on the same unseen problems.
    Controls: `training-free-grpo:empty` (no lessons), `training-free-grpo?arm=random` (or `shuffled`, or `self-generated`). Other
    ways to learn: `training-free-grpo?truth=majority`, `training-free-grpo:paper`. Other methods that play one attempt: `react`."""
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
    """Rollouts of each of them, for Mean@k and Pass@k. The paper has 32."""
    test_env: str | None = None
    """The environment of the unseen problems, if not --env: `math?file=PATH`."""
    splits: str = "train,dev,test"
    """The folds of the world's tasks that are learned on, held out, and unseen. They may be the same: `dev,dev,dev` takes different
    tasks of one fold for each, where folds have nothing in common that could be learned."""
    same_problems: bool = False
    """Give every seed the same problems, where there are few: then seeds differ in their draws alone."""
    curve: bool = False
    """Play the unseen problems with the library of every learning step, too. It takes as many rollouts again for each."""
    tools: str = ""
    """Tools that a model may call while it works on a problem with one written answer, joined by commas: `python`, `search` (of
    --corpus, offline), `web` (with TAVILY_API_KEY or SERPAPI_API_KEY)."""
    corpus: Path | None = None
    """The passages that the tool `search` finds: a JSONL file with `title` and `text`; the passages of `hotpot` if not given."""
    tool_turns: int | None = None
    """The number of times that a model with tools is asked in a rollout at most, also in an arm tool-agent; 20 if not given. The paper: 50 for
    mathematics, 20 for the web."""
    critic_base_url: str | None = None
    """The server behind the critic; the same if not given."""
    critic_price_in: float | None = None
    """The same for the critic; those of the model if not given."""
    critic_price_out: float | None = None
    """See --critic-price-in."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model_temperature is not None:
            raise CommandError(
                "here each stage has a temperature of its own: --temperature, --trial.temperature, --test-temperature, "
                "--critic-temperature; there is no --model-temperature"
            )
        least: Mapping[str, float] = {
            "test_problems": 1,
            "test_rollouts": 1,
            "workers": 1,
            "concurrency": 1,
            "tool_turns": 1,
            "horizon": 1,
            "window": 1,
            "critic_temperature": 0,
            "test_temperature": 0,
            "critic_price_in": 0,
            "critic_price_out": 0,
        }
        for name, low in least.items():
            given = getattr(self, name)
            if given is not None and not low <= given < math.inf:
                raise CommandError(f"--{name.replace('_', '-')} is at least {low:g}, got {given:g}")
        for tool in self.tool_names:
            if tool not in TOOL_NAMES:
                raise CommandError(
                    f"--tools is {', '.join(TOOL_NAMES)}, or several of them joined by commas; got {self.tools!r}"
                )
        if len(self.folds) != 3 or not {"train", "dev", "test"}.issuperset(self.folds):
            raise CommandError(f"--splits names three of train, dev and test, such as train,dev,test; got {self.splits!r}")

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The names of the tools, in the order given."""
        return tuple(name.strip() for name in self.tools.split(",") if name.strip())

    @property
    def folds(self) -> tuple[str, ...]:
        """The splits of the problems that are learned on, held out, and unseen."""
        return tuple(name.strip() for name in self.splits.split(","))

    @property
    def has_prices(self) -> bool:
        """True if a price of the model or of the critic is known."""
        return bool(super().has_prices or self.critic_price_in or self.critic_price_out)

    @property
    def critic_model(self) -> str:
        """The critic's model."""
        return self.critic or self.model

    @property
    def critic_url(self) -> str | None:
        """The server behind the critic; None for a local one."""
        if not self.critic_model.startswith("openai:"):
            return None
        return self.critic_base_url or self.base_url

    def prices(self, stage: str) -> Prices:
        """The prices of a stage's calls, in dollars per million tokens."""
        from ....nodes.cached_model import Prices

        if stage in ROLLOUT_STAGES:
            return Prices(self.price_in, self.price_out)
        return Prices(
            self.price_in if self.critic_price_in is None else self.critic_price_in,
            self.price_out if self.critic_price_out is None else self.critic_price_out,
        )


@dataclass(frozen=True)
class LibraryArm:
    """An arm of the comparison: one way to make a library, or a method without a library. A row of the table."""

    name: str
    """As on the command line: `training-free-grpo?arm=shuffled`."""
    settings: Any
    """`TrainingFreeGRPO`, or the settings of another method."""
    method: str
    """Name of the method in `graphs.methods`."""

    @property
    def library_source(self) -> str:
        """The way in which its library is made (`TrainingFreeGRPO.arm`); `method` for another method, which has no library."""
        return str(getattr(self.settings, "arm", "method"))

    @property
    def learns(self) -> bool:
        """True if it learns from rollouts."""
        return self.library_source == "learned"

    @property
    def title(self) -> str:
        """Its name in tables, with the remark of its settings."""
        remark = getattr(self.settings, "remark", "") if self.learns else ""
        return f"{self.name} ({remark})" if remark else self.name


@dataclass(frozen=True)
class ProblemSplit:
    """The problems of a seed. No problem is in two of the three parts."""

    train: tuple[Task, ...]
    held_out: tuple[Task, ...]
    test: tuple[Task, ...]

    def for_settings(self, settings: Any) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
        """The problems that an arm with these settings learns on, and those that it holds out."""
        return self.train[: settings.problems], self.held_out[: settings.held_out]


@dataclass(frozen=True)
class TrainingFreeSetup:
    """The setup of a run; every worker gets one."""

    options: TrainingFreeOptions
    arms: tuple[LibraryArm, ...]
    """The first arm is the one asked for; the others are compared with it."""
    seeds: tuple[int, ...]
    folder: Path

    def arm_folder(self, arm: LibraryArm, seed: int) -> Path:
        """The folder of an arm's seed."""
        return self.folder / f"{run_stem(arm.name)}-s{seed}"

    def is_finished(self, arm: LibraryArm, seed: int) -> bool:
        """True if the arm has played its test."""
        return (self.arm_folder(arm, seed) / "result.json").exists()

    def result(self, arm: LibraryArm, seed: int) -> dict[str, Any]:
        """The result of a finished arm (result.json)."""
        found: dict[str, Any] = json.loads((self.arm_folder(arm, seed) / "result.json").read_text(encoding="utf-8"))
        return found

    @property
    def unfinished_seeds(self) -> list[int]:
        """The seeds with an arm that is not finished."""
        return [seed for seed in self.seeds if not all(self.is_finished(arm, seed) for arm in self.arms)]

    @property
    def baseline_title(self) -> str:
        """The title of the arm that the others are compared with, one without lessons; empty without such an arm."""
        same_rollouts = "tool-agent" if self.options.tool_names else "react"  # the rollouts without a library
        empty = [arm for arm in self.arms if arm.library_source == "empty"]
        without = empty or [arm for arm in self.arms if arm.method == same_rollouts]
        return without[0].title if without else ""


# Environment, models and tools


@lru_cache(maxsize=2)
def shared_world(spec: str, horizon: int | None) -> Any:
    """The environment of this name, opened once in a process; with its own horizon if none is given."""
    from ....tools.environments.catalogue import open_environment

    return open_environment(spec, horizon=horizon)


@lru_cache(maxsize=8)
def shared_model(spec: str, base_url: str | None, options: ModelOptions, temperature: float | None) -> Any:
    """The model of this name, opened once in a process for each combination of arguments."""
    from ....tools.models.models import open_model

    asked = options.model_arguments() | {"base_url": base_url, "temperature": temperature}
    if not spec.startswith("openai:"):
        asked |= {"reasoning_effort": None, "extra_body": None}  # they are the other model's, which is behind an API
    return open_model(spec, **asked, threads=1)


@lru_cache(maxsize=2)
def shared_toolbox(names: tuple[str, ...], corpus: Path | None) -> Any:
    """The tools of these names; None without any."""
    from ....tools.agent_tools.interpreter import Toolbox
    from ....tools.agent_tools.search import search_tool, web_search_tool

    made = {"search": lambda: search_tool(corpus), "web": web_search_tool}
    if not names:
        return None
    return Toolbox(python={} if "python" in names else None, shared=tuple(made[name]() for name in names if name in made))


# The problems


def problem_splits(setup: TrainingFreeSetup) -> dict[int, ProblemSplit]:
    """The problems of each seed.

    Raises:
        UserError: the environment has fewer problems, or two of them are the same.
    """
    options, learning = setup.options, [arm.settings for arm in setup.arms if arm.library_source != "method"]
    counts = (max(s.problems for s in learning), max(s.held_out for s in learning), options.test_problems)
    most = [
        next((a.name for a in setup.arms if getattr(a.settings, f, 0) == c), "")
        for f, c in zip(SPLIT_SIZE_FIELDS, counts, strict=True)
    ]
    environment = shared_world(options.env, options.horizon)
    tested = environment if options.test_env is None else shared_world(options.test_env, options.horizon)
    found: dict[int, ProblemSplit] = {}
    seen: dict[Any, str] = {}
    for seed in setup.seeds:
        at = 0 if options.same_problems else seed
        if hasattr(environment, "variant") and tested is environment:
            found[seed] = _split_of_variants(environment, at, counts)
            continue
        worlds = (environment, environment, tested)
        found[seed] = ProblemSplit(*(_tasks(worlds, options, counts, at, n, most[n]) for n in range(3)))
        _check_distinct(environment, found[seed], {} if options.same_problems else seen)
    return found


def _split_of_variants(environment: Any, seed: int, counts: Sequence[int]) -> ProblemSplit:
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


SPLIT_SIZE_FIELDS = ("problems", "held_out", "test_problems")
"""The settings with the numbers of problems that are learned on, held out and unseen."""


def _tasks(
    worlds: Sequence[Any], options: TrainingFreeOptions, counts: Sequence[int], seed: int, position: int, arm: str
) -> tuple[Task, ...]:
    """The problems of a seed for one part of its split: numbers of the fold that no other part and no other seed has.

    Args:
        worlds: the environment of each part.
        options: the folds.
        counts: number of problems of each part.
        seed: the seed.
        position: the part: 0 learned on, 1 held out, 2 unseen.
        arm: name of the arm that asks for this number of problems.
    """
    world, fold, count = worlds[position], options.folds[position], counts[position]
    alike = [n for n in range(3) if worlds[n] is world and options.folds[n] == fold]
    first = seed * sum(counts[n] for n in alike) + sum(counts[n] for n in alike if n < position)
    try:
        return tuple(world.task(first + n, fold) for n in range(count))
    except UserError as error:
        raise UserError(
            f"{world.name}: seed {seed} is to have {count} tasks of {fold} from number {first} on, and there are not so many "
            f"({error}); ask for fewer (--{SPLIT_SIZE_FIELDS[position].replace('_', '-')}{f', of {arm}' if arm else ''}) or fewer seeds, or give "
            "--same-problems"
        ) from error


def _check_distinct(environment: Any, split: ProblemSplit, seen: dict[Any, str]) -> None:
    """Check that no problem is there twice, in this or an earlier seed: it could be learned on and tested on.

    Args:
        environment: the environment. In one with written answers, two problems with one text are the same.
        split: the problems of a seed.
        seen: problems of the seeds before; those of this seed are added.

    Raises:
        UserError: two problems are the same.
    """
    for task in (*split.train, *split.held_out, *split.test):
        text = " ".join(task.instruction.split()) if hasattr(environment, "answer") else task.id
        if (other := seen.get(text)) is not None:
            same = f"problems {other} and {task.id} say the same" if other != task.id else f"problem {task.id} is there twice"
            raise UserError(f"{environment.name}: {same}; remove the copies from the data, or ask for fewer problems or seeds")
        seen[text] = task.id
