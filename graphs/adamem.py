"""AdaMEM: test-time adaptive memory (arXiv:2606.05684). Advice is written on the spot from what was done in such situations.

Long-term memory holds steps of earlier trajectories, found by the state the agent is in, not by its task alone. From the
nearest ones a strategy is written, a few items of advice for the next actions; the agent acts on it and forgets it, or keeps it
until the situation calls for another. Nothing is trained: it learns because finished episodes join the memory (and, in
Step-MFT, because the strategies that changed an action for the better are what its writer is fine-tuned on: nodes/synthesize/mft.py).

    consider   an action drafted without asking (a'_t), and the model's vote            Alg. 1: a'_t, d_mem
    decide     vote and triggers: is memory asked?                                      nodes/retrieve/triggers.py
    recollect  E_ret: the k nearest steps by the key of the present state               top-k(phi(s_t))
    synthesize z_t ~ pi(z | s_t, E_ret); never from nothing
    propose    a_t ~ pi(a | s_t, z_t); the experiences themselves are not shown

| mode | memory is asked | model calls a step |
|---|---|---|
| `high` | when the draft is voted unsure; the strategy serves one action | 1 or 3 |
| `low` | at the start, then when the strategy at hand no longer serves | 2 at the start, then 1 or 3 |
| `max` | at every step | 2 |
| `raw` | at every step; the experiences themselves stand in the prompt (ablation) | 1 |
| `no-precedents` | never: a strategy from the state alone (ablation) | 2 |

Where nothing is alike enough, no strategy is written and the plain action is taken: one call. With `author=rule` writing takes
no call. Neither memory nor strategy is ReAct (baselines/react.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from ..memory.errors import UserError
from ..memory.search.vectors import CosineSimilarity, SentenceEncoder
from ..memory.trajectories import KeyFunction, OutcomeFilter, Trajectories, structured_key, whole_prompt_key
from ..nodes.act.choose import Choose
from ..nodes.act.episode import Act, Begin, route_episode_end
from ..nodes.prompt import Prompt
from ..nodes.retrieve.attempts import EpisodePrompt, Push, ReadOnlyMemory
from ..nodes.retrieve.recollect import Excerpts, PrecedentsPrompt, Recollect
from ..nodes.retrieve.triggers import CheckTriggers, Trigger, route_memory_request
from ..nodes.state import (
    ChoiceChannels,
    DraftChannels,
    EpisodeChannels,
    EpisodeInput,
    EpisodeResult,
    PlanChannels,
    PrecedentChannels,
    RewardChannels,
    StrategyChannels,
)
from ..nodes.synthesize.strategy import (
    RecallStrategy,
    StrategyPrompt,
    StrategyWriter,
    route_guidance,
    route_precedents,
    route_precedents_or_draft,
    synthesize,
)
from .wiring.flow import Node, Router, compile_graph, wire
from .wiring.parts import MethodInputs, check_literals, load_bank, mtime_ns, reaches_return

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
  act -->|strategy| consider --> draft --> decide
  act -->|no strategy| recollect
  decide -->|go on| act
  decide -->|ask memory| recollect
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

UNGROUNDED_FLOW = """
flowchart LR
  START --> begin --> synthesize --> propose --> choose --> act
  act -->|next step| synthesize
  act -->|over| judge --> remember --> END
