"""Actions on web pages in words that mean the same on every page of a kind: `click[button "Add to cart"]`.

| action | means |
|---|---|
| `click[link "Details" #2]` | click the second link called "Details" on the page |
| `fill[textbox "Name", "O'Neil, Ann"]` | replace the text of a field |
| `select[combobox "Country", "France"]` | choose an option of a drop-down list |
| `press["Enter"]` | press a key |
| `scroll["down"]`, `scroll["up"]` | scroll the page by its height |
| `goto["shop/cart"]` | open a page: an address, or a site's label with a path |
| `back[]` | go to the page before; in a new tab, close it |
| `answer["42"]` | answer the task, which ends the episode |

An element is named by role and name as JSON writes a text, so commas, quotes, apostrophes and brackets in labels need no care, and
by its ordinal where several have both in common (the first has none). Elements in frames and shadow roots are named in the same way;
the ordinal counts all frames. An element's number in the observation (`click[7]`) is understood too.

A written action is understood on any page and never guessed: one that names no element of the page is refused, with the reason.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from .accessibility import CHOSEN, FILLED, AccessibleNode

__all__ = []

KINDS = ("click", "fill", "select", "press", "scroll", "goto", "back", "answer")
"""The kinds of actions."""
ELEMENT_KINDS = ("click", "fill", "select")
"""Those that act on an element."""
_ON_ELEMENTS = {"click": False, "fill": True, "select": True}
"""Kind -> whether it takes a text beside the element."""
_SHAPE = re.compile(r"\s*(\w+)\s*[\[(](.*)[\])]\s*", re.DOTALL)
_ROLE = re.compile(r"\s*([a-z][\w-]*)\s*")
_ORDINAL = re.compile(r"\s*#(\d{1,6})\s*")
_DECODER = json.JSONDecoder(strict=False)
_TOGGLES = ("checkbox", "switch")


@dataclass(frozen=True, slots=True)
class WebAction:
    """An action, read. `str` writes it as it is remembered."""

    kind: str
    role: str = ""
    """The role of the element; empty if there is none, or it is named by its number."""
    name: str = ""
    ordinal: int = 1
    text: str = ""
    """The text to fill in, the option, the key, the direction, the address, the answer."""
    number: int = 0
    """The number of the element in the observation; 0 if it is named by role and name."""

    def __str__(self) -> str:
        if self.kind not in _ON_ELEMENTS:
            return f"{self.kind}[{_quote(self.text) if self.text or self.kind != 'back' else ''}]"
        what = str(self.number) if self.number else self.role + (f" {_quote(self.name)}" if self.name else "")
        what += f" #{self.ordinal}" if self.ordinal > 1 else ""
        return f"{self.kind}[{what}, {_quote(self.text)}]" if _ON_ELEMENTS[self.kind] else f"{self.kind}[{what}]"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def read_web_action(text: str, kinds: Sequence[str] = KINDS) -> WebAction:
    """Read an action of one of these kinds.

    Raises:
        ValueError: it cannot be read; the message says what was expected.
    """
    found = _SHAPE.fullmatch(text)
    kind = found[1].lower() if found else ""
    if found is None or kind not in kinds:
        raise ValueError(f'an action such as click[button "Save"] was expected, one of {", ".join(kinds)}')
    inner = found[2].strip()
    if kind not in _ON_ELEMENTS:
        return WebAction(kind, text=_read_text(inner))
    if numbered := re.fullmatch(r"(\d{1,6})\s*(?:,\s*(.*))?", inner, re.DOTALL):
        action = WebAction(kind, number=int(numbered[1]))
        rest = numbered[2]
    else:
        action, rest = _read_element(kind, inner)
    if _ON_ELEMENTS[kind]:
        if rest is None:
            raise ValueError(f'{kind} takes an element and a text: {kind}[textbox "Name", "Ann"]')
        return WebAction(kind, action.role, action.name, action.ordinal, _read_text(rest.strip()), action.number)
    if rest:
        raise ValueError(f'{kind} takes an element only: {kind}[button "Save"], got {rest.strip()!r} behind it')
    return action


def _read_element(kind: str, inner: str) -> tuple[WebAction, str | None]:
    """The element at the beginning of a text, and the text behind its comma (None: there is no comma)."""
    role = _ROLE.match(inner)
    if role is None:
        raise ValueError(f'an element was expected, by role and name or by number: {kind}[button "Save"] or {kind}[7]')
    at, name = role.end(), ""
    if inner[at : at + 1] == '"':
        try:
            name, at = _DECODER.raw_decode(inner, at)
        except ValueError:
            raise ValueError(f"the name of the element does not end with a quotation mark: {inner[at:]}") from None
    elif inner[at : at + 1] == "'" and (quoted := re.compile(r"'((?:[^'\\]|\\.)*)'").match(inner, at)):
        name, at = re.sub(r"\\(.)", r"\1", quoted[1]), quoted.end()
    ordinal = _ORDINAL.match(inner, at)
    at = ordinal.end() if ordinal else at
    rest = inner[at:].lstrip()
    if rest and not rest.startswith(","):
        raise ValueError(f"a role, a name in quotation marks and, if need be, #2 were expected, got {rest!r} behind them")
    action = WebAction(kind, role[1], " ".join(name.split()), max(int(ordinal[1]), 1) if ordinal else 1)
    return action, rest[1:] if rest else None


def _read_text(text: str) -> str:
    """A text in JSON's quotation marks, in single ones, or bare."""
    if text[:1] == '"':
        try:
            value, end = _DECODER.raw_decode(text)
            if end == len(text):
                return str(value)
        except ValueError:
            pass
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == "'" else text


