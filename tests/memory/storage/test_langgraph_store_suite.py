"""LangGraph's own store tests, unedited, on ChromaStore: in memory and in a directory.

Their sources come from the package index, in the versions that are installed (only sdists carry the tests). They run in
a process of their own, because both packages call theirs `tests`; `langgraph_suite.py` puts our store in their place.
"""

import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from importlib.metadata import version
from itertools import product
from pathlib import Path

import pytest
from forks import run_python

FILES = {
    "memory": ("langgraph-checkpoint", "tests/test_store.py"),
    "sqlite": ("langgraph-checkpoint-sqlite", "tests/test_store.py"),
    "sqlite-async": ("langgraph-checkpoint-sqlite", "tests/test_async_store.py"),
}
SOONER = {("memory", "memory"), ("sqlite-async", "memory"), ("sqlite", "directory")}
NOT_OURS = {
    ("memory", "test_cannot_put_empty_namespace"): "searches by a query without an index, which ours refuses",
    ("sqlite", "test_vector_store_initialization"): "looks for SQLite tables",
    ("sqlite", "test_nonnull_migrations"): "looks at the text of SQLite migrations",
    ("sqlite-async", "test_no_running_loop[memory]"): "wants sync calls inside a loop refused; ours work there",
    ("sqlite-async", "test_no_running_loop[file]"): "wants sync calls inside a loop refused; ours work there",
}


@pytest.fixture(scope="session")
def sources(pytestconfig: pytest.Config) -> dict[str, Path]:
    """Package to unpacked source, fetched once a version into pytest's cache."""
    folder = Path(pytestconfig.cache.mkdir("langgraph-sources"))  # type: ignore[union-attr]
    wanted = {name: f"{name}=={version(name)}" for name in ("langgraph-checkpoint", "langgraph-checkpoint-sqlite")}
    found = {name: folder / f"{name.replace('-', '_')}-{version(name)}" for name in wanted}
    missing = [wanted[name] for name in wanted if not found[name].is_dir()]
    if missing:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
        options = ["--dest", str(folder), "--no-binary", ",".join(wanted)]
        done = subprocess.run([*download, *options, *missing], capture_output=True, text=True, timeout=300)
        if done.returncode:
            reason = f"LangGraph's store tests did not run: pip could not fetch {missing}: {done.stderr[-500:]}"
            if os.environ.get("CI", "").lower() == "true":
                pytest.fail(reason)
            pytest.skip(reason)
        for path in found.values():
            with tarfile.open(f"{path}.tar.gz") as archive:
                archive.extractall(folder, filter="data")
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suite", "place"),
    [pytest.param(*one, marks=() if one in SOONER else pytest.mark.long) for one in product(FILES, ("memory", "directory"))],
)
def test_langgraphs_store_tests_pass(suite: str, place: str, sources: dict[str, Path], tmp_path: Path) -> None:
    package, file = FILES[suite]
    report = tmp_path / "report.xml"
    command = ["-m", "pytest", file, "-c", os.devnull, "--rootdir", ".", f"--junitxml={report}"]
    options = ["-p", "no:cacheprovider", "-p", "langgraph_suite", "-o", "asyncio_mode=auto", "-q", "--tb=short"]
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "SUITE_STORE": place, "SUITE_DIRECTORY": str(tmp_path)}
    ran = run_python(*command, *options, folder=sources[package], environment=environment)
    assert report.exists(), ran.stdout[-3000:] + ran.stderr[-3000:]
    cases = {case.attrib["name"]: case for case in ElementTree.parse(report).iter("testcase")}
    failed = {name for name, case in cases.items() if case.find("failure") is not None or case.find("error") is not None}
    not_ours = {name for s, name in NOT_OURS if s == suite}
    assert len(cases) > 35
    assert failed == not_ours, ran.stdout[-6000:]
