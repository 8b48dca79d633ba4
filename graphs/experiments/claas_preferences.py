"""Does a service learn what its user likes? `learngraph serve` as it is shipped, on 127.0.0.1, with the official `openai` client.

    python -m learngraph.graphs.experiments.claas_preferences --out runs/preferences.jsonl
    python -m learngraph.graphs.experiments.claas_preferences --out runs/rate.jsonl --serve --loss.learning-rate 3e-4

A user asks `guard` for facts that stand in the system prompt, and wants something that stands in no prompt: `begin with raft`. It
never does so before. The user reads 30 replies, drawn at temperature 1, and says of each what he thinks: a thumb up without words if
it is right and as he likes it, else a thumb down and what was wrong. Sixty other questions at temperature 0 show, before and after, how
often his wish is kept, and how often the answer is right: the fact and nothing else, but for the word that he wants, once.

Each play has a service, a folder and a process of its own. Plays that are in the file are not played again.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ...memory.display import markdown_table
from ...memory.errors import CommandError, UserError
from ..cli.flags import parse_flags
from .recorded import read_rows

if TYPE_CHECKING:
    from openai import OpenAI

    from ...tools.environments.hierarchy import Fact, Rule

__all__ = ["Play"]

PREFERENCES = ("begin with raft", "end with lotus", "call the user captain")
"""The preferences that are taught; the defaults of `learngraph serve` were chosen on others."""
FEEDBACKS = 30
QUESTIONS = 60
STREAMS = 8
"""Questions of an exam that are asked at the same time."""
KEY = "secret"
RESTS = ("too few", "ahead", "nothing to learn")
"""Obstacles with which the service waits for feedback."""


@dataclass(frozen=True)
class PreferenceStudyOptions:
    """Options of the study."""

    out: Path
    """The file of finished plays, JSON lines, of one setting of the service. The command goes on from it."""
    seeds: int = 5
    """Seeds of each preference."""
    serve: tuple[str, ...] = ()
    """Flags of `learngraph serve`; none: the service as it is shipped."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise CommandError(f"--seeds is at least 1, got {self.seeds}")


@dataclass(frozen=True)
class Play:
    """A preference that a service was taught. Shares are of replies to `QUESTIONS` fresh questions at temperature 0."""

    preference: str
    seed: int
    kept_before: float
    kept: float
    right_before: float
    right: float
    steps: int
    """Gradient steps."""
    seconds: float
    """From the first question to the last answer of the second exam."""

    @property
    def is_learned(self) -> bool:
        """True if nine in ten replies keep the preference, and no more than one in twenty answers got lost."""
        return self.kept >= 0.9 and self.right_before - self.right <= 0.05 + 1e-9


def main(args: Sequence[str]) -> int:
    """Play what is missing, print the table, and return the exit status."""
    own, _, flags = " ".join(args).partition(" --serve ")
    options = parse_flags(PreferenceStudyOptions, own.split(), "claas_preferences", str(__doc__))
    done = [Play(**row) for row in read_rows(options.out)] if options.out.exists() else []
    rows = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for preference, seed in product(PREFERENCES, range(options.seeds)):
        found = next((one for one in done if (one.preference, one.seed) == (preference, seed)), None)
        if found is None:
            found = play(preference, seed, flags=flags.split())
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(found)) + "\n")
            sys.stderr.write(f"{found}\n")
        rows.append(found)
    sys.stdout.write(_table(rows))
    return 0


def _table(rows: Sequence[Play]) -> str:
    """All plays, and how many of them learned the preference."""
    lines = [["preference", "seed", "kept before", "kept", "right before", "right", "steps", "seconds"]]
    for one in rows:
        shares = [f"{value:.2f}" for value in (one.kept_before, one.kept, one.right_before, one.right)]
        lines.append([one.preference, str(one.seed), *shares, str(one.steps), f"{one.seconds:.0f}"])
    kept = fmean(one.kept for one in rows)
    return (
        f"{markdown_table(lines)}\n\n{sum(one.is_learned for one in rows)} of {len(rows)} learned; kept {kept:.2f} on average\n"
    )


# A play


def play(preference: str, seed: int, *, flags: Sequence[str] = ()) -> Play:
    """Teach a preference to a service of its own.

    Args:
        preference: such as `begin with raft`.
        seed: of the questions and of the replies.
        flags: of `learngraph serve`, beside the model, the folder and the key.

    Raises:
        UserError: the service does not start, or does not come to rest.
    """
    rule = _read_rule(preference)
    memory = Path("/dev/shm")  # every version is synced to disk, and a busy disk takes seconds
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        _serve(Path(folder), flags) as client,
    ):
        began = time.monotonic()
        kept_before, right_before = _exam(client, rule, seed)
        _teach(client, rule, seed)
        steps = _wait_until_learned(client)
        kept, right = _exam(client, rule, seed)
        seconds = round(time.monotonic() - began, 1)
    return Play(preference, seed, kept_before, kept, right_before, right, steps, seconds)


