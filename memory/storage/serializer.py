"""The types that a checkpoint may restore: our records and LangGraph's own safe ones, so that it cannot name other code to run.

`LANGGRAPH_STRICT_MSGPACK=true` requires that, and is supported.
"""

from langgraph.checkpoint.serde import _msgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from ..records import RECORDS

__all__ = ["allow_records", "serializer"]


def serializer() -> JsonPlusSerializer:
    """The serializer of every checkpoint: it restores the types in `records.RECORDS`."""
    return JsonPlusSerializer(allowed_msgpack_modules=RECORDS)


def allow_records() -> None:
    """Have every saver in this process restore our records without a warning, also one with LangGraph's plain serializer.

    LangGraph has a list of safe types, and no call that adds to it. Our records hold values alone, and run nothing when they are made.
    """
    _msgpack.SAFE_MSGPACK_TYPES |= {(one.__module__, one.__name__) for one in RECORDS}
