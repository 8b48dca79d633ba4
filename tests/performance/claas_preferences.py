"""Does a service learn what its users like, and does noise move it? `learngraph serve` as shipped, on 127.0.0.1, by HTTP.

    python tests/performance/claas_preferences.py --out runs/preferences.jsonl
    python tests/performance/claas_preferences.py --out runs/rate.jsonl --users "two wishes" --serve --loss.learning-rate 1e-3

Simulated users ask `guard` for facts that stand in the system prompt, and say what they think of each reply, drawn at temperature 1. Their
words are drawn anew at each run (`--draw` repeats one). Forty other questions at temperature 0 show how often a wish is kept and
how often the answer is right: before, each 20 feedbacks, and at the end, when a play passes if it is above its user's bar. Each play has a
tenant of its own, whose user waits until the learner rests. Plays in the file are not played again.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
from claas_users import KINDS, Scores, SimulatedUser

from learngraph.memory.display import markdown_table

QUESTIONS, EXAM_EVERY, STREAMS = 40, 20, 8
RESTS = ("too few", "ahead", "learned", "nothing to learn", "resting")
"""Obstacles with which the service waits for feedback."""


@dataclass(frozen=True)
class Play:
    """A user at a service."""

    user: str
    seed: int
    draw: int
    words: Sequence[str]
    exams: Sequence[Scores]
    """Before the first feedback, after each `EXAM_EVERY`, and at the end."""
    steps: int
    seconds: float

    @property
    def passed(self) -> list[bool]:
        """For each exam, True if it is above the bar."""
        user = SimulatedUser(self.user, random.Random(0))
        return [user.is_above_bar(scores) for scores in self.exams]


def main(args: Sequence[str]) -> int:
    own, flags = (list(args), [])
    if "--serve" in own:
        own, flags = own[: own.index("--serve")], own[own.index("--serve") + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--users", default=";".join(KINDS), help="joined by ;")
    parser.add_argument("--draw", type=int)
    options = parser.parse_args(own)
    rows = [Play(**json.loads(line)) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    draw = options.draw or (rows[0].draw if rows else time.time_ns() % 10**9)
    wanted = list(product(options.users.split(";"), range(options.seeds)))
    missing = [one for one in wanted if one not in {(row.user, row.seed) for row in rows}]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    keys = {f"play-{n}": f"key-of-play-{n}-{draw}" for n in range(len(missing))}
    with _serve(keys, flags) if missing else nullcontext("") as url:
        for (name, seed), key in zip(missing, keys.values(), strict=True):
            with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=120) as client:
                rows.append(play(client, name, seed, draw))
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(rows[-1])) + "\n")
            sys.stderr.write(f"{rows[-1]}\n")
    sys.stdout.write(_table([row for row in rows if (row.user, row.seed) in wanted]))
    return 0


def _table(rows: Sequence[Play]) -> str:
    lines = [["user", "feedbacks", "bar: kept, right", "before", "kept, right", "worst right", "feedbacks needed", "passed"]]
    for name in dict.fromkeys(row.user for row in rows):
        mine, kind = [row for row in rows if row.user == name], KINDS[name]
        ends = [", ".join(_mean([row.exams[at][n] for row in mine]) for n in range(2)) for at in (0, -1)]
        needs = " ".join(str(EXAM_EVERY * (row.passed[1:].index(True) + 1)) if True in row.passed[1:] else "-" for row in mine)
        worst = min(scores[1] for row in mine for scores in row.exams if scores[1] is not None)
        bar, passed = f"{kind.kept or '-'}, {kind.right}", f"{sum(row.passed[-1] for row in mine)} of {len(mine)}"
        lines.append([name, str(kind.feedbacks), bar, *ends, f"{worst:.2f}", needs, passed])
    drawn = ", ".join(str(draw) for draw in sorted({row.draw for row in rows}))
    return f"{markdown_table(lines)}\n\n{sum(row.passed[-1] for row in rows)} of {len(rows)} plays passed; words drawn by {drawn}\n"


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.2f}" if known else "-"


def play(client: httpx.Client, name: str, seed: int, draw: int) -> Play:
    """A user's feedbacks, with the exams."""
    user, began = SimulatedUser(name, random.Random(f"{draw}/{name}/{seed}")), time.monotonic()
    exams = [_exam(client, user, f"{draw}/{seed}/0")]
    for number in range(user.kind.feedbacks):
        user.number = number
        chat, fact = user.ask(user.draw)
        more = {"user": f"user-{user.number % 5}"} if user.kind.thumbs == "one user" else {}
        reply = _chat(client, chat, seed=1000 * seed + user.number, **more)
        said = user.respond(fact, reply["choices"][0]["message"]["content"] or "")
        if said is not None:
            client.post("/v1/feedback", json={"response_id": reply["id"], **said}).raise_for_status()
            _wait_until_learned(client)  # as a person does, who is slower: a busy machine gives the same result
        if (user.number + 1) % EXAM_EVERY == 0 or user.number + 1 == user.kind.feedbacks:
            exams.append(_exam(client, user, f"{draw}/{seed}/{user.number + 1}"))
    return Play(name, seed, draw, user.words, exams, _wait_until_learned(client), round(time.monotonic() - began, 1))


