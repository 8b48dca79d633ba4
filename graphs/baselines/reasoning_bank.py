"""ReasoningBank (arXiv:2509.25140): lessons drawn from successes and failures, kept in a library, found by the task's text.

After an attempt the model writes down at most three items of advice. It is asked in one way if the attempt succeeded and in
another if it failed. The items join the library; nothing in it is merged or deleted. Before an attempt, all that was learned on the
most similar task is looked up once and stands in every prompt. There are two sources, alone or together: the run's own attempts
(`online`), and a bank of trajectories that is read once before the first attempt (`bank`).

    pool       find a trajectory of the bank that was not read yet
    study      trajectory -> items; one call each, never twice
    add        the items join the library
    consult    look up the lessons learned on the k most similar tasks
    judge      r_t of every step
    verdict    success or failure: by the return, or a model's opinion with its reason
    extract    the attempt -> items
    keep       the items join the library
    remember   the attempt joins the memory
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ...memory.attempts.buffer import Buffer
from ...memory.errors import UserError
from ...memory.lessons.by_task import Lessons
from ...memory.records import Lesson
from ...memory.storage.record_store import RecordStore
from ...memory.storage.trajectory_store import TrajectoryStore
from ...nodes.arguments import Count
from ...nodes.retrieve.attempt_sheet import AttemptOutcome, AttemptSheet
from ...nodes.retrieve.attempts import Layout, Push
from ...nodes.state import AttemptState
from ...nodes.synthesize.reasoning_bank import (
    AddLessons,
    Consult,
    FindUnread,
    LessonChannels,
    LessonExtractor,
    LessonsPart,
    RouteExtraction,
    VerdictByReturn,
    extract,
    extractor_prompts,
    route_unread,
    study,
    verdict,
)
from ..wiring.banks import bank_success_threshold, bank_trajectories, require_success_threshold
from ..wiring.episode import MemorySettings, episode_graph, episode_nodes
from ..wiring.flow import Graph, Node, Router
from ..wiring.inputs import NOT_GIVEN, SHARED, THINK_THEN_ACT, MethodInputs, given_settings

__all__ = ["FLOW", "ReasoningBank", "build"]

FLOW = """
flowchart LR
  START --> begin --> pool
  pool -->|unread| study --> add --> pool
  pool -->|all read| consult --> propose --> choose --> act
  act -->|next step| propose
  act -->|over| judge --> verdict
  verdict -->|learn| extract --> keep --> remember --> END
  verdict -->|go on| remember
"""


class ReasoningBankState(AttemptState, LessonChannels):
    """The channels of a ReasoningBank episode."""


@dataclass(frozen=True)
class ReasoningBank(MemorySettings):
    """Hyper-parameters. `paper` is the published stream, `pool` AdaMEM's comparison."""

    k: Count = field(default=1, metadata=SHARED)
    """k: the tasks, or lessons, that are looked up. Paper: 1; AdaMEM's comparison: 1 to 16."""
    retrieval_unit: Literal["tasks", "items"] = "tasks"
    """The unit of k: `tasks`, with all that was learned on them (paper), or `items` (AdaMEM's comparison)."""
    max_items: Count = 3
    """Items from one attempt at most. Paper: 3."""
    verdict: Literal["return", "model"] = "return"
    """The source of success or failure: the return, or a model that sees no reward, in a call of its own (paper)."""
    success_threshold: float | None = field(default=None, metadata=SHARED)
    """The return from which an attempt counts as a success; the environment's own threshold if not given. Under a judge, of this
    run's attempts alone: a bank's count by the environment's."""
    bank: str = field(default="", metadata=SHARED)
    """A file of trajectories, a run folder, `react@40` or `gold@40`, as AdaMEM's; read before the first attempt, with one call each. Every seed reads it for itself. Those calls are counted apart (`studied`), in no attempt's tokens."""
    outcomes: Literal["success", "all"] = "all"
    """The trajectories of the bank that are read. AdaMEM's comparison: success."""
    online: bool = field(default=True, metadata=SHARED)
    """True if the run's own attempts are learned from."""
    cross_task: bool = field(default=False, metadata=SHARED)
    """True if the runs of all seeds share one library; they are then played in turn."""

    @classmethod
    def paper(cls) -> ReasoningBank:
        """The published stream: a model judges success, all lessons of the most similar task are shown."""
        return cls(verdict="model")

    @classmethod
    def pool(cls) -> ReasoningBank:
        """AdaMEM's comparison: lessons from a bank's successes, the most fitting one shown, nothing learned on the way."""
        return cls(retrieval_unit="items", outcomes="success", online=False)

    def read_bank(self, inputs: MethodInputs) -> dict[str, AttemptOutcome]:
        """The trajectories of the bank from this environment with their outcome, by id; empty without a bank.

        Raises:
            UserError: the bank holds none of this environment and outcome.
        """
        if not self.bank:
            return {}
        least = bank_success_threshold(inputs, self.success_threshold)
        found = {}
        for trajectory in bank_trajectories(inputs, self.bank, "reasoning-bank"):
            ended = None if least is None or trajectory.value is None else trajectory.value >= least
            if trajectory.domain == inputs.environment.name and (ended or self.outcomes == "all"):
                found[trajectory.id] = AttemptOutcome(trajectory, ended)
        if not found:
            wanted = "success" if self.outcomes == "success" else "trajectory"
            raise UserError(f"reasoning-bank: {self.bank} holds no {wanted} of {inputs.environment.name}")
        return found


