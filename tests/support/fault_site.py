"""A small web site whose pages misbehave, on a free port of 127.0.0.1.

with FaultSite() as site:
    site.url   # "http://127.0.0.1:43123"
"""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from waiting import PATIENCE

PAGES = {
    "/dialog": """<title>Dialog</title><button onclick="document.title = confirm('Sure?') ? 'yes' : 'no'; alert(document.title)">Ask</button>
<script>alert('Welcome, "you"')</script>""",
    "/frame": """<title>Frame</title><button onclick="document.title = 'outer'">Go, 'it'</button>
<iframe srcdoc="<button onclick=&quot;parent.document.title = 'inner'&quot;>Go, 'it'</button><input aria-label='in a frame'>"></iframe>
<div id="host"></div><script>document.getElementById('host').attachShadow({mode: 'open'}).innerHTML =
'<button onclick="document.title = \\'shadow\\'">Deep [x]</button>'</script>""",
    "/vanish": """<title>Vanish</title><button id="gone">Gone</button> <button id="covered" onclick="document.title='hit'">Covered</button>
<div style="position:fixed;inset:0;background:white;opacity:.5"></div>
<script>window.stays = 0; setTimeout(() => document.getElementById('gone').remove(), 1500)</script>""",
    "/closed": "<title>Closed</title><button onclick='while (true) {}'>Spin</button>",
    "/labels": """<title>Labels</title><input aria-label="Name, first [as in 'pass']"> <input aria-label='Say "hi"' value="x">
<a href="#a">O'Neil, Ann</a> <a href="#b">O'Neil, Ann</a> <a href="#c">a ] b</a> <a href="#d">back\\slash, (x) #2</a>
<iframe srcdoc="<input aria-label=&quot;Name, first [as in 'pass']&quot;><a href='#e'>O'Neil, Ann</a>"></iframe>
<script>for (const link of document.links) link.onclick = () => document.title = link.hash;
document.querySelector('iframe').onload = event => event.target.contentDocument.querySelector('a').onclick = () => document.title = '#e';
</script>""",
}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        site: FaultSite = self.server.site  # type: ignore[attr-defined]
        path = self.path.partition("?")[0]
        if path == "/never":
            site.gone.wait(PATIENCE)
            return
        page = PAGES.get(path, "<title>None</title>")
        site.seen.append(path)
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(f"<!DOCTYPE html><html><head></head><body>{page}</body></html>".encode())

    def log_message(self, *args: object) -> None:
        """Be quiet."""


class FaultSite:
    """The site, as a context manager."""

    def __init__(self) -> None:
        self.gone = threading.Event()
        self.seen: list[str] = []
        """The pages that were asked for."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.site = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "FaultSite":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.gone.set()
        self._server.shutdown()
        self._server.server_close()
