"""Playing runs: one after the other in a worker process, each from wherever it stands to its result."""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from ...memory.claas.weights import TrainingLog
from ...memory.errors import UserError
from ...memory.storage.journal import Journal, JournalError
from ...memory.storage.rows import Rows
from .costs import TRAINING_FILE, open_ledger
from .folder import Job, write_json
from .recorded import PACKED, pack_rows, unpack_rows
from .run_inputs import (
    asks_model,
    loads_model,
    make_method_inputs,
    method_resources,
    policy_kind,
    shared_environment,
    shared_meter,
    shared_model,
)

if TYPE_CHECKING:  # LangGraph and Chroma load only where a run is played: results are read quickly
    from ...memory.records import Trajectory
    from ...memory.storage.record_store import RecordStore

__all__ = ["Failures", "RunFailure", "play"]

STORAGE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
"""Errors of a disk that is full or may not be written to: the user can put them right."""

_open_lock = Lock()
"""Held while an environment or a model is opened: the threads of a process share one."""


@dataclass(frozen=True)
class RunFailure:
    """The reason for which a run ended before its last episode."""

    reason: str
    """One line for the user."""
    fails_again: bool = False
    """True if the same command would fail in the same way."""
    kind: Literal["failed", "stopped"] = "failed"
    """`stopped`: the budget was spent."""


Failures = dict[tuple[Path, str, int], RunFailure]
"""Key of a job -> why it has no result."""


def play(jobs: Sequence[Job]) -> Failures | None:
    """Play runs in turn: the work of a worker process. Whatever goes wrong ends these runs alone.

    Returns:
        The runs that failed; None if none did.
    """
    from ...nodes.cached_model import BudgetSpent

    _note_waits(jobs[0].folder.parent)
    for number, job in enumerate(jobs):
        try:
            _play_job(job)
        except BudgetSpent as error:
            failure = RunFailure(str(error), kind="stopped")
        except UserError as error:
            failure = RunFailure(str(error), error.fails_again)
        except (Exception, SystemExit) as error:  # a world or a method from outside may call sys.exit
            failure = _failure(job, error)
        else:
            continue
        # The runs after it learn from its episodes.
        waits = RunFailure(f"waits for {job.arm.name}, seed {job.seed}, whose memory it shares", failure.fails_again)
        return {job.key: failure} | {later.key: waits for later in jobs[number + 1 :]}
    return None


