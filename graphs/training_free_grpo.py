"""Training-Free GRPO (arXiv:2510.08191): a library of lessons, learned by comparing rollouts of the same problem in words.

GRPO tries each problem G times and moves a model's weights towards the attempts that did better than their group. Here the
weights stay, and what is moved is a small library of lessons that stands in every prompt: the winners and losers of a group are
summarised and set against each other, what that teaches is turned into edits of the library, and the edits of all groups of a
step are consolidated into one. What the paper does not have: a candidate library takes the current one's place only if it does
no worse on held-out problems (`accept`), every edit is ruled on and written down, and any earlier version can come back.

    begin        the library to start from; what is held out is never learned on
    batch        the problems of this step, in an order of their own in every epoch
    group        all that is made of one problem: see below
    consolidate  the edits of all groups -> the next version, a candidate; without a group to learn from, nobody is asked
    hold_out     the problems of the accept test, under both libraries, with the same seeds
    probe        one rollout of it
    accept       the candidate takes the library's place, or does not (nodes/update/accept_test.py)
    close        note the step; stop early if nothing is gained, nothing can be compared, or the budget is spent
    invent       arm self-generated: lessons written without a rollout
    finish       the product: the version that did best, or the control that the arm makes of it

    open         G rollouts of the problem
    rollout      one of them, by any episode graph; never played twice (nodes/extract/rollouts.py)
    reward       r_g, and whether the group has something to compare: std(r) > spread (nodes/extract/groups.py)
    read         the rollouts that can be compared
    summarise    one of them, in words; a model that only writes a line, and the rule, do without
    contrast     the semantic advantage: what the winners did and the losers did not
    propose      it -> edits of the library
    offer        what the group came to

Groups do not wait for each other before `consolidate`. All that costs something is in the cache (memory/storage/cache.py): the graph may
be executed again from any checkpoint, and comes to the same without paying again. No result depends on what ended first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from hashlib import blake2b
from operator import add
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import TypedDict

from ..memory.errors import UserError
from ..memory.library import LibraryLimits, LibraryVersions
from ..memory.records import Comparison, Rollout, Task, Usage
from ..memory.storage.cache import Cache, cache_key
from ..memory.storage.rows import Rows
from ..nodes.act.choose import Choose
from ..nodes.act.episode import Act, Begin, route_episode_end
from ..nodes.act.tool_use import Toolset
from ..nodes.cached_model import CachedChatModel, ConcurrencyLimit, SpendingLimit
from ..nodes.extract.critic import Critic, RuleCritic, contrast, critic_prompts, discriminate, invent, propose, summarise
from ..nodes.extract.groups import (
    AssignRewards,
    BudgetedGroup,
    EmitComparison,
    OpenGroup,
    StopWhenBudgetSpent,
    fan_out_rollouts,
    fan_out_summaries,
    route_comparison,
)
from ..nodes.extract.rollouts import LibraryPrompt, RolloutPlayer, max_score
from ..nodes.prompt import PROMPTS_DIR, Prompt
from ..nodes.retrieve.attempts import Layout
from ..nodes.retrieve.lessons import SameLessonsShown
from ..nodes.state import (
    ChoiceChannels,
    EpisodeChannels,
    EpisodeInput,
    EpisodeResult,
    GroupInput,
    LibraryChannels,
    PlanChannels,
)
from ..nodes.update.accept_test import Accept, CachedProbes, PlayProbe, Rule, fan_out_probes
from ..nodes.update.consolidate import ConsolidationMode, consolidate
from ..nodes.update.library import (
    BeginStep,
    CachedGroup,
    Consolidate,
    Finish,
    Invent,
    LearningRunInput,
    LearningRunResult,
    LearningRunState,
    RecordStep,
    RouteArm,
    RouteCandidate,
    RouteNextStep,
    Schedule,
    Start,
    deduplicate,
    passthrough,
)
from .baselines import react
from .wiring.flow import FlowError, Node, PlainLoop, Router, compile_graph, wire
from .wiring.flow import to_mermaid as drawing
from .wiring.parts import MethodInputs, check_literals

Graph = CompiledStateGraph[Any, Any, Any, Any]

FLOW = """
flowchart LR
  START --> begin
  begin -->|learn| batch
  begin -->|invent| invent --> finish
  begin -->|as it is| finish
  batch -.-> group --> consolidate
  consolidate -->|candidate| hold_out
  consolidate -->|untested| accept
  consolidate -->|no change| close
  hold_out -.-> probe --> accept --> close
  close -->|next step| batch
  close -->|enough| finish --> END
