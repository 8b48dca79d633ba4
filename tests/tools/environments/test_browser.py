"""Worlds in a browser: pages with frames and equal labels, pages and browsers that misbehave."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from fault_site import FaultSite
from waiting import longer_than
from worlds_here import needs

from learngraph.graphs.jitrl import JitRL, open_memory
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task
from learngraph.memory.search.sections import split_sections
from learngraph.tools.environments.browser import BrowserWorld, abstract_page
from learngraph.tools.environments.support import chromium
from learngraph.tools.environments.support.chromium import shared_chromium
from learngraph.tools.environments.support.page_templates import HostMap
from learngraph.tools.environments.support.web_actions import WebAction
from learngraph.tools.environments.support.web_game import Verdict, WebGame, WebTask

runs_browser = needs("miniwob")
needs_browser = [pytest.mark.slow, runs_browser]
TASK = Task("start", "look around")


class Site(BrowserWorld):
    """A world over the site, which notes the page's title at each step."""

    def __init__(self, url: str, first: str = "/", verdict: Exception | None = None, asks: tuple[str, ...] = ()) -> None:
        super().__init__("site", 6)
        self.url, self.first, self.error, self.asks, self.title = url, first, verdict, asks, ""

    def task(self, seed: int, split: str = "test") -> Task:
        return TASK

    def web_task(self, task: Task) -> WebTask:
        async def open_page(page: Any) -> Verdict:
            await page.goto(self.url + self.first, wait_until="domcontentloaded")
            for address in self.asks:
                await page.evaluate("address => fetch(address).catch(() => 0)", address)

            async def judge() -> tuple[float, bool]:
                if self.error is not None:
                    raise self.error
                self.title = await page.title()
                return 0.0, False

            return judge

        return WebTask(task.instruction, HostMap({"site": self.url}), open_page, ("some text",), seconds=2)


@pytest.fixture(scope="module")
def site() -> Iterator[FaultSite]:
    with FaultSite() as running:
        yield running


@pytest.fixture
def world(site: FaultSite) -> Iterator[Site]:
    opened = Site(site.url, "/labels")
    yield opened
    opened.close()


def line(shown: Observation, name: str) -> str:
    """The line of an observation with this name; empty if there is none."""
    return next((text.partition(": ")[2] for text in shown.text.split("\n")[:5] if text.startswith(f"{name}: ")), "")


def find_processes(kind: str) -> list[int]:
    """The browser's processes of a kind: `browser` is its first one, `renderer` those of its pages."""

    async def ask(browser: Any) -> list[int]:
        session = await browser.new_browser_cdp_session()
        found = await session.send("SystemInfo.getProcessInfo")
        return [int(one["id"]) for one in found["processInfo"] if one["type"] == kind]

    return shared_chromium().run(ask, 10)


def find_driver() -> list[int]:
    """Playwright's driver: the program between this process and the browser."""
    own = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "pid=,args="], capture_output=True, text=True, check=True)
    return [int(line.split()[0]) for line in own.stdout.splitlines() if "run-driver" in line]


# What needs no browser


def test_the_state_key_has_the_kind_of_page_the_task_and_what_was_done() -> None:
    text = 'page: shop/item/{id}\ntask: buy: a\nbefore: click[link "A"]\ndone: click[button "L"]\nnotice: x\n[1] button "L"'
    assert split_sections(abstract_page(text)) == {
        "page": "shop/item/{id}",
        "task": "buy: a",
        "context": 'click[link "A"] | click[button "L"]',
    }


