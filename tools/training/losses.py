"""Losses that learn from served replies, as pure functions (CLaaS): float32, over the tensors of one reply of T tokens.

    mu       the distribution that the reply was sampled from, recorded then (the behaviour policy)
    pi_old   the learner before the update, recomputed now
    pi       the learner, with a gradient (p in the losses of distillation)
    q        the teacher: the model that also reads the feedback
    base     the model without an adapter

`Objective` (memory/claas/settings.py) chooses the loss and its weights. `compute_advantages` turns rewards into advantages,
`measure_staleness` says how stale a minibatch is, and `objective_loss` puts everything together. tools/training/lora.py makes the
passes and the update. tests/equations/test_claas.py checks the equations with numbers worked out by hand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...memory.claas.settings import Objective, StalenessCorrection
from ...memory.errors import UserError
from ...memory.records import Correction

__all__ = ["LossInputs", "reinforce", "sdpo"]

MAX_LOG_RATIO = 20.0
"""Log-ratios are cut to [-20, 20]: e^20 is far beyond any truncation, and still finite."""
MIN_TAIL_PROBABILITY = 1e-7
"""The smallest probability of the tail bucket: what is left of 1 in float32."""


# Importance ratios and corrections. Weights carry no gradient


def ratios(new: Tensor, old: Tensor, clamp: float = MAX_LOG_RATIO) -> Tensor:
    """rho_t = exp(clamp(log new(y_t) - log old(y_t))), the ratio of a token's probabilities. Shapes (T,), (T,) -> (T,), float32.

    The gradient goes to both arguments where they have one. A ratio is a small difference of large numbers: the log-probabilities
    must be float32. Those of bfloat16 logits (as in CLaaS's public code) are too coarse.
    """
    return (new.float() - old.float()).clamp(-clamp, clamp).exp()  # (T,)


def ess(log_weights: Tensor) -> float:
    """(sum w)^2 / (N sum w^2), from log w of N sequences, (N,): the effective share of a sample, in (0, 1]. 1 if N = 0."""
    if not log_weights.numel():
        return 1.0
    logs = log_weights.double()  # (N,)
    return float((2 * logs.logsumexp(0) - (2 * logs).logsumexp(0)).exp() / len(logs))


def truncated_weights(log_ratio: Tensor, max_weight: float = 2.0, level: str = "token") -> Tensor:
    """w_t = min(pi_old(y_t) / mu(y_t), C), truncated importance sampling, from log(pi_old / mu) of one reply: (T,) -> (T,).

    The ratio is that of each token, of the product over the reply, or of the geometric mean over the reply, as `level` says. The
    result has no gradient.
    """
    logs = log_ratio.detach().float()  # (T,)
    if level == "sequence":
        logs = logs.sum().expand_as(logs)  # (T,), all the same
    elif level == "geometric":
        logs = logs.mean().expand_as(logs)  # (T,), all the same
    return logs.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=max_weight)  # (T,)


def trusted_token_mask(log_ratio: Tensor, low: float, high: float, veto: float = 0.0, level: str = "token") -> Tensor:
    """True for tokens whose weight is trusted (masked importance sampling): low <= w <= high; (T,) -> (T,) of bools.

    If the ratio of any single token is below `veto`, no token is trusted: such a reply is from another model (verl).
    """
    weights = truncated_weights(log_ratio, math.inf, level)  # (T,)
    trusted = (weights >= low) & (weights <= high)  # (T,)
    return trusted & (log_ratio.detach().float().exp() >= veto).all()  # (T,)


def importance_weights(old: Tensor, behaviour: Tensor, correction: StalenessCorrection) -> Tensor:
    """w_t of a correction, without a gradient, from log pi_old and log mu: (T,), (T,) -> (T,)."""
    log_ratio = (old.detach().float() - behaviour.float()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)  # (T,)
    if correction.kind in ("none", "clipped"):
        return torch.ones_like(log_ratio)  # (T,)
    if correction.kind == "rejection":
        low, high = correction.min_ratio, correction.max_ratio
        trusted = trusted_token_mask(log_ratio, low, high, correction.veto_ratio, correction.level)  # (T,)
        return truncated_weights(log_ratio, math.inf, correction.level) * trusted  # (T,)
    return truncated_weights(log_ratio, correction.max_weight, correction.level)  # (T,)


def measure_staleness(
    ids: Sequence[str],
    old: Sequence[Tensor],
    behaviour: Sequence[Tensor],
    objective: Objective,
    dropped: Mapping[str, str] | None = None,
) -> Correction:
    """The learner's distance from the versions that sampled a minibatch, and the replies that can still be learned from.

    Args:
        ids: of the replies.
        old: log pi_old of each, (T_i,), in float32.
        behaviour: log mu of each, (T_i,), in float32.
        objective: its correction, and the effective share of a sample from which on the learning rate is whole.
        dropped: id -> why not, of the minibatch's other replies.
    """
    correction = objective.correction
    reasons, kls, kept = dict[str, str](), list[tuple[str, float]](), dict[str, Tensor]()
    for id, now, then in zip(ids, old, behaviour, strict=True):
        log_ratio = now.detach().float().cpu() - then.float().cpu()  # (T,)
        kls.append((id, -float(log_ratio.mean()) if len(log_ratio) else 0.0))
        if reason := _drop_reason(log_ratio, correction):
            reasons[id] = reason
        else:
            kept[id] = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)  # (T,)
    found = Correction(tuple(kept), tuple({**(dropped or {}), **reasons}.items()), kls=tuple(kls))
    if not kept:
        return found
    every = torch.cat([*kept.values()])  # (tokens,)
    weights = torch.cat([truncated_weights(log_ratio, math.inf, correction.level) for log_ratio in kept.values()])  # (tokens,)
    low, high = 0.0, correction.max_weight
    if correction.kind == "rejection":
        low, high = correction.min_ratio, correction.max_ratio
    cut = ((weights < low) | (weights > high)).float().mean() if correction.kind != "none" else torch.zeros(())  # ()
    share = ess(torch.stack([log_ratio.sum() for log_ratio in kept.values()]))
    target = correction.ess_target if correction.kind != "none" else 0.0
    return replace(
        found,
        ess=share,
        ratio=float(every.exp().mean()),
        ratio_max=float(every.exp().max()),
        clipped=float(cut),
        kl=-float(every.mean()),
        scale=min(1.0, share / target) if target else 1.0,
    )


def _drop_reason(log_ratio: Tensor, correction: StalenessCorrection) -> str:
    """Reason to drop a reply, by log(pi_old / mu) of its tokens, (T,); empty if it is kept."""
    if not len(log_ratio):
        return "no tokens"
    if not bool(torch.isfinite(log_ratio).all()):
        return "log-probabilities that are not finite"
    if correction.kind == "none":
        return ""
    least = float(log_ratio.min().exp())
    if least < correction.veto_ratio:
        return (
            f"a token is {least:.2g} times as probable as when it was sampled, less than the veto of {correction.veto_ratio:g}"
        )
    if correction.kind == "rejection":
        weights = truncated_weights(log_ratio, math.inf, correction.level)  # (T,)
        if not bool(((weights >= correction.min_ratio) & (weights <= correction.max_ratio)).any()):
            return f"all its ratios are outside [{correction.min_ratio:g}, {correction.max_ratio:g}]"
    return ""


# Log-probabilities


class _TokenLogprobs(torch.autograd.Function):
    """log softmax(logits)[token] with a backward pass that makes one (T, V) tensor; autograd's own makes three."""

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


# KL divergences


def kl_to(base: Tensor, logits: Tensor) -> Tensor:
    """KL(pi || base) = sum_v pi(v) (log pi(v) - log base(v)) before each token: logits (T, V), (T, V) -> (T,), in nats.

    The sum runs over the whole vocabulary, so that the gradient is exact. Estimates from the sampled tokens have another gradient.
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


def whiten(rewards: Sequence[float], lengths: Sequence[int], min_std: float) -> list[Tensor] | None:
    """A_t = (r - mean) / max(std, min_std): REINFORCE++ with one reply per prompt, without KL in the reward (2501.03262).

    Mean and standard deviation are taken over all tokens of the minibatch, so that long replies count for more.

    Args:
        rewards: r of each reply.
        lengths: T_i of each reply.
        min_std: the smallest standard deviation, in reward units.

    Returns:
        (T_i,) of each reply, in float32. None if all advantages are 0, so that there is nothing to learn.
    """
    returns = [
        torch.full((length,), float(reward), dtype=torch.float64) for reward, length in zip(rewards, lengths, strict=True)
    ]
    if not returns:
        return None
    every = torch.cat(returns)  # (tokens,)
    white = [(g - every.mean()) / max(float(every.std(correction=0)), min_std) for g in returns]  # (T_i,)
    if max(float(a.abs().max()) if len(a) else 0.0 for a in white) < 1e-6:
        return None
    return [a.float() for a in white]  # (T_i,)


@dataclass(frozen=True)
class RewardEvidence:
    """Evidence in the rewards of n replies that they depend on what was said."""

    confirmed: Tensor
    """(n,), each reward as the rewards of like replies confirm it."""
    standard_errors: float
    """By how many standard errors like replies have like rewards, above what chance gives; 0 where either side has too few rewards."""

    def share(self, least: float) -> float:
        """max(0, 1 - (least / z)^2): the share of a full step that the rewards are worth, in [0, 1)."""
        return 1.0 - (least / self.standard_errors) ** 2 if self.standard_errors > least else 0.0


def can_tell_apart(rewards: Sequence[float], least: int = 3) -> bool:
    """False if neither these rewards nor any part of them have as many above and below their mean as `weigh_rewards` needs."""
    ordered = sorted(rewards)
    return len(ordered) >= 2 * least and ordered[least - 1] < ordered[-least]


def weigh_rewards(scores: Tensor, rewards: Tensor, least_of_each: int = 3, permutations: int = 200) -> RewardEvidence:
    """A permutation test of whether rewards depend on what was said, and each reward smoothed over like replies.

    K_ij = s_i . s_j / (|s_i| |s_j|), A = r - mean r, T = sum_{i != j} A_i A_j K_ij. If the rewards came by chance, each order of them
    would be as likely: z = (T - mean T) / std T over random orders. The scores are gradients of log pi, so that T estimates the squared
    length of the policy gradient without bias. Smoothed: mean r + K (K + I)^-1 A (kernel ridge regression).

    Args:
        scores: (n, d), s_i of each reply, see `ReplyLogprobs.score`.
        rewards: (n,).
        least_of_each: rewards above the mean, and below it, with fewer of which nothing is said: z = 0.
        permutations: orders drawn, always the same ones.
    """
    unit = torch.nn.functional.normalize(scores.double(), dim=1)  # (n, d)
    similarity, centred = unit @ unit.T, rewards.double() - rewards.double().mean()  # (n, n), (n,)
    confirmed = rewards.double().mean() + similarity @ torch.linalg.solve(
        similarity + torch.eye(len(rewards), dtype=torch.float64), centred
    )  # (n,)
    if min(int((centred > 1e-9).sum()), int((centred < -1e-9).sum())) < least_of_each:
        return RewardEvidence(confirmed, 0.0)
    others = similarity - torch.diag(similarity.diagonal())  # (n, n)
    generator = torch.Generator().manual_seed(0)
    orders = torch.stack([torch.randperm(len(rewards), generator=generator) for _ in range(permutations)])  # (permutations, n)
    chance = ((centred[orders] @ others) * centred[orders]).sum(1)  # (permutations,)
    spread = float(chance.std())
    observed = float(centred @ others @ centred - chance.mean())
    return RewardEvidence(confirmed, observed / spread if spread > 1e-12 else 0.0)


def gae(rewards: Tensor, values: Tensor, gamma: float = 1.0, lam: float = 0.95) -> tuple[Tensor, Tensor]:
    """A_t = sum_l (gamma lambda)^l delta_{t+l}, delta_t = r_t + gamma V_{t+1} - V_t, V = 0 after the end (1506.02438).

    Args:
        rewards: (T,), r_t; with one reward for the reply, 0 except at the end.
        values: (T,), the critic's V before each token.

    Returns:
        Advantages (T,), and the critic's targets A_t + V_t, (T,). No gradients.
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


@dataclass(frozen=True)
class BatchAdvantages:
    """Advantages of the tokens of a minibatch."""

    advantages: tuple[Tensor, ...]
    """(T_i,) of each reply."""
    returns: tuple[Tensor, ...] = ()
    """(T_i,) of each reply: targets of the critic. Empty without a critic."""


def compute_advantages(
    rewards: Sequence[float],
    lengths: Sequence[int],
    objective: Objective,
    values: Sequence[Tensor] = (),
) -> BatchAdvantages | None:
    """Advantages of a minibatch for the losses `reinforce` and `ppo`. None if all of them are 0, so that there is nothing to learn.

    Args:
        rewards: r of each reply.
        lengths: T_i of each reply.
        objective: the loss and its settings.
        values: of the critic, (T_i,): for `ppo`.
    """
    if objective.kind == "ppo":
        return _critic_advantages(rewards, lengths, objective, values)
    white = whiten(rewards, lengths, objective.policy.min_advantage_std)
    return None if white is None else BatchAdvantages(tuple(white))


def _critic_advantages(
    rewards: Sequence[float], lengths: Sequence[int], objective: Objective, values: Sequence[Tensor]
) -> BatchAdvantages | None:
    """PPO's advantages by GAE, whitened over the minibatch; arguments as for `compute_advantages`."""
    policy = objective.policy
    raw, returns = [], []
    for n, (reward, length) in enumerate(zip(rewards, lengths, strict=True)):
        given = torch.zeros(length)  # (T,)
        given[-1:] = reward
        now = values[n].cpu()  # (T,)
        advantages, targets = gae(given, now, policy.discount, policy.gae_lambda)  # (T,), (T,)
        raw.append(advantages)
        returns.append(targets)
    every = torch.cat(raw) if raw else torch.zeros(0)  # (tokens,)
    if not every.numel() or float(every.abs().max()) < 1e-6:
        return None
    std = max(float(every.std(correction=0)), policy.min_advantage_std)
    return BatchAdvantages(tuple((a - every.mean()) / std for a in raw), tuple(returns))


# Losses of a reply, token by token


def ppo_clip(logp: Tensor, old: Tensor, advantage: Tensor, low: float = 0.2, high: float = 0.28, dual: float = 3.0) -> Tensor:
    """-min(rho A, clip(rho, 1 - low, 1 + high) A), and at most -c A for A < 0 (1707.06347; dual clip: 1912.09729).

    With a weight min(pi_old / mu, C) it is decoupled PPO (AReaL, 2505.24298): the clip is around pi_old, where this update starts.
    Around mu, which may be 50 updates away, most tokens would be outside of the clip before the first step.

    Returns:
        (T,).
    """
    rho = ratios(logp, old.detach())  # (T,)
    kept = torch.minimum(rho * advantage, rho.clamp(1 - low, 1 + high) * advantage)  # (T,)
    if math.isfinite(dual):
        kept = torch.where(advantage < 0, torch.maximum(kept, dual * advantage), kept)  # (T,)
    return -kept  # (T,)


def reinforce(logp: Tensor, advantage: Tensor, weight: Tensor | float = 1.0) -> Tensor:
    """-sg(w) A log pi(y_t): the weighted score function. (T,), (T,), (T,) -> (T,).

    With w = min(pi / mu, C) every token keeps a gradient, however far it has moved (CISPO, 2506.13585).
    """
    return -weight * advantage * logp.float()  # (T,)


def sdpo(logits: Tensor, teacher: Tensor, alpha: float = 0.5, top_k: int = 100) -> Tensor:
    """D(q, p) = (alpha KL(q || m) + (1 - alpha) KL(p || m)) / (alpha (1 - alpha)), m = alpha q + (1 - alpha) p (SDPO, 2601.20802).

    The generalised Jensen-Shannon divergence, divided by alpha (1 - alpha). alpha = 0 is KL(q || p), alpha = 1 is KL(p || q), values
    in between are continuous, and near p = q all of them agree (half of chi^2). At alpha = 1/2 it is four times the usual
    Jensen-Shannon divergence. Computed as

        D = -sum_v q log(m / q) / (1 - alpha) - sum_v p log(m / p) / alpha

    The student's top K tokens are compared one by one, all others as one tail bucket of probability 1 - sum_K on both sides, so that
    the teacher's probability outside of K still counts. Nothing is renormalised.

    Args:
        logits: (T, V), the student's, with a gradient.
        teacher: (T, V), logits or log-probabilities, without a gradient.
        alpha: from 0 to 1.
        top_k: K; 0, or V and more: every token on its own.

    Returns:
        (T,), in nats, >= 0.
    """
    if alpha < MIN_TAIL_PROBABILITY:  # as near to an end as float32 can tell
        alpha = 0.0
    elif alpha > 1 - MIN_TAIL_PROBABILITY:
        alpha = 1.0
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
    """log((1 - share) reference + share current): a teacher that stays in a trust region around the base model.

    Logits or log-probabilities (T, V), (T, V) -> log-probabilities (T, V).
    """
    fixed, moving = reference.float().log_softmax(-1), current.float().log_softmax(-1)  # (T, V), (T, V)
    if share in (0, 1):
        return moving if share else fixed  # (T, V)
    return torch.logaddexp(fixed + math.log1p(-share), moving + math.log(share))  # (T, V)


def ema(teacher: Mapping[str, Tensor], student: Mapping[str, Tensor], rate: float) -> dict[str, Tensor]:
    """theta' <- (1 - tau) theta' + tau theta: new float32 tensors of the teacher's names and shapes."""
    return {name: old.float().lerp(student[name].detach().to(old).float(), rate) for name, old in teacher.items()}


# The loss of an objective


@dataclass(frozen=True)
class LossInputs:
    """Inputs of the loss of one reply of T tokens; V is the size of the vocabulary. Only logits and values have a gradient."""

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
    """(T, V), logits or log-probabilities: for `sdpo`, which leaves the reply out without them."""
    base_logits: Tensor | None = None
    """(T, V), logits of the base model; None: KL(pi || base) is not computed, which needs its weight to be 0."""
    values: Tensor | None = None
    """(T,), the critic's values."""
    returns: Tensor | None = None
    """(T,), the critic's targets."""
    temperature: float = 1.0
    """Temperature that the reply was sampled at: its log-probabilities are those of softmax(logits / temperature). Divergences,
    entropy and KL are those at 1."""


def objective_loss(
    batch: Sequence[LossInputs], objective: Objective, total_tokens: int | None = None
) -> tuple[Tensor, dict[str, float]]:
    """The loss of an objective over replies, per token: policy + b KL(pi || base) - c H(pi) + (V - returns)^2 / 2.

    Args:
        batch: the replies. For `sdpo` those without a teacher are left out.
        objective: loss, correction and weights.
        total_tokens: divisor of the sum: the tokens of the whole minibatch, where `batch` is a part of it. Default: those of `batch`.

    Returns:
        The loss, (), in float32; and statistics of the learner before the update, means over the tokens: `loss`, `entropy` and
        (where it was computed) `kl`, in nats; `weight`, the mean of w; `clipped`, the share of tokens that PPO's clip holds back or
        whose weight is truncated or rejected; `ratio` and `ratio_max` of pi / mu; `value`, the critic's loss; `tokens`.
    """
    rewarded = objective.uses_rewards
    used = [
        reply
        for reply in batch
        if not objective.uses_words or reply.teacher_logits is not None or (rewarded and reply.advantage is not None)
    ]
    nothing = torch.zeros((), device=batch[0].logits.device if batch else None)  # ()
    terms = [_reply_loss(reply, objective) for reply in used]
    policy, regularizer, critic = (sum((losses[n] for losses, _ in terms), nothing) for n in range(3))  # (), (), ()
    count = sum(len(reply.tokens) for reply in used)
    total = (policy + regularizer + critic) / max(total_tokens or count, 1)  # ()
    means = {name: sum(sums[name] for _, sums in terms) / max(count, 1) for name in ("entropy", "weight", "clipped", "ratio")}
    if with_base := sum(len(reply.tokens) for reply in used if reply.base_logits is not None):
        means["kl"] = sum(sums.get("kl", 0.0) for _, sums in terms) / with_base
    means |= {"loss": float(policy.detach()) / max(count, 1), "value": float(critic.detach()) / max(count, 1)}
    ratio_max = max((sums["ratio_max"] for _, sums in terms), default=0.0)
    return total, means | {"ratio_max": max(ratio_max, 0.0), "tokens": float(count)}


def _reply_loss(reply: LossInputs, objective: Objective) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, float]]:
    """Policy, regulariser and critic terms of a reply's loss, each (), and its statistics: all but `ratio_max` sums over its tokens."""
    correction = objective.correction
    logits = reply.logits.float()  # (T, V)
    tempered = logits if reply.temperature == 1 else logits / reply.temperature  # (T, V)
    has_teacher = objective.uses_words and reply.teacher_logits is not None
    logp = token_logprobs(tempered.detach() if has_teacher else tempered, reply.tokens)  # (T,)
    now = logp.detach()  # (T,)
    old = now if reply.old_logprobs is None else reply.old_logprobs.to(now)  # (T,)
    behaviour = old if reply.behaviour_logprobs is None else reply.behaviour_logprobs.to(now)  # (T,)
    current = now if correction.kind == "truncated" else old  # (T,)
    weights = importance_weights(current, behaviour, correction)  # (T,)
    if objective.uses_words and reply.teacher_logits is not None:
        each = weights * sdpo(logits, reply.teacher_logits, objective.teacher.divergence, objective.teacher.top_k)  # (T,)
        clipped = torch.zeros_like(now, dtype=torch.bool)  # (T,)
    else:
        around = behaviour if correction.kind == "clipped" else old  # (T,)
        each, clipped = _policy_loss(reply, objective, logp, around, weights)  # (T,), (T,)
    regularizer, sums = _regularizer(reply, objective, logits)  # ()
    critic = torch.zeros((), device=logits.device)  # ()
    if reply.values is not None and reply.returns is not None:
        critic = 0.5 * (reply.values.float() - reply.returns.to(now)).square().sum()  # ()
    ratio = ratios(now, behaviour)  # (T,)
    cut = clipped | _cut_mask(current, behaviour, correction)  # (T,)
    sums |= {"weight": float(weights.sum()), "clipped": float(cut.float().sum()), "ratio": float(ratio.sum())}
    return (each.sum(), regularizer, critic), sums | {"ratio_max": float(ratio.max()) if len(ratio) else 0.0}


