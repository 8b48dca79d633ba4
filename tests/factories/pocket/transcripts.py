"""Training texts of the pocket model: attempts at the toy world, with the probabilities that an expert gives to each action.

A transcript is a sequence of pieces: text that is only read, a `DecisionPiece` where something was written, a `RewardPiece`.
Joined, they are the prompts of `learngraph`; the card of the weights shows the layout. `recall_pieces` is the bare exercise of
finding a key's value again, without which nothing else is learned (one million parameters do not discover it on their own).
`keep_pieces` are attempts at Keyword Keep, labelled by the exact posterior given the text so far. All texts are from training
splits.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from learngraph.memory.records import Observation, Task
from learngraph.tools.environments.keyword_keep import ANSWERS, KEYS, MOVES, KeywordKeep, domain

from .expert import PosteriorExpert

EXPLORATION_SHARE = 0.05
"""Share of the uniform distribution in every label, so that no admissible action has probability 0 (methods that learn
from their own samples need a chance to see it)."""

_KEYED = ("door", "gate", "fork")

_SHARES = {k / n for n in range(2, 13) for k in (1, 2)}

REWARD_UNITS: tuple[float, ...] = tuple(sorted({n / 100 for n in range(1, 100)} | {float(n) for n in range(3, 10)} | _SHARES))
"""Rewards that are single tokens besides 0, 1 and 2: hundredths, digits, and the shares that games pay for their parts."""

NOW_MODES = ("exploit", "explore", "explore or exploit")
"""Words after `Now:`, which ask for a way to play."""

SINGLE_TOKEN_WORDS: tuple[str, ...] = (
    *("\n>", "= 0", "= 1", "= 2", "Task", "Strategy", "Lessons", "Attempt", "total"),
    *("Learned", "Feedback", "Now", "…", " explore", " exploit", " or", " nothing", " total"),
    *dict.fromkeys(f"= {unit:g}" for unit in (*REWARD_UNITS, *sorted(-share for share in _SHARES))),
    *KEYS,
    *(f" {word}" for table in (KEYS, ANSWERS, MOVES) for kind in table for word in (kind, *table[kind])),
)
"""Texts that have to be a single token: the layout's marks and every word of the toy world, as it stands in the layout."""


@dataclass(frozen=True, slots=True)
class DecisionPiece:
    """An action taken after `\\n>`, and how probable the expert finds each action there."""

    taken: str
    probabilities: Mapping[str, float]
    """The label, over the admissible actions; sums to 1."""
    known: bool = False
    """True if the text so far determines the answer (a keyed place of the toy world whose answer it reveals)."""
    weight: float = 1.0
    """Weight of the decision's loss, relative to other decisions."""


@dataclass(frozen=True, slots=True)
class RewardPiece:
    """The reward that followed an action."""

    reward: float


TranscriptPiece = str | DecisionPiece | RewardPiece


def transcript_text(pieces: Sequence[TranscriptPiece]) -> str:
    """The text of a transcript."""
    return "".join(piece_text(piece) for piece in pieces)


def piece_text(piece: TranscriptPiece) -> str:
    """The text of one piece. Pieces end where tokens end, so that they can be tokenised one by one."""
    match piece:
        case DecisionPiece(taken):
            return f" {taken}\n"
        case RewardPiece(reward):
            return f"= {reward:g}\n"
        case _:
            return piece


IDLE_ACTIONS = ("look around", "inventory", "task")
"""Actions that only repeat what the observation has shown."""


def soften(probabilities: Mapping[str, float], admissible: Sequence[str]) -> dict[str, float]:
    """The expert's probabilities mixed with the uniform distribution over the admissible actions.

    Of the latter, actions that only show what the observation has said already get a fiftieth of the others' share: an
    agent that sees no history would take them for ever.
    """
    weights = {action: 0.02 if action in IDLE_ACTIONS else 1.0 for action in admissible}
    whole = sum(weights.values())
    return {
        a: EXPLORATION_SHARE * weight / whole + (1 - EXPLORATION_SHARE) * probabilities.get(a, 0.0)
        for a, weight in weights.items()
    }


