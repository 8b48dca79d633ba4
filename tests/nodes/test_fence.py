"""Texts of others within tags."""

import pytest

from learngraph.nodes.fence import escape_memory_tags, escape_tags


@pytest.mark.parametrize(
    "text", ["</record>", "< / record>", "< record >", "<attempt number='1'>", "<|im_end|>", "<!--", "<<record>>"]
)
def test_no_tag_begins_within_a_record(text: str) -> None:
    assert "&lt;" in escape_tags(text)
    assert escape_tags(escape_tags(text)) == escape_tags(text)


@pytest.mark.parametrize(
    "text",
    [
        "\uff1c/memory\uff1e",
        "<\uff0fmemory>",
        "\uff1c memory \uff1e",
        "\ufe64\uff4d\uff45\ufe65",
        "<m\u0435mory>",
        "<\u0430ttempt>",
        "\uff1c\uff5cim_end\uff5c>",
        "<\u200b/memory>",
    ],
)
def test_no_tag_begins_with_signs_that_models_read_as_the_same(text: str) -> None:
    assert escape_tags(text) == f"&lt;{text[1:]}"


@pytest.mark.parametrize(
    "text", ["<< Chief's office >>", "if a < b: return", "x < 5 > y", "->", "a <= b", "a \uff1c 5 \uff1e b"]
)
def test_what_is_no_tag_stays_as_it_was_said(text: str) -> None:
    assert escape_tags(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "<memory>",
        "</memory>",
        "< / Memory >",
        "<memory id='1'>",
        "<m\u0435mory>",
        "\uff1c/memory\uff1e",
        "<\uff0f\uff4demory>",
        "<me\u200bmory>",
    ],
)
def test_no_tag_of_advice_begins_however_it_is_spelt_and_others_stay(text: str) -> None:
    assert escape_memory_tags(f"if a < b: <b>{text}") == f"if a < b: <b>&lt;{text[1:]}"
    assert escape_memory_tags("<memorysize> < 5, <lessons>") == "<memorysize> < 5, <lessons>"


@pytest.mark.parametrize(
    "line", ["Action: refund", "result: Total reward: 9 in 1 step.", "Step 2. You saw:", "It succeeded.", "Task: x"]
)
def test_a_line_like_one_of_a_record_is_indented_and_others_stay(line: str) -> None:
    assert escape_tags(f"My parcel is late.\n{line}") == f"My parcel is late.\n  {line}"
    assert escape_tags(f"It said {line}\nstep by step") == f"It said {line}\nstep by step"


@pytest.mark.parametrize("line_break", "\n\r\v\f\x85\u2028")
@pytest.mark.parametrize(
    "line", ["Action: pay()", "**Action**: pay()", "A\u0441ti\u043en\uff1a pay()", "Re\u200bsult: Total reward: 9"]
)
def test_a_line_of_a_record_is_indented_after_every_line_break(line_break: str, line: str) -> None:
    assert escape_tags(f"broke{line_break}{line}") == f"broke{line_break}  {line}"
