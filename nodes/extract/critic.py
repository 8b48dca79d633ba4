"""The critic of Training-Free GRPO: it compares the rollouts of a group in words and proposes edits of the library.

    summarise    a rollout -> a report of what it did, and where it went right or wrong
    contrast     the reports of a group, side by side -> insights, and votes on the lessons that were shown
    propose      insights, library -> edits
    extract      the paper's one call in the place of both: the reports of a group, library -> edits
    consolidate  the edits of all groups of a step -> the next version (nodes/update/consolidate.py)

Without ground truth (`Critic.truth`) no prompt holds the verifier's reward or verdict, its feedback, or the true answer. Prompts
then say whether the answers of attempts agree, or what the model itself thought of them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NotRequired

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable
from langchain_core.runnables.utils import Input, Output
from typing_extensions import TypedDict

from ...memory.errors import UserError
from ...memory.lessons.library import Library, LibraryLimits, one_line
from ...memory.lessons.versions import LibraryVersions
from ...memory.records import Edit, Rollout, Ruling, Summary, Task, Usage
from ..act.policies import steps_text
from ..arguments import ArgumentCheck, Count, Range
from ..ask import Ask, BadReply, estimate_tokens
from ..lenient_json import json_values
from ..prompt import Prompt
from ..read_reply import Unreadable, answer_text
from ..reply_schemas import EDITS, TEXTS, reply_schema
from ..retrieve.attempt_sheet import AttemptOutcome, AttemptSheet
from ..retrieve.attempts import ContextError, Layout
from ..state import GroupChannels
from ..text import cut_middle
from .edits import read_edits, read_list
from .leaks import bare_answers, own_name, tells_answer
from .rule_critic import GroupInsights, ProposedEdits, RuleProposer, Truth, comparable_rollouts
from .trim import split_tokens, trim_transcript

__all__ = ["Critic", "LessonSettings", "contrast", "critic_prompts", "extract", "invent", "propose", "summarise"]

# fmt: off
_PROMPT_NAMES = (
    "summary", "summary_blind", "contrast", "contrast_blind", "contrast_single", "propose", "consolidate", "invent",
)
_PAPER_PROMPT_NAMES = ("summary", "summary_blind", "extract", "extract_blind", "optimise")
# fmt: on


def critic_prompts(overrides: Path | None = None, paper: bool = False) -> dict[str, Prompt]:
    """The critic's prompts by purpose; files in the directory `overrides` take the place of those of the same name.

    With `paper`, those that say what the paper's prompts say take the place of ours.
    """
    loaded = {name: Prompt.load(f"training_free_grpo/{name}", overrides) for name in _PROMPT_NAMES}
    if paper:
        loaded |= {name: Prompt.load(f"paper/training_free_grpo/{name}", overrides) for name in _PAPER_PROMPT_NAMES}
    return loaded | {"line": Prompt.load("reasoning_bank/line", overrides), "again": Prompt.load("ask/again", overrides)}


class WrittenSummaries(TypedDict):
    """The report of a rollout."""

    summaries: list[Summary]
    failures: NotRequired[list[str]]


class ProblemsOfKind(TypedDict):
    """The problems that self-generated lessons are written for."""

    run: str
    step: int
    tasks: Sequence[Task]


class InventedLessons(TypedDict):
    """Lessons that were written without rollouts."""

    insights: list[str]
    usage: NotRequired[Usage]


@dataclass(frozen=True)
class LessonSettings(ArgumentCheck, LibraryLimits):
    """Settings of the comparison of a group, and of the library that its edits go into."""

    max_insights: Count = 2
    """Insights and edits of a group at most. Paper: a number that it does not give; reference code: 1 to 3."""
    objective: str = ""
    """The agent's purpose and what it is to learn, in words; part of every prompt of the critic. Reference code: required."""
    max_step_edits: Annotated[int, Range(0)] = 16
    """Changes of the library that a step may make at most: the first of the model's list; by code, those that most groups ask for.
    0: any number. Paper: none."""


