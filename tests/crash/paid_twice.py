"""What a kill costs, method by method: calls that were paid for and are asked for again by the same command.

    python -m tests.crash.paid_twice --moments 10 > table.md
    python -m tests.crash.paid_twice react reflexion --moments 2

A server on 127.0.0.1 answers so many calls, and then no more; the command is killed (SIGKILL) and given again. Calls that were in flight
at the kill may be asked for again, at most as many as may be in flight (`--concurrency`).
"""

import argparse
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from hashlib import blake2b
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))  # where pytest finds it, too
from forks import start
from openai_server import OpenAIServer

METHODS = (
    *("jitrl", "icrl", "adamem", "static", "react", "cot", "long-cot", "best-of-n", "self-refine", "reflexion", "synapse"),
    *("reasoning-bank", "memory", "awm", "evotest", "prompt-update", "training-free-grpo"),
)
"""All methods that ask a model over a network; those that train weights ask one in their process, and a table asks none."""
IN_FLIGHT = 4
"""Most calls at the same time."""
SIZE = ("--seeds", "3", "--episodes", "2", "--env", "toy", "--horizon", "5")
PROBLEMS = (
    *("--seeds", "1", "--env", "toy", "--horizon", "5", "--problems", "3", "--held-out", "0", "--epochs", "1"),
    *("--group-size", "2", "--test-problems", "3", "--test-rollouts", "1"),
)


def reply_to(request: Mapping[str, Any]) -> str:
    """A reply that depends on the request alone, in the form that it asks for."""
    chat = str(request["messages"])
    draw = blake2b(chat.encode(), digest_size=2).digest()[0]
    word = ("wait", "take the lamp", "go north")[draw % 3]
    form = request.get("response_format")
    return str(_value(form["json_schema"]["schema"], word)) if form else f"Action: {word}\nAnswer: {word}"


def _value(schema: Mapping[str, Any], word: str) -> Any:
    """The smallest JSON of a schema, as Python shows it, which the readers take too."""
    kind = schema["type"] if isinstance(schema["type"], str) else schema["type"][0]
    if kind == "object":
        return {name: _value(one, word) for name, one in schema["properties"].items()}
    return [_value(schema["items"], word)] if kind == "array" else {"number": 1, "boolean": True}.get(kind, word)


class StallingServer(OpenAIServer):
    """A server that answers so many calls, and from then on none until `go_on` is set."""

    def __init__(self, calls: int | None) -> None:
        super().__init__(self._say)
        self.left, self.answered = calls, 0
        self.stalled, self.go_on, self._turn = threading.Event(), threading.Event(), threading.Lock()

    def _say(self, request: dict[str, Any]) -> str:
        with self._turn:
            is_late = self.left is not None and self.answered >= self.left
            self.answered += not is_late
        if is_late:
            self.stalled.set()
            self.go_on.wait()
        return reply_to(request)


def run(command: Sequence[str], said: str) -> None:
    """Play a command of `learngraph` in this process; its output goes to a file."""
    from learngraph.graphs.cli.main import main
    from learngraph.graphs.experiments import pool

    def play_here(batches: Any, play: Any, workers: int, tick: Any, concurrency: int = 1, **more: Any) -> list[Any]:
        return pool.play_in_threads(batches, play, concurrency)

    os.environ["OPENAI_API_KEY"] = "x"
    pool.run_workers = play_here  # type: ignore[assignment]
    with open(said, "w") as file, redirect_stdout(file), redirect_stderr(file):
        sys.exit(main(command))


def calls_of(method: str, folder: Path, kill_after: int | None = None) -> int:
    """The number of calls that a method's run answered, to its end, or until it is killed after so many.

    Raises:
        RuntimeError: the run failed.
    """
    with StallingServer(kill_after) as server:
        command = ["run", method, *(PROBLEMS if "grpo" in method else SIZE), "--out", str(folder)]
        command += ["--model", "openai:stub", "--base-url", server.url, "--concurrency", str(IN_FLIGHT), "--workers", "1"]
        process = start(run, command, f"{folder}.txt")
        while kill_after is not None and process.is_alive() and not server.stalled.wait(0.05):
            pass
        if server.stalled.is_set():
            process.kill()
        process.join()
        server.go_on.set()
        if process.exitcode not in (0, -signal.SIGKILL):
            raise RuntimeError(f"learngraph {' '.join(command)}\n{Path(f'{folder}.txt').read_text()}")
        return server.answered


def paid_twice(method: str, moments: int) -> tuple[int, list[int]]:
    """Calls of an unbroken run, and for each kill, at moments that are spread over it, the calls that were asked for again."""
    with tempfile.TemporaryDirectory() as folder:
        whole, again = calls_of(method, Path(folder, "whole")), []
        for n in range(moments):
            place, after = Path(folder, str(n)), max(1, whole * (n + 1) // (moments + 1))
            again.append(calls_of(method, place, after) + calls_of(method, place) - whole)
        return whole, again


def main(given: Sequence[str] | None = None) -> None:
    """Print the table."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("methods", nargs="*", default=METHODS)
    reader.add_argument("--moments", type=int, default=10)
    options = reader.parse_args(given)
    print(f"| method | calls of a whole run | asked for again after a kill at {options.moments} moments |\n|---|---|---|")
    for method in options.methods:
        whole, again = paid_twice(method, options.moments)
        print(f"| {method} | {whole} | {' '.join(map(str, again))} |", flush=True)


if __name__ == "__main__":
    main()
