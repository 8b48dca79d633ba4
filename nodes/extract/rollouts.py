"""Rollouts: one attempt at a problem with the lessons of a library, played by any episode graph and kept in the cache.

    Task: reach the exit
    Lessons:                         a model that writes reads them, with their ids, in its system message
    - door black mist
    door black                       the running attempt
    > mist
    = 1
    gate wolf                        what the agent sees

`LibraryPart` writes the prompts of the default episode graph: the same in learning, in the accept test and in use.
`RolloutPlayer` plays an episode graph and makes a `Rollout` of the result: a record with all that a critic needs. A rollout that
fails (an error, no reward, out of time) is a `Rollout` too, with the reason.
"""

import asyncio
import logging
import math
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import asdict, dataclass, field
from threading import Thread
from typing import Annotated, Any, ClassVar, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.errors import GraphBubbleUp
from typing_extensions import TypedDict

from ...memory.errors import UserError
from ...memory.lessons.library import Library, LibraryError
from ...memory.lessons.versions import LibraryVersions
from ...memory.records import Lesson, Rollout, Task, Trajectory, Transition, Usage
from ...memory.storage.cache import Cache, CacheError, cache_key
from ...memory.storage.journal import Journal, JournalError
from ...memory.storage.rows import RowsError
from ..act.episode import Environment
from ..arguments import ArgumentCheck, Range
from ..cached_model import BudgetSpent, ConcurrencyLimit, SpendingLimit
from ..lesson_prompts import render_lessons, select_lessons
from ..prompt import Prompt
from ..retrieve.attempts import EpisodePrompt, Layout, PromptPart
from ..state import EpisodeInput, HeadChannel, LibraryChannels, ObservationChannel, TaskChannel
from .trim import trim_transcript

__all__ = ["LibraryPart", "PlayRollout", "RolloutPlayer", "RolloutSettings"]

_log = logging.getLogger(__name__)
_KEY = re.compile(r"sk-[\w-]{4,}")
"""An API key. Some servers repeat the key that they refuse, and error messages are written to files."""
RUN_ERRORS = (BudgetSpent, CacheError, RowsError, JournalError, LibraryError, GraphBubbleUp)
"""Errors that end the run, not the rollout alone."""


@dataclass(frozen=True)
class RolloutSettings(ArgumentCheck):
    """Settings of a rollout."""

    lessons_per_prompt: Annotated[int, Range(0)] = 0
    """Lessons in a prompt, those that fit the problem best; 0: all. Paper: all."""
    timeout: Annotated[float, Range(1e-3)] | None = None
    """Seconds that a rollout may take; None: any time. Reference code: 3600 whatever is set."""


class ShownLibrary(TaskChannel, ObservationChannel, HeadChannel, LibraryChannels):
    """The problem, where it stands, and the name of the library."""


@dataclass(frozen=True, kw_only=True)
class LibraryPart(PromptPart[ShownLibrary]):
    """The lessons of the episode's library."""

    versions: LibraryVersions
    lessons_per_prompt: int = 0
    """Lessons shown at most, those that fit the task best; 0: all."""
    show_ids: bool = True
    """Show lessons with their ids."""
    section: Prompt | None = None
    """The text around lessons in the system message, where they leave the rest of the prompt as it is; None: they stand before the steps."""

    _libraries: dict[str, Library] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Libraries by name. A version never changes."""

    def text(self, state: ShownLibrary, prompt: EpisodePrompt) -> str:
        """The lessons before the steps, where they do not stand in the system message."""
        lessons = self._lessons(state, prompt)
        return f"Lessons:\n{lessons}" if lessons and self.section is None else ""

    def _lessons(self, state: ShownLibrary, prompt: EpisodePrompt) -> str:
        """The lessons as text, the same at every step of an episode. If only some are shown, they are chosen by the task's
        instruction and its first observation."""
        name = state["library"]
        library = self._libraries.get(name)
        if library is None:
            library = self._libraries[name] = self.versions.at(name)
        return render_lessons(
            select_lessons(
                library,
                state["task"],
                _first_observation(state, prompt.journal) if self.lessons_per_prompt else "",
                self.lessons_per_prompt,
            ),
            self.show_ids,
        )

    def system_text(self, state: ShownLibrary, prompt: EpisodePrompt, text: str) -> str:
        """The lessons in the system message, or what it says of those before the steps."""
        lessons = self._lessons(state, prompt)
        return self.section.text(lessons=lessons.rstrip()) if self.section and lessons else self.brief if lessons else ""


def _first_observation(state: ShownLibrary, journal: Journal) -> str:
    """The text of the episode's first observation."""
    steps = journal.history(state["head"])
    return steps[0].observation_text if steps else str(state["observation"].text)


