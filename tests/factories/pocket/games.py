"""Training texts of the pocket model: attempts at TextWorldExpress games and at chores, alone and several at one task.

`window_pieces`: gold paths with detours. `retry_pieces`: several attempts at one task, labelled by the best one so far.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Any

from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task

from .chores import invent_word
from .transcripts import IDLE_ACTIONS, NOW_MODES, DecisionPiece, RewardPiece, TranscriptPiece, soften, token_count


@dataclass(frozen=True, slots=True)
class GameAttempt:
    """One attempt at a game along its gold path, with detours."""

    task: Task
    steps: tuple[tuple[str, str, DecisionPiece, float], ...]
    """(observation, its abstract state, decision, reward) by step."""


_BACK = {"move north": "move south", "move south": "move north", "move east": "move west", "move west": "move east"}


def play(world: Any, task: Task, draw: random.Random, detours: int = 2) -> GameAttempt | None:
    """Play the gold path without its idle looks, with up to `detours` random actions that still lead to the full score.

    A step away is walked back. At a detour the label is what gold does there, after it the way back or gold's next action:
    so the labels know the map, which the text does not tell, and the model can learn only what is usual in such games.
    Returns None where the game's gold path does not work (on some maps it takes steps that the game refuses).
    """
    try:
        plan = [(action, action) for action in world.gold(task)]  # (taken, label)
    except UserError:
        return None
    seen = _observe_plan(world, task, plan)
    best = sum(shown.reward or 0.0 for shown in seen)

    def keep_if_as_good(other: list[tuple[str, str]]) -> None:
        nonlocal plan, seen
        shown = _observe_plan(world, task, other)
        if sum(observation.reward or 0.0 for observation in shown) >= best - 1e-6:
            plan, seen = other, shown

    if best <= 0:
        return None
    for step in reversed(range(len(plan))):
        if plan[step][0] in IDLE_ACTIONS:
            keep_if_as_good(plan[:step] + plan[step + 1 :])
    for _ in range(detours):
        at = draw.randrange(len(plan))
        aside = draw.choice(seen[at].actions)
        if aside != plan[at][0]:
            back = [(_BACK[aside], _BACK[aside])] if aside in _BACK else []
            keep_if_as_good([*plan[:at], (aside, plan[at][1]), *back, *plan[at:]])
    steps = [
        (shown.text, world.abstract(shown), DecisionPiece(taken, soften({label: 1.0}, shown.actions)), after.reward or 0.0)
        for (taken, label), shown, after in zip(plan, seen, seen[1:], strict=False)
    ]
    return GameAttempt(task, tuple(steps))


def practise(world: Any, task: Task, draw: random.Random, horizon: int = 30) -> GameAttempt | None:
    """One attempt by a player that follows the gold path with errors, or up to some step; None without a gold path.

    A step off the path is walked back, a thing put in the wrong place is taken again. Each label here is 1 for gold's next action
    (in twc, where things can be taken and put away in any order, for each of gold's next actions) and 0 for the other admissible
    actions; `retry_pieces` makes the final labels.
    """
    try:
        plan = [action for action in world.gold(task) if action not in IDLE_ACTIONS]
        shown = world.observe(task, ())
    except UserError:
        return None
    if draw.random() < 0.5:
        plan = plan[: draw.randint(0, len(plan))]
    noise = draw.choice((0.0, 0.1, 0.2, 0.35, 0.5))
    actions: list[str] = []
    steps: list[tuple[str, str, DecisionPiece, float]] = []
    while not shown.over and len(actions) < horizon:
        at = next((n for n, action in enumerate(plan) if action in shown.actions), None)
        gold = "" if at is None else plan[at]
        action = (
            gold
            if gold and draw.random() >= noise
            else draw.choice([a for a in shown.actions if a not in IDLE_ACTIONS] or shown.actions)
        )
        actions.append(action)
        goals = list(plan)
        before, state = shown, world.abstract(shown)
        shown = world.observe(task, actions)
        if action == gold:
            plan = plan[(at or 0) + 1 :]
        elif plan and (back := inverse_action(action)) in shown.actions and state != world.abstract(shown):
            plan = [back, *plan]
        as_good = {gold}
        if task.id.startswith(("twc", "chores")) and gold.startswith(("take ", "put ")):
            alike = "take " if gold.startswith("take ") else "put "
            as_good |= set(takewhile(partial(re.match, alike), goals[at:]))
        decision = DecisionPiece(action, {a: float(a in as_good) for a in before.actions})
        steps.append((before.text, state, decision, shown.reward or 0.0))
    return GameAttempt(task, tuple(steps))


def inverse_action(action: str) -> str:
    """The action that undoes an action; None if no single one does."""
    put = re.fullmatch(r"put (.+) in .+", action)
    return f"take {put[1]}" if put else _BACK.get(action, "")


def _observe_plan(world: Any, task: Task, plan: Sequence[tuple[str, str]]) -> list[Observation]:
    """The observations of a plan from the start on; None if the game refuses a step of it."""
    taken = [action for action, _ in plan]
    try:
        return [world.observe(task, taken[:step]) for step in range(len(taken) + 1)]
    except UserError:
        return []


@dataclass(frozen=True, slots=True)
class Games:
    """Attempts at TextWorldExpress games."""

    paths: tuple[tuple[GameAttempt, ...], ...]
    """The attempts by map."""
    tries: tuple[tuple[tuple[GameAttempt, ...], ...], ...]
    """Attempts that `practise` made, by map and task."""


def window_pieces(draw: random.Random, attempts: Sequence[GameAttempt]) -> Iterator[TranscriptPiece]:
    """Prompts along one of these attempts, as agents make them.

    Half of the time one decision after up to three earlier steps, which prompts show by their abstract states, and now and
    then a whole earlier attempt; otherwise a run of steps from a random one on. Half of the time the things in it have
    other names: so the names are learned to be read from the text, as those of unseen games must be.
    """
    played = draw.choice(attempts)
    if draw.random() < 0.5:
        (played,) = rename([played], draw)
    yield f"Task: {played.task.instruction}\n"
    if draw.random() < 0.5:
        yield from _steps(played.steps[draw.choice((0, draw.randrange(len(played.steps)))) :])
        return
    at = draw.randrange(len(played.steps))
    recent = played.steps[max(0, at - draw.choice((0, 0, 1, 2, 3))) : at]
    if draw.random() < 0.15:
        yield "Attempt 1:\n"
    yield "".join(_step(state if draw.random() < 0.5 else clip(state), d.taken, reward) for _, state, d, reward in recent)
    yield from _steps(played.steps[at : at + 1])


_PLAIN = frozenset(
    [
        "a",
        "an",
        "and",
        "around",
        "at",
        "box",
        "coin",
        "cookbook",
        "door",
        "down",
        "east",
        "eat",
        "from",
        "in",
        "instructions",
        "book",
        "inventory",
        "knife",
        "look",
        "map",
        "math",
        "meal",
        "move",
        "north",
        "of",
        "off",
        "on",
        "open",
        "or",
        "out",
        "problem",
        "read",
        "room",
        "south",
        "take",
        "task",
        "the",
        "to",
        "up",
        "west",
        "with",
    ]
)
"""Words of actions that keep their meaning in all games."""


def rename(attempts: Sequence[GameAttempt], draw: random.Random, words: Sequence[str] = ()) -> list[GameAttempt]:
    """The same attempts with other words for most of the things that their actions name, one word for each thing.

    They are invented, or mostly drawn from `words` if there are any: a word that is a single token is learned to be copied only
    where it stands for things of all kinds.
    """
    actions = {action for played in attempts for _, _, decision, _ in played.steps for action in decision.probabilities}
    verbs = {action.partition(" ")[0] for action in actions}
    things = sorted({word for action in actions for word in re.findall(r"[A-Za-z]{3,}", action)} - verbs - _PLAIN)
    others = draw.sample(list(words), min(len(words), len(things)))
    names = {
        thing: others.pop() if others and draw.random() < 0.75 else invent_word(draw) for thing in things if draw.random() < 0.7
    }
    if not names:
        return list(attempts)
    # States are in lower case, and so are invented words.
    names |= {thing.lower(): name for thing, name in names.items()}
    pattern = re.compile(rf"\b({'|'.join(names)})\b")

    def put(text: str) -> str:
        return pattern.sub(lambda found: names[found[1]], text)

    return [
        GameAttempt(
            replace(played.task, instruction=put(played.task.instruction)),
            tuple(
                (
                    put(seen),
                    put(state),
                    replace(d, taken=put(d.taken), probabilities={put(a): p for a, p in d.probabilities.items()}),
                    reward,
                )
                for seen, state, d, reward in played.steps
            ),
        )
        for played in attempts
    ]


def _steps(steps: Sequence[tuple[str, str, DecisionPiece, float]]) -> Iterator[TranscriptPiece]:
    for observation, _, decision, reward in steps:
        yield f"{observation.strip()}\n>"
        yield decision
        yield RewardPiece(reward)


def _step(state: str, action: str, reward: float) -> str:
    return f"{state}\n> {action}\n= {reward:g}\n"


def clip(state: str, longest: int = 40) -> str:
    """A state as prompts show it of earlier steps: the first line, cut."""
    return state.partition("\n")[0][:longest]


def retry_pieces(draw: random.Random, attempts: Sequence[GameAttempt], longest: int = 1000) -> Iterator[TranscriptPiece]:
    """Several attempts at one task, and one decision of the attempt that runs, as in-context RL shows them.

    The loss is at that decision and, with less weight and with the clipped state for an observation, at those of the earlier
    attempts from the second on. The label: what the best attempt so far did, up to its highest score, else whatever was
    rewarded and can be done, else a prior (gold's action, with other actions that have not failed there). It is what the
    text tells where rewards are shown; where they are zeroed or left out, it is the prior.
    """
    order = draw.sample(list(attempts), len(attempts))
    if draw.random() < 0.5:
        order = rename(order, draw)
    horizon = draw.randint(8, 30)
    rewards = draw.choices(("shown", "zeroed", "none"), (84, 9, 7))[0]
    mode = draw.choice(NOW_MODES) if draw.random() < 0.45 else ""
    number = draw.randint(1, 30) if draw.random() < 0.3 else 1
    # The running attempt: mostly one that got somewhere, since an agent that reads its attempts will.
    order.sort(key=lambda played: sum(reward for *_, reward in played.steps) < draw.random())
    running, *earlier = order
    draw.shuffle(earlier)
    at = draw.randrange(min(len(running.steps), horizon)) if running.steps else 0
    head = f"Task: {running.task.instruction}\n"
    room = longest - 1.2 * token_count(head) - 18 * at - (1.2 * token_count(running.steps[at][0]) if running.steps else 0) - 30
    yield head
    memory = _Memory(rewards == "shown")
    for played in earlier[: draw.choice((0, 1, 2, 3, 6, 6, 6))]:
        steps = played.steps[:horizon]
        room -= sum(1.3 * token_count(clip(state) + d.taken) + 6 for _, state, d, _ in steps) + 8
        if room < 0:
            break
        known = memory.any
        yield f"Attempt {number}:\n"
        number += draw.randint(1, 3) if draw.random() < 0.1 else 1
        yield from memory.attempt(steps, rewards, weight=0.5 if known else 0.0)
        if rewards != "none":
            yield f"total {round(sum(reward for *_, reward in steps), 9) if rewards == 'shown' else 0:g}\n"
    if not running.steps:
        return
    if memory.any or draw.random() < 0.5:
        yield f"Attempt {number}:\n"
    if draw.random() < 0.4:  # off the layout: every step in full, for more decisions in a text
        at = max(0, at - draw.randint(0, 5))
        yield from memory.attempt(running.steps[:at], rewards, weight=0.5 if memory.any else 0.0, end=False)
        yield from memory.attempt(running.steps[at:horizon], rewards, weight=3.0, end=False, mode=mode, full=True)
        return
    yield from memory.attempt(running.steps[:at], rewards, weight=0.5 if memory.any else 0.0, end=False)
    seen, state, decision, _ = running.steps[at]
    yield f"{f'Now: {mode}' if mode else ''}\n{seen.strip()}\n>".lstrip("\n")
    yield DecisionPiece(decision.taken, memory.label(state, decision, mode), weight=4.0)


@dataclass
class _Memory:
    """Knowledge of one task of a game that the attempts of a text give."""

    rewarded: bool
    """True if the text shows rewards."""
    any: bool = False
    best: list[tuple[str, str, float]] = field(default_factory=list)
    """(state, action, reward) of the best attempt so far, up to where its score was highest."""
    paid: set[str] = field(default_factory=set)
    """Actions that were rewarded."""
    tried: dict[str, set[str]] = field(default_factory=dict)
    """Actions that were taken and not rewarded, by state."""
    now: list[tuple[str, str, float]] = field(default_factory=list)
    """The attempt that is running."""

    def attempt(
        self,
        steps: Sequence[tuple[str, str, DecisionPiece, float]],
        rewards: str,
        weight: float,
        end: bool = True,
        mode: str = "",
        full: bool = False,
    ) -> Iterator[TranscriptPiece]:
        """The steps as a prompt shows them, or with full observations; then they are remembered, if the attempt ended."""
        for seen, state, decision, reward in steps:
            yield f"{f'Now: {mode}' if mode else ''}\n{seen.strip() if full else clip(state)}\n>".lstrip("\n")
            if weight:
                yield DecisionPiece(decision.taken, self.label(state, decision, mode), weight=weight)
            else:
                yield f" {decision.taken}\n"
            if rewards == "shown":
                yield f"= {reward:g}\n"
            elif rewards == "zeroed":
                yield "= 0\n"
            self.now.append((state, decision.taken, reward))
        if not end:
            return
        self.any = True
        if self.rewarded:
            paths = [self.best, *(self.now[: n + 1] for n in range(len(self.now)))]
            # The same score with fewer steps is better, too.
            self.best = max(paths, key=lambda path: sum(r for *_, r in path) - 1e-3 * len(path))
            self.paid |= {action for _, action, reward in self.now if reward > 0}
        for state, action, reward in self.now:
            if reward <= 0 or not self.rewarded:
                self.tried.setdefault(state, set()).add(action)
        self.now = []

    def label(self, state: str, decision: DecisionPiece, mode: str = "") -> dict[str, float]:
        """Probabilities of the admissible actions at a state of the running attempt."""
        options = list(decision.probabilities)
        gold = [action for action in options if decision.probabilities[action] > 0]
        done = {action for _, action, _ in self.now}
        tried = self.tried.get(state, set())
        if mode == "explore":
            new = [a for a in options if a not in tried and a not in self.paid and a not in done and a not in IDLE_ACTIONS]
            if new:
                gold = [action for action in gold if action in new]
                return soften(_mix(gold, new, 0.4), options)
        prior = _mix(
            gold,
            [a for a in options if a not in IDLE_ACTIONS and not (self.rewarded and a in tried)] or options,
            0.75 if self.any else 0.9,
        )
        after = [action for there, action, _ in self.best if there == state]
        follow = (
            after[-1:]
            or [
                action
                for _, action, reward in self.best
                if reward >= 0 and action in options and action not in done and not action.startswith(("move ", "close "))
            ][:1]
        )
        follow = follow or [action for action in options if action in self.paid and action not in done]
        follow = [action for action in follow if action in options]
        if not follow:
            return soften(prior, options)
        share = {action: 1 / len(follow) for action in follow}
        return soften({a: 0.92 * share.get(a, 0.0) + 0.08 * prior.get(a, 0.0) for a in options}, options)


def _mix(chosen: Sequence[str], others: Sequence[str], share: float) -> dict[str, float]:
    """`share` of the probability on the chosen actions, if there are any; the rest uniform on the others."""
    share = share if chosen else 0.0
    out = {action: share / len(chosen) for action in chosen}
    for action in others:
        out[action] = out.get(action, 0.0) + (1 - share) / len(others)
    return out
