"""Processes of a local Ray cluster, to be killed."""

import os
import signal
from pathlib import Path

from waiting import wait_until


def ray_processes(above: int, name: str) -> list[int]:
    """Ids of the processes below a process that work on an actor or a task of this name."""
    parents: dict[int, int] = {}
    titles: dict[int, str] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(place.name)] = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
            titles[int(place.name)] = (place / "cmdline").read_text()
        except OSError:
            continue

    def descends(process: int) -> bool:
        while process not in (0, above):
            process = parents.get(process, 0)
        return process == above

    return [process for process, title in titles.items() if title.startswith(f"ray::{name}") and descends(process)]


def kill_actor(above: int, seconds: float = 120.0) -> int:
    """`kill -9` the learner's actor below a process as soon as it works on a call; returns its process id."""
    killed = list[int]()

    def is_killed() -> bool:
        for process in ray_processes(above, "_LearnerActor"):
            if ".call" in Path(f"/proc/{process}/cmdline").read_text():
                os.kill(process, signal.SIGKILL)
                killed.append(process)
                return True
        return False

    wait_until(is_killed, seconds)
    return killed[0]
