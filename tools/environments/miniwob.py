"""MiniWoB++ (Liu et al., 2018, arXiv:1802.08802; package `miniwob`, MIT): small web pages, each with one thing to do.

The pages are those of the package, opened from its files in a browser of ours (`browser.py`); the package's own driver (Selenium)
plays no part. `python -m pip install --no-deps miniwob` is enough.

As in the package, a page is drawn anew for each seed (`Math.seedrandom`), the task is its utterance, a click is an event of its
element, though another one may lie above it, and the reward is the page's own raw reward: 0 until the episode ends, then -1 to 1,
1 for success. Three things differ. The package ends an episode after 10
seconds with -1, which would make a score depend on how fast a model thinks: here only the step limit ends it, with 0.
Animations are switched off, so that a page is the same however fast it is looked at; and the pages' links, spans that only look like
links, get that role, or no accessibility tree would have them.

`Observation.actions` lists clicks, options, and for every field the texts that the utterance has in quotation marks. So what asks for
other texts, for dragging or for drawing is out of reach of the listed actions. `TEN` are ten tasks that they reach.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ...memory.errors import UserError
from ...memory.records import Task
from .browser import BrowserWorld
from .support.arguments import check_settings, pick_task
from .support.page_templates import HostMap
from .support.web_game import Verdict, WebGame, WebTask

if TYPE_CHECKING:
    from playwright.async_api import Page

__all__ = ["MiniWob"]

TEN = (
    "click-test-2",
    "click-button",
    "click-link",
    "click-option",
    "click-checkboxes",
    "choose-list",
    "enter-text",
    "login-user",
    "click-tab-2",
    "click-collapsible-2",
)
"""Ten tasks of one to about six steps, for comparisons."""

_SEEDS = 1_000_000
"""Number of seeds of each split."""
_SPLITS: Mapping[str, Sequence[int]] = {
    "train": range(_SEEDS),
    "dev": range(_SEEDS, 2 * _SEEDS),
    "test": range(2 * _SEEDS, 3 * _SEEDS),
}
_NO_TIME_LIMIT = 1_000_000_000
"""Milliseconds; a timer of a browser takes at most 2**31."""

# The utterance is in the observation as the task; the counters around the page are no part of it.
_BEGIN = """([seed, limit]) => {
  core.EPISODE_MAX_TIME = limit;
  if (window.jQuery) jQuery.fx.off = true;
  Math.seedrandom(seed);
  core.startEpisodeReal();
  for (const id of ['reward-display', 'query', 'click-canvas']) {
    const shown = document.getElementById(id);
    if (shown) shown.style.visibility = 'hidden';
  }
  for (const link of document.querySelectorAll('span.alink')) link.setAttribute('role', 'link');
  return core.getUtterance();
}"""
_RESULT = "() => [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL]"


def pages_folder() -> Path:
    """The folder with the package's pages."""
    found = find_spec("miniwob")
    places = list(found.submodule_search_locations or ()) if found else []
    if not places:
        raise UserError("miniwob needs the package miniwob: pip install --no-deps miniwob && pip install playwright")
    return Path(places[0], "html")


def quoted_texts(utterance: str) -> tuple[str, ...]:
    """The texts that stand in quotation marks, in order, without repeats."""
    found = re.findall(r'"([^"]+)"|“([^”]+)”', utterance)
    return tuple(dict.fromkeys(straight or curly for straight, curly in found))


class MiniWob(BrowserWorld):
    """A task of MiniWoB++.

    Raises:
        UserError: there is no such task, or the package is not installed.
    """

    def __init__(self, page: str, settings: Mapping[str, str] | None = None, horizon: int = 10) -> None:
        check_settings(f"miniwob:{page}:", settings or {}, ())
        folder = pages_folder()
        known = sorted(path.stem for path in (folder / "miniwob").glob("*.html"))
        if page not in known:
            near = " or ".join(get_close_matches(page, known, 3, 0.5) or TEN[:3])
            raise UserError(f"miniwob has no task {page!r}; did you mean {near}? All: {', '.join(known)}")
        super().__init__(f"miniwob:{page}", horizon)
        self._page = page
        self._url = (folder / "miniwob" / f"{page}.html").as_uri()
        self._hosts = HostMap({self.name: self._url})
        self._utterance = lru_cache(maxsize=10_000)(self._read_utterance)

    def task(self, seed: int, split: str = "test") -> Task:
        """The page of a seed; seeds of different splits draw different pages. The instruction is read from the page."""
        drawn = pick_task(self.name, _SPLITS, split, seed)
        return Task(f"{self.name.partition(':')[2]}-{split}-{seed}", self._utterance(drawn), drawn)

    def optimum(self, task: Task) -> float:
        """The highest raw reward that there is, 1; not every task can reach it by listed actions."""
        return self.solved

    def web_task(self, task: Task) -> WebTask:
        async def open_page(page: Page) -> Verdict:
            await self._draw(page, task.seed)

            async def judge() -> tuple[float, bool]:
                over, reward = await page.evaluate(_RESULT)
                return (float(reward), True) if over else (0.0, False)

            return judge

        key = self.name if self._page in TEN else ""
        return WebTask(task.instruction, self._hosts, open_page, quoted_texts(task.instruction), tab_key=key)

    async def _draw(self, page: Page, seed: int) -> str:
        """Draw the page of a seed; returns its utterance."""
        if page.url != self._url:
            await page.goto(self._url)
        utterance: str = await page.evaluate(_BEGIN, [seed, _NO_TIME_LIMIT])
        if not await page.evaluate("WOB_TASK_READY"):
            await page.wait_for_function("WOB_TASK_READY")
            utterance = await page.evaluate("core.getUtterance()")
        return utterance

    def _read_utterance(self, seed: int) -> str:
        said = list[str]()

        async def open_page(page: Page) -> Verdict:
            said.append(await self._draw(page, seed))

            async def judge() -> tuple[float, bool]:
                return 0.0, False

            return judge

        game = WebGame(WebTask("", self._hosts, open_page, tab_key=self.name if self._page in TEN else ""))
        try:
            game.start()
        finally:
            game.close()
        return said[0]
