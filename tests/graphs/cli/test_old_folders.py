"""Run folders that an earlier version wrote (tests/data/before): they are read, go on where they stopped, and end with its numbers.

In `sweep.tar.xz` every run was cut in its second and last episode, in `training_free.tar.xz` in the learning of the first arm. The
`.jsonl` files beside them are what that version printed for the same command when nothing was cut.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from in_process import play_in_process

from learngraph.graphs.cli.main import main
from learngraph.graphs.cli.method_settings import method_settings
from learngraph.graphs.experiments import old_names
from learngraph.graphs.methods import METHODS
from learngraph.memory.storage.checkpoints import open_checkpoints

BEFORE = Path(__file__).parents[2] / "data" / "before"
SWEEP = (
    "run adamem --env toy --prior uniform --author rule --seeds 1 --episodes 2 --horizon 6 --temperature 3 "
    "--compare adamem:high jitrl jitrl:paper icrl tabular"
)
LEARN = (
    "run training-free-grpo --env toy --horizon 6 --problems 2 --held-out 1 --epochs 1 --group-size 2 "
    "--test-problems 1 --test-rollouts 2 --seeds 1 --author rule "
    "--compare training-free-grpo:empty training-free-grpo:shuffled-lessons"
)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The old folders, in a directory where runs are played in this process."""

    play_in_process(monkeypatch, tmp_path)
    for archive in BEFORE.glob("*.tar.xz"):
        with tarfile.open(archive) as held:
            held.extractall(tmp_path, filter="data")
    return tmp_path


def rows(text: str) -> list[dict[str, Any]]:
    """Printed results, by today's names of methods and without times."""
    found = [json.loads(line) for line in text.splitlines()]
    for row in found:
        row.pop("seconds_per_step", None)
        name = "method" if "method" in row else "arm"
        row[name] = old_names.METHODS.get(row[name], row[name])
    return found


