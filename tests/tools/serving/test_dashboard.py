"""The dashboard: what it shows of odd data, who may see it and press its buttons, and that a real browser renders it."""

import asyncio
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="NOT TESTED: needs the extra [serve]")

import browser
import chat_backend

from learngraph.tools.serving import dashboard
from learngraph.tools.serving.charts import age_groups, chart, curves, format_number, time_since
from learngraph.tools.serving.dashboard import Sessions

FakeBackend, serving, two = chat_backend.FakeBackend, chat_backend.serving, chat_backend.two
HOSTILE = "</p><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\x00\ud800{{ 7*7 }}"


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
        "counts": {"pending": 14, "ready": 31, "leased": 8, "consumed": 120, "held": 16, "rejected": 3},
        "ages": {"0": 9, "1": 8, "3": 7, "7": 4, "24": 3},
        "updates": updates,
        "held_up": [{"kind": "too few", "why": why, "help": "3 more feedbacks"}],
    }
    rewards = [{"version": item["name"], "step": item["step"], "reward": item["reward"], "feedbacks": 7} for item in versions]
    adapters = [{"adapter": "default", "live": versions[0]["label"], "canary": "", "versions": versions, "rewards": rewards}]
    return {"scopes": [scope], "adapters": adapters, "exchanges": exchanges}


@contextmanager
def looking(backend: Any, log_in: bool = True) -> Iterator[httpx.Client]:
    """A browser, so to say: it keeps cookies and follows redirections."""
    with serving(backend) as url, httpx.Client(base_url=url, follow_redirects=True) as client:
        if log_in:
            assert client.post("/dashboard/login", data={"key": chat_backend.KEY}).status_code == 200
        yield client


def token(page: str) -> str:
    found = re.search(r'name="token" value="([0-9a-f]+)"', page)
    assert found is not None
    return found[1]


def test_it_asks_for_a_key_and_keeps_it_out_of_the_scripts_reach() -> None:
    with looking(FakeBackend(more=told()), log_in=False) as client:
        assert client.get("/").status_code == 401
        closed = client.get("/dashboard")
        assert closed.status_code == 401
        assert "chatcmpl" not in closed.text
        assert client.post("/dashboard/login", data={"key": "wrong"}).status_code == 401
        assert client.post("/dashboard/login", data={"key": "metrics"}).status_code == 401
        opened = client.post("/dashboard/login", data={"key": chat_backend.KEY}, follow_redirects=False)
        cookie = opened.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert chat_backend.KEY not in cookie
        page = client.get("/dashboard")
        assert page.status_code == 200
        assert "How do I list files?" in page.text
        assert page.text.count("<polyline") == 6
        assert "5 of 8 exchanges with feedback are ready" in page.text
        assert "What would help: 3 more feedbacks." in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert not re.search(r'(src|href)="(https?:)?//', page.text)
        kept = client.cookies["learngraph_session"]
        client.post("/dashboard/logout")
        assert client.get("/dashboard").status_code == 401
        assert client.get("/dashboard", headers={"cookie": f"learngraph_session={kept}"}).status_code == 401
        header = {"authorization": f"Bearer {chat_backend.KEY}"}
        assert client.get("/dashboard", headers=header).status_code == 200
        client.cookies.set("learngraph_session", "bm9ib2R5fDk5OTk5OTk5OTl8eA==.00")
        assert client.get("/dashboard").status_code == 401


def test_a_form_that_never_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(dashboard, "FORM_SECONDS", 0.2)
    ask = b"POST /dashboard/login HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nkey="
    with chat_backend.serving(chat_backend.FakeBackend()) as url:
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        with socket.create_connection(place, 30) as slow:
            slow.sendall(ask)
            assert slow.recv(100).startswith(b"HTTP/1.1 408")
        monkeypatch.setattr(dashboard, "FORM_SECONDS", 30.0)
        with socket.create_connection(place, 30) as gone:
            gone.sendall(ask)
        many = "&".join(f"f{i}=1" for i in range(50))
        headers = {"content-type": "application/x-www-form-urlencoded"}
        assert httpx.post(f"{url}/dashboard/login", content=many, headers=headers).status_code == 401
    assert "Traceback" not in caplog.text


def test_sessions_end_and_cannot_be_made_up() -> None:
    now = [1000.0]
    sessions = Sessions(lambda: now[0])
    cookie = sessions.cookie("acme")
    assert sessions.tenant(cookie) == "acme"
    assert sessions.tenant(Sessions(lambda: now[0]).cookie("acme")) is None
    for odd in ("", ".", "é.é", "a.b", cookie[:-1], cookie.upper()):
        assert sessions.tenant(odd) is None
    assert not sessions.is_valid_token(cookie, sessions.token(sessions.cookie("acme")))
    now[0] += 13 * 3600
    assert sessions.tenant(cookie) is None


