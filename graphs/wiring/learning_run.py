"""The inputs of a run that learns a library of lessons: stores and limits, the graphs that play, the model that compares."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, cast

from langchain_core.runnables import Runnable
from langgraph.graph.state import CompiledStateGraph

from ...memory.lessons.versions import LibraryVersions
from ...memory.records import Task
from ...memory.storage.cache import Cache
from ...memory.storage.rows import Rows
from ...nodes.cached_model import CachedChatModel, ConcurrencyLimit, SpendingLimit, model_name
from ...nodes.extract.critic import Critic, LessonSettings, critic_prompts
from ...nodes.extract.groups import Truth
from ...nodes.extract.leaks import bare_answers
from ...nodes.extract.rollouts import RolloutPlayer, RolloutSettings
from ...nodes.lesson_prompts import SameLessonsShown
from ...nodes.retrieve.attempts import Layout
from ...nodes.update.accept_test import (
    Accept,
    AcceptSettings,
    CachedProbes,
    NewLeaks,
    PlayProbe,
    Rule,
    fan_out_probes,
    split_held_out,
)
from ...nodes.update.library import RouteCandidate
from .fingerprint import model_fingerprint, rollout_fingerprint
from .flow import FlowError
from .inputs import MethodInputs
from .supersteps import UncheckpointedGraph

__all__ = [
    "AcceptTest",
    "ComparisonSettings",
    "CriticModel",
    "RolloutGraphs",
    "RunResources",
    "StageModel",
    "make_critic",
    "make_players",
    "rollout_player",
]

StageModel = Callable[[str], Runnable[Any, Any]]
"""A stage's name -> the model that is asked in it."""


class ComparisonSettings(Protocol):
    """The settings of `graphs.training_free_grpo.TrainingFreeGRPO` that the nodes of a run are made of."""

    @property
    def temperature(self) -> float | None: ...
    @property
    def truth(self) -> Truth: ...
    @property
    def author(self) -> str: ...
    @property
    def wording(self) -> str: ...
    @property
    def acceptance(self) -> Rule: ...
    @property
    def rollouts(self) -> RolloutSettings: ...
    @property
    def lessons(self) -> LessonSettings: ...
    @property
    def trial(self) -> AcceptSettings: ...


@dataclass(frozen=True)
class RunResources:
    """The stores of a run, and its limits. By default everything is in memory, without a limit."""

    versions: LibraryVersions = field(default_factory=LibraryVersions)
    """The versions of the library. The product of a run is `versions.at(result["best"])`."""
    cache: Cache = field(default_factory=Cache)
    """Rollouts and the critic's calls: none is paid for twice."""
    log: Rows = field(default_factory=Rows)
    """A row for every learning step."""
    meter: SpendingLimit | None = None
    """Says in the log what was spent, and ends a run whose rollouts, or critics, cost more than they may."""
    slots: ConcurrencyLimit | None = None
    """Rollouts played at once, and calls of the critic at once; None: any number."""


@dataclass(frozen=True)
class RolloutGraphs:
    """The graphs that play rollouts."""

    learning: Runnable[Any, Any] | None = None
    """Plays what is learned from: from `RolloutInput` to `EpisodeResult`, with the journal of the run's `MethodInputs`. None:
    graphs/baselines/lesson_react.py."""
    trial: Runnable[Any, Any] | None = None
    """Plays the accept test; None: `learning`, or lesson_react.py at the temperature of the accept test."""
    name: str = ""
    """Text in the keys of rollouts, for anything they depend on that their graphs do not show (graphs/wiring/fingerprint.py)."""
    close: Callable[[str, str, int], None] | None = None
    """Called with run, task id and number when a rollout has ended, also where it failed: closes its tools."""


@dataclass(frozen=True)
class CriticModel:
    """The chat model that compares rollouts and edits the library."""

    model: Runnable[Any, Any] | None = None
    """None: the model that plays."""
    cache_model: Callable[[Runnable[Any, Any], str], Runnable[Any, Any]] | None = None
    """(model, stage) -> the model with its calls cached, counted and limited. None: by the run's resources, unless the model is
    a `CachedChatModel`."""

    def by_stage(self, inputs: MethodInputs, resources: RunResources, *, required: bool = True) -> StageModel:
        """Gives the model of a stage (`summarise`, `contrast`, ...): calls are cached and counted by stage.

        Args:
            inputs: the model that plays.
            resources: the cache and the limits.
            required: whether a run without any model is an error; if not, the model of every stage is None then.

        Raises:
            UserError: a model is required, and there is none.
        """
        if self.model is None and inputs.model is None and not required:
            return lambda stage: cast(Any, None)
        model = self.model or inputs.require_chat_model("training-free-grpo")

        def stage_model(stage: str) -> Runnable[Any, Any]:
            if self.cache_model:
                return self.cache_model(model, stage)
            if isinstance(model, CachedChatModel):
                return replace(model, stage=stage)
            name = model_fingerprint(model)
            return CachedChatModel(model, name, resources.cache, stage, meter=resources.meter, slots=resources.slots)

        return stage_model


