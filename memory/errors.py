"""Errors that more than one layer raises, catches or reports, and the number words of their messages.

Every layer may import this file. An error of one module only stays in that module, as a subclass of `UserError`.
"""

from __future__ import annotations

__all__ = [
    "AdapterConflict",
    "AdapterError",
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
    "plural",
]


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
