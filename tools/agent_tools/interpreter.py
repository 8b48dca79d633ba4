"""The code interpreter: runs Python cells of a model in a separate process that can be killed.

    with Interpreter(seconds=10) as interpreter:
        interpreter.run("x = 6 * 7")
        interpreter.run("x").text              # '42\\n'
        tool = python_tool(interpreter)        # for an agent

Own code, because the sandboxes on PyPI that work inside Python can be left by the code they run; here the kernel holds the walls.

One `Interpreter` is one session: variables live from cell to cell, and other sessions do not see them. Each rollout has its own.
Cells are those of a notebook: the text shows what a cell prints, then the value of its last expression or the traceback, with
the lines of cells only. A text that is too long loses its middle. A session that was stopped (out of time, crashed, too large)
loses its variables; the next cell starts a new one, and its output begins with a line that says so.

The walls around a cell, on Linux (`walls` of a started session lists those in force):

| wall | by | against |
|---|---|---|
| `limits` | `setrlimit` | memory, size of a file, open files, CPU seconds; the host stops what runs too long, has too many threads, or fills its folder (looked at four times a second, and after each cell) |
| `files` | Landlock (Linux 5.13; before 6.2 only together with `calls`, without which files elsewhere could be emptied) | reading anything but the Python installation and the own folder, writing anywhere else |
| `calls` | seccomp (x86_64, aarch64) | new processes and programs (so no fork bomb, and nothing that outlives the session), sockets, signals to other processes or a look into them, changes of owners and rights |

These three are security boundaries as strong as the kernel: they hold for any machine code that a cell runs. They need no root
and no container; root's privileges are dropped. They are not a virtual machine: a kernel bug is a way out, the timing of other
processes can be measured, and many sessions together may use more memory than there is. Packages that hold the answers to
tasks (`HIDDEN_PACKAGES`) cannot be read.

An audit hook in the session only explains refusals in words. It is NO boundary (a cell can get around it). Where the kernel does
not offer `files` or `calls` (macOS, gVisor, old kernels) there is nothing else: then run only code that you trust, or put the
whole program in a container. `strict=True` refuses to start there.

Host and session exchange only bytes, whose form and size the host checks: a cell can forge the answers of its own session, but
no others. The host's working directory, output, limits and signal handlers are not touched. If the host is killed, its sessions
die too; their folders in the temporary directory then stay.
"""

import asyncio
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self

from langchain_core.tools import BaseTool, StructuredTool

from ...memory.errors import UserError

__all__ = ["Cell", "Interpreter", "InterpreterError", "Toolbox", "run_alone"]

HIDDEN_PACKAGES = ("learngraph",)
"""Packages (beginnings of names) that sessions cannot import, because they hold tasks and their answers."""
START_SECONDS = 30.0
"""Seconds that a session may take to start; 0.05 are usual."""
GRACE_SECONDS = 0.25
"""Seconds that a stopped session has to report where it was."""
LOOK_SECONDS = 0.25
"""Seconds between two checks of a running cell's resources."""
MAX_FRAME_BYTES = 1 << 16
"""Longest answer of a session in bytes, printed text excluded."""
_CHILD = Path(__file__).with_name("interpreter_child.py")
_CONTINUES = bytes(range(0x80, 0xC0))
"""Bytes that continue a UTF-8 character."""
_ESCAPED = {n: f"\\x{n:02x}" for n in (*range(0x09), *range(0x0B, 0x0D), *range(0x0E, 0x20), 0x7F)}

DESCRIPTION = (
    "Runs Python code and returns what it prints, and the value of the last line if it is an expression. Variables, functions and "
    "imports stay for the next call. There is no network and no input; files can only be written in the working directory."
)


class InterpreterError(UserError):
    """A session that cannot be used: it was closed, or this machine lacks a wall that `strict` asks for."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The result of a cell."""

    text: str
    """Printed text, then the value or the traceback, and notes of the interpreter in square brackets."""
    status: Literal["done", "raised", "stopped", "died"] = "done"
    """`raised`: the cell ended with an error; `stopped`: it took too long or too much; `died`: its process ended. After the last
    two the variables are lost."""
    seconds: float = 0.0
    """Wall time in seconds."""


