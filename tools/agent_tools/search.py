"""Search tools for agents: over the passages of a corpus, offline (BM25), or over the web with a key.

    search_tool("passages.jsonl", k=3)     # a JSON object per line, with `text`, and `title` and `url` if they are known
    search_tool("pages/")                  # a folder of pages: .html, .md and .txt
    search_tool()                          # the passages of `hotpot`
    web_search_tool()                      # Tavily, with TAVILY_API_KEY

The local search (`environments/support/ranking.py`) is deterministic on every machine and needs `bm25s` (the extra `[worlds]`). The web
search sends the model's queries to the service whose key is set; its results change from day to day.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.tools import BaseTool, StructuredTool

from ...memory.errors import UserError
from ..environments.support.question_files import read_objects
from ..environments.support.ranking import Ranking, words
from .page_text import page_text

__all__ = ["SearchError", "search_tool", "web_search_tool"]

_OWN_PASSAGES = Path(__file__).parents[1] / "environments" / "data" / "questions.jsonl"
_PAGES = (".html", ".htm", ".md", ".txt")
"""Endings of the files of a folder that are read."""
_MAX_PASSAGE_CHARS = 1500
"""Longest passage that is shown, in characters."""

_DESCRIPTION = "Searches a collection of passages and returns those that fit the query best, each with its title and text."


class SearchError(UserError):
    """A corpus that cannot be read, or a search that lacks a key or a package."""


def search_tool(corpus: str | Path | Iterable[Mapping[str, str]] | None = None, k: int = 3) -> BaseTool:
    """A tool named `search`, which takes `query` and answers with the `k` passages that fit best.

    Args:
        corpus: a file with a JSON object per line that has `text` and perhaps `title` and `url`, or such objects; or a folder of
            pages (.html, .md, .txt); None: the passages of the questions that come with learngraph. It is read and indexed
            once per process as long as it stays the same.
        k: passages in an answer, at least 1.

    Raises:
        SearchError: the corpus cannot be read or is empty, or k is too small.
        UserError: `bm25s` is not installed.
    """
    if k < 1:
        raise SearchError(f"search: k is at least 1, got {k}")
    if corpus is None or isinstance(corpus, str | Path):
        passages = read_corpus(corpus)
    else:
        passages = tuple(_passage(item, f"passage {n}") for n, item in enumerate(corpus, 1))
    ranking = _make_ranking(passages)

    def search(query: str) -> str:
        found = _best(passages, ranking, query, k)
        if not found:
            return "Nothing found: no passage has a word of this query. Try other words."
        return "\n\n".join(f"[{one.title}]{f'({one.url})' if one.url else ''} {_cut(one.text)}" for one in found)

    return StructuredTool.from_function(search, name="search", description=_DESCRIPTION)


class Passage(NamedTuple):
    """A passage of a corpus: a text with its title and address, each empty if it is not known."""

    title: str
    text: str
    url: str = ""


def read_corpus(corpus: str | Path | None) -> tuple[Passage, ...]:
    """The passages of a corpus, as for `search_tool`."""
    path = _OWN_PASSAGES if corpus is None else Path(corpus)
    try:
        files = sorted(one for one in path.rglob("*") if one.suffix.lower() in _PAGES) if path.is_dir() else [path]
        read = [_read_file(file, path, file.stat().st_mtime_ns) for file in files]
    except OSError as error:
        raise SearchError(f"search: cannot read {path}: {error.strerror or error}") from error
    return tuple(dict.fromkeys(passage for passages in read for passage in passages))


@lru_cache(maxsize=4096)
def _read_file(file: Path, corpus: Path, stamp: int) -> tuple[Passage, ...]:
    """The passages of a corpus' file, which was changed at a time: of a folder one, with its path in the folder as its address."""
    if file == corpus:
        items = read_objects("search", file, "expected are passages, one JSON object with title and text in each line")
        return tuple(passage for where, item in items for passage in _passages(item, f"{file} {where}"))
    title, text = "", file.read_text(encoding="utf-8-sig", errors="replace")
    if file.suffix.lower().startswith(".htm"):
        title, text = page_text(text, file.relative_to(corpus).as_posix())
    return (Passage(title or file.stem, text, file.relative_to(corpus).as_posix()),)


def _passages(item: Any, where: str) -> list[Passage]:
    """The passages of a line: one, or those of a question in HotpotQA's layout."""
    if isinstance(item, Mapping) and isinstance(item.get("context"), list):
        try:
            return [Passage(str(title), " ".join(sentences)) for title, sentences in item["context"]]
        except (TypeError, ValueError) as error:
            raise SearchError(f"search: {where}: `context` is a list of [title, [sentence, ...]]") from error
    return [_passage(item, where)]


def _passage(item: Any, where: str) -> Passage:
    found: list[Any] = [item.get(key, "") for key in ("title", "text", "url")] if isinstance(item, Mapping) else [None]
    if not all(isinstance(one, str) for one in found) or "text" not in item:
        raise SearchError(
            f'search: {where}: a passage is an object like {{"title": "...", "text": "..."}}, got {str(item)[:80]!r}'
        )
    return Passage(*found)


@lru_cache(maxsize=4)
def _make_ranking(passages: tuple[Passage, ...]) -> Ranking:
    """The index of passages, shared by the tools of all rollouts."""
    if not passages:
        raise SearchError("search: the corpus holds no passage")
    return Ranking([f"{one.title}\n{one.text}" for one in passages], "search")


def _best(passages: Sequence[Passage], ranking: Ranking, query: str, k: int) -> list[Passage]:
    """The best passages. One whose title equals the query goes first."""
    asked = words(query)
    places = ranking.top_places(query, k + 1)
    named = next((place for place in places if asked and words(passages[place].title) == asked), None)
    if named is not None:
        places = [named, *(place for place in places if place != named)]
    return [passages[place] for place in places[:k]]


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_PASSAGE_CHARS else f"{text[: _MAX_PASSAGE_CHARS - 1].rstrip()}…"


def web_search_tool(k: int = 5) -> BaseTool:
    """A tool that searches the web and takes a query, through LangChain's package. Making the tool sends nothing.

    Args:
        k: results in an answer, at least 1.

    Raises:
        SearchError: no key is set, or its package is missing; the message names both.
    """
    if k < 1:
        raise SearchError(f"web search: k is at least 1, got {k}")
    if not os.environ.get("TAVILY_API_KEY"):
        raise SearchError(
            "web search: no key is set; set TAVILY_API_KEY (package langchain-tavily), or search local passages (search_tool)"
        )
    try:
        tavily = import_module("langchain_tavily")
    except ImportError as cause:
        raise SearchError(
            "web search: TAVILY_API_KEY is set, but its package is missing: pip install langchain-tavily"
        ) from cause
    return tavily.TavilySearch(max_results=k)  # type: ignore[no-any-return]
