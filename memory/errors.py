"""Errors that more than one layer raises, catches or reports, and the words of their messages.

Every layer may import this file. An error of one module only stays in that module, as a subclass of `UserError`.
"""

import errno
import functools
import importlib
import os
import re
import sqlite3
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, TypeVar, cast

__all__ = [
    "AdapterConflict",
    "AdapterError",
    "CommandError",
    "EngineFailed",
    "ExpiredExchange",
    "FeedbackConflict",
    "ReplayError",
    "ReplayFull",
    "Unavailable",
    "UnknownAdapter",
    "UnknownExchange",
    "UnknownVersion",
    "UserError",
    "VersionNotLoaded",
    "WindowError",
    "asks_store",
    "did_you_mean",
    "hide_paths",
    "import_package",
    "machine_error",
    "plural",
    "public_text",
]

ABSOLUTE_PATH = re.compile(r"(?<![\w.:/])/(?:[\w.@+~-]+/)+([\w.@+~-]*)")
"""A path of at least one folder from the root on; not a URL's. Its last part is the group."""
RUST_OS_ERROR = re.compile(r"\(os error (\d+)\)")
"""How libraries written in Rust (safetensors, tokenizers) show an operating system's error in the text of one of their own."""
FULL_DISK = re.compile(r"no space left on device|disk is full|disk full|disk quota exceeded", re.IGNORECASE)


class UserError(Exception):
    """An error that the user can put right: the message says what was asked, what came, and what is accepted.

    The command line prints the message as one line and exits with code 2. Any other exception is a bug and keeps its traceback.
    """

    fails_again: bool = False
    """True if the same command would fail in the same way, so that another setting is needed."""

    public_message: str = ""
    """The text for clients of a server, where the message itself may name files, hosts or other tenants. Empty: the message."""
    retry_after: float = 1.0
    """Seconds after which a client may try again, for errors that pass."""


class CommandError(UserError, ValueError):
    """The command line cannot be understood."""

    fails_again = True


class WindowError(UserError, ValueError):
    """A prompt, or a prompt with its reply, is longer than the model's window.

    Attributes:
        tokens: length of what does not fit, in tokens; 0 where the model's server does not say.
    """

    def __init__(self, message: str, tokens: int = 0) -> None:
        super().__init__(message)
        self.tokens = tokens


class Unavailable(UserError, RuntimeError):
    """Something that the request needs is away for now: the service, the engine or the model's server. Trying again may
    help."""

    retry_after = 2.0

    def __init__(self, message: str, public_message: str = "") -> None:
        super().__init__(message)
        self.public_message = public_message


class VersionNotLoaded(Unavailable):
    """The engine does not hold the adapter version that was to answer."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "the version that was to answer has just been unloaded; try again")


class EngineFailed(UserError, RuntimeError):
    """The model failed at a request, for example for lack of memory. The request is not at fault."""

    public_message = "the model failed at this request"


class UnknownAdapter(UserError, LookupError):
    """The tenant has no adapter of this name."""


class AdapterError(UserError, RuntimeError):
    """A version of an adapter cannot be written, read or used. The message names the file and a remedy."""

    public_message = "the service has a problem with this adapter's files"


class UnknownVersion(AdapterError):
    """The adapter has no version of this label."""

    public_message = ""


class AdapterConflict(AdapterError):
    """The version's state does not allow what was asked."""

    public_message = ""


class UnknownExchange(UserError, LookupError):
    """The tenant has no exchange of this id. Another tenant's exchange is as unknown as one that never was."""


class ExpiredExchange(UserError):
    """The feedback came too late."""


class FeedbackConflict(UserError):
    """The exchange has other feedback already, and that was learned from."""


class ReplayFull(UserError):
    """The replay buffer has no room, and holds nothing that may be deleted."""


class ReplayError(UserError, RuntimeError):
    """The replay buffer's file cannot be read or written. The message names the cause and a remedy."""

    public_message = "the service cannot read or write what it keeps"


def plural(count: int, noun: str) -> str:
    """A number and its noun: `1 seed`, `2 seeds`, `1,000 steps`. For nouns that take an s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def type_of(value: object) -> str:
    """The type of a value with its article, as a message has it: `an int`, `a str`; of a class itself `the class Plan`."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is closest to a mistyped one; empty if none is close."""
    return next(iter(get_close_matches(name, list(known), 1)), "")


def did_you_mean(name: str, known: Iterable[str], there_are: str = "") -> str:
    """The end of a message about a mistyped name: `; did you mean jitrl?`.

    Where no known name is close to it: `; there are icrl, jitrl` behind the words `there_are`; without these nothing.
    """
    close = nearest(name, names := list(known))
    others = f"; {there_are} {', '.join(names)}" if there_are else ""
    return f"; did you mean {close if close.strip() == close else repr(close)}?" if close else others


def import_package(module: str, need: str, install: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: name of the module, as `bm25s`.
        need: beginning of the error's message: what needs the package.
        install: end of the message: the command that installs the package.

    Raises:
        UserError: the module cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        raise UserError(f"{need} ({cause}): {install}") from cause


def hide_paths(text: str) -> str:
    """A text without the folders that it names: `/srv/learngraph/adapters/acme/states.jsonl` becomes `states.jsonl`."""
    return ABSOLUTE_PATH.sub(lambda found: found[1] or "a folder", text)


def public_text(error: BaseException) -> str:
    """An error's text for tenants: its public message where it has one, and no folders of the machine."""
    text = getattr(error, "public_message", "") or str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
    return hide_paths(text) or type(error).__name__


def machine_error(error: BaseException) -> OSError | None:
    """The failure of the machine behind an error (a full disk, missing rights, no memory); None: the error is of another kind.

    Libraries show a full disk in many ways: safetensors as a text in an error of its own, SQLite as a number of its own.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return cause
        if isinstance(cause, MemoryError):
            return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        if isinstance(cause, sqlite3.DatabaseError) and not isinstance(
            cause, sqlite3.ProgrammingError | sqlite3.IntegrityError
        ):
            full = getattr(cause, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
            return OSError(errno.ENOSPC if full else errno.EIO, str(cause))
        package = type(cause).__module__.partition(".")[0]
        if package in ("httpx", "httpcore"):  # a Chroma server's
            return OSError(errno.EIO, str(cause))
        if package in ("psycopg", "psycopg_pool"):  # which need not be installed
            state = getattr(cause, "sqlstate", None) or ""
            if state[:2] not in ("22", "23"):  # the data's fault
                return OSError(errno.ENOSPC if state == "53100" else errno.EIO, str(cause))
        if not isinstance(cause, UserError):  # whose text may quote what users wrote
            if found := RUST_OS_ERROR.search(str(cause)):
                return OSError(int(found[1]), os.strerror(int(found[1])))
            if FULL_DISK.search(str(cause)):
                return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        cause = cause.__cause__ or cause.__context__
    return None


Method = TypeVar("Method", bound=Callable[..., Any])


def asks_store(method: Method) -> Method:
    """The method, whose errors of a store that is away, locked or full are `Unavailable`."""

    @functools.wraps(method)
    def ask(*given: Any, **named: Any) -> Any:
        try:
            return method(*given, **named)
        except UserError:
            raise
        except Exception as error:
            if (failure := machine_error(error)) is None:
                raise
            raise Unavailable(f"the store does not answer ({type(error).__name__}: {failure.strerror or failure})") from error

    return cast(Method, ask)
