"""JitRL: just-in-time reinforcement learning (arXiv:2601.18510). The model is frozen; a memory of returns steers its logits.

The agent plays a task again and again. Before every action it recalls what similar states earned, works out how much better
or worse than usual each candidate action turned out (the advantage), and adds that to the model's logits. After every episode
each step is credited with its discounted return and remembered. No gradients: it learns by what it can look up.

    recall    N(s), the k most similar remembered states                         Eq. 24
    propose   candidates with logits z(s, a) from the policy                     Sec. 4
    augment   + actions that only the memory knows                               Eq. 23
    advise    V(s), Q(s, a), A(s, a), scaled                                     Eq. 4-7, 25
    modulate  z' = z + beta A: the optimum of a KL-regularised objective         Eq. 8-10
    choose    draw from softmax(z')
    judge     r_t of every step, once the episode is over
    remember  G_t = r_t + gamma G_{t+1}                                          Eq. 3
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from ..memory.errors import UserError
from ..memory.experiences import Experiences, TrajectoryStore, reference_returns
from ..memory.search.similarity import bag, ngrams, reference_words, words
from ..memory.storage.journal import Journal
from ..nodes.act.choose import Choose
from ..nodes.act.decide import Augment, Modulate, PaperAdvice, ReferenceAdvice, ReferenceModulate, ShrunkAdvice
from ..nodes.act.episode import Act, Begin, Environment, route_episode_end
from ..nodes.evaluate.judge import EnvironmentJudge
from ..nodes.retrieve.recall import Recall, RecallVisits, ReferenceRecall, Remember
from ..nodes.state import (
    AdviceChannels,
    ChoiceChannels,
    EpisodeChannels,
    EpisodeInput,
    EpisodeResult,
    LogitUpdateChannels,
    RecallChannels,
    RewardChannels,
)
from .wiring.flow import Node, compile_graph, wire

FLOW = """
flowchart LR
  START --> begin --> recall --> propose --> augment --> advise --> modulate --> choose --> act
  act -->|next step| recall
  act -->|over| judge --> remember --> END
