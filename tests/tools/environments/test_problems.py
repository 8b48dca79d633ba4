"""Math problems: what counts as the final answer, what it is worth, and what is read from a file."""

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from forks import run_python
from hypothesis import given
from hypothesis import strategies as st
from waiting import has_ended, wait_until

from learngraph.memory.errors import UserError
from learngraph.tools.environments.problems import Problems, final_answer
from learngraph.tools.environments.support.verifying import Unverified, Workers

pytest.importorskip("math_verify", reason="NOT TESTED: pip install math-verify")


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Problems]:
    """Problems whose answers are 42, 1/2, 36 - 9 pi, {2, 3}, x = 5, and one that cannot be worked out."""
    answers = ["42", "\\frac{1}{2}", "36 - 9\\pi", "\\{2, 3\\}", "5", "\\frac{1}{0}", "(x+1)^2"]
    file = tmp_path_factory.mktemp("math") / "few.jsonl"
    file.write_text("".join(json.dumps({"problem": f"Problem {n}?", "answer": a}) + "\n" for n, a in enumerate(answers)))
    opened = Problems({"file": str(file), "split": "test"})
    yield opened
    opened.close()


# The final answer


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ("It is $\\boxed{42}$.", "42"),
        ("\\boxed{42}. To check: 6 * 7 = 42, and 43 is wrong.\nAnswer: 43", "42"),
        ("\\boxed{41}, no: \\boxed{42}", "42"),
        ("\\boxed{41} or \\boxed{42}", "41, 42"),
        ("$\\boxed{2}$ and $\\boxed{3}$", "2, 3"),
        ("\\boxed{42}\n\nThe end. \\boxed{42}", "42"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{{42}}", "42"),
        ("\\\\boxed{42}", "42"),
        ("\\boxed 42.", "42"),
        ("\\fbox{42}", "42"),
        ("<answer>\\boxed{42}</answer>", "42"),
        ("\\boxed{\\boxed{42}}", "42"),
        ("Put it in \\boxed{}.\nAnswer: 42", "42"),
        ("\\boxed{42", None),
        ("Answer: 42", "42"),
        ("**Answer:** $42$.", "42"),
        ("## Final Answer: \\(42\\)", "42"),
        ("The final answer: 42\nAnswer: 43", "43"),
        ("<answer> 42 </answer>", "42"),
        ("<think>Perhaps \\boxed{41}?</think>\nAnswer: 42", "42"),
        ("<think>Perhaps \\boxed{41}?</think>\nI do not know.", None),
        ("<think> maybe \\boxed{5}. Wait, no", None),
        ("<think>Perhaps 41.</think> \\boxed{42} <think>or \\boxed{43}?", "42"),
        ("Perhaps \\boxed{41}?</think>\nAnswer: 42", "42"),
        ("Answer:", None),
        ("We have 42 cases. So 41 + 1.", None),
        ("The answer is 42.", None),
        ("My answer: 42? I am not sure.", None),
        ("42", None),
        ("", None),
    ],
)
def test_where_the_final_answer_stands(solution: str, answer: str | None) -> None:
    assert final_answer(solution) == answer


@given(st.text(alphabet="ab12{}\\$ \nboxedanswer:<>/,.", max_size=300), st.integers(-999, 999))
def test_the_box_counts_whatever_stands_before_it(prose: str, number: int) -> None:
    assert final_answer(prose) is None or final_answer(prose)
    if "box" not in prose:
        assert final_answer(f"{prose}\n so \\boxed{{{number}}}, and not {number + 1}.\nAnswer: {number + 2}") == str(number)


@pytest.mark.slow
def test_a_reply_of_many_open_boxes_is_read_at_once() -> None:
    """Read box by box to its end, it would take hours."""
    assert final_answer("\\boxed{" * 100_000) is None


# What it is worth


