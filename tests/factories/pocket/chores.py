"""Chores: an endless supply of rooms whose things have invented names and belong somewhere. For training texts only.

It has the form of TextWorldExpress's twc with one room (same wording, same actions, same rewards: a share for each thing held,
twice that where it belongs), in rooms of three to nine pieces of furniture. Where a thing belongs cannot be guessed from
names that mean nothing: only attempts and their rewards tell. It is played thousands of times in a training, which the
game's 1,000 tasks with their few dozen names would not bear, and at a hundredth of the cost.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task

_SYLLABLE = (
    ("", "b", "bl", "c", "ch", "d", "f", "g", "gr", "h", "j", "k", "l", "m", "n", "p", "pl", "r", "s", "st", "t", "tr", "w"),
    ("a", "e", "i", "o", "u", "ea", "ee", "oo", "ou"),
    ("", "", "b", "ck", "d", "g", "l", "m", "n", "ng", "p", "r", "s", "t", "th"),
)
_WHERE = ("In one part of the room you see", "There is also", "You also see", "In another part of the room you see")
_HELD = "(held)"  # no name of furniture
_ROOMS = ("bedroom", "living room", "kitchen", "bathroom", "laundry room", "backyard", "corridor", "pantry")


def invent_word(draw: random.Random, max_syllables: int = 3) -> str:
    """An invented word of one to `most` syllables."""
    return "".join(draw.choice(part) for _ in range(draw.randint(1, max_syllables)) for part in _SYLLABLE)


@dataclass(frozen=True, slots=True)
class _Room:
    name: str
    furniture: tuple[str, ...]
    closed: frozenset[str]
    """Furniture that is closed at first."""
    homes: tuple[tuple[str, str], ...]
    """(thing, the piece of furniture where it belongs)."""
    things: tuple[str, ...]
    """The things, in the order in which the room shows them."""


@lru_cache(maxsize=1024)
def _room(seed: int) -> _Room:
    draw = random.Random(f"chores {seed}")
    names: list[str] = []
    while len(names) < 12:
        name = " ".join(invent_word(draw, 2) for _ in range(draw.choice((1, 1, 2))))
        if name not in names and "in" not in name.split():  # `put a in b` has one reading only
            names.append(name)
    furniture = tuple(names[: draw.randint(3, 9)])
    closed = frozenset(piece for piece in furniture if draw.random() < 0.3)
    things = names[9 : 9 + draw.randint(1, 3)]
    homes = tuple((thing, draw.choice(furniture)) for thing in things)
    return _Room(draw.choice(_ROOMS), furniture, closed, homes, tuple(draw.sample(things, len(things))))


class Chores:
    """The part of an environment over the rooms that making transcripts needs."""

    name = "chores"
    horizon = 30

    def task(self, seed: int, split: str = "train") -> Task:
        """The room of this seed."""
        if split != "train":
            raise UserError(f"chores: there are rooms to train on only, got split {split!r}")
        return Task(
            f"chores-{seed}",
            "Your task is to pick up objects, then place them in their usual locations in the environment.",
            seed,
        )

    def gold(self, task: Task) -> tuple[str, ...]:
        """Take everything, open what has to be opened, put everything where it belongs."""
        room = _room(task.seed)
        opened = [home for _, home in room.homes if home in room.closed]
        return (
            *(f"take {thing}" for thing, _ in room.homes),
            *(f"open {home}" for home in dict.fromkeys(opened)),
            *(f"put {thing} in {home}" for thing, home in room.homes),
        )

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The observation after these actions."""
        room = _room(task.seed)
        homes, share = dict(room.homes), 0.5 / len(room.homes)
        where = dict.fromkeys(room.things, "")  # on the floor
        closed = set(room.closed)

        def score() -> float:
            return share * sum(2 if place == homes[thing] else place == _HELD for thing, place in where.items())

        said, before = "", 0.0
        for action in actions:
            before = score()
            verb, _, rest = action.partition(" ")
            if action not in self._actions(room, where, closed):
                raise UserError(f"chores: {action!r} is not admissible in {task.id}")
            said = ""
            if verb == "take":
                where[rest], said = _HELD, f"You take the {rest}."
            elif verb == "put":
                thing, _, place = rest.partition(" in ")
                where[thing], said = place, f"You put the {thing} in the {place}."
            elif verb == "open":
                closed.discard(rest)
                inside = ", ".join(f"a {thing}" for thing, place in where.items() if place == rest)
                said = f"You open the {rest}. " + (f"The {rest} contains {inside}." if inside else "It's empty inside.")
            elif verb == "close":
                closed.add(rest)
                said = f"You close the {rest}."
        reward = round(score() - before, 9) if actions else 0.0
        over = score() > 0.999
        text = "\n\n".join(part for part in (said, self._look(room, where, closed)) if part)
        return Observation(text, () if over else self._actions(room, where, closed), reward, over)

    def abstract(self, observation: Observation) -> str:
        """The room and the things in it, without the answer to the last action."""
        return observation.text[observation.text.index("You are in ") :].replace(". ", "\n").replace("You are", "you are")

    def _look(self, room: _Room, where: dict[str, str], closed: set[str]) -> str:
        seen = []
        for piece in room.furniture:
            on = ", and ".join(f"a {thing}" for thing, place in where.items() if place == piece)
            if piece in closed:
                seen.append(f"a {piece} that is closed")
            elif piece in room.closed:
                seen.append(f"An open {piece}, that contains {on}" if on else f"an open {piece}, that is empty")
            else:
                seen.append(f"a {piece} that has {on} on it" if on else f"a {piece}, that has nothing on it")
        seen += [f"a {thing}" for thing, place in where.items() if not place]
        listed = " ".join(f"{_WHERE[n % len(_WHERE)]} {what}." for n, what in enumerate(seen))
        held = "".join(f"\n  a {thing}" for thing, place in where.items() if place == _HELD)
        return f"You are in the {room.name}. {listed}\n\nInventory:{held or chr(10) + '  Your inventory is currently empty.'}"

    def _actions(self, room: _Room, where: dict[str, str], closed: set[str]) -> tuple[str, ...]:
        free = [piece for piece in room.furniture if piece not in closed]
        held = [thing for thing, place in where.items() if place == _HELD]
        return tuple(
            sorted(
                {
                    "inventory",
                    "look around",
                    *(f"take {thing}" for thing, place in where.items() if place != _HELD and place not in closed),
                    *(f"put {thing} in {piece}" for thing in held for piece in free),
                    *(f"{'open' if piece in closed else 'close'} {piece}" for piece in room.closed),
                }
            )
        )
