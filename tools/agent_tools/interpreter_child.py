"""The program inside a session of `interpreter.py`: it confines itself, then runs one cell after the other.

Run as a script, with a line of JSON as its argument (see `main`); standard library only, and nothing of learngraph. On the channel
to the host every frame is four bytes of length and a JSON object: first `{"walls": [...]}`, then for each `{"cell": n, "code":
...}` that comes in one `{"cell": n, "status": ...}` that goes out. What a cell prints goes another way, through descriptor 1.
"""

import _ast
import builtins
import ctypes
import errno
import fcntl
import io
import json
import linecache
import os
import random
import resource
import signal
import struct
import sys
import traceback
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

__all__ = []

LINUX = sys.platform == "linux"

# Files: Landlock (Linux 5.13), which needs no privilege and holds for all that this process ever does. What its older versions do
# not know (to empty files, before 6.2; signals, before 6.12) the filter below refuses on every kernel.

_READ_FILE, _READ_DIR, _WRITE_FILE, _TRUNCATE = 1 << 2, 1 << 3, 1 << 1, 1 << 14
_OWN_FOLDER_RIGHTS = (1 << 15) - 1 & ~(1 | 1 << 6 | 1 << 9 | 1 << 11)
"""Rights in the own folder: all but to execute, and to make devices and sockets."""
_RIGHTS_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
"""Rights that a version of Landlock knows; from the fifth on there is one more."""
_DEVICES = {
    "/dev/null": _READ_FILE | _WRITE_FILE,
    "/dev/urandom": _READ_FILE,
    "/dev/random": _READ_FILE,
    "/dev/zero": _READ_FILE,
}


def entries(folder: str, *excluded_prefixes: str) -> list[str]:
    """The entries of a folder, except those whose names begin with a prefix; none if there is no such folder."""
    try:
        return [entry.path for entry in os.scandir(os.path.realpath(folder)) if not entry.name.startswith(excluded_prefixes)]
    except OSError:
        return []


