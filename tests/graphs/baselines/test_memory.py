"""Memory: transcripts as they were, the oldest out first."""

import random
import re
from typing import Any

from killed_runs import play_past_deaths
from langgraph.store.memory import InMemoryStore
from scripted_chat import ScriptedChat

from learngraph.graphs import jitrl
from learngraph.graphs.baselines import memory
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs, Prompting
from learngraph.graphs.wiring.supersteps import merge_steps
from learngraph.memory.records import Candidate, Trajectory
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.record_store import RecordStore
from learngraph.nodes.act.policies import PromptView
from learngraph.tools.environments.keyword_keep import KeywordKeep

TOY = KeywordKeep()
TASK = TOY.task(3)


def count(text: str) -> int:
    return len(text.split())


class Player:
    """Plays at random, keeps what it is shown, and may fail once at a step."""

    def __init__(self, dies_at: tuple[int, int] = (-1, -1)) -> None:
        self.shown: dict[tuple[int, int], str] = {}
        self.dies_at = dies_at

    def __call__(self, view: PromptView) -> Any:
        def node(state: Any) -> dict[str, Any]:
            at = state["episode"], state["step"]
            self.shown[at] = view(state)["steps"] + view(state)["observation"]
            if at == self.dies_at:
                self.dies_at = (-1, -1)
                raise RuntimeError("the process was killed")
            return {"candidates": [Candidate(random.Random(str(at)).choice(state["observation"].actions), 0.0)]}

        return node

    def numbers(self, episode: int, step: int = 0) -> list[int]:
        """The attempts in a prompt, the running one last."""
        return [int(n) for n in re.findall(r"^Attempt (\d+):$", self.shown[episode, step], flags=re.MULTILINE)]


def play(player: Player, episodes: int, records: Any = None, **prompting: Any) -> dict[str, Any]:
    graph = merge_steps(
        memory.build(
            MethodInputs(TOY, Journal(), player, records=records, prompting=Prompting(count_tokens=count, **prompting))
        )
    )
    out: dict[str, Any] = run.build(graph).invoke({"task": TASK, "run": "r", "episode": 0, "episodes": episodes})
    return out


def test_all_attempts_are_shown_whole_and_in_their_order() -> None:
    player, journal = Player(), Journal()
    graph = merge_steps(memory.build(MethodInputs(TOY, journal, player)))
    run.build(graph).invoke({"task": TASK, "run": "r", "episode": 0, "episodes": 4})
    assert [player.numbers(e) for e in range(4)] == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]
    last = player.shown[3, 0]
    for episode in range(3):  # every step of every attempt, with its reward
        steps = sum(1 for at in player.shown if at[0] == episode)
        text = last.split(f"Attempt {episode + 1}:\n")[1].split("Attempt")[0]
        assert len(re.findall("^> ", text, flags=re.MULTILINE)) == len(re.findall("^= ", text, flags=re.MULTILINE)) == steps


def test_the_oldest_goes_first_when_the_window_is_full() -> None:
    player = Player()
    play(player, 8, window=400, reserved_tokens=0)
    assert max(map(count, player.shown.values())) <= 400
    for episode in range(8):
        numbers = player.numbers(episode)
        assert numbers == [*range(episode + 2 - len(numbers), episode + 2)]  # the newest ones without a gap
    assert player.numbers(1) == [1, 2]
    assert player.numbers(7)[0] > 1


def test_a_window_with_room_for_one_attempt_still_plays() -> None:
    player = Player()
    out = play(player, 3, window=90, reserved_tokens=0)
    assert len(out["scores"]) == 3
    assert max(map(count, player.shown.values())) <= 90
    assert [player.numbers(e) for e in range(3)] == [[1], [2], [3]]


def test_a_model_that_chats_sees_the_attempts_with_rewards_and_ends() -> None:
    chat = ScriptedChat(replies=["Action: wait"])
    graph = memory.build(MethodInputs.with_chat_model(TOY, Journal(), chat))
    out = run.build(graph).invoke({"task": TASK, "run": "r", "episode": 0, "episodes": 2})
    first, second = chat.prompt(0), chat.prompt(out["lengths"][0])
    assert "<attempt" not in first
    shown = second.split('<attempt number="1">')[1].split("</attempt>")[0]
    assert shown.count("Action: wait\nReward: 0") == out["lengths"][0]
    assert "Result: no success" in shown


def test_a_run_that_was_killed_goes_on_with_the_same_numbers() -> None:
    expected = play(Player(), 4)["scores"]
    player = Player(dies_at=(2, 3))

    def make(journal: Journal, records: Any) -> Any:
        room = Prompting(count_tokens=count)
        return merge_steps(memory.build(MethodInputs(TOY, journal, player, records=records, prompting=room)))

    assert play_past_deaths(make, TASK, 4)["scores"] == expected
    assert player.dies_at == (-1, -1)  # it died


def test_it_remembers_the_run_that_it_is_in_and_no_other() -> None:
    player, store = Player(), RecordStore(InMemoryStore(), ("t",), Trajectory)
    play(player, 2, records=store)
    other = Player()
    graph = merge_steps(memory.build(MethodInputs(TOY, Journal(), other, records=store)))
    run.build(graph).invoke({"task": TASK, "run": "another", "episode": 0, "episodes": 1})
    assert other.numbers(0) == [1]


def test_it_has_jitrls_history() -> None:
    """Of the running episode it sees as many steps as JitRL's policy: of a model that scores, none, unless it is told otherwise."""
    for steps, build in ((0, memory.build), (0, jitrl.build), (2, memory.build), (2, jitrl.build)):
        player = Player()
        run.build(build(MethodInputs(TOY, Journal(), player, prompting=Prompting(history_steps=steps)))).invoke(  # type: ignore[operator]
            {"task": TASK, "run": "r", "episode": 0, "episodes": 1}
        )
        assert len(re.findall("^> ", player.shown[0, 5], flags=re.MULTILINE)) == steps
