"""Creative writing under a constraint: four paragraphs, each of which must end with a given sentence.

The task is that of Yao et al. (2023, arXiv:2305.10601): four sentences are given; paragraph i of the passage has to end with
sentence i. One action is the whole passage. Whether the endings are right can be checked, and is all that this environment
rewards: the quality of the passage is for a judge to rate.

The rule, r* in [0, 1]: the share of the four paragraphs that end with their sentence.

- Paragraphs are parted by empty lines; in a passage without empty lines, every line is one.
- Case, the kind of quotation mark and dash, the amount of white space, and marks of emphasis or quotation marks around a
  sentence do not matter. Every other sign does.
- At least five words of the paragraph stand before the sentence: the bare sentences are no passage.
- A passage of more or fewer than four paragraphs scores 0, whatever they end with.
- An empty action cannot be judged: reward None.

Sentences come from two places, and the environment's name tells which:

- `writing?source=own`: 90 plain sentences of ours, in no particular order; 36 of them are for `train`, 18 for `dev`, 36 for
  `test`, so that no sentence is in two splits. A task draws four of its split by its seed; there is no end of them.
- `writing?source=published`: the file of the package `tree-of-thoughts-llm`, which has four sentences on each of 100 lines. Lines that do not part into four at `.`, `?` or `!` are left out (5, where the file lacks a stop), so `test`
  has 95 tasks. As its lines share sentences with one another, `train` and `dev` are drawn from ours.
"""

import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from ...memory.errors import UserError
from ...memory.records import Observation, Task
from .support.arguments import check_settings, pick_task
from .support.worlds import WrittenAnswer, seed_split, split_seed
from .tree_of_thoughts import INSTALL, tree_of_thoughts_file

__all__ = ["Writing"]

PARAGRAPHS = 4
_BEFORE = 5
"""Least number of words in a paragraph before its sentence."""
_OWN = Path(__file__).with_name("writing.txt")
_MARKS = str.maketrans({**dict.fromkeys("‘’‚‛′`", "'"), **dict.fromkeys("“”„‟″«»", '"'), **dict.fromkeys("–—‒−", "-")})
_PASSAGE = re.compile(r"(?im)^[^\w\n]*passage[*_ ]*:[*_]*|^.{0,80}\bpassage[*_ ]*:[*_ ]*$")
_LONGEST_TAG = 90
_HEAD = re.compile(r"(?:\s|</?[A-Za-z][^<>]{0,80}>|```\w*)+")
_TAIL = re.compile(r"(?:\s+|</?[A-Za-z][^<>]{0,80}>|```)\Z")
_EMPHASIS = re.compile(r"[*_]|</?(?:b|i|u|em|strong)>", re.IGNORECASE)
_EMPTY_LINE = re.compile(r"\n[^\S\n]*\n")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[.!?][\"”’'])\s+")


def check_endings(passage: str, sentences: Sequence[str]) -> tuple[bool, ...]:
    """For each paragraph of a passage, whether it ends with its sentence, by the rule above.

    Args:
        passage: the whole text.
        sentences: the sentence of each paragraph in order; a paragraph beyond them is not right.
    """
    parts = _paragraphs(passage)
    wanted = [_plain(sentence) for sentence in sentences] + [""] * len(parts)
    return tuple(_ends(_plain(part), sentence) for part, sentence in zip(parts, wanted, strict=False))


def _paragraphs(passage: str) -> list[str]:
    text = "\n".join(passage.strip().splitlines())
    parts = _EMPTY_LINE.split(text) if _EMPTY_LINE.search(text) else text.split("\n")
    return [part for part in parts if part.strip()]


def _plain(text: str) -> str:
    """The text without case, extra white space and emphasis; quotation marks at its end, or before its last stop, are gone."""
    bare = " ".join(_EMPHASIS.sub("", text.translate(_MARKS)).casefold().split()).rstrip("\"'")
    return bare[:-1].rstrip("\"'") + bare[-1] if bare.endswith((".", "!", "?")) else bare


def _ends(paragraph: str, sentence: str) -> bool:
    """True if a plain paragraph ends with a plain sentence that begins at a word, after enough other words."""
    before = paragraph.removesuffix(sentence)
    return bool(sentence) and before != paragraph and not before[-1:].isalnum() and len(before.split()) >= _BEFORE


@cache
def _own(split: str) -> tuple[str, ...]:
    """Our own sentences of a split: of every five lines two are for test, one for dev, two for train."""
    places = {"test": (0, 1), "dev": (2,), "train": (3, 4)}[split]
    lines = _OWN.read_text(encoding="utf-8").splitlines()
    return tuple(line for n, line in enumerate(lines) if n % 5 in places)


class Writing(WrittenAnswer):
    """An environment for writing four paragraphs with given endings.

    Args:
        settings: `source` (own or published). Without it, the published file if its package is installed, else our sentences.
        horizon: at least 1; the passage ends the episode.
    """

    def __init__(self, settings: Mapping[str, str] | None = None, horizon: int = 1) -> None:
        check_settings("writing:", settings or {}, ("source",))
        source = (settings or {}).get("source", "")
        if source not in ("", "own", "published"):
            raise UserError(f"writing: no source {source!r}; there are own, published")
        path = None if source == "own" else tree_of_thoughts_file("text/data_100_random_text.txt")
        if path is None and source == "published":
            raise UserError(f"writing: the published sentences need `{INSTALL}`")
        lines = path.read_text(encoding="utf-8").splitlines() if path else []
        rows = [tuple(_SENTENCE_END.split(line.strip())) for line in lines]
        self.rows = [row for row in rows if len(row) == PARAGRAPHS]
        """Quadruples of the published file; none: our own are drawn."""
        super().__init__(f"writing?source={'published' if self.rows else 'own'}", horizon)

    def task(self, seed: int, split: str = "test") -> Task:
        """The `seed`-th quadruple of a split. `Task.seed` is 3 * seed, + 1 in dev, + 2 in train."""
        if self.rows and split == "test":
            pick_task(self.name, {"test": self.rows}, split, seed)
        code = split_seed(self.name, seed, split)
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
        seed, split = seed_split(self.name, task)
        if self.rows and split == "test" and seed >= len(self.rows):
            raise UserError(f"{self.name}: has no task {task.id} (seed {task.seed})")
        return self._task_sentences(seed, split)

    def _ask(self, task: Task) -> str:
        return f"end the four paragraphs with:\n{_number_lines(self.sentences(task))}"

    def _verdict(self, task: Task, reply: str) -> tuple[float | None, str]:
        right = check_endings(reply, self.sentences(task))
        if not right:
            return None, "this cannot be read: a passage of four paragraphs was expected"
        if len(right) != PARAGRAPHS:
            return 0.0, f"the passage has {len(right)} paragraphs, four are asked for"
        kept = [str(n) for n, good in enumerate(right, 1) if good]
        text = f"of the four paragraphs {len(kept)} end with their sentence" + (f": {', '.join(kept)}" if kept else "")
        return len(kept) / PARAGRAPHS, text

    def read(self, reply: str) -> tuple[str, ...]:
        """The passage in a written answer: the text after the last `Passage:` at the beginning or the end of a line, or the
        whole reply.

        Tags and fences around it are taken off. If nothing is left, the passage is the reply itself.
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

    def solution(self, task: Task) -> tuple[str, ...]:
        """A passage that follows the rule, but is no good text."""
        return ("\n\n".join(f"So much is known for certain: {sentence}" for sentence in self.sentences(task)),)


def _number_lines(sentences: Sequence[str]) -> str:
    return "\n".join(f"{n}. {sentence}" for n, sentence in enumerate(sentences, 1))