def open_lessons(records: TrajectoryStore | None) -> Lessons:
    """Lessons kept beside the trajectories in the same store; in this process where there is no such store."""
    if not isinstance(records, RecordStore):
        return Lessons()
    return Lessons(RecordStore(records.store, ("lessons", *records.namespace[1:]), Lesson))


def build(inputs: MethodInputs = NOT_GIVEN, settings: ReasoningBank | None = None, **compile: Any) -> Graph:
    """The graph of one episode; arguments as in `graphs.icrl.build`."""
    settings = given_settings(inputs, settings, ReasoningBank)
    model = inputs.require_chat_model("reasoning-bank")
    _check(inputs, settings)
    lessons = open_lessons(inputs.records)
    buffer = Buffer(inputs.records)
    bank = settings.read_bank(inputs)
    layout = inputs.layout(clip=settings.max_state_chars)
    again = inputs.prompting.load("ask/again")
    extractor = _extractor(inputs, settings, layout)
    view = inputs.episode_prompt(
        LessonsPart(
            library=lessons,
            max_lesson_tokens=inputs.prompting.max_prompt_tokens // 2
            if settings.max_memory_tokens is None
            else settings.max_memory_tokens,
            brief=inputs.prompting.load("reasoning_bank/brief").text(),
        ),
        layout=layout,
    )
    if settings.verdict == "model" and settings.online:
        judge_success: Node = verdict(
            model, inputs.environment, inputs.journal, sheet=extractor.sheet, prompts=inputs.prompting.prompts
        )
    else:
        judge_success = VerdictByReturn(inputs.success_threshold(settings.success_threshold))
    nodes: dict[str, Node] = {
        **episode_nodes(inputs, settings.temperature, {"reading": "", "lessons": [], "used": [], "learned": []}),
        "pool": FindUnread(lessons, bank),
        "study": study(model, extractor, bank, again),
        "add": AddLessons(lessons),
        "consult": Consult(lessons, inputs.environment, k=settings.k, by=settings.retrieval_unit),
        "propose": inputs.acting_policy(view, THINK_THEN_ACT),
        "judge": inputs.judge_node(),
        "verdict": judge_success,
        "extract": extract(model, extractor, inputs.journal, again),
        "keep": AddLessons(lessons),
        "remember": Push(buffer, inputs.environment, inputs.journal),
    }
    routers: dict[str, Router] = {"pool": route_unread, "verdict": RouteExtraction(settings.online)}
    return episode_graph("reasoning-bank", FLOW, nodes, routers, state=ReasoningBankState, **compile)


def _extractor(inputs: MethodInputs, settings: ReasoningBank, layout: Layout) -> LessonExtractor:
    """The writer of items, with room left in its prompts for the longest question around the attempts."""
    prompts = extractor_prompts(inputs.prompting.prompts)
    longest = max(
        sum(inputs.prompting.count_tokens(template.template) for _, template in prompt.parts) for prompt in prompts.values()
    )
    return LessonExtractor(
        sheet=AttemptSheet(layout, inputs.prompting.count_tokens, inputs.prompting.max_prompt_tokens - longest),
        environment=inputs.environment,
        prompts=prompts,
        max_items=settings.max_items,
        line_only=inputs.make_writing_policy is None,
    )


def _check(inputs: MethodInputs, settings: ReasoningBank) -> None:
    """Raise UserError for settings that cannot work with these inputs."""
    drawn = inputs.environment is None  # a drawing has no environment, and no bank
    if not settings.online and not settings.bank and not drawn:
        raise UserError("reasoning-bank: online=False learns nothing but from a bank; set bank to a file of trajectories")
    if settings.verdict == "model" and inputs.make_writing_policy is None:
        raise UserError(
            "reasoning-bank: verdict=model has a model write its verdict, and this one only scores actions; use verdict=return"
        )
    if settings.online and settings.verdict == "return":
        other = "have a model say it (verdict=model)"
        require_success_threshold(inputs, "reasoning-bank", settings.success_threshold, other=other)
