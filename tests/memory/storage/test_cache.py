"""The cache: the first value stays, costs add up, and neither many writers nor a killed one spoil the file."""

import itertools
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from forks import Python
from hypothesis import given
from hypothesis import strategies as st
from waiting import wait_at_random

from learngraph.memory.records import Task, Usage
from learngraph.memory.storage import cache
from learngraph.memory.storage.cache import Cache, CacheError, cache_key

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "cache.sqlite"


BEGIN = (
    "import sys; from learngraph.memory.storage.cache import Cache, cache_key; from learngraph.memory.records import Usage\n"
)


def python(code: str, *arguments: object, **more: Any) -> subprocess.Popen[str]:
    """Another process with `Cache`, `key` and `Usage` at hand."""
    return subprocess.Popen([sys.executable, "-c", BEGIN + code, *map(str, arguments)], text=True, **more)


def held(cache: Cache) -> int:
    """How many values are stored."""
    return int(cache._base.execute("SELECT count(*) FROM entries").fetchone()[0])


# Values


@pytest.mark.parametrize("where", ["memory", "file"])
def test_the_first_value_stays_and_both_writers_have_paid(where: str, path: Path) -> None:
    cache = Cache(path if where == "file" else None)
    assert cache.get("k") is None
    assert cache.put("k", {"a": (1, 2)}, "policy", Usage(1, 10, 5)) == {"a": [1, 2]}
    assert cache.put("k", "something else", "policy", Usage(1, 20, 5)) == {"a": [1, 2]}
    cache.put("j", 0, "critic", Usage(2, 7, 3))
    cache.put("i", "made of what is in the cache", "rollout")
    assert cache.get("k") == {"a": [1, 2]}
    assert cache.get("j") == 0, "a value that is false is a value"
    assert cache.usage_by_stage() == {"policy": Usage(2, 30, 10), "critic": Usage(2, 7, 3)}
    assert held(cache) == 3


@given(JSON.filter(lambda value: value is not None))
def test_what_goes_in_comes_out(value: Any) -> None:
    cache = Cache()
    stored = cache.put("k", value, "s")
    assert stored == value
    assert repr(cache.get("k")) == repr(value), "numbers and texts exactly, half surrogate pairs too"


def test_a_value_is_the_callers_own(path: Path) -> None:
    cache, value = Cache(path), {"list": [1]}
    cache.put("k", value, "s")["list"].append(2)
    value["list"].append(3)
    cache.get("k")["list"].append(4)
    assert cache.get("k") == {"list": [1]}


def test_none_and_what_is_no_json_are_refused_and_nothing_is_stored(path: Path) -> None:
    cache = Cache(path)
    with pytest.raises(ValueError, match="holds no None"):
        cache.put("k", None, "s", Usage(1, 1, 1))
    with pytest.raises(TypeError):
        cache.put("k", object(), "s", Usage(1, 1, 1))
    assert cache.get("k") is None
    assert cache.usage_by_stage() == {}


def test_a_later_process_finds_values_and_costs(path: Path) -> None:
    first = Cache(path)
    first.put("k", 1, "policy", Usage(1, 10, 5))
    first.close()
    later = Cache(path)
    assert later.get("k") == 1
    assert later.usage_by_stage() == {"policy": Usage(1, 10, 5)}
    with pytest.raises(ValueError, match="closed"):
        first.get("k")


# Keys


def canonical(value: Any) -> Any:
    """JSON without the accidents of writing it: names in order, no tuples."""
    if isinstance(value, dict):
        return {name: canonical(value[name]) for name in sorted(value)}
    return [*map(canonical, value)] if isinstance(value, list | tuple) else value


