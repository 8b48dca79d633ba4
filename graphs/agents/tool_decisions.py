"""Tool calls as decisions that can be learned, without the values that belong to one conversation.

    resolve(how='refund', order='A7')   ->   resolve(how='refund', order=...)

What is learned is the tool and the arguments that say what is done: those with a list of values in the tool's schema (enums,
literals, booleans), or those that the app names. All other values are left out (`...`): they belong to the conversation, and another
one must not see them. A remembered decision can be taken only where a call of the same tool gives these values.
"""

import math
import re
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import fmean
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage

from ...memory.conversations.messages import REPLY, StateKey, last_user_message, read_call
from ...memory.conversations.origins import FROM_TOOL
from ...memory.conversations.reviews import REJECTED
from ...memory.errors import UserError
from ...memory.records import Neighbour, Trajectory, Transition
from ...memory.returns.experiences import Experiences, ExperienceScope
from .agent_identity import listed_values, tool_schema, unknown_tools
from .rated_acts import NEWEST

__all__ = [
    "DecisionForm",
    "DecisionMemory",
    "ToolDecisions",
    "count_changes",
    "decision_entry",
    "recalled_ids",
    "surely_better",
    "trajectory_id",
]

LEFT_OUT = "..."
"""Stands for a value that belongs to one conversation."""
EQUAL = 1 - 1e-6
"""Similarity from which two states are the same, as far as they are compared."""
DOUBT = 2.0
"""Standard errors by which a decision must have earned more than the model's own to overrule it, where the model is certain."""


@dataclass(frozen=True)
class DecisionForm:
    """The decision that a call takes, without the values that belong to its conversation."""

    tool: str
    chosen: tuple[tuple[str, Any], ...]
    """Arguments that say what is done, by name."""
    left_out: tuple[str, ...]
    """Names of the other arguments that are given."""

    def __str__(self) -> str:
        """The text by which memory knows it."""
        values = {name: repr(value) for name, value in self.chosen} | dict.fromkeys(self.left_out, LEFT_OUT)
        return f"{self.tool}({', '.join(f'{name}={values[name]}' for name in sorted(values))})"


