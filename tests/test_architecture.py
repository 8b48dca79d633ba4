"""Who may import whom, what loads when, and what is in the wheel."""

import ast
import re
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import shape

ROOT = Path(__file__).parents[1]
FOLDERS = ("graphs", "nodes", "memory", "tools")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

MAY_IMPORT = {
    "memory/": {"memory"},
    "nodes/": {"nodes", "memory"},
    "tools/": {"tools", "memory.records", "memory.errors", "memory.telemetry", "memory.conversations.thoughts"},
    # A world may say how its states are compared.
    "tools/environments/": {
        "tools",
        "memory.records",
        "memory.errors",
        "memory.conversations.thoughts",
        "memory.search.sections",
        "memory.search.encoders",
    },
    "tools/traces/": {"tools", "memory.errors", "memory.conversations.recorded"},
    "tools/training/": {
        "tools",
        "memory.records",
        "memory.errors",
        "memory.telemetry",
        "memory.conversations.thoughts",
        "memory.claas.weights",
        "memory.claas.settings",
    },
    "tools/notebook/": {
        "tools",
        "memory.records",
        "memory.errors",
        "memory.graph_input",
        "memory.storage.branches",
        "memory.display",
        "memory.storage.branching_store",
        "memory.storage.serializer",
    },
    "graphs/": {"graphs", "nodes", "memory"},
    "graphs/cli/": {"graphs", "nodes", "memory", "tools"},
    "graphs/experiments/": {"graphs", "nodes", "memory", "tools"},
    "graphs/studio/": {"graphs", "nodes", "memory", "tools"},
}
"""Folder -> what of ours its files may import; the longest folder that holds a file decides."""
MODELS = ("tools/local/", "tools/training/", "tools/pocket/")
"""The folders whose files work on a model in this process."""
ONLY_IN = {
    "chromadb": ("memory/storage/",),
    "torch": MODELS,
    "transformers": MODELS,
    "peft": MODELS,
    "llguidance": ("tools/local/",),
    "fastapi": ("tools/serving/", "tools/environments/support/"),
    "uvicorn": ("tools/serving/", "tools/environments/support/"),
    "prometheus_client": ("tools/serving/", "graphs/serving/"),
    "opentelemetry": ("memory/telemetry",),
}
"""Heavy package -> the folders whose files may import it."""


