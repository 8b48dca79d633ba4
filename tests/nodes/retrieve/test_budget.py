"""What a prompt shows of many attempts: never more than the budget, the best and the newest always, more for more."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learngraph.memory.records import Shown, Task, Trajectory, Transition
from learngraph.nodes.retrieve import budget as budget_module
from learngraph.nodes.retrieve.attempts import Layout
from learngraph.nodes.retrieve.budget import KnownAttempts, all_attempts, attempt_identity, best_attempt, select_within_budget

TASK = Task("t", "do it")


def attempt(episode: int, *steps: tuple[str, float | None]) -> Trajectory:
    made = tuple(Transition(f"place {n}", action, reward) for n, (action, reward) in enumerate(steps))
    return Trajectory(f"r/{episode}", TASK, made, "r", episode)


def size(shown: Shown, trajectory: Trajectory) -> int:
    return len(Layout().attempt(trajectory, shown))


step = st.tuples(st.sampled_from(["left", "right", "say a rather long thing", "up"]), st.sampled_from([0.0, 1.0, -1.0, None]))
histories = st.lists(st.lists(step, min_size=1, max_size=6), min_size=1, max_size=25).map(
    lambda all_steps: [attempt(n, *steps) for n, steps in enumerate(all_steps)]
)


@given(histories, st.integers(0, 1500), st.integers(1, 8))
def test_never_more_than_the_budget_and_in_the_order_of_time(attempts: list[Trajectory], budget: int, block: int) -> None:
    shown = select_within_budget(attempts, size, budget, block)
    by_id = {t.id: t for t in attempts}
    assert sum(size(s, by_id[s.id]) for s in shown) <= budget
    episodes = [by_id[s.id].episode for s in shown]
    assert episodes == sorted(set(episodes))


@given(histories, st.integers(0, 1500), st.integers(1, 8))
def test_the_best_and_the_newest_are_whole(attempts: list[Trajectory], budget: int, block: int) -> None:
    """Whenever both fit. The newest may stand there as another attempt with the same actions."""
    winner, newest = best_attempt(attempts), attempts[-1]
    needed = sum(size(Shown(t.id, True, 99), t) for t in {winner.id: winner, newest.id: newest}.values())
    whole = {
        attempt_identity(t)
        for t in attempts
        for s in select_within_budget(attempts, size, budget, block)
        if s.id == t.id and s.whole
    }
    if needed <= budget:
        assert {attempt_identity(winner), attempt_identity(newest)} <= whole


@given(histories, st.integers(0, 1200), st.integers(0, 400), st.integers(1, 8))
def test_more_budget_never_shows_less(attempts: list[Trajectory], budget: int, more: int, block: int) -> None:
    small, large = (
        select_within_budget(attempts, size, budget, block),
        select_within_budget(attempts, size, budget + more, block),
    )
    told = {attempt_identity(t) for t in attempts for s in large if s.id == t.id}
    whole = {attempt_identity(t) for t in attempts for s in large if s.id == t.id and s.whole}
    for s in small:
        t = attempts[int(s.id.split("/")[1])]
        assert attempt_identity(t) in (whole if s.whole else told)


@given(histories, st.integers(0, 1500), st.integers(1, 8))
def test_what_earlier_rounds_computed_changes_nothing(attempts: list[Trajectory], budget: int, block: int) -> None:
    known = KnownAttempts()
    for n in range(1, len(attempts) + 1):
        again = select_within_budget(attempts[:n], size, budget, block, known)
        assert again == select_within_budget(attempts[:n], size, budget, block)


def test_runs_in_other_threads_may_share_what_is_known() -> None:
    known = KnownAttempts()
    runs = [[attempt(n, (f"go {n % (run + 3)}", float(n % 7 == run)), ("left", 0.0)) for n in range(60)] for run in range(4)]

    def play(attempts: list[Trajectory]) -> list[list[Shown]]:
        return [select_within_budget(attempts[:n], size, 400, 5, known) for n in range(1, 60)]

    alone = [[select_within_budget(attempts[:n], size, 400) for n in range(1, 60)] for attempts in runs]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(play, runs)) == alone


def test_older_attempts_are_compared_once_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without any return, where the best is just the newest."""
    for reward in (None, 0.0):
        attempts = [attempt(n, (f"go {n}", reward), ("left", reward)) for n in range(60)]
        compared: list[int] = []
        rank = budget_module._most_informative

        def count(found: Any, *rest: Any, compared: list[int] = compared, rank: Any = rank) -> Any:
            compared.append(len(found))
            yield from rank(found, *rest)

        monkeypatch.setattr(budget_module, "_most_informative", count)
        known = KnownAttempts()
        for n in range(1, 60):
            select_within_budget(attempts[:n], size, 12 * size(Shown("r/0"), attempts[0]), 5, known)
        monkeypatch.undo()
        assert compared == list(range(10, 56, 5))


@pytest.mark.slow
@given(histories, st.integers(1, 8))
def test_with_room_for_all_nothing_is_shortened(attempts: list[Trajectory], block: int) -> None:
    assert select_within_budget(attempts, size, 10**6, block) == all_attempts(attempts)


def test_repeats_are_merged_with_a_count_and_the_telling_ones_come_first() -> None:
    """Five times the same, once something new, once the best: room for three whole attempts among the older ones."""
    same = [attempt(n, ("left", 0.0), ("left", 0.0)) for n in range(5)]
    new, top = attempt(5, ("up", 0.0), ("right", 0.0)), attempt(6, ("right", 1.0), ("up", 1.0))
    filler = [attempt(n, ("left", 0.0), ("up", 0.0)) for n in (7, 8, 9, 10)]
    attempts = [*same, new, top, *filler]
    one = size(Shown("r/0"), same[0])
    shown = {s.id: s for s in select_within_budget(attempts, size, 7 * one, block=5)}
    assert shown["r/6"].whole  # the best
    assert shown["r/0"].whole
    assert shown["r/0"].count == 5
    assert shown["r/5"].whole
    assert not {"r/1", "r/2", "r/3", "r/4"} & shown.keys()
    assert attempt_identity(attempts[-1]) in {
        attempt_identity(attempts[int(i.split("/")[1])]) for i, s in shown.items() if s.whole
    }


def test_equal_actions_with_other_rewards_are_other_evidence() -> None:
    """Judged 10 once and 0 four times: shown as five attempts, or as what they are, never as five times 10."""
    attempts = [attempt(n, ("left", 10.0 if n == 0 else 0.0)) for n in range(5)] + [attempt(5, ("up", 0.0))] * 6
    one = size(Shown("r/0"), attempts[0])
    shown = {s.id: s.count for s in select_within_budget(attempts, size, 7 * one, block=5)}
    assert shown["r/0"] == 1
    assert shown["r/1"] == 4


def test_between_two_rearrangements_the_beginning_stays() -> None:
    """Of 60 rounds, the prompt's beginning (all but the last two attempts) changes at multiples of the block only."""
    attempts = [attempt(n, (f"go {n}", 0.0), ("left", float(n == 3))) for n in range(60)]
    budget = 12 * size(Shown("r/0"), attempts[0])
    before: list[Shown] = []
    changed = []
    for n in range(1, 60):
        shown = select_within_budget(attempts[:n], size, budget, block=5)
        keep = len(before) - 1  # the newest of the round before may become one of the many
        if shown[: max(keep, 0)] != before[: max(keep, 0)]:
            changed.append(n)
        before = shown
    assert changed[0] == 12  # the first time that not all fit
    assert changed[1:] == list(range(16, 60, 5))
