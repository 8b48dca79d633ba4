"""Losses that learn from served replies, as pure functions (CLaaS): float32, over the tensors of one reply of T tokens.

    mu       the distribution that the reply was sampled from, recorded then (the behaviour policy)
    pi_old   the learner before the update, recomputed now
    pi       the learner, with a gradient (p in the losses of distillation)
    q        the teacher: the model that has read the feedback, too
    base     the model without any changes

`Objective` says which of them, and how stale replies are corrected; `judge` makes advantages of rewards, `statistics` says what a
batch is still worth, `loss` puts all of it together. tools/training/lora.py makes the passes and the update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from ...memory.errors import UserError

__all__ = [
    "BatchAdvantages",
    "LossInputs",
    "Objective",
    "RatioStatistics",
    "RewardMoments",
    "blend",
    "compute_advantages",
    "decoupled_ppo",
    "ema",
    "entropy",
    "ess",
    "gae",
    "k1",
    "k2",
    "k3",
    "kl_to",
    "objective_loss",
    "ppo_clip",
    "ratio_statistics",
    "ratios",
    "reinforce",
    "sdpo",
    "token_logprobs",
    "truncated_weights",
    "trusted_token_mask",
    "v_trace",
    "whiten",
]

MAX_LOG_RATIO = 20.0
"""Log-ratios are cut to [-20, 20]: e^20 is far beyond any truncation, and still finite."""
MIN_TAIL_PROBABILITY = 1e-7
"""The smallest probability of the tail bucket: what is left of 1 in float32."""


@dataclass(frozen=True)
class Objective:
    """What an update from feedback goes down. "Not given": the paper (CLaaS, arXiv 2606.05559) does not say; then it is ours."""

    loss: Literal["sdpo", "reinforce", "ppo"] = "sdpo"
    """`sdpo`: the model that has read the feedback teaches the one that has not (arXiv 2601.20802); `reinforce`: REINFORCE++
    (arXiv 2501.03262), whitened rewards; `ppo`: a critic and GAE. Paper: all three; sdpo is its best."""
    correction: Literal["none", "truncated", "decoupled", "rejection"] = "decoupled"
    """Of what stale replies are worth: `none`; `truncated`: weights min(pi / mu, C); `decoupled`: weights min(pi_old / mu, C) and
    a clip around pi_old (AReaL, arXiv 2505.24298); `rejection`: weights pi_old / mu, 0 outside [mis_low, mis_high]. Paper: none."""
    level: Literal["token", "sequence", "geometric"] = "token"
    """Weights of tokens, of whole replies (product of their ratios), or the geometric mean of these. Not given."""
    truncate: float = 2.0
    """C, the largest weight; inf: as they are. Not given; SDPO's code: 2."""
    mis_low: float = 0.5
    """Weights below are rejected. Not given."""
    mis_high: float = 2.0
    """Weights above are rejected. Not given."""
    veto: float = 1e-4
    """A reply with a token whose pi_old / mu is below is rejected whole, whatever the correction but `none`. Not given; verl: 1e-4."""
    clip_low: float = 0.2
    """epsilon below 1. Not given; PPO: 0.2."""
    clip_high: float = 0.28
    """epsilon above 1. Not given; DAPO: 0.28."""
    dual: float = 3.0
    """c of dual clip: for A < 0 the loss of a token is at most -c A; inf: no such limit. Not given; verl: 3."""
    ess_target: float = 0.5
    """Effective share of a batch below which the rate is scaled down by share / target. Not given."""
    alpha: float = 0.5
    """Of the divergence: 0 is KL(q || p), 1 is KL(p || q), Jensen-Shannon's between. Not given; SDPO: 0.5."""
    top_k: int = 100
    """K tokens most probable to the student are compared one by one, all others as one bucket; 0: all one by one. SDPO: 100."""
    teacher: Literal["base", "ema", "sync", "trust"] = "ema"
    """Whose weights read the feedback: the base model's; a moving average of the learner's; the learner's of a few updates ago; a
    mixture of base and learner. Paper: ema."""
    ema: float = 0.01
    """tau: the average moves by this share of the way per update. Not given; above 0.01 learners were seen to collapse
    (arXiv 2607.01763)."""
    sync_every: int = 20
    """Updates between two copies of the learner to the teacher `sync`. Not given."""
    trust: float = 0.5
    """Share of the learner in the mixture `trust`. Not given."""
    hint: float = 0.0
    """For `reinforce` and `ppo`: weight of log q(y_t) - log p(y_t), what the teacher thinks of each token, that is added to its
    advantage; the way to give them the feedback that `sdpo` gets. Not given; OpenClaw-RL's combined advantage."""
    feedback: bool = True
    """Whether the teacher is told the text of the feedback; False: it is told that something was said, and not what."""
    kl: float = 0.0
    """Weight of KL(pi || base) in the loss (in the reward for `reinforce`'s beta: see `judge`). Not given."""
    entropy: float = 0.0
    """Weight of the entropy that is added to what is maximised. Not given."""
    baseline: Literal["batch", "family"] = "batch"
    """What rewards are compared with, for `reinforce`: those of the minibatch (REINFORCE++'s global whitening), or running
    statistics of their own family, the minibatch included, which tells something also where all of a batch went wrong."""
    floor: float = 0.1
    """Least standard deviation that advantages are divided by, in reward units: equal rewards are not blown up. Not given."""
    gamma: float = 1.0
    """Discount per token. Not given; REINFORCE++: 1."""
    lam: float = 0.95
    """lambda of GAE and v-trace. Not given."""
    traces: Literal["gae", "v-trace"] = "gae"
    """How the critic's errors become advantages: as if on-policy, or corrected by min(1, pi_old / mu). Not given."""
    value_rate: float = 1e-3
    """Learning rate of the critic. Not given."""
    rate: float = 1e-4
    """Learning rate of AdamW. Not given; this is the rate that is used, whatever a saved optimizer says."""
    warmup_steps: int = 10
    """Updates in which the rate grows to `rate`, in a line. Not given."""
    decay: float = 0.0
    """Weight decay. Not given."""
    passes: int = 1
    """Updates from one batch: pi_old stays what it was before the first, and from the second on the clip holds. Not given."""
    max_norm: float = 1.0
    """Longest gradient: longer ones are shortened to it. Not given."""

    def __post_init__(self) -> None:
        choices = {"loss": ("sdpo", "reinforce", "ppo"), "correction": ("none", "truncated", "decoupled", "rejection")}
        choices |= {"level": ("token", "sequence", "geometric"), "teacher": ("base", "ema", "sync", "trust")}
        choices |= {"traces": ("gae", "v-trace"), "baseline": ("batch", "family")}
        for name, among in choices.items():
            if getattr(self, name) not in among:
                raise UserError(f"Objective: {name} is one of {', '.join(among)}, got {getattr(self, name)!r}")
        for name in ("alpha", "ema", "trust", "gamma", "lam", "ess_target", "mis_low", "veto"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"Objective: {name} is from 0 to 1, got {getattr(self, name)}")
        for name in ("rate", "value_rate", "max_norm", "floor"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise UserError(f"Objective: {name} is a number above 0, got {getattr(self, name)}")
        for name in ("kl", "entropy", "decay", "clip_high", "hint"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"Objective: {name} is 0 or more, got {getattr(self, name)}")
        for name in ("truncate", "mis_high", "dual"):
            if not getattr(self, name) >= 1:
                raise UserError(f"Objective: {name} is 1 or more, got {getattr(self, name)}")
        if not 0 <= self.clip_low < 1:
            raise UserError(f"Objective: clip_low is from 0 to below 1, got {self.clip_low}")
        for name, least in (("top_k", 0), ("warmup_steps", 0), ("sync_every", 1), ("passes", 1)):
            if getattr(self, name) < least:
                raise UserError(f"Objective: {name} is at least {least}, got {getattr(self, name)}")

    @property
    def needs_hindsight(self) -> bool:
        """Whether a teacher reads the feedback."""
        return self.loss == "sdpo" or self.hint > 0

    @property
    def needs_teacher(self) -> bool:
        """Whether an update needs passes of a teacher with weights of its own."""
        return self.needs_hindsight and self.teacher in ("ema", "sync")

    @property
    def needs_base(self) -> bool:
        """Whether an update needs passes of the base model: for the teacher, or for KL(pi || base). Not where its weight is 0."""
        return self.kl > 0 or (self.needs_hindsight and self.teacher in ("base", "trust"))

    @property
    def needs_critic(self) -> bool:
        """Whether an update needs a critic."""
        return self.loss == "ppo"


# Importance ratios and corrections. Weights carry no gradient


def ratios(new: Tensor, old: Tensor, clamp: float = MAX_LOG_RATIO) -> Tensor:
    """rho_t = exp(clamp(log new(y_t) - log old(y_t))): how much more probable a token has become. Shapes (T,) -> (T,), float32.

    With a gradient to whichever of the two has one. Ratios are differences of small numbers: what comes in must be float32 log
    probabilities, not those of bfloat16 logits (defect 5 of the public code).
    """
    return (new.float() - old.float()).clamp(-clamp, clamp).exp()  # (T,)


def ess(log_weights: Tensor) -> float:
    """(sum w)^2 / (N sum w^2), from log w of N sequences, (N,): the effective share of a sample, in (0, 1]. 1 for none."""
    if not log_weights.numel():
        return 1.0
    logs = log_weights.double()  # (N,)
    return float((2 * logs.logsumexp(0) - (2 * logs).logsumexp(0)).exp() / len(logs))


def truncated_weights(log_ratio: Tensor, max_weight: float = 2.0, level: str = "token") -> Tensor:
    """w_t = min(pi_old(y_t) / mu(y_t), C), truncated importance sampling, from log(pi_old / mu) of one reply: (T,) -> (T,).

    `level`: of each token, of the product over the reply, or of the geometric mean over the reply. Detached.
    """
    logs = log_ratio.detach().float()  # (T,)
    if level == "sequence":
        logs = logs.sum().expand_as(logs)  # (T,), all the same
    elif level == "geometric":
        logs = logs.mean().expand_as(logs)  # (T,), all the same
    return logs.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=max_weight)  # (T,)


