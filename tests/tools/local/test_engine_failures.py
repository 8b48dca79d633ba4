"""LocalEngine under odd numbers and errors: a request fails alone, nobody waits for ever, and the next request is answered."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from learngraph.memory.errors import EngineFailed, Unavailable, UserError
from learngraph.memory.records import ChatRequest, Reply, Sampling
from learngraph.tools.local import engine as engine_module
from learngraph.tools.local.engine import MAX_FAILURES, LocalEngine
from learngraph.tools.local.model import LocalChatModel

ODD = (
    0.0,
    -0.0,
    5e-324,
    1e-300,
    1e-46,
    1e-39,
    1e-30,
    1e-5,
    0.999999999,
    1.0,
    2.0,
    100.0,
    1e30,
    1e300,
    -1e-300,
    -1.0,
    float("inf"),
    float("nan"),
)
"""Numbers at the edges of float32 and float64, and beyond."""


@pytest.fixture
async def engine(tiny: str) -> AsyncIterator[LocalEngine]:
    made = LocalEngine(LocalChatModel(model=tiny), rank=4)
    yield made
    await made.close()


def ask(max_tokens: int = 4, more: dict[str, Any] | None = None, **sampling: Any) -> ChatRequest:
    settings = Sampling(**{"max_tokens": max_tokens, "seed": 1, **sampling})
    return ChatRequest(({"role": "user", "content": "go north"},), settings, more=more or {})


async def reply(engine: LocalEngine, request: ChatRequest) -> Reply:
    async for part in engine.stream(request):
        if isinstance(part, Reply):
            return part
    raise AssertionError("no reply came")


async def test_no_number_of_a_request_ends_the_engine(engine: LocalEngine) -> None:
    requests = [ask(temperature=heat, top_p=share) for heat, share in itertools.product((*ODD, 0.7), ODD)]
    requests += [ask(more={name: value}) for name in ("presence_penalty", "frequency_penalty") for value in ODD]
    requests += [ask(temperature=1.0, more={"logit_bias": {"5": value}}) for value in ODD]
    requests += [ask(seed=seed) for seed in (0, -1, 2**63, 2**64, 10**30)] + [ask(max_tokens=n) for n in (-1, 0, 1, 10**12)]
    found = await asyncio.gather(*(reply(engine, request) for request in requests), return_exceptions=True)
    assert {type(one) for one in found} == {Reply, UserError}
    assert (await reply(engine, ask())).token_ids
    assert engine.counts.failed == 0


async def test_a_temperature_too_small_for_float32_is_greedy_and_a_tiny_top_p_keeps_one_token(engine: LocalEngine) -> None:
    greedy = await reply(engine, ask(max_tokens=12, temperature=0.0))
    for odd in ({"temperature": 1e-300}, {"temperature": 1e-39}, {"temperature": 1.0, "top_p": 1e-46}):
        assert (await reply(engine, ask(max_tokens=12, **odd))).token_ids == greedy.token_ids


async def test_a_row_that_cannot_be_drawn_fails_alone(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = engine_module.sample_tokens

    def refuse(logps: Any, draws: Any, own: Any = None) -> Any:
        if any(one.top_p == 0.5 for one in draws):
            raise ValueError("not this one")
        return draw(logps, draws, own)

    monkeypatch.setattr(engine_module, "sample_tokens", refuse)
    asked = (reply(engine, ask(top_p=share, temperature=1.0)) for share in (1.0, 0.5, 0.9))
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) for one in found] == [Reply, EngineFailed, Reply]


INNER = (
    "_has_work", "_clear", "_admit", "_run_pass", "_choose_prefill", "_choose_generating", "_run_parts", "_draw_tokens", "_add_token",
    "_send", "_send_piece", "_finish", "_keep_prefix", "_queue_item", "_release_run", "_release_version", "_deliver",
)  # fmt: skip
"""Functions that the network's thread calls while it makes a reply."""


@pytest.mark.parametrize("name", INNER)
async def test_an_error_in_any_function_leaves_nobody_waiting(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    known, times = getattr(engine, name), itertools.count()

    def fail_once(*args: Any) -> Any:
        if threading.current_thread().name == "network" and next(times) == 0:
            raise RuntimeError("by chance")
        return known(*args)

    monkeypatch.setattr(engine, name, fail_once)
    async with asyncio.timeout(60):
        found = await asyncio.gather(*(reply(engine, ask(max_tokens=40, seed=i)) for i in range(4)), return_exceptions=True)
        assert {type(one) for one in found} <= {Reply, EngineFailed, Unavailable}
        assert (await reply(engine, ask())).token_ids
        assert not engine._live


async def test_an_engine_that_fails_again_and_again_says_so_and_ends(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    engine = LocalEngine(LocalChatModel(model=tiny), rank=4, on_failure=over.set)

    def fail(*args: Any) -> Any:
        raise RuntimeError("for good")

    monkeypatch.setattr(engine, "_admit", fail)
    for _ in range(MAX_FAILURES):
        assert not over.is_set()
        with pytest.raises(Unavailable, match="for good"):
            await reply(engine, ask())
    assert await asyncio.to_thread(over.wait, 60)
    with pytest.raises(Unavailable, match="closed"):
        await reply(engine, ask())
    await engine.close()
