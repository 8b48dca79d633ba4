"""A world's verdict in words is in no prompt where a judge's rewards, or none, are all that is told."""

import json
from functools import cache
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from pydantic import Field
from scripted_chat import SayingChat
from worlds_here import needs

from learngraph.graphs.arms import make_arm
from learngraph.graphs.experiments.options import RunOptions
from learngraph.graphs.experiments.run_inputs import make_method_inputs
from learngraph.graphs.wiring import run
from learngraph.memory.storage.journal import Journal
from learngraph.tools.environments.catalogue import open_environment

SUM = "Step 1: 13 - 6 = 8 (left: 6 8 10)\nStep 2: 10 - 6 = 4 (left: 4 8)\nStep 3: 4 * 8 = 32 (left: 32)\nAnswer: 4 * 8 = 24"
WORLDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "game24?puzzle=6 6 10 13": ((SUM,), ("wrong, nothing", "is 7", "is not left", "wrong: ", "left: 6 6 10 13\nAction: 10")),
    "math": ((r"\boxed{-77}",), ("wrong: ", "the answer read")),
    "writing?source=own": (("Passage:\nOne.\n\nTwo.",), ("end with their sentence", "the passage has")),
    "questions": (("<answer>nobody</answer>",), ("wrong, scored", "the answer read")),
    "hotpot": (("Action: search[Ada]", "Action: finish[nobody]"), ("saw:\nwrong", "step:\nwrong")),
    "webshop?products=48": (("Action: search[bottle]", "Action: click[#1]", "Action: click[buy now]"), ("Your score",)),
}
"""World -> what a player writes there, one reply after the other, and words of its verdict."""
_BY_SUCCESS = ("awm", "synapse", "reasoning-bank", "adamem")
METHODS = ("icrl", "self-refine", "self-refine?rewards=dense", "reflexion", "best-of-n", "memory")
METHODS += tuple(f"{method}?success_threshold=3" for method in _BY_SUCCESS)
UNREWARDED = ("self-refine", "icrl?rewards=zero", "icrl?rewards=none")
"""Methods that are told no rewards, without any judge."""


class Player(SayingChat):
    """Plays these replies in turn, and answers everything else that it is asked."""

    replies: tuple[str, ...]
    asked: list[str] = Field(default_factory=list)
    played: int = 0

    def say(self, messages: list[BaseMessage], **options: Any) -> str:
        system, text = messages[0].text, "\n".join(message.text for message in messages)
        self.asked.append(text)
        if system.startswith(("You act", "You solve")):
            steps = self.replies
            if system.startswith("You act") and "Action:" not in steps[0]:
                steps = tuple(f"Action: {line}" for line in steps[0].splitlines())
            reply, self.played = steps[self.played % len(steps)], self.played + 1
        elif "judge" in system and "rewards" in text:
            count = range(1, 1 + text.count("Action:"))
            reply = json.dumps({"rewards": [{"step": n, "reward": 1} for n in count]})
        elif "judge" in system:
            reply = '{"score": 3, "success": false}'
        else:
            reply = "Plan: do better.\nFeedback: look again.\nWorkflows:\n# Way (here):\n1. go: go\n"
        return reply


@cache
def open_world(name: str) -> Any:
    return open_environment(name)


CASES = [(world, "icrl", "self") for world in WORLDS]
CASES += [(world, method, "self") for world in ("game24?puzzle=6 6 10 13", "hotpot") for method in METHODS[1:]]
CASES += [(world, method, "environment") for world in ("game24?puzzle=6 6 10 13", "questions") for method in UNREWARDED]


@pytest.mark.parametrize(
    ("world", "method", "judge"),
    [pytest.param(*case, marks=needs(case[0].partition(":")[0].partition("?")[0])) for case in CASES],
)
def test_no_prompt_has_a_verdict(world: str, method: str, judge: str) -> None:
    replies, verdicts = WORLDS[world]
    environment, arm, player = open_world(world), make_arm(method), Player(replies=replies)
    inputs = make_method_inputs(RunOptions(env=world, judge=judge), environment, player, Journal(), arm.method)
    graph = arm.method.build(inputs, arm.settings)
    run.build(graph).invoke(run.RunInput(task=environment.task(0), run="r", episode=0, episodes=2))
    assert player.played >= 2 * len(replies)
    assert [(word, asked) for word in verdicts for asked in player.asked if word in asked] == []
