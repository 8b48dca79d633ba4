"""Training texts about lessons in games: a list before the steps, a few lines of it for this task, most for others.

    Task: Your task is to pick up objects, then place them in their usual locations in the environment.
    Lessons:
    - put blue shirt in wardrobe
    - take wet towel
    - put wet towel in washing machine
    You are in the bedroom. ...                                      -> take blue shirt

A library that was learned on other tasks of a game stands in a prompt like this. There are two sources of texts.
`lookup_pieces`: the bare exercise, many small scenes after one list, whose names share words, so that a line is found only by all
of its words. `lesson_pieces`: games under such lists, of which about one line in ten for this task is wrong; with lines for other
tasks only, the label is the one without lessons.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...memory.records import Task
from .chores import invent_word
from .strategies import IDLE_ACTIONS, expert_actions, step_text
from .transcripts import DecisionPiece, GameAttempt, RewardPiece, TranscriptPiece, clip, rename, soften

__all__ = ["bare_attempt", "gold_actions", "lesson_pieces", "lookup_pieces", "swap_places"]

_DONE_TO_THINGS = ("slice", "dice", "chop", "wash", "open", "read", "eat")
_TASKS = ("put everything in its place.", "Your task is to do what is usual with things.", "do as you were told.")
_SEEN = (
    "In one part of the room you see a {}.",
    "There is also a {}, that has nothing on it.",
    "You also see a {}, that has nothing on it.",
    "In another part of the room you see a {} that is closed.",
)


def _list(draw: random.Random, lines: Sequence[str]) -> str:
    """Lessons as a list; now and then as a strategy, which holds the same items in one line."""
    if lines and draw.random() < 0.08:
        return f"Strategy: {'. '.join(lines)}\n"
    return "Lessons:\n" + "".join(f"- {line}\n" for line in lines)


def lookup_pieces(draw: random.Random, longest: int = 500, words: Sequence[str] = ()) -> Iterator[TranscriptPiece]:
    """A list of things and their places (or the actions on them), then scenes that each ask for one line of it, or for none.

    For a thing that the list does not name, all places are equally good.
    """

    def word() -> str:
        return draw.choice(words) if words and draw.random() < 0.4 else invent_word(draw, 2)

    kinds = [word() for _ in range(draw.randint(2, 6))]
    nouns = [word() for _ in range(draw.randint(3, 12))]
    names = {" ".join([*draw.sample(kinds, draw.choice((0, 1, 1, 2))), draw.choice(nouns)]) for _ in range(60)}
    things = [name for name in sorted(names) if " in " not in f" {name} "]
    draw.shuffle(things)
    places = [
        p
        for p in dict.fromkeys(" ".join(word() for _ in range(draw.choice((1, 1, 2)))) for _ in range(12))
        if "in" not in p.split()
    ]
    table = _LessonTable.sample(draw, things, places)
    head = _list(draw, table.lines(draw))
    yield f"Task: {draw.choice(_TASKS)}\n"
    yield head
    used, full = 20 + len(head) // 3, draw.random() < 0.4
    while used < longest:
        text, decision = table.scene(draw, full)
        yield f"{text}\n>"
        yield decision
        if draw.random() < 0.5:
            yield RewardPiece(draw.choice((0.0, 1.0, 0.5)))
        used += (len(text) + len(decision.taken)) // 3 + 6


@dataclass(frozen=True)
class _LessonTable:
    """The places of things, or the actions on them; and further things about which the list says nothing."""

    things: Sequence[str]
    places: Sequence[str]
    listed: Sequence[str]
    """The things in the list."""
    verb: str
    joint: str
    """The word between thing and place."""
    homes: dict[str, str]
    """Thing -> its place."""
    deeds: dict[str, str]
    """Thing -> the action on it; empty: things are put in their places."""

    @classmethod
    def sample(cls, draw: random.Random, things: Sequence[str], places: Sequence[str]) -> _LessonTable:
        """Draw a table. The order of the draws decides the texts of a seed."""
        listed = things[: min(draw.choice((2, 4, 6, 8, 12, 16, 24, 32)), len(things) - 1)]
        verb = draw.choice(("put", "put", "put", "move", "cook"))
        homes = {thing: draw.choice(places) for thing in listed}
        deeds = {thing: draw.choice(_DONE_TO_THINGS) for thing in listed} if draw.random() < 0.15 else {}
        return cls(things, places, listed, verb, "to" if verb == "move" else "in", homes, deeds)

    def lines(self, draw: random.Random) -> list[str]:
        """The list, in any order; now and then with a line `take thing`."""
        lines: list[str] = []
        taking = draw.choice((0.0, 0.0, 0.3, 1.0))
        for thing in self.listed:
            lines.append(
                f"{self.deeds[thing]} {thing}" if self.deeds else f"{self.verb} {thing} {self.joint} {self.homes[thing]}"
            )
            if draw.random() < taking:
                lines.append(f"take {thing}")
        draw.shuffle(lines)
        return lines

    def scene(self, draw: random.Random, full: bool) -> tuple[str, DecisionPiece]:
        """A scene that asks for one line of the list, or for none, and the right decision."""
        deeds, homes = self.deeds, self.homes
        thing = draw.choice(self.things[len(self.listed) :] if draw.random() < 0.15 else self.listed)
        here = draw.sample(self.places, min(len(self.places), draw.randint(2, 6)))
        home = homes.get(thing, "")
        if home and home not in here and draw.random() < 0.9:
            here[draw.randrange(len(here))] = home
        held = draw.random() < 0.75
        lying = draw.choice(self.things)
        options = {"look around", "inventory", *(f"open {place}" for place in here if draw.random() < 0.3)}
        if lying != thing:
            options.add(f"take {lying}")
        if deeds:
            options |= {f"{deed} {thing}" for deed in _DONE_TO_THINGS}
            right = {f"{deeds[thing]} {thing}"} if thing in deeds else {f"{deed} {thing}" for deed in _DONE_TO_THINGS}
        elif held:
            puts = {place: f"{self.verb} {thing} {self.joint} {place}" for place in here}
            options |= {*puts.values()}
            right = {puts[home]} if home in puts else {*puts.values()}
        else:
            options.add(f"take {thing}")
            # Lines for things that are not wanted name what cannot be done with them here; both may be taken.
            right = {f"take {t}" for t in (thing, lying) if t in homes} or {f"take {thing}", f"take {lying}"}
        chosen = sorted(right)
        label = soften({action: 1 / len(chosen) for action in chosen}, sorted(options))
        action = draw.choice(chosen)
        text = _scene(draw, here, [lying] if held or deeds else [thing, lying], thing if held and not deeds else "", full)
        return text, DecisionPiece(action, label, known=len(chosen) == 1)


def _scene(draw: random.Random, places: Sequence[str], lying: Sequence[str], held: str, full: bool) -> str:
    """The places, the things there and the thing held, as a game shows them or in few words."""
    seen = [*draw.sample(places, len(places)), *dict.fromkeys(lying)]
    if not full:
        return (
            f"You see a {', a '.join(seen)}.\n\nInventory:\n  {f'a {held}' if held else 'Your inventory is currently empty.'}"
        )
    listed = " ".join((draw.choice(_SEEN[1:]) if name in places else _SEEN[0]).format(name) for name in seen)
    carried = f"a {held}" if held else "Your inventory is currently empty."
    return f"You are in the {invent_word(draw, 2)}. {listed}\n\nInventory:\n  {carried}"


def lesson_pieces(
    draw: random.Random,
    played: GameAttempt,
    others: Sequence[GameAttempt],
    rename_probability: float = 0.5,
    max_lessons: int = 40,
    words: Sequence[str] = (),
) -> Iterator[TranscriptPiece]:
    """Steps of an attempt at a game under a list of up to `most` lessons.

    The lessons: what gold does at this task (all, some or nothing of it; one in ten with another place or another thing) among
    what gold does at `others`, tasks of the same game. `renamed` is how often things have other names, the same in all of
    them. The label is gold's action, the one that the list names where several are as good.
    """
    if draw.random() < rename_probability:
        (played, *others) = rename([played, *others], draw, words)
    steps = played.steps
    known = [n for n, (_, _, decision, _) in enumerate(steps) if expert_actions(decision)]
    if not known:
        return
    own = [action for action in gold_actions(played) if not action.startswith(("move ", "close "))]
    share = draw.choice((1.0, 1.0, 1.0, 0.5, 0.0))
    wanted = [action for action in own if draw.random() < share]
    wanted = [_similar_action(draw, action, steps) if draw.random() < 0.1 else action for action in wanted]
    elsewhere = [action for other in others for action in gold_actions(other) if action not in own]
    if draw.random() < 0.7:  # as what was paid is: hardly ever a move or a door
        elsewhere = [action for action in elsewhere if not action.startswith(("move ", "close ", "open "))]
        wanted = [action for action in wanted if not action.startswith("open ")]
    elsewhere = list(dict.fromkeys(elsewhere))
    count = min(len(elsewhere), draw.choice((0, 2, 4, 8, 12, 20, 30, 40)), max(0, max_lessons - len(wanted)))
    lines = list(dict.fromkeys([*wanted, *draw.sample(elsewhere, count)]))
    draw.shuffle(lines)
    yield f"Task: {played.task.instruction}\n"
    yield _list(draw, lines)
    named = [n for n in known if any(action in lines for action in expert_actions(steps[n][2]))]
    at = draw.choice(named if named and draw.random() < 0.6 else known)
    rewards = draw.random() < 0.9
    before = steps[max(0, at - draw.choice((0, 1, 3, 6, at, at, at))) : at]
    yield "".join(step_text(clip(state), d.taken, reward if rewards else None) for _, state, d, reward in before)
    many = draw.random() < 0.5
    for seen, _, decision, reward in steps[at : at + 4 if many else at + 1]:
        best = expert_actions(decision)
        if not best:
            return
        listed = [action for action in best if action in lines]
        label = soften(dict.fromkeys(listed or best, 1 / len(listed or best)), list(decision.probabilities))
        yield f"{seen.strip()}\n>"
        yield DecisionPiece(decision.taken if many else draw.choice(listed or best), label, bool(listed), weight=2.0)
        if rewards:
            yield RewardPiece(reward)


def bare_attempt(task: Task, actions: Sequence[str]) -> GameAttempt:
    """An attempt that consists of right actions only, without observations."""
    return GameAttempt(task, tuple(("", "", DecisionPiece(action, {action: 1.0}), 0.0) for action in actions))


def swap_places(draw: random.Random, actions: Sequence[str], places: Sequence[str]) -> list[str]:
    """The same actions, half of those that put something somewhere with one of `places` instead."""
    return [
        f"{action.partition(' in ')[0]} in {draw.choice(places)}"
        if " in " in action and places and draw.random() < 0.5
        else action
        for action in actions
    ]


def gold_actions(played: GameAttempt) -> list[str]:
    """The gold actions of an attempt, without idle looks."""
    done = (action for _, _, decision, _ in played.steps for action in expert_actions(decision))
    return [action for action in dict.fromkeys(done) if action not in IDLE_ACTIONS]


def _similar_action(draw: random.Random, action: str, steps: Sequence[tuple[str, str, DecisionPiece, float]]) -> str:
    """Another action of the same kind with the same thing, which was there in the attempt; or else the action itself."""
    start = action.partition(" in ")[0] if " in " in action else action.partition(" ")[0]
    alike = {a for _, _, decision, _ in steps for a in decision.probabilities if a.startswith(f"{start} ") and a != action}
    return draw.choice(sorted(alike)) if alike else action