@pytest.mark.parametrize(
    ("number", "answer", "reward"),
    [
        (0, "42", 1.0),
        (0, "42.0", 1.0),
        (0, "\\frac{84}{2}", 1.0),
        (0, "x = 42", 1.0),
        (0, "6 \\cdot 7", 1.0),
        (0, "42 \\text{ cm}", 1.0),
        (0, "41", 0.0),
        (0, "42, 43", 0.0),
        (0, "about 42", 0.0),
        (0, "((((", 0.0),
        (0, "\\infty", 0.0),
        (1, "0.5", 1.0),
        (1, "1/2", 1.0),
        (1, "-\\frac12", 0.0),
        (2, "9(4 - \\pi)", 1.0),
        (2, "7.7257", 0.0),
        (3, "3, 2", 1.0),
        (3, "\\{2\\}", 0.0),
        (6, "x^2 + 2x + 1", 1.0),
        (6, "x^2 + 1", 0.0),
    ],
)
def test_what_an_answer_is_worth(env: Problems, number: int, answer: str, reward: float) -> None:
    shown = env.observe(env.task(number), [f"So it is $\\boxed{{{answer}}}$."])
    assert (shown.reward, shown.over) == (reward, True)
    assert shown.text.startswith("right: " if reward else "wrong: the answer read is ")


def test_without_a_box_it_is_worth_nothing_and_says_why(env: Problems) -> None:
    shown = env.observe(env.task(0), ["We have 42 cases. So 41 + 1."])
    assert shown.reward == 0
    assert "no final answer" in shown.text
    assert "\\boxed{}" in shown.text


def test_a_verifier_that_raises_says_nothing_of_the_answer(env: Problems) -> None:
    verdict = env.observe(env.task(5), ["\\boxed{7}"])  # 1/0 is the "true" answer, which math-verify refuses to compare
    assert final_answer("\\boxed{7}") == "7"
    assert (verdict.reward, verdict.over) == (None, True)
    assert "could not be verified: ValueError" in verdict.text
    assert env.verify(env.task(5), ["\\boxed{7}"]) == [None]
    assert env.observe(env.task(5), ["\\boxed{7}"]) == verdict


@pytest.mark.slow
@pytest.mark.parametrize("endless", ["10^{10^{10}}", pytest.param("9!!!!", marks=pytest.mark.long)])
def test_an_answer_that_never_gets_done_is_given_up(env: Problems, endless: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env.workers, "seconds", 0.7)
    with ThreadPoolExecutor(1) as pool:  # in a thread, where signals do not work
        verdict = pool.submit(env.observe, env.task(0), [f"\\boxed{{{endless}}}"]).result(60)
    assert verdict.reward is None
    assert verdict.text == "could not be verified: not done after 0.7 s of computing"
    assert env.observe(env.task(0), ["\\boxed{40 + 2}"]).reward == 1  # the next one is checked by another process
    assert env.answer(f"\\boxed{{{endless}}}") == endless


def test_sixteen_threads_at_once_get_the_right_rewards(env: Problems) -> None:
    jobs = [(n % 2, f"\\boxed{{{n} / {2 * n}}}" if n % 2 else f"\\boxed{{{42 + n} - {n}}}") for n in range(1, 65)]
    jobs += [(n % 2, f"\\boxed{{{n} / {2 * n + 1}}}" if n % 2 else f"\\boxed{{{42 + n} + {n}}}") for n in range(1, 65)]
    with ThreadPoolExecutor(16) as pool:
        rewards = list(pool.map(lambda job: env.observe(env.task(job[0]), [job[1]]).reward, jobs))
    assert rewards == [1.0] * 64 + [0.0] * 64


def test_equal_answers_have_one_form(env: Problems) -> None:
    def same(*answers: str) -> set[str]:
        return {env.answer(f"I say \\boxed{{{answer}}}") for answer in answers}

    assert same("1/2", "0.5", "\\frac{1}{2}", "\\tfrac12", "x = 0.5") == {"1/2"}
    assert len(same("\\sqrt{432}", "12\\sqrt{3}")) == 1
    assert len(same("(x+1)^2", "x^2+2x+1")) == 1
    assert len(same("\\{2, 3\\}", "3, 2")) == 1
    assert len(same("1", "2", "1/2")) == 3
    assert env.answer("no box, 42") == ""
    assert same("((((") == {"(((("}


# The processes