"""


class AdaMEMState(
    EpisodeChannels, PrecedentChannels, StrategyChannels, DraftChannels, PlanChannels, ChoiceChannels, RewardChannels
):
    """The channels of an AdaMEM episode."""


@dataclass(frozen=True)
class AdaMEM:
    """Hyper-parameters. `paper_low` and `paper_high` are the published settings."""

    mode: Literal["high", "low", "max", "raw", "no-precedents"] = "low"
    """Which graph: when memory is asked, and what is made of it (see above)."""
    author: Literal["model", "rule"] = "model"
    """Who writes strategies: the model, or `RecallStrategy`, a rule (an ablation, and for work without a language model)."""
    k: int = 4
    """Precedents retrieved. Paper: 1; more helped up to 16."""
    outcomes: OutcomeFilter = "all"
    """Which of them: from trajectories that ended in `success`, in `failure`, `all`, or k of each, `mixed`. Paper: success."""
    success_threshold: float | None = None
    """The return from which a trajectory counts as a success; the environment's own threshold if not given."""
    min_similarity: float = 0.3
    """Least similarity of a precedent. Paper: none."""
    max_per_trajectory: int = 1
    """Precedents from one trajectory at most; 0: any number, as in the paper."""
    diversity: float = 0.0
    """Weight of maximal marginal relevance, in [0, 1]. Paper: 0."""
    distinct: bool = True
    """Of steps with the same key and action only the newest is a precedent. Paper: no."""
    retrieval_key: Literal["structured", "whole"] = "structured"
    """phi(s_t) is of the goal and the present state, or of the whole prompt with its history, as in the paper."""
    embedder: str = ""
    """Dense keys: a sentence-transformers model by folder or name. Empty: exact Jaccard over words. Paper: Qwen3-Embedding-4B."""
    vectors_file: str = ""
    """The file that keeps the vectors of dense keys; beside the bank if not given, and in the process without a bank."""
    triggers: tuple[Trigger, ...] = ("vote",)
    """What asks for memory in `high`, for another strategy in `low` (nodes/retrieve/triggers.py). Paper: vote."""
    min_confidence: float = 0.6
    """The vote of a model that scores actions: its best action is less probable than this. Ours."""
    stall_steps: int = 4
    """Steps without progress of the trigger `stalled`."""
    drift_threshold: float = 0.3
    """Least similarity to the state that the strategy was written for, of the trigger `drift`."""
    steps_before_retrieval: int = 0
    """Steps before the first retrieval of an episode: the start often says little. Paper: 0."""
    followup_steps: int = 8
    """Steps shown of what followed a precedent. Paper: all."""
    history_steps: int | None = None
    """Earlier steps of the episode in prompts; None: as many as fit. Paper: all."""
    bank: str = ""
    """A JSONL file of trajectories to start from (`learngraph adamem build`, `learngraph memory export`); it stays as it is."""
    online: bool = True
    """Finished episodes join the memory. Paper: no."""
    max_trajectories: int | None = None
    """Trajectories that the memory keeps beside the bank's; the least useful go first. None: all."""
    cross_task: bool = False
    """Runs of all seeds share one memory, and are played in turn."""
    temperature: float = 1.0
    """Of the softmax over scored actions; 0 takes the best. A model that writes has its own (paper: 0.7)."""

    def __post_init__(self) -> None:
        check_literals(self, "adamem")
        for name, least in (
            ("k", 1),
            ("stall_steps", 1),
            ("max_per_trajectory", 0),
            ("steps_before_retrieval", 0),
            ("followup_steps", 0),
            ("temperature", 0),
        ):
            if getattr(self, name) < least:
                raise UserError(f"adamem: {name} is at least {least}, got {getattr(self, name)}")
        if self.mode == "high" and "drift" in self.triggers:
            raise UserError(
                "adamem: in mode high no strategy is kept that the state could drift from; leave out the trigger drift"
            )
        if self.mode == "no-precedents" and self.author == "rule":
            raise UserError("adamem: the rule writes from precedents, and mode no-precedents has none; author=model would do")
        for name in ("min_confidence", "drift_threshold", "diversity"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"adamem: {name} is from 0 to 1, got {getattr(self, name)}")

    @classmethod
    def paper_low(cls) -> AdaMEM:
        """The published low mode: one success by the whole prompt, no floor, a bank that stays as it is."""
        return cls(
            k=1,
            outcomes="success",
            min_similarity=0.0,
            max_per_trajectory=0,
            distinct=False,
            retrieval_key="whole",
            online=False,
        )

    @classmethod
    def paper_high(cls) -> AdaMEM:
        """The published high mode, likewise."""
        return cls(
            mode="high",
            k=1,
            outcomes="success",
            min_similarity=0.0,
            max_per_trajectory=0,
            distinct=False,
            retrieval_key="whole",
            online=False,
        )

    ablations: ClassVar[tuple[str, ...]] = ("high", "low", "max", "raw", "no_precedents", "rule")
    """Methods that change one thing in whatever the settings are: `--compare adamem:high` keeps the others of the run."""

    def high(self) -> AdaMEM:
        """A strategy for one action, when the draft is unsure."""
        return replace(self, mode="high")

    def low(self) -> AdaMEM:
        """A strategy that is kept until it no longer serves."""
        return replace(self, mode="low")

    def max(self) -> AdaMEM:
        """A strategy at every step."""
        return replace(self, mode="max")

    def raw(self) -> AdaMEM:
        """The paper's ablation without strategies: raw experiences at every step."""
        return replace(self, mode="raw")

    def no_precedents(self) -> AdaMEM:
        """The paper's ablation without trajectories: a strategy from the state alone, by the model."""
        return replace(self, mode="no-precedents", author="model")

    def rule(self) -> AdaMEM:
        """Strategies written by `RecallStrategy`, a rule, in place of the model."""
        return replace(self, author="rule")

    @property
    def remark(self) -> str:
        """What a table has to say of these settings: where strategies come from a rule, that they do."""
        return "rule-written" if self.author == "rule" and self.mode != "raw" else ""

    def memory(self, parts: MethodInputs) -> Trajectories:
        """The long-term memory: the bank, and what the run itself adds.

        Raises:
            UserError: successes or failures are wanted, and nobody says from which return on an attempt is one; the bank holds
                nothing of this environment.
        """
        world = parts.environment
        least = parts.success_threshold(self.success_threshold)
        if least is None and self.outcomes != "all" and world is not None:  # a drawing has no environment
            raise UserError(
                f"adamem: kind={self.outcomes} needs to know which return is a success; give the least one: --success-threshold"
            )
        theirs = parts.bank_success_threshold(self.success_threshold)
        if self.bank and theirs is None and self.outcomes != "all":
            raise UserError(
                f"adamem: which return is a success in {self.bank}? {world.name} does not say it, and --success-threshold is on the judge's "
                "scale; --outcomes all goes without"
            )
        bank = parts.bank_trajectories(self.bank, "adamem")
        vectors = self.vectors_file or (self.bank and f"{self.bank}.vectors")
        if not self.online and bank:  # nothing is added: the runs of a process share one
            return _bank_memory(Path(self.bank), mtime_ns(self.bank), self.retrieval_key, theirs, self.embedder, vectors)
        return Trajectories(
            parts.shelf,
            bank=bank,
            key=_KEYS[self.retrieval_key],
            similarity=_open_vectors(self.embedder, vectors) if self.embedder else None,
            success=parts.success_predicate(self.success_threshold, bank),
            limit=self.max_trajectories,
            run=parts.run,
        )


