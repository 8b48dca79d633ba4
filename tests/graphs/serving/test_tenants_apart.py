"""Tenants of one service: nobody's load, jobs or damaged files are felt by another one."""

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import urn
from claas_settings import OPEN_GATE, changed
from urn_service import idle, serving, teach, turns
from variants import quick
from waiting import until

from learngraph.graphs.serving import learning_task
from learngraph.graphs.serving.service import Service
from learngraph.memory.claas.replay import Replay
from learngraph.memory.errors import AdapterError, Unavailable, UserError
from learngraph.memory.records import ExchangeQuery


@pytest.mark.slow
async def test_many_adapters_get_a_tenant_no_more_turns(tmp_path: Path) -> None:
    async with serving(tmp_path, changed(OPEN_GATE, replay={"min_exchanges": 2, "batch_size": 2})) as service:
        service.learner.fails = [RuntimeError("later")] * 5  # nothing is learned before all have feedback
        for i in range(4):
            await service.create("acme", f"more-{i}")
            await turns(service, 10, adapter=f"more-{i}")
        await turns(service, 10, "bob")
        service.learner.fails = []
        service.learner.seen.clear()

        def owners() -> list[str]:
            """Owners of the steps since bob's first one: before it, his pause after the failure had not ended."""
            return list(
                itertools.dropwhile(lambda owner: owner != "bob", (id.split("/")[0] for id, _, _ in service.learner.seen))
            )

        await until(lambda: len(owners()) >= 8)
        assert abs(owners()[:8].count("bob") - owners()[:8].count("acme")) <= 2


async def test_one_tenants_jobs_push_out_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning_task, "MAX_JOBS", 5)
    async with serving(tmp_path, changed(OPEN_GATE, replay={"min_exchanges": 100})) as service:
        assert service._learning is not None
        with service._learning.exclude("acme", "default"), service._learning.exclude("bob", "default"):  # they all wait
            mine = await service.train("bob", "default")
            waiting = [await service.train("acme", "default") for _ in range(5)]
            with pytest.raises(Unavailable, match="5 train jobs wait already"):
                await service.train("acme", "default")
            assert (await service.job("bob", mine["job"])) is not None
            assert (await service.job("acme", waiting[0]["job"])) is not None
            assert await service.job("acme", mine["job"]) is None
            jobs = service._learning._jobs["acme"]
            jobs[waiting[1]["job"]]["state"] = "done"
            new = await service.train("acme", "default")  # takes the place of one that is done
            assert await service.job("acme", waiting[1]["job"]) is None
            assert await service.job("acme", waiting[0]["job"]) is not None
            assert await service.job("acme", new["job"]) is not None


async def test_a_job_that_is_asked_for_during_a_run_gets_its_own(tmp_path: Path) -> None:
    """A run that began before, and finds too few exchanges for itself, does not end the job."""
    async with serving(tmp_path, changed(OPEN_GATE, rollout={"watch_rewards": 0}, replay={"min_exchanges": 100})) as service:
        task = service._learning
        assert task is not None
        graph, begun, go = task._graph, asyncio.Event(), asyncio.Event()

        class Slow:
            async def ainvoke(self, asked: Any) -> Any:
                found = await graph.ainvoke(asked)
                begun.set()
                await go.wait()
                return found

        task._graph = Slow()  # type: ignore[assignment]
        await turns(service, 4, "acme")
        await begun.wait()
        job = await service.train("acme", "default", 2)
        go.set()
        await until(lambda: len(service.learner.seen) == 2)
        await until(lambda: idle(service))
        told = await service.job("acme", job["job"])
        assert told is not None
        assert (told["state"], told["taken"]) == ("done", 2)