"""

GROUP_FLOW = """
flowchart LR
  START --> open
  open -.-> rollout --> reward
  reward -->|compare| read
  reward -->|no lesson| offer
  read -.-> summarise --> contrast --> propose --> offer --> END
"""

GROUP_FLOW_WITHOUT_SUMMARIES = """
flowchart LR
  START --> open
  open -.-> rollout --> reward
  reward -->|compare| contrast --> propose --> offer
  reward -->|no lesson| offer --> END
"""
"""The group where nothing is summarised: a model that only writes a line, or the rule, looks at the attempts themselves."""


@dataclass(frozen=True)
class TrainingFreeGRPO:
    """Hyper-parameters. `paper` is the published setting."""

    problems: int = 100
    """N, problems learned on. Paper: 100."""
    held_out: int = 20
    """Problems of the accept test, never learned on; 0: none. Paper: none."""
    epochs: int = 3
    """Times that every problem is tried. Paper: 3."""
    batch_size: int = 0
    """Problems of a step; 0: all of an epoch. What remains of an epoch is a smaller batch. Paper: all, one step an epoch."""
    group_size: int = 5
    """G, rollouts of a problem. Paper: 5, on the web 3."""
    temperature: float = 0.7
    """Of rollouts that are learned from. On the command line any model's; in `build` that of one whose actions are scored (one
    that writes has its own). Paper: 0.7."""
    trial_temperature: float = 0.3
    """Of rollouts of the accept test and of evaluation, likewise. Paper: 0.3."""
    truth: Literal["given", "majority", "self"] = "given"
    """Where rewards come from: the environment, or without ground truth the agreement of the group's answers, or a model's
    opinion. Without it labels decide nothing at all: it goes with `accept="always"` and `keep_best=False` only. Paper: given; in
    an ablation none, and no rule for what takes its place."""
    min_agreement: float = 0.6
    """Share of a group's answers that a majority needs. Paper: not given."""
    min_reward_std: float = 0.0
    """Standard deviation above which the rewards of a group differ, in reward units. Paper: 0 < mean < 1."""
    compare_failed_groups: bool = False
    """Compare groups in which every rollout failed with the true answer. Paper: no."""
    token_cost: float = 0.0
    """Reward taken for 1000 tokens. Paper: 0."""
    action_cost: float = 0.0
    """Reward taken for an action. Paper: 0."""
    max_insights: int = 2
    """Insights and edits of a group at most. Paper: a variable, not given; reference code: 1 to 3."""
    author: Literal["model", "rule"] = "model"
    """Who compares: a model, or a rule for worlds played step by step (an ablation, and for work without a language model)."""
    consolidate: Literal["model", "code", "votes", "cheatsheet"] = "model"
    """How the edits of a step become one library: by one call of a model (paper), by code, by votes (ExpeL, arXiv:2308.10144),
    or by having a model write the whole sheet anew (Dynamic Cheatsheet, arXiv:2504.07952). Without a model that writes: code."""
    accept: Rule = "not-worse"
    """When a candidate takes the library's place (nodes/update/accept_test.py). Paper: always."""
    trial_rollouts: int = 1
    """Rollouts of a held-out problem under each library. Paper: none."""
    keep_best: bool = True
    """The product is the version that did best on the held-out problems, not the last. Paper: the last."""
    patience: int = 2
    """Steps without gain after which the run ends; 0: never. Paper: never."""
    min_groups: int = 1
    """Groups of an epoch that must have something to compare, or the run ends; 0: any number. Paper: any."""
    max_words: int = 32
    """Of a lesson, at most. Paper: 32, in a prompt only."""
    max_lessons: int = 40
    """In the library, at most. Paper: not given (shipped: 27 and 46)."""
    max_library_tokens: int = 2000
    """Of the library in a prompt, at most, and at most half of what a prompt has room for. Paper: not given (shipped: about
    1300 and 2800)."""
    duplicate_similarity: float = 0.8
    """Jaccard similarity of shingles from which two lessons say the same; above 1: never. Paper: a model's judgement."""
    lessons_per_prompt: int = 0
    """Lessons in a prompt, those that fit the problem best; 0: all. Paper: all."""
    objective: str = ""
    """What the agent is for and what it is to learn, in words; part of what critics are asked. Reference code: required."""
    library: str = ""
    """A YAML file of lessons to start from, or the folder of a run whose product it is. Paper: none."""
    arm: Literal["learned", "empty", "self-generated", "random", "shuffled"] = "learned"
    """How the library comes about. `learned`; or a control: `empty`; `self-generated`, as many lessons as `lessons` says,
    written without rollouts; `random` steps of the rollouts, as many as were learned; the learned lessons `shuffled`."""
    timeout: float | None = None
    """Seconds that a rollout may take; None: any time. Reference code: 3600 whatever is set."""

    def __post_init__(self) -> None:
        check_literals(self, "training-free-grpo")
        for name, least in (
            *(
                ("problems", 1),
                ("held_out", 0),
                ("epochs", 1),
                ("batch_size", 0),
                ("group_size", 2),
                ("max_insights", 1),
                ("trial_rollouts", 1),
            ),
            *(
                ("patience", 0),
                ("min_groups", 0),
                ("max_words", 1),
                ("max_lessons", 1),
                ("max_library_tokens", 1),
                ("lessons_per_prompt", 0),
            ),
            *(("temperature", 0), ("trial_temperature", 0), ("min_reward_std", 0), ("token_cost", 0), ("action_cost", 0)),
        ):
            if getattr(self, name) < least:
                why = ": a rollout has nothing to be compared with" if name == "group_size" else ""
                raise UserError(f"training-free-grpo: {name} is at least {least}, got {getattr(self, name)}{why}")
        if not 0 < self.min_agreement <= 1:
            raise UserError(f"training-free-grpo: min_agreement is a share above 0 and at most 1, got {self.min_agreement}")
        if self.timeout is not None and not self.timeout > 0:
            raise UserError(f"training-free-grpo: timeout is a positive number of seconds, got {self.timeout}")
        if self.truth != "given" and (self.accept != "always" or self.keep_best):
            raise UserError(
                f"training-free-grpo: truth={self.truth} is learning without labels, and the accept test needs them: with it go "
                "accept=always and keep_best=False (no_truth() sets them)"
            )
        if self.duplicate_similarity <= 0:
            raise UserError(
                f"training-free-grpo: duplicate_similarity is above 0 (above 1: no two lessons are alike), got {self.duplicate_similarity}"
            )

    @classmethod
    def paper(cls) -> TrainingFreeGRPO:
        """The published run: three epochs of one step, every candidate accepted, nothing held out, and no limit on the library.

        One thing is enforced all the same that the paper asks for in a prompt only: a lesson of more than 32 words is asked for
        again, and rejected in the end.
        """
        return cls(
            held_out=0,
            accept="always",
            keep_best=False,
            patience=0,
            min_groups=0,
            max_lessons=10_000,
            max_library_tokens=1_000_000,
            duplicate_similarity=2.0,
        )

    ablations: ClassVar[tuple[str, ...]] = (
        *("empty", "self_generated_lessons", "random", "shuffled_lessons"),
        *("votes", "cheatsheet", "always", "no_truth", "rule"),
    )
    """Methods that change one thing in whatever the settings are."""

    def empty(self) -> TrainingFreeGRPO:
        """Control: no lessons."""
        return replace(self, arm="empty")

    def self_generated_lessons(self) -> TrainingFreeGRPO:
        """Control: lessons that the model writes without a rollout."""
        return replace(self, arm="self-generated")

    def random(self) -> TrainingFreeGRPO:
        """Control: random steps of the rollouts as lessons."""
        return replace(self, arm="random")

    def shuffled_lessons(self) -> TrainingFreeGRPO:
        """Control: the learned lessons with their words exchanged."""
        return replace(self, arm="shuffled")

    def votes(self) -> TrainingFreeGRPO:
        """Lessons live and die by votes, as in ExpeL."""
        return replace(self, consolidate="votes")

    def cheatsheet(self) -> TrainingFreeGRPO:
        """The whole library is rewritten at every step, as in Dynamic Cheatsheet."""
        return replace(self, consolidate="cheatsheet")

    def always(self) -> TrainingFreeGRPO:
        """Every candidate is accepted and the last one is the product, as published."""
        return replace(self, accept="always", keep_best=False)

    def no_truth(self) -> TrainingFreeGRPO:
        """No ground truth: majority vote. As nobody can say what a candidate is worth, every one is accepted."""
        return replace(self, truth="majority", accept="always", keep_best=False)

    def rule(self) -> TrainingFreeGRPO:
        """A rule compares in the model's place, and edits are consolidated by code."""
        return replace(self, author="rule", consolidate="code")

    @property
    def remark(self) -> str:
        """What a table has to say of these settings."""
        return "rule-written" if self.author == "rule" and self.arm == "learned" else ""

    @property
    def limits(self) -> LibraryLimits:
        """What the library may hold."""
        return LibraryLimits(self.max_words, self.max_lessons, self.max_library_tokens, self.duplicate_similarity)


