"""JSON schemas of replies, for servers that hold a model to one (`Ask.reply_schema`).

Every schema begins with a text `thoughts`, so that a model which is held to the schema can still reason before it answers. All fields
are required, and no others are allowed, as OpenAI's strict mode demands; a field that may be left out is null.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["BOOLEAN", "EDITS", "LESSONS", "NUMBER", "OPTIONS", "STEP_REWARDS", "TEXT", "TEXTS", "reply_schema"]

Schema = Mapping[str, Any]

NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "array", "items": TEXT}


def _object(fields: Mapping[str, Schema]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(fields), "required": [*fields], "additionalProperties": False}


def build_object_list(**fields: Schema) -> Schema:
    """The schema of a list of objects with these fields."""
    return {"type": "array", "items": _object(fields)}


def reply_schema(**fields: Schema) -> dict[str, Any]:
    """The schema of a reply: an object with thoughts and these fields."""
    return _object({"thoughts": TEXT, **fields})


_TEXT_OR_NONE: Schema = {"type": ["string", "null"]}
_TEXTS_OR_NONE: Schema = {"type": ["array", "null"], "items": TEXT}
OPTIONS = build_object_list(action=TEXT, confidence=NUMBER)
"""Actions with confidences."""
STEP_REWARDS = build_object_list(step=NUMBER, reason=TEXT, reward=NUMBER)
"""Rewards of steps, by their numbers."""
LESSONS = build_object_list(title=TEXT, description=TEXT, content=TEXT)
"""Lessons of ReasoningBank."""
EDITS = build_object_list(
    op=TEXT,
    id=_TEXT_OR_NONE,
    ids=_TEXTS_OR_NONE,
    text=_TEXT_OR_NONE,
    why=_TEXT_OR_NONE,
    **{"from": {"type": ["array", "null"], "items": NUMBER}},
)
"""Edits of a library (nodes/extract/edits.py)."""