@given(JSON, JSON)
def test_equal_parts_have_one_key_and_others_another(one: Any, other: Any) -> None:
    def swapped(value: Any) -> Any:
        """The same JSON, written in another way."""
        if isinstance(value, dict):
            return {name: swapped(inner) for name, inner in reversed(value.items())}
        return tuple(map(swapped, value)) if isinstance(value, list) else value

    assert cache_key(one, other) == cache_key(swapped(one), swapped(other))
    assert (cache_key(one) == cache_key(other)) == (repr(canonical(one)) == repr(canonical(other)))
    assert cache_key(one, other) != cache_key([one, other]), "where a part ends counts"


def test_a_key_is_the_same_in_every_process() -> None:
    parts = '"run", 3, 0.1, {"b": 1, "a": None}, "\\ud800é"'
    keys = set()
    for seed in ("0", "7"):
        process = python(f"print(cache_key({parts}))", stdout=subprocess.PIPE, env={**os.environ, "PYTHONHASHSEED": seed})
        keys.add(process.communicate()[0].strip())
    assert keys == {cache_key("run", 3, 0.1, {"a": None, "b": 1}, "\ud800é")}


def test_records_count_with_all_their_fields() -> None:
    task = Task("a", "do it", 1)
    assert cache_key(task) == cache_key(Task("a", "do it", 1))
    others = [cache_key(Task("a", "do it", 2)), cache_key(Task("a", "do", 1)), cache_key(Usage()), cache_key("a", "do it", 1)]
    assert len({cache_key(task), *others}) == 5
    with pytest.raises(TypeError, match=r"no digest of .*object"):
        cache_key("a", object())


# Many writers


def test_threads_share_a_cache(path: Path) -> None:
    cache = Cache(path)
    with ThreadPoolExecutor(8) as pool:
        told = [
            [*pool.map(lambda n, who=who: cache.put(str(n), [who, n], "s", Usage(1, 1, 0)), range(200))] for who in range(4)
        ]
    assert told[0] == told[1] == told[2] == told[3] == [cache.get(str(n)) for n in range(200)]
    assert cache.usage_by_stage() == {"s": Usage(800, 800, 0)}


WRITE = """
who, path, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
cache = Cache(path)  # all at once, where no file was before
told = [cache.put(str((n * 7 + int(who) * 11) % count), [who, n], "s", Usage(1, 3, 2)) for n in range(count)]
values = [cache.get(str(n)) for n in range(count)]
print(cache_key(values), flush=True)
"""


def test_processes_share_a_file(path: Path) -> None:
    """Each writes all keys, in another order, with values of its own: in the end all go on with the same ones (E3)."""
    count = 211
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    writers = [python(WRITE, who, path, count, **pipes) for who in range(4)]
    for writer in writers:
        assert writer.stdout
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin
        print(file=writer.stdin, flush=True)
    found = {writer.communicate(timeout=60)[0].strip() for writer in writers}
    cache = Cache(path)
    assert found == {cache_key([cache.get(str(n)) for n in range(count)])}
    assert held(cache) == count
    assert cache.usage_by_stage() == {"s": Usage(4 * count, 12 * count, 8 * count)}, (
        "every call was paid for, also the second of a kind"
    )


def test_another_process_that_does_not_let_go_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LOCK_TIMEOUT", 0.05)
    ours = Cache(path)
    ours.put("k", 1, "s")
    theirs = sqlite3.connect(path, isolation_level=None)
    theirs.execute("BEGIN IMMEDIATE")
    with pytest.raises(CacheError, match="another process has been writing to it"):
        ours.put("j", 2, "s")
    assert ours.get("k") == 1, "reading goes on"
    theirs.execute("ROLLBACK")
    assert ours.put("j", 2, "s") == 2


# Ends of all kinds

UNTIL_KILLED = """
cache, begin = Cache(sys.argv[1]), int(sys.argv[2])
for n in range(begin, 10**9):
    cache.put(f"k{n}", [n, "x" * (n * 37 % 5000)], "s", Usage(1, 2, n % 3))
    print(n, flush=True)
"""


