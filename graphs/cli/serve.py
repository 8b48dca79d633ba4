"""`learngraph serve`: a chat API whose model learns from feedback (CLaaS).

    learngraph serve --model pocket --api-key secret --out runs/claas
    learngraph serve --model local:Qwen/Qwen3-0.6B --keys keys.yaml --loss.kind reinforce
    learngraph serve --model vllm:Qwen/Qwen3-8B --weights local:Qwen/Qwen3-8B --base-url http://127.0.0.1:8001/v1 --api-key secret
    learngraph serve --model openai:NAME --learn reasoning-bank --keys keys.yaml
    learngraph serve --model vllm:Qwen/Qwen3-8B --base-url http://gpu-0:8001/v1 --engine-path /srv/adapters \\
        --learner ray://head:10001 --device cuda --dtype bfloat16 --api-key secret

Joins an engine, a learner, the replay buffer, the versions and the web server. Everything that was learned lies in --out; the same
command goes on there, also after a kill -9.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...memory.errors import CommandError, UserError
from ...memory.records import Exchange
from ..arms import find_user_object, preset_names
from ..claas import CLaaS
from .flags import parse_options_and_settings
from .serve_context import CONTEXT, build_context_service, context_base
from .serve_options import HEADINGS, LOOPBACK_HOSTS, ServeOptions
from .serve_parts import ServeParts

if TYPE_CHECKING:
    from ...memory.claas.replay import Replay
    from ..serving.service import Service

__all__ = ["ServeOptions", "build_service", "serve"]

LOG = logging.getLogger("learngraph.service")
REST = 2.0
"""Seconds that a learner on the replies' machine rests after each second of a step, while replies are under way: without, four streams on
two cores take 1.22 of their time (tests/performance/README.md)."""
LOCAL_NAMES = (*LOOPBACK_HOSTS, "[::1]")
"""Names by which clients may call a server without keys."""


def serve(args: Sequence[str]) -> int:
    """a chat API (OpenAI's) that learns from feedback while it answers: learngraph serve --api-key KEY"""
    preset, args = _take_preset(args)
    if preset.replace("_", "-") not in (presets := preset_names(CLaaS)):
        raise CommandError(f"claas has no preset '{preset}'; it has {', '.join(presets)}")
    chosen = CLaaS() if preset == "default" else getattr(CLaaS, preset.replace("-", "_"))()
    about = f"A chat API that learns from feedback. --preset {{{','.join(presets)}}} sets other defaults."
    options, settings = parse_options_and_settings(
        *(ServeOptions, chosen, args, "learngraph serve", about, "CLaaS: settings of the method"), headings=HEADINGS
    )
    tenants = _check_start(options, settings)
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S%z", level=logging.WARNING
    )
    logging.getLogger("learngraph.claas").setLevel(logging.INFO if options.prompts else logging.WARNING)  # which prompt is used
    logging.getLogger("learngraph.requests").setLevel(logging.INFO if options.log_requests else logging.WARNING)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    before = os.umask(0o077)  # chats of all tenants lie in --out: only this user reads them
    try:
        asyncio.run(_serve(options, settings, tenants))
    finally:
        os.umask(before)
    return 0


def _check_start(options: ServeOptions, settings: CLaaS) -> Any:
    """The tenants of the options' keys; raises one `UserError` for all that can be found wrong before a model is opened."""
    from ...tools.serving.chat_server import check_address

    addresses = [partial(check_address, options.host, port) for port in (options.port, options.livez_port or 0)]
    found, problems = [], list[str]()
    learning = partial(_check_learning, options, settings)
    for check in (partial(find_tenants, options), partial(_check_folder, options.out), learning, *addresses):
        try:
            found.append(check())
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("; and ".join(problems))
    return found[0]


def _check_folder(out: Path) -> None:
    """Check that --out can be made, or written to, and is not a run's."""
    made = next(path for path in (out.absolute(), *out.absolute().parents) if os.path.exists(path))
    if not made.is_dir() or not os.access(made, os.W_OK | os.X_OK):
        why = "may not be written" if made.is_dir() else "is a file"
        raise UserError(f"serve: --out {out}: {made} {why}; choose another folder")
    if (out / "settings.json").exists():
        raise UserError(f"serve: --out {out} is the folder of learngraph run; choose another folder")


