"""Creative writing under a constraint: four paragraphs, each of which must end with a given sentence.

The task is that of Yao et al. (2023, arXiv:2305.10601): four sentences are given; paragraph i of the passage has to end with
sentence i. One action is the whole passage. Whether the endings are right can be checked, and is all that this environment
pays for: whether the passage is any good is for a judge to say.

The rule, r* in [0, 1]: the share of the four paragraphs that end with their sentence.

- Paragraphs are parted by empty lines; in a passage without empty lines, every line is one.
- Case, the kind of quotation mark and dash, and the amount of white space do not matter. Every other sign does.
- At least five words of the paragraph stand before the sentence: the bare sentences are no passage.
- A passage of more or fewer than four paragraphs scores 0, whatever they end with.
- An empty action cannot be judged: reward None.

Sentences come from two places, and the environment's name tells which:

- `writing?source=own`: 90 plain sentences of ours, in no particular order; 36 of them are for `train`, 18 for `dev`, 36 for
  `test`, so that no sentence is in two splits. A task draws four of its split by its seed; there is no end of them.
- `writing?source=published`: the file of the package `tree-of-thoughts-llm`, or of `file=PATH`, which has four sentences on
  each of 100 lines. Lines that do not part into four at `.`, `?` or `!` are left out (5, where the file lacks a stop), so `test`
  has 95 tasks. As its lines share sentences with one another, `train` and `dev` are drawn from ours.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from ...memory.errors import UserError
from ...memory.records import Observation, Task
from .tree_of_thoughts import INSTALL, tree_of_thoughts_file

__all__ = ["PARAGRAPHS", "Writing", "check_endings"]

PARAGRAPHS = 4
_BEFORE = 5
"""Words that stand in a paragraph before its sentence, at least."""
_SPLITS = ("test", "dev", "train")
_OWN = Path(__file__).with_name("writing.txt")
_PUBLISHED = "842b12bed4b24335"
"""Digest of the published lines that part into four, so that a file is called published for what it holds."""

_MARKS = str.maketrans({**dict.fromkeys("‘’‚‛′`", "'"), **dict.fromkeys("“”„‟″«»", '"'), **dict.fromkeys("–—‒−", "-")})
_PASSAGE = re.compile(r"(?im)^[^\w\n]*passage[*_ ]*:[*_]*|^.{0,80}\bpassage[*_ ]*:[*_ ]*$")
_LONGEST_TAG = 90
_HEAD = re.compile(r"(?:\s|</?[A-Za-z][^<>]{0,80}>|```\w*)+")
_TAIL = re.compile(r"(?:\s+|</?[A-Za-z][^<>]{0,80}>|```)\Z")
_EMPTY_LINE = re.compile(r"\n[^\S\n]*\n")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[.!?][\"”’'])\s+")


def check_endings(passage: str, sentences: Sequence[str]) -> tuple[bool, ...]:
    """Whether each paragraph ends with its sentence, by the rule above; as many values as there are paragraphs.

    Args:
        passage: the whole text.
        sentences: the one of the first paragraph, of the second and so on; a paragraph beyond them is not right.
    """
    parts = _paragraphs(passage)
    wanted = [_plain(sentence) for sentence in sentences] + [""] * len(parts)
    return tuple(_ends(_plain(part), sentence) for part, sentence in zip(parts, wanted, strict=False))


def _paragraphs(passage: str) -> list[str]:
    text = "\n".join(passage.strip().splitlines())
    parts = _EMPTY_LINE.split(text) if _EMPTY_LINE.search(text) else text.split("\n")
    return [part for part in parts if part.strip()]


def _plain(text: str) -> str:
    return " ".join(text.translate(_MARKS).casefold().split())


def _ends(paragraph: str, sentence: str) -> bool:
    """Both plain. The sentence begins a word of its own."""
    before = paragraph.removesuffix(sentence)
    return bool(sentence) and before != paragraph and not before[-1:].isalnum() and len(before.split()) >= _BEFORE


@cache
def _own(split: str) -> tuple[str, ...]:
    """Of every five lines two are for test, one for dev, two for train."""
    places = {"test": (0, 1), "dev": (2,), "train": (3, 4)}[split]
    lines = _OWN.read_text(encoding="utf-8").splitlines()
    return tuple(line for n, line in enumerate(lines) if n % 5 in places)


class Writing:
    """Writing four paragraphs with given endings, as an environment.

    Args:
        settings: `source` (own or published) and `file` (the path of a text file with four sentences on each line). Without
            them, the published file if its package is installed, else our sentences.
        horizon: at least 1; the passage ends the episode.
    """

    solved = 1.0
    """The score from which a task counts as solved: all four endings."""

    def __init__(self, settings: Mapping[str, str] | None = None, horizon: int = 1) -> None:
        if horizon < 1:
            raise UserError(f"writing: horizon must be at least 1, got {horizon}")
        self.horizon = horizon
        self.rows, self.left_out, source = self._lines(settings or {})
        self.name = f"writing?{source}"

    @staticmethod
    def _lines(settings: Mapping[str, str]) -> tuple[tuple[tuple[str, ...], ...], int, str]:
        """The quadruples of a file (none: draw our own), how many of its lines are left out, and the source's name."""
        source, given = settings.get("source", ""), settings.get("file", "")
        if source not in ("", "own", "published"):
            raise UserError(f"writing: no source {source!r}; there are own, published")
        if source == "own" and given:
            raise UserError("writing: source=own needs no file; leave out one of the two")
        file = "text/data_100_random_text.txt"
        path = Path(given) if given else None if source == "own" else tree_of_thoughts_file(file)
        if path is None:
            if source == "published":
                raise UserError(f"writing: the published sentences need `{INSTALL}`, or its {Path(file).name} as file=PATH")
            return (), 0, "source=own"
        try:
            lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as cause:
            raise UserError(f"writing: cannot read {path}: {cause}") from cause
        rows = tuple(row for line in lines if len(row := tuple(_SENTENCE_END.split(line))) == PARAGRAPHS)
        if not rows:
            raise UserError(f"writing: {path} must have four sentences on a line, each with its full stop; no line of it has")
        digest = hashlib.sha256("\n".join(map(" ".join, rows)).encode()).hexdigest()
        known = digest.startswith(_PUBLISHED)
        if source == "published" and not known:
            raise UserError(f"writing: {path} does not hold the published sentences; without source=published it is used")
        return rows, len(lines) - len(rows), "source=published" if known else f"file={path.stem}-{digest[:8]}"

    def task(self, seed: int, split: str = "test") -> Task:
        """The `seed`-th quadruple of a split. `Task.seed` is 3 * seed, + 1 in dev, + 2 in train.

        Raises:
            UserError: there is no such split or task.
        """
        if split not in _SPLITS:
            raise UserError(f"{self.name}: no split {split!r}; there are train, dev, test")
        most = len(self.rows) - 1 if self.rows and split == "test" else None
        if seed < 0 or (most is not None and seed > most):
            have = f"{split} has tasks 0 to {most}" if most is not None else "task seeds count from 0"
            raise UserError(f"{self.name}: {have}, got {seed}")
        code = len(_SPLITS) * seed + _SPLITS.index(split)
        text = (
            "write a coherent passage of four short paragraphs. Each paragraph ends with one of these sentences, word for word "
            f"and in this order:\n{_number_lines(self._task_sentences(seed, split))}\n"
            "An answer is the word Passage: and then the four paragraphs with an empty line between them; a plan may come before."
        )
        return Task(f"writing-{split}-{seed}", text, code)

    def _task_sentences(self, seed: int, split: str) -> tuple[str, ...]:
        if self.rows and split == "test":
            return self.rows[seed]
        return tuple(random.Random(f"writing {split} {seed}").sample(_own(split), PARAGRAPHS))

    def sentences(self, task: Task) -> tuple[str, ...]:
        """The four sentences of a task.

        Raises:
            UserError: the task is of another source.
        """
        seed, place = divmod(task.seed, len(_SPLITS))
        if task.seed < 0 or (self.rows and place == 0 and seed >= len(self.rows)):
            raise UserError(f"{self.name}: has no task {task.id} (seed {task.seed})")
        return self._task_sentences(seed, _SPLITS[place])

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The sentences to end on; after the passage, which paragraphs end as they should.

        Raises:
            UserError: the passage is no text, or more than one was given.
        """
        if isinstance(actions, str):
            raise UserError(f"{self.name}: actions must be a sequence of strings, got the string {actions!r}")
        sentences = self.sentences(task)
        if not actions:
            return Observation(f"end the four paragraphs with:\n{_number_lines(sentences)}")
        if not isinstance(actions[0], str):
            raise UserError(f"{self.name}: step 0 of {task.id}: the action must be a text, got {actions[0]!r}")
        if len(actions) > 1:
            raise UserError(f"{self.name}: {task.id} was over after 1 steps, got one more action: {actions[1]!r}")
        right = check_endings(actions[0], sentences)
        if not right:
            return Observation("this cannot be read: a passage of four paragraphs was expected", (), None, True)
        if len(right) != PARAGRAPHS:
            return Observation(f"the passage has {len(right)} paragraphs, four are asked for", (), 0.0, True)
        kept = [str(n) for n, good in enumerate(right, 1) if good]
        text = f"of the four paragraphs {len(kept)} end with their sentence" + (f": {', '.join(kept)}" if kept else "")
        return Observation(text, (), len(kept) / PARAGRAPHS, True)

    def verify(self, task: Task, actions: Sequence[str]) -> list[float | None]:
        """The share of paragraphs that end with their sentence, as the one reward; None for an empty passage."""
        return [self.observe(task, actions).reward] if actions else []

    def read(self, reply: str) -> tuple[str, ...]:
        """The passage in a written answer: what follows the last `Passage:` at the beginning or the end of a line,
        or the whole reply.

        Tags and fences around it are taken off. If nothing is left, it is the reply itself.
        """
        after = _PASSAGE.split(reply)[-1]
        if found := _HEAD.match(after):
            after = after[found.end() :]
        while found := _TAIL.search(after[-_LONGEST_TAG:]):
            after = after[: -len(found[0])]
        return (after or reply,)

    def abstract(self, observation: Observation) -> str:
        """The first words of each of the four sentences."""
        first, *rest = observation.text.split("\n")
        return "end with: " + " / ".join(" ".join(line.split()[1:5]) for line in rest) if rest else first

    def gold(self, task: Task) -> tuple[str, ...]:
        """A passage that follows the rule, and is none that anybody would like to read."""
        return ("\n\n".join(f"So much is known for certain: {sentence}" for sentence in self.sentences(task)),)

    def optimum(self, task: Task) -> float:
        """1: every paragraph can end with its sentence."""
        return 1.0

    def close(self) -> None:
        """Nothing is held open."""


def _number_lines(sentences: Sequence[str]) -> str:
    return "\n".join(f"{n}. {sentence}" for n, sentence in enumerate(sentences, 1))
