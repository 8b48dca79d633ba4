"""The inputs that every method is built from: `build(MethodInputs(environment=world), settings)`.

Every input but the environment has a default that works: a uniform policy, a journal and a memory in this process, and the
environment's own rewards.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable

from ...memory.errors import UserError, type_of
from ...memory.storage.journal import Journal
from ...memory.storage.trajectory_store import TrajectoryStore
from ...nodes.act.episode import Environment, WorldWithoutVerdicts, takes_unlisted_actions, without_verdicts
from ...nodes.act.policies import LocalPolicy, PromptView, RecentStepsPrompt, Scorer, UniformPolicy, act_policy, answer_policy
from ...nodes.arguments import ArgumentCheck
from ...nodes.ask import estimate_tokens
from ...nodes.evaluate.judge import EnvironmentJudge
from ...nodes.prompt import Prompt
from ...nodes.retrieve.attempts import EpisodePrompt, Layout, PromptPart
from .flow import Node

__all__ = [
    "DEFAULT_WINDOW",
    "NOT_GIVEN",
    "PAPER_OF_ICRL",
    "SHARED",
    "THINK_THEN_ACT",
    "MethodInputs",
    "Prompting",
    "WritingStyle",
    "check_task_scope",
    "given_settings",
    "uniform_policy",
]

S = TypeVar("S")
DEFAULT_WINDOW = 32_768
"""The window in tokens of a model that does not state its own."""
DEFAULT_RESERVE = 4_096
"""Tokens of such a window that are left for the system message, the template and the reply (a long chain of thought, say)."""
SHARED: Mapping[str, bool] = {"shared": True}
"""Metadata of a settings field that a comparison gives to all its methods: `k: int = field(default=4, metadata=SHARED)`.

`learngraph run adamem --k 8 --compare synapse` then plays both methods with k = 8. `methods.shared_fields` reads the mark.
"""


@dataclass(frozen=True)
class WritingStyle:
    """The way in which a method has a writing model asked for actions. Prompts are named by their files in nodes/prompts/."""

    action_prompt: str = "act/write"
    """The prompt for one action, in worlds that are played step by step."""
    answer_prompt: str = "act/answer"
    """The prompt for a whole answer, in worlds that read one (they have `read`)."""
    thinks_before_each_action: bool = False
    """True if an answer of several actions is asked for action by action, with a thought before each."""
    vote_mark: str = ""
    """The mark of a further line in the reply, `Memory` for `Memory: yes`, that sets the channel `vote`; empty: no such line."""


_PLAIN = WritingStyle()
PAPER_OF_ICRL = WritingStyle("paper/icrl/act", "paper/icrl/answer")
"""The prompts of the paper on ICRL in our words, for ICRL and for the methods beside it there."""
THINK_THEN_ACT = WritingStyle(answer_prompt="cot/answer", thinks_before_each_action=True)
"""The style of ReAct (arXiv:2210.03629): a thought before every action."""


def check_task_scope(settings: Any, method: str) -> None:
    """Raise `UserError` if only_other_tasks is set, and cross_task is not."""
    if settings.only_other_tasks and not settings.cross_task:
        raise UserError(f"{method}: only_other_tasks=True recalls nothing without cross_task=True, got cross_task=False")


NOT_GIVEN: Any = None
"""The inputs of `build()`, for whom `given_settings` says what to write."""


def given_settings(inputs: Any, settings: S | None, kind: type[S]) -> S:
    """The settings that a method is built with: as given, or the defaults of their class.

    Raises:
        UserError: the inputs are no `MethodInputs`, or the settings are another method's.
    """
    if not isinstance(inputs, MethodInputs):
        got = "nothing" if inputs is NOT_GIVEN else type_of(inputs)
        world = "learngraph.open_environment('toy')"
        raise UserError(f"build takes MethodInputs first, got {got}; write build(MethodInputs({world}))")
    if not isinstance(settings, kind | None):
        raise UserError(f"build takes settings of the class {kind.__name__} second, got {type_of(settings)}")
    return kind() if settings is None else settings


def uniform_policy(view: PromptView) -> Node:
    """A policy that finds every admissible action equally likely, whatever the prompt view shows."""
    return UniformPolicy()


class ScoringModel(Scorer, Protocol):
    """A model in this process that scores action texts, such as `tools.local.model.LocalChatModel`."""

    @property
    def window(self) -> int:
        """Tokens of its longest prompt and reply together."""

    def get_num_tokens(self, text: str) -> int:
        """Tokens of a text."""


@dataclass(frozen=True)
class Prompting:
    """The record of all that writing prompts takes: their texts, the part of an episode that they show, and the tokens that they may have."""

    history_steps: int | None = None
    """Earlier steps of the episode that jitrl, static, prompt-update, memory, awm, evotest and reflexion show to the policy; None: all."""
    count_tokens: Callable[[str], int] = field(default=estimate_tokens, repr=False)
    """Tokens of a text, as the model counts them."""
    window: int = DEFAULT_WINDOW
    """Tokens of the longest prompt and reply together."""
    reserved_tokens: int | None = None
    """Tokens of the window that are left for the system message, the template and the reply; 4096 if not given, but at most a
    quarter of the window."""
    list_actions: bool = False
    """True if prompts list the admissible actions."""
    prompts: Path | None = None
    """A directory whose prompt files take the place of those of the same name."""

    @property
    def max_prompt_tokens(self) -> int:
        """Tokens of the longest prompt, without the system message and the template around it."""
        return self.window - (min(DEFAULT_RESERVE, self.window // 4) if self.reserved_tokens is None else self.reserved_tokens)

    def load(self, name: str) -> Prompt:
        """The prompt of this name, from the user's directory if it is there."""
        return Prompt.load(name, self.prompts)


