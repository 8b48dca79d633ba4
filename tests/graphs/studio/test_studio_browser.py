"""The studio in a real Chromium: walked with the keyboard alone, drawn in, followed, in two tabs, and without a request to elsewhere."""

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import browser
import pytest
from forks import run_python
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from studio_runs import play_run, write_long_run, write_settings, write_steps
from waiting import PATIENCE, let_others_run

import learngraph
from learngraph.graphs.studio.command import open_studio
from learngraph.graphs.studio.drawing import Drawing
from learngraph.graphs.studio.options import StudioOptions
from learngraph.graphs.studio.studio import Studio
from learngraph.graphs.studio.widget import StudioView, studio_view, widget_module
from learngraph.graphs.wiring.flow import rewire, to_mermaid
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.serializer import serializer
from learngraph.tools.models.random_tools import HeedfulToolModel
from learngraph.tools.serving.studio_server import StudioServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.EXECUTABLE is None, reason="NOT TESTED: no Chromium (apt-get install chromium)"),
]
KEYS = dict(zip(("Backspace", "Tab", "Enter", "Escape", "End", "Home", "Delete"), (8, 9, 13, 27, 35, 36, 46), strict=True))
KEYS |= {f"Arrow{side}": 37 + n for n, side in enumerate(("Left", "Up", "Right", "Down"))}
Open = Callable[..., Awaitable[browser.Browser]]


@contextmanager
def serve(target: str | Studio, **options: Any) -> Iterator[str]:
    """A studio in this process; yields its link."""
    studio = open_studio(StudioOptions(target, **options)) if isinstance(target, str) else target
    server = StudioServer(studio, "test-key")
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server.url
    finally:
        server.stop()
        thread.join(20)


@asynccontextmanager
async def page(_folder: Path, url: str) -> AsyncIterator[browser.Browser]:
    """A browser at that link. It must not complain, and must have asked nobody else for anything."""
    async with browser.Browser.open() as opened:
        await opened.ask("Emulation.setDeviceMetricsOverride", width=1240, height=900, deviceScaleFactor=1, mobile=False)
        await opened.go(url)
        await until(opened, "document.querySelector('header') !== null")
        yield opened
        await opened.run("1")
        asked = {event["params"]["request"]["url"] for event in opened.events if event["method"] == "Network.requestWillBeSent"}
        home = url.partition("#")[0]
        assert len(asked) > 5
        assert [one for one in asked if not one.startswith((home, "data:", "blob:"))] == []
        assert opened.complaints == []


async def until(opened: browser.Browser, script: str, seconds: float = PATIENCE) -> None:
    """Wait for an expression to become true."""
    async with asyncio.timeout(seconds):
        while not await opened.run(script):
            await let_others_run(0.02)


async def press(opened: browser.Browser, *keys: str, ctrl: bool = False) -> None:
    """Press keys, as a person does."""
    for key in keys:
        code = {"windowsVirtualKeyCode": KEYS.get(key) or ord(key.upper()), "modifiers": 2 if ctrl else 0}
        words = {"text": key} if len(key) == 1 and not ctrl else code
        words |= {"text": "\r"} if key == "Enter" else {}
        await opened.ask("Input.dispatchKeyEvent", type="keyDown", key=key, **words)
        await opened.ask("Input.dispatchKeyEvent", type="keyUp", key=key)


async def say(opened: browser.Browser, text: str) -> None:
    """Say this to the agent in the chat."""
    await opened.run("document.querySelector('.chat textarea').focus()")
    await opened.ask("Input.insertText", text=text)
    await press(opened, "Enter")


def choose(name: str, value: str) -> str:
    """The JavaScript that chooses a value of a form's field."""
    found = f"[...document.querySelectorAll('form.ask select')].find((one) => one.id.endsWith('{name}'))"
    return f"{{ const is = {found}; is.value = '{value}'; is.dispatchEvent(new Event('change', {{ bubbles: true }})); }}"


def tool(label: str) -> str:
    """The JavaScript of the toolbar's button whose text begins so."""
    return f"[...document.querySelectorAll('.toolbar button')].find((one) => one.textContent.startsWith({label!r}))"


COLUMNS = "document.querySelector('.columns').textContent"
LIT = "[...document.querySelectorAll('.box.lit .name')].map((one) => one.textContent).join()"
FOCUS = "(document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent).trim()"
ROWS = "[...document.querySelectorAll('[aria-label=moments] .row b, [aria-label=steps] .row b')].map((one) => one.textContent)"
HOLD = """globalThis.held = []; globalThis.asks = fetch;
globalThis.fetch = (to, more) => !to.endsWith('/NAME') ? asks(to, more) : new Promise((done) => held.push(() => {
  const answer = asks(to, more);
  done(answer);
  return answer;
}));"""
"""Holds the page's questions of a name back, until each of `held` is called."""
ALERT = "(document.querySelector('[role=alert]')?.textContent ?? '')"


async def test_a_method_is_walked_with_the_keyboard_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with serve("jitrl", episodes=2) as url:
        async with page(tmp_path / "profile", url) as opened:
            await until(opened, f"{LIT} === 'begin'")
            assert "test-key" not in await opened.run("location.href")
            await press(opened, "s")
            await until(opened, f"{LIT} === 'recall'")
            await press(opened, "r")
            await until(opened, f"{LIT} === 'recall' && document.querySelectorAll('[aria-label=moments] .row').length === 9")
            for node in ("propose", "augment", "advise", "modulate", "choose", "act"):
                await press(opened, "s")
                await until(opened, f"{LIT} === {node!r}")
            size = {"deviceScaleFactor": 1, "mobile": False}
            await opened.ask("Emulation.setDeviceMetricsOverride", width=700, height=400, **size)
            places = "['.box.lit', '.picture'].map((one) => document.querySelector('.run ' + one).getBoundingClientRect())"
            inside = f"(() => {{ const [box, all] = {places}; return all.height < 400 && box.top >= all.top && box.bottom <= all.bottom; }})()"
            await until(opened, inside)  # a tall picture is scrolled to the present node
            await opened.ask("Emulation.setDeviceMetricsOverride", width=1024, height=700, **size)
            wide = "document.querySelector('.run .picture svg')"
            await until(opened, f"{wide}.clientWidth / {wide}.viewBox.baseVal.width >= .74")  # names of 9 pixels
            sides = inside.replace("top", "left").replace("bottom", "right")
            await until(opened, sides)  # a wide picture, too
            await opened.ask("Emulation.setDeviceMetricsOverride", width=1240, height=900, **size)
            assert await opened.run("document.querySelectorAll('table.bars tbody tr').length > 1")
            assert await opened.run("document.querySelectorAll('table.bars tr.chosen').length === 1")
            assert await opened.run("[...document.querySelectorAll('.count')].map((one) => one.textContent).includes('2×')")
            assert await opened.run(f"{COLUMNS}.includes('recall: neighbours')")
            await press(opened, "ArrowLeft")  # look at an earlier moment; the walk stays
            await until(opened, f"{LIT} === 'choose'")
            await press(opened, "f")
            await until(opened, "document.querySelectorAll('.forks li').length === 2")
            await press(opened, "e")
            await until(
                opened,
                "document.querySelector('.end.lit') && document.querySelector('.forks').innerText.includes('at the end')",
            )
            await press(opened, "b")
            await until(opened, f"document.querySelectorAll('.forks li').length === 3 && {LIT} === 'remember'")
            # The order of the focus: tabs, keys, the walk's buttons, the picture (one stop), fork tree, moments, …
            await opened.run("document.activeElement.blur()")
            stops = []
            for _ in range(24):
                await press(opened, "Tab")
                stops.append(await opened.run(FOCUS))
            assert stops[:4] == ["Drawing", "Walk", "Keys ?", "Step s"]
            assert len([one for one in stops if one.startswith("begin: Observe")]) == 1
            places = [stops.index(one) for one in ("Fork f", "Finish e", "run 1 before act, the thread's record", "moments")]
            assert places == sorted(places)
            # In the picture: arrows go from box to box.
            await opened.run("document.querySelector('.run .box[tabindex=\"0\"]').focus()")
            before = await opened.run(FOCUS)
            await press(opened, "ArrowRight")
            assert await opened.run(FOCUS) != before
            await press(opened, "?")
            await until(opened, "document.querySelector('dialog[open]') !== null")
            await press(opened, "Escape")
            await until(opened, "document.querySelector('dialog[open]') === null")
            # A value is edited in place, by the form of its type.
            await opened.run("document.querySelector('[aria-label=\"edit score\"]').click()")
            await until(opened, "document.activeElement.type === 'number'")
            await opened.ask("Input.insertText", text="7")
            await press(opened, "Enter")
            await until(opened, "document.querySelector('[aria-label=moments]').textContent.includes('edit')")
            choose = "const is = document.querySelector('.forks + label select'); is.value = is.options[1].value"
            await opened.run(f"{{ {choose}; is.dispatchEvent(new Event('change', {{ bubbles: true }})); }}")
            await until(opened, "document.querySelector('.compared tbody')?.textContent.includes('score')")
            await opened.run("document.querySelector('.menu summary').click()")
            await opened.run("document.querySelector('[aria-label=\"pause after act\"]').click()")
            await until(opened, "document.querySelectorAll('circle.break').length === 1")
            await opened.ask("Input.dispatchMouseEvent", type="mousePressed", x=5, y=200, button="left", clickCount=1)
            await until(opened, "!document.querySelector('.menu').open")
            # A box has one colour on both pages.
            colours = "JSON.stringify([...document.querySelectorAll('{} .box')].map((one) => one.getAttribute('class').replace(' lit', '')))"
            walked = await opened.run(colours.format(".run"))
            await opened.run("location.hash = 'drawing'")
            await until(opened, f"{colours.format('.editor')} === {json.dumps(walked)}")


