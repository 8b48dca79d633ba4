"""The targets of `learngraph studio`: a method on a world, or a graph of the user's, each with its drawing and its walks."""

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph

from ...memory.errors import UserError
from ...memory.records import Task
from ...nodes.state import AttemptInput, AttemptState, EpisodeResult
from ...tools.notebook.tables import channel_types
from ...tools.notebook.walk import Walk, start
from ..arms import SERVED_GRAPHS, blueprint, find_user_object, load_graph, method_settings
from ..experiments.options import RunOptions
from ..experiments.run_inputs import make_method_inputs, method_resources
from ..wiring.flow import FlowError, compile_graph, to_mermaid, wire
from .drawing import Drawing, PythonSource
from .forms import input_form, read_graph_input, read_settings, settings_form
from .options import StudioOptions, read_input
from .studio import Studio
from .walk_branch import newest_threads, open_thread
from .walk_session import WalkSession

__all__ = []

FIRST = """flowchart LR
  START --> Begin --> UniformPolicy --> Choose --> Act
  Act -->|next step| UniformPolicy
  Act -->|over| END
"""
EPISODES = """for episode in range(5):
    found = graph.invoke({{"task": world.task({seed}, {split!r}), "run": "first", "episode": episode}})
    print(f"episode {{episode}}: score {{found['score']}}")
"""
"""The Python that plays a few episodes, with places for the task's seed and its split."""


def is_method(name: str) -> bool:
    """True if this is the name of a method: `jitrl`, `jitrl:paper`, `my_package.rest:METHOD`.

    Raises:
        UserError: it is MODULE:NAME, and there is nothing of that name.
    """
    from ..methods import METHODS, Method, split_name

    method, _ = split_name(name)
    place, _, attribute = method.rpartition(":")
    return method in METHODS or bool(place and isinstance(find_user_object(place, attribute), Method))


def method_target(options: StudioOptions) -> Studio:
    """The drawing of a method, and walks through its episodes on a world.

    Raises:
        UserError: the world or the model cannot be opened, or the method needs a model and none is named.
    """
    from ..methods import find_method

    method = find_method(options.target)
    path = options.flow or Path(f"{options.target.replace(':', '-')}.mmd")
    if method.has_training_phase:
        graph = blueprint(options.target)
        return Studio(options.target, Drawing(options.target, path, to_mermaid(graph), graph))
    world, inputs = _open_world(options, method)
    task = world.task(options.seed, options.split)
    first = {"task": task, "run": "studio"}

    usual = settings = method_settings(options.target)

    def build(settings: Any) -> tuple[Any, PythonSource, str]:
        """The graph with these settings, whose memory holds the episodes before the first walk; its Python, and its title."""
        saver = InMemorySaver()
        made = method.build(inputs, settings, **method_resources(method), checkpointer=saver)
        for episode in range(options.episodes):
            made.invoke({**first, "episode": episode}, {"configurable": {"thread_id": f"before-{episode}"}})
        values = {one.name: getattr(settings, one.name) for one in fields(settings)}
        changes = [f"{key}={value!r}" for key, value in values.items() if value != getattr(usual, key)]
        source = _method_source(options, changes)
        return made, source, f"{', '.join([options.target, *changes])} in {options.env}, task {task.id}"

    made, source, title = build(usual)
    drawing = Drawing(options.target, path, to_mermaid(made), made, lambda: inputs, source)

    def begin(number: int, input: Any) -> Walk:
        nonlocal settings, made
        if input is not None and (asked := read_settings(usual, input)) != settings:
            made, source, walk.title = build(asked)
            settings = asked
            drawing.renew(made, source)
            walk.settings = settings_form(options.target, usual, settings)
        return start(drawing.wire_onto(made), {**first, "episode": number + options.episodes}, thread=f"walk-{number}")

    walk = WalkSession(title, begin)
    walk.settings = settings_form(options.target, usual, settings)
    with suppress(FlowError):  # the page shows what is wrong with the saved drawing
        walk.start()
    return Studio(options.target, drawing, walk, opens="walk")


