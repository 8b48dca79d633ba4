"""AdaMEM: test-time adaptive memory (arXiv:2606.05684). Advice is written on the spot from what was done in similar situations.

Long-term memory M holds the steps of earlier trajectories. They are found by the state that the agent is in, not by its task alone.
From the nearest steps (the precedents) a strategy is written: a few items of advice for the next actions. The agent acts on it and
forgets it (mode `high`), or keeps it until it calls for another (mode `low`, the default). Nothing is trained: finished episodes join
M, unless `online=False`, as in the paper, where a fixed bank is all the memory there is.

The order below is that of `high`; `low` begins at recollect, and its drafts are made with the strategy at hand (reconsider).

    consider   a'_t, d_mem ~ pi( . | s_t): draft an action, vote on asking memory (a model that
               scores actions votes yes if its best one is less probable than min_confidence)    Alg. 1
    decide     ask memory if the vote or another trigger says so                                 nodes/retrieve/triggers.py
    recollect  E_ret = the k steps of M most similar to the key phi(s_t)                         Alg. 1
    synthesize z_t ~ pi(z | s_t, E_ret); skipped if nothing of use is alike enough               Alg. 1
    propose    a_t ~ pi(a | s_t, z_t); the precedents themselves are not shown                   Alg. 1
    judge      the rewards of the episode; their sum marks its steps in M as a success or a failure, which a strategy's prompt shows
    remember   M <- M + (s_0, a_0, r_1, s_1, a_1, r_2, ...)                                      ours; the paper's M is fixed

| mode | memory is asked | model calls a step |
|---|---|---|
| `high` | when the draft is voted unsure; the strategy serves one action | 1 (the draft is carried out) or 3 |
| `low` | at every step until there is a strategy | 2, or 1 if nothing is alike enough |
| `low` | then when the draft, made with the strategy, is voted unsure | 1 (the draft is carried out) or 3 |
| `low-on-request` | when a draft is voted unsure: one without a strategy until there is one, then one made with it | 1 or 3 |
| `max` | at every step | 2 |
| `raw` | at every step; the precedents themselves stand in the prompt (ablation) | 1 |
| `no-precedents` | never: a strategy from the state alone (ablation) | 2 |

Where nothing is alike enough, or a strategy was asked of these trajectories in vain, the draft is carried out, or, without a draft, an
action is proposed; a strategy at hand stays.
`author=rule` writes without a call.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from ..memory.attempts.trajectories import OutcomeFilter, Trajectories
from ..memory.errors import UserError
from ..memory.search.encoders import EncoderOptions
from ..nodes.act.choose import Choose
from ..nodes.act.episode import START_VALUES, Act, Begin
from ..nodes.arguments import Amount, ArgumentCheck, Count, Range, Share
from ..nodes.retrieve.attempts import Push, ReadOnlyMemory
from ..nodes.retrieve.recollect import Excerpts, PrecedentsPart, Recollect
from ..nodes.retrieve.triggers import CheckTriggers, Trigger, route_memory_request
from ..nodes.state import AttemptState, DraftChannels, PrecedentChannels, StrategyChannels
from ..nodes.synthesize.strategy import (
    MOST_WORDS,
    RecallStrategy,
    StrategyPart,
    StrategyWriter,
    route_guidance,
    route_precedents,
    route_precedents_or_draft,
    synthesize,
)
from .presets import adamem as presets
from .presets.adamem import writing_style
from .wiring.banks import (
    KEYS,
    KeyName,
    admissible_prompt,
    bank_success_threshold,
    bank_trajectories,
    load_bank_memory,
    open_vectors,
    precedent_excerpts,
    require_success_threshold,
    success_predicate,
)
from .wiring.episode import episode_graph
from .wiring.flow import Graph, Node, Router, read_flow
from .wiring.inputs import NOT_GIVEN, SHARED, MethodInputs, given_settings

__all__ = ["MODES", "AdaMEM", "Mode", "build", "deciding_nodes"]

HIGH_FLOW = """
flowchart LR
  START --> begin --> consider --> draft --> decide
  decide -->|go on| act
  decide -->|ask memory| recollect
  recollect -->|precedents| synthesize --> propose --> choose --> act
  recollect -->|nothing alike| act
  act -->|next step| consider
  act -->|over| judge --> remember --> END
"""

LOW_FLOW = """
flowchart LR
  START --> begin --> recollect
  recollect -->|precedents| synthesize --> propose --> choose --> act
  recollect -->|nothing alike| propose
  recollect -->|keep the draft| act
  act -->|strategy| reconsider --> draft --> decide
  act -->|no strategy| recollect
  decide -->|go on| act
  decide -->|ask memory| recollect
  act -->|over| judge --> remember --> END
