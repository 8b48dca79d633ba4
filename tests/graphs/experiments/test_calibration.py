"""r against r*: the statistics on numbers worked out by hand, and the command on runs."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_process import play_in_process
from scipy.stats import spearmanr

from learngraph.graphs.cli.main import main
from learngraph.graphs.experiments import calibration
from learngraph.graphs.experiments.calibration import RatedAttempt, calibrate, reward_bins
from learngraph.graphs.experiments.calibration_statistics import auroc, isotonic, jackknife_estimate, spearman
from learngraph.memory.errors import UserError
from learngraph.nodes.evaluate.judge import NO_REWARDS_REASON
from learngraph.nodes.evaluate.statistics import interval, mean

few = st.integers(0, 4).map(float)
pairs = st.lists(st.tuples(few, few), min_size=2, max_size=30)


def rated(*seeds: Sequence[tuple[float | None, float]]) -> list[RatedAttempt]:
    """For each seed its (r, r*)."""
    return [RatedAttempt(seed, r, score) for seed, attempts in enumerate(seeds) for r, score in attempts]


# Statistics


def test_spearman_by_hand() -> None:
    assert spearman([1, 2, 3, 4], [10, 30, 20, 40]) == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert spearman([1, 2, 3], [1, 4, 9]) == pytest.approx(1)
    assert spearman([3, 2, 1], [1, 4, 9]) == pytest.approx(-1)
    assert spearman([1, 1, 1], [1, 4, 9]) is None
    assert spearman([1, 4, 9], [0, 0, 0]) is None


@given(pairs)
def test_spearman_is_scipys_with_ties_too(pairs: list[tuple[float, float]]) -> None:
    x, y = zip(*pairs, strict=True)
    if len(set(x)) > 1 and len(set(y)) > 1:
        assert spearman(x, y) == pytest.approx(spearmanr(x, y).statistic)
    else:
        assert spearman(x, y) is None


@given(st.lists(st.tuples(few, st.booleans()), max_size=30))
def test_auroc_is_the_share_of_pairs_in_the_right_order(pairs: list[tuple[float, bool]]) -> None:
    good = [r for r, one in pairs if one]
    others = [r for r, one in pairs if not one]
    found = auroc([r for r, _ in pairs], [one for _, one in pairs])
    if not good or not others:
        assert found is None
    else:
        assert found == pytest.approx(mean([(a > b) + (a == b) / 2 for a in good for b in others]))


def test_isotonic_by_hand() -> None:
    """r = 2 and r = 3 are in the wrong order and are pooled: (3 + 3 + 1) / 3, since two attempts have r = 2."""
    found = isotonic([1, 3, 2, 2, 4], [1, 1, 3, 3, 4])
    assert found.rewards == (1, 2, 3, 4)
    assert found.scores == pytest.approx((1, 7 / 3, 7 / 3, 4))
    assert [found(r) for r in (-5, 1, 1.5, 3.5, 9)] == pytest.approx([1, 1, (1 + 7 / 3) / 2, (7 / 3 + 4) / 2, 4])


@given(pairs)
def test_isotonic_never_falls_and_keeps_the_mean(pairs: list[tuple[float, float]]) -> None:
    rewards, scores = zip(*pairs, strict=True)
    found = isotonic(rewards, scores)
    assert all(a <= b + 1e-9 for a, b in pairwise(found.scores))
    assert mean([found(r) for r in rewards]) == pytest.approx(mean(scores))


def test_few_values_of_r_have_a_bin_each() -> None:
    bins = reward_bins([3, 0, 3, 10], [1, 0, 0, 1], lambda r: r / 10)
    assert [(b.low, b.high, b.count, b.score) for b in bins] == [(0, 0, 1, 0), (3, 3, 2, 0.5), (10, 10, 1, 1)]
    assert [b.mapped for b in bins] == pytest.approx([0, 0.3, 1])


def test_of_many_values_bins_have_about_the_same_size() -> None:
    bins = reward_bins(range(80), range(80), float)
    assert [b.count for b in bins] == [10] * 8
    assert [(b.low, b.high, b.score, b.mapped) for b in bins[:2]] == [(0, 9, 4.5, 4.5), (10, 19, 14.5, 14.5)]


@given(st.lists(st.tuples(st.integers(0, 40).map(float), few), min_size=1, max_size=120))
def test_bins_part_the_attempts_and_never_equal_r(pairs: list[tuple[float, float]]) -> None:
    rewards, scores = zip(*pairs, strict=True)
    bins = reward_bins(rewards, scores, lambda r: r)
    assert 1 <= len(bins) <= calibration.MAX_BINS
    assert sum(b.count for b in bins) == len(pairs)
    assert all(a.high < b.low for a, b in pairwise(bins))
    assert math.fsum(b.score * b.count for b in bins) == pytest.approx(sum(scores))


@given(st.lists(st.floats(-5, 5), min_size=5, max_size=12, unique=True))
def test_the_jackknife_of_a_mean_is_students_interval(numbers: list[float]) -> None:
    found = jackknife_estimate([[(x, 0.0)] for x in numbers], lambda seeds: mean([s[0][0] for s in seeds]), (-9e9, 9e9))
    if found.interval is not None:
        assert found.interval == pytest.approx(interval(numbers), abs=1e-6)


# r against r*


def test_a_reward_that_tells_everything() -> None:
    """r is 2 where r* is 0, and 7 where it is 1: ranks and mapping are right on all seeds."""
    seeds = [[(2.0, 0.0), (7.0, 1.0), (2.0, 0.0)] for _ in range(6)]
    found = calibrate(rated(*seeds), "icrl", solved=1.0)
    assert (found.seeds, found.attempts, found.missing, found.missing_score) == (6, 18, 0, None)
    assert found.spearman.value == pytest.approx(1)
    assert found.auroc.value == found.auroc_within.value == 1
    assert found.auroc.interval is None  # no seed makes a difference
    assert (found.error, found.binary, found.same, found.varied) == (0, True, False, True)
    assert found.error_of_mean == pytest.approx(1 / 3 * 2 / 3)
    assert found.gain.value == pytest.approx(2 / 9)
    assert found.mapping == ((2, 0), (7, 1))
    assert found.good == "r* >= 1, solved: 6 of 18"


def test_a_reward_that_tells_nothing() -> None:
    draw = random.Random(1)
    seeds = [[(draw.random(), float(draw.random() < 0.3)) for _ in range(40)] for _ in range(10)]
    found = calibrate(rated(*seeds))
    assert found.auroc.value == pytest.approx(0.5, abs=0.06)
    assert found.auroc.interval is not None
    assert found.auroc.interval[0] < 0.5 < found.auroc.interval[1]
    assert found.gain.value is not None
    rewards, scores = calibration._columns(seeds)
    fitted = isotonic(rewards, scores)
    fooled = found.score * (1 - found.score) - mean([(fitted(r) - s) ** 2 for r, s in zip(rewards, scores, strict=True)])
    assert found.gain.value < 0 < 0.001 < fooled  # on the seeds that it was fitted to, the mapping looks like a gain


def test_what_holds_on_one_half_only_is_no_gain() -> None:
    """Even seeds: the higher the better; odd seeds: the other way round. By hand: even predicts 0 and 1, wrong every time."""
    up, down = [(0.0, 0.0), (1.0, 1.0)], [(0.0, 1.0), (1.0, 0.0)]
    found = calibrate(rated(up, down))
    assert found.error == pytest.approx((0.25 + 1) / 2)  # the odd seed's best mapping that never falls is its mean
    assert found.error_of_mean == pytest.approx(0.25)
    assert found.gain.value == pytest.approx(-0.375)


def test_r_that_only_knows_which_task_is_easy() -> None:
    """Pooled it looks fine; among attempts at one task, which is what a method chooses from, it is a coin."""
    seeds = [[(10.0 * easy, 1.0), (10.0 * easy, float(easy)), (10.0 * easy, 0.0)] for easy in (0, 1, 0, 1, 0, 1)]
    found = calibrate(rated(*seeds), solved=1)
    assert found.auroc.value == pytest.approx(2 / 3)
    assert found.auroc_within.value == 0.5
    assert found.spearman_within.value is None


def test_missing_rewards_are_counted_and_left_out() -> None:
    some = [(0.0, 0.0), (1.0, 1.0), (None, 1.0)]
    found = calibrate(rated(some, some, [(None, 0.0)]), "icrl")
    assert (found.attempts, found.missing, found.missing_score, found.seeds) == (7, 3, pytest.approx(2 / 3), 2)
    assert found.score == 0.5
    assert "4 with r, mean r* 0.5, on 2 seeds; 3 without r, mean r* 0.667" in calibration.report(found)


@pytest.mark.parametrize(("count", "there"), [(4, False), (5, True)])
def test_intervals_from_five_seeds_on(count: int, there: bool) -> None:
    draw = random.Random(0)
    seeds = [[(draw.random(), draw.random()) for _ in range(10)] for _ in range(count)]
    found = calibrate(rated(*seeds))
    for figure in (found.spearman, found.auroc, found.gain, found.spearman_within):
        assert (figure.interval is not None) is there
    assert ("No intervals" in calibration.report(found)) is not there


@pytest.mark.parametrize(
    ("scores", "solved", "good"),
    [
        ([0, 0, 0, 1], None, "r* > 0, the median: 1 of 4"),
        ([0, 1, 1, 1], None, "r* >= 1, the highest: 3 of 4"),
        ([1, 2, 3, 4], None, "r* > 2.5, the median: 2 of 4"),
        ([1, 2, 3, 4], 4.0, "r* >= 4, solved: 1 of 4"),
    ],
)
def test_what_is_good(scores: list[float], solved: float | None, good: str) -> None:
    attempts = [(float(i), score) for i, score in enumerate(scores)]
    assert calibrate(rated(attempts[:2], attempts[2:]), solved=solved).good == good


@pytest.mark.parametrize(
    ("attempts", "words"),
    [
        ([(1.0, 1.0), (2.0, 2.0)], "r is r* in every attempt"),
        ([(1.0, 0.0), (1.0, 2.0)], "r is the same for every attempt"),
        ([(1.0, 0.0), (2.0, 0.0)], "r* is 0 in every attempt"),
    ],
)
def test_reports_of_what_tells_nothing(attempts: list[tuple[float, float]], words: str) -> None:
    assert words in calibration.report(calibrate(rated(attempts, attempts), "icrl"))


def test_too_little_to_say_anything() -> None:
    with pytest.raises(UserError, match=r"rewards on seed 0 alone; .* at least two: play with --seeds 10"):
        calibrate(rated([(1.0, 1.0), (2.0, 0.0)], [(None, 1.0)]))
    reasons = [RatedAttempt(0, None, 0.0, "the rule raised KeyError: 'x'"), RatedAttempt(1, None, 1.0)]
    with pytest.raises(UserError, match="none of the 2 attempts of icrl has a reward r: the rule raised KeyError: 'x'"):
        calibrate(reasons, "icrl")


def test_a_line_on_missing_rewards() -> None:
    def line(*reasons: str, known: int = 1) -> str:
        attempts = [RatedAttempt(0, None, 0.0, reason) for reason in reasons] + [RatedAttempt(0, 1.0, 0.0)] * known
        return calibration.missing_reward_note(attempts, "icrl", NO_REWARDS_REASON)

    assert line() == ""
    assert line(NO_REWARDS_REASON, NO_REWARDS_REASON, known=0) == ""
    assert line("the rule raised", "the rule raised") == "2 of 3 attempts of icrl have no reward: the rule raised"
    assert line("a", "b", "b") == "3 of 4 attempts of icrl have no reward: b (and another reason)"
    assert line("a", "b", "c", "c").endswith("c (and 2 other reasons)")
    assert line("") == "1 of 2 attempts of icrl have no reward: the environment could not read an action"
    assert len(line("long " * 100)) < 300


# Run folders and the command


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Runs are played in this process, in a directory of their own."""

    return play_in_process(monkeypatch, tmp_path)


