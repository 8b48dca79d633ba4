"""JitRL in an agent of LangChain: it learns from feedback, and tells what it did."""

import json
import re
from typing import Any, Literal

import help_desk as desk
import learning_agents
import pytest
from help_desk import play
from langchain.agents import create_agent
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from openai_server import OpenAIServer
from scripted_agent import ScriptedCalls
from variants import quick

from learngraph.graphs.agents.jitrl import JitRLMiddleware
from learngraph.graphs.agents.tool_decisions import ToolDecisions
from learngraph.graphs.jitrl import JitRL
from learngraph.memory.search.vectors import CosineSimilarity
from learngraph.tools.models.openai_model import OpenAIChatModel
from learngraph.tools.models.random_tools import RandomToolModel


def make(store: Any, mode: str = "guide", model: Any = None, **options: Any) -> tuple[Any, Any]:
    options = {"settings": JitRL(min_similarity=0.5, temperature=0.0), **options}  # the best call, so that no luck is needed
    return learning_agents.make("jitrl", store, model or desk.GuessingClerk(), mode=mode, **options)[:2]


@pytest.mark.parametrize("mode", quick(["guide", "observe", "off"], "guide", "off"))
def test_it_learns_from_feedback_in_one_mode_only(mode: str) -> None:
    agent, learner = make(InMemoryStore(), mode)
    if mode == "off":
        out = agent.invoke({"messages": desk.ticket(0)[0]}, {"configurable": {"thread_id": "t0"}})
        assert not out["learning"]
        return
    rewards = play(agent, learner, range(60))
    last = sum(rewards[-20:]) / 20
    if mode == "guide":
        assert last >= 0.9
        assert "chose resolve(how=" in learner.explain("t59", tenant="acme")
    else:
        assert last < 0.6
        assert learner.conversation("t59", tenant="acme").turns[0].advice


@pytest.mark.slow
def test_candidates_may_have_the_servers_log_probabilities() -> None:
    agent, learner = make(InMemoryStore(), candidates="logprobs")
    rewards = play(agent, learner, range(60))
    assert sum(rewards[-20:]) / 20 >= 0.8, "a guess helps in a quarter; now and then what was never tried is tried"


@pytest.mark.slow
def test_what_is_remembered_names_no_order_and_no_one_elses_order_is_used() -> None:
    store = InMemoryStore()
    agent, learner = make(store)
    play(agent, learner, range(40))
    index = learner._refreshed(learner._labels({"tenant": "acme"})).index.returns
    assert {one.action for one in index} <= {f"resolve(how={how!r}, order=...)" for how in desk.HOWS}
    for n in range(40, 60):
        out = agent.invoke({"messages": desk.ticket(n)[0]}, {"configurable": {"thread_id": f"u{n}", "tenant": "acme"}})
        calls = [call for m in out["messages"] if isinstance(m, AIMessage) for call in m.tool_calls]
        assert {call["args"]["order"] for call in calls} == {f"A{n}"}


@pytest.mark.slow
def test_a_call_that_only_memory_knows_is_made_with_the_values_of_this_conversation() -> None:
    class AlwaysRefund(desk.GuessingClerk):
        def say(self, messages: Any) -> AIMessage:
            found = super().say(messages)
            for call in found.tool_calls:
                if call["name"] == "resolve":
                    call["args"]["how"] = "refund"
            return found

    store = InMemoryStore()
    agent, learner = make(store)
    play(agent, learner, range(40))
    refunds, again = make(store, model=AlwaysRefund())
    rewards = play(refunds, again, range(100, 120))
    assert sum(rewards) / 20 >= 0.8, "a quarter without memory"
    entries = [again.conversation(f"t{n}", tenant="acme").turns[0].advice[1] for n in range(100, 120)]
    assert sum(one["overruled"] for one in entries) == sum(one["changed"] for one in entries) > 0
    assert re.search(
        r"memory overruled \d+ of 60 decisions, .* knows: these conversations earned",
        str(again.status(tenant="acme")),
    )


def test_a_single_failure_is_no_advice_before_something_better_is_known() -> None:
    asked = list[str]()

    class Clerk(desk.GuessingClerk):
        def say(self, messages: Any) -> AIMessage:
            asked.append(str(messages))
            return super().say(messages)

    agent, learner = make(InMemoryStore(), model=Clerk())
    shown = list[bool]()
    for number, reward in enumerate((0.0, 1.0, 1.0)):
        asked.clear()
        thread = {"configurable": {"thread_id": f"t{number}", "tenant": "acme"}}
        agent.invoke({"messages": desk.ticket(0)[0]}, thread)
        learner.feedback(f"t{number}", reward=reward, tenant="acme")
        shown.append("<memory>" in "".join(asked))
    assert shown == [False, False, True]


