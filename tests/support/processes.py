"""Everything that a test's process leaves behind: its children, and the folders of interpreters."""

import tempfile
from contextlib import suppress
from pathlib import Path


def children() -> set[int]:
    """Processes that this one started and has not buried."""
    found = set[int]()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


def folders() -> set[str]:
    """Names of the folders that interpreters have made."""
    return {path.name for path in Path(tempfile.gettempdir()).glob("learngraph-python-*")}
