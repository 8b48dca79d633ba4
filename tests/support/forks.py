"""Pythons for tests, to run and to kill. They are forked from one that has imported what most need: a fresh one takes seconds to start.

A test of what an import loads or needs starts a fresh one instead.
"""

import atexit
import importlib.util
import inspect
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType
from typing import Any

from waiting import PATIENCE

CONTEXT = get_context("forkserver")
PRELOADED = """
chromadb langchain.agents learngraph.graphs.agents.jitrl learngraph.graphs.cli.run learngraph.graphs.experiments.harness
learngraph.graphs.experiments.training_free.play learngraph.graphs.methods learngraph.memory.claas.replay
learngraph.memory.storage.checkpoints learngraph.tools.environments.keyword_keep learngraph.tools.models.openai_model
learngraph.tools.local.model peft transformers.models.auto.modeling_auto transformers.models.llama.modeling_llama
"""  # the last line is of a model that is opened
CONTEXT.set_forkserver_preload(PRELOADED.split())


def start(target: Any, *arguments: Any) -> ForkServerProcess:
    """Start a function in a process of its own; the arguments are pickled."""
    process = CONTEXT.Process(target=_call, args=(target.__module__, inspect.getfile(target), target.__name__, arguments))
    process.start()
    atexit.register(process.kill)  # a test that fails may leave it, and multiprocessing would wait for its end
    return process


def _call(module: str, file: str, name: str, arguments: Sequence[Any]) -> None:
    """Call a function of a module; that of a test is read from its file, because packages bring a `tests` of their own."""
    if module.startswith("tests."):
        spec = importlib.util.spec_from_file_location(module, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    getattr(importlib.import_module(module), name)(*arguments)


class Python:
    """A process `python ARGUMENTS`, used as one of `subprocess.Popen`; it leads a group of processes.

    Args:
        arguments: what would stand after `python`: `-c CODE`, `-m MODULE` or a file, and what follows.
        said: file for what it prints; None: `stdout` reads it.
        errors: file for what it prints as errors; None: it goes the same way.
        folder: where it works; None: here.
        environment: variables of its environment; None: those of this process.
    """

    def __init__(
        self,
        *arguments: object,
        said: Path | None = None,
        errors: Path | None = None,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        receive, send = CONTEXT.Pipe(duplex=False)
        variables = dict(os.environ if environment is None else environment)
        place = (said or send, errors or said or send, folder or Path.cwd())
        self.process = start(_run, list(map(str, arguments)), *place, variables)
        send.close()
        self.stdout = os.fdopen(os.dup(receive.fileno()), encoding="utf-8")
        receive.close()
        self.pid = self.process.pid or 0
        self.kill, self.terminate = self.process.kill, self.process.terminate

    @property
    def returncode(self) -> int | None:
        """Its exit status, minus the number of the signal that ended it; None: it is at work."""
        return self.process.exitcode

    def poll(self) -> int | None:
        """Its exit status; None: it is at work."""
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it is at work."""
        if self.process.exitcode is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for its end, at most so many seconds; returns its exit status."""
        self.process.join(timeout)
        assert self.process.exitcode is not None, f"it did not end within {timeout:g} s"
        return self.process.exitcode

    def communicate(self, timeout: float = PATIENCE) -> tuple[str, None]:
        """What it prints to its end."""
        said = self.stdout.read()
        self.wait(timeout)
        self.stdout.close()
        return said, None


def run_python(
    *arguments: object, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> CompletedProcess[str]:
    """Run `python ARGUMENTS` to its end."""
    with tempfile.TemporaryDirectory() as place:
        said, errors = Path(place, "said"), Path(place, "errors")
        process = Python(*arguments, said=said, errors=errors, folder=folder, environment=environment)
        return CompletedProcess(arguments, process.wait(), said.read_text(), errors.read_text())


def _run(
    arguments: list[str], said: Path | Connection, errors: Path | Connection, folder: Path, environment: dict[str, str]
) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for place, stream, number in ((said, sys.stdout, 1), (errors, sys.stderr, 2)):
        with place.open("a") if isinstance(place, Path) else nullcontext(place) as file:
            os.dup2(file.fileno(), number)
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for one in (said, errors):
        if isinstance(one, Connection) and not one.closed:
            one.close()
    kind, rest = (arguments[0], arguments[1:]) if arguments[0] in ("-c", "-m") else ("", arguments)
    sys.path[:0] = [str(Path(rest[0]).parent) if not kind else "", *environment.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv = [kind, *rest[1:]] if kind else rest
    if kind == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        module = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), module.__dict__)
    else:
        runpy.run_path(str(folder / rest[0]), run_name="__main__")
