"""Game of 24: its puzzles, verifier, rewards by rule and readers against brute force done another way."""

import csv
import random
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations, combinations_with_replacement
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task
from learngraph.tools.environments import arithmetic
from learngraph.tools.environments.arithmetic import DEMONSTRATIONS, Game24, demonstration, judge_answer, reachable
from learngraph.tools.environments.tree_of_thoughts import tree_of_thoughts_file

CSV = tree_of_thoughts_file("24/24.csv")
needs_csv = pytest.mark.skipif(CSV is None, reason="NOT TESTED: pip install --no-deps tree-of-thoughts-llm")
ENV = Game24({"order": "difficulty"})
TASK = ENV.puzzle_task("4 5 6 10")
PUZZLES = arithmetic._own_order()
GOLD = ("10 - 6 = 4", "4 * 5 = 20", "4 + 20 = 24", "Answer: (10 - 6) + (4 * 5) = 24")


@cache
def makes(numbers: tuple[Fraction, ...]) -> frozenset[Fraction]:
    """Everything that can be made of all these numbers: the last operation joins what two halves make.

    The code under test goes the other way, from the first operation on.
    """
    if len(numbers) == 1:
        return frozenset(numbers)
    found = set()
    for size in range(1, len(numbers) // 2 + 1):
        for chosen in combinations(range(len(numbers)), size):
            one = makes(tuple(numbers[n] for n in chosen))
            other = makes(tuple(numbers[n] for n in range(len(numbers)) if n not in chosen))
            for a in one:
                for b in other:
                    found |= {a + b, a - b, b - a, a * b}
                    if b:
                        found.add(a / b)
                    if a:
                        found.add(b / a)
    return frozenset(found)


def fractions(numbers: Sequence[int | Fraction]) -> tuple[Fraction, ...]:
    return tuple(sorted(Fraction(number) for number in numbers))


def value(expression: str) -> Fraction | None:
    """What Python makes of an expression of our own; None where it makes nothing."""
    try:
        return Fraction(eval(re.sub(r"\d+", r"Fraction(\g<0>)", expression), {"Fraction": Fraction}))
    except (SyntaxError, ZeroDivisionError, TypeError):
        return None


def shown(actions: Sequence[str], env: Game24 = ENV, task: Task = TASK) -> list[Observation]:
    return [env.observe(task, actions[:n]) for n in range(len(actions) + 1)]


# The puzzles


@pytest.mark.parametrize(
    "every", [pytest.param(7, id="some", marks=pytest.mark.slow), pytest.param(1, id="all", marks=pytest.mark.long)]
)
def test_the_puzzles_are_those_that_have_a_solution(every: int) -> None:
    four = list(combinations_with_replacement(range(1, 14), 4))
    assert len(four) == 1820
    some = four[::every]
    assert {puzzle for puzzle in some if 24 in makes(fractions(puzzle))} == set(PUZZLES) & set(some)


def test_the_file_holds_1362_puzzles_once_each() -> None:
    assert len(PUZZLES) == len(set(PUZZLES)) == 1362
    assert all(len(puzzle) == 4 and sorted(puzzle) == list(puzzle) and 1 <= puzzle[0] <= puzzle[3] <= 13 for puzzle in PUZZLES)


@pytest.mark.slow
def test_splits_share_no_puzzle_and_none_is_a_demonstration() -> None:
    splits = {
        split: [ENV.puzzle(ENV.task(n, split)) for n in range(count)]
        for split, count in (("test", 100), ("dev", 100), ("train", 1157))
    }
    drawn = [puzzle for rows in splits.values() for puzzle in rows]
    assert len(set(drawn)) == len(drawn) == 1362 - 5
    assert not set(drawn) & set(DEMONSTRATIONS)
    assert splits["test"] == list(PUZZLES[900:1000])
    with pytest.raises(UserError, match="test has tasks 0 to 99, got 100"):
        ENV.task(100)
    with pytest.raises(UserError, match="got -1"):
        ENV.task(-1, "train")


@needs_csv
def test_the_published_order() -> None:
    env = Game24()
    assert env.name == "game24?order=published"
    with open(str(CSV), encoding="utf-8") as file:
        rows = [tuple(sorted(map(int, row["Puzzles"].split()))) for row in csv.DictReader(file)]
    assert set(rows) == set(PUZZLES)
    tests = [env.puzzle(env.task(n)) for n in range(100)]
    assert tests == rows[900:1000]
    assert (tests[0], tests[-1]) == ((4, 5, 6, 10), (4, 9, 10, 13))
    for split, count in (("test", 100), ("dev", 99), ("train", 1158)):  # row 894 is a demonstration
        assert not {env.puzzle(env.task(n, split)) for n in range(count)} & set(DEMONSTRATIONS)
    assert not {demonstration(puzzle) for puzzle in DEMONSTRATIONS} & {demonstration(puzzle) for puzzle in tests}
    assert len(set(tests) & set(PUZZLES[900:1000])) == 12


@needs_csv
def test_of_3600_first_operations_on_the_published_test_698_keep_24_reachable() -> None:
    env = Game24()
    ways = kept = 0
    for n in range(100):
        numbers = fractions(env.puzzle(env.task(n)))
        for i, j in combinations(range(4), 2):
            a, b = numbers[i], numbers[j]
            rest = [numbers[k] for k in range(4) if k not in (i, j)]
            for result in (a + b, a - b, b - a, a * b, a / b, b / a):
                ways += 1
                kept += reachable(fractions([*rest, result]))
    assert (ways, kept) == (3600, 698)


def test_reachability_against_brute_force() -> None:
    draw = random.Random("reach")
    for _ in range(300):
        numbers = fractions(
            [Fraction(draw.randint(-6, 24), draw.choice((1, 1, 1, 2, 3, 5))) for _ in range(draw.randint(1, 3))]
        )
        assert reachable(numbers) == (24 in makes(numbers))
        if reachable(numbers, whole=True):
            assert reachable(numbers)
    assert reachable(fractions((3, 3, 8, 8)))
    assert not reachable(fractions((3, 3, 8, 8)), whole=True)  # 8 / (3 - 8 / 3) only
    assert not reachable(fractions((Fraction(1, 2), 48)), whole=True)


# The verifier


@pytest.mark.parametrize("every", [pytest.param(20, id="some"), pytest.param(1, id="all", marks=pytest.mark.long)])
def test_solutions_are_verified_and_changed_ones_judged_as_python_does(every: int) -> None:
    draw, refused = random.Random("mutants"), 0
    for puzzle in PUZZLES[::every]:
        task = ENV.puzzle_task(" ".join(map(str, puzzle)))
        gold = ENV.gold(task)
        assert [o.reward for o in shown(gold, task=task)] == [0, 0, 0, 0, 1]
        worth = ENV.verify(task, gold)
        whole = reachable(fractions(puzzle), whole=True)
        assert worth == [3, 3, 3, 10] if whole else (worth[2:] == [3, 10] and 1 in worth)
        expression = gold[-1].removeprefix("Answer: ").removesuffix(" = 24")
        assert value(expression) == 24
        for _ in range(4):
            at = draw.randrange(len(expression))
            mutant = expression[:at] + draw.choice("0123456789+-*/()") + expression[at + draw.randint(0, 1) :]
            numbers = sorted(map(int, re.findall(r"\d+", mutant)))
            signs = re.findall(r"\d+|[-+*/()]", mutant)
            sign_first = any(s in "+-" and (n == 0 or signs[n - 1] in "(+-*/") for n, s in enumerate(signs))
            right = value(mutant) == 24 and numbers == list(puzzle) and not sign_first and not re.search(r"\*\*|//", mutant)
            assert (judge_answer(mutant, puzzle)[1] == "") == right, mutant
            refused += not right
    assert refused > 2 * len(PUZZLES[::every])


@pytest.mark.parametrize(
    "answer",
    [
        "(10-4)*(5-1) = 24",
        "(10 - 4) * (5 - 1)",
        "( ( (10) - 4 ) ) * (5-1) =24",
        "(10 - 4) * (5 - 1) = 6 * 4 = 24",
        "(5 - 1) * (10 - 4) = 24. Done!",
        "(5 - 1) * (10 - 4) = 24 (checked)",
        "10 * 5 - 1 - 4 * 1 = 24",
    ],
)
def test_accepted_answers(answer: str) -> None:
    accepted = judge_answer(answer, (1, 4, 5, 10))[1] == ""
    assert accepted == ("10 * 5" not in answer)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("", "no expression was given"),
        (" = 24", "no expression was given"),
        ("24", "it uses 24, the numbers are 4 5 6 10"),
        ("4 + 5 + 6 + 10", "it makes 25, not 24"),
        ("4 * 6", "it uses 4 6, the numbers are 4 5 6 10"),
        ("5 * 6 - (10 - 4) = 25", "it makes 24, but '25' is said"),
        ("5 * 6 - (10 - 4) = 24.5", "but '24.5' is said"),
        ("5 * 6 - (10 - 4) = 240", "but '240' is said"),
        ("-4 + 5 * 6 - 2", "'-4' came"),
        ("5 * 6 - 10 - -4", "'-4' came"),
        ("5 * 6.0 - (10 - 4)", "'.' came"),
        ("5 ** 6 - (10 - 4)", "'5 ** 6' came"),
        ("5 * 6 - (10 - 4)^1", "'^' came"),
        ("5 // 6 - (10 - 4)", "'5 // 6' came"),
        ("5 * 6 - (10 - 4", "is no expression: '(' was never closed"),
        ("5 * 6 - (10 - 4))", "is no expression: unmatched ')'"),
        ("5 * 6 (10 - 4)", "'6(10 - 4)' came"),
        ("4 5 6 10", "'4 5 6 10' is no expression"),
        ("5 * 6 / (10 - 10) + 4", "it divides by 0"),
        ("__import__('os').system('true')", "'_' came"),
        ("sqrt(4) * 5", "'s' came"),
        ("10000000 * 4", "it uses 4 10000000"),
        ("(" * 500 + "4" + ")" * 500, "at most 120 characters, this one has 1001"),
        ("٤ * 6", "'٤' came"),
        ("4² + 6", "'²' came"),
    ],
)
def test_refused_answers_say_why(answer: str, why: str) -> None:
    reward, said = judge_answer(answer, (4, 5, 6, 10))
    assert why in said
    is_expression = why.startswith(("it ", "but"))
    assert reward == (0.0 if is_expression else None)
    seen = ENV.observe(TASK, [f"Answer: {answer}"])
    assert (seen.reward, seen.over, ENV.verify(TASK, [f"Answer: {answer}"])) == (reward, True, [reward])
    assert ("cannot be read" in seen.text) == (reward is None)