@dataclass(frozen=True)
class Critic:
    """The settings and functions of the nodes that compare rollouts and edit the library."""

    versions: LibraryVersions
    prompts: Mapping[str, Prompt] = field(default_factory=critic_prompts, repr=False)
    """See `critic_prompts`."""
    limits: LessonSettings = field(default_factory=LessonSettings)
    paper: bool = False
    """The paper's prompts, and nothing beside them: lessons may tell an answer and have any length; nobody votes."""
    truth: Truth = "given"
    """The source of rewards: the environment, or none (`implicit`)."""
    reference: Callable[[Task], str] | None = field(default=None, repr=False)
    """Gives the true answer of a problem, as prompts show it. Used with ground truth only."""
    bare_answers: Callable[[Task], Sequence[str]] | None = field(default=None, repr=False)
    """Gives the true answer of a problem without its box or tags, which no lesson may tell; None: that of `reference`. Used with
    ground truth only."""
    final_answer: Callable[[str], str] | None = field(default=None, repr=False)
    """The final answer in a reply, for rollouts that are compared without ground truth: no lesson may tell those either."""
    count: Callable[[str], int] = field(default=estimate_tokens, repr=False)
    """Tokens of a text."""
    max_prompt_tokens: int = 24_000
    """Tokens of the longest prompt."""
    line_only: bool = False
    """The model only writes a line, after `Learned:`, and code does the rest."""
    tasks: Mapping[str, Task] = field(default_factory=dict, repr=False)
    """The problems by id. Lessons are found again by the instructions of their problems."""
    author: str = ""
    """Name of the model that writes the lessons; empty: a rule does."""

    def ask(
        self,
        purpose: str,
        model: Runnable[Any, Any],
        messages: Callable[[Input], list[BaseMessage]],
        read: Callable[[AIMessage, Input], Output],
        on_bad_reply: Callable[[BadReply, Input], Output] | None,
        known: Callable[[Input], Output | None] | None = None,
        **form: Any,
    ) -> Ask[Input, Output]:
        """A question of this method; `form` has the JSON schemas of the reply's fields, if it is to be JSON."""
        schema = reply_schema(**form) if form else None
        name, again = self.prompts[purpose].name, self.prompts["again"]
        return Ask(name, model, messages, read, again, on_bad_reply=on_bad_reply, reply_schema=schema, known=known)

    def remaining_tokens(self, prompt: Prompt, *inserted: str) -> int:
        """Tokens that remain in the window beside a prompt's own text and the `inserted` values.

        Raises:
            ContextError: none remain.
        """
        own = sum(self.count(template.template) for _, template in prompt.parts)
        room = self.max_prompt_tokens - own - sum(map(self.count, inserted)) - _SEAMS
        if room <= 0:
            raise ContextError(
                f"{prompt.name}: the question alone takes {self.max_prompt_tokens - room} tokens, and there is room for {self.max_prompt_tokens}; "
                "use a model with a larger window"
            )
        return room

    @property
    def aim(self) -> str:
        """The objective as prompts show it; empty without one."""
        return f"What the agent is for: {self.limits.objective}\n" if self.limits.objective else ""

    def problem(self, task: Task) -> str:
        """A problem's instruction as prompts show it: a long one loses its middle."""
        return cut_middle(task.instruction, self.max_prompt_tokens // 4, self.count)

    def library(self, state: GroupChannels) -> Library:
        """The lessons that the group's rollouts were played with."""
        return self.versions.at(state["library"])

    def visible_library(self, state: GroupChannels, rollouts: Sequence[Rollout]) -> Library:
        """The lessons that the prompts of these rollouts showed."""
        shown = {id for rollout in rollouts for id in rollout.shown}
        library = self.library(state)
        return replace(library, lessons=tuple(lesson for lesson in library.lessons if lesson.id in shown))

    def lessons(self, library: Library, room: int = 0) -> str:
        """A library as prompts show it, in at most `room` tokens; 0: a quarter of a prompt."""
        return cut_middle(library.text(), room or self.max_prompt_tokens // 4, self.count) or "(none)\n"

    def evidence(self, library: Library, rewards: Mapping[str, Sequence[float]]) -> str:
        """A library as the prompts that edit it show it: each lesson with its votes, and how attempts went that were shown it.

        Args:
            library: the lessons.
            rewards: id of a lesson -> sum and number of the rewards of rollouts that were shown it; under an empty id those of all.
        """
        lines = []
        for lesson in library.lessons:
            known = [f"votes: {lesson.helpful} helped, {lesson.harmful} harmed"] if lesson.helpful or lesson.harmful else []
            known += [f"shown in {lesson.shown} attempts"] if lesson.shown else []
            known += [_mean_text(rewards[lesson.id])] if lesson.id in rewards else []
            told = "; ".join(known)
            lines.append(f"- [{lesson.id}] {lesson.text}\n" + (f"  ({told})\n" if told else ""))
        every = f"(all attempts so far: {_mean_text(rewards[''])})\n" if lines and "" in rewards else ""
        return cut_middle("".join(lines) + every, self.max_prompt_tokens // 4, self.count) or "(none)\n"

    def rejected_text(self, rejected: Sequence[str]) -> str:
        """The last candidates that the accept test rejected, as prompts that edit the library show them; empty without one."""
        told = "".join(f"- {one}\n" for one in rejected)
        if not told:
            return ""
        cut = cut_middle(told, self.max_prompt_tokens // 8, self.count)
        return f"Tried already, and rejected after a test on other problems; do not propose the same again:\n{cut}\n"

    def transcript(self, rollout: Rollout) -> str:
        """The whole transcript of a rollout; without ground truth without rewards."""
        steps = rollout.trajectory.transitions if rollout.trajectory is not None else ()
        transcript = rollout.transcript or steps_text(steps) or f"{rollout.answer}\n"
        return transcript if self.truth == "given" else _PAID.sub(r"\1", transcript)

    def answer(self, task: Task) -> str:
        """The true answer as prompts show it; empty without ground truth, or without a known answer."""
        known = self.reference(task) if self.reference is not None and self.truth == "given" else ""
        return f"True answer: {cut_middle(known, self.max_prompt_tokens // 8, self.count)}\n" if known else ""

    def label(self, rollout: Rollout, state: GroupChannels) -> str:
        """The label of an attempt in a comparison: its reward or grade, and its numbers of actions and tool calls. The paper marks
        attempts as correct or wrong, and says no more.
        """
        reward = state["rewards"][rollout.number] or 0.0
        worth = f"reward {reward:.3g}" if self.truth == "given" else ""
        if self.paper:
            return {"reward 1": "correct", "reward 0": "wrong"}.get(worth, worth)
        took = [f"{n} {what}" for n, what in ((rollout.steps, "actions"), (rollout.tool_calls, "tool calls")) if n > 1]
        return ", ".join(filter(None, [worth, *took]))

    def attempts(self, state: GroupChannels, room: int) -> str:
        """The reports of the group's attempts, or the attempts themselves, each under its label, in at most `room` tokens."""
        rollouts = comparable_rollouts(state, self.truth)
        written = {summary.number: summary.text for summary in state["summaries"]}
        labels = [self.label(r, state) for r in rollouts]
        heads = [
            f"Attempt {r.number + 1}{f' ({label})' if label else ''}:\n" for r, label in zip(rollouts, labels, strict=True)
        ]
        return _fit_sections(heads, [written.get(r.number) or self.transcript(r) for r in rollouts], room, self.count)

    @property
    def asked_of_lessons(self) -> str:
        """The words for logs where `rejection_reason` quotes the lesson."""
        return f"asked for lessons of at most {self.limits.max_words} words that hold for other problems, too"

    def rejection_reason(self, insight: str, task: Task, rollouts: Sequence[Rollout] = ()) -> str:
        """The reason why an insight cannot be a lesson: too long, or it tells an answer, or a name that one problem has; empty if it can be one.

        Args:
            insight: its text.
            task: the problem that it was drawn from.
            rollouts: the attempts that it was drawn from. Without ground truth it may tell none of their answers.
        """
        size, limit = len(insight.split()), self.limits.max_words
        if size > limit:
            return f"asked for lessons of at most {limit} words, got {size}: {insight!r}"
        others = [other.instruction for id, other in self.tasks.items() if id != task.id]
        if others and (name := own_name(insight, task.instruction, others)):
            return f"asked for lessons that hold for other problems, too, got one with {name!r}, which only this problem has: {insight!r}"
        if self.truth == "given":
            return self.leak_reason(insight, [task.id], {task.id: task})
        final = self.final_answer or (lambda text: text)
        told = {found for one in rollouts if one.trajectory is None for found in bare_answers([final(one.answer)])}
        if any(tells_answer(insight, answer) for answer in told):
            return (
                f"asked for lessons that hold for other problems, too, got one that tells the answer of an attempt: {insight!r}"
            )
        return ""

    def leak_reason(self, lesson: str, own: Sequence[str], tasks: Mapping[str, Task] | None = None) -> str:
        """The reason why a text cannot be a lesson: it tells the true answer of a problem; empty if it tells none.

        Without ground truth nothing is compared: no label decides anything then. Nor is it in the paper.

        Args:
            lesson: the text.
            own: ids of the problems that it was drawn from.
            tasks: the problems whose answers are looked for, by id; those of the run if not given.
        """
        if self.truth != "given" or self.paper:
            return ""
        for id, task in (self.tasks if tasks is None else tasks).items():
            if any(tells_answer(lesson, answer, id in own) for answer in self._answers_of(task)):
                whose = "this problem's answer" if tasks is not None and id in own else f"the answer of {id}"
                return f"asked for lessons that hold for other problems, too, got one that tells {whose}: {lesson!r}"
        return ""

    def _answers_of(self, task: Task) -> Sequence[str]:
        """The bare true answers of a problem."""
        if self.bare_answers is not None:
            return self.bare_answers(task)
        return bare_answers([self.reference(task)]) if self.reference is not None else ()


def _mean_text(rewards: Sequence[float]) -> str:
    """The mean of rewards that are given as their sum and number, as text."""
    return f"mean reward {rewards[0] / rewards[1]:.2f} of {rewards[1]:.0f}"


_SEAMS = 32
"""Tokens set aside for the places where texts are joined, and for marks of cuts."""
_PAID = re.compile(r"^(> [^\n]*\n(?:  [^\n]*\n)*)(?:= -?\d[-+.\de]*(?:\n|\Z))?(?:total -?\d[^\n]*(?:\n|\Z))?", re.MULTILINE)
"""An action in a transcript, and the lines after it with its reward and the total (`nodes.retrieve.attempts.Layout`)."""


# Making long texts fit


def _fit_sections(heads: Sequence[str], texts: Sequence[str], room: int, count: Callable[[str], int]) -> str:
    """Texts under their heads, cut so that all of them together take at most `room` tokens."""
    bodies = [f"{body.strip()}\n\n" for body in texts]
    given = split_tokens([count(body) for body in bodies], room - sum(count(head) + _SEAMS // 8 for head in heads))
    return "".join(head + trim_transcript(body, share, count) for head, body, share in zip(heads, bodies, given, strict=True))


# Summaries


MAX_LINE_ITEMS = 12
"""Insights that are read from the line of a model that only writes one."""
SHORT_ATTEMPT = 400
"""Words of an attempt up to which it needs no report: a report may have as many."""


def summarise(model: Runnable[Any, Any], critic: Critic) -> Ask[GroupChannels, WrittenSummaries]:
    """The node that writes a report of rollout `number` of the group: what it did, and where it went right or wrong.

    If no reply can be read, the rollout's shortened transcript takes the place of the report, so a group never shrinks. So does the
    transcript of a short attempt; the paper has each attempt summarised.
    """
    prompt = critic.prompts["summary" if critic.truth == "given" else "summary_blind"]

    def messages(state: GroupChannels) -> list[BaseMessage]:
        rollout = _current_rollout(state)
        values = {
            "aim": critic.aim,
            "instruction": critic.problem(rollout.task),
            "lessons": critic.lessons(critic.visible_library(state, [rollout])),
        }
        if critic.truth == "given":
            grade = "unknown" if rollout.reward is None else f"{rollout.reward:g}"
            values["outcome"] = f"Grade, from 0 to 1: {grade}\n{critic.answer(rollout.task)}"
        room = critic.remaining_tokens(prompt, *values.values())
        return prompt.messages(**values, transcript=trim_transcript(critic.transcript(rollout), room, critic.count))

    def read(reply: AIMessage, state: GroupChannels) -> WrittenSummaries:
        return {"summaries": [Summary(state["number"], answer_text(reply).strip())]}

    def on_bad_reply(bad: BadReply, state: GroupChannels) -> WrittenSummaries:
        rollout = _current_rollout(state)
        short = trim_transcript(critic.transcript(rollout), critic.max_prompt_tokens // 4, critic.count)
        failure = f"rollout {rollout.number} of {rollout.task.id} has no summary, its transcript stands in: {bad}"
        return {"summaries": [Summary(rollout.number, short, False)], "failures": [failure]}

    def known_update(state: GroupChannels) -> WrittenSummaries | None:
        rollout = _current_rollout(state)
        transcript = critic.transcript(rollout)
        is_short = not critic.paper and len(transcript.split()) <= SHORT_ATTEMPT
        return {"summaries": [Summary(rollout.number, transcript, False)]} if is_short else None

    return critic.ask("summary", model, messages, read, on_bad_reply, known_update)


def _current_rollout(state: GroupChannels) -> Rollout:
    return next(rollout for rollout in state["rollouts"] if rollout.number == state["number"])


# The semantic advantage


def contrast(model: Runnable[Any, Any], critic: Critic) -> Ask[GroupChannels, GroupInsights]:
    """The node that compares the rollouts of a group: at most `critic.limits.max_insights` insights, and votes on lessons shown.

    Insights that are too long, or contain the answer, are asked for again; after the last try the acceptable ones are kept.
    """
    if critic.line_only:
        return _contrast_by_line(model, critic)

    def prompt(state: GroupChannels) -> Prompt:
        if critic.truth != "given":
            return critic.prompts["contrast_blind"]
        return critic.prompts["contrast_single" if state["kind"] == "single" else "contrast"]

    def messages(state: GroupChannels) -> list[BaseMessage]:
        asked, task = prompt(state), state["task"]
        values: dict[str, str] = {
            "aim": critic.aim,
            "instruction": critic.problem(task),
            "lessons": critic.lessons(critic.visible_library(state, state["rollouts"])),
            "most": str(critic.limits.max_insights),
            "words": str(critic.limits.max_words),
        }
        if critic.truth == "given":
            values["answer"] = critic.answer(task)
        return asked.messages(**values, attempts=critic.attempts(state, critic.remaining_tokens(asked, *values.values())))

    def read(reply: AIMessage, state: GroupChannels) -> GroupInsights:
        found = [one_line(item) for item in read_list(answer_text(reply), "lessons", critic.limits.max_insights)]
        if wrong := [reason for item in found if (reason := critic.rejection_reason(item, state["task"], state["rollouts"]))]:
            raise Unreadable(critic.asked_of_lessons, error=wrong[0])
        votes, unknown = _votes(answer_text(reply), critic.visible_library(state, state["rollouts"]))
        failures = [f"contrast of {state['task'].id}: a vote on {id!r}, which was not shown" for id in unknown]
        return {"insights": found, "votes": votes, "failures": failures}

    def on_bad_reply(bad: BadReply, state: GroupChannels) -> GroupInsights:
        try:
            found = [one_line(item) for item in read_list(bad.reply, "lessons", critic.limits.max_insights)]
        except Unreadable:
            found = []
        kept = [item for item in found if not critic.rejection_reason(item, state["task"], state["rollouts"])]
        votes, _ = _votes(bad.reply, critic.visible_library(state, state["rollouts"]))
        failure = f"contrast of {state['task'].id}: {len(kept)} of {len(found)} insights could be kept: {bad}"
        return {"insights": kept, "votes": votes, "failures": [failure]}

    return critic.ask("contrast", model, messages, read, on_bad_reply, lessons=TEXTS, helpful=TEXTS, harmful=TEXTS)


def _votes(reply: str, library: Library) -> tuple[list[tuple[str, int]], list[str]]:
    """The votes of a comparison as (id, +1 or -1), and ids that name no lesson. A lesson called both gets no vote."""
    found: dict[str, set[int]] = {}
    unknown = []
    stated = next((v for v in json_values(reply) if isinstance(v, dict) and v.keys() & {"helpful", "harmful"}), {})
    for name, vote in (("helpful", 1), ("harmful", -1)):
        named = stated.get(name)
        for given in named if isinstance(named, list) else [named] if named else []:
            id = library.resolve(given)
            if id is None:
                unknown.append(str(given))
            else:
                found.setdefault(id, set()).add(vote)
    return [(id, max(votes)) for id, votes in sorted(found.items()) if len(votes) == 1], unknown


def _contrast_by_line(model: Runnable[Any, Any], critic: Critic) -> Ask[GroupChannels, GroupInsights]:
    """The node that compares, for a model that only writes a line: it is shown the attempts with the reward of each step."""
    prompt = critic.prompts["line"]
    layout = Layout() if critic.truth == "given" else Layout(rewards="none")

    def messages(state: GroupChannels) -> list[BaseMessage]:
        room = critic.remaining_tokens(prompt)
        shown = [rollout for rollout in comparable_rollouts(state, critic.truth) if rollout.trajectory is not None]
        while len(shown) > max(room // _STEPS, 2):  # too many for the prompt: the best and the worst stay
            ranked = sorted(shown, key=lambda rollout: state["rewards"][rollout.number] or 0.0)
            shown.remove(ranked[len(ranked) // 2])
        attempts = [AttemptOutcome(rollout.trajectory, None) for rollout in shown if rollout.trajectory is not None]
        sheet = AttemptSheet(layout, critic.count, room)(attempts, outcomes=False) if attempts else ""
        return prompt.messages(instruction=state["task"].instruction, attempts=sheet)

    def read(reply: AIMessage, state: GroupChannels) -> GroupInsights:
        written = " ".join(answer_text(reply).split())
        items = [item.strip(" .") for item in written.split(". ")]
        kept = [] if written.strip(".").lower() == "nothing" else [item for item in dict.fromkeys(items) if item]
        return {"insights": kept[:MAX_LINE_ITEMS], "votes": []}

    def on_bad_reply(bad: BadReply, state: GroupChannels) -> GroupInsights:
        return {"insights": [], "votes": [], "failures": [f"contrast of {state['task'].id}: {bad}"]}

    return critic.ask("contrast", model, messages, read, on_bad_reply)


_STEPS = 80
"""Tokens that an attempt needs at least, for a prompt to show some of its steps."""


# Edits


def propose(model: Runnable[Any, Any], critic: Critic) -> RuleProposer | Ask[GroupChannels, ProposedEdits]:
    """The node that turns a comparison into edits of the library: add, modify, merge, delete, keep.

    The prompt shows the attempts, what was learned from them, and the library with the evidence on each lesson. A lesson that the
    comparison called harmful has to be ruled on, also where nothing new was learned. Nothing is asked if there is neither an
    insight nor such a lesson, nor of an empty library, to which every insight is an addition. If no reply can be read, the
    insights are added as they are.
    """
    if critic.line_only:
        return RuleProposer(critic.versions)
    prompt = critic.prompts["propose"]

    def known_update(state: GroupChannels) -> ProposedEdits | None:
        if not critic.library(state).lessons:
            return {"edits": additions(state), "rulings": []}
        return None if state["insights"] or harmful(state) else {"edits": [], "rulings": []}

    def harmful(state: GroupChannels) -> list[str]:
        return [id for id, vote in state["votes"] if vote < 0]

    def additions(state: GroupChannels) -> list[Edit]:
        return [Edit("add", (), insight, **_provenance(critic, state)) for insight in state["insights"]]

    def messages(state: GroupChannels) -> list[BaseMessage]:
        library = critic.library(state)
        votes = [f"{id} {'helped' if vote > 0 else 'harmed'}" for id, vote in state["votes"]]
        named = ", ".join(harmful(state))
        values = {
            "aim": critic.aim,
            "instruction": critic.problem(state["task"]),
            "answer": critic.answer(state["task"]),
            "lessons": critic.evidence(library, state.get("lesson_rewards") or {}),
            "rejected": critic.rejected_text(state.get("rejected", ())),
            "votes": f"In these attempts: {', '.join(votes)}.\n" if votes else "",
            "ruling": f"Say of each of these what becomes of it, and why: {named}.\n" if named else "",
            "insights": "".join(f"- {insight}\n" for insight in state["insights"]) or "(nothing new)\n",
            "most": str(max_edits(state)),
            "words": str(critic.limits.max_words),
        }
        return prompt.messages(**values, attempts=critic.attempts(state, critic.remaining_tokens(prompt, *values.values())))

    def max_edits(state: GroupChannels) -> int:
        return max(critic.limits.max_insights, len(state["insights"]), len(harmful(state)))

    def found_edits(reply: str, state: GroupChannels) -> tuple[list[Edit], list[Ruling], list[Ruling], list[str]]:
        """The edits of a reply, rulings of items that are no edits, rulings of edits that tell an answer, and harmful lessons that
        the reply does not rule on."""
        edits, rulings = read_edits(reply, critic.library(state), max_edits(state), critic.limits, **_provenance(critic, state))
        reasons = {id(e): critic.rejection_reason(e.text, state["task"], state["rollouts"]) for e in edits if e.text}
        leaks = [Ruling(edit, False, reasons[id(edit)]) for edit in edits if reasons.get(id(edit))]
        ruled = {lesson for edit in edits for lesson in edit.lessons}
        unruled = [lesson for lesson in harmful(state) if lesson not in ruled]
        return [edit for edit in edits if not reasons.get(id(edit))], rulings, leaks, unruled

    def read(reply: AIMessage, state: GroupChannels) -> ProposedEdits:
        edits, rulings, leaks, unruled = found_edits(answer_text(reply), state)
        if leaks:
            raise Unreadable(critic.asked_of_lessons, error=leaks[0].reason)
        if unruled:
            raise Unreadable(f"asked what becomes of {', '.join(unruled)} (modify, merge, delete, or keep), got no edit of it")
        return {"edits": edits, "rulings": rulings}

    def on_bad_reply(bad: BadReply, state: GroupChannels) -> ProposedEdits:
        try:
            edits, rulings, leaks, _ = found_edits(bad.reply, state)
            failure = f"edits of {state['task'].id}: {len(edits)} of {len(edits) + len(leaks)} could be kept: {bad}"
            return {"edits": edits, "rulings": [*rulings, *leaks], "failures": [failure]}
        except Unreadable:
            failure = f"edits of {state['task'].id}: its insights are added as they are: {bad}"
            return {"edits": additions(state), "rulings": [], "failures": [failure]}

    return critic.ask("propose", model, messages, read, on_bad_reply, known_update, edits=EDITS)


def _provenance(critic: Critic, state: GroupChannels) -> dict[str, Any]:
    """The fields of an edit that say where it comes from."""
    known = state["rewards"] if critic.truth != "implicit" else ()
    rewards = tuple(reward for reward in known if reward is not None)
    return {"problems": (state["task"].id,), "rewards": rewards, "step": state["step"]}


def extract(model: Runnable[Any, Any], critic: Critic) -> Ask[GroupChannels, ProposedEdits]:
    """The node of the paper (Fig. 8): one call compares the group and proposes edits, `critic.limits.max_insights` at most.

    A reply that cannot be read gives no edit.
    """
    prompt = critic.prompts["extract" if critic.truth == "given" else "extract_blind"]

    def messages(state: GroupChannels) -> list[BaseMessage]:
        values = {
            "instruction": critic.problem(state["task"]),
            "lessons": critic.lessons(critic.library(state)),
            "answer": critic.answer(state["task"]),
            "most": str(critic.limits.max_insights),
        }
        return prompt.messages(**values, attempts=critic.attempts(state, critic.remaining_tokens(prompt, *values.values())))

    def read(reply: AIMessage, state: GroupChannels) -> ProposedEdits:
        most, provenance = critic.limits.max_insights, _provenance(critic, state)
        edits, rulings = read_edits(answer_text(reply), critic.library(state), most, critic.limits, **provenance)
        return {"edits": edits, "rulings": rulings}

    def on_bad_reply(bad: BadReply, state: GroupChannels) -> ProposedEdits:
        return {"edits": [], "rulings": [], "failures": [f"contrast of {state['task'].id}: {bad}"]}

    return critic.ask("extract", model, messages, read, on_bad_reply)


# Without rollouts


def invent(model: Runnable[Any, Any], critic: Critic, count: int) -> Ask[ProblemsOfKind, InventedLessons]:
    """The node that has `count` lessons written from the objective and some problems, without rollouts and without answers.

    `as_library` makes a library of them.

    Raises:
        UserError: the model only writes a line.
        BadReply: no reply could be read.
    """
    if critic.line_only:
        raise UserError("arm=self-generated has a model write, and this one only scores actions; use --model openai:NAME")
    prompt = critic.prompts["invent"]

    def messages(state: ProblemsOfKind) -> list[BaseMessage]:
        values = {"aim": critic.aim, "count": str(count), "words": str(critic.limits.max_words)}
        room, problems = critic.remaining_tokens(prompt, *values.values()), ""
        for task in state["tasks"][:_SAMPLE]:
            problem = f"- {cut_middle(task.instruction, room // _SAMPLE - _SEAMS // 8, critic.count)}\n"
            problems += problem
        return prompt.messages(**values, problems=problems)

    def read(reply: AIMessage, state: ProblemsOfKind) -> InventedLessons:
        found = [one_line(item) for item in read_list(answer_text(reply), "lessons", count)]
        known = {task.id: task for task in state["tasks"]}
        short = [item for item in found if 0 < len(item.split()) <= critic.limits.max_words]
        kept = [item for item in short if not critic.leak_reason(item, list(known), known)]
        if not kept:
            raise Unreadable(
                f"asked for {count} lessons of at most {critic.limits.max_words} words, got {len(found)}, none of which can be used"
            )
        return {"insights": kept}

    return critic.ask("invent", model, messages, read, None, lessons=TEXTS)


_SAMPLE = 16
"""Number of problems that self-generated lessons are written from."""
