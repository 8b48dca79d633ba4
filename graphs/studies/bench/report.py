"""The report of a benchmark: one HTML file that opens without a network, where every number leads to the rows that it comes from.

A cell of a table opens the number of each seed, a seed its episodes, and an episode its row with the file and the line. The rows are
in the page, compressed, and unpacked by the browser when they are asked for.
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

from .figures import svg_texts
from .measures import METRICS, measure, metric_head
from .tables import PAIRED_METRICS, BenchTable, overview, paired_table, score_table

__all__ = ["write_report"]


def write_report(
    path: Path,
    title: str,
    text: str,
    command: str,
    tables: Sequence[BenchTable],
    notes: Sequence[str],
    figures: Mapping[str, Path],
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
    pictures = svg_texts(figures)
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{_with_code(text)}</p>" if text else "",
        f"<pre>{escape(command)}</pre>",
    ]
    body.append(
        '<p class="faint">Every number of a table can be clicked: it opens the runs that it comes from, and these their rows. In brackets: '
        "95 % intervals over seeds. p values are of one comparison each.</p>"
    )
    if len(tables) > 1:
        body += ["<h2>Overview</h2>", _overview_part(tables), _figure(pictures["overview"])]
    data, rows = [], list[str]()
    for number, table in enumerate(tables):
        body += _table_part(number, table, pictures)
        data.append(_table_data(table, path.parent, rows))
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


def _table_part(number: int, table: BenchTable, pictures: Mapping[str, str]) -> list[str]:
    """A table with its paired comparison, its pictures, and the place where its numbers open."""
    arms = {arm: n for n, arm in enumerate(table.runs)}
    scores, pairs = score_table(table), paired_table(table)
    metrics = ["", "", *table.columns]
    shown = [
        [escape(row[0]), row[1], *(_button(number, arms[row[0]], metrics[n], row[n]) for n in range(2, len(row)))]
        if row[0] in arms
        else [*map(escape, row)]
        for row in scores[1:]
    ]
    # The columns of a paired table: the other method, seeds, four of Avg, two of the last episodes, seeds won and the verdict of Avg.
    of = ["", "", *["avg"] * 4, *["last"] * 2, *["avg"] * 2]
    paired = [
        [escape(row[0]), row[1], *(_button(number, arms[row[0]], of[n], row[n], mark="pair") for n in range(2, len(row)))]
        for row in pairs[1:]
    ]
    return [
        f"<h2>{escape(f'{table.environment}, {table.model}')}</h2>",
        _html_table(scores[0], shown),
        _html_table(pairs[0], paired) if paired else "",
        f'<div class="drill" id="drill-{number}" hidden></div>',
        *(_figure(pictures[name]) for kind in ("curves", "costs", "episodes") if (name := f"{number} {kind}") in pictures),
    ]


def _button(table: int, arm: int, metric: str, text: str, mark: str = "") -> str:
    more = f" data-{mark}" if mark else ""
    return f'<button type="button" data-table="{table}" data-arm="{arm}" data-metric="{escape(metric)}"{more}>{escape(text)}</button>'


def _overview_part(tables: Sequence[BenchTable]) -> str:
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


def _figure(svg: str) -> str:
    return f'<div class="figure">{svg}</div>'


def _table_data(table: BenchTable, folder: Path, rows: list[str]) -> dict[str, Any]:
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
