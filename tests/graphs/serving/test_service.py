"""CLaaS's service: it answers while it learns, goes back when it got worse, and keeps tenants apart."""

import asyncio
import json
import math
import re
import shutil
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import urn
from claas_settings import OPEN_GATE, changed
from forks import Python
from hypothesis import given, settings
from hypothesis import strategies as st
from urn_service import JAM, idle, metric, serving, teach, turns
from variants import quick
from waiting import PATIENCE, let_others_run, until

from learngraph.graphs.claas import CLaaS, ReplaySettings
from learngraph.graphs.serving import learning_task, versions
from learngraph.graphs.serving.learning_task import AdapterTurn
from learngraph.graphs.serving.metrics import ServiceMetrics
from learngraph.graphs.serving.service import Service
from learngraph.graphs.serving.versions import gradient_steps_of, hash_fraction
from learngraph.memory.claas.replay import Replay
from learngraph.memory.claas.settings import TeacherSettings
from learngraph.memory.errors import (
    AdapterConflict,
    AdapterError,
    ReplayError,
    Unavailable,
    UnknownAdapter,
    UnknownExchange,
    UnknownVersion,
    UserError,
)
from learngraph.memory.records import ChatCall, Exchange, ExchangeQuery, Feedback


@pytest.mark.slow
async def test_it_learns_from_feedback_while_it_answers(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        first = await turns(service, 10)
        assert [e.reply.version for e in first[:7]] == [""] * 7
        await until(lambda: bool(service.versions("acme").current))  # within 10 scenarios
        later = await teach(service, 40, start=10)
        last = [await urn.say(service, f"say {i}", f"last-{i}") for i in range(40)]
        right = [sum(e.reply.text == "blue" for e in some) / len(some) for some in (first, last)]
        assert right[1] > 0.9 > right[0]
        assert all(e.step == gradient_steps_of(e.reply.version) for e in [*first, *later, *last])
        made = {version.label for version in service.versions("acme").versions()}
        assert {e.reply.version for e in last} <= made
        log = service.replay.updates("acme", "default", 500)
        assert [row["step"] for row in log] == list(range(len(log), 0, -1))
        assert all(row["times"] <= 8 for row in await service.experiences(ExchangeQuery("acme", limit=200)))
        assert all(0 < row["ess"] <= 1 and row["reward"] is not None and row["age"] >= 0 for row in log)


async def test_stops_when_there_is_nothing_left_and_does_not_spin(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        await teach(service, 12)
        seen = len(service.learner.seen)
        assert 1 <= seen <= 12 * 8
        assert service.replay.counts("acme").get("ready", 0) < 8
        assert service._learning is not None
        turn = service._learning._turns["acme", "default"].served
        await let_others_run()
        assert service._learning._turns["acme", "default"].served == turn


async def test_learns_for_the_least_recently_served_first(tmp_path: Path) -> None:
    async with serving(tmp_path, learns=False) as service:
        for tenant in ("a", "b", "c"):
            await turns(service, 8, tenant)
    async with serving(tmp_path) as service:
        await until(lambda: len(service.learner.seen) >= 9)
        assert [batch.split("/")[0] for batch, _, _ in service.learner.seen][:9] == ["a", "b", "c"] * 3


@pytest.mark.slow
async def test_a_poisoned_batch_is_let_go(tmp_path: Path) -> None:
    async with serving(tmp_path, poison="poison") as service:
        for i in range(8):
            exchange = await urn.say(service, f"{i}", f"p-{i}")
            await urn.like(service, exchange, text="poison" if i == 5 else "")
        await until(lambda: idle(service))
        assert await metric(service, "learngraph_skipped_total") > 0
        for i in range(8):  # each wakes it, and the poison is drawn 8 times at most
            await teach(service, 1, start=100 + i)
        assert service.replay.step("acme", "default") > 0
        assert (await service.status())["state"] == "ok"


def rounds(loop: Any) -> list[int]:
    """Counts the rounds of an event loop from now on, in its only item."""
    seen, run_once = [0], loop._run_once

    def counted() -> None:
        seen[0] += 1
        run_once()

    loop._run_once = counted
    return seen


async def test_feedback_and_pieces_take_few_rounds_of_the_event_loop(tmp_path: Path) -> None:
    """Under load a round takes long, as every stream has its share of it. By LangGraph's engine: 23, and 40 for a chat of four."""
    async with serving(tmp_path, learns=False) as service:
        seen = rounds(asyncio.get_running_loop())
        for i in range(10):
            before = seen[0]
            exchange = await urn.say(service, "x", f"r-{i}", store=False, seed=0)
            chat = seen[0] - before
        assert chat <= 16 + 3 * len(exchange.reply.text)
        exchanges = [await urn.say(service, "x", f"s-{i}") for i in range(10)]
        before = seen[0]
        for exchange in exchanges:
            await urn.like(service, exchange)
        assert (seen[0] - before) / 10 <= 8


async def test_a_client_that_goes_away_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path, learns=False) as service:
        service.engine.pause = 0.01
        before = len(asyncio.all_tasks())
        for i in range(5):
            stream = service.chat(ChatCall(f"gone-{i}", "acme", urn.request("hello")))
            async for _ in stream:
                break
            await stream.aclose()
        task = asyncio.create_task(urn.say(service, "hello", "cancelled"))
        await until(lambda: service.engine.open)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert service.engine.open == 0
        assert len(asyncio.all_tasks()) == before
        assert service._running.total() == 0
        assert service.replay.counts("acme") == {}
        for id in ("asks", "hangs-up-before-it-begins"):
            service.version("acme", "default", id)
        monkeypatch.setattr(versions, "PIN_SECONDS", -1.0)
        service.version("acme", "default", "later")
        assert [*service._live._pins] == ["acme/later"]


async def test_the_learner_rests_after_a_step_while_a_reply_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning_task, "MAX_REST", 1e9)
    async with serving(tmp_path, OPEN_GATE, rest=1e9) as service:
        reply = service.chat(ChatCall("slow", "acme", urn.request("x")))
        await anext(reply)
        await turns(service, 8)
        await until(lambda: service._learning is not None and service._learning.gives_way)
        await turns(service, 8, start=8)
        await let_others_run()
        assert service.replay.step("acme", "default") == 1
        assert (await service.status("acme"))["learner"]["state"] == "resting"
        await reply.aclose()
        await until(lambda: service.replay.step("acme", "default") > 1)


