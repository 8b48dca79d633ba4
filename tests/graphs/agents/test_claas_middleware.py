"""Feedback on an agent's conversations reaches the service behind its model."""

import logging
from typing import Any

import pytest
from chat_backend import KEY, FakeBackend, serving
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from learngraph.graphs.agents.claas import FeedbackMiddleware
from learngraph.memory.errors import FeedbackConflict, UserError


def make(url: str, key: str) -> tuple[Any, FeedbackMiddleware]:
    learner = FeedbackMiddleware(InMemoryStore(), base_url=f"{url}/v1", api_key=key)
    model = ChatOpenAI(model="pocket", base_url=f"{url}/v1", api_key=key, max_retries=0)  # type: ignore[arg-type]
    return create_agent(model, [], middleware=[learner], checkpointer=InMemorySaver()), learner


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def test_feedback_goes_to_every_response_since_the_feedback_before_it() -> None:
    backend = FakeBackend()
    with serving(backend) as url:
        agent, learner = make(url, KEY)
        for said in ("one", "two", "three"):
            agent.invoke({"messages": said}, config("a"))
        agent.invoke({"messages": "other"}, config("b"))
        ids = [entry["response_id"] for turn in learner.conversation("a").turns for entry in turn.advice]
        assert len(set(ids)) == 3
        assert set(ids) < {id for _, id in backend.kept}
        learner.feedback("a", reward=1.0, text="well done")
        sent = {id: exchange.feedback for (_, id), exchange in backend.kept.items() if exchange.feedback}
        assert set(sent) == set(ids)
        assert {(one.reward, one.text) for one in sent.values() if one} == {(1.0, "well done")}
        learner.feedback("a", reward=1.0, text="well done")  # the same again counts once
        agent.invoke({"messages": "four"}, config("a"))
        with pytest.raises(UserError, match="may have trained on it"):
            learner.retract("a")
        learner.feedback("a", text="no")
        last = learner.conversation("a").turns[-1].advice[0]["response_id"]
        assert {id for (_, id), one in backend.kept.items() if one.feedback and one.feedback.text == "no"} == {last}
        assert f"response {last}" in learner.explain("a")
        learner.close()


def test_a_service_that_is_away_or_refuses_says_so_and_the_same_call_sends_it_again(caplog: pytest.LogCaptureFixture) -> None:
    backend = FakeBackend()
    with serving(backend) as url:
        agent, learner = make(url, KEY)
        agent.invoke({"messages": "one"}, config("a"))
        send, learner._send = learner._send, lambda id, rating: "ConnectError: away"  # type: ignore[method-assign]
        with pytest.raises(UserError, match="took none of 1: ConnectError: away"):
            learner.feedback("a", reward=1.0)
        learner._send = send  # type: ignore[method-assign]
        learner.feedback("a", reward=1.0)
        assert [one.feedback.reward for one in backend.kept.values() if one.feedback] == [1.0]

        async def refuse(*given: Any) -> Any:
            raise FeedbackConflict("it was learned from already")

        backend.feedback = refuse  # type: ignore[method-assign]
        with caplog.at_level(logging.WARNING), pytest.raises(UserError, match=r"status 409"):
            learner.feedback("a", reward=-1.0)
        learner.close()


def test_of_a_conversation_in_quarantine_nothing_is_sent_before_its_release() -> None:
    backend = FakeBackend()
    with serving(backend) as url:
        agent, learner = make(url, KEY)
        agent.invoke({"messages": "one"}, config("a"))
        learner.feedback("a", reward=1.0, text="You are now a pirate.")
        assert [one for one in backend.kept.values() if one.feedback] == []
        learner.release("a")
        assert [one.feedback.text for one in backend.kept.values() if one.feedback] == ["You are now a pirate."]
        learner.close()


def test_a_model_of_another_server_is_named() -> None:
    from learngraph.tools.models.random_tools import RandomToolModel

    learner = FeedbackMiddleware(InMemoryStore(), base_url="http://127.0.0.1:9/v1")
    agent = create_agent(RandomToolModel(), [], middleware=[learner], checkpointer=InMemorySaver())
    agent.invoke({"messages": "one"}, config("a"))
    with pytest.raises(UserError, match="no response of thread 'a' has an id of the service"):
        learner.feedback("a", reward=1.0)
    assert "feedback on it cannot be sent" in learner.explain("a")


def test_what_a_reward_source_says_reaches_the_service_too() -> None:
    backend = FakeBackend()
    with serving(backend) as url:
        learner = FeedbackMiddleware(InMemoryStore(), base_url=f"{url}/v1", api_key=KEY, reward=lambda messages: (0.5, "so so"))
        model = ChatOpenAI(model="pocket", base_url=f"{url}/v1", api_key=KEY, max_retries=0)  # type: ignore[arg-type]
        create_agent(model, [], middleware=[learner], checkpointer=InMemorySaver()).invoke({"messages": "one"}, config("a"))
        assert [(one.feedback.reward, one.feedback.text) for one in backend.kept.values() if one.feedback] == [(0.5, "so so")]
        learner.close()
