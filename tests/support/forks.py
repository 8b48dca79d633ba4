"""Pythons for tests, to run and to kill. They are forked from one that has imported what most need: a fresh one takes seconds to start.

A test of what an import loads or needs starts a fresh one instead.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType
from typing import Any

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        *("learngraph.graphs.agents.jitrl", "learngraph.graphs.cli.run", "learngraph.graphs.experiments.harness"),
        *("learngraph.graphs.experiments.training_free.play", "learngraph.graphs.methods"),
        *("learngraph.memory.storage.checkpoints", "learngraph.tools.environments.keyword_keep"),
        *("learngraph.tools.local.model", "learngraph.tools.models.openai_model", "chromadb", "langchain.agents"),
    ]
)


def start(target: Any, *arguments: Any) -> ForkServerProcess:
    """Start a function in a process of its own; the arguments are pickled."""
    process = CONTEXT.Process(target=_call, args=(target.__module__, inspect.getfile(target), target.__name__, arguments))
    process.start()
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


def start_python(
    arguments: Sequence[str | Path],
    said: Path,
    errors: Path | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> ForkServerProcess:
    """Start `python ARGUMENTS` (`-c CODE`, `-m MODULE` or a file, and what follows), which leads a group of processes.

    Args:
        arguments: what would stand after `python`.
        said: file for what it prints.
        errors: file for what it prints as errors; None: the same.
        folder: where it works; None: here.
        environment: variables of its environment; None: those of this process.
    """
    given = (list(map(str, arguments)), said, errors or said, folder or Path.cwd())
    return start(_run, *given, dict(os.environ if environment is None else environment))


def run_python(
    arguments: Sequence[str | Path], folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> CompletedProcess[str]:
    """Run `python ARGUMENTS` to its end, as `start_python` does."""
    with tempfile.TemporaryDirectory() as place:
        said, errors = Path(place, "said"), Path(place, "errors")
        process = start_python(arguments, said, errors, folder, environment)
        process.join()
        assert process.exitcode is not None
        return CompletedProcess(arguments, process.exitcode, said.read_text(), errors.read_text())


def _run(arguments: list[str], said: Path, errors: Path, folder: Path, environment: dict[str, str]) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for path, stream, number in ((said, sys.stdout, 1), (errors, sys.stderr, 2)):
        with path.open("a") as file:
            os.dup2(file.fileno(), number)
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    kind, rest = (arguments[0], arguments[1:]) if arguments[0] in ("-c", "-m") else ("", arguments)
    sys.path[:0] = [str(Path(rest[0]).parent) if not kind else "", *environment.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv = [kind, *rest[1:]] if kind else rest
    if kind == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        module = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), module.__dict__)
    else:
        runpy.run_path(rest[0], run_name="__main__")
