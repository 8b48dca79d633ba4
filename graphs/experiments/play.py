"""One run: the environment, the model and the judge are opened, the method's graph is built from them and played to its end."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from ...memory.errors import CommandError, UserError
from ..experiments.options import ModelOptions
from .options import RunOptions, RunSetup

if TYPE_CHECKING:
    from .sweep import Job, RunFailure

__all__ = ["make_method_inputs", "method_resources"]

STORAGE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
"""Errors of a disk that is full or may not be written to: the user can put them right."""

_open_lock = Lock()
"""Held while an environment or a model is opened: the threads of a process share one."""


def play(work: tuple[RunSetup, Sequence[Job]]) -> list[RunFailure] | None:
    """Play runs in turn: the work of a worker process.

    Returns:
        The runs that failed, if the user can put it right; None if none did.
    """
    from ...nodes.cached_model import BudgetSpent
    from .sweep import RunFailure

    setup, jobs = work
    _note_waits(jobs[0].folder.parent)
    for number, job in enumerate(jobs):
        try:
            _play_job(setup, job)
        except BudgetSpent as error:
            failed = RunFailure(job.method, job.seed, str(error), kind="stopped")
        except UserError as error:
            failed = RunFailure(job.method, job.seed, str(error), error.fails_again)
        except (Exception, SystemExit) as error:  # a world or a method from outside may call sys.exit
            if not isinstance(error, OSError) or error.errno not in STORAGE_ERRNOS:
                # Ours: a traceback as text reaches the parent whatever the exception is made of.
                raise RuntimeError(traceback.format_exc()) from None
            place = error.filename or setup.options.out or "the run folder"
            failed = RunFailure(job.method, job.seed, f"{place}: {error.strerror}")
        else:
            continue
        # The runs after it learn from its episodes.
        reason = f"waits for {job.method}, seed {job.seed}, whose memory it shares"
        return [failed, *(RunFailure(later.method, later.seed, reason, failed.fails_again) for later in jobs[number + 1 :])]
    return None


def _note_waits(folder: Path) -> None:
    """Let this process say in the run folder when it waits before it asks a server again."""
    from ...tools.models import api_posts
    from .waits import note_wait

    api_posts.wait_listeners[:] = [partial(note_wait, folder)]


def _play_job(setup: RunSetup, job: Job) -> None:
    from ...nodes.recorded_model import RecordedChatModel
    from . import sweep
    from .costs import open_ledger
    from .training_free.options import LearningOptions
    from .training_free.play import learn_and_play

    if isinstance(setup.options, LearningOptions):
        return learn_and_play(setup, job)
    with _open_lock:
        environment = shared_environment(setup.options.env, setup.options.horizon)
    task = environment.task(job.seed, setup.options.split)
    with sweep.open_run(job) as files, open_ledger(job.folder.parent) as ledger:
        model = count_flops = make_trainer = None
        if loads_model(job.method, setup.options):
            with _open_lock:
                opened, count_flops, make_trainer = _open_model(setup, job)
            model = _metered(opened, setup.options, job, ledger)
            if make_trainer is None:  # the replies of changing weights could not be told apart
                model = RecordedChatModel(files.replies, model)
        graph = run_graph(setup, job, environment, files, model, make_trainer)
        known = getattr(environment, "knows_optimum", lambda task: True)(task)
        solved = getattr(environment, "solved", None)
        optimum = environment.optimum(task)
        full_score = optimum if known and job.stops_at_full_score else None
        sweep.play_run(
            graph,
            files,
            job,
            task,
            optimum,
            solved,
            is_walkthrough=not known,
            full_score=full_score,
            count_flops=count_flops,
        )


def _open_model(setup: RunSetup, job: Job) -> tuple[Any, Callable[[], float] | None, Callable[[Any], Any] | None]:
    """The model of a run, a count of its floating-point operations, and the maker of a trainer for a method that trains weights.

    A model in this process is shared by the runs that leave its weights alone. One that is trained is the run's own.
    """
    from ..methods import find_method

    options, trains = setup.model_options(job.method), find_method(job.method).trains_weights
    name = setup.options.model
    model = (shared_model.__wrapped__ if trains else shared_model)(name, options)
    if not hasattr(model, "network"):
        return model, None, None
    from ...tools.training.flops import FlopMeter

    meter = FlopMeter(model.network) if trains else _shared_meter(name, options)
    if not trains:
        return model, meter.count, None
    from ...tools.training.trl_trainers import TrlTrainer

    return model, meter.count, lambda settings: TrlTrainer(model, job.folder / "adapters", settings, meter)


def run_graph(
    setup: RunSetup, job: Job, environment: Any, files: Any, model: Any, make_trainer: Callable[[Any], Any] | None = None
) -> Any:
    """The graph of a whole run: episodes of the method, one after the other.

    Args:
        setup: the options, and the settings of the method.
        job: which run.
        environment: the world.
        files: where it reads and writes (`RunFiles`).
        model: the model; None where none is asked.
        make_trainer: makes a trainer of the model's weights.
    """
    from ..methods import find_method
    from ..wiring import run
    from ..wiring.supersteps import UncheckpointedGraph, merge_steps

    options, method = setup.options, find_method(job.method)
    judging = model.bind(temperature=0) if model is not None and setup.asks_at_paper_temperature(job.method) else model
    inputs = make_method_inputs(options, environment, model, files.journal, method, judging)
    inputs = replace(inputs, records=files.records, run=job.run)
    more = method_resources(method, make_trainer, files.training)
    episode: Any = method.build(inputs, setup.methods[job.method], **more)
    if job.attempts_at_once > 1:
        episode = run.ParallelAttempts(UncheckpointedGraph(episode), job.attempts_at_once)
    elif model is not None and _policy_kind(options, environment, model, method.needs_logits) == "answer":
        # One call of the model or two: played again after a crash, where checkpoints inside cost more than they save.
        episode = UncheckpointedGraph(episode)
    else:
        episode = merge_steps(episode)
    # Rewards that a model gave may differ the next time; those of a world or a rule would be the same.
    judge = inputs.judge if asks_model(options.judge) else None
    return run.build(episode, files.log, commit=method.commit, judge=judge, checkpointer=files.saver)


def _metered(model: Any, options: RunOptions, job: Job, ledger: Any) -> Any:
    """The model with its calls counted and limited; as it is in this process, where calls cost nothing, without a budget."""
    from ...nodes.cached_model import CachedChatModel, Prices, SpendingLimit

    limited = options.token_budget or options.dollar_budget
    if not limited and not options.model.startswith("openai:"):
        return model
    prices = Prices(options.price_in, options.price_out)
    limit = SpendingLimit(ledger, prices, max_dollars=options.dollar_budget or None, max_tokens=options.token_budget or None)
    stage = job.folder.name
    return CachedChatModel(model, options.model, ledger, stage, meter=limit if limited else None, seeded=False)


@lru_cache(maxsize=2)
def shared_environment(spec: str, horizon: int | None) -> Any:
    """The environment of this name, opened once in a process."""
    from ...tools.environments.catalogue import open_environment

    return open_environment(spec, horizon=horizon)


@lru_cache(maxsize=8)
def shared_model(spec: str, options: ModelOptions) -> Any:
    """The model of this name, opened once in a process for each combination of options."""
    from ...tools.models.models import open_model

    return open_model(spec, **options.model_arguments(), threads=1)


@lru_cache(maxsize=8)
def _shared_meter(spec: str, options: ModelOptions) -> Any:
    """The count of operations of a model that runs share."""
    from ...tools.training.flops import FlopMeter

    return FlopMeter(shared_model(spec, options).network)


def needs_model(name: str, options: RunOptions) -> bool:
    """True if the method of this name asks a model for its actions, or has one write."""
    from ..methods import find_method

    method = find_method(name)
    return method.needs_writer or (method.needs_model and options.prior == "model")


def loads_model(name: str, options: RunOptions) -> bool:
    """True if a model is loaded for the method, if only to judge."""
    from ..methods import find_method

    return needs_model(name, options) or (asks_model(options.judge) and find_method(name).needs_model)


def make_method_inputs(
    options: RunOptions, environment: Any, model: Any, journal: Any, method: Any = None, judging: Any = None
) -> Any:
    """The `MethodInputs` that a method's graph is built from.

    Args:
        options: the options of the run.
        environment: the world.
        model: the model; None where no method needs one.
        journal: the log of steps.
        method: the method; None for any that asks a model for logits.
        judging: the model that judges; the same if not given.
    """
    from ...nodes.act.policies import logprobs_policy, verbalized_policy
    from ..wiring.inputs import DEFAULT_WINDOW, MethodInputs, uniform_policy

    # A method that needs no model has none that could judge.
    is_judged = method is None or method.needs_model or not asks_model(options.judge)
    judge = judge_node(options, environment, judging or model, journal) if is_judged else None
    more: dict[str, Any] = {"judge": judge, "prompts": options.prompts}
    if options.policy_history_steps is not None:
        more["history_steps"] = options.policy_history_steps
    if (prior := getattr(environment, "policy", None)) is not None:  # the world's own, in a model's place
        more["make_policy"] = lambda view: prior
    if model is None or prior is not None:
        return MethodInputs(environment, journal, window=options.window or DEFAULT_WINDOW, **more)
    kind = _policy_kind(options, environment, model, scores=method is None or method.needs_logits)
    if options.window is not None:
        # A model in this process knows its window. What a name tells of one behind an API may be wrong either way.
        more["window"] = min(options.window, model.window) if kind == "local" else options.window
    make: Any = (
        MethodInputs.with_scoring_model if kind == "local" else partial(MethodInputs.with_chat_model, stepwise=kind == "act")
    )
    inputs = make(environment, journal, model, **more)
    if options.prior == "uniform":
        return replace(inputs, make_policy=uniform_policy)
    named: dict[str, Any] = {"logprobs": logprobs_policy, "verbalized": verbalized_policy}
    return replace(inputs, make_policy=partial(named[kind], model, prompts=options.prompts)) if kind in named else inputs


def method_resources(method: Any, make_trainer: Any = None, training_log: Any = None) -> dict[str, Any]:
    """Arguments of a method's `build` that the method alone has: a sandbox for code, or the training of the model's weights."""
    code = {"run_code": run_in_sandbox} if method.runs_code else {}
    return code | ({"make_trainer": make_trainer, "training_log": training_log} if method.trains_weights else {})


def run_in_sandbox(code: str) -> tuple[str, bool]:
    """Run code of a model's behind all walls of the interpreter (tools/agent_tools/interpreter.py)."""
    from ...tools.agent_tools.interpreter import InterpreterError, run_alone

    try:
        return run_alone(code)
    except InterpreterError as error:
        raise UserError(f"{error}; evotest needs no sandbox with --no-evolve-routine") from error


