"""tau2-bench: its own solutions win, doing nothing does not, and an agent of LangChain plays it with its tools."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scripted_agent import ScriptedCalls
from worlds_here import needs

from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task
from learngraph.nodes.act.episode import replay_actions
from learngraph.tools.environments.catalogue import open_environment
from learngraph.tools.environments.support.calls import read_call
from learngraph.tools.environments.tau2_bench import TauBench, _open_benchmark

needs_tau2 = needs("tau2")
HAND_OVER = "transfer_to_human_agents(summary='I cannot fix the issue.')"
LOOK_UP = "get_customer_by_phone(phone_number='555-123-2002')"
SIZES = {"train": 74, "test": 40}


@pytest.fixture(scope="module")
def telecom() -> TauBench:
    return TauBench()


def score(env: TauBench, task: Task, actions: Any) -> float:
    """The sum of rewards of these actions; the last one has to end the episode."""
    shown = [env.observe(task, actions[: n + 1]) for n in range(len(actions))]
    assert [one.over for one in shown] == [False] * (len(actions) - 1) + [True]
    return sum(one.reward or 0.0 for one in shown)


def all_tasks(env: TauBench, *splits: str) -> list[Task]:
    return [env.task(seed, split) for split in splits for seed in range(SIZES[split])]


@needs_tau2
def test_the_splits_are_the_official_ones(telecom: TauBench) -> None:
    from tau2.domains.telecom.environment import get_tasks, get_tasks_split

    official, ids = get_tasks_split(), [task.id for task in get_tasks(None)]
    for split in ("train", "test"):
        tasks = all_tasks(telecom, split)
        assert {ids[task.seed] for task in tasks} == set(official[split])
    assert not {ids[telecom.task(n, "dev").seed] for n in range(200)} & set(official["base"])
    with pytest.raises(UserError, match="train has tasks 0 to 73, got 74"):
        telecom.task(74, "train")


@needs_tau2
@pytest.mark.parametrize("seed", range(6))
def test_the_solution_wins_and_doing_nothing_does_not(telecom: TauBench, seed: int) -> None:
    task = telecom.task(seed)
    assert score(telecom, task, telecom.gold(task)) == telecom.optimum(task) == 1
    assert score(telecom, task, ["done()"]) == 0
    assert score(telecom, task, telecom.gold(task)[1:]) == 0


@needs_tau2
@pytest.mark.slow
def test_every_solution_wins_and_doing_nothing_wins_nowhere(telecom: TauBench) -> None:
    won: Counter[str] = Counter()
    for task in all_tasks(telecom, "train", "test"):
        won["gold"] += score(telecom, task, telecom.gold(task)) == 1
        won["nothing"] += score(telecom, task, ["done()"]) == 1
        won["hand over"] += score(telecom, task, [HAND_OVER, "done()"]) == 1
    assert won == {"gold": 114, "hand over": 20, "nothing": 0}


@needs_tau2
def test_handing_over_has_to_be_done(telecom: TauBench) -> None:
    """Where a ticket cannot be solved, the benchmark's assertions hold from the start; the call is what is asked for."""
    task = next(task for task in all_tasks(telecom, "test") if telecom.gold(task)[0] == HAND_OVER)
    assert score(telecom, task, ["done()"]) == 0
    assert score(telecom, task, ["transfer_to_human_agents(summary='other words')", "done()"]) == 1
    assert telecom._benchmark.evaluate(task.seed, []) == 0


@needs_tau2
def test_the_reward_is_that_of_the_benchmark(telecom: TauBench) -> None:
    """Its `evaluate_simulation` takes the product over `reward_basis`, here from the evaluators' parts one by one."""
    from tau2.data_model.message import AssistantMessage, ToolCall, ToolMessage
    from tau2.domains.telecom.environment import get_environment
    from tau2.evaluator.evaluator_action import ActionEvaluator
    from tau2.evaluator.evaluator_env import EnvironmentEvaluator

    for task in (telecom.task(n) for n in range(4)):
        official = telecom._benchmark.tasks[task.seed]
        for actions in (telecom.gold(task), telecom.gold(task)[1:], [HAND_OVER, "done()"]):
            service, messages = get_environment(solo_mode=True), []
            service.set_state(None, official.initial_state.initialization_actions, [])
            for n, action in enumerate(actions[:-1]):
                call = read_call(action, telecom._benchmark.tools)
                asked = ToolCall(id=str(n), name=call.name, arguments=dict(call.arguments))
                answered = service.get_response(asked)
                assert isinstance(answered, ToolMessage)
                messages += [AssistantMessage(role="assistant", tool_calls=[asked]), answered]
            env = EnvironmentEvaluator.calculate_reward(get_environment, official, messages, solo_mode=True)
            act = ActionEvaluator.calculate_reward(official, messages)
            names = {basis.value for basis in official.evaluation_criteria.reward_basis}
            expected = env.reward * (act.reward if "ACTION" in names else 1)
            assert score(telecom, task, list(actions)) == expected


@needs_tau2
def test_ids_are_listed_once_they_were_read(telecom: TauBench) -> None:
    task = telecom.task(0)
    first = telecom.observe(task, [])
    assert {"toggle_data()", "done()", LOOK_UP, HAND_OVER} <= set(first.actions)
    assert not any("L1002" in action or "C1001" in action for action in first.actions)
    second = telecom.observe(task, [LOOK_UP])
    assert "refuel_data(customer_id='C1001', line_id='L1002', gb_amount=2.0)" in second.actions
    assert set(first.actions) <= set(second.actions)
    assert second.text.startswith("Ticket: ")
    assert json.loads(telecom.answer(second))["customer_id"] == "C1001"


