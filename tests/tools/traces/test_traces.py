"""Traces of other tools are read, from their exports and their services, and an agent learns from them as from its own conversations."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import convert_to_openai_messages
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from trace_services import KEYS, RECORDED, TraceServices, recorded

from learngraph.graphs.agents.synapse import SynapseMiddleware
from learngraph.graphs.cli.main import main
from learngraph.memory.conversations.screen import Screen
from learngraph.memory.conversations.trials import MemoryTrial
from learngraph.memory.errors import UserError
from learngraph.memory.storage.record_store import to_json
from learngraph.tools.models.random_tools import RandomToolModel
from learngraph.tools.traces.sources import open_traces
from learngraph.tools.traces.spans import RewardKey, Score, Span, Trace

FILES = {"langsmith": "langsmith", "langfuse": "langfuse", "mlflow": "mlflow", "openinference": "otlp", "openllmetry": "otlp"}
SERVICES = ("langsmith", "langfuse", "mlflow")
GOOD = RewardKey(values={"good": 1.0})
DONE = {
    "t1": ["lookup_order(order='A7')", "reply: It is done."],
    "t2": ["lookup_order(order='B2')", "reply: It is done."],
    "t3": ["read_mail()", "reply: It is done."],
    "t4": ["reply: It is done."],
}
"""Thread -> what is remembered of it: of t3 not the call that followed an order in a mail."""


def of_file(name: str, feedback: RewardKey = GOOD) -> Any:
    return open_traces(str(RECORDED / f"{name}.jsonl"), FILES[name], feedback=feedback)


def kept(learner: Any, tenant: str = "acme") -> dict[str, Any]:
    return {one["id"]: one for one in learner.export(tenant=tenant)}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("name", FILES)
def test_what_each_tools_own_client_records_becomes_the_same_memory(name: str) -> None:
    learner = SynapseMiddleware(InMemoryStore())
    report = learner.import_conversations(of_file(name), tenant="acme")
    assert (report.read, report.rated, report.unrated, report.learned, dict(report.left_out)) == (4, 3, 1, 3, {})
    found = kept(learner)
    assert {id: [step["action"] for turn in one["turns"] for step in turn["steps"]] for id, one in found.items()} == DONE
    ratings = [(one["reward"], one["text"], one["source"]) for id in found for one in found[id]["ratings"]]
    source = f"import {FILES[name]}"
    assert ratings == [(1.0, "", source), (0.0, "It never came.", source), (1.0, "", source)]
    told = json.dumps([step["observation"] + step["action"] for turn in found["t3"]["turns"] for step in turn["steps"]])
    assert "US133" not in told
    again = learner.import_conversations(of_file(name), tenant="acme")
    assert (again.learned, kept(learner)) == (3, found), "twice gives the same"
    for other in ({"tenant": "bob"}, {}):
        elsewhere = learner.import_conversations(of_file(name), **other)
        assert (elsewhere.learned, dict(elsewhere.left_out)) == (0, {"its tenant is 'acme'": 4})


@pytest.mark.parametrize("form", SERVICES)
def test_a_service_gives_what_its_export_does_and_is_read_from_the_last_import_on(form: str) -> None:
    waited = list[float]()
    learner = SynapseMiddleware(InMemoryStore())
    with TraceServices(form, limited=2) as service:
        source = open_traces(service.url, form, project="support", feedback=GOOD, sleep=waited.append)
        assert list(source.read()) == list(of_file(form).read())
        assert waited == [3.0, 3.0]
        assert learner.import_conversations(source, dry_run=True, tenant="acme").learned == 0
        assert kept(learner) == {}
        assert learner.import_conversations(source, tenant="acme").learned == 3
        service.asked.clear()
        assert learner.import_conversations(source, since="2030-01-01", tenant="acme").learned == 0
        learner.import_conversations(source, tenant="acme")
    (begun,) = {str(one.get("min_start_time") or one.get("fromTimestamp") or one.get("filter")) for one in service.asked[-1:]}
    before = datetime.fromisoformat(max(one.at for one in of_file(form).read())) - timedelta(days=7)
    assert begun == (f"timestamp_ms >= {int(before.timestamp() * 1000)}" if form == "mlflow" else before.isoformat())


@pytest.mark.parametrize("form", SERVICES)
def test_a_score_is_written_back_in_the_place_of_the_last_one(form: str) -> None:
    learner = SynapseMiddleware(InMemoryStore())
    with TraceServices(form) as service:
        source = open_traces(service.url, form, project="support", feedback=GOOD)
        (said,) = learner.import_conversations(source, write_back=True, tenant="acme").written
        assert said.startswith("no lift was written back")
        trials = [MemoryTrial(f"synapse/t{n}", f"t{n}", "agent", n / 2, float(n), n == 2, 0.5) for n in (1, 2)]
        learner._conversations({"tenant": "acme"}).trials.put(trials)
        for _ in range(2):
            (said,) = learner.import_conversations(source, write_back=True, tenant="acme").written
    trace = next(one.trace for one in of_file(form).read() if one.id == "t2")
    assert said.startswith(f"wrote learngraph.lift.synapse on trace {trace}: ")
    (score,) = service.scores
    names = {str(score.get(name)) for name in ("key", "name", "assessment_name", "run_id", "traceId", "trace_id")}
    assert {"learngraph.lift.synapse", trace} <= names
    assert isinstance(score.get("score", score.get("value", score.get("feedback", {}).get("value"))), float)


def test_what_goes_wrong_with_a_service_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with TraceServices("langsmith") as service:
        with pytest.raises(UserError, match="has no project 'other': give its name, --project NAME"):
            list(open_traces(service.url, "langsmith", project="other").read())
        for name in KEYS:
            monkeypatch.delenv(name)
        for form, says in (("langsmith", "LANGSMITH_API_KEY"), ("langfuse", "LANGFUSE_PUBLIC_KEY and"), ("mlflow", "MLFLOW_")):
            with pytest.raises(UserError, match=rf"refuses the key \(401\): set {says}"):
                list(open_traces(service.url, form, project="support").read())
    with pytest.raises(UserError, match="cannot be reached"):
        list(open_traces(service.url, "langfuse").read())
    with pytest.raises(UserError, match="services with traces are of langsmith, langfuse, mlflow; got otlp"):
        open_traces(service.url, "otlp")
    with pytest.raises(UserError, match="is a file: give the service's URL"):
        of_file("mlflow").write_score("t", "lift", 1.0, "")


CALL = {"type": "function", "id": "1", "function": {"name": "look", "arguments": '{"order": "A7"}'}}
ASKED = {"role": "user", "content": "Where is it?"}
FORMS: dict[str, tuple[Any, Any]] = {
    "openai": ([ASKED, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "1", "content": "shipped"}],
               {"choices": [{"message": {"role": "assistant", "content": "On its way."}}]}),
    "anthropic": ({"messages": [ASKED, {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "look", "input": {"order": "A7"}}]},
                                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "shipped"}]}]},
                  {"role": "assistant", "content": [{"type": "text", "text": "On its way."}]}),
    "parts": ([{"role": "user", "parts": [{"type": "text", "content": "Where is it?"}]},
               {"role": "assistant", "parts": [{"type": "tool_call", "id": "1", "name": "look", "arguments": '{"order": "A7"}'}]},
               {"role": "tool", "parts": [{"type": "tool_call_response", "id": "1", "response": "shipped"}]}],
              json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "On its way."}]}])),
}  # fmt: skip
"""Inputs and outputs of a model's call."""


