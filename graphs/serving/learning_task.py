"""The background task that learns: one gradient step at a time for all tenants' adapters, by runs of CLaaS's learning graph.

The tenant whose last turn is longest ago is next, with that of its adapters whose last turn is longest ago: many adapters give a
tenant no more turns. An adapter with nothing to learn from rests until feedback comes for it. An
adapter whose steps fail waits, twice as long each time, and its status says why; the others go on. Nothing is lost when the
process is killed: the replay buffer and the versions are on disk, and the graph continues from them. Of several processes that share a
buffer, one learns for an adapter: the first that claims it, and when it ends, another one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from typing import Any

from langgraph.graph.state import CompiledStateGraph

from ...memory.claas.replay import Replay
from ...memory.errors import Unavailable, UserError, hide_paths, public_text
from ...nodes.learn.gradient_step import describe_run
from .metrics import ServiceMetrics

__all__ = ["LearningTask", "TurnReport"]

LOG = logging.getLogger("learngraph.trainer")
MAX_WAIT = 300.0
"""Longest wait after a failure, in seconds."""
MAX_SKIPS = 3
"""Minibatches in a row from which nothing was learned, or whose versions failed the gate, after which an adapter rests until feedback
comes."""
MAX_FAILURES = 3
"""Failures in a row after which the learner counts as failed."""
OTHERS_SECONDS = 10.0
"""Seconds after which a service that shares its buffer looks again at what other processes stored, and learn."""
MAX_JOBS = 1000
"""Most `train` jobs of a tenant that are remembered."""
AdapterKey = tuple[str, str]


@dataclass
class _Turn:
    """An adapter's place in the learner's schedule."""

    served: int = 0
    """Number of its last turn; smaller is longer ago."""
    due: bool = True
    """True if there may be something to learn from."""
    skips: int = 0
    """Minibatches in a row from which nothing was learned, or whose versions failed the gate."""
    outcome: str = ""
    """Outcome of its last step: `too few`, `skipped`, `stepped`, `live`, `canary`, `dropped`; empty: it had none."""
    why: str = ""
    """Reason of this outcome."""
    failures: int = 0
    """Failed steps in a row."""
    until: float = 0.0
    """Time before which it gets no turn, in seconds of the clock."""
    ready: int = 0
    """Ready exchanges when they were last counted, in a buffer that other processes share; 0 after a step, which uses some up."""
    error: str = ""
    """Message of the last failure, for tenants; empty after a success."""
    jobs: list[str] = field(default_factory=list)
    """Ids of the `train` jobs that wait, oldest first."""


@dataclass(frozen=True)
class TurnReport:
    """An adapter's last turn at the learner."""

    outcome: str = ""
    """`too few`, `skipped`, `stepped`, `live`, `canary`, `dropped`; empty: it had none since the service started."""
    why: str = ""
    """Reason of this outcome."""
    pause: str = ""
    """Reason why its learning waits after a failure, and for how long; empty: it does not."""
    skips: int = 0
    """Minibatches in a row from which nothing was learned, or whose versions failed the gate."""
    waits: bool = False
    """True if it has no turn before feedback comes."""

    @property
    def rests(self) -> bool:
        """True if it waits because so many minibatches in a row taught nothing."""
        return self.waits and self.skips >= MAX_SKIPS


