"""The work of a run of Training-Free GRPO: the arms of a seed learn, and play the unseen problems.

A worker process plays a seed. What it finishes is on disk at once: it may be killed at any point, and the next one goes on.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....memory.errors import UserError
from ....memory.records import Rollout, Task, Usage
from .digests import file_digest, public_url, weights_digest
from .setup import (
    DERIVED_ARMS,
    ROLLOUT_STAGES,
    Arm,
    ProblemSplit,
    TrainingFreeOptions,
    TrainingFreeSetup,
    shared_model,
    shared_toolbox,
    shared_world,
)

if TYPE_CHECKING:
    from ....memory.library import Library, LibraryVersions
    from ....memory.storage.cache import Cache
    from ....nodes.cached_model import SpendingLimit
    from ...wiring.parts import MethodInputs
    from ..learning_curves import LearningStep

__all__ = ["SeedWorker", "complete_rows", "learning_step", "play_seed", "spending_meter"]

SECRET_PATTERN = re.compile(r"\bsk-[\w-]{4,}")
"""What a key looks like."""


def _redact_keys(text: str) -> str:
    """An error's text without keys: some servers repeat what they were sent."""
    for name in ("OPENAI_API_KEY", "TAVILY_API_KEY", "SERPAPI_API_KEY"):
        if len(key := os.environ.get(name, "")) > 3:
            text = text.replace(key, f"${name}")
    return SECRET_PATTERN.sub("sk-…", re.sub(r"(?<=://)[^/@\s]+@", "", text))


def play_seed(work: tuple[TrainingFreeSetup, int, ProblemSplit]) -> str | None:
    """Learn and test all arms of a seed, from wherever they stand; what a worker process does.

    Returns what went wrong, if it is something the user can put right. A budget that is spent is nothing wrong.
    """
    from ....nodes.cached_model import BudgetSpent

    setup, seed, split = work
    try:
        asyncio.run(SeedWorker(setup, seed, split).play())
    except BudgetSpent:
        return None
    except UserError as error:
        return _redact_keys(str(error))
    except OSError as error:
        return f"{error.filename or setup.folder}: {error.strerror or error}"
    except Exception:  # ours: a traceback as text reaches the parent whatever the exception is made of
        raise RuntimeError(traceback.format_exc()) from None
    return None


def spending_meter(options: TrainingFreeOptions, cache: Cache) -> SpendingLimit:
    """What counts the tokens and dollars that a run pays for, and stops it when they are spent."""
    from ....nodes.cached_model import SpendingLimit

    return SpendingLimit(
        cache,
        options.prices("critic"),
        {stage: options.prices(stage) for stage in ROLLOUT_STAGES},
        max_dollars=options.dollar_budget or None,
        max_tokens=options.token_budget or None,
    )