@contextmanager
def _serve(keys: dict[str, str], flags: Sequence[str]) -> Iterator[str]:
    """`learngraph serve` on a free port, with a tenant for each key; yields its URL."""
    memory = Path("/dev/shm")  # every version is synced to disk, and a busy disk takes seconds
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        file, log = Path(name, "keys.yaml"), Path(name, "log")
        file.write_text("".join(f"{tenant}: {{keys: [{key}]}}\n" for tenant, key in keys.items()), encoding="utf-8")
        # On a machine that does other work, too, a learner of low priority makes this a matter of minutes.
        given = ["serve", "--port", "0", "--keys", str(file), "--learner-nice", "0", "--out", f"{name}/out", *flags]
        with log.open("w", encoding="utf-8") as errors:
            env = {**os.environ, "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen([sys.executable, "-m", "learngraph", *given], stderr=errors, env=env)
        try:
            while " at http" not in (said := log.read_text(encoding="utf-8")):
                if process.poll() is not None:
                    raise SystemExit(f"the service ended: {said[-2000:]}")
                time.sleep(0.1)
            yield said.split(" at ")[1].split("/v1;")[0]
        finally:
            process.terminate()
            process.wait()


def _chat(client: httpx.Client, chat: Any, **more: Any) -> Any:
    answer = client.post("/v1/chat/completions", json={"model": "guard", "messages": chat, **more})
    return answer.raise_for_status().json()


def _exam(client: httpx.Client, user: SimulatedUser, draw: str) -> Scores:
    random_ = random.Random(draw)
    asked = [user.ask(random_) for _ in range(QUESTIONS)]
    with ThreadPoolExecutor(STREAMS) as pool:
        replies = pool.map(lambda one: _chat(client, one[0], temperature=0)["choices"][0]["message"]["content"], asked)
        found = [user.judge(fact, reply or "") for (_, fact), reply in zip(asked, replies, strict=True)]
    shares = [[value for value in column if value is not None] for column in zip(*found, strict=True)]
    return tuple(sum(values) / len(values) if values else None for values in shares)  # type: ignore[return-value]


def _wait_until_learned(client: httpx.Client, limit: float = 300.0) -> int:
    """Wait until the learner has learned all that it can for now; returns the number of steps."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        status = client.get("/v1/status").json()
        scope: Any = next(
            (one for one in status["scopes"] if one["adapter"] == "default"), {"step": 0, "held_up": [{"kind": "too few"}]}
        )
        if status["learner"]["state"] == "idle" and any(one["kind"] in RESTS for one in scope["held_up"]):
            return int(scope["step"])
        time.sleep(0.02)
    raise SystemExit(f"the service still learns after {limit:g} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
