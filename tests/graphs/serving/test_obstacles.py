"""What holds learning up is said of every tenant: in status, health, metrics and jobs, with what would help."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import urn
from claas_settings import OPEN_GATE, changed
from urn_service import JAM, idle, metric, serving, teach, turns
from waiting import until

from learngraph.graphs.claas import CLaaS
from learngraph.graphs.serving import administration, learning_task
from learngraph.graphs.serving.metrics import ServiceMetrics
from learngraph.graphs.serving.obstacles import KINDS, Obstacle
from learngraph.graphs.serving.service import Service
from learngraph.memory.errors import UnknownExchange, UserError
from learngraph.tools.training.learner import _nothing_new


async def shown(service: Service, tenant: str = "acme") -> dict[str, dict[str, Any]]:
    """A tenant's obstacles by kind, which status, health and metrics agree on."""
    (scope,) = (await service.status(tenant))["scopes"]
    found = {row["kind"]: row for row in scope["held_up"]}
    service._surveyed_until = 0.0
    for kind in KINDS:
        samples = [s for family in await service.metrics() for s in family.samples if s.name == "learngraph_held_up"]
        values = [s.value for s in samples if s.labels == {"tenant": tenant, "kind": kind}]
        assert values == ([1.0] if kind in found else []), kind
    missing = sum(row["missing"] for row in found.values())
    assert await metric(service, "learngraph_missing_feedbacks", tenant=tenant) == missing
    return found


class Steps:
    """Gradient steps, each with an end of its own: the reason for which it was skipped, empty where a version went live, or an error."""

    def __init__(self, *ends: str | Exception) -> None:
        self.ends = iter(ends)

    async def ainvoke(self, asked: dict[str, str]) -> dict[str, Any]:
        if isinstance(why := next(self.ends), Exception):
            raise why
        return {"outcome": "skipped" if why else "live", "why": why, "batch": "", "checks": []}


async def test_feedbacks_that_are_missing_are_counted_for_each_tenant(tmp_path: Path) -> None:
    async with serving(tmp_path, changed(CLaaS(), replay={"held_out_share": 0.0})) as service:
        await turns(service, 3)
        await teach(service, 7, tenant="bob")
        (row,) = (await shown(service)).values()
        assert (row["kind"], row["help"], row["missing"]) == ("too few", "5 more feedbacks", 5)
        (row,) = (await shown(service, "bob")).values()
        assert row["help"] == "1 more feedback"
        health = await service.status(None)
        assert health["held_up"] == [{"kind": "too few", "adapters": 2, "missing": 6, "help": KINDS["too few"]}]
        assert "bob" not in str(health)
        await turns(service, 1, tenant="carl")
        job = await service.train("carl", "default", 5)
        await until(lambda: idle(service))
        asked = await service.job("carl", job["job"])
        assert asked is not None
        assert (asked["state"], asked["taken"]) == ("done", 0)
        assert [row["help"] for row in asked["held_up"]] == ["7 more feedbacks"]


async def test_steps_skipped_for_one_reason_have_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "learngraph.trainer")
    clock, steps = [0.0], Steps("alike (.1)", "alike (.2)", "", "alike (.3)", "no words", "alike (.4)", "alike (.5)")
    monkeypatch.setattr(learning_task, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    live = SimpleNamespace(on_live_change=lambda *scope: None)
    task = learning_task.LearningTask(steps, None, ServiceMetrics(), live)  # type: ignore[arg-type]
    task.wake("acme", "default")
    for clock[0] in (0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0):
        await task._learn(("acme", "default"))
    assert [line.removeprefix("acme/default: ") for line in caplog.messages] == [
        "skipped (alike (.1))",
        "live",
        "skipped (no words)",
        "skipped (alike (.5)), and 3 times more since the last such line",
    ]


async def test_a_step_whose_exchanges_are_deleted_meanwhile_is_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "learngraph.trainer")
    steps = Steps(UnknownExchange("its record 'r1' was deleted"), UserError("the disk is full"))
    task = learning_task.LearningTask(steps, None, ServiceMetrics(), None)  # type: ignore[arg-type]
    task.wake("acme", "default")
    for _ in range(2):
        await task._learn(("acme", "default"))
    assert [line.levelname for line in caplog.records] == ["INFO", "ERROR"]


