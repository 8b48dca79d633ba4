"""Checkpoint x split matrices, worked out by hand."""

from __future__ import annotations

import pytest

from learngraph.graphs.experiments.continual import Trial, matrix_table, measures, table
from learngraph.memory.errors import UserError

P = ((0.2, 0.3, 0.4), (0.6, 0.5, 0.5), (0.7, 0.8, 0.6), (0.4, 0.9, 0.8))
"""Untrained, and after splits 1, 2 and 3."""


def test_the_measures_of_a_matrix_by_hand() -> None:
    assert measures(P) == pytest.approx(
        {
            "forward": (0.5 + 0.5 + 0.6) / 3,  # P[1][2], P[1][3], P[2][3]
            "gain": (0.5 - 0.3 + 0.5 - 0.4 + 0.6 - 0.4) / 3,
            "forgetting": (0.7 - 0.4 + 0.8 - 0.9) / 2,  # max(P[1][1], P[2][1]) - P[3][1]; P[2][2] - P[3][2]
            "BWT": (0.4 - 0.6 + 0.9 - 0.8) / 2,
            "final": (0.4 + 0.9 + 0.8) / 3,
        }
    )
    still = measures(((0.2, 0.3, 0.4),) * 4)
    assert [still[name] for name in ("gain", "forgetting", "BWT")] == pytest.approx([0, 0, 0])
    single = measures(((0.1,), (0.5,)))
    assert list(single.values()) == [None] * 4 + [0.5], "neither future nor past"


@pytest.mark.parametrize("wrong", [(), ((0.1,),), ((0.1, 0.2), (0.3, 0.4)), ((0.1,), (0.2, 0.3))])
def test_other_shapes_are_refused(wrong: tuple[tuple[float, ...], ...]) -> None:
    with pytest.raises(UserError, match=r"K \+ 1 rows of K numbers"):
        Trial("sdpo", 0, 0, wrong)


def test_the_table_has_intervals_over_trials() -> None:
    better = tuple(tuple(min(1.0, p + 0.1) for p in row) for row in P)
    arms = {
        "sdpo": [Trial("sdpo", 0, 0, P, (0.0, 1.0), 8, 40), Trial("sdpo", 0, 1, better, (1.0, 1.0), 9, 44)],
        "none": [Trial("none", 0, 0, P)],
    }
    shown = table(arms).splitlines()
    assert [cell.strip() for cell in shown[0].split("|")[1:8]] == [
        "arm",
        "trials",
        "forward",
        "gain",
        "forgetting",
        "BWT",
        "final",
    ]
    row = [cell.strip() for cell in shown[2].split("|")[1:-1]]
    assert row[1] == "2"
    assert row[6].startswith("0.75 [")  # (0.7 + 0.8) / 2
    assert row[7] == "0"  # over the trial of `none` with the same order and seed: the other one has no partner
    assert row[9:11] == ["9", "42"]  # the latest first update, the mean number of them
    assert shown[3].split("|")[10].strip() == "–"
    assert matrix_table(arms["sdpo"]).splitlines()[2].split("|")[2].strip() == "0.25"
