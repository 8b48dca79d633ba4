"""Game of 24: make 24 from four numbers, each used once, with + - * /. An exact verifier, and exact rewards by rule.

An episode has four steps: three operations, each of which joins two of the numbers left into one, and the answer.

| action | in the short form | also read |
|---|---|---|
| operation | `4 + 6 = 10`, `1 / 3 = 1/3`, `4 - 6 = -2` | `Step 1: 4 + 6 = 10 (left: 5 10 10)`, × ÷ − , exact decimals |
| answer | `Answer: (10 - 4) * (5 - 1) = 24` | any case; `= 24` may be left out |

What becomes of an action:

- A right operation is carried out. Whatever its line says in brackets about the numbers left is not read.
- A wrong one (another result, a number that is not left, a division by 0) changes nothing and costs its step; the
  observation says what is wrong. It does not end the episode, because the truth is about the answer alone, as published:
  an expression that makes 24 counts, also after a slip on the way.
- An answer ends the episode, whenever it comes: reward 1 if its expression is verified, else 0. So the score is 0 or 1.
- A line that can be read as neither ends the episode, with reward None: nobody can say what it was worth.

`verify` pays by rule, step by step (Song et al., 2025, arXiv:2506.06303, have the model judge on the same scale): 3 for an
operation after which 24 can be reached through whole numbers, 1 if only through fractions, 0 if not at all or if the
operation is wrong; 10 or 0 for the answer. A solution pays at most 19.

Puzzles: the 1,362 of the 1,820 multisets of four numbers from 1 to 13 that have a solution. Ranks are counted from 0; `test`
has 900 to 999, `dev` 800 to 899, `train` all others, shuffled; the five demonstrations are in none. There are two orders,
and the environment's name tells which is used:

- `game24?order=published`: that of the Tree of Thoughts package, by the time that people took. Its rows 900 to 999 are the
  published test. Used when the package is installed or `csv=PATH` names its file. There a player who picks listed actions
  at random scores .005 (standard error .0008; 100 episodes on each puzzle).
- `game24?order=difficulty`: ours, by `difficulty`, a rule with 8 weights. Its rank correlation with the published order
  is .70, but its test range shares only 12 puzzles with the published one: no substitute for published numbers. Random .003.
"""

from __future__ import annotations

import csv
import hashlib
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, lru_cache
from itertools import combinations, combinations_with_replacement
from pathlib import Path
from typing import Any

from ...memory.errors import UserError
from ...memory.records import Observation, Task
from .tree_of_thoughts import INSTALL, tree_of_thoughts_file

__all__ = [
    "DEMONSTRATIONS",
    "HORIZON",
    "TARGET",
    "Game24",
    "demonstration",
    "difficulty",
    "game24_file_text",
    "reachable",
    "refusal",
]

Puzzle = tuple[int, int, int, int]
"""Four numbers from 1 to 13, ascending."""
Numbers = tuple[Fraction, ...]
"""Numbers left, ascending."""

TARGET = 24
HORIZON = 4
DEMONSTRATIONS: tuple[Puzzle, ...] = ((4, 4, 6, 8), (2, 9, 10, 12), (1, 4, 8, 8), (5, 5, 5, 9), (3, 5, 7, 11))
"""The puzzles solved in the instruction, in no split of either order. Four are those of the paper's prompt; its fifth is a row
of the published test, so that its solution leaks, and is replaced."""

_FILE = Path(__file__).with_name("game24.txt")
_TEST, _DEV = range(900, 1000), range(800, 900)
_PUBLISHED = "0582618aea29faae"
"""Digest of the published order, so that a file is called published for what it holds."""


# The numbers: what can be done with them, and whether 24 can be reached


def _combine_pair(a: Fraction, b: Fraction) -> Iterator[tuple[str, Fraction, Fraction, Fraction]]:
    """All ways to join two numbers, as (operator, left, right, result)."""
    yield "+", a, b, a + b
    yield "*", a, b, a * b
    yield "-", a, b, a - b
    yield "-", b, a, b - a
    if b:
        yield "/", a, b, a / b
    if a:
        yield "/", b, a, b / a


