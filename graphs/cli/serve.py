"""`learngraph serve`: a chat API whose model learns from feedback (CLaaS).

    learngraph serve --model pocket --api-key secret --out runs/claas
    learngraph serve --model local:Qwen/Qwen3-0.6B --keys keys.yaml --preset reinforce
    learngraph serve --model vllm:Qwen/Qwen3-8B --weights local:Qwen/Qwen3-8B --base-url http://127.0.0.1:8001/v1 --api-key secret

Joins an engine, a learner, the replay buffer, the versions and the web server. Everything that was learned lies in --out; the same
command goes on there, also after a kill -9.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...memory.errors import UserError
from ...memory.records import Exchange, Minibatch, Reply
from ..claas import CLaaS, read_hindsight
from ..wiring.flags import CommandError, parse_options_and_settings
from .method_settings import take_preset
from .serve_learners import InlineLearner, LazyLearner

if TYPE_CHECKING:
    from ...tools.local.model import LocalChatModel
    from ..serving.service import Service

__all__ = ["ServeOptions", "build_service", "find_tenants", "run_server", "serve"]

LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")
LOCAL_NAMES = (*LOOPBACK_HOSTS, "[::1]")
"""Names by which clients may call a server without keys."""


@dataclass(frozen=True)
class ServeOptions:
    """Options of the service: its model, its clients, and the folder of what it learns."""

    model: str = "pocket"
    """The model: `pocket`, `guard`, `local:PATH_OR_NAME`, or `vllm:MODEL` behind --base-url (see `learngraph list`)."""
    base_url: str | None = None
    """The server behind the model, for `vllm:MODEL`, such as `http://127.0.0.1:8001/v1`."""
    weights: str | None = None
    """With `vllm:`, the same model for this process to train, `local:PATH_OR_NAME`; not needed with --trainer off."""
    name: str | None = None
    """Public name of the model, which clients send as `model`. Default: the last part of --model."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    out: Path = Path("runs/claas")
    """The output: a folder for the replay buffer and all versions."""
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
    trainer: Literal["process", "inline", "off"] = "process"
    """The learner's process: another at low priority; this one, in turns with the replies; or no learner at all."""
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
        if self.model.startswith("vllm:") and self.weights is None and self.trainer != "off":
            raise UserError("serve: to learn, this process opens the model too: --weights local:PATH_OR_NAME, or --trainer off")
        if self.model.startswith("vllm:") and self.trainer == "inline":
            raise UserError("serve: --trainer inline takes turns with replies of this process; with vllm: it is process or off")


def serve(args: Sequence[str]) -> int:
    """a chat API (OpenAI's) that learns from feedback while it answers: learngraph serve --api-key KEY"""
    preset, args = take_preset(args)
    if preset != "default" and preset.replace("-", "_") not in _presets():
        raise CommandError(f"claas has no preset '{preset}'; it has default, {', '.join(_presets())}")
    chosen = CLaaS() if preset == "default" else getattr(CLaaS, preset.replace("-", "_"))()
    about = f"A chat API that learns from feedback. --preset {{{','.join(('default', *_presets()))}}} sets other defaults."
    options, settings = parse_options_and_settings(
        ServeOptions, chosen, _merge_repeated_flags(args), "learngraph serve", about, "CLaaS: settings of the method"
    )
    tenants = find_tenants(options)
    from ...tools.serving.chat_server import check_address

    check_address(options.host, options.port)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("learngraph").setLevel(logging.INFO)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    before = os.umask(0o077)  # chats of all tenants lie in --out: only this user reads them
    try:
        asyncio.run(_serve(options, settings, tenants))
    finally:
        os.umask(before)
    return 0


def _presets() -> list[str]:
    return [name for name, made in vars(CLaaS).items() if isinstance(made, classmethod)]


def _merge_repeated_flags(args: Sequence[str]) -> list[str]:
    """The arguments with repeated flags merged: `--api-key A --api-key B` becomes `--api-key A B`."""
    rest: list[str] = []
    found: dict[str, list[str]] = {"--api-key": [], "--metrics-key": []}
    i = 0
    while i < len(args):
        flag, equals, value = args[i].partition("=")
        if flag not in found:
            rest.append(args[i])
        elif equals:
            found[flag].append(value)
        else:
            while i + 1 < len(args) and not args[i + 1].startswith("--"):
                found[flag].append(args[i := i + 1])
        i += 1
    for flag, values in found.items():
        rest += [flag, *values] if values else []
    return rest


