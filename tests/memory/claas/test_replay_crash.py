"""kill -9 anywhere in a life of the replay buffer and of an adapter's versions, then on: the end is the same to the byte.

A driver process forks a child for each point of death. Where there is a C compiler, the child dies at its n-th call of write,
pwrite, fsync, rename, unlink, ... (a preloaded library counts them; a write is done by half first); everywhere, it dies before
its n-th SQL statement; and once more while it goes on. What is done again after the crash is the one operation that was not heard of.
"""

import ast
import ctypes
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from leases import leased_batches
from postgres_server import BIN

from learngraph.memory.claas.adapters import Adapters
from learngraph.memory.claas.replay import Replay
from learngraph.memory.claas.replay_file import TABLES, ReplayFile
from learngraph.memory.claas.settings import ReplaySettings
from learngraph.memory.errors import AdapterError, UnknownExchange
from learngraph.memory.records import ChatRequest, Exchange, Feedback, Minibatch, Reply

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
static volatile long left = -1, seen = 0;
void lg_kill_after(long n) { left = n; seen = 0; }
long lg_seen(void) { return seen; }
static int due(void) { seen++; return left >= 0 && left-- == 0; }
static void die(void) { for (;;) kill(getpid(), SIGKILL); }
#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
ssize_t write(int f, const void *b, size_t n) { REAL(write); if (due()) { real(f, b, n / 2); die(); } return real(f, b, n); }
ssize_t pwrite(int f, const void *b, size_t n, off_t o) { REAL(pwrite); if (due()) { real(f, b, n / 2, o); die(); } return real(f, b, n, o); }
ssize_t pwrite64(int f, const void *b, size_t n, off64_t o)
{ REAL(pwrite64); if (due()) { real(f, b, n / 2, o); die(); } return real(f, b, n, o); }
#define CALL(type, name, params, args) type name params { REAL(name); if (due()) die(); return real args; }
CALL(int, fsync, (int f), (f))
CALL(int, fdatasync, (int f), (f))
CALL(int, ftruncate, (int f, off_t n), (f, n))
CALL(int, ftruncate64, (int f, off64_t n), (f, n))
CALL(int, truncate, (const char *p, off_t n), (p, n))
CALL(int, truncate64, (const char *p, off64_t n), (p, n))
CALL(int, rename, (const char *a, const char *b), (a, b))
CALL(int, renameat, (int d, const char *a, int e, const char *b), (d, a, e, b))
CALL(int, unlink, (const char *p), (p))
CALL(int, unlinkat, (int d, const char *p, int f), (d, p, f))
CALL(int, rmdir, (const char *p), (p))
CALL(int, mkdir, (const char *p, mode_t m), (p, m))
CALL(int, mkdirat, (int d, const char *p, mode_t m), (d, p, m))
"""


# -- a life of the replay buffer: every operation may be done again if it is not known whether it was done

LIMITS = ReplaySettings(max_records=14, max_samplings=2, max_age=4, held_out_share=0.15, max_kl=1.0)


def _exchange(i: int, tenant: str, replay: Replay) -> Exchange:
    reply = Reply(f"reply {i}", (1, 2, 3), (i, i + 1), (-0.5, -1.0), version=replay.head(tenant, "default"))
    request = ChatRequest(({"role": "user", "content": f"words {i} " * (700 if i % 5 == 0 else 20)},))
    return Exchange(f"r{i}", tenant, request, reply, "base", step=replay.step(tenant, "default"), family="ab"[i % 2])


def _served(i: int, tenant: str) -> Iterator[Callable[[Replay], Any]]:
    yield lambda replay: replay.append(_exchange(i, tenant, replay))
    if i % 4 != 3:
        yield lambda replay: replay.add_feedback(tenant, f"r{i}", Feedback(reward=float(i % 3 - 1)), key=f"k{i}")


def _version(batch: Minibatch) -> str:
    """What a deterministic learner makes of a batch: equal only if all of it is."""
    seen = [batch.parent, batch.seed, [(e.id, e.reply.logprobs, e.feedback and e.feedback.reward) for e in batch.exchanges]]
    return f"{batch.tenant}/{batch.adapter}@{batch.step:06d}-{hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:12]}"


def _lease(tenant: str) -> Callable[[Replay], Any]:
    return lambda replay: replay.lease(tenant, "default", 4, min_exchanges=2, seed=1)


def _learned(tenant: str, round: int) -> Iterator[Callable[[Replay], Any]]:
    """A step as its parts; each finds the minibatch again as a restarted learner does."""

    def part(work: Callable[[Replay, Minibatch], Any]) -> Callable[[Replay], Any]:
        def run(replay: Replay) -> None:
            found = [id for id in leased_batches(replay) if id.startswith(f"{tenant}/")]
            if found:  # else the part was done before the crash, or there was nothing to learn from
                batch = replay.lease(tenant, "default", 99, seed=99)
                assert batch is not None
                assert batch.id == found[0]
                work(replay, batch)

        return run

    def end(replay: Replay, batch: Minibatch) -> None:
        rejected = {batch.exchanges[0].id: "far off"} if round % 3 == 1 else {}
        kls = {batch.exchanges[-1].id: 1.5 if round % 4 == 2 else 0.5}
        if round % 5 == 4:
            replay.release(batch.id, "all alike", True, rejected)
        else:
            replay.commit(batch.id, _version(batch), {"loss": 1 / (round + 1)}, rejected, kls)

    yield _lease(tenant)
    yield part(end)


def _delete(tenant: str, id: str | None) -> Callable[[Replay], Any]:
    def run(replay: Replay) -> None:
        with suppress(UnknownExchange):
            replay.delete(tenant, id)

    return run


def replay_life() -> list[Callable[[Replay], Any]]:
    found: list[Callable[[Replay], Any]] = []
    for i in range(24):
        for tenant in ("acme", "zeta") if i % 2 else ("acme",):
            found += _served(i, tenant)
        if i > 4 and i % 2:
            found += _learned("acme", i // 2)
        if i == 13:
            found += [_lease("zeta"), _delete("zeta", "r5"), _delete("acme", "r7")]
        if i == 17:
            found.append(lambda replay: replay.set_head("acme", "default", replay.updates("acme", "default")[-1]["version"]))
    found += [_delete("zeta", None), *_learned("acme", 12)]
    return found


def replay_end(replay: Replay) -> Any:
    """All rows of all tables, in order. Postgres numbers records with gaps: their numbers give the order only."""
    found = {}
    is_file = isinstance(replay._database, ReplayFile)
    with replay._database.reading() as base:
        if is_file:
            assert base.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        for tenant, id, times in base.execute("SELECT tenant, id, times FROM records").fetchall():
            assert len(replay.uses(tenant, id)) <= times <= LIMITS.max_samplings
        for name in re.findall(r"CREATE TABLE (\w+)", TABLES):
            rows = base.execute(f"SELECT * FROM {name}{' ORDER BY n' if name in ('records', 'bodies') else ''}")
            first = 0 if is_file or name not in ("records", "bodies") else 1
            found[name] = [row[first:] for row in rows.fetchall()]
    return {name: repr(rows if name in ("records", "bodies") else sorted(rows)) for name, rows in found.items()}


# -- a life of an adapter


def _folder(root: Path, i: int) -> Path:
    folder = root / "work"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in ("adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors", "learner.json"):
        (folder / name).write_text(f"{name} {i} " * 50)
    return folder


def _label(adapters: Adapters, i: int) -> str:
    return str(next(line["label"] for line in adapters.log() if line["state"] == "candidate" and line["step"] == i))


def adapters_life() -> list[Callable[[Adapters], Any]]:
    def write(i: int) -> Callable[[Adapters], Any]:
        return lambda a: a.write(_folder(a.place.parents[1], i), i, _label(a, i - 1) if i > 1 else "", "base", {"loss": i})

    def delete(i: int) -> Callable[[Adapters], Any]:
        def run(a: Adapters) -> None:
            with suppress(AdapterError):  # it is deleted already
                a.delete(_label(a, i))

        return run

    return [
        *(write(1), write(1), lambda a: a.make_canary(_label(a, 1), "gate passed", {"gate": [0.5]})),
        *(lambda a: a.promote(_label(a, 1), "canary did well"), write(2), lambda a: a.promote(_label(a, 2), "gate passed")),
        *(write(3), lambda a: a.drop(_label(a, 3), "gate failed"), lambda a: a.roll_back(_label(a, 1), "worse")),
        *(
            lambda a: a.taint([_label(a, 2)], "a record was deleted"),
            write(4),
            lambda a: a.make_canary(_label(a, 4), "gate passed"),
        ),
        *(delete(2), lambda a: a.roll_back("", "all the way"), lambda a: a.promote(_label(a, 4), "again")),
        *(write(5), lambda a: a.promote(_label(a, 5), "gate passed"), lambda a: a.prune([_label(a, 3)])),
    ]


def adapters_look(place: Path) -> None:
    """What a process finds that opens it after the crash: whole versions only, and a live one that is there."""
    adapters = Adapters(place, "acme", keep_versions=1, clock=lambda: 5.0)
    for version in adapters.versions():
        adapters.folder(version.label)
    live = [line["label"] for line in adapters.log() if line["state"] == "live"]
    assert adapters.current == (live[-1] if live else "")
    if adapters.current:
        adapters.folder(adapters.current)
    assert not [path for path in (adapters.place / "versions").iterdir() if path.name.startswith(".")]


def adapters_end(adapters: Adapters) -> Any:
    files = sorted(path for path in adapters.place.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(adapters.place)): path.read_text() for path in files}


# -- the driver


class Life:
    """One of the two, in a folder."""

    def __init__(self, name: str, place: Path) -> None:
        self.name, self.place = name, place
        self.work: list[Callable[[Any], Any]] = list(adapters_life() if name == "adapters" else replay_life())

    def open(self) -> Any:
        if self.name == "postgres":
            return Replay(os.environ["LIFE_URL"], LIMITS, lambda: 5.0)
        if self.name == "replay":
            return Replay(self.place / "replay.sqlite", LIMITS, lambda: 5.0)
        return Adapters(self.place, "acme", keep_versions=1, clock=lambda: 5.0)

    def live(self, start: int, heard: int | None, dying: Callable[[Any], None]) -> None:
        """All operations from the one with number `start`; each that is done is told."""
        thing = self.open()
        dying(thing)
        for number in range(start, len(self.work)):
            self.work[number](thing)
            if heard is not None:
                os.write(heard, b".")
        dying(None)
        if self.name != "adapters":
            thing.close()

    def child(self, start: int, dying: Callable[[Any], None]) -> tuple[int, bool]:
        """Run in a child; (operations done and told, whether it died)."""
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            status = 1
            try:
                os.close(reader)
                self.live(start, writer, dying)
                status = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(writer)
        told = 0
        while part := os.read(reader, 1000):
            told += len(part)
        os.close(reader)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            return start + told, True
        assert os.waitstatus_to_exitcode(status) == 0, "the life itself failed"
        return start + told, False

    def end(self) -> Any:
        thing = self.open()
        found = adapters_end(thing) if self.name == "adapters" else replay_end(thing)
        if self.name != "adapters":
            thing.close()
        return found

    def fresh(self) -> None:
        if self.name == "postgres":
            import psycopg

            with psycopg.connect(os.environ["LIFE_URL"], autocommit=True) as connection:
                connection.execute("DROP SCHEMA IF EXISTS learngraph_replay CASCADE")
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir()

    def survives(self, expected: Any, dying: Callable[[Any], None]) -> bool:
        """Die so, and once more on the way back, then go on to the end: it must be what it is without; False if it did not die."""
        self.fresh()
        done, died = self.child(0, dying)
        if died:
            if self.name == "adapters":
                adapters_look(self.place)
            done, again = self.child(done, dying)
            if again:
                done, _ = self.child(done, lambda thing: None)
        assert done == len(self.work)
        found = self.end()
        for name in sorted({*found, *expected}):
            assert found.get(name) == expected.get(name), f"{name} is not as it would be without the crash"
        return died


def at_statement(number: int) -> Callable[[Any], None]:
    """Die before the n-th SQL statement."""

    def dying(thing: Any) -> None:
        if thing is None:
            return
        left = [number]

        def trace(_: str) -> None:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

        if isinstance(thing._database, ReplayFile):
            thing._database._base.set_trace_callback(trace)
            return
        from learngraph.memory.claas.replay_database import _Connection

        execute = _Connection.execute

        def traced(self: Any, text: str, *values: Any) -> Any:
            trace(text)
            return execute(self, text, *values)

        _Connection.execute = traced  # type: ignore[method-assign]

    return dying


def at_call(number: int) -> Callable[[Any], None]:
    """Die in the n-th call that changes a file."""

    def dying(thing: Any) -> None:
        ctypes.CDLL(None).lg_kill_after(ctypes.c_long(-1 if thing is None else number))

    return dying


def drive(name: str, how: str, place: Path, every: int) -> dict[str, int]:
    """Every `every`-th point of death; how many there were."""
    life = Life(name, place / "life")
    life.fresh()
    life.child(0, lambda thing: None)
    expected = life.end()
    tried = 0
    number, at = 0, at_statement if how == "statements" else at_call
    while life.survives(expected, at(number)):
        tried += 1
        number += every
    return {"tried": tried, "points": number}


if __name__ == "__main__":
    print(json.dumps(drive(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))))
    sys.exit()


# -- the tests


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """In memory where there is a file system for it: a killed process does not need the disk, only its order of calls."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def shim(place: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        pytest.skip("NOT TESTED: no C compiler for the library that counts file operations")
    (place / "shim.c").write_text(SHIM)
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", place / "shim.so", place / "shim.c", "-ldl"], check=True)
    return place / "shim.so"