class LearningTask:
    """Runs the learning graph, adapter after adapter.

    Args:
        graph: the learning graph of graphs/claas.py.
        replay: lists the adapters.
        metrics: of the service.
        on_live_change: called with (tenant, adapter) when another version may be live than before.
        clock: seconds.
        exists: whether an adapter that the buffer knows still exists, and was not deleted.
    """

    def __init__(
        self,
        graph: CompiledStateGraph[Any, Any, Any, Any],
        replay: Replay,
        metrics: ServiceMetrics,
        on_live_change: Callable[[str, str], None] = lambda tenant, adapter: None,
        clock: Callable[[], float] = time.monotonic,
        exists: Callable[[str, str], bool] = lambda tenant, adapter: True,
    ) -> None:
        self._graph = graph
        self._replay = replay
        self._metrics = metrics
        self._on_live_change = on_live_change
        self._clock = clock
        self._exists = exists
        self._turns: dict[AdapterKey, _Turn] = {}
        self._jobs: dict[str, OrderedDict[str, dict[str, Any]]] = {}  # by tenant, oldest first
        self._next_look = 0.0
        self._served: dict[str, int] = {}  # tenant -> number of its last turn
        self._numbers = count(1)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._step: asyncio.Task[dict[str, Any]] | None = None
        self._exclusions: set[AdapterKey] = set()
        self.busy: AdapterKey | None = None
        """The adapter whose step is under way."""

    def start(self) -> None:
        """Begin to learn."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop. A step that is under way ends after its present node; the next service repeats it."""
        for task in (self._task, self._step):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def wake(self, tenant: str, adapter: str) -> None:
        """Give an adapter a turn, since feedback came for it."""
        turn = self._turns.setdefault((tenant, adapter), _Turn())
        turn.due, turn.skips = True, 0
        self._wake.set()

    @contextmanager
    def exclude(self, tenant: str, adapter: str) -> Iterator[bool]:
        """Give an adapter no turn while it is being deleted, and forget it afterwards. Yields false if a step is under way:
        nothing changes."""
        scope = (tenant, adapter)
        if self.busy == scope or scope in self._exclusions:
            yield False
            return
        self._exclusions.add(scope)
        try:
            yield True
            self._turns.pop(scope, None)
        finally:
            self._exclusions.discard(scope)
            self._wake.set()

    # -- jobs -------------------------------------------------------------------------------------------------------------

    def request_steps(self, tenant: str, adapter: str, steps: int) -> dict[str, Any]:
        """Ask for this many steps of an adapter; returns the job. A step needs at least two ready exchanges.

        Raises:
            Unavailable: too many of the tenant's jobs wait.
        """
        if steps < 1:
            raise UserError(f"train: steps are at least 1, got {steps}")
        jobs = self._jobs.setdefault(tenant, OrderedDict())
        if len(jobs) >= MAX_JOBS:
            done = next((id for id, job in jobs.items() if job["state"] == "done"), None)
            if done is None:
                raise Unavailable(f"{len(jobs)} train jobs wait already, which is the most; try again when one is done")
            del jobs[done]
        number = next(self._numbers)
        mark = blake2b(f"{tenant}/{adapter}/{number}/{time.time_ns()}".encode(), digest_size=8).hexdigest()
        job: dict[str, Any] = {
            "job": f"train-{mark}",
            "kind": "train",
            "state": "waiting",
            "adapter": adapter,
            "steps": steps,
            "taken": 0,
        }
        jobs[job["job"]] = {**job, "versions": [], "why": ""}
        self._turns.setdefault((tenant, adapter), _Turn()).jobs.append(job["job"])
        self.wake(tenant, adapter)
        return dict(job)

    def job(self, tenant: str, id: str) -> dict[str, Any] | None:
        """The state of a `train` job; None: this tenant has none of this id. Jobs are not kept on disk."""
        job = self._jobs.get(tenant, dict[str, dict[str, Any]]()).get(id)
        return None if job is None else {**job, "why": hide_paths(job["why"])}

    def _advance(self, tenant: str, turn: _Turn, state: dict[str, Any]) -> None:
        """Count a step for the job that asked for it."""
        job = self._jobs.get(tenant, dict[str, dict[str, Any]]()).get(turn.jobs[0])
        if job is not None and state["outcome"] in ("stepped", "live", "canary", "dropped"):
            if state.get("update") and state.get("batch"):
                job["taken"] += 1
                job["versions"].append(state["update"].version)
            job["state"], job["why"] = "running", state["why"]
        if job is None or job["taken"] >= job["steps"] or state["outcome"] in ("too few", "skipped"):
            turn.jobs.pop(0)
            if job is not None:
                job["state"], job["why"] = "done", state["why"]

    # -- the loop ---------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                scope, wait = await self._next()
            except Exception as error:  # the buffer cannot be read: a full disk, perhaps
                LOG.error("the learner cannot read what there is to learn from: %s", error)
                scope, wait = None, 5.0
            if scope is None:
                if self._replay.is_shared:
                    wait = min(wait or OTHERS_SECONDS, OTHERS_SECONDS)
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):  # wait_for of Python 3.11 may lose the cancellation of `close`
                        await self._wake.wait()
                continue
            await self._learn(scope)

    async def _next(self) -> tuple[AdapterKey | None, float | None]:
        """The adapter whose turn it is; else the seconds to wait, None for until feedback comes."""
        for scope in await asyncio.to_thread(self._replay.adapters):
            if scope not in self._turns and self._exists(*scope):
                self._turns[scope] = _Turn()
        now = self._clock()
        if self._replay.is_shared and now >= self._next_look:
            self._next_look = now + OTHERS_SECONDS
            counts = await asyncio.to_thread(self._replay.ready_counts)
            for scope, turn in self._turns.items():
                if counts.get(scope, 0) > turn.ready:  # feedback that came to another process, too
                    turn.due, turn.skips = True, 0
                turn.ready = counts.get(scope, 0)
        due = {scope: turn for scope, turn in self._turns.items() if turn.due and scope not in self._exclusions}
        waiting = [scope for scope, turn in due.items() if turn.until <= now]
        for scope in sorted(waiting, key=lambda scope: (self._served.get(scope[0], 0), self._turns[scope].served, scope)):
            if await asyncio.to_thread(self._replay.claim, *scope):
                return scope, None
            self._turns[scope].until = now + OTHERS_SECONDS
            self._on_live_change(*scope)  # perhaps: the process that learns for it shares the folder of versions
        return None, min((turn.until - now for turn in due.values()), default=None)

    async def _learn(self, scope: AdapterKey) -> None:
        turn, began = self._turns[scope], self._clock()
        turn.served, self.busy = next(self._numbers), scope
        self._served[scope[0]] = turn.served
        asked: dict[str, Any] = {"tenant": scope[0], "adapter": scope[1]}
        is_for_job = bool(turn.jobs)  # a job that is asked for meanwhile gets a run of its own
        if is_for_job:
            asked["least"] = 2
        turn.due = False  # feedback that comes meanwhile makes it due again
        self._step = asyncio.create_task(self._graph.ainvoke(asked))
        try:
            state = await self._step
        except Exception as error:
            self._record_failure(scope, turn, error)
            return
        finally:
            self.busy = None
        turn.failures, turn.error, turn.until = 0, "", 0.0
        self._count(state, self._clock() - began)
        if state["outcome"] != "too few":
            LOG.info("%s/%s: %s", *scope, describe_run(state))
        if is_for_job:
            self._advance(scope[0], turn, state)
        turn.outcome, turn.why = state["outcome"], state["why"]
        if state["outcome"] != "too few":
            turn.ready = 0
        if state["outcome"] in ("skipped", "dropped"):
            turn.skips += 1
        elif state["outcome"] != "too few":
            turn.skips = 0
        rests = state["outcome"] == "too few" or (turn.skips >= MAX_SKIPS and not turn.jobs)
        turn.due = turn.due or bool(turn.jobs) or not rests
        if state["outcome"] in ("live", "canary", "dropped"):
            self._on_live_change(*scope)

    def _record_failure(self, scope: AdapterKey, turn: _Turn, error: Exception) -> None:
        turn.failures, turn.due, turn.error = turn.failures + 1, True, public_text(error)
        wait = min(2.0 ** (turn.failures - 1), MAX_WAIT)
        turn.until = self._clock() + wait
        self._metrics.learner_errors.inc()
        LOG.error(
            "%s/%s: the step failed and is tried again in %g s: %s",
            *scope,
            wait,
            str(error) or type(error).__name__,
            exc_info=None if isinstance(error, UserError) else error,
        )

    def _count(self, state: dict[str, Any], seconds: float) -> None:
        metrics, outcome, update = self._metrics, state["outcome"], state.get("update")
        if outcome == "too few":
            return
        metrics.step_seconds.observe(seconds)
        metrics.skipped.inc(outcome == "skipped")
        metrics.promoted.inc(outcome in ("live", "canary"))
        metrics.dropped.inc(outcome == "dropped")
        for check in state["checks"]:
            result = "passed" if check.passed else "failed"
            metrics.gate_checks.labels(check.name, result if check.value is not None else "too few").inc()
        if outcome != "skipped" and update is not None and state["batch"]:
            metrics.steps.inc()
            metrics.loss.set(update.loss)
            metrics.entropy.set(update.entropy)
            metrics.kl.set(update.kl)
            metrics.shrink.set(update.shrink)
            metrics.ess.set(state["correction"].ess)

    # -- status -----------------------------------------------------------------------------------------------------------

    def status(self, tenant: str | None = None) -> dict[str, Any]:
        """`state` (`idle`, `training`, `failed` while it keeps trying, or `off`), `error` and its `tenant`. With a tenant: of
        its adapters only."""
        turns = [(scope, turn) for scope, turn in self._turns.items() if tenant is None or scope[0] == tenant]
        worst = max(turns, key=lambda item: item[1].failures, default=None)
        if worst is not None and worst[1].failures >= MAX_FAILURES:
            return {"state": "failed", "error": worst[1].error, "tenant": worst[0][0], "adapter": worst[0][1]}
        if self._task is None or self._task.done():
            return {"state": "off", "error": ""}
        error = worst[1].error if worst is not None else ""
        mine = {"tenant": worst[0][0]} if worst is not None and error else {}
        busy = self.busy is not None and tenant in (None, self.busy[0])
        return {"state": "training" if busy else "idle", "error": error, **mine}

    def outcomes(self) -> Counter[str]:
        """Number of adapters by the outcome of their last turn; those that fail are `failed`."""
        return Counter("failed" if turn.error else turn.outcome for turn in self._turns.values() if turn.error or turn.outcome)

    def report(self, tenant: str, adapter: str) -> TurnReport:
        """An adapter's last turn."""
        turn = self._turns.get((tenant, adapter))
        if turn is None:
            return TurnReport()
        wait = max(turn.until - self._clock(), 0)
        pause = f"{turn.error} (failed {turn.failures} times, tried again in {wait:.0f} s)" if turn.error else ""
        return TurnReport(turn.outcome, turn.why, pause, turn.skips, not turn.due)

    def adapters(self) -> list[AdapterKey]:
        """(tenant, adapter) of all that had or wait for a turn."""
        return list(self._turns)
