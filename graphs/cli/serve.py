"""`learngraph serve`: a chat API whose model learns from feedback (CLaaS).

    learngraph serve --model pocket --api-key secret --out runs/claas
    learngraph serve --model local:Qwen/Qwen3-0.6B --keys keys.yaml --preset reinforce
    learngraph serve --model vllm:Qwen/Qwen3-8B --weights local:Qwen/Qwen3-8B --base-url http://127.0.0.1:8001/v1 --api-key secret

Joins an engine, a learner, the replay buffer, the versions and the web server. All that was learned is in --out; the same command
goes on there, also after a kill -9.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, make_dataclass
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Literal

from ...memory.errors import UserError
from ...memory.records import Correction, Exchange, Measured, Minibatch, Reply, Update
from ..claas import CLaaS, pick_fields
from ..wiring.flags import CommandError, parse_flags

if TYPE_CHECKING:
    from ...tools.local.model import LocalChatModel
    from ..serving.service import Service

__all__ = ["serve"]

LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class ServeOptions:
    """What to serve, to whom, and where to keep what is learned."""

    model: str = "pocket"
    """The base model: `pocket`, `guard`, `local:PATH_OR_NAME`, or `vllm:MODEL` behind --base-url (see `learngraph list`)."""
    base_url: str | None = None
    """The vLLM server behind `vllm:MODEL`, such as `http://127.0.0.1:8001/v1`."""
    weights: str | None = None
    """With `vllm:`, the same model as this process opens it to learn, `local:PATH_OR_NAME`; not needed with --trainer off."""
    name: str | None = None
    """Public name of the model: what clients write into `model`. The last part of --model if not given."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all."""
    port: int = 8000
    """0 takes a free one."""
    out: Path = Path("runs/claas")
    """Folder of the replay buffer and of all versions."""
    api_key: tuple[str, ...] = ()
    """Keys of the tenant `default`; the flag may be given again. Those of LEARNGRAPH_API_KEY, joined by commas, if not given."""
    keys: Path | None = None
    """A YAML file with the keys and limits of several tenants: `acme: {keys: [...], requests_per_minute: 60}`."""
    no_auth: bool = False
    """Take any key; on 127.0.0.1 only."""
    metrics_key: tuple[str, ...] = ()
    """Keys that read /metrics of all tenants, and nothing else."""
    open_metrics: bool = False
    """/metrics needs no key."""
    trainer: Literal["process", "inline", "off"] = "process"
    """Who learns: another process at low priority; this one, in turns with the replies; nobody."""
    retention_file: Path | None = None
    """A JSONL file of chats (`{"messages": [...]}`, the assistant's reply last) whose replies must stay likely."""
    max_pending_hours: float = 24.0
    """Hours that feedback may come after the reply."""
    max_tenant_megabytes: int = 256
    """Most that the replay buffer keeps of a tenant."""
    max_body_bytes: int = 1 << 20
    """Longest request."""
    device: str = "cpu"
    """Where a model of this machine runs: `cpu`, `cuda`."""
    dtype: str = "float32"
    """Its number format."""
    threads: int | None = None
    """Threads that it computes with."""
    learner_threads: int = 1
    """Threads of the learner's process."""
    learner_nice: int = 19
    """Its priority, from 0 to 19, the lowest: replies come first. On a machine that is always busy it may never get to learn."""
    max_streams: int = 256
    """Replies in the making at once; others wait."""
    prompts: Path | None = None
    """A directory whose prompt files take the place of those of the same name (`claas/hindsight.md`)."""

    def __post_init__(self) -> None:
        if not 0 <= self.learner_nice < 20:
            raise UserError(f"serve: --learner-nice is from 0 to 19, got {self.learner_nice}")
        if self.model not in ("pocket", "guard") and not self.model.startswith(("local:", "vllm:")):
            raise UserError(f"serve: no model {self.model!r}; pocket, guard, local:PATH_OR_NAME or vllm:MODEL would do")
        if not 0 <= self.port < 65536:
            raise UserError(f"serve: --port is from 0 to 65535, got {self.port}")
        if self.no_auth and self.host not in LOOPBACK_HOSTS:
            raise UserError(
                f"serve: --no-auth lets anybody in, and goes with --host 127.0.0.1 only, not {self.host}; give --api-key KEY"
            )
        if self.model.startswith("vllm:") != (self.base_url is not None):
            raise UserError("serve: a vLLM server is named by --model vllm:MODEL and --base-url URL, both or neither")
        if self.model.startswith("vllm:") and self.weights is None and self.trainer != "off":
            raise UserError("serve: to learn, this process opens the model too: --weights local:PATH_OR_NAME, or --trainer off")
        if self.model.startswith("vllm:") and self.trainer == "inline":
            raise UserError("serve: --trainer inline takes turns with replies of this process; with vllm: it is process or off")


