"""A page as its accessibility tree: Playwright's aria snapshot, read into nodes and written as the text that an agent sees.

The snapshot (`page.aria_snapshot(mode="ai")`) holds the elements of all frames and open shadow roots with role, name, state and
value, and a reference by which Playwright finds each of them again. Those references depend on how often a page was loaded, so an
agent sees numbers instead: 1, 2, … in the order of the page. They hold within one observation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = []

CLICKED = frozenset(
    "button link checkbox radio switch tab menuitem menuitemcheckbox menuitemradio option treeitem".split()  # noqa: SIM905
)
"""Roles of elements that are clicked."""
FILLED = frozenset(["textbox", "searchbox", "spinbutton", "slider"])
"""Roles of elements that take a text."""
CHOSEN = frozenset(["combobox", "listbox"])
"""Roles of elements that offer options."""
_SHOWN_STATES = ("checked", "disabled", "expanded", "pressed", "selected")
_NAMED_ROLES = frozenset(["alert", "alertdialog", "dialog", "img", "status", "progressbar"])
_KEY = re.compile(r'(?P<role>[\w-]+)(?: (?P<name>"(?:[^"\\]|\\.)*"))?(?P<states>(?: \[[^\]]*\])*)')
_LONGEST_NAME = 160


@dataclass(frozen=True, slots=True)
class AccessibleNode:
    """A piece of a page: something to act on, or a text."""

    role: str
    """The ARIA role; `text` for a text, `generic` for an element without a role that has the mouse pointer of a button."""
    name: str = ""
    """The accessible name or the text, on one line."""
    value: str = ""
    """The text in a field, or the chosen option."""
    states: tuple[str, ...] = ()
    """`checked`, `disabled`, `expanded`, `pressed`, `selected`."""
    options: tuple[str, ...] = ()
    """The options of a drop-down list."""
    ref: str = ""
    """Playwright's reference; empty if nothing can be done with the node."""
    ordinal: int = 1
    """1, or the number of the node among those with the same role and name, in the order of the page."""

    @property
    def is_disabled(self) -> bool:
        """True if the page refuses actions on it."""
        return "disabled" in self.states


def read_ax_tree(tree: Mapping[str, Any]) -> tuple[AccessibleNode, ...]:
    """The nodes of an accessibility tree of Chromium's DevTools, as BrowserGym hands it over: `ref` is BrowserGym's id (`bid`)."""
    by_id = {node["nodeId"]: node for node in tree.get("nodes", ())}
    inner = {child for node in by_id.values() for child in node.get("childIds", ())}
    items = [_read_ax_node(node, by_id) for key, node in by_id.items() if key not in inner]
    return _count_names([node for item in items for node in _flatten(item)])


def _read_ax_node(node: Mapping[str, Any], by_id: Mapping[str, Any]) -> _Item:
    role = str(node.get("role", {}).get("value", "")) or "generic"
    name = _line(str(node.get("name", {}).get("value", "")))
    children = tuple(_read_ax_node(by_id[child], by_id) for child in node.get("childIds", ()) if child in by_id)
    if role in ("StaticText", "InlineTextBox"):
        return _Item("text", "", (), "" if role == "InlineTextBox" else name, ())
    if node.get("ignored"):
        return _Item("generic", "", (), "", children)
    found = {str(one["name"]): one.get("value", {}).get("value") for one in node.get("properties", ())}
    states = [state for state in _SHOWN_STATES if found.get(state) not in (None, False, "false")]
    bid = str(node.get("browsergym_id") or "")
    states += [f"ref={bid}"] if bid else []
    role = {"image": "img", "RootWebArea": "generic", "MenuListPopup": "generic"}.get(role, role)
    if role == "combobox":  # the options of a closed list lie below a popup
        options = [option for child in children for option in (child.children if child.role == "generic" else (child,))]
        children = tuple(_Item("option", one.name, one.states[:-1] if one.ref else one.states, "", ()) for one in options)
    return _Item(role, name, tuple(states), _line(str(node.get("value", {}).get("value", ""))), children)


def read_snapshot(snapshot: str) -> tuple[AccessibleNode, ...]:
    """The nodes of an aria snapshot, in the order of the page. Containers without a name of their own are left out.

    Raises:
        ValueError: this is no aria snapshot.
    """
    import yaml  # type: ignore[import-untyped]  # here, because naming the worlds imports no package

    # Only speed depends on the loader; not all builds of PyYAML have the one in C.
    loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        tree = yaml.load(snapshot, loader) or []
    except yaml.YAMLError as cause:
        raise ValueError(f"an aria snapshot was expected, got {snapshot[:80]!r}: {cause}") from cause
    return _count_names([*_read_items(tree)])


def _count_names(found: Sequence[AccessibleNode]) -> tuple[AccessibleNode, ...]:
    """The nodes with their ordinals, without texts that only repeat the name of the control before them."""
    nodes, counts = list[AccessibleNode](), dict[tuple[str, str], int]()
    for before, node in zip([None, *found], found, strict=False):
        if before is not None and before.ref and not node.ref and node.name == before.name:
            continue  # the label of a checkbox, which is its name
        key = (node.role, node.name)
        counts[key] = counts.get(key, 0) + 1
        nodes.append(replace(node, ordinal=counts[key]) if node.ref and counts[key] > 1 else node)
    return tuple(nodes)


