"""Training texts about strategies: acting on a strategy that stands before the steps, and writing one from past experiences.

Acting on a strategy (items joined by `. `, best first; in the toy world each names its place):

    Task: put a mug in shelf.
    Strategy: go to drawer 2. take mug 1 from drawer 2. not open safe 1
    ...
    You arrive at drawer 2. On the drawer 2, you see a mug 1.        -> take mug 1 from drawer 2

Writing one, from pieces of past attempts:

    Task: reach the exit
    Experience 1: success
    door black
    > mist
    = 1
    gate troll
    > lamp
    = 1
    total 10
    ...
    door black
    Strategy:                                                        -> door black mist. gate troll lamp

`strategy_pieces`: the bare exercise, scenes of a few invented things, where only the strategy says what to do; it has ten times as
many decisions for the same tokens as games. `game_strategy_pieces`: games with strategies, mostly right.
`keep_experience_pieces`: experiences of the toy world; the reply is what they and the running steps determine. A part of these texts
asks for the next action instead of a strategy.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from learngraph.memory.records import Observation, Task
from learngraph.tools.environments.keyword_keep import KeywordKeep, domain

from .expert import PosteriorExpert
from .games import GameAttempt, clip, invent_word, rename
from .transcripts import IDLE_ACTIONS, DecisionPiece, Reader, RewardPiece, TranscriptPiece, soften

Step = tuple[str, str, DecisionPiece, float]
"""A step as in `GameAttempt`: observation, its abstract state, decision, reward."""


def expert_actions(decision: DecisionPiece) -> list[str]:
    """The expert's actions at a decision; none where it does not know."""
    top = max(decision.probabilities.values())
    return [action for action, p in decision.probabilities.items() if p > 0.5 * top] if top > 0.05 else []


_FORMS = (
    "take {}",
    "open {}",
    "go to {}",
    "put {} in {}",
    "move {} to {}",
    "take {} from {}",
    "cook {} in {}",
    "read {}",
    "use {}",
)
_SCENES = (
    "You see a {}.",
    "You are in the room. There is a {}.",
    "On the shelf, you see a {}.",
    "In one part of the room you see a {}.",
)


def strategy_pieces(draw: random.Random, longest: int = 400) -> Iterator[TranscriptPiece]:
    """Scenes one after the other, and strategies: what to do is the first item that can be done here and was not yet.

    An action can be done where all that it names is to be seen. Where no item can be done, everything is as good but what
    stands in the strategy with `not`.
    """
    things = list(dict.fromkeys(_thing(draw) for _ in range(draw.randint(5, 10))))
    often = draw.choice((0.1, 0.3, 0.7, 1.0))  # how often a new strategy is given
    failing = draw.choice((0.0, 0.0, 0.3, 0.6))
    full = draw.random() < 0.5  # scenes as long as those of games, which stand between the strategy and the decision
    yield f"Task: {draw.choice(('put everything in its place.', 'find what is wanted.', 'do as you are told.'))}\n"
    items: list[str] = []
    done: set[str] = set()
    used = 30
    while used < longest:
        if draw.random() < (often if any(item not in done for item in items) else 0.7):
            items, done = [], set()
            for _ in range(draw.choice((1, 1, 2, 3, 4, 5))):
                action = _deed(draw, things)
                items.append(f"not {action}" if draw.random() < failing else action)
            items = list(dict.fromkeys(items))
            yield f"Strategy: {'. '.join(items)}{draw.choice(('', '', '.'))}\n"
            used += sum(len(item) for item in items) // 3
        open_items = [item for item in items if not item.startswith("not ") and item not in done]
        seen = draw.sample(things, min(len(things), draw.choice((1, 2, 3))))
        if open_items and draw.random() < 0.85:
            wanted = draw.choice((open_items[0], draw.choice(open_items)))
            seen = list(dict.fromkeys([*seen, *(thing for thing in things if f" {thing} " in f" {wanted} ")]))
        draw.shuffle(seen)
        options = {_FORMS[n % len(_FORMS)].format(*draw.sample(seen, 2)) for n in range(6)} if len(seen) > 1 else set()
        options |= {draw.choice(_FORMS[:3]).format(thing) for thing in seen} | {"look around"}
        doable = [item for item in open_items if all(f" {thing} " not in f" {item} " or thing in seen for thing in things)]
        avoided = [item.removeprefix("not ") for item in items if item.startswith("not ")]
        options |= {*doable, *(item for item in avoided if all(f" {t} " not in f" {item} " or t in seen for t in things))}
        left = [option for option in sorted(options) if option not in avoided]
        chosen = doable[:1] or left
        label = soften({action: 1 / len(chosen) for action in chosen}, sorted(options))
        action = draw.choice(chosen) if draw.random() < 0.85 else draw.choice(sorted(options))
        text = _scene(draw, seen) if full else draw.choice(_SCENES).format(", a ".join(seen))
        yield f"{text}\n>"
        yield DecisionPiece(action, label, known=bool(doable))
        if draw.random() < 0.6:
            yield RewardPiece(draw.choice((0.0, 0.0, 1.0, 0.5)))
        done.add(action)
        used += (len(text) + len(action)) // 3 + 6


