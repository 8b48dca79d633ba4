"""The former place of `LessonsMiddleware`, which is in graphs/agents/lessons.py."""

from .lessons import LessonsMiddleware

__all__ = ["LessonsMiddleware"]
