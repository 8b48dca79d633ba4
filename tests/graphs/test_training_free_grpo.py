"""Training-Free GRPO from end to end, with a scripted model that does as a lesson says if, and only if, it is shown.

The names D1 to E10 are the defects of the published code (facts of the method, section 6): each is a test here or in the tests
of the part that it belongs to.
"""

import asyncio
import json
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_in_time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from bench_training_free import virtually
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import Field
from scripted_chat import SayingChat, counted
from waiting import let_others_run, wait_at_random, wait_until

from learngraph.graphs import training_free_grpo
from learngraph.graphs.baselines import lesson_react, tool_agent
from learngraph.graphs.training_free_grpo import TrainingFreeGRPO
from learngraph.graphs.wiring import flow
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.graphs.wiring.learning_run import CriticModel, RolloutGraphs, RunResources, rollout_player
from learngraph.graphs.wiring.supersteps import merge_steps
from learngraph.memory.errors import UserError
from learngraph.memory.lessons.library import Library
from learngraph.memory.lessons.versions import LibraryVersions
from learngraph.memory.records import Candidate, Lesson, Observation, Task, Usage
from learngraph.memory.storage.cache import Cache
from learngraph.memory.storage.checkpoints import open_checkpoints
from learngraph.memory.storage.journal import Journal, JournalError
from learngraph.memory.storage.rows import Rows
from learngraph.memory.storage.serializer import serializer
from learngraph.nodes.cached_model import CachedChatModel, ConcurrencyLimit, SpendingLimit
from learngraph.nodes.extract import rollouts
from learngraph.nodes.extract.critic import LessonSettings
from learngraph.nodes.extract.rollouts import RolloutSettings
from learngraph.nodes.lesson_prompts import SameLessonsShown
from learngraph.nodes.prompt import PROMPTS_DIR
from learngraph.nodes.update import library as learning
from learngraph.nodes.update.accept_test import AcceptSettings
from learngraph.nodes.update.library import Schedule, deduplicate
from learngraph.tools.agent_tools.interpreter import Toolbox
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.models.models import open_model

PICTURES = Path(__file__).parents[1] / "pictures"
LESSON = "When a riddle asks for the secret of a word, write the word backwards."
WORDS = "lamp rope bell coin mask door gate fork gem key moon star".split()  # noqa: SIM905


