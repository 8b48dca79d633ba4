"""WebArena (Zhou et al., 2023, arXiv:2307.13854) through BrowserGym: an adapter. It has been tested with a stub of BrowserGym only.

WebArena's sites are servers of yours. Their addresses come from the environment variables that BrowserGym reads (`ADDRESSES`);
`pip install browsergym-webarena` brings the tasks and their official checks, `browsergym-webarenalite` those of WebArena-Lite.

    webarena:SITE              the tasks that name a site, in the order of their numbers: 184 of shopping_admin, 204 of gitlab, 128 of map,
                               129 of reddit, 192 of shopping; a seed is a place in that order
    webarena:lite              the 165 tasks of WebArena-Lite; `webarena:lite?site=SITE`: those that name a site
    webarena:TASK_ID           one task, 0 to 811, for every seed

The tasks of a world share what a method remembers across tasks (`cross_task`): the memory of a site.

Observations, actions and memory are those of the other worlds in a browser (`browser.py`); BrowserGym has its own browser, whose
accessibility tree we read. Three things are done differently from agents that use it directly:

- **A check never touches the agent's page.** WebArena's checks open other addresses in the page that they are given. They get a page of
  their own, on the agent's address, which is closed afterwards; and they run once, when the agent has answered or the steps are used
  up (as WebArena's own runner does it), not after each action.
- **A check that fails is no success and no failure**: the reward is missing (None), and the observation says why.
- What an address is called comes from those variables, not from port numbers.

A site remembers what was done to it. So this world is no function of its history across episodes: reset the servers between runs, as
WebArena asks. A browser that dies ends the episode with an error; it is not replayed, for the site would see its actions twice.
"""

import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...memory.errors import UserError, did_you_mean
from ...memory.records import Observation, Task
from .browser import WebPages
from .support.accessibility import AccessibleNode, page_text, read_ax_tree
from .support.arguments import check_actions, check_settings, check_step, pick_task
from .support.page_templates import HostMap, page_template
from .support.web_actions import WebAction, element_action, find_node, list_actions, read_web_action
from .support.web_game import PageLog
from .support.worlds import World

__all__ = ["WebArena"]

ADDRESSES: Mapping[str, str] = {
    "shopping": "WA_SHOPPING",
    "shopping_admin": "WA_SHOPPING_ADMIN",
    "reddit": "WA_REDDIT",
    "gitlab": "WA_GITLAB",
    "wikipedia": "WA_WIKIPEDIA",
    "map": "WA_MAP",
    "homepage": "WA_HOMEPAGE",
}
"""Label of a site -> the environment variable with its address."""
SITES = tuple(name for name in ADDRESSES if name != "homepage")
TASKS = 812
_TASK_FILES: Mapping[str, tuple[str, str, str]] = {
    "webarena": ("webarena", "test.raw.json", "task_id"),
    "webarenalite": ("browsergym.webarenalite", "test_webarena_lite.raw.json", "old_task_id"),
}
"""BrowserGym's benchmark -> the package with its tasks, the file there, and the key of a task's number."""


@dataclass
class _Episode:
    task: Task
    gym: Any
    nodes: tuple[AccessibleNode, ...] = ()
    log: PageLog = field(default_factory=PageLog)
    actions: tuple[str, ...] = ()
    shown: Observation | None = None
    pixels: Any = None
    """The screenshot of the present page: height, width, and red, green and blue, as BrowserGym has it."""