def _failure(job: Job, error: BaseException) -> RunFailure:
    """The failure of a run by an error that is no message for the user; its traceback goes into the run's folder."""
    if isinstance(error, OSError) and error.errno in STORAGE_ERRNOS:
        return RunFailure(f"{error.filename or job.options.out or 'the run folder'}: {error.strerror}")
    job.folder.mkdir(parents=True, exist_ok=True)
    (job.folder / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
    told = next(iter(str(error).strip().splitlines()), "")
    place = f"({job.folder / 'error.txt'} has the traceback)"
    return RunFailure(f"{type(error).__name__}{': ' * bool(told)}{told} {place}")


def _note_waits(folder: Path) -> None:
    """Let this process say in the run folder when it waits before it asks a server again."""
    from ...tools.models import api_posts
    from .progress import note_wait

    api_posts.wait_listeners[:] = [partial(note_wait, folder)]


def _play_job(job: Job) -> None:
    """Play a run from wherever it stands, and write its result."""
    from ...memory.storage.checkpoints import drop_inner_checkpoints
    from ...nodes.recorded_model import RecordedChatModel
    from .training_free.options import LearningOptions
    from .training_free.play import learn_and_play

    if isinstance(job.options, LearningOptions):
        return learn_and_play(job)
    with _open_lock:
        environment = shared_environment(job.options.env, job.options.horizon)
    task = environment.task(job.seed, job.options.split)
    with open_run(job) as files, open_ledger(job.folder.parent) as ledger:
        model = count_flops = make_trainer = None
        if loads_model(job.arm, job.options):
            with _open_lock:
                opened, count_flops, make_trainer = _open_model(job)
            model = _metered(opened, job, ledger)
            if make_trainer is None:  # the replies of changing weights could not be told apart
                model = RecordedChatModel(files.replies, model)
        graph = run_graph(job, environment, files, model, make_trainer)
        known = getattr(environment, "knows_optimum", lambda task: True)(task)
        optimum = environment.optimum(task)
        limits = {"episodes": job.options.episodes, "tokens": job.options.max_run_tokens}
        end = _play_to_end(graph, files, job, {"task": task, "run": job.run, "episode": 0, **limits}, limits, count_flops)
        found = {"method": job.arm.name, "seed": job.seed, "task": task.id, "task_seed": task.seed, "optimum": optimum}
        found |= {"solved": getattr(environment, "solved", None), "is_walkthrough": not known, "episodes": end["episode"]}
        found |= {"answer": end["answer"], "tokens": end["spent"]}
        write_json(job.folder / "result.json", found)
        if Path(job.checkpoints).parent == job.folder:  # in a place of the user's they stay
            for path in job.folder.glob("*.jsonl"):
                with path.open("rb") as file:
                    os.fsync(file.fileno())  # nothing can be played again from checkpoints that are gone
            drop_inner_checkpoints(files.saver)
    for name in PACKED:
        pack_rows(job.folder / name)


# Files


@dataclass(frozen=True)
class RunFiles:
    """The open files of a run: what its graph reads and writes."""

    journal: Journal
    """Its steps."""
    log: Rows
    """A row per finished episode."""
    times: Rows
    """Seconds of each finished episode."""
    replies: Rows
    """What the model answered, to play the run again without it (`learngraph explain --replay`)."""
    records: RecordStore[Trajectory] | None
    """The trajectories that it remembers; None if the method remembers nothing."""
    saver: Any
    """Its checkpoints."""
    training: TrainingLog
    """Its attempts and trainings, if it trains weights."""


@contextmanager
def open_run(job: Job) -> Iterator[RunFiles]:
    """The files of a run, for this process alone. The folder is made if missing."""
    from filelock import FileLock

    from ...memory.records import Trajectory
    from ...memory.storage.checkpoints import open_checkpoints

    with ExitStack() as stack:
        job.folder.mkdir(parents=True, exist_ok=True)
        # The worker of a killed sweep ends a moment after the sweep.
        stack.enter_context(FileLock(job.folder / "owner.lock", timeout=30))
        for name in PACKED:
            unpack_rows(job.folder / name)
        journal = Journal(job.folder / "steps.jsonl")
        log, times, replies = (Rows(job.folder / f"{name}.jsonl") for name in ("episodes", "seconds", "replies"))
        trainings = Rows(job.folder / TRAINING_FILE) if job.arm.method.trains_weights else Rows()
        for file in (journal, log, times, replies, trainings):
            stack.callback(file.close)
        records = None
        if job.memory:
            from ...memory.storage.open_store import open_store
            from ...memory.storage.record_store import RecordStore

            records = RecordStore(stack.enter_context(open_store(job.memory)), job.namespace, Trajectory)
        saver = stack.enter_context(open_checkpoints(job.checkpoints))
        yield RunFiles(journal, log, times, replies, records, saver, TrainingLog(trainings))


# The model and the graph


def _open_model(job: Job) -> tuple[Any, Callable[[], float] | None, Callable[[Any], Any] | None]:
    """The model of a run, a count of its floating-point operations, and the maker of a trainer for a method that trains weights.

    A model in this process is shared by the runs that leave its weights alone. One that is trained is the run's own.
    """
    name, options, trains = job.options.model, job.model_options(), job.arm.method.trains_weights
    model = (shared_model.__wrapped__ if trains else shared_model)(name, options)
    if not hasattr(model, "network"):
        return model, None, None
    if not trains:
        return model, shared_meter(name, options).count, None
    from ...tools.training.flops import FlopMeter
    from ...tools.training.trl_trainers import TrlTrainer

    meter = FlopMeter(model.network)
    return model, meter.count, lambda settings: TrlTrainer(model, job.folder / "adapters", settings, meter)


def _metered(model: Any, job: Job, ledger: Any) -> Any:
    """The model with its calls counted and limited; as it is in this process, where calls cost nothing, without a budget."""
    from ...nodes.cached_model import CachedChatModel, SpendingLimit

    options = job.options
    limited = options.token_budget or options.dollar_budget
    if not limited and not options.model.startswith("openai:"):
        return model
    limit = SpendingLimit(
        ledger, options.prices, max_dollars=options.dollar_budget or None, max_tokens=options.token_budget or None
    )
    return CachedChatModel(model, options.model, ledger, job.folder.name, meter=limit if limited else None, seeded=False)


def run_graph(
    job: Job,
    environment: Any,
    files: Any,
    model: Any,
    make_trainer: Callable[[Any], Any] | None = None,
    *,
    walked: bool = False,
) -> Any:
    """The graph of a whole run: episodes of the method, one after the other. `walked`: it pauses before every node, which costs speed."""
    from ..wiring import run
    from ..wiring.supersteps import UncheckpointedGraph, merge_steps

    options, method = job.options, job.arm.method
    judging = model.bind(temperature=0) if model is not None and job.has_paper_temperature else model
    inputs = make_method_inputs(options, environment, model, files.journal, method, judging)
    inputs = replace(inputs, records=files.records, run=job.run)
    episode: Any = method.build(inputs, job.arm.settings, **method_resources(method, make_trainer, files.training))
    if job.attempts_at_once > 1:
        episode = run.ParallelAttempts(UncheckpointedGraph(episode), job.attempts_at_once)
    elif model is not None and policy_kind(options, environment, model, method.needs_logits) == "answer" and not walked:
        # One call of the model or two: played again after a crash, where checkpoints inside cost more than they save.
        episode = UncheckpointedGraph(episode)
    elif not walked:
        episode = merge_steps(episode)
    # Rewards that a model gave may differ the next time; those of a world or a rule would be the same.
    judge = inputs.judge if asks_model(options.judge) else None
    return run.build(
        episode, files.log, commit=getattr(job.arm.settings, "commit", method.commit), judge=judge, checkpointer=files.saver
    )


# Playing, from wherever the run stands


def _play_to_end(
    graph: Any,
    files: RunFiles,
    job: Job,
    begin: Mapping[str, Any],
    limits: Mapping[str, Any],
    count_flops: Callable[[], float] | None,
) -> Any:
    """Play a run to its end. Returns the state of its graph there."""
    config: Any = {"configurable": {"thread_id": job.thread}, "recursion_limit": 1_000_000}
    if files.saver.get_tuple(config):
        _rewind(graph, config, job, files.journal, files.log)
    # With a checkpoint, go on from it, without a look at what is next: LangGraph says "nothing" for a node that has ended
    # and whose successor has not begun.
    _stream_episodes(graph, None if files.saver.get_tuple(config) else begin, config, job, files.times, count_flops)
    end = graph.get_state(config).values
    if end["episodes"] < limits["episodes"]:  # it was begun with fewer: its end becomes a pause
        graph.update_state(config, limits, as_node="tally")
        _stream_episodes(graph, None, config, job, files.times, count_flops)
        end = graph.get_state(config).values
    return end


def _stream_episodes(
    graph: Any, begin: Any, config: Any, job: Job, times: Rows, count_flops: Callable[[], float] | None
) -> None:
    """Play to the end, and note the seconds of each episode, and its floating-point operations where they are known."""
    started, spent = perf_counter(), count_flops() if count_flops else 0.0
    for update in graph.stream(begin, config, stream_mode="updates", durability="async"):
        if "tally" in update:
            done, now = update["tally"]["episode"] - 1, perf_counter()
            row = {"id": f"{job.run}/{done}", "seconds": round(now - started, 4)}
            if count_flops:
                row, spent = {**row, "flops": count_flops() - spent}, count_flops()
            times.append(row)
            started = now


def _rewind(graph: Any, config: Any, job: Job, journal: Journal, log: Rows) -> None:
    """Go back to the start of the first episode that lost steps or its score in a power cut, if there is one.

    A file can lose its last lines although the checkpoint was already written. Episodes are functions of (run, episode), so
    playing one again gives the same episode.
    """
    state = graph.get_state(config, subgraphs=True)
    done = state.values.get("episode", 0)
    rows = [log.get(f"{job.run}/{episode}") for episode in range(done)]
    lost = next((episode for episode, row in enumerate(rows) if row is None or not _has_history(journal, row["head"])), None)
    if lost is None:
        inside = [task.state.values for task in state.tasks if task.state] + [task.result or {} for task in state.tasks]
        if all(_has_history(journal, values["head"]) for values in (state.values, *inside) if "head" in values):
            return
        lost = done
    if not len(journal) and not len(log) and Path(job.checkpoints).parent != job.folder:
        raise UserError(
            f"the shared checkpoints hold {done} episodes of the run {job.thread}, but {job.folder} is empty: put the run folder "
            "back to resume, or give an --out of another name to play from the start"
        )
    for old in graph.get_state_history(config):
        if [task.name for task in old.tasks] == ["episode"] and old.values["episode"] == lost:
            graph.update_state(old.config, None, as_node="__copy__")  # the copy is the newest, and has no half-played episode
            return
    raise UserError(
        f"{job.folder} lost steps of episode {lost}, and its checkpoints do not reach back to it; "
        "remove the folder to play from the start, or give another --out"
    )


def _has_history(journal: Journal, head: str) -> bool:
    try:
        journal.history(head)
    except JournalError:
        return False
    return True
