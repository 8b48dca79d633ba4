"""The losses of CLaaS against brute force, against their limits, and (where it is installed) against TRL.

The equations with numbers worked out by hand are in tests/equations/test_claas.py.
"""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from claas_settings import make_objective
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learngraph.memory.claas.settings import Objective
from learngraph.memory.errors import UserError
from learngraph.tools.training import losses
from learngraph.tools.training.losses import LossInputs


def draw(*shape: int, seed: int = 0, scale: float = 1.5) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def chances(logits: Tensor) -> list[list[float]]:
    return logits.double().softmax(-1).tolist()  # type: ignore[no-any-return]


# Ratios, corrections


def test_ratios_are_float32_however_the_logits_come() -> None:
    """Log-softmax in bfloat16 is off by more than the policy moves in an update."""
    logits = draw(64, 512, seed=1, scale=3).bfloat16()  # (T, V)
    moved = logits.float() + 1e-3 * draw(64, 512, seed=2)  # (T, V)
    tokens = logits.float().argmax(-1)  # (T,)

    def logp(at: Tensor) -> Tensor:
        return at.gather(1, tokens[:, None])[:, 0]

    true = (logp(moved.double().log_softmax(-1)) - logp(logits.double().log_softmax(-1))).exp()
    ours = losses.ratios(logp(moved.log_softmax(-1)), logp(logits.float().log_softmax(-1)))
    theirs = (logp(moved.bfloat16().log_softmax(-1)) - logp(logits.log_softmax(-1))).float().exp()
    assert ours.dtype == torch.float32
    assert float((ours - true).abs().max()) < 1e-5
    assert float((theirs - true).abs().max()) > 1e-3 > float((true - 1).abs().mean())
    _, said = losses.objective_loss([evidence(logits, tokens, advantage=torch.ones(64))], Objective(kind="reinforce"))
    assert said["ratio"] == 1.0


def test_statistics_say_what_a_batch_is_worth() -> None:
    old = [torch.tensor([0.5, 0.5]).log(), torch.tensor([0.2]).log(), torch.tensor([1e-6, 0.5]).log(), torch.zeros(0)]
    mu = [torch.tensor([0.25, 0.5]).log(), torch.tensor([0.6]).log(), torch.tensor([0.5, 0.5]).log(), torch.zeros(0)]
    said = losses.measure_staleness("abcd", old, mu, make_objective(correction="truncated", max_weight=1.5), {"e": "late"})
    assert said.kept == ("a", "b")
    assert "veto" in dict(said.dropped)["c"]
    assert said.dropped[0] == ("e", "late")
    assert said.dropped[2] == ("d", "no tokens")
    assert said.ratio == pytest.approx((2 + 1 + 1 / 3) / 3)
    assert (said.ratio_max, said.clipped) == (pytest.approx(2.0), pytest.approx(1 / 3))
    assert said.kl == pytest.approx(-(math.log(2) + 0 + math.log(1 / 3)) / 3)
    assert said.kls[0] == ("a", pytest.approx(-math.log(2) / 2))
    assert said.ess == pytest.approx((2 + 1 / 3) ** 2 / (2 * (4 + 1 / 9)))
    rejected = losses.measure_staleness("abcd", old, mu, make_objective(correction="rejection", max_ratio=1.9))
    assert rejected.kept == ("a",)
    assert "outside" in dict(rejected.dropped)["b"]
    assert losses.measure_staleness("abcd", old, mu, make_objective(correction="none")).kept == ("a", "b", "c")
    assert losses.measure_staleness([], [], [], Objective()).ess == 1.0
    odd = losses.measure_staleness("a", [torch.tensor([math.nan])], [torch.zeros(1)], make_objective(correction="none"))
    assert "not finite" in dict(odd.dropped)["a"]
    assert losses.ess(torch.tensor([0.0, 5000.0])) == pytest.approx(0.5)


# KL


