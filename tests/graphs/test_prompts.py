"""Prompts as a model that chats reads them, compared word for word with approved ones in tests/prompts.

After a change that is meant, read what differs, then renew them: RENEW_PROMPTS=1 pytest -n 0 tests/graphs/test_prompts.py
"""

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scripted_chat import ScriptedChat

from learngraph.graphs import icrl, jitrl
from learngraph.graphs.baselines import awm, evotest, memory, prompt_update, react, reflexion, self_refine, static
from learngraph.graphs.baselines.awm import WorkflowMemory
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.records import Observation, Task
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.act.policies import verbalized_policy
from learngraph.nodes.evaluate.judge import model_judge
from learngraph.tools.environments.arithmetic import Game24

APPROVED = Path(__file__).parents[1] / "prompts"
GAME = Game24({"puzzle": "2 7 7 11"})
WRONG = "Step 1: 11 - 7 = 4 (left: 2 4 7)\nStep 2: 2 * 7 = 14 (left: 4 14)\nStep 3: 14 - 4 = 10 (left: 10)\nAnswer: 2 * 7 - (11 - 7) = 24"


class Hall:
    """A small text game: a postcard tells the word that opens the gate. Its states are rooms, without what the game says."""

    name, horizon, solved, instant = "hall", 4, 1.0, True

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        last = actions[-1] if actions else ""
        won, actions_here = last == "say mellon", ("look", "read postcard", "say mellon", "say please")
        said = {
            "read postcard": "The postcard says: the word is mellon. ",
            "say mellon": "The gate swings open. You have won. ",
            "say please": "The gate stays shut. ",
        }.get(last, "")
        hall = "You are in a long hall. A lamp hangs from the ceiling. Coats hang on nine hooks. A postcard lies on the table."
        over = won or len(actions) == self.horizon
        return Observation(f"{said}{hall}", () if over else actions_here, float(won), over)

    def abstract(self, observation: Observation) -> str:
        return "hall"


HALL, TASK = Hall(), Task("hall", "open the gate")


def ask_in_hall(build: Callable[..., Any], actions: Sequence[str], **more: Any) -> ScriptedChat:
    """Two attempts in the hall; the model says these actions one after another, and `more` are further inputs of the method."""
    chat = ScriptedChat(replies=[action if ":" in action else f"So be it.\nAction: {action}" for action in actions])
    inputs = MethodInputs.with_chat_model(HALL, Journal(), chat)
    inputs = replace(inputs, **{name: make(chat, inputs) for name, make in more.items()})
    run.build(build(inputs)).invoke(run.RunInput(task=TASK, run="r", episode=0, episodes=2))
    return chat


def ask_for_answer(build: Callable[..., Any], world: Any, replies: Sequence[str], **more: Any) -> ScriptedChat:
    """Two attempts at a world of written answers."""
    chat = ScriptedChat(replies=list(replies))
    inputs = MethodInputs.with_chat_model(world, Journal(), chat)
    inputs = replace(inputs, **{name: make(chat, inputs) for name, make in more.items()})
    run.build(build(inputs)).invoke(run.RunInput(task=world.task(0), run="r", episode=0, episodes=2))
    return chat


def fake_sandbox(code: str) -> tuple[str, bool]:
    """A sandbox that runs nothing."""
    return "You are in the hall.", True


WALK = ("read postcard", "say please", "look", "say please")
WIN = ("read postcard", "say mellon")
WAY = "Open the gate (when it is shut):\n1. A postcard lies on the table: read postcard\n2. It tells a word: say {mellon}"
EVOLVED = json.dumps(
    {"guide": "Read the postcard, then say its word.", "examples": 3, "routine": "def summarize(steps, observation): ..."}
)
OPTIONS = tuple(f'{{"options": [{{"action": "{action}", "confidence": 100}}]}}' for action in WALK)
REWARDS = (
    '{"rewards": [{"step": 1, "reward": 10}, {"step": 2, "reward": 0}, {"step": 3, "reward": 0}, {"step": 4, "reward": 0}]}'
)

PROMPTS: dict[str, Callable[[], tuple[ScriptedChat, int]]] = {
    "react-step-3": lambda: (ask_in_hall(react.build, WALK), 2),
    "icrl-step-3-of-attempt-2": lambda: (ask_in_hall(icrl.build, WALK), 6),
    "icrl-answer-2": lambda: (ask_for_answer(icrl.build, GAME, [WRONG]), 1),
    "options-step-3": lambda: (
        ask_in_hall(static.build, OPTIONS, make_policy=lambda chat, _: partial(verbalized_policy, chat)),
        2,
    ),
    "jitrl-judge": lambda: (
        ask_in_hall(jitrl.build, [*WALK, REWARDS], judge=lambda chat, inputs: model_judge(chat, inputs.journal)),
        4,
    ),
    "reflexion-plan": lambda: (ask_in_hall(reflexion.build, [*WALK, "Plan: say the word."]), 4),
    "memory-step-3-of-attempt-2": lambda: (ask_in_hall(memory.build, WALK), 6),
    "awm-step-2-of-attempt-2": lambda: (ask_in_hall(awm.build, [*WIN, f"Workflows:\n{WAY}"]), 4),
    "awm-induce": lambda: (ask_in_hall(awm.build, [*WIN, f"Workflows:\n{WAY}"]), 2),
    "awm-rewrite": lambda: (
        ask_in_hall(partial(awm.build, settings=WorkflowMemory(variant="rewrite")), [*WALK, f"Workflow:\n{WAY}"]),
        4,
    ),
    "evotest-evolve": lambda: (ask_in_hall(partial(evotest.build, run_code=fake_sandbox), [*WALK, EVOLVED]), 4),
    "evotest-step-2-of-attempt-2": lambda: (ask_in_hall(partial(evotest.build, run_code=fake_sandbox), [*WALK, EVOLVED]), 6),
    "prompt-update-step-3-of-attempt-2": lambda: (
        ask_in_hall(prompt_update.build, OPTIONS, make_policy=lambda chat, _: partial(verbalized_policy, chat)),
        6,
    ),
    "self-refine-criticism": lambda: (ask_for_answer(self_refine.build, GAME, [WRONG, "Feedback: check the sum."]), 1),
}
"""Name of an approved prompt -> a model that was asked it, and which of its questions it was, from 0."""


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_are_those_that_were_approved(name: str) -> None:
    chat, number = PROMPTS[name]()
    asked = "".join(f"===== {message.type} =====\n{message.text}\n" for message in chat.asked[number])
    path = APPROVED / f"{name}.txt"
    if os.environ.get("RENEW_PROMPTS"):
        path.write_text(asked, encoding="utf-8")
    assert asked == path.read_text(encoding="utf-8"), f"not as approved; read {__file__} if this is meant"


def test_every_approved_prompt_is_compared() -> None:
    elsewhere = (path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py"))
    named = [name for text in elsewhere for name in re.findall(r'assert_approved\(\s*f?"([^"]+)"', text)]
    forms = re.compile("|".join(re.sub(r"\{\w+\}", r"[\\w-]+", name) for name in named))
    assert {path.stem for path in APPROVED.glob("*.txt") if not forms.fullmatch(path.stem)} == set(PROMPTS)
