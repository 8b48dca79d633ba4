"""The studio's picture in tests/pictures/studio.png: JitRL at a decision, after three episodes, with a what-if beside the real run.

    python tests/performance/picture_studio.py [--dark] [--to FILE]

Everything on it was played: the buttons are pressed by their keys. Needs Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import threading
from pathlib import Path

from PIL import Image

from learngraph.graphs.studio.command import open_studio
from learngraph.graphs.studio.options import StudioOptions
from learngraph.tools.serving.studio_server import StudioServer

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from browser import Browser

PICTURE = Path(__file__).parents[1] / "pictures" / "studio.png"
KEYS = ("s", "r", "r", "f", "r", "r", "s", "s", "s", "s", "s", "s")
"""Two rounds of the real run, then a what-if, up to the moment before its action is taken."""


async def draw(url: str, path: Path, dark: bool) -> None:
    """A picture of the walk after those keys."""
    with tempfile.TemporaryDirectory() as folder:
        async with Browser.open(Path(folder)) as page:
            await page.ask("Emulation.setDeviceMetricsOverride", width=1240, height=1000, deviceScaleFactor=1, mobile=False)
            await page.go(url)
            await until(page, "document.querySelector('.box.lit') !== null")
            for key in KEYS:
                await page.ask("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
                await page.ask("Input.dispatchKeyEvent", type="keyUp", key=key)
                await asyncio.sleep(0.3)
                await until(page, "document.querySelector('.run').getAttribute('aria-busy') === 'false'")
            await asyncio.sleep(1.5)
            await page.picture(path, height=980, dark=dark)
    with Image.open(path) as drawn:
        few = drawn.convert("RGB").quantize(96, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


async def until(page: Browser, script: str) -> None:
    """Wait for an expression of the page to become true."""
    async with asyncio.timeout(30):
        while not await page.run(script):
            await asyncio.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--to", type=Path, default=PICTURE)
    options = parser.parse_args()
    path = options.to.resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # where no saved drawing is
        server = StudioServer(open_studio(StudioOptions("jitrl", episodes=3)), "key")
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            asyncio.run(draw(server.url, path, options.dark))
        finally:
            server.stop()
            thread.join()
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
