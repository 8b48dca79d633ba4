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

from ..memory.library import Limits, Versions
from ..memory.records import Comparison, Rollout, Task, Usage, UserError
from ..memory.storage.cache import Cache, key
from ..memory.storage.rows import Rows
from ..nodes.act.decide import Choose
from ..nodes.act.episode import Act, Begin, progress
from ..nodes.act.tool_use import Toolset
from ..nodes.cached_model import Meter, Recorded, Slots
from ..nodes.extract.critic import ByRule, Critic, contrast, discriminate, invent, propose, questions, summarise
from ..nodes.extract.groups import Offer, Open, Reward, Stoppable, Within, rolled, summarised, verdict
from ..nodes.extract.rollouts import Lectured, Roll, best
from ..nodes.prompt import HERE, Prompt
from ..nodes.retrieve.attempts import Layout
from ..nodes.retrieve.lessons import Alike
from ..nodes.state import Attempt, Choice, Episode, Equipped, Planned, Played, Problem
from ..nodes.update.accept_test import Accept, Kept, Probing, Rule, tries
from ..nodes.update.consolidate import How, consolidate
from ..nodes.update.library import (
    Asked,
    Batch,
    Candidate,
    Close,
    Consolidate,
    Finish,
    Grouped,
    Invent,
    Learns,
    More,
    Result,
    Schedule,
    Start,
    State,
    distinct,
    nothing,
)
from .baselines import react
from .wiring.flow import FlowError, Loop, Node, Router, compiled, wire
from .wiring.flow import draw as drawing
from .wiring.parts import Parts, chosen

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

GROUP = """
flowchart LR
  START --> open
  open -.-> rollout --> reward
  reward -->|compare| read
  reward -->|no lesson| offer
  read -.-> summarise --> contrast --> propose --> offer --> END
"""

PLAIN = """
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
    batch: int = 0
    """Problems of a step; 0: all of an epoch. What remains of an epoch is a smaller batch. Paper: all, one step an epoch."""
    group: int = 5
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
    agreement: float = 0.6
    """Share of a group's answers that a majority needs. Paper: not given."""
    spread: float = 0.0
    """Standard deviation above which the rewards of a group differ, in reward units. Paper: 0 < mean < 1."""
    hard: bool = False
    """Compare groups in which every rollout failed with the true answer. Paper: no."""
    cost: float = 0.0
    """Reward taken for 1000 tokens. Paper: 0."""
    turns: float = 0.0
    """Reward taken for an action. Paper: 0."""
    most: int = 2
    """Insights and edits of a group at most. Paper: a variable, not given; reference code: 1 to 3."""
    author: Literal["model", "rule"] = "model"
    """Who compares: a model, or a rule for worlds played step by step (an ablation, and for work without a language model)."""
    consolidate: Literal["model", "code", "votes", "cheatsheet"] = "model"
    """How the edits of a step become one library: by one call of a model (paper), by code, by votes (ExpeL, arXiv:2308.10144),
    or by having a model write the whole sheet anew (Dynamic Cheatsheet, arXiv:2504.07952). Without a model that writes: code."""
    accept: Rule = "not-worse"
    """When a candidate takes the library's place (nodes/update/accept_test.py). Paper: always."""
    trials: int = 1
    """Rollouts of a held-out problem under each library. Paper: none."""
    keep_best: bool = True
    """The product is the version that did best on the held-out problems, not the last. Paper: the last."""
    patience: int = 2
    """Steps without gain after which the run ends; 0: never. Paper: never."""
    least_groups: int = 1
    """Groups of an epoch that must have something to compare, or the run ends; 0: any number. Paper: any."""
    words: int = 32
    """Of a lesson, at most. Paper: 32, in a prompt only."""
    lessons: int = 40
    """In the library, at most. Paper: not given (shipped: 27 and 46)."""
    tokens: int = 2000
    """Of the library in a prompt, at most, and at most half of what a prompt has room for. Paper: not given (shipped: about
    1300 and 2800)."""
    similar: float = 0.8
    """Jaccard similarity of shingles from which two lessons say the same; above 1: never. Paper: a model's judgement."""
    top: int = 0
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
        chosen(self, "training-free-grpo")
        for name, least in (
            *(("problems", 1), ("held_out", 0), ("epochs", 1), ("batch", 0), ("group", 2), ("most", 1), ("trials", 1)),
            *(("patience", 0), ("least_groups", 0), ("words", 1), ("lessons", 1), ("tokens", 1), ("top", 0)),
            *(("temperature", 0), ("trial_temperature", 0), ("spread", 0), ("cost", 0), ("turns", 0)),
        ):
            if getattr(self, name) < least:
                why = ": a rollout has nothing to be compared with" if name == "group" else ""
                raise UserError(f"training-free-grpo: {name} is at least {least}, got {getattr(self, name)}{why}")
        if not 0 < self.agreement <= 1:
            raise UserError(f"training-free-grpo: agreement is a share above 0 and at most 1, got {self.agreement}")
        if self.timeout is not None and not self.timeout > 0:
            raise UserError(f"training-free-grpo: timeout is a positive number of seconds, got {self.timeout}")
        if self.truth != "given" and (self.accept != "always" or self.keep_best):
            raise UserError(
                f"training-free-grpo: truth={self.truth} is learning without labels, and the accept test needs them: with it go "
                "accept=always and keep_best=False (no_truth() sets them)"
            )
        if self.similar <= 0:
            raise UserError(f"training-free-grpo: similar is above 0 (above 1: no two lessons are alike), got {self.similar}")

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
            least_groups=0,
            lessons=10_000,
            tokens=1_000_000,
            similar=2.0,
        )

    ablations: ClassVar[tuple[str, ...]] = (
        *("empty", "self_generated", "random", "shuffled"),
        *("votes", "cheatsheet", "always", "no_truth", "rule"),
    )
    """Methods that change one thing in whatever the settings are."""

    def empty(self) -> TrainingFreeGRPO:
        """Control: no lessons."""
        return replace(self, arm="empty")

    def self_generated(self) -> TrainingFreeGRPO:
        """Control: lessons that the model writes without a rollout."""
        return replace(self, arm="self-generated")

    def random(self) -> TrainingFreeGRPO:
        """Control: random steps of the rollouts as lessons."""
        return replace(self, arm="random")

    def shuffled(self) -> TrainingFreeGRPO:
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
    def limits(self) -> Limits:
        """What the library may hold."""
        return Limits(self.words, self.lessons, self.tokens, self.similar)


