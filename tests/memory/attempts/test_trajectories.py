"""What AdaMEM's memory finds equals what comparing with every step gives, whatever was asked and stored in which order."""

import json
import math
import tracemalloc
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.store.memory import InMemoryStore

from learngraph.memory.attempts.trajectories import (
    BadMemory,
    Trajectories,
    goal_key,
    is_rewarded,
    read_bank,
    return_to_go,
    structured_key,
    whole_prompt_key,
)
from learngraph.memory.errors import UserError
from learngraph.memory.records import Precedent, Task, Trajectory, Transition
from learngraph.memory.search.similarity import JaccardSimilarity, jaccard, shingles, state_shingles
from learngraph.memory.storage.record_store import RecordStore, to_json, write_jsonl

STATES = ["door black", "door red", "door black mist", "gate troll", "hall lamp rope", "hall rope lamp", ""]
GOALS = ["reach the exit", "reach the cellar", "find the coin"]


def attempt(
    *steps: tuple[str, str, float | None],
    number: int = 0,
    run: str = "a",
    task: str = "t0",
    goal: str = GOALS[0],
    domain: str = "",
    used: Iterable[str] = (),
) -> Trajectory:
    transitions = tuple(Transition(*step) for step in steps)
    return Trajectory(f"{run}/{number}", Task(task, goal), transitions, run, number, domain=domain, used=tuple(used))


def filled(stored: Iterable[Trajectory], **settings: Any) -> Trajectories:
    memory = Trajectories(**settings)
    for trajectory in stored:
        memory.add(trajectory)
    return memory


def ask(memory: Trajectories, state: str, k: int = 10, goal: str = GOALS[0], **filters: Any) -> list[tuple[str, float]]:
    found = memory.search(memory.key(Task("asked", goal), (), state), k, **filters)
    return [(f"{one.trajectory}/{one.step}", one.similarity) for one in found]


def names(memory: Trajectories, state: str, k: int = 10, goal: str = GOALS[0], **filters: Any) -> list[str]:
    return [name for name, _ in ask(memory, state, k, goal, **filters)]


# what a step is found by


def test_the_state_decides_and_the_goal_at_most_halves():
    memory = filled([attempt(("door black", "mist", 1.0)), attempt(("door red", "fern", 1.0), number=1)])
    assert ask(memory, "door black") == [("a/0/0", 1.0), ("a/1/0", 0.2)]  # {door, black, door black}: 1 of 5 shared
    assert ask(memory, "door black", goal="reach the cellar") == [  # goals: reach, the, reach the of 9 shared
        ("a/0/0", pytest.approx((1 + 3 / 9) / 2)),
        ("a/1/0", pytest.approx(0.2 * (1 + 3 / 9) / 2)),
    ]
    assert ask(memory, "door black", goal="eat") == [("a/0/0", 0.5), ("a/1/0", 0.1)]


def test_a_long_goal_makes_no_states_alike():
    long = " ".join(f"word{i}" for i in range(40))
    memory = filled([attempt(("door red", "fern", 1.0), goal=long), attempt(("gate troll", "rope", 1.0), number=1, goal=long)])
    assert ask(memory, "door black", goal=long) == [("a/0/0", 0.2)]  # and the gate, which shares the goal alone, not at all


def test_words_of_the_goal_are_not_words_of_the_state():
    memory = filled([attempt(("nothing here", "go", 1.0), goal="door black")])
    assert ask(memory, "door black", goal="look around") == []


def test_a_state_less_alike_may_win_by_its_goal():
    stored = [attempt(("x y z w", "go", 1.0)), *(attempt(("x y z", "go", 1.0), number=n, goal="eat") for n in range(1, 9))]
    memory = filled(stored, similarity=JaccardSimilarity(lambda goal, text: text.split()))
    assert ask(memory, "x y z", 1, per_trajectory=0) == [("a/0/0", 0.75)]  # 8 states are more alike: worth 0.5 each
    assert ask(memory, "x y z", 2) == [("a/0/0", 0.75), ("a/8/0", 0.5)]


