"""EvoTest: configurations that a model rewrites, a bandit that picks among them, and code that runs in the sandbox alone."""

import builtins
import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from acting_agent import ActingAgent as Agent
from hypothesis import given
from hypothesis import strategies as st
from in_process import play_in_process
from killed_runs import play_past_deaths
from openai_server import OpenAIServer

from learngraph.graphs.baselines import evotest
from learngraph.graphs.baselines.evotest import EvoTest
from learngraph.graphs.cli.main import main
from learngraph.graphs.experiments.run_inputs import method_resources
from learngraph.graphs.methods import METHODS
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task, Trajectory, Transition
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.update.configuration import Configuration, _EarnedRewards, read_tree, select_configuration
from learngraph.tools.agent_tools.interpreter import Interpreter, InterpreterError, run_alone
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.models.models import open_model


def has_walls() -> bool:
    try:
        return run_alone("print(1)") == ("1\n", True)
    except InterpreterError:
        return False


needs_walls = pytest.mark.skipif(not has_walls(), reason="NOT TESTED: this kernel lacks a wall of the sandbox")
ROUTINE = (
    "def summarize(steps, observation):\n    return f\"{len(steps)} steps, last {steps[-1]['action'] if steps else None}\""
)


class Door:
    """A door with two bolts: each word opens one and earns 1."""

    name, horizon, solved, instant = "door", 4, 2.0, True

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        said = [action for action in dict.fromkeys(actions) if action.startswith("say")]
        new = float(bool(actions) and actions[-1].startswith("say") and actions[-1] not in actions[:-1])
        over = len(said) == 2 or len(actions) >= self.horizon
        return Observation(
            f"A door with {2 - len(said)} bolts.", () if over else ("knock", "say friend", "say please"), new, over
        )

    def abstract(self, observation: Observation) -> str:
        return observation.text


TASK = Task("door", "get in")


def child(guide: str, routine: str = "", examples: Any = 3) -> str:
    return f"Better.\n{json.dumps({'guide': guide, 'examples': examples, 'routine': routine})}"


def play(agent: Agent, episodes: int, settings: EvoTest | None = None, run_code: Any = None, **more: Any) -> dict[str, Any]:
    inputs = MethodInputs.with_chat_model(Door(), more.pop("journal", Journal()), agent, **more)
    graph = run.build(evotest.build(inputs, settings, run_code=run_code))
    out: dict[str, Any] = graph.invoke({"task": TASK, "run": "r", "episode": 0, "episodes": episodes})
    return out


def guides(agent: Agent) -> list[str]:
    """The guide in the first prompt of each attempt."""
    firsts = [prompt for prompt in agent.acted if "You may take at most 4 steps." in prompt]
    found = [re.search(r"<guide>\n(.*)\n</guide>", prompt) for prompt in firsts]
    return ["" if one is None else one[1] for one in found]


# The bandit


def attempt(number: int, played: int, value: float | None, has_child: bool = True) -> Trajectory:
    note: dict[str, Any] = {"played": played}
    if has_child:
        note["child"] = {"number": number + 1, "parent": played, "guide": f"g{number + 1}", "routine": "", "examples": 3}
    return Trajectory(f"r/{number}", TASK, (Transition("s", "a", value),), "r", number, note=json.dumps(note))


def test_the_bandit_by_hand() -> None:
    """Returns 0 (configuration 0), 4 (1, a child of 0), 2 (2, a child of 1), scaled to 0, 1, .5; 3 is new, a child of 2."""
    tree, returns = read_tree([attempt(0, 0, 0.0), attempt(1, 1, 4.0), attempt(2, 2, 2.0)], Configuration())
    assert [(one.number, one.parent) for one in tree] == [(0, 0), (1, 0), (2, 1), (3, 2)]
    assert returns == {0: [0.0], 1: [4.0], 2: [2.0]}
    v0 = (0 + 0.5) / 2
    v1 = (1 + v0) / 2
    v2 = (0.5 + v1) / 2
    assert (v0, v1, v2) == (0.25, 0.625, 0.5625)
    once, never = math.sqrt(math.log(4) / 2), math.sqrt(math.log(4))
    for c in (0.0, 0.1, 0.2, 0.5, 2.0):
        bounds = [v0 + c * once, v1 + c * once, v2 + c * once, v2 + c * never]
        assert select_configuration(tree, returns, c).number == bounds.index(max(bounds))
    assert select_configuration(tree, returns, 0.0).number == 1  # the best so far
    assert select_configuration(tree, returns, 0.5).number == 3  # the new one


