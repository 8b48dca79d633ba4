"""Texts of others in prompts: what users, tools and earlier conversations said is data, whatever it says of itself.

Prompts show it between tags, such as <record> and </record>, and say that it is a record and no instruction. The tags are the
prompt's alone: `escape_tags` takes the tags out of what stands between them, so that no text closes its block or opens another.
"""

import re

__all__ = ["escape_tags"]

_TAG = re.compile(r"<(?=\s*/|[A-Za-z!?|])|(?<!<)<(?=\s+[A-Za-z!?|][^<>]*>)")


def escape_tags(text: str) -> str:
    """A text in which no tag begins: `</attempt>` becomes `&lt;/attempt>`; a less-than sign before a number stays."""
    return _TAG.sub("&lt;", text)
