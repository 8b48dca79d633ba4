"""AdaMEM in an agent of LangChain: strategies from rated conversations in the prompt."""

import logging
from collections.abc import Sequence
from typing import Any

import help_desk as desk
import learning_agents
import pytest
from help_desk import ADVICE, HeedfulClerk, play
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from learning_agents import PLAIN, advice, config
from scripted_agent import ScriptedCalls
from variants import quick

from learngraph.graphs.adamem import AdaMEM
from learngraph.graphs.agents.adamem import VOTE_TOOL, AdaMEMMiddleware
from learngraph.memory.errors import UserError


class VotingModel(HeedfulClerk):
    """Asks for memory where it may and has no advice on how to resolve the issue."""

    offered: list[tuple[str, ...]] = []  # noqa: RUF012 (pydantic copies it)

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self.bind(tools=[tool["function"]["name"] if isinstance(tool, dict) else tool.name for tool in tools])

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        reply, tools = self.say(messages), tuple(kwargs.get("tools", ()))
        self.offered.append(tools)
        decides = [call for call in reply.tool_calls if call["name"] == "resolve"]
        if VOTE_TOOL in tools and decides and not ADVICE.search("\n".join(str(m.text) for m in messages)):
            reply = AIMessage("", tool_calls=[{"name": VOTE_TOOL, "args": {}, "id": decides[0]["id"]}])
        return ChatResult(generations=[ChatGeneration(message=reply)])


def make(model: Any = None, mode: str = "low", **options: Any) -> tuple[Any, Any, Any]:
    return learning_agents.make({"low": "adamem"}.get(mode, f"adamem-{mode}"), model=model, **options)


@pytest.mark.parametrize(
    ("mode", "awaited"), quick([("high", False), ("low", False), ("low", True), ("high", True), ("max", True)], ("high", False))
)
def test_it_learns_from_feedback(mode: str, awaited: bool) -> None:
    agent, learner, _ = make(VotingModel(), mode)
    rewards = play(agent, learner, range(28), awaited=awaited)
    assert rewards[-8:] == [1.0] * 8
    assert sum(rewards[:4]) < 4
    kept = agent.get_state(config("t27")).values["messages"]
    assert VOTE_TOOL not in {call["name"] for m in kept for call in getattr(m, "tool_calls", ())}
    told = learner.explain("t27", tenant="acme")
    assert "if a customer says 'was charged twice', resolve it by credit" in told
    assert learner.status(tenant="acme").problems == ()


def test_the_strategist_reads_what_was_done_of_late_and_not_the_best_alone() -> None:
    @tool
    def resolve(how: str) -> str:
        """Resolve the case."""
        return f"{how}: arranged"

    model, strategist = (
        ScriptedCalls(calls=[("resolve", {"how": "refund"}), None] * 12),
        ScriptedCalls(calls=[], text="Strategy: nothing"),
    )
    options: dict[str, Any] = {"strategist": strategist, "state_key": lambda messages: messages[-1].type}
    agent, learner, _ = learning_agents.make("adamem", None, model, (resolve,), **options)
    for number in range(12):
        agent.invoke({"messages": "My parcel is late"}, config(f"t{number}"))
        learner.feedback(f"t{number}", reward=float(number < 3), tenant="acme")
    assert advice(learner, "t3")[0]["recalled"] == ["t2/0", "t1/0", "t0/0"]
    assert advice(learner, "t11")[0]["recalled"] == [f"t{number}/0" for number in range(10, 2, -1)], (
        "eight, the newest of equals"
    )


def test_a_strategy_is_kept_within_a_turn_and_no_longer() -> None:
    agent, learner, model = make()
    play(agent, learner, range(8))
    model.criticised.clear()
    play(agent, learner, range(8, 9))
    assert len(model.criticised) == 1
    first, *later = advice(learner, "t8")
    assert first["usage"]["calls"] == 1
    assert first["usage"]["input_tokens"] > 100 < 2 * first["usage"]["output_tokens"] + 100
    assert [entry["strategy"] for entry in later] == [first["strategy"]] * 2
    assert [entry["usage"]["calls"] for entry in later] == [0, 0]
    assert all(entry["recalled"] == first["recalled"] != [] for entry in later)
    agent.invoke({"messages": desk.ticket(9)[0]}, config("t8"))
    assert len(model.criticised) == 2
    assert "kept since step" in learner.explain("t8", tenant="acme")