def driven(name: str, how: str, place: Path, every: int, shim: Path | None = None, url: str = "") -> dict[str, Any]:
    paths = os.pathsep.join([str(Path(__file__).parents[2] / "support"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": paths, "LIFE_URL": url, **({"LD_PRELOAD": str(shim)} if shim else {})}
    run = subprocess.run([sys.executable, __file__, name, how, str(place), str(every)], capture_output=True, text=True, env=env)
    assert run.returncode == 0, run.stderr[-3000:]
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize(
    ("name", "how", "every", "least"),
    [
        pytest.param("replay", "statements", 73, 15, marks=pytest.mark.slow),
        pytest.param("replay", "calls", 97, 15, marks=pytest.mark.slow),
        pytest.param("adapters", "calls", 9, 15, marks=pytest.mark.slow),
        pytest.param("replay", "statements", 1, 600, marks=pytest.mark.long),
        pytest.param("replay", "calls", 1, 100, marks=pytest.mark.long),
        pytest.param("adapters", "calls", 1, 100, marks=pytest.mark.long),
    ],
)
def test_killed_at_some_or_all_points(
    place: Path, request: pytest.FixtureRequest, name: str, how: str, every: int, least: int
) -> None:
    shim = request.getfixturevalue("shim") if how == "calls" else None
    assert driven(name, how, place, every, shim)["tried"] > least


@pytest.mark.slow
@pytest.mark.skipif(BIN is None, reason="NOT TESTED: no Postgres (apt-get install postgresql)")
def test_killed_with_its_buffer_in_postgres(place: Path, postgres: Any) -> None:
    assert driven("postgres", "statements", place, 299, url=postgres.make_database("life_statements"))["tried"] > 3


@pytest.mark.slow
@pytest.mark.skipif(BIN is None, reason="NOT TESTED: no Postgres (apt-get install postgresql)")
def test_a_life_ends_alike_in_a_file_and_in_postgres(
    place: Path, postgres: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIFE_URL", postgres.make_database("life"))
    ends = []
    for name in ("replay", "postgres"):
        life = Life(name, tmp_path / name)
        life.fresh()
        life.live(0, None, lambda thing: None)
        ends.append(life.end())
    for name, rows in ends[0].items():
        theirs = ends[1][name]
        if name in ("records", "bodies"):  # without their numbers
            rows = repr([row[1:] for row in ast.literal_eval(rows)])
        assert rows == theirs, name
