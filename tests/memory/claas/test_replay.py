"""The replay buffer: what comes in, what is drawn, what goes, and that tenants never see each other."""

import math
import os
import re
import resource
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from leases import leased_batches
from postgres_server import BIN

from learngraph.memory.claas.replay import Replay, stratified_sample
from learngraph.memory.claas.replay_file import TABLES, ReplayFile
from learngraph.memory.claas.replay_queries import ReplayRow
from learngraph.memory.claas.settings import ReplaySettings
from learngraph.memory.errors import ExpiredExchange, FeedbackConflict, ReplayError, ReplayFull, UnknownExchange, UserError
from learngraph.memory.records import ChatRequest, Exchange, ExchangeQuery, Feedback, Minibatch, Reply, Sampling

NO_POSTGRES = "NOT TESTED: no Postgres (apt-get install postgresql)"
PLACE = {"url": ""}
"""URL of the Postgres that the tests' buffers are in; empty: they are files."""
BUFFERS = ["file", pytest.param("postgres", marks=[pytest.mark.slow, pytest.mark.skipif(BIN is None, reason=NO_POSTGRES)])]
GOOD, BAD = Feedback(reward=1.0), Feedback(reward=-1.0, text="too long")
ALL = ReplaySettings(held_out_share=0.0)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def exchange(id: str = "r0", tenant: str = "acme", **more: Any) -> Exchange:
    reply = Reply("Hello!", (1, 2, 3), (7, 8, 9), (-0.5, -0.25, 0.0), version=more.pop("version", ""))
    made: dict[str, Any] = {
        "request": ChatRequest(({"role": "user", "content": "Hi"},)),
        "reply": reply,
        "base": "b",
        "created": 5.0,
    }
    return Exchange(id, tenant, **{**made, **more})


def of_files(test: Any) -> Any:
    """Marks a test of what only a file can do, or suffer."""
    test.of_files = True
    return test


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All other tests run twice, with a file and with a schema of Postgres."""
    kinds = BUFFERS[:1] if hasattr(metafunc.function, "of_files") else BUFFERS
    metafunc.parametrize("database", kinds, indirect=True, scope="module")


@pytest.fixture(autouse=True, scope="module")
def database(request: pytest.FixtureRequest) -> None:
    PLACE["url"] = request.getfixturevalue("postgres").url if request.param == "postgres" else ""


def opened(path: Path, limits: ReplaySettings = ALL, **more: Any) -> Replay:
    """Does not wait for the disk; tests/memory/claas/test_replay_crash.py does."""
    if PLACE["url"]:
        schema = "s" + blake2b(str(path).encode(), digest_size=8).hexdigest()
        return Replay(f"{PLACE['url']}?options=-csearch_path%3D{schema}", limits, **more)
    replay = Replay(path / "replay.sqlite", limits, **more)
    replay._database._sync_log = lambda number: None  # type: ignore[method-assign, union-attr]
    return replay


def base_of(replay: Replay) -> sqlite3.Connection:
    """The connection that writes to a buffer's file."""
    assert isinstance(replay._database, ReplayFile)
    return replay._database._base


def asked(replay: Replay, text: str, values: tuple[Any, ...] = ()) -> list[Any]:
    """The rows of a query."""
    with replay._database.reading() as base:
        return list(base.execute(text, values).fetchall())


def fill(replay: Replay, count: int, tenant: str = "acme", start: int = 0, **more: Any) -> None:
    for i in range(start, start + count):
        replay.append(exchange(f"r{i}", tenant, **more))
        replay.add_feedback(tenant, f"r{i}", GOOD if i % 2 else BAD)


def leased(replay: Replay, size: int, tenant: str = "acme", **more: Any) -> Minibatch:
    batch = replay.lease(tenant, "default", size, **{"min_exchanges": 1, **more})
    assert batch is not None
    return batch


def record(replay: Replay, id: str = "r0") -> ReplayRow:
    row = replay.get("acme", id)
    assert row is not None
    return row


def step(replay: Replay, size: int = 4, tenant: str = "acme", version: str = "", **more: Any) -> Minibatch:
    batch = leased(replay, size, tenant, **more)
    replay.commit(batch.id, version or f"{tenant}/default@v{batch.step}", {"loss": 0.5})
    return batch


# -- what comes in


def test_an_exchange_comes_back_as_it_was(tmp_path: Path) -> None:
    full = exchange(
        request=ChatRequest(
            (
                {"role": "user", "content": "Ünï \ud800 ∂"},
                {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
            ),
            Sampling(0.7, 0.9, 12, 3, ("END",)),
            tools=({"type": "function"},),
            tool_choice={"type": "function"},
            response_format={"type": "json_object"},
            top_logprobs=3,
            more={"logit_bias": {"5": 1.5}},
        ),
        reply=Reply("x", (0, 2**32 - 1), (5, 6), (-0.1, math.log(0.3)), "length", ({"id": "c"},), "acme/default@1", 2),
        step=0,
        family="mail",
        scenario="s1",
        turn=2,
        feedback=Feedback(0.25, "nearly", "judge"),
    )
    with opened(tmp_path) as replay:
        replay.append(full)
        row = record(replay, "r0")
        assert row.exchange == full
        assert (row.state, row.revision, row.sample_count, row.age, row.kl) == ("ready", 1, 0, 0, None)
    with opened(tmp_path) as replay:
        assert replay.get("acme", "r0") == row
        replay.append(exchange("near", reply=Reply("x", (1,), (7,), (1e-7,))))  # rounded above 0
        assert record(replay, "near").exchange.reply.logprobs == (0.0,)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tenant": "a/b"}, "tenant 'a/b'"),
        ({"tenant": ""}, "tenant ''"),
        ({"adapter": ".."}, "adapter '..'"),
        ({"id": ""}, "1 to 200 printable"),
        ({"id": "a\nb"}, "1 to 200 printable"),
        ({"reply": Reply("x", (1,), (), ())}, "no token ids"),
        ({"reply": Reply("x", (1,), (-1,), (0.0,))}, "token ids from 0"),
        ({"reply": Reply("x", (1,), (2**32,), (0.0,))}, "token ids from 0"),
        ({"request": ChatRequest(more={"x": math.nan})}, "JSON"),
        ({"reply": Reply("x", (1,), (7, 8), ())}, "0 log-probabilities for 2 token ids"),
        ({"reply": Reply("x", (1,), (7, 8), (-0.5,))}, "1 log-probabilities for 2 token ids"),
        ({"reply": Reply("x", (1,), (7, 8), (-0.5, math.nan))}, "token 1 is nan"),
        ({"reply": Reply("x", (1,), (7, 8), (-0.5, -math.inf))}, "token 1 is -inf"),
        ({"reply": Reply("x", (1,), (7, 8), (math.inf, -1.0))}, "token 0 is inf"),
        ({"reply": Reply("x", (1,), (7, 8), (-0.5, 0.1))}, "token 1 is 0.1"),
        ({"request": ChatRequest(more={"x": object()})}, "JSON"),
    ],
)
def test_what_cannot_be_stored_is_refused(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    with opened(tmp_path) as replay:
        with pytest.raises(UserError, match=said):
            replay.append(replace(exchange(), **wrong))
        assert replay.counts() == {}


def test_too_large_a_record_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, ReplaySettings(max_record_bytes=2000, held_out_share=0)) as replay:
        with pytest.raises(UserError, match="at most 2000"):
            replay.append(exchange(request=ChatRequest(({"content": "x" * 2000},))))
        replay.append(exchange())
        with pytest.raises(UserError, match="shorten the text"):
            replay.add_feedback("acme", "r0", Feedback(text="x" * 2000))
        assert replay.counts() == {"pending": 1}


