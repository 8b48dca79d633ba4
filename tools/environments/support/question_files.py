"""Files of questions (a JSON list, JSONL or CSV), and the worlds in which each question has one written answer.

Settings that all these worlds have:

| setting | the questions |
|---|---|
| `file=PATH` | those of a file instead of our own |
| `sample=N` | N of them, drawn so that each difficulty has its share (largest remainders); the file's order stays |
| `draw=SEED` | another draw than that of seed 0 |
| `split=test` | all belong to one split. Otherwise, sorted by a digest of their text, the first 40 % are for `test`, the next 20 % for `dev`, the others for `train`: neither the file's order nor chance decides. Within a split the file's order stays |

Rows without a question or an answer, rows that repeat an earlier question (the same text but for case and white space), and all rows
that give different answers to one question are left out, counted and named in `report`.
"""

import csv
import hashlib
import io
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, ClassVar, TypeVar

from ....memory.errors import UserError
from ....memory.records import Task
from .arguments import check_settings, check_split, pick_task
from .worlds import VerifiedAnswer

__all__ = ["Question", "QuestionFile"]

_Row = TypeVar("_Row")
_SETTINGS = ("file", "sample", "draw", "split")


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its true answer."""

    text: str
    answer: str
    where: str = ""
    """Its position in the source, e.g. `line 3`."""
    difficulty: str = ""
    """As the file calls it; empty if the file does not say."""


class QuestionFile(VerifiedAnswer):
    """A world of the questions of a file; `Task.seed` is a question's place among all that are in use, from 0.

    Args:
        kind: name of the world without settings.
        settings: by name; the table above, and the world's own.
        horizon: at least 1; the written answer ends the episode.
        further: names of the world's own settings.
    """

    own: ClassVar[Path]
    """The questions that are played if no file is given."""
    layout: ClassVar[str]
    """The layout of a file, for messages: `expected are …`."""
    request: ClassVar[str]
    """What a task says below the question: the form of the answer."""

    def __init__(self, kind: str, settings: Mapping[str, str], horizon: int, further: Sequence[str] = ()) -> None:
        self._kind = kind
        check_settings(f"{kind}:", settings, (*_SETTINGS, *further))
        path = Path(settings.get("file", self.own))
        self.report, kept = self._check_rows([self._row(path, *item) for item in read_objects(kind, path, self.layout)])
        """Counts of the rows of the file, with the rows left out and why."""
        count, seed = (_read_number(kind, settings, *one) for one in (("sample", len(kept), 1), ("draw", 0, 0)))
        self.questions = _draw(kind, kept, count, seed)
        """The questions in use, in the file's order."""
        self._splits = split_places(kind, [one.text for one in self.questions], settings.get("split", ""))
        changed = [f"{key}={settings[key]}" for key in (*_SETTINGS[1:], *further) if key in settings]
        if "file" in settings:
            changed.insert(0, name_file(path, [(one.text, one.answer) for one in self.questions]))
        super().__init__(kind + ("?" if changed else "") + ",".join(changed), horizon)

    @abstractmethod
    def _read_row(self, fields: Mapping[str, Any], where: str) -> Question | None:
        """The question of a row, by its keys in lower case; None if it has no key of a question. Text or answer may be empty."""

    def _row(self, path: Path, where: str, item: Any) -> Question:
        if not isinstance(item, Mapping):
            raise UserError(f"{self._kind}: {path} {where} must be an object, got {str(item)[:60]!r}; {self.layout}")
        row = self._read_row(lower_keys(item), where)
        if row is None:
            keys = ", ".join(map(str, item))
            raise UserError(f"{self._kind}: {path} {where} has no question; its keys are {keys}; {self.layout}")
        return row

    def _check_rows(self, rows: Sequence[Question]) -> tuple[str, list[Question]]:
        """An account of the rows that are left out, and the rows that can be used."""
        missing = [f"{row.where} (no {'answer' if row.text else 'question'})" for row in rows if not row.text or not row.answer]
        repeated, contradictory, kept = list[str](), list[str](), list[Question]()
        same = dict[str, list[Question]]()
        for row in rows:
            if row.text and row.answer:
                same.setdefault(_plain(row.text), []).append(row)
        for first, *others in same.values():
            if all(self._agree(first.answer, other.answer) for other in others):
                kept.append(first)
                repeated.extend(f"{other.where} (as {first.where})" for other in others)
            else:
                contradictory.append(", ".join(f"{row.where}: {row.answer[:40]}" for row in (first, *others)))
        reasons = {
            "without a question or an answer": missing,
            "repeated": repeated,
            "with contradictory answers, all left out": contradictory,
        }
        report = f"{len(kept)} questions of {len(rows)} rows"
        for reason, found in reasons.items():
            if found:
                report += f"; {len(found)} {reason} ({'; '.join(found[:3])}{' …' if len(found) > 3 else ''})"
        if not kept:
            raise UserError(f"{self._kind}: nothing is left: {report}")
        return report, kept

    @abstractmethod
    def _agree(self, one: str, other: str) -> bool:
        """True if two true answers to one question are the same."""

    def task(self, seed: int, split: str = "test") -> Task:
        """The `seed`-th question of a split."""
        check_split(self.name, split)
        place = pick_task(self.name, self._splits, split, seed, f" ({self.report})" if ";" in self.report else "")
        return Task(f"{self._kind}-{split}-{seed}", f"{self.questions[place].text}\n{self.request}", place)

    def size(self, split: str) -> int:
        """The number of questions of a split."""
        return len(self._splits.get(split, ()))

    def question(self, task: Task) -> Question:
        """The question of a task."""
        return find_row(self.name, self.questions, task)

    def _statement(self, task: Task) -> str:
        return self.question(task).text


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _read_number(kind: str, settings: Mapping[str, str], key: str, default: int, low: int) -> int:
    given = settings.get(key, str(default))
    if not (given.isascii() and given.isdecimal() and int(given) >= low):
        raise UserError(f"{kind}: {key} must be a number from {low}, got {given!r}")
    return int(given)


