"""An episode in a browser: a tab that is looked at as an accessibility tree, and acted on by role and name.

Whatever a page does, a step ends in an observation: what could not be done, or happened beside it, stands in the line `notice`.

| the page | the step |
|---|---|
| has lost the element since it was seen, or covers it | is refused, says so |
| does not load in time | stops loading, says so; what is there is shown. The first page of a task: raises |
| opens a dialog (alert, confirm, prompt) | accepts it and quotes it; else it would block the page for ever |
| opens a new tab | opens it in this tab, so that `back[]` leads back; where that fails, goes on in the new one, which `back[]` closes |
| offers a download | refuses it |
| leads to a site that is not the task's | goes back; other hosts are not reached at all, not even by scripts |
| dies, or the browser does, or Playwright's driver | raises; the game is then replayed in a fresh one (`live.py`) |
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
from .web_actions import WebAction, effective_actions, element_action, find_node, list_actions, read_web_action
from .web_tab import WebTab

if TYPE_CHECKING:
    from playwright.async_api import Browser, Locator, Page

__all__ = []

Verdict = Callable[[str | None], Awaitable[tuple[float, bool]]]
"""Asks for (reward, whether the episode is over) after a step; the text is the agent's answer, if it gave one."""

_ELEMENT_SECONDS = 3.0
_CLICK = """element => {
  if (element instanceof SVGElement) ['mousedown', 'mouseup', 'click'].forEach(kind => element.dispatchEvent(new Event(kind)));
  else { element.click(); element.focus(); }
}"""
_SCROLL = "up => window.scrollBy(0, (up ? -0.8 : 0.8) * window.innerHeight)"


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
    kinds: tuple[str, ...] = ("click", "fill", "select")
    """The kinds of actions that are possible."""
    shows_title: bool = False
    """True if the title tells kinds of pages apart that have the same address."""
    seconds: float = 10.0
    """Time in which a page has to load."""
    clicks_by_script: bool = False
    """True if a click is an event of its element wherever that lies; else the mouse clicks there, and what covers the element counts."""
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
            action = read_web_action(text)
            if action.kind not in self.task.kinds:
                raise ValueError(f"{action.kind} is not possible here; there are {', '.join(self.task.kinds)}")
            action = await self._act(self._tab, action)
        except ValueError as refusal:
            self._tab.notices.append(f"refused: {refusal}")
            action = None
        await self._tab.settle()
        answer = action.text if action is not None and action.kind == "answer" else None
        # Both at once: neither changes the page, and the browser works on one while the other's message is on its way.
        (reward, over), page = await asyncio.gather(self._verdict(answer), self._read_page())
        return self._show(page, reward, over=over or answer is not None, taken=action)

    async def _act(self, tab: WebTab, action: WebAction) -> WebAction:
        """Take an action. Returns it with its element by role and name.

        Raises:
            ValueError: it cannot be done; says why.
        """
        from playwright.async_api import Error, TimeoutError

        try:
            if action.kind in ("click", "fill", "select"):
                node = find_node(action, self._nodes)
                await _act_on(tab, tab.page.locator(f"aria-ref={node.ref}"), action, node, self.task.clicks_by_script)
                return element_action(action.kind, node, action.text)
            await self._act_on_page(tab, action)
        except TimeoutError as cause:
            tab.check_alive(cause)
            await tab.stop_loading()
        except Error as cause:
            tab.check_alive(cause)
            reason = str(cause).splitlines()[0].partition(": ")[2] or str(cause)
            if "net::" not in reason:
                raise ValueError(reason) from cause
            tab.notices.append(f"the page cannot be opened ({reason.partition(' ')[0]})")
        return action

    async def _act_on_page(self, tab: WebTab, action: WebAction) -> None:
        page = tab.page
        match action.kind:
            case "back":
                await tab.go_back()
            case "goto":
                await page.goto(self.task.hosts.resolve(action.text), wait_until="domcontentloaded")
            case "scroll":
                await page.evaluate(_SCROLL, action.text.lower() == "up")
            case "press":
                focused = page.locator(":focus")
                await (focused.press(action.text) if await focused.count() == 1 else page.keyboard.press(action.text))

    async def _read_page(self) -> tuple[str, str]:
        """The kind of the page, and its snapshot."""
        assert self._tab is not None
        page = self._tab.page
        if not self.task.shows_title:
            snapshot = await page.aria_snapshot(mode="ai")
            return page_template(page.url, self.task.hosts), snapshot
        snapshot, title = await asyncio.gather(page.aria_snapshot(mode="ai"), page.title())
        return f'{page_template(page.url, self.task.hosts)} "{title}"', snapshot

    def _show(self, page: tuple[str, str], reward: float, *, over: bool, taken: WebAction | None = None) -> Observation:
        assert self._tab is not None
        kind, snapshot = page
        self._nodes = () if over else read_snapshot(snapshot)
        notice = "; ".join(self._tab.notices)
        self._tab.notices.clear()
        text = f"the episode is over, reward {reward:g}" if over else page_text(self._nodes)
        text = self._log.write(kind, self.task.instruction, text, notice=notice, taken=taken)
        return Observation(text, () if over else self._list_actions(), reward, over)

    def _list_actions(self) -> tuple[str, ...]:
        listed = list_actions(self._nodes, self.task.texts, self.task.kinds)
        further = ["back[]"] if "back" in self.task.kinds and (self._log.before or self._log.done) else []
        return tuple(sorted({*listed, *further}))


async def _act_on(tab: WebTab, element: Locator, action: WebAction, node: AccessibleNode, by_script: bool) -> None:
    """Act on an element.

    Raises:
        ValueError: it has gone, or cannot be reached.
    """
    from playwright.async_api import TimeoutError

    missing = ValueError(f"{node.role} {node.name!r} is no longer on the page")
    if not await element.count():
        raise missing
    before, limit = tab.page.url, 1000 * _ELEMENT_SECONDS
    if by_script and action.kind == "click":
        # A reference is known in Playwright's own world of scripts only: `evaluate` finds it, `evaluate_all` and `dispatch_event` do not.
        try:
            await element.evaluate(_CLICK)  # it is there: on a busy machine the script may only be slow
        except TimeoutError as cause:
            tab.check_alive(cause)
            raise missing from cause
        return
    try:
        match action.kind:
            case "click":
                await element.click(timeout=limit)
            case "fill":
                await element.fill(action.text, timeout=limit)
            case _:
                await element.select_option(label=action.text, timeout=limit)
    except TimeoutError as cause:
        tab.check_alive(cause)
        if "navigat" in str(cause):  # the click is done, and leads to a page that has not answered yet
            await tab.page.wait_for_url(lambda url: url != before, wait_until="commit")
            return
        raise ValueError(f"{node.role} {node.name!r} cannot be reached: it is covered, hidden or moving") from cause