def test_append_again_changes_nothing_and_another_exchange_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as replay:
        replay.append(exchange())
        replay.add_feedback("acme", "r0", GOOD)
        replay.append(exchange())
        assert replay.counts() == {"ready": 1}
        with pytest.raises(UserError, match="another exchange has this id"):
            replay.append(exchange(turn=1))


# -- feedback


def test_feedback_is_idempotent_and_the_newest_holds(tmp_path: Path) -> None:
    with opened(tmp_path) as replay:
        replay.append(exchange())
        first = replay.add_feedback("acme", "r0", BAD, key="k1")
        assert (first.exchange, first.state, first.is_repeat) == ("r0", "ready", False)
        assert replay.add_feedback("acme", "r0", BAD) == replace(first, is_repeat=True)
        second = replay.add_feedback("acme", "r0", GOOD, key="k2")
        assert (second.job != first.job, second.is_repeat) == (True, False)
        assert replay.add_feedback("acme", "r0", BAD, key="k1") == replace(first, is_repeat=True)  # a late retry of the first
        row = record(replay, "r0")
        assert (row.exchange.feedback, row.revision, row.job) == (GOOD, 2, second.job)
        assert replay.job("acme", second.job) == row
        old = replay.job("acme", first.job)
        assert old is not None
        assert (old.state, second.job in old.reason) == ("rejected", True)
        assert replay.job("other", first.job) is None
        third = replay.add_feedback("acme", "r0", BAD)  # a change of mind, back
        assert (third.job in (first.job, second.job), third.is_repeat) == (False, False)


def test_feedback_after_it_was_learned_from_conflicts(tmp_path: Path) -> None:
    with opened(tmp_path, ReplaySettings(held_out_share=0, max_samplings=1)) as replay:
        fill(replay, 1)
        batch = leased(replay, 1)
        with pytest.raises(FeedbackConflict, match="leased"):
            replay.add_feedback("acme", "r0", GOOD)
        assert replay.add_feedback("acme", "r0", BAD).state == "leased"
        replay.commit(batch.id, "v1", {})
        with pytest.raises(FeedbackConflict, match="consumed"):
            replay.add_feedback("acme", "r0", GOOD)
        again = replay.add_feedback("acme", "r0", BAD)
        assert (again.state, again.is_repeat) == ("consumed", True)


def test_unknown_foreign_and_expired(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, ReplaySettings(held_out_share=0, max_pending_hours=10 / 3600), clock=clock) as replay:
        replay.append(exchange())
        with pytest.raises(UnknownExchange) as nobody:
            replay.add_feedback("other", "r1", GOOD)
        with pytest.raises(UnknownExchange) as foreign:
            replay.add_feedback("other", "r0", GOOD)
        assert str(foreign.value).replace("r0", "r1") == str(nobody.value)
        clock.now += 11
        with pytest.raises(ExpiredExchange):
            replay.add_feedback("acme", "r0", GOOD)
        replay.append(exchange("r1"))
        row = record(replay, "r0")
        assert (row.state, row.reason) == ("rejected", "expired: no feedback came")
        with pytest.raises(ExpiredExchange):
            replay.add_feedback("acme", "r0", GOOD)
        assert replay.add_feedback("acme", "r1", GOOD).state == "ready"


def test_too_many_revisions(tmp_path: Path) -> None:
    with opened(tmp_path) as replay:
        replay.append(exchange())
        for i in range(100):
            replay.add_feedback("acme", "r0", Feedback(reward=i / 100))
        with pytest.raises(FeedbackConflict, match="enough"):
            replay.add_feedback("acme", "r0", BAD)
        assert replay.add_feedback("acme", "r0", Feedback(reward=0.99)).is_repeat


def test_a_share_is_held_out_and_never_leased(tmp_path: Path) -> None:
    with opened(tmp_path, ReplaySettings(held_out_share=0.25)) as replay:
        fill(replay, 400)
        counts = replay.counts("acme")
        assert 75 <= counts["held"] <= 125
        held = [row.exchange for row in replay.rows(ExchangeQuery("acme", "default", "held", 1000))]
        assert [int(e.id[1:]) for e in held] == sorted((int(e.id[1:]) for e in held), reverse=True)
        batch = leased(replay, 400)
        assert len(batch.exchanges) == counts["ready"]
        assert not {e.id for e in batch.exchanges} & {e.id for e in held}
        assert replay.add_feedback("acme", held[0].id, Feedback(reward=0.5)).state == "held"


