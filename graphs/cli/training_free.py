"""`learngraph run training-free-grpo`: learn a library of lessons on some problems, then play unseen ones with and without it.

    learngraph run training-free-grpo --env toy --model pocket --compare training-free-grpo:empty training-free-grpo?arm=shuffled
    learngraph run training-free-grpo --env math --model openai:NAME --compare training-free-grpo:empty --dry-run

    <folder>/settings.json               the settings; a run with others needs another folder
    <folder>/cache.sqlite                every reply and every finished rollout of all arms and seeds: nothing is paid for twice
    <folder>/<arm>-s<seed>/library.jsonl every version of the library, with the rulings of all proposed edits
    <folder>/<arm>-s<seed>/library.yaml  the version that was tested, for people (and for --library)
    <folder>/<arm>-s<seed>/learned.jsonl one row per learning step
    <folder>/<arm>-s<seed>/steps.jsonl   one row per step of an episode
    <folder>/<arm>-s<seed>/test.jsonl    one row per rollout of the test
    <folder>/<arm>-s<seed>/checkpoints.sqlite
    <folder>/<arm>-s<seed>/result.json   written last: this arm is finished

All arms of a seed play the same unseen problems with the same run indices. A run may be killed at any point: the same command
goes on, and ends with the same numbers.

Part of the command line: it joins tools to graphs. Slow imports stand inside the functions that need them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ...memory.errors import CommandError, UserError
from ..arms import blueprint, method_settings
from ..experiments.folder import parse_seeds
from ..experiments.training_free.bench import play_seed
from ..experiments.training_free.digests import folder_name, run_settings
from ..experiments.training_free.dry_run import check_arms_build, check_models, dry_run
from ..experiments.training_free.report import print_progress, write_report
from ..experiments.training_free.setup import (
    LibraryArm,
    ProblemSplit,
    TrainingFreeOptions,
    TrainingFreeSetup,
    problem_splits,
)
from .flags import parse_options_and_settings

__all__ = []


def learn_and_test(method: str, defaults: Any, args: Sequence[str], about: str) -> int:
    """Learn on some problems and test on others: `learngraph run` for methods that learn across problems. Returns the exit code.

    Args:
        method: the method's name as on the command line.
        defaults: its settings where no flag says something else.
        args: the flags after the name.
        about: the first text of --help.

    Raises:
        CommandError: the flags do not go together, or an arm cannot run.
    """
    title = f"{type(defaults).__name__}: settings of the method"
    options, settings = parse_options_and_settings(
        TrainingFreeOptions, defaults, args, f"learngraph run {method}", about, title
    )
    from ..methods import split_name

    own = split_name(method)[0]
    arms = [LibraryArm(method, settings, own)]
    given = {
        one.name: value
        for one in fields(defaults)
        if one.name != "arm" and (value := getattr(settings, one.name)) != getattr(defaults, one.name)
    }
    for name in dict.fromkeys(options.compare):
        if name != method:
            kind = split_name(name)[0]
            other = method_settings(name, main=(method, settings), shared=given if kind == own else {})
            if kind == "tool-agent" and options.tool_turns is not None:
                other = replace(other, max_turns=options.tool_turns)
            arms.append(LibraryArm(name, other, kind))
    _check_arms(arms, options)
    setup = TrainingFreeSetup(options, tuple(arms), tuple(parse_seeds(options.seeds)), Path())
    splits = problem_splits(setup)
    record = run_settings(setup, splits)
    setup = replace(setup, folder=options.out or Path("runs") / folder_name(setup, record))
    if options.dry_run or setup.unfinished_seeds:
        check_models(setup)
        check_arms_build(setup, splits)
    if options.dry_run:
        return dry_run(setup, _with_arms_there(setup.folder, record))
    return _run(setup, record, splits)


def _with_arms_there(folder: Path, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings, with the arms that the folder has beside those asked for."""
    from ..experiments.folder import read_settings

    path = folder / "settings.json"
    try:
        there = read_settings(path).get("arms") if path.exists() else {}
    except ValueError:
        there = {}  # refused later, with a message
    return {**settings, "arms": {**(there or {}), **settings["arms"]}}


def _check_arms(arms: Sequence[LibraryArm], options: TrainingFreeOptions) -> None:
    from ..methods import find_method

    for arm in arms[1:]:
        if arm.library_source == "method" and find_method(arm.method).has_memory:
            raise CommandError(
                f"--compare {arm.name}: it learns from attempts at one problem, and here each problem is met once; react does, or "
                f"a preset of {arms[0].method} such as {arms[0].method}:empty"
            )
    if options.tool_turns is not None and not options.tool_names:
        raise CommandError(f"--tool-turns {options.tool_turns} is for models with tools, and none are given (--tools python)")
    if options.corpus is not None and "search" not in options.tool_names:
        raise CommandError(f"--corpus {options.corpus} is what the tool search finds, and it is not given (--tools search)")


def _run(setup: TrainingFreeSetup, settings: Mapping[str, Any], splits: Mapping[int, ProblemSplit]) -> int:
    from ..experiments import folder, pool

    with folder.claim_folder(setup.folder, _with_arms_there(setup.folder, settings)):
        if due := setup.unfinished_seeds:
            _warn_about_sandbox(setup.options)
            with _progress(setup) as tick, pool.environment_defaults(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false"):
                try:
                    work = [(setup, seed, splits[seed]) for seed in due]
                    wrong = pool.run_workers(work, play_seed, setup.options.workers, tick, engine=setup.options.engine)
                    tick()
                    if wrong:
                        raise UserError("; ".join(dict.fromkeys(wrong)))
                except KeyboardInterrupt:
                    print_progress(f"stopped; what is finished is in {setup.folder}, and the same command goes on from there")
                    raise
                except UserError as error:
                    raise UserError(
                        f"{error}; what is finished is in {setup.folder}, and the same command goes on from there"
                    ) from None
        else:
            print_progress(
                f"finished already; these are its results (remove {setup.folder} or give another --out to learn again)"
            )
        return write_report(setup, blueprint)


def _warn_about_sandbox(options: TrainingFreeOptions) -> None:
    """Print a warning if this machine cannot fully isolate a model's Python code."""
    from ...tools.agent_tools.interpreter import Interpreter

    if "python" not in options.tool_names:
        return
    with Interpreter() as interpreter:
        interpreter.run("1")
        if lacking := sorted({"limits", "files", "calls"} - interpreter.walls):
            print_progress(
                f"--tools python: this machine does not offer all walls around a model's code ({', '.join(lacking)} missing, see "
                "tools/agent_tools/interpreter.py); run only models that mean no harm, or all of it in a container"
            )


@contextmanager
def _progress(setup: TrainingFreeSetup) -> Iterator[Callable[[], None]]:
    """Yields a function that prints progress every 30 seconds: steps learned, and rollouts of the test played."""
    from time import monotonic

    rollouts = setup.options.test_problems * setup.options.test_rollouts * len(setup.seeds)
    printed, before = monotonic(), ""

    def tick() -> None:
        nonlocal printed, before
        if monotonic() - printed < 30:
            return
        parts = []
        for arm in setup.arms:
            learned, tested = (
                sum(_count_lines(setup.arm_folder(arm, s) / name) for s in setup.seeds)
                for name in ("learned.jsonl", "test.jsonl")
            )
            if learned or tested:
                parts.append(
                    f"{arm.name}: {f'{learned} steps learned, ' if arm.learns else ''}{tested} of {rollouts} test rollouts"
                )
        if (text := "; ".join(parts)) and text != before:
            print_progress(text)
            printed, before = monotonic(), text

    yield tick


def _count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
