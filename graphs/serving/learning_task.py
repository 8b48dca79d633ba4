"""The background task that learns: one gradient step at a time for all tenants' adapters, by runs of CLaaS's learning graph.

The tenant whose last turn is longest ago is next, with that of its adapters whose last turn is longest ago: many adapters give a
tenant no more turns. An adapter with nothing to learn from rests until feedback comes for it. An
adapter whose steps fail waits, twice as long each time, and its status says why; the others go on. Nothing is lost when the
process is killed: the replay buffer and the versions are on disk, and the graph continues from them. Of several processes that share a
buffer, one learns for an adapter: the first that claims it, and when it ends, another one.
"""

import asyncio
import logging
import math
import re
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from ...memory.claas.replay import Replay
from ...memory.errors import Unavailable, UnknownExchange, UserError, hide_paths, public_text
from ...memory.telemetry import span, traceparent
from ...nodes.learn.gradient_step import describe_run
from ..wiring.flow import Graph
from .metrics import ServiceMetrics
from .versions import LiveVersions

__all__ = ["AdapterTurn", "LearningTask"]

LOG = logging.getLogger("learngraph.trainer")
MAX_WAIT = 300.0
"""Longest wait after a failure, in seconds."""
MAX_SKIPS = 3
"""Minibatches in a row from which nothing was learned, or whose versions failed the gate, after which an adapter rests until feedback
comes."""
MAX_FAILURES = 3
"""Failures in a row after which the learner counts as failed."""
QUIET_SECONDS = 0.05
"""Seconds without a reply under way after which the learner no longer rests."""
MAX_REST = 10.0
"""Longest rest after a step, in seconds: a step may be slow since replies leave it little time, or since the learner had to start."""
OTHERS_SECONDS = 10.0
"""Seconds after which a service that shares its buffer looks again at what other processes stored, and learn."""
LOG_SECONDS = 60.0
"""Seconds in which the log has one line on all steps that were skipped for the same reason."""
MAX_TRACES = 32
"""Most feedbacks that a step is linked to in a trace."""
MAX_JOBS = 1000
"""Most `train` jobs of a tenant that are remembered."""
AdapterKey = tuple[str, str]


