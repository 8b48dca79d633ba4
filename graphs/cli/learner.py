"""`learngraph learner`: CLaaS's learner on a machine of its own, for a service elsewhere.

    LEARNGRAPH_LEARNER_KEY=secret learngraph learner --model local:Qwen/Qwen3-8B --device cuda --dtype bfloat16 \\
        --host 0.0.0.0 --hand-over s3://bucket/adapters

    LEARNGRAPH_LEARNER_KEY=secret learngraph serve … --trainer remote --learner-url http://HOST:8100 --hand-over s3://bucket/adapters

It keeps nothing: kill it, start it again, and the service goes on where it was. What it reads are chats with feedback; between machines
that do not trust their network, put both behind TLS.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...memory.errors import UserError
from .flags import parse_flags
from .serve_options import LOOPBACK_HOSTS

__all__ = ["LearnerOptions", "learner"]


@dataclass(frozen=True)
class LearnerOptions:
    """Options of a learner: its model, its address, and the place of the versions."""

    hand_over: str
    """The folder or object store that the service names, too: `s3://bucket/prefix`, or any URL of fsspec."""
    model: str = "pocket"
    """The model that is trained: `pocket`, `guard` or `local:PATH_OR_NAME`, the same as the service's."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all. Others than this machine's need a key, in LEARNGRAPH_LEARNER_KEY."""
    port: int = 8100
    """Port to listen on; 0 takes a free one."""
    device: str = "cpu"
    """Device of the model: `cpu`, `cuda`."""
    dtype: str = "float32"
    """Number format of the model: `float32`, `bfloat16`."""
    threads: int | None = None
    """Threads of the model."""
    thinking: bool = False
    """The service has it, too: prompts must be those that were served."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise UserError(f"learner: --port is from 0 to 65535, got {self.port}")
        if self.model not in ("pocket", "guard") and not self.model.startswith("local:"):
            raise UserError(f"learner: no model {self.model!r}; use pocket, guard or local:PATH_OR_NAME")


def learner(args: Sequence[str]) -> int:
    """take gradient steps for a service on another machine: learngraph learner --hand-over FOLDER_OR_URL"""
    options = parse_flags(LearnerOptions, args, "learngraph learner", "Takes gradient steps for `learngraph serve` elsewhere.")
    key = os.environ.get("LEARNGRAPH_LEARNER_KEY", "")
    if not key and options.host not in LOOPBACK_HOSTS:
        raise UserError(f"learner: on --host {options.host} it needs a key, in the environment: LEARNGRAPH_LEARNER_KEY")
    from ...tools.serving.chat_server import check_address

    check_address(options.host, options.port)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same step gives the same bytes
    os.umask(0o077)
    with tempfile.TemporaryDirectory(prefix="learngraph-learner-") as scratch:
        asyncio.run(_serve(options, key, Path(scratch)))
        sys.stderr.write("closed\n")
        sys.stderr.flush()
    os._exit(0)  # a normal exit would wait for a step that nobody asks for any more


async def _serve(options: LearnerOptions, key: str, scratch: Path) -> None:
    from ...tools.models.models import open_model
    from ...tools.serving import chat_server
    from ...tools.serving.learner_server import LearnerWork, learner_app
    from ...tools.training.learner import make_deterministic
    from ...tools.training.version_store import VersionStore

    store = VersionStore(options.hand_over)
    make_deterministic(options.device)
    opened: Any = open_model(
        options.model, device=options.device, dtype=options.dtype, threads=options.threads, thinking=options.thinking
    )
    work = LearnerWork(opened, store, scratch)

    def ready(url: str) -> None:
        sys.stderr.write(f"learner of {options.model} at {url}; versions travel by {options.hand_over}\n")
        sys.stderr.flush()

    try:
        await chat_server.serve(learner_app(work, key), options.host, options.port, on_ready=ready)
    finally:
        work.close()