def _operations(numbers: Numbers) -> Iterator[tuple[str, Fraction, Fraction, Fraction, Numbers]]:
    """All operations on two of the numbers left, as (operator, left, right, result, the numbers left after it)."""
    for i, j in combinations(range(len(numbers)), 2):
        others = (*numbers[:i], *numbers[i + 1 : j], *numbers[j + 1 :])
        for operator, a, b, result in _combine_pair(numbers[i], numbers[j]):
            yield operator, a, b, result, tuple(sorted((*others, result)))


@lru_cache(maxsize=65536)
def reachable(numbers: Numbers, whole: bool = False) -> bool:
    """Whether 24 can be made of all these numbers; with `whole`, of whole numbers (negative ones too) through such only.

    Args:
        numbers: what is left, ascending.
        whole: whether fractions are forbidden on the way.
    """
    if whole and any(number.denominator != 1 for number in numbers):
        return False
    if len(numbers) == 1:
        return numbers[0] == TARGET
    return any(reachable(after, whole) for *_, after in _operations(numbers))


def difficulty(puzzle: Puzzle) -> float:
    """How hard a puzzle is by rule: the soft minimum (temperature 1.5) of the costs of its solutions; inf without any.

    A solution costs, for each operation: `-` 1; `*` or `/` by 1: -3; `*` up to 24: 2, above: 3; `/` that leaves a fraction: 9;
    and for the last one besides: `*` -2, `-` +1, `/` +5. Weights fitted to the published order and rounded.
    """
    weight = _weight(tuple(Fraction(number) for number in puzzle))
    return -_TEMPERATURE * math.log(weight) if weight else math.inf


_TEMPERATURE = 1.5
_LAST = {"+": 0, "-": 1, "*": -2, "/": 5}


@lru_cache(maxsize=131072)
def _weight(numbers: Numbers) -> float:
    """The sum over all ways to 24 of exp(-cost / temperature)."""
    if len(numbers) == 1:
        return float(numbers[0] == TARGET)
    total = 0.0
    for operator, a, b, result, after in _operations(numbers):
        if rest := _weight(after):
            cost = _cost(operator, a, b, result) + (_LAST[operator] if len(numbers) == 2 else 0)
            total += rest * math.exp(-cost / _TEMPERATURE)
    return total


def _cost(operator: str, a: Fraction, b: Fraction, result: Fraction) -> int:
    match operator:
        case "+":
            return 0
        case "-":
            return 1
        case "*" if 1 not in (a, b):
            return 2 if result <= TARGET else 3
        case "/" if b != 1:
            return 0 if result.denominator == 1 else 9
        case _:
            return -3


def game24_file_text() -> str:
    """What `game24.txt` holds, worked out: every solvable puzzle on a line of its own, by difficulty. Takes seconds."""
    rated = {puzzle: difficulty(puzzle) for puzzle in combinations_with_replacement(range(1, 14), 4)}
    # Rounded, so that the last bit of a logarithm does not decide between equals.
    order = sorted((round(cost, 6), puzzle) for puzzle, cost in rated.items() if cost < math.inf)
    return "".join(_numbers_text(puzzle) + "\n" for _, puzzle in order)


@cache
def _by_difficulty() -> tuple[Puzzle, ...]:
    return tuple(_four(line) for line in _FILE.read_text(encoding="utf-8").splitlines())


@cache
def _solvable() -> frozenset[Puzzle]:
    return frozenset(_by_difficulty())


# Text: numbers, operations, answers


def _numbers_text(numbers: Sequence[Fraction | int]) -> str:
    return " ".join(str(number) for number in numbers)


def _four(text: str) -> Puzzle:
    """Four numbers from 1 to 13, from a text like `4 5 6 10`."""
    words = text.replace(",", " ").split()
    if len(words) != 4 or not all(re.fullmatch("[0-9]{1,2}", word) and 1 <= int(word) <= 13 for word in words):
        raise UserError(f"game24: {text!r} is no puzzle: four numbers from 1 to 13, e.g. '4 5 6 10'")
    a, b, c, d = sorted(int(word) for word in words)
    return a, b, c, d