def test_kl_is_its_definition_and_going_down_it_moves_towards_the_base() -> None:
    logits, base = draw(1, 3, seed=8).requires_grad_(), draw(1, 3, seed=9)
    true = sum(x * math.log(x / y) for x, y in zip(chances(logits)[0], chances(base)[0], strict=True))
    assert float(losses.kl_to(base + 7.0, logits - 3.0).detach()) == pytest.approx(true, abs=1e-6)
    (down,) = torch.autograd.grad(losses.kl_to(base, logits).sum(), logits)
    assert float((losses.kl_to(base, logits - 0.1 * down) - losses.kl_to(base, logits)).detach()) < 0


# Distillation


def brute(p: list[float], q: list[float], alpha: float) -> float:
    """D by its definition, in double precision."""

    def kl(one: list[float], two: list[float]) -> float:
        return sum(x * math.log(x / y) for x, y in zip(one, two, strict=True) if x)

    if alpha in (0, 1):
        return kl(p, q) if alpha else kl(q, p)
    m = [alpha * y + (1 - alpha) * x for x, y in zip(p, q, strict=True)]
    return (alpha * kl(q, m) + (1 - alpha) * kl(p, m)) / (alpha * (1 - alpha))


@pytest.mark.parametrize("alpha", [0.0, 0.01, 0.3, 0.5, 0.9, 1.0])
def test_the_divergence_is_its_definition(alpha: float) -> None:
    student, teacher = draw(20, 3, seed=3), draw(20, 3, seed=4, scale=3)
    expected = [brute(p, q, alpha) for p, q in zip(chances(student), chances(teacher), strict=True)]
    for shift in (0.0, 11.0):  # logits, or log-probabilities
        assert losses.sdpo(student + shift, teacher - shift, alpha, 0).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_both_ends_are_exact_and_reached_continuously() -> None:
    """As they are not in the public code: alpha 0 must not be 0, alpha 1 not another estimator."""
    student, teacher = draw(50, 5, seed=5), draw(50, 5, seed=6)
    forward = torch.nn.functional.kl_div(student.log_softmax(-1), teacher.log_softmax(-1), reduction="none", log_target=True)
    reverse = torch.nn.functional.kl_div(teacher.log_softmax(-1), student.log_softmax(-1), reduction="none", log_target=True)
    for end, expected in ((0.0, forward.sum(-1)), (1.0, reverse.sum(-1))):
        assert torch.allclose(losses.sdpo(student, teacher, end, 0), expected, atol=1e-5)
        assert float(expected.min()) > 0
        for far in (1e-6, 1e-4, 1e-2):
            near = abs(end - far)
            close = losses.sdpo(student, teacher, near, 0)
            assert float(((close - expected).abs() / expected).max()) < 40 * far + 2e-4
    grid = [float(losses.sdpo(student, teacher, a / 100, 0).sum()) for a in range(101)]
    assert max(abs(a - b) for a, b in itertools.pairwise(grid)) < 0.05 * max(grid)


@pytest.mark.parametrize("alpha", [0.0, 1e-5, 0.5, 1 - 1e-5, 1.0])
def test_its_gradient_is_continuous_too_and_points_to_the_teacher(alpha: float) -> None:
    logits, teacher = draw(1, 3, seed=7).double().float().requires_grad_(), draw(1, 3, seed=8)
    (slope,) = torch.autograd.grad(losses.sdpo(logits, teacher, alpha, 0).sum(), logits)
    for v in range(3):
        up, down = (logits.detach().double() + s * 1e-4 * torch.nn.functional.one_hot(torch.tensor(v), 3) for s in (1, -1))
        q = chances(teacher)[0]
        expected = (brute(chances(up)[0], q, alpha) - brute(chances(down)[0], q, alpha)) / 2e-4
        assert float(slope[0, v]) == pytest.approx(expected, abs=2e-3)
    before, after = (float(losses.sdpo(at, teacher, alpha, 0).detach()) for at in (logits, logits - 0.05 * slope))
    assert after < before
    assert float(slope.sum()) == pytest.approx(0, abs=1e-5)


