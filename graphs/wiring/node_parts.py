"""A node of the catalogue by its name, made from the inputs of a method: `inputs.node("write_about_attempt")`."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, is_dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from ...memory.attempts.buffer import Buffer
from ...memory.attempts.trajectories import Trajectories
from ...memory.claas.weights import TrainingLog
from ...memory.errors import UserError, did_you_mean
from ...memory.graph_input import type_hints
from ...memory.lessons.by_task import Lessons
from ...memory.lessons.versions import LibraryVersions
from ...memory.records import Trajectory
from ...memory.returns.experiences import Experiences
from ...memory.returns.q_table import QTable
from ...memory.storage.rows import Rows
from ...nodes.act.episode import START_VALUES
from ...nodes.arguments import check_argument, is_setting, match_type
from ...nodes.catalogue import catalogue
from ...nodes.extract.critic import Critic, critic_prompts
from ...nodes.prompt import Prompt
from ...nodes.retrieve.attempts import AttemptMemory
from ...nodes.synthesize.reasoning_bank import extractor_prompts
from .mermaid import read_flow

__all__ = []

GRAPHS = Path(__file__).parents[1]
MEMORIES: Mapping[str, Callable[[Any], Any]] = {
    "buffer": lambda inputs: Buffer(inputs.records),
    "experiences": lambda inputs: Experiences(inputs.records),
    "memory": lambda inputs: Trajectories(inputs.records),
    "table": lambda inputs: QTable(),
    "library": lambda inputs: Lessons(),
    "versions": lambda inputs: LibraryVersions(),
    "log": lambda inputs: TrainingLog(),
}
"""Name of a part -> the memory that nodes of the same inputs share under that name."""
PARTS: Mapping[str, Callable[[Any], Any]] = {
    "environment": lambda inputs: inputs.environment,
    "journal": lambda inputs: inputs.journal,
    "prompts": lambda inputs: inputs.prompting.prompts,
    "count": lambda inputs: inputs.prompting.count_tokens,
    "count_tokens": lambda inputs: inputs.prompting.count_tokens,
    "layout": lambda inputs: inputs.layout(),
    "view": lambda inputs: inputs.recent_steps_view(),
    "initial_values": lambda inputs: START_VALUES,
}
SETTINGS: Mapping[str, Callable[[Any], Any]] = {
    "window": lambda inputs: inputs.prompting.max_prompt_tokens,
    "list_actions": lambda inputs: inputs.prompting.list_actions,
    "success_threshold": lambda inputs: inputs.success_threshold(None),
    "line_only": lambda inputs: not inputs.chats,
    "needs_marker": lambda inputs: inputs.chats,
    "max_prompt_tokens": lambda inputs: inputs.prompting.max_prompt_tokens,
    "max_note_tokens": lambda inputs: inputs.prompting.max_prompt_tokens // 8,
}
OWN_PARTS: Mapping[str, Callable[[Any], Any]] = {
    "Push.buffer": lambda inputs: AttemptMemories((_memory(inputs, "buffer"), _memory(inputs, "memory"))),
    "Compose.render": lambda inputs: inputs.layout().attempt,
    "PlanPractice.count": lambda inputs: NUMBERS["tasks"],
    "PlanPractice.threshold": lambda inputs: inputs.success_threshold(None),
    "FindUnread.bank": lambda inputs: {},
    "study.bank": lambda inputs: {},
    **dict.fromkeys(("CheckRoutine.run_code", "RunRoutine.run_code"), lambda inputs: None),
    "LessonExtractor.prompts": lambda inputs: extractor_prompts(inputs.prompting.prompts),
    "Critic.prompts": lambda inputs: critic_prompts(inputs.prompting.prompts, paper=False),
    "extract.critic": lambda inputs: _make(
        inputs, Critic, {"prompts": critic_prompts(inputs.prompting.prompts, True), "paper": True}
    ),
}
"""Parts by their owner and name, where the name alone does not say them."""
TEXTS: Mapping[str, str] = {
    "again": "ask/again",
    "LocalPolicy.prompt": "act/score",
    "StrategyWriter.prompt": "adamem/strategy",
    "write_workflows.prompt": "awm/induce",
}
"""Name of a part, or with that of its owner -> the prompt that its method asks with."""

NUMBERS: Mapping[str, float] = {
    "k": 10,
    "threshold": 0.95,
    "gamma": 0.8,
    "alpha": 5.0,
    "lam": 0.65,
    "kappa": 0.5,
    "bonus": 0.25,
    "penalty": 0.5,
    "beta": 10.0,
    "epsilon": 0.1,
    "c": 0.5,
    "every": 10,
    "tasks": 12,
}
"""Name of a number that nodes ask for without a default -> JitRL's (graphs/jitrl.py, which stands on this file), or a baseline's."""


@dataclass(frozen=True)
class AttemptMemories:
    """Several memories of finished attempts, each of which gets every attempt: nodes look them up in their own ways."""

    memories: tuple[AttemptMemory, ...]

    @property
    def is_durable(self) -> bool:
        """True if attempts outlive the process."""
        return any(memory.is_durable for memory in self.memories)

    def add(self, trajectory: Trajectory) -> None:
        """Add an attempt to each."""
        for memory in self.memories:
            memory.add(trajectory)


class LacksParts(UserError):
    """An error: a node has parts without a default; `call` makes it, with a place for each of them."""

    def __init__(self, name: str, parts: Mapping[str, Any]) -> None:
        self.call = f"inputs.node('{name}', {', '.join(f'{part}=...' for part in parts)})"
        kinds = [f"{part} ({words})" if (words := match_type(None, hint)[1]) else part for part, hint in parts.items()]
        files = (file for file in sorted(GRAPHS.rglob("*.py")) if f"{name}(" in file.read_text(encoding="utf-8"))
        example = next((f", as graphs/{file.relative_to(GRAPHS).as_posix()} does" for file in files), "")
        super().__init__(f"{name} has no default for {' and '.join(kinds)}; give {self.call}, in a Python file{example}")


def make_node(inputs: Any, name: str, given: Mapping[str, Any]) -> Any:
    """The node, router or part of a prompt of this name in the catalogue.

    Raises:
        UserError: there is no such name, or a part without a default is not given.
    """
    entries = [entry for entry in catalogue() if name in (entry.name, f"{entry.verb}.{entry.name}")]
    if len(entries) != 1:
        said = f"; say {' or '.join(f'{one.verb}.{one.name}' for one in entries)}"
        hint = (
            said if entries else did_you_mean(name, [one.name for one in catalogue()]) or "; `learngraph list nodes` lists all"
        )
        raise UserError(f"{len(entries) or 'no'} nodes are called '{name}'{hint}")
    (entry,) = entries
    maker = getattr(import_module(entry.module), entry.name)
    if entry.kind == "router":
        return maker
    if unknown := given.keys() - {*entry.parts, *entry.settings}:
        raise UserError(f"{name} takes {', '.join([*entry.parts, *entry.settings])}, got {', '.join(sorted(unknown))}")
    return _make(inputs, maker, given)


def _make(inputs: Any, maker: Any, given: Mapping[str, Any]) -> Any:
    """The node or part that a class or function of ours makes; of its parts, those that are such classes are made alike."""
    hints = type_hints(maker, True) | type_hints(getattr(maker, "__init__", None) if isinstance(maker, type) else maker, True)
    parts, lacking = dict(given), dict[str, Any]()
    for part, parameter in signature(maker).parameters.items():
        hint, is_needed = hints.get(part), parameter.default is parameter.empty
        if part in parts:
            check_argument(maker.__name__, part, parts[part], hint)
            continue
        if (default := _default(inputs, maker.__name__, part, hint)) is not None:
            parts[part] = default()
        elif is_needed and (get_origin(hint) is Literal or hint is bool):
            parts[part] = (*get_args(hint), False)[0]
        elif is_needed and part in NUMBERS and is_setting(hint):
            parts[part] = NUMBERS[part]
        elif is_needed and is_dataclass(hint):
            try:
                parts[part] = _make(inputs, hint, {})
            except LacksParts:
                lacking[part] = hint
        elif is_needed:
            lacking[part] = hint
    if lacking:
        raise LacksParts(maker.__name__, lacking)
    return maker(**parts)


def _default(inputs: Any, owner: str, part: str, hint: Any) -> Callable[[], Any] | None:
    """The maker of a part from the inputs; None if they say nothing about the part."""
    if hint is Prompt and (text := TEXTS.get(f"{owner}.{part}", TEXTS.get(part))):
        return lambda: inputs.prompting.load(text)
    if f"{owner}.{part}" in OWN_PARTS:
        return lambda: OWN_PARTS[f"{owner}.{part}"](inputs)
    if is_setting(hint):
        return (lambda: SETTINGS[part](inputs)) if part in SETTINGS else None
    if part == "model":
        return lambda: inputs.require_chat_model(owner)
    if part in MEMORIES and hint is not Rows:
        return lambda: _memory(inputs, part)
    return (lambda: PARTS[part](inputs)) if part in PARTS else None


def _memory(inputs: Any, part: str) -> Any:
    """The memory that nodes of the same inputs share under this name."""
    return inputs.memories.setdefault(part, MEMORIES[part](inputs))


def drawn_from_catalogue(flow: str, known: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The nodes of a drawing that the catalogue has, beside those that are known, and their routers: by their names there.

    A node is found by the text in its box or by its name, where `Push_2` is a second `Push`; a router by its node's labels, of which one may be mistyped.

    Raises:
        FlowError: the drawing cannot be read.
    """
    chart = read_flow(flow)
    entries = {name: entry for entry in catalogue() for name in (entry.name, f"{entry.verb}.{entry.name}")}
    nodes, routers = dict[str, str](), dict[str, str]()
    for name, drawn in chart.nodes.items():
        wanted = drawn.text if drawn.text in entries else re.sub(r"_\d+$", "", name)
        if name in known or wanted not in entries or not entries[wanted].is_drawn:
            continue
        nodes[name] = wanted
        labels = {edge.label for edge in chart.edges if edge.source == name and edge.label}
        if found := [one for one in entries.values() if not labels.isdisjoint(one.outcomes)]:
            beside = entries[wanted].module
            routers[name] = max(found, key=lambda one: (labels == {*one.outcomes}, one.module == beside)).name
    return nodes, routers
