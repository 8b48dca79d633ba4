r"""Math problems with one final answer, checked by math-verify: our own small set, or a file.

One action is the whole written solution. Its final answer counts, which is read by these rules:

- in `\boxed{…}`; of several boxes the last one that is not empty. Boxes that hang together (`\boxed{2} and \boxed{3}`) are one
  answer with several parts: a choice of answers is not an answer.
- without a box, in a line that begins with `Answer:` or `Final answer:`, or in `<answer>…</answer>`; the last of them.
- otherwise there is none, and the reward is 0, whatever numbers the text contains: "We have 42 cases. So 41 + 1." does not
  answer 42, though math-verify by itself would read it so. A box counts before every number after it. Text between `<think>` and
  `</think>` is no part of the solution, nor is text after a `<think>` that is never closed.

The answer is right (reward 1) if math-verify (Kydlíček, 2024) finds it equal to the true one, else the reward is 0. It reads LaTeX
and compares as SymPy does, decimals to 6 places (0.333333 is 1/3). If it raises or is not done in 5 seconds of computing time,
the reward is None and the observation says why, because the worth of the answer is unknown. An empty solution has reward None too.

Sources of the problems, named in the environment's name:

- `math`: 120 plain exercises of ours (`data/math.jsonl`: 15 kinds of 8, drawn by rule). Nothing measured on them can be compared with published numbers.
- `math?file=PATH`: JSONL, one object in each line (or one JSON list), in any of these layouts, in upper or lower case:

  | | problem | true answer |
  |---|---|---|
  | MATH, AIME | `problem` | `answer`, or the last box of `solution` |
  | GSM8K | `question` | what follows `####` in `answer` |
  | DAPO | `prompt`: a chat; the wrapper around the problem is taken off | `reward_model` → `ground_truth` |

Samples, splits, and rows that are left out: `support/question_files.py`.
"""

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...memory.errors import UserError
from ...memory.records import Task
from .support.question_files import Question, QuestionFile
from .support.verifying import Unverified, Workers

__all__ = ["Problems"]

_LONGEST = 1000
"""Longest final answer, in characters."""


# The final answer of a written solution

_BOX = re.compile(r"\\+(?:boxed|fbox)\s*(?P<brace>\{)?")
_MOST_BOXES = 50
_TOGETHER = re.compile(r"[\s$]*(?:,|;|,?\s*\b(?:and|or)\b)[\s$]*")
_BARE = re.compile(r"[^\s{}$]+")
_LINE = re.compile(r"(?im)^[\s>#*_`-]*(?:the\s+)?(?:final\s+)?answer[*_`]*\s*[:：][*_`]*[^\S\n]*(\S.*)$")
_TAG = re.compile(r"(?is)<answer>(.*?)</answer>")
_AROUND = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"), ('"', '"'))


def final_answer(solution: str) -> str | None:
    r"""The final answer of a written solution, by the rule above; None if it has none.

    Markup around it ($, \(, **, a full stop) is removed; otherwise it stays as written.
    """
    solution = solution.rpartition("</think>")[2].partition("<think>")[0]
    boxes = _boxes(solution)
    if boxes:
        parts = [boxes[-1]]
        for box in reversed(boxes[:-1]):
            if not _TOGETHER.fullmatch(solution[box[1] : parts[0][0]]):
                break
            parts.insert(0, box)
        return ", ".join(part[2] for part in parts)
    said = [found for found in (_bare(match[1]) for match in (*_LINE.finditer(solution), *_TAG.finditer(solution))) if found]
    return said[-1] if said else None


def _boxes(text: str) -> list[tuple[int, int, str]]:
    """The last boxes that are closed and not empty, in order: (start, end, content)."""
    found = []
    for match in list(_BOX.finditer(text))[-_MOST_BOXES:]:
        if match["brace"]:
            end = _closing(text, match.end())
        else:  # \boxed 5
            word = _BARE.match(text, match.end())
            end = word.end() if word else None
        if end is not None and (content := _bare(text[match.end() : end])):
            found.append((match.start(), end + bool(match["brace"]), content))
    return found


def _closing(text: str, start: int) -> int | None:
    """The position where the brace that was opened just before `start` closes; None if it does not."""
    depth, at = 1, start
    while at < len(text):
        match text[at]:
            case "\\":
                at += 1  # \{ is no brace
            case "{":
                depth += 1
            case "}":
                depth -= 1
                if depth == 0:
                    return at
        at += 1
    return None


def _bare(text: str) -> str:
    """An answer without the markup around it."""
    before, text = "", text.strip()
    while text != before:
        before = text
        text = re.sub(r"(?<!\\)[.,;]$", "", text).strip()
        if text.startswith("{") and _closing(text, 1) == len(text) - 1:
            text = text[1:-1].strip()
        for left, right in _AROUND:
            inside = text[len(left) : len(text) - len(right)]
            if text.startswith(left) and text.endswith(right) and len(text) > len(left + right) and left not in inside:
                text = inside.strip()
        if (boxes := _boxes(text)) and boxes[-1][:2] == (0, len(text)):
            text = boxes[-1][2]
    return text


