"""A small library of lessons with edits: every edit gets a ruling that is kept, and every earlier version can come back.

The paper has a model apply the edits and renumbers the result (arXiv:2510.08191): ids then name other lessons, edits of unknown
ids vanish, and nothing limits length or number. Here `Library.apply` is a pure function: the same edits in the same order give
the same library, every edit gets a `Ruling`, and within a history (`LibraryVersions`) no id is used for a second lesson.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from hashlib import blake2b
from typing import Any

from ..display import ShownAsTable, Table, make_table
from ..errors import UserError
from ..records import OPS, Edit, Lesson, Ruling
from ..search.similarity import jaccard, shingles, words

__all__ = ["Library", "LibraryError", "LibraryLimits", "diff", "lesson_similarity", "one_line"]


class LibraryError(UserError, ValueError):
    """A library that cannot be read or made, or a lesson or version that does not exist."""


@dataclass(frozen=True)
class LibraryLimits:
    """Limits of a library, enforced by `Library.apply`."""

    max_words: int = 32
    """Words of a lesson at most; a longer text is rejected, not cut. Paper: 32, in a prompt only."""
    max_lessons: int = 40
    """Lessons of the library at most. Paper: no limit; the libraries of its reference code have 27 and 46."""
    max_library_tokens: int = 2000
    """Tokens of the library in a prompt at most, and at most half of what a prompt has room for. Paper: no limit; those of
    its reference code have about 1300 and 2800."""
    duplicate_similarity: float = 0.8
    """Jaccard similarity of shingles (`lesson_similarity`) from which two lessons count as the same; above 1: never. Paper: a
    model's judgement."""

    def __post_init__(self) -> None:
        if min(self.max_words, self.max_lessons, self.max_library_tokens) < 1 or not self.duplicate_similarity > 0:
            raise LibraryError(f"limits of a library are at least 1 and duplicate_similarity is above 0, got {self}")


_BROKEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # control characters, and halves of characters


def one_line(text: object) -> str:
    """A text in one line, without control characters, as lessons hold it; empty for anything but a text."""
    return " ".join(_BROKEN.sub(" ", text).split()) if isinstance(text, str) else ""


_TELLING = frozenset(
    "no not never none neither nor without cannot can't don't doesn't isn't aren't won't shouldn't mustn't avoid unless".split()  # noqa: SIM905
)


_COMMON = frozenset(
    """a about after again all also always an and any are as at be been before but by can do does each even every first for from
    get go has have how if in into is it its make more most much must never no not of on once one only or other out over put
    should so some such take than that the their them then there these they this those through to too until up use very was
    well what when where which while who why will with without you your""".split()  # noqa: SIM905
)
"""Words that do not tell the subject of a text."""


def _telling(tokens: Iterable[str]) -> Counter[str]:
    return Counter(token for token in tokens if token in _TELLING or token[0].isdigit())


def lesson_similarity(a: str, b: str) -> float:
    """Similarity of two lessons in [0, 1]: the Jaccard index of their shingles.

    It is 0 if they differ in numbers or negations: "never open it" shares nearly all words with its opposite.
    """
    if _telling(words(a.replace("’", "'"))) != _telling(words(b.replace("’", "'"))):
        return 0.0
    return jaccard(frozenset(shingles(a)), frozenset(shingles(b)))


_ID = re.compile(r"[\s\[({<\"'`#*]*(?:lesson\s*)?l?\s*([0-9]{1,9})[\s\])}>\"'`*:.,]*", re.IGNORECASE)
_LINE = re.compile(r"\s*-?\s*(?:\[L([0-9]{1,9})\]|L([0-9]{1,9}):)\s+\S", re.IGNORECASE)


