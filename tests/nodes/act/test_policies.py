"""One contract for the ways to get logits: log-probabilities <= 0, one per option, summing to 1; and what goes wrong."""

import asyncio
import json
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from learngraph.memory.records import NO_ACTION, Candidate, Observation, Task, Transition
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.act.choose import log_softmax
from learngraph.nodes.act.policies import (
    LocalPolicy,
    PolicyError,
    PromptView,
    RecentStepsPrompt,
    UniformPolicy,
    act_policy,
    logprobs_policy,
    verbalized_policy,
)
from learngraph.nodes.prompt import Prompt
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.models.models import open_model
from tests.support.scripted_chat import ScriptedChat

ACTIONS = ("go north", "go south", "open the door", "take the lamp")


def state(actions: tuple[str, ...] = ACTIONS, head: str = "run/0/t", step: int = 0) -> dict[str, Any]:
    return {
        "task": Task("t", "take the lamp"),
        "observation": Observation("You are in the kitchen.", actions),
        "head": head,
        "step": step,
    }


def ask(policy: Any, given: dict[str, Any]) -> list[Candidate]:
    found: list[Candidate] = (policy.invoke(given) if hasattr(policy, "invoke") else policy(given))["candidates"]
    return found


LETTERS = [{"B": -0.2, "A": -2.0, "D": -4.0, "the": -5.0}]
CONFIDENT = '{"options": [{"action": "go north", "confidence": 70}, {"action": "take the lamp", "confidence": 0}]}'


@pytest.fixture(params=["uniform", "local", "logprobs", "verbalized"])
def policy(request: pytest.FixtureRequest, tiny: str, openai_server: Any) -> Any:
    if request.param == "uniform":
        yield UniformPolicy()
    elif request.param == "local":
        yield LocalPolicy(LocalChatModel(model=tiny), RecentStepsPrompt(Journal(), 0), Prompt.load("act/score"))
    else:
        reply = {"text": "B", "top_logprobs": LETTERS} if request.param == "logprobs" else CONFIDENT
        with openai_server(replies=[reply]) as server:
            model = open_model("openai:test", base_url=server.url)
            make = logprobs_policy if request.param == "logprobs" else verbalized_policy
            yield make(model, RecentStepsPrompt(Journal()))


def test_contract(policy: Any) -> None:
    """One candidate per option (verbalized: per option it named), logits <= 0 and normalised, the same twice."""
    found = ask(policy, state())
    assert {c.action for c in found} <= set(ACTIONS)
    assert len(found) == len({c.action for c in found}) >= 2
    assert all(c.logit <= 0 for c in found)
    assert sum(math.exp(c.logit) for c in found) == pytest.approx(1)
    assert [c.logit for c in ask(policy, state())] == pytest.approx([c.logit for c in found], abs=1e-4)


def test_contract_async(policy: Any) -> None:
    if hasattr(policy, "ainvoke"):
        found = asyncio.run(policy.ainvoke(state()))["candidates"]
        assert sum(math.exp(c.logit) for c in found) == pytest.approx(1)


def scored_by(model: Any, view: PromptView) -> LocalPolicy:
    return LocalPolicy(model, view, Prompt.load("act/score"))


@pytest.mark.parametrize(
    "make", [scored_by, logprobs_policy, verbalized_policy, act_policy, partial(act_policy, free_text=True)]
)
def test_no_model_is_asked_where_there_is_nothing_to_choose(make: Any) -> None:
    chat = ScriptedChat(replies=["Action: wait"])
    assert ask(make(chat, RecentStepsPrompt(Journal())), state(("wait",))) == [Candidate("wait", 0.0)]
    assert len(chat.asked) == isinstance(make, partial)  # a world that takes any text leaves a choice


