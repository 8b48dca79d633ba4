"""Bodies that are parsed and replies that begin: a few of each tenant at a time, so that none waits for the crowd of another."""

import asyncio
import gc
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import until

pytest.importorskip("fastapi")

from learngraph.memory.records import Piece
from learngraph.tools.serving import endpoints, openai_wire
from learngraph.tools.serving.openai_wire import ApiError, parse_json
from learngraph.tools.serving.replies import MAX_STARTS, ConcurrentReplies, TenantQueues


async def hold(queues: TenantQueues, tenant: str, begun: list[str], end: asyncio.Event) -> None:
    async with queues.turn(tenant):
        begun.append(tenant)
        await end.wait()


async def test_a_tenants_only_reply_begins_at_once_beside_hundreds_of_another() -> None:
    queues, begun, end = TenantQueues(), list[str](), asyncio.Event()
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
    queues, begun, end = TenantQueues(), list[str](), asyncio.Event()
    tasks = [asyncio.create_task(hold(queues, "acme", begun, end)) for _ in range(3 * MAX_STARTS)]
    await asyncio.sleep(0)
    for task in tasks[1::2]:  # some that began, and some that wait
        task.cancel()
    await asyncio.gather(*tasks[1::2], return_exceptions=True)
    await asyncio.sleep(0)
    assert len(begun) == MAX_STARTS + MAX_STARTS // 2
    end.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    del task, tasks
    await asyncio.sleep(0)
    gc.collect()  # the tracebacks of those that were cancelled
    assert not queues._queues


async def test_a_turn_ends_with_the_first_piece_or_error() -> None:
    queues = TenantQueues()
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


async def test_a_network_that_takes_long_to_begin_gets_many_replies_at_once() -> None:
    queues, begun, end = TenantQueues(seconds=0.01), list[str](), asyncio.Event()
    tasks = [asyncio.create_task(hold(queues, "acme", begun, end)) for _ in range(4 * MAX_STARTS)]
    await until(lambda: len(begun) == len(tasks))
    end.set()
    await asyncio.gather(*tasks)
    assert not queues._queues


async def test_of_bodies_that_one_tenant_sends_at_once_another_tenant_waits_for_one() -> None:
    api, parsed = endpoints.ChatApi(None, None, None, 100, bodies=TenantQueues(1, rest=1e12)), list[str]()  # type: ignore[arg-type]

    def request(tenant: str) -> Any:
        async def stream() -> AsyncIterator[bytes]:
            yield b"{}"

        return SimpleNamespace(headers={}, stream=stream, state=SimpleNamespace(tenant=SimpleNamespace(name=tenant)))

    def refuse(tenant: str) -> None:
        parsed.append(tenant)
        raise ApiError("bad")

    crowd = ["acme"] * 30
    tasks = [asyncio.create_task(api.read(request(name), lambda _, name=name: refuse(name))) for name in [*crowd, "beta"]]
    await until(lambda: "beta" in parsed)
    assert parsed == ["acme", "beta"]
    assert sum(task.done() for task in tasks) == 2, "who has had his turn does not wait for the rest behind it"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_of_a_body_with_too_many_values_the_others_are_not_looked_at() -> None:
    most = openai_wire.MAX_VALUES
    assert len(parse_json(b"[" + b"0," * (most - 1) + b"0]")) == most
    with pytest.raises(ApiError, match=f"it has more than {most} values"):
        parse_json(b"[1e999," + b"[0,0,0]," * (most // 2) + b"0]")
    with pytest.raises(ApiError, match="an object has 2001 keys, and may have 2000"):
        parse_json(b'{"a": [{' + b",".join(b'"%d": 0' % n for n in range(2001)) + b"}]}")
