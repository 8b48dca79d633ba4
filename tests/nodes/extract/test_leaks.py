"""Lessons that tell an answer: what counts as telling it, and that no stage lets one through."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from learngraph.graphs.wiring.learning_run import true_answers
from learngraph.memory.lessons.library import LibraryLimits
from learngraph.memory.lessons.versions import LibraryVersions
from learngraph.memory.records import Comparison, Edit, Rollout, Task
from learngraph.nodes.extract.critic import Critic, contrast, invent, propose
from learngraph.nodes.extract.leaks import bare_answers, own_name, tells_answer
from learngraph.nodes.extract.rule_critic import as_library
from learngraph.nodes.update.consolidate import consolidate
from learngraph.tools.environments.catalogue import open_environment
from learngraph.tools.environments.passages import Passages

from .test_critic import Scripted, group

TASK, OTHER = Task("sum-1", "Add 100 and 37."), Task("sum-2", "Add 100 and 38.")
ANSWERS = {"sum-1": "137", "sum-2": "138"}
PLANTED = "When numbers are added, the answer is 137."
SOUND = "When numbers are added, add the hundreds first."


@pytest.mark.parametrize(
    ("stated", "bare"),
    [
        (r"So it is \boxed{137}", "137"),
        (r"\boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("<answer>137</answer>", "137"),
        ("<answer>two lines\nof it</answer>", "two lines\nof it"),
        ("finish[Marie Curie]", "Marie Curie"),
        ("Answer: (1 + 2) * 8 = 24", "(1 + 2) * 8 = 24"),
        ("137", "137"),
    ],
)
def test_the_bare_answer(stated: str, bare: str) -> None:
    assert bare_answers(["first step", stated]) == (bare,)


def test_a_way_through_a_world_is_no_answer() -> None:
    assert bare_answers(["open door", "take coin"], stated=False) == ()
    assert bare_answers([]) == ()


@pytest.mark.parametrize(
    ("lesson", "answer"),
    [
        (PLANTED, "137"),
        ("When stuck, try 137", "137"),
        (r"Remember \boxed{137}", "137"),
        ("When numbers are added, give 137.0", "137"),
        ("When asked, say 1,024", "1024"),
        ("When halves meet, say $\\frac{1}{2}$ of it", "1/2"),
        ("When a circle lies in a square, take 16 - 4 pi", r"16 - 4\pi"),
        ("When a box has a diagonal, say sqrt(61)", r"\sqrt{61}"),
        ("When counting, the answer is 3.", "3"),
        ("When counting, the answer to this problem is always 3", "3"),
        ("When counting, answer: **3**", "3"),
        ("When counting, result = 3, for it is odd", "3"),
        ("When asked whether it is, the answer is yes", "yes"),
        ("When physicists are meant, think of Marie Curie first", "Marie Curie"),
    ],
)
def test_told(lesson: str, answer: str) -> None:
    assert tells_answer(lesson, answer)


@pytest.mark.parametrize(
    ("lesson", "answer"),
    [
        (SOUND, "137"),
        ("When n is large, work out 3 small cases by hand.", "3"),
        ("When the answer is 3 digits long, check its first digit.", "3"),
        ("When 1371 or 0.137 or 137.5 or 137/2 comes up, add.", "137"),
        ("When a check says yes, go on.", "yes"),
        ("When n = 3, enumerate.", "3"),
        ("When nothing is known, look.", ""),
    ],
)
def test_not_told(lesson: str, answer: str) -> None:
    assert not tells_answer(lesson, answer)


def test_of_another_problem_a_number_may_be_chance_but_not_where_it_is_called_the_answer() -> None:
    assert tells_answer("When angles of a triangle are given, use that they sum to 180.", "180")
    assert not tells_answer("When angles of a triangle are given, use that they sum to 180.", "180", own=False)
    assert tells_answer("When angles are given, the answer is 180.", "180", own=False)
    assert tells_answer("When stuck, think of Marie Curie.", "Marie Curie", own=False)


@pytest.mark.parametrize("reference", [r"\boxed{%s}", "<answer>%s</answer>", "%s"])
def test_no_stage_lets_a_planted_answer_through(reference: str) -> None:
    """The comparison, the proposal and the consolidation each write it again and again."""
    versions = LibraryVersions()
    versions.put("r/0", as_library(["add up"], LibraryLimits(), len))
    known = Critic(
        versions, reference=lambda task: reference % ANSWERS[task.id], tasks={task.id: task for task in (TASK, OTHER)}
    )
    rollouts = [Rollout(f"r/sum-1/{n}", TASK, n, reward, "137", "> 137\n") for n, reward in enumerate((1.0, 0.0))]
    state = group(rollouts, task=TASK)
    compared = Scripted(json.dumps({"lessons": [PLANTED, SOUND], "helpful": [], "harmful": []}))
    out = contrast(compared, known).invoke(state)
    assert out["insights"] == [SOUND]
    assert "tells this problem's answer" in compared.prompts[1]

    edits = [{"op": "add", "text": SOUND}, {"op": "modify", "id": "L0", "text": PLANTED}]
    asked = Scripted(json.dumps({"edits": edits}))
    out = propose(asked, known).invoke({**state, "insights": [SOUND]})
    assert [edit.text for edit in out["edits"]] == [SOUND]
    assert [ruling.edit.text for ruling in out["rulings"]] == [PLANTED]
    assert len(asked.asked) == 3

    proposed = Comparison("sum-1", (1.0, 0.0), edits=(Edit("add", (), SOUND, problems=("sum-1",)),))
    told = [{"op": "add", "text": SOUND, "from": [1]}, {"op": "modify", "id": "L0", "text": PLANTED, "from": []}]
    step = {"run": "r", "step": 0, "library": "r/0", "comparisons": [proposed]}
    consolidate(Scripted(json.dumps({"edits": told})), known).invoke(step)
    texts = [lesson.text for lesson in versions.at("r/1").lessons]
    assert SOUND in texts
    assert not [text for text in texts if "13" in text], texts
    refused = [ruling for ruling in versions.rulings("r/1") if not ruling.accepted]
    assert PLANTED in [ruling.edit.text for ruling in refused]


def test_the_answer_is_no_lesson_of_those_that_are_written_without_rollouts_either() -> None:
    known = Critic(LibraryVersions(), reference=lambda task: ANSWERS[task.id])
    model = Scripted(json.dumps({"lessons": [PLANTED, SOUND]}))
    assert invent(model, known, 5).invoke({"run": "r", "tasks": [TASK]})["insights"] == [SOUND]


def test_without_ground_truth_no_label_is_looked_at_but_the_answers_of_the_attempts_are() -> None:
    def gold(task: Task) -> str:
        raise AssertionError("a label was read")

    known = Critic(LibraryVersions(), truth="implicit", reference=gold, bare_answers=lambda task: (gold(task),))
    known.versions.put("r/0", as_library([], LibraryLimits(), len))
    rollouts = [Rollout(f"r/sum-1/{n}", TASK, n, None, answer, f"> {answer}\n") for n, answer in enumerate(("137", "136"))]
    model = Scripted(json.dumps({"lessons": [PLANTED, SOUND]}))
    state = group(rollouts, task=TASK, rewards=[1.0, 0.0])
    assert contrast(model, known).invoke(state)["insights"] == [SOUND]
    assert "tells the answer of an attempt" in model.prompts[1]


@pytest.mark.parametrize(
    ("lesson", "others", "name"),
    [
        ("When letters repeat as in BANANA, place the B first", ["How many words from MISSISSIPPI?"], "BANANA"),
        ("When letters repeat, divide by the orders of equal letters", ["How many words from MISSISSIPPI?"], ""),
        ("When Alice shares, count for Alice first", ["If Alice has 3 coins, how many?"], ""),
        ("When Alice shares, count for Alice first", ["If Bob has 3 coins, how many?"], "Alice"),
        ("When How is asked", ["Bob?"], ""),
    ],
)
def test_a_name_that_one_problem_has_is_no_part_of_a_lesson(lesson: str, others: list[str], name: str) -> None:
    assert own_name(lesson, "How many words can Alice form from BANANA?", others) == name


def answers_of(world: Any) -> Callable[[Task], tuple[str, ...]]:
    return true_answers(world)


def test_worlds_give_their_bare_answers() -> None:
    math = open_environment("math")
    task = math.task(0, "train")
    (answer,) = answers_of(math)(task)
    assert math.gold(task) == (rf"\boxed{{{answer}}}",)
    quiz = Passages()
    task = quiz.task(0, "train")
    assert f"finish[{answers_of(quiz)(task)[0]}]" == quiz.gold(task)[-1]
    toy = open_environment("toy")
    assert answers_of(toy)(toy.task(0)) == ()
    puzzle = open_environment("game24")
    (solution,) = answers_of(puzzle)(puzzle.task(0))
    assert puzzle.gold(puzzle.task(0))[-1] == f"Answer: {solution}"
