"""Settings of a CLaaS learner: the loss and the LoRA adapter, as plain numbers.

Graphs set them, and tools/training uses them; reading them loads no torch. Each field names its unit, its symbol and the value of the
CLaaS paper (arXiv:2606.05559). "Not given" means that the paper does not say; then the default is ours, and other sources are named.
"""

import math
import sys
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..errors import UserError

__all__ = ["LoRA", "Objective", "PolicyGradient", "ReplaySettings", "StalenessCorrection", "TeacherSettings", "check_bounds"]


GATE_SHARE = 8
"""One chat of the retention set in so many is for the gate: a version says by heart what its step held."""
READ_EVERY = 4
"""Updates after which a step reads all that it must not lose. In between it reads what was missing: most of the rest stays."""
ABOVE_0 = math.ulp(0.0)
"""The least number above 0, as a bound."""
BELOW_1 = math.nextafter(1.0, 0.0)
"""The largest number below 1, as a bound."""
LARGEST = sys.float_info.max
"""The largest finite number, as a bound."""


def check_bounds(settings: Any, group: str, **bounds: tuple[float, float]) -> None:
    """Check the words and the numbers of a settings group.

    Args:
        settings: a dataclass. Fields typed `Literal[...]` hold one of these words.
        group: its name in messages.
        bounds: field -> (least, most), both allowed.

    Raises:
        UserError: the first field that is out of range, what came, and what is allowed.
    """
    for name, hint in get_type_hints(type(settings)).items():
        if get_origin(hint) is Literal and getattr(settings, name) not in get_args(hint):
            raise UserError(f"{group}: {name} is one of {', '.join(get_args(hint))}, got {getattr(settings, name)!r}")
    for name, (least, most) in bounds.items():
        value = getattr(settings, name)
        if not least <= value <= most:
            low = "above 0" if least == ABOVE_0 else f"{least:g}"
            high = "below 1" if most == BELOW_1 else f"{most:g}"
            text = f"from {low} to {high}" if most < LARGEST else low if least == ABOVE_0 else f"at least {low}"
            text = f"finite and {text}" if most == LARGEST else text
            raise UserError(f"{group}: {name} is {text}, got {value}")


@dataclass(frozen=True)
class ReplaySettings:
    """Settings of the replay buffer and of its minibatches. "Not given": the paper (arXiv:2606.05559) does not say."""

    batch_size: int = 8
    """M, exchanges behind a gradient step. Not given."""
    min_exchanges: int = 8
    """B_min, ready exchanges before the first step; the learning rate's warm-up takes the place of a long wait. The authors'
    slides: 32."""
    positive_share: float | None = 0.5
    """Share of a minibatch with a reward above 0, where the buffer has enough of both; of each side, families take turns. None: uniform
    draws from all records, families included. Paper: uniform."""
    max_age: int = 100
    """A_max, in gradient steps; older exchanges are rejected. Paper: 25 is best for REINFORCE++, which collapses at 50 (Fig. 3). Its
    authors' slides: 25 for PPO, 50 for SDPO."""
    max_samplings: int = 8
    """M, times that an exchange is sampled before it is consumed. A minibatch is drawn from the newest M / 4 times as many ready ones, at
    least from twice as many: old wishes would outvote what users want now. Paper: until it is too old."""
    max_kl: float | None = None
    """kappa, in nats per token: exchanges with a larger estimate of KL(mu || pi) are rejected; None: age alone decides. Not given."""
    held_out_share: float = 0.1
    """Share of exchanges, by a hash of their id, that are never trained on: the gate reads those that were liked. Paper: none."""
    max_records: int = 10_000
    """B_max, exchanges per tenant and adapter. Beyond it consumed and rejected ones go first, oldest first, then the oldest (FIFO);
    leased ones stay. Not given."""
    max_megabytes: int = 256
    """Largest size of a tenant's exchanges together (2^20 bytes), kept in the same way. Not given."""
    max_record_bytes: int = 2 * 1024 * 1024
    """Largest exchange, in bytes. Not given."""
    max_user_share: float = 0.25
    """Largest share of a minibatch's exchanges that is of one end user (the request's `user`); 1: no limit. It bounds the votes of one
    user where others like or correct the same thing. A wish of one alone that they say nothing of still shows in replies to all: likes
    of right replies do not speak against it. While fewer users give feedback, they share it equally; one alone teaches only where there
    is no other. Not given."""
    max_pending_hours: float = 24.0
    """Hours after the reply in which feedback is accepted. Not given."""

    def __post_init__(self) -> None:
        least_1 = dict.fromkeys(("batch_size", "min_exchanges", "max_samplings", "max_records", "max_megabytes"), (1, math.inf))
        check_bounds(self, "replay", **least_1, max_record_bytes=(1, math.inf), max_age=(0, math.inf))
        check_bounds(self, "replay", max_user_share=(ABOVE_0, 1), held_out_share=(0, 1), max_pending_hours=(ABOVE_0, math.inf))

    @property
    def max_pending_seconds(self) -> float:
        """`max_pending_hours` in seconds."""
        return self.max_pending_hours * 3600