# Playing


def test_an_episode() -> None:
    start, first, second, third, end = shown(GOLD)
    assert (start.text, first.text, second.text, third.text) == ("left: 4 5 6 10", "left: 4 4 5", "left: 4 20", "left: 24")
    assert third.actions == GOLD[-1:]
    assert (end.text, end.actions, end.reward, end.over) == ("left: 24\nright: 24", (), 1.0, True)
    assert ENV.verify(TASK, GOLD) == [3, 3, 3, 10]
    assert ENV.abstract(end) == "left: 24"


def test_the_listed_operations() -> None:
    listed = ENV.observe(TASK, ()).actions
    assert len(listed) == 36
    assert {"4 + 6 = 10", "4 - 6 = -2", "6 - 4 = 2", "4 / 6 = 2/3", "6 / 4 = 3/2", "4 * 6 = 24"} <= set(listed)
    assert "6 + 4 = 10" not in listed  # listed once, read both ways
    assert ENV.observe(TASK, ["6 + 4 = 10"]).text == "left: 5 10 10"
    zero = ENV.puzzle_task("3 3 8 8")
    after = ENV.observe(zero, ["3 - 3 = 0"])
    assert after.text == "left: 0 8 8"
    assert not any("/ 0" in action for action in after.actions)
    assert len([a for a in after.actions if a.startswith("8 - 8")]) == 1


