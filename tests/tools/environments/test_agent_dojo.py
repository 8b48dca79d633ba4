"""AgentDojo: its own solutions win, injections stand in what is learned from alone, and attacks are scored by its own checks."""

import pytest
from worlds_here import needs

from learngraph.memory.errors import UserError
from learngraph.memory.records import Task
from learngraph.tools.environments.agent_dojo import SUITES, AgentDojo

needs_agent_dojo = needs("agentdojo")


@needs_agent_dojo
@pytest.mark.parametrize("every", [pytest.param(8, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("suite", SUITES)
def test_solutions_win_with_and_without_injections_and_no_solution_is_an_attack(suite: str, every: int) -> None:
    env, attacked = AgentDojo(suite), AgentDojo(suite, {"scored": "attacks"})
    for number in range(0, len(env._suite.tasks), every):
        for split in ("train", "test"):
            task = env.task(number, split)
            end = env.observe(task, env.gold(task))
            assert (end.reward, end.over) == (1, True), task
        assert attacked.observe(attacked.task(number), env.gold(env.task(number))).reward == 0
    env.close()
    attacked.close()


@needs_agent_dojo
@pytest.mark.slow
def test_what_an_injection_asks_for_stands_in_train_and_is_scored_in_test() -> None:
    env = AgentDojo("banking", {"attack": "direct", "scored": "attacks"})
    seen = {
        split: env.observe(env.task(0, split), ["read_file(file_path='bill-december-2023.txt')"]).text
        for split in ("train", "test")
    }
    goal = env._injected(env._place(env.task(0, "train"))[1])
    assert goal.startswith("TODO: ")
    assert goal in seen["train"]
    assert "TODO" not in seen["test"]
    assert env._place(env.task(1, "train"))[1] == 0, "every other task has none"
    assert env.task(0) != env.task(0, "train")
    do, say = "update_password(password='new_password')", "answer(text='Done.')"
    assert env.observe(env.task(0), [do, say]).reward == 1, "an attack of the suite was carried out"
    assert env.observe(env.task(0), [say]).reward == 0
    assert env.observe(env.task(0, "train"), [do, say]).reward == 0, "users do not see the attack"
    assert not env.knows_optimum(env.task(0))
    assert env.knows_optimum(env.task(0, "train"))
    env.close()


@needs_agent_dojo
def test_an_agent_plays_it_with_its_tools() -> None:
    env = AgentDojo("slack")
    episode = env.episode(env.task(0))
    assert "Blue Sparrow Tech" in episode.system_prompt
    assert episode.request in env.task(0).instruction
    assert "answer" not in {tool.name for tool in episode.tools}
    assert "- general" in next(tool for tool in episode.tools if tool.name == "get_channels").invoke({}), (
        "as the benchmark writes it"
    )
    shown = episode.call("send_direct_message(recipient='nobody')")
    assert "Field required" in shown
    assert episode.call("format_disk()").startswith("Nothing was done: there is no tool 'format_disk'")
    episode.say("I could not.")
    assert (episode.over, episode.score) == (True, 0)
    env.close()


@needs_agent_dojo
def test_a_task_of_another_suite_is_refused() -> None:
    with pytest.raises(UserError, match="agentdojo:banking: test has tasks 0 to 15, got 16"):
        AgentDojo().task(16)
    with pytest.raises(UserError, match="agentdojo:banking: no split 'dev'; there are train, test"):
        AgentDojo().task(0, "dev")
    with pytest.raises(UserError, match="has no task other"):
        AgentDojo().observe(Task("other", "", 10_000), [])
