"""`learngraph claas study`, on a tenth of the stream."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from claas_settings import changed

from learngraph.graphs.studies import claas_stream as claas_study
from learngraph.graphs.studies.claas_curves import draw_curves, running_mean
from learngraph.graphs.studies.claas_stream import claas
from learngraph.graphs.studies.continual import Trial
from learngraph.memory.errors import UserError

SMALL = "study --scenarios-per-split 2 --steps-per-scenario 1 --shuffles 1 --seeds 1 --workers 1 --batch-size 4"


OLD_SETTINGS = {
    "loss": "ppo",
    "correction": "decoupled",
    "batch": 8,
    "least": 8,
    "max_age": 50,
    "records": 10000,
    "reuse": 1000000,
    "positive": 0.5,
    "max_kl": None,
    "held_out": 0.0,
    "rank": 8,
    "targets": "all-linear",
    "rate": 0.0005,
    "warmup_steps": 10,
    "decay": 0.0,
    "passes": 1,
    "max_norm": 1.0,
    "alpha": 0.5,
    "top_k": 100,
    "teacher": "ema",
    "ema": 0.01,
    "sync_every": 20,
    "trust": 0.5,
    "feedback": True,
    "hint": 1.0,
    "level": "token",
    "truncate": 2.0,
    "mis_low": 0.5,
    "mis_high": 2.0,
    "veto": 0.0001,
    "clip_low": 0.2,
    "clip_high": 0.28,
    "dual": 3.0,
    "ess_target": 0.5,
    "kl": 0.0,
    "entropy": 0.0,
    "baseline": "batch",
    "floor": 0.1,
    "gamma": 1.0,
    "lam": 0.95,
    "traces": "gae",
    "value_rate": 0.001,
    "gate": False,
    "gate_every": 1,
    "margin": 0.1,
    "read": 64,
    "least_rewards": 8,
    "weight_cap": 2.0,
    "tolerance": 0.2,
    "entropy_share": 0.6,
    "kl_cap": 1.0,
    "texts": 8,
    "canary": 0.0,
    "watch": 0,
    "recent": 64,
    "fall_margin": 0.0,
    "keep": 2,
    "seed": 0,
}
"""Settings of the arm `ppo+text`, as files of trials had them first."""
THEN: dict[str, dict[str, Any]] = {"gate": {"max_kl": 1.0}}
"""Defaults of that time."""


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
        run("--arms sdpo --sdpo-learning-rate 0.1", tmp_path)


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
    assert quick["dropped"] is None
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


def test_the_service_has_the_settings_that_are_served() -> None:
    study = claas_study.ClaasStudyOptions(arms=("service:ppo",), shuffles="1", seeds="7,", batch_size=3, rank=2)
    (job,) = claas_study._jobs(study)
    served = claas_study.CLaaS.ppo()
    assert job.settings == replace(served, rollout=replace(served.rollout, keep_versions=100_000), seed=7)
    assert (job.name, job.seconds) == ("service-ppo-h0-s7", 1.0)


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


def test_a_trial_of_older_settings_is_not_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file has CLaaS's hyper-parameters as one flat list."""
    study = claas_study.ClaasStudyOptions(arms=("ppo+text",), shuffles="1", seeds="1", out=tmp_path)
    (job,) = claas_study._jobs(study)
    assert job.settings is not None
    job = replace(job, settings=changed(job.settings, **THEN))
    old = json.loads(json.dumps(asdict(job)))
    old["settings"] = OLD_SETTINGS
    (tmp_path / "trials").mkdir()
    trial = Trial("ppo+text", 0, 0, ((0.5,), (0.5,)), (1.0,), None, 3, 0, 1.0)
    path = tmp_path / "trials" / f"{job.name}.json"
    path.write_text(json.dumps({"job": old, "trial": asdict(trial)}))
    monkeypatch.setattr(claas_study, "run_workers", lambda *args: pytest.fail("it is played again"))
    (found,) = claas_study._play_all([job], study)
    assert found.updates == 3
    recent = json.loads(json.dumps(asdict(job)))
    del recent["settings"]["loss"]["policy"]["reward_kl_weight"]  # came later than the groups
    path.write_text(json.dumps({"job": recent, "trial": asdict(trial)}))
    assert claas_study._play_all([job], study) == [found]
    path.write_text(json.dumps({"job": {**old, "settings": {**OLD_SETTINGS, "trust": 0.4}}, "trial": asdict(trial)}))
    with pytest.raises(UserError, match="other settings"):
        claas_study._play_all([job], study)
