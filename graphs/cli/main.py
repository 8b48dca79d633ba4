"""The command line: `learngraph run`, `serve`, `calibrate`, `list`, `draw`, `memory`, `library`, `adamem`, `claas`, `pocket`.

Joins tools to graphs.

Every import that takes time stands inside the command that needs it: `learngraph --help` answers at once.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, cast

from ...memory.errors import UserError
from ..wiring.flags import CommandError
from ..wiring.flags import parse_flags as _parse
from .adamem import adamem
from .training_free import learn_and_test

if TYPE_CHECKING:
    from ..studies.sweep import Job

SERVED_GRAPHS: Mapping[str, str] = {
    "claas-serving": "a chat turn that waits for feedback; what learngraph serve answers with",
    "claas-learning": "a gradient step on what was said, with a gate; what learngraph serve learns with",
}
"""Graphs that are served, not run on an environment."""
STORAGE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)


class RunInterrupted(UserError):
    """Ctrl-C: says how to go on."""


# learngraph run


@dataclass(frozen=True)
class RunOptions:
    """What to play, with what, how often."""

    env: str = "twx:coin"
    """The environment: `twx:GAME`, `toy`, `jericho:GAME` (see `learngraph list`)."""
    model: str = "pocket"
    """The model behind the policy: `pocket`, `local:PATH_OR_NAME`, `openai:MODEL` (see `learngraph list`)."""
    episodes: int = 30
    """Episodes of each run: the same task again and again."""
    seeds: str = "5"
    """How many seeds, or which ones: `5` is `0,1,2,3,4`; `7,` is seed 7 alone. Seed s plays the s-th task."""
    compare: tuple[str, ...] = ()
    """Further methods, with their default hyper-parameters; `jitrl:paper` is a method with a preset, `icrl:zero-reward` an
    ablation: with `run icrl`, of the settings given here. What you give or change of `--bank`, `--k`, `--success-threshold`, `--online`,
    `--cross-task`, `--temperature` and `--history-steps` holds for every method that has such an option, but where its preset says
    something else; settings.json records what each method was given."""
    split: Literal["train", "dev", "test"] = "test"
    """The fold of the environment's tasks."""
    horizon: int | None = None
    """Steps after which an episode ends; the environment's own if not given."""
    prior: Literal["model", "uniform"] = "model"
    """`uniform`: every admissible action is equally likely, and no model is loaded. A control."""
    policy: Literal["auto", "local", "logprobs", "verbalized", "act", "answer"] = "auto"
    """How the model decides. With logits: `local` (exact scores of a local model), `logprobs` (of an API), `verbalized` (stated
    confidences). In writing: `act` (a thought and an action), `answer` (a whole answer, for tasks that ask for one)."""
    judge: str = "environment"
    """Who rewards the steps of a finished episode: `environment`, `rule` (its verifier), `self` (the model, judging its own
    attempt; `self:sparse`: as a whole), `pairwise` (the model, against the environment's reference answer), `model` (in
    hindsight, told the score), or several, joined by + (their mean)."""
    reference: Path | None = None
    """A text file: what `pairwise` compares attempts with. The environment's solution if not given, which for `writing` keeps
    the rules and reads badly: an answer of a good model makes better rewards."""
    policy_history_steps: int | None = None
    """How many earlier steps of the episode jitrl and static show the model; the policy's own if not given."""
    max_run_tokens: int = 0
    """A budget of tokens for each run, the same for all methods: once it is used up, no further episode begins. 0: none. What
    reasoning-bank reads of a bank before the first attempt does not count; it stands below the table."""
    window: int | None = None
    """Tokens of the model's window; a local model knows its own, others are taken to have 32768."""
    base_url: str | None = None
    """The server behind `openai:MODEL`."""
    prompts: Path | None = None
    """A directory whose prompt files take the place of those of the same name."""
    out: Path | None = None
    """The run folder; made from the settings under `runs/` if not given. The same command resumes what stands there."""
    memory: str | None = None
    """Where memories are kept: a directory (one memory per method and seed under it), or a Chroma server's
    `http://host:port`. In the run folder if not given."""
    checkpoints: str | None = None
    """`postgresql://…`, or a directory. In the run folder if not given."""
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Processes that play at the same time."""
    concurrency: int | None = None
    """Runs that each process plays at the same time, while they wait for a model behind an API: 16 if not given, and 1 for a
    model in this process, which can do one thing at a time."""
    json: bool = False
    """Print one JSON object per method to stdout, and nothing else."""


@dataclass(frozen=True)
class SweepSetup:
    """What a worker needs to know to put a method together."""

    options: RunOptions
    methods: Mapping[str, Any]
    """Method name -> its settings."""


def run(args: Sequence[str]) -> int:
    """play a method, or compare several, on an environment; the same command resumes a killed run"""
    from .. import methods
    from ..studies import sweep

    if not args or args[0].startswith("-"):
        wanted = args and args[0] in ("-h", "--help")
        if not wanted:
            raise CommandError(f"learngraph run METHOD …: which method? there are {', '.join(methods.METHODS)}")
        listed = "; ".join(f"{name}: {method.summary}" for name, method in methods.METHODS.items())
        _parse(
            RunOptions, ["--help"], "learngraph run METHOD", f"{listed}. Each has further options: learngraph run METHOD --help"
        )
    name, *rest = args
    preset, rest = _preset(rest)
    known = methods.find_method(name)
    about = (
        f"{known.summary}. --preset {{{','.join(_presets(known.settings) + _ablations(known.settings))}}} sets other defaults."
    )
    if known.has_training_phase:
        return learn_and_test(
            name, _settings(name, preset), rest, about, settings_of=_settings, parse_seeds=_seeds, blueprint=_blueprint
        )
    form = make_dataclass(
        "form",
        [("options", RunOptions, field(default_factory=RunOptions)), ("settings", *_default(_settings(name, preset)))],
    )
    parsed = _parse(form, rest, f"learngraph run {name}", about)
    options: RunOptions = parsed.options
    shared = _shared_settings(parsed.settings, rest)
    others = {
        other: _settings(other, main=(name, parsed.settings), shared=shared) for other in options.compare if other != name
    }
    for other in others:
        if methods.find_method(other).has_training_phase:
            raise CommandError(
                f"--compare {other}: it learns on other problems than it plays; learngraph run {other} compares it"
            )
    chosen = {name: parsed.settings} | others
    return _sweep(SweepSetup(options, chosen), sweep)


def _default(settings: Any) -> tuple[type, Any]:
    return type(settings), field(default_factory=lambda: settings)


def _preset(args: Sequence[str]) -> tuple[str, list[str]]:
    """Take `--preset X` out of the arguments: it decides the defaults of the others."""
    rest, preset = list(args), "default"
    for i, arg in enumerate(args):
        if arg == "--preset" or arg.startswith("--preset="):
            preset = arg.partition("=")[2] or (args[i + 1] if i + 1 < len(args) else "")
            del rest[i : i + (1 if "=" in arg else 2)]
            break
    return preset, rest


def _shared_settings(settings: Any, args: Sequence[str]) -> dict[str, Any]:
    """What of a method's settings was given by a flag, or is not its default, and holds for the methods it is compared with."""
    from ..methods import shared_fields

    flags = {arg.partition("=")[0][2:].removeprefix("no-").replace("-", "_") for arg in args if arg.startswith("--")}
    usual = type(settings)()
    here = {name: getattr(settings, name) for name in shared_fields(type(settings))}
    return {name: value for name, value in here.items() if name in flags or value != getattr(usual, name)}