@pytest.mark.slow
def test_a_process_that_was_killed_is_replaced() -> None:
    workers = Workers(max_workers=1)
    assert workers.ask("equal", gold="2", answer="1 + 1") is True
    first = workers._free[0].process.pid
    os.kill(first, signal.SIGKILL)
    assert workers.ask("equal", gold="2", answer="3") is False
    second = workers._free[0].process.pid
    assert second != first
    workers.close()
    assert not Path(f"/proc/{second}").exists()
    assert workers.ask("equal", gold="2", answer="4 / 2") is True  # closed is not the end
    workers.close()


def test_an_error_is_said_and_does_not_end_the_process() -> None:
    workers = Workers(max_workers=1)
    with pytest.raises(Unverified, match="KeyError: 'no such job'"):
        workers.ask("no such job")
    process = workers._free[0].process.pid
    assert workers.ask("normal", answer="\\frac{2}{4}") == "1/2"
    assert workers._free[0].process.pid == process
    workers.close()


def test_the_processes_do_not_see_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    workers = Workers(max_workers=1)
    workers.ask("normal", answer="1")
    environment = Path(f"/proc/{workers._free[0].process.pid}/environ").read_bytes()
    workers.close()
    assert b"PYTHONHASHSEED=0" in environment
    assert b"sk-secret" not in environment


@pytest.mark.slow
def test_a_process_does_not_outlive_its_host() -> None:
    code = (
        "import os, signal; from learngraph.tools.environments.support.verifying import Workers\n"
        "if __name__ == '__main__':\n"
        "    workers = Workers(max_workers=1); workers.ask('normal', answer='1')\n"
        "    print(workers._free[0].process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = run_python("-c", code)
    wait_until(lambda: has_ended(int(done.stdout)))


# Our own set


def test_our_own_set_has_120_problems() -> None:
    env = Problems()
    assert (env.name, env.report) == ("math", "120 questions of 120 rows")
    assert [env.size(split) for split in ("test", "dev", "train")] == [48, 24, 48]
    assert len({env.task(n, s).instruction for s in ("test", "dev", "train") for n in range(env.size(s))}) == 120
    # Its answers were worked out a second time, by other ways: git show be7e170e:tests/tools/environments/test_problems.py
    assert sha256(Problems.own.read_bytes()).hexdigest()[:16] == "5b876b1b363e330d"


# Files


def written(folder: Path, *rows: Any) -> str:
    file = folder / "rows.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8")
    return str(file)


WRAPPED = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: $Answer "
    "(without quotes) where $Answer is the answer to the problem.\n\nWhat is six\ntimes seven?\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)


@pytest.mark.parametrize(
    "row",
    [
        {"ID": "2024-I-1", "Problem": "What is six\ntimes seven?", "Solution": "It is 41 + 1.", "Answer": 42},
        {"id": 1, "problem": "What is six\ntimes seven?", "answer": "042", "year": "2024"},
        {"problem": "What is six\ntimes seven?", "solution": "Not \\boxed{41}, but $\\boxed{42}$.", "level": "Level 5"},
        {"question": "What is six\ntimes seven?", "answer": "6 * 7 = <<6*7=42>>42\n#### 42"},
        {"prompt": [{"role": "user", "content": WRAPPED}], "reward_model": {"ground_truth": "42", "style": "rule"}},
        {"prompt": WRAPPED, "answer": "42"},
        {"question": "What is six\ntimes seven?", "final_answer": ["$42$"]},
        {"problem": "What is six\ntimes seven?", "answer": 42.0},
    ],
    ids=["AIME", "AIME with zeros", "MATH", "GSM8K", "DAPO", "DAPO, plain", "Olympiad", "float"],
)
def test_layouts(tmp_path: Path, row: dict[str, Any]) -> None:
    env = Problems({"file": written(tmp_path, row), "split": "train"})
    task = env.task(0, "train")
    assert task.instruction.partition("\nReason")[0] == "What is six\ntimes seven?"
    assert "\\boxed{}" in task.instruction
    assert env.observe(task, ["\\boxed{42}"]).reward == 1
    assert env.verify(task, env.gold(task)) == [1.0]
    env.close()