def folder(path: Path, **methods: dict[int, list[tuple[float | None, float]]]) -> Path:
    """A run folder as far as it is read here."""
    seeds = sorted({seed for by_seed in methods.values() for seed in by_seed})
    path.mkdir()
    (path / "settings.json").write_text(json.dumps({"methods": {m.replace("_", ":"): {} for m in methods}, "seeds": seeds}))
    for method, by_seed in methods.items():
        for seed, attempts in by_seed.items():
            run = path / f"{method.replace('_', '-')}-s{seed}"
            run.mkdir()
            lines = [json.dumps({"score": score, "earned": r, "unjudged": "" if r else "lost"}) for r, score in attempts]
            (run / "episodes.jsonl").write_text("\n".join(lines) + '\n{"score": 1, "ear')
            (run / "result.json").write_text('{"solved": 1.0}')
    return path


SOME: list[tuple[float | None, float]] = [(1.0, 0.0), (2.0, 1.0), (None, 0.0)]


def test_a_run_folder_is_read_with_its_presets_and_what_is_half_written(tmp_path: Path) -> None:
    found = calibration.read_run_folder(folder(tmp_path / "run", icrl={0: SOME, 3: SOME}, icrl_paper={0: SOME}))
    assert list(found) == ["icrl", "icrl:paper"]
    attempts, solved = found["icrl"]
    assert solved == 1.0
    assert attempts[:3] == [RatedAttempt(0, 1.0, 0.0), RatedAttempt(0, 2.0, 1.0), RatedAttempt(0, None, 0.0, "lost")]
    assert [one.seed for one in attempts] == [0, 0, 0, 3, 3, 3]
    assert len(found["icrl:paper"][0]) == 3


