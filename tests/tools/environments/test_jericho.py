"""Jericho: errors without its package or files, and the real games where they are."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from worlds_here import JERICHO_GAMES, needs

from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation
from learngraph.tools.environments.jericho import Jericho, _Episode, default_cache, find_valid_actions

needs_package = pytest.mark.skipif(find_spec("jericho") is None, reason="NOT TESTED: pip install --no-deps jericho numpy")
needs_games = needs("jericho")


@pytest.fixture(autouse=True, scope="module")
def _cache_of_this_test_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def zork() -> Iterator[Jericho]:
    env = Jericho("zork1", {"games": JERICHO_GAMES}, 12)
    yield env
    env.close()


@needs_package
def test_missing_and_wrong_files_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JERICHO_GAMES", raising=False)
    with pytest.raises(UserError, match=r"needs the game file detective.z5: say games=FOLDER or set .JERICHO_GAMES"):
        Jericho("detective")
    with pytest.raises(UserError, match="is not a folder"):
        Jericho("detective", {"games": str(tmp_path / "nowhere")})
    with pytest.raises(UserError, match=r"no detective.z3 ... .z8 in .*; it has no game files"):
        Jericho("detective", {"games": str(tmp_path)})
    monkeypatch.setenv("JERICHO_GAMES", str(tmp_path))
    for damaged in (b"\x05" + bytes(2000), b"", b"no game at all", b"\x09" + bytes(70000)):
        (tmp_path / "detective.z5").write_bytes(damaged)  # the interpreter would end the process at some of them
        with pytest.raises(UserError, match=r"is damaged, or not a version of a game that Jericho knows \(by its checksum, "):
            Jericho("detective")
    with pytest.raises(UserError, match=r"no zork1.z3 ... .z8 in .*; it has detective"):
        Jericho("zork1")


@pytest.mark.jericho
@needs_games
def test_text_state_and_actions_of_zork(zork: Jericho) -> None:
    task = zork.task(0)
    start = zork.observe(task, ())
    assert start.text.count("West of House") == 1
    assert "north" in start.actions
    tree = ["north", "north", "up"]
    before = zork.observe(task, tree)
    assert zork.abstract(before).startswith("Up a Tree\n")
    assert "take egg" in before.actions
    after = zork.observe(task, [*tree, "take egg"])
    assert after.reward == 5
    assert after.text.startswith("Taken.")
    assert zork.abstract(after).endswith("You are carrying:\nA jewel-encrusted egg")
    # Seen from both sides: going and coming back is the same state.
    assert zork.abstract(zork.observe(task, ["south", "west"])) == zork.abstract(start)


@pytest.mark.jericho
@needs_games
@pytest.mark.parametrize("command", ["save", "RESTORE", "north. save", "look then undo"])
def test_no_command_reaches_beyond_the_episode(
    zork: Jericho, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before, after = (zork.observe(zork.task(0), actions) for actions in (["south"], ["south", command]))
    assert after.text.startswith("That command is not available here.")
    assert (zork.abstract(after), after.actions) == (zork.abstract(before), before.actions)
    assert not list(tmp_path.iterdir())


@pytest.mark.jericho
@needs_games
def test_lists_of_actions_are_kept_and_the_same_in_every_process(zork: Jericho, tmp_path: Path) -> None:
    first = Jericho("zork1", {"games": JERICHO_GAMES, "cache": str(tmp_path)}, 12)
    shown = first.observe(first.task(0), ["north", "east"])
    assert first.valid.computed_lists == 3
    assert zork.valid.cache_file == default_cache() / first.valid.cache_file.name
    (file,) = tmp_path.glob("zork1-*.jsonl")
    with file.open("a") as torn:
        torn.write('\n["cut off by a cr')
    second = Jericho("zork1", {"games": JERICHO_GAMES, "cache": str(tmp_path)}, 12)
    assert second.observe(second.task(0), ["north", "east"]) == shown
    assert second.valid.computed_lists == 0
    second.observe(second.task(0), ["north", "north"])
    third = Jericho("zork1", {"games": JERICHO_GAMES, "cache": str(tmp_path)}, 12)
    third.observe(third.task(0), ["north", "north"])
    assert (second.valid.computed_lists, third.valid.computed_lists) == (1, 0)
    code = (
        "from learngraph.tools.environments.jericho import Jericho; import sys; env = Jericho('zork1', {'games': sys.argv[1]});"
        "print(env.observe(env.task(0), ['north', 'east']).actions)"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code, JERICHO_GAMES],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert done.stdout.strip() == str(shown.actions)


@pytest.mark.jericho
@needs_games
def test_working_out_leaves_the_game_as_it_was(zork: Jericho) -> None:
    emulator = zork._emulator(0)
    emulator.reset()
    before = emulator.get_world_state_hash(), emulator.get_moves(), emulator.get_score()
    assert find_valid_actions(emulator) == find_valid_actions(emulator)
    assert (emulator.get_world_state_hash(), emulator.get_moves(), emulator.get_score()) == before


@pytest.mark.jericho
@needs_games
@pytest.mark.parametrize(
    ("game", "given", "points"),
    [
        ("detective", 10, {15: 70, 50: 360, 60: 360, 110: 360}),
        ("library", 0, {15: 0, 50: 30, 60: 30, 110: 30}),
        ("zork1", 0, {15: 15, 50: 63, 60: 63, 110: 102}),
    ],
)
def test_the_walkthrough_earns_what_is_known_of_it_at_any_horizon(game: str, given: int, points: dict[int, int]) -> None:
    """With the points that the game gives before the first action, as published scores count."""
    for horizon, score in points.items():
        env = Jericho(game, {"games": JERICHO_GAMES}, horizon)
        assert len(env.gold(env.task(0))) == min(horizon, len(env._walkthrough))
        assert env.given == given
        assert env.given + env.optimum(env.task(0)) == score
        assert env.optimum(env.task(5)) == env.optimum(env.task(0))  # the yardstick of every task
        assert env.knows_optimum(env.task(0)) == (score == env._most)
        fixed = Jericho(game, {"games": JERICHO_GAMES, "seed": "0"}, horizon)
        task = fixed.task(7)
        played = (
            [fixed.observe(task, fixed.gold(task)[: n + 1]).reward for n in range(len(fixed.gold(task)))]
            if horizon == 15
            else []
        )
        assert not played or sum(played) == env.optimum(task)


@pytest.mark.jericho
@needs_games
def test_with_one_seed_every_task_is_the_same_game() -> None:
    env = Jericho("zork1", {"games": JERICHO_GAMES, "seed": "0"}, 8)
    tasks = [env.task(n) for n in range(3)]
    assert len({task.id for task in tasks}) == 3
    assert len({env.start(task) for task in tasks}) == 1
    assert len({env.observe(task, ["north", "wait"]).text for task in tasks}) == 1
    with pytest.raises(UserError, match="seed is a whole number from 0 to 999999, got '-1'"):
        Jericho("zork1", {"games": JERICHO_GAMES, "seed": "-1"})


@pytest.mark.jericho
@needs_games
def test_a_game_that_hangs_is_given_up_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Jericho("zork1", {"games": JERICHO_GAMES}, 8, time_limit=30)
    task, never = env.task(0), threading.Event()
    env.observe(task, ["north"])

    def step(episode: _Episode, action: str) -> Observation:
        if action == "loop":
            never.wait()
        return real(episode, action)

    real = _Episode._step_now
    monkeypatch.setattr(_Episode, "_step_now", step)
    env.time_limit = 0.3
    with pytest.raises(
        UserError, match=r"of zork1-test-0 died twice at step 1 \('loop'\): TimeoutError: no answer within 0.3 s"
    ):
        env.observe(task, ["north", "loop"])
    env.time_limit = 30
    hung = {id(one) for one in env._idle.get(0, [])}
    assert env.observe(task, ["north", "wait"]).text  # in a game of its own: the hung ones are not used again
    assert len(hung) <= 1
    never.set()
    env.close()


@pytest.mark.jericho
@needs_games
def test_a_state_where_nothing_changes_the_world_offers_to_let_time_pass(
    zork: Jericho, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator = zork._emulator(0)
    emulator.reset()
    monkeypatch.setattr(emulator, "_filter_candidate_actions", lambda *_, **__: {})
    assert find_valid_actions(emulator) == ("look", "wait")


@pytest.mark.jericho
@needs_games
def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    env = Jericho("zork1", {"games": JERICHO_GAMES, "cache": str(tmp_path / "file")}, 8)
    with pytest.warns(UserWarning, match="lists of actions are not kept in"):
        shown = env.observe(env.task(0), [])
    assert shown.actions
    assert env.observe(env.task(0), ["north"]).actions
