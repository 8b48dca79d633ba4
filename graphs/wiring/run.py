"""A run: one method plays one task episode after episode. The episode is a subgraph; the run keeps the scores.

It ends with an answer: the attempt that the method itself chooses, by the rewards that it saw. The highest true score of all
attempts (the running maximum) can only be picked by an oracle; tables show it beside the answer.
"""

import math
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from operator import add
from typing import Annotated, Any, ClassVar, Literal, NotRequired, get_type_hints

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import TypedDict, is_typeddict

from ...memory.errors import UserError
from ...memory.graph_input import list_names
from ...memory.records import Task, Usage
from ...memory.storage.rows import Rows
from ...nodes.state import EpisodeResult
from .flow import Graph, Node, compile_graph, wire

__all__ = ["FLOW", "CommitAttempt", "ParallelAttempts", "RunState", "TallyEpisode", "build", "route_next_episode"]

FLOW = """
flowchart LR
  START --> episode --> tally
  tally -->|another| episode
  tally -->|enough| commit --> END
"""


class RunError(UserError, RuntimeError):
    """The state of a run and its log do not belong together."""


class RunInput(TypedDict):
    """The input of a run: the task, the name, and how many episodes to play. `episode` starts at 0."""

    task: Task
    run: str
    """The name of the run. Every id and every random draw is made from it."""
    episode: int
    episodes: int
    """The number of episodes to play."""
    tokens: NotRequired[int]
    """The budget of the run in tokens of model calls, 0 for none. No episode begins once it is used up."""


class RunSoFar(RunInput):
    """The returns and the tokens of a run's finished episodes."""

    values: Annotated[list[float | None], add]
    """One per finished episode: the return r that the method saw; None if a reward is missing."""
    spent: Annotated[int, add]
    """Tokens of model calls so far."""


class RunState(RunSoFar, EpisodeResult):
    """The channels of a run; those of `EpisodeResult` are about the episode that ended last."""

    scores: Annotated[list[float], add]
    """One per finished episode, in the environment's units: r*, the truth."""
    bests: Annotated[list[float], add]
    """The highest score within each episode."""
    lengths: Annotated[list[int], add]
    """Steps taken in each episode."""
    answer: int
    """The episode whose attempt the method commits to."""


class FinishedEpisodeOfRun(EpisodeResult):
    """The episode that ended last, and its run."""

    run: str


class EpisodeTally(TypedDict):
    """The values that a finished episode adds to its run."""

    scores: list[float]
    bests: list[float]
    values: list[float | None]
    lengths: list[int]
    spent: int
    episode: int


class RunAnswer(TypedDict, total=False):
    """The episode that a run commits to, and the tokens that were spent on ties."""

    answer: int
    spent: int


@dataclass(frozen=True)
class TallyEpisode:
    """Add the finished episode to the state and, as one row, to the run's log. Doing it twice adds one row."""

    role: ClassVar[str] = "memory"

    log: Rows

    @property
    def is_blocking(self) -> bool:
        """True if it writes to a disk; see `is_blocking` in graphs/wiring/supersteps.py."""
        return self.log.path is not None

    def __call__(self, state: FinishedEpisodeOfRun) -> EpisodeTally:
        run, episode = state["run"], state["episode"]
        usage = state["usage"]
        self.log.append(
            {
                "id": f"{run}/{episode}",
                "run": run,
                "episode": episode,
                "task": state["task"].id,
                "score": state["score"],
                "best": state["best"],
                "earned": state["earned"],
                "unjudged": state.get("unjudged", ""),  # a checkpoint of an earlier version has none
                "steps": state["step"],
                "head": state["head"],
                **asdict(usage),
            }
        )
        self.log.sync()
        return {
            "scores": [state["score"]],
            "bests": [state["best"]],
            "values": [state["earned"]],
            "lengths": [state["step"]],
            "spent": usage.tokens,
            "episode": episode + 1,
        }