@lru_cache(maxsize=4096)
def _puzzle(text: str) -> Puzzle:
    """A puzzle that somebody typed, known to have a solution."""
    puzzle = _four(text)
    if puzzle not in _solvable():
        raise UserError(f"game24: {_numbers_text(puzzle)} cannot make 24; of the 1,820 puzzles 1,362 can, e.g. '4 5 6 10'")
    return puzzle


_GLYPHS = str.maketrans(
    {
        **dict.fromkeys("×✕✖⋅·∙∗＊", "*"),
        **dict.fromkeys("÷∕⁄／", "/"),
        **dict.fromkeys("−–—‒﹣－", "-"),
        "＋": "+",
        "＝": "=",
        "：": ":",
        "（": "(",
        "）": ")",
        "\u00a0": " ",
    }
)
_LATEX = {r"\times": "*", r"\cdot": "*", r"\div": "/", r"\(": "", r"\)": "", "$": ""}
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,80}>")
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_TIMES = re.compile(r"(?<=[0-9)])( ?)[xX](?= ?[0-9(])")
_PREFIX = re.compile(r"(?:[>#*_`•\s]|-\s)*(?:(?:step\s*[0-9]+|[0-9]+(?=[.):]\s))[*_]*\s*[:.)-]?[*_\s]*)?", re.IGNORECASE)
_ANSWER = re.compile(r"(?:final )?answer ?(?:is ?)?:[*_ ]*(.*)", re.IGNORECASE)
_OPERATION = re.compile(r"([-+*/().0-9 ]+?) ?(?:=|->|→) ?\(?(-?[0-9][0-9./]*)\)?(.*)")
_TAIL = re.compile(r"[.,;:]?(?: ?(?:[(\[,;]|->|→|left|remaining).*)?", re.IGNORECASE)
_NUMBER = re.compile(r"-?[0-9]{1,9}(?:\.[0-9]{1,6})?(?:/[0-9]{1,9})?")
_LONGEST_LINE = 300


def _clean(line: str) -> str:
    """A line without tags, markup, list marks and `Step 1:`, in plain operators and single spaces."""
    line = _TAG.sub(" ", line[: 2 * _LONGEST_LINE]).translate(_GLYPHS)
    for written, plain in _LATEX.items():
        line = line.replace(written, plain)
    line = _TIMES.sub(r"\1*", " ".join(_BOXED.sub(r"\1", line).split()))
    line = line[_PREFIX.match(line).end() :]  # type: ignore[union-attr]  # it matches the empty text too
    return line.rstrip("*_` ")


@lru_cache(maxsize=4096)
def _number(text: str) -> Fraction | None:
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    if not _NUMBER.fullmatch(text):
        return None
    above, _, below = text.partition("/")
    if not below:
        return Fraction(above)
    return Fraction(above) / int(below) if int(below) else None


@dataclass(frozen=True, slots=True)
class _Operation:
    """An operation as somebody wrote it: right or wrong."""

    a: Fraction
    operator: str
    b: Fraction
    claimed: Fraction

    @property
    def result(self) -> Fraction | None:
        """What it really makes; None for a division by 0."""
        match self.operator:
            case "+":
                return self.a + self.b
            case "-":
                return self.a - self.b
            case "*":
                return self.a * self.b
            case _:
                return self.a / self.b if self.b else None

    def __str__(self) -> str:
        return f"{self.a} {self.operator} {self.b} = {self.claimed}"


def _operations_in(line: str) -> list[_Operation]:
    """The operations that a cleaned line can be read as: none, one, or two (`1/3/2=1/6` is 1/3 by 2, or 1 by 3/2)."""
    found = _OPERATION.fullmatch(line) if len(line) <= _LONGEST_LINE else None
    if not found or not _TAIL.fullmatch(found[3]):
        return []
    left, claimed = found[1].strip(), _number(found[2].rstrip("."))
    if left.startswith("(") and left.endswith(")") and left.count("(") == 1:
        left = left[1:-1].strip()
    readings = []
    for at, sign in enumerate(left):
        if sign in "+-*/" and at and claimed is not None:
            a, b = _number(left[:at]), _number(left[at + 1 :])
            if a is not None and b is not None:
                readings.append(_Operation(a, sign, b, claimed))
    return readings


