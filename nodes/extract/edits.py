"""Read edits of a library from a model's reply, item by item: what can be read is used, and what cannot is ruled on.

Models write JSON with comments, trailing commas, ellipses and LaTeX in it, in fences, in prose, cut off at the end; a strict
parser loses all of it for one bad sign, or turns `\\theta` into a tab and `heta`. The parser here reads on: a broken item costs
itself. One pass without recursion, over the last 200,000 characters of a reply: what is asked for stands at its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...memory.library import Library, LibraryLimits, one_line
from ...memory.records import OPS, Edit, Ruling
from ..ask import Unreadable

__all__ = ["as_edits", "json_values", "read_edits", "read_list"]


# JSON, as models write it


@dataclass(frozen=True, slots=True)
class BrokenValue:
    """A value that cannot be read."""

    raw: str


@dataclass(slots=True)
class _Frame:
    """An object or an array that is open."""

    start: int
    data: Any
    """What it holds so far: a dict or a list."""
    key: str | None = None
    """Of an object: the key whose value comes next."""
    colon: bool = False
    broken: bool = False

    @property
    def containers(self) -> Iterator[Any]:
        """The objects and arrays that are complete in it."""
        held = self.data.values() if isinstance(self.data, dict) else self.data
        return (value for value in held if isinstance(value, dict | list | BrokenValue))


_MAX_CHARACTERS = 200_000
"""Characters of a reply that are read, the last ones: rubbish takes about a second then."""
_MAX_DEPTH = 50
"""Levels of nesting; nothing that is asked for has more than four."""
_RAW = 400
"""Characters of a broken value that are kept, to be shown."""
_MAX_RESTARTS = 20
"""How often to read on after a string without an end: each time may go through all that is left."""
_FENCE = re.compile(r"^[ \t]*(?:```|~~~).*$", re.MULTILINE)
_SKIP = re.compile(r"(?:\s+|//[^\n]*|#[^\n]*|,|\.\.+|…)+")
_BARE = re.compile(r"[^\s,:{}\[\]\"'#]+(?:'[^\s,:{}\[\]\"'#]+)*")
_LONE = re.compile(r"[ \t]*[,}\n]")
_OPENING, _BRACKET = re.compile(r"[{\[]"), re.compile(r"[{}\[\]]")
_NUMBER = re.compile(r"[-+]?[0-9]{1,300}(?:\.[0-9]{1,300})?(?:[eE][-+]?[0-9]{1,3})?")
_WORDS = {"true": True, "false": False, "null": None, "none": None, "nil": None, "undefined": None}
_ENDS = {
    quote: re.compile(rf"\s*(?:[,:}}\]#…]|\.\.\.|//|/\*|\Z|{quote}\w+{quote}\s*:)|[ \t]*\n\s*[{quote}{{\[]") for quote in "\"'"
}
"""What may stand behind the end of a string. A quotation mark before anything else is a part of the text."""
_MARKS = {quote: re.compile(rf"[{quote}\\]") for quote in "\"'"}


def json_values(reply: str) -> list[Any]:
    """Every JSON object and array in a text that may say other things around it, the outermost ones, the last first.

    Tolerated: fences, comments, trailing and missing commas, ellipses, single quotes, keys without quotes, quotation marks
    and line breaks within strings, LaTeX (a backslash stays a backslash where JSON would refuse it, or make a control character
    of a command's first letter), and a missing end: what was complete is there. Of a longer reply the last 200,000 characters
    are read.
    """
    return [value for value in reversed(_parse(reply)) if not isinstance(value, BrokenValue)]


def _parse(reply: str) -> list[Any]:
    """The same, the first first, with what could not be read."""
    found: list[Any] = []
    for part in _FENCE.split(reply[-_MAX_CHARACTERS:]):
        found += _Reader(part).read()
    return found


class _Reader:
    """Reads a text once, from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.open: list[_Frame] = []
        self.found: list[tuple[int, Any]] = []
        self.comments = True  # whether a comment that begins may also end

    def read(self) -> list[Any]:
        text, at, again = self.text, 0, _MAX_RESTARTS
        while at < len(text):
            if not self.open:  # prose
                at = _start(_OPENING.search(text, at)) if again else len(text)
            elif self.open[-1].broken:
                at = _start(_BRACKET.search(text, at))
            elif skipped := _SKIP.match(text, at):
                at = skipped.end()
            if not 0 <= at < len(text):
                break
            sign = text[at]
            if sign in "{[":
                self.begin(at)
                at += 1
            elif sign in "}]":
                at += 1
                self.end(dict if sign == "}" else list, at)
            elif sign == ":":
                frame = self.open[-1]
                if frame.key is None or frame.colon:
                    self.junk(at)
                frame.colon = True
                at += 1
            elif sign in "\"'":
                end = self.closing(sign, at + 1)
                if end < 0:  # cut off, or no string at all
                    self.cut()
                    again -= 1
                else:
                    self.value(_decode(text[at + 1 : end]), at)
                at = max(at, end) + 1
            elif text.startswith("/*", at):
                end = text.find("*/", at) if self.comments else -1
                self.comments = end >= 0
                at = (end if end >= 0 else at) + 2
            else:
                bare = _BARE.match(text, at)
                at = bare.end() if bare else at + 1
                self.bare(bare[0] if bare else "", at)
        self.cut()
        return [value for _, value in sorted(self.found, key=lambda item: item[0])]

    def closing(self, quote: str, at: int) -> int:
        """Where the string that began before `at` ends; -1: nowhere."""
        while mark := _MARKS[quote].search(self.text, at):
            at = mark.end()
            if mark[0] == "\\":
                at += 1
            elif _ENDS[quote].match(self.text, at):
                return mark.start()
        return -1

    def begin(self, at: int) -> None:
        if len(self.open) == _MAX_DEPTH:
            self.drop(at)
        if self.open:
            frame = self.open[-1]
            if isinstance(frame.data, dict) and not frame.colon:
                self.junk(at)
        self.open.append(_Frame(at, {} if self.text[at] == "{" else []))

    def end(self, kind: type, at: int) -> None:
        if not any(isinstance(frame.data, kind) for frame in self.open):
            self.junk(at)
            return
        while not isinstance(self.open[-1].data, kind):
            self.close(at, cut=True)
        self.close(at)

    def close(self, at: int, cut: bool = False) -> None:
        """Take the innermost frame as complete. One that was cut off before it held anything is none: not an empty list."""
        frame = self.open.pop()
        if cut and not frame.data and not frame.broken:
            return
        value = BrokenValue(self.text[frame.start : min(at, frame.start + _RAW)]) if frame.broken else frame.data
        if self.open:
            self.value(value, frame.start)
        else:
            self.found.append((frame.start, value))

    def value(self, value: Any, at: int) -> None:
        """A value goes into the innermost frame."""
        frame = self.open[-1]
        if isinstance(frame.data, list):
            frame.data.append(value)
        elif frame.key is None and isinstance(value, str):
            frame.key = value
        elif frame.colon and frame.data.get(str(frame.key), value) == value:
            frame.data[str(frame.key)] = value
            frame.key, frame.colon = None, False
        else:  # no key, or two values for one: to choose would be to lose the other
            self.junk(at)
            if not self.open and isinstance(value, dict | list):
                self.found.append((at, value))

    def bare(self, word: str, at: int) -> None:
        """A word without quotes."""
        frame = self.open[-1]
        after = _SKIP.match(self.text, at)
        colon = self.text.startswith(":", after.end() if after else at)
        if isinstance(frame.data, dict) and frame.key is None and colon:
            frame.key = word
        elif word.lower() in _WORDS:
            self.value(_WORDS[word.lower()], at)
        elif _NUMBER.fullmatch(word):
            self.value(float(word) if set(word) & {".", "e", "E"} else int(word), at)
        elif re.fullmatch(r"L[0-9]{1,9}", word) or (frame.colon and _LONE.match(self.text, at)):
            self.value(word, at)
        else:
            self.junk(at)

    def junk(self, at: int) -> None:
        """What no value can begin with. The innermost frame is broken; the outermost was prose, and what it held stands alone."""
        if len(self.open) > 1:
            self.open[-1].broken = True
        elif self.open:
            self.drop(at)

    def drop(self, at: int) -> None:
        """Give up all open frames; what is complete in them stands alone."""
        start = self.open[0].start
        self.found.append((start, BrokenValue(self.text[start : min(at + 40, start + _RAW)])))
        self.found += [(start, value) for frame in self.open for value in frame.containers]
        self.open.clear()

    def cut(self) -> None:
        """The text ends: what is complete in the open frames is all there is."""
        while self.open:
            self.close(len(self.text), cut=True)


def _start(found: re.Match[str] | None) -> int:
    return found.start() if found else -1


_ESCAPE = re.compile(r"\\(?:(u[0-9a-fA-F]{4})|([a-zA-Z]+)|(.)|\Z)", re.DOTALL)
_SIGNS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_LATEX = frozenset(
    """nabla natural ne nearrow neg neq newcommand newline nexists ngeq ngtr nleq nless nmid nolimits nonumber norm not notin
    nparallel nsim nsubseteq nsupseteq nu nwarrow tag tan tanh tau tbinom text textbf textit textrm textstyle texttt tfrac
    therefore theta thickapprox thinspace tilde times to top triangle triangleq rangle ratio rbrace rbrack rceil rfloor rho right
    rightarrow rightharpoonup rightleftharpoons rm root rtimes rule rvert""".split()  # noqa: SIM905
)
"""Commands that begin like a line break or a tab. After \\b and \\f any letters are a command: no lesson holds those signs."""


def _decode(raw: str) -> str:
    """A string's text; a backslash that belongs to a LaTeX command, or that JSON does not know, stays."""
    told = _ESCAPE.sub(_unescape, raw) if "\\" in raw else raw
    return told.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unescape(found: re.Match[str]) -> str:
    code, word, sign = found.groups()
    if code:
        return chr(int(code[1:], 16))
    if word:
        if word in _LATEX or word[0] not in _SIGNS or (word[0] in "bf" and len(word) > 1):
            return f"\\{word}"
        return _SIGNS[word[0]] + word[1:]
    if sign is None:
        return ""
    return sign if sign in "\"'\\/" else " " if sign == "\n" else f"\\{sign}"


# Edits


_VERBS = {
    "add": "add create new insert append",
    "modify": "modify update edit change revise replace rewrite refine amend",
    "merge": "merge combine consolidate join unify",
    "delete": "delete remove drop discard prune",
    "keep": "keep none agree retain noop no_op nothing unchanged skip confirm",
}
_OPS = {verb: op for op, verbs in _VERBS.items() for verb in verbs.split()}
_OP = ("op", "operation", "option", "action", "verb")
_TEXT = ("text", "content", "experience", "lesson", "insight", "new_text", "new_content", "description")
_WHY = ("why", "reason", "reasoning", "rationale", "explanation")
_IDS = {
    "id": "",
    "ids": "",
    "lesson_id": "",
    "lesson_ids": "",
    "lessons": "",
    "experience_id": "",
    "target": "",
    "targets": "",
    "modified_from": "modify",
    "merged_from": "merge",
    "sources": "",
    "delete_id": "delete",
    "delete_ids": "delete",
    "deleted_from": "delete",
}
"""Where ids may stand -> the operation that this implies."""
_LISTS = ("edits", "revision_plan", "operations", "plan", "changes", "updates", "actions", "experiences", "lessons", "items")
"""Under which names the list may stand, the likeliest first."""
_NO_ID = frozenset(["", "null", "none", "new", "n/a", "-", "nil"])
_FORM = '{"edits": [{"op": "add", "text": "..."}, {"op": "modify", "id": "L3", "text": "..."}, ...]}'


def read_edits(
    reply: str,
    library: Library,
    max_edits: int,
    limits: LibraryLimits,
    step: int = 0,
    problems: Sequence[str] = (),
    rewards: Sequence[float] = (),
) -> tuple[list[Edit], list[Ruling]]:
    """The edits of a reply, in order, and why the others are none.

    The form is `{"edits": [...]}`; the last such list counts, even if nothing of it can be used: those before it are drafts.
    Without one, the last list of objects counts, or the objects that stand alone, or the last list of texts. Also read are the
    forms of published prompts (`operation`/`content`/`option`/`experience`/`modified_from`/`merged_from`/`delete_id`). An id
    that the library does not know never makes an addition.

    Args:
        most: edits at most, without keeps; those beyond are ruled out. 0: any number.
        step, problems, rewards: provenance of the edits.

    Raises:
        Unreadable: there is no list of edits, or nothing of it can be used; says what is wrong with each.
    """
    found = _EditReader(library, limits, Edit("", problems=tuple(problems), rewards=tuple(rewards), step=step))
    best: tuple[list[Edit], list[Ruling], list[str]] | None = None
    for items in _lists(reply):
        read = found.read(items)
        best = best or read
        if read[0] or not read[2]:
            best = read
            break
    if best is None:
        raise Unreadable(f"asked for {_FORM}, got {_short(reply)}")
    edits, rulings, wrong = best
    if wrong and not edits:
        raise Unreadable(f"asked for {_FORM}; nothing of the reply can be used: {'; '.join(wrong[:5])}")
    taken: list[Edit] = []
    changes = 0
    for edit in edits:
        changes += edit.op != "keep"
        if max_edits and edit.op != "keep" and changes > max_edits:
            rulings.append(Ruling(edit, False, f"more than the {max_edits} that were asked for"))
        else:
            taken.append(edit)
    return taken, rulings


def as_edits(item: dict[str, Any], library: Library, limits: LibraryLimits) -> list[Edit]:
    """What `read_edits` makes of an item of the list, without provenance: several edits, if it deletes or keeps several lessons."""
    return _EditReader(library, limits, Edit("")).read([item])[0]


def _lists(reply: str) -> Iterator[list[Any]]:
    """What may be the list of edits, the likeliest first. Of lists under a name for it, only the last one may."""
    named: list[list[Any]] = []
    objects: list[list[Any]] = []
    texts: list[list[Any]] = []
    alone: list[Any] = []
    for value in _parse(reply):
        if isinstance(value, BrokenValue):
            if re.search(r"\b(op|operation|option|delete_id|modified_from)\b[\"']?\s*:", value.raw):
                alone.append(value)
            continue
        inner, by_name = _find_list(value)
        if inner is None:
            if isinstance(value, dict) and _is_edit(value):
                alone.append(value)
        elif by_name:
            named.append(inner)
        elif any(isinstance(item, dict) and _is_edit(item) for item in inner):
            objects.append(inner)
        elif all(isinstance(item, str) for item in inner) and (not inner or any(len(item.split()) > 2 for item in inner)):
            texts.append(inner)
    if alone:
        objects.append(alone)
    if named:
        yield named[-1]
        return
    yield from reversed(objects)
    yield from reversed(texts)


def _find_list(value: Any) -> tuple[list[Any] | None, bool]:
    """The list in a value, and whether it stands under one of the names for it."""
    while True:
        if isinstance(value, list):
            if len(value) == 1 and (isinstance(value[0], list) or (isinstance(value[0], dict) and not _is_edit(value[0]))):
                value = value[0]
                continue
            return value, False
        if not isinstance(value, dict):
            return None, False
        keys = {str(key).strip().lower(): held for key, held in value.items()}
        for name in _LISTS:
            held = keys.get(name)
            if isinstance(held, dict) and _is_edit(held):
                held = [held]
            if isinstance(held, list) and (name == "edits" or not _is_edit(value)):
                return held, True
        inner = [held for held in value.values() if isinstance(held, dict | list)]
        if _is_edit(value) or len(inner) != 1:
            return None, False
        value = inner[0]


def _is_edit(value: dict[str, Any]) -> bool:
    """Whether an object looks like an edit: it has a text or an operation that is a text, or ids."""
    keys = {str(key).strip().lower(): held for key, held in value.items()}
    said = any(isinstance(keys.get(name), str) for name in (*_OP, *_TEXT))
    return said or any(name in keys for name, op in _IDS.items() if op or name == "id")


def _short(value: Any) -> str:
    shown = value.raw if isinstance(value, BrokenValue) else value
    told = shown if isinstance(shown, str) else repr(shown)
    return repr(told[:100] + "…" if len(told) > 100 else told)


@dataclass(frozen=True)
class _EditReader:
    """Reads items of a list, one by one."""

    library: Library
    limits: LibraryLimits
    provenance: Edit
    """What all of them have: the provenance."""

    def read(self, items: Sequence[Any]) -> tuple[list[Edit], list[Ruling], list[str]]:
        """Edits; rulings; what is wrong with the items that are no edits."""
        edits: list[Edit] = []
        rulings: list[Ruling] = []
        wrong: list[str] = []
        for item in items:
            if isinstance(item, str):
                item = {"op": "add", "text": item}
            if not isinstance(item, dict):
                shown = one_line(item.raw if isinstance(item, BrokenValue) else repr(item))
                edit, reason = replace(self.provenance, text=shown[:200]), f"{_short(item)} is no edit that can be read"
            else:
                edit, reason = self.edit(item)
            if not reason:
                edits += [replace(edit, lessons=(id,)) for id in edit.lessons] if edit.op in ("delete", "keep") else [edit]
            else:
                rulings.append(Ruling(edit, False, reason))
                if reason != _NONE:
                    wrong.append(reason)
        return edits, rulings, wrong

    def edit(self, item: dict[str, Any]) -> tuple[Edit, str]:
        """An item as an edit, and what is wrong with it."""
        keys = {str(key).strip().lower(): held for key, held in item.items()}
        text = next((one_line(keys[name]) for name in _TEXT if isinstance(keys.get(name), str)), "")
        why = next((one_line(keys[name]) for name in _WHY if isinstance(keys.get(name), str)), "")
        named = [(id, op) for name, op in _IDS.items() for id in _ids(keys.get(name))]
        ids = tuple(dict.fromkeys(self.library.resolve(id) or one_line(str(id)) for id, _ in named))
        verbs = [re.sub(r"\W+", "_", keys[name].strip().lower()) for name in _OP if isinstance(keys.get(name), str)]
        verb = next((one for one in verbs if one in _OPS), verbs[0] if verbs else "")
        if not ids and _OPS.get(verb) != "add" and len(text) < 12 and (lesson := self.library.resolve(text)):
            ids, text = (lesson,), ""  # "lesson": "L3"
        implied = next((op for _, op in named if op), "") or ("modify" if ids and text else "add" if text else "")
        op = _OPS.get(verb, "") if verb else implied
        edit = replace(self.provenance, op=op or one_line(verb), lessons=() if op == "add" else ids, text=text, why=why)
        if verb == "none" and not self.known_ids(ids):
            return edit, _NONE
        return edit, self.fault(edit, op, verb)

    def known_ids(self, ids: Sequence[str]) -> list[str]:
        return [id for id in ids if self.library.resolve(id)]

    def fault(self, edit: Edit, op: str, verb: str) -> str:
        """What is wrong with an edit, or nothing."""
        if not op:
            there = ", ".join(OPS)
            return f"there is no operation {_short(verb)}; there are {there}" if verb else f"an edit has an op: {there}"
        if op != "add":
            known = self.known_ids(edit.lessons)
            there = ", ".join(lesson.id for lesson in self.library.lessons) or "none"
            if unknown := [id for id in edit.lessons if id not in known]:
                if op != "merge" or len(known) < 2:
                    return f"{op}: there is no lesson {_short(', '.join(unknown))}; there are {there}"
            elif not known:
                return f"{op} of which lesson? there are {there}"
            if op == "merge" and len(known) < 2:
                return f"a merge is of two lessons or more, got {', '.join(known)}"
            if op == "modify" and len(known) > 1:
                return f"modify is of one lesson, got {', '.join(known)}; merge makes one of several"
        if op in ("add", "modify", "merge"):
            if not re.search(r"\w", edit.text):
                return f"{op} needs a text, got {_short(edit.text)}" if edit.text else f"{op} needs a text"
            if (size := len(edit.text.split())) > self.limits.max_lesson_words:
                return f"{size} words are more than {self.limits.max_lesson_words}: {_short(edit.text)}"
        return ""


_NONE = "nothing was to be done"


def _ids(held: Any) -> Iterator[str]:
    """The ids in a field: one, a list, or several in one text. Those that say that there is none are left out."""
    if isinstance(held, list):
        for one in held:
            yield from _ids(one)
    elif isinstance(held, int | float) and not isinstance(held, bool):
        yield f"L{held:.0f}" if held == held // 1 else str(held)
    elif isinstance(held, str) and held.strip().lower() not in _NO_ID:
        several = re.fullmatch(
            r"[\[({\s]*L?\d+[\])}\s]*(?:(?:,|;|&|\+|and)[\[({\s]*L?\d+[\])}\s]*)+", held[:200], re.IGNORECASE
        )
        yield from re.findall(r"L?\d+", held[:200], re.IGNORECASE) if several else [held]


def read_list(reply: str, name: str, max_items: int) -> list[str]:
    """The texts of a list, each in one line, `most` at most: `{"<name>": ["...", ...]}`, or the last list of texts.

    Raises:
        Unreadable: there is no such list.
    """
    named: list[list[str]] = []
    bare: list[list[str]] = []
    for value in json_values(reply):
        inner = value
        if isinstance(value, dict):
            inner = next((held for key, held in value.items() if str(key).strip().lower() == name.lower()), None)
            inner = [inner] if isinstance(inner, str) else inner
        if isinstance(inner, list):
            texts = [one_line(_item_text(item)) for item in inner]
            found = [text for text in texts if re.search(r"\w", text)]
            if found or not inner:
                (named if isinstance(value, dict) else bare).append(found)
    worded = [texts for texts in bare if any(len(text.split()) > 2 for text in texts)]
    for texts in (*named, *worded, *(texts for texts in bare if not texts)):
        return texts[:max_items]
    raise Unreadable(f'asked for {{"{name}": ["...", ...]}}, got {_short(reply)}')


def _item_text(item: Any) -> str:
    """The text of an item, which may be an object."""
    if isinstance(item, dict):
        return next((item[name] for name in _TEXT if isinstance(item.get(name), str)), "")
    return item if isinstance(item, str) else ""
