"""The dashboard: a page without a key of its own, which a real browser fills from the API with the key that is typed in."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import PATIENCE, let_others_run

from learngraph.memory.records import ChatRequest, Exchange, Reply

pytest.importorskip("fastapi", reason="NOT TESTED: needs the extra [serve]")

import browser
import chat_backend

FakeBackend, serving = chat_backend.FakeBackend, chat_backend.serving
HOSTILE = "</p><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">{{ 7*7 }}"
needs_browser = pytest.mark.skipif(browser.EXECUTABLE is None, reason="NOT TESTED: no Chromium (apt-get install chromium)")


def told() -> dict[str, Any]:
    """A service that has learned for 40 steps."""
    now, names = time.time(), ("reward", "loss", "ess", "age", "entropy", "kl")
    updates = [{"step": k, **{name: 1.5 / (k + n) for n, name in enumerate(names, 1)}} for k in range(1, 41)]
    versions = []
    for k, state in ((40, "live"), (39, "dropped"), (38, "retired"), (37, "retired")):
        passed, name = state != "dropped", f"{k:06d}-3f9c2ab1d4e{k % 10}"
        gate = [
            {"name": name, "value": 0.9, "limit": 0.6, "passed": True, "note": ""} for name in ("retention", "entropy", "kl")
        ]
        gate.insert(0, {"name": "held-out feedback", "value": 0.3, "limit": 0.05, "passed": passed, "note": "12 of them"})
        about = {"label": f"acme/default@{name}", "name": name, "step": k, "state": state, "created": now - 40 * (41 - k)}
        why = "the gate has passed" if passed else "worse"
        versions.append(about | {"gate": gate, "tainted": k == 38, "reward": 0.4 + k / 1000, "feedbacks": 7, "why": why})
    said = [
        ("How do I list files?", "Use `ls -la`.", {"reward": 1.0, "text": "", "source": "user"}),
        ("Summarise this.", "It is a long text, and …", {"reward": -1.0, "text": "One line, please.", "source": "user"}),
        ("What is 2 + 2?", "4", None),
    ]
    exchanges = [
        {"id": f"chatcmpl-{i}", "adapter": "default", "version": versions[0]["label"], "state": "ready" if told else "pending",
         "created": now - 20 * i, "messages": [{"role": "user", "content": asked}], "reply": reply, "feedback": told, "family": "chat"}
        for i, (asked, reply, told) in enumerate(said)
    ]  # fmt: skip
    why = "5 of 8 exchanges with feedback are ready for the next step"
    scope = {
        "adapter": "default",
        "step": 40,
        "counts": {"pending": 14, "ready": 31, "leased": 8, "consumed": 120, "held_out": 16, "rejected": 3},
        "ages": {"0": 9, "1": 8, "3": 7, "7": 4, "24": 3},
        "updates": updates,
        "held_up": [{"kind": "too few", "why": why, "help": "3 more feedbacks"}],
    }
    rewards = [{"version": item["name"], "step": item["step"], "reward": item["reward"], "feedbacks": 7} for item in versions]
    adapters = [{"adapter": "default", "live": versions[0]["label"], "canary": "", "versions": versions, "rewards": rewards}]
    return {"scopes": [scope], "adapters": adapters, "exchanges": exchanges}


def test_the_page_is_anybodys_and_allows_nothing_from_elsewhere() -> None:
    with serving(FakeBackend(more=told())) as url, httpx.Client(base_url=url, follow_redirects=True) as client:
        for path in ("/", "/dashboard", "/dashboard/"):
            page = client.get(path)
            assert (page.status_code, page.url.path) == (200, "/dashboard/")
            assert page.headers["content-security-policy"].startswith("default-src 'self'; ")
            assert ((head := client.head(path)).status_code, head.content) == (200, b"")
        assert client.get("/dashboard/dashboard.js").headers["content-type"].startswith("text/javascript")
        for path in ("/dashboard/none.js", "/dashboard/..%2fchat_server.py", "/dashboard/library/package.json"):
            assert client.get(path).status_code == 404
        assert client.get("/v1/status").status_code == 401  # without the key there is nothing to show


def test_a_version_answers_by_its_name_and_beside_the_live_one() -> None:
    backend = FakeBackend()
    first, last = backend.make_version(), backend.make_version(step=3)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi there"}]}
    with serving(backend) as url, httpx.Client(base_url=url, headers={"authorization": f"Bearer {chat_backend.KEY}"}) as client:
        for name, expected in {
            "pocket": last,
            "pocket@base": "base",
            f"pocket@{first.partition('@')[2]}": first,
            "pocket@x": "version_not_found",
            **dict.fromkeys(("pocket@", "pocket:@base", "pocketed", "pocket:none@base"), "model_not_found"),
        }.items():
            answer = client.post("/v1/chat/completions", json=body | {"model": name})
            assert answer.headers.get("x-policy-version", answer.json().get("error", {}).get("code")) == expected, name


async def until(page: browser.Browser, script: str) -> None:
    """Wait until an expression in the page is true."""
    async with asyncio.timeout(PATIENCE):
        while not await page.run(script):
            await let_others_run()


async def log_in(page: browser.Browser, url: str, *keys: str) -> None:
    """Type keys into the form, one after the other."""
    await page.go(f"{url}/dashboard")
    for key in keys or (chat_backend.KEY,):
        await until(page, "document.title == 'learngraph: log in' && document.getElementById('key')")
        await page.run("document.getElementById('key').focus(); document.getElementById('key').select()")
        await typed(page, key, ENTER)


@pytest.mark.slow
@needs_browser
async def test_a_real_browser_shows_all_of_it_presses_buttons_and_runs_nobody_elses_script(tmp_path: Path) -> None:
    more = told()
    more["exchanges"][0] |= {"reply": HOSTILE, "family": HOSTILE}
    more["exchanges"][1]["feedback"] = {"reward": 1, "text": HOSTILE, "source": HOSTILE}
    live, old = (more["adapters"][0]["versions"][n] for n in (0, 2))
    live["gate"][0] |= {"name": HOSTILE, "value": None, "note": "too few: 2 of 8 rewards"}
    old["learned_from"] = 2
    more["learned"] = {old["name"]: [more["exchanges"][1] | {"reply": "an old lesson"}]}
    more["adapters"].append({"adapter": HOSTILE, "live": "", "canary": "", "versions": [], "rewards": []})
    backend, promoted = FakeBackend(more=more), list[str]()

    async def promote(tenant: str, adapter: str, version: str) -> dict[str, Any]:
        promoted.append(version)
        return {}

    async def release(tenant: str, id: str) -> dict[str, Any]:
        more["scopes"][0]["held"].pop(id)
        return {}

    backend.promote, backend.release = promote, release  # type: ignore[method-assign]
    with serving(backend) as url:
        async with browser.Browser.open() as page:
            await log_in(page, url, "wrong", chat_backend.KEY)
            await until(page, "document.title == 'acme/default · learngraph'")
            await page.loaded()
            assert chat_backend.KEY not in await page.run("document.cookie + document.body.innerHTML")
            assert await page.run("document.images.length") == 0
            text = await page.run("document.body.innerText")
            for shown in (HOSTILE, "5 of 8 exchanges with feedback are ready", "What would help: 3 more feedbacks."):
                assert shown in text
            assert await page.run("[...document.querySelectorAll('polyline')].length") == 6
            assert await page.run(
                "document.querySelector('svg.curve[aria-label=\"Reward by version\"] text:nth-of-type(4)').textContent"
            ) == ("version 37")
            row = await page.run("document.querySelector('tr[data-version]').innerText")
            assert f"{HOSTILE} not measured" in row
            assert row.count("✓") == 3
            colours = []
            for dark in (False, True):
                await page.picture(tmp_path / f"{dark}.png", dark=dark)
                assert (tmp_path / f"{dark}.png").stat().st_size > 20_000
                colours.append(await page.run("getComputedStyle(document.querySelector('.studio')).backgroundColor"))
            assert len(set(colours)) == 2
            await page.run(f"document.querySelector('[aria-label=\"What version {old['name']} learned from\"]').click()")
            await until(page, "document.body.innerText.includes('an old lesson')")
            more["exchanges"][2]["reply"] = "something new"
            await until(page, "document.body.innerText.includes('something new')")  # it brings itself up to date
            asked = ChatRequest(({"role": "user", "content": "hold me"},))
            backend.replay.append(Exchange("held-1", "acme", asked, Reply("held", (1,), (1,), (0.0,)), "base"))
            more["scopes"][0] |= {"learned": ["icrl: 1 rated"], "held": {"held-1": f"it waits {HOSTILE}"}}
            await until(page, "document.body.innerText.includes('hold me')")
            assert f"it waits {HOSTILE}" in await page.run("document.body.innerText")
            await page.run("document.querySelector('button.release').click()")
            await until(page, "!document.body.innerText.includes('hold me')")
            await page.run("document.querySelector('button.promote').click()")
            async with asyncio.timeout(PATIENCE):
                while not promoted:
                    await let_others_run()
            assert promoted == [old["label"]]
            assert [said for said in page.complaints if "401" not in said] == []  # 401: the wrong key


async def typed(page: browser.Browser, text: str, *keys: tuple[str, int]) -> None:
    """Type as a person does: into what has the focus, then these keys (name, code)."""
    await page.ask("Input.insertText", text=text)
    for key, code in keys:
        for kind in ("keyDown", "keyUp"):
            more = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            await page.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)


ENTER, TAB, SPACE = ("Enter", 13), ("Tab", 9), (" ", 32)


@pytest.mark.slow
@needs_browser
async def test_a_real_browser_chats_compares_and_gives_feedback_with_the_keyboard_alone(tmp_path: Path) -> None:
    more = told()
    more.pop("exchanges")

    def say(request: Any) -> str:
        return f"{HOSTILE} {len(request.messages)} {request.sampling.temperature:g}".replace("\x00\ud800", "")

    backend = FakeBackend(say=say, more=more)
    live = backend.make_version(step=40)
    with serving(backend) as url:
        async with browser.Browser.open() as page:
            await log_in(page, url)
            await until(page, "document.getElementById('beside')?.options.length > 2")
            await page.run("document.getElementById('prompt').focus()")
            await typed(page, "hi there", ENTER)
            await until(page, "document.querySelector('.turn .teach')")
            said = await page.run("document.querySelector('.turn .said').textContent")
            assert said.startswith("</p><script>")
            assert said.endswith("1 1")
            assert await page.run("document.title") == "acme/default · learngraph"  # its script was words
            assert await page.run("document.querySelector('.turn .live').textContent") == live.rpartition("@")[2]
            await page.run("document.querySelector('.turn [data-reward=\"-1\"]').focus()")
            await typed(page, "", SPACE)
            assert await page.run("document.activeElement.getAttribute('aria-pressed')") == "true"
            await typed(page, "", TAB)
            await typed(page, "too long", ENTER)
            await until(page, "document.querySelector('.turn output').textContent.startsWith('Stored')")
            (exchange,) = backend.kept.values()
            assert exchange.feedback is not None
            assert (exchange.feedback.reward, exchange.feedback.text) == (-1, "too long")

            await page.run(
                "const place = document.getElementById('beside'); place.value = 'base'; place.dispatchEvent(new Event('change', {bubbles: true}))"
            )
            await page.run("document.getElementById('prompt').focus()")
            await typed(page, "and now", ENTER)
            await until(page, "document.querySelectorAll('.teach').length == 2")
            sides = await page.run("[...document.querySelectorAll('.turn:last-child .tag')].map(each => each.textContent)")
            assert sides == ["base", live.rpartition("@")[2]]
            asked = [(len(request.messages), request.sampling.temperature) for request in backend.engine.requests]
            assert asked == [(1, 1.0), (3, 0.0), (3, 0.0)]
            assert len(backend.kept) == 3  # the reply beside it, too: feedback may say which is better
            left, right = [one.id for one in backend.kept.values()][1:]
            await page.run(
                "[...document.querySelectorAll('.toolbar button')].find(e => e.textContent.startsWith('The right')).focus()"
            )
            await typed(page, "", SPACE)
            await until(page, "[...document.querySelectorAll('.toolbar output')].some(e => e.textContent === 'Stored.')")
            given = {one.id: one.feedback for one in backend.kept.values() if one.id in (left, right) and one.feedback}
            assert sorted((one.reward, bool(one.correction)) for one in given.values()) == [(-1, True), (1, False)]

            await page.run("document.getElementById('prompt').focus()")
            await typed(page, "once more", ENTER)
            await until(page, "document.querySelectorAll('.teach').length == 3")
            await page.run("[...document.querySelectorAll('[aria-label=\"The reply as it should have been\"]')].at(-1).focus()")
            await typed(page, "a better one", ENTER)
            await until(page, "[...document.querySelectorAll('.teach output')].at(-1).textContent.startsWith('Stored')")
            assert "a better one" in [one.feedback.correction for one in backend.kept.values() if one.feedback]

            await page.ask("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=1, mobile=True)
            assert await page.run("document.documentElement.scrollWidth") <= 360
            unnamed = "[...document.querySelectorAll('button, input, textarea, select')].filter(e => !e.textContent.trim()"
            assert await page.run(f"{unnamed} && !e.labels?.length && !e.ariaLabel).length") == 0
            assert page.complaints == []
