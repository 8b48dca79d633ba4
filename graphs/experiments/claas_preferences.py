"""Does a service learn what its user likes? `learngraph serve` as it is shipped, on 127.0.0.1, with the official `openai` client.

    python -m learngraph.graphs.experiments.claas_preferences report --out runs/preferences.jsonl
    python -m learngraph.graphs.experiments.claas_preferences search --out runs/preferences.jsonl

A user asks `guard` for facts that stand in the system prompt, and wants something that stands in no prompt: `begin with raft`. It
never does so before. The user reads 30 replies, drawn at temperature 1, and says of each what he thinks: a thumb up without words if
it is right and as he likes it, else a thumb down and what was wrong. Sixty other questions at temperature 0 show, before and after, how
often his wish is kept, and how often the answer is right: the fact and nothing else, but for the word that he wants, once.

`report` plays the defaults, on other preferences and seeds than `search`, which plays every setting of `GRID`. Each play has a
service, a folder and a process of its own. Plays that are in the file are not played again.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import Positional

from ...memory.display import markdown_table
from ...memory.errors import CommandError, UserError
from ..cli.flags import parse_flags

if TYPE_CHECKING:
    from openai import OpenAI

    from ...tools.environments.hierarchy import Fact, Rule

__all__ = ["REPORTED", "SEARCHED", "Play", "play"]

REPORTED = ("begin with raft", "end with lotus", "call the user captain")
"""The preferences of `report`, with seeds from 0 on."""
SEARCHED = ("begin with amber", "end with cedar", "call the user doctor")
"""The preferences of `search`, with seeds from 100 on."""
GRID: Mapping[str, tuple[str, ...]] = {
    "as shipped": (),
    "rate 3e-4": ("--loss.learning-rate", "3e-4"),
    "rate 3e-3": ("--loss.learning-rate", "3e-3"),
    "warm-up 10": ("--loss.warmup-steps", "10"),
    "words alone": ("--loss.kind", "sdpo"),
    "max-kl 1": ("--gate.max-kl", "1"),
    "KL(q, p)": ("--loss.teacher.divergence", "0"),
    "all tokens": ("--loss.teacher.top-k", "0"),
}
"""Settings of `search` by name, as flags of `learngraph serve`: each differs from the defaults in one thing."""
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

    mode: Positional[Literal["report", "search"]]
    """`report`: the defaults on the preferences that are reported. `search`: all settings on those that they were chosen on."""
    out: Path
    """The file of finished plays, JSON lines. The command goes on from it."""
    seeds: int = 5
    """Seeds of each preference."""
    haste: bool = False
    """The user gives all feedback as fast as the service takes it. Default: as a person does, who is slower than these steps; he waits until
    the learner is idle, so that a busy machine gives the same result."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise CommandError(f"--seeds is at least 1, got {self.seeds}")


@dataclass(frozen=True)
class Play:
    """A preference that a service was taught. Shares are of replies to `QUESTIONS` fresh questions at temperature 0."""

    settings: str
    preference: str
    seed: int
    haste: bool
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
    options = parse_flags(PreferenceStudyOptions, args, "claas_preferences", str(__doc__))
    is_report = options.mode == "report"
    grid = {"as shipped": ()} if is_report else GRID
    seeds = range(options.seeds) if is_report else range(100, 100 + options.seeds)
    rows = []
    done = _read(options.out)
    for settings, flags in grid.items():
        for preference in REPORTED if is_report else SEARCHED:
            for seed in seeds:
                found = done.get((settings, preference, seed, options.haste))
                if found is None:
                    found = play(preference, seed, flags=flags, settings=settings, haste=options.haste)
                    options.out.parent.mkdir(parents=True, exist_ok=True)
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(asdict(found)) + "\n")
                    sys.stderr.write(f"{found}\n")
                rows.append(found)
    sys.stdout.write(_table(rows))
    return 0