def find_tenants(options: ServeOptions) -> Any:
    """The tenants of the options' keys.

    Raises:
        UserError: there are no keys, or keys that --no-auth contradicts.
    """
    from ...tools.serving import tenants

    keys = options.api_key or tuple(filter(None, os.environ.get("LEARNGRAPH_API_KEY", "").split(",")))
    if options.no_auth:
        if keys or options.keys:
            raise UserError("serve: --no-auth accepts any key, --api-key and --keys only these: one or the other")

        class OpenTenants(tenants.Tenants):
            """Any key is one of the tenant `default`."""

            def tenant_for_key(self, key: str) -> Any:
                return self.tenant_by_name("default")

        return OpenTenants({"any": tenants.Tenant("default")})
    return tenants.read_tenants(keys, options.keys, options.metrics_key)


async def _serve(options: ServeOptions, settings: CLaaS, tenants: Any) -> None:
    def ready(service: Service, url: str) -> None:
        learns = "answers only" if options.trainer == "off" else f"learns by {settings.loss.kind}"
        _say(f"{service.model} at {url}/v1, {learns}; what it learns is in {options.out}")
        # Modules and the model stay for good. Beside their 300,000 objects the collector would let 80,000 of ended requests pile up,
        # and then stop all threads for as long as it takes to look at all of them.
        gc.collect()
        gc.freeze()

    await run_server(options, settings, tenants, ready)
    _say("closed")
    sys.stdout.flush()
    # Everything is on disk. A normal exit would wait for a thread in the middle of a step, and free torch's objects one by one.
    os._exit(0)


async def run_server(options: ServeOptions, settings: CLaaS, tenants: Any, on_ready: Callable[[Service, str], None]) -> None:
    """Serve until SIGINT, SIGTERM or cancellation; then close everything.

    Args:
        options: of the service.
        settings: of the method.
        tenants: of `find_tenants`.
        on_ready: called with the service and its URL once requests are accepted.
    """
    from ...tools.serving import chat_server

    service = build_service(options, settings)
    tenants.keep_counts(options.out / "usage.json")
    async with service:
        application = chat_server.make_app(
            service,
            tenants,
            max_body_bytes=options.max_body_bytes,
            open_metrics=options.open_metrics,
            allowed_hosts=LOCAL_NAMES if options.no_auth else ("*",),
        )
        try:
            await chat_server.serve(
                *(application, options.host, options.port),
                on_ready=lambda url: on_ready(service, url),
                max_connections=options.max_connections,
            )
        finally:
            tenants.save_counts()


def build_service(options: ServeOptions, settings: CLaaS) -> Service:
    """The service without its web server. Call it inside a running event loop.

    Raises:
        UserError: --out is used by another process, or belongs to another base model; the model cannot be opened.
    """
    from ...memory.claas.replay import Replay
    from ..serving.service import Service

    root = options.out / "adapters"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"serve: --out {options.out}: {error.strerror}; choose another folder") from error
    _make_private(options.out)
    replay = Replay(options.out / "replay.sqlite", settings.replay)
    try:
        engine, opened = _engine(options, settings)
        _check_base(options, settings, engine.base)
        made: list[Service] = []
        learner = _learner(options, settings, engine, opened, lambda: made[0])
        name = options.name or Path(options.model.rpartition(":")[2]).name
        retention = _retention(options, opened)
        made.append(Service(engine, learner, replay, root, settings, name, retention))
    except BaseException:
        replay.close()
        raise
    return made[0]


def _make_private(folder: Path) -> None:
    """Let nobody but this user read a folder and all in it, also what an earlier version wrote."""
    for place, _, files in os.walk(folder):
        with suppress(OSError):  # another user's: its owner decides
            Path(place).chmod(0o700)
        for path in (Path(place) / name for name in files):
            with suppress(OSError):
                if not path.is_symlink():
                    path.chmod(0o600)


