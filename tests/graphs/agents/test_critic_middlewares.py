"""ReasoningBank and Reflexion in an agent of LangChain: a critic writes what later conversations read."""

import asyncio
import json
import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal

import help_desk as desk
import learning_agents
import pytest
from help_desk import HeedfulClerk, play
from langchain.agents import create_agent
from langchain.agents.middleware import dynamic_prompt
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.store.memory import InMemoryStore
from learning_agents import PLAIN
from variants import quick

from learngraph.graphs.agents.rated_acts import RatedActs, names_a_call
from learngraph.graphs.agents.reasoning_bank import ReasoningBankMiddleware
from learngraph.graphs.baselines.reasoning_bank import ReasoningBank
from learngraph.memory.conversations.turns import Conversation, Rating, Turn, rated_trajectories
from learngraph.memory.errors import UserError
from learngraph.memory.records import Task, Trajectory, Transition
from learngraph.memory.search.vectors import CosineSimilarity
from learngraph.tools.models.random_tools import HeedfulToolModel, RandomToolModel

methods = pytest.mark.parametrize("method", ["reasoning-bank", "reflexion"])
make = partial(learning_agents.make, task=desk.issue, state_key=desk.issue)


@methods
def test_replies_that_cannot_be_read_are_counted_and_not_asked_for_again(method: str, caplog: pytest.LogCaptureFixture) -> None:
    agent, learner, model = make(method)
    model.garbles = method == "reasoning-bank"
    if method == "reflexion":  # any text is a note, but no text is none
        learner.critic = HeedfulClerk()
        object.__setattr__(learner.critic, "say", lambda messages: AIMessage(""))
    with caplog.at_level(logging.WARNING):
        play(agent, learner, range(2))
        play(agent, learner, range(4, 5))
    status = learner.status(tenant="acme")
    assert (status.studied, status.waiting, status.lessons, len(status.unreadable)) == (3, 0, 0, 3)
    assert "the critic failed in all of its tries at 3 of 3 studied, the last: " in str(status)
    assert sum("nothing was learned from t" in said for said in caplog.messages) == 3
    assert set(model.seen) == {PLAIN}


class AwayModel(HeedfulClerk):
    away: bool = True

    def say(self, messages: Any) -> Any:
        if self.away:
            raise ConnectionError("the critic is away")
        return super().say(messages)


@methods
def test_a_critic_that_is_away_leaves_conversations_waiting(method: str, caplog: pytest.LogCaptureFixture) -> None:
    critic = AwayModel()
    agent, learner, _ = make(method, store := InMemoryStore(), critic=critic)
    with caplog.at_level(logging.WARNING):
        play(agent, learner, range(1))
        assert "the critic could not be asked, with 1 conversation waiting: Conn" in str(learner.status(tenant="acme"))
        make(method, store, critic=HeedfulClerk())[1].learn(tenant="acme")
        assert "could not be asked" not in str(learner.status(tenant="acme")), "nothing waits any more"
        play(agent, learner, range(1, 4))
    status = learner.status(tenant="acme")
    assert (status.waiting, status.studied) == (3, 1)
    assert "the critic could not be asked, with 3 conversations waiting: ConnectionError: the critic is away" in str(status)
    critic.away = False
    status = learner.learn(tenant="acme")
    assert (status.waiting, status.studied, status.failure) == (0, 4, "")


def test_status_says_that_a_critic_is_being_asked_and_when_one_that_failed_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, learner, asked, free = make_held("reflexion", study="background")
    assert asked.wait(60)
    assert learner.status(tenant="acme").problems == ("waiting for the critic: 4; the critic is being asked now",)
    free.set()
    learner.close()
    agent, learner, _ = make("reflexion", critic=AwayModel(), study="background")
    monkeypatch.setattr(learner._worker, "ask", lambda scope: None)
    agent.invoke({"messages": desk.ticket(0)[0]}, learning_agents.config("t0"))
    learner.feedback("t0", reward=0.0, tenant="acme")
    for pause in ("", r", in \d+ seconds at the earliest,"):
        learner.learn(tenant="acme")
        (said,) = learner.status(tenant="acme").problems
        assert re.search(f"away; the next feedback or model call{pause} has it asked again, and learn\\(\\) at once$", said)