def trusted_token_mask(log_ratio: Tensor, low: float, high: float, veto: float = 0.0, level: str = "token") -> Tensor:
    """Which tokens' weights are trusted (masked importance sampling): low <= w <= high, as bools; (T,) -> (T,).

    None of them where the ratio of one token alone is below `veto`: such a reply is from another model (verl).
    """
    weights = truncated_weights(log_ratio, math.inf, level)  # (T,)
    trusted = (weights >= low) & (weights <= high)  # (T,)
    return trusted & (log_ratio.detach().float().exp() >= veto).all()  # (T,)


def _importance_weights(old: Tensor, behaviour: Tensor, objective: Objective) -> Tensor:
    """w_t of the objective's correction, without a gradient: log pi_old and log mu, (T,) and (T,) -> (T,)."""
    log_ratio = (old.detach().float() - behaviour.float()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)  # (T,)
    if objective.correction == "none":
        return torch.ones_like(log_ratio)  # (T,)
    if objective.correction == "rejection":
        trusted = trusted_token_mask(log_ratio, objective.mis_low, objective.mis_high, objective.veto, objective.level)  # (T,)
        return truncated_weights(log_ratio, math.inf, objective.level) * trusted  # (T,)
    return truncated_weights(log_ratio, objective.truncate, objective.level)  # (T,)


