"""The files of the studio's page: the page itself, its style, its modules, and the libraries that it is made with.

They are read as they stand, without a build step. `studio_pages/library` has the libraries bundled, their licences, and how a version
is changed.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["read_page"]

PAGES = Path(__file__).with_name("studio_pages")
"""The folder that the server serves."""


def read_page(name: str) -> str:
    """The text of a file by its path within the folder."""
    return (PAGES / name).read_text(encoding="utf-8")
