"""The text of a web page, and where its links lead."""

import re
from html.parser import HTMLParser
from urllib.parse import urljoin

__all__ = []

_HIDDEN = {"script", "style", "noscript", "template", "svg", "head"}
_INLINE = {
    "a",
    "abbr",
    "b",
    "cite",
    "code",
    "em",
    "font",
    "i",
    "q",
    "s",
    "small",
    "span",
    "strong",
    "sub",
    "sup",
    "time",
    "td",
    "th",
}


def page_text(html: str, address: str) -> tuple[str, str]:
    """The title and the text of a page; a link is followed by where it leads, worked out from the page's own address."""
    page = _Page(address)
    page.feed(html)
    page.close()
    lines = (" ".join(line.split()) for line in "".join(page.parts).split("\n"))
    return " ".join(page.title.split()), "\n".join(filter(None, lines))


class _Page(HTMLParser):
    def __init__(self, address: str) -> None:
        super().__init__()
        self.address, self.title, self.parts = address, "", list[str]()
        self._tag, self._hidden, self._link = "", 0, ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        self._hidden += tag in _HIDDEN
        self.parts.append(" " if tag in ("td", "th") else "" if tag in _INLINE else "\n")
        target = dict(attrs).get("href") or "#"
        if tag == "a" and not target.startswith(("#", "javascript:", "mailto:")):
            self._link = f" ({urljoin(self.address, target)})"

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""
        self._hidden -= tag in _HIDDEN and self._hidden > 0
        if tag == "a":
            self.parts.append(self._link)
            self._link = ""
        self.parts.append("" if tag in _INLINE else "\n")

    def handle_data(self, data: str) -> None:
        if self._tag == "title":
            self.title += data
        elif not self._hidden:
            self.parts.append(re.sub(r"\s+", " ", data))
