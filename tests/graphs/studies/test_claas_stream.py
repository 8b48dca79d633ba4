"""`learngraph claas study`, on a tenth of the stream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from learngraph.graphs.studies import claas_stream as claas_study
from learngraph.graphs.studies.claas_stream import claas
from learngraph.memory.errors import UserError

SMALL = "study --scenarios-per-split 2 --steps-per-scenario 1 --shuffles 1 --seeds 1 --workers 1 --batch-size 4"


def run(flags: str, out: Path) -> int:
    return claas([*f"{SMALL} {flags}".split(), "--out", str(out)])


def trials(out: Path) -> dict[str, dict[str, object]]:
    return {path.stem: json.loads(path.read_text())["trial"] for path in (out / "trials").glob("*.json")}


@pytest.mark.slow
def test_arms_are_played_and_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--arms none icl sdpo", tmp_path) == 0
    told = capsys.readouterr().out
    assert [line.split("|")[1].strip() for line in told.splitlines() if line.startswith("|")][2:5] == ["none", "icl", "sdpo"]
    found = trials(tmp_path)
    assert set(found) == {"none-h0-s0", "icl-h0-s0", "sdpo-h0-s0"}
    for trial in found.values():
        assert [len(row) for row in trial["matrix"]] == [5] * 6  # type: ignore[attr-defined]
        assert len(trial["online"]) == 10  # type: ignore[arg-type]
    assert len({tuple(row) for row in found["none-h0-s0"]["matrix"]}) == 1  # type: ignore[attr-defined]
    assert found["sdpo-h0-s0"]["updates"] > 0  # type: ignore[operator]
    assert found["sdpo-h0-s0"]["first"] <= 10  # type: ignore[operator]
    for name in ("matrices.png", "matrices.svg", "report.md"):
        assert (tmp_path / name).stat().st_size > 100
    with pytest.raises(UserError, match="other settings"):
        run("--arms sdpo --sdpo-rate 0.1", tmp_path)


@pytest.mark.long
def test_the_same_trial_comes_out_the_same(tmp_path: Path) -> None:
    """Also with another age beside it; what is there is not played again."""
    run("--arms reinforce", tmp_path / "a")
    run("--arms reinforce --ages 1 --corrections decoupled", tmp_path / "b")
    one, two = (trials(tmp_path / name) for name in "ab")
    same = ("matrix", "online", "first", "updates", "skipped", "retained")
    assert [one["reinforce-h0-s0"][key] for key in same] == [two["reinforce-h0-s0"][key] for key in same]
    before = (tmp_path / "b" / "trials" / "age-1-decoupled-h0-s0.json").read_bytes()
    run("--arms reinforce --ages 1 --corrections decoupled", tmp_path / "b")
    assert (tmp_path / "b" / "trials" / "age-1-decoupled-h0-s0.json").read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--arms magic", "no arm magic; there are none, icl"),
        ("--shuffles many", "--shuffles is a number"),
        ("--scenarios-per-split 30", "--scenarios-per-split is from 1 to 20"),
        ("--ages 5 --corrections hope", "hope"),
    ],
)
def test_what_cannot_be_played_is_said_before(flags: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        run(flags, tmp_path)
    assert not tmp_path.joinpath("trials").exists()


def test_every_learning_arm_is_a_setting_of_the_method() -> None:
    assert {arm for arm, settings in claas_study.ARMS.items() if settings is None} == {"none", "icl", "icl+text"}
    with pytest.raises(UserError, match="claas study"):
        claas([])