@dataclass(frozen=True, slots=True)
class RatioStatistics:
    """How far the learner has moved from what sampled a batch (`statistics`)."""

    ess: float
    """Of the replies that are kept."""
    mean: float
    """Of pi_old / mu, over the tokens of the kept."""
    max: float
    clip_fraction: float
    """Share of their tokens whose weight is truncated, or rejected."""
    kl: float
    """Mean of log mu - log pi_old over their tokens: KL(mu || pi_old) in nats, estimated by k1."""
    reply_kls: tuple[float, ...]
    """The same of every reply, kept or not."""
    drop_reasons: tuple[str, ...]
    """Of every reply: why it is not kept; empty for those that are."""

    @property
    def keep_mask(self) -> tuple[bool, ...]:
        """Of every reply: whether something can still be learned from it."""
        return tuple(not reason for reason in self.drop_reasons)


def ratio_statistics(old: Sequence[Tensor], behaviour: Sequence[Tensor], objective: Objective) -> RatioStatistics:
    """What a batch is still worth, from log pi_old and log mu of its replies, (T_i,) each, in float32."""
    logs, kls, why = [], [], []
    for now, then in zip(old, behaviour, strict=True):
        log_ratio = now.detach().float().cpu() - then.float().cpu()  # (T,)
        logs.append(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))  # (T,)
        kls.append(-float(log_ratio.mean()) if len(log_ratio) else 0.0)
        reason = "" if len(log_ratio) else "no tokens"
        if not bool(torch.isfinite(log_ratio).all()):
            reason = "log-probabilities that are not finite"
        elif not reason and objective.correction != "none":
            least = float(log_ratio.min().exp())
            if least < objective.veto:
                reason = (
                    f"a token is {least:.2g} times as probable as when it was sampled, less than the veto of {objective.veto:g}"
                )
            elif objective.correction == "rejection":
                weights = truncated_weights(log_ratio, math.inf, objective.level)  # (T,)
                if not bool(((weights >= objective.mis_low) & (weights <= objective.mis_high)).any()):
                    reason = f"all its ratios are outside [{objective.mis_low:g}, {objective.mis_high:g}]"
        why.append(reason)
    kept = [log_ratio for log_ratio, reason in zip(logs, why, strict=True) if not reason]
    if not kept:
        return RatioStatistics(1.0, 1.0, 1.0, 0.0, 0.0, tuple(kls), tuple(why))
    every = torch.cat(kept)  # (tokens,)
    weights = torch.cat([truncated_weights(log_ratio, math.inf, objective.level) for log_ratio in kept])  # (tokens,)
    low, high = (objective.mis_low, objective.mis_high) if objective.correction == "rejection" else (0.0, objective.truncate)
    cut = ((weights < low) | (weights > high)).float().mean() if objective.correction != "none" else torch.zeros(())  # ()
    sums = torch.stack([log_ratio.sum() for log_ratio in kept])  # (kept,)
    ratio = every.exp()  # (tokens,)
    return RatioStatistics(
        ess(sums), float(ratio.mean()), float(ratio.max()), float(cut), -float(every.mean()), tuple(kls), tuple(why)
    )


# Log-probabilities