def test_states_are_neighbours_on_pages_of_one_kind_with_tasks_that_resemble() -> None:
    def key(page: str, task: str, done: str) -> Any:
        return similarity.read_query(abstract_page(f"page: {page}\ntask: {task}\nbefore: \ndone: {done}\n"))

    similarity = Site("http://127.0.0.1:1").state_similarity
    rows = similarity.rows()
    for page, task, done in (
        ("shop/{id}", "buy the red lamp", 'click[button "L"]'),
        ("shop/{id}", "buy the blue lamp", 'click[button "L"]'),
        ("shop/{id}", "sell nothing at all", 'click[button "L"]'),
        ("shop", "buy the red lamp", 'click[button "L"]'),
    ):
        rows.add(key(page, task, done))
    found, near = rows.nearest(key("shop/{id}", "buy the red lamp", 'click[button "L"]'), 9, 0.0, None)
    assert found.tolist() == [0, 1]
    assert near.tolist() == pytest.approx([1, 0.7 + 0.3 * 3 / 5])
    # Fields that were filled the other way round are another state.
    rows.add(key("login", "enter a and b", 'fill[textbox, "a"] -> fill[textbox #2, "b"]'))
    _, near = rows.nearest(key("login", "enter a and b", 'fill[textbox, "b"] -> fill[textbox #2, "a"]'), 9, 0.0, None)
    assert near[0] < 0.8


def test_the_papers_preset_finds_the_kind_of_page_then_the_task_then_what_was_done_word_by_word() -> None:
    """0.7 context + 0.3 task of at least .27, over single words, on pages of the same kind."""
    world, settings = Site("http://127.0.0.1:1"), JitRL.paper_web()
    assert (settings.cross_task, settings.min_similarity, settings.gamma, settings.k) == (True, 0.8, 0.1, 10)
    memory = open_memory(settings, MethodInputs(world))
    rows = memory.similarity.rows()

    def key(page: str, task: str, done: str) -> Any:
        return memory.similarity.read_query(abstract_page(f"page: {page}\ntask: {task}\nbefore: \ndone: {done}\n"))

    for page, task, done in (
        ("login", "enter a and b", "a -> b"),  # other words in the same places
        ("login", "enter a and c", "b -> a"),  # the task resembles
        ("login", "find the price of flights", "b -> a"),  # no such task
        ("shop", "enter a and b", "b -> a"),  # no such page
    ):
        rows.add(key(page, task, done))
    found, near = rows.nearest(key("login", "enter a and b", "b -> a"), 9, settings.min_similarity, None)
    assert found.tolist() == [0, 1]
    assert near.tolist() == pytest.approx([1, 0.7 + 0.3 * 3 / 5])


@pytest.mark.parametrize(
    ("written", "admitted", "remembered"),
    [
        ('fill[textbox "Search", "lamp"]', 'fill[textbox "Search", "lamp"]', True),
        ('fill(3, "lamp")', 'fill[textbox "Search", "lamp"]', True),
        ('click[link "details" #2]', 'click[link "Details" #2]', True),
        ('click[link "Details" #3]', "", False),
        ('answer["42"]', 'answer["42"]', False),
        ("go home", "", False),
    ],
)
def test_what_is_not_listed_is_admitted_in_the_form_in_which_it_is_remembered(
    written: str, admitted: str, remembered: bool
) -> None:
    """From memory only what has its element on the page: an answer, or an address, was another task's."""
    page = Observation('page: shop\ntask: t\n[1] link "Details"\n[2] link "Details" #2\n[3] textbox "Search": "old"')
    assert Site("http://127.0.0.1:1").admit(page, written) == admitted
    assert Site("http://127.0.0.1:1").admit(page, written, remembered=True) == admitted * remembered


def test_without_a_browser_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("playwright", reason="NOT TESTED: pip install playwright")
    monkeypatch.setattr(chromium, "_shared", None)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CHROMIUM", raising=False)
    with pytest.raises(UserError, match=r"need a Chromium: apt install chromium, or set \$CHROMIUM.*PATH has none of"):
        Site("http://127.0.0.1:1").observe(TASK, ())
    monkeypatch.setenv("CHROMIUM", "/nowhere/chrome")
    with pytest.raises(UserError, match=r"\$CHROMIUM is '/nowhere/chrome', which is no program"):
        Site("http://127.0.0.1:1").observe(TASK, ())


