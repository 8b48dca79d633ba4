"""Prompt Update: JitRL's advantages, in the prompt and nowhere else."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from scripted_chat import ScriptedChat

from learngraph.graphs import jitrl
from learngraph.graphs.baselines import prompt_update
from learngraph.graphs.baselines.prompt_update import PromptUpdate
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs, Prompting
from learngraph.graphs.wiring.supersteps import merge_steps
from learngraph.memory.errors import UserError
from learngraph.memory.records import Candidate, Estimate, Observation, Task, Trajectory
from learngraph.memory.returns.experiences import Experiences
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.act.choose import log_softmax
from learngraph.nodes.act.policies import PromptView, verbalized_policy
from learngraph.nodes.retrieve.advantages import advantage_lines
from learngraph.tools.environments.keyword_keep import KeywordKeep

TOY = KeywordKeep()
TASK = TOY.task(0)


class Forgetful(Experiences):
    """The memory, disconnected."""

    def add(self, trajectory: Trajectory) -> None:
        pass


class Reader:
    """A policy that believes what it reads: an action's logit is the last number that stands behind it in the prompt."""

    def __init__(self, weight: float = 5.0) -> None:
        self.weight = weight
        self.shown: list[dict[str, str]] = []

    def __call__(self, view: PromptView) -> Any:
        def node(state: Any) -> dict[str, Any]:
            shown = view(state)
            self.shown.append(shown)
            said = dict(re.findall(r"^> (.+)\n= (-?[\d.]+)$", shown["steps"], flags=re.MULTILINE))
            actions = state["observation"].actions
            logits = log_softmax([self.weight * float(said.get(action, 0.0)) for action in actions])
            return {"candidates": [Candidate(a, z) for a, z in zip(actions, logits, strict=True)]}

        return node


def play(policy: Any, episodes: int, settings: PromptUpdate | None = None, **more: Any) -> list[float]:
    graph = merge_steps(
        prompt_update.build(MethodInputs(TOY, Journal(), policy, prompting=Prompting(history_steps=0)), settings, **more)
    )
    scores: list[float] = run.build(graph).invoke({"task": TASK, "run": "r", "episode": 0, "episodes": episodes})["scores"]
    return scores


@pytest.mark.slow
def test_a_reader_of_the_numbers_learns_and_only_through_them() -> None:
    learned = play(Reader(), 20)
    forgot = play(Reader(), 20, PromptUpdate(repeat_penalty=0), experiences=Forgetful(gamma=0.8))
    unread = play(Reader(weight=0.0), 20)  # the numbers are in the prompt alone: nothing else moves the logits
    assert sum(learned[-5:]) / 5 > 8
    assert sum(forgot[-5:]) / 5 < 5
    assert sum(unread[-5:]) / 5 < 5


@pytest.mark.parametrize(
    "settings",
    [
        *(jitrl.JitRL(advantage_estimator=estimator) for estimator in ("guarded", "paper")),
        jitrl.JitRL(state_key="hierarchy", threshold_decay=0.1),
        jitrl.JitRL.paper_equations(),
        replace(jitrl.JitRL.reference(), evaluator="environment"),
    ],
    ids=lambda one: f"{one.advantage_estimator}-{one.state_key}",
)
def test_the_advantages_are_those_of_jitrl(settings: jitrl.JitRL) -> None:
    """The same memory, the same state: the same neighbours and the same estimates, by every estimator and state key."""
    memory = settings.memory()
    played = merge_steps(jitrl.build(MethodInputs(TOY), settings, experiences=memory))
    run.build(played).invoke({"task": TASK, "run": "first", "episode": 0, "episodes": 6})
    config: Any = {"configurable": {"thread_id": "1"}}
    found = []
    for build, own in ((jitrl.build, settings), (prompt_update.build, PromptUpdate.of(settings))):
        graph = build(MethodInputs(TOY), own, experiences=memory, checkpointer=InMemorySaver())  # type: ignore[operator]
        graph.invoke({"task": TASK, "run": "r", "episode": 0}, config, interrupt_after=["advise"])
        found.append(graph.get_state(config).values)
    assert found[0]["neighbours"] == found[1]["neighbours"] != []
    assert found[0]["estimates"] == found[1]["estimates"]
    assert found[0]["value"] == found[1]["value"]
    assert found[0]["observation"].key == found[1]["observation"].key
    assert bool(found[0]["observation"].key) == (settings.state_key != "room")


def test_the_logits_stay_those_of_the_policy() -> None:
    policy = Reader(weight=0.0)
    journal = Journal(details=("candidates",))
    graph = merge_steps(prompt_update.build(MethodInputs(TOY, journal, policy)))
    out = run.build(graph).invoke({"task": TASK, "run": "r", "episode": 0, "episodes": 4})
    for row in journal.rows(out["head"]):
        assert len({candidate["logit"] for candidate in row["candidates"]}) == 1


def estimate(action: str, count: float, shift: float) -> Estimate:
    return Estimate(action, count, 0.0, 0.0, shift)