@pytest.fixture(autouse=True)
def reports_of_short_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Riddles are answered in a word, and reports of attempts are part of what is tested here."""
    monkeypatch.setattr("learngraph.nodes.extract.critic.SHORT_ATTEMPT", 0)


class Riddles:
    """A world of one written answer: the secret of a word is the word backwards."""

    name = "riddles"
    instant = True
    solved = 1.0
    horizon = 1

    def __init__(self, gold: Callable[[str], str] = lambda word: word[::-1], grade: Callable[[bool], float] = float) -> None:
        self._gold, self._grade = gold, grade
        self.judged = 0

    def task(self, seed: int, split: str = "train") -> Task:
        return Task(
            f"{split}-{seed}", f"What is the secret of {split}{WORDS[seed % len(WORDS)]}{seed // len(WORDS) or ''}?", seed
        )

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        if not actions:
            return Observation(task.instruction)
        self.judged += 1
        right = self.answer(actions[-1]) == self.gold(task)[0]
        return Observation(
            "VERDICT right" if right else f"VERDICT wrong, it is {self.gold(task)[0]}", (), self._grade(right), True
        )

    def abstract(self, observation: Observation) -> str:
        return observation.text

    def read(self, reply: str) -> list[str]:
        return [reply.strip()]

    def answer(self, text: str) -> str:
        return text.strip().lower()

    def gold(self, task: Task) -> tuple[str, ...]:
        return (self._gold(re.findall(r"\w+", task.instruction)[-1]),)

    def optimum(self, task: Task) -> float:
        return 1.0


KINDS = {
    "You solve": "act",
    "You study how": "summary",
    "You compare attempts": "contrast",
    "You study an attempt": "contrast",
    "Several reviewers": "consolidate",
    "You keep a library": "propose",
    "You write lessons": "invent",
    "You see how an agent": "summary",
    "You see a problem, summaries": "extract",
    "You see the present experiences": "optimise",
}


class Chat(SayingChat):
    """Answers right where the lesson is shown, else by luck that the seed of the call decides."""

    seed: int | None = None
    temperature: float = 0.7
    luck: float = 0.5
    teaches: str = LESSON
    """What comparing leads to; empty: nothing."""
    delay: float = 0.0
    """Seconds that a call may take at most."""
    stop_at: int = 10**9
    """The call that fails, counted from 0; those after it, too."""
    wrong: str = "nonsense"
    obeys: str = "backwards"
    mangled: tuple[str, ...] = ()
    """Kinds of replies that cannot be read."""
    asked: list[tuple[str, str, int | None]] = Field(default_factory=list)
    """(kind, all of the prompt, seed)."""

    def kinds(self) -> Counter[str]:
        return Counter(kind for kind, _, _ in self.asked)

    def say(self, messages: list[BaseMessage], **more: Any) -> AIMessage:
        told = "\n".join(str(message.content) for message in messages)
        kind = next(kind for mark, kind in KINDS.items() if mark in told)
        if len(self.asked) >= self.stop_at:
            raise ConnectionError("the line is dead")
        self.asked.append((kind, told, more.get("seed")))
        draw = random.Random(f"{more.get('seed')} {kind}")
        if self.delay:
            wait_at_random(random.Random(len(self.asked)), self.delay)
        reply = "I have no idea." if kind in self.mangled else getattr(self, f"_{kind}")(told, draw)
        return counted(reply, 100, 10)

    def _act(self, told: str, draw: random.Random) -> str:
        word = re.findall(r"secret of (\w+)", told)[-1]
        lessons = told.partition("Lessons:")[2]
        return word[::-1] if self.obeys in lessons or draw.random() < self.luck else f"{self.wrong} {draw.randrange(10**6)}"

    def _summary(self, told: str, draw: random.Random) -> str:
        return f"It answered {(re.findall(r'> (.*)', told) or ['nothing'])[-1]}."

    def _contrast(self, told: str, draw: random.Random) -> str:
        known = self.teaches and self.teaches in told
        return json.dumps({"lessons": [self.teaches] if self.teaches and not known else [], "helpful": ["L0"] if known else []})

    def _propose(self, told: str, draw: random.Random) -> str:
        return json.dumps({"edits": [{"op": "add", "text": self.teaches}]})

    def _consolidate(self, told: str, draw: random.Random) -> str:
        return json.dumps({"edits": [{"op": "add", "text": self.teaches, "from": [1]}]})

    def _invent(self, told: str, draw: random.Random) -> str:
        return json.dumps({"lessons": [LESSON, "When in doubt, read the riddle again."]})


def build_run(
    inputs: MethodInputs,
    settings: TrainingFreeGRPO | None = None,
    *,
    rollout: Any = None,
    trial_rollout: Any = None,
    name: str = "",
    close: Any = None,
    critic: Any = None,
    **more: Any,
) -> Any:
    """The graph of a run, its resources by their own names."""
    kept = {item.name: more.pop(item.name) for item in fields(RunResources) if item.name in more}
    return training_free_grpo.build(
        inputs,
        settings,
        resources=RunResources(**{key: value for key, value in kept.items() if value is not None}),
        rollouts=RolloutGraphs(rollout, trial_rollout, name, close),
        critic=CriticModel(critic),
        **more,
    )


def lesson_graph(inputs: MethodInputs, settings: TrainingFreeGRPO, versions: LibraryVersions, temperature: float = 0.7) -> Any:
    """The default rollout."""
    return lesson_react.build(inputs, lesson_react.agent_settings(settings, temperature), lessons=versions)


def player_of(
    inputs: MethodInputs, settings: TrainingFreeGRPO, versions: LibraryVersions, cache: Cache, graph: Any, **more: Any
) -> Any:
    """The node that plays rollouts with a graph."""
    return rollout_player(inputs, settings, graph, RunResources(versions, cache), **more)


class Bench:
    """A run with all that it needs, which can be started again with the same files."""

    def __init__(self, chat: Chat | None = None, settings: TrainingFreeGRPO | None = None, **more: Any) -> None:
        self.chat = chat or Chat()
        chosen = settings or TrainingFreeGRPO(group_size=4, epochs=2)
        # Five held-out problems, played once, show no more than that a library is not worse by half.
        rollouts = 1 if chosen.trial == AcceptSettings() else chosen.trial.rollouts
        self.settings = replace(chosen, trial=AcceptSettings(rollouts=rollouts, regression_share=0.0, margin=0.5))
        self.world: Any = more.pop("world", None) or Riddles()
        self.versions, self.cache, self.log = LibraryVersions(), more.pop("cache", None) or Cache(), Rows()
        self.name = more.pop("name", "scripted")
        self.problems = more.pop("problems", [self.world.task(n) for n in range(4)])
        self.held_out = more.pop("held_out", [self.world.task(n, "dev") for n in range(5)])
        self.meter = more.pop("meter", None)
        self.more = more

    def inputs(self) -> MethodInputs:
        model = CachedChatModel(self.chat, self.name, self.cache, "rollout", self.meter)
        return MethodInputs.with_chat_model(self.world, Journal(), model)

    def graph(self, inputs: MethodInputs | None = None, **compile: Any) -> Any:
        return build_run(
            inputs or self.inputs(),
            self.settings,
            problems=self.problems,
            held_out=self.held_out,
            versions=self.versions,
            cache=self.cache,
            log=self.log,
            meter=self.meter,
            **{**self.more, **compile},
        )

    def run(self, run: str = "r", **compile: Any) -> dict[str, Any]:
        return dict(self.graph(**compile).invoke({"run": run}))

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.log.values()]

    def product(self, out: dict[str, Any]) -> Library:
        return self.versions.at(out["best"])


# From end to end


def test_a_lesson_is_learned_tested_kept_and_obeyed() -> None:
    bench = Bench()
    out = bench.run()
    first, second = bench.rows
    # Before, by luck; the candidate gets everything right, and then nothing is left to be compared.
    assert first["truths"] == {
        "train-0": [1.0, 0.0, 0.0, 0.0],
        "train-1": [0.0, 0.0, 0.0, 0.0],
        "train-2": [0.0, 0.0, 1.0, 0.0],
        "train-3": [1.0, 0.0, 0.0, 1.0],
    }
    assert (first["train"], first["passed"], first["kinds"]) == (0.25, 0.75, {"mixed": 3, "alike": 1})
    assert first["trial"]["current"] == 0.6
    assert first["trial"]["candidate"] == 1.0
    assert (first["trial"]["wins"], first["trial"]["losses"], first["trial"]["problems"]) == (2, 0, 5)
    assert (first["accepted"], first["before"], first["library"], first["lessons"]) == (True, "r/0", "r/1", 1)
    assert (second["train"], second["passed"], second["kinds"], second["candidate"]) == (1.0, 1.0, {"alike": 4}, "")
    assert {name: out[name] for name in ("library", "best", "best_score", "step")} == {
        "library": "r/2-kept",  # as r/1, but that it was shown
        "best": "r/2-kept",
        "best_score": 1.0,
        "step": 2,
    }
    assert bench.versions.head == "r/2-kept"
    assert bench.versions.at("r/1").key == bench.versions.at("r/2-kept").key
    assert [lesson.text for lesson in bench.product(out).lessons] == [LESSON]
    # A call for every rollout and every probe; summaries of mixed groups alone; one consolidation.
    kinds = bench.chat.kinds()
    assert kinds["act"] == 2 * 4 * 4 + 2 * 5
    assert kinds["contrast"] == 3
    assert 3 * 3 <= kinds["summary"] <= 3 * 4  # right answers look the same: one call, or two at the same time
    assert kinds["consolidate"] == 1
    assert out["usage"].calls == 2 * 4 * 4 + 2 * 5 + 3 * 4 + 3 + 1  # of an empty library no edits are asked for
    assert kinds["propose"] == 0


async def test_awaited_it_comes_to_the_same_and_seeds_reach_the_model() -> None:
    plain, awaited = Bench(), Bench(Chat(delay=0.01))
    out = plain.run()
    assert await awaited.graph().ainvoke({"run": "r"}) == out
    assert awaited.product(out).to_yaml() == plain.product(out).to_yaml()
    assert [quiet(row) for row in awaited.rows] == [quiet(row) for row in plain.rows]
    seeds = [seed for kind, _, seed in plain.chat.asked if kind == "act"]
    assert None not in seeds
    assert len(set(seeds)) == 2 * 4 * 4 + 5  # both libraries are tried with the same ones
    other = Bench()
    other.run("another run")
    assert not set(seeds) & {seed for kind, _, seed in other.chat.asked if kind == "act"}


@pytest.mark.slow
def test_chained_it_comes_to_the_same() -> None:
    plain, chained = Bench(), Bench()
    out = plain.run()
    graph = merge_steps(chained.graph())
    assert graph.invoke({"run": "r"}) == out
    assert "accept+close" not in graph.nodes  # two arrows lead to it
    assert "group" in graph.nodes
    assert chained.product(out).to_yaml() == plain.product(out).to_yaml()
    assert [quiet(row) for row in chained.rows] == [quiet(row) for row in plain.rows]
    assert chained.chat.kinds()["consolidate"] == plain.chat.kinds()["consolidate"] == 1


def quiet(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the log without the time that it took, and what all that was paid for comes to."""
    return {**row, "seconds": None, "dollars": None}


def test_only_the_lessons_that_fit_the_task_are_shown_the_same_for_the_whole_episode() -> None:
    toy, versions, journal = KeywordKeep(), LibraryVersions(), Journal()
    task = toy.task(0)
    first = toy.observe(task, ()).text
    lessons = [f"{place} {word}" for place, word in zip(toy.path(task), toy.gold(task), strict=True)]
    versions.put("r/0", Library(tuple(Lesson(f"L{n}", text) for n, text in enumerate(reversed(lessons)))))
    told: list[str] = []

    def policy(seen: Any) -> Any:
        def propose(state: Any) -> Any:
            told.append(seen(state)["steps"])
            return {"candidates": [Candidate(toy.gold(task)[state["step"]], 0.0)]}

        return RunnableLambda(propose)

    inputs = MethodInputs(toy, journal, policy)
    asked = {"task": task, "run": "r", "episode": 0, "library": "r/0"}
    for top, shown in ((0, lessons[::-1]), (1, [lessons[0]])):
        told.clear()
        graph = lesson_graph(inputs, TrainingFreeGRPO(rollouts=RolloutSettings(lessons_per_prompt=top)), versions)
        assert graph.invoke(asked)["score"] == 10
        assert len(told) == 9
        assert first in lessons[0]
        assert all(one.startswith("Lessons:\n" + "".join(f"- {text}\n" for text in shown)) for one in told)