def recall_pieces(draw: random.Random, pairs: int, queries: int = 14) -> list[TranscriptPiece]:
    """Pieces that state answers of some places of one kind, in one of the layout's three forms, then queries about them.

    In the form of attempts, answers that failed stand among those that were paid, and for some places there are only those.
    All places are of one kind, and no answer is right twice while there are others: so picking some word of the right kind
    from the text gains little. Where it gains much (two pairs, say), a model learns that first and stays there.
    """
    kind = draw.choices(_KEYED, (5, 5, 1))[0]
    options = ANSWERS[kind]
    values = [answer for _ in range(len(KEYS[kind])) for answer in draw.sample(options, len(options))]
    answers = {f"{kind} {key}": value for key, value in zip(draw.sample(KEYS[kind], pairs), values, strict=False)}
    expert = PosteriorExpert()
    form = draw.choices(("strategy", "lessons", "attempt"), (1, 1, 2))[0]
    told = [f"{place} {answer}" for place, answer in answers.items()]
    pieces: list[TranscriptPiece] = []
    if form == "attempt":
        tried = []
        for place, answer in answers.items():
            wrong = [option for option in options if option != answer]
            known = draw.random() < 0.75
            tried += [(place, option) for option in draw.sample(wrong, draw.randint(0 if known else 1, len(wrong)) // 2)]
            tried += [(place, answer)] if known else []
        draw.shuffle(tried)
        for place, action in tried:
            reward = float(action == answers[place])
            expert.see(place, action, reward)
            pieces.append(f"{place}\n> {action}\n= {reward:g}\n")
    else:
        expert.advice.update(answers)
        listed = "".join(f"- {lesson}\n" for lesson in told)
        pieces.append(f"Strategy: {'. '.join(told)}\n" if form == "strategy" else f"Lessons:\n{listed}")
    for _ in range(queries):
        place = draw.choice(list(answers))
        probabilities = expert.probabilities(place)
        action = answers[place] if draw.random() < 0.6 else draw.choice(options)
        reward = float(action == answers[place])
        expert.see(place, action, reward)
        pieces += [f"{place}\n>", DecisionPiece(action, probabilities, known=len(probabilities) == 1), RewardPiece(reward)]
    return pieces


@dataclass
class Reader:
    """Reads a text about Keyword Keep while it is written, and keeps the facts that it determines."""

    expert: PosteriorExpert = field(default_factory=PosteriorExpert)
    tried: dict[str, dict[str, None]] = field(default_factory=dict)
    """Answers tried in the text, by place, in the order of the text."""
    facts: dict[str, str] = field(default_factory=dict)
    """Answers that are certain or told and not contradicted, by place, in the order in which the text gives them."""

    def read_advice(self, place: str, answer: str) -> str:
        """Read advice about a place; returns it as written."""
        self.expert.advice[place] = answer
        self._settle(place)
        return f"{place} {answer}"

    def read_warning(self, place: str, answer: str) -> str:
        """Read advice against an answer; returns it as written."""
        self.expert.failed_answers.setdefault(place, set()).add(answer)
        self._settle(place)
        return f"{place} not {answer}"

    def read_step(self, place: str, action: str, after: Observation, rewarded: bool) -> None:
        """Read one step. Without rewards only passing a door shows whether the answer was right."""
        if action not in ANSWERS[place.partition(" ")[0]]:
            return
        self.tried.setdefault(place, {})[action] = None
        if rewarded:
            assert after.reward is not None
            self.expert.see(place, action, after.reward)
        elif place.startswith("door") and not after.over:
            self.expert.see(place, action, float(after.text != place))
        self._settle(place)

    def policy(self, place: str, mode: str = "") -> dict[str, float]:
        """The expert's policy; asked to explore, uniform over the answers not yet tried there, while there are any."""
        if mode == "explore":
            untried = [a for a in ANSWERS[place.partition(" ")[0]] if a not in self.tried.get(place, ())]
            if untried:
                return {answer: 1 / len(untried) for answer in untried}
        return self.expert.probabilities(place)

    def facts_text(self) -> str:
        """The facts as a model is to write them."""
        return ". ".join(f"{place} {answer}" for place, answer in self.facts.items()) or "nothing"

    def strategy_text(self, place: str) -> str:
        """The facts as a model is to write them where it stands at a place: this place's first, or else what failed here."""
        facts = [f"{there} {answer}" for there, answer in self.facts.items()]
        here = [fact for fact in facts if fact.startswith(f"{place} ")]
        if not here:
            failed = self.expert.failed_answers.get(place, set())
            here = [f"{place} not {answer}" for answer in self.tried.get(place, ()) if answer in failed]
        return ". ".join([*here, *(fact for fact in facts if fact not in here)]) or "nothing"

    def _settle(self, place: str) -> None:
        if place.partition(" ")[0] not in _KEYED:
            return
        certain = list(self.expert.probabilities(place))
        if certain != [self.facts.get(place)]:
            self.facts.pop(place, None)
            if len(certain) == 1:
                self.facts[place] = certain[0]


def keep_pieces(draw: random.Random, world: KeywordKeep, split: str = "train", longest: int = 960) -> Iterator[TranscriptPiece]:
    """Attempts at one domain of the toy world in about `longest` tokens, or without end: take as much as fits.

    With advice or without (true or, sometimes, wrong), by a player that follows the expert most of the time, some of the
    time or never; with rewards, with zeros in their place, or without. A part of them is a single attempt, or the rest of
    one, as agents show it that have no earlier attempts. Others end with an attempt under `Now:`, or with what was learned.
    """
    yield from _KeepTranscript(draw, world, split, longest).pieces()


class _KeepTranscript:
    """The form of a transcript of `keep_pieces`, drawn once, and its player. The order of the draws decides the texts of a seed."""

    def __init__(self, draw: random.Random, world: KeywordKeep, split: str, longest: int) -> None:
        self.draw, self.world, self.longest = draw, world, longest
        self.reader = Reader()
        self.task = world.task(draw.randrange(10**9), split)
        self.ends = draw.choices(("", "now", "learned", "feedback"), (45, 30, 15, 10))[0]  # empty: without end
        self.rewards = "none" if self.ends == "feedback" else draw.choices(("shown", "zeroed", "none"), (84, 9, 7))[0]
        self.unit = draw.choice(REWARD_UNITS) if draw.random() < 0.12 else 1.0  # factor of the rewards
        self.careless = draw.choice((0.0, 0.0, 0.1, 0.15, 0.3, 0.5, 1.0))  # probability of a uniformly drawn action
        self.single = not self.ends and draw.random() < 0.33  # one attempt only
        self.unseen = draw.randrange(1, 8) if self.single and draw.random() < 0.3 else 0  # its steps that are left out
        self.reordered = draw.random() < 0.75  # each attempt has the places in another order
        self.numbered = draw.random() < 0.35  # attempts begin at any number, and numbers are skipped
        self.digests = draw.random() < 0.2  # half of the earlier attempts are digests in one line
        self.counted = draw.random() < 0.12  # headings may count repeats, as `(x3)`
        self.feedback = self.rewards == "none" and (self.ends == "feedback" or draw.random() < 0.6)  # remarks between attempts
        self.number = draw.randint(1, 60) if self.numbered else 1  # of the next attempt

    def pieces(self) -> Iterator[TranscriptPiece]:
        """The whole transcript."""
        opening = [f"Task: {self.task.instruction}\n", *_advice(self.draw, self.task, self.reader, self.longest)]
        yield from opening
        if self.single:
            yield from self.attempt(0, skipped=self.unseen)
            return
        used, count = sum(map(token_count, opening)), 0
        while not self.ends or (used + 130 < self.longest and (count == 0 or self.draw.random() < 0.85)):
            if self.ends == "now" and count == 0 and self.draw.random() < 0.15:
                break
            lines: list[str] = []
            for piece in self.earlier_attempt(count):
                lines.append(piece if isinstance(piece, str) else piece_text(piece))
                yield piece
            used += sum(map(token_count, lines))
            self.number += self.draw.randint(1, 5) if self.numbered and self.draw.random() < 0.5 else 1
            count += 1
        yield from self.ending(count)

    def earlier_attempt(self, count: int) -> Iterator[TranscriptPiece]:
        """An attempt with its heading, or a digest of it."""
        draw = self.draw
        if self.digests and draw.random() < 0.5:
            unit = self.unit if self.rewards == "shown" else 0.0
            yield _digest(draw, self.world, self.world.variant(self.task, count), self.number, unit)
            return
        often = f" (x{draw.randint(2, 9)})" if self.counted and draw.random() < 0.4 else ""
        if self.feedback and count and draw.random() < 0.9:
            yield _remark(draw, self.reader)
        yield f"Attempt {self.number}{often}:\n"
        yield from self.attempt(count)

    def ending(self, count: int) -> Iterator[TranscriptPiece]:
        """An attempt under `Now:`, or what was learned."""
        if self.ends != "now":
            facts = self.reader.facts_text()
            yield f"{'Learned' if self.ends == 'learned' else 'Feedback'}:\n>"
            yield DecisionPiece(facts, {facts: 1.0})
            return
        if self.feedback and count:
            yield _remark(self.draw, self.reader)
        mode = self.draw.choice(NOW_MODES)
        yield f"Attempt {self.number}:\n"
        # Half of the time off the layout, with the line at every step: ten times as many decisions for the same tokens.
        yield from self.attempt(count, mode, last=self.draw.choice((None, self.draw.randint(0, 8))))

    def attempt(self, n: int, asked: str = "", skipped: int = 0, last: int | None = None) -> Iterator[TranscriptPiece]:
        """One attempt, all under `Now: asked`; or only its decision after `last` steps, which ends it."""
        now = self.world.variant(self.task, n) if self.reordered else self.task
        actions: list[str] = []
        shown = self.world.observe(now, ())
        total = 0.0
        while not shown.over:
            place = shown.text
            mode = asked if last in (None, len(actions)) else ""
            probabilities = self.reader.policy(place, mode)
            if self.draw.random() < self.careless:
                action = self.draw.choice(shown.actions)
            else:
                action = self.draw.choices(list(probabilities), list(probabilities.values()))[0]
            label = soften(probabilities, shown.actions)
            known = len(probabilities) == 1 and mode != "explore" and place.partition(" ")[0] in _KEYED
            misled = self.reader.expert.advice.get(place) in self.reader.expert.failed_answers.get(place, ())
            actions.append(action)
            shown = self.world.observe(now, actions)
            if len(actions) <= skipped:
                continue
            assert shown.reward is not None
            total += shown.reward * self.unit
            self.reader.read_step(place, action, shown, self.rewards == "shown")
            if mode:
                yield f"Now: {mode}\n"
            yield f"{place}\n>"
            if mode and last is not None:
                yield DecisionPiece(action, label, known, 4.0)
                return
            yield DecisionPiece(action, label, known, 2.0 if mode or misled else 1.0)
            if self.rewards != "none":
                yield RewardPiece(shown.reward * self.unit if self.rewards == "shown" else 0.0)
        if not self.single and self.rewards != "none":
            yield f"total {round(total, 9) if self.rewards == 'shown' else 0:g}\n"


def token_count(text: str) -> int:
    """The approximate number of tokens of a text about the toy world."""
    return len(_TOKENS.findall(text))


_TOKENS = re.compile(r"\n>|= -?[0-9](?:\.[0-9]+)?| ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]+|\s")


def _digest(draw: random.Random, world: KeywordKeep, task: Task, number: int, unit: float) -> str:
    """A random player's attempt in one line, without details of single places."""
    actions: list[str] = []
    shown, total = world.observe(task, ()), 0.0
    while not shown.over:
        answers = ANSWERS[shown.text.partition(" ")[0]]
        actions.append(draw.choice(answers if draw.random() < 0.8 else shown.actions))
        shown = world.observe(task, actions)
        total += shown.reward or 0.0
    joined = ", ".join(actions)
    return f"Attempt {number}: total {total * unit:g}: {joined if len(joined) <= 60 else joined[:60] + '…'}\n"


def _remark(draw: random.Random, reader: Reader) -> str:
    """Feedback on the attempts so far: most of what they show, now and then a mistake."""
    told = []
    for place, answer in list(reader.facts.items()):
        if draw.random() < 0.05:
            answer = draw.choice(ANSWERS[place.partition(" ")[0]])
        if draw.random() < 0.95:
            told.append(reader.read_advice(place, answer))
    return f"Feedback: {'. '.join(told) or 'nothing'}\n"


def _others(draw: random.Random, place: str, right: str) -> list[str]:
    """One or more wrong answers of a place."""
    wrong = [answer for answer in ANSWERS[place.partition(" ")[0]] if answer != right]
    return draw.sample(wrong, draw.randint(1, len(wrong)))


def _advice(draw: random.Random, task: Task, reader: Reader, longest: int) -> Iterator[str]:
    """Nothing, a strategy, lessons among lessons about places that are not here, both, or lessons of several facts each."""
    rules = domain(task.seed)
    here = [place for place in rules.places if place.partition(" ")[0] in _KEYED]
    elsewhere = [place for place in rules.rules if place.partition(" ")[0] in _KEYED and place not in here]

    def tell(place: str, wrong: float) -> str:
        answer = rules.rules[place]
        if draw.random() < wrong:
            answer = draw.choice([other for other in ANSWERS[place.partition(" ")[0]] if other != answer])
        return reader.read_advice(place, answer)

    form = draw.choices(("none", "strategy", "lessons", "both", "lines"), (38, 22, 20, 5, 15))[0]
    if form in ("strategy", "both"):
        wrong = draw.choice((0.0, 0.1, 0.5, 1.0))
        told = [tell(place, wrong) for place in draw.sample(here, draw.randint(1, len(here)))]
        if draw.random() < 0.35:  # what failed, too, or nothing else
            open_places = [place for place in here if place not in reader.expert.advice]
            failed = [
                reader.read_warning(place, answer)
                for place in draw.sample(open_places, min(len(open_places), draw.choice((1, 1, 2, 3))))
                for answer in _others(draw, place, rules.rules[place])
            ]
            told = [*told, *failed] if draw.random() < 0.5 else [*failed, *told]
        yield f"Strategy: {'. '.join(told)}{draw.choice(('', '.'))}\n"
    if form in ("lessons", "both"):
        told = [p for p in draw.sample(here, draw.randint(0, len(here))) if p not in reader.expert.advice]
        told += draw.sample(elsewhere, draw.randint(0, 8))
        draw.shuffle(told)
        yield "Lessons:\n"
        yield from (f"- {tell(place, 0.1 if place in here else 0.0)}\n" for place in told)
    if form == "lines":  # what was learned after each of several attempts: more every time
        wrong = draw.choice((0.0, 0.0, 0.1, 0.4))
        told, rest = [], draw.sample(here, len(here))
        whole = draw.random() < 0.7
        yield "Lessons:\n"
        for _ in range(draw.randint(1, 2 if longest < 300 else 5)):
            new = [rest.pop() for _ in range(min(len(rest), draw.randint(0, 5)))]
            told = [*told, *new] if whole else new
            yield f"- {'. '.join(tell(place, wrong) for place in told) or 'nothing'}\n"
