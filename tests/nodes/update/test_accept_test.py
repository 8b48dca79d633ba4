"""The accept test, worked out by hand."""

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from learngraph.graphs.training_free_grpo import TrainingFreeGRPO
from learngraph.memory.errors import UserError
from learngraph.memory.lessons.library import Library
from learngraph.memory.lessons.versions import LibraryVersions
from learngraph.memory.records import Lesson, Probe, Task
from learngraph.memory.storage.cache import Cache
from learngraph.nodes.extract.critic import Critic
from learngraph.nodes.lesson_prompts import SameLessonsShown
from learngraph.nodes.update import accept_test as trial
from learngraph.nodes.update.accept_test import Accept, CachedProbes, decide_acceptance, differences, fan_out_probes

NEW, OLD = "r/1", "r/0"


def probes(new: dict[str, list[float]], old: dict[str, list[float]]) -> list[Probe]:
    """In no particular order."""
    made = [
        Probe(name, task, n, reward)
        for name, by in ((NEW, new), (OLD, old))
        for task, each in by.items()
        for n, reward in enumerate(each)
    ]
    return made[::-1]


PROBES = probes({"a": [1, 1], "b": [0, 1], "c": [0, 0]}, {"a": [0, 1], "b": [0, 1], "c": [1, 1]})


def test_differences_are_paired_by_problem_and_number() -> None:
    assert differences(PROBES, NEW, OLD) == {"a": 0.5, "b": 0.0, "c": -1.0}
    found = trial.accept_test_result(PROBES, NEW, OLD)
    assert found is not None
    assert (found.candidate, found.current) == (0.5, pytest.approx(4 / 6))
    assert found.gain == pytest.approx(-1 / 6)
    assert (found.wins, found.losses, found.problems) == (1, 1, 3)
    half = 4.3027 * (7 / 12) ** 0.5 / 3**0.5  # t(0.975, 2) sd / sqrt(n); sd^2 = ((2/3)^2 + (1/6)^2 + (5/6)^2) / 2
    assert (found.low, found.high) == (pytest.approx(-1 / 6 - half, abs=1e-3), pytest.approx(-1 / 6 + half, abs=1e-3))
    assert trial.accept_test_result([], NEW, OLD) is None


def test_a_probe_without_its_counterpart_is_an_error() -> None:
    with pytest.raises(UserError, match="rollout 1 of a was made with one of the two libraries only"):
        differences([p for p in PROBES if (p.library, p.task, p.number) != (OLD, "a", 1)], NEW, OLD)


@pytest.mark.parametrize(
    ("new", "rule", "takes"),
    [
        ([1, 1, 1, 1], "not-worse", True),
        ([1, 1, 1, 1], "better", True),
        ([0, 0, 0, 1], "better", False),  # better, but it may be chance
        ([0, 0, 0, 1], "not-worse", False),  # nor is it shown that it is not worse by 0.1
        ([1, 1, 1, 0], "not-worse", True),
        ([0, 0, 0, 0], "not-worse", True),
        ([0, 0, 0, 0], "better", False),
        ([-1, 0, 0, 0], "not-worse", False),
        ([-1, 0, 0, 0], "always", True),
    ],
)
def test_rules(new: list[float], rule: Any, takes: bool) -> None:
    tasks = "abcd"
    # Rewards from 0 to 1; only their differences count.
    made = probes({t: [0.5 + d / 2] for t, d in zip(tasks, new, strict=True)}, {t: [0.5] for t in tasks})
    assert decide_acceptance(trial.accept_test_result(made, NEW, OLD), rule)[0] is takes


def test_the_bound_is_students_by_hand() -> None:
    """d = (1, 1, 0, 0): mean 0.5, sd sqrt(1/3); t(0.95, 3) = 2.3534, so the bound is 0.5 - 2.3534 * 0.57735 / 2."""
    bound = trial.lower_bound([1.0, 1.0, 0.0, 0.0])
    assert bound == pytest.approx(0.5 - 2.353363 * 0.577350 / 2, abs=1e-5)
    assert trial.lower_bound([0.25]) == 0.25  # one problem says nothing of others