class Offered(TypedDict):
    """What comes out of a group."""

    comparisons: Annotated[list[Comparison], add]
    usage: Annotated[Usage, add]
    stops: Annotated[list[str], add]


class GroupState(Stoppable, Offered):
    """The channels of a group."""


class EpisodeState(Episode, Planned, Choice, Equipped):
    """The channels of the default rollout."""


class Request(Attempt, Equipped):
    """What a rollout is asked to do; its input."""


# Rollouts


def episode(
    parts: Parts, settings: TrainingFreeGRPO, versions: Versions, temperature: float | None = None, **compile: Any
) -> Graph:
    """The default rollout: ReAct (graphs/baselines/react.py) that is shown the lessons of the library named in its input.

    Args:
        parts: the environment, the model, the journal.
        settings: `top`, `truth` and `temperature` are read.
        versions: where libraries are looked up by name.
        temperature: in place of the settings'.
    """
    seen = Lectured(
        versions=versions,
        top=settings.top,
        ids=parts.write is not None,
        # Without ground truth nobody is told what the world pays, the agent itself no more than its critics.
        **parts.running(
            Layout(rewards="dense" if settings.truth == "given" else "none"),
            Prompt.load("reasoning_bank/brief", parts.prompts).text(),
        ),
    )
    nodes: dict[str, Node] = {
        "begin": Begin(parts.environment),
        "propose": parts.write(seen, "react") if parts.write else parts.policy(seen),
        "choose": Choose(settings.temperature if temperature is None else temperature),
        "act": Act(parts.environment, parts.journal, spent=("candidates",)),
    }
    builder = StateGraph(EpisodeState, input_schema=Request, output_schema=Played)
    return compiled(wire(builder, react.FLOW, nodes, {"act": progress}), **{"name": "lectured-react", **compile})


