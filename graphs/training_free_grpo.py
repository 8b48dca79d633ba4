"""Training-Free GRPO (arXiv:2510.08191): a library of lessons, learned by comparing rollouts of the same problem in words.

GRPO plays each problem G times and moves a model's weights towards the rollouts with a positive advantage. Here the weights
stay. What changes is a small library of lessons that stands in every prompt: a critic compares the winners and losers of a
group, says what made the difference, and turns that into edits of the library. The loop, with the paper's four quantities:

    A_g = (r_g - mean(r)) / std(r)    the advantage of rollout g. A group of equal rewards is left out              (1)
    s_g = M(rollout g)                a summary of each rollout                                                       (2)
    A_text = M(s_1..s_G, r, E)        the semantic advantage: why winners won, in words; E is the library             (3)
    E' = M(E, edits of all groups)    add, modify, merge, delete: a candidate; then E <- E' if it is accepted         (4)

M(...) is one call of the model as critic.

A_g only decides whether a group is compared (the paper asks for 0 < mean(r) < 1); the critic reads the rewards r. By default G = 5,
at temperature 0.7. Not in the paper: a candidate library takes the current one's place only if 40 held-out problems, played 3 times
under both, show at 95 % that it is not worse by `trial.margin` (.1 of mean reward); no lesson tells the answer of a problem;
where more comparisons found a lesson harmful than helpful, the critic changes or deletes it, or else code deletes it; the log says
of every edit whether it was applied and why, and every earlier version can come back.

The run:

    begin        the library to start from
    batch        the problems of this step; every epoch has an order of its own
    group        one problem: see below
    consolidate  (4): the edits of all groups make a candidate library
    hold_out     fans out over the problems of the accept test, under both libraries, with the same seeds
    probe        one rollout of the accept test
    accept       the candidate takes the library's place, or does not (nodes/update/accept_test.py)
    close        a row of the log; the run stops early without gain, without groups to compare, or without budget
    invent       arm self-generated: lessons written without a rollout
    finish       the product: the version that did best; for a control (`arm`), random or shuffled lessons in its place

One group:

    open         G rollouts of the problem
    rollout      one of them, by any episode graph; kept in the cache (nodes/extract/rollouts.py)
    reward       r_g, and whether some A_g is not 0 (1) (nodes/extract/groups.py)
    read         fans out over the rollouts that have a reward
    summarise    (2); left out with `author=rule`, which compares steps by code, and for a model too small to write more than a line
    contrast     (3) (nodes/extract/critic.py)
    propose      A_text as edits of the library, the input of (4)
    extract      with `wording=paper` (3) and (4)'s input in one call, as in the paper's Fig. 8
    offer        hands the group's comparison to the run

Rollouts and replies are cached: a run that resumes from any checkpoint gives the same result at no further cost. No result
depends on which rollout ends first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from langgraph.graph import StateGraph

from ..memory.errors import UserError
from ..memory.records import Task
from ..nodes.arguments import Amount, ArgumentCheck, Count, Range
from ..nodes.cached_model import model_name
from ..nodes.extract import groups
from ..nodes.extract.critic import Critic, LessonSettings, contrast, extract, invent, propose, summarise
from ..nodes.extract.groups import Truth
from ..nodes.extract.rollouts import PlayRollout, RolloutPlayer, RolloutSettings
from ..nodes.extract.rule_critic import RuleCritic
from ..nodes.state import GroupInput, LearningChannels
from ..nodes.update import library as steps
from ..nodes.update.accept_test import AcceptSettings, Rule
from ..nodes.update.consolidate import consolidate
from .baselines import lesson_react
from .wiring.fingerprint import group_fingerprint
from .wiring.flow import Graph, Node, Router, compile_graph, wire
from .wiring.inputs import NOT_GIVEN, MethodInputs, given_settings
from .wiring.learning_run import AcceptTest, CriticModel, RolloutGraphs, RunResources, StageModel, make_critic, make_players

__all__ = ["FLOW", "TrainingFreeGRPO", "build", "group_graph"]

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

PAPER_GROUP_FLOW = """
flowchart LR
  START --> open
  open -.-> rollout --> reward
  reward -->|compare| read
  reward -->|no lesson| offer
  read -.-> summarise --> extract --> offer --> END