def _scene(draw: random.Random, seen: Sequence[str]) -> str:
    """A room of a game, with furniture that nothing can be done with."""
    furniture = [f"a {invent_word(draw, 2)}" for _ in range(draw.randint(2, 6))]
    told = draw.sample([*furniture, *(f"a {thing}" for thing in seen)], len(furniture) + len(seen))
    ways = (
        "In one part of the room you see {}.",
        "There is also {}, that has nothing on it.",
        "You also see {} that is closed.",
    )
    listed = " ".join(draw.choice(ways).format(thing) for thing in told)
    carried = draw.choice(("  Your inventory is currently empty.", f"  {draw.choice(told)}"))
    return f"You are in the {invent_word(draw, 2)}. {listed}\n\nInventory:\n{carried}"


def _thing(draw: random.Random) -> str:
    """An invented name, sometimes a number after it."""
    words = " ".join(invent_word(draw, 2) for _ in range(draw.choice((1, 1, 1, 2))))
    return f"{words} {draw.randint(1, 4)}" if draw.random() < 0.35 else words


def _deed(draw: random.Random, things: Sequence[str]) -> str:
    return draw.choice(_FORMS).format(*draw.sample(list(things), 2))


def game_strategy_pieces(
    draw: random.Random,
    attempts: Sequence[GameAttempt],
    rename_probability: float = 0.5,
    longest: int = 480,
    words: Sequence[str] = (),
) -> Iterator[TranscriptPiece]:
    """One attempt at a game under a strategy of one to five items, which is right in about seven of eight cases.

    The items: what gold does now and next; done already (then the history shows it); later ones that cannot be done yet; what
    gold does not do, before it or in its place; `not` and something that gold does not do. The label is gold's action, the
    one that the strategy names where several are as good. Half of the time a run of steps under the same strategy. `words` are
    what things may be called where they are renamed.
    """
    played = draw.choice(attempts)
    if draw.random() < rename_probability:
        (played,) = rename([played], draw, words)
    steps = played.steps
    known = [n for n, (_, _, decision, _) in enumerate(steps) if expert_actions(decision)]
    if not known:
        return
    at = draw.choice(known)
    items, shown = _items(draw, steps, at)
    yield f"Task: {played.task.instruction}\n"
    yield f"Strategy: {'. '.join(items)}{draw.choice(('', '', '.'))}\n"
    rewards = draw.random() < 0.85
    short = draw.random() < 0.5
    before = steps[max(0, at - max(shown, draw.choice((0, 0, 1, 2, 3, 3, at)))) : at]
    room = 1.6 * longest  # characters for earlier steps: half a text
    past = [step_text(clip(state) if short else state, d.taken, reward if rewards else None) for _, state, d, reward in before]
    while past and sum(map(len, past)) > room:
        del past[0]
    yield "".join(past)
    many = draw.random() < 0.5
    for seen, _, decision, reward in steps[at : at + 5 if many else at + 1]:
        gold = expert_actions(decision)
        if not gold:
            return
        named = [action for action in items if action in gold][:1]
        share = {action: 1 / len(named or gold) for action in named or gold}
        yield f"{seen.strip()}\n>"
        yield DecisionPiece(decision.taken, soften(share, list(decision.probabilities)), bool(named), weight=2.0)
        if rewards:
            yield RewardPiece(reward)


def _items(draw: random.Random, steps: Sequence[Step], at: int) -> tuple[list[str], int]:
    """A strategy for the decision after `at` steps, and how many of the steps before it must be seen to act on it."""
    here = steps[at][2]
    gold, options = expert_actions(here), [action for action in here.probabilities if action not in IDLE_ACTIONS]
    now = draw.choice(gold)
    future = [now]
    for _, _, decision, _ in steps[at + 1 :]:
        later = expert_actions(decision)
        if later and later[0] not in future and later[0] not in IDLE_ACTIONS:
            future.append(later[0])
    others = [action for action in options if action not in gold]
    count = draw.choice((1, 1, 1, 2, 3, 4, 5))
    shown = 0
    form = draw.choices(("next", "done", "later", "wrong", "not"), (64, 14, 7, 9, 6))[0]
    if form == "done" and at:
        shown = draw.randint(1, min(at, 3))
        done = [d.taken for _, _, d, _ in steps[at - shown : at] if d.taken in expert_actions(d) and d.taken not in future]
        items = [*dict.fromkeys(done), *future[:count]][:5]
    elif form == "later":
        items = [action for action in future[1:] if action not in options][:count] or future[:count]
    elif form == "wrong" and others:
        bad = draw.choice(others)
        items = [bad, *(future[1:count] if draw.random() < 0.5 else future[: count - 1])]
    elif form == "not" and others:
        items = []
    else:
        items = future[:count]
    if others and (not items or draw.random() < 0.3):
        # As failures are: mostly of the same kind as what would have been right.
        alike = [action for action in others if action.partition(" ")[0] == now.partition(" ")[0]]
        pool = alike if alike and draw.random() < 0.7 else others
        failed = draw.sample(pool, min(len(pool), draw.choice((1, 1, 2, 3))))
        if draw.random() < 0.04:
            failed[0] = now
        avoided = [f"not {action}" for action in failed if action not in items]
        items = [*avoided, *items] if draw.random() < 0.4 else [*items, *avoided]
    return list(dict.fromkeys(items or [now]))[:6], shown


