"""Minibatches for tests of learners, wherever they run."""

from learngraph.memory.records import ChatRequest, Exchange, Feedback, Minibatch, Reply, Sampling
from learngraph.tools.local.model import LocalChatModel


def minibatch(model: LocalChatModel, base: str, step: int = 1, parent: str = "", size: int = 4) -> Minibatch:
    """Replies to one question, every second one rewarded and the others punished."""
    question = {"role": "user", "content": "look at the map"}
    prompt = tuple(model.chat_ids([question]))
    exchanges = [
        Exchange(
            *(f"r{n}", "acme", ChatRequest((question,), Sampling(max_tokens=4))),
            reply=Reply("x", prompt, (300 + n, 301, 302), (-1.0 - n, -2.0, -3.0)),
            base=base,
            feedback=Feedback(1.0 if n % 2 else -1.0),
        )
        for n in range(size)
    ]
    return Minibatch(f"acme/default/{step}", "acme", "default", step, parent, tuple(exchanges), seed=7)
