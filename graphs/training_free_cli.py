"""`learngraph run training-free-grpo`: learn a library of lessons on some problems, then play unseen ones with and without it.

    learngraph run training-free-grpo --env toy --model pocket --compare training-free-grpo:empty training-free-grpo:shuffled
    learngraph run training-free-grpo --env math --model openai:NAME --compare training-free-grpo:empty --dry-run

    <folder>/settings.json               what was asked for; another question needs another folder
    <folder>/cache.sqlite                every reply and every finished rollout of all arms and seeds: nothing is paid for twice
    <folder>/<arm>-s<seed>/library.jsonl every version of the library, and what became of every proposed edit
    <folder>/<arm>-s<seed>/library.yaml  the one that was tested, for people (and for --library)
    <folder>/<arm>-s<seed>/learned.jsonl one row per learning step
    <folder>/<arm>-s<seed>/steps.jsonl   one row per step of an episode
    <folder>/<arm>-s<seed>/test.jsonl    one row per rollout of the test
    <folder>/<arm>-s<seed>/checkpoints.sqlite
    <folder>/<arm>-s<seed>/result.json   written last: this arm is finished

All arms of a seed play the same unseen problems with the same run indices. A run may be killed at any point: the same command
goes on, and ends with the same numbers.

Part of the command line: it joins tools to graphs. What takes time to import stands where it is needed.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..memory.records import Rollout, Task, Usage, UserError
from .flags import CommandError, parse

if TYPE_CHECKING:
    from ..memory.library import Library, Versions
    from .evaluation import Outcome, Step

__all__ = ["learn"]

DERIVED = ("random", "shuffled")
"""Arms whose library is made from what the seed's first arm has learned."""


@dataclass(frozen=True)
class Learn:
    """What to learn on, with what, and how to test it."""

    env: str = "toy"
    """The world: `toy`, `math`, `reasoning:NAME`, `twx:GAME` … (see `learngraph list`). In the toy a problem is a variant of the
    seed's task: the same hidden rules in another order. In other worlds problems are tasks of --splits, and no seed gets those of
    another."""
    model: str = "pocket"
    """The model that acts: `pocket`, `local:PATH_OR_NAME`, `openai:MODEL`."""
    critic: str | None = None
    """The model that compares rollouts and edits the library; the acting one if not given. One whose actions are scored then
    writes a single line of what it learned, and the rest works by code; named here as well, it is asked as a critic."""
    critic_temperature: float = 0.0
    """The critic's temperature. The acting model has --temperature."""
    test_temperature: float | None = None
    """Temperature of the test; that of the accept test (--trial-temperature) if not given. The paper tests at 0.3."""
    seeds: str = "5"
    """How many seeds, or which ones: `5` is `0,1,2,3,4`; `7,` is seed 7 alone. Each has problems of its own, and learns anew."""
    compare: tuple[str, ...] = ()
    """Further arms on the same unseen problems. Controls: `training-free-grpo:empty` (no lessons), `:self-generated` (as many
    lessons, written without any rollout), `:random` and `:shuffled` (made of what this seed has learned). Other ways to learn:
    `:votes`, `:cheatsheet`, `:always`, `:no-truth`, `:rule`, `:paper`. Other methods that play one attempt, such as `react`."""
    test: int = 20
    """Unseen problems of each seed, on which all arms are compared."""
    k: int = 5
    """Rollouts of each of them, for Mean@k and Pass@k. The paper has 32."""
    test_env: str | None = None
    """Where the unseen problems come from, if not from --env: `math?dataset=NAME`."""
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
    """What the tool `search` finds: a JSONL file with `title` and `text`; the passages of `hotpot` if not given."""
    tool_turns: int | None = None
    """How often a model with tools is asked at most in a rollout, also in an arm tool-agent; 20 if not given. The paper: 50 for
    mathematics, 20 for the web."""
    horizon: int | None = None
    """Steps after which a rollout ends; the environment's own if not given."""
    max_tokens: int | None = None
    """Longest reply of a model that writes, in tokens; its own if not given."""
    window: int | None = None
    """Tokens of the model's window; a local model knows its own, others are taken to have 32768."""
    base_url: str | None = None
    """The server behind `openai:MODEL`."""
    critic_base_url: str | None = None
    """The server behind the critic; the same if not given."""
    prompts: Path | None = None
    """A directory whose prompt files take the place of those of the same name."""
    out: Path | None = None
    """The run folder; made from the settings under `runs/` if not given. The same command resumes what stands there."""
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Processes that work at the same time, each on a seed."""
    concurrency: int | None = None
    """Calls of models in flight in each process: 16 if not given, and 1 for a model in this process."""
    budget: int = 0
    """Tokens that this folder may pay for, read and written, of all seeds and arms. Then the run stops with what it has; with a
    larger budget the same command goes on. It is asked before each call: up to --workers times --concurrency calls in flight may
    exceed it. 0: no limit."""
    dollars: float = 0.0
    """The same in dollars. 0: no limit."""
    price_in: float = 0.0
    """Dollars per million tokens that the model reads."""
    price_out: float = 0.0
    """Dollars per million tokens that it writes."""
    critic_price_in: float | None = None
    """The same for the critic; those of the model if not given."""
    critic_price_out: float | None = None
    """See --critic-price-in."""
    dry_run: bool = False
    """Ask no model: say how many calls, tokens and dollars the run would take, and on what assumptions."""
    json: bool = False
    """Print one JSON object per arm to stdout, and nothing else."""

    def __post_init__(self) -> None:
        least: Mapping[str, float] = {
            "test": 1,
            "k": 1,
            "workers": 1,
            "concurrency": 1,
            "tool_turns": 1,
            "horizon": 1,
            "max_tokens": 1,
            "window": 1,
            "critic_temperature": 0,
            "test_temperature": 0,
            "budget": 0,
            "dollars": 0,
            "price_in": 0,
            "price_out": 0,
            "critic_price_in": 0,
            "critic_price_out": 0,
        }
        for name, low in least.items():
            given = getattr(self, name)
            if given is not None and not low <= given < math.inf:
                raise CommandError(f"--{name.replace('_', '-')} is at least {low:g}, got {given:g}")
        if self.dollars and not (self.price_in or self.price_out or self.critic_price_in or self.critic_price_out):
            raise CommandError(f"--dollars {self.dollars:g} needs --price-in and --price-out, in dollars per million tokens")
        for tool in self.asked_tools:
            if tool not in TOOLS:
                raise CommandError(f"--tools is {', '.join(TOOLS)}, or several of them joined by commas; got {self.tools!r}")
        if len(self.folds) != 3 or not {"train", "dev", "test"}.issuperset(self.folds):
            raise CommandError(f"--splits names three of train, dev and test, such as train,dev,test; got {self.splits!r}")

    @property
    def asked_tools(self) -> tuple[str, ...]:
        """The names of the tools."""
        return tuple(name.strip() for name in self.tools.split(",") if name.strip())

    @property
    def folds(self) -> tuple[str, ...]:
        """Splits of what is learned on, held out, and unseen."""
        return tuple(name.strip() for name in self.splits.split(","))

    @property
    def judges(self) -> str:
        """The critic's model."""
        return self.critic or self.model


TOOLS = ("python", "search", "web")


