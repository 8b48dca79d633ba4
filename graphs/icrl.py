"""ICRL prompting: in-context reinforcement learning (arXiv:2506.06303). The model sees its own attempts with scalar rewards.

The model answers the same task round after round. Every round's prompt holds the buffer of earlier attempts, the reward next
to the step that earned it, and an instruction to explore or to exploit. (Rewards that a judge gives after the attempt are not
shown while it runs.) The only feedback is a number: nothing is trained, and no advice is written. The model improves because it reads which
steps earned how much. A round is an episode of this graph, and the run (graphs/wiring/run.py) goes on to the next: Algorithm 1.

    compose   S_0 = (s_task, B, s_ICRL): the task, buffer B within a budget of tokens, the instruction   Alg. 1
    propose   A_t ~ pi( . | S_t): one action at a time, or a whole answer at once                        Alg. 1
    choose    draw from the scores, where the model scored actions in place of writing one                ours
    act       carry the action out: S_{t+1} = S_t + (A_t, o_{t+1})                                        Alg. 1
    judge     R_{t+1} of every step, from the environment, a rule, the model itself, or several          Alg. 1
    push      B <- B + (s_task, o_0, A_0, R_1, o_1, A_1, R_2, ...), failed attempts too                  Alg. 1

s_ICRL of the default asks to exploit in every round. The paper's `preset` explores in even rounds and exploits in odd ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from ..memory.attempts.buffer import Buffer
from ..nodes.arguments import Count, Range
from ..nodes.evaluate.judge import NoJudge, ZeroJudge
from ..nodes.retrieve.attempts import AttemptsPart, Compose, InstructionStrategy, plain_instructions, round_instructions
from .wiring.episode import ChoiceSettings, WordingSettings, attempt_nodes, episode_graph
from .wiring.flow import Graph, Node
from .wiring.inputs import NOT_GIVEN, MethodInputs, given_settings

__all__ = ["FLOW", "ICRL", "build"]

FLOW = """
flowchart LR
  START --> begin --> compose --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| judge --> push --> END
"""


@dataclass(frozen=True)
class ICRL(WordingSettings, ChoiceSettings):
    """Hyper-parameters. `paper` has the published prompts in our words, the whole buffer, and the last attempt as its answer.

    On the toy world with the model `pocket`, exploiting, letting the model pick, and no instruction are equal within their
    intervals; `preset` loses what its exploring rounds cost. The other defaults were not tuned.
    """

    # The prompt's instruction and rewards
    instruction: InstructionStrategy = "exploit"
    """s_ICRL: `preset` explores in even rounds and exploits in odd ones; `autonomous` lets the model pick; `explore`, `exploit`
    and `none` (no instruction) are the same in every round. Paper: preset and autonomous."""
    one_based: bool = False
    """True if `preset` counts rounds from 1, as the paper's Algorithm 1 does (its code counts from 0)."""
    rewards: Literal["dense", "sparse", "zero", "none"] = "dense"
    """The rewards in the prompt: `dense`, r_t next to each step and their sum; `sparse`, the sum alone; `zero`, zeros for all (the
    paper's ablation); `none`, no rewards. The selection of attempts then sees zeros or nothing, too."""

    # The attempts that a prompt shows
    selection: Literal["budget", "all", "last"] = "budget"
    """The attempts in a prompt: `budget`, all of them whole if they fit in `max_memory_tokens`, else the best and the newest whole and
    the most telling others whole or as one line (nodes/retrieve/budget.py); `all`, as in the paper; or the `last` ones. Of `all` and
    `last` the newest that fit the model's window are shown."""
    max_memory_tokens: Annotated[int, Range(0)] | None = None
    """Tokens of earlier attempts in a prompt with `selection="budget"`; half of the model's window, but at most 16,384, if not given.
    Paper: no limit."""
    last_n: Count = 3
    """Attempts shown with `selection="last"`. Paper's ablation: 3."""
    max_state_chars: Count | None = 200
    """Characters of a past state's first line that prompts of a model whose actions are scored show. A model that chats sees what
    it read then, up to 600 tokens of each text. None: both whole. The buffer keeps all. Paper: actions cut to 100, observations
    whole."""

    # The answer
    commit: Literal["best", "last"] = "best"
    """The attempt that a run ends with: the `best` by the rewards that were seen, or the `last`, as in the paper's Table 2."""

    preset_temperatures: ClassVar[Mapping[str, float]] = {"paper": 1.0}
    """The temperature of its code in ScienceWorld, which is the default of APIs; the paper does not state it."""

    @classmethod
    def paper(cls) -> Self:
        """ICRL Preset: the paper's prompts, unbounded buffer with past observations whole, and answer. Rounds count from 0, as in its code."""
        return cls(instruction="preset", selection="all", max_state_chars=None, wording="paper", commit="last")

    def compose(self, buffer: Buffer, **more: Any) -> Compose:
        """The node that chooses the attempts and the instruction of a round; `more` are its further arguments (nodes/retrieve/attempts.py)."""
        return Compose(
            buffer,
            keep=self.selection,
            budget=self.max_memory_tokens,
            last=self.last_n,
            strategy=self.instruction,
            one_based=self.one_based,
            **more,
        )


