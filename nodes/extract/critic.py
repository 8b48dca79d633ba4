"""The semantic advantage: what comparing the rollouts of a group teaches, in words, and what that would change in the library.

    summarise    a rollout -> what it did, where it went right or wrong
    contrast     the summaries of a group, side by side -> insights, and votes on the lessons that were shown
    propose      insights, library -> edits
    consolidate  the edits of all groups of a step -> the next version (nodes/update/consolidate.py)

Without ground truth (`Critic.truth`) no prompt holds the verifier's reward or verdict, its feedback, or the true answer: what
is said of attempts then is whether their answers agree, or what the model itself thought of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig

from ...memory.errors import UserError
from ...memory.library import Library, LibraryLimits, LibraryVersions, one_line
from ...memory.records import Edit, Rollout, Summary, Task
from ..act.policies import steps_text
from ..ask import Ask, BadReply, State, Unreadable, estimate_tokens, text
from ..prompt import Prompt
from ..retrieve.attempt_sheet import AttemptOutcome, AttemptSheet
from ..retrieve.attempts import ContextError, Layout
from .edits import json_values, read_edits, read_list
from .rule_critic import RuleCritic, RuleProposer, Truth, as_library, comparable_rollouts, random_lessons, shuffle_lessons

__all__ = [
    "AskUnlessKnown",
    "Critic",
    "RuleCritic",
    "as_library",
    "contrast",
    "critic_prompts",
    "cut_middle",
    "discriminate",
    "invent",
    "propose",
    "random_lessons",
    "shuffle_lessons",
    "split_tokens",
    "summarise",
    "trim_transcript",
]

Node = Callable[[Any], Any] | Runnable[Any, Any]
_PROMPT_NAMES = (
    *("summary", "summary_blind", "contrast", "contrast_blind", "contrast_hard", "propose", "consolidate", "cheatsheet"),
    *("invent", "discriminate"),
)


def critic_prompts(overrides: Path | None = None) -> dict[str, Prompt]:
    """What a critic asks, by purpose."""
    asked = {name: Prompt.load(f"training_free_grpo/{name}", overrides) for name in _PROMPT_NAMES}
    return asked | {
        "line": Prompt.load("reasoning_bank/line", overrides),
        "again": Prompt.load("ask/again", overrides),
    }


@dataclass(frozen=True)
class Critic:
    """What those who compare rollouts and edit the library need to know."""

    versions: LibraryVersions
    prompts: Mapping[str, Prompt] = field(default_factory=critic_prompts, repr=False)
    """See `questions`."""
    limits: LibraryLimits = field(default_factory=LibraryLimits)
    max_insights: int = 2
    """Insights, and edits, of a group at most."""
    truth: Truth = "given"
    objective: str = ""
    """What the agent is for and what it should learn, in words; stands in every prompt."""
    reference: Callable[[Task], str] | None = field(default=None, repr=False)
    """The true answer of a problem. Asked with ground truth only."""
    count: Callable[[str], int] = field(default=estimate_tokens, repr=False)
    """Tokens of a text."""
    max_prompt_tokens: int = 24_000
    """Tokens of the longest prompt."""
    line_only: bool = False
    """For a model that writes nothing but a line: it is asked what was `Learned:`, and everything after that works by code."""
    max_line_items: int = 12
    """Items of such a line at most."""
    tasks: Mapping[str, Task] = field(default_factory=dict, repr=False)
    """The problems by their id, for the instructions that lessons are found by."""

    def ask(
        self,
        purpose: str,
        model: Runnable[Any, Any],
        messages: Callable[[State], list[BaseMessage]],
        read: Callable[[AIMessage, State], Mapping[str, Any]],
        on_bad_reply: Callable[[BadReply, State], Mapping[str, Any]],
    ) -> Ask:
        """A question of this method."""
        return Ask(f"training_free_grpo/{purpose}", model, messages, read, self.prompts["again"], on_bad_reply=on_bad_reply)

    def remaining_tokens(self, prompt: Prompt, *inserted: str) -> int:
        """Tokens of the window that remain beside a prompt's own text and what is told in it.

        Raises:
            ContextError: there are none.
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
        """The objective as prompts show it."""
        return f"What the agent is for: {self.objective}\n" if self.objective else ""

    def problem(self, task: Task) -> str:
        """A problem as prompts show it: a long one without its middle."""
        return cut_middle(task.instruction, self.max_prompt_tokens // 4, self.count)

    def library(self, state: State) -> Library:
        """The lessons that the group's rollouts were played with."""
        return self.versions.at(state["library"])

    def visible_library(self, state: State, rollouts: Sequence[Rollout]) -> Library:
        """What the prompts of these rollouts carried of it."""
        carried = {id for rollout in rollouts for id in rollout.shown}
        library = self.library(state)
        return replace(library, lessons=tuple(lesson for lesson in library.lessons if lesson.id in carried))

    def lessons(self, library: Library) -> str:
        """A library as prompts show it."""
        return cut_middle(library.text(), self.max_prompt_tokens // 4, self.count) or "(none)\n"

    def transcript(self, rollout: Rollout) -> str:
        """The whole transcript; without ground truth without what the world paid."""
        steps = rollout.trajectory.transitions if rollout.trajectory is not None else ()
        transcript = rollout.transcript or steps_text(steps) or f"{rollout.answer}\n"
        return transcript if self.truth == "given" else _PAID.sub(r"\1", transcript)

    def answer(self, task: Task) -> str:
        """The true answer as prompts with ground truth show it; empty if there is none to show."""
        known = self.reference(task) if self.reference is not None and self.truth == "given" else ""
        return f"True answer: {cut_middle(known, self.max_prompt_tokens // 8, self.count)}\n" if known else ""

    def label(self, rollout: Rollout, state: State) -> str:
        """How an attempt stands in a comparison: what it was worth, and what it took. Costs are taken off a reward, but do not
        change what others said of it.
        """
        rewards = state["rewards"]
        plain = state.get("plain") or rewards
        match self.truth:
            case "given":
                worth = f"reward {rewards[rollout.number]:.3g}"
            case "majority":
                worth = f"its answer {'agrees' if plain[rollout.number] >= 0.5 else 'does not agree'} with most"
            case _:
                worth = f"an examiner without the answer gave it {plain[rollout.number]:.3g}"
        took = [f"{n} {what}" for n, what in ((rollout.steps, "actions"), (rollout.tool_calls, "tool calls")) if n > 1]
        return ", ".join([worth, *took])

    def rejection_reason(self, insight: str, task: Task) -> str:
        """Why an insight cannot be a lesson: it is too long, or gives this one problem's answer away; empty if it can.

        An answer is recognised if it is long enough not to be a common word: 8 characters, or 3 with a digit among them.
        """
        size, limit = len(insight.split()), self.limits.max_lesson_words
        if size > limit:
            return f"asked for lessons of at most {limit} words, got {size}: {insight!r}"
        known = self.reference(task).strip() if self.reference is not None and self.truth == "given" else ""
        telling = len(known) >= 8 or (len(known) >= 3 and re.search(r"\d", known))
        if telling and re.search(rf"(?<!\w){re.escape(known)}(?!\w)", insight):
            return f"asked for lessons that hold for other problems, too, got one that tells this problem's answer: {insight!r}"
        return ""


_SEAMS = 32
"""Tokens that may come about where texts meet, and of what marks a cut."""
_PAID = re.compile(r"^(> [^\n]*\n(?:  [^\n]*\n)*)(?:= -?\d[-+.\de]*(?:\n|\Z))?(?:total -?\d[^\n]*(?:\n|\Z))?", re.MULTILINE)
"""An action in a transcript, and the lines behind it that say what it and the attempt earned (`nodes.attempts.Layout`)."""


# Making long texts fit


def cut_middle(content: str, tokens: int, count: Callable[[str], int]) -> str:
    """A text of at most so many tokens: its beginning and its end, with a mark in the place of the middle."""
    size = count(content)
    if size <= tokens:
        return content
    keep = len(content) * max(tokens, 0) // size
    while keep > 0:
        short = f"{content[: keep - keep // 2]}\n[... {len(content) - keep} characters left out ...]\n{content[len(content) - keep // 2 :]}"
        if count(short) <= tokens:
            return short
        keep = keep * 9 // 10
    return ""


def trim_transcript(transcript: str, tokens: int, count: Callable[[str], int]) -> str:
    """A transcript of at most so many tokens: first what the world or a tool said at length goes, then the middle of the rest."""
    if count(transcript) <= tokens:
        return transcript
    blocks = _ACTION.split(transcript)  # what was seen and what was done, in turn
    done, seen = blocks[1::2], blocks[0::2]
    if done:
        given = split_tokens([count(block) for block in seen], max(tokens - sum(map(count, done)), 0))
        seen = [cut_middle(block, share, count) for block, share in zip(seen, given, strict=True)]
    return cut_middle("".join(s + d for s, d in zip(seen, [*done, ""], strict=True)), tokens, count)


_ACTION = re.compile(r"^(> [^\n]*\n(?:  [^\n]*\n)*)", re.MULTILINE)
"""What the agent did, in a transcript: `> action`, further lines of it set in."""


def split_tokens(sizes: Sequence[int], room: int) -> list[int]:
    """How many tokens each of several texts may take: the same for all, but what short ones leave over goes to the long ones."""
    given, left = [0] * len(sizes), room
    order = sorted(range(len(sizes)), key=lambda n: sizes[n])
    for place, n in enumerate(order):
        given[n] = min(sizes[n], left // (len(order) - place))
        left -= given[n]
    return given


def _fit_sections(heads: Sequence[str], texts: Sequence[str], room: int, count: Callable[[str], int]) -> str:
    """Texts under their heads, cut so that all of them together take at most `room` tokens."""
    bodies = [f"{body.strip()}\n\n" for body in texts]
    given = split_tokens([count(body) for body in bodies], room - sum(count(head) + _SEAMS // 8 for head in heads))
    return "".join(head + trim_transcript(body, share, count) for head, body, share in zip(heads, bodies, given, strict=True))


# Nodes that may have nothing to ask


@dataclass(frozen=True)
class AskUnlessKnown(Runnable[Any, Any]):
    """A question that is not asked where the answer is clear already."""

    role: ClassVar[str] = "model"

    known_update: Callable[[State], Mapping[str, Any] | None]
    """The channels that change without a question; None: ask."""
    question: Runnable[Any, Any]

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        known = self.known_update(input)
        return self.question.invoke(input, config) if known is None else known

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        known = self.known_update(input)
        return await self.question.ainvoke(input, config) if known is None else known


@dataclass(frozen=True)
class SkipSummaries:
    """In the place of summaries, for a model that only writes a line: it is shown the attempts themselves."""

    role: ClassVar[str] = "compute"

    def __call__(self, state: State) -> dict[str, Any]:
        return {"summaries": []}


# Summaries


def summarise(model: Runnable[Any, Any], critic: Critic) -> Node:
    """Say in words what the rollout `number` of the group did, and where it went right or wrong.

    One that nobody can summarise keeps its place in the group, as its transcript cut to size: a group never shrinks.
    """
    if critic.line_only:
        return SkipSummaries()
    prompt = critic.prompts["summary" if critic.truth == "given" else "summary_blind"]

    def messages(state: State) -> list[BaseMessage]:
        rollout = _current_rollout(state)
        told = {
            "aim": critic.aim,
            "instruction": critic.problem(rollout.task),
            "lessons": critic.lessons(critic.visible_library(state, [rollout])),
        }
        if critic.truth == "given":
            grade = "unknown" if rollout.reward is None else f"{rollout.reward:g}"
            told["outcome"] = f"Grade, from 0 to 1: {grade}\n{critic.answer(rollout.task)}"
        transcript = trim_transcript(critic.transcript(rollout), critic.remaining_tokens(prompt, *told.values()), critic.count)
        return prompt.messages(**told, transcript=transcript)

    def read(reply: AIMessage, state: State) -> Mapping[str, Any]:
        written = text(reply).strip()
        if not written:
            raise Unreadable("asked for a report of the attempt, got an empty reply")
        return {"summaries": [Summary(state["number"], written)]}

    def on_bad_reply(bad: BadReply, state: State) -> Mapping[str, Any]:
        rollout = _current_rollout(state)
        short = trim_transcript(critic.transcript(rollout), critic.max_prompt_tokens // 4, critic.count)
        failure = f"rollout {rollout.number} of {rollout.task.id} has no summary, its transcript stands in: {bad}"
        return {"summaries": [Summary(rollout.number, short, False)], "failures": [failure]}

    return critic.ask("summary", model, messages, read, on_bad_reply)


def _current_rollout(state: State) -> Rollout:
    rollouts: Sequence[Rollout] = state["rollouts"]
    return next(rollout for rollout in rollouts if rollout.number == state["number"])


# The semantic advantage


def contrast(model: Runnable[Any, Any], critic: Critic) -> Node:
    """Compare the rollouts of a group: at most `critic.most` insights, and votes on the lessons that were shown.

    Insights that are too long, or tell the answer, are asked for again; in the end those that will do are kept.
    """
    if critic.line_only:
        return _contrast_by_line(model, critic)

    def prompt(state: State) -> Prompt:
        hard = state["kind"] == "hard" and critic.answer(state["task"])
        return critic.prompts["contrast_blind" if critic.truth != "given" else "contrast_hard" if hard else "contrast"]

    def messages(state: State) -> list[BaseMessage]:
        asked, task = prompt(state), state["task"]
        told: dict[str, str] = {
            "aim": critic.aim,
            "instruction": critic.problem(task),
            "lessons": critic.lessons(critic.visible_library(state, state["rollouts"])),
            "most": str(critic.max_insights),
            "words": str(critic.limits.max_lesson_words),
        }
        if critic.truth == "given":
            told["answer"] = critic.answer(task)
        rollouts = comparable_rollouts(state, critic.truth)
        written = {summary.number: summary.text for summary in state["summaries"]}
        heads = [f"Attempt {r.number + 1} ({critic.label(r, state)}):\n" for r in rollouts]
        bodies = [written.get(r.number) or critic.transcript(r) for r in rollouts]
        attempts = _fit_sections(heads, bodies, critic.remaining_tokens(asked, *told.values()), critic.count)
        return asked.messages(**told, attempts=attempts)

    def read(reply: AIMessage, state: State) -> Mapping[str, Any]:
        found = [one_line(item) for item in read_list(text(reply), "lessons", critic.max_insights)]
        if wrong := [reason for item in found if (reason := critic.rejection_reason(item, state["task"]))]:
            raise Unreadable(wrong[0])
        votes, unknown = _votes(text(reply), critic.visible_library(state, state["rollouts"]))
        failures = [f"contrast of {state['task'].id}: a vote on {id!r}, which was not shown" for id in unknown]
        return {"insights": found, "votes": votes, "failures": failures}

    def on_bad_reply(bad: BadReply, state: State) -> Mapping[str, Any]:
        try:
            found = [one_line(item) for item in read_list(bad.reply, "lessons", critic.max_insights)]
        except Unreadable:
            found = []
        kept = [item for item in found if not critic.rejection_reason(item, state["task"])]
        votes, _ = _votes(bad.reply, critic.visible_library(state, state["rollouts"]))
        failure = f"contrast of {state['task'].id}: {len(kept)} of {len(found)} insights could be kept: {bad}"
        return {"insights": kept, "votes": votes, "failures": [failure]}

    return critic.ask("contrast", model, messages, read, on_bad_reply)


def _votes(reply: str, library: Library) -> tuple[list[tuple[str, int]], list[str]]:
    """What a comparison found of the lessons: (id, +1 or -1), and ids of lessons that there are not. None for what it called both."""
    found: dict[str, set[int]] = {}
    unknown = []
    said = next((v for v in json_values(reply) if isinstance(v, dict) and v.keys() & {"helpful", "harmful"}), {})
    for name, vote in (("helpful", 1), ("harmful", -1)):
        named = said.get(name)
        for given in named if isinstance(named, list) else [named] if named else []:
            id = library.resolve(given)
            if id is None:
                unknown.append(str(given))
            else:
                found.setdefault(id, set()).add(vote)
    return [(id, max(votes)) for id, votes in sorted(found.items()) if len(votes) == 1], unknown


def _contrast_by_line(model: Runnable[Any, Any], critic: Critic) -> Node:
    """The same for a model that only writes a line: it is shown the attempts with what each step earned."""
    prompt = critic.prompts["line"]
    layout = Layout() if critic.truth == "given" else Layout(rewards="sparse")

    def messages(state: State) -> list[BaseMessage]:
        room = critic.remaining_tokens(prompt)
        shown = [rollout for rollout in comparable_rollouts(state, critic.truth) if rollout.trajectory is not None]
        while len(shown) > max(room // _STEPS, 2):  # too many to say anything of each: the best and the worst say most
            ranked = sorted(shown, key=lambda rollout: state["rewards"][rollout.number])
            shown.remove(ranked[len(ranked) // 2])
        attempts = [AttemptOutcome(rollout.trajectory, None) for rollout in shown if rollout.trajectory is not None]
        told = AttemptSheet(layout, critic.count, room)(attempts, outcomes=False) if attempts else ""
        return prompt.messages(instruction=state["task"].instruction, attempts=told)

    def read(reply: AIMessage, state: State) -> Mapping[str, Any]:
        written = " ".join(text(reply).split())
        if not written:
            raise Unreadable("asked for a line, or 'nothing', got an empty reply")
        items = [item.strip(" .") for item in written.split(". ")]
        kept = [] if written.strip(".").lower() == "nothing" else [item for item in dict.fromkeys(items) if item]
        return {"insights": kept[: critic.max_line_items], "votes": []}

    def on_bad_reply(bad: BadReply, state: State) -> Mapping[str, Any]:
        return {"insights": [], "votes": [], "failures": [f"contrast of {state['task'].id}: {bad}"]}

    return critic.ask("contrast", model, messages, read, on_bad_reply)


_STEPS = 80
"""Tokens of an attempt below which a model that writes a line would see no steps of it."""


# Edits


def propose(model: Runnable[Any, Any], critic: Critic) -> Node:
    """Say what the insights would change in the library: add, modify, merge, delete, keep.

    Without insights nothing is asked. If no reply can be read, the insights are to be added, as they are.
    """
    if critic.line_only:
        return RuleProposer(critic.versions)
    prompt = critic.prompts["propose"]

    def known_update(state: State) -> Mapping[str, Any] | None:
        return None if state["insights"] else {"edits": [], "rulings": []}

    def provenance(state: State) -> dict[str, Any]:
        rewards = tuple(reward for reward in state["rewards"] if reward is not None)
        return {"problems": (state["task"].id,), "rewards": rewards, "step": state["step"]}

    def messages(state: State) -> list[BaseMessage]:
        told = {
            "aim": critic.aim,
            "lessons": critic.lessons(critic.library(state)),
            "most": str(max_edits(state)),
            "words": str(critic.limits.max_lesson_words),
        }
        insights = "".join(f"- {insight}\n" for insight in state["insights"])
        return prompt.messages(
            **told, insights=cut_middle(insights, critic.remaining_tokens(prompt, *told.values()), critic.count)
        )

    def max_edits(state: State) -> int:
        return max(critic.max_insights, len(state["insights"]))

    def read(reply: AIMessage, state: State) -> Mapping[str, Any]:
        library = critic.library(state)
        edits, rulings = read_edits(text(reply), library, max_edits(state), critic.limits, **provenance(state))
        return {"edits": edits, "rulings": rulings}

    def on_bad_reply(bad: BadReply, state: State) -> Mapping[str, Any]:
        edits = [Edit("add", (), insight, **provenance(state)) for insight in state["insights"]]
        failure = f"edits of {state['task'].id}: its insights are added as they are: {bad}"
        return {"edits": edits, "rulings": [], "failures": [failure]}

    return AskUnlessKnown(known_update, critic.ask("propose", model, messages, read, on_bad_reply))


# Without ground truth, and without rollouts


def discriminate(model: Runnable[Any, Any], critic: Critic) -> Node:
    """Have the model grade the attempts of the group from 0 to 1, without the answer: `rewards`, by number.

    Rollouts that came to nothing, and all of them if no reply can be read, have none.

    Raises:
        UserError: the model only writes a line.
    """
    _require_writer(critic, "truth=self")
    prompt, blind = critic.prompts["discriminate"], replace(critic, truth="self")

    def attempts(state: State) -> list[Rollout]:
        ended = [rollout for rollout in state["rollouts"] if rollout.transcript or rollout.answer]
        return sorted(ended, key=lambda rollout: rollout.number)

    def known_update(state: State) -> Mapping[str, Any] | None:
        return None if attempts(state) else {"rewards": [None] * len(state["rollouts"])}

    def messages(state: State) -> list[BaseMessage]:
        found = attempts(state)
        told = {"aim": blind.aim, "instruction": blind.problem(state["task"]), "number": str(len(found))}
        heads = [f"Attempt {n}:\n" for n in range(1, len(found) + 1)]
        room = blind.remaining_tokens(prompt, *told.values())
        return prompt.messages(**told, attempts=_fit_sections(heads, [blind.transcript(r) for r in found], room, blind.count))

    def read(reply: AIMessage, state: State) -> Mapping[str, Any]:
        found = attempts(state)
        said = next((v["grades"] for v in json_values(text(reply)) if isinstance(v, dict) and "grades" in v), None)
        if isinstance(said, dict):
            said = [said.get(str(n)) for n in range(1, len(found) + 1)]
        if not isinstance(said, list) or len(said) != len(found) or not all(map(_is_grade, said)):
            raise Unreadable(f'asked for {{"grades": [...]}} with {len(found)} numbers from 0 to 1, got {str(said)[:80]}')
        rewards: list[float | None] = [None] * len(state["rollouts"])
        for rollout, grade in zip(found, said, strict=True):
            rewards[rollout.number] = float(grade)
        return {"rewards": rewards}

    def on_bad_reply(bad: BadReply, state: State) -> Mapping[str, Any]:
        failure = f"the attempts at {state['task'].id} have no grades: {bad}"
        return {"rewards": [None] * len(state["rollouts"]), "failures": [failure]}

    return AskUnlessKnown(known_update, critic.ask("discriminate", model, messages, read, on_bad_reply))


def _is_grade(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def invent(model: Runnable[Any, Any], critic: Critic, count: int) -> Ask:
    """Have lessons written from the objective and some problems alone, in `insights`: without rollouts and without answers.

    Asked with `run` and `tasks`. See `as_library`.

    Raises:
        UserError: the model only writes a line.
        BadReply: no reply could be read.
    """
    _require_writer(critic, "arm=self-generated")
    prompt = critic.prompts["invent"]

    def messages(state: State) -> list[BaseMessage]:
        told = {"aim": critic.aim, "count": str(count), "words": str(critic.limits.max_lesson_words)}
        room, problems = critic.remaining_tokens(prompt, *told.values()), ""
        for task in cast(Sequence[Task], state["tasks"])[:_SAMPLE]:
            problem = f"- {cut_middle(task.instruction, room // _SAMPLE - _SEAMS // 8, critic.count)}\n"
            problems += problem
        return prompt.messages(**told, problems=problems)

    def read(reply: AIMessage, state: State) -> Mapping[str, Any]:
        found = [one_line(item) for item in read_list(text(reply), "lessons", count)]
        kept = [item for item in found if 0 < len(item.split()) <= critic.limits.max_lesson_words]
        if not kept:
            raise Unreadable(
                f"asked for {count} lessons of at most {critic.limits.max_lesson_words} words, got {len(found)}, none of which will do"
            )
        return {"insights": kept}

    return Ask("training_free_grpo/invent", model, messages, read, critic.prompts["again"])


_SAMPLE = 16
"""Problems that self-generated lessons are written from."""


def _require_writer(critic: Critic, what: str) -> None:
    if critic.line_only:
        raise UserError(f"{what} has a model write, and this one only scores actions or writes a line; use --model openai:NAME")
