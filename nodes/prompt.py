"""Prompts as text files: `nodes/prompts/<method>/<purpose>.md`, with `## system` and `## user` parts and `$name` values.

A value without a place in the text is an error unless it is empty, and so is a place without a value. A user overrides any prompt by a file of the
same name in a directory of their own.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Self

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from ..memory.errors import UserError

__all__ = ["PROMPTS_DIR", "Prompt"]

PROMPTS_DIR = Path(__file__).parent / "prompts"
_ROLES = {"system": SystemMessage, "user": HumanMessage, "assistant": AIMessage}


class PromptError(UserError, ValueError):
    """An error: a prompt is missing or malformed, or its values do not fit."""


@dataclass(frozen=True)
class Prompt:
    """A named list of (role, template) parts."""

    name: str
    """`<method>/<purpose>`, as in the file's path."""
    parts: tuple[tuple[str, Template], ...]

    @classmethod
    def load(cls, name: str, overrides: Path | None = None) -> Self:
        """The prompt `<name>.md` from `overrides` if it is there, else the one that comes with the package.

        Raises:
            PromptError: there is no such prompt, or it is malformed.
        """
        path = overrides / f"{name}.md" if overrides else PROMPTS_DIR / f"{name}.md"
        if overrides and not overrides.is_dir():
            raise PromptError(f"prompts: {overrides} is not a directory")
        if not path.is_file():
            path = PROMPTS_DIR / f"{name}.md"
        if not path.is_file():
            known = sorted(str(p.relative_to(PROMPTS_DIR).with_suffix("")) for p in PROMPTS_DIR.rglob("[a-z]*.md"))
            raise PromptError(f"prompt '{name}' does not exist; there are {known}")
        return cls.read(name, path.read_text(encoding="utf-8"), source=str(path))

    @classmethod
    def read(cls, name: str, text: str, source: str = "text") -> Self:
        """The prompt in `text`, split at its `## role` headings; `source` names the text in errors.

        Raises:
            PromptError: the text is malformed.
        """
        pieces = re.split(r"^## +(\w+) *$", text, flags=re.MULTILINE)
        if pieces[0].strip() or len(pieces) < 3:
            raise PromptError(f"prompt '{name}' ({source}) must begin with '## system' or '## user'")
        parts = []
        for role, body in zip(pieces[1::2], pieces[2::2], strict=True):
            if role not in _ROLES:
                raise PromptError(f"prompt '{name}' ({source}) has a part '## {role}'; parts are {sorted(_ROLES)}")
            template = Template(body.strip("\n"))
            if not template.is_valid():
                raise PromptError(f"prompt '{name}' ({source}), part '{role}': a '$' must name a value, or be '$$'")
            parts.append((role, template))
        return cls(name, tuple(parts))

    @property
    def placeholders(self) -> frozenset[str]:
        """Names of the values that the text needs."""
        return frozenset(n for _, template in self.parts for n in template.get_identifiers())

    def messages(self, **values: object) -> list[BaseMessage]:
        """The chat messages with every `$name` filled in.

        Raises:
            PromptError: a value is missing, or the text has no place for it; names the value.
        """
        for name in sorted(name for name in values.keys() - self.placeholders if values[name] != ""):
            raise PromptError(f"prompt '{self.name}' has no ${name}; it has {sorted(self.placeholders)}")
        for name in sorted(self.placeholders - values.keys()):
            raise PromptError(f"prompt '{self.name}' needs ${name}; given were {sorted(values)}")
        return [_ROLES[role](template.substitute(values)) for role, template in self.parts]

    def text(self, **values: object) -> str:
        """The text of a prompt with a single part, with every `$name` filled in. Errors as for `messages`."""
        (message,) = self.messages(**values)
        return str(message.text)
