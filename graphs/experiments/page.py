"""The report of a benchmark: one HTML file that opens without a network, where every number leads to the rows that it comes from.

A cell of a table opens the number of each seed, a seed its episodes, and an episode its row with the file and the line. The rows are
in the page, compressed, and unpacked by the browser when they are asked for. Below a picture stand the runs that it shows, each with
its file of rows, and an optimum leads to the files in which runs noted it.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...memory.display import format_number
from ...memory.errors import plural
from .measures import METRICS, measure, metric_head
from .pictures import RunsPicture, svg_text
from .results import optimum_name
from .tables import PAIRED_METRICS, ResultTable, legend, overview, paired_table, score_table

__all__ = []


def write_report(
    path: Path,
    title: str,
    text: str,
    command: str,
    tables: Sequence[ResultTable],
    notes: Sequence[str],
    figures: Mapping[str, RunsPicture],
) -> None:
    """Write the report.

    Args:
        path: the file, in the benchmark's folder.
        title: its title.
        text: what a reader should know.
        command: the command that makes it again.
        tables: the tables with runs.
        notes: lines about what is missing.
        figures: what `draw_figures` returns for these tables.
    """
    pictures = {name: _figure(picture, tables, path.parent) for name, picture in figures.items()}
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{_with_code(text)}</p>" if text else "",
        f"<pre>{escape(command)}</pre>",
    ]
    body.append(
        '<p class="faint">Every number of a table can be clicked: it opens the runs that it comes from, and these their rows. Below each '
        "picture are the runs that it shows. In brackets: 95 % intervals over seeds. p values are of one comparison each.</p>"
    )
    if len(tables) > 1:
        body += ["<h2>Overview</h2>", _overview_part(tables), pictures["overview"]]
    data, rows = [], list[str]()
    for number, table in enumerate(tables):
        body += _table_part(number, table, path.parent, pictures)
        data.append(_table_data(table, path.parent, rows))
    notes = [*legend(tables), *notes]
    body += ["<h2>Notes</h2>", "<ul>", *(f"<li>{escape(note)}</li>" for note in notes), "</ul>"] if notes else []
    template = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    scripts = "\n".join(f'<script type="text/plain" id="rows-{n}">{one}</script>' for n, one in enumerate(rows))
    parts = {"TITLE": escape(title), "BODY": "\n".join(filter(None, body)), "DATA": _json(data), "ROWS": scripts}
    head, *rest = template.split("{{")
    page = head + "".join(parts[name] + after for name, after in (part.split("}}", 1) for part in rest))
    part = path.with_name(f"{path.name}.part")
    part.write_text(page, encoding="utf-8")
    part.replace(path)


def _with_code(text: str) -> str:
    """A text as HTML, with what stands between backquotes as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _table_part(number: int, table: ResultTable, folder: Path, pictures: Mapping[str, str]) -> list[str]:
    """A table with its paired comparison, its pictures, and the place where its numbers open."""
    arms = {arm: n for n, arm in enumerate(table.runs)}
    scores, pairs = score_table(table), paired_table(table)
    metrics = ["", "", *table.columns]
    shown = [
        [escape(row[0]), row[1], *(_button(number, arms[row[0]], metrics[n], row[n]) for n in range(2, len(row)))]
        for row in scores[1:-1]
    ]
    top = [text if text == "–" else f'<a href="#optimum-{number}">{escape(text)}</a>' for text in scores[-1][1:]]
    # The columns of a paired table: the other method, seeds, four of Avg, two of the last episodes, seeds won and the verdict of Avg.
    of = ["", "", *["avg"] * 4, *["last"] * 2, *["avg"] * 2]
    paired = [
        [escape(row[0]), row[1], *(_button(number, arms[row[0]], of[n], row[n], mark="pair") for n in range(2, len(row)))]
        for row in pairs[1:]
    ]
    return [
        f"<h2>{escape(f'{table.environment}, {table.model}')}</h2>",
        _html_table(scores[0], [*shown, [escape(scores[-1][0]), *top]]),
        _optimum_part(number, table, folder),
        _html_table(pairs[0], paired) if paired else "",
        f'<div class="drill" id="drill-{number}" hidden></div>',
        *(pictures[name] for kind in ("curves", "costs", "episodes") if (name := f"{number} {kind}") in pictures),
    ]


