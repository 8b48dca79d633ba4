"""ReasoningBank in an agent of LangChain: lessons from similar conversations stand in the prompt.

    agent = create_agent(model, tools, middleware=[learner := ReasoningBankMiddleware("memory")])

After feedback the critic draws at most three lessons from the conversation, in one way if it went well and in another if not. Before
a model call the lessons of the most similar conversations are looked up. The nodes are those of ReasoningBank's graph
(graphs/baselines/reasoning_bank.py): study, consult, and its part of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, cast

from langchain_core.runnables import Runnable
from langgraph.store.base import BaseStore

from ...memory.conversations.messages import last_user_message
from ...memory.conversations.store import Reflection
from ...memory.lessons.by_task import Lessons
from ...memory.records import Lesson, Task, Trajectory
from ...memory.search.similarity import Similarity, TokenSimilarity
from ...nodes.arguments import Share
from ...nodes.ask import Ask, estimate_tokens
from ...nodes.fence import escape_tags
from ...nodes.prompt import Prompt
from ...nodes.retrieve.attempt_sheet import AttemptOutcome, AttemptSheet
from ...nodes.retrieve.chat_layout import ChatLayout
from ...nodes.state import EpisodeInput
from ...nodes.synthesize.reasoning_bank import (
    Consult,
    LessonExtractor,
    bank_source,
    extractor_prompts,
    lesson_line,
    lessons_text,
    study,
)
from ..baselines.reasoning_bank import ReasoningBank
from .agent_identity import DOMAIN
from .consultation import Consultation, Place
from .critic import CriticMiddleware, CriticOptions
from .episodes import ChatWorld
from .rated_acts import RatedActs, names_a_call

if TYPE_CHECKING:
    from langchain.agents.middleware import ModelRequest

__all__ = ["ReasoningBankMiddleware"]

MOST_LESSONS = 200
"""Lessons that are looked up for a model call, of which those are shown that fit; a state that comes often has thousands."""
COMMENTED = f"{DOMAIN}, commented"
"""Domain of the lessons of conversations with words beside their rating. They are looked up by themselves, so that those of bare
ratings, which come far more often, do not crowd them out."""


class WeighedLessons(Lessons):
    """Lessons, and how what was done in the conversations that they were drawn from was rated.

    Args:
        share: the share of one user in the ratings that count, in (0, 1].
        similarity: how the texts of conversations are compared.
    """

    def __init__(self, share: float, similarity: Similarity) -> None:
        super().__init__(similarity=similarity)
        self._acts = RatedActs(share)
        self._order = dict[str, int]()
        """Id of a conversation -> its place among all."""
        self._taught, self._on_calls = set[str](), set[str]()
        """Ids of the conversations that have a lesson, and of the lessons on calls: of words, ratings of the same call say nothing."""

    def add_of(self, trajectory: Trajectory, success: bool | None, lessons: Sequence[Lesson]) -> None:
        """Put the lessons of a conversation into the library, in place of the former ones."""
        self._acts.add(trajectory, success)
        self._order.setdefault(trajectory.id, len(self._order))
        (self._taught.add if lessons[0].text else self._taught.discard)(trajectory.id)
        if trajectory.note:
            lessons = [replace(one, domain=COMMENTED) for one in lessons]
        for one in lessons:
            (self._on_calls.add if names_a_call(trajectory, one.text) else self._on_calls.discard)(one.id)
        self.add(lessons)

    def is_outdated(self, id: str) -> bool:
        """True if a lesson names a call, and newer ratings or lessons of the same calls have overruled it."""
        return id in self._on_calls and self._acts.is_overruled(self.lesson(id).sources[0], self._taught)

    def age(self, source: str) -> int:
        """The number of conversations that came after one."""
        return len(self._order) - 1 - self._order[source]

    def equal_to(self, ids: Sequence[str]) -> list[str]:
        """Ids of further lessons that say the same as some, and hold: what several users have taught is no one's alone."""
        said, known = {self.lesson(id).text for id in ids}, {*ids}
        return [one.id for one in self if one.text in said and one.id not in known and not self.is_outdated(one.id)]