def _check_learning(options: ServeOptions, settings: CLaaS) -> None:
    """Check the method of --learn, the agent of --graph, the chats of --retention-file, and as far as it is known without the model that
    --out is of its base."""
    _check_base(options, settings, context_base(options, settings) if options.learn else "")
    if options.graph:
        find_user_object(*options.graph.rsplit(":", 1))
    if options.retention_file is not None:
        from ...tools.training.sft import read_chats

        read_chats(options.retention_file)


def _take_preset(args: Sequence[str]) -> tuple[str, list[str]]:
    """The value of `--preset`, `default` if not given, and the other arguments.

    It is taken out before the rest is read, since it decides the defaults that `--help` shows.
    """
    rest, preset = list(args), "default"
    for i, arg in enumerate(args):
        if arg == "--preset" or arg.startswith("--preset="):
            preset = arg.partition("=")[2] or (args[i + 1] if i + 1 < len(args) else "")
            del rest[i : i + (1 if "=" in arg else 2)]
            break
    return preset, rest


def find_tenants(options: ServeOptions) -> Any:
    """The tenants of the options' keys."""
    from ...tools.serving import tenants

    keys = options.api_key or tuple(filter(None, os.environ.get("LEARNGRAPH_API_KEY", "").split(",")))
    if options.api_key_file is not None:
        try:
            keys += tuple(filter(None, map(str.strip, options.api_key_file.read_text(encoding="utf-8").splitlines())))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"serve: --api-key-file {options.api_key_file} cannot be read: {error}") from error
    if options.no_auth:
        if keys or options.keys:
            raise UserError("serve: --no-auth accepts any key, --api-key and --keys only these: one or the other")

        class OpenTenants(tenants.Tenants):
            """Any key is one of the tenant `default`, and so is none."""

            def log_in(self, key: str | None, address: str = "") -> Any:
                return tenants.Tenant("default")

        return OpenTenants({"any": tenants.Tenant("default")})
    return tenants.read_tenants(keys, options.keys)


async def _serve(options: ServeOptions, settings: CLaaS, tenants: Any) -> None:
    def ready(service: Service, url: str) -> None:
        by = options.learn or settings.loss.kind
        learns = "it answers only" if options.learner == "off" and not options.learn else f"it learns by {by}"
        _say(
            f"{service.model} answers at {url}/v1; {url}/dashboard shows what it does\n"
            f"{learns}; all that it learns lies in {options.out}, where the same command goes on\n"
            f"Ctrl-C ends it, or kill {os.getpid()}"
        )
        logging.getLogger("learngraph").setLevel(logging.INFO)  # what is opened need not be told to the reader
        # Modules and the model stay for good. Beside their 300,000 objects the collector would let 80,000 of ended requests pile up,
        # and then stop all threads for as long as it takes to look at all of them.
        gc.collect()
        gc.freeze()

    _say(f"opening {options.model} …")
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
    if threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _read_keys_again, options, tenants)
    async with service:
        application = chat_server.make_app(
            service,
            tenants,
            max_body_bytes=options.max_body_bytes,
            open_metrics=options.open_metrics,
            allowed_hosts=LOCAL_NAMES if options.no_auth else ("*",),
        )
        await chat_server.serve(
            *(application, options.host, options.port),
            on_ready=lambda url: on_ready(service, url),
            max_connections=options.max_connections,
            livez_port=options.livez_port,
        )


def _read_keys_again(options: ServeOptions, tenants: Any) -> None:
    """On SIGHUP: the keys as their files have them now; as they were, if those cannot be read."""
    try:
        tenants.replace_keys(find_tenants(options))
    except UserError as error:
        LOG.error("the keys stay as they were: %s", error)
    else:
        LOG.info("the keys were read again: %d tenants may chat", len(tenants.names))