async def test_the_buttons_and_the_header_are_those_of_the_walk_that_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    walks = "[...document.querySelectorAll('.forks button')]"
    names = "[...document.querySelectorAll('.run .toolbar > button:enabled')].map((one) => one.textContent.split(' ')[0])"
    shown = f"[document.querySelector('.run .head .soft').textContent, ...{names}].join()"
    paused, ended = "paused,Step,Round,Back,Fork,Finish,New,Settings", "at the end,Back,Fork,Keep,Drop,New,Settings"
    with serve("jitrl", episodes=0) as url:
        async with page(tmp_path / "profile", url) as opened:
            await until(opened, f"{LIT} === 'begin'")
            await press(opened, "s")
            await until(opened, f"{LIT} === 'recall'")
            await press(opened, "f")
            await until(opened, f"{walks}.length === 2")
            await press(opened, "e")
            await until(opened, f"{shown} === '{ended}'")
            await opened.run(f"{walks}[0].click()")  # beside a what-if that has ended
            await until(opened, f"{LIT} === 'recall'")
            assert await opened.run(shown) == paused
            await press(opened, "d", "k", "s")  # a run is neither dropped nor kept; it is played on
            await until(opened, f"{shown} === '{paused}' && {LIT} !== 'recall'")
            assert await opened.run(ALERT) == ""
            await opened.run(f"{walks}[1].click()")
            await until(opened, f"{shown} === '{ended}' && document.querySelector('.run .end.lit') !== null")
            await press(opened, "d")
            await until(opened, f"{ALERT}.includes('Drop forgets what-if 1')")  # which has steps of its own
            assert await opened.run(f"{walks}.length") == 2
            await opened.run("document.querySelector('[role=alert] button.main').click()")
            await until(opened, f"{walks}.length === 1 && {shown} === '{paused}'")
            await opened.run(HOLD.replace("NAME", "moments"))  # a question about a what-if that is dropped meanwhile
            await press(opened, "f")
            await until(opened, f"{walks}.length === 2 && held.length > 0")
            await press(opened, "d")
            await until(opened, f"{walks}.length === 1 && {shown} === '{paused}'")
            await opened.run("Promise.all(held.splice(0).map((go) => go())).then(() => new Promise(requestAnimationFrame))")
            assert await opened.run(ALERT) == ""


