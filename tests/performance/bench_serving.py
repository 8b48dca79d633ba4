"""A benchmark of `learngraph serve` under load: many streams at once, with and without training.

    python tests/performance/bench_serving.py [--streams 200] [--seconds 10] [--rounds 2] [--learner process] [--warm 20] [--model pocket]

Starts a server in a process of its own and asks it as clients do, over HTTP: by turns with its adapter frozen, which learns nothing, and
while it learns, --rounds times, 4 streams at once and then --streams. Every reply gets feedback. Meanwhile /livez is asked five times
a second, at the server's port and at --livez-port. At last one user of a second server waits for the version that learned from what he
said. A request that has not ended within 60 s has hung, which counts as failed. Nothing is asserted.
"""

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from rows import make_parser, ratios, report

HANG = 60.0
"""Seconds after which a request has hung."""
LIVEZ: dict[str, str] = {}
"""URL of a server -> URL of its process for signs of life."""
PIDS: dict[str, int] = {}
"""URL of a server -> its process."""
STILL = 5
"""Times in a row that the learner must be found still before the next round."""
GIVE_UP = 5.0
"""Seconds that the user waits for a version."""
UNTIMED = 12
"""First feedbacks of the user who waits for versions; he waits for none of theirs."""
PLACES = ["kitchen", "pantry", "garden", "cellar", "hall", "attic", "shed", "library", "corridor", "bedroom"]


@dataclass
class Seen:
    """What the clients saw in a round."""

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    """Tokens of each whole reply."""
    told: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    hung: int = 0
    versions: set[str] = field(default_factory=set)
    alive: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of each answer of /livez, by place."""
    seconds: float = 0.0
    steps: int = 0
    cpu: tuple[float, float] = (0.0, 0.0)
    """Seconds of CPU of the server, and of the processes that it started: the learner's."""


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def fresh_python(*arguments: str, said: Path) -> subprocess.Popen[bytes]:
    """A process `python ARGUMENTS` that prints into a file."""
    with said.open("a") as log:
        return subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})