class _Refused(Exception):
    """Why an expression is not accepted, in words."""


class _Unreadable(_Refused):
    """It is not an expression."""


_MAKES_24 = re.compile(r"24(?![0-9])(?!\s*[-+*/.,^]+\s*[0-9])")
_LONGEST_EXPRESSION = 120
_DEEPEST = 12


def refusal(answer: str, puzzle: Sequence[int]) -> str:
    """Why an answer is not a solution, in words; empty if it is one.

    What stands before the first `=` is the expression: whole numbers, + - * / and brackets, no sign in front of a number,
    no powers, no decimals. It is read by a grammar of our own, never by an evaluator of code, worked out in SymPy's rational
    numbers, and must make 24 and use exactly the numbers of the puzzle. After the last `=`, if there is one, stands 24.

    Args:
        answer: e.g. `(10 - 4) * (5 - 1) = 24`.
        puzzle: the numbers to be used.
    """
    try:
        _check(answer, puzzle)
    except _Refused as why:
        return str(why)
    return ""


def _check(answer: str, puzzle: Sequence[int]) -> None:
    if not answer.strip():
        raise _Unreadable("no expression was given")
    expression, equals, said = answer.partition("=")
    said = said.rpartition("=")[2].strip()
    value, used = _Expression(expression.strip()).read()
    if sorted(used) != sorted(puzzle):
        raise _Refused(f"it uses {_numbers_text(sorted(used))}, the numbers are {_numbers_text(sorted(puzzle))}")
    if value != TARGET:
        raise _Refused(f"it makes {value}, not {TARGET}")
    if equals and not _MAKES_24.match(said):
        raise _Refused(f"it makes {TARGET}, but {said!r} is said to come out")


class _Expression:
    """Reads an expression by the grammar sum = product {+- product}, product = atom {*/ atom}, atom = number | ( sum )."""

    def __init__(self, text: str) -> None:
        from sympy import Rational  # type: ignore[import-untyped]  # half a second to import, and needed for answers only

        if len(text) > _LONGEST_EXPRESSION:
            raise _Unreadable(f"an expression has at most {_LONGEST_EXPRESSION} characters, this one has {len(text)}")
        self.rational = Rational
        self.tokens: list[str] = re.findall(r"[0-9]+|\S", text)
        self.at = 0
        self.depth = 0
        self.used: list[int] = []

    def read(self) -> tuple[Any, list[int]]:
        """Its value, a SymPy rational, and the whole numbers in it, in order."""
        value = self._sum()
        if self.at < len(self.tokens):
            raise _Unreadable(f"{self.tokens[self.at]!r} is not expected {self._where()}")
        return value, self.used

    def _where(self) -> str:
        return f"after {' '.join(self.tokens[: self.at])!r}" if self.at else "at its start"

    def _next(self, among: str) -> str:
        if self.at < len(self.tokens) and self.tokens[self.at] in among:
            self.at += 1
            return self.tokens[self.at - 1]
        return ""

    def _sum(self) -> Any:
        value = self._product()
        while sign := self._next("+-"):
            term = self._product()
            value = value + term if sign == "+" else value - term
        return value

    def _product(self) -> Any:
        value = self._atom()
        while sign := self._next("*/"):
            factor = self._atom()
            if sign == "/" and factor == 0:
                raise _Refused("it divides by 0")
            value = value * factor if sign == "*" else value / factor
        return value

    def _atom(self) -> Any:
        if self._next("("):
            self.depth += 1
            if self.depth > _DEEPEST:
                raise _Unreadable(f"brackets may be {_DEEPEST} deep, these are deeper")
            value = self._sum()
            if not self._next(")"):
                raise _Unreadable(f"a closing bracket is missing {self._where()}")
            self.depth -= 1
            return value
        token = self.tokens[self.at] if self.at < len(self.tokens) else ""
        if not re.fullmatch("0|[1-9][0-9]{0,3}", token):
            came = repr(token[:20]) if token else "nothing"
            raise _Unreadable(f"a whole number or an opening bracket is expected {self._where()}, {came} came")
        self.at += 1
        self.used.append(int(token))
        return self.rational(int(token))


