"""Where does the time go from feedback to the version that has learned from it? In this process, with a learner in another one.

    python tests/performance/claas_path.py --model guard --times 20

One user asks for another ending each time, so that each feedback leads to a step, and waits for the version that it makes. A row is a
part of the way; *of the whole* is the share of medians. What the rows leave over is waiting.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from learngraph.graphs.claas import CLaaS
from learngraph.graphs.cli.serve import build_service
from learngraph.graphs.cli.serve_options import ServeOptions
from learngraph.memory.claas.adapters import Adapters
from learngraph.memory.display import markdown_table
from learngraph.memory.records import ChatCall, ChatRequest, Feedback, Sampling
from learngraph.nodes.learn import gradient_step

UNTIMED, FIRST_STEP, LIMIT = 12, 8, 20.0
WHOLE = "from feedback to the version that serves"
TIMES: defaultdict[str, list[float]] = defaultdict(list)


def measure(owner: Any, name: str, row: str) -> None:
    """Have the calls of a method of a class note their seconds in a row."""
    method: Callable[..., Any] = getattr(owner, name)

    def timed(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(*arguments, **named)
        finally:
            TIMES[row].append(time.perf_counter() - began)

    setattr(owner, name, timed)


async def play(model: str, times: int) -> None:
    """Feedback after feedback; the first ones are left out."""
    with tempfile.TemporaryDirectory() as folder:
        async with build_service(ServeOptions(model=model, out=Path(folder) / "out", learner_nice=0), CLaaS()) as service:
            served = service._live.adapter("user", "default")
            for number in range(UNTIMED + times):
                request = ChatRequest(({"role": "user", "content": "say raven ."},), Sampling(max_tokens=4, seed=number))
                async for _ in service.chat(ChatCall(f"r{number}", "user", request)):
                    pass
                if number == UNTIMED:
                    TIMES.clear()
                word, before, began = ("raft", "opal", "umber")[number % 3], served.live, time.perf_counter()
                receipt = await service.feedback("user", f"r{number}", Feedback(-1.0, f"broke end : end with {word} ."))
                TIMES["feedback is acknowledged"].append(time.perf_counter() - began)
                while receipt.state != "held_out" and number >= FIRST_STEP and served.live == before:
                    if time.perf_counter() - began > LIMIT:
                        break
                    await asyncio.sleep(0.001)
                else:
                    if receipt.state != "held_out":
                        TIMES[WHOLE].append(time.perf_counter() - began)


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="guard")
    parser.add_argument("--times", type=int, default=20)
    options = parser.parse_args(args)
    for name in ("SampleMinibatch", "Correct", "TakeGradientStep", "CommitStep", "GateCandidate", "Promote"):
        measure(getattr(gradient_step, name), "__call__", f"node {name}")
    measure(Adapters, "write", "of TakeGradientStep: the version goes to disk")
    asyncio.run(play(options.model, options.times))
    whole, rows = median(TIMES[WHOLE]), [["part", "times", "median, ms", "slowest, ms", "of the whole"]]
    for name, seconds in TIMES.items():
        middle = median(seconds)
        rows.append([name, str(len(seconds)), f"{1000 * middle:.0f}", f"{1000 * max(seconds):.0f}", f"{middle / whole:.0%}"])
    sys.stdout.write(f"{markdown_table(rows)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
