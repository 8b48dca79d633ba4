"""Chat models by name: `pocket`, `guard`, `local:PATH_OR_NAME`, `openai:MODEL`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...memory.errors import UserError, did_you_mean

if TYPE_CHECKING:  # half a second to import, for a name
    from langchain_core.language_models import BaseChatModel

__all__ = ["MODELS", "POCKET", "ModelKind", "open_model"]

POCKET = Path(__file__).resolve().parents[1] / "pocket" / "weights"
GUARD = POCKET.with_name("guard_weights")


@dataclass(frozen=True)
class ModelKind:
    """A way to name a model, as `learngraph list` shows it."""

    summary: str
    """The model in one line."""
    needs: str
    """Requirements to install or set first."""


MODELS: dict[str, ModelKind] = {
    "pocket": ModelKind(
        "the Llama of 1.6 million parameters that comes with the package; plays the toy world and text games, in milliseconds on a CPU",
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
    timeout: float = 600.0,
    max_retries: int = 9,
    reasoning_effort: str | None = None,
    extra_body: Mapping[str, Any] | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
    thinking: bool | None = None,
) -> BaseChatModel:
    """Open a chat model by name; `MODELS` lists the names.

    Args:
        spec: the name.
        temperature: of sampling; None leaves it to the model.
        max_tokens: longest reply, in tokens; None leaves it to the model.
        seed: of sampling; None leaves it to the model.
        base_url: address of the API, for `openai:` models.
        timeout: seconds that one request may take, for `openai:` models.
        max_retries: retries of rate-limited, failed and timed-out requests, for `openai:` models.
        reasoning_effort: effort of an `openai:` model that reasons, such as "low"; None leaves it to the model.
        extra_body: further fields of every request, for `openai:` models.
        device: where a model in this process runs.
        dtype: number format of a model in this process.
        threads: CPU threads of a model in this process; None leaves them to torch.
        thinking: switch of a model in this process that can think before it replies; None leaves it to its chat template.

    Raises:
        UserError: there is no such name, the checkpoint cannot be loaded, a key is missing, or a model in this process was given
            what only requests have.
    """
    kind, _, name = spec.partition(":")
    chosen = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
    settings: dict[str, Any] = {key: value for key, value in chosen.items() if value is not None}
    if kind == "openai" and name:
        more = {"reasoning_effort": reasoning_effort, "extra_body": extra_body and dict(extra_body)}
        settings |= {key: value for key, value in more.items() if value}
        return _open_api(name, settings, base_url, timeout, max_retries)
    if base_url is not None and (spec in ("pocket", "guard") or kind == "local"):
        raise UserError(f"model {spec!r} runs in this process and has no base_url ({base_url}); 'openai:MODEL' has one")
    if reasoning_effort or extra_body:
        raise UserError(f"model {spec!r} takes no reasoning effort and no extra body; 'openai:MODEL' does")
    checkpoint = _checkpoint(spec)

    from ..local.model import LocalChatModel

    return LocalChatModel(model=checkpoint, device=device, dtype=dtype, threads=threads, thinking=thinking, **settings)


def _checkpoint(spec: str) -> str:
    """The folder or hub name of a model that runs in this process; a UserError says what is missing."""
    kind, _, name = spec.partition(":")
    if spec == "pocket":
        if not (POCKET / "config.json").exists():
            raise UserError(f"model 'pocket': no weights in {POCKET}; install learngraph anew, or use 'local:PATH'")
        return str(POCKET)
    if spec == "guard":
        return str(GUARD)
    if kind != "local" or not name:
        raise UserError(f"there is no model {spec!r}{did_you_mean(spec, MODELS, 'there are')}")
    if not name.startswith(("/", ".", "~")):
        return name
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise UserError(f"model {spec!r}: there is no folder {folder}; give the folder of a checkpoint")
    return str(folder)


def _open_api(name: str, settings: dict[str, Any], base_url: str | None, timeout: float, max_retries: int) -> BaseChatModel:
    base_url = base_url or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE") or None
    key = os.environ.get("OPENAI_API_KEY")
    if not key and base_url is None:
        raise UserError(
            f"model 'openai:{name}' needs OPENAI_API_KEY in the environment; "
            "or give the base_url of a server without keys, or use 'pocket' or 'local:PATH'"
        )
    if base_url and not base_url.startswith(("http://", "https://")):
        raise UserError(f"the base URL of model 'openai:{name}' begins with http:// or https://, got {base_url}")

    from pydantic import SecretStr

    from .openai_model import OpenAIChatModel

    return OpenAIChatModel(
        model=name, base_url=base_url, api_key=SecretStr(key or "none"), timeout=timeout, max_retries=max_retries, **settings
    )
