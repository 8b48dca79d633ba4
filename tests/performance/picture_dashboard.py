"""The dashboard's picture in tests/pictures/dashboard.png, of a real service that learns while it is asked.

    python tests/performance/picture_dashboard.py [--steps 30] [--seconds 200] [--dark] [-- further flags of learngraph serve]

Starts `learngraph serve --model pocket`, asks it short questions, and likes replies that end by themselves within a few words: what it
learns from is that, and nothing is drawn by hand. Needs Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
from bench_serving import asked, model_of, server
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from browser import Browser

PICTURE = Path(__file__).parents[1] / "pictures" / "dashboard.png"


async def teach(url: str, key: str, steps: int, seconds: float) -> None:
    """Chats with feedback, until so many steps are taken."""
    model, began = await model_of(url, key), time.monotonic()
    async with aiohttp.ClientSession(url, headers={"authorization": f"Bearer {key}"}) as client:

        async def ask(draw: random.Random) -> None:
            while time.monotonic() - began < seconds:
                async with client.get("/v1/status") as answer:
                    scopes = (await answer.json())["scopes"]
                if sum(scope["step"] for scope in scopes) >= steps:
                    return
                body = asked(draw, 24) | {"model": model, "metadata": {"family": "rooms"}}
                async with client.post("/v1/chat/completions", json=body) as answer:
                    reply = await answer.json()
                choice = reply["choices"][0]
                words = len(choice["message"]["content"].split())
                good = choice["finish_reason"] == "stop" and words <= 6
                told = {"response_id": reply["id"], "reward": 1.0 if good else -1.0, "source": "verifier"}
                async with client.post(
                    "/v1/feedback", json=told | ({} if good else {"text": "In a few words, please."})
                ) as answer:
                    await answer.read()

        await asyncio.gather(*(ask(random.Random(i)) for i in range(6)))


async def draw(url: str, key: str, path: Path, dark: bool) -> None:
    """A picture of the dashboard, logged in as people do."""
    with tempfile.TemporaryDirectory() as folder:
        async with Browser.open(Path(folder)) as page:
            await page.go(f"{url}/dashboard")
            await page.run(f"document.getElementById('key').value = {key!r}; document.querySelector('form').submit()")
            async with asyncio.timeout(60):
                while await page.run("document.getElementById('main') === null || document.querySelector('.tiles') === null"):
                    await asyncio.sleep(0.1)
            await page.picture(path, height=1640, dark=dark)
    with Image.open(path) as drawn:
        few = drawn.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


async def both(url: str, key: str, options: argparse.Namespace) -> None:
    await teach(url, key, options.steps, options.seconds)
    await asyncio.sleep(3)
    await draw(url, key, options.to, options.dark)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--to", type=Path, default=PICTURE)
    options, more = parser.parse_known_args()
    flags = [flag for flag in more if flag != "--"]
    with (
        tempfile.TemporaryDirectory() as folder,
        server(options.model, "process", Path(folder) / "out", flags) as (url, key, _),
    ):
        asyncio.run(both(url, key, options))
    print(f"{options.to}: {options.to.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
