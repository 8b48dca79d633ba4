"""BFCL v4, multi-turn: requests of a user, answered by calls of eight simulated APIs (Patil et al., Berkeley Function Calling Leaderboard).

| name | 200 tasks each |
|---|---|
| `bfcl:base` | every request can be carried out |
| `bfcl:miss_func` | a function that a request needs is handed over one turn late |
| `bfcl:miss_param` | a request lacks something, which the user says in the next turn |
| `bfcl:long_context` | as `base`, with long answers and crowded data |

- A task is a conversation of two to eight turns. An action is one call, `cd(folder='document')`, or `end_turn()`, which stands for a
  message to the user without a call and brings the user's next message.
- The reward is 0 until the end of the last turn, then 1 or 0 by the benchmark's own checker: after each turn the state of all APIs has
  to be the solution's, and the answers that the solution got must have been seen. Doing nothing earns nothing. The benchmark's limit
  of 20 replies a turn is not kept, as a reply may hold several calls there; ours is `HORIZON` calls in all.
- The benchmark has no splits. Ours go by the tasks' numbers, which the four kinds share: of every twenty, five are for `test`, three
  for `dev`, twelve for `train`; each has all families of APIs.
- Listed actions are the calls that need no argument, or only some of a few given words, and `end_turn()`. Most need texts of the
  request or of earlier answers, so a policy that only scores listed actions cannot solve these tasks.
- The checker runs calls by `eval`. Here only calls reach it that were read as one known function of the task with literal
  arguments, and are written anew from those; exponents and precisions are limited, as they decide on how long it computes.

Needs the package bfcl-eval, without its dependencies (`INSTALL`): they are model providers' clients and exact versions of numpy, of
filelock and of others, none of which play a part here. Its tasks, APIs and checker need mpmath alone, which comes with sympy.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...memory.errors import UserError
from ...memory.records import Observation, Task
from .support.arguments import pick_task
from .support.calls import Call, ToolDescription, UnreadableCall, list_calls, read_call
from .support.tool_worlds import ToolWorld

__all__ = ["FunctionCalling"]

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
HORIZON = 60
INSTALL = "pip install --no-deps bfcl-eval; pip install mpmath"
_SPLITS = (*("train", "test", "train", "dev") * 3, "train", "test", "train", "test", *("train",) * 4)
"""Split of the n-th of every twenty tasks."""
_LIMITS = {"exponent": 1000, "precision": 1000}
"""Argument -> its greatest absolute value: without a limit one call could compute for ever."""
_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
"""Type in the benchmark's descriptions -> type of JSON schema; None: any."""
_ENUM = re.compile(r"\[Enum\]:\s*(\[[^\]]*\])")
_END = ToolDescription("end_turn", "End your turn: nothing is left to do for the user's request.", {"properties": {}})
_CHECKER = "bfcl_eval.eval_checker.multi_turn_eval"
_numbers = itertools.count()