def test_buttons_work_from_the_page_and_from_nowhere_else() -> None:
    backend = FakeBackend(more=told())
    with looking(backend) as client:
        page = client.get("/dashboard").text
        form = {"adapter": "default", "version": "000038-abc"}
        for bad in ({}, {"token": "0" * 64}, {"token": "é"}):
            assert client.post("/dashboard/promote", data=form | bad).status_code == 403
        other = client.post("/dashboard/promote", data=form | {"token": token(page)}, headers={"origin": "http://evil.example"})
        assert other.status_code == 403
        assert backend.live == {}
        assert client.post("/dashboard/promote", data=form | {"token": token(page)}).status_code == 200
        assert backend.live == {("acme", "default"): "acme/default@000038-abc"}
        here = {"origin": str(client.base_url).rstrip("/")}
        assert (
            client.post("/dashboard/rollback", data={"adapter": "default", "token": token(page)}, headers=here).status_code
            == 200
        )
        assert backend.live == {("acme", "default"): ""}
        refused = client.post("/dashboard/promote", data=form | {"token": token(page), "version": "<b>odd"})
        assert refused.status_code == 409
        assert "&lt;b&gt;odd" in refused.text
        assert client.post("/dashboard/promote", content=b"x" * 10_000).status_code == 413
        client.cookies.clear()
        assert client.post("/dashboard/promote", data=form | {"token": token(page)}).status_code == 401


def test_the_chat_of_the_page_answers_for_a_session_and_for_no_one_else() -> None:
    backend = FakeBackend(more={})
    body = {"model": "pocket", "messages": [{"role": "user", "content": "hi there"}]}
    with looking(backend) as client:
        sent = {"x-form-token": token(client.get("/dashboard").text)}
        answer = client.post("/dashboard/chat", json=body, headers=sent)
        assert answer.json()["choices"][0]["message"]["content"] == "you said hi there (None)"
        told = client.post("/dashboard/feedback", json={"response_id": answer.json()["id"], "reward": 1}, headers=sent)
        assert (told.status_code, backend.kept["acme", answer.json()["id"]].feedback.reward) == (202, 1)
        for bad in ({}, {"x-form-token": "0" * 64}, sent | {"origin": "http://evil.example"}):
            refused = client.post("/dashboard/chat", json=body, headers=bad)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "invalid_token")
        assert client.post("/dashboard/chat", json=body | {"suffix": "x"}, headers=sent).status_code == 400
        client.post("/dashboard/logout")
        assert client.post("/dashboard/chat", json=body, headers=sent).status_code == 401


def test_a_version_answers_by_its_name_and_beside_the_live_one() -> None:
    backend = FakeBackend(live={("acme", "default"): "acme/default@000003-c"})
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi there"}]}
    with serving(backend) as url, httpx.Client(base_url=url, headers={"authorization": f"Bearer {chat_backend.KEY}"}) as client:
        for name, expected in {
            "pocket": "acme/default@000003-c",
            "pocket@base": "base",
            "pocket@000001-a": "acme/default@000001-a",
            "pocket@x": "version_not_found",
            **dict.fromkeys(("pocket@", "pocket:@base", "pocketed", "pocket:none@base"), "model_not_found"),
        }.items():
            answer = client.post("/v1/chat/completions", json=body | {"model": name})
            assert answer.headers.get("x-policy-version", answer.json().get("error", {}).get("code")) == expected, name


def test_what_was_not_measured_is_not_ticked_and_axes_say_what_they_count() -> None:
    more = told()
    checks = more["adapters"][0]["versions"][0]["gate"]
    checks[0] |= {"value": None, "note": "too few: 2 of 8 rewards"}
    with looking(FakeBackend(more=more)) as client:
        page = client.get("/dashboard").text
    row = page[page.index('data-version="') : page.index("</tr>", page.index('data-version="'))]
    assert "held-out feedback not measured" in row
    assert "✓ held-out" not in row
    assert row.count("✓") == 3
    assert 'aria-label="Reward by version"' in page
    assert "version 37" in page
    assert 'aria-label="Loss by step"' in page


def test_what_a_version_learned_from() -> None:
    more = told()
    versions = more["adapters"][0]["versions"]
    for version in versions:
        version["learned_from"] = 2
    more["learned"] = {
        versions[0]["name"]: [more["exchanges"][0]],
        versions[2]["name"]: [more["exchanges"][1] | {"reply": "an old lesson"}],
    }
    with looking(FakeBackend(more=more)) as client:
        live = client.get("/dashboard").text
        assert f"What version {versions[0]['name']} learned from" in live
        assert "an old lesson" not in live
        link = next(found for found in re.findall(r'href="([^"]*#learned)"', live) if versions[2]["name"] in found)
        old = client.get(link.replace("&amp;", "&")).text
        assert "an old lesson" in old
        assert client.get("/dashboard?learned=%3Cscript%3E").text.count("<script") == 1