async def test_a_drawing_is_edited_beside_its_picture_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "document.querySelector('.code').shadowRoot.querySelector('.cm-content')"
    names = "[...document.querySelectorAll('.editor .box .name')].map((one) => one.textContent)"
    with serve("jitrl", episodes=0) as url:
        async with page(tmp_path / "profile", url) as opened:
            await opened.run("location.hash = 'drawing'")
            await until(opened, f"{names}.includes('augment')")
            svg, room = (
                "document.querySelector('.editor .picture" + part
                for part in (" svg').getBoundingClientRect()", "').clientWidth")
            )
            assert await opened.run(f"{svg}.width > 3 * {svg}.height"), (
                "a flowchart LR above the text, which is wider than high"
            )
            await until(opened, f"{svg}.width <= {room}")  # all of it is in sight when it is opened, and its names can be read
            natural = "document.querySelector('.editor .picture svg').viewBox.baseVal.width"
            await until(opened, f"12 * {svg}.width / {natural} > 8")
            for label, width in (("Fit", f"<= {room}"), ("+", f"> {room}"), ("−", f"<= {room}")):
                await opened.run(
                    f"[...document.querySelectorAll('.editor .zoom button')].find((one) => one.textContent === '{label}').click()"
                )
                await until(opened, f"{svg}.width {width}")
                for window in (1024, 1240) if label == "Fit" else ():  # it stays fitted
                    await opened.ask(
                        "Emulation.setDeviceMetricsOverride", width=window, height=900, deviceScaleFactor=1, mobile=False
                    )
                    await until(
                        opened,
                        f"{room} < {window} && {room} > {window} - 120 && {svg}.width <= {room} && {svg}.width > {room} - 30",
                    )
            x, y = await opened.run(f"[{svg}.left + 9, {svg}.top + 9]")
            await opened.ask("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=-90, modifiers=2)
            await until(opened, f"{svg}.width > {room}")
            await opened.run(f"{code}.focus()")
            await press(opened, "End", ctrl=True)
            await opened.ask("Input.insertText", text="  act -->|ovr| judge\n")
            await until(opened, "document.querySelectorAll('.findings li').length > 0")
            said = await opened.run("document.querySelector('.findings').textContent")
            line = await opened.run(f"{code}.querySelectorAll('.cm-line').length - 1")
            assert said.startswith(f"line {line} ")
            assert "ovr" in said
            assert await opened.run(
                "document.querySelector('.code').shadowRoot.querySelector('.cm-lint-marker-error') !== null"
            )
            await opened.ask("Input.insertText", text="what is this\n")
            await until(opened, "document.querySelector('.picture.stale') !== null")
            await press(
                opened, "a", ctrl=True
            )  # what is typed over it gets no style of Chromium's, which the policy would refuse
            shorter = "flowchart TD\n  START --> begin --> recall --> propose --> advise --> modulate --> choose --> act\n"
            await opened.ask(
                "Input.insertText", text=f"{shorter}  act -->|next step| recall\n  act -->|over| judge --> remember --> END\n"
            )
            await until(opened, f"!{names}.includes('augment') && document.querySelector('.picture.stale') === null")
            await press(opened, "s", ctrl=True)
            await until(opened, "document.querySelector('.note.good') !== null")
            path = tmp_path / "jitrl.mmd"
            assert path.read_text().startswith(shorter)
            path.write_text(path.read_text() + "%% seen\n")
            await until(opened, f"{code}.textContent.includes('%% seen')")  # nothing was changed here: it follows
            await opened.ask("Input.insertText", text="%% mine\n")
            await until(opened, "document.querySelector('.head').textContent.includes(', changed')")
            path.write_text(path.read_text() + "%% of another program\n")  # under its feet
            await press(opened, "s", ctrl=True)
            await until(opened, f"{ALERT}.includes('was changed since this page read it')")
            assert "mine" not in path.read_text()
            await opened.run(
                "[...document.querySelectorAll('[role=alert] button')].find((one) => one.textContent.startsWith('Take')).click()"
            )
            await until(opened, f"{code}.textContent.includes('of another program')")
            await opened.run(f"{code}.focus()")
            await press(opened, "End", ctrl=True)
            await opened.ask("Input.insertText", text="act --> lost")
            await until(opened, "document.querySelector('.head').textContent.includes(', changed')")
            assert "save the drawing first" in await opened.run("document.querySelector('.editor .toolbar :disabled').title")
            await opened.run("location.hash = 'walk'")
            await until(opened, f"{LIT} === 'begin'")
            assert "The drawing has changed: New run takes it." in await opened.run(
                "document.querySelector('.run').textContent"
            )
            await press(opened, "n")  # a run walks what is saved, which the page says where another drawing is in sight
            await until(opened, f"{ALERT}.includes('not saved')")
            await opened.run("document.querySelector('[role=alert] button.main').click()")
            await until(opened, f"{ALERT}.startsWith('jitrl.mmd as it is saved, line ')")
            assert path.read_text().endswith("act --> lost")


async def test_settings_of_a_method_are_changed_in_a_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    beta = "[...document.querySelectorAll('.settings label')].find((one) => one.textContent === 'beta').parentElement"
    button = "[...document.querySelectorAll('button')].find((one) => one.textContent === 'Settings …')"
    with serve("jitrl", episodes=1) as url:
        async with page(tmp_path / "profile", url) as opened:
            await until(opened, f"{LIT} === 'begin' && {button} !== undefined")
            await opened.run(f"{button}.click()")
            await until(opened, "document.activeElement.closest('.settings') !== null")
            assert await opened.run(f"{beta}.querySelector('b') === null && {beta}.textContent.includes('default: 10')")
            for typed, seen in (("-2", f"{ALERT}.includes('beta')"), ("0.05", "document.querySelector('.settings') === null")):
                await opened.run(f"{beta}.querySelector('input').select()")
                await press(opened, *typed)
                await until(opened, f"{beta}.querySelector('b')?.textContent === 'default: 10'")
                await press(opened, "Enter", ctrl=True)
                await until(opened, f"{seen} && document.querySelector('.run').getAttribute('aria-busy') === 'false'")
            await until(opened, "document.querySelector('.run h2').textContent.startsWith('jitrl, beta=0.05 in toy')")
            await until(opened, "document.querySelector('.run .picture').textContent.includes('beta = 0.05')")
            assert await opened.run("document.querySelectorAll('.forks li').length") == 2
            await opened.run("location.hash = 'drawing'")  # was read before
            await until(opened, "document.querySelector('.editor .picture').textContent.includes('beta = 0.05')")


async def test_a_node_is_put_in_by_a_click_and_moved_by_the_mouse_and_the_python_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "[...document.querySelector('.code').shadowRoot.querySelectorAll('.cm-line')].map((one) => one.textContent.trim())"
    calm = "document.querySelector('.findings') === null"

    async def drag(opened: browser.Browser, *places: str) -> None:
        for kind, place in zip(("mousePressed", "mouseMoved", "mouseReleased"), (places[0], *places[-1:] * 2), strict=True):
            x, y = await opened.run(
                f"(() => {{ const r = {place}.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
            )
            await opened.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)
            await let_others_run(0.05)

    async def click(opened: browser.Browser, tag: str, text: str) -> None:
        await opened.run(f"[...document.querySelectorAll({tag!r})].find((one) => one.textContent.startsWith({text!r})).click()")

    def box(name: str) -> str:
        return f"document.querySelector('.editor [data-box={name}]')"

    with serve("agent.mmd") as url:
        async with page(tmp_path / "profile", url) as opened:
            await until(opened, f"{box('Act')} !== null && document.querySelectorAll('.palette li').length > 100")
            assert await opened.run(calm)
            await opened.run(f"{box('Choose')}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")
            put = f"{words}[1] === 'START --> Begin --> UniformPolicy --> Choose --> ZeroJudge --> Act'"
            await click(opened, ".palette button", "ZeroJudge")
            await until(opened, put)
            await opened.run("document.querySelector('.palette li button').focus()")
            for key, condition in (("z", f"!({put})"), ("y", put)):  # undone and done again, with the focus where the mouse was
                await press(opened, key, ctrl=True)
                await until(opened, condition)
            await until(opened, f"{box('ZeroJudge')} !== null")
            await drag(opened, box("ZeroJudge"), "document.querySelector('.editor [data-from=Act][data-to=END] .hold')")
            await until(opened, f"{words}[3] === 'Act -->|over| ZeroJudge --> END'")
            assert await opened.run(f"{words}[1]") == "START --> Begin --> UniformPolicy --> Choose --> Act"
            await until(opened, "document.querySelector('.editor [data-from=ZeroJudge][data-to=END]') !== null")
            await drag(opened, box("ZeroJudge"), box("Begin"))
            arrow = "document.querySelector('.editor [data-from=ZeroJudge][data-to=Begin]')"
            await until(opened, f"{words}[4] === 'ZeroJudge --> Begin' && {arrow} !== null")
            await opened.run(f"{arrow}.dispatchEvent(new MouseEvent('dblclick', {{bubbles: true}}))")
            await until(opened, calm)
            await click(opened, ".toolbar button", "Save")
            await until(opened, "document.querySelector('.note.good') !== null")
            await click(opened, ".toolbar button", "Write")
            await until(opened, "document.querySelector('.note.good').textContent.includes('Wrote agent.py')")
    run = "import agent; print(agent.graph.invoke({'task': agent.world.task(0), 'run': 'r', 'episode': 0})['score'])"
    made = run_python("-c", run)
    assert float(made.stdout) > 0