# -- draws


@of_files
def test_draw_is_stratified_by_reward_and_family() -> None:
    ready = [("mail", i % 10 == 0) for i in range(100)] + [("chat", i % 5 == 0) for i in range(20)]
    found = stratified_sample(ready, 16, Random(0))
    assert len(found) == len(set(found)) == 16
    kinds = Counter(ready[i] for i in found)
    assert kinds == {("mail", True): 4, ("chat", True): 4, ("mail", False): 4, ("chat", False): 4}
    alone = Counter(ready[i][1] for i in stratified_sample(ready, 40, Random(0)))
    assert alone == {True: 14, False: 26}  # there are 14
    assert len(stratified_sample(ready, 500, Random(0))) == 120


@of_files
def test_without_strata_a_draw_is_uniform() -> None:
    ready = [("mail", i < 3) for i in range(10)]
    seen = Counter(i for seed in range(4000) for i in stratified_sample(ready, 2, Random(seed), None))
    assert sum(seen.values()) == 8000
    assert all(abs(seen[i] - 800) < 120 for i in range(10))  # four standard deviations are 101


@of_files
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30),
    st.integers(1, 20),
    st.one_of(st.none(), st.floats(0, 1)),
    st.integers(0, 5),
)
def test_a_draw_has_the_asked_size_and_share(
    ready: list[tuple[str, bool]], size: int, positive: float | None, seed: int
) -> None:
    found = stratified_sample(ready, size, Random(seed), positive)
    assert len(set(found)) == len(found) == min(size, len(ready))
    assert found == stratified_sample(ready, size, Random(seed), positive)
    if positive is not None:
        good, have = sum(ready[i][1] for i in found), sum(good for _, good in ready)
        wanted = math.floor(size * positive + 0.5)
        assert good == min(have, max(wanted, len(found) - (len(ready) - have)), len(found))


def test_a_lease_is_frozen_until_it_ends(tmp_path: Path) -> None:
    with opened(tmp_path) as replay:
        assert replay.lease("acme", "default", 4) is None
        fill(replay, 7)
        assert replay.lease("acme", "default", 4) is None  # min_exchanges is 8
        fill(replay, 5, start=7)
        batch = leased(replay, 4, seed=3)
        assert (batch.id, batch.step, batch.parent, batch.ages) == ("acme/default/1", 1, "", (0, 0, 0, 0))
        fill(replay, 20, start=12)
        assert leased_batches(replay) == [batch.id]
    with opened(tmp_path) as replay:
        assert replay.lease("acme", "default", 99, min_exchanges=1000, seed=8) == batch == replay.minibatch(batch.id)
        said = {batch.exchanges[0].id: "far off"}, {batch.exchanges[1].id: 0.5}
        replay.commit(batch.id, "v1", {"loss": 1.0}, *said)
        replay.commit(batch.id, "v1", {"loss": 1.0}, *said)
        with pytest.raises(UserError, match="cannot make 'v2', too"):
            replay.commit(batch.id, "v2", {})
        assert (replay.step("acme", "default"), replay.head("acme", "default")) == (1, "v1")
        for rejected_or_not in batch.exchanges[:2]:
            assert replay.uses("acme", rejected_or_not.id) == ((batch.id, "v1"),)
        assert replay.version_of_batch(batch.id) == "v1"
        assert [e.id for e in replay.minibatch(batch.id).exchanges] == [e.id for e in batch.exchanges]
        row = record(replay, batch.exchanges[1].id)
        assert (row.state, row.sample_count, row.kl, row.age) == ("ready", 1, 0.5, 1)
        assert replay.counts() == {"ready": 31, "rejected": 1}
        (update,) = replay.updates("acme", "default", 5)
        assert (update["loss"], update["step"], update["version"], update["parent"]) == (1.0, 1, "v1", "")
        assert leased_batches(replay) == []


def test_what_is_said_of_a_minibatch_that_has_ended_changes_nothing(tmp_path: Path) -> None:
    """A node of the learning graph may run twice, the second time after its step was committed, released or withdrawn."""
    for name in ("committed", "released", "withdrawn"):
        with opened(tmp_path / name) as replay:
            fill(replay, 9)
            batch = leased(replay, 4)
            one, two, *_ = (e.id for e in batch.exchanges)
            assert replay.version_of_batch(batch.id) == ""
            if name == "committed":
                replay.commit(batch.id, "v1", {})
            elif name == "released":
                replay.release(batch.id, "nothing learned")
            else:
                replay.set_head("acme", "default", "v0")
            before = replay.rows(ExchangeQuery("acme"))
            if name == "committed":
                replay.commit(batch.id, "v1", {}, {one: "far off"}, {two: 9.0})
            else:
                replay.release(batch.id, "again", True, {one: "far off"})
            assert replay.rows(ExchangeQuery("acme")) == before


def test_deleting_what_was_rejected_taints_the_step_that_read_it_as_a_solution(tmp_path: Path) -> None:
    """A success without a text is nothing to learn from, and still its words are shown to the teacher of another record."""
    with opened(tmp_path) as replay:
        fill(replay, 8)
        batch = leased(replay, 8)
        shown = batch.exchanges[0].id
        rejected = {shown: "has neither a text nor a solution to learn from"}
        replay.commit(batch.id, "acme/default@000001-3f9c2ab1d4e0", {}, rejected)
        row = record(replay, shown)
        assert (row.state, row.sample_count) == ("rejected", 1)
        assert replay.delete("acme", shown) == ("acme/default@000001-3f9c2ab1d4e0",)


def test_draws_depend_on_the_scope_and_its_seed_alone(tmp_path: Path) -> None:
    def drawn(path: Path, others: int, seed: int) -> list[tuple[str, ...]]:
        with opened(path) as replay:
            fill(replay, 20)
            found = []
            for _ in range(3):
                for other in range(others):
                    fill(replay, 9, f"t{other}")
                    step(replay, tenant=f"t{other}", seed=5)
                found.append(tuple(e.id for e in step(replay, seed=seed).exchanges))
            return found

    alone = drawn(tmp_path / "a", 0, 1)
    assert drawn(tmp_path / "b", 3, 1) == alone
    assert drawn(tmp_path / "c", 0, 2) != alone
    assert len(set(alone)) == 3


