"""The states of an adapter's versions on disk: a log with a line for each change, and CURRENT, the name of the live version.

The log is the truth. A line is on disk before CURRENT is swapped (temporary file, fsync, rename, fsync of the directory); where a crash
comes between the two, the next change finishes the swap. Processes take turns by a lock of their own (adapters.py).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import AdapterError
from .replay_file import NAME, json_safe
from .sealed_files import sync

__all__ = ["VersionLog", "VersionStates"]

VERSION_NAME = re.compile(r"[0-9]{6,9}-[0-9a-f]{12}")
"""Pattern of a version's name: step and digest."""


@dataclass
class VersionStates:
    """The states that the log's lines add up to."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    """All lines, oldest first."""
    states: dict[str, str] = field(default_factory=dict)
    """Label -> state."""
    tainted: set[str] = field(default_factory=set)
    """Labels of versions that learned from deleted records."""
    about: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Label -> what its changes of state came with."""
    parents: dict[str, str] = field(default_factory=dict)
    """Label -> parent's label, also of deleted versions."""
    ended: set[str] = field(default_factory=set)
    """Labels that were live once or were dropped: unless one is live, no new version may start from it."""
    live: str = ""
    """Label of the live version; empty: the base model."""
    canary: str = ""
    """Label of the canary; empty: none."""
    drops: int = 0
    """Versions that were dropped since one last became live or the canary."""
    before: list[str] = field(default_factory=list)
    """Labels that were live before, oldest first: the targets of `roll_back`."""
    end: int = 0
    """Bytes of the log that were read."""

    def add(self, line: dict[str, Any]) -> None:
        state, label = line["state"], line["label"]
        marked = line["labels"] if state == "tainted" else ()
        self.lines.append(line)
        if state == "tainted":
            self.tainted.update(marked)
            return
        if state == "candidate":
            self.ended.discard(label)  # deleted, and made again
            self.parents[label] = line.get("parent", "")
        elif state in ("live", "dropped"):
            self.ended.add(label)
        if state in ("live", "canary", "dropped"):
            self.drops = self.drops + 1 if state == "dropped" else 0
        if state == "canary" and self.canary not in ("", label):
            self.states[self.canary] = "dropped"
            self.ended.add(self.canary)
        if state == "live" and self.live != label:
            if self.live:
                self.states[self.live] = "retired"
            if not line.get("back"):
                self.before.append(self.live)
            elif label in self.before:
                last = len(self.before) - 1 - self.before[::-1].index(label)
                del self.before[last:]
            self.live = label
        if label:
            self.states[label] = state
            self.about[label] = {**self.about.get(label, {}), **line.get("about", {})}
        if state == "canary":
            self.canary = label
        elif label == self.canary:
            self.canary = ""


def split_label(label: str) -> tuple[str, str, str]:
    """(tenant, adapter, version name) of a label.

    Raises:
        AdapterError: it is no label. (Only valid names ever become paths.)
    """
    scope, at, name = label.partition("@")
    tenant, slash, adapter = scope.partition("/")
    if not (at and slash and NAME.fullmatch(tenant) and NAME.fullmatch(adapter) and VERSION_NAME.fullmatch(name)):
        raise AdapterError(f"no label of a version: {label[:120]!r}; `acme/default@000017-3f9c2ab1d4e0` is one")
    return tenant, adapter, name


class VersionLog:
    """The log of an adapter's versions in its folder, and CURRENT.

    Args:
        folder: of the adapter.
        scope: `<tenant>/<adapter>`.
    """

    def __init__(self, folder: Path, scope: str) -> None:
        self._folder, self._scope = folder, scope
        self._path, self._current = folder / "states.jsonl", folder / "CURRENT"
        self.states = VersionStates()
        """What was read so far."""

    def read(self) -> VersionStates:
        """The states that the log adds up to; reads only its new lines."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size < self.states.end:
            self.states = VersionStates()
        states = self.states
        if size > states.end:
            with self._path.open("rb") as file:
                file.seek(states.end)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    try:
                        states.add(json.loads(line))
                    except (ValueError, KeyError, TypeError, AttributeError) as error:
                        raise AdapterError(
                            f"adapter {self._scope}: corrupt: {self._path}, line {len(states.lines) + 1}: {line[:60]!r}; restore it "
                            "from a copy, or take the line out"
                        ) from error
                    states.end += len(line)
        return states

    def append(
        self, time: float, state: str, label: str | Sequence[str], why: str, about: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        """Append a line for each label; all are on disk on return, or none."""
        if about:
            more["about"] = json_safe(about)
        data = b""
        for each in [label] if isinstance(label, str) else label:
            line = {"time": time, "label": each, "state": state, "why": why, **more}
            data += json.dumps(line).encode() + b"\n"
        end = self.states.end
        new = not self._path.exists()
        try:
            with self._path.open("ab", buffering=0) as file:
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
        except OSError:
            if self._path.exists():
                os.truncate(self._path, end)
            raise
        if new:
            sync(self._folder)
        self.read()

    def current(self) -> str:
        """Label of the version that CURRENT names; "?" if it names none, which the log then corrects."""
        try:
            name = self._current.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return ""
        except (OSError, ValueError):
            return "?"
        return f"{self._scope}@{name}" if VERSION_NAME.fullmatch(name) else "?"

    def point(self, label: str) -> None:
        """Make CURRENT name a version; the empty label removes it."""
        if label:
            new = self._folder / "CURRENT.new"
            with new.open("w", encoding="utf-8") as file:
                file.write(split_label(label)[2] + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self._current)
        else:
            self._current.unlink(missing_ok=True)
        sync(self._folder)

    def cut_back(self, end: int) -> None:
        """Take back what was appended after this many bytes, and half a line of a writer that was killed."""
        if self._path.exists() and self._path.stat().st_size > end:
            os.truncate(self._path, end)
            self.read()
