"""The numbers and tables of a benchmark: metrics worked out by hand, intervals and tests by scipy, what is left out."""

from typing import Any

import pytest

from learngraph.graphs.experiments.costs import RunWork
from learngraph.graphs.experiments.measures import METRICS, estimate, measure
from learngraph.graphs.experiments.notes import table_notes
from learngraph.graphs.experiments.recorded import LookUps
from learngraph.graphs.experiments.results import SeedResult
from learngraph.graphs.experiments.tables import ResultTable, as_objects, markdown_page, overview, paired_table, score_table
from learngraph.memory.records import Usage
from learngraph.nodes.cached_model import Prices
from learngraph.nodes.evaluate.judge import NO_REWARDS_REASON
from learngraph.nodes.evaluate.statistics import paired_test

FREE = Prices()


def run(scores: list[float], seed: int = 0, method: str = "m", **more: Any) -> SeedResult:
    values: dict[str, Any] = {"optimum": 4.0, "bests": tuple(scores), "steps": (5,) * len(scores), **more}
    return SeedResult(method, seed, scores=tuple(scores), **values)


def table(runs: dict[str, list[SeedResult]], **more: Any) -> ResultTable:
    return ResultTable("toy", "pocket", runs, **{"against": next(iter(runs), ""), "episodes": 4, "prices": FREE, **more})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("avg", 2.0),
        ("final", 1.0),  # the last episode, as the paper has it
        ("last", 8 / 3),
        ("running-max", (0 + 3 + 4 + 4) / 4),
        ("best", 4.0),
        ("best-in-episode", (1 + 3 + 4 + 3) / 4),
        ("of-optimum", 0.5),
        ("last-of-optimum", 2 / 3),
        ("answer", 4.0),
        ("solved", 1.0),
        ("regret", 4 + 1 + 0 + 3),
        ("success", 2 / 4),
        ("steps", 5.0),
        ("steps-to-success", 10.0),
        ("refreshes", 6 / 4),
        ("malformed", 1.0),
        ("tokens", 1500),
        ("step-tokens", 1500 / 20),
        ("trained-tokens", 80.0),
        ("flops", 250.0),
        ("dollars", (1000 * 2 + 500 * 8) / 1e6),
        ("seconds", 3.5),
        ("step-seconds", 3.5 / 15),  # of the episodes whose time is known
        ("judged", 2.5),
        ("cross-task", 2 / 8),
    ],
)
def test_metrics_by_hand(name: str, value: float) -> None:
    one = run(
        [0.0, 3.0, 4.0, 1.0],
        solved=3.0,
        bests=(1.0, 3.0, 4.0, 3.0),
        answer=2,
        refreshes=(2, 4),
        **{"tokens": 1500, "usage": Usage(3, 1000, 500, malformed=1)},
        seconds=(1.0, None, 2.0, 0.5),
        judged=(1.0, None, 4.0, None),
        look_ups=LookUps(hits=8, hits_elsewhere=2),
        work=RunWork(250.0, 80.0, []),
    )
    assert METRICS[name].of(one, Prices(2.0, 8.0)) == pytest.approx(value)


def test_a_metric_without_a_number_is_none() -> None:
    one = run([0.0, 5.0])
    assert METRICS["regret"].of(one, FREE) == 4  # a score above a walkthrough's takes nothing off
    assert METRICS["of-optimum"].of(run([1.0], optimum=0.0), FREE) is None
    assert METRICS["step-tokens"].of(run([1.0], steps=(0,), tokens=9), FREE) is None
    for name in (
        "success",
        "steps-to-success",
        "judged",
        "dollars",
        "seconds",
        "tokens",
        "trained-tokens",
        "flops",
        "cross-task",
    ):
        assert METRICS[name].of(one, FREE) is None, name
    behind_an_api = run([1.0], work=RunWork(None, None, []))
    assert METRICS["flops"].of(behind_an_api, FREE) is METRICS["trained-tokens"].of(behind_an_api, FREE) is None


def test_estimates_leave_out_what_is_missing() -> None:
    runs = [run([0.0, 2.0], n, judged=(2.0, None)) for n in range(2)] + [run([0.0], 2)]
    found = estimate(measure("judged", runs, FREE))
    assert (found.values, found.mean, found.missing) == ({0: 2.0, 1: 2.0, 2: None}, 2.0, 1)
    assert estimate({0: None}).mean is None
    assert estimate({0: 2.0}).by_t is None


def test_a_paired_test_by_hand() -> None:
    test = paired_test({0: 1.0, 1: 2.0, 2: 3.0, 7: 9.0}, {0: 0.0, 1: 0.0, 2: 0.0, 8: 1.0})
    assert test is not None
    assert test.differences == {0: 1.0, 1: 2.0, 2: 3.0}
    assert (test.wins, test.losses, test.ties, test.mean) == (3, 0, 0, 2.0)
    assert test.by_t == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5))
    assert test.permutation_p == pytest.approx(2 / 8)  # of all sign changes, the two in which all signs are the same
    assert test.verdict() == "not told apart"
    same = paired_test({0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0})
    assert same is not None
    assert (same.permutation_p, same.ties, same.verdict()) == (1.0, 2, "not told apart")
    assert paired_test({0: 1.0}, {1: 1.0}) is None
    one = paired_test({0: 1.0}, {0: 0.0})
    assert one is not None
    assert (one.permutation_p, one.by_t, one.verdict()) == (None, None, "")