def test_things_that_goals_name_are_alike_by_their_place_in_the_goal():
    mug, plate = "put a mug in the safe", "put a plate in the fridge"
    assert state_shingles(mug, "carrying mug 1") == ["carrying", "\x002", "carrying \x002", "1"]
    stored = [
        attempt(("Carrying: mug 1", "open safe 1", 0.0), goal=mug),
        attempt(("Carrying: plate 1", "put plate 1 in safe 1", 0.0), number=1, goal=mug),
    ]
    # goals share put, a, in, the, put a, in the of 22; the held things: 4 of 4 runs and numbers, and 2 of 6
    found = ask(filled(stored), "Carrying: plate 2", goal=plate)
    assert [name for name, _ in found] == ["a/0/0", "a/1/0"], "the mug was the thing to move, as the plate is now"
    factor = (1 + jaccard({*shingles(mug)}, {*shingles(plate)})) / 2
    assert found[0][1] == pytest.approx(3 / 5 * factor)  # the numbers differ
    assert found[1][1] == pytest.approx(1 / 7 * factor)


@given(st.lists(st.sampled_from(["mug", "safe", "hall", "door", "in", "put", "red"]), max_size=6), st.data())
def test_under_one_goal_states_are_as_alike_as_their_words(first, data):
    second = data.draw(st.permutations(first)) + data.draw(st.lists(st.sampled_from(["mug", "hall", "lamp"]), max_size=2))
    goal, (one, other) = "put a mug in the safe", (" ".join(first), " ".join(second))
    read = [{*state_shingles(goal, state)} for state in (one, other)]
    assert jaccard(*read) == jaccard({*shingles(one)}, {*shingles(other)})


def test_without_a_least_similarity_of_its_own_a_query_takes_that_of_the_comparison():
    memory = filled([attempt(("door red", "fern", 1.0), ("door black", "mist", 1.0))])
    assert names(memory, "door black", per_trajectory=0, min_similarity=None) == ["a/0/1"]
    assert names(memory, "door black", per_trajectory=0, min_similarity=0.0) == ["a/0/1", "a/0/0"]


def test_keys_hold_what_they_say():
    task, before = Task("t", "reach\n the exit"), [Transition("door black", "mist", 1.0)]
    assert structured_key(task, before, "gate troll") == "goal: reach the exit\nstate: gate troll"
    assert whole_prompt_key(task, before, "gate troll") == "reach the exit\ndoor black\n> mist\ngate troll"
    assert goal_key(task, before, "gate troll") == "reach\n the exit"


# equal to comparing with every step


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Trajectory], list[Trajectory]]:
    """(a bank, the run's own in the order of storing)"""
    outcomes = st.sampled_from([0.0, 1.0, 1.0, None])
    steps = st.lists(st.builds(Transition, st.sampled_from(STATES), st.sampled_from(["go", "wait"]), outcomes), max_size=5)
    found: dict[str, Trajectory] = {}
    for _ in range(draw(st.integers(0, 9))):
        run, number = draw(st.sampled_from(["a", "b", "bank"])), draw(st.integers(0, 5))
        name = f"{run}/{number}"
        task = Task(draw(st.sampled_from(["t0", "t1"])), draw(st.sampled_from(GOALS)))
        used = tuple(draw(st.lists(st.sampled_from(["a/0", "a/1", "b/0", "bank/0", "gone/0"]), max_size=2)))
        domain = draw(st.sampled_from(["", "toy"]))
        found[name] = Trajectory(name, task, tuple(draw(steps)), run, number, domain=domain, used=used)
    bank = [t for t in found.values() if t.run == "bank"]
    return bank, [t for t in found.values() if t.run != "bank"]


questions = st.fixed_dictionaries(
    {
        "k": st.integers(1, 6),
        "kind": st.sampled_from(["success", "all"]),
        "min_similarity": st.sampled_from([0.0, 0.2, 0.35, 1.0]),
        "per_trajectory": st.integers(0, 2),
        "distinct": st.booleans(),
        "domain": st.sampled_from(["", "", "toy"]),
        "task": st.sampled_from([None, None, "t1"]),
        "before": st.none() | st.tuples(st.sampled_from(["a", "b", "c", "bank"]), st.integers(0, 6)),
    }
)


