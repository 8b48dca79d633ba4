"""Row 21 of the performance targets: a learning step takes at most 1.25 of what no schedule can beat, at 128 calls in flight.

In virtual time: the clock jumps to the next thing that happens, so that only the order of calls counts, and not the machine.
"""

from pathlib import Path

import bench_training_free as bench
import pytest

from learngraph.nodes.cached_model import ConcurrencyLimit


@pytest.mark.slow
def test_groups_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """32 problems x 8 rollouts, log-normal latencies; the same calls with a barrier after each stage take longer."""
    library = tmp_path / "library.yaml"  # an empty one would need no edits to be proposed
    library.write_text("- Read the problem twice.\n")
    ours, theirs, calls = bench.ratios(bench.Plan(settings={"library": str(library)}), "a")
    stages = [call.stage for call in calls]
    assert stages.count("rollout") == 256
    assert stages.count("contrast") == stages.count("propose") > 25  # attempts as short as these are compared as they are
    assert stages.count("consolidate") == 1
    assert ours <= 1.25
    assert theirs > ours


def test_with_enough_slots_the_longest_chain_is_all_that_takes_time() -> None:
    """No call waits for one that it does not need."""
    ours, theirs, calls = bench.ratios(bench.Plan(problems=6, group=4, slots=ConcurrencyLimit(1000)))
    assert bench.bound(calls, 1000) == bench.chain(calls)
    assert ours == pytest.approx(1.0)
    assert theirs > 1.0


def test_with_one_slot_it_is_never_idle() -> None:
    ours, theirs, _ = bench.ratios(bench.Plan(problems=4, group=3, slots=ConcurrencyLimit(1)))
    assert (ours, theirs) == pytest.approx((1.0, 1.0))


def test_what_the_bounds_are() -> None:
    """By hand: two groups, of which one has something to compare."""
    calls = [
        *(bench.Call("rollout", "1", latency) for latency in (1.0, 4.0)),
        *(bench.Call("rollout", "2", latency) for latency in (2.0, 2.0)),
        *(bench.Call("summarise", "2", latency) for latency in (1.0, 0.5)),
        bench.Call("contrast", "2", 1.0),
        bench.Call("propose", "2", 1.0),
        bench.Call("consolidate", "", 1.0),
    ]
    assert bench.chain(calls) == 2 + 1 + 1 + 1 + 1
    assert bench.bound(calls, 100) == 6
    assert bench.bound(calls, 1) == sum(call.latency for call in calls) == 13.5
    assert bench.barrier(calls, 100) == 4 + 1 + 1 + 1 + 1
    assert bench.barrier(calls, 1) == 13.5
    assert bench.barrier(calls, 2) == 5 + 1 + 1 + 1 + 1
