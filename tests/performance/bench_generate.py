"""Tokens per second of the local engine over those of transformers' own `generate`, with the same model.

    OMP_NUM_THREADS=1 python tests/performance/bench_generate.py [--models guard pocket llama] [--batches 1 16] [--rounds 5] [--continuous]

`llama` is a random Llama of 12 layers x 768, vocabulary 16,000 (97 million parameters), made on the spot. Both sample at temperature 1
and make 64 tokens a reply, behind prompts of 40 tokens, new ones in each round. `generate` gets them as one batch, the engine as so many
streams at once, whose pieces a client reads; besides tokens the engine makes their texts and both log-probabilities of each token, which
`generate` does not. Then the same again, where both have an adapter of rank 16 on all linear layers, transformers by PEFT. With
`--continuous` the other side is transformers' continuous batching, which gives log-probabilities and streams tokens, too. It has no
adapter of a request's own, so that two tenants with an adapter each are two managers, each with a network and half of the prompts.

The two take turns, and each round gives one ratio: of the time that passed and of the CPU time
of all threads. On a busy machine the first counts what the engine's threads wait for each other, too. The target is 1 or more. Nothing
is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from bench_swap import make_adapter
from random_llama import make_llama, make_tokenizer
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
    model.template.end_ids = frozenset()
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


async def time_engine(engine: LocalEngine, versions: list[str], prompts: list[str], seed: int) -> tuple[float, float]:
    """Seconds that the engine takes, and CPU seconds. The prompts are those of as many tenants as versions, in turn."""

    async def read(text: str, n: int) -> None:
        request = ChatRequest(raw=text, sampling=Sampling(seed=seed + n, max_tokens=REPLY_TOKENS))
        version = versions[n % len(versions)]
        async for part in engine.stream(request, version, tenant=version):
            if isinstance(part, Reply):
                assert len(part.token_ids) == len(part.logprobs) == REPLY_TOKENS

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(read(text, n) for n, text in enumerate(prompts)))
    return time.perf_counter() - began, time.process_time() - cpu


def time_continuous(model: LocalChatModel, managers: list[Any], prompts: list[str]) -> tuple[float, float]:
    """Seconds that transformers' continuous batching takes, and CPU seconds."""
    ids = [model.get_token_ids(text) for text in prompts]
    began, cpu = time.perf_counter(), time.process_time()
    for n, one in enumerate(ids):
        managers[n % len(managers)].add_request(one, max_new_tokens=REPLY_TOKENS, streaming=True, eos_token_id=-1)
    for n, manager in enumerate(managers):
        left = len(ids[n :: len(managers)])
        while left:
            part = manager.get_result(timeout=60)
            assert part is not None, "no result in a minute"
            left -= part.is_finished()
            assert not part.is_finished() or len(part.generated_tokens) == len(part.logprobs) == REPLY_TOKENS
    return time.perf_counter() - began, time.process_time() - cpu


@contextmanager
def open_managers(networks: list[Any]) -> Iterator[list[Any]]:
    """A running manager of transformers' continuous batching for each network."""
    sampling = transformers.GenerationConfig(
        do_sample=True, top_k=0, max_new_tokens=REPLY_TOKENS, eos_token_id=-1, pad_token_id=0
    )
    with ExitStack() as stack:
        found = []
        for network in networks:
            config = transformers.ContinuousBatchingConfig(
                page_size=32, num_blocks=256, max_batch_tokens=1024, return_logprobs=True
            )
            base = (
                network.get_base_model() if isinstance(network, peft.PeftModel) else network
            )  # adapters are within its layers
            context = base.continuous_batching_context_manager(sampling, timeout=10, continuous_batching_config=config)
            found.append(stack.enter_context(context))
        yield found


async def compare(name: str, folder: str, adapters: list[Path], options: argparse.Namespace, rounds: int) -> None:
    """Report the ratios of a model, with an adapter for each tenant; without adapters the base model answers one tenant."""
    own, draw, versions = open_model(folder), random.Random(0), [path.name for path in adapters] or [""]
    theirs = [open_model(folder) for _ in versions]
    networks = [model.network for model in theirs]
    if adapters:
        networks = [peft.PeftModel.from_pretrained(*pair).eval() for pair in zip(networks, adapters, strict=True)]  # type: ignore[arg-type]
    engine = LocalEngine(own, rank=16)
    for version, path in zip(versions, adapters, strict=False):
        await engine.load(version, path)
    with open_managers(networks) if options.continuous else nullcontext([]) as managers:
        for batch in options.batches:
            theirs_took, own_took = [], []
            for turn in range(rounds + 1):
                prompts = make_prompts(own, draw, batch)
                if options.continuous:
                    theirs_took.append(await asyncio.to_thread(time_continuous, own, managers, prompts))
                else:
                    theirs_took.append(time_generate(theirs[0], networks[0], prompts))
                own_took.append(await time_engine(engine, versions, prompts, turn))
            del theirs_took[0], own_took[0]
            _report(name, len(adapters), batch, options.continuous, theirs_took, own_took)
    await engine.close()


def _report(
    name: str,
    adapters: int,
    batch: int,
    continuous: bool,
    theirs_took: list[tuple[float, float]],
    own_took: list[tuple[float, float]],
) -> None:
    speeds = [batch * REPLY_TOKENS / statistics.median(wall for wall, _ in took) for took in (theirs_took, own_took)]
    worn = ["", ", an adapter", ", two tenants' adapters"][adapters]
    what = f"{name}{worn}, {batch} {'replies' if batch > 1 else 'reply'} at a time"
    note = f"{speeds[1]:.0f} over {speeds[0]:.0f} tokens/s"
    other = "continuous batching" if continuous else "`generate`"
    for which, of, more in ((0, "tokens per second", {"at_least": 1, "note": note}), (1, "tokens per CPU second", {})):
        times = [a[which] / b[which] for a, b in zip(theirs_took, own_took, strict=True)]
        report(f"{of} over those of transformers' {other}: {what}", times, **more)


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument("--models", nargs="+", choices=["guard", "pocket", "llama"], default=["guard", "pocket", "llama"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--continuous", action="store_true", help="compare with transformers' continuous batching")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        for name in ["guard"] if options.quick else options.models:
            folder = {"guard": str(GUARD), "pocket": str(POCKET)}.get(name, f"{place}/llama")
            if name == "llama":
                make_llama(Path(folder), 16_000, 12, 768, 2048, eos_token_id=1)
                make_tokenizer(Path(folder), 16_000)
            adapters = [Path(place) / f"{name}-{n}" for n in range(2)]
            for n, adapter in enumerate(adapters):
                make_adapter(Path(folder), adapter, n)
            rounds = min(options.rounds, 3) if name == "llama" else options.rounds
            for used in ([], adapters if options.continuous else adapters[:1]):
                asyncio.run(compare(name, folder, used, options, rounds))


if __name__ == "__main__":
    main()