def brute(
    bank: list[Trajectory],
    own: list[Trajectory],
    similarity: Callable[[tuple[str, str], tuple[str, str]], float],
    asked: tuple[str, str],
    *,
    k: int,
    kind: str,
    min_similarity: float,
    per_trajectory: int,
    distinct: bool,
    domain: str,
    task: str | None,
    before: tuple[str, int] | None,
    smallest: float = 0.0,
) -> list[Precedent]:
    """The definition, without an index: every record compared, every choice made over all of them."""
    if before is not None:
        own = [t for t in own if t.run != before[0] or t.episode < before[1]]
    records = []
    for order, t in enumerate([*bank, *own]):
        for step in range(len(t.transitions)):
            alike = similarity(asked, (t.task.instruction, t.transitions[step].state))
            if t.domain == domain and task in (None, t.task.id) and alike >= min_similarity and alike > smallest:
                records.append((alike, order, step, t))
    records.sort(key=lambda r: (r[0], r[1], r[2]), reverse=True)

    def deed(r: Any) -> tuple[str, str]:
        step = r[3].transitions[r[2]]
        return structured_key(r[3].task, (), step.state), step.action

    def worth(r: Any) -> float:
        ahead = return_to_go(r[3], r[2])
        return -math.inf if ahead is None else ahead

    def chosen(wanted: set[bool | None]) -> list[Any]:
        left, picked = [r for r in records if is_rewarded(r[3]) in wanted], list[Any]()
        if distinct:  # the first of equals is the newest
            left = [
                r
                for r in left
                if is_rewarded(r[3]) is not False or r[2] < len(r[3].transitions) - 1 or r[3].transitions[-1].reward
            ]
            best = {one: max((r for r in left if deed(r) == one), key=worth) for one in map(deed, left)}
            left = [r for r in left if best[deed(r)] is r]

        while len(picked) < k:
            free = [r for r in left if not per_trajectory or sum(p[3] is r[3] for p in picked) < per_trajectory]
            if not free:
                break
            picked.append(free[0])
            left.remove(free[0])
        return picked

    both = chosen({True} if kind == "success" else {True, False, None})
    return [Precedent(t.id, step, alike, is_rewarded(t)) for alike, _, step, t in both]


def by_tokens(a: tuple[str, str], b: tuple[str, str]) -> float:
    goals, states = ((frozenset(shingles(x)), frozenset(shingles(y))) for x, y in zip(a, b, strict=True))
    return jaccard(*states) * (1 + (1.0 if goals[0] == goals[1] else jaccard(*goals))) / 2


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(worlds(), st.sampled_from(STATES), st.sampled_from(GOALS), questions)
def test_search_equals_brute_force(world, state, instruction, question):
    bank, own = world
    memory = filled(own, bank=bank)
    found = memory.search(structured_key(Task("asked", instruction), (), state), **question)
    assert found == brute(bank, own, by_tokens, (instruction, state), **question)


@settings(max_examples=25, deadline=None)
@given(worlds(), st.sampled_from(STATES), questions, st.randoms())
def test_order_of_asking_storing_twice_and_reopening_change_nothing(world, state, question, random):
    bank, own = world
    records: RecordStore[Trajectory] = RecordStore(InMemoryStore(), ("trajectories",), Trajectory)
    memory = Trajectories(records, bank=bank)
    key = structured_key(Task("asked", GOALS[0]), (), state)
    for trajectory in own:
        memory.search(key, **question)
        memory.add(trajectory)
        memory.add(random.choice(own[: own.index(trajectory) + 1]))
    again = Trajectories(records, bank=bank)
    fresh = filled(own, bank=bank)
    assert memory.search(key, **question) == fresh.search(key, **question) == again.search(key, **question)
    assert len(memory) == len(fresh) == len(again)


# the choices one by one