def shut_files(libc: ctypes.CDLL, folder: str, readable: Iterable[str], listable: Iterable[str]) -> int:
    """From now on: write under `folder` alone, read there and under `readable`, list `listable`. The version of Landlock that
    sees to it, 0 for none. Before the third one, files elsewhere can still be emptied, which `shut_calls` prevents."""
    version = libc.syscall(444, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return 0
    handled = _RIGHTS_BY_VERSION.get(version, (1 << 16) - 1)
    # Rights to files; TCP, from the fourth version on; signals and abstract sockets, from the sixth.
    attributes = struct.pack("=QQQ", handled, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = libc.syscall(444, attributes, ctypes.c_size_t(len(attributes)), 0)
    if rules < 0:
        return 0

    def allow(path: str, rights: int) -> None:
        try:
            at = os.open(path, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
        except OSError:
            return  # is not there
        if not os.path.isdir(path):
            rights &= _READ_FILE | _WRITE_FILE | _TRUNCATE
        libc.syscall(445, rules, 1, struct.pack("=Qi", rights & handled, at), 0)
        os.close(at)

    allow(folder, _OWN_FOLDER_RIGHTS)
    for path in readable:
        allow(path, _READ_FILE | _READ_DIR)
    for path in listable:
        allow(path, _READ_DIR)
    for path, rights in _DEVICES.items():
        allow(path, rights)
    shut = libc.syscall(446, rules, 0) == 0
    os.close(rules)
    return int(version) if shut else 0


# Processes, network, other processes: a seccomp filter, which refuses system calls by number

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_REFUSED_CALLS = """
    fork 57 -1, vfork 58 -1, execve 59 221, execveat 322 281, unshare 272 97, setns 308 268, socket 41 198,
    connect 42 203, bind 49 200, listen 50 201, accept 43 202, accept4 288 242, io_uring_setup 425 425,
    io_uring_enter 426 426, io_uring_register 427 427, ptrace 101 117, process_vm_readv 310 270,
    process_vm_writev 311 271, kcmp 312 272, tkill 200 130, pidfd_open 434 434, pidfd_getfd 438 438,
    pidfd_send_signal 424 424, process_madvise 440 440, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240,
    setpriority 141 140, ioprio_set 251 30, sched_setaffinity 203 122, sched_setscheduler 144 119, sched_setparam 142 118,
    sched_setattr 314 274, chmod 90 -1, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, chown 92 -1, fchown 93 55, lchown
    94 -1, fchownat 260 54, utime 132 -1, utimes 235 -1, futimesat 261 -1, utimensat 280 88, setxattr 188 5, lsetxattr 189
    6, fsetxattr 190 7, setxattrat 463 463, removexattrat 466 466, removexattr 197 14, lremovexattr 198 15, fremovexattr 199
    16, open_by_handle_at 304 265, shmget 29 194, shmat 30 196, shmctl 31 195, msgget 68 186, msgsnd 69 189, msgrcv 70 188,
    msgctl 71 187, semget 64 190, semop 65 193, semctl 66 191, semtimedop 220 192, mq_open 240 180, mq_unlink 241 181,
    truncate 76 45, file_setattr 469 469, memfd_create 319 279, memfd_secret 447 447, keyctl 250 219, add_key 248 217,
    request_key 249 218, bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, personality 135 92, move_pages 279 239,
    migrate_pages 256 238, fanotify_init 300 262
"""
"""System calls by name, with their numbers on x86_64 and aarch64 (-1: has none). Those that need privileges (mount, reboot) the
kernel itself refuses, since privileges are dropped before."""
_MISSING_CALLS = {"clone3": (435, 435), "openat2": (437, 437)}
"""Calls whose arguments lie in memory, where a filter cannot look: reported as missing, so that the C library takes older ones."""
_CLONE_THREAD = 0x10000
_TRUNCATING_BITS = 0o1003
"""Bits of an open: O_TRUNC, and how it accesses. Without a right to write (0), or with the 3 that asks for none, Landlock before
its third version lets the file be emptied."""
_REFUSED_FCNTLS = (8, 10, 15, 1024)
"""F_SETOWN, F_SETSIG and F_SETOWN_EX, which have the kernel signal any process; F_SETLEASE, which holds others up."""
_ALLOWED_IOCTLS = (0x541B, 0x5421, 0x5450, 0x5451, 0x40049409)
"""Kinds of ioctl that are allowed: FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, FICLONE. Others set owners (FIOSETOWN, SIOCSPGRP), change
files that are open to read, or are for devices; to them nothing is a terminal."""
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _KILL_PROCESS, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000

_Rule = tuple[int, int, int, int]


def _by_argument(
    call: int, argument: int, values: Sequence[int], then: int, other: int, mask: int = 0xFFFFFFFF
) -> Iterator[_Rule]:
    """Instructions that decide a call: `then` if bits of an argument have one of the values, else `other`."""
    if call >= 0:
        yield _EQUAL, 0, len(values) + 4, call
        yield _LOAD, 0, 0, 16 + 8 * argument
        yield _AND, 0, 0, mask
        for place, value in enumerate(values):
            yield _EQUAL, len(values) - place, 0, value
        yield _RETURN, 0, 0, other
        yield _RETURN, 0, 0, then


def _rules(kind: int, audit: int) -> Iterator[_Rule]:
    """The filter: instructions as (code, steps if true, steps if false, operand)."""
    own, refuse = os.getpid(), _ERROR | errno.EPERM
    yield _LOAD, 0, 0, 4  # the architecture
    yield _EQUAL, 1, 0, audit
    yield _RETURN, 0, 0, _KILL_PROCESS
    yield _LOAD, 0, 0, 0  # the number of the call
    yield _AT_LEAST, 0, 1, 0x40000000  # another set of numbers for the same calls
    yield _RETURN, 0, 0, refuse
    for call in _REFUSED_CALLS.split(","):
        number = int(call.split()[1 + kind])
        if number >= 0:
            yield _EQUAL, 0, 1, number
            yield _RETURN, 0, 0, refuse
    for numbers in _MISSING_CALLS.values():
        yield _EQUAL, 0, 1, numbers[kind]
        yield _RETURN, 0, 0, _ERROR | errno.ENOSYS
    yield from _by_argument((56, 220)[kind], 0, [_CLONE_THREAD], _ALLOW, refuse, _CLONE_THREAD)  # clone
    yield from _by_argument((62, 129)[kind], 0, [own], _ALLOW, refuse)  # kill
    yield from _by_argument((234, 131)[kind], 0, [own], _ALLOW, refuse)  # tgkill
    yield from _by_argument((302, 261)[kind], 0, [0, own], _ALLOW, refuse)  # prlimit
    yield from _by_argument((72, 25)[kind], 1, _REFUSED_FCNTLS, refuse, _ALLOW)  # fcntl
    yield from _by_argument((16, 29)[kind], 1, _ALLOWED_IOCTLS, _ALLOW, _ERROR | errno.ENOTTY)  # ioctl
    for number, flags in (((2, -1)[kind], 1), ((257, 56)[kind], 2)):  # open, openat
        yield from _by_argument(number, flags, [os.O_TRUNC, os.O_TRUNC | 3, 3], refuse, _ALLOW, _TRUNCATING_BITS)
    yield _RETURN, 0, 0, _ALLOW


def shut_calls(libc: ctypes.CDLL) -> bool:
    """From now on: no new process or program, no socket, no signal to or look into another process, no file emptied
    that is not open to write. Whether it took."""
    if os.uname().machine not in _ARCHITECTURES:
        return False
    audit, kind = _ARCHITECTURES[os.uname().machine]
    program = [struct.pack("=HBBI", *rule) for rule in _rules(kind, audit)]
    held = ctypes.create_string_buffer(b"".join(program))
    described = struct.pack("@HP", len(program), ctypes.addressof(held))
    return bool(libc.prctl(22, 2, described, 0, 0) == 0)


def drop_privileges(libc: ctypes.CDLL) -> None:
    """Give up what root may do beyond others, except to read what belongs to others (which Landlock limits)."""
    read_search = 1 << 2 if os.geteuid() == 0 else 0
    libc.capset(struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", read_search, read_search, 0, 0, 0, 0))


# The second line: an audit hook. No boundary, since a cell can do without what Python audits; it says in words what is refused,
# and where the kernel offers no more, it is all there is.

_PROCESS_EVENTS = frozenset(
    "os.fork os.forkpty os.exec os.posix_spawn os.spawn os.system subprocess.Popen pty.spawn".split()  # noqa: SIM905
)
_NETWORK_EVENTS = frozenset(
    "socket.connect socket.bind socket.getaddrinfo socket.gethostbyname socket.gethostbyaddr socket.sendto".split()  # noqa: SIM905
)
_FILE_EVENTS = frozenset(
    "os.chmod os.chown os.link os.mkdir os.remove os.rename os.rmdir os.symlink os.truncate".split()  # noqa: SIM905
)
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def install_audit_hook(folder: str, readable: Iterable[str], files: bool) -> None:
    """Refuse in words to start programs and to use the network; with `files`, also files outside of the folders."""
    real = os.path.realpath
    roots = [real(path) for path in readable] if files else []

    def inside(path: Any, *folders: str) -> bool:
        there = real(os.fsdecode(path))
        return any(there == root or there.startswith(root + "/") for root in folders)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in _PROCESS_EVENTS:
            raise PermissionError(errno.EPERM, "this interpreter starts no other programs or processes")
        if event in _NETWORK_EVENTS:
            raise PermissionError(errno.EPERM, "this interpreter has no network")
        if event in ("os.kill", "os.killpg"):
            raise PermissionError(errno.EPERM, "this interpreter sends no signals")
        if not files:
            return
        if event == "open" and isinstance(args[0], str | bytes | os.PathLike):
            writes = isinstance(args[2], int) and args[2] & _WRITE_FLAGS
            if not inside(args[0], folder, *(() if writes else roots), *(("/dev/null",) if writes else tuple(_DEVICES))):
                raise PermissionError(errno.EACCES, "outside of the interpreter's folder", args[0])
        elif event in _FILE_EVENTS:
            for path in args:
                if isinstance(path, str | bytes | os.PathLike) and not inside(path, folder):
                    raise PermissionError(errno.EACCES, "outside of the interpreter's folder", path)

    sys.addaudithook(hook)


# Limits


def set_limits(memory: int, disk: int, cpu: int) -> bool:
    """Set this process's limits, which it cannot raise again: bytes of addresses, bytes of a file, seconds of CPU. Whether all
    of them hold (macOS knows no limit of addresses)."""
    wanted = {
        "RLIMIT_AS": (memory, memory),
        "RLIMIT_FSIZE": (disk, disk),
        "RLIMIT_CPU": (cpu, cpu + 1),
        "RLIMIT_NOFILE": (128, 128),
        "RLIMIT_CORE": (0, 0),
    }
    hold = True
    for name, (soft, hard) in wanted.items():
        try:
            which = getattr(resource, name)
            top = resource.getrlimit(which)[1]
            lower = hard if top == resource.RLIM_INFINITY else min(hard, top)
            resource.setrlimit(which, (min(soft, lower), lower))
        except (AttributeError, OSError, ValueError):
            hold = False
    return hold


def die_with_the_host(line: int) -> None:
    """Have the kernel kill this process when the other end of a pipe is closed, however the host ended.

    (A "parent death signal" would come as soon as the host's thread that started us ends.)
    """
    if LINUX:
        fcntl.fcntl(line, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(line, 10, signal.SIGKILL)  # F_SETSIG
        fcntl.fcntl(line, fcntl.F_SETFL, fcntl.fcntl(line, fcntl.F_GETFL) | os.O_ASYNC)


# Cells


class CellSession:
    """The state of the cells, and the channel to the host."""

    def __init__(self, channel: int) -> None:
        self.channel, self.cell, self.printed = channel, 0, fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
        self.read, self.write, self.loads, self.dumps, self.leave = os.read, os.write, json.loads, json.dumps, os._exit
        self.module = types.ModuleType("__main__")
        self.module.__dict__["__builtins__"] = __builtins__
        self.out = self.make_output()

    def make_output(self) -> io.TextIOWrapper:
        """Make one stream for output and errors, so that they stay in order."""
        raw = io.BufferedWriter(io.FileIO(1, "wb", closefd=False), 1 << 16)
        return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace")

    def restore(self) -> None:
        """Restore the output streams after a cell."""
        os.dup2(self.printed, 1)
        os.dup2(self.printed, 2)
        try:
            lost = self.out.closed or self.out.buffer.closed
        except ValueError:  # taken apart
            lost = True
        if lost:
            self.out = self.make_output()
        sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = self.out  # type: ignore[misc]

    def send(self, **frame: Any) -> None:
        """Send a frame to the host."""
        body = self.dumps(frame).encode()
        self.write(self.channel, struct.pack(">I", len(body)) + body)

    def receive(self) -> dict[str, Any]:
        """The next frame from the host; exits when the channel is closed."""
        (size,) = struct.unpack(">I", self._bytes(4))
        return self.loads(self._bytes(size))  # type: ignore[no-any-return]

    def _bytes(self, count: int) -> bytes:
        parts = []
        while count:
            part = self.read(self.channel, min(count, 1 << 16))
            if not part:
                self.leave(0)
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def serve(self) -> NoReturn:
        """Run cells until the host closes the channel."""
        signal.signal(signal.SIGTERM, self.on_terminate)
        while True:
            request = self.receive()
            self.cell = request["cell"]
            self.restore()
            status = self.run(request["code"], f"<cell {self.cell}>")
            self.restore()
            self.out.flush()
            self.send(cell=self.cell, status=status)

    def run(self, code: str, name: str) -> str:
        """Run a cell in the session's module, show the value of its last expression, or the traceback."""
        space = self.module.__dict__
        sys.modules["__main__"] = self.module
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        try:
            tree: Any = compile(code, name, "exec", 0x400, dont_inherit=True)  # PyCF_ONLY_AST
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
            if tree.body:
                exec(compile(tree, name, "exec", dont_inherit=True), space)
            if last is not None:
                value = eval(compile(_ast.Expression(last.value), name, "eval", dont_inherit=True), space)
                if value is not None:
                    space["_"] = value
                    print(repr(value), file=self.out)
            return "done"
        except SystemExit:
            return "exit"
        except BaseException as error:
            told = cell_traceback(error)
            error.__traceback__ = None  # which holds on to the frames, and to what is in them
            self.restore()
            self.out.write(told)
            return "raised"

    def on_terminate(self, number: int, frame: types.FrameType | None) -> None:
        """Handle the host's SIGTERM: report the cell's position and exit."""
        at = ""
        while frame is not None and not frame.f_code.co_filename.startswith("<cell "):
            frame = frame.f_back
        if frame is not None:
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            at = f"line {frame.f_lineno}: {line[:80]}"
        try:
            self.restore()
            self.out.flush()
        except Exception:  # in the middle of a print
            pass
        self.send(cell=self.cell, status="stopped", at=at)
        self.leave(124)


def cell_traceback(error: BaseException) -> str:
    """The traceback of an error, with the frames of cells only."""
    try:
        told = traceback.TracebackException.from_exception(error)
        chain, seen = [told], set[int]()
        while chain:
            one = chain.pop()
            if id(one) not in seen:
                seen.add(id(one))
                own = [frame for frame in one.stack if frame.filename.startswith("<cell ")]
                one.stack[:] = own
                if not own:
                    one.stack = None  # type: ignore[assignment]
                chain += [
                    other for other in (one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())) if other
                ]
        return "".join(told.format())
    except BaseException:  # no memory is left, or the error's own methods are broken
        return f"{type(error).__name__}\n"


def main(argument: str) -> NoReturn:
    """Confine this process, tell the host which walls hold, and run cells. The argument is JSON with the fields read here."""
    told = json.loads(argument)
    channel, folder = told["channel"], os.path.realpath(told["folder"])
    die_with_the_host(told["line"])
    random.seed(told["seed"])
    library, packages = os.path.dirname(os.__file__), told["packages"]
    sys.path[:] = [*(path for path in sys.path if path != os.path.dirname(__file__)), *packages, folder]
    sys.argv = [""]
    # One by one, since what lies beside them may hold the answers to tasks: Landlock only ever adds to what may be read.
    readable = [
        *entries(library, "site-packages", "dist-packages"),
        *(p for at in packages for p in entries(at, *told["hidden"])),
    ]
    for at in dict.fromkeys(map(os.path.realpath, ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib"))):
        readable += entries(at, "python")
    readable += ["/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo", "/proc/cpuinfo", "/proc/meminfo"]
    walls = ["limits"] * set_limits(told["memory"], told["disk"], told["cpu"])
    if LINUX:
        try:
            with open("/proc/self/oom_score_adj", "w") as score:
                score.write("1000")  # if memory runs out, it is not the host that is ended
        except OSError:
            pass
        libc = ctypes.CDLL(None, use_errno=True)
        drop_privileges(libc)
        if libc.prctl(38, 1, 0, 0, 0) == 0:  # no new privileges, which the next two ask for
            version = shut_files(libc, folder, readable, [library, *packages])
            calls = shut_calls(libc)
            walls += ["files"] * (version >= 3 or (version > 0 and calls)) + ["calls"] * calls
    install_audit_hook(folder, readable, "files" not in walls)
    session = CellSession(channel)
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # what `site` would have given
    session.send(walls=walls)
    session.serve()


if __name__ == "__main__":
    main(sys.argv[1])