def rollout_player(
    inputs: MethodInputs,
    settings: ComparisonSettings,
    graph: Runnable[Any, Any],
    resources: RunResources,
    *,
    stage: str = "rollout",
    name: str = "",
    close: Callable[[str, str, int], None] | None = None,
) -> RolloutPlayer:
    """The node that plays rollouts with a graph and keeps them in the cache: in learning, in the accept test, in evaluation.

    Args:
        inputs: the environment, the journal, and the model that plays.
        settings: `lessons_per_prompt`, `timeout` and `truth` are used: without ground truth, transcripts hold no rewards.
        graph: plays a rollout (see `RolloutGraphs`); as a plain loop, where that is possible.
        resources: the versions of the library, the cache, and the limits.
        stage: the name under which its tokens are counted in the cache: `rollout`, `trial`, `test`.
        name: see `RolloutGraphs`.
        close: see `RolloutGraphs`.
    """
    plays = graph
    if isinstance(graph, CompiledStateGraph):
        try:
            plays = UncheckpointedGraph(graph)
        except FlowError:  # it needs LangGraph's engine
            plays = graph
    rewards: Literal["dense", "none"] = "dense" if settings.truth == "given" else "none"
    return RolloutPlayer(
        plays,
        inputs.environment,
        inputs.journal,
        resources.versions,
        resources.cache,
        name=rollout_fingerprint(inputs, graph, name),
        lessons_per_prompt=settings.rollouts.lessons_per_prompt,
        layout=Layout(rewards=rewards, clip=None),
        count=inputs.prompting.count_tokens,
        max_transcript_tokens=inputs.prompting.max_prompt_tokens // 2,
        timeout=settings.rollouts.timeout,
        slots=resources.slots,
        meter=resources.meter,
        stage=stage,
        counts_as_paid=inputs.make_writing_policy is None or not isinstance(inputs.model, CachedChatModel),
        close=close,
    )


def make_players(
    inputs: MethodInputs, settings: ComparisonSettings, resources: RunResources, rollouts: RolloutGraphs
) -> tuple[RolloutPlayer, RolloutPlayer]:
    """The player of rollouts that are learned from, and the player of the accept test; both graphs are given."""

    def player(graph: Runnable[Any, Any] | None, stage: str) -> RolloutPlayer:
        assert graph is not None
        return rollout_player(inputs, settings, graph, resources, stage=stage, name=rollouts.name, close=rollouts.close)

    return player(rollouts.learning, "rollout"), player(rollouts.trial, "trial")


def make_critic(
    inputs: MethodInputs, settings: ComparisonSettings, resources: RunResources, critic: CriticModel, tasks: Sequence[Task]
) -> Critic:
    """The settings and functions of the nodes that compare and edit.

    Args:
        inputs: the environment, the prompts, the window.
        settings: who compares, with how much ground truth, and the limits of the library.
        resources: the versions of the library.
        critic: the model that compares.
        tasks: the problems that are learned on.
    """
    world: Any = inputs.environment
    has_answer = hasattr(world, "gold") and hasattr(world, "answer")
    tokens = max(min(settings.lessons.max_library_tokens, inputs.prompting.max_prompt_tokens // 2), 1)
    return Critic(
        resources.versions,
        critic_prompts(inputs.prompting.prompts, settings.wording == "paper"),
        replace(settings.lessons, max_library_tokens=tokens),
        paper=settings.wording == "paper",
        truth=settings.truth,
        reference=(lambda task: ", ".join(world.gold(task))) if has_answer else None,
        bare_answers=true_answers(world),
        final_answer=getattr(world, "answer", None),
        count=inputs.prompting.count_tokens,
        max_prompt_tokens=inputs.prompting.max_prompt_tokens,
        line_only=settings.author == "rule" or (critic.model is None and inputs.make_writing_policy is None),
        tasks={task.id: task for task in tasks},
        author="" if settings.author == "rule" else model_name(critic.model or inputs.model),
    )


class AcceptTest:
    """The nodes of the accept test, and what decides whether there is one."""

    def __init__(
        self,
        settings: ComparisonSettings,
        resources: RunResources,
        player: RolloutPlayer,
        leak_reason: Callable[..., str],
        tasks: Sequence[Task],
        tests: Sequence[Task],
    ) -> None:
        chosen = (
            [*tasks, *tests] if settings.rollouts.lessons_per_prompt else []
        )  # where all lessons are shown, tasks do not matter
        first_texts = [(task, player.first_observation(task)) for task in chosen]
        self.same = SameLessonsShown(resources.versions, settings.rollouts.lessons_per_prompt, first_texts)
        self.new_leaks = NewLeaks(resources.versions, leak_reason, {task.id: task for task in (*tasks, *tests)})
        self.fan_out = fan_out_probes(tests, settings.trial.rollouts)
        self.probe = PlayProbe(player)
        cached = CachedProbes(resources.cache, self.probe, self.fan_out)
        second = split_held_out(tests, settings.trial.regression_share)
        self.accept = Accept(
            self.same, settings.acceptance, settings.trial.margin, second, self.new_leaks, cached_probes=cached
        )
        self.route = RouteCandidate(self.same, bool(tests) and settings.acceptance != "always")


def true_answers(world: Any) -> Callable[[Task], tuple[str, ...]]:
    """A function that gives the bare true answers of a problem: none in worlds that are played step by step."""
    if hasattr(world, "bare_answer"):
        return lambda task: (world.bare_answer(task),)
    if hasattr(world, "gold") and (hasattr(world, "answer") or hasattr(world, "read")):
        return lambda task: bare_answers(world.gold(task), stated=hasattr(world, "answer"))
    return lambda task: ()
