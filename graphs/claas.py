"""CLaaS: continual learning as a service (arXiv:2606.05559). A chat model that learns from feedback while it answers.

Every chat turn is stored with its tokens, their log-probabilities under the version that sampled them (mu), and that version's step
number P(i), which dates it: after k steps its age is k - P(i). Feedback on a reply is a number, a text, or both. A learner draws
minibatches of such exchanges from a replay buffer, each at most `max_samplings` (8) times and until its age is `max_age` (A_max = 100),
and moves a LoRA adapter theta by a gradient step. By default a teacher, the same model that reads the words beside the prompt, writes
the reply anew as they ask for, to be imitated; so is a corrected reply; and numbers teach by policy gradient (reinforce), once like
replies have like rewards beyond chance.
Beyond the paper: the rewriting and the weighing, importance weights for stale exchanges, a gate before a new version answers, a
canary, and a way back.

Serving, one chat turn. The service runs it in two parts: up to `record` when a chat comes, `keep` when feedback on its id does, days
later if need be. In an app of yours, with a checkpointer, `await_feedback` stops the one run in between.

    respond         the live version, or a canary, answers token by token                       y ~ pi_k(. | x)
    record          prompt, tokens, log mu(y), P(i) join the buffer, pending                    B <- B + (x, y)
    await_feedback  stop until the app resumes the run with feedback                            r, text
    keep            ready to be learned from, or held out for the gate                          B <- B + r

Learning, one gradient step:

    sample    evict what is older than A_max, lease a minibatch, good and bad replies in equal shares; wait if the newest
              feedback is on a reply of a version that is further back than `max_lead` releases  (x, y, r) ~ B
    correct   log pi_old(y) with the present learner; weights, and which replies are too stale  w = min(pi_old / mu, C)
              rewards: z of a permutation test over the newest 32; below 4 they teach nothing     A = r~ - mean r,  eta (1 - (4 / z)^2)
    step      an update, and up to `repairs` (12) more on replies to imitate, those of earlier corrections too, that are not learned (p < .9 of
              a token), and on what is lost of the newest liked ones (p < .8 mu) and of 32 of the retention set (p < .8 of the base model's),
              read before the 5th, 9th and last update, and when nothing else is missing. Where the minibatch itself has replies to imitate,
              AdamW begins without moments. Then the whole adapter is shrunk by s in [0, 1], as little as keeps its entropy and its distance KL from the base
              model within the gate's bounds; a new immutable version                             theta <- s AdamW(theta, grad L)
    commit    the step is taken: each exchange used once more                                   k <- k + 1
    gate      every `every_steps` steps: candidate against live on the newest liked and corrected replies (a step leaves the newest 4 of
              each to it), on other chats of the retention set, in entropy, and in KL to the base
    load      the engine takes the candidate in beside the live version
    promote   requests go to it, or a share of them
    drop      it never answers; learning goes on from the live version, without a retention set by half the step (then a quarter)
    skip      nothing to learn: no words (sdpo), rewards all alike (ppo, reinforce), neither words nor a difference (mixed), too stale; or
              all of it is learned already, or the words change nothing

The loss L is a mean over the tokens of the minibatch. For each token: pi = p, the learner's distribution now; pi_old, the learner's
when the step began; mu, the version's that answered; q, the teacher's, who also reads the feedback:

    mixed (default) what the feedback on each reply can teach: a correction, or the reply as the words ask for (`Rewriting`), by
                    -log pi; of replies beyond 32 tokens, sdpo; without words, reinforce with A as above, r~ smoothed over like replies
    sdpo            w D(q, p),  D(q, p) = (a KL(q || m) + (1 - a) KL(p || m)) / (a (1 - a)),  m = a q + (1 - a) p
    ppo             -w max(min(rho A, clip(rho, 1 - eps_low, 1 + eps_high) A), d A if A < 0),  rho = pi / pi_old,  d = `dual_clip`
                    A: GAE of a critic, whitened;  + (V - returns)^2 / 2
    reinforce       the same with A = (r - mean r) / max(std r, `min_advantage_std`), mean and std over the tokens
    truncated       a correction for ppo and reinforce: -w A log pi,  w = min(pi / mu, C)
    clipped         another: w = 1, rho = pi / mu
    all             + b KL(pi || base) - c H(pi)

By default a = .5 over the learner's 100 likeliest tokens and one bucket for all others, q is a moving average of the learner, C = 2,
b = c = 0. sdpo alone learns nothing from praise without words, ppo and reinforce nothing from words; a reward teaches by
being higher or lower than others, so that rewards that are all alike teach nothing. In the paper every turn has a prompt of the
teacher, praised ones too: its presets, or `teacher.prompts` = paper, show the teacher the reply and ask for a better one (Fig. 8).
The learning rate is scaled by min(1, ESS / target), ESS = (sum W)^2 / (N sum W^2), W = pi_old / mu of a whole kept reply, not truncated.

Losses: tools/training/losses.py, tested with numbers in tests/equations/test_claas.py. Behind a chat API both graphs run under
graphs/serving/service.py. In any LangGraph app the serving graph is a subgraph of an agent with a checkpointer, resumed by
`Command(resume={"reward": 1, "text": "shorter, please"})`, and the learning graph runs on a timer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from langgraph.graph import StateGraph

from ..memory.claas.replay import Replay
from ..memory.claas.settings import (
    GATE_SHARE,
    LoRA,
    Objective,
    PolicyGradient,
    ReplaySettings,
    StalenessCorrection,
    TeacherSettings,
    check_bounds,
)
from ..memory.records import Exchange
from ..nodes.learn.chat_turn import AwaitFeedback, Engine, KeepFeedback, RecordExchange, Respond, Route, route_to_base
from ..nodes.learn.gate import GateSettings, ReleaseSettings
from ..nodes.learn.gradient_step import (
    MAX_HALVINGS,
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
from ..nodes.prompt import PROMPTS_DIR, Prompt
from ..nodes.state import ChatInput, ChatState, GradientStepInput, GradientStepState
from .wiring.flow import Graph, Node, compile_graph, wire

__all__ = [
    "CLaaS",
    "GateSettings",
    "LoRA",
    "Objective",
    "PolicyGradient",
    "ReleaseSettings",
    "ReplaySettings",
    "StalenessCorrection",
    "TeacherSettings",
    "blueprint",
    "build_learning",
    "build_serving",
    "read_hindsight",
]
LOG = logging.getLogger("learngraph.claas")

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
    """Hyper-parameters in five groups; each group's class says what its fields mean, in which unit, and what the paper gives.

    The defaults are those of `learngraph serve`. The presets `paper`, `paper-reinforce` and
    `paper-ppo` are the paper's three methods, see `_published`.
    """

    replay: ReplaySettings = field(default_factory=ReplaySettings)
    """The replay buffer and its minibatches (memory/claas/replay.py)."""
    loss: Objective = field(default_factory=Objective)
    """L, corrections of stale exchanges, the teacher, the optimizer (memory/claas/settings.py)."""
    lora: LoRA = field(default_factory=LoRA)
    """Shape of the adapter (memory/claas/settings.py)."""
    gate: GateSettings = field(default_factory=GateSettings)
    """The checks that a version passes before it answers (nodes/learn/gate.py)."""
    rollout: ReleaseSettings = field(default_factory=ReleaseSettings)
    """Canary, withdrawal and number of versions kept (nodes/learn/gate.py)."""
    seed: int = 0
    """Seed of the draws and of a new adapter."""

    def __post_init__(self) -> None:
        check_bounds(self.replay, "replay", held_out_share=(0, 0.9), max_age=(1, math.inf))

    @property
    def max_lead_steps(self) -> int | None:
        """`rollout.max_lead` in gradient steps."""
        return None if self.rollout.max_lead is None else self.rollout.max_lead * self.gate.every_steps

    @classmethod
    def paper(cls) -> CLaaS:
        """SDPO as the paper runs it, with A_max = 50 and the paper's prompt of the teacher."""
        return _published("sdpo", max_age=50)

    @classmethod
    def paper_reinforce(cls) -> CLaaS:
        """REINFORCE++ as the paper runs it, with A_max = 25 (Fig. 3)."""
        return _published("reinforce", max_age=25)

    @classmethod
    def paper_ppo(cls) -> CLaaS:
        """PPO as the paper runs it, with A_max = 25."""
        return _published("ppo", max_age=25)