@pytest.mark.parametrize("form", FORMS)
def test_messages_of_all_forms_are_read_from_the_calls_of_a_model(form: str) -> None:
    root = Span("r", "", "1", {"request": "x", "more": "y"}, None, False)
    calls = [Span("a", "r", "2", [ASKED], None, True), Span("b", "r", "3", *FORMS[form], True)]
    found = Trace("t", [*calls, root]).conversation(RewardKey())
    assert [(one.type, str(one.text)) for one in found.messages] == [
        ("human", "Where is it?"), ("ai", ""), ("tool", "shipped"), ("ai", "On its way."),
    ]  # fmt: skip
    assert found.messages[1].tool_calls[0]["args"] == {"order": "A7"}  # type: ignore[attr-defined]
    assert found.messages[2].name == "look"
    plain = Trace("t", [Span("r", "", "1", {"question": "Where?"}, "Here.", False)]).conversation(RewardKey())
    assert [str(one.text) for one in plain.messages] == ["Where?", "Here."]


TALK = Span("r", "", "1", [ASKED], {"role": "assistant", "content": "Here."}, False)


@pytest.mark.parametrize(
    ("trace", "says"),
    [
        (Trace("t", [TALK], scores=[Score("a", 1), Score("b", 2)]), "it has feedback for a, b: say which is the reward"),
        (Trace("t", [TALK], scores=[Score("a", "good")]), "its a is 'good': say what that is worth, --feedback-values good=1"),
        (Trace("t", [TALK], is_done=False), "it is not finished"),
        (Trace("t", [Span("r", "", "1", {"a": 1}, None, False)]), "it has no talk of a user with an agent"),
        (Trace("t", [Span("r", "", "1", [{"role": "nobody", "content": "x"}], None, True)]), "its messages cannot be read"),
    ],
)
def test_what_cannot_be_read_is_said_and_stops_nothing(trace: Trace, says: str) -> None:
    assert says in trace.conversation(RewardKey()).problem
    lift = Score("learngraph.lift.synapse", 0.5)
    assert Trace("t", [TALK], scores=[lift, Score("user", 1)]).conversation(RewardKey()).reward == 1.0


