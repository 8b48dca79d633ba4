"""The Game of 24: make 24 from four numbers, each used once, with + - * /. With an exact verifier and exact rewards by rule.

An episode has four steps: three operations, each of which joins two of the numbers left into one, and the answer.

| action | in the short form | also read |
|---|---|---|
| operation | `4 + 6 = 10`, `1 / 3 = 1/3`, `4 - 6 = -2` | `Step 1: 4 + 6 = 10 (left: 5 10 10)`, × ÷ −, exact decimals, LaTeX, bold |
| answer | `Answer: (10 - 4) * (5 - 1) = 24` | any case; `= 24` may be left out |

- A wrong operation (another result, a number that is not left, a division by 0) changes nothing and costs its step; the
  observation says what is wrong. The answer alone is scored: it ends the episode with reward 1 or 0.
- A line that can be read as neither ends the episode, with reward None, because its worth is unknown.

`verify` pays by rule: 3 for an operation after which 24 can be reached through whole numbers, 1 if only through fractions, 0 if not
at all or if the operation is wrong; 10 or 0 for the answer.

Puzzles: the 1,362 multisets of four numbers from 1 to 13 that make 24. Ranks are counted from 0; `test` has 900 to 999, `dev` 800 to
899, `train` all others, shuffled; the five demonstrations are in none. Listed actions at random score .005 and .003.

- `game24?order=published`: the order of the Tree of Thoughts package, by the time that people took; used where it is installed.
- `game24?order=difficulty`: ours, `game24.txt`, by a rule that was fitted to it (rank correlation .70). It shares 12 test puzzles with
  it: no substitute for published numbers.
"""

import ast
import csv
import operator
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, lru_cache
from itertools import combinations
from operator import itemgetter
from pathlib import Path
from typing import Any

from ...memory.errors import UserError
from ...memory.records import Observation, Task
from .support.arguments import check_settings, check_split, pick_task
from .support.worlds import TurnWorld
from .tree_of_thoughts import INSTALL, tree_of_thoughts_file

__all__ = ["Game24"]

Numbers = tuple[Fraction, ...]
"""Numbers left, ascending."""

_TARGET, _STEPS = 24, 4
DEMONSTRATIONS = ((4, 4, 6, 8), (2, 9, 10, 12), (1, 4, 8, 8), (5, 5, 5, 9), (3, 5, 7, 11))
"""The puzzles that the instruction shows solved. Four are those of the prompt of arXiv:2506.06303; its fifth is a row of the published
test, so that its solution leaks, and is replaced."""
_TEST, _DEV = range(900, 1000), range(800, 900)


