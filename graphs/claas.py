"""CLaaS: continual learning as a service (arXiv:2606.05559). A chat model that learns from feedback while it answers.

Every chat turn is kept with the tokens as sampled, their log-probabilities under the version that sampled them, and that version's
number P(i). Whoever talked to it may say what a reply was worth: a number, and what would have been right. A learner draws
minibatches of such exchanges from a replay buffer, again and again until they are too old, and moves a LoRA adapter by a gradient
step: towards what a teacher that was told the feedback would have said (SDPO), or towards what was rewarded (REINFORCE++, PPO).
What the paper does not have: weights log pi_old - log mu for what is stale, a gate before a new version answers anybody, a canary,
and a way back.

Serving, one chat turn:

    respond         the live version, or a canary, answers token by token                       y ~ pi_k(. | x)
    record          prompt, tokens, log mu(y), P(i) join the buffer, pending                    B <- B + (x, y)
    await_feedback  stop until somebody says what it was worth, days later if need be           r, text
    keep            ready to be learned from, or held out for the gate                          B <- B + r

Learning, one gradient step:

    sample    evict what is older than A_max steps, lease M exchanges, stratified               (x, y, r) ~ B
    correct   log pi_old(y) under the learner as it is: weights, ESS, what is too far gone      w = min(pi_old / mu, C)
    step      one update of the adapter, a new immutable version                                theta <- theta - eta grad L
    commit    the step is taken: each exchange used once more                                   k <- k + 1
    gate      candidate against live: held-out feedback, retention set, entropy, KL to the base
    load      the engine takes the candidate in beside the live version
    promote   requests go to it, or a share of them
    drop      it never answers; learning goes on from the live version
    skip      nothing to learn here: rewards all alike, or all too stale

Both graphs run under graphs/serving/service.py behind a chat API, and in any LangGraph app: the serving graph as a subgraph of an agent
with a checkpointer, resumed by `Command(resume={"reward": 1, "text": "shorter, please"})`; the learning graph on a timer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from ..memory.errors import UserError
from ..memory.records import Exchange
from ..nodes.learn.chat_turn import AwaitFeedback, Engine, KeepFeedback, RecordExchange, Respond, Route, route_to_base
from ..nodes.learn.gate import GateThresholds
from ..nodes.learn.gradient_step import (
    AdapterLearner,
    AdapterLookup,
    CommitStep,
    Correct,
    Drop,
    GateCandidate,
    Load,
    Promote,
    SampleMinibatch,
    Skip,
    TakeGradientStep,
    route_commit,
    route_correction,
    route_gate,
    route_sample,
    route_step,
)
from ..nodes.state import ChatInput, ChatState, GradientStepInput, GradientStepState
from .wiring.flow import Node, compile_graph, wire
from .wiring.parts import check_literals

if TYPE_CHECKING:
    from ..memory.claas.replay import Replay

Graph = CompiledStateGraph[Any, Any, Any, Any]
T = TypeVar("T")

SERVING_FLOW = """
flowchart LR
  START --> respond --> record --> await_feedback --> keep --> END
"""

LEARNING_FLOW = """
flowchart LR
  START --> sample
  sample -->|batch| correct
  sample -->|gate first| gate
  sample -->|too few| END
  correct -->|something left| step
  correct -->|nothing left| skip
  step -->|a version| commit
  step -->|nothing learned| skip --> END
  commit -->|gate now| gate
  commit -->|later| END
  gate -->|passed| load --> promote --> END
  gate -->|failed| drop --> END
