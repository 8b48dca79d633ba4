"""Configurations that evolve from attempt to attempt: EvoTest (arXiv:2510.13220).

A configuration is all that is changed about an agent, as one: a guide in its prompts, the number of examples from memory, and a
routine, Python code of a model's that reads the running episode. After an attempt a model writes a child of the configuration that was
played. Before the next one a bandit picks among all of them:

    V(i) = (sum of i's returns + V(parent of i)) / (n_i + 1)        a new child is worth what its parent is; the first, the mean
    U(i) = V(i) + c sqrt(log(1 + N) / (n_i + 1))                    N: all attempts; returns are scaled to [0, 1]

The tree is not kept apart: the note on an attempt says which configuration was played and which child was written after it, so that a
run that is resumed or forked has the tree of its own past. A routine runs nowhere but in the sandbox that is passed in.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from threading import Lock
from typing import Any, ClassVar, Literal, Protocol

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable
from typing_extensions import TypedDict

from ...memory.attempts.buffer import Buffer
from ...memory.records import Trajectory, Transition
from ...memory.storage.journal import Journal
from ..act.episode import Environment
from ..arguments import Amount
from ..ask import Ask, BadReply
from ..prompt import Prompt
from ..read_reply import Unreadable, answer_text, read_object
from ..reply_schemas import NUMBER, TEXT, reply_schema
from ..retrieve.attempts import EpisodePrompt, Layout, PromptPart
from ..state import EpisodeInput, HeadChannel, NoteChannels, ObservationChannel, StepRewards
from ..synthesize.reflect import JudgedAttempt, attempt_text, route_next_attempt
from ..synthesize.workflows import has_succeeded

__all__ = [
    "MAX_EXAMPLES",
    "CheckRoutine",
    "CodeRunner",
    "Configuration",
    "ConfigurationChannels",
    "ConfigurationPart",
    "EvolutionInputs",
    "RouteEvolution",
    "RunRoutine",
    "SelectConfiguration",
    "evolve_configuration",
]

MAX_EXAMPLES = 10
MAX_ROUTINE_CHARS = 6000
MAX_DIGEST_CHARS = 1500
"""Characters of a routine's text in a prompt."""


class CodeRunner(Protocol):
    """A sandbox: runs code of a model's alone, without anything from earlier calls."""

    def __call__(self, code: str, /) -> tuple[str, bool]:
        """The printed text, or the error; True if the code ran to its end."""


@dataclass(frozen=True)
class Configuration:
    """A configuration of an agent, a node of the tree."""

    number: int = 0
    """0 for the one that a run starts with; else that of the attempt (from 1) after which it was written."""
    parent: int = 0
    guide: str = ""
    routine: str = ""
    examples: int = 3
    failed: str = ""
    """The error of a routine that was proposed with it and did not work; the parent's is used in its place."""


class ConfigurationChannels(TypedDict):
    """The configuration of the running episode, and what its routine says now."""

    configuration: dict[str, Any]
    """The fields of `Configuration`."""
    digest: str
    """The text of the routine; empty without a routine, or if it failed."""


class ConfigurationChannel(TypedDict):
    """The configuration that an episode is played with."""

    configuration: dict[str, Any]
    """The fields of a `Configuration`."""


class ConfiguredEpisode(ConfigurationChannel, HeadChannel, ObservationChannel):
    """The steps of an episode that is played with a configuration, and what is seen."""


class DigestChannel(TypedDict):
    """The words of the configuration's routine about the running episode."""

    digest: str


class PickedConfiguration(ConfigurationChannel, DigestChannel, NoteChannels):
    """The configuration of an episode that begins, and the note that names it."""


class JudgedConfiguration(ConfigurationChannel, EpisodeInput, HeadChannel, ObservationChannel, StepRewards):
    """A finished attempt with its rewards and its configuration."""


def read_tree(attempts: Sequence[Trajectory], first: Configuration) -> tuple[list[Configuration], dict[int, list[float]]]:
    """All configurations of these attempts, and the returns of each by its number. Missing returns count for none."""
    tree, returns = {first.number: first}, dict[int, list[float]]()
    for attempt in attempts:
        played, child = _read_lineage(attempt.note)
        if played in tree and (value := attempt.value) is not None:
            returns.setdefault(played, []).append(value)
        if child is not None:
            tree[child.number] = child
    return [tree[number] for number in sorted(tree)], returns


def _configuration(values: Mapping[str, Any]) -> Configuration:
    known = {one.name for one in fields(Configuration)}
    return Configuration(**{name: value for name, value in values.items() if name in known})


