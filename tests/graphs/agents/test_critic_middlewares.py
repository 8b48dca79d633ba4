"""ReasoningBank and Reflexion in an agent of LangChain: a critic writes what later conversations read."""

from __future__ import annotations

import logging
from typing import Any

import help_desk as desk
import pytest
from approved_prompts import assert_approved
from help_desk import HeedfulClerk, play
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from learngraph.graphs.agents.critic import CriticMiddleware
from learngraph.graphs.agents.reasoning_bank import ReasoningBankMiddleware
from learngraph.graphs.agents.reflexion import ReflexionMiddleware

METHODS = [ReasoningBankMiddleware, ReflexionMiddleware]
methods = pytest.mark.parametrize("method", METHODS)


def make(method: type[CriticMiddleware[Any]], store: Any, **options: Any) -> tuple[Any, Any, HeedfulClerk]:
    learner = method(store, **{"task": desk.issue, "state_key": desk.issue, **options})
    model = HeedfulClerk()
    agent = create_agent(
        model,
        [desk.lookup_order, desk.resolve],
        system_prompt="You help customers.",
        middleware=[learner],
        checkpointer=InMemorySaver(),
    )
    return agent, learner, model


@methods
@pytest.mark.parametrize("awaited", [False, True])
def test_it_learns_from_feedback(method: Any, awaited: bool) -> None:
    agent, learner, model = make(method, InMemoryStore())
    rewards = play(agent, learner, range(28), awaited=awaited)
    assert sum(rewards[:4]) < 4
    assert rewards[-8:] == [1.0] * 8
    assert len(model.criticised) == 28, "each conversation is studied once"
    status = learner.status(tenant="acme")
    assert (status.studied, status.waiting, status.lessons, status.problems) == (28, 0, 28, ())
    assert "resolve it by" in learner.explain("t27", tenant="acme")


@pytest.mark.slow
@methods
def test_observing_studies_but_changes_nothing_in_the_request(method: Any) -> None:
    agent, learner, model = make(method, InMemoryStore(), mode="observe")
    assert sum(play(agent, learner, range(24))[-12:]) < 12
    assert set(model.seen) == {"You help customers."}
    assert learner.conversation("t20", tenant="acme").turns[0].advice[0]["recalled"]


@methods
def test_tenants_never_see_each_others_lessons(method: Any) -> None:
    agent, learner, model = make(method, InMemoryStore())
    play(agent, learner, range(8))
    model.seen.clear()
    play(agent, learner, range(1), tenant="bob")
    assert set(model.seen) == {"You help customers."}
    assert learner.status(tenant="bob").lessons == 1
    assert [one["reflections"][0]["thread"] for one in learner.export(tenant="bob")] == ["t0"]
    assert learner.forget(["t0", "t4"], tenant="acme") == 2
    status = learner.status(tenant="acme")
    assert (status.rated, status.studied, status.lessons) == (6, 6, 6)
    learner.forget(tenant="acme")
    assert learner.status(tenant="acme").lessons == 0
    assert learner.status(tenant="bob").lessons == 1
    model.seen.clear()
    play(agent, learner, range(8, 9))
    assert set(model.seen) == {"You help customers."}


@methods
def test_replies_that_cannot_be_read_are_counted_and_not_asked_for_again(method: Any, caplog: pytest.LogCaptureFixture) -> None:
    agent, learner, model = make(method, InMemoryStore())
    model.garbles = method is ReasoningBankMiddleware
    if method is ReflexionMiddleware:  # any text is a note, but no text is none
        learner.critic = HeedfulClerk()
        object.__setattr__(learner.critic, "say", lambda messages: AIMessage(""))
    with caplog.at_level(logging.WARNING):
        play(agent, learner, range(2))
        play(agent, learner, range(4, 5))
    status = learner.status(tenant="acme")
    assert (status.studied, status.waiting, status.lessons, len(status.unreadable)) == (3, 0, 0, 3)
    assert "3 of 3 replies of the critic could not be read" in str(status)
    assert sum("nothing was learned from t" in said for said in caplog.messages) == 3
    assert set(model.seen) == {"You help customers."}


