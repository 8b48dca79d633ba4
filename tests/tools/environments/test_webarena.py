"""WebArena's adapter, on a stub with BrowserGym's interface: there are no servers and no BrowserGym here."""

import json
import re
import sys
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learngraph.graphs import jitrl
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.errors import UserError
from learngraph.memory.records import Task
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.act.policies import verbalized_policy
from learngraph.tools.environments.catalogue import open_environment
from learngraph.tools.environments.support.accessibility import page_text, read_ax_tree
from learngraph.tools.environments.webarena import ADDRESSES, WebArena
from tests.support.scripted_chat import ScriptedChat

SHOP = "http://10.0.0.7:7770"


def node(key: str, role: str, name: str = "", children: str = "", bid: str = "", **properties: Any) -> dict[str, Any]:
    """A node as BrowserGym hands it over."""
    return {
        "nodeId": key,
        "role": {"value": role},
        "name": {"value": name},
        "childIds": children.split(),
        "browsergym_id": bid,
        "properties": [{"name": name, "value": {"value": value}} for name, value in properties.items() if name != "value"],
        **({"value": {"value": properties["value"]}} if "value" in properties else {}),
    }


TREE = {
    "nodes": [
        node("1", "RootWebArea", "One Stop Market", "2 3 4 6 8 9 b"),
        node("2", "link", "It's, here", bid="a51"),
        node("3", "link", "Details", bid="13"),
        node("4", "link", "Details", "5", bid="14"),
        node("5", "StaticText", "Details"),
        node("6", "textbox", "Search", "7", bid="16", value="lamp"),
        node("7", "StaticText", "lamp"),
        node("8", "StaticText", "Welcome"),
        node("9", "combobox", "Sort", "a", bid="20"),
        node("a", "MenuListPopup", "", "a1 a2"),
        node("a1", "option", "Price", bid="21", selected=True),
        node("a2", "option", "Name", bid="22", selected=False),
        node("b", "button", "Off", bid="23", disabled=True),
    ]
}


class Page:
    """A page that counts where it went."""

    def __init__(self, url: str) -> None:
        self.url, self.visits, self.is_closed = url, list[str](), False

    def goto(self, url: str) -> None:
        self.visits.append(url)
        self.url = url

    def close(self) -> None:
        self.is_closed = True


