"""An episode in a browser: a tab that is looked at as an accessibility tree, and acted on by role and name.

Whatever a page does, a step ends in an observation: what could not be done, or happened beside it, stands in the line `notice`.

| the page | the step |
|---|---|
| has lost the element since it was seen, or hides the field | is refused, says so |
| opens a dialog (alert, confirm, prompt) | accepts it and quotes it; else it would block the page for ever |
| asks for another host | gets nothing: no host but the task's is reached |
| does not open in time at the start, or spins | raises: the game died |
| dies, or the browser does, or Playwright's driver | raises; the game is then replayed in a fresh one (`live.py`) |

A click is an event of its element, wherever that lies, so that what covers the element does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ....memory.records import Observation
from .accessibility import AccessibleNode, page_text, read_snapshot
from .chromium import shared_chromium
from .page_templates import HostMap, page_template
from .web_actions import ELEMENT_KINDS, WebAction, effective_actions, element_action, find_node, list_actions, read_web_action
from .web_tab import WebTab

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

__all__ = []

Verdict = Callable[[], Awaitable[tuple[float, bool]]]
"""Asks for (reward, whether the episode is over) after a step."""

_ELEMENT_SECONDS = 3.0
_CLICK = """element => {
  if (element instanceof SVGElement) ['mousedown', 'mouseup', 'click'].forEach(kind => element.dispatchEvent(new Event(kind)));
  else { element.click(); element.focus(); }
}"""


@dataclass(frozen=True)
class WebTask:
    """A task on web pages: where it begins, what is wanted, and who judges it."""

    instruction: str
    hosts: HostMap
    """The sites of the task."""
    open: Callable[[Page], Awaitable[Verdict]]
    """Opens the first page, and returns what judges the steps. It must not act on the agent's page."""
    texts: tuple[str, ...] = ()
    """What may be filled in, for the list of admissible actions."""
    seconds: float = 10.0
    """Time in which the first page has to load."""
    tab_key: str = ""
    """Episodes with the same key may use a tab one after the other; empty: each has a fresh one, without history and cookies."""


@dataclass
class PageLog:
    """The actions on the present page and on the page before it, as an agent is shown them."""

    kind: str = ""
    """The kind of the present page."""
    before: tuple[str, ...] = ()
    """What was done on the page before, in short."""
    done: list[WebAction] = field(default_factory=list)

    def write(self, kind: str, task: str, text: str, *, notice: str = "", taken: WebAction | None = None) -> str:
        """The text that an agent sees after a step: five lines with names, then the page."""
        if taken is not None:
            self.done.append(taken)
        if self.kind and kind != self.kind:
            self.before, self.done = effective_actions(self.done), []
        self.kind = kind
        done = " -> ".join(effective_actions(self.done))
        lines = {"page": kind, "task": task, "before": " -> ".join(self.before), "done": done, "notice": notice}
        return "".join(f"{name}: {' '.join(line.split())}\n" for name, line in lines.items() if line or name != "notice") + text


@dataclass
class WebGame:
    """A game as `live.py` plays it; its methods may be called from any thread."""

    task: WebTask
    _tab: WebTab | None = None
    _verdict: Verdict | None = None
    _nodes: tuple[AccessibleNode, ...] = ()
    _log: PageLog = field(default_factory=PageLog)

    def start(self) -> Observation:
        """Open the first page; the episode's first observation."""
        return shared_chromium().run(self._start, 6 * self.task.seconds)

    def step(self, action: str) -> Observation:
        """Take an action; what the agent then sees, with the reward. The tab is given back when the episode is over."""
        shown = shared_chromium().run(lambda _: self._step(action), 6 * self.task.seconds)
        if shown.over:
            self.close()
        return shown

    def screenshot(self) -> bytes:
        """The part of the page that a window shows, as a PNG."""

        async def take(_: Browser) -> bytes:
            assert self._tab is not None
            return await self._tab.page.screenshot(animations="disabled")

        return shared_chromium().run(take, self.task.seconds)

    def close(self) -> None:
        """Give the tab back."""
        tab, self._tab = self._tab, None
        if tab is not None:
            tab.release()

    async def _start(self, browser: Browser) -> Observation:
        from playwright.async_api import Error, TimeoutError

        self._tab = await WebTab.open(browser, self.task.hosts, self.task.seconds, self.task.tab_key)
        try:
            self._verdict = await self.task.open(self._tab.page)
        except TimeoutError as cause:
            raise RuntimeError(f"the first page did not load within {self.task.seconds:g} seconds") from cause
        except Error as cause:
            raise RuntimeError(f"the first page cannot be opened: {str(cause).splitlines()[0]}") from cause
        return self._show(await self._read_page(), 0.0, over=False)

    async def _step(self, text: str) -> Observation:
        if self._tab is None or self._verdict is None:
            raise RuntimeError("the tab is closed")
        action: WebAction | None = None
        try:
            action = await self._act(self._tab, read_web_action(text, ELEMENT_KINDS))
        except ValueError as refusal:
            self._tab.notices.append(f"refused: {refusal}")
            action = None
        await self._tab.settle()
        # Both at once: neither changes the page, and the browser works on one while the other's message is on its way.
        (reward, over), page = await asyncio.gather(self._verdict(), self._read_page())
        return self._show(page, reward, over=over, taken=action)

    async def _act(self, tab: WebTab, action: WebAction) -> WebAction:
        """Take an action. Returns it with its element by role and name.

        Raises:
            ValueError: it cannot be done; says why.
        """
        from playwright.async_api import Error, TimeoutError

        node = find_node(action, self._nodes)
        element, limit = tab.page.locator(f"aria-ref={node.ref}"), 1000 * _ELEMENT_SECONDS
        missing = f"{node.role} {node.name!r} is no longer on the page"
        try:
            if not await element.count():
                raise ValueError(missing)
            # A reference is known in Playwright's own world of scripts only: `evaluate` finds it, `evaluate_all` and `dispatch_event` do not.
            match action.kind:
                case "click":
                    await element.evaluate(_CLICK)  # it is there: on a busy machine the script may only be slow
                case "fill":
                    await element.fill(action.text, timeout=limit)
                case _:
                    await element.select_option(label=action.text, timeout=limit)
        except TimeoutError as cause:
            tab.check_alive(cause)
            hidden = f"{node.role} {node.name!r} cannot be reached: it is covered, hidden or moving"
            raise ValueError(missing if action.kind == "click" else hidden) from cause
        except Error as cause:
            tab.check_alive(cause)
            raise ValueError(str(cause).splitlines()[0].partition(": ")[2] or str(cause)) from cause
        return element_action(action.kind, node, action.text)

    async def _read_page(self) -> tuple[str, str]:
        """The kind of the page, and its snapshot."""
        assert self._tab is not None
        page = self._tab.page
        snapshot = await page.aria_snapshot(mode="ai")
        return page_template(page.url, self.task.hosts), snapshot

    def _show(self, page: tuple[str, str], reward: float, *, over: bool, taken: WebAction | None = None) -> Observation:
        assert self._tab is not None
        kind, snapshot = page
        self._nodes = () if over else read_snapshot(snapshot)
        notice = "; ".join(self._tab.notices)
        self._tab.notices.clear()
        text = f"the episode is over, reward {reward:g}" if over else page_text(self._nodes)
        text = self._log.write(kind, self.task.instruction, text, notice=notice, taken=taken)
        return Observation(text, list_actions(self._nodes, self.task.texts), reward, over)
