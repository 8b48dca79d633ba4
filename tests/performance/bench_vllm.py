"""Our engine beside a real vLLM on the CPU, as `make vllm` installs it, and beside plain transformers, all with one thread.

    python tests/performance/bench_vllm.py [--rounds 3] [--streams 1 8 64] [--swaps 12]

The network is that of bench_swap.py. Shown are the tokens a second of so many streams with an adapter, each of which asks again when it
is answered (transformers: one batch of so many); then the replies that failed while version after version is loaded under the most
streams, each stream going on with the newest, and the time until a version can be asked. vLLM answers HTTP in a process of its own
beside the network's, which here has the other core. Nothing is asserted.
"""

import asyncio
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from bench_swap import Load, make_versions
from rows import make_parser, report

from learngraph.tools.local.engine import LocalEngine
from learngraph.tools.serving.vllm_engine import VllmEngine

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from real_vllm import RealVllm

LENGTH = 32
"""Tokens of a reply."""


async def tokens_a_second(engine: Any, streams: int) -> float:
    """Tokens a second from the first replies of all streams on, until there are three times as many (of few streams, 16)."""
    load = Load(engine)
    load.version = "acme/default@0"
    tasks = [asyncio.create_task(load.one(i, LENGTH)) for i in range(streams)]
    ends = list[float]()
    for count in (streams, max(16, 3 * streams)):
        while len(load.replies) < count and not load.failed:
            await asyncio.sleep(0.005)
        ends.append(time.perf_counter())
    tokens = sum(len(reply.token_ids) for reply in load.replies[streams : max(16, 3 * streams)])
    load.stop = True
    await asyncio.gather(*tasks)
    return tokens / (ends[1] - ends[0])


async def measure(name: str, engine: Any, folders: Sequence[Path], options: Any) -> None:
    """Report an engine's tokens a second, and its swaps."""
    await engine.load("acme/default@0", folders[0])
    for streams in options.streams:
        rates = [await tokens_a_second(engine, streams) for _ in range(options.rounds)]
        report(f"tokens a second of {streams} streams: {name}", rates)
    load, spans, kept = Load(engine), list[float](), deque(["acme/default@0"])
    load.version = "acme/default@0"
    tasks = [asyncio.create_task(load.one(i, LENGTH + i % 8)) for i in range(max(options.streams))]
    for number, folder in enumerate(folders[1:], 1):
        asked, start = len(load.replies), time.perf_counter()
        await engine.load(f"acme/default@{number}", folder)
        spans.append(1e3 * (time.perf_counter() - start))
        load.version = f"acme/default@{number}"
        kept.append(load.version)
        while len(load.replies) < asked + 2 * max(options.streams) and not load.failed:  # the former version's have all ended
            await asyncio.sleep(0.01)
        await engine.unload(kept.popleft())
    load.stop = True
    await asyncio.gather(*tasks)
    of, note = f"{len(spans)} new versions under {max(options.streams)} streams", f"of {len(load.replies)} replies"
    report(f"{of}: replies that failed: {name}", load.failed, note=note)
    report(f"{of}: time until it can be asked: {name}", spans, "ms")


def plain_transformers(model: Any, streams: int, rounds: int) -> list[float]:
    """Tokens a second of `generate` on a batch of so many prompts, without an adapter."""
    ids, rates = torch.randint(100, 400, (streams, 40), device=model.device), []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=LENGTH, do_sample=True, eos_token_id=None)
        rates.append(streams * LENGTH / (time.perf_counter() - start))
    return rates[1:]


def main() -> None:
    parser = make_parser(__doc__, rounds=3)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--swaps", type=int, default=12)
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model, folders = make_versions(folder, options.swaps + 1, options.quick)
        for streams in options.streams:
            rates = plain_transformers(model.network, streams, options.rounds)
            report(f"tokens a second of {streams} streams: transformers' generate, no adapter", rates)

        async def ours() -> None:
            engine = LocalEngine(model, rank=16, max_loras=4)
            await measure("our engine", engine, folders, options)
            await engine.close()

        async def theirs(url: str) -> None:
            engine = await asyncio.to_thread(VllmEngine, "base", url)
            await measure("vLLM", engine, folders, options)
            await engine.close()

        asyncio.run(ours())
        with RealVllm(str(folder / "model"), "base", folder) as server:
            asyncio.run(theirs(server.url))


if __name__ == "__main__":
    main()