def test_records_are_consumed_at_the_reuse_cap(tmp_path: Path) -> None:
    with opened(tmp_path, ReplaySettings(held_out_share=0, max_samplings=2)) as replay:
        fill(replay, 4)
        seen = Counter(e.id for _ in range(4) for e in step(replay, 2).exchanges)
        assert seen == dict.fromkeys(["r0", "r1", "r2", "r3"], 2)
        assert replay.counts() == {"consumed": 4}
        assert replay.lease("acme", "default", 2, min_exchanges=1) is None


@pytest.mark.parametrize("users", [("",), ("ann", "bob")])
def test_a_queue_of_old_feedback_does_not_outvote_the_newest(tmp_path: Path, users: tuple[str, ...]) -> None:
    """A minibatch is drawn from the newest `size * max_samplings / 4` ready ones, however many wait."""
    with opened(tmp_path, ReplaySettings(held_out_share=0, max_samplings=12)) as replay:
        for i in range(100):
            replay.append(exchange(f"r{i}", user=users[i % len(users)]))
            replay.add_feedback("acme", f"r{i}", GOOD)
        drawn = [int(e.id[1:]) for _ in range(6) for e in step(replay, 4).exchanges]
        assert min(drawn) >= 100 - 6 * 4  # 12 wait at a time, and each step may use up 4 of them
        assert replay.counts()["ready"] > 80
        fill(replay, 20, start=100)
        assert min(int(e.id[1:]) for e in step(replay, 4).exchanges) >= 100


def test_feedback_behind_undone_steps_may_teach_again_if_asked(tmp_path: Path) -> None:
    with opened(tmp_path, ReplaySettings(held_out_share=0, max_samplings=2)) as replay:
        fill(replay, 4)
        step(replay, 4, version="v1")
        for version in ("v2", "v3"):
            fill(replay, 2, start=4 if version == "v2" else 6)
            step(replay, 8, version=version)
        assert replay.counts() == {"consumed": 6, "ready": 2}
        for _ in range(2):  # the second time changes nothing
            replay.set_head("acme", "default", "v1", give_back=True)
            assert {row.exchange.id: row.sample_count for row in replay.rows(ExchangeQuery("acme"))} == {
                **{f"r{i}": 1 for i in range(4)},
                **{f"r{i}": 0 for i in range(4, 8)},
            }
        assert replay.counts() == {"ready": 8}
        step(replay, 8, version="v4")
        replay.set_head("acme", "default", "v1")  # a rollback: these lessons were given, and are not repeated by themselves
        assert replay.counts() == {"consumed": 4, "ready": 4}


def test_release_gives_back_and_draws_anew(tmp_path: Path) -> None:
    with opened(tmp_path, ReplaySettings(held_out_share=0, max_samplings=2)) as replay:
        fill(replay, 4)
        ids = []
        for count in (False, True, True):
            batch = leased(replay, 4)
            ids.append(batch.id)
            replay.release(batch.id, "all alike", count)
            replay.release(batch.id, "all alike", count)
            with pytest.raises(UserError, match="does not count: all alike"):
                replay.commit(batch.id, "v1", {})
        assert ids == ["acme/default/1", "acme/default/1.1", "acme/default/1.2"]
        assert replay.counts() == {"consumed": 4}
        assert (replay.step("acme", "default"), replay.uses("acme", "r0")) == (0, ())
        with pytest.raises(UserError, match="no minibatch"):
            replay.release("acme/default/9", "")


def test_old_records_are_rejected(tmp_path: Path) -> None:
    with opened(tmp_path, ReplaySettings(held_out_share=0, max_age=2)) as replay:
        fill(replay, 4)
        for _ in range(2):
            step(replay, 1)
        assert replay.ages("acme", "default") == {2: 4}
        step(replay, 1)
        assert replay.counts() == {"rejected": 4}
        row = record(replay, "r0")
        assert row.reason == "too old: more than 2 gradient steps"
        replay.append(exchange("late", feedback=GOOD, step=0, version=""))
        replay.append(exchange("new", feedback=GOOD, step=3, version="acme/default@v3"))
        assert [e.id for e in step(replay, 4).exchanges] == ["new"]


def test_steps_that_were_undone_make_nothing_older(tmp_path: Path) -> None:
    """v1 stays live while candidates fail: its records stay young; those of the failed ones keep the steps they have."""
    with opened(tmp_path, ReplaySettings(held_out_share=0, max_age=3, max_samplings=100)) as replay:
        fill(replay, 2)
        step(replay, 1, version="v1")
        fill(replay, 2, start=2, version="v1", step=1)
        for _ in range(6):
            step(replay, 1)
            replay.set_head("acme", "default", "v1")
        assert replay.step("acme", "default") == 7
        assert replay.ages("acme", "default") == {0: 2, 1: 2}
        replay.append(exchange("live", version="v1", step=1, feedback=GOOD))
        assert replay.ages("acme", "default") == {0: 3, 1: 2}
        batch = step(replay, 5, version="v8")
        assert (batch.parent, sorted(batch.ages)) == ("v1", [0, 0, 0, 1, 1])
        replay.set_head("acme", "default", "")
        assert replay.ages("acme", "default") == {
            0: 2,
            1: 3,
        }  # v1 did not lead to the base model; nothing gets younger than it was


def test_setting_the_head_withdraws_what_is_being_learned(tmp_path: Path) -> None:
    with opened(tmp_path) as replay:
        fill(replay, 8)
        step(replay, 2, version="v1")
        batch = leased(replay, 4)
        replay.set_head("acme", "default", "v1")  # where it is: nothing happens
        assert leased_batches(replay) == [batch.id]
        replay.set_head("acme", "default", "")
        with pytest.raises(UserError, match="does not count: learning goes on from the base model"):
            replay.commit(batch.id, "v2", {})
        assert (replay.head("acme", "default"), replay.step("acme", "default")) == ("", 1)
        again = leased(replay, 4)
        assert (again.id, again.parent) == ("acme/default/2.1", "")