@dataclass
class AdapterTurn:
    """An adapter's place in the learner's schedule, and its last turn."""

    served: int = 0
    """Number of its last turn; smaller is longer ago."""
    due: bool = True
    """True if there may be something to learn from, also while a step is under way. False: it has no turn before feedback comes."""
    wakes: int = 0
    """Times that feedback came."""
    skips: int = 0
    """Minibatches in a row from which nothing was learned, or whose versions failed the gate."""
    outcome: str = ""
    """Outcome of its last step: `too few`, `skipped`, `stepped`, `live`, `canary`, `dropped`; empty: it had none."""
    skips_logged: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Reason of skipped steps, without its numbers -> the time of its newest line in the log, and the number of such steps since."""
    why: str = ""
    """Reason of this outcome."""
    help: str = ""
    """What would teach more; empty: that depends on the loss."""
    failures: int = 0
    """Failed steps in a row."""
    until: float = 0.0
    """Time before which it gets no turn, in seconds of `time.monotonic`."""
    ready: int = 0
    """Ready exchanges when they were last counted, in a buffer that other processes share; 0 after a step, which uses some up."""
    error: str = ""
    """Message of the last failure, for tenants; empty after a success."""
    jobs: list[dict[str, Any]] = field(default_factory=list)
    """The `train` jobs that wait, oldest first."""
    traces: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_TRACES))
    """The trace contexts of what woke it since its last step, oldest first."""

    @property
    def rests(self) -> bool:
        """True if it waits because so many minibatches in a row taught nothing."""
        return not self.due and self.skips >= MAX_SKIPS

    def wake(self) -> None:
        """Note that feedback came."""
        self.due, self.skips, self.wakes = True, 0, self.wakes + 1
        if context := traceparent():
            self.traces.append(context)


class LearningTask:
    """Runs the learning graph, adapter after adapter.

    Args:
        graph: the learning graph of graphs/claas.py.
        replay: lists the adapters.
        metrics: of the service.
        live: the versions that answer, which are told when another one may be live than before.
        rest: seconds that it rests after each second of a step, while replies are under way, for all tenants.
        quiet_seconds: the seconds since the last reply ended; 0: one is under way.
    """

    def __init__(
        self,
        graph: Graph,
        replay: Replay,
        metrics: ServiceMetrics,
        live: LiveVersions,
        rest: float = 0.0,
        quiet_seconds: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._graph = graph
        self._replay = replay
        self._metrics = metrics
        self._live = live
        self._rest = rest
        self._quiet_seconds = quiet_seconds
        self._turns: dict[AdapterKey, AdapterTurn] = {}
        self._jobs: dict[str, dict[str, dict[str, Any]]] = {}  # by tenant, oldest first
        self._next_look = 0.0
        self._served: dict[str, int] = {}  # tenant -> number of its last turn
        self._numbers = count(1)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._step: asyncio.Task[dict[str, Any]] | None = None
        self._exclusions: set[AdapterKey] = set()
        self.busy: AdapterKey | None = None
        """The adapter whose step is under way."""
        self.gives_way = False
        """True while it rests, since replies are under way."""

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
        self._turns.setdefault((tenant, adapter), AdapterTurn()).wake()
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
        jobs = self._jobs.setdefault(tenant, {})
        if len(jobs) >= MAX_JOBS:
            done = next((id for id, job in jobs.items() if job["state"] == "done"), None)
            if done is None:
                raise Unavailable(f"{len(jobs)} train jobs wait already, which is the most; try again when one is done")
            del jobs[done]
        job: dict[str, Any] = {"job": f"train-{uuid.uuid4().hex[:16]}", "kind": "train", "state": "waiting"}
        job |= {"adapter": adapter, "steps": steps}
        jobs[job["job"]] = kept = job | {"taken": 0, "versions": [], "why": ""}
        self.wake(tenant, adapter)
        self._turns[tenant, adapter].jobs.append(kept)
        return job | {"taken": 0}

    def job(self, tenant: str, id: str) -> dict[str, Any] | None:
        """The state of a `train` job; None: this tenant has none of this id. Jobs are not kept on disk."""
        job = self._jobs.get(tenant, {}).get(id)
        return None if job is None else {**job, "why": hide_paths(job["why"])}

    def _advance(self, turn: AdapterTurn, state: dict[str, Any]) -> None:
        """Count a step for the job that asked for it."""
        job, ends = turn.jobs[0], state["outcome"] in ("too few", "skipped")
        if not ends and state.get("update") and state.get("batch"):
            job["taken"] += 1
            job["versions"].append(state["update"].version)
        is_done = ends or job["taken"] >= job["steps"]
        job["state"], job["why"] = "done" if is_done else "running", state["why"]
        if is_done:
            turn.jobs.pop(0)

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
            await self._give_way(self._rest * await self._learn(scope))

    async def _give_way(self, seconds: float) -> None:
        """Rest so long, or until no reply is under way any more: even at the lowest priority, a step slows the replies beside it."""
        end = time.monotonic() + min(seconds, MAX_REST)
        while (left := min(QUIET_SECONDS - self._quiet_seconds(), end - time.monotonic())) > 0:
            self.gives_way = True
            await asyncio.sleep(left)
        self.gives_way = False

    async def _next(self) -> tuple[AdapterKey | None, float | None]:
        """The adapter whose turn it is; else the seconds to wait, None for until feedback comes."""
        for scope in await asyncio.to_thread(self._replay.adapters):
            if scope not in self._turns and self._live.exists(*scope):
                self._turns[scope] = AdapterTurn()
        now = time.monotonic()
        if self._replay.is_shared and now >= self._next_look:
            self._next_look = now + OTHERS_SECONDS
            counts = await asyncio.to_thread(self._replay.ready_counts)
            for scope, turn in self._turns.items():
                if counts.get(scope, 0) > turn.ready:  # feedback that came to another process, too
                    turn.wake()
                turn.ready = counts.get(scope, 0)
        due = {
            scope: turn
            for scope, turn in self._turns.items()
            if turn.due and scope not in self._exclusions and not self._live.is_frozen(*scope)
        }
        waiting = [scope for scope, turn in due.items() if turn.until <= now]
        for scope in sorted(waiting, key=lambda scope: (self._served.get(scope[0], 0), self._turns[scope].served, scope)):
            if await asyncio.to_thread(self._replay.claim, *scope):
                return scope, None
            self._turns[scope].until = now + OTHERS_SECONDS
            self._live.on_live_change(*scope)  # perhaps: the process that learns for it shares the folder of versions
        return None, min((turn.until - now for turn in due.values()), default=None)

    async def _learn(self, scope: AdapterKey) -> float:
        """Give an adapter its turn; returns the seconds that it took, 0 if there was too little to learn from."""
        turn, began = self._turns[scope], time.monotonic()
        turn.served, self.busy = next(self._numbers), scope
        self._served[scope[0]] = turn.served
        is_for_job = bool(turn.jobs)  # a job that is asked for meanwhile gets a run of its own
        asked = {"tenant": scope[0], "adapter": scope[1], **({"least": 2} if is_for_job else {})}
        wakes = turn.wakes
        try:
            origins = [*turn.traces]
            with span("gradient_step", origins=origins) as traced:
                self._step = asyncio.create_task(self._graph.ainvoke(asked))
                state = await self._step
                traced.set({"learngraph.outcome": state["outcome"]})
        except Exception as error:
            self._record_failure(scope, turn, error)
            return time.monotonic() - began
        finally:
            self.busy = None
        took, turn.failures, turn.error, turn.until = time.monotonic() - began, 0, "", 0.0
        turn.outcome, turn.why = state["outcome"], state["why"]
        if is_for_job:
            self._advance(turn, state)
        if turn.outcome != "too few":
            self._log_step(scope, turn, describe_run(state))
            self._count(state, took)
            turn.ready = 0
            turn.traces = deque([one for one in turn.traces if one not in origins], MAX_TRACES)
            turn.skips = turn.skips + 1 if turn.outcome in ("skipped", "dropped") else 0
        turn.help = state["update"].help if state.get("update") else ""
        rests = turn.outcome == "too few" or turn.skips >= MAX_SKIPS or turn.help
        turn.due = turn.wakes > wakes or bool(turn.jobs) or not rests
        if turn.outcome in ("live", "canary", "dropped"):
            self._live.on_live_change(*scope)
        return 0.0 if turn.outcome == "too few" else took

    def _log_step(self, scope: AdapterKey, turn: AdapterTurn, line: str) -> None:
        """Log a step. Steps skipped for the same reason have one line a minute, with the number of the others."""
        if turn.outcome == "skipped":
            reason, now = re.sub(r"[\d.]+", "", turn.why), time.monotonic()
            since, count = turn.skips_logged.get(reason, (-math.inf, 0))
            is_early = now < since + LOG_SECONDS
            turn.skips_logged[reason] = (since, count + 1) if is_early else (now, 0)
            if is_early:
                return
            line += f", and {count} times more since the last such line" if count else ""
        LOG.info("%s/%s: %s", *scope, line)

    def _record_failure(self, scope: AdapterKey, turn: AdapterTurn, error: Exception) -> None:
        turn.failures, turn.due, turn.error = turn.failures + 1, True, public_text(error)
        wait = min(2.0 ** (turn.failures - 1), MAX_WAIT)
        turn.until = time.monotonic() + wait
        self._metrics.learner_errors.inc()
        text, trace = str(error) or type(error).__name__, None if isinstance(error, UserError) else error
        # A client may delete what it said at any time.
        level = logging.INFO if isinstance(error, UnknownExchange) else logging.ERROR
        LOG.log(level, "%s/%s: the step failed and is tried again in %g s: %s", *scope, wait, text, exc_info=trace)

    def _count(self, state: dict[str, Any], seconds: float) -> None:
        metrics, outcome, update = self._metrics, state["outcome"], state.get("update")
        metrics.step_seconds.observe(seconds)
        metrics.skipped.inc(outcome == "skipped")
        metrics.promoted.inc(outcome in ("live", "canary"))
        metrics.dropped.inc(outcome == "dropped")
        for check in state["checks"]:
            result = "passed" if check.passed else "failed"
            metrics.gate.labels(check.name, result if check.value is not None else "too few").inc()
        if outcome != "skipped" and update is not None and state["batch"]:
            metrics.steps.inc()
            for name in ("loss", "entropy", "kl", "shrink"):
                getattr(metrics, name).set(getattr(update, name))
            metrics.ess.set(state["correction"].ess)

    # -- status -----------------------------------------------------------------------------------------------------------

    def status(self, tenant: str | None = None) -> dict[str, Any]:
        """`state` (`idle`, `training`, `resting` while replies are under way, `failed` while it keeps trying, or `off`), `error` and its
        `tenant`. With a tenant: of its adapters only."""
        turns = [(scope, turn) for scope, turn in self._turns.items() if tenant is None or scope[0] == tenant]
        (owner, adapter), worst = max(turns, key=lambda item: item[1].failures, default=(("", ""), AdapterTurn()))
        if worst.failures >= MAX_FAILURES:
            return {"state": "failed", "error": worst.error, "tenant": owner, "adapter": adapter}
        if self._task is None or self._task.done():
            return {"state": "off", "error": ""}
        is_busy = self.busy is not None and tenant in (None, self.busy[0])
        mine = {"tenant": owner} if worst.error else {}
        state = "training" if is_busy else "resting" if self.gives_way else "idle"
        return {"state": state, "error": worst.error, **mine}

    def outcomes(self) -> Counter[str]:
        """Number of adapters by the outcome of their last turn; those that fail are `failed`."""
        return Counter("failed" if turn.error else turn.outcome for turn in self._turns.values() if turn.error or turn.outcome)

    def turn(self, tenant: str, adapter: str) -> AdapterTurn:
        """An adapter's place in the schedule."""
        return self._turns.get((tenant, adapter), AdapterTurn())

    def pause(self, tenant: str, adapter: str) -> str:
        """The reason why an adapter's learning waits after a failure, and for how long; empty: it does not."""
        turn = self.turn(tenant, adapter)
        wait = max(turn.until - time.monotonic(), 0)
        return f"{turn.error} (failed {turn.failures} times, tried again in {wait:.0f} s)" if turn.error else ""

    def adapters(self) -> list[AdapterKey]:
        """(tenant, adapter) of all that had or wait for a turn."""
        return list(self._turns)