def test_rollouts_are_known_by_the_lessons_that_they_are_shown() -> None:
    """Where only some lessons are shown, votes decide which: a library with other votes is another one (D7)."""
    versions, world, chat = LibraryVersions(), Riddles(), Chat(luck=0.0)
    two = (
        Lesson("L0", "When a secret is asked, write it backwards."),
        Lesson("L1", "When a secret is asked, shout it loudly."),
    )
    versions.put("r/0", Library(two))
    versions.put("r/1", Library(two).with_votes([("L0", 1)]), parent="r/0")
    inputs = MethodInputs.with_chat_model(world, Journal(), chat)
    for top, alike, shown in ((1, False, [("L1",), ("L0",)]), (0, True, [("L0", "L1")] * 2)):
        settings = TrainingFreeGRPO(rollouts=RolloutSettings(lessons_per_prompt=top))
        graph = lesson_graph(inputs, settings, versions)
        roll = player_of(inputs, settings, versions, Cache(), graph)
        asked = {"task": world.task(0, "dev"), "run": "r/trial", "episode": 0}
        rollouts = [roll.invoke({**asked, "library": name}) for name in ("r/0", "r/1")]
        assert [rollout.shown for rollout in rollouts] == shown
        prompts = [told for _, told, _ in chat.asked[-2 + alike :]]
        assert [tuple(re.findall(r"- \[(L\d)\]", told)) for told in prompts] == shown[: len(prompts)]
        same = SameLessonsShown(versions, top, [(world.task(0, "dev"), roll.first_observation(world.task(0, "dev")))])
        assert same("r/0", "r/1") is alike
        state: Any = {"candidate": "r/1", "library": "r/0"}
        assert learning.RouteCandidate(same)(state) == ("untested" if alike else "candidate")


def test_a_model_that_scores_learns_the_toy_world_by_rule() -> None:
    """No language model at all: a uniform policy plays, a rule compares; the library holds answers of this keep alone."""
    toy = KeywordKeep()
    task = toy.task(3)
    versions, log = LibraryVersions(), Rows()
    settings = TrainingFreeGRPO(group_size=8, epochs=2, author="rule")
    graph = build_run(
        MethodInputs(toy),
        replace(settings, accept="always"),
        problems=[toy.variant(task, n) for n in range(3)],
        versions=versions,
        log=log,
    )
    out = graph.invoke({"run": "toy"})
    gold = dict(zip(toy.path(task), toy.gold(task), strict=True))
    texts = [lesson.text for lesson in versions.at(out["best"]).lessons]
    assert len(texts) >= 3
    assert sum(text.rpartition(" ")[2] == gold[text.rpartition(" ")[0]] for text in texts) >= 0.7 * len(texts)
    assert settings.remark == "rule-written"


@pytest.mark.slow
def test_pocket_writes_lines_of_its_own_and_gets_better_by_them() -> None:
    """A model of a million parameters plays and compares; what it writes is edited into the library by code."""
    pytest.importorskip("torch")
    toy = KeywordKeep()
    task = toy.task(0)
    versions, log = LibraryVersions(), Rows()
    graph = build_run(
        MethodInputs.with_scoring_model(toy, Journal(), open_model("pocket")),  # type: ignore[arg-type]
        TrainingFreeGRPO(group_size=4, epochs=1),
        problems=[toy.variant(task, n) for n in range(4)],
        held_out=[toy.variant(task, n) for n in range(50, 53)],
        versions=versions,
        log=log,
    )
    out = graph.invoke({"run": "pocket"})
    gold = dict(zip(toy.path(task), toy.gold(task), strict=True))
    texts = [lesson.text for lesson in versions.at(out["best"]).lessons]
    assert len(texts) >= 3
    assert sum(gold.get(text.rpartition(" ")[0]) == text.rpartition(" ")[2] for text in texts) >= len(texts) / 2
    assert log.values()[0]["trial"]["gain"] > 0.05


# The loop's defects


def test_d4_a_rollout_that_takes_too_long_ends_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[tuple[str, str, int]] = []
    release = threading.Event()

    def wait(ended: list[Future[Any]], seconds: float) -> Any:
        """The two seconds are over when the others are."""
        wait_until(lambda: ended[0].done() or len(closed) == 7)
        return wait_in_time(ended, 0)

    monkeypatch.setattr(rollouts, "wait", wait)

    def play(asked: dict[str, Any]) -> dict[str, Any]:
        if asked["task"].id == "train-0" and asked["episode"] == 1:
            release.wait()
        n = asked["episode"]
        return {"score": float(n % 2), "transcript": f"> try {n}\n", "answer": str(n)}

    bench = Bench(
        settings=TrainingFreeGRPO(group_size=4, epochs=1, accept="always", rollouts=RolloutSettings(timeout=2.0)),
        rollout=RunnableLambda(play),
        close=lambda run, task, number: closed.append((run, task, number)),
        problems=[Riddles().task(0), Riddles().task(1)],
        held_out=[],
    )
    bench.run()
    release.set()
    row = bench.rows[0]
    assert row["truths"] == {"train-0": [0.0, None, 0.0, 1.0], "train-1": [0.0, 1.0, 0.0, 1.0]}
    assert row["failures"] == ["train-0: rollout 1: took longer than 2 s; its thread is left to end by itself"]
    assert row["train"] == 3 / 8  # what is missing counts as 0
    assert sorted(closed) == sorted((f"r/0/{task}", task, n) for task in ("train-0", "train-1") for n in range(4))


def test_d4_awaited_the_rollout_is_cancelled() -> None:
    """By a clock that jumps: its two seconds are over when nothing else is left to do."""
    cancelled: list[int] = []

    async def play(asked: dict[str, Any]) -> dict[str, Any]:
        if asked["episode"] == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(asked["episode"])
                raise
        if asked["episode"] == 2:
            raise TimeoutError("the server's own")
        return {"score": float(asked["episode"] == 3), "transcript": "> try\n", "answer": "a"}

    bench = Bench(
        settings=TrainingFreeGRPO(group_size=4, epochs=1, accept="always", rollouts=RolloutSettings(timeout=2.0)),
        rollout=RunnableLambda(play),
        problems=[Riddles().task(0)],
        held_out=[],
    )
    virtually(bench.graph().ainvoke({"run": "r"}))
    assert cancelled == [1]
    assert bench.rows[0]["failures"] == [
        "train-0: rollout 1: took longer than 2 s",
        "train-0: rollout 2: TimeoutError: the server's own",
    ]
    assert bench.rows[0]["kinds"] == {"mixed": 1}


@pytest.mark.slow
async def test_d4_only_so_many_rollouts_are_played_at_once_and_their_time_begins_when_it_is_their_turn() -> None:
    playing: list[int] = [0, 0]

    async def play(asked: dict[str, Any]) -> dict[str, Any]:
        playing[0] += 1
        playing[1] = max(playing)
        await let_others_run(0.02)
        playing[0] -= 1
        return {"score": float(asked["episode"] % 2), "transcript": "> a\n", "answer": "a"}

    bench = Bench(
        settings=TrainingFreeGRPO(group_size=8, epochs=1, accept="always", rollouts=RolloutSettings(timeout=60)),
        rollout=RunnableLambda(play),
        slots=ConcurrencyLimit(2),
        held_out=[],
    )
    await bench.graph().ainvoke({"run": "r"})
    assert playing[1] == 2
    assert bench.rows[0]["failures"] == []


def test_d5_every_epoch_has_an_order_of_its_own_and_the_remainder_is_learned_on() -> None:
    problems = [Riddles().task(n) for n in range(7)]
    schedule = Schedule(tuple(problems), batch_size=3, epochs=3)
    assert schedule.steps_per_epoch == 3
    epochs = [[[task.id for task in schedule.tasks("r", 3 * epoch + n)] for n in range(3)] for epoch in range(3)]
    for batches in epochs:
        assert [len(batch) for batch in batches] == [3, 3, 1]
        assert sorted(id for batch in batches for id in batch) == sorted(task.id for task in problems)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert len({epoch[2][0] for epoch in epochs}) > 1  # not the same one is left over
    assert schedule.tasks("r", 4) == schedule.tasks("r", 4)
    assert any(schedule.tasks("another run", n) != schedule.tasks("r", n) for n in range(9))
    bench = Bench(settings=TrainingFreeGRPO(group_size=2, epochs=2, batch_size=3, patience=0), problems=problems, held_out=[])
    bench.run()
    assert [(row["epoch"], row["batch"], len(row["problems"])) for row in bench.rows] == [
        *((0, 0, 3), (0, 1, 3), (0, 2, 1)),
        *((1, 0, 3), (1, 1, 3), (1, 2, 1)),
    ]


