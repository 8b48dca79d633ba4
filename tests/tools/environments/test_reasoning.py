"""reasoning-gym's generators: the same problem for a seed everywhere, graded scores, and scorers that fail."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from learngraph.memory.errors import UserError
from learngraph.tools.environments import reasoning
from learngraph.tools.environments.reasoning import UNUSABLE_GENERATORS, Reasoning, written_answer
from learngraph.tools.environments.support.verifying import Workers

pytest.importorskip("reasoning_gym", reason="NOT TESTED: pip install reasoning-gym")

SPLITS = ("train", "dev", "test")
WITHOUT_ANSWER = ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour")
BY_ORDER_OF_SETS = ("isomorphic_strings", "list_functions", "polynomial_multiplication", "ransom_note")
"""Generators that draw another problem where sets are ordered otherwise (measured, as knight_swap, which takes seconds)."""


@pytest.fixture(scope="module")
def countdown() -> Iterator[Reasoning]:
    env = Reasoning("countdown")
    yield env
    env.close()


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("So <answer> 1 + 2 </answer>.", "1 + 2"),
        ("<answer>1</answer> no <answer>2</answer>", "2"),
        ("<Answer>\n1 2\n3 4\n</Answer>", "1 2\n3 4"),
        ("cut off: <answer>1 + 2", "1 + 2"),
        ("<answer>3</answer> <answer></answer>", "3"),
        ("<answer>$\\boxed{3}$</answer>", "3"),
        ("It is \\boxed{7}.\nAnswer: 8", "7"),
        ("**Answer:**\n1 2\n3 4", "1 2\n3 4"),
        ("Answer: 5\nFinal answer: 6", "6"),
        ("<think><answer>4</answer></think>Answer: 5", "5"),
        ("<think>perhaps <answer>4</answer>, or", None),
        ("Answer:", None),
        ("The answer is 5.", None),
        ("5", None),
    ],
)
def test_where_the_answer_stands(reply: str, answer: str | None) -> None:
    assert written_answer(reply) == answer


def test_scores_are_graded_and_passed_on(countdown: Reasoning) -> None:
    task = countdown.task(0)
    right = countdown.gold(task)
    assert countdown.observe(task, right).reward == 1.0
    near = countdown.observe(task, ["<answer>1 + 1</answer>"])
    assert near.reward == pytest.approx(0.05)  # an expression, of other numbers
    assert near.text == "wrong, scored 0.05: the answer read is 1 + 1"
    none = countdown.observe(task, ["1 + 1"])
    assert (none.reward, none.text) == (0.0, "no answer: it belongs between <answer> and </answer>")
    assert countdown.answer(f"hm\n<answer>{right[0][8:-9].replace(' ', '  ')}</answer>") == " ".join(right[0][8:-9].split())


def test_an_answer_that_is_a_program_does_no_harm(countdown: Reasoning, tmp_path: Path) -> None:
    file = tmp_path / "written"
    for program in (  # the first two wrote a file when the scorer was called without our limits
        f"sympify.__globals__['__builtins__']['open']('{file}', 'w')",
        f"sympify(\"open('{file}', 'w')\")",
        f"lambdify([], chr(95)*2 + 'import' + chr(95)*2 + '(\"os\").system(\"touch {file}\")')()",
    ):
        assert countdown.observe(countdown.task(1), [f"<answer>{program}</answer>"]).reward != 1
    assert not file.exists()


def test_an_answer_that_never_gets_done_is_given_up(countdown: Reasoning, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(countdown.workers, "seconds", 0.7)
    with ThreadPoolExecutor(1) as pool:
        verdict = pool.submit(countdown.observe, countdown.task(0), ["<answer>9**9**9**9</answer>"]).result(60)
    assert (verdict.reward, verdict.text) == (None, "could not be verified: not done after 0.7 s of computing")
    assert countdown.observe(countdown.task(0), countdown.gold(countdown.task(0))).reward == 1.0


@pytest.mark.slow
def test_a_scorer_that_raises_says_nothing_of_the_answer() -> None:
    env = Reasoning("prime_factorization")
    task = env.task(0, "train")
    assert env.observe(task, env.gold(task)).reward == 1.0
    shown = env.observe(task, ["<answer>two and two</answer>"])
    assert shown.reward is None
    assert shown.text.startswith("could not be verified: ValueError: invalid literal for int()")
    assert env.verify(task, ["<answer>two and two</answer>"]) == [None]
    env.close()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if n else pytest.mark.slow) for n, name in enumerate(BY_ORDER_OF_SETS)]
)
def test_a_seed_draws_the_same_problem_in_every_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    for order in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", order)
        env = Reasoning(name)
        drawn.append([(env.task(n, split), env.gold(env.task(n, split))) for split in SPLITS for n in range(3)])
        env.close()
    assert drawn[0] == drawn[1]
    assert len({task.seed for task, _ in drawn[0]}) == 9


@pytest.mark.slow
def test_every_generator_takes_its_own_answer_for_right(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Workers("reasoning", max_workers=1)
    monkeypatch.setattr(reasoning, "Workers", lambda kind: shared)
    names = shared.ask("names")
    assert len(names) > 100
    for name in sorted(set(names) - set(UNUSABLE_GENERATORS) - {"knight_swap"}):  # that one searches for seconds
        env = Reasoning(name)
        task = env.task(1, "dev")
        if name in WITHOUT_ANSWER:
            with pytest.raises(UserError, match="scores answers but knows none"):
                env.gold(task)
        else:
            assert env.verify(task, env.gold(task)) == [1.0], name
    shared.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("chain_sums", {}, r"no generator 'chain_sums'; there are ab, .*chain_sum, "),
        ("chain_sum", {"terms": "3"}, r"chain_sum has no setting 'terms'; it has .*max_terms, min_digits, min_terms"),
        ("chain_sum", {"min_terms": "9", "max_terms": "2"}, r"cannot draw problem 0 .*max_terms must be >= min_terms"),
        ("chain_sum", {"min_terms": "few"}, r"cannot draw problem 0 with .*few"),
    ],
)
def test_wrong_settings(name: str, settings: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        Reasoning(name, settings)
    assert "\n" not in str(raised.value)
