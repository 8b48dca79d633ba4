"""JitRL: just-in-time reinforcement learning (arXiv:2601.18510). The model is frozen; a memory of returns steers its logits.

The agent plays a task again and again. Before every action it recalls what similar states earned, works out how much better
or worse than usual each candidate action turned out (the advantage), and adds that to the model's logits. After every episode
each step is credited with its discounted return and remembered. No gradients: it learns by what it can look up. In short:

    M <- M + (s_t, a_t, G_t) after the episode;  Q(s, a): mean G of a in states like s;  z' = z + beta (Q - mean Q) / max |Q - mean Q|

The rest guards against few visits. The default estimator is `guarded`. M: the remembered steps of this task (with `cross_task`, of
all tasks of the world); a neighbour i: an action in one remembered state, with its n_i visits, their mean return G_i, and the
state's similarity w_i; a: a candidate; G_avg and S^2: mean and variance of all returns in M.

    recall    N(s): the neighbours in the k states of M most similar to s: Jaccard over the words,
              pairs and triples of Environment.abstract(observation), at least min_similarity        Eq. 24
              m(a): how often this episode took a in this very state since its last progress
    propose   candidates with logits z(s, a) in nats, from the policy                                Sec. 4
    augment   + admissible actions that only the memory knows, at the lowest logit                   Eq. 23'
    advise    n(a)    = sum of w_i n_i over the neighbours with action a
              U(s)    = min(G_avg, sum of w_i n_i G_i / sum of w_i n_i over N(s))                    Eq. 4'
              Q(s, a) = (sum of w_i n_i G_i + kappa U(s)) / (n(a) + kappa)                           Eq. 5'
              A(s, a) = Q(s, a) - mean of Q(s, .) over the candidates                                Eq. 7'
              sigma^2 = (sum of squared deviations within the neighbours + S^2) / (sum of (n_i - 1) + 1):
                  how far a single return strays from its neighbour's mean; S^2 counts as one observation
              A~(s, a) = A(s, a) / (max |A| + sigma / sqrt(n(a*) + kappa)),  a* = argmax |A|         Eq. 25'
                         (the fraction is 0 where all A are 0)
                         + bonus / sqrt(1 + n(a)); both no less than bonus where n(a), Q > 0, A >= 0  Eq. 6'
                         - rho (m(a) + share of the visits to a that ended an episode with nothing earned)  Eq. 26'
              with N(s) empty: A~(s, a) = -rho m(a)
    modulate  z'(s, a) = z(s, a) + beta A~(s, a), from at least z = log min_prior where n(a) > 0 and
              A(s, a) > 0, and for all actions while S^2 = 0                                         Eq. 10'
    choose    draw from softmax(z' / temperature)
    judge     r_t of every step, once the episode is over
    remember  G_t = r_t + gamma G_{t+1}; G_t = r_t if the judge's r_t counts what followed           Eq. 3
              M <- M + (s_t, a_t, G_t): one more visit of its neighbour, whose mean moves

A prime at a number marks our replacement of that equation of the paper, Eq. 26' is new; graphs/papers/README.md says why each. kappa is
`shrinkage_visits`, bonus `exploration_bonus`, rho `repeat_penalty`: chosen on other tasks than those that are reported on
(graphs/experiments/benchmarks/values.toml). `JitRL.paper()` is the paper's whole method, over single visits: V is the mean return of N(s)
(Eq. 4), Q that of the action (Eq. 5), of an untried action V + alpha / |N(s)| with probability lambda, else 0 (Eq. 6), and A~ = A / max |A|
(Eq. 25). The arithmetic stands in nodes/act/decide.py and nodes/act/advantage.py.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from ..memory.errors import UserError
from ..memory.returns.experiences import Credit, Experiences, control_credit, returns
from ..memory.search.sections import SectionSimilarity
from ..memory.search.similarity import Similarity, bag, ngrams, reference_words, words
from ..memory.storage.journal import Journal
from ..memory.storage.trajectory_store import TrajectoryStore
from ..nodes.act.choose import Choose
from ..nodes.act.decide import Augment, GuardedAdvice, Modulate, admit_remembered
from ..nodes.act.episode import Act, Begin, Environment
from ..nodes.act.policies import OptionsView, PromptView
from ..nodes.arguments import Amount, ArgumentCheck, Count, Range, Share
from ..nodes.retrieve.context import ContextPart, WorldWithContext
from ..nodes.retrieve.recall import Recall, Remember
from ..nodes.state import AdviceChannels, AttemptState, LogitUpdateChannels, RecallChannels
from .presets import jitrl as presets
from .wiring.episode import episode_graph
from .wiring.flow import Graph, Node
from .wiring.inputs import NOT_GIVEN, SHARED, MethodInputs, check_task_scope, given_settings
from .wiring.state_keys import WRITTEN_KEYS, check_needs, history_similarity, make_judge, make_trace_node

__all__ = ["FLOW", "VARIANT_NODES", "AdvantageSettings", "JitRL", "build", "open_memory"]

FLOW = """
flowchart LR
  START --> begin --> recall --> propose --> augment --> advise --> modulate --> choose --> act
  act -->|next step| recall
  act -->|over| judge --> remember --> END