def _number(id: object) -> int | None:
    """The n of an id L<n> in any of a model's spellings: `[L3]`, `l3:`, `3`, or the lesson's whole line; None for other values."""
    if isinstance(id, int | float) and not isinstance(id, bool):
        return int(id) if 0 <= id < 1e9 and id == int(id) else None
    if not isinstance(id, str):
        return None
    found = _ID.fullmatch(id) if len(id) <= 40 else None
    found = found or _LINE.match(id)
    return int(next(group for group in found.groups() if group)) if found else None


@dataclass(frozen=True, slots=True)
class Library(ShownAsTable):
    """Lessons in order, each with an id `L<n>` that never changes.

    Raises:
        LibraryError: an id has another form or is there twice, or a lesson has no text.
    """

    lessons: tuple[Lesson, ...] = ()
    next: int = 0
    """n of the next id. It never decreases: ids of deleted lessons are not used again."""
    free_from: int = field(default=0, compare=False, repr=False)
    """The n from which ids are free in the history (`LibraryVersions`) of this library; not written to files."""
    written_by: str = field(default="", compare=False)
    """Name of the model that wrote the lessons; empty: not known, or no model."""
    tested_with: str = field(default="", compare=False)
    """Name of the model with which these lessons passed their accept test; empty: they passed none."""

    def __post_init__(self) -> None:
        tidy = tuple(x if x.text == (text := one_line(x.text)) else replace(x, text=text) for x in self.lessons)
        seen: set[str] = set()
        for lesson in tidy:
            if not re.fullmatch(r"L(0|[1-9][0-9]{0,8})", lesson.id):
                raise LibraryError(f"the id of a lesson is L<number>, got {lesson.id!r}")
            if lesson.id in seen:
                raise LibraryError(f"two lessons have the id {lesson.id}")
            if not lesson.text:
                raise LibraryError(f"lesson {lesson.id} has no text")
            seen.add(lesson.id)
        object.__setattr__(self, "lessons", tidy)
        object.__setattr__(self, "next", max([self.next, *(int(id[1:]) + 1 for id in seen)]))

    def table(self) -> Table:
        """A table of the lessons in order."""
        head = ("id", "lesson", "helpful", "harmful", "shown", "step", "learned on")
        rows = (
            (one.id, one.text, one.helpful, one.harmful, one.shown, one.step, ", ".join(one.problems)) for one in self.lessons
        )
        models = [f"written by {self.written_by}"] * bool(self.written_by) + [f"tested with {self.tested_with}"] * bool(
            self.tested_with
        )
        title = ", ".join([f"a library of {len(self.lessons)} lessons", *models])
        return make_table(title, head, rows, len(self.lessons))

    @property
    def key(self) -> str:
        """A digest of ids and texts in order: of all that prompts can show. Votes and provenance do not change it, although
        `select` may choose other lessons by them.
        """
        shown = json.dumps([(lesson.id, lesson.text) for lesson in self.lessons])
        return blake2b(shown.encode(), digest_size=10).hexdigest()

    def other_model(self, reader: str) -> str:
        """A sentence if a model is about to read lessons that passed their accept test with another one, or that another one wrote
        and no test was passed; empty if there is nothing to say, also where it is not known.

        Lessons help the model that they were written for: another one may do worse with them than without.
        """
        known = self.tested_with or self.written_by
        if not self.lessons or not known or not reader or known == reader:
            return ""
        told = f"were written by {self.written_by}" if self.written_by else "were learned"
        test = f"passed their accept test with {self.tested_with}" if self.tested_with else "passed no accept test"
        return f"these lessons {told} and {test}; {reader} is about to read them: test whether they help it, too"

    def resolve(self, id: object) -> str | None:
        """The id of the lesson that a spelling names (`[L3]`, `l3`, `L3:`, ` 3 ` and 3 name L3); None if there is none."""
        number = _number(id)
        return next((x.id for x in self.lessons if x.id == f"L{number}"), None) if number is not None else None

    def lesson(self, id: object) -> Lesson:
        """The lesson with this id, in any spelling.

        Raises:
            LibraryError: there is no such lesson; names the existing ones.
        """
        found = self.resolve(id)
        if found is None:
            there = ", ".join(x.id for x in self.lessons) or "none at all"
            raise LibraryError(f"there is no lesson {id!r}; there are {there}")
        return next(x for x in self.lessons if x.id == found)

    def apply(
        self,
        edits: Sequence[Edit],
        limits: LibraryLimits,
        count: Callable[[str], int],
        *,
        instructions: Mapping[str, str] | None = None,
    ) -> tuple[Library, tuple[Ruling, ...]]:
        """The library after these edits, and a ruling for each of them. Pure; no edit raises an error.

        1. delete: takes precedence over every other edit of the same lesson.
        2. merge, in the given order. A lesson takes part in the first merge only. Sources that are deleted, merged already or
           unknown are left out; a merge needs two sources that remain. The oldest source keeps its id and its place, and gets
           the votes and the provenance of all.
        3. modify, in the given order. The first one of a lesson is applied, unless the lesson was merged. A later one with the
           same meaning is a vote for it.
        4. keep: a vote for the lesson, or for the one that it was merged into.
        5. add, in the given order. A text that says the same as a lesson (`limits.duplicate_similarity`; the most similar, then
           the oldest lesson) becomes a vote for that lesson, which also gets its provenance.
        6. If a limit is exceeded, the least valued lessons are evicted: fewest helpful less harmful votes; then shown most often,
           with the most chances to earn a vote; then the oldest.

        Args:
            edits: the edits.
            limits: the limits of the library.
            count: counts the tokens of a text.
            instructions: task id -> instruction, of the edits' problems; `select` finds lessons by them.

        Returns:
            The library, and the rulings in the order of the edits, one or more each; those of evicted lessons are last.
        """
        if not edits:
            return self, ()
        draft = _Draft(self, limits, count, instructions or {})
        steps: Mapping[str, Callable[[Edit], list[Ruling]]] = {
            "delete": draft.delete,
            "merge": draft.merge,
            "modify": draft.modify,
            "keep": draft.keep,
            "add": draft.add,
        }
        ruled: dict[int, list[Ruling]] = {
            n: [Ruling(edit, False, f"there is no operation {edit.op!r}; there are {', '.join(OPS)}")]
            for n, edit in enumerate(edits)
            if edit.op not in OPS
        }
        for op, step in steps.items():
            for n, edit in enumerate(edits):
                if edit.op == op:
                    ruled[n] = step(edit)
        gone = draft.evict(max(edit.step for edit in edits))
        made = Library(tuple(draft.lessons.values()), draft.next, self.free_from, self.written_by)
        return made, (*(ruling for n in range(len(edits)) for ruling in ruled[n]), *gone)

    def trim_to_limits(self, limits: LibraryLimits, count: Callable[[str], int]) -> tuple[Library, tuple[Ruling, ...]]:
        """The library without the lessons that `apply` would refuse or evict, and a ruling for each of those: for libraries from
        elsewhere. Duplicates stay.
        """
        draft = _Draft(self, limits, count, {})
        gone = []
        for lesson in self.lessons:
            if wrong := draft.check_text(Edit("add", (), lesson.text))[1]:
                del draft.lessons[lesson.id]
                gone.append(Ruling(Edit("delete", (lesson.id,), lesson.text, wrong), True, f"evicted: {wrong}", lesson.id))
        gone += draft.evict(0)
        tested = "" if gone else self.tested_with
        return replace(self, lessons=tuple(draft.lessons.values()), tested_with=tested), tuple(gone)

    def with_votes(self, votes: Iterable[tuple[str, int]]) -> Library:
        """The library with these votes counted: (lesson id, votes: above 0 helpful, below 0 harmful). Unknown ids are ignored."""
        total: dict[str, list[int]] = {}
        for id, vote in votes:
            found = self.resolve(id)
            if found is not None:
                total.setdefault(found, []).append(vote)
        return replace(
            self,
            lessons=tuple(
                replace(
                    x,
                    helpful=x.helpful + sum(vote for vote in total[x.id] if vote > 0),
                    harmful=x.harmful - sum(vote for vote in total[x.id] if vote < 0),
                )
                if x.id in total
                else x
                for x in self.lessons
            ),
        )

    def with_shown_counts(self, ids: Iterable[str]) -> Library:
        """The library with `shown` one higher for every time that a lesson's id is given."""
        times = Counter(map(self.resolve, ids))
        return replace(self, lessons=tuple(replace(x, shown=x.shown + times[x.id]) for x in self.lessons))

    def select(self, instruction: str, lessons_per_prompt: int = 0) -> tuple[Lesson, ...]:
        """The lessons for a task, in the library's order: all (`lessons_per_prompt` 0), or the number of lessons that fit it best.

        The score of a lesson is the share of its words that occur in `instruction`, common words left out, plus the greatest
        Jaccard index of `instruction` and an instruction that the lesson was learned on. Lessons without a shared word are not
        shown. Ties go to the lesson with more votes, then to the newer one. `instruction` may include the first observation.
        """
        if lessons_per_prompt <= 0:
            return self.lessons
        asked, heard = frozenset(shingles(instruction)), frozenset(words(instruction))
        ranks = []
        for lesson in self.lessons:
            own = frozenset(words(lesson.text))
            own = own - _COMMON or own
            if share := len(own & heard) / len(own):
                taught = (jaccard(asked, frozenset(shingles(text))) for text in lesson.instruction.splitlines())
                near = share + max(taught, default=0.0)
                ranks.append((near, lesson.helpful - lesson.harmful, int(lesson.id[1:])))
        chosen = {f"L{number}" for _, _, number in sorted(ranks)[-lessons_per_prompt:]}
        return tuple(lesson for lesson in self.lessons if lesson.id in chosen)

    def text(self, instruction: str = "", lessons_per_prompt: int = 0, with_ids: bool = True) -> str:
        """The selected lessons as prompts show them, a line each: `- [L3] text`, without ids `- text`. Empty without lessons."""
        return "".join(_line(lesson, with_ids) for lesson in self.select(instruction, lessons_per_prompt))

    def to_yaml(self) -> str:
        """The library as YAML that a person can read and edit. Equal libraries give equal texts."""
        import yaml  # type: ignore[import-untyped, unused-ignore]

        class Dumper(yaml.SafeDumper):  # type: ignore[misc, unused-ignore]
            """Quotes texts with odd line breaks, which PyYAML would read back as blanks, and writes no aliases."""

            def ignore_aliases(self, data: Any) -> bool:
                return True

        Dumper.add_representer(
            str, lambda d, t: d.represent_scalar("tag:yaml.org,2002:str", t, style='"' if _ODD.search(t) else None)
        )
        models = {"written_by": self.written_by, "tested_with": self.tested_with}
        models |= {"tested_key": self.key if self.tested_with else ""}
        lessons = [
            {name: list(value) if isinstance(value, tuple) else value for name, value in file_fields(lesson)}
            for lesson in self.lessons
        ]
        file = {**{name: value for name, value in models.items() if value}, "next": self.next, "lessons": lessons}
        style = {"sort_keys": False, "allow_unicode": True, "width": float("inf"), "default_flow_style": None}
        return f"{_HEADER}{yaml.dump(file, Dumper=Dumper, **style)}"

    @classmethod
    def from_yaml(cls, text: str, source: str = "the library", free_from: int = 0) -> Library:
        """The library of a YAML text that `to_yaml` wrote and a person may have edited.

        Missing counters are 0, a lesson may be a bare text, and a lesson without an id gets the next free one, from `free_from` on.

        Raises:
            LibraryError: the text cannot be read; names `source` and the lesson or the line.
        """
        import yaml

        hint = "a text with ': ' or ' #' in it wants quotes around it"
        if cut := next((line for line in text.splitlines() if _COMMENT.match(line)), ""):
            raise LibraryError(f"{source}: YAML reads the end of {cut.strip()!r} as a comment; {hint}")
        try:
            data = yaml.safe_load(_BROKEN_YAML.sub(" ", text))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise LibraryError(f"{source}: this is not YAML: {' '.join(str(error).split())}; {hint}") from error
        file = data if isinstance(data, dict) else {"lessons": data}
        if unknown := [name for name in file if name not in ("next", "lessons", *_MODELS)]:
            known = ", ".join(("next", "lessons", *_MODELS))
            raise LibraryError(f"{source}: there is no {unknown[0]!r} in a library; there are {known}")
        first, items = file.get("next", 0), file.get("lessons") or []
        if not isinstance(first, int) or isinstance(first, bool) or first < 0:
            raise LibraryError(f"{source}: next is the number of the next id, got {first!r}")
        if not isinstance(items, list):
            raise LibraryError(f"{source}: asked for a list of lessons, got {str(items)[:60]!r}")
        lessons = [_lesson(item, f"{source}: lesson {n}") for n, item in enumerate(items, 1)]
        ids = [lesson.id for lesson in lessons if lesson.id]
        if doubled := [id for id, times in Counter(ids).items() if times > 1]:
            raise LibraryError(f"{source}: two lessons have the id {doubled[0]}; leave the id of the new one out")
        if len(ids) < len(lessons):
            first = max([first, free_from, *(int(id[1:]) + 1 for id in ids)])
        free = iter(range(first, first + len(lessons)))
        named = tuple(lesson if lesson.id else replace(lesson, id=f"L{next(free)}") for lesson in lessons)
        models = {name: one_line(str(file.get(name) or "")) for name in _MODELS}
        read = cls(named, first + len(lessons) - len(ids), free_from, models["written_by"])
        # A library that a person has edited since is not the one that passed the test.
        return replace(read, tested_with=models["tested_with"]) if models["tested_key"] == read.key else read


