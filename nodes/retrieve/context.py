"""State keys that say how a state was reached: JitRL's hierarchical context (arXiv:2601.18510, appendix), by rule or by a model.

A key has two sections that are compared, and a third that only a model reads:

    history:
      progress: take -> egg
      location: West of House -> North of House -> Forest Path -> Up a Tree
    state:
      Up a Tree ...
    summary:
      The egg is taken; the way down leads back to the house.

`progress` names the steps at which the score rose; `location` is the path of places without detours that earned nothing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable

from ...memory.records import Observation, Task, Transition
from ...memory.returns.progress import made_progress
from ...memory.search.sections import join_sections, split_sections
from ...memory.storage.journal import Journal
from ..act.episode import Environment
from ..ask import Ask, BadReply
from ..prompt import Prompt
from ..read_reply import Unreadable, answer_text
from ..state import HeadChannel, ObservationChannel, TaskChannel
from .attempts import EpisodePrompt, Layout, PromptPart, fit_steps

__all__ = ["HISTORY", "STATE", "SUMMARY", "ContextPart", "TraceHistory", "WorldWithContext", "write_summary"]

HISTORY, STATE, SUMMARY = "history", "state", "summary"
"""The sections of a key."""


class ObservedPath(HeadChannel, ObservationChannel):
    """The present observation, and the steps that led there."""


class ScoredPath(ObservedPath, TaskChannel):
    """The same, with the task and what it has earned so far."""

    score: float


@dataclass(frozen=True)
class WorldWithContext:
    """A world whose state keys are those that a node of this file has put into the observation."""

    environment: Environment

    @property
    def name(self) -> str:
        """The world's own name."""
        return self.environment.name

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The world's own observation, still without a key."""
        return self.environment.observe(task, actions)

    def abstract(self, observation: Observation) -> str:
        """The key of the observation; the world's own where no node has made one."""
        return observation.key or self.environment.abstract(observation)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "environment":  # asked for while a copy is made
            raise AttributeError(name)
        return getattr(self.environment, name)


@dataclass(frozen=True)
class TraceHistory:
    """Write the milestones and the path of the running episode into the state key, by rule."""

    role: ClassVar[str] = "compute"

    environment: Environment
    journal: Journal

    def __call__(self, state: ObservedPath) -> ObservationChannel:
        here = self.environment.abstract(replace(state["observation"], key=""))
        history = history_text(self.journal.history(state["head"]), here)
        return _with_key(state, {HISTORY: history, STATE: here})


def history_text(steps: Sequence[Transition], here: str) -> str:
    """The milestones and the path of an episode, from its steps and the present state (the first line of which is its place)."""
    milestones, path, kept = [], list[str](), 0
    states = [*(split_sections(step.state).get(STATE, step.state) for step in steps), here]
    progress = [False, *made_progress([step.reward for step in steps])]
    for t, (state, made) in enumerate(zip(states, progress, strict=True)):
        place = state.split("\n")[0]
        if place in path[kept:]:
            del path[path.index(place, kept) + 1 :]  # a detour that earned nothing
        else:
            path.append(place)
        if made:
            verb, _, thing = steps[t - 1].action.partition(" ")
            milestones.append(f"{verb} -> {thing}" if thing else verb)
            kept = len(path) - 1
    return f"progress: {', '.join(milestones) or 'none yet'}\nlocation: {' -> '.join(path)}"


def _with_key(state: ObservationChannel, sections: Mapping[str, str]) -> ObservationChannel:
    return {"observation": replace(state["observation"], key=join_sections(sections))}


def write_summary(
    model: Runnable[Any, Any],
    environment: Environment,
    journal: Journal,
    layout: Layout,
    count: Any,
    window: int,
    prompts: Path | None = None,
    name: str = "jitrl/summary",
) -> Ask[ScoredPath, ObservationChannel]:
    """A node that asks a model to sum up the episode so far, with its rewards, and puts that into the state key: a call a step.

    The state is what the model names: nouns of what is here, verbs of what can be done. A reply that stays unreadable costs the
    summary of its step alone: the key is then that of `TraceHistory`.

    Args:
        model: writes the summaries.
        environment: the world.
        journal: holds the steps.
        layout: how steps are written in the prompt, rewards included.
        count: counts the tokens of a text.
        window: tokens that fit the model's context, by `count`; of a longer episode the last steps are shown.
        prompts: a directory whose files override ours.
        name: the prompt's name; one without a place for `score` is not told what the steps earned.
    """
    prompt, by_rule = Prompt.load(name, prompts), TraceHistory(environment, journal)

    def messages(state: ScoredPath) -> list[BaseMessage]:
        task, shown = state["task"], state["observation"].text
        steps = journal.history(state["head"])
        text = fit_steps(steps, layout, task.instruction + shown, count, window)
        score = f"{state['score']:g}" if "score" in prompt.placeholders else ""
        return prompt.messages(instruction=task.instruction, steps=text or "", score=score, observation=shown)

    def read(reply: AIMessage, state: ScoredPath) -> ObservationChannel:
        found = _read_marked(answer_text(reply))
        if missing := [mark for mark in _MARKS if not found.get(mark)]:
            raise Unreadable(f"asked for lines that begin with {', '.join(f'{m}:' for m in _MARKS)}; {missing[0]} is missing")
        history = f"progress: {found['Progress']}\nlocation: {found['Location']}"
        return _with_key(state, {HISTORY: history, STATE: found["State"], SUMMARY: found["Summary"]})

    def trace(bad: BadReply, state: ScoredPath) -> ObservationChannel:
        return by_rule(state)

    again = Prompt.load("ask/again", prompts)
    return Ask(name, model, messages, read, again, on_bad_reply=trace)


_MARKS = ("Summary", "Progress", "Location", "State")
_MARKED = re.compile(rf"^[ \t*_#\[-]*({'|'.join(_MARKS)})[ \t*_\]]*:[ \t*_]*", re.MULTILINE | re.IGNORECASE)


def _read_marked(reply: str) -> dict[str, str]:
    """Mark -> the text after it, up to the next one; the last where a mark stands twice."""
    parts = _MARKED.split(reply)[1:]
    return {mark.capitalize(): " ".join(text.split()) for mark, text in zip(parts[::2], parts[1::2], strict=True)}


@dataclass(frozen=True, kw_only=True)
class ContextPart(PromptPart[ObservationChannel]):
    """How the present state was reached."""

    def text(self, state: ObservationChannel, prompt: EpisodePrompt) -> str:
        """The summary, milestones and path of the state key."""
        key = split_sections(state["observation"].key)
        told = [f"summary: {key[SUMMARY]}"] if key.get(SUMMARY) else []
        return "".join(f"{line}\n" for line in [*told, *key.get(HISTORY, "").split("\n")] if line)
