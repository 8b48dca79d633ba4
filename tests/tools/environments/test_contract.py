"""What every environment promises: it is a function of its history."""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from worlds_here import JERICHO_GAMES, needs

from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task
from learngraph.tools.environments.alfworld import AlfWorld
from learngraph.tools.environments.arithmetic import Game24
from learngraph.tools.environments.bfcl import FunctionCalling
from learngraph.tools.environments.jericho import Jericho
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.environments.miniwob import MiniWob
from learngraph.tools.environments.passages import Passages
from learngraph.tools.environments.problems import Problems
from learngraph.tools.environments.questions import Questions
from learngraph.tools.environments.science_world import ScienceWorld
from learngraph.tools.environments.tau2_bench import TauBench
from learngraph.tools.environments.text_world_express import GAMES, TextWorldExpress
from learngraph.tools.environments.web_shop import WebShop
from learngraph.tools.environments.writing import Writing

OPENERS: dict[str, Callable[[], Any]] = {
    "toy": KeywordKeep,
    "game24": lambda: Game24({"order": "difficulty"}),
    "writing": lambda: Writing({"source": "own"}),
    "math": Problems,
    "questions": Questions,
    # The way to the coin is another one in each Java machine, and may take more than 30 steps.
    **{f"twx:{game}": lambda game=game: TextWorldExpress(game, horizon=50 if game == "coin" else 30) for game in GAMES},
    "scienceworld": lambda: ScienceWorld("find-non-living-thing", horizon=14),
    "jericho:zork1": lambda: Jericho("zork1", {"games": JERICHO_GAMES}, 12),
    "jericho:detective": lambda: Jericho("detective", {"games": JERICHO_GAMES}, 8),
    "hotpot": Passages,
    "webshop": lambda: WebShop({"products": "48"}),
    "miniwob": lambda: MiniWob("click-checkboxes", horizon=3),
    "tau2": lambda: TauBench(horizon=20),
    "bfcl": FunctionCalling,
}
QUICK = ("coin",)
SLOW = ("twc",)
"""The other games are run by the same code: their turn comes with all tests."""


def _mark(name: str) -> pytest.MarkDecorator:
    return pytest.mark.slow if name in SLOW else pytest.mark.long


MARKS: dict[str, Any] = {
    **dict.fromkeys(("toy", "game24", "writing", "math", "questions", "hotpot", "webshop", "tau2", "bfcl"), ()),
    **{f"twx:{game}": () if game in QUICK else _mark(game) for game in GAMES},
    "scienceworld": [pytest.mark.slow, pytest.mark.long],
    "jericho:zork1": pytest.mark.jericho,
    "jericho:detective": [pytest.mark.jericho, pytest.mark.slow],
    "miniwob": pytest.mark.slow,
    "alfworld": pytest.mark.slow,
}


def _param(name: str) -> Any:
    marks = MARKS[name] if isinstance(MARKS[name], list | tuple) else [MARKS[name]]
    family = name.partition(":")[0]
    return pytest.param(name, marks=[*marks, *([] if family == "alfworld" else [needs(family)])])


@pytest.fixture(scope="module", params=[_param(name) for name in MARKS])
def env(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "alfworld":  # its games may have to be unpacked first
        opened: Any = AlfWorld(settings={"data": str(request.getfixturevalue("alfworld_games"))}, horizon=12)
    else:
        opened = OPENERS[request.param]()
    yield opened
    opened.close()


WRITTEN = ("writing", "math", "questions")
"""Their one action is a whole text, and none are listed."""


def choices(env: Any, task: Task, shown: Observation) -> tuple[str, ...]:
    """What may be done: the listed actions; where none are listed (a passage, a solution), some texts."""
    return shown.actions or (*env.gold(task), "One.\n\nTwo.\n\nThree.\n\nFour.", "Just a line.")


def play(env: Any, task: Task, seed: str, steps: int = 12) -> tuple[tuple[str, ...], list[Observation]]:
    """A random episode: its actions and all its observations."""
    draw, actions = random.Random(seed), tuple[str, ...]()
    seen = [env.observe(task, actions)]
    while not seen[-1].over and len(actions) < steps:
        actions += (draw.choice(choices(env, task, seen[-1])),)
        seen.append(env.observe(task, actions))
    return actions, seen


@pytest.mark.slow
def test_tasks_are_distinct_and_reproducible(env: Any) -> None:
    tasks = [env.task(seed, split) for split in ("train", "dev", "test") for seed in range(3)]
    assert len({task.id for task in tasks}) == 9
    assert len({task.seed for task in tasks}) == 9
    assert tasks[-1] == env.task(2, "test")
    assert all(task.instruction for task in tasks)
    with pytest.raises(UserError, match="no split 'exam'"):
        env.task(0, "exam")


@pytest.mark.slow
def test_the_same_history_shows_the_same(env: Any) -> None:
    task = env.task(1)
    actions, seen = play(env, task, "a")
    assert [env.observe(task, actions[:n]) for n in range(len(seen))] == seen
    # Backwards: each history is a proper prefix of what the live game has seen.
    assert [env.observe(task, actions[:n]) for n in reversed(range(len(seen)))] == seen[::-1]


def test_interleaved_histories_do_not_mix(env: Any) -> None:
    tasks = [env.task(seed) for seed in (0, 0, 1, 2)]
    episodes = [play(env, task, f"b{n}") for n, task in enumerate(tasks)]
    for step in range(12):
        for task, (actions, seen) in zip(tasks, episodes, strict=True):
            if step < len(seen):
                assert env.observe(task, actions[:step]) == seen[step]


@pytest.mark.slow
def test_threads_do_not_mix(env: Any) -> None:
    jobs = [(env.task(n % 3), f"c{n}") for n in range(8)]
    alone = [play(env, task, seed) for task, seed in jobs]
    env.close()  # so that the threads start games at the same time
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda job: play(env, *job), jobs))
    assert together == alone