def test_local_scores_are_the_models_own(tiny: str) -> None:
    model = LocalChatModel(model=tiny)
    prompt = Prompt.load("act/score")
    found = ask(LocalPolicy(model, RecentStepsPrompt(Journal(), 0), prompt), state())
    scores = model.score(
        prompt.messages(brief="", instruction="take the lamp", steps="", observation="You are in the kitchen."), ACTIONS
    )
    assert [c.logit for c in found] == pytest.approx(log_softmax(scores), abs=1e-4)


def test_the_prompt_shows_the_recent_steps(openai_server: Any) -> None:
    journal = Journal()
    head = "run/0/t"
    for n in range(5):
        head = journal.append(head, Transition(f"room {n}", f"go {n}", float(n)))
    with openai_server(replies=[{"text": "B", "top_logprobs": LETTERS}]) as server:
        policy = logprobs_policy(open_model("openai:test", base_url=server.url), RecentStepsPrompt(journal, 2))
        ask(policy, state(head=head, step=5))
        prompt = server.requests[0]["messages"][-1]["content"]
    assert "room 3\n> go 3\n= 3\nroom 4\n> go 4\n= 4\nYou are in the kitchen." in prompt
    assert "room 2" not in prompt
    assert "A. go north\nB. go south" in prompt


def test_logprobs_reads_the_letters_and_never_invents_a_chance(openai_server: Any) -> None:
    with openai_server(replies=[{"text": "B", "top_logprobs": LETTERS}]) as server:
        found = ask(logprobs_policy(open_model("openai:test", base_url=server.url), RecentStepsPrompt(Journal(), 20)), state())
    logit = {c.action: c.logit for c in found}
    assert logit["go north"] - logit["go south"] == pytest.approx(-1.8)
    assert logit["take the lamp"] - logit["go south"] == pytest.approx(-3.8)
    assert logit["open the door"] <= logit["take the lamp"]  # C was not reported: at most the least likely reported


def test_logprobs_needs_a_server_that_reports_them(openai_server: Any) -> None:
    with openai_server(replies=["B"]) as server:
        policy = logprobs_policy(open_model("openai:test", base_url=server.url), RecentStepsPrompt(Journal(), 20))
        with pytest.raises(PolicyError, match="--policy verbalized"):
            ask(policy, state())
        with pytest.raises(PolicyError, match=r"20 options apart .* 21 admissible"):
            ask(policy, state(tuple(f"go {n}" for n in range(21))))


def test_logprobs_asks_again_for_a_letter(openai_server: Any) -> None:
    bad = {"text": "well", "top_logprobs": [{"well": -0.1}]}
    with openai_server(replies=[bad, {"text": "A", "top_logprobs": [{"A": -0.1}]}]) as server:
        found = ask(logprobs_policy(open_model("openai:test", base_url=server.url), RecentStepsPrompt(Journal(), 20)), state())
        assert len(server.requests) == 2
        assert "asked for one letter of A-D and nothing else, got 'well'" in server.requests[1]["messages"][-1]["content"]
    assert max(found, key=lambda c: c.logit).action == "go north"


@pytest.mark.parametrize("said", ["I think B.", "A sensible move is D", "", "AB", "Z"])
def test_logprobs_reads_no_prose(openai_server: Any, said: str) -> None:
    """A letter that happens to be a word of a sentence is no answer."""
    tokens = [{t: -0.1} for t in said.split()] or [{"": -0.1}]
    with openai_server(replies=[{"text": said, "top_logprobs": tokens}]) as server:
        policy = logprobs_policy(open_model("openai:test", base_url=server.url), RecentStepsPrompt(Journal(), 20))
        lost = policy.invoke(state(tuple(f"go {n}" for n in range(9))))
    assert lost["candidates"] == [Candidate(NO_ACTION, 0.0)]
    assert re.search("asked for one letter of A-I and nothing else|got an empty reply", lost["lost"])
    assert (lost["usage"].calls, lost["usage"].unreadable, lost["usage"].lost_steps) == (3, 3, 1)


