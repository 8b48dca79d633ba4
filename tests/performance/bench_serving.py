"""A benchmark of `learngraph serve` under load: many streams at once, with and without training.

    python tests/performance/bench_serving.py [--streams 200] [--seconds 10] [--rounds 2] [--learner process] [--model pocket]
    python tests/performance/bench_serving.py --url http://127.0.0.1:8000 --key KEY      # a server that runs already

Starts two servers in processes of their own and asks them as clients do, over HTTP: one that learns, and one without a learner. Both
get the same traffic in turns, --rounds times, and every reply gets feedback:

    calm, idle        4 streams at once; the server without a learner
    calm, training    the same; the server that learns, and versions replace each other
    load, idle        --streams at once
    load, training    the same, and learning

With --url there is one server, and its idle rounds are those without feedback.

Shown for each: requests, those that failed, those that hung (no end within 60 s), time to the first token, time of a whole reply,
tokens a second, the time that POST /v1/feedback takes (target: 50 ms), gradient steps, and how many versions answered. Two targets are
read off: the whole reply's median, training over idle (at most 1.1), and the failed requests of rounds in which versions changed (0).
Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from rows import make_parser, ratios, report

HANG = 60.0
"""Seconds after which a request has hung."""
PLACES = ["kitchen", "pantry", "garden", "cellar", "hall", "attic", "shed", "library", "corridor", "bedroom"]


@dataclass
class Seen:
    """What the clients saw in a round."""

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    told: list[float] = field(default_factory=list)
    tokens: int = 0
    failed: list[str] = field(default_factory=list)
    hung: int = 0
    versions: set[str] = field(default_factory=set)
    seconds: float = 0.0
    steps: int = 0


@contextmanager
def server(model: str, learner: str, folder: Path, more: Sequence[str] = ()) -> Iterator[tuple[str, str, int]]:
    """URL, key and process id of a server that ends with the block."""
    command = [
        *(
            sys.executable,
            "-c",
            "from learngraph.graphs.cli.main import main; main()",
            "serve",
            "--model",
            model,
            "--port",
            "0",
        ),
        *("--api-key", "bench", "--out", str(folder), "--learner", learner, *more),
    ]
    log = (folder.parent / "serve.log").open("w+")
    process = subprocess.Popen(
        command, stdout=log, stderr=subprocess.STDOUT, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    try:
        deadline, url = time.monotonic() + 300, None
        while url is None and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.2)
            url = re.search(r"http://[\w.:\[\]]+", Path(log.name).read_text())
        if url is None:
            raise SystemExit(f"the server did not start:\n{Path(log.name).read_text()[-2000:]}")
        yield url[0], "bench", process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            print("the server did not end within 30 s of SIGTERM")
        if tail := Path(log.name).read_text().count("Traceback"):
            print(f"{tail} tracebacks in the server's log:\n{Path(log.name).read_text()[-3000:]}")
        log.close()


def asked(draw: random.Random, tokens: int) -> dict[str, Any]:
    """A chat, no two alike."""
    place, other = draw.sample(PLACES, 2)
    words = f"You are in the {place}. There is a lamp and a map. What would you take to the {other}? ({draw.randrange(10**6)})"
    return {"messages": [{"role": "user", "content": words}], "max_tokens": tokens, "seed": draw.randrange(2**31)}


async def one(client: aiohttp.ClientSession, model: str, draw: random.Random, tokens: int, feedback: bool, seen: Seen) -> None:
    """A streamed reply, and what is said of it."""
    body = asked(draw, tokens) | {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    began, first, done = time.perf_counter(), 0.0, False
    try:
        async with asyncio.timeout(HANG):
            async with client.post("/v1/chat/completions", json=body) as answer:
                if answer.status != 200:
                    seen.failed.append(f"{answer.status} {(await answer.text())[:200]}")
                    return
                seen.versions.add(answer.headers["x-policy-version"])
                id = answer.headers["x-experience-id"]
                async for line in answer.content:
                    if not line.startswith(b"data: "):
                        continue
                    first = first or time.perf_counter() - began
                    if line.startswith(b"data: [DONE]"):
                        done = True
                        break
                    if b'"error"' in line[:20]:
                        seen.failed.append(line.decode()[:200])
                        return
                    if b'"choices":[]' in line:
                        seen.tokens += json.loads(line[6:])["usage"]["completion_tokens"]
        if not done:
            seen.failed.append("the stream ended without [DONE]")
            return
        seen.first.append(first)
        seen.whole.append(time.perf_counter() - began)
        if feedback:
            good = draw.random() < 0.5
            told = {"response_id": id, "reward": 1.0 if good else -1.0, "text": "" if good else "Name one thing only."}
            began = time.perf_counter()
            async with asyncio.timeout(HANG), client.post("/v1/feedback", json=told) as answer:
                if answer.status != 202:
                    seen.failed.append(f"feedback {answer.status} {(await answer.text())[:200]}")
                seen.told.append(time.perf_counter() - began)
    except TimeoutError:
        seen.hung += 1
    except aiohttp.ClientError as error:
        seen.failed.append(repr(error)[:200])


async def steps(client: aiohttp.ClientSession) -> int:
    """Gradient steps taken so far."""
    async with client.get("/v1/status") as answer:
        scopes = (await answer.json()).get("scopes", [])
    return sum(int(scope.get("step", 0)) for scope in scopes)


async def round_of(url: str, key: str, model: str, streams: int, seconds: float, tokens: int, feedback: bool) -> Seen:
    """So many clients, each asking again as soon as it is answered, for so long."""
    seen, draw = Seen(), random.Random(streams)
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(url, headers=headers, connector=connector, timeout=aiohttp.ClientTimeout()) as client:
        before = await steps(client)
        began = time.monotonic()

        async def again(draw: random.Random) -> None:
            while time.monotonic() - began < seconds:
                await one(client, model, draw, tokens, feedback, seen)

        await asyncio.gather(*(again(random.Random(draw.random())) for _ in range(streams)))
        seen.seconds = time.monotonic() - began
        seen.steps = await steps(client) - before
    return seen


def share(values: Sequence[float], part: float) -> float:
    """A quantile, in milliseconds."""
    ordered = sorted(values)
    return 1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def show(name: str, seen: Seen) -> None:
    print(
        f"{name:<16}{len(seen.whole):>7} replies {len(seen.failed):>3} failed {seen.hung:>3} hung   "
        f"first token p50 {share(seen.first, 0.5):>7.0f} p99 {share(seen.first, 0.99):>7.0f} ms   "
        f"whole p50 {share(seen.whole, 0.5):>7.0f} p99 {share(seen.whole, 0.99):>7.0f} ms   {seen.tokens / seen.seconds:>6.0f} tokens/s   "
        f"feedback p50 {share(seen.told, 0.5):>5.1f} p99 {share(seen.told, 0.99):>6.1f} ms   "
        f"{seen.steps:>3} steps {len(seen.versions):>3} versions answered",
        flush=True,
    )
    for problem in sorted(set(seen.failed))[:5]:
        print(f"    {seen.failed.count(problem)} x {problem}")


async def model_of(url: str, key: str) -> str:
    """The server's model."""
    async with (
        aiohttp.ClientSession(url, headers={"authorization": f"Bearer {key}"}) as client,
        client.get("/v1/models") as answer,
    ):
        return str((await answer.json())["data"][0]["id"])