def test_rows_of_no_use_are_dropped_counted_and_named(tmp_path: Path) -> None:
    env = Problems(
        {
            "file": written(
                tmp_path,
                {"problem": "One plus one?", "answer": "2"},
                {"problem": "No answer?", "answer": ""},
                {"problem": "None?", "answer": None},
                {"problem": "NaN?", "answer": float("nan")},
                {"problem": "No box?", "solution": "It is 7."},
                {"problem": "  ", "answer": "7"},
                {"problem": "one  PLUS\none?", "answer": "\\frac{4}{2}"},
                {"problem": "Half?", "answer": "0.5"},
                {"problem": "half?", "answer": "1/2"},
                {"problem": "Who is right?", "answer": "4"},
                {"problem": "Who is right?", "answer": "5"},
                {"problem": "Fine?", "answer": "9"},
            )
        }
    )
    assert [one.where for one in env.questions] == ["line 1", "line 8", "line 12"]
    assert env.report == (
        "3 questions of 12 rows; 5 without a question or an answer (line 2 (no answer); line 3 (no answer); line 4 (no answer) …); "
        "2 repeated (line 7 (as line 1); line 9 (as line 8)); "
        "1 with contradictory answers, all left out (line 10: 4, line 11: 5)"
    )


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], r"rows.jsonl is empty; expected are problem, question or prompt"),
        (['{"problem": "a?", "answer": 1}', "7"], r"rows.jsonl line 2 must be an object, got '7'"),
        (
            ['{"problem": "a?", "answer": 1}', '{"input": "b?", "label": 2}'],
            r"line 2 has no question; its keys are input, label;",
        ),
        (['{"problem": "a?", "reply": 1}'], r"nothing is left: 0 questions of 1 rows; 1 without .*line 1 \(no answer\)"),
        (['{"problem": "a?", "answer": 1}', '{"problem": "a?", "answer": 2}'], r"nothing is left: .*line 1: 1, line 2: 2"),
    ],
)
def test_a_file_that_cannot_be_used_is_said_in_words(tmp_path: Path, lines: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        Problems({"file": written(tmp_path, *lines)})
    assert "\n" not in str(raised.value)


def test_the_split_does_not_depend_on_the_order_of_the_file(tmp_path: Path) -> None:
    rows = [{"problem": f"What is {n} + {n}?", "answer": 2 * n} for n in range(50)]

    def parts(*rows: Any) -> dict[str, list[str]]:
        env = Problems({"file": written(tmp_path, *rows)})
        assert [env.size(split) for split in ("test", "dev", "train")] == [20, 10, 20]
        return {split: [env.task(n, split).instruction for n in range(env.size(split))] for split in ("test", "dev", "train")}

    forwards, backwards = parts(*rows), parts(*rows[::-1])
    for split in forwards:
        assert forwards[split] == backwards[split][::-1]  # the same problems, each in the order of its file
    assert not set(forwards["test"]) & set(forwards["train"])


def test_a_sample_is_a_world_of_its_own(tmp_path: Path) -> None:
    rows = [{"problem": f"{n}?", "answer": n} for n in range(9)]
    env = Problems({"file": written(tmp_path, rows[0], *rows), "split": "dev", "sample": "4"})
    assert len({one.text for one in env.questions}) == 4
    with pytest.raises(UserError, match=r"dev has tasks 0 to 3, got 4"):
        env.task(4, "dev")
    with pytest.raises(UserError, match=r"test has no tasks, got 0"):
        env.task(0)


def test_a_split_without_problems_says_what_became_of_the_rows(tmp_path: Path) -> None:
    rows = [{"problem": "a?", "answer": 1}, {"problem": "b?"}]
    env = Problems({"file": written(tmp_path, *rows), "split": "test"})
    with pytest.raises(UserError, match=r"train has no tasks, got 0 \(1 questions of 2 rows; 1 without .*line 2 \(no answer\)"):
        env.task(0, "train")


def test_the_name_tells_files_apart(tmp_path: Path) -> None:
    one = Problems({"file": written(tmp_path, {"problem": "a?", "answer": 1}), "split": "test"}).name
    other = Problems({"file": written(tmp_path, {"problem": "a?", "answer": 2}), "split": "test"}).name
    again = Problems({"file": written(tmp_path, {"question": "a?", "solution": "\\boxed{1}"}), "split": "test"}).name
    assert one == again != other
    assert re.fullmatch(r"math\?file=rows-[0-9a-f]{8},split=test", one)