"""

FLOW_WITH_HISTORY = FLOW.replace("begin --> recall", "begin --> trace --> recall").replace(
    "|next step| recall", "|next step| trace"
)
"""The drawing where the state key says how the state was reached."""

DECISION_CHANNELS = ("prior", "candidates", "estimates", "hits")
"""The channels of one decision that the journal keeps with the step."""

EMBEDDED_KEYS = ("hierarchy", "summary", "embedding")
"""The state keys that an embedder may compare."""
_GUARDS = ("shrinkage_visits", "exploration_bonus", "repeat_penalty", "min_prior")
UNUSED_SETTINGS: Mapping[str, Sequence[str]] = {
    "guarded": ("unseen_bonus", "unseen_bonus_probability", "logit_scale"),
    "paper": _GUARDS,
    "reference": ("beta", *_GUARDS, "unseen_bonus_probability", "logit_scale"),
}
"""Estimator -> the settings that have no effect with it."""


class JitRLState(AttemptState, RecallChannels, AdviceChannels, LogitUpdateChannels):
    """The channels of a JitRL episode."""


@dataclass(frozen=True)
class AdvantageSettings(ArgumentCheck):
    """The hyper-parameters from memory to advantages, which JitRL and Prompt Update share."""

    # Which formulas
    advantage_estimator: Literal["guarded", "paper", "reference"] = "guarded"
    """The formulas from returns to advantages: `guarded` (ours), `paper` (Eq. 4 to 7 and 25 to the letter), `reference` (the
    authors' code, with its defects). Nodes and values of the latter two are in graphs/presets/jitrl.py."""

    # What a step is worth, and in whose words
    evaluator: Literal["environment", "contribution", "hindsight"] = "environment"
    """The rewards of the steps: `environment`, the world's (or the run's `--judge`); `contribution`, the model's, for each step's own part,
    as in the paper; `hindsight`, the model's for all that followed (`--judge model`), as in its code, which are not discounted again."""
    wording: Literal["ours", "paper", "paper-web"] = "ours"
    """The prompts of a model that writes, for options and summaries: ours, the paper's for games, or its for web pages."""
    gamma: Share = 0.8
    """gamma, Eq. 3: discount per step. Paper: 0.5 (Jericho), 0.1 (WebArena)."""

    # Memory: what is recalled
    k: Count = field(default=10, metadata=SHARED)
    """k, Eq. 24: the largest number of neighbours. `guarded` counts distinct states, the others single visits. Paper: 10."""
    min_similarity: Share = 0.95
    """The least Jaccard similarity of a neighbour, in [0, 1]. Paper: 0.95 (Jericho), 0.8 (WebArena)."""
    threshold_decay: Share = 0.0
    """Fall of min_similarity over the first 20 steps of an episode. Paper: none; its code: 0.1."""
    state_key: Literal["room", "hierarchy", "summary", "embedding", "page", "screenshot"] = "room"
    """The state that is compared. `room`: the world's state alone. `hierarchy`: also the milestones and the path that led there
    (nodes/retrieve/context.py). `summary`: both as the model writes them, a call more at every step. `embedding`: as `hierarchy`, by
    the cosine of sentence embeddings. The history weighs .3 (`paper`: .25). On web pages `page` and `screenshot`: the world's state, but of
    what was done on the page only what still shows there, as the model reads in its text or sees (nodes/retrieve/page_context.py)."""
    embedder: str = ""
    """A sentence-transformers model by folder or name, or `openai:NAME`. With `hierarchy` and `summary` Eq. 24 then chooses among the 100
    keys that are nearest by embeddings, as in the paper; without one it reads all keys."""
    cross_task: bool = field(default=False, metadata=SHARED)
    """True if experience from other tasks of the same environment is recalled too."""
    only_other_tasks: bool = field(default=False, metadata=SHARED)
    """True if, with `cross_task`, experience from the task itself is not recalled: a cold start, as in the paper's Table 5."""

    # The choice of an action
    temperature: Amount = field(default=1.0, metadata=SHARED)
    """The temperature of the softmax that the action is drawn from; 0 takes the best. Paper, as we read it: 1; reference code: 0."""

    # Untried actions
    shrinkage_visits: Annotated[float, Range(1e-9)] = 0.5
    """kappa, Eq. 5': pseudo-visits by which a mean return is shrunk towards U(s) (`guarded` only)."""
    exploration_bonus: Amount = 0.25
    """bonus, Eq. 6': added to every A~ as bonus / sqrt(1 + n(a)); 1 is the shift of a largest advantage without doubt (`guarded`
    only)."""
    repeat_penalty: Amount = 0.5
    """rho, Eq. 26': taken from A~ for each visit that led nowhere, in the same unit (`guarded` only)."""
    unseen_bonus: Annotated[float, Range(-1e9, 1e9)] = 5.0
    """alpha, Eq. 6: an untried action gets alpha / |N(s)| on top of V, in reward units times visits (`paper`: 5; `reference`:
    1). It is in units of returns: with rewards of at most 1, .1 to .5 does better than the paper's 5."""
    unseen_bonus_probability: Share = 0.65
    """lambda, Eq. 6: probability that an untried action gets the bonus (`paper` only: Jericho 0.65, WebArena 0.05)."""


@dataclass(frozen=True)
class JitRL(AdvantageSettings):
    """Hyper-parameters. The defaults are what we found best; `paper` and `reference` are the published ones."""

    memory_control: Literal["none", "cut", "shuffled", "zero"] = "none"
    """A negative control, which shows that what is learned comes from memory: nothing is remembered (`cut`), the returns of an
    episode are given to its steps in another order (`shuffled`), or every reward counts as 0 (`zero`)."""
    beta: Amount = 10.0
    """beta, Eq. 10: nats per unit of A~. In `guarded` the largest advantage reaches A~ = 1 as its visits confirm it. The paper gives
    none: 1 in its preset is our reading. `reference` has a weight of its own, which grows from 1 to 1.5."""
    min_prior: Share = 0.01
    """The least prior probability of an action that memory found better: how far the model may rule it out (`guarded`
    only)."""
    candidates: Annotated[int, Range(0)] = 0
    """k_c, Sec. 4: the most candidates of the model, whatever its policy: its best ones. 0: as many as the policy proposes (three where
    confidences are stated, else all admissible actions). Paper: 3."""
    logit_scale: Literal["nats", "confidence"] = "nats"
    """The unit of z (`paper` only): log-probabilities, or as in the paper's Tables 7 and 13 confidences in [0, 1]. An action that only
    memory knows has z = 0, which is the highest log-probability and the lowest confidence."""

    def __post_init__(self) -> None:
        check_task_scope(self, "jitrl")
        if (self.embedder and self.state_key not in EMBEDDED_KEYS) or (self.state_key == "embedding" and not self.embedder):
            raise UserError(
                "jitrl: state_key='embedding' goes with an embedder, and 'hierarchy' and 'summary' may have one; got "
                f"state_key={self.state_key!r} and embedder={self.embedder!r}"
            )
        for name in UNUSED_SETTINGS[self.advantage_estimator]:
            usual = type(self).__dataclass_fields__[name].default
            if getattr(self, name) != usual:
                raise UserError(
                    f"jitrl: {name} has no effect with advantage_estimator='{self.advantage_estimator}'; leave it at {usual}"
                )

    def memory(
        self, records: TrajectoryStore | None = None, *, credits_future: bool = False, similarity: Similarity | None = None
    ) -> Experiences:
        """A memory that discounts returns and compares states as these settings say.

        Args:
            records: the store that keeps it for good; None keeps it in this process.
            similarity: another comparison of states than the estimator's own, such as the environment's (`open_memory`). Keys with
                a history have a comparison of their own.
            credits_future: True if the run's judge rewards a step for what followed from it (nodes/evaluate/judge.py), as this method's
                does with evaluator="hindsight". Then the reward is the return: Eq. 3 would count the same steps again.
        """
        credit: Credit = returns
        tokens: dict[str, Any] = {}
        if self.state_key in ("hierarchy", "summary", "embedding"):
            similarity = history_similarity(self.state_key, self.embedder, self.advantage_estimator)
        elif isinstance(similarity, SectionSimilarity) and self.advantage_estimator in ("paper", "reference"):
            similarity = similarity.by_single_tokens()  # on the web both compare what was done by single words
        if credits_future or self.evaluator == "hindsight" or self.advantage_estimator == "reference":
            credit = _rewards_as_returns  # `reference` stores returns
        if self.advantage_estimator == "paper":  # Eq. 24 is about sets of tokens
            tokens = {"tokens": words}
        elif self.advantage_estimator == "reference":  # state similarity over multisets of 4-grams
            tokens = {"tokens": _reference_tokens}
        credit = control_credit(credit, self.memory_control)
        return Experiences(records, gamma=self.gamma, similarity=similarity, credit=credit, **tokens)

    preset_temperatures: ClassVar[Mapping[str, float]] = {"paper": 0.8, "paper-web": 0.8, "reference": 0.8}
    """The temperature at which the paper samples its model."""

    @classmethod
    def paper(cls, benchmark: Literal["jericho", "webarena"] = "jericho") -> Self:
        """The paper's method with its table's values. It needs a model that writes, which judges and says what a state is.

        The model is asked for three options, an action that only the memory knows is added, and the world's list of actions limits both.
        """
        return cls(**presets.PAPER[benchmark])

    @classmethod
    def paper_equations(cls) -> Self:
        """The paper's equations alone, for any policy: the world's rewards, states by rule, all candidates, logits in nats, and a
        threshold that falls as in the authors' code."""
        return cls(**presets.EQUATIONS)

    @classmethod
    def paper_web(cls) -> Self:
        """The paper's method for the web, where all tasks of a site share a memory. The environment says how states are compared
        (tools/environments/browser.py): pages of the same kind whose task resembles, then .3 task + .7 what was done there. It needs a
        model that sees; `jitrl:paper-web?state_key=page` shows it the text of pages."""
        return replace(cls.paper("webarena"), cross_task=True)

    @classmethod
    def reference(cls) -> Self:
        """The authors' code for Jericho: argmax, probabilities as logits, a growing weight, alpha 1, k not a cap, a judge in hindsight
        whose scores are merged with the world's rewards. Unlike that code it takes only admissible actions where the environment lists
        them, and where nothing is recalled the likeliest option, not the one that the model calls best."""
        return cls(**presets.REFERENCE)

    @property
    def needs_writer(self) -> bool:
        """True if a model has to write beside the actions: rewards, or summaries."""
        return self.evaluator != "environment" or self.state_key in WRITTEN_KEYS

    def options_view(self, view: PromptView) -> OptionsView:
        """The view of the policy's prompt, with how options are asked for."""
        prompt = {"paper": "paper/jitrl/options", "paper-web": "paper/jitrl_web/options"}.get(self.wording, "act/options")
        return OptionsView(view, prompt, self.candidates or 3, self.logit_scale == "nats")

    @property
    def recall_arguments(self) -> dict[str, Any]:
        """The arguments of the node `recall`, whichever estimator it serves."""
        same = ("k", "threshold_decay", "cross_task", "only_other_tasks")
        return {"threshold": self.min_similarity, **{name: getattr(self, name) for name in same}}


def _rewards_as_returns(rewards: Sequence[float | None], gamma: float) -> list[float | None]:
    return returns(rewards, gamma=0)


def _reference_tokens(state: str) -> list[Hashable]:
    return [*bag(ngrams(reference_words(state), 4))]


def open_memory(settings: JitRL, inputs: MethodInputs) -> Experiences:
    """The memory of a run: in its store, with the returns that its judge means, states compared as its environment says."""
    return settings.memory(
        inputs.records,
        credits_future=getattr(inputs.judge, "credits_future", False),
        similarity=getattr(inputs.environment, "state_similarity", None),
    )


def build(
    inputs: MethodInputs = NOT_GIVEN, settings: JitRL | None = None, *, experiences: Experiences | None = None, **compile: Any
) -> Graph:
    """The graph of one episode: from `EpisodeInput` (task, run, episode) to `EpisodeResult` (score, steps, usage).

    Args:
        inputs: environment, policy, journal, judge, and the store that keeps what is remembered.
        experiences: a memory of your own, such as one that several graphs share; `open_memory(settings, inputs)` if not given.
        compile: `checkpointer`, `interrupt_before` and the rest, as for `StateGraph.compile`; and `flow` and `nodes`, another drawing
            of this graph and further nodes for it.

    Raises:
        UserError: the memory discounts returns by another gamma than the settings say.
    """
    settings = given_settings(inputs, settings, JitRL)
    memory = open_memory(settings, inputs) if experiences is None else experiences
    if memory.gamma != settings.gamma:
        raise UserError(
            f"jitrl: the settings say gamma={settings.gamma}, the memory has gamma={memory.gamma}; "
            "make it with open_memory(settings, inputs)"
        )
    check_needs(settings, inputs)
    flow, view, keys = FLOW, inputs.recent_steps_view(), dict[str, Node]()
    if settings.state_key != "room":
        flow, keys = FLOW_WITH_HISTORY, {"trace": make_trace_node(settings, inputs)}
        inputs = replace(inputs, environment=WorldWithContext(inputs.environment))
        if inputs.chats:
            view = inputs.episode_prompt(ContextPart(), max_steps=inputs.prompting.history_steps)
    nodes: dict[str, Node] = {
        **keys,
        "begin": Begin(inputs.environment),
        "propose": inputs.make_policy(settings.options_view(view)),
        "act": Act(
            inputs.environment,
            inputs.journal,
            journal_channels=DECISION_CHANNELS,
            clear_lists=("neighbours", *DECISION_CHANNELS),
        ),
        "judge": make_judge(settings, inputs),
        "remember": Remember(memory, inputs.environment, inputs.journal),
        **VARIANT_NODES[settings.advantage_estimator](settings, memory, inputs.environment, inputs.journal),
    }
    return episode_graph("jitrl", flow, nodes, state=JitRLState, **compile)


def _guarded_nodes(settings: JitRL, memory: Experiences, environment: Environment, journal: Journal) -> Mapping[str, Node]:
    return {
        "recall": Recall(memory, environment, **settings.recall_arguments, journal=journal),
        "augment": Augment(count=settings.candidates, admit=admit_remembered(environment)),
        "advise": GuardedAdvice(settings.shrinkage_visits, settings.exploration_bonus, settings.repeat_penalty),
        "modulate": Modulate(settings.beta, settings.min_prior, lift_only_proven=True),
        "choose": Choose(settings.temperature),
    }


VARIANT_NODES: Mapping[str, Callable[[JitRL, Experiences, Environment, Journal], Mapping[str, Node]]] = {
    "guarded": _guarded_nodes,
    "paper": presets.paper_nodes,
    "reference": presets.reference_nodes,
}
"""Estimator -> its nodes; the graph is the same for all."""
