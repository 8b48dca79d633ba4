"""Actions by role and name: they are read, written and found again whatever stands in a label."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from learngraph.tools.environments.support.accessibility import AccessibleNode
from learngraph.tools.environments.support.web_actions import (
    WebAction,
    effective_actions,
    element_action,
    find_node,
    list_actions,
    read_web_action,
)

AWKWARD = ("Add to cart", "O'Neil, Ann", 'say "hi"', "a [b] c]", "Größe: M #2", "back\\slash", "(x)", "")


LABELS = some.one_of(some.sampled_from(AWKWARD), some.text())


@given(LABELS, LABELS, some.integers(1, 99))
def test_labels_and_texts_survive_writing_and_reading(name: str, text: str, ordinal: int) -> None:
    name = " ".join(name.split())
    for action in (
        WebAction("click", "button", name, ordinal),
        WebAction("fill", "textbox", name, ordinal, text),
        WebAction("answer", text=text),
    ):
        assert read_web_action(str(action)) == action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ('click[button "Add to cart"]', WebAction("click", "button", "Add to cart")),
        ("click[button 'It\\'s here']", WebAction("click", "button", "It's here")),
        ('  Click( link "Details" #2 ) ', WebAction("click", "link", "Details", 2)),
        ("fill[textbox 'Name', 'O, Ann']", WebAction("fill", "textbox", "Name", text="O, Ann")),
        ('fill[textbox "Name", bare words, all]', WebAction("fill", "textbox", "Name", text="bare words, all")),
        ("fill[textbox, x]", WebAction("fill", "textbox", text="x")),
        ("click[7]", WebAction("click", number=7)),
        ("fill[7, x]", WebAction("fill", number=7, text="x")),
        ("press[Enter]", WebAction("press", text="Enter")),
        ("scroll[down]", WebAction("scroll", text="down")),
        ("back[]", WebAction("back")),
        ("back()", WebAction("back")),
        ("goto[shop/cart]", WebAction("goto", text="shop/cart")),
        ('answer["42, or so"]', WebAction("answer", text="42, or so")),
    ],
)
def test_models_spelling_is_understood(text: str, action: WebAction) -> None:
    assert read_web_action(text) == action


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("buy now", "an action such as"),
        ("dance[button]", "one of click, fill"),
        ("click[]", "an element was expected"),
        ('click[button "open]', "does not end"),
        ('click[button "a" "b"]', "were expected"),
        ('click[button "a", "b"]', "takes an element only"),
        ('fill[textbox "a"]', "takes an element and a text"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_web_action(text)


PAGE = (
    AccessibleNode("text", "Welcome"),
    AccessibleNode("link", "Details", ref="e1"),
    AccessibleNode("link", "Details", ref="e2", ordinal=2),
    AccessibleNode("link", "It's, here", ref="f1e3"),
    AccessibleNode("button", "Save", ref="e4"),
    AccessibleNode("button", "Off", states=("disabled",), ref="e5"),
    AccessibleNode("textbox", "Name", value="Ann", ref="e6"),
    AccessibleNode("combobox", "Country", value="Spain", options=("France", "Spain"), ref="e7"),
)


def found(text: str) -> str:
    return find_node(read_web_action(text), PAGE).ref


def test_elements_are_found_by_role_and_name() -> None:
    """The reference loses labels with an apostrophe, splits at commas, knows no frames, and takes the first of two equal links."""
    assert found('click[link "Details" #2]') == "e2"
    assert found('click[link "Details"]') == "e1"
    assert found('click[link "It\'s, here"]') == "f1e3"
    assert found('click[button "SAVE"]') == "e4"
    assert found("click[3]") == "f1e3"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('click[link "Detail"]', 'there is no link "Detail" on this page'),
        ("click[link]", "there is no link on this page"),
        ('click[link "Details" #3]', "only 2 of that name"),
        ('click[button "Off"]', "is disabled"),
        ('fill[button "Save", "x"]', "a button takes no text"),
        ('select[combobox "Country", "Peru"]', 'has no option "Peru"'),
        ("click[70]", r"no element \[70\]; it has 7"),
    ],
)
def test_nothing_is_guessed(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        found(text)


def test_admissible_actions_are_sorted_and_lead_back_to_their_elements() -> None:
    actions = list_actions(PAGE, ("Ann", "Bob, jr."))
    assert actions == (
        'click[button "Save"]',
        'click[link "Details" #2]',
        'click[link "Details"]',
        'click[link "It\'s, here"]',
        'fill[textbox "Name", "Bob, jr."]',
        'select[combobox "Country", "France"]',
    )
    for text in actions:
        action = read_web_action(text)
        assert str(element_action(action.kind, find_node(action, PAGE), action.text)) == text


def test_what_has_no_effect_left_is_not_remembered() -> None:
    taken = [
        'fill[textbox "Name", "a"]',
        'click[checkbox "left"]',
        'scroll["down"]',
        'fill[textbox "Name", "b"]',
        'click[button "Next"]',
        'click[checkbox "left"]',
        'click[button "Next"]',
        'fill[textbox "Name" #2, "b"]',
        'click[radio "A"]',
        'click[radio "B"]',
        'click[radio "A"]',
    ]
    assert effective_actions([read_web_action(text) for text in taken]) == (
        'fill[textbox "Name", "b"]',
        'click[button "Next"]',
        'click[button "Next"]',
        'fill[textbox "Name" #2, "b"]',
        'click[radio "B"]',
        'click[radio "A"]',
    )