class GroupOutput(TypedDict):
    """What comes out of a group."""

    comparisons: Annotated[list[Comparison], add]
    usage: Annotated[Usage, add]
    stops: Annotated[list[str], add]


class GroupState(BudgetedGroup, GroupOutput):
    """The channels of a group."""


class LessonEpisodeState(EpisodeChannels, PlanChannels, ChoiceChannels, LibraryChannels):
    """The channels of the default rollout."""


class RolloutRequest(EpisodeInput, LibraryChannels):
    """What a rollout is asked to do; its input."""


# Rollouts


def episode_graph(
    parts: MethodInputs, settings: TrainingFreeGRPO, versions: LibraryVersions, temperature: float | None = None, **compile: Any
) -> Graph:
    """The default rollout: ReAct (graphs/baselines/react.py) that is shown the lessons of the library named in its input.

    Args:
        parts: the environment, the model, the journal.
        settings: `top`, `truth` and `temperature` are read.
        versions: where libraries are looked up by name.
        temperature: in place of the settings'.
    """
    seen = LibraryPrompt(
        versions=versions,
        lessons_per_prompt=settings.lessons_per_prompt,
        show_ids=parts.make_writing_policy is not None,
        # Without ground truth nobody is told what the world pays, the agent itself no more than its critics.
        **parts.prompt_arguments(
            Layout(rewards="dense" if settings.truth == "given" else "none"),
            Prompt.load("reasoning_bank/brief", parts.prompts).text(),
        ),
    )
    nodes: dict[str, Node] = {
        "begin": Begin(parts.environment),
        "propose": parts.make_writing_policy(seen, "react") if parts.make_writing_policy else parts.make_policy(seen),
        "choose": Choose(settings.temperature if temperature is None else temperature),
        "act": Act(parts.environment, parts.journal, clear_lists=("candidates",)),
    }
    builder = StateGraph(LessonEpisodeState, input_schema=RolloutRequest, output_schema=EpisodeResult)
    return compile_graph(wire(builder, react.FLOW, nodes, {"act": route_episode_end}), **{"name": "lectured-react", **compile})