@dataclass(frozen=True, slots=True)
class _Item:
    """An element of the tree, as the snapshot has it."""

    role: str
    name: str
    states: tuple[str, ...]
    text: str
    children: tuple[_Item, ...]

    @property
    def ref(self) -> str:
        return next((state.removeprefix("ref=") for state in self.states if state.startswith("ref=")), "")

    @property
    def has_pointer(self) -> bool:
        return "cursor=pointer" in self.states

    @property
    def is_control(self) -> bool:
        return bool(self.ref) and self.role in CLICKED | FILLED | CHOSEN

    def words(self) -> Iterator[str]:
        """Names and texts of the element and all within it."""
        if self.name and self.role != "text":
            yield self.name
        if self.text:
            yield self.text
        if not (self.name and self.role in CLICKED):
            for child in self.children:
                yield from child.words()

    def has_inner_control(self) -> bool:
        return any(child.is_control or child.has_inner_control() for child in self.children)


def _parse(entry: Any) -> _Item | None:
    """An entry of the snapshot; None for a property such as `/url`."""
    key, inner = next(iter(entry.items())) if isinstance(entry, dict) else (entry, "")
    if not isinstance(key, str):
        raise ValueError(f"an element of an aria snapshot was expected, got {str(key)[:80]!r}")
    if key.startswith("/"):
        return None
    if key == "text":
        return _Item("text", "", (), _line(inner), ())
    found = _KEY.fullmatch(key)
    if found is None:
        raise ValueError(f"an element of an aria snapshot was expected, got {key[:80]!r}")
    children = tuple(filter(None, map(_parse, inner))) if isinstance(inner, list) else ()
    return _Item(
        found["role"],
        _line(json.loads(found["name"], strict=False)) if found["name"] else "",
        tuple(re.findall(r"\[([^\]]*)\]", found["states"])),
        _line(inner) if isinstance(inner, str) else "",
        children,
    )


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_NAME * 10 else line[: _LONGEST_NAME * 10] + " …"


def _read_items(entries: Sequence[Any]) -> Iterator[AccessibleNode]:
    if not isinstance(entries, list):
        raise ValueError(f"a list of elements was expected, got {str(entries)[:80]!r}")
    for entry in entries:
        item = _parse(entry)
        if item is not None:
            yield from _flatten(item)


def _flatten(item: _Item) -> Iterator[AccessibleNode]:
    """The nodes of an element and all within it."""
    inner = item.has_inner_control()
    if item.is_control and item.role in CHOSEN and all(child.role == "option" and not child.ref for child in item.children):
        yield _choice(item)
    elif item.is_control and item.role not in CLICKED:
        yield AccessibleNode(item.role, item.name, item.text, _states(item), ref=item.ref)
        for child in item.children:
            yield from (node for node in _flatten(child) if node.ref)
    elif item.ref and (item.is_control or item.has_pointer) and not inner:
        own = [item.name] if item.name else [*item.words()]
        yield AccessibleNode(item.role, _cut(" ".join(own)), "", _states(item), ref=item.ref)
    elif item.is_control and item.name:
        yield AccessibleNode(item.role, _cut(item.name), "", _states(item), ref=item.ref)
        for child in item.children:
            yield from (node for node in _flatten(child) if node.ref)
    else:
        if item.role == "heading" or item.role in _NAMED_ROLES:
            text = item.name or item.text
            if text or item.role in ("dialog", "alertdialog"):
                yield AccessibleNode(item.role, text)
        elif item.name and not item.children and not item.text:
            yield AccessibleNode("text", item.name)
        if item.text and item.role not in ("heading", *_NAMED_ROLES):
            yield AccessibleNode("text", item.text)
        for child in item.children:
            if item.role != "heading" or child.is_control or child.has_inner_control():
                yield from _flatten(child)


def _choice(item: _Item) -> AccessibleNode:
    options = tuple(child.name or child.text for child in item.children)
    chosen = [child.name or child.text for child in item.children if "selected" in child.states]
    value = ", ".join(chosen) if item.children else item.text
    return AccessibleNode(item.role, item.name, value, _states(item), options, item.ref)


def _states(item: _Item) -> tuple[str, ...]:
    return tuple(state for state in item.states if state.partition("=")[0] in _SHOWN_STATES)


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME].rstrip() + "…"


def page_text(nodes: Sequence[AccessibleNode], most_lines: int = 400) -> str:
    """The page as an agent reads it: a line for each node, with the number of what can be acted on."""
    lines, number = list[str](), 0
    for node in nodes:
        if not node.ref:
            lines.append(node.name if node.role == "text" else f'{node.role} "{node.name}"' if node.name else node.role)
            continue
        number += 1
        if len(lines) <= most_lines:
            lines.append(f"[{number}] {_describe(node)}")
    if len(lines) > most_lines:
        lines = [*lines[:most_lines], f"… and {len(lines) - most_lines} more lines"]
    return "\n".join(lines)


def _describe(node: AccessibleNode) -> str:
    text = node.role + (f" {json.dumps(node.name, ensure_ascii=False)}" if node.name else "")
    text += f" #{node.ordinal}" if node.ordinal > 1 else ""
    text += f" ({', '.join(node.states)})" if node.states else ""
    text += f": {json.dumps(node.value, ensure_ascii=False)}" if node.value else ""
    return text + (f" of {', '.join(json.dumps(one, ensure_ascii=False) for one in node.options)}" if node.options else "")
