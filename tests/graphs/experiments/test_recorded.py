"""The files of a finished run: packed rows read as before, go on as before, and take little room."""

import json
from pathlib import Path

import pytest
from in_process import play_in_process

from learngraph.graphs.cli.main import main
from learngraph.graphs.experiments.recorded import RecordedRun, pack_rows, read_rows, rows_file, unpack_rows
from learngraph.memory.errors import UserError


def test_rows_are_packed_and_unpacked_whole_wherever_it_is_cut(tmp_path: Path) -> None:
    path, packed = tmp_path / "steps.jsonl", tmp_path / "steps.jsonl.gz"
    rows = [{"id": str(n), "state": "a room"} for n in range(100)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = path.read_bytes()
    pack_rows(path)
    assert (path.exists(), rows_file(path), read_rows(path)) == (False, packed, rows)
    assert packed.stat().st_size < len(whole) / 5
    path.write_bytes(whole)  # killed before the one was removed
    assert rows_file(path) == path
    pack_rows(path)
    (tmp_path / "steps.part").write_bytes(whole[:50])  # killed while it was unpacked
    unpack_rows(path)
    assert (path.read_bytes(), packed.exists()) == (whole, False)
    pack_rows(path)
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"steps.jsonl.gz is damaged .*; remove "):
        read_rows(path)


def test_an_index_of_a_run_survives_its_packing(tmp_path: Path) -> None:
    rows = [{"id": f"s{n}", "parent": f"s{n - 1}" if n else "r/0/t", "step": n, "action": f"go {n}"} for n in range(3)]
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = RecordedRun(tmp_path, "jitrl", 0)
    run.refresh()
    pack_rows(tmp_path / "steps.jsonl")
    for _ in range(2):
        run.refresh()
        assert (len(run), run.rows(0), run.row(run.steps(0)[1])) == (3, rows, rows[1])


@pytest.mark.slow
def test_an_episode_takes_few_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps, replies and checkpoints of a finished run: under 14 kB an episode of ten steps, most of it checkpoints. More episodes go on from them."""
    here = play_in_process(monkeypatch, tmp_path)
    command = ["run", "static", "--env", "toy", "--seeds", "1", "--workers", "1", "--out", "run", "--episodes"]
    assert main([*command, "3"]) == 0
    before = read_rows(here / "run/static-s0/steps.jsonl")
    assert main([*command, "12"]) == 0
    run = here / "run" / "static-s0"
    sizes = {path.name: path.stat().st_size for path in run.iterdir() if path.is_file()}
    assert {"steps.jsonl.gz", "replies.jsonl.gz"} <= sizes.keys()
    assert sum(sizes.values()) / 12 < 14_000, sizes
    assert read_rows(run / "steps.jsonl")[: len(before)] == before
