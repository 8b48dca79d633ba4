"""Recorded models: nothing is asked twice, every call is counted, a budget ends a run that can go on."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import tool
from openai_server import OpenAIServer
from typing_extensions import TypedDict
from waiting import PATIENCE, let_others_run, wait_at_random

from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.errors import UserError
from learngraph.memory.records import Usage
from learngraph.memory.storage.cache import Cache
from learngraph.nodes.act.policies import LocalPolicy
from learngraph.nodes.ask import Ask
from learngraph.nodes.cached_model import BudgetSpent, CachedChatModel, ConcurrencyLimit, Prices, SpendingLimit
from learngraph.nodes.prompt import Prompt
from learngraph.nodes.read_reply import Unreadable
from learngraph.tools.environments.catalogue import open_environment
from learngraph.tools.models.models import open_model

AGAIN = Prompt.load("ask/again")
QUESTION = [SystemMessage("be brief"), HumanMessage("what is 6 times 7?")]


@dataclass(frozen=True)
class Counting(Runnable[Any, Any]):
    """Says a number that goes up with every call, and keeps what it was told."""

    told: list[tuple[list[BaseMessage], dict[str, Any]]] = field(default_factory=list)
    reply: Callable[[int], AIMessage] = lambda n: AIMessage(str(n), usage_metadata=used(100, 10))
    lock: Any = field(default_factory=threading.Lock)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        with self.lock:
            self.told.append((list(input), kwargs))
            number = len(self.told)
        return self.reply(number)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        reply = self.invoke(input, config, **kwargs)
        await asyncio.sleep(0)
        return reply


def used(read: int, written: int) -> UsageMetadata:
    return UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=read + written)


def test_equal_calls_are_draws_of_their_own_where_that_is_asked_for() -> None:
    cache, model = Cache(), Counting()

    def replies(**more: Any) -> list[str]:
        asked = CachedChatModel(model, "m", cache, **more)
        return [str(asked.invoke(QUESTION).content) for _ in range(3)]

    assert replies() == ["1", "1", "1"]
    assert replies(draws=defaultdict(count)) == ["1", "2", "3"]
    assert replies(draws=defaultdict(count)) == ["1", "2", "3"], "a resumed run gets the draws that were stored"


def recorded(model: Runnable[Any, Any] | None = None, cache: Cache | None = None, **more: Any) -> CachedChatModel:
    return CachedChatModel(model or Counting(), more.pop("name", "counting, temperature 0.7"), cache or Cache(), **more)


def stored(cache: Cache) -> int:
    return int(cache._base.execute("SELECT count(*) FROM entries").fetchone()[0])


# What is asked once


REPLIES = [
    AIMessage("42"),
    AIMessage("", id="run-1", tool_calls=[{"name": "python", "args": {"code": "6*7", "n": [1, 0.1]}, "id": "c1"}]),
    AIMessage(
        "a bad call",
        invalid_tool_calls=[
            {"name": "python", "args": '{"code": ', "id": "c2", "error": "no JSON", "type": "invalid_tool_call"}
        ],
        response_metadata={"finish_reason": "tool_calls", "model_name": "m", "token_usage": {"total_tokens": 9}},
    ),
    AIMessage(
        [{"type": "reasoning", "reasoning": "six sevens"}, {"type": "text", "text": "42 \ud800"}],
        usage_metadata={**used(7, 3), "output_token_details": {"reasoning": 2}},
        additional_kwargs={"refusal": None, "reasoning_content": "six sevens"},
        response_metadata={"finish_reason": "stop", "logprobs": {"content": [{"token": "4", "logprob": -0.1234567890123}]}},
        name="critic",
    ),
]


@pytest.mark.parametrize("reply", REPLIES, ids=["text", "tool calls", "invalid calls", "blocks"])
async def test_a_reply_comes_back_as_it_was(reply: AIMessage, tmp_path: Path) -> None:
    model = Counting(reply=lambda n: reply.model_copy())
    first = recorded(model, Cache(tmp_path / "c")).invoke(QUESTION)
    later = await recorded(model, Cache(tmp_path / "c")).ainvoke(QUESTION)  # another process, and without waiting
    assert len(model.told) == 1
    assert first == later == reply
    for name in type(reply).model_fields:
        assert getattr(later, name) == getattr(reply, name), name


async def test_a_reply_comes_back_as_it_was_whichever_way_it_was_asked(tmp_path: Path) -> None:
    model = Counting()
    cached = recorded(model, Cache(tmp_path / "c"))
    assert (await cached.ainvoke(QUESTION)).text == cached.invoke(QUESTION).text == "1"
    prompt = ChatPromptTemplate.from_messages([("system", "be brief"), ("human", "what is {a} times {b}?")])
    assert (prompt | cached).invoke({"a": 6, "b": 7}).text == "1", "a prompt's value is its messages"
    assert [reply.text for reply in cached.batch([QUESTION, QUESTION])] == ["1", "1"]
    assert cached.invoke("what is 6 times 7?").text == "2", "and without a system message it is another question"
    assert cached.invoke([HumanMessage("what is 6 times 7?")]).text == "2"


def call(**more: Any) -> dict[str, Any]:
    return {"name": "python", "args": {"code": "6*7"}, "id": "c1", **more}


BASE: dict[str, Any] = {
    "name": "m, temperature 0.7",
    "messages": [*QUESTION, AIMessage("", tool_calls=[call()]), ToolMessage("42", tool_call_id="c1")],
    "options": {"seed": 3},
}
OTHERS: dict[str, dict[str, Any]] = {
    "the model": {"name": "m, temperature 0.3"},
    "the seed": {"options": {"seed": 4}},
    "no seed": {"options": {}},
    "another option": {"options": {"seed": 3, "stop": ["\n"]}},
    "a word": {"messages": [QUESTION[0], HumanMessage("what is 6 times 8?"), *BASE["messages"][2:]]},
    "the order": {"messages": [*reversed(BASE["messages"])]},
    "who speaks": {"messages": [HumanMessage("be brief"), *BASE["messages"][1:]]},
    "where a message ends": {"messages": [SystemMessage("be briefwhat is 6 times 7?"), *BASE["messages"][2:]]},
    "the tool's arguments": {
        "messages": [*QUESTION, AIMessage("", tool_calls=[call(args={"code": "7"})]), BASE["messages"][3]]
    },
    "the tool": {"messages": [*QUESTION, AIMessage("", tool_calls=[call(name="search")]), BASE["messages"][3]]},
    "the tool's result": {"messages": [*BASE["messages"][:3], ToolMessage("43", tool_call_id="c1")]},
    "a failed tool": {"messages": [*BASE["messages"][:3], ToolMessage("42", tool_call_id="c1", status="error")]},
}


@pytest.mark.parametrize("what", OTHERS)
def test_whatever_a_reply_depends_on_makes_it_another_call(what: str) -> None:
    model, cache = Counting(), Cache()

    def ask(name: str, messages: Sequence[BaseMessage], options: Mapping[str, Any]) -> str:
        return recorded(model, cache, name=name).invoke(messages, **options).text

    assert [ask(**BASE), ask(**{**BASE, **OTHERS[what]}), ask(**BASE)] == ["1", "2", "1"]


def test_what_a_model_is_never_told_makes_no_other_call() -> None:
    model = recorded()
    plain = [*QUESTION, AIMessage("hm"), HumanMessage("go on")]
    marked = [
        SystemMessage("be brief", id="a"),
        QUESTION[1],
        AIMessage("hm", id="lc_run--1", usage_metadata=used(1, 1), response_metadata={"finish_reason": "stop"}),
        HumanMessage("go on", id="b"),
    ]
    assert model.invoke(plain).text == model.invoke(marked).text == "1"
    assert model.invoke(QUESTION, stop=["a"], seed=1).text == model.invoke(QUESTION, seed=1, stop=["a"]).text == "2"
    assert replace(model, stage="critic").invoke(plain).text == "1", "what it is asked for changes nothing"


def test_bound_options_are_part_of_the_call() -> None:
    inner, cache = Counting(), Cache()
    plain, bound, twice = inner, inner.bind(stop=["a"], top=1), inner.bind(stop=["a"], top=2).bind(top=1)
    told = [recorded(model, cache).invoke(QUESTION).text for model in (plain, bound, twice, inner.bind(top=1, stop=["b"]))]
    assert told == ["1", "2", "2", "3"]
    assert recorded(inner, cache).invoke(QUESTION, stop=["a"], top=1).text == "2", "given or bound is the same"
    assert recorded(inner, cache).bind(stop=["a"], top=1).invoke(QUESTION).text == "2"
    assert inner.told[1][1] == {"stop": ["a"], "top": 1}


def test_an_option_that_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError, match=r"temperature 0.7: a call with options that are no JSON cannot be stored"):
        recorded().invoke(QUESTION, tools=[object()])


def test_only_chat_models_can_be_recorded() -> None:
    with pytest.raises(TypeError, match="only chat models can be recorded; this one returned a str"):
        recorded(Counting(reply=lambda n: "text")).invoke(QUESTION)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("way", ["threads", "loop"])
def test_equal_calls_at_once_end_with_one_reply(way: str) -> None:
    model = recorded()
    if way == "threads":
        with ThreadPoolExecutor(8) as pool:
            told = {reply.text for reply in pool.map(model.invoke, [QUESTION] * 8)}
    else:

        async def all() -> list[Any]:
            return await asyncio.gather(*(model.ainvoke(QUESTION) for _ in range(8)))

        told = {reply.text for reply in asyncio.run(all())}
    assert len(told) == 1
    assert model.invoke(QUESTION).text in told
    assert model.cache.usage_by_stage()["model"].calls == len(model.model.told), "those that were made were paid for"  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [UserError, KeyboardInterrupt, asyncio.CancelledError, ValueError])
async def test_a_call_that_fails_is_not_stored_and_its_slot_comes_back(error: type[BaseException]) -> None:
    def reply(n: int) -> AIMessage:
        if n < 3:
            raise error
        return AIMessage(str(n))

    model = recorded(Counting(reply=reply), slots=ConcurrencyLimit(1))
    for ask in (model.invoke, model.ainvoke):
        with pytest.raises(error):
            await found if isinstance(found := ask(QUESTION), Awaitable) else found  # type: ignore[operator]
    assert stored(model.cache) == 0
    assert model.invoke(QUESTION).text == (await model.ainvoke(QUESTION)).text == "3"


async def test_a_call_that_is_broken_off_is_not_stored() -> None:
    class Slow(Counting):
        async def ainvoke(self, *args: Any, **kwargs: Any) -> AIMessage:
            await asyncio.Event().wait()
            raise AssertionError

    model = recorded(Slow(), slots=ConcurrencyLimit(1))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(model.ainvoke(QUESTION), 0.01)
    assert stored(model.cache) == 0
    assert (await asyncio.wait_for(recorded(None, model.cache, slots=model.slots).ainvoke(QUESTION), PATIENCE)).text == "1"


# Under Ask, with seeds


class State(TypedDict):
    run: str
    episode: int
    step: int


def asking(model: Runnable[Any, Any], asks: str = "test/ask") -> Ask:
    def read(reply: AIMessage, state: Mapping[str, Any]) -> Mapping[str, Any]:
        if reply.text == "7":
            raise Unreadable("asked for anything but 7")
        return {"said": reply.text}

    return Ask(asks, model, lambda state: list(QUESTION), read, AGAIN)


async def test_a_draw_is_known_by_run_episode_and_step(tmp_path: Path) -> None:
    """The same question asked in another episode is another draw; asked again from the same state, it is the same (E2)."""
    states = [State(run=run, episode=e, step=t) for run in ("a", "b") for e in (0, 1) for t in (0, 1)]
    model = Counting()
    ask = asking(recorded(model, Cache(tmp_path / "c")))
    said = [ask.invoke(state)["said"] for state in states]
    assert len(model.told) == 9, "one of the replies could not be read, and asking again is another call"
    assert len({*said}) == 8
    again = asking(recorded(model, Cache(tmp_path / "c")))
    told = await asyncio.gather(*(again.ainvoke(state) for state in reversed(states)))
    assert [found["said"] for found in reversed(told)] == said
    assert len(model.told) == 9
    assert sum((found["usage"] for found in told), Usage()) == Usage(9, 900, 90, unreadable=1), (
        "a rollout's own usage does not depend on it"
    )
    other = asking(recorded(model, Cache(tmp_path / "c")), "test/other")
    assert other.invoke(states[0])["said"] == "10", "and so is the same question with another purpose"


def test_a_seed_goes_to_models_that_have_one() -> None:
    fake = Counting()
    recorded(fake).invoke(QUESTION, seed=3, stop=["a"])
    recorded(WithSeed(fake.told)).invoke(QUESTION, seed=3)
    assert [options for _, options in fake.told] == [{"stop": ["a"]}, {"seed": 3}]


@dataclass(frozen=True)
class WithSeed(Counting):
    seed: int = 0


async def test_without_seeds_every_call_is_made_and_counted() -> None:
    """Equal requests are then draws of their own; scores count as well, and the budget holds for both."""
    cache, model = Cache(), Scoring()
    asked = recorded(model, cache, seeded=False, stage="run", meter=SpendingLimit(cache, max_tokens=250))
    assert [asked.invoke(QUESTION).text, (await asked.ainvoke(QUESTION)).text] == ["1", "2"]
    assert asked.score(QUESTION, ["a", "b"]) == model.score(QUESTION, ["a", "b"])
    assert (stored(cache), cache.usage_by_stage()) == (0, {"run": Usage(3, 200, 20)})
    asked.invoke(QUESTION)
    with pytest.raises(BudgetSpent):
        asked.invoke(QUESTION)
    with pytest.raises(BudgetSpent):
        asked.score(QUESTION, ["a"])


async def test_over_http(tmp_path: Path) -> None:
    """A real model behind a real server: the seed arrives, tools do, and the reply with its metadata comes back from the file."""

    @tool
    def python(code: str) -> str:
        """Run code."""
        return code

    with OpenAIServer(["go north", "go south", "go east", "go west"]) as stub:
        model = open_model("openai:stub", base_url=stub.url)
        cache = Cache(tmp_path / "c")
        plain = CachedChatModel(model, "stub", cache, slots=ConcurrencyLimit(2))
        first = await plain.ainvoke(QUESTION, seed=5)
        with_tools = plain.bind_tools([python])
        others = [with_tools.invoke(QUESTION, seed=5), plain.invoke(QUESTION, seed=6)]
        again = plain.invoke(QUESTION, seed=5), with_tools.invoke(QUESTION, seed=5)
    assert [first.text, *(reply.text for reply in others)] == ["go north", "go south", "go east"]
    assert again == (first, others[0])
    assert first.response_metadata["finish_reason"] == "stop"
    assert first.usage_metadata == {**used(7, 2), "input_token_details": {}, "output_token_details": {}}
    assert [request.get("seed") for request in stub.requests] == [5, 5, 6]
    assert [[t["function"]["name"] for t in request.get("tools", [])] for request in stub.requests] == [[], ["python"], []]
    assert cache.usage_by_stage() == {"model": Usage(3, 21, 6)}


async def test_where_nobody_listens_a_model_may_answer_without_callbacks() -> None:
    """With everything that is bound to it."""
    told: list[Any] = []

    class Quick(WithSeed):
        async def answer(self, messages: Any, **options: Any) -> AIMessage:
            told.append(options)
            return AIMessage("quick")

    quick, nobody = Quick(), {"callbacks": AsyncCallbackManager(handlers=[])}
    asked: list[tuple[Any, Any]] = [
        (quick, nobody),
        (quick.bind(stop=["a"], top=1).bind(top=2), nobody),
        (quick, {"callbacks": AsyncCallbackManager(handlers=[BaseCallbackHandler()])}),
        (quick, None),
        (quick.with_config(tags=["a"]), nobody),
    ]
    said = [(await recorded(model).ainvoke(QUESTION, config, seed=3)).text for model, config in asked]
    assert said == ["quick", "quick", "1", "2", "3"]
    assert told == [{"seed": 3}, {"stop": ["a"], "top": 2, "seed": 3}]


# Models in this process


@dataclass(frozen=True)
class Scoring(Counting):
    """Also tells how likely replies are."""

    seeded: ClassVar[bool] = True
    window: int = 512
    seed: int | None = None

    def score(self, messages: Sequence[BaseMessage], options: Sequence[str]) -> list[float]:
        return [-float(len(option)) for option in options]

    def get_num_tokens(self, text: str) -> int:
        return len(text.split())


def test_a_model_that_scores_still_does() -> None:
    model = recorded(Scoring())
    assert hasattr(model, "score")
    assert model.score(QUESTION, ["a", "bb"]) == [-1.0, -2.0]
    assert model.cache.usage_by_stage() == {}
    toy = open_environment("toy")
    inputs = MethodInputs.with_scoring_model(toy, MethodInputs(toy).journal, model)
    assert (inputs.prompting.window, inputs.prompting.count_tokens("a b c")) == (512, 3)
    node = inputs.make_policy(lambda state: {})
    assert isinstance(node, LocalPolicy)
    assert model.invoke(QUESTION, seed=9).text == model.invoke(QUESTION, seed=9).text == "1"
    assert model.model.told == [(QUESTION, {"seed": 9})]  # type: ignore[attr-defined]


def test_a_model_that_does_not_score_has_no_score() -> None:
    for model in (recorded(), recorded(FakeMessagesListChatModel(responses=[AIMessage("hello")]))):
        assert not hasattr(model, "score")
        assert not hasattr(model, "window")
        assert not hasattr(model, "answer"), "this would go past the cache"
    with pytest.raises(AttributeError, match="has no 'with_structured_output'"):
        _ = model.with_structured_output
    toy = open_environment("toy")
    ask: Any = MethodInputs.with_chat_model(toy, MethodInputs(toy).journal, model).make_policy(lambda state: {})  # type: ignore[arg-type]
    assert ask.model is model


@pytest.mark.slow
def test_the_pocket_model_says_the_same_from_the_cache(tmp_path: Path) -> None:
    pocket: Any = open_model("pocket", threads=1)
    model = CachedChatModel(pocket, "pocket", Cache(tmp_path / "c"))
    told = model.invoke(QUESTION, seed=3)
    assert told.content == pocket.invoke(QUESTION, seed=3).content
    pocket.clear_cache()  # what it has read already shows in the last digits of its log-probabilities
    assert CachedChatModel(pocket, "pocket", Cache(tmp_path / "c")).invoke(QUESTION, seed=3) == told
    assert told.response_metadata["model_logprobs"]
    assert model.score(QUESTION, ["go north"]) == pytest.approx(pocket.score(QUESTION, ["go north"]), abs=1e-5)
    assert model.window == pocket.window


# How many at once


@dataclass
class Crowd:
    """Counts who is inside."""

    inside: int = 0
    most: int = 0
    total: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def enter(self) -> None:
        with self.lock:
            self.inside += 1
            self.total += 1
            self.most = max(self.most, self.inside)

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1


def test_slots_hold_for_threads_and_loops_together() -> None:
    slots, crowd = ConcurrencyLimit(3), Crowd()

    def thread(n: int) -> None:
        for _ in range(10):
            with slots:
                crowd.enter()
                wait_at_random(Random(n), 0.001)
                crowd.leave()

    async def one() -> None:
        for _ in range(10):
            async with slots:
                crowd.enter()
                await asyncio.sleep(0)
                crowd.leave()

    async def many() -> None:
        await asyncio.gather(*(one() for _ in range(8)))

    with ThreadPoolExecutor(10) as pool:
        work = [*(pool.submit(thread, n) for n in range(6)), *(pool.submit(asyncio.run, many()) for _ in range(2))]
        for done in work:
            done.result(timeout=PATIENCE)
    assert (crowd.total, crowd.inside, crowd.most) == (60 + 160, 0, 3), "never more, and all three were used"
    assert slots._free == 3


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12), st.integers(1, 3))
def test_who_gives_up_waiting_takes_no_slot(work: list[tuple[int, bool]], limit: int) -> None:
    """Tasks that wait, work a while, and are cancelled at any time: in the end all slots are there."""

    async def play() -> None:
        slots, crowd = ConcurrencyLimit(limit), Crowd()

        async def one(turns: int) -> None:
            async with slots:
                crowd.enter()
                try:
                    for _ in range(turns):
                        await asyncio.sleep(0)
                finally:
                    crowd.leave()

        tasks = [asyncio.ensure_future(one(turns)) for turns, _ in work]
        for task, (turns, cancelled) in zip(tasks, work, strict=True):
            await asyncio.sleep(0)
            if cancelled:
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)
        assert crowd.most <= limit
        assert crowd.inside == 0
        assert slots._free == limit

    asyncio.run(play())


def test_a_slot_comes_back_from_a_loop_that_ended_with_its_waiters() -> None:
    slots = ConcurrencyLimit(1)

    async def one() -> None:
        async with slots:
            await asyncio.sleep(0)

    async def given_up() -> None:
        waiting = asyncio.ensure_future(one())
        await let_others_run()
        assert not waiting.done()

    with slots:
        asyncio.run(given_up())
    assert slots._free == 1
    asyncio.run(asyncio.wait_for(one(), PATIENCE))


async def test_slots_are_given_in_the_order_of_coming_and_what_is_stored_takes_none() -> None:
    with pytest.raises(UserError, match="at least 1 call must be allowed in flight, got 0"):
        ConcurrencyLimit(0)
    slots, order = ConcurrencyLimit(1), list[int]()

    async def one(n: int) -> None:
        async with slots:
            order.append(n)
            await asyncio.sleep(0)

    await asyncio.gather(*(one(n) for n in range(20)))
    assert order == [*range(20)]
    model = recorded(slots=slots)
    model.invoke(QUESTION)
    with slots:
        assert model.invoke(QUESTION).text == "1"
        assert (await model.ainvoke(QUESTION)).text == "1"


# What it costs (E10)


def test_tokens_and_dollars_are_those_of_the_calls(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c")
    policy = recorded(Counting(), cache, stage="policy", name="p")
    critic = recorded(Counting(reply=lambda n: AIMessage("x", usage_metadata=used(1000, 200))), cache, stage="critic", name="c")
    meter = SpendingLimit(cache, Prices(0.5, 1.5), {"critic": Prices(2.0, 8.0)})
    for n in (0, 1, 2, 0, 1):  # two of them are known already
        policy.invoke([HumanMessage(str(n))])
    critic.invoke(QUESTION)
    assert cache.usage_by_stage() == {"policy": Usage(3, 300, 30), "critic": Usage(1, 1000, 200)}
    assert meter.total_usage == Usage(4, 1300, 230)
    assert meter.cost == pytest.approx((300 * 0.5 + 30 * 1.5 + 1000 * 2 + 200 * 8) / 1e6)
    later = SpendingLimit(Cache(tmp_path / "c"), Prices(0.5, 1.5), {"critic": Prices(2.0, 8.0)})
    assert (later.total_usage, later.cost) == (meter.total_usage, meter.cost), (
        "what earlier processes of the run paid is among it"
    )


def test_tokens_are_estimated_where_the_server_does_not_say() -> None:
    model = recorded(Counting(reply=lambda n: AIMessage("the answer is 42")))
    model.invoke(QUESTION)
    spent = model.cache.usage_by_stage()["model"]
    assert spent.calls == 1
    assert 7 <= spent.input_tokens <= 20
    assert 4 <= spent.output_tokens <= 8
    assert model.invoke(QUESTION).usage_metadata is None, "but nothing is put into the reply"


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_spent_budget_ends_the_run_and_a_larger_one_resumes_it(way: str, tmp_path: Path) -> None:
    model = Counting()

    def play(budget: int | None) -> list[str]:
        """Ten questions, one after the other; a process of its own."""
        cache = Cache(tmp_path / "c")
        asked = recorded(model, cache, meter=SpendingLimit(cache, Prices(10, 10), max_tokens=budget), slots=ConcurrencyLimit(1))
        said = []
        try:
            for n in range(10):
                question = [HumanMessage(str(n))]
                said.append((asked.invoke(question) if way == "sync" else asyncio.run(asked.ainvoke(question))).text)
        finally:
            cache.close()
        return said

    for budget, made in ((300, 3), (300, 3), (310, 3), (500, 5)):  # 110 tokens a call; each process reads what others spent
        with pytest.raises(BudgetSpent) as stopped:
            play(budget)
        assert len(model.told) == made, "asked before each call, and what is stored costs nothing"
    assert str(stopped.value) == (
        "the budget of 500 tokens is spent: 5 calls, 500 tokens read and 50 written, $0.0055; what was played is kept, and the same "
        "run with a larger budget goes on from here"
    )
    assert play(5000) == play(None) == play(1) == [str(n) for n in range(1, 11)]
    assert len(model.told) == 10


def test_a_budget_in_dollars() -> None:
    cache = Cache()
    model = recorded(None, cache, meter=SpendingLimit(cache, Prices(1000.0, 0.0), max_dollars=0.25))
    with pytest.raises(BudgetSpent, match=r"the budget of \$0.25 is spent: 3 calls, .* \$0.3000"):
        [model.invoke([HumanMessage(str(n))]) for n in range(10)]
    for wrong, says in (
        ({"max_dollars": 0.0}, "a budget is a positive number of dollars, got 0"),
        ({"max_tokens": -1}, "a budget is a positive number of tokens, got -1"),
        ({"max_dollars": 3.0}, "a budget of \\$3 needs prices"),
    ):
        with pytest.raises(UserError, match=says):
            SpendingLimit(cache, **wrong)  # type: ignore[arg-type]


async def test_a_budget_is_exceeded_by_no_more_than_the_calls_in_flight() -> None:
    cache, model = Cache(), Counting()
    asked = recorded(model, cache, meter=SpendingLimit(cache, max_tokens=1000), slots=ConcurrencyLimit(4))
    done = await asyncio.gather(*(asked.ainvoke([HumanMessage(str(n))]) for n in range(50)), return_exceptions=True)
    assert {type(one) for one in done} == {AIMessage, BudgetSpent}
    assert 10 <= len(model.told) <= 10 + 3
    assert cache.usage_by_stage()["model"].calls == len(model.told)


def test_two_processes_know_of_each_other(tmp_path: Path) -> None:
    """They read what was spent from the file, before each call."""
    one, other = (
        recorded(None, cache, meter=SpendingLimit(cache, max_tokens=300))
        for cache in (Cache(tmp_path / "c"), Cache(tmp_path / "c"))
    )
    for n in range(3):
        (one if n % 2 else other).invoke([HumanMessage(str(n))])
    for model in (one, other):
        with pytest.raises(BudgetSpent):
            model.invoke([HumanMessage("more")])
