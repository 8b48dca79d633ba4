"""`learngraph memory import FILE`: add episodes to a memory, also from conversations that other tools recorded.

    learngraph memory import trajectories.jsonl --into runs/mine/jitrl-s0/memory
    learngraph memory import traces.jsonl --out trajectories.jsonl --agent-name support

A learner takes the trajectories in with `learner.import_trajectories("trajectories.jsonl", tenant="acme")`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import Positional

from ...memory.errors import CommandError, UserError, plural
from ..arms import find_user_object
from ..experiments.folder import memory_location
from ..experiments.progress import say
from .flags import parse_flags

if TYPE_CHECKING:
    from ...memory.records import Trajectory

__all__ = []


@dataclass(frozen=True)
class MemoryImportOptions:
    """Options of `learngraph memory import`: the file, its form, where rewards come from, and where it goes."""

    file: Positional[Path]
    """Trajectories, one a line, as `learngraph memory export` writes them; or conversations: JSON lines, or one JSON document."""
    into: str | None = None
    """The memory that they are added to: a directory, `http://host:port/NAME`, or `postgresql://host/database/NAME`."""
    out: Path | None = None
    """The file to write in place of a memory."""
    form: Literal["openai", "langsmith"] | None = None
    """The form of the records: OpenAI's chat messages, or runs of LangSmith. If not given, it is found out."""
    feedback_key: str | None = None
    """The key of LangSmith's feedback that is the reward, where runs have several."""
    reward: str | None = None
    """A function from the messages of a conversation to the reward, in the place of the recorded one: MODULE:NAME."""
    agent_name: str = "agent"
    """The name of the agent (`name=` of its middleware) that is to learn from conversations."""
    state_key: str | None = None
    """A function from the messages that were read to the text of the state, as in the middleware: MODULE:NAME."""

    def __post_init__(self) -> None:
        if (self.into is None) == (self.out is None):
            raise CommandError("learngraph memory import takes either --into MEMORY or --out FILE")
        if self.out is not None and self.out.resolve() == self.file.resolve():
            raise CommandError(f"--out {self.out} is the file that is read; give another one")


def import_file(args: Sequence[str]) -> int:
    """Read trajectories or conversations, and add them to a memory or write them to a file. Returns the exit status."""
    options = parse_flags(MemoryImportOptions, args, "learngraph memory import", (__doc__ or "").partition("\n\n")[0])
    from ...memory.storage.record_store import write_jsonl

    if options.into is not None:
        _check_memory(options.into)
    made = _read_trajectories(options)
    if not made:
        raise CommandError(f"nothing was read from {options.file}: it holds no conversation in which an agent did something")
    if options.into is not None:
        _store(made, options.into)
        say(plural(len(made), "episode"))
        return 0
    assert options.out is not None
    write_jsonl(made, options.out)
    unrated = sum(one.value is None for one in made)
    say(f"{plural(len(made), 'conversation')} in {options.out}, {len(made) - unrated} with a reward")
    if unrated == len(made):
        say("nothing can be learned from conversations without a reward by memories of returns: give --reward MODULE:NAME")
    return 0


def _read_trajectories(options: MemoryImportOptions) -> list[Trajectory]:
    from ...memory.conversations import traces
    from ...memory.conversations.messages import goal_and_last_turn
    from ...memory.records import Trajectory
    from ...memory.storage.record_store import BadRecord, read_jsonl

    if options.form is None and traces.holds_trajectories(options.file):
        try:
            return [one for _, one in read_jsonl(Trajectory, options.file)]
        except BadRecord as error:
            raise CommandError(str(error)) from error
    key: Callable[..., str] = _find_function(options.state_key) if options.state_key else goal_and_last_turn
    found = traces.read_traces(options.file, options.form, options.feedback_key)
    if options.reward:
        judge = _find_function(options.reward)
        found = [one if one.is_idle else replace(one, reward=_reward(judge, one)) for one in found]
    made = traces.to_trajectories(found, domain=options.agent_name, task=options.agent_name, state_key=key)
    if idle := len(found) - len(made):
        say(f"left out {plural(idle, 'conversation')} in which the agent did nothing")
    return made


def _find_function(name: str) -> Callable[..., Any]:
    """The function that MODULE:NAME names; a module is found among the installed packages and in the current directory."""
    module, colon, attribute = name.rpartition(":")
    found: Any = find_user_object(module, attribute) if colon else None
    if not callable(found):
        raise UserError(f"asked for a function by MODULE:NAME, such as my_app:reward, got {name!r}")
    function: Callable[..., Any] = found
    return function


def _reward(judge: Callable[..., Any], conversation: Any) -> float | None:
    from ..agents.reward_sources import read_reward

    said = judge(conversation.messages)
    found = read_reward(judge, asyncio.run(said) if inspect.iscoroutine(said) else said)
    return None if found is None else found[0]


def _check_memory(path: str) -> None:
    """Refuse a place that holds several memories."""
    _, namespace = memory_location(path)
    if "://" in path and namespace == ("trajectories",):
        raise CommandError(f"{path} keeps many memories: say which, such as {path.rstrip('/')}/jitrl-s0")
    if "://" not in path and (inside := find_memories(path)) and str(Path(path)) not in inside:
        raise CommandError(f"{path} has memories within: say which, such as {inside[0]}")


def _store(made: Sequence[Trajectory], path: str) -> None:
    from ...memory.records import Trajectory
    from ...memory.storage.open_store import open_store
    from ...memory.storage.record_store import RecordStore

    place, namespace = memory_location(path)
    with open_store(place) as store:
        RecordStore(store, namespace, Trajectory).put(made)


def find_memories(directory: str) -> list[str]:
    """The memories in a directory and below it."""
    return sorted(str(path.parent) for path in Path(directory).rglob("chroma.sqlite3"))
