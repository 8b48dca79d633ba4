"""The parts of an episode that methods share: settings, channels, the nodes around the policy, and the graph that holds them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from langgraph.graph import StateGraph

from ...memory.attempts.buffer import Buffer
from ...memory.records import Shown, Trajectory
from ...nodes.act.choose import Choose
from ...nodes.act.episode import Act, Begin, route_episode_end
from ...nodes.act.policies import PromptView
from ...nodes.arguments import Amount, ArgumentCheck, Count, Range
from ...nodes.retrieve.attempts import Compose, Layout, Push
from ...nodes.state import (
    AttemptInput,
    AttemptState,
    EpisodeResult,
)
from .flow import Graph, Node, Router, compile_graph, wire
from .inputs import PAPER_OF_ICRL, SHARED, MethodInputs, check_task_scope

__all__ = [
    "ChoiceSettings",
    "MemorySettings",
    "SharedAttemptSettings",
    "WordingSettings",
    "attempt_nodes",
    "compose_node",
    "episode_graph",
    "episode_nodes",
]


@dataclass(frozen=True)
class ChoiceSettings(ArgumentCheck):
    """The hyper-parameter of every method that draws its action from scored ones."""

    temperature: Amount = field(default=1.0, metadata=SHARED)
    """The temperature of the softmax over scored actions; 0 takes the best. A model that writes has its own temperature."""


@dataclass(frozen=True)
class WordingSettings(ArgumentCheck):
    """The hyper-parameter of the methods of the paper on ICRL (arXiv:2506.06303), whose prompts may say what the paper's say."""

    wording: Literal["ours", "paper"] = "ours"
    """The prompts of a model that writes: `ours`, or `paper`, those in nodes/prompts/paper/icrl."""

    def layout(self, inputs: MethodInputs, *shown: Any, **more: Any) -> Layout:
        """The layout of attempts, as of `MethodInputs.layout`; in the paper's wording without what a full success earns and how long
        it may take."""
        from ...nodes.retrieve.chat_layout import ChatLayout

        layout = inputs.layout(*shown, **more)
        if self.wording == "paper" and isinstance(layout, ChatLayout):
            return replace(layout, full_success=None, horizon=None)
        return layout

    def brief(self, inputs: MethodInputs, name: str) -> str:
        """The method's part of the prompt, which stands before the task in the paper's wording, and in the system message in ours."""
        return inputs.prompting.load(name).text() + ("\n\n" if self.wording == "paper" else "")

    def policy(self, inputs: MethodInputs, view: PromptView) -> Node:
        """The node that proposes actions from this view."""
        return inputs.acting_policy(view, PAPER_OF_ICRL) if self.wording == "paper" else inputs.make_policy(view)


@dataclass(frozen=True)
class SharedAttemptSettings(ChoiceSettings):
    """The hyper-parameters of methods that may learn from attempts at other tasks."""

    cross_task: bool = field(default=False, metadata=SHARED)
    """True if what attempts at other tasks of the same environment left is shown too."""
    only_other_tasks: bool = field(default=False, metadata=SHARED)
    """True if, with `cross_task`, what attempts at the task itself left is not shown: a cold start."""

    def __post_init__(self) -> None:
        check_task_scope(self, type(self).__name__)

    def buffer(self, inputs: MethodInputs) -> Buffer:
        """The attempts of a run, in its store: at its task alone, or those that the world's tasks share."""
        world = getattr(inputs.environment, "name", "") if self.cross_task else ""  # a drawing has no environment
        return Buffer(inputs.records, shared_by=world, only_other_tasks=self.only_other_tasks)


@dataclass(frozen=True)
class MemorySettings(ChoiceSettings):
    """The hyper-parameters of methods whose prompts show what earlier attempts left."""

    max_memory_tokens: Annotated[int, Range(0)] | None = None
    """Tokens of what earlier attempts left, in a prompt; half of the model's window if not given. Where not all fits, the least similar,
    or else the oldest, is cut or left out."""
    max_state_chars: Count = 200
    """Characters of a past state that the prompt keeps."""


def episode_graph(
    name: str,
    flow: str,
    nodes: Mapping[str, Node],
    routers: Mapping[str, Router] | None = None,
    /,
    *,
    state: type[Any] = AttemptState,
    input_schema: type[Any] = AttemptInput,
    **compile: Any,
) -> Graph:
    """The graph of one episode, from `AttemptInput` to `EpisodeResult`.

    Args:
        name: the graph's name.
        flow: the drawing.
        nodes: name in the drawing -> node.
        routers: those beside `route_episode_end` after `act`.
        state: the channels.
        input_schema: those of the input, where a method needs more.
        compile: as for `graphs.icrl.build`.
    """
    builder = StateGraph(state, input_schema=input_schema, output_schema=EpisodeResult)
    wired = wire(builder, flow, nodes, {"act": route_episode_end, **(routers or {})})
    return compile_graph(wired, **{"name": name, **compile})


def episode_nodes(
    inputs: MethodInputs, temperature: float = 1.0, initial_values: Mapping[str, Any] | None = None
) -> dict[str, Node]:
    """The nodes `begin`, `choose` and `act` of an episode whose journal keeps the candidates of each step.

    Args:
        inputs: the world and the journal.
        temperature: of the softmax over scored actions; 0 takes the best.
        initial_values: the first values of the method's own channels, by name.
    """
    return {
        "begin": Begin(inputs.environment, initial_values or {}),
        "choose": Choose(temperature),
        "act": Act(inputs.environment, inputs.journal, journal_channels=("candidates",), clear_lists=("candidates",)),
    }


def attempt_nodes(
    inputs: MethodInputs, temperature: float, buffer: Buffer, initial_values: Mapping[str, Any] | None = None
) -> dict[str, Node]:
    """The nodes of `episode_nodes`, `judge`, and `push`, which adds the finished attempt to the buffer."""
    judge, push = inputs.judge_node(), Push(buffer, inputs.environment, inputs.journal)
    return {**episode_nodes(inputs, temperature, initial_values), "judge": judge, "push": push}


def compose_node(
    inputs: MethodInputs, buffer: Buffer, render: Callable[[Trajectory, Shown], str], brief: str, **selection: Any
) -> Compose:
    """The node that chooses the earlier attempts of a prompt with this `brief`; `selection` are further arguments of `Compose`."""
    return Compose(
        buffer,
        render=render,
        count_tokens=inputs.prompting.count_tokens,
        window=inputs.prompting.max_prompt_tokens - inputs.prompting.count_tokens(brief),
        list_actions=inputs.prompting.list_actions,
        **selection,
    )