async def test_a_node_goes_behind_what_is_chosen_or_before_the_end_and_undo_brings_all_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = "[...document.querySelector('.code').shadowRoot.querySelectorAll('.cm-line')].map((one) => one.textContent.trim())"
    text, place = f"{lines}.join('; ')", "document.querySelector('.palette h3').textContent"
    first = (
        "flowchart LR; START --> Begin --> UniformPolicy --> Choose --> Act; Act -->|next step| UniformPolicy; Act -->|over| "
    )
    last = first + "ZeroJudge --> END; "
    without = first.partition(" --> Act;")[0] + "; ZeroJudge --> END; "
    both = (
        first.partition("Act -->|")[0] + "Act --> Push; Push -->|next step| UniformPolicy; Push -->|over| ZeroJudge --> END; "
    )

    def behind(box: str) -> str:
        lit = f"document.querySelector('.editor [data-box={box}]')?.classList.contains('lit')"
        return f"{place} === 'Nodes a click puts one behind {box}' && {lit}"

    with serve("agent.mmd") as url:
        async with page(tmp_path / "profile", url) as opened:

            async def put(node: str) -> None:
                await opened.run(
                    f"[...document.querySelectorAll('.palette button')].find((one) => one.textContent === '{node}').click()"
                )

            async def choose(part: str) -> None:
                await opened.run(
                    f"document.querySelector('.editor [{part}]').dispatchEvent(new MouseEvent('click', {{bubbles: true}}))"
                )

            await until(
                opened, "document.querySelectorAll('.palette li').length > 100 && document.querySelector('[data-box=Act]')"
            )
            assert await opened.run(place) == "Nodes a click puts one before the end"
            await put("ZeroJudge")
            await until(opened, f"{text} === {last!r} && {behind('ZeroJudge')}")
            await opened.run("document.querySelector('.palette li button').focus()")
            await press(opened, "Backspace")
            await until(opened, f"{text} === {first + 'END; '!r}")  # it is taken out, and what led to it leads on
            await press(opened, "z", ctrl=True)
            await until(opened, f"{text} === {last!r} && {behind('ZeroJudge')}")
            await opened.run("document.querySelector('.palette input').focus()")
            box = "document.querySelector('.editor [data-box=ZeroJudge]')"
            for kind in ("Pointer", "Mouse"):  # a press takes the focus from the search: the keys are for the box
                name = "pointerdown" if kind == "Pointer" else "click"
                await opened.run(f"{box}.dispatchEvent(new {kind}Event('{name}', {{bubbles: true, clientX: 1, clientY: 1}}))")
            await until(opened, f"document.activeElement === {box}")
            await press(opened, "ArrowLeft")
            await until(opened, behind("Act"))
            await press(opened, "ArrowRight", "Backspace")
            await until(opened, f"{text} === {first + 'END; '!r}")
            await press(opened, "z", ctrl=True)
            await until(opened, f"{text} === {last!r}")
            await choose("data-box=Act")  # two arrows leave it
            await until(opened, behind("Act"))
            await put("Push")
            await until(opened, f"{text} === {both!r} && {behind('Push')}")
            await opened.run("document.querySelector('.palette li button').focus()")
            await press(opened, "z", ctrl=True)
            await until(opened, f"{text} === {last!r} && {behind('Act')}")  # the choice is there again, too
            await press(opened, "Delete")  # labelled arrows leave it: they go with it
            await until(opened, f"{text} === {without!r} && {behind('ZeroJudge')}")
            await press(opened, "z", ctrl=True)
            await until(opened, f"{text} === {last!r} && {behind('Act')}")
            await choose("data-box=Choose")
            field = "document.querySelector('.editor form.ask input[type=number]')"
            await until(opened, f"{field} !== null")  # the settings of a node that is made by its name
            assert await opened.run(f"document.activeElement !== {field}"), "the keys stay with the picture"
            await opened.run(f"{field}.select()")
            await opened.run(f"{field}.focus()")
            await opened.ask("Input.insertText", text="0.5")
            await press(opened, "Enter")
            comment = '%% Choose {"temperature":0.5}'
            await until(opened, f"{text} === {last + comment + '; '!r}")
            await opened.run("document.querySelector('.palette li button').focus()")
            await press(opened, "z", ctrl=True)
            await until(opened, f"{text} === {last!r}")
            await choose("data-box=END")
            await until(opened, f"{place}.endsWith('before the end')")
            await choose("data-from=Act][data-to=ZeroJudge")
            await until(opened, f"{place}.endsWith('between Act and ZeroJudge')")
            await press(opened, "z", ctrl=True)
            await until(opened, f"{text} === {first + 'END; '!r} && {place}.endsWith('before the end')")
            await opened.run("document.querySelector('.code').shadowRoot.querySelector('.cm-content').focus()")
            await press(opened, "End", ctrl=True)
            await opened.ask("Input.insertText", text="  Choose --> END")
            await until(opened, "document.querySelector('.editor [data-from=Choose][data-to=END]') !== null")
            await put("ZeroJudge")
            said = "Click the box that ZeroJudge is to follow, or the arrow that it is to stand in: several lead to the end"
            await until(opened, f"{ALERT} === '{said} (Act to END (over); Choose to END).'")


async def test_what_the_mouse_puts_in_and_the_check_passes_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A label and a condition stay with their arrow; an arrow that the agent's model leads by itself takes no node."""
    monkeypatch.chdir(tmp_path)
    seen = list[int]()

    def resolve(how: Literal["refund", "replace"]) -> str:
        """Resolve the issue."""
        return f"{how}: arranged"

    def note(state: dict[str, Any]) -> dict[str, Any]:
        seen.append(len(state["messages"]))
        return {"messages": []}

    agent = create_agent(HeedfulToolModel(seed=3), [resolve])
    text, inputs = to_mermaid(agent), learngraph.MethodInputs(environment=learngraph.open_environment("toy"))
    noted = rewire(agent, text.replace("START -->", "START --> note -->"), note=note)
    drawing = Drawing("agent", tmp_path / "agent.mmd", text, noted, lambda: inputs)
    shown = drawing.check(text)["graph"]
    edges = shown["edges"]
    assert [box.get("role") for box in shown["nodes"]] == [None, "model", "environment", None]
    put = f"""import("./edit_text.js").then((edit) => {{
      const text = {json.dumps(text)}, edges = {json.dumps(edges)};
      const attempt = (change) => {{ try {{ return change(); }} catch (error) {{ return String(error); }} }};
      return ["note", "Consult", "ZeroJudge"].flatMap((name) => [
        ...["START", "model", "tools"].map((box) => attempt(() => edit.putBehind(text, name, box, edges))),
        ...edges.map((edge) => attempt(() => edit.putInto(text, name, edge, edges)))]);
    }})"""
    with serve("agent.mmd") as url:
        async with page(tmp_path / "profile", url) as opened:
            made = await opened.run(put)
    refused = [one for one in made if one.startswith("Error: 'model' leads to")]
    assert (len(made), len(refused)) == (21, 9)
    assert all("START to model; tools to model (model)" in one for one in refused)
    passed = [one for one in made if one not in refused and not drawing.check(one)["findings"]]
    assert ["|model|" in one for one in passed] == [True] * 4  # the catalogue's two read what nothing here writes
    for one in passed:
        assert len(rewire(noted, one).invoke({"messages": "It broke."})["messages"]) == 4
    assert seen == [1, 3, 1, 3]


async def test_a_box_with_an_arrow_to_itself_is_taken_away_but_not_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page looked for its place for ever."""
    monkeypatch.chdir(tmp_path)
    edits = """import("./edit_text.js").then((edit) => {
      const text = `flowchart LR
  a [Look]
  START --> a
  a --> a
  b --> END
`, edges = [["START", "a"], ["a", "a"], ["b", "END"]].map(([source, target]) => ({ source, target, label: "" }));
      const attempt = (change) => { try { return change(); } catch (error) { return String(error); } };
      return [edit.removeBox(text, "a", edges), attempt(() => edit.moveInto(text, "a", edges[2], edges))];
    })"""
    with serve("agent.mmd") as url:
        async with page(tmp_path / "profile", url) as opened:
            removed, refused = await opened.run(edits)
    assert removed == "flowchart LR\n  b --> END\n"
    assert refused.startswith("Error: 'a' cannot be taken out of its place here")


AGENT = """
from typing import Annotated, Literal
from pydantic import Field
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from learngraph.tools.models.random_tools import HeedfulToolModel
def resolve(how: Literal["refund", "replace"], days: Annotated[int, Field(ge=3, le=3)]) -> str:
    'Resolve the issue.'
    return f"{how}: arranged"