# The game


@dataclass(frozen=True, slots=True)
class _Term:
    """A number left, with the expression that made it."""

    value: Fraction
    text: str
    binds: int = 3
    """How tightly its outermost operator binds: 1 for + and -, 2 for * and /, 3 for a bare number."""

    def join(self, operator: str, other: _Term, value: Fraction) -> _Term:
        binds = 1 if operator in "+-" else 2
        left = self.text if self.binds >= binds else f"({self.text})"
        tight = other.binds > binds or (other.binds == binds and operator in "+*")
        return _Term(value, f"{left} {operator} {other.text if tight else f'({other.text})'}", binds)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What became of one action."""

    left: tuple[_Term, ...]
    """Ascending by value."""
    reward: float | None = 0.0
    worth: float | None = 0.0
    """r: what the rule pays for it."""
    over: bool = False
    said: str = ""
    """What there is to say of it beside the numbers left."""

    @property
    def numbers(self) -> Numbers:
        return tuple(term.value for term in self.left)


def _short(operator: str, a: Fraction, b: Fraction, result: Fraction) -> str:
    if operator in "+*" and b < a:
        a, b = b, a
    return f"{a} {operator} {b} = {result}"


def _admissible(turn: _Turn) -> tuple[str, ...]:
    if len(turn.left) == 1:
        return (f"Answer: {turn.left[0].text} = {turn.left[0].value}",)
    return _steps(turn.numbers)


@lru_cache(maxsize=4096)
def _steps(numbers: Numbers) -> tuple[str, ...]:
    return tuple(sorted({_short(operator, a, b, result) for operator, a, b, result, _ in _operations(numbers)}))


def _take(before: _Turn, action: str, puzzle: Puzzle) -> _Turn:
    """Carry out one action, or say what is wrong with it."""
    lines = [line for line in action.splitlines() if line.strip()]
    line = _clean(lines[0]) if len(lines) == 1 else ""
    left = before.left
    if answer := _ANSWER.fullmatch(line):
        try:
            _check(answer[1], puzzle)
        except _Unreadable as why:  # nothing can be said of its worth
            return _Turn(left, None, None, True, f"cannot be read: {why}")
        except _Refused as why:
            return _Turn(left, 0.0, 0.0, True, f"wrong: {why}")
        return _Turn(left, 1.0, 10.0, True, "right: 24")
    readings = _operations_in(line)
    if not readings:
        said = "this cannot be read: a step is like `4 + 6 = 10`, the end like `Answer: 4 * 6 = 24`"
        return _Turn(left, None, None, True, said)
    outcomes = [_carry_out(before, reading) for reading in readings]
    done = [outcome for outcome in outcomes if isinstance(outcome, _Turn)]
    return done[0] if done else _Turn(left, said=f"wrong, nothing done: {outcomes[0]}")


@lru_cache(maxsize=4096)
def _turns(puzzle: Puzzle, actions: tuple[str, ...]) -> tuple[_Turn, ...]:
    """The start, and what became of each action; kept, because the next question is about one action more."""
    if not actions:
        return (_start(puzzle),)
    before = _turns(puzzle, actions[:-1])
    return (*before, _take(before[-1], actions[-1], puzzle))


def _carry_out(before: _Turn, operation: _Operation) -> _Turn | str:
    """What an operation leads to, or what is wrong with it."""
    left, operands = list(before.left), list[_Term]()
    for number in (operation.a, operation.b):
        at = next((at for at, term in enumerate(left) if term.value == number), None)
        if at is None:
            return f"{number} is not left" + (" twice" if number in before.numbers else "")
        operands.append(left.pop(at))
    result = operation.result
    if result is None or result != operation.claimed:
        right = "cannot be" if result is None else f"is {result}, not {operation.claimed}"
        return f"{operation.a} {operation.operator} {operation.b} {right}"
    left.append(operands[0].join(operation.operator, operands[1], result))
    left.sort(key=lambda term: term.value)
    after = _Turn(tuple(left))
    return replace(after, worth=3.0 if reachable(after.numbers, True) else 1.0 if reachable(after.numbers) else 0.0)


def _solve(puzzle: Puzzle) -> tuple[str, ...]:
    """The first solution found: through whole numbers if there is one, positive ones if it can."""
    turn, actions = _start(puzzle), tuple[str, ...]()
    whole = reachable(turn.numbers, True)
    while len(turn.left) > 1:
        open_ways = [
            (result < 0, result.denominator, abs(result), _short(operator, a, b, result))
            for operator, a, b, result, after in _operations(turn.numbers)
            if reachable(after, whole)
        ]
        actions += (min(open_ways)[-1],)
        turn = _take(turn, actions[-1], puzzle)
    return (*actions, *_admissible(turn))


def _start(puzzle: Puzzle) -> _Turn:
    return _Turn(tuple(_Term(Fraction(number), str(number)) for number in puzzle))


@lru_cache(maxsize=64)
def demonstration(puzzle: Puzzle) -> str:
    """A puzzle with a solution, written as an answer should be: five lines."""
    turn, lines = _start(puzzle), [f"Numbers: {_numbers_text(puzzle)}"]
    *steps, answer = _solve(puzzle)
    for number, action in enumerate(steps, 1):
        turn = _take(turn, action, puzzle)
        lines.append(f"Step {number}: {action} (left: {_numbers_text(turn.numbers)})")
    return "\n".join((*lines, answer))


class Game24:
    """The Game of 24 as an environment.

    Args:
        settings: `order` (published or difficulty), `csv` (the path of a file like the package's 24.csv, in its order),
            `puzzle` (four numbers: the only task there is) and `demos` (how many solved puzzles the instruction shows,
            0 to 5, default 5).
        horizon: steps after which the episode ends; a solution needs 4, or 1 if it is only the answer.
    """

    instant = True
    solved = 1.0
    """The score from which a puzzle counts as solved."""

    def __init__(self, settings: Mapping[str, str] | None = None, horizon: int = HORIZON) -> None:
        settings = settings or {}
        if horizon < 1:
            raise UserError(f"game24: horizon must be at least 1, got {horizon}")
        if "puzzle" in settings and settings.keys() & {"order", "csv"}:
            raise UserError("game24: either puzzle=… or order=… and csv=…, not both")
        demos = settings.get("demos", str(len(DEMONSTRATIONS)))
        if not re.fullmatch("[0-5]", demos):
            raise UserError(f"game24: demos must be a number from 0 to {len(DEMONSTRATIONS)}, got {demos!r}")
        self.horizon = horizon
        self.demos = int(demos)
        self.only = _puzzle(settings["puzzle"]) if "puzzle" in settings else None
        self.order, source = self._load_puzzles(settings)
        if self.only:
            source = f"puzzle={_numbers_text(self.only)}"
        self.name = f"game24?{source}" + (f",demos={demos}" if self.demos != len(DEMONSTRATIONS) else "")
        taught = set(DEMONSTRATIONS)
        rest = [row for n, row in enumerate(self.order) if n not in _TEST and n not in _DEV]
        random.Random("game24 train").shuffle(rest)
        self._splits: Mapping[str, tuple[Puzzle, ...]] = {
            split: tuple(row for row in rows if row not in taught)
            for split, rows in (
                ("train", rest),
                ("dev", [self.order[n] for n in _DEV]),
                ("test", [self.order[n] for n in _TEST]),
            )
        }

    @staticmethod
    def _load_puzzles(settings: Mapping[str, str]) -> tuple[tuple[Puzzle, ...], str]:
        """The puzzles in the order asked for, and what the environment's name says of it."""
        order, given = settings.get("order", ""), settings.get("csv", "")
        if order not in ("", "published", "difficulty"):
            raise UserError(f"game24: no order {order!r}; there are published, difficulty")
        if order == "difficulty" and given:
            raise UserError("game24: order=difficulty needs no csv; leave out one of the two")
        path = Path(given) if given else None if order == "difficulty" else tree_of_thoughts_file("24/24.csv")
        if path is None:
            if order == "published":
                raise UserError(f"game24: the published order needs `{INSTALL}`, or its 24.csv as csv=PATH")
            return _by_difficulty(), "order=difficulty"
        rows = _from_csv(path)
        digest = hashlib.sha256("\n".join(map(_numbers_text, rows)).encode()).hexdigest()
        if digest.startswith(_PUBLISHED):
            return rows, "order=published"
        if order == "published":
            raise UserError(
                f"game24: {path} does not hold the published order; without order=published it is used all the same"
            )
        return rows, f"csv={path.stem}-{digest[:8]}"

    def task(self, seed: int, split: str = "test") -> Task:
        """The `seed`-th puzzle of a split; `Task.seed` is the puzzle in digits, two for each number.

        Raises:
            UserError: there is no such split or task.
        """
        if split not in self._splits:
            raise UserError(f"{self.name}: no split {split!r}; there are train, dev, test")
        if self.only:
            return self.puzzle_task(_numbers_text(self.only))
        rows = self._splits[split]
        if not 0 <= seed < len(rows):
            raise UserError(f"{self.name}: {split} has tasks 0 to {len(rows) - 1}, got {seed}")
        return self._task(f"game24-{split}-{seed}", rows[seed])

    def puzzle_task(self, numbers: str) -> Task:
        """The task of a puzzle of one's own, e.g. `4 5 6 10`.

        Raises:
            UserError: these are not four numbers from 1 to 13, or they cannot make 24.
        """
        puzzle = _puzzle(numbers)
        return self._task("game24-" + "-".join(map(str, puzzle)), puzzle)

    def _task(self, name: str, puzzle: Puzzle) -> Task:
        text = (
            f"make {TARGET} from the numbers {_numbers_text(puzzle)}: use each exactly once, with + - * / and brackets only.\n"
            "A step joins two of the numbers left into one; after three steps 24 is to be left. Fractions are written 2/3.\n"
            "A whole answer has four lines:\n"
            "Step 1: a + b = c (left: the numbers left now)\n"
            "Step 2: …\n"
            "Step 3: …\n"
            "Answer: one expression of the four numbers = 24"
        )
        shown = [demonstration(known) for known in self.demonstrations() if known != puzzle]
        if shown:
            text += "\nSolved puzzles:\n" + "\n".join(shown) + f"\nNow the numbers {_numbers_text(puzzle)}."
        return Task(name, text, sum(number * 100**place for place, number in enumerate(reversed(puzzle))))

    def demonstrations(self) -> tuple[Puzzle, ...]:
        """The puzzles that the instruction shows solved."""
        return DEMONSTRATIONS[: self.demos]

    def puzzle(self, task: Task) -> Puzzle:
        """The numbers of a task."""
        return _puzzle(" ".join(str(task.seed // 100**place % 100) for place in (3, 2, 1, 0)))

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The numbers left after these actions, and what was wrong with the last one.

        Raises:
            UserError: an action is no text, or the episode was over before it.
        """
        turn = self._play(task, actions)[-1]
        text = f"left: {_numbers_text(turn.numbers)}" + (f"\n{turn.said}" if turn.said else "")
        return Observation(text, () if turn.over else _admissible(turn), turn.reward, turn.over)

    def verify(self, task: Task, actions: Sequence[str]) -> list[float | None]:
        """What the rule pays for each action: 3, 1 or 0 for an operation, 10 or 0 for an answer, None for what cannot be read."""
        return [turn.worth for turn in self._play(task, actions)[1:]]

    def _play(self, task: Task, actions: Sequence[str]) -> list[_Turn]:
        """The start, and what became of each action."""
        if isinstance(actions, str):
            raise UserError(f"{self.name}: actions must be a sequence of strings, got the string {actions!r}")
        puzzle = self.puzzle(task)
        turns = [_start(puzzle)]
        for step, action in enumerate(actions):
            if turns[-1].over or step >= self.horizon:
                raise UserError(f"{self.name}: {task.id} was over after {step} steps, got one more action: {action!r}")
            if not isinstance(action, str):
                raise UserError(f"{self.name}: step {step} of {task.id}: the action must be a text, got {action!r}")
            turns = [*_turns(puzzle, tuple(actions[: step + 1]))]
        if len(actions) >= self.horizon:
            turns[-1] = replace(turns[-1], over=True)
        return turns

    def read(self, reply: str) -> tuple[str, ...]:
        """The actions in a written answer, in the short form: up to three operations and the answer.

        Prose, tags and markup around the lines are passed over. Of several attempts the last with an answer counts, or if none
        has one, the last, with an empty answer (which cannot be read): so a reply is always a whole episode. An attempt ends with
        its answer, and `Step 1` or `Attempt 2` begins one; of more than three operations before an answer the last three count.
        If nothing can be read, it is the reply itself, as one action.
        """
        attempts: list[list[str]] = [[]]
        lines = [line for line in _LINE.sub(r"\n\1", reply).splitlines() if line.strip()]
        for n, line in enumerate(lines):
            cleaned = _clean(line)
            if _FIRST.match(_TAG.sub(" ", line)):
                attempts.append([])
            if answer := _ANSWER.fullmatch(cleaned):
                body = answer[1] or (_clean(lines[n + 1]) if n + 1 < len(lines) else "")
                if any(sign.isdecimal() for sign in body):
                    attempts[-1].append(f"Answer: {body.rstrip(' .')}")
                    attempts.append([])
            elif readings := _operations_in(cleaned):
                attempts[-1].append(str(readings[0]) if len(readings) == 1 else cleaned)
        found = [attempt for attempt in attempts if attempt]
        complete = [attempt for attempt in found if attempt[-1].startswith("Answer:")]
        if not found:
            return (reply,)
        last = complete[-1] if complete else [*found[-1], "Answer:"]
        return tuple(last[-min(HORIZON, self.horizon) :])

    def abstract(self, observation: Observation) -> str:
        """The numbers left, ascending. Which of the puzzle's numbers they were made of is not in it."""
        return observation.text.partition("\n")[0]

    def gold(self, task: Task) -> tuple[str, ...]:
        """A solution: three operations and the answer, or the answer alone if the horizon is shorter than 4."""
        path = _solve(self.puzzle(task))
        return path if self.horizon >= len(path) else path[-1:]

    def optimum(self, task: Task) -> float:
        """1: every puzzle has a solution."""
        return 1.0

    def close(self) -> None:
        """Nothing is held open."""


_LINE = re.compile(r"(?<=\S)[ \t]+((?:[*_]{0,3}step\s*[0-9]+\s*[:.)]|[*_]{0,3}(?:final )?answer ?(?:is ?)?:))", re.IGNORECASE)
"""Where a line begins that was not given one of its own."""
_FIRST = re.compile(r"\W*(?:step\s*1\b|attempt\s*[0-9])", re.IGNORECASE)
"""The first line of an attempt."""


def _from_csv(path: Path) -> tuple[Puzzle, ...]:
    """The column `Puzzles` of a file like the package's 24.csv, in its order."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as cause:
        raise UserError(f"game24: cannot read {path}: {cause}") from cause
    if len(rows) <= _TEST[-1] or "Puzzles" not in rows[0]:
        raise UserError(
            f"game24: {path} must have a column Puzzles and at least {_TEST.stop} rows (test is rows {_TEST.start} to "
            f"{_TEST[-1]}, from 0); it has {', '.join(rows[0]) if rows else 'no columns'} and {len(rows)} rows"
        )
    puzzles = tuple(_puzzle(row["Puzzles"] or "") for row in rows)
    if len(set(puzzles)) < len(puzzles):
        raise UserError(f"game24: {path} has a puzzle twice")
    return puzzles