def step_text(state: str, action: str, reward: float | None) -> str:
    """The text of an earlier step in a prompt."""
    return f"{state}\n> {action}\n" + (f"= {reward:g}\n" if reward is not None else "")


def _heading(number: int, success: bool, judged: bool) -> str:
    return f"Experience {number}: {'success' if success else 'failure'}\n" if judged else f"Experience {number}:\n"


def keep_experience_pieces(
    draw: random.Random, world: KeywordKeep, split: str = "train", longest: int = 480
) -> Iterator[TranscriptPiece]:
    """Up to eight pieces of past attempts at a keep, a few steps of the running one, and `Strategy:` or an action.

    Most pieces begin at the place where the agent stands now, as those do that a search by likeness finds. The strategy: the
    answer of this place if the text determines it, else what failed here; then what it determines of other places.
    """
    task = world.task(draw.randrange(10**9), split)
    reader = Reader()
    past = [_visit(draw, world, world.variant(task, n)) for n in range(draw.randint(1, 8))]
    running = _visit(draw, world, world.variant(task, 9))
    at = min(draw.choice((0, 0, 1, 2, 3, 4, 6)), len(running) - 1)
    while at and running[at].place.startswith(("chest", "exit")):
        at -= 1
    place = running[at].place
    unit = draw.choice((0.5, 2.0, 0.1, 3.0)) if draw.random() < 0.08 else 1.0
    judged, totals = draw.random() < 0.6, draw.random() < 0.9
    more = draw.choice((0, 0, 1, 2, 3, 5, 8))

    yield f"Task: {task.instruction}\n"
    number, used = 1, 40  # tokens, about
    for steps in past:
        there = [n for n, visit in enumerate(steps) if visit.place == place]
        if there and draw.random() < 0.85:
            start = draw.choice(there)
        elif draw.random() < 0.5:
            continue
        else:
            start = draw.randrange(len(steps))
        piece = steps[start : start + 1 + more]
        used += 16 + 6 * len(piece)
        if used > longest - 140:
            break
        total = sum(visit.reward for visit in steps)
        yield _heading(number, total > 9.99, judged)
        for visit in piece:
            reader.read_step(visit.place, visit.action, visit.after, True)
            yield step_text(visit.place, visit.action, visit.reward * unit)
        if totals:
            yield f"total {total * unit:g}\n"
        number += 1
    for visit in running[max(0, at - draw.choice((0, 1, 2, 3, 3))) : at]:
        yield f"{visit.place}\n>"
        yield _decision(reader, visit)
        yield RewardPiece(visit.reward * unit)
        reader.read_step(visit.place, visit.action, visit.after, True)
    if draw.random() < 0.3:
        yield f"{place}\n>"
        yield replace(_decision(reader, running[at]), weight=4.0)
        return
    said = reader.strategy_text(place)
    yield f"{place}\nStrategy:\n>"
    yield DecisionPiece(said, {said: 1.0}, weight=2.0)


@dataclass(frozen=True, slots=True)
class _Visit:
    """One step at a place of the toy world."""

    place: str
    action: str
    options: tuple[str, ...]
    after: Observation
    reward: float


def _visit(draw: random.Random, world: KeywordKeep, task: Task) -> list[_Visit]:
    """An attempt by a player that knows some of the rules, and sometimes does anything. It never goes back: a piece of an
    attempt that begins at a place that was paid before would make its right answer look wrong."""
    rules, known = domain(task.seed).rules, draw.choice((0.0, 0.0, 0.3, 0.6, 1.0))
    expert = PosteriorExpert(right_answers={place: answer for place, answer in rules.items() if draw.random() < known})
    careless = draw.choice((0.0, 0.1, 0.3, 0.6))
    visits: list[_Visit] = []
    actions: list[str] = []
    shown = world.observe(task, ())
    while not shown.over:
        chances = expert.probabilities(shown.text)
        action = draw.choices(list(chances), list(chances.values()))[0]
        if draw.random() < careless:
            action = draw.choice([option for option in shown.actions if option != "back"])
        actions.append(action)
        before, shown = shown, world.observe(task, actions)
        reward = shown.reward or 0.0
        expert.see(before.text, action, reward)
        visits.append(_Visit(before.text, action, before.actions, shown, reward))
    return visits


def _decision(reader: Reader, visit: _Visit) -> DecisionPiece:
    probabilities = reader.policy(visit.place)
    known = len(probabilities) == 1 and visit.place.startswith(("door", "gate", "fork"))
    return DecisionPiece(visit.action, soften(probabilities, visit.options), known)