@pytest.mark.parametrize("damage", quick(["log", "record"]))
async def test_damaged_files_of_one_tenant_stop_only_that_tenant(tmp_path: Path, damage: str) -> None:
    async with serving(tmp_path) as service:
        for tenant in ("acme", "bob"):
            await teach(service, 10, tenant)
        live = service.versions("acme").current
        assert live
    if damage == "log":
        (tmp_path / "adapters/bob/default/states.jsonl").write_text("junk\n{}\n")
    else:
        replay = Replay(tmp_path / "replay.sqlite")
        with replay._database.writing("bob") as base:
            base.execute("UPDATE bodies SET body = '{' WHERE n IN (SELECT n FROM records WHERE tenant = 'bob')")
        replay.close()
    async with serving(tmp_path) as service:
        said = await urn.say(service, "hello", "after", "acme")
        assert said.reply.version == live == service.versions("acme").current
        await urn.like(service, said)
        assert (await service.models("acme"))[0]["version"] == live
        assert (await service.experiences(ExchangeQuery("acme")))[0]["id"] == "after"
        if damage == "log":
            with pytest.raises(AdapterError, match=r"states\.jsonl"):
                await service.models("bob")
            with pytest.raises(AdapterError):
                await urn.say(service, "hello", "after", "bob")
        else:
            await urn.say(service, "hello", "after", "bob")
        assert "bob" not in json.dumps(await service.status("acme"))


@pytest.mark.slow
async def test_tenants_read_no_folders_of_the_server(tmp_path: Path) -> None:
    """In the reasons of jobs, records and versions, in the learner's state, whatever the error said."""
    async with serving(tmp_path, poison="poison") as service:
        step = service.learner.step

        def fails(batch: Any, correction: Any) -> Any:
            raise UserError("cannot read /srv/learngraph/secret/learner.json: no such tensor")

        service.learner.step = fails
        await teach(service, 10, "acme")
        shown = [
            await service.status("acme"),
            await service.experiences(ExchangeQuery("acme", limit=100)),
            await service.adapters("acme"),
        ]
        job = await service.train("acme", "default")
        await until(lambda: idle(service))
        shown.append(await service.job("acme", job["job"]))
        assert "learner.json" in json.dumps(shown[-1])
        service.learner.step = step
        service.learner.fails = [
            OSError(28, "No space left on device", "/srv/learngraph/secret/x"),
            RuntimeError("/srv/a/b broke"),
        ]
        await turns(service, 1, "bob")
        job = await service.train("acme", "default")
        await until(lambda: not service.learner.fails)
        shown += [await service.status("acme"), await service.status(None), await service.job("acme", job["job"])]
        service.versions("acme").drop((await made(service)), "cannot be loaded: /srv/learngraph/secret/adapter is corrupt")
        shown.append(await service.adapters("acme"))
        assert "is corrupt" in json.dumps(shown[-1])
        assert "/srv" not in json.dumps(shown)


async def made(service: Service) -> str:
    """A version that is neither live nor dropped."""
    folder = service.versions("acme").place / "new"
    folder.mkdir()
    (folder / "policy.json").write_text(json.dumps([0.0, 0.0, 0.0, 0.5]))
    return service.versions("acme").write(folder, 999, "", urn.BASE)


@pytest.mark.slow
async def test_a_disk_that_is_full_uses_no_feedback_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a library says so in an error of its own."""
    safetensors = pytest.importorskip("safetensors")
    monkeypatch.setattr(learning_task, "MAX_WAIT", 0.05)
    async with serving(tmp_path) as service:
        errors: list[Exception] = []
        for _ in range(12):
            error = UserError("cannot write the new version to /srv/x/y")
            error.__cause__ = safetensors.SafetensorError(
                "Error while serializing: I/O error: No space left on device (os error 28)"
            )
            errors.append(error)
        service.learner.fails = errors
        await turns(service, 10, "acme")
        await until(lambda: not service.learner.fails)
        rows = service.replay.rows(ExchangeQuery("acme", limit=100))
        assert not any(row.state in ("consumed", "rejected") for row in rows)
        await until(lambda: bool(service.versions("acme").current))