"""
"""The group of the paper (`wording=paper`): one call compares the attempts and proposes the edits."""

GROUP_FLOW_WITHOUT_SUMMARIES = """
flowchart LR
  START --> open
  open -.-> rollout --> reward
  reward -->|compare| contrast --> propose --> offer
  reward -->|no lesson| offer --> END
"""
"""The group for the rule, and for a model that only writes a line: they compare the attempts themselves."""


@dataclass(frozen=True)
class TrainingFreeGRPO(ArgumentCheck):
    """Hyper-parameters, and four groups of further ones; a group's class gives the meaning, the unit and the paper's value of each."""

    problems: Annotated[int, Range(0)] = 100
    """N, number of problems learned on. 0: `library` is played as it is, as in the paper's transfer to another domain. Paper: 100."""
    held_out: Annotated[int, Range(0)] = 40
    """Number of problems of the accept test, never learned on; 0: none. Paper: none."""
    epochs: Count = 3
    """The number of times that every problem is tried. Paper: 3."""
    batch_size: Annotated[int, Range(0)] = 0
    """Problems of a step; 0: all. The last batch of an epoch may be smaller. Paper: all, one step an epoch."""
    patience: Annotated[int, Range(0)] = 2
    """Steps without gain after which the run ends; 0: never. Paper: never."""
    group_size: Count = 5
    """G, rollouts of a problem. With 1 nothing is compared, and each rollout is studied by itself. Paper: 5, on the web 3."""
    temperature: Amount | None = 0.7
    """Temperature of rollouts that are learned from. On the command line it is any model's, and with `none` no request of the run names
    one; in `build` that of a model whose actions are scored (a model that writes has its own). Paper: 0.7."""
    truth: Truth = "given"
    """The source of rewards (nodes/extract/groups.py). Without ground truth every candidate is accepted, since a test needs labels.
    Paper: given; in an ablation none (`implicit`)."""
    author: Literal["model", "rule"] = "model"
    """The author of insights: a model, or a rule for worlds played step by step (an ablation, and for work without a language model)."""
    accept: Rule = "not-worse"
    """The rule by which a candidate replaces the library (nodes/update/accept_test.py). Paper: always."""
    wording: Literal["ours", "paper"] = "ours"
    """`paper`: its prompts (nodes/prompts/paper/training_free_grpo), and nothing beside them: one call compares a group and proposes its
    edits, additions are in the library before it is consolidated, nobody votes, and a lesson may tell an answer."""
    library: str = ""
    """A YAML file of lessons to start from, or the folder of a run whose product it is. Paper: none."""
    arm: Literal["learned", "empty", "self-generated", "random", "shuffled"] = "learned"
    """The way in which the library is made: `learned`, or a control: `empty`; `self-generated`, as many lessons as `max_lessons` says,
    written without rollouts; `random` steps of the rollouts, as many as were learned; the learned lessons `shuffled`."""
    rollouts: RolloutSettings = field(default_factory=RolloutSettings)
    """What a rollout is shown, and how long it may take (nodes/extract/rollouts.py)."""
    lessons: LessonSettings = field(default_factory=LessonSettings)
    """(2) to (4): insights, edits, and the limits of the library (nodes/extract/critic.py)."""
    trial: AcceptSettings = field(default_factory=AcceptSettings)
    """The accept test (nodes/update/accept_test.py)."""

    def __post_init__(self) -> None:
        if self.group_size == 1 and self.author == "rule":
            raise UserError("training-free-grpo: group_size 1 has nothing to be compared with; author=rule needs 2 or more")
        if self.truth == "implicit" and self.author == "rule":
            raise UserError("training-free-grpo: author=rule goes by rewards, and truth=implicit has none; use author=model")
        if not self.problems and self.arm not in ("learned", "empty", "shuffled"):
            raise UserError(f"training-free-grpo: arm={self.arm} is made from problems, and problems is 0; use 1 or more")
        if self.wording == "paper" and self.lessons.objective:
            raise UserError("training-free-grpo: the paper's prompts have no place for an objective; use wording=ours")

    @property
    def acceptance(self) -> Rule:
        """The rule of the accept test: `always` without ground truth."""
        return self.accept if self.truth == "given" else "always"

    @classmethod
    def paper(cls) -> TrainingFreeGRPO:
        """The published run on mathematics: its prompts, three epochs of one step, every candidate accepted, nothing held out, no limit on
        the library: that of 32 words stands in a prompt only.
        """
        unlimited = LessonSettings(
            max_words=10_000, max_step_edits=0, max_lessons=10_000, max_library_tokens=1_000_000, duplicate_similarity=2.0
        )
        return cls(held_out=0, accept="always", patience=0, wording="paper", lessons=unlimited)

    @classmethod
    def web(cls) -> TrainingFreeGRPO:
        """The published run on the web: G = 3."""
        return replace(cls.paper(), group_size=3)

    @property
    def remark(self) -> str:
        """A remark on these settings for tables; empty if there is none."""
        return "rule-written" if self.author == "rule" and self.arm == "learned" else ""