def test_a_trace_of_the_agents_own_turn_adds_its_feedback_alone(tmp_path: Path) -> None:
    """Its messages have the ids that the agent's process recorded; feedback that was given here stays."""
    learner = SynapseMiddleware(InMemoryStore())
    agent = create_agent(RandomToolModel(), [], middleware=[learner], checkpointer=InMemorySaver())
    rows = []
    for thread in ("a", "b"):
        out = agent.invoke({"messages": "Hello"}, {"configurable": {"thread_id": thread, "tenant": "acme"}})
        said = [{"type": one.type, "content": one.text, "id": one.id} for one in out["messages"]]
        stats = {"user": {"avg": 1.0, "comments": ["fine"]}}
        rows.append({"id": thread * 3, "start_time": "2026-11-26T10:00:00", "outputs": {"messages": said}, "feedback_stats": stats,
                     "extra": {"metadata": {"thread_id": thread}}})  # fmt: skip
    learner.feedback("b", reward=-1.0, tenant="acme")
    before = {id: one["turns"] for id, one in kept(learner).items()}
    (tmp_path / "runs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert learner.import_conversations(open_traces(str(tmp_path / "runs.jsonl"), "langsmith"), tenant="acme").learned == 2
    found = kept(learner)
    assert {id: one["turns"] for id, one in found.items()} == before
    assert [(one["ratings"][0]["reward"], one["ratings"][0]["source"]) for one in found.values()] == [
        (1.0, "import langsmith"),
        (-1.0, "user"),
    ]


def test_imported_conversations_are_held_rated_and_screened_as_those_of_the_agent() -> None:
    learner = SynapseMiddleware(InMemoryStore(), hold=True, raters=("user",), screen=Screen(unlearned_tools=("read_mail",)))
    report = learner.import_conversations(of_file("langfuse"), tenant="acme")
    assert report.left_out == {"feedback of source 'import langfuse' is not taken: raters are user": 3}
    first, *_ = kept(learner)["t3"]["turns"][0]["steps"]
    assert first["action"] == "reply: It is done."  # neither the mail, nor the call that it asked for
    learner = SynapseMiddleware(InMemoryStore(), hold=True, user="user_id", reward_range=(1, 5))
    report = learner.import_conversations(of_file("langfuse", RewardKey(values={"good": 5.0, "False": 0.0})), tenant="acme")
    assert report.learned == 0
    assert report.left_out == {"a reward is a number from 1 to 5, got 0": 1}
    assert [*learner.quarantine_reasons(tenant="acme")] == ["t1", "t3"]
    learner.release("t3", tenant="acme")
    assert [(one.score, one.user) for one in learner._conversations({"tenant": "acme"}).trajectories.all()] == [
        (1.0, "user_id=ann")
    ]


def test_a_thumb_of_a_trace_is_the_best_or_the_worst_of_stars() -> None:
    learner = SynapseMiddleware(InMemoryStore(), reward_range=(1, 5))
    learner.import_conversations(of_file("langfuse", RewardKey(values={"good": 3.0})), tenant="acme")
    assert [one["ratings"][0]["reward"] for one in kept(learner).values() if one["ratings"]] == [1.0, -1.0, 0.0]


def test_what_an_unguarded_learner_exports_loses_the_words_of_tools(tmp_path: Path) -> None:
    """Of its trajectories, too, which have no messages: they are told again, step by step."""
    learner, other = SynapseMiddleware(InMemoryStore(), screen=None), SynapseMiddleware(InMemoryStore())
    learner.import_conversations(of_file("mlflow"), tenant="acme")
    exported = list(learner.export(tenant="acme"))
    trajectories = [to_json(one) for one in learner._conversations({"tenant": "acme"}).trajectories.all()]
    assert "US133" in json.dumps(exported)
    for rows in (exported, trajectories):
        (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, rows)))
        assert other.import_trajectories(tmp_path / "all.jsonl", tenant="acme") == 3
        found = kept(other)["t3"]["turns"][0]["steps"]
        assert [step["action"] for step in found] == DONE["t3"]
        assert "US133" not in json.dumps([step["observation"] for step in found])
        other.forget(tenant="acme")


