"""ReasoningBank and Reflexion in an agent of LangChain: a critic writes what later conversations read."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import help_desk as desk
import learning_agents
import pytest
from help_desk import HeedfulClerk, play
from langchain_core.messages import AIMessage
from langgraph.store.memory import InMemoryStore
from learning_agents import PLAIN

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
    assert "3 of 3 replies of the critic could not be read" in str(status)
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
    agent, learner, _ = make(method, critic=critic)
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
def test_feedback_from_another_process_is_studied_before_the_next_model_call(method: str) -> None:
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
def test_feedback_that_changes_has_the_conversation_studied_again(method: str) -> None:
    agent, learner, model = make(method)
    play(agent, learner, range(1))
    learner.feedback("t0", reward=1.0, tenant="acme")
    learner.feedback("t0", reward=1.0, tenant="acme")
    assert len(model.criticised) == 2
    (kept,) = learner._memory(learner._labels({"tenant": "acme"})).conversations.reflections.all()
    assert "do not" not in (kept.note or kept.lessons[0].text)
    assert learner.status(tenant="acme").lessons == 1


def test_nothing_alike_enough_says_how_near_the_nearest_was() -> None:
    agent, learner, _ = make("reasoning-bank", min_similarity=0.9, state_key=lambda read: str(read[0].text))
    play(agent, learner, range(3))
    status = learner.status(tenant="acme")
    assert status.recalled == 0
    assert status.nearest is not None
    assert 0 < status.nearest < 0.9
    assert f"the nearest had similarity {status.nearest:.2f}" in str(status)
