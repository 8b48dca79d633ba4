"""A soak test of `learngraph serve`, and of an agent's memory beside it: mixed traffic for a long time, to see leaks, failures and hangs.

    python tests/performance/soak_serving.py [--minutes 10] [--clients 12] [--learner process] [--memory PLACE]

Clients of three tenants chat (streamed and whole, n = 2, with and without `store`), hang up in mid-stream, give feedback (once, twice, for others'
responses), send what is no JSON, read the lists, metrics and the dashboard, promote and roll back. Every minute: what was asked, what
failed, and the resident memory of the server and of its learner; in the end its slope, by least squares over the second half, and
over all but the first fifth. Another process writes episodes into a memory of JitRL (a directory, or --memory), asks it and prunes it.
In the end: feedback that was accepted and is not in the buffer, and episodes that were written and are not in the memory. Flags that this
program does not know go to the server. Nothing is asserted; a slope that is not near 0 MB/min is a leak, or a cache that still fills.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import multiprocessing
import random
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import linear_regression
from typing import Any

import aiohttp
import psutil
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
CHAT, PAGES = "/v1/chat/completions", ("/dashboard", "/v1/experiences", "/v1/adapters", "/v1/status", "/metrics", "/healthz")


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


def resident(pid: int, children: bool = False) -> float:
    """MB of a process, or of its children together."""
    try:
        process = psutil.Process(pid)
        return sum(one.memory_info().rss for one in (process.children() if children else [process])) / 2**20
    except psutil.NoSuchProcess:
        return 0.0


def slope(points: list[tuple[float, float]]) -> float:
    """Of y over x, by least squares."""
    return linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else float("nan")


async def odd(
    client: aiohttp.ClientSession, model: str, draw: random.Random, seen: Seen, counts: collections.Counter[str]
) -> None:
    """Something else than a chat with feedback; which status is right is known."""
    body = asked(draw, 16) | {"model": model}
    requests: dict[str, tuple[str, str, dict[str, Any], tuple[int, ...]]] = {
        "whole": ("POST", CHAT, {"json": body}, (200,)),
        "unkept": ("POST", CHAT, {"json": body | {"store": False}}, (200,)),
        "two": ("POST", CHAT, {"json": body | {"n": 2, "logprobs": True}}, (200,)),
        "hang up": ("POST", CHAT, {"json": body | {"stream": True, "max_tokens": 200}}, (200,)),
        "bad": ("POST", CHAT, {"data": draw.choice([b"{", b"[" * 9999, b"\xff", b"{}"])}, (400,)),
        "foreign": ("POST", "/v1/feedback", {"json": {"response_id": "chatcmpl-none", "reward": 1}}, (404,)),
        "versions": (
            "POST",
            "/v1/adapters/default/rollback",
            {"json": {"to": draw.choice(["base", None])}},
            (200, 400, 404, 409),
        ),
        "page": ("GET", draw.choice(PAGES), {}, (200,)),
    }
    kind = draw.choice(["twice", *requests])
    counts[kind] += 1

    async def ask(method: str, path: str, more: dict[str, Any], statuses: tuple[int, ...]) -> tuple[int, bytes]:
        async with client.request(method, path, **more) as answer:
            if answer.status not in statuses:
                seen.failed.append(f"{answer.method} {answer.url.path}: {answer.status}")
            if kind == "hang up":
                await answer.content.readline()
                answer.close()
                return answer.status, b""
            return answer.status, await answer.read()

    try:
        async with asyncio.timeout(HANG):
            if kind != "twice":
                await ask(*requests[kind])
                return
            _, said = await ask(*requests["whole"])
            id = json.loads(said)["id"]
            for n, reward in enumerate((1, 1, -1)):
                told = {"json": {"response_id": id, "reward": reward}}
                status, _ = await ask("POST", "/v1/feedback", told, (202, 409))
                counts["accepted"] += n == 0 and status == 202
    except TimeoutError:
        seen.hung += 1
    except aiohttp.ClientError as error:
        seen.failed.append(f"{kind}: {error!r}"[:200])


async def soak(url: str, pid: int, writer: int, options: argparse.Namespace) -> int:
    """Play all clients; returns the number of replies whose feedback was accepted."""
    model, began, seen, counts = await model_of(url, TENANTS[0]), time.monotonic(), Seen(), collections.Counter[str]()
    sizes: dict[str, list[tuple[float, float]]] = {"server": [], "learner": [], "memory": []}
    end = began + 60 * options.minutes
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for key in TENANTS:
            headers, connector = {"authorization": f"Bearer {key}"}, aiohttp.TCPConnector(limit=0)
            client = aiohttp.ClientSession(url, headers=headers, connector=connector, timeout=aiohttp.ClientTimeout())
            clients.append(await stack.enter_async_context(client))

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
                now = (resident(pid), resident(pid, children=True), resident(writer))
                for points, size in zip(sizes.values(), now, strict=True):
                    points.append((minute, size))
                print(
                    f"{minute:5.1f} min: " + ", ".join(f"{name} {size:7.1f} MB" for name, size in zip(sizes, now, strict=True)),
                    f"{len(seen.whole)} replies with feedback, {sum(counts.values()) - counts['accepted']} other requests,",
                    f"{len(seen.failed)} failed, {seen.hung} hung, {sum([await steps(client) for client in clients])} steps,",
                    f"{len(seen.versions)} versions",
                    flush=True,
                )

        await asyncio.gather(watch(), *(ask(clients[i % len(clients)], random.Random(i)) for i in range(options.clients)))
    for name, points in sizes.items():
        late, most = ([point for point in points if point[0] > options.minutes * share] for share in (0.5, 0.2))
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
    options, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.yaml"
        keys.write_text("".join(f"{name}: {{keys: [{name}]}}\n" for name in TENANTS))
        kept = ["--keys", str(keys), "--replay.max-records", str(MAX_RECORDS), "--replay.max-megabytes", "8192"]
        with server(options.model, options.learner, Path(folder) / "out", [*kept, *more]) as (url, _, process):
            place = options.memory or str(Path(folder) / "memory")
            writer = multiprocessing.get_context("spawn").Process(target=remember, args=(place, options.minutes))
            writer.start()
            assert writer.pid is not None
            accepted = asyncio.run(soak(url, process.pid, writer.pid, options))
            writer.join(120)
        buffer = dict(pairwise(more)).get("--buffer", Path(folder) / "out" / "replay.sqlite")
        with Replay(buffer) as replay:
            rows = [row for name in TENANTS for row in replay.rows(ExchangeQuery(name, limit=10 * MAX_RECORDS))]
        stored = sum(row.revision > 0 for row in rows)
        print(f"feedback: {accepted} accepted, {stored} in the buffer, {max(0, accepted - stored)} lost")


if __name__ == "__main__":
    main()
