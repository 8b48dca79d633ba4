"""Search tools: what is found, what is wrong with a corpus, and which key or package is missing. Nothing is asked of the web."""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from learngraph.memory.errors import UserError
from learngraph.tools.agent_tools import search as module
from learngraph.tools.agent_tools.search import search_tool, web_search_tool

bm25 = pytest.mark.skipif(find_spec("bm25s") is None, reason="NOT TESTED: no bm25s (pip install 'learngraph[worlds]')")
PASSAGES = [
    {"title": "Tides", "text": "The tide turns twice a day."},
    {"title": "Lamps", "text": "A lamp burns oil. The tide does not matter to it."},
    {"title": "Bread", "text": "Bread is made of flour."},
]


def written(path: Path, *items: Any) -> Path:
    path.write_text("".join(f"{item if isinstance(item, str) else json.dumps(item)}\n" for item in items))
    return path


@bm25
async def test_the_best_passages_come_first() -> None:
    tool = search_tool(PASSAGES, k=2)
    assert (tool.name, list(tool.args)) == ("search", ["query"])
    found = tool.invoke({"query": "tide"})
    assert found == "[Tides] The tide turns twice a day.\n\n[Lamps] A lamp burns oil. The tide does not matter to it."
    assert await tool.ainvoke({"query": "tide"}) == found
    assert search_tool(PASSAGES, k=1).invoke({"query": "flour"}) == "[Bread] Bread is made of flour."
    assert tool.invoke({"query": "submarines"}).startswith("Nothing found")
    assert tool.invoke({"query": ""}).startswith("Nothing found")


@bm25
def test_a_title_that_is_just_what_was_asked_goes_first() -> None:
    corpus = [
        {"title": "Lamp lamp", "text": "lamp lamp lamp"},
        {"title": "Oil", "text": "A long text in which nothing else is said."},
    ]
    corpus += [{"title": f"T{n}", "text": "oil oil"} for n in range(2)]
    assert search_tool(corpus, k=3).invoke({"query": "oil?"}).startswith("[Oil]")


@bm25
def test_a_file_is_read_with_or_without_titles_and_again_when_it_changes(tmp_path: Path) -> None:
    path = written(tmp_path / "c.jsonl", *PASSAGES, "", {"text": "No title here."})
    assert "[] No title here." in search_tool(path).invoke({"query": "title"})
    written(path, {"title": "New", "text": "Entirely new."})
    os.utime(path, ns=(1, 1))
    assert search_tool(str(path)).invoke({"query": "entirely"}) == "[New] Entirely new."


@bm25
def test_our_own_questions_and_files_like_theirs_are_a_corpus(tmp_path: Path) -> None:
    assert "Gannet Light is a lighthouse" in search_tool().invoke({"query": "Gannet Light"})
    path = written(
        tmp_path / "h.jsonl", {"question": "?", "answer": "!", "context": [["A", ["One.", "Two."]], ["B", ["Three."]]]}
    )
    assert search_tool(path).invoke({"query": "two"}) == "[A] One. Two."


@bm25
def test_answers_of_questions_are_in_no_passage() -> None:
    """The corpus holds passages, and not the questions with their answers that stand in the same file."""
    assert "question" not in search_tool(k=20).invoke({"query": "answer question bridge comparison"})


@bm25
def test_long_passages_are_cut() -> None:
    found = search_tool([{"title": "Long", "text": "word " * 5000}]).invoke({"query": "word"})
    assert len(found) < 1600
    assert found.endswith("…")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["{"], "line 1 is no JSON"),
        ([PASSAGES[0], "[1]"], "line 2: a passage is an object"),
        ([{"title": "x"}], "a passage is an object"),
        ([{"title": 3, "text": "x"}], "a passage is an object"),
        ([{"context": [["A"]]}], "`context` is a list"),
        ([], "is empty; expected are passages"),
    ],
)
def test_a_corpus_that_cannot_be_read_is_told_where(tmp_path: Path, lines: list[Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        search_tool(written(tmp_path / "c.jsonl", *lines))


def test_no_file_no_passages_and_no_k(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*nowhere"):
        search_tool(tmp_path / "nowhere.jsonl")
    with pytest.raises(UserError, match="holds no passage"):
        search_tool([])
    with pytest.raises(UserError, match="k is at least 1"):
        search_tool(PASSAGES, k=0)
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot read"):
        search_tool(tmp_path / "b")


# The web, without asking it


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAVILY_API_KEY", raising=False)


def test_without_a_key_it_says_what_would_do() -> None:
    with pytest.raises(UserError, match=r"set TAVILY_API_KEY \(package langchain-tavily\)"):
        web_search_tool()
    with pytest.raises(UserError, match="k is at least 1"):
        web_search_tool(0)


def test_with_a_key_and_no_package_it_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(module, "import_module", missing)
    monkeypatch.setenv("TAVILY_API_KEY", "k")
    with pytest.raises(UserError, match="TAVILY_API_KEY is set, but its package is missing: pip install langchain-tavily"):
        web_search_tool()


def test_the_tool_is_tavilys(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("langchain_tavily", reason="NOT TESTED: no langchain-tavily")
    monkeypatch.setenv("TAVILY_API_KEY", "tvly-test")
    tool = web_search_tool(4)
    assert (tool.name, tool.max_results) == ("tavily_search", 4)  # type: ignore[attr-defined]
    assert "query" in tool.args