def _line(lesson: Lesson, ids: bool = True) -> str:
    return f"- [{lesson.id}] {lesson.text}\n" if ids else f"- {lesson.text}\n"


# Edits


def _add_provenance(lesson: Lesson, problems: Sequence[str], rewards: Sequence[float], instruction: str) -> Lesson:
    """The lesson with more provenance. A group that it has already is not counted again."""
    new = [problem for problem in problems if problem not in lesson.problems]
    size = len(rewards)
    runs = range(len(lesson.rewards) - size + 1)
    known = not new and any(lesson.rewards[at : at + size] == tuple(rewards) for at in runs)
    lines = dict.fromkeys((*lesson.instruction.splitlines(), *instruction.splitlines()))
    return replace(
        lesson,
        problems=(*lesson.problems, *dict.fromkeys(new)),
        rewards=lesson.rewards if known else (*lesson.rewards, *rewards),
        instruction="\n".join(lines),
    )


class _Draft:
    """A library while edits are applied to it; see `Library.apply` for the rules."""

    def __init__(
        self, library: Library, limits: LibraryLimits, count: Callable[[str], int], instructions: Mapping[str, str]
    ) -> None:
        self.library, self.limits, self.count = library, limits, count
        self.instructions = instructions
        self.lessons = {lesson.id: lesson for lesson in library.lessons}
        self.next = library.next
        self.deleted: set[str] = set()
        self.merged: dict[str, str] = {}  # every source of a merge -> the one that was kept
        self.modified: set[str] = set()

    def delete(self, edit: Edit) -> list[Ruling]:
        rulings = []
        for name in edit.lessons or ("",):
            id = self.library.resolve(name)
            if id is None:
                rulings.append(self.unknown_lesson(edit, name))
                continue
            rulings.append(Ruling(edit, True, f"{id} was deleted already" if id in self.deleted else "", id))
            self.lessons.pop(id, None)
            self.deleted.add(id)
        return rulings

    def merge(self, edit: Edit) -> list[Ruling]:
        text, wrong = self.check_text(edit)
        if wrong:
            return [Ruling(edit, False, wrong)]
        found = {name: self.library.resolve(name) for name in edit.lessons}
        ids = [id for id in dict.fromkeys(found.values()) if id is not None]
        kept = {self.merged.get(id) for id in ids}
        if len(ids) > 1 and len(kept) == 1 and None not in kept and (same := self.vote_if_same(edit, text, str(*kept))):
            return same
        out = [f"{name or 'an empty id'} is unknown" for name, id in found.items() if id is None]
        out += [
            f"{id} is {'deleted' if id in self.deleted else 'merged'} by another edit" for id in ids if not self.is_free(id)
        ]
        sources = sorted((id for id in ids if self.is_free(id)), key=lambda id: int(id[1:]))
        if len(sources) < 2:
            reason = "; ".join([f"a merge is of two lessons or more, got {', '.join(sources) or 'none'}", *out])
            return [Ruling(edit, False, reason)]
        oldest, *others = sources
        lesson = self.lessons[oldest]
        for id in others:
            other = self.lessons.pop(id)
            lesson = replace(
                _add_provenance(lesson, other.problems, other.rewards, other.instruction),
                helpful=lesson.helpful + other.helpful,
                harmful=lesson.harmful + other.harmful,
                shown=max(lesson.shown, other.shown),
                sources=tuple(dict.fromkeys((*lesson.sources, *other.sources))),
            )
        self.write(oldest, self.with_provenance(lesson, edit), text, edit)
        self.merged |= dict.fromkeys(sources, oldest)
        told = f"{', '.join(others)} went into {oldest}"
        return [Ruling(edit, True, "; ".join([told, *out]), oldest)]

    def modify(self, edit: Edit) -> list[Ruling]:
        if len(edit.lessons) != 1:
            got = ", ".join(map(str, edit.lessons)) or "none"
            return [Ruling(edit, False, f"modify is of one lesson, got {got}; merge makes one of several")]
        text, wrong = self.check_text(edit)
        if wrong:
            return [Ruling(edit, False, wrong)]
        id = self.library.resolve(edit.lessons[0])
        if id is None:
            return [self.unknown_lesson(edit, edit.lessons[0])]
        if id in self.deleted:
            return [Ruling(edit, False, f"{id} is deleted by another edit")]
        if id in self.merged or id in self.modified or text == self.lessons[id].text:
            verb = "merged" if id in self.merged else "modified"
            other = Ruling(edit, False, f"{id} is {verb} by another edit")
            return self.vote_if_same(edit, text, self.merged.get(id, id)) or [other]
        self.write(id, self.with_provenance(self.lessons[id], edit), text, edit)
        self.modified.add(id)
        return [Ruling(edit, True, "", id)]

    def keep(self, edit: Edit) -> list[Ruling]:
        rulings = []
        for name in edit.lessons or ("",):
            id = self.library.resolve(name)
            if id is None:
                rulings.append(self.unknown_lesson(edit, name))
            elif id in self.deleted:
                rulings.append(Ruling(edit, False, f"{id} is deleted by another edit"))
            else:
                now = self.merged.get(id, id)
                self.lessons[now] = replace(self.lessons[now], helpful=self.lessons[now].helpful + 1)
                rulings.append(Ruling(edit, True, f"{id} went into {now}" if now != id else "", now))
        return rulings

    def add(self, edit: Edit) -> list[Ruling]:
        text, wrong = self.check_text(edit)
        if wrong:
            return [Ruling(edit, False, wrong)]
        if self.limits.duplicate_similarity <= 1:
            near = [(lesson_similarity(text, lesson.text), -int(id[1:])) for id, lesson in self.lessons.items()]
            best, number = max(near, default=(0.0, 0))
            if best >= self.limits.duplicate_similarity:
                return self.vote(edit, f"L{-number}", best)
        id = f"L{max(self.next, self.library.free_from)}"
        self.next = int(id[1:]) + 1
        self.write(id, self.with_provenance(Lesson(id, text), edit), text, edit)
        return [Ruling(edit, True, "", id)]

    def evict(self, step: int) -> list[Ruling]:
        rulings = []
        while self.lessons and (over := self.exceeded_limit()):
            id = min(self.lessons, key=self.value)
            gone = self.lessons.pop(id)
            why = f"{over}; it was the least valued: +{gone.helpful} -{gone.harmful}, shown {gone.shown} times"
            rulings.append(Ruling(Edit("delete", (id,), gone.text, why, step=step), True, f"evicted: {why}", id))
        return rulings

    def exceeded_limit(self) -> str:
        """The limit that is exceeded, as text; empty if none is."""
        if len(self.lessons) > self.limits.max_lessons:
            return f"{len(self.lessons)} lessons are more than {self.limits.max_lessons}"
        tokens = self.count("".join(map(_line, self.lessons.values())))
        return (
            f"{tokens} tokens are more than {self.limits.max_library_tokens}" if tokens > self.limits.max_library_tokens else ""
        )

    def value(self, id: str) -> tuple[int, int, int]:
        lesson = self.lessons[id]
        return lesson.helpful - lesson.harmful, -lesson.shown, int(id[1:])

    def is_free(self, id: str) -> bool:
        return id not in self.deleted and id not in self.merged

    def check_text(self, edit: Edit) -> tuple[str, str]:
        """The text of an edit, and what is wrong with it (empty if nothing is)."""
        text = one_line(edit.text)
        if not text:
            return "", f"{edit.op} needs a text"
        if (size := len(text.split())) > self.limits.max_words:
            return text, f"{size} words are more than {self.limits.max_words}"
        line = _line(Lesson(f"L{max(self.next, self.library.free_from)}", text))
        if (tokens := self.count(line)) > self.limits.max_library_tokens:
            return text, f"{tokens} tokens are more than the {self.limits.max_library_tokens} of all lessons together"
        return text, ""

    def vote_if_same(self, edit: Edit, text: str, id: str) -> list[Ruling]:
        """A vote for the lesson if a second edit says the same; an empty list if it says something else."""
        near = 1.0 if text == self.lessons[id].text else lesson_similarity(text, self.lessons[id].text)
        return self.vote(edit, id, near) if near >= min(self.limits.duplicate_similarity, 1.0) else []

    def vote(self, edit: Edit, id: str, near: float) -> list[Ruling]:
        lesson = self.with_provenance(self.lessons[id], edit)
        self.lessons[id] = replace(lesson, helpful=lesson.helpful + 1)
        return [Ruling(edit, True, f"says what {id} says ({near:.2f})", id)]

    def with_provenance(self, lesson: Lesson, edit: Edit) -> Lesson:
        """The lesson with the edit's provenance."""
        texts = [one_line(self.instructions.get(problem, "")) for problem in edit.problems]
        return _add_provenance(lesson, edit.problems, edit.rewards, "\n".join(filter(None, texts)))

    def write(self, id: str, lesson: Lesson, text: str, edit: Edit) -> None:
        self.lessons[id] = replace(lesson, text=text, step=edit.step)

    def unknown_lesson(self, edit: Edit, name: object) -> Ruling:
        there = ", ".join(x.id for x in self.library.lessons) or "none"
        return Ruling(
            edit, False, f"{edit.op} of which lesson?" if name == "" else f"there is no lesson {name!r}; there are {there}"
        )