class Benchmark:
    """WebArena's task in BrowserGym; its check opens another address in the page it is given."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.pages: list[Page] = []

    def validate(self, page: Page, messages: list[dict[str, str]]) -> tuple[float, bool, str, dict[str, Any]]:
        self.pages.append(page)
        page.goto(SHOP + "/checked")
        if self.error is not None:
            raise self.error
        return float(bool(messages) and messages[-1]["message"] == "42, or so"), True, "", {}


class Gym:
    """BrowserGym's environment, as far as the adapter uses it."""

    def __init__(self) -> None:
        self.unwrapped, self.context = self, self
        self.task, self.chat, self.page = Benchmark(), self, Page(SHOP + "/")
        self.messages: list[dict[str, str]] = []
        self.opened: list[Page] = []
        self.taken: list[str] = []
        self.error, self.is_closed = "", False

    def new_page(self) -> Page:
        self.opened.append(Page("about:blank"))
        return self.opened[-1]

    def look(self) -> dict[str, Any]:
        seen = {"goal": "How many\nlamps?", "url": self.page.url, "axtree_object": TREE, "last_action_error": self.error}
        return seen | {"screenshot": np.full((2, 3, 3), len(self.taken), np.uint8)}

    def reset(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.look(), {}

    def step(self, action: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.taken.append(action)
        self.error = "ValueError: timeout 500 ms\nlog" if action == "click('13')" else ""
        if action == "crash()" or action.startswith("keyboard_press('Crash"):
            raise RuntimeError("the browser is gone")
        if action.startswith("click('14')"):
            self.page.url = SHOP + "/items/7"
        if action.startswith("send_msg_to_user"):
            self.messages.append({"role": "assistant", "message": eval(action.removeprefix("send_msg_to_user"))})  # a literal
        reward, over, _, _ = self.task.validate(self.page, self.messages)
        return self.look(), reward, over, False, {}

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    for n, name in enumerate(ADDRESSES.values()):
        monkeypatch.setenv(name, f"http://10.0.0.7:{7770 + n}")


@pytest.fixture
def gyms() -> list[Gym]:
    return []


@pytest.fixture
def make(gyms: list[Gym], addresses: None) -> Callable[[int], Gym]:
    def open_gym(number: int) -> Gym:
        gyms.append(Gym())
        return gyms[-1]

    return open_gym


def test_an_axtree_of_browsergym_is_read_like_a_snapshot() -> None:
    assert page_text(read_ax_tree(TREE)).split("\n") == [
        '[1] link "It\'s, here"',
        '[2] link "Details"',
        '[3] link "Details" #2',
        '[4] textbox "Search": "lamp"',
        "Welcome",
        '[5] combobox "Sort": "Price" of "Price", "Name"',
        '[6] button "Off" (disabled)',
    ]
    assert [one.ref for one in read_ax_tree(TREE) if one.ref] == ["a51", "13", "14", "16", "20", "23"]
    assert read_ax_tree({}) == ()


def test_actions_are_handed_over_in_browsergyms_spelling(make: Callable[[int], Gym], gyms: list[Gym]) -> None:
    """The reference loses ids with letters, splits texts at commas, and takes the first of two links with one label."""
    world = WebArena("310", make=make)
    task = world.task()
    assert (task.id, task.instruction) == ("webarena-310", "How many lamps?")
    path = [
        'click[link "It\'s, here"]',
        'click[link "Details" #2]',
        'fill[textbox "Search", "O\'Neil, Ann"]',
        'select[combobox "Sort", "Name"]',
        "press[Enter]",
        "scroll[up]",
        "goto[shopping/cart]",
        "back[]",
        "click[textbox]",
    ]
    shown = [world.observe(task, path[: n + 1]) for n in range(len(path))]
    assert gyms[0].taken == [
        "click('a51')",
        "click('14')",
        "fill('16', \"O'Neil, Ann\")",
        "select_option('20', 'Name')",
        "keyboard_press('Enter')",
        "scroll(0, -500)",
        f"goto('{SHOP}/cart')",
        "go_back()",
        "noop(0)",
    ]
    assert shown[1].text.startswith("page: shopping/items/{id}\ntask: How many lamps?\nbefore: click[link")
    assert "notice: refused: there is no textbox on this page" in shown[-1].text
    assert 'select[combobox "Sort", "Name"]' in shown[0].actions
    world.close()
    assert gyms[0].is_closed


def test_a_check_has_a_page_of_its_own_and_runs_once(make: Callable[[int], Gym], gyms: list[Gym]) -> None:
    world = WebArena("310", make=make)
    task = world.task()
    shown = world.observe(task, ['click[link "Details" #2]'])
    assert not shown.over
    assert gyms[0].task.pages == []  # a step is not checked
    shown = world.observe(task, ['click[link "Details" #2]', 'answer["42, or so"]'])
    assert (shown.reward, shown.over, shown.actions) == (1.0, True, ())
    assert gyms[0].page.visits == []
    (checked,) = gyms[0].task.pages
    assert checked.visits == [SHOP + "/items/7", SHOP + "/checked"]
    assert checked.is_closed
    assert world.observe(task, ['answer["43"]']).reward == 0.0  # another episode
    assert [gym.is_closed for gym in gyms] == [True, False]
    with pytest.raises(UserError, match="over after"):
        world.observe(task, ['answer["43"]', "back[]"])
    world.close()


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The packages with the tasks' files, in BrowserGym's layout: five tasks, and two of them in WebArena-Lite."""
    tasks = [(7, ["map"]), (3, ["shopping"]), (12, ["shopping", "reddit"]), (5, ["reddit"]), (9, ["shopping"])]
    lite = [{"task_id": n, "old_task_id": number, "sites": sites} for n, (number, sites) in enumerate(tasks[1:3])]
    for path, rows in (
        ("webarena/test.raw.json", [{"task_id": number, "sites": sites} for number, sites in tasks]),
        ("browsergym/webarenalite/test_webarena_lite.raw.json", lite),
    ):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(json.dumps(rows))
        (tmp_path / path).with_name("__init__.py").write_text("raise AssertionError('only looked for')")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("game", "settings", "numbers"),
    [("shopping", {}, [3, 9, 12]), ("reddit", {}, [5, 12]), ("lite", {}, [3, 12]), ("lite", {"site": "reddit"}, [12])],
)
def test_the_seeds_of_a_site_are_its_tasks_in_order(
    game: str, settings: dict[str, str], numbers: list[int], published: None, make: Callable[[int], Gym]
) -> None:
    """A task that names several sites belongs to each, as in the counts of JitRL's paper."""
    asked = list[int]()
    world = WebArena(game, settings, make=lambda number: asked.append(number) or make(number))  # type: ignore[func-returns-value]
    assert [world.task(seed).id for seed in range(len(numbers))] == [f"webarena-{number}" for number in numbers]
    assert asked == numbers
    if len(numbers) > 1:
        with pytest.raises(UserError, match=rf"test has tasks 0 to {len(numbers) - 1}, got {len(numbers)}"):
            world.task(len(numbers))
    world.close()


@pytest.mark.parametrize("key", ["room", "page", "screenshot"])
def test_jitrl_recalls_what_other_tasks_of_the_site_taught(key: Any, published: None, make: Callable[[int], Gym]) -> None:
    """A scripted model is asked which actions still show: in words, or by a screenshot in the message."""
    pytest.importorskip("PIL", reason="NOT TESTED: it comes with BrowserGym")
    fill, finish = 'fill[textbox "Search", "lamp"]', 'answer["42, or so"]'
    first, last = (json.dumps({"options": [{"action": action, "confidence": 80}]}) for action in (fill, finish))
    scores = json.dumps({"rewards": [{"step": 1, "reward": 1}, {"step": 2, "reward": 3}]})
    model = ScriptedChat(replies=[first, *[f"So:\nEffective: {fill}"][: key != "room"], last, scores])
    world, journal = WebArena("shopping", make=make), Journal(details=None)
    inputs = MethodInputs.with_chat_model(world, journal, model)
    inputs = replace(inputs, make_policy=partial(verbalized_policy, model, admit=world.admit))
    graph = jitrl.build(inputs, replace(jitrl.JitRL.paper_web(), state_key=key))
    hits = []
    for seed in range(2):
        end = graph.invoke({"task": world.task(seed), "run": f"r{seed}", "episode": 0})
        assert (end["score"], end["unjudged"]) == (1.0, "")
        hits += [row["hits"] for row in journal.rows(end["head"])]
    assert hits == [[0, 0], [0, 0], [1, 1], [1, 1]]
    contents = [message.content for asked in model.asked for message in asked]
    images = [block["base64"] for content in contents if isinstance(content, list) for block in content[1:]]
    assert len(images) == 2 * (key == "screenshot")
    assert all(b64decode(image).startswith(b"\x89PNG") for image in images)
    assert "What you see is a web page" in str(contents)
    assert not re.search("text world|game", str(contents))
    world.close()


def test_a_check_that_fails_is_no_success(make: Callable[[int], Gym], gyms: list[Gym]) -> None:
    world = WebArena("310", make=make)
    task = world.task()
    gyms[0].task.error = RuntimeError("locator failed")
    shown = world.observe(task, ['answer["42, or so"]'])
    assert (shown.reward, shown.over) == (None, True)
    assert "notice: the check has failed, the reward is unknown: RuntimeError: locator failed" in shown.text
    assert gyms[0].opened[0].is_closed
    world.close()


def test_a_failed_action_is_said_and_a_dead_browser_is_an_error(make: Callable[[int], Gym], gyms: list[Gym]) -> None:
    world = WebArena("310", horizon=2, make=make)
    task = world.task()
    shown = world.observe(task, ['click[link "Details"]'])
    assert "notice: refused: ValueError: timeout 500 ms" in shown.text
    assert "done: \n" in shown.text
    last = world.observe(task, ['click[link "Details"]', "back[]"])  # the step limit: what was reached counts
    assert (last.reward, last.over, gyms[-1].page.visits) == (0.0, True, [])
    assert len(gyms[-1].task.pages) == 1
    with pytest.raises(UserError, match=r"webarena:310: step 'press\[Crash\]' failed: RuntimeError: the browser is gone"):
        world.observe(task, ["press[Crash]"])
    assert gyms[-1].is_closed
    assert world.observe(task, ()).actions
    world.close()


def test_without_addresses_tasks_or_the_package_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ADDRESSES.values():
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=r"WA_SHOPPING, WA_SHOPPING_ADMIN, .* are not set \(for example WA_SHOPPING=http"):
        open_environment("webarena:310")
    for name in ADDRESSES.values():
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("WA_MAP")
    with pytest.raises(UserError, match="WA_MAP is not set"):
        open_environment("webarena:310")
    monkeypatch.setenv("WA_MAP", "http://127.0.0.1:1")
    for number in ("812", "x", "-1"):
        with pytest.raises(UserError, match=f"has the sites shopping, .*, map, lite, and the tasks 0 to 811, got '{number}'"):
            open_environment(f"webarena:{number}")
    monkeypatch.setitem(sys.modules, "browsergym", None)
    world = open_environment("webarena:310")
    with pytest.raises(UserError, match=r"webarena needs BrowserGym .*pip install browsergym-webarena"):
        world.observe(Task("webarena-310", ""), ())
    world.close()
