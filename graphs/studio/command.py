"""`learngraph studio [METHOD | MODULE:GRAPH | FILE.mmd | RUN_FOLDER]`: draw a graph, walk through it, and look at runs, on a page.

The page is served on 127.0.0.1 with a key, and needs nothing from elsewhere. Its libraries lie in the wheel, bundled (420 kB), and nothing
is built when it is installed. They are Preact with htm, which need no compiler; dagre, which lays graphs out in Mermaid, too; and
CodeMirror, which marks lines and has undo, completion and keys. Mermaid itself would be 3 MB, would draw what our parser does not read, and
its boxes could not be lit or chosen with the keyboard.
"""

from __future__ import annotations

import os
import secrets
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

from ...memory.errors import UserError
from ..cli.flags import parse_flags
from .options import StudioOptions

if TYPE_CHECKING:
    from .studio import Studio

__all__ = ["studio"]


def studio(args: Sequence[str]) -> int:
    """Serve the page until Ctrl-C. Returns the exit status."""
    options = parse_flags(StudioOptions, args, "learngraph studio", (__doc__ or "").partition("\n\n")[0])
    try:
        from ...tools.serving.studio_server import StudioServer
    except ImportError as error:
        raise UserError(f"the studio needs a web server ({error}): pip install 'learngraph[serve]'") from error

    if options.target.endswith(".mmd") and not (flow := options.flow or Path(options.target)).exists():
        print(f"{flow} is a new drawing: it is written when you save it", flush=True)
    key = os.environ.get("LEARNGRAPH_STUDIO_KEY", "").strip() or secrets.token_urlsafe(24)
    if len(key) < 16 or not key.replace("-", "").replace("_", "").isalnum():
        raise UserError(
            "LEARNGRAPH_STUDIO_KEY is a secret of at least 16 letters, digits, - and _; `openssl rand -hex 24` makes one"
        )
    server = StudioServer(open_studio(options), key, options.port)
    print(f"{server.url}\nthe studio is open; Ctrl-C ends it", flush=True)
    has_screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if options.browser and has_screen:
        Timer(0.5, webbrowser.open, [server.url]).start()
    server.run()
    return 0


def open_studio(options: StudioOptions) -> Studio:
    """The studio that these options ask for, without its server.

    Raises:
        UserError: there is no such method, graph, drawing or folder.
    """
    from .run_view import FolderView
    from .studio import Studio
    from .targets import drawing_target, graph_target, is_method, method_target

    target = options.target
    if not target:
        folders = sorted(one.parent for one in Path("runs").glob("*/settings.json"))
        return Studio("runs", folders=[FolderView(one) for one in folders], opens="runs")
    if target.endswith(".mmd"):
        return drawing_target(options)
    if Path(target).is_dir():
        return Studio(target, folders=[FolderView(Path(target))], opens="runs")
    if f"{target}/".startswith((".", "/", "runs/")) and ".py" not in target:
        raise UserError(f"there is no folder {target}; give a method, MODULE:GRAPH, FILE.mmd or the folder of a run")
    return method_target(options) if is_method(target) else graph_target(options)
