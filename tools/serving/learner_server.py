"""CLaaS's learner as a server: gradient steps for a service on another machine.

    work = LearnerWork(model, VersionStore("s3://bucket/adapters"), Path("/tmp/learner"))
    await chat_server.serve(learner_app(work, key), "0.0.0.0", 8100)

    POST /v1/calls        {"id", "name": "correct" | "step" | "measure", "settings", "arguments"}    202; the same id again: nothing
    GET /v1/calls/ID      {"state": "running" | "done" | "raised", "answer"}                         404 after a restart
    GET /v1/learner       {"base", "model", "thinking"}
    GET /healthz          {"state": "idle" | a call's name}, without a key

Every call brings the settings and names the version that it starts from, so the server keeps nothing that is not copied elsewhere: killed
at any moment and started again, it is asked again (`RemoteLearner`) and computes the same. Versions come from the store and go there.
"""

from __future__ import annotations

import hmac
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from ...memory.errors import UserError
from ...memory.records import Correction, Exchange, Minibatch
from ..training.calls import LearnerSettings, decode, encode, encode_error, scratch_folder, step_output
from ..training.learner import LoRATrainer
from ..training.version_store import FetchedVersions, VersionStore

__all__ = ["LearnerWork", "learner_app"]

MAX_RESULTS = 16
"""Calls whose results are kept for whoever asks again."""
MAX_WAIT = 30.0
"""Seconds that a question for a result may wait for it."""


class LearnerWork:
    """Takes the steps, one call at a time.

    Args:
        model: the base model, a `LocalChatModel`.
        store: the place of the versions.
        scratch: a folder of this machine for copies of versions.
    """

    def __init__(self, model: Any, store: VersionStore, scratch: Path) -> None:
        self.model = model
        self._store = store
        self._scratch = scratch
        self._fetched = FetchedVersions(store, scratch / "versions")
        self._thread = ThreadPoolExecutor(1, "learner")
        self._lock = threading.Lock()
        self._calls: OrderedDict[str, Future[Any]] = OrderedDict()
        self.busy = ""
        """Name of the call that is under way; empty: none is."""
        self._settings: LearnerSettings | None = None
        self._trainer: LoRATrainer | None = None
        self.base = self._open(LearnerSettings()).base
        """Fingerprint of the base model."""

    def submit(self, id: str, name: str, settings: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        """Queue a call. An id that is known is not called again.

        Raises:
            UserError: the arguments are not those of such a call.
        """
        work = {"correct": self._correct, "step": self._step, "measure": self._measure}.get(name)
        if work is None:
            raise UserError(f"a learner has no call {name!r}; it has correct, step and measure")
        wanted = decode(LearnerSettings, settings)
        with self._lock:
            if id in self._calls:
                return
            self._calls[id] = self._thread.submit(self._run, name, lambda: work(self._open(wanted), arguments))
            for old in [one for one, call in self._calls.items() if call.done()][:-MAX_RESULTS]:
                del self._calls[old]

    def result(self, id: str, seconds: float = 0.0) -> dict[str, Any]:
        """The state of a call, and its answer or error; waits for it for some seconds.

        Raises:
            LookupError: there is no call of this id; the server may have been started anew.
        """
        with self._lock:
            call = self._calls[id]
        wait([call], min(seconds, MAX_WAIT))
        if not call.done():
            return {"state": "running"}
        try:
            return {"state": "done", "answer": call.result()}
        except Exception as error:
            return {"state": "raised", "answer": list(encode_error(error))}

    def _run(self, name: str, work: Callable[[], Any]) -> Any:
        self.busy = name
        try:
            return work()
        finally:
            self.busy = ""

    def close(self) -> None:
        """Take no more calls."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _open(self, wanted: LearnerSettings) -> LoRATrainer:
        """The trainer of these settings. The last one stays open."""
        if self._trainer is None or wanted != self._settings:
            self._trainer = None  # frees its tensors before those of the next one are made
            self._trainer = LoRATrainer(self.model, wanted.lora, wanted.objective, wanted.hindsight, wanted.measure_kl)
            self._settings = wanted
        return self._trainer

    def _parent(self, label: str) -> Path | None:
        return self._fetched.folder(label) if label else None

    def _correct(self, trainer: LoRATrainer, arguments: Mapping[str, Any]) -> Any:
        batch = decode(Minibatch, arguments["batch"])
        return encode(trainer.correct(batch, self._parent(batch.parent)))

    def _step(self, trainer: LoRATrainer, arguments: Mapping[str, Any]) -> Any:
        batch, correction = decode(Minibatch, arguments["batch"]), decode(Correction, arguments["correction"])
        with scratch_folder(self._scratch) as out:
            update, statistics = trainer.step(batch, correction, self._parent(batch.parent), out)
            if not update.skipped:
                name = step_output(batch)
                self._store.remove(name)  # of a server that was killed before it was asked for it
                self._store.put(name, out)
        return {"update": encode(update), "statistics": statistics}

    def _measure(self, trainer: LoRATrainer, arguments: Mapping[str, Any]) -> Any:
        label = str(arguments["label"])
        exchanges = [decode(Exchange, one) for one in arguments["exchanges"]]
        return encode(trainer.measure(label, self._parent(label), exchanges))


def learner_app(work: LearnerWork, key: str) -> FastAPI:
    """The ASGI application. With a key, clients send it as a bearer token."""
    application = FastAPI(title="learngraph learner", docs_url=None, redoc_url=None, openapi_url=None)

    def refusal(request: Request) -> JSONResponse | None:
        sent = request.headers.get("authorization", "").removeprefix("Bearer ")
        if key and not hmac.compare_digest(sent.encode(), key.encode()):
            return JSONResponse({"error": "the learner's key is wrong"}, 401)
        return None

    @application.get("/healthz")
    def health() -> dict[str, str]:
        return {"state": work.busy or "idle"}

    @application.get("/v1/learner")
    def about(request: Request) -> Any:
        return refusal(request) or {"base": work.base, "model": work.model.model, "thinking": work.model.thinking}

    @application.post("/v1/calls")
    async def call(request: Request) -> Any:
        if (refused := refusal(request)) is not None:
            return refused
        try:
            body = await request.json()
            work.submit(str(body["id"]), str(body["name"]), body["settings"], body["arguments"])
        except (UserError, KeyError, TypeError, ValueError) as error:
            return JSONResponse({"error": f"not a call of a learner: {error}"}, 400)
        return JSONResponse({"id": body["id"]}, 202)

    @application.get("/v1/calls/{id}")
    def result(request: Request, id: str, seconds: float = 0.0) -> Any:
        if (refused := refusal(request)) is not None:
            return refused
        try:
            # Python's own JSON: limits and statistics may be infinite, which the framework would turn into null.
            return Response(json.dumps(work.result(id, seconds)), media_type="application/json")
        except KeyError:
            return JSONResponse({"error": "there is no such call"}, 404)

    return application
