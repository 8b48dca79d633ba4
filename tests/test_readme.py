"""The pages: their Python blocks run, each alone in a fresh process, and their commands are commands of this version."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from codeop import compile_command
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from threading import Thread

import pytest
from forks import run_python
from in_process import play_in_process
from ports import free_port

from learngraph.graphs.cli.main import main
from learngraph.graphs.methods import METHODS

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "graphs/agents/README.md",
    "graphs/agents/reference.md",
    "graphs/serving/README.md",
    "graphs/serving/reference.md",
    "graphs/experiments/RESULTS.md",
    "graphs/experiments/benchmarks/README.md",
    "graphs/papers/README.md",
    "graphs/studio/README.md",
    "graphs/wiring/README.md",
    "memory/README.md",
    "tests/performance/README.md",
    "tools/environments/README.md",
    "tools/models/README.md",
    "tools/pocket/weights/README.md",
    "tools/pocket/guard_weights/README.md",
]
NO_NETWORK = {
    "HF_HUB_OFFLINE": "1",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1",
}
ALONE = NO_NETWORK | {
    "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ['PYTHONPATH']}",
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}


def text(page: str) -> str:
    """A page's Markdown; of a notebook, that of its text cells."""
    content = (ROOT / page).read_text(encoding="utf-8")
    if not page.endswith(".ipynb"):
        return content
    return "\n\n".join("".join(cell["source"]) for cell in json.loads(content)["cells"] if cell["cell_type"] == "markdown")


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text(page), re.MULTILINE | re.DOTALL)


def run_alone(command: list[str], folder: Path, typed: str | None = None, **more: str) -> str:
    """What a command of Python prints that runs in a folder, without a network, with this text typed into it; it has to succeed."""
    environment = {**os.environ, **ALONE, **more}
    if typed is None:
        done = run_python(*command, folder=folder, environment=environment)
    else:
        fresh = [sys.executable, *command]
        done = subprocess.run(fresh, cwd=folder, env=environment, input=typed, capture_output=True, text=True, check=False)
    assert (done.returncode, re.findall("Error|Warning", done.stderr)) == (0, []), done.stdout + done.stderr
    return done.stdout


PYTHON_BLOCKS = [pytest.param(code, id=f"{page}-{n}") for page in PAGES for n, code in enumerate(blocks(page, "python"))]


@pytest.mark.parametrize("code", PYTHON_BLOCKS)
def test_a_python_block_pastes_at_the_prompt(code: str) -> None:
    """As Python 3.11 reads it, line by line: there a blank line ends a function, a class or a loop."""
    typed = list[str]()
    for line in [*code.splitlines(), ""]:
        typed.append(line)
        if compile_command("\n".join(typed)) is not None:
            typed.clear()
    assert not typed, "the last statement is whole"


@pytest.mark.slow
@pytest.mark.parametrize("code", PYTHON_BLOCKS)
def test_a_python_block_runs_alone_in_a_fresh_process(code: str, tmp_path: Path) -> None:
    """Those of README are typed at a real prompt; the others run as a file."""
    if "import create_deep_agent" in code:
        pytest.importorskip("deepagents", reason="no package deepagents: pip install deepagents")
    (tmp_path / "pasted.py").write_text(code, encoding="utf-8")
    at_prompt = code in blocks("README.md", "python")
    printed = run_alone(["-iq"], tmp_path, code) if at_prompt else run_alone(["pasted.py"], tmp_path)
    assert printed.strip(), "every block shows what it did"
    assert not at_prompt or not re.search(r"^\w+\(\w+=", printed, re.MULTILINE), "the prompt echoes no value between the lines"
    if len(scores := re.findall(r"\d+\.\d+", printed.splitlines()[0])) >= 6:
        half = len(scores) // 2
        assert sum(map(float, scores[half:])) > sum(map(float, scores[:half])), "an agent that a page shows learns"
    assert "walk.view" not in code or not at_prompt or printed in text("README.md")
    if 'print(learner.learn(tenant="acme"))' in code:  # the shares are those of today's prompts
        assert re.sub(r"\d+%", "", printed) in re.sub(r"\d+%", "", text("graphs/agents/README.md"))
    if at_prompt and "my-memory" in code:  # the folder outlives the process, and the output on the page is that of two runs
        again = run_alone(["pasted.py"], tmp_path)
        assert printed + again in text("README.md")
        shown = run_alone(["-m", "learngraph", "memory", "show", "my-memory"], tmp_path)
        assert re.search(r"keep-test-0 +mine +16 ", shown)