def test_d6_the_temperature_of_learning_is_not_that_of_the_test_or_of_critics() -> None:
    world, cache, versions = Riddles(), Cache(), LibraryVersions()
    hot, cool, critic = (Chat(temperature=t) for t in (0.7, 0.3, 0.0))
    settings = TrainingFreeGRPO(group_size=4, epochs=1, trial=AcceptSettings(rollouts=1))
    journal = Journal()
    inputs, others = (
        MethodInputs.with_chat_model(world, journal, CachedChatModel(chat, f"at {chat.temperature}", cache))
        for chat in (hot, cool)
    )
    build_run(
        inputs,
        settings,
        problems=[world.task(n) for n in range(4)],
        held_out=[world.task(n, "dev") for n in range(5)],
        versions=versions,
        cache=cache,
        trial_rollout=lesson_graph(others, settings, versions),
        critic=critic,
    ).invoke({"run": "r"})
    assert (set(hot.kinds()), set(cool.kinds())) == ({"act"}, {"act"})
    assert hot.kinds()["act"] == 4 * 4
    assert cool.kinds()["act"] == 2 * 5
    assert "act" not in critic.kinds()
    toy = KeywordKeep()
    drawn = [lesson_graph(MethodInputs(toy), settings, versions, t) for t in (settings.temperature, settings.trial.temperature)]
    names = [player_of(MethodInputs(toy), settings, versions, cache, graph).name for graph in drawn]
    assert names[0] != names[1]


@pytest.mark.slow
def test_d7_every_accept_test_is_of_its_own_steps_library_and_plays_the_current_one_afresh() -> None:
    """A library is not judged by the rollouts by which it won: of several candidates the luckiest would look the best."""
    chat = Chat()
    bench = Bench(chat, TrainingFreeGRPO(group_size=4, epochs=3, patience=0))
    bench.run()
    before = chat.kinds()["act"]
    assert before == 3 * 4 * 4 + 2 * 5  # the accept test of step 0 alone: later steps have no candidate
    # Now one that always finds something new to teach, so that each step has a candidate of its own.
    chat = Novel()
    bench = Bench(chat, TrainingFreeGRPO(group_size=4, epochs=3, patience=0))
    bench.run()
    tried = [row["candidate"] for row in bench.rows if row["trial"]]
    assert tried == ["r/1", "r/2", "r/3"]
    assert chat.kinds()["act"] == 3 * 4 * 4 + 2 * len(tried) * 5
    assert [row["trial"]["current"] for row in bench.rows[1:]] != [row["trial"]["candidate"] for row in bench.rows[:-1]]


def test_a_rejected_candidate_is_shown_to_the_next_proposals_and_the_current_library_pools_its_rollouts() -> None:
    chat = Novel(luck=0.6)
    settings = TrainingFreeGRPO(group_size=4, epochs=3, patience=0, accept="better")
    bench = Bench(chat, settings)
    bench.run()
    assert [row["accepted"] for row in bench.rows] == [False] * 3, "of no use"
    assert [row["trial"]["pooled"] for row in bench.rows] == [0, 5, 10]
    asked = [told for kind, told, _ in chat.asked if kind == "consolidate"]
    assert "Tried already, and rejected" not in asked[0]
    assert "- step 0, not shown to be better: " in asked[1]
    assert "add 'When riddle number" in asked[1]
    assert "- step 1, not shown to be better: " in asked[2]


class Novel(Chat):
    """Teaches something else in every step, of no use."""

    def _contrast(self, told: str, draw: random.Random) -> str:
        return json.dumps({"lessons": [self._new(told)]})

    def _propose(self, told: str, draw: random.Random) -> str:
        return json.dumps({"edits": [{"op": "add", "text": self._new(told)}]})

    def _consolidate(self, told: str, draw: random.Random) -> str:
        return json.dumps({"edits": [{"op": "add", "text": self._new(told), "from": [1]}]})

    @staticmethod
    def _new(told: str) -> str:
        known = len(set(re.findall(r"\[L\d+\]", told)))
        return f"When riddle number {known} comes up, {WORDS[known]} and {WORDS[known + 1]} are of no use at all."


def test_d9_without_a_mixed_group_nobody_is_asked_and_nothing_is_invented() -> None:
    for luck in (0.0, 1.0):
        bench = Bench(Chat(luck=luck), TrainingFreeGRPO(group_size=4, epochs=2, patience=0))
        out = bench.run()
        assert set(bench.chat.kinds()) == {"act"}
        assert bench.product(out).lessons == ()
        assert [row["why"] for row in bench.rows] == ["no group had something to compare"] * 2
        assert bench.versions.names() == ["r/0"]


class Misled(Chat):
    """Shown the lesson it gets everything wrong."""

    def _act(self, told: str, draw: random.Random) -> str:
        return self.wrong if self.obeys in told.partition("Lessons:")[2] else super()._act(told, draw)


def test_d13_a_step_that_does_harm_is_rejected_unless_everything_is_accepted() -> None:
    gated = Bench(Misled(), TrainingFreeGRPO(group_size=4, epochs=2, patience=0))
    out = gated.run()
    first = gated.rows[0]
    assert (first["accepted"], first["library"], first["candidate"]) == (False, "r/0", "r/1")
    assert first["trial"]["gain"] < 0
    assert first["why"].startswith("worse: ")
    assert gated.product(out).lessons == ()
    assert gated.rows[1]["train"] > 0
    always = Bench(Misled(), TrainingFreeGRPO(group_size=4, epochs=2, patience=0, accept="always"))
    out = always.run()
    assert [lesson.text for lesson in always.product(out).lessons] == [LESSON]
    assert always.rows[1]["train"] == 0.0


@pytest.mark.slow
def test_d13_a_library_that_gains_nothing_ends_the_run() -> None:
    bench = Bench(Novel(), TrainingFreeGRPO(group_size=4, epochs=9, patience=2))
    out = bench.run()
    assert out["stopped"] == "no gain in 2 steps"
    assert out["step"] == 2
    assert all(row["trial"]["gain"] == 0 for row in bench.rows)
    strict = Bench(Novel(), TrainingFreeGRPO(group_size=4, epochs=2, accept="better"))
    assert strict.product(strict.run()).lessons == ()


def test_lost_comparisons_are_counted() -> None:
    """A group whose comparison nobody could read; one that has nothing to compare is not lost."""
    bench = Bench(Chat(mangled=("contrast",)), TrainingFreeGRPO(group_size=4, epochs=1))
    bench.run()
    row = bench.rows[0]
    assert (row["compared"], row["lost"]) == (3, 3)
    assert row["kinds"] == {"mixed": 3, "alike": 1}
    whole = Bench(settings=TrainingFreeGRPO(group_size=4, epochs=1))
    whole.run()
    assert whole.rows[0]["lost"] == 0


# The paper's way


class PaperChat(Chat):
    """Proposes a lesson that our filter would refuse: it is long, and tells an answer."""

    teaches: str = f"{LESSON} {'and again ' * 20}: the secret of trainlamp is pmalniart."

    def _extract(self, told: str, draw: random.Random) -> str:
        return f'```json\n[{{"option": "add", "experience": "{self.teaches}"}}]\n```'

    def _optimise(self, told: str, draw: random.Random) -> str:
        ids = re.findall(r"^- \[(L\d+)\]", told, re.MULTILINE)
        return json.dumps([{"option": "merge", "experience": self.teaches, "merged_from": ids}])


