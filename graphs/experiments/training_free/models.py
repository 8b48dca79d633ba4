"""The models and graphs that play the arms of a seed, in a run of Training-Free GRPO.

Part of the command line: it joins tools to graphs. Slow imports stand inside the functions that need them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..options import DRAW_OPTIONS
from .digests import file_digest, public_url, weights_digest
from .setup import (
    ROLLOUT_STAGES,
    LibraryArm,
    ProblemSplit,
    TrainingFreeOptions,
    TrainingFreeSetup,
    shared_model,
    shared_toolbox,
    shared_world,
)

if TYPE_CHECKING:
    from ....memory.lessons.versions import LibraryVersions
    from ....memory.storage.cache import Cache
    from ....nodes.cached_model import SpendingLimit
    from ...wiring.inputs import MethodInputs
    from ...wiring.learning_run import RunResources

__all__ = ["SeedModels"]


def spending_meter(options: TrainingFreeOptions, cache: Cache) -> SpendingLimit:
    """The limit on tokens and dollars of a run: counts them, and stops the run when they are spent."""
    from ....nodes.cached_model import SpendingLimit

    return SpendingLimit(
        cache,
        options.prices("critic"),
        {stage: options.prices(stage) for stage in ROLLOUT_STAGES},
        max_dollars=options.dollar_budget or None,
        max_tokens=options.token_budget or None,
    )


class SeedModels:
    """The models and graphs of a seed's arms. They share a cache and its limits."""

    def __init__(self, setup: TrainingFreeSetup, seed: int, split: ProblemSplit) -> None:
        self.setup = setup
        self.options = setup.options
        self.seed = seed
        self.split = split
        self.run = f"s{seed}"

    def open(self, cache: Cache, limit: int) -> None:
        """Use this cache for replies and rollouts, with at most `limit` calls in flight."""
        from ....nodes.cached_model import ConcurrencyLimit

        self.cache = cache
        self.meter = spending_meter(self.options, cache)
        self.slots = ConcurrencyLimit(limit)
        # A limit of their own: a rollout that waits for its turn takes no call's slot. A model in this process remembers the
        # prompt before, and would read all of it anew if rollouts took turns.
        self.rollouts = ConcurrencyLimit(limit)

    def resources(self, versions: LibraryVersions, log: Any = None) -> RunResources:
        """The stores of a run, and the limits that all arms share."""
        from ....memory.storage.rows import Rows
        from ...wiring.learning_run import RunResources

        rows = Rows() if log is None else log
        return RunResources(versions, self.cache, rows, meter=self.meter, slots=self.rollouts)

    def rollout_node(self, arm: LibraryArm, versions: LibraryVersions, journal: Any, stage: str, temperature: float) -> Any:
        """The node that plays a problem, or reads from the cache how it was played."""
        from ...wiring.learning_run import rollout_player

        return rollout_player(
            self.inputs(journal, stage, temperature),
            arm.settings if arm.library_source != "method" else self.setup.arms[0].settings,
            self.rollout_graph(arm, versions, journal, stage, temperature),
            self.resources(versions),
            stage=stage,
            name=self.fingerprint(arm),
        )

    def rollout_graph(self, arm: LibraryArm, versions: LibraryVersions, journal: Any, stage: str, temperature: float) -> Any:
        """The graph of a rollout."""
        from ...baselines import lesson_react, tool_agent
        from ...baselines.tool_agent import ToolAgent
        from ...methods import find_method

        inputs = self.inputs(journal, stage, temperature)
        tools = shared_toolbox(self.options.tool_names, self.options.corpus)
        if arm.library_source == "method":
            settings = arm.settings
            if getattr(settings, "temperature", None) is not None:  # of a softmax over scored actions
                settings = replace(settings, temperature=temperature)
            return find_method(arm.method).build(inputs, settings, **({"tools": tools} if arm.method == "tool-agent" else {}))
        if tools is not None:
            agent = ToolAgent(
                self.options.tool_turns or ToolAgent.max_turns, lessons_per_prompt=arm.settings.rollouts.lessons_per_prompt
            )
            return tool_agent.build(inputs, agent, tools=tools, lessons=versions)
        return lesson_react.build(inputs, lesson_react.agent_settings(arm.settings, temperature), lessons=versions)

    def inputs(self, journal: Any, stage: str, temperature: float) -> MethodInputs:
        """The inputs of a stage's rollouts: each stage has a model of its own, at its own temperature."""
        from ...wiring.inputs import MethodInputs

        options = self.options
        world = shared_world(options.test_env or options.env if stage == "test" else options.env, options.horizon)
        model = self.model(options.model, options.base_url, stage, temperature)
        inputs: dict[str, Any] = {"prompts": options.prompts}
        if options.window is not None:
            inputs["window"] = min(options.window, getattr(model, "window", options.window))
        if hasattr(model, "score"):
            return MethodInputs.with_scoring_model(world, journal, model, **inputs)
        return MethodInputs.with_chat_model(world, journal, model, **inputs)

    def model(self, spec: str, base_url: str | None, stage: str, temperature: float) -> Any:
        """A model whose replies are cached, and counted for a stage."""
        from ....nodes.cached_model import CachedChatModel

        options = self.options
        if spec.startswith("openai:"):
            model = shared_model(spec, base_url, options, temperature)
        else:  # one set of weights for all stages
            model = shared_model(spec, None, options, None).bind(temperature=temperature)
        kept = {"server": public_url(base_url), "temperature": temperature, "max_tokens": options.max_tokens}
        more = {name: getattr(options, name) for name in DRAW_OPTIONS}
        kept |= {name: value for name, value in more.items() if value is not None}
        name = json.dumps([spec, weights_digest(spec) if not spec.startswith("openai:") else "", kept], sort_keys=True)
        return CachedChatModel(model, name, self.cache, stage, self.meter, self.slots)

    def critic(self) -> Any:
        """The model that compares and edits; None if the acting model does it, by writing a line."""
        options = self.options
        if options.critic is None and not options.model.startswith("openai:"):
            return None
        return self.model(options.critic_model, options.critic_url, "critic", options.critic_temperature)

    def critic_at_stage(self, model: Any, stage: str) -> Any:
        """The critic's model for a stage."""
        if self.critic() is None:
            return self.model(self.options.model, None, stage, self.options.critic_temperature)
        return replace(model, stage=stage)

    def fingerprint(self, arm: LibraryArm) -> str:
        """A fingerprint beside graph, model and prompts: another method's name, and the tools. Arms with libraries share
        rollouts with the same lessons."""
        options = self.options
        tools = [
            file_digest(options.corpus) if options.corpus else "",
            repr(shared_toolbox(options.tool_names, options.corpus)),
        ]
        return json.dumps([arm.method if arm.library_source == "method" else "", *(tools if options.tool_names else [])])