def test_the_command_imports_conversations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("judging_app.py").write_text("def judge(messages):\n    return float('broken' in messages[0].text), 'because'\n")
    talks = [
        {"id": f"c{n}", "messages": convert_to_openai_messages(list(one.messages))}
        for n, one in enumerate(of_file("mlflow").read())
    ]
    Path("talks.jsonl").write_text("\n".join(map(json.dumps, [*talks, {"messages": [ASKED], "reward": 1}, {"messages": "x"}])))
    command = [
        "memory",
        "import",
        "talks.jsonl",
        "--from",
        "openai",
        "--into",
        "kept",
        "--scope",
        "tenant=acme",
        "--reward",
        "judging_app:judge",
    ]
    assert main([*command, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("read 6 traces: 4 with a reward or words, 0 without\n")
    assert "left out, 2 times: it has no talk of a user with an agent" in said
    assert main(command) == 0
    assert "kept learns from 4 rated turns of them" in capsys.readouterr().out
    learner = SynapseMiddleware("kept")
    assert {id: one["ratings"][0]["reward"] for id, one in kept(learner).items()} == {
        "c0": 1.0,
        "c1": 0.0,
        "c2": 0.0,
        "c3": 0.0,
    }
    learner.close()
    for wrong, says in (
        (["talks.jsonl", "--into", "x"], "if these are conversations"),
        (["http://127.0.0.1:9", "--into", "x"], "--from langsmith, langfuse, mlflow, otlp or openai"),
        (["talks.jsonl", "--from", "langsmith", "--into", "x"], "no traces of langsmith"),
        (["talks.jsonl", "--from", "openai"], "either --into MEMORY or, for"),
        (["talks.jsonl", "--from", "openai", "--learner", "judging_app:judge"], "MODULE:NAME of a ScopedLearner"),
        (["nowhere", "--from", "openai", "--into", "x"], "cannot read nowhere"),
        ([*command[2:], "--feedback-values", "good"], "asked for NAME=VALUE, such as good=1; got good"),
        ([*command[2:], "--since", "yesterday"], "a time is written as 2026-11-01"),
    ):
        assert main(["memory", "import", *wrong]) == 2
        assert says in capsys.readouterr().err


def test_recorded_rows_are_those_of_the_clients() -> None:
    assert {name: len(recorded(name)) for name in FILES} == {
        "langsmith": 6,
        "langfuse": 9,
        "mlflow": 4,
        "openinference": 2,
        "openllmetry": 2,
    }
