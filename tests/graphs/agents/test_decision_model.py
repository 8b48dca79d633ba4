"""LearnedDecisionModel: routing and approvals that learn. With langchain-core below 1.8 against a stand-in of the same shape
(tests/support/decisions.py); with a newer one against LangChain's own classes."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from decisions import decisions
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage

kinds = decisions()

from learngraph.graphs.agents.decision_model import LearnedDecisionModel, state_text  # noqa: E402  # after the stand-in
from learngraph.graphs.jitrl import JitRL  # noqa: E402
from learngraph.memory.errors import UserError  # noqa: E402
from learngraph.memory.records import Trajectory  # noqa: E402
from learngraph.memory.returns.experiences import BadExperience  # noqa: E402
from learngraph.memory.storage.chroma_store import ChromaStore  # noqa: E402
from learngraph.memory.storage.record_store import RecordStore  # noqa: E402

PRIOR = {"billing": 0.6, "technical": 0.3, "sales": 0.1}
QUESTIONS = {
    "team": kinds.Choice(instructions="Which team?", criteria=dict.fromkeys(PRIOR)),
    "urgent": kinds.Noul(instructions="Is it urgent?"),
    "anger": kinds.Score(instructions="How angry?", criteria=["calm", "cross", "furious"]),
}


class Router(kinds.BaseDecisionModel):  # type: ignore[misc, name-defined]
    """Always gives the same answers."""

    model: str = "router-1"

    @property
    def _provider(self) -> str:
        return "tests"

    def _classify(self, state: Any, questions: dict[str, Any]) -> Any:
        answers: dict[str, Any] = {
            "team": {"type": "choice", "choice": "billing", "probabilities": PRIOR, "confidence": 0.4},
            "urgent": {"type": "noul", "noul": 0.5},
            "anger": {
                "type": "score",
                "score": 0.7,
                "legend": {0: "calm", 1: "cross", 2: "furious"},
                "probabilities": {0: 0.5, 1: 0.3, 2: 0.2},
                "confidence": 0.5,
            },
        }
        made = {"choice": kinds.ChoiceAnswer, "noul": kinds.NoulAnswer, "score": kinds.ScoreAnswer}
        found = {name: made[answers[name]["type"]](**answers[name]) for name in questions}
        return kinds.ClassifierResponse(model=self.model, answers=found)


def ask(state: Any = "Stripe fails when I connect my account") -> dict[str, Any]:
    return {"state": state, "questions": QUESTIONS}


def test_without_experience_every_answer_stays_as_it_is() -> None:
    assert LearnedDecisionModel(Router()).invoke(ask()) == Router().invoke(ask())


def test_it_learns_to_route() -> None:
    model = LearnedDecisionModel(Router(), beta=3.0)
    request = {"state": "Stripe fails when I connect my account", "questions": {"team": QUESTIONS["team"]}}
    assert model.invoke(request).answers["team"].choice == "billing"
    draw = random.Random(0)
    for _ in range(25):
        response = model.invoke(request)
        chances = response.answers["team"].probabilities
        (team,) = draw.choices(list(chances), list(chances.values()))
        model.learn(request, response, 1.0 if team == "technical" else 0.0, taken={"team": team})
    assert model.invoke(request).answers["team"].choice == "technical"
    assert model.invoke(request).answers["team"].probabilities["technical"] > 0.8
    answer = model.invoke(request).answers["team"]
    assert sum(answer.probabilities.values()) == pytest.approx(1)
    assert answer.confidence == max(answer.probabilities.values())
    far = model.invoke({**request, "state": "I want a discount for a hundred seats"})
    assert far.answers["team"].choice == "billing"  # nothing alike was seen


def test_the_probabilities_are_those_of_the_equation() -> None:
    """p' is proportional to p exp(beta A): one visit of `billing` that earned 0, all else 1 on average."""
    settings = JitRL(min_similarity=0.5, min_prior=0.0, exploration_bonus=0.0)
    model = LearnedDecisionModel(Router(), beta=2.0, settings=settings)
    request = {"state": "a b c d", "questions": {"team": QUESTIONS["team"]}}
    response = model.invoke(request)
    for label, reward in (("billing", 0.0), ("technical", 1.0)):
        model.learn(request, response, reward, taken={"team": label})
    kappa = settings.shrinkage_visits
    usual = 0.5  # mean of both returns; the state's own mean is the same
    q = {label: (total + kappa * usual) / (n + kappa) for label, n, total in
         (("billing", 1, 0.0), ("technical", 1, 1.0), ("sales", 0, 0.0))}  # fmt: skip
    value = sum(q.values()) / 3
    advantage = {label: x - value for label, x in q.items()}
    deviation = math.sqrt(0.5 / 1)  # variance of both returns; single visits have none of their own
    top = max(map(abs, advantage.values()))
    scale = top + deviation / math.sqrt(1 + kappa)
    weights = {label: PRIOR[label] * math.exp(2.0 * advantage[label] / scale) for label in PRIOR}
    expected = {label: weight / sum(weights.values()) for label, weight in weights.items()}
    found = model.invoke(request).answers["team"].probabilities
    assert found == pytest.approx(expected, rel=0.05)