async def test_what_is_yielded_last_is_kept_already(tmp_path: Path) -> None:
    async with serving(tmp_path, learns=False) as service:
        call = ChatCall("one", "acme", urn.request("x"), family="f", scenario="s", turn=2)
        async for item in service.chat(call):
            if isinstance(item, Exchange):
                row = service.replay.get("acme", "one")
                assert row is not None
                assert row.exchange == item
                assert (item.family, item.scenario, item.turn, row.state) == ("f", "s", 2, "pending")
        await urn.say(service, "x", "two", store=False)
        assert service.replay.get("acme", "two") is None
        with pytest.raises(UnknownExchange):
            await service.feedback("acme", "two", Feedback(1.0))


async def test_feedback_counts_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        exchange = await urn.say(service, "x", "one")
        first = await service.feedback("acme", "one", Feedback(1.0, "good"), key="k1")
        again = await service.feedback("acme", "one", Feedback(1.0, "good"), key="k1")
        assert (first.job, first.is_repeat, again.job, again.is_repeat) == (again.job, False, first.job, True)
        other = await service.feedback("acme", "one", Feedback(-1.0, "on second thoughts"))
        assert other.job != first.job
        assert service._live.adapter("acme", "default").rewards_by_version() == {exchange.reply.version: [-1.0]}
        job = await service.job("acme", other.job)
        assert job is not None
        assert (job["kind"], job["response_id"], job["state"]) == ("feedback", "one", "ready")
        assert await service.job("rival", other.job) is None
        for foreign in ("one", "never"):
            with pytest.raises(UnknownExchange) as caught:
                await service.feedback("rival", foreign, Feedback(1.0))
            assert "acme" not in str(caught.value)
        assert await metric(service, "learngraph_feedbacks_total") == 2


@pytest.mark.slow
async def test_closing_waits_for_no_engine_that_is_in_the_middle_of_something(tmp_path: Path) -> None:
    async with serving(tmp_path, learns=False) as service:
        await urn.say(service, "x", "one")
        held = asyncio.Event()
        service.engine.close = held.wait
        await asyncio.wait_for(service.close(), PATIENCE)  # it gives the engine a second, which would never have ended
    with Replay(tmp_path / "replay.sqlite") as replay:  # let go of
        assert replay.get("acme", "one") is not None