def roll(
    parts: Parts,
    settings: TrainingFreeGRPO,
    versions: Versions,
    cache: Cache,
    graph: Runnable[Any, Any],
    *,
    name: str = "",
    close: Callable[[str, str, int], None] | None = None,
    slots: Slots | None = None,
    meter: Meter | None = None,
    stage: str = "rollout",
) -> Roll:
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
            plays = Loop(graph)
        except FlowError:  # it needs LangGraph's engine
            plays = graph
    rewards: Any = "dense" if settings.truth == "given" else "none"
    return Roll(
        plays,
        parts.environment,
        parts.journal,
        versions,
        cache,
        name=_fingerprint(parts, graph, name),
        top=settings.top,
        layout=Layout(rewards=rewards, clip=None),
        count=parts.count,
        room=parts.room // 2,
        timeout=settings.timeout,
        slots=slots,
        meter=meter,
        stage=stage,
        paid=parts.write is None or not isinstance(parts.model, Recorded),
        close=close,
    )


def _fingerprint(parts: Parts, graph: Runnable[Any, Any], name: str) -> str:
    """What rollouts depend on, in words and digests."""
    told: list[Any] = [name, _model(parts.model), parts.window, parts.recent, parts.listed, _prompts(parts.prompts)]
    if isinstance(graph, CompiledStateGraph):
        told += [graph.name, drawing(graph)]
        for title, spec in sorted(graph.builder.nodes.items()):
            node = getattr(spec.runnable, "func", None) or spec.runnable
            told.append([title, getattr(node, "asks", ""), _words(node)])
    return key(*told)


def _words(value: Any, depth: int = 6) -> Any:
    """Settings as JSON: values, records and nodes with their parts, models and tools. Of anything else its name."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if not depth:
        return type(value).__name__
    if isinstance(value, Recorded | RunnableBinding) or hasattr(value, "_identifying_params"):
        return _model(value)
    if isinstance(value, BaseTool):
        return [value.name, value.description, _words(value.args, depth - 1)]
    if isinstance(value, Toolset):
        return [_words(value.tools, depth - 1), _words(value.offered(), depth - 1)]
    if isinstance(value, Mapping):
        return {str(name): _words(one, depth - 1) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_words(one, depth - 1) for one in value]
    if is_dataclass(value) and not isinstance(value, type | Meter):
        settings = (one.name for one in fields(value) if one.init and not one.name.startswith("_"))
        return [type(value).__name__, {name: _words(getattr(value, name), depth - 1) for name in settings}]
    return getattr(value, "__qualname__", type(value).__name__)


def _model(model: Any) -> str:
    """A model and its settings, with those that are bound to it; those of a `Recorded` model say all that its replies depend on."""
    if isinstance(model, Recorded):
        return f"{model.name} {key(_words(model.bound))}" if model.bound else model.name
    bound: dict[str, Any] = {}
    while isinstance(model, RunnableBinding):
        model, bound = model.bound, {**model.kwargs, **bound}
    if isinstance(model, Recorded):
        return f"{_model(model)} {key(_words(bound))}"
    named = [(name, getattr(model, name, None)) for name in ("model", "model_name", "temperature", "max_tokens", "seed")]
    named += [(name, getattr(model, name, None)) for name in ("base_url", "openai_api_base")]
    hidden = [
        bound,
        getattr(model, "_identifying_params", {}),
        model._get_ls_params() if hasattr(model, "_get_ls_params") else {},
    ]
    told = " ".join([type(model).__name__, *(f"{n}={v}" for n, v in named if isinstance(v, str | int | float))])
    return f"{told} {key(_words(hidden))}"


PROMPTS = ("act", "ask", "cot", "reasoning_bank", "tool_agent", "training_free_grpo")
"""Folders of prompts that rollouts and critics are asked with; another method's may change."""


