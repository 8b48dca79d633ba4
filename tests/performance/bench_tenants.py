"""A benchmark of two tenants of one service: a short reply of the second beside 256 streams of the first.

    python tests/performance/bench_tenants.py [--model guard] [--streams 256] [--replies 20] [--short]

Starts a server in a process of its own with a key for each tenant. Shown are the times of replies of 8 tokens, alone and beside the
other tenant's streams, each followed by the next. Its replies have 400 tokens and do not end before; with `--short` they end by
themselves, `guard`'s after a few tokens, so that most of the work is requests, not tokens. The target is a ratio of 5 at most. The first
tenant's clients are a process of their own, which shares the machine with the server. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import statistics
import tempfile
import time
from pathlib import Path

import aiohttp
from bench_serving import asked, server

from learngraph.tools.models.models import GUARD, POCKET

ENDS = {
    name: json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    for name, folder in (("guard", GUARD), ("pocket", POCKET))
}
"""Model -> the token that ends a reply, or tokens. Streams that may not have them do not end by themselves."""


async def time_reply(client: aiohttp.ClientSession, model: str, draw: random.Random) -> float:
    """Seconds of a reply of 8 tokens."""
    began = time.perf_counter()
    async with client.post("/v1/chat/completions", json=asked(draw, 8) | {"model": model}) as answer:
        answer.raise_for_status()
        await answer.json()
    return time.perf_counter() - began


async def stream_for_ever(client: aiohttp.ClientSession, model: str, draw: random.Random, is_short: bool) -> None:
    """Streams of replies, one after the other."""
    while True:
        ends = ENDS[model] if isinstance(ENDS[model], list) else [ENDS[model]]
        body = asked(draw, 400) | {"model": model, "stream": True}
        if not is_short:
            body["logit_bias"] = {str(end): -100 for end in ends}
        async with client.post("/v1/chat/completions", json=body) as answer:
            if answer.status == 429:  # the stream before this one still counts
                await asyncio.sleep(0.1)
                continue
            answer.raise_for_status()
            async for _ in answer.content.iter_chunked(1 << 16):
                pass


async def crowd(url: str, model: str, streams: int, is_short: bool) -> None:
    """The first tenant's streams, until one breaks."""
    draw, no_limit = random.Random(1), aiohttp.ClientTimeout(total=None)
    connections = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        url, headers={"authorization": "Bearer first"}, timeout=no_limit, connector=connections
    ) as client:
        await asyncio.gather(*(stream_for_ever(client, model, draw, is_short) for _ in range(streams)))


def run_crowd(url: str, model: str, streams: int, is_short: bool) -> None:
    """`crowd` in a process of its own."""
    asyncio.run(crowd(url, model, streams, is_short))


async def compare(url: str, model: str, streams: int, replies: int, is_short: bool) -> None:
    """Print the times of both rounds."""
    draw, no_limit = random.Random(0), aiohttp.ClientTimeout(total=None)
    rows = []
    async with aiohttp.ClientSession(url, headers={"authorization": "Bearer second"}, timeout=no_limit) as second:
        for _ in range(5):
            await time_reply(second, model, draw)
        rows.append([await time_reply(second, model, draw) for _ in range(replies)])
        first = multiprocessing.get_context("spawn").Process(target=run_crowd, args=(url, model, streams, is_short))
        first.start()
        try:
            await asyncio.sleep(8)
            rows.append([await time_reply(second, model, draw) for _ in range(replies)])
            if not first.is_alive():
                raise SystemExit("a stream of the first tenant broke")
        finally:
            first.terminate()
            first.join()
    for name, times in zip(("alone", f"beside {streams} streams"), rows, strict=True):
        print(f"{name:>20}: median {1e3 * statistics.median(times):6.0f} ms, longest {1e3 * max(times):6.0f} ms")
    print(f"{'ratio':>20}: {statistics.median(rows[1]) / statistics.median(rows[0]):.1f} (target: 5 at most)")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="guard")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--replies", type=int, default=20)
    parser.add_argument("--short", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.yaml"
        keys.write_text("first: {keys: [first]}\nsecond: {keys: [second]}\n")
        with server(args.model, "off", Path(folder) / "out", ["--keys", str(keys)]) as (url, _, _):
            asyncio.run(compare(url, args.model, args.streams, args.replies, args.short))


if __name__ == "__main__":
    main()
