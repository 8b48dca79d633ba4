"""Training-Free GRPO with many rollouts at once: nothing is mixed up, and no result depends on what ended first (D17, E3)."""

import asyncio
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import bench_training_free as bench
import pytest

from learngraph.graphs.training_free_grpo import TrainingFreeGRPO
from learngraph.memory.records import Usage
from learngraph.memory.storage.cache import Cache
from learngraph.nodes.cached_model import ConcurrencyLimit, SpendingLimit

TRIED = {"epochs": 2, "accept": "not-worse", "batch_size": 2, "patience": 0}


class Watched(ConcurrencyLimit):
    """Knows how many calls were in flight at once."""

    most = 0

    def _take(self) -> Any:
        turn = super()._take()
        self.most = max(self.most, self.limit - self._free)
        return turn


def virtually(plan: Any, salt: str = "") -> Any:
    """What comes of a run whose latencies are drawn with this salt."""
    return bench.virtually(plan.play(bench.scripted(salt=salt)[0]))[0]


def texts(path: Path) -> list[str]:
    """All values in a cache's file."""
    with sqlite3.connect(path) as base:
        return [value for (value,) in base.execute("SELECT value FROM entries")]


def nothing_is_mixed_up(played: Any) -> None:
    """Every reply was about the problem that it was asked about, and every lesson is filed under it."""
    (row, *_) = played.log
    assert row["failures"] == []
    assert all(reward is not None for rewards in row["rewards"].values() for reward in rewards)
    lessons = [*re.findall(r"When (\d+) comes up", played.libraries["run/1"])]
    learned = sum(len({*rewards}) > 1 for rewards in row["rewards"].values())
    assert len(lessons) == len({*lessons}) == min(learned, TrainingFreeGRPO().lessons.max_step_edits) > 10
    accepted = [ruling.edit for ruling in played.rulings["run/1"] if ruling.accepted]
    assert {(f"marked-train-{number}",) for number in lessons} == {edit.problems for edit in accepted}
    for edit in accepted:
        assert f"marked-train-{re.findall('When ([0-9]+) comes', edit.text)[0]}" == edit.problems[0]


@pytest.mark.slow
def test_128_rollouts_at_once_over_http(tmp_path: Path) -> None:
    """Against a real server, in one process; the same as with a model in this process, and other latencies."""
    slots = Watched(128)
    plan = bench.Plan(problems=17, group=8, slots=slots, cache=Cache(tmp_path / "cache"))
    with bench.served(0.3) as behind:
        played = asyncio.run(plan.play(behind))
    assert slots.most == 128
    nothing_is_mixed_up(played)
    assert not [text for text in texts(tmp_path / "cache") if "MIXED" in text]
    assert played == virtually(bench.Plan(problems=17, group=8), "other latencies")


@pytest.mark.slow
def test_no_result_depends_on_what_ended_first() -> None:
    """Four steps with an accept test: other latencies, and other numbers of calls in flight, change nothing at all."""
    plan = bench.Plan(problems=4, group=3, held_out=2, settings=TRIED)
    first = virtually(plan)
    assert len(first.log) == 4
    assert sum(row["trial"] is not None for row in first.log) >= 2, "the accept test was held"
    for salt, slots in (("a", 128), ("b", 128), ("", 1), ("c", 5)):
        assert virtually(replace(plan, cache=Cache(), slots=ConcurrencyLimit(slots)), salt) == first


def test_threads_come_to_the_same() -> None:
    plan = bench.Plan(problems=4, group=3, slots=ConcurrencyLimit(5))
    model, calls = bench.scripted(unit=0.002)
    assert plan.run(model) == virtually(bench.Plan(problems=4, group=3))
    assert len(calls) > 12


def test_runs_of_one_cache_at_once_come_to_the_same(tmp_path: Path) -> None:
    """As two processes would, each with a connection of its own: neither redoes nor spoils what the other did (E3)."""
    plan = bench.Plan(problems=4, group=3)
    whole = virtually(plan)

    def play(salt: str) -> Any:
        return asyncio.run(
            replace(plan, cache=Cache(tmp_path / "cache"), slots=ConcurrencyLimit(64)).play(bench.scripted(0.01, salt)[0])
        )

    with ThreadPoolExecutor(2) as pool:
        both = [*pool.map(play, "ab")]
    for played in both:
        assert replace(played, spent=whole.spent) == whole
    paid = sum(Cache(tmp_path / "cache").usage_by_stage().values(), Usage())
    needed = sum(whole.spent.values(), Usage())
    assert needed.calls <= paid.calls <= 2 * needed.calls


@pytest.mark.parametrize("share", [0.5, *(pytest.param(share, marks=pytest.mark.long) for share in (0.1, 0.9))])
def test_a_budget_ends_the_run_and_a_larger_one_takes_it_to_the_same_end(share: float, tmp_path: Path) -> None:
    """What was paid in all is what an undisturbed run pays (E10)."""
    plan = bench.Plan(problems=4, group=3, held_out=2, settings=TRIED, slots=ConcurrencyLimit(8))
    whole = virtually(plan)
    needed = sum(whole.spent.values(), Usage())
    tokens = needed.input_tokens + needed.output_tokens

    def play(budget: int) -> tuple[Any, Usage]:
        cache = Cache(tmp_path / "cache")
        meter = SpendingLimit(cache, max_tokens=budget)
        played = virtually(replace(plan, cache=cache, meter=meter, slots=ConcurrencyLimit(8)))
        spent = meter.total_usage
        cache.close()
        return played, spent

    stopped, spent = play(int(share * tokens))
    assert "the same run with a larger budget goes on from here" in stopped.result["stopped"]
    assert share * tokens <= spent.input_tokens + spent.output_tokens < tokens
    resumed, spent = play(2 * tokens)
    assert spent == needed
    assert resumed == whole
