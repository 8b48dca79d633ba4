"""Worlds in a real browser, of which MiniWoB++ (`miniwob.py`) comes with its pages and needs no network.

Needs Playwright and a Chromium on the system: `pip install playwright && apt install chromium`.

- An observation is the page's accessibility tree (`support/accessibility.py`): frames and shadow roots included, each element that
  can be acted on with a number, role, name, state and value. Above it stand the kind of the page, the task, and what was done.
- Actions name elements by role and name, `click[button "Buy Now"]` (`support/web_actions.py`), so that what is remembered from one
  page can be done on another of its kind. `Observation.actions` lists them; any other text that can be read is an action too. One
  that cannot be done costs a step, and says why.
- The kind of a page is its address as a typed template, `shop/item/{id}` (`support/page_templates.py`).
- Memory compares states in two stages (`state_similarity`): pages of the same kind whose task resembles, then what was done there.
- Faults of pages and browser: `support/web_game.py`. The step limit ends an episode; no clock does.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from ...memory.records import Observation, Task
from .support.web_actions import WebAction, read_web_action
from .support.web_game import WebGame, WebTask
from .support.worlds import LiveWorld

if TYPE_CHECKING:
    from ...memory.search.sections import SectionSimilarity

__all__ = ["BrowserWorld"]

_ELEMENT = re.compile(r'^\[(\d+)\] ([a-z][\w-]*)(?: ("(?:[^"\\]|\\.)*"))?(?: #(\d+))?', re.MULTILINE)
"""An element's line on a page: number, role, name and ordinal."""


@lru_cache(maxsize=1)
def page_similarity() -> SectionSimilarity:
    """JitRL's comparison of web states: the same kind of page, a task of at least .27, then .3 task + .7 context."""
    from ...memory.search.sections import Section, SectionSimilarity  # here, because naming the worlds imports no package

    return SectionSimilarity(
        {
            "page": Section(weight=0, minimum=1),
            "task": Section(weight=0.3, minimum=0.27),
            # Pairs: fields that were filled the other way round are another state. The paper compares single words.
            "context": Section(weight=0.7, ngram=2, tokens=str.split),
        }
    )


def abstract_page(text: str) -> str:
    """The state key of an observation in a browser: kind of page, task, and what was done on this page and the one before."""
    from ...memory.search.sections import join_sections

    lines = text.split("\n")
    found = {name: line for name, _, line in (line.partition(": ") for line in lines[:4])}
    context = f"{found.get('before', '')} | {found.get('done', '')}"
    return join_sections({"page": found.get("page", ""), "task": found.get("task", ""), "context": context})


class WebPages:
    """The parts that all worlds of web pages share: how their states are named and compared, and what an agent is told of them."""

    brief = (
        "What you see is a web page, an element a line with its role, name and state. You act on an element by its role and name; what a "
        "step led to stands above the page."
    )
    """A sentence for the system message of every agent."""

    free_text: tuple[str, ...] = ("click", "fill", "select", "press", "scroll", "goto", "back", "answer")

    @property
    def state_similarity(self) -> SectionSimilarity:
        """How JitRL compares its states."""
        return page_similarity()

    def admit(self, observation: Observation, action: str, *, remembered: bool = False) -> str:
        """An action that is not listed, by role and name of its element; empty if it cannot be read, or the page has no such element.

        Args:
            observation: the page.
            action: the action, as a model writes it.
            remembered: True: it comes from memory, and counts only if it has an element. An address or an answer was another task's.
        """
        try:
            read = read_web_action(action)
        except ValueError:
            return ""
        if not read.number and not read.role:
            return "" if remembered else str(read)
        for number, role, name, ordinal in _ELEMENT.findall(observation.text):
            here = WebAction(read.kind, role, json.loads(name or '""'), int(ordinal or 1), read.text)
            named = (role, here.name.casefold(), here.ordinal) == (read.role, read.name.casefold(), read.ordinal)
            if named or int(number) == read.number:
                return str(here)
        return ""

    def abstract(self, observation: Observation) -> str:
        """The kind of page, the task, and what was done; see `abstract_page`."""
        return abstract_page(observation.text)


class BrowserWorld(WebPages, LiveWorld):
    """A world in a browser."""

    solved = 1.0

    def __init__(self, name: str, horizon: int) -> None:
        super().__init__(name, horizon, live=4)

    @abstractmethod
    def web_task(self, task: Task) -> WebTask:
        """The pages of a task."""

    def _start(self, task: Task) -> tuple[WebGame, Observation]:
        game = WebGame(self.web_task(task))
        try:
            return game, game.start()
        except BaseException:
            game.close()
            raise

    def screenshot(self, task: Task, actions: Sequence[str]) -> bytes:
        """The page after these actions, as a PNG."""
        return self._live.ask(task, actions, WebGame.screenshot)
