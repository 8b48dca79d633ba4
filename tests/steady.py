"""Run the quick tests again and again, and name each that did not always pass.

python tests/steady.py --runs 20                          the quick suite, 20 times
python tests/steady.py --runs 5 tests/tools/local         a part of it

Each run has another order (modules, and tests within a module), and `time.sleep` takes between a fifth of its time and
five times as long. In every second run all cores are busy with something else, at the same priority. Ctrl-C ends it with what came so far.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
QUICK = "not slow and not long and not dev and not vllm and not jericho"
SPIN = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
HANG = 600
"""Seconds after which a test hangs: it is given up, and named."""
STRETCH = (0.2, 5.0)
"""The least and the most that a second of `time.sleep` takes."""


def pytest_configure() -> None:
    """Stretch or shorten every sleep of the tests' processes (this file is a plugin of the runs that it starts)."""
    draw, real = random.Random(os.environ["STEADY_SEED"]), time.sleep
    time.sleep = lambda seconds: real(seconds * draw.uniform(*STRETCH))


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """The same order in all processes of a run. A module's tests stay together, so that what they share is made once."""
    draw = random.Random(os.environ["STEADY_SEED"])
    modules = [list(tests) for _, tests in groupby(items, lambda item: item.path)]
    draw.shuffle(modules)
    for tests in modules:
        draw.shuffle(tests)
    items[:] = [item for tests in modules for item in tests]


@contextmanager
def busy_cores() -> Iterator[None]:
    """Keep each core busy with a process that does nothing of use, and ends with this one however that ends."""
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def play(number: int, jobs: str, chosen: list[str]) -> tuple[list[str], str]:
    """One run: the tests that failed in it, and pytest's last line."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "steady", "-n", jobs, "--dist", "worksteal", "--tb=short", "-rfE"]
    command += ["-o", f"faulthandler_timeout={HANG}", "-o", "faulthandler_exit_on_timeout=true"]
    places = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"STEADY_SEED": str(number), "PYTHONPATH": places}
    run = subprocess.run([*command, "-m", QUICK, *chosen], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", run.stdout, re.MULTILINE)
    if run.returncode != bool(failed):
        raise SystemExit(run.stdout[-3000:] + run.stderr[-3000:])
    if failed:
        said = ROOT / ".pytest_cache" / f"steady-{number}.txt"
        said.parent.mkdir(exist_ok=True)
        said.write_text(run.stdout + run.stderr, encoding="utf-8")
    for test in failed:
        print(f"  {test}")
    return failed, (run.stdout.strip().splitlines() or ["nothing was run"])[-1]


def main() -> int:
    """Run the command line; 1 if a test did not always pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first run, which seeds its order and its sleeps")
    parser.add_argument("-n", default="2", help="processes of tests")
    parser.add_argument("tests", nargs="*", help="files or folders; none: all")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was started ends, too
    found: dict[str, list[int]] = defaultdict(list)
    done = 0
    try:
        for number in range(given.first, given.first + given.runs):
            with busy_cores() if number % 2 else nullcontext():
                failed, last = play(number, given.n, given.tests)
            done += 1
            print(f"run {number}, {'busy' if number % 2 else 'quiet'}: {last}", flush=True)
            for test in failed:
                found[test].append(number)
    except KeyboardInterrupt:
        print("stopped")
    print(f"tests that did not always pass in {done} runs: {len(found)}")
    for test, runs in sorted(found.items()):
        print(f"  {test}: failed in runs {', '.join(map(str, runs))} (.pytest_cache/steady-{runs[0]}.txt)")
    return 1 if found or done < given.runs else 0


if __name__ == "__main__":
    sys.exit(main())
