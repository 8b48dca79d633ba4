"""The settings of the graphs behind `langgraph dev`: the form that LangGraph Studio shows, and what a client has set in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Annotated, Any, cast, get_type_hints

from docstring_parser import parse_from_object
from langgraph.runtime import get_runtime
from pydantic import Field
from typing_extensions import TypedDict

from ...memory.errors import UserError, did_you_mean
from ..arms import check_value, method_settings, preset_names
from ..methods import METHODS

__all__ = ["DevChoice", "DevRequestError"]

COMMON: Mapping[str, tuple[str, str]] = {
    "env": ("twx:coin", "The world, as `learngraph run --env` takes it; `learngraph list` shows all."),
    "model": ("pocket", "The model, as `--model` takes it, or `uniform`: no model, every admissible action is equally likely."),
    "preset": ("default", "The settings to start from; the other fields change single ones."),
}
"""Field of every method -> its default and its description."""
DEV_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"training-free-grpo": {"problems": 8, "held_out": 6, "epochs": 1}}
"""Method -> defaults that are smaller than the command line's, since a client waits for the end."""


class DevRequestError(UserError, ValueError):
    """The input or a setting cannot be used. A ValueError, because the server hides the messages of other errors from clients."""


@dataclass(frozen=True)
class DevChoice:
    """A client's choice: the world, the model, and the method's settings."""

    env: str
    model: str
    settings: Any


@lru_cache(maxsize=64)
def context_schema(method: str) -> type[Any]:
    """The form of a method's settings, every field of which may be left out, with descriptions and defaults.

    It is a TypedDict, so that LangGraph passes on what it does not know, and the graph can say in words what is wrong.
    """
    settings = METHODS[method].settings
    presets = ", ".join(preset_names(settings))
    form: dict[str, Any] = {}
    for name, (default, text) in COMMON.items():
        text = f"{text} There are {presets}." if name == "preset" else text
        form[name] = Annotated[str, Field(description=text, json_schema_extra={"default": default})]
    hints, texts, usual = get_type_hints(settings), _field_texts(settings), _defaults(method)
    for one in fields(settings):
        value = getattr(usual, one.name)
        extra = {"default": list(value) if isinstance(value, tuple) else value}
        form[one.name] = Annotated[hints[one.name], Field(description=texts.get(one.name), json_schema_extra=extra)]
    title = "".join(part.capitalize() for part in method.split("-"))
    return cast("type[Any]", cast(Any, TypedDict)(f"{title}Context", form, total=False))


def _defaults(method: str, preset: str = "default") -> Any:
    return replace(method_settings(f"{method}:{preset}"), **DEV_DEFAULTS.get(method, {}))


def _field_texts(settings: type) -> dict[str, str | None]:
    """Field -> the text below it in the source."""
    owners = reversed(settings.__mro__[:-1])
    return {one.arg_name: one.description for owner in owners for one in parse_from_object(owner).params}


def read_choice(method: str, given: Mapping[str, Any]) -> DevChoice:
    """The choice in a client's values by the fields of the form; other names are left alone, since the server adds its own.

    Raises:
        DevRequestError: a value does not fit its field, or there is no such preset.
    """
    settings = METHODS[method].settings
    hints = {**dict.fromkeys(COMMON, str), **get_type_hints(settings)}
    named = [*COMMON, *(one.name for one in fields(settings))]
    try:
        values = {
            name: check_value(given[name], hints[name], f"{method}: {name}") for name in named if given.get(name) is not None
        }
        env, model, preset = (values.pop(name, default) for name, (default, _) in COMMON.items())
        return DevChoice(env, model, replace(_defaults(method, preset), **values))
    except UserError as error:
        raise DevRequestError(str(error)) from error


def check_context(method: str, choice: DevChoice) -> None:
    """Raise `DevRequestError` if the run was given a context that has unknown names, or that this graph was not made for."""
    context = get_runtime().context
    if not isinstance(context, Mapping):
        return
    known = [*COMMON, *(one.name for one in fields(METHODS[method].settings))]
    for name in context:
        if name not in known:
            raise DevRequestError(f"{method} has no setting {name!r}{did_you_mean(name, known)}; it has {', '.join(known)}")
    if read_choice(method, context) != choice:
        raise DevRequestError(
            f"this run asks for {dict(context)}, but the graph was made for {choice}: set it for the assistant, not for a run"
        )
