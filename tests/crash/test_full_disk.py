"""No room left: in one line, and nothing that was written is lost or torn."""

import resource
from pathlib import Path

import pytest

from learngraph.memory.storage.rows import Rows, RowsError


def test_a_row_that_does_not_fit_leaves_the_file_whole(tmp_path: Path) -> None:
    """A limit on the file's size stands for the full disk: the kernel takes part of a row, then refuses the rest."""
    path = tmp_path / "rows.jsonl"
    rows = Rows(path)
    stored = [str(i) for i in range(8)]
    for i in stored:
        rows.append({"id": i, "text": "x" * 100})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(RowsError, match="the rows before are kept"):
            rows.append({"id": "8", "text": "x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [row["id"] for row in rows.values()] == stored
    assert [row["id"] for row in Rows(path).values()] == stored
    rows.append({"id": "8", "text": "there is room again"})
    rows.close()
    assert [row["id"] for row in Rows(path).values()] == [*stored, "8"]