def _read_rule(preference: str) -> Rule:
    """The preference as a rule of the scenarios' verifier, by its sentence."""
    from ...tools.environments.hierarchy import CODES, FORMS_OF_ADDRESS, Rule

    rules = [Rule("begin", word) for word in CODES] + [Rule("end", word) for word in CODES]
    rules += [Rule("call", name) for name in FORMS_OF_ADDRESS]
    known = {rule.text.removesuffix(" ."): rule for rule in rules}
    if preference not in known:
        raise UserError(f"there is no preference {preference!r}; there are {', '.join(known)}")
    return known[preference]


@contextmanager
def _serve(folder: Path, flags: Sequence[str]) -> Iterator[OpenAI]:
    """`learngraph serve --model guard` on a free port of 127.0.0.1, and a client of it."""
    from openai import OpenAI

    # On a machine that does other work, too, a learner of low priority makes this a matter of minutes.
    given = f"serve --model guard --port 0 --api-key {KEY} --learner-nice 0 --out"
    run = [sys.executable, "-m", "learngraph", *given.split(), str(folder)]
    log = folder / "log"
    with log.open("w", encoding="utf-8") as errors:
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen([*run, *flags], stderr=errors, env=env)
    try:
        url = ""
        while not url:
            time.sleep(0.1)
            said = log.read_text(encoding="utf-8")
            if process.poll() is not None:
                raise UserError(f"the service ended: {said[-2000:]}")
            url = next((line.split(" at ")[1].split(",")[0] for line in said.splitlines() if " at http" in line), "")
        with OpenAI(base_url=url, api_key=KEY, timeout=60) as client:
            yield client
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _questions(rule: Rule, seed: int, purpose: str, count: int) -> list[tuple[list[dict[str, str]], Fact]]:
    """Chats that ask for a fact of their system prompt, which has no rules, and the fact."""
    from ...tools.environments.hierarchy import THINGS, VALUES, Fact, Scenario, system_prompt

    draw = random.Random(f"{purpose} {rule.text} {seed}")
    values = [value for kind in VALUES.values() for value in kind]
    found = []
    for _ in range(count):
        facts = tuple(Fact(*pair) for pair in zip(draw.sample(THINGS, 4), draw.sample(values, 4), strict=True))
        asked = draw.choice(facts)
        system = system_prompt(Scenario("", 0, (), facts))
        chat = [{"role": "system", "content": system}, {"role": "user", "content": f"{asked.thing} is what ?"}]
        found.append((chat, asked))
    return found


def _judge(rule: Rule, fact: Fact, reply: str) -> tuple[bool, bool]:
    """True if a reply keeps the preference; True if it says the fact and nothing else, but for the preference's word once."""
    from ...tools.environments.hierarchy import Scenario, verify

    kept = verify(Scenario("", 0, (rule,), ()), "", reply)
    words = reply.split()
    if rule.word in words:
        words.remove(rule.word)
    return bool(kept.reward), words == fact.text.split()


def _exam(client: OpenAI, rule: Rule, seed: int) -> tuple[float, float]:
    """Shares of fresh questions whose replies keep the preference, and are right."""

    def ask(question: tuple[Any, Fact]) -> tuple[bool, bool]:
        reply = client.chat.completions.create(model="guard", messages=question[0], temperature=0)
        return _judge(rule, question[1], reply.choices[0].message.content or "")

    with ThreadPoolExecutor(STREAMS) as pool:
        found = list(pool.map(ask, _questions(rule, seed, "exam", QUESTIONS)))
    return fmean(kept for kept, _ in found), fmean(right for _, right in found)


def _teach(client: OpenAI, rule: Rule, seed: int) -> None:
    """Chat, say of each reply what the user thinks of it, and wait until that is learned."""
    for number, (chat, fact) in enumerate(_questions(rule, seed, "lesson", FEEDBACKS)):
        messages: Any = chat
        reply = client.chat.completions.create(model="guard", messages=messages, seed=1000 * seed + number)
        kept, right = _judge(rule, fact, reply.choices[0].message.content or "")
        wrong = [] if kept else [rule.advice]
        wrong += [] if right else [f"broke answer : say what {fact.thing} is ."]
        said = {"response_id": reply.id, "reward": -1 if wrong else 1} | ({"text": " ".join(wrong)} if wrong else {})
        client.post("/feedback", body=said, cast_to=object)
        _wait_until_learned(client)  # as a person does, who is slower than these steps: a busy machine gives the same result


def _wait_until_learned(client: OpenAI, limit: float = 300.0) -> int:
    """Wait until the learner has learned all that it can for now, and says so; returns the number of steps.

    Raises:
        UserError: it still learns after `limit` seconds.
    """
    steps, end = 0, time.monotonic() + limit
    while time.monotonic() < end:
        status: Any = client.get("/status", cast_to=object)
        scope: Any = next((one for one in status["scopes"] if one["adapter"] == "default"), {"step": 0, "held_up": []})
        steps = scope["step"]
        if status["learner"]["state"] == "idle" and any(one["kind"] in RESTS for one in scope["held_up"]):
            return int(steps)
        time.sleep(0.1)
    raise UserError(f"the service still learns after {limit:g} s, at step {steps}")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
