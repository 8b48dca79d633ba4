"""A decision model of LangChain that learns: what an answer earned in states like this one is added to its log-probability.

    router = LearnedDecisionModel(decision_model, beta=2.0)
    request = {"state": "Stripe fails when I connect my account.", "questions": {"team": Choice(...)}}
    response = router.invoke(request)                         # a ClassifierResponse, as the inner model gives it
    router.learn(request, response, 0.0)                      # days later, if need be: it was the wrong team

A decision model (`langchain_core.decisions.BaseDecisionModel`, langchain-core 1.8 or newer) answers questions about a state with
probabilities: a label (`Choice`), yes or no (`Noul`), a level (`Score`). They route requests and approve tool calls in LangChain's
middleware, which take this one in their place. For each question the nodes of JitRL's graph (graphs/jitrl.py) recall what the
answers earned in similar states, and add beta times the advantage:

    p'(a | s) is proportional to p(a | s) exp(beta A(s, a))

A question without experience of similar states keeps its answer as it is; `Box` always does. The learned `choice` is the label of
the highest p', and the confidence is that probability. An outcome may be told late, again (the last one holds), or never. An app that
always acts on the likeliest answer learns nothing of the others where that one never pays: let it draw from the probabilities, and say
what it took (`learn(..., taken=...)`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any
from uuid import uuid4

from langchain_core.messages import BaseMessage
from pydantic import ConfigDict, PrivateAttr

from ...memory.errors import UserError
from ...memory.records import Candidate, Observation, Task, Trajectory, Transition
from ...memory.returns.experiences import Experiences
from ...nodes.act.choose import softmax
from ..jitrl import VARIANT_NODES, JitRL
from .learner import ChatWorld

try:
    from langchain_core.decisions import BaseDecisionModel  # type: ignore[import-not-found, unused-ignore]
except ImportError as error:
    raise ImportError(
        "LearnedDecisionModel wraps decision models, which langchain-core has from 1.8 on: pip install 'langchain-core>=1.8'"
    ) from error

__all__ = ["LearnedDecisionModel", "state_text"]

MIN_PROBABILITY = 1e-6
"""The least probability of an answer: 0 has no logarithm."""
DOMAIN = "decisions"


def state_text(state: Any) -> str:
    """A state as the text by which it is compared: messages by their texts, objects as JSON with sorted keys."""
    if isinstance(state, str):
        return state
    if isinstance(state, BaseMessage):
        return str(state.text)
    if isinstance(state, list | tuple) and any(isinstance(part, BaseMessage) for part in state):
        return "\n".join(map(state_text, state))
    return json.dumps(state, sort_keys=True, ensure_ascii=False, default=state_text)


class LearnedDecisionModel(BaseDecisionModel):  # type: ignore[misc, unused-ignore]
    """A decision model whose probabilities are moved by what its answers earned.

    Args:
        inner: the decision model.
        experiences: the memory; `settings.memory(shelf)` makes one that outlives the process. One in this process if not given.
        beta: nats by which the largest advantage moves a log-probability; that of the settings if not given.
        settings: JitRL's; only the estimators `guarded` and `shrunk` are of use here. By default states count as similar from 0.5
            on, by their words.
        state_key: gives the text of a state by which it is compared, in place of `state_text`: the less it holds that does not
            matter, the more states are alike.

    Raises:
        UserError: another estimator.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    inner: Any
    experiences: Any
    settings: Any
    state_key: Any
    _nodes: Any = PrivateAttr()

    def __init__(
        self,
        inner: Any,
        experiences: Experiences | None = None,
        *,
        beta: float | None = None,
        settings: JitRL | None = None,
        state_key: Callable[[Any], str] = state_text,
        **more: Any,
    ) -> None:
        settings = settings or JitRL(min_similarity=0.5)
        settings = settings if beta is None else replace(settings, beta=beta)
        if settings.advantage_estimator not in ("guarded", "shrunk"):
            raise UserError(
                f"decisions are learned with our own estimators, guarded and shrunk; got {settings.advantage_estimator!r}"
            )
        memory = settings.memory() if experiences is None else experiences
        super().__init__(model=inner.model, inner=inner, experiences=memory, settings=settings, state_key=state_key, **more)
        self._nodes = VARIANT_NODES[settings.advantage_estimator](settings, memory, ChatWorld(DOMAIN), None)  # type: ignore[arg-type]

    @property
    def _provider(self) -> str:
        return str(self.inner._provider)

    def _classify(self, state: Any, questions: dict[str, Any]) -> Any:
        return self._with_advantages(state, self.inner.invoke({"state": state, "questions": questions}))

    async def _aclassify(self, state: Any, questions: dict[str, Any]) -> Any:
        return self._with_advantages(state, await self.inner.ainvoke({"state": state, "questions": questions}))

    def _with_advantages(self, state: Any, response: Any) -> Any:
        key = str(self.state_key(state))
        answers = {name: self._answer(name, key, answer) for name, answer in response.answers.items()}
        return response.model_copy(update={"answers": answers})

    def _answer(self, question: str, key: str, answer: Any) -> Any:
        known = _probabilities(answer)
        if len(known) < 2:
            return answer
        channels: dict[str, Any] = {
            "task": Task(question, ""),
            "run": "",
            "episode": 0,
            "step": 0,
            "head": "",
            "observation": Observation(key, tuple(known)),
            "candidates": [Candidate(label, math.log(max(p, MIN_PROBABILITY))) for label, p in known.items()],
        }
        channels |= self._nodes["recall"](channels)
        if not channels["neighbours"]:
            return answer
        channels |= self._nodes["advise"](channels)
        channels |= self._nodes["modulate"](channels)
        chances = softmax([candidate.logit for candidate in channels["candidates"]])
        return _with_probabilities(answer, dict(zip(known, chances, strict=True)))

    def learn(
        self,
        request: Mapping[str, Any],
        response: Any,
        reward: float | Mapping[str, float],
        *,
        taken: Mapping[str, str] | None = None,
        id: str = "",
    ) -> str:
        """Remember what the answers of a response earned.

        Args:
            request: the request.
            response: the response that was acted on.
            reward: the outcome of all questions, or question -> outcome; questions that are left out are not learned from.
            taken: question -> the answer that was acted on, where it is another than the likeliest: a label, `yes` or `no`, the
                number of a level.
            id: name of the outcome. One that is told again under its name replaces the first.

        Returns:
            The outcome's id.

        Raises:
            UserError: a reward that is no finite number, a question that was not asked, or an answer that it does not have.
        """
        rewards = dict(reward) if isinstance(reward, Mapping) else dict.fromkeys(response.answers, reward)
        acted = dict(taken or {})
        for name in (*rewards, *acted):
            if name not in response.answers:
                raise UserError(f"the response has no answer to {name!r}; it has {sorted(response.answers)}")
        id, key = id or uuid4().hex, str(self.state_key(request["state"]))
        made = []
        for name, value in rewards.items():
            known = _probabilities(response.answers[name])
            label = acted.get(name, max(known, key=known.__getitem__, default=""))
            if acted.get(name) and label not in known:
                raise UserError(f"{label!r} is no answer to {name!r}; there are {list(known)}")
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise UserError(f"a reward is a finite number, got {value!r} for {name!r}")
            if label:
                step = Transition(key, label, float(value))
                made.append(
                    Trajectory(f"{id}/{_digest(name)}", Task(name, ""), (step,), run=id, score=float(value), domain=DOMAIN)
                )
        for trajectory in made:
            self.experiences.add(trajectory)
        return id


def _digest(name: str) -> str:
    return blake2b(name.encode(), digest_size=8).hexdigest()


def _probabilities(answer: Any) -> dict[str, float]:
    """Answer as text -> its probability; empty for kinds of answers without probabilities."""
    if answer.type == "noul":
        return {"yes": answer.noul, "no": 1 - answer.noul}
    return {str(label): float(p) for label, p in getattr(answer, "probabilities", {}).items()}


def _with_probabilities(answer: Any, chances: Mapping[str, float]) -> Any:
    """The answer with other probabilities, and with what follows from them."""
    if answer.type == "noul":
        return answer.model_copy(update={"noul": chances["yes"]})
    best = max(chances, key=chances.__getitem__)
    update: dict[str, Any] = {
        "probabilities": {label: chances[str(label)] for label in answer.probabilities},
        "confidence": min(max(chances[best], 0.0), 1.0),
    }
    if answer.type == "choice":
        update["choice"] = best
    else:
        update["score"] = math.fsum(float(level) * p for level, p in chances.items())
    return answer.model_copy(update=update)
