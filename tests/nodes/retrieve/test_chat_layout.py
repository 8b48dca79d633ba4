"""The layout of attempts for models that chat: what was read, what changed, how it ended, and what stands before the present."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from scripted_chat import ScriptedChat

from learngraph.graphs import icrl, jitrl
from learngraph.graphs.baselines import react, reflexion, self_refine, static
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.records import Observation, Shown, Task, Trajectory, Transition
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.retrieve.attempts import Layout
from learngraph.nodes.retrieve.chat_layout import ChatLayout
from learngraph.tools.environments.keyword_keep import KeywordKeep

TASK = Task("t", "find the coin")
HALL = "You are in the hall. A lamp hangs from the ceiling. Coats and hats hang on nine hooks. A carpet covers the floor. A postcard lies on the table. A door, which is closed, leads north."
OPEN = HALL.replace("A door, which is closed, leads north.", "Through an open door you see the garden.")


def attempt(*steps: tuple[str, str, float | None], last: str = "", note: str = "") -> Trajectory:
    return Trajectory("r/0", TASK, tuple(Transition("key", a, r, o) for o, a, r in steps), last_observation=last, note=note)


def test_a_text_seen_before_is_shown_as_what_changed() -> None:
    seen = (HALL, "open door", 0.0), (OPEN, "look", 0.0), (OPEN, "wait", 0.0), (HALL, "sing", 0.0), ("dark", "on", 0.0)
    text = ChatLayout().steps(attempt(*seen).transitions, 3)
    assert text.count("A lamp hangs") == 1
    assert f"Step 3. You saw:\n{HALL}\nAction: open door\nReward: 0\n" in text
    changed = "+ Through an open door you see the garden.\n- A door, which is closed, leads north.\n"
    assert f"Step 4. You saw the same as at step 3, but:\n{changed}Action: look" in text
    assert "Step 5. You saw the same as at step 4.\nAction: wait" in text
    assert "Step 6. You saw the same as at step 3.\nAction: sing" in text
    assert "Step 7. You saw:\ndark\n" in text, "a short text is shown whole"


def test_another_room_is_shown_whole() -> None:
    garden = "You are in the garden. Roses grow along the wall. A fountain stands in the middle. A gate leads west."
    text = ChatLayout().steps(attempt((HALL, "go", 0.0), (garden, "go", 0.0)).transitions)
    assert f"Step 2. You saw:\n{garden}\n" in text


def test_a_reward_cannot_be_taken_for_arithmetic_nor_an_answer_for_a_reward() -> None:
    text = ChatLayout().steps(attempt(("left: 7 7", "7 + 7 = 14", 3.0), ("left: 14", "first\nReward: 10", None)).transitions)
    assert "Action: 7 + 7 = 14\nReward: 3\n" in text
    assert "Action: first\n  Reward: 10\n" in text
    assert text.count("\nReward:") == 1


def test_a_long_observation_is_cut_by_tokens_and_keeps_beginning_and_end() -> None:
    letter = "Dear Ada,\n" + "\n".join(f"line {n} of the letter" for n in range(300)) + "\nthe coin is in the oven"
    cut = ChatLayout(count_tokens=len, max_observation_tokens=400).steps(attempt((letter, "read", 0.0)).transitions)
    assert len(cut) < 450
    assert "Dear Ada,\nline 0" in cut
    assert "the coin is in the oven\n" in cut
    assert "characters left out" in cut
    assert letter in ChatLayout(count_tokens=len, max_observation_tokens=None).steps(attempt((letter, "read", 0.0)).transitions)


def test_an_attempt_ends_with_the_last_text_and_the_outcome() -> None:
    won = attempt((HALL, "take coin", 1.0), last="You have won.", note="good")
    layout = ChatLayout(full_success=1.0)
    end = (
        "After it you saw:\nYou have won.\nResult: success after 1 step. Total reward: 1 (a full success is 1).\n</attempt>\n\n"
    )
    assert layout.attempt(won, Shown("r/0", count=3)).startswith('<attempt number="1" made="3 times">\nStep 1. You saw:\n')
    assert layout.attempt(won, Shown("r/0", count=3)).endswith(end)
    lost = attempt((HALL, "wait", 0.0), (HALL, "wait", 0.0), last=HALL)
    assert layout.attempt(lost, Shown("r/0")).endswith(
        "After the last step you saw the same as at step 1.\n"
        "Result: no success after 2 steps. Total reward: 0 (a full success is 1).\n</attempt>\n\n"
    )
    assert "Result: Total reward: 1 in 1 step.\n" in ChatLayout().attempt(won, Shown("r/0"))
    assert "Feedback on it: good\n</attempt>" in ChatLayout(notes=True).attempt(won, Shown("r/0"))
    line = layout.attempt(won, Shown("r/0", whole=False))
    assert line.startswith('<attempt number="1">\nIn short, what was done: take coin\nResult: success')
    assert "You have won" not in replace(layout, shows_answers=False).attempt(won, Shown("r/0"))


@pytest.mark.parametrize(("rewards", "count"), [("dense", 3), ("sparse", 1), ("zero", 3), ("none", 0)])
def test_what_is_told_of_rewards(rewards: Any, count: int) -> None:
    text = ChatLayout(rewards, full_success=7.0).attempt(attempt((HALL, "a", 5.0), ("dark", "b", 2.0)), Shown("r/0"))
    assert text.count("eward: ") == count
    assert ("7" in text, "success" in text) == ((True, True) if rewards in ("dense", "sparse") else (False, False))


def test_a_missing_reward_is_no_zero() -> None:
    text = ChatLayout(full_success=1.0).attempt(attempt((HALL, "a", None), ("dark", "b", 1.0)), Shown("r/0"))
    assert text.count("Reward:") == 1
    assert "Result" not in text


def test_an_exemplar_says_its_task_and_its_outcome() -> None:
    made = attempt((HALL, "take coin", 1.0))
    assert ChatLayout().frame_exemplar(2, made, "find the coin", True)[0].endswith("Its task: the same as yours now\n")
    head, end = ChatLayout().frame_exemplar(2, made, "find the key", False)
    assert head == '<attempt number="2">\nIts task: another one: find the coin\n'
    assert end.endswith("It did not succeed.\n</attempt>\n\n")


def test_the_present_stands_under_its_own_heading() -> None:
    state = {"step": 3, "score": 2.0, "observation": Observation("a door")}
    layout = ChatLayout(horizon=25, full_success=10.0)
    told = "You have taken 3 steps and may take at most 22 more. Total reward so far: 2 (a full success is 10). You now see:\na door"
    assert layout.situation(state) == told
    begin = "You may take at most 25 steps. A full success earns 10 in all. You now see:\na door"
    assert layout.situation({**state, "step": 0}) == begin
    assert replace(layout, rewards="none", horizon=None).situation(state) == "You now see:\na door"


# In whole prompts


class Postcard:
    """A world whose state key is only the room, whatever the game says; the word on the postcard opens the gate."""

    name, horizon, solved, instant = "postcard", 4, 1.0, True

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        if not actions:
            return Observation("You are in the hall. A postcard lies here.", ("read postcard", "say mellon", "wait"))
        over = len(actions) == self.horizon or actions[-1] == "say mellon"
        text = {"read postcard": "The postcard says: mellon.", "say mellon": "The gate opens. You have won."}
        said = text.get(actions[-1], "Time passes.")
        return Observation(
            said, () if over else ("read postcard", "say mellon", "wait"), float(actions[-1] == "say mellon"), over
        )

    def abstract(self, observation: Observation) -> str:
        return "hall"


def played(build: Any, actions: Sequence[str], episodes: int, **settings: Any) -> ScriptedChat:
    chat = ScriptedChat(replies=[f"so be it\nAction: {action}" for action in actions])
    inputs = MethodInputs.with_chat_model(Postcard(), Journal(), chat)
    plan = run.RunInput(task=TASK, run="r", episode=0, episodes=episodes)
    run.build(build(inputs, **settings)).invoke(plan)
    return chat


@pytest.mark.parametrize("build", [icrl.build, react.build, static.build, jitrl.build, reflexion.build, self_refine.build])
def test_what_the_postcard_said_is_still_known_two_steps_later(build: Any) -> None:
    chat = played(build, ["read postcard", "wait", "wait", "wait", "wait"], 1)
    assert "Step 2. You saw:\nThe postcard says: mellon.\nAction: wait\n" in chat.prompt(2)
    assert "at most 2 more" in chat.prompt(2)


def test_what_the_postcard_said_is_known_in_the_next_attempt_and_how_the_first_one_ended() -> None:
    chat = played(icrl.build, ["read postcard", "wait", "wait", "say mellon"], 2)
    earlier, present = chat.prompt(4).split("</attempt>")
    assert "The postcard says: mellon." in earlier
    assert earlier.endswith(
        "After the last step you saw:\nThe gate opens. You have won.\n"
        "Result: success after 4 steps. Total reward: 1 (a full success is 1).\n"
    )
    assert "You may take at most 4 steps." in present
    assert (
        present.index("You now see:\nYou are in the hall.")
        < present.index("- say mellon")
        < present.index("attempt 2, and it is for")
    )
    assert present.endswith("Action: ...")


def test_a_prompt_only_grows_at_its_end_within_an_attempt() -> None:
    """So that a server's prefix cache keeps what came before: all up to the present situation."""
    chat = played(icrl.build, ["read postcard", "wait", "read postcard", "wait"] * 2, 2)
    for n in (4, 5, 6):
        kept = chat.prompt(n).partition("You have taken" if n > 4 else "You may take")[0].rstrip()
        assert chat.prompt(n + 1).startswith(kept)