# Files for people

_HEADER = """\
# A library of lessons (learngraph). Every text may be edited, lessons may be deleted, moved and added: a new one needs only a
# text (- text: ...) and is given an id when it is read. An id stays with its lesson; next is the number of the next id.
"""
_MODELS = ("written_by", "tested_with", "tested_key")
_BROKEN_YAML = re.compile(r"[\ud800-\udfff]")
_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
_COMMENT = re.compile(r"""(\s*-\s+|\s+)(text:\s*)?[^\s"'#|>\[{][^"']*\s#""")
"""A lesson's text without quotes, with ` #` in it: YAML would cut it there."""
_ALWAYS = ("id", "text", "helpful", "harmful", "shown", "step", "problems", "rewards")
_NAMES = (*_ALWAYS, *(f.name for f in fields(Lesson) if f.name not in _ALWAYS))
_DEFAULTS = {f.name: () if f.default is MISSING else f.default for f in fields(Lesson)}


def file_fields(lesson: Lesson) -> Iterable[tuple[str, Any]]:
    """Fields and values of a lesson in a file: optional fields only if they differ from their defaults."""
    for name in _NAMES:
        value = getattr(lesson, name)
        if name in _ALWAYS or value != _DEFAULTS[name]:
            yield name, plain_value(tuple(map(float, value)) if name == "rewards" else value)


