"""CLaaS's learner on another machine, behind `learngraph learner` (tools/serving/learner_server.py).

    learner = RemoteLearner(LearnerClient("http://gpu:8100", key="secret"), SharedVersions(store, folder), write, settings)
    update = learner.step(batch, learner.correct(batch))

Exchanges go over HTTP, versions through the store. While the learner is away, chats are answered and feedback is kept. A call that was
under way when it was killed is made again once it answers. After `patience` seconds without an answer the call fails as a failure of
the machine, which loses nothing: the service tries the same minibatch again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from ...memory.errors import UserError
from ...memory.records import Correction, Exchange, Measured, Minibatch, Update
from ..models.api_posts import run_in_background
from .calls import LearnerSettings, decode, decode_error, encode, scratch_folder, step_output
from .version_store import SharedVersions

__all__ = ["LearnerClient", "RemoteLearner"]

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
"""Seconds that a question for a result waits at the server, and so the longest time that `close` takes."""
MAX_STARTS = 3
"""Times that a call is begun, at most: a call that kills its learner again and again is the machine's fault."""


class LearnerClient:
    """A connection to a learner's server.

    Args:
        url: of the learner.
        key: the learner's key.
        patience: seconds that it may be away during a call.
    """

    def __init__(self, url: str, key: str = "", patience: float = 60.0) -> None:
        self.url = url.rstrip("/")
        self.restarts = 0
        """Number of learners that were killed during a call."""
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._patience = patience
        self._closed = threading.Event()

    def about(self) -> dict[str, Any]:
        """The learner's `base` (fingerprint of the model), `model` and `thinking`.

        Raises:
            UserError: the key is wrong.
            OSError: the learner did not answer for `patience` seconds.
        """
        found: dict[str, Any] = run_in_background(self._ask("GET", "/v1/learner"))[1]
        return found

    def call(self, name: str, settings: LearnerSettings, **arguments: Any) -> Any:
        """The answer of a call. Its errors are raised as they were raised there.

        Raises:
            OSError: the learner did not answer for `patience` seconds, or died again and again.
        """
        kind, answer = run_in_background(self._run(name, encode(settings), arguments))
        if kind == "done":
            return answer
        raise decode_error(*answer)

    def close(self) -> None:
        """End a call that is under way: it raises an OSError."""
        self._closed.set()

    async def _run(self, name: str, settings: Any, arguments: dict[str, Any]) -> tuple[str, Any]:
        """`done` and the answer of a call, or `raised` and its error."""
        call = {"id": uuid.uuid4().hex, "name": name, "settings": settings, "arguments": arguments}
        for _ in range(MAX_STARTS):
            status, said = await self._ask("POST", "/v1/calls", call)
            while status != 404:
                status, said = await self._ask("GET", f"/v1/calls/{call['id']}?seconds={POLL_SECONDS}")
                if status == 200 and said["state"] != "running":
                    return said["state"], said["answer"]
            self.restarts += 1
            log.warning("the learner was started anew during a call (%s), which is made again", name)
        raise OSError(errno.EIO, f"the learner died {MAX_STARTS} times of the same work")

    async def _ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of an answer. A learner that is away is asked again, for as long as the patience lasts."""
        until, wait = time.monotonic() + self._patience, 0.1
        timeout = aiohttp.ClientTimeout(total=POLL_SECONDS + 30)
        while True:
            if self._closed.is_set():
                raise OSError(errno.ECANCELED, "the learner is closed")
            try:
                async with (
                    aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session,
                    session.request(method, self.url + path, json=body) as response,
                ):
                    said = await response.json(content_type=None)
                    if response.status in (200, 202, 404):
                        return response.status, said
                    if response.status < 500:
                        why = OSError(errno.EACCES, "the learner refuses")  # not the minibatch's fault
                        raise UserError(f"the learner at {self.url} refuses (status {response.status}): {said}") from why
                    problem: object = f"status {response.status}"
            except (aiohttp.ClientError, OSError, ValueError) as error:
                problem = error
            if time.monotonic() > until:
                log.warning("the learner at %s does not answer: %s", self.url, problem)
                raise OSError(errno.EHOSTUNREACH, "the learner does not answer")
            await asyncio.sleep(wait)
            wait = min(2 * wait, POLL_SECONDS)


class RemoteLearner:
    """An `InProcessLearner` behind HTTP. Errors are raised here as they were raised there. Calls run one at a time.

    Args:
        client: the connection to the learner. Only one service may use it: its versions share the store.
        versions: the service's versions, in the store that the learner reads and writes.
        write: (minibatch, finished folder, the step's statistics) -> label.
        settings: of the steps.
        thinking: of the model: prompts must be those that the engine serves. The learner's own must be the same.
        scratch: where folders are made; best on the versions' file system.

    Raises:
        UserError: the key is wrong, or the learner's model thinks where the engine's does not.
        OSError: it does not answer.
    """

    def __init__(
        self,
        client: LearnerClient,
        versions: SharedVersions,
        write: Callable[[Minibatch, Path, dict[str, Any]], str],
        settings: LearnerSettings,
        *,
        thinking: bool | None = None,
        scratch: Path | None = None,
    ) -> None:
        self._client = client
        self._versions = versions
        self._write = write
        self._settings = settings
        self._scratch = scratch
        self._lock = threading.Lock()
        about = client.about()
        self.base: str = about["base"]
        """Fingerprint of the base model."""
        if thinking is not None and bool(about["thinking"]) != thinking:
            with_or_without = "with" if about["thinking"] else "without"
            raise UserError(f"the learner at {client.url} was started {with_or_without} --thinking, and this service was not")

    def correct(self, batch: Minibatch) -> Correction:
        """See `LoRATrainer.correct`."""
        return decode(Correction, self._call("correct", batch.parent, batch=encode(batch)))

    def step(self, batch: Minibatch, correction: Correction) -> Update:
        """See `LoRATrainer.step`; the version is adopted when this returns, and `Update.version` is its label."""
        answer = self._call("step", batch.parent, batch=encode(batch), correction=encode(correction))
        update = decode(Update, answer["update"])
        if update.skipped:
            return update
        made = step_output(batch)
        with scratch_folder(self._scratch) as out:
            self._versions.store.get(made, out)
            label = self._write(batch, out, answer["statistics"])
        self._versions.store.remove(made)
        return replace(update, version=label)

    def measure(self, label: str, exchanges: Sequence[Exchange]) -> Measured:
        """See `LoRATrainer.measure`; the empty label is the base model."""
        return decode(Measured, self._call("measure", label, label=label, exchanges=[encode(one) for one in exchanges]))

    def close(self) -> None:
        """End a call that is under way: it raises an OSError. The learner goes on running."""
        self._client.close()

    def _call(self, name: str, parent: str, **arguments: Any) -> Any:
        with self._lock:
            if parent:
                self._versions.publish(parent)
            return self._client.call(name, self._settings, **arguments)