def element_action(kind: str, node: AccessibleNode, text: str = "") -> WebAction:
    """The action of a kind on a node."""
    return WebAction(kind, node.role, node.name, node.ordinal, text)


def find_node(action: WebAction, nodes: Sequence[AccessibleNode]) -> AccessibleNode:
    """The node that an action names.

    The name has to be the same, but for case and white space if no node has it exactly.

    Raises:
        ValueError: no node is meant, or the page refuses actions on it; the message says why.
    """
    usable = [node for node in nodes if node.ref]
    if action.number:
        if action.number > len(usable):
            raise ValueError(f"the page has no element [{action.number}]; it has {len(usable)}")
        found = usable[action.number - 1]
    else:
        same = [node for node in usable if (node.role, node.name) == (action.role, action.name)]
        wanted = action.name.casefold()
        same = same or [node for node in usable if node.role == action.role and node.name.casefold() == wanted]
        what = str(element_action("click", AccessibleNode(action.role, action.name)))[6:-1]
        if not same:
            raise ValueError(f"there is no {what} on this page")
        if action.ordinal > len(same):
            raise ValueError(f"there is no {what} #{action.ordinal} on this page, only {len(same)} of that name")
        found = same[action.ordinal - 1]
    if found.is_disabled:
        raise ValueError(f"{found.role} {_quote(found.name)} is disabled")
    if action.kind == "fill" and found.role not in FILLED | CHOSEN:
        raise ValueError(f"a {found.role} takes no text")
    if action.kind == "select" and found.options and action.text not in found.options:
        raise ValueError(f"{found.role} {_quote(found.name)} has no option {_quote(action.text)}")
    return found


def list_actions(nodes: Sequence[AccessibleNode], texts: Sequence[str]) -> tuple[str, ...]:
    """The actions on elements that a page admits, sorted: every click and option, and every field with each of the texts.

    Args:
        nodes: the page.
        texts: what may be filled in, such as the quoted words of the task.
    """
    found = set[WebAction]()
    for node in nodes:
        if not node.ref or node.is_disabled:
            continue
        if node.role in FILLED or (node.role in CHOSEN and not node.options):
            found |= {element_action("fill", node, text) for text in texts if text != node.value}
        elif node.role in CHOSEN:
            found |= {element_action("select", node, option) for option in node.options if option != node.value}
        else:
            found.add(element_action("click", node))
    return tuple(sorted(map(str, found)))


def effective_actions(actions: Sequence[WebAction], most: int = 20) -> tuple[str, ...]:
    """The shortest sequence of actions with the same effect on a page's fields, as texts.

    A later text or option replaces an earlier one of the same field; so does a click on a radio button an earlier one on the same; two
    clicks on a checkbox undo each other; scrolling leaves no trace. Of a longer sequence the last `most` stay.
    """
    kept = list[WebAction]()
    for action in actions:
        same = [one for one in kept if _element(one) == _element(action) and one.kind == action.kind]
        if action.kind == "scroll":
            continue
        if (action.kind in ("fill", "select") or action.role == "radio") and same:
            kept.remove(same[-1])
        if action.kind == "click" and action.role in _TOGGLES and same:
            kept.remove(same[-1])
            continue
        kept.append(action)
    return tuple(map(str, kept[-most:]))


def _element(action: WebAction) -> tuple[str, str, int]:
    return action.role, action.name, action.ordinal
