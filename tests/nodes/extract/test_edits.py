"""Edits in replies: every malformed shape that models are known to write, and that one bad item costs itself alone.

Names such as D10 number defects of the published code that these tests rule out.
"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learngraph.memory.lessons.library import Library, LibraryLimits
from learngraph.memory.records import Edit, Lesson, Ruling
from learngraph.nodes.extract.edits import read_edits, read_list
from learngraph.nodes.lenient_json import json_values
from learngraph.nodes.read_reply import Unreadable

LIBRARY = Library((Lesson("L0", "Look first"), Lesson("L1", "Never run"), Lesson("L2", "Read the map")))
GOOD = {"op": "add", "text": "Check the result twice"}


def read(reply: str, most: int = 0, library: Library = LIBRARY) -> tuple[list[Edit], list[Ruling]]:
    return read_edits(reply, library, most, LibraryLimits(), step=2, problems=("p",), rewards=(1, 0))


def told(reply: str) -> list[tuple[Any, ...]]:
    """The edits of a reply in short; nothing of it was ruled out."""
    edits, rulings = read(reply)
    assert rulings == []
    return [(edit.op, *edit.lessons, *filter(None, [edit.text])) for edit in edits]


# The form that is asked for, and those of published prompts


def test_the_form_that_is_asked_for() -> None:
    reply = """{"edits": [{"op": "add", "text": "One two"}, {"op": "modify", "id": "L0", "text": "Three"},
        {"op": "merge", "ids": ["L1", "L2"], "text": "Four", "why": "they agree"}, {"op": "delete", "id": "L0"},
        {"op": "keep", "id": "L1"}]}"""
    edits, rulings = read(reply)
    same = {"problems": ("p",), "rewards": (1, 0), "step": 2}
    assert edits == [
        Edit("add", (), "One two", **same),  # type: ignore[arg-type]
        Edit("modify", ("L0",), "Three", **same),  # type: ignore[arg-type]
        Edit("merge", ("L1", "L2"), "Four", "they agree", **same),  # type: ignore[arg-type]
        Edit("delete", ("L0",), **same),  # type: ignore[arg-type]
        Edit("keep", ("L1",), **same),  # type: ignore[arg-type]
    ]
    assert rulings == []


@pytest.mark.parametrize(
    ("reply", "edits"),
    [
        ('[{"operation": "ADD", "id": null, "content": "a b"}]', [("add", "a b")]),
        ('[{"operation": "UPDATE", "id": "L1", "content": "a b"}]', [("modify", "L1", "a b")]),
        ('[{"operation": "DELETE", "id": "L1", "content": null}]', [("delete", "L1")]),
        ('[{"operation": "NONE", "id": "L1", "content": ""}]', [("keep", "L1")]),
        ('[{"option": "add", "experience": "a b"}]', [("add", "a b")]),
        ('[{"option": "modify", "experience": "a b", "modified_from": "L1"}]', [("modify", "L1", "a b")]),
        ('[{"option": "delete", "delete_id": "L1"}]', [("delete", "L1")]),
        ('[{"option": "merge", "experience": "a b", "merged_from": ["L0", "L2"]}]', [("merge", "L0", "L2", "a b")]),
        ('{"revision_plan": [{"operation": "REMOVE", "id": "L1"}], "response": "x"}', [("delete", "L1")]),
        ('{"operations": [{"op": "agree", "id": "L1"}]}', [("keep", "L1")]),
        ('{"result": {"edits": [{"op": "keep", "id": "L1"}]}}', [("keep", "L1")]),
        ('{"edits": {"op": "keep", "id": "L1"}}', [("keep", "L1")]),
        ('[[{"op": "keep", "id": "L1"}]]', [("keep", "L1")]),
        ('[{"id": null, "content": "a b"}]', [("add", "a b")]),
        ('[{"id": "L1", "content": "a b"}]', [("modify", "L1", "a b")]),
        ('[{"merged_from": ["L1", "L2"], "experience": "a b"}]', [("merge", "L1", "L2", "a b")]),
        ('[{"op": "merge", "ids": "L1 and [L2]", "text": "a b"}]', [("merge", "L1", "L2", "a b")]),
        ('[{"op": "merge", "ids": "L0, L1, 2", "text": "a b"}]', [("merge", "L0", "L1", "L2", "a b")]),
        ('[{"op": "delete", "ids": ["L0", 1]}]', [("delete", "L0"), ("delete", "L1")]),
        ('[{"op": "delete", "lesson": "L1"}]', [("delete", "L1")]),
        ('[{"op": "add", "id": "L1", "text": "a b"}]', [("add", "a b")]),
        ('[{"Operation": " Add ", "CONTENT": "a\\nb"}]', [("add", "a b")]),
    ],
)
def test_the_forms_of_published_prompts(reply: str, edits: list[tuple[Any, ...]]) -> None:
    assert told(reply) == edits


def test_d1_a_deletion_with_null_for_a_text_is_a_deletion() -> None:
    for content in ("null", '""', "[]", "{}"):
        assert told(f'[{{"operation": "DELETE", "id": "[L0]", "content": {content}}}]') == [("delete", "L0")]


def test_an_empty_list_says_that_there_is_nothing_to_change() -> None:
    for reply in ('{"edits": []}', "[]", "```json\n[]\n```", '{"edits": [ ... ]}', 'So: {"edits": []} and no more.'):
        assert read(reply) == ([], [])
    edits, rulings = read('[{"operation": "NONE", "id": null, "content": ""}]')
    assert (edits, [ruling.reason for ruling in rulings]) == ([], ["nothing was to be done"])


# Wrong shapes


def test_d3_a_single_object_in_place_of_a_list() -> None:
    assert told('{"operation": "ADD", "id": null, "content": "When x, do y"}') == [("add", "When x, do y")]
    lines = '{"op": "add", "text": "a b"}\n{"op": "delete", "id": "L1"}'
    assert told(lines) == [("add", "a b"), ("delete", "L1")]


def test_d3_a_list_of_texts() -> None:
    assert told('["Look at it twice", "Go home early"]') == [("add", "Look at it twice"), ("add", "Go home early")]
    assert told('{"edits": ["Look twice"]}') == [("add", "Look twice")]
    with pytest.raises(Unreadable):
        read("I would keep [L0] and [L1], see ['x'] or [1, 2].")


def test_d3_one_bad_item_costs_itself_and_says_why() -> None:
    items = [GOOD, 3, None, ["x"], {}, {"op": "zap", "id": "L0"}, {"op": "add", "text": "..."}, {"op": "add", "text": None}]
    items += [{"op": "modify", "text": "a"}, {"op": "modify", "ids": ["L0", "L1"], "text": "a"}, {"op": "merge", "id": "L0"}]
    items += [{"op": "add", "text": "word " * 40}, {"note": "hello"}, {"op": "delete", "id": "L1"}]
    edits, rulings = read(json.dumps({"edits": items}))
    assert [edit.op for edit in edits] == ["add", "delete"]
    assert [ruling.reason.split(":")[0] for ruling in rulings] == [
        "'3' is no edit that can be read",
        "'None' is no edit that can be read",
        "\"['x']\" is no edit that can be read",
        "an edit has an op",
        "there is no operation 'zap'; there are add, modify, merge, delete, keep",
        "add needs a text, got '...'",
        "add needs a text",
        "modify of which lesson? there are L0, L1, L2",
        "modify is of one lesson, got L0, L1; merge makes one of several",
        "a merge is of two lessons or more, got L0",
        "40 words are more than 32",
        "an edit has an op",
    ]
    assert len(rulings) == len(items) - 2, "no item vanishes"
    assert not any(ruling.accepted for ruling in rulings)
    assert all(ruling.edit.problems == ("p",) for ruling in rulings)


def test_d8_an_edit_of_an_unknown_lesson_is_ruled_out_and_never_becomes_an_addition() -> None:
    items = [{"op": op, "id": "G9", "text": "a b"} for op in ("modify", "delete", "keep")]
    items += [{"op": "merge", "ids": ["L0", "L9"], "text": "a b"}]  # type: ignore[dict-item]
    edits, rulings = read(json.dumps([GOOD, *items]))
    assert [edit.op for edit in edits] == ["add"]
    assert [ruling.edit.op for ruling in rulings] == ["modify", "delete", "keep", "merge"]
    assert rulings[0].reason == "modify: there is no lesson 'G9'; there are L0, L1, L2"
    assert "'L9'" in rulings[3].reason
    edits, _ = read('[{"op": "merge", "ids": ["L0", "L9", "L2"], "text": "a b"}]')
    assert edits[0].lessons == ("L0", "L9", "L2"), "the library says what it leaves out"


def test_d8_ids_in_brackets_are_ids() -> None:
    for id in ('"[L1]"', '"l1"', "1", '"1"', '"L1:"', "L1", '["[L1]"]', '"[L1] Never run"'):
        assert told(f'{{"edits": [{{"op": "delete", "id": {id}}}]}}') == [("delete", "L1")]


def test_d2_a_reply_without_a_usable_edit_says_what_is_wrong_so_that_it_can_be_asked_for_again() -> None:
    for reply in (
        "",
        "I have no idea.",
        "{}",
        '{"note": 1}',
        "null",
        "[[[",
        '{"edits": [',
        '{"edits": [}',
        "I think [",
        '{"edits": "none"}',
    ):
        with pytest.raises(Unreadable, match=r'asked for {"edits"'):
            read(reply)
    with pytest.raises(Unreadable, match=r"nothing of the reply can be used: modify: there is no lesson 'L7'.*40 words"):
        read(json.dumps([{"op": "modify", "id": "L7", "text": "a"}, {"op": "add", "text": "word " * 40}]))


def test_more_edits_than_asked_for_are_ruled_out_and_keeps_do_not_count() -> None:
    items = [{"op": "add", "text": f"Text {n}"} for n in range(4)]
    edits, rulings = read(json.dumps([{"op": "keep", "id": "L0"}, *items, {"op": "keep", "id": "L1"}]), most=2)
    assert [edit.text for edit in edits] == ["", "Text 0", "Text 1", ""]
    assert [(ruling.edit.text, ruling.reason) for ruling in rulings] == [
        ("Text 2", "more than the 2 that were asked for"),
        ("Text 3", "more than the 2 that were asked for"),
    ]


# JSON as models write it


@pytest.mark.parametrize(
    "reply",
    [
        '```json\n[{"op": "add", "text": "a b"}]\n```',
        'First a draft:\n```json\n[{"op": "add", "text": "draft"}]\n```\nNow better:\n```\n[{"op": "add", "text": "a b"}]\n```\nDone [L0].',
        '<think>maybe {"edits": [{"op": "delete", "id": "L0"}]}?</think>\n{"edits": [{"op": "add", "text": "a b"}]}',
        'On [0, 1) we don\'t have {x}, so: {"edits": [{"op": "add", "text": "a b"}]} (see [1] and {y}).',
        '{"edits": [{"op": "add", "text": "a b",},],}',
        '{"edits": [ // the list\n {"op": "add", /* new */ "text": "a b"}, # nothing else\n ...\n]}',
        '{"edits": [{"op": "add", "text": "a b", ...}, …]}',
        "{'edits': [{'op': 'add', 'text': 'a b', 'id': None}]}",
        '{edits: [{op: add, text: "a b"}]}',
        '{"edits": [{"op": "add" "text": "a b"}',
        '{"edits": [{"op": "add",\n"text": "a b"\n"why": "c"}]}',
        '{"edits": [{"op": "add", "text": "a\n  b"}]}',
        '{"edits": [{"op": "add", "text": "a b"}], "note": "cut o',
        '{"edits": [{"op": "add", "text": "a b", "why": "cut o',
        '\ufeff{"edits": [{"op": "add", "text": "a b"}]]]}}',
        '{"example": [{"op": "add", "text": "no"}]}\n{"edits": [{"op": "add", "text": "a b"}]}',
    ],
)
def test_json_as_models_write_it(reply: str) -> None:
    assert told(reply) == [("add", "a b")]


def test_quotation_marks_and_apostrophes_within_texts() -> None:
    assert told('{"edits": [{"op": "add", "text": "say "hello" now"}]}') == [("add", 'say "hello" now')]
    assert told("[{'op': 'add', 'text': 'don't stop'}]") == [("add", "don't stop")]
    edits, rulings = read(
        '{"edits": [{"op": "add", "text": "say "hello", then go"}, {"op": "add", "text": "a b"}, {"op": "add", "text": don\'t do}]}'
    )
    assert [edit.text for edit in edits] == ["a b"]
    assert len(rulings) == 2
    assert all("is no edit that can be read" in ruling.reason for ruling in rulings)


def test_a_reply_that_is_cut_off_keeps_what_is_complete() -> None:
    whole = '{"edits": [{"op": "add", "text": "a b"}, {"op": "modify", "id": "L1", "text": "c d"}]}'
    for end in range(len(whole)):
        try:
            edits, rulings = read(whole[:end])
        except Unreadable:
            assert end < whole.index("}")
        else:
            assert [edit.text for edit in edits] in (["a b"], ["a b", "c d"])
            assert len(edits) + len(rulings) <= 2


@pytest.mark.parametrize(
    "text",
    [
        r"\sqrt{2} \le \pi",
        r"\underset{x}{y}",
        r"\frac{1}{2}",
        r"\theta \times \text{if} \to \tan x",
        r"\beta \binom{n}{k} \boxed{1}",
        r"\nu \neq \nabla \notin S",
        r"\rho \right) \rangle",
        r"\forall x \in \{1, 2\}",
        r"\(x\) \[y\] 100\% a\_b",
        r"\uparrow",
    ],
)
def test_d10_latex_stays_latex(text: str) -> None:
    """Escaped as JSON wants it, and as models write it."""
    right = json.dumps({"edits": [{"op": "add", "text": f"Use {text} here"}]})
    assert told(right) == [("add", f"Use {text} here")]
    wrong = right.replace("\\\\", "\\")
    assert told(wrong) == [("add", f"Use {text} here")]


def test_d10_escapes_of_json_are_read_as_such() -> None:
    assert json_values(r'["a\nNow\tthen\r\n\"\/\\ \u00e9 \ud83d\ude00 \ud83d \q"]') == [
        ['a\nNow\tthen\r\n"/\\ é 😀 \ufffd \\q']
    ]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(-1e6, 1e6)
    | st.text("ab \"'\\/{}[]:,#\n.é€", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc ", min_size=1, max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(JSON, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=3), JSON, max_size=3))
def test_what_is_json_is_read_as_json(value: Any) -> None:
    for indent in (None, 1):
        written = json.dumps(value, indent=indent, ensure_ascii=bool(indent))
        assert json_values(written) == [value]
        assert json_values(f"Well, it's this: {written} I think.") == [value]


@given(st.text("{}[]\"':,\\ \n#/*.nuL0`aop", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for value in json_values(text):
        assert isinstance(value, dict | list)
    try:
        edits, rulings = read(text)
    except Unreadable:
        return
    assert all(edit.op and edit.text == " ".join(edit.text.split()) for edit in edits)
    assert all(ruling.reason and not ruling.accepted for ruling in rulings)


@settings(max_examples=50)
@given(
    st.lists(
        st.sampled_from([json.dumps(GOOD), '{"op": "delete", "id": "L9"}', '{"op": }', "{x y}", "3", '{"op": "zap"}']),
        min_size=1,
    )
)
def test_no_item_of_a_list_vanishes(items: list[str]) -> None:
    try:
        edits, rulings = read(f'Here: {{"edits": [{", ".join(items)}]}}')
    except Unreadable:
        assert json.dumps(GOOD) not in items
    else:
        assert len(edits) == items.count(json.dumps(GOOD))
        assert len(edits) + len(rulings) == len(items)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rubbish",
    [
        "[" * 30_000,
        '{"a":' * 25_000,
        '["' * 30_000,
        '{"a": "b" c ' * 30_000,
        "{\\frac" * 20_000,
        '["' + '" ' * 20_000,
        "{/*" * 30_000,
        "['" * 30_000,
        "[" + "..." * 30_000,
        "[" + ",\n" * 20_000,
        '"\\' * 20_000,
        "[{'" * 20_000,
        "}" * 30_000,
    ],
    ids=lambda text: text[:8],
)
def test_long_rubbish_is_read_once(rubbish: str) -> None:
    with pytest.raises(Unreadable):
        read(rubbish)
    assert read(f'{rubbish}\n```json\n{{"edits": [{json.dumps(GOOD)}]}}\n```')[0][0].text == GOOD["text"]


def test_thousands_of_edits_are_read() -> None:
    edits, _ = read('{"edits": [' + '{"op": "keep", "id": "L0"},' * 7_000 + "]}")
    assert len(edits) == 7_000


def test_of_a_very_long_reply_the_end_is_read() -> None:
    final = f'{{"edits": [{json.dumps(GOOD)}]}}'
    draft = '{"edits": [{"op": "delete", "id": "L0"}]}'
    assert told(f"{draft}{'x ' * 120_000}{final}") == [("add", GOOD["text"])]
    with pytest.raises(Unreadable):
        read(f"{final}{'x ' * 120_000}")


def test_a_last_list_of_which_nothing_can_be_used_is_not_replaced_by_a_draft() -> None:
    draft = 'Draft: {"edits": [{"op": "delete", "id": "L0"}]}\n'
    with pytest.raises(Unreadable, match="L77"):
        read(draft + 'Better: {"edits": [{"op": "modify", "id": "L77", "text": "When x, do y."}]}')
    assert read(draft + 'No: {"edits": []}') == ([], [])
    edits, rulings = read(draft + 'So: {"edits": [{"op": "keep", "id": "L1"}, {"op": "delete", "id": "L77"}]}')
    assert ([edit.op for edit in edits], len(rulings)) == (["keep"], 1)


# Lists of texts


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ('{"lessons": ["a\\nb", "c", "d"]}', ["a b", "c"]),
        ('{"lessons": []}', []),
        ('{"Lessons": "just one"}', ["just one"]),
        ('{"lessons": [{"text": "a b"}, {"content": "c"}, {}, 3, "..."]}', ["a b", "c"]),
        ('Here: ["Look at it", "d"] as in [L0].', ["Look at it", "d"]),
        ('{"lessons": ["draft"]} no: {"lessons": ["use \\frac{1}{2}"]}', ["use \\frac{1}{2}"]),
        ("[]", []),
    ],
)
def test_lists_of_texts(reply: str, found: list[str]) -> None:
    assert read_list(reply, "lessons", 2) == found


@pytest.mark.parametrize(
    "reply", ["", "nothing", '{"other": ["a b c"]}', '{"lessons": 3}', '{"lessons": [{}]}', "see [L0]", '{"lessons": [']
)
def test_no_list_of_texts(reply: str) -> None:
    with pytest.raises(Unreadable, match=r'asked for {"lessons": '):
        read_list(reply, "lessons", 2)