def test_of_equal_steps_the_success_is_found_and_of_a_failure_no_step_that_proves_nothing() -> None:
    """A walkthrough, then the same again, cut off before its last step; then one whose last step was answered, and a reply."""
    won = attempt(("hall", "go", 0.0), ("gate", "open", 1.0))
    cut = attempt(("hall", "go", 0.0), ("cellar", "wait", 0.0), number=1)
    memory = filled([won, cut])
    assert names(memory, "hall", k=4) == ["a/1/0", "a/0/0"]
    assert names(memory, "hall", k=4, distinct=True) == ["a/0/0"]
    assert names(memory, "cellar", distinct=True) == []
    for more in (
        {"last_observation": "Nothing happens."},
        {"lost": True},
        {"transitions": (*cut.transitions[:1], Transition("cellar", "reply: Bye.", 0.0))},
    ):
        memory.add(replace(cut, **more))
        assert names(memory, "cellar", distinct=True) == ["a/1/1"]


def test_kinds_by_outcome_and_what_nobody_knows_only_with_all():
    stored = [
        attempt(("door black", "mist", 1.0)),
        attempt(("door black", "fern", 0.0), number=1),
        attempt(("door black", "salt", None), number=2),
    ]
    memory = filled(stored)
    assert names(memory, "door black", kind="success") == ["a/0/0"]
    assert names(memory, "door black") == ["a/2/0", "a/1/0", "a/0/0"]  # equals: newest first
    assert [p.success for p in memory.search(structured_key(Task("t", GOALS[0]), (), "door black"), 3)] == [None, False, True]


def test_success_is_what_the_memory_is_told():
    memory = filled([attempt(("door", "go", 0.75))], success=lambda t: t.value == 1)
    assert names(memory, "door", kind="success") == []


step_lists = st.lists(
    st.tuples(st.sampled_from(STATES[:3]), st.sampled_from(["mist", "fern"]), st.sampled_from([0.0, 1.0, None])),
    min_size=1,
    max_size=4,
)


@given(st.lists(step_lists, min_size=1, max_size=6), st.data())
def test_rewards_that_change_in_an_open_memory_are_found_as_in_one_made_anew(plays: Any, data: Any) -> None:
    stored = {n: attempt(*steps, number=n) for n, steps in enumerate(plays)}
    memory = filled(stored.values())
    asked = [
        {"kind": kind, "distinct": distinct, "per_trajectory": 0, "before": before}
        for kind in ("all", "success")
        for distinct in (False, True)
        for before in (None, ("a", 2))
    ]
    for _ in range(4):
        for filters in asked[data.draw(st.integers(0, 4)) :]:
            ask(memory, "door black", **filters)
        n = data.draw(st.sampled_from(sorted(stored)))
        rewards = data.draw(st.lists(st.sampled_from([0.0, 1.0, None]), min_size=4, max_size=4))
        steps = tuple(replace(step, reward=reward) for step, reward in zip(stored[n].transitions, rewards, strict=False))
        stored[n] = replace(stored[n], transitions=steps)
        memory.add(stored[n])
        anew = filled(stored.values())
        for filters in asked:
            assert ask(memory, "door black", **filters) == ask(anew, "door black", **filters)


def test_a_memory_of_first_steps():
    stored = [attempt(*[(f"room{i}", "go", 1.0) for i in range(8)])]
    assert len(filled(stored)) == 8
    first = filled(stored, first_only=True)
    assert len(first) == 1
    assert names(first, "room0") == ["a/0/0"]
    assert names(first, "room1") == []


def test_the_return_to_go_is_what_was_still_earned():
    trajectory = attempt(("a", "go", 1.0), ("b", "go", 2.0), ("c", "go", 4.0))
    assert [return_to_go(trajectory, step) for step in range(3)] == [7.0, 6.0, 4.0]
    missing = attempt(("a", "go", 1.0), ("b", "go", None), ("c", "go", 4.0))
    assert [return_to_go(missing, step) for step in range(3)] == [None, None, 4.0]
    with pytest.raises(BadMemory, match="'a/0' has 3 steps, asked for step 3"):
        return_to_go(trajectory, 3)