class WebArena(WebPages, World):
    """The tasks of a site of WebArena, those of WebArena-Lite, or one task.

    Args:
        game: a site, `lite`, or a task's number.
        settings: `site` with `lite`.
        horizon: number of steps after which an episode ends.
        make: makes BrowserGym's environment of a task number; None: BrowserGym's own.

    Raises:
        UserError: there is no such site or task, the address of a site is not set, or the package with the tasks is missing.
    """

    solved = 1.0

    def __init__(
        self,
        game: str,
        settings: Mapping[str, str] | None = None,
        horizon: int = 30,
        *,
        make: Callable[[int], Any] | None = None,
    ) -> None:
        settings, is_lite = settings or {}, game == "lite"
        check_settings(f"webarena:{game}:", settings, ("site",) if is_lite else ())
        missing = [name for name in ADDRESSES.values() if not os.environ.get(name)]
        if missing:
            raise UserError(
                f"webarena needs the addresses of its servers in environment variables; {', '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} not set (for example WA_SHOPPING=http://localhost:7770)"
            )
        super().__init__(f"webarena:{game}" + "".join(f"?site={site}" for site in settings.values()), horizon)
        self._numbers = _read_numbers(game, settings.get("site", ""))
        self._hosts = HostMap({label: os.environ[name] for label, name in ADDRESSES.items()})
        self._make = make or (lambda number: _make_gym("webarenalite" if is_lite else "webarena", number))
        self._thread: ThreadPoolExecutor | None = None
        self._episode: _Episode | None = None
        self._tasks: dict[int, Task] = {}

    def task(self, seed: int = 0, split: str = "test") -> Task:
        """The `seed`-th task, of any split; a world of one task has it for every seed. The instruction is the goal that BrowserGym tells."""
        place = seed if len(self._numbers) > 1 else 0
        number = pick_task(self.name, dict.fromkeys(("train", "dev", "test"), self._numbers), split, place)
        if number not in self._tasks:
            begun: _Episode = self._run(self._begin, Task(f"webarena-{number}", "", number))
            self._tasks[number] = begun.task
        return self._tasks[number]

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The page after these actions. Only the running episode can be continued; anything else begins a new one."""
        check_actions(self.name, actions)
        shown: Observation = self._run(self._observe, task, tuple(actions))
        return shown

    def screenshot(self, task: Task, actions: Sequence[str]) -> bytes:
        """The page after these actions, as a PNG."""
        from PIL import Image  # type: ignore[import-not-found,unused-ignore]  # comes with BrowserGym

        self.observe(task, actions)
        assert self._episode is not None
        png = io.BytesIO()
        Image.fromarray(self._episode.pixels).save(png, "PNG")
        return png.getvalue()

    def optimum(self, task: Task) -> float:
        """The highest score, 1."""
        return self.solved

    def close(self) -> None:
        """End the episode and its browser."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.submit(self._end).result()
            thread.shutdown()

    def _run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do something in the one thread that BrowserGym's browser belongs to."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "webarena")
        return self._thread.submit(work, *arguments).result()

    def _end(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            episode.gym.close()

    def _begin(self, task: Task) -> _Episode:
        self._end()
        try:
            gym = self._make(task.seed)
            raw, _ = gym.reset()
        except UserError:
            raise
        except Exception as cause:
            raise UserError(f"{self.name}: the episode cannot begin: {type(cause).__name__}: {cause}") from cause
        _postpone_checks(gym)
        goal = " ".join(str(raw["goal"]).split())
        self._episode = _Episode(Task(task.id, goal, task.seed), gym)
        self._episode.shown = self._look(self._episode, raw, 0.0, over=False)
        return self._episode

    def _observe(self, task: Task, actions: tuple[str, ...]) -> Observation:
        episode = self._episode
        fits = episode is not None and episode.task.id == task.id and episode.actions == actions[: len(episode.actions)]
        if episode is None or not fits:
            episode = self._begin(task)
        for step in range(len(episode.actions), len(actions)):
            assert episode.shown is not None
            check_step(self.name, task, step, actions[step], over=episode.shown.over)
            episode.shown = self._step(episode, actions[step], is_last=step + 1 >= self.horizon)
            episode.actions = actions[: step + 1]
        assert episode.shown is not None
        return episode.shown

    def _step(self, episode: _Episode, text: str, is_last: bool) -> Observation:
        notice, action = "", None
        try:
            action = read_web_action(text)
            written, action = self._translate(episode, action)
        except ValueError as refusal:
            notice, written, action = f"refused: {refusal}", "noop(0)", None
        try:
            raw, _, _, _, _ = episode.gym.step(written)
        except Exception as cause:
            self._end()
            raise UserError(f"{self.name}: step {text!r} failed: {type(cause).__name__}: {cause}") from cause
        failed = str(raw.get("last_action_error") or "")
        if failed:
            notice, action = f"refused: {failed.splitlines()[0]}", None
        if is_last or (action is not None and action.kind == "answer"):
            return self._judge(episode, raw, notice)
        return self._look(episode, raw, 0.0, over=False, notice=notice, taken=action)

    def _translate(self, episode: _Episode, action: WebAction) -> tuple[str, WebAction]:
        """BrowserGym's spelling of an action, and the action with its element by role and name."""
        match action.kind:
            case "click" | "fill" | "select":
                node = find_node(action, episode.nodes)
                spelled = {"click": "click", "fill": "fill", "select": "select_option"}[action.kind]
                rest = "" if action.kind == "click" else f", {action.text!r}"
                return f"{spelled}({node.ref!r}{rest})", element_action(action.kind, node, action.text)
            case "press":
                return f"keyboard_press({action.text!r})", action
            case "scroll":
                return f"scroll(0, {-500 if action.text.lower() == 'up' else 500})", action
            case "back":
                return "go_back()", action
            case "goto":
                return f"goto({self._hosts.resolve(action.text)!r})", action
        return f"send_msg_to_user({action.text!r})", action

    def _judge(self, episode: _Episode, raw: Any, notice: str) -> Observation:
        """The end of an episode: WebArena's own check, on a page of its own."""
        try:
            score = _check(episode.gym)
        except Exception as cause:
            problem = f"the check has failed, the reward is unknown: {type(cause).__name__}: {cause}"
            return self._look(episode, raw, None, over=True, notice="; ".join(filter(None, (notice, problem))))
        return self._look(episode, raw, score, over=True, notice=notice)

    def _look(
        self, episode: _Episode, raw: Any, reward: float | None, *, over: bool, notice: str = "", taken: WebAction | None = None
    ) -> Observation:
        episode.nodes, episode.pixels = read_ax_tree(raw["axtree_object"]), raw.get("screenshot")
        text = "the episode is over" if over else page_text(episode.nodes)
        kind = page_template(str(raw["url"]), self._hosts)
        text = episode.log.write(kind, episode.task.instruction, text, notice=notice, taken=taken)
        listed = () if over else tuple(sorted({*list_actions(episode.nodes, ()), "back[]"}))
        return Observation(text, listed, reward, over)


def _read_numbers(game: str, site: str) -> tuple[int, ...]:
    """The numbers of a world's tasks, in their order."""
    if game.isascii() and game.isdecimal() and int(game) < TASKS:
        return (int(game),)
    named = site if game == "lite" else game
    if named not in (*SITES, "") or not game:
        raise UserError(
            f"webarena has the sites {', '.join(SITES)}, lite, and the tasks 0 to {TASKS - 1}, got {named!r}{did_you_mean(named, SITES)}"
        )
    package, file, key = _TASK_FILES["webarenalite" if game == "lite" else "webarena"]
    try:
        found = find_spec(package)
    except ModuleNotFoundError:  # the package around it is missing
        found = None
    if found is None:
        name = "browsergym-webarenalite" if game == "lite" else "browsergym-webarena"
        raise UserError(f"webarena:{game} needs the list of its tasks: pip install {name}")
    there = json.loads(Path(next(iter(found.submodule_search_locations or ())), file).read_text(encoding="utf-8"))
    return tuple(sorted(int(one[key]) for one in there if not named or named in one["sites"]))


def _make_gym(benchmark: str, number: int) -> Any:
    try:
        import_module(f"browsergym.{benchmark}")  # registers the tasks
        import gymnasium  # type: ignore[import-not-found,unused-ignore]
    except ImportError as cause:
        raise UserError(f"webarena needs BrowserGym ({cause}): pip install browsergym-{benchmark}") from cause
    return gymnasium.make(f"browsergym/{benchmark}.{number}")


def _postpone_checks(gym: Any) -> None:
    """Keep the task's check from running after every step, on the agent's page: `_check` runs it once."""
    task = gym.unwrapped.task
    task.check_of_benchmark = task.validate
    task.validate = lambda page, messages: (0.0, False, "", {})


def _check(gym: Any) -> float:
    """The official score of the answer that was given, from a page that is not the agent's."""
    inner = gym.unwrapped
    page = inner.context.new_page()
    try:
        page.goto(inner.page.url)
        score, *_ = inner.task.check_of_benchmark(page, inner.chat.messages)
    finally:
        page.close()
    return float(score)
