"""Tokens per second of the local engine over those of transformers' own `generate`, with the same model.

    OMP_NUM_THREADS=1 python tests/performance/bench_generate.py [--models guard pocket llama] [--batches 1 16] [--rounds 5]

`llama` is a random Llama of 12 layers x 768, vocabulary 16,000 (97 million parameters), made on the spot. Both sample at temperature 1
and make 64 tokens a reply, behind prompts of 40 tokens, new ones in each round. `generate` gets them as one batch, the engine as so many
streams at once, whose pieces a client reads; besides tokens the engine makes their texts and both log-probabilities of each token, which
`generate` does not. Then the same again, where both have an adapter of rank 16 on all linear layers, transformers by PEFT.

The two take turns, and each round gives one ratio: of the time that passed and of the CPU time
of all threads. On a busy machine the first counts what the engine's threads wait for each other, too. The target is 1 or more. Nothing
is asserted.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path

import peft
import torch
from bench_swap import make, make_adapter
from rows import make_parser, report

from learngraph.memory.records import ChatRequest, Reply, Sampling
from learngraph.tools.local.engine import LocalEngine
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.models.models import GUARD, POCKET

PROMPT_TOKENS = 40
REPLY_TOKENS = 64


def open_model(folder: str) -> LocalChatModel:
    """A model whose replies never end by themselves."""
    model = LocalChatModel(model=folder)
    model._end_ids = frozenset()
    model.network.generation_config.eos_token_id = None
    model.network.generation_config.pad_token_id = 0
    return model


def make_prompts(model: LocalChatModel, draw: random.Random, count: int) -> list[str]:
    """Texts of so many tokens each."""
    texts = [model.tokenizer.decode([i]) for i in range(len(model.tokenizer))]
    words = [text for text in texts if text[:1] == " " and text[1:].isalnum()] or [
        f" {text}" for text in texts if text.isalnum()
    ]
    found: list[str] = []
    for _ in range(1000 * count):
        text = "".join(draw.choices(words, k=PROMPT_TOKENS)).removeprefix(" ")
        if len(model.get_token_ids(text)) == PROMPT_TOKENS:
            found.append(text)
        if len(found) == count:
            return found
    raise SystemExit(f"no texts of {PROMPT_TOKENS} tokens were found")


def time_generate(model: LocalChatModel, network: torch.nn.Module, prompts: list[str]) -> tuple[float, float]:
    """Seconds that transformers takes, and CPU seconds."""
    ids = torch.tensor([model.get_token_ids(text) for text in prompts])
    began, cpu = time.perf_counter(), time.process_time()
    made = network.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, max_new_tokens=REPLY_TOKENS
    )
    took = time.perf_counter() - began, time.process_time() - cpu
    assert made.shape[1] == PROMPT_TOKENS + REPLY_TOKENS, made.shape
    return took


async def time_engine(engine: LocalEngine, version: str, prompts: list[str], seed: int) -> tuple[float, float]:
    """Seconds that the engine takes, and CPU seconds."""

    async def read(text: str, seed: int) -> None:
        request = ChatRequest(raw=text, sampling=Sampling(seed=seed, max_tokens=REPLY_TOKENS))
        async for part in engine.stream(request, version):
            if isinstance(part, Reply):
                assert len(part.token_ids) == REPLY_TOKENS

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(read(text, seed + i) for i, text in enumerate(prompts)))
    return time.perf_counter() - began, time.process_time() - cpu


async def compare(name: str, folder: str, adapter: Path | None, batches: list[int], rounds: int) -> None:
    """Report the ratios of a model."""
    theirs, own = open_model(folder), open_model(folder)
    network = theirs.network if adapter is None else peft.PeftModel.from_pretrained(theirs.network, adapter).eval()
    engine, draw = LocalEngine(own, rank=16), random.Random(0)
    if adapter is not None:
        await engine.load("v", adapter)
    for batch in batches:
        theirs_took, own_took = [], []
        for turn in range(rounds + 1):
            prompts = make_prompts(own, draw, batch)
            theirs_took.append(time_generate(theirs, network, prompts))
            own_took.append(await time_engine(engine, "v" if adapter else "", prompts, turn))
        del theirs_took[0], own_took[0]
        speeds = [batch * REPLY_TOKENS / statistics.median(wall for wall, _ in took) for took in (theirs_took, own_took)]
        what = f"{name}{', an adapter' if adapter else ''}, {batch} {'replies' if batch > 1 else 'reply'} at a time"
        note = f"{speeds[1]:.0f} over {speeds[0]:.0f} tokens/s"
        for which, of, more in ((0, "tokens per second", {"at_least": 1, "note": note}), (1, "tokens per CPU second", {})):
            times = [a[which] / b[which] for a, b in zip(theirs_took, own_took, strict=True)]
            report(f"{of} over those of transformers' `generate`: {what}", times, **more)
    await engine.close()


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument("--models", nargs="+", choices=["guard", "pocket", "llama"], default=["guard", "pocket", "llama"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        for name in ["guard"] if options.quick else options.models:
            folder = {"guard": str(GUARD), "pocket": str(POCKET)}.get(name, f"{place}/llama")
            if name == "llama":
                make(Path(folder), 16_000, 12, 768, 2048)
            adapter = Path(place) / f"{name}-adapter"
            make_adapter(Path(folder), adapter, 0)
            rounds = min(options.rounds, 3) if name == "llama" else options.rounds
            for used in (None, adapter):
                asyncio.run(compare(name, folder, used, options.batches, rounds))


if __name__ == "__main__":
    main()
