"""The costs of methods that train weights, from the rows of their runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from learngraph.graphs.experiments.costs import run_work
from learngraph.graphs.experiments.jsonl import read_rows
from learngraph.graphs.experiments.sweep import Job
from learngraph.graphs.experiments.training_costs import costs_table, method_costs, training_notes


def write_run(folder: Path, name: str, training: list[dict[str, Any]], flops: float | None = 100.0) -> Job:
    run = folder / name
    run.mkdir()
    rows = [{"id": f"{name}/{n}", "episode": n, "input_tokens": 50} for n in range(2)]
    known = {} if flops is None else {"flops": flops}
    times = [{"id": f"{name}/{n}", "seconds": 1.5, **known} for n in range(2)]
    for file, of in (("episodes", rows), ("seconds", times), ("training", training)):
        if of:
            (run / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of))
    return Job("m", 0, 2, run, name, name, "", (), "", trains_weights=bool(training))


def trained(**more: Any) -> dict[str, Any]:
    row = {"id": "t", "kind": "training", "why": "", "tokens": 40, "seconds": 0.5, "flops": 150.0, "left_out": 0}
    return row | more


def test_trainings_are_taken_from_the_passes_and_reasons_are_counted(tmp_path: Path) -> None:
    attempt = {"id": "attempt/a", "kind": "attempt"}
    why = "all 2 attempts earned 3"
    idle = trained(id="u", why=why, tokens=0, seconds=0.0, flops=0.0, left_out=2)
    jobs = [write_run(tmp_path, "sft-s0", [attempt, trained(), idle]), write_run(tmp_path, "sft-s1", [attempt, idle])]
    found = method_costs("sft", jobs)
    assert (found.tokens_read, found.tokens_trained, found.seconds, found.training_seconds) == (100.0, 20.0, 3.0, 0.25)
    assert (found.forward_flops, found.training_flops, found.flops) == (125.0, 75.0, 200.0)  # (200 - 150 + 200) / 2
    assert json.loads(json.dumps(found.as_dict()))["reasons"] == {why: 2}
    base = method_costs("jitrl", [write_run(tmp_path, "jitrl-s0", [], flops=25.0)])
    table = costs_table([base, found]).splitlines()
    assert [cell.strip() for cell in table[2].split("|")[1:-1]] == ["jitrl", "100", "–", "3", "–", "50", "–", "1"]
    assert [cell.strip() for cell in table[3].split("|")[1:-1]] == ["sft", "100", "20", "3", "0.25", "125", "75", "4"]
    assert training_notes([base, found]) == [
        f"sft: 2 of 3 trainings learned nothing: {why}",
        "sft: trainings left out 4 attempts without a return or steps too long",
    ]


def test_a_run_that_trains_weights_has_tokens_trained_also_where_it_learned_nothing(tmp_path: Path) -> None:
    attempt = {"id": "attempt/a", "kind": "attempt"}
    jobs = [
        write_run(tmp_path, name, rows) for name, rows in (("sft-s0", [trained()]), ("sft-s1", [attempt]), ("jitrl-s0", []))
    ]
    found = [run_work(job.folder, read_rows(job.folder / "episodes.jsonl")) for job in jobs]
    assert [work.tokens_trained for work in found] == [40.0, 0.0, None]
    assert [work.flops for work in found] == [200.0, 200.0, 200.0]


@pytest.mark.parametrize("flops", [None, 100.0])
def test_what_was_not_counted_is_unknown_and_not_zero(tmp_path: Path, flops: float | None) -> None:
    job = write_run(tmp_path, "jitrl-s0", [], flops)
    (job.folder / "seconds.jsonl").write_text('{"id": "jitrl-s0/0", "seconds": 1.0}\n')
    found = method_costs("jitrl", [job])
    assert found.seconds is found.forward_flops is found.flops is None
    assert "–" in costs_table([found])
