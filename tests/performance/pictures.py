"""The pictures in tests/pictures of the dashboard and the studio, drawn from the pages as people use them. Needs Chromium.

    python tests/performance/pictures.py dashboard|studio [--dark] [--to FILE] [--chats 40]

dashboard: `learngraph serve --model guard` is taught to call its user captain, as `learngraph.graphs.experiments.claas_preferences` does:
thumbs up without words, thumbs down with a sentence on what was wrong. Then the page's own chat asks a question beside the base model,
and gives feedback by its buttons. studio: JitRL at a decision, after three episodes, with a what-if beside the real run, by its keys.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import aiohttp
from bench_serving import server
from PIL import Image

from learngraph.graphs.studio.command import open_studio
from learngraph.graphs.studio.options import StudioOptions
from learngraph.tools.environments.hierarchy import THINGS, VALUES, Fact, Scenario, system_prompt
from learngraph.tools.serving.studio_server import StudioServer

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from browser import Browser

ADVICE = "broke call : call the user captain ."
KEYS = "srrfrrssssss"
"""Two rounds of the real run, then a what-if, up to the moment before its action is taken."""
Chat = tuple[str, str, str]
"""System message, question, and the fact that answers it."""


def make_chats(count: int) -> list[Chat]:
    """Chats that ask for a fact of their system message."""
    draw, values = random.Random(0), [value for kind in VALUES.values() for value in kind]
    found = []
    for _ in range(count):
        facts = tuple(Fact(*pair) for pair in zip(draw.sample(THINGS, 4), draw.sample(values, 4), strict=True))
        asked = draw.choice(facts)
        found.append((system_prompt(Scenario("", 0, (), facts)), f"{asked.thing} is what ?", asked.text))
    return found


async def teach(url: str, key: str, chats: list[Chat]) -> None:
    """Chats with feedback, each after the learner has learned from those before."""
    async with aiohttp.ClientSession(url, headers={"authorization": f"Bearer {key}"}, raise_for_status=True) as client:

        async def send(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
            async with client.request(method, path, json=body) as answer:
                return await answer.json()

        for number, (system, question, fact) in enumerate(chats):
            messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
            reply = await send("POST", "/v1/chat/completions", {"model": "guard", "messages": messages, "seed": number})
            words = reply["choices"][0]["message"]["content"].split()
            wrong = [] if words.count("captain") == 1 else [ADVICE]
            if [word for word in words if word != "captain"] != fact.split():
                wrong.append(f"broke answer : say what {question}")
            said = {"reward": -1, "text": " ".join(wrong)} if wrong else {"reward": 1}
            await send("POST", "/v1/feedback", {"response_id": reply["id"], **said})
            while (status := await send("GET", "/v1/status"))["learner"]["state"] != "idle" or not status["scopes"][0][
                "held_up"
            ]:
                await asyncio.sleep(0.1)


async def until(page: Browser, condition: str) -> None:
    """Wait until an expression in the page is true."""
    async with asyncio.timeout(60):
        while not await page.run(condition):
            await asyncio.sleep(0.1)


async def use_dashboard(page: Browser, url: str, key: str, chat: Chat) -> None:
    """Ask the question, and give its reply a thumb."""
    system, question, _ = chat
    await page.go(f"{url}/dashboard")
    await page.run(f"document.getElementById('key').value = {key!r}; document.querySelector('form').submit()")
    await until(page, "document.getElementById('main') !== null && document.querySelector('.tiles') !== null")
    page.events.clear()  # the page that asks for a key has the status 401
    await page.run(f"document.getElementById('system').value = {system!r}; beside.value = 'base'")
    await page.run(f"document.getElementById('prompt').value = {question!r}; form.requestSubmit()")
    await until(page, "document.querySelector('#talk .teach:not([hidden])') !== null")
    await page.run("document.querySelector('#talk [data-reward=\"1\"]').click()")
    await page.run("document.querySelector('#talk .teach').requestSubmit()")
    await until(page, "document.querySelector('#talk output').textContent.startsWith('Stored')")
    await page.run("refresh()")


async def use_studio(page: Browser, url: str) -> None:
    """Walk by the keys."""
    await page.ask("Emulation.setDeviceMetricsOverride", width=1240, height=1000, deviceScaleFactor=1, mobile=False)
    await page.go(url)
    await until(page, "document.querySelector('.box.lit') !== null")
    for key in KEYS:
        for kind in ("keyDown", "keyUp"):
            await page.ask("Input.dispatchKeyEvent", type=kind, key=key, text=key)
        await asyncio.sleep(0.3)
        await until(page, "document.querySelector('.run').getAttribute('aria-busy') === 'false'")
    await asyncio.sleep(1.5)


async def draw(path: Path, height: int, dark: bool, use: Any) -> None:
    """A picture of the page after `use`."""
    with tempfile.TemporaryDirectory() as folder:
        async with Browser.open(Path(folder)) as page:
            await use(page)
            await page.picture(path, height=height, dark=dark)
            if page.complaints:
                raise SystemExit(f"the page complains: {page.complaints}")
    with Image.open(path) as drawn:
        few = drawn.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def draw_dashboard(path: Path, options: argparse.Namespace) -> None:
    """Teach, then draw."""
    *lessons, last = make_chats(options.chats + 1)
    with (
        tempfile.TemporaryDirectory() as folder,
        server("guard", "process", Path(folder) / "out", ["--learner-nice", "0"]) as (url, key, _),
    ):
        asyncio.run(teach(url, key, lessons))
        asyncio.run(draw(path, 1800, options.dark, lambda page: use_dashboard(page, url, key, last)))


def draw_studio(path: Path, options: argparse.Namespace) -> None:
    """Walk, then draw."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # where no saved drawing is
        studio = StudioServer(open_studio(StudioOptions("jitrl", episodes=3)), "key")
        thread = threading.Thread(target=studio.run)
        thread.start()
        try:
            asyncio.run(draw(path, 980, options.dark, lambda page: use_studio(page, studio.url)))
        finally:
            studio.stop()
            thread.join()


def main() -> None:
    """Draw a picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", choices=["dashboard", "studio"])
    parser.add_argument("--chats", type=int, default=40)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    path = (options.to or Path(__file__).parents[1] / "pictures" / f"{options.page}.png").resolve()
    {"dashboard": draw_dashboard, "studio": draw_studio}[options.page](path, options)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
