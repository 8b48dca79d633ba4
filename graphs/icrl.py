"""ICRL prompting: in-context reinforcement learning (arXiv:2506.06303). The model sees its own attempts with scalar rewards.

The model answers the same task round after round. Every round's prompt holds the buffer of earlier attempts, the reward next
to the step that earned it, and an instruction to explore or to exploit. The only feedback is a number. Nothing is trained,
nothing is put into words for the model: it improves because it reads what earned what. A round is an episode of this graph,
and the run (graphs/wiring/run.py) goes on to the next one: Algorithm 1.

    compose   what the prompt shows: buffer B within a budget of tokens, s_task, s_ICRL     Alg. 1: S_0
    propose   the model's attempt, one action at a time, or a whole answer at once          A_t ~ pi
    act       carry it out                                                                  S_{t+1}
    judge     r_{t+1}: environment, rule, the model itself, or several                      R_{t+1}
    push      the attempt with its rewards joins B; failures too                            Alg. 1: push
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from ..memory.buffer import Buffer
from ..memory.errors import UserError
from ..nodes.act.choose import Choose
from ..nodes.act.episode import Act, Begin, route_episode_end
from ..nodes.evaluate.judge import ZeroJudge
from ..nodes.prompt import Prompt
from ..nodes.retrieve.attempts import AttemptsPrompt, Compose, InstructionStrategy, Layout, Push
from ..nodes.state import (
    ChoiceChannels,
    EpisodeChannels,
    EpisodeInput,
    EpisodeResult,
    PlanChannels,
    PromptChannels,
    RewardChannels,
)
from .wiring.flow import Node, compile_graph, wire
from .wiring.parts import MethodInputs, check_literals

FLOW = """
flowchart LR
  START --> begin --> compose --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| judge --> push --> END
"""


class ICRLState(EpisodeChannels, PromptChannels, PlanChannels, ChoiceChannels, RewardChannels):
    """The channels of an ICRL round."""


@dataclass(frozen=True)
class ICRL:
    """Hyper-parameters. `paper` is the published setting.

    On the toy with `pocket`, exploiting, letting the model pick, and no instruction at all are equal within their intervals, and
    the preset loses what its exploring rounds cost (README); the other defaults were not tuned.
    """

    instruction: InstructionStrategy = "exploit"
    """s_ICRL: `preset` explores in even rounds and exploits in odd ones, `autonomous` lets the model pick, `explore`,
    `exploit` and `none` (no instruction) stay the same. Paper: preset and autonomous."""
    one_based: bool = False
    """Count rounds from 1 for `preset`, as the paper's Algorithm 1 does (its code counts from 0)."""
    rewards: Literal["dense", "sparse", "zero"] = "dense"
    """Show r_t next to each step and their sum, the sum alone, or zeros for all (the paper's ablation; then nothing is chosen
    by rewards either)."""
    selection: Literal["budget", "all", "last"] = "budget"
    """Which attempts a prompt shows: the best, the newest and what tells most within a budget of tokens
    (nodes/retrieve/budget.py), `all` as in the paper, or the `last` ones."""
    max_memory_tokens: int | None = None
    """Tokens of earlier attempts in a prompt (`keep=budget`); half of the model's window if not given. Paper: no limit."""
    last_n: int = 3
    """Attempts shown with `keep=last`. Paper's ablation: 3."""
    rearrange_every: int = 5
    """Rounds between two rearrangements of older attempts (`keep=budget`): a stable prompt in between."""
    max_state_chars: int = 200
    """Characters of a past state that attempts keep. Paper: actions cut to 100, observations whole."""
    temperature: float = 1.0
    """Of the softmax over scored actions; 0 takes the best. A model that writes has its own temperature."""

    def __post_init__(self) -> None:
        check_literals(self, "icrl")
        for name in ("last_n", "rearrange_every", "max_state_chars"):
            if getattr(self, name) < 1:
                raise UserError(f"icrl: {name} is at least 1, got {getattr(self, name)}")
        if self.temperature < 0 or (self.max_memory_tokens is not None and self.max_memory_tokens < 0):
            raise UserError(
                f"icrl: temperature and max_memory_tokens are at least 0, got {self.temperature} and {self.max_memory_tokens}"
            )

    @classmethod
    def paper(cls) -> ICRL:
        """ICRL Preset with the paper's unbounded buffer."""
        return cls(instruction="preset", selection="all")

    @classmethod
    def preset(cls) -> ICRL:
        """Explore in even rounds, exploit in odd ones; the rest as our defaults."""
        return cls(instruction="preset")

    @classmethod
    def autonomous(cls) -> ICRL:
        """The model picks whether to explore or to exploit."""
        return cls(instruction="autonomous")

    @classmethod
    def explore_only(cls) -> ICRL:
        """Explore in every round."""
        return cls(instruction="explore")

    @classmethod
    def exploit_only(cls) -> ICRL:
        """Exploit in every round."""
        return cls(instruction="exploit")

    @classmethod
    def no_instruction(cls) -> ICRL:
        """No s_ICRL."""
        return cls(instruction="none")

    ablations: ClassVar[tuple[str, ...]] = ("zero_reward", "short_context")
    """Methods that change one thing in whatever the settings are: `--compare icrl:zero-reward` changes it in those of the run."""

    def zero_reward(self) -> ICRL:
        """The paper's ablation: every reward in the prompt is 0."""
        return replace(self, rewards="zero")

    def short_context(self) -> ICRL:
        """The paper's ablation: the last three attempts only."""
        return replace(self, selection="last", last_n=3)


def build(
    parts: MethodInputs, settings: ICRL | None = None, *, chain: bool = False, **compile: Any
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one round: from `Attempt` (task, run, episode) to `Played`.

    Args:
        parts: environment, policy, journal, judge, shelf for the buffer, and how the model counts tokens.
        settings: hyper-parameters.
        chain: run the steps between two choices as one super-step (graphs/wiring/flow.py).
        compile: `checkpointer`, `interrupt_before` and the rest, as for `StateGraph.compile`.
    """
    settings = settings or ICRL()
    buffer = Buffer(parts.shelf)
    layout = Layout(settings.rewards, settings.max_state_chars)
    brief = Prompt.load("icrl/brief", parts.prompts).text()
    nodes: dict[str, Node] = {
        "begin": Begin(parts.environment),
        "compose": Compose(
            buffer,
            layout.attempt,
            parts.count_tokens,
            parts.max_prompt_tokens - parts.count_tokens(brief),
            settings.selection,
            settings.max_memory_tokens,
            settings.last_n,
            settings.rearrange_every,
            settings.instruction,
            settings.one_based,
            parts.list_actions,
        ),
        "propose": parts.make_policy(
            AttemptsPrompt(buffer=buffer, earlier_layout=layout, **parts.prompt_arguments(layout, brief))
        ),
        "choose": Choose(settings.temperature),
        "act": Act(parts.environment, parts.journal, journal_channels=("candidates",), clear_lists=("candidates",)),
        "judge": ZeroJudge() if settings.rewards == "zero" else parts.judge_node(),
        "push": Push(buffer, parts.environment, parts.journal),
    }
    builder = StateGraph(ICRLState, input_schema=EpisodeInput, output_schema=EpisodeResult)
    return compile_graph(wire(builder, FLOW, nodes, {"act": route_episode_end}, chain=chain), **{"name": "icrl", **compile})
