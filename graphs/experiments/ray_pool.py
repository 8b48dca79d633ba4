"""Work on a Ray cluster, in place of worker processes of this machine: `--engine ray` or `--engine ray://HOST:PORT`.

Needs the extra `[ray]`: `pip install 'learngraph[ray]'`, on every node, and a folder that all nodes see for the runs. A task is what
a worker process does: it plays a run into its folder, and goes on from there if it is begun again. So a worker that dies is
simply tried again by Ray: ids and random draws come from (run, episode, step), and nothing is written twice.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from ...memory.errors import UserError
from .futures import collect_results

__all__ = ["is_ray", "run_on_ray"]

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


def run_on_ray(
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

    Raises:
        UserError: Ray is not installed, or no cluster answers.
    """
    try:
        import ray
        from ray.exceptions import RayTaskError, WorkerCrashedError
    except ImportError as error:
        raise UserError(f"--engine {engine} needs a package ({error}): pip install 'learngraph[ray]'") from error
    address = engine if engine.startswith("ray://") else os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's own advice against a warning about accelerators
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 starves the runs where anything else is at work
    local: dict[str, Any] = {} if address else {"num_cpus": count, "include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
    except (ConnectionError, RuntimeError) as error:
        raise UserError(f"--engine {engine}: no Ray cluster answers ({error}); start one with 'ray start --head'") from error
    variables = {name: os.environ[name] for name in SHARED_VARIABLES if name in os.environ}
    task = ray.remote(num_cpus=1, max_retries=TRIES)(_play_in_folder)
    try:
        numbers = {task.remote(part, play_part, os.getcwd(), variables).future(): n for n, part in enumerate(parts)}
        found, left = collect_results(numbers, WorkerCrashedError, tick)
    except RayTaskError as error:
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