def test_lines_for_a_model_that_chats() -> None:
    rated = [estimate("go north", 2, -0.617), estimate("open  the gate", 4.2, 1.0), estimate("wait", 0, -0.5)]
    assert advantage_lines(rated) == (
        "+1.00 open the gate (tried 4 times)\n-0.50 wait (tried 1 time)\n-0.62 go north (tried 2 times)"
    )
    untried = [estimate(action, 0, 0.1949) for action in ("a", "b", "c")]
    assert advantage_lines([*rated[:2], *untried]) == (
        "+1.00 open the gate (tried 4 times)\n+0.19 every other action (never tried)\n-0.62 go north (tried 2 times)"
    )
    assert advantage_lines(untried[:2]) == "+0.19 a (never tried)\n+0.19 b (never tried)"
    lucky = [estimate(action, 0, 1.5) for action in ("d", "e", "f")]  # the paper's coin fell for some of the untried ones
    assert advantage_lines([*untried, *lucky]) == "+1.50 d, e, f (never tried)\n+0.19 a, b, c (never tried)"


def test_a_model_that_chats_reads_them_at_the_end_of_its_prompt() -> None:
    options = '{"options": [{"action": "%s", "confidence": 100}]}'
    right, wrong = TOY.gold(TASK)[0], next(a for a in TOY.observe(TASK, ()).actions if a != TOY.gold(TASK)[0])
    chat = ScriptedChat(replies=[options % right, *[options % wrong] * 40])
    inputs = MethodInputs.with_chat_model(TOY, Journal(), chat)
    inputs = replace(inputs, make_policy=partial(verbalized_policy, chat))
    graph = prompt_update.build(inputs)
    out = run.build(graph).invoke({"task": TASK, "run": "r", "episode": 0, "episodes": 2})
    first, second = chat.prompt(0), chat.prompt(out["lengths"][0])
    assert "advantage" not in first
    line = re.search(rf"\n\+\d\.\d\d {right} \(tried 1 time\)\n", second)
    assert line
    assert second.index(f"- {right}\n") < line.start() < second.index("What could be done next?")


def test_a_model_that_chats_reads_how_the_state_was_reached_as_with_jitrl() -> None:
    seen = []
    for build, settings in (
        (jitrl.build, jitrl.JitRL.paper_equations()),
        (prompt_update.build, PromptUpdate.paper_equations()),
    ):
        chat = ScriptedChat(replies=['{"options": [{"action": "wait", "confidence": 100}]}'])
        inputs = replace(MethodInputs.with_chat_model(TOY, Journal(), chat), make_policy=partial(verbalized_policy, chat))
        build(inputs, settings).invoke({"task": TASK, "run": "r", "episode": 0})  # type: ignore[operator]
        seen.append([line for line in chat.prompt(3).split("\n") if line.startswith(("progress: ", "location: "))])
    assert len(seen[0]) == 2
    assert seen[0] == seen[1]


class Mute:
    """A world that lists no actions: two words in the right order win."""

    name, horizon, solved, instant, free_text = "mute", 3, 1.0, True, True

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        won = list(actions[-1:]) == ["open sesame"]
        return Observation("A rock.", (), float(won), won or len(actions) >= self.horizon)

    def abstract(self, observation: Observation) -> str:
        return observation.text


def test_without_listed_actions_the_remembered_ones_are_rated() -> None:
    said = [f'{{"options": [{{"action": "{word}", "confidence": 100}}]}}' for word in ("knock", "open sesame", "knock")]
    chat = ScriptedChat(replies=said)
    inputs = MethodInputs.with_chat_model(Mute(), Journal(), chat)
    graph = prompt_update.build(replace(inputs, make_policy=partial(verbalized_policy, chat)))
    run.build(graph).invoke({"task": Task("m", "get in"), "run": "r", "episode": 0, "episodes": 2})
    assert "(tried" not in chat.prompt(0)
    assert re.search(r"\n\+.* open sesame \(tried 1 time\)\n.* knock ", chat.prompt(2))


def test_settings_are_those_of_jitrl_and_checked_as_there() -> None:
    assert PromptUpdate.paper().as_jitrl() == replace(
        jitrl.JitRL.paper(), beta=jitrl.JitRL().beta, candidates=0, logit_scale="nats"
    )
    assert PromptUpdate.reference().as_jitrl() == jitrl.JitRL.reference()
    assert PromptUpdate().as_jitrl() == jitrl.JitRL()
    with pytest.raises(UserError, match=r"PromptUpdate: gamma is a number from 0 to 1; got 2"):
        PromptUpdate(gamma=2)
    with pytest.raises(UserError, match="prompt-update: unseen_bonus has no effect"):
        PromptUpdate(unseen_bonus=1)


def test_few_tokens_leave_the_smallest_numbers_out() -> None:
    policy = Reader()
    room = Prompting(window=60, reserved_tokens=0, count_tokens=lambda text: len(text.split()))
    inputs = MethodInputs(TOY, Journal(), policy, prompting=room)
    graph = merge_steps(prompt_update.build(inputs))
    run.build(graph).invoke({"task": TASK, "run": "r", "episode": 0, "episodes": 12})
    assert max(len((shown["steps"] + shown["observation"]).split()) for shown in policy.shown) <= 60