class _TokenLogprobs(torch.autograd.Function):
    """log softmax(logits)[token], with one (T, V) tensor in the way back; autograd's own makes three."""

    @staticmethod
    def forward(context: Any, logits: Tensor, tokens: Tensor) -> Tensor:
        total = logits.logsumexp(-1)  # (T,)
        context.save_for_backward(logits, tokens, total)
        return logits.gather(1, tokens[:, None])[:, 0] - total  # (T,)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Tensor, None]:
        logits, tokens, total = context.saved_tensors
        back = torch.sub(logits, total[:, None]).exp_().mul_(-slope[:, None])  # (T, V): -g p
        return back.scatter_add_(1, tokens[:, None], slope[:, None]), None  # (T, V): g (1[v = y] - p)


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """log softmax(logits)[token], in float32: (T, V), (T,) -> (T,), with a gradient to the logits."""
    return _TokenLogprobs.apply(logits.float(), tokens)  # type: ignore[no-any-return, no-untyped-call]


# KL divergences: estimates from the sampled tokens alone, and the exact one


def k1(logp: Tensor, base: Tensor) -> Tensor:
    """log pi(y) - log base(y): under pi its mean is KL(pi || base); may be negative. (T,), (T,) -> (T,). Schulman, 2020."""
    return logp.float() - base.float()  # (T,)


def k2(logp: Tensor, base: Tensor) -> Tensor:
    """x^2 / 2, x = log pi(y) - log base(y): biased, but its gradient is KL(pi || base)'s on average. (T,), (T,) -> (T,)."""
    return 0.5 * k1(logp, base).square()  # (T,)


def k3(logp: Tensor, base: Tensor) -> Tensor:
    """e^{-x} - 1 + x, x = log pi(y) - log base(y): >= 0, under pi its mean is KL(pi || base). (T,), (T,) -> (T,).

    With e^x - 1 - x (defect 4 of the public code) the mean is chi^2 - KL instead.
    """
    x = k1(logp, base).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)  # (T,)
    return torch.expm1(-x) + x  # (T,)


def kl_to(base: Tensor, logits: Tensor) -> Tensor:
    """KL(pi || base) = sum_v pi(v) (log pi(v) - log base(v)) before each token: logits (T, V), (T, V) -> (T,), in nats.

    Over the whole vocabulary: with its true gradient, which no estimate from the sampled tokens has as a loss.
    """
    logp = logits.float().log_softmax(-1)  # (T, V)
    return (logp.exp() * (logp - base.float().log_softmax(-1))).sum(-1)  # (T,)


def entropy(logits: Tensor) -> Tensor:
    """H(pi) = -sum_v pi(v) log pi(v) before each token: logits (T, V) -> (T,), in nats."""
    wide = logits.float()  # (T, V)
    total = wide.logsumexp(-1, keepdim=True)  # (T, 1)
    mean: Tensor = torch.linalg.vecdot((wide - total).exp(), wide)  # (T,)
    return total[:, 0] - mean  # (T,)


# Advantages


@dataclass(frozen=True, slots=True)
class RewardMoments:
    """Running statistics of the rewards of one family, so that small batches are compared with more than themselves."""

    count: float = 0.0
    """Rewards behind it; counts up to the horizon, then older ones fade."""
    mean: float = 0.0
    variance: float = 0.0

    def with_rewards(self, rewards: Sequence[float], horizon: float = 100.0) -> RewardMoments:
        """With these rewards, too. Neither their order nor how they are cut into batches matters before the horizon."""
        if not rewards:
            return self
        new = len(rewards)
        mean = math.fsum(rewards) / new
        variance = math.fsum((reward - mean) ** 2 for reward in rewards) / new
        old = min(self.count, max(horizon - new, 0.0))
        total, apart = old + new, mean - self.mean
        middle = self.mean + apart * new / total
        spread = (old * self.variance + new * variance + apart * apart * old * new / total) / total
        return RewardMoments(min(self.count + new, max(horizon, new)), middle, spread)


def whiten(
    rewards: Sequence[float],
    lengths: Sequence[int],
    min_std: float,
    *,
    kls: Sequence[Tensor] = (),
    beta: float = 0.0,
    family_moments: Sequence[RewardMoments] = (),
) -> list[Tensor] | None:
    """A_t = (G_t - mean) / max(std, floor), G_t = r - beta sum_{s >= t} kl_s: REINFORCE++ with one reply per prompt (2501.03262).

    Mean and standard deviation are those over all tokens of the batch, so that long replies count for more; or, if given, those
    of `against`, the running statistics of each reply's family.

    Args:
        rewards: r of each reply.
        lengths: T_i of each reply.
        floor: the least standard deviation.
        kls: log pi_old - log base of the tokens, (T_i,) each, for KL in the reward; beta: its weight.
        against: per reply.

    Returns:
        (T_i,) of each reply, in float32. None where there is nothing to learn: all G_t are what was to be expected.
    """
    returns = [
        torch.full((length,), float(reward), dtype=torch.float64) for reward, length in zip(rewards, lengths, strict=True)
    ]
    if beta:
        rest = [kl.detach().double().cpu().flip(0).cumsum(0).flip(0) for kl in kls]  # (T_i,): sum over s >= t
        returns = [g - beta * more for g, more in zip(returns, rest, strict=True)]  # (T_i,)
    if not returns:
        return None
    if family_moments:
        pairs = zip(returns, family_moments, strict=True)
        white = [(g - family.mean) / max(math.sqrt(family.variance), min_std) for g, family in pairs]  # (T_i,)
    else:
        every = torch.cat(returns)  # (tokens,)
        white = [(g - every.mean()) / max(float(every.std(correction=0)), min_std) for g in returns]  # (T_i,)
    if max(float(a.abs().max()) if len(a) else 0.0 for a in white) < 1e-6:
        return None
    return [a.float() for a in white]  # (T_i,)