@dataclass(frozen=True)
class Arm:
    """One way to get a library, or a method without one: a row of the table."""

    name: str
    """As on the command line: `training-free-grpo:shuffled`."""
    settings: Any
    """`TrainingFreeGRPO`, or the settings of another method."""
    method: str
    """Name of the method in `graphs.methods`."""

    @property
    def way(self) -> str:
        """How its library comes about (`TrainingFreeGRPO.arm`); `method`: another method, which has none."""
        return str(getattr(self.settings, "arm", "method"))

    @property
    def learns(self) -> bool:
        """Whether it plays rollouts on problems to learn from."""
        return self.way == "learned"

    @property
    def title(self) -> str:
        """Its name in tables, with what its settings say must stand there."""
        remark = getattr(self.settings, "remark", "") if self.learns else ""
        return f"{self.name} ({remark})" if remark else self.name


@dataclass(frozen=True)
class Split:
    """The problems of a seed, no problem in two of them."""

    train: tuple[Task, ...]
    held_out: tuple[Task, ...]
    test: tuple[Task, ...]

    def of(self, settings: Any) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
        """What an arm with these settings learns from, and holds out."""
        return self.train[: settings.problems], self.held_out[: settings.held_out]


@dataclass(frozen=True)
class Setup:
    """What a worker needs to know."""

    options: Learn
    arms: tuple[Arm, ...]
    """The first one is what was asked for; the others are what it is compared with."""
    seeds: tuple[int, ...]
    folder: Path

    def place(self, arm: Arm, seed: int) -> Path:
        """The folder of an arm's seed."""
        return self.folder / f"{arm.name.replace(':', '-')}-s{seed}"

    @property
    def against(self) -> str:
        """Title of the arm that the others are measured against: without lessons."""
        alike = "tool-agent" if self.options.asked_tools else "react"  # what the rollouts are without a library
        without = [arm for arm in self.arms if arm.way == "empty"] or [arm for arm in self.arms if arm.method == alike]
        return without[0].title if without else ""


def learn(
    method: str,
    defaults: Any,
    args: Sequence[str],
    about: str,
    *,
    others: Callable[..., Any],
    seeds: Callable[[str], list[int]],
    blueprint: Callable[[str, Any], Any],
) -> int:
    """Learn and test; what `learngraph run` does with methods that learn across problems.

    Args:
        method: as on the command line.
        defaults: its settings where no flag says something else.
        args: the flags after it.
        about: what --help says first.
        others: (method or method:preset, main=(method, its settings), shared={setting: value}) -> the settings of an arm to compare
            with; it is given what the user gave, but for what its own preset changes.
        seeds: what `--seeds` says as numbers.
        blueprint: (method, settings) -> its graph, to look at.
    """
    form = make_dataclass(
        "form",
        [
            ("options", Learn, field(default_factory=Learn)),
            ("settings", type(defaults), field(default_factory=lambda: defaults)),
        ],
    )
    asked = parse(form, args, f"learngraph run {method}", about)
    options: Learn = asked.options
    arms = [Arm(method, asked.settings, method.partition(":")[0])]
    given = {
        one.name: value
        for one in fields(defaults)
        if one.name != "arm" and (value := getattr(asked.settings, one.name)) != getattr(defaults, one.name)
    }
    for name in dict.fromkeys(options.compare):
        if name != method:
            kind = name.partition(":")[0]
            shared = given if kind == arms[0].method else {}
            settings = others(name, main=(method, asked.settings), shared=shared)
            if kind == "tool-agent" and options.tool_turns is not None:
                settings = replace(settings, turns=options.tool_turns)
            arms.append(Arm(name, settings, kind))
    _check_arms(arms, options)
    setup = Setup(options, tuple(arms), tuple(seeds(options.seeds)), Path())
    splits = _splits(setup)
    settings = _recorded(setup, splits)
    setup = replace(setup, folder=options.out or Path("runs") / _folder_name(setup, settings))
    if options.dry_run or not _all_finished(setup):
        _check_models(setup)
        _rehearse(setup, splits)
    if options.dry_run:
        return _dry_run(setup, settings)
    return _run(setup, settings, splits, blueprint)


def _check_arms(arms: Sequence[Arm], options: Learn) -> None:
    from .methods import method

    if arms[0].way in DERIVED:
        raise CommandError(
            f"{arms[0].way}: such a library is made of what another arm has learned; compare with it: learngraph run "
            f"{arms[0].method} --compare {arms[0].method}:{arms[0].way}"
        )
    for arm in arms[1:]:
        if arm.way == "method" and method(arm.method).remembers:
            raise CommandError(
                f"--compare {arm.name}: it learns from attempts at one problem, and here each problem is met once; react does, or "
                f"a preset of {arms[0].method} such as {arms[0].method}:empty"
            )
        if arm.way in DERIVED and not arms[0].learns:
            raise CommandError(
                f"--compare {arm.name}: it is made of what {arms[0].name} learned, which learns nothing; leave out --arm"
            )
    if options.tool_turns is not None and not options.asked_tools:
        raise CommandError(f"--tool-turns {options.tool_turns} is for models with tools, and none are given (--tools python)")
    if options.corpus is not None and "search" not in options.asked_tools:
        raise CommandError(f"--corpus {options.corpus} is what the tool search finds, and it is not given (--tools search)")


# The problems


def _splits(setup: Setup) -> dict[int, Split]:
    """The problems of each seed.

    Raises:
        UserError: there are not so many, or two of them are the same.
    """
    options, learning = setup.options, [arm.settings for arm in setup.arms if arm.way != "method"]
    counts = (max(s.problems for s in learning), max(s.held_out for s in learning), options.test)
    most = [
        next((a.name for a in setup.arms if getattr(a.settings, f, 0) == c), "") for f, c in zip(PARTS, counts, strict=True)
    ]
    environment = _environment(options.env, options.horizon)
    tested = environment if options.test_env is None else _environment(options.test_env, options.horizon)
    found: dict[int, Split] = {}
    seen: dict[Any, str] = {}
    for seed in setup.seeds:
        at = 0 if options.same_problems else seed
        if hasattr(environment, "variant") and tested is environment:
            found[seed] = _variants(environment, at, counts)
            continue
        worlds = (environment, environment, tested)
        found[seed] = Split(*(_tasks(worlds, options, counts, at, n, most[n]) for n in range(3)))
        _distinct(environment, found[seed], {} if options.same_problems else seen)
    return found


def _variants(environment: Any, seed: int, counts: Sequence[int]) -> Split:
    """Variants of the seed's task: the same rules in different orders."""
    stem, seen, numbers = environment.task(seed), set[Any](), iter(range(1, 100_000))

    def some(count: int) -> Iterator[Task]:
        while count:
            task = environment.variant(stem, next(numbers))
            if (path := environment.gold(task)) not in seen:  # an order that was drawn before is no other problem
                seen.add(path)
                count -= 1
                yield task

    return Split(*(tuple(some(count)) for count in counts))


PARTS = ("problems", "held_out", "test")
"""What says how many problems are learned on, held out and unseen."""