def serve(args: Sequence[str], preset: str = "default") -> int:
    """a chat API (OpenAI's) that learns from feedback while it answers: learngraph serve --api-key KEY"""
    if preset != "default" and preset.replace("-", "_") not in _presets():
        raise CommandError(f"claas has no preset '{preset}'; it has default, {', '.join(_presets())}")
    chosen = CLaaS() if preset == "default" else getattr(CLaaS, preset.replace("-", "_"))()
    form = make_dataclass(
        "form",
        [
            ("options", ServeOptions, field(default_factory=ServeOptions)),
            ("settings", CLaaS, field(default_factory=lambda: chosen)),
        ],
    )
    about = f"A chat API that learns from feedback. --preset {{{','.join(('default', *_presets()))}}} sets other defaults."
    parsed = parse_flags(form, _merge_repeated_flags(args), "learngraph serve", about)
    options, settings = parsed.options, parsed.settings
    tenants = _tenants(options)
    _check_port(options.host, options.port)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("learngraph").setLevel(logging.INFO)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    asyncio.run(_serve(options, settings, tenants))
    return 0


def _presets() -> list[str]:
    return [name for name, made in vars(CLaaS).items() if isinstance(made, classmethod)]


def _merge_repeated_flags(args: Sequence[str]) -> list[str]:
    """Flags that may be given again, each in one place: `--api-key A --api-key B` is `--api-key A B`."""
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


def _tenants(options: ServeOptions) -> Any:
    """Who may chat.

    Raises:
        UserError: nobody.
    """
    from ...tools.serving import tenants

    keys = options.api_key or tuple(filter(None, os.environ.get("LEARNGRAPH_API_KEY", "").split(",")))
    if options.no_auth:
        if keys or options.keys:
            raise UserError("serve: --no-auth takes any key; --api-key and --keys say which: one or the other")

        class OpenTenants(tenants.Tenants):
            """Whoever asks is the tenant `default`."""

            def tenant_for_key(self, key: str) -> Any:
                return self.tenant_by_name("default")

        return OpenTenants({"any": tenants.Tenant("default")})
    return tenants.read_tenants(keys, options.keys, options.metrics_key)


def _check_port(host: str, port: int) -> None:
    """Found out before a model is loaded."""
    if not port:
        return
    with closing(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise UserError(
                f"serve: cannot listen on {host}:{port}: {why}; another --port would do, and 0 takes a free one"
            ) from error


async def _serve(options: ServeOptions, settings: CLaaS, tenants: Any) -> None:
    from ...tools.serving import chat_server

    service = build_service(options, settings)
    async with service:
        application = chat_server.make_app(
            service, tenants, max_body_bytes=options.max_body_bytes, open_metrics=options.open_metrics
        )

        def ready(url: str) -> None:
            learns = "answers only" if options.trainer == "off" else f"learns by {settings.loss}"
            _say(f"{service.model} at {url}/v1, {learns}; what it learns is in {options.out}")

        await chat_server.serve(application, options.host, options.port, on_ready=ready)
    _say("closed")
    sys.stdout.flush()
    # Everything is on the disk. A thread that is in the middle of a step would keep the process for as long as that takes, and taking
    # apart torch's objects one by one is for nothing.
    os._exit(0)


def build_service(options: ServeOptions, settings: CLaaS) -> Service:
    """Everything but the web server, put together; inside a running event loop.

    Raises:
        UserError: --out is in use by another process, or was learned on another base model; the model cannot be opened.
    """
    from ...memory.claas.replay import Replay, ReplayLimits
    from ..serving.service import Service

    root = options.out / "adapters"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"serve: --out {options.out}: {error.strerror}; another folder would do") from error
    limits = pick_fields(
        ReplayLimits, settings, megabytes=options.max_tenant_megabytes, pending_seconds=options.max_pending_hours * 3600
    )
    replay = Replay(options.out / "replay.sqlite", limits)
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


def _engine(options: ServeOptions, settings: CLaaS) -> tuple[Any, LocalChatModel | None]:
    """What answers, and the model in this process if there is one."""
    if options.model.startswith("vllm:"):
        return _vllm(options)
    from ...tools.local.engine import LocalEngine

    opened = _open(options.model, options)
    return LocalEngine(opened, rank=settings.rank, targets=settings.targets, max_streams=options.max_streams), opened


def _open(spec: str, options: ServeOptions) -> LocalChatModel:
    from ...tools.models.models import open_model

    opened: Any = open_model(spec, device=options.device, dtype=options.dtype, threads=options.threads)
    if not hasattr(opened, "network"):
        raise UserError(f"serve: model {spec!r} does not run in this process; pocket, guard, local:PATH or vllm:MODEL would do")
    return opened  # type: ignore[no-any-return]


def _vllm(options: ServeOptions) -> tuple[Any, LocalChatModel | None]:
    from ...tools.serving.vllm_engine import VllmEngine

    opened = _open(options.weights, options) if options.weights else None
    base = ""
    if opened is not None:
        from ...tools.local.model import fingerprint

        base = fingerprint(opened)
    assert options.base_url is not None
    return VllmEngine(options.model.removeprefix("vllm:"), options.base_url, base=base), opened


