"""Checks of a run of Training-Free GRPO before a model is asked: whether all arms can run, and what they would cost.

Part of the command line: it joins tools to graphs. Slow imports stand inside the functions that need them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ....memory.errors import CommandError, UserError
from ....memory.records import Usage
from ..folder import check_settings
from .digests import initial_libraries
from .models import SeedModels
from .report import print_line
from .setup import ROLLOUT_STAGES, LibraryArm, ProblemSplit, TrainingFreeSetup, shared_model, shared_toolbox, shared_world

__all__ = ["check_arms_build", "check_models", "dry_run"]


def check_models(setup: TrainingFreeSetup) -> None:
    """Find mistakes in the names of models before workers start. Local models load their weights in the workers, and in a dry run
    no model is opened.

    Raises:
        CommandError: there is no such model, or it cannot call the tools that were asked for.
    """
    from ....tools.models.models import MODELS

    options = setup.options
    if options.tool_names:
        if not hasattr(shared_world(options.env, options.horizon), "read"):
            raise CommandError(
                f"--tools is for worlds with one written answer, such as math; {options.env} is played step by step"
            )
        if not options.model.startswith("openai:"):
            raise CommandError(f"--tools is for models that call tools (--model openai:NAME); {options.model} does not")
        shared_toolbox(options.tool_names, options.corpus)

    known = {name.partition(":")[0] for name in MODELS}
    for spec, url in ((setup.options.model, setup.options.base_url), (setup.options.critic_model, setup.options.critic_url)):
        kind = spec.partition(":")[0]
        if (kind == "openai" and not options.dry_run) or kind not in known:
            shared_model(spec, url, options, None)


class DryRunModels(SeedModels):
    """Builds graphs with models that cannot be asked."""

    def model(self, spec: str, base_url: str | None, stage: str, temperature: float) -> Any:
        from ....nodes.cached_model import CachedChatModel

        return CachedChatModel(_absent_model(scores=not spec.startswith("openai:")), spec, self.cache, stage)


def check_arms_build(setup: TrainingFreeSetup, splits: Mapping[int, ProblemSplit]) -> None:
    """Build the graphs of all arms without their models: errors are found before the first call is paid for.

    Raises:
        CommandError: an arm cannot run with this model, this environment, or this library to start from.
    """
    from ....memory.lessons.library import Library
    from ....memory.lessons.versions import LibraryVersions, open_library
    from ....memory.storage.cache import Cache
    from ....memory.storage.journal import Journal
    from ... import training_free_grpo
    from ...wiring.learning_run import CriticModel, RolloutGraphs, RunResources

    seed = setup.seeds[0]
    bench = DryRunModels(setup, seed, splits[seed])
    bench.open(Cache(), 1)
    for path in initial_libraries(setup):
        found = open_library(path)
        if not isinstance(found, Library) and not found.names():
            raise CommandError(f"--library {path}: it holds no version yet")
    for arm in setup.arms:
        versions, journal = LibraryVersions(), Journal()
        try:
            bench.rollout_node(arm, versions, journal, "test", 0.0)
            if arm.library_source not in ("method", "empty"):
                train, held_out = splits[seed].for_settings(arm.settings)
                training_free_grpo.build(
                    bench.inputs(journal, "rollout", 0.0),
                    arm.settings,
                    problems=train,
                    held_out=held_out,
                    resources=RunResources(versions, bench.cache),
                    rollouts=RolloutGraphs(bench.rollout_graph(arm, versions, journal, "rollout", 0.0)),
                    critic=CriticModel(bench.critic(), bench.critic_at_stage),
                )
        except UserError as error:
            raise CommandError(f"{arm.name} cannot run: {error}") from error
        finally:
            journal.close()
            versions.close()


@lru_cache(maxsize=2)
def _absent_model(scores: bool) -> Any:
    """A model that graphs can be built with, and that raises when it is asked."""
    from langchain_core.language_models import BaseChatModel

    from ....nodes.ask import estimate_tokens
    from ...wiring.inputs import DEFAULT_WINDOW

    class AbsentModel(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "absent"

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

        def get_num_tokens(self, text: str) -> int:
            return estimate_tokens(text)

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            raise AssertionError("a model was asked before all arms were checked")

    class AbsentScoringModel(AbsentModel):
        window: int = DEFAULT_WINDOW

        def score(self, messages: Any, options: Any) -> list[float]:
            raise AssertionError("a model was asked before all arms were checked")

    return AbsentScoringModel() if scores else AbsentModel()


@dataclass(frozen=True)
class StageEstimate:
    """The estimated calls and tokens of a stage."""

    name: str
    calls: int
    input_tokens_per_call: float
    """Tokens read per call."""
    output_tokens_per_call: float
    """Tokens written per call."""

    @property
    def usage(self) -> Usage:
        """The usage of all its calls."""
        return Usage(
            self.calls, round(self.calls * self.input_tokens_per_call), round(self.calls * self.output_tokens_per_call)
        )


TYPICAL_TOKENS: Mapping[str, tuple[float, float]] = {
    "rollout": (1500, 600),
    "summarise": (4000, 500),
    "contrast": (4000, 700),
    "discriminate": (8000, 200),
    "propose": (2500, 300),
    "consolidate": (6000, 1500),
    "invent": (2000, 1500),
}
"""Tokens read and written per call, where none were measured: of a model that reasons in writing, without tools."""

TYPICAL_TOKENS_WITH_TOOLS = (8000, 700)
"""Tokens read and written by a call within a rollout with tools: it reads the results of the calls before it."""

CALLS_WITH_TOOLS = 6
"""Calls of a rollout with tools. The paper's agents called 5.9 tools on the problems they learned from."""

