"""ALFWorld: its folder and files without any package, and the real games where they are."""

import contextlib
import importlib
import io
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task
from learngraph.nodes.act.episode import replay_actions, takes_unlisted_actions
from learngraph.nodes.extract.rollouts import max_score
from learngraph.tools.environments.alfworld import SPLITS, TASK_TYPES, AlfWorld
from learngraph.tools.environments.catalogue import open_environment

WALK = ["go to desk 1", "take pen 1 from desk 1", "go to bed 1", "move pen 1 to bed 1"]


def put(root: Path, split: str, kind: str, number: int, **changes: Any) -> Path:
    """A file that looks like a game, as far as it is read before it is played."""
    path = root / "json_2.1.1" / split / f"{kind}-Pen-None-Bed-{number}" / f"trial_{number}" / "game.tw-pddl"
    path.parent.mkdir(parents=True)
    grammar = json.dumps({"intro": [{"rhs": "Hello"}], "task": [{"rhs": f"Your task is to: put pen {number} in bed."}]})
    data = {"pddl_domain": "()", "grammar": grammar, "pddl_problem": "()", "solvable": True, "walkthrough": WALK}
    path.write_text(json.dumps({key: value for key, value in {**data, **changes}.items() if value is not None}))
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Twenty files of each type in each of three splits."""
    for split in SPLITS.values():
        for kind in TASK_TYPES:
            for number in range(20):
                put(tmp_path, split, kind, number)
    return tmp_path


@pytest.fixture(autouse=True)
def nowhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No games but those that a test names."""
    if "alfworld_games" in request.fixturenames:
        request.getfixturevalue("alfworld_games")
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def shown(env: AlfWorld, task: Task, actions: Sequence[str]) -> list[Observation]:
    return [env.observe(task, actions[:n]) for n in range(len(actions) + 1)]


def test_without_games_the_cure_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"say data=DIR or set ALFWORLD_DATA .*textworld\[pddl\].*alfworld-download"):
        AlfWorld().task(0)
    with pytest.raises(UserError, match=r"holds no games: expected json_2.1.1/valid_seen/\.\.\. in it; get them with"):
        AlfWorld(settings={"data": str(tmp_path)}).task(0)
    put(tmp_path, "train", TASK_TYPES[0], 1)
    with pytest.raises(
        UserError, match=r"no games in .*/valid_seen; there are train, and \?split=NAME plays another one .*; or get them"
    ):
        AlfWorld(settings={"data": str(tmp_path)}).task(0)
    with pytest.raises(UserError, match=f"no games of type {TASK_TYPES[1]} in .*/train"):
        AlfWorld(TASK_TYPES[1], {"data": str(tmp_path)}).task(0, "train")


def test_a_folder_may_be_named_in_four_ways(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = AlfWorld(settings={"data": str(tree)}).task(7)
    for folder in (tree / "json_2.1.1", tree / "json_2.1.1" / "valid_seen"):
        assert AlfWorld(settings={"data": str(folder)}).task(7) == expected
    monkeypatch.setenv("ALFWORLD_DATA", str(tree))
    assert AlfWorld().task(7) == expected
    assert open_environment(f"alfworld?data={tree}").task(7) == expected
    monkeypatch.delenv("ALFWORLD_DATA")
    monkeypatch.setenv("HOME", str(tree / "home"))
    (tree / "home" / ".cache").mkdir(parents=True)
    (tree / "home" / ".cache" / "alfworld").symlink_to(tree)
    assert AlfWorld().task(7) == expected


def test_what_is_not_a_game_is_named(tmp_path: Path) -> None:
    path = put(tmp_path, "valid_seen", TASK_TYPES[1], 1)
    env = AlfWorld(settings={"data": str(tmp_path)})
    good = path.read_text()
    for text, said in [
        (good[:-9], "is not a game: Unterminated string"),
        ("", "is not a game: Expecting value"),
        ("[1, 2]", "is not a game: it has no pddl_domain, grammar, pddl_problem, walkthrough"),
        (json.dumps({**json.loads(good), "grammar": "{}"}), "is not a game: its grammar has no line 'Your task is to: ...'"),
        (json.dumps({**json.loads(good), "solvable": False}), "cannot be solved; take it out of the folder"),
    ]:
        path.write_text(text)
        with pytest.raises(UserError, match=said) as raised:
            env.task(0)
        assert str(path) in str(raised.value)
        assert "\n" not in str(raised.value)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"is not a game: .*utf-8"):
        env.task(0)


