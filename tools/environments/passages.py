"""Questions over passages, answered by searching, reading and concluding: multi-hop question answering as in HotpotQA.

The task is that of Yang et al. (2018, arXiv:1809.09600) with the actions of ReAct (Yao et al., 2022, arXiv:2210.03629), over
the passages of a file instead of Wikipedia.

| action | shows |
|---|---|
| `search[words]` | the passages that fit best: title and first two sentences of each; the first of them is then open |
| `lookup[word]` | the next sentence of the open passage with that word in it (any part of it, in any case); the same word again: the next such sentence; another word, or another search: from the beginning |
| `finish[answer]` | the end: reward 1 if the answer is right, else 0 |

- The answer is right if it equals the file's when both are normalised as published (`exact_match` in `questions.py`).
- An action that cannot be read gets reward 0 and an observation that says so; like every action it costs a step.
- As long as the episode goes on, the observation ends with a line on the actions (`HELP`). It is neither in the task's text, by
  which tasks are compared, nor in the state.
- `search` is BM25 over title and text (`support/ranking.py`; needs `pip install bm25s`); a passage whose title
  equals the query goes first.

The questions and passages:

- `hotpot`: a small file of ours, not HotpotQA: 75 questions (50 of the kind bridge, 25 comparisons) over 133
  passages about a coast that does not exist, invented so that no model can know the answers. Nothing measured on it can be
  compared with published numbers. The world `questions` asks the same questions for one written answer.
- `hotpot?file=PATH`: a file in HotpotQA's own distractor layout, a JSON list or one object in each line, with `question`,
  `answer`, `context` ([[title, [sentence, ...]], ...]) and, if they are known, `supporting_facts` ([[title, number of the
  sentence], ...]), `_id` and `type`. All its passages together are what is searched; the same passage
  under several questions counts once. That makes the search harder than ten passages for each question, and easier than
  all of Wikipedia.

Splits are those of `support/question_files.py`; `split=test` puts all questions into one, for a file that is a test set already.
The passages are shared by all.

No actions are listed, because any words can be searched for: a policy that only scores listed actions cannot play it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...memory.errors import UserError
from ...memory.records import Observation, Task
from .questions import OWN_QUESTIONS, exact_match, normalise_answer
from .support.arguments import check_settings, pick_task
from .support.question_files import find_row, name_file, read_objects, split_places
from .support.ranking import Ranking
from .support.worlds import TurnWorld

__all__ = ["Passages"]

HORIZON = 15
HELP = (
    "\nActions: search[words] shows the passages that fit best, and opens the first of them; lookup[word] shows the next "
    "sentence with that word in the open passage; finish[answer] ends it with a short answer: a name, a number, yes or no."
)
"""Last line of every observation except the final one."""
_SETTINGS = ("file", "split")
_RESULTS, _SENTENCES = 3, 2
"""Passages that a search shows, and sentences of each."""
_INSTANT = 5000
"""Number of passages up to which a search takes a fraction of a millisecond."""
_LONGEST = 300

_ACTION = re.compile(r"(search|lookup|finish) ?\[(.*)\]\.?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Passage:
    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Question:
    id: str
    text: str
    answer: str
    kind: str
    """`bridge` or `comparison`; empty if the file does not say."""
    titles: tuple[str, ...]
    """Titles of the passages that support the answer; empty if the file does not say."""


@dataclass(frozen=True, slots=True)
class _Turn:
    text: str
    reward: float = 0.0
    over: bool = False
    open: int | None = None
    """Number of the open passage."""
    word: str = ""
    """The word that was looked up last in the open passage."""
    shown: int = 0
    """Number of its sentences with that word that were shown."""


class Passages(TurnWorld[_Turn]):
    """An environment of multi-hop questions over the passages of a file.

    Args:
        settings: `file` (a path); `split` (train, dev or test: all questions of the file belong to it).
        horizon: number of steps after which an episode ends.
    """

    free_text = ("search", "lookup", "finish")
    """Any text may be an action; what is in the brackets of these is the player's own words."""

    def __init__(self, settings: Mapping[str, str] | None = None, horizon: int = HORIZON) -> None:
        chosen = dict(settings or {})
        check_settings("hotpot:", chosen, _SETTINGS)
        path = Path(chosen.get("file", OWN_QUESTIONS))
        self.questions, self.passages = _load(path)
        changed = [name_file(path, (self.questions, self.passages))] if "file" in chosen else []
        changed += [f"split={chosen['split']}"] if chosen.get("split") else []
        super().__init__("hotpot" + ("?" if changed else "") + ",".join(changed), horizon)
        self.instant = len(self.passages) <= _INSTANT
        self._splits = split_places("hotpot", [one.text for one in self.questions], chosen.get("split", ""))
        self._titles: dict[str, int] = {}
        for place, passage in enumerate(self.passages):
            self._titles.setdefault(normalise_answer(passage.title), place)
        self._ranking = Ranking([" ".join((p.title, *p.sentences)) for p in self.passages], "hotpot")

    def task(self, seed: int, split: str = "test") -> Task:
        """The `seed`-th question of a split; `Task.seed` is its number in the file, from 0."""
        place = pick_task(self.name, self._splits, split, seed)
        return Task(f"hotpot-{split}-{seed}", self.questions[place].text, place)

    def question(self, task: Task) -> _Question:
        """The question of a task, with its answer and the other fields of the file.

        Raises:
            UserError: the task is of another file.
        """
        return find_row(self.name, self.questions, task)

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The question; after actions, the passages found, or the end. Below it the line on the actions."""
        self.question(task)
        turn = self.turn(task, actions)
        over = turn.over or len(actions) >= self.horizon
        return Observation(turn.text if over else turn.text + HELP, (), turn.reward, over)

    def abstract(self, observation: Observation) -> str:
        """The observation without the line on the actions."""
        return observation.text.removesuffix(HELP)

    def hide_verdict(self, observation: Observation) -> str:
        """The text of an observation; empty where it says whether an answer is right."""
        return "" if observation.text in ("right", "wrong") else observation.text

    def solution(self, task: Task) -> tuple[str, ...]:
        """Searches for the passages that support the answer, if the file names them, then the answer."""
        question = self.question(task)
        searches = [f"search[{title}]" for title in question.titles]
        return (*searches[: self.horizon - 1], f"finish[{question.answer}]")

    def bare_answer(self, task: Task) -> str:
        """The answer alone: a lesson that tells it is no lesson."""
        return self.question(task).answer

    def _first(self, task_seed: int) -> _Turn:
        return _Turn(f"question: {self.questions[task_seed].text}")

    def _next(self, before: _Turn, action: str, task_seed: int) -> _Turn:
        read = _ACTION.fullmatch(" ".join(action.split()))
        asked = read[2].strip() if read else ""
        if not read or not asked:
            said = "this cannot be read: an action is search[words], lookup[word] or finish[answer]"
            return replace(before, text=said, reward=0.0)
        match read[1].lower():
            case "search":
                return self._search(asked)
            case "lookup":
                return self._look_up(before, asked)
            case _:
                right = exact_match(asked, self.questions[task_seed].answer)
                return _Turn("right" if right else "wrong", float(right), True)

    def _search(self, asked: str) -> _Turn:
        found = self._ranking.top_places(asked, _RESULTS)
        named = self._titles.get(normalise_answer(asked))
        if named is not None:
            found = [named, *(place for place in found if place != named)]
        found = found[:_RESULTS]
        if not found:
            return _Turn(f"nothing found for {asked[:_LONGEST]!r}")
        shown = [self.passages[place] for place in found]
        text = "\n".join(f"{p.title}: {' '.join(p.sentences[:_SENTENCES])}" for p in shown)
        return _Turn(text, open=found[0])

    def _look_up(self, before: _Turn, word: str) -> _Turn:
        if before.open is None:
            return replace(before, text="no passage is open: search first", reward=0.0)
        passage, word = self.passages[before.open], word.lower()
        fitting = [sentence for sentence in passage.sentences if word in sentence.lower()]
        at = before.shown if word == before.word else 0
        if at == len(fitting):
            text = f"{passage.title}: no {'more ' if fitting else ''}sentence with {word[:_LONGEST]!r}"
            return _Turn(text, open=before.open, word=word, shown=at)
        text = f"{passage.title} ({at + 1} of {len(fitting)}): {fitting[at]}"
        return _Turn(text, open=before.open, word=word, shown=at + 1)


# The file


_EXPECTED = (
    "expected is HotpotQA's layout, a JSON list or one object in each line: "
    '{"question": "…", "answer": "…", "context": [["title", ["sentence", …]], …], "supporting_facts": [["title", 0], …]}'
)


def _load(path: Path) -> tuple[tuple[_Question, ...], tuple[_Passage, ...]]:
    """The questions of a file in order, and its passages in order of appearance, each once."""
    rows = [_question(f"{path} {where}", item) for where, item in read_objects("hotpot", path, _EXPECTED)]
    return tuple(question for question, _ in rows), tuple(dict.fromkeys(passage for _, context in rows for passage in context))


def _question(where: str, item: Any) -> tuple[_Question, tuple[_Passage, ...]]:
    try:
        text, answer = _single_spaced(item["question"]), item["answer"].strip()
        passages = tuple(_Passage(_single_spaced(title), _sentences(sentences)) for title, sentences in item["context"])
        titles = tuple(dict.fromkeys(_single_spaced(title) for title, _ in item.get("supporting_facts") or ()))
    except (AttributeError, KeyError, TypeError, ValueError) as cause:
        raise UserError(f"hotpot: {where} has another layout ({type(cause).__name__}: {cause}); {_EXPECTED}") from cause
    for lacks, what in (
        (
            not text or not normalise_answer(answer),
            f"no question, or nothing of the answer {answer!r} but punctuation and articles",
        ),
        (
            not passages or not all(one.title and one.sentences for one in passages),
            "no passage, or one without title or sentence",
        ),
        (not {*titles} <= {one.title for one in passages}, f"no passage of one of the supporting titles {', '.join(titles)}"),
    ):
        if lacks:
            raise UserError(f"hotpot: {where} has {what}; {_EXPECTED}")
    return _Question(str(item.get("_id", item.get("id", ""))), text, answer, str(item.get("type", "")), titles), passages


def _single_spaced(text: str) -> str:
    return " ".join(text.split())


def _sentences(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list):
        raise TypeError(f"sentences are a list, got {str(given)[:60]!r}")
    return tuple(_single_spaced(one) for one in given if one.strip())