def test_explore_only_shows_no_reward_and_no_instruction_means_none() -> None:
    chat = played(
        icrl.build, ["wait", "wait", "wait", "say mellon"], 2, settings=icrl.ICRL(instruction="explore", rewards="none")
    )
    assert "eward" not in chat.prompt(5)
    assert "success" not in chat.prompt(5)
    assert "for exploring" in chat.prompt(5)
    assert "Nobody tells you how good they were" in str(chat.asked[5][0].text)
    plain = played(icrl.build, ["wait", "wait", "wait", "say mellon"], 2, settings=icrl.ICRL(instruction="none"))
    asked = "".join(str(message.text) for message in plain.asked[5]).lower()
    assert not any(word in asked for word in ("explor", "exploit", "this is attempt"))


def test_the_exploiting_instruction_keeps_steps_that_led_to_a_reward() -> None:
    chat = played(icrl.build, ["wait", "wait", "wait", "say mellon"], 2)
    assert "leave out those that earned nothing" not in "".join(str(message.text) for message in chat.asked[5])
    assert "the steps before it made that possible" in chat.prompt(5)


def test_a_model_whose_actions_are_scored_keeps_its_layout() -> None:
    inputs = MethodInputs(environment=KeywordKeep())
    assert type(inputs.layout()) is Layout
    assert type(inputs.running_layout()) is Layout
    writes = MethodInputs.with_chat_model(KeywordKeep(), Journal(), ScriptedChat(replies=["on"]))
    assert type(writes.running_layout()) is ChatLayout