def test_of_equals_the_newest_is_played() -> None:
    tree, returns = read_tree([attempt(0, 0, 1.0)], Configuration())
    assert select_configuration(tree, returns, 0.5).number == 1
    assert select_configuration(tree[:1], {}, 0.5).number == 0


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=6), st.floats(0.1, 10), st.floats(-5, 5))
def test_the_choice_does_not_depend_on_the_scale_of_rewards(values: list[float], scale: float, offset: float) -> None:
    if max(values) - min(values) < 1e-3:
        return
    one = read_tree([attempt(n, n, value) for n, value in enumerate(values)], Configuration())
    other = read_tree([attempt(n, n, scale * value + offset) for n, value in enumerate(values)], Configuration())
    chosen = select_configuration(*one, 0.5)  # type: ignore[arg-type]
    again = select_configuration(*other, 0.5)  # type: ignore[arg-type]
    assert chosen.number == again.number


def test_notes_that_say_nothing_and_missing_returns_are_passed_over() -> None:
    broken = Trajectory("r/9", TASK, (Transition("s", "a", 1.0),), "r", 9, note="not json")
    tree, returns = read_tree([attempt(0, 0, None), broken], Configuration())
    assert [one.number for one in tree] == [0, 1]
    assert returns == {0: [1.0]}


@given(st.lists(st.tuples(st.sampled_from("AB"), st.integers(0, 9)), max_size=12))
def test_the_rewards_of_a_situation_are_those_of_the_attempts_that_are_asked_about(questions: list[tuple[str, int]]) -> None:
    """Also where runs take turns, and where one goes back to an earlier episode."""
    runs = {
        run: [
            Trajectory(f"{run}/{n}", TASK, (Transition("door", "knock", float(n % 3)), Transition(run, "wait", -1.0)), run, n)
            for n in range(9)
        ]
        for run in "AB"
    }
    earned = _EarnedRewards()
    for name, count in questions:
        seen = runs[name][:count]
        expected = [float(n % 3) for n in range(len(seen)) if n % 3]
        assert earned.find(seen, "door") == ({"knock": expected} if expected else {})
        assert earned.find(seen, name) == ({"wait": [-1.0] * len(seen)} if seen else {})
        assert earned.find(seen, "nowhere") == {}


# Attempts


def test_a_child_is_written_after_each_attempt_and_played_next() -> None:
    agent = Agent(act=lambda asked: "knock", write=lambda n: child(f"plan {n}"))
    play(agent, 4)
    assert len(agent.wrote) == 3  # nobody would play what the last attempt teaches
    assert guides(agent) == ["", "plan 0", "plan 1", "plan 2"]
    assert "It has no guide yet." in agent.wrote[0]
    assert "<guide>\nplan 0\n</guide>" in agent.wrote[1]
    assert "- configuration 0: 0\n- configuration 1: 0 (the last is this attempt's)" in agent.wrote[1]
    assert "guide in front" not in agent.acted[0]
    assert "guide in front" in agent.acted[-1]


def test_a_child_that_does_worse_is_left_for_its_parent() -> None:
    def act(asked: str) -> str:
        return "say friend" if "plan 0" in asked else "knock"

    agent = Agent(act=act, write=lambda n: child(f"plan {n}"))
    play(agent, 5, EvoTest(exploration=0.1))
    assert guides(agent) == ["", "plan 0", "plan 1", "plan 0", "plan 3"]
    assert "- configuration 1: 1, 1 (the last is this attempt's)" in agent.wrote[3]


def test_after_a_full_success_nothing_is_rewritten() -> None:
    agent = Agent(act=lambda asked: "say please" if "1 bolts" in asked else "say friend", write=lambda n: child("plan"))
    out = play(agent, 3)
    assert out["scores"] == [2.0, 2.0, 2.0]
    assert agent.wrote == []


def test_examples_are_what_paid_in_this_very_situation() -> None:
    agent = Agent(act=lambda asked: "say friend" if asked.count("Action: say friend") == 0 else "knock", write=lambda n: "no")
    play(agent, 2)
    second = agent.acted[4:]
    assert "In this very situation earlier attempts earned:\n- say friend: reward 1\n" in second[0]
    assert "In this very situation" not in second[1]  # with one bolt nothing has paid yet
    without = Agent(act=lambda asked: "say friend", write=lambda n: "no")
    play(without, 2, EvoTest(examples=0))
    assert not any("In this very situation" in asked for asked in without.acted)


