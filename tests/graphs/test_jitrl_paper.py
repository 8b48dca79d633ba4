"""`JitRL.paper()` is the paper's whole method: a scripted model judges, sums up and states options, and all numbers are worked out by hand."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.checkpoint.memory import InMemorySaver

from learngraph.graphs import jitrl
from learngraph.graphs.baselines import prompt_update
from learngraph.graphs.baselines.prompt_update import PromptUpdate
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task
from learngraph.memory.returns.experiences import Experiences
from learngraph.memory.search.sections import split_sections
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.act.policies import verbalized_policy
from learngraph.nodes.evaluate.judge import model_judge
from tests.support.scripted_chat import ScriptedChat

TASK = Task("vault", "open the vault")


class Vault:
    """A text world of two rooms: whatever is done in the hall leads to the vault, where the second action ends the game and pays 1."""

    name, horizon, solved, instant = "vault", 2, 5.0, True

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        if not actions:
            return Observation("A hall with a door.", ("go", "wait", "jump", "sing", "dance"))
        return Observation("A vault.", ("take", "leave"), float(len(actions) == 2), len(actions) == 2)

    def abstract(self, observation: Observation) -> str:
        return observation.text


def options(**confidences: float) -> str:
    listed = [{"reasoning": "so", "action": action, "confidence": confidence} for action, confidence in confidences.items()]
    return json.dumps({"progress": "none", "objective": "the vault", "options": listed, "best_action": "go"})


class Writer(ScriptedChat):
    """Answers each of the method's prompts: the hall's options are those of its episode, and the judge gives these scores."""

    in_hall: list[str]
    scores: tuple[float, float]
    replies: list[str] = []  # noqa: RUF012  # pydantic copies it

    def say(self, messages: list[BaseMessage], **bound: Any) -> AIMessage:
        system, asked = str(messages[0].content), str(messages[-1].content)
        if "sum up" in system:
            room = "hall, door; go" if asked.rstrip().count("A vault.") == 0 else "vault; take"
            reply = f"[Summary]: A start.\n[Progress]: none\n[Location]: hall\n[State]: {room}"
        elif '"rewards"' in asked:
            judged = [{"step": n, "action": "a", "reason": "so", "reward": score} for n, score in enumerate(self.scores, 1)]
            reply = json.dumps({"rewards": judged, "assessment": "fair"})
        else:
            reply = options(take=100) if "- take" in asked else self.in_hall.pop(0)
        self.replies = [reply]
        return super().say(messages, **bound)


def play(
    settings: Any, build: Any = jitrl.build, scores: tuple[float, float] = (4, 2)
) -> tuple[Writer, Experiences, Mapping[str, Any]]:
    """Play an episode in which the model knows `wait` alone, and the next one up to its first choice: the model, memory and state."""
    chat = Writer(in_hall=[options(wait=100), options(go=50, jump=30, sing=15, dance=5)], scores=scores)
    inputs = replace(MethodInputs.with_chat_model(Vault(), Journal(), chat), make_policy=partial(verbalized_policy, chat))
    memory = jitrl.open_memory(settings if build is jitrl.build else settings.as_jitrl(), inputs)
    graph = build(inputs, settings, experiences=memory, checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "0"}}
    graph.invoke({"task": TASK, "run": "r", "episode": 0}, config)
    config = {"configurable": {"thread_id": "1"}}
    graph.invoke({"task": TASK, "run": "r", "episode": 1}, config, interrupt_before=["choose"])
    return chat, memory, graph.get_state(config).values


def test_from_the_judge_to_the_logits() -> None:
    """The judge's 4 and 2 return 4 + .5 * 2 = 5 and 2. In the hall memory knows `wait`, so V = 5 = Q(wait) and A(wait) = 0. Of the
    model's four options the best three are candidates, with z = .5, .3 and .15; an untried one has Q = 5 + 5 / 1 or 0, so that
    A = 5 or -5, and A / (5 + 1e-6) moves z by +-1. `wait`, which only memory knows, has z = 0 and stays there."""
    settings = jitrl.JitRL.paper()
    _, memory, state = play(settings)
    assert [(e.action, e.value) for e in memory] == [("wait", 5.0), ("take", 2.0)]
    assert state["value"] == 5.0
    explored = {e.action for e in state["estimates"] if e.explored}
    shifts = {a: 1.0 if a in explored else -1.0 for a in ("go", "jump", "sing")} | {"wait": 0.0}
    assert {e.action: e.shift for e in state["estimates"]} == pytest.approx(shifts, abs=1e-6)
    z = {"go": 0.5, "jump": 0.3, "sing": 0.15, "wait": 0.0}
    assert dict(zip(z, state["prior"], strict=True)) == pytest.approx(z)
    found = {c.action: c.logit for c in state["candidates"]}
    assert found == pytest.approx({action: z[action] + settings.beta * shifts[action] for action in z}, abs=1e-6)


def test_the_hindsight_score_is_not_discounted_again() -> None:
    _, memory, state = play(replace(jitrl.JitRL.paper(), evaluator="hindsight"))
    assert [e.value for e in memory] == [4.0, 2.0]
    assert state["value"] == 4.0


def test_the_reference_merges_the_judges_scores_with_the_worlds_rewards() -> None:
    """Scores 4 and 0; the world pays 1 of the 5 that would win, so that the last step counts -10: 4 - .5 * 10 = -1, and -10."""
    _, memory, _ = play(jitrl.JitRL.reference(), scores=(4, 0))
    assert [e.value for e in memory] == [-1.0, -10.0]


def test_the_prompts_are_the_papers_and_the_summary_is_shown_to_the_generator() -> None:
    chat, _, state = play(jitrl.JitRL.paper())
    key = split_sections(state["observation"].key)
    assert (key["state"], key["history"]) == ("hall, door; go", "progress: none\nlocation: hall")
    kinds = ["sum up", "expert player"] * 2 + ["You score the actions", "sum up", "expert player"]
    assert [kind in str(one[0].content) for kind, one in zip(kinds, chat.asked, strict=True)] == [True] * len(kinds)
    summary, generator, judge = (chat.prompt(n) for n in (2, 3, 4))
    assert "= " not in summary  # it reads states and actions, no rewards
    assert "summary: A start.\nprogress: none\nlocation: hall" in generator
    assert "Steps: 2. Final score: 1." in judge
    asked, _, _ = play(PromptUpdate.paper(), prompt_update.build)
    assert "expert player" in str(asked.asked[1][0].content)


def test_without_a_model_that_writes_it_says_what_would_do() -> None:
    needs = (
        r"evaluator='contribution' and state_key='summary' need a model that writes, and there is {}; .* jitrl:paper-equations"
    )
    with pytest.raises(UserError, match=needs.format("none here")):
        jitrl.build(MethodInputs(Vault()), jitrl.JitRL.paper())
    scorer: Any = ScriptedChat(replies=[""])
    inputs = replace(MethodInputs(Vault()), model=scorer)
    with pytest.raises(UserError, match=needs.format("one here that only scores actions")):
        prompt_update.build(inputs, PromptUpdate.paper())
    inputs = MethodInputs.with_chat_model(Vault(), Journal(), scorer, judge=model_judge(scorer, Journal()))
    with pytest.raises(UserError, match=r"evaluator='contribution' has the model judge, and the run has a judge of its own"):
        jitrl.build(inputs, jitrl.JitRL.paper())
