"""`learngraph claas study`, on a tenth of the stream."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from learngraph.graphs.claas import CLaaS
from learngraph.graphs.experiments import claas_stream as claas_study
from learngraph.graphs.experiments.claas_curves import draw_curves, running_mean
from learngraph.graphs.experiments.claas_stream import claas
from learngraph.graphs.experiments.continual import Trial
from learngraph.memory.errors import UserError

SMALL = "study --scenarios-per-split 2 --steps-per-scenario 1 --shuffles 1 --seeds 1 --workers 1"


def run(flags: str, out: Path) -> int:
    return claas([*f"{SMALL} {flags}".split(), "--out", str(out)])


def trials(out: Path) -> dict[str, dict[str, object]]:
    return {path.stem: json.loads(path.read_text())["trial"] for path in (out / "trials").glob("*.json")}


@pytest.mark.long
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
        run("--arms sdpo --scenarios-per-split 3", tmp_path)


@pytest.mark.long
def test_the_same_stream_through_the_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Gate on, a learner beside: versions go live while scenarios are played, and the curves say when."""
    assert run("--arms none reinforce service:reinforce --seconds-per-scenario 2", tmp_path) == 0
    told = capsys.readouterr().out
    assert "service:reinforce" in told
    assert "dropped" in told
    found = trials(tmp_path)
    quick, served = found["reinforce-h0-s0"], found["service-reinforce-h0-s0"]
    assert [len(row) for row in served["matrix"]] == [5] * 6  # type: ignore[attr-defined]
    assert served["matrix"][0] == quick["matrix"][0]  # type: ignore[index]  # the same untrained model in the same exam
    assert served["updates"] > 0  # type: ignore[operator]
    assert served["first"] <= 10  # type: ignore[operator]
    assert quick["dropped"] is not None
    curves: Any = served["curves"]
    assert {name: len(values) for name, values in curves.items()} == (
        dict.fromkeys(("loss", "norm", "entropy", "seconds", "time"), served["updates"])
        | dict.fromkeys(("began", "ended", "buffer"), 10)
    )
    assert curves["began"][-1] >= 18, "nobody waits for the learner, and nobody is quicker than a user"
    overlap = [end for end in curves["time"] if curves["began"][0] < end < curves["began"][-1]]
    assert overlap, "steps end while the stream goes on"
    assert (tmp_path / "curves.png").stat().st_size > 1000


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
        ("--arms service:icl", "no arm service:icl"),
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


def test_arms_have_the_settings_that_are_served() -> None:
    study = claas_study.ClaasStudyOptions(arms=("mixed", "service:ppo", "fresh"), shuffles="1", seeds="7,")
    mixed, service, fresh = claas_study._jobs(study)
    assert mixed.settings == replace(CLaaS(), seed=7)
    served = CLaaS.ppo()
    assert service.settings == replace(served, rollout=replace(served.rollout, keep_versions=100_000), seed=7)
    assert (service.name, service.seconds) == ("service-ppo-h0-s7", 1.0)
    assert fresh.settings is not None
    assert not fresh.settings.gate.enabled
    assert (fresh.settings.replay.max_age, fresh.settings.replay.held_out_share) == (1, 0.0)


@pytest.mark.slow
def test_curves_are_means_over_trials(tmp_path: Path) -> None:
    assert running_mean([1.0, 0.0, 1.0, 1.0], 2) == [1.0, 0.5, 0.5, 1.0]
    steps = {"loss": (2.0, 1.0), "norm": (1.0, 1.0), "entropy": (3.0, 2.0), "seconds": (0.5, 0.5), "time": (1.0, 2.0)}
    timed = {**steps, "began": (0.0, 1.0), "ended": (0.4, 1.5), "buffer": (3.0, 8.0)}
    arms = {
        "none": [Trial("none", 0, 0, ((0.5,), (0.5,)), (1.0, 0.0))],
        "service:sdpo": [Trial("service:sdpo", 0, n, ((0.5,), (0.5,)), (1.0, 0.0), curves=timed) for n in range(2)],
    }
    draw_curves(arms, [tmp_path / "curves.svg"])
    drawn = (tmp_path / "curves.svg").read_text()
    assert drawn.count("<svg") == 1
    draw_curves({"none": arms["none"]}, [tmp_path / "alone.svg"])
    assert len((tmp_path / "alone.svg").read_text()) < len(drawn)
