"""`learngraph memory import FILE`: add episodes to a memory, or conversations that another tool has recorded to an agent's.

learngraph memory import trajectories.jsonl --into runs/mine/jitrl-s0/memory
learngraph memory import traces.jsonl --from langsmith --into my-memory --agent-name support --feedback-key user_score
learngraph memory import https://cloud.langfuse.com --from langfuse --learner my_app:learner --scope tenant=acme
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from ...memory.errors import CommandError, UserError, plural
from ..agents.scopes import ScopedLearner
from ..arms import find_user_object
from ..experiments.folder import memory_location
from ..experiments.progress import say
from .flags import parse_flags

__all__ = []

FILES = ("chroma.sqlite3", "memory.sqlite")
"""Files by which a memory's folder is known: of Chroma, and of SQLite."""
FROM = "--from langsmith, langfuse, mlflow, otlp or openai"


@dataclass(frozen=True)
class MemoryImportOptions:
    """Options of `learngraph memory import`: what is read, its form, where rewards come from, and where it goes."""

    source: Positional[str]
    """A file; or the URL of a service that traces agents, which is read from the last import on. Its key is in LANGSMITH_API_KEY,
    LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY, or MLFLOW_TRACKING_TOKEN."""
    form: Annotated[Literal["openai", "langsmith", "langfuse", "mlflow", "otlp"] | None, arg(name="from")] = None
    """The tool that has recorded conversations. If not given, the file holds episodes, as `learngraph memory export` writes them."""
    into: str | None = None
    """The memory that is added to: of a run (episodes), or of an agent (conversations); a directory or a URL."""
    learner: str | None = None
    """In place of --into, the learning middleware of an app, with its screen and its scale of rewards: MODULE:NAME."""
    agent_name: str = "agent"
    """The name of the agent that is to learn, with --into."""
    scope: tuple[str, ...] = ()
    """The values of its scope: tenant=acme. Runs that were given another value are left out."""
    project: str = ""
    """LangSmith's project, or MLflow's experiment."""
    feedback_key: str = ""
    """The key of the feedback that is the reward, where traces have several."""
    feedback_values: tuple[str, ...] = ()
    """What categories of that feedback are worth: good=1 bad=0."""
    reward_range: tuple[float, float] | None = None
    """The least and the greatest reward, such as 1 5, with --into; if not given, they are from -1 to 1."""
    reward: str | None = None
    """A function from the messages of a conversation to the reward, in the place of the recorded one: MODULE:NAME."""
    since: str = ""
    """The time from which a service is read, such as 2026-11-01; if not given, that of the last import, less a week."""
    dry_run: bool = False
    """Say what would be imported, and keep nothing."""
    write_back: bool = False
    """Write the lift of the memory back to the service, as a score."""

    def __post_init__(self) -> None:
        if (self.into is None) == (self.learner is None):
            raise CommandError("give either --into MEMORY or, for conversations, --learner MODULE:NAME")
        if self.form is None and (self.learner or "://" in self.source):
            raise CommandError(f"say what has recorded these conversations: {FROM}")


def import_file(args: Sequence[str]) -> int:
    """Read episodes or conversations, and add them to a memory. Returns the exit status."""
    options = parse_flags(MemoryImportOptions, args, "learngraph memory import", (__doc__ or "").partition("\n\n")[0])
    return _import_conversations(options) if options.form else _import_episodes(options.source, options.into or "")


def _import_conversations(options: MemoryImportOptions) -> int:
    from ...tools.traces.sources import open_traces
    from ...tools.traces.spans import RewardKey
    from ..agents.methods import make_learner

    assert options.form is not None
    scope, values = _pairs(options.scope, "tenant=acme"), _pairs(options.feedback_values, "good=1")
    try:
        worth = {name: float(value) for name, value in values.items()}
    except ValueError as error:
        raise CommandError(f"--feedback-values gives each category a number, such as good=1 bad=0 ({error})") from error
    reward = _find_object(options.reward, Callable, "my_app:reward") if options.reward else None  # type: ignore[arg-type]
    feedback = RewardKey(options.feedback_key, worth)
    source = open_traces(options.source, options.form, project=options.project, feedback=feedback)
    if options.learner:
        learner = _find_object(options.learner, ScopedLearner, "my_app:learner")
    else:
        names = [name if value else f"{name}?" for name, value in scope.items()] or ["tenant?"]
        settings = {"name": options.agent_name, "scope": names, "user": "user_id", "reward_range": options.reward_range}
        learner = make_learner("icrl", options.into or "", None, **settings)  # what is kept is the same for all methods
    with closing(learner):
        done = {"since": options.since, "dry_run": options.dry_run, "write_back": options.write_back}
        found = learner.import_conversations(source, reward=reward, **done, **scope)
    print(found)
    if not options.dry_run:
        print(f"{options.into or options.learner} learns from {plural(found.learned, 'rated turn')} of them")
    return 0


def _pairs(given: Sequence[str], example: str) -> dict[str, str]:
    if wrong := [one for one in given if "=" not in one]:
        raise CommandError(f"asked for NAME=VALUE, such as {example}; got {wrong[0]}")
    return {one.partition("=")[0]: one.partition("=")[2] for one in given}


def _find_object(name: str, kind: type, example: str) -> Any:
    """The object that MODULE:NAME names; a module is found among the installed packages and in the current directory."""
    module, _, attribute = name.rpartition(":")
    if not module or not isinstance(found := find_user_object(module, attribute), kind):
        raise UserError(f"asked for MODULE:NAME of a {kind.__name__}, such as {example}; got {name!r}")
    return found


def _import_episodes(file: str, into: str) -> int:
    from ...memory.records import Trajectory
    from ...memory.storage.open_store import open_store
    from ...memory.storage.record_store import BadRecord, RecordStore, read_jsonl

    _check_memory(into)
    try:
        made = [one for _, one in read_jsonl(Trajectory, Path(file))]
    except BadRecord as error:
        raise CommandError(f"{error}; if these are conversations, say what has recorded them: {FROM}") from error
    place, namespace = memory_location(into)
    with open_store(place) as store:
        RecordStore(store, namespace, Trajectory).put(made)
    say(plural(len(made), "episode"))
    return 0


def _check_memory(path: str) -> None:
    """Refuse a place that holds several memories."""
    _, namespace = memory_location(path)
    if "://" in path and namespace == ("trajectories",):
        raise CommandError(f"{path} keeps many memories: say which, such as {path.rstrip('/')}/jitrl-s0")
    if "://" not in path and (inside := find_memories(path)) and str(Path(path)) not in inside:
        raise CommandError(f"{path} has memories within: say which, such as {inside[0]}")


def find_memories(directory: str) -> list[str]:
    """The memories in a directory and below it."""
    return sorted(str(path.parent) for path in Path(directory).rglob("*.sqlite*") if path.name in FILES)
