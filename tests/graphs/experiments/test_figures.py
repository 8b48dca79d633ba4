"""The picture of a run: what each panel shows, read back from matplotlib's own objects."""

from dataclasses import replace
from typing import Any

import pytest
from variants import quick

from learngraph.graphs.experiments import figures
from learngraph.graphs.experiments.results import SeedResult
from learngraph.nodes.evaluate.statistics import interval

# Those of matplotlib; what other tests have left to the garbage collector is none of these tests' business.
pytestmark = pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnraisableExceptionWarning")


def result(seed: int, scores: list[float], method: str = "jitrl", **more: Any) -> SeedResult:
    n = len(scores)
    return SeedResult(method, seed, 1.0, tuple(scores), tuple(scores), (10,) * n, **more)


def panels(attempts: list[list[SeedResult]], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Title -> axes of a picture."""
    kept: list[Any] = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, paths: kept.append(figure))
    figures.draw_learning_curves(attempts, "toy", [])
    return {axes.get_title(loc="left"): axes for axes in kept[0].axes}


def curve(axes: Any, method: str) -> list[float]:
    return [float(y) for line in axes.get_lines() if line.get_label() == method for y in line.get_ydata()]


def test_smoothing_is_centred_and_shortens_at_the_ends() -> None:
    assert figures.moving_average([0, 3, 6, 0]) == [1.5, 3, 3, 3]
    assert figures.moving_average([5]) == [5]


def test_short_runs_are_drawn_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds, 0 and 1: a centred average would be a flat .5."""
    assert curve(panels([[result(0, [0, 1])]], monkeypatch)["score"], "jitrl") == [0, 1]
    assert curve(panels([[result(0, [0, 1] * 7)]], monkeypatch)["score"], "jitrl") == [0, 1] * 7
    assert curve(panels([[result(0, [0, 1, *[0] * 13])]], monkeypatch)["score"], "jitrl")[:2] == [0.5, pytest.approx(1 / 3)]


def test_steps_show_what_a_full_score_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = panels([[replace(result(0, [1, 1, 1, 1]), steps=(21, 10, 4, 4))]], monkeypatch)
    assert curve(shown["steps per episode"], "jitrl") == [21, 10, 4, 4]


def test_best_score_so_far_is_the_running_maximum_of_each_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = panels([[result(0, [0, 1, 0.5]), result(1, [0.5, 0, 0.75])]], monkeypatch)
    assert curve(shown["best score so far"], "jitrl") == [0.25, 0.75, 0.875]


def test_the_judged_return_has_a_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge sees learning where the score falls. A method without a judge has no curve there."""
    ours, theirs = [result(0, [1, 1, 0], judged=(6.0, 8.0, 9.0))], [result(0, [0, 0, 0], "random")]
    axes = panels([ours, theirs], monkeypatch)["judged return, which was learned from"]
    assert (curve(axes, "jitrl"), curve(axes, "random")) == ([6, 8, 9], [])
    assert "judged return, which was learned from" not in panels([theirs], monkeypatch)


def test_the_first_methods_lead_is_drawn_with_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks differ (0.1 and 0.6) more than methods do: paired, the lead of 0.2 and 0.3 has an interval of its own."""
    ours, theirs = [result(0, [0.3]), result(1, [0.9])], [result(0, [0.1], "static"), result(1, [0.6], "static")]
    axes = panels([ours, theirs], monkeypatch)["jitrl minus …, paired by seed, 95 % interval"]
    low, high = interval([0.2, 0.3]) or (0.0, 0.0)
    (bar, *_) = [segment for drawn in axes.collections for segment in drawn.get_segments()]
    assert [float(x) for x, _ in bar] == [pytest.approx(low), pytest.approx(high)]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["not told apart\nfrom static"]
    assert not panels([ours, theirs], monkeypatch)["score"].collections  # no bands over different tasks


def test_equal_curves_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for episodes in (3, 20):
        methods = [[result(0, [0.5] * episodes, name)] for name in ("icrl", "reflexion", "self-refine")]
        lines = panels(methods, monkeypatch)["score"].get_lines()[:3]
        looks = {(str(line.get_linestyle()), line._unscaled_dash_pattern, line.get_marker()) for line in lines}
        assert len(looks) == 3
        assert [line.get_linewidth() for line in lines] == [2.6, 1.8, 1.8]
        places = {float(line.get_xdata()[0]) for line in lines}
        assert len(places) == (3 if episodes == 3 else 1)


@pytest.mark.parametrize("scores", quick([[0.0], [0.0] * 20]))
@pytest.mark.parametrize("optimum", [0.0, 1.0])
def test_nothing_but_zeros_is_drawn_without_a_warning(
    scores: list[float], optimum: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = [[replace(result(s, scores, name), optimum=optimum) for s in range(2)] for name in ("jitrl", "static")]
    axes = panels(methods, monkeypatch)["score"]
    axes.figure.canvas.draw()
    low, high = axes.get_ylim()
    assert low < 0 < high


def test_a_band_ends_where_scores_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Student's interval of 0.2, 1 and 1 reaches from -0.4 to 1.9."""
    axes = panels([[result(s, [top] * 2) for s, top in enumerate((0.2, 1.0, 1.0))]], monkeypatch)["score"]
    heights = [float(y) for path in axes.collections[0].get_paths() for y in path.vertices[:, 1]]
    assert (min(heights), max(heights)) == (0.2, 1.0)