def _prompts(overrides: Path | None) -> str:
    """A digest of these prompt files."""
    digest = blake2b(digest_size=10)
    for folder in (HERE, overrides):
        for file in sorted(file for name in PROMPTS for file in (folder / name).rglob("*.md")) if folder else ():
            digest.update(f"{file.relative_to(cast(Path, folder))}\0{file.read_text(encoding='utf-8')}\0".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Sample(Runnable[Any, Any]):
    """Play rollout `number` of the group."""

    role: ClassVar[str] = "graph"

    roll: Runnable[Any, Rollout] = field(repr=False)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return {"rollouts": [self.roll.invoke(self._asked(input), config)]}

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return {"rollouts": [await self.roll.ainvoke(self._asked(input), config)]}

    @staticmethod
    def _asked(state: Mapping[str, Any]) -> dict[str, Any]:
        run = f"{state['run']}/{state['step']}"
        return {"task": state["task"], "run": run, "episode": state["number"], "library": state["library"]}


def build(
    parts: Parts,
    settings: TrainingFreeGRPO | None = None,
    *,
    problems: Sequence[Task] = (),
    held_out: Sequence[Task] = (),
    versions: Versions | None = None,
    cache: Cache | None = None,
    rollout: Runnable[Any, Any] | None = None,
    trial: Runnable[Any, Any] | None = None,
    critic: Runnable[Any, Any] | None = None,
    recorded: Callable[[Runnable[Any, Any], str], Runnable[Any, Any]] | None = None,
    log: Rows | None = None,
    meter: Meter | None = None,
    name: str = "",
    close: Callable[[str, str, int], None] | None = None,
    slots: Slots | None = None,
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
    versions = versions if versions is not None else Versions()
    cache = cache if cache is not None else Cache()
    tasks, tests, dropped = _problems(parts, settings, problems, held_out)
    schedule = Schedule(tuple(tasks), settings.batch, settings.epochs)
    shown = rollout or episode(parts, settings, versions)
    tried = trial or rollout or episode(parts, settings, versions, settings.trial_temperature)
    more: dict[str, Any] = {"name": name, "close": close, "slots": slots, "meter": meter}
    learn = roll(parts, settings, versions, cache, shown, **more)
    probe = roll(parts, settings, versions, cache, tried, stage="trial", **more)
    ask = _Asking(parts, settings, versions, cache, critic, recorded, {task.id: task for task in tasks}, meter, slots)
    tested_ = bool(tests) and (settings.accept != "always" or settings.keep_best)
    asked = [*tasks, *tests] if settings.top else []
    same = Alike(versions, settings.top, [(task, probe.first(task)) for task in asked])
    batch, probes = Batch(schedule), tries(tests, settings.trials)
    probing = Probing(probe, settings.cost, settings.turns)
    nodes: dict[str, Node] = {
        "begin": Start(versions, settings.library, settings.arm, limits(parts, settings), parts.count),
        "batch": batch,
        "group": Grouped(group(settings, learn, ask, chain), learn, ask.name),
        "consolidate": Consolidate(ask.how, ask.consolidate(), schedule),
        "hold_out": nothing,
        "probe": probing,
        "accept": Accept(same, settings.accept, settings.keep_best, Kept(cache, probing, probes)),
        "close": Close(
            log if log is not None else Rows(),
            versions,
            schedule,
            meter,
            settings.patience,
            settings.least_groups,
            tuple(dropped),
        ),
        "invent": Invent(ask.invent(), versions, tuple(tasks), limits(parts, settings), parts.count),
        "finish": Finish(versions, learn, schedule, limits(parts, settings), settings.arm, settings.group, parts.count),
    }
    routers: dict[str, Router] = {
        "begin": Learns(settings.arm),
        "consolidate": Candidate(same, tested_),
        "close": More(settings.epochs * schedule.steps if tasks else 0),
    }
    fan_outs = {"batch": batch.groups, "hold_out": probes}
    builder = StateGraph(State, input_schema=Asked, output_schema=Result)
    wired = wire(builder, FLOW, nodes, routers, fan_outs, chain=chain)
    return compiled(wired, **{"name": "training-free-grpo", **compile})


def _problems(
    parts: Parts, settings: TrainingFreeGRPO, problems: Sequence[Task], tests: Sequence[Task]
) -> tuple[list[Task], list[Task], list[str]]:
    world: Any = parts.environment
    if world is None:  # a drawing has no environment
        return [], [], []
    if not problems:
        problems = [world.task(n, "train") for n in range(settings.problems)]
        tests = tests or [world.task(n, "dev") for n in range(settings.held_out)]
    return distinct(problems, tests, hasattr(world, "answer"))


def group(settings: TrainingFreeGRPO, learn: Roll, ask: _Asking, chain: bool = False) -> Graph:
    """The graph of a group, from `Problem` to `Offered`."""
    world: Any = learn.environment
    reward = Reward(
        settings.truth,
        settings.agreement,
        settings.spread,
        settings.hard,
        settings.cost,
        settings.turns,
        success=lambda task: _success(world, task),
        reference=ask.reference,
        discriminate=ask.discriminate() if settings.truth == "self" else None,
        **({"answer": world.answer} if hasattr(world, "answer") else {}),
    )
    nodes: dict[str, Node] = {
        "open": Open(),
        "rollout": Within(Sample(learn)),
        "reward": Within(reward),
        "contrast": Within(ask.contrast()),
        "propose": Within(ask.propose()),
        "offer": Offer(),
    }
    fan_outs: dict[str, Any] = {"open": rolled(settings.group)}
    if not ask.plain:
        nodes |= {"read": nothing, "summarise": Within(ask.summarise())}
        fan_outs["read"] = summarised
    builder = StateGraph(GroupState, input_schema=Problem, output_schema=Offered)
    flow = PLAIN if ask.plain else GROUP
    wired = wire(builder, flow, nodes, {"reward": verdict}, fan_outs, chain=chain)
    return compiled(wired, name="training-free-grpo-group", checkpointer=False)


def limits(parts: Parts, settings: TrainingFreeGRPO) -> Limits:
    """What a library may hold that these prompts have room for."""
    return replace(settings.limits, tokens=max(min(settings.tokens, parts.room // 2), 1))


def _success(world: Any, task: Task) -> float:
    """The reward from which an attempt is a success."""
    solved = getattr(world, "solved", None)
    return 1.0 if solved is None else min(solved / best(world, task), 1.0)


ELSEWHERE = frozenset(
    "problems held_out epochs batch temperature trial_temperature consolidate accept trials keep_best patience least_groups "  # noqa: SIM905
    "library arm timeout".split()
)
"""Settings that say nothing of what becomes of a group, or that its rollouts are known by already."""


@dataclass(frozen=True)
class _Asking:
    """Makes the nodes that compare and edit: by a model, each stage cached by itself, or by rule."""

    parts: Parts
    settings: TrainingFreeGRPO
    versions: Versions
    cache: Cache
    given: Runnable[Any, Any] | None
    recorded: Callable[[Runnable[Any, Any], str], Runnable[Any, Any]] | None
    tasks: Mapping[str, Task]
    meter: Meter | None = None
    slots: Slots | None = None

    @property
    def rule(self) -> bool:
        return self.settings.author == "rule"

    @property
    def name(self) -> str:
        """What a group depends on beside its rollouts, as a digest."""
        settings = {name: value for name, value in asdict(self.settings).items() if name not in ELSEWHERE}
        models = [_model(self.model(stage)) for stage in ("summarise", "contrast", "propose", "discriminate")]
        return key(models, settings, limits(self.parts, self.settings), self.parts.room)

    @property
    def plain(self) -> bool:
        """Whether nothing can be summarised: the rule compares, or a model that only writes a line."""
        return self.rule or (self.given is None and self.parts.write is None)

    @property
    def how(self) -> How:
        """How edits are consolidated."""
        if not self.plain or self.settings.consolidate in ("code", "votes"):
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
        if hasattr(world, "gold") and (hasattr(world, "answer") or self.settings.hard):
            return lambda task: ", ".join(world.gold(task))
        return None

    @property
    def critic(self) -> Critic:
        settings, parts = self.settings, self.parts
        return Critic(
            self.versions,
            questions(parts.prompts),
            limits(parts, settings),
            settings.most,
            settings.truth,
            settings.objective,
            reference=self.reference,
            count=parts.count,
            room=parts.room,
            plain=self.plain,
            tasks=self.tasks,
        )

    def model(self, stage: str) -> Runnable[Any, Any]:
        """The model that is asked at a stage. By rule, none is."""
        if self.rule and self.given is None and self.parts.model is None:
            return cast(Runnable[Any, Any], None)
        model = self.given or self.parts.asked("training-free-grpo")
        if self.recorded:
            return self.recorded(model, stage)
        if isinstance(model, Recorded):
            return replace(model, stage=stage)
        return Recorded(model, _model(model), self.cache, stage, self.meter, self.slots)

    def summarise(self) -> Node:
        return summarise(self.model("summarise"), self.critic)

    def contrast(self) -> Node:
        if self.rule:
            return ByRule(self.settings.truth)
        return contrast(self.model("contrast"), self.critic)

    def propose(self) -> Node:
        return propose(self.model("propose"), self.critic)

    def consolidate(self) -> Node:
        return consolidate(self.model("consolidate"), self.critic, self.how)

    def discriminate(self) -> Runnable[Any, Any]:
        return cast(Runnable[Any, Any], discriminate(self.model("discriminate"), self.critic))

    def invent(self) -> Any:
        """Asked in one arm only; elsewhere it stands in the drawing."""
        if self.settings.arm != "self-generated":
            return None
        return invent(self.model("invent"), self.critic, self.settings.lessons)