def drawing_target(options: StudioOptions) -> Studio:
    """A drawing alone: of nodes of the catalogue, and walks through an episode of a world with them."""
    world, inputs = _open_world(options)
    builder = StateGraph(AttemptState, input_schema=AttemptInput, output_schema=EpisodeResult)
    base = compile_graph(wire(builder, "flowchart LR\n  START --> Begin --> END", {"Begin": inputs.node("Begin")}))
    drawing = Drawing(
        options.target, options.flow or Path(options.target), FIRST, base, lambda: inputs, _drawing_source(options)
    )

    def begin(number: int, input: Any) -> Walk:
        graph = drawing.wire_onto(base).copy(update={"checkpointer": InMemorySaver()})
        given = {"task": world.task(options.seed, options.split), "run": "studio", "episode": number}
        return start(graph, given, thread=f"walk-{number}")

    return Studio(options.target, drawing, WalkSession(f"{options.target} in {options.env}", begin), opens="drawing")


def _inputs_source(options: StudioOptions) -> tuple[str, str]:
    """The imports that the inputs of these options need, and the lines that make them."""
    world = f"world = learngraph.open_environment({options.env!r})\n"
    if options.model == "uniform":
        return "", f"{world}inputs = learngraph.MethodInputs(environment=world)\n"
    kind = "with_scoring_model" if options.model == "pocket" else "with_chat_model"
    made = f"inputs = learngraph.MethodInputs.{kind}(world, Journal(), learngraph.open_model({options.model!r}))\n"
    return "from learngraph.memory.storage.journal import Journal\n", f"{world}{made}"


def _method_source(options: StudioOptions, changes: Sequence[str]) -> PythonSource:
    """The Python of a method with these changes of its settings."""
    imports, inputs = _inputs_source(options)
    imports = (
        f"from learngraph.graphs.arms import method_settings\nfrom learngraph.graphs.methods import find_method\n{imports}"
    )
    settings = f"method_settings({options.target!r})"
    if changes:
        imports, settings = f"from dataclasses import replace\n{imports}", f"replace({settings}, {', '.join(changes)})"
    base = f"base = find_method({options.target!r}).build(inputs, {settings})\n"
    return PythonSource(imports, inputs, base, EPISODES.format(seed=options.seed, split=options.split))


def _drawing_source(options: StudioOptions) -> PythonSource:
    """The Python of a drawing that begins from nothing."""
    imports, inputs = _inputs_source(options)
    imports = (
        "from langgraph.graph import StateGraph\nfrom learngraph.graphs.wiring.flow import compile_graph\n"
        f"{imports}from learngraph.nodes.state import AttemptInput, AttemptState, EpisodeResult\n"
    )
    base = """builder = StateGraph(AttemptState, input_schema=AttemptInput, output_schema=EpisodeResult)
begin = {"Begin": inputs.node("Begin")}
base = compile_graph(learngraph.wire(builder, "flowchart LR\\n  START --> Begin --> END", begin))
"""
    return PythonSource(imports, inputs, base, EPISODES.format(seed=options.seed, split=options.split))


def _graph_source(options: StudioOptions, usual: Any) -> PythonSource:
    """The Python of a graph of the user's."""
    imports, inputs = _inputs_source(options)
    run = 'raise SystemExit("this graph is run by graph.invoke, with an input of yours")\n'
    if usual is not None:
        run = f"print(graph.invoke({usual!r}))\n"
    base = f"base = load_graph({options.target!r})\n"
    return PythonSource(f"from learngraph.graphs.arms import load_graph\n{imports}", inputs, base, run)


def _open_world(options: StudioOptions, method: Any = None) -> tuple[Any, Any]:
    """The world, and the inputs that the method is built from."""
    from ...memory.storage.journal import Journal
    from ...tools.environments.catalogue import open_environment
    from ...tools.models.models import open_model

    world = open_environment(options.env)
    uniform = options.model == "uniform"
    if method and uniform and method.needs_writer:
        raise UserError(f"{options.target} has a model write: name one, such as --model openai:NAME or --model pocket")
    model = None if uniform or (method and not method.needs_model) else open_model(options.model, threads=1)
    asked = RunOptions(env=options.env, prior="uniform") if uniform else RunOptions(env=options.env, model=options.model)
    return world, replace(make_method_inputs(asked, world, model, Journal(), method), run="studio")


