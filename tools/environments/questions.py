"""Questions with one short written answer, for agents with tools: WebWalkerQA, AFM's web questions, or a file of yours.

`questions` alone has our 75 invented questions, those of `hotpot`; the tools `search` and `page` find the passages that answer them.
`questions?file=PATH` reads a JSON list, JSONL or CSV in any of these layouts, the keys in upper or lower case. A row has one answer;
rows with several are left out, as in Training-Free GRPO's code (`datasets` saves what is published: `Dataset.to_json(PATH)`).

| | question | true answer | difficulty |
|---|---|---|---|
| ours, CSV | `question` | `answer` | `difficulty` or `level` |
| WebWalkerQA (Wu et al., 2025, arXiv:2501.07572) | `question` | `answer` | `info` → `difficulty_level` |
| AFM's RL set (Li et al., 2025, arXiv:2508.13167) | `extra_info` → `question` | `extra_info` → `answer`, a list of one | |

`sample=51` draws WebWalkerQA's 160 easy, 280 medium and 240 hard questions in their proportions, 12, 21 and 18, as the paper of
Training-Free GRPO does; samples, splits, and rows that are left out: `support/question_files.py`.

One action is the whole reply. Its answer stands in `<answer>…</answer>` (`written_answer`); a reply without one gets 0.

| `score=` | the reward |
|---|---|
| `exact` (default) | 1 if the answers are equal when normalised as SQuAD and HotpotQA do it, else 0 |
| `f1` | the F1 of the words that the normalised answers share, as HotpotQA counts it: yes and no only equal themselves |
| `judge:MODEL` | 1 if a model (`judge:openai:NAME`), asked at temperature 0, finds that the answer says the true one (`data/judge.md`), else 0. A reply without tags is judged as a whole. A verdict that cannot be read is a missing reward. The judge's tokens are in no budget |
"""

import re
import string
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from string import Template
from typing import Any

from ...memory.errors import UserError
from ...memory.records import Task
from .problems import final_answer
from .support.question_files import Question, QuestionFile, lower_keys

__all__ = ["Questions"]

OWN_QUESTIONS = Path(__file__).parent / "data" / "questions.jsonl"
_JUDGE_PROMPT = Path(__file__).parent / "data" / "judge.md"
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_GRADE = re.compile(r"(?i)\bgrade\W+(correct|incorrect)\b")
_CLOSED = ("yes", "no", "noanswer")
"""Answers that share no words with others."""


def normalise_answer(answer: str) -> str:
    """An answer in the form in which answers are compared: lower case, no ASCII punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, right: str) -> bool:
    """True if two answers are the same after normalisation."""
    return normalise_answer(answer) == normalise_answer(right)


def word_f1(answer: str, right: str) -> float:
    """The harmonic mean of precision and recall of an answer's words, after normalisation, in [0, 1]."""
    one, other = normalise_answer(answer), normalise_answer(right)
    if one == other or one in _CLOSED or other in _CLOSED:
        return float(one == other)
    shared = sum((Counter(one.split()) & Counter(other.split())).values())
    return 2 * shared / (len(one.split()) + len(other.split()))


@lru_cache(maxsize=2)
def _open_judge(name: str) -> Any:
    from ..models.models import open_model

    return open_model(name, temperature=0.0)


_OPEN = re.compile(r"(?i)<answer>")
_CLOSE = re.compile(r"(?i)</answer>")
_LINE = re.compile(r"(?im)^[\s>#*_`-]*(?:the\s+)?(?:final\s+)?answer[*_`]*\s*[:：][*_`]*")