class FunctionCalling(ToolWorld):
    """An environment for one of the four kinds of tasks.

    Args:
        category: one of `CATEGORIES`.
        horizon: number of actions after which an episode ends without a reward.
        live: number of episodes kept open between steps.
    """

    def __init__(self, category: str = "base", horizon: int = HORIZON, live: int = 16) -> None:
        if category not in CATEGORIES:
            raise UserError(f"bfcl: no kind of tasks {category!r}; there are {', '.join(CATEGORIES)}")
        super().__init__(f"bfcl:{category}", horizon, live)
        self.category = category
        self._lock = threading.Lock()

    def task(self, seed: int, split: str = "test") -> Task:
        """The `seed`-th task of a split of ours. `Task.seed` is the benchmark's number of the task."""
        number = pick_task(self.name, self._splits, split, seed)
        families = ", ".join(sorted(self._conversations[number].entry["involved_classes"]))
        text = (
            f"Carry out a user's requests, which come one after the other, by calls of these APIs: {families}.\n"
            "Make one call at a time, such as name(argument='value'); end_turn() says that a request is done."
        )
        return Task(f"{self.category}-{split}-{seed}", text, number)

    def solution(self, task: Task) -> tuple[str, ...]:
        """The benchmark's own solution."""
        conversation = self._conversations[task.seed]
        actions: list[str] = []
        for calls in conversation.solution:
            actions += [*(str(read_call(call, conversation.functions)) for call in calls), str(Call("end_turn"))]
        return tuple(actions)

    def describe_tools(self, task: Task, actions: Sequence[str] = ()) -> tuple[ToolDescription, ...]:
        """The functions that may be called in the present turn, with the benchmark's descriptions."""
        tools = self._conversations[task.seed].tools(_turn(actions))
        return tuple(tool for tool in tools.values() if tool is not _END)

    def request(self, task: Task, actions: Sequence[str]) -> str:
        """The user's message of the present turn."""
        conversation = self._conversations[task.seed]
        return conversation.request(min(_turn(actions), conversation.turns - 1))

    def answer(self, observation: Observation) -> str:
        """The last call's answer, as its function gave it."""
        return observation.text.rpartition(_ANSWER)[2]

    def closing_call(self, task: Task, text: str) -> str:
        """The call that ends a turn. What is said to the user plays no part."""
        return str(Call("end_turn"))

    @cached_property
    def _conversations(self) -> Mapping[int, _Conversation]:
        with self._lock:
            return _read_conversations(self.category)

    @cached_property
    def _splits(self) -> dict[str, tuple[int, ...]]:
        numbers = sorted(self._conversations)
        return {split: tuple(n for n in numbers if _SPLITS[n % 20] == split) for split in ("train", "dev", "test")}

    def _start(self, task: Task) -> tuple[_Dialogue, Observation]:
        dialogue = _Dialogue(self._conversations[task.seed])
        return dialogue, dialogue.show("")


_ANSWER = "\n\nAnswer: "
"""Stands between the request and the last call's answer."""


@dataclass(frozen=True)
class _Conversation:
    """A task of the benchmark: the user's messages, the functions, the data, the solution."""

    entry: Mapping[str, Any]
    solution: Sequence[Sequence[str]]
    """The calls of each turn."""
    functions: Mapping[str, ToolDescription] = field(repr=False)
    """All functions, with those that come late."""

    @property
    def turns(self) -> int:
        return len(self.solution)

    def request(self, turn: int) -> str:
        messages = self.entry["question"][turn]
        if str(turn) in self.entry.get("missed_function", {}):
            prompts = import_module("bfcl_eval.constants.default_prompts")
            return str(prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC)
        return "\n".join(message["content"] for message in messages)

    def tools(self, turn: int) -> Mapping[str, ToolDescription]:
        missed = self.entry.get("missed_function", {})
        absent = {name for late, names in missed.items() if int(late) > turn for name in names}
        return {name: tool for name, tool in self.functions.items() if name not in absent}


class _Dialogue:
    """A running episode: the APIs of a task, and the calls of each turn so far."""

    def __init__(self, conversation: _Conversation) -> None:
        self._conversation = conversation
        self._owner = f"episode{next(_numbers)}"
        self._turns: list[list[list[str]]] = [[]]
        self.close = weakref.finalize(self, _forget, self._owner)

    def step(self, action: str) -> Observation:
        try:
            # As in the benchmark, a function that was not handed over yet is carried out if it is called all the same.
            call = read_call(action, self._conversation.functions)
            _check_limits(call)
        except UnreadableCall as error:
            return self.show(f"Nothing was done: {error}.")
        if call.name == _END.name:
            return self._end_turn()
        answers = _run_calls(self._conversation.entry, [str(call)], self._owner)
        self._turns[-1].append([str(call)])
        return self.show(answers[0])

    def show(self, answer: str, reward: float = 0.0, over: bool = False) -> Observation:
        """The observation with this answer."""
        turn = min(len(self._turns), self._conversation.turns) - 1
        text = f"User: {self._conversation.request(turn)}" + (f"{_ANSWER}{answer}" if answer else "")
        return Observation(text, () if over else list_calls(self._conversation.tools(turn).values(), {}), reward, over)

    def _end_turn(self) -> Observation:
        if len(self._turns) == self._conversation.turns:
            return self.show("The conversation is over.", _check(self._conversation, self._turns), over=True)
        self._turns.append([])
        return self.show("")