def gae(rewards: Tensor, values: Tensor, gamma: float = 1.0, lam: float = 0.95) -> tuple[Tensor, Tensor]:
    """A_t = sum_l (gamma lambda)^l delta_{t+l}, delta_t = r_t + gamma V_{t+1} - V_t, V = 0 after the end (1506.02438).

    Args:
        rewards: (T,), r_t; for a reply with one reward, 0 but at the end.
        values: (T,), the critic's V before each token.

    Returns:
        Advantages (T,), and what the critic should have said, A_t + V_t, (T,). No gradients.
    """
    now = values.detach().float()  # (T,)
    after = torch.cat([now[1:], now.new_zeros(1)])  # (T,)
    deltas = rewards.to(now) + gamma * after - now  # (T,)
    advantages = torch.zeros_like(now)  # (T,)
    running = now.new_zeros(())  # ()
    for t in range(len(now) - 1, -1, -1):
        running = deltas[t] + gamma * lam * running  # ()
        advantages[t] = running
    return advantages, advantages + now


def v_trace(rewards: Tensor, values: Tensor, log_ratio: Tensor, gamma: float = 1.0, lam: float = 0.95) -> tuple[Tensor, Tensor]:
    """v_t = V_t + delta_t + gamma c_t (v_{t+1} - V_{t+1}); A_t = rho_t (r_t + gamma v_{t+1} - V_t) (IMPALA, 1802.01561).

    delta_t = rho_t (r_t + gamma V_{t+1} - V_t), rho_t = min(1, pi / mu), c_t = lambda rho_t: a critic of pi from what mu sampled.

    Args:
        rewards: (T,), r_t.
        values: (T,), V before each token.
        log_ratio: (T,), log(pi_old / mu).

    Returns:
        Advantages, rho_t included, (T,), and the targets v_t, (T,). No gradients.
    """
    now = values.detach().float()  # (T,)
    after = torch.cat([now[1:], now.new_zeros(1)])  # (T,)
    rho = truncated_weights(log_ratio, 1.0).to(now)  # (T,)
    deltas = rho * (rewards.to(now) + gamma * after - now)  # (T,)
    targets = torch.zeros_like(now)  # (T,)
    above = now.new_zeros(())  # (): v_{t+1} - V_{t+1}
    for t in range(len(now) - 1, -1, -1):
        above = deltas[t] + gamma * lam * rho[t] * above  # ()
        targets[t] = now[t] + above
    following = torch.cat([targets[1:], now.new_zeros(1)])  # (T,)
    return rho * (rewards.to(now) + gamma * following - now), targets


@dataclass(frozen=True)
class BatchAdvantages:
    """What rewards say of the tokens of a batch (`judge`)."""

    advantages: tuple[Tensor, ...]
    """(T_i,) of each reply."""
    returns: tuple[Tensor, ...] = ()
    """(T_i,) of each reply: what the critic is to say. Empty without one."""
    moments: Mapping[str, RewardMoments] = field(default_factory=dict)
    """Of each family, with this batch's rewards."""