def build_service(options: ServeOptions, settings: CLaaS) -> Service:
    """The service without its web server. Call it inside a running event loop.

    Raises:
        UserError: --out is used by another process, or belongs to another base model; the model cannot be opened.
    """
    from ...memory.claas.replay import Replay
    from ..serving.service import Service

    _check_folder(options.out)
    root = options.out / "adapters"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"serve: --out {options.out}: {error.strerror}; choose another folder") from error
    _make_private(options.out)
    if not options.buffer and (options.out / "service.json").exists() and not (options.out / "replay.sqlite").exists():
        LOG.warning("%s is gone: a new buffer begins, without what was said so far", options.out / "replay.sqlite")
    # Where nothing is trained, nothing is held out from training.
    kept = replace(settings.replay, held_out_share=0.0) if options.learn else settings.replay
    replay = Replay(options.buffer or options.out / "replay.sqlite", kept)
    name = options.name or Path(options.model.rpartition(":")[2]).name
    try:
        if options.learn:
            about = _check_base(options, settings, context_base(options, settings))
            service: Service = build_context_service(options, settings, replay, root, name)
        else:
            parts = ServeParts(options, settings, lambda: service)
            engine = parts.open_engine()
            about = _check_base(options, settings, engine.base)
            _check_buffer(options, replay, engine.base)
            retention = list[Exchange]()
            if options.learner != "off" and parts.opened is not None:
                from ...tools.training.sft import read_retention

                if retention := read_retention(parts.opened, options.retention_file):
                    _say(f"what it learns must not cost the answers to the {len(retention)} chats of the retention set")
            learner = parts.open_learner(engine)  # last: an error from here on would end a process that has just been started
            # Learning inline takes turns with the replies as it is, and a cluster has cores of its own.
            rest = REST if options.learner == "process" and options.learner_nice else 0.0
            service = Service(
                engine, learner, replay, root, settings, name, retention, not options.answer_unrecorded, rest=rest
            )
        _write_about(options, about)
    except BaseException:
        replay.close()
        raise
    return service


def _make_private(folder: Path) -> None:
    """Let nobody but this user read a folder and all in it, also what an earlier version wrote."""
    for place, _, files in os.walk(folder):
        with suppress(OSError):  # another user's: its owner decides
            Path(place).chmod(0o700)
        for path in (Path(place) / name for name in files):
            with suppress(OSError):
                if not path.is_symlink():
                    path.chmod(0o600)


def _check_base(options: ServeOptions, settings: CLaaS, base: str) -> dict[str, Any]:
    """Check that --out belongs to this base model, or this method of --learn; returns the content of its `service.json`."""
    path = options.out / "service.json"
    try:
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise UserError(f"serve: {path} is damaged ({error}); it may be removed") from error
    if base and before.get("base", base) != base:
        way, now = (one.removeprefix(CONTEXT) if one.startswith(CONTEXT) else "" for one in (str(before["base"]), base))
        then = f"with --learn {way}" if way else f"on {before.get('model')} (base {before['base']})"
        this = f"this is --learn {now}" if now else f"{options.model} is base {base}"
        raise UserError(f"serve: {options.out} was learned {then}, and {this}; choose another --out")
    return {"model": options.model, "base": base or before.get("base", ""), "settings": asdict(settings)}


def _write_about(options: ServeOptions, about: Mapping[str, Any]) -> None:
    """Write `service.json` to --out. Called when the service is built, so that a failed start does not bind the folder to a model."""
    path = options.out / "service.json"
    new = path.with_name("service.json.new")
    new.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def _check_buffer(options: ServeOptions, replay: Replay, base: str) -> None:
    """Check that a shared buffer is not another model's, whose feedback this service would reject."""
    other = replay.other_base(base) if options.buffer and base else None
    if other is not None:
        raise UserError(
            f"serve: the buffer in Postgres holds replies of base model {other}, and {options.model} is base {base}; give this service "
            "a schema of its own (--buffer 'postgresql://…?options=-csearch_path%3DNAME')"
        )


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
