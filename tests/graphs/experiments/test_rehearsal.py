"""What a run will cost: a rehearsal's forecast against what a server has counted of the same run."""

import json
import re
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

import pytest
from openai_server import OpenAIServer

from learngraph.graphs.cli.main import main
from learngraph.graphs.cli.run import FileOptions, _share_budget
from learngraph.graphs.experiments.rehearsal import extrapolate
from learngraph.graphs.experiments.spec import plan_sweeps, read_spec
from learngraph.memory.records import Usage
from learngraph.tools.environments.catalogue import open_environment

METHODS = '["react", "memory", "synapse", "icrl", "jitrl", "adamem", "reasoning-bank", "reflexion"]'
WORLDS = {"toy": "seeds = 1, horizon = 8", "game24": "seeds = 2"}
"""World -> its options."""


def test_prompts_that_grew_grow_on_and_end_at_half_of_a_window() -> None:
    known = [Usage(2, 100, 10), Usage(2, 200, 10), Usage(2, 300, 10), Usage(2, 400, 10)]
    assert [one.input_tokens for one in extrapolate(known, 6)] == [100, 200, 300, 400, 500, 600]
    assert extrapolate(known, 2_000)[-1] == Usage(2, 32_768, 10)
    assert extrapolate(known[:1], 3) == known[:1] * 3


def test_a_budget_leaves_the_problems_that_are_learned_from(tmp_path: Path) -> None:
    methods = [{"name": "training-free-grpo", "label": "three", "settings": {"problems": 3, "held_out": 2}}]
    spec = read_spec({"environments": ["toy"], "models": ["openai:me"], "methods": methods}, [], "a table")
    (sweep,) = _share_budget(plan_sweeps(spec, tmp_path, 1), FileOptions(tmp_path, token_budget=5))
    assert (sweep.options.token_budget, sweep.options.sizes) == (5, (3, 2))  # type: ignore[attr-defined]


class CountingPlayer:
    """Answers as a model might that knows every other step of a solution, and counts four characters a token."""

    def __init__(self) -> None:
        worlds = {name: open_environment(name) for name in WORLDS}
        tasks = [(world, world.task(seed)) for name, world in worlds.items() for seed in range(4)]
        self.solutions = {task.instruction: world.solution(task) for world, task in tasks}

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        chat = "\n".join(str(message["content"]) for message in request["messages"])
        random = Random(blake2b(chat.encode(), digest_size=8).hexdigest())
        task = next((one for one in self.solutions if one in chat), "")
        now, *listed = re.split("(?:exact|same) words", chat[chat.rfind(task) :])
        actions = re.findall(r"^- (.+)$", "".join(listed), re.M)
        todo = [one for one in self.solutions.get(task, ()) if one not in now and (one in actions or not actions)]
        action = todo[0] if todo and random.random() < 0.5 else random.choice(actions or ["wait"])
        thought = " ".join(random.choices(["perhaps", "it", "could", "be", "that", "one"], k=random.randint(80, 160)))
        form, vote = request.get("response_format"), random.choice(["yes", "no"])
        if form:
            said = json.dumps(self.value(form["json_schema"]["schema"], "", action, thought))
        elif "Action:" in chat[-500:]:
            said = f"{thought}\nAction: {action}\nMemory: {vote}\nRefresh: {vote}"
        else:
            ends = [f"{mark}:\n- if {thought[:150]}" for mark in ("Strategy", "Plan") if f"{mark}:" in chat[-500:]]
            said = "\n".join([thought, *(ends or [action])])
        sizes = [len(chat) // 4 + len(json.dumps(form)) // 4, len(said) // 4]
        usage = {"prompt_tokens": sizes[0], "completion_tokens": sizes[1], "total_tokens": sum(sizes)}
        message = {"role": "assistant", "content": said}
        body = {"id": "1", "object": "chat.completion", "created": 1, "model": "me", "usage": usage}
        return {"body": json.dumps(body | {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})}

    def value(self, schema: dict[str, Any], name: str, action: str, thought: str) -> Any:
        kind = schema["type"] if isinstance(schema["type"], str) else "null"
        if kind == "object":
            return {key: self.value(one, key, action, thought) for key, one in schema["properties"].items()}
        if kind == "array":
            return [self.value(schema["items"], name, action, thought)]
        texts = {"action": action, "thoughts": thought}
        return {"number": 50, "boolean": True, "string": texts.get(name, thought[:150])}.get(kind)


@pytest.mark.slow
def test_a_forecast_is_within_a_factor_of_one_and_a_half_of_the_bill(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worlds = ", ".join(f'{{ name = "{name}", {options} }}' for name, options in WORLDS.items())
    (here / "plan.toml").write_text(f'environments = [{worlds}]\nmodels = ["openai:me"]\nmethods = {METHODS}\nepisodes = 3\n')
    with OpenAIServer(CountingPlayer()) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert main(["run", "plan.toml", "--dry-run"]) == 0
        assert not server.requests
        lines = [[cell.strip() for cell in line.split("|")] for line in capsys.readouterr().out.splitlines()]
        said = {
            (row[1], row[3]): [int(one.replace(",", "")) for one in row[6:9]] for row in lines if len(row) > 9 and row[5] == "3"
        }
        assert main(["run", "plan.toml", "--workers", "1"]) == 0
    ratios = {}
    for row in json.loads((here / "runs/bench-plan/results.json").read_text()):
        bill, forecast = (
            (row["totals"]["input_tokens"], row["totals"]["output_tokens"]),
            said[row["environment"], row["method"]][1:],
        )
        ratios[row["environment"], row["method"]] = (forecast[0] + 4 * forecast[1]) / (bill[0] + 4 * bill[1])
    assert len(ratios) == 16
    assert not {place: ratio for place, ratio in ratios.items() if not 1 / 1.5 < ratio < 1.5}, ratios
