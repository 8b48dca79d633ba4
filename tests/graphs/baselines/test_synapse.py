"""Synapse played through: what it retrieves, when, and what its prompts show."""

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from drawer import Drawer
from hypothesis import given, settings
from hypothesis import strategies as st
from killed_runs import Emptied, play_past_deaths

from learngraph.graphs.baselines import react, synapse
from learngraph.graphs.baselines.synapse import Synapse
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.graphs.wiring.supersteps import merge_steps
from learngraph.memory.attempts.trajectories import Trajectories, goal_key
from learngraph.memory.errors import UserError
from learngraph.memory.records import Candidate, Precedent, Task, Trajectory, Transition
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.record_store import write_jsonl
from learngraph.nodes.act.episode import replay_actions
from learngraph.nodes.act.policies import PromptView
from learngraph.nodes.evaluate.judge import RuleJudge
from learngraph.nodes.retrieve.attempts import Layout
from learngraph.nodes.retrieve.synapse import Exemplars
from learngraph.tools.environments.keyword_keep import KeywordKeep

TOY = KeywordKeep()
TASK = TOY.task(3)
WALKED = replay_actions(TOY, TASK, TOY.gold(TASK), run="gold")


class Player:
    """Notes what it is shown, and plays at random, or right from an episode on; may fail once at a step."""

    def __init__(self, right_from: int = 10_000, dies_at: tuple[int, int] = (-1, -1)) -> None:
        self.dies_at = dies_at
        self.shown: dict[tuple[int, int], dict[str, str]] = {}
        self.right_from = right_from

    def __call__(self, seen: PromptView) -> Any:
        def node(state: Any) -> dict[str, Any]:
            episode, step = state["episode"], state["step"]
            self.shown[episode, step] = seen(state)
            draw = random.Random(f"{episode}/{step}")
            if (episode, step) == self.dies_at:
                self.dies_at = (-1, -1)
                raise RuntimeError("the process was killed")
            right = TOY.gold(state["task"])[step] if episode >= self.right_from else None
            return {"candidates": [Candidate(right or draw.choice(state["observation"].actions), 0.0)]}

        return node

    def before(self, episode: int) -> set[str]:
        """What stands before the running attempt in the prompts of an episode."""
        texts = [shown["steps"] for (e, _), shown in self.shown.items() if e == episode]
        return {"".join(re.split(r"(?=^Attempt)", text, flags=re.MULTILINE)[:-1]) for text in texts}


def play(player: Player, episodes: int, chosen: Synapse | None = None, task: Task = TASK, **inputs: Any) -> dict[str, Any]:
    graph = merge_steps(synapse.build(MethodInputs(TOY, Journal(), player, **inputs), chosen))
    out: dict[str, Any] = run.build(graph).invoke(run.RunInput(task=task, run="r", episode=0, episodes=episodes))
    return out


def bank(path: Path, *trajectories: Trajectory) -> str:
    write_jsonl(trajectories, path)
    return str(path)


def test_an_empty_memory_is_react() -> None:
    first, plain = Player(), Player()
    out = play(first, 1)
    graph = merge_steps(react.build(MethodInputs(TOY, Journal(), plain)))
    expected = run.build(graph, commit="last").invoke(run.RunInput(task=TASK, run="r", episode=0, episodes=1))
    assert first.shown == plain.shown
    assert out["scores"] == expected["scores"]


def test_one_retrieval_an_episode_and_the_same_text_in_every_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    search = Trajectories.search
    monkeypatch.setattr(Trajectories, "search", lambda self, key, *a, **k: asked.append(key) or search(self, key, *a, **k))
    player = Player()
    play(player, 3, Synapse(bank=bank(tmp_path / "bank.jsonl", WALKED)))
    assert asked == [TASK.instruction] * 3
    steps = Layout().steps(WALKED.transitions)
    for episode in range(3):
        assert player.before(episode) == {f"Attempt 1:\n{steps}total 10\n"}
    assert player.shown[2, 0]["steps"].endswith("total 10\nAttempt 2:\n")
    assert all("earlier attempts" in shown["brief"] for shown in player.shown.values())


