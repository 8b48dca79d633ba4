"""Chats to fine-tune on, short and long, with and without a system message."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage

from learngraph.tools.local.model import LocalChatModel

Chat = list[dict[str, str]]


def chat(question: str, reply: str, system: str = "") -> Chat:
    before = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": question}, {"role": "assistant", "content": reply}]


CHATS = [
    chat("hello", "go north"),
    chat("You are in the kitchen. There is a lamp on the table. " * 3, "take the lamp", "You are in a game."),
    chat("look at the map", "naïve café 42"),
    chat("how are you", "g"),
    chat("open the door", "open the door and go west, then look"),
    chat("go", "eat"),
]


def reply_scores(model: LocalChatModel, chats: list[Chat]) -> list[float]:
    """log p of each reply by `LocalChatModel.score`, in nats."""
    kinds: dict[str, Any] = {"system": SystemMessage, "user": HumanMessage}
    return [model.score([kinds[m["role"]](m["content"]) for m in c[:-1]], [c[-1]["content"]])[0] for c in chats]