@dataclass
class ToolDecisions:
    """The decisions among an agent's tool calls.

    Args:
        decide: names of the tools that are decisions; or tool -> names of the arguments that say what is done.
    """

    decide: Sequence[str] | Mapping[str, Sequence[str]]
    _schemas: dict[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    """Name of a tool -> its arguments' schemas, of all tools that were ever there."""
    _saying: dict[str, frozenset[str]] = field(default_factory=dict, repr=False)
    """Name of a tool -> its arguments that say what is done."""
    _open: frozenset[str] = field(default=frozenset(), repr=False)
    """Names of the tools that are there now."""

    missing: Sequence[str] = ()
    """Sentences about names in `decide` that are none of the tools at the last call."""

    def __post_init__(self) -> None:
        if isinstance(self.decide, str) or not self.decide:
            raise UserError(f"decide names the tools that are decisions, such as ['resolve']; got {self.decide!r}")

    def read_tools(self, tools: Sequence[Any]) -> bool:
        """Take note of the schemas of the tools that the agent has now; returns True if one is new or has changed.

        A tool that is gone for a while keeps its decisions in memory, but none of them can be taken.

        Raises:
            UserError: an argument that was named is none of the tool's.
        """
        found: dict[str, Mapping[str, Any]] = {}
        names = [str(tool_schema(tool)["name"]) for tool in tools]
        self.missing = unknown_tools("decide", self.decide, names)
        for tool in tools:
            function = tool_schema(tool)
            if function["name"] in self.decide:
                parameters = function.get("parameters", {})
                found[function["name"]] = parameters.get("properties", {})
        if isinstance(self.decide, Mapping):
            for name, named in self.decide.items():
                if wrong := [one for one in named if name in found and one not in found[name]]:
                    raise UserError(
                        f"decide: the tool {name} has no argument {wrong[0]!r}; it has {', '.join(found[name]) or 'none'}"
                    )
        self._open = frozenset(found)
        changed = any(self._schemas.get(name) != schema for name, schema in found.items())
        if changed:
            self._schemas = {**self._schemas, **found}
            listed = {tool: [one for one in s if listed_values(s[one]) is not None] for tool, s in self._schemas.items()}
            saying: Any = self.decide if isinstance(self.decide, Mapping) else listed
            self._saying = {tool: frozenset(saying[tool]) for tool in self._schemas}
        return changed

    def form(self, call: Mapping[str, Any]) -> DecisionForm | None:
        """The decision that a call (`name`, `args`) takes; None if it is none, or its tool is gone."""
        name, arguments = call["name"], call["args"]
        if name not in self._schemas:
            return None
        saying, names = self._saying[name], sorted(arguments)
        chosen = tuple([(one, arguments[one]) for one in names if one in saying])
        return DecisionForm(name, chosen, tuple([one for one in names if one not in saying]))

    def form_of_text(self, action: str) -> DecisionForm | None:
        """The decision in the text of an action (`memory.conversations.messages.call_text`); None if it is none, or cannot be taken again."""
        if action.startswith(REPLY) or action.partition("(")[0] not in self._schemas:
            return None
        try:
            name, arguments = read_call(action)
        except UserError:
            return None
        form = self.form({"name": name, "args": arguments})
        unknown = (FROM_TOOL, "[secret]", "[private]")
        return None if form is None or any(mark in str(value) for _, value in form.chosen for mark in unknown) else form

    def form_of_memory(self, text: str) -> DecisionForm | None:
        """The decision that `str(form)` wrote; None if the agent has no such tool any more."""
        form = _read_form(text)
        return form if form.tool in self._schemas else None

    def is_open(self, form: DecisionForm) -> bool:
        """True if the agent has the decision's tool now."""
        return form.tool in self._open

    def complete(self, form: DecisionForm, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """The arguments of a call that takes a decision in this conversation.

        Args:
            form: the decision.
            arguments: those of a call of the same tool in this conversation.

        Returns:
            None: a value is missing, or a chosen one is no longer among those that the tool takes.
        """
        schema = self._schemas.get(form.tool)
        if schema is None or form.tool not in self._open or any(name not in arguments for name in form.left_out):
            return None
        for name, value in form.chosen:
            values = listed_values(schema.get(name, {}))
            if name not in schema or (values is not None and value not in values):
                return None
        return {**{name: arguments[name] for name in form.left_out}, **dict(form.chosen)}


OF_A_REJECTION = -1.0
"""The reward of a decision that a person rejected: the least there is, below that of a failure, so that an untried one is better."""


@dataclass
class DecisionMemory:
    """A memory of returns, with the decisions by which each conversation came to them."""

    returns: Experiences
    """The return of each decision, found by the state in which it was taken."""
    decisions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Id of a conversation's stretch -> its decisions, in their order."""
    _uses: Counter[str] = field(default_factory=Counter)
    """Tool -> decisions with it, of stretches with several decisions."""
    _ends: Counter[str] = field(default_factory=Counter)
    """Tool -> those of them that came last."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, trajectory: Trajectory) -> None:
        """Take in a stretch; one with a known id takes the place of the former.

        A decision that a person rejected (`REJECTED`) is remembered by itself, after the decisions before it: it earned the least,
        whatever the conversation earned.
        """
        with self._lock:
            self._add(trajectory)

    def _add(self, trajectory: Trajectory) -> None:
        made = list[Transition]()
        for number, step in enumerate(trajectory.transitions):
            if step.action.startswith(REJECTED):
                before = [replace(one, reward=None) for one in made]  # they are here for the place of the decision alone
                step = replace(step, action=step.action.removeprefix(REJECTED), reward=OF_A_REJECTION)
                apart = replace(trajectory, id=f"{trajectory.id}#{number}", transitions=(*before, step))
                self.decisions[apart.id] = tuple(one.action for one in apart.transitions)
                self.returns.add(apart)
            else:
                made.append(step)
        self._count(self.decisions.get(trajectory.id, ()), -1)
        self.decisions[trajectory.id] = tuple(step.action for step in made)
        self._count(self.decisions[trajectory.id], 1)
        self.returns.add(replace(trajectory, transitions=tuple(made)))

    def ends_conversations(self, tool: str) -> bool:
        """True if the tool came last wherever it was used beside other decisions."""
        return 0 < self._uses[tool] == self._ends[tool]

    def earned_here(
        self,
        state: str,
        before: tuple[str, ...],
        actions: Collection[str],
        scope: ExperienceScope,
        shared: Collection[str] | None = None,
    ) -> dict[str, list[float]]:
        """The newest returns of decisions in states equal to this one, after the same earlier decisions: action -> returns.

        With `shared`, only those of experiences with these ids count.
        """
        earned = dict[str, list[float]]()
        with self._lock:  # a stretch that is rated again changes its decisions and its returns together
            for _, one in self.returns.raw_neighbours(state, threshold=EQUAL, **scope):
                stretch, _, step = one.id.rpartition("/")
                if (
                    (shared is None or one.id in shared)
                    and one.action in actions
                    and self.decisions[stretch][: int(step)] == before
                ):
                    earned.setdefault(one.action, []).append(one.value)
        return {action: values[-NEWEST:] for action, values in earned.items()}

    def _count(self, decisions: Sequence[str], by: int) -> None:
        if len(decisions) > 1:
            tools = [one.partition("(")[0] for one in decisions]
            for tool in tools:
                self._uses[tool] += by
            self._ends[tools[-1]] += by


def surely_better(earned: Mapping[str, Sequence[float]], preferred: str, share: float) -> str | None:
    """The decision that earned more than the preferred one, beyond doubt; None: none did.

    A return is that of a whole conversation, whose cause may have been another one than here: so a single one is taken to stray by
    half of what lies between the best and the worst (no bounded number strays more), however much alike the few returns are.

    Args:
        earned: action -> its returns; nothing is better than a preferred one that was never tried.
        preferred: the model's decision.
        share: how sure the model is of it, in (0, 1]: the surer it is, the surer the past has to be (`DOUBT`).
    """
    if preferred not in earned:
        return None
    means = {action: fmean(values) for action, values in earned.items()}
    best = max(means, key=lambda action: (means[action], action))
    every = [value for values in earned.values() for value in values]
    doubt = (max(every) - min(every)) / 2 * math.sqrt(1 / len(earned[best]) + 1 / len(earned[preferred]))
    return best if means[best] - means[preferred] > DOUBT * share * doubt else None


def count_changes(entries: Sequence[Mapping[str, Any]], messages: Sequence[AnyMessage], state_key: StateKey) -> tuple[int, int]:
    """How often memory overruled the model in a turn, and after how many of its changes nothing was read but what was known before.

    Args:
        entries: the method's records of the turn, one for each model call.
        messages: the conversation.
        state_key: the messages that were read -> the text by which states are compared.
    """
    changed = {one["step"] for one in entries if one.get("changed")}
    if not changed:
        return 0, 0
    start = last_user_message(messages)
    said = [n for n, message in enumerate(messages) if n > start and isinstance(message, AIMessage)]
    read = [str(state_key(messages[:place])) for place in (*said, len(messages))]
    fruitless = sum(read[step + 1] in read[: step + 1] for step in changed if step + 1 < len(read))
    return sum(bool(one.get("overruled")) for one in entries), fruitless


@lru_cache(maxsize=10_000)
def _read_form(text: str) -> DecisionForm:
    name, arguments = read_call(text)
    chosen = tuple((one, value) for one, value in arguments.items() if value is not ...)
    return DecisionForm(name, chosen, tuple(one for one, value in arguments.items() if value is ...))


def recalled_ids(neighbours: Sequence[Neighbour]) -> list[str]:
    """Ids of the trajectories that recalled decisions belong to, also of those decisions that a person rejected."""
    return sorted({trajectory_id(one) for one in neighbours})


def trajectory_id(neighbour: Neighbour) -> str:
    """Id of the trajectory that a recalled decision belongs to."""
    return re.sub(r"(#[0-9]+)?/[0-9]+$", "", neighbour.id)


def decision_entry(states: Sequence[Mapping[str, Any]], step: int, recalled: Sequence[str]) -> dict[str, Any]:
    """The record of the decisions of a message as plain data: recalled trajectories, candidates, choice."""
    rows, said = [], list[str]()
    for state in states:
        for candidate, prior, estimate in zip(state["candidates"], state["prior"], state["estimates"], strict=True):
            row = {"action": candidate.action, "prior": round(prior, 4), "advantage": round(estimate.shift, 4)}
            rows.append(row | {"visits": estimate.count, "value": round(estimate.value, 4), "logit": round(candidate.logit, 4)})
            said.append(f"{candidate.action}: {_words(rows[-1])}")
        why = ", which earned more where a turn had come exactly this far" if state["overruled"] else ""
        changed = state["action"] != state["first"]
        said.append(f"chose {state['action']}{why}{', which is not what the model said first' if changed and not why else ''}")
    return {
        "decision": True,
        "step": step,
        "recalled": recalled,
        "candidates": rows,
        "chosen": "; ".join(state["action"] for state in states),
        "changed": any(state["action"] != state["first"] for state in states),
        "overruled": any(state["overruled"] for state in states),
        "said": said,
    }


def _words(row: Mapping[str, Any]) -> str:
    share = f"the model's share {math.exp(row['prior']):.2f}"
    seen = (
        f"tried {row['visits']:.3g} time{'s' * (row['visits'] != 1)} here, value {row['value']:.3g}"
        if row["visits"]
        else "never tried here"
    )
    return f"{share}, {seen}, advantage {row['advantage']:+.2f}"
