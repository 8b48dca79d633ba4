"""The arithmetic of a deployment: queueing formulas against known values and a simulation, and the page that it writes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from learngraph.graphs.experiments import deployment
from learngraph.graphs.experiments.deployment import Workload, erlang_c, mean_wait, page, servers_for, simulate_waits
from learngraph.memory.errors import UserError

ROOT = Path(__file__).parents[3]


def test_erlangs_formula_at_values_worked_out_by_hand() -> None:
    assert erlang_c(1, 0.5) == pytest.approx(0.5)  # one server: the probability of waiting is the load
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)  # a = 1, c = 2: B = 1/5, C = (1/5) / (1 - 1/2 * 4/5)
    assert erlang_c(3, 2.0) == pytest.approx(4 / 9)


def test_the_wait_at_one_server_is_pollaczeks_and_khinchines() -> None:
    assert mean_wait(1, 0.5, 1.0, 1.0) == pytest.approx(1.0)  # M/M/1: rho / (mu - lambda)
    assert mean_wait(1, 0.5, 1.0, 0.0) == pytest.approx(0.5)  # M/D/1: half of it
    assert mean_wait(2, 1.0, 1.0, 1.0) == pytest.approx(1 / 3)
    assert mean_wait(2, 2.0, 1.0, 1.0) == math.inf


def test_the_least_number_of_servers_keeps_the_wait() -> None:
    chosen = servers_for(2.0, 1.0, 0.5, 0.1)
    assert mean_wait(chosen, 2.0, 1.0, 0.5) <= 0.1 < mean_wait(chosen - 1, 2.0, 1.0, 0.5)


@pytest.mark.parametrize(("servers", "load", "spread"), [(1, 0.7, 1.0), (1, 0.8, 0.5), (4, 0.85, 0.5), (14, 0.95, 0.5)])
def test_the_simulation_agrees_with_the_formula_under_load(servers: int, load: float, spread: float) -> None:
    waits = simulate_waits(servers, load * servers, 1.0, spread, 200_000, seed=1)
    assert sum(waits) / len(waits) == pytest.approx(mean_wait(servers, load * servers, 1.0, spread), rel=0.12)


@pytest.mark.slow
def test_the_page_in_the_repository_is_what_the_command_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = ROOT / "graphs/serving/DEPLOYMENT.md"
    copy = tmp_path / "page.md"
    copy.write_text(stored.read_text())
    assert deployment.main(["--write", str(copy)]) == 0
    assert copy.read_text() == stored.read_text()
    assert page(Workload()) in capsys.readouterr().out
    (tmp_path / "other.md").write_text("no marks")
    with pytest.raises(UserError, match="has no lines"):
        deployment.main(["--write", str(tmp_path / "other.md")])


def test_numbers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UserError, match="transitions is above 0, got -1"):
        Workload(transitions=-1)
    with pytest.raises(UserError, match="core_load"):
        Workload(core_load=1.0)
