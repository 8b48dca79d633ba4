"""The table of a run: which columns and notes it has, and that it is read from a run's files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from learngraph.graphs.arms import make_arm
from learngraph.graphs.experiments import notes, results
from learngraph.graphs.experiments.folder import Job
from learngraph.graphs.experiments.measures import RUN_METRICS
from learngraph.graphs.experiments.options import RunOptions
from learngraph.graphs.experiments.results import SeedResult
from learngraph.graphs.experiments.tables import ResultTable, fitted_tables, score_table
from learngraph.memory.display import markdown_table
from learngraph.memory.records import Usage
from learngraph.nodes.cached_model import Prices


def attempts(seed: int, scores: list[float], optimum: float = 1.0, method: str = "jitrl") -> SeedResult:
    n = len(scores)
    return SeedResult(method, seed, optimum, tuple(scores), tuple(scores), (10,) * n, tokens=7, seconds=(0.5,) * n)


def made_of(*methods: list[SeedResult]) -> ResultTable:
    """The table of some methods, each by its runs."""
    episodes = len(methods[0][0].scores)
    return ResultTable("toy", "none", {runs[0].method: runs for runs in methods}, "", episodes, Prices(), RUN_METRICS)


def table(*methods: list[SeedResult]) -> str:
    return fitted_tables([[line[0], *line[2:]] for line in score_table(made_of(*methods))])


def cells_of(table: str, method: str) -> dict[str, str]:
    """Head -> cell of a method's row, over all parts of a table."""
    found: dict[str, str] = {}
    for part in table.split("\n\n"):
        heads, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines()]
        (row,) = [row for row in rows if row[0] == method]
        found |= dict(zip(heads, row, strict=True))
    return found


@pytest.mark.parametrize(("episodes", "expected"), [(1, 1), (2, 2), (3, 3), (10, 3), (30, 3), (39, 3), (40, 4), (100, 10)])
def test_the_end_is_a_tenth_at_least_three(episodes: int, expected: int) -> None:
    assert results.final_count(episodes) == expected


def test_replies_that_could_not_be_used_are_counted_below_the_table() -> None:
    """Two seeds of 10 calls each; a table in which most replies were lost says so above it, too."""
    few = replace(attempts(0, [1, 0]), usage=Usage(10, unreadable=3, lost_steps=1, refused=2, cut_off=1))
    none = replace(attempts(1, [1, 0]), usage=Usage(10))
    most = replace(none, usage=Usage(10, unreadable=7, lost_steps=2))
    assert notes.table_notes(made_of([few, none])) == [
        "jitrl: 3 of 20 replies could not be used (2 refused, 1 cut off); at 1 step no try gave one that could, and nothing was done"
    ]
    assert notes.unusable_warnings({"jitrl": [few, none]}) == []
    (warning,) = notes.unusable_warnings({"jitrl": [few, most]})
    assert warning.startswith("jitrl could not use 10 of 20 replies (2 refused, 1 cut off), so its scores say little about it")
    assert "--max-tokens" in warning
    assert notes.table_notes(made_of([none])) == []


def test_what_a_bank_took_to_read_stands_apart(tmp_path: Path) -> None:
    """Nor does the time of an episode count in which it was read first."""
    row = {"score": 1.0, "best": 1.0, "steps": 4}
    rows = [{"id": f"r/{n}", "episode": n, **row, "studied": 5000 * (n == 0)} for n in range(2)]
    (tmp_path / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "seconds.jsonl").write_text('{"id": "r/0", "seconds": 99.0}\n{"id": "r/1", "seconds": 2.0}\n')
    result = {"optimum": 1.0, "is_walkthrough": False, "solved": None, "answer": 0, "tokens": 80, "episodes": 2}
    (tmp_path / "result.json").write_text(json.dumps(result))
    job = Job(make_arm("reasoning-bank"), RunOptions(episodes=2), 0, tmp_path, "r", "r", "", (), "")
    read = results.read_result(job)
    assert (read.usage.studied, read.tokens, read.seconds) == (5000, 80, (None, 2.0))
    told = notes.table_notes(made_of([read, replace(read, usage=Usage(studied=1000))]))
    assert [line for line in told if "bank" in line] == [
        "reasoning-bank: reading its bank before the first attempt took 3,000 tokens a seed, which the table leaves out"
    ]


def test_columns_that_say_nothing_stay_out() -> None:
    quiet = SeedResult("random", 0, 1.0, (0.0,), (0.0,), (10,))
    heads = " ".join(cells_of(table([quiet]), "random"))
    for absent in ("success", "solved", "answer", "refreshes", "unreadable", "tokens", "s/step", "last / optimum", "judged"):
        assert absent not in heads
    busy, other = replace(attempts(0, [0.0], optimum=10), refreshes=(3,)), attempts(1, [0.0], optimum=10)
    cells = cells_of(table([busy, other], [replace(quiet, optimum=10)]), "jitrl")
    assert cells["refreshes/episode"] == "3.0 (1 of 2)"
    assert "last / optimum" in cells
    assert "unreadable decisions" not in cells


def test_a_walkthrough_is_called_so_and_scoring_higher_is_no_negative_regret() -> None:
    """Scores 1, 4 and 2 against a walkthrough of 3: regrets 2, 0 and 1."""
    runs = [replace(attempts(0, [1, 4, 2], 3.0), is_walkthrough=True)]
    cells = cells_of(table(runs), "walkthrough")
    assert "last / walkthrough" in cells
    assert cells_of(table(runs), "jitrl")["regret"] == "3"
    assert notes.table_notes(made_of(runs)) == [
        "walkthrough: what a known way earns within the horizon; a higher score may be possible",
        "jitrl: 1 episode scored higher than the walkthrough, a regret of 0",
    ]
    known = [attempts(0, [0.5, 1.000000002], 1.0)]  # six times 0.166666667
    assert cells_of(table(known), "jitrl")["regret"] == "0.5"
    assert notes.table_notes(made_of(known)) == []


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
    def runs(name: str) -> list[SeedResult]:
        found = [attempts(s, [s / 7, 1 / 3, s / 9], method=name) for s in range(3)]
        return [replace(one, answer=0, solved=1.0, tokens=123_456 + one.seed) for one in found]

    parts = table(runs("training-free-grpo"), runs("static")).split("\n\n")
    assert len(parts) > 1
    for part in parts:
        assert len({len(line) for line in part.splitlines()}) == 1
        assert len(part.splitlines()[0]) <= 120
        assert [line.split("|")[1].strip() for line in part.splitlines()][2:] == ["training-free-grpo", "static", "optimum"]
    heads = [cell.strip() for part in parts for cell in part.splitlines()[0].split("|")[2:-1]]
    assert len(heads) == len(set(heads))
    assert {"mean score", "regret", "steps/episode", "steps, last 3 episodes", "tokens/run"} <= set(heads)


def test_the_best_in_an_episode_is_shown_where_points_were_lost_again() -> None:
    kept, lost = [attempts(0, [2.0, 2.0])], [replace(attempts(0, [1.0, 2.0], method="static"), bests=(3.0, 2.0))]
    assert cells_of(table(kept, lost), "static")["best in episode"] == "2.5"
    assert "best in episode" not in table(kept)