def _draw(kind: str, rows: Sequence[Question], count: int, seed: int) -> tuple[Question, ...]:
    """A sample in which each difficulty has its share, in the order of the rows."""
    if count > len(rows):
        raise UserError(f"{kind}: sample={count}, and there are {len(rows)} questions")
    strata = dict[str, list[int]]()
    for place, row in enumerate(rows):
        strata.setdefault(row.difficulty, []).append(place)
    names = sorted(strata)
    sizes = {name: count * len(strata[name]) // len(rows) for name in names}
    by_remainder = sorted(names, key=lambda name: -(count * len(strata[name]) % len(rows)))
    for name in by_remainder[: count - sum(sizes.values())]:
        sizes[name] += 1
    drawn = [place for name in names for place in Random(f"{seed} {name}").sample(strata[name], sizes[name])]
    return tuple(rows[place] for place in sorted(drawn))


def split_places(kind: str, texts: Sequence[str], only: str) -> dict[str, tuple[int, ...]]:
    """The places of each split's questions among these, by the rule at the top of this file; all in one split, if it is named."""
    if only:
        check_split(kind, only)
        return {split: tuple(range(len(texts))) if split == only else () for split in ("test", "dev", "train")}
    order = sorted(range(len(texts)), key=lambda n: hashlib.sha256(_plain(texts[n]).encode()).digest())
    first, second = round(0.4 * len(order)), round(0.6 * len(order))
    parts = {"test": order[:first], "dev": order[first:second], "train": order[second:]}
    return {split: tuple(sorted(places)) for split, places in parts.items()}


def name_file(path: Path, content: object) -> str:
    """A file in the name of a world: `file=STEM-DIGEST`, so that other contents are another world."""
    return f"file={path.stem}-{hashlib.sha256(repr(content).encode()).hexdigest()[:8]}"


def lower_keys(item: Any) -> dict[str, Any]:
    """An object with its keys in lower case; empty for anything else."""
    return {str(key).lower(): value for key, value in item.items()} if isinstance(item, Mapping) else {}


def read_objects(world: str, path: Path, expected: str) -> list[tuple[str, Any]]:
    """The objects of a file, each with its position in words: `line 3`, `item 3`, or `row 3` of a table (`.csv`).

    Args:
        world: name of the world, for messages.
        path: the file, in UTF-8.
        expected: end of the messages about a damaged file: the layout that was expected.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as cause:
        raise UserError(f"{world}: cannot read {path}: {cause}") from cause
    found: list[tuple[str, Any]] = []
    if path.suffix.lower() == ".csv":
        found += [(f"row {n}", row) for n, row in enumerate(csv.DictReader(io.StringIO(text, newline="")), 1)]
        parts, kind = [], "row"
    elif text.lstrip().startswith("["):
        parts, kind = [text], "item"
    else:
        parts, kind = text.split("\n"), "line"
    for n, part in enumerate(parts, 1):
        if not part.strip():
            continue
        try:
            value = json.loads(part)
        except (ValueError, RecursionError) as cause:
            line = getattr(cause, "lineno", n) if kind == "item" else n
            raise UserError(f"{world}: {path} line {line} is no JSON: {cause}; {expected}") from cause
        found += [(f"item {m}", item) for m, item in enumerate(value, 1)] if kind == "item" else [(f"line {n}", value)]
    if not found:
        raise UserError(f"{world}: {path} is empty; {expected}")
    return found


def find_row(world: str, rows: Sequence[_Row], task: Task) -> _Row:
    """The row of a task, whose seed is its number in the file."""
    if not 0 <= task.seed < len(rows):
        raise UserError(f"{world}: has no task {task.id} (row {task.seed} of {len(rows)})")
    return rows[task.seed]
