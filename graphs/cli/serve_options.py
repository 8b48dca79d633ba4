"""The options of `learngraph serve`, and which of them go together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import UseAppendAction

from ...memory.errors import UserError, did_you_mean
from ...memory.storage.open_store import is_postgres

__all__ = ["ServeOptions"]

LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")
IN_PROMPTS = ("max_user_share", "raters", "hold", "unlearned_tools", "control")
HEADINGS: Mapping[str, Sequence[str]] = {
    "options": (
        "model",
        "base_url",
        "learn",
        "graph",
        "weights",
        "name",
        "host",
        "port",
        "out",
        "api_key",
        "api_key_file",
        "keys",
        "learner",
        "device",
    ),
    "clients": ("no_auth", "log_requests", "open_metrics", "livez_port", "max_body_bytes", "max_connections"),
    "replies": ("thinking", "max_streams", "reply_gib", "dtype", "threads", "answer_unrecorded"),
    "learning in prompts (--learn)": IN_PROMPTS,
    "learning": ("buffer", "retention_file", "prompts", "seed", "engine_path", "learner_threads", "learner_nice"),
}
"""Heading of `--help-all` -> options; those of the first stand in `--help`."""


@dataclass(frozen=True)
class ServeOptions:
    """Options of the service: its model, its clients, and the folder of what it learns."""

    model: str = "guard"
    """The model: `pocket`, `guard`, `local:PATH_OR_NAME`, or `vllm:MODEL` behind --base-url (see `learngraph list`); with --learn also
    `openai:MODEL`."""
    base_url: str | None = None
    """The server behind the model, for `vllm:MODEL` and `openai:MODEL`, such as `http://127.0.0.1:8001/v1`."""
    learn: str = ""
    """A method that learns in the prompts of a model whose weights stay as they are, such as somebody else's: `reasoning-bank`, `adamem`,
    `icrl` or `lessons`."""
    graph: str = ""
    """With --learn, a graph of your own: `my_app:make_agent`, a function of (model, middleware) that returns an agent."""
    max_user_share: float = 0.25
    """With --learn, the largest share of what another user is shown that one end user, a request's `user`, may hold; 1: no limit."""
    raters: Annotated[tuple[str, ...], UseAppendAction] = ()
    """With --learn, a `source`, as clients say it, whose feedback is taken; the flag may be repeated. Default: any."""
    hold: bool = False
    """With --learn, learn from a rated reply only after a person has released it, on /dashboard or by POST /v1/experiences/ID/release."""
    unlearned_tools: Annotated[tuple[str, ...], UseAppendAction] = ()
    """With --learn, a tool of which nothing is learned, neither its calls nor its results; the flag may be repeated."""
    control: float = 0.0
    """Share of the conversations that get no advice, with --learn (each reply is one): /v1/status says what advice is worth (`lift`)."""
    weights: str | None = None
    """With `vllm:`, the same model for the learner, `local:PATH_OR_NAME`. Default with --learner ray, which alone opens it: `local:MODEL`."""
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
    answer_unrecorded: bool = False
    """Answer also while nothing can be stored (a full disk). Such replies take no feedback, and the log names them."""
    api_key: Annotated[tuple[str, ...], UseAppendAction] = ()
    """Keys of the tenant `default`; the flag may be repeated. Default: those of LEARNGRAPH_API_KEY, joined by commas."""
    keys: Path | None = None
    """A YAML file with the keys and limits of several tenants: `acme: {keys: [...], streams: 50}`; one with `metrics: true`
    reads /metrics of all tenants, and nothing else."""
    api_key_file: Path | None = None
    """A file with keys of the tenant `default`, one a line, such as a secret of Docker or Kubernetes."""
    log_requests: bool = False
    """Log each request: its id, method, route, status and time, and nothing of what it says."""
    no_auth: bool = False
    """Accept any key, and none; only on 127.0.0.1."""
    open_metrics: bool = False
    """/metrics needs no key."""
    livez_port: int | None = None
    """A port on which a process of its own says that the server is alive, however busy it is; 503 once it has hung for 30 s."""
    learner: str = "process"
    """The learner's place: `process`, another process at low priority; `inline`, this one, in turns with the replies; `ray` or
    `ray://HOST:PORT`, an actor on a Ray cluster, with a GPU if --device is not `cpu`; `off`."""
    engine_path: str = ""
    """The folder under which a vLLM server on another machine sees `adapters` of --out. Default: under the same path."""
    retention_file: Path | None = None
    """A JSONL file of chats (`{"messages": [...]}`, the assistant's reply last) whose replies must stay likely: steps hold seven of eight, the
    gate reads the others. Default: `claas/retention.jsonl` in the folder of the model's weights, if the model is in this process."""
    max_body_bytes: int = 1 << 20
    """Largest request, in bytes."""
    max_connections: int = 1000
    """Connections at once. Beyond that, those on which no request is being answered are closed."""
    device: str = "cpu"
    """Device of the model: `cpu`, `cuda`. With `vllm:MODEL`, the learner's."""
    dtype: str = "float32"
    """Number format of the model: `float32`, `bfloat16`. With `vllm:MODEL`, the learner's."""
    threads: int | None = None
    """Threads of a model in this process."""
    learner_threads: int = 1
    """Threads of the learner's process."""
    learner_nice: int = 19
    """Priority of the learner's process, from 0 to 19, the lowest: replies come first. On a busy machine it may never learn. Except at 0,
    the learner also rests after each step, while replies are under way."""
    thinking: bool = False
    """Let a model that can (Qwen3) think before it replies. Thoughts count as tokens, and come apart from the text, as
    `reasoning_content`."""
    max_streams: int = 256
    """Replies that are generated at the same time; others wait."""
    reply_gib: float = 4.0
    """Memory for the keys and values of replies under way, in GiB; requests wait until theirs fit, tenants in turn."""
    prompts: Path | None = None
    """A directory with prompt files. They replace those of the same name (`claas/hindsight.md`)."""

    def __post_init__(self) -> None:
        if self.buffer and not is_postgres(self.buffer):
            raise UserError(f"serve: --buffer is postgresql://USER@HOST/DATABASE, got {self.buffer!r}; a file lies in --out")
        if not 0 <= self.learner_nice < 20:
            raise UserError(f"serve: --learner-nice is from 0 to 19, got {self.learner_nice}")
        if self.learn:
            self._check_context()
        elif self.model.startswith("openai:"):
            raise UserError(
                f"serve: the weights of {self.model} are not ours to train; --learn reasoning-bank learns in its context, and vllm:MODEL "
                "is a server whose adapters are"
            )
        elif self.graph:
            raise UserError("serve: --graph names an agent that learns in its context; give --learn reasoning-bank, too")
        elif given := [name for name in IN_PROMPTS if getattr(self, name) != getattr(type(self), name)]:
            raise UserError(
                f"serve: --{given[0].replace('_', '-')} is for learning in prompts; give --learn, such as reasoning-bank"
            )
        elif self.model not in ("pocket", "guard") and not self.model.startswith(("local:", "vllm:")):
            hint = did_you_mean(self.model, ("pocket", "guard")) or "; use pocket, guard, local:PATH_OR_NAME or vllm:MODEL"
            raise UserError(f"serve: no model {self.model!r}{hint}")
        for name in ("threads", "learner_threads", "max_streams", "max_connections", "max_body_bytes"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise UserError(f"serve: --{name.replace('_', '-')} is at least 1, got {count}")
        if self.prompts is not None and not self.prompts.is_dir():
            raise UserError(f"serve: --prompts {self.prompts} is no folder; it has prompt files, such as claas/hindsight.md")
        for name, port, least in (("port", self.port, 0), ("livez-port", 1 if self.livez_port is None else self.livez_port, 1)):
            if not least <= port < 65536:
                raise UserError(f"serve: --{name} is from {least} to 65535, got {port}")
        if self.no_auth and self.host not in LOOPBACK_HOSTS:
            raise UserError(
                f"serve: --no-auth lets every client in and needs --host 127.0.0.1, not {self.host}; give --api-key KEY"
            )
        if not self.learn and self.model.startswith("vllm:") != (self.base_url is not None):
            raise UserError("serve: a vLLM server is named by --model vllm:MODEL and --base-url URL, both or neither")
        if self.learner not in ("process", "inline", "ray", "off") and not self.learner.startswith("ray://"):
            raise UserError(f"serve: --learner is process, inline, ray, ray://HOST:PORT or off, got {self.learner!r}")
        if self.model.startswith("vllm:") and self.weights is None and self.learner == "process":
            raise UserError(
                "serve: to learn, this machine opens the model too: --weights local:PATH_OR_NAME, or --learner ray or off"
            )
        if self.model.startswith("vllm:") and self.learner == "inline":
            raise UserError("serve: --learner inline takes turns with replies of this process; with vllm: it is another one")
        if self.retention_file is not None and self.model.startswith("vllm:") and (not self.weights or "ray" in self.learner):
            raise UserError(
                "serve: --retention-file needs the model in this process, to read the chats: --weights local:PATH_OR_NAME"
            )
        if self.engine_path and not self.model.startswith("vllm:"):
            raise UserError("serve: --engine-path is where a vLLM server sees the adapters; it needs --model vllm:MODEL")

    def _check_context(self) -> None:
        """Raise `UserError` for what does not go with --learn."""
        if self.model.startswith("vllm:"):
            raise UserError(f"serve: with --learn a server is named openai:{self.model[5:]}, with the same --base-url")
        for name in ("weights", "retention_file", "engine_path", "answer_unrecorded"):
            if getattr(self, name):
                raise UserError(f"serve: --{name.replace('_', '-')} is for weights that learn; with --learn, leave it out")
        if not 0 < self.max_user_share <= 1 or not 0 <= self.control <= 1:
            given = f"got {self.max_user_share:g} and {self.control:g}"
            raise UserError(f"serve: --max-user-share is a share in (0, 1], --control one in [0, 1]; {given}")
        if self.graph and ":" not in self.graph:
            raise UserError(f"serve: --graph is MODULE:FUNCTION, such as my_app:make_agent, got {self.graph!r}")
