"""Edits of a library, read from a model's reply item by item: readable items are used, and the others get a ruling.

Replies are read by nodes/lenient_json.py: a broken item costs itself alone.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...memory.lessons.library import Library, LibraryLimits, one_line
from ...memory.records import OPS, Edit, Ruling
from ..lenient_json import BrokenValue, json_values, parse_values
from ..read_reply import Unreadable

__all__ = ["as_edits", "read_edits"]


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
"""Field that may hold ids -> the operation that it implies, if any."""
_LISTS = ("edits", "revision_plan", "operations", "plan", "changes", "updates", "actions", "experiences", "lessons", "items")
"""Names that the list of edits may have, the likeliest first."""
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
    """The edits of a reply in order, and rulings for the items that are no edits.

    The form is `{"edits": [...]}`. The last such list counts, even if none of it can be used: earlier lists are drafts. Without
    one, the last list of objects counts, or objects outside of lists, or the last list of texts. The forms of published prompts
    are read, too (`operation`/`content`/`option`/`experience`/`modified_from`/`merged_from`/`delete_id`). An edit of an unknown
    id never becomes an addition.

    Args:
        reply: the model's text.
        library: the lessons that ids name.
        max_edits: edits at most, not counting keeps; those beyond are ruled out. 0: any number.
        limits: the limits of the library: longer lessons are ruled out.
        step: the learning step; provenance of the edits, as are the next two.
        problems: ids of the group's problems.
        rewards: rewards of the group's rollouts.

    Raises:
        Unreadable: there is no list of edits, or none of them can be used; names what is wrong with each.
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
        raise Unreadable(f"asked for {_FORM}", f", got {_short(reply)}")
    edits, rulings, wrong = best
    if wrong and not edits:
        raise Unreadable(f"asked for {_FORM}; nothing of the reply can be used", f": {'; '.join(wrong[:5])}")
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
    """One item of the list as edits without provenance: several, if it deletes or keeps several lessons."""
    return _EditReader(library, limits, Edit("")).read([item])[0]


def _lists(reply: str) -> Iterator[list[Any]]:
    """Candidates for the list of edits, the likeliest first. Of lists with a name for it, only the last one counts."""
    named: list[list[Any]] = []
    objects: list[list[Any]] = []
    texts: list[list[Any]] = []
    alone: list[Any] = []
    for value in parse_values(reply):
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
    """The list in a value, and True if it has one of the names for a list of edits; None without a list."""
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
    """True if an object looks like an edit: it has an operation or a text, or ids."""
    keys = {str(key).strip().lower(): held for key, held in value.items()}
    has_text = any(isinstance(keys.get(name), str) for name in (*_OP, *_TEXT))
    return has_text or any(name in keys for name, op in _IDS.items() if op or name == "id")


def _short(value: Any) -> str:
    raw = value.raw if isinstance(value, BrokenValue) else value
    shown = raw if isinstance(raw, str) else repr(raw)
    return repr(shown[:100] + "…" if len(shown) > 100 else shown)


@dataclass(frozen=True)
class _EditReader:
    """Reads the items of a list of edits, one by one."""

    library: Library
    limits: LibraryLimits
    provenance: Edit
    """An edit with the provenance that all of them get."""

    def read(self, items: Sequence[Any]) -> tuple[list[Edit], list[Ruling], list[str]]:
        """The edits, the rulings of the other items, and the reasons of those rulings."""
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
        """An item as an edit, and what is wrong with it (empty if it can be used)."""
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
        """The reason why an edit cannot be used; empty if it can."""
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
            if (size := len(edit.text.split())) > self.limits.max_words:
                return f"{size} words are more than {self.limits.max_words}: {_short(edit.text)}"
        return ""


_NONE = "nothing was to be done"


def _ids(held: Any) -> Iterator[str]:
    """The ids in a field: one, a list, or several in one text. Words for "no id" are left out."""
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
    """The first `max_items` texts of a list, each in one line: of `{"<name>": ["...", ...]}`, or of the last list of texts."""
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
    raise Unreadable(f'asked for {{"{name}": ["...", ...]}}', f", got {_short(reply)}")


def _item_text(item: Any) -> str:
    """The text of an item, which may be an object."""
    if isinstance(item, dict):
        return next((item[name] for name in _TEXT if isinstance(item.get(name), str)), "")
    return item if isinstance(item, str) else ""
