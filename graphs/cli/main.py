"""The command line: it finds the command that was asked for, and turns errors into one line and an exit status.

The commands join tools to graphs. Each stands in a file of its own, which is imported when it is asked for: `learngraph --help`
answers at once.
"""

import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from ...memory.errors import CommandError, UserError, did_you_mean

__all__ = ["main"]

COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": (
        ".run:run",
        "play a method, compare several, or play all of a file: learngraph run METHOD|FILE.toml; the same command resumes a killed run",
    ),
    "serve": (
        ".serve:serve",
        "a chat API (OpenAI's) whose model learns from feedback while it answers: learngraph serve --api-key KEY",
    ),
    "win-rates": (
        ".win_rates:win_rates",
        "let a judge compare the answers of a run's methods in both orders: learngraph win-rates RUN_FOLDER --judge MODEL",
    ),
    "explain": (
        ".explain:explain",
        "say why an action was taken (learngraph explain RUN_FOLDER --step N), or play a run again without a model (--replay)",
    ),
    "tutorial": (
        ".tutorial:tutorial",
        "your first walk, in Jupyter or in the terminal: draw, run, pause, edit, go back, learn",
    ),
    "list": (
        ".listing:list_all",
        "the methods, environments and models, with what each needs installed; `learngraph list nodes`: the nodes",
    ),
    "draw": (".draw:draw", "draw a method's graph, or any of yours: learngraph draw jitrl|my_app:graph [--out FILE]"),
    "studio": (
        "..studio.command:studio",
        "draw, walk through and look at runs on a page of this machine: learngraph studio jitrl|my_app:graph|runs/NAME",
    ),
    "memory": (
        ".memory:memory",
        "show, export, import or prune what runs remember: learngraph memory show|export|import|prune|library PATH",
    ),
    "mcp": (
        ".mcp:mcp",
        "a memory as MCP tools (recall, record, feedback, explain, lift), for agents in any language: learngraph mcp --memory FOLDER|URL",
    ),
}
"""Command -> the function that takes the arguments after its name and returns the exit status, and a line for `--help`."""


def main(args: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status.

    0: done. 2: an error that the user can put right, in one line on stderr. 130: stopped with Ctrl-C.

    Args:
        args: the words after `learngraph`; those of this process if not given.
    """
    try:
        return _run_command(sys.argv[1:] if args is None else args)
    except UserError as error:
        _say("learngraph: " + " ".join(str(error).split()))
        return 2
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        return _os_error_status(error)


def _run_command(args: Sequence[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        lines = [f"  {name:<9} {about}" for name, (_, about) in COMMANDS.items()]
        print("LangGraph agents that learn while they work.\n\nusage: learngraph COMMAND [OPTIONS]\n\ncommands:")
        print("\n".join([*lines, "", "learngraph COMMAND --help says more. learngraph --version prints the version."]))
        return 0
    if args[0] == "--version":
        from importlib.metadata import version

        print(version("learngraph"))
        return 0
    if args[0] not in COMMANDS:
        raise CommandError(f"learngraph has no command '{args[0]}'{did_you_mean(args[0], COMMANDS, 'there are')}")
    module, _, name = COMMANDS[args[0]][0].partition(":")
    command: Callable[[Sequence[str]], int] = getattr(import_module(module, __package__), name)
    return command(args[1:])


def _os_error_status(error: OSError) -> int:
    """The exit status for an error of the operating system. Errors that the user cannot put right are raised again."""
    if error.errno == errno.EPIPE:  # the program that reads our output has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
        raise error
    _say(f"learngraph: {error.filename or 'the disk'}: {error.strerror}; once that is put right, the same command goes on")
    return 2


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
