"""Runs on a Ray cluster of several processes on this machine: the same numbers as in this one, also when a worker is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ray_actors import ray_processes
from waiting import wait_until

from learngraph.graphs.cli.main import main
from learngraph.graphs.experiments.pool import is_ray
from learngraph.graphs.experiments.recorded import read_rows
from learngraph.memory.errors import UserError

# A model's logits differ in the last bits where it reads a prompt from its beginning, as after a kill, so none is asked.
COMMAND = ["run", "jitrl", "--env", "toy", "--prior", "uniform", "--seeds", "2", "--workers", "2", "--episodes"]


def rows(out: Path, name: str) -> list[dict[str, object]]:
    found = [row for seed in (0, 1) for row in read_rows(out / f"jitrl-s{seed}" / name)]
    return [{key: value for key, value in row.items() if key not in ("seconds", "usage")} for row in found]


def test_an_unknown_engine_is_refused() -> None:
    assert not is_ray("processes")
    assert is_ray("ray")
    assert is_ray("ray://head:10001")
    with pytest.raises(UserError, match=r"--engine is processes, ray .* got 'slurm'"):
        is_ray("slurm")


def test_a_missing_package_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([*COMMAND, "1", "--engine", "ray", "--out", str(tmp_path / "run")]) != 0
    assert "pip install 'learngraph[ray]'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_worker_is_tried_again_without_a_double_write(here: Path) -> None:
    pytest.importorskip("ray")
    assert main([*COMMAND, "12", "--out", "here"]) == 0
    run = subprocess.Popen(
        [sys.executable, "-m", "learngraph", *COMMAND, "12", "--out", "there", "--engine", "ray"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
    )

    killed = list[int]()

    def is_killed() -> bool:
        played = any(path.stat().st_size for path in here.glob("there/jitrl-s*/episodes.jsonl"))
        if played and (pids := ray_processes(run.pid, "_play_in_folder")):
            os.kill(pids[0], signal.SIGKILL)
            killed.append(pids[0])
        return bool(killed) or run.poll() is not None

    wait_until(is_killed, 300)
    said = run.communicate(timeout=300)[0].decode()
    assert run.returncode == 0, said
    assert killed
    assert "Traceback" not in said
    for name in ("episodes.jsonl", "steps.jsonl"):
        assert rows(here / "there", name) == rows(here / "here", name)
    assert len(rows(here / "there", "episodes.jsonl")) == 24