def _engine(options: ServeOptions, settings: CLaaS) -> tuple[Any, LocalChatModel | None]:
    """The engine that answers, and the model in this process; None: there is none."""
    if options.model.startswith("vllm:"):
        return _vllm(options)
    from ...tools.local.engine import LocalEngine

    opened = _open(options.model, options)
    return LocalEngine(opened, rank=settings.lora.rank, targets=settings.lora.targets, max_streams=options.max_streams), opened


def _open(spec: str, options: ServeOptions) -> LocalChatModel:
    from ...tools.models.models import open_model

    opened: Any = open_model(
        spec, device=options.device, dtype=options.dtype, threads=options.threads, thinking=options.thinking
    )
    if not hasattr(opened, "network"):
        raise UserError(f"serve: model {spec!r} does not run in this process; use pocket, guard, local:PATH or vllm:MODEL")
    return opened  # type: ignore[no-any-return]


def _vllm(options: ServeOptions) -> tuple[Any, LocalChatModel | None]:
    from ...tools.serving.vllm_engine import VllmEngine

    opened = _open(options.weights, options) if options.weights else None
    base = ""
    if opened is not None:
        from ...tools.local.model import fingerprint

        base = fingerprint(opened)
    assert options.base_url is not None
    return VllmEngine(options.model.removeprefix("vllm:"), options.base_url, base=base, thinking=options.thinking), opened


def _check_base(options: ServeOptions, settings: CLaaS, base: str) -> None:
    """Check that --out belongs to this base model, and write the settings to its `service.json`.

    Raises:
        UserError: it belongs to another one, or `service.json` is damaged.
    """
    path = options.out / "service.json"
    try:
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise UserError(f"serve: {path} is damaged ({error}); it may be removed") from error
    if base and before.get("base", base) != base:
        raise UserError(
            f"serve: {options.out} was learned on {before.get('model')} (base {before['base']}), and {options.model} is base {base}; "
            "choose another --out"
        )
    about = {"model": options.model, "base": base or before.get("base", ""), "settings": asdict(settings)}
    new = path.with_name("service.json.new")
    new.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def _learner(
    options: ServeOptions, settings: CLaaS, engine: Any, opened: LocalChatModel | None, service: Callable[[], Service]
) -> Any | None:
    """The learner of --trainer; None: off."""
    if options.trainer == "off":
        return None

    def folder(label: str) -> Path:
        return service().versions(*label.rpartition("@")[0].split("/")).folder(label)

    def write(batch: Minibatch, made: Path, about: dict[str, Any]) -> str:
        versions = service().versions(batch.tenant, batch.adapter)
        return versions.write(made, batch.step, batch.parent, engine.base, {**about, "batch": batch.id})

    assert opened is not None  # ServeOptions: who learns has the weights
    common: dict[str, Any] = {
        "folder": folder,
        "write": write,
        "lora": settings.lora,
        "objective": settings.loss,
        "hindsight": read_hindsight(opened.model, options.prompts),
        "scratch": options.out / "scratch",
    }
    if options.trainer == "inline":
        from ...tools.training.learner import InProcessLearner

        return InlineLearner(InProcessLearner(opened, **common), engine)
    from ...tools.training.learner_worker import WorkerLearner

    return LazyLearner(
        engine.base,
        lambda: WorkerLearner(
            options.weights or options.model,
            threads=options.learner_threads,
            device=options.device,
            dtype=options.dtype,
            nice=options.learner_nice,
            thinking=options.thinking,
            **common,
        ),
    )


def _retention(options: ServeOptions, opened: LocalChatModel | None) -> list[Exchange]:
    """The chats of --retention-file as exchanges, for the gate."""
    if options.retention_file is None:
        return []
    if opened is None:
        raise UserError(
            "serve: --retention-file needs the model in this process, to read the chats: --weights local:PATH_OR_NAME"
        )
    from ...memory.records import ChatRequest
    from ...tools.training.sft import encode_chat, read_chats

    found = []
    for i, chat in enumerate(read_chats(options.retention_file)):
        example = encode_chat(opened, chat)
        reply = Reply("", example.prompt, example.reply, (0.0,) * len(example.reply))
        found.append(Exchange(f"retention-{i}", "default", ChatRequest(), reply, ""))
    return found


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