def _policy_kind(options: RunOptions, environment: Any, model: Any, scores: bool) -> str:
    """The model's policy: as asked for, or as suits the model, the environment and the method."""
    kind: str = options.policy
    if kind == "auto" and hasattr(model, "score"):
        return "local"
    if kind == "auto":
        return "verbalized" if scores else "answer" if hasattr(environment, "read") else "act"
    if kind == "local" and not hasattr(model, "score"):
        raise CommandError(f"--policy local needs a model in this process, not {options.model}; use logprobs or verbalized")
    if kind == "answer" and not hasattr(environment, "read"):
        raise CommandError(
            f"--policy answer is for tasks with one written answer; {options.env} is played step by step; use act"
        )
    return kind


def judge_node(options: RunOptions, environment: Any, model: Any, journal: Any) -> Any:
    """The node that rewards the steps of a finished episode; None where the environment's rewards hold.

    Raises:
        CommandError: there is no such judge, or it needs what the environment or the model lacks.
    """
    from ...nodes.evaluate import changed_rewards, judge

    prompts = options.prompts
    made: Mapping[str, Callable[[], Any]] = {
        "environment": lambda: judge.EnvironmentJudge(journal),
        "rule": lambda: judge.RuleJudge(environment.verify, journal),
        # A world that reads a written answer says at its end whether it is right: its own rewards in words.
        "self": lambda: judge.self_judge(model, journal, prompts, shows_end=not hasattr(environment, "read")),
        "self:sparse": lambda: judge.self_judge(
            model, journal, prompts, sparse=True, shows_end=not hasattr(environment, "read")
        ),
        "rubric": lambda: judge.rubric_judge(model, journal, prompts),
        "pairwise": lambda: judge.pairwise_judge(model, journal, _reference(options, environment), prompts),
        "model": lambda: judge.model_judge(model, journal, prompts),
        "hindsight": lambda: changed_rewards.hindsight_judge(journal),
    }
    if (shift := options.judge.partition("shift:"))[:2] == ("", "shift:"):
        return changed_rewards.shift_judge(journal, shift[2])
    names = options.judge.split("+")
    for name in names:
        if name not in made:
            raise CommandError(f"--judge is {', '.join(made)}, several of them, joined by +, or shift:C; got {options.judge!r}")
        if name == "rule" and not hasattr(environment, "verify"):
            raise CommandError(f"{options.env} has no rule to judge by; use --judge environment or self")
        if name == "pairwise" and options.reference is None and not hasattr(environment, "gold"):
            raise CommandError(f"{options.env} has no reference answer to compare with; give one with --reference FILE")
        if asks_model(name) and model is None:
            raise CommandError(f"--judge {name} asks a model, and there is none here; use --judge environment or rule")
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


def credits_future(judge: str) -> bool:
    """True if the judge's reward of a step counts what followed from it, so that returns are not discounted again."""
    return not {"model", "hindsight"}.isdisjoint(judge.split("+"))


def asks_model(judge: str) -> bool:
    """True if judging asks a model, whose answers may differ the next time."""
    return any(name.partition(":")[0] in ("self", "rubric", "pairwise", "model") for name in judge.split("+"))
