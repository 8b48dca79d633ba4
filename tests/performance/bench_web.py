"""Steps per second of our worlds in a browser, beside bare Playwright's on the same actions.

    python tests/performance/bench_web.py [--rounds 7]

Bare Playwright opens the same pages in the same Chromium and does what any agent on it has to do at a step: act on the element by role
and name (`get_by_role`, with the mouse or as a click event, as our world does it), ask whether the episode is over, and take the
page's accessibility snapshot. Ours also reads the snapshot, lists the admissible actions and writes the text. The two are
interleaved, round by round. The start of an episode is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rows import make_parser, ratios, report

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
        shown = world.observe(task, actions[: n + 1])
        assert "\nnotice: " not in shown.text, shown.text  # a refused action is fast
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


def measure(name: str, world: Any, task: Task, actions: Sequence[str], rounds: int) -> None:
    """Report the rows of a world."""
    plays: tuple[Callable[[Any, Task, Sequence[str]], float], ...] = (play_ours, play_bare)
    for play in plays:  # warm both
        play(world, task, actions[:3])
    ours, bare = list[float](), list[float]()
    for n in range(rounds):
        for play, rates in ((play_ours, ours), (play_bare, bare))[:: 1 if n % 2 else -1]:
            rates.append(play(world, task, actions))
    world.close()
    report(f"steps in a browser, {name}", ours, "per second")
    report(f"the same over bare Playwright's, {name}", ratios(ours, bare), at_least=0.8)


def main() -> None:
    """Report all rows."""
    given = make_parser(__doc__, 7).parse_args()
    rounds, steps = (1, 6) if given.quick else (given.rounds, 30)
    boxes = MiniWob("click-checkboxes", horizon=steps + 1)
    task = boxes.task(1)
    clicks = [action for action in boxes.observe(task, ()).actions if "checkbox" in action]
    measure("MiniWoB++", boxes, task, [clicks[n % len(clicks)] for n in range(steps)], rounds)
    shop = BrowserShop({"products": "200"}, horizon=steps + 1)
    task = shop.task(0)
    search = next(action for action in shop.observe(task, ()).actions if action.startswith("fill"))
    around = [search, 'click[button "Search"]', 'click[button "Back to Search"]']
    measure("our shop", shop, task, [around[n % 3] for n in range(steps)], rounds)


if __name__ == "__main__":
    main()
