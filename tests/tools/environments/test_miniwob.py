"""MiniWoB++: pages of the package in a browser of ours, its seeds, its utterances, its raw rewards."""

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import play_in_process
from waiting import longer_than
from worlds_here import needs

import learngraph
from learngraph.graphs.cli.main import main
from learngraph.graphs.experiments import run_inputs
from learngraph.graphs.experiments.explain import compute_again, find_step
from learngraph.graphs.experiments.recorded import read_rows
from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task
from learngraph.tools.environments import miniwob
from learngraph.tools.environments.catalogue import open_environment
from learngraph.tools.environments.miniwob import TEN, MiniWob, quoted_texts
from learngraph.tools.environments.support.chromium import shared_chromium
from learngraph.tools.environments.support.web_game import Verdict, WebTask

needs_browser = [pytest.mark.slow, needs("miniwob")]


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


def kill_browser() -> None:
    """Kill the browser of this process."""

    async def find(browser: Any) -> int:
        session = await browser.new_browser_cdp_session()
        found = await session.send("SystemInfo.getProcessInfo")
        return next(int(one["id"]) for one in found["processInfo"] if one["type"] == "browser")

    os.kill(shared_chromium().run(find, 10), signal.SIGKILL)


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

    @pytest.mark.long
    @pytest.mark.parametrize("page", TEN)
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

    @pytest.mark.long
    @pytest.mark.parametrize("page", TEN)
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

    def test_the_check_only_reads_and_when_it_fails_there_is_no_success(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world, checks = MiniWob("click-test-2"), list[tuple[float, bool]]()
        web_task = world.web_task

        def watch(task: Task) -> WebTask:
            plain = web_task(task)

            async def open_page(page: Any) -> Verdict:
                judge = await plain.open(page)

                async def judge_watched() -> tuple[float, bool]:
                    before = (page.url, await page.content())
                    checks.append(await judge())
                    assert (page.url, await page.content()) == before
                    return checks[-1]

                return judge_watched

            return replace(plain, open=open_page)

        monkeypatch.setattr(world, "web_task", watch)
        task = world.task(3)
        path = ['click[button "Nowhere"]', 'click[button "ONE"]']
        assert world.observe(task, path).reward == 1.0
        assert checks == [(0.0, False), (1.0, True)]
        monkeypatch.setattr(miniwob, "_RESULT", "() => nothing.of_the_kind")
        with pytest.raises(UserError, match=r"died twice at step 0 .*nothing is not defined"):
            world.observe(world.task(4), ['click[button "ONE"]'])
        world.close()

    @pytest.mark.parametrize("is_back", [pytest.param(True, marks=pytest.mark.long), False])
    def test_a_run_goes_on_when_its_browser_dies_and_resumes_where_there_was_none(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_back: bool
    ) -> None:
        """The browser is killed in mid-episode. If a new one can be started the run goes on, else it ends in a sentence and is resumed."""
        here = play_in_process(monkeypatch, tmp_path)
        flags = "--env miniwob:enter-text --prior uniform --seeds 1 --episodes 2"
        command = ["run", "jitrl", *flags.split(), "--out"]
        assert main([*command, "whole"]) == 0
        observe, seen = MiniWob.observe, list[int]()

        def observe_and_kill(world: MiniWob, task: Task, actions: Sequence[str]) -> Observation:
            seen.append(len(actions))
            if seen.count(1) == 2 and seen[-1] == 1:  # before the first action of the second episode is played
                kill_browser()
                if not is_back:
                    monkeypatch.setenv("CHROMIUM", str(here / "no-chromium"))
            return observe(world, task, actions)

        with monkeypatch.context() as patch:
            patch.setattr(MiniWob, "observe", observe_and_kill)
            run_inputs.shared_environment.cache_clear()
            assert main([*command, "broken"]) == (0 if is_back else 2)
        assert seen.count(1) >= 2
        if not is_back:
            assert re.search(r"pages in a browser need a Chromium.*no-chromium", capsys.readouterr().err)
            monkeypatch.delenv("CHROMIUM")
            assert main([*command, "broken"]) == 0
        rows = [
            [(row["action"], row["reward"]) for row in read_rows(here / name / "jitrl-s0/steps.jsonl")]
            for name in ("whole", "broken")
        ]
        assert rows[0] == rows[1]

    def test_the_papers_preset_brings_what_one_page_taught_to_the_next(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        play_in_process(monkeypatch, tmp_path)
        method = "jitrl:paper-web?evaluator=environment&state_key=room"
        command = f"run {method} --env miniwob:click-link --prior uniform --seeds 2 --episodes 2 --out run"
        assert main(command.split()) == 0
        shown = compute_again(find_step(tmp_path / "run", 0, seed=1, episode=0))
        assert {one.run for one in shown.memory} == {"jitrl-paper-web-evaluator-environment-state_key-room-s0"}
        text = " ".join(str(learngraph.explain("run", 0, seed=1, episode=0)).split())
        assert "in the state 'miniwob:click-link, Click on the link" in text
        assert "V(s), their mean return" in text

    def test_seeds_and_splits_draw_different_pages_and_the_same_again(self) -> None:
        world, again = MiniWob("click-option"), MiniWob("click-option")
        tasks = [world.task(seed, split) for split in ("train", "dev", "test") for seed in (0, 1)]
        assert len({task.instruction for task in tasks}) == 6
        assert [task.id for task in tasks[:2]] == ["click-option-train-0", "click-option-train-1"]
        assert again.task(1, "dev") == tasks[3]
        world.close()

    def test_no_clock_ends_an_episode_only_steps_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The package's own limit is ten seconds; timers of this page run 20 times as fast."""
        fast = "const wait = setTimeout; window.setTimeout = (call, time) => wait(call, time / 20);"
        monkeypatch.setattr(miniwob, "_BEGIN", f"(given) => {{ {fast} return ({miniwob._BEGIN})(given); }}")
        world = MiniWob("enter-text", horizon=3)
        task = world.task(0)
        first = world.observe(task, ())
        fill = next(action for action in first.actions if action.startswith("fill"))
        world.observe(task, [fill])
        longer_than(0.5)
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
        longer_than(0.2)
        assert world.observe(task, ['click[button "ONE"]']).reward == 1.0
        world.close()