def test_a_candidate_must_not_get_worse_on_the_second_split() -> None:
    new = {"a": [1.0], "b": [1.0], "c": [1.0], "d": [0.0]}
    made = probes(new, {task: [0.5] for task in new})
    whole = trial.accept_test_result(made, NEW, OLD)
    assert whole is not None
    assert (whole.gain, whole.second) == (0.25, None)
    split = trial.accept_test_result(made, NEW, OLD, second={"d"})
    assert split is not None
    assert (split.gain, split.second, split.problems) == (0.5, -0.5, 3)
    takes, why = decide_acceptance(split, "not-worse")
    assert not takes
    assert "worse on the second split (-0.500)" in why
    kept = Accept(SameLessonsShown(versions()), second=frozenset("d"))(state(probes=made))
    assert kept["library"] == OLD
    assert decide_acceptance(split, "not-worse", margin=0.6)[0]
    assert trial.split_held_out([Task(c, "?") for c in "abcdefgh"], 0.25) == frozenset("gh")
    assert trial.split_held_out([Task("a", "?")], 0.25) == frozenset()


def test_the_current_library_is_played_afresh_and_pools_what_it_earned_since_it_was_accepted() -> None:
    tasks = [Task("a", "?"), Task("b", "?")]
    numbers = [{work["number"] for work in fan_out_probes(tasks, 3)(state(step=step))} for step in range(2)]
    assert numbers == [{0, 1, 2}, {3, 4, 5}]
    work = fan_out_probes(tasks, 2)(state())
    by_library = {name: [(w["run"], w["task"].id, w["number"]) for w in work if w["library"] == name] for name in (OLD, NEW)}
    assert by_library[OLD] == by_library[NEW] == [("r", "a", 0), ("r", "a", 1), ("r", "b", 0), ("r", "b", 1)]
    lost = probes({"a": [0], "b": [0]}, {"a": [1], "b": [0]})
    first = Accept(SameLessonsShown(versions()))(state(probes=lost))
    assert sorted((p.task, p.reward) for p in first["incumbent_probes"]) == [("a", 1), ("b", 0)]
    # Now the current library earns 0 and 0: with its rollouts of before it has 0.5 on a, and 0 on b.
    again = state(step=1, probes=probes({"a": [1], "b": [1]}, {"a": [0], "b": [0]}), incumbent_probes=first["incumbent_probes"])
    second = Accept(SameLessonsShown(versions()), "always")(again)
    assert second["trial"]["gain"] == pytest.approx((0.5 + 1) / 2)
    assert second["trial"]["current"] == pytest.approx(0.25)
    assert second["trial"]["pooled"] == 2
    assert second["incumbent_probes"] == []  # the rollouts by which it won do not count for it
    failed = [replace(p, error="out of time") if (p.library, p.task) == (OLD, "a") else p for p in lost]
    assert [p.task for p in Accept(SameLessonsShown(versions()))(state(probes=failed))["incumbent_probes"]] == ["b"]


@pytest.mark.slow
def test_default_settings_accept_a_library_that_is_ten_points_worse_less_than_one_time_in_twenty() -> None:
    """Played by the accept test itself, on problems of different difficulty: 300 candidates that are worse by 0.1 in the mean."""
    defaults = TrainingFreeGRPO()
    tasks = [Task(f"t{n}", "?") for n in range(defaults.held_out)]
    accept = Accept(
        SameLessonsShown(versions()),
        defaults.accept,
        margin=defaults.trial.margin,
        second=trial.split_held_out(tasks, defaults.trial.regression_share),
    )
    draw = random.Random(0)

    def accepted(gain: float) -> int:
        ease = {task.id: draw.uniform(0.1, 0.9) for task in tasks}
        made = [
            Probe(name, task.id, n, float(draw.random() < ease[task.id] + (gain if name == NEW else 0.0)))
            for task in tasks
            for n in range(defaults.trial.rollouts)
            for name in (NEW, OLD)
        ]
        return int(accept(state(probes=made))["accepted"])

    worse, better = (sum(accepted(gain) for _ in range(300)) / 300 for gain in (-0.1, 0.1))
    assert worse < 0.05
    assert better > 0.7


def test_a_candidate_that_tells_the_answer_of_a_held_out_problem_is_not_accepted() -> None:
    kept = LibraryVersions()
    kept.put(OLD, Library((Lesson("L0", "look first"),)))
    kept.put(NEW, Library((Lesson("L0", "look first"), Lesson("L1", "when asked, the answer is 137"))), parent=OLD)
    known = Critic(kept, bare_answers=lambda task: ("137",))
    leaks = trial.NewLeaks(kept, known.leak_reason, {"h": Task("h", "?")})
    found = Accept(SameLessonsShown(kept), leak_reason=leaks)(state(probes=BETTER))
    assert (found["library"], found["accepted"]) == (OLD, False)
    assert "tells the answer of h" in found["why"]
    assert not leaks(OLD, NEW)  # what the current library says is nothing new


