"""Statistics with numbers worked out by hand, the table, and the picture."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flat_rows import flat

from learngraph.graphs.arms import make_arm
from learngraph.graphs.experiments import notes, results
from learngraph.graphs.experiments.folder import Job
from learngraph.graphs.experiments.measures import RUN_METRICS
from learngraph.graphs.experiments.options import RunOptions
from learngraph.graphs.experiments.results import SeedResult
from learngraph.graphs.experiments.tables import ResultTable, as_objects, fitted_tables, score_table
from learngraph.memory.display import markdown_table
from learngraph.memory.records import Usage
from learngraph.nodes.cached_model import Prices
from learngraph.nodes.evaluate.statistics import interval


def attempts(seed: int, scores: list[float], optimum: float = 1.0, method: str = "jitrl") -> SeedResult:
    n = len(scores)
    return SeedResult(method, seed, optimum, tuple(scores), tuple(scores), (10,) * n, tokens=7, seconds=(0.5,) * n)


def read_result(method: str, folder: Path) -> SeedResult:
    return results.read_result(Job(make_arm(method), RunOptions(episodes=2), 0, folder, "r", "r", "", (), ""))


class Summary:
    """A method over its seeds: `summary.avg` is the mean of a metric, None without a number."""

    def __init__(self, runs: list[SeedResult]) -> None:
        self.runs = runs
        table = ResultTable("toy", "none", {runs[0].method: runs}, "", len(runs[0].scores), Prices(), RUN_METRICS)
        self.object = flat(as_objects(table)[0])

    def __getattr__(self, name: str) -> Any:
        return self.object.get(name)


def summary(runs: list[SeedResult]) -> Summary:
    return Summary(runs)


def table(rows: list[Summary]) -> str:
    runs = {row.runs[0].method: row.runs for row in rows}
    episodes = len(rows[0].runs[0].scores)
    lines = score_table(ResultTable("toy", "none", runs, "", episodes, Prices(), RUN_METRICS))
    return fitted_tables([[line[0], *line[2:]] for line in lines])


def lines_about(rows: list[Summary]) -> list[str]:
    runs = {row.runs[0].method: row.runs for row in rows}
    return notes.table_notes(ResultTable("toy", "none", runs, "", len(rows[0].runs[0].scores), Prices(), RUN_METRICS))


def cells_of(table: str, method: str) -> dict[str, str]:
    """Head -> cell of a method's row, over all parts of a table."""
    found: dict[str, str] = {}
    for part in table.split("\n\n"):
        heads, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines()]
        (row,) = [row for row in rows if row[0] == method]
        found |= dict(zip(heads, row, strict=True))
    return found


def test_interval_is_students() -> None:
    # mean 3, s^2 = 2.5, standard error sqrt(2.5 / 5) = 0.70711, t(4, 0.975) = 2.77645
    low, high = interval([1, 2, 3, 4, 5]) or (0, 0)
    assert low == pytest.approx(3 - 1.96324, abs=1e-4)
    assert high == pytest.approx(3 + 1.96324, abs=1e-4)
    assert interval([2, 2, 2]) == (2, 2)


def test_one_seed_has_no_interval() -> None:
    assert interval([1]) is None
    row = summary([attempts(0, [0, 1, 1])])
    assert row.metrics["avg"]["by_t"] is None
    assert "[" not in table([row])


@pytest.mark.parametrize(("episodes", "expected"), [(1, 1), (2, 2), (3, 3), (10, 3), (30, 3), (39, 3), (40, 4), (100, 10)])
def test_the_end_is_a_tenth_at_least_three(episodes: int, expected: int) -> None:
    assert results.final_count(episodes) == expected


def test_summary_by_hand() -> None:
    row = summary([attempts(3, [0, 0, 1, 2], 2.0), attempts(5, [4, 4, 4, 4], 4.0)])
    assert (row.method, row.seeds, row.episodes) == ("jitrl", [3, 5], 4)
    assert row.avg == pytest.approx((0.75 + 4) / 2)
    assert row.last == pytest.approx((1 + 4) / 2)
    assert row.optimum == 3
    assert row.regret == pytest.approx((5 + 0) / 2)  # 2 + 2 + 1 + 0, and nothing
    assert row.last_of_optimum == pytest.approx((0.5 + 1) / 2)
    assert (row.steps, row.tokens, row.step_seconds) == (10, 7, 0.05)
    assert row.step_tokens == pytest.approx(7 / 40)
    assert (row.success, row.solved, row.refreshes, row.malformed, row.studied) == (None, None, None, None, 0)