def split_fields(given: Mapping[str, Any], **ours: Any) -> dict[str, Any]:
    """The fields of `MethodInputs` among these, and `prompting` from those of `Prompting`; what is given goes before ours."""
    more, names = {**ours, **given}, {one.name for one in fields(Prompting)}
    prompting = Prompting(**{name: value for name, value in more.items() if name in names})
    return {"prompting": prompting} | {name: value for name, value in more.items() if name not in names}


def _opened(model: S) -> S:
    """The model. Raises `UserError` if it is the name of one."""
    if isinstance(model, str):
        raise UserError(
            f"model is to be open, got the name {model!r}; learngraph.open_model('pocket'), or 'openai:NAME', opens one"
        )
    return model


@dataclass(frozen=True)
class MethodInputs(ArgumentCheck):
    """The inputs of `build`: the world, the policy, the model, and where steps and episodes are kept."""

    environment: Environment
    """The world that is played."""
    journal: Journal = field(default_factory=Journal)
    """The log of steps. The default lives in this process."""
    make_policy: Callable[[PromptView], Node] = field(default=uniform_policy, repr=False)
    """Prompt view -> the node that proposes candidate actions with logits in nats."""
    records: TrajectoryStore | None = None
    """The store of finished episodes; None keeps them in this process."""
    judge: Node | None = None
    """The node that rewards the steps of a finished episode; None: the environment's own rewards. With a judge, prompts do not say in
    the world's words, either, how good an answer was."""
    model: Runnable[Any, Any] | None = field(default=None, repr=False)
    """A chat model, for methods that have text written beside actions."""
    make_writing_policy: Callable[[PromptView, WritingStyle], Node] | None = field(default=None, repr=False)
    """Prompt view and style -> a policy that writes its action; None: the model only scores actions."""
    prompting: Prompting = Prompting()
    """All that writing prompts takes."""
    run: str = ""
    """The name of the run, where it is known beforehand: a bank with episodes of that name is refused before the first episode."""
    memories: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Name of a part -> the memory that nodes made by name share (`node`)."""

    unchecked = ("environment", "model", "records")
    of_conversations: ClassVar[bool] = False
    """True if attempts are conversations of an agent: their precedents are shown with what was said about them."""
    max_precedent_tokens: ClassVar[int] = 2**31
    """Tokens of all precedents together; half of a prompt at most."""
    max_history_tokens: ClassVar[int] = 2**31
    """Tokens of the running attempt's steps in the prompt of a strategy."""

    def __post_init__(self) -> None:
        _opened(self.model)
        lost = [name for name in ("observe", "abstract") if not hasattr(self.environment, name)]
        if len(lost) == 2 and self.environment is not None:  # a drawing has none, a conversation half of one
            raise UserError(f"environment is a world, and {self.environment!r:.60} has no {' and no '.join(lost)}")
        if self.records is not None and not hasattr(self.records, "all"):
            of_store = "RecordStore(store, ('mine',), Trajectory) (memory/storage/record_store.py)"
            raise UserError(
                f"records are a store of trajectories, such as {of_store} over any LangGraph store; got {type_of(self.records)}"
            )
        if self.judge is not None:
            object.__setattr__(self, "environment", without_verdicts(self.environment))

    def without_verdicts(self) -> Self:
        """The same inputs for a method that is told no rewards: prompts do not say in words, either, how good an answer was."""
        return replace(self, environment=without_verdicts(self.environment))

    @classmethod
    def with_scoring_model(cls, environment: Environment, journal: Journal, model: ScoringModel, **more: Any) -> Self:
        """Inputs for a model in this process, which scores the admissible actions and counts its own tokens.

        Args:
            environment: the world.
            journal: the log of steps.
            model: scores action texts.
            more: further fields of `MethodInputs` and `Prompting`, by name.
        """
        prompt = Prompt.load("act/score", more.get("prompts"))
        if not hasattr(_opened(model), "score"):
            raise UserError(
                f"model is to score texts, and {type_of(model)} has no score; with_chat_model takes a model that writes"
            )
        # The reply is an action: short. The system message of the prompt counts as it is.
        reserve = 64 + sum(model.get_num_tokens(template.template) for _, template in prompt.parts)
        given = split_fields(
            more,
            model=model,
            history_steps=0,
            count_tokens=model.get_num_tokens,
            window=model.window,
            reserved_tokens=min(reserve, model.window // 4),
        )
        return cls(environment, journal, **{"make_policy": lambda view: LocalPolicy(model, view, prompt), **given})

    @classmethod
    def with_chat_model(
        cls, environment: Environment, journal: Journal, model: BaseChatModel, *, stepwise: bool = False, **more: Any
    ) -> Self:
        """Inputs for a chat model that writes its actions.

        It writes a whole answer where the environment can read one (it has `read`), else a thought and an action at every step.

        Args:
            environment: the world.
            journal: the log of steps.
            model: writes.
            stepwise: ask for one action at a time also where the environment can read a whole answer.
            more: further fields of `MethodInputs` and `Prompting`, by name.
        """
        prompts = more.get("prompts")
        read = None if stepwise else getattr(environment, "read", None)
        free_text = takes_unlisted_actions(environment) and getattr(environment, "free_text", True)

        def write(view: PromptView, style: WritingStyle = _PLAIN) -> Node:
            by_step = style.thinks_before_each_action and getattr(environment, "horizon", 1) > 1
            if read is None or by_step:
                return act_policy(
                    model, view, name=style.action_prompt, prompts=prompts, free_text=free_text, vote_mark=style.vote_mark
                )
            return answer_policy(model, view, read, name=style.answer_prompt, prompts=prompts)

        given = split_fields(
            more,
            model=_opened(model),
            make_policy=write,
            make_writing_policy=write,
            history_steps=20,
            list_actions=read is None,
            window=getattr(model, "window", None) or DEFAULT_WINDOW,
        )
        return cls(environment, journal, **given)

    def judge_node(self) -> Node:
        """The node that rewards a finished episode: the judge, or the environment's own rewards."""
        return self.judge or EnvironmentJudge(self.journal)

    @property
    def chats(self) -> bool:
        """True if the model writes its actions; False if it only scores them."""
        return self.make_writing_policy is not None

    def layout(
        self, rewards: Literal["dense", "sparse", "zero", "none"] = "dense", clip: int | None = 200, *, notes: bool = False
    ) -> Layout:
        """The layout of attempts in prompts, as suits the model.

        Args:
            rewards: which rewards are shown.
            clip: for a model that scores, characters of a past state's first line. For one that chats any number means that long
                observations lose their middle. None: both are shown whole.
            notes: whether the note on an attempt is shown with it.
        """
        if not self.chats:
            return Layout(rewards, clip, notes)
        from ...nodes.retrieve.chat_layout import MAX_OBSERVATION_TOKENS, ChatLayout  # for models that write alone

        return ChatLayout(
            rewards,
            notes=notes,
            count_tokens=self.prompting.count_tokens,
            max_observation_tokens=None if clip is None else MAX_OBSERVATION_TOKENS,
            full_success=getattr(self.judge, "full_success", None) if self.judge else self.success_threshold(None),
            horizon=getattr(self.environment, "horizon", None) if self.prompting.list_actions else None,
            repeats_task=not self.prompting.list_actions and getattr(self.environment, "horizon", 0) == 1,
            # What the world makes of the lines of a written answer tells which of them are wrong.
            shows_answers=self.prompting.list_actions or not isinstance(self.environment, WorldWithoutVerdicts),
        )

    def running_layout(self, layout: Layout | None = None) -> Layout:
        """The layout of the running attempt, as `layout` says for earlier ones.

        It is without rewards where a judge will give them at the end, and with whole states for a model that writes: it needs what
        it has read (a page, a passage) at later steps, too.
        """
        from ...nodes.retrieve.chat_layout import ChatLayout

        layout = layout or self.layout()
        rewards: Any = "none" if self.judge else layout.rewards
        if isinstance(layout, ChatLayout):
            return replace(layout, rewards=rewards, max_observation_tokens=None)
        return replace(layout, rewards=rewards, clip=None if self.chats else layout.clip)

    def episode_prompt(
        self, *show: PromptPart[Any], layout: Layout | None = None, brief: str = "", max_steps: int | None = None
    ) -> EpisodePrompt:
        """The view of the running episode and of these parts, for `make_policy` and `acting_policy`.

        Args:
            show: lessons, a strategy, earlier attempts: nodes' parts, in the order of the prompt.
            layout: layout of earlier attempts, which the running one follows; `layout()` if not given.
            brief: the method's part of the system message.
            max_steps: steps of the episode that are shown at most; None: as many as fit.

        Raises:
            UserError: a part is given twice.
        """
        if twice := next((part for n, part in enumerate(show) if part in show[:n]), None):
            raise UserError(f"the prompt would show {type(twice).__name__} twice; give each part once")
        return EpisodePrompt(
            journal=self.journal,
            show=show,
            layout=self.running_layout(layout),
            count_tokens=self.prompting.count_tokens,
            window=self.prompting.max_prompt_tokens,
            list_actions=self.prompting.list_actions,
            brief=brief,
            world=getattr(self.environment, "brief", "") if self.chats else "",
            max_steps=max_steps,
        )

    def node(self, name: str, /, **parts: Any) -> Any:
        """A node of the catalogue by its name, made from these inputs: `inputs.node("write_about_attempt")`.

        Nodes of the same inputs share one memory of a kind. `learngraph list nodes` lists all names.

        Args:
            name: of a class of nodes, of a function that makes a node, of a router, or of a part of a prompt.
            parts: parts and settings in place of the defaults.

        Raises:
            UserError: there is no such name, or a part without a default is not given.
        """
        from .node_parts import make_node  # the catalogue is read where a node is asked for

        return make_node(self, name, parts)

    def recent_steps_view(self) -> PromptView:
        """A view of the task, the last `history_steps` of the episode and the present observation."""
        if self.chats:
            return self.episode_prompt(max_steps=self.prompting.history_steps)
        return RecentStepsPrompt(self.journal, self.prompting.history_steps)

    def success_threshold(self, given: float | None) -> float | None:
        """The return from which an attempt of this run counts as a success: as given, or the environment's; None: unknown.

        A judge's rewards have a scale of their own, on which the environment's threshold means nothing.
        """
        return given if given is not None or self.judge else getattr(self.environment, "solved", None)

    def acting_policy(self, view: PromptView, style: WritingStyle) -> Node:
        """A policy that writes in this style, or the plain policy where the model only scores actions.

        Raises:
            UserError: the style is no `WritingStyle`.
        """
        if not isinstance(style, WritingStyle):
            raise UserError(f"acting_policy takes a WritingStyle second, such as THINK_THEN_ACT; got {style!r:.60}")
        return self.make_writing_policy(view, style) if self.make_writing_policy else self.make_policy(view)

    def require_chat_model(self, method: str) -> Runnable[Any, Any]:
        """The chat model, for a method that cannot do without.

        Raises:
            UserError: there is none.
        """
        if self.model is None:
            raise UserError(
                f"{method} has a model write, and there is none here: a uniform prior only picks actions. Give a chat model or a "
                "scoring model (pocket, local:PATH, openai:NAME)"
            )
        return self.model

    def require_writer(self, method: str) -> Callable[[PromptView, WritingStyle], Node]:
        """The maker of policies that write, for a method that cannot do without.

        Raises:
            UserError: the model only scores actions.
        """
        if self.make_writing_policy is None:
            raise UserError(f"{method} reasons in writing before it acts; give a model that writes, such as openai:NAME")
        return self.make_writing_policy