async def test_rewards_that_are_all_alike_teach_nothing_and_learning_rests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with serving(tmp_path, OPEN_GATE, poison="alike") as service:
        await teach(service, 8, word="none of these")
        found = await shown(service)
        assert found["nothing to learn"]["why"] == "all rewards are alike"
        assert "rewards that differ" in found["nothing to learn"]["help"]
        assert found["resting"]["why"].startswith("learning rests: 3 minibatches in a row")
        assert sum("default: skipped" in line for line in caplog.messages) == 1, "one line where the state changes"
        await teach(service, 8, start=8)
        assert not {"nothing to learn", "resting"} & set(await shown(service))


async def test_a_tenant_whose_every_wish_is_learned_is_said_to_be_well(tmp_path: Path) -> None:
    async with serving(tmp_path, OPEN_GATE, poison="alike") as service:
        await teach(service, 8, word="none of these")
        service._learning.turn("acme", "default").why = _nothing_new(2, 0).skipped
        found = await shown(service)
        assert "all that was asked for is learned" in found["learned"]["why"]
        assert not {"nothing to learn", "resting"} & set(found)
        assert await metric(service, "learngraph_missing_feedbacks", tenant="acme") == 0
        service._learning.turn("acme", "default").why = _nothing_new(2, 1).skipped
        assert "nothing to learn" in await shown(service)


async def test_the_bound_and_the_gate_are_named(tmp_path: Path) -> None:
    async with serving(tmp_path, changed(JAM, gate={"max_kl": 0.1})) as service:
        turn, found = 0, dict[str, dict[str, Any]]()
        while "bound" not in found:  # one more feedback is one more step, and not every step reaches it
            await teach(service, 5, start=turn)
            turn, found = turn + 5, await shown(service)
            assert turn < 100
        assert "of 0.1 nats a token" in found["bound"]["why"]
        service.learner.heeds_limits, service.learner.rate = False, 1e6
        await teach(service, 10, start=turn)
        found = await shown(service)
        assert "failed the gate, the last by: kl" in found["gate"]["why"]
        assert found["resting"]["missing"] == 1
        assert {"gate", "resting"} <= {row["kind"] for row in (await service.status(None))["held_up"]}


async def test_one_end_user_alone_is_said_to_teach_nothing_where_several_chat(tmp_path: Path) -> None:
    async with serving(tmp_path, OPEN_GATE) as service:
        await urn.say(service, "hello", "other", user="bob")
        for i in range(12):
            await urn.like(service, await urn.say(service, f"say {i}", f"chat-{i}", user="ann"))
        await until(lambda: idle(service))
        (row,) = (await shown(service)).values()
        assert row["help"].startswith("feedback of other end users")


async def test_a_step_under_way_is_no_lack_of_other_end_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path, OPEN_GATE) as service:
        assert service._learning is not None
        graph, seen = service._learning._graph, list[str]()

        class Watched:
            async def ainvoke(self, asked: Any) -> Any:
                seen.extend(row.why for row in service._obstacles("acme", "default"))
                return await graph.ainvoke(asked)

        monkeypatch.setattr(service._learning, "_graph", Watched())
        await teach(service, 8)
        assert seen
        assert not [why for why in seen if "end user" in why]


async def test_damaged_files_of_one_tenant_are_said_and_hide_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path, OPEN_GATE) as service:
        await turns(service, 1)
        await teach(service, 1, tenant="bob")
        find, calls = service._obstacles, list[str]()

        def fail(tenant: str, adapter: str) -> list[Obstacle]:
            calls.append(tenant)
            if tenant == "bob":
                raise UserError("/srv/bob/states.jsonl is damaged")
            return find(tenant, adapter)

        monkeypatch.setattr(service, "_obstacles", fail)
        for share, asked in ((1e-9, 2), (1e-9, 2), (1e9, 4)):  # a survey is used again for a time that grows with what it took
            monkeypatch.setattr(administration, "SURVEY_SHARE", share)
            service._surveyed_until *= share < 1
            health = await service.status(None)
            assert len(calls) == asked
            assert {row["kind"]: row["adapters"] for row in health["held_up"]} == {"failure": 1, "too few": 1}
            assert "/srv" not in str(health)