"""

LOW_ON_REQUEST_FLOW = """
flowchart LR
  START --> begin --> consider --> draft --> decide
  decide -->|go on| act
  decide -->|ask memory| recollect
  recollect -->|precedents| synthesize --> propose --> choose --> act
  recollect -->|nothing alike| act
  act -->|no strategy| consider
  act -->|strategy| reconsider --> draft
  act -->|over| judge --> remember --> END
"""

MAX_FLOW = """
flowchart LR
  START --> begin --> recollect
  recollect -->|precedents| synthesize --> propose --> choose --> act
  recollect -->|nothing alike| propose
  act -->|next step| recollect
  act -->|over| judge --> remember --> END
"""

RAW_FLOW = """
flowchart LR
  START --> begin --> recollect --> propose --> choose --> act
  act -->|next step| recollect
  act -->|over| judge --> remember --> END
"""

NO_PRECEDENTS_FLOW = """
flowchart LR
  START --> begin --> synthesize --> propose --> choose --> act
  act -->|next step| synthesize
  act -->|over| judge --> remember --> END
"""


class AdaMEMState(AttemptState, PrecedentChannels, StrategyChannels, DraftChannels):
    """The channels of an AdaMEM episode."""


@dataclass(frozen=True)
class AdaMEM(ArgumentCheck):
    """Hyper-parameters. `paper_low` and `paper_high`: the published settings; without an `embedder`, which is to be given, with Jaccard."""

    # The mode, and who writes
    mode: Literal["high", "low", "low-on-request", "max", "raw", "no-precedents"] = "low"
    """The graph (see above). Low mode waits for a request in the paper's figure; in the authors' code it asks at the start, as `low`."""
    author: Literal["model", "rule"] = "model"
    """The author of strategies: the model, or `RecallStrategy`, a rule (an ablation, and for work without a language model)."""

    # Retrieval: the precedents of a strategy
    k: Count = field(default=4, metadata=SHARED)
    """k: precedents retrieved. Paper: 1; more helped up to 16."""
    retrieval_key: KeyName = "structured"
    """phi(s_t): `structured`, of the goal and the present state; `whole`, of the whole prompt with its history, as in the paper."""
    outcomes: OutcomeFilter = "all"
    """The trajectories that precedents come from: those of a `success` (paper), or `all`."""
    success_threshold: float | None = field(default=None, metadata=SHARED)
    """The return from which a trajectory counts as a success; the environment's own threshold if not given."""
    min_similarity: Share | None = None
    """The least similarity of a precedent; None: that of the comparison (0.21 by words; of the embedder). Paper: 0, any."""
    max_per_trajectory: Annotated[int, Range(0)] = 1
    """Precedents from one trajectory at most; 0: any number, as in the paper."""
    distinct: bool = True
    """True if only the best of the steps with the same key and action is a precedent, by its return from there on. Paper: no."""

    # Dense keys: states compared by their embeddings
    embedder: str = ""
    """A sentence-transformers model by folder or name, or `openai:NAME`; empty: exact Jaccard over words. Paper: Qwen3-Embedding. Vectors are
    kept in a file beside the bank."""
    embedder_url: str | None = None
    """The address of the API of an `openai:NAME` embedder; OPENAI_BASE_URL if not given. The key is OPENAI_API_KEY."""
    query_prompt: str | None = None
    """Text before what is searched for: `query: ` for E5, an instruction for Qwen3-Embedding; None: as the model's files say."""
    document_prompt: str | None = None
    """Text before what is stored, likewise: `passage: ` for E5."""

    # Triggers: when memory is asked
    triggers: tuple[Trigger, ...] = ("vote",)
    """The triggers that ask for memory in `high`, for another strategy in `low` (nodes/retrieve/triggers.py). Paper: vote."""
    min_confidence: Share = 0.6
    """`vote` of a model that scores actions: its best action is less probable than this. Ours."""
    stall_steps: Count = 4
    """`stalled`: steps without progress."""

    # The memory
    bank: str = field(default="", metadata=SHARED)
    """A file of trajectories to start from (`learngraph memory export`), which stays as it is; a run folder; `react@40`: what react does
    on the first 40 training tasks, played first; `gold@40`: their walkthroughs."""
    online: bool = field(default=True, metadata=SHARED)
    """True if finished episodes join the memory. Paper: no."""
    cross_task: bool = field(default=False, metadata=SHARED)
    """True if the runs of all seeds share one memory; they are then played in turn."""

    tuned: str = ""
    """`step@40`: the model that plays is first fine-tuned on its strategies in the first 40 training tasks that helped (Step-MFT):
    those of successes that changed the action. `outcome`: as many, of any success."""

    # Prompts and the choice among scored actions
    wording: presets.Wording = "ours"
    """The prompts of a model that writes: our own, or what the paper's say (nodes/prompts/paper/adamem)."""
    followup_steps: Annotated[int, Range(0)] | None = 8
    """Steps shown of those that followed a precedent; None: all, as in the paper."""
    max_state_chars: Count | None = 1500
    """Characters of a precedent's observations (400 for a scoring model); None, as in the paper: all, and all steps before it."""
    history_steps: Annotated[int, Range(0)] | None = field(default=None, metadata=SHARED)
    """Earlier steps of the episode in prompts; None: as many as fit. Paper: all."""
    temperature: Amount = field(default=1.0, metadata=SHARED)
    """The temperature of the softmax over scored actions; 0 takes the best. A model that writes has its own (paper: 0.7)."""

    def __post_init__(self) -> None:
        if self.tuned and not re.fullmatch(r"(step|outcome)@[1-9]\d*", self.tuned):
            raise UserError(f"adamem: tuned is step@N or outcome@N, got {self.tuned!r}")
        if self.mode == "no-precedents" and self.author == "rule":
            raise UserError("adamem: the rule writes from precedents, and mode no-precedents has none; use author=model")

    preset_temperatures: ClassVar[Mapping[str, float]] = {"paper-low": 0.7, "paper-high": 0.7}  # the paper's, of its model

    @classmethod
    def paper_low(cls) -> AdaMEM:
        """The published low mode, as in the paper's figure, with a bank that stays as it is."""
        return cls(**presets.PAPER)

    @classmethod
    def paper_high(cls) -> AdaMEM:
        """The published high mode, with the same memory."""
        return replace(cls.paper_low(), mode="high")

    @property
    def remark(self) -> str:
        """`rule-written` where strategies come from a rule; tables show it behind the method's name."""
        return "rule-written" if self.author == "rule" and self.mode != "raw" else ""

    def memory(self, inputs: MethodInputs) -> Trajectories:
        """The long-term memory: the trajectories of the bank, and those that the run itself adds.

        Raises:
            UserError: `outcomes` asks for successes and the return of one is unknown, the bank holds nothing
                of this environment, or there is no such embedder.
        """
        if self.outcomes != "all":
            require_success_threshold(inputs, "adamem", self.success_threshold, self.bank)
        bank, key, threshold = bank_trajectories(inputs, self.bank, "adamem"), self.retrieval_key, self.success_threshold
        encoder = EncoderOptions(self.embedder, self.embedder_url, self.query_prompt, self.document_prompt)
        similarity = open_vectors(encoder, self.bank and f"{self.bank}.vectors")
        if not self.online and bank:
            threshold = bank_success_threshold(inputs, threshold)
            return load_bank_memory(self.bank, key=key, success_threshold=threshold, similarity=similarity)
        success = success_predicate(inputs, threshold, bank)
        return Trajectories(inputs.records, bank=bank, key=KEYS[key], similarity=similarity, success=success, run=inputs.run)


