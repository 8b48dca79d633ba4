"""A memory as tools of the Model Context Protocol, called by the protocol's own client."""

import json
import sys
from pathlib import Path
from typing import Any

import help_desk as desk
import pytest
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from learngraph.graphs.agents.mcp_tools import memory_server
from learngraph.graphs.agents.methods import MIDDLEWARES, make_learner

mcp = pytest.importorskip("mcp", reason="NOT TESTED: needs the extra [mcp]")
ACME = {"tenant": "acme"}
SCOPED: Any = {"scope": ("tenant",), "name": "desk"}
ASKED = [{"role": "user", "content": desk.ticket(0)[0]}]
CALL = {"id": "1", "type": "function", "function": {"name": "resolve", "arguments": '{"how": "replace"}'}}
DONE: list[dict[str, Any]] = [
    *ASKED,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "done"},
    {"role": "assistant", "content": "A new one is on its way."},
]


class Desk:
    """A client of a server with a learner, by default of the scope `tenant`."""

    def __init__(self, method: str = "icrl", store: Any = None, fixed: Any = None, **options: Any) -> None:
        clerk = desk.HeedfulClerk()
        self.learner: Any = make_learner(method, InMemoryStore() if store is None else store, clerk, **SCOPED, **options)
        self.server = memory_server(self.learner, clerk, fixed)

    async def call(self, tool: str, **arguments: Any) -> Any:
        """What a tool answers; its error, where it fails."""
        async with mcp.Client(self.server) as client:
            found = await client.call_tool(tool, {"scope": ACME, **arguments})
        text = found.content[0].text
        return f"ERROR {text}" if found.is_error else json.loads(text) if text.startswith("{") else text


async def test_a_thumb_is_the_best_or_the_worst_of_stars_and_one_is_a_star() -> None:
    one = Desk(reward_range=(1, 5))
    await one.call("record", id="a", messages=DONE)
    for reward, kept in ((True, "1"), (False, "-1"), (5, "1"), (1, "-1")):
        assert await one.call("feedback", id="a", reward=reward) == f"user gave it reward {kept}"


@pytest.mark.parametrize("method", MIDDLEWARES)
async def test_what_was_said_is_recalled_by_another_process(method: str) -> None:
    store = InMemoryStore()
    here, there = Desk(method, store), Desk(method, store)
    first = await here.call("recall", messages=ASKED)
    assert first["advice"] == ""
    assert await here.call("record", id=first["id"], messages=DONE) == f"1 turn of {first['id']} kept, with 2 steps"
    assert await there.call("feedback", id=first["id"], reward=1.0, comment="thanks") == "user gave it reward 1: thanks"
    if hasattr(there.learner, "learn"):
        there.learner.learn(**ACME)
    for one in (there, here):
        one.learner.refresh_seconds = 0.0
        found = await one.call("recall", messages=ASKED, id="next")
        assert ("replace" in found["advice"]) == (method not in ("adamem", "lessons"))  # which ask a model that knows no format
    told = await here.call("explain", id=first["id"])
    assert told.startswith(f"turn 1:\n  {method}: recalled nothing")
    assert told.endswith("user gave it reward 1: thanks")


async def test_the_advice_is_what_the_middleware_shows() -> None:
    store = InMemoryStore()
    shown = Desk("reasoning-bank", store)
    await shown.call("record", id="a", messages=DONE)
    await shown.call("feedback", id="a", reward=1.0)
    shown.learner.learn(**ACME)
    advice = (await shown.call("recall", messages=ASKED))["advice"]
    model, learner = desk.HeedfulClerk(), make_learner("reasoning-bank", store, desk.HeedfulClerk(), **SCOPED)
    agent: Any = create_agent(model, [desk.resolve], middleware=[learner], checkpointer=InMemorySaver())
    agent.invoke({"messages": ASKED}, {"configurable": {"thread_id": "b", **ACME}})
    assert advice
    assert model.seen[0].strip() == advice


