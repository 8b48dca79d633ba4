"""A soak test of `learngraph serve`, and of an agent's memory beside it: mixed traffic for a long time, to see leaks, failures and hangs.

    python tests/performance/soak_serving.py [--minutes 10] [--clients 12] [--learner process] [--memory PLACE]

Clients of three tenants chat (streamed and whole, n = 2, with and without `store`), hang up in mid-stream, give feedback (once, twice, for others'
responses), send what is no JSON, read the lists, metrics and the dashboard, promote and roll back. Every minute: what was asked, what
failed, and the resident memory of the server and of its learner; in the end its slope, by least squares over the second half, and
over all but the first fifth. Another process writes episodes into a memory of JitRL (a directory, or --memory), asks it and prunes it.
In the end: feedback that was accepted and is not in the buffer, and episodes that were written and are not in the memory. Flags that this
program does not know go to the server (`--buffer postgresql://…`). Nothing is asserted; a slope that is not near 0 MB/min is a leak, or a cache that still fills.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import linear_regression

import aiohttp
from bench_serving import HANG, PLACES, Seen, asked, model_of, one, server, steps

from learngraph.memory.claas.replay import Replay
from learngraph.memory.records import ExchangeQuery, Task, Trajectory, Transition
from learngraph.memory.returns.experiences import Experiences
from learngraph.memory.storage.open_store import open_store
from learngraph.memory.storage.record_store import RecordStore

TENANTS = ("first", "second", "third")
"""Names of the tenants, which are their keys, too."""


MAX_RECORDS = 100_000
"""Exchanges of a tenant that the buffer keeps: none must go while they are counted."""
KEPT_EPISODES, EPISODES_A_SECOND = 500, 10
"""Episodes that the memory is pruned to, every hundred; and those that are written."""


def remember(place: str, minutes: float) -> None:
    """Write episodes into a memory, ask it and prune it; in the end, say how many of the last ones are there."""
    draw, end, written = random.Random(0), time.monotonic() + 60 * minutes, 0
    with open_store(place) as store:
        records = RecordStore(store, ("soak",), Trajectory)
        memory = Experiences(records)
        while time.monotonic() < end:
            rooms = [f"You are in the {draw.choice(PLACES)} number {draw.randrange(40)}." for _ in range(10)]
            moves = tuple(Transition(room, draw.choice(("go", "take")), float(draw.random() < 0.2)) for room in rooms)
            memory.add(Trajectory(id=f"soak/{written}", task=Task("soak", "find the lamp"), transitions=moves))
            memory.neighbours(rooms[0], 10, task="soak")
            written += 1
            if written % 100 == 0:
                memory.prune(keep_last=KEPT_EPISODES)
            time.sleep(1 / EPISODES_A_SECOND)
    with open_store(place) as store:
        there = {one.id for one in RecordStore(store, ("soak",), Trajectory).all()}
    lost = [n for n in range(max(0, written - KEPT_EPISODES), written) if f"soak/{n}" not in there]
    print(f"memory: {written} episodes written, {len(there)} kept, {len(lost)} of the last {KEPT_EPISODES} lost", flush=True)


def resident(pid: int) -> tuple[float, float]:
    """MB of a process, and of its children together."""

    def of(one: int) -> float:
        try:
            lines = Path(f"/proc/{one}/status").read_text().splitlines()
        except OSError:
            return 0.0
        return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)

    children = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return of(pid), sum(map(of, set(children)))


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of y over x, by least squares."""
    return linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else float("nan")


async def odd(
    client: aiohttp.ClientSession, model: str, draw: random.Random, seen: Seen, counts: collections.Counter[str]
) -> None:
    """Something else than a chat with feedback; which status is right is known."""
    body = asked(draw, 16) | {"model": model}
    kind = draw.choice(["whole", "two", "hang up", "bad", "foreign", "twice", "lists", "page", "versions", "unkept"])
    counts[kind] += 1
    try:
        async with asyncio.timeout(HANG):
            if kind in ("whole", "unkept"):
                async with client.post("/v1/chat/completions", json=body | {"store": kind == "whole"}) as answer:
                    await answer.read()
                    expect(answer, (200,), seen)
            elif kind == "two":
                async with client.post("/v1/chat/completions", json=body | {"n": 2, "logprobs": True}) as answer:
                    await answer.read()
                    expect(answer, (200,), seen)
            elif kind == "hang up":
                async with client.post("/v1/chat/completions", json=body | {"stream": True, "max_tokens": 200}) as answer:
                    await answer.content.readline()
                    answer.close()
            elif kind == "bad":
                async with client.post("/v1/chat/completions", data=draw.choice([b"{", b"[" * 9999, b"\xff", b"{}"])) as answer:
                    expect(answer, (400,), seen)
            elif kind == "foreign":
                async with client.post("/v1/feedback", json={"response_id": "chatcmpl-none", "reward": 1}) as answer:
                    expect(answer, (404,), seen)
            elif kind == "twice":
                async with client.post("/v1/chat/completions", json=body) as answer:
                    id = (await answer.json())["id"]
                for n, reward in enumerate((1, 1, -1)):
                    async with client.post("/v1/feedback", json={"response_id": id, "reward": reward}) as answer:
                        expect(answer, (202, 409), seen)
                        counts["accepted"] += n == 0 and answer.status == 202
            elif kind == "versions":
                async with client.post("/v1/adapters/default/rollback", json={"to": draw.choice(["base", None])}) as answer:
                    expect(answer, (200, 400, 404, 409), seen)
            else:
                paths = (
                    ["/dashboard"]
                    if kind == "page"
                    else ["/v1/experiences", "/v1/adapters", "/v1/status", "/metrics", "/healthz"]
                )
                for path in paths:
                    async with client.get(path) as answer:
                        await answer.read()
                        expect(answer, (200,), seen)
    except TimeoutError:
        seen.hung += 1
    except aiohttp.ClientError as error:
        seen.failed.append(f"{kind}: {error!r}"[:200])