@contextmanager
def server(
    model: str, learner: str, folder: Path, more: Sequence[str] = (), start: Callable[..., Any] = fresh_python
) -> Iterator[tuple[str, str, Any]]:
    """URL, key and process of a server that ends with the block; `start` makes the process, as `fresh_python` does."""
    keys = folder.parent / "keys.yaml"
    keys.write_text("bench: {keys: [bench-key-0123456789], streams: 2000}\n")
    flags = ["--port", "0", "--keys", str(keys), "--out", str(folder), "--learner", learner]
    flags += ["--livez-port", str(free_port()), *more]
    path = folder.parent / "serve.log"
    path.write_text("")
    process = start("-m", "learngraph", "serve", "--model", model, *flags, said=path)
    try:
        deadline = time.monotonic() + 300
        while not (url := re.search(r"http://[\w.:\[\]]+", path.read_text())):
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit(f"the server did not start:\n{path.read_text()[-2000:]}")
            time.sleep(0.2)
        LIVEZ[url[0]] = f"http://127.0.0.1:{flags[flags.index('--livez-port') + 1]}"
        PIDS[url[0]] = process.pid
        yield url[0], "bench-key-0123456789", process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            print("the server did not end within 30 s of SIGTERM")
        if "Traceback" in (said := path.read_text()):
            print(f"tracebacks in the server's log:\n{said[-3000:]}")


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Seconds of CPU that a process has taken, and those of the processes that it started."""
    found = {True: 0.0, False: 0.0}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()  # from the third on
            if pid in (int(path.parent.name), int(fields[1])):
                found[int(path.parent.name) == pid] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found[True], found[False]


def asked(draw: random.Random, tokens: int) -> dict[str, Any]:
    """A chat, no two alike."""
    place, other = draw.sample(PLACES, 2)
    words = f"You are in the {place}. There is a lamp and a map. What would you take to the {other}? ({draw.randrange(10**6)})"
    return {"messages": [{"role": "user", "content": words}], "max_tokens": tokens, "seed": draw.randrange(2**31)}


async def one(client: aiohttp.ClientSession, model: str, draw: random.Random, tokens: int, feedback: bool, seen: Seen) -> None:
    """A streamed reply, and what is said of it."""
    body = asked(draw, tokens) | {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    began, first, done, tokens_said = time.perf_counter(), 0.0, False, 0
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
                        tokens_said = json.loads(line[6:])["usage"]["completion_tokens"]
        if not done:
            seen.failed.append("the stream ended without [DONE]")
            return
        seen.first.append(first)
        seen.whole.append(time.perf_counter() - began)
        seen.lengths.append(tokens_said)
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


async def steps(client: aiohttp.ClientSession) -> tuple[int, bool]:
    """Gradient steps taken so far, and whether the learner is at work, or only rests."""
    async with client.get("/v1/status") as answer:
        status = await answer.json()
    return sum(int(scope.get("step", 0)) for scope in status.get("scopes", [])), status["learner"]["state"] in (
        "training",
        "resting",
    )


def look_alive(places: dict[str, str], pipe: Any) -> None:
    """Ask for signs of life until the pipe says stop, on a new connection each time, as an orchestrator does: in a process of its own."""
    found: dict[str, list[float]] = {name: [] for name in places}
    pipe.send("ready")
    while not pipe.poll(0.2):
        for name, place in places.items():
            began = time.perf_counter()
            with urllib.request.urlopen(place, timeout=HANG) as answer:
                answer.read()
            found[name].append(time.perf_counter() - began)
    pipe.send(found)


async def wait_for_newer_version(url: str, key: str, model: str, times: int) -> list[float]:
    """Seconds from feedback to the first reply of a newer version, for one user who waits each time, `GIVE_UP` if it does not come (the
    model may say so already); the first ones are left out, and what is held out for the gate."""
    found, draw = [], random.Random(0)
    async with aiohttp.ClientSession(url, headers={"authorization": f"Bearer {key}"}) as client:

        async def chat() -> tuple[str, str]:
            async with client.post("/v1/chat/completions", json=asked(draw, 4) | {"model": model}) as answer:
                return answer.headers["x-experience-id"], answer.headers["x-policy-version"]

        async def live() -> str:
            async with client.get("/v1/adapters") as answer:
                return str((await answer.json())["data"][0]["live"])

        for number in range(times + UNTIMED):
            id, version = await chat()
            word = ("raft", "opal", "umber")[number % 3]  # another wish each time: what is learned already makes no version
            told = {"response_id": id, "reward": -1, "text": f"broke end : end with {word} ."}
            began = time.perf_counter()
            async with client.post("/v1/feedback", json=told) as answer:
                if (await answer.json())["state"] == "held_out":  # for the gate: no version learns from it
                    continue
            while number >= UNTIMED:
                if time.perf_counter() - began > GIVE_UP or (await live() != version and (await chat())[1] != version):
                    found.append(min(time.perf_counter() - began, GIVE_UP))
                    break
                await asyncio.sleep(0.02)
    return found


async def round_of(url: str, key: str, model: str, streams: int, seconds: float, tokens: int, feedback: bool) -> Seen:
    """So many clients, each asking again as soon as it is answered, for so long; it ends when the learner is still."""
    seen, draw = Seen(), random.Random(streams)
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"authorization": f"Bearer {key}"}
    pipe, there = multiprocessing.Pipe()
    places = {"its port": f"{url}/livez", "--livez-port": f"{LIVEZ[url]}/livez"}
    multiprocessing.get_context("spawn").Process(target=look_alive, args=(places, there), daemon=True).start()
    there.close()  # so that an end of the process is seen here
    pipe.recv()
    async with aiohttp.ClientSession(url, headers=headers, connector=connector, timeout=aiohttp.ClientTimeout()) as client:
        (before, _), cpu = await steps(client), cpu_seconds(PIDS[url])
        began = time.monotonic()

        async def again(draw: random.Random) -> None:
            while time.monotonic() - began < seconds:
                await one(client, model, draw, tokens, feedback, seen)

        await asyncio.gather(*(again(random.Random(draw.random())) for _ in range(streams)))
        seen.seconds = time.monotonic() - began
        pipe.send("stop")
        seen.alive = pipe.recv()
        seen.steps = (await steps(client))[0] - before
        own, others = cpu_seconds(PIDS[url])
        seen.cpu = own - cpu[0], others - cpu[1]
        times = 0
        while times < STILL:  # what is left to learn must not slow the next round
            times = 0 if (await steps(client))[1] else times + 1
            await asyncio.sleep(0.05)
    return seen


def share(values: Sequence[float], part: float) -> float:
    """A quantile, in milliseconds."""
    ordered = sorted(values)
    return 1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def same_length_times(one: Seen, other: Seen) -> tuple[float, ...]:
    """Times of whole replies in two rounds, in milliseconds: the mean of the medians of each length, weighted by how many both have, since a
    model that learns says more or less than before. nan: no length in both."""
    times = [{n: [t for t, m in zip(s.whole, s.lengths, strict=True) if m == n] for n in {*s.lengths}} for s in (one, other)]
    weights = {n: min(len(times[0][n]), len(times[1][n])) for n in times[0].keys() & times[1]}
    return tuple(sum(w * share(by[n], 0.5) for n, w in weights.items()) / (sum(weights.values()) or math.nan) for by in times)


async def model_of(url: str, key: str) -> str:
    """The server's model."""
    async with (
        aiohttp.ClientSession(url, headers={"authorization": f"Bearer {key}"}) as client,
        client.get("/v1/models") as answer,
    ):
        return str((await answer.json())["data"][0]["id"])