def _policy_loss(reply: LossInputs, objective: Objective, logp: Tensor, old: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each token for `reinforce` and `ppo`, (T,), and True where PPO's clip holds a token back, (T,)."""
    if reply.advantage is None:
        raise UserError(f"the loss {objective.kind!r} needs advantages; `compute_advantages` makes them from rewards")
    now, policy = logp.detach(), objective.policy  # (T,)
    advantage = reply.advantage.to(now)  # (T,)
    if objective.correction.kind == "truncated":
        return reinforce(logp, advantage, weights), torch.zeros_like(now, dtype=torch.bool)  # (T,), (T,)
    each = weights * ppo_clip(logp, old, advantage, policy.clip_low, policy.clip_high, policy.dual_clip)  # (T,)
    rho = ratios(now, old)  # (T,)
    too_high = (rho > 1 + policy.clip_high) & (advantage > 0)  # (T,)
    too_low = (rho < 1 - policy.clip_low) & (advantage < 0)  # (T,)
    return each, too_high | too_low


def _regularizer(reply: LossInputs, objective: Objective, logits: Tensor) -> tuple[Tensor, dict[str, float]]:
    """b KL(pi || base) - c H(pi), summed over the tokens, (); and the sums of entropy and (where computed) KL, in nats."""
    total, sums = torch.zeros((), device=logits.device), dict[str, float]()  # ()
    if objective.kl_weight > 0 and reply.base_logits is None:
        raise UserError(f"a weight of {objective.kl_weight:g} on KL(pi || base) needs a pass of the base model")
    if reply.base_logits is not None:
        kl = kl_to(reply.base_logits, logits if objective.kl_weight > 0 else logits.detach())  # (T,)
        total = total + objective.kl_weight * kl.sum() if objective.kl_weight > 0 else total  # ()
        sums["kl"] = float(kl.detach().sum())
    spread = entropy(logits if objective.entropy_weight > 0 else logits.detach())  # (T,)
    total = total - objective.entropy_weight * spread.sum() if objective.entropy_weight > 0 else total  # ()
    sums["entropy"] = float(spread.detach().sum())
    return total, sums


def _cut_mask(old: Tensor, behaviour: Tensor, correction: StalenessCorrection) -> Tensor:
    """True for tokens whose weight is not the plain ratio: truncated or rejected. (T,), (T,) -> (T,) of bools."""
    if correction.kind in ("none", "clipped"):
        return torch.zeros_like(old, dtype=torch.bool)  # (T,)
    plain = truncated_weights((old - behaviour).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO), math.inf, correction.level)  # (T,)
    return plain != importance_weights(old, behaviour, correction)  # (T,)
