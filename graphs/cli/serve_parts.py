"""The engine and the learner of `learngraph serve`, as its options say: here, in another process, or on a cluster."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...memory.errors import UserError
from ...memory.records import Minibatch
from ..claas import CLaaS, read_hindsight
from .serve_options import ServeOptions

if TYPE_CHECKING:
    from ...tools.local.model import LocalChatModel
    from ...tools.training.calls import LearnerSettings
    from ...tools.training.learner_worker import WorkerLearner
    from ..serving.service import Service

__all__ = ["ServeParts"]

log = logging.getLogger(__name__)


class ServeParts:
    """Opens what a service is made of."""

    def __init__(self, options: ServeOptions, settings: CLaaS, service: Callable[[], Service]) -> None:
        self._options = options
        self._settings = settings
        self._service = service
        self.opened: LocalChatModel | None = None
        """The model in this process; None: there is none."""
        self._worker: WorkerLearner | None = None

    def open_engine(self) -> Any:
        """The engine that answers."""
        options, lora = self._options, self._settings.lora
        if options.model.startswith("vllm:"):
            return self._open_vllm()
        from ...tools.local.engine import LocalEngine

        self.opened = self._open_model(options.model)
        return LocalEngine(
            self.opened,
            rank=lora.rank,
            targets=lora.targets,
            max_streams=options.max_streams,
            reply_gib=options.reply_gib,
            on_failure=_exit_at_once,
        )

    def open_learner(self, engine: Any) -> Any | None:
        """The learner of --learner; None: off."""
        options = self._options
        if options.learner == "off":
            return None
        if options.learner != "inline":
            return self._worker or self._open_worker(engine.base)
        from ...tools.training.learner import EngineLearner

        assert self.opened is not None  # ServeOptions: the model runs in this process
        settings, scratch = self._learner_settings(), options.out / "scratch"
        return EngineLearner(engine, self.opened, self._folder, self._write, settings, scratch=scratch)

    def _open_worker(self, base: str) -> WorkerLearner:
        """The learner in a process of its own, or on a cluster. `base`: see `WorkerLearner`."""
        from ...tools.training.calls import LearnerModel
        from ...tools.training.learner_worker import WorkerLearner

        options = self._options
        model = options.weights or options.model.replace("vllm:", "local:")
        return WorkerLearner(
            LearnerModel(model, options.learner_threads, options.device, options.dtype, options.thinking),
            self._folder,
            self._write,
            self._learner_settings(),
            scratch=options.out / "scratch",
            nice=options.learner_nice,
            cluster=None if options.learner == "process" else options.learner,
            base=base,
        )

    def _learner_settings(self) -> LearnerSettings:
        from ...tools.training.calls import LearnerSettings

        model = self.opened.model if self.opened is not None else self._options.model
        loss = self._settings.loss
        return LearnerSettings(self._settings.lora, loss, read_hindsight(model, loss.teacher, self._options.prompts))

    def _write(self, batch: Minibatch, made: Path, about: dict[str, Any]) -> str:
        service = self._service()
        about = {**about, "batch": batch.id}
        return service.versions(batch.tenant, batch.adapter).write(made, batch.step, batch.parent, service.engine.base, about)

    def _folder(self, label: str) -> Path:
        return self._service().versions(*label.rpartition("@")[0].split("/")).folder(label)

    def _open_model(self, spec: str) -> LocalChatModel:
        from ...tools.models.models import open_model

        options = self._options
        opened: Any = open_model(
            spec, device=options.device, dtype=options.dtype, threads=options.threads, thinking=options.thinking
        )
        if not hasattr(opened, "network"):
            raise UserError(f"serve: model {spec!r} does not run in this process; use pocket, guard, local:PATH or vllm:MODEL")
        return opened  # type: ignore[no-any-return]

    def _open_vllm(self) -> Any:
        from ...tools.serving.vllm_engine import VllmEngine

        options, base = self._options, ""
        if options.weights is not None and not options.learner.startswith("ray"):
            from ...tools.local.fingerprint import fingerprint

            self.opened = self._open_model(options.weights)
            base = fingerprint(self.opened)
        elif options.learner != "off" and not (base := self._known_base()):
            self._worker = self._open_worker("")
            base = self._worker.base
        assert options.base_url is not None  # ServeOptions
        return VllmEngine(
            options.model.removeprefix("vllm:"),
            options.base_url,
            base=base,
            thinking=options.thinking,
            here=options.out / "adapters",
            there=options.engine_path,
        )

    def _known_base(self) -> str:
        """The base model's fingerprint that an earlier run wrote down; empty: there was none."""
        try:
            return str(json.loads((self._options.out / "service.json").read_text(encoding="utf-8")).get("base", ""))
        except (OSError, ValueError, AttributeError):  # `build_service` says what is wrong with it
            return ""


def _exit_at_once() -> None:
    """End the process, for whatever runs it to start it again: a server whose model is gone answers nothing but errors, and what it
    was told is on disk already."""
    log.critical("the model has failed for good; the server exits with code %d, to be started again", os.EX_SOFTWARE)
    os._exit(os.EX_SOFTWARE)