def build(inputs: MethodInputs = NOT_GIVEN, settings: ICRL | None = None, **compile: Any) -> Graph:
    """The graph of one round: from `EpisodeInput` (task, run, episode) to `EpisodeResult` (score, steps, usage).

    Args:
        inputs: environment, policy, journal, judge, the store that keeps the buffer, and the tokens that the model can read.
        compile: `checkpointer`, `interrupt_before` and the rest, as for `StateGraph.compile`; and `flow` and `nodes`, another drawing
            of this graph and further nodes for it.
    """
    settings = given_settings(inputs, settings, ICRL)
    if settings.rewards in ("zero", "none"):
        inputs = inputs.without_verdicts()
    buffer = Buffer(inputs.records)
    layout = settings.layout(inputs, settings.rewards, settings.max_state_chars, notes=inputs.chats)
    of_paper = inputs.chats and settings.wording == "paper"
    brief = "" if of_paper else _brief(inputs, settings)
    instructions: Callable[[Mapping[str, Any]], str] | None = None
    if of_paper:
        names = "paper/icrl/{}_world" if inputs.prompting.list_actions else "paper/icrl/{}"
        instructions = plain_instructions(names, inputs.prompting.prompts)
    elif inputs.chats:
        instructions = round_instructions(buffer, inputs.prompting.prompts, tell_best=settings.rewards != "none")
    judges: dict[str, type[ZeroJudge] | type[NoJudge]] = {"zero": ZeroJudge, "none": NoJudge}
    nodes: dict[str, Node] = {
        **attempt_nodes(inputs, settings.temperature, buffer),
        "compose": settings.compose(
            buffer,
            render=layout.attempt,
            count_tokens=inputs.prompting.count_tokens,
            window=inputs.prompting.max_prompt_tokens - inputs.prompting.count_tokens(brief),
            list_actions=inputs.prompting.list_actions,
        ),
        "propose": settings.policy(
            inputs,
            inputs.episode_prompt(
                AttemptsPart(buffer=buffer, layout=layout, instructions=instructions), layout=layout, brief=brief
            ),
        ),
        "judge": judges[settings.rewards]() if settings.rewards in judges else inputs.judge_node(),
    }
    return episode_graph("icrl", FLOW, nodes, **compile)


def _brief(inputs: MethodInputs, settings: ICRL) -> str:
    """The method's part of the system message.

    A model that chats reads the round's instruction in full at the end of the prompt. For one whose actions are scored only its
    name stands there, and the system message explains it.
    """
    if not inputs.chats and settings.instruction != "none":
        return inputs.prompting.load("icrl/brief").text()
    return inputs.prompting.load("icrl/unrewarded" if settings.rewards == "none" else "icrl/rewarded").text()
