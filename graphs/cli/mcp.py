"""`learngraph mcp --memory FOLDER|URL`: a memory as tools of the Model Context Protocol, for agents that are not Python's.

learngraph mcp --memory my-memory                                  # over stdin and stdout, as clients start a server
learngraph mcp --memory my-memory --model openai:NAME --scope tenant user_id? --http 8000
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...memory.errors import CommandError
from .flags import parse_flags

__all__ = ["mcp"]


@dataclass(frozen=True)
class McpOptions:
    """Options of `learngraph mcp`: the memory, the method, and whose memory is meant."""

    memory: str
    """Place of the memories: a folder (SQLite, which processes share), `postgresql://...`, or a Chroma server's `http://host:port`."""
    method: str = ""
    """The method: `reasoning-bank`, `adamem`, `icrl`, `lessons`, `reflexion` or `synapse`. Default: `reasoning-bank` with --model, else
    `icrl`."""
    model: str = ""
    """The model, such as `openai:NAME`, that writes lessons or strategies; `icrl` and `synapse` need none."""
    base_url: str | None = None
    """The server behind the model, for `openai:MODEL`."""
    agent_name: str = "agent"
    """The name of the agent (`name=` of its middleware). Agents of one name share what they learn."""
    scope: tuple[str, ...] = ("tenant?",)
    """Names of the values that keep conversations apart, which clients give with each call; one with a question mark may be missing.
    `tenant=acme` serves this tenant alone, whatever a client says."""
    control: float = 0.0
    """Share of the conversations that get no advice, in [0, 0.5]: `lift` says what advice is worth."""
    holdout: float = 0.0
    """Probability, in [0, 0.5], with which one recalled item is withheld: `lift` says what each item is worth."""
    http: int | None = None
    """Port of this machine for streamable HTTP, at /mcp. Default: stdin and stdout."""


def mcp(args: Sequence[str]) -> int:
    """Serve a memory until the client leaves, or until Ctrl-C. Returns the exit status."""
    options = parse_flags(McpOptions, args, "learngraph mcp", (__doc__ or "").partition("\n\n")[0])
    if options.http is not None and not 0 < options.http < 65_536:
        raise CommandError(f"--http is a port from 1 to 65535, got {options.http}")
    from ...tools.models.models import open_model
    from ..agents.mcp_tools import memory_server
    from ..agents.methods import make_learner

    method = options.method or ("reasoning-bank" if options.model else "icrl")
    pairs = [one.partition("=") for one in options.scope]
    more: dict[str, Any] = {"control": options.control, "holdout": options.holdout, "name": options.agent_name}
    model = open_model(options.model, base_url=options.base_url) if options.model else None
    learner = make_learner(method, options.memory, model, scope=[name for name, _, _ in pairs], **more)
    server = memory_server(learner, model, {name: value for name, equals, value in pairs if equals})
    try:
        if options.http is None:
            server.run("stdio")
        else:
            sys.stderr.write(f"{method} of {options.memory} at http://127.0.0.1:{options.http}/mcp\n")
            server.run("streamable-http", port=options.http, stateless_http=True)
    finally:
        learner.close()
    return 0