def test_near_the_teacher_all_alphas_are_alike() -> None:
    """Half of chi^2: a change of alpha is no hidden change of the learning rate."""
    student = draw(1, 4, seed=10)
    teacher = student + 0.05 * draw(1, 4, seed=11)
    values = [float(losses.sdpo(student, teacher, a, 0)) for a in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert max(values) < 1.1 * min(values)
    assert all(float(losses.sdpo(student, student, a, 0)) == pytest.approx(0, abs=1e-6) for a in (0.0, 0.5, 1.0))


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 1), st.floats(0.1, 40), st.integers(0, 10_000), st.sampled_from([0, 2]))
def test_nothing_overflows_however_far_apart(alpha: float, scale: float, seed: int, top: int) -> None:
    student = draw(4, 6, seed=seed, scale=scale).requires_grad_()
    teacher = draw(4, 6, seed=seed + 1, scale=scale)
    value = losses.sdpo(student, teacher, alpha, top)
    assert torch.isfinite(value).all()
    assert float(value.detach().min()) > -1e-4
    (slope,) = torch.autograd.grad(value.sum(), student)
    assert torch.isfinite(slope).all()


def test_top_k_with_a_tail_is_the_divergence_of_the_merged_distributions() -> None:
    student, teacher = draw(8, 6, seed=12), draw(8, 6, seed=13)
    for row, (p, q) in enumerate(zip(chances(student), chances(teacher), strict=True)):
        best = sorted(range(6), key=lambda v: -p[v])[:2]
        rest = [v for v in range(6) if v not in best]
        merged = [[d[v] for v in best] + [sum(d[v] for v in rest)] for d in (p, q)]
        ours = losses.sdpo(student[row : row + 1], teacher[row : row + 1], 0.5, 2)
        assert float(ours) == pytest.approx(brute(*merged, 0.5), rel=1e-4)
    for every in (0, 6, 99):
        assert torch.equal(losses.sdpo(student, teacher, 0.5, every), losses.sdpo(student, teacher, 0.5, 0))


def test_what_the_teacher_wants_outside_of_the_top_pulls() -> None:
    """The student's two best tokens are as the teacher's, in proportion; the teacher wants the third. Renormalised over
    the two there would be no gradient at all."""
    student = torch.tensor([[0.6, 0.3, 0.1]]).log().requires_grad_()
    teacher = torch.tensor([[0.02, 0.01, 0.97]]).log()
    for alpha in (0.0, 0.5, 1.0):
        value = losses.sdpo(student, teacher, alpha, 2)
        (slope,) = torch.autograd.grad(value.sum(), student)
        assert float(value.detach()) > 0.5
        assert float(slope[0, 2]) < -0.1, "down the gradient the third becomes more probable"
    renormalised = losses.sdpo(student[:, :2], teacher[:, :2], 0.5, 0)
    assert float(renormalised.detach()) == pytest.approx(0, abs=1e-6)


# Advantages


@pytest.mark.parametrize("rewards", [[1.0, 1.0, 1.0], [0.0], [], [-1.0, -1.0]])
def test_rewards_that_are_all_alike_teach_nothing(rewards: list[float]) -> None:
    lengths = [3] * len(rewards)
    assert losses.whiten(rewards, lengths, 0.1) is None
    assert losses.compute_advantages(rewards, lengths, Objective(kind="reinforce")) is None
    if rewards:
        critic = [torch.full((3,), rewards[0]) for _ in rewards]
        assert losses.compute_advantages(rewards, lengths, Objective(kind="ppo"), values=critic) is None, (
            "just as the critic expected"
        )


def test_the_critic_of_ppo_is_told_what_came() -> None:
    values = [torch.tensor([0.3, 0.1]), torch.tensor([0.0])]
    settled = make_objective("ppo", gae_lambda=1.0)
    judged = losses.compute_advantages([1.0, -1.0], [2, 1], settled, values=values)
    assert judged is not None
    assert judged.returns[0].tolist() == pytest.approx([1.0, 1.0])
    assert judged.returns[1].tolist() == pytest.approx([-1.0])
    assert float(torch.cat(judged.advantages).mean()) == pytest.approx(0, abs=1e-6)


# Policy losses


def _decoupled_ppo(logp: Tensor, old: Tensor, mu: Tensor, gain: Tensor, dual: float = 3.0) -> Tensor:
    return losses.truncated_weights(old - mu, 2.0) * losses.ppo_clip(logp, old, gain, dual=dual)


