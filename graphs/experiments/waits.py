"""Waits of workers before they ask a server again, told to the process that shows the progress by a file in the run folder."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

__all__ = []

WAITING = "waiting.json"
"""Name of the file with the latest wait of any worker."""


def note_wait(folder: Path, wait: Any) -> None:
    """Say in the run folder that this process waits before another try; a listener of `tools.models.api_posts`."""
    note = {"until": time.time() + wait.seconds, "reason": wait.reason, "seconds": round(wait.seconds, 1), "tries": wait.tries}
    if folder.is_dir():  # else the run was removed meanwhile
        (folder / WAITING).write_text(json.dumps(note), encoding="utf-8")


def wait_text(folder: Path) -> str:
    """Words about a wait that is going on; empty if there is none."""
    try:
        note = json.loads((folder / WAITING).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none, or half written
        return ""
    if note["until"] < time.time():
        return ""
    return f"waiting {note['seconds']:g} s after try {note['tries']}: {note['reason']}"