@pytest.mark.slow
def test_killed_in_the_middle_of_writing(path: Path) -> None:
    """What `put` returned from is there, a value and its cost come together, and the file is whole."""
    chance, stored = random.Random(5), -1
    for _ in range(8):
        process = Python("-c", BEGIN + UNTIL_KILLED, path, stored + 1)
        assert process.stdout.readline()
        wait_at_random(chance, 0.05)
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().splitlines()
        process.wait()
        stored = max([stored + 1, *(int(line) for line in rest if line)])
    with sqlite3.connect(path) as base:
        assert base.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    cache = Cache(path)
    assert all(cache.get(f"k{n}") == [n, "x" * (n * 37 % 5000)] for n in range(stored + 1))
    assert stored > 100
    paid = cache.usage_by_stage()["s"]
    assert paid.calls <= stored + 1 + 8 + 8  # written but not yet told, and written again after that
    assert held(cache) <= paid.calls <= held(cache) + 8
    assert paid.input_tokens == 2 * paid.calls


@pytest.fixture
def small_files() -> Iterator[Callable[[int], None]]:
    """A limit on the size of files stands for the full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def fill(cache: Cache, begin: int, says: str) -> int:
    """Put in values until there is no room, and this is said; the number of the first that found none."""
    numbers = itertools.count(begin)
    with pytest.raises(CacheError, match=says):
        all(cache.put(str(n), "x" * 1000, "s", Usage(1, 1, 1)) for n in numbers)
    return next(numbers) - 1


def test_a_disk_that_takes_no_more(path: Path, small_files: Callable[[int], None]) -> None:
    cache = Cache(path)
    for n in range(5):
        cache.put(str(n), "x" * 1000, "s", Usage(1, 1, 1))
    small_files(100_000)
    stored = fill(cache, 5, r"make room .*what was stored before is kept")
    assert cache.get(str(stored)) is None
    assert cache.usage_by_stage() == {"s": Usage(stored, stored, stored)}, "nothing is counted without its value"
    small_files(resource.RLIM_INFINITY)
    cache.put(str(stored), "there is room again", "s", Usage(1, 1, 1))
    cache.close()
    again = Cache(path)
    assert [again.get(str(n)) for n in range(stored + 1)] == ["x" * 1000] * stored + ["there is room again"]
    assert again.usage_by_stage() == {"s": Usage(stored + 1, stored + 1, stored + 1)}


def test_a_full_database_says_so(path: Path) -> None:
    cache = Cache(path)
    cache._base.execute("PRAGMA max_page_count = 20")
    assert fill(cache, 0, "the disk is full: make room and run again") > 5


def test_a_place_that_cannot_be_written() -> None:
    """Root may write everywhere, so another user tries, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cache.sqlite"
        Cache(path).close()
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            said = "no error"
            try:
                if os.getuid() == 0:
                    os.setuid(65534)
                Cache(path).put("k", 1, "s")
            except CacheError as error:
                said = str(error)
            except BaseException as error:
                said = repr(error)
            os.write(writing, said.encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        said = os.read(reading, 1000).decode()
        Path(folder).chmod(0o755)
    assert said.startswith(f"cache at {path}: ")
    assert "cannot be written" in said or "can be written" in said


def test_what_is_no_cache(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database " * 100)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as base:
        base.execute("CREATE TABLE checkpoints (id TEXT)")
    for path, says in (
        (text, "it is no cache; name another file"),
        (other, "this is a database of something else; name another file"),
        (tmp_path, "unable to open database file; name a file in a directory that can be written"),
        (text / "below" / "cache.sqlite", "Not a directory; name a file in a directory that can be written"),
    ):
        with pytest.raises(CacheError, match=says):
            Cache(path)
    assert text.read_text().startswith("not a database")


def test_a_damaged_file(path: Path) -> None:
    cache = Cache(path)
    for n in range(200):
        cache.put(str(n), "x" * 500, "s")
    cache.close()
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(os.urandom(50_000))
    with pytest.raises(CacheError, match="damaged: restore it from a copy"):
        [Cache(path).get(str(n)) for n in range(200)]