# banks


def test_a_bank_made_elsewhere_is_searched_beside_the_runs_own(tmp_path):
    made = [attempt(("door black", "mist", 1.0), run="gold"), attempt(("gate troll", "rope", 1.0), run="gold", number=1)]
    file = tmp_path / "bank.jsonl"
    write_jsonl(made, file)
    assert read_bank(file) == tuple(made)
    records: RecordStore[Trajectory] = RecordStore(InMemoryStore(), ("trajectories",), Trajectory)
    memory = Trajectories(records, bank=read_bank(file))
    memory.add(attempt(("door black", "fern", 0.0)))
    assert names(memory, "door black") == ["a/0/0", "gold/0/0"]  # among equals the bank's is the older one
    assert names(memory, "door black", before=("gold", 0)) == ["a/0/0", "gold/0/0"]  # a bank was there from the start
    assert [t.id for t in records.all()] == ["a/0"]


def test_a_bank_stays_in_sight_of_a_run_of_the_same_name():
    memory = Trajectories(bank=[attempt(("door", "go", 1.0), number=5)])
    memory.add(attempt(("door", "go", 1.0), number=1))
    assert names(memory, "door", before=("a", 1)) == ["a/5/0"]
    assert names(memory, "door", before=("a", 2)) == ["a/1/0", "a/5/0"]


def test_equal_ids_in_bank_and_store_are_refused():
    seed = attempt(("door", "go", 1.0))
    memory = Trajectories(bank=[seed])
    with pytest.raises(BadMemory, match="'a/0' is in the bank as well as among the run's own: give the run another name"):
        memory.add(seed)
    records: RecordStore[Trajectory] = RecordStore(InMemoryStore(), ("trajectories",), Trajectory)
    records.put([seed])
    with pytest.raises(BadMemory, match="'a/0' is in the bank as well"):
        Trajectories(records, bank=[seed])
    with pytest.raises(BadMemory, match="two trajectories 'a/0'"):
        Trajectories(bank=[seed, attempt(("door", "wait", 1.0))])


def test_a_bank_with_episodes_of_the_run_is_refused_before_it_is_played():
    bank = [attempt(("door", "go", 1.0), number=3)]
    with pytest.raises(BadMemory, match=r"'a/3' is in the bank as well .*--bank RUN_FOLDER"):
        Trajectories(bank=bank, run="a")
    for other in ("", "b", "a/3"):
        assert len(Trajectories(bank=bank, run=other)) == 1


def line(trajectory: Trajectory) -> str:
    return json.dumps(to_json(trajectory))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PK\x03\x04\xff\xfe", r"bank.jsonl, line 1: not JSON"),
        (
            b'{"pddl_problem": "x"}\n',
            r"bank.jsonl, line 1: field 'pddl_problem': Trajectory has no such field; it has id, task",
        ),
        (b"[1, 2]\n", r"bank.jsonl, line 1: expected a Trajectory as an object, got \[1, 2\]"),
        (line(attempt(("a", "b", 1.0))).encode() + b'\n{"id": "x"}\n', r"line 2: field '(task|transitions)': missing, a Traj"),
        (2 * (line(attempt(("a", "b", 1.0))).encode() + b"\n"), r"bank.jsonl, line 2: trajectory 'a/0' was there before"),
        (b"\n", r"bank.jsonl holds no trajectory: expected one per line, as `learngraph memory export` writes them"),
    ],
)
def test_a_bank_that_is_none_is_refused_with_file_and_line(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "bank.jsonl"
    file.write_bytes(content)
    with pytest.raises(UserError, match=said):
        read_bank(file)


# bad questions and empty memories


def test_an_empty_memory_finds_nothing():
    memory = Trajectories()
    assert (len(memory), names(memory, "door"), names(memory, "door", kind="success")) == (0, [], [])
    memory.add(attempt())  # a trajectory without steps: stored, never found
    assert (len(memory), names(memory, "door")) == (0, [])
    assert memory.trajectory("a/0") == attempt()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"k": 0}, "asked for 0 precedents: k is at least 1"),
        ({"min_similarity": 1.1}, "a least similarity of 1.1: similarities are between 0 and 1"),
        ({"min_similarity": -0.1}, "a least similarity of -0.1: similarities are between 0 and 1"),
        ({"min_similarity": math.nan}, "a least similarity of nan"),
        ({"per_trajectory": -1}, "at most -1 precedents of one trajectory: at least 1, or 0 for any number"),
        ({"kind": "good"}, "precedents of the kind 'good': there are success, all"),
    ],
)
def test_bad_questions_are_refused_in_words(asked: dict[str, Any], said: str) -> None:
    memory = filled([attempt(("door", "go", 1.0))])
    with pytest.raises(BadMemory, match=said):
        memory.search("door", **{"k": 1, **asked})


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused_and_nothing_is_stored(reward):
    records: RecordStore[Trajectory] = RecordStore(InMemoryStore(), ("trajectories",), Trajectory)
    memory = Trajectories(records)
    with pytest.raises(BadMemory, match=r"'a/0': the reward of step 1 is .*; give a finite number, or None"):
        memory.add(attempt(("door", "go", 1.0), ("gate", "go", reward)))
    assert (len(memory), records.all()) == (0, [])


