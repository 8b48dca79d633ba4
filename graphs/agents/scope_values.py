"""The values of a scope, such as a tenant's, as a run of an agent gives them: what is named must be there, and is never guessed.

A name's value is looked for in the run's `context` (a dataclass, a mapping, a pydantic model), in the config's `configurable`, and in
the user whom LangGraph's server has authenticated (`server_info.user`). All that give it have to agree.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeAlias
from urllib.parse import quote, unquote
from uuid import UUID

from ...memory.errors import UserError, did_you_mean

__all__ = ["AgentScope", "ScopeError", "ScopeValue", "ThreadId"]

ROOT = "agents"
"""The first label of all namespaces of learners."""
ThreadId: TypeAlias = str | int | UUID
"""What names a thread, as LangGraph takes it; kept as text."""
ScopeValue: TypeAlias = ThreadId | None
"""A value of a scope, such as a tenant's."""
IDENTITY = ("user", "user_id", "identity")
"""Names under which an authenticated user's identity is asked for."""
ALIKE = 0.8
"""Similarity from which a name counts as another one misspelt."""
TENANT = re.compile(
    r"(?:tenant|org|organi[sz]ation|company|customer|account|workspace|team|merchant)(?:id|key|slug|uuid|code)?"
)
"""Names under which apps give a tenant, without case and underscores."""


class ScopeError(UserError):
    """An error: it is not said whose memory is meant, or it is said wrongly. An agent does not go on without."""


@dataclass(frozen=True)
class AgentScope:
    """The names whose values keep conversations apart.

    Args:
        given: `("tenant", "user_id?")`; the value of one with a question mark may be missing.
        option: the argument that names them.

    Raises:
        ScopeError: a text in the place of a sequence, or a name is empty or there twice.
    """

    given: Sequence[str]
    option: str = "scope"

    def __post_init__(self) -> None:
        if isinstance(self.given, str) or not all(self.names) or len(set(self.names)) < len(self.names):
            raise ScopeError(f"scope is a sequence of different names, such as ('tenant', 'user_id?'); got {self.given!r}")

    @property
    def names(self) -> tuple[str, ...]:
        """The names, without question marks."""
        return tuple(name.removesuffix("?") for name in self.given)

    def labels(self, values: Mapping[str, Any], *, to_last: bool = False, beside: Collection[str] = ()) -> tuple[str, ...]:
        """The labels of a namespace for these values; with `to_last` those up to the last name that a value is given for; `beside`:
        other names that may have been meant.

        Raises:
            ScopeError: a value is missing, has no name here, or is no text, number or UUID.
        """
        if unknown := sorted(values.keys() - set(self.names)):
            known = [f"{name}=" for name in (*self.names, *beside)]
            near = did_you_mean(unknown[0], known, "the method takes" if beside else "")
            raise ScopeError(
                f"the scope of this agent has {', '.join(self.names) or 'no names'}; got {', '.join(unknown)}{near}"
            )
        end = max(n for n, name in enumerate(self.names, 1) if name in values) if to_last and values else None
        return tuple(self._label(name, values.get(name.removesuffix("?"))) for name in self.given[:end])

    def _label(self, name: str, value: Any) -> str:
        if isinstance(value, Enum):
            value = value.value
        if value is None or value == "":
            if name.endswith("?"):
                return name[:-1]
            raise ScopeError(
                f"{name} is part of this agent's scope, and no value is given: give {name}=, or name it {name + '?'!r} in scope= if it may be missing"
            )
        is_kind = isinstance(value, str | int | UUID) and not isinstance(value, bool)
        if not is_kind or str(value).encode(errors="ignore").decode() != str(value):
            raise ScopeError(f"a scope's value is a text of whole characters, a whole number or a UUID, got {name}={value!r}")
        return f"{name.removesuffix('?')}={escape_label(str(value))}"

    def is_held(self, name: str) -> bool:
        """True if a turn that goes on keeps its value of a name whatever the run gives: a reviewer may resume it under his own
        `user_id?`. False for a name without a question mark and for a tenant's: another value of it is an error."""
        return self.option == "user" or (name not in self.given and not TENANT.fullmatch(_plain(name)))

    def of_run(
        self,
        runtime: Any,
        configurable: Mapping[str, Any],
        known: Mapping[str, str | None],
        held: Mapping[str, str | None] = MappingProxyType({}),
    ) -> tuple[str, ...]:
        """The labels for a run.

        Args:
            known: the values of the thread's runs before, for what this one does not give; None: it was without.
            held: the values of the turn that goes on, and of the calling agent, for names of which `is_held` is True.

        Raises:
            ScopeError: as of `labels`; or two places give different values, or a name that is there looks like a missing one misspelt.
        """
        context, user = getattr(runtime, "context", None), getattr(getattr(runtime, "server_info", None), "user", None)
        places = {"context": context, "configurable": configurable, "the authenticated user": user}
        values = dict[str, Any]()
        for name in self.names:
            if name in held and self.is_held(name):
                values[name] = held[name]
                continue
            found = {place: value for place, given in places.items() if (value := _value(given, name)) not in (None, "")}
            if len(set(map(str, found.values()))) > 1:
                said = ", ".join(f"{value!r} in {place}" for place, value in found.items())
                raise ScopeError(f"the places of a run disagree on its {name}: {said}")
            if found:
                values[name] = next(iter(found.values()))
                continue
            if known.get(name) is not None:
                values[name] = known[name]
                continue
            given = sorted(_names(context) + _names(configurable))
            near = [one for one in given if _plain(one) == _plain(name)] or get_close_matches(name, given, 1, ALIKE)
            if near and near[0] not in self.names:
                raise ScopeError(
                    f"a run gives no {name}, but {near[0]}: did you mean {name}? If not, leave it out of {self.option}="
                )
            if name in self.given:
                raise ScopeError(
                    f"this agent's {self.option}= names {name}, and the run gives none: give it in context=, in configurable or by the "
                    f"authenticated user; or name it {name + '?'!r} in {self.option}= if it may be missing"
                )
        return self.labels(values)