"""


DECISION_CHANNELS = ("prior", "candidates", "estimates")
"""The channels of one decision, written into the journal with the step."""


class JitRLState(EpisodeChannels, RecallChannels, ChoiceChannels, AdviceChannels, LogitUpdateChannels, RewardChannels):
    """The channels of a JitRL episode."""


@dataclass(frozen=True)
class JitRL:
    """Hyper-parameters. The defaults are what we found best; `paper` and `reference` are the published ones."""

    advantage_estimator: Literal["shrunk", "paper", "reference"] = "shrunk"
    """How advantages are made of returns: `shrunk` (ours), `paper` (Eq. 4-7, 25 to the letter), `reference` (what the
    authors' code does, defects included)."""
    beta: float = 10.0
    """beta, Eq. 10: nats by which the largest advantage moves a logit. Paper: not given."""
    gamma: float = 0.8
    """gamma, Eq. 3: discount per step. Paper: 0.5 (Jericho), 0.1 (WebArena)."""
    k: int = 10
    """k: the largest number of neighbours. Ours counts distinct remembered states, the paper single visits. Paper: 10."""
    min_similarity: float = 0.95
    """The least Jaccard similarity of a neighbour, in [0, 1]. Paper: 0.95 (Jericho), 0.8 (WebArena)."""
    shrinkage_visits: float = 0.5
    """Pseudo-visits by which a mean return is shrunk towards the average (ours only)."""
    exploration_bonus: float = 0.5
    """The shift of an untried action, in units of the largest advantage, falling with the visits (ours only)."""
    min_prior: float = 0.01
    """The least prior probability of a candidate: how far the model may rule an action out (ours only)."""
    unseen_bonus: float = 5.0
    """alpha, Eq. 6: bonus of an unseen action, in reward units (paper: 5; reference code: 1)."""
    unseen_bonus_probability: float = 0.65
    """lambda, Eq. 6: probability that an unseen action gets the bonus (paper only; Jericho 0.65, WebArena 0.05)."""
    temperature: float = 1.0
    """Of the softmax that the action is drawn from; 0 takes the best. Paper: 1; reference code: 0."""
    cross_task: bool = False
    """Whether experience from other tasks of the same environment is recalled too."""

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise UserError(f"jitrl: {name} is a number from {low:g} to {high:g}, got {value}")
        for name in _UNUSED[self.advantage_estimator]:
            usual = type(self).__dataclass_fields__[name].default
            if getattr(self, name) != usual:
                raise UserError(
                    f"jitrl: {name} has no effect with advantage_estimator='{self.advantage_estimator}'; leave it at {usual}"
                )

    def memory(self, shelf: TrajectoryStore | None = None) -> Experiences:
        """A memory that credits and compares as these settings say; `shelf` keeps it for good."""
        match self.advantage_estimator:
            case "shrunk":
                return Experiences(shelf, gamma=self.gamma)
            case "paper":  # Eq. 24 is about sets of tokens
                return Experiences(shelf, gamma=self.gamma, tokens=words)
            case "reference":  # state similarity over multisets of 4-grams
                return Experiences(shelf, gamma=self.gamma, tokens=_reference_tokens, credit=reference_returns)

    @classmethod
    def paper(cls, benchmark: Literal["jericho", "webarena"] = "jericho") -> JitRL:
        """The paper's table. It gives no beta: 1 is what its formula says if the advantage is taken as it is."""
        jericho = benchmark == "jericho"
        return cls(
            advantage_estimator="paper",
            beta=1.0,
            gamma=0.5 if jericho else 0.1,
            min_similarity=0.95 if jericho else 0.8,
            unseen_bonus_probability=0.65 if jericho else 0.05,
        )

    @classmethod
    def reference(cls, benchmark: Literal["jericho", "webarena"] = "jericho") -> JitRL:
        """What the authors' code does: argmax, probabilities as logits, a growing weight, alpha 1, k not a cap.

        Only admissible actions, though, where the environment lists them.
        """
        jericho = benchmark == "jericho"
        return cls(
            advantage_estimator="reference",
            gamma=0.5 if jericho else 0.1,
            min_similarity=0.95 if jericho else 0.8,
            unseen_bonus=1.0,
            temperature=0.0,
        )


_RANGES = {
    "beta": (0, 1e6),
    "gamma": (0, 1),
    "k": (1, 1e9),
    "min_similarity": (0, 1),
    "shrinkage_visits": (1e-9, 1e9),
    "exploration_bonus": (0, 1e6),
    "min_prior": (0, 1),
    "unseen_bonus": (-1e9, 1e9),
    "unseen_bonus_probability": (0, 1),
    "temperature": (0, 1e6),
}
_UNUSED = {
    "shrunk": ("unseen_bonus", "unseen_bonus_probability"),
    "paper": ("shrinkage_visits", "exploration_bonus", "min_prior"),
    "reference": ("beta", "shrinkage_visits", "exploration_bonus", "min_prior", "unseen_bonus_probability"),
}
"""What has no effect with each way of valuing actions."""


def _reference_tokens(state: str) -> list[Hashable]:
    return [*bag(ngrams(reference_words(state), 4))]


def build(
    environment: Environment,
    policy: Node,
    experiences: Experiences,
    journal: Journal,
    settings: JitRL | None = None,
    judge: Node | None = None,
    *,
    chain: bool = False,
    **compile: Any,
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of one episode: from `Attempt` (task, run, episode) to `Played` (score, steps, usage).

    Args:
        environment: the world.
        policy: the node that proposes candidates (nodes/act/policies.py).
        experiences: the memory; it outlives the episode. `settings.memory(shelf)` makes one.
        journal: where steps are written.
        settings: hyper-parameters.
        judge: the node that rewards the steps; the environment's own rewards if not given.
        chain: run the steps between two choices as one super-step (graphs/wiring/flow.py).
        compile: `checkpointer`, `interrupt_before` and the rest, as for `StateGraph.compile`.

    Raises:
        UserError: the memory discounts returns by another gamma than the settings say.
    """
    settings = settings or JitRL()
    if experiences.gamma != settings.gamma:
        raise UserError(
            f"jitrl: the settings say gamma={settings.gamma}, the memory has gamma={experiences.gamma}; "
            "make it with settings.memory(shelf)"
        )
    nodes: dict[str, Node] = {
        "begin": Begin(environment),
        "propose": policy,
        "act": Act(environment, journal, DECISION_CHANNELS, clear_lists=("neighbours", *DECISION_CHANNELS)),
        "judge": judge or EnvironmentJudge(journal),
        "remember": Remember(experiences, environment, journal),
        **VARIANT_NODES[settings.advantage_estimator](settings, experiences, environment),
    }
    builder = StateGraph(JitRLState, input_schema=EpisodeInput, output_schema=EpisodeResult)
    return compile_graph(wire(builder, FLOW, nodes, {"act": route_episode_end}, chain=chain), **{"name": "jitrl", **compile})


def _shrunk_nodes(settings: JitRL, experiences: Experiences, environment: Environment) -> Mapping[str, Node]:
    return {
        "recall": Recall(experiences, environment, settings.k, settings.min_similarity, settings.cross_task),
        "augment": Augment(),
        "advise": ShrunkAdvice(settings.shrinkage_visits, settings.exploration_bonus),
        "modulate": Modulate(settings.beta, settings.min_prior),
        "choose": Choose(settings.temperature),
    }


def _paper_nodes(settings: JitRL, experiences: Experiences, environment: Environment) -> Mapping[str, Node]:
    return {
        "recall": RecallVisits(experiences, environment, settings.k, settings.min_similarity, settings.cross_task),
        "augment": Augment(logit="zero"),
        "advise": PaperAdvice(settings.unseen_bonus, settings.unseen_bonus_probability),
        "modulate": Modulate(settings.beta),
        "choose": Choose(settings.temperature),
    }


def _reference_nodes(settings: JitRL, experiences: Experiences, environment: Environment) -> Mapping[str, Node]:
    return {
        "recall": ReferenceRecall(experiences, environment, settings.k, settings.min_similarity, settings.cross_task),
        # The authors' code also tries what the world does not admit here; environments that list actions refuse that.
        "augment": Augment(logit="zero", positive_only=True),
        "advise": ReferenceAdvice(settings.unseen_bonus),
        "modulate": ReferenceModulate(),
        "choose": Choose(settings.temperature),
    }


VARIANT_NODES: Mapping[str, Callable[[JitRL, Experiences, Environment], Mapping[str, Node]]] = {
    "shrunk": _shrunk_nodes,
    "paper": _paper_nodes,
    "reference": _reference_nodes,
}
"""The nodes behind each way of turning returns into advantages; the graph is the same."""