@pytest.mark.parametrize("truth", ["given", "implicit"])
def test_the_paper_asks_its_own_prompts_once_a_group_and_once_a_step(truth: Any) -> None:
    settings = replace(TrainingFreeGRPO.paper(), group_size=4, epochs=1, truth=truth)
    bench = Bench(PaperChat(), settings)
    out = bench.run()
    compared = 3 if truth == "given" else 4
    kinds = bench.chat.kinds()
    assert kinds - Counter(summary=99) == {"act": 16, "extract": compared, "optimise": 1}
    assert compared < kinds["summary"] <= 4 * compared  # two attempts that say the same have one reply
    (lesson,) = bench.product(out).lessons  # of as many additions, each in the library before the plan
    assert (lesson.text, lesson.helpful, lesson.harmful) == (bench.chat.teaches, 0, 0)
    rulings = bench.versions.rulings("r/1")
    assert [(one.edit.op, one.accepted) for one in rulings] == [("add", True)] * compared + [("merge", True)]
    blind = "_blind" if truth == "implicit" else ""
    for kind, name in (("summary", f"summary{blind}"), ("extract", f"extract{blind}"), ("optimise", "optimise")):
        prompt = (PROMPTS_DIR / f"paper/training_free_grpo/{name}.md").read_text(encoding="utf-8")
        system = prompt.partition("## user")[0].removeprefix("## system\n").replace("$most", "2").strip()
        assert all(told.startswith(system) for asked, told, _ in bench.chat.asked if asked == kind)
    told = next(told for asked, told, _ in bench.chat.asked if asked == "extract")
    assert ("(correct)" in told and "(wrong)" in told and "True answer" in told) == (truth == "given")


def test_what_the_paper_cannot_read_leaves_the_additions_and_loses_the_other_proposals() -> None:
    bench = Bench(PaperChat(mangled=("optimise",)), replace(TrainingFreeGRPO.paper(), group_size=4, epochs=1))
    assert len(bench.product(bench.run()).lessons) == 3
    lost = Bench(PaperChat(mangled=("extract",)), replace(TrainingFreeGRPO.paper(), group_size=4, epochs=1))
    assert lost.product(lost.run()).lessons == ()
    assert lost.rows[0]["lost"] == 3


def test_the_papers_agent_reads_the_experiences_after_the_problem() -> None:
    chat = PaperChat()
    inputs = MethodInputs.with_chat_model(Riddles(), Journal(), chat)
    versions = LibraryVersions()
    versions.put("r/0", Library((Lesson("L0", LESSON),)))
    asked = {"task": Riddles().task(0), "run": "r", "episode": 0}
    for tools, first in ((None, "You solve a task"), (Toolbox(), "Solve the problem that you are given")):
        agent = tool_agent.build(inputs, tool_agent.ToolAgent(wording="paper"), tools=tools, lessons=versions)
        head = agent.builder.nodes["think"].runnable.dialogue.head  # type: ignore[union-attr]
        system, user = head({**asked, "library": "r/0", "observation": Observation("")})
        assert system.text.startswith(first)
        assert user.text.endswith(f"experiences carefully, and understand them:\n- [L0] {LESSON}")


# Its engineering


@pytest.mark.slow
def test_e2_what_changes_is_not_answered_from_the_cache_and_what_does_not_is(tmp_path: Path) -> None:
    cache = Cache()
    first = Bench(cache=cache)
    out = first.run()
    again = Bench(cache=cache)
    assert again.run() == out
    assert not again.chat.asked  # all of it was there
    changed = {
        "model": Bench(cache=cache, name="another model"),
        "data": Bench(cache=cache, problems=[Riddles().task(n) for n in range(4, 8)]),
        "answers": Bench(cache=cache, world=Riddles(gold=lambda word: word), settings=TrainingFreeGRPO(group_size=4, epochs=1)),
        "prompts": Bench(cache=cache),
    }
    (tmp_path / "cot").mkdir()
    (tmp_path / "cot" / "answer.md").write_text(
        "## system\nYou solve a task. $brief\n## user\n$instruction\n$steps$observation\n"
    )
    graph = build_run(
        MethodInputs.with_chat_model(
            Riddles(), Journal(), CachedChatModel(changed["prompts"].chat, "scripted", cache), prompts=tmp_path
        ),
        changed["prompts"].settings,
        problems=changed["prompts"].problems,
        cache=cache,
    )
    graph.invoke({"run": "r"})
    for what in ("model", "data", "answers"):
        changed[what].run()
    for what in ("model", "data", "prompts"):
        assert changed[what].chat.kinds()["act"] >= 2 * 4 * 4, what  # all of its rollouts anew
    assert changed["answers"].world.judged == 4 * 4  # all wrong now
    assert changed["model"].chat.kinds()["act"] == first.chat.kinds()["act"]
    assert changed["answers"].rows[0]["truths"] != first.rows[0]["truths"]  # the same replies, judged anew
    assert changed["answers"].chat.kinds()["act"] == 0
    # Another size of batches: the rollouts of the first step are those of other problems, and only they are shared.
    batched = Bench(cache=cache, settings=TrainingFreeGRPO(group_size=4, epochs=2, batch_size=2))
    batched.run()
    assert batched.rows[0]["problems"] == first.rows[0]["problems"][:2]
    assert {id: batched.rows[0]["truths"][id] for id in batched.rows[0]["problems"]} == {
        id: first.rows[0]["truths"][id] for id in batched.rows[0]["problems"]
    }
    seeds = {seed for kind, _, seed in first.chat.asked if kind == "act"}
    assert seeds
    assert not seeds & {seed for kind, _, seed in batched.chat.asked if kind == "act"}


def test_e2_rollouts_are_known_by_their_tools() -> None:
    versions, cache, chat = LibraryVersions(), Cache(), Chat()

    @tool
    def look(place: str) -> str:
        """Look there."""
        return place

    @tool
    def turn(word: str, times: int = 1) -> str:
        """Turn a word."""
        return word

    def name(*tools: Any) -> str:
        inputs = MethodInputs.with_chat_model(Riddles(), Journal(), chat)
        graph = tool_agent.build(inputs, tools=lambda run, task, episode: tools, lessons=versions)
        return player_of(inputs, TrainingFreeGRPO(), versions, cache, graph).name

    names = [name(look), name(turn), name(look, turn)]
    assert len({*names}) == 3
    assert names == [name(look), name(turn), name(look, turn)]


class Broken(Riddles):
    """Its verifier raises for some problems, or for all."""

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__()
        self.ids = ids

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        if actions and task.id in self.ids:
            raise ArithmeticError("signal only works in main thread")
        return super().observe(task, actions)


class Unsure(Riddles):
    """Its verifier cannot say for some problems."""

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        found = super().observe(task, actions)
        return replace(found, reward=None, text="the checker timed out") if actions and task.id == "train-0" else found


def test_e6_what_could_not_be_verified_counts_as_0_is_told_and_is_in_no_comparison() -> None:
    for world, why in (
        (Broken(["train-0"]), "ArithmeticError: signal only works in main thread"),
        (Unsure(), "no reward: the checker timed out"),
    ):
        bench = Bench(world=world)
        bench.run()
        row = bench.rows[0]
        assert row["truths"]["train-0"] == [None] * 4
        assert row["groups"]["train-0"] == "failed"
        assert row["failures"] == [f"train-0: rollout {n}: {why}" for n in range(4)]
        assert row["train"] == 3 / 16  # of train-2 and train-3
        assert row["passed"] == 2 / 4