"""


@dataclass(frozen=True)
class CLaaS:
    """Hyper-parameters. The paper's tables of learning rate, rank, batch and clip are not known to us: "not given". What is known is
    A_max, B_min and that the adapter is reloaded about every 8 steps; numbers of others are named with their source.
    """

    loss: Literal["sdpo", "reinforce", "ppo"] = "sdpo"
    """`sdpo`: towards a teacher that was told the feedback (arXiv:2601.20802); it learns from words, and bare rewards teach it nothing
    by themselves: --preset reinforce learns from these. `reinforce`: REINFORCE++ (arXiv:2501.03262). `ppo`: with a critic. Paper: all three; SDPO was best."""
    correction: Literal["none", "truncated", "decoupled", "rejection"] = "decoupled"
    """For stale exchanges: `none`; weights pi_old / mu cut at C; these and a clip around pi_old (AReaL, arXiv:2505.24298); these and
    what lies outside is dropped. Paper: none described."""
    batch: int = 8
    """M, exchanges behind a gradient step. Not given."""
    least: int = 8
    """B_min, ready exchanges before the first step; warm-up takes the place of a long wait. Paper: 32."""
    max_age: int = 100
    """A_max, in gradient steps. Paper: 25 for REINFORCE++ and PPO, 50 for SDPO, and collapse at 50 without a correction."""
    records: int = 10_000
    """B_max, exchanges of an adapter that are kept; the oldest go first. Not given."""
    reuse: int = 8
    """Times that an exchange is sampled. Paper: until it is too old."""
    positive: float | None = 0.5
    """Share of rewards above 0 in a sample, where the buffer has them; None: uniform. Paper: uniform."""
    max_kl: float | None = None
    """kappa: exchanges whose estimated KL(mu || pi) is above it leave the buffer, in nats per token; None: age alone decides."""
    held_out: float = 0.1
    """Share of exchanges that are never trained on: what the gate goes by. Paper: none."""
    rank: int = 16
    """r of LoRA; its scale is twice that. Not given; the public code: 32."""
    targets: str = "all-linear"
    """Which weights. Not given; the public code: all linear ones."""
    rate: float = 1e-4
    """eta, learning rate of AdamW. Not given; the public code: 3e-5."""
    warmup_steps: int = 10
    """Steps in which the rate grows to that. Not given."""
    decay: float = 0.0
    """Weight decay. Not given."""
    passes: int = 1
    """Updates from one minibatch; pi_old stays what it was before the first. Not given."""
    max_norm: float = 1.0
    """Longest gradient. Public code: 1."""
    alpha: float = 0.5
    """SDPO's divergence: 0 forward KL, 1 reverse KL, between them generalised Jensen-Shannon. Public code: 0.5."""
    top_k: int = 100
    """K tokens of the student that are compared one by one, and one bucket for all others. Public code: 100."""
    teacher: Literal["base", "ema", "sync", "trust"] = "ema"
    """Who is told the feedback: the frozen base model, a moving average of the learner, the learner as it was `sync_every` steps
    ago, or a mixture of base and learner. Paper: a moving average."""
    ema: float = 0.01
    """tau of the moving average. Not given; SDPO: 0.01 to 0.05."""
    sync_every: int = 20
    """Steps between two copies of the learner."""
    trust: float = 0.5
    """Share of the learner in the mixture."""
    feedback: bool = True
    """The teacher is told what was said in words; without it, only that something was said."""
    hint: float = 0.0
    """For `reinforce` and `ppo`: weight of log q - log p, what the teacher thinks of each token, in its advantage (OpenClaw-RL): how
    they hear the same words as `sdpo`."""
    level: Literal["token", "sequence", "geometric"] = "token"
    """Weights of tokens, of whole replies, or the geometric mean of these. Not given."""
    truncate: float = 2.0
    """C of the weights. verl: 2."""
    mis_low: float = 0.5
    """`rejection` drops what weighs less. Not given."""
    mis_high: float = 2.0
    """And what weighs more. Not given."""
    veto: float = 1e-4
    """A reply with a token whose pi_old / mu is below this is dropped. verl: 1e-4."""
    clip_low: float = 0.2
    """PPO's clip below 1. Usual: 0.2."""
    clip_high: float = 0.28
    """And above. OpenClaw-RL: 0.28."""
    dual: float = 3.0
    """Dual clip for negative advantages. verl: 3."""
    ess_target: float = 0.5
    """Effective share of the sample below which the learning rate shrinks in proportion. Paper: no such thing."""
    kl: float = 0.0
    """Weight of KL(pi || base) in the loss. Public code: 0 by now."""
    entropy: float = 0.0
    """Weight of an entropy bonus. Not given."""
    baseline: Literal["batch", "family"] = "batch"
    """What rewards are compared with: the minibatch (REINFORCE++), or their family's running statistics."""
    floor: float = 0.1
    """Least standard deviation that advantages are divided by, in reward units. Not given."""
    gamma: float = 1.0
    """PPO's discount per token. Not given."""
    lam: float = 0.95
    """lambda of GAE. Not given."""
    traces: Literal["gae", "v-trace"] = "gae"
    """Whether the critic corrects for staleness. Not given."""
    value_rate: float = 1e-3
    """The critic's learning rate. Not given."""
    gate: bool = True
    """Look at a version before it answers anybody. Paper: no gate."""
    gate_every: int = 1
    """Steps between two gates; versions in between are never live. Paper: the adapter is reloaded about every 8 steps."""
    margin: float = GateThresholds.margin
    """Reward by which a candidate's estimate on held-out feedback may lie below the live version's (nodes/learn/gate.py)."""
    read: int = GateThresholds.read
    """Held-out exchanges that a gate reads, at most."""
    least_rewards: int = GateThresholds.least_rewards
    """Rewards among them below which they say nothing, and pass."""
    weight_cap: float = GateThresholds.weight_cap
    """C of the gate's importance weights."""
    tolerance: float = GateThresholds.tolerance
    """Nats per token by which the retention set's replies may become less likely than under the base model."""
    entropy_share: float = GateThresholds.entropy_share
    """Share of the base model's entropy that must remain. Public code's planned threshold: 0.6."""
    kl_cap: float = GateThresholds.kl_cap
    """KL(pi || base) per token, in nats, at most."""
    texts: int = GateThresholds.texts
    """Texts from which entropy and KL are read, at least."""
    canary: float = 0.0
    """Share of requests that a version answers, by a hash of their ids, until `watch` rewards of it have come in; 0: all at once.
    While one is out no other is looked at, so that learning shows late where feedback is rare."""
    watch: int = 12
    """Rewards of the live version and of those before it, on both sides, from which it can be withdrawn; 0: never."""
    recent: int = 64
    """The newest of them that count."""
    fall_margin: float = 0.0
    """It is withdrawn when the mean reward fell by more than this and 3.2 standard errors (`SURE` in nodes/learn/gate.py). The service looks
    after every reward: of a model that has not changed, less than 5 % of stretches of 64 rewards see a false alarm."""
    keep: int = 10
    """Versions of an adapter that stay on disk, at least; live ones always do."""
    seed: int = 0
    """Of samples and of the first changes."""

    def __post_init__(self) -> None:
        check_literals(self, "claas")
        for name in ("batch", "least", "gate_every", "max_age", "reuse", "records", "rank", "keep", "recent"):
            if getattr(self, name) < 1:
                raise UserError(f"claas: {name} is at least 1, got {getattr(self, name)}")
        for name, top in (("canary", 1.0), ("held_out", 0.9)):
            if not 0 <= getattr(self, name) <= top:
                raise UserError(f"claas: {name} is a share from 0 to {top:g}, got {getattr(self, name)}")
        if self.watch < 0 or self.fall_margin < 0:
            raise UserError(f"claas: watch and fall_margin are at least 0, got {self.watch} and {self.fall_margin}")
        _ = self.bar  # has limits of its own

    @classmethod
    def paper(cls) -> CLaaS:
        """SDPO as published, as far as that is known: uniform samples, reuse until A_max = 50, no correction, no gate."""
        return cls(
            correction="none",
            least=32,
            max_age=50,
            reuse=1_000_000,
            positive=None,
            held_out=0.0,
            warmup_steps=0,
            ess_target=0.0,
            gate=False,
            gate_every=8,
            watch=0,
        )

    @classmethod
    def sdpo(cls) -> CLaaS:
        """Our defaults."""
        return cls()

    @classmethod
    def reinforce(cls) -> CLaaS:
        """REINFORCE++: a reward for every exchange, no teacher."""
        return cls(loss="reinforce")

    @classmethod
    def ppo(cls) -> CLaaS:
        """PPO with a critic."""
        return cls(loss="ppo")

    def no_gate(self) -> CLaaS:
        """Every version goes live, and none is withdrawn."""
        return replace(self, gate=False, watch=0)

    @property
    def bar(self) -> GateThresholds:
        """What passes the gate; the fields of the same names."""
        return pick_fields(GateThresholds, self)