def test_asking_again_is_a_prompt_of_the_users_too(tmp_path: Path) -> None:
    (tmp_path / "ask").mkdir()
    (tmp_path / "ask" / "again.md").write_text("## user\nNein: $error")
    model = ScriptedChat(replies=["?", CONFIDENT])
    ask(verbalized_policy(model, RecentStepsPrompt(Journal()), prompts=tmp_path), state())
    assert model.prompt(1).startswith("Nein: asked for a JSON object")


def test_verbalized_has_a_floor() -> None:
    found = ask(verbalized_policy(ScriptedChat(replies=[CONFIDENT]), RecentStepsPrompt(Journal())), state())
    assert found[0].logit - found[1].logit == pytest.approx(math.log(1 / 0.001))


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ("go north", "asked for a JSON object, got 'go north'"),
        ('{"options": []}', "got no list of options"),
        ('{"options": [{"action": "fly", "confidence": 50}]}', "'fly' is not among the actions listed"),
        ('{"options": [{"action": "go north", "confidence": 120}]}', "a confidence from 0 to 100"),
        ('{"options": [{"action": "go north"}]}', "a confidence from 0 to 100"),
        ('{"options": ["go north"]}', "a confidence from 0 to 100"),
        ('{"options": ' + "[" * 100_000, "asked for a JSON object"),
        ('{"options": [{"action": "go north", "confidence": 1' + "0" * 400 + "}]}", "a confidence from 0 to 100"),
    ],
)
def test_verbalized_malformed_replies(reply: str, words: str) -> None:
    policy = verbalized_policy(ScriptedChat(replies=[reply]), RecentStepsPrompt(Journal()))
    lost = policy.invoke(state())
    assert lost["candidates"] == [Candidate(NO_ACTION, 0.0)]
    assert words in lost["lost"]
    assert lost["lost"].startswith("act/options: ")


@pytest.mark.parametrize(
    ("flying", "asked", "chances"),
    [
        # .4 / 3 each for the three that were not named
        (40, 1, {"take the lamp": 0.6, "go north": 0.4 / 3, "go south": 0.4 / 3, "open the door": 0.4 / 3}),
        # .9 / 3 each, but none above the .1 of the one that was named: a quarter each
        (90, 2, dict.fromkeys(ACTIONS, 0.25)),
        (0, 1, {"take the lamp": 1.0}),
    ],
)
def test_confidence_in_what_is_not_listed_is_doubt(
    flying: int, asked: int, chances: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    """From half of the whole on the model is asked once more, and told the nearest action; the log does not repeat its words."""
    caplog.set_level("INFO", "learngraph")
    fly = [{"action": "fly north", "confidence": flying}][: bool(flying)]
    model = ScriptedChat(replies=[json.dumps({"options": [*fly, {"action": "take the lamp", "confidence": 100 - flying}]})])
    found = ask(verbalized_policy(model, RecentStepsPrompt(Journal())), state())
    assert {one.action: math.exp(one.logit) for one in found} == pytest.approx(chances)
    assert len(model.asked) == asked
    assert ("'fly north' is not among the actions listed; the nearest: 'go north'" in model.prompt(asked - 1)) == (asked > 1)
    assert ("fly" in caplog.text, "asked for one of the actions listed" in caplog.text) == (False, asked > 1)


def test_policies_that_choose_from_a_list_need_one(tiny: str) -> None:
    with pytest.raises(PolicyError, match="task t lists none at step 0"):
        ask(LocalPolicy(LocalChatModel(model=tiny), RecentStepsPrompt(Journal(), 0), Prompt.load("act/score")), state(()))
    free = '{"options": [{"action": "dance", "confidence": 100}]}'
    policy = verbalized_policy(ScriptedChat(replies=[free]), RecentStepsPrompt(Journal()))
    assert ask(policy, state(())) == [Candidate("dance", 0.0)]