def test_the_command_shows_each_method_that_has_rewards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(folder(tmp_path / "run", icrl={0: SOME, 1: SOME}, icrl_paper={0: SOME, 1: SOME[2:]}, self_refine={0: SOME[2:]}))
    assert main(["calibrate", run]) == 0
    shown = capsys.readouterr()
    assert "icrl: r, the return that the method saw" in shown.out
    assert "AUROC          1;" in shown.out
    assert "good: r* >= 1, solved: 2 of 4" in shown.out
    assert "icrl:paper has rewards on seed 0 alone" in shown.err
    assert "none of the 1 attempts of self:refine has a reward r: lost" in shown.err
    assert main(["calibrate", run, "icrl", "--json"]) == 0
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (row["method"], row["attempts"], row["missing"], row["auroc"]["value"]) == ("icrl", 6, 2, 1.0)
    assert row["mapping"] == [[1.0, 0.0], [2.0, 1.0]]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "needs RUN-FOLDER: A folder that `learngraph run` has made"),
        (["a", "b", "c"], "takes no further arguments, got c"),
        (["nowhere"], "nowhere does not exist"),
        (["."], "has no settings.json"),
        (["damaged"], "settings.json is damaged"),
        (["run", "jitrl"], "run has no runs of jitrl; it has icrl"),
        (["run"], "rewards on seed 0 alone"),
        (["run", "--jsn"], "there is no --jsn; there are --json"),
        (["empty"], "none of the 0 attempts of icrl has a reward r"),
    ],
)
def test_mistakes_are_one_line(args: list[str], words: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder(here / "run", icrl={0: SOME})
    folder(here / "damaged", icrl={})
    (here / "damaged" / "settings.json").write_text('{"methods": {}}')
    folder(here / "empty", icrl={})
    assert main(["calibrate", *args]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert words in shown.err


@pytest.mark.slow
def test_a_run_by_a_rule_and_its_calibration(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An easy puzzle, any admissible actions: what the exact rule pays tells attempts that make 24 from others."""
    command = ["run", "best-of-n", "--env", "game24?puzzle=12 12 12 12,demos=0", "--prior", "uniform", "--judge", "rule"]
    assert main([*command, "--episodes", "8", "--seeds", "2", "--no-stop-at-full-score", "--out", "run"]) == 0
    assert "have no reward" not in capsys.readouterr().out
    assert main(["calibrate", "run", "--json"]) == 0
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (row["method"], row["attempts"], row["missing"]) == ("best-of-n", 16, 0)
    assert row["auroc"]["value"] == 1  # a solution pays more than anything else: 19
    assert row["bins"][-1]["low"] == 19
    assert row["bins"][-1]["score"] == 1


@pytest.mark.slow
def test_a_run_says_how_many_attempts_have_no_reward(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from learngraph.tools.environments.arithmetic import Game24

    def verify(self: Any, task: Any, actions: Sequence[str]) -> list[float]:
        raise KeyError("weights")

    monkeypatch.setattr(Game24, "verify", verify)
    command = ["run", "best-of-n", "--env", "game24", "--prior", "uniform", "--judge", "rule"]
    command += ["--episodes", "2", "--seeds", "2", "--out", "run"]
    line = "4 of 4 attempts of best-of-n have no reward: the rule raised KeyError: 'weights'"
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[-1] == line
    assert main([*command, "--json"]) == 0
    shown = capsys.readouterr()
    assert line in shown.err.splitlines()
    assert len(shown.out.splitlines()) == 1
    assert main(["calibrate", "run"]) == 2
    assert "the rule raised KeyError" in capsys.readouterr().err
