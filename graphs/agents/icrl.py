"""ICRL in an agent of LangChain: earlier conversations of the same task stand in the prompt, each with its reward.

    agent = create_agent(model, tools, middleware=[learner := ICRLMiddleware("memory", task=kind_of_issue)])

The nodes are those of ICRL's graph (graphs/icrl.py): Compose chooses the attempts within a budget of tokens and the instruction, in the
layout for models that chat. By default these are the few that began most like this one, with long tool results cut. Nothing is
asked beside the agent's own model calls. A conversation is shown as it was, with the values
in it, to other conversations of its scope: where users must not see each other's, the user belongs into the scope.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from langgraph.store.base import BaseStore

from ...memory.records import Observation
from ...nodes.arguments import Count
from ...nodes.ask import estimate_tokens
from ...nodes.prompt import Prompt
from ...nodes.retrieve.attempts import attempts_in_prompt, plain_instructions
from ...nodes.retrieve.chat_layout import MAX_OBSERVATION_TOKENS, ChatLayout
from ..icrl import ICRL
from .attempts import ConversationAttempts
from .consultation import Consultation, Place, model_window
from .given_advice import AdvicePlace
from .learner import LearnerOptions, LearningMiddleware

if TYPE_CHECKING:
    from langchain.agents.middleware import ModelRequest

__all__ = ["ICRLMiddleware"]

SHOWN = 3
"""Conversations that a prompt shows."""
SHOWN_TOKENS = 1_000
"""Tokens of these together."""
SHOWN_RESULT_TOKENS = 60
"""Tokens of what was read in them at a step; a longer text loses its middle."""


class ICRLMiddleware(LearningMiddleware[ConversationAttempts]):
    """Shows earlier rated conversations of the same task with their rewards, within a budget of tokens.

    Args:
        store: any LangGraph store, a folder or a URL; None: the store of the agent's graph.
        settings: ICRL's; then the newest conversations are shown, as many and as whole as these say. Not given: those that began most
            like this one, at most three, in 1,000 tokens together, with long tool results cut. Each shows the reward of the
            whole conversation (`rewards="sparse"`: feedback is about all of it), and the model is asked to exploit.
        k: the number of conversations that are shown at most, those most like this one; None: three, or as `settings` say.
        window: tokens that the model can read at once; None: as its profile says, else 32,768.
        prompts: a directory whose prompt files take the place of those of the same name (`icrl/conversations`, `icrl/chat_exploit`).
        options: those of `LearningMiddleware`. `task` says which conversations are attempts at the same.
    """

    method: ClassVar[str] = "icrl"
    remedy: ClassVar[str] = "few conversations are attempts at the same; give a task that more of them share"
    default_place: ClassVar[AdvicePlace] = "thread"  # what is shown is of the task, which is the thread's

    def __init__(
        self,
        store: BaseStore | str | Path | None = None,
        *,
        settings: ICRL | None = None,
        k: Count | None = None,
        window: Count | None = None,
        prompts: Path | None = None,
        **options: Unpack[LearnerOptions],
    ) -> None:
        super().__init__(store, **options)
        self.settings = settings or ICRL(rewards="sparse", max_memory_tokens=SHOWN_TOKENS)
        self.k = SHOWN if k is None and settings is None else k
        self.window = window
        read = SHOWN_RESULT_TOKENS if settings is None else MAX_OBSERVATION_TOKENS
        self._layout = ChatLayout(self.settings.rewards, notes=True, count_tokens=estimate_tokens, max_observation_tokens=read)
        self._prompt, self._instruct = Prompt.load("icrl/conversations", prompts), plain_instructions("icrl/chat_{}", prompts)

    def make_index(self) -> ConversationAttempts:
        """A buffer of attempts."""
        return ConversationAttempts(by_request=self.k is not None)

    def consult(self, request: ModelRequest[Any], place: Place, memory: ConversationAttempts) -> Consultation:
        """Call the model with the attempts and the instruction."""
        window = self.window or model_window(request.model)
        section, entry = self._compose(place, memory, window)
        return (yield from self.ask_with(request, section, entry))

    def _compose(
        self, place: Place, memory: ConversationAttempts, window: int, hidden: frozenset[str] = frozenset()
    ) -> tuple[str, dict[str, Any]]:
        """The section of the prompt, empty without attempts or where all are hidden, and the record of it."""
        settings, task, only, alike = self.settings, place.task, None, list[str]()
        if self.k is not None:
            alike = [id for id in memory.best_alike(task.id, task.instruction, place.thread) if id not in hidden]
            only = self.share_out(place, alike, str, self.k)
        buffer, number = memory.buffer(task.id, place.thread, hidden, only)
        if not len(buffer):
            return "", {}
        compose = settings.compose(buffer, render=self._layout.attempt, count_tokens=estimate_tokens, window=window)
        state: dict[str, Any] = {"task": task, "run": "", "episode": number, "observation": Observation("")}
        state |= compose(state)  # type: ignore[arg-type]
        recalled = [shown.id for shown in reversed(state["shown"])]
        if beyond := set(recalled) - set(self.share_out(place, recalled, str, among=alike)):
            return self._compose(place, memory, window, hidden | beyond)

        def text(ids: Sequence[str]) -> str:
            part = {**state, "shown": [shown for shown in state["shown"] if shown.id in ids]}
            attempts = "".join(self._layout.attempt(one, shown) for one, shown in attempts_in_prompt(buffer, part))
            return self._prompt.text(attempts=attempts, instruction=self._instruct(part)).rstrip() if attempts else ""

        best_first = recalled if only is None else [id for id in only if id in recalled]
        kept = place.choose(best_first, text)
        count = memory.count(task.id)
        if not (section := text(kept)):
            why = f"none of {count} conversations fits into {settings.max_memory_tokens} tokens"
            return "", {"said": [] if place.room.left_out else [why]}
        tokens = estimate_tokens(section)
        words = (
            f"{len(kept)} of {count} conversations at {task.id!r}, in about {tokens} tokens; asked to {state['mode'] or 'act'}"
        )
        return section, {"recalled": kept, "instruction": state["mode"], "tokens": tokens, "said": [words]}
