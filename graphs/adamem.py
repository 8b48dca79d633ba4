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
| `ungrounded` | never: a strategy from the state alone (ablation) | 2 |

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

from ..memory.records import UserError
from ..memory.search.vectors import SentenceEncoder, Vectors
from ..memory.trajectories import Key, Kind, Trajectories, structured, whole
from ..nodes.act.decide import Choose
from ..nodes.act.episode import Act, Begin, progress
from ..nodes.prompt import Prompt
from ..nodes.retrieve.attempts import Frozen, Push, Running
from ..nodes.retrieve.recollect import Excerpts, Experienced, Recollect
from ..nodes.retrieve.triggers import Decide, Trigger, decision
from ..nodes.state import Attempt, Choice, Considered, Episode, Guided, Judged, Planned, Played, Recollected
from ..nodes.synthesize.strategy import Advised, RecallStrategy, Writer, found, found_low, guidance, synthesize
from .wiring.flow import Node, Router, compiled, wire
from .wiring.parts import Parts, chosen, ended, opened, written

HIGH = """
flowchart LR
  START --> begin --> consider --> draft --> decide
  decide -->|go on| act
  decide -->|ask memory| recollect
  recollect -->|precedents| synthesize --> propose --> choose --> act
  recollect -->|nothing alike| act
  act -->|next step| consider
  act -->|over| judge --> remember --> END
"""

LOW = """
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

MAX = """
flowchart LR
  START --> begin --> recollect
  recollect -->|precedents| synthesize --> propose --> choose --> act
  recollect -->|nothing alike| propose
  act -->|next step| recollect
  act -->|over| judge --> remember --> END
"""

RAW = """
flowchart LR
  START --> begin --> recollect --> propose --> choose --> act
  act -->|next step| recollect
  act -->|over| judge --> remember --> END
"""

UNGROUNDED = """
flowchart LR
  START --> begin --> synthesize --> propose --> choose --> act
  act -->|next step| synthesize
  act -->|over| judge --> remember --> END