def test_hostile_words_stay_words() -> None:
    more = told()
    more["exchanges"][0] |= {"reply": HOSTILE, "messages": [{"role": "user", "content": HOSTILE}], "family": HOSTILE}
    more["exchanges"][1]["feedback"] = {"reward": 1, "text": HOSTILE, "source": HOSTILE}
    name = HOSTILE.replace("\ud800", "")
    more["adapters"][0]["versions"][0] |= {"why": HOSTILE, "name": name}
    more["adapters"][0]["versions"][0]["gate"][0] |= {"name": HOSTILE, "note": '" onmouseover="x'}
    more["adapters"].append({"adapter": name, "live": "", "versions": []})
    more["scopes"][0]["held_up"] = [{"kind": HOSTILE, "why": HOSTILE, "help": HOSTILE}]
    more["learner"] = {"state": HOSTILE, "error": HOSTILE}
    with looking(FakeBackend(more=more)) as client:
        page = client.get("/dashboard").text
    assert "<img" not in page
    assert page.count("<script") == 1
    assert 'onmouseover="x' not in page
    assert "49" not in re.findall(r"\{\{[^}]*\}\}|onerror=[^ ]*49", page)
    assert "{{ 7*7 }}" in page


def test_another_tenant_sees_its_own() -> None:
    backend = FakeBackend()
    with looking(backend) as client:
        client.post(
            "/v1/chat/completions",
            json={"model": "pocket", "messages": [{"role": "user", "content": "my secret"}]},
            headers={"authorization": f"Bearer {chat_backend.KEY}"},
        )
        assert "my secret" in client.get("/dashboard").text
        client.post("/dashboard/login", data={"key": chat_backend.RIVAL})
        assert "my secret" not in client.get("/dashboard").text


def test_a_curve_is_where_its_numbers_are() -> None:
    assert chart([]) is None
    drawn = chart([(1, 0.0), (2, 1.0), (3, 0.5)])
    assert drawn is not None
    assert drawn["line"] == "44.0,104.0 178.0,10.0 312.0,57.0"
    assert drawn["marks"] == [("104.0", "0"), ("57.0", "0.5"), ("10.0", "1")]
    flat = chart([(5, 2.0)])
    assert flat is not None
    assert flat["line"] == "178.0,57.0"
    long = chart([(k, float(k)) for k in range(1, 501)])
    assert long is not None
    assert len(long["dots"]) == 100
    assert long["value"] == "500"
    none, *_ = curves([{"step": 1, "loss": 2.0}], [{"step": 1, "reward": float("nan")}])
    assert none["chart"] is None


def test_numbers_ages_and_times() -> None:
    assert [format_number(value) for value in (1, 1.5, float("nan"), None, 1e7)] == ["1", "1.5", "–", "–", "1e+07"]
    assert [(bar["name"], bar["count"]) for bar in age_groups({"0": 2, "1": 1})] == [("0", "2"), ("1", "1")]
    assert [bar["name"] for bar in age_groups({"0": 1, "30": 1})][-1] == "30–32"
    assert sum(int(bar["count"]) for bar in age_groups({"0": 1, "5": 2, "30": 1})) == 4
    assert [time_since(1000 - s, 1000) for s in (5, 90, 999)] == ["5 s ago", "2 min ago", "17 min ago"]


async def until(page: browser.Browser, script: str) -> None:
    """Wait until an expression in the page is true."""
    async with asyncio.timeout(30):
        while not await page.run(script):
            await asyncio.sleep(0.1)


async def log_in(page: browser.Browser, url: str) -> None:
    """Give the key to the form."""
    await page.go(f"{url}/dashboard")
    assert await page.run("document.title") == "learngraph: log in"
    await page.run(f"document.getElementById('key').value = {chat_backend.KEY!r}")
    await page.run("document.querySelector('form').submit()")


