"""kill -9 in the middle of an episode, or of a training of weights, then resume: the same scores, versions and trainings."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from forks import start
from waiting import wait_at_random, wait_until

from learngraph.graphs.arms import make_arm, method_settings
from learngraph.graphs.experiments.folder import Job, Sweep
from learngraph.graphs.experiments.options import RunOptions
from learngraph.graphs.experiments.play import play
from learngraph.graphs.experiments.results import is_finished

pytest.importorskip("trl", reason="needs trl")
EPISODES = 4
SETTINGS = {"sft": {"every": 2}, "grpo": {"group_size": 2}}


def planned(folder: Path, method: str) -> Job:
    options = RunOptions(env="toy", model="pocket", episodes=EPISODES, horizon=9)
    arm = make_arm(method, type(method_settings(method))(**SETTINGS[method]))
    return Sweep(options, {method: arm}, folder, (1,)).job(method, 1)


def outcome(job: Job) -> dict[str, Any]:
    """All that a run leaves behind, but for times."""
    rows = [json.loads(line) for line in (job.folder / "episodes.jsonl").read_text().splitlines()]
    training = [json.loads(line) for line in (job.folder / "training.jsonl").read_text().splitlines()]
    versions = {path.name: (path / "adapter_model.safetensors").read_bytes() for path in (job.folder / "adapters").iterdir()}
    costs = ("seconds", "flops")
    return {
        "rows": rows,
        "training": [{name: value for name, value in row.items() if name not in costs} for row in training],
        "versions": versions,
        "result": json.loads((job.folder / "result.json").read_text()),
    }


def place(job: Job) -> int:
    """A number that grows as the run goes on: its steps, attempts and trainings."""
    files = (job.folder / "steps.jsonl", job.folder / "training.jsonl")
    return sum(file.read_bytes().count(b"\n") for file in files if file.exists())


@pytest.mark.parametrize(
    ("method", "most"), [pytest.param("sft", 4, marks=pytest.mark.long), pytest.param("grpo", 2, marks=pytest.mark.slow)]
)
def test_killed_again_and_again_a_run_that_trains_ends_as_if_nothing_had_happened(
    method: str, most: int, tmp_path: Path
) -> None:
    chance, kills = random.Random(method), 0
    undisturbed = planned(tmp_path / "undisturbed", method)
    assert play((undisturbed,)) is None
    expected = outcome(undisturbed)
    assert 1 <= len(expected["versions"]) <= 2
    assert any(row.get("updates") for row in expected["training"])
    job = planned(tmp_path / "killed", method)
    while not is_finished(job):
        process = start(play, (job,))
        until = place(job) + chance.randrange(3, 8)
        # A training begins with the attempt's row: half of the kills come within it.
        trained = (job.folder / "training.jsonl").read_bytes().count(b"attempt/") if place(job) else 0
        in_training = kills % 2 == 0

        def is_time() -> bool:
            rows = (job.folder / "training.jsonl").read_bytes() if (job.folder / "training.jsonl").exists() else b""
            trains = rows.count(b'"attempt/') > trained and rows.count(b'"attempt/') % 2 == 0
            return not process.is_alive() or place(job) >= until or (in_training and trains)

        wait_until(is_time)
        wait_at_random(chance, 0.05)
        if process.is_alive() and kills < most:
            kills += 1
            process.kill()
        process.join()
    assert kills >= most - 1
    assert outcome(job) == expected
