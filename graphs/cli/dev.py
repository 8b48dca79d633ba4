"""The methods behind `langgraph dev`: named in `langgraph.json`, they join tools to graphs as the command line does.

The input is plain JSON, `{"seed": 3, "episodes": 2}`: play two episodes of the environment's task 3. Asking again on the same
thread plays further episodes; what they earned is remembered in a Chroma directory, steps and checkpoints are kept in
files, all under `runs/dev` of the directory that the server was started in. `training-free-grpo` needs no input: it learns lessons
from practice problems, and answers with them. CLaaS is not among them: its two graphs share an engine with a learner in
another process, which `learngraph serve` starts and stops together; an agent here uses it as its model, by its chat API. Methods
that train weights are not either (`Method.trains_weights`): the threads of a server share one model in its process, and
each run of these methods needs weights of its own. `learngraph run` plays them.

`pip install 'langgraph-cli[inmem]'` into an environment without the extra `[test]`: the two ask for different versions of jsonschema-rs.

What is played with what is set per assistant, as its context or config: `{"env": "toy", "model": "uniform", "settings": "paper?beta=3"}`,
the settings as the command line has them behind a method's name. What cannot be used is answered in words by every run of the assistant.

An assistant, not a single run: the server rebuilds the graph to read a thread, from what it knows of the assistant.

What the server (langgraph-api 0.16) does not do with a store and a checkpointer that are not its own: vector search and expiry
settings of its config, `multitask_strategy="rollback"`, pruning a thread's history. Its adapter around a custom checkpointer
recurses endlessly when LangGraph copies it, which LangGraph does if LANGGRAPH_STRICT_MSGPACK is set; `langgraph.json` turns
that off, and nothing is lost: our serializer restores only our records, with or without it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, NotRequired

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.runtime import get_runtime
from langgraph.store.base import BaseStore
from pydantic import Field
from typing_extensions import TypedDict

from ...memory.errors import UserError
from ...memory.records import Trajectory, Usage
from ...memory.storage.journal import Journal
from ...memory.storage.record_store import RecordStore
from ...memory.storage.rows import Rows
from ..arms import method_settings
from ..experiments.options import RunOptions
from ..experiments.run_inputs import make_method_inputs, method_resources
from ..methods import METHODS
from ..wiring import run
from ..wiring.flow import Graph, Node, compile_graph, wire
from ..wiring.inputs import MethodInputs

__all__ = ["store"]

FOLDER = Path("runs") / "dev"
_MAKING = Lock()
EPISODES = """
flowchart LR
  START --> plan --> episode --> tally
  tally -->|another| episode
  tally -->|enough| END
"""
LESSONS = "flowchart LR\n  START --> plan --> learn --> answer --> END\n"
SMALL_RUNS: Mapping[str, Mapping[str, Any]] = {"training-free-grpo": {"problems": 8, "held_out": 6, "epochs": 1}}
"""Method -> settings where none are given: smaller than the command line's, since a client waits for the end."""
REFUSAL = "flowchart LR\n  START --> refuse --> END\n"


class DevRequestError(UserError, ValueError):
    """The input or a setting cannot be used. A ValueError, because the server hides the messages of other errors from clients."""


class DevContext(TypedDict, total=False):
    """The world, the model and the settings of an assistant: LangGraph Studio shows these as a form."""

    env: Annotated[str, Field(description="The world, as `learngraph run --env` takes it; `twx:coin` if not given.")]
    model: Annotated[
        str, Field(description="The model, as `--model` takes it (`pocket` if not given), or `uniform`: any admissible action.")
    ]
    settings: Annotated[
        str,
        Field(
            description="The settings, as the command line has them behind the method's name: `paper?beta=3&k=5`, `?beta=3`."
        ),
    ]


@dataclass(frozen=True)
class DevChoice:
    """An assistant's choice: the world, the model, and the method's settings."""

    env: str
    model: str
    settings: Any


class DevRequest(TypedDict):
    """The input: a task, and how many episodes of it are played."""

    seed: NotRequired[int]
    """Number of the test task in the environment."""
    episodes: NotRequired[int]
    """Episodes to play, after those that this thread has played."""


