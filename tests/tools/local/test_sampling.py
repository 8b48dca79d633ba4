"""Drawing tokens: many rows at once, each as if it were alone."""

import math

import pytest

torch = pytest.importorskip("torch")

from learngraph.tools.local.sampling import Draw, sample_tokens  # noqa: E402


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("size", [5, 145, 2000, 16_000])
def test_rows_are_drawn_as_multinomial_draws_each(size: int) -> None:
    logps = (3 * torch.randn(7, size, generator=generator(0))).log_softmax(-1)
    heats = [1.0, 0.5, 1.0, 0.0, 1.7, 1.0, 0.3]
    tops = [1.0, 1.0, 0.8, 1.0, 0.5, 1.0, 0.9]
    draws = [Draw(heat, top, generator(i), 2) for i, (heat, top) in enumerate(zip(heats, tops, strict=True))]
    for again in range(5):
        found = sample_tokens(logps, draws)
        for row, (draw, token) in enumerate(zip(draws, found, strict=True)):
            assert token.model_logprob == float(logps[row, token.id])
            assert token.top_logprobs[0][1] == float(logps[row].max())
            if not draw.temperature:
                assert (token.id, token.sampled_logprob) == (int(logps[row].argmax()), 0.0)
                continue
            # One plain draw after another from the same seed.
            other = generator(row)
            chances = (logps[row].double() / draw.temperature).softmax(-1)
            if draw.top_p < 1:
                ordered, order = chances.sort(descending=True)
                chances[order[ordered.cumsum(0) - ordered >= draw.top_p]] = 0
                chances /= chances.sum()
            for _ in range(again + 1):
                expected = int(torch.multinomial(chances.float(), 1, generator=other))
            assert token.id == expected
            assert token.sampled_logprob == pytest.approx(math.log(float(chances[expected])), abs=1e-5)


def test_a_row_that_holds_no_numbers_is_an_error() -> None:
    logps = torch.full((2, 5), -1.6)
    logps[1] = torch.nan
    with pytest.raises(RuntimeError, match="no numbers"):
        sample_tokens(logps, [Draw(1.0, 1.0, generator(0)), Draw(1.0, 1.0, generator(1))])


def test_what_was_changed_and_what_the_model_says_are_both_told() -> None:
    own = torch.tensor([[0.25, 0.25, 0.5]]).log()
    changed = own.clone()
    changed[0, 2] = -torch.inf
    counts = [0, 0, 0]
    draw = Draw(1.0, 1.0, generator(0))
    for _ in range(300):
        (token,) = sample_tokens(changed, [draw], own)
        counts[token.id] += 1
        assert token.sampled_logprob == pytest.approx(math.log(0.5))
        assert token.model_logprob == pytest.approx(math.log(0.25))
    assert counts[2] == 0
    assert 110 < counts[0] < 190