@methods
def test_learn_and_status_take_in_at_once_what_others_have_rated(method: str) -> None:
    agent, first, _ = make(method, store := InMemoryStore())
    _, second, _ = make(method, store, critic=HeedfulClerk(), refresh_seconds=3_600.0)
    for n, read in enumerate((second.status, second.learn)):
        assert second.status(tenant="acme").waiting == n
        agent.invoke({"messages": desk.ticket(n)[0]}, learning_agents.config(f"t{n}"))
        first.feedback(f"t{n}", reward=1.0, tenant="acme")
        status = read(tenant="acme")
        assert (status.rated, status.studied + status.waiting) == (n + 1, n + 1)
        assert n or status.problems == ("waiting for the critic: 1; learn() has them studied",)
    assert status.studied == 2


@methods
def test_feedback_from_another_process_is_studied_where_a_critic_is_known(method: str) -> None:
    store = InMemoryStore()
    (agent, first, model), (_, second, idle) = (
        make(method, store, refresh_seconds=0.0),
        make(method, store, refresh_seconds=0.0),
    )
    agent.invoke({"messages": desk.ticket(0)[0]}, {"configurable": {"thread_id": "t0", "tenant": "acme"}})
    second.feedback("t0", reward=0.0, tenant="acme")  # it has never seen a model
    assert second.status(tenant="acme").waiting == 1
    assert model.criticised == idle.criticised == []
    for learn in (second.learn, make(method, store)[1].learn_all):  # also where nothing was read before
        with pytest.raises(UserError, match="1 conversation cannot be studied: no critic is known"):
            learn(tenant="acme")
    first.learn(tenant="acme")
    play(agent, first, range(4, 5))
    assert len(model.criticised) == 2
    assert "do not resolve it by" in model.seen[-1]
    third = make(method, store, critic=idle)[1]
    assert third.learn(tenant="acme").lessons == 2, "what another process has studied is not studied again"
    assert idle.criticised == []


@pytest.mark.parametrize("method", quick(["reasoning-bank", "reflexion", "lessons"], "reflexion"))
def test_a_critic_of_a_job_reads_what_the_critic_of_the_agent_reads(method: str) -> None:
    def prompts(is_job: bool) -> list[str]:
        store, critic = InMemoryStore(), HeedfulClerk()
        agent, learner, _ = make(method, store, critic=critic)
        for n in range(0, 16, 4):
            agent.invoke({"messages": desk.ticket(n)[0]}, learning_agents.config(f"t{n}"))
            learner.feedback(f"t{n}", reward=float(n % 8 > 0), tenant="acme")
        (make(method, store, critic=critic)[1] if is_job else learner).learn(tenant="acme")
        return critic.criticised

    assert prompts(is_job=True) == prompts(is_job=False)
    assert f"<instructions>\n{PLAIN}\n</instructions>\nIts tools:\n- lookup_order: Look" in prompts(is_job=True)[0]


@methods
def test_feedback_that_changes_has_the_conversation_studied_again(method: str) -> None:
    agent, learner, model = make(method)
    play(agent, learner, range(1))
    for _ in range(2):
        learner.feedback("t0", reward=1.0, tenant="acme")
        learner.learn(tenant="acme")
    assert len(model.criticised) == 2
    (kept,) = learner._memory(learner._labels({"tenant": "acme"})).conversations.reflections.all()
    assert "do not" not in (kept.note or kept.lessons[0].text)
    assert learner.status(tenant="acme").lessons == 1