def written_answer(reply: str) -> str | None:
    """The answer in a reply, None if it has none: the last `<answer>…</answer>` (which need not be closed at the end), else the last
    `\\boxed{…}`, else what stands after the last line that begins with `Answer:`."""
    reply = reply.rpartition("</think>")[2].partition("<think>")[0]  # what was thought is no part of the reply
    tags = list(_OPEN.finditer(reply))
    for tag in reversed(tags[-20:]):
        inside = _CLOSE.split(reply[tag.end() :], maxsplit=1)[0].strip()
        if inside:
            return (final_answer(inside) or inside) if inside.lstrip("$ ").startswith("\\boxed") else inside
    if re.search(r"\\(?:boxed|fbox)", reply) and (boxed := final_answer(reply)):
        return boxed
    lines = list(_LINE.finditer(reply))
    return (reply[lines[-1].end() :].strip() or None) if lines else None


class Questions(QuestionFile):
    """An environment of questions with one written answer each."""

    asked = "an answer between <answer> and </answer>"
    missing = "no answer: it belongs between <answer> and </answer>"
    own = OWN_QUESTIONS
    layout = (
        "expected are question, answer and, if it is known, difficulty, in a JSON list, one object in each line, or a CSV table"
    )
    request = "At the end, write the answer alone, in as few words as it takes, between <answer> and </answer>."

    def __init__(self, settings: Mapping[str, str] | None = None, horizon: int = 1) -> None:
        settings = settings or {}
        self.score, _, self._judge_name = settings.get("score", "exact").partition(":")
        if self.score not in ("exact", "f1", "judge") or bool(self._judge_name) != (self.score == "judge"):
            raise UserError(
                f"questions: score is exact, f1 or judge:MODEL such as judge:openai:NAME, got {settings['score']!r}"
            )
        super().__init__("questions", settings, horizon, ("score",))
        self.instant = self.score != "judge"
        self._grade = lru_cache(maxsize=None)(self._ask_judge)

    def _read_row(self, fields: Mapping[str, Any], where: str) -> Question | None:
        found = {**lower_keys(fields.get("extra_info")), **lower_keys(fields.get("info")), **fields}
        if "question" not in found:
            return None
        answer, level = found.get("answer"), next(filter(None, map(found.get, ("difficulty", "difficulty_level", "level"))), "")
        if isinstance(answer, list) and len(answer) == 1:
            answer = answer[0]
        plain = str(answer).strip() if isinstance(answer, str | int | float) and answer == answer else ""
        return Question(
            str(found["question"] or "").strip(), plain if normalise_answer(plain) else "", where, str(level).lower()
        )

    def _agree(self, one: str, other: str) -> bool:
        return exact_match(one, other)

    def _read_answer(self, reply: str) -> str | None:
        visible = reply.rpartition("</think>")[2].strip() if self.score == "judge" else ""
        return written_answer(reply) or visible or None

    def _judge(self, task: Task, answer: str) -> tuple[float | None, str]:
        question = self.question(task)
        match self.score:
            case "exact":
                reward: float | None = float(exact_match(answer, question.answer))
            case "f1":
                reward = word_f1(answer, question.answer)
            case _:
                reward = self._grade(question.text, question.answer, answer)
        if reward is None:
            return None, f"the reply of the judge {self._judge_name} has no line GRADE: CORRECT or GRADE: INCORRECT"
        return reward, "" if reward == 1 else f"wrong, scored {reward:g}: the answer read is {answer}"

    def _ask_judge(self, question: str, right: str, response: str) -> float | None:
        prompt = Template(_JUDGE_PROMPT.read_text(encoding="utf-8")).substitute(
            question=question, answer=right, response=response
        )
        said = _open_judge(self._judge_name).invoke(prompt).text
        grades = _GRADE.findall(said.replace("*", ""))
        return float(grades[-1].lower() == "correct") if grades else None

    def answer(self, text: str) -> str:
        """The normalised answer in a reply, which no lesson may tell; empty without one."""
        return normalise_answer(written_answer(text) or "")

    def bare_answer(self, task: Task) -> str:
        """The answer alone: a lesson that tells it is no lesson."""
        return self.question(task).answer

    def solution(self, task: Task) -> tuple[str, ...]:
        """The true answer in its tags."""
        return (f"<answer>{self.question(task).answer}</answer>",)