class SeedWorker:
    """Where the arms of a seed are worked on, one after the other: they share the cache and the models."""

    def __init__(self, setup: TrainingFreeSetup, seed: int, split: ProblemSplit) -> None:
        self.setup, self.options, self.seed, self.split = setup, setup.options, seed, split
        self.run = f"s{seed}"

    def open(self, cache: Cache, limit: int) -> None:
        """Keep replies and rollouts here, with at most so many calls in flight."""
        from ....nodes.cached_model import ConcurrencyLimit

        self.cache, self.meter, self.slots = cache, spending_meter(self.options, cache), ConcurrencyLimit(limit)
        # Of their own: a rollout that waits for its turn holds no call's. A model in this process remembers the prompt before,
        # and reads all of it anew where rollouts take turns.
        self.rollouts = ConcurrencyLimit(limit)

    async def play(self) -> None:
        """All arms that are not finished."""
        from ....memory.storage.cache import Cache

        cache = Cache(self.setup.folder / "cache.sqlite")
        try:
            remote = "openai" in (self.options.model.partition(":")[0], self.options.critic_model.partition(":")[0])
            self.open(cache, self.options.concurrency or (16 if remote else 1))
            for arm in self.setup.arms:
                if not self.setup.is_finished(arm, self.seed):
                    await self._arm(arm)
        finally:
            cache.close()

    async def _arm(self, arm: Arm) -> None:
        from filelock import FileLock

        from ....memory.library import LibraryVersions
        from ....memory.storage.journal import Journal
        from ....memory.storage.rows import Rows
        from .. import sweep

        place = self.setup.arm_folder(arm, self.seed)
        with ExitStack() as stack:
            place.mkdir(parents=True, exist_ok=True)
            # A worker whose run was killed ends a moment after it.
            stack.enter_context(FileLock(place / "owner.lock", timeout=30))
            versions, journal = LibraryVersions(place / "library.jsonl"), Journal(place / "steps.jsonl")
            log, tests = Rows(place / "learned.jsonl"), Rows(place / "test.jsonl")
            for file in (versions, journal, log, tests):
                stack.callback(file.close)
            name, learned = await self._make_library(arm, place, versions, journal, log)
            rollouts = self._require_sound(arm, await self._test(arm, versions, journal, name, tests))
            rows = complete_rows(log.values())
            steps = [learning_step(self.seed, row) for row in rows]
            if self.options.curve and arm.learns:
                measured = []
                for row, step in zip(rows, steps, strict=True):
                    played = self._require_sound(arm, await self._test(arm, versions, journal, str(row["library"]), None))
                    measured.append(replace(step, test=sum(one.reward or 0.0 for one in played) / len(played)))
                steps = measured
            library = versions.at(name)
            if arm.library_source != "method":
                (place / "library.yaml").write_text(library.to_yaml(), encoding="utf-8")
            sweep.write_json(
                place / "result.json",
                {
                    "arm": arm.name,
                    "seed": self.seed,
                    "library": name,
                    "lessons": len(library.lessons),
                    "learned": asdict(learned),
                    "problems": {
                        "train": [task.id for task in self.split.for_settings(arm.settings)[0]] if arm.learns else [],
                        "held_out": [task.id for task in self.split.for_settings(arm.settings)[1]] if arm.learns else [],
                        "test": [task.id for task in self.split.test],
                    },
                    "rollouts": [_rollout_row(rollout, "answer", "error") for rollout in rollouts],
                    "steps": [asdict(step) for step in steps],
                    "failures": [
                        [row["id"], _redact_keys(said)] for row in rows for said in (*row["failures"], *row["probe_failures"])
                    ],
                },
            )

    # How an arm comes to its library

    async def _make_library(
        self, arm: Arm, place: Path, versions: LibraryVersions, journal: Any, log: Any
    ) -> tuple[str, Usage]:
        """Name of the version that is tested, and what it took to learn it."""
        from ....memory.library import Library
        from ....nodes.act.choose import seeded_random
        from ....nodes.extract.critic import random_lessons, shuffle_lessons
        from ... import training_free_grpo

        start = f"{self.run}/0"
        if arm.learns:
            return await self._learn_library(arm, arm.settings, place, versions, journal, log)
        if arm.library_source == "self-generated":
            settings = arm.settings
            if self.setup.arms[0].learns:  # a control has as many lessons
                if not (count := len(self._first_arm_libraries()[0].lessons)):
                    return versions.put(start, Library(), why="no lessons, as none were learned"), Usage()
                settings = replace(settings, lessons=count)
            return await self._learn_library(arm, settings, place, versions, journal, log)
        if arm.library_source not in DERIVED_ARMS:
            return versions.put(start, Library(), why="no lessons"), Usage()
        learned, began = self._first_arm_libraries()
        versions.put(start, began, why="what learning began with")
        seed = seeded_random(self.run, arm.library_source).getrandbits(31)
        if arm.library_source == "shuffled":
            control = shuffle_lessons(learned, seed)
        else:
            parts = self.parts(journal, "rollout", arm.settings.temperature)
            bounds = training_free_grpo.library_limits(parts, arm.settings)
            played = await self._initial_rollouts(arm, versions, journal)
            control = random_lessons(played, len(learned.lessons), bounds, seed, tokens=parts.count_tokens)
        return versions.put(
            f"{self.run}/{arm.library_source}", control, why=f"{arm.library_source}: a control of what was learned"
        ), Usage()

    def _first_arm_libraries(self) -> tuple[Library, Library]:
        """What this seed's first arm has learned, and what it began with."""
        from ....memory.library import LibraryVersions

        first = self.setup.arms[0]
        versions = LibraryVersions.read(self.setup.arm_folder(first, self.seed) / "library.jsonl")
        return versions.at(self.setup.result(first, self.seed)["library"]), versions.at(f"{self.run}/0")

    async def _initial_rollouts(self, arm: Arm, versions: LibraryVersions, journal: Any) -> list[Rollout]:
        """Those that learning began with; they are in the cache."""
        roll = self.rollout_node(arm, versions, journal, "rollout", arm.settings.temperature)
        train, _ = self.split.for_settings(arm.settings)
        work = [(task, number) for task in train for number in range(arm.settings.group_size)]
        played = await self._play_rollouts(roll, f"{self.run}/0", f"{self.run}/0", work)
        return [rollout for rollout in played if not rollout.error]

    async def _learn_library(
        self, arm: Arm, settings: Any, place: Path, versions: LibraryVersions, journal: Any, log: Any
    ) -> tuple[str, Usage]:
        from ....memory.storage.checkpoints import open_checkpoints_async
        from ....nodes.cached_model import BudgetSpent
        from ... import training_free_grpo

        train, held_out = self.split.for_settings(settings)
        parts = self.parts(journal, "rollout", settings.temperature)
        async with open_checkpoints_async(place / "checkpoints.sqlite") as saver:
            graph = training_free_grpo.build(
                parts,
                settings,
                problems=train,
                held_out=held_out,
                versions=versions,
                cache=self.cache,
                rollout=self.rollout_graph(arm, versions, journal, "rollout", settings.temperature),
                trial_rollout=self.rollout_graph(arm, versions, journal, "trial", settings.trial_temperature),
                critic=self.critic(),
                cache_model=self.critic_at_stage,
                log=log,
                meter=self.meter,
                name=self._fingerprint(arm),
                slots=self.rollouts,
                checkpointer=saver,
            )
            config = await self._thread(graph, saver)
            begin = None if await saver.aget_tuple(config) else {"run": self.run}
            try:
                await graph.ainvoke(begin, config, durability="async")
            except UserError:
                # The checkpoints hold what failed. Without them the next try goes through what is in the cache, and asks again
                # for what is not.
                await saver.adelete_thread(config["configurable"]["thread_id"])
                raise
            ended = (await graph.aget_state(config)).values
        if _is_out_of_budget(ended):
            (place / "library.yaml").write_text(versions.at(ended["best"]).to_yaml(), encoding="utf-8")
            raise BudgetSpent(ended["stopped"])
        return ended["best"], ended["usage"]

    async def _thread(self, graph: Any, saver: Any) -> Any:
        """The run's thread of checkpoints. One that ended because the budget was spent is left: all that was paid for is in the
        cache, and a new one comes to the same place at no cost."""
        number = 0
        while True:
            config: Any = {"configurable": {"thread_id": f"{self.run}/{number}"}, "recursion_limit": 1_000_000}
            if not await saver.aget_tuple(config):
                return config
            state = await graph.aget_state(config)
            if state.next or not _is_out_of_budget(state.values):
                return config
            number += 1

    # The test

    async def _test(self, arm: Arm, versions: LibraryVersions, journal: Any, library: str, log: Any) -> list[Rollout]:
        """The rollouts of the unseen problems under a library, by problem and run index; the same draws in all arms."""
        temperature = self.options.test_temperature
        if temperature is None:
            temperature = getattr(arm.settings, "trial_temperature", self.setup.arms[0].settings.trial_temperature)
        roll = self.rollout_node(arm, versions, journal, "test", temperature)
        work = [(task, number) for task in self.split.test for number in range(self.options.test_rollouts)]
        return await self._play_rollouts(roll, f"{self.run}/test", library, work, log)

    def _require_sound(self, arm: Arm, rollouts: list[Rollout]) -> list[Rollout]:
        """Rollouts of the test that may be counted for good.

        Raises:
            UserError: some did not come to an end through no fault of the agent's (a server that is down), or all failed.
        """
        failed = [one for one in rollouts if one.error]
        left = [one for one in failed if not _is_final_failure(one)] or (failed if len(failed) == len(rollouts) else [])
        if left:
            raise UserError(
                f"{arm.name}, seed {self.seed}: {len(left)} of {len(rollouts)} rollouts of the test failed ({left[0].id}: "
                f"{_clip_text(left[0].error)}); none of them counts, and once that is put right they are played again"
            )
        return rollouts

    async def _play_rollouts(
        self, roll: Any, run: str, library: str, work: Sequence[tuple[Task, int]], log: Any = None
    ) -> list[Rollout]:

        async def one(task: Task, number: int) -> Rollout:
            rollout: Rollout = await roll.ainvoke({"task": task, "run": run, "episode": number, "library": library})
            if log is not None and not rollout.error:  # what failed is tried again by whoever resumes
                log.append(_rollout_row(rollout, "answer", "transcript"))
            return rollout

        tasks = [asyncio.ensure_future(one(task, number)) for task, number in work]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for left in tasks:  # after an error
                left.cancel()

    # What plays

    def rollout_node(self, arm: Arm, versions: LibraryVersions, journal: Any, stage: str, temperature: float) -> Any:
        """A node that plays a problem, or finds in the cache how it was played."""
        from ... import training_free_grpo

        settings = arm.settings if arm.library_source != "method" else self.setup.arms[0].settings
        parts = self.parts(journal, stage, temperature)
        graph = self.rollout_graph(arm, versions, journal, stage, temperature)
        more: dict[str, Any] = {"name": self._fingerprint(arm), "slots": self.rollouts, "meter": self.meter, "stage": stage}
        return training_free_grpo.rollout_node(parts, settings, versions, self.cache, graph, **more)

    def rollout_graph(self, arm: Arm, versions: LibraryVersions, journal: Any, stage: str, temperature: float) -> Any:
        """The graph of a rollout."""
        from ... import training_free_grpo
        from ...baselines import tool_agent
        from ...baselines.tool_agent import ToolAgent
        from ...methods import find_method

        parts = self.parts(journal, stage, temperature)
        tools = shared_toolbox(self.options.tool_names, self.options.corpus)
        if arm.library_source == "method":
            settings = arm.settings
            if getattr(settings, "temperature", None) is not None:  # of a softmax over scored actions
                settings = replace(settings, temperature=temperature)
            return find_method(arm.method).build(parts, settings, **({"tools": tools} if arm.method == "tool-agent" else {}))
        if tools is not None:
            agent = ToolAgent(
                self.options.tool_turns or ToolAgent.max_turns, lessons_per_prompt=arm.settings.lessons_per_prompt
            )
            return tool_agent.build(parts, agent, tools=tools, lessons=versions)
        return training_free_grpo.episode_graph(parts, arm.settings, versions, temperature)

    def parts(self, journal: Any, stage: str, temperature: float) -> MethodInputs:
        """What rollouts of a stage are put together from: each stage has a model of its own, at its own temperature."""
        from ...wiring.parts import MethodInputs

        options = self.options
        world = shared_world(options.test_env or options.env if stage == "test" else options.env, options.horizon)
        model = self.model(options.model, options.base_url, stage, temperature)
        more: dict[str, Any] = {"prompts": options.prompts}
        if options.window is not None:
            more["window"] = min(options.window, getattr(model, "window", options.window))
        make: Callable[..., MethodInputs] = (
            MethodInputs.with_scoring_model if hasattr(model, "score") else MethodInputs.with_chat_model
        )
        return make(world, journal, model, **more)

    def model(self, spec: str, base_url: str | None, stage: str, temperature: float) -> Any:
        """A model whose replies go through the cache and are paid for as the stage's."""
        from ....nodes.cached_model import CachedChatModel

        options = self.options
        if spec.startswith("openai:"):
            model = shared_model(spec, base_url, options.max_tokens, temperature)
        else:  # one set of weights for all stages
            model = shared_model(spec, None, options.max_tokens, None).bind(temperature=temperature)
        kept = {"server": public_url(base_url), "temperature": temperature, "max_tokens": options.max_tokens}
        name = json.dumps([spec, weights_digest(spec) if not spec.startswith("openai:") else "", kept], sort_keys=True)
        return CachedChatModel(model, name, self.cache, stage, self.meter, self.slots)

    def critic(self) -> Any:
        """The model that compares and edits; None where it only writes a line, as the acting one then does."""
        options = self.options
        if options.critic is None and not options.model.startswith("openai:"):
            return None
        return self.model(options.critic_model, options.critic_url, "critic", options.critic_temperature)

    def critic_at_stage(self, model: Any, stage: str) -> Any:
        """The critic's model at a stage."""
        if self.critic() is None:
            return self.model(self.options.model, None, stage, self.options.critic_temperature)
        return replace(model, stage=stage)

    def _fingerprint(self, arm: Arm) -> str:
        """What rollouts depend on beside graph, model and prompts. Arms with libraries share theirs where the lessons are the same."""
        options = self.options
        told = [
            file_digest(options.corpus) if options.corpus else "",
            repr(shared_toolbox(options.tool_names, options.corpus)),
        ]
        return json.dumps([arm.method if arm.library_source == "method" else "", *(told if options.tool_names else [])])