"""


class State(Episode, Recollected, Guided, Considered, Planned, Choice, Judged):
    """The channels of an AdaMEM episode."""


@dataclass(frozen=True)
class AdaMEM:
    """Hyper-parameters. `paper_low` and `paper_high` are the published settings."""

    mode: Literal["high", "low", "max", "raw", "ungrounded"] = "low"
    """Which graph: when memory is asked, and what is made of it (see above)."""
    author: Literal["model", "rule"] = "model"
    """Who writes strategies: the model, or `RecallStrategy`, a rule (an ablation, and for work without a language model)."""
    k: int = 4
    """Precedents retrieved. Paper: 1; more helped up to 16."""
    kind: Kind = "all"
    """Which of them: from trajectories that ended in `success`, in `failure`, `all`, or k of each, `mixed`. Paper: success."""
    success: float | None = None
    """The return from which a trajectory counts as a success; the environment's own threshold if not given."""
    floor: float = 0.3
    """Least similarity of a precedent. Paper: none."""
    per_trajectory: int = 1
    """Precedents from one trajectory at most; 0: any number, as in the paper."""
    diversity: float = 0.0
    """Weight of maximal marginal relevance, in [0, 1]. Paper: 0."""
    distinct: bool = True
    """Of steps with the same key and action only the newest is a precedent. Paper: no."""
    key: Literal["structured", "whole"] = "structured"
    """phi(s_t) is of the goal and the present state, or of the whole prompt with its history, as in the paper."""
    embedder: str = ""
    """Dense keys: a sentence-transformers model by folder or name. Empty: exact Jaccard over words. Paper: Qwen3-Embedding-4B."""
    vectors: str = ""
    """The file that keeps the vectors of dense keys; beside the bank if not given, and in the process without a bank."""
    triggers: tuple[Trigger, ...] = ("vote",)
    """What asks for memory in `high`, for another strategy in `low` (nodes/retrieve/triggers.py). Paper: vote."""
    confidence: float = 0.6
    """The vote of a model that scores actions: its best action is less probable than this. Ours."""
    stall: int = 4
    """Steps without progress of the trigger `stalled`."""
    drift: float = 0.3
    """Least similarity to the state that the strategy was written for, of the trigger `drift`."""
    wait: int = 0
    """Steps before the first retrieval of an episode: the start often says little. Paper: 0."""
    rest: int = 8
    """Steps shown of what followed a precedent. Paper: all."""
    recent: int | None = None
    """Earlier steps of the episode in prompts; None: as many as fit. Paper: all."""
    bank: str = ""
    """A JSONL file of trajectories to start from (`learngraph adamem build`, `learngraph memory export`); it stays as it is."""
    online: bool = True
    """Finished episodes join the memory. Paper: no."""
    limit: int | None = None
    """Trajectories that the memory keeps beside the bank's; the least useful go first. None: all."""
    cross_task: bool = False
    """Runs of all seeds share one memory, and are played in turn."""
    temperature: float = 1.0
    """Of the softmax over scored actions; 0 takes the best. A model that writes has its own (paper: 0.7)."""

    def __post_init__(self) -> None:
        chosen(self, "adamem")
        for name, least in (("k", 1), ("stall", 1), ("per_trajectory", 0), ("wait", 0), ("rest", 0), ("temperature", 0)):
            if getattr(self, name) < least:
                raise UserError(f"adamem: {name} is at least {least}, got {getattr(self, name)}")
        if self.mode == "high" and "drift" in self.triggers:
            raise UserError(
                "adamem: in mode high no strategy is kept that the state could drift from; leave out the trigger drift"
            )
        if self.mode == "ungrounded" and self.author == "rule":
            raise UserError("adamem: the rule writes from precedents, and mode ungrounded has none; author=model would do")
        for name in ("confidence", "drift", "diversity"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"adamem: {name} is from 0 to 1, got {getattr(self, name)}")

    @classmethod
    def paper_low(cls) -> AdaMEM:
        """The published low mode: one success by the whole prompt, no floor, a bank that stays as it is."""
        return cls(k=1, kind="success", floor=0.0, per_trajectory=0, distinct=False, key="whole", online=False)

    @classmethod
    def paper_high(cls) -> AdaMEM:
        """The published high mode, likewise."""
        return cls(mode="high", k=1, kind="success", floor=0.0, per_trajectory=0, distinct=False, key="whole", online=False)

    ablations: ClassVar[tuple[str, ...]] = ("high", "low", "max", "raw", "ungrounded", "rule")
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

    def ungrounded(self) -> AdaMEM:
        """The paper's ablation without trajectories: a strategy from the state alone, by the model."""
        return replace(self, mode="ungrounded", author="model")

    def rule(self) -> AdaMEM:
        """Strategies written by `RecallStrategy`, a rule, in place of the model."""
        return replace(self, author="rule")

    @property
    def remark(self) -> str:
        """What a table has to say of these settings: where strategies come from a rule, that they do."""
        return "rule-written" if self.author == "rule" and self.mode != "raw" else ""

    def memory(self, parts: Parts) -> Trajectories:
        """The long-term memory: the bank, and what the run itself adds.

        Raises:
            UserError: successes or failures are wanted, and nobody says from which return on an attempt is one; the bank holds
                nothing of this environment.
        """
        world = parts.environment
        least = parts.least(self.success)
        if least is None and self.kind != "all" and world is not None:  # a drawing has no environment
            raise UserError(f"adamem: kind={self.kind} needs to know which return is a success; give the least one: --success")
        theirs = parts.theirs(self.success)
        if self.bank and theirs is None and self.kind != "all":
            raise UserError(
                f"adamem: which return is a success in {self.bank}? {world.name} does not say it, and --success is on the judge's "
                "scale; --kind all goes without"
            )
        bank = parts.banked(self.bank, "adamem")
        vectors = self.vectors or (self.bank and f"{self.bank}.vectors")
        if not self.online and bank:  # nothing is added: the runs of a process share one
            return _frozen(Path(self.bank), written(self.bank), self.key, theirs, self.embedder, vectors)
        return Trajectories(
            parts.shelf,
            bank=bank,
            key=_KEYS[self.key],
            similarity=_vectors(self.embedder, vectors) if self.embedder else None,
            success=parts.outcome(self.success, bank),
            limit=self.limit,
            run=parts.run,
        )


_KEYS: Mapping[str, Key] = {"structured": structured, "whole": whole}


@lru_cache(maxsize=4)
def _frozen(file: Path, stamp: int, key: str, least: float | None, embedder: str, vectors: str) -> Trajectories:
    """The memory that is a bank and nothing else."""
    similarity = _vectors(embedder, vectors) if embedder else None
    return Trajectories(bank=opened(file, stamp), key=_KEYS[key], similarity=similarity, success=ended(least))


@lru_cache(maxsize=4)
def _vectors(embedder: str, path: str) -> Vectors:
    """They share an encoder, too."""
    return Vectors(SentenceEncoder(embedder), path or None)