@pytest.mark.slow
@pytest.mark.skipif(browser.EXECUTABLE is None, reason="NOT TESTED: no Chromium (apt-get install chromium)")
async def test_a_real_browser_logs_in_sees_it_presses_a_button_and_runs_nobody_elses_script(tmp_path: Path) -> None:
    more = told()
    more["exchanges"][0]["reply"] = HOSTILE
    backend = FakeBackend(more=more)
    with serving(backend) as url:
        async with browser.Browser.open(tmp_path / "profile") as page:
            await log_in(page, url)
            await until(page, "document.title == 'acme/default · learngraph'")
            await page.loaded()
            assert await page.run("document.cookie") == ""  # not for scripts
            assert await page.run("document.querySelectorAll('polyline').length") == 6
            assert await page.run("document.images.length") == 0
            colours = []
            for dark in (False, True):
                picture = tmp_path / f"{dark}.png"
                await page.picture(picture, dark=dark)
                assert picture.stat().st_size > 20_000
                colours.append(await page.run("getComputedStyle(document.body).backgroundColor"))
            assert len(set(colours)) == 2
            more["exchanges"][0]["reply"] = "something new"
            await until(page, "document.body.textContent.includes('something new')")  # it brings itself up to date
            await page.run("document.querySelector('form[action=\"/dashboard/promote\"] button').click()")
            async with asyncio.timeout(30):
                while not backend.live:
                    await page.run("1")
                    await asyncio.sleep(0.1)
            assert backend.live == {("acme", "default"): more["adapters"][0]["versions"][2]["label"]}
            assert [said for said in page.complaints if "401" not in said] == []  # 401: the page that asks for the key


async def typed(page: browser.Browser, text: str, *keys: tuple[str, int]) -> None:
    """Type as a person does: into what has the focus, then these keys (name, code)."""
    await page.ask("Input.insertText", text=text)
    for key, code in keys:
        for kind in ("keyDown", "keyUp"):
            more = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            await page.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)


ENTER, TAB, SPACE = ("Enter", 13), ("Tab", 9), (" ", 32)


@pytest.mark.slow
@pytest.mark.skipif(browser.EXECUTABLE is None, reason="NOT TESTED: no Chromium (apt-get install chromium)")
async def test_a_real_browser_chats_compares_and_gives_feedback_with_the_keyboard_alone(tmp_path: Path) -> None:
    more = told()
    more.pop("exchanges")
    live = more["adapters"][0]["versions"][0]["label"]

    def say(request: Any) -> str:
        return f"{HOSTILE} {len(request.messages)} {request.sampling.temperature:g}".replace("\x00\ud800", "")

    backend = FakeBackend(say=say, more=more, live={("acme", "default"): live})
    with serving(backend) as url:
        async with browser.Browser.open(tmp_path / "profile") as page:
            await log_in(page, url)
            await until(page, "document.getElementById('beside')?.options.length > 2")
            await page.run("document.getElementById('prompt').focus()")
            await typed(page, "hi there", ENTER)
            await until(page, "document.querySelector('.turn .teach:not([hidden])')")
            said = await page.run("document.querySelector('.turn .side:not([hidden]) .said').textContent")
            assert said.startswith("</p><script>")
            assert said.endswith("1 1")
            assert await page.run("document.title") == "acme/default · learngraph"  # its script was words
            assert await page.run("document.querySelector('.turn .badge.live').textContent") == live.rpartition("@")[2]
            # From the message by Tab to the thumb: before it in the page, so backwards.
            await page.run("document.querySelector('.turn [data-reward=\"-1\"]').focus()")
            await typed(page, "", SPACE)
            assert await page.run("document.activeElement.getAttribute('aria-pressed')") == "true"
            await typed(page, "", TAB)
            await typed(page, "too long", ENTER)
            await until(page, "document.querySelector('.turn output').textContent.startsWith('Stored')")
            (exchange,) = backend.kept.values()
            assert exchange.feedback is not None
            assert (exchange.feedback.reward, exchange.feedback.text) == (-1, "too long")

            await page.run("document.getElementById('beside').value = 'base'")
            await page.run("document.getElementById('prompt').focus()")
            await typed(page, "and now", ENTER)
            await until(page, "document.querySelectorAll('.teach:not([hidden])').length == 2")
            sides = await page.run("[...document.querySelectorAll('.turn:last-child .badge')].map(each => each.textContent)")
            assert sides == ["base", live.rpartition("@")[2]]
            asked = [(len(request.messages), request.sampling.temperature) for request in backend.requests]
            assert asked == [(1, 1.0), (3, 0.0), (3, 0.0)]
            assert len(backend.kept) == 2  # the reply beside it is not kept
            await page.run("refresh()")
            assert await page.run("document.querySelectorAll('.turn').length") == 2  # the chat stays
            assert await page.run("document.getElementById('beside').value") == "base"

            await page.ask("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=1, mobile=True)
            assert await page.run("document.documentElement.scrollWidth") <= 360
            await page.picture(tmp_path / "phone.png", width=360, height=1600)
            unnamed = "[...document.querySelectorAll('button, input:not([type=hidden]), textarea, select')].filter(e => !e.textContent.trim()"
            assert await page.run(f"{unnamed} && !e.labels?.length && !e.ariaLabel).length") == 0
            assert [problem for problem in page.complaints if "401" not in problem] == []