def test_whatever_is_listed_is_done_and_worth_what_the_rule_says() -> None:
    draw = random.Random("listed")
    for n in range(40):
        task, actions, numbers = ENV.task(n), list[str](), list(fractions(ENV.puzzle(ENV.task(n))))
        for _ in range(3):
            action = draw.choice(ENV.observe(task, actions).actions)
            actions.append(action)
            a, sign, b, _, result = action.split()
            numbers.remove(Fraction(a))
            numbers.remove(Fraction(b))
            bracketed = value(f"({a}) {sign} ({b})")
            assert bracketed == Fraction(result)
            numbers.append(Fraction(result))
            assert ENV.observe(task, actions).text == "left: " + " ".join(map(str, sorted(numbers)))
            possible = 24 in makes(fractions(numbers))
            assert (ENV.verify(task, actions)[-1] in (1, 3)) == possible
        (answer,) = ENV.observe(task, actions).actions
        assert value(answer.removeprefix("Answer: ").partition("=")[0]) == numbers[0]
        assert ENV.observe(task, [*actions, answer]).reward == float(numbers == [24])


def test_a_way_through_fractions_is_worth_1() -> None:
    task = ENV.puzzle_task("8 3 8 3")
    actions = ["8 / 3 = 8/3", "3 - 8/3 = 1/3", "8 / 1/3 = 24", "Answer: 8 / (3 - (8 / 3)) = 24"]
    assert ENV.verify(task, actions) == [1, 1, 3, 10]
    assert ENV.gold(task) == tuple(actions)
    assert ENV.verify(task, ["8 * 8 = 64"]) == [0]


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("4 + 6 = 11", "4 + 6 is 10, not 11"),
        ("Step 1: 4 + 6 = 11 (left: 5 10 11)", "4 + 6 is 10, not 11"),
        ("4 / 6 = 0.67", "4 / 6 is 2/3, not 67/100"),
        ("4 + 7 = 11", "7 is not left"),
        ("5 * 5 = 25", "5 is not left twice"),
    ],
)
def test_a_wrong_operation_changes_nothing_and_costs_a_step(action: str, said: str) -> None:
    after = ENV.observe(TASK, [action])
    assert after.text == f"left: 4 5 6 10\nwrong, nothing done: {said}"
    assert (after.reward, after.over, len(after.actions)) == (0.0, False, 36)
    assert ENV.abstract(after) == "left: 4 5 6 10"
    assert ENV.verify(TASK, [action]) == [0]
    # The truth is about the answer alone.
    assert ENV.observe(TASK, [action, GOLD[-1]]).reward == 1.0
    assert ENV.verify(TASK, [action, *GOLD[:3]]) == [0, 3, 3, 3]
    assert ENV.observe(TASK, [action, *GOLD[:3]]).over  # the fourth step