def compute_advantages(
    rewards: Sequence[float],
    lengths: Sequence[int],
    objective: Objective,
    *,
    families: Sequence[str] = (),
    moments: Mapping[str, RewardMoments] | None = None,
    kls: Sequence[Tensor] = (),
    values: Sequence[Tensor] = (),
    log_ratios: Sequence[Tensor] = (),
) -> BatchAdvantages | None:
    """Advantages of an objective `reinforce` or `ppo` for a batch. None where nothing can be learned: all rewards are alike, or for
    `ppo`, whose critic has an opinion of its own of every token, all advantages are 0.

    Args:
        rewards, lengths: r and T_i of each reply.
        families: of each reply; with `moments`, rewards are compared with the family's running statistics, this batch included.
        moments: those so far; None: the batch is compared with itself.
        kls: log pi_old - log base of the tokens, (T_i,): KL in the reward, weighed by `objective.kl`.
        values: of the critic, (T_i,): for `ppo`.
        log_ratios: log(pi_old / mu), (T_i,): for `ppo` with v-trace.
    """
    seen: dict[str, RewardMoments] = {}
    against: list[RewardMoments] = []
    if moments is not None:
        named = list(families) or [""] * len(rewards)
        for name in dict.fromkeys(named):
            of = [reward for reward, family in zip(rewards, named, strict=True) if family == name]
            seen[name] = moments.get(name, RewardMoments()).with_rewards(of)
        against = [seen[name] for name in named]
        seen = {**moments, **seen}
    if objective.loss != "ppo":
        beta = objective.kl if kls else 0.0
        white = whiten(rewards, lengths, objective.floor, kls=kls, beta=beta, family_moments=against)
        return None if white is None else BatchAdvantages(tuple(white), (), seen)
    raw, returns = [], []
    for n, (reward, length) in enumerate(zip(rewards, lengths, strict=True)):
        given = torch.zeros(length)  # (T,)
        given[-1:] = reward
        if kls:
            given = given - objective.kl * kls[n].detach().float().cpu()  # (T,)
        at = values[n].cpu()  # (T,)
        if objective.traces == "v-trace":
            advantages, targets = v_trace(given, at, log_ratios[n].cpu(), objective.gamma, objective.lam)  # (T,), (T,)
        else:
            advantages, targets = gae(given, at, objective.gamma, objective.lam)  # (T,), (T,)
        raw.append(advantages)
        returns.append(targets)
    every = torch.cat(raw) if raw else torch.zeros(0)  # (tokens,)
    if not every.numel() or float(every.abs().max()) < 1e-6:
        return None
    spread = max(float(every.std(correction=0)), objective.floor)
    return BatchAdvantages(tuple((a - every.mean()) / spread for a in raw), tuple(returns), seen)


# Losses of a reply, token by token: what is to be made small


def ppo_clip(logp: Tensor, old: Tensor, advantage: Tensor, low: float = 0.2, high: float = 0.28, dual: float = 3.0) -> Tensor:
    """-min(rho A, clip(rho, 1 - low, 1 + high) A), and at most -c A for A < 0 (1707.06347; dual clip: 1912.09729).

    Args:
        logp: (T,), log pi(y_t), with a gradient.
        old: (T,), log pi_old(y_t): what the clip is around.
        advantage: (T,), A_t.

    Returns:
        (T,).
    """
    rho = ratios(logp, old.detach())  # (T,)
    kept = torch.minimum(rho * advantage, rho.clamp(1 - low, 1 + high) * advantage)  # (T,)
    if math.isfinite(dual):
        kept = torch.where(advantage < 0, torch.maximum(kept, dual * advantage), kept)  # (T,)
    return -kept  # (T,)


def decoupled_ppo(
    logp: Tensor,
    old: Tensor,
    behaviour: Tensor,
    advantage: Tensor,
    max_weight: float = 2.0,
    low: float = 0.2,
    high: float = 0.28,
    dual: float = 3.0,
    level: str = "token",
) -> Tensor:
    """-w min(rho A, clip(rho) A), rho = pi / pi_old, w = min(pi_old / mu, C): decoupled PPO (AReaL, 2505.24298).

    The clip is around pi_old, where this update starts, not around mu, which may be 50 updates away: there most tokens would
    have left the clip before the first step. All shapes (T,).
    """
    return truncated_weights(old - behaviour, max_weight, level) * ppo_clip(logp, old, advantage, low, high, dual)  # (T,)


def reinforce(logp: Tensor, advantage: Tensor, weight: Tensor | float = 1.0) -> Tensor:
    """-sg(w) A log pi(y_t): the score function, weighed. (T,), (T,), (T,) -> (T,).

    With w = min(pi / mu, C) every token keeps a gradient, however far it has moved (CISPO, 2506.13585).
    """
    return -weight * advantage * logp.float()  # (T,)


def sdpo(logits: Tensor, teacher: Tensor, alpha: float = 0.5, top_k: int = 100) -> Tensor:
    """D(q, p) = (alpha KL(q || m) + (1 - alpha) KL(p || m)) / (alpha (1 - alpha)), m = alpha q + (1 - alpha) p (SDPO, 2601.20802).

    Jensen-Shannon's divergence, divided by what makes it go to 0 at both ends: so alpha = 0 is KL(q || p), alpha = 1 is
    KL(p || q), what lies between is continuous, and near p = q all of them are the same (half of chi^2). At alpha = 1/2 it is four
    times the usual one. Computed as

        D = -sum_v q log(m / q) / (1 - alpha) - sum_v p log(m / p) / alpha

    The student's top K tokens are compared one by one, all others as one tail bucket of probability 1 - sum_K on both sides: what
    the teacher wants outside of K still pulls. Nothing is renormalised.

    Args:
        logits: (T, V), the student's, with a gradient.
        teacher: (T, V), logits or log-probabilities; no gradient goes there.
        alpha: from 0 to 1.
        top_k: K; 0, or V and more: every token on its own.

    Returns:
        (T,), in nats, >= 0.
    """
    alpha = (
        0.0 if alpha < MIN_TAIL_PROBABILITY else 1.0 if alpha > 1 - MIN_TAIL_PROBABILITY else alpha
    )  # as near as float32 can tell
    wide = logits.float()  # (T, V)
    other = teacher.detach().float()  # (T, V)
    if 0 < top_k < wide.shape[-1]:
        ids = wide.detach().topk(top_k, dim=-1).indices  # (T, K)
        logp = _with_tail(wide.gather(1, ids) - wide.logsumexp(-1, keepdim=True))  # (T, K + 1)
        logq = _with_tail(other.gather(1, ids) - other.logsumexp(-1, keepdim=True))  # (T, K + 1)
    else:
        logp, logq = wide.log_softmax(-1), other.log_softmax(-1)  # (T, V), (T, V)
    apart = logq - logp  # (T, K + 1)
    total = torch.zeros_like(apart)  # (T, K + 1)
    if alpha < 1:
        total = total - logq.exp() * _log_mixture(1 - alpha, -apart) / (1 - alpha)  # (T, K + 1)
    if alpha > 0:
        total = total - logp.exp() * _log_mixture(alpha, apart) / alpha  # (T, K + 1)
    return total.sum(-1)  # (T,)


