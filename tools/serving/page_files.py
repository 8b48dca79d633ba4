"""The pages of the servers, the studio's and the dashboard's: their files, and the headers by which a browser lets them ask nobody else.

They share one kit: `style.css`, `charts.js`, and the libraries in `pages/library`, which are bundled there with their licences, and how a
version is changed. All files are read as they stand, without a build step.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi.responses import Response

__all__ = ["read_page"]

PAGES = Path(__file__).with_name("pages")
"""The folder of the files."""
MAX_PATH = 200
"""Longest path that is looked up; file systems have limits of their own."""
HEADERS = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; base-uri 'none'; object-src 'none'; frame-ancestors 'none'; form-action 'none'"
    ),
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def read_page(name: str) -> str:
    """The text of a file by its path within the folder."""
    return (PAGES / name).read_text(encoding="utf-8")


def page_response(path: str) -> Response | None:
    """The HTTP response with a file of the pages; None if there is no such file."""
    from fastapi.responses import FileResponse

    if "\0" in path or len(path) > MAX_PATH:
        return None
    file = (PAGES / path).resolve()
    if not file.is_relative_to(PAGES.resolve()) or file.suffix not in TYPES or not file.is_file():
        return None
    return FileResponse(file, media_type=TYPES[file.suffix], headers=HEADERS)