def test_tables() -> None:
    ours = [run([4.0, 4.0, 4.0, 4.0], n) for n in range(3)]
    theirs = [run([0.0, 0.0, 0.0, 1.0 + n], n) for n in range(3)]
    found = table({"a": ours, "b_c": theirs}, prices=Prices(1.0, 1.0))
    head, first, second, optimum = score_table(found)
    assert head == [
        "method",
        "runs",
        "mean score",
        "Final",
        "last 3 episodes",
        "running max",
        "regret",
        "steps/episode",
        "$/run",
    ]
    assert first[:3] == ["a", "3", "4 [4, 4]"]
    assert second[3] == "2 [-0.484, 4.48]"
    assert optimum == ["optimum", "–", "4", "4", "4", "4", "0", "–", "–"]
    rows = score_table(table({"a": ours, "b": theirs}, metrics=["best-in-episode", "of-optimum"]))
    assert rows[0][2:] == ["best in episode", "mean / optimum"]
    assert [row[3] for row in rows[1:]] == ["1.00", "0.12", "1.00"]  # (.25 + .5 + .75) / 3 of 4
    (_, row) = paired_table(found)
    assert row[:3] == ["b_c", "3", "+3.5 [+2.88, +4.12]"]
    assert row[-2:] == ["3 / 0 / 0", "ahead"]
    assert overview([found])[2] == ["b_c", "0.5 / 0.667; +3.5 [+2.88, +4.12]"]
    assert as_objects(found)[1]["lead_of_against"]["avg"]["differences"] == {0: 3.75, 1: 3.5, 2: 3.25}


def test_an_optimum_that_no_episode_can_solve_promises_no_success() -> None:
    for solved, shown in ((4.0, "1.00"), (5.0, "–")):  # 5: the step limit cuts the way
        rows = score_table(table({"a": [run([0.0], n, solved=solved) for n in range(2)]}))
        assert rows[-1][rows[0].index("success")] == shown


def test_a_run_that_never_succeeds_counts_with_the_steps_that_it_played() -> None:
    """A method that solves the task on its easy seeds alone is not quicker than one that solves all."""
    ours = [run([0.0, 4.0, 4.0], 0, solved=4.0), run([0.0, 0.0, 4.0], 1, solved=4.0)]
    theirs = [run([4.0, 4.0, 4.0], 0, solved=4.0), run([0.0, 0.0, 0.0], 1, solved=4.0)]
    never = [run([0.0, 0.0, 0.0], n, solved=4.0) for n in range(2)]
    found = table({"a": ours, "b": theirs, "c": never}, metrics=["steps-to-success"])
    assert [row[2] for row in score_table(found)] == [
        "steps to success",
        "12",
        "≥ 10 (never: 1 of 2)",
        "≥ 15 (never: 2 of 2)",
        "–",
    ]
    told = "- steps to success: Steps of all episodes up to and with the first that solved the task. A run that never solved it"
    assert told in markdown_page("T", "", "x", [found], [])
    assert told not in markdown_page("T", "", "x", [table({"a": ours}, metrics=["steps-to-success"])], [])


def test_costs_are_shown_where_a_method_has_them() -> None:
    played = RunWork(100.0, None, [])
    trained = RunWork(250.0, 80.0, [])
    idle = RunWork(100.0, 0.0, [])
    runs = {
        "jitrl": [run([1.0], n, work=played) for n in range(2)],
        "sft": [run([1.0], n, work=(trained, idle)[n]) for n in range(2)],
    }
    head, ours, theirs, _ = score_table(table(runs))
    assert head[-2:] == ["tokens trained", "FLOPs"]
    assert ours[-2:] == ["–", "100"]
    assert theirs[-2:] == ["40", "175"]  # a run that learned nothing counts, too


def test_a_page_without_runs_says_why() -> None:
    page = markdown_page("T", "", "learngraph run x.toml", [table({}, against="a")], ["nothing was played"])
    assert page == "**T**\n\n```sh\nlearngraph run x.toml\n```\n\n- nothing was played"


def test_who_is_behind_is_marked() -> None:
    found = table({"a": [run([0.0], n) for n in range(3)], "b": [run([1.0], n) for n in range(3)]})
    assert overview([found])[2][1].endswith("(behind)")
    assert paired_table(found)[1][-1] == "behind"


def test_what_went_wrong_without_an_error_is_said_below() -> None:
    """As below the table of `learngraph run`."""
    runs = {
        "fine": [run([1.0, 4.0], n, usage=Usage(9), look_ups=LookUps(9, 4), unjudged=(None, None)) for n in range(2)],
        "unrated": [run([0.0, 0.0], unjudged=("the checker was down", None))],
        "explores": [run([0.0], unjudged=(NO_REWARDS_REASON,))],  # by design
        "above": [run([5.0, 4.0], 0, "above")],
        "forgetful": [run([0.0], 0, "forgetful", look_ups=LookUps(8, 4))],
    }
    told = table_notes(table(runs))
    assert {
        "1 of 2 attempts of unrated have no reward: the checker was down",
        "above: 1 episode scored higher than the optimum, a regret of 0",
        "forgetful found nothing alike in its memory at 4 of 8 steps after the first episode",
    } <= set(told)
    assert table_notes(table({})) == []