def _apply_shared_settings(settings: Any, shared: Mapping[str, Any]) -> Any:
    """Settings with what all methods share, but for fields that these do not have, or whose value a preset has changed."""
    usual = type(settings)()
    fits = {
        name: value
        for name, value in shared.items()
        if hasattr(settings, name) and getattr(settings, name) == getattr(usual, name)
    }
    return replace(settings, **fits)


def _settings(
    name: str, preset: str = "default", main: tuple[str, Any] | None = None, shared: Mapping[str, Any] | None = None
) -> Any:
    """The hyper-parameters of `METHOD`, `METHOD:PRESET`, or `METHOD:ABLATION`, which is one of the `main` method's if that is it.

    `shared`: what the main method and this one have in common; see `_shared`.
    """
    from ..methods import find_method, shared_fields, split_name

    name, named = split_name(name)
    made, preset = find_method(name).settings, named or preset
    if main is not None and type(main[1]) is not made:  # a field of another method is the same only where both are marked
        shared = {field: value for field, value in (shared or {}).items() if field in shared_fields(made)}
    if preset not in (known := [*_presets(made), *_ablations(made)]):
        raise CommandError(f"{name} has no preset '{preset}'; it has {', '.join(known)}")
    if preset in _ablations(made):
        base = main[1] if main is not None and split_name(main[0])[0] == name else _apply_shared_settings(made(), shared or {})
        return getattr(base, preset.replace("-", "_"))()
    chosen = made() if preset == "default" else getattr(made, preset.replace("-", "_"))()
    return _apply_shared_settings(chosen, shared or {})


def _presets(settings: type) -> list[str]:
    """The names of a settings class's presets: its class methods."""
    return ["default", *(name.replace("_", "-") for name, made in vars(settings).items() if isinstance(made, classmethod))]


def _ablations(settings: type) -> list[str]:
    """The names of what can be taken away from settings, one at a time."""
    return [name.replace("_", "-") for name in getattr(settings, "ablations", ())]