def build(
    inputs: MethodInputs = NOT_GIVEN,
    settings: TrainingFreeGRPO | None = None,
    *,
    problems: Sequence[Task] = (),
    held_out: Sequence[Task] = (),
    resources: RunResources | None = None,
    rollouts: RolloutGraphs | None = None,
    critic: CriticModel | None = None,
    **compile: Any,
) -> Graph:
    """The graph of a learning run, from `{"run": name}` to `LearningRunResult`.

    Args:
        inputs: environment, journal, and the model that plays: a `nodes.cached_model.CachedChatModel` in a run that is to go on
            after a crash, or that has a budget.
        problems: what is learned on; the environment's first `settings.problems` of `train` if not given.
        held_out: problems of the accept test; the environment's first `settings.held_out` of `dev` if neither these nor
            `problems` are given.
        resources: the library's versions, the cache, the log, and limits; in memory and without limits if not given.
        rollouts: graphs that play, in place of graphs/baselines/lesson_react.py.
        critic: the chat model that compares and edits; the one that plays if not given.
        compile: as for `StateGraph.compile`: a checkpointer, for example.

    Raises:
        UserError: a problem is there twice, or held out and learned on; or this model cannot do what the settings ask for.
    """
    settings = given_settings(inputs, settings, TrainingFreeGRPO)
    resources = resources or RunResources()
    critic = critic or CriticModel()
    tasks, tests, dropped = steps.choose_problems(
        inputs.environment, settings.problems, settings.held_out, problems=problems, held_out=held_out
    )
    player, trial_player = make_players(
        inputs, settings, resources, lesson_react.fill_in(rollouts or RolloutGraphs(), inputs, settings, resources.versions)
    )
    run = _Run(
        inputs=inputs,
        settings=settings,
        resources=resources,
        schedule=steps.Schedule(tuple(tasks), settings.batch_size, settings.epochs),
        dropped=tuple(dropped),
        player=player,
        critic=make_critic(inputs, settings, resources, critic, tasks),
        model=critic.by_stage(inputs, resources, required=settings.author == "model"),
    )
    return _run_graph(run, AcceptTest(settings, resources, trial_player, run.critic.leak_reason, tasks, tests), compile)


@dataclass(frozen=True)
class _Run:
    """All that the nodes of a learning run are made of."""

    inputs: MethodInputs
    settings: TrainingFreeGRPO
    resources: RunResources
    schedule: steps.Schedule
    dropped: tuple[str, ...]
    """Ids of problems that were left out because another one says the same."""
    player: RolloutPlayer
    critic: Critic
    model: StageModel