def expect(answer: aiohttp.ClientResponse, statuses: tuple[int, ...], seen: Seen) -> None:
    if answer.status not in statuses:
        seen.failed.append(f"{answer.method} {answer.url.path}: {answer.status}")


async def soak(url: str, pid: int, writer: int, options: argparse.Namespace) -> int:
    """Play all clients; returns the number of replies whose feedback was accepted."""
    model, began, seen, counts = await model_of(url, TENANTS[0]), time.monotonic(), Seen(), collections.Counter[str]()
    memory: list[tuple[float, float]] = []
    learner: list[tuple[float, float]] = []
    remembering: list[tuple[float, float]] = []
    end = began + 60 * options.minutes
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                aiohttp.ClientSession(
                    url,
                    headers={"authorization": f"Bearer {key}"},
                    connector=aiohttp.TCPConnector(limit=0),
                    timeout=aiohttp.ClientTimeout(),
                )
            )
            for key in TENANTS
        ]

        async def ask(client: aiohttp.ClientSession, draw: random.Random) -> None:
            while time.monotonic() < end:
                if draw.random() < 0.6:
                    await one(client, model, draw, 16, True, seen)
                else:
                    await odd(client, model, draw, seen, counts)

        async def watch() -> None:
            while time.monotonic() < end:
                await asyncio.sleep(min(60.0, max(0.0, end - time.monotonic())))
                minute = (time.monotonic() - began) / 60
                mine, its = resident(pid)
                memory.append((minute, mine))
                learner.append((minute, its))
                remembering.append((minute, resident(writer)[0]))
                print(
                    f"{minute:5.1f} min: server {mine:7.1f} MB, learner {its:7.1f} MB, memory {remembering[-1][1]:7.1f} MB; {len(seen.whole)} replies with feedback, "
                    f"{sum(counts.values()) - counts['accepted']} other requests, {len(seen.failed)} failed, {seen.hung} hung, {sum([await steps(client) for client in clients])} steps, "
                    f"{len(seen.versions)} versions",
                    flush=True,
                )

        await asyncio.gather(watch(), *(ask(clients[i % len(clients)], random.Random(i)) for i in range(options.clients)))
    for name, points in (("server", memory), ("learner", learner), ("memory", remembering)):
        late = [point for point in points if point[0] > options.minutes / 2]
        most = [point for point in points if point[0] > options.minutes / 5]
        print(f"{name}: {slope(late):+.2f} MB/min in the second half, {slope(most):+.2f} MB/min after the first fifth")
    for problem in sorted(set(seen.failed))[:10]:
        print(f"    {seen.failed.count(problem)} x {problem}")
    return len(seen.told) - sum(problem.startswith("feedback ") for problem in seen.failed) + counts["accepted"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--learner", default="process")
    parser.add_argument("--memory", help="directory, http://HOST:PORT or postgresql://…; otherwise it is temporary")
    parser.add_argument("--remember", help="(of the process that writes into the memory)")
    options, more = parser.parse_known_args()
    if options.remember:
        return remember(options.remember, options.minutes)
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.yaml"
        keys.write_text("".join(f"{name}: {{keys: [{name}]}}\n" for name in TENANTS))
        kept = ["--replay.max-records", str(MAX_RECORDS), "--replay.max-megabytes", "8192"]
        with server(options.model, options.learner, Path(folder) / "out", ["--keys", str(keys), *kept, *more]) as (url, _, pid):
            place = options.memory or str(Path(folder) / "memory")
            command = [sys.executable, __file__, "--remember", place, "--minutes", str(options.minutes)]
            writer = subprocess.Popen(command)
            accepted = asyncio.run(soak(url, pid, writer.pid, options))
            writer.wait(120)
        buffer = next(
            (more[i + 1] for i, flag in enumerate(more) if flag == "--buffer"), Path(folder) / "out" / "replay.sqlite"
        )
        with Replay(buffer) as replay:
            stored = sum(
                row.revision > 0 for name in TENANTS for row in replay.rows(ExchangeQuery(name, limit=10 * MAX_RECORDS))
            )
        print(f"feedback: {accepted} accepted, {stored} in the buffer, {max(0, accepted - stored)} lost")


if __name__ == "__main__":
    main()
