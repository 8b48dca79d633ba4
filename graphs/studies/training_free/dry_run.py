"""What is found out of a run of Training-Free GRPO before a model is asked: whether all arms can run, and what they would take.

Part of the command line: it joins tools to graphs. What takes time to import stands where it is needed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ....memory.records import Usage, UserError
from ...wiring.flags import CommandError
from .bench import Bench
from .digests import libraries
from .report import tell
from .setup import PLAYED, Setup, Split, opened_model, opened_toolbox, opened_world

__all__ = ["check_models", "dry_run", "rehearse"]


def check_models(setup: Setup) -> None:
    """Find mistakes in their names before workers start; local ones load their weights there. In a dry run none is opened."""
    from ....tools.models.models import MODELS

    options = setup.options
    if options.asked_tools:
        if not hasattr(opened_world(options.env, options.horizon), "read"):
            raise CommandError(
                f"--tools is for worlds with one written answer, such as math; {options.env} is played step by step"
            )
        if not options.model.startswith("openai:"):
            raise CommandError(f"--tools is for models that call tools (--model openai:NAME); {options.model} does not")
        opened_toolbox(options.asked_tools, options.corpus)

    known = {name.partition(":")[0] for name in MODELS}
    for spec, url in ((setup.options.model, setup.options.base_url), (setup.options.judges, setup.options.critic_url)):
        kind = spec.partition(":")[0]
        if (kind == "openai" and not options.dry_run) or kind not in known:
            opened_model(spec, url, None, None)


class Rehearsal(Bench):
    """Puts graphs together whose models nobody can ask."""

    def model(self, spec: str, base_url: str | None, stage: str, temperature: float) -> Any:
        from ....nodes.cached_model import Recorded

        return Recorded(_absent(scores=not spec.startswith("openai:")), spec, self.cache, stage)


def rehearse(setup: Setup, splits: Mapping[int, Split]) -> None:
    """Put the graphs of all arms together, without their models: whatever an arm lacks is found before the first one is paid for.

    Raises:
        UserError: an arm cannot do with this model, this world, or this library to start from.
    """
    from ....memory.library import Library, Versions, opened
    from ....memory.storage.cache import Cache
    from ....memory.storage.journal import Journal
    from ... import training_free_grpo

    seed = setup.seeds[0]
    bench = Rehearsal(setup, seed, splits[seed])
    bench.open(Cache(), 1)
    for path in libraries(setup):
        found = opened(path)
        if not isinstance(found, Library) and not found.names():
            raise CommandError(f"--library {path}: it holds no version yet")
    for arm in setup.arms:
        versions, journal = Versions(), Journal()
        try:
            bench.roll(arm, versions, journal, "test", 0.0)
            if arm.learns or arm.way == "self-generated":
                train, held_out = splits[seed].of(arm.settings)
                training_free_grpo.build(
                    bench.parts(journal, "rollout", 0.0),
                    arm.settings,
                    problems=train,
                    held_out=held_out,
                    versions=versions,
                    cache=bench.cache,
                    rollout=bench.graph(arm, versions, journal, "rollout", 0.0),
                    critic=bench.critic(),
                    recorded=bench.asked,
                )
        except UserError as error:
            raise CommandError(f"{arm.name} cannot run: {error}") from error
        finally:
            journal.close()
            versions.close()


@lru_cache(maxsize=2)
def _absent(scores: bool) -> Any:
    """A model that can be built with, and not be asked."""
    from langchain_core.language_models import BaseChatModel

    from ....nodes.ask import estimated
    from ...wiring.parts import WINDOW

    class Absent(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "absent"

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

        def get_num_tokens(self, text: str) -> int:
            return estimated(text)

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            raise AssertionError("nobody asks a model before all arms can run")

    class Scores(Absent):
        window: int = WINDOW

        def score(self, messages: Any, options: Any) -> list[float]:
            raise AssertionError("nobody asks a model before all arms can run")

    return Scores() if scores else Absent()


@dataclass(frozen=True)
class Stage:
    """What a stage would take."""

    name: str
    calls: int
    read: float
    """Tokens read per call."""
    written: float

    @property
    def usage(self) -> Usage:
        """Of all its calls."""
        return Usage(self.calls, round(self.calls * self.read), round(self.calls * self.written))


TYPICAL: Mapping[str, tuple[float, float]] = {
    "rollout": (1500, 600),
    "summarise": (4000, 500),
    "contrast": (4000, 700),
    "discriminate": (8000, 200),
    "propose": (2500, 300),
    "consolidate": (6000, 1500),
    "invent": (2000, 1500),
}
"""Tokens read and written per call where nobody has measured them: of a model that reasons in writing, without tools."""

WITH_TOOLS = (8000, 700)
"""Of a call within a rollout with tools, which reads what the calls before it came to."""

TURNS = 6
"""Calls of a rollout with tools: the paper's agents called 5.9 tools on the problems they learned from."""

