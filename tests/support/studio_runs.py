"""Run folders for tests of the studio: one that was really played, and long ones with made-up steps."""

import json
from pathlib import Path
from typing import Any

import learngraph
from learngraph.graphs import jitrl
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.supersteps import merge_steps
from learngraph.memory.records import Transition
from learngraph.memory.storage.checkpoints import open_checkpoints
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.rows import Rows


def write_settings(folder: Path, **methods: dict[str, Any]) -> Path:
    """A folder with the settings of a run of these methods, JitRL if none is given."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"env": "toy", "prior": "uniform", "seeds": [0], "methods": methods or {"jitrl": {}}}
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def play_run(folder: Path, episodes: int = 2) -> Path:
    """A folder with a run of JitRL on the toy world, as `learngraph run` leaves it."""
    here = write_settings(folder) / "jitrl-s0"
    here.mkdir()
    world = learngraph.open_environment("toy")
    with open_checkpoints(here / "checkpoints.sqlite") as saver:
        journal, log = Journal(here / "steps.jsonl"), Rows(here / "episodes.jsonl")
        graph = run.build(
            merge_steps(jitrl.build(learngraph.MethodInputs(environment=world, journal=journal))), log, checkpointer=saver
        )
        start = {"task": world.task(0), "run": "jitrl-s0", "episode": 0, "episodes": episodes}
        graph.invoke(start, {"configurable": {"thread_id": "jitrl-s0"}})
        journal.close()
        log.close()
    return folder


def write_steps(journal: Journal, episode: int, count: int, *, over: bool = True, head: str = "", first: int = 0) -> str:
    """Write made-up steps of an episode; returns the head that they end with."""
    head = head or f"jitrl-s0/{episode}/toy-0"
    for step in range(first, first + count):
        actions = [f"go {way}" for way in ("north", "south", "east", "west")]
        head = journal.append(
            head,
            Transition(f"room {step % 7}", actions[step % 4], float(step % 5 == 0)),
            episode=episode,
            task="toy-0",
            score=float(step // 5),
            over=over and step == first + count - 1,
            prior=[-1.4] * 4,
            candidates=[{"action": a, "logit": -1.0 - i, "source": "policy"} for i, a in enumerate(actions)],
            estimates=[
                {"action": a, "count": 2.0, "value": 0.5, "advantage": 0.1, "shift": 0.1, "explored": False} for a in actions
            ],
        )
    return head


def write_long_run(folder: Path, steps: int) -> Path:
    """A folder with a run of one episode of so many made-up steps."""
    here = write_settings(folder) / "jitrl-s0"
    here.mkdir()
    journal = Journal(here / "steps.jsonl")
    write_steps(journal, 0, steps)
    journal.close()
    return folder