SHARE_COMPARED = 0.5
"""Assumed share of groups whose rewards differ. The public log of a run shows 0.31."""


def _estimate_stages(setup: TrainingFreeSetup, paid_by_stage: Mapping[str, Usage]) -> list[StageEstimate]:
    """The calls and tokens of every stage, if the cache were empty.

    Args:
        setup: the run.
        paid_by_stage: the usage that was paid so far, from which tokens per call are taken.
    """
    options, seeds = setup.options, len(setup.seeds)
    environment = shared_world(options.env, options.horizon)
    scores = options.model.partition(":")[0] != "openai"
    plain = options.critic_model.partition(":")[0] != "openai"
    turns = _calls_per_rollout(setup, environment)
    counts: dict[str, float] = {}

    def add(stage: str, calls: float) -> None:
        if calls:
            counts[stage] = counts.get(stage, 0) + calls

    for arm in setup.arms:
        s = arm.settings
        if arm.learns:
            groups = s.epochs * s.problems
            steps = s.epochs * math.ceil(s.problems / (s.batch_size or s.problems))
            writes = s.author == "model"
            compared = groups * SHARE_COMPARED
            add("rollout", groups * s.group_size * turns)
            add("discriminate", groups if s.truth == "self" else 0)
            add("summarise", compared * s.group_size if writes and not plain else 0)
            add("contrast", compared if writes else 0)
            add("propose", compared if writes and not plain else 0)
            add("consolidate", steps if writes and not plain and s.lessons.consolidate == "model" else 0)
            add("trial", 2 * steps * s.held_out * s.trial.rollouts * turns if s.acceptance != "always" and s.held_out else 0)
            add("test", (steps - 1) * options.test_problems * options.test_rollouts * turns if options.curve else 0)
        add("invent", 1 if arm.library_source == "self-generated" else 0)
        add("test", options.test_problems * options.test_rollouts * turns)
    found = []
    for name, calls in counts.items():
        typical = (
            TYPICAL_TOKENS_WITH_TOOLS
            if options.tool_names and name in ROLLOUT_STAGES
            else TYPICAL_TOKENS["rollout" if name in ROLLOUT_STAGES else name]
        )
        if scores and name in ROLLOUT_STAGES:
            typical = (200, 0)  # it scores the listed actions, and writes nothing
        paid = paid_by_stage.get(name, Usage())
        read, written = (paid.input_tokens / paid.calls, paid.output_tokens / paid.calls) if paid.calls else typical
        found.append(StageEstimate(name, math.ceil(calls * seeds), read, written))
    return found