def _with_tail(logps: Tensor) -> Tensor:
    """Log-probabilities of K tokens and, behind them, log(1 - sum) of all others: (T, K) -> (T, K + 1)."""
    inside = logps.logsumexp(-1, keepdim=True).clamp(max=-MIN_TAIL_PROBABILITY)  # (T, 1)
    return torch.cat([logps, torch.log(-torch.expm1(inside))], dim=-1)  # (T, K + 1)


def _log_mixture(share: float, apart: Tensor) -> Tensor:
    """log((1 - share) + share e^d), exact for small d and for large d; d and the result have any shape."""
    if share == 1:
        return apart
    small = torch.log1p(share * torch.expm1(apart.clamp(-1, 1)))  # as `apart`
    large = torch.logaddexp(apart.new_tensor(math.log1p(-share)), apart + math.log(share))  # as `apart`
    return torch.where(apart.abs() < 1, small, large)  # as `apart`


def blend(reference: Tensor, current: Tensor, share: float) -> Tensor:
    """log((1 - share) reference + share current): a teacher in a trust region around the base model, which does not run away.

    Logits or log-probabilities (T, V), (T, V) -> log-probabilities (T, V).
    """
    one, two = reference.float().log_softmax(-1), current.float().log_softmax(-1)  # (T, V), (T, V)
    if share in (0, 1):
        return two if share else one  # (T, V)
    return torch.logaddexp(one + math.log1p(-share), two + math.log(share))  # (T, V)


def ema(teacher: Mapping[str, Tensor], student: Mapping[str, Tensor], rate: float) -> dict[str, Tensor]:
    """theta' <- (1 - tau) theta' + tau theta, tensor by tensor, in float32; the shapes stay. New tensors."""
    return {
        name: old.float().lerp(student[name].detach().to(old).float(), rate) for name, old in teacher.items()
    }  # as they are


# The loss of an objective


@dataclass(frozen=True)
class LossInputs:
    """What a loss is told of one reply of T tokens; V is the size of the vocabulary. Only logits and values have a gradient."""

    logits: Tensor
    """(T, V), the learner's, before each token of the reply."""
    tokens: Tensor
    """(T,), the reply."""
    behaviour_logprobs: Tensor | None = None
    """(T,), log mu(y_t); None: the learner itself has just sampled it."""
    old_logprobs: Tensor | None = None
    """(T,), log pi_old(y_t); None: the learner as it is."""
    advantage: Tensor | None = None
    """(T,), A_t: for `reinforce` and `ppo`."""
    teacher_logits: Tensor | None = None
    """(T, V), logits or log-probabilities: for `sdpo`, which leaves the reply out without it, and for `hint`."""
    base_logits: Tensor | None = None
    """(T, V), logits of the base model; None: no KL is computed, where its weight is 0."""
    values: Tensor | None = None
    """(T,), the critic's."""
    returns: Tensor | None = None
    """(T,), what it is to say."""
    temperature: float = 1.0
    """That the reply was sampled at: its log-probabilities are those of softmax(logits / temperature). Divergences, entropy and KL
    are those at 1."""


