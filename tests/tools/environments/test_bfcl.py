"""BFCL v4 multi-turn: its own solutions win by its own checker, and nothing that an agent writes is evaluated."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scripted_agent import ScriptedCalls
from worlds_here import needs

from learngraph.memory.errors import UserError
from learngraph.memory.records import Task
from learngraph.tools.environments.bfcl import CATEGORIES, FunctionCalling
from learngraph.tools.environments.support.calls import read_call

needs_bfcl = needs("bfcl")
SIZES = {"train": 120, "dev": 30, "test": 50}


@pytest.fixture(scope="module")
def base() -> FunctionCalling:
    return FunctionCalling()


def turns(env: FunctionCalling, task: Task) -> list[list[str]]:
    """The solution, turn by turn, each with its end."""
    found: list[list[str]] = [[]]
    for action in env.gold(task):
        found[-1].append(action)
        if action == "end_turn()":
            found.append([])
    return found[:-1]


def score(env: FunctionCalling, task: Task, actions: Any) -> float:
    shown = [env.observe(task, list(actions)[: n + 1]) for n in range(len(actions))]
    assert [one.over for one in shown] == [False] * (len(actions) - 1) + [True]
    return sum(one.reward or 0.0 for one in shown)


def number_with(env: FunctionCalling, family: str) -> Task:
    """A test task whose only API is this one."""
    found = [env.task(n) for n in range(SIZES["test"])]
    return next(task for task in found if env._conversations[task.seed].entry["involved_classes"] == [family])


@needs_bfcl
@pytest.mark.parametrize("category", CATEGORIES)
def test_solutions_win_and_what_lacks_a_turn_does_not(category: str) -> None:
    env = FunctionCalling(category)
    for seed in range(4):
        task = env.task(seed)
        solution = turns(env, task)
        assert score(env, task, env.gold(task)) == env.optimum(task) == 1
        assert score(env, task, ["end_turn()"] * len(solution)) == 0
        assert score(env, task, [*(action for turn in solution[:-1] for action in turn), "end_turn()"]) == 0
    env.close()


@needs_bfcl
@pytest.mark.parametrize("every", [pytest.param(5, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("category", CATEGORIES)
def test_every_solution_wins_and_doing_nothing_wins_nowhere(category: str, every: int) -> None:
    env = FunctionCalling(category)
    won: Counter[str] = Counter()
    for task in (env.task(seed, split) for split, size in SIZES.items() for seed in range(0, size, every)):
        won["gold"] += score(env, task, env.gold(task)) == 1
        won["nothing"] += score(env, task, ["end_turn()"] * len(turns(env, task))) == 1
    assert won == {"gold": 200 // every, "nothing": 0}
    env.close()


@needs_bfcl
def test_splits_hold_all_families_and_the_same_numbers_in_all_categories(base: FunctionCalling) -> None:
    late = FunctionCalling("miss_param")
    for split, size in SIZES.items():
        tasks = [base.task(n, split) for n in range(size)]
        assert [late.task(n, split).seed for n in range(size)] == [task.seed for task in tasks]
        families = {name for task in tasks for name in base._conversations[task.seed].entry["involved_classes"]}
        assert len(families) == 8
        with pytest.raises(UserError, match=f"{split} has tasks 0 to {size - 1}"):
            base.task(size, split)


@needs_bfcl
def test_answers_are_those_of_the_package(base: FunctionCalling) -> None:
    task = number_with(base, "GorillaFileSystem")
    first = base.observe(task, [])
    assert first.text.startswith("User: ")
    assert {"ls()", "pwd()", "end_turn()"} <= set(first.actions)
    shown = base.observe(task, ["pwd()"])
    assert base.answer(shown).startswith('{"current_working_directory": "/')
    assert shown.text.startswith(first.text)
    assert base.observe(task, ["end_turn()"]).text.startswith("User: ")
    assert base.observe(task, ["end_turn()"]).text != first.text


@needs_bfcl
def test_only_literal_calls_of_known_functions_reach_the_checker(base: FunctionCalling, tmp_path: Path) -> None:
    task, trap = number_with(base, "GorillaFileSystem"), tmp_path / "trap"
    write = f"__import__('pathlib').Path({str(trap)!r}).touch()"
    attempts = [write, f"cd(folder={write})", f"ls() or {write}", f"cd(folder='x'+{write})", f"(lambda: {write})()"]
    attempts += ["__class__()", "_load_scenario({}, long_context=True)", "ls.__globals__", "kill()"]
    for attempt in attempts:
        shown = base.observe(task, [attempt])
        assert "Nothing was done: " in shown.text
        assert shown.reward == 0
    inside = f"echo(content={write!r}, file_name='notes.txt')"
    assert not base.observe(task, [inside]).over
    solved = [
        *turns(base, task)[0][:-1],
        *attempts,
        "end_turn()",
        *(action for turn in turns(base, task)[1:] for action in turn),
    ]
    assert score(base, task, solved) == 1
    assert not trap.exists()


@needs_bfcl
def test_no_call_computes_for_ever() -> None:
    import mpmath

    env = FunctionCalling()
    found = (env.task(n, split) for split, size in SIZES.items() for n in range(size))
    task = next(one for one in found if "MathAPI" in one.instruction)
    before = mpmath.mp.dps
    assert '"result": 1024' in env.observe(task, ["power(2, 10)"]).text
    assert "exponent is at most 1,000 here" in env.observe(task, ["power(9, 10 ** 9)".replace("10 ** 9", "1000000000")]).text
    assert "precision is at most 1,000 here" in env.observe(task, ["logarithm(2, 10, 100000000)"]).text
    assert "result" in env.observe(task, ["logarithm(2, 10, 77)"]).text
    assert mpmath.mp.dps == before


@needs_bfcl
def test_closed_episodes_leave_nothing_in_the_package() -> None:
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    def instances() -> set[str]:
        return {name for name in vars(multi_turn_utils) if name.endswith("_instance")}

    before, env = instances(), FunctionCalling(live=2)
    for seed in range(5):
        score(env, env.task(seed), env.gold(env.task(seed)))
    assert 0 < len(instances() - before) <= 6  # of the two that are open
    env.close()
    assert instances() - before == set()


@needs_bfcl
def test_a_function_that_comes_late_is_offered_late() -> None:
    env = FunctionCalling("miss_func")
    task = env.task(0)
    late = env._conversations[task.seed].entry["missed_function"]
    turn, (name, *_) = next(iter((int(turn), names) for turn, names in late.items()))
    ends = ["end_turn()"] * turn
    assert name not in {tool.name for tool in env.describe_tools(task, ends[:-1])}
    assert name in {tool.name for tool in env.describe_tools(task, ends)}
    assert env.observe(task, ends).text == "User: I have updated some more functions you can choose from. What about now?"


@needs_bfcl
@pytest.mark.parametrize("category", ["base", "miss_func"])
def test_an_agent_of_langchain_plays_a_conversation(category: str) -> None:
    agents = pytest.importorskip("langchain.agents", reason="NOT TESTED: pip install langchain")
    env = FunctionCalling(category)
    task = env.task(2)
    functions = env._conversations[task.seed].functions
    calls: list[Any] = []
    for action in env.gold(task):
        call = read_call(action, functions)
        calls.append(None if call.name == "end_turn" else (call.name, dict(call.arguments)))
    model, episode = ScriptedCalls(calls=calls), env.episode(task)
    assert episode.play(lambda tools, prompt: agents.create_agent(model, tools, system_prompt=prompt)) == 1
    assert episode.actions == list(env.gold(task))
    assert model.system == []
    assert "end_turn" not in model.shown[0].split()
    assert (len(set(model.shown)) > 1) == (category == "miss_func")


@needs_bfcl
def test_descriptions_are_json_schemas(base: FunctionCalling) -> None:
    from jsonschema import Draft202012Validator

    found = {tool.name: tool for n in range(50) for tool in base.describe_tools(base.task(n))}
    assert len(found) > 80
    for tool in found.values():
        Draft202012Validator.check_schema(dict(tool.schema))
        assert tool.schema["type"] == "object"
        assert tool.description
    assert found["activateParkingBrake"].schema["properties"]["mode"]["enum"] == ["engage", "release"]