_SIGNS: Mapping[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_COMPUTE: Mapping[str, Any] = dict(zip("+-*/", (operator.add, operator.sub, operator.mul, operator.truediv), strict=True))


def _operations(numbers: Numbers) -> Iterator[tuple[str, Fraction, Fraction, Fraction, Numbers]]:
    """All operations on two of the numbers left, as (operator, left, right, result, the numbers left after it)."""
    for i, j in combinations(range(len(numbers)), 2):
        others = (*numbers[:i], *numbers[i + 1 : j], *numbers[j + 1 :])
        for a, b, signs in ((numbers[i], numbers[j], "+*-/"), (numbers[j], numbers[i], "-/")):
            for sign in signs if b else signs[:-1]:
                result = _COMPUTE[sign](a, b)
                yield sign, a, b, result, tuple(sorted((*others, result)))


@lru_cache(maxsize=65536)
def reachable(numbers: Numbers, whole: bool = False) -> bool:
    """True if 24 can be made of all these numbers (ascending); with `whole`, through whole numbers (negative ones too) only."""
    if whole and any(number.denominator != 1 for number in numbers):
        return False
    if len(numbers) == 1:
        return numbers[0] == _TARGET
    return any(reachable(after, whole) for *_, after in _operations(numbers))


def _join(numbers: Sequence[Fraction | int]) -> str:
    return " ".join(map(str, numbers))


# Reading what a model writes

_GLYPHS = str.maketrans("×✕✖⋅·∙∗＊÷∕⁄／−–—‒﹣－＋＝：（）\u00a0", "********////------+=:() ")
_MARKUP = (
    (re.compile(r"</?[A-Za-z][^<>]{0,80}>"), " "),
    (re.compile(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}"), r"\1/\2"),
    (re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}"), r"(\1)/(\2)"),
    (re.compile(r"\\(?:boxed|text|mathbf)\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\times|\\cdot"), "*"),
    (re.compile(r"\\div"), "/"),
    (re.compile(r"\\[()\[\]]|\$|\\(?:left|right)(?=[()])"), ""),
    (re.compile(r"\s+"), " "),
    (re.compile(r"(?<=[0-9)])( ?)[xX](?= ?[0-9(])"), r"\1*"),
)
_PREFIX = re.compile(r"(?:[>#*_`•\s]|-\s)*(?:(?:step\s*[0-9]+|[0-9]+(?=[.):]\s))[*_]*\s*[:.)-]?[*_\s]*)?", re.IGNORECASE)
_ANSWER = re.compile(r"(?:final )?answer ?(?:is ?)?:[*_ ]*(.*)", re.IGNORECASE)
_NUMBER = r"-?[0-9]{1,9}(?:\.[0-9]{1,6})?(?:/[0-9]{1,9})?"
_EQUATION = re.compile(
    rf"([-+*/.()0-9 ]+?) ?(?:=|->|→) ?(\( ?{_NUMBER} ?\)|{_NUMBER})[.,;:]?(?: ?(?:[(\[,;]|->|→|left|remaining).*)?",
    re.IGNORECASE,
)
_NEW_LINE = re.compile(
    r"(?<=\S)[ \t]+((?:[*_]{0,3}step\s*[0-9]+\s*[:.)]|[*_]{0,3}(?:final )?answer ?(?:is ?)?:))", re.IGNORECASE
)
"""Matches the blank before a step or an answer that does not stand on a line of its own."""
_FIRST = re.compile(r"(?:\W|<[a-z]{1,20}>)*(?:step\s*1\b|attempt\s*[0-9])", re.IGNORECASE)
"""Matches the first line of an attempt."""
_LONGEST_LINE, _LONGEST_EXPRESSION = 300, 120


def _clean(line: str) -> str:
    """A line without tags, markup, list marks and `Step 1:`, in plain operators and single spaces."""
    line = line[: 2 * _LONGEST_LINE].translate(_GLYPHS)
    for pattern, plain in _MARKUP:
        line = pattern.sub(plain, line)
    return _PREFIX.sub("", line.strip(), count=1).rstrip("*_` ")


def _number(text: str) -> Fraction | None:
    text = text.strip("() ")
    with suppress(ValueError, ZeroDivisionError):  # 1.5/3, 1/0
        return Fraction(text) if re.fullmatch(_NUMBER, text) else None
    return None


def _operations_in(line: str) -> list[tuple[Fraction, str, Fraction, Fraction]]:
    """The ways to read a line as an operation, right or wrong: a, the sign, b, the result that it claims. `1/3/2=1/6` has two."""
    found = _EQUATION.fullmatch(line) if len(line) <= _LONGEST_LINE else None
    if not found or (claimed := _number(found[2])) is None:
        return []
    sides = (
        (_number(found[1][: sign.start()]), sign[0], _number(found[1][sign.end() :]))
        for sign in re.finditer("[-+*/]", found[1])
    )
    return [(a, sign, b, claimed) for a, sign, b in sides if a is not None and b is not None]


def _evaluate(node: ast.expr, used: list[int]) -> Fraction:
    """The value of an expression, worked out in fractions; its numbers are added to `used`.

    Raises:
        SyntaxError: there is more in it than whole numbers, + - * / and brackets.
        ZeroDivisionError: it divides by 0.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        used.append(node.value)
        return Fraction(node.value)
    if not isinstance(node, ast.BinOp) or type(node.op) not in _SIGNS:
        raise SyntaxError(f"an operation joins two numbers or brackets by one of + - * /, {ast.unparse(node)!r} came")
    value: Fraction = _COMPUTE[_SIGNS[type(node.op)]](_evaluate(node.left, used), _evaluate(node.right, used))
    return value


_MAKES_24 = re.compile(r"24(?![0-9])(?!\s*[-+*/.,^]+\s*[0-9])")


def judge_answer(answer: str, puzzle: Sequence[int]) -> tuple[float | None, str]:
    """The reward of an answer such as `(10 - 4) * (5 - 1) = 24`, and the reason why it is not 1; None if it is no expression.

    What stands before the first `=` must make 24 and use exactly the numbers of the puzzle. After the last `=`, if there is one,
    stands 24.
    """
    expression, equals, result = (part.strip() for part in answer.partition("="))
    if len(expression) > _LONGEST_EXPRESSION:
        return None, f"an expression has at most {_LONGEST_EXPRESSION} characters, this one has {len(expression)}"
    if not expression:
        return None, "no expression was given"
    if strange := re.search(r"[^-+*/()0-9 \t]", expression):
        return None, f"an expression has whole numbers, + - * / and brackets, {strange[0]!r} came"
    try:
        value = _evaluate(ast.parse(expression, mode="eval").body, used := list[int]())
    except SyntaxError as cause:
        return None, f"{expression!r} is no expression: {cause.msg}"
    except ZeroDivisionError:
        return 0.0, "it divides by 0"
    if sorted(used) != sorted(puzzle):
        return 0.0, f"it uses {_join(sorted(used))}, the numbers are {_join(sorted(puzzle))}"
    if value != _TARGET:
        return 0.0, f"it makes {value}, not {_TARGET}"
    if equals and not _MAKES_24.match(result := result.rpartition("=")[2].strip()):
        return 0.0, f"it makes {_TARGET}, but {result!r} is said to come out"
    return 1.0, ""


# The game


Terms = tuple[tuple[Fraction, str], ...]
"""Numbers left with the expressions that made them, ascending by value."""


@dataclass(frozen=True, slots=True)
class _Turn:
    left: Terms
    reward: float | None = 0.0
    worth: float | None = 0.0
    """r: the reward of the action by the rule."""
    over: bool = False
    comment: str = ""
    """Text of the observation beside the numbers left."""

    @property
    def numbers(self) -> Numbers:
        return tuple(value for value, _ in self.left)


def _short(sign: str, a: Fraction, b: Fraction, result: Fraction, *_: Numbers) -> str:
    a, b = sorted((a, b)) if sign in "+*" else (a, b)
    return f"{a} {sign} {b} = {result}"


@lru_cache(maxsize=4096)
def _admissible(left: Terms) -> tuple[str, ...]:
    if len(left) == 1:
        return (f"Answer: {left[0][1]} = {left[0][0]}",)
    return tuple(sorted({_short(*operation) for operation in _operations(tuple(value for value, _ in left))}))


def _take(before: _Turn, action: str, puzzle: tuple[int, ...]) -> _Turn:
    """Carry out one action; a wrong one changes nothing, and the comment says what is wrong."""
    lines = [line for line in action.splitlines() if line.strip()]
    line = _clean(lines[0]) if len(lines) == 1 else ""
    if answer := _ANSWER.fullmatch(line):
        reward, why = judge_answer(answer[1], puzzle)
        if reward is None:  # nothing can be said of its worth
            return _Turn(before.left, None, None, True, f"cannot be read: {why}")
        return _Turn(before.left, reward, 10 * reward, True, f"wrong: {why}" if why else "right: 24")
    outcomes = [_carry_out(before, *operation) for operation in _operations_in(line)]
    if not outcomes:
        comment = "this cannot be read: a step is like `4 + 6 = 10`, the end like `Answer: 4 * 6 = 24`"
        return _Turn(before.left, None, None, True, comment)
    return next((turn for turn in outcomes if not turn.comment), outcomes[0])


def _carry_out(before: _Turn, a: Fraction, sign: str, b: Fraction, claimed: Fraction) -> _Turn:
    """The result of an operation; where it is wrong, the comment says so."""
    left, texts, problem = list(before.left), list[str](), ""
    for number in (a, b):
        if (found := next((term for term in left if term[0] == number), None)) is None:
            problem = problem or f"{number} is not left{' twice' if number in before.numbers else ''}"
        else:
            left.remove(found)
            texts.append(found[1] if found[1].isdecimal() else f"({found[1]})")
    result = None if sign == "/" and not b else _COMPUTE[sign](a, b)
    if not problem and result != claimed:
        problem = f"{a} / {b} cannot be" if result is None else f"{a} {sign} {b} is {result}, not {claimed}"
    if problem or result is None:
        return _Turn(before.left, comment=f"wrong, nothing done: {problem}")
    after = _Turn(tuple(sorted((*left, (result, f" {sign} ".join(texts))), key=itemgetter(0))))
    return replace(after, worth=3.0 if reachable(after.numbers, True) else 1.0 if reachable(after.numbers) else 0.0)


def _start(puzzle: Sequence[int]) -> _Turn:
    return _Turn(tuple((Fraction(number), str(number)) for number in puzzle))


@lru_cache(maxsize=4096)
def _solve(puzzle: tuple[int, ...]) -> tuple[str, ...]:
    """A solution of a puzzle: through whole numbers if there is one, positive ones if possible."""
    actions, turn = list[str](), _start(puzzle)
    whole = reachable(turn.numbers, True)
    while len(turn.left) > 1:
        ways = (operation for operation in _operations(turn.numbers) if reachable(operation[-1], whole))
        actions.append(min((r < 0, r.denominator, abs(r), _short(sign, a, b, r)) for sign, a, b, r, _ in ways)[-1])
        turn = _take(turn, actions[-1], puzzle)
    return (*actions, *_admissible(turn.left))


def demonstration(puzzle: tuple[int, ...]) -> str:
    """A puzzle with a solution in five lines, in the form of a written answer."""
    *steps, answer = _solve(puzzle)
    turn, lines = _start(puzzle), [f"Numbers: {_join(puzzle)}"]
    for number, action in enumerate(steps, 1):
        turn = _take(turn, action, puzzle)
        lines.append(f"Step {number}: {action} (left: {_join(turn.numbers)})")
    return "\n".join((*lines, answer))


# The puzzles


@cache
def _own_order() -> tuple[tuple[int, ...], ...]:
    lines = Path(__file__).with_name("game24.txt").read_text(encoding="utf-8").splitlines()
    return tuple(tuple(map(int, line.split())) for line in lines)


@lru_cache(maxsize=4096)
def _puzzle(text: str) -> tuple[int, ...]:
    """The puzzle in a text like `4 5 6 10`, ascending; a UserError if it is none, or has no solution."""
    words = text.replace(",", " ").split()
    if len(words) != 4 or not all(re.fullmatch("[0-9]{1,2}", word) and 1 <= int(word) <= 13 for word in words):
        raise UserError(f"game24: {text!r} is no puzzle: four numbers from 1 to 13, e.g. '4 5 6 10'")
    if (puzzle := tuple(sorted(map(int, words)))) not in _own_order():
        raise UserError(f"game24: {_join(puzzle)} cannot make 24; of the 1,820 puzzles 1,362 can, e.g. '4 5 6 10'")
    return puzzle


def _puzzle_of(seed: int) -> tuple[int, ...]:
    return _puzzle(" ".join(re.findall("..", f"{seed:08}")))


def _load_order(order: str) -> tuple[str, Sequence[tuple[int, ...]]]:
    """The name of an order, as asked for or the best there is, and its puzzles."""
    if order not in ("", "published", "difficulty"):
        raise UserError(f"game24: no order {order!r}; there are published, difficulty")
    if order != "difficulty" and (path := tree_of_thoughts_file("24/24.csv")) is not None:
        with path.open(encoding="utf-8", newline="") as file:
            return "published", [_puzzle(row["Puzzles"]) for row in csv.DictReader(file)]
    if order == "published":
        raise UserError(f"game24: the published order needs `{INSTALL}`")
    return "difficulty", _own_order()


class Game24(TurnWorld[_Turn]):
    """An environment for the Game of 24.

    Args:
        settings: `order` (published or difficulty) or `puzzle` (four numbers: the only task there is).
        horizon: number of steps after which an episode ends; a solution needs 4, or 1 if it is only the answer.
    """

    instant = True
    takes_empty = True

    def __init__(self, settings: Mapping[str, str] | None = None, horizon: int = _STEPS) -> None:
        settings = settings or {}
        check_settings("game24:", settings, ("order", "puzzle"))
        if "puzzle" in settings and "order" in settings:
            raise UserError("game24: either puzzle=… or order=…, not both")
        self.only = _puzzle(settings["puzzle"]) if "puzzle" in settings else None
        order, rows = _load_order(settings.get("order", ""))
        super().__init__(f"game24?puzzle={_join(self.only)}" if self.only else f"game24?order={order}", horizon)
        rest = [row for n, row in enumerate(rows) if n not in _TEST and n not in _DEV]
        random.Random("game24 train").shuffle(rest)
        splits = {"train": rest, "dev": [rows[n] for n in _DEV], "test": [rows[n] for n in _TEST]}
        self._splits = {split: [row for row in some if row not in DEMONSTRATIONS] for split, some in splits.items()}

    def task(self, seed: int, split: str = "test") -> Task:
        """The `seed`-th puzzle of a split; `Task.seed` is the puzzle in digits, two for each number."""
        check_split(self.name, split)
        if self.only:
            return self.puzzle_task(_join(self.only))
        return replace(self.puzzle_task(_join(pick_task(self.name, self._splits, split, seed))), id=f"game24-{split}-{seed}")

    def puzzle_task(self, numbers: str) -> Task:
        """The task of a given puzzle, e.g. `4 5 6 10`.

        Raises:
            UserError: these are not four numbers from 1 to 13, or they cannot make 24.
        """
        puzzle = _puzzle(numbers)
        text = (
            f"make {_TARGET} from the numbers {_join(puzzle)}: use each exactly once, with + - * / and brackets only.\n"
            "A step joins two of the numbers left into one; after three steps 24 is to be left. Fractions are written 2/3.\n"
            "A whole answer has four lines:\n"
            "Step 1: a + b = c (left: the numbers left now)\n"
            "Step 2: …\n"
            "Step 3: …\n"
            "Answer: one expression of the four numbers = 24"
        )
        shown = [demonstration(known) for known in DEMONSTRATIONS if known != puzzle]
        text += "\n".join(("\nSolved puzzles:", *shown, f"Now the numbers {_join(puzzle)}."))
        return Task("game24-" + "-".join(map(str, puzzle)), text, int("".join(f"{number:02}" for number in puzzle)))

    def puzzle(self, task: Task) -> tuple[int, ...]:
        """The numbers of a task."""
        return _puzzle_of(task.seed)

    def _first(self, task_seed: int) -> _Turn:
        return _start(_puzzle_of(task_seed))

    def _next(self, before: _Turn, action: str, task_seed: int) -> _Turn:
        return _take(before, action, _puzzle_of(task_seed))

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The numbers left after these actions, and what was wrong with the last one."""
        turn = self.turn(task, actions)
        over = turn.over or len(actions) >= self.horizon
        text = f"left: {_join(turn.numbers)}" + (f"\n{turn.comment}" if turn.comment else "")
        return Observation(text, () if over else _admissible(turn.left), turn.reward, over)

    def verify(self, task: Task, actions: Sequence[str]) -> list[float | None]:
        """The reward of each action by the rule: 3, 1 or 0 for an operation, 10 or 0 for an answer, None for one that cannot be read."""
        self.turn(task, actions)
        return [self.turn(task, actions[: n + 1]).worth for n in range(len(actions))]

    def read(self, reply: str) -> tuple[str, ...]:
        """The actions in a written answer, in the short form: up to three operations and the answer.

        Prose, tags and markup around the lines are passed over. Of several attempts the last with an answer counts, or if none
        has one, the last, with an empty answer (which cannot be read): so a reply is always a whole episode. An attempt ends with
        its answer, and `Step 1` or `Attempt 2` begins one; of more than three operations before an answer the last three count.
        If nothing can be read, it is the reply itself, as one action.
        """
        attempts: list[list[str]] = [[]]
        lines = [line for line in _NEW_LINE.sub(r"\n\1", reply).splitlines() if line.strip()]
        cleaned = [_clean(line) for line in lines]
        for line, plain, following in zip(lines, cleaned, [*cleaned[1:], ""], strict=False):
            if _FIRST.match(line):
                attempts.append([])
            if answer := _ANSWER.fullmatch(plain):
                body = answer[1] or following
                if any(sign.isdecimal() for sign in body):
                    attempts[-1].append(f"Answer: {body.rstrip(' .')}")
                    attempts.append([])
            elif readings := _operations_in(plain):
                attempts[-1].append("{} {} {} = {}".format(*readings[0]) if len(readings) == 1 else plain)
        found = [attempt for attempt in attempts if attempt]
        if not found:
            return (reply,)
        complete = [attempt for attempt in found if attempt[-1].startswith("Answer:")]
        last = complete[-1] if complete else [*found[-1], "Answer:"]
        return tuple(last[-min(_STEPS, self.horizon) :])

    def abstract(self, observation: Observation) -> str:
        """The numbers left, ascending, without their origin from the puzzle's numbers."""
        return observation.text.partition("\n")[0]

    hide_verdict = abstract

    def solution(self, task: Task) -> tuple[str, ...]:
        """Three operations and the answer, or the answer alone if the horizon is shorter than 4."""
        path = _solve(self.puzzle(task))
        return path if self.horizon >= len(path) else path[-1:]