def test_tasks_come_in_a_fixed_mixed_order(tree: Path) -> None:
    env = AlfWorld(settings={"data": str(tree)})
    tasks = {split: [env.task(n, split) for n in range(120)] for split in SPLITS}
    assert len({task.seed for split in tasks.values() for task in split}) == 360
    assert [task.id for task in tasks["test"][:2]] == ["alfworld-test-0", "alfworld-test-1"]
    again = AlfWorld(settings={"data": str(tree)})
    assert tasks == {split: [again.task(n, split) for n in range(120)] for split in SPLITS}
    kinds = [env._file(task).parts[-3].partition("-")[0] for task in tasks["test"]]
    assert Counter(kinds) == dict.fromkeys(TASK_TYPES, 20)
    assert len(set(kinds[:20])) == 6
    assert all(task.instruction.startswith("Your task is to: put pen ") for task in tasks["train"])
    with pytest.raises(UserError, match="no split 'exam'; there are train, dev, test"):
        env.task(0, "exam")
    with pytest.raises(UserError, match="test has tasks 0 to 119, got 120"):
        env.task(120)


def test_a_task_means_the_same_game_whatever_else_is_there(tree: Path, tmp_path: Path) -> None:
    env = AlfWorld(settings={"data": str(tree)})
    task = env.task(3)
    path = env._file(task)
    for other in (tree / "json_2.1.1" / "valid_seen").glob("look*/*/game.tw-pddl"):
        if other != path:
            other.unlink()
    assert AlfWorld(settings={"data": str(tree)})._file(task) == path
    with pytest.raises(UserError, match=r"the game of strange \(5\) is not in .*: make tasks with task\(\)"):
        env.observe(Task("strange", "", 5), ())


def test_a_type_and_a_folder_are_told_by_the_name(tree: Path) -> None:
    env = AlfWorld("pick_two_obj_and_place", {"data": str(tree)}, horizon=30)
    assert (env.name, env.horizon) == ("alfworld", 30)
    assert env.task(19).id == "pick_two_obj_and_place-test-19"
    assert all("pick_two_obj_and_place" in str(env._file(env.task(n))) for n in range(20))
    with pytest.raises(UserError, match="test has tasks 0 to 19, got 20"):
        env.task(20)
    put(tree, "valid_unseen", TASK_TYPES[1], 1)
    unseen = AlfWorld(settings={"data": str(tree), "split": "valid_unseen"})
    assert unseen.name == "alfworld"  # one domain: banks serve all of it
    assert unseen.task(0).id == "alfworld-valid_unseen-0"
    assert unseen.task(0, "train") == AlfWorld(settings={"data": str(tree)}).task(0, "train")


def test_what_the_authors_leave_out_is_left_out(tree: Path) -> None:
    put(tree, "valid_seen", "pick_and_place_with_movable_recep", 1)
    put(tree, "valid_seen", f"{TASK_TYPES[1]}-AppleSliced", 1)
    with pytest.raises(UserError, match="test has tasks 0 to 119"):
        AlfWorld(settings={"data": str(tree)}).task(120)


def test_what_a_walkthrough_is_too_long_for_is_no_optimum(tree: Path) -> None:
    """A reward of 1 is still the solved task."""
    short = AlfWorld(settings={"data": str(tree)}, horizon=len(WALK) - 1)
    task = short.task(0)
    assert (short.optimum(task), short.knows_optimum(task)) == (0.0, False)
    assert short.gold(task) == tuple(WALK[:-1])
    assert max_score(short, task) == 1.0


def test_its_list_of_actions_is_complete() -> None:
    assert not takes_unlisted_actions(AlfWorld())