async def test_a_change_of_version_between_question_and_answer_is_labelled_right(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        await teach(service, 10)
        live = service.versions("acme").current
        assert service.version("acme", "default", "later") == live
        await service.roll_back("acme", "default", "")
        exchange = await urn.say(service, "x", "later")
        assert exchange.reply.version == live  # as was said in the headers
        assert (await urn.say(service, "x", "another")).reply.version == ""


@pytest.mark.slow
async def test_rolls_back_and_learns_on_from_there(tmp_path: Path) -> None:
    async with serving(tmp_path, changed(OPEN_GATE, rollout={"keep_versions": 100})) as service:
        await teach(service, 20)
        live = service.versions("acme").current
        shown = await service.roll_back("acme", "default")
        assert shown["live"] != live
        assert service.replay.head("acme", "default") == shown["live"]
        whys = {row["label"]: row["why"] for row in shown["versions"]}
        assert re.fullmatch(r"rolled back at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00:00: asked for", whys[live])
        assert re.fullmatch(r"gone back to at .*: asked for", whys[shown["live"]])
        assert (await urn.say(service, "x", "after")).reply.version == shown["live"]
        steps = service.replay.step("acme", "default")
        await teach(service, 12, start=100)
        assert service.replay.step("acme", "default") > steps
        first = service.replay.updates("acme", "default", 500)[-(steps + 1)]
        assert (first["step"], first["parent"]) == (steps + 1, shown["live"])
        shown = await service.promote("acme", "default", live)
        assert shown["live"] == live
        with pytest.raises(UnknownVersion, match="no version '999'"):
            await service.promote("acme", "default", "999")


@pytest.mark.slow
async def test_live_feedback_that_falls_brings_a_version_back_where_versions_come_as_fast_as_rewards(tmp_path: Path) -> None:
    """By default: each exchange is used 8 times, so that a version comes with every feedback, and 10 of them are kept. The version
    that 12 and 12 rewards lead back to is older than that."""
    async with serving(tmp_path, changed(OPEN_GATE, gate={"enabled": False}, rollout={"watch_rewards": 12})) as service:
        await teach(service, 48)
        service.learner.rate, service.learner.wreck = 1e-9, [0.0, 9.0, 0.0, 0.0]
        i, backs = 48, list[Any]()
        while not backs:
            await turns(service, 1, start=i)
            i += 1
            await until(lambda: idle(service) and not service._live.tasks)
            backs = [line for line in service.versions("acme").log() if line.get("back")]
            assert i < 100
        assert "live feedback fell from" in backs[0]["why"]
        back = service.versions("acme").current
        assert not back or service.versions("acme").folder(back).is_dir()
        assert len(service.versions("acme").versions()) < 10 + 2 * 12 + 3  # the way back is kept, and no more


@pytest.mark.parametrize("withdraw", [False, True])
async def test_a_canary_that_learned_from_what_was_deleted_does_not_go_live(tmp_path: Path, withdraw: bool) -> None:
    async with serving(
        tmp_path, changed(OPEN_GATE, rollout={"watch_rewards": 4, "canary_share": 1.0}, gate={"enabled": False})
    ) as service:
        await teach(service, 8)
        canary = service.versions("acme").canary
        assert canary
        used = next(f"chat-{i}" for i in range(8) if service.replay.uses("acme", f"chat-{i}"))
        told = await service.forget("acme", [used], withdraw)
        assert canary in told["tainted"]
        assert told["withdrawn"] == ([canary] if withdraw else [])
        if withdraw:
            assert service.versions("acme").version(canary).state == "dropped"
            assert not [line for line in service.versions("acme").log() if line.get("back")], "the live version stays"
            return
        await turns(service, 1, start=8)
        await until(lambda: not service._live.tasks and service.versions("acme").version(canary).state == "dropped")
        assert service._live.adapter("acme", "default").live == ""


def lineage_of(service: Service, label: str) -> list[str]:
    return list(service.versions("acme").lineage(label))


async def test_the_gate_keeps_a_bad_version_from_everybody(tmp_path: Path) -> None:
    async with serving(tmp_path, changed(OPEN_GATE, replay={"held_out_share": 0.4}, rollout={"keep_versions": 100})) as service:
        await teach(service, 30)
        good = service.versions("acme").current
        service.learner.wreck, i = [0.0, 9.0, 0.0, 0.0], 30
        while service.learner.wreck is not None:
            await teach(service, 1, start=i)
            i += 1
        log = service.versions("acme").log()
        dropped = [line for line in log if line["state"] == "dropped"]
        assert len(dropped) == 1
        rows = (await service.adapters("acme"))[0]["versions"]
        row = next(row for row in rows if row["label"] == dropped[0]["label"])
        assert [check["name"] for check in row["gate"] if not check["passed"]] == ["shared words lost"]
        assert "shared words lost: " in row["why"]
        with pytest.raises(AdapterConflict):
            await service.promote("acme", "default", row["label"])
        assert good in lineage_of(service, service.versions("acme").current)
        assert not [e for e in await service.experiences(ExchangeQuery("acme", limit=100)) if e["version"] == row["label"]]
        # Whatever was dropped, nothing was learned from it.
        parents = {update["parent"] for update in service.replay.updates("acme", "default", 500)}
        assert not parents & {line["label"] for line in dropped}
        values = Counter(check["name"] for row in rows for check in row["gate"])
        assert {"lineage", "own words lost", "entropy", "kl"} <= set(values)


async def test_a_version_that_fails_the_gate_uses_no_feedback_up_and_learning_rests_and_says_why(tmp_path: Path) -> None:
    async with serving(tmp_path, JAM) as service:
        service.learner.heeds_limits = False  # all goes by the gate
        service.learner.wreck = [0.0, 9.0, 0.0, 0.0]  # the first version fails
        await turns(service, 8)
        await until(lambda: service.versions("acme").drops_in_a_row == 1 or bool(service.versions("acme").current))
        await until(lambda: idle(service))
        log = service.versions("acme").log()
        (first, *_) = [line for line in log if line["state"] == "dropped"]
        batch = next(row["batch"] for row in service.replay.updates("acme", "default", 500) if row["version"] == first["label"])
        used = [
            row
            for row in await service.experiences(ExchangeQuery("acme", limit=100))
            if (batch, first["label"]) in service.replay.uses("acme", row["id"])
        ]
        assert used
        for row in used:
            kept = [
                label
                for _, label in service.replay.uses("acme", row["id"])
                if label not in {x["label"] for x in log if x["state"] == "dropped"}
            ]
            assert row["times"] == len(kept)  # what failed counts as no use
        job = await service.job("acme", used[0]["job"])
        assert job is not None
        assert job["outcomes"][first["label"]] == "dropped"
        steps, service.learner.rate = service.replay.step("acme", "default"), 1e6  # from now on every version goes too far
        await teach(service, 1, start=8)
        assert (
            service.replay.step("acme", "default") == steps + 3
        )  # three tries, and then it rests until there is more feedback
        assert service.versions("acme").drops_in_a_row >= 3
        (scope,) = (await service.status("acme"))["scopes"]
        (found,) = [each for each in scope["held_up"] if each["kind"] == "gate"]
        assert "failed the gate, the last by: kl:" in found["why"]
        assert "--gate.max-kl" in found["help"]
        assert (await service.status())["last_turns"] == {"dropped": 1}
        assert await metric(service, "learngraph_adapters", outcome="dropped") == 1


@pytest.mark.slow
async def test_200_feedbacks_past_the_bound_it_follows_a_user_who_changes_his_mind(tmp_path: Path) -> None:
    """The bound holds at every step, no version fails for it, and what the user wants now takes the place of what he wanted."""
    async with serving(tmp_path, changed(JAM, replay={"max_samplings": 2})) as service:
        shares = {}
        for word, start, count in (("blue", 0, 200), ("red", 200, 200)):
            for i in range(start, start + count, 10):
                await teach(service, 10, start=i, word=word)
            replies = [await urn.say(service, f"say {i}", f"{word}-{i}", store=False) for i in range(100)]
            shares[word] = Counter(exchange.reply.text for exchange in replies)
        updates = service.replay.updates("acme", "default", 10_000)
        at_bound = [update["step"] for update in updates if update["shrink"] < 1]
        assert min(at_bound) < 25, "at 100 feedbacks, since each is used twice, 8 at a time; 200 more push it past the bound"
        assert shares["blue"]["blue"] > 60 > 30 > shares["blue"]["red"]
        assert shares["red"]["red"] > 60 > 30 > shares["red"]["blue"]
        assert not [line for line in service.versions("acme").log() if line["state"] == "dropped"]
        assert all(update["kl"] <= 0.9 * 0.7 for update in updates)
        (scope,) = (await service.status("acme"))["scopes"]
        assert "bound" in {each["kind"] for each in scope["held_up"]}


@pytest.mark.long
async def test_as_shipped_it_follows_a_user_who_changes_his_mind_after_500_feedbacks_past_the_bound(tmp_path: Path) -> None:
    """Feedback comes faster than steps, so that most of what he liked before waits in the buffer, and some of it is held out."""
    async with serving(tmp_path, changed(CLaaS(), gate={"min_entropy_share": 0.0, "max_kl": 0.7})) as service:
        shares = {}
        for word, start, count, burst in (("blue", 0, 600, 10), ("red", 600, 120, 5)):
            for i in range(start, start + count, burst):
                await teach(service, burst, start=i, word=word)
            shares[word] = [
                math.exp(logp) for logp in urn.log_softmax(service.learner.logits(service.versions("acme").current))
            ]
        red, blue = urn.WORDS.index("red"), urn.WORDS.index("blue")
        assert shares["blue"][blue] > 0.7 > 0.15 > shares["blue"][red]
        assert shares["red"][red] > 0.7 > 0.15 > shares["red"][blue]
        assert min(update["step"] for update in service.replay.updates("acme", "default", 10_000) if update["shrink"] < 1) < 25
        assert service.replay.counts("acme", "default")["ready"] > 300, "what he liked before still waits"


@pytest.mark.parametrize("rewards_fell", quick([True, False]))
async def test_liked_replies_have_no_say_once_live_feedback_has_contradicted_them(tmp_path: Path, rewards_fell: bool) -> None:
    async with serving(tmp_path, OPEN_GATE) as service:
        await teach(service, 30)
        served = service._live.adapter("acme", "default")
        async with served.switch_lock:
            await service._live.switch_back(served, None, "asked for", rewards_fell=rewards_fell)
        service.learner.wreck, i = [0.0, 9.0, 0.0, 0.0], 30
        while service.learner.wreck is not None:
            await teach(service, 1, start=i, word="green")
            i += 1
        dropped = [line for line in service.versions("acme").log() if line["state"] == "dropped"]
        assert (not dropped) is rewards_fell
        assert (service.versions("acme").last_fall > 0) is rewards_fell


@pytest.mark.slow
async def test_falling_rewards_lead_back_once_and_not_step_by_step(tmp_path: Path) -> None:
    """Where a user changes his mind every version looks worse than the one before; only the first comparison says something."""
    chosen = changed(
        OPEN_GATE, gate={"enabled": False}, rollout={"watch_rewards": 8, "watch_window": 16}, replay={"max_samplings": 1}
    )
    async with serving(tmp_path, chosen) as service:
        await teach(service, 64)
        for i in range(64, 160, 4):
            await teach(service, 4, start=i, word="red")
        backs = [line for line in service.versions("acme").log() if line.get("back")]
        assert len(backs) == 1
        live = service.versions("acme").current
        assert gradient_steps_of(live) == service.replay.step("acme", "default"), "it went on from there"
        assert backs[0]["label"] in lineage_of(service, live)


@pytest.mark.slow
async def test_a_canary_answers_its_share_and_goes_live_by_feedback(tmp_path: Path) -> None:
    async with serving(tmp_path, changed(OPEN_GATE, rollout={"watch_rewards": 6, "canary_share": 0.4})) as service:
        await turns(service, 12)
        await until(lambda: bool(service._live.adapter("acme", "default").canary))
        canary = service._live.adapter("acme", "default").canary
        found = [await urn.say(service, "x", f"share-{i}") for i in range(300)]
        assert all((e.reply.version == canary) == (hash_fraction(e.id) < 0.4) for e in found)
        assert 0.3 < sum(e.reply.version == canary for e in found) / 300 < 0.5
        for e in found:
            await urn.like(service, e)
            if service.versions("acme").current:
                break
        await until(lambda: bool(service.versions("acme").current))
        assert service.versions("acme").current == canary


async def test_a_bad_canary_is_dropped(tmp_path: Path) -> None:
    """The base model has all its rewards before the canary has one: what the canary is compared with depends on no timing."""
    chosen = changed(OPEN_GATE, rollout={"watch_rewards": 6, "canary_share": 0.5}, gate={"enabled": False})
    async with serving(tmp_path, chosen, learns=False) as service:
        await turns(service, 12)
    async with serving(tmp_path, chosen, rate=-60.0) as service:
        scope = service._live.adapter("acme", "default")
        await until(lambda: scope.canary)
        canary = scope.canary
        found = [await urn.say(service, f"{i}", f"share-{i}") for i in range(60)]
        for is_new in (False, True):
            for exchange in found:
                if (exchange.reply.version == canary) == is_new:
                    await service.feedback("acme", exchange.id, Feedback(-1.0 if is_new else 1.0))
        await until(lambda: scope.canary != canary)
        states = {line["state"] for line in service.versions("acme").log() if line["label"] == canary}
        assert "dropped" in states
        assert "live" not in states
        assert not service.versions("acme").current


async def test_failures_of_the_machine_pause_and_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as service:
        monkeypatch.setattr("learngraph.graphs.serving.learning_task.MAX_WAIT", 0.05)
        full = UserError("disk full")
        full.__cause__ = OSError(28, "no space")
        service.learner.fails = [RuntimeError("no room on the card")] * 100
        await turns(service, 10)
        await until(lambda: bool(service._learning.pause("acme", "default")))
        assert "no room on the card" in (await service.status("acme"))["scopes"][0]["paused"]
        assert "no room" not in json.dumps(await service.status("rival"))
        before = await metric(service, "learngraph_learner_errors_total")
        service.learner.fails = [full, RuntimeError("crash"), OSError(28, "no space"), MemoryError()]
        await until(lambda: service.learner.fails == [])
        status = await service.status("acme")
        assert status["learner"]["state"] in ("failed", "idle", "training")
        await until(lambda: bool(service.versions("acme").current))
        await until(lambda: idle(service))
        assert service.learner.seen[0][0] == "acme/default/1"
        assert await metric(service, "learngraph_learner_errors_total") >= before + 4
        assert (await service.status("acme"))["scopes"][0]["paused"] == ""


async def test_train_takes_steps_now(tmp_path: Path) -> None:
    async with serving(tmp_path, changed(OPEN_GATE, rollout={"watch_rewards": 0}, replay={"min_exchanges": 100})) as service:
        await turns(service, 4)
        await let_others_run()
        assert not service.learner.seen
        job = await service.train("acme", "default", 2)
        await until(lambda: len(service.learner.seen) == 2)
        await until(lambda: idle(service))
        told = await service.job("acme", job["job"])
        assert told is not None
        assert (told["state"], told["taken"], len(told["versions"])) == ("done", 2, 2)
        assert await service.job("rival", job["job"]) is None
        with pytest.raises(UnknownAdapter):
            await service.train("acme", "nope")


async def test_forgetting_taints_what_learned_from_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        found = await teach(service, 10)
        used = next(e.id for e in found if service.replay.uses("acme", e.id))
        before = await service.experience("acme", used)
        assert before is not None
        assert before["uses"]
        assert await service.experience("rival", used) is None
        told = await service.forget("acme", [used])
        assert told["deleted"] == 1
        assert told["tainted"]
        assert await service.experience("acme", used) is None
        there = {v.label: v.tainted for v in service.versions("acme").versions()}
        assert {label for label, tainted in there.items() if tainted} == set(told["tainted"]) & set(there)
        assert there[service.versions("acme").current]
        live = service.versions("acme").current
        await teach(service, 8, start=20)  # what is learned from it later is marked at once, not by the next service
        mine = service.versions("acme")
        assert mine.current != live
        assert mine.version(mine.current).tainted
        everything = await service.forget("acme", None)
        assert everything["deleted"] == 17
        assert await service.experiences(ExchangeQuery("acme")) == []


@pytest.mark.slow
async def test_what_else_a_withdrawn_version_learned_from_teaches_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        found = await teach(service, 10)
        used = next(e.id for e in found if service.replay.uses("acme", e.id))
        told = await service.forget("acme", [used])
        live = service.versions("acme").current
        assert live in told["tainted"]
        assert "erased" in [each["kind"] for each in await service._held_up("acme", "default")], "until then it says so"
        other = next(e.id for e in found if e.id != used and service.replay.uses("acme", e.id))
        assert (await service.forget("acme", [other], withdraw=True))["withdrawn"] == [live]
        assert [row["times"] for row in await service.experiences(ExchangeQuery("acme"))] == [0] * 8
        await teach(service, 1, start=30)
        again = service.versions("acme")
        assert again.current
        assert not again.version(again.current).tainted
        assert used not in str(await service.experiences(ExchangeQuery("acme", learned_by=again.current)))
        assert "erased" not in [each["kind"] for each in await service._held_up("acme", "default")]
        async with service._live.adapter("acme", "default").switch_lock:  # a rollback is under way, and ends first
            erased = asyncio.create_task(service.forget("acme", None, withdraw=True))
            await let_others_run()
            await service._live.switch_back(service._live.adapter("acme", "default"), "", "asked for")
        assert (await erased)["withdrawn"] == []


@pytest.mark.parametrize("must_store", [True, False])
async def test_a_full_disk_ends_no_chat_where_the_operator_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, must_store: bool
) -> None:
    async with serving(tmp_path, must_store=must_store) as service:
        whole = await urn.say(service, "say it", "whole")
        with monkeypatch.context() as full:
            for method in ("append", "check_disk", "add_feedback"):
                full.setattr(service.replay, method, lambda *given: (_ for _ in ()).throw(ReplayError("the disk is full")))
            with pytest.raises(ReplayError, match="the disk is full"):
                await urn.like(service, whole, "blue")
            assert ((await service.status())["state"], await metric(service, "learngraph_storage_failed")) == ("degraded", 1.0)
            with pytest.raises(Unavailable, match="cannot be stored") if must_store else nullcontext():
                await service.ready()
            assert await metric(service, "learngraph_engine_alive") == 1.0  # the model is not to blame
        service._vitals_until = 0.0  # the next look is a second later
        assert (await service.status())["state"] == "ok"
        assert await metric(service, "learngraph_storage_failed") == 0.0
        monkeypatch.setattr(service.replay, "append", lambda exchange: (_ for _ in ()).throw(ReplayError("the disk is full")))
        if must_store:
            with pytest.raises(ReplayError, match="the disk is full"):
                await urn.say(service, "say it", "one")
            return
        assert (await urn.say(service, "say it", "one")).reply.text
        assert service._metrics.unrecorded._value.get() == 1
        with pytest.raises(UnknownExchange, match="'one' was answered without a record"):
            await service.feedback("acme", "one", Feedback(1.0))
        with pytest.raises(UnknownExchange, match="no exchange 'one'"):  # nothing of it is told to others
            await service.feedback("rival", "one", Feedback(1.0))