def plain_value(value: Any) -> Any:
    """The value without lone surrogates, which UTF-8 cannot encode."""
    if isinstance(value, str):
        return _BROKEN_YAML.sub("\ufffd", value)
    if isinstance(value, dict):
        return {plain_value(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain_value, value))
    return value


def _lesson(item: Any, where: str) -> Lesson:
    """A lesson of a file; its id is empty if the file gives none."""
    given = item if isinstance(item, dict) else {"text": item}
    if unknown := [name for name in given if name not in _NAMES]:
        raise LibraryError(f"{where} has a field {unknown[0]!r}; there are {', '.join(_NAMES)}")
    id = given.get("id")
    number = _number(id)
    if id not in (None, "") and number is None:
        raise LibraryError(f"{where} has the id {id!r}; an id is L<number>, and a new lesson needs none")
    values = {name: _read(name, value, where) for name, value in given.items() if name != "id" and value is not None}
    if not values.get("text"):
        raise LibraryError(f"{where} has no text; to delete a lesson, delete all its lines")
    return Lesson(id="" if number is None else f"L{number}", **values)


def _read(name: str, value: Any, where: str) -> Any:
    """The value of a lesson's field, of the type that the field has in `Lesson`."""
    kind = str if name == "text" else type(_DEFAULTS[name])
    if kind is int and type(value) is int and value >= 0:
        return value
    if kind is tuple:
        try:
            return tuple(map(float if name == "rewards" else str, value if isinstance(value, list) else [value]))
        except (TypeError, ValueError):
            pass
    if kind is str and not isinstance(value, bool | dict | list):
        return one_line(str(value)) if name == "text" else str(value)
    if name == "success" and isinstance(value, bool):
        return value
    what = {int: "a whole number from 0 on", tuple: "a list of numbers", str: "a text, in quotes"}.get(kind, "true or false")
    raise LibraryError(f"{where}: {name} is {what}, got {value!r}")


def diff(old: Library, new: Library) -> str:
    """The differences of two libraries for people: `-` deleted, `+` new, `~` changed with the old text below; empty without any."""
    was, now = {x.id: x for x in old.lessons}, {x.id: x for x in new.lessons}
    lines = []
    for id, lesson in was.items():
        if id not in now:
            lines.append(f"- [{id}] {lesson.text}\n")
            continue
        votes = [
            f"{name} {getattr(lesson, name)} -> {getattr(now[id], name)}"
            for name in ("helpful", "harmful", "shown")
            if getattr(lesson, name) != getattr(now[id], name)
        ]
        told = f" ({', '.join(votes)})" if votes else ""
        if lesson.text != now[id].text:
            lines.append(f"~ [{id}] {now[id].text}{told}\n  was: {lesson.text}\n")
        elif votes:
            lines.append(f"~ [{id}]{told}\n")
    lines += [f"+ [{id}] {lesson.text}\n" for id, lesson in now.items() if id not in was]
    if [id for id in was if id in now] != [id for id in now if id in was]:
        lines.append(f"~ the order: {', '.join(now)}\n")
    return "".join(lines)
