"""A small set of math problems, made by rule: 15 kinds of 8 problems, in `data/math.jsonl`.

They are plain exercises with one or two steps each, for work without a download. Results on them cannot be compared with
published numbers. Answers are computed from the definition where possible (by counting, by trying all
numbers), not by the formula that a solver would use.

`exercises_file_text()` is the content of the file.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import count, permutations, product
from math import factorial, isqrt

__all__ = ["KINDS", "PROBLEMS_PER_KIND", "exercises_file_text"]

PROBLEMS_PER_KIND = 8
"""Number of problems of each kind."""

Draw = random.Random


def _fraction(value: Fraction) -> str:
    """A fraction in LaTeX."""
    sign, value = ("-" if value < 0 else ""), abs(value)
    if value.denominator == 1:
        return f"{sign}{value.numerator}"
    return f"{sign}\\frac{{{value.numerator}}}{{{value.denominator}}}"


def _root(square: int) -> str:
    """The square root of a whole number in LaTeX, in lowest terms."""
    outside = max(k for k in range(1, isqrt(square) + 1) if square % (k * k) == 0)
    inside = square // outside**2
    if inside == 1:
        return str(outside)
    return f"{outside if outside > 1 else ''}\\sqrt{{{inside}}}"


def _remainder(draw: Draw) -> tuple[str, str]:
    base, power, modulus = draw.randint(2, 12), draw.randint(30, 120), draw.choice([7, 11, 13, 17, 19, 23, 100])
    return f"What is the remainder when ${base}^{{{power}}}$ is divided by ${modulus}$?", str(base**power % modulus)


def _multiples(draw: Draw) -> tuple[str, str]:
    first, second, without = draw.sample([4, 6, 7, 9, 10, 11, 15], 3)
    most = draw.randrange(120, 600, 10)
    found = sum((n % first == 0 or n % second == 0) and n % without != 0 for n in range(1, most + 1))
    text = (
        f"How many whole numbers from $1$ to ${most}$ are divisible by ${first}$ or by ${second}$ (or by both), "
        f"but not by ${without}$?"
    )
    return text, str(found)


def _congruences(draw: Draw) -> tuple[str, str]:
    moduli = draw.sample([3, 4, 5, 7, 11], 3)
    rests = [draw.randint(1, modulus - 1) for modulus in moduli]
    least = next(n for n in count(1) if all(n % m == r for m, r in zip(moduli, rests, strict=True)))
    said = ", ".join(f"${rest}$ when divided by ${modulus}$" for modulus, rest in zip(moduli, rests, strict=True))
    return f"What is the smallest positive whole number that leaves the remainders {said}?", str(least)


def _zeros(draw: Draw) -> tuple[str, str]:
    top, below = draw.randint(60, 240), draw.randint(10, 40)
    digits = str(factorial(top) // factorial(below))
    text = f"With how many zeros does the decimal form of $\\frac{{{top}!}}{{{below}!}}$ end?"
    return text, str(len(digits) - len(digits.rstrip("0")))


def _recurrence(draw: Draw) -> tuple[str, str]:
    first, second, near, far, asked = (draw.randint(1, 4), draw.randint(1, 5), draw.randint(1, 3), draw.randint(1, 3), 8)
    terms = [first, second]
    while len(terms) < asked:
        terms.append(near * terms[-1] + far * terms[-2])

    def times(factor: int) -> str:
        return str(factor) if factor > 1 else ""

    text = (
        f"A sequence begins with $a_1 = {first}$ and $a_2 = {second}$, and "
        f"$a_n = {times(near)}a_{{n-1}} + {times(far)}a_{{n-2}}$ for all $n \\ge 3$. What is $a_{{{asked}}}$?"
    )
    return text, str(terms[-1])


def _series(draw: Draw) -> tuple[str, str]:
    first, above, below = draw.randint(2, 12), draw.randint(1, 4), draw.randint(5, 9)
    ratio = draw.choice([1, -1]) * Fraction(above, below)
    text = (
        f"An infinite geometric series has the first term ${first}$ and the common ratio ${_fraction(ratio)}$. What is the sum of "
        "all its terms after the first one?"
    )
    return text, _fraction(first * ratio / (1 - ratio))


def _drawing(draw: Draw) -> tuple[str, str]:
    red, blue, green = draw.randint(2, 6), draw.randint(2, 6), draw.randint(2, 4)
    balls = "r" * red + "b" * blue + "g" * green
    pairs = [(one, other) for n, one in enumerate(balls) for other in balls[n + 1 :]]
    text = (
        f"An urn holds {red} red, {blue} blue and {green} green balls. Two are drawn at random without putting the first one back. "
        "What is the probability that they have different colours?"
    )
    return text, _fraction(Fraction(sum(one != other for one, other in pairs), len(pairs)))


def _dice(draw: Draw) -> tuple[str, str]:
    faces, modulus = draw.choice([6, 8, 10]), draw.choice([3, 4, 5, 7])
    rolls = list(product(range(1, faces + 1), repeat=3))
    text = (
        f"Three fair dice with the faces $1$ to ${faces}$ are rolled. What is the probability that the sum of the three numbers is "
        f"divisible by ${modulus}$?"
    )
    return text, _fraction(Fraction(sum(sum(roll) % modulus == 0 for roll in rolls), len(rolls)))


def _paths(draw: Draw) -> tuple[str, str]:
    wide, high = draw.randint(4, 7), draw.randint(3, 6)
    hole = (draw.randint(1, wide - 1), draw.randint(1, high - 1))
    ways = dict[tuple[int, int], int]()
    for x, y in product(range(wide + 1), range(high + 1)):
        ways[x, y] = 0 if (x, y) == hole else 1 if (x, y) == (0, 0) else ways.get((x - 1, y), 0) + ways.get((x, y - 1), 0)
    text = (
        f"A path goes from $(0, 0)$ to $({wide}, {high})$ in steps of $1$ to the right or $1$ upwards, and must not pass through "
        f"$({hole[0]}, {hole[1]})$. How many such paths are there?"
    )
    return text, str(ways[wide, high])


def _letters(draw: Draw) -> tuple[str, str]:
    word = draw.choice(
        ["LEVEL", "BANANA", "PEPPER", "TATTOO", "COFFEE", "KAYAK", "RADAR", "BALLOON", "NEEDLE", "TOMATO", "SEESAW"]
    )
    together = draw.choice(sorted({letter for letter in word if word.count(letter) > 1}))
    block = together * word.count(together)
    found = sum(block not in "".join(order) for order in set(permutations(word)))
    text = (
        f"In how many different orders can the letters of the word {word} be written so that its letters {together} do not all "
        "stand side by side?"
    )
    return text, str(found)


def _between(draw: Draw) -> tuple[str, str]:
    half = draw.randint(2, 15)
    side = 2 * half
    text = (
        f"A circle is inscribed in a square with sides of length ${side}$. What is the area of the part of the square outside "
        "the circle?"
    )
    return text, f"{side * side} - {half * half}\\pi"


def _sector(draw: Draw) -> tuple[str, str]:
    radius, angle = draw.randint(3, 12), draw.choice([30, 45, 60, 72, 90, 120, 150])
    arc = Fraction(angle, 360) * 2 * radius
    above = f"{arc.numerator if arc.numerator > 1 else ''}\\pi"
    said = above if arc.denominator == 1 else f"\\frac{{{above}}}{{{arc.denominator}}}"
    text = f"What is the perimeter of a sector of a circle with the radius ${radius}$ and the central angle ${angle}^\\circ$?"
    return text, f"{2 * radius} + {said}"


def _diagonal(draw: Draw) -> tuple[str, str]:
    sides = sorted(draw.randint(2, 12) for _ in range(3))
    text = "A box has edges of the lengths ${}$, ${}$ and ${}$. How long is its space diagonal?".format(*sides)
    return text, _root(sum(side * side for side in sides))


def _roots(draw: Draw) -> tuple[str, str]:
    total, gap = draw.randint(3, 12), draw.randint(1, 9)
    text = f"Let $r$ and $s$ be the solutions of $x^2 - {total}x - {gap} = 0$. What is $\\frac{{r}}{{s}} + \\frac{{s}}{{r}}$?"
    # r/s + s/r = (r^2 + s^2) / (rs), with r + s and rs read off the equation.
    return text, _fraction(Fraction(total * total + 2 * gap, -gap))


def _work(draw: Draw) -> tuple[str, str]:
    fast, slow, alone = draw.randint(3, 8), draw.randint(9, 15), draw.randint(1, 2)
    left = 1 - Fraction(alone, fast)
    text = (
        f"One pump empties a tank in {fast} hours, another one in {slow} hours. The first one works alone for "
        f"{'one hour' if alone == 1 else 'two hours'}; then both work together. How many hours after the start is the tank empty?"
    )
    return text, _fraction(alone + left / (Fraction(1, fast) + Fraction(1, slow)))


KINDS: dict[str, Callable[[Draw], tuple[str, str]]] = {
    "remainder": _remainder,
    "multiples": _multiples,
    "congruences": _congruences,
    "zeros": _zeros,
    "recurrence": _recurrence,
    "series": _series,
    "drawing": _drawing,
    "dice": _dice,
    "paths": _paths,
    "letters": _letters,
    "between": _between,
    "sector": _sector,
    "diagonal": _diagonal,
    "roots": _roots,
    "work": _work,
}
"""Kind of problem -> the function that draws one: (text, answer in LaTeX)."""


def _draw_rows() -> Iterator[dict[str, str]]:
    for turn in range(PROBLEMS_PER_KIND):  # kind after kind, so that the first few problems are of several kinds
        for kind, make in KINDS.items():
            yield {"id": f"{kind}-{turn}", "kind": kind, **_new(kind, make, turn)}


def _new(kind: str, make: Callable[[Draw], tuple[str, str]], turn: int) -> dict[str, str]:
    """The turn-th different problem of a kind."""
    draw, seen = random.Random(f"learngraph exercises {kind}"), dict[str, str]()
    while len(seen) <= turn:
        text, answer = make(draw)
        seen.setdefault(text, answer)
    text = list(seen)[turn]
    return {"problem": text, "answer": seen[text]}


def exercises_file_text() -> str:
    """The text of `data/math.jsonl`, computed in a second: one problem on each line."""
    return "".join(json.dumps(row) + "\n" for row in _draw_rows())