@methods
def test_a_later_comment_leaves_the_lesson_until_another_takes_its_place_and_another_verdict_takes_it_at_once(
    method: str,
) -> None:
    agent, learner, _ = make(method, store := InMemoryStore())
    play(agent, learner, range(1))
    first = learner._conversations({"tenant": "acme"}).ratings("t0")[0].reward

    def lessons(feedback: dict[str, Any]) -> list[int]:
        """The lessons that hold here, and in another process, and how many were studied."""
        learner.feedback("t0", tenant="acme", **feedback)
        found = [one.status(tenant="acme") for one in (learner, make(method, store)[1])]
        return [*(one.lessons for one in found), *(one.waiting for one in found), *(one.studied for one in found)]

    assert lessons({"text": "thanks"}) == [1, 1, 1, 1, 0, 0]
    agent.invoke({"messages": desk.ticket(0)[0]}, learning_agents.config("t4"))
    assert "recalled t0/0" in learner.explain("t4", tenant="acme")
    assert lessons({"reward": 1.0 - (first or 0.0)}) == [0, 0, 1, 1, 0, 0]
    assert learner.learn(tenant="acme").lessons == 1
    learner.critic = HeedfulClerk(garbles=True)
    object.__setattr__(learner.critic, "say", lambda messages: AIMessage(""))
    assert lessons({"text": "hm"}) == [1, 1, 1, 1, 0, 0]
    assert (status := learner.learn(tenant="acme")).lessons == len(status.unreadable) == 1, "nothing has taken its place"
    learner.feedback("t0", text="hm, hm", tenant="acme")
    learner.quarantine("t0", "a person said so", tenant="acme")
    assert learner.status(tenant="acme").lessons == 0


def test_an_account_names_the_lessons_and_cuts_what_is_long() -> None:
    agent, learner, _ = make("reasoning-bank")
    play(agent, learner, range(1))
    agent.invoke({"messages": desk.ticket(0)[0]}, learning_agents.config("t4"))
    learner.feedback("t4", reward=1.0, text="so\nslow " * 2_000, tenant="acme")
    lines = learner.explain("t4", tenant="acme").splitlines()
    assert any("resolve it by" in line for line in lines)
    assert lines[-1].startswith("  user gave it reward 1: so slow so slow")
    assert max(map(len, lines)) < 310
    play(agent, learner, [4, 8, 12])
    agent.invoke({"messages": desk.ticket(0)[0]}, learning_agents.config("t20"))
    told = [line for line in learner.explain("t20", tenant="acme").splitlines() if "resolve it by" in line]
    assert any(line.endswith("conversations)") for line in told), "what the model has read"
    assert len({line.partition(" (from")[0] for line in told}) == len(told)


def test_nothing_alike_enough_says_how_near_the_nearest_was() -> None:
    agent, learner, _ = make("reasoning-bank", min_similarity=0.9, state_key=lambda read: str(read[0].text))
    play(agent, learner, range(3))
    status = learner.status(tenant="acme")
    assert status.recalled == 0
    assert status.nearest is not None
    assert 0 < status.nearest < 0.9
    assert f"the nearest had similarity {status.nearest:.2f}" in str(status)


@methods
@pytest.mark.parametrize(("error", "left"), [(ValueError, 0), (ConnectionError, 3)])
def test_a_critic_that_always_raises_is_asked_at_most_three_times(method: str, error: type[Exception], left: int) -> None:
    class Broken(HeedfulClerk):
        def say(self, messages: Any) -> Any:
            raise error("no such field")

    agent, learner, _ = make(method, critic=Broken())
    play(agent, learner, range(3))
    for _ in range(8):
        status = learner.learn(tenant="acme")
    assert (status.waiting, len(status.unreadable)) == (left, 3 - left)


class FussyModel(HeedfulClerk):
    """A critic whose service refuses conversations about one order."""

    def say(self, messages: Any) -> Any:
        if any("A0" in str(m.text) for m in messages):
            raise ValueError("this conversation is refused")
        return super().say(messages)