def pick_fields(form: type[T], settings: CLaaS, **more: Any) -> T:
    """The share of the hyper-parameters that somebody else needs (`LoRA`, `Objective`, the replay buffer's `Limits`), by field name.

    Args:
        form: a dataclass.
        settings: where fields of the same name are taken from.
        more: fields that are called otherwise here, or mean something else.
    """
    names = [one.name for one in fields(cast(Any, form))]
    return form(**{name: getattr(settings, name) for name in names if hasattr(settings, name)} | more)


def build_serving(engine: Engine, replay: Replay, route: Route = route_to_base, **compile: Any) -> Graph:
    """The graph of one chat turn: from `Chat` (id, request, perhaps tenant, adapter, family) to `Served`.

    Pieces of the reply are on the custom stream (`stream_mode="custom"`), and the exchange after them. With a checkpointer the turn
    waits for feedback; without one it ends before that, and whoever has the id can give feedback to the replay buffer.

    Args:
        engine: the model.
        replay: where exchanges are kept.
        route: which version answers; the base model if not given.
        compile: `checkpointer` and the rest, as for `StateGraph.compile`. A checkpointer of your own gets
            `serde=memory.checkpoints.serializer()`, which knows the records that the state holds.
    """
    nodes: dict[str, Node] = {
        "respond": Respond(engine, route),
        "record": RecordExchange(replay, engine.base),
        "await_feedback": AwaitFeedback(),
        "keep": KeepFeedback(replay),
    }
    return compile_graph(
        wire(StateGraph(ChatState, input_schema=ChatInput), SERVING_FLOW, nodes), **{"name": "claas-serving", **compile}
    )