def test_costs_by_hand() -> None:
    """Seed 0: 100 tokens for 10 + 30 steps; seed 1: 60 tokens for 20 steps, and the time of one of two episodes is unknown."""
    one = replace(
        attempts(0, [1, 0], 1.0), tokens=100, steps=(10, 30), seconds=(1.0, 3.0), refreshes=(2, 4), usage=Usage(malformed=1)
    )
    two = replace(
        attempts(1, [0, 0], 1.0), tokens=60, steps=(10, 10), seconds=(None, 2.0), refreshes=(), usage=Usage(malformed=2)
    )
    row = summary([one, two])
    assert row.tokens == 80
    assert row.step_tokens == pytest.approx((100 / 40 + 60 / 20) / 2)
    assert row.step_seconds == pytest.approx((4 / 40 + 2 / 10) / 2)
    assert (row.refreshes, row.malformed) == (3.0, 1.5)
    assert summary([replace(two, steps=(0, 0), seconds=())]).step_tokens is None
    cells = cells_of(table([row]), "jitrl")
    assert {
        "tokens/run": "80",
        "tokens/step": "3",
        "s/step": "0.15",
        "refreshes/episode": "3.0 (1 of 2)",
    }.items() <= cells.items()
    assert cells["unreadable decisions"] == "2"


def test_replies_that_could_not_be_used_are_counted_below_the_table() -> None:
    """Two seeds of 10 calls each; a table in which most replies were lost says so above it, too."""
    few = replace(attempts(0, [1, 0]), usage=Usage(10, unreadable=3, lost_steps=1, refused=2, cut_off=1))
    none = replace(attempts(1, [1, 0]), usage=Usage(10))
    most = replace(none, usage=Usage(10, unreadable=7, lost_steps=2))
    row = summary([few, none])
    assert lines_about([row]) == [
        "jitrl: 3 of 20 replies could not be used (2 refused, 1 cut off); at 1 step no try gave one that could, and nothing was done"
    ]
    assert notes.unusable_warnings({"jitrl": row.runs}) == []
    (warning,) = notes.unusable_warnings({"jitrl": [few, most]})
    assert warning.startswith("jitrl could not use 10 of 20 replies (2 refused, 1 cut off), so its scores say little about it")
    assert "--max-tokens" in warning
    assert lines_about([summary([none])]) == []


def test_what_a_bank_took_to_read_stands_apart(tmp_path: Path) -> None:
    """Nor does the time of an episode count in which it was read first."""
    row = {"score": 1.0, "best": 1.0, "steps": 4}
    rows = [{"id": f"r/{n}", "episode": n, **row, "studied": 5000 * (n == 0)} for n in range(2)]
    (tmp_path / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "seconds.jsonl").write_text('{"id": "r/0", "seconds": 99.0}\n{"id": "r/1", "seconds": 2.0}\n')
    result = {"optimum": 1.0, "is_walkthrough": False, "solved": None, "answer": 0, "tokens": 80, "episodes": 2}
    (tmp_path / "result.json").write_text(json.dumps(result))
    read = read_result("reasoning-bank", tmp_path)
    summed = summary([read, replace(read, usage=Usage(studied=1000))])
    assert (summed.studied, summed.step_tokens, summed.step_seconds) == (6000, 10, 0.5)
    assert [line for line in lines_about([summed]) if "bank" in line] == [
        "reasoning-bank: reading its bank before the first attempt took 3,000 tokens a seed, which the table leaves out"
    ]


def test_success_is_of_all_episodes_and_solved_of_the_answers() -> None:
    one = replace(attempts(0, [0, 2, 3, 1], 3.0), solved=2.0, answer=2)
    two = replace(attempts(1, [0, 0, 0, 2], 3.0), solved=2.0, answer=0)
    row = summary([one, two])
    assert (row.success, row.solved) == (pytest.approx((0.5 + 0.25) / 2), 0.5)


def test_columns_that_say_nothing_stay_out() -> None:
    quiet = summary([SeedResult("random", 0, 1.0, (0.0,), (0.0,), (10,))])
    heads = " ".join(cells_of(table([quiet]), "random"))
    for absent in ("success", "solved", "answer", "refreshes", "unreadable", "tokens", "s/step", "last / optimum"):
        assert absent not in heads
    busy = summary([replace(attempts(0, [0.0]), refreshes=(3,))])
    cells = cells_of(table([busy, quiet]), "random")
    assert (cells["refreshes/episode"], "unreadable decisions" in cells) == ("–", False)


