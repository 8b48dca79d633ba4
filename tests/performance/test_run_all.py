"""`make bench`: what a benchmark reports stands on the page, and so does the reason where there is nothing."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest
import rows
import run_all
from waiting import wait_until

HERE = Path(__file__).parent


def test_every_target_has_a_benchmark_that_exists() -> None:
    assert {number for numbers in run_all.TOPIC_NUMBERS.values() for number in numbers} == set(range(1, 25))
    for name, numbers in run_all.TOPIC_NUMBERS.items():
        text = (HERE / f"{name}.py").read_text(encoding="utf-8")
        for number in numbers:
            assert re.search(rf'number"?[=:] ?{number}\b', text), f"{name} reports no row of target {number}"


def test_a_row_is_met_by_its_median(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BENCH_ROWS", str(tmp_path / "rows"))
    slow = rows.report("time of a step", [3.0, 1.0, 2.0], "ms", number=9, at_most=1.5, limit=0.5)
    fast = rows.report("speed-up", [1000.0, 1200.0], "x", at_least=1000)
    plain = rows.report("bytes", 1234.5)
    assert [row.is_met for row in (slow, fast, plain)] == [False, True, None]
    assert rows.read_rows(tmp_path / "rows") == [slow, fast, plain]
    shown = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"  9  time of a step +2 ms  \[1 to 3\] +≤ 1.5 MISSED +limit 0.5", shown[0])
    assert re.fullmatch(r"     speed-up +1,100 x  \[1,000 to 1,200\] +≥ 1,000 met", shown[1])
    assert [run_all.line(row) for row in (slow, fast, plain)] == [
        "| 9 | time of a step | 2 ms | 1 to 3 | ≤ 1.5 | **missed** | 0.5 |",
        "|  | speed-up | 1,100 x | 1,000 to 1,200 | ≥ 1,000 | met |  |",
        "|  | bytes | 1,234 |  |  |  |  |",
    ]
    said = "Of 2 targets 0 are met; missed in part or whole: 9; not measured: 17."
    assert run_all.summary([slow, fast, plain], [9, 17]) == said


FAILS = """
import rows
rows.report("one", 1.0, number=1, at_most=2)
raise SystemExit("no {thing} today")
"""
HANGS = """
import os, sys, time
if pid := os.fork():
    with open(sys.argv[1], "w") as file:
        file.write(str(pid))
time.sleep(60)
"""


def test_a_benchmark_that_fails_leaves_the_reason_in_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    (tmp_path / "fails.py").write_text(FAILS)
    done = run_all.run_benchmark([str(tmp_path / "fails.py")], limit=60)
    assert done.problem == "the benchmark ended with code 1: no {thing} today"
    assert [row.values for row in done.rows] == [(1.0,)]
    page = run_all.write_page({"bench_retrieval": done}, [1.0], argparse.Namespace(quick=True, rounds=None))
    assert "bench_retrieval: the benchmark ended with code 1: no {thing} today" in page
    assert "Of 6 targets 1 are met; not measured: 2, 3, 4, 5, 6." in page


@pytest.mark.slow
def test_a_benchmark_that_hangs_ends_with_all_that_it_started(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    done = run_all.run_benchmark(["-S", str(tmp_path / "hangs.py"), str(tmp_path / "pid")], limit=3)
    assert done.problem == "the benchmark had not ended after 3 s"
    state = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    # A killed process is gone when the scheduler has seen to it.
    wait_until(lambda: not state.exists() or state.read_text().split()[2] == "Z")


@pytest.mark.slow
def test_a_quick_run_of_one_benchmark_writes_a_page(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "run_all.py"), "--quick", "--rounds", "2", "--only", "bench_dense"]
    done = subprocess.run([*command, "--out", str(tmp_path / "page.md")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "figures mean nothing" in page
    assert re.search(r"\d+ cores .*; load between \d", page)
    assert "python tests/performance/bench_dense.py --quick --rounds 2" in page
    assert re.search(r"\| 23 \| the query filtered to 90 % of the tasks, .* \| [\d.]+ \| [\d.]+ to [\d.]+ \| ≤ 1.2 \|", page)
    assert "bench_lora" not in page
    assert "the query filtered to 1 % of the tasks" in done.stdout


def test_only_knows_what_there_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["run_all.py", "--only", "25"])
    with pytest.raises(SystemExit):
        run_all.main()
    assert "--only 25: give numbers from 1 to 24, or some of bench_retrieval" in capsys.readouterr().err
