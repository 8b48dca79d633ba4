"""JitRL behind `langgraph dev`: named in `langgraph.json`, it joins tools to graphs as the command line does.

The input is plain JSON, `{"seed": 3, "episodes": 2}`: play two episodes of the environment's task 3. Asking again on the same
thread plays further episodes; what they earned is remembered in a Chroma directory, steps and checkpoints are kept in
files, all under `runs/dev` of the directory that the server was started in.

What is played with what is set per assistant (`config={"configurable": {"env": "toy", "model": "uniform"}}`):

    env      as `learngraph run --env`; `twx:coin` if not given
    model    as `learngraph run --model`, or `uniform`; `pocket` if not given

An assistant, not a single run: the server rebuilds the graph to read a thread, from what it knows of the assistant.

What the server (langgraph-api 0.16) does not do with a store and a checkpointer that are not its own: vector search and expiry
settings of its config, `multitask_strategy="rollback"`, pruning a thread's history. Its adapter around a custom checkpointer
recurses endlessly when LangGraph copies it, which LangGraph does if LANGGRAPH_STRICT_MSGPACK is set; `langgraph.json` turns
that off, and nothing is lost: our serializer restores only our records, with or without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.store.base import BaseStore
from typing_extensions import TypedDict

from ...memory.errors import UserError
from ...memory.records import Trajectory
from ...memory.storage.journal import Journal
from ...memory.storage.rows import Rows
from ...memory.storage.shelf import RecordStore
from .. import jitrl
from ..wiring import run
from ..wiring.flow import Node, compile_graph, wire
from ..wiring.parts import MethodInputs
from .options import RunOptions
from .play import make_method_inputs

FOLDER = Path("runs") / "dev"
_MAKING = Lock()
FLOW = """
flowchart LR
  START --> plan --> episode --> tally
  tally -->|another| episode
  tally -->|enough| END
"""


class DevRequestError(UserError, ValueError):
    """The input cannot be read. A ValueError, because the server hides the messages of other errors from clients."""


class DevRequest(TypedDict):
    """The input: a task, and how many episodes of it are played."""

    seed: int
    """Number of the test task in the environment."""
    episodes: int
    """Episodes to play, after those that this thread has played."""


class DevOutput(TypedDict):
    """The output: the scores and lengths of the episodes."""

    scores: list[float]
    """One per episode of this thread, in the environment's units."""
    lengths: list[int]
    """Steps taken in each."""


class DevState(DevRequest, run.RunState):
    """The channels of a run, and the request behind it."""


@dataclass(frozen=True)
class PlanDevRun:
    """Make a run's plan of a request. The thread is the run: its id names it, and its episodes are counted on."""

    role: ClassVar[str] = "environment"

    environment: Any

    def __call__(self, state: DevState, config: RunnableConfig) -> dict[str, Any]:
        seed, episodes, done = state.get("seed"), state.get("episodes"), state.get("episode", 0)
        if type(seed) is not int or type(episodes) is not int or seed < 0 or episodes < 1:
            raise DevRequestError(
                f'the input is {{"seed": 0 or more, "episodes": 1 or more}}, got seed {seed!r}, episodes {episodes!r}'
            )
        return {
            "task": self.environment.task(seed),
            "run": str(config["configurable"]["thread_id"]),
            "episode": done,
            "episodes": done + episodes,
        }


async def make(config: RunnableConfig) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph for an assistant. The server asks for it at every request, so it is made once per environment and model."""
    chosen = config.get("configurable") or {}
    return await asyncio.to_thread(_make_graph, str(chosen.get("env", "twx:coin")), str(chosen.get("model", "pocket")))


def _make_graph(env: str, model: str) -> CompiledStateGraph[Any, Any, Any, Any]:
    with _MAKING:  # a cache alone would let two threads open the same files
        return _graph(env, model)


@lru_cache(maxsize=8)
def _graph(env: str, model: str) -> CompiledStateGraph[Any, Any, Any, Any]:
    from ...tools.environments.catalogue import open_environment

    environment = open_environment(env)
    folder = FOLDER / "".join(c if c.isalnum() else "-" for c in f"{env}-{model}")
    shelf = RecordStore(_store(), ("trajectories", env, model), Trajectory)
    parts = _parts(env, model, environment, Journal(folder / "steps.jsonl"))
    episode = jitrl.build(replace(parts, shelf=shelf))
    nodes: dict[str, Node] = {
        "plan": PlanDevRun(environment),  # type: ignore[dict-item]  # takes the config too
        "episode": episode,
        "tally": run.TallyEpisode(Rows(folder / "episodes.jsonl")),
    }
    builder = StateGraph(DevState, input_schema=DevRequest, output_schema=DevOutput)
    return compile_graph(wire(builder, FLOW, nodes, {"tally": run.route_next_episode}), name="jitrl")


def _parts(env: str, model: str, environment: Any, journal: Journal) -> MethodInputs:
    from ...tools.models.models import open_model

    if model == "uniform":
        return MethodInputs(environment, journal)
    made: MethodInputs = make_method_inputs(
        RunOptions(env=env, model=model), environment, open_model(model, threads=1), journal
    )
    return made


@lru_cache(maxsize=1)
def _store() -> BaseStore:
    from ...memory.storage.chroma_store import ChromaStore

    return ChromaStore.open(FOLDER / "memory")


def store() -> BaseStore:
    """The server's store: Chroma, the same that JitRL remembers in."""
    return _store()


@asynccontextmanager
async def checkpoints() -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """The server's checkpointer: SQLite."""
    from ...memory.storage.checkpoints import open_checkpoints_async

    FOLDER.mkdir(parents=True, exist_ok=True)
    async with open_checkpoints_async(FOLDER / "checkpoints.sqlite") as saver:
        yield saver
