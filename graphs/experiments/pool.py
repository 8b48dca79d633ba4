"""Work side by side: in processes of this machine and threads within them, or on a Ray cluster.

`--engine ray` or `--engine ray://HOST:PORT` needs the extra `[ray]` on every node, and a folder that all nodes see for the runs. A task is
what a worker process does: it plays a run into its folder, and goes on from there if it is begun again. So Ray simply tries a task
again whose worker died: ids and random draws come from (run, episode, step), and nothing is written twice.
"""

import logging
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from ...memory.errors import UserError
from ...tools.training.ray_cluster import connect

__all__ = ["is_ray"]


@contextmanager
def environment_defaults(**variables: str) -> Iterator[None]:
    """Set environment variables that are not set yet, for the processes that are started while the context lasts."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def run_workers(
    batches: Sequence[Any],
    play: Callable[[Any], Any],
    workers: int,
    tick: Callable[[], None] = lambda: None,
    concurrency: int = 1,
    lost: Callable[[Any], Any] | None = None,
    engine: str = "processes",
) -> list[Any]:
    """Call `play` on every batch, in worker processes that are started by spawn, or on a Ray cluster.

    A batch that fails says so by what `play` returns, and the others are played on: calls in flight are paid for.

    Args:
        batches: the work, handed out in this order; each must pickle.
        play: a function of a module.
        workers: number of processes.
        tick: called a few times a second.
        concurrency: batches that each process plays at the same time, in threads. With more than 1, the batches are divided
            among the processes beforehand.
        lost: batch -> what to return for it, if the process that plays it is killed; the other batches are played on. None: that
            is an error.
        engine: `processes`, `ray` or `ray://HOST:PORT`.

    Returns:
        What `play` returned for the batches, in the order in which they ended, without None.

    Raises:
        UserError: a worker was killed, and `lost` is None.
    """
    count = min(workers, len(batches))
    parts = [[batch] for batch in batches] if concurrency == 1 else [batches[n::count] for n in range(count)]
    if is_ray(engine):
        found, left = _run_on_ray(parts, partial(_play_quietly, play, concurrency), engine, count, tick)
        found += [lost(batch) for part in left for batch in part] if lost is not None else []
        left = [] if lost is not None else left
    else:
        found, left = _run_pool(parts, play, count, tick, concurrency)
    while left and lost is not None:
        # Work is handed out in order: one of the first of these has killed its process. Each is played in one of its own.
        for part in left[: count + 1]:
            more, killers = _run_pool([part], play, 1, tick, concurrency)
            found += more or ([lost(batch) for batch in part] if killers else [])
        more, left = _run_pool(left[count + 1 :], play, count, tick, concurrency)
        found += more
    if left:
        raise UserError("a worker process was killed (out of memory?)")
    return found


def _run_pool(
    parts: Sequence[Sequence[Any]], play: Callable[[Any], Any], count: int, tick: Callable[[], None], concurrency: int
) -> tuple[list[Any], list[Sequence[Any]]]:
    """The results of `play` without None, and the parts that were left when a process was killed, in their order."""
    if not parts:
        return [], []
    # Workers end when this pipe is closed: by this process, or by its death.
    listen, hold = get_context("spawn").Pipe(duplex=False)
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_begin_worker, initargs=(listen,))
    try:
        with _exit_on_sigterm():
            numbers = {pool.submit(play_in_threads, part, play, concurrency): n for n, part in enumerate(parts)}
            found, left = _collect_results(numbers, BrokenProcessPool, tick)
    except BaseException:
        hold.close()  # before the shutdown, which waits for running work
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        hold.close()
    return found, [parts[n] for n in left]


def play_in_threads(batches: Sequence[Any], play: Callable[[Any], Any], concurrency: int) -> list[Any]:
    """Play batches in threads, all of them to their ends. Returns what `play` returned, without None."""
    if concurrency == 1:
        return [found for batch in batches if (found := play(batch)) is not None]
    pool = ThreadPoolExecutor(min(concurrency, len(batches)))
    try:
        played = as_completed([pool.submit(play, batch) for batch in batches])
        return [found for done in played if (found := done.result()) is not None]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """End by an exception when SIGTERM comes, so that workers and their semaphores are cleaned up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class RepeatFilter(logging.Filter):
    """Passes the first three records of each message of a logger: a model that cannot be read would fill the screen.

    Standard logging has no such filter. The report counts all of them.
    """

    most = 3

    def __init__(self) -> None:
        super().__init__()
        self._counts = Counter[str]()

    def filter(self, record: logging.LogRecord) -> bool:
        """True if the record is to be shown."""
        self._counts[record.msg] += 1
        count = self._counts[record.msg]
        if count == self.most:
            record.msg += " (more of these are only counted)"
        return count <= self.most


