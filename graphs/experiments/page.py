"""The report of an experiment: one HTML file that opens without a network, in which every number leads to the rows that it comes from.

Below the tables and pictures of a world stand its runs with their numbers, and the name of each leads to the file of its episodes. The
page has the studio's style, and no script.
"""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from ...memory.display import format_number
from ...memory.errors import plural
from ...tools.serving.page_files import read_page
from .measures import METRICS, measure, metric_head
from .tables import PAIRED_METRICS, ResultTable, legend, overview, paired_table, score_table

__all__ = []

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<style>{style}</style>
<body class="studio"><main>
{body}
</main></body></html>
"""


def write_report(
    path: Path,
    title: str,
    text: str,
    command: str,
    tables: Sequence[ResultTable],
    notes: Sequence[str],
    figures: Sequence[Sequence[Path]],
) -> None:
    """Write the report to `path`: in `text` backquotes mark code, and `figures` are the SVG files of each table."""
    told = re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))
    body = [f"<h1>{escape(title)}</h1>", f"<p>{told}</p>" if text else "", f"<pre>{escape(command)}</pre>"]
    body.append('<p class="soft">In brackets: 95 % intervals over seeds. p values are of one comparison each.</p>')
    if len(tables) > 1:
        body += ["<h2>Overview</h2>", html_table(escape_cells(overview(tables)))]
    for table, pictures in zip(tables, figures, strict=True):
        body += [f"<h2>{escape(f'{table.environment}, {table.model}')}</h2>", html_table(escape_cells(score_table(table)))]
        if table.tests["avg"]:
            body.append(html_table(escape_cells(paired_table(table))))
        body += [f'<div class="card figure">{svg_text(picture)}</div>' for picture in pictures]
        body += _runs_part(table, path.parent)
    notes = [*legend(tables), *notes]
    body += ["<h2>Notes</h2>", "<ul>", *(f"<li>{escape(note)}</li>" for note in notes), "</ul>"] if notes else []
    part = path.with_name(f"{path.name}.part")
    part.write_text(PAGE.format(title=escape(title), style=read_page("style.css"), body="\n".join(filter(None, body))), "utf-8")
    part.replace(path)


def _runs_part(table: ResultTable, folder: Path) -> list[str]:
    """The numbers of each run, in the columns of its table, with links to its rows."""
    names = list(dict.fromkeys((*table.columns, *PAIRED_METRICS)))
    rows = [["run", "seed", "optimum", *(metric_head(name, table.episodes) for name in names)]]
    for arm, runs in table.runs.items():
        numbers = {name: measure(name, runs, table.prices) for name in names}
        for run in runs:
            place = table.folders.get((arm, run.seed))
            file = quote((place / "episodes.jsonl").relative_to(folder).as_posix()) if place else ""
            label = f'<a href="{escape(file)}">{escape(arm)}</a>' if file else escape(arm)
            found = (format_number(numbers[name][run.seed], METRICS[name].form) for name in names)
            rows.append([label, str(run.seed), f"{run.optimum:.6g}", *found])
    summary = f"<summary>The {plural(len(rows) - 1, 'run')} behind these numbers, with their episodes</summary>"
    return [f"<details>{summary}{html_table(rows)}</details>"]


def escape_cells(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """The rows of a table with texts that HTML shows as they are."""
    return [[escape(cell) for cell in row] for row in rows]


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are HTML already; the first row is its header."""
    head, *lines = (
        "".join(f"<t{'d' if n else 'h'}>{cell}</t{'d' if n else 'h'}>" for cell in row) for n, row in enumerate(rows)
    )
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table class="numbers"><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def svg_text(path: Path) -> str:
    """A picture as an element of a page, without the XML header."""
    text = path.read_text(encoding="utf-8")
    return text[text.index("<svg") :]
