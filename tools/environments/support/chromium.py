"""One Chromium for a process, driven by Playwright in a thread of its own.

Playwright's objects belong to the thread and event loop that made them, worlds are called from any thread. So the browser lives in
a loop of its own, and `Chromium.run` hands it coroutines; episodes in parallel are tabs of one browser, each in a context without
the others' cookies. A browser that has died is replaced at the next call.

Playwright downloads no browser here: a Chromium of the system is taken (`find_chromium`).
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import shutil
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from ....memory.errors import UserError

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

__all__ = ["Chromium"]

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
"""Names under which a Chromium is looked for on the PATH."""
_FLAGS = ("--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars")
_LAUNCH_SECONDS = 60
_GRACE_SECONDS = 5

_Result = TypeVar("_Result")


def find_chromium() -> str | None:
    """The path of a Chromium on this machine: `$CHROMIUM`, else the first of `CHROMIUM_NAMES` on the PATH; None if there is none."""
    given = os.environ.get("CHROMIUM")
    if given:
        return shutil.which(given)
    return next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)


class Chromium:
    """A headless browser that starts when it is first needed; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._starting: asyncio.Lock | None = None
        self._is_gone = False

    def run(self, work: Callable[[Browser], Coroutine[Any, Any, _Result]], seconds: float) -> _Result:
        """The result of `work` on the running browser.

        Raises:
            TimeoutError: it took longer than so many seconds.
            UserError: there is no browser or no Playwright.
        """

        async def call() -> _Result:
            browser = await self._open()
            try:
                return await asyncio.wait_for(work(browser), seconds)
            except Exception:
                if browser is self._browser and not await _answers(browser):
                    self._is_gone = True
                raise

        return self._submit(call(), seconds + _LAUNCH_SECONDS)

    def close(self) -> None:
        """End the browser, if it runs. Never raises."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None:
            return
        future = asyncio.run_coroutine_threadsafe(self._stop(), loop)
        try:
            future.result(_GRACE_SECONDS)
        except Exception:  # the browser may be dead already
            future.cancel()
        loop.call_soon_threadsafe(loop.stop)

    def _submit(self, coroutine: Coroutine[Any, Any, _Result], seconds: float) -> _Result:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._starting = asyncio.Lock()
                threading.Thread(target=self._loop.run_forever, name="chromium", daemon=True).start()
                atexit.register(self.close)
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(seconds)
        except concurrent.futures.TimeoutError:
            raise TimeoutError(f"the browser did not answer within {seconds:g} seconds") from None
        finally:
            future.cancel()

    async def _open(self) -> Browser:
        assert self._starting is not None
        async with self._starting:
            if self._browser is None or self._is_gone or not self._browser.is_connected():
                await self._stop()
                self._playwright, self._browser = await _launch()
            return self._browser

    async def _stop(self) -> None:
        browser, playwright = self._browser, self._playwright
        self._browser = self._playwright = None
        self._is_gone = False
        if browser is not None:
            await _end(browser.close())
        if playwright is not None:
            await _end(playwright.stop())


async def _end(closing: Coroutine[Any, Any, None]) -> None:
    with suppress(Exception):  # it is dead already
        await asyncio.wait_for(closing, _GRACE_SECONDS)


async def _answers(browser: Browser) -> bool:
    """False if the browser has died, or the driver between it and us, of whose death `is_connected` knows nothing."""
    try:
        session = await asyncio.wait_for(browser.new_browser_cdp_session(), _GRACE_SECONDS)
        await session.detach()
    except Exception:
        return False
    return True


async def _launch() -> tuple[Playwright, Browser]:
    try:
        from playwright.async_api import Error, async_playwright
    except ImportError as cause:
        raise UserError(f"pages in a browser need playwright ({cause}): pip install playwright") from cause
    path = find_chromium()
    if path is None:
        given = os.environ.get("CHROMIUM")
        raise UserError(
            "pages in a browser need a Chromium: apt install chromium, or set $CHROMIUM to its path; "
            + (f"$CHROMIUM is {given!r}, which is no program" if given else f"the PATH has none of {', '.join(CHROMIUM_NAMES)}")
        )
    playwright = await async_playwright().start()
    try:
        # Playwright starts it without Chromium's own sandbox, which does not work for root: and root is who runs in a container.
        browser = await playwright.chromium.launch(
            executable_path=path, args=_FLAGS, timeout=1000 * _LAUNCH_SECONDS, handle_sigint=False
        )
    except Error as cause:
        await playwright.stop()
        raise UserError(f"the browser {path} does not start: {str(cause).splitlines()[0]}") from cause
    return playwright, browser


_shared: Chromium | None = None
_SHARED_LOCK = threading.Lock()


def shared_chromium() -> Chromium:
    """The browser of this process, which all worlds share."""
    global _shared
    with _SHARED_LOCK:
        if _shared is None:
            _shared = Chromium()
        return _shared


def _forget_shared() -> None:
    """A forked child has its parent's objects, but neither the thread nor the connection."""
    global _shared, _SHARED_LOCK
    _shared, _SHARED_LOCK = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_shared)
