"""The targets of `learngraph studio`: a method on a world, or a graph of the user's, each with its drawing and its walks."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver

from ...memory.errors import UserError
from ...memory.storage.checkpoints import serializer
from ...tools.notebook.walk import Walk, start
from ..arms import SERVED_GRAPHS, blueprint, find_user_object, load_graph, method_settings
from ..experiments.options import RunOptions
from ..experiments.run_inputs import make_method_inputs, method_resources
from ..wiring import run as runs
from ..wiring.flow import FlowError, rewire, to_mermaid
from .drawing import Drawing
from .options import StudioOptions, read_input
from .studio import Studio
from .walk_session import WalkSession

__all__ = []


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

    method, settings = find_method(options.target), method_settings(options.target)
    graph = blueprint(options.target)
    path = options.flow or Path(f"{options.target.replace(':', '-')}.mmd")
    drawing = Drawing(options.target, path, to_mermaid(graph), graph)
    if method.has_training_phase:
        return Studio(options.target, drawing)
    world, inputs = _open_world(options, method)
    task = world.task(options.seed, options.split)
    first = {"task": task, "run": "studio"}
    made = method.build(inputs, settings, **method_resources(method), **({} if options.run else {"checkpointer": _saver()}))
    for episode in range(0 if options.run else options.episodes):
        made.invoke({**first, "episode": episode}, {"configurable": {"thread_id": f"before-{episode}"}})

    def begin(number: int, input: Any) -> Walk:
        drawn = drawing.read()
        graph = rewire(made, drawn["text"]) if drawn["exists"] else made
        if options.run:
            plan = {**first, "run": f"studio-{number}", "episode": 0, "episodes": max(options.episodes, 1)}
            return start(runs.build(graph, checkpointer=_saver()), plan, thread=f"walk-{number}")
        return start(graph, {**first, "episode": number + options.episodes}, thread=f"walk-{number}")

    walk = WalkSession(f"{options.target} in {options.env}, task {task.id}", begin)
    with suppress(FlowError):  # the page shows what is wrong with the saved drawing
        walk.start()
    return Studio(options.target, drawing, walk, opens="walk")


def _saver() -> InMemorySaver:
    return InMemorySaver(serde=serializer())


def _open_world(options: StudioOptions, method: Any) -> tuple[Any, Any]:
    """The world, and the inputs that the method is built from."""
    from ...memory.storage.journal import Journal
    from ...tools.environments.catalogue import open_environment
    from ...tools.models.models import open_model

    world = open_environment(options.env)
    uniform = options.model == "uniform"
    if uniform and method.needs_writer:
        raise UserError(f"{options.target} has a model write: name one, such as --model openai:NAME or --model pocket")
    model = None if uniform or not method.needs_model else open_model(options.model, threads=1)
    asked = RunOptions(env=options.env, prior="uniform") if uniform else RunOptions(env=options.env, model=options.model)
    return world, replace(make_method_inputs(asked, world, model, Journal(), method), run="studio")


def graph_target(options: StudioOptions) -> Studio:
    """The drawing of a graph of the user's, and walks through it."""
    usual = read_input(options.input) if options.input else None
    graph = load_graph(options.target)
    path = options.flow or Path(f"{options.target.rpartition(':')[2]}.mmd")
    drawing = Drawing(options.target, path, to_mermaid(graph), graph)
    if options.target in SERVED_GRAPHS:  # drawn without an engine behind it
        return Studio(options.target, drawing)
    example = options.input or _example(graph)

    def begin(number: int, input: Any) -> Walk:
        drawn = drawing.read()
        walked = rewire(graph, drawn["text"]) if drawn["exists"] else graph
        walked = walked if walked.checkpointer else walked.copy(update={"checkpointer": InMemorySaver()})
        return start(walked, usual if input is None else input, thread=f"studio-{number}")

    walk = WalkSession(options.target, begin, example)
    if options.input:
        walk.start()
    return Studio(options.target, drawing, walk, opens="drawing")


def _example(graph: Any) -> str:
    """An input to begin from, by the graph's input channels."""
    names = graph.get_input_jsonschema().get("properties", {})
    return '{"messages": "Hello"}' if "messages" in names else "{" + ", ".join(f'"{name}": ""' for name in names) + "}"
