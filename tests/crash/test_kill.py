"""kill -9 at any point of a run, then resume: nothing is lost, nothing happens twice, the end is the same.

The runs are hot (high temperature, exploration): a draw that did not come from (run, episode, step) would show.
"""

import json
import os
import random
import signal
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from forks import Python, start
from in_process import play_in_process
from waiting import wait_at_random, wait_until

from learngraph.graphs.arms import make_arm, method_settings
from learngraph.graphs.cli.main import main
from learngraph.graphs.experiments.folder import Job, Sweep
from learngraph.graphs.experiments.options import RunOptions
from learngraph.graphs.experiments.play import play
from learngraph.graphs.experiments.recorded import unpack_rows
from learngraph.graphs.experiments.results import is_finished
from learngraph.memory.records import Trajectory
from learngraph.memory.storage.checkpoints import open_checkpoints
from learngraph.memory.storage.chroma_collections import ChromaCollections
from learngraph.memory.storage.chroma_store import ChromaStore
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.record_store import RecordStore

EPISODES = 8
METHODS = {
    "jitrl": method_settings("jitrl"),
    "jitrl:paper-equations": method_settings("jitrl:paper-equations"),
    "tabular": method_settings("tabular"),
    "icrl?instruction=preset": method_settings("icrl?instruction=preset"),
    "adamem?author=rule": method_settings("adamem?author=rule"),
    "prompt-update": method_settings("prompt-update"),
    "memory": method_settings("memory"),
}


def planned(folder: Path, method: str) -> Job:
    options = RunOptions(env="toy", prior="uniform", episodes=EPISODES, horizon=9)
    settings = METHODS[method]
    if hasattr(settings, "temperature"):
        settings = type(settings)(**{**asdict(settings), "temperature": 4.0})
    return Sweep(options, {method: make_arm(method, settings)}, folder, (1,)).job(method, 1)


def outcome(job: Job) -> dict[str, Any]:
    """All that a run leaves behind, but for times."""
    unpack_rows(job.folder / "steps.jsonl")
    journal = Journal(job.folder / "steps.jsonl")
    rows = [json.loads(line) for line in (job.folder / "episodes.jsonl").read_text().splitlines()]
    with ChromaStore.open(job.memory) as store:
        memory = RecordStore(store, job.namespace, Trajectory).all()
    with open_checkpoints(job.checkpoints) as saver:
        kept = saver.get_tuple({"configurable": {"thread_id": job.run}})
        assert kept is not None
        values = kept.checkpoint["channel_values"]
    found = {
        "rows": rows,
        "steps": [journal.history(row["head"]) for row in rows],
        "all steps": sorted((job.folder / "steps.jsonl").read_text().splitlines()),
        "memory": memory,
        "state": {name: values[name] for name in ("scores", "bests", "lengths", "episode")},
        "result": json.loads((job.folder / "result.json").read_text()),
    }
    journal.close()
    return found


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    @cache
    def found(method: str) -> dict[str, Any]:
        job = planned(tmp_path_factory.mktemp("undisturbed"), method)
        assert play((job,)) is None
        return outcome(job)

    return found


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.long
def test_killed_again_and_again_a_run_ends_as_if_nothing_had_happened(
    method: str, tmp_path: Path, undisturbed: Callable[[str], dict[str, Any]]
) -> None:
    chance = random.Random(method)
    kills = runs = 0
    while kills < 20:
        job = planned(tmp_path / str(runs), method)
        while not is_finished(job):
            steps = job.folder / "steps.jsonl"
            process, until = start(play, (job,)), lines(steps) + chance.randrange(0, 9)
            if lines(steps) == until:  # before it gets anywhere: while it opens its files
                wait_at_random(chance, 0.6)
            wait_until(lambda: not process.is_alive() or lines(steps) >= until)
            wait_at_random(chance, 0.03)
            if process.is_alive():
                kills += 1
                process.kill()
                process.join()
                if steps.exists() and chance.random() < 0.3:  # what a power cut may leave
                    with steps.open("ab") as file:
                        file.write(b'{"id": "half a ro')
            process.join()
        assert outcome(job) == undisturbed(method)
        runs += 1


def die_while_it_writes(when: str, job: Job) -> None:
    """Play until the third write of memory."""
    write, left = ChromaCollections.write, [3]

    def killed(self: ChromaCollections, *given: Any) -> None:
        left[0] -= 1
        if left[0] == 0 and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, *given)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    ChromaCollections.write = killed  # type: ignore[method-assign]
    play((job,))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_while_it_writes_memory(when: str, tmp_path: Path, undisturbed: Callable[[str], dict[str, Any]]) -> None:
    job = planned(tmp_path, "jitrl")
    ended = start(die_while_it_writes, when, job)
    ended.join()
    assert ended.exitcode == -signal.SIGKILL
    assert lines(job.folder / "episodes.jsonl") == 2
    assert play((job,)) is None
    assert outcome(job) == undisturbed("jitrl")


@pytest.mark.parametrize(
    "whole_group", [pytest.param(True, marks=pytest.mark.long), pytest.param(False, marks=pytest.mark.slow)]
)
def test_the_command_itself_is_killed(
    whole_group: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its workers, or alone: then its workers end by themselves, and the same command may start at once."""
    here = play_in_process(monkeypatch, tmp_path)

    def command(folder: str) -> list[str]:
        flags = f"--env toy --prior uniform --temperature 3 --episodes {12 if whole_group else 5} --seeds 2 --compare static --out {here / folder} --json"
        return ["run", "jitrl", *flags.split()]

    steps = here / "killed" / "jitrl-s0" / "steps.jsonl"
    for until in (1, 60) if whole_group else (15,):
        process = Python("-m", "learngraph", *command("killed"), said=here / "said.txt")
        wait_until(lambda until=until: lines(steps) >= until or process.poll() is not None)
        if whole_group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        assert process.wait() == -signal.SIGKILL, (here / "said.txt").read_text()
    shown = {}
    for folder in ("killed", "whole"):
        assert main(command(folder)) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        for row in rows:
            del row["metrics"]["step-seconds"]
        shown[folder] = rows
    assert shown["killed"] == shown["whole"]
    assert [row["method"] for row in shown["killed"]] == ["jitrl", "static"]