async def test_the_engine_is_asked_for_a_sign_of_life_once_however_many_want_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        asked = []

        async def vitals() -> dict[str, float]:
            asked.append(1)
            await asyncio.sleep(0)
            return {"waiting": 0.0}

        service.engine.vitals = vitals
        assert await asyncio.gather(*(service.ready() for _ in range(9))) == [{"waiting": 0.0}] * 9
        assert len(asked) == 1


@pytest.mark.slow
async def test_a_version_answers_by_name_and_shows_what_it_learned_from(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        await teach(service, 20)
        rows = (await service.adapters("acme"))[0]["versions"]
        live, old = rows[0]["label"], rows[-1]
        assert live == service.versions("acme").current != old["label"]

        async def answers(id: str, wanted: str) -> str:
            label = service.version("acme", "default", id, wanted)
            assert (await urn.say(service, "x", id)).reply.version == label
            return label

        assert await answers("now", "") == live
        assert await answers("before", "base") == ""
        for wanted in (old["label"], old["name"], str(old["step"])):
            assert await answers(f"old-{wanted}", wanted) == old["label"]
        for version in rows:  # however many are named, only a few stay loaded
            assert await answers(f"each-{version['name']}", version["name"]) == version["label"]
        await until(lambda: len(service.engine.loaded_versions()) <= 6)
        assert live in service.engine.loaded_versions()
        for unknown in ("x", "999"):
            with pytest.raises(UnknownVersion):
                service.version("acme", "default", "none", unknown)
        with pytest.raises(UnknownAdapter):
            service.version("acme", "none", "none", "base")

        for version in rows:
            learned = await service.experiences(ExchangeQuery("acme", learned_by=version["name"]))
            assert len(learned) == version["learned_from"] > 0
            for row in learned:
                assert version["label"] in [label for _, label in service.replay.uses("acme", row["id"])]
        with pytest.raises(UnknownVersion):
            await service.experiences(ExchangeQuery("acme", learned_by="x"))
        assert await service.experiences(ExchangeQuery("rival", "default")) == []


@pytest.mark.slow
async def test_a_version_that_was_named_and_cannot_be_loaded_is_not_replaced_by_another(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        await teach(service, 20)
        old = service.versions("acme").versions()[-1].label
        await service.engine.unload(old)
        (service.versions("acme").folder(old) / "policy.json").write_text("spoiled")
        assert service.version("acme", "default", "x", old) == old
        with pytest.raises(AdapterError):
            await urn.say(service, "x", "x")
        assert service.versions("acme").current != old


async def test_adapters_are_made_listed_exported_and_deleted(tmp_path: Path) -> None:
    import zipfile

    async with serving(tmp_path) as service:
        assert [row["id"] for row in await service.models("acme")] == ["urn"]
        with pytest.raises(UnknownAdapter):
            await urn.say(service, "x", "one", adapter="second")
        await service.create("acme", "second")
        with pytest.raises(AdapterConflict):
            await service.create("acme", "second")
        with pytest.raises(UserError, match="small letters"):
            await service.create("acme", "../second")
        for i in range(10):
            await urn.like(service, await urn.say(service, f"{i}", f"s-{i}", adapter="second"))
        await until(lambda: idle(service))
        assert service.versions("acme", "second").current
        assert not service.versions("acme").current
        assert [row["id"] for row in await service.models("acme")] == ["urn", "urn:second"]
        live = service.versions("acme", "second").current
        path = await service.export("acme", "second", "1")
        assert zipfile.ZipFile(path).namelist() == ["policy.json"]
        with pytest.raises(AdapterConflict):
            await service.remove("acme", "second", live)
        await until(lambda: idle(service))
        await service.remove("acme", "second")
        assert [row["id"] for row in await service.models("acme")] == ["urn"]
        assert service.replay.counts("acme") == {}
        assert not [label for label in service.engine.loaded_versions() if "/second@" in label]


async def test_goes_on_where_it_was_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        await teach(service, 20)
        live, rewards = service.versions("acme").current, service._live.adapter("acme", "default").rewards_by_version()
    async with serving(tmp_path) as service:
        assert service.engine.loaded_versions() == (live,)
        assert service._live.adapter("acme", "default").rewards_by_version() == rewards
        assert (await urn.say(service, "x", "again")).reply.version == live
    with pytest.raises(Unavailable):
        await urn.say(service, "x", "closed")


CHATTER = """
import asyncio, sys
from itertools import count
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from urn_service import JAM, serving, turns

async def run():
    async with serving(Path(sys.argv[1]), JAM) as service:
        for number in count():
            (exchange,) = await turns(service, 1, start=number)
            print(exchange.id, service.replay.step("acme", "default"), flush=True)

asyncio.run(run())
"""
"""Chats, and likes each reply, until it is killed: a line for each feedback that was acknowledged, with the steps so far."""


@pytest.mark.slow
async def test_killed_while_it_learns_it_goes_on(tmp_path: Path) -> None:
    """kill -9: no exchange lost, none trained on more often than allowed, no step twice."""
    rooms = [str(Path(urn.__file__).parent), str(Path(urn.__file__).parents[1])]
    process, told = Python("-c", CHATTER, tmp_path, *rooms), []
    for line in process.stdout:
        told.append(line.split())
        if int(told[-1][1]) >= 3:
            process.kill()  # lines that are in the pipe still come
    process.wait()
    async with serving(tmp_path, JAM) as service:
        await teach(service, 8, start=10_000)
        rows = await service.experiences(ExchangeQuery("acme", limit=10_000))
        assert {id for id, _ in told} <= {row["id"] for row in rows if row["feedback"]}
        assert max(row["times"] for row in rows) <= JAM.replay.max_samplings
        steps = [update["step"] for update in service.replay.updates("acme", "default", 10_000)]
        assert steps == list(range(len(steps), 0, -1))
        assert len(steps) > 3
        assert (await urn.say(service, "x", "after")).reply.version == service.versions("acme").current != ""


@pytest.mark.parametrize("file", quick(["replay.sqlite*", "adapters/acme/default/states.jsonl"]))
async def test_what_is_gone_is_said_and_learning_goes_on_from_what_is_left(tmp_path: Path, file: str) -> None:
    async with serving(tmp_path, JAM) as service:
        await teach(service, 12)
        live = service.versions("acme").current
        assert [(await service.status(tenant)).get("lost", {}) for tenant in (None, "acme")] == [{}, {}]
    for path in tmp_path.glob(file):
        path.unlink()
    async with serving(tmp_path, JAM) as service:
        ((said, count),) = (await service.status())["lost"].items()
        assert count == 1
        assert file.rpartition("/")[2].partition(".")[0] in said.replace(" ", "")
        assert (await service.status("acme"))["scopes"][0]["lost"] == said
        assert service.versions("acme").current == (live if file == "replay.sqlite*" else "")
        await teach(service, 8, start=100)
        mine = service.versions("acme")
        assert live in mine.lineage(mine.current)
        assert gradient_steps_of(mine.current) > gradient_steps_of(live)


@pytest.mark.parametrize("adapter", [pytest.param("default", marks=pytest.mark.long), "mail"])
@pytest.mark.parametrize("gone", quick(["adapters", "adapters/acme/{}", "adapters/acme/{}/versions"]))
async def test_adapters_that_are_gone_are_said_to_be_and_those_that_were_deleted_are_not(
    tmp_path: Path, gone: str, adapter: str
) -> None:
    async with serving(tmp_path, JAM) as service:
        for name in ("mail", "note"):
            await service.create("acme", name)
            await teach(service, 12, adapter=name)
        await teach(service, 12)
        await service.remove("acme", "note")
        assert service.versions("acme", adapter).current
    shutil.rmtree(tmp_path / gone.format(adapter))
    async with serving(tmp_path, JAM) as service:
        ((said, count),) = (await service.status())["lost"].items()
        assert (count, "gone" in said) == (2 if gone == "adapters" else 1, True)
        rows = {row["adapter"]: row["lost"] for row in (await service.status("acme"))["scopes"]}
        assert rows == {"default": "", "mail": ""} | dict.fromkeys(["default", "mail"] if count == 2 else [adapter], said)
        await teach(service, 8, start=100, adapter=adapter)
        assert service.versions("acme", adapter).current


@pytest.mark.parametrize("is_last", quick([True, False]))
async def test_garbage_in_a_log_costs_its_last_line_or_is_said_to_close_the_adapter(tmp_path: Path, is_last: bool) -> None:
    async with serving(tmp_path, JAM) as service:
        await teach(service, 12)
    log = tmp_path / "adapters/acme/default/states.jsonl"
    text = log.read_text()
    log.write_text(f"{text}garbage\n" if is_last else f"garbage\n{text}")
    async with serving(tmp_path, JAM) as service:
        status = await service.status()
        assert (list(status["lost"].values()), status["state"]) == ([1], "ok" if is_last else "degraded")
        assert await metric(service, "learngraph_lost", tenant="acme", adapter="default") == 1
        if not is_last:
            assert "cannot be read" in status["why"]
            with pytest.raises(UserError, match="line 1"):
                await urn.say(service, "x", "refused")
            log.write_text(text)
            assert (await service.status())["state"] == "ok", "nobody has to start it again"
        assert (await urn.say(service, "x", "again")).reply.version == service.versions("acme").current


@pytest.mark.slow
async def test_a_damaged_version_is_withdrawn(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        await teach(service, 20)
        live, back = service.versions("acme").current, service.versions("acme")._log.states.before[-1]
        folder = service.versions("acme").folder(live)
    (folder / "policy.json").write_text("[9, 9, 9, 9]")
    async with serving(tmp_path) as service:
        assert service._live.adapter("acme", "default").live == back
        assert "gone or damaged" in str((await service.status())["lost"])
        assert (await urn.say(service, "x", "again")).reply.version == back
        assert "cannot be loaded" in service.versions("acme").log()[-1]["why"]


async def test_an_adapter_of_another_base_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as service:
        await teach(service, 12)
        assert service.versions("acme").current
    monkeypatch.setattr(urn.UrnEngine, "base", "urn-2")
    monkeypatch.setattr(urn.UrnLearner, "base", "urn-2")
    async with serving(tmp_path) as service:
        assert service._live.adapter("acme", "default").live == ""
        assert (await urn.say(service, "x", "again")).reply.version == ""


def test_engine_and_learner_must_share_their_base(tmp_path: Path) -> None:
    learner = urn.UrnLearner(None)
    learner.base = "other"
    with Replay(tmp_path / "r.sqlite") as replay, pytest.raises(UserError, match="the learner learns on other"):
        Service(urn.UrnEngine(), learner, replay, tmp_path)


@pytest.mark.slow
async def test_chats_go_on_while_versions_change(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        service.engine.pause = 0.001
        stop = asyncio.Event()
        labels: Counter[str] = Counter()

        async def talk(who: int) -> None:
            n = 0
            while not stop.is_set():
                e = await urn.say(service, f"{who} {n}", f"t-{who}-{n}")
                labels[e.reply.version] += 1
                await urn.like(service, e)
                n += 1

        talkers = [asyncio.create_task(talk(who)) for who in range(8)]
        await until(lambda: len(labels) > 5)
        stop.set()
        await asyncio.gather(*talkers)
        assert await metric(service, "learngraph_unfinished_total") == 0


@pytest.mark.slow
@settings(max_examples=4)
@given(st.lists(st.sampled_from(["blue", "red", "wrong"]), min_size=9, max_size=12), st.integers(0, 3))
def test_byte_identical_conversations_of_two_tenants_never_meet(tmp_path_factory: Any, poison: list[str], seed: int) -> None:
    """A rival that says and hears the very same, under the very same ids, and gives any feedback: nothing of ours changes."""

    async def run(folder: Path, with_rival: bool) -> tuple[list[str], Any]:
        async with serving(folder) as service:
            for i, evil in enumerate(poison):
                mine = await urn.say(service, f"say {i}", f"chat-{i}", "acme", seed=seed)
                if with_rival:
                    other = await urn.say(service, f"say {i}", f"chat-{i}", "rival", seed=seed)
                    if evil == "wrong":
                        await service.feedback("rival", other.id, Feedback(-1.0, "never say that"))
                    else:
                        await urn.like(service, other, evil)
                await urn.like(service, mine)
                await until(lambda: idle(service))
            labels = [version.label for version in service.versions("acme").versions()]
            return labels, [
                (row["id"], row["state"], row["times"]) for row in await service.experiences(ExchangeQuery("acme", limit=100))
            ]

    alone = asyncio.run(run(tmp_path_factory.mktemp("alone"), False))
    beside = asyncio.run(run(tmp_path_factory.mktemp("beside"), True))
    assert alone == beside
    assert alone[0]


async def test_metrics_count_what_happened(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        loss = await metric(service, "learngraph_loss")
        await teach(service, 10)
        families = await service.metrics()
        assert all(family.name.startswith("learngraph_") and family.documentation.endswith(".") for family in families)
        assert await metric(service, "learngraph_requests_total") == 10
        assert await metric(service, "learngraph_ttft_seconds_count") == 10
        (durations,) = [family for family in families if family.name == "learngraph_ttft_seconds"]
        counts = [sample.value for sample in durations.samples if sample.name.endswith("_bucket")]
        assert counts == sorted(counts)
        assert len(counts) == 17
        assert await metric(service, "learngraph_replay_records", state="consumed") > 0
        assert await metric(service, "learngraph_gate_total", check="kl", result="passed") > 0
        assert math.isnan(loss)  # before the first step
        assert not math.isnan(await metric(service, "learngraph_loss"))
        status = await service.status("acme")
        assert status["scopes"][0]["updates"][-1]["outcome"] == "live"
        assert status["scopes"][0]["updates"][0]["step"] == 1


def test_without_prometheus_client_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UserError, match=r"pip install 'learngraph\[serve\]'"):
        ServiceMetrics()


class Away(urn.UrnEngine):  # type: ignore[misc]
    """An engine that cannot load just now, until it is `back`."""

    def __init__(self) -> None:
        super().__init__()
        self.back = False

    async def load(self, version: str, folder: Path) -> None:
        if not self.back:
            raise UserError("http://10.0.0.7:8001 cannot be reached: connection refused")
        await super().load(version, folder)


@pytest.mark.slow
async def test_an_engine_that_is_away_for_a_while_is_no_reason_to_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as service:
        await teach(service, 12)
        live, head = service.versions("acme").current, service.replay.head("acme", "default")
        assert live
    away = Away()
    monkeypatch.setattr(urn, "UrnEngine", lambda: away)
    async with serving(tmp_path, learns=False) as service:  # it starts all the same
        with pytest.raises(Unavailable, match="try again") as caught:
            await urn.say(service, "x", "one")
        assert "10.0.0.7" not in str(caught.value)
        assert (service.versions("acme").current, service.replay.head("acme", "default")) == (live, head)
        away.back = True
        await until(lambda: live in away.held)  # by itself
        assert (await urn.say(service, "x", "two")).reply.version == live


@pytest.mark.slow
async def test_what_answers_is_not_deleted_and_what_is_deleted_stays_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        await teach(service, 12)
        live = service.versions("acme").current
        assert live in service.engine.loaded_versions()
        with pytest.raises(AdapterConflict, match="live"):
            await service.remove("acme", "default", live)
        assert live in service.engine.loaded_versions()
        await service.create("acme", "tmp")
        await urn.say(service, "hello", "kept", adapter="tmp")
        await service.create("acme", "busy")
        trainer = service._learning
        assert trainer is not None
        trainer.busy = ("acme", "busy")
        with pytest.raises(Unavailable, match="at work"):
            await service.remove("acme", "busy")
        trainer.busy = None
        service.engine.pause = 0.05  # type: ignore[attr-defined]
        late = asyncio.create_task(urn.say(service, "hello", "late", adapter="tmp"))
        await until(lambda: service.engine.open)
        await service.remove("acme", "tmp")
        await late
        trainer.wake("acme", "default")
        await until(lambda: idle(service))
        assert [row["id"] for row in await service.models("acme")] == ["urn", "urn:busy"]
        assert not (tmp_path / "adapters" / "acme" / "tmp").exists()
        assert await service.experiences(ExchangeQuery("acme", adapter="tmp")) == []
        assert trainer.status()["error"] == ""
        with pytest.raises(UnknownAdapter):
            await urn.say(service, "hello", "again", adapter="tmp")
    (tmp_path / "adapters/acme/busy").rename(tmp_path / "adapters/acme/.gone-busy")  # killed in the middle of a deletion
    async with serving(tmp_path) as service:
        assert [row["id"] for row in await service.models("acme")] == ["urn"]
        assert [row["adapter"] for row in await service.adapters("acme")] == ["default"]
        assert len((await service.status("acme"))["scopes"]) == 1
        assert not (tmp_path / "adapters/acme/.gone-busy").exists()


async def test_a_tenant_hears_nothing_of_the_others(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        trainer = service._learning
        assert trainer is not None
        trainer._turns["bob", "secret"] = AdapterTurn(due=False, failures=5, error="corrupt: /srv/bob/secret/states.jsonl")
        trainer.busy = ("bob", "secret")
        service._running["bob"] += 1
        shown = await service.status("acme")
        assert "bob" not in json.dumps(shown)
        assert (shown["state"], shown["why"], shown["running"]) == ("ok", "", 0)
        assert shown["learner"] == {"state": "idle", "error": ""}
        assert (await service.status("bob"))["learner"]["state"] == "failed"
        assert (await service.status(None))["state"] == "degraded"
        trainer.busy = None


async def test_a_bare_reward_is_answered_with_what_would_teach_more(tmp_path: Path) -> None:
    for number, (chosen, learns, said) in enumerate(
        [
            (changed(OPEN_GATE, loss={"kind": "sdpo"}), True, True),
            (changed(OPEN_GATE, loss={"kind": "sdpo"}), False, False),
            (changed(OPEN_GATE, loss={"kind": "mixed"}), True, False),
            (changed(OPEN_GATE, loss={"kind": "sdpo", "teacher": TeacherSettings(reads_text=False)}), True, False),
        ]
    ):
        async with serving(tmp_path / str(number), chosen, learns=learns) as service:
            assert bool(service.advice(Feedback(reward=1.0))) == said
            reads = learns and service.settings.loss.teacher.reads_text
            assert ("contradict the reward" in service.advice(Feedback(reward=1.0, text="shorter"))) == reads
            assert service.advice(Feedback(reward=-1.0, text="shorter")) == ""
    async with serving(tmp_path / "held", limits=ReplaySettings(held_out_share=1.0)) as service:
        receipt = await urn.like(service, await urn.say(service, "say it", "one"), "blue")
        row, job = await service.experience("acme", "one"), await service.job("acme", receipt.job)
        assert row is not None
        assert job is not None
        assert {row["reason"], job["reason"]} == {service.advice(Feedback(reward=1.0), receipt.state)}
        assert "held out: a share" in row["reason"]
        assert [receipt.state, row["state"], job["state"]] == ["held_out"] * 3
        assert (await service.status("acme"))["scopes"][0]["counts"] == {"held_out": 1}
        assert len(await service.experiences(ExchangeQuery("acme", state="held_out"))) == 1