def versions() -> LibraryVersions:
    kept = LibraryVersions()
    kept.put(OLD, Library())
    kept.put(NEW, Library((Lesson("L0", "look first"),)), parent=OLD)
    kept.put("r/2", Library((Lesson("L0", "look first", helpful=1),)), parent=NEW)
    return kept


def state(**more: Any) -> Any:
    return {
        "run": "r",
        "step": 0,
        "library": OLD,
        "candidate": NEW,
        "best": OLD,
        "best_score": None,
        "stalled": 0,
        "stops": [],
        "probes": [],
        "incumbent_probes": [],
        **more,
    }


BETTER = probes({"a": [1]}, {"a": [0]})
SAME = probes({"a": [1]}, {"a": [1]})
WORSE = probes({"a": [0]}, {"a": [1]})


@pytest.mark.parametrize(
    ("made", "rule", "library", "best", "score", "stalled"),
    [
        (BETTER, "not-worse", NEW, NEW, 1.0, 0),
        (SAME, "not-worse", NEW, NEW, 1.0, 1),  # accepted, but no gain
        (WORSE, "not-worse", OLD, OLD, 1.0, 1),
        (WORSE, "always", NEW, OLD, 1.0, 1),  # what did best is kept
        (BETTER, "better", NEW, NEW, 1.0, 0),
        (SAME, "better", OLD, OLD, 1.0, 1),
    ],
)
def test_accept(made: list[Probe], rule: Any, library: str, best: str, score: float, stalled: int) -> None:
    found = Accept(SameLessonsShown(versions()), rule)(state(probes=made))
    assert (found["library"], found["best"], found["best_score"], found["stalled"]) == (library, best, score, stalled)
    assert found["accepted"] is (library == NEW)


def test_the_best_of_an_earlier_step_stays_the_best() -> None:
    """The library got worse under `always`; a candidate that is better than it, but not than the best, is not the product."""
    made = probes({"a": [1], "b": [0]}, {"a": [0], "b": [0]})
    found = Accept(SameLessonsShown(versions()), "always")(state(probes=made, best="r/9", best_score=0.75))
    assert (found["library"], found["best"], found["best_score"]) == (NEW, "r/9", 0.75)
    again = Accept(SameLessonsShown(versions()), "always")(state(probes=made, best="r/9", best_score=0.5))
    assert (again["best"], again["best_score"]) == (NEW, 0.5)


def test_a_candidate_that_shows_the_same_needs_no_test_and_is_no_gain() -> None:
    found = Accept(SameLessonsShown(versions()))(state(library=NEW, candidate="r/2", best=NEW, best_score=0.5))
    assert (found["library"], found["accepted"], found["why"]) == ("r/2", True, "shows the same lessons")
    assert (found["best"], found["best_score"], found["stalled"]) == ("r/2", 0.5, 1)
    other = Accept(SameLessonsShown(versions()))(state(library=NEW, candidate="r/2", best=OLD, best_score=0.5))
    assert other["best"] == OLD


def test_a_test_that_the_budget_did_not_last_for_decides_nothing() -> None:
    found = Accept(SameLessonsShown(versions()))(state(probes=BETTER[:1], stops=["the budget is spent"]))
    assert found == {"accepted": False, "why": "not tested: the budget is spent"}


def test_who_decides_again_decides_on_the_same() -> None:
    probing: Any = SimpleNamespace(key=lambda work: f"{work['task'].id} under {work['library']}")
    cache, tasks = Cache(), [Task("a", "?")]
    accept = Accept(SameLessonsShown(versions()), cached_probes=CachedProbes(cache, probing, fan_out_probes(tasks, 1)))
    failed = [Probe(NEW, "a", 0, 0.0, "one hiccup"), Probe(OLD, "a", 0, 1.0)]
    first, again = (accept(state(probes=made)) for made in (failed, BETTER))  # now it would have worked
    assert first == again
    assert first["accepted"] is False
    assert first["probes"].value == failed
    assert accept(state(probes=BETTER, step=1))["accepted"] is True  # the next test is another


def test_a_test_in_which_everything_failed_is_an_error() -> None:
    lost = [Probe(name, task, 0, 0.0, "the checker is gone") for name in (NEW, OLD) for task in "ab"]
    with pytest.raises(UserError, match="accept test: all 4 rollouts failed: the checker is gone"):
        Accept(SameLessonsShown(versions()))(state(probes=lost))
    found = Accept(SameLessonsShown(versions()))(state(probes=[*lost, Probe(NEW, "c", 0, 1.0), Probe(OLD, "c", 0, 0.0)]))
    assert found["trial"]["gain"] == pytest.approx(1 / 3)  # what failed counts as 0 on both sides
