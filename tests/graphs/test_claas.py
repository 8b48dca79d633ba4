"""CLaaS as graphs: in somebody's LangGraph app, node by node, and after a kill -9 anywhere."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import urn
from claas_settings import OPEN_GATE, changed
from forks import run_python
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.messages.utils import convert_to_openai_messages
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command
from scipy.stats import chisquare
from typing_extensions import TypedDict

from learngraph.graphs import claas
from learngraph.graphs.claas import CLaaS
from learngraph.memory.claas.adapters import Adapters
from learngraph.memory.claas.replay import Replay
from learngraph.memory.claas.settings import LoRA, ReplaySettings, TeacherSettings
from learngraph.memory.errors import AdapterError, UserError
from learngraph.memory.records import (
    ChatRequest,
    Check,
    Correction,
    Exchange,
    ExchangeQuery,
    Feedback,
    Minibatch,
    Piece,
    Reply,
    Update,
)
from learngraph.memory.storage.checkpoints import open_checkpoints_async
from learngraph.memory.storage.serializer import serializer
from learngraph.nodes.learn.chat_turn import AwaitFeedback, KeepFeedback, RecordExchange, Respond
from learngraph.nodes.learn.gradient_step import (
    CommitStep,
    Correct,
    Drop,
    GateCandidate,
    Promote,
    SampleMinibatch,
    Skip,
    TakeGradientStep,
    describe_run,
    draw_retained,
    newest_rehearsal,
    settled_questions,
)
from learngraph.nodes.prompt import PROMPTS_DIR
from learngraph.tools.models import models


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[Replay]:
    with Replay(tmp_path / "replay.sqlite", ReplaySettings(held_out_share=0.0)) as opened:
        yield opened


@pytest.fixture
def versions(tmp_path: Path) -> Callable[[str, str], Adapters]:
    known: dict[tuple[str, str], Adapters] = {}

    def of(tenant: str, adapter: str) -> Adapters:
        if (tenant, adapter) not in known:
            known[tenant, adapter] = Adapters(tmp_path / "adapters", tenant, adapter, keep_versions=100)
        return known[tenant, adapter]

    return of


# Serving, in somebody's app


class App(TypedDict):
    messages: list[Any]
    id: str
    request: ChatRequest
    reply: Reply
    job: str
    state: str


def app(replay: Replay, **compile: Any) -> Any:
    """An agent whose turn is CLaaS's serving graph, as a subgraph."""
    builder = StateGraph(App)
    builder.add_node("ask", lambda state: {"request": ChatRequest(tuple(convert_to_openai_messages(state["messages"])))})
    builder.add_node("serve", claas.build_serving(urn.UrnEngine(), replay))
    builder.add_node("thank", lambda state: {"messages": [*state["messages"], AIMessage(state["reply"].text)]})
    for one, two in ((START, "ask"), ("ask", "serve"), ("serve", "thank"), ("thank", END)):
        builder.add_edge(one, two)
    return builder.compile(**compile)


async def test_an_app_waits_for_feedback_and_resumes_with_it(tmp_path: Path, replay: Replay) -> None:
    config: Any = {"configurable": {"thread_id": "t"}}
    async with open_checkpoints_async(tmp_path / "checkpoints.sqlite") as saver:
        graph = app(replay, checkpointer=saver)
        stopped = await graph.ainvoke({"messages": [HumanMessage("a colour?")], "id": "turn-1"}, config)
        (question,) = stopped["__interrupt__"]
        assert question.value["id"] == "turn-1"
        row = replay.get("default", "turn-1")
        assert row is not None
        assert (row.state, row.exchange.reply.text) == ("pending", question.value["text"])
    async with open_checkpoints_async(tmp_path / "checkpoints.sqlite") as saver:  # another process, days later
        graph = app(replay, checkpointer=saver)
        again = await graph.ainvoke(Command(resume={"reward": 7}), config)
        assert "from -1 to 1, got 7" in again["__interrupt__"][0].value["error"]
        done = await graph.ainvoke(Command(resume={"success": True, "text": "thanks"}), config)
    assert done["state"] == "ready"
    assert done["messages"][-1].content == question.value["text"]
    row = replay.get("default", "turn-1")
    assert row is not None
    assert row.exchange.feedback == Feedback(1.0, "thanks")
    assert row.exchange.request.messages == ({"role": "user", "content": "a colour?"},)


def test_the_same_without_an_event_loop(replay: Replay) -> None:
    graph = app(replay, checkpointer=InMemorySaver(serde=serializer()))
    config: Any = {"configurable": {"thread_id": "t"}}
    pieces = list(
        graph.stream({"messages": [HumanMessage("a colour?")], "id": "one"}, config, stream_mode="custom", subgraphs=True)
    )
    said = [item for _, item in pieces]
    assert "".join(item.text for item in said if isinstance(item, Piece)) == said[-1].reply.text
    assert graph.invoke(Command(resume="blue would be right"), config)["job"]
    row = replay.get("default", "one")
    assert row is not None
    assert row.exchange.feedback == Feedback(None, "blue would be right")


