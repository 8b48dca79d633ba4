"""Jericho: errors without its package or files, and the real games where they are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from learngraph.memory.errors import UserError
from learngraph.tools.environments.jericho import Jericho, find_valid_actions

BESIDE = Path(__file__).parents[4] / "shared" / "data" / "jericho"
GAMES_DIR = os.environ.get("JERICHO_GAMES") or (str(BESIDE) if BESIDE.is_dir() else "")
needs_package = pytest.mark.skipif(find_spec("jericho") is None, reason="NOT TESTED: pip install --no-deps jericho numpy")
needs_games = pytest.mark.skipif(
    find_spec("jericho") is None or not GAMES_DIR,
    reason="NOT TESTED: pip install --no-deps jericho numpy, and set JERICHO_GAMES to a folder with detective.z5, zork1.z5",
)


@pytest.fixture(scope="module")
def zork() -> Iterator[Jericho]:
    env = Jericho("zork1", horizon=12, games_dir=GAMES_DIR)
    yield env
    env.close()


def test_without_the_package_the_cure_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jericho", None)
    with pytest.raises(UserError, match=r"needs the package jericho .*gcc make && pip install --no-deps jericho numpy"):
        Jericho("detective")


@needs_package
def test_missing_and_wrong_files_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JERICHO_GAMES", raising=False)
    with pytest.raises(UserError, match=r"needs the game file detective.z5: say games_dir=... or set JERICHO_GAMES"):
        Jericho("detective")
    with pytest.raises(UserError, match="is not a folder"):
        Jericho("detective", games_dir=tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no detective.z3 ... .z8 in .*; it has no game files"):
        Jericho("detective", games_dir=tmp_path)
    (tmp_path / "detective.z5").write_bytes(b"\x05" + bytes(2000))
    monkeypatch.setenv("JERICHO_GAMES", str(tmp_path))
    with pytest.raises(UserError, match="is not a version of a game that Jericho knows"):
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
def test_any_text_may_be_said(zork: Jericho) -> None:
    shown = zork.observe(zork.task(0), ["dance with the mailbox"])
    assert shown.reward == 0
    assert not shown.over


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
    first = Jericho("zork1", horizon=12, games_dir=GAMES_DIR, cache_dir=tmp_path)
    shown = first.observe(first.task(0), ["north", "east"])
    assert first.valid.computed_lists == 3
    (file,) = tmp_path.glob("zork1-*.jsonl")
    with file.open("a") as torn:
        torn.write('\n["cut off by a cr')
    second = Jericho("zork1", horizon=12, games_dir=GAMES_DIR, cache_dir=tmp_path)
    assert second.observe(second.task(0), ["north", "east"]) == shown
    assert second.valid.computed_lists == 0
    second.observe(second.task(0), ["north", "north"])
    third = Jericho("zork1", horizon=12, games_dir=GAMES_DIR, cache_dir=tmp_path)
    third.observe(third.task(0), ["north", "north"])
    assert (second.valid.computed_lists, third.valid.computed_lists) == (1, 0)
    code = (
        "from learngraph.tools.environments.jericho import Jericho; import sys; env = Jericho('zork1', games_dir=sys.argv[1]);"
        "print(env.observe(env.task(0), ['north', 'east']).actions)"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code, GAMES_DIR],
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
def test_the_walkthrough_earns_what_is_known_of_it() -> None:
    env = Jericho("zork1", games_dir=GAMES_DIR)
    assert len(env.gold(env.task(0))) == 50
    assert env.optimum(env.task(0)) == 63
    assert env.optimum(env.task(5)) == 63  # the yardstick of every task
    detective = Jericho("detective", games_dir=GAMES_DIR)
    assert detective.given == 10
    assert detective.given + detective.optimum(detective.task(0)) == 360
    assert detective.knows_optimum(detective.task(0))  # all points of the game
    assert not env.knows_optimum(env.task(0))
