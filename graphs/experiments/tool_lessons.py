"""Priors and lessons of the study of tool agents (tool_agents.py), all by rule: no model writes or reads anything here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, ClassVar, NamedTuple

from ...memory.lessons.library import Library, one_line
from ...memory.records import Lesson
from ...memory.search.similarity import words
from ...nodes.act.policies import admissible_actions, candidates_from_logits

__all__ = ["LessonsPolicy", "Step", "WordsPolicy", "line_lessons", "shuffle_calls"]

_SHAPE = re.compile(r"(?:(?P<ticket>Ticket: .*?); )?(?P<part>.*) -> (?P<call>\w+\(.*\))")
"""A lesson: the kind of ticket, if it matters, what was read, and the call to make then."""
_LONGEST = 120
"""Characters of a reading that a lesson names."""


Step = tuple[str, str, float]
"""State, action, reward."""


def state_tokens(state: str) -> list[Hashable]:
    """The tokens by which memory compares states: the answer and its check as a whole, the kind of ticket, and whether it is abroad.

    Two states with one answer have a Jaccard index of 5/7 if the kind differs, of 4/8 if only one is abroad, of 1/3 with both; with
    other answers it is at most 1/3.
    """
    ticket, _, answer = state.partition("\n")
    kind, _, place = ticket.partition(", ")
    return [*((answer, copy) for copy in range(3)), kind, (place, "here"), (place, "too")]


class WordsPolicy:
    """A prior without a model: logits from the words that a call and its tool's description share with what was read.

    The logit is `scale` times the cosine of the two sets of words, each word weighted by how few of the tools have it.

    Args:
        descriptions: name of a tool -> what it does, in words.
        scale: nats of a perfect match.
    """

    role: ClassVar[str] = "compute"

    def __init__(self, descriptions: Mapping[str, str], scale: float = 10.0) -> None:
        self.scale = scale
        self._words = {name: {*words(f"{name.replace('_', ' ')} {text}")} for name, text in descriptions.items()}
        held = [word for own in self._words.values() for word in own]
        self._weight = {word: math.log(1 + len(self._words) / held.count(word)) ** 2 for word in {*held}}

    def __call__(self, state: Any) -> dict[str, Any]:
        actions = admissible_actions(state, "words")
        read = {*words(state["observation"].text.replace("_", " "))}
        return {"candidates": candidates_from_logits(actions, [self.scale * self._cosine(read, call) for call in actions])}

    def _cosine(self, read: set[str], call: str) -> float:
        name, _, arguments = call.partition("(")
        own = self._words.get(name, set()) | {*words(arguments.replace("_", " "))}
        shared, size = self._total(own & read), math.sqrt(self._total(own) * self._total(read))
        return shared / size if size else 0.0

    def _total(self, some: set[str]) -> float:
        return sum(self._weight.get(word, 1.0) for word in some)


def line_lessons(
    steps: Iterable[Step],
    *,
    skip: Callable[[str], bool],
    least_mean: float = 0.4,
    least_gain: float = 0.5,
    least_tries: int = 5,
    most: int = 40,
) -> Library:
    """Lessons by rule: calls that earned more where a certain thing had been read than where the same check said something else.

    The mean reward of a call is taken over states, each once: a learner makes a call most often where it found it good. A reading
    counts for all kinds of tickets if it does over all of them, else for the kinds for which it does.

    Args:
        steps: state, action and reward of each step. A state is the kind of ticket, the name of the check, and its answer.
        skip: true of the calls that no lesson is about.
        least_mean: the least mean reward after the reading.
        least_gain: the least difference from the mean reward of the call where the check said something else.
        least_tries: the least number of tries after the reading.
        most: number of lessons at most, those with the highest gain times the number of states.
    """
    tried: dict[tuple[str, str], list[float]] = {}
    for state, action, reward in steps:
        if not skip(action):
            tried.setdefault((state, action), []).append(reward)
    places: dict[tuple[str, str, str], list[_Place]] = {}  # kind, check, call -> the states where it was tried
    for (state, action), rewards in tried.items():
        ticket, check, parts = _readings(state)
        for kind in ("", ticket):
            places.setdefault((kind, check, action), []).append(_Place(parts, _mean(rewards), len(rewards)))
    worth = dict[tuple[str, str, str], float]()
    for (kind, _, action), states in places.items():
        found = []
        for part in sorted(set().union(*(place.parts for place in states))):
            here = [place for place in states if part in place.parts]
            there = [place.mean for place in states if part not in place.parts]
            mean, tries = _mean([place.mean for place in here]), sum(place.tries for place in here)
            if there and tries >= least_tries and mean >= least_mean and mean - _mean(there) >= least_gain:
                found.append((mean - _mean(there), len(here), part))
        if found:  # of readings that come together, the one that tells most
            gain, count, part = max(found)
            worth[kind, part, action] = max(worth.get((kind, part, action), 0), gain * count)
    general = {key: value for key, value in worth.items() if not key[0] or ("", *key[1:]) not in worth}
    best = sorted(general, key=lambda key: (-general[key], key))[:most]
    texts = [f"{kind}{'; ' if kind else ''}{part} -> {call}" for kind, part, call in best]
    return Library(tuple(Lesson(f"L{number}", text) for number, text in enumerate(texts)), len(texts))


class _Place(NamedTuple):
    """A state in which a call was tried: what was read there, the call's mean reward, and how often it was tried."""

    parts: set[str]
    mean: float
    tries: int


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _readings(state: str) -> tuple[str, str, set[str]]:
    """The kind of ticket, the check, and what it said: the lines of the answer, or the parts of a record. Long ones are left out."""
    ticket, check, *lines = [*map(one_line, state.splitlines()), "", ""]
    parts = {part for line in lines for part in (line.split(", ") if line[:1] in ("[", "{") else [line])}
    return ticket, check, {part for part in parts if part and len(part) <= _LONGEST}


def shuffle_calls(library: Library, seed: int) -> Library:
    """The lessons with their calls exchanged: each has that of another lesson."""
    found = [_SHAPE.fullmatch(lesson.text) for lesson in library.lessons]
    parts = [(lesson, match) for lesson, match in zip(library.lessons, found, strict=True) if match]
    order = Random(f"lessons/{seed}").sample(range(len(parts)), len(parts))
    after = dict(zip(order, [*order[1:], *order[:1]], strict=True))
    mixed = [
        replace(lesson, text=lesson.text.removesuffix(match["call"]) + parts[after[n]][1]["call"])
        for n, (lesson, match) in enumerate(parts)
    ]
    return replace(library, lessons=tuple(mixed))


@dataclass(frozen=True)
class LessonsPolicy:
    """A reader of such lessons: the calls that they name for what was read become likelier; where they name none, going on does."""

    role: ClassVar[str] = "compute"

    prior: Any
    library: Library
    nats: float = 4.0
    """Added to the logits of these calls: less than what JitRL's graph takes from one that was made here in vain."""

    def __call__(self, state: Any) -> dict[str, Any]:
        found = self.prior(state)
        actions = state["observation"].actions
        ticket, _, parts = _readings(state["observation"].text)
        named = set()
        for lesson in self.library.lessons:
            match = _SHAPE.fullmatch(lesson.text)
            if match and match["part"] in parts and match["ticket"] in (None, ticket):
                named.add(match["call"])
        named = named & {*actions} or {*actions[:1]}
        logits = [one.logit + self.nats * (one.action in named) for one in found["candidates"]]
        return {**found, "candidates": candidates_from_logits([one.action for one in found["candidates"]], logits)}