async def test_without_a_checkpointer_a_turn_ends_where_it_would_wait(replay: Replay) -> None:
    graph = claas.build_serving(urn.UrnEngine(), replay)
    state = {"id": "one", "request": urn.request("x"), "tenant": "acme", "family": "colours"}
    items = [item async for item in graph.astream(state, stream_mode="custom")]
    assert isinstance(items[-1], Exchange)
    assert (items[-1].tenant, items[-1].family, items[-1].base) == ("acme", "colours", "urn-1")
    assert replay.add_feedback("acme", "one", Feedback(1.0)).state == "ready"


async def test_nodes_work_alone(replay: Replay) -> None:
    state: dict[str, Any] = {"id": "one", "request": urn.request("x")}
    state |= await Respond(urn.UrnEngine()).ainvoke(state)
    assert (state["reply"].version, state["step"]) == ("", 0)
    state |= RecordExchange(replay, "urn-1", clock=lambda: 5.0)(state)  # type: ignore[arg-type]
    row = replay.get("default", "one")
    assert row is not None
    assert row.exchange.created == 5.0
    state |= {"feedback": Feedback(0.5)}
    state |= KeepFeedback(replay)(state)  # type: ignore[arg-type]
    assert (state["state"], state["repeated"]) == ("ready", False)
    assert AwaitFeedback().role == "compute"


def test_a_node_runs_twice_and_nothing_changes(replay: Replay) -> None:
    """As after a kill behind its effects: one record, one job."""
    state: dict[str, Any] = {"id": "one", "request": urn.request("x", seed=1)}
    state |= Respond(urn.UrnEngine()).invoke(state)
    for _ in range(2):
        RecordExchange(replay, "urn-1", clock=lambda: 5.0)(state)  # type: ignore[arg-type]
    state["feedback"] = Feedback(1.0)
    jobs = [KeepFeedback(replay)(state)["job"] for _ in range(2)]  # type: ignore[arg-type]
    assert jobs[0] == jobs[1]
    assert replay.counts() == {"ready": 1}


# Learning


async def filled(replay: Replay, n: int = 8, tenant: str = "acme") -> None:
    graph = claas.build_serving(urn.UrnEngine(), replay)
    for i in range(n):
        await graph.ainvoke({"id": f"e{i}", "request": urn.request(f"say {i}", seed=i), "tenant": tenant})
        row = replay.get(tenant, f"e{i}")
        assert row is not None
        replay.add_feedback(tenant, f"e{i}", Feedback(1.0 if row.exchange.reply.text == "blue" else -1.0))


async def begun(replay: Replay, versions: Any, settings: CLaaS = OPEN_GATE, **learner: Any) -> tuple[Any, Adapters, Any]:
    """A learner, its versions, and a function that takes a step from eight exchanges with feedback, or with what was given since."""
    made = urn.UrnLearner(versions, **learner)
    graph = claas.build_learning(made, replay, versions, settings)
    await filled(replay)
    return made, versions("acme", "default"), lambda **more: graph.ainvoke({"tenant": "acme", **more})


async def test_a_step_by_hand(replay: Replay, versions: Any) -> None:
    learner = urn.UrnLearner(versions)
    graph = claas.build_learning(learner, replay, versions, OPEN_GATE)
    scope = {"tenant": "acme"}
    early = await graph.ainvoke(scope)
    assert (early["outcome"], describe_run(early)) == ("too few", "too few (fewer than 8 exchanges are ready)")
    await filled(replay)
    done = await graph.ainvoke(scope)
    live = versions("acme", "default").current
    assert (done["outcome"], done["update"].version, done["candidate"]) == ("live", live, live)
    assert [check.name for check in done["checks"]] == ["lineage", "entropy", "kl"]
    assert [one.id for one in replay.minibatch(done["batch"]).exchanges] == [f"e{n}" for n in range(8)]  # oldest first
    assert describe_run(done) == f"live {live} (passed the gate)"
    assert (replay.step("acme", "default"), replay.head("acme", "default")) == (1, live)
    assert learner.logits(live)[2] > max(learner.logits(live)[i] for i in (0, 1, 3))
    (row,) = replay.updates("acme", "default")
    assert (row["step"], row["kept"], row["age"], row["version"]) == (1, 8, 0, live)


@pytest.mark.parametrize(("corrections", "spared", "has_gate"), [(1, 0, True), (3, 1, True), (12, 4, True), (12, 0, False)])
async def test_the_newest_corrections_are_left_to_the_gate(
    replay: Replay, versions: Any, corrections: int, spared: int, has_gate: bool
) -> None:
    """What a version has just learned it says by heart. One correction alone, for which nothing else could stand, is learned at once."""
    await filled(replay, 12)
    for n in range(12 - corrections, 12):
        replay.add_feedback("acme", f"e{n}", Feedback(-1.0, correction="blue"))
    sample = SampleMinibatch(replay, versions, ReplaySettings(batch_size=12), urn.BASE, has_gate=has_gate)
    read = {one.id for one in replay.minibatch(sample({"tenant": "acme", "adapter": "default"})["batch"]).exchanges}
    assert {f"e{n}" for n in range(12)} - read == {f"e{n}" for n in range(12 - spared, 12)}