def test_what_the_learner_left_behind_is_rejected(tmp_path: Path) -> None:
    with opened(tmp_path, ReplaySettings(held_out_share=0, max_kl=1.0)) as replay:
        fill(replay, 3)
        batch = leased(replay, 3)
        replay.commit(batch.id, "v1", {"kl": math.nan}, {}, {"r0": 1.5, "r1": 0.5, "r2": math.nan})
        assert replay.counts() == {"ready": 1, "rejected": 2}
        row = record(replay, "r0")
        assert (row.reason, row.kl, row.sample_count) == ("too far away: KL 1.5 nats, at most 1", 1.5, 1)
        assert replay.uses("acme", "r0") == ((batch.id, "v1"),)  # this step still learned from it
        assert replay.updates("acme", "default")[0]["kl"] is None


def test_records_of_another_base_model_are_rejected(tmp_path: Path) -> None:
    with opened(tmp_path) as replay:
        fill(replay, 2)
        fill(replay, 2, start=2, base="new")
        fill(replay, 2, start=4, base="older")
        assert replay.other_base("new") in ("b", "older")
        batch = leased(replay, 4, base_model="new")
        assert {e.id for e in batch.exchanges} == {"r2", "r3"}
        assert replay.counts() == {"leased": 2, "rejected": 4}
        assert replay.other_base("new") is None


def test_the_youngest_age_is_that_of_the_newest_version_with_feedback(tmp_path: Path) -> None:
    with opened(tmp_path) as replay:
        assert replay.youngest_age("acme", "default") == 0
        assert replay.adapters() == []
        fill(replay, 4)
        for _ in range(3):
            step(replay, 1)
            assert replay.youngest_age("acme", "default") == min(replay.ages("acme", "default"))
        replay.append(exchange("new", step=2, version="acme/default@v2", feedback=GOOD))
        assert replay.youngest_age("acme", "default") == min(replay.ages("acme", "default")) == 1
        assert replay.adapters() == [("acme", "default")]


@pytest.mark.slow
@of_files
def test_a_lease_does_not_read_all_that_waits(tmp_path: Path) -> None:
    """The work of SQLite (instructions, in hundreds) for a lease of 4, with 100 and with 1,000 ready records."""
    work = []
    for count in (100, 1000):
        (tmp_path / str(count)).mkdir()
        with opened(tmp_path / str(count)) as replay, ThreadPoolExecutor(32) as pool:
            list(pool.map(lambda i: replay.append(exchange(f"r{i}", feedback=GOOD)), range(count)))
            done: list[int] = []
            base_of(replay).set_progress_handler(partial(done.append, 1), 100)
            assert replay.lease("acme", "default", 4, base_model="b") is not None
            work.append(len(done))
    assert work[1] < 2 * work[0]


# -- caps


def test_the_oldest_go_first_and_finished_ones_before_them(tmp_path: Path) -> None:
    with opened(tmp_path, ReplaySettings(max_records=4, held_out_share=0, max_samplings=1)) as replay:
        fill(replay, 4)
        batch = step(replay, 1)
        gone = batch.exchanges[0].id
        replay.append(exchange("r4"))
        assert replay.get("acme", gone) is None
        assert replay.uses("acme", gone) == ((batch.id, "acme/default@v1"),)
        left = [f"r{i}" for i in range(4) if f"r{i}" != gone]
        held = leased(replay, 1)
        replay.append(exchange("r5"))
        replay.append(exchange("r6"))
        assert [row.exchange.id for row in replay.rows(ExchangeQuery("acme"))][:3] == ["r6", "r5", "r4"]
        assert [row.exchange.id for row in replay.rows(ExchangeQuery("acme", state="leased"))] == [held.exchanges[0].id]
        assert len(replay.rows(ExchangeQuery("acme"))) == 4
        assert held.exchanges[0].id in left
        fill(replay, 3, adapter="other", start=10)
        assert len(replay.rows(ExchangeQuery("acme"))) == 7  # the cap is per adapter


def test_a_full_buffer_of_leased_records_says_so(tmp_path: Path) -> None:
    with opened(tmp_path, ReplaySettings(max_records=2, held_out_share=0)) as replay:
        fill(replay, 2)
        batch = leased(replay, 2)
        with pytest.raises(ReplayFull, match="leased"):
            replay.append(exchange("r2"))
        assert replay.lease("acme", "default", 2) == batch
        replay.append(exchange("r2", "other"))


def test_bytes_are_capped_per_tenant(tmp_path: Path) -> None:
    big = ChatRequest(({"content": "x" * 300_000},))
    with opened(tmp_path, ReplaySettings(max_megabytes=1, held_out_share=0)) as replay:
        replay.append(exchange("r0", "other", request=big))
        for i in range(6):
            replay.append(exchange(f"r{i}", adapter=f"a{i % 2}", request=big))
        assert [row.exchange.id for row in replay.rows(ExchangeQuery("acme"))] == ["r5", "r4", "r3"]
        replay.add_feedback("acme", "r3", Feedback(text="x" * 200_000))
        assert [row.exchange.id for row in replay.rows(ExchangeQuery("acme"))] == ["r5", "r3"]  # never the one that it is about
        stored = asked(replay, "SELECT tenant, adapter, records, bytes FROM scopes WHERE records > 0 ORDER BY 1, 2")
        text = "SELECT tenant, adapter, count(*), sum(bytes) FROM records GROUP BY 1, 2 ORDER BY 1, 2"
        assert stored == asked(replay, text)
        assert replay.counts("other") == {"pending": 1}


# -- deletion