@pytest.mark.parametrize(
    "reply",
    ["I would rather not.", '{"guide": ""}', child("g", examples=11), child("g", examples="many"), child("g", examples=True)],
)
def test_a_reply_that_cannot_be_used_leaves_no_child(reply: str) -> None:
    agent = Agent(act=lambda asked: "knock", write=lambda n: reply)
    out = play(agent, 3)
    assert guides(agent) == ["", "", ""]
    assert len(out["scores"]) == 3
    assert len(agent.wrote) == 2 * 3


def test_a_long_guide_is_cut_and_never_ends_a_run() -> None:
    agent = Agent(act=lambda asked: "knock", write=lambda n: child("word " * 9000))
    play(agent, 3, window=1800, reserved_tokens=100)
    assert guides(agent)[1].startswith("word word")
    assert len(guides(agent)[1]) < 3000


def test_without_a_sandbox_no_routine_is_asked_for_and_none_runs() -> None:
    for agent_settings, sandbox in ((None, None), (EvoTest(evolve_routine=False), run_alone)):
        agent = Agent(act=lambda asked: "knock", write=lambda n: child("plan", "def summarize(steps, observation): return 1"))
        play(agent, 3, agent_settings, sandbox)
        assert not any("routine" in asked for asked in agent.wrote)
        assert not any("Summary of this attempt" in asked for asked in agent.acted)


# Routines


@needs_walls
def test_a_routine_reads_the_running_attempt_and_stands_in_its_prompts() -> None:
    agent = Agent(act=lambda asked: "knock", write=lambda n: child("plan", ROUTINE))
    play(agent, 2, run_code=run_alone)
    said = [re.search(r"Summary of this attempt so far:\n(.*)\n", prompt) for prompt in agent.acted]
    assert said[:4] == [None] * 4
    assert [one[1] for one in said[4:] if one] == ["0 steps, last None", *(f"{n} steps, last knock" for n in (1, 2, 3))]
    assert '"routine": Python code' in agent.wrote[0]


@needs_walls
@pytest.mark.parametrize(
    ("routine", "error"),
    [
        ("def summarize(steps, observation):\n    return steps[0]['action']", "IndexError"),
        ("def summarize(steps, observation:\n    return 1", "SyntaxError"),
        ("def summarize(steps): return 1", "TypeError"),
        ("import os\ndef summarize(steps, observation):\n    return open('/etc/passwd').read()", "Error"),
    ],
)
def test_a_routine_that_fails_is_left_out_and_its_error_is_told(routine: str, error: str) -> None:
    agent = Agent(act=lambda asked: "knock", write=lambda n: child(f"plan {n}", routine))
    play(agent, 3, run_code=run_alone)
    assert guides(agent) == ["", "plan 0", "plan 1"]  # the rest of the configuration is played
    assert not any("Summary of this attempt" in asked for asked in agent.acted)
    assert "A routine that was proposed for it did not work" in agent.wrote[1]
    assert error in agent.wrote[1]


@needs_walls
def test_evolved_code_leaves_no_trace_outside_the_sandbox(tmp_path: Path) -> None:
    """It can neither write a file, nor see the environment of this process, nor change anything in it."""
    target = tmp_path / "written"
    os.environ["EVOTEST_SECRET"] = "open sesame"
    routine = (
        "import os, builtins\nseen = os.environ.get('EVOTEST_SECRET')\nbuiltins.evolved = 1\n"
        f"try:\n    open({str(target)!r}, 'w').write('x')\nexcept OSError as refused:\n    seen = f'{{seen}} {{type(refused).__name__}}'\n"
        "def summarize(steps, observation):\n    return str(seen)"
    )
    try:
        agent = Agent(act=lambda asked: "knock", write=lambda n: child("plan", routine))
        play(agent, 2, run_code=run_alone)
    finally:
        del os.environ["EVOTEST_SECRET"]
    assert "Summary of this attempt so far:\nNone PermissionError" in agent.acted[-1]
    assert not target.exists()
    assert not hasattr(builtins, "evolved")


