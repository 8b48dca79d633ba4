"""Search tools for agents: over the passages of a file, offline (BM25), or over the web with a key.

    search_tool("passages.jsonl", k=3)     # a JSON object per line, with `title` and `text`
    search_tool()                          # the passages of `hotpot?source=own`
    web_search_tool()                      # Tavily with TAVILY_API_KEY, else SerpAPI with SERPAPI_API_KEY

The local search (`environments/support/ranking.py`) is deterministic on every machine and needs `bm25s` (the extra `[worlds]`). The web
search sends the model's queries to the service whose key is set; its results change from day to day.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool

from ...memory.errors import UserError
from ..environments.support.question_files import read_objects
from ..environments.support.ranking import Ranking, words

__all__ = ["SearchError", "search_tool", "web_search_tool"]

_OWN_PASSAGES = Path(__file__).parents[1] / "environments" / "data" / "questions.jsonl"
_MAX_PASSAGE_CHARS = 1500
"""Longest passage that is shown, in characters."""

_DESCRIPTION = "Searches a collection of passages and returns those that fit the query best, each with its title and text."


class SearchError(UserError):
    """A corpus that cannot be read, or a search that lacks a key or a package."""


def search_tool(corpus: str | Path | Iterable[Mapping[str, str]] | None = None, k: int = 3) -> BaseTool:
    """A tool named `search`, which takes `query` and answers with the `k` passages that fit best.

    Args:
        corpus: a file with a JSON object per line that has `title` and `text`, or such objects; None: the passages of the
            questions that come with learngraph. A file is read and indexed once per process as long as it stays the same.
        k: passages in an answer, at least 1.

    Raises:
        SearchError: the corpus cannot be read or is empty, or k is too small.
        UserError: `bm25s` is not installed.
    """
    if k < 1:
        raise SearchError(f"search: k is at least 1, got {k}")
    if corpus is None or isinstance(corpus, str | Path):
        path = _OWN_PASSAGES if corpus is None else Path(corpus)
        try:
            stamp = path.stat().st_mtime_ns
        except OSError as error:
            raise SearchError(f"search: cannot read {path}: {error.strerror or error}") from error
        passages, ranking = _load_index(path, stamp)
    else:
        passages = tuple(_passage(item, f"passage {n}") for n, item in enumerate(corpus, 1))
        ranking = _make_ranking(passages, "the corpus")

    def search(query: str) -> str:
        found = _best(passages, ranking, query, k)
        if not found:
            return "Nothing found: no passage has a word of this query. Try other words."
        return "\n\n".join(f"[{title}] {_cut(text)}" for title, text in found)

    return StructuredTool.from_function(search, name="search", description=_DESCRIPTION)


@lru_cache(maxsize=4)
def _load_index(path: Path, stamp: int) -> tuple[tuple[tuple[str, str], ...], Ranking]:
    """The passages of a file and their index, shared by the tools of all rollouts; `stamp` is the file's time of change."""
    items = read_objects("search", path, "expected are passages, one JSON object with title and text in each line")
    known = tuple(dict.fromkeys(passage for where, item in items for passage in _passages(item, f"{path} {where}")))
    return known, _make_ranking(known, str(path))


def _passages(item: Any, where: str) -> list[tuple[str, str]]:
    """The passages of a line: one, or those of a question in HotpotQA's layout."""
    if isinstance(item, Mapping) and isinstance(item.get("context"), list):
        try:
            return [(str(title), " ".join(sentences)) for title, sentences in item["context"]]
        except (TypeError, ValueError) as error:
            raise SearchError(f"search: {where}: `context` is a list of [title, [sentence, ...]]") from error
    return [_passage(item, where)]


def _passage(item: Any, where: str) -> tuple[str, str]:
    if not isinstance(item, Mapping) or not isinstance(item.get("text"), str) or not isinstance(item.get("title", ""), str):
        raise SearchError(
            f'search: {where}: a passage is an object like {{"title": "...", "text": "..."}}, got {str(item)[:80]!r}'
        )
    return item.get("title", ""), item["text"]


def _make_ranking(passages: Sequence[tuple[str, str]], source: str) -> Ranking:
    if not passages:
        raise SearchError(f"search: {source} holds no passage")
    return Ranking([f"{title}\n{text}" for title, text in passages], "search")


def _best(passages: Sequence[tuple[str, str]], ranking: Ranking, query: str, k: int) -> list[tuple[str, str]]:
    """The best passages. One whose title equals the query goes first."""
    asked = words(query)
    places = ranking.top_places(query, k + 1)
    named = next((place for place in places if asked and words(passages[place][0]) == asked), None)
    if named is not None:
        places = [named, *(place for place in places if place != named)]
    return [passages[place] for place in places[:k]]


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_PASSAGE_CHARS else f"{text[: _MAX_PASSAGE_CHARS - 1].rstrip()}…"


def web_search_tool(k: int = 5) -> BaseTool:
    """A tool that searches the web and takes a query, through LangChain's packages. Making the tool sends nothing.

    Args:
        k: results in an answer, at least 1.

    Raises:
        SearchError: no key is set, or its package is missing; the message names the keys and packages.
    """
    if k < 1:
        raise SearchError(f"web search: k is at least 1, got {k}")
    if os.environ.get("TAVILY_API_KEY"):
        tavily = _package("langchain_tavily", "langchain-tavily", "TAVILY_API_KEY")
        return tavily.TavilySearch(max_results=k)  # type: ignore[no-any-return]
    if os.environ.get("SERPAPI_API_KEY"):
        community = _package("langchain_community.utilities", "langchain-community", "SERPAPI_API_KEY")
        _package("serpapi", "google-search-results", "SERPAPI_API_KEY")
        service = community.SerpAPIWrapper(params={"engine": "google", "num": k})

        def search(query: str) -> str:
            return str(service.run(query))

        async def asearch(query: str) -> str:
            return str(await service.arun(query))

        about = "Searches the web and returns what was found for the query."
        return StructuredTool.from_function(search, asearch, name="web_search", description=about)
    raise SearchError(
        "web search: no key is set; set TAVILY_API_KEY (package langchain-tavily) or SERPAPI_API_KEY (packages "
        "langchain-community and google-search-results), or search local passages (search_tool)"
    )


def _package(module: str, package: str, key: str) -> Any:
    try:
        return import_module(module)
    except ImportError as cause:
        raise SearchError(f"web search: {key} is set, but its package is missing: pip install {package}") from cause
