"""Checkpoint x split matrices, worked out by hand."""

import pytest

from learngraph.graphs.experiments.continual import Trial, dynamics_table, matrix_table, measures, phase_table, table
from learngraph.memory.errors import UserError

P = ((0.2, 0.3, 0.4), (0.6, 0.5, 0.5), (0.7, 0.8, 0.6), (0.4, 0.9, 0.8))
"""Untrained, and after splits 1, 2 and 3."""
STEPS = (
    {"scenario": 1.0, "loss": 0.5, "entropy": 2.0, "ess": 0.5, "age": 1.0},
    {"scenario": 3.0, "loss": 0.1, "entropy": 1.0, "ess": 1.0, "age": 4.0},
)


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
        "sdpo": [Trial("sdpo", 0, 0, P, (0.0, 1.0), 8, STEPS * 20), Trial("sdpo", 0, 1, better, (1.0, 1.0), 9, STEPS * 22)],
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


def test_the_stream_by_split_and_the_seconds_of_its_phases() -> None:
    """Three splits of one scenario each: steps after scenarios 1 and 3, in each of two trials; one of them twice as fast."""
    one = Trial("sdpo", 0, 0, P, (0.0, 1.0, 1.0), 1, STEPS, (4, 6, 8), {"generate": 6.0, "step": 3.0})
    two = Trial("sdpo", 0, 1, P, (1.0, 1.0, 1.0), 1, STEPS[:1], (2, 4, 6), {"generate": 3.0})
    rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in dynamics_table([one, two]).splitlines()[2:]]
    assert rows == [
        ["0.50", "1.0", "0.50", "2.00", "1.00", "3"],
        ["1.00", "0.0", "–", "–", "–", "5"],
        ["1.00", "0.5", "0.10", "1.00", "4.00", "7"],
    ]
    shown = phase_table({"sdpo": [one, two]}).splitlines()
    assert [cell.strip() for cell in shown[0].split("|")[2:-1]] == ["generate", "step"]
    assert [cell.strip() for cell in shown[2].split("|")[2:-1]] == ["1.500", "0.500"]  # (2 + 1) / 2, (1 + 0) / 2
