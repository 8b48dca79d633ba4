"""What the memory says equals what the definitions say of the raw trajectories, whatever was stored in which order."""

import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from drawer import Drawer
from hypothesis import given, settings
from hypothesis import strategies as st

from learngraph.memory.errors import UserError
from learngraph.memory.records import NO_ACTION, Experience, Neighbour, Task, Trajectory, Transition
from learngraph.memory.returns.experiences import BadExperience, Experiences, returns
from learngraph.memory.search.similarity import jaccard, words

STATES = ["hall lamp", "hall", "cellar rope", "cellar lamp rope", "attic", "Hall, lamp."]
rewards = st.none() | st.sampled_from([0.0, 1.0, -2.0, 0.1, 7.5])
transitions = st.lists(
    st.builds(Transition, st.sampled_from(STATES), st.sampled_from(["take", "go", "wait"]), rewards), max_size=6
)
discounts = st.sampled_from([0.0, 0.5, 0.9, 1.0])


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    run, episode = draw(st.sampled_from(["a", "b"])), draw(st.integers(0, 4))
    task = Task(draw(st.sampled_from(["coin-0", "coin-1"])), "find the coin")
    steps = tuple(draw(transitions))
    return Trajectory(f"{run}/{episode}", task, steps, run, episode, domain=draw(st.sampled_from(["twx", "toy"])))


def episode(*steps: tuple[str, str, float | None], number: int = 0, run: str = "a", task: str = "coin-0") -> Trajectory:
    return Trajectory(
        f"{run}/{number}", Task(task, "find"), tuple(Transition(*step) for step in steps), run, number, domain="twx"
    )


def ask(memory: Experiences, state: str, k: int = 10, threshold: float = 0.0, **scope: object) -> tuple[Neighbour, ...]:
    return memory.neighbours(state, k, threshold, **{"task": "coin-0", "domain": "twx", **scope})  # type: ignore[arg-type]


def filled(stored: Iterable[Trajectory], gamma: float = 0.5) -> Experiences:
    memory = Experiences(gamma=gamma)
    for trajectory in stored:
        memory.add(trajectory)
    return memory


def test_returns_worked_out_by_hand():
    assert returns([4, 0, 0, 0, 0], 0.5)[0] == 4
    assert returns([-2, 0, 0, 0, 5], 0.5)[0] == -1.6875  # -2 + 5/16
    assert returns([1, 2, 3], 1.0) == [6, 5, 3]
    assert returns([], 0.5) == []


@given(st.lists(st.sampled_from([0.0, 1.0, -2.0, 0.3]), max_size=8), discounts)
def test_returns_are_the_discounted_sums_of_eq_3(paid, gamma):
    expected = [sum(gamma ** (u - t) * paid[u] for u in range(t, len(paid))) for t in range(len(paid))]
    assert returns(paid, gamma) == pytest.approx(expected)


def test_a_missing_reward_makes_what_includes_it_missing():
    assert returns([1.0, None, 1.0], 0.5) == [None, None, 1.0]
    assert returns([1.0, None, 1.0], 0.0) == [1.0, None, 1.0]


@pytest.mark.parametrize("gamma", [-0.1, 1.1, math.nan])
def test_a_bad_discount_is_refused_at_once(gamma):
    with pytest.raises(BadExperience, match="between 0 and 1"):
        Experiences(gamma=gamma)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused_and_nothing_is_stored(reward):
    records = Drawer()
    memory = Experiences(records)
    memory.add(episode(("hall", "go", 1.0)))
    with pytest.raises(BadExperience, match=r"trajectory 'a/1': the reward of step 0 is .*; give a finite") as error:
        memory.add(episode(("hall", "go", reward), number=1))
    assert isinstance(error.value, UserError)
    assert (len(memory), records.writes) == (1, 1)


