"""The worker process that scores answers for `verifying.Workers`: run as a script, never imported by the package.

Jobs come as lines of JSON on stdin, replies go as lines of JSON to stdout; the end of stdin ends it. The verifier is math-verify.
It imports nothing of learngraph, so that it starts from anywhere.

The answers were written by a language model and may be `10^{10^{10}}`. So each job has a limit of computing time, after which the
kernel ends the process, and memory is limited.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = []

MEMORY_LIMIT = 2 * 1024**3
"""Bytes of address space that a job may use beyond those of the libraries."""


def _confine() -> None:
    """Limit the memory of this process. Called after the imports, which take some."""
    sys.dont_write_bytecode = True
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_LIMIT, taken + MEMORY_LIMIT))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):  # not Linux: the limits of time remain
        pass


def _limit(seconds: float) -> None:
    """End this process after so many seconds of computing time from now; 0 removes the limit. Waiting does not count."""
    if hasattr(signal, "ITIMER_PROF"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


# Mathematics


def _parse(text: str) -> Any:
    """The SymPy object that math-verify reads from a text that is an answer as a whole; None if it reads none."""
    from math_verify import LatexExtractionConfig, parse  # type: ignore[import-untyped]

    # Its own time limits are signals, which raise in any thread but the main one; ours end the process.
    found = parse(
        f"\\boxed{{{text}}}",
        [LatexExtractionConfig(boxed_match_priority=0)],
        fallback_mode="no_fallback",
        parsing_timeout=None,
        raise_on_error=True,
    )
    return found[0] if found else None


def _equal(gold: str, answer: str) -> bool:
    from math_verify import verify

    right, came = _parse(gold), _parse(answer)
    if right is None or came is None:
        return " ".join(gold.casefold().split()) == " ".join(answer.casefold().split())
    return bool(verify(right, came, timeout_seconds=None, raise_on_error=True))


def _normal(answer: str) -> str:
    """An answer in the form that SymPy gives it, which is the same for 1/2, 0.5 and \\frac{1}{2}."""
    from sympy import Eq, FiniteSet, expand, nsimplify, simplify  # type: ignore[import-untyped]

    value = _parse(answer)
    if value is None:
        return " ".join(answer.split())
    while isinstance(value, Eq):  # x = 5 says 5, as the verifier has it
        value = value.rhs

    def one(part: Any) -> str:
        part = nsimplify(part.doit(), rational=True)
        return str(simplify(expand(part)))

    return "{" + ", ".join(sorted(map(one, value.args))) + "}" if isinstance(value, FiniteSet) else one(value)


def _math() -> Mapping[str, Callable[..., Any]]:
    import logging

    import math_verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    math_verify.verify(_parse(r"\frac{1}{2}"), _parse("0.5"), timeout_seconds=None)  # what is imported late is imported now
    return {"equal": _equal, "normal": _normal}


def main() -> None:
    """Do the jobs on stdin until it ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no reply

    def reply(**said: Any) -> None:
        replies.write(json.dumps(said) + "\n")
        replies.flush()

    try:
        jobs = _math()
        _confine()
    except Exception as cause:
        reply(error=f"{type(cause).__name__}: {cause}")
        return
    reply(value="ready")
    for line in sys.stdin:
        asked = json.loads(line)
        limit, what = asked.pop("limit"), asked.pop("what")
        _limit(limit)
        try:
            said = {"value": jobs[what](**asked)}
        except Exception as cause:
            said = {"error": f"{type(cause).__name__}: {str(cause)[:300]}"}
        _limit(0)
        reply(**said)


if __name__ == "__main__":
    main()