def rollout_node(
    parts: MethodInputs,
    settings: TrainingFreeGRPO,
    versions: LibraryVersions,
    cache: Cache,
    graph: Runnable[Any, Any],
    *,
    name: str = "",
    close: Callable[[str, str, int], None] | None = None,
    slots: ConcurrencyLimit | None = None,
    meter: SpendingLimit | None = None,
    stage: str = "rollout",
) -> RolloutPlayer:
    """What plays rollouts with this graph and keeps them in the cache, in learning, in the accept test and in evaluation.

    Args:
        graph: from `Attempt` and `Equipped` to `Played`; also played as a plain loop where that is possible.
        name: what the rollouts depend on beside the graph's drawing and settings, `Parts.model` and the prompt files; part of
            their keys in the cache.
        close: called with run, task id and number when a rollout has ended in whatever way.
        slots: how many rollouts are played at once; None: as many as there are.
        meter: asked before each rollout of a model whose calls are not counted one by one.
        stage: under which name tokens are counted in the cache.
    """
    plays = graph
    if isinstance(graph, CompiledStateGraph):
        try:
            plays = PlainLoop(graph)
        except FlowError:  # it needs LangGraph's engine
            plays = graph
    rewards: Any = "dense" if settings.truth == "given" else "none"
    return RolloutPlayer(
        plays,
        parts.environment,
        parts.journal,
        versions,
        cache,
        name=_fingerprint(parts, graph, name),
        lessons_per_prompt=settings.lessons_per_prompt,
        layout=Layout(rewards=rewards, clip=None),
        count=parts.count_tokens,
        max_transcript_tokens=parts.max_prompt_tokens // 2,
        timeout=settings.timeout,
        slots=slots,
        meter=meter,
        stage=stage,
        counts_as_paid=parts.make_writing_policy is None or not isinstance(parts.model, CachedChatModel),
        close=close,
    )


