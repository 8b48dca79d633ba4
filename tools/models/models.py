"""Chat models by name: `pocket`, `guard`, `local:PATH_OR_NAME`, `openai:MODEL`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...memory.errors import UserError

if TYPE_CHECKING:  # half a second to import, for a name
    from langchain_core.language_models import BaseChatModel

__all__ = ["GUARD", "MODELS", "POCKET", "ModelKind", "open_model"]

POCKET = Path(__file__).resolve().parents[1] / "pocket" / "weights"
GUARD = POCKET.with_name("guard_weights")


@dataclass(frozen=True)
class ModelKind:
    """What `learngraph list` says of a way to name a model."""

    summary: str
    needs: str
    """What must be there before it can be used."""


MODELS: dict[str, ModelKind] = {
    "pocket": ModelKind(
        "the Llama of a million parameters that comes with the package; knows the toy world only, milliseconds on a CPU",
        "nothing",
    ),
    "guard": ModelKind(
        "a Llama of a million parameters that comes with the package, and keeps the rules of its system prompt in part; knows "
        "the scenarios of instruction hierarchy only",
        "nothing",
    ),
    "local:PATH_OR_NAME": ModelKind(
        "any transformers causal model, by folder or hub name; exact log-probabilities of whole actions",
        "the checkpoint: in a folder, or downloaded from the hub at first use",
    ),
    "openai:MODEL": ModelKind(
        "a model behind an OpenAI-compatible API (OpenAI, vLLM, llama.cpp, Ollama) at base_url",
        "OPENAI_API_KEY, or the base_url of a server that needs no key",
    ),
}


def open_model(
    spec: str,
    *,
    temperature: float | None = None,
    max_tokens: int | None = None,
    seed: int | None = None,
    base_url: str | None = None,
    timeout: float = 60.0,
    max_retries: int = 4,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
) -> BaseChatModel:
    """Open a model by name; `MODELS` lists the names.

    `temperature`, `max_tokens` and `seed` are every model's, and None leaves them to it. `base_url`, `timeout` (seconds a
    request may take) and `max_retries` (of rate-limited and failed requests, with growing pauses) are for `openai:`,
    `device`, `dtype` and `threads` for models in this process.

    Raises `UserError` for a name that does not exist, a checkpoint that cannot be loaded, and a missing key.
    """
    kind, _, name = spec.partition(":")
    chosen = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
    settings: dict[str, Any] = {key: value for key, value in chosen.items() if value is not None}
    if kind == "openai" and name:
        return _open_api(name, settings, base_url, timeout, max_retries)
    if base_url is not None and (spec in ("pocket", "guard") or kind == "local"):
        raise UserError(f"model {spec!r} runs in this process and has no base_url ({base_url}); 'openai:MODEL' has one")
    if spec == "pocket":
        if not (POCKET / "config.json").exists():
            raise UserError("model 'pocket' has no weights yet; run 'learngraph pocket train', or use 'local:PATH'")
        name = str(POCKET)
    elif spec == "guard":
        name = str(GUARD)
    elif kind != "local" or not name:
        raise UserError(f"there is no model {spec!r}; there are {', '.join(MODELS)}")
    elif name.startswith(("/", ".", "~")):
        name = str(Path(name).expanduser())
        if not Path(name).is_dir():
            raise UserError(f"model {spec!r}: there is no folder {name}; the folder of a checkpoint would do")

    from ..local.model import LocalChatModel

    return LocalChatModel(model=name, device=device, dtype=dtype, threads=threads, **settings)


def _open_api(name: str, settings: dict[str, Any], base_url: str | None, timeout: float, max_retries: int) -> BaseChatModel:
    base_url = base_url or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE") or None
    key = os.environ.get("OPENAI_API_KEY")
    if not key and base_url is None:
        raise UserError(
            f"model 'openai:{name}' needs OPENAI_API_KEY in the environment; "
            "the base_url of a server without keys, 'pocket' or 'local:PATH' would do without"
        )

    from pydantic import SecretStr

    from .openai_model import OpenAIChatModel

    return OpenAIChatModel(
        model=name, base_url=base_url, api_key=SecretStr(key or "none"), timeout=timeout, max_retries=max_retries, **settings
    )