def expected(
    stored: list[Trajectory], state: str, k: int, threshold: float, gamma: float, task: str | None, domain: str
) -> list[Neighbour]:
    """The answer by its definition: every remembered state compared, every return summed up anew."""
    visits: dict[frozenset[str], list[Experience]] = {}
    for one in stored:
        if one.domain == domain and task in (None, one.task.id):
            for step, value in enumerate(returns([t.reward for t in one.transitions], gamma)):
                if value is not None:
                    at = one.transitions[step]
                    experience = Experience(f"{one.id}/{step}", at.state, at.action, value, task=one.task.id)
                    visits.setdefault(frozenset(words(at.state)), []).append(experience)
    query = set(words(state))
    places = {key: place for place, key in enumerate(visits)}
    near = sorted(visits, key=lambda key: (-jaccard(query, key), -places[key]))
    near = [key for key in near if jaccard(query, key) > 0 and jaccard(query, key) >= threshold][:k]
    answer = []
    for key in near:
        for action in dict.fromkeys(experience.action for experience in visits[key]):
            mine = [experience for experience in visits[key] if experience.action == action]
            values = np.array([experience.value for experience in mine])
            m2 = float(((values - values.mean()) ** 2).sum())
            others = sum(experience.task != "coin-0" for experience in mine)
            numbers = len(mine), float(values.mean()), m2
            answer.append(Neighbour(mine[-1].id, jaccard(query, key), action, *numbers, elsewhere=others))
    return answer


@settings(max_examples=60)
@given(
    st.lists(trajectories(), max_size=8),
    st.sampled_from(STATES),
    st.integers(0, 4),
    st.sampled_from([0.0, 0.5, 1.0]),
    discounts,
    st.sampled_from([{}, {"cross_task": True}, {"cross_task": True, "only_other_tasks": True}]),
    st.none() | st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 5)),
    st.none() | st.integers(0, 4),
    st.booleans(),
)
def test_neighbours_are_what_the_raw_trajectories_say(stored, state, k, threshold, gamma, tasks, before, window, asked_early):
    """Scope, exclusion and window included: what is hidden might as well never have been stored."""
    memory = Experiences(gamma=gamma, tokens=words)
    for trajectory in stored:
        memory.add(trajectory)
        if asked_early:  # then the index grows with every episode, instead of being made at the first question
            ask(memory, state, **tasks)
    last = {trajectory.id: trajectory for trajectory in stored}  # the same id again replaces, in the first one's place
    task = None if tasks else "coin-0"
    seen = [
        one
        for one in last.values()
        if one.domain == "twx"
        and task in (None, one.task.id)
        and not ("only_other_tasks" in tasks and one.task.id == "coin-0")
        and (before is None or one.run != before[0] or one.episode < before[1])
        and any(value is not None for value in returns([t.reward for t in one.transitions], gamma))
    ]
    if window is not None:
        seen = seen[len(seen) - min(window, len(seen)) :]
    values = [value for one in seen for value in returns([t.reward for t in one.transitions], gamma) if value is not None]
    average, variance = memory.moments(task="coin-0", domain="twx", before=before, window=window, **tasks)
    assert average == pytest.approx(float(np.mean(values)) if values else 0.0)
    assert variance == pytest.approx(float(np.var(values, ddof=1)) if len(values) > 1 else 0.0, abs=1e-9)
    found = ask(memory, state, k, threshold, before=before, window=window, **tasks)
    wanted = expected(seen, state, k, threshold, gamma, task, "twx")
    assert [(one.id, one.similarity, one.action, one.count, one.elsewhere) for one in found] == [
        (one.id, one.similarity, one.action, one.count, one.elsewhere) for one in wanted
    ]
    assert [one.mean for one in found] == pytest.approx([one.mean for one in wanted])
    assert [one.m2 for one in found] == pytest.approx([one.m2 for one in wanted], abs=1e-9)


@given(st.lists(trajectories(), max_size=6), discounts)
def test_storing_twice_is_storing_once_and_reopening_changes_nothing(stored, gamma):
    records = Drawer()
    once = Experiences(records, gamma=gamma)
    unique = list({trajectory.id: trajectory for trajectory in stored}.values())
    for trajectory in unique:
        once.add(trajectory)
    answers = [ask(once, state, cross_task=True) for state in STATES]
    for trajectory in unique:
        once.add(trajectory)
    assert records.writes == len(unique)  # one write per episode, none for what is already there
    assert [ask(once, state, cross_task=True) for state in STATES] == answers
    reopened = Experiences(records, gamma=gamma)
    assert [ask(reopened, state, cross_task=True) for state in STATES] == answers
    assert list(reopened) == list(once)