async def test_all_turns_are_kept_once_and_a_draw_holds_for_a_conversation() -> None:
    one = Desk(control=0.5, holdout=0.5)
    await one.call("record", id="old", messages=DONE)
    await one.call("feedback", id="old", reward=0.0, correction="A refund is on its way.")
    longer = [*DONE, {"role": "user", "content": "Thanks!"}, {"role": "assistant", "content": "You are welcome."}]
    for n in range(8):
        await one.call("recall", messages=[{"role": "system", "content": "You help."}, *ASKED], id=f"t{n}")
        await one.call("recall", messages=longer[:-1], id=f"t{n}")
        assert await one.call("record", id=f"t{n}", messages=longer) == f"2 turns of t{n} kept, with 3 steps"
        await one.call("record", id=f"t{n}", messages=longer)
        await one.call("feedback", id=f"t{n}", reward=float(n % 2))
        turns = one.learner.conversation(f"t{n}", **ACME).turns
        assert len({str(entry["trial"]) for turn in turns for entry in turn.advice}) == 1
    found = one.learner.lift(**ACME)
    assert (found.memory.trials, 0 < found.memory.without < 8) == (8, True)
    assert "The reply should have been: A refund" in await one.call("explain", id="old")
    assert str(found) in await one.call("lift")


@pytest.mark.parametrize(
    ("tool", "arguments", "error"),
    [
        ("feedback", {"id": "nobody", "reward": 1}, "asked for conversation 'nobody', and none is recorded"),
        (
            "feedback",
            {"id": "a", "reward": 1, "scope": {"tenant": "rival"}},
            "asked for conversation 'a', and none is recorded",
        ),
        ("feedback", {"id": "a", "reward": "good"}, "Input should be a valid number"),
        ("feedback", {"id": "a", "reward": 7}, "a reward is a number from -1 to 1, got 7"),
        ("feedback", {"id": "a"}, "give a reward, a text, or both"),
        ("explain", {"id": "nobody"}, "none is recorded"),
        ("recall", {"messages": ASKED, "scope": {}}, "tenant is part of this agent's scope, and no value is given"),
        (
            "recall",
            {"messages": ASKED, "scope": {"tenant": "acme", "user": "x"}},
            "the scope of this agent has tenant; got user",
        ),
        ("recall", {"messages": ASKED, "scope": {"tenant": 7}}, "Input should be a valid string"),
        ("lift", {"scope": {"tenat": "acme"}}, "the scope of this agent has tenant; got tenat"),
        ("record", {"id": "a", "messages": [{"role": "clown"}]}, "messages are OpenAI's chat messages"),
        ("record", {"id": "a", "messages": DONE[3:]}, "at least one message of a user; got none"),
    ],
)
async def test_what_is_said_wrongly_is_answered_in_words(tool: str, arguments: dict[str, Any], error: str) -> None:
    one = Desk()
    await one.call("record", id="a", messages=DONE)
    found = await one.call(tool, **arguments)
    assert found.startswith("ERROR")
    assert error in found
    assert one.learner.conversation("a", **ACME).turns  # and nothing is harmed


async def test_a_fixed_value_of_the_scope_is_not_the_clients_to_choose() -> None:
    one = Desk(fixed=ACME)
    assert "1 turn" in await one.call("record", id="a", messages=DONE, scope={})
    assert one.learner.conversation("a", **ACME).turns
    assert "this server's tenant is 'acme', and no other; got 'rival'" in await one.call(
        "explain", id="a", scope={"tenant": "rival"}
    )


@pytest.mark.slow
async def test_over_stdio_what_one_server_is_told_another_one_recalls(tmp_path: Path) -> None:
    """Two servers of one folder, one after the other, as a client starts them: nothing but the protocol is on stdout."""
    words = ["-m", "learngraph", "mcp", "--memory", str(tmp_path), "--scope", "tenant=acme", "user?"]
    server = mcp.StdioServerParameters(command=sys.executable, args=words)
    asked = {"messages": ASKED, "id": "a"}
    async with mcp.Client(server) as client:
        for tool, more in (
            ("recall", asked),
            ("record", {"messages": DONE, "id": "a"}),
            ("feedback", {"id": "a", "reward": 1}),
        ):
            assert not (await client.call_tool(tool, more)).is_error
    async with mcp.Client(server) as client:
        found = await client.call_tool("recall", asked | {"id": "b"})
        assert "how='replace'" in found.content[0].text
        assert (await client.call_tool("explain", {"id": "a", "scope": {"user": "other"}})).is_error
