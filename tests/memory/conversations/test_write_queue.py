"""The queue of what a process writes to a store: its order, who waits, what does not fit in, and what others write meanwhile."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event, get_ident

import pytest
from langgraph.store.memory import InMemoryStore

from learngraph.memory.conversations import write_queue as queues
from learngraph.memory.conversations.store import ConversationStore
from learngraph.memory.conversations.turns import Turn
from learngraph.memory.conversations.write_queue import SharedTurns, WriteQueue, queue_of
from learngraph.memory.errors import Unavailable
from learngraph.memory.records import Task, Transition
from learngraph.memory.storage.branches import Branch

SCOPE, TASK = ("agents", "agent"), Task("agent", "late")
TURN = Turn("u1", (Transition("late", "refund()", None),), replies=("r1",))


def test_what_is_written_keeps_its_order_and_who_reads_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "WRITE_PATIENCE", 0.0)
    queue, free, done = WriteQueue(), Event(), list[int]()
    queue.write(lambda: free.wait(60))
    for n in range(20):
        assert not queue.write(lambda n=n: done.append(n)).done(), "nobody waits for a slow store"
    read = queue.read(lambda: list(done))
    assert not read.done()
    free.set()
    assert read.result(60) == done == list(range(20))
    queue.wait()


def test_what_somebody_waits_for_of_a_conversation_is_written_before_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "WRITE_PATIENCE", 0.0)
    queue, begun, free, done = WriteQueue(), Event(), Event(), list[str]()
    queue.write(lambda: begun.set() or free.wait(60))
    assert begun.wait(60)
    for thread in "abab":
        queue.write(lambda thread=thread: done.append(thread), (SCOPE, thread))
    monkeypatch.setattr(queue, "is_late", lambda *about: free.set())
    assert queue.ask((SCOPE, "b"), lambda: [*done]) == ["b", "b"]
    queue.wait((SCOPE, "a"))
    assert done == ["b", "b", "a", "a"]


def test_a_write_to_a_quick_store_is_done_when_its_hook_goes_on_and_its_error_is_told() -> None:
    queue, where = WriteQueue(), list[int]()
    assert queue.write(lambda: where.append(get_ident()) or "kept").result(0) == "kept"
    assert where != [get_ident()]
    failed = queue.write(lambda: 1 / 0)
    assert isinstance(failed.exception(0), ZeroDivisionError)
    assert queue.write(lambda: "next").result(0) == "next"


def test_after_an_answer_in_time_a_store_is_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, free = WriteQueue(), Event()
    assert queue.is_late(queue.read(lambda: free.wait(60)), 0.0)
    late = queue.write(lambda: free.wait(60))
    assert not late.done(), "the store was slow"
    free.set()
    assert late.result(60)
    assert queue.write(lambda: "kept").result(0) == "kept"


def test_too_many_writes_and_a_store_that_never_answers_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "WRITE_PATIENCE", 0.0)
    monkeypatch.setattr(queues, "MOST_WAITING", 2)
    monkeypatch.setattr(queues, "RESTART_SECONDS", 0.0)
    queue, free = WriteQueue(), Event()
    for _ in range(2):
        queue.write(lambda: free.wait(60))
    with pytest.raises(Unavailable, match="the store does not answer: 2 writes wait for it"):
        queue.write(lambda: None)
    with pytest.raises(Unavailable, match="the store does not answer: 2 writes have waited for 0 seconds"):
        queue.wait()
    free.set()
    monkeypatch.setattr(queues, "RESTART_SECONDS", 60.0)
    queue.wait()
    queue.write(queue.wait)
    queue.wait()  # a job that reads waits for no other one


def test_a_store_has_one_queue_and_a_fork_another(monkeypatch: pytest.MonkeyPatch) -> None:
    store = InMemoryStore()
    queue = queue_of(store)
    assert queue_of(store) is queue is not queue_of(InMemoryStore())
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert queue_of(store) is not queue


def test_a_branch_of_memory_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "WRITE_PATIENCE", 0.0)
    queue, free = WriteQueue(), Event()
    queue.write(lambda: free.wait(60))
    with Branch().play():
        assert queue.write(get_ident).result(0) == get_ident()
    free.set()


def test_a_turn_that_is_still_to_be_written_is_at_hand() -> None:
    here = ConversationStore(InMemoryStore(), SCOPE)
    here.changes(None, "t1")
    for turn in (TURN, longer := replace(TURN, steps=(*TURN.steps, Transition("done", "reply: Bye.", None)))):
        here.note_turn("t1", turn, TASK)
    assert here.turns.get("t1") is None
    latest = here.latest("t1")
    assert here.turns_at_hand("t1") == (latest and latest.turns) == (replace(longer, method=""),)
    here.record("t1", TURN, TASK, is_noted=True, goes_on=True)
    assert here.turns_at_hand("t1") == (longer,)
    here.record("t1", longer, TASK, is_noted=True)
    assert (here.turns_at_hand("t1"), here.latest("t1")) == ((), here.conversation("t1"))


def test_what_another_process_has_written_meanwhile_stays_though_it_has_all_that_is_written_here() -> None:
    here, there = (ConversationStore(store, SCOPE) for store in [InMemoryStore()] * 2)
    here.record("t1", TURN, TASK, goes_on=True)
    longer = replace(TURN, steps=(*TURN.steps, Transition("done", "reply: Bye.", None)))
    there.record("t1", longer, TASK)
    there.record("t1", replace(TURN, id="u2", replies=("r2",)), TASK)
    here.record("t1", longer, TASK)
    assert [one.id for one in here.conversation("t1").turns] == ["u1", "u2"]


def test_threads_that_write_at_once_each_find_what_they_have_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "WRITE_PATIENCE", 0.0)
    queue, kept = WriteQueue(), set[int]()

    def write(n: int) -> bool:
        queue.write(lambda: kept.add(n))
        queue.wait()
        return n in kept

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(write, range(400)))


def test_a_step_need_not_be_written_where_a_later_record_of_its_turn_waits() -> None:
    shared, place = SharedTurns(), (SCOPE, "t")
    kept = ConversationStore(InMemoryStore(), SCOPE, shared=shared)
    for _ in range(2):
        kept.note_turn("t", TURN, TASK)
    assert shared.skip(place, TURN.id, 1)
    assert not shared.skip(place, TURN.id, 1), "it is the last one"
    kept.record("t", TURN, TASK, is_noted=True, goes_on=True)
    assert kept.turns_at_hand("t") == kept.conversation("t").turns == (TURN,)
    for turn in (TURN, replace(TURN, id="u2")):
        kept.note_turn("t", turn, TASK)
    assert not shared.skip(place, TURN.id, 1), "what waits is of another turn"


class Refusing:
    """Jobs that fail while their name stands in `refused`, and what was done."""

    def __init__(self) -> None:
        self.refused, self.done, self.told = set[str](), list[str](), list[str]()

    def write(self, queue: WriteQueue, name: str, thread: str = "", result: object = None) -> None:
        """Write a name to a thread, or to one of this name."""

        def job() -> object:
            if name in self.refused:
                raise ConnectionError("away")
            self.done.append(name)
            return result

        queue.write_turn((SCOPE, thread or name), job, lambda error: self.told.append(name))


def test_a_step_that_is_passed_over_does_not_say_that_the_store_works() -> None:
    queue, jobs = WriteQueue(), Refusing()
    jobs.refused = {"step", "turn", "next"}
    jobs.write(queue, "turn")
    for _ in range(2 * queues.MOST_TRIES):
        jobs.write(queue, "step", result=False)
        jobs.refused.discard("step")
        jobs.write(queue, "next")
        queue.wait((SCOPE, "step"))
        jobs.refused.add("step")
    assert not jobs.told
    assert queue.count_failed(SCOPE) == 1 + 2 * queues.MOST_TRIES
    jobs.refused.clear()
    queue.wait()
    assert {"turn", "next"} <= {*jobs.done}
    assert not queue.count_failed(SCOPE)


def test_a_write_waits_while_it_is_tried_again_and_one_that_is_given_up_takes_no_other_along() -> None:
    queue, jobs, waits = WriteQueue(), Refusing(), list[bool]()

    def look() -> None:
        waits.append(queue.has_failed((SCOPE, "a")))
        if len(waits) == 1:
            raise ConnectionError("away")
        raise ValueError("too large")

    queue.write_turn((SCOPE, "a"), look, lambda error: 1 / 0)
    jobs.refused = {"b"}
    jobs.write(queue, "b")
    for n in range(queues.MOST_TRIES):
        jobs.write(queue, f"c{n}", "b" * (n == 0))
        jobs.refused.clear()
        jobs.write(queue, f"d{n}")
    queue.wait()
    assert waits == [False] + [True] * queues.MOST_TRIES
    assert not queue.count_failed(SCOPE)
    assert jobs.done.index("b") < jobs.done.index("c0")


def test_what_somebody_waits_for_of_a_conversation_is_tried_before_what_failed_of_others() -> None:
    queue, jobs = WriteQueue(), Refusing()
    jobs.refused = {"a", "b"}
    for name in ("a", "b"):
        jobs.write(queue, name)
    jobs.refused = {"a"}
    queue.wait((SCOPE, "b"))
    assert jobs.done == ["b"]
    assert queue.has_failed((SCOPE, "a"))


def test_a_write_brings_one_try_of_what_has_failed_of_others() -> None:
    queue, jobs, tries = WriteQueue(), Refusing(), list[int]()

    def refuse() -> None:
        tries.append(1)
        raise ConnectionError("away")

    queue.write_turn((SCOPE, "b"), refuse, lambda error: None)
    jobs.refused = {"a1"}
    jobs.write(queue, "a1", "a")
    jobs.refused.clear()
    jobs.write(queue, "a2", "a")
    assert jobs.done == ["a1", "a2"]
    assert len(tries) == 2, "with its own write, and with the first that the store took"


def test_a_turn_that_finds_no_room_is_held_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "WRITE_PATIENCE", 0.0)
    monkeypatch.setattr(queues, "MOST_WAITING", 1)
    queue, jobs, free = WriteQueue(), Refusing(), Event()
    queue.write(lambda: free.wait(60))
    kept = ConversationStore(InMemoryStore(), SCOPE, shared=queue.shared)
    kept.note_turn("t", TURN, TASK)
    jobs.write(queue, "t")
    assert jobs.told == ["t"]
    assert queue.shared.get((SCOPE, "t")) is None
    free.set()