@pytest.mark.slow
def test_actions_are_sorted_without_repeats_and_none_when_over(env: Any) -> None:
    for n in range(4):
        _, seen = play(env, env.task(n), f"d{n}", steps=env.horizon)
        assert seen[-1].over
        assert seen[-1].actions == ()
        for shown in seen[:-1]:
            assert not shown.over
            assert shown.actions or env.name.startswith((*WRITTEN, "hotpot"))
            assert list(shown.actions) == sorted(set(shown.actions))


def test_the_horizon_ends_the_episode(env: Any) -> None:
    for n in range(4):
        actions, seen = play(env, env.task(n), f"e{n}", steps=1000)
        assert len(actions) <= env.horizon
        with pytest.raises(UserError, match="over after"):
            env.observe(env.task(n), (*actions, choices(env, env.task(n), seen[0])[0]))


def test_gold_reaches_the_optimum(env: Any) -> None:
    if not hasattr(env, "gold"):  # nobody wrote the solutions down
        return
    # A walkthrough is sure to work with its own random numbers only.
    for n in range(1 if env.name.startswith("jericho") else 5):
        task = env.task(n)
        path = env.gold(task)
        assert 0 < len(path) <= env.horizon
        shown = [env.observe(task, path[: k + 1]) for k in range(len(path))]
        assert sum(o.reward for o in shown) == pytest.approx(env.optimum(task))
        assert env.optimum(task) > 0


def test_what_is_not_admissible_is_refused(env: Any) -> None:
    task = env.task(0)
    if getattr(env, "free_text", False):  # a parser takes any text, and answers it
        assert env.observe(task, ["fly to the moon"]).reward == 0
        return
    if hasattr(env, "read"):  # it takes written text, and says what it makes of it
        assert env.observe(task, [""]) == Observation(env.observe(task, [""]).text, (), None, True)
        assert "cannot be read" in env.observe(task, [""]).text
        return
    with pytest.raises(UserError, match=r"'fly to the moon' is not admissible .*step 0 of .*choose one of"):
        env.observe(task, ["fly to the moon"])
    with pytest.raises(UserError):
        env.observe(task, [""])
    assert env.observe(task, ()).actions  # and the game goes on


def test_abstract_is_a_function_of_the_observation(env: Any) -> None:
    _, seen = play(env, env.task(2), "f")
    for shown in seen:
        key = env.abstract(shown)
        assert key
        assert key == env.abstract(Observation(shown.text))


def test_a_written_answer_is_a_whole_episode(env: Any) -> None:
    if not hasattr(env, "read"):
        return
    task = env.task(3)
    path = env.gold(task)
    whole = "Here it is.\n\n" + ("Passage:\n" if len(path) == 1 else "") + "\n".join(path)
    if env.name.startswith(("math", "questions")):  # the solution is the answer's own text, and its verdict what counts
        assert env.read(whole) == (whole,)
        assert env.verify(task, (whole,)) == env.verify(task, path) == [1.0]
    else:
        assert env.read(whole) == path
    assert len(env.verify(task, path)) == len(path)
    for reply in ("", "Sorry, no.", "\n".join(path)):
        actions = env.read(reply)
        assert [env.observe(task, actions[:n]).over for n in range(len(actions) + 1)] == [False] * len(actions) + [True]
    assert env.verify(task, env.read("")) == [None]


@pytest.mark.parametrize("name", [_param("hotpot"), _param("webshop")])
def test_what_can_be_done_stands_below_what_is_shown_and_nowhere_else(name: str) -> None:
    """Tasks are compared by their text, and states by theirs: what all have in common would make them all alike."""
    world = OPENERS[name]()
    task = world.task(0)
    actions, seen = play(world, task, "g", steps=world.horizon)
    assert "Actions: " not in task.instruction
    assert [shown.text.count("\nActions: search[words]") for shown in seen] == [1] * len(actions) + [0]
    for shown in seen:
        above = shown.text.partition("\nActions: ")[0]
        assert "Actions: " not in world.abstract(shown)
        assert world.abstract(shown) == world.abstract(Observation(above))