def test_decoupled_clips_around_where_the_update_starts_not_around_what_is_50_updates_old() -> None:
    """Age 50: the policy has moved by a factor of 3 since mu. PPO around mu has no gradient left, decoupled PPO has all of it."""
    mu, old = torch.full((4,), math.log(0.2)), torch.full((4,), math.log(0.6))
    logp, gain = old.clone().requires_grad_(), torch.ones(4)
    (stale,) = torch.autograd.grad(losses.ppo_clip(logp, mu, gain).sum(), logp)
    assert stale.tolist() == [0.0] * 4
    (slope,) = torch.autograd.grad(_decoupled_ppo(logp, old, mu, gain).sum(), logp)
    assert slope.tolist() == pytest.approx([-2.0] * 4), "weights of 3, truncated at 2"
    far = (old + math.log(1.5)).requires_grad_()
    (held,) = torch.autograd.grad(_decoupled_ppo(far, old, mu, gain).sum(), far)
    assert held.tolist() == [0.0] * 4, "but no further than the clip from where the update starts"


def evidence(logits: Tensor, tokens: Tensor, **more: Any) -> LossInputs:
    return LossInputs(logits, tokens, **more)


def slope(reply: LossInputs, objective: Objective) -> Tensor:
    value, _ = losses.objective_loss([reply], objective)
    (found,) = torch.autograd.grad(value, reply.logits)
    return found


def test_clipped_lets_a_stale_reply_teach_until_it_has_moved_by_the_clip() -> None:
    """mu = 1/4 each, the learner now at 1/2 and 1/6: the reward's share of +28 % is used up, and so is the penalty's of -20 %."""
    logits, tokens = torch.tensor([[0.5, 1 / 6, 1 / 6, 1 / 6]] * 2).log().requires_grad_(), torch.tensor([0, 1])
    reply = evidence(logits, tokens, behaviour_logprobs=torch.full((2,), math.log(0.25)), advantage=torch.tensor([1.0, -1.0]))
    assert slope(reply, make_objective("reinforce", correction="clipped")).abs().max() == 0
    assert (slope(reply, make_objective("reinforce", correction="none")).gather(1, tokens[:, None]) != 0).all()
    back = replace(reply, advantage=torch.tensor([-1.0, 1.0]))  # the other way it may move: rho A = -2, and 2/3
    found = slope(back, make_objective("reinforce", correction="clipped"))[[0, 1], tokens]
    assert found.tolist() == pytest.approx([2 * 0.5 / 2, -2 / 3 * 5 / 6 / 2])


@pytest.mark.parametrize("correction", ["none", "clipped", "truncated", "decoupled", "rejection"])
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("kind", ["reinforce", "sdpo"])
def test_when_mu_is_pi_every_correction_is_the_identity(correction: Any, level: Any, kind: Any) -> None:
    logits, tokens = draw(4, 3, seed=18).requires_grad_(), torch.tensor([0, 2, 1, 1])
    mu = logits.detach().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    told: dict[str, Any] = {"advantage": torch.tensor([1.0, -1.0, 0.5, 2.0]), "teacher_logits": draw(4, 3, seed=19)}
    plain = slope(evidence(logits, tokens, **told), make_objective(kind, correction="none"))
    corrected = make_objective(kind, correction=correction, level=level)
    assert torch.allclose(
        slope(evidence(logits, tokens, behaviour_logprobs=mu, old_logprobs=mu, **told), corrected), plain, atol=1e-6
    )
    _, said = losses.objective_loss([evidence(logits, tokens, behaviour_logprobs=mu, old_logprobs=mu, **told)], corrected)
    assert (said["clipped"], said["weight"]) == (0.0, pytest.approx(1.0))
    if kind == "reinforce":
        score = -(told["advantage"][:, None] * (torch.nn.functional.one_hot(tokens, 3) - logits.detach().softmax(-1))) / 4
        assert torch.allclose(plain, score, atol=1e-6), "the score function, and its sign"