def test_deletion_names_all_that_came_of_it(tmp_path: Path) -> None:
    with opened(tmp_path, ReplaySettings(held_out_share=0, max_samplings=1)) as replay:
        fill(replay, 1)
        step(replay, version="v1")  # from r0
        fill(replay, 1, start=1)
        step(replay, version="v2")  # from r1, on v1
        replay.set_head("acme", "default", "v1")
        fill(replay, 1, start=2)
        step(replay, version="v3")  # from r2, on v1
        fill(replay, 1, tenant="other")
        step(replay, version="v1", tenant="other")
        replay.set_head("acme", "default", "")
        fill(replay, 1, start=3)
        step(replay, version="v4")  # on the base model
        assert replay.delete("acme", "r2") == ("v3",)
        assert replay.delete("acme", "r0") == ("v1", "v2", "v3")
        assert replay.delete("acme", "r0") == ("v1", "v2", "v3")  # asked again after a crash
        assert replay.tainted_versions("acme") == replay.tainted_versions() == ("v1", "v2", "v3")
        assert replay.get("acme", "r0") is None
        with pytest.raises(UnknownExchange):
            replay.delete("acme", "never")
        with pytest.raises(UnknownExchange):
            replay.delete("third", "r0")
        replay.set_head("acme", "default", "v3")
        fill(replay, 1, start=4)
        step(replay, version="v5")
        assert replay.tainted_versions("acme") == (
            "v1",
            "v2",
            "v3",
            "v5",
        )  # whoever learns on from a tainted version is tainted
        assert replay.delete("acme") == ("v1", "v2", "v3", "v4", "v5")
        assert replay.counts("acme") == {}
        assert replay.counts("other") == {"consumed": 1}
        assert replay.tainted_versions("other") == ()


def test_deleting_a_leased_record_withdraws_its_minibatch(tmp_path: Path) -> None:
    with opened(tmp_path) as replay:
        fill(replay, 9)
        batch = leased(replay, 4)
        assert replay.delete("acme", batch.exchanges[1].id) == ()
        with pytest.raises(UserError, match="does not count: a record of it was deleted"):
            replay.commit(batch.id, "v1", {})
        assert replay.counts() == {"ready": 8}
        again = leased(replay, 4)
        assert batch.exchanges[1] not in again.exchanges
        replay.delete("acme")
        with pytest.raises(UserError, match="all records were deleted"):  # `commit` asks for it
            replay.minibatch(again.id)


@of_files
def test_deleted_words_are_in_no_file(tmp_path: Path) -> None:
    def there() -> set[str]:
        return {p.name for p in tmp_path.iterdir() if b"SECRET" in p.read_bytes()}

    with opened(tmp_path) as replay:
        for i in range(30):
            words = "SECRET " * (400 if i % 3 else 3)
            replay.append(exchange(f"r{i}", request=ChatRequest(({"content": words},)), feedback=Feedback(text=words)))
            replay.append(exchange(f"s{i}"))
        replay.add_feedback("acme", "r1", Feedback(text="not SECRET"))
        assert there()
        for i in range(0, 30, 2):
            replay.delete("acme", f"r{i}")
        assert there()
        replay.delete("acme")
        assert there() == set()


# -- tenants

IDS = st.sampled_from([f"r{i}" for i in range(6)])
OPERATIONS = st.one_of(
    st.tuples(st.just("append"), IDS, st.sampled_from(["", "v1", "v2"])),
    st.tuples(st.just("append"), IDS, st.just("")),
    st.tuples(st.just("serve"), IDS, st.sampled_from([-1.0, 1.0])),
    st.tuples(st.just("serve"), IDS, st.sampled_from([-1.0, 1.0])),
    st.tuples(st.just("give"), IDS, st.sampled_from([-1.0, 0.0, 1.0])),
    st.tuples(st.just("give"), IDS, st.sampled_from([-1.0, 1.0])),
    st.tuples(st.just("lease"), st.integers(1, 4), st.integers(0, 2)),
    st.tuples(st.just("commit"), st.sampled_from(["v1", "v2", "v3"]), st.just(0)),
    st.tuples(st.just("release"), st.booleans(), st.just(0)),
    st.tuples(st.just("commit far"), IDS, st.sampled_from([0.5, 2.0])),
    st.tuples(st.just("reject"), IDS, st.just(0)),
    st.tuples(st.just("delete"), st.one_of(IDS, st.none()), st.just(0)),
    st.tuples(st.just("set_head"), st.sampled_from(["", "v1", "v2"]), st.just(0)),
    st.tuples(st.just("look"), IDS, st.just(0)),
)


def act(replay: Replay, tenant: str, operation: tuple[Any, ...]) -> Any:
    """Do it for a tenant, and give what comes back, errors included."""
    what, one, two = operation
    batch = f"{tenant}/default/{replay.step(tenant, 'default') + 1}"
    batch = next((id for id in leased_batches(replay) if id.startswith(f"{tenant}/")), batch)
    calls: dict[str, Callable[[], Any]] = {
        "append": lambda: replay.append(exchange(one, tenant, version=two, family=one[-1:])),
        "serve": lambda: replay.append(exchange(one, tenant, feedback=Feedback(reward=two))),
        "give": lambda: replay.add_feedback(tenant, one, Feedback(reward=two)),
        "lease": lambda: replay.lease(tenant, "default", one, min_exchanges=1, seed=two),
        "commit": lambda: replay.commit(batch, one, {"loss": 1.0}),
        "release": lambda: replay.release(batch, "none", one),
        "reject": lambda: replay.release(batch, "none", True, {one: "far"}),
        "commit far": lambda: replay.commit(batch, "v1", {}, {}, {one: two}),
        "delete": lambda: replay.delete(tenant, one),
        "set_head": lambda: replay.set_head(tenant, "default", one),
        "look": lambda: (
            *(
                replay.get(tenant, one),
                replay.rows(ExchangeQuery(tenant)),
                replay.counts(tenant),
                replay.uses(tenant, one),
                replay.tainted_versions(tenant),
            ),
            *(replay.updates(tenant, "default"), replay.ages(tenant, "default")),
            {scope: count for scope, count in replay.ready_counts().items() if scope[0] == tenant},
        ),
    }
    try:
        return calls[what]()
    except UserError as error:
        return f"{type(error).__name__}: {error}"


