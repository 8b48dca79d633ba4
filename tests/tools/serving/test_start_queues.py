"""Replies that begin: a few of each tenant at a time, so that none waits for the crowd of another."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from waiting import until

pytest.importorskip("fastapi")

from learngraph.memory.records import Piece
from learngraph.tools.serving import replies as replies_module
from learngraph.tools.serving.replies import MAX_STARTS, ConcurrentReplies, StartQueues


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies_module, "START_SECONDS", 60.0)


async def hold(queues: StartQueues, tenant: str, begun: list[str], end: asyncio.Event) -> None:
    async with queues.turn(tenant):
        begun.append(tenant)
        await end.wait()


async def test_a_tenants_only_reply_begins_at_once_beside_hundreds_of_another() -> None:
    queues, begun, end = StartQueues(), list[str](), asyncio.Event()
    tasks = [asyncio.create_task(hold(queues, "crowd", begun, end)) for _ in range(300)]
    await asyncio.sleep(0)
    assert begun == ["crowd"] * MAX_STARTS
    tasks.append(asyncio.create_task(hold(queues, "single", begun, end)))
    await asyncio.sleep(0)
    assert begun[-1] == "single"
    end.set()
    await asyncio.gather(*tasks)
    assert len(begun) == 301
    assert not queues._queues  # a tenant without requests leaves nothing behind


async def test_those_who_give_up_or_fail_make_room() -> None:
    queues, begun, end = StartQueues(), list[str](), asyncio.Event()
    tasks = [asyncio.create_task(hold(queues, "acme", begun, end)) for _ in range(3 * MAX_STARTS)]
    await asyncio.sleep(0)
    for task in tasks[1::2]:  # some that began, and some that wait
        task.cancel()
    await asyncio.gather(*tasks[1::2], return_exceptions=True)
    await asyncio.sleep(0)
    assert len(begun) == MAX_STARTS + MAX_STARTS // 2
    end.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not queues._queues


async def test_a_turn_ends_with_the_first_piece_or_error() -> None:
    queues = StartQueues()
    holding: list[int] = []

    async def stream(fails: bool) -> AsyncIterator[Piece]:
        holding.append(len(queues._queues))
        if fails:
            raise OSError("gone")
        yield Piece("a")
        await asyncio.Event().wait()

    async def never() -> dict[str, str]:
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    replies = ConcurrentReplies([stream(False)], never, lambda: queues.turn("acme"))
    assert [item.text for _, item in await replies.next_items() if isinstance(item, Piece)] == ["a"]
    assert (holding, queues._queues) == ([1], {})
    await replies.close()
    replies = ConcurrentReplies([stream(True)], never, lambda: queues.turn("acme"))
    with pytest.raises(OSError, match="gone"):
        await replies.next_items()
    assert not queues._queues
    await replies.close()


async def test_a_network_that_takes_long_to_begin_gets_many_replies_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies_module, "START_SECONDS", 0.01)
    queues, begun, end = StartQueues(), list[str](), asyncio.Event()
    tasks = [asyncio.create_task(hold(queues, "acme", begun, end)) for _ in range(4 * MAX_STARTS)]
    await until(lambda: len(begun) == len(tasks))
    end.set()
    await asyncio.gather(*tasks)
    assert not queues._queues