def test_successes_join_the_memory_and_failures_only_if_asked_for() -> None:
    player, drawer = Player(right_from=2), Drawer()
    play(player, 5, Synapse(k=9), records=drawer)
    assert [t.value for t in drawer.all()][2:] == [10.0] * 3
    assert [len(player.before(e)) for e in range(5)] == [1] * 5
    shown = [min(player.before(e)).count("total 10\n") for e in range(5)]
    assert shown == [0, 0, 0, 1, 2]
    assert not any("failure" in min(player.before(e)) for e in range(5))
    every = Player(right_from=2)
    play(every, 5, Synapse(k=9, outcomes="all"))
    assert [min(every.before(e)).count("total") for e in range(5)] == [0, 1, 2, 3, 4]
    assert min(every.before(3)).count("(failure)") == 2


def test_a_memory_that_is_not_online_stays_as_it_is(tmp_path: Path) -> None:
    player, drawer = Player(right_from=0), Drawer()
    play(player, 3, Synapse(k=9, online=False, bank=bank(tmp_path / "b.jsonl", WALKED)), records=drawer)
    assert drawer.all() == []
    assert [min(player.before(e)).count("total 10\n") for e in range(3)] == [1, 1, 1]
    with pytest.raises(UserError, match="remembers nothing but a bank"):
        play(player, 1, Synapse.paper())


def test_what_was_consulted_is_kept_with_the_attempt() -> None:
    drawer = Drawer()
    play(Player(right_from=0), 3, Synapse(), records=drawer)
    assert [t.used for t in drawer.all()] == [(), ("r/0",), ("r/1",)]  # of equals the newest


def test_later_episodes_of_the_run_are_hidden() -> None:
    """Played again from episode 2 over a memory that knows all five, the prompts are the same as the first time."""
    player, drawer = Player(right_from=0), Drawer()
    play(player, 5, Synapse(k=9), records=drawer)
    again = Player(right_from=0)
    graph = synapse.build(MethodInputs(TOY, Journal(), again, records=drawer), Synapse(k=9))
    graph.invoke({"task": TASK, "run": "r", "episode": 2})
    assert again.before(2) == player.before(2)
    assert min(again.before(2)).count("total") == 2


@pytest.mark.parametrize("dies_at", [(0, 3), (1, 0), (1, 5)])
def test_killed_and_resumed_the_prompts_are_the_same(dies_at: tuple[int, int]) -> None:
    whole, player = Player(right_from=0), Player(right_from=0, dies_at=dies_at)
    play(whole, 3)

    def make(journal: Journal, records: Any) -> Any:
        return merge_steps(synapse.build(MethodInputs(TOY, journal, player, records=records)))

    assert play_past_deaths(make, TASK, 3)["scores"] == [10.0] * 3
    assert player.dies_at == (-1, -1)  # it died
    assert player.shown == whole.shown


def test_another_task_is_named(tmp_path: Path) -> None:
    other = replace(WALKED, id="other/0", task=replace(TASK, id="x", instruction="reach the\nold exit"))
    far = replace(WALKED, id="far/0", task=replace(TASK, id="y", instruction="boil an egg"))
    player = Player()
    play(player, 1, Synapse(k=3, bank=bank(tmp_path / "b.jsonl", other, far, WALKED)))
    (told,) = player.before(0)
    assert [line for line in told.splitlines() if line.startswith("Attempt")] == [
        "Attempt 1:",
        "Attempt 2 (task: reach the old exit):",
    ]


def test_exemplars_are_cut_after_whole_steps_best_first() -> None:
    """A character is a token. The second one gets what the first leaves; a step that does not fit is left out whole."""
    steps = tuple(Transition(f"place {n}", "go", 1.0) for n in range(4))
    pair = [Trajectory(f"b/{n}", Task("t", "go on"), steps, "b", n) for n in range(2)]
    memory = Trajectories(bank=pair, key=goal_key, first_only=True)
    found = [Precedent("b/0", 0, 1.0, True), Precedent("b/1", 0, 1.0, False)]
    one = "Attempt 1:\n" + "".join(f"place {n}\n> go\n= 1\n" for n in range(4)) + "total 4\n"
    short = one.replace("place 3\n> go\n= 1\n", "…\n")
    two = "Attempt 2 (failure):\nplace 0\n> go\n= 1\n…\ntotal 4\n"

    def told(room: int) -> str:
        return Exemplars(memory, Layout(), len, room)("go on", found)

    own = len("Attempt 2:\n")
    assert told(len(one) + own) == told(len(one + two) + own - 1) == f"{one}Attempt 2:\n"
    assert told(len(one + two) + own) == f"{one}{two}Attempt 3:\n"
    assert told(len(one) + own - 1) == f"{short}Attempt 2:\n"
    assert told(30) == ""


