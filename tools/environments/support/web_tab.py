"""A tab of the browser with what happens to it: new tabs, dialogs, downloads, foreign sites, pages that never load, crashes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .chromium import shared_chromium
from .page_templates import HostMap

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Dialog, Download, Frame, Page

__all__ = []

_NOWHERE = "http://127.0.0.1:9"
"""A proxy that is not there: requests to hosts of other sites end here."""
_STOP_SECONDS = 3.0
# Playwright tells of a new tab some time after the click. In the same tab a page is there when the click is done.
_ONE_TAB = """
addEventListener('click', event => {
  for (const one of event.composedPath())
    if (one.tagName === 'A' && one.target && !/^_(self|top|parent)$/.test(one.target) && !(one.target in window.frames)) one.target = '_top';
}, true);
addEventListener('submit', event => {
  const form = event.target;
  if (form.target && !/^_(self|top|parent)$/.test(form.target) && !(form.target in window.frames)) form.target = '_top';
}, true);
window.open = url => { if (url) window.top.location.href = new URL(url, document.baseURI).href; return window; };
"""
_MOST_IDLE = 4


@dataclass
class WebTab:
    """A tab with cookies of its own. All but `release` runs in the browser's loop."""

    context: BrowserContext
    hosts: HostMap
    """The sites that it may show."""
    seconds: float
    """Time in which a page has to load."""
    key: str = ""
    """Tabs with the same key may follow each other's episodes; empty: none may."""
    notices: list[str] = field(default_factory=list)
    """Sentences on what happened since they were last read."""
    _page: Page | None = None
    _is_dead: bool = False
    _has_navigated: bool = False

    @classmethod
    async def open(cls, browser: Browser, hosts: HostMap, seconds: float, key: str = "") -> WebTab:
        """An empty tab, or one that was released with this key."""
        while key and (idle := _take_idle(key)) is not None:
            if idle.is_usable:
                return idle
        sites = [urlsplit(address) for address in hosts.sites.values()]
        context = await browser.new_context(
            accept_downloads=False,
            proxy={"server": _NOWHERE, "bypass": ",".join(["<-loopback>", *(site.netloc for site in sites if site.netloc)])},
            reduced_motion="reduce",
            service_workers="block",
            viewport={"width": 1280, "height": 720},
        )
        context.set_default_timeout(1000 * seconds)
        await context.add_init_script(_ONE_TAB)
        tab = cls(context, hosts, seconds, key)
        context.on("page", tab._follow)
        await context.new_page()
        return tab

    def release(self) -> None:
        """Close the tab, or keep it for the next episode if it has a key. Never raises; may be called from any thread."""
        if self.key and self.is_usable and len(self.context.pages) == 1 and _add_idle(self):
            return
        self._is_dead = True
        try:
            shared_chromium().run(lambda _: self.context.close(), self.seconds)
        except Exception:  # the browser is gone, and with it the tab
            return

    @property
    def is_usable(self) -> bool:
        """False if the page or the browser has died."""
        browser = self.context.browser
        is_alive = browser is not None and browser.is_connected() and not self._is_dead
        return is_alive and self._page is not None and not self._page.is_closed()

    @property
    def page(self) -> Page:
        """The page in front.

        Raises:
            RuntimeError: it has crashed, or the browser has.
        """
        if self._page is not None and self._page.is_closed() and self.context.pages:
            self._page = self.context.pages[-1]  # a tab that closed itself
        if not self.is_usable or self._page is None:
            raise RuntimeError("the browser or its page has crashed")
        return self._page

    def check_alive(self, cause: Exception) -> None:
        """Raise a RuntimeError if the reason of an error is that the page or the browser has died."""
        if not self.is_usable:
            raise RuntimeError(f"the browser or its page has crashed: {str(cause).splitlines()[0]}") from cause

    async def go_back(self) -> None:
        """Go to the page before; in a tab without one, close it.

        Raises:
            ValueError: there is no page before this one.
        """
        page = self.page
        before = page.url
        await page.go_back(wait_until="domcontentloaded")
        if page.url not in ("about:blank", before):
            return
        if page.url != before:
            await page.go_forward(wait_until="domcontentloaded")
        if len(self.context.pages) == 1:
            raise ValueError("there is no page before this one")
        await page.close()
        self._page = self.context.pages[-1]

    async def settle(self) -> None:
        """Wait for a page that is loading; leave a site that is not among the hosts.

        Raises:
            RuntimeError: that site cannot be left, or the page has died.
        """
        from playwright.async_api import Error, TimeoutError

        for _ in range(3):
            page, has_navigated, self._has_navigated = self.page, self._has_navigated, False
            try:
                if has_navigated:  # asking costs some messages, at every step
                    await page.wait_for_load_state("domcontentloaded")
            except TimeoutError:
                await self.stop_loading()
            except Error as cause:
                self.check_alive(cause)
            if page.url == "about:blank" or self.hosts.find(page.url) is not None:
                return
            is_error = page.url.startswith("chrome-error:")
            self.notices.append(f"{'the address' if is_error else page.url} is not part of the task, or cannot be reached")
            try:
                await self.go_back()
            except ValueError:
                break
        raise RuntimeError(f"the page {self.page.url} is not part of the task and cannot be left")

    async def stop_loading(self) -> None:
        """Stop a page that does not load, and say so.

        Raises:
            RuntimeError: the page does not answer.
        """
        from playwright.async_api import Error

        try:
            session = await self.context.new_cdp_session(self.page)  # a script would wait for the page that does not load
            await asyncio.wait_for(session.send("Page.stopLoading"), _STOP_SECONDS)
            await session.detach()
        except (TimeoutError, Error) as cause:
            raise RuntimeError("the page does not answer") from cause
        self.notices.append(f"the page did not load within {self.seconds:g} seconds")

    def _follow(self, page: Page) -> None:
        """Make a new page the one in front, and listen to it."""
        if self._page is not None:
            self.notices.append("a new tab has opened")
        self._page = page
        self._has_navigated = True
        page.on("crash", self._note_crash)
        page.on("framenavigated", self._note_navigation)
        page.on("dialog", self._accept_dialog)
        page.on("download", self._refuse_download)

    def _note_crash(self, page: Page) -> None:
        self._is_dead = True

    def _note_navigation(self, frame: Frame) -> None:
        self._has_navigated |= frame.parent_frame is None

    async def _accept_dialog(self, dialog: Dialog) -> None:
        self.notices.append(f"a dialog ({dialog.type}) was accepted: {dialog.message}")
        await _ignore_gone(dialog.accept())

    async def _refuse_download(self, download: Download) -> None:
        self.notices.append(f"the download of {download.suggested_filename} was refused")
        await _ignore_gone(download.cancel())


async def _ignore_gone(call: Awaitable[Any]) -> None:
    from playwright.async_api import Error

    try:
        await call
    except Error:  # the page went away first
        return


_idle: list[WebTab] = []  # oldest first
_LOCK = threading.Lock()


def _take_idle(key: str) -> WebTab | None:
    with _LOCK:
        tab = next((tab for tab in _idle if tab.key == key), None)
        if tab is not None:
            _idle.remove(tab)
        return tab


def _add_idle(tab: WebTab) -> bool:
    """Keep a tab; False if there are enough."""
    with _LOCK:
        if len(_idle) >= _MOST_IDLE:
            return False
        tab.notices.clear()
        _idle.append(tab)
        return True
