"""An agent with a learning middleware in a bad world: rubbish from the model, a store that goes away, tools that vanish, odd rewards."""

import asyncio
import json
import logging
import math
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import help_desk as desk
import learning_agents
import numpy as np
import pytest
from langchain_core.messages import AIMessage, InvalidToolCall
from langchain_core.tools import tool
from langgraph.store.memory import InMemoryStore
from learning_agents import METHODS, config
from variants import quick

from learngraph.memory.errors import UserError
from learngraph.memory.storage.record_store import to_json

OTHERS = [name for name in METHODS if name != "adamem-max"]
each = pytest.mark.parametrize("method", OTHERS)
make = partial(learning_agents.make, refresh_seconds=0.0)


class FickleStore(InMemoryStore):
    """A store that is away from a number of operations on."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 10**9

    def batch(self, ops: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("the store is away")
        return super().batch(ops)


class Babbler(desk.GuessingClerk):
    """Now and then it replies rubbish: empty, lists, calls of unknown tools or with impossible arguments, half calls."""

    turn: int = 0

    def say(self, messages: Any) -> AIMessage:
        self.turn += 1
        random = Random(self.turn)
        call = {"id": f"c{self.turn}", "type": "tool_call"}
        odd = [
            AIMessage(""),
            AIMessage([{"type": "text", "text": "{]"}, {"type": "image", "source": "?"}]),  # type: ignore[list-item]
            AIMessage("\x00\ud7ff" * 30 + "<think>"),
            AIMessage("", tool_calls=[{"name": "steal", "args": {}, **call}]),
            AIMessage("", tool_calls=[{"name": "", "args": {"a b": None}, **call}]),
            AIMessage("", tool_calls=[{"name": "resolve", "args": {"how": "steal", "order": "A1"}, **call}]),
            AIMessage("", tool_calls=[{"name": "resolve", "args": {"how": ["refund"], "order": {"n": math.nan}}, **call}]),
            AIMessage("", tool_calls=[{"name": "resolve", "args": {}, **call}]),
            AIMessage("", tool_calls=[{"name": "resolve", "args": {"how": "refund", "order": "A1", "odd key": 1}, **call}]),
            AIMessage("?", invalid_tool_calls=[InvalidToolCall(name="resolve", args="{how", id="i", error="cut off")]),
            AIMessage(
                "",
                tool_calls=[
                    {"name": "resolve", "args": {"how": how, "order": "A1"}, "id": f"c{self.turn}{how}"} for how in desk.HOWS
                ],
            ),
        ]
        if len(messages) > 8:
            return AIMessage("Enough.")
        return random.choice(odd) if random.random() < 0.7 else super().say(messages)


@pytest.mark.slow
@each
@pytest.mark.parametrize("awaited", [pytest.param(False, marks=pytest.mark.long), True])
def test_rubbish_from_the_model_is_the_agents_and_nothing_else_breaks(
    method: str, awaited: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It plays critic and strategist as well. What the agent does with a rubbish reply is LangChain's; the learner records it."""
    agent, learner, _ = make(method, model=Babbler())
    with caplog.at_level(logging.WARNING):
        for n in range(12):
            given = {"messages": desk.ticket(n)[0]}
            out = asyncio.run(agent.ainvoke(given, config(f"t{n}"))) if awaited else agent.invoke(given, config(f"t{n}"))
            assert out["messages"]
            learner.feedback(f"t{n}", reward=float(n % 2), text="\x00 ??", tenant="acme")
            assert learner.explain(f"t{n}", tenant="acme").startswith("turn 1:")
    assert learner.status(tenant="acme").rated == 12
    wrong = [
        said
        for said in caplog.messages
        if "consultation failed" in said or "not recorded" in said or "cannot be consulted" in said
    ]
    assert not wrong


@pytest.mark.slow
@each
def test_a_store_that_goes_away_in_mid_conversation_takes_no_answer(method: str, caplog: pytest.LogCaptureFixture) -> None:
    """After some numbers of operations; then it comes back, and learning goes on."""
    store = FickleStore()
    agent, learner, _ = make(method, store)
    desk.play(agent, learner, range(8))
    for left in (0, 1, 2, 3, 5, 8):
        store.left = left
        with caplog.at_level(logging.WARNING):
            out = agent.invoke({"messages": desk.ticket(left)[0]}, config(f"down{left}"))
        assert str(out["messages"][-1].text) == "It is done."
        store.left = 0
        with pytest.raises(Exception, match="the store is away"):
            learner.feedback("t0", reward=1.0, tenant="acme")
        store.left = 10**9
    assert any("the store is away" in said for said in caplog.messages)
    desk.play(agent, learner, range(8, 10))
    assert learner.status(tenant="acme").rated == 10