@methods
@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param({"message": "My order A0 arrived broken. " + "log " * 30_000}, marks=pytest.mark.slow),
        pytest.param({"text": "no " * 30_000}, marks=pytest.mark.slow),
        {"message": "\ud83d A0 \0"},
        {"text": "\ud83d\0"},
        {},
    ],
    ids=["a long message", "long feedback", "half an emoji", "half an emoji in feedback", "a conversation that is refused"],
)
def test_no_conversation_stops_the_critic(method: str, hostile: dict[str, str], tmp_path: Any) -> None:
    critic = HeedfulClerk() if hostile else FussyModel()
    agent, learner, _ = make(method, tmp_path / "memory", critic=critic)
    agent.invoke({"messages": hostile.get("message", desk.ticket(0)[0])}, learning_agents.config("bad"))
    learner.feedback("bad", reward=0.0, text=hostile.get("text"), tenant="acme")
    play(agent, learner, range(4, 9))
    status = learner.learn(tenant="acme")
    assert (status.studied, status.waiting) == (6, 0)
    assert status.lessons >= 4
    if not hostile:
        assert status.unreadable == ("ValueError: this conversation is refused",)
    learner.close()


@methods
async def test_a_critic_never_stands_in_the_users_way(method: str) -> None:
    """Model calls and `afeedback` return while a critic is busy; what waits is studied by a thread of its own."""
    started, free = threading.Event(), threading.Event()

    class SlowModel(HeedfulClerk):
        def say(self, messages: Any) -> Any:
            started.set()
            assert free.wait(60)
            return super().say(messages)

    agent, learner, _ = make(method, critic=SlowModel(), study="background")
    for n in range(2):
        said = [
            chunk.text
            async for chunk, _ in agent.astream(
                {"messages": desk.ticket(n)[0]}, learning_agents.config(f"t{n}"), stream_mode="messages"
            )
        ]
        await learner.afeedback(f"t{n}", reward=0.0, tenant="acme")
        assert "It is done." in said
    assert await asyncio.to_thread(started.wait, 60)
    assert (await learner.astatus(tenant="acme")).studied == 0
    free.set()
    assert (await learner.alearn(tenant="acme")).studied == 2, "it waits for the thread that studies"
    learner.close()


def make_held(method: str, **options: Any) -> tuple[Any, Any, threading.Event, threading.Event]:
    """An agent with four rated conversations, and the learner; events: the critic was asked, and it may answer."""
    asked, free = threading.Event(), threading.Event()

    class HeldCritic(HeedfulClerk):
        def say(self, messages: Any) -> Any:
            asked.set()
            assert free.wait(60)
            return super().say(messages)

    agent, learner, _ = make(method, critic=HeldCritic(), **options)
    for n in range(0, 16, 4):
        agent.invoke({"messages": desk.ticket(n)[0]}, learning_agents.config(f"t{n}"))
        learner.feedback(f"t{n}", reward=float(n % 8 > 0), tenant="acme")
    return agent, learner, asked, free


TAKE_OUT: dict[str, Any] = {
    "forget": lambda learner, thread: learner.forget([thread], tenant="acme"),
    "quarantine": lambda learner, thread: learner.quarantine(thread, "hm", tenant="acme"),
    "retract": lambda learner, thread: learner.retract(thread, tenant="acme"),
}


@pytest.mark.parametrize("by", ["itself", "another learner of the agent"])
@pytest.mark.parametrize("take", TAKE_OUT)
@pytest.mark.parametrize("method", ["reasoning-bank", "reflexion", "lessons"])
def test_what_is_taken_out_leaves_no_lesson(method: str, take: str, by: str) -> None:
    agent, learner, model = make(method, store := InMemoryStore(), refresh_seconds=0.0)
    taker = learner if by == "itself" else make("synapse", store)[1]
    play(agent, learner, range(0, 16, 4))
    assert learner.learn(tenant="acme").lessons
    for n in range(0, 16, 4):
        TAKE_OUT[take](taker, f"t{n}")
    model.seen.clear()
    agent.invoke({"messages": desk.ticket(0)[0]}, learning_agents.config("u0"))
    assert set(model.seen) == {PLAIN}