def test_weights_of_whole_replies_make_the_gradient_unbiased_by_enumeration() -> None:
    """Replies of two tokens out of three, sampled from mu: the mean of the weighed gradient is d E_pi[R] / d theta, exactly."""
    first, second = draw(1, 3, seed=20), draw(3, 3, seed=21)  # (1, V), and (V, V) after each first token
    behave = (draw(1, 3, seed=22).log_softmax(-1), draw(3, 3, seed=23).log_softmax(-1))
    reward = draw(3, 3, seed=24)
    one, two = first.clone().requires_grad_(), second.clone().requires_grad_()
    objective = make_objective("reinforce", correction="truncated", level="sequence", max_weight=math.inf)

    def gradient(settled: Objective) -> tuple[Tensor, Tensor]:
        total = torch.zeros(())
        for a, b in itertools.product(range(3), repeat=2):
            mu = torch.stack([behave[0][0, a], behave[1][a, b]])
            reply = LossInputs(torch.stack([one[0], two[a]]), torch.tensor([a, b]), mu, None, reward[a, b].expand(2))
            total = (
                total + mu.sum().exp() * 2 * losses.objective_loss([reply], settled)[0]
            )  # the loss is a mean over two tokens
        return torch.autograd.grad(-total, (one, two))

    expected = (first.log_softmax(-1).exp().T * second.log_softmax(-1).exp() * reward).sum()
    chain = one.log_softmax(-1).exp().T * two.log_softmax(-1).exp()
    true = torch.autograd.grad((chain * reward).sum(), (one, two))
    assert float((chain.detach() * reward).sum()) == pytest.approx(float(expected))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(gradient(objective), true, strict=True))
    biased = gradient(make_objective("reinforce", correction="none"))
    assert not all(torch.allclose(a, b, atol=1e-2) for a, b in zip(biased, true, strict=True))


def test_a_reward_makes_its_reply_more_probable_and_a_penalty_less() -> None:
    tokens = torch.tensor([0, 2])
    for kind, correction in itertools.product(("reinforce", "ppo"), ("none", "truncated", "decoupled", "rejection")):
        for sign in (1.0, -1.0):
            logits = draw(2, 3, seed=25).requires_grad_()
            mu = (logits.detach() + 0.1 * draw(2, 3, seed=26)).log_softmax(-1).gather(1, tokens[:, None])[:, 0]
            reply = LossInputs(logits, tokens, behaviour_logprobs=mu, advantage=torch.full((2,), sign))
            step = slope(reply, make_objective(kind, correction=correction))  # type: ignore[arg-type]
            moved = (logits - 0.1 * step).log_softmax(-1) - logits.log_softmax(-1)
            assert (sign * moved.gather(1, tokens[:, None]) > 0).all(), (kind, correction)


def test_the_mean_is_over_the_tokens_of_the_batch_and_parts_add_up() -> None:
    objective = make_objective("reinforce", correction="decoupled", kl_weight=0.1, entropy_weight=0.01)
    batch = []
    for n, length in enumerate((1, 4, 2)):
        logits = draw(length, 3, seed=30 + n)
        tokens = torch.arange(length) % 3
        behaviour = draw(length, 3, seed=60 + n).log_softmax(-1)[:, 0]
        old = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0] + 0.1
        batch.append(
            LossInputs(logits, tokens, behaviour, old, draw(length, seed=40 + n), base_logits=draw(length, 3, seed=50 + n))
        )
    whole, said = losses.objective_loss(batch, objective)
    parts = sum(float(losses.objective_loss([reply], objective, 7)[0]) for reply in batch)
    assert parts == pytest.approx(float(whole), abs=1e-6)
    assert said["tokens"] == 7
    spread = torch.cat([losses.entropy(reply.logits) for reply in batch]).mean()
    apart = torch.cat(
        [losses.kl_to(reply.base_logits, reply.logits) for reply in batch if reply.base_logits is not None]
    ).mean()
    assert said["entropy"] == pytest.approx(float(spread), abs=1e-6)
    assert said["kl"] == pytest.approx(float(apart), abs=1e-6)
    policy = said["loss"]
    assert float(whole.detach()) == pytest.approx(policy + 0.1 * float(apart) - 0.01 * float(spread), abs=1e-6)


