"""CLaaS: the equations of its losses with numbers worked out by hand: weights, advantages, SDPO's divergence, PPO's clip, KL.

The tokens are three, and probabilities are simple fractions. tests/tools/training/test_losses.py has limits, gradients and TRL.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from claas_settings import make_objective
from torch import Tensor

from learngraph.tools.training import losses
from learngraph.tools.training.lora import Rewriting, find_slip
from learngraph.tools.training.losses import LossInputs


def logs(*values: float) -> Tensor:
    return torch.tensor(values).log()


# w = pi_old / mu


def test_ratios_are_quotients_of_probabilities_cut_at_e_to_the_20() -> None:
    assert losses.ratios(logs(0.5, 0.1, 1.0), logs(0.25, 0.2, 1.0)).tolist() == pytest.approx([2.0, 0.5, 1.0])
    assert losses.ratios(torch.tensor([0.0]), torch.tensor([-900.0])).tolist() == pytest.approx([math.exp(20)])


def test_truncated_weights_of_tokens_replies_and_their_geometric_mean() -> None:
    """Ratios 4, 1/2, 3/2; their product is 3."""
    ratios = logs(4.0, 0.5, 1.5)
    assert losses.truncated_weights(ratios, 2.0).tolist() == pytest.approx([2.0, 0.5, 1.5])
    assert losses.truncated_weights(ratios, 2.5, "sequence").tolist() == pytest.approx([2.5] * 3)
    assert losses.truncated_weights(ratios, math.inf, "sequence").tolist() == pytest.approx([3.0] * 3)
    assert losses.truncated_weights(ratios, 2.0, "geometric").tolist() == pytest.approx([3 ** (1 / 3)] * 3)
    assert not losses.truncated_weights(ratios.clone().requires_grad_()).requires_grad


def test_rejection_trusts_weights_within_its_bounds() -> None:
    ratios = logs(4.0, 0.4, 1.5, 0.5)
    assert losses.trusted_token_mask(ratios, 0.5 - 1e-6, 2.0).tolist() == [False, False, True, True]
    assert losses.trusted_token_mask(ratios, 0.5, 2.0, level="geometric").all()
    assert losses.trusted_token_mask(ratios, 1.0, 1.3, level="sequence").all(), "the product is 1.2"
    assert not losses.trusted_token_mask(ratios, 0.5, 1.1, level="sequence").any()
    assert not losses.trusted_token_mask(logs(1.0, 1e-5), 0.0, 9.0, veto=1e-4).any()


def test_the_effective_share_of_a_sample() -> None:
    """(1 + 2 + 3)^2 / (3 (1 + 4 + 9)) = 36 / 42."""
    assert losses.ess(logs(1.0, 2.0, 3.0)) == pytest.approx(36 / 42)
    assert losses.ess(torch.zeros(7)) == pytest.approx(1.0)


def test_statistics_of_a_minibatch() -> None:
    """Two replies: ratios (2, 1) and 1/3. As sequences they weigh 2 and 1/3."""
    old, mu = [logs(0.5, 0.5), logs(0.2)], [logs(0.25, 0.5), logs(0.6)]
    found = losses.measure_staleness(("a", "b"), old, mu, make_objective(correction="truncated", max_weight=1.5))
    assert found.ratio == pytest.approx((2 + 1 + 1 / 3) / 3)
    assert (found.ratio_max, found.clipped) == (pytest.approx(2.0), pytest.approx(1 / 3))
    assert found.kl == pytest.approx(-(math.log(2) + 0 + math.log(1 / 3)) / 3)
    assert found.ess == pytest.approx((2 + 1 / 3) ** 2 / (2 * (4 + 1 / 9)))


# SDPO


@pytest.mark.parametrize(
    ("divergence", "expected"),
    [
        # p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4), m = (3/8, 3/8, 1/4) at 1/2
        (0.0, 0.25 * math.log(1 / 2) + 0.5 * math.log(2)),  # KL(q || p)
        (1.0, 0.5 * math.log(2) + 0.25 * math.log(1 / 2)),  # KL(p || q)
        (0.5, 4 * (0.25 * math.log(2 / 3) + 0.5 * math.log(4 / 3))),  # both KLs to m are equal by symmetry
    ],
)
def test_the_divergence_of_sdpo_on_three_tokens(divergence: float, expected: float) -> None:
    student, teacher = logs(0.5, 0.25, 0.25)[None], logs(0.25, 0.5, 0.25)[None]  # (1, V)
    assert losses.sdpo(student, teacher, divergence, 0).tolist() == pytest.approx([expected], abs=1e-6)


def test_the_tail_of_sdpo_is_one_bucket() -> None:
    """K = 1: p = (1/2, rest 1/2), q = (1/4, rest 3/4). KL(q || p) = 1/4 log 1/2 + 3/4 log 3/2."""
    student, teacher = logs(0.5, 0.25, 0.25)[None], logs(0.25, 0.5, 0.25)[None]  # (1, V)
    expected = 0.25 * math.log(1 / 2) + 0.75 * math.log(3 / 2)
    assert losses.sdpo(student, teacher, 0.0, 1).tolist() == pytest.approx([expected], abs=1e-6)


def test_the_loss_of_sdpo_is_weighted_by_truncated_ratios() -> None:
    """Two tokens of probability 1/2 under pi_old; mu gave them 1/8 and 1/2: weights min(4, 2) and 1."""
    student = logs(0.5, 0.25, 0.25).expand(2, 3)  # (T, V)
    teacher = logs(0.25, 0.5, 0.25).expand(2, 3)  # (T, V)
    reply = LossInputs(student, torch.tensor([0, 0]), logs(0.125, 0.5), logs(0.5, 0.5), teacher_logits=teacher)
    value, said = losses.objective_loss([reply], make_objective(divergence=1.0, top_k=0, max_weight=2.0))
    each = 0.5 * math.log(2) + 0.25 * math.log(1 / 2)
    assert float(value) == pytest.approx((2 + 1) * each / 2, abs=1e-6)
    assert (said["weight"], said["clipped"]) == (pytest.approx(1.5), pytest.approx(0.5))


def test_teachers_that_move_and_that_are_mixed() -> None:
    """theta' <- (1 - tau) theta' + tau theta; q = (1 - s) base + s learner."""
    after = losses.ema({"a": torch.tensor([0.0, 4.0])}, {"a": torch.tensor([1.0, 0.0])}, 0.25)
    assert after["a"].tolist() == [0.25, 3.0]
    mixed = losses.blend(logs(0.5, 0.25, 0.25)[None], logs(0.1, 0.8, 0.1)[None], 0.5)
    assert mixed.exp().tolist()[0] == pytest.approx([0.3, 0.525, 0.175])


# Advantages


def test_reinforce_whitens_over_all_tokens_of_the_minibatch() -> None:
    """Rewards 1 and -1 for replies of 1 and 3 tokens: mean -1/2, variance (1.5^2 + 3 * 0.5^2) / 4 = 3/4."""
    white = losses.whiten([1.0, -1.0], [1, 3], 0.1)
    assert white is not None
    assert white[0].tolist() == pytest.approx([1.5 / math.sqrt(0.75)])
    assert white[1].tolist() == pytest.approx([-0.5 / math.sqrt(0.75)] * 3)


def test_a_share_of_rewards_changes_the_length_of_the_gradient_and_not_its_direction() -> None:
    """pi = (5, 3, 2) / 10, and the third token is right: p = 1/5. With a share of s = 1/2 the gradient of REINFORCE++ is that of
    uniform draws times sqrt(s (1 - s) / (p (1 - p))) = 5/4, so that minibatches of a set share need no weights."""

    def gradient(drawn: list[int]) -> torch.Tensor:
        logits = logs(0.5, 0.3, 0.2).requires_grad_()  # (3,)
        white = losses.whiten([float(token == 2) for token in drawn], [1] * len(drawn), 1e-3)
        assert white is not None
        replies = [LossInputs(logits[None], torch.tensor([token]), advantage=a) for token, a in zip(drawn, white, strict=True)]
        value, _ = losses.objective_loss(replies, make_objective("reinforce"))
        return torch.autograd.grad(value, logits)[0]  # (3,)

    uniform, half = gradient([0] * 5 + [1] * 3 + [2] * 2), gradient([0] * 5 + [1] * 3 + [2] * 8)
    assert uniform.tolist() == pytest.approx([0.25, 0.15, -0.4], abs=1e-6)
    assert half.tolist() == pytest.approx((1.25 * uniform).tolist(), abs=1e-6)


def test_equal_rewards_are_not_blown_up() -> None:
    """0.50 and 0.52: the standard deviation of 0.01 is below 0.1, so that A = 0.01 / 0.1."""
    white = losses.whiten([0.50, 0.52], [1, 1], 0.1)
    assert white is not None
    assert [float(a) for a in white] == pytest.approx([-0.1, 0.1], abs=1e-5)
    assert losses.whiten([1.0, 1.0], [2, 2], 0.1) is None


def test_generalised_advantages() -> None:
    """V = (0.5, 0.2), r = (0, 1), gamma = 0.9, lambda = 0.8: delta = (-0.32, 0.8), A = (-0.32 + 0.72 * 0.8, 0.8)."""
    values, rewards = torch.tensor([0.5, 0.2]), torch.tensor([0.0, 1.0])
    advantages, returns = losses.gae(rewards, values, gamma=0.9, lam=0.8)
    assert advantages.tolist() == pytest.approx([0.256, 0.8])
    assert returns.tolist() == pytest.approx([0.756, 1.0])
    assert losses.gae(rewards, values, 1.0, 1.0)[0].tolist() == pytest.approx([0.5, 0.8]), "lambda 1: G - V"


# REINFORCE++ and PPO


def test_ppo_with_both_clips_and_the_dual_one() -> None:
    """-min(rho A, clip(rho, 0.8, 1.28) A), and at most 3 for A = -1."""
    rho, advantage = logs(1.1, 1.5, 0.5, 0.5, 1.5, 9.0), torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    each = losses.ppo_clip(rho, torch.zeros(6), advantage, 0.2, 0.28, 3.0)
    assert each.tolist() == pytest.approx([-1.1, -1.28, -0.5, 0.8, 1.5, 3.0], abs=1e-5)
    free = losses.ppo_clip(rho, torch.zeros(6), advantage, 0.2, 0.28, math.inf)
    assert float(free[-1]) == pytest.approx(9.0, rel=1e-5)


def test_decoupled_ppo_weighs_by_age_and_clips_around_the_update() -> None:
    """pi = 0.6, pi_old = 0.5, mu = 0.2: rho = 1.2, w = min(2.5, 2), so that the loss is -2 * 1.2 * A."""
    old, mu = logs(0.5), logs(0.2)
    found = losses.truncated_weights(old - mu, 2.0) * losses.ppo_clip(logs(0.6), old, torch.tensor([0.5]))
    assert found.tolist() == pytest.approx([-1.2])


def test_reinforce_is_the_weighted_score_function() -> None:
    assert losses.reinforce(logs(0.25), torch.tensor([2.0]), torch.tensor([1.5])).tolist() == pytest.approx([3 * math.log(4)])


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        ("none", -1.0),  # -rho A with rho = 1
        ("truncated", 2 * math.log(2)),  # -w A log pi, w = min(0.5 / 0.125, 2)
        ("decoupled", -2.0),  # -w rho A
        ("rejection", 0.0),  # w = 4 is outside of [0.5, 2]
    ],
)
def test_the_loss_of_reinforce_under_each_correction(correction: Any, expected: float) -> None:
    """One token with pi = pi_old = 1/2 and mu = 1/8, A = 1."""
    reply = LossInputs(logs(0.5, 0.25, 0.25)[None], torch.tensor([0]), logs(0.125), logs(0.5), torch.ones(1))
    value, _ = losses.objective_loss([reply], make_objective("reinforce", correction=correction))
    assert float(value) == pytest.approx(expected, abs=1e-6)


def test_each_reply_is_learned_from_by_what_its_feedback_can_teach() -> None:
    """Two tokens in all: with words D(q, p) = KL(q || p) = log(2) / 4 (alpha = 0), and no use of A; for a number alone -rho A = -3."""
    worded = LossInputs(
        logs(0.25, 0.5, 0.25)[None],
        torch.tensor([0]),
        advantage=torch.tensor([9.0]),
        teacher_logits=logs(0.5, 0.25, 0.25)[None],
    )
    praised = LossInputs(logs(0.5, 0.25, 0.25)[None], torch.tensor([0]), advantage=torch.tensor([3.0]))
    mute = LossInputs(logs(0.5, 0.25, 0.25)[None], torch.tensor([0]))
    mixed = make_objective("mixed", divergence=0.0, correction="none")
    value, said = losses.objective_loss([worded, praised, mute], mixed)
    assert float(value) == pytest.approx((math.log(2) / 4 - 3) / 2, abs=1e-5)
    assert said["tokens"] == 2.0
    alone = [
        losses.objective_loss([one], replace(mixed, kind=kind))[0] for one, kind in ((worded, "sdpo"), (praised, "reinforce"))
    ]
    assert float(value) == pytest.approx(float(sum(alone)) / 2, abs=1e-5)


def test_kl_entropy_and_the_critic_are_added() -> None:
    """0.1 KL(pi || base) - 0.2 H(pi) + (V - R)^2 / 2, with pi = (1/2, 1/4, 1/4) and base = (1/4, 1/2, 1/4)."""
    reply = LossInputs(
        logs(0.5, 0.25, 0.25)[None],
        torch.tensor([0]),
        advantage=torch.zeros(1),
        base_logits=logs(0.25, 0.5, 0.25)[None],
        values=torch.tensor([0.5]),
        returns=torch.tensor([1.0]),
    )
    value, said = losses.objective_loss([reply], make_objective("ppo", kl_weight=0.1, entropy_weight=0.2))
    kl, entropy = 0.25 * math.log(2), 1.5 * math.log(2)
    assert (said["kl"], said["entropy"]) == (pytest.approx(kl), pytest.approx(entropy))
    assert float(value) == pytest.approx(0.1 * kl - 0.2 * entropy + 0.125)


# What rewards say


def test_contradictory_rewards_cancel_and_lone_ones_are_halved() -> None:
    """K + I of two like replies has A = (1, -1) as an eigenvector of 1, which K maps to 0; of two unlike ones it is 2 I."""
    like, unlike = torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    assert losses.weigh_rewards(like, torch.tensor([1.0, -1.0])).confirmed.tolist() == pytest.approx([0.0, 0.0])
    assert losses.weigh_rewards(unlike, torch.tensor([1.0, -1.0])).confirmed.tolist() == pytest.approx([0.5, -0.5])


def test_rewards_that_go_with_what_was_said_stand_out_from_chance() -> None:
    """Six replies of one kind, six of another: T = 2 * 6 * 5 = 60, and over all orders its mean is -12 / 11 * 60 / 12 = -60 / 11."""
    scores = torch.tensor([[1.0, 0.0]] * 6 + [[0.0, 1.0]] * 6)
    sure = losses.weigh_rewards(scores, torch.tensor([1.0] * 6 + [-1.0] * 6))
    mixed = losses.weigh_rewards(scores, torch.tensor([1.0, -1.0] * 6))
    assert sure.standard_errors > 5 > 1 > abs(mixed.standard_errors)
    assert (sure.share(4), mixed.share(4)) == (pytest.approx(1 - (4 / sure.standard_errors) ** 2), 0.0)
    few = losses.weigh_rewards(scores, torch.tensor([1.0] * 10 + [-1.0] * 2))
    assert few.standard_errors == 0.0  # two thumbs down are no rule
    assert [losses.can_tell_apart([1.0] * 10 + [-1.0] * bad) for bad in (2, 3)] == [False, True]


@pytest.mark.parametrize(
    ("said", "teacher", "written", "slip"),
    [
        ("4 5 6 0", [(9, 1.0), (4, 0.1), (5, 0.0), (6, 0.0), (0, 0.0)], "9 4 5 6 0", -1),  # inserted
        ("4 5 6 0", [(4, 0.0), (5, 0.0), (8, 0.9), (0, 0.1)], "4 5 8 0", -1),  # replaced
        ("9 4 6 0", [(4, 0.0), (4, 0.0), (6, 0.0), (8, 1.0), (0, 0.0)], "9 4 6 8 0", -1),  # 9, of another wish, stays
        ("4 6 8 0", [(9, 1.0), (4, 0.0), (6, 0.0), (0, 0.2), (0, 0.0)], "9 4 6 8 0", -1),  # and so does 8, behind a change
        ("4 6 0", [(5, 0.4), (6, 0.0), (0, 0.0)], "4 6 0", -1),  # words that change nothing
        ("4 6 0", [(9, 1.0), (0, 0.0, 4), (6, 0.0), (0, 0.0)], "9 4 6 0", -1),  # the learner takes the old reply up
        ("9 4 5 8 0", [(4, 0.0), (4, 0.0), (6, 0.0), (0, 0.0, 8), (0, 0.0)], "9 4 6 8 0", 2),  # a slip, between two wishes
        ("9 9 4 0", [(4, 0.0), (4, 0.0), (0, 0.0)], "9 4 0", 1),  # one word too many
        ("9 0", [(4, 0.0), (4, 0.0), (6, 0.0), (0, 0.0)], "9 4 6 0", 1),  # ended too early
    ],
)
def test_a_reply_is_rewritten_only_where_the_words_change_it(said: str, teacher: list[Any], written: str, slip: int) -> None:
    new = Rewriting([int(token) for token in said.split()], {0}, slip)
    for likeliest, moved, *learned in teacher:
        new.add(likeliest, moved, *(learned or [-1]))
    assert (" ".join(map(str, new.written)), new.is_over, new.has_changed) == (written, True, written != said)


def test_one_reading_of_a_reply_serves_up_to_its_next_change() -> None:
    """The teacher would say 4 5 3 0, and the words move it at the third token alone."""
    new, places = Rewriting([4, 5, 6, 0], {0}), torch.eye(10).clamp(min=1e-9)
    teacher, wordless = places[[4, 5, 3, 0, 0]].log(), places[[4, 5, 6, 0, 0]].log()
    new.go_on((4, 5, 6, 0, 0), teacher, wordless, wordless, 32)
    assert (new.written, new.is_over) == ([4, 5, 3], False)  # what was read behind it was read behind a 6
    new.go_on((4, 5, 3, 6, 0, 0), places[[4, 5, 3, 0, 0, 0]].log(), places[[4, 5, 3, 0, 0, 0]].log(), wordless, 32)
    assert (new.written, new.is_over, new.sureness) == ([4, 5, 3, 0], True, pytest.approx(1.0))
    unsure = Rewriting([4, 5, 6, 0], {0})
    unsure.go_on((4, 5, 6, 0, 0), (0.4 * places[[4, 5, 3, 0, 0]] + 0.06).log(), wordless, wordless, 32)
    assert (unsure.written, unsure.sureness) == ([4, 5, 3], pytest.approx(0.46))
    cut = Rewriting([4, 5, 6, 0], {0})
    cut.add(9, 1.0, -1, 0.96)
    cut.add(0, 0.0, -1, 0.8)
    assert (cut.written, cut.sureness) == ([9, 0], pytest.approx(0.8 - 0.4))  # 4 5 6 would be left out


def test_a_slip_is_where_the_learner_clings_least_to_what_was_said() -> None:
    """The teacher would say 1 at each of three places, the learner said 0 with probability .99, .3 and .8."""
    said, teacher = torch.tensor([0, 0, 0]), torch.tensor([[0.1, 0.9]] * 3).log()
    learner = torch.tensor([[0.99, 0.01], [0.3, 0.7], [0.8, 0.2]]).log()
    assert find_slip(said, teacher, teacher, learner, is_blamed=False) == 1
    clings = learner[[0, 2, 0]]
    assert find_slip(said, teacher, teacher, clings, is_blamed=True) == 1
    assert find_slip(said, teacher, teacher, clings, is_blamed=False) == -1  # praise, perhaps
    explained = torch.tensor(
        [[0.9, 0.1], [0.1, 0.9], [0.1, 0.9]]
    ).log()  # without the words, the teacher would have said 0 first
    assert find_slip(said, teacher, explained, clings, is_blamed=True) == -1
    assert find_slip(torch.tensor([1, 1, 1]), teacher, teacher, learner, is_blamed=True) == -1