def _read(path: Path) -> dict[tuple[str, str, int, bool], Play]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    plays = [Play(**json.loads(line)) for line in lines]
    return {(one.settings, one.preference, one.seed, one.haste): one for one in plays}


def _table(rows: Sequence[Play]) -> str:
    """All plays, and below them the means of each setting."""
    head = ["settings", "preference", "seed", "kept before", "kept", "right before", "right", "steps", "seconds"]
    lines = [head]
    for one in rows:
        shares = [f"{value:.2f}" for value in (one.kept_before, one.kept, one.right_before, one.right)]
        lines.append([one.settings, one.preference, str(one.seed), *shares, str(one.steps), f"{one.seconds:.0f}"])
    means = [["settings", "plays", "kept", "least", "right answers lost", "most", "learned"]]
    for name in dict.fromkeys(one.settings for one in rows):
        own = [one for one in rows if one.settings == name]
        lost = [one.right_before - one.right for one in own]
        passed = sum(one.is_learned for one in own)
        kept = [one.kept for one in own]
        numbers = [f"{value:.2f}" for value in (fmean(kept), min(kept), fmean(lost), max(lost))]
        means.append([name, str(len(own)), *numbers, f"{passed} of {len(own)}"])
    return f"{markdown_table(lines)}\n\n{markdown_table(means)}\n"


# A play


def play(
    preference: str,
    seed: int,
    *,
    flags: Sequence[str] = (),
    settings: str = "as shipped",
    haste: bool = False,
    threads: int = 1,
) -> Play:
    """Teach a preference to a service of its own.

    Args:
        preference: such as `begin with raft`.
        seed: of the questions and of the replies.
        flags: of `learngraph serve`, beside the model, the folder and the key.
        settings: their name.
        haste: do not wait for the learner between one feedback and the next question.
        threads: of torch, in the service and in the learner.

    Raises:
        UserError: the service does not start, or does not come to rest.
    """
    rule = _read_rule(preference)
    memory = Path("/dev/shm")  # every version is synced to disk, and a busy disk takes seconds
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        _serve(Path(folder), flags, threads) as client,
    ):
        began = time.monotonic()
        kept_before, right_before = _exam(client, rule, seed)
        _teach(client, rule, seed, haste)
        steps = _wait_until_learned(client)
        kept, right = _exam(client, rule, seed)
        seconds = round(time.monotonic() - began, 1)
    return Play(settings, preference, seed, haste, kept_before, kept, right_before, right, steps, seconds)


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
def _serve(folder: Path, flags: Sequence[str], threads: int) -> Iterator[OpenAI]:
    """`learngraph serve --model guard` on a free port of 127.0.0.1, and a client of it."""
    from openai import OpenAI

    run = [
        sys.executable,
        "-m",
        "learngraph",
        "serve",
        "--model",
        "guard",
        "--port",
        "0",
        "--api-key",
        KEY,
        "--out",
        str(folder),
    ]
    run += [
        "--learner-nice",
        "0",
    ]  # on a machine that does other work, too, a learner of low priority makes this a matter of minutes
    log = folder / "log"
    with log.open("w", encoding="utf-8") as errors:
        env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
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


def _teach(client: OpenAI, rule: Rule, seed: int, haste: bool) -> None:
    """Chat, and say of each reply what the user thinks of it."""
    for number, (chat, fact) in enumerate(_questions(rule, seed, "lesson", FEEDBACKS)):
        messages: Any = chat
        reply = client.chat.completions.create(model="guard", messages=messages, seed=1000 * seed + number)
        kept, right = _judge(rule, fact, reply.choices[0].message.content or "")
        wrong = [] if kept else [rule.advice]
        wrong += [] if right else [f"broke answer : say what {fact.thing} is ."]
        said = {"response_id": reply.id, "reward": -1 if wrong else 1} | ({"text": " ".join(wrong)} if wrong else {})
        client.post("/feedback", body=said, cast_to=object)
        if not haste:
            _wait_until_learned(client)


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