def _play_quietly(play: Callable[[Any], Any], concurrency: int, part: Sequence[Any]) -> list[Any]:
    _repeat_no_warning()
    return play_in_threads(part, play, concurrency)


def _begin_worker(listen: Connection) -> None:
    """Prepare a new worker process: it ends with its parent, and repeats no warning without end."""
    _repeat_no_warning()
    _exit_with_parent(listen)


def _repeat_no_warning() -> None:
    """Show no more than three of each warning about unusable replies, in this process."""
    logger = logging.getLogger("learngraph.nodes.ask")
    if not any(isinstance(one, RepeatFilter) for one in logger.filters):
        logger.addFilter(RepeatFilter())


def _exit_with_parent(listen: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent handles it

    def end() -> None:
        try:
            listen.recv_bytes()
        except (EOFError, OSError):
            os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def _collect_results(
    numbers: Mapping[Future[list[Any]], int], died: type[Exception], tick: Callable[[], None]
) -> tuple[list[Any], list[int]]:
    """Wait for all parts of some work, and call `tick` several times a second meanwhile.

    Returns:
        The results of the parts, in the order in which they ended, and the numbers of those whose process was killed, sorted.
    """
    found, left = list[Any](), list[int]()
    pending = set(numbers)
    while pending:
        done, pending = wait(pending, timeout=0.3, return_when=FIRST_COMPLETED)
        tick()
        for future in done:
            try:
                found += future.result()
            except died:
                left.append(numbers[future])
    return found, sorted(left)


# Ray

TRIES = 3
"""How often a task is begun again whose worker died."""
SHARED_VARIABLES = ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "LANGGRAPH_STRICT_MSGPACK", "JERICHO_GAMES", "OPENAI_BASE_URL")
"""Environment variables that a worker gets from this process. Keys are not among them: set those on the nodes."""


def is_ray(engine: str) -> bool:
    """True if the work goes to Ray, False if to processes of this machine.

    Raises:
        UserError: there is no such engine.
    """
    if engine == "processes":
        return False
    if engine == "ray" or engine.startswith("ray://"):
        return True
    raise UserError(
        f"--engine is processes, ray (a cluster on this machine, or $RAY_ADDRESS) or ray://HOST:PORT; got {engine!r}"
    )


def _run_on_ray(
    parts: Sequence[Sequence[Any]],
    play_part: Callable[[Sequence[Any]], list[Any]],
    engine: str,
    count: int,
    tick: Callable[[], None],
) -> tuple[list[Any], list[Sequence[Any]]]:
    """The results of `play_part`, and the parts whose workers died again and again, in their order.

    Args:
        parts: the work; each part is a task, which takes one core.
        play_part: plays a part and returns its results; a function of a module, or a `partial` of one.
        engine: `ray` or `ray://HOST:PORT`.
        count: number of cores, where the cluster is started here.
        tick: called a few times a second.
    """
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 starves the runs where anything else is at work
    ray = connect(f"--engine {engine}", engine, count)
    variables = {name: os.environ[name] for name in SHARED_VARIABLES if name in os.environ}
    task = ray.remote(num_cpus=1, max_retries=TRIES)(_play_in_folder)
    try:
        numbers = {task.remote(part, play_part, os.getcwd(), variables).future(): n for n, part in enumerate(parts)}
        found, left = _collect_results(numbers, ray.exceptions.WorkerCrashedError, tick)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    finally:
        ray.shutdown()  # ends the tasks that still run, and the cluster if it was started here
    return found, [parts[n] for n in left]


def _play_in_folder(
    part: Sequence[Any], play_part: Callable[[Sequence[Any]], list[Any]], folder: str, variables: dict[str, str]
) -> list[Any]:
    os.environ.update(variables)
    os.chdir(folder)  # paths of runs are relative to where the command was given
    return play_part(part)