def _check_base(options: ServeOptions, settings: CLaaS, base: str) -> None:
    """--out belongs to one base model; its settings are written down."""
    path = options.out / "service.json"
    try:
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise UserError(f"serve: {path} is damaged ({error}); it may be removed") from error
    if base and before.get("base", base) != base:
        raise UserError(
            f"serve: {options.out} was learned on {before.get('model')} (base {before['base']}), and {options.model} is base {base}; "
            "another --out would do"
        )
    told = {"model": options.model, "base": base or before.get("base", ""), "settings": asdict(settings)}
    new = path.with_name("service.json.new")
    new.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def _learner(
    options: ServeOptions, settings: CLaaS, engine: Any, opened: LocalChatModel | None, service: Callable[[], Service]
) -> Any | None:
    """What learns."""
    if options.trainer == "off":
        return None
    from ...nodes.prompt import Prompt
    from ...tools.training.lora import LoRA, Objective

    def folder(label: str) -> Path:
        return service().versions(*label.rpartition("@")[0].split("/")).folder(label)

    def write(batch: Minibatch, made: Path, said: dict[str, Any]) -> str:
        versions = service().versions(batch.tenant, batch.adapter)
        return versions.write(made, batch.step, batch.parent, engine.base, {**said, "batch": batch.id})

    lora = pick_fields(LoRA, settings, alpha=2.0 * settings.rank, batch=settings.batch)
    objective = pick_fields(Objective, settings)
    hindsight = Prompt.load("claas/hindsight", options.prompts).parts[0][1].template
    scratch = options.out / "scratch"
    if options.trainer == "inline":
        from ...tools.training.learner import InProcessLearner

        assert opened is not None
        return InlineLearner(InProcessLearner(opened, folder, write, lora, objective, hindsight, scratch=scratch), engine)
    from ...tools.training.learner_worker import WorkerLearner

    return LazyLearner(
        engine.base,
        lambda: WorkerLearner(
            options.weights or options.model,
            folder,
            write,
            lora,
            objective,
            hindsight,
            scratch=scratch,
            threads=options.learner_threads,
            device=options.device,
            dtype=options.dtype,
            nice=options.learner_nice,
        ),
    )


class LazyLearner:
    """A learner that comes up while chats are answered already: at low priority that may take a while.

    Args:
        base: fingerprint of the base model that it has to have.
        make: opens it.
    """

    def __init__(self, base: str, make: Callable[[], Any]) -> None:
        self.base, self._make = base, make
        self._learner: Any = None
        self._error: Exception | None = None
        self._settled, self._closed = Event(), False
        self._begin()

    def correct(self, batch: Minibatch) -> Correction:
        """As the learner's, once it is there."""
        found: Correction = self._await_learner().correct(batch)
        return found

    def step(self, batch: Minibatch, correction: Correction) -> Update:
        """As the learner's."""
        found: Update = self._await_learner().step(batch, correction)
        return found

    def measure(self, label: str, exchanges: Sequence[Exchange]) -> Measured:
        """As the learner's."""
        found: Measured = self._await_learner().measure(label, exchanges)
        return found

    def close(self) -> None:
        """End it. Nobody waits for one that is still coming up: it ends with this process."""
        self._closed = True
        self._settled.set()
        if self._learner is not None:
            self._learner.close()

    def _begin(self) -> None:
        self._error = None
        self._settled.clear()
        Thread(target=self._open_learner, name="learner", daemon=True).start()

    def _open_learner(self) -> None:
        try:
            made = self._make()
            if made.base != self.base or self._closed:
                made.close()
                raise UserError(f"it has base model {made.base}, the engine {self.base}")
            self._learner = made
        except Exception as error:
            self._error = error
        finally:
            self._settled.set()

    def _await_learner(self) -> Any:
        self._settled.wait()
        if self._closed:
            raise RuntimeError("the learner is closed")
        if (error := self._error) is not None:
            self._begin()  # for whoever asks next
            raise RuntimeError(f"the learner cannot be started: {error}") from error  # no fault of what it was to learn from
        return self._learner


class InlineLearner:
    """A learner whose work is done on the thread that owns the network, in turns with the replies.

    Args:
        learner: does it.
        engine: whose thread it is; of the event loop that runs now.
    """

    def __init__(self, learner: Any, engine: Any) -> None:
        self._learner, self._engine, self._loop = learner, engine, asyncio.get_running_loop()
        self.base: str = learner.base

    def correct(self, batch: Minibatch) -> Correction:
        """As the learner's."""
        found: Correction = self._turn(partial(self._learner.correct, batch))
        return found

    def step(self, batch: Minibatch, correction: Correction) -> Update:
        """As the learner's."""
        found: Update = self._turn(partial(self._learner.step, batch, correction))
        return found

    def measure(self, label: str, exchanges: Sequence[Exchange]) -> Measured:
        """As the learner's."""
        found: Measured = self._turn(partial(self._learner.measure, label, exchanges))
        return found

    def _turn(self, work: Callable[[], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(self._engine.run(work), self._loop).result()


def _retention(options: ServeOptions, opened: LocalChatModel | None) -> list[Exchange]:
    """The chats that the gate holds on to, as tokens."""
    if options.retention_file is None:
        return []
    if opened is None:
        raise UserError("serve: --retention needs the model in this process, to read the chats: --weights local:PATH_OR_NAME")
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