COMPARED = 0.5
"""Share of groups whose rollouts differ: what the public log of a run shows is 0.31."""


def _stages(setup: Setup, known: Mapping[str, Usage]) -> list[Stage]:
    """What the run would ask, if nothing of it were in the cache.

    Args:
        setup: the run.
        known: what was paid so far by stage: for tokens per call.
    """
    options, seeds = setup.options, len(setup.seeds)
    environment = opened_world(options.env, options.horizon)
    scores = options.model.partition(":")[0] != "openai"
    plain = options.judges.partition(":")[0] != "openai"
    turns = _turns(setup, environment)
    counts: dict[str, float] = {}

    def add(stage: str, calls: float) -> None:
        if calls:
            counts[stage] = counts.get(stage, 0) + calls

    for arm in setup.arms:
        s = arm.settings
        if arm.learns:
            groups = s.epochs * s.problems
            steps = s.epochs * math.ceil(s.problems / (s.batch or s.problems))
            writes = s.author == "model"
            compared = groups * COMPARED
            add("rollout", groups * s.group * turns)
            add("discriminate", groups if s.truth == "self" else 0)
            add("summarise", compared * s.group if writes and not plain else 0)
            add("contrast", compared if writes else 0)
            add("propose", compared if writes and not plain else 0)
            add("consolidate", steps if writes and not plain and s.consolidate in ("model", "cheatsheet") else 0)
            add("trial", (steps + 1) * s.held_out * s.trials * turns if s.accept != "always" and s.held_out else 0)
            add("test", (steps - 1) * options.test * options.k * turns if options.curve else 0)
        add("invent", 1 if arm.way == "self-generated" else 0)
        add("test", options.test * options.k * turns)
    found = []
    for name, calls in counts.items():
        typical = WITH_TOOLS if options.asked_tools and name in PLAYED else TYPICAL["rollout" if name in PLAYED else name]
        if scores and name in PLAYED:
            typical = (200, 0)  # it scores the listed actions, and writes nothing
        paid = known.get(name, Usage())
        read, written = (paid.input_tokens / paid.calls, paid.output_tokens / paid.calls) if paid.calls else typical
        found.append(Stage(name, math.ceil(calls * seeds), read, written))
    return found


def _turns(setup: Setup, environment: Any) -> int:
    """Calls of a rollout, at most."""
    if setup.options.asked_tools:
        return TURNS
    return int(getattr(environment, "horizon", 1))


def dry_run(setup: Setup, settings: Mapping[str, Any]) -> int:
    """Print what the run would take, stage by stage; returns the exit code."""
    from ....memory.storage.cache import Cache
    from .. import sweep
    from ..evaluation import ledger

    if (setup.folder / "settings.json").exists():  # of a run with other settings? Nothing is written then, either
        sweep._check_settings(setup.folder / "settings.json", json.loads(json.dumps(settings)))
    options = setup.options
    place, known, measured = setup.folder / "cache.sqlite", dict[str, Usage](), ""
    if place.exists():
        cache = Cache(place)
        known = cache.spent()
        cache.close()
        measured = f"; tokens per call of {', '.join(known)} as measured in {place}" if known else ""
    stages = _stages(setup, known)
    dollars = {stage.name: options.prices(stage.name).of(stage.usage) for stage in stages}
    every = sum((stage.usage for stage in stages), Usage())
    tokens = every.input_tokens + every.output_tokens
    paid = sum(known.values(), Usage())
    if options.json:
        rows = [
            {"stage": s.name, "calls": s.calls, "read": s.read, "written": s.written, "dollars": dollars[s.name]}
            for s in stages
        ]
        tell(json.dumps({"folder": str(setup.folder), "stages": rows, "tokens": tokens, "dollars": sum(dollars.values())}))
        return 0
    turns = _turns(setup, opened_world(options.env, options.horizon))
    tell(f"{setup.folder}: no model was asked. If nothing of it were in the cache, the run would take at most about\n")
    tell(ledger({stage.name: stage.usage for stage in stages}, dollars if sum(dollars.values()) else {}))
    tell(
        f"\nassumed: {COMPARED:.0%} of the groups differ in their rewards and are compared; a rollout is {turns} calls; nobody "
        f"stops early; arms share nothing (in truth they share what is the same){measured}"
    )
    for stage in stages:
        if stage.name not in known:
            tell(f"assumed: {stage.read:,.0f} tokens read and {stage.written:,.0f} written per call of {stage.name}")
    if paid.calls:
        tell(f"paid so far in this folder: {paid.calls:,} calls, {paid.input_tokens + paid.output_tokens:,} tokens")
    if options.budget and tokens > options.budget:
        tell(f"--budget {options.budget:,} may not last: {tokens:,} tokens")
    if options.dollars and sum(dollars.values()) > options.dollars:
        tell(f"--dollars {options.dollars:g} may not last: ${sum(dollars.values()):.2f}")
    return 0
