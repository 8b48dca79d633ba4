"""Feedback as people and programs send it, and the nodes of a chat turn."""

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from learngraph.memory.errors import UserError
from learngraph.memory.records import ChatRequest, Feedback, Piece, Reply
from learngraph.nodes.learn.chat_turn import Respond, make_exchange, read_feedback, scope


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        (True, Feedback(1.0)),
        (False, Feedback(-1.0)),
        (0.25, Feedback(0.25)),
        (-1, Feedback(-1.0)),
        ("shorter", Feedback(None, "shorter")),
        ({"success": False, "text": "shorter"}, Feedback(-1.0, "shorter")),
        ({"reward": 0, "source": "judge"}, Feedback(0.0, source="judge")),
        ({"text": "no", "key": "k"}, Feedback(None, "no")),
        (Feedback(0.5), Feedback(0.5)),
    ],
)
def test_feedback_is_read(answer: Any, read: Feedback) -> None:
    assert read_feedback(answer) == read


@pytest.mark.parametrize(
    "answer",
    [
        *(None, {}, [], "", "  ", math.nan, math.inf, 1.01, -2, object()),
        *({"reward": "1"}, {"reward": True}, {"reward": math.nan}, {"success": 1}, {"reward": 1, "success": True}),
        *({"text": 5}, {"stars": 3}, {"reward": None, "text": ""}),
    ],
)
def test_what_says_nothing_is_refused_in_words(answer: Any) -> None:
    with pytest.raises(UserError, match=r"^feedback: "):
        read_feedback(answer)


def test_whoever_is_not_named_is_default() -> None:
    assert scope({}) == ("default", "default")
    assert scope({"tenant": "acme", "adapter": ""}) == ("acme", "default")


class Broken:
    """Ends without a reply, and remembers that it was closed."""

    base, window, features = "b", 1, frozenset[str]()
    closed = False

    async def stream(self, request: ChatRequest, version: str = "", tenant: str = "") -> AsyncIterator[Piece | Reply]:
        try:
            yield Piece("a")
        finally:
            self.closed = True


async def test_an_engine_that_ends_without_a_reply_is_an_error() -> None:
    engine: Any = Broken()
    with pytest.raises(RuntimeError, match="ended without a reply"):
        await Respond(engine).ainvoke({"id": "x", "request": ChatRequest()})
    assert engine.closed


async def test_the_route_says_who_answers() -> None:
    asked = []

    class Told(Broken):
        async def stream(self, request: ChatRequest, version: str = "", tenant: str = "") -> AsyncIterator[Piece | Reply]:
            yield Reply("hi", (1,), (2,), (-0.1,), version=version)

    async def route(tenant: str, adapter: str, id: str) -> tuple[str, int]:
        asked.append((tenant, adapter, id))
        return "acme/default@000004-0123456789ab", 4

    engine: Any = Told()
    state = {"id": "x", "tenant": "acme", "request": ChatRequest(), "turn": 3}
    state |= await Respond(engine, route).ainvoke(state)
    assert asked == [("acme", "default", "x")]
    exchange = make_exchange(state, "b")
    assert (exchange.step, exchange.reply.version, exchange.turn) == (4, "acme/default@000004-0123456789ab", 3)
