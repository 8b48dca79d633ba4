"""`learngraph run METHOD --agent my_app:make_agent --tasks tasks.jsonl --reward my_app:reward`: does your agent learn?

    make_agent(middleware, seed)    an agent of LangChain, or anything that takes {"messages": …} and returns the same
    reward(task, messages)          a number, or None where it cannot tell
    tasks.jsonl                     a task a line: {"id": "t1", "messages": "My order …", "reference": …}

The tasks are played in sequence by the agent alone (`none`) and with the method's middleware, and the table says how far the method is
ahead on the last quarter (graphs/agents/evaluation.py). `--control` adds the method with rewards of other tasks, which has to fail.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ...memory.errors import CommandError, UserError
from ..arms import find_user_object
from ..experiments.progress import say
from .flags import parse_flags

__all__ = []

MIDDLEWARES: Mapping[str, tuple[str, str]] = {
    "jitrl": ("..agents.jitrl", "JitRLMiddleware"),
    "adamem": ("..agents.adamem", "AdaMEMMiddleware"),
    "icrl": ("..agents.icrl", "ICRLMiddleware"),
    "reasoning-bank": ("..agents.reasoning_bank", "ReasoningBankMiddleware"),
    "reflexion": ("..agents.reflexion", "ReflexionMiddleware"),
    "synapse": ("..agents.synapse", "SynapseMiddleware"),
}
"""Method -> module and class of its middleware."""


@dataclass(frozen=True)
class AgentOptions:
    """Options of `learngraph run METHOD --agent`: the agent, its tasks, and how they are rewarded."""

    agent: str
    """The function that makes the agent: MODULE:NAME, called with (middleware, seed)."""
    tasks: Path
    """The tasks: a JSONL file with `id`, `messages` and perhaps `reference`."""
    reward: str
    """The function that rewards a task: MODULE:NAME, called with (task, messages)."""
    decide: tuple[str, ...] = ()
    """Names of the tools that are decisions (`jitrl`)."""
    state_key: str | None = None
    """A function from the messages that were read to the text by which states are compared: MODULE:NAME."""
    seeds: int = 5
    """Number of orders of the tasks, and of agents."""
    part: float = 0.25
    """Share of the tasks at either end that the table shows."""
    pass_reward: float = 1.0
    """Least reward of a task that counts as passed."""
    control: bool = False
    """Play the method once more with the rewards of other tasks, drawn at random: a control, which has to fail."""
    workers: int = 1
    """Threads."""
    out: Path | None = None
    """A file for the results, one task a line (JSONL)."""

    def __post_init__(self) -> None:
        for name, low in (("seeds", 1), ("workers", 1)):
            if getattr(self, name) < low:
                raise CommandError(f"--{name} is at least {low}, got {getattr(self, name)}")
        if not 0 < self.part <= 1:
            raise CommandError(f"--part is a share above 0 and at most 1, got {self.part:g}")


def run_agent(method: str, args: Sequence[str]) -> int:
    """Compare an agent with and without a method's middleware. Returns the exit status."""
    if method not in MIDDLEWARES:
        raise CommandError(f"--agent is for methods with a middleware: {', '.join(MIDDLEWARES)}; got {method}")
    options = parse_flags(AgentOptions, args, f"learngraph run {method} --agent", (__doc__ or "").partition("\n\n")[0])
    from ..agents.evaluation import evaluate_learning

    tasks, make_agent, reward = read_tasks(options.tasks), find_function(options.agent), find_function(options.reward)
    arms: dict[str, Any] = {"none": None, method: _arm(method, options)}
    if options.control:
        arms["shuffled"] = arms[method]
    report = evaluate_learning(
        make_agent,
        tasks,
        reward,
        arms=arms,
        seeds=options.seeds,
        part=options.part,
        pass_reward=options.pass_reward,
        shuffled=["shuffled"] if options.control else (),
        workers=options.workers,
    )
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("".join(json.dumps(asdict(one)) + "\n" for one in report.results), encoding="utf-8")
    seeds = f"{options.seeds} seeds" if options.seeds > 1 else "1 seed"
    print(f"{options.agent}, {len(tasks)} tasks, {seeds}; first and last {options.part:.0%} of the tasks; [95 % over seeds]\n")
    print(report.table())
    for one in report.arms:
        if one.harmed:
            say(
                f"{one.arm} failed what {report.arms[0].arm} passed: {', '.join(one.harmed[:5])}{' …' if len(one.harmed) > 5 else ''}"
            )
    for failure in dict.fromkeys(one.failure for one in report.results if one.failure):
        say(f"a task could not be played: {failure}")
    return 0


def _arm(method: str, options: AgentOptions) -> Callable[[Any], Any]:
    """The function from a store to the method's middleware, with the options that it takes."""
    module, name = MIDDLEWARES[method]
    made = getattr(import_module(module, __package__), name)
    given: dict[str, Any] = {"decide": options.decide or None}
    if options.state_key:
        given["state_key"] = find_function(options.state_key)
    takes = inspect.signature(made.__init__).parameters
    wanted = {key: value for key, value in given.items() if value is not None and (key in takes or key == "state_key")}
    if "decide" in takes and "decide" not in wanted:
        raise CommandError(f"{method} learns decisions: name the tools that are decisions with --decide")
    if options.decide and "decide" not in takes:
        raise CommandError(f"--decide is for jitrl, which learns decisions; {method} takes the whole conversation")
    return lambda store: made(store, **wanted)


def read_tasks(path: Path) -> list[Any]:
    """The tasks of a JSONL file.

    Raises:
        UserError: it cannot be read, or a line is no task.
    """
    from ..agents.evaluation import AgentTask

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"--tasks {path}: cannot be read ({error.strerror or error})") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            found.append(AgentTask(str(row["id"]), row["messages"], row.get("reference")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f'--tasks {path}, line {number}: asked for {{"id": …, "messages": …}}, got {line[:60]!r} ({type(error).__name__}: {error})'
            ) from error
    return found


def find_function(name: str) -> Callable[..., Any]:
    """The function that MODULE:NAME names; a module is found among the installed packages and in the current directory.

    Raises:
        UserError: there is no such function.
    """
    module, colon, attribute = name.rpartition(":")
    if not colon:
        raise UserError(f"asked for a function by MODULE:NAME, such as my_app:make_agent, got {name!r}")
    found = find_user_object(module, attribute)
    if not callable(found):
        raise UserError(f"{name} is a {type(found).__name__}, and a function was asked for")
    function: Callable[..., Any] = found
    return function