@pytest.mark.parametrize(("enabled", "spared"), [(True, 4), (False, 0)])
async def test_a_step_holds_the_newest_liked_replies_that_no_gate_asks_for(
    replay: Replay, versions: Any, enabled: bool, spared: int
) -> None:
    await filled(replay)
    for n in range(8):
        replay.add_feedback("acme", f"e{n}", Feedback(1.0))
    learner, held = urn.UrnLearner(versions), set[str]()
    real = learner.step

    def take(batch: Minibatch, correction: Correction) -> Update:
        held.update(one.id for one in batch.rehearsal)
        return real(batch, correction)

    learner.step = take  # type: ignore[method-assign]
    await claas.build_learning(learner, replay, versions, changed(OPEN_GATE, gate={"enabled": enabled})).ainvoke(
        {"tenant": "acme"}
    )
    assert held == {f"e{n}" for n in range(8 - spared)}


async def test_a_step_rehearses_what_a_version_before_it_learned_in_its_questions_newest_words(
    replay: Replay, versions: Any
) -> None:
    """Nothing that no step drew, or of a line that was rolled back; nor what a user has changed his mind on since."""
    _, mine, step = await begun(replay, versions)
    row = replay.get("acme", "e1")
    assert row is not None
    parts = ChatRequest(({"role": "user", "content": [{"type": "text", "text": "say 1"}]},))
    lot = (await step())["batch"]
    for n in range(8):
        replay.add_feedback("acme", f"e{n}", Feedback(correction="blue"))
    drawn = {f"e{n}" for n in range(8)}
    replay.append(replace(row.exchange, id="new", feedback=Feedback(correction="blue")))
    after = replace(replay.minibatch(lot), parent=mine.current)

    def rehearsal(lot: Minibatch) -> tuple[Exchange, ...]:
        return newest_rehearsal(replay, mine, lot, OPEN_GATE.gate, replay.corrections("acme", "default", 99))

    assert {one.id for one in rehearsal(after)} == drawn
    assert rehearsal(replace(after, parent="")) == ()
    replay.append(replace(row.exchange, id="other", request=parts, feedback=Feedback(correction="red")))
    assert {one.id for one in rehearsal(after)} == drawn - {"e1"}


async def test_step_and_gate_share_the_retention_set_but_for_settled_questions(replay: Replay, versions: Any) -> None:
    """Corrected three times in the same words: who says now this and now that has not made up his mind."""
    learner, *_ = await begun(replay, versions)
    given = {"one": (), "two": ("red", "blue", "red", "red"), "three": ("blue", "red", "red", "red"), "four": ("red", "red")}
    row = replay.get("acme", "e0")
    assert row is not None
    chats = {asked: replace(row.exchange, id=asked, request=urn.request(asked)) for asked in given}
    for asked, saids in given.items():
        for n, said in enumerate(saids):
            replay.append(replace(chats[asked], id=f"{asked}{n}", feedback=Feedback(correction=said)))

    def find_settled() -> dict[str, str]:
        return settled_questions(replay.corrections("acme", "default", 99), replay.teachers("acme", "default"))

    settled = find_settled()
    assert settled == {"three": "red"}
    for n in range(4):  # one end user alone, and then another one
        given_by = replace(chats["one"], id=f"five{n}", user="bob" if n == 3 else "ann", request=urn.request("five"))
        replay.append(replace(given_by, feedback=Feedback(correction="red")))
        assert ("five" in find_settled()) == (n == 3)
    plain = Minibatch("b", "acme", "default", 1, "", (row.exchange,), 0, rehearsal=(chats["three"],))
    assert draw_retained(plain, [*chats.values()], settled).rehearsal == plain.rehearsal  # no version learned it yet
    known = replace(plain, rehearsal=(replace(chats["three"], feedback=Feedback(correction="red")),))
    (_, restated) = draw_retained(known, [*chats.values()], settled).rehearsal
    assert (restated.id, restated.feedback) == ("three", Feedback(correction="red"))
    real, held, read = (learner.step, learner.measure), list[str](), list[tuple[str, str]]()

    def take(batch: Minibatch, correction: Correction) -> Update:
        held.extend(one.id for one in batch.retained)
        return real[0](batch, correction)

    def measure(label: str, exchanges: Any, **_: Any) -> Any:
        read.extend((label, one.id) for one in exchanges if one.id in given)
        return real[1](label, [one if one.reply.token_ids else replace(one, reply=chats["one"].reply) for one in exchanges])

    learner.step, learner.measure = take, measure
    graph = claas.build_learning(learner, replay, versions, OPEN_GATE, retention=[*chats.values()])
    done = await graph.ainvoke({"tenant": "acme"})
    assert "retention" in [check.name for check in done["checks"]]
    assert sorted(held) == ["four", "two"]
    by_gate, by_steps = [(done["candidate"], "one"), ("", "one")], [("", "two"), ("", "three"), ("", "four")]
    assert read == [*by_steps, *by_gate]  # the live one is the base


