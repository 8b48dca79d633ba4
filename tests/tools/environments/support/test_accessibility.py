"""Aria snapshots, read into nodes and written as text."""

import pytest

from learngraph.tools.environments.support.accessibility import page_text, read_snapshot

SNAPSHOT = r"""
- generic [active] [ref=e1]:
  - heading "Offers" [level=1] [ref=e2]
  - iframe [ref=e3]:
    - generic [ref=f1e1]:
      - button "Buy, it's \"new\" [now]" [ref=f1e2]
      - textbox "Name" [ref=f1e3]: Ann
  - 'link "Tab #1: all" [ref=e6] [cursor=pointer]':
    - /url: "#a"
  - link "Details" [ref=e7] [cursor=pointer]:
    - /url: "#b"
  - link "Details" [ref=e8] [cursor=pointer]:
    - /url: "#c"
  - link [ref=e81] [cursor=pointer]:
    - /url: /p
    - strong [ref=e82]: It's
    - text: here
  - combobox "Country" [ref=e9]:
    - option "France"
    - option "Spain" [selected]
  - listbox "many" [ref=e10]:
    - option "A" [ref=e11]
    - option "B" [selected] [ref=e12]
  - generic [ref=e13]:
    - checkbox "left" [checked] [ref=e14]
    - text: left
  - slider "r" [ref=e15]: "3"
  - generic [ref=e16] [cursor=pointer]: pointer div
  - listitem [ref=e17] [cursor=pointer]:
    - menuitem "File" [ref=e18]
  - button "Off" [disabled] [ref=e19]
  - paragraph [ref=e20]: "Some text: yes"
  - dialog [ref=e21]:
    - button "Close" [ref=e22]
"""

TEXT = """heading "Offers"
[1] button "Buy, it's \\"new\\" [now]"
[2] textbox "Name": "Ann"
[3] link "Tab #1: all"
[4] link "Details"
[5] link "Details" #2
[6] link "It's here"
[7] combobox "Country": "Spain" of "France", "Spain"
[8] listbox "many"
[9] option "A"
[10] option "B" (selected)
[11] checkbox "left" (checked)
[12] slider "r": "3"
[13] generic "pointer div"
[14] menuitem "File"
[15] button "Off" (disabled)
Some text: yes
dialog
[16] button "Close\""""


def test_a_page_is_text_with_a_number_for_each_element() -> None:
    assert page_text(read_snapshot(SNAPSHOT)) == TEXT


def test_elements_in_frames_and_duplicates_keep_their_references() -> None:
    nodes = {(node.name, node.ordinal): node.ref for node in read_snapshot(SNAPSHOT) if node.ref}
    assert nodes['Buy, it\'s "new" [now]', 1] == "f1e2"
    assert (nodes["Details", 1], nodes["Details", 2]) == ("e7", "e8")


def test_a_long_page_is_cut_and_says_so() -> None:
    snapshot = "".join(f'- button "b{n}" [ref=e{n}]\n' for n in range(50))
    lines = page_text(read_snapshot(snapshot), most_lines=10).split("\n")
    assert (len(lines), lines[9]) == (11, '[10] button "b9"')
    assert lines[-1].startswith("… and ")


def test_an_empty_page_has_no_nodes() -> None:
    assert read_snapshot("") == ()
    assert page_text(()) == ""


@pytest.mark.parametrize("damaged", ["- button [unclosed", "just text", '- button "x', "- [1, 2]"])
def test_what_is_no_snapshot_is_an_error(damaged: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        read_snapshot(damaged)
