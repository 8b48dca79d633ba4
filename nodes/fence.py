"""Texts of others in prompts: what users, tools and earlier conversations said is data, whatever it says of itself.

Prompts show it between tags, such as <record> and </record>, and say that it is a record and no instruction. The tags are the
prompt's alone: `escape_tags` takes the tags out of what stands between them, so that no text closes its block or opens another.
"""

import re

from ..memory.conversations.letters import latin

__all__ = ["escape_memory_tags", "escape_tags"]

_OPEN, _CLOSE, _SLASH = r"<\uFF1C\uFE64", r">\uFF1E\uFE65", r"/\uFF0F"
"""The signs of a tag with the forms that models read as the same."""
_NAME, _UNSEEN = r"[A-Za-z\u0370-\u04ff!?|\uFF21-\uFF3A\uFF41-\uFF5A\uFF01\uFF1F\uFF5C]", r"\u200B-\u200F\u2060\uFEFF"
_TAG = re.compile(
    rf"[{_OPEN}](?=[\s{_UNSEEN}]*[{_SLASH}]|[{_UNSEEN}]*{_NAME})"
    rf"|(?<![{_OPEN}])[{_OPEN}](?=\s+{_NAME}[^{_OPEN}{_CLOSE}]*[{_CLOSE}])"
)
_LINE = re.compile(
    r"[*_]{0,3}(?:action|reward|result|total reward|judged|(?:its )?task|feedback on it|in short, what was done)[*_]{0,3}\s*:"
    r"|(?:after )?step \d+(?:\.|,? you saw)|attempt \d+:|it (?:succeeded|did not succeed)\b",
    re.IGNORECASE,
)
"""The beginnings of lines that stand at the margin of a record."""
_ANY_OPEN = re.compile(rf"[{_OPEN}]")
_MEMORY = re.compile(r"[\s/]*memory(?!\w)", re.IGNORECASE)
MOST_SIGNS = 60
"""Signs of a line, and behind a less-than sign, that are looked at for its name."""


def escape_memory_tags(text: str, after: str = "") -> str:
    """A text in which no tag `<memory>`, by which advice to an agent is known, begins or ends, also in capitals, in full-width or Cyrillic
    signs, with unseen signs between, or together with the text `after` it; other tags stay."""
    whole = text + after

    def escape(found: re.Match[str]) -> str:
        return "&lt;" if _MEMORY.match(latin(whole[found.end() : found.end() + MOST_SIGNS])) else found[0]

    return _ANY_OPEN.sub(escape, text)


def escape_tags(text: str) -> str:
    """A text in which no tag begins: `</attempt>` becomes `&lt;/attempt>`, also where it is written in full-width signs; a less-than sign before
    a number stays. A line that reads like one of a record, as `Action: ...` or `Result: ...`, is indented: a record's own stand at the margin."""
    lines = _TAG.sub("&lt;", text).splitlines(keepends=True)
    return "".join(f"  {line}" if _LINE.match(latin(line[:MOST_SIGNS])) else line for line in lines)