def objective_loss(
    batch: Sequence[LossInputs], objective: Objective, total_tokens: int | None = None
) -> tuple[Tensor, dict[str, float]]:
    """The loss of an objective over replies, per token: policy + kl KL(pi || base) - entropy H(pi) + (V - returns)^2 / 2.

    Args:
        batch: what is known of each reply.
        objective: which loss, which correction, which weights.
        tokens: what the sum is divided by: the tokens of the whole batch, where this is a part of it. Default: those given.

    Returns:
        The loss, (), in float32; and statistics of the learner before the update, means over the tokens given: `loss`,
        `entropy` and (where it was computed) `kl`, in nats; `weight`, the mean of w; `clipped`, the share of tokens that the clip
        of PPO holds back or whose weight is truncated or rejected; `ratio` and `ratio_max` of pi / mu; `value`, the critic's
        loss; `tokens`.

    Raises:
        UserError: the objective needs what is not there.
    """
    device = batch[0].logits.device if batch else torch.device("cpu")
    policy, more, critics = (torch.zeros((), device=device) for _ in range(3))  # ()
    sums = dict.fromkeys(("entropy", "kl", "weight", "clipped", "ratio"), 0.0)
    count, measured, largest = 0, 0, 0.0
    for reply in batch:
        logits, size = reply.logits.float(), len(reply.tokens)  # (T, V)
        if objective.loss == "sdpo" and reply.teacher_logits is None:
            continue
        wide = logits if reply.temperature == 1 else logits / reply.temperature  # (T, V)
        logp = token_logprobs(wide.detach() if objective.loss == "sdpo" else wide, reply.tokens)  # (T,)
        now = logp.detach()  # (T,)
        old = now if reply.old_logprobs is None else reply.old_logprobs.to(now)  # (T,)
        behaviour = old if reply.behaviour_logprobs is None else reply.behaviour_logprobs.to(now)  # (T,)
        current = now if objective.correction == "truncated" else old  # (T,)
        weights = _importance_weights(current, behaviour, objective)  # (T,)
        if objective.loss == "sdpo":
            assert reply.teacher_logits is not None
            each = weights * sdpo(logits, reply.teacher_logits, objective.alpha, objective.top_k)  # (T,)
            held = torch.zeros_like(now, dtype=torch.bool)  # (T,)
        else:
            if reply.advantage is None:
                raise UserError(f"the loss {objective.loss!r} needs advantages; `judge` makes them from rewards")
            gain = reply.advantage.to(now)  # (T,)
            if objective.hint > 0 and reply.teacher_logits is not None:
                gain = gain + objective.hint * _hint_advantage(reply, logits)  # (T,)
            if objective.correction == "truncated":
                each = reinforce(logp, gain, weights)  # (T,)
                held = torch.zeros_like(now, dtype=torch.bool)  # (T,)
            else:
                each = weights * ppo_clip(logp, old, gain, objective.clip_low, objective.clip_high, objective.dual)  # (T,)
                rho = ratios(now, old)  # (T,)
                held = ((rho > 1 + objective.clip_high) & (gain > 0)) | ((rho < 1 - objective.clip_low) & (gain < 0))  # (T,)
        policy = policy + each.sum()  # ()
        if objective.kl > 0 and reply.base_logits is None:
            raise UserError(f"a weight of {objective.kl:g} on KL(pi || base) needs a pass of the base model")
        if reply.base_logits is not None:
            apart = kl_to(reply.base_logits, logits if objective.kl > 0 else logits.detach())  # (T,)
            more = more + objective.kl * apart.sum() if objective.kl > 0 else more  # ()
            sums["kl"] += float(apart.detach().sum())
            measured += size
        spread = entropy(logits if objective.entropy > 0 else logits.detach())  # (T,)
        more = more - objective.entropy * spread.sum() if objective.entropy > 0 else more  # ()
        if reply.values is not None and reply.returns is not None:
            critics = critics + 0.5 * (reply.values.float() - reply.returns.to(now)).square().sum()  # ()
        ratio = ratios(now, behaviour)  # (T,)
        count += size
        largest = max(largest, float(ratio.max()) if size else 0.0)
        cut = _cut_mask(current, behaviour, objective)  # (T,)
        for name, value in (
            ("entropy", spread.detach()),
            ("weight", weights),
            ("clipped", (held | cut).float()),
            ("ratio", ratio),
        ):
            sums[name] += float(value.sum())
    by = max(total_tokens or count, 1)
    total = (policy + more + critics) / by  # ()
    said = {name: value / max(count, 1) for name, value in sums.items() if name != "kl"}
    if measured:
        said["kl"] = sums["kl"] / measured
    said |= {"loss": float(policy.detach()) / max(count, 1), "value": float(critics.detach()) / max(count, 1)}
    return total, said | {"ratio_max": largest, "tokens": float(count)}


def _hint_advantage(reply: LossInputs, logits: Tensor) -> Tensor:
    """log q(y_t) - log p(y_t), without a gradient: (T, V) -> (T,)."""
    assert reply.teacher_logits is not None
    apart = token_logprobs(reply.teacher_logits, reply.tokens) - token_logprobs(logits.detach(), reply.tokens)  # (T,)
    return apart.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)  # (T,)


def _cut_mask(old: Tensor, behaviour: Tensor, objective: Objective) -> Tensor:
    """Which tokens' weights are not the plain ratio: truncated or rejected. (T,), (T,) -> (T,) of bools."""
    if objective.correction == "none":
        return torch.zeros_like(old, dtype=torch.bool)  # (T,)
    plain = truncated_weights((old - behaviour).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO), math.inf, objective.level)  # (T,)
    return plain != _importance_weights(old, behaviour, objective)  # (T,)
