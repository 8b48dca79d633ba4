"""Train the two linear models of the screen (memory/conversations/linear.py) on the examples in screen/, and measure them on screen/held_out/.

    orders.txt, ordinary.txt             what customers say, with an order to the agent and without
    tool_orders.txt, tool_results.txt    what tools say, likewise
    secrets.tsv, no_secrets.txt          texts and a secret in each, and texts about secrets without one
    held_out/requests.txt                what users ask of an assistant of their own, without an order for others

A text is one line; `\\n` in it is a line break. The authors of the held-out texts saw no code; they wrote a part of the examples, too.
"""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from learngraph.memory.conversations.linear import PLACES, text_places, word_places
from learngraph.memory.conversations.messages import last_turn
from learngraph.memory.conversations.screen import Screen

_MAY_TELL = re.compile("(?i)pass|pin|code|key|secret|\u043f\u0430\u0440\u043e\u043b")
"""An order with one of these may tell a secret: its words are no examples of harmless ones."""
EXAMPLES = Path(__file__).with_name("screen")


def read_examples(name: str, *, is_held_out: bool = False) -> list[str]:
    """The texts of a file of examples."""
    folder = EXAMPLES / "held_out" if is_held_out else EXAMPLES
    return [line.replace("\\n", "\n") for line in (folder / name).read_text().splitlines()]


def read_secrets(*, is_held_out: bool = False) -> dict[str, list[str]]:
    """Text -> the secrets in it."""
    found = dict[str, list[str]]()
    for line in read_examples("secrets.tsv", is_held_out=is_held_out):
        text, _, secret = line.rpartition("\t")
        found.setdefault(text, []).append(secret)
    return found


def train(path: Path) -> Path:
    """Write the weights of both models to a file (.npz)."""
    orders = [*read_examples("orders.txt"), *read_examples("tool_orders.txt")]
    ordinary = [*read_examples("ordinary.txt"), *read_examples("tool_results.txt")]
    by_text = _fit([Counter(text_places(one)) for one in orders + ordinary], [1] * len(orders) + [0] * len(ordinary), 0.1)
    rows, kinds = list[Counter[int]](), list[int]()
    harmless = [*read_examples("no_secrets.txt"), *ordinary, *(one for one in orders if not _MAY_TELL.search(one))]
    for text, secrets in [*read_secrets().items(), *((one, list[str]()) for one in harmless)]:
        spans = [found.span() for one in secrets for found in re.finditer(re.escape(one), text)]
        for (start, end), places in word_places(text):
            rows.append(Counter(places))
            kinds.append(int(any(start < last and first < end for first, last in spans)))
    by_word = _fit(rows, kinds, 0.3)
    names = {"orders": by_text, "secrets": by_word}
    np.savez_compressed(
        path,
        **{name: model.coef_[0].astype(np.float16) for name, model in names.items()},
        **{f"{name}_bias": model.intercept_[0] for name, model in names.items()},
    )
    return path


def measure() -> str:
    """The errors of the screen with the weights in the package, at the held-out texts."""
    found = [f"{name}: an order in {_count(_is_order, name)}" for name in ("orders", "ordinary", "requests")]
    found += [f"{name}: words kept of {_count(_is_kept, name)}" for name in ("tool_orders", "tool_results")]
    told = [(text, secret) for text, secrets in read_secrets(is_held_out=True).items() for secret in secrets]
    blackened = sum(secret not in Screen().of_thread([text]).redact(text) for text, secret in told)
    found.append(f"secrets: blackened {blackened} of {len(told)}")
    others = ("no_secrets", "ordinary", "requests", "tool_results")
    return "\n".join([*found, *(f"{name}: words blackened in {_count(_is_changed, name)}" for name in others)])


def _count(has: Callable[[str], bool], name: str) -> str:
    texts = read_examples(f"{name}.txt", is_held_out=True)
    return f"{sum(map(has, texts))} of {len(texts)}"


def _is_order(text: str) -> bool:
    return Screen().suspicion(text) is not None


def _is_kept(result: str) -> bool:
    look = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "look"}])
    talk = [HumanMessage("Look it up."), look, ToolMessage(result, tool_call_id="look", name="look"), AIMessage("Done.")]
    return result in Screen().steps(talk, last_turn)[-1].observation_text


def _is_changed(text: str) -> bool:
    return Screen().redact(text) != text


def _fit(rows: list[Counter[int]], kinds: list[int], inverse_penalty: float) -> LogisticRegression:
    ends = np.cumsum([0, *map(len, rows)])
    places = np.array([place for row in rows for place in row], "int32")
    counts = np.array([count for row in rows for count in row.values()], float)
    features = csr_matrix((counts, places, ends.astype("int32")), shape=(len(rows), PLACES))
    share = {0: 1, 1: min(4.0, kinds.count(0) / kinds.count(1))}
    return LogisticRegression(C=inverse_penalty, class_weight=share, max_iter=3_000, tol=1e-6).fit(features, kinds)