def test_a_division_by_zero_is_a_wrong_operation() -> None:
    task = ENV.puzzle_task("3 3 8 8")
    after = ENV.observe(task, ["3 - 3 = 0", "8 / 0 = 0"])
    assert after.text == "left: 0 8 8\nwrong, nothing done: 8 / 0 cannot be"
    assert (after.reward, after.over) == (0.0, False)


@pytest.mark.parametrize(
    "action", ["", "   ", "fly to the moon", "4 + 6", "= 10", "4 + 5 + 6 = 15", "4 + 6 = ten", "4 + 6 = 10\n5 + 5 = 10"]
)
def test_what_cannot_be_read_cannot_be_judged(action: str) -> None:
    after = ENV.observe(TASK, [action])
    assert (after.reward, after.over, after.actions) == (None, True, ())
    assert "cannot be read" in after.text
    assert ENV.verify(TASK, [action]) == [None]
    with pytest.raises(UserError, match="over after 1 step"):
        ENV.verify(TASK, [action, GOLD[0]])


@pytest.mark.parametrize(
    ("action", "left"),
    [
        ("Step 1: 10 - 4 = 6 (left: 5 6 6)", "5 6 6"),
        ("**Step 1:** 10 − 4 = 6 (left: 9 9)", "5 6 6"),
        ("- 4 × 6 = 24", "5 10 24"),
        ("4 x 6 = 24", "5 10 24"),
        ("1. 6 ÷ 4 = 1.5", "3/2 5 10"),
        ("(4 + 6) = 10, left: 5 10 10", "5 10 10"),
        ("4 - 6 = (-2)", "-2 5 10"),
        ("4 + 6 -> 10", "5 10 10"),
        ("4/6=2/3", "2/3 5 10"),
        ("4 / 6 = 4/6", "2/3 5 10"),
        ("> `4 + 6 = 10`", "5 10 10"),
        ("<answer>4 + 6 = 10</answer>", "5 10 10"),
        ("$4 \\times 6 = 24$", "5 10 24"),
        ("\\[ 4 \\div 6 = \\frac{2}{3} \\]", "2/3 5 10"),
        ("Step 3 - 4 + 6 = 10.", "5 10 10"),
    ],
)
def test_operations_in_free_text(action: str, left: str) -> None:
    assert ENV.observe(TASK, [action]).text == f"left: {left}"