@pytest.mark.parametrize("method", quick(OTHERS, "jitrl", "lessons"))
def test_tools_that_vanish_and_come_back_break_nothing(method: str) -> None:
    @tool
    def wave(order: str) -> str:
        """Wave."""
        return "waved"

    store = InMemoryStore()
    agent, learner, _ = make(method, store)
    desk.play(agent, learner, range(8))

    class Waves(desk.HeedfulClerk):
        def say(self, messages: Any) -> AIMessage:
            found = super().say(messages)
            for call in found.tool_calls:
                call["name"] = "wave"
                call["args"] = {"order": "A1"}
            return found if len(messages) < 6 else AIMessage("It is done.")

    bare, other, _ = make(method, store, Waves(), [wave], name="agent")
    for n in range(4):
        out = bare.invoke({"messages": desk.ticket(n)[0]}, config(f"w{n}"))
        assert {c["name"] for m in out["messages"] for c in getattr(m, "tool_calls", ())} <= {"wave"}
        other.feedback(f"w{n}", reward=1.0, tenant="acme")
    back, again, _ = make(method, store)
    desk.play(back, again, range(20, 24))
    assert again.status(tenant="acme").rated == 16


@pytest.mark.parametrize("method", quick(["jitrl", "icrl", "reasoning-bank"]))
@pytest.mark.parametrize("reward", [1e-320, np.float32(0.5), np.int64(1), True])
def test_odd_numbers_are_rewards(method: str, reward: Any, caplog: pytest.LogCaptureFixture) -> None:
    agent, learner, _ = make(method)
    with caplog.at_level(logging.WARNING):
        for n in range(0, 16, 4):
            agent.invoke({"messages": desk.ticket(n)[0]}, config(f"t{n}"))
            learner.feedback(f"t{n}", reward=reward if n % 8 else -reward, tenant="acme")
    assert learner.status(tenant="acme").rated == 4
    assert not [said for said in caplog.messages if "without advice" in said]


@pytest.mark.parametrize("reward", [math.nan, math.inf, "1", [1.0], 1j, 1e308, 10**400, 1e9], ids=lambda one: repr(one)[:12])
def test_what_is_no_number_is_no_reward(reward: Any) -> None:
    agent, learner, _ = make("icrl")
    agent.invoke({"messages": desk.ticket(0)[0]}, config("t0"))
    with pytest.raises(UserError, match=r"reward is a (finite )?number"):
        learner.feedback("t0", reward=reward, tenant="acme")
    assert learner.status(tenant="acme").rated == 0


@pytest.mark.parametrize("method", quick(OTHERS, "jitrl", "reflexion"))
def test_a_damaged_record_in_the_store_is_left_out_and_said(method: str, caplog: pytest.LogCaptureFixture) -> None:
    store = InMemoryStore()
    agent, learner, _ = make(method, store)
    desk.play(agent, learner, range(6))
    place = (*learner._labels({"tenant": "acme"}), "trajectories")
    broken = json.loads(json.dumps(store.get(place, "t0/0").value))  # type: ignore[union-attr]
    broken["transitions"][-1]["reward"] = math.nan
    store.put(place, "nan/0", {**broken, "id": "nan/0"})
    store.put(place, "half/0", {"id": "half/0"})
    agent, learner, _ = make(method, store)
    with caplog.at_level(logging.WARNING):
        desk.play(agent, learner, range(6, 8))
    assert not [said for said in caplog.messages if "without advice" in said]
    for name, said in (("half/0", "since it cannot be read"), ("nan/0", "is left out of memory: a reward is a finite number")):
        assert sum(name in one and said in one for one in caplog.messages) == 1


def test_trajectories_with_rewards_that_are_no_numbers_are_not_imported(tmp_path: Path) -> None:
    agent, learner, _ = make("jitrl")
    desk.play(agent, learner, range(2))
    value = to_json(learner._memory(learner._labels({"tenant": "acme"})).conversations.trajectories.all()[0])
    value["transitions"][-1]["reward"] = math.nan
    (tmp_path / "bad.jsonl").write_text(json.dumps(value) + "\n")
    with pytest.raises(UserError, match=r"line 1: a reward is a finite number"):
        learner.import_trajectories(tmp_path / "bad.jsonl", tenant="acme")
