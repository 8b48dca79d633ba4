"""A benchmark of two tenants of one service: a short reply of the second beside 256 streams of the first.

    python tests/performance/bench_tenants.py [--model guard] [--streams 256] [--replies 20]

Starts a server in a process of its own with a key for each tenant. Shown are the times of replies of 8 tokens, alone and beside the
other tenant's streams of 400 tokens, each followed by the next. The target is a ratio of 5 at most. The clients share the machine with the
server, so that both rounds count their work, too. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
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


async def stream_for_ever(client: aiohttp.ClientSession, model: str, draw: random.Random) -> None:
    """Streams of long replies, one after the other."""
    while True:
        ends = ENDS[model] if isinstance(ENDS[model], list) else [ENDS[model]]
        body = asked(draw, 400) | {"model": model, "stream": True, "logit_bias": {str(end): -100 for end in ends}}
        async with client.post("/v1/chat/completions", json=body) as answer:
            answer.raise_for_status()
            async for _ in answer.content.iter_chunked(1 << 16):
                pass


async def compare(url: str, model: str, streams: int, replies: int) -> None:
    """Print the times of both rounds."""
    draw, no_limit = random.Random(0), aiohttp.ClientTimeout(total=None)
    connections = aiohttp.TCPConnector(limit=0)
    rows = []
    async with (
        aiohttp.ClientSession(url, headers={"authorization": "Bearer first"}, timeout=no_limit, connector=connections) as first,
        aiohttp.ClientSession(url, headers={"authorization": "Bearer second"}, timeout=no_limit) as second,
    ):
        for _ in range(5):
            await time_reply(second, model, draw)
        rows.append([await time_reply(second, model, draw) for _ in range(replies)])
        crowd = [asyncio.create_task(stream_for_ever(first, model, draw)) for _ in range(streams)]
        await asyncio.sleep(5)
        rows.append([await time_reply(second, model, draw) for _ in range(replies)])
        broken = [task.exception() for task in crowd if task.done()]
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
    for name, times in zip(("alone", f"beside {streams} streams"), rows, strict=True):
        print(f"{name:>20}: median {1e3 * statistics.median(times):6.0f} ms, longest {1e3 * max(times):6.0f} ms")
    print(
        f"{'ratio':>20}: {statistics.median(rows[1]) / statistics.median(rows[0]):.1f} (target: 5 at most); {len(broken)} streams broke"
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="guard")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--replies", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.yaml"
        keys.write_text("first: {keys: [first]}\nsecond: {keys: [second]}\n")
        with server(args.model, "off", Path(folder) / "out", ["--keys", str(keys)]) as (url, _, _):
            asyncio.run(compare(url, args.model, args.streams, args.replies))


if __name__ == "__main__":
    main()
