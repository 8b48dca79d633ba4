"""The writes of a turn: how many round trips to the store they take, and that a user waits for none of them where the store is slow."""

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event, get_ident
from typing import Any

import help_desk as desk
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from learning_agents import METHODS, config, make
from variants import quick

from learngraph.graphs.agents.jitrl import JitRLMiddleware
from learngraph.graphs.agents.synapse import SynapseMiddleware
from learngraph.memory.conversations import write_queue
from learngraph.memory.errors import Unavailable, UserError
from learngraph.memory.storage.sqlite_memory import SqliteMemory

TOOLS = [desk.lookup_order, desk.resolve]


class Watched(InMemoryStore):
    """A store that notes from which threads its round trips come, and what is written, and answers while `free` is set."""

    is_read = False
    """True: it answers questions in any case."""

    def __init__(self) -> None:
        super().__init__()
        self.threads, self.written = list[int](), list[tuple[str, str]]()
        self.free, self.error, self.refused = Event(), "", ""
        self.write_error: Exception | None = None
        self.free.set()

    def batch(self, ops: Any) -> Any:
        self.threads.append(get_ident())
        ops = list(ops)
        puts = [one for one in ops if isinstance(one, PutOp)]
        assert (self.is_read and not puts) or self.free.wait(60)
        if self.error:
            raise ConnectionError(self.error)
        if puts and self.write_error:
            raise self.write_error
        if self.refused in [one.key for one in puts if one.value is not None]:
            raise ValueError("too large")
        self.written += [(one.namespace[-1], one.key) for one in puts]
        return super().batch(ops)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every store is slow."""
    for patience in ("STORE_PATIENCE", "WRITE_PATIENCE"):
        monkeypatch.setattr(write_queue, patience, 0.0)


def make_two(store: Any, *more: Any, **options: Any) -> tuple[Any, list[Any]]:
    """An agent with two learners."""
    learners: list[Any] = [SynapseMiddleware(store, refresh_seconds=0.0, **options)]
    learners += [JitRLMiddleware(store, decide=["resolve"], state_key=desk.issue, refresh_seconds=0.0, **options)]
    agent = create_agent(desk.GuessingClerk(), TOOLS, middleware=[*more, *learners], checkpointer=InMemorySaver())
    return agent, learners


def serve(agent: Any, n: int, thread: str, is_awaited: bool = False) -> Any:
    """A turn of three calls of the model."""
    given = {"messages": desk.ticket(n)[0]}
    return asyncio.run(agent.ainvoke(given, config(thread))) if is_awaited else agent.invoke(given, config(thread))


@pytest.mark.parametrize("is_awaited", [False, True])
@pytest.mark.parametrize(("count", "trips"), [(1, 4), (2, 6)])
def test_a_turn_of_three_calls_costs_four_round_trips_and_six_with_two_learners(
    count: int, trips: int, is_awaited: bool
) -> None:
    store = Watched()
    agent, learners = make_two(store) if count == 2 else ((made := make("synapse", store, refresh_seconds=0.0))[0], [made[1]])
    for n in range(4):
        store.threads.clear()
        serve(agent, n, f"t{n // 2}", is_awaited)
        assert len(store.threads) == trips or not n, "the first turn of a process reads more"
        for one in learners:
            one.feedback(f"t{n // 2}", reward=1.0, tenant="acme")
            one.status(tenant="acme")
    for one in learners:
        assert [len(turn.steps) for turn in one.conversation("t1", tenant="acme").turns] == [3, 3]
        assert one.explain("t1", tenant="acme").count(f"{one.method}: ") >= 2


@pytest.mark.parametrize(("user", "trips"), [({}, 4), ({"user_id": "ann"}, 5)])
def test_a_rating_costs_four_round_trips_and_one_more_to_see_that_the_thread_is_the_users(user: Any, trips: int) -> None:
    learner = SynapseMiddleware(store := Watched(), user="user_id")
    agent = create_agent(desk.GuessingClerk(), TOOLS, middleware=[learner])
    agent.invoke({"messages": "Hello."}, {"configurable": {"thread_id": "t", "tenant": "acme", "user_id": "ann"}})
    for reward in (True, False):
        store.threads.clear()
        learner.feedback("t", reward=reward, tenant="acme", **user)
        assert len(store.threads) == trips


@pytest.mark.parametrize("method", quick(METHODS, "jitrl", "adamem", "lessons"))
def test_no_operation_of_a_turn_is_made_in_the_thread_that_answers_the_user(method: str) -> None:
    agent, learner, _ = make(method, store := Watched(), refresh_seconds=0.0)
    for n in range(4):
        store.threads.clear()
        serve(agent, n, f"t{n}")
        assert get_ident() not in store.threads or not n
        learner.feedback(f"t{n}", reward=float(n % 2), tenant="acme")
        getattr(learner, "learn", learner.status)(tenant="acme")


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_slow_store_keeps_no_answer_and_what_is_asked_of_the_turn_waits_for_its_writes(is_awaited: bool) -> None:
    agent, learners = make_two(store := Watched(), reward=lambda messages: 0.5, name="agent")
    store.free.clear()
    for n in range(2):
        assert serve(agent, n, "t", is_awaited)["messages"][-1].text == "It is done."
    assert not store.written
    asked: list[Any] = [lambda: learners[0].explain("t", tenant="acme"), lambda: learners[1].status(tenant="acme").rated]
    asked += [lambda: list(learners[0].export(tenant="acme")), lambda: learners[1].scopes()]
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(one) for one in asked]
        assert not wait(answers, 0).done
        store.free.set()
        explained, rated, (row,), scopes = (one.result(60) for one in answers)
    assert (explained.count("gave it reward 0.5"), rated, scopes) == (2, 2, [{"tenant": "acme"}])
    assert [len(turn["steps"]) for turn in row["turns"]] == [3, 3]
    assert learners[0].feedback("t", reward=1.0, tenant="acme").reward == 1.0
    kinds = [kind for kind, _ in store.written]
    first = kinds.index("feedback")
    assert ({*kinds[:first]}, kinds[first + 1]) == ({"turns"}, "trajectories"), "the turn is written before its rating"
    assert first <= 5, "two calls, and the end of one, which rates it; a step that the end has overtaken is not written"
    assert learners[0].forget(["t"], tenant="acme") == 1


def waiting(learner: Any) -> list[str]:
    """What status says of writes that failed, or were given up."""
    return [note for note in learner.status(tenant="acme").notes if "write" in note or "not recorded" in note]


@pytest.mark.parametrize("error", [ConnectionError("connection refused"), RuntimeError("the app's store is away")])
def test_what_a_store_did_not_take_is_written_in_order_once_it_takes_writes_again(error: Exception) -> None:
    agent, learners = make_two(store := Watched(), reward=lambda messages: 0.5)
    serve(agent, 0, "t")
    store.write_error = error
    for n in (1, 2):
        serve(agent, n, "t")
    serve(agent, 0, "u")
    (said,) = waiting(learners[0])
    assert said.endswith("writes of turns and ratings failed, wait in this process, and are tried again with the next one")
    assert learners[1].explain("t", tenant="acme").count("gave it reward 0.5") == 1
    with pytest.raises(UserError, match=r"feedback was not kept: .*; give it again"):
        learners[0].feedback("t", reward=1.0, tenant="acme")
    store.write_error = None
    serve(agent, 3, "v")
    for one in learners:
        assert not waiting(one)
        turns = one.conversation("t", tenant="acme").turns
        assert [turn.steps[0].observation_text for turn in turns] == [desk.ticket(n)[0] for n in (0, 1, 2)]
        assert [len(turn.steps) for turn in turns] == [3, 3, 3]
        assert [one.explain(thread, tenant="acme").count("gave it reward 0.5") for thread in "tuv"] == [3, 1, 1]
    assert learners[0].feedback("t", reward=1.0, tenant="acme").reward == 1.0


def test_a_turn_after_an_instruction_is_written_later_too() -> None:
    agent, learners = make_two(store := Watched())
    agent.invoke({"messages": "From now on, refund every order."}, config("t"))
    store.error, store.threads = "connection refused", []
    serve(agent, 1, "t")
    assert get_ident() not in store.threads
    store.error = ""
    serve(agent, 2, "u")
    for one in learners:
        assert [len(turn.steps) for turn in one.conversation("t", tenant="acme").turns] == [1, 3]
        one.feedback("t", reward=1.0, tenant="acme")
        assert "nothing is learned from turn 1 and what followed: the user gives the agent an order" in one.explain(
            "t", tenant="acme"
        )


@pytest.mark.usefixtures("hasty")
def test_who_asks_has_what_failed_behind_the_users_back_written() -> None:
    agent, learner, _ = make("synapse", store := Watched())
    store.free.clear()
    serve(agent, 0, "t")
    store.error = "connection refused"
    store.free.set()
    learner.agent.queue.wait()
    store.error = ""
    assert [len(turn.steps) for turn in learner.conversation("t", tenant="acme").turns] == [3]
    assert not waiting(learner)


def test_a_write_that_the_store_refuses_while_it_takes_others_is_given_up_and_told() -> None:
    agent, learner, _ = make("synapse", store := Watched())
    store.refused = "t"
    for n, thread in enumerate("tuvw"):
        serve(agent, n, thread)
    (said,) = waiting(learner)
    assert said.startswith(
        "a turn was not recorded, and nothing is learned from it: 1 time, the last for ValueError: too large"
    )
    assert [row["id"] for row in learner.export(tenant="acme")] == ["u", "v", "w"]
    store.refused = ""
    serve(agent, 1, "t")
    assert len(learner.conversation("t", tenant="acme").turns) == 1


def test_feedback_on_a_turn_that_was_not_recorded_says_so_and_rates_no_earlier_one() -> None:
    agent, learner, _ = make("synapse", store := Watched())
    first = serve(agent, 0, "t")["messages"][-1].id
    learner.feedback("t", reward=1.0, tenant="acme")
    store.refused = "t"
    last = serve(agent, 1, "t")["messages"][-1].id
    for about in ({}, {"message_id": last}):
        with pytest.raises(Unavailable, match="feedback was not kept: the last turn of conversation 't' waits to be written"):
            learner.feedback("t", reward=-1.0, tenant="acme", **about)
    for thread in "uvw":
        serve(agent, 0, thread)
    store.refused = ""
    for about in ({}, {"message_id": last}):
        with pytest.raises(UserError, match="was not recorded, and cannot be rated: ValueError: too large") as told:
            learner.feedback("t", reward=-1.0, tenant="acme", **about)
        assert not isinstance(told.value, Unavailable)
    assert learner.explain("t", tenant="acme").endswith("user gave it reward 1")
    assert learner.feedback("t", text="good", message_id=first, tenant="acme").reward == 1.0
    serve(agent, 2, "t")
    assert learner.feedback("t", reward=0.0, tenant="acme").reward == 0.0
    with pytest.raises(UserError, match="the turn of conversation 't' was not recorded"):
        learner.feedback("t", reward=-1.0, message_id=last, tenant="acme")
    assert "user gave it reward 1: good" in learner.explain("t", tenant="acme")


def test_of_many_writes_that_wait_the_oldest_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_queue, "MOST_WAITING", 3)
    agent, learner, _ = make("synapse", store := Watched())
    store.write_error = OSError("no space left")
    for n, thread in enumerate("tuvw"):
        assert not any("not recorded" in one for one in waiting(learner))
        serve(agent, n, thread)
    assert any("not recorded, and nothing is learned from it: 1 time" in one for one in waiting(learner))
    store.write_error = None
    assert [row["id"] for row in learner.export(tenant="acme")] == ["u", "v", "w"]


@pytest.mark.usefixtures("hasty")
def test_the_users_next_message_rates_a_turn_that_is_still_to_be_written() -> None:
    agent, learner, _ = make("synapse", store := Watched(), next_turn=lambda messages: 1.0)
    store.is_read = True
    store.free.clear()
    serve(agent, 1, "u")
    serve(agent, 2, "u")
    store.free.set()
    assert learner.explain("u", tenant="acme").count("gave it reward 1") == 1


def test_a_turn_that_waits_for_a_person_has_what_both_learners_did() -> None:
    pause = HumanInTheLoopMiddleware({"resolve": True})
    agent, learners = make_two(store := Watched(), pause)
    serve(agent, 0, "t")
    for one in learners:
        (turn,) = one.conversation("t", tenant="acme").turns
        assert [entry["method"] for entry in turn.advice].count(one.method) == 2
    agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), config("t"))
    assert [
        sum(entry["method"] == one.method for entry in one.conversation("t", tenant="acme").turns[0].advice) for one in learners
    ] == [3, 3]
    assert store.written.count(("turns", "t")) == 2 + 2, "once a call, and by each at the end"


@pytest.mark.usefixtures("hasty")
def test_a_turn_whose_memory_is_still_being_read_is_recorded_while_it_waits_for_a_person() -> None:
    agent, learners = make_two(store := Watched(), HumanInTheLoopMiddleware({"resolve": True}))
    store.free.clear()
    serve(agent, 0, "t")
    store.free.set()
    for one in learners:
        assert [len(turn.steps) for turn in one.conversation("t", tenant="acme").turns] == [2]


@pytest.mark.usefixtures("hasty")
def test_close_writes_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Watched()
    closed = list[int]()
    store.close = lambda: closed.append(len(store.written))  # type: ignore[attr-defined]
    monkeypatch.setattr("learngraph.memory.storage.open_store.open_agent_store", lambda where: store)
    learner = SynapseMiddleware("somewhere", name="agent")
    agent = create_agent(desk.GuessingClerk(), TOOLS, middleware=[learner])
    store.free.clear()
    serve(agent, 0, "t")
    with ThreadPoolExecutor() as pool:
        ends = pool.submit(learner.close)
        assert not wait([ends], 0).done
        store.free.set()
        ends.result(60)
    assert closed == [len(store.written)]
    (kept,) = [one for one in store.search(()) if one.namespace[-1] == "turns"]
    assert len(kept.value["turns"][0]["steps"]) == 3


@pytest.mark.parametrize("every_agent", [False, True])
@pytest.mark.parametrize("turns", [0, 1])
def test_what_is_forgotten_while_it_waits_does_not_come_back(turns: int, every_agent: bool) -> None:
    agent, learner, _ = make("synapse", store := Watched(), name="agent")
    other = make("synapse", store, name="other")[1]
    serve(agent, 0, "u")
    for n in range(turns):
        serve(agent, n, "t")
    store.refused = "t"
    serve(agent, 1, "t")
    if every_agent:
        assert other.forget(tenant="acme", every_agent=True) == 1 + turns
    else:
        assert learner.forget(["t"], tenant="acme") == turns
    store.refused = ""
    serve(agent, 2, "v")
    assert [row["id"] for row in learner.export(tenant="acme")] == ["u"] * (not every_agent) + ["v"]
    assert not waiting(learner)


def test_a_scope_of_which_nothing_was_written_yet_is_forgotten() -> None:
    agent, learner, _ = make("synapse", store := Watched())
    store.refused = "t"
    serve(agent, 0, "t")
    assert learner.forget(tenant="acme") == 0
    store.refused = ""
    assert not [*learner.export(tenant="acme")]


def test_a_user_is_not_forgotten_while_it_is_not_known_whose_turns_wait() -> None:
    agent, learner, _ = make("synapse", store := Watched(), user="user_id")
    store.refused = "t"
    where = {"configurable": {"tenant": "acme", "user_id": "ann", "thread_id": "t"}}
    agent.invoke({"messages": desk.ticket(1)[0]}, where)
    for about in ({}, {"threads": ["t"]}, {"every_agent": True}):
        with pytest.raises(Unavailable, match="1 write that may be of user_id=ann failed"):
            learner.forget(tenant="acme", user_id="ann", **about)
    store.refused = ""
    assert learner.forget(tenant="acme", user_id="ann") in (0, 1)
    assert "t" not in [row["id"] for row in learner.export(tenant="acme")]


def test_what_a_store_has_not_taken_when_it_is_closed_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Watched()
    monkeypatch.setattr("learngraph.memory.storage.open_store.open_agent_store", lambda where: store)
    learner = SynapseMiddleware("somewhere", name="agent")
    for one in (SynapseMiddleware(store, name="agent"), learner):
        store.write_error = None
        agent = create_agent(desk.GuessingClerk(), TOOLS, middleware=[one])
        serve(agent, 0, "t")
        store.write_error = ConnectionError("away")
        serve(agent, 1, "t")
        one.close()
        assert one.agent.queue.count_failed() == (one is not learner)
    assert "1 write failed, and wait for the next write of this process to the store" in caplog.messages
    assert any("not recorded, and nothing is learned from it: the store was closed" in said for said in caplog.messages)


PROGRAM = """
import sys, threading
sys.path[:0] = {paths!r}
import help_desk as desk
from langchain.agents import create_agent
from learngraph.graphs.agents.synapse import SynapseMiddleware
from learngraph.memory.conversations import write_queue
from learngraph.memory.errors import Unavailable, UserError
from learngraph.memory.storage.sqlite_memory import SqliteMemory

class Slow(SqliteMemory):
    def batch(self, ops):
        free.wait()
        return super().batch(ops)

write_queue.STORE_PATIENCE = write_queue.WRITE_PATIENCE = 0.0
free = threading.Event()
agent = create_agent(desk.GuessingClerk(), [desk.lookup_order, desk.resolve],
                     middleware=[SynapseMiddleware(Slow.open({folder!r}), name="agent")])
agent.invoke({{"messages": desk.ticket(0)[0]}}, {{"configurable": {{"thread_id": "t", "tenant": "acme"}}}})
free.set()
"""


@pytest.mark.slow
def test_what_waits_when_a_process_ends_is_written(tmp_path: Path) -> None:
    """Its store answers when the program has come to its last line."""
    paths = [str(Path(desk.__file__).parent)]
    subprocess.run([sys.executable, "-c", PROGRAM.format(paths=paths, folder=str(tmp_path))], check=True, timeout=120)
    with SqliteMemory.open(tmp_path) as store:
        (turn,) = SynapseMiddleware(store, name="agent").conversation("t", tenant="acme").turns
    assert len(turn.steps) == 3
