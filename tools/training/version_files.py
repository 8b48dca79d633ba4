"""The files of a trained version: read and checked, or written for the next one.

adapter_config.json, adapter_model.safetensors    PEFT's format, float32
optimizer.safetensors                             AdamW's moments (and PPO's critic); no learning rate. It may be missing
teacher.safetensors                               of a teacher that lags behind (`ema`, `sync`)
learner.json                                      base, settings, updates
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ...memory.claas.settings import LoRA
from ...memory.errors import UserError
from ..local.model import LocalChatModel
from .calls import VersionError, scratch_folder
from .lora import lora_parameters, write_adapter, write_optimizer

__all__ = ["OPTIMIZER_FILE", "VersionError", "VersionFiles", "VersionState"]

CONFIG_FILE, ADAPTER_FILE, OPTIMIZER_FILE = "adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors"
TEACHER_FILE, NOTES_FILE = "teacher.safetensors", "learner.json"
PEFT_PREFIX = "base_model.model."
"""PEFT's prefix of a tensor's name in a file."""


@dataclass(frozen=True)
class VersionState:
    """A version in memory."""

    tensors: dict[str, Tensor]
    """LoRA's A and B by parameter name."""
    teacher: dict[str, Tensor] | None
    """Those of a teacher that lags behind; None: the teacher has no weights of its own."""
    folder: Path | None
    """The folder, where the optimizer's moments lie if there are any; None: a new adapter has none yet."""
    notes: dict[str, Any]
    """`learner.json`; empty for a new adapter."""

    @property
    def updates(self) -> int:
        """Gradient steps behind the version."""
        return int(self.notes.get("updates", 0))


@dataclass(frozen=True)
class VersionFiles:
    """Reads and writes versions of one adapter shape on one base model."""

    base: str
    """Fingerprint of the base model."""
    shape: Mapping[str, Any]
    """Rank, alpha and target names."""
    config: bytes
    """Content of `adapter_config.json`."""
    sizes: Mapping[str, tuple[int, ...]]
    """LoRA's parameters: name -> shape."""

    @classmethod
    def of(cls, wrapper: Any, model: LocalChatModel, base: str, settings: LoRA) -> Self:
        """The files of versions of PEFT's wrapper, made with these settings over a model of this fingerprint."""
        with scratch_folder(None) as folder:
            write_adapter(wrapper, folder, None if Path(model.model).exists() else model.model)
            config = (folder / CONFIG_FILE).read_bytes()
        targets = sorted(wrapper.peft_config["default"].target_modules)
        shape = {"rank": settings.rank, "alpha": float(settings.scale), "targets": targets}
        sizes = {name: tuple(weight.shape) for name, weight in sorted(lora_parameters(wrapper.get_base_model()).items())}
        return cls(base, shape, config, sizes)

    def read(self, folder: Path, needs_teacher: bool) -> VersionState:
        """The version in a folder.

        Args:
            folder: its folder, whose name stands in messages.
            needs_teacher: read the lagging teacher, too; a version without one gets its own tensors as the teacher.

        Raises:
            VersionError: a file is missing or damaged, or of another base model or shape.
        """
        try:
            notes = json.loads((folder / NOTES_FILE).read_text(encoding="utf-8"))
            base, shape = notes["base"], notes["lora"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise VersionError(f"version {folder.name}: {NOTES_FILE} cannot be read: {error}") from error
        if base != self.base:
            raise VersionError(f"version {folder.name} is of another base model ({base}); this one is {self.base}")
        if shape != self.shape:
            raise VersionError(f"version {folder.name} has {shape}; this learner makes {self.shape}")
        tensors = self._read_lora(folder / ADAPTER_FILE)
        teacher = None
        if needs_teacher:
            path = folder / TEACHER_FILE
            teacher = self._read_lora(path) if path.exists() else tensors
        return VersionState(tensors, teacher, folder, notes)

    def _read_lora(self, path: Path) -> dict[str, Tensor]:
        try:
            stored = load_file(path, device="cpu")
        except (OSError, SafetensorError) as error:
            raise VersionError(f"version {path.parent.name}: {path.name} cannot be read: {error}") from error
        found = {_from_peft_name(name): tensor.float() for name, tensor in stored.items()}
        if self.sizes != {name: tuple(tensor.shape) for name, tensor in found.items()}:
            raise VersionError(
                f"version {path.parent.name}: {path.name} has tensors of other names or shapes than this learner's adapters"
            )
        if not all(bool(torch.isfinite(tensor).all()) for tensor in found.values()):
            raise VersionError(f"version {path.parent.name}: {path.name} has numbers that are not finite")
        return {name: found[name] for name in self.sizes}

    def write(
        self,
        folder: Path,
        tensors: Mapping[str, Tensor],
        teacher: Mapping[str, Tensor] | None,
        notes: Mapping[str, Any],
        optimizer: torch.optim.Optimizer | None,
        critic: torch.nn.Module | None,
    ) -> None:
        """Write a version's files into an empty folder; no optimizer: the next step begins without moments, and without a critic.

        Raises:
            UserError: a file cannot be written.
        """
        try:
            (folder / CONFIG_FILE).write_bytes(self.config)
            save_file(
                {_to_peft_name(name): weight.detach().cpu() for name, weight in tensors.items()},
                folder / ADAPTER_FILE,
                {"format": "pt"},
            )
            if optimizer is not None:
                write_optimizer(optimizer, folder / OPTIMIZER_FILE, critic.state_dict() if critic is not None else None)
            if teacher is not None:
                lagging = {_to_peft_name(name): teacher[name].detach().cpu().contiguous() for name in self.sizes}
                save_file(lagging, folder / TEACHER_FILE, metadata={"format": "pt"})
            (folder / NOTES_FILE).write_text(json.dumps(notes, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        except (OSError, SafetensorError) as error:
            raise UserError(f"cannot write the new version to {folder}: {error}") from error


def _to_peft_name(name: str) -> str:
    return PEFT_PREFIX + name.replace(".default.", ".")


def _from_peft_name(name: str) -> str:
    return name.removeprefix(PEFT_PREFIX).replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default.")
