"""AdaMEM as it was published (arXiv:2606.05684): the values of the paper, and the prompts that say what the paper's say."""

from collections.abc import Mapping
from typing import Any, Literal

from ..wiring.inputs import WritingStyle

__all__ = ["FOLDERS", "PAPER", "Wording", "writing_style"]

Wording = Literal["ours", "paper"]
"""The prompts of a model that writes: our own, or in our words what the paper's say."""
FOLDERS: Mapping[Wording, str] = {"ours": "adamem", "paper": "paper/adamem"}
"""The folder of prompts of each wording."""
_VOTES = {
    "adamem/consider": "Memory",
    "adamem/reconsider": "Refresh",
    "paper/adamem/consider": "request_memory",
    "paper/adamem/reconsider": "refresh_decision",
}
"""Prompt of a draft -> the mark of its vote."""
PAPER: Mapping[str, Any] = {
    **{"mode": "low-on-request", "online": False, "wording": "paper"},
    **{"k": 1, "outcomes": "success", "min_similarity": 0.0, "max_per_trajectory": 0, "distinct": False},
    **{"retrieval_key": "whole", "followup_steps": None, "max_state_chars": None},
    # The layout of Qwen3-Embedding; without an `embedder` it is not read.
    "query_prompt": "Instruct: Find past situations of an agent that are like its present one\nQuery:",
    "document_prompt": "",
}
"""The published low mode: one success, found by the whole prompt at any similarity, in a bank that stays as it is."""


def writing_style(wording: Wording, purpose: str) -> WritingStyle:
    """The style in which a model writes its actions: `consider`, `reconsider`, `act` or `raw`."""
    prompt = f"{FOLDERS[wording]}/{purpose}"
    return WritingStyle(prompt, thinks_before_each_action=True, vote_mark=_VOTES.get(prompt, ""))