def test_threads_may_share_the_exemplars() -> None:
    told = Exemplars(Trajectories(bank=[WALKED], key=goal_key, first_only=True), Layout())
    found = [Precedent(WALKED.id, 0, 1.0, True)]
    alone = told(TASK.instruction, found)
    object.__setattr__(told, "_told", Emptied())
    assert told(TASK.instruction, found) == alone != ""


@settings(max_examples=25, deadline=None)
@given(st.integers(60, 900), st.integers(1, 6), st.integers(1, 12), st.integers(1, 60))
def test_no_prompt_outgrows_the_window(window: int, k: int, length: int, wide: int) -> None:
    steps = tuple(Transition(f"{'room ' * wide}{n}", "go", 1.0) for n in range(length))
    bank = [Trajectory(f"b/{n}", TASK, steps, "b", n, domain="toy") for n in range(k)]
    memory = Trajectories(bank=bank, key=goal_key, first_only=True)
    exemplars = Exemplars(memory, Layout(), len, window // 2)
    told = exemplars("reach the exit", [Precedent(t.id, 0, 1.0, True) for t in bank])
    assert len(told) <= window // 2
    lengths = [one.count("> go\n= 1\n") for one in told.split("Attempt ")[1:-1]]
    assert all(n == length for n in lengths[:-1])  # only the last one is cut
    assert all(1 <= n <= length for n in lengths)
    if len(lengths) < k:  # there was no room for the next step
        cut = lengths and lengths[-1] < length
        assert window // 2 - len(told) < len("Attempt 9:\nroom 9…\n> go\n= 1\n…\ntotal 12\n") + 5 * wide + 11 * (1 + bool(cut))


def scaled(id: str, run: str, reward: float) -> Trajectory:
    """A walk of ten steps that earned so much at each."""
    return replace(WALKED, id=id, run=run, transitions=tuple(Transition(f"{n}", "go", reward) for n in range(10)))


def test_a_bank_counts_by_the_environment_and_this_run_by_its_judge(tmp_path: Path) -> None:
    """The toy's success is 10. With a judge 1.25 is a success of this run, and 2.5 is none in a bank."""
    path = bank(tmp_path / "b.jsonl", scaled("won", "b", 1.0), scaled("lost", "b", 0.25))
    judge = RuleJudge(lambda task, actions: [0.1] * len(actions), Journal())
    memory = Synapse(success_threshold=1.25, bank=path).memory(MethodInputs(TOY, Journal(), judge=judge))
    memory.add(scaled("r/0", "r", 0.125))
    memory.add(scaled("r/1", "r", 0.09))
    found = {one.trajectory: one.success for one in memory.search(TASK.instruction, 9, domain="toy")}
    assert found == {"won": True, "lost": False, "r/0": True, "r/1": False}
    plain = Synapse(success_threshold=2.0, bank=path).memory(MethodInputs(TOY, Journal()))  # one scale, one threshold
    plain.add(scaled("r/0", "r", 0.125))
    assert {one.trajectory: one.success for one in plain.search(TASK.instruction, 9, domain="toy")} == {
        "won": True,
        "lost": True,
        "r/0": False,
    }

    class Silent(KeywordKeep):
        solved = None  # type: ignore[assignment]

    with pytest.raises(
        UserError, match=r"success in .*b\.jsonl\? toy does not say it, and success_threshold is on the judge's scale"
    ):
        Synapse(success_threshold=1.0, bank=path).memory(MethodInputs(Silent(), Journal(), judge=judge))


@pytest.mark.parametrize("wrong", [{"k": 0}, {"max_state_chars": 0}, {"outcomes": "failures"}, {"max_memory_tokens": -1}])
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"(?i)synapse: "):
        Synapse(**wrong)
