"""An app that has LangChain already: the wheel beside langchain in an environment of its own, by the line of the agents' page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "graphs" / "agents" / "README.md").read_text(encoding="utf-8")
MOST_PACKAGES, MOST_MEGABYTES = 60, 250
AGENT = re.compile(r"^```python\n((?:(?!^```).)*create_agent.*?)^```", re.MULTILINE | re.DOTALL)
README_BLOCK = AGENT.search((ROOT / "README.md").read_text(encoding="utf-8"))
REFERENCE = (ROOT / "graphs" / "agents" / "reference.md").read_text(encoding="utf-8")
EVALUATION = re.search(
    r"^```python\n((?:(?!^```).)*evaluate_learning.*?)^```", REFERENCE[REFERENCE.index("## Does it help?") :], re.M | re.S
)

pytestmark = [pytest.mark.slow]


def run(*command: str | Path, folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with langchain, the wheel, and the packages that the page names."""
    folder = tmp_path_factory.mktemp("bare")
    (line,) = re.findall(r"^pip install --no-deps learngraph (.+)$", PAGE, re.MULTILINE)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, folder=folder)
    (wheel,) = folder.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", folder=folder)
    python = folder / "venv" / "bin" / "python"
    install = ["install", "--quiet", "--no-compile", "-c"]
    pip = (sys.executable, "-m", "pip", "--python", python, *install, ROOT / "constraints.txt")
    run(*pip, "langchain", folder=folder)
    run(*pip, "--no-deps", wheel, *line.split(), folder=folder)
    return python


def test_an_agent_learns_there(bare: Path, tmp_path: Path) -> None:
    assert README_BLOCK
    printed = run(bare, "-c", README_BLOCK[1], folder=tmp_path)
    assert printed.splitlines()[0].split()[-4:] == ["replace", "refund"] * 2


def test_learning_is_evaluated_there(bare: Path, tmp_path: Path) -> None:
    assert EVALUATION
    assert "| jitrl" in run(bare, "-c", EVALUATION[1], folder=tmp_path)


def test_what_agents_import_needs_no_more(bare: Path, tmp_path: Path) -> None:
    code = (
        "import importlib, pkgutil, sys, learngraph, learngraph.graphs.agents as agents\n"
        "names = {module.name for module in pkgutil.iter_modules(agents.__path__)} - {'mcp_tools'}  # an extra\n"
        "for name in names: importlib.import_module(f'{agents.__name__}.{name}')\n"
        "print([name for name in ('torch', 'transformers', 'chromadb') if name in sys.modules])"
    )
    assert run(bare, "-c", code, folder=tmp_path).strip() == "[]"


def test_a_memory_in_chroma_asks_for_it_and_one_in_a_folder_does_not(bare: Path, tmp_path: Path) -> None:
    code = "import learngraph\ntry: learngraph.ChromaStore.open('memory')\nexcept learngraph.UserError as error: print(error)"
    assert run(bare, "-c", code, folder=tmp_path).strip().endswith("pip install chromadb")
    agents_page = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)[0]
    assert "resolve(how='replace') was wrong" in run(bare, "-c", agents_page, folder=tmp_path)


def test_the_environment_is_small(bare: Path) -> None:
    """Without bytecode, which Python writes as it runs."""
    (site,) = (bare.parents[1] / "lib").glob("python*/site-packages")
    packages = [*site.glob("*.dist-info")]
    files = [path for path in site.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    size = sum(path.stat().st_size for path in files)
    assert len(packages) <= MOST_PACKAGES
    assert size / 1e6 <= MOST_MEGABYTES