def rollout_to_json(rollout: Rollout) -> dict[str, Any]:
    """A rollout as a JSON object."""
    return asdict(rollout)


def rollout_from_json(value: Mapping[str, Any]) -> Rollout:
    """The rollout of a JSON object that `rollout_to_json` made."""
    found = dict(value)
    found["task"], found["usage"] = Task(**value["task"]), Usage(**value["usage"])
    if value["trajectory"] is not None:
        steps = tuple(Transition(**step) for step in value["trajectory"]["transitions"])
        found["trajectory"] = Trajectory(
            **{**value["trajectory"], "task": Task(**value["trajectory"]["task"]), "transitions": steps}
        )
    return Rollout(**found)


class RolloutInput(EpisodeInput, LibraryChannels):
    """The problem of a rollout, its place in a run, and the name of the library that it is shown."""


@dataclass(frozen=True)
class RolloutPlayer(Runnable[RolloutInput, Rollout]):
    """Play one rollout.

    Its key in the cache is made of all that it depends on: the graph and the model (`name`), the problem, the run, the number, and
    the lessons that it is shown, not the library's name. The episode graph gets `<run>/<task id>` as the run's name, so that its
    random draws differ between problems. Failures are not cached (model calls may be): a later run tries again.

    A rollout that takes longer than `timeout` ends. Under `ainvoke` it is cancelled; under `invoke` its thread cannot be stopped,
    and its result is not used. `close` is called in any case.
    """

    episode_graph: Runnable[Any, Any] = field(repr=False)
    """An episode graph, or an `UncheckpointedGraph` of one. Read from its output: `score`, `step`, `usage`, and, if they are there, `earned`,
    `unjudged`, `head`, `transcript`, `tool_calls`, `answer`."""
    environment: Environment = field(repr=False)
    journal: Journal = field(repr=False)
    versions: LibraryVersions = field(repr=False)
    cache: Cache = field(repr=False)
    name: str = ""
    """A fingerprint of graph, model, temperature, prompts and tools (graphs/wiring/fingerprint.py)."""
    lessons_per_prompt: int = 0
    """Lessons that are shown at most; 0: all."""
    layout: Layout = field(default=Layout(clip=None), repr=False)
    """The layout of transcripts; without rewards where there is no ground truth."""
    count: Callable[[str], int] = field(default=len, repr=False)
    max_transcript_tokens: int = 2**31
    """Tokens of a transcript at most; longer ones lose their middle."""
    timeout: float | None = None
    """Seconds that a rollout may take."""
    slots: ConcurrencyLimit | None = None
    """Rollouts played at once. The time of a rollout begins when it is its turn."""
    meter: SpendingLimit | None = field(default=None, repr=False)
    """Asked before a rollout whose calls are not counted one by one: see `counts_as_paid`."""
    stage: str = "rollout"
    """The name under which its tokens are counted in the cache: `rollout`, `trial`, `test`."""
    counts_as_paid: bool = True
    """True: its tokens count as paid when it is stored. False: a `CachedChatModel` counted them call by call."""
    close: Callable[[str, str, int], None] | None = field(default=None, repr=False)
    """Called with run, task id and number when the rollout has ended, also after an error: closes its tools."""
    _first_observations: dict[Task, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def key(self, state: RolloutInput) -> str:
        """The key of the rollout in the cache."""
        task = state["task"]
        lessons = [(lesson.id, lesson.text) for lesson in self.lessons(state["library"], task)]
        texts = (lessons, self.layout.rewards, self.layout.clip, self.max_transcript_tokens)
        return cache_key("rollout", self.name, self.world_key(task), task, state["run"], state["episode"], texts)

    def world_key(self, task: Task) -> tuple[Any, ...]:
        """The part of a key that names the environment: its name, its horizon, the true answer."""
        world = self.environment
        gold = world.gold(task) if hasattr(world, "answer") and hasattr(world, "gold") else ()
        return world.name, getattr(world, "horizon", None), gold

    def cached_rollout(self, state: RolloutInput) -> Rollout | None:
        """The rollout, if it is in the cache."""
        found = self.cache.get(self.key(state))
        return None if found is None else rollout_from_json(found)

    def lessons(self, library: str, task: Task) -> tuple[Lesson, ...]:
        """The lessons of a version that a rollout of this task is shown."""
        return select_lessons(
            self.versions.at(library),
            task,
            self.first_observation(task) if self.lessons_per_prompt else "",
            self.lessons_per_prompt,
        )

    def first_observation(self, task: Task) -> str:
        """The text of a task's first observation."""
        if task not in self._first_observations:
            self._first_observations[task] = self.environment.observe(task, ()).text
        return self._first_observations[task]

    def invoke(self, input: RolloutInput, config: RunnableConfig | None = None, **kwargs: Any) -> Rollout:
        place = self.key(input)
        if (known := self.cache.get(place)) is not None:
            return rollout_from_json(known)
        asked = self._episode_input(input)
        with cast(AbstractContextManager[Any], self.slots or nullcontext()):
            start = self._start()
            try:
                out = self._in_time(lambda: self.episode_graph.invoke(asked, _config(config, place)))
                rollout = self._build_rollout(input, out, start)
            except RUN_ERRORS:
                raise
            except Exception as error:
                return self._failed_rollout(input, error, start)
            finally:
                self._close(asked)
        return self._store(place, rollout)

    async def ainvoke(self, input: RolloutInput, config: RunnableConfig | None = None, **kwargs: Any) -> Rollout:
        place = self.key(input)
        if (known := self.cache.get(place)) is not None:
            return rollout_from_json(known)
        asked = self._episode_input(input)
        async with cast(AbstractAsyncContextManager[Any], self.slots or nullcontext()):
            start = self._start()
            try:
                async with asyncio.timeout(self.timeout) as scope:
                    out = await self.episode_graph.ainvoke(asked, _config(config, place))
                if getattr(self.environment, "instant", False):
                    rollout = self._build_rollout(input, out, start)
                else:
                    rollout = await asyncio.to_thread(self._build_rollout, input, out, start)
            except RUN_ERRORS:
                raise
            except Exception as error:
                late = isinstance(error, TimeoutError) and scope.expired()
                return self._failed_rollout(
                    input, RolloutTimeout(f"took longer than {self.timeout:g} s") if late else error, start
                )
            finally:
                self._close(asked)
        return self._store(place, rollout)

    def _start(self) -> float:
        if self.meter and self.counts_as_paid:
            self.meter.check()
        return time.monotonic()

    @staticmethod
    def _episode_input(state: RolloutInput) -> RolloutInput:
        return {**state, "run": f"{state['run']}/{state['task'].id}"}

    def _in_time(self, play: Callable[[], Any]) -> Any:
        if self.timeout is None:
            return play()
        ended: Future[Any] = Future()
        context = copy_context()

        def work() -> None:
            try:
                ended.set_result(context.run(play))
            except BaseException as error:
                ended.set_exception(error)

        Thread(target=work, name="rollout", daemon=True).start()
        if not wait([ended], self.timeout).done:
            raise RolloutTimeout(f"took longer than {self.timeout:g} s; its thread is left to end by itself")
        return ended.result()

    def _close(self, asked: RolloutInput) -> None:
        if self.close:
            self.close(asked["run"], asked["task"].id, asked["episode"])

    def _failed_rollout(self, state: RolloutInput, error: Exception, start: float) -> Rollout:
        _log.debug("%s failed", _id(state), exc_info=error)
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        reason = _KEY.sub("sk-…", " ".join(f"{kind}{error}".split()))[:500] or "no reason was given"
        seconds = round(time.monotonic() - start, 3)
        return Rollout(
            _id(state), state["task"], state["episode"], None, seconds=seconds, shown=self._lesson_ids(state), error=reason
        )

    def _lesson_ids(self, state: RolloutInput) -> tuple[str, ...]:
        return tuple(lesson.id for lesson in self.lessons(state["library"], state["task"]))

    def _store(self, place: str, rollout: Rollout) -> Rollout:
        usage = rollout.usage if self.counts_as_paid else Usage()
        if rollout.error:  # it has no reward, but its tokens were paid for
            self.cache.put(cache_key("unjudged", place), rollout_to_json(rollout), self.stage, usage)
            return rollout
        return rollout_from_json(self.cache.put(place, rollout_to_json(rollout), self.stage, usage))

    def _build_rollout(self, state: RolloutInput, out: Mapping[str, Any], start: float) -> Rollout:
        task, world = state["task"], self.environment
        history = self.journal.history(out["head"]) if out.get("head") else ()
        steps = tuple(step for step in history if not step.is_lost)
        reward, error = self._reward(task, out, steps)
        alone = getattr(world, "horizon", 2) == 1 or not steps  # a world of one answer
        # Of one answer no state is shown, which repeats the problem, and no reward, which stands in the attempt's label.
        shown = [Transition("", step.action, None) for step in history] if alone else history
        transcript = out.get("transcript") or self.layout.steps(shown).lstrip("\n")
        return Rollout(
            _id(state),
            task,
            state["episode"],
            reward,
            answer=out.get("answer") or (steps[-1].action if steps else ""),
            transcript=trim_transcript(transcript, self.max_transcript_tokens, self.count),
            steps=out.get("step", len(history)),
            tool_calls=out.get("tool_calls", 0),
            usage=out.get("usage", Usage()),
            seconds=round(time.monotonic() - start, 3),
            trajectory=None
            if alone
            else Trajectory(_id(state), task, steps, state["run"], state["episode"], out["score"], world.name),
            shown=self._lesson_ids(state),
            error=error,
        )

    def _reward(self, task: Task, out: Mapping[str, Any], steps: tuple[Transition, ...]) -> tuple[float | None, str]:
        """The score as a share of the best one, in [0, 1]; None and the reason where the environment could not say."""
        if out.get("earned", 0.0) is None or any(step.reward is None for step in steps):
            why = out.get("unjudged") or self.environment.observe(task, [step.action for step in steps]).text
            return None, " ".join(f"no reward: {why}".split())[:500]
        share = out["score"] / max_score(self.environment, task)
        if not math.isfinite(share):
            return None, f"no reward: {self.environment.name} paid {out['score']}"
        return min(max(share, 0.0), 1.0), ""


class RolloutTimeout(UserError, TimeoutError):
    """A rollout took longer than its `timeout`."""


class RolloutOfGroup(TaskChannel, LibraryChannels):
    """The number of a rollout in the group of a problem, and the place of the group in a run."""

    run: str
    step: int
    number: int


class RolloutsChannel(TypedDict):
    """Rollouts of a group."""

    rollouts: list[Rollout]


@dataclass(frozen=True)
class PlayRollout(Runnable[RolloutOfGroup, RolloutsChannel]):
    """Play rollout `number` of a group."""

    role: ClassVar[str] = "graph"

    roll: Runnable[RolloutInput, Rollout] = field(repr=False)
    """A `RolloutPlayer`."""

    def invoke(self, input: RolloutOfGroup, config: RunnableConfig | None = None, **kwargs: Any) -> RolloutsChannel:
        return {"rollouts": [self.roll.invoke(self._rollout_input(input), config)]}

    async def ainvoke(self, input: RolloutOfGroup, config: RunnableConfig | None = None, **kwargs: Any) -> RolloutsChannel:
        return {"rollouts": [await self.roll.ainvoke(self._rollout_input(input), config)]}

    @staticmethod
    def _rollout_input(state: RolloutOfGroup) -> RolloutInput:
        run = f"{state['run']}/{state['step']}"
        return {"task": state["task"], "run": run, "episode": state["number"], "library": state["library"]}


def max_score(environment: Environment, task: Task) -> float:
    """The score that is a reward of 1: the environment's optimum, or 1 if it has none.

    Where the optimum is not known, but only what a walkthrough earns within the horizon, the score that solves the task.
    """
    optimum, knows_optimum = getattr(environment, "optimum", None), getattr(environment, "knows_optimum", None)
    solved: float | None = getattr(environment, "solved", None)
    if solved is not None and knows_optimum and not knows_optimum(task):
        return solved
    return (optimum(task) if optimum else 0.0) or 1.0


def _id(state: RolloutInput) -> str:
    return f"{state['run']}/{state['task'].id}/{state['episode']}"


def _config(config: RunnableConfig | None, thread: str) -> RunnableConfig:
    """The surrounding graph's callbacks, tags and metadata, without its checkpoints: a rollout has none of its own."""
    given = config or {}
    kept: RunnableConfig = {"configurable": {"thread_id": thread}}
    if "callbacks" in given:
        kept["callbacks"] = given["callbacks"]
    if "tags" in given:
        kept["tags"] = given["tags"]
    if "metadata" in given:
        kept["metadata"] = given["metadata"]
    return kept