def test_another_discount_over_the_same_store():
    records = Drawer()
    Experiences(records, gamma=0.5).add(episode(("hall", "go", 0.0), ("attic", "take", 1.0)))
    assert ask(Experiences(records, gamma=0.1), "hall")[0].mean == pytest.approx(0.1)


@given(st.lists(trajectories(), min_size=1, max_size=6), st.data())
def test_rewards_that_change_in_an_open_memory_count_as_in_one_made_anew(stored, data):
    """What was counted already is counted again, to the last bit; also where a reward was missing, or is now."""
    memory = filled(stored)
    last = {one.id: one for one in stored}
    for task in {one.task.id for one in stored}:
        for cross in (False, True):
            memory.neighbours("hall", 3, task=task, domain=stored[0].domain, cross_task=cross)
    for _ in range(3):
        one = last[data.draw(st.sampled_from(sorted(last)))]
        paid = st.sampled_from([0.0, 1.0, -2.0, 0.3, None])
        one = replace(one, transitions=tuple(replace(step, reward=data.draw(paid)) for step in one.transitions))
        last[one.id] = one
        memory.add(one)
        anew = filled(last.values())
        scope = {"task": one.task.id, "domain": one.domain, "cross_task": data.draw(st.booleans())}
        state = data.draw(st.sampled_from([step.state for step in one.transitions] or ["hall"]))
        assert memory.neighbours(state, 3, **scope) == anew.neighbours(state, 3, **scope)
        assert memory.moments(**scope) == anew.moments(**scope)


def test_a_failed_write_leaves_the_memory_as_it_was():
    class Broken(Drawer):
        def put(self, records: Iterable[Trajectory], /) -> None:
            raise OSError("disk full")

    memory = Experiences(Broken())
    with pytest.raises(OSError, match="disk full"):
        memory.add(episode(("hall", "go", 1.0)))
    assert len(memory) == 0
    assert repr(filled([episode(("hall", "go", 1.0), ("yard", "go", 0.0))])) == "Experiences(2 steps of 1 episode, gamma=0.5)"


def test_raw_neighbours_are_single_experiences_in_the_order_of_storing():
    memory = filled(
        [
            episode(("hall lamp", "go", 1.0), ("hall", "go", 0.0), number=0),
            episode(("hall lamp", "go", 3.0), ("attic", "go", 0.0), number=1),
        ],
        gamma=0.0,
    )
    raw = memory.raw_neighbours("Hall. Lamp!", task="coin-0", domain="twx")
    assert [(experience.id, experience.value) for _, experience in raw] == [("a/0/0", 1.0), ("a/0/1", 0.0), ("a/1/0", 3.0)]
    assert raw[0][0] == raw[2][0] == 1.0 > raw[1][0] > 0
    assert len(memory.raw_neighbours("hall lamp", 1.0, task="coin-0", domain="twx")) == 2


def test_of_a_state_the_newest_returns_may_count_alone():
    earned = [1.0, 1.0, 0.0, 3.0]
    memory = filled(
        [episode(("hall", "go", value), ("hall", "wait", 2.0), number=n) for n, value in enumerate(earned)], gamma=0.0
    )
    for before in (None, ("a", 3)):
        asked = {"task": "coin-0", "domain": "twx", "before": before}
        go, wait = memory.neighbours("hall", 3, newest=4, **asked)
        assert (go.count, go.mean, go.id) == ((2, 0.5, "a/2/0") if before else (2, 1.5, "a/3/0"))
        assert (wait.count, wait.mean) == (2, 2.0)
        assert memory.neighbours("hall", 3, newest=9, **asked) == memory.neighbours("hall", 3, **asked)


