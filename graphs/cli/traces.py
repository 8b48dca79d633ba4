"""`learngraph import FILE --out FILE`: conversations that exist already become trajectories that agents learn from.

    learngraph import traces.jsonl --out trajectories.jsonl --agent-name support
    learngraph import trajectories.jsonl --as atif --out atif.jsonl          # and out again
    learngraph import trajectories.jsonl --as inspect --out conversations.eval

A learner takes them in with `learner.import_trajectories("trajectories.jsonl", tenant="acme")`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from ...memory.errors import CommandError, plural
from ..experiments.progress import say
from .flags import parse_flags

__all__ = ["import_traces"]


@dataclass(frozen=True)
class ImportOptions:
    """Options of `learngraph import`: the file, its form, and where rewards come from."""

    file: Positional[Path]
    """Conversations: JSON lines, or one JSON document."""
    out: Path
    """The file to write: trajectories, one a line."""
    form: Literal["openai", "langsmith", "atif"] | None = None
    """The form of the records: OpenAI's chat messages, runs of LangSmith, or ATIF. If not given, it is found out."""
    write_as: Annotated[Literal["trajectories", "atif", "inspect"], tyro.conf.arg(name="as")] = "trajectories"
    """The form to write: ours, ATIF, or a log of Inspect. With the last two the file may hold trajectories of ours as well."""
    feedback_key: str | None = None
    """The key of LangSmith's feedback that is the reward, where runs have several."""
    reward: str | None = None
    """A function from the messages to the reward, in the place of the recorded one: MODULE:NAME."""
    agent_name: str = "agent"
    """The name of the agent that is to learn from them (`name=` of its middleware)."""
    state_key: str | None = None
    """A function from the messages that were read to the text of the state, as in the middleware: MODULE:NAME."""


def import_traces(args: Sequence[str]) -> int:
    """Read conversations of other tools and write them as trajectories. Returns the exit status."""
    from ...memory.conversations import traces
    from ...memory.conversations.messages import goal_and_last_turn
    from ...memory.records import Trajectory
    from ...memory.storage.record_store import BadRecord, read_jsonl, write_jsonl
    from .agent import find_function

    options = parse_flags(ImportOptions, args, "learngraph import", (__doc__ or "").partition("\n\n")[0])
    if options.out.resolve() == options.file.resolve():
        raise CommandError(f"--out {options.out} is the file that is read; give another one")
    made: list[Trajectory]
    try:
        made = (
            [one for _, one in read_jsonl(Trajectory, options.file)]
            if options.write_as != "trajectories" and not options.form
            else []
        )
    except BadRecord:
        made = []
    if not made:
        key: Callable[..., str] = find_function(options.state_key) if options.state_key else goal_and_last_turn
        found = traces.read_traces(options.file, options.form, options.feedback_key)
        if options.reward:
            judge = find_function(options.reward)
            found = [one if one.is_idle else replace(one, reward=_reward(judge, one)) for one in found]
        made = traces.to_trajectories(found, domain=options.agent_name, task=options.agent_name, state_key=key)
        if idle := len(found) - len(made):
            say(f"left out {plural(idle, 'conversation')} in which the agent did nothing")
    if not made:
        raise CommandError(f"nothing was read from {options.file}: it holds no conversation in which an agent did something")
    if options.write_as == "atif":
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("".join(json.dumps(traces.as_atif(one)) + "\n" for one in made), encoding="utf-8")
    elif options.write_as == "inspect":
        from ...memory.conversations.inspect_logs import write_inspect_log

        write_inspect_log(made, options.out)
    else:
        write_jsonl(made, options.out)
    unrated = sum(one.value is None for one in made)
    say(f"{plural(len(made), 'conversation')} in {options.out}, {len(made) - unrated} with a reward")
    if unrated == len(made):
        say("nothing can be learned from conversations without a reward by memories of returns: give --reward MODULE:NAME")
    return 0


def _reward(judge: Callable[..., Any], conversation: Any) -> float | None:
    from ..agents.reward_sources import read_reward

    found = read_reward(judge, conversation.messages)
    return None if found is None else found[0]