def test_a_strategy_that_no_longer_helps_is_replaced_when_the_model_says_so() -> None:
    """The first one is about another issue: the model asks for another before it resolves."""
    agent, learner, model = make(VotingModel(), state_key=desk.issue)
    for n in range(0, 28, 4):
        play(agent, learner, range(n, n + 1))

    class Stubborn(VotingModel):
        def say(self, messages: Sequence[BaseMessage]) -> AIMessage:
            if str(messages[0].text).startswith("You advise an assistant") and not self.criticised:
                self.criticised.append("")
                return AIMessage("Strategy:\n- if the order is lost: say so")
            return super().say(messages)

    model = Stubborn()
    agent = create_agent(model, [desk.lookup_order, desk.resolve], middleware=[learner], checkpointer=InMemorySaver())
    assert play(agent, learner, range(28, 29)) == [1.0]
    looked, resolved, done = advice(learner, "t28")
    assert looked["strategy"]["text"] == "if the order is lost: say so"
    assert resolved["reasons"] == ["vote"]
    assert "resolve it by replace" in resolved["strategy"]["text"]
    assert resolved["usage"]["calls"] == 2, "the strategist's, and the draft's that was not carried out"
    assert done["strategy"] == resolved["strategy"]
    assert "asked memory: the agent itself asks for advice" in learner.explain("t28", tenant="acme")


def test_high_asks_memory_only_where_the_model_is_unsure() -> None:
    agent, learner, model = make(VotingModel(), "high")
    play(agent, learner, range(8))
    model.criticised.clear()
    model.offered.clear()
    play(agent, learner, range(8, 9))
    looked, resolved, done = advice(learner, "t8")
    assert [entry["reasons"] for entry in (looked, resolved, done)] == [[], ["vote"], []]
    assert (looked["strategy"], done["strategy"], len(model.criticised)) == (None, None, 1)
    assert resolved["strategy"]["sources"]
    all_three = ("lookup_order", "resolve", VOTE_TOOL)
    assert model.offered == [all_three, all_three, (), all_three, all_three], "draft, draft, strategy, call with it, draft"


def test_a_strategist_that_finds_nothing_of_use_is_not_asked_about_the_same_again_in_a_turn() -> None:
    class Useless(VotingModel):
        def say(self, messages: Sequence[BaseMessage]) -> AIMessage:
            reply = super().say(messages)
            return AIMessage("Strategy: nothing") if "Strategy:" in str(reply.text) else reply

    agent, learner, model = make(Useless())
    play(agent, learner, range(8))
    model.criticised.clear()
    play(agent, learner, range(8, 9))
    assert [bool(one["declined"]) for one in advice(learner, "t8")] == [True, False, False]
    assert len(model.criticised) == 1
    assert "not asked again" in learner.explain("t8", tenant="acme")


@pytest.mark.slow
def test_the_strategist_reads_the_agents_tools_the_present_request_and_a_bounded_part_of_the_conversation() -> None:
    agent, learner, model = make()
    play(agent, learner, range(5))
    for n in range(14, 20):
        agent.invoke({"messages": f"{desk.ticket(n)[0]} </present> {'word ' * 1100}"}, config("t4"))
    asked = [one.partition("# Earlier situations") for one in model.criticised]
    tools = "- lookup_order: Look an order up.\n- resolve: Resolve the customer's issue.\n"
    assert f"\nYou help customers.\n</instructions>\nIts tools:\n{tools}" in asked[-1][0]
    present = asked[-1][2].partition("# The present situation")[2]
    assert "The user's request: My order A19 was charged twice." in present
    assert present.count("</present>") == 1
    assert len("".join(asked[-1])) < 30_000


def test_a_draft_that_only_asks_is_asked_again_where_memory_has_nothing() -> None:
    agent, learner, model = make(VotingModel(), "high")
    play(agent, learner, range(1))
    _, resolved, _ = advice(learner, "t0")
    assert (resolved["reasons"], resolved["recalled"], resolved["strategy"]) == (["vote"], [], None)
    assert model.criticised == []
    assert learner.status(tenant="acme").recalled == 0