def dump(replay: Replay, tenant: str) -> dict[str, list[Any]]:
    """All that the buffer holds of a tenant, but for the internal row numbers, in their order."""
    found = {}
    for name in sorted(re.findall(r"CREATE TABLE (\w+)", TABLES)):
        with replay._database.reading() as base:
            columns = [column[0] for column in base.execute(f"SELECT * FROM {name} LIMIT 0").description]
        what = ", ".join(f'"{column}"' for column in columns if column != "n")
        if name == "bodies":
            query = "SELECT body FROM records JOIN bodies USING (n) WHERE tenant = ? ORDER BY n"
        else:
            query = f"SELECT {what} FROM {name} WHERE tenant = ? ORDER BY {'n' if 'n' in columns else what}"
        found[name] = asked(replay, query, (tenant,))
    return found


BOTH = st.lists(st.tuples(st.sampled_from(["acme", "zeta"]), OPERATIONS), min_size=80, max_size=120)
"""Short lives do not meet each other: mutants that mixed up tenants went unseen."""
FIND = (Phase.explicit, Phase.generate)
"""To make such lives shorter takes minutes."""


def apart(place: Path, operations: list[tuple[str, tuple[Any, ...]]]) -> None:
    """Zeta's answers and zeta's rows, byte for byte, with and without acme."""
    limits = ReplaySettings(max_records=5, max_samplings=2, max_age=2, held_out_share=0.2, max_kl=1.0)
    with opened(place / "both", limits, clock=lambda: 5.0) as both, opened(place / "alone", limits, clock=lambda: 5.0) as alone:
        for tenant, operation in operations:
            found = act(both, tenant, operation)
            if tenant == "zeta":
                assert found == act(alone, tenant, operation)
        assert dump(both, "zeta") == dump(alone, "zeta")


def test_a_label_that_is_made_again_from_a_tainted_version_is_tainted_once(tmp_path: Path) -> None:
    with opened(tmp_path, clock=lambda: 5.0) as replay:
        for name in ("r0", "r1"):
            for operation in (("serve", name, 1.0), ("lease", 1, 0), ("commit", "v3", 0), ("delete", name, 0)):
                act(replay, "acme", operation)
        assert replay.tainted_versions("acme") == ("v3",)


@settings(max_examples=6, phases=FIND)
@given(BOTH)
def test_a_tenant_is_what_it_would_be_without_the_other(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, tuple[Any, ...]]]
) -> None:
    """Byte-identical conversations, ids and versions; random operations of both."""
    apart(tmp_path_factory.mktemp("tenants"), operations)


# -- the file


def test_rows_are_paged_newest_first(tmp_path: Path) -> None:
    with opened(tmp_path) as replay:
        fill(replay, 5)
        replay.append(exchange("r5", adapter="other"))
        first = replay.rows(ExchangeQuery("acme", limit=2))
        assert [row.exchange.id for row in first] == ["r5", "r4"]
        assert [row.exchange.id for row in replay.rows(ExchangeQuery("acme", limit=9, before="r4"))] == ["r3", "r2", "r1", "r0"]
        assert [row.exchange.id for row in replay.rows(ExchangeQuery("acme", "other"))] == ["r5"]
        assert replay.rows(ExchangeQuery("acme", before="unknown")) == []
        replay.append(replace(exchange("r6"), user="mary"))
        assert [row.exchange.id for row in replay.rows(ExchangeQuery("acme", user="mary"))] == ["r6"]
        assert replay.rows(ExchangeQuery("rival", user="mary")) == []
        assert replay.ready_counts() == {("acme", "default"): 5}
        assert replay.counts() == {"pending": 2, "ready": 5}
        assert replay.counts("acme", "other") == {"pending": 1}


def test_the_corrected_ones_are_asked_for_alone(tmp_path: Path) -> None:
    """Whatever a user writes, also the words by which the query looks; and none beyond the newest with feedback."""
    said = [
        Feedback(correction="Hello, you."),
        Feedback(1.0),
        Feedback(-1.0, 'no "correction": "", please', correction='"correction": ""'),
        Feedback(-1.0, '"correction": "it is blank"'),
        Feedback(-1.0, correction=" "),
    ]
    with opened(tmp_path) as replay:
        for n, feedback in enumerate(said):
            replay.append(replace(exchange(f"r{n}"), feedback=feedback))
        replay.append(exchange("pending"))
        replay.append(replace(exchange("r9", adapter="other"), feedback=said[0]))
        for among, ids in ((9, ["r2", "r0"]), (5, ["r2", "r0"]), (4, ["r2"]), (2, [])):
            found = replay.corrections("acme", "default", among)
            assert [(one.id, one.feedback) for one in found] == [(id, said[int(id[1:])]) for id in ids]
        replay.append(replace(exchange("mary"), user="mary", feedback=Feedback(1.0)))
        assert [sorted(replay.teachers("acme", "default", among)) for among in (1, 3, 9)] == [
            ["mary"],
            ["", "", "mary"],
            [*[""] * 5, "mary"],
        ]
        batch = leased(replay, 5)
        replay.release(batch.id, "", rejected={"r2": "too stale"})
        assert [one.id for one in replay.corrections("acme", "default", 9)] == ["r0"]


@of_files
def test_one_process_owns_the_file(tmp_path: Path) -> None:
    with opened(tmp_path):
        with pytest.raises(ReplayError, match="open in this process"):
            opened(tmp_path)
        code = f"from learngraph.memory.claas.replay import Replay; Replay({str(tmp_path / 'replay.sqlite')!r})"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert f"open in process {os.getpid()}; end it" in other.stderr
    opened(tmp_path).close()


