"""LoRA adapters of a local model that can be switched from pass to pass, and within one.

Any thread may read and check an adapter and prepare its tensors for passes; after that its use costs two products a layer.
Several adapters stay in memory, and each row of a pass may have another: y = W x + B A x (alpha / r), with A and B of the row's
adapter. Rows without an adapter get the base model's results, bit for bit. Files are PEFT's: `adapter_config.json`,
`adapter_model.safetensors`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ...memory.errors import AdapterError, UserError

__all__ = ["Adapter", "AdapterSwitch"]

PEFT_PREFIX = "base_model.model."
"""The prefix of layers' names in PEFT's files."""
UNSUPPORTED_OPTIONS = (
    "use_dora",
    "use_rslora",
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
    "lora_bias",
    "layer_replication",
)
"""Options of PEFT beyond plain LoRA, which passes do not support."""


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter whose tensors are prepared for passes."""

    pairs: tuple[tuple[torch.Tensor, torch.Tensor] | None, ...]
    """For each layer of the `AdapterSwitch`: A^T (inputs, r) and alpha / r B^T (r, outputs); None: the layer is not changed."""
    bytes: int
    """Memory of the tensors."""


MIN_REORDERED = 2**18
"""Fewest weights of a layer that is computed with reordered weights. Smaller ones stay in the processor's cache, where this saves
nothing."""
MAX_REORDERED_BYTES = 2**30
"""Most weights of a network that are held a second time, reordered. A larger network is computed with its own."""


def _reorder_weights(layers: Sequence[Any]) -> dict[Any, torch.Tensor]:
    """Large layers' weights in the order in which oneDNN reads them.

    By MKL, which torch uses otherwise, a product with few rows takes up to four times as long as one with a single row, since it
    reorders all weights each time. Empty for other devices and number formats.
    """
    large = [layer for layer in layers if isinstance(layer, torch.nn.Linear) and layer.weight.numel() >= MIN_REORDERED]
    weights = {layer: layer.weight.detach() for layer in large}
    usable = all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in weights.values())
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    reorder = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None) if has_onednn else None
    if reorder is None or not usable or sum(weight.nbytes for weight in weights.values()) > MAX_REORDERED_BYTES:
        return {}
    return {layer: reorder(weight) for layer, weight in weights.items()}


class _Forward:
    """The `forward` of a linear layer: with reordered weights where no gradients are needed, and with the active adapters.

    A copy of the layer has neither.
    """

    def __init__(
        self, layer: Any, reordered: torch.Tensor | None, index: int = 0, spans: Sequence[tuple[int, int, Adapter]] = ()
    ) -> None:
        self._layer, self._plain = layer, type(layer).forward
        self._reordered = reordered
        self._version = None if reordered is None else layer.weight._version
        self._index, self._spans = index, spans

    def __deepcopy__(self, memo: dict[int, Any]) -> _Forward:
        return _Forward(copy.deepcopy(self._layer, memo), None)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor
        if self._reordered is None or torch.is_grad_enabled() or self._layer.weight._version != self._version:
            y = self._plain(self._layer, x)
        else:
            y = torch.ops.mkldnn._linear_pointwise(x, self._reordered, self._layer.bias, "none", [], "")
        for start, end, adapter in self._spans:
            pair = adapter.pairs[self._index]
            if pair is not None:
                # At least four rows: a product of fewer differs in its last bits (`MIN_ROWS` in passes.py).
                low = max(0, min(start, end - 4))
                high = max(end, min(low + 4, x.shape[-2]))
                inner = x[0, low:high] @ pair[0]  # (rows, r)
                if (low, high) == (start, end):
                    y[0, start:end].addmm_(inner, pair[1])
                else:
                    y[0, start:end] += (inner @ pair[1])[start - low : end - low]
        return y


class AdapterSwitch:
    """The linear layers of a network that adapters may change, and the adapters that are active.

    Layers keep their place, name and weights; only their `forward` is replaced.

    Args:
        rank: highest rank of adapters.
        targets: `all-linear`, or layers' names joined by commas.

    Raises:
        UserError: a rank below 1, or no layer of these names.
    """

    def __init__(self, network: Any, rank: int, targets: str) -> None:
        from transformers.pytorch_utils import Conv1D

        if rank < 1:
            raise UserError(f"adapters need a rank of 1 or more, got {rank}")
        self.rank = rank
        """Highest rank of adapters."""
        wanted = [name.strip() for name in targets.split(",") if name.strip()]
        head = network.get_output_embeddings()
        self._spans: list[tuple[int, int, Adapter]] = []
        self.layers: dict[str, tuple[int, int, int]] = {}
        """Name -> (index in an adapter's `pairs`, inputs, outputs)."""
        linear = [
            (path, layer)
            for path, layer in network.named_modules()
            if isinstance(layer, torch.nn.Linear | Conv1D) and ".lora_" not in path
        ]
        reordered = _reorder_weights([layer for _, layer in linear])
        for path, layer in linear:
            name = path.removeprefix(PEFT_PREFIX).removesuffix(".base_layer")
            named = wanted == ["all-linear"] or any(name == one or name.endswith("." + one) for one in wanted)
            if layer is head or not named:
                layer.forward = _Forward(layer, reordered.get(layer))  # type: ignore[method-assign]
                continue
            index, sizes = len(self.layers), layer.weight.shape if isinstance(layer, Conv1D) else layer.weight.shape[::-1]
            self.layers[name] = (index, sizes[0], sizes[1])
            layer.forward = _Forward(layer, reordered.get(layer), index, self._spans)  # type: ignore[method-assign]
        if not self.layers:
            raise UserError(f"no linear layer of this model is called {targets!r}; use 'all-linear'")
        weight = next(network.parameters())
        self.dtype, self.device = weight.dtype, weight.device

    @contextmanager
    def activate(self, spans: Sequence[tuple[int, int, Adapter]]) -> Iterator[None]:
        """Within the block, rows from `start` to `end` of layers' inputs, (1, rows, inputs), have an adapter."""
        self._spans[:] = spans
        try:
            yield
        finally:
            self._spans.clear()