_KEYS: Mapping[str, KeyFunction] = {"structured": structured_key, "whole": whole_prompt_key}


@lru_cache(maxsize=4)
def _bank_memory(
    file: Path, stamp: int, key: str, success_threshold: float | None, embedder: str, vectors: str
) -> Trajectories:
    """The memory that is a bank and nothing else."""
    similarity = _open_vectors(embedder, vectors) if embedder else None
    return Trajectories(
        bank=load_bank(file, stamp), key=_KEYS[key], similarity=similarity, success=reaches_return(success_threshold)
    )


@lru_cache(maxsize=4)
def _open_vectors(embedder: str, path: str) -> CosineSimilarity:
    """They share an encoder, too."""
    return CosineSimilarity(SentenceEncoder(embedder), path or None)


def build(
    parts: MethodInputs,
    settings: AdaMEM | None = None,
    *,
    memory: Trajectories | None = None,
    chain: bool = False,
    **compile: Any,
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one episode in the settings' mode; arguments as in `graphs.icrl.build`.

    `memory`: a long-term memory of your own, with another key, any LangChain `Embeddings` (`memory.vectors.Vectors`), or one
    that several graphs share; what the settings say of the memory is then left aside.
    """
    settings = settings or AdaMEM()
    kit = AdaMEMNodeFactory(parts, settings, settings.memory(parts) if memory is None else memory)
    flow, nodes, routers = MODES[settings.mode](kit)
    builder = StateGraph(AdaMEMState, input_schema=EpisodeInput, output_schema=EpisodeResult)
    return compile_graph(wire(builder, flow, nodes, routers, chain=chain), **{"name": f"adamem-{settings.mode}", **compile})


ModeWiring = tuple[str, dict[str, Node], Mapping[str, Router]]
"""A drawing, its nodes, its routers."""


@dataclass(frozen=True)
class AdaMEMNodeFactory:
    """The nodes that the modes share, made where they are used."""

    parts: MethodInputs
    settings: AdaMEM
    memory: Trajectories

    def prompt_arguments(self) -> dict[str, Any]:
        """What prompts show of the running episode."""
        return {**self.parts.prompt_arguments(), "max_steps": self.settings.history_steps}

    def excerpts(self) -> Excerpts:
        """How precedents stand in prompts."""
        return Excerpts(self.memory, self.parts.count_tokens, self.parts.max_prompt_tokens // 2, self.settings.followup_steps)

    def common_nodes(self, *cleared_channels: str) -> dict[str, Node]:
        """What every mode has. `forgets`: channels that are set to None when the action is taken."""
        parts, settings = self.parts, self.settings
        fresh: dict[str, Any] = {"used": [], "precedents": [], "tentative": None, "vote": False, "reasons": []}
        return {
            "begin": Begin(parts.environment, {**fresh, "strategy": None, "written": -1, "synthesis": None}),
            "choose": Choose(settings.temperature),
            "act": Act(
                parts.environment,
                parts.journal,
                journal_channels=("candidates", "tentative", "reasons", "precedents", "strategy", "synthesis"),
                clear_lists=("candidates", "precedents", "reasons"),
                clear_values=("synthesis", "tentative", *cleared_channels),
            ),
            "judge": parts.judge_node(),
            "remember": Push(self.memory if settings.online else ReadOnlyMemory(), parts.environment, parts.journal),
        }

    def recollect_node(self) -> Recollect:
        """E_ret."""
        settings = self.settings
        return Recollect(
            self.memory,
            self.parts.environment,
            self.parts.journal,
            settings.k,
            settings.outcomes,
            settings.min_similarity,
            settings.max_per_trajectory,
            settings.diversity,
            settings.steps_before_retrieval,
            settings.distinct,
            self.excerpts(),
        )

    def decide_node(self) -> CheckTriggers:
        """Vote and triggers."""
        settings, parts = self.settings, self.parts
        return CheckTriggers(
            self.memory,
            parts.environment,
            parts.journal,
            settings.triggers,
            settings.min_confidence,
            settings.stall_steps,
            settings.drift_threshold,
        )

    def synthesize_node(self, purpose: Literal["strategy", "ungrounded"] = "strategy") -> Node:
        """Who writes strategies. A model in this process goes on with a prompt that ends with `Strategy:`; others say so."""
        parts, settings, running = self.parts, self.settings, self.parts.prompt_arguments()
        writer = StrategyWriter(
            self.memory,
            parts.environment,
            parts.journal,
            self.excerpts(),
            running["layout"],
            parts.count_tokens,
            parts.max_prompt_tokens,
            Prompt.load(f"adamem/{purpose}" if parts.make_writing_policy else "adamem/line", parts.prompts),
            needs_marker=parts.make_writing_policy is not None,
            recent=settings.history_steps,
        )
        if settings.author == "rule":
            return RecallStrategy(writer)
        return synthesize(parts.require_chat_model("adamem"), writer, parts.prompts)


def wire_high(kit: AdaMEMNodeFactory) -> ModeWiring:
    """Draft; ask memory if unsure; the strategy serves one action."""
    nodes = kit.common_nodes("strategy") | {
        "consider": kit.parts.acting_policy(EpisodePrompt(**kit.prompt_arguments()), "adamem/consider"),
        "draft": Choose(kit.settings.temperature),
        "decide": kit.decide_node(),
        "recollect": kit.recollect_node(),
        "synthesize": kit.synthesize_node(),
        "propose": kit.parts.acting_policy(StrategyPrompt(**kit.prompt_arguments()), "adamem/act"),
    }
    return HIGH_FLOW, nodes, {"decide": route_memory_request, "recollect": route_precedents, "act": route_episode_end}


def wire_low(kit: AdaMEMNodeFactory) -> ModeWiring:
    """Act on a strategy as long as it serves."""
    nodes = kit.common_nodes() | {
        "consider": kit.parts.acting_policy(StrategyPrompt(**kit.prompt_arguments()), "adamem/reconsider"),
        "draft": Choose(kit.settings.temperature),
        "decide": kit.decide_node(),
        "recollect": kit.recollect_node(),
        "synthesize": kit.synthesize_node(),
        "propose": kit.parts.acting_policy(StrategyPrompt(**kit.prompt_arguments()), "adamem/act"),
    }
    return LOW_FLOW, nodes, {"decide": route_memory_request, "recollect": route_precedents_or_draft, "act": route_guidance}


def wire_every_step(kit: AdaMEMNodeFactory) -> ModeWiring:
    """A strategy at every step."""
    nodes = kit.common_nodes("strategy") | {
        "recollect": kit.recollect_node(),
        "synthesize": kit.synthesize_node(),
        "propose": kit.parts.acting_policy(StrategyPrompt(**kit.prompt_arguments()), "adamem/act"),
    }
    return MAX_FLOW, nodes, {"recollect": route_precedents, "act": route_episode_end}


def wire_raw(kit: AdaMEMNodeFactory) -> ModeWiring:
    """No strategy: the experiences themselves at every step."""
    experienced = PrecedentsPrompt(excerpts=kit.excerpts(), **kit.prompt_arguments())
    nodes = kit.common_nodes() | {
        "recollect": kit.recollect_node(),
        "propose": kit.parts.acting_policy(experienced, "adamem/raw"),
    }
    return RAW_FLOW, nodes, {"act": route_episode_end}


def wire_no_precedents(kit: AdaMEMNodeFactory) -> ModeWiring:
    """No trajectories: a strategy from the state alone."""
    nodes = kit.common_nodes("strategy") | {
        "synthesize": kit.synthesize_node("ungrounded"),
        "propose": kit.parts.acting_policy(StrategyPrompt(**kit.prompt_arguments()), "adamem/act"),
    }
    return UNGROUNDED_FLOW, nodes, {"act": route_episode_end}


MODES: Mapping[str, Callable[[AdaMEMNodeFactory], ModeWiring]] = {
    "high": wire_high,
    "low": wire_low,
    "max": wire_every_step,
    "raw": wire_raw,
    "no-precedents": wire_no_precedents,
}