def _acceptance(setup: TrainingFreeSetup) -> list[tuple[LibraryArm, dict[str, float]]]:
    """The arms with an accept test, and the probability that it accepts a candidate, by the candidate's true gain."""
    from ....nodes.update.accept_test import acceptance_rates

    tested = [arm for arm in setup.arms if arm.learns and arm.settings.acceptance != "always" and arm.settings.held_out]
    return [
        (
            arm,
            {
                str(gain): rate
                for gain, rate in acceptance_rates(arm.settings.acceptance, arm.settings.trial, arm.settings.held_out).items()
            },
        )
        for arm in tested
    ]


def _calls_per_rollout(setup: TrainingFreeSetup, environment: Any) -> int:
    """The greatest number of calls of a rollout."""
    if setup.options.tool_names:
        return CALLS_WITH_TOOLS
    return int(getattr(environment, "horizon", 1))


def dry_run(setup: TrainingFreeSetup, settings: Mapping[str, Any]) -> int:
    """Print the estimated calls, tokens and dollars of the run, stage by stage; returns the exit code."""
    from ....memory.storage.cache import Cache
    from ..evaluation_tables import usage_table

    check_settings(setup.folder, settings)
    options = setup.options
    place, known, measured = setup.folder / "cache.sqlite", dict[str, Usage](), ""
    if place.exists():
        cache = Cache(place)
        known = cache.usage_by_stage()
        cache.close()
        measured = f"; tokens per call of {', '.join(known)} as measured in {place}" if known else ""
    stages = _estimate_stages(setup, known)
    dollars = {stage.name: options.prices(stage.name).cost(stage.usage) for stage in stages}
    every = sum((stage.usage for stage in stages), Usage())
    tokens = every.input_tokens + every.output_tokens
    paid = sum(known.values(), Usage())
    if options.json:
        rows = [
            {
                "stage": s.name,
                "calls": s.calls,
                "read": s.input_tokens_per_call,
                "written": s.output_tokens_per_call,
                "dollars": dollars[s.name],
            }
            for s in stages
        ]
        told = {"folder": str(setup.folder), "stages": rows, "tokens": tokens, "dollars": sum(dollars.values())}
        print_line(json.dumps(told | {"acceptance": {arm.name: rates for arm, rates in _acceptance(setup)}}))
        return 0
    turns = _calls_per_rollout(setup, shared_world(options.env, options.horizon))
    print_line(f"{setup.folder}: no model was asked. If nothing of it were in the cache, the run would take at most about\n")
    print_line(usage_table({stage.name: stage.usage for stage in stages}, dollars if sum(dollars.values()) else {}))
    print_line(
        f"\nassumed: {SHARE_COMPARED:.0%} of the groups differ in their rewards and are compared; a rollout is {turns} calls; no run "
        f"stops early; arms share nothing (in truth they share what is the same){measured}"
    )
    for arm, rates in _acceptance(setup):
        print_line(
            f"{arm.name}: the accept test takes a library that is 10 points worse with probability {rates['-0.1']:.0%}, one that is "
            f"as good with {rates['0.0']:.0%}, one that is 10 points better with {rates['0.1']:.0%} (simulated for "
            f"{arm.settings.held_out} held-out problems, {arm.settings.trial.rollouts} rollouts each, half of which succeed)"
        )
    for stage in stages:
        if stage.name not in known:
            print_line(
                f"assumed: {stage.input_tokens_per_call:,.0f} tokens read and {stage.output_tokens_per_call:,.0f} written per call of {stage.name}"
            )
    if paid.calls:
        print_line(f"paid so far in this folder: {paid.calls:,} calls, {paid.input_tokens + paid.output_tokens:,} tokens")
    if options.token_budget and tokens > options.token_budget:
        print_line(f"--token-budget {options.token_budget:,} may not last: {tokens:,} tokens")
    if options.dollar_budget and sum(dollars.values()) > options.dollar_budget:
        print_line(f"--dollar-budget {options.dollar_budget:g} may not last: ${sum(dollars.values()):.2f}")
    return 0
