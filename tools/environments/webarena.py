"""WebArena (Zhou et al., 2023, arXiv:2307.13854) through BrowserGym: an adapter. It has been tested with a stub of BrowserGym only.

WebArena's sites are servers of yours. Their addresses come from the environment variables that BrowserGym reads (`ADDRESSES`);
`pip install browsergym-webarena` brings the tasks and their official checks. `webarena:TASK_ID` is one task, 0 to 811.

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

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ...memory.errors import UserError
from ...memory.records import Observation, Task
from .browser import abstract_page, page_similarity
from .support.accessibility import AccessibleNode, page_text, read_ax_tree
from .support.arguments import check_actions, check_settings, check_split, check_step
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
TASKS = 812
_KINDS = ("click", "fill", "select", "press", "scroll", "goto", "back", "answer")


@dataclass
class _Episode:
    task: Task
    gym: Any
    nodes: tuple[AccessibleNode, ...] = ()
    log: PageLog = field(default_factory=PageLog)
    actions: tuple[str, ...] = ()
    shown: Observation | None = None


class WebArena(World):
    """A task of WebArena.

    Args:
        number: the task's number, 0 to 811.
        settings: none are known.
        horizon: number of steps after which an episode ends.
        make: makes BrowserGym's environment of a task number; None: BrowserGym's own.

    Raises:
        UserError: there is no such task, or the address of a site is not set.
    """

    free_text = _KINDS
    solved = 1.0

    def __init__(
        self,
        number: str,
        settings: Mapping[str, str] | None = None,
        horizon: int = 30,
        *,
        make: Callable[[int], Any] | None = None,
    ) -> None:
        check_settings(f"webarena:{number}:", settings or {}, ())
        if not (number.isascii() and number.isdecimal() and int(number) < TASKS):
            raise UserError(f"webarena has the tasks 0 to {TASKS - 1}, got {number!r}")
        missing = [name for name in ADDRESSES.values() if not os.environ.get(name)]
        if missing:
            raise UserError(
                f"webarena needs the addresses of its servers in environment variables; {', '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} not set (for example WA_SHOPPING=http://localhost:7770)"
            )
        super().__init__(f"webarena:{number}", horizon)
        self._number = int(number)
        self._hosts = HostMap({label: os.environ[name] for label, name in ADDRESSES.items()})
        self._make = make or _make_gym
        self._thread: ThreadPoolExecutor | None = None
        self._episode: _Episode | None = None
        self._task: Task | None = None

    @property
    def state_similarity(self) -> Any:
        """How JitRL compares its states."""
        return page_similarity()

    def task(self, seed: int = 0, split: str = "test") -> Task:
        """The task; it is the same for every seed and split. The instruction is the goal that BrowserGym tells."""
        check_split(self.name, split)
        if self._task is None:
            begun: _Episode = self._run(self._begin, Task(f"webarena-{self._number}", "", self._number))
            self._task = begun.task
        return self._task

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The page after these actions. Only the running episode can be continued; anything else begins a new one."""
        check_actions(self.name, actions)
        shown: Observation = self._run(self._observe, task, tuple(actions))
        return shown

    def abstract(self, observation: Observation) -> str:
        """Kind of page, task, and what was done; see `browser.abstract_page`."""
        return abstract_page(observation.text)

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
            gym = self._make(self._number)
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
                url = self._hosts.resolve(action.text)
                if url is None:
                    raise ValueError(f"{action.text!r} is no page of {', '.join(self._hosts.sites)}")
                return f"goto({url!r})", action
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
        self,
        episode: _Episode,
        raw: Any,
        reward: float | None,
        *,
        over: bool,
        notice: str = "",
        taken: WebAction | None = None,
    ) -> Observation:
        episode.nodes = read_ax_tree(raw["axtree_object"])
        text = "the episode is over" if over else page_text(episode.nodes)
        kind = page_template(str(raw["url"]), self._hosts)
        text = episode.log.write(kind, episode.task.instruction, text, notice=notice, taken=taken)
        listed = () if over else tuple(sorted({*list_actions(episode.nodes, (), _KINDS), "back[]"}))
        return Observation(text, listed, reward, over)


def _make_gym(number: int) -> Any:
    try:
        import browsergym.webarena  # type: ignore[import-not-found]  # noqa: F401 (registers the tasks)
        import gymnasium  # type: ignore[import-not-found,unused-ignore]
    except ImportError as cause:
        raise UserError(f"webarena needs BrowserGym ({cause}): pip install browsergym-webarena") from cause
    return gymnasium.make(f"browsergym/webarena.{number}")


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
