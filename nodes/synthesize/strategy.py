"""Strategies: items of advice for the next actions, written during the episode from precedents (AdaMEM, arXiv 2606.05684).

`synthesize` asks the model for one. `RecallStrategy` writes one by rule, for work without a language model and as an ablation;
tables of results name it.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NotRequired

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable

from ...memory.conversations.messages import REPLY
from ...memory.records import Precedent, Strategy, Trajectory, Transition, Usage
from ...memory.storage.journal import Journal
from ..act.episode import Environment
from ..ask import Ask, BadReply, text
from ..prompt import Prompt
from ..read_reply import Unreadable, answer_text
from ..retrieve.attempts import ContextError, EpisodePrompt, Layout, PromptPart, fit_steps
from ..retrieve.recollect import Excerpts, PrecedentMemory, without_zero_rewards
from ..retrieve.triggers import REASONS, Trigger
from ..state import (
    HeadChannel,
    ObservationChannel,
    PrecedentsChannel,
    ReasonsChannel,
    StrategyChannel,
    StrategyChannels,
    TaskChannel,
)
from ..text import shorten

__all__ = [
    "RecallStrategy",
    "StrategyInputs",
    "StrategyPart",
    "StrategyWriter",
    "advice_items",
    "are_declined",
    "route_guidance",
    "route_precedents",
    "route_precedents_or_draft",
    "strategy_text",
    "synthesize",
]

MOST_WORDS = 60
"""Words of a strategy at most, as its prompts ask for; items beyond it are left out."""
MAX_CUE_CHARACTERS = 24
"""Greatest length of a state that is named in an item of advice, in characters."""


class StrategyInputs(TaskChannel, ObservationChannel, HeadChannel, PrecedentsChannel):
    """A situation, the steps that led there, its precedents, and in low mode the draft that memory is asked about."""

    step: int
    strategy: NotRequired[Strategy | None]
    tentative: NotRequired[str | None]
    reasons: NotRequired[list[Trigger]]
    declined: NotRequired[list[str]]
    agent: NotRequired[str]
    """The tools and instructions of an agent with tools, as the strategist reads them."""


class NewStrategy(StrategyChannels):
    """A strategy just written, and the count of it."""

    usage: Usage


@dataclass(frozen=True)
class StrategyWriter:
    """The prompt for a strategy, and the channels that a new one changes."""

    memory: PrecedentMemory
    environment: Environment
    journal: Journal
    excerpts: Excerpts
    layout: Layout
    """Layout of the running episode."""
    count: Callable[[str], int]
    """Tokens of a text."""
    window: int
    """Tokens of the longest prompt and its reply together, without the chat template."""
    prompt: Prompt
    """May have $instruction, $experiences, $steps, $observation, $now, $admissible, $doubt and $agent (`adamem/strategy`,
    `adamem/chat_strategy`, `adamem/line`, `adamem/ungrounded`)."""
    needs_marker: bool = True
    """True: the advice has to stand after `Strategy:`; False for a model that continues a prompt which ends with that word."""
    most_words: int | None = None
    """Words of a strategy at most; None: as many as fit `max_strategy_tokens`."""
    recent: int | None = None
    """Greatest number of steps of the episode; None: as many as fit."""
    max_history_tokens: int = 2**31
    """Tokens of the steps of the episode at most, as far as the present observation leaves room."""
    doubt: Prompt | None = None
    """The text for $doubt, with $strategy, $draft and $reasons (`adamem/doubt`), where memory is asked because of a draft."""
    admissible: Prompt | None = None
    """The text for $admissible, with $actions (`act/admissible`, `act/suggested`), where actions are listed."""

    @property
    def max_strategy_tokens(self) -> int:
        """Greatest length of a strategy in tokens: an eighth of the window, at least 16, to leave room in later prompts."""
        return max(self.window // 8, 16)

    def messages(self, state: StrategyInputs) -> list[BaseMessage]:
        """The messages: the precedents, the episode so far, the present state.

        Raises:
            ContextError: task, precedents and observation alone do not fit the window.
        """
        values = {
            "instruction": state["task"].instruction,
            "experiences": self.excerpts(state["precedents"], state["task"]),
            "observation": state["observation"].text,
            "now": self._place_in_episode(state),
            "admissible": self._admissible_actions(state),
            "doubt": self._doubt(state),
            "agent": state.get("agent", ""),
        }
        around = "".join(template.template for _, template in self.prompt.parts)
        used = {name: value for name, value in values.items() if name in self.prompt.placeholders}
        frame = "\n".join([around, *used.values()])
        room = min(self.window - self.max_strategy_tokens, self.count(frame) + self.max_history_tokens)
        past: Sequence[Transition] = self.journal.history(state["head"], last=self.recent) if self.recent != 0 else ()
        if "now" in used:  # such a prompt is for models that chat, and says that a step without a reward earned nothing
            past = without_zero_rewards(past)
        first = state.get("step", len(past)) - len(past) + 1
        steps = fit_steps(past, self.layout, frame, self.count, room, first)
        if steps is None:
            raise ContextError(
                f"task {state['task'].id}, its precedents and the present state take {self.count(frame)} tokens, and there is "
                f"room for {room}; use a model with a larger window"
            )
        if "now" in used:
            steps = steps or "none\n"
        return self.prompt.messages(steps=steps, **used)

    def _place_in_episode(self, state: StrategyInputs) -> str:
        """The number of the step to come, and how many there may be at most."""
        horizon = getattr(self.environment, "horizon", None)
        return f"step {state.get('step', 0) + 1}" + (f" of at most {horizon}" if horizon else "")

    def _admissible_actions(self, state: StrategyInputs) -> str:
        actions = state["observation"].actions
        if self.admissible is None or not actions:
            return ""
        return text(self.admissible.messages(actions="\n".join(f"- {action}" for action in actions))[0])

    def _doubt(self, state: StrategyInputs) -> str:
        """The strategy in force, the draft, and why memory is asked; empty where no draft was made."""
        if self.doubt is None or not state.get("reasons"):
            return ""
        strategy = state.get("strategy")
        told = f"{strategy.text} (written at step {strategy.step + 1})" if strategy else "none"
        reasons = "; ".join(REASONS[reason] for reason in state["reasons"])
        draft = (state["tentative"] or "").removeprefix(REPLY) and state["tentative"]
        return text(self.doubt.messages(strategy=told, draft=draft or "none", reasons=reasons)[0]) + "\n"

    def state_update(self, state: StrategyInputs, advice: str, reply: str, author: Literal["model", "rule"]) -> NewStrategy:
        """The channels that a new strategy changes."""
        sources = tuple(f"{p.trajectory}/{p.step}" for p in state["precedents"])
        asked = [(message.type, text(message)) for message in self.messages(state)]
        declined = [p.trajectory for p in state["precedents"]] if author == "model" and not advice else []
        return {
            "strategy": Strategy(advice, sources, state["step"], author) if advice else None,
            "written": state["step"],
            "declined": [*state.get("declined", ()), *declined],
            "synthesis": {"prompt": asked, "reply": reply},
            "usage": Usage(refreshes=int(bool(advice))),
        }


def synthesize(
    model: Runnable[Any, Any], writer: StrategyWriter, prompts: Path | None = None
) -> Ask[StrategyInputs, NewStrategy]:
    """AdaMEM, Algorithm 1: z_t ~ pi(z | s_t, E_ret), in `strategy`.

    After a reply of `nothing`, or after replies that could not be read in all tries, there is no strategy: the agent acts without, and
    the model is not asked again until another trajectory is found (`declined`). Unreadable replies are counted (`Usage.malformed`).
    """

    def read(reply: AIMessage, state: StrategyInputs) -> NewStrategy:
        answer = answer_text(reply)
        thought, *marked = re.split(_MARK, answer)
        if writer.needs_marker and not marked:
            raise Unreadable("asked for a line 'Strategy: ...'", f", got {shorten(answer[-80:])}")
        written = re.split(r"</strategy>", marked[-1] if marked else thought, flags=re.IGNORECASE)[0]
        advice = _bullets(written, writer.most_words)
        if not advice or writer.count(advice) > writer.max_strategy_tokens:
            least = f"in at most {writer.most_words} words" if writer.most_words else f"of {writer.max_strategy_tokens} tokens"
            raise Unreadable(f"asked for one to three items of advice {least}", f", got {shorten(written.strip())}")
        return writer.state_update(state, "" if advice.lower() == "nothing" else advice, text(reply), "model")

    def on_bad_reply(bad: BadReply, state: StrategyInputs) -> NewStrategy:
        return {**writer.state_update(state, "", bad.reply, "model"), "usage": Usage(malformed=1)}

    return Ask(writer.prompt.name, model, writer.messages, read, Prompt.load("ask/again", prompts), on_bad_reply=on_bad_reply)


_MARK = re.compile(r"^[ \t*_#]*strategy[ \t*_]*:[ \t*_]*|<strategy>", re.MULTILINE | re.IGNORECASE)


def _bullets(advice: str, most_words: int | None) -> str:
    """The items of an advice as a list, the first ones that have `most_words` words in all; a single line as it is."""
    lines = [re.sub(r"^\s*(?:[-*•]|\d+[.)])\s+", "", line).strip().rstrip(".") for line in advice.splitlines()]
    items, words = list[str](), 0
    for item in filter(None, lines):
        words += len(item.split())
        if most_words is not None and words > most_words:
            break
        items.append(item)
    return "\n".join(f"- {item}" for item in items) if len(items) > 1 else "".join(items)


@dataclass(frozen=True)
class RecallStrategy:
    """Write the strategy by rule, without a model: actions that led to success here, that failed, and that followed success."""

    role: ClassVar[str] = "compute"

    writer: StrategyWriter
    max_items: int = 6
    """Greatest number of items."""

    def __call__(self, state: StrategyInputs) -> NewStrategy:
        writer, here = self.writer, self.writer.environment.abstract(state["observation"])
        done = [step for step in writer.journal.history(state["head"]) if step.state == here and not step.reward]
        precedents = [(found, writer.memory.trajectory(found.trajectory)) for found in state["precedents"]]
        chosen = advice_items(precedents, state["observation"].actions, [_item(here, step.action) for step in done])
        advice = ". ".join(chosen[: self.max_items])
        return self.writer.state_update(state, advice, advice or "nothing", "rule")


def advice_items(
    precedents: Sequence[tuple[Precedent, Trajectory]], admissible: Sequence[str], done: Sequence[str] = ()
) -> list[str]:
    """Items of advice (`action` or `not action`) for the present state and later ones.

    A step is evidence for its action if it was rewarded, or if it led to another state in a trajectory that succeeded. A step
    without a reward is evidence against its action if it led nowhere or is part of a trajectory that failed. Evidence is
    weighted by similarity, and that of a rewarded step counts double.

    A state of one short line is named in the item. Its advice is the action with the most evidence, or, without evidence for
    any, the actions with evidence against them. Longer states count as the present one: its advice is up to three best actions
    that are admissible now, or the admissible ones that differ from them only in numbers.

    Args:
        precedents: each with its trajectory, the most similar first.
        admissible: actions of the present state.
        done: items that this episode has already carried out in the present state, without a reward. They led back here, and
            are left out.
    """
    here: dict[str, dict[str, float]] = {}  # cue -> action -> evidence for (positive) and against (negative)
    later: list[str] = []
    for precedent, trajectory in precedents:
        steps = trajectory.transitions[precedent.step :]
        evidence = list(_evidence(precedent, steps))
        step, speaks = steps[0], evidence[0]
        action = step.action if _cue(step.state) else _twin(step.action, admissible)
        if action and speaks:
            weights = here.setdefault(_cue(step.state), {})
            weights[action] = weights.get(action, 0.0) + speaks * precedent.similarity
        if speaks > 0:
            later += [_item(after.state, after.action) for after, good in zip(steps[1:], evidence[1:], strict=True) if good > 0]
    now: list[str] = []
    for cue, weights in here.items():
        hopeful = [action for action, speaks in weights.items() if speaks > 0 and f"{cue}{action}" not in done]
        best = sorted(hopeful, key=lambda action: -weights[action])
        now += [f"{cue}{action}" for action in best[: 1 if cue else 3]]
        if not best:
            now += [f"{cue}not {action}" for action, speaks in weights.items() if speaks < 0]
    return [item for item in dict.fromkeys([*now, *later]) if item not in done]


def _evidence(precedent: Precedent, steps: Sequence[Transition]) -> Iterator[float]:
    """The evidence of each step for its action: 2 if it was rewarded, 1 for it, -1 against it, 0 none."""
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        moved = after is None or after.state != step.state
        if step.reward:
            yield 2.0 if step.reward > 0 else -1.0
        elif step.reward is None or precedent.success is None:
            yield 0.0 if moved else -1.0
        else:
            yield 1.0 if precedent.success and moved else -1.0


def _cue(state: str) -> str:
    return f"{state} " if len(state) <= MAX_CUE_CHARACTERS and "\n" not in state else ""


def _item(state: str, action: str) -> str:
    return f"{_cue(state)}{action}"


def _twin(action: str, admissible: Sequence[str]) -> str:
    """This action, or the admissible one that differs from it only in numbers; empty if there is none."""
    if action in admissible or not admissible:
        return action
    plain = _without_numbers(action)
    return next((other for other in admissible if _without_numbers(other) == plain), "")


def _without_numbers(action: str) -> str:
    return " ".join(re.sub(r"\d+", "", action).split())


def strategy_text(strategy: Strategy) -> str:
    """A strategy as prompts show it: on the line of its name, or as a list below it."""
    return f"Strategy:{chr(10) if strategy.text.startswith('- ') else ' '}{strategy.text}"


@dataclass(frozen=True, kw_only=True)
class StrategyPart(PromptPart[StrategyChannel]):
    """The strategy, if there is one, without the precedents."""

    def text(self, state: StrategyChannel, prompt: EpisodePrompt) -> str:
        """The text of the strategy."""
        return f"{strategy_text(state['strategy'])}\n" if state["strategy"] else ""


class WeighedPrecedents(PrecedentsChannel):
    """The precedents, and the trajectories that the strategist has found of no use."""

    declined: NotRequired[list[str]]


def are_declined(state: WeighedPrecedents) -> bool:
    """True if the strategist has found all trajectories of the precedents of no use."""
    return {one.trajectory for one in state["precedents"]} <= {*state.get("declined", ())}


def route_precedents(state: WeighedPrecedents) -> Literal["precedents", "nothing alike"]:
    """Router: were precedents found that may be of use? A strategy without precedents does worse than none (AdaMEM, ablations)."""
    return "nothing alike" if are_declined(state) else "precedents"


class PrecedentsForDraft(WeighedPrecedents, ReasonsChannel):
    """The precedents, and the reasons for which memory was asked about a draft."""


def route_precedents_or_draft(state: PrecedentsForDraft) -> Literal["precedents", "keep the draft", "nothing alike"]:
    """Router of low mode: were precedents found that may be of use, and if not, is there a draft to carry out?"""
    if not are_declined(state):
        return "precedents"
    return "keep the draft" if state["reasons"] else "nothing alike"


class SituationWithStrategy(ObservationChannel, StrategyChannel):
    """The present observation, and the strategy in force."""


def route_guidance(state: SituationWithStrategy) -> Literal["over", "strategy", "no strategy"]:
    """Router of low mode: has the episode ended, and is there a strategy in force?"""
    if state["observation"].over:
        return "over"
    return "strategy" if state["strategy"] else "no strategy"
