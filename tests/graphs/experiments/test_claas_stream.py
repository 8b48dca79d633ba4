"""CLaaS on a small part of the stream, from a TOML file."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from learngraph.graphs.claas import CLaaS, Objective
from learngraph.graphs.cli.run import run
from learngraph.graphs.experiments.claas_stream import read_stream
from learngraph.graphs.experiments.spec import read_tables
from learngraph.memory.errors import CommandError

PAPERS = Path(__file__).parents[3] / "graphs" / "papers"
BENCHMARKS = Path(__file__).parents[3] / "graphs" / "experiments" / "benchmarks" / "claas"
SMALL = """
orders = 1
seeds = 1
scenarios_per_split = 8
arms = [
  { name = "none", learns = false },
  { name = "icl", learns = false, shows = "rewards" },
  { name = "reinforce", preset = "reinforce" },
]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "study.toml"
    path.write_text(text)
    return path


@pytest.mark.long
def test_arms_are_played_once_and_come_out_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, rows = write(tmp_path, SMALL), tmp_path / "a" / "trials.jsonl"
    assert run([str(file), "--out", str(tmp_path / "a"), "--workers", "2"]) == 0
    first = capsys.readouterr().out
    assert [line.split("|")[1].strip() for line in first.splitlines() if line.startswith("|")][2:5] == [
        "none",
        "icl",
        "reinforce",
    ]
    found = {row["job"]["arm"]: row["trial"] for row in map(json.loads, rows.read_text().splitlines())}
    for trial in found.values():
        assert [len(row) for row in trial["matrix"]] == [5] * 6
        assert len(trial["online"]) == 40
    assert len({tuple(row) for row in found["none"]["matrix"]}) == 1
    assert {step["scenario"] for step in found["reinforce"]["steps"]} <= set(range(1, 41))
    assert len(found["reinforce"]["levels"]) == 40
    assert {"generate", "verify", "record", "sample", "correct", "step", "commit", "examine"} <= set(
        found["reinforce"]["phases"]
    )
    assert found["reinforce"]["first"] <= 40
    assert found["reinforce"]["dropped"] is not None
    lines = rows.read_text().splitlines(keepends=True)
    rows.write_text("".join(lines[:2]) + lines[2][:50])  # killed while it wrote
    assert run([str(file), "--out", str(tmp_path / "a"), "--workers", "1"]) == 0
    again = capsys.readouterr().out
    one, two = ([part for part in out.split("\n\n") if "seconds a scenario" not in part] for out in (first, again))
    assert one == two


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stream", "replay"])
def test_every_arm_of_our_files_has_settings_of_the_method(name: str) -> None:
    file = read_stream(read_tables(BENCHMARKS / f"{name}.toml")[""], name)
    jobs = {job.arm: job for job in file.jobs()}
    assert len(file.jobs()) == 9 * len(file.arms)
    assert all((jobs[arm.name].settings is None) != arm.learns for arm in file.arms)
    if name == "stream":
        assert jobs["mixed"].settings == replace(CLaaS(), seed=2)
        assert jobs["sdpo"].settings == CLaaS(loss=Objective(kind="sdpo"), seed=2)
    else:
        fresh, rejecting = jobs["fresh"].settings, jobs["age 50, rejection"].settings
        assert fresh is not None
        assert rejecting is not None
        assert not fresh.gate.enabled
        assert (fresh.replay.max_age, fresh.replay.held_out_share, fresh.loss.learning_rate) == (1, 0.0, 5e-4)
        assert (rejecting.replay.max_age, rejecting.replay.held_out_share) == (50, 0.0)
        assert rejecting.loss.correction.kind == "rejection"


@pytest.mark.slow
def test_the_papers_tables_play_its_presets() -> None:
    tables = {name: read_stream(table, name) for name, table in read_tables(PAPERS / "claas.toml").items()}
    assert set(tables) == {"main", "figure3", "figure5", "figure6", "figure7"}
    assert all(len(stream.jobs()) == 9 * len(stream.arms) for stream in tables.values())
    (sdpo,) = [job.settings for job in tables["main"].jobs() if (job.arm, job.order, job.seed) == ("sdpo", 0, 0)]
    assert sdpo is not None
    paper = CLaaS.paper()
    assert (sdpo.replay, sdpo.gate, sdpo.loss.learning_rate) == (paper.replay, paper.gate, 5e-4)
    assert replace(sdpo.loss, learning_rate=3e-5) == paper.loss
    ages = {job.arm: job.settings.replay.max_age for job in tables["figure3"].jobs() if job.settings}
    assert ages == {"age 1": 1, "age 5": 5, "age 25": 25, "age 50": 50, "age 25, pi_old": 25, "age 50, rejection": 50}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('arms = [{ name = "a", colour = 1 }]', "has no 'colour'; it has name, learns"),
        ('scenarios_per_split = 30\narms = [{ name = "a" }]', "scenarios_per_split is from 1 to 20"),
        ('arms = [{ name = "a", preset = "magic" }]', "preset is to be 'mixed'"),
        ('arms = [{ name = "a", settings = { loss = { rate = 1 } } }]', "loss has no 'rate'; it has kind"),
        ('arms = [{ name = "a", settings = { loss = { learning_rate = "fast" } } }]', "learning_rate is to be a number"),
        ("arms = [", "study.toml"),
    ],
)
def test_a_mistake_in_the_file_is_said_before(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=said):
        read_stream(read_tables(write(tmp_path, text))[""], "study")