@dataclass(frozen=True)
class StalenessCorrection:
    """Weights of older versions' replies: w = pi_old / mu, the learner now over the version that sampled them."""

    kind: Literal["none", "clipped", "truncated", "decoupled", "rejection"] = "decoupled"
    """`none`: w = 1. `clipped`: w = 1, and PPO's clip around mu, so that a stale reply that has taught its share teaches no more.
    `truncated`: min(pi / mu, C). `decoupled`: min(pi_old / mu, C) and a clip around pi_old (AReaL, arXiv:2505.24298). `rejection`:
    pi_old / mu, and 0 outside [min_ratio, max_ratio]. Paper: no correction; what its clip is around is not given."""
    level: Literal["token", "sequence", "geometric"] = "token"
    """Ratios of tokens, of whole replies (the product over the tokens), or the geometric mean of these. Not given."""
    max_weight: float = 2.0
    """C, the largest weight; inf: no limit. Not given; SDPO's code and verl: 2."""
    min_ratio: float = 0.5
    """`rejection` drops tokens of a smaller ratio. Not given."""
    max_ratio: float = 2.0
    """`rejection` drops tokens of a larger ratio. Not given."""
    veto_ratio: float = 1e-4
    """A reply with a token of a smaller ratio is dropped whole, for every kind but `none`. Not given; verl: 1e-4."""
    ess_target: float = 0.5
    """Effective share of the minibatch, (sum W)^2 / (N sum W^2) with W = pi_old / mu of a whole reply, not
    truncated. Below it the learning rate shrinks in proportion. Not given."""

    def __post_init__(self) -> None:
        check_bounds(self, "loss.correction", ess_target=(0, 1), min_ratio=(0, 1), veto_ratio=(0, 1))
        check_bounds(self, "loss.correction", max_weight=(1, math.inf), max_ratio=(1, math.inf))


