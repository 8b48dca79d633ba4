"""The suite of stores: LangGraph's stores and ours pass it but for what is listed, and it finds what is broken on purpose."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import BaseStore, Op, PutOp, Result, SearchOp
from langgraph.store.memory import InMemoryStore

from learngraph.memory.storage.chroma_store import ChromaStore
from learngraph.tools.testing.store_suite import StoreTests, load_store, parse_lacks


class TestChromaInMemory(StoreTests):
    lacks = frozenset({"durability", "sharing"})

    def open_store(self, place: Path, index: Any) -> BaseStore:
        return ChromaStore.memory(index=index)


@pytest.mark.slow
class TestChromaFolder(StoreTests):
    lacks = frozenset({"sharing"})

    def open_store(self, place: Path, index: Any) -> BaseStore:
        return ChromaStore.open(place / "memory", index=index)


class TestLangGraphInMemory(StoreTests):
    """LangGraph's store in memory, version 4.3: it keeps three promises otherwise."""

    lacks = frozenset({"durability", "sharing"})

    def open_store(self, place: Path, index: Any) -> BaseStore:
        return InMemoryStore(index=index)

    @pytest.mark.xfail(strict=True, reason="a second put gives the item a new time of creation")
    def test_a_second_put_replaces_the_value_and_keeps_the_time_of_creation(self, store: BaseStore) -> None:
        super().test_a_second_put_replaces_the_value_and_keeps_the_time_of_creation(store)

    @pytest.mark.xfail(strict=True, reason="it holds the caller's own object")
    def test_nobody_changes_a_stored_value_from_outside(self, store: BaseStore) -> None:
        super().test_nobody_changes_a_stored_value_from_outside(store)

    @pytest.mark.xfail(strict=True, reason="it lists namespaces that are empty")
    def test_a_namespace_is_gone_with_its_last_item(self, store: BaseStore) -> None:
        super().test_a_namespace_is_gone_with_its_last_item(store)


class ForgetfulStore(InMemoryStore):
    """A store that drops the last put of a batch of several, and answers a search with one item too few."""

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        asked = list(ops)
        puts = [op for op in asked if isinstance(op, PutOp)]
        kept = [op for op in asked if len(puts) < 2 or op is not puts[-1]]
        found = super().batch(kept)
        return [one[:-1] if isinstance(op, SearchOp) else one for op, one in zip(kept, found, strict=True)]  # type: ignore[index,misc]


def open_in_memory(place: Path, index: Any) -> BaseStore:
    return InMemoryStore(index=index)


def open_forgetful(place: Path, index: Any) -> BaseStore:
    return ForgetfulStore(index=index)


def run_plugin(function: str, tmp_path: Path, *further: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "learngraph.tools.testing.store_suite", "--pyargs"]
    command += ["learngraph.tools.testing.store_tests", "--langgraph-store", f"test_store_suite:{function}", *further]
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": paths}
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.long
def test_the_plugin_runs_in_an_empty_folder_and_finds_a_forgetful_store(tmp_path: Path) -> None:
    good = run_plugin("open_in_memory", tmp_path, "--langgraph-store-lacks", "durability,sharing")
    assert "3 failed, 55 passed, 2 skipped" in good.stdout, good.stdout[-3000:]
    bad = run_plugin("open_forgetful", tmp_path, "--langgraph-store-lacks", "durability,sharing")
    assert bad.returncode == 1
    for test in ("keys_are_kept_apart", "the_last_of_several_puts_wins", "a_prefix_matches_whole_labels", "two_thousand_items"):
        assert f"test_{test}" in bad.stdout, bad.stdout[-3000:]


@pytest.mark.slow
def test_the_plugin_says_what_a_store_gave_and_refuses_a_wrong_option_once(tmp_path: Path) -> None:
    one = ("--langgraph-store-lacks", "durability,sharing", "-k", "nobody_changes_a_stored_value")
    assert "assert {'list': [1, 2]} == {'list': [1]}" in run_plugin("open_in_memory", tmp_path, *one).stdout
    wrong = run_plugin("open_nothing", tmp_path)
    assert wrong.returncode == pytest.ExitCode.USAGE_ERROR
    assert (wrong.stdout + wrong.stderr).count("has no attribute 'open_nothing'; give MODULE:FUNCTION") == 1


def test_a_wrong_option_is_said() -> None:
    with pytest.raises(pytest.UsageError, match="No module named 'nowhere'; give MODULE:FUNCTION"):
        load_store("nowhere:open")
    with pytest.raises(pytest.UsageError, match="give MODULE:FUNCTION"):
        load_store("json:open_store")
    with pytest.raises(pytest.UsageError, match="is str; give a function"):
        load_store("json:__name__")
    with pytest.raises(pytest.UsageError, match=r"wings is unknown; the names are async, durability, sharing, vectors"):
        parse_lacks("vectors, wings")
    assert parse_lacks(" vectors ,sharing") == {"vectors", "sharing"}