def _sweep(setup: SweepSetup, sweep: Any) -> int:
    options = setup.options
    seeds = _seeds(options.seeds)
    if options.episodes < 1 or options.workers < 1:
        raise CommandError(f"--episodes and --workers are at least 1, got {options.episodes} and {options.workers}")
    if options.max_run_tokens < 0:
        raise CommandError(f"--max-run-tokens is 0 for any number, or more, got {options.max_run_tokens}")
    _concurrency(setup)
    settings = _settings_record(setup, seeds)
    folder = options.out or Path("runs") / _folder_name(setup, settings)
    batches = [[_job(setup, folder, name, seed) for seed in seeds] for name in setup.methods]
    jobs = [job for batch in batches for job in batch]
    with sweep.claim_folder(folder, settings):
        if all(map(sweep.is_finished, jobs)):
            _say(f"finished already; these are its results (remove {folder} or give another --out to play again)")
        else:
            banked = seeds if any(getattr(settings, "bank", "") for settings in setup.methods.values()) else []
            played = _check(options, banked, needs_model=any(_loads_model(name, options) for name in setup.methods))
            for line in _bank_overlap_warnings(setup, played):
                _say(line)
            with _interruptible(folder), sweep.environment_defaults(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false"):
                _play_all(setup, batches, sweep)
        return _report(setup, folder, batches, sweep)


def _seeds(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0 or (numbers == [0] and "," not in text):
        raise CommandError(f"--seeds is a number like 5, or a list like 0,3,7; got {text!r}")
    return sorted(set(numbers)) if "," in text else list(range(numbers[0]))


def _settings_record(setup: SweepSetup, seeds: Sequence[int]) -> dict[str, Any]:
    """What makes the numbers what they are: all but where things lie and how many work on it."""
    options = asdict(setup.options)
    for name in ("out", "workers", "concurrency", "json", "compare"):
        del options[name]
    if setup.options.model.startswith("openai:"):
        options["base_url"] = _server(setup.options)
    return {
        **{name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
        "seeds": list(seeds),
        "methods": {name: asdict(settings) | _bank_digest(settings) for name, settings in setup.methods.items()},
    }


def _bank_digest(settings: Any) -> dict[str, str]:
    """What is recorded of a bank beside its path: a digest of the file, so that another one is not taken for it."""
    if not (bank := getattr(settings, "bank", "")):
        return {}
    try:
        stat = os.stat(bank)
        return {"bank_digest": _file_digest(bank, stat.st_mtime_ns, stat.st_size)}
    except OSError as error:
        raise CommandError(f"--bank {bank}: cannot be read ({error.strerror or error})") from error


@lru_cache(maxsize=4)
def _file_digest(path: str, written: int, size: int) -> str:
    import hashlib

    return hashlib.blake2b(Path(path).read_bytes(), digest_size=8).hexdigest()


def _bank_overlap_warnings(setup: SweepSetup, played: Sequence[str]) -> list[str]:
    """A line for each bank with trajectories of tasks (by id) that are played: methods may know these by heart."""
    from ...memory.trajectories import read_bank

    tasks, lines = set(played), list[str]()
    for bank in dict.fromkeys(filter(None, (getattr(settings, "bank", "") for settings in setup.methods.values()))):
        if known := tasks & {trajectory.task.id for trajectory in read_bank(bank)}:
            lines.append(f"{len(known)} of {len(tasks)} played tasks are in the bank {bank}: these scores are no test")
    return lines


def _server(options: RunOptions) -> str | None:
    """The server behind `openai:MODEL`, as tools.models finds it."""
    return options.base_url or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE") or None


def _digest(settings: Mapping[str, Any]) -> str:
    import hashlib
    import json

    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=3).hexdigest()


def _folder_name(setup: SweepSetup, settings: Mapping[str, Any]) -> str:
    import re

    thinks = any(_needs_model(name, setup.options) for name in setup.methods)
    words = "-".join([next(iter(setup.methods)), setup.options.env, setup.options.model if thinks else "no-model"])
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', words).strip('-')}-{_digest(settings)}"


def _job(setup: SweepSetup, folder: Path, method: str, seed: int) -> Job:
    from ..methods import find_method as find
    from ..studies.sweep import Job

    options = setup.options
    plain = method.replace(":", "-")
    name = f"{plain}-s{seed}"
    # Under one roof with other runs, names must not meet.
    unique = f"{folder.resolve().name}-{name}-{_digest(_settings_record(setup, _seeds(options.seeds)))}"
    of = plain if _shares_memory(setup, method) else name
    where, namespace = _memory_location(options.memory, of) if options.memory else _memory_location(str(folder / of / "memory"))
    checkpoints = str(folder / name / "checkpoints.sqlite")
    if options.checkpoints:
        url = "://" in options.checkpoints
        checkpoints = options.checkpoints if url else str(Path(options.checkpoints) / f"{name}.sqlite")
    return Job(
        method=method,
        seed=seed,
        episodes=options.episodes,
        folder=folder / name,
        run=unique if options.memory else name,
        thread=unique if options.memory or options.checkpoints else name,
        memory=where if find(method).has_memory else "",
        namespace=namespace,
        checkpoints=checkpoints,
        max_run_tokens=options.max_run_tokens,
    )


def _memory_location(memory: str, name: str = "") -> tuple[str, tuple[str, ...]]:
    """Where a memory lies, and the namespace of its shelf. `name` is a folder in a directory, a path on a server."""
    if "://" not in memory:
        return str(Path(memory) / name), ("trajectories",)
    from urllib.parse import urlsplit

    url = urlsplit(memory)
    return f"{url.scheme}://{url.netloc}", ("trajectories", *filter(None, [*url.path.split("/"), name]))


def _shares_memory(setup: SweepSetup, method: str) -> bool:
    """Whether the method's runs share one memory: then they are played one after the other, in the order of the seeds."""
    return bool(getattr(setup.methods[method], "cross_task", False))


def _check(options: RunOptions, seeds: Sequence[int], needs_model: bool) -> list[str]:
    """Find mistakes before workers start. Returns the ids of these seeds' tasks."""
    from ...tools.environments.catalogue import open_environment
    from ...tools.models.models import MODELS, open_model

    environment = open_environment(options.env, horizon=options.horizon)
    _judge(options, environment, model=object(), journal=None)
    played = [environment.task(seed, options.split).id for seed in seeds]
    environment.close()
    kind = options.model.partition(":")[0]
    known = {name.partition(":")[0] for name in MODELS}
    if needs_model and (kind not in known or kind == "openai"):  # the others load their weights: in the workers
        open_model(options.model, base_url=options.base_url)
    return played


def _needs_model(name: str, options: RunOptions) -> bool:
    from ..methods import find_method

    found = find_method(name)
    return found.needs_writer or (found.needs_model and options.prior == "model")


def _loads_model(name: str, options: RunOptions) -> bool:
    """Whether it has a model, if only to judge."""
    from ..methods import find_method

    return _needs_model(name, options) or (_asks_model(options.judge) and find_method(name).needs_model)


def _play_all(setup: SweepSetup, batches: Sequence[Sequence[Job]], sweep: Any) -> None:
    followers = {batch[0].method: [sweep.ScoreFollower(job) for job in batch] for batch in batches}
    due: list[tuple[SweepSetup, Sequence[Job]]] = []
    for batch in batches:
        left = tuple(job for job in batch if not sweep.is_finished(job))
        in_turn = _shares_memory(setup, batch[0].method)
        due += [(setup, left)] if in_turn and left else [(setup, (job,)) for job in left]
    with _progress(followers, setup.options.episodes) as tick:
        sweep.run_workers(due, play, setup.options.workers, tick, _concurrency(setup))
        tick()


def _concurrency(setup: SweepSetup) -> int:
    """How many runs a process plays at the same time."""
    options = setup.options
    remote = options.model.startswith("openai:") and any(_loads_model(name, options) for name in setup.methods)
    asked = options.concurrency if options.concurrency is not None else 16 if remote else 1
    if asked < 1:
        raise CommandError(f"--concurrency is at least 1, got {asked}")
    if asked > 1 and not remote:
        raise CommandError(f"--concurrency {asked} is for models behind an API (openai:NAME); --workers for the others")
    return asked


def play(work: tuple[SweepSetup, Sequence[Job]]) -> str | None:
    """Play runs in turn; what a worker process does. Returns what went wrong, if it is something the user can put right."""
    setup, jobs = work
    try:
        for job in jobs:
            _play(setup, job)
    except UserError as error:
        return str(error)
    except OSError as error:
        if error.errno not in STORAGE_ERRNOS:
            raise
        return f"{error.filename or setup.options.out or 'the run folder'}: {error.strerror}"
    except Exception:  # ours: a traceback as text reaches the parent whatever the exception is made of
        raise RuntimeError(traceback.format_exc()) from None
    return None


def _play(setup: SweepSetup, job: Job) -> None:
    from ..methods import find_method
    from ..studies import sweep

    options = setup.options
    chosen = find_method(job.method)
    with _open_lock:
        environment = _environment(options.env, options.horizon)
    task = environment.task(job.seed, options.split)
    model = _loads_model(job.method, options)

    def make(journal: Any, shelf: Any, log: Any, saver: Any) -> Any:
        from ..wiring import run
        from ..wiring.loop import PlainLoop

        with _open_lock:
            llm = _model(options.model, options.base_url) if model else None
        made = replace(make_method_inputs(options, environment, llm, journal, chosen), shelf=shelf, run=job.run)
        episode: Any = chosen.build(made, setup.methods[job.method], chain=True)
        if llm is not None and _policy_kind(options, environment, llm, chosen.needs_logits) == "answer":
            # One call of the model or two: played again after a crash, where checkpoints inside cost more than they save.
            episode = PlainLoop(episode)
        # Rewards that a model gave may differ the next time; those of a world or a rule would be the same.
        again = made.judge if _asks_model(options.judge) else None
        return run.build(episode, log, commit=chosen.commit, judge=again, checkpointer=saver)

    sweep.play_job(job, task, environment.optimum(task), make, getattr(environment, "solved", None))


_open_lock = Lock()
"""Held while an environment or a model is opened: the threads of a process share one."""


@lru_cache(maxsize=1)
def _environment(spec: str, horizon: int | None) -> Any:
    from ...tools.environments.catalogue import open_environment

    return open_environment(spec, horizon=horizon)


@lru_cache(maxsize=1)
def _model(spec: str, base_url: str | None) -> Any:
    from ...tools.models.models import open_model

    return open_model(spec, base_url=base_url, threads=1)


def make_method_inputs(options: RunOptions, environment: Any, model: Any, journal: Any, chosen: Any = None) -> Any:
    """What methods are put together from. `model` may be None where no method needs one."""
    from ...nodes.act.policies import logprobs_policy, verbalized_policy
    from ..wiring.parts import DEFAULT_WINDOW, MethodInputs, uniform_policy

    # A method that needs no model makes no use of a judge either.
    judge = _judge(options, environment, model, journal) if chosen is None or chosen.needs_model else None
    more: dict[str, Any] = {"judge": judge, "prompts": options.prompts}
    if options.policy_history_steps is not None:
        more["history_steps"] = options.policy_history_steps
    if model is None:
        return MethodInputs(environment, journal, window=options.window or DEFAULT_WINDOW, **more)
    kind = _policy_kind(options, environment, model, scores=chosen is None or chosen.needs_logits)
    if options.window is not None:
        more["window"] = min(options.window, getattr(model, "window", options.window))
    make: Any = (
        MethodInputs.with_scoring_model if kind == "local" else partial(MethodInputs.with_chat_model, stepwise=kind == "act")
    )
    made = make(environment, journal, model, **more)
    if options.prior == "uniform":
        return replace(made, make_policy=uniform_policy)
    named: dict[str, Any] = {"logprobs": logprobs_policy, "verbalized": verbalized_policy}
    return replace(made, make_policy=partial(named[kind], model, prompts=options.prompts)) if kind in named else made


def _policy_kind(options: RunOptions, environment: Any, model: Any, scores: bool) -> str:
    """How the model decides: as asked for, or as suits it, the environment and the method."""
    kind: str = options.policy
    if kind == "auto" and hasattr(model, "score"):
        return "local"
    if kind == "auto":
        return "verbalized" if scores else "answer" if hasattr(environment, "read") else "act"
    if kind == "local" and not hasattr(model, "score"):
        raise CommandError(f"--policy local needs a model in this process, not {options.model}; logprobs or verbalized do")
    if kind == "answer" and not hasattr(environment, "read"):
        raise CommandError(
            f"--policy answer is for tasks with one written answer; {options.env} is played step by step: act does"
        )
    return kind


def _judge(options: RunOptions, environment: Any, model: Any, journal: Any) -> Any:
    """The node that rewards the steps of a finished episode; None for the environment's rewards."""
    from ...nodes.evaluate import judge

    prompts = options.prompts
    made: Mapping[str, Callable[[], Any]] = {
        "environment": lambda: judge.EnvironmentJudge(journal),
        "rule": lambda: judge.RuleJudge(environment.verify, journal),
        "self": lambda: judge.self_judge(model, journal, prompts),
        "self:sparse": lambda: judge.self_judge(model, journal, prompts, sparse=True),
        "pairwise": lambda: judge.pairwise_judge(model, journal, _reference(options, environment), prompts),
        "model": lambda: judge.model_judge(model, journal, prompts),
    }
    names = options.judge.split("+")
    for name in names:
        if name not in made:
            raise CommandError(f"--judge is {', '.join(made)}, or several of them, joined by +; got {options.judge!r}")
        if name == "rule" and not hasattr(environment, "verify"):
            raise CommandError(f"{options.env} has no rule to judge by; --judge environment or self would do")
        if name == "pairwise" and options.reference is None and not hasattr(environment, "gold"):
            raise CommandError(f"{options.env} has no reference answer to compare with; give one with --reference FILE")
        if _asks_model(name) and model is None:
            raise CommandError(f"--judge {name} asks a model, and there is none here; --judge environment or rule would do")
    if names == ["environment"]:
        return None
    return made[names[0]]() if len(names) == 1 else judge.Ensemble(tuple(made[name]() for name in names))


def _reference(options: RunOptions, environment: Any) -> Callable[[Any], Any]:
    """Task -> the answer that `pairwise` compares attempts with."""
    if options.reference is None:
        reference: Callable[[Any], Any] = environment.gold
        return reference
    try:
        text = options.reference.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--reference {options.reference}: cannot be read ({error})") from error
    return lambda task: text


def _asks_model(judge: str) -> bool:
    """Whether judging takes a model (and may say something else the next time)."""
    return any(name.partition(":")[0] in ("self", "pairwise", "model") for name in judge.split("+"))


def _report(setup: SweepSetup, folder: Path, batches: Sequence[Sequence[Job]], sweep: Any) -> int:
    import json

    from ..studies import benchmark

    options = setup.options
    named = {name: _table_name(name, settings) for name, settings in setup.methods.items()}
    results = [[replace(sweep.seed_result(job), method=named[job.method]) for job in batch] for batch in batches]
    rows = [
        benchmark.summary(attempts, options.env, options.model if _needs_model(batch[0].method, options) else "none")
        for attempts, batch in zip(results, batches, strict=True)
    ]
    sweep.write_json(folder / "results.json", [row.as_dict() for row in rows])
    pictures = [folder / "curves.png", folder / "curves.svg"]
    if not all(picture.exists() for picture in pictures):
        prior = options.model if options.prior == "model" else "uniform prior"
        benchmark.draw_learning_curves(results, f"{options.env}, {prior}", pictures)
    drawn = [_draw_into(folder, name, settings) for name, settings in setup.methods.items()]
    tasks = [sweep.task_id(job) for job in batches[0]]
    remarks = [*_bank_overlap_warnings(setup, tasks), *benchmark.bank_cost_notes(rows), *_missing_reward_lines(folder)]
    if options.json:
        for row in rows:
            print(json.dumps(row.as_dict()))
        for line in remarks:
            _say(line)
    else:
        print(f"{options.env}, {options.episodes} episodes, {len(results[0])} seeds; [95 % interval over seeds]\n")
        print(benchmark.table(rows))
        print(f"\nlearning curves  {pictures[0]}  {pictures[1].name}")
        print(f"graphs           {'  '.join(map(str, drawn))}")
        print(f"all of it        {folder}")
        for line in remarks:
            print(line)
    return 0


def _table_name(method: str, settings: Any) -> str:
    """A method's name in tables, with what its settings say must stand there."""
    remark = getattr(settings, "remark", "")
    return f"{method} ({remark})" if remark else method


def _missing_reward_lines(folder: Path) -> list[str]:
    """A line for each method some of whose attempts have no reward."""
    from ...nodes.evaluate.judge import NO_REWARDS_REASON
    from ..studies import calibration

    found = calibration.read_run_folder(folder)
    lines = [calibration.missing_reward_note(rated, method, NO_REWARDS_REASON) for method, (rated, _) in found.items()]
    return [line for line in lines if line]


def _draw_into(folder: Path, method: str, settings: Any) -> Path:
    from ..wiring import picture

    path = folder / f"{method.replace(':', '-')}.svg"
    if path.exists():
        return path
    graph = _blueprint(method, settings)
    if not picture.has_graphviz():
        path = path.with_suffix(".mmd")
    picture.save(graph, path)
    return path


@contextmanager
def _interruptible(folder: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise RunInterrupted(f"stopped; finished episodes are in {folder}, and the same command goes on from there") from None
    except UserError as error:
        raise UserError(f"{error}; finished episodes are in {folder}, and the same command goes on from there") from None


@contextmanager
def _progress(followers: Mapping[str, Sequence[Any]], episodes: int) -> Iterator[Callable[[], None]]:
    """Show how far each method is, and its mean score so far: bars on a terminal, else a line now and then."""
    from time import monotonic

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    def state(method: str) -> tuple[int, str]:
        scores = [score for follower in followers[method] for score in follower.read_scores()]
        return len(scores), f"{sum(scores) / len(scores):.3g}" if scores else "–"

    console = Console(stderr=True)
    if console.is_terminal:
        columns = TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TextColumn("episodes")
        with Progress(*columns, TextColumn("mean score {task.fields[score]}"), TimeElapsedColumn(), console=console) as bars:
            totals = {name: episodes * len(followers[name]) for name in followers}
            tasks = {name: bars.add_task(name, total=total, score="–") for name, total in totals.items()}

            def tick() -> None:
                for name, task in tasks.items():
                    done, score = state(name)
                    bars.update(task, completed=done, score=score)

            yield tick
        return
    said, before = monotonic(), ""

    def line() -> None:
        nonlocal said, before
        states = {name: (state(name), len(followers[name]) * episodes) for name in followers}
        text = ", ".join(f"{name} {done}/{total} mean {score}" for name, ((done, score), total) in states.items())
        ended = all(done == total for (done, _), total in states.values())
        if text != before and (ended or monotonic() - said > 10):
            _say(text)
            said, before = monotonic(), text

    yield line


# learngraph calibrate


@dataclass(frozen=True)
class CalibrateOptions:
    """What to print."""

    json: bool = False
    """Print one JSON object per method to stdout, and nothing else."""


def calibrate(args: Sequence[str]) -> int:
    """hold the rewards that a method saw against the true scores: learngraph calibrate RUN_FOLDER [METHOD]"""
    import json

    from ..studies import calibration

    prog, about = (
        "learngraph calibrate RUN_FOLDER [METHOD]",
        "Are attempts with a higher reward r truly better? By r*, the score.",
    )
    if args and args[0] in ("-h", "--help"):
        _parse(CalibrateOptions, ["--help"], prog, about)
    places = [arg for arg in args if not arg.startswith("-")]
    if not 1 <= len(places) <= 2:
        raise CommandError(f"{prog}: needs a folder that learngraph run has made; got {' '.join(args) or 'nothing'}")
    options = _parse(CalibrateOptions, [arg for arg in args if arg.startswith("-")], prog, about)
    done, left = calibration.calibrate_methods(calibration.read_run_folder(Path(places[0]), *places[1:]))
    for number, found in enumerate(done):
        if options.json:
            print(json.dumps(found.as_dict()))
        else:
            print(("\n" if number else "") + calibration.report(found))
    for line in left:
        _say(line)
    return 0


# learngraph list, draw


def listing(args: Sequence[str]) -> int:
    """the methods, environments and models, with what each needs installed"""
    from ...tools.environments.catalogue import ENVIRONMENTS
    from ...tools.models.models import MODELS
    from ..methods import METHODS

    _parse_nothing(args, "learngraph list")
    sections: Mapping[str, Mapping[str, str]] = {
        "methods": {name: method.summary for name, method in METHODS.items()},
        "served": SERVED_GRAPHS,
        "environments": ENVIRONMENTS,
        "models": {name: f"{model.summary}; needs {model.needs}" for name, model in MODELS.items()},
    }
    for title, rows in sections.items():
        print(title)
        for name, text in rows.items():
            missing = _missing(name)
            print(f"  {name:<20} {text}" + (f"  [not here: {missing}]" if missing else ""))
    return 0


def _missing(name: str) -> str:
    """What an environment or a model of this name still needs here; empty if nothing."""
    from importlib.util import find_spec

    match name.partition(":")[0]:
        case "twx" if find_spec("textworld_express") is None:
            return "textworld-express"
        case "scienceworld" if find_spec("scienceworld") is None:
            return "scienceworld"
        case "alfworld" if find_spec("alfworld") is None or find_spec("textworld") is None:
            return "textworld[pddl] and alfworld"
        case "alfworld" if "ALFWORLD_DATA" not in os.environ:
            return "$ALFWORLD_DATA"
        case "math" if find_spec("math_verify") is None:
            return "math-verify"
        case "reasoning" if find_spec("reasoning_gym") is None:
            return "reasoning-gym"
        case "hotpot" | "webshop" if find_spec("bm25s") is None:
            return "bm25s"
        case "jericho" if find_spec("jericho") is None:
            return "jericho"
        case "jericho" if "JERICHO_GAMES" not in os.environ:
            return "$JERICHO_GAMES"
        case "pocket":
            from ...tools.models.models import POCKET

            return "" if (POCKET / "config.json").exists() else "its weights"
        case "openai" if "OPENAI_API_KEY" not in os.environ:
            return "$OPENAI_API_KEY"
    return ""


def _blueprint(method: str, settings: Any = None) -> Any:
    """The graph of a method's episode, put together without a model, an environment or a bank: to look at."""
    from ...memory.storage.journal import Journal
    from ...nodes.act.policies import LocalPolicy, act_policy
    from ...nodes.prompt import Prompt
    from ..methods import find_method as find
    from ..wiring.parts import MethodInputs

    settings = _settings(method) if settings is None else settings
    # What lies in files changes nothing in the picture, and may not be here.
    settings = replace(settings, **{name: "" for name in ("bank", "embedder") if hasattr(settings, name)})
    absent: Any = None
    prompt = Prompt.load("act/score")
    parts = MethodInputs(
        absent,
        Journal(),
        make_policy=lambda seen: LocalPolicy(absent, seen, prompt),
        model=cast(Any, object()),  # never asked
        make_writing_policy=lambda seen, style: act_policy(absent, seen),
    )
    return find(method).build(parts, settings)


@dataclass(frozen=True)
class DrawOptions:
    """Where to, and what."""

    out: Path
    """The picture: .svg, .png, or .mmd for Mermaid text."""
    run: bool = False
    """Draw the graph of a whole run, not of an episode."""


def draw(args: Sequence[str]) -> int:
    """draw the graph of a method, without loading a model or an environment"""
    from ..claas import blueprint
    from ..methods import METHODS
    from ..methods import find_method as find
    from ..wiring import picture

    if args and args[0] in ("-h", "--help"):
        _parse(DrawOptions, ["--help"], "learngraph draw METHOD")
    if not args or args[0].startswith("-"):
        raise CommandError(f"learngraph draw METHOD -o FILE: which method? there are {', '.join([*METHODS, *SERVED_GRAPHS])}")
    name, *rest = ["--out" if arg == "-o" else arg for arg in args]
    options = _parse(DrawOptions, rest, f"learngraph draw {name}")
    graph = blueprint(name) if name in SERVED_GRAPHS else _blueprint(name)
    if options.run and name not in SERVED_GRAPHS and not find(name).has_training_phase:  # whose graph is a run's already
        from ..wiring import run as runs

        graph = runs.build(graph)
    picture.save(graph, options.out)
    print(options.out)
    return 0


# learngraph memory


@dataclass(frozen=True)
class PruneOptions:
    """What to keep."""

    keep_last: int
    """How many of the last episodes of each memory stay; the others are deleted for good."""


MEMORY_USAGE = """\
usage: learngraph memory show PATH | export PATH FILE | import PATH FILE | prune PATH --keep-last N

PATH is a memory, or (but for import) a folder or server with several. A run with `--memory DIR` keeps them in
DIR/<method>-s<seed>, a run with `--memory http://host:port` in http://host:port/<method>-s<seed>, any other in its folder."""


def memory(args: Sequence[str]) -> int:
    """show, export, import or prune what agents remember: learngraph memory show|export|import|prune PATH"""
    if args and args[0] in ("-h", "--help"):
        print(MEMORY_USAGE)
        return 0
    if len(args) < 2 or args[0] not in ("show", "export", "import", "prune"):
        raise CommandError(MEMORY_USAGE.partition("\n")[0])
    verb, where, *rest = args
    if verb in ("export", "import"):
        if len(rest) != 1:
            raise CommandError(f"learngraph memory {verb} PATH FILE: needs one file, got {rest or 'none'}")
        return _export(where, rest[0]) if verb == "export" else _import(where, rest[0])
    if verb == "show":
        _parse_nothing(rest, "learngraph memory show PATH")
        return _show(where)
    return _prune(where, _parse(PruneOptions, rest, "learngraph memory prune PATH").keep_last)


@contextmanager
def _shelves(where: str) -> Iterator[list[Any]]:
    """The shelves of trajectories in a memory, a run folder, or a server."""
    from ...memory.records import Trajectory
    from ...memory.storage.chroma_store import ChromaStore
    from ...memory.storage.shelf import RecordStore

    place, prefix = _memory_location(where)
    if "://" in where:
        found = [place]
    else:
        found = _memories(where)
        if not found:
            raise CommandError(f"there is no memory in {where}; a run folder or one of its memory directories would do")
    with ExitStack() as stack:
        stores = [stack.enter_context(ChromaStore.open(path)) for path in found]
        yield [
            RecordStore(store, namespace, Trajectory)
            for store in stores
            for namespace in store.list_namespaces(prefix=prefix, limit=100_000)
        ]


def _memories(directory: str) -> list[str]:
    return sorted(str(path.parent) for path in Path(directory).rglob("chroma.sqlite3"))


def _show(where: str) -> int:
    with _shelves(where) as shelves:
        groups: dict[tuple[str, str, str], list[Any]] = {}
        for shelf in shelves:
            for trajectory in shelf.all():
                groups.setdefault((trajectory.domain, trajectory.task.id, trajectory.run), []).append(trajectory)
    lines = [("domain", "task", "run", "episodes", "steps", "mean score")]
    for key, found in sorted(groups.items()):
        steps = sum(len(t.transitions) for t in found)
        lines.append((*key, str(len(found)), str(steps), f"{sum(t.score for t in found) / len(found):.3g}"))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0


def _export(where: str, file: str) -> int:
    from ...memory.storage.shelf import as_jsonl, write_jsonl

    with _shelves(where) as shelves:
        found = [trajectory for shelf in shelves for trajectory in shelf.all()]
    if file == "-":
        sys.stdout.writelines(as_jsonl(found))
    else:
        write_jsonl(found, file)
    _say(f"{len(found)} episodes")
    return 0


def _import(where: str, file: str) -> int:
    from ...memory.records import Trajectory
    from ...memory.storage.chroma_store import ChromaStore
    from ...memory.storage.shelf import RecordStore

    place, namespace = _memory_location(where)
    if "://" in where and namespace == ("trajectories",):
        raise CommandError(f"{where} keeps many memories: say which, such as {where.rstrip('/')}/jitrl-s0")
    if "://" not in where and (inside := _memories(where)) and str(Path(where)) not in inside:
        raise CommandError(f"{where} has memories within: say which, such as {inside[0]}")
    with ChromaStore.open(place) as store:
        count = RecordStore(store, namespace, Trajectory).import_jsonl(file)
    _say(f"{count} episodes")
    return 0


def _prune(where: str, keep: int) -> int:
    from ...memory.experiences import Experiences

    if keep < 0:
        raise CommandError(f"--keep-last is at least 0, got {keep}")
    with _shelves(where) as shelves:
        for shelf in shelves:
            _say(f"{shelf}: {Experiences(shelf).prune(keep_last=keep)} episodes deleted")
    return 0


# learngraph library


def library(args: Sequence[str]) -> int:
    """show, compare, edit or roll back a learned library: learngraph library show|diff|export|import|rollback"""
    from .library import library as command

    return command(args)


# learngraph pocket


@dataclass(frozen=True)
class PocketGateOptions:
    """How much to measure."""

    model: Path | None = None
    """Folder of the weights; those of the package if not given."""
    toy_domains: int = 20
    """Held-out domains of the toy world."""
    tasks: int = 20
    """Test tasks of each TextWorldExpress game; 0 leaves them out."""
    seed: int = 0
    """Of the draws."""


def pocket(args: Sequence[str]) -> int:
    """train the pocket model from scratch, or measure what it can do: learngraph pocket train|gate"""
    usage = "usage: learngraph pocket train --out DIR | gate; each with --help"
    if args and args[0] in ("-h", "--help"):
        print(usage)
        return 0
    if not args or args[0] not in ("train", "gate"):
        raise CommandError(usage)
    if args[0] == "train":
        import logging

        from ...tools.pocket.train import PocketTraining, train

        settings = _parse(PocketTraining, args[1:], "learngraph pocket train")
        logging.basicConfig(format="%(message)s")  # to stderr: a line a minute or so
        logging.getLogger("learngraph").setLevel(logging.INFO)
        _say(f"written to {train(settings)}")
        return 0
    from ...tools.pocket import evaluate

    asked: PocketGateOptions = _parse(PocketGateOptions, args[1:], "learngraph pocket gate")
    where = {} if asked.model is None else {"model_dir": asked.model}
    print(evaluate.markdown_table(evaluate.measure_model(**where, keeps=asked.toy_domains, tasks=asked.tasks, seed=asked.seed)))
    return 0


# learngraph serve, claas


def serve(args: Sequence[str]) -> int:
    """a chat API (OpenAI's) whose model learns from feedback while it answers: learngraph serve --api-key KEY"""
    from .serve import serve as command

    preset, rest = _preset(args)
    return command(rest, preset)


def claas(args: Sequence[str]) -> int:
    """what continual learning from feedback comes to, in a stream of scenarios: learngraph claas study"""
    from ..studies.claas_stream import claas as command

    return command(args)


# the rest

COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "run": run,
    "serve": serve,
    "calibrate": calibrate,
    "list": listing,
    "draw": draw,
    "memory": memory,
    "library": library,
    "adamem": adamem,
    "claas": claas,
    "pocket": pocket,
}


def _parse_nothing(args: Sequence[str], prog: str) -> None:
    if args and args[0] in ("-h", "--help"):
        print(f"usage: {prog}")
        raise SystemExit(0)
    if args:
        raise CommandError(f"{prog} takes no further arguments, got {args[0]}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _help() -> str:
    lines = [f"  {name:<9} {command.__doc__}" for name, command in COMMANDS.items()]
    about = "LangGraph agents that learn while they work.\n\nusage: learngraph COMMAND [OPTIONS]\n\ncommands:"
    return "\n".join([about, *lines, "", "learngraph COMMAND --help says more; learngraph --version, which version this is."])


def _command(args: Sequence[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(_help())
        return 0
    if args[0] == "--version":
        from importlib.metadata import version

        print(version("learngraph"))
        return 0
    if args[0] not in COMMANDS:
        raise CommandError(f"learngraph has no command '{args[0]}'; there are {', '.join(COMMANDS)}")
    return COMMANDS[args[0]](args[1:])


def main(args: Sequence[str] | None = None) -> int:
    """The entry point. 0: done; 2: something the user can put right, in one line on stderr; 130: interrupted."""
    try:
        return _command(sys.argv[1:] if args is None else args)
    except RunInterrupted as error:
        _say(str(error))
        return 130
    except UserError as error:
        _say("learngraph: " + " ".join(str(error).split()))
        return 2
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.errno == errno.EPIPE:  # whoever read our output has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        if error.errno not in STORAGE_ERRNOS:
            raise
        _say(f"learngraph: {error.filename or 'the disk'}: {error.strerror}; once that is put right, the same command goes on")
        return 2


if __name__ == "__main__":
    sys.exit(main())