# The environment


class Problems(QuestionFile):
    """An environment of math problems."""

    workers: Workers
    asked = "a solution with its final answer in \\boxed{}"
    missing = "no final answer: it belongs in \\boxed{}, or in a line that begins with Answer:"
    own = Path(__file__).parent / "data" / "math.jsonl"
    layout = (
        "expected are problem, question or prompt, and answer, solution or reward_model.ground_truth, in a JSON list, one object in "
        "each line, or a CSV table"
    )
    request = "Reason step by step, and put the final answer in \\boxed{}."

    def __init__(self, settings: Mapping[str, str] | None = None, horizon: int = 1) -> None:
        if find_spec("math_verify") is None:
            raise UserError("math: answers are checked by math-verify: pip install math-verify")
        self.workers = Workers()
        super().__init__("math", settings or {}, horizon)

    def _read_row(self, fields: Mapping[str, Any], where: str) -> Question | None:
        asked = [fields[key] for key in ("problem", "question", "prompt") if key in fields]
        if not asked:
            return None
        given = [fields.get(key) for key in ("answer", "solution", "final_answer", "ground_truth")]
        model = fields.get("reward_model")
        given.append(model.get("ground_truth") if isinstance(model, Mapping) else None)
        plain, solution = _answer(given[0]), _boxed_answer(given[1])
        answer = plain or solution or next(filter(None, map(_answer, given[2:])), "")
        return Question(next(filter(None, map(_text, asked)), ""), answer, where, str(fields.get("level", "")))

    def _read_answer(self, reply: str) -> str | None:
        return final_answer(reply)

    def _judge(self, task: Task, answer: str) -> tuple[float | None, str]:
        if len(answer) > _LONGEST:
            return 0.0, f"wrong: a final answer has at most {_LONGEST} characters"
        return self._compare(self.question(task).answer, answer)

    def answer(self, text: str) -> str:
        r"""The final answer of a written solution in a form that is the same for 1/2, 0.5 and \frac{1}{2}; empty without one.

        Without ground truth, no lesson may tell such an answer of an attempt. Equal answers that SymPy does not bring into one form
        (0.333333 and 1/3, say) differ. An answer that cannot be parsed stays as written.
        """
        answer = final_answer(text)
        if answer is None:
            return ""
        try:
            normal, why = self.workers.answer("normal", answer=answer[:_LONGEST])
        except Unverified as cause:
            normal, why = None, str(cause)
        return " ".join(answer[:_LONGEST].split()) if why else str(normal)

    def solution(self, task: Task) -> tuple[str, ...]:
        """The true answer in its box, without a solution."""
        return (f"\\boxed{{{self.question(task).answer}}}",)

    def _agree(self, one: str, other: str) -> bool:
        try:
            return self._compare(one, other)[0] == 1
        except Unverified:
            return False

    def _compare(self, gold: str, answer: str) -> tuple[float | None, str]:
        equal, why = (True, "") if gold == answer else self.workers.answer("equal", gold=gold, answer=answer)
        return (None, why) if equal is None else (float(equal), "" if equal else f"wrong: the answer read is {answer}")


# Rows


_WRAPPED = re.compile(
    r"(?s)\s*Solve the following math problem step by step\. The last line of your response should be of the form Answer:"
    r"[^\n]*\n+(?P<problem>.*?)\s*(?:Remember to put your answer on its own line after \"?Answer:\"?\.?\s*)?"
)


def _text(asked: Any) -> str:
    """The text of a problem: of a chat the last user message, without DAPO's wrapper around it."""
    if isinstance(asked, Sequence) and not isinstance(asked, str):
        turns = [turn for turn in asked if isinstance(turn, Mapping) and isinstance(turn.get("content"), str)]
        users = [turn["content"] for turn in turns if turn.get("role", "user") == "user"]
        asked = users[-1] if users else ""
    if not isinstance(asked, str):
        return ""
    wrapped = _WRAPPED.fullmatch(asked)
    return (wrapped["problem"] if wrapped else asked).strip()


def _answer(given: Any) -> str:
    """A true answer as a text; empty if it is none."""
    if isinstance(given, list | tuple) and len(given) == 1:
        given = given[0]
    if isinstance(given, float) and given.is_integer():
        given = int(given)
    if isinstance(given, int | float) and not isinstance(given, bool):
        return str(given) if given == given else ""  # pandas writes a missing number as NaN
    if not isinstance(given, str):
        return ""
    if "####" in given:
        return given.rpartition("####")[2].strip().replace(",", "")
    return _boxed_answer(given) or _bare(given)


def _boxed_answer(solution: Any) -> str:
    if not isinstance(solution, str) or not _boxes(solution):
        return ""
    return final_answer(solution) or ""