def build(
    parts: Parts, settings: AdaMEM | None = None, *, memory: Trajectories | None = None, chain: bool = False, **compile: Any
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one episode in the settings' mode; arguments as in `graphs.icrl.build`.

    `memory`: a long-term memory of your own, with another key, any LangChain `Embeddings` (`memory.vectors.Vectors`), or one
    that several graphs share; what the settings say of the memory is then left aside.
    """
    settings = settings or AdaMEM()
    kit = Kit(parts, settings, settings.memory(parts) if memory is None else memory)
    flow, nodes, routers = MODES[settings.mode](kit)
    builder = StateGraph(State, input_schema=Attempt, output_schema=Played)
    return compiled(wire(builder, flow, nodes, routers, chain=chain), **{"name": f"adamem-{settings.mode}", **compile})


Wiring = tuple[str, dict[str, Node], Mapping[str, Router]]
"""A drawing, its nodes, its routers."""


@dataclass(frozen=True)
class Kit:
    """The nodes that the modes share, made where they are used."""

    parts: Parts
    settings: AdaMEM
    memory: Trajectories

    def seen(self) -> dict[str, Any]:
        """What prompts show of the running episode."""
        return {**self.parts.running(), "recent": self.settings.recent}

    def excerpts(self) -> Excerpts:
        """How precedents stand in prompts."""
        return Excerpts(self.memory, self.parts.count, self.parts.room // 2, self.settings.rest)

    def frame(self, *forgets: str) -> dict[str, Node]:
        """What every mode has. `forgets`: channels that are set to None when the action is taken."""
        parts, settings = self.parts, self.settings
        fresh: dict[str, Any] = {"used": [], "precedents": [], "tentative": None, "vote": False, "reasons": []}
        return {
            "begin": Begin(parts.environment, {**fresh, "strategy": None, "written": -1, "synthesis": None}),
            "choose": Choose(settings.temperature),
            "act": Act(
                parts.environment,
                parts.journal,
                detail=("candidates", "tentative", "reasons", "precedents", "strategy", "synthesis"),
                spent=("candidates", "precedents", "reasons"),
                dropped=("synthesis", "tentative", *forgets),
            ),
            "judge": parts.judged(),
            "remember": Push(self.memory if settings.online else Frozen(), parts.environment, parts.journal),
        }

    def recollect(self) -> Recollect:
        """E_ret."""
        settings = self.settings
        return Recollect(
            self.memory,
            self.parts.environment,
            self.parts.journal,
            settings.k,
            settings.kind,
            settings.floor,
            settings.per_trajectory,
            settings.diversity,
            settings.wait,
            settings.distinct,
            self.excerpts(),
        )

    def decide(self) -> Decide:
        """Vote and triggers."""
        settings, parts = self.settings, self.parts
        return Decide(
            self.memory,
            parts.environment,
            parts.journal,
            settings.triggers,
            settings.confidence,
            settings.stall,
            settings.drift,
        )

    def synthesize(self, purpose: Literal["strategy", "ungrounded"] = "strategy") -> Node:
        """Who writes strategies. A model in this process goes on with a prompt that ends with `Strategy:`; others say so."""
        parts, settings, running = self.parts, self.settings, self.parts.running()
        writer = Writer(
            self.memory,
            parts.environment,
            parts.journal,
            self.excerpts(),
            running["layout"],
            parts.count,
            parts.room,
            Prompt.load(f"adamem/{purpose}" if parts.write else "adamem/line", parts.prompts),
            marked=parts.write is not None,
            recent=settings.recent,
        )
        if settings.author == "rule":
            return RecallStrategy(writer)
        return synthesize(parts.asked("adamem"), writer, parts.prompts)


def high(kit: Kit) -> Wiring:
    """Draft; ask memory if unsure; the strategy serves one action."""
    nodes = kit.frame("strategy") | {
        "consider": kit.parts.acting(Running(**kit.seen()), "adamem/consider"),
        "draft": Choose(kit.settings.temperature),
        "decide": kit.decide(),
        "recollect": kit.recollect(),
        "synthesize": kit.synthesize(),
        "propose": kit.parts.acting(Advised(**kit.seen()), "adamem/act"),
    }
    return HIGH, nodes, {"decide": decision, "recollect": found, "act": progress}


def low(kit: Kit) -> Wiring:
    """Act on a strategy as long as it serves."""
    nodes = kit.frame() | {
        "consider": kit.parts.acting(Advised(**kit.seen()), "adamem/reconsider"),
        "draft": Choose(kit.settings.temperature),
        "decide": kit.decide(),
        "recollect": kit.recollect(),
        "synthesize": kit.synthesize(),
        "propose": kit.parts.acting(Advised(**kit.seen()), "adamem/act"),
    }
    return LOW, nodes, {"decide": decision, "recollect": found_low, "act": guidance}


def every_step(kit: Kit) -> Wiring:
    """A strategy at every step."""
    nodes = kit.frame("strategy") | {
        "recollect": kit.recollect(),
        "synthesize": kit.synthesize(),
        "propose": kit.parts.acting(Advised(**kit.seen()), "adamem/act"),
    }
    return MAX, nodes, {"recollect": found, "act": progress}


def raw(kit: Kit) -> Wiring:
    """No strategy: the experiences themselves at every step."""
    experienced = Experienced(excerpts=kit.excerpts(), **kit.seen())
    nodes = kit.frame() | {"recollect": kit.recollect(), "propose": kit.parts.acting(experienced, "adamem/raw")}
    return RAW, nodes, {"act": progress}


def ungrounded(kit: Kit) -> Wiring:
    """No trajectories: a strategy from the state alone."""
    nodes = kit.frame("strategy") | {
        "synthesize": kit.synthesize("ungrounded"),
        "propose": kit.parts.acting(Advised(**kit.seen()), "adamem/act"),
    }
    return UNGROUNDED, nodes, {"act": progress}


MODES: Mapping[str, Callable[[Kit], Wiring]] = {
    "high": high,
    "low": low,
    "max": every_step,
    "raw": raw,
    "ungrounded": ungrounded,
}