@pytest.mark.parametrize("take", TAKE_OUT)
@pytest.mark.parametrize("method", ["reasoning-bank", "reflexion", "lessons"])
def test_what_is_taken_out_while_a_critic_reads_it_does_not_come_back(method: str, take: str) -> None:
    _, learner, asked, free = make_held(method)
    with ThreadPoolExecutor(1) as thread:
        study = thread.submit(learner.learn, tenant="acme")
        assert asked.wait(60)
        for n in range(0, 16, 4):
            TAKE_OUT[take](learner, f"t{n}")
        learner.memory(tenant="acme")
        free.set()
        study.result()
    assert not learner._conversations({"tenant": "acme"}).reflections.all()
    status = learner.status(tenant="acme")
    assert (status.studied, status.waiting, status.lessons) == (0, 0, 0)


def test_close_waits_for_the_conversation_under_study_alone() -> None:
    _, learner, asked, free = make_held("reflexion", study="background")
    assert asked.wait(60)
    learner._worker._ended = True  # as `close` says first
    free.set()
    learner.close()
    assert learner.status(tenant="acme").studied == 1


@pytest.mark.parametrize("method", ["reasoning-bank", "reflexion", "lessons"])
def test_a_critic_reads_the_instructions_of_the_tenant_whose_conversation_it_is(method: str) -> None:
    @dynamic_prompt
    def of_tenant(request: Any) -> str:
        return f"You work for {get_config()['configurable']['tenant']}."

    _, learner, critic = make(method, model=HeedfulClerk(), critic=(model := HeedfulClerk()))
    agent = create_agent(critic, [desk.lookup_order, desk.resolve], middleware=[of_tenant, learner])
    for n, tenant in enumerate(["acme", "acme", "beta"]):
        agent.invoke({"messages": desk.ticket(4 * n)[0]}, learning_agents.config(f"t{n}", tenant))
        learner.feedback(f"t{n}", reward=float(n), tenant=tenant) if n < 2 else None
    learner.learn(tenant="acme")
    assert any("work for acme" in text for text in model.criticised)
    assert not any("work for beta" in text for text in model.criticised)


def test_a_lesson_that_ratings_of_the_same_act_outnumber_is_left_out_of_prompts() -> None:
    def resolve(how: Literal["refund"], order: str = "") -> str:
        """Resolve the customer's issue."""
        return f"{how}: arranged"

    learner = ReasoningBankMiddleware(InMemoryStore(), study="job", settings=ReasoningBank(k=20, max_memory_tokens=2_000))
    agent = create_agent(HeedfulToolModel(), [resolve], middleware=[learner], checkpointer=InMemorySaver())

    def serve(number: int, said: str, reward: float) -> str:
        agent.invoke({"messages": said}, {"configurable": {"thread_id": f"t{number}"}})
        learner.feedback(f"t{number}", reward=reward)
        learner.learn()
        return str(learner.explain(f"t{number}"))

    serve(100, "My order B1 arrived late.", 1.0)
    told = [serve(n, f"My order A{n} arrived broken.", float(n == 0)) for n in range(9)]
    right = "Of 'My order A0 arrived broken.': resolve(how='refund') was right"
    assert [right in one and "left out" not in one for one in told[1:8]] == [True] * 7, "six against one are not clear"
    assert "1 left out, since newer ratings or lessons of the same act take their place" in told[8]
    assert right not in told[8]
    assert "My order B1 arrived late.': resolve(how='refund') was right" in told[8], "one word makes it another case"
    learner.retract("t8")
    learner.retract("t6")
    assert right in serve(9, "My order A9 arrived broken.", 0.0)
    learner.settings = ReasoningBank(k=20, max_memory_tokens=80)
    assert " more, less alike or older, left out: the settings' max_memory_tokens is 80" in serve(
        10, "My order A9 arrived broken.", 0.0
    )
    assert "max_memory_tokens, or max_added_tokens had no room for all that was recalled in" in str(learner.status())


