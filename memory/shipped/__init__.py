"""Memories and lessons that come with the package, each with the evidence for it.

    from learngraph.memory.shipped import open_shipped
    learned = open_shipped("tau2-telecom")
    learned.library            lessons, for `LessonsMiddleware(learned.library)` or any other agent
    learned.trajectories       rated steps, for JitRL: `for one in learned.trajectories: memory.add(one)`
    learned.evidence           task, split, model, gate, and the scores with their intervals

`NAME.json` has `evidence` and `lessons`, for people to read. `NAME.steps.gz` is compressed JSON: `domain`, `states`, `actions`, and `steps`,
rows of a state's place, an action's place, a reward, and how often that was met.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..lessons.library import Library
from ..records import Lesson, Task, Trajectory, Transition

__all__ = ["EVIDENCE", "Shipped", "open_shipped", "shipped_names", "write_shipped"]

EVIDENCE = ("task", "split", "model", "learned by", "gate", "scores", "command")
"""The entries of the evidence that every file has."""


@dataclass(frozen=True)
class Shipped:
    """Something learned, with its evidence."""

    name: str
    evidence: Mapping[str, Any]
    library: Library
    """The lessons."""
    trajectories: tuple[Trajectory, ...]
    """The rated steps, each a trajectory of its own."""


def shipped_names() -> tuple[str, ...]:
    """The names of what comes with the package."""
    return tuple(sorted(file.name.removesuffix(".json") for file in files(__name__).iterdir() if file.name.endswith(".json")))


def open_shipped(name: str) -> Shipped:
    """Read a memory that comes with the package.

    Raises:
        UserError: there is none of that name.
    """
    if name not in shipped_names():
        raise UserError(f"no memory {name!r} comes with the package; there are {', '.join(shipped_names())}")
    data = json.loads((files(__name__) / f"{name}.json").read_text(encoding="utf-8"))
    met = json.loads(gzip.decompress((files(__name__) / f"{name}.steps.gz").read_bytes()))
    lessons = tuple(Lesson(f"L{number}", text) for number, text in enumerate(data["lessons"]))
    model = data["evidence"]["model"]
    library = Library(lessons, len(lessons), written_by=model["writer"], tested_with=model["reader"])
    task, domain, found = Task(name, data["evidence"]["task"]), met["domain"], list[Trajectory]()
    for state, action, reward, count in met["steps"]:
        step = Transition(met["states"][state], met["actions"][action], reward)
        for _ in range(count):
            number = len(found)
            found.append(Trajectory(f"{name}/{number}", task, (step,), name, number, reward, domain))
    return Shipped(name, data["evidence"], library, tuple(found))


def write_shipped(
    folder: Path, name: str, evidence: Mapping[str, Any], library: Library, domain: str, steps: Iterable[tuple[str, str, float]]
) -> None:
    """Write these files; equal contents give equal files.

    Args:
        folder: where they are put.
        name: the name by which they are opened.
        evidence: with the entries that `EVIDENCE` names.
        library: the lessons.
        domain: of the steps.
        steps: state, action and reward of each step.

    Raises:
        UserError: the evidence lacks an entry.
    """
    if missing := [entry for entry in EVIDENCE if entry not in evidence]:
        raise UserError(f"evidence says {', '.join(EVIDENCE)}; {', '.join(missing)} is missing")
    counts = Counter(steps)
    states, actions = ({text: n for n, text in enumerate(dict.fromkeys(step[part] for step in counts))} for part in (0, 1))
    rows = [(states[state], actions[action], reward, count) for (state, action, reward), count in counts.items()]
    met = {"domain": domain, "states": [*states], "actions": [*actions], "steps": rows}
    told = {"evidence": evidence, "lessons": [lesson.text for lesson in library.lessons]}
    (folder / f"{name}.json").write_text(json.dumps(told, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    (folder / f"{name}.steps.gz").write_bytes(gzip.compress(json.dumps(met, ensure_ascii=False).encode(), mtime=0))
