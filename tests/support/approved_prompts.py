"""Texts that a person has read and approved, in tests/prompts. RENEW_PROMPTS=1 writes them anew after a change that is meant."""

import os
from collections.abc import Callable
from pathlib import Path

APPROVED = Path(__file__).parents[1] / "prompts"


def assert_approved(name: str, make: Callable[[], str]) -> None:
    """Compare a text with the approved one, word for word."""
    place, text = APPROVED / f"{name}.txt", make().rstrip("\n") + "\n"
    if os.environ.get("RENEW_PROMPTS"):
        place.write_text(text, encoding="utf-8")
    assert text == place.read_text(encoding="utf-8")