class ReasoningBankMiddleware(CriticMiddleware[WeighedLessons]):
    """Shows lessons that a model drew from similar conversations.

    Conversations are compared by the words of `state_key` at the user's turn, which is the user's first and last message by default.

    Args:
        store: any LangGraph store, a folder or a URL; None: the store of the agent's graph.
        critic: the chat model that draws lessons; the agent's own if not given.
        settings: ReasoningBank's: `k` conversations with comments, and as many with ratings alone (5 by default, the paper's 1 is few
            where feedback is noisy), or items, `max_items`, `max_memory_tokens` (2,000 by default), `success_threshold` (any reward above 0 if not given).
        min_similarity: the least similarity of a conversation whose lessons are shown, in [0, 1].
        similarity: another comparison of conversations than by words, such as by embeddings (`memory.search.vectors.CosineSimilarity`):
            by words, those without one in common are not alike.
        prompts: a directory whose prompt files take the place of those of the same name.
        options: those of `CriticMiddleware`.
    """

    method: ClassVar[str] = "reasoning-bank"
    budgets: ClassVar[str] = "the settings' max_memory_tokens, or max_added_tokens"

    def __init__(
        self,
        store: BaseStore | str | Path | None = None,
        *,
        critic: Runnable[Any, Any] | None = None,
        settings: ReasoningBank | None = None,
        min_similarity: Share = 0.0,
        similarity: Similarity | None = None,
        prompts: Path | None = None,
        **options: Unpack[CriticOptions],
    ) -> None:
        super().__init__(store, critic=critic, **options)
        self.similarity = similarity or TokenSimilarity()
        self.settings = settings or ReasoningBank(k=5, max_memory_tokens=2_000)
        self.min_similarity = min_similarity
        self._extractor = LessonExtractor(
            sheet=AttemptSheet(ChatLayout("sparse", count_tokens=estimate_tokens, names_request=True), estimate_tokens),
            environment=ChatWorld(DOMAIN),  # type: ignore[arg-type]
            prompts=extractor_prompts(prompts),
            max_items=self.settings.max_items,
        )
        self._again, self._prompt = Prompt.load("ask/again", prompts), Prompt.load("reasoning_bank/conversations", prompts)

    def make_content(self) -> WeighedLessons:
        """An empty library."""
        return WeighedLessons(self.max_user_share, self.similarity)

    def question(
        self, trajectory: Trajectory, content: WeighedLessons, critic: Runnable[Any, Any], card: str
    ) -> tuple[Ask[Any, Any], dict[str, Any]]:
        """ReasoningBank's node `study`, and the conversation that it reads."""
        bank = {trajectory.id: self._outcome(trajectory)}
        sheet = replace(self._extractor.sheet, window=self.window_of(critic) * 3 // 4)
        extractor = replace(self._extractor, sheet=sheet, agent=card)
        return study(critic, extractor, bank, self._again), {"reading": trajectory.id}

    def _outcome(self, trajectory: Trajectory) -> AttemptOutcome:
        """How a conversation ended: by its reward, and in the words of the feedback."""
        least, value = self.settings.success_threshold, trajectory.value
        success = None if value is None else value > 0 if least is None else value >= least
        words = " ".join(trajectory.note.split())
        return AttemptOutcome(trajectory, success, words)

    def reflection(self, trajectory: Trajectory, answer: dict[str, Any] | None) -> Reflection:
        """The lessons, under the text by which similar conversations find them."""
        found: Sequence[Lesson] = answer["learned"] if answer else ()
        key = trajectory.transitions[0].state
        return Reflection("", "", "", lessons=tuple(replace(one, instruction=key) for one in found if one.text))

    def add_reflection(self, content: WeighedLessons, trajectory: Trajectory, reflection: Reflection | None) -> None:
        """Put the lessons of a conversation into the library, in place of the former ones."""
        outcome, found = self._outcome(trajectory), reflection.lessons if reflection else ()
        lessons = found or self._extractor.lessons((), outcome, bank_source(trajectory.id))
        content.add_of(trajectory, outcome.success, lessons)

    def advise(self, request: ModelRequest[Any], place: Place, content: WeighedLessons) -> Consultation:
        """Call the model with the lessons."""
        # The same lessons at each call of a turn.
        key = self.state_key(request.messages[: last_user_message(request.messages) + 1])
        by, asked = self.settings.retrieval_unit, Task(place.task.id, key)
        most = 2**31 if self.settings.max_memory_tokens is None else self.settings.max_memory_tokens
        outdated = set[str]()

        def find(k: int) -> list[str]:
            at: EpisodeInput = {"task": asked, "run": place.thread, "episode": place.number}
            limits: Any = {"k": k, "by": by, "min_similarity": self.min_similarity, "limit": MOST_LESSONS}
            both = [Consult(content, cast(Any, ChatWorld(name)), **limits)(at)["lessons"] for name in (COMMENTED, DOMAIN)]
            found = [id for pair in zip_longest(*both) for id in pair if id]  # by turns: each has half of the room
            outdated.update(id for id in found if content.is_outdated(id))
            return [id for id in found if id not in outdated]

        alike = find(self.settings.k)
        if self.user.names:  # as many as without a share
            room = lessons_text(content, alike, most, estimate_tokens)
            fitting = sum(lesson_line(content.lesson(id)) in room for id in alike)
            further = find(self.reach(self.settings.k))
            further += content.equal_to(further)
            alike = self.share_out(place, further, lambda id: content.lesson(id).sources[0], fitting)

        def text(ids: Sequence[str]) -> str:
            lines = lessons_text(content, ids, most, estimate_tokens, content.age)
            return self._prompt.text(lessons=escape_tags(lines.rstrip())) if lines else ""

        chosen = place.choose(alike, text)
        section = text(chosen)
        shown = lessons_text(content, chosen, most, estimate_tokens, content.age)
        entry: dict[str, Any] = {
            "recalled": list(dict.fromkeys(id for one in chosen for id in content.lesson(one).sources)),
            "lessons": chosen,
            "tokens": estimate_tokens(section),
            "said": shown.splitlines()[1:],
        }
        if crowded := len({lesson_line(content.lesson(id)) for id in chosen}) - len(entry["said"]):
            entry["left_out"] = crowded
            entry["said"].append(f"{crowded} more, less alike or older, left out: the settings' max_memory_tokens is {most:,}")
        if outdated:
            entry["said"].append(f"{len(outdated)} left out, since newer ratings or lessons of the same act take their place")
        if not shown and not alike and not outdated:
            entry["nearest"] = max(content.nearest_similarity(key, name) for name in (COMMENTED, DOMAIN))
        return (yield from self.ask_with(request, section, entry))