def graph_target(options: StudioOptions) -> Studio:
    """The drawing of a graph of the user's, and walks through it."""
    usual = read_input(options.input) if options.input else None
    code = _UserCode(options.target)
    graph = code.graph
    module, _, name = options.target.rpartition(":")
    module = Path(module).name.removesuffix(".py").replace(".", "_")
    path = options.flow or Path(f"{module}_{name}.mmd")  # many modules have a `graph`
    inputs = cache(lambda: _open_world(options)[1])  # opened where a node of the catalogue is drawn
    drawing = Drawing(options.target, path, to_mermaid(graph), graph, inputs, _graph_source(options, usual))
    if options.target in SERVED_GRAPHS:  # drawn without an engine behind it
        return Studio(options.target, drawing)
    form = input_form(graph, usual if usual is not None else _first_task(graph, options))

    def begin(number: int, input: Any) -> Walk:
        walked = drawing.wire_onto(code.graph)
        given = read_graph_input(walked, usual if input is None else input)
        walked = walked if walked.checkpointer else walked.copy(update={"checkpointer": InMemorySaver()})
        return start(walked, given, thread=f"studio-{token_hex(4)}")  # an earlier process may have left threads

    def reload() -> Any:
        if code.reload() is None:
            return None
        drawing.renew(code.graph)
        return drawing.wire_onto(code.graph)

    walk = WalkSession(options.target, begin, form, graph, reload)
    if graph.checkpointer and not isinstance(graph.checkpointer, InMemorySaver):
        walk.open_thread = lambda thread: open_thread(drawing.wire_onto(code.graph), thread)
        walk.list_threads = lambda: newest_threads(code.graph.checkpointer)
    if options.input:
        with suppress(FlowError):  # the page shows what is wrong with the saved drawing
            walk.start()
    is_chat = "messages" in form["schema"].get("properties", {})
    return Studio(options.target, drawing, walk, opens="walk" if is_chat else "drawing")


def _first_task(graph: Any, options: StudioOptions) -> dict[str, Any] | None:
    """An input with a task of the world, for a graph that plays episodes; None for other graphs."""
    if channel_types(graph.builder).get("task") is not Task or "task" not in graph.builder.schemas[graph.builder.input_schema]:
        return None
    from ...tools.environments.catalogue import open_environment

    task = open_environment(options.env).task(options.seed, options.split)
    return {"task": asdict(task), "run": "studio", "episode": 0}


class _UserCode:
    """A graph of the user's, and the files of the current directory and of its own that it was made from."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._files: dict[str, Path] = {}
        self.graph = load_graph(target)
        self._texts = self._read_files()

    def _read_files(self) -> dict[str, bytes]:
        """Name of a module -> its text: the time of a file tells two changes within a tick of its clock not apart."""
        here, python = (os.path.join(one, "") for one in (Path.cwd(), sysconfig.get_path("stdlib")))  # it may be below
        place = Path(self._target.rpartition(":")[0])
        target = sys.modules.get(place.stem if place.suffix == ".py" else place.name)
        own = here, os.path.join(os.path.dirname(os.path.abspath(getattr(target, "__file__", None) or "-")), "")
        for name, module in list(sys.modules.items()):  # thousands: a Path of each took most of the time
            file = os.path.join(here, getattr(module, "__file__", None) or "/")
            is_installed = file.startswith(python) or not {"site-packages", "dist-packages"}.isdisjoint(file.split(os.sep))
            if file.startswith(own) and file.endswith(".py") and not is_installed and name.partition(".")[0] != "learngraph":
                self._files[name] = Path(file)
        return {name: path.read_bytes() for name, path in self._files.items() if path.is_file()}

    def reload(self) -> Any:
        """The graph, made anew where a file has changed since; None where none has.

        Raises:
            Exception: the changed code cannot be run, which is told once; `graph` stays what it was.
        """
        texts = self._read_files()
        if texts == self._texts:
            return None
        before, self._texts = self._texts, texts
        for name, path in self._files.items():
            sys.modules.pop(name, None)
            if texts.get(name) != before.get(name):  # Python runs what it compiled of a file of the same size and second
                with suppress(OSError):  # there is none, or its folder cannot be written
                    Path(importlib.util.cache_from_source(str(path))).unlink()
        importlib.invalidate_caches()
        self.graph = load_graph(self._target)
        self._texts = self._read_files()
        return self.graph
