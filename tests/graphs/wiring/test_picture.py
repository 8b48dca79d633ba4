"""Pictures: every method's graph is the one in tests/pictures, and is drawn without asking anybody."""

import re
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

import learngraph
from learngraph.graphs import adamem, claas
from learngraph.graphs.arms import SERVED_GRAPHS, blueprint
from learngraph.graphs.jitrl import JitRL
from learngraph.graphs.methods import METHODS
from learngraph.graphs.wiring import flow, picture, run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.errors import UserError
from learngraph.memory.storage.serializer import serializer
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.notebook.walk import start

PICTURES = Path(__file__).parents[2] / "pictures"
MODES = {f"adamem-{mode}": f"adamem?mode={mode}" for mode in adamem.MODES}
NAMES = [*METHODS, *MODES, *SERVED_GRAPHS, "run"]


def graph(name: str) -> Any:
    if name in SERVED_GRAPHS:
        return claas.blueprint(name)
    return run.build(blueprint("jitrl")) if name == "run" else blueprint(MODES.get(name, name))


@pytest.mark.parametrize("name", NAMES)
def test_the_graph_is_the_one_in_the_picture(name: str) -> None:
    drawn = flow.to_mermaid(graph(name))
    assert drawn == (PICTURES / f"{name}.mmd").read_text(), f"learngraph draw {name} -o tests/pictures/{name}.mmd"


def test_no_picture_is_left_over() -> None:
    parts = {"training-free-grpo-group"}  # of a graph that is no method by itself: compared in its own tests
    assert {path.stem for path in PICTURES.glob("*.mmd")} - parts == set(NAMES)


def test_svg_shows_nodes_settings_roles_and_labels() -> None:
    pytest.importorskip("pygraphviz")
    svg = picture.picture(graph("jitrl")).svg().replace("&#160;", " ")
    assert svg.startswith("<svg")
    settings = JitRL()
    for shown in ("modulate", f"beta = {settings.beta:g}", "next step", f"threshold = {settings.min_similarity:g}"):
        assert shown in svg, shown
    assert {picture.COLOURS["memory"], picture.COLOURS["model"]} <= set(re.findall("#[0-9a-f]{6}", svg))
    assert picture.COLOURS["graph"] in picture.picture(graph("run")).svg()


def test_every_arrow_is_shown_whatever_the_nodes_are_called() -> None:
    pytest.importorskip("pygraphviz")
    from langgraph.graph import StateGraph

    from learngraph.nodes.state import EpisodeInput

    builder = StateGraph(EpisodeInput)
    builder.add_node("my node", lambda state: state)
    builder.add_node("A.after-that", lambda state: state)
    builder.add_edge("__start__", "my node")
    builder.add_conditional_edges("my node", lambda state: "up", {"up": "A.after-that", "down": "__end__"})
    svg = picture.picture(builder.compile()).svg().replace("&#160;", " ").replace("&#45;", "-")
    for shown in ("START->my node", "my node->A.after-that", "A.after-that->END", "up", "down"):
        assert shown.replace("->", "-&gt;") in svg, shown
    assert svg.count('class="edge"') == 4
    assert svg.count('class="node"') == 4


def test_png_and_files(tmp_path: Path) -> None:
    pytest.importorskip("pygraphviz")
    for suffix, begins in ((".png", b"\x89PNG"), (".svg", b"<svg"), (".mmd", b"flowchart LR")):
        path = tmp_path / "new" / f"jitrl{suffix}"
        picture.save(graph("jitrl"), path)
        assert path.read_bytes().startswith(begins)
    with pytest.raises(UserError, match=r"\.svg, \.png or \.mmd file, not x\.pdf"):
        picture.save(graph("jitrl"), tmp_path / "x.pdf")
    with pytest.raises(UserError, match="cannot write"):
        picture.save(graph("jitrl"), Path("/proc/nowhere/x.mmd"))


def test_a_notebook_shows_svg_or_without_graphviz_mermaid(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = picture.picture(graph("static"))
    if picture.has_graphviz():
        assert shown._repr_mimebundle_()["image/svg+xml"].startswith("<svg")
    monkeypatch.setattr(picture, "has_graphviz", lambda: False)
    assert shown._repr_mimebundle_()["text/markdown"] == f"```mermaid\n{shown.mermaid()}```"
    with pytest.raises(UserError, match=r"pip install pygraphviz"):
        picture.save(graph("static"), Path("x.svg"))


@pytest.mark.skipif(not picture.has_graphviz(), reason="NOT TESTED: no Graphviz")
def test_the_picture_of_a_long_graph_fits_a_screen_of_a_notebook() -> None:
    found = re.search(r'<svg width="([\d.]+)pt" height="([\d.]+)pt"', picture.picture(graph("jitrl")).fitted_svg())
    assert found, "it is not shrunk, so that its texts can be read"
    assert float(found[1]) < picture.CELL_WIDTH
    assert float(found[2]) < 640


def test_the_picture_of_a_walk_shows_its_place_and_its_way() -> None:
    world = KeywordKeep()
    graph = learngraph.jitrl.build(MethodInputs(environment=world), checkpointer=InMemorySaver(serde=serializer()))
    walk = start(graph, {"task": world.task(0), "run": "r", "episode": 0})
    shown = picture.picture(walk.until("act").until("act"))
    assert (shown.lit, shown.passes[("act", "recall")], shown.passes[("START", "begin")]) == (("act",), 1, 1)
    if picture.has_graphviz():
        text = shown.svg()
        assert "next step ×1" in text.replace("&#160;", " ")
        assert text.count('stroke="#d1490a" stroke-width="3"') == 1
    run_graph = run.build(
        learngraph.jitrl.build(MethodInputs(environment=world)), checkpointer=InMemorySaver(serde=serializer())
    )
    inside = start(run_graph, {"task": world.task(0), "run": "r", "episode": 0, "episodes": 1}).into("episode").step()
    assert picture.picture(inside).graph is inside.here
    assert picture.picture(inside).passes == {("START", "begin"): 1, ("begin", "recall"): 1}


CELL = """
import socket
def refuse(*where, **more):
    raise AssertionError(f"asked for {where}")
socket.getaddrinfo = socket.create_connection = refuse
import learngraph
learngraph.jitrl.build(learngraph.MethodInputs(environment=learngraph.open_environment("toy")))
"""


@pytest.mark.slow
def test_a_graph_at_the_end_of_a_cell_shows_its_picture_without_a_server() -> None:
    pytest.importorskip("pygraphviz")
    pytest.importorskip("ipykernel")
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute()
    shown = book.cells[0].outputs[-1]["data"]
    assert shown["image/svg+xml"].startswith("<svg")
    assert "modulate" in shown["image/svg+xml"]
    assert shown["text/plain"].startswith("flowchart LR\n  START --> begin --> recall")
