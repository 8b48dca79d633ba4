"""The engine and the learner of `learngraph serve`, as its options say: here, in another process, or on other machines."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...memory.errors import UserError
from ...memory.records import Minibatch
from ..claas import CLaaS, read_hindsight
from .serve_learners import InlineLearner, LazyLearner
from .serve_options import ServeOptions

if TYPE_CHECKING:
    from ...tools.local.model import LocalChatModel
    from ...tools.training.remote_learner import LearnerClient
    from ...tools.training.version_store import SharedVersions
    from ..serving.service import Service

__all__ = ["ServeParts"]

LOG = logging.getLogger("learngraph.service")
FIRST_PATIENCE = 600.0
"""Seconds that a service which never ran waits for its learner to start: which base model it has, the learner says."""


class ServeParts:
    """Opens what a service is made of.

    Args:
        options: of the service.
        settings: of the method.
        service: the service, once it is made.
    """

    def __init__(self, options: ServeOptions, settings: CLaaS, service: Callable[[], Service]) -> None:
        self._options = options
        self._settings = settings
        self._service = service
        self.opened: LocalChatModel | None = None
        """The model in this process; None: there is none."""

    def open_engine(self) -> Any:
        """The engine that answers."""
        options, lora = self._options, self._settings.lora
        if options.model.startswith("vllm:"):
            return self._open_vllm()
        from ...tools.local.engine import LocalEngine

        self.opened = self._open_model(options.model)
        return LocalEngine(self.opened, rank=lora.rank, targets=lora.targets, max_streams=options.max_streams)

    def open_learner(self, engine: Any) -> Any | None:
        """The learner of --trainer; None: off."""
        options, settings = self._options, self._settings
        if options.trainer == "off":
            return None

        def write(batch: Minibatch, made: Path, about: dict[str, Any]) -> str:
            versions = self._service().versions(batch.tenant, batch.adapter)
            return versions.write(made, batch.step, batch.parent, engine.base, {**about, "batch": batch.id})

        hindsight = read_hindsight(self.opened.model if self.opened is not None else options.model, options.prompts)
        scratch = options.out / "scratch"
        if options.trainer == "tinker":
            return self._open_tinker(engine.base, write, scratch)
        if options.trainer == "remote":
            return LazyLearner(engine.base, lambda: self._open_remote(write, hindsight, scratch))
        common: dict[str, Any] = {
            "folder": self._folder,
            "write": write,
            "lora": settings.lora,
            "objective": settings.loss,
            "hindsight": hindsight,
            "scratch": scratch,
        }
        if options.trainer == "inline":
            from ...tools.training.learner import InProcessLearner

            assert self.opened is not None  # ServeOptions: the model runs in this process
            return InlineLearner(InProcessLearner(self.opened, **common), engine)
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
        if options.trainer == "tinker":
            base = f"tinker:{self._tinker_model}"
        elif options.weights is not None:
            from ...tools.local.model import fingerprint

            self.opened = self._open_model(options.weights)
            base = fingerprint(self.opened)
        elif options.trainer == "remote":
            base = self._known_base() or self._client(FIRST_PATIENCE).about()["base"]
        assert options.base_url is not None  # ServeOptions
        return VllmEngine(
            options.model.removeprefix("vllm:"),
            options.base_url,
            base=base,
            thinking=options.thinking,
            versions=self._shared() if options.hand_over is not None else None,
            there=options.engine_path,
        )

    def _known_base(self) -> str:
        """The base model's fingerprint that an earlier run wrote down; empty: there was none."""
        try:
            return str(json.loads((self._options.out / "service.json").read_text(encoding="utf-8")).get("base", ""))
        except (OSError, ValueError, AttributeError):  # `build_service` says what is wrong with it
            return ""

    def _shared(self) -> SharedVersions:
        from ...tools.training.version_store import SharedVersions, VersionStore

        return SharedVersions(VersionStore(str(self._options.hand_over)), self._folder)

    def _client(self, patience: float = 60.0) -> LearnerClient:
        from ...tools.training.remote_learner import LearnerClient

        LOG.info("the learner is at %s", self._options.learner_url)
        return LearnerClient(str(self._options.learner_url), os.environ.get("LEARNGRAPH_LEARNER_KEY", ""), patience)

    @property
    def _tinker_model(self) -> str:
        return self._options.weights or self._options.model.removeprefix("vllm:")

    def _open_tinker(self, base: str, write: Callable[[Minibatch, Path, dict[str, Any]], str], scratch: Path) -> Any:
        from ...tools.training.tinker_learner import TinkerLearner, find_unmapped_setting

        options, settings, gate = self._options, self._settings, self._settings.gate
        problem = find_unmapped_setting(settings.loss, settings.lora)
        if not problem and gate.enabled and (gate.max_kl < math.inf or gate.min_entropy_share > 0):
            problem = "it measures neither KL nor entropy: --gate.max-kl inf --gate.min-entropy-share 0, or --gate.no-enabled"
        if problem:
            raise UserError(f"serve: --trainer tinker cannot do this: {problem}")
        return LazyLearner(
            base,
            lambda: TinkerLearner(
                *(self._tinker_model, self._folder, write, settings.lora, settings.loss),
                url=options.learner_url or "",
                scratch=scratch,
            ),
        )

    def _open_remote(self, write: Callable[[Minibatch, Path, dict[str, Any]], str], hindsight: str, scratch: Path) -> Any:
        from ...tools.training.calls import LearnerSettings
        from ...tools.training.remote_learner import RemoteLearner

        settings = LearnerSettings(self._settings.lora, self._settings.loss, hindsight)
        return RemoteLearner(self._client(), self._shared(), write, settings, thinking=self._options.thinking, scratch=scratch)