def test_an_operation_that_can_be_read_in_two_ways_is_read_the_way_that_is_right() -> None:
    task = ENV.puzzle_task("1 3 4 6")
    assert ENV.observe(task, ["3/4=3/4", "1-3/4=1/4", "6/1/4=24"]).text == "left: 24"
    assert ENV.observe(task, ["3/4=3/4", "1-3/4=1/4", "1/4/6=1/24"]).text == "left: 1/24"


def test_negative_numbers_go_on() -> None:
    assert ENV.observe(TASK, ["4 - 6 = -2", "5 - -2 = 7"]).text == "left: 7 10"
    assert ENV.observe(TASK, ["4 - 6 = -2", "5 - (-2) = 7"]).text == "left: 7 10"
    assert ENV.observe(TASK, ["4 - 6 = -2", "-2 * 5 = -10", "-10 + 10 = 0"]).actions == ("Answer: ((4 - 6) * 5) + 10 = 0",)


def test_the_horizon() -> None:
    short = Game24({"order": "difficulty"}, horizon=2)
    assert short.gold(TASK) == GOLD[-1:]
    assert short.observe(TASK, GOLD[:2]).over
    assert len(short.read("\n".join(GOLD))) == 2
    long = Game24({"order": "difficulty"}, horizon=9)
    assert long.observe(TASK, ["4 + 6 = 11"] * 5 + list(GOLD)).reward == 1.0
    with pytest.raises(UserError, match="over after 4 steps"):
        ENV.observe(TASK, ["4 + 6 = 11"] * 5)


# Written answers

SOLVED = "Step 1: 10 - 4 = 6 (left: 5 6 6)\nStep 2: 5 * 6 = 30 (left: 6 30)\nStep 3: 30 - 6 = 24 (left: 24)\n"
STEPS = ("10 - 4 = 6", "5 * 6 = 30", "30 - 6 = 24")


