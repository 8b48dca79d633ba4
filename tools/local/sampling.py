"""Draw tokens from log-probabilities, each row with a temperature, a top-p and a random generator of its own."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...memory.errors import UserError
from ...memory.records import Sampling

__all__ = ["Draw", "SampledToken"]

GREEDY_BELOW = 1e-5
"""Temperatures below it are greedy: float32 log-probabilities that are divided by less may leave its range."""


@dataclass(frozen=True)
class SampledToken:
    """One generated token; log-probabilities in nats."""

    id: int
    sampled_logprob: float
    """Under the distribution it was drawn from (temperature and top-p applied; 0 for greedy decoding)."""
    model_logprob: float
    """Under the model's own distribution."""
    top_logprobs: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Draw:
    """How a token is drawn."""

    temperature: float
    """0: the most probable token."""
    top_p: float
    """The most probable tokens that together have this probability; always at least one."""
    generator: torch.Generator
    """Tokens are drawn on its device."""
    num_top_logprobs: int = 0
    """How many of the most probable tokens to report."""


def make_draw(sampling: Sampling, num_top_logprobs: int = 0, device: torch.device | None = None) -> Draw:
    """How the tokens of a reply are drawn, with a random generator of its own.

    Args:
        device: of the network. A GPU of CUDA draws itself: a processor takes as long for 64 rows of a large vocabulary as that GPU for
            their pass. For others the processor draws.

    Raises:
        UserError: a number that no reply can be sampled with; says which, and what it may be.
    """
    temperature, top_p = sampling.temperature, sampling.top_p
    if not (0 <= temperature < math.inf and 0 < top_p <= 1):
        raise UserError(f"temperature {temperature} and top_p {top_p}: wanted >= 0, and above 0 up to 1")
    if sampling.max_tokens < 1:
        raise UserError(f"asked for a reply of {sampling.max_tokens} tokens at most; ask for 1 or more")
    generator = torch.Generator(device if device is not None and device.type == "cuda" else "cpu")
    if sampling.seed is None:
        generator.seed()
    else:
        generator.manual_seed(sampling.seed % 2**64)
    return Draw(0.0 if temperature < GREEDY_BELOW else temperature, top_p, generator, num_top_logprobs)


@torch.inference_mode()
def sample_tokens(logps: torch.Tensor, draws: Sequence[Draw], model_logprobs: torch.Tensor | None = None) -> list[SampledToken]:
    """Tokens drawn from rows of log-probabilities, shape (rows, vocabulary).

    Args:
        draws: one for each row, each with a generator of its own, all on one device.
        model_logprobs: the model's own log-probabilities, if `logps` were changed (they need not be normalised then).

    Raises:
        RuntimeError: the log-probabilities of a row are no numbers.
    """
    device = draws[0].generator.device
    logps = logps.to(device)
    model_logprobs = logps if model_logprobs is None else model_logprobs.to(device)
    heats = torch.tensor([draw.temperature or 1.0 for draw in draws], device=device)
    drawn = (logps / heats[:, None]).log_softmax(-1)
    for row, draw in enumerate(draws):
        if draw.top_p < 1 and draw.temperature:
            ordered, order = drawn[row].sort(descending=True)
            before = ordered.exp().cumsum(-1) - ordered.exp()
            drawn[row] = drawn[row].index_fill(0, order[1:][before[1:] >= draw.top_p], -torch.inf).log_softmax(-1)
    # As `torch.multinomial` draws: the first of exponential waiting times with the probabilities as rates. The times are those of
    # `exponential_`, to the last bit, in a third of its time: it takes logarithms one by one.
    chances = torch.zeros(drawn.shape, dtype=torch.float64, device=device)
    for row, draw in enumerate(draws):
        if draw.temperature:
            chances[row].uniform_(generator=draw.generator)
    scores = drawn.exp().div_(chances.neg_().log1p_().neg_().float())
    for row, draw in enumerate(draws):
        if not draw.temperature:
            scores[row] = logps[row]
    choices = scores.argmax(-1, keepdim=True)
    sampled, own = drawn.gather(1, choices)[:, 0].tolist(), model_logprobs.gather(1, choices)[:, 0].tolist()
    found = []
    for row, (draw, choice) in enumerate(zip(draws, choices[:, 0].tolist(), strict=True)):
        if math.isnan(own[row]) or math.isnan(sampled[row]):
            raise RuntimeError("the network's log-probabilities are no numbers")
        top: tuple[tuple[int, float], ...] = ()
        if draw.num_top_logprobs:
            best = model_logprobs[row].topk(min(draw.num_top_logprobs, model_logprobs.shape[1]))
            top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        found.append(SampledToken(choice, sampled[row] if draw.temperature else 0.0, own[row], top))
    return found