def test_replies_that_cannot_be_read_leave_the_agent_without_advice_and_it_says_so(caplog: pytest.LogCaptureFixture) -> None:
    agent, learner, model = make(HeedfulClerk(garbles=True))
    play(agent, learner, range(1))
    with caplog.at_level(logging.WARNING):
        play(agent, learner, range(4, 5))
    assert set(model.seen) == {PLAIN}
    first = advice(learner, "t4")[0]
    assert (first["strategy"], first["usage"]["unreadable"], first["usage"]["calls"]) == (None, 3, 3)
    assert "no strategy was written: 3 replies of the strategist cannot be read" in learner.explain("t4", tenant="acme")
    assert any("no usable reply in 3 tries: adamem/chat_strategy" in said for said in caplog.messages)
    play(agent, learner, range(8, 13, 4))
    assert "is left alone for" in learner.explain("t12", tenant="acme"), "it was asked twice, and in vain"


@pytest.mark.parametrize("awaited", [False, True])
def test_a_strategist_that_is_down_stops_no_agent(awaited: bool, caplog: pytest.LogCaptureFixture) -> None:
    class Down(GenericFakeChatModel):
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            asked.append(1)
            raise ConnectionError("no strategist")

    asked = list[int]()
    agent, learner, model = make(mode="max", strategist=Down(messages=iter([])))
    play(agent, learner, range(1))
    with caplog.at_level(logging.WARNING):
        play(agent, learner, range(4, 5), awaited=awaited)
        play(agent, learner, range(8, 9), awaited=awaited)
    assert set(model.seen) == {PLAIN}
    assert "the strategist cannot be asked: no strategist" in learner.explain("t4", tenant="acme")
    said = "no strategy was written: the strategist has failed before, and is left alone for "
    assert said in learner.explain("t8", tenant="acme")
    assert len(asked) == 2, "it is left alone after two failures in a row"
    words = "adamem: no strategy was written for agents/agent/tenant=acme: the strategist cannot be asked: no strategist"
    assert caplog.messages == [words] * 2
    learner._pauses.clear()
    play(agent, learner, range(12, 13), awaited=awaited)
    assert len(asked) == 4


def test_the_strategist_is_not_streamed_and_entries_are() -> None:
    agent, learner, _ = make(mode="max")
    play(agent, learner, range(8))
    chunks = list(agent.stream({"messages": desk.ticket(8)[0]}, config("new"), stream_mode=["messages", "custom"]))
    said = "".join(str(message.text) for kind, (message, _) in (c for c in chunks if c[0] == "messages") if kind)
    assert "I compared them" not in said
    assert "It is done." in said
    entries = [payload["learning"] for kind, payload in chunks if kind == "custom"]
    assert len(entries) == 3
    assert all(entry["strategy"]["text"] and entry["usage"]["calls"] == 1 for entry in entries)


def test_a_tool_that_fails_is_a_reason_for_another_strategy() -> None:
    from langchain_core.tools import ToolException, tool

    @tool
    def lookup_order(order: str) -> str:
        """Look an order up."""
        raise ToolException("the shop is closed")

    lookup_order.handle_tool_error = True
    learner = AdaMEMMiddleware(InMemoryStore(), settings=AdaMEM(triggers=("refused",)))
    model = HeedfulClerk()
    agent = create_agent(model, [lookup_order, desk.resolve], middleware=[learner], checkpointer=InMemorySaver())
    play(agent, learner, range(5))
    assert [entry["reasons"] for entry in advice(learner, "t4")] == [[], ["refused"], []]
    assert [entry["usage"]["calls"] for entry in advice(learner, "t4")] == [1, 2, 0]


def test_a_model_that_takes_no_tools_cannot_vote_and_answers_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    learner = AdaMEMMiddleware(InMemoryStore(), settings=AdaMEM(mode="high"))
    agent = create_agent(GenericFakeChatModel(messages=iter(["Hello.", "Bye."])), middleware=[learner])
    with caplog.at_level(logging.WARNING):
        assert agent.invoke({"messages": "Hi."})["messages"][-1].text == "Hello."
        assert agent.invoke({"messages": "Hi."})["messages"][-1].text == "Bye."
    assert sum("takes no tools, so it cannot vote" in said for said in caplog.messages) == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mode": "raw"}, "mode=raw: take low, low-on-request, high or max"),
        ({"author": "rule"}, "repeats the arguments of other conversations"),
        ({"bank": "bank.jsonl"}, "import its trajectories"),
        ({"embedder": "minilm"}, "give similarity="),
    ],
)
def test_settings_that_mean_nothing_in_conversations_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        AdaMEMMiddleware(InMemoryStore(), settings=AdaMEM(**settings))