@pytest.mark.parametrize(
    ("reply", "actions"),
    [
        (SOLVED + "Answer: 5 * 6 - (10 - 4) = 24", (*STEPS, "Answer: 5 * 6 - (10 - 4) = 24")),
        (f"<answer>\n{SOLVED}ANSWER: 5*6-(10-4)\n</answer>", (*STEPS, "Answer: 5*6-(10-4)")),
        (" ".join(SOLVED.split()) + " Final answer: 5 * 6 - (10-4) = 24.", (*STEPS, "Answer: 5 * 6 - (10-4) = 24")),
        (
            "Let me think. 10 - 4 is 6.\n\n"
            + SOLVED.replace("Step", "**Step").replace(": ", ":** ")
            + "\n**Answer:** $5 \\times 6 - (10 - 4) = 24$\n\nThis uses every number.",
            (*STEPS, "Answer: 5 * 6 - (10 - 4) = 24"),
        ),
        ("1. 10 − 4 = 6\n2. 5 × 6 = 30\n3. 30 − 6 = 24\nThe answer is: 5 × 6 − (10 − 4)", (*STEPS, "Answer: 5 * 6 - (10 - 4)")),
        (
            SOLVED.replace(" (left", " <Reward: 3.00> (left") + "Answer:\n5 * 6 - (10 - 4) = 24",
            (*STEPS, "Answer: 5 * 6 - (10 - 4) = 24"),
        ),
        # Several attempts: the last complete one.
        (
            "Step 1: 4 + 5 = 9\nStep 2: 9 + 6 = 15\nAnswer: 4 + 5 + 6 + 10 = 25\nAgain.\n"
            + SOLVED
            + "Answer: 5 * 6 - 10 + 4 = 24",
            (*STEPS, "Answer: 5 * 6 - 10 + 4 = 24"),
        ),
        ("Step 1: 4 + 5 = 9\nno\n" + SOLVED + "Answer: 5 * 6 - 10 + 4", (*STEPS, "Answer: 5 * 6 - 10 + 4")),
        (SOLVED + "Answer: 5 * 6 - 10 + 4\nStep 1: 4 + 5 = 9\nStep 2: 9 +", (*STEPS, "Answer: 5 * 6 - 10 + 4")),
        # Without numbers on the steps the last three before the answer count.
        ("4 + 5 = 9\n" + SOLVED.replace("Step ", "") + "Answer: 5 * 6", (*STEPS, "Answer: 5 * 6")),
        # Wrong steps are steps; no answer is an empty one.
        ("Step 1: 10 - 4 = 7 (left: 5 6 7)", ("10 - 4 = 7", "Answer:")),
        ("Answer: I give up.\n10-4=6", ("10 - 4 = 6", "Answer:")),
        ("Answer: \\boxed{5 * 6 - (10 - 4)}", ("Answer: 5 * 6 - (10 - 4)",)),
        ("Answer: $\\frac{6 \\cdot 10}{5} + 4 = 24$", ("Answer: (6 * 10)/(5) + 4 = 24",)),
        ("> 10 - 4 = 6\n= 3\n> 5 * 6 = 30\n= 3", ("10 - 4 = 6", "5 * 6 = 30", "Answer:")),
        (
            "Attempt 3:\nleft: 4 5 6 10\n> 4 + 5 = 9\n= 0\nAttempt 4:\nleft: 4 5 6 10\n> 10 - 4 = 6\n= 3\n> Answer: 5 * 6 - 10 + 4",
            ("10 - 4 = 6", "Answer: 5 * 6 - 10 + 4"),
        ),
        ("It cannot be done.", ("It cannot be done.",)),
        ("", ("",)),
    ],
)
def test_reading_a_written_answer(reply: str, actions: tuple[str, ...]) -> None:
    assert ENV.read(reply) == actions
    assert shown(actions)[-1].over


def test_the_demonstrations_are_read_back_and_right() -> None:
    assert len(DEMONSTRATIONS) == 5
    for puzzle in DEMONSTRATIONS:
        task = ENV.puzzle_task(" ".join(map(str, puzzle)))
        text = demonstration(puzzle)
        lines = text.splitlines()
        assert [line.partition(":")[0] for line in lines] == ["Numbers", "Step 1", "Step 2", "Step 3", "Answer"]
        assert ENV.verify(task, ENV.read(text)) == [3, 3, 3, 10]
        after = shown(ENV.read(text), task=task)
        for line, seen in zip(lines[1:4], after[1:], strict=False):
            assert line.endswith(f"({seen.text})")
        assert text not in task.instruction  # its own solution is never shown
        assert text in TASK.instruction


# Opening