def test_e6_a_verifier_that_raises_everywhere_is_an_error_and_not_a_reward_of_0() -> None:
    bench = Bench(world=Broken([f"train-{n}" for n in range(4)]))
    with pytest.raises(UserError, match="all 16 rollouts of step 0 failed, for one reason: ArithmeticError: signal only works"):
        bench.run()
    assert set(bench.chat.kinds()) == {"act"}


def test_e6_nor_where_every_step_is_of_one_problem() -> None:
    bench = Bench(
        world=Broken([f"train-{n}" for n in range(4)]),
        settings=TrainingFreeGRPO(group_size=4, epochs=2, batch_size=1, patience=0),
    )
    with pytest.raises(
        UserError, match="all rollouts of epoch 0 failed, in the end 4, for one reason: ArithmeticError: signal"
    ):
        bench.run()
    assert len(bench.rows) == 3
    impatient = Bench(
        world=Broken([f"train-{n}" for n in range(4)]), settings=TrainingFreeGRPO(group_size=4, epochs=2, batch_size=1)
    )
    stopped = impatient.run()["stopped"]
    assert stopped.startswith("no gain in 2 steps: all rollouts failed, for one reason: ArithmeticError: signal only works")


def test_e6_one_problem_that_nobody_can_verify_does_not_end_a_run() -> None:
    bench = Bench(world=Broken(["train-1"]), settings=TrainingFreeGRPO(group_size=4, epochs=1, batch_size=1, patience=0))
    bench.run()
    assert Counter(kind for row in bench.rows for kind in row["kinds"])["failed"] == 1
    assert len(bench.rows) == 4


def test_a_rollout_of_another_journal_is_the_callers_mistake_and_no_failure() -> None:
    bench = Bench()
    bench.more["rollout"] = lesson_graph(bench.inputs(), bench.settings, bench.versions)
    with pytest.raises(JournalError, match="another journal"):
        bench.run()


def test_the_agent_with_tools_may_play_the_rollouts() -> None:
    bench = Bench()
    inputs = bench.inputs()
    agent = tool_agent.build(inputs, lessons=bench.versions)
    out = bench.run(inputs=inputs, rollout=agent)
    assert [lesson.text for lesson in bench.product(out).lessons] == [LESSON]
    assert [row["train"] for row in bench.rows][1] == 1.0
    names = {
        player_of(inputs, bench.settings, bench.versions, bench.cache, one).name
        for one in (agent, tool_agent.build(inputs, tool_agent.ToolAgent(max_turns=3), lessons=bench.versions))
    }
    assert len(names) == 2  # other settings, other rollouts


# Without ground truth


def test_one_rollout_a_problem_is_enough_where_nothing_is_compared() -> None:
    bench = Bench(settings=TrainingFreeGRPO(epochs=1, group_size=1))
    out = bench.run()
    assert set(bench.rows[0]["groups"].values()) == {"single"}
    assert [lesson.text for lesson in bench.product(out).lessons] == [LESSON]
    with pytest.raises(UserError, match="author=rule needs 2 or more"):
        TrainingFreeGRPO(group_size=1, author="rule")


def test_without_labels_every_group_is_compared_and_no_verdict_is_told() -> None:
    bench = Bench(settings=TrainingFreeGRPO(group_size=3, epochs=1, truth="implicit"))
    out = bench.run()
    assert bench.rows[0]["groups"] == {f"train-{n}": "unlabelled" for n in range(4)}, "those that agree, too"
    assert all(rewards == [None] * 3 for rewards in bench.rows[0]["rewards"].values())
    assert [lesson.text for lesson in bench.product(out).lessons] == [LESSON]
    asked = [told for kind, told, _ in bench.chat.asked if kind != "act"]
    assert asked
    assert not [told for told in asked if "VERDICT" in told]
    with pytest.raises(UserError, match="truth=implicit has none"):
        replace(TrainingFreeGRPO(truth="implicit"), author="rule")


@pytest.mark.parametrize("truth", ["given", "implicit"])
def test_without_ground_truth_the_agent_itself_is_not_told_what_the_world_pays(truth: Any) -> None:
    toy, versions, told = KeywordKeep(), LibraryVersions(), list[str]()
    task, gold = toy.task(0), toy.gold(toy.task(0))

    class Acts(Chat):
        def say(self, messages: list[BaseMessage], **more: Any) -> AIMessage:
            told.append("\n".join(str(message.content) for message in messages))
            return AIMessage(f"Thought: on.\nAction: {gold[(len(told) - 1) % len(gold)]}")

    versions.put("r/0", Library())
    settings = TrainingFreeGRPO(truth=truth, accept="always")
    inputs = MethodInputs.with_chat_model(toy, Journal(), Acts())
    for temperature in (None, 0.3):  # learning, and test
        graph = lesson_graph(inputs, settings, versions, temperature)
        roll = player_of(inputs, settings, versions, Cache(), graph)
        told.clear()
        rollout = roll.invoke({"task": task, "run": "r/0", "episode": 0, "library": "r/0"})
        assert rollout.reward == 1.0
        assert len(told) == len(gold)
        paid = [one for one in (*told, rollout.transcript) if re.search(r"^(= |total )", one, re.MULTILINE)]
        assert bool(paid) is (truth == "given")


# Budget, arms, problems


class Hiccup(Chat):
    """One rollout's call fails, once."""

    at: int = -1

    def _act(self, told: str, draw: random.Random) -> str:
        if self.kinds()["act"] - 1 == self.at:
            self.at = -1
            raise ConnectionError("one hiccup")
        return super()._act(told, draw)


@pytest.mark.parametrize(
    "budget", [pytest.param(12, marks=pytest.mark.slow), *(pytest.param(more, marks=pytest.mark.long) for more in (22, 40))]
)
def test_e10_what_failed_once_stays_failed_when_a_run_goes_on_after_its_budget(budget: int) -> None:
    """A failure at positions all over a run, then a stop; the run that starts over does not come to another library of the same name."""
    settings = TrainingFreeGRPO(group_size=3, epochs=2, patience=0)
    one_by_one: Any = {"max_concurrency": 1}

    def run(bench: Bench) -> tuple[Any, ...]:
        out = bench.graph().invoke({"run": "r"}, one_by_one)
        # What was paid may differ: a failed rollout of the accept test is played again, though what was decided on it holds.
        paid = {"usage": None, "tokens": None}
        rows = [{**quiet(row), **paid} for row in bench.rows if not row["id"].endswith("/stopped")]
        return {**out, "usage": None}, bench.product(out).to_yaml(), rows

    undisturbed = run(Bench(Hiccup(), settings))
    different = 0
    for at in range(0, 34, 9 if budget == 12 else 3):
        failed = run(Bench(Hiccup(at=at), settings))
        cache = Cache()
        bench = Bench(Hiccup(at=at), settings, cache=cache, meter=SpendingLimit(cache, max_tokens=110 * budget))
        assert "budget" in run(bench)[0]["stopped"]
        bench.meter = None
        # A failure in a group, or in a test, that the budget did not last for gets another chance; any other stays one.
        ended = run(bench)
        assert ended in (failed, undisturbed)
        different += ended == failed != undisturbed
        assert run(bench) == ended
    assert different or budget == 12


