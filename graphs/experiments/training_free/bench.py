"""The work of a run of Training-Free GRPO: the arms of a seed learn, and play the unseen problems.

A worker process plays a seed. Finished work is on disk at once: a worker may be killed at any point, and the next one goes on.
"""

from __future__ import annotations

import asyncio
import os
import re
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....memory.errors import UserError
from ....memory.records import Rollout, Task, Usage
from .models import SeedModels
from .setup import LibraryArm, ProblemSplit, TrainingFreeSetup

if TYPE_CHECKING:
    from ....memory.lessons.versions import LibraryVersions
    from ..learning_curves import LearningStep

__all__ = ["SeedWorker", "play_seed"]

SECRET_PATTERN = re.compile(r"\bsk-[\w-]{4,}")
"""The form of an API key."""


def _redact_keys(text: str) -> str:
    """An error's text without keys: some servers repeat what they were sent."""
    for name in ("OPENAI_API_KEY", "TAVILY_API_KEY", "SERPAPI_API_KEY"):
        if len(key := os.environ.get(name, "")) > 3:
            text = text.replace(key, f"${name}")
    return SECRET_PATTERN.sub("sk-…", re.sub(r"(?<=://)[^/@\s]+@", "", text))


def play_seed(work: tuple[TrainingFreeSetup, int, ProblemSplit]) -> str | None:
    """Learn and test all arms of a seed, from wherever they stand. A worker process calls this.

    Returns:
        The message of an error that the user can repair; None if all went well, or if the budget is spent.
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
    except Exception:  # a defect of ours: as text, the traceback reaches the parent even if the exception cannot be pickled
        raise RuntimeError(traceback.format_exc()) from None
    return None


class SeedWorker(SeedModels):
    """Works on the arms of a seed, one after the other. They share the cache and the models."""

    async def play(self) -> None:
        """Learn and test all arms that are not finished."""
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

    async def _arm(self, arm: LibraryArm) -> None:
        from filelock import FileLock

        from ....memory.lessons.versions import LibraryVersions
        from ....memory.storage.journal import Journal
        from ....memory.storage.rows import Rows
        from .. import folder

        place = self.setup.arm_folder(arm, self.seed)
        with ExitStack() as stack:
            place.mkdir(parents=True, exist_ok=True)
            # After a run was killed, its worker may hold the lock for a moment.
            stack.enter_context(FileLock(place / "owner.lock", timeout=30))
            versions, journal = LibraryVersions(place / "library.jsonl"), Journal(place / "steps.jsonl")
            log, tests = Rows(place / "learned.jsonl"), Rows(place / "test.jsonl")
            for file in (versions, journal, log, tests):
                stack.callback(file.close)
            name, learned = await self._make_library(arm, place, versions, journal, log)
            rollouts = self._require_sound(arm, await self._test(arm, versions, journal, name, tests))
            rows = complete_rows(log.values()) if arm.learns else []
            steps = await self._learning_steps(arm, versions, journal, rows)
            library = versions.at(name)
            if arm.library_source != "method":
                (place / "library.yaml").write_text(library.to_yaml(), encoding="utf-8")
            train, held_out = self.split.for_settings(arm.settings) if arm.learns else ((), ())
            result = {
                "arm": arm.name,
                "seed": self.seed,
                "library": name,
                "lessons": len(library.lessons),
                "learned": asdict(learned),
                "problems": {
                    "train": [task.id for task in train],
                    "held_out": [task.id for task in held_out],
                    "test": [task.id for task in self.split.test],
                },
                "rollouts": [_rollout_row(rollout, "answer", "error") for rollout in rollouts],
                "steps": [asdict(step) for step in steps],
                "failures": [
                    [row["id"], _redact_keys(reason)] for row in rows for reason in (*row["failures"], *row["probe_failures"])
                ],
            }
            folder.write_json(place / "result.json", result)

    async def _learning_steps(
        self, arm: LibraryArm, versions: LibraryVersions, journal: Any, rows: Sequence[Mapping[str, Any]]
    ) -> list[LearningStep]:
        """The learning steps of an arm; with --curve each with the mean reward of its library on the unseen problems."""
        steps = [learning_step(self.seed, row) for row in rows]
        if not (self.options.curve and arm.learns):
            return steps
        measured = []
        for row, step in zip(rows, steps, strict=True):
            played = self._require_sound(arm, await self._test(arm, versions, journal, str(row["library"]), None))
            measured.append(replace(step, test=sum(rollout.reward or 0.0 for rollout in played) / len(played)))
        return measured

    # The library of an arm

    async def _make_library(
        self, arm: LibraryArm, place: Path, versions: LibraryVersions, journal: Any, log: Any
    ) -> tuple[str, Usage]:
        """The name of the version that is tested, and the usage of learning it."""
        from ....memory.lessons.library import Library

        if arm.library_source in ("method", "empty"):
            return versions.put(f"{self.run}/0", Library(), why="no lessons"), Usage()
        return await self._learn_library(arm, place, versions, journal, log)

    async def _learn_library(
        self, arm: LibraryArm, place: Path, versions: LibraryVersions, journal: Any, log: Any
    ) -> tuple[str, Usage]:
        """Run the learning graph; returns the name of the product, and the usage. A control that is made of what was learned
        (`random`, `shuffled`) finds all rollouts and replies of its seed's first arm in the cache.

        Raises:
            BudgetSpent: the budget ran out; the best version so far is in library.yaml.
        """
        from ....memory.storage.checkpoints import open_checkpoints_async
        from ....nodes.cached_model import BudgetSpent
        from ... import training_free_grpo
        from ...wiring.learning_run import CriticModel, RolloutGraphs

        settings = arm.settings
        train, held_out = self.split.for_settings(settings)
        parts = self.inputs(journal, "rollout", settings.temperature)
        async with open_checkpoints_async(place / "checkpoints.sqlite") as saver:
            graph = training_free_grpo.build(
                parts,
                settings,
                problems=train,
                held_out=held_out,
                resources=self.resources(versions, log),
                rollouts=RolloutGraphs(
                    learning=self.rollout_graph(arm, versions, journal, "rollout", settings.temperature),
                    trial=self.rollout_graph(arm, versions, journal, "trial", settings.trial.temperature),
                    name=self.fingerprint(arm),
                ),
                critic=CriticModel(self.critic(), self.critic_at_stage),
                checkpointer=saver,
            )
            config = await self._thread(graph, saver)
            begin = None if await saver.aget_tuple(config) else {"run": self.run}
            try:
                await graph.ainvoke(begin, config, durability="async")
            except UserError:
                # The checkpoints hold the failure. Without them the next try reads the cache, and asks for the rest again.
                await saver.adelete_thread(config["configurable"]["thread_id"])
                raise
            ended = (await graph.aget_state(config)).values
        if _is_out_of_budget(ended):
            (place / "library.yaml").write_text(versions.at(ended["best"]).to_yaml(), encoding="utf-8")
            raise BudgetSpent(ended["stopped"])
        return ended["best"], ended["usage"]

    async def _thread(self, graph: Any, saver: Any) -> Any:
        """The run's thread of checkpoints. A thread that ended because the budget was spent is left, and a new one begins: all
        that was paid for is in the cache, so it reaches the same place at no cost."""
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

    async def _test(self, arm: LibraryArm, versions: LibraryVersions, journal: Any, library: str, log: Any) -> list[Rollout]:
        """The rollouts of the unseen problems under a library, by problem and number; all arms have the same random draws."""
        temperature = self.options.test_temperature
        if temperature is None:
            temperature = getattr(arm.settings, "trial", self.setup.arms[0].settings.trial).temperature
        roll = self.rollout_node(arm, versions, journal, "test", temperature)
        work = [(task, number) for task in self.split.test for number in range(self.options.test_rollouts)]
        return await self._play_rollouts(roll, f"{self.run}/test", library, work, log)

    def _require_sound(self, arm: LibraryArm, rollouts: list[Rollout]) -> list[Rollout]:
        """The same rollouts, if they may be counted.

        Raises:
            UserError: some failed for a reason outside of the agent (a server that is down), or all failed.
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
            if log is not None and not rollout.error:  # a resumed run tries failed ones again
                log.append(_rollout_row(rollout, "answer", "transcript"))
            return rollout

        tasks = [asyncio.ensure_future(one(task, number)) for task, number in work]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for left in tasks:  # after an error
                left.cancel()


