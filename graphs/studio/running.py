"""The running part of a walk: the nodes and a model's words while they come, and the time and the tokens of every node that has run."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from threading import Event
from time import monotonic
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langgraph.types import StateSnapshot

from ...memory.errors import UserError
from ...tools.notebook.moments import source_of
from ...tools.notebook.walk import Walk

__all__ = []


class _Stopper(BaseCallbackHandler):
    """Ends a model's reply at the next token once Stop was pressed."""

    raise_error = run_inline = True

    def __init__(self, stop: Event) -> None:
        self._stop = stop

    def on_llm_new_token(self, token: Any, **more: Any) -> None:
        if self._stop.is_set():
            raise UserError("stopped while the model wrote; the walk stands before its node")


class Running:
    """The nodes that the walks of a session run, by the ids of LangGraph's tasks."""

    def __init__(self, stop: Event) -> None:
        self._stopper = _Stopper(stop)
        self._began: dict[str, tuple[str, float]] = {}
        self._seconds: dict[str, float] = {}
        self._tokens: defaultdict[str, int] = defaultdict(int)
        self._words: dict[str, str] = {}

    def watch(self, walk: Walk) -> None:
        """Listen to what a walk runs. From now on its models stream."""
        if walk.listen is None:
            walk.listen = self._hear
            walk.config = {"callbacks": [self._stopper], **walk.config}

    def _hear(self, event: tuple[Any, str, Any]) -> None:
        _, stream, told = event
        if stream == "messages":
            message, about = told
            tasks = [part.rpartition(":")[2] for part in str(about.get("langgraph_checkpoint_ns", "")).split("|")]
            if message.type in ("ai", "AIMessageChunk"):
                self._words[tasks[-1]] = self._words.get(tasks[-1], "") + str(message.text)
            for task in tasks:  # a subgraph's tokens are those of the node around it, too
                self._tokens[task] += (getattr(message, "usage_metadata", None) or {}).get("total_tokens", 0)
        elif "triggers" in told:
            self._began[told["id"]] = told["name"], monotonic()
        elif told["id"] in self._began:
            self._seconds[told["id"]] = monotonic() - self._began.pop(told["id"])[1]

    def now(self) -> dict[str, Any]:
        """The nodes that run, each with its seconds so far and the words that its model has written."""
        began = dict(self._began).items()
        return {
            "running": [{"node": n, "seconds": monotonic() - at, "words": self._words.get(id, "")} for id, (n, at) in began]
        }

    def forget_unfinished(self) -> None:
        """Forget the nodes that have not ended: an error or a question has ended their run."""
        self._began.clear()
        self._words.clear()

    def cost(self, before: StateSnapshot, after: StateSnapshot) -> str:
        """The time and the tokens of what ran between two moments, in words; empty where they were not measured."""
        return "" if source_of(after) == "update" else cost_words(*self._sums(before))

    def _sums(self, moment: StateSnapshot) -> tuple[float, int]:
        known = [task.id for task in moment.tasks if task.id in self._seconds]
        return max((self._seconds[id] for id in known), default=0.0), sum(self._tokens[id] for id in known)

    def costs(self, path: Sequence[StateSnapshot]) -> list[list[str]]:
        """Node, times, and time and tokens in words, for what ran on a path; the slowest first. Nothing where nothing was measured."""
        sums: dict[str, tuple[int, float, int]] = {}
        for before in [before for before, after in pairwise(path) if source_of(after) != "update"]:
            name, (more, further) = " and ".join(dict.fromkeys(before.next)), self._sums(before)
            times, seconds, tokens = sums.get(name, (0, 0.0, 0))
            sums[name] = times + max(Counter(before.next).values()), seconds + more, tokens + further
        slowest = sorted(sums.items(), key=lambda one: -one[1][1])
        shown = [[name, f"{times}×", cost_words(seconds, tokens)] for name, (times, seconds, tokens) in slowest]
        return shown if any(cost for *_, cost in shown) else []


def cost_words(seconds: float, tokens: int) -> str:
    """Time and tokens in a few characters; empty for none."""
    if not seconds:
        return ""
    time = f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
    return f"{time}, {tokens:,} tokens" if tokens else time