def _fingerprint(parts: MethodInputs, graph: Runnable[Any, Any], name: str) -> str:
    """What rollouts depend on, in words and digests."""
    told: list[Any] = [
        name,
        _model_fingerprint(parts.model),
        parts.window,
        parts.history_steps,
        parts.list_actions,
        _prompts_digest(parts.prompts),
    ]
    if isinstance(graph, CompiledStateGraph):
        told += [graph.name, drawing(graph)]
        for title, spec in sorted(graph.builder.nodes.items()):
            node = getattr(spec.runnable, "func", None) or spec.runnable
            told.append([title, getattr(node, "asks", ""), _fingerprint_value(node)])
    return cache_key(*told)


def _fingerprint_value(value: Any, depth: int = 6) -> Any:
    """Settings as JSON: values, records and nodes with their parts, models and tools. Of anything else its name."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if not depth:
        return type(value).__name__
    if isinstance(value, CachedChatModel | RunnableBinding) or hasattr(value, "_identifying_params"):
        return _model_fingerprint(value)
    if isinstance(value, BaseTool):
        return [value.name, value.description, _fingerprint_value(value.args, depth - 1)]
    if isinstance(value, Toolset):
        return [_fingerprint_value(value.factory, depth - 1), _fingerprint_value(value.list_tools(), depth - 1)]
    if isinstance(value, Mapping):
        return {str(name): _fingerprint_value(one, depth - 1) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_fingerprint_value(one, depth - 1) for one in value]
    if is_dataclass(value) and not isinstance(value, type | SpendingLimit):
        settings = (one.name for one in fields(value) if one.init and not one.name.startswith("_"))
        return [type(value).__name__, {name: _fingerprint_value(getattr(value, name), depth - 1) for name in settings}]
    return getattr(value, "__qualname__", type(value).__name__)


def _model_fingerprint(model: Any) -> str:
    """A model and its settings, with those that are bound to it; those of a `Recorded` model say all that its replies depend on."""
    if isinstance(model, CachedChatModel):
        return f"{model.name} {cache_key(_fingerprint_value(model.bound_options))}" if model.bound_options else model.name
    bound: dict[str, Any] = {}
    while isinstance(model, RunnableBinding):
        model, bound = model.bound, {**model.kwargs, **bound}
    if isinstance(model, CachedChatModel):
        return f"{_model_fingerprint(model)} {cache_key(_fingerprint_value(bound))}"
    named = [(name, getattr(model, name, None)) for name in ("model", "model_name", "temperature", "max_tokens", "seed")]
    named += [(name, getattr(model, name, None)) for name in ("base_url", "openai_api_base")]
    hidden = [
        bound,
        getattr(model, "_identifying_params", {}),
        model._get_ls_params() if hasattr(model, "_get_ls_params") else {},
    ]
    told = " ".join([type(model).__name__, *(f"{n}={v}" for n, v in named if isinstance(v, str | int | float))])
    return f"{told} {cache_key(_fingerprint_value(hidden))}"


PROMPT_FOLDERS = ("act", "ask", "cot", "reasoning_bank", "tool_agent", "training_free_grpo")
"""Folders of prompts that rollouts and critics are asked with; another method's may change."""