def test_the_k_nearest_raw_neighbours_are_those_of_all_that_are_most_similar_and_newest():
    places = ["hall lamp", "hall", "attic lamp", "Hall! Lamp.", "cellar"]
    memory = filled([episode(*((places[(n * 3 + i) % 5], "go", float(n)) for i in range(3)), number=n) for n in range(9)])
    for before in (None, ("a", 6)):
        asked = {"task": "coin-0", "domain": "twx", "before": before}
        everything = memory.raw_neighbours("hall lamp", **asked)
        assert len(everything) > 9
        newest_first = everything[::-1]
        nearest = sorted(newest_first, key=lambda one: -one[0])
        for k in range(len(everything) + 2):
            found = memory.raw_neighbours("hall lamp", k=k, **asked)
            assert found == [one for one in everything if one in nearest[:k]]


def test_prune_forgets_in_the_store_too():
    records = Drawer()
    memory = Experiences(records)
    for n in range(5):
        memory.add(episode(("hall", "go", float(n)), number=n))
    assert ask(memory, "hall")[0].count == 5
    assert memory.prune(keep_last=3) == 2
    assert ask(memory, "hall")[0].mean == 3.0
    assert sorted(records.kept) == ["a/2", "a/3", "a/4"]
    assert [one.id for one in Experiences(records)] == [one.id for one in memory] == ["a/2/0", "a/3/0", "a/4/0"]
    assert memory.prune(keep_last=9) == 0
    with pytest.raises(ValueError, match="keep_last must be >= 0"):
        memory.prune(keep_last=-1)


def test_an_episode_that_cannot_be_compared_counts_wholly_or_not_at_all():
    def tokens(text: str) -> list[str]:
        if text == "unreadable":
            raise LookupError(text)
        return words(text)

    memory = Experiences(tokens=tokens)
    memory.add(episode(("hall", "go", 1.0)))
    ask(memory, "hall")
    bad = episode(("hall", "go", 5.0), ("unreadable", "go", 0.0), number=1)
    with pytest.raises(LookupError):
        memory.add(bad)
    memory.add(episode(("hall", "go", 5.0), number=1))
    assert [(one.count, one.mean) for one in ask(memory, "hall")] == [(2, 3.0)]


def test_reload_sees_what_another_process_stored():
    records = Drawer()
    mine, other = Experiences(records), Experiences(records)
    other.add(episode(("hall", "go", 1.0)))
    assert ask(mine, "hall") == ()
    mine.reload()
    assert len(ask(mine, "hall")) == 1


def test_many_threads_store_and_ask_at_once():
    memory = Experiences(tokens=words)

    def play(run: int) -> None:
        for number in range(40):
            memory.add(episode((f"hall lamp {number}", "go", 1.0), (f"attic {run}", "go", 0.0), number=number, run=str(run)))
            assert ask(memory, f"hall lamp {number}", k=3)[0].similarity == 1.0

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(play, range(4)))
    assert len(memory) == 4 * 40 * 2
    assert [one.count for one in ask(memory, "hall lamp", k=1000) if one.similarity > 0.5] == [4] * 40


def test_asking_where_much_is_hidden_still_finds_k():
    """The search has to go past everything that is hidden, however much more similar that is."""
    hidden = [episode((f"hall lamp rope {n}", "go", 1.0), number=n, run="mine") for n in range(50)]
    shown = [episode((f"hall {n}", "take", 1.0), number=n, run="other") for n in range(5)]
    memory = filled([*hidden, *shown])
    found = ask(memory, "hall lamp rope", k=5, before=("mine", 0))
    assert [one.id for one in found] == [f"other/{n}/0" for n in (4, 3, 2, 1, 0)]


def test_a_lost_step_leaves_no_experience() -> None:
    """No action reached the world: nothing can be learned of the step, and what followed still counts for those before it."""
    memory = Experiences(gamma=0.5)
    memory.add(episode(("hall", "east", 0.0), ("attic", NO_ACTION, 0.0), ("attic", "take", 1.0)))
    assert [(one.action, one.value) for one in memory] == [("east", 0.25), ("take", 1.0)]


def test_visits_that_lost_the_episode_are_counted() -> None:
    memory = Experiences(gamma=0.5)
    for number, lost in enumerate((True, False, True)):
        memory.add(replace(episode(("hall", "east", 0.0), ("attic", "jump", 0.0), number=number), lost=lost))
    found = {n.action: (n.count, n.losses) for s in ("hall", "attic") for n in ask(memory, s, k=1)}
    assert found == {"east": (3, 0), "jump": (3, 2)}