class DevOutput(TypedDict):
    """The output: the scores and lengths of the episodes."""

    scores: list[float]
    """One per episode of this thread, in the environment's units."""
    lengths: list[int]
    """Steps taken in each."""


class DevState(DevRequest, run.RunState):  # type: ignore[misc]  # what a request may leave out, a run has
    """The channels of a run, and the request behind it."""


class LearningInput(TypedDict):
    """Learning needs no input."""


class LearningOutput(TypedDict):
    """The output of learning: lessons."""

    lessons: list[str]
    best_score: float | None
    """Mean reward of the lessons on the held-out problems; None where nothing was tested."""
    stopped: str
    """The reason for ending early; empty without one."""


class DevLearningState(LearningOutput):
    """The channels of learning."""

    run: str
    runs: int
    """Runs of this thread so far."""
    best: str
    usage: Usage


def read_choice(method: str, given: Mapping[str, Any]) -> DevChoice:
    """The choice in an assistant's values; names other than those of `DevContext` are left alone, since the server adds its own.

    Raises:
        DevRequestError: there is no such preset or setting, or a value does not fit.
    """
    values = {name: given.get(name, usual) for name, usual in (("env", "twx:coin"), ("model", "pocket"), ("settings", ""))}
    if wrong := [name for name, value in values.items() if not isinstance(value, str)]:
        raise DevRequestError(f"{method}: {wrong[0]} is a text, got {values[wrong[0]]!r}")
    asked = values["settings"]
    try:
        settings = method_settings(f"{method}{'' if asked[:1] in ('', '?') else ':'}{asked}")
    except (UserError, ValueError) as error:
        raise DevRequestError(str(error)) from error
    small = SMALL_RUNS.get(method, {}) if not asked else {}
    return DevChoice(values["env"], values["model"], replace(settings, **small))


def _check_context(method: str, choice: DevChoice) -> None:
    """Raise `DevRequestError` if the run was given a context that this graph was not made for."""
    context = get_runtime().context
    if isinstance(context, Mapping) and (unknown := [name for name in context if name not in DevContext.__annotations__]):
        known = ", ".join(DevContext.__annotations__)
        raise DevRequestError(f"{method} knows no {unknown[0]!r} here; it has {known}, and single settings stand in `settings`")
    if isinstance(context, Mapping) and read_choice(method, context) != choice:
        raise DevRequestError(
            f"this run asks for {dict(context)}, but the graph was made for {choice}: set it for the assistant, not for a run"
        )


def _plan(method: str, choice: DevChoice, environment: Any, state: DevState, config: RunnableConfig) -> dict[str, Any]:
    """Make a run's plan of a request. The thread is the run: its id names it, and its episodes are counted on."""
    _check_context(method, choice)
    seed, episodes, done = state.get("seed"), state.get("episodes"), state.get("episode", 0)
    if type(seed) is not int or type(episodes) is not int or seed < 0 or episodes < 1:
        raise DevRequestError(
            f'the input is {{"seed": 0 or more, "episodes": 1 or more}}, got seed {seed!r}, episodes {episodes!r}'
        )
    run_id = str(config["configurable"]["thread_id"])
    return {"task": environment.task(seed), "run": run_id, "episode": done, "episodes": done + episodes}


def _factory(method: str) -> Callable[[RunnableConfig], Awaitable[Graph]]:
    """The function that `langgraph.json` names: it makes a method's graph for an assistant, and is asked to at every request."""

    async def make(config: RunnableConfig) -> Graph:
        return await asyncio.to_thread(_make_graph, method, dict(config.get("configurable") or {}))

    make.__name__, make.__doc__ = method, METHODS[method].summary
    return make


SERVABLE = tuple(name for name, method in METHODS.items() if not method.trains_weights)
"""The methods that are served: those that leave the model's weights alone."""
globals().update({name.replace("-", "_"): _factory(name) for name in SERVABLE})


def _make_graph(method: str, given: Mapping[str, Any]) -> Graph:
    make = _learning_graph if METHODS[method].has_training_phase else _episode_graph
    with _MAKING:  # a cache alone would let two threads open the same files
        try:
            return make(method, read_choice(method, given))
        except UserError as error:
            why = str(error)

    def refuse(state: LearningInput) -> dict[str, Any]:
        raise DevRequestError(why)

    # The form of such an assistant stays readable, so that it can be put right.
    return _compile(method, REFUSAL, {"refuse": refuse})


