"""A tab of the browser with what happens to it: dialogs, navigations, crashes."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .chromium import shared_chromium
from .page_templates import HostMap

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Dialog, Frame, Page

__all__ = []

_NOWHERE = "http://127.0.0.1:9"
"""A proxy that is not there: requests to hosts of other sites end here."""
_MOST_IDLE = 4


@dataclass
class WebTab:
    """A tab with cookies of its own. All but `release` runs in the browser's loop."""

    context: BrowserContext
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
        tab = cls(context, seconds, key)
        tab._page = page = await context.new_page()
        page.on("crash", tab._note_crash)
        page.on("framenavigated", tab._note_navigation)
        page.on("dialog", tab._accept_dialog)
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
        """Its page.

        Raises:
            RuntimeError: it has crashed, or the browser has.
        """
        if not self.is_usable or self._page is None:
            raise RuntimeError("the browser or its page has crashed")
        return self._page

    def check_alive(self, cause: Exception) -> None:
        """Raise a RuntimeError if the reason of an error is that the page or the browser has died."""
        if not self.is_usable:
            raise RuntimeError(f"the browser or its page has crashed: {str(cause).splitlines()[0]}") from cause

    async def settle(self) -> None:
        """Wait for a page that is loading; one that never does is looked at as it is."""
        from playwright.async_api import Error

        has_navigated, self._has_navigated = self._has_navigated, False
        try:
            if has_navigated:  # asking costs some messages, at every step
                await self.page.wait_for_load_state("domcontentloaded")
        except Error as cause:
            self.check_alive(cause)

    def _note_crash(self, page: Page) -> None:
        self._is_dead = True

    def _note_navigation(self, frame: Frame) -> None:
        self._has_navigated |= frame.parent_frame is None

    async def _accept_dialog(self, dialog: Dialog) -> None:
        from playwright.async_api import Error

        self.notices.append(f"a dialog ({dialog.type}) was accepted: {dialog.message}")
        with suppress(Error):  # the page went away first
            await dialog.accept()


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
