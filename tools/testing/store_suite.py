"""A pytest plugin that tests any LangGraph store: whether it does what `BaseStore` promises, and what agents that learn need.

LangGraph has such a suite for checkpointers, and none for stores. In a test run of its own:

    pytest -p learngraph.tools.testing.store_suite --pyargs learngraph.tools.testing.store_tests --langgraph-store my_package:open_store

or beside tests of your own, as a class that inherits them:

    from learngraph.tools.testing.store_suite import StoreTests

    class TestMyStore(StoreTests):
        lacks = frozenset({"vectors"})

        def open_store(self, place, index):
            return MyStore(place)

`open_store(place, index)` opens the store that belongs to `place`, a folder of its own for every test, and gives the store or a
context manager of it. `index` is None or LangGraph's `IndexConfig`. Called again with the same place it opens the same
items. A server's store takes a name from the place (`place.name` is not unique, the path is), and is empty the first time.

`--langgraph-store-lacks` names what the store does not claim; tests of that are skipped with this reason:

| name | promise |
|---|---|
| `durability` | items outlive `close`, or the end of the context |
| `sharing` | two stores that are open at once on one place see each other's writes |
| `vectors` | `search(query=...)` ranks by the cosine of embeddings |
| `async` | `aput`, `aget`, `asearch` and the rest |
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

# Before they are imported: pytest then shows the values of an assertion that fails. By its own rules it does so in test files only.
pytest.register_assert_rewrite("learngraph.tools.testing.store_tests", "store_tests")

from .store_tests import StoreTests  # noqa: E402

__all__ = ["StoreTests"]

CAPABILITIES = frozenset({"durability", "sharing", "vectors", "async"})
"""The promises that a store may say it lacks."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's two options."""
    group = parser.getgroup("langgraph-store", "tests of a LangGraph store")
    group.addoption("--langgraph-store", metavar="MODULE:FUNCTION", help="open_store(place, index) of the store to test")
    group.addoption("--langgraph-store-lacks", metavar="NAMES", default="", help=f"of {', '.join(sorted(CAPABILITIES))}")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse options that name nothing once, and not in each test."""
    if spec := config.getoption("--langgraph-store"):
        load_store(spec)
    parse_lacks(config.getoption("--langgraph-store-lacks"))


@pytest.fixture
def langgraph_store(request: pytest.FixtureRequest) -> tuple[Callable[..., Any], frozenset[str]]:
    """The function that opens the store, and what the store lacks, by the two options.

    Raises:
        pytest.UsageError: no such function, or an unknown promise.
    """
    spec = request.config.getoption("--langgraph-store")
    if not spec:
        pytest.skip("no --langgraph-store MODULE:FUNCTION was given")
    return load_store(spec), parse_lacks(request.config.getoption("--langgraph-store-lacks"))


def load_store(spec: str) -> Callable[..., Any]:
    """The function that `MODULE:FUNCTION` names."""
    module, _, name = spec.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise pytest.UsageError(
            f"--langgraph-store {spec}: {error}; give MODULE:FUNCTION, as in my_package:open_store"
        ) from error
    if not callable(found):
        raise pytest.UsageError(f"--langgraph-store {spec} is {type(found).__name__}; give a function open_store(place, index)")
    return found  # type: ignore[no-any-return]


def parse_lacks(text: str) -> frozenset[str]:
    """The promises in a list such as `vectors,sharing`."""
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if unknown := names - CAPABILITIES:
        raise pytest.UsageError(
            f"--langgraph-store-lacks: {', '.join(sorted(unknown))} is unknown; the names are {', '.join(sorted(CAPABILITIES))}"
        )
    return names