def test_what_stood_in_the_prompt_is_recalled_also_where_the_model_takes_another_tool() -> None:
    class Clerk(desk.GuessingClerk):
        def say(self, messages: Any) -> AIMessage:
            way = "replace" if "Late again" in str(messages) else "refund"
            call = {"name": way, "args": {"order": "A1"}, "id": "c1"}
            return AIMessage("Done.") if messages[-1].type == "tool" else AIMessage("", tool_calls=[call])

    def refund(order: str) -> str:
        """Give the money back."""
        return "done"

    def replace(order: str) -> str:
        """Send a new one."""
        return "done"

    options: dict[str, Any] = {"decide": ["refund", "replace"], "state_key": lambda messages: "late"}
    agent, learner, _ = learning_agents.make("jitrl", InMemoryStore(), Clerk(), [refund, replace], **options)
    for n, text in enumerate(("It is late.", "It is late.", "Late again.")):
        agent.invoke({"messages": text}, learning_agents.config(f"t{n}"))
        learner.feedback(f"t{n}", reward=1.0, tenant="acme")
    entry, end = learner.conversation("t2", tenant="acme").turns[0].advice
    assert (entry["chosen"], entry["recalled"]) == ("replace(order=...)", ["t1/0"])
    assert entry["added_tokens"] == end["added_tokens"] > 0
    assert "jitrl: no decision, and the prompt held what decisions earned" in learner.explain("t2", tenant="acme")
    assert "2 of 3 model calls of this process had something recalled" in str(learner.status(tenant="acme"))


@pytest.mark.slow
@pytest.mark.parametrize("options", [pytest.param({}, marks=pytest.mark.long), {"user": "user_id"}])
def test_decisions_follow_a_truth_that_changes(options: dict[str, Any]) -> None:
    def resolve(how: Literal["refund", "replace", "exchange"]) -> str:
        """Resolve the customer's issue."""
        return f"{how}: arranged"

    learner = JitRLMiddleware(InMemoryStore(), decide=["resolve"], state_key=lambda messages: "broken", **options)
    agent = create_agent(RandomToolModel(), [resolve], middleware=[learner], checkpointer=InMemorySaver())

    def serve(number: int, right: str) -> bool:
        config: Any = {"configurable": {"thread_id": f"t{number}", "user_id": f"u{number % 9}"}}
        agent.invoke({"messages": "It is broken."}, config)
        done = learner.conversation(f"t{number}").turns[0].steps[0].action
        learner.feedback(f"t{number}", reward=float(right in done))
        return right in done

    assert sum([serve(n, "refund") for n in range(40)][-10:]) >= 9
    rows = learner.conversation("t39").turns[0].advice[0]["candidates"]
    assert max(one["visits"] for one in rows) <= 10, "the newest visits of the state"
    assert all(id in learner.explain("t39") for id in learner.conversation("t39").turns[0].advice[0]["recalled"])
    assert sum([serve(n, "replace") for n in range(40, 80)][-15:]) >= 12


@pytest.mark.parametrize("options", [{}, pytest.param({"user": "user_id"}, marks=pytest.mark.long)])
def test_the_model_reads_what_a_decision_earned_last(options: dict[str, Any]) -> None:
    def resolve(how: Literal["refund", "replace"]) -> str:
        """Resolve the customer's issue."""
        return f"{how}: arranged"

    learner = JitRLMiddleware(InMemoryStore(), decide=["resolve"], state_key=lambda messages: "broken", **options)
    asked, tables = list[str](), list[list[str]]()

    class Clerk(desk.GuessingClerk):
        def say(self, messages: Any) -> AIMessage:
            asked.append("\n".join(message.text for message in messages))
            call = {"name": "resolve", "args": {"how": "refund" if number < 6 else "replace"}, "id": "c1"}
            return AIMessage("Done.") if messages[-1].type == "tool" else AIMessage("", tool_calls=[call])

    for number, reward in enumerate([1.0, 1.0, 1.0, 0.0, 0.0, 1.0, *[1.0] * 11]):
        agent = create_agent(Clerk(), [resolve], middleware=[learner], checkpointer=InMemorySaver())
        agent.invoke({"messages": "It is broken."}, {"configurable": {"thread_id": f"t{number}", "user_id": f"u{number}"}})
        tables.append(re.findall(r"^- resolve\(how=(.*)", asked[-1], re.M))
        learner.feedback(f"t{number}", reward=reward)
    assert tables[4:6] == [
        ["'refund'): 4 times, 0.75; the last first: 0, 1, 1"],
        ["'refund'): 5 times, 0.6; the last first: 0, 0, 1"],
    ]
    assert [{*one} for one in tables[15:]] == [{"'replace'): 9 times, 1", "'refund'): 1 time, 1"}, {"'replace'): 10 times, 1"}]