def _prompts_digest(overrides: Path | None) -> str:
    """A digest of these prompt files."""
    digest = blake2b(digest_size=10)
    for folder in (PROMPTS_DIR, overrides):
        for file in sorted(file for name in PROMPT_FOLDERS for file in (folder / name).rglob("*.md")) if folder else ():
            digest.update(f"{file.relative_to(cast(Path, folder))}\0{file.read_text(encoding='utf-8')}\0".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class PlayRollout(Runnable[Any, Any]):
    """Play rollout `number` of the group."""

    role: ClassVar[str] = "graph"

    roll: Runnable[Any, Rollout] = field(repr=False)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return {"rollouts": [self.roll.invoke(self._rollout_input(input), config)]}

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return {"rollouts": [await self.roll.ainvoke(self._rollout_input(input), config)]}

    @staticmethod
    def _rollout_input(state: Mapping[str, Any]) -> dict[str, Any]:
        run = f"{state['run']}/{state['step']}"
        return {"task": state["task"], "run": run, "episode": state["number"], "library": state["library"]}


def build(
    parts: MethodInputs,
    settings: TrainingFreeGRPO | None = None,
    *,
    problems: Sequence[Task] = (),
    held_out: Sequence[Task] = (),
    versions: LibraryVersions | None = None,
    cache: Cache | None = None,
    rollout: Runnable[Any, Any] | None = None,
    trial_rollout: Runnable[Any, Any] | None = None,
    critic: Runnable[Any, Any] | None = None,
    cache_model: Callable[[Runnable[Any, Any], str], Runnable[Any, Any]] | None = None,
    log: Rows | None = None,
    meter: SpendingLimit | None = None,
    name: str = "",
    close: Callable[[str, str, int], None] | None = None,
    slots: ConcurrencyLimit | None = None,
    chain: bool = False,
    **compile: Any,
) -> Graph:
    """The graph of a learning run, from `{"run": name}` to `Result`.

    Args:
        parts: environment, journal, and the model that plays. In a run that is to go on after a crash, or that has a budget, it
            is a `nodes.recorded.Recorded` one.
        settings: hyper-parameters.
        problems: what is learned on; the environment's first `settings.problems` of `train` if not given.
        held_out: problems of the accept test; the environment's first `settings.held_out` of `dev` if none are given and
            `problems` are not either.
        versions: where libraries are kept; in memory if not given. The product is `versions.at(result["best"])`.
        cache: of rollouts and of the critic's calls; in memory if not given.
        rollout: a graph from `Attempt` and `Equipped` to `Played` that plays what is learned from, with the journal of
            `parts`; `episode` if not given.
        trial: one that plays the accept test; `rollout`, or `episode` at `settings.trial_temperature`, if not given.
        critic: the chat model that compares and edits; the one that plays if not given.
        recorded: (model, stage) -> the model with its calls cached, counted and limited, for each of the critic's stages; by
            default with `cache`, `meter` and `slots`, unless the model is a `Recorded` one.
        log: where steps are noted, one row each.
        meter: says in the log what was spent, and ends a run whose rollouts, or critics, cost more than they may.
        name, close, slots: see `roll`.
        chain: as in `graphs.icrl.build`.
        compile: as for `StateGraph.compile`: a checkpointer, for example.

    Raises:
        UserError: problems that are there twice, or held out and learned on; settings that this model cannot do.
    """
    settings = settings or TrainingFreeGRPO()
    versions = versions if versions is not None else LibraryVersions()
    cache = cache if cache is not None else Cache()
    tasks, tests, dropped = _problems_of_run(parts, settings, problems, held_out)
    schedule = Schedule(tuple(tasks), settings.batch_size, settings.epochs)
    shown = rollout or episode_graph(parts, settings, versions)
    tried = trial_rollout or rollout or episode_graph(parts, settings, versions, settings.trial_temperature)
    more: dict[str, Any] = {"name": name, "close": close, "slots": slots, "meter": meter}
    learn = rollout_node(parts, settings, versions, cache, shown, **more)
    probe = rollout_node(parts, settings, versions, cache, tried, stage="trial", **more)
    ask = _Critics(parts, settings, versions, cache, critic, cache_model, {task.id: task for task in tasks}, meter, slots)
    tested_ = bool(tests) and (settings.accept != "always" or settings.keep_best)
    asked = [*tasks, *tests] if settings.lessons_per_prompt else []
    same = SameLessonsShown(versions, settings.lessons_per_prompt, [(task, probe.first_observation(task)) for task in asked])
    batch, probes = BeginStep(schedule), fan_out_probes(tests, settings.trial_rollouts)
    probing = PlayProbe(probe, settings.token_cost, settings.action_cost)
    nodes: dict[str, Node] = {
        "begin": Start(versions, settings.library, settings.arm, library_limits(parts, settings), parts.count_tokens),
        "batch": batch,
        "group": CachedGroup(group_graph(settings, learn, ask, chain), learn, ask.group_fingerprint),
        "consolidate": Consolidate(ask.consolidation, ask.consolidate(), schedule),
        "hold_out": passthrough,
        "probe": probing,
        "accept": Accept(same, settings.accept, settings.keep_best, CachedProbes(cache, probing, probes)),
        "close": RecordStep(
            log if log is not None else Rows(),
            versions,
            schedule,
            meter,
            settings.patience,
            settings.min_groups,
            tuple(dropped),
        ),
        "invent": Invent(ask.invent(), versions, tuple(tasks), library_limits(parts, settings), parts.count_tokens),
        "finish": Finish(
            versions, learn, schedule, library_limits(parts, settings), settings.arm, settings.group_size, parts.count_tokens
        ),
    }
    routers: dict[str, Router] = {
        "begin": RouteArm(settings.arm),
        "consolidate": RouteCandidate(same, tested_),
        "close": RouteNextStep(settings.epochs * schedule.steps_per_epoch if tasks else 0),
    }
    fan_outs = {"batch": batch.fan_out_groups, "hold_out": probes}
    builder = StateGraph(LearningRunState, input_schema=LearningRunInput, output_schema=LearningRunResult)
    wired = wire(builder, FLOW, nodes, routers, fan_outs, chain=chain)
    return compile_graph(wired, **{"name": "training-free-grpo", **compile})


def _problems_of_run(
    parts: MethodInputs, settings: TrainingFreeGRPO, problems: Sequence[Task], tests: Sequence[Task]
) -> tuple[list[Task], list[Task], list[str]]:
    world: Any = parts.environment
    if world is None:  # a drawing has no environment
        return [], [], []
    if not problems:
        problems = [world.task(n, "train") for n in range(settings.problems)]
        tests = tests or [world.task(n, "dev") for n in range(settings.held_out)]
    return deduplicate(problems, tests, hasattr(world, "answer"))


def group_graph(settings: TrainingFreeGRPO, learn: RolloutPlayer, ask: _Critics, chain: bool = False) -> Graph:
    """The graph of a group, from `Problem` to `Offered`."""
    world: Any = learn.environment
    reward = AssignRewards(
        settings.truth,
        settings.min_agreement,
        settings.min_reward_std,
        settings.compare_failed_groups,
        settings.token_cost,
        settings.action_cost,
        success_threshold=lambda task: _success_reward(world, task),
        reference=ask.reference,
        discriminate=ask.discriminate() if settings.truth == "self" else None,
        **({"answer": world.answer} if hasattr(world, "answer") else {}),
    )
    nodes: dict[str, Node] = {
        "open": OpenGroup(),
        "rollout": StopWhenBudgetSpent(PlayRollout(learn)),
        "reward": StopWhenBudgetSpent(reward),
        "contrast": StopWhenBudgetSpent(ask.contrast()),
        "propose": StopWhenBudgetSpent(ask.propose()),
        "offer": EmitComparison(),
    }
    fan_outs: dict[str, Any] = {"open": fan_out_rollouts(settings.group_size)}
    if not ask.skips_summaries:
        nodes |= {"read": passthrough, "summarise": StopWhenBudgetSpent(ask.summarise())}
        fan_outs["read"] = fan_out_summaries
    builder = StateGraph(GroupState, input_schema=GroupInput, output_schema=GroupOutput)
    flow = GROUP_FLOW_WITHOUT_SUMMARIES if ask.skips_summaries else GROUP_FLOW
    wired = wire(builder, flow, nodes, {"reward": route_comparison}, fan_outs, chain=chain)
    return compile_graph(wired, name="training-free-grpo-group", checkpointer=False)


def library_limits(parts: MethodInputs, settings: TrainingFreeGRPO) -> LibraryLimits:
    """What a library may hold that these prompts have room for."""
    return replace(settings.limits, max_library_tokens=max(min(settings.max_library_tokens, parts.max_prompt_tokens // 2), 1))


def _success_reward(world: Any, task: Task) -> float:
    """The reward from which an attempt is a success."""
    solved = getattr(world, "solved", None)
    return 1.0 if solved is None else min(solved / max_score(world, task), 1.0)


NOT_IN_GROUP_KEY = frozenset(
    "problems held_out epochs batch temperature trial_temperature consolidate accept trials keep_best patience least_groups "  # noqa: SIM905
    "library arm timeout".split()
)
"""Settings that say nothing of what becomes of a group, or that its rollouts are known by already."""


@dataclass(frozen=True)
class _Critics:
    """Makes the nodes that compare and edit: by a model, each stage cached by itself, or by rule."""

    parts: MethodInputs
    settings: TrainingFreeGRPO
    versions: LibraryVersions
    cache: Cache
    critic_model: Runnable[Any, Any] | None
    cache_model: Callable[[Runnable[Any, Any], str], Runnable[Any, Any]] | None
    tasks: Mapping[str, Task]
    meter: SpendingLimit | None = None
    slots: ConcurrencyLimit | None = None

    @property
    def is_rule(self) -> bool:
        return self.settings.author == "rule"

    @property
    def group_fingerprint(self) -> str:
        """What a group depends on beside its rollouts, as a digest."""
        settings = {name: value for name, value in asdict(self.settings).items() if name not in NOT_IN_GROUP_KEY}
        models = [_model_fingerprint(self.model(stage)) for stage in ("summarise", "contrast", "propose", "discriminate")]
        return cache_key(models, settings, library_limits(self.parts, self.settings), self.parts.max_prompt_tokens)

    @property
    def skips_summaries(self) -> bool:
        """Whether nothing can be summarised: the rule compares, or a model that only writes a line."""
        return self.is_rule or (self.critic_model is None and self.parts.make_writing_policy is None)

    @property
    def consolidation(self) -> ConsolidationMode:
        """How edits are consolidated."""
        if not self.skips_summaries or self.settings.consolidate in ("code", "votes"):
            return self.settings.consolidate
        if self.settings.consolidate == "cheatsheet":
            raise UserError(
                "training-free-grpo: consolidate=cheatsheet has a model write; use one that writes (--model openai:NAME)"
            )
        return "code"

    @property
    def reference(self) -> Callable[[Task], str] | None:
        """The true answer: of problems with one, and where hard groups are compared with it."""
        world: Any = self.parts.environment
        if hasattr(world, "gold") and (hasattr(world, "answer") or self.settings.compare_failed_groups):
            return lambda task: ", ".join(world.gold(task))
        return None

    @property
    def critic(self) -> Critic:
        settings, parts = self.settings, self.parts
        return Critic(
            self.versions,
            critic_prompts(parts.prompts),
            library_limits(parts, settings),
            settings.max_insights,
            settings.truth,
            settings.objective,
            reference=self.reference,
            count=parts.count_tokens,
            max_prompt_tokens=parts.max_prompt_tokens,
            line_only=self.skips_summaries,
            tasks=self.tasks,
        )

    def model(self, stage: str) -> Runnable[Any, Any]:
        """The model that is asked at a stage. By rule, none is."""
        if self.is_rule and self.critic_model is None and self.parts.model is None:
            return cast(Runnable[Any, Any], None)
        model = self.critic_model or self.parts.require_chat_model("training-free-grpo")
        if self.cache_model:
            return self.cache_model(model, stage)
        if isinstance(model, CachedChatModel):
            return replace(model, stage=stage)
        return CachedChatModel(model, _model_fingerprint(model), self.cache, stage, self.meter, self.slots)

    def summarise(self) -> Node:
        return summarise(self.model("summarise"), self.critic)

    def contrast(self) -> Node:
        if self.is_rule:
            return RuleCritic(self.settings.truth)
        return contrast(self.model("contrast"), self.critic)

    def propose(self) -> Node:
        return propose(self.model("propose"), self.critic)

    def consolidate(self) -> Node:
        return consolidate(self.model("consolidate"), self.critic, self.consolidation)

    def discriminate(self) -> Runnable[Any, Any]:
        return cast(Runnable[Any, Any], discriminate(self.model("discriminate"), self.critic))

    def invent(self) -> Any:
        """Asked in one arm only; elsewhere it stands in the drawing."""
        if self.settings.arm != "self-generated":
            return None
        return invent(self.model("invent"), self.critic, self.settings.max_lessons)