def _optimum_part(number: int, table: ResultTable, folder: Path) -> str:
    """The optimum of each seed, with the file in which a run noted the optimum."""
    rows = []
    for seed, optimum in sorted({run.seed: run.optimum for run in table.all_runs}.items()):
        files = [place / "result.json" for (_, of), place in table.folders.items() if of == seed]
        noted = next((file for file in files if _noted_optimum(file) == optimum), None)
        rows.append([str(seed), format_number(optimum, ".6g"), "–" if noted is None else _link(noted, folder)])
    name = optimum_name(table.all_runs)
    about = (
        f"Before a run is played, its environment works out the {name} of the seed's task, without a look at what is played, and the run "
        "writes it down. All methods on a seed have the same."
    )
    parts = [
        f"<summary>Where the {name} comes from</summary>",
        f"<p>{about}</p>",
        _html_table(["seed", name, "noted in"], rows),
    ]
    return f'<details id="optimum-{number}">{"".join(parts)}</details>'


def _noted_optimum(file: Path) -> float | None:
    """The optimum in a run's result.json; None if there is no such file."""
    return float(json.loads(file.read_bytes())["optimum"]) if file.is_file() else None


def _link(file: Path, folder: Path, text: str = "") -> str:
    """A link to a file in the benchmark's folder; its text is the path if not given."""
    path = file.relative_to(folder).as_posix()
    return f'<a href="{escape(quote(path))}">{escape(text or path)}</a>'


def _button(table: int, arm: int, metric: str, text: str, mark: str = "") -> str:
    more = f" data-{mark}" if mark else ""
    return f'<button type="button" data-table="{table}" data-arm="{arm}" data-metric="{escape(metric)}"{more}>{escape(text)}</button>'


def _overview_part(tables: Sequence[ResultTable]) -> str:
    """The overview; its cells open the runs of Avg in the table that they are from."""
    head, *rows = overview(tables)
    arms = [{arm: n for n, arm in enumerate(table.runs)} for table in tables]
    shown = [
        [
            escape(row[0]),
            *(_button(n, arms[n][row[0]], "avg", text, "far") if row[0] in arms[n] else "–" for n, text in enumerate(row[1:])),
        ]
        for row in rows
    ]
    return _html_table(head, shown)


def _html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the cells of its rows are HTML already."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>\n{lines}\n</tbody></table></div>'


def _figure(picture: RunsPicture, tables: Sequence[ResultTable], folder: Path) -> str:
    """A picture, and below it the runs that it shows: each method opens its numbers, and each seed is a link to its rows."""
    lines, count = [], 0
    for number, shown in picture.shows.items():
        table, arms = tables[number], {arm: n for n, arm in enumerate(tables[number].runs)}
        name = f"{escape(f'{table.environment}, {table.model}')}: " if len(picture.shows) > 1 else ""
        for arm in shown:
            places = {run.seed: table.folders[arm, run.seed] for run in table.runs[arm] if (arm, run.seed) in table.folders}
            links = " ".join(_link(place / "episodes.jsonl", folder, str(seed)) for seed, place in places.items())
            lines.append(f"<li>{name}{_button(number, arms[arm], 'avg', arm, 'far')}, rows of seeds {links}</li>")
            count += len(table.runs[arm])
    summary = f"<summary>The {plural(count, 'run')} in this picture</summary>"
    return f'<div class="figure">{svg_text(picture)}</div><details class="runs">{summary}<ul>{"".join(lines)}</ul></details>'


def _table_data(table: ResultTable, folder: Path, rows: list[str]) -> dict[str, Any]:
    """A table as its page's script reads it; the rows of each method are appended to `rows`."""
    names = list(dict.fromkeys((*table.columns, *PAIRED_METRICS)))
    arms = []
    for label, runs in table.runs.items():
        values = {name: measure(name, runs, table.prices) for name in names}
        lines = {str(run.seed): _episode_lines(table.folders.get((label, run.seed))) for run in runs}
        arms.append(
            {
                "label": label,
                "runs": [
                    {
                        "seed": run.seed,
                        "folder": _relative(table.folders.get((label, run.seed)), folder),
                        "rows": len(rows),
                        "values": {name: values[name][run.seed] for name in names},
                    }
                    for run in runs
                ],
            }
        )
        rows.append(base64.b64encode(gzip.compress(_json(lines).encode(), mtime=0)).decode())
    labels = [*table.runs]
    metrics = {name: {"head": metric_head(name, table.episodes), "about": METRICS[name].about} for name in names}
    against = labels.index(table.against) if table.against in labels else 0
    return {"metrics": metrics, "arms": arms, "against": against}


def _relative(run: Path | None, folder: Path) -> str:
    return "" if run is None else run.relative_to(folder).as_posix()


def _episode_lines(run: Path | None) -> list[tuple[int, str]]:
    """The line numbers and the rows of a run's episodes, in the order of the episodes."""
    if run is None:
        return []
    text = (run / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    found = [(n, line.decode().strip()) for n, line in enumerate(text, 1) if line.endswith(b"\n")]
    return sorted(found, key=lambda one: int(json.loads(one[1])["episode"]))


def _json(value: Any) -> str:
    """JSON that may stand in a script element."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")
