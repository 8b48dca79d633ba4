"""MiniWoB++: pages of the package in a browser of ours, its seeds, its utterances, its raw rewards."""

from __future__ import annotations

import re
import time
from importlib.util import find_spec
from typing import Any

import pytest

from learngraph.memory.errors import UserError
from learngraph.tools.environments import miniwob
from learngraph.tools.environments.catalogue import open_environment
from learngraph.tools.environments.miniwob import TEN, MiniWob, quoted_texts
from learngraph.tools.environments.support.chromium import find_chromium, shared_chromium

MISSING = None
if find_spec("playwright") is None or find_spec("miniwob") is None:
    MISSING = "NOT TESTED: pip install playwright, pip install --no-deps miniwob"
elif find_chromium() is None:
    MISSING = "NOT TESTED: no Chromium (apt-get install chromium)"
needs_pages = pytest.mark.skipif(find_spec("miniwob") is None, reason="NOT TESTED: pip install --no-deps miniwob")
needs_browser = [pytest.mark.slow, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]


SOME = [*TEN[:1], *TEN[7:9], *(pytest.param(page, marks=pytest.mark.long) for page in (*TEN[1:7], TEN[9]))]


def solution(page: str, utterance: str, actions: tuple[str, ...]) -> list[str]:
    """What the utterance asks for, as actions; of pages that have to be opened first, only the last one is missing."""
    quoted = quoted_texts(utterance)
    submit = 'click[button "Submit"]'
    match page:
        case "click-test-2":
            return ['click[button "ONE"]']
        case "click-button":
            return [f'click[button "{quoted[0]}"]']
        case "click-link":
            return [f'click[link "{quoted[0]}"]']
        case "click-option":
            return [f'click[radio "{re.findall("Select (.*) and click", utterance)[0]}"]', submit]
        case "click-checkboxes":
            (asked,) = re.findall("Select (.*) and click", utterance)
            return [*(f'click[checkbox "{one}"]' for one in asked.split(", ") if asked != "nothing"), submit]
        case "choose-list":
            choice = f'select[combobox, "{re.findall("Select (.*) from", utterance)[0]}"]'
            return [choice, submit] if choice in actions else [submit]  # it is chosen from the start
        case "enter-text":
            return [f'fill[textbox, "{quoted[0]}"]', submit]
        case "login-user":
            return [f'fill[textbox, "{quoted[0]}"]', f'fill[textbox #2, "{quoted[1]}"]', 'click[button "Login"]']
    return []


def search(world: MiniWob, seed: int) -> list[str]:
    """For pages with sections: open each, and click the link where it is."""
    task = world.task(seed)
    wanted = f'click[link "{quoted_texts(task.instruction)[0]}"]'
    opened: list[str] = []
    for number in range(1, 10):
        shown = world.observe(task, opened)
        if wanted in shown.actions:
            return [*opened, wanted]
        opened = [next(action for action in shown.actions if f"#{number}" in action)]
    return []


def test_texts_in_quotation_marks_are_found() -> None:
    assert quoted_texts('Enter "a, b" and “c” in "a, b".') == ("a, b", "c")
    assert quoted_texts("Click it's button") == ()


@needs_pages
def test_an_unknown_task_or_setting_is_an_error_with_those_there_are() -> None:
    with pytest.raises(UserError, match=r"miniwob has no task 'click-moon'; it has .*click-test-2"):
        open_environment("miniwob:click-moon")
    with pytest.raises(UserError, match="no setting 'x'"):
        open_environment("miniwob:click-test?x=1")
    with pytest.raises(UserError, match="no environment 'miniwob'"):
        open_environment("miniwob")
    with pytest.raises(UserError, match="horizon"):
        MiniWob("click-test", horizon=0)
    with pytest.raises(UserError, match=r"train has tasks 0 to 999999, got -1"):
        MiniWob("click-test").task(-1, "train")


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(miniwob, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install --no-deps miniwob"):
        MiniWob("click-test-2")


class TestInABrowser:
    pytestmark = needs_browser

    @pytest.mark.parametrize("page", ["click-test-2", "login-user"])
    def test_two_tasks_are_played_to_success_and_to_failure(self, page: str) -> None:
        world = open_environment(f"miniwob:{page}")
        assert isinstance(world, MiniWob)
        task = world.task(3)
        path = solution(page, task.instruction, ())
        won = world.observe(task, path)
        assert (won.reward, won.over, won.actions) == (1.0, True, ())
        wrong = next(
            action for action in world.observe(task, ()).actions if action.startswith("click") and action not in path[:1]
        )
        lost = world.observe(task, [wrong])
        assert (lost.reward, lost.over) == (-1.0, True)
        assert "reward -1" in lost.text
        world.close()

    @pytest.mark.parametrize("page", SOME)
    def test_each_of_the_ten_can_be_solved_by_listed_actions(self, page: str) -> None:
        world = MiniWob(page)
        for seed in range(3):
            task = world.task(seed, "train")
            first = world.observe(task, ())
            path = solution(page, task.instruction, first.actions)
            if not path:
                task, path = world.task(seed), search(world, seed)
            for n, action in enumerate(path):
                assert action in world.observe(task, path[:n]).actions
            assert world.observe(task, path).reward == 1.0
        world.close()

    @pytest.mark.parametrize("page", SOME)
    def test_a_tab_that_was_used_before_shows_the_same_as_a_fresh_one(self, page: str) -> None:
        world = MiniWob(page)
        tasks = [world.task(seed) for seed in range(4)]
        used = [world.observe(task, ()) for task in reversed(tasks)]
        world.close()
        shared_chromium().close()
        fresh = [world.observe(task, ()) for task in tasks]
        assert used[::-1] == fresh
        assert len({shown.text for shown in fresh}) > 1 or page == "click-test-2"
        world.close()

    def test_an_element_below_another_can_be_clicked(self) -> None:
        """As by the package's own action: in this page one button covers the other."""
        world = MiniWob("click-test-2")
        shown = world.observe(world.task(1), ['click[button "ONE"]'])
        assert (shown.reward, shown.over) == (1.0, True)
        world.close()

    def test_seeds_and_splits_draw_different_pages_and_the_same_again(self) -> None:
        world, again = MiniWob("click-option"), MiniWob("click-option")
        tasks = [world.task(seed, split) for split in ("train", "dev", "test") for seed in (0, 1)]
        assert len({task.instruction for task in tasks}) == 6
        assert [task.id for task in tasks[:2]] == ["click-option-train-0", "click-option-train-1"]
        assert again.task(1, "dev") == tasks[3]
        world.close()

    def test_no_clock_ends_an_episode_only_steps_do(self) -> None:
        world = MiniWob("enter-text", horizon=3)
        task = world.task(0)
        first = world.observe(task, ())
        fill = next(action for action in first.actions if action.startswith("fill"))
        world.observe(task, [fill])
        time.sleep(11)  # the package's own limit is ten seconds
        shown = world.observe(task, [fill, 'click[button "Nowhere"]'])
        assert (shown.reward, shown.over) == (0.0, False)
        shown = world.observe(task, [fill, 'click[button "Nowhere"]', fill])
        assert (shown.reward, shown.over, shown.actions) == (0.0, True, ())
        world.close()

    def test_the_reward_is_the_raw_one(self) -> None:
        """The page's other reward falls with time: waiting before the last click would show."""
        world = MiniWob("click-test-2")
        task: Any = world.task(0)
        world.observe(task, ())
        time.sleep(1)
        assert world.observe(task, ['click[button "ONE"]']).reward == 1.0
        world.close()