def _compile(method: str, flow: str, nodes: Mapping[str, Node], routers: Mapping[str, Any] | None = None) -> Graph:
    learns = METHODS[method].has_training_phase
    builder = StateGraph[Any, Any, Any, Any](
        DevLearningState if learns else DevState,
        input_schema=LearningInput if learns else DevRequest,
        output_schema=LearningOutput if learns else DevOutput,
        context_schema=DevContext,
    )
    return compile_graph(wire(builder, flow, nodes, routers), name=method)


@lru_cache(maxsize=8)
def _episode_graph(method: str, choice: DevChoice) -> Graph:
    inputs, folder = _inputs(method, choice.env, choice.model)
    nodes: dict[str, Node] = {
        "plan": partial(_plan, method, choice, inputs.environment),
        "episode": METHODS[method].build(inputs, choice.settings, **method_resources(METHODS[method])),
        "tally": run.TallyEpisode(_rows(folder / "episodes.jsonl")),
    }
    return _compile(method, EPISODES, nodes, {"tally": run.route_next_episode})


@lru_cache(maxsize=8)
def _learning_graph(method: str, choice: DevChoice) -> Graph:
    from .. import training_free_grpo
    from ..wiring.learning_run import RunResources

    inputs, folder = _inputs(method, choice.env, choice.model)
    versions = _versions(folder / "library.jsonl")
    resources = RunResources(versions=versions, log=_rows(folder / "learned.jsonl"))

    def plan(state: DevLearningState, config: RunnableConfig) -> dict[str, Any]:
        _check_context(method, choice)
        number = state.get("runs", 0)
        return {"run": f"{config['configurable']['thread_id']}/{number}", "runs": number + 1}

    def answer(state: DevLearningState) -> dict[str, Any]:
        return {"lessons": [lesson.text for lesson in versions.at(state["best"]).lessons]}

    learn = training_free_grpo.build(inputs, choice.settings, resources=resources)
    nodes: dict[str, Any] = {"plan": plan, "learn": learn, "answer": answer}
    return _compile(method, LESSONS, nodes)


@lru_cache(maxsize=32)
def _inputs(method: str, env: str, model: str) -> tuple[MethodInputs, Path]:
    """The inputs that a method is built from, and its folder. Assistants that differ in other settings share both."""
    from ...tools.environments.catalogue import open_environment
    from ...tools.models.models import open_model

    environment = open_environment(env)
    # The first method that was served here has its files, and its memory, under the world and the model alone.
    own = () if method == "jitrl" else (method,)
    folder = FOLDER / "".join(c if c.isalnum() else "-" for c in "-".join((*own, env, model)))
    options = RunOptions(env=env, prior="uniform") if model == "uniform" else RunOptions(env=env, model=model)
    opened = None if model == "uniform" else open_model(model, threads=1)
    journal = Journal(folder / "steps.jsonl")
    inputs: MethodInputs = make_method_inputs(options, environment, opened, journal, METHODS[method])
    if METHODS[method].has_memory:
        inputs = replace(inputs, records=RecordStore(_store(), ("trajectories", *own, env, model), Trajectory))
    return inputs, folder


@lru_cache(maxsize=64)
def _rows(path: Path) -> Rows:
    return Rows(path)


@lru_cache(maxsize=64)
def _versions(path: Path) -> Any:
    from ...memory.lessons.versions import LibraryVersions

    return LibraryVersions(path)


@lru_cache(maxsize=1)
def _store() -> BaseStore:
    from ...memory.storage.chroma_store import ChromaStore

    return ChromaStore.open(FOLDER / "memory")


def store() -> BaseStore:
    """The server's store: Chroma, the same that the methods remember in."""
    return _store()


@asynccontextmanager
async def checkpoints() -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """The server's checkpointer: SQLite."""
    from ...memory.storage.checkpoints import open_checkpoints_async

    FOLDER.mkdir(parents=True, exist_ok=True)
    async with open_checkpoints_async(FOLDER / "checkpoints.sqlite") as saver:
        yield saver
