"""Steps per second of our worlds in a browser, beside bare Playwright's on the same actions.

    python tests/performance/bench_web.py [--rounds 7] [--steps 30]

Bare Playwright opens the same pages in the same Chromium and does what any agent on it has to do at a step: act on the element by role
and name (`get_by_role`, with the mouse or as a click event, as our world does it), ask whether the episode is over, and take the
page's accessibility snapshot. Ours also reads the snapshot, lists the admissible actions and writes the text. The two are
interleaved, round by round; each number is the median of the rounds, and the rate is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from learngraph.memory.records import Task
from learngraph.tools.environments.browser import BrowserShop
from learngraph.tools.environments.miniwob import MiniWob
from learngraph.tools.environments.support.chromium import shared_chromium
from learngraph.tools.environments.support.web_actions import read_web_action

_RESULT = "() => typeof WOB_DONE_GLOBAL == 'undefined' ? [false, 0] : [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL]"


def play_ours(world: Any, task: Task, actions: Sequence[str]) -> float:
    """Steps per second of an episode, its start not counted."""
    world.observe(task, ())
    start = time.perf_counter()
    for n in range(len(actions)):
        world.observe(task, actions[: n + 1])
    return len(actions) / (time.perf_counter() - start)


def play_bare(world: Any, task: Task, actions: Sequence[str]) -> float:
    """The same by bare Playwright."""
    web_task, read = world.web_task(task), [read_web_action(action) for action in actions]

    async def play(browser: Any) -> float:
        context = await browser.new_context(viewport={"width": 1280, "height": 720}, reduced_motion="reduce")
        page = await context.new_page()
        await web_task.open(page)
        await page.aria_snapshot(mode="ai")
        start = time.perf_counter()
        for action in read:
            element = page.get_by_role(action.role, name=action.name or None, exact=True).nth(action.ordinal - 1)
            if action.kind == "fill":
                await element.fill(action.text)
            elif web_task.clicks_by_script:
                await element.dispatch_event("click")
            else:
                await element.click()
            await page.evaluate(_RESULT)
            await page.aria_snapshot(mode="ai")
        rate = len(read) / (time.perf_counter() - start)
        await context.close()
        return rate

    return shared_chromium().run(play, 300)


def measure(name: str, world: Any, task: Task, actions: Sequence[str], rounds: int) -> str:
    """One row of the table."""
    plays: tuple[Callable[[Any, Task, Sequence[str]], float], ...] = (play_ours, play_bare)
    for play in plays:  # warm both
        play(world, task, actions[:3])
    rates = [[play(world, task, actions) for play in (plays if n % 2 else plays[::-1])] for n in range(rounds)]
    pairs = [pair if n % 2 else pair[::-1] for n, pair in enumerate(rates)]
    ours, bare = (statistics.median(pair[k] for pair in pairs) for k in (0, 1))
    ratios = sorted(one / other for one, other in pairs)
    world.close()
    return f"| {name} | {ours:.1f} | {bare:.1f} | {statistics.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}] |"


def main() -> None:
    """Print the table row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=30)
    given = parser.parse_args()
    print("| world | ours, steps/s | bare Playwright, steps/s | ratio [least, most] |\n|---|---|---|---|")
    boxes = MiniWob("click-checkboxes", horizon=given.steps + 1)
    task = boxes.task(1)
    clicks = [action for action in boxes.observe(task, ()).actions if "checkbox" in action]
    print(measure("miniwob:click-checkboxes", boxes, task, [clicks[n % len(clicks)] for n in range(given.steps)], given.rounds))
    shop = BrowserShop({"products": "200"}, horizon=given.steps + 1)
    task = shop.task(0)
    search = next(action for action in shop.observe(task, ()).actions if action.startswith("fill"))
    around = [search, 'click[button "Search"]', 'click[button "Back to Search"]']
    print(measure("browser:shop", shop, task, [around[n % 3] for n in range(given.steps)], given.rounds))


if __name__ == "__main__":
    main()