@of_files
def test_something_else_at_the_path_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "replay.sqlite"
    path.write_bytes(b"my diary, and no database at all" * 100)
    with pytest.raises(
        ReplayError, match="it is no replay buffer, or damaged; restore it from a copy, or name another file or --out"
    ):
        opened(tmp_path)
    assert path.read_bytes() == b"my diary, and no database at all" * 100
    path.unlink()
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE diary (day TEXT)")
    base.commit()
    base.close()
    before = path.read_bytes()
    with pytest.raises(ReplayError, match="a database of something else"):
        opened(tmp_path)
    assert path.read_bytes() == before
    path.unlink()
    path.mkdir()
    with pytest.raises(ReplayError, match="directory that can be written"):
        opened(tmp_path)
    path.rmdir()
    opened(tmp_path).close()
    with closing(sqlite3.connect(path)) as base:
        base.execute("PRAGMA user_version = 7")
    with pytest.raises(
        ReplayError, match="format 7, this program reads 2; start the release that wrote it, or name another file or --out"
    ):
        opened(tmp_path)


@of_files
def test_a_damaged_file_is_found_when_it_is_opened(tmp_path: Path) -> None:
    with opened(tmp_path) as replay:
        fill(replay, 50)
    path = tmp_path / "replay.sqlite"
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 8192] = os.urandom(8192)
    path.write_bytes(data)
    with pytest.raises(ReplayError, match="the file is damaged: restore it from a copy"):
        opened(tmp_path)
    path.write_bytes(data[: len(data) // 3])
    with pytest.raises(ReplayError, match="damaged"):
        opened(tmp_path)


@of_files
def test_a_disk_that_takes_half_a_write(tmp_path: Path) -> None:
    """A limit on the file's size stands for the full disk: the kernel takes part of a write, then refuses the rest."""
    with opened(tmp_path) as replay:
        fill(replay, 8)
        batch = leased(replay, 4)
        before = dump(replay, "acme")
        kept = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = max(p.stat().st_size for p in tmp_path.iterdir())
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10_000, kept[1]))
        try:
            with pytest.raises(ReplayError, match="the disk"):
                replay.append(exchange("big", request=ChatRequest(({"content": "x" * 100_000},))))
            with pytest.raises(ReplayError, match="the disk"):
                replay.commit(batch.id, "v1", {"text": "x" * 100_000})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, kept)
        assert dump(replay, "acme") == before
        replay.append(exchange("big", request=ChatRequest(({"content": "x" * 100_000},))))
        replay.commit(batch.id, "v1", {})
    with opened(tmp_path) as replay:
        assert base_of(replay).execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert len(replay.rows(ExchangeQuery("acme"))) == 9


def test_threads_share_it(tmp_path: Path) -> None:
    errors: list[BaseException] = []
    with opened(tmp_path, ReplaySettings(held_out_share=0, max_samplings=1000)) as replay:

        def serve(tenant: str) -> None:
            try:
                fill(replay, 40, tenant)
            except BaseException as error:
                errors.append(error)

        def learn() -> None:
            try:
                for _ in range(40):
                    for tenant, adapter in replay.adapters():
                        if batch := replay.lease(tenant, adapter, 4, min_exchanges=4):
                            replay.commit(batch.id, f"v{batch.step}", {})
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=serve, args=(f"t{i}",)) for i in range(4)] + [threading.Thread(target=learn)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert sum(replay.counts().values()) == 160
        for tenant, adapter in replay.adapters():
            used = sum(row.sample_count for row in replay.rows(ExchangeQuery(tenant, adapter, limit=100)))
            assert used == 4 * replay.step(tenant, adapter)


def test_a_closed_buffer_is_the_callers_mistake(tmp_path: Path) -> None:
    replay = opened(tmp_path)
    replay.close()
    with pytest.raises(ValueError, match="closed"):
        replay.get("acme", "r0")


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_user_share": 0.0},
        {"max_user_share": 1.5},
        {"max_user_share": math.nan},
        {"max_records": 0},
        {"max_samplings": 0},
        {"held_out_share": 1.5},
        {"max_pending_hours": 0},
        {"max_age": -1},
    ],
)
def test_limits_that_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="replay: "):
        ReplaySettings(**wrong)


# -- end users


def give(replay: Replay, user: str, count: int, start: int = 0, feedback: Feedback = BAD, **more: Any) -> None:
    for i in range(start, start + count):
        replay.append(exchange(f"{user}-{i}", user=user, **more))
        replay.add_feedback("acme", f"{user}-{i}", feedback)


def users(batch: Minibatch | None) -> Counter[str]:
    assert batch is not None
    return Counter(one.user for one in batch.exchanges)


def test_no_end_user_fills_a_minibatch(tmp_path: Path) -> None:
    with opened(tmp_path) as replay:
        give(replay, "mallory", 50)
        for name in ("ann", "bob", "cem", "dan", "eve"):
            give(replay, name, 3, feedback=GOOD)
        for _ in range(10):
            batch = replay.lease("acme", "default", 8, seed=3)
            assert users(batch)["mallory"] <= 2
            assert users(batch).total() == 8
            assert batch is not None
            replay.commit(batch.id, f"acme/default@v{batch.step}", {})


def test_one_end_user_of_several_teaches_nothing_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as replay:
        give(replay, "mallory", 50)
        assert users(replay.lease("acme", "default", 8)) == {"mallory": 8}  # the only one there is
    (tmp_path / "more").mkdir()
    with opened(tmp_path / "more") as replay:
        give(replay, "mallory", 50)
        replay.append(exchange("hello", user="ann"))  # another one chats, and says nothing of the replies
        assert replay.lease("acme", "default", 8) is None
        give(replay, "ann", 4)
        assert users(replay.lease("acme", "default", 8)) == {"mallory": 4, "ann": 4}


def test_three_end_users_share_a_minibatch_and_the_unnamed_have_no_limit(tmp_path: Path) -> None:
    with opened(tmp_path) as replay:
        for name in ("ann", "bob", "mallory"):
            give(replay, name, 20)
        batch = replay.lease("acme", "default", 8)
        assert max(users(batch).values()) <= 3
    (tmp_path / "more").mkdir()
    with opened(tmp_path / "more") as replay:
        fill(replay, 20)
        give(replay, "ann", 1)
        give(replay, "bob", 1)
        assert users(replay.lease("acme", "default", 8))[""] >= 6