@pytest.mark.slow
async def test_e10_a_spent_budget_cancels_nothing_that_is_paid_for() -> None:
    """Rollouts of four calls each, many in flight when the budget is gone: all are heard, counted and kept."""

    class Slow(Chat):
        heard: int = 0

        async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **more: Any) -> Any:
            found = self._generate(messages, stop, run_manager, **more)
            for _ in range(1 + len(self.asked) * 7 % 5):
                await asyncio.sleep(0)
            self.heard += 1
            return found

    def played(chat: Chat) -> Counter[Any]:
        return Counter(asked for asked in chat.asked if asked[0] == "act")

    whole = Counter[Any]()
    for calls in (10**6, 5, 20, 50, 68, 72, 90):
        cache, chat = Cache(), Slow()
        meter = SpendingLimit(cache, max_tokens=110 * calls)
        model = CachedChatModel(chat, "x", cache, "rollout", meter)

        async def play(asked: dict[str, Any], model: CachedChatModel = model) -> dict[str, Any]:
            for call in range(4):
                where = f"{asked['task'].id}, {asked['episode']} under {asked['library']}"
                told = f"You solve {call} of {where}: the secret of a{asked['episode']} Lessons:"
                said = (await model.ainvoke(told, seed=call)).content
            return {"score": float(asked["episode"] % 2), "transcript": f"> {said}\n", "answer": said}

        settings = TrainingFreeGRPO(group_size=4, epochs=1)
        bench = Bench(chat, settings, cache=cache, meter=meter, rollout=RunnableLambda(play))
        out = await bench.graph().ainvoke({"run": "r"})
        assert len(chat.asked) == chat.heard == sum(usage.calls for usage in cache.usage_by_stage().values())
        if not whole:
            whole = played(chat)
            assert max(whole.values()) == 1
            continue
        assert "budget" in out["stopped"]
        bench.meter = None
        object.__setattr__(model, "meter", None)
        await bench.graph().ainvoke({"run": "r"})
        assert played(chat) == whole  # nothing was paid for twice


def test_a_group_in_which_all_failed_gets_another_chance_until_something_was_made_of_its_step() -> None:
    broken = Broken([f"train-{n}" for n in range(4)])
    bench = Bench(world=broken, settings=TrainingFreeGRPO(group_size=4, epochs=1))
    with pytest.raises(UserError, match="all 16 rollouts"):
        bench.run()
    broken.ids = ["train-0"]
    out = bench.run()
    assert bench.rows[0]["groups"]["train-0"] == "failed"
    before = bench.product(out).to_yaml()
    broken.ids = []  # it would work now, but a version was made of that step
    assert bench.run() == out
    assert bench.product(out).to_yaml() == before
    bench.versions, bench.log = LibraryVersions(), Rows()
    bench.run()
    assert bench.rows[0]["groups"]["train-0"] != "failed"


def test_what_could_not_be_judged_was_paid_for() -> None:
    def play(asked: dict[str, Any]) -> dict[str, Any]:
        return {
            "score": 0.0,
            "earned": None,
            "unjudged": "no",
            "transcript": "> a\n",
            "answer": "a",
            "usage": Usage(1, 900, 100),
        }

    bench = Bench()
    inputs = MethodInputs.with_chat_model(bench.world, Journal(), Chat())
    meter = SpendingLimit(bench.cache, max_tokens=3000)
    settings = TrainingFreeGRPO(group_size=5, epochs=1, truth="implicit", accept="always")
    graph = build_run(inputs, settings, problems=bench.problems, cache=bench.cache, meter=meter, rollout=RunnableLambda(play))
    out = graph.invoke({"run": "r"}, {"max_concurrency": 1})
    assert "the budget of 3,000 tokens is spent: 3 calls" in out["stopped"]
    assert meter.total_usage == Usage(3, 2700, 300)


def test_a_budget_holds_for_critics_that_nobody_recorded() -> None:
    cache, critic = Cache(), Chat()
    bench = Bench(
        settings=TrainingFreeGRPO(group_size=4, epochs=1),
        cache=cache,
        critic=critic,
        meter=SpendingLimit(cache, max_tokens=110 * 18),
    )
    assert "budget" in bench.graph().invoke({"run": "r"}, {"max_concurrency": 1})["stopped"]
    assert bench.chat.kinds()["act"] + len(critic.asked) == 18


def test_a_budget_holds_for_models_that_only_score() -> None:
    toy, cache = KeywordKeep(), Cache()

    class Scores:
        def score(self, messages: Any, options: Sequence[str]) -> list[float]:
            found = Priced([0.0] * len(options))
            found.prompt_tokens = 50
            return found

        window = 4096

        def get_num_tokens(self, text: str) -> int:
            return len(text.split())

    class Priced(list[float]):
        prompt_tokens = 0

    graph = build_run(
        MethodInputs.with_scoring_model(toy, Journal(), Scores()),
        TrainingFreeGRPO(group_size=2, epochs=1, author="rule"),
        problems=[toy.task(n) for n in range(3)],
        cache=cache,
        meter=SpendingLimit(cache, max_tokens=1000),
    )
    assert "1,000 tokens is spent" in graph.invoke({"run": "r"}, {"max_concurrency": 1})["stopped"]


@pytest.mark.slow
def test_the_arms() -> None:
    texts = {}
    for arm in ("learned", "empty", "self-generated", "random", "shuffled"):
        bench = Bench(settings=TrainingFreeGRPO(group_size=4, epochs=1, arm=arm, lessons=LessonSettings(max_lessons=2)))  # type: ignore[arg-type]
        out = bench.run()
        texts[arm] = [lesson.text for lesson in bench.product(out).lessons]
        if arm == "empty":
            assert not bench.chat.asked
        if arm == "self-generated":
            assert set(bench.chat.kinds()) == {"invent"}
            assert not any("backwards" in told for _, told, _ in bench.chat.asked)
        assert bench.versions.head == out["best"]
    assert texts["learned"] == [LESSON]
    assert texts["empty"] == []
    assert texts["self-generated"] == [LESSON, "When in doubt, read the riddle again."]
    assert len(texts["random"]) == len(texts["shuffled"]) == 1
    assert texts["random"] != [LESSON]
    assert sorted(texts["shuffled"][0].split()) == sorted(LESSON.split())
    assert texts["shuffled"] != [LESSON]


def test_a_library_to_start_from(tmp_path: Path) -> None:
    file = tmp_path / "library.yaml"
    file.write_text(f"- {LESSON}\n")
    bench = Bench(settings=TrainingFreeGRPO(group_size=4, epochs=1, library=str(file)))
    assert bench.product(bench.run()).lessons[0].text == LESSON
    assert bench.rows[0]["train"] == 1.0
    with pytest.raises(UserError, match=r"none\.yaml"):
        Bench(settings=TrainingFreeGRPO(library=str(tmp_path / "none.yaml"))).run()


def test_problems_that_are_there_twice_or_held_out_too_are_refused_or_dropped() -> None:
    world = Riddles()
    one, two = world.task(0), world.task(1)
    with pytest.raises(UserError, match="1 of the problems have an id that another one has: \\['train-0'\\]"):
        Bench(problems=[one, two, one]).graph()
    with pytest.raises(UserError, match="1 held-out problems are also learned on"):
        Bench(problems=[one, two], held_out=[replace(one, id="other")]).graph()
    same = replace(one, id="again", instruction=one.instruction.replace(" is ", "  is "))
    assert deduplicate([one, two, same], [], True) == ([one, two], [], ["again"])
    assert deduplicate([one, two, same], [], False) == ([one, two, same], [], [])  # another world behind the same words
    bench = Bench(problems=[one, two, same], settings=TrainingFreeGRPO(group_size=2, epochs=1))
    bench.run()
    assert bench.rows[0]["dropped"] == ["again"]
    assert sorted(bench.rows[0]["problems"]) == ["train-0", "train-1"]


def test_without_problems_those_of_the_environment_are_taken() -> None:
    bench = Bench(problems=[], held_out=[], settings=TrainingFreeGRPO(problems=3, held_out=2, group_size=2, epochs=1))
    bench.run()
    assert sorted(bench.rows[0]["problems"]) == ["train-0", "train-1", "train-2"]
    assert bench.rows[0]["trial"]["problems"] == 2


