"""`learngraph serve` from Python: the same service and web server, in a thread of this process.

    with learngraph.serve(CLaaS(), model="guard", out="runs/claas") as server:
        client = OpenAI(base_url=server.url, api_key=server.api_key)

The thread has an event loop of its own, so that this works in a script, and in a notebook, whose loop is running already. Clients that
block (`OpenAI`) and those that do not (`AsyncOpenAI`) can both be used.
"""

import asyncio
import os
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Self

from ...memory.errors import UserError
from ..claas import CLaaS
from .serve import ServeOptions, find_tenants, run_server

__all__ = ["BackgroundServer", "start_server"]


class BackgroundServer:
    """A running service. `with` closes it at the end, `close` does so by hand. It also ends with the process; nothing is lost then."""

    def __init__(self, options: ServeOptions, settings: CLaaS) -> None:
        self.api_key: str = options.api_key[0] if options.api_key else ""
        """A key of the tenant `default`; empty if the keys are in a file or in LEARNGRAPH_API_KEY, or none is needed."""
        self._ready: Future[str] = Future()
        self._stop: Callable[[], object] = lambda: None
        work = partial(self._work, options, settings, find_tenants(options))
        self._thread = threading.Thread(target=work, name="learngraph-server", daemon=True)
        self._thread.start()
        self.url: str = self._ready.result() + "/v1"
        """Base address of the API, for OpenAI's clients; the dashboard is at `/dashboard` of the same host and port."""

    def close(self) -> None:
        """End replies under way (for at most 10 s), the learner and the model. What was learned is in `out`. Again: no effect."""
        if self._thread.is_alive():
            self._stop()
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"BackgroundServer({self.url}{'' if self._thread.is_alive() else ', closed'})"

    def _work(self, options: ServeOptions, settings: CLaaS, tenants: Any) -> None:
        async def run() -> None:
            task = asyncio.current_task()
            assert task is not None
            self._stop = partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
            with suppress(asyncio.CancelledError):
                await run_server(options, settings, tenants, lambda service, url: self._ready.set_result(url))

        try:
            asyncio.run(run())
        except Exception as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)


def start_server(settings: CLaaS | None = None, **options: Any) -> BackgroundServer:
    """Start a chat API that learns from feedback, and return once it answers.

    Args:
        settings: hyper-parameters; default: those of `CLaaS()`.
        options: fields of `ServeOptions`, the options of `learngraph serve`: `model`, `out`, `port`, `device`, `learner` and others.
            Other defaults than there: `port` is 0, a free one; `api_key` is drawn anew where no keys are given.

    Raises:
        UserError: an option that does not exist or does not fit; `out` is in use; the model cannot be opened.
    """
    names = [field.name for field in fields(ServeOptions)]
    if unknown := [name for name in options if name not in names]:
        raise UserError(f"serve: there is no option {unknown[0]!r}; there are {', '.join(names)}")
    has_keys = options.get("keys") or options.get("no_auth") or os.environ.get("LEARNGRAPH_API_KEY")
    given = options.get("api_key") or (() if has_keys else secrets.token_urlsafe())
    options["api_key"] = (given,) if isinstance(given, str) else tuple(given)
    for name in ("out", "keys", "retention_file", "prompts"):
        if isinstance(options.get(name), str):
            options[name] = Path(options[name])
    return BackgroundServer(ServeOptions(**{"port": 0, **options}), settings or CLaaS())