@cache
def imports(path: Path) -> set[str]:
    """Absolute dotted names of everything a file imports, ours as `folder.module`."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    found = set()
    for node in shape.outline(path).imports:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif node.level:
            above = package[: len(package) - node.level + 1]
            base = ".".join((*above, node.module) if node.module else above)
            found |= {base} if node.module else {f"{base}.{alias.name}".lstrip(".") for alias in node.names}
        else:
            found.add(node.module or "")
    return found


def test_imports_follow_the_layers() -> None:
    faults = []
    for path in FILES:
        name = str(path.relative_to(ROOT))
        allowed = MAY_IMPORT[max((folder for folder in MAY_IMPORT if name.startswith(folder)), key=len)]
        for imported in imports(path):
            if imported.startswith("learngraph"):
                faults.append(f"{name} imports {imported}: inside the package, imports are relative")
            top = imported.split(".")[0]
            is_ours = top in FOLDERS and not any(imported == a or imported.startswith(a + ".") for a in allowed)
            if is_ours or not name.startswith(ONLY_IN.get(top, "")):
                faults.append(f"{name} must not import {imported}")
    assert faults == []


def test_no_two_files_import_each_other() -> None:
    """The graph of imports among our files has no cycle."""
    modules = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in FILES}
    edges = {name: {i for i in imports(path) if i in modules} for name, path in modules.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done:
            for target in edges[name]:
                visit(target, (*trail, name))
            done.add(name)

    for name in modules:
        visit(name, ())


def output_of(code: str) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/").stdout


def loaded_after(*modules: str) -> dict[str, set[str]]:
    """Module -> names of all modules in a fresh interpreter after importing it and those before it."""
    show = "import sys\n" + "".join(f"import {one}\nprint({one!r}, *sys.modules)\n" for one in modules)
    lines = [line.split() for line in output_of(show).splitlines()]
    return {module: set(names) for module, *names in lines}


HEAVY = {
    *("torch", "transformers", "chromadb", "sentence_transformers", "matplotlib", "textworld_express", "langchain", "datasets"),
    *("math_verify", "yaml", "bm25s", "fastapi", "uvicorn", "prometheus_client"),
}


def test_importing_a_graph_is_light_and_leaves_no_bare_names() -> None:
    """One interpreter imports them all: what is not there at the end was loaded by none. Agents of LangChain are loaded by those who use them."""
    graphs = ["graphs.jitrl", "graphs.baselines.tabular", "graphs.claas", "graphs.training_free_grpo", "graphs.methods"]
    graphs += ["graphs.cli.main", "graphs.serving.service", "graphs.agents.scopes"]
    found = loaded_after(*(f"learngraph.{name}" for name in graphs))
    assert len(found) == len(graphs)
    assert {name: loaded & HEAVY for name, loaded in found.items() if loaded & HEAVY} == {}
    assert {name: loaded & {*FOLDERS} for name, loaded in found.items() if loaded & {*FOLDERS}} == {}
    assert not {name for name in found["learngraph.graphs.cli.main"] if name.startswith("langgraph.prebuilt")}


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    ours = {n for n in names if n.startswith("learngraph/")}
    assert all(n.startswith(("learngraph/", "learngraph-")) for n in names)
    for path in FILES:
        assert f"learngraph/{path.relative_to(ROOT)}" in ours
    assert {f"learngraph/{folder}/py.typed" for folder in FOLDERS} <= ours
    assert {"learngraph/__init__.py", "learngraph/__main__.py", "learngraph/py.typed"} <= ours
    assert {"learngraph/nodes/prompts/jitrl/judge.md", "learngraph/nodes/prompts/claas/hindsight.md"} <= ours
    assert {
        "learngraph/graphs/experiments/benchmarks/toy.toml",
        "learngraph/tools/serving/pages/dashboard.html",
        "learngraph/tools/serving/pages/index.html",
        "learngraph/tools/serving/pages/library/view.js",
        "learngraph/tools/serving/pages/library/LICENSES.txt",
        "learngraph/tools/pocket/guard_weights/model.safetensors",
    } <= ours
    assert any(n.startswith("learngraph/tools/pocket/weights/") and n.endswith(".safetensors") for n in ours)
    assert {n for n in ours if n.endswith(".ipynb")} == {"learngraph/graphs/cli/tutorial.ipynb"}  # of `learngraph tutorial`
    assert not any(n.endswith(".pyc") or "/tests/" in n for n in ours)


# The package itself


def test_importing_the_package_loads_nothing() -> None:
    """All that it offers is loaded on use."""
    [loaded] = loaded_after("learngraph").values()
    assert not loaded & {
        "langgraph",
        "langchain_core",
        "opentelemetry",
        "torch",
        "chromadb",
        "numpy",
        "typing",
        "importlib.metadata",
    }


MAY_SLEEP = {
    "support/waiting.py": "waits for a condition, up to a random moment, or to see that nothing happens; never for a result",
    "support/chat_backend.py": "a stand-in that is slow, so that clients can leave in the middle of a reply",
    "support/urn.py": "the same",
    "support/vllm_server.py": "the same",
}
"""Files of tests -> why they call `sleep`; a test that needs its clock in the time of others fails on a slower machine."""


def test_tests_do_not_sleep() -> None:
    """Handing over to other tasks, `sleep(0)`, takes no time. Benchmarks and the command that changes `sleep` are no tests."""
    tests = ROOT / "tests"
    sleeping = {
        str(path.relative_to(tests))
        for path in tests.rglob("*.py")
        if re.search(r"\bsleep\((?!0\))", path.read_text(encoding="utf-8")) and path.parent.name != "performance"
    }
    assert sleeping - {"steady.py", "test_architecture.py"} == MAY_SLEEP.keys()


def test_every_name_of_the_package_is_there_and_listed() -> None:
    import learngraph

    assert dir(learngraph) == sorted(learngraph.__all__)
    for name in learngraph.__all__:
        assert getattr(learngraph, name) is not None
    with pytest.raises(AttributeError, match=r"learngraph has no 'Chroma'; did you mean ChromaStore"):
        learngraph.__getattr__("Chroma")


def test_a_method_is_built_and_played_from_the_package_alone() -> None:
    code = """
import learngraph
from learngraph.graphs.wiring import run
from learngraph.tools.environments.keyword_keep import KeywordKeep
world = KeywordKeep()
graph = learngraph.jitrl.build(learngraph.MethodInputs(environment=world), learngraph.jitrl.JitRL())
print(len(run.build(graph).invoke({"task": world.task(0), "run": "r", "episode": 0, "episodes": 2})["scores"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "2"


def test_the_package_is_the_command_line() -> None:
    command = [sys.executable, "-m", "learngraph", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout
    assert shown.startswith("LangGraph agents that learn while they work.")