def _is_out_of_budget(state: Mapping[str, Any]) -> bool:
    """Whether a run has ended because the budget was spent."""
    return bool(state.get("stops")) or str(state.get("stopped", "")).startswith("the budget of")


def _is_final_failure(rollout: Rollout) -> bool:
    """Whether a failed rollout is the agent's own doing, or its problem's: nobody could verify it, it took longer than it may, or
    the model's replies, which are kept, could not be read. To play it again would come to the same."""
    return rollout.error.startswith(("no reward:", "took longer than ")) or "; the last reply was " in rollout.error


def _clip_text(text: str) -> str:
    return text if len(text) <= 300 else text[:300] + "…"


def _rollout_row(rollout: Rollout, *texts: str) -> dict[str, Any]:
    """A rollout of the test as a row, with these texts; its steps are in steps.jsonl."""
    rollout = replace(rollout, error=_redact_keys(rollout.error))
    told = {name: getattr(rollout, name) for name in ("id", "number", "reward", "steps", "tool_calls", "seconds", *texts)}
    return {**told, "task": rollout.task.id, "usage": asdict(rollout.usage)}


def learning_step(seed: int, row: Mapping[str, Any]) -> LearningStep:
    """A row of learned.jsonl as a step of the curve."""
    from ..learning_curves import LearningStep

    return LearningStep(
        seed,
        row["step"],
        row["train"] or 0.0,
        row["held_out"],
        row["lessons"],
        row["accepted"] and row["before"] != row["library"],
        row["compared"],
    )


def complete_rows(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of steps that were not cut short by the budget."""
    return [row for row in rows if not str(row["id"]).endswith("/stopped")]