graph = create_agent(HeedfulToolModel(seed=3), [resolve], middleware=[HumanInTheLoopMiddleware({"resolve": True})])
"""


async def test_an_agent_is_talked_to_and_its_call_approved_with_another_argument(app_folder: Path) -> None:
    (app_folder / "my_browser_desk.py").write_text(AGENT)
    said = "[...document.querySelectorAll('.chat .said')].map((one) => one.innerText.replace(/\\s+/g, ' '))"

    with serve("./my_browser_desk.py:graph") as url:
        async with page(app_folder / "profile", url) as opened:
            await opened.run("location.hash = 'walk'")
            await until(opened, "document.querySelector('.chat textarea') !== null")
            await say(opened, "It arrived broken.")
            fields = "document.querySelectorAll('form.ask select, form.ask textarea').length"
            await until(opened, f"{fields} === 1 && {said}.length === 2")  # an argument that is approved is not typed
            asked = await opened.run("document.querySelector('form.ask').textContent")
            assert "HumanInTheLoopMiddleware.after_model asks: " in asked
            parts = "[...document.querySelectorAll('.run .picture, .chat, form.ask')].map((one) => one.getBoundingClientRect().bottom)"
            assert await opened.run(f"{parts}.every((bottom) => bottom < 700)"), "nothing is pushed out of sight"
            await opened.run(choose("type", "reject"))
            await until(opened, "document.querySelector('form.ask textarea') !== null")
            await opened.run(choose("type", "edit"))
            await until(opened, "document.querySelectorAll('form.ask select').length === 2")
            first = await opened.run("document.querySelectorAll('form.ask select')[1].value")
            other = {"refund": "replace", "replace": "refund"}[first]
            assert await opened.run(said) == ["human It arrived broken.", f"ai resolve(how='{first}', days=3)"]
            await opened.run(choose("how", other))
            days = "document.querySelector('form.ask input[type=number]')"
            for text in ("", "3"):  # an argument that is required is asked for, and nothing is sent
                await opened.run(f"{days}.value = '{text}'; {days}.dispatchEvent(new Event('input', {{ bubbles: true }}))")
                await until(opened, f"{days}.validationMessage === '{'' if text else 'days is required'}'")
                await opened.run("document.querySelector('form.ask button.main').click()")
            await until(opened, f"{said}.length === 2 && document.querySelector('form.ask') === null || {said}.length > 2")
            await opened.run(f"{tool('Finish')}.click()")
            await until(opened, f"{said}.length === 4")
            told = await opened.run(said)
            assert (told[2].endswith(f"{other}: arranged"), told[3]) == (True, "ai It is done.")
            await until(opened, "!document.querySelector('.chat textarea').disabled")
            await say(opened, "And my lamp?")
            await until(opened, f"{said}.length === 6 && document.querySelectorAll('.forks li').length === 2")
            state = "[...document.querySelectorAll('.run h3')].find((one) => one.textContent.startsWith('State')).parentNode"
            column = "(({ parentNode: { children } }) => [children[0].querySelector('.picture') !== null, [...children].at(-1) === card])"
            assert await opened.run(f"((card) => {column}(card))({state})") == [True, True], "the state ends the graph's column"
            cancel = "[...document.querySelectorAll('.stage form button')].find((one) => one.textContent === 'Cancel')"
            for button, is_open in ((tool("New run"), True), (cancel, False)):
                await opened.run(f"{button}.click()")
                shown = "[...document.querySelectorAll('.stage form p')].some((one) => one.textContent === 'Input of the run')"
                await until(opened, f"{shown} === {str(is_open).lower()}")
                assert await opened.run("document.querySelector('.chat').checkVisibility()") is not is_open, (
                    "one place to type in"
                )


KEPT = f"""{AGENT}
import sqlite3
from langgraph.checkpoint.sqlite import SqliteSaver
graph.checkpointer = SqliteSaver(sqlite3.connect("kept.sqlite", check_same_thread=False))
"""


async def test_a_thread_that_the_checkpointer_has_kept_is_opened_after_a_restart(app_folder: Path) -> None:
    (app_folder / "my_kept_desk.py").write_text(KEPT)
    said, form = "document.querySelectorAll('.chat .said').length", "document.querySelector('form.ask')"
    studio, again = (open_studio(StudioOptions("./my_kept_desk.py:graph")) for _ in range(2))
    with serve(studio) as url:
        async with page(app_folder / "profile", url) as opened:
            await until(opened, "document.querySelector('.chat textarea') !== null")
            await say(opened, "It arrived broken.")
            await until(opened, f"{said} === 2 && {form} !== null")
            vars(studio).update(vars(again))  # as another process at the same address, with the same key
            await until(opened, f"{ALERT}.includes('has kept thread studio-')")
            await until(opened, f"{said} === 0 && {form} === null")
            await opened.run("document.querySelector('[role=alert] button').click()")
            await until(opened, f"{ALERT} === '' && {said} === 2 && {form} !== null")  # what waits is asked again
            await opened.run(choose("type", "approve"))
            await until(opened, f"{form}.checkValidity()")
            await opened.run(f"{form}.querySelector('button.main').click()")
            await until(opened, f"{said} === 4 && {form} === null")  # and the turn goes on to its end
            await opened.run("document.querySelector('.menu').open = true")
            await until(opened, "document.querySelectorAll('.menu p').length === 1")
            lost = "document.querySelector('.menu input').value = 'lost'; document.querySelector('.menu form button').click()"
            await opened.run(lost)
            await until(opened, f"{ALERT} === \"the checkpointer holds nothing of thread_id 'lost'close\"")


TALKER = """
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
call = {"name": "look", "args": {"where": "in the drawer " * 9}, "id": "1"}
answer = AIMessage(WORDS, tool_calls=[call, {"name": "wait", "args": {}, "id": "2"}])
graph = StateGraph(MessagesState).add_node("talk", lambda state: {"messages": answer}).add_edge(START, "talk").compile()
"""
WORDS = """## Plan
A **bold** word, *one* `code **not bold**` and <img src=x onerror="document.title='hacked'">.
- first [page](https://example.org/a_b)
  - `inner`
- [no link](javascript:alert(1))

3. three
4. four

```python
print("**")
```
snake_case_stays 2*3*4, https://example.org/x?y=1.
> a **said** thing
> - and a list

| room | n |
|:-----|--:|
| hall \\| attic | `1` |
| one cell |

a | b is no table"""
READ = "[...document.querySelector('.chat .said.ai').children].map((one) => one.outerHTML).join('')"


async def test_a_models_markdown_is_shown_and_its_tags_stay_text(app_folder: Path) -> None:
    (app_folder / "my_talker.py").write_text(TALKER.replace("WORDS", repr(WORDS)))
    with serve("./my_talker.py:graph") as url:
        async with page(app_folder / "profile", url) as opened:
            await opened.run("location.hash = 'walk'")
            await until(opened, "document.querySelector('.chat textarea') !== null")
            await say(opened, "**Hm**")
            await until(opened, "document.querySelectorAll('.chat .said').length === 2")
            shown = await opened.run(READ)
            for long in (
                "'*a* '.repeat(20_000)",
                "'>'.repeat(10_000)",
                "'- '.repeat(10_000) + 'a'",
                "'a|b\\n' + ' '.repeat(100_000) + 'x'",
            ):
                assert await opened.run(f"import('./markdown.js').then((made) => made.markdown({long}).length)") == 1
            assert await opened.run("document.querySelector('.said.human span').textContent") == "**Hm**"
            assert (
                await opened.run("document.title.includes('hacked') || document.querySelector('.said img') !== null") is False
            )
    assert shown == (
        '<b class="from">ai</b><p><strong>Plan</strong></p><p>A <strong>bold</strong> word, <em>one</em> <code>code **not bold**</code> '
        "and &lt;img src=x onerror=\"document.title='hacked'\"&gt;.</p>"
        '<ul><li><p>first <a href="https://example.org/a_b" target="_blank" rel="noopener noreferrer">page</a></p>'
        "<ul><li><p><code>inner</code></p></li></ul></li><li><p>[no link](javascript:alert(1))</p></li></ul>"
        '<ol start="3"><li><p>three</p></li><li><p>four</p></li></ol><pre>print("**")</pre><p>snake_case_stays 2*3*4, <a href="https://example.org/x?y=1" '
        'target="_blank" rel="noopener noreferrer">https://example.org/x?y=1</a>.</p>'
        "<blockquote><p>a <strong>said</strong> thing</p><ul><li><p>and a list</p></li></ul></blockquote>"
        '<div class="scroll"><table><thead><tr><th>room</th><th>n</th></tr></thead><tbody><tr><td>hall | attic</td><td><code>1</code></td></tr>'
        "<tr><td>one cell</td><td></td></tr></tbody></table></div><p>a | b is no table</p>"
        f"""<code class="calls">look(where='{"in the drawer " * 9}')</code><code class="calls">wait()</code>"""
    )


async def test_the_page_goes_on_when_the_studio_answers_again(app_folder: Path) -> None:
    """Another process at the same address, with the same key: its walk is shown, and no banner of the time between."""
    (app_folder / "my_named.py").write_text(NAMED)
    lost = f"{ALERT}.startsWith('The studio does not answer')"
    with serve("./my_named.py:graph", input='{"name": "Ann"}') as url:
        async with page(app_folder / "profile", url) as opened:
            await opened.run("location.hash = 'walk'")
            await until(opened, f"{LIT} === 'greet'")
            await opened.run("globalThis.asks = fetch; fetch = () => Promise.reject(new TypeError('lost'))")
            await until(opened, lost)
            await opened.run("fetch = asks")
            await until(opened, f"{ALERT} === ''")


ASKERS = """
import operator
from typing import Annotated, TypedDict
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
class Log(TypedDict):
    log: Annotated[list[str], operator.add]
review = {"action_requests": [{"name": "pay", "args": {"amount": 3}}],
          "review_configs": [{"action_name": "pay", "allowed_decisions": ["approve", "reject"]}]}
builder = StateGraph(Log)
for name, asked in {"many": {"question": "how many?", "most": 3}, "which": "which?", "pay": review}.items():
    builder.add_node(name, lambda state, name=name, asked=asked: {"log": [f"{name} {interrupt(asked)}"]})
    builder.add_edge(START, name)
builder.add_node("after", lambda state: {"log": [open("gate").read()]}).add_edge(["many", "which", "pay"], "after")
graph = builder.compile()
"""


async def test_questions_have_a_form_each_and_an_answer_is_changed_while_others_are_open(app_folder: Path) -> None:
    (app_folder / "my_askers.py").write_text(ASKERS)
    os.mkfifo("gate")  # the node behind the questions runs until the test writes into it
    titles = "[...document.querySelectorAll('form.ask > p')].map((one) => one.textContent).join('; ')"
    answered = "[...document.querySelectorAll('.answered')].map((one) => one.textContent).join('; ')"

    def form(node: str) -> str:
        return f"[...document.querySelectorAll('form.ask')].find((one) => one.textContent.startsWith('{node}'))"

    with serve("./my_askers.py:graph", input='{"log": []}') as url:
        async with page(app_folder / "profile", url) as opened:
            await opened.run("location.hash = 'walk'")
            await until(opened, f"{LIT} !== ''")
            await press(opened, "e")
            await until(opened, f"{titles} === 'many asks: how many?; which asks: which?; pay asks: pay'")
            said = await opened.run(f"{form('many')}.textContent")
            assert (said.count("how many?"), said.count("most")) == (1, 1)
            await until(opened, f"document.activeElement === {form('many')}.querySelector('textarea')")
            await opened.ask("Input.insertText", text="2 or so")  # not sent yet
            await opened.run(f"{form('which')}.querySelector('textarea').focus()")
            await opened.ask("Input.insertText", text="red")
            await press(opened, "Enter")
            await until(opened, f"{answered} === 'which asks: which? red Change' && {form('which')} === undefined")
            assert await opened.run(f"{form('many')}.querySelector('textarea').value") == "2 or so"
            await opened.run("document.querySelector('.answered button').click()")
            await until(
                opened, f"{form('which')} !== undefined && document.activeElement === {form('which')}.querySelector('textarea')"
            )
            await opened.run("document.activeElement.select()")
            await opened.ask("Input.insertText", text="blue")
            await press(opened, "Enter")
            await until(opened, f"{answered} === 'which asks: which? blue Change'")
            await opened.run(f"{form('pay')}.querySelector('button.main').click()")
            assert await opened.run(f"{form('pay')}.querySelector('select').validationMessage") == "type is required"
            await opened.run(choose("type", "approve"))
            await until(opened, f"{form('pay')}.querySelector('select').validationMessage === ''")
            await opened.run(f"{form('pay')}.querySelector('button.main').click()")
            await until(opened, f"{titles} === 'many asks: how many?'")
            await opened.run(f"{form('many')}.querySelector('textarea').focus()")
            await opened.run(f"{form('many')}.querySelector('button.main').click()")
            await until(opened, "document.querySelector('form.ask')?.closest('[hidden]') != null")  # while the run goes on
            await asyncio.to_thread(Path("gate").write_text, "went on")
            await until(opened, f"document.querySelector('form.ask') === null && {COLUMNS}.includes('many 2 or so')")
            assert "went on" in await opened.run(COLUMNS)
            assert "'approve'" in await opened.run(COLUMNS)


NAMED = """
from typing import NotRequired
from typing_extensions import TypedDict
from langgraph.graph import START, StateGraph
class Named(TypedDict):
    name: str
    number: NotRequired[int]
class State(Named):
    answer: str
builder = StateGraph(State, input_schema=Named).add_node("greet", lambda state: {"answer": str(state)}).add_edge(START, "greet")
graph = builder.compile()
"""


async def test_a_field_that_is_required_and_left_empty_is_asked_for_before_a_run_begins(app_folder: Path) -> None:
    (app_folder / "my_named.py").write_text(NAMED)
    with serve("./my_named.py:graph") as url:
        async with page(app_folder / "profile", url) as opened:
            await opened.run("location.hash = 'walk'")
            await until(opened, "document.querySelector('form.ask textarea') !== null")
            await opened.run("document.querySelector('form.ask button.main').click()")
            empty = "[...document.querySelectorAll('form.ask :is(input, textarea):invalid')].map((one) => one.id.split('-')[1]).join()"
            assert (await opened.run(empty), await opened.run(LIT)) == ("name", "")
            await opened.run("document.querySelector('form.ask input[type=number]').focus()")
            await opened.ask("Input.insertText", text="3")
            await press(opened, "Backspace")  # a number that is emptied is not given
            await opened.run("document.querySelector('form.ask textarea').focus()")
            await opened.ask("Input.insertText", text="Ann")
            await press(opened, "Enter")
            await until(opened, f"{LIT} === 'greet' && {ALERT} === ''")


async def test_a_live_walk_leaves_a_step_of_a_recorded_run(tmp_path: Path) -> None:
    with serve(str(play_run(tmp_path / "mine", episodes=2))) as url:
        async with page(tmp_path / "profile", url) as opened:
            await until(opened, "document.querySelector('svg.spark')?.getBoundingClientRect().width === 90")
            await opened.run("location.hash = 'run/0/jitrl-s0'")
            walk_on = "[...document.querySelectorAll('button')].find((one) => one.textContent === 'Walk on from here')"
            await until(opened, f"{walk_on} !== undefined")
            await press(opened, "ArrowLeft", "ArrowLeft")
            await until(opened, f"{COLUMNS}.includes('step 13:') && {walk_on} !== undefined")
            await opened.run(f"{walk_on}.click()")
            await until(opened, f"location.hash === '#walk' && {LIT} === 'act'")
            head = "jitrl, seed 0, walked on from episode 1, step 13"
            await until(opened, f"document.querySelector('.run h2')?.textContent === {head!r}")
            await until(opened, "document.querySelector('.forks')?.textContent.includes('jitrl-s0, episode 1, step 13')")
            await press(opened, "f")
            await until(opened, "document.querySelectorAll('.forks li').length === 2")
            await press(opened, "s")
            await until(opened, f"{LIT} === 'recall'")


async def test_of_a_thousand_steps_only_rows_in_sight_are_in_the_page(tmp_path: Path) -> None:
    folder = write_long_run(tmp_path / "long", 1000)
    with serve(str(folder)) as url:
        async with page(tmp_path / "profile", url) as opened:
            await opened.ask("Page.navigate", url=f"{url.partition('#')[0]}#run/0/jitrl-s0")
            await until(opened, f"document.querySelector('.bars') !== null && {ROWS}.length > 5")
            assert await opened.run(f"{ROWS}.length") < 40
            assert await opened.run("document.querySelector('[aria-label=steps] .row').getAttribute('aria-setsize')") == "1000"
            await opened.run("document.querySelector('[aria-label=steps]').focus()")
            await press(opened, "Home")
            await until(opened, "document.querySelector('[aria-label=steps] [aria-selected=true] .number').textContent === '0'")
            await until(opened, f"{ROWS}[0] === 'go north'")


async def test_a_run_that_is_being_written_is_followed_and_a_damaged_one_says_so(tmp_path: Path) -> None:
    here = write_settings(tmp_path / "growing") / "jitrl-s0"
    here.mkdir()
    journal = Journal(here / "steps.jsonl")
    head = write_steps(journal, 0, 3, over=False)
    with serve(str(tmp_path / "growing")) as url:
        async with page(tmp_path / "profile", url) as opened:
            await until(opened, "document.querySelector('table.runs') !== null")
            await opened.run("document.querySelector('table.runs button').click()")
            await until(opened, f"{ROWS}.length === 3")
            head = write_steps(journal, 0, 2, over=False, head=head, first=3)
            await until(opened, f"{ROWS}.length === 5 && {COLUMNS}.includes('step 4')")
            await press(opened, "ArrowLeft")  # who looks at an earlier step stays there
            await until(opened, f"{COLUMNS}.includes('step 3:')")
            write_steps(journal, 0, 1, head=head, first=5)
            with (here / "steps.jsonl").open("ab") as file:
                file.write(b"damaged\n")
            await until(opened, f"{ROWS}.length === 6")
            assert await opened.run(f"{COLUMNS}.includes('step 3:')")
            told = "document.querySelector('.note.warn')?.textContent.includes('1 lines of jitrl-s0/steps.jsonl are damaged')"
            await until(opened, told)


async def test_two_tabs_see_one_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with serve("jitrl", episodes=0) as url:
        async with page(tmp_path / "one", url) as one, page(tmp_path / "two", url) as two:
            for tab in (one, two):
                await until(tab, f"{LIT} === 'begin'")
            await press(one, "s")
            await until(two, f"{LIT} === 'recall'")  # it follows by itself
            await asyncio.gather(press(one, "s"), press(two, "s"))  # both at once: one step, or two, and never a crash
            for tab in (one, two):
                await until(tab, f"{LIT} === 'propose' || {LIT} === 'augment'")
            async with asyncio.timeout(PATIENCE):
                while await one.run(LIT) != await two.run(LIT):
                    await let_others_run()
            # A tab that is behind is told, and stays at the walk that it looks at.
            chosen = "document.querySelector('.forks button[aria-pressed=true]').textContent.split(' before')[0]"
            await two.run(HOLD.replace("NAME", "overview"))
            await until(two, "held.length > 0")
            before = await one.run(LIT)
            await press(one, "s")
            await until(one, f"{LIT} !== {before!r} && document.querySelector('.run').getAttribute('aria-busy') === 'false'")
            await press(one, "f")
            await until(one, f"{chosen} === 'what-if 1'")
            await two.run("fetch = asks")
            await press(two, "s")
            await until(two, f"{ALERT}.includes('another tab has moved this walk on')")
            await until(two, f"document.querySelectorAll('.forks button').length === 2 && {LIT} === {await one.run(LIT)!r}")
            assert await two.run(chosen) == "run 1"


async def test_without_the_key_the_page_says_what_to_do(tmp_path: Path) -> None:
    folder = write_long_run(tmp_path / "short", 3)
    with serve(str(folder)) as url:
        async with browser.Browser.open() as opened:
            await opened.go(url.partition("#")[0])
            await until(opened, f"{ALERT}.includes('open the link that `learngraph studio` has printed')")


async def test_texts_of_strangers_stay_texts(tmp_path: Path) -> None:
    hostile = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"
    folder = write_long_run(tmp_path / "run", 2)
    path = folder / "jitrl-s0" / "steps.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row |= {"action": hostile, "state": hostile}
        row["candidates"][0]["action"] = hostile
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serve(str(folder)) as url:
        async with page(tmp_path / "profile", f"{url}") as opened:
            await opened.run("location.hash = 'run/0/jitrl-s0'")
            await until(opened, "document.querySelector('.bars') !== null")
            assert await opened.run("document.querySelector('img, main script')") is None
            assert "hacked" not in await opened.run("document.title")
            assert await opened.run("document.querySelector('.bars').textContent.includes('<img')")


@asynccontextmanager
async def widget_page(
    shown: StudioView, profile: Path
) -> AsyncIterator[tuple[browser.Browser, Callable[[str], Awaitable[None]]]]:
    """The widget's module in an empty page; and a wait for a condition, while which the kernel answers what the widget asks."""
    async with browser.Browser.open() as opened:
        await opened.go("data:text/html,<body><div id=here></div></body>")
        script = """(async () => {
          const module = await import(URL.createObjectURL(new Blob([%s], { type: "text/javascript" })));
          const model = { listeners: [], asked: [], get: () => %s, on(name, heard) { this.listeners.push(heard); }, send(message) { this.asked.push(message); } };
          globalThis.model = model;
          module.default.render({ model, el: document.getElementById("here") });
        })()"""
        await opened.run(script % (json.dumps(widget_module()), json.dumps(shown.view)))

        async def answer_until(condition: str) -> None:
            async with asyncio.timeout(PATIENCE):
                while not await opened.run(condition):
                    for message in json.loads(await opened.run("JSON.stringify(model.asked.splice(0))")):
                        answer = json.dumps(shown.answer(message))
                        await opened.run(f"model.listeners.forEach((heard) => heard({answer}))")
                    await let_others_run()

        yield opened, answer_until


NOTEBOOK = """document.body.insertAdjacentHTML("beforeend", "<div id=nextCell tabindex=-1></div>");
addEventListener("keypress", (event) => event.key === "Enter" && event.preventDefault());
addEventListener("focusout", ({ relatedTarget }) => relatedTarget ?? nextCell.focus());"""
"""As JupyterLab does: Enter submits no form, and where an element with the focus is taken away, a cell of the notebook has it."""


async def test_the_widget_shows_a_run_and_asks_its_kernel(tmp_path: Path) -> None:
    shown = studio_view(play_run(tmp_path / "mine", episodes=1))
    async with widget_page(shown, tmp_path / "profile") as (opened, answer_until):
        await answer_until("document.querySelector('.bars') !== null")
        assert await opened.run(LIT) == "act"
        assert opened.complaints == []


async def test_keys_stay_in_the_widget_and_it_follows_python(tmp_path: Path) -> None:
    """In JupyterLab a key that leaves the widget is a command of the notebook: `d d` deletes the cell."""
    world = learngraph.open_environment("toy")
    agent = learngraph.jitrl.build(learngraph.MethodInputs(environment=world), checkpointer=InMemorySaver(serde=serializer()))
    walk = learngraph.step(agent, {"task": world.task(0), "run": "demo", "episode": 0})
    shown = studio_view(walk)
    async with widget_page(shown, tmp_path / "profile") as (opened, answer_until):
        await answer_until(f"{LIT} === 'begin'")
        await opened.run(NOTEBOOK)
        await opened.run("document.querySelector('.toolbar button.main').focus(); document.activeElement.click()")
        await answer_until(f"{LIT} === 'recall'")
        assert walk.next == ("recall",)
        inside = "document.activeElement === document.querySelector('section.run')"
        await answer_until(inside)
        walk.step()
        await answer_until(f"{LIT} === 'propose'")
        await press(opened, "f")
        await answer_until("document.querySelectorAll('.forks li').length === 2")
        await opened.run("document.querySelector('.pen').focus(); document.activeElement.click()")
        await answer_until("document.activeElement.closest('form.ask') !== null")
        # JupyterLab asks the element with the focus for this mark, and its parents too late.
        assert await opened.run("document.querySelector('section.run').hasAttribute('data-lm-suppress-shortcuts')")
        await press(opened, "Escape")
        await answer_until(f"document.querySelector('form.ask') === null && {inside}")
        for n, value in enumerate((7, 78), start=1):  # Enter writes, and the next key is the walk's again
            await opened.run("document.querySelector('[aria-label=\"edit score\"]').click()")
            await answer_until("document.activeElement.type === 'number'")
            await opened.ask("Input.insertText", text=str(value)[-1])  # behind what stands there
            await press(opened, "Enter")
            await answer_until(f"{ROWS}.filter((one) => one === 'edit').length === {n}")
            await answer_until(inside)
            assert shown.walks["what-if 1"].state["score"] == value
        await opened.run("document.querySelector('[aria-label=\"edit score\"]').click()")
        await answer_until("document.activeElement.type === 'number'")
        await opened.ask("Input.insertText", text="9")  # is not lost without a word by what moves the walk, or leaves the field
        for leave in (
            tool("Step"),
            "document.querySelector('[aria-label=\"edit step\"]')",
            "document.querySelector('.forks button')",
        ):
            await opened.run(f"{leave}.click()")
            await answer_until(f"{ALERT}.includes('typed for score')")
            await opened.run("document.querySelector('[role=alert] button.plain').click()")
            await answer_until(f"{ALERT} === ''")
        assert shown.walks["what-if 1"].next == ("propose",)
        await opened.run("document.querySelector('[aria-label=moments] .row').click()")
        await answer_until("document.querySelector('form.ask') === null")
        await opened.run("document.querySelector('[aria-label=moments] .row:last-child').click()")
        await answer_until("document.querySelector('form.ask input')?.value === '789'")
        await opened.run(f"{tool('Step')}.click()")
        await answer_until(f"{ALERT}.includes('typed for score')")
        await opened.run("document.querySelector('[role=alert] button.main').click()")
        await answer_until(f"{LIT} === 'augment' && document.querySelector('form.ask') === null")
        await press(opened, "?")
        await answer_until("document.querySelector('dialog[open]')?.textContent.includes('step over')")
        assert shown.walks["what-if 1"].step().next == ("advise",)
        assert walk.next == ("propose",)


REVIEW = {
    "action_requests": [{"name": "pay", "args": {}}],
    "review_configs": [{"action_name": "pay", "allowed_decisions": ["approve"]}],
}
APPROVED = {"decisions": [{"type": "approve", "message": "", "edited_action": {"name": "pay", "args": {}}}]}


@pytest.mark.parametrize(("question", "answer"), [pytest.param("really?", "yes", marks=pytest.mark.long), (REVIEW, APPROVED)])
async def test_the_widget_takes_the_focus_for_a_question_only_where_the_user_works_in_it(
    tmp_path: Path, question: Any, answer: Any
) -> None:
    """Or the key that a user presses next in a cell of the notebook would answer, with nothing."""
    builder = (
        StateGraph(MessagesState)
        .add_node("plan", lambda state: {})
        .add_node("ask", lambda state: given.append(interrupt(question)))
    )
    builder.add_edge(START, "plan").add_edge("plan", "ask")
    given, begin = list[Any](), cast(Any, {"messages": []})
    walk = learngraph.step(builder.compile(checkpointer=InMemorySaver()), begin)
    cell, form = "document.activeElement.id === 'cell'", "document.querySelector('form.ask select, form.ask textarea')"
    async with widget_page(studio_view(walk), tmp_path / "profile") as (opened, answer_until):
        await answer_until(f"{LIT} === 'plan'")
        await opened.run("document.body.insertAdjacentHTML('beforeend', '<textarea id=cell></textarea>'); cell.focus()")
        walk.finish()
        await answer_until(f"{form}?.closest('[hidden]') === null")
        await opened.run("new Promise(requestAnimationFrame)")
        assert await opened.run(cell)
        walk.back()
        await answer_until(f"{form} === null && {LIT} === 'plan'")
        await opened.run(f"{tool('Finish')}.focus()")
        await press(opened, "Enter")
        await opened.run("cell.focus()")  # the user goes on in the notebook meanwhile
        await answer_until(f"{form}?.closest('[hidden]') === null")
        await opened.run("new Promise(requestAnimationFrame)")
        assert await opened.run(cell)
        await opened.run(f"{tool('Back')}.focus()")
        await press(opened, "Enter")
        await answer_until(f"{form} === null && document.activeElement === document.querySelector('section.run')")
        await press(opened, "e")
        await answer_until(f"{form} !== null && document.activeElement === {form}")
        await press(opened, "Enter")
        assert await opened.run("model.asked.every((one) => one.name !== 'act')")
        if question != REVIEW:
            await opened.ask("Input.insertText", text="yes")
        await press(opened, "Enter", ctrl=True)
        await answer_until(f"{form} === null")
        assert given == [answer]


async def test_the_view_says_that_another_studio_has_forgotten_the_runs_before(tmp_path: Path) -> None:
    def show() -> StudioView:
        builder = StateGraph(MessagesState).add_node("plan", lambda state: {}).add_edge(START, "plan")
        return studio_view(learngraph.step(builder.compile(checkpointer=InMemorySaver()), cast(Any, {"messages": []})))

    shown = show()
    async with widget_page(shown, tmp_path / "profile") as (opened, answer_until):
        await answer_until(f"{LIT} === 'plan'")
        await opened.run("document.querySelector('section.run').focus()")
        await press(opened, "f")
        await answer_until("document.querySelectorAll('.forks li').length === 2")
        await press(opened, "s")
        await answer_until("document.querySelector('.end.lit') !== null")
        await press(opened, "d")
        await answer_until(f"{ALERT}.startsWith('Drop forgets what-if 1')")
        shown.studio = show().studio
        await answer_until(f"{ALERT}.startsWith('The studio was started anew: the runs and what was said before are gone.')")
        await answer_until("document.querySelectorAll('[role=alert]').length === 1")  # and so is what was asked about them
