"""The graph that a memory of experiences has learned: states, and the remembered actions that led from one to another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..records import Experience

__all__ = ["RememberedArrow", "TransitionGraph", "transition_graph"]


@dataclass(frozen=True, slots=True)
class RememberedArrow:
    """The visits to an action in a state that led to the same next state."""

    state: str
    action: str
    following: str
    """The next state; empty where the episode ended, or the next step is not remembered."""
    visits: int
    mean: float
    """Mean return G of these visits, in reward units."""


@dataclass(frozen=True, slots=True)
class TransitionGraph:
    """States and the arrows between them. An action whose outcome varies has one arrow for each next state."""

    states: tuple[str, ...]
    """In the order in which they were met first."""
    arrows: tuple[RememberedArrow, ...]


def transition_graph(experiences: Iterable[Experience], least_visits: int = 1) -> TransitionGraph:
    """The graph of these experiences, such as a whole `Experiences` memory.

    Args:
        experiences: those of an episode follow each other, in the order of its steps.
        least_visits: leave out arrows with fewer visits, and states that are then without any.
    """
    found: dict[tuple[str, str, str], list[float]] = {}
    steps = list(experiences)
    for one, following in zip(steps, [*steps[1:], None], strict=True):
        after = following.state if following is not None and _follows(one, following) else ""
        found.setdefault((one.state, one.action, after), []).append(one.value)
    arrows = tuple(
        RememberedArrow(state, action, after, len(values), sum(values) / len(values))
        for (state, action, after), values in found.items()
        if len(values) >= least_visits
    )
    kept = {name for arrow in arrows for name in (arrow.state, arrow.following)}
    return TransitionGraph(tuple(dict.fromkeys(one.state for one in steps if one.state in kept)), arrows)


def _follows(one: Experience, other: Experience) -> bool:
    (episode, _, step), (other_episode, _, other_step) = one.id.rpartition("/"), other.id.rpartition("/")
    return episode == other_episode and int(other_step) == int(step) + 1