@lru_cache(maxsize=4096)  # every episode reads the notes of all before it
def _read_lineage(note: str) -> tuple[int, Configuration | None]:
    """The number of the configuration that was played, and the child that was written after it."""
    found = _read_note(note)
    return found["played"], _configuration(found["child"]) if found.get("child") else None


def _read_note(note: str) -> dict[str, Any]:
    try:
        found = json.loads(note)
    except json.JSONDecodeError:
        found = {}
    return {"played": 0, **found} if isinstance(found, dict) else {"played": 0}


def select_configuration(tree: Sequence[Configuration], returns: Mapping[int, Sequence[float]], c: float) -> Configuration:
    """The configuration with the highest U; of equals the newest. `tree` is in the order of the numbers."""
    every = [value for values in returns.values() for value in values]
    low = min(every, default=0.0)
    span = (max(every, default=0.0) - low) or 1.0
    mean = math.fsum((value - low) / span for value in every) / len(every) if every else 0.0
    values = dict[int, float]()
    bounds = dict[int, float]()
    for one in tree:
        scaled = [(value - low) / span for value in returns.get(one.number, ())]
        prior = mean if one.number == tree[0].number else values.get(one.parent, mean)  # the parent may be another task's
        values[one.number] = (math.fsum(scaled) + prior) / (len(scaled) + 1)
        bounds[one.number] = values[one.number] + c * math.sqrt(math.log(1 + len(every)) / (len(scaled) + 1))
    return max(tree, key=lambda one: (bounds[one.number], one.number))


@dataclass(frozen=True)
class SelectConfiguration:
    """Pick the configuration of an episode, by the returns of the run's earlier attempts."""

    role: ClassVar[str] = "memory"

    buffer: Buffer
    first: Configuration
    c: Amount
    """The weight of exploration."""

    def __call__(self, state: EpisodeInput) -> PickedConfiguration:
        tree, returns = read_tree(self.buffer.attempts(state["run"], state["task"].id, state["episode"]), self.first)
        picked = select_configuration(tree, returns, self.c)
        return {"configuration": asdict(picked), "note": json.dumps({"played": picked.number}), "digest": ""}


# Routines


@dataclass(frozen=True)
class RunRoutine:
    """Run the configuration's routine on the running episode, in the sandbox. A routine that fails says nothing."""

    role: ClassVar[str] = "tool"
    is_blocking: ClassVar[bool] = True

    run_code: CodeRunner | None
    """None: there is no sandbox, and no routine runs."""
    journal: Journal

    def __call__(self, state: ConfiguredEpisode) -> DigestChannel:
        routine = state["configuration"]["routine"]
        if self.run_code is None or not routine:
            return {"digest": ""}
        steps = self.journal.history(state["head"])
        text, worked = self.run_code(_cell(routine, steps, state["observation"].text))
        return {"digest": _clip_digest(text) if worked else ""}


def _cell(routine: str, steps: Sequence[Transition], observation: str) -> str:
    """The code that calls a routine. Texts of the world pass as JSON within a literal, so that none of them is code."""
    shown = [{"observation": step.observation_text, "action": step.action, "reward": step.reward} for step in steps]
    given = json.dumps({"steps": shown, "observation": observation})
    return f"import json\n{routine}\nprint(summarize(**json.loads({given!r})))"


def _clip_digest(text: str) -> str:
    text = text.strip()
    return "" if text == "None" else text if len(text) <= MAX_DIGEST_CHARS else f"{text[:MAX_DIGEST_CHARS].rstrip()}…"


class EvolvedAttempt(ConfiguredEpisode, NoteChannels):
    """A finished attempt with a note on its configuration, and on the child that was written."""


@dataclass(frozen=True)
class CheckRoutine:
    """Try a child's new routine on the attempt just made. One that fails is replaced by the parent's, and its error is kept."""

    role: ClassVar[str] = "tool"
    is_blocking: ClassVar[bool] = True

    run_code: CodeRunner | None
    journal: Journal

    def __call__(self, state: EvolvedAttempt) -> NoteChannels:
        note = _read_note(state["note"])
        child = note.get("child") or {}
        if self.run_code is None or not child.get("routine") or child["routine"] == state["configuration"]["routine"]:
            return {"note": state["note"]}
        steps = self.journal.history(state["head"])
        for seen in (0, len(steps)):  # at the first step there is nothing to summarize yet
            text, worked = self.run_code(_cell(child["routine"], steps[:seen], state["observation"].text))
            if not worked:
                error = text.strip()[-300:]
                child = {**child, "routine": state["configuration"]["routine"], "failed": error}
                break
        return {"note": json.dumps({**note, "child": child})}


# Evolution