def _tasks(worlds: Sequence[Any], options: Learn, counts: Sequence[int], seed: int, part: int, arm: str) -> tuple[Task, ...]:
    """The problems of a seed that are learned on (part 0), held out (1) or unseen (2): numbers of the fold that no other part and
    no other seed has. `arm`: the one that asks for so many."""
    world, fold, count = worlds[part], options.folds[part], counts[part]
    alike = [n for n in range(3) if worlds[n] is world and options.folds[n] == fold]
    first = seed * sum(counts[n] for n in alike) + sum(counts[n] for n in alike if n < part)
    try:
        return tuple(world.task(first + n, fold) for n in range(count))
    except UserError as error:
        raise UserError(
            f"{world.name}: seed {seed} is to have {count} tasks of {fold} from number {first} on, and there are not so many "
            f"({error}); ask for fewer (--{PARTS[part].replace('_', '-')}{f', of {arm}' if arm else ''}) or fewer seeds, or give "
            "--same-problems"
        ) from error


def _distinct(environment: Any, split: Split, seen: dict[Any, str]) -> None:
    """Check that no problem is there twice, in any of the seeds: what is learned on one would be tested on itself.

    Args:
        environment: the world. With one written answer a problem is its text, in others there may be the same text on each.
        split: of a seed.
        seen: problems of the seeds before; those of this one are added.
    """
    for task in (*split.train, *split.held_out, *split.test):
        text = " ".join(task.instruction.split()) if hasattr(environment, "answer") else task.id
        if (other := seen.get(text)) is not None:
            same = f"problems {other} and {task.id} say the same" if other != task.id else f"problem {task.id} is there twice"
            raise UserError(f"{environment.name}: {same}; remove the copies from the data, or ask for fewer problems or seeds")
        seen[text] = task.id


# What makes the numbers what they are


FREE = (
    *("out", "workers", "concurrency", "json", "dry_run", "compare", "budget", "dollars"),
    *("price_in", "price_out", "critic_price_in", "critic_price_out"),
)
"""Options that change no number in the results."""


def _recorded(setup: Setup, splits: Mapping[int, Split]) -> dict[str, Any]:
    """Settings with digests of what lies in files: where one changes, so does the run, and needs another folder."""
    from importlib.metadata import version

    from ..memory.library import located
    from .training_free_grpo import PROMPTS

    options = {name: value for name, value in asdict(setup.options).items() if name not in FREE}
    told = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    server = setup.options.base_url or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE")
    used = (setup.options.model, setup.options.judges)
    return {
        **told,
        "base_url": _public(server) if any(model.startswith("openai:") for model in used) else None,
        "critic_base_url": _public(setup.options.critic_base_url),
        "seeds": list(setup.seeds),
        "arms": {arm.name: asdict(arm.settings) for arm in setup.arms},
        "digests": {
            "problems": _digest([_contents(setup.options, split) for split in splits.values()]),
            **{f"model {model}": _weights(model) for model in dict.fromkeys(used) if not model.startswith("openai:")},
            **{f"library {path}": _file(located(path), "--library") for path in _libraries(setup)},
            **{
                name: _files(path, f"--{name}")
                for name, path in (("corpus", setup.options.corpus), ("prompts", setup.options.prompts))
                if path
            },
            "prompts of the package": _digest(
                [_files(Path(__file__).parents[1] / "nodes" / "prompts" / name) for name in PROMPTS]
            ),
        },
        "version": version("learngraph"),
    }


def _contents(options: Learn, split: Split) -> list[Any]:
    """The problems of a seed with their answers, where there is one."""
    tested = _environment(options.test_env or options.env, options.horizon)
    worlds = ((split.train + split.held_out, _environment(options.env, options.horizon)), (split.test, tested))
    return [
        [asdict(task), list(world.gold(task)) if hasattr(world, "answer") and hasattr(world, "gold") else []]
        for tasks, world in worlds
        for task in tasks
    ]


def _public(url: str | None) -> str | None:
    """A server's address without what is secret in it."""
    from urllib.parse import urlsplit, urlunsplit

    if not url:
        return None
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _libraries(setup: Setup) -> list[str]:
    return list(dict.fromkeys(filter(None, (getattr(arm.settings, "library", "") for arm in setup.arms))))


def _digest(value: Any) -> str:
    import hashlib

    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


def _file(path: Path, flag: str = "") -> str:
    import hashlib

    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
    except OSError as error:
        raise CommandError(f"{flag} {path}: cannot be read ({error.strerror or error})".strip()) from error


def _files(path: Path, flag: str = "") -> str:
    """Of a file, or of all files in a directory."""
    if path.is_dir():
        files = (file for file in sorted(path.rglob("*")) if file.is_file())
        return _digest({str(file.relative_to(path)): _file(file, flag) for file in files})
    return _file(path, flag)


@lru_cache(maxsize=8)
def _weights(model: str) -> str:
    """Of a local model: by the names, sizes and times of its files, for they may be large. A hub name stands for itself."""
    from ..tools.models import POCKET

    place = POCKET if model == "pocket" else Path(model.partition(":")[2]).expanduser()
    if not place.is_dir():
        return model
    files = sorted(file for file in place.iterdir() if file.is_file())
    if model == "pocket":  # small, and its times say when it was installed
        return _digest([(file.name, _file(file)) for file in files])
    return _digest([(file.name, (found := file.stat()).st_size, found.st_mtime_ns) for file in files])


def _folder_name(setup: Setup, settings: Mapping[str, Any]) -> str:
    words = "-".join([setup.arms[0].name, setup.options.env, setup.options.model])
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', words).strip('-')}-{_digest(settings)[:6]}"


# Without asking anybody


@dataclass(frozen=True)
class Stage:
    """What a stage would take."""

    name: str
    calls: int
    read: float
    """Tokens read per call."""
    written: float

    @property
    def usage(self) -> Usage:
        """Of all its calls."""
        return Usage(self.calls, round(self.calls * self.read), round(self.calls * self.written))


TYPICAL: Mapping[str, tuple[float, float]] = {
    "rollout": (1500, 600),
    "summarise": (4000, 500),
    "contrast": (4000, 700),
    "discriminate": (8000, 200),
    "propose": (2500, 300),
    "consolidate": (6000, 1500),
    "invent": (2000, 1500),
}
"""Tokens read and written per call where nobody has measured them: of a model that reasons in writing, without tools."""
WITH_TOOLS = (8000, 700)
"""Of a call within a rollout with tools, which reads what the calls before it came to."""
TURNS = 6
"""Calls of a rollout with tools: the paper's agents called 5.9 tools on the problems they learned from."""
COMPARED = 0.5
"""Share of groups whose rollouts differ: what the public log of a run shows is 0.31."""