def in_columns_of(other: Any, one: Any) -> Any:
    """`one` in the columns that `other` has, at every depth: some are newer than the other, and some had other names."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: in_columns_of(other[name], value) for name, value in one.items() if name in other}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [in_columns_of(*pair) for pair in zip(other, one, strict=True)]
    return one


def assert_same(now: list[dict[str, Any]], before: list[dict[str, Any]]) -> None:
    """The rows are the same in all columns that both have, and most columns are such."""
    assert in_columns_of(before, now) == in_columns_of(now, before)
    assert all(len(was.keys() & row.keys()) > 0.8 * len(was) for was, row in zip(before, now, strict=True))


@pytest.mark.slow
def test_a_run_goes_on_and_ends_with_the_numbers_of_the_version_that_began_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = {path.parent.name: path.read_text() for path in here.glob("sweep/*/episodes.jsonl")}
    assert len(begun) == 6
    assert all(len(text.splitlines()) == 1 for text in begun.values())
    assert main([*SWEEP.split(), "--json", "--out", "sweep"]) == 0
    assert_same(rows(capsys.readouterr().out), rows((BEFORE / "sweep.jsonl").read_text()))
    for name, text in begun.items():
        assert (here / "sweep" / name / "episodes.jsonl").read_text().startswith(text), "the first episode was not played again"


def test_other_settings_are_refused_by_todays_names(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SWEEP.split(), "--out", "sweep", "--min-similarity", "0.9"]) == 2
    said = capsys.readouterr().err
    assert "methods.adamem.min_similarity is null there, 0.9 was asked for" in said
    assert "floor" not in said


def test_memories_checkpoints_and_settings_are_read(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "show", "sweep"]) == 0
    shown = [line.split()[2] for line in capsys.readouterr().out.splitlines()[1:]]
    assert shown == ["adamem-high-s0", "adamem-s0", "icrl-s0", "jitrl-paper-s0", "jitrl-s0", "tabular-s0"]
    assert main(["calibrate", "sweep", "jitrl:paper"]) == 2
    assert "jitrl:paper has rewards on seed 0 alone" in capsys.readouterr().err
    assert main(["adamem", "build", "--source", "sweep", "--out", "bank.jsonl"]) == 0
    assert main(["adamem", "collect", "sweep", "--out", "pairs.jsonl"]) == 2
    said = capsys.readouterr().out
    assert "6 trajectories of 1 task" in said
    assert "runs left out: 1 of mode low, 4 of other methods" in said
    for folder in (here / "sweep").glob("*-s0"):
        with open_checkpoints(str(folder / "checkpoints.sqlite")) as saver:
            kept = saver.get_tuple({"configurable": {"thread_id": folder.name}})
        assert kept is not None
        assert kept.checkpoint["channel_values"]["task"].id == "keep-test-0"


@pytest.mark.slow
def test_learning_goes_on_and_ends_with_the_numbers_of_the_version_that_began_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["library", "show", "tf"]) == 0
    assert "s0/1: 4 lessons" in capsys.readouterr().out
    assert main([*LEARN.split(), "--json", "--out", "tf"]) == 0
    assert_same(rows(capsys.readouterr().out), rows((BEFORE / "training_free.jsonl").read_text()))


@pytest.mark.parametrize("name", ["jitrl", "prompt-update"])
@pytest.mark.parametrize("preset", ["", ":paper", ":reference"])
def test_settings_that_jitrl_has_gained_change_no_run_that_lacks_them(name: str, preset: str, tmp_path: Path) -> None:
    """Of a version without state keys, and of one without patience alone: the same command goes on, under the same digest."""
    usual = method_settings(method := name + preset)
    today = {"methods": {method: asdict(usual)}}
    for lacks in (["prior_patience"], ["prior_patience", "state_key", "embedder", "threshold_decay"]):
        record = {"methods": {method: {k: v for k, v in asdict(usual).items() if k not in lacks}}}
        (tmp_path / "settings.json").write_text(json.dumps(record))
        asked = old_names.former_defaults(tmp_path, method, usual)
        assert old_names.read_settings(tmp_path / "settings.json") == {"methods": {method: asdict(asked)}}
        if asked == usual:
            assert old_names.with_first_names(record) == old_names.with_first_names(today)
    assert asked.state_key == "room"
    assert asked.threshold_decay == (0.1 if preset == ":reference" else 0.0)
    chosen = replace(usual, exploration_bonus=0.5) if not preset else usual
    assert old_names.with_todays_names({"methods": {method: asdict(chosen)}}) == {"methods": {method: asdict(chosen)}}


def test_a_finished_arm_keeps_its_folder(tmp_path: Path) -> None:
    """`training-free-grpo:shuffled` is `:shuffled-lessons` today; what was played under the old name counts."""
    assert old_names.run_stem(tmp_path, "training-free-grpo:shuffled-lessons", 0) == "training-free-grpo-shuffled-lessons"
    (tmp_path / "training-free-grpo-shuffled-s0").mkdir()
    assert old_names.run_stem(tmp_path, "training-free-grpo:shuffled-lessons", 0) == "training-free-grpo-shuffled"
    assert old_names.run_stem(tmp_path, "training-free-grpo:shuffled-lessons", 1) == "training-free-grpo-shuffled-lessons"
    assert old_names.run_stem(tmp_path, "my_package.rest:METHOD", 0) == "my_package-rest-METHOD"


def test_settings_have_their_first_names_in_digests(here: Path) -> None:
    for place in ("sweep", "tf"):
        before = json.loads((here / place / "settings.json").read_text())
        now = old_names.read_settings(here / place / "settings.json")
        assert now != before
        assert old_names.with_first_names(now) == before


@pytest.mark.parametrize("method", old_names.SETTINGS)
def test_every_new_name_is_a_setting_and_no_old_one_is(method: str) -> None:
    names: Mapping[str, str] = old_names.SETTINGS[method]
    settings = asdict(METHODS[method].settings())
    assert set(names.values()) <= settings.keys()
    assert not set(names) & settings.keys()
    assert len(set(names.values())) == len(names)