def _published(kind: Literal["sdpo", "reinforce", "ppo"], max_age: int) -> CLaaS:
    """A method of the paper: uniform draws, reuse until A_max, no importance weights, no gate; nothing is held out or withdrawn.

    Of the numbers, we know only A_max = 25 of REINFORCE++ from the paper (Fig. 3). The others are our reading: A_max of SDPO and PPO,
    B_min = 32 and a reload every 8 steps are those of its authors' slides, learning rate and rank those of their public code, for
    models of 8 billion parameters; rho = pi / mu, so that the clip bounds what a stale reply teaches: around pi_old it bounds nothing
    (one update a minibatch), and REINFORCE++ collapses at A_max = 25. All else is our default.
    """
    replay = ReplaySettings(
        min_exchanges=32, positive_share=None, max_age=max_age, max_samplings=1_000_000, held_out_share=0.0, max_user_share=1.0
    )
    correction = StalenessCorrection(kind="none" if kind == "sdpo" else "clipped", ess_target=0.0)
    return CLaaS(
        replay=replay,
        loss=Objective(
            kind=kind,
            learning_rate=3e-5,
            correction=correction,
            teacher=TeacherSettings(prompts="paper", rewrites=0, repairs=0),
            policy=PolicyGradient(min_evidence=0),
        ),
        lora=LoRA(rank=32),
        gate=GateSettings(enabled=False, every_steps=8),
        rollout=ReleaseSettings(watch_rewards=0, max_lead=None),
    )


