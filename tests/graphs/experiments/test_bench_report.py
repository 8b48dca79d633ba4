"""The report of a benchmark: it holds the rows, hostile text does no harm, and a real browser opens every number without a network."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import browser
import pytest

from learngraph.graphs.experiments.page import write_report
from learngraph.graphs.experiments.pictures import draw_figures
from learngraph.graphs.experiments.results import SeedResult
from learngraph.graphs.experiments.tables import ResultTable
from learngraph.nodes.cached_model import Prices

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> {{DATA}} & `code`"


def make_run(folder: Path, method: str, seed: int, scores: list[float]) -> SeedResult:
    """A run whose rows are in a folder, the second before the first, with a last one that was cut."""
    folder.mkdir(parents=True)
    rows = [
        json.dumps({"id": f"{method}-s{seed}/{n}", "episode": n, "score": score, "steps": 3, "note": HOSTILE})
        for n, score in enumerate(scores)
    ]
    (folder / "episodes.jsonl").write_text("\n".join([rows[1], rows[0], *rows[2:]]) + "\n" + rows[0][:20])
    (folder / "result.json").write_text(json.dumps({"optimum": 4.0 - (method == "first")}))
    more: dict[str, Any] = {"bests": tuple(scores), "steps": (3,) * len(scores)}
    return SeedResult(method, seed, 4.0, tuple(scores), **more)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two tables, one of which has a single method."""
    tmp_path = tmp_path_factory.mktemp("report")
    runs, folders = dict[str, list[SeedResult]](), dict[tuple[str, int], Path]()
    for method in ("first", "second <b>"):
        for seed in (0, 3):
            folders[method, seed] = tmp_path / "toy" / "pocket" / f"{method[:3]}-s{seed}"
            runs.setdefault(method, []).append(
                make_run(folders[method, seed], method, seed, [seed / 2, 1.0, 2.0 + len(method) % 2])
            )
    tables = [
        ResultTable("toy", "pocket", runs, "first", 3, Prices(), folders=folders),
        ResultTable("other", "pocket", {"first": runs["first"]}, "first", 3, Prices(), folders=folders),
    ]
    path = tmp_path / "report.html"
    write_report(path, HOSTILE, HOSTILE, "learngraph run x.toml", tables, [HOSTILE], draw_figures(tables, tmp_path / "figures"))
    return path


def test_a_report_holds_every_row_and_asks_for_nothing(report: Path) -> None:
    page = report.read_text()
    packed = re.findall(r'<script type="text/plain" id="rows-\d+">([^<]+)</script>', page)
    first = json.loads(gzip.decompress(base64.b64decode(packed[0])))
    assert [[line, json.loads(row)["episode"]] for line, row in first["3"]] == [[2, 0], [1, 1], [3, 2]]
    assert len(packed) == 3
    assert page.count("<svg") == 5  # two for each table, and the overview
    assert not re.findall(r"""(?:src|href)=["'](?!#)[^"']*//""", re.sub(r'xlink:href="#[^"]*"|xmlns(:\w+)?="[^"]*"', "", page))
    assert "{{" not in page.replace("{{DATA}}", "", page.count("{{DATA}}"))
    assert str(report.parent) not in page  # no path of this machine


