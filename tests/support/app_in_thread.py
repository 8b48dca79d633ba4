"""An aiohttp application on a port of its own, in a thread of the test's process."""

import asyncio
import threading
from typing import Self

from aiohttp import web
from waiting import PATIENCE


class AppInThread:
    """Serves what `make_app` returns from `__enter__` to `__exit__`."""

    port: int
    """The port, once it serves."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def make_app(self) -> web.Application:
        """The application; called in the thread that serves it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        runner = web.AppRunner(self.make_app(), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()