def test_the_abstract_state_does_not_depend_on_order() -> None:
    env = AlfWorld()
    state = "\n\nPlace: desk 1\nCarrying: pen 1"
    one = Observation("You arrive at desk 1. On the desk 1, you see a pen 2, a mug 1, and a book 3." + state)
    other = Observation("You arrive at desk 1. On the desk 1, you see a book 3, a pen 2, and a mug 1." + state)
    assert env.abstract(one) == env.abstract(other)
    assert env.abstract(one) == (
        "You arrive at desk 1. On the desk 1, you see book 3, mug 1, pen 2.\nPlace: desk 1\nCarrying: pen 1"
    )
    assert env.abstract(Observation(one.text.replace("pen 1", "nothing"))) != env.abstract(one)


def test_without_the_packages_the_cure_is_said(tree: Path) -> None:
    code = (
        "import sys; sys.modules['textworld'] = None\n"
        "from learngraph.tools.environments.alfworld import AlfWorld\n"
        f"env = AlfWorld(settings={{'data': {str(tree)!r}}})\n"
        "try: env.observe(env.task(0), ())\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tree)
    assert done.stdout.startswith("UserError alfworld needs the packages textworld[pddl] and alfworld")
    assert 'pip install "textworld[pddl]" alfworld' in done.stdout


# With the real games


@pytest.fixture(scope="module")
def env(alfworld_games: Path) -> Iterator[AlfWorld]:
    opened = AlfWorld(settings={"data": str(alfworld_games)})
    yield opened
    opened.close()


@pytest.mark.slow
def test_a_problem_that_is_none_is_named(alfworld_games: Path, tmp_path: Path) -> None:
    path = put(tmp_path, "valid_seen", TASK_TYPES[1], 1)
    broken = AlfWorld(settings={"data": str(tmp_path)})
    with pytest.raises(UserError, match=r"valid_seen/.*/game.tw-pddl cannot be played: ") as raised:
        broken.observe(broken.task(0), ())
    assert "\n" not in str(raised.value)
    real = AlfWorld(settings={"data": str(alfworld_games)})
    data = json.loads(real._file(real.task(0)).read_text())
    path.write_text(json.dumps({**data, "pddl_problem": data["pddl_problem"][:2000]}))
    with pytest.raises(UserError, match=r"valid_seen/.*/game.tw-pddl cannot be played: "):
        broken.observe(broken.task(0), ())


@pytest.mark.slow
def test_a_walkthrough_shows_what_the_agent_knows_of_itself(env: AlfWorld) -> None:
    heating = (env.task(n) for n in range(140))
    task = next(task for task in heating if "pick_heat" in str(env._file(task)) and len(env.gold(task)) < 9)
    path = env.gold(task)
    seen = shown(env, task, path)
    assert seen[0].text.startswith("You are in the middle of a room. Looking quickly around you, you see a ")
    assert seen[0].text.endswith("Place: middle of the room\nCarrying: nothing")
    assert "Welcome" not in seen[0].text
    assert "Your task" not in seen[0].text
    for n, action in enumerate(path, 1):
        words = action.split()
        thing = " ".join(words[1:3])
        if words[0] == "go":
            assert f"\nPlace: {action.removeprefix('go to ')}\n" in seen[n].text
        elif words[0] == "take":
            assert seen[n].text.endswith(f"Carrying: {thing}")
        elif words[0] == "heat":
            assert seen[n].text.endswith(f"Carrying: hot {thing}")
        elif words[0] == "move":
            assert seen[n].text.endswith(f"Carrying: nothing\nPut: hot {thing} in {' '.join(words[4:])}")
    assert [o.reward for o in seen] == [0.0] * len(path) + [1.0]
    assert [o.over for o in seen] == [False] * len(path) + [True]
    trajectory = replay_actions(env, task, path, "gold", 3)
    assert (trajectory.id, trajectory.score, trajectory.domain) == ("gold/3", 1.0, "alfworld")
    assert [step.action for step in trajectory.transitions] == list(path)


@pytest.mark.slow
def test_a_wrong_action_costs_a_step_and_changes_nothing(env: AlfWorld) -> None:
    task = env.task(0)
    first, go = env.gold(task)[:2]
    before = env.observe(task, [first])
    for wrong in ("dance", "open the window", "go to moon 1"):
        after = env.observe(task, [first, wrong])
        assert after.text == "Nothing happens.\n\n" + before.text.rpartition("\n\n")[2]
        assert env.is_refused(after)
        assert (after.actions, after.reward, after.over) == (before.actions, 0.0, False)
        assert env.observe(task, [first, wrong, go]) == env.observe(task, [first, go])
    assert not env.is_refused(before)
    assert "help" not in before.actions
    assert "Available commands" in env.observe(task, [first, "help"]).text
    assert not env.is_refused(env.observe(task, [first, "help"]))
    assert env.observe(task, [first, f"  {go.upper()} "]) == env.observe(task, [first, go])


@pytest.mark.slow
def test_opening_games_leaves_no_traces(alfworld_games: Path, tmp_path: Path) -> None:
    code = (
        "import os, sys, threading\n"
        "from learngraph.tools.environments.alfworld import AlfWorld\n"
        f"env = AlfWorld(settings={{'data': {str(alfworld_games)!r}}})\n"
        "assert not {'textworld', 'alfworld', 'fast_downward'} & set(sys.modules)\n"
        "out, argv = sys.stdout, list(sys.argv)\n"
        "env.observe(env.task(0), ())\n"
        "assert (sys.stdout, sys.argv) == (out, argv), sys.argv\n"
        "assert 'ALFWORLD_DATA' not in os.environ\n"
        "assert not {'torch', 'cv2', 'ai2thor'} & set(sys.modules)\n"
        "env.close()"
    )
    home = {**os.environ, "HOME": str(tmp_path / "own")}
    done = subprocess.run(
        [sys.executable, "-c", code, "one", "--two"], capture_output=True, text=True, check=True, cwd=tmp_path, env=home
    )
    assert done.stdout == ""
    assert not (tmp_path / "own").exists()


@pytest.mark.slow
def test_texts_actions_and_outcomes_are_the_packages_own(env: AlfWorld) -> None:
    for n in range(3):
        task = env.task(n)
        theirs = Published(env._file(task))
        draw, gold, actions = random.Random(n), list(env.gold(task)), list[str]()
        while True:
            mine = env.observe(task, actions)
            feedback, listed, won = theirs.at(actions)
            if not actions:
                feedback = feedback.split("\n")[1]
            assert mine.text.rpartition("\n\n")[0] == feedback
            assert (mine.reward == 1.0) is won
            if mine.over:
                break
            assert set(mine.actions) == listed - {"help"}
            step_aside = len(actions) % 3 == 2 or not gold or gold[0] not in mine.actions
            near = [action for action in mine.actions if not action.startswith("go to ")]
            actions.append(draw.choice(near) if step_aside else gold.pop(0))


class Published:
    """A game as the packages play it: TextWorld's environment with ALFWorld's names."""

    def __init__(self, path: Path) -> None:
        environment = importlib.import_module("textworld.envs.pddl.pddl").PddlEnv
        infos = importlib.import_module("textworld").EnvInfos
        names = importlib.import_module("alfworld.agents.utils.misc").Demangler
        self.game = environment(infos(admissible_commands=True, won=True))
        argv = sys.argv
        with contextlib.redirect_stdout(io.StringIO()):
            self.game.load(str(path))
            known = names(game_infos=self.game._entity_infos)
            for info in self.game._entity_infos.values():
                info.name = known.demangle_alfred_name(info.id)
            self.state = self.game.reset()
        sys.argv = argv

    def at(self, actions: Sequence[str]) -> tuple[str, set[str], bool]:
        if actions:
            self.state, _, _ = self.game.step(actions[-1])
        lines = (" ".join(line.split()) for line in self.state.feedback.split("\n"))
        said = "\n".join(line for line in lines if line)
        return said, set(self.state["admissible_commands"]), bool(self.state["won"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", TASK_TYPES)
def test_walkthroughs_win(alfworld_games: Path, kind: str) -> None:
    env = AlfWorld(kind, {"data": str(alfworld_games)})
    for n in range(3):
        task = env.task(n)
        end = env.observe(task, env.gold(task))
        assert (end.reward, end.over) == (1.0, True), task
    env.close()