@pytest.mark.parametrize("kl", [0.0, 99.0])
async def test_the_gate_reads_what_the_step_learned_from_and_of_the_live_version_only_where_it_decides(
    replay: Replay, versions: Any, kl: float
) -> None:
    learner, mine, step = await begun(replay, versions)
    measure, read = learner.measure, list[Any]()
    learner.measure = lambda label, texts, **more: read.append((label, texts)) or replace(measure(label, texts, **more), kl=kl)
    live, done = mine.current, await step()
    learned = {one.id for one in replay.minibatch(done["batch"]).exchanges}
    assert done["outcome"] == "live"  # as far from the base model as the live one
    labels = [label for label, texts in read if {one.id for one in texts} == learned]
    assert labels == [done["candidate"], *[live] * (kl > 0)]


async def test_a_version_that_half_learned_corrections_does_not_go_live(replay: Replay, versions: Any) -> None:
    learner, mine, step = await begun(replay, versions)
    for n in range(3):
        replay.add_feedback("acme", f"e{n}", Feedback(-1.0, correction="blue"))
    real = learner.measure

    def measure(label: str, exchanges: Any, **_: Any) -> Any:
        """What the base model says and nobody else, and what nobody says: the replies that should have been."""
        rows = tuple((-0.1,) if not label and one.reply.token_ids else (-9.0,) for one in exchanges)
        return replace(real(label, [one for one in exchanges if one.reply.token_ids]), logprobs=rows)

    learner.measure = measure
    done = await step()
    assert (done["outcome"], mine.current) == ("dropped", "")
    assert "corrected replies lost: 3 of 3" in done["why"]


async def test_the_gate_reads_a_correction_as_a_step_imitates_it(replay: Replay, versions: Any) -> None:
    """A step strips it. With a space or a line more the gate would ask for another reply, which nobody learned."""
    learner, _, step = await begun(replay, versions)
    replay.add_feedback("acme", "e0", Feedback(-1.0, correction=" blue\n"))
    real, read = learner.measure, list[str]()

    def measure(label: str, exchanges: Any, **_: Any) -> Any:
        read.extend(one.reply.text for one in exchanges if not one.reply.token_ids)
        return real(label, [replace(one, reply=replace(one.reply, token_ids=(2, urn.END))) for one in exchanges])

    learner.measure = measure
    await step()
    assert read == ["blue", "blue"]  # by the candidate and by the live version


async def test_the_first_step_counts_what_is_held_out(tmp_path: Path, versions: Any) -> None:
    """B_min feedbacks are enough, wherever they went: the first update comes within 10 scenarios."""
    for seed in range(5):
        with Replay(tmp_path / f"{seed}.sqlite", ReplaySettings(held_out_share=0.3)) as replay:
            graph = claas.build_learning(urn.UrnLearner(versions), replay, versions, OPEN_GATE)
            await filled(replay, 8, f"tenant-{seed}")
            assert (await graph.ainvoke({"tenant": f"tenant-{seed}"}))["outcome"] == "live"


@pytest.mark.slow
def test_minibatches_of_the_paper_are_uniform(tmp_path: Path, versions: Any) -> None:
    """A family, and an end user, with a tenth of the buffer has a tenth of the draws; no record is drawn more often than others."""
    settings, draws = replace(CLaaS.paper().replay, batch_size=4), 800
    drawn: Counter[str] = Counter()
    with Replay(tmp_path / "replay.sqlite", settings) as replay:
        for i in range(40):
            rare = i % 10 == 0
            family, user = ("rare", "ann") if rare else ("common", "bob")
            given = Feedback(1.0 if i % 4 == 0 else -1.0, "no")
            reply = Reply("red", (7,), (0,), (-1.0,))
            request = ChatRequest(({"role": "user", "content": "go"},))
            replay.append(Exchange(f"e{i}", "acme", request, reply, urn.BASE, family=family, user=user, feedback=given))
        for seed in range(draws):
            batch = SampleMinibatch(replay, versions, settings, urn.BASE, seed=seed)({"tenant": "acme", "adapter": "default"})[
                "batch"
            ]
            drawn.update(one.id for one in replay.minibatch(batch).exchanges)
            replay.release(batch, "only counted")
    assert drawn.total() == 4 * draws
    assert chisquare([drawn[f"e{i}"] for i in range(40)]).pvalue > 1e-3
    rare_share = sum(drawn[f"e{i}"] for i in range(0, 40, 10)) / drawn.total()
    assert abs(rare_share - 0.1) < 4 * (0.1 * 0.9 / drawn.total()) ** 0.5  # half of the draws if families took turns


async def test_what_cannot_be_learned_goes_back_and_does_not_come_for_ever(replay: Replay, versions: Any) -> None:
    _learner, mine, step = await begun(replay, versions, changed(OPEN_GATE, replay={"positive_share": None}), poison="alike")
    for i in range(8):
        replay.add_feedback("acme", f"e{i}", Feedback(-1.0, "no"))
    outcomes = []
    while (done := await step())["outcome"] != "too few":
        outcomes.append((done["outcome"], done["why"]))
    assert outcomes == [("skipped", "all rewards are alike")] * 8
    assert replay.counts("acme") == {"consumed": 8}
    assert not mine.versions()