def test_a_puzzle_of_ones_own() -> None:
    env = Game24({"puzzle": "10 6 5 4"})
    assert env.name == "game24?puzzle=4 5 6 10"
    assert env.task(0) == env.task(7, "train") == TASK
    assert TASK.seed == 4050610
    for text, said in (
        ("4 5 6", "no puzzle: four numbers from 1 to 13"),
        ("4 5 6 14", "no puzzle"),
        ("0 5 6 7", "no puzzle"),
        ("a b c d", "no puzzle"),
        ("1 1 1 1", "1 1 1 1 cannot make 24"),
    ):
        with pytest.raises(UserError, match=said):
            Game24({"puzzle": text})
        with pytest.raises(UserError, match=said):
            ENV.puzzle_task(text)
    with pytest.raises(UserError, match="no puzzle"):
        ENV.observe(Task("game24-x", "", 7), ())


def test_the_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "tree_of_thoughts_llm-0.1.0.dist-info"
    for folder in (name, "tot/data/24"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / name / "METADATA").write_text("Name: tree-of-thoughts-llm\nVersion: 0.1.0\n", encoding="utf-8")
    (tmp_path / "tot" / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    rows = "".join(" ".join(map(str, puzzle)) + "\n" for puzzle in reversed(PUZZLES))
    (tmp_path / "tot" / "data" / "24" / "24.csv").write_text("Puzzles\n" + rows, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert tree_of_thoughts_file("24/24.csv") == tmp_path / "tot" / "data" / "24" / "24.csv"
    assert tree_of_thoughts_file("24/25.csv") is None
    env = Game24()
    assert env.name == "game24?order=published"
    assert env.puzzle(env.task(0)) == PUZZLES[::-1][900]
    assert Game24({"order": "difficulty"}).name == "game24?order=difficulty"


@pytest.mark.skipif(CSV is not None, reason="the package is installed")
def test_without_the_package_ours_is_the_order() -> None:
    assert Game24().name == "game24?order=difficulty"
    with pytest.raises(UserError, match="pip install --no-deps tree-of-thoughts-llm"):
        Game24({"order": "published"})


# No text breaks anything

SIGNS = (" ", "+", "-", "*", "/", "×", "÷", "=", "(", ")", "**", "->", ".", "x", "}", "$", "²", "９", "\n", "\u2028", "\x00")
WORDS = ("Step 1:", "Answer:", "answer is:", "left:", "<a>", "\\boxed{", "=24", "4 + 6 = 10", "1/3", "1/0", "-2", "0", "24")
PIECES = st.sampled_from((*SIGNS, *WORDS, "4", "5", "6", "10"))
TEXTS = st.one_of(st.text(max_size=80), st.lists(PIECES, max_size=25).map("".join), st.lists(PIECES, max_size=25).map(" ".join))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(TEXTS)
def test_no_text_raises(text: str) -> None:
    after = ENV.observe(TASK, [text])
    (worth,) = ENV.verify(TASK, [text])
    assert after.reward in (None, 0.0, 1.0)
    assert (worth is None) == (after.reward is None)
    assert (worth == 10) == (after.reward == 1)
    assert ENV.abstract(after).startswith("left: ")
    judge_answer(text, (4, 5, 6, 10))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(TEXTS)
def test_a_reply_is_always_a_whole_episode(text: str) -> None:
    actions = ENV.read(text)
    assert 1 <= len(actions) <= 4
    seen = shown(actions)
    assert [o.over for o in seen] == [False] * len(actions) + [True]
    assert len(ENV.verify(TASK, actions)) == len(actions)
    if actions != (text,):
        assert None not in [o.reward for o in seen[:-1]]  # the answer may be no expression, or missing


def test_long_texts_are_read_in_no_time() -> None:
    for text in (
        "4 + " * 50_000,
        "(" * 100_000,
        "Answer: " * 20_000,
        "<a " * 50_000,
        " " * 200_000,
        "Step 1: 4 + 6 = 10 " * 5000,
    ):
        ENV.observe(TASK, [text])
        assert ENV.read(text)
