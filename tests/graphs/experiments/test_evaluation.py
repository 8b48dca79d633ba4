"""Statistics of learning runs with numbers worked out by hand, their tables, and the picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learngraph.graphs.experiments import evaluation, evaluation_tables, learning_curves
from learngraph.graphs.experiments.evaluation import Outcome
from learngraph.graphs.experiments.learning_curves import LearningStep
from learngraph.memory.errors import UserError
from learngraph.memory.records import Rollout, Task, Usage


def rollout(task: str, number: int, reward: float | None, error: str = "", **more: object) -> Rollout:
    return Rollout(f"r/test/{task}/{number}", Task(task, "do it"), number, reward, error=error, **more)  # type: ignore[arg-type]


def outcome(arm: str, seed: int, rewards: dict[str, Sequence[float | None]]) -> Outcome:
    return Outcome.of(arm, seed, [rollout(t, n, r) for t, runs in rewards.items() for n, r in enumerate(runs)])


def test_mean_at_k_by_hand() -> None:
    # problems: (1 + 0 + 1 + 0) / 4 = 0.5, (0.5 + missing + 1 + 0.5) / 4 = 0.5, all 0
    assert evaluation.mean_at_k([[1, 0, 1, 0], [0.5, None, 1, 0.5], [0, 0, 0, 0]]) == pytest.approx(1 / 3)


def test_problems_weigh_the_same_however_many_rollouts_they_have() -> None:
    assert evaluation.mean_at_k([[1.0], [0.0, 0.0, 0.0]]) == 0.5


def test_pass_at_k_is_unbiased_for_right_and_wrong() -> None:
    # n = 4, c = 1, k = 2: 1 - C(3, 2) / C(4, 2) = 1 - 3 / 6; and c = 0: 0; and c = 3: 1 - C(1, 2) / 6 = 1
    value, by = evaluation.pass_at_k([[0, 0, 1, 0], [0, 0, 0, None], [1, 1, 0, 1]], 2)
    assert (value, by) == (pytest.approx((0.5 + 0 + 1) / 3), "unbiased")


def test_pass_at_k_of_graded_rewards_is_the_best_of_the_first_k() -> None:
    value, by = evaluation.pass_at_k([[0.2, 0.4, 1.0], [0.0, None, 0.3]], 2)
    assert (value, by) == (pytest.approx((0.4 + 0.0) / 2), "max of the first k")


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=12), st.data())
def test_the_unbiased_estimator_is_the_mean_over_all_ways_to_choose(runs: list[float], data: st.DataObject) -> None:
    from itertools import combinations

    k = data.draw(st.integers(1, len(runs)))
    chosen = [max(some) for some in combinations(runs, k)]
    assert evaluation.pass_at_k([runs], k)[0] == pytest.approx(sum(chosen) / len(chosen))


@pytest.mark.parametrize(("k", "says"), [(0, "got 0"), (3, "the number of rollouts, 2; got 3")])
def test_k_is_within_what_was_played(k: int, says: str) -> None:
    with pytest.raises(UserError, match=says):
        evaluation.pass_at_k([[1, 0], [1, 1, 0]], k)


@pytest.mark.parametrize("rewards", [[], [[1.0], []]])
def test_nothing_to_evaluate_is_an_error_and_no_number(rewards: list[list[float | None]]) -> None:
    for measure in (evaluation.mean_at_k, lambda found: evaluation.pass_at_k(found, 1)):
        with pytest.raises(UserError, match="at least one problem and one rollout"):
            measure(rewards)


def test_an_outcome_is_by_problem_and_run_index_whatever_the_order() -> None:
    played = [
        rollout("b", 1, None, "ran out of time"),
        rollout("a", 0, 1.0, tool_calls=2, usage=Usage(3, 100, 10)),
        rollout("b", 0, 0.5, tool_calls=4, usage=Usage(1, 50, 0)),
        rollout("a", 1, 0.0, steps=5),
    ]
    found = Outcome.of("learned", 3, played, lessons=7)
    assert found.numbers == (0, 1)
    assert found == Outcome.of("learned", 3, played[::-1], lessons=7)
    assert found.rewards == {"a": (1.0, 0.0), "b": (0.5, None)}
    assert (found.tool_calls, found.actions, found.usage) == (6, 5, Usage(4, 150, 10))
    assert (found.lessons, found.k, found.rollouts) == (7, 2, 4)
    assert found.failures == (("r/test/b/1", "ran out of time"),)


def test_rollouts_that_would_spoil_a_mean_are_refused() -> None:
    with pytest.raises(UserError, match="rollout 0 of a is there twice"):
        Outcome.of("learned", 0, [rollout("a", 0, 1.0), rollout("a", 0, 1.0)])
    with pytest.raises(UserError, match="different run indices"):
        Outcome.of("learned", 0, [rollout("a", 0, 1.0), rollout("b", 0, 1.0), rollout("b", 1, 1.0)])


def test_differences_are_paired_by_problem() -> None:
    """Seed 0: +0.5 and -0.25; seed 1: +1 and 0. So 0.125 and 0.5 per seed, 0.3125 over both."""
    ours = [outcome("learned", 0, {"a": [1, 1], "b": [0.5, 0]}), outcome("learned", 1, {"c": [1, 1], "d": [0, None]})]
    theirs = [outcome("empty", 0, {"a": [1, 0], "b": [0.5, 0.5]}), outcome("empty", 1, {"c": [0, 0], "d": [0, 0]})]
    found = evaluation.difference(ours, theirs)
    assert found.mean == pytest.approx(0.3125)
    assert (found.wins, found.losses, found.ties) == (2, 1, 1)
    # Student's t with one degree of freedom: 12.706; standard error |0.5 - 0.125| / 2 = 0.1875
    low, high = found.over_seeds or (0, 0)
    assert (low, high) == (pytest.approx(0.3125 - 12.706 * 0.1875, abs=1e-3), pytest.approx(0.3125 + 12.706 * 0.1875, abs=1e-3))
    inside = found.over_problems
    assert inside is not None
    assert -0.25 <= inside[0] < 0.3125 < inside[1] <= 1
    assert evaluation.difference(ours, theirs[::-1]) == found  # by seed, in any order
    assert evaluation.difference(ours[:1], theirs[:1]).over_seeds is None
    told = evaluation_tables.lead_notes({"learned": ours, "empty": theirs, "itself": ours})
    assert told == [
        f"learned is not shown to differ from empty: +0.312 [{low:+.3f}, {high:+.3f}]",
        "learned is not shown to differ from itself: +0.000 [+0.000, +0.000]",
    ]
    sure = [outcome("sure", 0, {"a": [1, 1], "b": [1, 1]}), outcome("sure", 1, {"c": [0.5, 0.5], "d": [0.52, 0.52]})]
    (line,) = evaluation_tables.lead_notes({"sure": sure, "empty": theirs})
    assert line.startswith("sure is ahead of empty: +0.")
    (line,) = evaluation_tables.lead_notes({"empty": theirs, "sure": sure})
    assert line.startswith("empty is behind sure: -0.")


def test_a_problem_that_all_seeds_played_is_one_problem() -> None:
    """Five seeds on the same ten problems know no more of other problems than one does."""
    ours, theirs = ({f"p{n}": [reward(n)] for n in range(10)} for reward in (lambda n: n % 2, lambda n: 0))
    several = [
        evaluation.difference(*([outcome(a, s, r) for s in range(n)] for a, r in (("a", ours), ("b", theirs)))) for n in (1, 5)
    ]
    assert several[0].over_problems == several[1].over_problems
    assert [(found.wins, found.losses, found.ties) for found in several] == [(5, 0, 5)] * 2
    one, five = (evaluation.arm_summaries({"a": [outcome("a", s, ours) for s in range(n)]}, "toy", "pocket")[0] for n in (1, 5))
    assert one.over_problems == five.over_problems


def test_runs_of_other_indices_are_no_pairs() -> None:
    ours = Outcome.of("a", 0, [rollout("t", n, 1.0) for n in (0, 1)])
    theirs = Outcome.of("b", 0, [rollout("t", n, 1.0) for n in (5, 9)])
    with pytest.raises(UserError, match="the numbers of their rollouts"):
        evaluation.difference([ours], [theirs])


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        (outcome("empty", 0, {"a": [1], "c": [0]}), "they differ in \\['b', 'c'\\]"),
        (outcome("empty", 0, {"a": [1], "b": [0, 0]} | {"a": [1, 1]}), "the numbers of their rollouts"),
        (outcome("empty", 1, {"a": [1], "b": [0]}), "the same seeds; learned has \\[0\\], empty has \\[1\\]"),
    ],
)
def test_arms_that_did_not_play_the_same_are_not_compared(theirs: Outcome, says: str) -> None:
    with pytest.raises(UserError, match=says):
        evaluation.difference([outcome("learned", 0, {"a": [1], "b": [0]})], [theirs])


def arms() -> dict[str, list[Outcome]]:
    played = {
        "learned": [{"a": [1.0, 1.0], "b": [1.0, None]}, {"c": [1.0, 0.0], "d": [1.0, 1.0]}],
        "empty": [{"a": [0.0, 1.0], "b": [0.0, 0.0]}, {"c": [0.0, 0.0], "d": [1.0, 1.0]}],
    }
    return {arm: [outcome(arm, seed, rewards) for seed, rewards in enumerate(seeds)] for arm, seeds in played.items()}


def test_a_row_per_arm() -> None:
    learned, empty = evaluation.arm_summaries(arms(), "toy", "pocket", "empty")
    assert (learned.arm, learned.seeds, learned.problems, learned.k, learned.rollouts) == ("learned", [0, 1], 2, 2, 8)
    assert (learned.mean_at_k, empty.mean_at_k) == (0.75, pytest.approx((0.25 + 0.5) / 2))
    assert (learned.pass_at_k, learned.pass_by) == (1.0, "unbiased")
    assert learned.failures == 1
    assert learned.difference is not None
    assert learned.difference.mean == pytest.approx(0.375)
    assert empty.difference is None
    assert json.loads(json.dumps(learned.as_dict()))["difference"]["wins"] == 3
    assert evaluation.arm_summaries(arms(), "toy", "pocket")[0].difference is None  # nobody to be measured against


def test_table_is_aligned_markdown_without_columns_that_say_nothing() -> None:
    text = evaluation_tables.table(evaluation.arm_summaries(arms(), "toy", "pocket", "empty"))
    lines = text.splitlines()
    assert len({len(line) for line in lines}) == 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["arm", "Mean@2", "Pass@2", "delta", "wins / losses / ties", "lessons", "failures"]
    assert cells[2][0] == "learned"
    assert cells[2][3].startswith("+0.375 [")
    assert cells[2][4:] == ["3 / 0 / 1", "0", "1 of 8"]
    assert cells[3][3:] == ["–", "–", "0", "0"]


def test_tool_calls_and_actions_are_told_apart() -> None:
    played = {
        "learned": [rollout("a", 0, 1.0, tool_calls=4, steps=1), rollout("b", 0, 1.0, tool_calls=1, steps=1)],
        "empty": [rollout("a", 0, 0.0, steps=1), rollout("b", 0, 0.0, steps=1)],
    }
    rows = evaluation.arm_summaries({arm: [Outcome.of(arm, 0, found)] for arm, found in played.items()}, "math", "api")
    assert [(row.tool_calls, row.actions) for row in rows] == [(2.5, 1.0), (0.0, 1.0)]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in evaluation_tables.table(rows).splitlines()]
    assert "actions/rollout" not in lines[0]  # a written answer each
    column = lines[0].index("tool calls/rollout")
    assert [line[column] for line in lines[2:]] == ["2.5", "0.0"]


def test_a_single_seed_has_intervals_over_problems_and_says_so() -> None:
    rows = evaluation.arm_summaries({arm: seeds[:1] for arm, seeds in arms().items()}, "toy", "pocket", "empty")
    assert rows[0].over_seeds is None
    assert rows[0].over_problems is not None
    assert "over 2 problems (bootstrap" in evaluation_tables.interval_note(rows)
    assert "over 2 seeds (Student's t; its ends may lie below 0 or above 1)" in evaluation_tables.interval_note(
        evaluation.arm_summaries(arms(), "toy", "pocket", "empty")
    )
    assert "[" in evaluation_tables.table(rows).splitlines()[2]


def test_graded_rewards_are_not_called_pass() -> None:
    rows = evaluation.arm_summaries({"learned": [outcome("learned", 0, {"a": [0.5, 0.7]})]}, "toy", "pocket")
    assert "best of 2" in evaluation_tables.table(rows)
    assert (rows[0].pass_at_k, rows[0].pass_by) == (0.7, "max of the first k")


STEPS = [
    [LearningStep(0, 0, 0.2, 0.4, 3, True, 5), LearningStep(0, 1, 0.6, 0.4, 3, False, 4)],
    [LearningStep(1, 0, 0.4, 0.8, 5, True, 5)],
]


def test_steps_are_means_of_the_seeds_that_came_so_far() -> None:
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in evaluation_tables.steps_table(STEPS).splitlines()
    ]
    assert lines[0] == [
        "step",
        "seeds",
        "train",
        "held out",
        "lessons",
        "accepted",
        "groups compared",
    ]  # no test: none measured
    assert lines[2][:2] == ["1", "2"]
    assert lines[2][2].startswith("0.3 [")
    assert lines[2][3].startswith("0.6 [")
    assert lines[2][4:] == ["4", "2 of 2", "5"]
    assert lines[3] == ["2", "1", "0.6", "0.4", "3", "0 of 1", "4"]


def test_the_ledger_adds_up() -> None:
    text = evaluation_tables.usage_table(
        {"rollout": Usage(10, 1000, 100), "contrast": Usage(2, 300, 40)}, {"rollout": 0.5, "contrast": 0.25}
    )
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert lines[0] == ["stage", "calls", "tokens read", "tokens written", "dollars"]
    assert lines[2] == ["rollout", "10", "1,000", "100", "0.50"]
    assert lines[-1] == ["all", "12", "1,300", "140", "0.75"]
    assert "dollars" not in evaluation_tables.usage_table({"rollout": Usage(1, 2, 3)}, {})


def test_a_seed_that_stops_keeps_its_library() -> None:
    assert learning_curves._carry_forward(STEPS[1], 3, "held_out") == [0.8, 0.8, 0.8, 0.8]
    assert learning_curves._carry_forward(STEPS[0], 1, "held_out") == [0.4, 0.4]
    assert learning_curves._carry_forward([], 1, "held_out") == [None, None]


def test_curves_as_png_and_svg(tmp_path: Path) -> None:
    measured = [
        [LearningStep(s.seed, s.step, s.train, s.held_out, s.lessons, s.accepted, s.groups, 0.5) for s in x] for x in STEPS
    ]
    for name, seeds, start in (("all", measured, [0.1, 0.2]), ("one", STEPS[:1], [None]), ("none", [[]], [None])):
        paths = [tmp_path / f"{name}.png", tmp_path / f"{name}.svg"]
        learning_curves.draw_library_curves(seeds, start, [0.9] * len(seeds), "toy, pocket", paths)
        assert paths[0].read_bytes().startswith(b"\x89PNG")
        text = paths[1].read_text()
        assert "</svg>" in text