def _turn(actions: Sequence[str]) -> int:
    return sum("".join(action.split()) == "end_turn()" for action in actions)


def _check_limits(call: Call) -> None:
    for name, most in _LIMITS.items():
        value = call.arguments.get(name, 0)
        if isinstance(value, int | float) and abs(value) > most:
            raise UnreadableCall(f"{name} is at most {most:,} here, got {value:g}")


def _run_calls(entry: Mapping[str, Any], calls: Sequence[str], owner: str) -> list[str]:
    """Run calls by the benchmark's own code, on the APIs that belong to this owner."""
    execute = import_module(f"{_CHECKER}.multi_turn_utils").execute_multi_turn_func_call
    is_long = "long_context" in entry["id"]
    with _precision():
        answers, _ = execute(
            list(calls), entry["initial_config"], entry["involved_classes"], owner, entry["id"], long_context=is_long
        )
    return [str(answer) for answer in answers]


def _check(conversation: _Conversation, turns: Sequence[Sequence[Sequence[str]]]) -> float:
    check = import_module(f"{_CHECKER}.multi_turn_checker").multi_turn_checker
    owner = f"check{next(_numbers)}"
    entry, called = dict(conversation.entry), [[list(step) for step in turn] for turn in turns]
    try:
        with _precision():
            verdict = check(called, [list(c) for c in conversation.solution], entry, entry["id"], owner)
    finally:
        _forget(owner)
    return float(verdict["valid"])


@contextmanager
def _precision() -> Iterator[None]:
    """Put back mpmath's precision, which one of the APIs sets for the whole process."""
    numbers = import_module("mpmath").mp  # waits for a thread that is just importing it
    before = numbers.dps
    try:
        yield
    finally:
        numbers.dps = before


def _forget(owner: str) -> None:
    """Drop an owner's APIs: the benchmark keeps them among its module's global names, for ever."""
    names = vars(import_module(f"{_CHECKER}.multi_turn_utils"))
    for name in [name for name in list(names) if name.startswith(f"{owner}_")]:
        del names[name]


def _read_conversations(category: str) -> Mapping[int, _Conversation]:
    spec = find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"bfcl needs the package bfcl-eval: {INSTALL}")
    if find_spec("mpmath") is None:
        raise UserError(f"bfcl needs the package mpmath: {INSTALL}")
    files = import_module("bfcl_eval.constants.executable_backend_config").MULTI_TURN_FUNC_DOC_FILE_MAPPING
    data = Path(next(iter(spec.submodule_search_locations))) / "data"
    file = f"BFCL_v4_multi_turn_{category}.json"
    solutions = {line["id"]: line["ground_truth"] for line in _read_lines(data / "possible_answer" / file)}
    descriptions = {
        family: [_describe(one) for one in _read_lines(data / "multi_turn_func_doc" / name)] for family, name in files.items()
    }
    conversations: dict[int, _Conversation] = {}
    for entry in _read_lines(data / file):
        functions = {tool.name: tool for family in entry["involved_classes"] for tool in descriptions[family]}
        number = int(entry["id"].rpartition("_")[2])
        conversations[number] = _Conversation(entry, solutions[entry["id"]], {**functions, _END.name: _END})
    return conversations


def _read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _describe(function: Mapping[str, Any]) -> ToolDescription:
    return ToolDescription(function["name"], function["description"], _json_schema(function["parameters"]))


def _json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON schema from one of the benchmark's: other names of types, and lists of words that stand in descriptions."""
    found = dict(schema)
    if (kind := found.get("type")) in _JSON_TYPES:
        found["type"] = _JSON_TYPES[kind]
        if found["type"] is None:
            del found["type"]
    if found.get("type") == "string" and (words := _ENUM.search(found.get("description", ""))):
        found["enum"] = json.loads(words[1])
    if "properties" in found:
        found["properties"] = {name: _json_schema(one) for name, one in found["properties"].items()}
    if isinstance(found.get("items"), Mapping):
        found["items"] = _json_schema(found["items"])
    return found
