"""ICRL in an agent of LangChain: earlier conversations of the same task stand in the prompt, each with its reward.

    agent = create_agent(model, tools, middleware=[learner := ICRLMiddleware("memory", task=kind_of_issue)])

The nodes are those of ICRL's graph (graphs/icrl.py): Compose chooses the attempts within a budget of tokens and the instruction, in the
layout for models that chat. Nothing is asked beside the agent's own model calls. A conversation is shown as it was, with the values
in it, to other conversations of its scope: where users must not see each other's, the user belongs into the scope.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from langgraph.store.base import BaseStore

from ...memory.records import Observation
from ...nodes.ask import estimate_tokens
from ...nodes.prompt import Prompt
from ...nodes.retrieve.attempts import attempts_in_prompt, plain_instructions
from ...nodes.retrieve.chat_layout import ChatLayout
from ..icrl import ICRL
from .attempts import ConversationAttempts
from .consultation import Consultation, Place, model_window
from .given_advice import AdvicePlace
from .learner import LearnerOptions, LearningMiddleware

if TYPE_CHECKING:
    from langchain.agents.middleware import ModelRequest

__all__ = ["ICRLMiddleware"]


class ICRLMiddleware(LearningMiddleware[ConversationAttempts]):
    """Shows earlier rated conversations of the same task with their rewards, within a budget of tokens.

    Args:
        store: any LangGraph store, a folder or a URL; None: the store of the agent's graph.
        settings: ICRL's. The default shows the reward of a whole conversation (`rewards="sparse"`: feedback is about all of it),
            asks to exploit, and gives the attempts 8,192 tokens (`max_memory_tokens`).
        window: tokens that the model can read at once; None: as its profile says, else 32,768.
        prompts: a directory whose prompt files take the place of those of the same name (`icrl/conversations`, `icrl/chat_exploit`).
        options: those of `LearningMiddleware`. `task` says which conversations are attempts at the same.
    """

    method: ClassVar[str] = "icrl"
    default_place: ClassVar[AdvicePlace] = "thread"  # what is shown is of the task, which is the thread's

    def __init__(
        self,
        store: BaseStore | str | Path | None = None,
        *,
        settings: ICRL | None = None,
        window: int | None = None,
        prompts: Path | None = None,
        **options: Unpack[LearnerOptions],
    ) -> None:
        super().__init__(store, **options)
        self.settings = settings or ICRL(rewards="sparse", max_memory_tokens=8_192)
        self.window = window
        self._layout = ChatLayout(self.settings.rewards, notes=True, count_tokens=estimate_tokens)
        self._sizes: dict[str, int] = {}
        self._prompt, self._instruct = Prompt.load("icrl/conversations", prompts), plain_instructions("icrl/chat_{}", prompts)

    def make_index(self) -> ConversationAttempts:
        """A buffer of attempts."""
        return ConversationAttempts()

    def consult(self, request: ModelRequest[Any], place: Place, memory: ConversationAttempts) -> Consultation:
        """Call the model with the attempts and the instruction."""
        window = self.window or model_window(request.model)
        section, entry = self._compose(place, memory, window)
        return (yield from self.ask_with(request, section, entry))

    def _compose(
        self, place: Place, memory: ConversationAttempts, window: int, hidden: frozenset[str] = frozenset()
    ) -> tuple[str, dict[str, Any]]:
        """The section of the prompt, empty without attempts or where all are hidden, and the record of it."""
        settings = self.settings
        buffer, number = memory.buffer(place.task.id, place.thread, hidden)
        if not len(buffer):
            return "", {}
        compose = settings.compose(
            buffer, render=self._layout.attempt, count_tokens=estimate_tokens, window=window, _sizes=self._sizes
        )
        state: dict[str, Any] = {"task": place.task, "run": "", "episode": number, "observation": Observation("")}
        state |= compose(state)  # type: ignore[arg-type]
        recalled = [shown.id for shown in reversed(state["shown"])]
        if beyond := set(recalled) - set(self.share_out(place, recalled, str)):
            return self._compose(place, memory, window, hidden | beyond)
        out = place.trial.left_out(shown.id for shown in state["shown"])
        state["shown"] = [shown for shown in state["shown"] if shown.id not in out]
        attempts = "".join(self._layout.attempt(one, shown) for one, shown in attempts_in_prompt(buffer, state))
        if not attempts:
            return "", {"said": [f"none of {len(buffer)} conversations fits into {settings.max_memory_tokens} tokens"]}
        section = self._prompt.text(attempts=attempts, instruction=self._instruct(state)).rstrip()
        entry = {
            "recalled": [shown.id for shown in state["shown"]],
            "instruction": state["mode"],
            "tokens": estimate_tokens(section),
            "said": [
                f"{len(state['shown'])} of {len(buffer)} conversations at {place.task.id!r}, in about {estimate_tokens(section)} "
                f"tokens; asked to {state['mode'] or 'act'}"
            ],
        }
        return section, entry