@pytest.mark.parametrize("options", [{}, pytest.param({"user": "user_id"}, marks=pytest.mark.long)])
def test_visits_of_an_alike_state_take_no_place_of_those_of_the_state_itself(options: dict[str, Any]) -> None:
    def resolve(how: Literal["refund", "replace"]) -> str:
        """Resolve the customer's issue."""
        return f"{how}: arranged"

    options = {"settings": JitRL(min_similarity=0.5, gamma=1.0, exploration_bonus=0.0), **options}
    options |= {"state_key": lambda messages: str(messages[0].text)}
    learner = JitRLMiddleware(InMemoryStore(), decide=["resolve"], refresh_seconds=0.0, **options)
    for number, kind in enumerate(["gold"] * 8 + ["silver"] * 8 + ["gold"]):
        model = ScriptedCalls(calls=[("resolve", {"how": "refund"})])
        agent = create_agent(model, [resolve], middleware=[learner], checkpointer=InMemorySaver())
        asked: Any = {"messages": f"The late parcel of a {kind} customer."}
        agent.invoke(asked, {"configurable": {"thread_id": f"t{number}", "user_id": f"u{number}"}})
        learner.feedback(f"t{number}", reward=1.0 if kind == "gold" else -1.0)
    (refund,) = learner.conversation("t16").turns[0].advice[0]["candidates"]
    assert refund["visits"] > 8
    assert refund["value"] > 0, "those of the state itself weigh more"


class Kinds(Embeddings):
    """The words of a text that say what is wrong; order numbers and courtesies have no part in it."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        words = ("broken", "never", "size", "charged")
        return [[float(text.count(word)) for word in words] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


@pytest.mark.slow
def test_states_in_prose_are_compared_by_their_embeddings() -> None:
    """The same words of the customer never come twice, and an encoder knows what they have in common."""
    learner = JitRLMiddleware(
        InMemoryStore(), decide=["resolve"], similarity=CosineSimilarity(Kinds()), settings=JitRL(temperature=0.0)
    )
    assert learner.make_index().returns.similarity is learner.similarity
    agent = create_agent(
        desk.GuessingClerk(), [desk.lookup_order, desk.resolve], middleware=[learner], checkpointer=InMemorySaver()
    )
    rewards = play(agent, learner, range(60))
    assert sum(rewards[-20:]) / 20 >= 0.8, "a guess helps in a quarter; now and then what was never tried is tried"
    assert JitRLMiddleware(
        InMemoryStore(), decide=["resolve"], similarity=CosineSimilarity(Kinds())
    ).settings.min_similarity == (pytest.approx(CosineSimilarity(Kinds()).default_floor))


def _completion(request: dict[str, Any], count: int) -> dict[str, Any]:
    """A reply of OpenAI's protocol with so many choices: calls of resolve, and a word after its result."""
    message: dict[str, Any] = {"role": "assistant", "content": "It is done."}
    if request["messages"][-1]["role"] != "tool":
        call = {"name": "resolve", "arguments": json.dumps({"how": "refund", "order": "A1"})}
        message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": call}]}
    choices = [{"index": n, "message": message, "finish_reason": "stop"} for n in range(count)]
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
    return {
        "body": json.dumps(
            {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}
        )
    }


@pytest.mark.slow
@pytest.mark.parametrize("model_class", [OpenAIChatModel, ChatOpenAI])
@pytest.mark.parametrize(
    ("server_does", "sent"), [("give n", [4, 4]), ("ignore n", [4, *[None] * 4]), ("refuse n", [4, *[None] * 5])]
)
def test_samples_come_in_one_request_where_the_server_takes_n(
    server_does: str, sent: list[int | None], model_class: Any
) -> None:
    def say(request: dict[str, Any]) -> Any:
        if server_does == "refuse n" and "n" in request:
            return {"status": 400, "body": '{"error": {"message": "Unsupported parameter: n", "param": "n"}}'}
        return _completion(request, request.get("n", 1) if server_does == "give n" else 1)

    learner = JitRLMiddleware(InMemoryStore(), decide=["resolve"], state_key=desk.issue)
    with OpenAIServer(say) as server:
        model = model_class(model=f"m-{server_does}-{server.url}", base_url=server.url, api_key="x")
        agent = create_agent(model, [desk.resolve], middleware=[learner], checkpointer=InMemorySaver())
        for n in range(2):
            agent.invoke(
                {"messages": "My order A1 arrived broken."}, {"configurable": {"thread_id": f"t{n}", "tenant": "acme"}}
            )
            learner.feedback(f"t{n}", reward=1.0, tenant="acme")
        asked = [request.get("n") for request in server.requests]
    assert asked == [None, None, *sent]
    (entry,) = [one for one in learner.conversation("t1", tenant="acme").turns[0].advice if one["decision"]]
    assert [(row["action"], row["prior"]) for row in entry["candidates"]] == [("resolve(how='refund', order=...)", 0.0)]


@pytest.mark.parametrize("value", ["[secret]", "[private]", "[from read_file]"])
def test_a_decision_with_a_value_that_is_not_kept_is_not_taken_again(value: str) -> None:
    decisions = ToolDecisions({"resolve": ["order"]})
    decisions.read_tools([desk.resolve])
    assert decisions.form_of_text(f"resolve(how='refund', order={value!r})") is None
    assert str(decisions.form_of_text("resolve(how='refund', order='A1')")) == "resolve(how=..., order='A1')"
