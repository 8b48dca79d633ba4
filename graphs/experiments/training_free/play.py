"""A job of a method that learns before it plays: first it learns a library, then it plays the unseen problems with it.

<folder>/cache.sqlite                every reply and every finished rollout of all arms and seeds: nothing is paid for twice
<folder>/<arm>-s<seed>/library.jsonl every version of the library, with the rulings of all proposed edits
<folder>/<arm>-s<seed>/library.yaml  the version that was tested, for people (and for --library)
<folder>/<arm>-s<seed>/learned.jsonl one row per learning step
<folder>/<arm>-s<seed>/curve.jsonl   with --curve, mean reward and tool calls on the unseen problems after each step
<folder>/<arm>-s<seed>/steps.jsonl   one row per step of an episode
<folder>/<arm>-s<seed>/episodes.jsonl one row per rollout of the test
<folder>/<arm>-s<seed>/checkpoints.sqlite
<folder>/<arm>-s<seed>/result.json   written last: this arm is finished

All arms of a seed play the same unseen problems with the same run indices.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ....memory.errors import UserError
from ....memory.records import Rollout, Task, Usage
from ..costs import CACHE
from ..file_digests import path_digest, weights_digest
from ..options import DRAW_OPTIONS
from ..progress import say
from ..run_inputs import make_method_inputs, needs_model, shared_environment, shared_model
from .options import ROLLOUT_STAGES, LearningOptions, problem_split

if TYPE_CHECKING:
    from ....memory.lessons.versions import LibraryVersions
    from ....memory.storage.cache import Cache
    from ....nodes.cached_model import SpendingLimit
    from ...wiring.inputs import MethodInputs
    from ..folder import Job

__all__ = []


def learn_and_play(job: Job) -> None:
    """Learn and play, from wherever the job stands.

    Raises:
        BudgetSpent: the budget ran out; the best version so far is in library.yaml.
        UserError: rollouts failed for a reason outside of the agent.
    """
    from ....memory.storage.cache import Cache

    job.folder.parent.mkdir(parents=True, exist_ok=True)
    cache = Cache(job.folder.parent / CACHE)
    try:
        asyncio.run(LearningJob(job, cache).play())
    finally:
        cache.close()


def spending_limit(options: LearningOptions, cache: Cache) -> SpendingLimit:
    """The limit on tokens and dollars of a run: counts them, and stops the run when they are spent."""
    from ....nodes.cached_model import SpendingLimit

    return SpendingLimit(
        cache,
        options.stage_prices("critic"),
        {stage: options.stage_prices(stage) for stage in ROLLOUT_STAGES},
        max_dollars=options.dollar_budget or None,
        max_tokens=options.token_budget or None,
    )


class LearningJob:
    """An arm of a seed: its models and graphs, its library, and its test."""

    def __init__(self, job: Job, cache: Cache) -> None:
        from ....nodes.cached_model import ConcurrencyLimit

        self.job, self.cache, self.settings = job, cache, job.arm.settings
        self.options = cast(LearningOptions, job.options)
        self.arm = getattr(self.settings, "arm", "")
        """The way in which its library is made (`TrainingFreeGRPO.arm`); empty for a method without a library."""
        self.learner: Any = None
        """The middleware of an agent that has learned; None without one."""
        self.split = problem_split(self.options, job.seed)
        self.run = f"s{job.seed}"  # the same for all arms: they share what is the same
        remote = any(name.startswith("openai:") for name in (self.options.model, self.options.critic_model))
        limit = self.options.concurrency or (16 if remote else 1)
        self.meter = spending_limit(self.options, cache)
        self.slots = ConcurrencyLimit(limit)
        # A limit of their own: a rollout that waits for its turn takes no call's slot. A model in this process remembers the
        # prompt before, and would read all of it anew if rollouts took turns.
        self.rollout_slots = ConcurrencyLimit(limit)

    async def play(self) -> None:
        """Learn and play the unseen problems, and write the result."""
        from filelock import FileLock

        from ....memory.lessons.versions import LibraryVersions
        from ....memory.storage.journal import Journal
        from ....memory.storage.rows import Rows
        from ..folder import write_json

        place = self.job.folder
        with ExitStack() as stack:
            place.mkdir(parents=True, exist_ok=True)
            # After a run was killed, its worker may hold the lock for a moment.
            stack.enter_context(FileLock(place / "owner.lock", timeout=30))
            versions, journal = LibraryVersions(place / "library.jsonl"), Journal(place / "steps.jsonl")
            log, episodes, curve = (Rows(place / name) for name in ("learned.jsonl", "episodes.jsonl", "curve.jsonl"))
            for close in (versions.close, journal.close, log.close, episodes.close, curve.close):
                stack.callback(close)
            if not self.arm and self.job.arm.method.has_training_phase:
                await self._teach(versions, journal)
            name, learned = await self._make_library(versions, journal, log)
            rollouts = await self._test(versions, journal, name, episodes)
            for row in log.values() if self.options.curve and self.arm == "learned" else ():
                played = await self._test(versions, journal, str(row["library"]))
                rewards, calls = (
                    sum(each) / len(played) for each in zip(*((r.reward or 0.0, r.tool_calls) for r in played), strict=True)
                )
                curve.append({"id": row["id"], "step": row["step"], "test": rewards, "tool_calls": calls or None})
            library = versions.at(name)
            if self.arm:
                (place / "library.yaml").write_text(library.to_yaml(), encoding="utf-8")
            usage = sum((rollout.usage for rollout in rollouts), Usage())
            train, held_out = self.split.for_settings(self.settings) if self.arm == "learned" else ((), ())
            parts = {"train": train, "held_out": held_out, "test": self.split.test}
            world = shared_environment(self.options.test_env or self.options.env, self.options.horizon)
            result = {
                "method": self.job.arm.name,
                "seed": self.job.seed,
                "task": "",
                "task_seed": None,
                "optimum": getattr(world, "best_score", 1.0),
                "solved": None,
            }
            result |= {"is_walkthrough": False, "episodes": len(rollouts), "answer": None}
            result |= {"tokens": usage.tokens, "learned": asdict(learned)}
            result |= {"library": name, "lessons": len(library.lessons) if self.arm else None}
            result |= {"problems": {part: [task.id for task in tasks] for part, tasks in parts.items()}}
            write_json(place / "result.json", result)

    # Graphs and models

    def rollout_graph(self, versions: LibraryVersions, journal: Any, stage: str, temperature: float | None) -> Any:
        """The graph of a rollout."""
        from ....tools.agent_tools.interpreter import Toolbox
        from ...baselines import lesson_react, tool_agent

        inputs, settings = self.inputs(journal, stage, temperature), self.settings
        tools: Toolbox | None = shared_toolbox(self.options.tool_names, self.options.corpus)
        if not self.arm:
            if (
                temperature is not None and getattr(settings, "temperature", None) is not None
            ):  # of a softmax over scored actions
                settings = replace(settings, temperature=temperature)
            if not isinstance(settings, tool_agent.ToolAgent):
                return self.job.arm.method.build(inputs, settings, **({"learner": self.learner} if self.learner else {}))
            turns = self.options.tool_turns or settings.max_turns
            return tool_agent.build(inputs, replace(settings, max_turns=turns), tools=tools)
        if tools is not None:
            turns = self.options.tool_turns or tool_agent.ToolAgent.max_turns
            most = settings.rollouts.lessons_per_prompt
            agent = tool_agent.ToolAgent(turns, lessons_per_prompt=most, wording=settings.wording)
            return tool_agent.build(inputs, agent, tools=tools, lessons=versions)
        return lesson_react.build(inputs, lesson_react.agent_settings(settings, temperature), lessons=versions)

    def rollout_node(self, versions: LibraryVersions, journal: Any, stage: str, temperature: float | None) -> Any:
        """The node that plays a problem, or reads from the cache how it was played."""
        from ....nodes.extract.rollouts import RolloutSettings
        from ...training_free_grpo import TrainingFreeGRPO
        from ...wiring.learning_run import RunResources, rollout_player

        plain = TrainingFreeGRPO(rollouts=RolloutSettings(timeout=self.options.timeout))
        return rollout_player(
            self.inputs(journal, stage, temperature),
            self.settings if self.arm else plain,
            self.rollout_graph(versions, journal, stage, temperature),
            RunResources(versions, self.cache, meter=self.meter, slots=self.rollout_slots),
            stage=stage,
            name=self.name_in_keys(),
        )

    def inputs(self, journal: Any, stage: str, temperature: float | None) -> MethodInputs:
        """The inputs of a stage's rollouts: each stage has a model of its own, at its own temperature."""
        options = self.options
        world = shared_environment((stage == "test" and options.test_env) or options.env, options.horizon)
        model = None
        if needs_model(self.job.arm, options):
            model = self.model(options.model, options.base_url, stage, temperature)
        made: MethodInputs = make_method_inputs(options, world, model, journal, self.job.arm.method)
        return made

    def model(self, spec: str, base_url: str | None, stage: str, temperature: float | None) -> Any:
        """A model whose replies are cached, and counted for a stage."""
        from ....nodes.cached_model import CachedChatModel

        options = self.options
        temperature = temperature if options.sends_temperature else None
        asked = self.job.model_options()
        if spec.startswith("openai:"):
            model = shared_model(spec, replace(asked, base_url=base_url, model_temperature=temperature))
        else:  # one set of weights for all stages
            asked = replace(asked, base_url=None, reasoning_effort=None, extra_body=None)  # of a model behind an API
            model = shared_model(spec, asked).bind(**({} if temperature is None else {"temperature": temperature}))
        kept: dict[str, Any] = {"temperature": temperature}  # not the server: it may move, and its answers stay the same
        kept |= {one: value for one in DRAW_OPTIONS if (value := getattr(options, one)) is not None}
        name = json.dumps([spec, "" if spec.startswith("openai:") else weights_digest(spec), kept], sort_keys=True)
        return CachedChatModel(model, name, self.cache, stage, self.meter, self.slots)

    def critic(self) -> Any:
        """The model that compares and edits; None if the acting model does it, by writing a line."""
        options = self.options
        if options.critic is None and not options.model.startswith("openai:"):
            return None
        return self.model(
            options.critic_model, options.critic_base_url or options.base_url, "critic", options.critic_temperature
        )

    def critic_at_stage(self, model: Any, stage: str) -> Any:
        """The critic's model for a stage."""
        if self.critic() is None:
            return self.model(self.options.model, None, stage, self.options.critic_temperature)
        return replace(model, stage=stage)

    def name_in_keys(self) -> str:
        """A text of what rollouts depend on beside graph, model and prompts: another method's name, and the tools. Arms with
        libraries share rollouts with the same lessons."""
        tools = shared_toolbox(self.options.tool_names, self.options.corpus)
        corpus = path_digest(self.options.corpus) if self.options.corpus else ""
        return json.dumps(["" if self.arm else self.job.arm.name, *([corpus, repr(tools)] if tools else [])])

    def learning_graph(self, versions: LibraryVersions, journal: Any, log: Any, **compile: Any) -> Any:
        """The graph of the learning run."""
        from ... import training_free_grpo
        from ...wiring.learning_run import CriticModel, RolloutGraphs, RunResources

        settings = self.settings
        train, held_out = self.split.for_settings(settings)
        return training_free_grpo.build(
            self.inputs(journal, "rollout", settings.temperature),
            settings,
            problems=train,
            held_out=held_out,
            resources=RunResources(versions, self.cache, log, meter=self.meter, slots=self.rollout_slots),
            rollouts=RolloutGraphs(
                learning=self.rollout_graph(versions, journal, "rollout", settings.temperature),
                trial=self.rollout_graph(versions, journal, "trial", settings.trial.temperature),
                name=self.name_in_keys(),
            ),
            critic=CriticModel(self.critic(), self.critic_at_stage),
            **compile,
        )

    # The memory of an agent's middleware

    async def _teach(self, versions: LibraryVersions, journal: Any) -> None:
        """Have an agent's middleware learn from the problems. It is in this process: a resumed run learns again from replies that are
        in the cache."""
        from ...agents.agent_method import open_learner, teach

        settings, (problems, _) = self.settings, self.split.for_settings(self.settings)
        if settings.learner:
            world = shared_environment(self.options.env, self.options.horizon)
            self.learner = open_learner(settings, world, problems[0], self.critic())
            graph = self.rollout_graph(versions, journal, "rollout", None)
            tasks = teach(graph, self.learner, problems, f"{self.run}/train", settings.shuffled)
            while await asyncio.to_thread(next, tasks, None) is not None:
                self.meter.check()  # an agent goes on without advice, and without a critic, that cannot be paid

    # The library of an arm

    async def _make_library(self, versions: LibraryVersions, journal: Any, log: Any) -> tuple[str, Usage]:
        """The name of the version that is tested, and the usage of learning it. A control that is made of what was learned
        (`random`, `shuffled`) finds all rollouts and replies of its seed's first arm in the cache.
        """
        from ....memory.lessons.library import Library
        from ....memory.storage.checkpoints import open_checkpoints_async
        from ....nodes.cached_model import BudgetSpent

        if self.arm in ("", "empty"):
            return versions.put(f"{self.run}/0", Library(), why="no lessons"), Usage()
        async with open_checkpoints_async(self.job.folder / "checkpoints.sqlite") as saver:
            graph = self.learning_graph(versions, journal, log, checkpointer=saver)
            config = await self._thread(graph, saver)
            begin = None if await saver.aget_tuple(config) else {"run": self.run}
            try:
                async for update in graph.astream(begin, config, stream_mode="updates", durability="async"):
                    if "close" in update and self.arm == "learned":
                        say(f"{self.job.folder.name}: {update['close']['step']} learning steps")
            except UserError:
                # The checkpoints hold the failure. Without them the next try reads the cache, and asks for the rest again.
                await saver.adelete_thread(config["configurable"]["thread_id"])
                raise
            ended = (await graph.aget_state(config)).values
        if _is_out_of_budget(ended):
            (self.job.folder / "library.yaml").write_text(versions.at(ended["best"]).to_yaml(), encoding="utf-8")
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

    async def _test(self, versions: LibraryVersions, journal: Any, library: str, rows: Any = None) -> list[Rollout]:
        """The rollouts of the unseen problems under a library, by problem and number; all arms have the same random draws."""
        node, k = self.rollout_node(versions, journal, "test", self.options.test_temperature or 0.0), self.options.test_rollouts

        async def one(task: Task, number: int, place: int) -> Rollout:
            asked = {"task": task, "run": f"{self.run}/test", "episode": number, "library": library}
            rollout: Rollout = await node.ainvoke(asked)
            if rows is not None and not rollout.error:  # a resumed run tries failed ones again
                rows.append(self._row(rollout, place))
            return rollout

        work = [(task, number, n * k + number) for n, task in enumerate(self.split.test) for number in range(k)]
        tasks = [asyncio.ensure_future(one(*some)) for some in work]
        try:
            rollouts = list(await asyncio.gather(*tasks))
        finally:
            for left in tasks:  # after an error
                left.cancel()
        failed = [one for one in rollouts if one.error]
        if again := [one for one in failed if not _is_final_failure(one)] or (failed if len(failed) == len(rollouts) else []):
            raise UserError(
                f"{len(again)} of {len(rollouts)} rollouts of the test failed ({again[0].id}: {again[0].error[:300]}); none of them "
                "counts, and once that is put right they are played again"
            )
        for place, rollout in enumerate(rollouts if rows is not None else ()):
            rows.append(self._row(rollout, place))
        return rollouts

    def _row(self, rollout: Rollout, place: int) -> dict[str, Any]:
        """A rollout of the test as the row of an episode; its steps are in steps.jsonl."""
        score, usage = rollout.reward or 0.0, rollout.usage
        row = {"id": f"{self.job.run}/{place}", "episode": place, "score": score, "best": score, "earned": rollout.reward}
        row |= {"unjudged": rollout.error} if rollout.error else {}
        row |= {"head": rollout.id, "task": rollout.task.id, "number": rollout.number, "answer": rollout.answer}
        row |= {name: getattr(rollout, name) for name in ("transcript", "steps", "tool_calls", "seconds")}
        return row | {"calls": usage.calls, "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}


def _is_out_of_budget(state: Mapping[str, Any]) -> bool:
    """True if a run has ended because the budget was spent."""
    return bool(state.get("stops")) or str(state.get("stopped", "")).startswith("the budget of")


def _is_final_failure(rollout: Rollout) -> bool:
    """True if a failed rollout should not be retried: its answer cannot be verified, it timed out, or its cached replies cannot
    be read."""
    return rollout.error.startswith(("no reward:", "took longer than ")) or "; the last reply was " in rollout.error


@lru_cache(maxsize=2)
def shared_toolbox(names: Sequence[str], corpus: Path | None) -> Any:
    """The tools of these names; None without any."""
    from ....tools.agent_tools.interpreter import Toolbox
    from ....tools.agent_tools.pages import page_tool
    from ....tools.agent_tools.search import search_tool, web_search_tool

    made: dict[str, Callable[[], Any]] = {
        "search": lambda: search_tool(corpus),
        "web": web_search_tool,
        "page": lambda: page_tool(corpus, web="web" in names),
    }
    if not names:
        return None
    return Toolbox(python={} if "python" in names else None, shared=tuple(made[name]() for name in names if name in made))