# Crashes


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["checkpoints and cache", "cache alone"])
def test_stopped_at_any_call_a_run_ends_as_if_nothing_had_happened_and_pays_for_nothing_twice(kept: str) -> None:
    whole = Bench(settings=TrainingFreeGRPO(group_size=3, epochs=2))
    out = dict(whole.graph().invoke({"run": "r"}, {"max_concurrency": 1}))
    calls = len(whole.chat.asked)
    told = Counter(whole.chat.asked)
    for stop in range(0, calls, 9):
        # Failing calls are failed rollouts, so the process ends at the call itself.
        chat, saver = Fatal(stop_at=stop), InMemorySaver(serde=serializer())
        bench = Bench(chat, TrainingFreeGRPO(group_size=3, epochs=2))
        config: Any = {"configurable": {"thread_id": "t"}, "max_concurrency": 1}
        with pytest.raises(Killed):
            bench.graph(checkpointer=saver).invoke({"run": "r"}, config)
        chat.stop_at = 10**9
        if kept == "cache alone":
            saver = InMemorySaver(serde=serializer())
        resumed = saver.get_tuple({"configurable": {"thread_id": "t"}}) is not None
        ended = bench.graph(checkpointer=saver).invoke(None if resumed else {"run": "r"}, config)
        assert ended == out, stop
        assert bench.product(ended).to_yaml() == whole.product(out).to_yaml()
        assert [quiet(row) for row in bench.rows] == [quiet(row) for row in whole.rows]
        assert Counter(chat.asked) == told, stop


class Fatal(Chat):
    """Ends the process at a call."""

    def say(self, messages: list[BaseMessage], **more: Any) -> AIMessage:
        if len(self.asked) >= self.stop_at:
            raise Killed
        return super().say(messages, **more)


class Killed(BaseException):
    """The end of the process, as far as the graph can tell: no failure of a rollout."""


def test_checkpoints_hold_names_and_no_libraries(tmp_path: Path) -> None:
    bench = Bench()
    with open_checkpoints(tmp_path / "checkpoints.db") as saver:
        graph = bench.graph(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "t"}}
        graph.invoke({"run": "r"}, config)
        namespaces = {found.config["configurable"]["checkpoint_ns"] for found in saver.list(None)}
        values = graph.get_state(config).values
    assert namespaces == {""}  # nothing of groups and rollouts
    assert not any(isinstance(value, Library) for value in values.values())


# Drawings


def test_the_graph_of_a_group_is_the_one_in_the_picture() -> None:
    group = Bench().graph().builder.nodes["group"].runnable.graph
    assert flow.to_mermaid(group) == (PICTURES / "training-free-grpo-group.mmd").read_text()


def test_where_nothing_is_summarised_the_group_is_drawn_without() -> None:
    toy = KeywordKeep()
    graph = build_run(MethodInputs(toy), TrainingFreeGRPO(author="rule"), problems=[toy.task(0)])
    plain = flow.to_mermaid(graph.builder.nodes["group"].runnable.graph)  # type: ignore[union-attr]
    assert set(flow.read_flow(plain).edges) == set(flow.read_flow(training_free_grpo.GROUP_FLOW_WITHOUT_SUMMARIES).edges)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"group_size": 0}, "group_size is a whole number of at least 1; got 0"),
        ({"accept": "maybe"}, "accept is one of not-worse, better, always"),
        ({"truth": "none"}, "truth is one of given, implicit"),
        ({"arm": "best"}, "arm is one of learned, empty"),
        ({"epochs": 0}, "epochs is a whole number of at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        TrainingFreeGRPO(**settings)
    with pytest.raises(UserError, match=r"RolloutSettings: timeout is a number of at least 0.001 or None; got 0"):
        RolloutSettings(timeout=0)


def test_presets_change_what_they_name() -> None:
    paper = TrainingFreeGRPO.paper()
    assert (paper.epochs, paper.batch_size, paper.group_size, paper.problems, paper.held_out) == (3, 0, 5, 100, 0)
    assert (paper.accept, paper.patience, paper.wording) == ("always", 0, "paper")
    assert replace(TrainingFreeGRPO.web(), group_size=5) == paper


def test_votes_count_whether_or_not_the_steps_candidate_is_accepted(tmp_path: Path) -> None:
    """What did harm is known after a step that came to nothing, too."""

    class Votes(Misled):
        def _contrast(self, told: str, draw: random.Random) -> str:
            return json.dumps({"lessons": [self.teaches], "helpful": [], "harmful": ["L0"]})

    (tmp_path / "start.yaml").write_text("- When asked, think.\n")
    settings = TrainingFreeGRPO(group_size=4, epochs=2, patience=0, library=str(tmp_path / "start.yaml"))
    bench = Bench(Votes(), settings)
    out = bench.run()
    assert [(row["accepted"], row["before"], row["library"]) for row in bench.rows] == [
        (False, "r/0", "r/1-kept"),
        (False, "r/1-kept", "r/2-kept"),
    ]
    (lesson,) = bench.product(out).lessons
    compared = sum(row["compared"] for row in bench.rows)
    assert compared > 3
    assert (lesson.text, lesson.harmful, lesson.shown) == ("When asked, think.", compared, 2 * 4 * 4)
    assert bench.versions.head == out["best"] == out["library"] == "r/2-kept"
    assert bench.chat.kinds()["act"] == 2 * 4 * 4 + 4 * 5  # in each step the candidate, and the library afresh
    assert bench.run() == out


@pytest.mark.slow
def test_the_random_arm_of_a_run_that_the_budget_ended_goes_on_to_another_version() -> None:
    settings = TrainingFreeGRPO(group_size=4, epochs=2, arm="random", patience=0)
    whole = Bench(Hiccup(at=3), settings)
    out = whole.graph().invoke({"run": "r"}, {"max_concurrency": 1})
    cache = Cache()
    bench = Bench(Hiccup(at=3), settings, cache=cache, meter=SpendingLimit(cache, max_tokens=110 * 45))
    stopped = bench.graph().invoke({"run": "r"}, {"max_concurrency": 1})
    assert "budget" in stopped["stopped"]
    assert (stopped["best"], out["best"]) == (f"r/random/{stopped['step']}", "r/random")
    bench.meter = None
    ended = bench.graph().invoke({"run": "r"}, {"max_concurrency": 1})
    assert ended["best"] == "r/random"
    assert bench.product(ended).to_yaml() == whole.product(out).to_yaml()
    assert bench.product(ended).lessons


# Which model the lessons are of


class NamedChat(Chat):
    model_name: str = "org/small-1"


def test_a_library_names_the_models_that_wrote_and_tested_it_and_warns_another_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(NamedChat(), critic=NamedChat(model_name="org/large-1"))
    out = bench.run()
    held = bench.product(out)
    assert out["best"] == "r/2-kept"  # the accepted version with the votes of the next step
    assert (held.written_by, held.tested_with) == ("org/large-1", "org/small-1")
    assert bench.versions.at("r/0").tested_with == ""
    file = tmp_path / "lessons.yaml"
    file.write_text(held.to_yaml())

    settings = TrainingFreeGRPO(group_size=2, library=str(file), epochs=1)
    Bench(NamedChat(), settings).run()
    assert not caplog.records
    Bench(NamedChat(model_name="org/other"), settings).run()
    assert (
        "written by org/large-1 and passed their accept test with org/small-1; org/other is about to read them" in caplog.text
    )


def test_a_library_that_everything_is_accepted_into_passed_no_test() -> None:
    bench = Bench(NamedChat(), TrainingFreeGRPO(group_size=4, epochs=2, accept="always"))
    held = bench.product(bench.run())
    assert held.lessons
    assert (held.written_by, held.tested_with) == ("org/small-1", "")