def test_answer_beside_the_best_attempt() -> None:
    """Seed 0 chose its second attempt (3 of 5), seed 1 its first (2 of 2): 2.5 on average, where an oracle gets 3.5."""
    one = replace(attempts(0, [1, 3, 5], 5.0), answer=1, solved=5.0)
    two = replace(attempts(1, [2, 0], 5.0), answer=0, solved=2.0)
    row = summary([one, two])
    assert (row.answer, row.best, row.solved, row.episodes) == (2.5, 3.5, 0.5, 3)
    assert row.last == pytest.approx((3 + 1) / 2)  # runs may end at a budget of tokens: each has its own end
    assert "| solved |" in table([row])


def test_a_walkthrough_is_called_so_and_scoring_higher_is_no_negative_regret() -> None:
    """Scores 1, 4 and 2 against a walkthrough of 3: regrets 2, 0 and 1."""
    row = summary([replace(attempts(0, [1, 4, 2], 3.0), is_walkthrough=True)])
    assert row.regret == 3.0
    lines = table([row]).splitlines()
    assert lines[-1].split("|")[1].strip() == "walkthrough"
    assert "last / walkthrough" in lines[0]
    assert lines_about([row]) == [
        "walkthrough: what a known way earns within the horizon; a higher score may be possible",
        "jitrl: 1 episode scored higher than the walkthrough, a regret of 0",
    ]
    known = summary([attempts(0, [0.5, 1.000000002], 1.0)])  # six times 0.166666667
    assert known.regret == 0.5
    assert lines_about([known]) == []


def test_table_is_aligned_markdown() -> None:
    rows = [summary([attempts(s, [0.0, 5.0, 5.0 + s], 10, m) for s in (0, 1)]) for m in ("jitrl", "static")]
    lines = table(rows).split("\n\n")[0].splitlines()
    assert len({len(line) for line in lines}) == 1
    assert [line.split("|")[1].strip() for line in lines] == ["method", "-" * 9, "jitrl", "static", "optimum"]
    assert "last / optimum" in lines[0]
    ones = [summary([attempts(0, [1.0, 1.0])])]
    assert "last / optimum" not in table(ones)


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    lines = [["arm", "score"], ["learned", "0.5 [0.4, 0.6]"], ["empty", "–"]]
    assert markdown_table(lines).splitlines() == [
        "| arm     |          score |",
        "|---------|---------------:|",
        "| learned | 0.5 [0.4, 0.6] |",
        "| empty   |              – |",
    ]
    assert markdown_table([["r", "n"], ["10", "007"]], left=0).splitlines() == ["|  r |   n |", "|---:|----:|", "| 10 | 007 |"]


def test_a_wide_table_continues_in_another() -> None:
    rows = [
        summary(
            [
                replace(attempts(s, [s / 7, 1 / 3, s / 9]), answer=0, solved=1.0, tokens=123_456 + s, method=name)
                for s in range(3)
            ]
        )
        for name in ("training-free-grpo", "static")
    ]
    parts = table(rows).split("\n\n")
    assert len(parts) > 1
    for part in parts:
        assert len({len(line) for line in part.splitlines()}) == 1
        assert len(part.splitlines()[0]) <= 120
        assert [line.split("|")[1].strip() for line in part.splitlines()][2:] == ["training-free-grpo", "static", "optimum"]
    heads = [cell.strip() for part in parts for cell in part.splitlines()[0].split("|")[2:-1]]
    assert len(heads) == len(set(heads))
    assert {"mean score", "regret", "steps/episode", "steps, last 3 episodes", "tokens/run"} <= set(heads)


def test_what_a_judge_gave_stands_beside_the_score() -> None:
    """Judged 6, 8, 9 and, where one reward is missing, 5 and 7; scored 1, 1, 0."""
    one = replace(attempts(0, [1, 1, 0]), judged=(6.0, 8.0, 9.0))
    two = replace(attempts(1, [1, 1, 0]), judged=(5.0, None, 7.0))
    row = summary([one, two])
    assert row.judged == pytest.approx((23 / 3 + 6) / 2)
    unjudged = summary([attempts(0, [0, 0, 0], method="random"), attempts(1, [0, 0, 0], method="random")])
    lines = [line.split("|") for line in table([row, unjudged]).split("\n\n")[0].splitlines()]
    at = [head.strip() for head in lines[0]].index("judged return")
    assert [line[at].split()[0] for line in lines[2:]] == ["6.83", "–", "–"]
    assert "judged" not in table([unjudged])


def test_the_best_in_an_episode_is_shown_where_points_were_lost_again() -> None:
    kept, lost = attempts(0, [2.0, 2.0]), replace(attempts(0, [1.0, 2.0], method="static"), bests=(3.0, 2.0))
    rows = [summary([one]) for one in (kept, lost)]
    assert cells_of(table(rows), "static")["best in episode"] == "2.5"
    assert "best in episode" not in table(rows[:1])
