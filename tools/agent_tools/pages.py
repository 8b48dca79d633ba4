"""A page reader for agents: reads a page of the local corpus, or of the web, part by part.

    page_tool("passages.jsonl")            # offline: all passages with this title or address, one after the other
    page_tool("pages/", web=True)          # what the corpus lacks is fetched

Of the web only http and https are fetched, and only from public addresses, also after a redirect: what stands behind a model's
address on the user's machine or network stays there.
"""

import ipaddress
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from langchain_core.tools import BaseTool, StructuredTool

from .page_text import page_text
from .search import read_corpus

__all__ = ["page_tool"]

_PART_CHARS = 6000
"""Characters of a part."""
_MAX_BYTES = 4 * 2**20
"""Bytes that are read of a page at most."""
_SECONDS = 20.0
"""Seconds that a server may be silent."""


def page_tool(corpus: str | Path | None = None, *, web: bool = False) -> BaseTool:
    """A tool named `read_page`, which takes the title or `address` of a page, and the number of a `part`.

    Args:
        corpus: the passages, as for `search_tool`.
        web: True: a page that the corpus lacks is fetched.
    """
    pages = dict[str, list[str]]()
    for passage in read_corpus(corpus):
        for name in dict.fromkeys(_plain(name) for name in (passage.title, passage.url) if name):
            pages.setdefault(name, []).append(passage.text)

    def read_page(address: str, part: int = 1) -> str:
        found = pages.get(_plain(address))
        if found is None and not web:
            return f"There is no page {address!r}. Give the title or address of a page that was found, as it is written there."
        text = _fetch(address.strip()) if found is None else "\n".join(found)
        count = max(1, -(-len(text) // _PART_CHARS))
        if not 1 <= part <= count:
            return f"The page has {count} parts, got part={part}."
        shown = text[(part - 1) * _PART_CHARS : part * _PART_CHARS]
        return shown if count == 1 else f"{shown}\n[part {part} of {count}]"

    about = "Reads a page, given the title or address under which it was found. A long page has several parts."
    return StructuredTool.from_function(read_page, name="read_page", description=about)


def _plain(name: str) -> str:
    return " ".join(name.casefold().split()).removesuffix("/")


def _fetch(address: str) -> str:
    """The text of a page of the web. A ValueError says that the address is not public, or the page no text; an OSError, that the
    server does not answer."""
    _check_public(address)
    quoted = quote(address, safe="%/:?#[]@!$&'()*+,;=~")
    request = Request(quoted, headers={"User-Agent": "learngraph read_page", "Accept": "text/html, text/*;q=0.9"})
    with build_opener(_PublicRedirects).open(request, timeout=_SECONDS) as reply:
        kind = reply.headers.get_content_type()
        if not kind.startswith("text/") and not kind.endswith(("json", "xml")):
            raise ValueError(f"{address} is {kind}, and only text can be read")
        content = reply.read(_MAX_BYTES)
        named = re.search(rb"charset=[\"']?([\w-]+)", content[:2048])  # within the page
        charset = reply.headers.get_content_charset() or (named[1].decode() if named else "utf-8")
        text = content.decode(charset, errors="replace")
        return page_text(text, reply.url)[1] if "html" in kind else text


class _PublicRedirects(HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Request | None:
        _check_public(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_public(address: str) -> None:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{address!r} is no address of the web; one begins with https://")
    for found in socket.getaddrinfo(parts.hostname, None):
        if not ipaddress.ip_address(found[4][0]).is_global:
            raise ValueError(f"{parts.hostname} is no public server")