def test_regularisers_pull_the_right_way() -> None:
    logits, base = draw(3, 3, seed=70).requires_grad_(), draw(3, 3, seed=71)
    tokens, none = torch.tensor([0, 1, 2]), torch.zeros(3)
    step = slope(LossInputs(logits, tokens, advantage=none, base_logits=base), Objective(kind="reinforce", kl_weight=1.0))
    assert losses.kl_to(base, logits - 0.1 * step).mean() < losses.kl_to(base, logits).mean()
    step = slope(LossInputs(logits, tokens, advantage=none), Objective(kind="reinforce", entropy_weight=1.0))
    assert losses.entropy(logits - 0.1 * step).mean() > losses.entropy(logits).mean()


def test_ratios_are_of_the_distribution_that_was_sampled_from() -> None:
    logits, tokens = draw(3, 4, seed=73), torch.tensor([1, 0, 3])
    mu = (logits / 0.7).log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    _, said = losses.objective_loss(
        [LossInputs(logits, tokens, mu, None, torch.ones(3), temperature=0.7)], Objective(kind="reinforce")
    )
    assert said["ratio"] == pytest.approx(1, abs=1e-6)
    assert said["entropy"] == pytest.approx(float(losses.entropy(logits).mean()), abs=1e-6)


def test_a_vetoed_reply_has_no_gradient() -> None:
    logits, tokens = draw(2, 3, seed=74).requires_grad_(), torch.tensor([0, 1])
    now = logits.detach().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    reply = LossInputs(logits, tokens, behaviour_logprobs=now + torch.tensor([0.0, 12.0]), advantage=torch.ones(2))
    assert not slope(reply, make_objective("reinforce", correction="rejection")).any()
    _, said = losses.objective_loss([reply], make_objective("reinforce", correction="rejection"))
    assert (said["clipped"], said["weight"]) == (1.0, 0.0)


def test_what_is_missing_is_named() -> None:
    bare = LossInputs(draw(2, 3), torch.tensor([0, 1]))
    with pytest.raises(UserError, match="needs advantages"):
        losses.objective_loss([bare], Objective(kind="reinforce"))
    with pytest.raises(UserError, match="needs a pass of the base model"):
        losses.objective_loss(
            [LossInputs(draw(2, 3), torch.tensor([0, 1]), teacher_logits=draw(2, 3))], Objective(kl_weight=0.1)
        )
    value, said = losses.objective_loss([bare], Objective(kind="sdpo"))
    assert (float(value), said["tokens"]) == (0.0, 0.0)
    assert float(losses.objective_loss([], Objective())[0]) == 0.0