@dataclass(frozen=True)
class RouteEvolution:
    """Router: is a child to be written? Not after the last attempt, nor after a full success: nothing is to be mended then."""

    role: ClassVar[str] = "compute"

    success_threshold: float | None
    """The return from which an attempt is a full success; None: unknown."""
    cross_task: bool = False
    """True if tasks share their attempts: those at other tasks come after a run's last one."""

    def __call__(self, state: JudgedAttempt) -> Literal["learn", "go on"]:
        done = self.success_threshold is not None and has_succeeded(state["rewards"], self.success_threshold)
        is_last = not self.cross_task and route_next_attempt(state) == "last attempt"
        return "go on" if done or is_last else "learn"


@dataclass(frozen=True)
class EvolutionInputs:
    """The parts of the prompt that asks for a child."""

    buffer: Buffer
    journal: Journal
    first: Configuration
    layout: Layout
    count_tokens: Callable[[str], int]
    window: int
    """Tokens that fit the model's context."""
    max_guide_tokens: int
    prompt: Prompt
    """`evotest/evolve`."""
    routine_rules: str
    """The text that says what a routine is; empty where there is no sandbox."""

    @property
    def form(self) -> str:
        """The form of the reply."""
        routine = ', "routine": "..."' if self.routine_rules else ""
        return f'{{"guide": "...", "examples": 3{routine}}}'


def evolve_configuration(
    inputs: EvolutionInputs, model: Runnable[Any, Any], again: Prompt
) -> Ask[JudgedConfiguration, NoteChannels]:
    """A node that asks for a child of the configuration just played, and puts it into `note`.

    If no reply can be used, the attempt leaves no child.
    """

    def messages(state: JudgedConfiguration) -> list[BaseMessage]:
        played = _configuration(state["configuration"])
        earlier = inputs.buffer.attempts(state["run"], state["task"].id, state["episode"])
        tree, returns = read_tree(earlier, inputs.first)
        known = [reward for reward in state["rewards"] if reward is not None]
        if len(known) == len(state["rewards"]):
            returns.setdefault(played.number, []).append(math.fsum(known))
        shown = {
            "instruction": state["task"].instruction,
            "configuration": _describe(played, bool(inputs.routine_rules)),
            "returns": _returns_text(tree, returns, played),
        }
        steps = attempt_text(
            state, inputs.journal, inputs.layout, "\n".join(shown.values()), inputs.count_tokens, inputs.window
        )
        return inputs.prompt.messages(
            **shown, steps=steps, number=state["episode"] + 1, routine=inputs.routine_rules, form=inputs.form
        )

    def read(reply: AIMessage, state: JudgedConfiguration) -> NoteChannels:
        played = _configuration(state["configuration"])
        found = read_object(answer_text(reply), "guide")
        guide, examples, routine = found.get("guide"), found.get("examples"), found.get("routine")
        if not isinstance(guide, str) or not guide.strip():
            raise Unreadable(f"asked for {inputs.form}, got no text as guide")
        if isinstance(examples, bool) or not isinstance(examples, int | float) or not 0 <= examples <= MAX_EXAMPLES:
            raise Unreadable(f"asked for a number from 0 to {MAX_EXAMPLES} as examples", f", got {str(examples)[:40]!r}")
        child = replace(
            played,
            number=inputs.buffer.count(state["run"], state["episode"]) + 1,
            parent=played.number,
            guide=_clip_words(guide.strip(), inputs.count_tokens, inputs.max_guide_tokens),
            examples=round(examples),
            routine=_read_routine(routine, played.routine) if inputs.routine_rules else "",
            failed="",
        )
        return {"note": json.dumps({"played": played.number, "child": asdict(child)})}

    def no_child(bad: BadReply, state: JudgedConfiguration) -> NoteChannels:
        return {"note": json.dumps({"played": state["configuration"]["number"]})}

    routine: Mapping[str, Any] = {"routine": TEXT} if inputs.routine_rules else {}
    form = reply_schema(guide=TEXT, examples=NUMBER, **routine)
    return Ask("evotest/evolve", model, messages, read, again, on_bad_reply=no_child, reply_schema=form)


def _read_routine(routine: Any, before: str) -> str:
    """The code of a reply; the parent's if the reply leaves it out."""
    if routine is None:
        return before
    if not isinstance(routine, str):
        raise Unreadable("asked for a text as routine", f", got {str(routine)[:40]!r}")
    lines = routine.strip().splitlines()
    if len(lines) > 1 and lines[0].startswith("```") and lines[-1].strip() == "```":
        lines = lines[1:-1]
    code = "\n".join(lines)
    if code and "def summarize" not in code:
        raise Unreadable("asked for code that defines summarize(steps, observation) as routine, or an empty text")
    if len(code) > MAX_ROUTINE_CHARS:
        raise Unreadable(f"asked for a short routine, got {len(code)} characters; {MAX_ROUTINE_CHARS} are the most")
    return code