async def test_versions_that_fail_halve_the_step_and_leave_its_limits(replay: Replay, versions: Any) -> None:
    """A limit below the distance of the live version would scale away what it has learned, and each version would fail more surely."""
    learner, mine, step = await begun(replay, versions)
    live = (await step())["candidate"]
    found = []
    for _ in range(3):
        batch = SampleMinibatch(replay, versions, OPEN_GATE.replay, urn.BASE)({"tenant": "acme", "least": 2})["batch"]
        correction = Correct(learner, replay, versions, OPEN_GATE.gate)({"tenant": "acme", "batch": batch})["correction"]
        found.append((correction.scale, correction.max_kl))
        label = learner.step(replay.minibatch(batch), correction).version
        replay.commit(batch, label, {})
        Drop(replay, versions)({"tenant": "acme", "candidate": label, "checks": [], "why": "held-out feedback"})
    assert found == [(1.0, 8.1), (0.5, 8.1), (0.25, 8.1)]
    assert mine.drops_in_a_row == 3
    assert mine.current == live


async def test_the_learner_waits_for_feedback_on_what_it_has_become(replay: Replay, versions: Any) -> None:
    """All feedback is on replies of the base model: a step, and then none before there is feedback on the new version, or a job asks."""
    graph = claas.build_learning(urn.UrnLearner(versions), replay, versions, changed(OPEN_GATE, rollout={"max_lead": 1}))
    await filled(replay, 16)
    assert (await graph.ainvoke({"tenant": "acme"}))["outcome"] == "live"
    done = await graph.ainvoke({"tenant": "acme"})
    assert (done["outcome"], "1 steps from replies of older versions" in done["why"]) == ("too few", True)
    live = versions("acme", "default").current
    exchange = replay.rows(ExchangeQuery("acme", limit=1))[0].exchange
    newer = replace(exchange, id="newer", reply=replace(exchange.reply, version=live), step=1, feedback=None)
    replay.append(newer)
    assert (await graph.ainvoke({"tenant": "acme"}))["outcome"] == "too few"
    replay.add_feedback("acme", "newer", Feedback(-1.0))
    assert (await graph.ainvoke({"tenant": "acme"}))["outcome"] == "live"
    assert (await graph.ainvoke({"tenant": "acme", "least": 2}))["outcome"] == "live"


