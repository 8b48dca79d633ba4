"""A benchmark of two tenants of one service: a short reply of the second beside 256 streams of the first.

    python tests/performance/bench_tenants.py [--model guard] [--streams 256] [--replies 10]

Starts a server in a process of its own with a key for each tenant. Shown are the times of replies of 8 tokens, alone and beside the
other tenant's streams, each followed by the next. Its replies have 400 tokens and do not end before; or they end by
themselves, `guard`'s after a few tokens, so that most of the work is requests, not tokens. The target is a ratio of 5 at most. The first
tenant's clients are a process of their own, which shares the machine with the server. Nothing is asserted.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import tempfile
import time
from pathlib import Path

import aiohttp
from bench_serving import asked, server
from rows import make_parser, medians, ratios, report

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


async def compare(url: str, model: str, streams: int, replies: int, is_short: bool, wait: float) -> None:
    """Report the times alone and beside the streams."""
    draw, no_limit = random.Random(0), aiohttp.ClientTimeout(total=None)
    rows = []
    async with aiohttp.ClientSession(url, headers={"authorization": "Bearer second"}, timeout=no_limit) as second:
        for _ in range(5):
            await time_reply(second, model, draw)
        rows.append([await time_reply(second, model, draw) for _ in range(replies)])
        first = multiprocessing.get_context("spawn").Process(target=run_crowd, args=(url, model, streams, is_short))
        first.start()
        try:
            await asyncio.sleep(wait)
            rows.append([await time_reply(second, model, draw) for _ in range(replies)])
            if not first.is_alive():
                raise SystemExit("a stream of the first tenant broke")
        finally:
            first.terminate()
            first.join()
    alone, beside = (medians(times, 3) for times in rows)
    kind = "a few tokens, one after the other" if is_short else "400 tokens"
    name = f"a tenant's reply of 8 tokens beside {streams} streams of {kind} of another one, over the same alone"
    report(name, ratios(beside, alone), at_most=5, note=f"longest {1e3 * max(rows[1]):.0f} ms, alone {1e3 * max(rows[0]):.0f}")


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, rounds=1)
    parser.add_argument("--model", default="guard")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--replies", type=int, default=12)
    args = parser.parse_args()
    streams, replies, wait = (16, 3, 2.0) if args.quick else (args.streams, args.replies, 8.0)
    for is_short in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            keys = Path(folder) / "keys.yaml"
            keys.write_text("first: {keys: [first]}\nsecond: {keys: [second]}\n")
            with server(args.model, "off", Path(folder) / "out", ["--keys", str(keys)]) as (url, _, _):
                asyncio.run(compare(url, args.model, streams, replies, is_short, wait))


if __name__ == "__main__":
    main()
