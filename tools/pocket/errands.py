"""Errands: a household with numbered places and things, without end. Training texts only.

It has the form of ALFWorld's games (numbered receptacles and things, one goal that may ask for something hot, cool or
clean, a reward at the end only), in houses and with wordings of its own and, mostly, invented names. Nothing in it comes
from ALFWorld's games, so those stay unseen. It is deterministic and costs microseconds a step.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...memory.errors import UserError
from ...memory.records import Observation, Task
from .chores import invent_word
from .transcripts import DecisionPiece, GameAttempt

__all__ = ["Errands"]

_PLACES = ("cabinet", "drawer", "shelf", "desk", "table", "bed", "dresser", "counter", "sofa", "safe", "cart", "stove", "box")
_THINGS = ("mug", "plate", "apple", "book", "pen", "lamp", "cup", "bowl", "knife", "potato", "watch", "towel", "egg", "key")
_TREATED = {"heat": ("hot", "microwave"), "cool": ("cool", "fridge"), "clean": ("clean", "sink")}


@dataclass(frozen=True, slots=True)
class _House:
    places: tuple[str, ...]
    closed: frozenset[str]
    """Places that are closed at first."""
    where: tuple[tuple[str, str], ...]
    """(thing, the place where it is at first)."""
    wanted: str
    """The kind of thing to be moved, which may be there several times."""
    target: str
    """The kind of place where it is to go."""
    treatment: str
    """`heat`, `cool`, `clean` or nothing."""
    tool: str
    """The place where that is done."""
    verbose: bool
    """Whether each observation repeats the room and what is carried."""


def _number_kinds(kinds: Sequence[str], draw: random.Random, most: int) -> list[str]:
    return [f"{kind} {n + 1}" for kind in kinds for n in range(draw.randint(1, most))]


@lru_cache(maxsize=1024)
def _house(seed: int) -> _House:
    draw = random.Random(f"errands {seed}")
    made = {invent_word(draw, 3) for _ in range(12)} - {"in", "to", "from", "with"}
    strange = draw.random()  # the share of invented names
    names = draw.sample(sorted(made), 9)
    pool = [names.pop() if draw.random() < strange else known for known in draw.sample(_PLACES, 4)]
    kinds = list(dict.fromkeys(pool))[: draw.randint(2, 4)]
    places = _number_kinds(kinds, draw, 4)
    treatment = draw.choice(("", "", "", *_TREATED))
    tool = ""
    if treatment:
        usual = _TREATED[treatment][1]
        tool = f"{names.pop() if draw.random() < strange / 2 else usual} 1"
        places.append(tool)
    closing = {kind for kind in kinds if draw.random() < 0.4}
    closed = frozenset(place for place in places if place.rpartition(" ")[0] in closing)
    things = [names.pop() if names and draw.random() < strange else known for known in draw.sample(_THINGS, draw.randint(2, 5))]
    wanted, target = things[0], draw.choice(kinds)
    numbered = _number_kinds(things, draw, 2)
    elsewhere = [place for place in places if place.rpartition(" ")[0] != target] or places
    where = [(thing, draw.choice(elsewhere if thing.startswith(f"{wanted} ") else places)) for thing in numbered]
    draw.shuffle(places)
    return _House(tuple(places), closed, tuple(where), wanted, target, treatment, tool, draw.random() < 0.5)


@dataclass
class _State:
    where: dict[str, str]
    closed: set[str]
    at: str = ""
    held: str = ""
    treated: frozenset[str] = frozenset()


class Errands:
    """The houses as an environment: as much of one as making transcripts needs."""

    name = "errands"
    horizon = 20

    def task(self, seed: int, split: str = "train") -> Task:
        """The house of this seed."""
        if split != "train":
            raise UserError(f"errands: there are houses to train on only, got split {split!r}")
        house = _house(seed)
        quality = f"{_TREATED[house.treatment][0]} " if house.treatment else ""
        return Task(f"errands-{seed}", f"put a {quality}{house.wanted} in {house.target}.", seed)

    def gold(self, task: Task) -> tuple[str, ...]:
        """The way to the goal from the start on."""
        actions: list[str] = []
        while action := self.best_action(task, actions):
            actions.append(action)
        return tuple(actions)

    def best_action(self, task: Task, actions: Sequence[str]) -> str:
        """What leads to the goal after these actions; nothing once it is reached."""
        house = _house(task.seed)
        state, *_ = self._play(task, actions)
        if self._is_won(house, state):
            return ""
        ready = bool(state.held.startswith(f"{house.wanted} "))
        if ready and (not house.treatment or state.held in state.treated):
            ends = [place for place in house.places if place.rpartition(" ")[0] == house.target]
            end = state.at if state.at in ends else min(ends)
            return self._reach(state, end) or f"move {state.held} to {end}"
        if ready:
            return self._at(state, house.tool) or f"{house.treatment} {state.held} with {house.tool}"
        if state.held:
            here = state.at if state.at else house.places[0]
            return self._reach(state, here) or f"move {state.held} to {here}"
        found = [
            (place != state.at, thing, place) for thing, place in state.where.items() if thing.startswith(f"{house.wanted} ")
        ]
        _, thing, place = min(found)
        return self._reach(state, place) or f"take {thing} from {place}"

    def attempt(self, task: Task, draw: random.Random) -> GameAttempt:
        """One attempt by a player that does what is best more or less; the labels are bare: 1 for that action."""
        noise = draw.choice((0.0, 0.1, 0.2, 0.4, 0.6))
        actions: list[str] = []
        steps: list[tuple[str, str, DecisionPiece, float]] = []
        shown = self.observe(task, ())
        while not shown.over and (best := self.best_action(task, actions)):
            action = draw.choice(shown.actions) if draw.random() < noise else best
            before = shown
            actions.append(action)
            shown = self.observe(task, actions)
            decision = DecisionPiece(action, {option: float(option == best) for option in before.actions})
            steps.append((before.text, self.abstract(before), decision, shown.reward or 0.0))
        return GameAttempt(task, tuple(steps))

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """What is to be seen after these actions."""
        house = _house(task.seed)
        state, said, won = self._play(task, actions)
        room = f"You are in the middle of a room. Looking quickly around you, you see a {', a '.join(house.places)}."
        carried = f"You are carrying: {f'a {state.held}' if state.held else 'nothing'}."
        if not actions:
            text = room
        elif house.verbose:
            text = f"{said}\n{f'You are at {state.at}. ' if state.at else ''}{carried}\n{room}"
        else:
            text = said
        over = won or len(actions) >= self.horizon
        return Observation(text, () if over else self._actions(house, state), float(won), over)

    def abstract(self, observation: Observation) -> str:
        """The first line of what is seen."""
        return observation.text.partition("\n")[0].lower().rstrip(".")

    def _play(self, task: Task, actions: Sequence[str]) -> tuple[_State, str, bool]:
        house = _house(task.seed)
        state = _State(dict(house.where), set(house.closed))
        said = ""
        for action in actions:
            if action not in self._actions(house, state):
                raise UserError(f"errands: {action!r} is not admissible in {task.id}")
            said = self._step(state, action)
        return state, said, bool(actions) and self._is_won(house, state)

    def _step(self, state: _State, action: str) -> str:
        verb, _, rest = action.partition(" ")
        if verb == "go":
            state.at = rest.removeprefix("to ")
            return f"You arrive at {state.at}. {self._look(state)}"
        if verb == "take":
            state.held, _, place = rest.partition(" from ")
            del state.where[state.held]
            return f"You pick up the {state.held} from the {place}."
        if verb == "move":
            thing, _, place = rest.partition(" to ")
            state.where[thing], state.held = place, ""
            return f"You move the {thing} to the {place}."
        if verb == "open":
            state.closed.discard(rest)
            return f"You open the {rest}. {self._look(state)}"
        if verb == "close":
            state.closed.add(rest)
            return f"You close the {rest}."
        if verb in _TREATED:
            state.treated |= {state.held}
            return f"You {verb} the {state.held} using the {state.at}."
        if verb == "inventory":
            return f"You are carrying: {f'a {state.held}' if state.held else 'nothing'}."
        return f"You are facing the {state.at}. {self._look(state)}" if state.at else "Nothing happens."

    def _look(self, state: _State) -> str:
        if state.at in state.closed:
            return f"The {state.at} is closed."
        seen = [f"a {thing}" for thing, place in state.where.items() if place == state.at]
        return f"On the {state.at}, you see {', and '.join(seen) if seen else 'nothing'}."

    def _actions(self, house: _House, state: _State) -> tuple[str, ...]:
        here = state.at if state.at and state.at not in state.closed else ""
        return tuple(
            sorted(
                {
                    "inventory",
                    "look",
                    *(f"go to {place}" for place in house.places if place != state.at),
                    *([f"{'open' if state.at in state.closed else 'close'} {state.at}"] if state.at in house.closed else ()),
                    *(
                        f"take {thing} from {here}"
                        for thing, place in state.where.items()
                        if here and place == here and not state.held
                    ),
                    *([f"move {state.held} to {here}"] if here and state.held else ()),
                    *([f"{house.treatment} {state.held} with {here}"] if here and state.held and here == house.tool else ()),
                }
            )
        )

    def _reach(self, state: _State, place: str) -> str:
        return self._at(state, place) or (f"open {place}" if place in state.closed else "")

    def _at(self, state: _State, place: str) -> str:
        return "" if state.at == place else f"go to {place}"

    def _is_won(self, house: _House, state: _State) -> bool:
        return any(
            thing.startswith(f"{house.wanted} ")
            and place.rpartition(" ")[0] == house.target
            and (not house.treatment or thing in state.treated)
            for thing, place in state.where.items()
        )