def build(
    inputs: MethodInputs = NOT_GIVEN, settings: AdaMEM | None = None, *, memory: Trajectories | None = None, **compile: Any
) -> Graph:
    """The graph of one episode in the settings' mode; arguments as in `graphs.icrl.build`.

    `memory`: a long-term memory of your own (another key, any LangChain `Embeddings`), or one that several graphs share.
    """
    settings = given_settings(inputs, settings, AdaMEM)
    memory = settings.memory(inputs) if memory is None else memory
    mode = MODES[settings.mode]
    nodes = _frame(inputs, settings, memory, mode) | deciding_nodes(inputs, settings, memory, mode)
    return episode_graph(f"adamem-{settings.mode}", mode.flow, nodes, mode.routers, state=AdaMEMState, **compile)


class Mode(NamedTuple):
    """One way to ask memory: a drawing, the routers behind its labels, and how its nodes differ from the other modes'."""

    flow: str
    routers: Mapping[str, Router] = {}
    keeps_strategy: bool = False
    """True if a strategy serves until another is written; else it serves one action."""
    shows_precedents: bool = False
    """True if prompts show the experiences themselves in place of a strategy."""
    strategy_prompt: str = "strategy"
    """The prompt of strategies, in the folder of the wording."""


MODES: Mapping[str, Mode] = {
    "high": Mode(HIGH_FLOW, {"decide": route_memory_request, "recollect": route_precedents}),
    "low": Mode(
        LOW_FLOW,
        {"decide": route_memory_request, "recollect": route_precedents_or_draft, "act": route_guidance},
        keeps_strategy=True,
    ),
    "low-on-request": Mode(
        LOW_ON_REQUEST_FLOW,
        {"decide": route_memory_request, "recollect": route_precedents, "act": route_guidance},
        keeps_strategy=True,
    ),
    "max": Mode(MAX_FLOW, {"recollect": route_precedents}),
    "raw": Mode(RAW_FLOW, shows_precedents=True),
    "no-precedents": Mode(NO_PRECEDENTS_FLOW, strategy_prompt="ungrounded"),
}


