"""ReAct with tools, played through by a scripted model: real interpreters, errors, turns, lessons, and nothing left open."""

import asyncio
import gc
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatResult
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langgraph.checkpoint.memory import InMemorySaver
from openai_server import OpenAIServer
from processes import children
from pydantic import PrivateAttr
from scripted_chat import SayingChat
from waiting import let_others_run, until

from learngraph.graphs.baselines import tool_agent
from learngraph.graphs.baselines.tool_agent import ToolAgent
from learngraph.graphs.wiring.inputs import MethodInputs, Prompting
from learngraph.memory.errors import UserError
from learngraph.memory.lessons.library import Library
from learngraph.memory.lessons.versions import LibraryVersions
from learngraph.memory.records import Lesson, Observation, Task, Usage
from learngraph.memory.storage.cache import Cache
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.serializer import serializer
from learngraph.nodes.cached_model import CachedChatModel
from learngraph.nodes.extract.rollouts import RolloutPlayer
from learngraph.tools.agent_tools.interpreter import Toolbox
from learngraph.tools.agent_tools.search import search_tool


class Sums:
    """A world of one answer: right if the last number in it is the seed."""

    name = "sums"
    horizon = 1
    instant = True
    free_text = True

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        if not actions:
            return Observation(f"which number is {task.seed}?")
        found = re.findall(r"-?\d+", actions[-1])
        return Observation("wrong or right", (), None if not found else float(int(found[-1]) == task.seed), True)

    def abstract(self, observation: Observation) -> str:
        return observation.text

    def read(self, reply: str) -> tuple[str, ...]:
        return (reply,)


def task(seed: int) -> Task:
    return Task(f"sum-{seed}", f"Say the number {seed}.", seed)


Reply = AIMessage | BaseException
Script = Callable[[list[BaseMessage]], Reply]


class Scripted(SayingChat):
    """Says what a function makes of the messages; notes what it was asked, and which tools and options were bound."""

    script: Any
    _asked: list[tuple[list[BaseMessage], dict[str, Any]]] = PrivateAttr(default_factory=list)

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: Any = None, **options: Any) -> Any:
        chosen = {} if tool_choice is None else {"tool_choice": tool_choice}
        return self.bind(tools=[tool.name for tool in tools], **chosen, **options)

    def say(self, messages: list[BaseMessage], **options: Any) -> AIMessage:
        self._asked.append((list(messages), options))
        said = self.script(list(messages))
        if isinstance(said, BaseException):
            raise said
        return said

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        await asyncio.sleep(0)
        return self._generate(messages, stop, run_manager, **options)


def said(text: str, *calls: tuple[str, Any], id: str = "c") -> AIMessage:
    """A reply with calls of tools."""
    made = [{"name": name, "args": args, "id": f"{id}{n}", "type": "tool_call"} for n, (name, args) in enumerate(calls)]
    return AIMessage(text, tool_calls=made)


def python(code: str, text: str = "", id: str = "c") -> AIMessage:
    return said(text, ("python", {"code": code}), id=id)


def turns(*replies: Reply) -> Script:
    """One reply per turn, by how much was said."""

    def script(messages: list[BaseMessage]) -> Reply:
        return replies[sum(isinstance(message, AIMessage) for message in messages)]

    return script


def returned(messages: list[BaseMessage]) -> list[str]:
    return [str(message.text) for message in messages if isinstance(message, ToolMessage)]


def agent(script: Script, settings: ToolAgent | None = None, **more: Any) -> tuple[Any, Scripted]:
    model = Scripted(script=script)
    inputs = MethodInputs(Sums(), more.pop("journal") if "journal" in more else Journal(), model=model)
    return tool_agent.build(inputs, settings, **{"tools": Toolbox(), **more}), model


