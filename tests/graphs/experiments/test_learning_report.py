"""The report of runs that learn before they play, with numbers worked out by hand, and its picture."""

from pathlib import Path
from typing import Any

import pytest

from learngraph.graphs.experiments.measures import METRICS
from learngraph.graphs.experiments.results import SeedResult
from learngraph.graphs.experiments.training_free import report
from learngraph.memory.records import Usage
from learngraph.nodes.cached_model import Prices


def played(seed: int, **rewards: list[float]) -> SeedResult:
    scores = tuple(reward for runs in rewards.values() for reward in runs)
    tasks = tuple(task for task, runs in rewards.items() for _ in runs)
    return SeedResult("grpo", seed, 1.0, scores, scores, (1,) * len(scores), tasks=tasks, tool_calls=3, lessons=2)


def step(number: int, train: float, held_out: float, lessons: int, accepted: bool, compared: int) -> dict[str, Any]:
    row = {"step": number, "train": train, "held_out": held_out, "lessons": lessons, "accepted": accepted, "passed": None}
    return row | {
        "truths": {"a": [1.0, 0.0], "b": [0.0, 0.0]},
        "train_calls": 2.5,
        "test_calls": None,
        "compared": compared,
        "before": "0",
        "library": str(number + 1),
        "test": None,
        "lost": 1,
        "problems": ["a", "b"],
    }


STEPS = [[step(0, 0.2, 0.4, 3, True, 5), step(1, 0.6, 0.4, 3, False, 4)], [step(0, 0.4, 0.8, 5, True, 5)]]


def test_pass_at_k_is_the_mean_over_problems_of_the_best_attempt() -> None:
    run = played(0, a=[0, 1, 0], b=[0.2, 0.4, 0], c=[0, 0, 0])
    assert METRICS["pass"].of(run, Prices()) == pytest.approx((1 + 0.4 + 0) / 3)
    assert METRICS["avg"].of(run, Prices()) == pytest.approx(1.6 / 9)
    assert METRICS["tool-calls"].of(run, Prices()) == pytest.approx(3 / 9)
    assert METRICS["pass"].of(SeedResult("icrl", 0, 1.0, (1.0,), (1.0,), (1,)), Prices()) is None


def test_arms_are_compared_problem_by_problem_and_a_problem_of_several_seeds_counts_once() -> None:
    ours = [played(0, a=[1, 1], b=[0, 1], c=[0, 0]), played(1, a=[0, 0], d=[1, 1])]
    theirs = [played(0, a=[0, 0], b=[0, 0], c=[1, 0]), played(1, a=[1, 1], d=[0, 0])]
    head, mine, other = report.problem_table({"grpo": ours, "empty": theirs}, "grpo")
    assert head == ["arm", "problems", "mean score", "grpo minus", "won / lost / tied"]
    assert (mine[:2], mine[3:]) == (["grpo", "4"], ["–", "–"])
    assert mine[2].startswith("0.5 [")  # (.5 + .5 + 0 + 1) / 4
    assert other[3].startswith("+0.25 [")  # 0, .5, -.5, 1
    assert other[4] == "2 / 1 / 1"


def test_steps_are_means_of_the_seeds_that_came_so_far() -> None:
    head, first, second = report.steps_table(STEPS)
    names = ["train, Mean@2", "tool calls", "held out"]  # no test: none measured
    assert head == ["step", "seeds", *names, "lessons", "accepted", "groups compared"]
    assert first[:2] == ["1", "2"]
    assert [cell.split(" [")[0] for cell in first[2:5]] == ["0.3", "2.5", "0.6"]
    assert first[5:] == ["4", "2 of 2", "5"]
    assert second == ["2", "1", "0.6", "2.5", "0.4", "3", "0 of 1", "4"]
    assert report.lost_comparison_notes({"grpo": STEPS, "none": [[]]}) == [
        "grpo: 3 of 6 comparisons were lost to failed rollouts or replies that could not be used"
    ]


def test_the_ledger_adds_up() -> None:
    stages = {"rollout": Usage(10, 1000, 100), "contrast": Usage(2, 300, 40)}
    text = report.usage_table(stages, {"rollout": 0.5, "contrast": 0.25})
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert lines[0] == ["stage", "calls", "tokens read", "tokens written", "dollars"]
    assert lines[2] == ["rollout", "10", "1,000", "100", "0.50"]
    assert lines[-1] == ["all", "12", "1,300", "140", "0.75"]
    assert "dollars" not in report.usage_table(stages, {})


@pytest.mark.slow
def test_curves_as_png_and_svg_and_a_seed_that_stops_keeps_its_library(tmp_path: Path) -> None:
    assert report._carry_forward(STEPS[1], 3, "held_out") == [0.8, 0.8, 0.8, 0.8]
    assert report._carry_forward([], 1, "held_out") == [None, None]
    measured = [[{**row, "test": 0.5} for row in seed] for seed in STEPS]
    for name, seeds, start in (("all", measured, [0.1, 0.2]), ("one", STEPS[:1], [None]), ("none", [[]], [None])):
        paths = [tmp_path / f"{name}.png", tmp_path / f"{name}.svg"]
        report.draw_library_curves(seeds, start, [0.9] * len(seeds), "toy, pocket", paths)
        assert paths[0].read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in paths[1].read_text()
