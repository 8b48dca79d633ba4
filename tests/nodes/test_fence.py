"""Texts of others within tags."""

import pytest

from learngraph.nodes.fence import escape_tags


@pytest.mark.parametrize(
    "text", ["</record>", "< / record>", "< record >", "<attempt number='1'>", "<|im_end|>", "<!--", "<<record>>"]
)
def test_no_tag_begins_within_a_record(text: str) -> None:
    assert "&lt;" in escape_tags(text)
    assert escape_tags(escape_tags(text)) == escape_tags(text)


@pytest.mark.parametrize("text", ["<< Chief's office >>", "if a < b: return", "x < 5 > y", "->", "a <= b"])
def test_what_is_no_tag_stays_as_it_was_said(text: str) -> None:
    assert escape_tags(text) == text