# Settings


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"kind": "dpo"}, "kind is one of mixed, sdpo, reinforce, ppo, got 'dpo'"),
        ({"correction": "off"}, "kind is one of"),
        ({"divergence": 1.5}, "divergence is from 0 to 1"),
        ({"divergence": math.nan}, "divergence is from 0 to 1"),
        ({"learning_rate": 0.0}, "learning_rate is finite and above 0"),
        ({"max_weight": 0.5}, "max_weight is at least 1"),
        ({"clip_low": 1.0}, "clip_low is from 0 to below 1"),
        ({"kl_weight": -1.0}, "kl_weight is finite and at least 0"),
        ({"sync_every": 0}, "sync_every is at least 1"),
        ({"top_k": -1}, "top_k is at least 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        make_objective(**asked)


@pytest.mark.parametrize(
    ("asked", "teacher", "base"),
    [
        ({}, True, False),
        ({"teacher": "base"}, False, True),
        ({"teacher": "trust"}, False, True),
        ({"teacher": "sync", "kl_weight": 0.1}, True, True),
        ({"kind": "reinforce"}, False, False),
        ({"kind": "reinforce", "kl_weight": 0.1}, False, True),
    ],
)
def test_only_the_passes_that_count_are_asked_for(asked: dict[str, Any], teacher: bool, base: bool) -> None:
    """No pass of the base model for a KL of weight 0."""
    objective = make_objective(**asked)
    assert (objective.needs_teacher, objective.needs_base) == (teacher, base)
    assert objective.needs_critic == (objective.kind == "ppo")


# TRL


def test_trl_says_the_same_of_distillation() -> None:
    """TRL 1.16: between the ends its divergence is ours times alpha (1 - alpha); at the ends it is ours."""
    theirs = pytest.importorskip("trl.experimental.sdpo.loss_utils", reason="needs trl")
    student, teacher = draw(6, 50, seed=80), draw(6, 50, seed=81)
    for alpha, top in itertools.product((0.0, 0.2, 0.5, 0.9, 1.0), (0, 7)):
        scale = 1.0 if alpha in (0, 1) else alpha * (1 - alpha)
        one, two = student.clone().requires_grad_(), student.clone().requires_grad_()
        ours = losses.sdpo(one, teacher, alpha, top) * scale
        options: dict[str, Any] = {"distillation_alpha": alpha}
        if top:
            options |= {"distillation_topk": top, "distillation_add_tail": True}
            other = theirs.compute_topk_self_distillation_loss(two, teacher, **options)
        else:
            other = theirs.compute_full_logit_self_distillation_loss(two, teacher, **options)
        assert torch.allclose(ours, other, atol=2e-5)
        slopes = torch.autograd.grad(ours.sum(), one) + torch.autograd.grad(other.sum(), two)
        assert torch.allclose(*slopes, atol=2e-5)


def test_trl_says_the_same_of_clipped_policy_losses() -> None:
    """GRPOTrainer's own loss, called without a trainer, and without a model behind it: clip, CISPO's weights, KL by k3."""
    grpo = pytest.importorskip("trl.trainer.grpo_trainer", reason="needs trl")
    from collections import defaultdict
    from types import SimpleNamespace

    batch, length = 3, 5
    old, mu, gains = draw(batch, length, seed=82) - 2, draw(batch, length, seed=83) - 2, draw(batch, seed=84)
    keep = torch.ones(batch, length, dtype=torch.long)
    for kind in ("bnpo", "cispo"):
        logp = (old + 0.4 * draw(batch, length, seed=85)).requires_grad_()
        said = SimpleNamespace(
            gather=lambda x: x, gather_for_metrics=lambda x: x, reduce=lambda x, reduction: x, num_processes=1
        )
        trainer = SimpleNamespace(
            _get_per_token_logps_and_entropies=lambda *a, logp=logp, **k: (logp, torch.zeros(batch, length), None),
            **{"aux_loss_enabled": False, "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "beta": 0.0},
            **{"importance_sampling_level": "token", "loss_type": kind, "epsilon_low": 0.2, "use_vllm": True},
            **{"epsilon_high": 0.28 if kind == "bnpo" else 2.0, "vllm_importance_sampling_correction": kind == "bnpo"},
            args=SimpleNamespace(delta=None, steps_per_generation=1),
            **{
                "current_gradient_accumulation_steps": 1,
                "_entropy_bonus_enabled": False,
                "_metrics": defaultdict(lambda: defaultdict(list)),
            },
            **{"model": SimpleNamespace(training=True), "accelerator": said},
        )
        anchor = old if kind == "bnpo" else mu
        inputs = {"prompt_ids": keep[:, :1], "prompt_mask": keep[:, :1], "completion_ids": keep, "completion_mask": keep}
        inputs |= {
            "advantages": gains,
            "old_per_token_logps": anchor,
            "num_items_in_batch": torch.tensor(float(batch * length)),
        }
        inputs |= {"importance_sampling_ratio": losses.ratios(old, mu).clamp(max=2.0)}
        theirs = grpo.GRPOTrainer._compute_loss(trainer, None, inputs)
        (other,) = torch.autograd.grad(theirs, logp)
        wide = gains[:, None].expand(batch, length)
        if kind == "bnpo":
            each = _decoupled_ppo(logp, old, mu, wide, math.inf)
        else:
            each = losses.reinforce(logp, wide, losses.truncated_weights(logp - mu, 2.0))
        (own,) = torch.autograd.grad(each.mean(), logp)
        assert float(each.detach().mean()) == pytest.approx(float(theirs.detach()), abs=1e-6)
        assert torch.allclose(own, other, atol=1e-6)
