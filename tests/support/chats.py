"""Chats to fine-tune on, short and long, with and without a system message; and a chat template with tools."""

from typing import Any

import torch
from langchain_core.messages import HumanMessage, SystemMessage

from learngraph.tools.local.model import LocalChatModel

Chat = list[dict[str, str]]
HERMES = (
    "{% if tools %}<|start|>system\nTools: {% for t in tools %}{{ t.function.name }} {% endfor %}"
    'Call: <tool_call>{"name": ..., "arguments": ...}</tool_call><|end|>\n{% endif %}'
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}"
    "</tool_call>{% endfor %}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
"""A chat template that writes tools and calls as Hermes and Qwen models do."""


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


def learn_by_heart(model: LocalChatModel, *examples: tuple[list[int], str]) -> None:
    """Teach a model the replies to some prompts, the end of turn included."""
    pairs = [(prompt, model.get_token_ids(said + "<|end|>")) for prompt, said in examples]
    updates = torch.optim.Adam(model.network.parameters(), 1e-2)
    for _ in range(120):
        updates.zero_grad()
        for prompt, said in pairs:
            logits = model.network(torch.tensor([prompt + said]), use_cache=False).logits[0, len(prompt) - 1 : -1]
            torch.nn.functional.cross_entropy(logits, torch.tensor(said)).backward()
        updates.step()
    model.clear_cache()