@needs_tau2
def test_unlisted_calls_are_carried_out_and_unreadable_ones_cost_a_step(telecom: TauBench) -> None:
    task = telecom.task(0)
    found = telecom.observe(task, ["get_customer_by_name('John Smith', dob='1985-06-15')"])
    assert "C1001" in found.text
    for wrong, said in (("open the door", "cannot be read"), ("reboot()", "no tool 'reboot'; there are can_send_mms")):
        shown = telecom.observe(task, [wrong])
        assert said in shown.text
        assert (shown.reward, shown.over, shown.actions) == (0, False, telecom.observe(task, []).actions)
    assert score(telecom, task, ["open the door", *telecom.gold(task)]) == 1


@needs_tau2
def test_ten_errors_and_the_step_limit_end_an_episode_without_reward(telecom: TauBench) -> None:
    task = telecom.task(0)
    wrong = "get_customer_by_phone(phone_number='1')"
    assert telecom.observe(task, [wrong] * 9).text.endswith("Error: Customer with phone number 1 not found")
    assert score(telecom, task, [wrong] * 10) == 0
    gold = telecom.gold(task)
    short = TauBench(horizon=len(gold) - 1)
    assert not short.knows_optimum(task)
    assert short.observe(task, gold[:-1]) == Observation(short.observe(task, gold[:-1]).text, (), 0.0, True)


@needs_tau2
def test_a_refuel_shows_the_same_bill_each_time(telecom: TauBench) -> None:
    """The package draws the new bill's id at random, and its evaluation would then fail to repeat the calls."""
    task = telecom.task(0)
    actions = [LOOK_UP, "refuel_data('C1001', 'L1003', 1.0)", "refuel_data('C1001', 'L1001', 1.0)"]
    actions += ["get_bills_for_customer('C1001')", "done()"]
    assert score(telecom, task, actions) == 0
    assert TauBench().observe(task, actions[:4]) == telecom.observe(task, actions[:4])


@needs_tau2
def test_the_policy_stands_before_the_task_if_asked_for(telecom: TauBench) -> None:
    with_policy = open_environment("tau2:telecom?policy=manual")
    text = with_policy.task(0).instruction
    assert "# Telecom Agent Policy" in text
    assert len(text) > 20_000
    assert text.endswith(telecom.task(0).instruction)
    assert len(telecom.task(0).instruction) < 700


@needs_tau2
def test_an_agent_of_langchain_plays_a_ticket(telecom: TauBench) -> None:
    agents = pytest.importorskip("langchain.agents", reason="NOT TESTED: pip install langchain")
    task = next(task for task in all_tasks(telecom, "test") if len(telecom.gold(task)) > 3)
    gold = [read_call(action, telecom._benchmark.tools) for action in telecom.gold(task)]
    model = ScriptedCalls(calls=[(call.name, dict(call.arguments)) for call in gold])
    episode = telecom.episode(task)
    assert episode.play(lambda tools, prompt: agents.create_agent(model, tools, system_prompt=prompt)) == 1
    assert episode.over
    assert episode.actions == list(telecom.gold(task))
    assert "To do so, send a message containing a single tool call to the `done` tool" in model.system[0]
    assert "# Telecom Agent Policy" in model.system[0]
    assert episode.request in model.system[0]
    assert "toggle_roaming" in model.shown[0]
    assert "done" in model.shown[0].split()
    assert episode.call("reboot_device()") == "The episode is over: nothing was done."
    played = replay_actions(telecom, task, episode.actions, "agent")
    assert (played.score, len(played.transitions)) == (1, len(gold))


@needs_tau2
def test_an_agent_that_stops_with_words_is_evaluated_too(telecom: TauBench) -> None:
    agents = pytest.importorskip("langchain.agents", reason="NOT TESTED: pip install langchain")
    task = telecom.task(0)
    for calls, expected in ((telecom.gold(task)[:-1], 1), ((), 0)):
        read = [read_call(action, telecom._benchmark.tools) for action in calls]
        model = ScriptedCalls(calls=[(call.name, dict(call.arguments)) for call in read])
        episode = telecom.episode(task)
        assert episode.play(lambda tools, prompt: agents.create_agent(model, tools, system_prompt=prompt)) == expected
        assert episode.actions[-1] == "done()"


@pytest.mark.slow
@needs_tau2
def test_opening_it_reads_no_dotenv_file_and_says_nothing(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("LEAKED=yes")
    code = (
        "import os, sys; from learngraph.tools.environments.tau2_bench import TauBench; env = TauBench(); t = env.task(0);"
        "env.observe(t, ['toggle_data()', 'done()']);"
        "print(os.environ.get('LEAKED'), os.environ.get('PYTHON_DOTENV_DISABLED'), 'litellm' in sys.modules)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHON_DOTENV_DISABLED"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment, check=True
    )
    assert (done.stdout, done.stderr) == ("None None False\n", "")


@needs_tau2
def test_a_missing_part_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "loguru", None)
    _open_benchmark.cache_clear()
    with pytest.raises(UserError, match="tau2 needs the package loguru: pip install --no-deps"):
        TauBench().task(0)