def find_tenants(runtime: Any, configurable: Mapping[str, Any]) -> list[str]:
    """Names of the values in a run's context and its configurable that look like a tenant's: `org`, `customer_id`, `workspaceId`."""
    places = (getattr(runtime, "context", None), configurable)
    given = {name: _value(held, name) for held in places for name in _names(held)}
    return [
        name
        for name, value in given.items()
        if TENANT.fullmatch(_plain(name))
        and isinstance(value, str | int | UUID)
        and not isinstance(value, bool)
        and value != ""
    ]


def scope_of(labels: Sequence[str]) -> dict[str, Any]:
    """The `agent` that has these labels of a namespace, and the values of its `scope` by their names; None: it is missing."""
    return {"agent": unquote(labels[1]), "scope": label_values(labels[2:])}


def label_values(labels: Sequence[str]) -> dict[str, str | None]:
    """The values of a scope by their names; None: it is missing."""
    found = (label.partition("=") for label in labels)
    return {name: unquote(value) if given else None for name, given, value in found}


def _value(held: Any, name: str) -> Any:
    if held is None:
        return None
    if (identity := getattr(held, "identity", None)) is not None and name in IDENTITY:
        return identity
    if isinstance(held, Mapping):
        return held.get(name)
    if hasattr(held, "__getitem__"):  # a user of LangGraph's server
        return held[name] if name in held else None  # noqa: SIM401
    return getattr(held, name, None)


def _plain(name: str) -> str:
    """A name without case, underscores and hyphens: `userId` is `user_id`."""
    return "".join(filter(str.isalnum, name)).lower()


def _names(held: Any) -> list[str]:
    names = held if isinstance(held, Mapping) else getattr(held, "__dict__", None) or getattr(type(held), "__annotations__", {})
    return [str(name) for name in names if not str(name).startswith("_")]


def escape_label(label: str) -> str:
    """A label of a namespace: LangGraph forbids dots and empty ones."""
    return quote(label, safe=" @+:,=").replace(".", "%2E") or "%00"
