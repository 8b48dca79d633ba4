"""What errors tell: tenants no folders, and the learner whether the machine failed or the data cannot be learned from."""

import errno
import resource
import sqlite3
from pathlib import Path

import pytest

from learngraph.memory.errors import AdapterError, ReplayError, UserError, hide_paths, machine_error, public_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("corrupt: /srv/bob/secret/states.jsonl, line 3", "corrupt: states.jsonl, line 3"),
        ("cannot write '/tmp/a b/x'", "cannot write 'a b/x'"),
        ("[Errno 28] No space left: '/srv/out/scratch/version-1'", "[Errno 28] No space left: 'version-1'"),
        ("/home/me/runs/", "a folder"),
        ("acme/default@000017-3f9c2ab1d4e0 was dropped", "acme/default@000017-3f9c2ab1d4e0 was dropped"),
        ("ask http://127.0.0.1:8001/v1/models", "ask http://127.0.0.1:8001/v1/models"),
        ("2/3 of it, and/or more", "2/3 of it, and/or more"),
    ],
)
def test_folders_are_not_shown(text: str, shown: str) -> None:
    assert hide_paths(text) == shown


def test_what_tenants_read_of_an_error() -> None:
    assert public_text(AdapterError("/srv/x/y is corrupt")) == "the service has a problem with this adapter's files"
    assert public_text(UserError("cannot make /srv/out/version: no room")) == "cannot make version: no room"
    assert public_text(OSError(errno.ENOSPC, "No space left on device", "/srv/out/x")) == "No space left on device"
    assert public_text(RuntimeError()) == "RuntimeError"


def wrapped(error: Exception) -> UserError:
    try:
        try:
            raise error
        except Exception as cause:
            raise UserError("cannot write the new version") from cause
    except UserError as found:
        return found


def test_a_full_disk_is_known_in_any_librarys_words(tmp_path: Path) -> None:
    """Each library itself meets a limit on the size of files, which stands for a full disk."""
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(Exception, match="os error") as rust:
            safetensors.save_file({"x": torch.zeros(100_000)}, tmp_path / "x.safetensors")
        with pytest.raises(OSError, match="large") as plain:
            (tmp_path / "y").write_bytes(bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not isinstance(rust.value, OSError)
    for error in (rust.value, plain.value):
        found = machine_error(wrapped(error))
        assert found is not None
        assert found.errno == errno.EFBIG
    base = sqlite3.connect(tmp_path / "z.sqlite")
    base.execute("PRAGMA max_page_count=3")
    with pytest.raises(sqlite3.OperationalError) as full:
        base.execute("CREATE TABLE t AS SELECT zeroblob(100000)")
    base.close()
    try:
        raise ReplayError("replay buffer: the disk is full") from full.value
    except ReplayError as error:
        found = machine_error(error)
    assert found is not None
    assert found.errno == errno.ENOSPC


def test_what_is_no_failure_of_the_machine() -> None:
    assert machine_error(UserError("has neither a text nor a solution")) is None
    assert machine_error(UserError("cannot learn from 'no space left on device (os error 28)'")) is None  # a user's words
    assert machine_error(wrapped(ValueError("a shape"))) is None
