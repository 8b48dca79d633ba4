"""The options of `learngraph serve`, and which of them go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...memory.errors import UserError
from ...memory.storage.open_store import is_postgres

__all__ = ["LOOPBACK_HOSTS", "ServeOptions"]

LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class ServeOptions:
    """Options of the service: its model, its clients, and the folder of what it learns."""

    model: str = "pocket"
    """The model: `pocket`, `guard`, `local:PATH_OR_NAME`, or `vllm:MODEL` behind --base-url (see `learngraph list`)."""
    base_url: str | None = None
    """The server behind the model, for `vllm:MODEL`, such as `http://127.0.0.1:8001/v1`."""
    weights: str | None = None
    """With `vllm:`, the same model for this machine to train, `local:PATH_OR_NAME`; not needed where another one learns, or none. With
    --trainer tinker, its name on the service, where that is another one: `Qwen/Qwen3-8B`."""
    name: str | None = None
    """Public name of the model, which clients send as `model`. Default: the last part of --model."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    out: Path = Path("runs/claas")
    """The output: a folder for the replay buffer and all versions."""
    buffer: str = ""
    """The replay buffer: `postgresql://USER@HOST/DATABASE`, where several services share it. Default: a SQLite file in --out."""
    api_key: tuple[str, ...] = ()
    """Keys of the tenant `default`; the flag may be repeated. Default: those of LEARNGRAPH_API_KEY, joined by commas."""
    keys: Path | None = None
    """A YAML file with the keys and limits of several tenants: `acme: {keys: [...], requests_per_minute: 60}`."""
    no_auth: bool = False
    """Accept any key; only on 127.0.0.1."""
    metrics_key: tuple[str, ...] = ()
    """Keys that may read /metrics of all tenants, and nothing else."""
    open_metrics: bool = False
    """/metrics needs no key."""
    trainer: Literal["process", "inline", "remote", "tinker", "off"] = "process"
    """The learner's place: another process at low priority; this one, in turns with the replies; `learngraph learner` behind
    --learner-url; a Tinker service (TINKER_API_KEY; --learner-url names another one than the hosted); or no learner at all."""
    learner_url: str | None = None
    """The learner's address, such as `http://gpu:8100`; with --trainer remote, its key is read from LEARNGRAPH_LEARNER_KEY."""
    hand_over: str | None = None
    """A folder or an object store (`s3://bucket/prefix`; a URL of fsspec) by which adapters reach a learner or a vLLM server on another
    machine. For this service alone."""
    engine_path: str = ""
    """The folder under which the vLLM server sees --hand-over. Default: the same folder."""
    retention_file: Path | None = None
    """A JSONL file of chats (`{"messages": [...]}`, the assistant's reply last) whose replies must stay likely, for the gate."""
    max_body_bytes: int = 1 << 20
    """Largest request, in bytes."""
    max_connections: int = 1000
    """Connections at once. Beyond that, those on which no request is being answered are closed."""
    device: str = "cpu"
    """Device of the model: `cpu`, `cuda`. Not for `vllm:MODEL`."""
    dtype: str = "float32"
    """Number format of the model: `float32`, `bfloat16`. Not for `vllm:MODEL`."""
    threads: int | None = None
    """Threads of a model in this process."""
    learner_threads: int = 1
    """Threads of the learner's process."""
    learner_nice: int = 19
    """Priority of the learner's process, from 0 to 19, the lowest: replies come first. On a busy machine it may never learn."""
    thinking: bool = False
    """Let a model that can (Qwen3) think before it replies. Thoughts count as tokens, and come apart from the text, as
    `reasoning_content`."""
    max_streams: int = 256
    """Replies that are generated at the same time; others wait."""
    prompts: Path | None = None
    """A directory with prompt files. They replace those of the same name (`claas/hindsight.md`)."""

    def __post_init__(self) -> None:
        if self.buffer and not is_postgres(self.buffer):
            raise UserError(f"serve: --buffer is postgresql://USER@HOST/DATABASE, got {self.buffer!r}; a file lies in --out")
        if not 0 <= self.learner_nice < 20:
            raise UserError(f"serve: --learner-nice is from 0 to 19, got {self.learner_nice}")
        if self.model not in ("pocket", "guard") and not self.model.startswith(("local:", "vllm:")):
            raise UserError(f"serve: no model {self.model!r}; use pocket, guard, local:PATH_OR_NAME or vllm:MODEL")
        if self.max_connections < 1:
            raise UserError(f"serve: --max-connections is at least 1, got {self.max_connections}")
        if not 0 <= self.port < 65536:
            raise UserError(f"serve: --port is from 0 to 65535, got {self.port}")
        if self.no_auth and self.host not in LOOPBACK_HOSTS:
            raise UserError(
                f"serve: --no-auth lets every client in and needs --host 127.0.0.1, not {self.host}; give --api-key KEY"
            )
        if self.model.startswith("vllm:") != (self.base_url is not None):
            raise UserError("serve: a vLLM server is named by --model vllm:MODEL and --base-url URL, both or neither")
        if self.model.startswith("vllm:") and self.weights is None and self.trainer == "process":
            raise UserError(
                "serve: to learn, this machine opens the model too: --weights local:PATH_OR_NAME, or --trainer remote or off"
            )
        if self.model.startswith("vllm:") and self.trainer == "inline":
            raise UserError("serve: --trainer inline takes turns with replies of this process; with vllm: it is another one")
        if self.trainer == "remote" and self.learner_url is None:
            raise UserError("serve: --trainer remote needs --learner-url URL, the address of `learngraph learner`")
        if self.learner_url is not None and self.trainer not in ("remote", "tinker"):
            raise UserError("serve: --learner-url is for --trainer remote or tinker")
        if self.trainer == "tinker" and not self.model.startswith("vllm:"):
            raise UserError(
                "serve: --trainer tinker trains a model that a vLLM server answers with: --model vllm:MODEL --base-url URL"
            )
        if self.trainer == "remote" and self.hand_over is None:
            raise UserError("serve: --trainer remote needs --hand-over FOLDER_OR_URL, by which adapters travel")
        if self.hand_over is not None and self.trainer != "remote" and not self.model.startswith("vllm:"):
            raise UserError("serve: --hand-over is for --trainer remote or a vLLM server; here all is on this machine")
        if self.engine_path and (self.hand_over is None or not self.model.startswith("vllm:")):
            raise UserError("serve: --engine-path is where a vLLM server sees --hand-over; it needs both")
