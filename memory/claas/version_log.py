"""The states of an adapter's versions on disk: a log with a line for each change. Processes take turns by a lock of their own (adapters.py)."""

import json
import logging
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import AdapterError
from .replay_file import NAME, json_safe
from .sealed_files import sync

__all__ = ["VersionLog", "VersionStates"]

LOG = logging.getLogger(__name__)
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
    last_rollback: float = -math.inf
    """Unix time of the last rollback; minus infinity: there was none."""
    last_fall: float = -math.inf
    """Unix time of the last rollback for rewards that fell; minus infinity: there was none."""
    end: int = 0
    """Bytes of the log that were read."""

    def add(self, line: dict[str, Any]) -> None:
        state, label = line["state"], line["label"]
        if state == "tainted":
            self.tainted.update(line["labels"])
        self.lines.append(line)
        if state == "tainted":
            return
        self.last_rollback = line["time"] if line.get("back") else self.last_rollback
        self.last_fall = line["time"] if line.get("fell") else self.last_fall
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
    """The log of an adapter's versions in its folder.

    Args:
        folder: of the adapter.
        scope: `<tenant>/<adapter>`.
        clock: Unix time in seconds.
    """

    def __init__(self, folder: Path, scope: str, clock: Callable[[], float]) -> None:
        self._path, self._scope, self._clock = folder / "states.jsonl", scope, clock
        self.states = VersionStates()
        """What was read so far."""
        self.is_end_garbage = False
        """True if the last line was no JSON: a damaged disk's, and as good as half a line."""

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def read(self) -> VersionStates:
        """The states that the log adds up to; reads only its new lines."""
        if (size := self._size()) < self.states.end:
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
                        if isinstance(error, ValueError) and states.end + len(line) == size:
                            self.is_end_garbage = bool(states.lines)
                            break
                        raise AdapterError(
                            f"adapter {self._scope}: corrupt: {self._path}, line {len(states.lines) + 1}: {line[:60]!r}; restore it "
                            "from a copy, or take the line out"
                        ) from error
                    states.end += len(line)
        return states

    def append(
        self, state: str, label: str | Sequence[str], why: str, about: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        """Append a line for each label; all are on disk on return, or none."""
        if about:
            more["about"] = json_safe(about)
        now, data = self._clock(), b""
        for each in [label] if isinstance(label, str) else label:
            data += json.dumps({"time": now, "label": each, "state": state, "why": why, **more}).encode() + b"\n"
        is_new = not self._path.exists()
        try:
            with self._path.open("ab", buffering=0) as file:
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
        except OSError:
            self.cut_half_line()
            raise
        if is_new:
            sync(self._path.parent)
        self.read()

    def cut_half_line(self) -> None:
        """Take back what was appended after the last line that was read: of a writer that was killed, or met a full disk."""
        if (more := self._size() - self.states.end) > 0:
            LOG.warning(
                "%s: half a line, or garbage, at its end (%d bytes: a writer was killed, or the disk is damaged) is taken back",
                self._path,
                more,
            )
            os.truncate(self._path, self.states.end)