async def rounds(url: str, key: str, options: argparse.Namespace) -> dict[str, list[Seen]]:
    """All rounds, by name: idle with the adapter frozen, training without."""
    found: dict[str, list[Seen]] = {}
    model = await model_of(url, key)
    # What a server keeps after its first requests is paid for, and a version answers.
    await round_of(url, key, model, options.calm, options.warm, options.tokens, True)
    for number in range(options.rounds):
        for kind, streams in (("calm", options.calm), ("load", options.streams)):
            for name, order in (("idle", "freeze"), ("training", "thaw"))[:: 1 - number % 2 * 2]:
                async with (
                    aiohttp.ClientSession(url, headers={"authorization": f"Bearer {key}"}) as client,
                    client.post(f"/v1/adapters/default/{order}") as answer,
                ):
                    assert answer.status == 200, await answer.text()
                seen = await round_of(url, key, model, streams, options.seconds, options.tokens, True)
                found.setdefault(f"{kind}, {name}", []).append(seen)
                for problem in sorted(set(seen.failed))[:5]:
                    print(f"    {kind}, {name}: {seen.failed.count(problem)} x {problem}", flush=True)
    return found


def report_all(found: dict[str, list[Seen]], calm: int, load: int) -> None:
    """Report the rows."""
    for kind, streams in (("calm", calm), ("load", load)):
        idle, training = found[f"{kind}, idle"], found[f"{kind}, training"]
        both = list(zip(*map(same_length_times, training, idle), strict=True))
        name = f"time of a reply of the same length, {streams} streams: while learning over frozen"
        steps = f"{sum(seen.steps for seen in training)} gradient steps"
        report(name, ratios(*both), number=20, at_most=1.1, limit=1, note=steps)
        for what, of in (("frozen", idle), ("while learning", training)):
            note = f"99th percentile {share([one for seen in of for one in seen.first], 0.99):.0f} ms"
            report(f"first token, {streams} streams, {what}", [share(seen.first, 0.5) for seen in of], "ms", note=note)
            report(f"tokens per second, {streams} streams, {what}", [sum(seen.lengths) / seen.seconds for seen in of])
            used = [1000 * seen.cpu[0] / len(seen.whole) for seen in of if seen.whole]
            report(f"CPU of the server for a reply, {streams} streams, {what}", used, "ms")
        used = [seen.cpu[1] / seen.steps for seen in training if seen.steps]
        if used:
            report(f"CPU of the learner for a gradient step, {streams} streams", used, "s")
        for part, name in ((0.5, "median"), (0.99, "99th percentile")):
            times = [share(seen.told, part) for seen in training]
            report(f"feedback, {streams} streams, while learning, {name}", times, "ms", at_most=50)
        for place in ("its port", "--livez-port"):
            slowest = [1000 * max(seen.alive[place]) for seen in (*idle, *training) if seen.alive[place]]
            report(f"slowest answer of /livez at {place}, {streams} streams", slowest, "ms", at_most=100)
    changed = [seen for of in found.values() for seen in of if len(seen.versions) > 1]
    failed = sum(len(s.failed) + s.hung for s in changed)
    replies = f"of {sum(len(seen.whole) for seen in changed)}"
    if changed:
        report("requests that failed while versions changed", failed, number=19, at_most=0, note=replies)
    else:
        print("     no version changed in so short a time")


def main() -> None:
    parser = make_parser(None, rounds=3)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--calm", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--warm", type=float, default=20.0)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--learner", default="process")
    options, more = parser.parse_known_args()
    if options.quick:
        options.streams, options.seconds, options.rounds, options.warm = 16, 2.0, 1, 2.0
    with (
        tempfile.TemporaryDirectory() as first,
        server(options.model, options.learner, Path(first) / "out", more) as (url, key, _),
    ):
        found = asyncio.run(rounds(url, key, options))
    report_all(found, options.calm, options.streams)
    if options.learner == "off":
        return
    times = 5 if options.quick else 20
    with (
        tempfile.TemporaryDirectory() as second,
        server(options.model, options.learner, Path(second) / "out", more) as (url, key, _),
    ):
        before = cpu_seconds(PIDS[url])[1]
        waits = asyncio.run(wait_for_newer_version(url, key, options.model, times))
        used = cpu_seconds(PIDS[url])[1] - before
    if waits:
        note = f"slowest {max(waits):.1f} s; {sum(each < GIVE_UP for each in waits)} of {len(waits)} came"
        report(
            "from feedback to a reply of a newer version, one user, median", [share(waits, 0.5)], "ms", at_most=500, note=note
        )
        report("CPU of the learner for each feedback of this user, its start included", [1000 * used / (times + UNTIMED)], "ms")


if __name__ == "__main__":
    main()