def read_hindsight(model: str, teacher: TeacherSettings, prompts: Path | None = None) -> str:
    """The template of the teacher's prompt, `claas/hindsight.md` or `paper/claas/hindsight.md`; the log says which one is used.

    A model may have one of its own, in words that it knows. The first that exists is taken:

    Args:
        prompts: the user's folder of prompts, which must exist.
        model: the folder of the model's weights. A name that is no folder has no prompt of its own.
        teacher: says whose prompt it is, ours or the paper's.

    Without either it is the package's. Raises PromptError if the prompt is malformed.
    """
    name = "paper/claas/hindsight" if teacher.prompts == "paper" else "claas/hindsight"
    places = [folder for folder in (prompts, Path(model)) if folder is not None]
    folder = next((place for place in places if (place / f"{name}.md").is_file()), prompts)
    template = Prompt.load(name, folder).parts[0][1].template
    path = (folder or PROMPTS_DIR) / f"{name}.md"
    LOG.info("the teacher reads feedback by %s", path if path.is_file() else PROMPTS_DIR / f"{name}.md")
    return template


def build_serving(
    engine: Engine, replay: Replay, route: Route = route_to_base, must_store: bool = True, **compile: Any
) -> Graph:
    """The graph of one chat turn: from `ChatInput` (id, request; tenant, adapter, family if wanted) to `ServedChat`.

    The custom stream (`stream_mode="custom"`) has the pieces of the reply, and then the exchange. With a checkpointer the turn waits
    for feedback. Without one it ends before that; then `Replay.add_feedback` takes feedback by the exchange's id.

    Args:
        engine: the model that answers.
        replay: the buffer that keeps the exchanges.
        route: names the version that answers; default: the base model.
        must_store: a chat fails if the buffer cannot store its exchange; else it is answered, and takes no feedback.
        compile: options of `StateGraph.compile`. A checkpointer of your own needs
            `serde=memory.storage.checkpoints.serializer()`, which knows the records in the state.
    """
    nodes: dict[str, Node] = {
        "respond": Respond(engine, route),
        "record": RecordExchange(replay, engine.base, must_store=must_store),
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
    """The graph of one gradient step: from `GradientStepInput` (tenant, adapter) to `GradientStepState`. Async: `load` awaits the engine.

    Args:
        learner: takes the step; it has `loss` and `lora` of the settings.
        replay: the buffer that is learned from.
        versions: (tenant, adapter) -> its versions on disk.
        settings: hyper-parameters; the graph uses `replay`, `gate`, `rollout` and `seed`.
        load: makes the engine load a version by its label; None: the engine finds versions by itself.
        retention: chats whose replies must stay as likely as under the base model: with the loss `mixed` and `repairs` every eighth one is
            for the gate, the rest for the steps.
        compile: options of `StateGraph.compile`. No checkpointer is needed: buffer and versions are durable.
    """
    settings = settings or CLaaS()
    can_repair = settings.loss.kind == "mixed" and settings.loss.teacher.repairs > 0
    split = [one for n, one in enumerate(retention) if n % GATE_SHARE], retention[::GATE_SHARE]
    held, for_gate = split if can_repair else ([], retention)
    nodes: dict[str, Node] = {
        "sample": SampleMinibatch(
            replay,
            versions,
            settings=settings.replay,
            base=learner.base,
            gate_every=settings.gate.every_steps,
            max_lead=settings.max_lead_steps,
            seed=settings.seed,
            has_gate=settings.gate.enabled,
        ),
        "correct": Correct(learner, replay, versions, settings.gate, settings.loss.weighs_rewards, 0 if held else MAX_HALVINGS),
        "step": TakeGradientStep(learner, replay, versions, settings.gate, held),
        "skip": Skip(replay),
        "commit": CommitStep(replay, versions, settings.gate.every_steps),
        "gate": GateCandidate(learner, replay, versions, settings.gate, for_gate),
        "load": Load(load),
        "promote": Promote(versions, settings.rollout.canary_share),
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
    """The graph `claas-serving` or `claas-learning` without a model, a buffer or versions, for drawing."""
    absent: Any = SimpleNamespace(base="")
    return build_serving(absent, absent) if name == "claas-serving" else build_learning(absent, absent, absent)