def build_learning(
    learner: AdapterLearner,
    replay: Replay,
    versions: AdapterLookup,
    settings: CLaaS | None = None,
    load: Callable[[str], Awaitable[None]] | None = None,
    retention: Sequence[Exchange] = (),
    **compile: Any,
) -> Graph:
    """The graph of one gradient step: from `Due` (tenant, adapter) to `Learned`. Async, for `load` waits for the engine.

    Args:
        learner: takes the step.
        replay: what it learns from.
        versions: (tenant, adapter) -> its versions on disk.
        settings: hyper-parameters; the learner has its own share of them.
        load: has the engine hold a version by label.
        retention: chats whose replies must stay likely, for the gate.
        compile: as for `StateGraph.compile`. A checkpointer is not needed: what is durable lies in the buffer and the versions.
    """
    settings = settings or CLaaS()
    every = settings.gate_every
    nodes: dict[str, Node] = {
        "sample": SampleMinibatch(
            replay, versions, settings.batch, settings.least, learner.base, every, settings.seed, settings.positive
        ),
        "correct": Correct(learner, replay),
        "step": TakeGradientStep(learner, replay),
        "skip": Skip(replay),
        "commit": CommitStep(replay, versions, every),
        "gate": GateCandidate(learner, replay, versions, settings.bar if settings.gate else None, retention),
        "load": Load(load),
        "promote": Promote(versions, settings.canary),
        "drop": Drop(replay, versions),
    }
    routers = {
        "sample": route_sample,
        "correct": route_correction,
        "step": route_step,
        "commit": route_commit,
        "gate": route_gate,
    }
    builder = StateGraph(GradientStepState, input_schema=GradientStepInput)
    return compile_graph(wire(builder, LEARNING_FLOW, nodes, routers), **{"name": "claas-learning", **compile})


def blueprint(name: str) -> Graph:
    """`claas-serving` or `claas-learning`, put together without a model, a buffer or a version: to look at."""
    absent: Any = SimpleNamespace(base="")
    return build_serving(absent, absent) if name == "claas-serving" else build_learning(absent, absent, absent)