def _run_graph(run: _Run, test: AcceptTest, compile: Mapping[str, Any]) -> Graph:
    """The graph of the run, wired as `FLOW` draws it."""
    settings, versions, schedule = run.settings, run.resources.versions, run.schedule
    limits, count = run.critic.limits, run.inputs.prompting.count_tokens
    batch, player = steps.BeginStep(schedule), model_name(run.inputs.model)
    fingerprint = group_fingerprint(run.critic, run.model, _group_settings(settings))
    inventor = None
    if settings.arm == "self-generated":
        inventor = invent(run.model("invent"), run.critic, settings.lessons.max_lessons)
    nodes: dict[str, Node] = {
        "begin": steps.Start(versions, settings.library, settings.arm, limits, count, player=player),
        "batch": batch,
        "group": steps.CachedGroup(group_graph(settings, run.player, run.critic, run.model), run.player, fingerprint),
        "consolidate": steps.Consolidate(consolidate(run.model("consolidate"), run.critic), schedule),
        "hold_out": steps.passthrough,
        "probe": test.probe,
        "accept": test.accept,
        "close": steps.RecordStep(
            run.resources.log,
            versions,
            schedule,
            meter=run.resources.meter,
            patience=settings.patience,
            dropped_problems=run.dropped,
            player="" if settings.acceptance == "always" else player,
        ),
        "invent": steps.Invent(inventor, versions, schedule.problems, limits, count, run.critic.author),
        "finish": steps.Finish(
            versions, run.player, schedule, limits, arm=settings.arm, group_size=settings.group_size, count=count
        ),
    }
    routers: dict[str, Router] = {
        "begin": steps.RouteArm(settings.arm if run.schedule.problems else "empty"),
        "consolidate": test.route,
        "close": steps.RouteNextStep(settings.epochs * schedule.steps_per_epoch),
    }
    fan_outs: dict[str, Any] = {"batch": batch.fan_out_groups, "hold_out": test.fan_out}
    builder = StateGraph(LearningChannels, input_schema=steps.LearningRunInput, output_schema=steps.LearningRunResult)
    wired = wire(builder, FLOW, nodes, routers, fan_outs)
    return compile_graph(wired, **{"name": "training-free-grpo", **compile})


def _group_settings(settings: TrainingFreeGRPO) -> dict[str, Any]:
    """The settings on which the result of a group depends beside its rollouts, for its key in the cache."""
    lessons = settings.lessons
    return {"group": [settings.group_size, settings.truth, settings.author, lessons.max_insights, lessons.objective]}


def group_graph(settings: TrainingFreeGRPO, player: RolloutPlayer, critic: Critic, model: StageModel) -> Graph:
    """The graph of a group, from `GroupInput` to `GroupOutput`."""
    parts: dict[str, Node] = {"rollout": PlayRollout(player), "reward": groups.AssignRewards(settings.truth)}
    flow, fan_outs = GROUP_FLOW_WITHOUT_SUMMARIES, dict[str, Any]({"open": groups.fan_out_rollouts(settings.group_size)})
    if not critic.line_only:
        flow = PAPER_GROUP_FLOW if critic.paper else GROUP_FLOW
        parts["summarise"] = summarise(model("summarise"), critic)
        fan_outs["read"] = groups.fan_out_summaries
    if flow is PAPER_GROUP_FLOW:
        parts["extract"] = extract(model("extract"), critic)
    else:
        by_rule = settings.author == "rule"
        parts["contrast"] = RuleCritic() if by_rule else contrast(model("contrast"), critic)
        parts["propose"] = propose(model("propose"), critic)
    nodes: dict[str, Node] = {name: groups.StopWhenBudgetSpent(part) for name, part in parts.items()}
    nodes |= {"open": groups.OpenGroup(), "offer": groups.EmitComparison()}
    nodes |= {"read": steps.passthrough} if "read" in fan_outs else {}
    builder = StateGraph(groups.GroupState, input_schema=GroupInput, output_schema=groups.GroupOutput)
    wired = wire(builder, flow, nodes, {"reward": groups.route_comparison}, fan_outs)
    return compile_graph(wired, name="training-free-grpo-group", checkpointer=False)