def search(query: str) -> str:
    """Search the handbook."""
    return "28 days"


@pytest.mark.parametrize("content", ["Cite the page.", "After search, cite the page."])
def test_a_lesson_is_not_unlearned_by_the_successes_that_it_brings(content: str) -> None:
    class Searcher(RandomToolModel):
        def _generate(self, messages: Any, *rest: Any, **more: Any) -> ChatResult:
            told = "\n".join(str(one.text) for one in messages)
            if not more.get("tools"):  # the critic, who draws lessons from failures alone
                items = [] if "Total reward: 1" in told else [{"title": "Source", "description": "always", "content": content}]
                return ChatResult(generations=[ChatGeneration(message=AIMessage(json.dumps({"items": items})))])
            call = {"name": "search", "args": {"query": "holidays"}, "id": f"{len(messages)}"}
            made = AIMessage("28 days" + " [page 3]" * (content in told))
            made = made if isinstance(messages[-1], ToolMessage) else AIMessage("", tool_calls=[call])
            return ChatResult(generations=[ChatGeneration(message=made)])

    learner = ReasoningBankMiddleware(InMemoryStore(), study="job")
    agent = create_agent(Searcher(), [search], middleware=[learner], checkpointer=InMemorySaver())
    cited = []
    for number in range(12):
        out = agent.invoke({"messages": "How many holidays?"}, {"configurable": {"thread_id": f"t{number}"}})
        cited.append("[page 3]" in out["messages"][-1].text)
        learner.feedback(f"t{number}", reward=float(cited[-1]))
        learner.learn()
    assert cited == [False] + [True] * 11


def test_where_users_share_a_memory_equal_lessons_count_as_without_users() -> None:
    def told(**options: Any) -> str:
        def resolve(how: Literal["refund"]) -> str:
            """Resolve the customer's issue."""
            return f"{how}: arranged"

        learner = ReasoningBankMiddleware(InMemoryStore(), study="job", state_key=lambda messages: "broken", **options)
        agent = create_agent(HeedfulToolModel(), [resolve], middleware=[learner], checkpointer=InMemorySaver())
        for number in range(9):
            run = {"configurable": {"thread_id": f"t{number}", "user_id": f"u{number}"}}
            agent.invoke({"messages": "My order arrived broken."}, run)
            learner.feedback(f"t{number}", reward=1.0)
            learner.learn()
        return str(learner.explain("t8"))

    assert "was right (from 8 conversations)" in told()
    assert "was right (from 8 conversations)" in told(user="user_id")


CITES = RunnableLambda(
    lambda _: AIMessage('{"items": [{"title": "Sources", "description": "in answers", "content": "Cite the page."}]}')
)
"""A critic that always draws the same lesson."""


def test_a_lesson_that_several_users_have_taught_is_nobodys_alone_though_few_of_them_asked_alike() -> None:
    lesson = '{"items": [{"title": "Sources", "description": "in answers", "content": "Cite the page."}]}'
    agent, learner, _ = learning_agents.make(
        "reasoning-bank", user="user_id", critic=RunnableLambda(lambda _: AIMessage(lesson))
    )

    def shown(user: str, asks: str) -> bool:
        run = {"configurable": {"thread_id": user, "tenant": "acme", "user_id": user}}
        agent.invoke({"messages": asks}, run)
        return "recalled nothing" not in learner.explain(user, tenant="acme")

    for user, asks in {"ann": "alpha", "bob": "beta", "cy": "gamma", "dee": "delta"}.items():
        assert not shown(user, asks)
        learner.feedback(user, reward=0.0, text="I wanted a new one", tenant="acme")
        learner.learn(tenant="acme")
    assert shown("eve", "alpha")