def _stages(setup: Setup, known: Mapping[str, Usage]) -> list[Stage]:
    """What the run would ask, if nothing of it were in the cache.

    Args:
        setup: the run.
        known: what was paid so far by stage: for tokens per call.
    """
    options, seeds = setup.options, len(setup.seeds)
    environment = _environment(options.env, options.horizon)
    scores = options.model.partition(":")[0] != "openai"
    plain = options.judges.partition(":")[0] != "openai"
    turns = _turns(setup, environment)
    counts: dict[str, float] = {}

    def add(stage: str, calls: float) -> None:
        if calls:
            counts[stage] = counts.get(stage, 0) + calls

    for arm in setup.arms:
        s = arm.settings
        if arm.learns:
            groups = s.epochs * s.problems
            steps = s.epochs * math.ceil(s.problems / (s.batch or s.problems))
            writes = s.author == "model"
            compared = groups * COMPARED
            add("rollout", groups * s.group * turns)
            add("discriminate", groups if s.truth == "self" else 0)
            add("summarise", compared * s.group if writes and not plain else 0)
            add("contrast", compared if writes else 0)
            add("propose", compared if writes and not plain else 0)
            add("consolidate", steps if writes and not plain and s.consolidate in ("model", "cheatsheet") else 0)
            add("trial", (steps + 1) * s.held_out * s.trials * turns if s.accept != "always" and s.held_out else 0)
            add("test", (steps - 1) * options.test * options.k * turns if options.curve else 0)
        add("invent", 1 if arm.way == "self-generated" else 0)
        add("test", options.test * options.k * turns)
    found = []
    for name, calls in counts.items():
        typical = WITH_TOOLS if options.asked_tools and name in _PLAYED else TYPICAL["rollout" if name in _PLAYED else name]
        if scores and name in _PLAYED:
            typical = (200, 0)  # it scores the listed actions, and writes nothing
        paid = known.get(name, Usage())
        read, written = (paid.input_tokens / paid.calls, paid.output_tokens / paid.calls) if paid.calls else typical
        found.append(Stage(name, math.ceil(calls * seeds), read, written))
    return found


_PLAYED = ("rollout", "trial", "test")
"""Stages in which the acting model plays."""


def _turns(setup: Setup, environment: Any) -> int:
    """Calls of a rollout, at most."""
    if setup.options.asked_tools:
        return TURNS
    return int(getattr(environment, "horizon", 1))


def _dry_run(setup: Setup, settings: Mapping[str, Any]) -> int:
    from ..memory.cache import Cache
    from . import sweep
    from .evaluation import ledger

    if (setup.folder / "settings.json").exists():  # of a run with other settings? Nothing is written then, either
        sweep._check_settings(setup.folder / "settings.json", json.loads(json.dumps(settings)))
    options = setup.options
    place, known, measured = setup.folder / "cache.sqlite", dict[str, Usage](), ""
    if place.exists():
        cache = Cache(place)
        known = cache.spent()
        cache.close()
        measured = f"; tokens per call of {', '.join(known)} as measured in {place}" if known else ""
    stages = _stages(setup, known)
    prices = _prices(options)
    dollars = {stage.name: prices(stage.name).of(stage.usage) for stage in stages}
    every = sum((stage.usage for stage in stages), Usage())
    tokens = every.input_tokens + every.output_tokens
    paid = sum(known.values(), Usage())
    if options.json:
        rows = [
            {"stage": s.name, "calls": s.calls, "read": s.read, "written": s.written, "dollars": dollars[s.name]}
            for s in stages
        ]
        _tell(json.dumps({"folder": str(setup.folder), "stages": rows, "tokens": tokens, "dollars": sum(dollars.values())}))
        return 0
    turns = _turns(setup, _environment(options.env, options.horizon))
    _tell(f"{setup.folder}: no model was asked. If nothing of it were in the cache, the run would take at most about\n")
    _tell(ledger({stage.name: stage.usage for stage in stages}, dollars if sum(dollars.values()) else {}))
    _tell(
        f"\nassumed: {COMPARED:.0%} of the groups differ in their rewards and are compared; a rollout is {turns} calls; nobody "
        f"stops early; arms share nothing (in truth they share what is the same){measured}"
    )
    for stage in stages:
        if stage.name not in known:
            _tell(f"assumed: {stage.read:,.0f} tokens read and {stage.written:,.0f} written per call of {stage.name}")
    if paid.calls:
        _tell(f"paid so far in this folder: {paid.calls:,} calls, {paid.input_tokens + paid.output_tokens:,} tokens")
    if options.budget and tokens > options.budget:
        _tell(f"--budget {options.budget:,} may not last: {tokens:,} tokens")
    if options.dollars and sum(dollars.values()) > options.dollars:
        _tell(f"--dollars {options.dollars:g} may not last: ${sum(dollars.values()):.2f}")
    return 0


def _prices(options: Learn) -> Callable[[str], Any]:
    """Stage -> dollars per million tokens."""
    from ..nodes.recorded import Prices

    acting = Prices(options.price_in, options.price_out)
    critic = Prices(
        options.price_in if options.critic_price_in is None else options.critic_price_in,
        options.price_out if options.critic_price_out is None else options.critic_price_out,
    )
    return lambda stage: acting if stage in _PLAYED else critic


# The work


