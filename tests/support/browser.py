"""A headless Chromium, driven over its DevTools protocol: what a test of a page needs, and nothing to install but the browser.

async with Browser.open() as browser:
    await browser.go("http://127.0.0.1:8000/dashboard")
    await browser.run("document.title")
"""

import asyncio
import atexit
import base64
import json
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
from waiting import PATIENCE, let_others_run, wait_until

from learngraph.tools.environments.support.chromium import find_chromium

EXECUTABLE = find_chromium()
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars")
HOSTS = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"


@cache
def chromium() -> str:
    """The address of the browser of all tests of this process, which ends with it. It finds no other machine."""
    assert EXECUTABLE is not None
    folder = tempfile.TemporaryDirectory()
    command = [EXECUTABLE, *FLAGS, HOSTS, "--remote-debugging-port=0", f"--user-data-dir={folder.name}", "about:blank"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    atexit.register(lambda: (process.kill(), process.wait(), folder.cleanup()))
    told = Path(folder.name, "DevToolsActivePort")
    wait_until(lambda: process.poll() is not None or (told.exists() and len(told.read_text().splitlines()) == 2))
    return "ws://127.0.0.1:" + "".join(told.read_text().splitlines())  # its port and its path


class Browser:
    """A page of it; from `open`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0
        self.events: list[dict[str, Any]] = []
        """What the browser told unasked: log entries, exceptions, loads."""

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator["Browser"]:
        """A window with a profile of its own in the browser of all tests; it is closed with the block."""
        async with aiohttp.ClientSession() as client, client.ws_connect(chromium(), max_msg_size=0) as control:
            profile = (await cls(control).ask("Target.createBrowserContext", disposeOnDetach=True))["browserContextId"]
            made = await cls(control).ask("Target.createTarget", url="about:blank", newWindow=True, browserContextId=profile)
            address = chromium().partition("/devtools/")[0] + f"/devtools/page/{made['targetId']}"
            async with client.ws_connect(address, max_msg_size=0) as socket:
                browser = cls(socket)
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await browser.ask(f"{domain}.enable")
                yield browser

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its result."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        async with asyncio.timeout(PATIENCE):
            while True:
                message = json.loads(await self._socket.receive_str())
                if message.get("id") == self._number:
                    assert "error" not in message, message
                    result: dict[str, Any] = message["result"]
                    return result
                self.events.append(message)

    async def go(self, url: str) -> None:
        """Open a page and wait until it is there."""
        await self.ask("Page.navigate", url=url)
        await self.loaded()

    async def loaded(self) -> None:
        """Wait for the page to be there."""
        async with asyncio.timeout(PATIENCE):
            while await self.run("location.href == 'about:blank' || document.readyState != 'complete'"):
                await let_others_run()

    async def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = await self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        return found["result"].get("value")

    async def picture(self, path: Path, width: int = 1240, height: int = 1500, dark: bool = False) -> None:
        """A PNG of the page."""
        await self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.ask("Emulation.setEmulatedMedia", features=scheme)
        found = await self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=False)
        path.write_bytes(base64.b64decode(found["data"]))

    @property
    def complaints(self) -> list[str]:
        """Errors of scripts and of the page's policy so far."""
        found = []
        for event in self.events:
            if event["method"] == "Runtime.exceptionThrown":
                found.append(event["params"]["exceptionDetails"]["text"])
            if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                found.append(event["params"]["entry"]["text"])
        return found