@pytest.mark.long  # each runs alone above, and a notebook of ours from top to bottom
def test_the_readmes_python_blocks_run_as_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat  # seconds
    from nbclient import NotebookClient

    for name, value in NO_NETWORK.items():
        monkeypatch.setenv(name, value)
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in blocks("README.md", "python")])  # type: ignore[no-untyped-call]
    NotebookClient(made, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()


def commands() -> Iterator[tuple[str, str]]:
    """(page, command line) of every `learngraph …` in shell blocks and in running text."""
    for page in [*PAGES, *(f"notebooks/{file.name}" for file in sorted((ROOT / "notebooks").glob("*.ipynb")))]:
        lines = [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
        lines += [line for line in text(page).replace("\\\n", " ").splitlines() if line.startswith("    learngraph ")]
        spans = [span.replace("\n", " ") for span in re.findall(r"(?<!`)`(learngraph [^`]+)`", text(page))]
        for line in [*lines, *spans]:
            if found := re.search(r"\blearngraph [a-z].*", line):
                yield page, found.group()


@cache
def known_flags(*command: str) -> frozenset[str]:
    """The flags that `learngraph COMMAND --help` names."""
    with redirect_stdout(StringIO()) as printed, pytest.raises(SystemExit) as ended:
        sys.exit(main([*command, "--help-all" if command[0] in {"run", "serve"} else "--help"]))
    assert not ended.value.code
    return frozenset(re.findall(r"--[a-z][\w.-]*", printed.getvalue()))


@pytest.mark.parametrize(("page", "line"), sorted(set(commands())))
def test_a_command_has_the_flags_and_names_of_this_version(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    flags = {word.partition("=")[0] for word in words if word.startswith("--")}
    first = next((n for n, word in enumerate(words) if word.startswith("-")), len(words))
    command = words[: min(first, 1 if words[0] in {"serve", "explain"} else 2)]
    if words[0] in {"run", "draw"} and words[1:] and words[1].partition(":")[0].islower():
        method = words[1].partition("?")[0].partition(":")[0]
        if "." in method or method == "my_app":  # a method or a graph of the reader's own
            return
        assert method in METHODS, f"{page}: {line}"
    if flags:
        assert flags <= known_flags(*command) | {"--help", "--help-all"}, f"{page}: {line}"


@pytest.mark.parametrize(("page", "line"), sorted({(p, n) for p, c in commands() for n in re.findall(r"[a-z-]+:[a-z-]+", c)}))
def test_a_preset_that_a_page_names_exists(page: str, line: str) -> None:
    method, _, preset = line.partition(":")
    if method in METHODS:
        settings = METHODS[method].settings
        assert hasattr(settings, preset.replace("-", "_")), f"{page}: {line}"


@pytest.mark.slow
def test_the_readmes_comparison_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play_in_process(monkeypatch, tmp_path)
    line = next(line for _, line in commands() if line.startswith("learngraph run icrl"))
    words = shlex.split(line, comments=True)[1:]
    assert main([*words, "--seeds", "1", "--episodes", "2"]) == 0
    printed = capsys.readouterr().out
    assert all(f"| {name}" in printed for name in ("icrl", "best-of-n", "reflexion"))


@pytest.mark.slow
@pytest.mark.parametrize("is_taken", [False, True])
def test_the_serve_block_runs_and_ends_where_another_server_has_the_port(tmp_path: Path, is_taken: bool) -> None:
    (block,) = (block for block in blocks("README.md", "sh") if "learngraph serve" in block)
    port = str(free_port())
    foreign = ThreadingHTTPServer(("127.0.0.1", int(port)), SimpleHTTPRequestHandler) if is_taken else None
    if foreign:
        Thread(target=foreign.serve_forever, daemon=True).start()
    command = f"{sys.executable} -m learngraph.graphs.cli.main serve --port {port}"
    script = block.replace("learngraph serve", command).replace("8000", port)
    server = subprocess.Popen(
        ["bash", "-euc", script + "\nwait"],
        cwd=tmp_path,
        env={**os.environ, **ALONE},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = server.communicate(timeout=240)
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
        if foreign:
            foreign.shutdown()
            foreign.server_close()
    if is_taken:
        assert re.search("cannot listen on 127.0.0.1:.*choose another --host or --port", printed), printed
        assert "Traceback" not in printed
        return
    assert "'response_id': 'chatcmpl-" in printed, printed
    said = [line.partition(" ")[0] for line in printed.splitlines() if "chatcmpl-" not in line]
    assert said == ["opening", "what", "guard", "it", "Ctrl-C", "closed"]  # for the reader alone, and the block ends it


def test_the_flow_shown_is_the_flow_run() -> None:
    from learngraph.graphs.jitrl import FLOW
    from learngraph.graphs.wiring.flow import read_flow

    (shown,) = blocks("README.md", "mermaid")
    assert read_flow(shown).edges == read_flow(FLOW).edges


def test_the_learning_flow_shown_is_the_flow_run() -> None:
    from learngraph.graphs.claas import LEARNING_FLOW
    from learngraph.graphs.wiring.flow import read_flow

    (shown,) = blocks("graphs/serving/reference.md", "mermaid")
    assert read_flow(shown).edges == read_flow(LEARNING_FLOW).edges


def test_every_method_of_the_command_line_is_named() -> None:
    assert [name for name in METHODS if f"`{name}`" not in text("README.md")] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_heading_that_is_linked_exists(page: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)", text(page)):
        file, _, anchor = target.partition("#")
        place = (ROOT / page).parent / file if file else ROOT / page
        assert place.exists(), target
        headings = re.findall(r"^#+ (.*)$", place.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}, target