def test_an_unknown_trajectory_is_named():
    with pytest.raises(BadMemory, match="no trajectory 'b/7': it has 1 others"):
        filled([attempt(("door", "go", 1.0))]).trajectory("b/7")


# storage


def bytes_of(build: Callable[[], object]) -> int:
    tracemalloc.start()
    kept = build()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept is not None
    return size


def long_attempt(steps: int, number: int) -> Trajectory:
    rooms = [f"you are in room {i} of run {number}: door {i % 7}, lamp {i % 5}, chest {i % 3}" for i in range(steps)]
    return attempt(*[(room, "go on", 0.0) for room in rooms], number=number)


def test_storage_grows_linearly_with_the_length_of_an_episode():
    """Three episodes of 50, 100, 200 and 400 steps; written out step by step, 8 times the steps would take 64 times the room."""
    stored, kept = [], []
    for steps in (50, 100, 200, 400):
        episodes = [long_attempt(steps, number) for number in range(3)]
        store = InMemoryStore()
        records: RecordStore[Trajectory] = RecordStore(store, ("trajectories",), Trajectory)
        kept.append(bytes_of(lambda records=records, episodes=episodes: filled(episodes, store=records)))
        stored.append(sum(len(json.dumps(item.value)) for item in store.search(("trajectories",), limit=100)))
    for small, large in ((0, 1), (1, 2), (2, 3)):
        assert 1.9 < stored[large] / stored[small] < 2.1
        assert kept[large] / kept[small] < 2.3
    assert kept[3] / kept[0] < 9


def test_many_threads_may_ask_while_one_stores():
    memory = Trajectories()
    stored = [attempt(("door black", "go", 1.0), ("door red", "go", 0.0), number=i) for i in range(60)]

    def asking(_: int) -> bool:
        found = memory.search(structured_key(Task("t", GOALS[0]), (), "door black"), 5)
        times = [p.similarity for p in found]
        return times == sorted(times, reverse=True) and all(p.step == 0 for p in found)

    with ThreadPoolExecutor(4) as pool:
        storing = pool.submit(lambda: [memory.add(one) for one in stored])
        assert all(pool.map(asking, range(100)))
        storing.result()
    assert names(memory, "door black", 3) == ["a/59/0", "a/58/0", "a/57/0"]


def test_what_another_process_stored_is_seen_after_a_reload():
    records: RecordStore[Trajectory] = RecordStore(InMemoryStore(), ("trajectories",), Trajectory)
    memory = Trajectories(records)
    Trajectories(records).add(attempt(("door", "go", 1.0)))
    assert names(memory, "door") == []
    memory.reload()
    assert names(memory, "door") == ["a/0/0"]
    assert "a/0" in memory
