"""The report of a benchmark: every run leads to its rows, hostile text does no harm, and a real browser opens it without a network."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import browser
import pytest

from learngraph.graphs.experiments.figures import draw_figures
from learngraph.graphs.experiments.page import write_report
from learngraph.graphs.experiments.results import SeedResult
from learngraph.graphs.experiments.tables import ResultTable
from learngraph.nodes.cached_model import Prices

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> {body} & `code`"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two tables, one of which has a single method."""
    folder = tmp_path_factory.mktemp("report")
    runs, places = dict[str, list[SeedResult]](), dict[tuple[str, int], Path]()
    for method in ("first", "second <b>"):
        for seed in (0, 3):
            scores = (seed / 2, 1.0, 2.0 + len(method) % 2)
            more: dict[str, Any] = {"bests": scores, "steps": (3, 3, 3)}
            runs.setdefault(method, []).append(SeedResult(method, seed, 4.0, scores, **more))
            places[method, seed] = folder / "toy" / "pocket" / f"{method[:3]}-s{seed}"
            places[method, seed].mkdir(parents=True)
            (places[method, seed] / "episodes.jsonl").write_text(HOSTILE)
    tables = [
        ResultTable("gap=1", "pocket", runs, "first", 3, Prices(), folders=places),
        ResultTable("gap.1", "pocket", {"first": runs["first"]}, "first", 3, Prices(), folders=places),
    ]
    drawn = [draw_figures(table, folder / "figures") for table in tables]
    write_report(folder / "report.html", HOSTILE, HOSTILE, "learngraph run x.toml", tables, [HOSTILE], drawn)
    return folder / "report.html"


def test_every_run_leads_to_its_rows_and_nothing_is_asked_for(report: Path) -> None:
    page = report.read_text()
    runs = [f"toy/pocket/{name}/episodes.jsonl" for name in ("fir-s0", "fir-s3", "sec-s0", "sec-s3")]
    links = re.findall(r'<a href="([^"]+)"', page)
    assert links == [*runs, *runs[:2]]
    assert all((report.parent / unquote(link)).is_file() for link in links)
    assert "<td>3</td><td>4</td><td>1.83</td>" in page  # the mean score of the run of seed 3: (1.5 + 1 + 3) / 3
    assert page.count("<svg") == 2
    assert "gap.1" in (report.parent / "figures" / "curves-gap.1-pocket.svg").read_text()
    assert not re.findall(r"""(?:src|href)=["'](?!#)[^"']*//""", re.sub(r'xlink:href="#[^"]*"|xmlns(:\w+)?="[^"]*"', "", page))
    assert str(report.parent) not in page  # no path of this machine


@pytest.mark.skipif(browser.EXECUTABLE is None, reason="NOT TESTED: no Chromium on this machine")
@pytest.mark.slow
async def test_in_a_browser_hostile_text_is_text(report: Path) -> None:
    async with browser.Browser.open() as page:
        await page.go(report.as_uri())
        assert await page.run("document.title") == HOSTILE
        await page.run("document.querySelector('details').open = true")
        assert "second <b>" in await page.run("document.querySelector('details').innerText")
        assert page.complaints == []