@dataclass(frozen=True)
class CommitAttempt:
    """End the run with one attempt, which the method itself chooses.

    `best` takes the highest return r. Attempts that tie for it are judged again, if the judge may err: the mean of `judgements`
    further judgements decides, then the shorter attempt, then the earlier one. `last`, and a run without any known return, takes the
    last attempt.
    """

    rule: Literal["best", "last"] = "best"
    log: Rows = field(default_factory=Rows)
    judge: Node | None = None
    """The judge that is asked again on ties; None where rewards would only be the same again."""
    judgements: int = 3
    max_ties: int = 5
    """Tied attempts that are judged again at most, the shortest first; none once the run's tokens are used up."""

    @property
    def role(self) -> str:
        """The role in pictures: `model` if a judge may be asked."""
        return "model" if self.judge is not None else "compute"

    @property
    def is_blocking(self) -> bool:
        """True if it may ask a judge; see `is_blocking` in graphs/wiring/supersteps.py."""
        return self.judge is not None

    def __call__(self, state: RunState) -> RunAnswer:  # the whole state: the judge may read any channel
        known = {episode: value for episode, value in enumerate(state["values"]) if value is not None}
        if self.rule == "last" or not known:
            return {"answer": len(state["values"]) - 1}
        top = max(known.values())
        tied = sorted((e for e, value in known.items() if value == top), key=lambda e: (state["lengths"][e], e))
        returns = dict.fromkeys(tied, -math.inf)
        usage = Usage()
        limit = state.get("tokens", 0)
        used_up = limit and state["spent"] >= limit
        for episode in tied[: self.max_ties] if self.judge and len(tied) > 1 and not used_up else ():
            judged = [self._rejudge(state, episode, n) for n in range(self.judgements)]
            usage = sum((one.get("usage", Usage()) for one in judged), usage)
            totals = [math.fsum(one["rewards"]) for one in judged if None not in one["rewards"]]
            if totals:
                returns[episode] = math.fsum(totals) / len(totals)
        answer = max(tied, key=returns.__getitem__)  # the first of equals, and they stand in order
        return {"answer": answer, "spent": usage.tokens}

    def _rejudge(self, state: RunState, episode: int, n: int) -> Mapping[str, Any]:
        """The n-th further judgement of a finished attempt."""
        row = self.log.get(f"{state['run']}/{episode}")
        if row is None:
            raise RunError(f"the log of the run {state['run']} has no episode {episode} to judge again; it has {len(self.log)}")
        name = f"{state['run']}/again/{n}"  # a model that is seeded by the run's name would only say the same again
        attempt = {**state, "run": name, "episode": episode, "head": row["head"], "step": row["steps"], "score": row["score"]}
        judged: Mapping[str, Any] = self.judge.invoke(attempt) if isinstance(self.judge, Runnable) else self.judge(attempt)  # type: ignore[misc]
        return judged


def route_next_episode(state: RunSoFar) -> Literal["another", "enough"]:
    """Router: is there another episode to play, and are there tokens left for it?"""
    limit = state.get("tokens", 0)
    if limit and state["spent"] >= limit:
        return "enough"
    return "another" if state["episode"] < state["episodes"] else "enough"


def build(
    episode: Runnable[Any, Any],
    log: Rows | None = None,
    *,
    commit: Literal["best", "last"] = "best",
    judge: Node | None = None,
    **compile: Any,
) -> Graph:
    """The graph of a run over the graph of an episode.

    Args:
        episode: a graph from `EpisodeInput` to `EpisodeResult`, such as `graphs.jitrl.build` makes, or an `UncheckpointedGraph` of one.
        log: the log of finished episodes, one row each.
        commit: the rule for the run's answer; see `CommitAttempt`.
        judge: judges again the attempts that tie.
        compile: as for `StateGraph.compile`.

    Raises:
        UserError: the graph gives out no result of an episode.
        FlowError: it is no graph, or is not compiled.
    """
    if isinstance(episode, CompiledStateGraph):
        lacking = get_type_hints(EpisodeResult).keys() - episode.builder.schemas[episode.builder.output_schema]
        if lacking and is_typeddict(episode.builder.output_schema):
            raise UserError(
                f"run.build repeats the graph of an episode, and this one gives out no {list_names(sorted(lacking))}: draw it on "
                "StateGraph(learngraph.AttemptState, input_schema=EpisodeInput, output_schema=EpisodeResult)"
            )
    builder = StateGraph(RunState, input_schema=RunInput)
    log = log if log is not None else Rows()
    nodes: dict[str, Any] = {"episode": episode, "tally": TallyEpisode(log), "commit": CommitAttempt(commit, log, judge)}
    return compile_graph(wire(builder, FLOW, nodes, {"tally": route_next_episode}), **{"name": "run", **compile})


class ParallelAttempts(Runnable[Any, Any]):
    """The episode of a run whose episodes are independent, played so many at a time, in threads. Each is the same as if alone.

    The first call plays its episode and the next ones of the run; the calls for those get what was played. An episode that fails
    raises its error when it is its turn, so that those before it count.

    Args:
        episode: plays one episode, from `AttemptInput`.
        at_once: number of episodes that are played at the same time.
    """

    def __init__(self, episode: Runnable[Any, Any], at_once: int) -> None:
        self.episode, self.at_once = episode, at_once
        self._played: dict[int, Future[Any]] = {}

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        first = input["episode"]
        if first not in self._played:
            together = range(first, max(first + 1, min(first + self.at_once, input["episodes"])))
            with ThreadPoolExecutor(len(together)) as pool:
                self._played = {n: pool.submit(self.episode.invoke, {**input, "episode": n}) for n in together}
        return self._played.pop(first).result()