def _clip_words(text: str, count: Callable[[str], int], limit: int) -> str:
    """As many of the first words as fit, found by bisection."""
    if count(text) <= limit:
        return text
    words = text.split(" ")
    fits, beyond = 0, len(words)
    while beyond - fits > 1:
        middle = (fits + beyond) // 2
        fits, beyond = (middle, beyond) if count(" ".join(words[:middle])) <= limit else (fits, middle)
    return " ".join(words[:fits])


def _describe(played: Configuration, has_routine: bool) -> str:
    guide = f"<guide>\n{played.guide}\n</guide>\n" if played.guide else "It has no guide yet.\n"
    routine = failed = ""
    if has_routine:
        routine = f"<routine>\n{played.routine}\n</routine>\n" if played.routine else "It has no routine yet.\n"
        failed = f"A routine that was proposed for it did not work: {played.failed}\n" if played.failed else ""
    return f"Configuration {played.number}, with which the attempt was made:\n{guide}examples: {played.examples}\n{routine}{failed}"


def _returns_text(tree: Sequence[Configuration], returns: Mapping[int, Sequence[float]], played: Configuration) -> str:
    """A line for each configuration that was played; of many the best, the newest, and the one just played."""
    means = {number: math.fsum(values) / len(values) for number, values in returns.items()}
    best = sorted(means, key=lambda number: -means[number])[:5]
    newest = [one.number for one in tree if one.number in means][-5:]
    lines = [
        f"- configuration {number}: {', '.join(f'{value:g}' for value in returns[number][-8:])}"
        + (" (the last is this attempt's)" if number == played.number else "")
        for number in sorted({*best, *newest, *([played.number] if played.number in means else [])})
    ]
    return "\n".join(lines) or "- nothing is known"


# Prompts


class _EarnedRewards:
    """The rewards that attempts earned, by situation and action. Only attempts that are new since the last question are read."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._attempts: Sequence[Trajectory] = []
        self._rewards: dict[str, dict[str, list[float]]] = {}

    def find(self, attempts: Sequence[Trajectory], situation: str) -> dict[str, list[float]]:
        """Action -> its rewards other than zero in this situation, in any of these attempts."""
        with self._lock:
            known = len(self._attempts)
            if attempts[:known] != self._attempts:  # another run, task or branch
                known, self._rewards = 0, {}
            for attempt in attempts[known:]:
                for step in attempt.transitions:
                    if step.reward:
                        self._rewards.setdefault(step.state, {}).setdefault(step.action, []).append(step.reward)
            self._attempts = attempts
            return {action: list(rewards) for action, rewards in self._rewards.get(situation, {}).items()}


class ShownConfiguration(EpisodeInput, ConfigurationChannel, DigestChannel, ObservationChannel):
    """An episode, its configuration, and what the routine says of it."""


@dataclass(frozen=True, kw_only=True)
class ConfigurationPart(PromptPart[ShownConfiguration]):
    """The guide, what the routine says, and the examples."""

    buffer: Buffer
    environment: Environment
    _earned: _EarnedRewards = field(default_factory=_EarnedRewards, repr=False, compare=False)

    def texts(self, state: ShownConfiguration, prompt: EpisodePrompt) -> Iterator[str]:
        """The guide; then nothing, where it does not fit."""
        guide = state["configuration"]["guide"]
        if guide:
            yield f"<guide>\n{guide}\n</guide>\n\n"
        yield ""

    def text_after(self, state: ShownConfiguration) -> str:
        """The text that the routine made of the episode."""
        return f"Summary of this attempt so far:\n{state['digest']}\n" if state["digest"] else ""

    def request(self, state: ShownConfiguration) -> str:
        """The examples: actions that earned or cost something in this very situation."""
        count = state["configuration"]["examples"]
        earned = self._earned_here(state) if count else {}
        means = {action: math.fsum(values) / len(values) for action, values in earned.items()}
        top = sorted(means, key=lambda action: (-abs(means[action]), action))[:count]
        if not top:
            return ""
        lines = "".join(
            f"- {' '.join(action.split())}: reward {means[action]:g}\n" for action in sorted(top, key=lambda a: -means[a])
        )
        return f"In this very situation earlier attempts earned:\n{lines}\n"

    def _earned_here(self, state: ShownConfiguration) -> dict[str, list[float]]:
        key = self.environment.abstract(state["observation"])
        return self._earned.find(self.buffer.attempts(state["run"], state["task"].id, state["episode"]), key)