def test_a_model_brings_its_own_words_for_the_teacher(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Beside its weights; the user's folder goes first, and the package's prompt is the last."""
    own, ours = str(models.GUARD), TeacherSettings()
    with caplog.at_level("INFO", "learngraph.claas"):
        assert claas.read_hindsight(own, ours).startswith("feedback : $feedback")
        assert "The user then said of your answer:\n<feedback>" in claas.read_hindsight("no/such-model", ours)
        assert claas.read_hindsight(own, TeacherSettings(prompts="paper")).startswith("reply : $reply")
        (tmp_path / "claas").mkdir()
        assert claas.read_hindsight(own, ours, tmp_path).startswith("feedback : $feedback")
        (tmp_path / "claas" / "hindsight.md").write_text("## user\nMind this: $feedback\n")
        assert claas.read_hindsight(own, ours, tmp_path) == "Mind this: $feedback"
    named = [Path(record.getMessage().rpartition(" by ")[2]) for record in caplog.records]
    assert [path.parents[1] for path in named] == [models.GUARD, PROMPTS_DIR, models.GUARD / "paper", models.GUARD, tmp_path]
    assert all(path.is_file() for path in named)


async def test_errors_of_the_machine_are_errors(replay: Replay, versions: Any) -> None:
    learner, _mine, step = await begun(replay, versions)
    full = UserError("no room")
    full.__cause__ = OSError(28, "No space left on device")
    for error in (full, AdapterError("no room: a version is damaged")):
        learner.fails = [error]
        with pytest.raises(UserError, match="no room"):
            await step()
    assert (await step())["batch"] == "acme/default/1"


async def test_a_rollback_during_a_step_makes_it_void(replay: Replay, versions: Any) -> None:
    learner, mine, step = await begun(replay, versions)
    await step()
    mine, real = versions("acme", "default"), learner.step

    def undone(*args: Any) -> Any:
        update = real(*args)
        replay.set_head("acme", "default", mine.roll_back("", "somebody did"))
        return update

    learner.step = undone
    done = await step()
    assert (done["outcome"], mine.current, replay.head("acme", "default")) == ("skipped", "", "")
    assert mine.version(done["update"].version).state == "dropped"
    learner.step = real
    done = await step()
    assert list(mine.lineage(done["candidate"])) == [done["candidate"], ""]


async def test_a_rollback_during_the_gate_drops_the_candidate(replay: Replay, versions: Any) -> None:
    learner, mine, step = await begun(replay, versions)
    first = (await step())["candidate"]
    mine, real = versions("acme", "default"), learner.measure

    def measure(*args: Any) -> Any:
        mine.roll_back("", "somebody did")  # and the head was not set yet when it was killed
        return real(*args)

    learner.measure = measure
    done = await step()
    assert (done["outcome"], mine.current) == ("dropped", "")
    assert not mine.is_live_descendant(first)
    learner.measure = real
    done = await step()
    assert done["outcome"] == "live"
    assert list(mine.lineage(done["candidate"])) == [done["candidate"], ""]


@pytest.mark.parametrize("canary", [0.0, 0.2])
async def test_every_node_of_a_step_may_run_twice(replay: Replay, versions: Any, canary: float) -> None:
    """A kill behind a node's effects and before the checkpoint: with a checkpointer it runs again, on the same state."""
    learner, mine = urn.UrnLearner(versions, rate=0.1), versions("acme", "default")
    await filled(replay)
    state: dict[str, Any] = {"tenant": "acme"}
    for node in (
        SampleMinibatch(replay, versions, ReplaySettings(), learner.base),
        Correct(learner, replay, versions),
        TakeGradientStep(learner, replay, versions),
        CommitStep(replay, versions),
        SampleMinibatch(replay, versions, ReplaySettings(), learner.base),  # a candidate that no gate has seen comes first
        GateCandidate(learner, replay, versions, OPEN_GATE.gate),
        Promote(versions, canary),
    ):
        first = node(state)  # type: ignore[operator]
        durable = (
            replay.rows(ExchangeQuery("acme")),
            replay.updates("acme", "default"),
            mine.versions(),
            mine.log(),
            mine.current,
        )
        assert node(state) == first, type(node)  # type: ignore[operator]
        assert durable == (
            replay.rows(ExchangeQuery("acme")),
            replay.updates("acme", "default"),
            mine.versions(),
            mine.log(),
            mine.current,
        )
        state |= first
    label = replay.head("acme", "default")
    assert (state["outcome"], mine.version(label).state) == (("canary", "canary") if canary else ("live", "live"))
    if canary:  # it went live by feedback, and then the node runs again
        mine.promote(label, "canary did well")
        assert Promote(versions, canary)(state)["outcome"] == "live"  # type: ignore[arg-type]
        assert mine.current == label


async def test_dropping_and_skipping_may_run_twice(replay: Replay, versions: Any) -> None:
    learner, mine = urn.UrnLearner(versions), versions("acme", "default")
    await filled(replay)
    state: dict[str, Any] = {"tenant": "acme"}
    sample = SampleMinibatch(replay, versions, ReplaySettings(min_exchanges=2), learner.base)
    for node in (
        sample,
        Correct(learner, replay, versions),
        TakeGradientStep(learner, replay, versions),
        CommitStep(replay, versions),
    ):
        state |= node(state)  # type: ignore[operator]
    state |= {"checks": [Check("kl", 9.0, 1.0, False, "far")], "why": "kl: far"}
    for _ in range(2):
        assert Drop(replay, versions)(state)["outcome"] == "dropped"  # type: ignore[arg-type]
    assert (replay.head("acme", "default"), mine.version(state["candidate"]).state) == ("", "dropped")
    assert [entry["state"] for entry in mine.log()] == ["candidate", "dropped"]
    for ends in ("released", "withdrawn"):
        state = {"tenant": "acme", "correction": Correction((), (("e0", "too stale"),)), "why": ""}
        state |= sample(state)  # type: ignore[arg-type]
        if ends == "withdrawn":
            replay.delete("acme", "e1")
        for _ in range(2):
            assert Skip(replay)(state) == {"outcome": "skipped", "why": "too stale"}  # type: ignore[arg-type]
    assert replay.step("acme", "default") == 1


async def test_learning_goes_on_after_a_long_canary(tmp_path: Path) -> None:
    """While one is out steps go on, and old versions are pruned; then it goes live, and what was learned meanwhile follows it."""
    with Replay(tmp_path / "replay.sqlite", ReplaySettings(held_out_share=0.0, max_samplings=100)) as replay:
        mine = Adapters(tmp_path / "adapters", "acme", keep_versions=3)
        graph = claas.build_learning(
            urn.UrnLearner(lambda *scope: mine, rate=0.01),
            replay,
            lambda *scope: mine,
            changed(OPEN_GATE, rollout={"canary_share": 0.1}),
        )
        await filled(replay)
        assert (await graph.ainvoke({"tenant": "acme"}))["outcome"] == "canary"
        for _ in range(15):
            assert (await graph.ainvoke({"tenant": "acme"}))["outcome"] == "stepped"
        mine.promote(mine.canary, "canary did well")
        head = replay.head("acme", "default")
        assert mine.prune((head,))  # parents of the head are gone
        done = await graph.ainvoke({"tenant": "acme"})
        assert (done["outcome"], done["candidate"], mine.canary) == ("canary", head, head)
        assert (await graph.ainvoke({"tenant": "acme"}))["outcome"] == "stepped"
        assert head in mine.lineage(replay.head("acme", "default"))


async def test_a_head_that_is_gone_is_no_error(replay: Replay, versions: Any) -> None:
    _learner, mine, step = await begun(replay, versions, changed(OPEN_GATE, gate={"every_steps": 100}))
    await step()
    mine.delete(replay.head("acme", "default"))
    done = await step()
    assert (done["outcome"], mine.version(done["update"].version).parent) == ("stepped", "")


async def test_what_comes_of_a_tainted_version_is_tainted(replay: Replay, versions: Any) -> None:
    _learner, mine, step = await begun(replay, versions, changed(OPEN_GATE, replay={"min_exchanges": 2}), rate=0.01)
    assert (await step())["outcome"] == "live"
    first = mine.current
    assert mine.taint(replay.delete("acme", "e0"), "deleted") == (first,)
    done = await step()
    assert (done["outcome"], mine.version(mine.current).parent) == ("live", first)
    assert mine.version(mine.current).tainted
    assert mine.current in replay.tainted_versions("acme")


async def test_what_learned_from_a_deleted_record_does_not_become_live(replay: Replay, versions: Any) -> None:
    """The live version did not; learning goes on from it."""
    learner, mine = urn.UrnLearner(versions, rate=0.01), versions("acme", "default")
    graph = claas.build_learning(
        learner, replay, versions, changed(OPEN_GATE, replay={"min_exchanges": 2}, gate={"every_steps": 2})
    )
    await filled(replay)
    assert (await graph.ainvoke({"tenant": "acme"}))["outcome"] == "stepped"
    first = replay.head("acme", "default")
    mine.taint(replay.delete("acme", "e0"), "deleted")
    done = await graph.ainvoke({"tenant": "acme"})
    version = mine.version(done["update"].version)
    assert (version.parent, version.tainted, mine.version(first).tainted) == ("", False, True)


async def test_a_rollback_between_the_gate_and_the_promotion_holds(replay: Replay, versions: Any) -> None:
    _learner, mine, step = await begun(replay, versions)
    await step()
    real = mine.promote

    def promote(*args: Any, **more: Any) -> None:
        mine.roll_back("", "somebody did")
        real(*args, **more)

    mine.promote = promote
    done = await step()
    assert (done["outcome"], mine.current) == ("dropped", "")
    assert "withdrawn since" in done["why"]
    assert mine.version(done["candidate"]).state == "dropped"


def test_settings_say_what_is_wrong() -> None:
    for group, wrong, said in (
        ("loss", {"kind": "sft"}, "loss: kind is one of mixed, sdpo, reinforce, ppo"),
        ("replay", {"batch_size": 0}, "replay: batch_size is at least 1"),
        ("replay", {"held_out_share": 0.95}, "replay: held_out_share is from 0 to 0.9"),
        ("replay", {"max_age": 0}, "replay: max_age is at least 1"),
        ("lora", {"rank": 0}, "lora: rank is at least 1"),
        ("rollout", {"canary_share": 1.5}, "rollout: canary_share is from 0 to 1"),
        ("rollout", {"watch_rewards": -1}, "rollout: watch_rewards is at least 0"),
        ("gate", {"max_kl": -1.0}, "gate: max_kl is at least 0"),
    ):
        with pytest.raises(UserError, match=said):
            changed(CLaaS(), **{group: wrong})


def test_presets_are_what_they_are_called() -> None:
    paper = CLaaS.paper()
    assert (paper.replay.min_exchanges, paper.replay.max_age, paper.gate.enabled) == (32, 50, False)
    assert (paper.loss.correction.kind, paper.loss.warmup_steps) == ("none", 0)
    assert (CLaaS().loss.kind, paper.loss.kind) == ("mixed", "sdpo")
    clipped = [(one.loss.kind, one.loss.correction.kind) for one in (CLaaS.paper_reinforce(), CLaaS.paper_ppo())]
    assert clipped == [("reinforce", "clipped"), ("ppo", "clipped")]
    assert CLaaS.paper_reinforce().replay == replace(paper.replay, max_age=25) == CLaaS.paper_ppo().replay
    assert (paper.loss.learning_rate, paper.lora.rank, paper.lora.scale, paper.gate.every_steps) == (3e-5, 32, 64, 8)


def test_a_knob_is_declared_once() -> None:
    """No group has a field of its neighbour's meaning: the learning rate is the loss's, the scale LoRA's, the divergence the teacher's."""
    paths: dict[str, list[str]] = {}

    def walk(settings: Any, path: str) -> None:
        for one in fields(settings):
            value = getattr(settings, one.name)
            if is_dataclass(value):
                assert len(fields(value)) <= 12, f"{path}{one.name} has more knobs than can be seen at once"
                walk(value, f"{path}{one.name}.")
            else:
                paths.setdefault(one.name, []).append(path + one.name)

    walk(CLaaS(), "")
    assert paths["learning_rate"] == ["loss.learning_rate"]
    assert paths["alpha"] == ["lora.alpha"]
    assert {name for name, found in paths.items() if len(found) > 1} == {"kind", "max_kl"}
    assert (LoRA(rank=4).scale, LoRA(rank=4, alpha=3.0).scale) == (8.0, 3.0)


# Kill -9


KILLED = '''
import asyncio, importlib.util, json, os, signal, sys
from pathlib import Path
from learngraph.graphs import claas
from learngraph.memory.claas.adapters import Adapters
from learngraph.memory.claas.replay import Replay
from learngraph.memory.claas.settings import ReplaySettings
from learngraph.memory.records import ExchangeQuery
from learngraph.nodes.learn.gate import GateSettings, ReleaseSettings

spec = importlib.util.spec_from_file_location("urn", sys.argv[1])
urn = importlib.util.module_from_spec(spec)
spec.loader.exec_module(urn)
settings = claas.CLaaS(
    replay=ReplaySettings(held_out_share=0.0, max_samplings=2),
    gate=GateSettings(min_entropy_share=0.0, max_kl=9.0),
    rollout=ReleaseSettings(watch_rewards=0, max_lead=None, keep_versions=100),
)
calls = 0

def bomb(owner, name, at):
    """SIGKILL before or after the at-th call of any of these."""
    real = getattr(owner, name)
    def call(*args, **more):
        tick(at)
        found = real(*args, **more)
        tick(at)
        return found
    setattr(owner, name, call)

def tick(at):
    global calls
    if calls == at:
        os.kill(os.getpid(), signal.SIGKILL)
    calls += 1

async def fill(folder):
    with Replay(folder / "replay.sqlite", ReplaySettings(held_out_share=0.0, max_samplings=2)) as replay:
        graph = claas.build_serving(urn.UrnEngine(), replay)
        for i in range(8):
            await graph.ainvoke({"id": f"e{i}", "request": urn.request(f"{i}", seed=i), "tenant": "acme"})
            word = replay.get("acme", f"e{i}").exchange.reply.text
            replay.add_feedback("acme", f"e{i}", urn.read_feedback(1.0 if word == "blue" else -1.0))

async def learn(folder, at):
    replay = Replay(folder / "replay.sqlite", ReplaySettings(held_out_share=0.0, max_samplings=2))
    adapters = Adapters(folder / "adapters", "acme", keep_versions=100)
    learner = urn.UrnLearner(lambda tenant, adapter: adapters)
    if at is not None:
        for name in ("lease", "commit"):
            bomb(replay, name, at)
        for name in ("write", "promote"):
            bomb(adapters, name, at)
        for name in ("correct", "step", "measure"):
            bomb(learner, name, at)
    graph = claas.build_learning(learner, replay, lambda tenant, adapter: adapters, settings)
    while (await graph.ainvoke({"tenant": "acme"}))["outcome"] != "too few":
        pass
    told = {
        "live": adapters.current,
        "versions": sorted((v.label, v.parent) for v in adapters.versions()),
        "steps": [(u["step"], u["batch"], u["version"]) for u in replay.updates("acme", "default")],
        "rows": sorted((row.exchange.id, row.state, row.sample_count) for row in replay.rows(ExchangeQuery("acme"))),
    }
    replay.close()
    return told, calls

def apart(work):
    """In a process of its own; its answer, or None if it was killed."""
    read, write = os.pipe()
    if not (child := os.fork()):
        os.close(read)
        with os.fdopen(write, "w") as out:
            out.write(json.dumps(asyncio.run(work())))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None

root = Path(sys.argv[2])
def once(name, at):
    folder = root / name
    folder.mkdir()
    apart(lambda: fill(folder))
    died = apart(lambda: learn(folder, at))
    return died, apart(lambda: learn(folder, None)) if at >= 0 else died

(whole, count), _ = once("whole", -1)
found = []
for at in range(int(sys.argv[3]) % 2, count, int(sys.argv[3])):
    died, (after, _) = once(f"killed-{at}", at)
    found.append([at, died is None, after == whole])
print(json.dumps({"whole": whole, "count": count, "found": found}))
'''


def killed(tmp_path: Path, every: int) -> dict[str, Any]:
    done = run_python("-c", KILLED, Path(urn.__file__), tmp_path, every)
    assert done.returncode == 0, done.stderr[-2000:]
    told: dict[str, Any] = json.loads(done.stdout)
    assert len(told["whole"]["steps"]) == 2
    assert all(times == 2 for _, _, times in told["whole"]["rows"])
    assert told["count"] >= 26
    for at, died, same in told["found"]:
        assert died, f"nothing was killed at {at}"
        assert same, f"killed at {at}, it went on to something else"
    return told


@pytest.mark.parametrize(
    ("every", "least"), [pytest.param(5, 5, marks=pytest.mark.slow), pytest.param(1, 25, marks=pytest.mark.long)]
)
def test_killed_and_gone_on_it_comes_to_the_same(tmp_path: Path, every: int, least: int) -> None:
    """The same minibatches, the same versions by hash, nothing trained twice; in every fifth place between two effects, and in each."""
    assert len(killed(tmp_path, every)["found"]) >= least
