"""Training-Free GRPO with anybody's agent: it plays its tasks, a critic compares the attempts, and tested lessons come of it.

    versions = learn_lessons(make_agent, tasks, reward, critic, held_out=others)
    agent = make_agent([TrainingFreeGRPOMiddleware(versions)], 0)

The graph is that of graphs/training_free_grpo.py; a rollout is one conversation of the agent.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.messages import convert_to_messages
from langchain_core.runnables import Runnable, RunnableConfig

from ...memory.conversations.messages import REPLY, goal_and_last_turn, trajectory
from ...memory.conversations.screen import Screen
from ...memory.errors import UserError
from ...memory.lessons.versions import LibraryVersions
from ...memory.records import Observation, Task
from ...memory.storage.cache import Cache
from ...memory.storage.rows import Rows
from ..training_free_grpo import TrainingFreeGRPO, build
from ..wiring.inputs import MethodInputs
from ..wiring.learning_run import CriticModel, RolloutGraphs, RunResources
from .evaluation import AgentTask, metered_usage
from .lesson_groups import transcript_text
from .scopes import DEFAULT_SCREEN, NO_SCREEN
from .training_free_grpo import TrainingFreeGRPOMiddleware

__all__ = ["learn_lessons"]

LOG = logging.getLogger(__name__)
HELD_OUT_SHARE = 0.3
"""Share of the tasks that the accept test takes if none are given for it."""


def learn_lessons(
    make_agent: Callable[[Sequence[Any], int], Any],
    tasks: Sequence[AgentTask],
    reward: Callable[[AgentTask, Sequence[Any]], float | None],
    critic: Runnable[Any, Any],
    *,
    held_out: Sequence[AgentTask] = (),
    settings: TrainingFreeGRPO | None = None,
    folder: Path | str | None = None,
    run: str = "lessons",
    agent_version: str = "",
    workers: int = 4,
    screen: Screen | None = DEFAULT_SCREEN,
) -> LibraryVersions:
    """Learn a library of lessons for an agent; the head of what is returned is the version that did best.

    Each task is tried `settings.group_size` times under the present library. A candidate takes its place only if it is not worse on
    the held-out tasks. What keeps the run from learning is logged: comparisons that were lost, groups without a difference.

    Args:
        make_agent: (middleware, number of the attempt) -> an agent that takes `{"messages": ...}`, as in `evaluate_learning`.
        tasks: what is learned on, two or more.
        reward: (task, the messages of the agent) -> its reward in [0, 1]; None if it cannot tell: the attempt is in no comparison.
        critic: the chat model that compares and edits.
        held_out: tasks of the accept test; 30 % of `tasks` if not given, which are then not learned on.
        settings: Training-Free GRPO's.
        folder: where versions, attempts, and the log are kept: the same call goes on after a crash, at no further cost. None: in
            memory.
        run: name of the run.
        agent_version: text that changes whenever the agent or the reward function does: attempts of another version are not taken
            from the folder.
        workers: conversations at once.
        screen: keeps secrets and the words of tools from the critic, as that of the middlewares; None: nothing.

    Raises:
        UserError: there are too few tasks, an id is there twice, or all attempts of a step failed.
    """
    by_id = {one.id: one for one in (*tasks, *held_out)}
    if len(by_id) < len(tasks) + len(held_out):
        raise UserError("learn_lessons: each task needs an id of its own, also among the held-out ones")
    if not held_out:
        count = round(len(tasks) * HELD_OUT_SHARE)
        if not 1 <= count < len(tasks):
            raise UserError(f"learn_lessons: asked for two tasks or more, or held_out=, got {len(tasks)} and none held out")
        tasks, held_out = tasks[:-count], tasks[-count:]
    settings = replace(settings or TrainingFreeGRPO(), problems=len(tasks), held_out=len(held_out))
    resources = _resources(folder)
    play = _PlayConversation(make_agent, by_id, reward, resources.versions, agent_version, screen or NO_SCREEN)
    graph = build(
        MethodInputs(environment=_TaskWorld()),
        settings,
        problems=[_problem(one) for one in tasks],
        held_out=[_problem(one) for one in held_out],
        resources=resources,
        rollouts=RolloutGraphs(learning=play, name=agent_version),
        critic=CriticModel(critic),
    )
    result = graph.invoke({"run": run}, {"max_concurrency": workers})
    _log_result(result, resources)
    return resources.versions


def _resources(folder: Path | str | None) -> RunResources:
    if folder is None:
        return RunResources()
    place = Path(folder)
    return RunResources(LibraryVersions(place / "library.jsonl"), Cache(place / "cache.sqlite"), Rows(place / "learning.jsonl"))


def _problem(task: AgentTask) -> Task:
    """The task as Training-Free GRPO knows it; its text is what the user says."""
    said = task.messages if isinstance(task.messages, list | tuple) else [task.messages]
    return Task(task.id, "\n".join(str(one.text) for one in convert_to_messages(said)))


def _log_result(result: Any, resources: RunResources) -> None:
    rows = resources.log.values()
    lost, compared = sum(row["lost"] for row in rows), sum(row["compared"] for row in rows)
    failures = [failure for row in rows for failure in row["failures"]]
    if lost:
        LOG.warning(
            "learn_lessons: %d comparisons were lost; the last failure: %s", lost, failures[-1] if failures else "unknown"
        )
    product = resources.versions.at(result["best"])
    if not product.lessons:
        why = result["stopped"] or "no candidate passed the accept test"
        LOG.warning("learn_lessons: no lesson was learned from %d groups that were compared: %s", compared, why)


class _TaskWorld:
    """A stand-in for an environment: its name, and a first observation without text. The score is a reward in [0, 1] already."""

    name, solved = "agent", 1.0

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The text that an agent reads before its task: none."""
        return Observation("")

    def abstract(self, observation: Observation) -> str:
        """The state key: no state is told from another."""
        return ""


@dataclass(frozen=True)
class _PlayConversation(Runnable[Any, Any]):
    """Plays a rollout: one conversation of the agent with the lessons of a version."""

    make_agent: Callable[[Sequence[Any], int], Any]
    tasks: dict[str, AgentTask]
    reward: Callable[[AgentTask, Sequence[Any]], float | None]
    versions: LibraryVersions
    version: str
    screen: Screen

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> dict[str, Any]:
        """The outcome of the conversation, with the channels that `RolloutPlayer` reads."""
        task, number = self.tasks[input["task"].id], input["episode"]
        agent = self.make_agent([TrainingFreeGRPOMiddleware(self.versions.at(input["library"]))], number)
        meter = UsageMetadataCallbackHandler()
        thread = f"{input['run']}/{input['library']}/{number}"
        out = agent.invoke({"messages": task.messages}, {"configurable": {"thread_id": thread}, "callbacks": [meter]})
        reward = self.reward(task, out["messages"])
        if reward is not None and not 0 <= reward <= 1:
            raise UserError(f"learn_lessons: a reward is a number from 0 to 1, got {reward} for {task.id}")
        made = trajectory(out["messages"], reward, task=input["task"], run=thread)
        kept = replace(made, transitions=self.screen.steps(out["messages"], goal_and_last_turn))
        return {
            "score": reward or 0.0,
            "earned": reward,
            "unjudged": "" if reward is not None else "the reward function could not tell",
            "transcript": transcript_text(kept),
            "answer": kept.transitions[-1].action.removeprefix(REPLY) if kept.transitions else "",
            "step": len(made.transitions),
            "tool_calls": sum(not step.action.startswith(REPLY) for step in made.transitions),
            "usage": metered_usage(meter),
        }