class Links(HTMLParser):
    """The links of a page, each with the id or the class of the `details` that it stands in, and all ids of the page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids, self.found, self.place = set[str](), list[tuple[str, str]](), [""]
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids.add(given.get("id") or "")
        if tag == "details":
            self.place.append(given.get("id") or given.get("class") or "")
        if tag == "a":
            self.found.append((self.place[-1], given.get("href") or ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "details":
            self.place.pop()


def test_every_picture_and_every_optimum_leads_to_files(report: Path) -> None:
    links = Links(report.read_text())
    for _, href in links.found:
        assert href[1:] in links.ids if href.startswith("#") else (report.parent / unquote(href)).is_file(), href
    rows = [href for place, href in links.found if place == "runs"]
    # The overview shows the runs of both tables, and each of a table's two pictures those of the table.
    of = ["toy/pocket/fir-s0", "toy/pocket/fir-s3", "toy/pocket/sec-s0", "toy/pocket/sec-s3"]
    shown = [*of, *of[:2], *of, *of, *of[:2], *of[:2]]
    assert rows == [f"{run}/episodes.jsonl" for run in shown]
    # The second method's runs noted a higher optimum than the first one's, which counts for both.
    for number in (0, 1):
        noted = [href for place, href in links.found if place == f"optimum-{number}"]
        assert noted == ["toy/pocket/sec-s0/result.json", "toy/pocket/sec-s3/result.json"]
        assert ("", f"#optimum-{number}") in links.found


@pytest.mark.skipif(browser.EXECUTABLE is None, reason="NOT TESTED: no Chromium on this machine")
@pytest.mark.slow
async def test_in_a_browser_every_number_leads_to_its_rows(report: Path, tmp_path: Path) -> None:
    async with browser.Browser.open(tmp_path / "profile", "--host-resolver-rules=MAP * ~NOTFOUND") as page:
        await page.go(report.as_uri())
        assert await page.run("document.title") == HOSTILE

        async def shown(script: str, needed: str) -> str:
            async with asyncio.timeout(20):
                while needed not in (text := await page.run(script)):
                    await asyncio.sleep(0.05)
            return str(text)

        count = await page.run("document.querySelectorAll('button[data-table]').length")
        assert count > 20
        # Every number opens its runs, and closes them again.
        empty = await page.run(
            """[...document.querySelectorAll('button[data-table]')].filter(button => {
                const place = document.getElementById('drill-' + button.dataset.table);
                button.click();
                const rows = place.querySelectorAll('tbody tr').length;
                button.click();
                return rows !== 2 || !place.hidden || button.getAttribute('aria-expanded') !== 'false';
            }).length"""
        )
        assert empty == 0
        await page.run("document.querySelectorAll('button[data-metric=avg]:not([data-far]):not([data-pair])')[0].click()")
        text = await shown("document.getElementById('drill-0').innerText", "toy/pocket/fir-s3")
        assert "Mean score over all episodes of the run." in text
        assert "1.833" in text  # (1.5 + 1 + 3) / 3
        await page.run("document.querySelectorAll('#drill-0 td button')[1].click()")
        text = await shown("document.querySelector('#drill-0 .drill').innerText", "episodes.jsonl:3")
        assert re.findall(r"episodes\.jsonl:(\d)", text) == ["2", "1", "3"]
        await page.run("document.querySelector('#drill-0 .drill details').open = true")
        row = json.loads(await page.run("document.querySelector('#drill-0 .drill details pre').textContent"))
        assert (row["id"], row["note"]) == ("first-s3/0", HOSTILE)
        await page.run("document.querySelector('button[data-pair][data-metric=last]').click()")
        assert "first minus second <b>: last 3 episodes" in await shown("document.getElementById('drill-0').innerText", "minus")
        assert await page.run("document.querySelectorAll('[aria-expanded=true]').length") == 1
        await page.run("document.querySelector('a[href=\"#optimum-0\"]').click()")
        assert "sec-s3/result.json" in await shown("document.getElementById('optimum-0').innerText", "result.json")
        await page.run("document.querySelector('details.runs').open = true")
        await page.run("document.querySelector('details.runs button').click()")
        await shown("document.getElementById('drill-0').innerText", "toy/pocket/fir-s3")
        await page.run("document.querySelector('button[data-far]').click()")
        assert await page.run("document.title") == HOSTILE
        assert page.complaints == []
        asked = [event["params"]["request"]["url"] for event in page.events if event["method"] == "Network.requestWillBeSent"]
        assert {url.partition(":")[0] for url in asked} <= {"file", "data", "blob"}


def test_pictures_of_labels_that_are_alike_stay_apart(tmp_path: Path) -> None:
    runs = {"a": [make_run(tmp_path / "a", "a", 0, [0.0, 1.0])]}
    tables = [ResultTable(label, "pocket", runs, "a", 2, Prices()) for label in ("gap=1", "gap.1")]
    found = draw_figures(tables, tmp_path / "figures")
    assert len({picture.path for picture in found.values()}) == len(found) == 5
    assert "gap=1" in found["0 curves"].path.read_text()
    assert "gap.1" in found["1 curves"].path.read_text()