def test_with_embeddings_a_lesson_reaches_a_question_without_a_word_of_its_own() -> None:
    class Topics(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [[1.0, float("shoes" in text), float("drills" in text)] for text in texts]

        def embed_query(self, text: str) -> list[float]:
            return self.embed_documents([text])[0]

    def recalls(**options: Any) -> bool:
        agent, learner, _ = learning_agents.make("reasoning-bank", critic=CITES, **options)
        for thread, asks in (("a", "What about returned shoes?"), ("b", "How long do drills last?")):
            agent.invoke({"messages": asks}, learning_agents.config(thread))
            if thread == "a":
                learner.feedback(thread, reward=0.0, text="Cite the page", tenant="acme")
                learner.learn(tenant="acme")
        return "recalled a/0" in learner.explain("b", tenant="acme")

    assert not recalls()
    assert recalls(similarity=CosineSimilarity(Topics()))
    assert not recalls(similarity=CosineSimilarity(Topics()), min_similarity=0.9)


def test_a_wish_in_words_is_shown_however_many_bare_thumbs_came_after_it() -> None:
    def draw(messages: Any) -> AIMessage:
        said = ": ".join(re.findall(r"What is part \d+|Cite the page", messages[-1].text))
        return AIMessage(json.dumps({"items": [{"title": "Note", "description": "always", "content": said}]}))

    options: dict[str, Any] = {"settings": ReasoningBank(k=2, max_memory_tokens=100), "critic": RunnableLambda(draw)}
    agent, learner, _ = learning_agents.make("reasoning-bank", **options)
    for number in range(16):
        agent.invoke({"messages": f"What is part {number}?"}, learning_agents.config(f"t{number}"))
        learner.feedback(f"t{number}", reward=bool(number), text="" if number else "Cite the page", tenant="acme")
    learner.learn(tenant="acme")
    agent.invoke({"messages": "What is part 16?"}, learning_agents.config("new"))
    assert "What is part 0: Cite the page" in (shown := learner.explain("new", tenant="acme"))
    assert ": What is part 15" in shown


@pytest.mark.slow
def test_lessons_follow_a_truth_that_changes() -> None:
    def resolve(how: Literal["refund", "replace"]) -> str:
        """Resolve the customer's issue."""
        return f"{how}: arranged"

    learner = ReasoningBankMiddleware(InMemoryStore(), study="job", state_key=lambda messages: "broken")
    agent = create_agent(HeedfulToolModel(), [resolve], middleware=[learner], checkpointer=InMemorySaver())

    def serve(number: int, right: str, learns: bool = True) -> bool:
        agent.invoke({"messages": "My order arrived broken."}, {"configurable": {"thread_id": f"t{number}"}})
        done = learner.conversation(f"t{number}").turns[0].steps[0].action
        learner.feedback(f"t{number}", reward=float(right in done))
        if learns:
            learner.learn()
        return right in done

    def told(number: int, what: str) -> bool:
        return f"- A case (for cases like it): Of 'My order arrived broken.': resolve(how={what}" in learner.explain(
            f"t{number}"
        )

    assert all([serve(n, "refund") for n in range(25)][5:])
    assert told(24, "'refund') was right (from 8 conversations)"), "the newest of the act"
    after = [serve(n, "replace") for n in range(25, 40)]
    assert not told(26, "'refund') was wrong"), "one failure may be a chance"
    assert told(27, "'refund') was right (from 6 conversations)")
    assert told(27, "'refund') was wrong (from 2 conversations)")
    assert after == [False] * 6 + [True] * 9, "as soon as six of eight are against it"
    assert told(39, "'refund') was right (from 2 conversations)")
    assert learner.explain("t39").count("left out, since newer ratings") == 1
    assert all(serve(n, "replace", learns=False) for n in range(40, 50))
    assert told(49, "'replace') was right (from 8 conversations)"), "what the critic has not studied takes no lesson's place"


def test_what_speaks_against_a_lesson_is_counted_twice_at_most_for_each_user() -> None:
    acts = RatedActs(share=0.25)

    def rate(id: str, success: bool | None, user: str = "", action: str = "resolve(order='A7')") -> None:
        step = Transition(state="it is broken", action=action, observation="it is broken", reward=None)
        acts.add(Trajectory(id, Task("x", "x"), (step,), user=user), success)

    def is_overruled(id: str) -> bool:
        return acts.is_overruled(id, among=())

    rate("first", True)
    for number in range(20):
        rate(f"eve{number}", False, user="eve")
        rate(f"other{number}", False, user=f"{number}", action="replace(order='A7')")
    assert not is_overruled("first"), "another call is another act"
    for number in range(5):
        assert not is_overruled("first")
        rate(f"more{number}", False, user=f"{number}", action=f"resolve(order='B{number}')")
    assert is_overruled("first"), "another number is not; one for it, two of eve's against it, and five more"
    rate("more4", None)
    assert not is_overruled("first")
    assert not is_overruled("more4"), "without a rating it says nothing"
    assert not is_overruled("unknown")
    everyone = {f"eve{number}" for number in range(20)}
    assert not acts.is_overruled("eve0", everyone), "one user alone takes no lesson's place"


@pytest.mark.parametrize("tokens", [0, 7])
def test_a_lesson_that_was_recalled_and_not_shown_is_not_used(tokens: int) -> None:
    step, entry = Transition("late", "resolve()", "ok", None), {"recalled": ["t0/0"], "added_tokens": tokens}
    talk = Conversation("t", Task("x", "x"), (Turn("m", (step,), advice=(entry,)),))
    assert rated_trajectories(talk, [Rating("m", 1.0)])[0].used == (("t0/0",) if tokens else ())


def test_a_lesson_is_on_a_call_if_it_names_the_tool_or_a_text_among_its_arguments() -> None:
    steps = [("resolve(how='refund', order='A7')", ""), ("reply: It is done.", "")]
    made = Trajectory("t", Task("x", "x"), tuple(Transition("late", action, read, None) for action, read in steps))
    texts = ["Refunding was right.", "resolve it", "Cite the page.", "Say that it is done.", "A7", "Resolver and refunder"]
    assert [names_a_call(made, text) for text in texts] == [True, True, False, False, False, False]
    short = Trajectory("t", Task("x", "x"), (Transition("late", "search(q='a', language='in')", "", None),))
    assert not names_a_call(short, "Answer politely, and include a page in it")


def test_an_attempt_is_outdated_once_the_last_ratings_of_its_act_by_different_users_are_against_it() -> None:
    acts = RatedActs()

    def rate(id: str, success: bool | None, user: str = "", action: str = "resolve(how='refund')") -> None:
        step = Transition(state=f"parcel A{id} is late", action=action, observation="", reward=None)
        acts.add(Trajectory(id, Task("x", "x"), (step,), user=user), success)

    for number in range(20):
        rate(f"{number}", True)
    for number in range(4):
        assert not acts.is_outdated("19")
        for _ in range(2):  # his second one says no more than his first
            rate(f"bad{number}", False, user=f"user {number}")
            rate(f"more{number}", False, user=f"user {number}")
    assert acts.is_outdated("19")
    assert not acts.is_outdated("bad0")
    rate("0", True)
    assert acts.is_outdated("19"), "one that is rated again keeps its place"
    rate("bad3", False, action="replace()")
    rate("more3", None)
    assert not acts.is_outdated("19")
    assert not acts.is_outdated("unknown")
    for number in range(60):
        rate(f"eve{number}", False, user="eve")
    assert not acts.is_outdated("19"), "one user alone withdraws nothing"
