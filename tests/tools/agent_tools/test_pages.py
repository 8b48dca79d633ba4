"""The page reader: pages of a corpus, saved pages of a site, parts, and what is fetched of the web and what never is."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.error import HTTPError

import pytest

from learngraph.memory.errors import UserError
from learngraph.tools.agent_tools import pages
from learngraph.tools.agent_tools.page_text import page_text
from learngraph.tools.agent_tools.pages import page_tool
from learngraph.tools.agent_tools.search import search_tool

PAGE = (
    "<html><head><title>The\n Tides</title><style>p {}</style></head><body><h1>Tides</h1><script>var x;</script>"
    "<p>Twice a <b>day</b>.\n See <a href='moon.html#top'>the moon</a>, <a href='#x'>below</a>.</p>"
    "<table><tr><td>high</td><td>5 m</td></tr></table><br>End &amp; out</body></html>"
)
TEXT = "Tides\nTwice a day. See the moon (sea/moon.html#top), below.\nhigh 5 m\nEnd & out"


def test_the_text_of_a_page() -> None:
    assert page_text(PAGE, "sea/tides.html") == ("The Tides", TEXT)
    assert page_text("<p>open <b>tags <a href='https://e.org/'>x", "") == ("", "open tags x")


def test_pages_of_a_corpus_are_read_by_title_or_address(tmp_path: Path) -> None:
    rows = [
        {"title": "Tides", "text": "First.", "url": "https://sea.example/tides/"},
        {"title": "Lamps", "text": "Oil."},
        {"title": "Tides", "text": "Second."},
        {"title": "Long", "text": "x" * 6000 + "y"},
    ]
    file = tmp_path / "c.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    tool = page_tool(file)

    def read(address: str, **more: int) -> str:
        return str(tool.invoke({"address": address, **more}))

    assert read(" tides") == "First.\nSecond."
    assert read("https://sea.example/tides") == "First."
    assert read("Long") == "x" * 6000 + "\n[part 1 of 2]"
    assert read("Long", part=2) == "y\n[part 2 of 2]"
    assert read("Long", part=3) == "The page has 2 parts, got part=3."
    assert read("https://sea.example/moon").startswith("There is no page 'https://sea.example/moon'")
    assert page_tool().invoke({"address": "Gannet Light"}).startswith("Gannet Light is a lighthouse")


def test_a_folder_of_saved_pages_is_a_site(tmp_path: Path) -> None:
    (tmp_path / "sea").mkdir()
    (tmp_path / "sea" / "tides.html").write_text(PAGE)
    (tmp_path / "sea" / "moon.md").write_text("The moon pulls.")
    (tmp_path / "data.bin").write_bytes(b"\xff")
    assert page_tool(tmp_path).invoke({"address": "sea/tides.html"}) == TEXT
    found = pytest.importorskip("bm25s") and search_tool(tmp_path).invoke({"query": "pulls"})
    assert found == "[moon](sea/moon.md) The moon pulls."
    (tmp_path / "sea" / "moon.md").unlink()
    assert page_tool(tmp_path).invoke({"address": "moon"}).startswith("There is no page")
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="the corpus holds no passage"):
        search_tool(tmp_path / "none")


# The web


@pytest.fixture
def site() -> Iterator[str]:
    """A server on this machine."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, body = {
                "/tides.html": ("text/html; charset=latin-1", PAGE.replace("out", "dé").encode("latin-1")),
                "/%E6%BD%AE": ("text/html", '<meta charset="gbk"><p>潮'.encode("gbk")),
                "/plain": ("text/plain", b"<p>as it is"),
                "/image": ("image/png", b"\x89PNG"),
            }.get(self.path, ("text/html", b""))
            self.send_response(302 if self.path == "/away" else 200 if body else 404)
            self.send_header("content-type", kind)
            if self.path == "/away":
                self.send_header("location", "http://10.0.0.1/secrets")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_pages_of_the_web_are_fetched(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, check = page_tool(web=True), pages._check_public
    monkeypatch.setattr(pages, "_check_public", lambda address: None if address.startswith(site) else check(address))

    def read(path: str) -> str:
        return str(tool.invoke({"address": site + path}))

    assert read("/tides.html") == TEXT.replace("sea/", f"{site}/").replace("out", "dé")
    assert read("/潮") == read("/%E6%BD%AE") == "潮"
    assert read("/plain") == "<p>as it is"
    with pytest.raises(ValueError, match="is image/png, and only text can be read"):
        read("/image")
    with pytest.raises(HTTPError, match="404"):
        read("/nothing")
    with pytest.raises(ValueError, match=r"10\.0\.0\.1 is no public server"):
        read("/away")


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:1/", "http://[::1]/", "http://169.254.169.254/meta", "file:///etc/passwd", "x"]
)
def test_nothing_of_this_machine_or_its_network_is_fetched(address: str) -> None:
    with pytest.raises(ValueError, match="is no public server" if address.startswith("http") else "is no address of the web"):
        page_tool(web=True).invoke({"address": address})
