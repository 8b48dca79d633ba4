"""The worker process that scores answers for `verifying.Workers`: run as a script, never imported by the package.

Jobs come as lines of JSON on stdin, replies go as lines of JSON to stdout; the end of stdin ends it. The script's one argument
names its work: `math` (math-verify) or `reasoning` (reasoning-gym). It imports nothing of learngraph, so that it starts from
anywhere.

The answers were written by a language model and may be `10^{10^{10}}`, or Python in the place of a formula (several scorers of
reasoning-gym pass an answer to SymPy's parser, which evaluates it). So each job has a limit of computing time, after which the
kernel ends the process; memory is limited; and writing files, starting programs and the network are refused, which checking
answers does not need. This stops accidents and simple tricks; it is no sandbox.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

__all__ = []

MEMORY_LIMIT = 2 * 1024**3
"""Bytes of address space that a job may use beyond those of the libraries."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REFUSED = tuple(
    "os.system os.exec os.posix_spawn os.spawn os.fork os.kill os.remove os.rename os.rmdir os.mkdir os.chmod os.chown os.link "  # noqa: SIM905
    "os.symlink os.truncate os.utime shutil. subprocess. socket. ctypes. urllib. signal. resource.".split()
)
"""Beginnings of the names of audit events that are refused."""


class _Forbidden(Exception):
    """An answer that would do something forbidden when evaluated."""


def _confine() -> None:
    """Limit this process for the rest of its life. Called after the imports, which need some of the forbidden calls."""
    sys.dont_write_bytecode = True
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_LIMIT, taken + MEMORY_LIMIT))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):  # not Linux: the limits of time remain
        pass

    def refuse(event: str, args: tuple[Any, ...]) -> None:
        if _ours:
            return
        if event == "open" and len(args) > 2 and isinstance(args[2], int) and args[2] & _WRITES:
            raise _Forbidden("the answer would open a file to write")
        if event.startswith(_REFUSED):
            raise _Forbidden(f"the answer would call {event}")

    sys.addaudithook(refuse)


_ours: list[bool] = [True]
"""Not empty while our own code runs, for which nothing is refused."""


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


# Reasoning


@lru_cache(maxsize=4096)
def _item(name: str, settings: str, seed: int) -> tuple[Any, dict[str, Any]]:
    import numpy
    import reasoning_gym  # type: ignore[import-untyped]

    random.seed(seed)  # some generators draw from here, too
    numpy.random.seed(seed % 2**32)
    data = reasoning_gym.create_dataset(name, seed=seed, size=1, **json.loads(settings))
    return data, data[0]


def _names() -> list[str]:
    from reasoning_gym.factory import DATASETS  # type: ignore[import-untyped]

    return sorted(DATASETS)


def _fields(name: str) -> list[str]:
    from dataclasses import fields

    from reasoning_gym.factory import DATASETS

    return sorted(field.name for field in fields(DATASETS[name][1]) if field.name not in ("seed", "size"))


def _problem(name: str, settings: str, seed: int) -> dict[str, Any]:
    _, item = _item(name, settings, seed)
    return {"question": str(item["question"]), "answer": None if item["answer"] is None else str(item["answer"])}


def _score(name: str, settings: str, seed: int, answer: str, drawing: float, scoring: float) -> float:
    _limit(drawing)  # if another process has drawn the problem before, that is not the answer's fault
    data, item = _item(name, settings, seed)
    _limit(scoring)
    _ours.clear()
    try:
        score = data.score_answer(answer, item)
    finally:
        _ours.append(True)
    if isinstance(score, bool) or not isinstance(score, int | float) or not (math.isfinite(score) and 0 <= score <= 1):
        raise ValueError(f"the score is {score!r}, which is not in [0, 1]")
    return float(score)


def _reasoning() -> Mapping[str, Callable[..., Any]]:
    import reasoning_gym  # noqa: F401  # here, so that the limits do not count it

    return {"names": _names, "fields": _fields, "problem": _problem, "score": _score}


def main() -> None:
    """Do the jobs on stdin until it ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no reply

    def reply(**said: Any) -> None:
        replies.write(json.dumps(said) + "\n")
        replies.flush()

    try:
        jobs = {"math": _math, "reasoning": _reasoning}[sys.argv[1]]()
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
        except (Exception, _Forbidden) as cause:
            said = {"error": f"{type(cause).__name__}: {str(cause)[:300]}"}
        _limit(0)
        reply(**said)


if __name__ == "__main__":
    main()