class AwayModel(HeedfulClerk):
    away: bool = True

    def say(self, messages: Any) -> Any:
        if self.away:
            raise ConnectionError("the critic is away")
        return super().say(messages)


@methods
def test_a_critic_that_is_away_leaves_conversations_waiting(method: Any, caplog: pytest.LogCaptureFixture) -> None:
    critic = AwayModel()
    agent, learner, _ = make(method, InMemoryStore(), critic=critic)
    with caplog.at_level(logging.WARNING):
        play(agent, learner, range(3))
    status = learner.status(tenant="acme")
    assert (status.waiting, status.studied) == (3, 0)
    assert "the critic could not be asked: ConnectionError: the critic is away" in str(status)
    critic.away = False
    learner._memory(learner._labels({"tenant": "acme"})).index.resume_at = 0.0
    status = learner.learn(tenant="acme")
    assert (status.waiting, status.studied, status.failure) == (0, 3, "")


@methods
def test_feedback_from_another_process_is_studied_before_the_next_model_call(method: Any) -> None:
    store = InMemoryStore()
    (agent, first, model), (_, second, idle) = (
        make(method, store, refresh_seconds=0.0),
        make(method, store, refresh_seconds=0.0),
    )
    agent.invoke({"messages": desk.ticket(0)[0]}, {"configurable": {"thread_id": "t0", "tenant": "acme"}})
    second.feedback("t0", reward=0.0, tenant="acme")  # it has never seen a model
    assert second.status(tenant="acme").waiting == 1
    assert model.criticised == idle.criticised == []
    play(agent, first, range(4, 5))
    assert len(model.criticised) == 2
    assert "do not resolve it by" in model.seen[-1]
    third = make(method, store, critic=idle)[1]
    assert third.learn(tenant="acme").lessons == 2, "what another process has studied is not studied again"
    assert idle.criticised == []


@methods
def test_feedback_that_changes_has_the_conversation_studied_again(method: Any) -> None:
    agent, learner, model = make(method, InMemoryStore())
    play(agent, learner, range(1))
    learner.feedback("t0", reward=1.0, tenant="acme")
    learner.feedback("t0", reward=1.0, tenant="acme")
    assert len(model.criticised) == 2
    (kept,) = learner._memory(learner._labels({"tenant": "acme"})).conversations.reflections.all()
    assert "do not" not in (kept.note or kept.lessons[0].text)
    assert learner.status(tenant="acme").lessons == 1


def test_nothing_alike_enough_says_how_near_the_nearest_was() -> None:
    agent, learner, _ = make(
        ReasoningBankMiddleware, InMemoryStore(), min_similarity=0.9, state_key=lambda read: str(read[0].text)
    )
    play(agent, learner, range(3))
    status = learner.status(tenant="acme")
    assert status.recalled == 0
    assert status.nearest is not None
    assert 0 < status.nearest < 0.9
    assert f"the nearest had similarity {status.nearest:.2f}" in str(status)


@pytest.mark.parametrize(("method", "name"), [(ReasoningBankMiddleware, "reasoning-bank"), (ReflexionMiddleware, "reflexion")])
def test_the_whole_system_messages_are_as_approved(method: Any, name: str) -> None:
    agent, learner, model = make(method, InMemoryStore())
    play(agent, learner, range(0, 12, 4), words=("That was not what I needed.", "Thank you."))
    assert_approved(f"{name}-conversation-4", lambda: str(play(agent, learner, range(12, 13)) and model.seen[-1]))
    learner.feedback("t12", reward=1.0, text="Thank you, that was quick.", tenant="acme")
    assert_approved(f"{name}-critic", lambda: model.criticised[-1])