async def rounds(idle: tuple[str, str], training: tuple[str, str], options: argparse.Namespace) -> dict[str, list[Seen]]:
    """All rounds, by name.

    Args:
        idle: URL and key of the server that does not learn.
        training: of the one that learns; the same if there is only one.
    """
    found: dict[str, list[Seen]] = {}
    for url, key in {idle, training}:  # a first request pays for what a server keeps afterwards
        await round_of(url, key, await model_of(url, key), 2, 1.0, options.tokens, False)
    for _ in range(options.rounds):
        for kind, streams in (("calm", options.calm), ("load", options.streams)):
            for name, (url, key) in (("idle", idle), ("training", training)):
                has_feedback = name == "training" or idle != training
                model = await model_of(url, key)
                seen = await round_of(url, key, model, streams, options.seconds, options.tokens, has_feedback)
                show(f"{kind}, {name}", seen)
                found.setdefault(f"{kind}, {name}", []).append(seen)
    return found


def report_all(found: dict[str, list[Seen]], calm: int, load: int) -> None:
    """Report the rows."""
    for kind, streams in (("calm", calm), ("load", load)):
        idle, training = found[f"{kind}, idle"], found[f"{kind}, training"]
        both = [[share(seen.whole, 0.5) for seen in of] for of in (training, idle)]
        name = f"time of a whole reply, {streams} streams: a server that learns over one without a learner"
        steps = f"{sum(seen.steps for seen in training)} gradient steps"
        report(name, ratios(*both), number=20, at_most=1.1, limit=1, note=steps)
        for what, of in (("without a learner", idle), ("while learning", training)):
            note = f"99th percentile {share([one for seen in of for one in seen.first], 0.99):.0f} ms"
            report(f"first token, {streams} streams, {what}", [share(seen.first, 0.5) for seen in of], "ms", note=note)
            report(f"tokens per second, {streams} streams, {what}", [seen.tokens / seen.seconds for seen in of])
        for part, name in ((0.5, "median"), (0.99, "99th percentile")):
            times = [share(seen.told, part) for seen in training]
            report(f"feedback, {streams} streams, while learning, {name}", times, "ms", at_most=50)
    changed = [seen for of in found.values() for seen in of if len(seen.versions) > 1]
    failed = sum(len(s.failed) + s.hung for s in changed)
    replies = f"of {sum(len(seen.whole) for seen in changed)}"
    if changed:
        report("requests that failed while versions changed", failed, number=19, at_most=0, note=replies)
    else:
        report("requests that failed while versions changed", [], note="no version changed in so short a time")


def main() -> None:
    parser = make_parser(None, rounds=3)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--calm", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--learner", default="process")
    parser.add_argument("--url")
    parser.add_argument("--key", default="bench")
    options, more = parser.parse_known_args()
    if options.quick:
        options.streams, options.seconds, options.rounds = 16, 2.0, 1
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    if options.url:
        found = asyncio.run(rounds((options.url, options.key), (options.url, options.key), options))
    else:
        with (
            tempfile.TemporaryDirectory() as first,
            tempfile.TemporaryDirectory() as second,
            server(options.model, "off", Path(first) / "out", more) as (idle, key, _),
            server(options.model, options.learner, Path(second) / "out", more) as (url, _, _),
        ):
            found = asyncio.run(rounds((idle, key), (url, key), options))
    report_all(found, options.calm, options.streams)


if __name__ == "__main__":
    main()