def test_without_playwright_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chromium, "_shared", None)
    monkeypatch.setitem(__import__("sys").modules, "playwright.async_api", None)
    with pytest.raises(UserError, match=r"need playwright .*pip install playwright"):
        Site("http://127.0.0.1:1").observe(TASK, ())


@runs_browser
def test_a_browser_that_does_not_start_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chromium, "_shared", None)
    monkeypatch.setenv("CHROMIUM", "/bin/false")
    with pytest.raises(UserError, match=r"the browser /bin/false does not start"):
        Site("http://127.0.0.1:1").observe(TASK, ())


# Pages and browsers that misbehave


class TestInABrowser:
    pytestmark = needs_browser

    def test_equal_labels_frames_and_shadow_roots_are_told_apart(self, site: FaultSite) -> None:
        world = Site(site.url, "/frame")
        shown = world.observe(TASK, ())
        assert line(shown, "page") == "site/frame"
        assert shown.actions == (
            'click[button "Deep [x]"]',
            "click[button \"Go, 'it'\" #2]",
            "click[button \"Go, 'it'\"]",
            'fill[textbox "in a frame", "some text"]',
        )
        for n, title in ((2, "outer"), (1, "inner"), (0, "shadow")):
            world.observe(TASK, [shown.actions[n]])
            assert world.title == title
        filled = world.observe(TASK, [shown.actions[3]])
        assert '[3] textbox "in a frame": "some text"' in filled.text
        assert line(filled, "done") == shown.actions[3]
        world.close()

    def test_awkward_labels_and_texts_reach_the_page_as_they_are(self, world: Site) -> None:
        """The reference splits texts at commas, loses labels with an apostrophe or a bracket and frames, and takes the first of equal links."""
        shown = world.observe(TASK, ())
        links = {
            'click[link "O\'Neil, Ann"]': "#a",
            'click[link "O\'Neil, Ann" #2]': "#b",
            'click[link "O\'Neil, Ann" #3]': "#e",
            'click[link "a ] b"]': "#c",
            'click[link "back\\\\slash, (x) #2"]': "#d",
        }
        assert [action for action in shown.actions if action.startswith("click")] == sorted(links)
        for action, title in links.items():
            world.observe(TASK, [action])
            assert world.title == title
        text = """a, 'b', "c" [d] (e) \\ #2, f"""
        fills = [str(WebAction("fill", "textbox", "Name, first [as in 'pass']", n, text)) for n in (1, 2)]
        fills.append(str(WebAction("fill", "textbox", 'Say "hi"', 1, text)))
        filled = world.observe(TASK, fills)
        assert filled.text.count(f": {json.dumps(text)}") == 3
        assert line(filled, "done") == " -> ".join(fills)
        assert not line(filled, "notice")

    def test_a_step_that_cannot_be_done_says_why_and_changes_nothing(self, world: Site) -> None:
        actions = ['click[link "Nowhere"]', "look around", "back[]", 'fill[link "a ] b", "x"]', "click[99]"]
        shown = [world.observe(TASK, actions[: n + 1]) for n in range(5)]
        notices = [line(one, "notice") for one in shown]
        assert notices[0] == 'refused: there is no link "Nowhere" on this page'
        assert notices[1].startswith("refused: an action such as")
        assert notices[2] == 'refused: an action such as click[button "Save"] was expected, one of click, fill, select'
        assert notices[3] == "refused: a link takes no text"
        assert notices[4].startswith("refused: the page has no element [99]")
        assert all((one.reward, one.over, line(one, "done")) == (0.0, False, "") for one in shown)
        assert world.observe(TASK, [*actions, "click[1]"]).over  # refused steps count

    def test_a_screenshot_shows_the_page_after_some_steps_and_changes_nothing(self, world: Site) -> None:
        path = ['fill[textbox "Say \\"hi\\"", "some text"]']
        first, other = world.screenshot(TASK, ()), world.screenshot(TASK, path)
        assert first.startswith(b"\x89PNG")
        assert other == world.screenshot(TASK, path) != first
        assert line(world.observe(TASK, path), "done") == path[0]

    def test_a_first_page_that_never_comes_is_one_sentence(self, site: FaultSite) -> None:
        with FaultSite() as gone:
            pass
        for url, first, said in (
            (site.url, "/never", "the first page did not load within 2 seconds$"),
            (gone.url, "/", "the first page cannot be opened: [^\n]*ERR_CONNECTION_REFUSED[^\n]*$"),
        ):
            world = Site(url, first)
            with pytest.raises(UserError, match=rf"^site: the game of start died twice at the start: RuntimeError: {said}"):
                world.observe(TASK, ())
            world.close()

    def test_a_page_that_spins_ends_in_a_sentence(self, site: FaultSite, monkeypatch: pytest.MonkeyPatch) -> None:
        def step(game: WebGame, action: str, within: Callable[..., Observation] = WebGame.step) -> Observation:
            game.task = replace(game.task, seconds=0.1)  # it spins for ever, so that any limit will do
            return within(game, action)

        monkeypatch.setattr(WebGame, "step", step)
        world = Site(site.url, "/closed")
        with pytest.raises(UserError, match=r"site: the game of start died twice at step 0 \('click\[button \"Spin\"\]'\)"):
            world.observe(TASK, ['click[button "Spin"]'])
        world.close()
        other = Site(site.url, "/labels")  # the browser goes on for others
        assert other.observe(TASK, ()).actions
        other.close()

    def test_an_element_that_vanishes_is_a_sentence_and_one_that_is_covered_is_clicked(self, site: FaultSite) -> None:
        world = Site(site.url, "/vanish")
        assert 'click[button "Gone"]' in world.observe(TASK, ()).actions
        longer_than(1.0)
        gone = world.observe(TASK, ['click[button "Gone"]'])
        assert line(gone, "notice") == "refused: button 'Gone' is no longer on the page"
        assert (line(gone, "done"), gone.over) == ("", False)
        world.observe(TASK, ['click[button "Gone"]', 'click[button "Covered"]'])
        assert world.title == "hit"
        world.close()

    def test_dialogs_are_accepted_and_quoted(self, site: FaultSite) -> None:
        world = Site(site.url, "/dialog")
        assert line(world.observe(TASK, ()), "notice") == 'a dialog (alert) was accepted: Welcome, "you"'
        asked = world.observe(TASK, ['click[button "Ask"]'])
        assert line(asked, "notice") == "a dialog (confirm) was accepted: Sure?; a dialog (alert) was accepted: yes"
        assert world.title == "yes"
        world.close()

    def test_other_hosts_are_not_reached(self, site: FaultSite) -> None:
        with FaultSite() as other:
            world = Site(site.url, "/labels", asks=(f"{site.url}/own", f"{other.url}/foreign"))
            world.observe(TASK, ())
            world.close()
            assert ("/own" in site.seen, other.seen) == (True, [])

    def test_a_check_that_fails_is_never_a_success(self, site: FaultSite) -> None:
        world = Site(site.url, "/labels", verdict=RuntimeError("the server is down"))
        with pytest.raises(UserError, match=r"died twice at step 0 .*the server is down"):
            world.observe(TASK, ["click[1]"])
        world.close()

    @pytest.mark.parametrize("victim", ["browser", "renderer", "driver"])
    def test_what_is_killed_is_replaced_by_replay(self, world: Site, victim: str) -> None:
        path = ['click[link "a ] b"]', 'fill[textbox "Say \\"hi\\"", "some text"]']
        before = world.observe(TASK, path)
        for process in find_driver() if victim == "driver" else find_processes(victim):
            os.kill(process, signal.SIGKILL)
        after = world.observe(TASK, [*path, 'click[link "O\'Neil, Ann"]'])
        assert world.title == "#a"
        assert '"Say \\"hi\\"": "some text"' in after.text
        assert world.observe(TASK, path) == before