class _ClippedOutput:
    """A stream of bytes of which only the beginning and the end are kept, whatever its length."""

    def __init__(self, max_chars: int) -> None:
        self.max_chars, self.room = max_chars, 4 * max_chars
        self.head, self.tail, self.dropped = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        if not self.tail:
            taken = _character_boundary(data, max(self.room - len(self.head), 0))
            self.head += data[:taken]
            data = data[taken:]
        self.tail += data
        if len(self.tail) > 2 * self.room + MAX_FRAME_BYTES:
            self._drop(len(self.tail) - self.room)

    def _drop(self, count: int) -> None:
        count = _character_boundary(self.tail, count)
        self.dropped += len(self.tail[:count].translate(None, _CONTINUES))
        del self.tail[:count]

    def text(self) -> str:
        """The whole text, or its beginning and end with a note on the cut."""
        if not self.dropped:
            whole = _escape_control(bytes(self.head + self.tail))
            cut = len(whole) - self.max_chars
            if cut <= 0:
                return whole
            return _join_ends(whole[: self.max_chars // 2], cut, whole[len(whole) - (self.max_chars - self.max_chars // 2) :])
        head, tail = _escape_control(bytes(self.head)), _escape_control(bytes(self.tail))
        first, last = head[: self.max_chars // 2], tail[len(tail) - (self.max_chars - self.max_chars // 2) :]
        return _join_ends(first, len(head) - len(first) + self.dropped + len(tail) - len(last), last)


def _character_boundary(data: bytes | bytearray, at: int) -> int:
    """The next position, at most three bytes on, that does not split a character."""
    return next((place for place in range(at, at + 3) if place >= len(data) or data[place] & 0xC0 != 0x80), at)


def _join_ends(head: str, cut: int, tail: str) -> str:
    return f"{head}\n[… {cut:,} characters cut …]\n{tail}"


def _escape_control(data: bytes) -> str:
    """Bytes as text for any message: control characters and invalid UTF-8 become escapes."""
    return data.decode("utf-8", "backslashreplace").translate(_ESCAPED)


class _LiveSession:
    """A running session: its process, its folder, and the host's ends of its pipes. `end` ends it, at the latest with this process."""

    def __init__(self, argument: dict[str, Any]) -> None:
        self.owner, self.walls, self.cells = os.getpid(), frozenset[str](), 0
        self.received = bytearray()
        self.folder = tempfile.mkdtemp(prefix="learngraph-python-")
        ours: list[int] = []
        theirs: list[int] = []
        try:
            here, there = socket.socketpair()
            self.channel, channel = here.detach(), there.detach()
            ours.append(self.channel)
            theirs.append(channel)
            self.out, out = os.pipe()
            self.reads: tuple[int, ...] = (self.channel, self.out)
            ours.append(self.out)
            theirs.append(out)
            line, held = os.pipe()
            ours.append(held)
            theirs.append(line)
            for fd in (self.channel, self.out):
                os.set_blocking(fd, False)
            told = json.dumps({**argument, "folder": self.folder, "channel": channel, "line": line})
            self.process = subprocess.Popen(
                [sys.executable, "-s", "-S", "-P", "-B", "-X", "utf8", str(_CHILD), told],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.folder,
                env=_environment(self.folder),
                pass_fds=(channel, line),
                start_new_session=True,
            )
        except BaseException:
            for fd in ours:
                os.close(fd)
            os.rmdir(self.folder)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        self.end = weakref.finalize(self, _end_session, self.process, self.folder, ours, self.owner)

    def kill(self) -> None:
        """Kill the process with all of its threads, and whatever is in its process group."""
        _kill_group(self.process)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _end_session(process: subprocess.Popen[bytes], folder: str, fds: Sequence[int], owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the host: the session is not its own
    _kill_group(process)
    process.wait()
    for fd in fds:
        os.close(fd)
    _remove_tree(folder)


def _remove_tree(folder: str) -> None:
    """Delete a folder of any depth and with any rights; links are not followed."""
    rest = [folder]
    shelf = tempfile.mkdtemp(prefix="learngraph-python-")
    moved = 0
    while rest:
        at = rest.pop()
        with suppress(FileNotFoundError):
            os.chmod(at, 0o700)
            for entry in list(os.scandir(at)):
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, 0o700)
                    moved += 1
                    os.rename(entry.path, f"{shelf}/{moved}")  # so that no path grows longer than the system allows
                    rest.append(f"{shelf}/{moved}")
                else:
                    os.unlink(entry.path)
            os.rmdir(at)
    os.rmdir(shelf)


def _environment(folder: str) -> dict[str, str]:
    own = {"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "TZ": "UTC", "MPLBACKEND": "Agg", "PYTHONHASHSEED": "0"}
    own |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return own | {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}


@dataclass(kw_only=True, eq=False)
class Interpreter:
    """A session of Python cells. It starts with its first cell; close it, or use it in a `with` statement. Safe to share between
    threads and event loops: its cells run one at a time."""

    seconds: float = 10.0
    """Longest wall time of a cell, in seconds."""
    cpu_seconds: int = 120
    """Longest CPU time of a session, in seconds, over all cells and threads."""
    memory_mib: int = 1024
    """Address space in MiB; NumPy and SciPy take 300 of them."""
    disk_mib: int = 64
    """Largest size of the session's folder, and of a file, in MiB."""
    max_files: int = 1000
    """Highest number of files and folders in the session's folder."""
    max_threads: int = 64
    """Highest number of threads."""
    max_output_chars: int = 8000
    """Longest output of a cell, in characters; of a longer one the beginning and the end are kept, half each."""
    strict: bool = False
    """True: refuse to start if the kernel lacks one of the walls (see above)."""
    seed: str = ""
    """Seed of `random` when a session starts."""
    _live: _LiveSession | None = field(default=None, init=False, repr=False)
    _has_lost_variables: bool = field(default=False, init=False, repr=False)
    """True if variables were lost and the next cell has to say so."""
    _closed: bool = field(default=False, init=False, repr=False)
    _turn: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        least_of = {"seconds": 0.01, "cpu_seconds": 1, "memory_mib": 64, "disk_mib": 1, "max_files": 1, "max_threads": 1}
        for name, least in {**least_of, "max_output_chars": 100}.items():
            if getattr(self, name) < least:
                raise InterpreterError(f"interpreter: {name} is at least {least:g}, got {getattr(self, name)!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def walls(self) -> frozenset[str]:
        """The walls in force around the running session, of `limits`, `files`, `calls`; empty before its first cell."""
        return self._live.walls if self._live else frozenset()

    @property
    def folder(self) -> Path | None:
        """The folder where the running session may write, deleted with it; None before its first cell."""
        return Path(self._live.folder) if self._live else None

    def run(self, code: str) -> Cell:
        """Run a cell.

        Raises:
            InterpreterError: the session is closed, or lacks a wall that `strict` asks for.
        """
        self._turn.acquire()
        return self._run_in_turn(code)

    async def arun(self, code: str) -> Cell:
        """Run a cell without blocking the event loop (it waits in a thread). Cancelling it kills the session."""
        while not self._turn.acquire(blocking=False):
            await asyncio.sleep(0.005)
        cell = Future[Cell]()
        cell.set_running_or_notify_cancel()  # from here on the thread ends it, also if nobody waits any more

        def run() -> None:
            try:
                cell.set_result(self._run_in_turn(code))
            except BaseException as error:
                cell.set_exception(error)

        thread = threading.Thread(target=run, name="python cell", daemon=True)
        thread.start()
        try:
            return await asyncio.wrap_future(cell)
        except asyncio.CancelledError:
            while thread.is_alive():
                if live := self._live:
                    live.kill()
                await asyncio.sleep(0.002)
            raise
        finally:
            thread.join()

    def close(self) -> None:
        """End the session for good, from any thread. A running cell is stopped, and its text says so."""
        self._closed = True
        if live := self._live:
            live.kill()
        if self._turn.acquire(blocking=False):
            self._end_live()
            self._turn.release()

    def _run_in_turn(self, code: str) -> Cell:
        """Run a cell in its turn, then let the next one run."""
        try:
            return self._run_whole(code)
        finally:
            self._turn.release()
            if self._closed:
                self.close()

    def _end_live(self) -> None:
        if self._live:
            self._live.end()
            self._live = None

    # One cell

    def _run_whole(self, code: str) -> Cell:
        """Run a cell. A session that is of no use after it is ended."""
        began, lost, whole = time.monotonic(), self._has_lost_variables, False
        printed = _ClippedOutput(self.max_output_chars)
        try:
            live = self._ensure_session(printed)
            status, said = self._run_cell(live, code, printed)
            whole = status in ("done", "raised")
        finally:
            if not whole or self._closed:
                self._has_lost_variables = self._live is not None
                self._end_live()
        self._has_lost_variables = not whole
        note = "[A new session: the variables of earlier cells are lost.]\n" if lost else ""
        text = printed.text()
        gap = "\n" if said and text and not text.endswith("\n") else ""
        return Cell(f"{note}{text}{gap}{said}", status, time.monotonic() - began)

    def _ensure_session(self, printed: _ClippedOutput) -> _LiveSession:
        if self._closed:
            raise InterpreterError("this interpreter is closed; a rollout's sessions end with it")
        if self._live is not None:
            return self._live
        live = self._live = _LiveSession(
            {
                **{"memory": self.memory_mib << 20, "disk": self.disk_mib << 20, "cpu": self.cpu_seconds, "seed": self.seed},
                **{"packages": _packages(), "hidden": HIDDEN_PACKAGES},
            }
        )
        until = time.monotonic() + START_SECONDS
        while True:
            alive, frame = _read(live, printed), _frame(live)
            if frame is not None:
                break
            if time.monotonic() > until or not alive:
                said = "it was closed" if self._closed else printed.text()[-500:] or "it said nothing"
                raise InterpreterError(f"the interpreter's process did not start: {said}")
            _wait(live.reads, (), until)
        live.walls = frozenset(frame.get("walls", ()))
        if self.strict and not {"limits", "files", "calls"} <= live.walls:
            raise InterpreterError(
                f"interpreter: strict asks for Landlock and seccomp, and this machine offers {sorted(live.walls)}; run on Linux 5.13 "
                "or later on x86_64 or aarch64, or use strict=False within a container"
            )
        return live

    def _run_cell(self, live: _LiveSession, code: str, printed: _ClippedOutput) -> tuple[Any, str]:
        live.cells += 1
        body = json.dumps({"cell": live.cells, "code": code}).encode()
        rest = memoryview(struct.pack(">I", len(body)) + body)
        until = time.monotonic() + self.seconds
        look = time.monotonic() + LOOK_SECONDS
        too_much = ""
        while True:
            rest = _write(live, rest)
            alive, frame = _read(live, printed), _frame(live)
            if frame is not None and frame.get("cell") == live.cells and frame.get("status") in ("done", "raised", "exit"):
                _drain(live, printed)
                if too_much := self._too_much(live):
                    return "stopped", f"[Stopped: {too_much}. Its variables are lost.]\n"
                if frame["status"] == "exit":
                    return "done", "[The cell called exit; its variables are kept.]\n"
                return frame["status"], ""
            if frame is not None:
                return (
                    "died",
                    "[The session answered something else than it was asked, and was ended. Its variables are lost.]\n",
                )
            if not alive:
                why = self._death(live)
                return "died", f"[{why}. Its variables are lost.]\n"
            now = time.monotonic()
            if now >= look:
                too_much, look = self._too_much(live), now + LOOK_SECONDS
            if now >= until or too_much:
                where = self._stop_cell(live, printed)
                why = too_much or f"it ran for more than {self.seconds:g} s"
                return "stopped", f"[Stopped: {why}{where}. Its variables are lost.]\n"
            writes = (live.channel,) if rest else ()
            _wait(live.reads, writes, min(until, look))

    def _stop_cell(self, live: _LiveSession, printed: _ClippedOutput) -> str:
        """Ask the session for its position, then kill it and wait for its end."""
        with suppress(ProcessLookupError):
            os.kill(live.process.pid, signal.SIGTERM)
        said = ""
        until = time.monotonic() + GRACE_SECONDS
        killed = False
        while True:
            alive = _read(live, printed)
            if (frame := _frame(live)) is not None and isinstance(frame.get("at"), str) and frame["at"]:
                said = f" ({_escape_control(frame['at'][:100].encode('utf-8', 'backslashreplace'))})"
            if not killed and time.monotonic() >= until:
                live.kill()
                killed, until = True, time.monotonic() + START_SECONDS  # freeing its memory may take a while
            if not alive or time.monotonic() >= until:
                return said
            _wait(live.reads, (), until)

    def _death(self, live: _LiveSession) -> str:
        """The reason why the process ended, in words."""
        until = time.monotonic() + 2 * GRACE_SECONDS
        while (code := live.process.poll()) is None and time.monotonic() < until:
            time.sleep(0.002)
        if self._closed:
            return "The interpreter was closed"
        if code is None:
            return "The cell closed the session's channel, and was ended"
        if code >= 0:
            return f"The cell ended its process (exit code {code})"
        if code == -signal.SIGXCPU:
            return f"The session used up its {self.cpu_seconds} s of CPU time"
        why = ", as when memory runs out" if code == -signal.SIGKILL else ""
        return f"The cell's process was ended by {signal.Signals(-code).name}{why}"

    def _too_much(self, live: _LiveSession) -> str:
        """The limit that the session exceeds, in words; empty if none."""
        with suppress(OSError, IndexError, ValueError):
            stat = Path(f"/proc/{live.process.pid}/stat").read_text()
            if (threads := int(stat[stat.rindex(")") :].split()[18])) > self.max_threads:
                return f"it has {threads} threads, and may have {self.max_threads}"
        count, size, rest = 0, 0, [live.folder]
        while rest:
            try:
                for entry in os.scandir(rest.pop()):
                    found = entry.stat(follow_symlinks=False)
                    count, size = count + 1, size + found.st_blocks * 512
                    if count > self.max_files:
                        return f"its folder holds more than {self.max_files} files"
                    if size > self.disk_mib << 20:
                        return f"its folder holds more than {self.disk_mib} MiB"
                    if entry.is_dir(follow_symlinks=False):
                        rest.append(entry.path)
            except FileNotFoundError:
                continue
            except OSError as error:
                return f"its folder cannot be looked into ({error.strerror})"
        return ""


def _packages() -> list[str]:
    return [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages") and os.path.isdir(path)]


def _write(live: _LiveSession, rest: memoryview) -> memoryview:
    while rest:
        try:
            rest = rest[os.write(live.channel, rest) :]
        except BlockingIOError:
            break
        except OSError:
            return rest[:0]  # no reader: the end is noticed where answers are read
    return rest


def _read(live: _LiveSession, printed: _ClippedOutput) -> bool:
    """Read what has arrived; returns False once the channel is closed."""
    if live.out in live.reads:
        with suppress(BlockingIOError):
            if data := os.read(live.out, MAX_FRAME_BYTES):
                printed.add(data)
            else:
                live.reads = (live.channel,)  # all that could print was closed
    try:
        data = os.read(live.channel, MAX_FRAME_BYTES)
    except BlockingIOError:
        return True
    except OSError:
        data = b""
    live.received += data
    if data:
        return True
    _drain(live, printed)
    return False


def _drain(live: _LiveSession, printed: _ClippedOutput) -> None:
    """Read what is in the pipe now, but not what a thread may go on printing."""
    with suppress(BlockingIOError):
        for _ in range(32):
            if not (data := os.read(live.out, MAX_FRAME_BYTES)):
                break
            printed.add(data)


def _frame(live: _LiveSession) -> dict[str, Any] | None:
    """The next whole frame; None if it is incomplete. Invalid bytes (a cell wrote into the channel) give an empty frame."""
    received = live.received
    if len(received) < 4:
        return None
    (size,) = struct.unpack(">I", received[:4])
    if size > MAX_FRAME_BYTES:
        received.clear()
        return {}
    if len(received) < 4 + size:
        return None
    body = bytes(received[4 : 4 + size])
    del received[: 4 + size]
    try:
        frame = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return frame if isinstance(frame, dict) else {}


def _wait(reads: Sequence[int], writes: Sequence[int], until: float) -> None:
    """Wait until something can be read or written, at most until a time of `time.monotonic`."""
    poll = select.poll()
    for fd in {*reads, *writes}:
        poll.register(fd, select.POLLIN * (fd in reads) | select.POLLOUT * (fd in writes))
    poll.poll(max(until - time.monotonic(), 0.0) * 1000)


def run_alone(code: str, **settings: Any) -> tuple[str, bool]:
    """Run one cell in a session of its own: the text that it prints, and True if it ran to its end. The same code, the same text.

    Args:
        code: the cell.
        settings: of the `Interpreter`; 5 seconds, 512 MiB and all walls if not given.

    Raises:
        InterpreterError: this machine lacks a wall.
    """
    with Interpreter(**{"seconds": 5.0, "cpu_seconds": 10, "memory_mib": 512, "strict": True, **settings}) as interpreter:
        cell = interpreter.run(code)
    return cell.text, cell.status == "done"


def python_tool(interpreter: Interpreter) -> BaseTool:
    """The interpreter as a LangChain tool named `python`, which takes `code`."""

    def run(code: str) -> str:
        return interpreter.run(_strip_fence(code)).text or "[No output.]"

    async def arun(code: str) -> str:
        return (await interpreter.arun(_strip_fence(code))).text or "[No output.]"

    return StructuredTool.from_function(run, arun, name="python", description=_describe_tool(interpreter))


def _describe_tool(interpreter: Interpreter) -> str:
    """The tool's description for the model: what persists, which libraries there are, how long a call may take."""
    there = [name for name in ("numpy", "scipy", "sympy") if find_spec(name)]
    libraries = f" Installed are {', '.join(there)}." if there else ""
    return f"{DESCRIPTION}{libraries} A call may take {interpreter.seconds:g} seconds."


@dataclass(frozen=True)
class Toolbox:
    """The tools of rollouts: each rollout gets an interpreter of its own, closed at its end; tools without a memory are shared.

        toolbox = Toolbox(python={"seconds": 10}, shared=(search_tool(),))
        with toolbox("run", "task-3", 0) as tools: ...

    Equal rollouts (run, task, episode) draw equal random numbers.
    """

    python: Mapping[str, Any] | None = field(default_factory=dict)
    """Arguments of each `Interpreter`; None: no interpreter."""
    shared: Sequence[BaseTool] = field(default=(), repr=False)
    names: tuple[str, ...] = field(init=False)
    """Names of the shared tools; `repr` shows them and `python`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(tool.name for tool in self.shared))
        if self.python is not None:
            known = {one.name for one in fields(Interpreter) if one.init}
            if unknown := sorted(self.python.keys() - known):
                raise InterpreterError(f"interpreter: there is no setting {unknown[0]!r}; there are {', '.join(sorted(known))}")
            Interpreter(**self.python)  # settings that cannot work are refused now

    @contextmanager
    def __call__(self, run: str, task: str, episode: int) -> Iterator[Sequence[BaseTool]]:
        """The tools of one rollout. The interpreter starts with its first cell."""
        if self.python is None:
            yield self.shared
            return
        with Interpreter(**{"seed": f"{run}/{task}/{episode}", **self.python}) as interpreter:
            yield (python_tool(interpreter), *self.shared)


def _strip_fence(code: str) -> str:
    lines = code.strip().splitlines()
    if len(lines) > 1 and lines[0].strip() in ("```", "```python", "```py") and lines[-1].strip() == "```":
        return "\n".join(lines[1:-1])
    return code
