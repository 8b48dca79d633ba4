"""Spans and durations by OpenTelemetry: trees of what happened, no words of users, and trace contexts that cross processes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import help_desk as desk
import httpx
import pytest
import urn
from learning_agents import config, make
from opentelemetry import trace
from opentelemetry.metrics import _internal as metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from urn_service import idle, serving
from waiting import until

from learngraph.memory import telemetry
from learngraph.memory.errors import UserError
from learngraph.memory.telemetry import span, take_over_trace, traceparent
from learngraph.tools.serving import chat_server, tenants
from learngraph.tools.training.calls import LearnerModel, LearnerSettings
from learngraph.tools.training.ray_learner import RayTrainer, _LearnerActor

CALLER = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
"""The trace context of somebody who calls."""


class Tracer:
    """What was exported."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()

    def spans(self, name: str = "") -> list[ReadableSpan]:
        return [one for one in self.exporter.get_finished_spans() if one.name.startswith(name)]

    def tree(self) -> list[str]:
        """A line each, in the order of their ends: name < name of the parent (its id, where it is another process's)."""
        names = {one.context.span_id: one.name for one in self.spans()}
        return [
            f"{one.name} < {names.get(one.parent.span_id, f'{one.parent.span_id:016x}') if one.parent else None}"
            for one in self.spans()
        ]

    def durations(self) -> dict[str, int]:
        """Metric with the values of its attributes -> how many were measured."""
        data: Any = self.reader.get_metrics_data()
        found = data.resource_metrics[0].scope_metrics[0].metrics
        return {
            " ".join([one.name, *map(str, point.attributes.values())]): point.count
            for one in found
            for point in one.data.data_points
        }


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracer]:
    """An app that has set OpenTelemetry up. What was set before is set afterwards."""
    found, provider = Tracer(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found.exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    monkeypatch.setattr(metrics, "_METER_PROVIDER", MeterProvider([found.reader]))
    telemetry._histogram.cache_clear()
    yield found
    telemetry._histogram.cache_clear()
    take_over_trace("")


@pytest.mark.parametrize("texts", ["", "true"])
def test_a_conversation_its_feedback_and_the_critic_are_one_tree(
    tracer: Tracer, monkeypatch: pytest.MonkeyPatch, texts: str
) -> None:
    monkeypatch.setenv(telemetry.TEXTS, texts)
    agent, learner, _ = make("reasoning-bank", scope=("tenant", "user_id"))
    who = {"tenant": "acme", "user_id": "mary@example.com"}
    for thread in ("t0", "t1"):
        with trace.get_tracer("app").start_as_current_span(thread):
            agent.invoke({"messages": f"{desk.ticket(0)[0]} I am Mary."}, {"configurable": {"thread_id": thread, **who}})
        learner.feedback(thread, reward=1.0, text="thanks from Mary", **who)
        learner.learn(**who)
    told = [
        "upsert_memory < t1",
        "upsert_memory < invoke_agent reasoning-bank critic",
        "invoke_agent reasoning-bank critic < t1",
    ]
    calls = len(learner.conversation("t1", **who).turns[0].advice)
    assert tracer.tree()[-calls - 4 :] == ["search_memory < t1"] * calls + ["t1 < None", *told]
    first, *_, last = tracer.spans("search_memory")
    assert (first.attributes or {})["gen_ai.memory.record.count"] == 0
    seen = dict(last.attributes or {})
    assert seen["gen_ai.memory.record.count"] == 1
    assert {name: seen[name] for name in seen if "memory" not in name} == {
        "gen_ai.operation.name": "search_memory",
        "gen_ai.agent.name": "agent",
        "gen_ai.conversation.id": "t1",
    }
    (event,) = tracer.spans("upsert_memory")[0].events
    assert event.name == "gen_ai.evaluation.result"
    assert (event.attributes or {})["gen_ai.evaluation.score.value"] == 1.0
    all_told = " ".join(one.to_json() for one in tracer.spans())
    assert "mary@" not in all_told
    if texts:
        assert seen["gen_ai.memory.query.text"] == f"{desk.ticket(0)[0]} I am Mary."
        assert json.loads(str(seen["gen_ai.memory.records"]))[0]["content"]
        assert (event.attributes or {})["gen_ai.evaluation.explanation"] == "thanks from Mary"
    else:
        assert not re.search("Mary|order", all_told)
    assert tracer.durations() == {
        "gen_ai.client.operation.duration search_memory": 2 * calls,
        "gen_ai.client.operation.duration upsert_memory": 4,
        "gen_ai.invoke_agent.duration invoke_agent reasoning-bank critic": 2,
    }


def test_feedback_in_a_trace_of_its_own_is_linked_to_the_conversation(tracer: Tracer) -> None:
    """The trace context lies in the store: another process's learner finds it."""
    agent, learner, _ = make("icrl")
    agent.invoke({"messages": desk.ticket(0)[0]}, config("t0"))
    other = make("icrl", learner.agent.store)[1]
    with trace.get_tracer("app").start_as_current_span("thumb"):
        other.feedback("t0", reward=0.0, tenant="acme")
    (rated,) = tracer.spans("upsert_memory")
    assert tracer.tree()[-2:] == ["upsert_memory < thumb", "thumb < None"]
    assert rated.links[0].context.span_id == tracer.spans("search_memory")[-1].context.span_id


def test_failures_are_told_by_their_kind(tracer: Tracer, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, learner, _ = make("icrl")

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("no route to mary's host")

    monkeypatch.setattr(learner, "_opened", fail)
    agent.invoke({"messages": desk.ticket(0)[0]}, config("t0"))  # it answers without advice
    found = tracer.spans("search_memory")[0]
    assert ((found.attributes or {})["error.type"], found.status.is_ok) == ("OSError", False)
    assert "mary" not in found.to_json()
    with pytest.raises(UserError), span("upsert_memory"):
        raise UserError("mary")
    assert {name.partition(" ")[2] for name in tracer.durations()} == {"search_memory OSError", "upsert_memory UserError"}


def test_without_a_tracer_nothing_is_noted_and_trace_contexts_go_through() -> None:
    with span("search_memory", origins=(pytest.fail("looked at") for _ in "x")) as traced:
        assert (traced.is_on, traced.traceparent, traceparent()) == (False, "", "")
        traced.set({"a": 1})
        traced.fail("it failed")
        traced.add_evaluation("user", 1.0)
    take_over_trace(CALLER)
    assert traceparent() == CALLER
    take_over_trace("<a text of a client>")
    assert traceparent() == ""
    agent, learner, _ = make("icrl")
    agent.invoke({"messages": desk.ticket(0)[0]}, config("t0"))
    assert not any("traceparent" in entry for entry in learner.conversation("t0", tenant="acme").turns[0].advice)


async def test_a_feedback_that_is_served_leads_to_its_gradient_step(tracer: Tracer, tmp_path: Path) -> None:
    """From the header of a request; of several feedbacks, a step is the first one's and is linked to the others."""
    async with serving(tmp_path) as service:
        assert service._learning is not None
        exchanges = [await urn.say(service, f"say {n}", f"chat-{n}") for n in range(8)]
        application = chat_server.make_app(service, tenants.Tenants({"key": tenants.Tenant("acme")}))
        transport = httpx.ASGITransport(application)
        headers = {"authorization": "Bearer key", "traceparent": CALLER}
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            for n, one in enumerate(exchanges):
                said = {"response_id": one.id, "reward": n % 2, "text": "no, Mary said"}
                assert (await client.post("/v1/feedback", json=said)).status_code == 202
        await until(lambda: bool(tracer.spans("gradient_step")) and idle(service))
    given = tracer.spans("upsert_memory")
    step = next(one for one in tracer.spans("gradient_step") if (one.attributes or {})["learngraph.outcome"] != "too few")
    assert step.parent is not None
    assert step.parent.span_id == given[0].context.span_id
    assert {one.context.span_id for one in step.links} < {one.context.span_id for one in given}
    assert {one.context.trace_id for one in (step, *given)} == {int("a" * 32, 16)}  # the caller's
    assert "Mary" not in " ".join(one.to_json() for one in tracer.spans())


def test_a_learner_on_ray_belongs_to_the_trace_of_who_asked(tracer: Tracer) -> None:
    """The trainer and its actor without a cluster between them, which only carries the call."""
    actor, trainer = _LearnerActor(LearnerModel("pocket"), LearnerSettings()), object.__new__(RayTrainer)
    actor.__dict__["_trainer"] = SimpleNamespace(measure=lambda *_: traceparent())
    trainer._ray = SimpleNamespace(get=lambda answer: answer, exceptions=SimpleNamespace(RayError=OSError))
    trainer._actor = SimpleNamespace(call=SimpleNamespace(remote=actor.call))
    take_over_trace(CALLER)
    inside: Any = trainer.measure(None, ())
    (found,) = tracer.spans("learner.measure")
    assert (inside[36:52], inside[3:35]) == (f"{found.context.span_id:016x}", "a" * 32)
    assert found.parent is not None
    assert f"{found.parent.span_id:016x}" == "b" * 16