def play(graph: Any, seed: int = 42, **more: Any) -> dict[str, Any]:
    return dict(graph.invoke({"task": task(seed), "run": "r", "episode": 0, **more}))


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No process of a session outlives its rollout."""
    before = children()
    yield
    assert children() <= before  # an earlier test's process may have ended meanwhile


# One rollout


def test_it_computes_and_answers() -> None:
    graph, model = agent(turns(python("x = 6 * 7"), python("x", "Let me look."), AIMessage("It is 42.")))
    out = play(graph)
    assert (out["score"], out["earned"], out["step"], out["tool_calls"], out["answer"]) == (1.0, 1.0, 1, 2, "It is 42.")
    assert out["transcript"] == "> python: x = 6 * 7\n| [No output.]\n> Let me look.\n> python: x\n| 42\n> It is 42.\n"
    assert out["usage"].calls == 3
    (first, _), _, (last, options) = model._asked
    assert [type(message) for message in first] == [SystemMessage, HumanMessage]
    assert "Say the number 42." in str(first[1].content)
    assert "which number is 42?" in str(first[1].content)
    assert returned(last) == ["[No output.]", "42\n"]
    assert options["tools"] == ["python"]
    assert "tool_choice" not in options


async def test_sync_and_async_do_the_same() -> None:
    script = turns(python("print(1)\n1 / 0"), said("", ("nothing", {}), ("python", {"code": "2"})), AIMessage("42"))
    graph, _ = agent(script)
    plain = play(graph)
    assert dict(await graph.ainvoke({"task": task(42), "run": "r", "episode": 0})) == plain


def test_parallel_calls_are_all_answered_in_order() -> None:
    calls = [("python", {"code": f"n = {n}\nn"}) for n in range(5)]
    graph, model = agent(turns(said("", *calls), python("n", id="d"), AIMessage("42")))
    out = play(graph)
    answers = [message for message in model._asked[1][0] if isinstance(message, ToolMessage)]
    assert [message.tool_call_id for message in answers] == [f"c{n}" for n in range(5)]
    assert [str(message.text) for message in answers] == [f"{n}\n" for n in range(5)]
    assert returned(model._asked[2][0])[-1] == "4\n"
    assert out["tool_calls"] == 6


def failing(kind: str) -> str:
    """Fail in a way.

    Args:
        kind: which.
    """
    raise {"plain": ValueError("no such thing"), "tool": ToolException("not today"), "user": UserError("no key")}[kind]


FAILING = StructuredTool.from_function(failing, name="failing")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (("calculator", {"x": 1}), "There is no tool called 'calculator'; there are: failing, python."),
        (("python", {}), "code"),
        (("python", {"program": "1"}), "code"),
        (("python", {"code": ["not", "text"]}), "string"),
        (("failing", {"kind": "plain"}), "ValueError: no such thing"),
        (("failing", {"kind": "tool"}), "ToolException: not today"),
        (("failing", {"kind": "unknown"}), "KeyError"),
        (("python", {"code": "1 / 0"}), "ZeroDivisionError"),
    ],
)
def test_what_goes_wrong_with_a_call_the_model_is_told(call: tuple[str, Any], told: str) -> None:
    graph, model = agent(turns(said("", call), AIMessage("42")), tools=Toolbox(shared=(FAILING,)))
    out = play(graph)
    assert told in returned(model._asked[1][0])[0]
    assert (out["score"], out["tool_calls"]) == (1.0, 1)


def test_calls_that_are_no_json_are_answered_too() -> None:
    broken = AIMessage(
        "",
        tool_calls=[{"name": "python", "args": {"code": "7"}, "id": "a", "type": "tool_call"}],
        invalid_tool_calls=[
            {"name": "python", "args": '{"code": "1', "id": "b", "error": "unterminated string", "type": "invalid_tool_call"},
            {"name": None, "args": None, "id": None, "error": None, "type": "invalid_tool_call"},
        ],
    )
    graph, model = agent(turns(broken, AIMessage("42")))
    out = play(graph)
    messages = model._asked[1][0]
    answers = {message.tool_call_id: str(message.text) for message in messages if isinstance(message, ToolMessage)}
    asked = next(message for message in messages if isinstance(message, AIMessage))
    assert list(answers) == ["a", "b", str(asked.invalid_tool_calls[1]["id"])]
    assert answers["a"] == "7\n"
    assert "cannot be read (unterminated string)" in answers["b"]
    assert "There is no tool called ''" in list(answers.values())[2]
    assert (out["tool_calls"], out["score"]) == (3, 1.0)


def test_calls_without_ids_or_with_equal_ones_are_told_apart() -> None:
    same = AIMessage(
        "", tool_calls=[{"name": "python", "args": {"code": str(n)}, "id": id} for n, id in enumerate(["x", "x", None])]
    )
    graph, model = agent(turns(same, AIMessage("42")))
    play(graph)
    messages = model._asked[1][0]
    asked = next(message for message in messages if isinstance(message, AIMessage))
    ids = [call["id"] for call in asked.tool_calls]
    assert len(set(ids)) == 3
    assert [message.tool_call_id for message in messages if isinstance(message, ToolMessage)] == ids


def test_what_the_user_has_to_put_right_is_raised() -> None:
    graph, _ = agent(
        turns(said("", ("python", {"code": "1"}), ("failing", {"kind": "user"}))), tools=Toolbox(shared=(FAILING,))
    )
    with pytest.raises(UserError, match="no key"):
        play(graph)


def test_an_empty_reply_is_asked_for_again_and_in_the_end_is_an_empty_answer() -> None:
    replies = iter([AIMessage(""), AIMessage("42")])
    graph, model = agent(lambda messages: next(replies))
    assert play(graph)["score"] == 1.0
    assert "empty reply" in str(model._asked[1][0][-1].content)
    graph, model = agent(lambda messages: AIMessage(""))
    out = play(graph)
    assert (out["answer"], out["earned"], len(model._asked)) == ("", None, 3)


@pytest.mark.parametrize("most", [1, 2, 4])
def test_at_the_last_turn_the_model_has_to_answer(most: int) -> None:
    def script(messages: list[BaseMessage]) -> AIMessage:
        return python("1", "I would say 42", id=f"t{len(messages)}-")

    graph, model = agent(script, ToolAgent(max_turns=most))
    out = play(graph)
    assert len(model._asked) == most
    assert (out["tool_calls"], out["score"], out["answer"]) == (most - 1, 1.0, "I would say 42")
    for n, (messages, options) in enumerate(model._asked):
        assert (options.get("tool_choice") == "none") == (n == most - 1)
        assert ("no more tools" in str(messages[-1].content)) == (n == most - 1)


def test_calls_at_the_last_turn_without_a_word_are_an_empty_answer() -> None:
    graph, model = agent(lambda messages: python("1", id=f"t{len(messages)}-"), ToolAgent(max_turns=2))
    out = play(graph)
    assert (out["answer"], out["earned"], out["tool_calls"], len(model._asked)) == ("", None, 1, 2)


def test_a_full_window_is_the_last_turn() -> None:
    model = Scripted(script=lambda messages: python("print('word ' * 1000)", "42", id=f"t{len(messages)}-"))
    room = Prompting(window=4000, count_tokens=lambda text: len(text) // 4)
    inputs = MethodInputs(Sums(), Journal(), model=model, prompting=room)
    out = dict(tool_agent.build(inputs, tools=Toolbox()).invoke({"task": task(42), "run": "r", "episode": 0}))
    assert out["score"] == 1.0
    assert len(model._asked) == 4
    assert "no more tools" in str(model._asked[-1][0][-1].content)


def test_long_answers_of_tools_lose_their_middle() -> None:
    long = StructuredTool.from_function(lambda: "a" * 5000 + "b" * 5000, name="long", description="long")
    graph, model = agent(
        turns(said("", ("long", {})), AIMessage("42")),
        ToolAgent(max_output_chars=1000, max_transcript_chars=100),
        tools=Toolbox(python=None, shared=(long,)),
    )
    out = play(graph)
    assert returned(model._asked[1][0]) == ["a" * 500 + "\n[… 9,000 characters cut …]\n" + "b" * 500]
    assert len(out["transcript"]) < 250
    assert out["transcript"].startswith("> long: \n| aaaa")


def test_the_transcript_cannot_be_mistaken() -> None:
    code = "print('> python: 41')\nprint('= 1')\nprint('total 1')"
    graph, _ = agent(turns(python(code), AIMessage("It is\n42")))
    told = play(graph)["transcript"].splitlines()
    assert told == [
        "> python: print('> python: 41')",
        "  print('= 1')",
        "  print('total 1')",
        "| > python: 41",
        "| = 1",
        "| total 1",
        "> It is",
        "  42",
    ]


def test_temperature_is_bound_and_settings_are_checked() -> None:
    graph, model = agent(turns(AIMessage("42")), ToolAgent(temperature=0.3))
    play(graph)
    assert model._asked[0][1]["temperature"] == 0.3
    graph, model = agent(turns(AIMessage("42")), ToolAgent(temperature=0.3), tools=None)
    play(graph)
    assert model._asked[0][1] == {"temperature": 0.3}
    for wrong in ({"max_turns": 0}, {"temperature": -1}, {"max_output_chars": 5}, {"lessons_per_prompt": -1}):
        with pytest.raises(UserError, match=f"ToolAgent: {next(iter(wrong))} is a (whole )?number of at least"):
            ToolAgent(**wrong)


def test_a_world_without_written_answers_and_a_model_without_tools_are_refused() -> None:
    class Steps:
        name, observe = "steps", None

    with pytest.raises(UserError, match="steps is played step by step"):
        tool_agent.build(MethodInputs(Steps(), model=Scripted(script=None)))  # type: ignore[arg-type]
    from langchain_core.runnables import RunnableLambda

    graph = tool_agent.build(MethodInputs(Sums(), model=RunnableLambda(lambda messages: AIMessage("42"))), tools=Toolbox())
    with pytest.raises(UserError, match="calls no tools"):
        play(graph)
    alone = tool_agent.build(MethodInputs(Sums(), model=RunnableLambda(lambda messages: AIMessage("42"))))
    assert play(alone)["score"] == 1.0


def test_an_answer_of_several_actions_is_submitted_one_by_one() -> None:
    class Two(Sums):
        horizon = 2

        def observe(self, task: Task, actions: Sequence[str]) -> Observation:
            return Observation(f"{len(actions)} taken", (), 1.0 if actions else 0.0, len(actions) == 2)

        def read(self, reply: str) -> tuple[str, ...]:
            return tuple(reply.split(";"))

    for reply, steps in (("a;b", 2), ("a;b;c", 2), ("a", 1)):
        model = Scripted(script=turns(AIMessage(reply)))
        out = play(tool_agent.build(MethodInputs(Two(), Journal(), model=model), tools=Toolbox()))
        assert (out["step"], out["score"]) == (steps, float(steps))


def test_search_is_a_tool_like_any_other() -> None:
    pytest.importorskip("bm25s")
    tools = Toolbox(python=None, shared=(search_tool([{"title": "Pi", "text": "The number asked for is 42."}]),))
    graph, model = agent(turns(said("", ("search", {"query": "which number?"})), AIMessage("42")), tools=tools)
    assert play(graph)["score"] == 1.0
    assert returned(model._asked[1][0]) == ["[Pi] The number asked for is 42."]


# Lessons


def libraries() -> LibraryVersions:
    versions = LibraryVersions()
    versions.put("empty", Library())
    lessons = (Lesson("L0", "Say numbers in digits.", instruction="Say the number 42."), Lesson("L1", "Sing when it rains."))
    versions.put("full", Library(lessons, 2))
    return versions


def test_lessons_stand_at_the_end_of_the_system_message_and_nowhere_else() -> None:
    script = turns(python("1"), AIMessage("42"))
    graph, bare = agent(script)
    play(graph)
    shown = {}
    for name in ("empty", "full", ""):
        graph, model = agent(script, lessons=libraries())
        play(graph, library=name)
        shown[name] = [messages for messages, _ in model._asked]
    plain = [messages for messages, _ in bare._asked]
    contents = [[message.content for message in messages] for messages in plain]
    assert [[m.content for m in messages] for messages in shown["empty"]] == contents
    assert [[m.content for m in messages] for messages in shown[""]] == contents
    for messages, without in zip(shown["full"], plain, strict=True):
        system = str(messages[0].content)
        assert system.startswith(str(without[0].content))
        assert "[L0] Say numbers in digits." in system
        assert "[L1] Sing when it rains." in system
        assert [m.content for m in messages[1:]] == [m.content for m in without[1:]]


def test_only_the_most_fitting_lessons_are_shown_if_so_asked() -> None:
    graph, model = agent(turns(AIMessage("42")), ToolAgent(lessons_per_prompt=1), lessons=libraries())
    play(graph, library="full")
    system = str(model._asked[0][0][0].content)
    assert "Say numbers in digits." in system
    assert "Sing" not in system


# Rollouts side by side, and what is left of them


def counting(me: int) -> Script:
    """Counts up in its own session, and answers with what it finds there."""

    def script(messages: list[BaseMessage]) -> AIMessage:
        done = returned(messages)
        if len(done) < 3:
            return python("n = globals().get('n', 0) + 1\n(n, me)" if done else f"me = {me}\nn = 0", id=f"t{len(done)}-")
        return AIMessage(f"{done} {eval(done[-1])[1]}")

    return script


def by_task(messages: list[BaseMessage]) -> AIMessage:
    me = int(re.findall(r"Say the number (\d+)", str(messages[1].content))[0])
    reply = counting(me)(messages)
    assert isinstance(reply, AIMessage)
    return reply


@pytest.mark.slow
async def test_one_graph_plays_many_rollouts_at_once_and_their_sessions_never_mix() -> None:
    before = children()  # of other tests of this process
    graph, _ = agent(by_task)
    played = await asyncio.gather(*(graph.ainvoke({"task": task(n), "run": "r", "episode": 0}) for n in range(100, 132)))
    assert [out["score"] for out in played] == [1.0] * 32
    assert all(f"(2, {n})" in out["answer"] for n, out in zip(range(100, 132), played, strict=True))
    assert children() <= before


class Watched:
    """A toolbox that counts what is open."""

    def __init__(self) -> None:
        self.inner, self.opened, self.closed = Toolbox(), 0, 0

    @contextmanager
    def __call__(self, run: str, task: str, episode: int) -> Iterator[Sequence[BaseTool]]:
        self.opened += 1
        try:
            with self.inner(run, task, episode) as tools:
                yield tools
        finally:
            self.closed += 1


@pytest.mark.parametrize(
    "script",
    [
        turns(python("x = 1"), AIMessage("42")),
        turns(python("x = 1"), RuntimeError("the server is down")),
        turns(python("x = 1"), said("", ("failing", {"kind": "user"}))),
        turns(python("import os; os._exit(1)"), AIMessage("42")),
    ],
)
async def test_tools_are_closed_however_the_rollout_ends(script: Script) -> None:
    before = children()  # of other tests of this process
    for way in ("invoke", "ainvoke"):
        watched = Watched()
        watched.inner = Toolbox(shared=(FAILING,))
        graph, _ = agent(script, tools=watched)
        given = {"task": task(42), "run": "r", "episode": 0}
        with suppress(RuntimeError, UserError):
            await graph.ainvoke(given) if way == "ainvoke" else graph.invoke(given)
        assert (watched.opened, watched.closed) == (1, 1)
        assert children() <= before


@pytest.mark.slow
async def test_a_rollout_cancelled_at_any_moment_leaves_nothing() -> None:
    before = children()  # of other tests of this process
    watched = Watched()
    graph, _ = agent(turns(python("x = 1"), python("sum(range(10**6))", id="d"), AIMessage("42")), tools=watched)
    draw = random.Random("cancel")
    for n in range(16):
        playing = asyncio.create_task(graph.ainvoke({"task": task(42), "run": "r", "episode": n}))
        await let_others_run(draw.uniform(0, 0.25))
        playing.cancel()
        with suppress(asyncio.CancelledError):
            await playing
    del playing
    gc.collect()
    await until(lambda: watched.opened == watched.closed > 0)
    assert children() <= before


@pytest.mark.slow
async def test_a_rollout_out_of_time_is_a_failure_and_leaves_nothing() -> None:
    before = children()  # of other tests of this process
    graph, model = agent(turns(python("while True: pass"), AIMessage("42")), tools=Toolbox(python={"seconds": 60}))
    versions = LibraryVersions()
    versions.put("r/0", Library())
    roll = RolloutPlayer(graph, Sums(), Journal(), versions, Cache(), name="tools", timeout=1.0)
    rollout = await roll.ainvoke({"task": task(42), "run": "r/0", "episode": 0, "library": "r/0"})
    assert (rollout.reward, "longer than 1 s" in rollout.error) == (None, True)
    assert children() <= before
    assert len(model._asked) == 1


def test_a_plain_list_of_tools_and_reentry_work() -> None:
    made: list[tuple[str, str, int]] = []

    def tools(run: str, task: str, episode: int) -> Sequence[BaseTool]:
        made.append((run, task, episode))
        return [FAILING]

    graph, _ = agent(turns(said("", ("failing", {"kind": "plain"})), AIMessage("42")), tools=tools)
    assert play(graph)["score"] == 1.0
    assert made == [("r", "sum-42", 0)]


# As part of what is around it


def test_a_rollout_record_has_all_that_comparing_asks_for() -> None:
    journal = Journal()
    graph, model = agent(
        turns(python("6 * 7"), AIMessage("42", usage_metadata={"input_tokens": 5, "output_tokens": 2, "total_tokens": 7})),
        journal=journal,
    )
    versions = LibraryVersions()
    versions.put("r/0", Library())
    roll = RolloutPlayer(graph, Sums(), journal, versions, Cache(), name="tools")
    rollout = roll.invoke({"task": task(42), "run": "r/0", "episode": 3, "library": "r/0"})
    assert (rollout.reward, rollout.answer, rollout.tool_calls, rollout.error) == (1.0, "42", 1, "")
    assert rollout.transcript == "> python: 6 * 7\n| 42\n> 42\n"
    assert rollout.usage.calls == 2
    again = roll.invoke({"task": task(42), "run": "r/0", "episode": 3, "library": "r/0"})
    assert (again, len(model._asked)) == (rollout, 2)


def test_played_again_from_recorded_replies_it_asks_nobody_and_uses_its_tools_again() -> None:
    cache, watched = Cache(), Watched()
    model = Scripted(script=turns(python("import random\nrandom.random()"), AIMessage("42")))
    outs = []
    for _ in range(2):
        inputs = MethodInputs(Sums(), Journal(), model=CachedChatModel(model, "scripted", cache))
        outs.append(play(tool_agent.build(inputs, ToolAgent(temperature=0.7), tools=watched)))
    assert outs[0] == outs[1]
    assert len(model._asked) == 2
    assert "seed" not in model._asked[0][1]
    assert (watched.opened, watched.closed) == (2, 2)


def test_two_draws_are_two_calls_and_equal_turns_are_not_confused() -> None:
    cache = Cache()
    model = Scripted(script=turns(python("1"), python("1", id="d"), AIMessage("42")))
    inputs = MethodInputs(Sums(), Journal(), model=CachedChatModel(model, "scripted", cache))
    graph = tool_agent.build(inputs, tools=Toolbox())
    for episode in range(2):
        graph.invoke({"task": task(42), "run": "r", "episode": episode})
    assert len(model._asked) == 6


def test_every_step_can_be_checkpointed_and_messages_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()  # of other tests of this process
    monkeypatch.setenv("LANGGRAPH_STRICT_MSGPACK", "true")
    graph, _ = agent(
        turns(python("x = 5"), python("x", id="d"), AIMessage("42")), checkpointer=InMemorySaver(serde=serializer())
    )
    config = {"configurable": {"thread_id": "t"}}
    given = {"task": task(42), "run": "r", "episode": 0}
    plain = dict(graph.invoke(given, config))
    assert plain["score"] == 1.0
    states = list(graph.get_state_history(config))
    kept = states[0].values
    assert [type(message) for message in kept["messages"]] == [AIMessage, ToolMessage, AIMessage, ToolMessage]
    json.dumps([message.model_dump(mode="json") for message in kept["messages"]])
    # Gone on from the middle, as another process would: the tools are opened anew.
    middle = next(state for state in states if state.next == ("think",) and state.values["turn"] == 1)
    out = graph.invoke(None, middle.config)
    assert "NameError" in out["transcript"]
    assert children() <= before


def over_http(request: dict[str, Any]) -> dict[str, Any]:
    """What a server says: one call that is right and one that is no JSON, then what came of the first."""
    answers = [message for message in request["messages"] if message["role"] == "tool"]
    calls = [("a", '{"code": "6 * 7"}'), ("b", '{"code": "6 * ')]
    made = [{"id": id, "type": "function", "function": {"name": "python", "arguments": given}} for id, given in calls]
    message = (
        {"role": "assistant", "content": answers[0]["content"]}
        if answers
        else {"role": "assistant", "content": None, "tool_calls": made}
    )
    choice = {"index": 0, "message": message, "finish_reason": "stop" if answers else "tool_calls"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return {
        "body": json.dumps(
            {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        )
    }


async def test_it_plays_over_the_chat_protocol() -> None:
    from learngraph.tools.models.openai_model import OpenAIChatModel

    with OpenAIServer(over_http) as server:
        model = OpenAIChatModel(model="m", base_url=server.url, api_key="k", max_retries=0)
        inputs = MethodInputs(Sums(), Journal(), model=CachedChatModel(model, "m", Cache()))
        graph = tool_agent.build(inputs, ToolAgent(temperature=0.5), tools=Toolbox())
        out = await graph.ainvoke({"task": task(42), "run": "r", "episode": 0})
        first, second = server.requests
    assert (out["score"], out["tool_calls"], out["usage"]) == (1.0, 2, Usage(2, 20, 10))
    assert first["tools"][0]["function"]["name"] == "python"
    assert list(first["tools"][0]["function"]["parameters"]["properties"]) == ["code"]
    assert first["temperature"] == 0.5
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "tool", "tool"]
    assert [call["id"] for call in second["messages"][2]["tool_calls"]] == ["a", "b"]
    assert [message["tool_call_id"] for message in second["messages"][3:]] == ["a", "b"]
    assert "cannot be read" in second["messages"][4]["content"]