@dataclass(frozen=True)
class TeacherSettings:
    """The teacher of SDPO: the model that also reads the feedback. The learner is moved towards it."""

    kind: Literal["base", "ema", "sync", "trust"] = "ema"
    """Weights of the teacher: the base model's; a moving average of the learner's; the learner's of up to `sync_every` steps ago; a
    mixture of base and learner. Paper: a moving average."""
    ema_rate: float = 0.01
    """tau: share of the way that the average moves per step. Not given; SDPO: 0.01 to 0.05. Above 0.01 learners were seen to
    collapse (arXiv:2607.01763)."""
    sync_every: int = 20
    """Gradient steps between two copies of the learner, for `sync`. Not given."""
    learner_share: float = 0.5
    """Share of the learner in the mixture, for `trust`. Not given."""
    divergence: float = 0.5
    """alpha of the divergence D(q, p): 0 is KL(q || p), 1 is KL(p || q), between them generalised Jensen-Shannon. Not given; SDPO's
    code: 0.5."""
    top_k: int = 100
    """K, the student's most probable tokens that are compared one by one; all others are one bucket. 0: all one by one. SDPO's
    code: 100."""
    prompts: Literal["ours", "paper"] = "ours"
    """The teacher's prompt. `ours`: what was said of the reply, or a right reply to the same; an exchange without either teaches nothing.
    `paper`: the reply, what was said of it if anything, and the wish for a better one (Fig. 8), so that each judged reply teaches."""
    reads_text: bool = True
    """The teacher reads the text of the feedback. False: only whether the reward was above 0."""
    rewrites: int = 32
    """Longest reply, in tokens, that is written anew by the words of its feedback and learned as it should have been (for `mixed`).
    Longer replies, and with 0 all, are drawn towards the teacher as they were, as in the paper; so are those of which it is less than 1/2
    sure of a word (.9 of an early end), unless the learner is sure (.9) of another token than the reply has: then they teach nothing."""
    repairs: int = 12
    """Further updates of a step, at most, while it has not learned the replies that should have been, or has lost others that it
    rehearses or retains (for `mixed`): what is half learned garbles. Paper: 0."""

    def __post_init__(self) -> None:
        check_bounds(self, "loss.teacher", divergence=(0, 1), ema_rate=(0, 1), learner_share=(0, 1))
        least_0 = dict.fromkeys(("top_k", "rewrites", "repairs"), (0, math.inf))
        check_bounds(self, "loss.teacher", **least_0, sync_every=(1, math.inf))


@dataclass(frozen=True)
class PolicyGradient:
    """REINFORCE++ and PPO: advantages of rewards, the clip, and PPO's critic. SDPO uses none of these."""

    min_advantage_std: float = 0.1
    """Smallest standard deviation that advantages are divided by, in reward units: equal rewards are not blown up. Not given."""
    min_evidence: float = 4.0
    """Standard errors beyond which rewards without words teach: like replies must have like rewards (`weigh_rewards`). The step grows
    with what is beyond. 0: rewards teach whatever they say. Paper: 0."""
    step_share: float = 0.25
    """Share of the learning rate with which rewards that are weighed teach: they say less than words. Paper: 1."""
    clip_low: float = 0.2
    """epsilon below a ratio of 1. Not given; PPO: 0.2."""
    clip_high: float = 0.28
    """epsilon above a ratio of 1. Not given; DAPO and OpenClaw-RL: 0.28."""
    dual_clip: float = 3.0
    """c: the loss of a token with A < 0 is at most -c A; inf: no such limit. Not given; verl: 3."""
    discount: float = 1.0
    """gamma, per token, for `ppo`. Not given; REINFORCE++: 1."""
    gae_lambda: float = 0.95
    """lambda of GAE, for `ppo`. Not given."""
    critic_learning_rate: float = 1e-3
    """Learning rate of the critic, for `ppo`. Not given."""

    def __post_init__(self) -> None:
        check_bounds(self, "loss.policy", discount=(0, 1), gae_lambda=(0, 1), dual_clip=(1, math.inf))
        check_bounds(self, "loss.policy", min_advantage_std=(ABOVE_0, LARGEST), critic_learning_rate=(ABOVE_0, LARGEST))
        check_bounds(self, "loss.policy", min_evidence=(0, LARGEST), step_share=(ABOVE_0, 1))
        check_bounds(self, "loss.policy", clip_low=(0, BELOW_1), clip_high=(0, LARGEST))


