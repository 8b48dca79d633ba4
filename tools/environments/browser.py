"""Worlds in a real browser: MiniWoB++ (`miniwob.py`) and our own shop's pages, both offline.

Needs the extra `[web]` and a Chromium on the system: `pip install 'learngraph[web]' && apt install chromium`.

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

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from ...memory.records import Observation, Task
from .support.arguments import check_settings
from .support.live import LiveGames
from .support.page_templates import HostMap
from .support.shop_server import ShopServer
from .support.web_actions import WebAction
from .support.web_game import Verdict, WebGame, WebTask
from .web_shop import WebShop

if TYPE_CHECKING:
    from playwright.async_api import Page

    from ...memory.search.sections import SectionSimilarity

__all__ = ["BrowserShop", "BrowserWorld", "abstract_page", "page_similarity"]


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


class BrowserWorld(ABC):
    """A world in a browser.

    Args:
        name: its name.
        horizon: number of steps after which an episode ends.
    """

    free_text = ("click", "fill", "select", "press", "scroll", "goto", "back", "answer")
    solved = 1.0
    """Lowest score that counts as solved."""

    @property
    def state_similarity(self) -> SectionSimilarity:
        """How JitRL compares its states."""
        return page_similarity()

    def __init__(self, name: str, horizon: int) -> None:
        self.name, self.horizon = name, horizon
        self._games = LiveGames(name, self._start, horizon, size=4, free_text=True)

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

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The page after these actions.

        Raises:
            UserError: the episode was over before the last one, or the browser cannot be used.
        """
        return self._games.observe(task, actions)

    def abstract(self, observation: Observation) -> str:
        """Kind of page, task, and what was done; see `abstract_page`."""
        return abstract_page(observation.text)

    def close(self) -> None:
        """Close the tabs; the browser stays, for other worlds."""
        self._games.close()


class BrowserShop(BrowserWorld):
    """Our own shop (`web_shop.py`) as pages in a browser.

    The pages come from a server of this process on a free port of 127.0.0.1, and the reward is that of the purchase which the
    server has seen: the agent's page is not asked.

    Args:
        settings: `products` and `seed`, as of `webshop`.
        horizon: number of steps after which an episode ends. A search is two: filling in the words, and the button.
    """

    def __init__(self, settings: Mapping[str, str] | None = None, horizon: int = 20) -> None:
        check_settings("browser:shop:", settings or {}, ("products", "seed"))
        self.shop = WebShop(settings, horizon)
        super().__init__("browser:shop" + self.shop.name.removeprefix("webshop"), horizon)
        self._server: ShopServer | None = None
        self._lock = threading.Lock()

    def task(self, seed: int, split: str = "test") -> Task:
        """The `seed`-th goal of a split, as of `webshop`."""
        task = self.shop.task(seed, split)
        return Task(task.id.replace("webshop", "browser-shop", 1), task.instruction, task.seed)

    def web_task(self, task: Task) -> WebTask:
        server = self._serve()
        path = server.begin(task)

        async def judge(answer: str | None) -> tuple[float, bool]:
            page = server.page(path)
            return page.score, page.kind == "done"

        async def open_page(page: Page) -> Verdict:
            await page.goto(server.url.rstrip("/") + path, wait_until="domcontentloaded")
            return judge

        searches = [one[len("search[") : -1] for one in self.shop.observe(task, ()).actions]
        return WebTask(
            task.instruction,
            HostMap({"shop": server.url}),
            open_page,
            tuple(searches),
            kinds=("click", "fill", "press"),
            shows_title=True,
        )

    def gold(self, task: Task) -> tuple[str, ...]:
        """The actions that buy the goal's product, cut at the horizon."""
        return self._purchase(task)[: self.horizon]

    def optimum(self, task: Task) -> float:
        """The highest score, 1; 0 if the horizon is too short to buy the goal's product."""
        return self.solved if self.knows_optimum(task) else 0.0

    def knows_optimum(self, task: Task) -> bool:
        """False if the horizon is too short to buy the goal's product."""
        return len(self._purchase(task)) <= self.horizon

    def close(self) -> None:
        """Close the tabs and stop the server."""
        super().close()
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.stop()

    def _purchase(self, task: Task) -> tuple[str, ...]:
        written = list[str]()
        for action in self.shop.shop.buying_actions(self.shop.goal(task)):
            kind, _, text = action[:-1].partition("[")
            if kind == "search":
                written.append(str(WebAction("fill", "textbox", "Search words", text=text)))
            written.append(str(WebAction("click", "button", "Search" if kind == "search" else text)))
        return tuple(written)

    def _serve(self) -> ShopServer:
        with self._lock:
            if self._server is None:
                self._server = ShopServer(self.shop)
                threading.Thread(target=self._server.serve, name=self.name, daemon=True).start()
            return self._server
