"""The dashboard's picture in tests/pictures/dashboard.png, of a real service that learns while it is asked.

    python tests/performance/picture_dashboard.py [--chats 40] [--dark] [--to FILE] [-- further flags of learngraph serve]

Starts `learngraph serve --model guard` and teaches it to call its user captain, as `learngraph.graphs.experiments.claas_preferences` does:
thumbs up without words, thumbs down with a sentence on what was wrong. Then the page's own chat asks a question beside the base model,
and gives feedback by its buttons. Nothing is drawn by hand. Needs Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
from bench_serving import server
from PIL import Image

from learngraph.tools.environments.hierarchy import THINGS, VALUES, Fact, Scenario, system_prompt

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from browser import Browser

PICTURE = Path(__file__).parents[1] / "pictures" / "dashboard.png"
ADVICE = "broke call : call the user captain ."
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
    async with aiohttp.ClientSession(url, headers={"authorization": f"Bearer {key}"}) as client:

        async def post(path: str, body: dict[str, Any]) -> Any:
            async with client.post(path, json=body) as answer:
                answer.raise_for_status()
                return await answer.json()

        for number, (system, question, fact) in enumerate(chats):
            messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
            reply = await post("/v1/chat/completions", {"model": "guard", "messages": messages, "seed": number})
            words = reply["choices"][0]["message"]["content"].split()
            wrong = [] if words.count("captain") == 1 else [ADVICE]
            wrong += (
                [] if [word for word in words if word != "captain"] == fact.split() else [f"broke answer : say what {question}"]
            )
            said = {"reward": -1, "text": " ".join(wrong)} if wrong else {"reward": 1}
            await post("/v1/feedback", {"response_id": reply["id"], **said})
            while True:
                async with client.get("/v1/status") as answer:
                    status = await answer.json()
                if status["learner"]["state"] == "idle" and status["scopes"][0]["held_up"]:
                    break
                await asyncio.sleep(0.1)


async def wait_for(page: Browser, condition: str) -> None:
    """Wait until an expression in the page is true."""
    async with asyncio.timeout(60):
        while not await page.run(condition):
            await asyncio.sleep(0.1)


async def draw_page(url: str, key: str, chat: Chat, path: Path, dark: bool) -> None:
    """A picture of the dashboard, used as people use it."""
    with tempfile.TemporaryDirectory() as folder:
        async with Browser.open(Path(folder)) as page:
            await page.go(f"{url}/dashboard")
            await page.run(f"document.getElementById('key').value = {key!r}; document.querySelector('form').submit()")
            await wait_for(page, "document.getElementById('main') !== null && document.querySelector('.tiles') !== null")
            page.events.clear()  # the page that asks for a key has the status 401
            system, question, _ = chat
            await page.run(f"document.getElementById('system').value = {system!r}; beside.value = 'base'")
            await page.run(f"document.getElementById('prompt').value = {question!r}; form.requestSubmit()")
            await wait_for(page, "document.querySelector('#talk .teach:not([hidden])') !== null")
            await page.run("document.querySelector('#talk [data-reward=\"1\"]').click()")
            await page.run("document.querySelector('#talk .teach').requestSubmit()")
            await wait_for(page, "document.querySelector('#talk output').textContent.startsWith('Stored')")
            await page.run("refresh()")
            await page.picture(path, height=1800, dark=dark)
            if page.complaints:
                raise SystemExit(f"the page complains: {page.complaints}")
    with Image.open(path) as drawn:
        few = drawn.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


async def work(url: str, key: str, options: argparse.Namespace) -> None:
    """Teach, then draw."""
    *lessons, last = make_chats(options.chats + 1)
    await teach(url, key, lessons)
    await draw_page(url, key, last, options.to, options.dark)


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chats", type=int, default=40)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--to", type=Path, default=PICTURE)
    options, more = parser.parse_known_args()
    flags = ["--learner-nice", "0", *(flag for flag in more if flag != "--")]
    with tempfile.TemporaryDirectory() as folder, server("guard", "process", Path(folder) / "out", flags) as (url, key, _):
        asyncio.run(work(url, key, options))
    print(f"{options.to}: {options.to.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