@needs_walls
def test_a_routine_that_fails_later_says_nothing() -> None:
    """It works on the attempt that it was tried on, and not on every other one."""
    routine = "def summarize(steps, observation):\n    assert '1 bolts' not in observation\n    return 'fine'"
    agent = Agent(act=lambda asked: "say friend" if "plan" in asked else "knock", write=lambda n: child("plan", routine))
    out = play(agent, 2, run_code=run_alone)
    assert "Summary of this attempt so far:\nfine" in agent.acted[4]
    assert "Summary of this attempt" not in agent.acted[5]
    assert out["scores"] == [0.0, 1.0]


def test_every_piece_of_evolved_code_goes_through_the_sandbox() -> None:
    ran: list[str] = []

    def sandbox(code: str) -> tuple[str, bool]:
        ran.append(code)
        return "said", True

    agent = Agent(act=lambda asked: "knock", write=lambda n: child("plan", f"raise SystemExit  # {n}\ndef summarize(): ..."))
    play(agent, 3, run_code=sandbox)
    assert len(ran) == 2 * 2 + 2 * 4  # each new routine is tried twice, and runs before each of four actions
    assert all("raise SystemExit" in code for code in ran)
    assert agent.acted[-1].count("Summary of this attempt so far:\nsaid\n") == 1


@needs_walls
def test_run_alone_keeps_nothing_and_stops_what_takes_too_long() -> None:
    assert run_alone("x = 1\nprint(x)") == ("1\n", True)
    text, worked = run_alone("print(x)")
    assert "NameError" in text
    assert not worked
    assert run_alone("while True: pass", seconds=0.3)[1] is False


def test_a_machine_without_walls_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(self: Interpreter, code: str) -> Any:
        assert self.strict
        raise InterpreterError("this machine lacks the wall files")

    monkeypatch.setattr(Interpreter, "run", lacking)
    agent = Agent(act=lambda asked: "knock", write=lambda n: child("plan", ROUTINE))
    with pytest.raises(InterpreterError, match="lacks the wall"):
        play(agent, 2, run_code=run_alone)


# The rest


@pytest.mark.slow
@needs_walls
def test_the_command_line_plays_it_with_a_sandbox(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A model behind an API writes a routine; its text stands in the prompts of the second attempt."""

    def reply(request: dict[str, Any]) -> str:
        asked = "\n".join(message["content"] for message in request["messages"])
        return "Action: wait" if "You act to finish" in asked else child("plan", ROUTINE)

    play_in_process(monkeypatch, tmp_path)
    with OpenAIServer(replies=reply) as server:
        command = (
            f"run evotest --env toy --seeds 1 --episodes 2 --horizon 9 --model openai:test --base-url {server.url} --out out"
        )
        assert main(command.split()) == 0
        asked = [request["messages"][-1]["content"] for request in server.requests]
    assert sum("Summary of this attempt so far:" in prompt for prompt in asked) == 9
    assert "last wait" in asked[-1]


def test_the_command_line_says_what_to_do_without_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(self: Interpreter, code: str) -> Any:
        raise InterpreterError("this machine lacks the wall files")

    monkeypatch.setattr(Interpreter, "run", lacking)
    resources = method_resources(METHODS["evotest"])
    with pytest.raises(UserError, match="lacks the wall files; evotest needs no sandbox with --no-evolve-routine"):
        resources["run_code"]("print(1)")
    assert method_resources(METHODS["awm"]) == {}


def test_a_run_that_was_killed_while_evolving_goes_on_as_if_it_had_not() -> None:
    def played(fails_at: int) -> tuple[list[str], Any]:
        agent = Agent(act=lambda asked: "knock", write=lambda n: child("plan"), fails_at=fails_at)

        def make(journal: Journal, records: Any) -> Any:
            return evotest.build(MethodInputs.with_chat_model(Door(), journal, agent, records=records))

        scores = play_past_deaths(make, TASK, 3)["scores"]
        return guides(agent), scores

    assert played(fails_at=1) == played(fails_at=-1)


def test_a_model_that_only_scores_cannot_write_a_configuration() -> None:
    world = KeywordKeep()
    with pytest.raises(UserError, match="evotest reasons in writing"):
        evotest.build(MethodInputs.with_scoring_model(world, Journal(), open_model("pocket")))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="examples is a whole number from 0 to 10; got 11"):
        EvoTest(examples=11)
