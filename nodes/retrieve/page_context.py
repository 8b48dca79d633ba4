"""State keys of web pages: what was done on the page and still shows there, as a model sees it (JitRL, arXiv:2601.18510, G.1.3)."""

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypedDict

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig

from ...memory.records import NO_ACTION, Observation
from ...memory.search.sections import join_sections, split_sections
from ...memory.storage.journal import Journal
from ..act.episode import Environment
from ..ask import Ask
from ..prompt import Prompt
from ..read_reply import Unreadable, answer_text
from ..state import HeadChannel, ObservationChannel, TaskChannel

__all__ = ["PageContext", "ask_effects"]

PROMPT = "paper/jitrl_web/context"
_EFFECTIVE = re.compile(r"^[ \t*_#-]*effective[ \t*_]*:[ \t*_]*(.+)$", re.MULTILINE | re.IGNORECASE)


class ShownPage(HeadChannel, TaskChannel, ObservationChannel):
    """The present page, its task, and the steps that led there."""


class KeyedPage(TypedDict, total=False):
    """The page with its state key; nothing where the world's own key holds."""

    observation: Observation


@dataclass(frozen=True)
class PageContext(Runnable[ShownPage, KeyedPage]):
    """Write into the state key which actions on the page still show there. The model is asked only where something was done on it."""

    role: ClassVar[str] = "model"

    ask: Ask[ShownPage, KeyedPage]
    environment: Environment

    @property
    def asks(self) -> str:
        """Name of the prompt, for pictures."""
        return self.ask.asks

    def invoke(self, input: ShownPage, config: RunnableConfig | None = None, **kwargs: Any) -> KeyedPage:
        return self.ask.invoke(input, config) if _read_context(self.environment, input)[1] else {}

    async def ainvoke(self, input: ShownPage, config: RunnableConfig | None = None, **kwargs: Any) -> KeyedPage:
        return await self.ask.ainvoke(input, config) if _read_context(self.environment, input)[1] else {}


def _read_context(environment: Environment, state: ObservationChannel) -> tuple[str, str]:
    """The actions on the page before and on the present one, as the world's own state key has them."""
    key = environment.abstract(replace(state["observation"], key=""))
    before, _, done = split_sections(key)["context"].partition(" | ")
    return before, done


def ask_effects(
    model: Runnable[Any, Any], environment: Any, journal: Journal, prompts: Path | None = None, *, sees: bool
) -> PageContext:
    """A node that asks a model which actions still show on the page. After a reply that stays unreadable the world's own key holds.

    Args:
        model: the model.
        environment: a world of web pages.
        journal: holds the steps.
        prompts: a directory whose files override ours.
        sees: True: it is shown a screenshot; False: the page's text.
    """
    prompt = Prompt.load(PROMPT, prompts)

    def messages(state: ShownPage) -> list[BaseMessage]:
        done, shown = _read_context(environment, state)[1], "" if sees else state["observation"].text + "\n"
        *others, last = prompt.messages(
            instruction=state["task"].instruction, done=done.replace(" -> ", "\n"), observation=shown
        )
        if not sees:
            return [*others, last]
        actions = [step.action for step in journal.history(state["head"]) if step.action != NO_ACTION]
        png = b64encode(environment.screenshot(state["task"], actions)).decode()
        image = {"type": "image", "base64": png, "mime_type": "image/png"}
        return [*others, HumanMessage([{"type": "text", "text": str(last.text)}, image])]

    def read(reply: AIMessage, state: ShownPage) -> KeyedPage:
        found = _EFFECTIVE.findall(answer_text(reply))
        if not found:
            raise Unreadable("asked for a line that begins with 'Effective:', and there is none")
        sections: Mapping[str, str] = split_sections(environment.abstract(replace(state["observation"], key="")))
        before, effective = _read_context(environment, state)[0], " ".join(found[-1].split())
        shown = "" if effective.strip('."').lower() == "none" else effective
        return {"observation": replace(state["observation"], key=join_sections({**sections, "context": f"{before} | {shown}"}))}

    return PageContext(
        Ask(PROMPT, model, messages, read, Prompt.load("ask/again", prompts), on_bad_reply=lambda bad, state: {}), environment
    )