def read_adapter(folder: Path, switch: AdapterSwitch, base: str) -> Adapter:
    """An adapter from a folder that PEFT or tools/training/lora.py wrote. Any thread may call this.

    Args:
        base: `fingerprint` of the base model. An adapter that names its base (in its tensors' metadata, `manifest.json` or
            `learner.json`) must name this one.

    Raises:
        AdapterError: files are missing or corrupt, it is for another base, or its rank, layers, shapes or numbers do not fit.
    """
    where = f"adapter {folder.name}"
    config = _read_config(folder, where)
    tensors, metadata = _read_tensors(folder, where)
    named = metadata.get("base") or _read_base(folder / "manifest.json") or _read_base(folder / "learner.json")
    if named and named != base:
        raise AdapterError(f"{where} is for another base model: its base is {named}, this one is {base}")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or not 1 <= rank <= switch.rank:
        raise AdapterError(f"{where} has rank {rank}; this service was started for ranks from 1 to {switch.rank}")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < float("inf"):
        raise AdapterError(f"{where}: lora_alpha in adapter_config.json is {alpha!r}; it must be a number above 0")
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        layer, _, kind = name.removeprefix(PEFT_PREFIX).rpartition(".lora_")
        if kind not in ("A.weight", "B.weight") or layer not in switch.layers:
            raise AdapterError(
                f"{where} changes {name!r}, which is not among the {len(switch.layers)} layers that adapters change here"
            )
        found.setdefault(layer, {})[kind[0]] = tensor
    pairs: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * len(switch.layers)
    total = 0
    for layer, both in found.items():
        index, inputs, outputs = switch.layers[layer]
        if set(both) != {"A", "B"}:
            raise AdapterError(f"{where} has only lora_{next(iter(both))} of {layer}; it needs A and B")
        shapes = tuple(both["A"].shape), tuple(both["B"].shape)
        if shapes != ((rank, inputs), (outputs, rank)):
            raise AdapterError(
                f"{where}: {layer} has A {shapes[0]} and B {shapes[1]}, not {(rank, inputs)} and {(outputs, rank)}"
            )
        if not all(tensor.is_floating_point() and bool(tensor.isfinite().all()) for tensor in both.values()):
            raise AdapterError(f"{where}: {layer} has numbers that are not finite; use the version before it")
        down = both["A"].float().t().contiguous().to(switch.device, switch.dtype)
        up = (both["B"].float() * (alpha / rank)).t().contiguous().to(switch.device, switch.dtype)
        pairs[index] = (down, up)
        total += down.nbytes + up.nbytes
    if not total:
        raise AdapterError(f"{where} holds no tensors")
    return Adapter(tuple(pairs), total)


def _read_config(folder: Path, where: str) -> Mapping[str, Any]:
    try:
        config = json.loads((folder / "adapter_config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise AdapterError(f"{where}: adapter_config.json cannot be read: {_reason(error)}") from error
    if not isinstance(config, dict) or config.get("peft_type", "LORA") != "LORA":
        raise AdapterError(f"{where}: adapter_config.json does not describe a LoRA adapter")
    special = [name for name in UNSUPPORTED_OPTIONS if config.get(name)]
    if special or config.get("bias", "none") != "none":
        raise AdapterError(f"{where} uses {special or ['bias']}; use plain LoRA")
    return config


def _read_tensors(folder: Path, where: str) -> tuple[dict[str, torch.Tensor], Mapping[str, str]]:
    try:
        with safe_open(folder / "adapter_model.safetensors", framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118 (no dict)
    except (OSError, SafetensorError, ValueError) as error:
        raise AdapterError(f"{where}: adapter_model.safetensors is corrupt or missing: {_reason(error)}") from error


def _read_base(path: Path) -> str | None:
    try:
        notes = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    base = notes.get("base") if isinstance(notes, dict) else None
    return base if isinstance(base, str) else None


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