def test_yes_and_no_and_levels_learn_too() -> None:
    model = LearnedDecisionModel(Router(), beta=3.0)
    response = model.invoke(ask())
    for _ in range(4):
        model.learn(ask(), response, {"urgent": 1.0, "anger": 1.0}, taken={"urgent": "yes", "anger": "2"})
        model.learn(ask(), response, {"urgent": 0.0, "anger": 0.0}, taken={"urgent": "no", "anger": "0"})
    learned = model.invoke(ask())
    assert learned.answers["urgent"].noul > 0.8
    assert learned.answers["anger"].score > 1.4
    assert learned.answers["anger"].probabilities.keys() == {0, 1, 2}
    assert learned.answers["team"] == response.answers["team"]  # its outcome was never told


async def test_awaited_batched_and_piped_it_is_the_same() -> None:
    model = LearnedDecisionModel(Router(), beta=3.0)
    model.learn(ask(), model.invoke(ask()), 0.0)
    learned = model.invoke(ask())
    assert learned != Router().invoke(ask())
    assert await model.ainvoke(ask()) == learned
    assert model.batch([ask(), ask()]) == [learned, learned]
    assert (model | (lambda response: response.answers["team"].choice)).invoke(ask()) == learned.answers["team"].choice


def test_an_outcome_told_again_replaces_the_first_and_outlives_the_process(tmp_path: Path) -> None:
    with ChromaStore.open(tmp_path) as store:
        shelf = RecordStore(store, ("routing",), Trajectory)
        model = LearnedDecisionModel(Router(), JitRL(min_similarity=0.5).memory(shelf))
        response = model.invoke(ask())
        id = model.learn(ask(), response, {"team": 0.0})
        once = model.invoke(ask())
        assert model.learn(ask(), response, {"team": 0.0}, id=id) == id
        assert model.invoke(ask()) == once
        model.learn(ask(), response, {"team": 5.0}, id=id)
        assert len(model.experiences) == 1
        again = LearnedDecisionModel(Router(), JitRL(min_similarity=0.5).memory(shelf))
        assert again.invoke(ask()) == model.invoke(ask())


@pytest.mark.parametrize(
    ("reward", "more", "words"),
    [
        (math.nan, {}, "finite number, got nan"),
        (True, {}, "finite number, got True"),
        ({"temu": 1.0}, {}, "no answer to 'temu'; it has"),
        (1.0, {"taken": {"team": "legal"}}, "'legal' is no answer to 'team'; there are"),
    ],
)
def test_an_outcome_that_cannot_be_is_refused_and_nothing_is_kept(reward: Any, more: Any, words: str) -> None:
    model = LearnedDecisionModel(Router())
    with pytest.raises((UserError, BadExperience), match=words):
        model.learn(ask(), model.invoke(ask()), reward, **more)
    assert not len(model.experiences)


def test_other_estimators_are_refused() -> None:
    with pytest.raises(UserError, match="guarded and shrunk; got 'paper'"):
        LearnedDecisionModel(Router(), settings=JitRL(advantage_estimator="paper"))


def test_states_are_compared_as_texts() -> None:
    assert state_text([HumanMessage("a"), AIMessage("b")]) == "a\nb"
    assert state_text({"b": HumanMessage("hi"), "a": 1}) == '{"a": 1, "b": "hi"}'
    model = LearnedDecisionModel(Router(), beta=3.0, state_key=lambda state: state["kind"])
    first = {**ask(), "state": {"kind": "refund", "customer": "Ada"}}
    model.learn(first, model.invoke(first), 0.0)
    other = {**ask(), "state": {"kind": "refund", "customer": "Bob"}}
    assert model.invoke(other) != Router().invoke(other)


def test_the_inner_models_run_is_part_of_the_learned_ones() -> None:
    class Runs(BaseCallbackHandler):
        def __init__(self) -> None:
            self.names: list[str] = []

        def on_chain_start(self, serialized: Any, inputs: Any, **more: Any) -> None:
            self.names.append(more.get("name", ""))

    runs = Runs()
    LearnedDecisionModel(Router()).invoke(ask(), {"callbacks": [runs]})
    assert runs.names == ["LearnedDecisionModel", "Router"]
