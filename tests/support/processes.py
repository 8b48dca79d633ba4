"""Everything that a test's process leaves behind: its children, and the folders of interpreters."""

import tempfile
from pathlib import Path

import psutil


def children() -> set[int]:
    """Processes that this one started and has not buried."""
    # /proc/self/task misses those of a thread that ends while it is read
    return {child.pid for child in psutil.Process().children()}


def folders() -> set[str]:
    """Names of the folders that interpreters have made."""
    return {path.name for path in Path(tempfile.gettempdir()).glob("learngraph-python-*")}