@dataclass(frozen=True)
class Objective:
    """The loss of a gradient step and its optimizer, AdamW. The formulas are in tools/training/losses.py."""

    kind: Literal["mixed", "sdpo", "reinforce", "ppo"] = "mixed"
    """`mixed`: for each reply what its feedback can teach: by `sdpo` where it has words, by `reinforce` where it is a number alone.
    `sdpo`: towards a teacher that reads the feedback (arXiv:2601.20802); it learns from text, or from a rewarded
    reply to the same prompt. `reinforce`: REINFORCE++, whitened rewards (arXiv:2501.03262). `ppo`: a critic and GAE.
    Paper: the last three; SDPO was best."""
    learning_rate: float = 2e-3
    """eta, of AdamW, whatever a saved optimizer had. Chosen on models of a million parameters (graphs/experiments/RESULTS.md); for larger
    ones 1e-4 is usual. Not given; the public code: 3e-5."""
    warmup_steps: int = 0
    """Gradient steps in which the learning rate grows to eta, in a line. Not given."""
    weight_decay: float = 0.0
    """Weight decay of AdamW. Not given."""
    max_grad_norm: float = 1.0
    """Longest gradient; longer ones are shortened to it. Not given; the public code: 1."""
    updates_per_batch: int = 1
    """Updates from one minibatch. pi_old stays what it was before the first; from the second on the clip matters. Not given."""
    kl_weight: float = 0.0
    """Weight of KL(pi || base) in the loss. Not given; the public code: 0."""
    entropy_weight: float = 0.0
    """Weight of the entropy H(pi) that is subtracted from the loss. Not given."""
    activation_gib: float = 4.0
    """Memory for what a pass keeps for its backward pass, in GiB. Where the estimate is larger, layers are computed again instead (gradient
    checkpointing): the same gradient in about a third more time. 0: always. Not given."""
    correction: StalenessCorrection = field(default_factory=StalenessCorrection)
    teacher: TeacherSettings = field(default_factory=TeacherSettings)
    policy: PolicyGradient = field(default_factory=PolicyGradient)

    def __post_init__(self) -> None:
        check_bounds(self, "loss", warmup_steps=(0, math.inf), updates_per_batch=(1, math.inf), activation_gib=(0, math.inf))
        check_bounds(self, "loss", learning_rate=(ABOVE_0, LARGEST), max_grad_norm=(ABOVE_0, LARGEST))
        check_bounds(self, "loss", weight_decay=(0, LARGEST), kl_weight=(0, LARGEST), entropy_weight=(0, LARGEST))

    @property
    def uses_words(self) -> bool:
        """True if replies are drawn towards a teacher that reads the feedback (`mixed`, `sdpo`)."""
        return self.kind in ("mixed", "sdpo")

    @property
    def uses_rewards(self) -> bool:
        """True if rewards become advantages (all but `sdpo`)."""
        return self.kind != "sdpo"

    @property
    def weighs_rewards(self) -> bool:
        """True if rewards teach as far as they differ more than by chance (`PolicyGradient.min_evidence`)."""
        return self.kind in ("mixed", "reinforce") and self.policy.min_evidence > 0

    @property
    def rewrites(self) -> bool:
        """True if replies are written anew by the words of their feedback (`TeacherSettings.rewrites`)."""
        return self.kind == "mixed" and self.teacher.rewrites > 0

    @property
    def needs_teacher(self) -> bool:
        """True if an update needs passes of a teacher with weights of its own."""
        return self.uses_words and self.teacher.kind in ("ema", "sync")

    @property
    def needs_base(self) -> bool:
        """True if an update needs passes of the base model: for the teacher, or for KL(pi || base)."""
        return self.kl_weight > 0 or (self.uses_words and self.teacher.kind in ("base", "trust"))

    @property
    def needs_critic(self) -> bool:
        """True if an update needs a critic."""
        return self.kind == "ppo"


@dataclass(frozen=True)
class LoRA:
    """Shape of a LoRA adapter: a weight W becomes W + alpha / r B A, with A of shape (r, inputs) and B of shape (outputs, r)."""

    rank: int = 16
    """r. Not given; the public code: 32."""
    alpha: float | None = None
    """Scale of the adapter; None: twice the rank. Not given."""
    targets: str = "all-linear"
    """Weights that get an adapter: all linear layers but the last, or names joined by commas (`q_proj,v_proj`). Not given; the public
    code: all linear layers."""

    def __post_init__(self) -> None:
        check_bounds(self, "lora", rank=(1, math.inf))
        if self.alpha is not None:
            check_bounds(self, "lora", alpha=(ABOVE_0, LARGEST))

    @property
    def scale(self) -> float:
        """alpha as a number."""
        return 2.0 * self.rank if self.alpha is None else self.alpha