def _run(setup: Setup, settings: Mapping[str, Any], splits: Mapping[int, Split], blueprint: Callable[[str, Any], Any]) -> int:
    from . import sweep

    with sweep.claimed(setup.folder, settings):
        due = [seed for seed in setup.seeds if not all(_finished(setup, arm, seed) for arm in setup.arms)]
        if due:
            _warn(setup.options)
            with _progress(setup) as tick, sweep.environ(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false"):
                try:
                    sweep.work([(setup, seed, splits[seed]) for seed in due], play, setup.options.workers, tick, 1)
                    tick()
                except KeyboardInterrupt:
                    _say(f"stopped; what is finished is in {setup.folder}, and the same command goes on from there")
                    raise
                except UserError as error:
                    raise UserError(
                        f"{error}; what is finished is in {setup.folder}, and the same command goes on from there"
                    ) from None
        else:
            _say(f"finished already; these are its results (remove {setup.folder} or give another --out to learn again)")
        return _report(setup, blueprint)


def _warn(options: Learn) -> None:
    """Say if nothing but good manners keeps a model's Python code from the rest of this machine."""
    from ..tools.interpreter import Interpreter

    if "python" not in options.asked_tools:
        return
    with Interpreter() as interpreter:
        interpreter.run("1")
        if lacking := sorted({"limits", "files", "calls"} - interpreter.walls):
            _say(
                f"--tools python: this machine does not offer all walls around a model's code ({', '.join(lacking)} missing, see "
                "tools/interpreter.py); run only models that mean no harm, or all of it in a container"
            )


SECRET = re.compile(r"\bsk-[\w-]{4,}")
"""What a key looks like."""


def _redacted(text: str) -> str:
    """An error's text without keys: some servers repeat what they were sent."""
    for name in ("OPENAI_API_KEY", "TAVILY_API_KEY", "SERPAPI_API_KEY"):
        if len(key := os.environ.get(name, "")) > 3:
            text = text.replace(key, f"${name}")
    return SECRET.sub("sk-…", re.sub(r"(?<=://)[^/@\s]+@", "", text))


def _finished(setup: Setup, arm: Arm, seed: int) -> bool:
    return (setup.place(arm, seed) / "result.json").exists()


def _all_finished(setup: Setup) -> bool:
    return all(_finished(setup, arm, seed) for arm in setup.arms for seed in setup.seeds)


def _check_models(setup: Setup) -> None:
    """Find mistakes in their names before workers start; local ones load their weights there. In a dry run none is opened."""
    from ..tools.models import MODELS

    options = setup.options
    if options.asked_tools:
        if not hasattr(_environment(options.env, options.horizon), "read"):
            raise CommandError(
                f"--tools is for worlds with one written answer, such as math; {options.env} is played step by step"
            )
        if not options.model.startswith("openai:"):
            raise CommandError(f"--tools is for models that call tools (--model openai:NAME); {options.model} does not")
        _toolbox(options.asked_tools, options.corpus)

    known = {name.partition(":")[0] for name in MODELS}
    for spec, url in ((setup.options.model, setup.options.base_url), (setup.options.judges, _critic_url(setup.options))):
        kind = spec.partition(":")[0]
        if (kind == "openai" and not options.dry_run) or kind not in known:
            _opened(spec, url, None, None)


def _rehearse(setup: Setup, splits: Mapping[int, Split]) -> None:
    """Put the graphs of all arms together, without their models: whatever an arm lacks is found before the first one is paid for.

    Raises:
        UserError: an arm cannot do with this model, this world, or this library to start from.
    """
    from ..memory.cache import Cache
    from ..memory.journal import Journal
    from ..memory.library import Library, Versions, opened
    from ..nodes.recorded import Slots
    from . import training_free_grpo

    seed = setup.seeds[0]
    bench = Rehearsal(setup, seed, splits[seed])
    bench.cache = Cache()
    bench.meter, bench.slots = _meter(setup.options, bench.cache), Slots(1)
    bench.rollouts = bench.slots
    for path in _libraries(setup):
        found = opened(path)
        if not isinstance(found, Library) and not found.names():
            raise CommandError(f"--library {path}: it holds no version yet")
    for arm in setup.arms:
        versions, journal = Versions(), Journal()
        try:
            bench._roll(arm, versions, journal, "test", 0.0)
            if arm.learns or arm.way == "self-generated":
                train, held_out = splits[seed].of(arm.settings)
                training_free_grpo.build(
                    bench._parts(bench._world(setup.options.env), journal, "rollout", 0.0),
                    arm.settings,
                    problems=train,
                    held_out=held_out,
                    versions=versions,
                    cache=bench.cache,
                    rollout=bench._graph(arm, versions, journal, "rollout", 0.0),
                    critic=bench._critic(),
                    recorded=bench._asked,
                )
        except UserError as error:
            raise CommandError(f"{arm.name} cannot run: {error}") from error
        finally:
            journal.close()
            versions.close()


@contextmanager
def _progress(setup: Setup) -> Iterator[Callable[[], None]]:
    """A line now and then: how many steps were learned, and how many rollouts of the test were played."""
    from time import monotonic

    rollouts = setup.options.test * setup.options.k * len(setup.seeds)
    said, before = monotonic(), ""

    def tick() -> None:
        nonlocal said, before
        if monotonic() - said < 30:
            return
        parts = []
        for arm in setup.arms:
            learned, tested = (
                sum(_lines(setup.place(arm, s) / name) for s in setup.seeds) for name in ("learned.jsonl", "test.jsonl")
            )
            if learned or tested:
                parts.append(
                    f"{arm.name}: {f'{learned} steps learned, ' if arm.learns else ''}{tested} of {rollouts} test rollouts"
                )
        if (text := "; ".join(parts)) and text != before:
            _say(text)
            said, before = monotonic(), text

    yield tick


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def play(work: tuple[Setup, int, Split]) -> str | None:
    """Learn and test all arms of a seed, from wherever they stand; what a worker process does.

    Returns what went wrong, if it is something the user can put right. A budget that is spent is nothing wrong.
    """
    from ..nodes.recorded import BudgetSpent

    setup, seed, split = work
    try:
        asyncio.run(Bench(setup, seed, split).play())
    except BudgetSpent:
        return None
    except UserError as error:
        return _redacted(str(error))
    except OSError as error:
        return f"{error.filename or setup.folder}: {error.strerror or error}"
    except Exception:  # ours: a traceback as text reaches the parent whatever the exception is made of
        raise RuntimeError(traceback.format_exc()) from None
    return None


@lru_cache(maxsize=2)
def _environment(spec: str, horizon: int | None) -> Any:
    from ..tools.environments.catalogue import open_environment

    return open_environment(spec, horizon=horizon)


@lru_cache(maxsize=8)
def _opened(spec: str, base_url: str | None, max_tokens: int | None, temperature: float | None) -> Any:
    from ..tools.models import open_model

    return open_model(spec, base_url=base_url, max_tokens=max_tokens, temperature=temperature, threads=1)


@lru_cache(maxsize=2)
def _toolbox(names: tuple[str, ...], corpus: Path | None) -> Any:
    """The tools of these names; None without any."""
    from ..tools.interpreter import Toolbox
    from ..tools.search import search_tool, web_search_tool

    made = {"search": lambda: search_tool(corpus), "web": web_search_tool}
    if not names:
        return None
    return Toolbox(python={} if "python" in names else None, shared=tuple(made[name]() for name in names if name in made))


def _critic_url(options: Learn) -> str | None:
    if not options.judges.startswith("openai:"):
        return None
    return options.critic_base_url or options.base_url


def _meter(options: Learn, cache: Any) -> Any:
    from ..nodes.recorded import Meter

    prices = _prices(options)
    return Meter(
        cache,
        prices("critic"),
        {stage: prices(stage) for stage in _PLAYED},
        dollars=options.dollars or None,
        tokens=options.budget or None,
    )


class Bench:
    """Where the arms of a seed are worked on, one after the other: they share the cache and the models."""

    def __init__(self, setup: Setup, seed: int, split: Split) -> None:
        self.setup, self.options, self.seed, self.split = setup, setup.options, seed, split
        self.run = f"s{seed}"

    async def play(self) -> None:
        """All arms that are not finished."""
        from ..memory.cache import Cache
        from ..nodes.recorded import Slots

        self.cache = Cache(self.setup.folder / "cache.sqlite")
        try:
            remote = "openai" in (self.options.model.partition(":")[0], self.options.judges.partition(":")[0])
            self.limit = self.options.concurrency or (16 if remote else 1)
            self.meter, self.slots = _meter(self.options, self.cache), Slots(self.limit)
            # Of their own: a rollout that waits for its turn holds no call's. A model in this process remembers the prompt
            # before, and reads all of it anew where rollouts take turns.
            self.rollouts = Slots(self.limit)
            for arm in self.setup.arms:
                if not _finished(self.setup, arm, self.seed):
                    await self._arm(arm)
        finally:
            self.cache.close()

    async def _arm(self, arm: Arm) -> None:
        from filelock import FileLock

        from ..memory.journal import Journal
        from ..memory.library import Versions
        from ..memory.rows import Rows
        from . import sweep

        place = self.setup.place(arm, self.seed)
        with ExitStack() as stack:
            place.mkdir(parents=True, exist_ok=True)
            # A worker whose run was killed ends a moment after it.
            stack.enter_context(FileLock(place / "owner.lock", timeout=30))
            versions, journal = Versions(place / "library.jsonl"), Journal(place / "steps.jsonl")
            log, tests = Rows(place / "learned.jsonl"), Rows(place / "test.jsonl")
            for file in (versions, journal, log, tests):
                stack.callback(file.close)
            name, learned = await self._library(arm, place, versions, journal, log)
            rollouts = self._sound(arm, await self._test(arm, versions, journal, name, tests))
            rows = _whole(log.values())
            steps = [_step(self.seed, row) for row in rows]
            if self.options.curve and arm.learns:
                measured = []
                for row, step in zip(rows, steps, strict=True):
                    played = self._sound(arm, await self._test(arm, versions, journal, str(row["library"]), None))
                    measured.append(replace(step, test=sum(one.reward or 0.0 for one in played) / len(played)))
                steps = measured
            library = versions.at(name)
            if arm.way != "method":
                (place / "library.yaml").write_text(library.to_yaml(), encoding="utf-8")
            sweep.write(
                place / "result.json",
                {
                    "arm": arm.name,
                    "seed": self.seed,
                    "library": name,
                    "lessons": len(library.lessons),
                    "learned": asdict(learned),
                    "problems": {
                        "train": [task.id for task in self.split.of(arm.settings)[0]] if arm.learns else [],
                        "held_out": [task.id for task in self.split.of(arm.settings)[1]] if arm.learns else [],
                        "test": [task.id for task in self.split.test],
                    },
                    "rollouts": [_brief(rollout, "answer", "error") for rollout in rollouts],
                    "steps": [asdict(step) for step in steps],
                    "failures": [
                        [row["id"], _redacted(said)] for row in rows for said in (*row["failures"], *row["probe_failures"])
                    ],
                },
            )

    # How an arm comes to its library

    async def _library(self, arm: Arm, place: Path, versions: Versions, journal: Any, log: Any) -> tuple[str, Usage]:
        """Name of the version that is tested, and what it took to learn it."""
        from ..memory.library import Library
        from ..nodes.advantage import draw
        from ..nodes.semantic import random_lessons, shuffled
        from . import training_free_grpo

        start = f"{self.run}/0"
        if arm.learns:
            return await self._learned(arm, arm.settings, place, versions, journal, log)
        if arm.way == "self-generated":
            settings = arm.settings
            if self.setup.arms[0].learns:  # a control has as many lessons
                if not (count := len(self._first()[0].lessons)):
                    return versions.put(start, Library(), why="no lessons, as none were learned"), Usage()
                settings = replace(settings, lessons=count)
            return await self._learned(arm, settings, place, versions, journal, log)
        if arm.way not in DERIVED:
            return versions.put(start, Library(), why="no lessons"), Usage()
        learned, began = self._first()
        versions.put(start, began, why="what learning began with")
        seed = draw(self.run, arm.way).getrandbits(31)
        if arm.way == "shuffled":
            control = shuffled(learned, seed)
        else:
            parts = self._parts(self._world_of("rollout"), journal, "rollout", arm.settings.temperature)
            bounds = training_free_grpo.limits(parts, arm.settings)
            played = await self._first_rollouts(arm, versions, journal)
            control = random_lessons(played, len(learned.lessons), bounds, seed, tokens=parts.count)
        return versions.put(f"{self.run}/{arm.way}", control, why=f"{arm.way}: a control of what was learned"), Usage()

    def _first(self) -> tuple[Library, Library]:
        """What this seed's first arm has learned, and what it began with."""
        from ..memory.library import Versions

        first = self.setup.place(self.setup.arms[0], self.seed)
        result = json.loads((first / "result.json").read_text(encoding="utf-8"))
        versions = Versions.read(first / "library.jsonl")
        return versions.at(result["library"]), versions.at(f"{self.run}/0")

    async def _first_rollouts(self, arm: Arm, versions: Versions, journal: Any) -> list[Rollout]:
        """Those that learning began with; they are in the cache."""
        roll = self._roll(arm, versions, journal, "rollout", arm.settings.temperature)
        train, _ = self.split.of(arm.settings)
        work = [(task, number) for task in train for number in range(arm.settings.group)]
        played = await self._played(roll, f"{self.run}/0", f"{self.run}/0", work)
        return [rollout for rollout in played if not rollout.error]

    async def _learned(
        self, arm: Arm, settings: Any, place: Path, versions: Versions, journal: Any, log: Any
    ) -> tuple[str, Usage]:
        from ..memory.checkpoints import open_checkpoints_async
        from ..nodes.recorded import BudgetSpent
        from . import training_free_grpo

        train, held_out = self.split.of(settings)
        parts = self._parts(self._world(self.options.env), journal, "rollout", settings.temperature)
        async with open_checkpoints_async(place / "checkpoints.sqlite") as saver:
            graph = training_free_grpo.build(
                parts,
                settings,
                problems=train,
                held_out=held_out,
                versions=versions,
                cache=self.cache,
                rollout=self._graph(arm, versions, journal, "rollout", settings.temperature),
                trial=self._graph(arm, versions, journal, "trial", settings.trial_temperature),
                critic=self._critic(),
                recorded=self._asked,
                log=log,
                meter=self.meter,
                name=self._fingerprint(arm),
                slots=self.rollouts,
                checkpointer=saver,
            )
            config = await self._thread(graph, saver)
            begin = None if await saver.aget_tuple(config) else {"run": self.run}
            try:
                await graph.ainvoke(begin, config, durability="async")
            except UserError:
                # The checkpoints hold what failed. Without them the next try goes through what is in the cache, and asks again
                # for what is not.
                await saver.adelete_thread(config["configurable"]["thread_id"])
                raise
            ended = (await graph.aget_state(config)).values
        if _ran_out(ended):
            (place / "library.yaml").write_text(versions.at(ended["best"]).to_yaml(), encoding="utf-8")
            raise BudgetSpent(ended["stopped"])
        return ended["best"], ended["usage"]

    async def _thread(self, graph: Any, saver: Any) -> Any:
        """The run's thread of checkpoints. One that ended because the budget was spent is left: all that was paid for is in the
        cache, and a new one comes to the same place at no cost."""
        number = 0
        while True:
            config: Any = {"configurable": {"thread_id": f"{self.run}/{number}"}, "recursion_limit": 1_000_000}
            if not await saver.aget_tuple(config):
                return config
            state = await graph.aget_state(config)
            if state.next or not _ran_out(state.values):
                return config
            number += 1

    # The test

    async def _test(self, arm: Arm, versions: Versions, journal: Any, library: str, log: Any) -> list[Rollout]:
        """The rollouts of the unseen problems under a library, by problem and run index; the same draws in all arms."""
        temperature = self.options.test_temperature
        if temperature is None:
            temperature = getattr(arm.settings, "trial_temperature", self.setup.arms[0].settings.trial_temperature)
        roll = self._roll(arm, versions, journal, "test", temperature)
        work = [(task, number) for task in self.split.test for number in range(self.options.k)]
        return await self._played(roll, f"{self.run}/test", library, work, log)

    def _sound(self, arm: Arm, rollouts: list[Rollout]) -> list[Rollout]:
        """Rollouts of the test that may be counted for good.

        Raises:
            UserError: some did not come to an end through no fault of the agent's (a server that is down), or all failed.
        """
        failed = [one for one in rollouts if one.error]
        left = [one for one in failed if not _own(one)] or (failed if len(failed) == len(rollouts) else [])
        if left:
            raise UserError(
                f"{arm.name}, seed {self.seed}: {len(left)} of {len(rollouts)} rollouts of the test failed ({left[0].id}: "
                f"{_clipped(left[0].error)}); none of them counts, and once that is put right they are played again"
            )
        return rollouts

    async def _played(
        self, roll: Any, run: str, library: str, work: Sequence[tuple[Task, int]], log: Any = None
    ) -> list[Rollout]:

        async def one(task: Task, number: int) -> Rollout:
            rollout: Rollout = await roll.ainvoke({"task": task, "run": run, "episode": number, "library": library})
            if log is not None and not rollout.error:  # what failed is tried again by whoever resumes
                log.append(_brief(rollout, "answer", "transcript"))
            return rollout

        tasks = [asyncio.ensure_future(one(task, number)) for task, number in work]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for left in tasks:  # after an error
                left.cancel()

    # What plays

    def _roll(self, arm: Arm, versions: Versions, journal: Any, stage: str, temperature: float) -> Any:
        from . import training_free_grpo

        settings = arm.settings if arm.way != "method" else self.setup.arms[0].settings
        parts = self._parts(self._world_of(stage), journal, stage, temperature)
        graph = self._graph(arm, versions, journal, stage, temperature)
        more: dict[str, Any] = {"name": self._fingerprint(arm), "slots": self.rollouts, "meter": self.meter, "stage": stage}
        return training_free_grpo.roll(parts, settings, versions, self.cache, graph, **more)

    def _graph(self, arm: Arm, versions: Versions, journal: Any, stage: str, temperature: float) -> Any:
        """The graph of a rollout."""
        from . import training_free_grpo
        from .baselines import tool_agent
        from .baselines.tool_agent import ToolAgent
        from .methods import method

        parts = self._parts(self._world_of(stage), journal, stage, temperature)
        tools = _toolbox(self.options.asked_tools, self.options.corpus)
        if arm.way == "method":
            settings = arm.settings
            if getattr(settings, "temperature", None) is not None:  # of a softmax over scored actions
                settings = replace(settings, temperature=temperature)
            return method(arm.method).build(parts, settings, **({"tools": tools} if arm.method == "tool-agent" else {}))
        if tools is not None:
            agent = ToolAgent(self.options.tool_turns or ToolAgent.turns, top=arm.settings.top)
            return tool_agent.build(parts, agent, tools=tools, lessons=versions)
        return training_free_grpo.episode(parts, arm.settings, versions, temperature)

    def _world_of(self, stage: str) -> Any:
        return self._world(self.options.test_env or self.options.env) if stage == "test" else self._world(self.options.env)

    def _world(self, spec: str) -> Any:
        return _environment(spec, self.options.horizon)

    def _parts(self, environment: Any, journal: Any, stage: str, temperature: float) -> Any:
        """What rollouts of a stage are put together from: each stage has a model of its own, at its own temperature."""
        from .parts import Parts

        options = self.options
        model = self._model(options.model, options.base_url, stage, temperature)
        more: dict[str, Any] = {"prompts": options.prompts}
        if options.window is not None:
            more["window"] = min(options.window, getattr(model, "window", options.window))
        make: Any = Parts.scored if hasattr(model, "score") else Parts.written
        return make(environment, journal, model, **more)

    def _model(self, spec: str, base_url: str | None, stage: str, temperature: float) -> Any:
        from ..nodes.recorded import Recorded

        options = self.options
        if spec.startswith("openai:"):
            model = _opened(spec, base_url, options.max_tokens, temperature)
        else:  # one set of weights for all stages
            model = _opened(spec, None, options.max_tokens, None).bind(temperature=temperature)
        kept = {"server": _public(base_url), "temperature": temperature, "max_tokens": options.max_tokens}
        name = json.dumps([spec, _weights(spec) if not spec.startswith("openai:") else "", kept], sort_keys=True)
        return Recorded(model, name, self.cache, stage, self.meter, self.slots)

    def _critic(self) -> Any:
        """The model that compares and edits; None where it only writes a line, as the acting one then does."""
        options = self.options
        if options.critic is None and not options.model.startswith("openai:"):
            return None
        return self._model(options.judges, _critic_url(options), "critic", options.critic_temperature)

    def _asked(self, model: Any, stage: str) -> Any:
        """The critic's model at a stage."""
        if self._critic() is None:
            return self._model(self.options.model, None, stage, self.options.critic_temperature)
        return replace(model, stage=stage)

    def _fingerprint(self, arm: Arm) -> str:
        """What rollouts depend on beside graph, model and prompts. Arms with libraries share theirs where the lessons are the same."""
        options = self.options
        told = [_file(options.corpus) if options.corpus else "", repr(_toolbox(options.asked_tools, options.corpus))]
        return json.dumps([arm.method if arm.way == "method" else "", *(told if options.asked_tools else [])])


class Rehearsal(Bench):
    """Puts graphs together whose models nobody can ask."""

    def _model(self, spec: str, base_url: str | None, stage: str, temperature: float) -> Any:
        from ..nodes.recorded import Recorded

        return Recorded(_absent(scores=not spec.startswith("openai:")), spec, self.cache, stage)


@lru_cache(maxsize=2)
def _absent(scores: bool) -> Any:
    """A model that can be built with, and not be asked."""
    from langchain_core.language_models import BaseChatModel

    from ..nodes.ask import estimated
    from .parts import WINDOW

    class Absent(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "absent"

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

        def get_num_tokens(self, text: str) -> int:
            return estimated(text)

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            raise AssertionError("nobody asks a model before all arms can run")

    class Scores(Absent):
        window: int = WINDOW

        def score(self, messages: Any, options: Any) -> list[float]:
            raise AssertionError("nobody asks a model before all arms can run")

    return Scores() if scores else Absent()


def _ran_out(state: Mapping[str, Any]) -> bool:
    """Whether a run has ended because the budget was spent."""
    return bool(state.get("stops")) or str(state.get("stopped", "")).startswith("the budget of")


def _own(rollout: Rollout) -> bool:
    """Whether a failed rollout is the agent's own doing, or its problem's: nobody could verify it, it took longer than it may, or
    the model's replies, which are kept, could not be read. To play it again would come to the same."""
    return rollout.error.startswith(("no reward:", "took longer than ")) or "; the last reply was " in rollout.error


def _clipped(text: str) -> str:
    return text if len(text) <= 300 else text[:300] + "…"


def _brief(rollout: Rollout, *texts: str) -> dict[str, Any]:
    """A rollout of the test as a row, with these texts; its steps are in steps.jsonl."""
    rollout = replace(rollout, error=_redacted(rollout.error))
    told = {name: getattr(rollout, name) for name in ("id", "number", "reward", "steps", "tool_calls", "seconds", *texts)}
    return {**told, "task": rollout.task.id, "usage": asdict(rollout.usage)}


def _step(seed: int, row: Mapping[str, Any]) -> Step:
    from .evaluation import Step

    return Step(
        seed,
        row["step"],
        row["train"] or 0.0,
        row["held_out"],
        row["lessons"],
        row["accepted"] and row["before"] != row["library"],
        row["compared"],
    )


# The report


def _report(setup: Setup, blueprint: Callable[[str, Any], Any]) -> int:
    from . import evaluation, sweep

    options = setup.options
    done = [arm for arm in setup.arms if all(_finished(setup, arm, seed) for seed in setup.seeds)]
    results = {arm.title: [_result(setup, arm, seed) for seed in setup.seeds] for arm in done}
    arms = {title: [_outcome(title, found) for found in seeds] for title, seeds in results.items()}
    rows = evaluation.rows(arms, options.env, options.model, setup.against)
    learning = {arm.title: [_steps(setup, arm, seed) for seed in setup.seeds] for arm in setup.arms if arm.learns}
    spent, cost, over = _spent(setup)
    failures = [
        {"arm": title, "seed": found["seed"], "id": id, "reason": reason}
        for title, seeds in results.items()
        for found in seeds
        for id, reason in _failures(found)
    ]
    by_row = [
        row.as_dict() | {"steps": [[asdict(step) for step in seed] for seed in learning.get(row.arm, [])]} for row in rows
    ]
    sweep.write(
        setup.folder / "results.json",
        {"arms": by_row, "paid": {stage: asdict(usage) for stage, usage in spent.items()}, "dollars": cost},
    )
    _write_lines(setup.folder / "failures.jsonl", failures)
    pictures = _pictures(setup, learning, arms)
    said = [f"stopped: {over}"] if over and len(done) < len(setup.arms) else []
    if len(done) < len(setup.arms) and not over:
        raise UserError(f"{setup.folder}: not all arms were finished; the same command goes on")
    if options.json:
        for row in by_row:
            _tell(json.dumps(row))
        for line in said:
            _say(line)
        return 0
    _tell(f"{options.env}, {options.model}, {len(setup.seeds)} seeds; {_asked_for(setup)}")
    if rows:
        _tell(f"\nunseen problems, {rows[0].problems} a seed, {rows[0].k} rollouts each; [{evaluation.compared(rows)}]")
        if setup.against in arms and len(arms) > 1:
            _tell(f"delta, wins, losses and ties: to {setup.against}, problem by problem")
        _tell("")
        _tell(evaluation.table(rows))
        for line in ["", *evaluation.ahead(arms)] if len(arms) > 1 else []:
            _tell(line)
    for title, seeds in learning.items():
        if any(seeds):
            _tell(f"\n{title}, step by step; train is under the library before the step\n")
            _tell(evaluation.steps_table(seeds))
    if any(usage.calls for usage in spent.values()):
        _tell("\npaid for, by stage (what arms share is paid once)\n")
        _tell(evaluation.ledger(spent, cost if sum(cost.values()) else {}))
        _tell(_spared(results, spent))
    _tell("")
    for spec in filter(None, (options.env, options.test_env)):
        found = getattr(_environment(spec, options.horizon), "report", None)
        if getattr(found, "dropped", 0):
            _tell(f"data             {spec}: {found}")
    if failures:
        _tell(
            f"failures         {len(failures)}, each counted as 0 where a reward is missing: {setup.folder / 'failures.jsonl'}"
        )
    for arm in setup.arms:
        if arm.learns:
            _tell(f"libraries        {setup.folder / (arm.name.replace(':', '-') + '-s*')}/library.yaml")
    if pictures:
        _tell(f"learning curves  {pictures[0]}  {pictures[1].name}")
    _tell(f"graph            {_drawn(setup, blueprint)}")
    _tell(f"all of it        {setup.folder}")
    for line in said:
        _tell(line)
    return 0


def _asked_for(setup: Setup) -> str:
    settings = next((arm.settings for arm in setup.arms if arm.way != "method"), None)
    return f"{settings.problems} problems to learn from, {settings.held_out} held out" if settings else ""


def _result(setup: Setup, arm: Arm, seed: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((setup.place(arm, seed) / "result.json").read_text(encoding="utf-8"))
    return found


def _outcome(title: str, result: Mapping[str, Any]) -> Outcome:
    from .evaluation import Outcome

    rollouts = [
        Rollout(
            row["id"],
            Task(row["task"], ""),
            row["number"],
            row["reward"],
            steps=row["steps"],
            tool_calls=row["tool_calls"],
            usage=Usage(**row["usage"]),
            error=row["error"],
        )
        for row in result["rollouts"]
    ]
    return Outcome.of(title, result["seed"], rollouts, result["lessons"])


def _failures(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    tested = [(row["id"], row["error"] or "no reward") for row in result["rollouts"] if row["reward"] is None]
    return [*((id, reason) for id, reason in result["failures"]), *tested]


def _steps(setup: Setup, arm: Arm, seed: int) -> list[Step]:
    """The learning steps of a seed: of its result, or of what is there so far."""
    from . import sweep
    from .evaluation import Step

    if _finished(setup, arm, seed):
        return [Step(**step) for step in _result(setup, arm, seed)["steps"]]
    path = setup.place(arm, seed) / "learned.jsonl"
    return [_step(seed, row) for row in _whole(sweep.written(path))] if path.exists() else []


def _whole(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of steps that were not cut short by the budget."""
    return [row for row in rows if not str(row["id"]).endswith("/stopped")]


def _spent(setup: Setup) -> tuple[dict[str, Usage], dict[str, float], str]:
    """What was paid for by stage, the same in dollars, and what is said of a budget that is spent."""
    from ..memory.cache import Cache
    from ..nodes.recorded import BudgetSpent

    cache = Cache(setup.folder / "cache.sqlite")
    try:
        spent, prices, over = cache.spent(), _prices(setup.options), ""
        try:
            _meter(setup.options, cache).check()
        except BudgetSpent as error:
            over = str(error)
        return spent, {stage: prices(stage).of(usage) for stage, usage in spent.items()}, over
    finally:
        cache.close()


def _spared(results: Mapping[str, Sequence[Mapping[str, Any]]], spent: Mapping[str, Usage]) -> str:
    """A line on what the arms would have paid without the cache."""
    asked = Usage()
    for seeds in results.values():
        for found in seeds:
            asked += Usage(**found["learned"])
            asked = sum((Usage(**row["usage"]) for row in found["rollouts"]), asked)
    paid = sum(spent.values(), Usage())
    tokens = asked.input_tokens + asked.output_tokens - paid.input_tokens - paid.output_tokens
    return f"from the cache: {max(tokens, 0):,} tokens that arms share or that were there already" if results else ""


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    part.replace(path)


def _pictures(
    setup: Setup, learning: Mapping[str, Sequence[Sequence[Step]]], arms: Mapping[str, Sequence[Outcome]]
) -> list[Path]:
    """Draw the curve of the first arm that learned something."""
    from . import evaluation

    title, seeds = next(((title, seeds) for title, seeds in learning.items() if any(seeds)), ("", []))
    if not title:
        return []
    pictures = [setup.folder / "curves.png", setup.folder / "curves.svg"]
    measured: list[list[float | None]] = [
        [evaluation.mean_at_k(list(one.rewards.values())) for one in arms.get(arm, [])] for arm in (setup.against, title)
    ]
    start, end = (numbers or [None] * len(seeds) for numbers in measured)
    evaluation.curves(seeds, start, end, f"{setup.options.env}, {setup.options.model}: {title}", pictures)
    return pictures


def _drawn(setup: Setup, blueprint: Callable[[str, Any], Any]) -> Path:
    from . import picture

    path = setup.folder / "training-free-grpo.svg"
    if not picture.can_draw():
        path = path.with_suffix(".mmd")
    if not path.exists():
        picture.save(blueprint(setup.arms[0].method, setup.arms[0].settings), path)
    return path


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