def _is_out_of_budget(state: Mapping[str, Any]) -> bool:
    """True if a run has ended because the budget was spent."""
    return bool(state.get("stops")) or str(state.get("stopped", "")).startswith("the budget of")


def _is_final_failure(rollout: Rollout) -> bool:
    """True if a failed rollout should not be retried: its answer cannot be verified, it timed out, or its cached replies cannot
    be read."""
    return rollout.error.startswith(("no reward:", "took longer than ")) or "; the last reply was " in rollout.error


def _clip_text(text: str) -> str:
    return text if len(text) <= 300 else text[:300] + "…"


def _rollout_row(rollout: Rollout, *texts: str) -> dict[str, Any]:
    """A rollout of the test as a row, with these texts; its steps are in steps.jsonl."""
    rollout = replace(rollout, error=_redact_keys(rollout.error))
    row = {name: getattr(rollout, name) for name in ("id", "number", "reward", "steps", "tool_calls", "seconds", *texts)}
    return {**row, "task": rollout.task.id, "usage": asdict(rollout.usage)}


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
        lost=row.get("lost", 0),  # a row of an earlier version has none
        problems=len(row.get("problems", ())),
    )


def complete_rows(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of steps that were not cut short by the budget."""
    return [row for row in rows if not str(row["id"]).endswith("/stopped")]
