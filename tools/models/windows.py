"""The windows of models behind an API, by name: a server of the OpenAI protocol does not tell them."""

from __future__ import annotations

__all__ = []

WINDOWS: dict[str, int] = {
    "gpt-4.1": 1_047_576,
    "gpt-4o": 128_000,
    "gpt-4-turbo": 128_000,
    "gpt-4": 8_192,
    "gpt-3.5": 16_385,
    "gpt-5": 400_000,
    "gpt-oss": 131_072,
    "o1": 200_000,
    "o3": 200_000,
    "o4": 200_000,
    "claude": 200_000,
    "gemini": 1_048_576,
    "llama-3.1": 131_072,
    "llama-3.2": 131_072,
    "llama-3.3": 131_072,
    "llama-4": 1_048_576,
    "qwen2.5": 32_768,
    "qwen3": 32_768,
    "deepseek": 65_536,
    "mistral-large": 131_072,
    "phi-4": 16_384,
    "gemma-3": 131_072,
}
"""Beginning of a model's name, without its owner -> tokens of prompt and reply together, as its maker states them."""


def known_window(model: str) -> int | None:
    """Tokens of the longest prompt and reply of this model; None if its name tells nothing. The longest matching beginning counts.

    A server may be set up for less than its model can do; `--window` says so.
    """
    name = model.lower().rpartition("/")[2]
    found = [start for start in WINDOWS if name.startswith(start)]
    return WINDOWS[max(found, key=len)] if found else None
