"""A run that is read from its folder, whole, at work or damaged."""

import json
from pathlib import Path

import pytest

from learngraph.graphs.experiments.run_rows import read_run
from learngraph.memory.errors import UserError
from learngraph.memory.records import Transition
from learngraph.memory.storage.journal import Journal


def write(folder: Path) -> Path:
    steps = Journal(folder / "steps.jsonl")
    for episode in range(2):
        head = steps.start("r", episode, "t")
        for n in range(3):
            head = steps.append(head, Transition(f"door {n}", "open", 1.0), episode=episode)
        row = {"id": f"r/{episode}", "episode": episode, "score": 3.0, "steps": 3, "head": head, "task": "t"}
        with (folder / "episodes.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    steps.close()
    return folder


def test_a_run_shows_its_episodes_and_steps(tmp_path: Path) -> None:
    run = read_run(write(tmp_path / "a-s0"))
    assert str(run) == "a-s0: 2 episodes, 6 steps"
    assert run.table().rows[0][:2] == ("1", "3")
    assert [row[2] for row in run.steps_table(0).rows] == ["open"] * 3
    assert "<table" in run._repr_html_()
    with pytest.raises(UserError, match="no finished episode 7; it has 0 to 1"):
        run.steps_table(7)


def test_a_run_at_work_and_a_damaged_one(tmp_path: Path) -> None:
    folder = write(tmp_path / "a-s0")
    with (folder / "steps.jsonl").open("ab") as file:
        file.write(b'{"id": "half')
    assert len(read_run(folder).steps) == 6
    whole = (folder / "steps.jsonl").read_bytes()
    (folder / "steps.jsonl").write_bytes(whole.split(b"\n", 1)[1])
    with pytest.raises(UserError, match="lacks steps of episode 0"):
        read_run(folder).steps_table(0)
    (folder / "steps.jsonl").write_bytes(b"[]\n")
    with pytest.raises(UserError, match=r"steps\.jsonl is damaged"):
        read_run(folder)
    with pytest.raises(UserError, match="name one of its runs: a-s0"):
        read_run(tmp_path)
    with pytest.raises(UserError, match=r"give the folder of one run"):
        read_run(tmp_path / "nowhere")