def _frame(inputs: MethodInputs, settings: AdaMEM, memory: Trajectories, mode: Mode) -> dict[str, Node]:
    """The nodes that every mode has."""
    lists, values = ("candidates", "reasons", "precedents"), ("tentative", "nearest_similarity", "synthesis")
    every = (*values, "strategy")
    return {
        "begin": Begin(inputs.environment, {**START_VALUES}),
        "choose": Choose(settings.temperature),
        "act": Act(
            inputs.environment,
            inputs.journal,
            journal_channels=(*lists, *every),
            clear_lists=lists,
            clear_values=values if mode.keeps_strategy else every,
        ),
        "judge": inputs.judge_node(),
        "remember": Push(memory if settings.online else ReadOnlyMemory(), inputs.environment, inputs.journal),
    }


def deciding_nodes(
    inputs: MethodInputs, settings: AdaMEM, memory: Trajectories, mode: Mode, names: Collection[str] | None = None
) -> dict[str, Node]:
    """The nodes from a situation to candidates: those with these names, or all that the mode's drawing has."""
    style = settings.wording
    excerpts = precedent_excerpts(inputs, memory, settings.followup_steps, settings.max_state_chars)
    guided = inputs.episode_prompt(StrategyPart(), max_steps=settings.history_steps)
    raw = inputs.episode_prompt(PrecedentsPart(excerpts=excerpts), max_steps=settings.history_steps)
    shown = (raw, writing_style(style, "raw")) if mode.shows_precedents else (guided, writing_style(style, "act"))
    nodes: dict[str, Node] = {
        "consider": inputs.acting_policy(guided, writing_style(style, "consider")),
        "reconsider": inputs.acting_policy(guided, writing_style(style, "reconsider")),
        "draft": Choose(settings.temperature),
        "decide": CheckTriggers(
            inputs.environment,
            inputs.journal,
            triggers=settings.triggers,
            min_confidence=settings.min_confidence,
            stall_steps=settings.stall_steps,
        ),
        "recollect": Recollect(
            *(memory, inputs.environment, inputs.journal),
            k=settings.k,
            kind=settings.outcomes,
            min_similarity=settings.min_similarity,
            max_per_trajectory=settings.max_per_trajectory,
            distinct=settings.distinct,
            excerpts=excerpts,
        ),
        "propose": inputs.acting_policy(*shown),
    }
    wanted = {edge.source for edge in read_flow(mode.flow).edges} if names is None else names
    if "synthesize" in wanted:
        prompt = f"{presets.FOLDERS[settings.wording]}/{mode.strategy_prompt}"
        nodes["synthesize"] = _synthesize(inputs, settings, memory, excerpts=excerpts, prompt=prompt)
    return {name: node for name, node in nodes.items() if name in wanted}


def _synthesize(inputs: MethodInputs, settings: AdaMEM, memory: Trajectories, excerpts: Excerpts, prompt: str) -> Node:
    """The node that writes strategies. A scoring model continues a prompt that ends with `Strategy:`; others write that line."""
    writes = inputs.make_writing_policy is not None
    writer = StrategyWriter(
        *(memory, inputs.environment, inputs.journal, excerpts),
        layout=inputs.running_layout(),
        count=inputs.prompting.count_tokens,
        window=inputs.prompting.max_prompt_tokens,
        prompt=inputs.prompting.load(prompt if writes else "adamem/line"),
        needs_marker=writes,
        most_words=MOST_WORDS if writes and settings.wording == "ours" else None,
        recent=settings.history_steps,
        max_history_tokens=inputs.max_history_tokens,
        doubt=inputs.prompting.load("adamem/doubt"),
        admissible=admissible_prompt(inputs),
    )
    if settings.author == "rule":
        return RecallStrategy(writer)
    return synthesize(inputs.require_chat_model("adamem"), writer, inputs.prompting.prompts)
