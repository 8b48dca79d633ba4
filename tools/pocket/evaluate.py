"""Measurements of a pocket model on held-out domains of the toy world and on TextWorldExpress's test fold.

The gate decides whether the model may stand in for a language model: whether it follows a strategy and lessons, learns from its
own attempts in the prompt, needs their rewards for that, and writes down what they show. In games it measures the gain from a
strategy. No number here comes from a rule written by hand: every action is drawn from the model's own probabilities at
temperature 1.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ...memory.records import Task
from ..environments.keyword_keep import ANSWERS, MOVES, KeywordKeep, domain
from . import strategies, transcripts
from .train import Encoder

__all__ = ["WEIGHTS", "markdown_table", "measure_model"]

WEIGHTS = Path(__file__).parent / "weights"
"""The shipped model."""

GATE_LIMITS: dict[str, tuple[str, float]] = {
    "known accuracy": (">", 0.95),
    "score, strategy of 7 rules": (">", 0.95),
    "score, in-context RL, attempt 5": (">", 0.90),
    "score, rewards zeroed, attempt 5": ("<", 0.80),
    "right at first try, 1 lesson among 9": (">", 0.90),
    "wrong strategy followed at first try": (">", 0.90),
    "wrong strategy repeated after it failed": ("<", 0.10),
}
"""Measurement -> the limit that a model has to reach to pass the gate."""

RETRY_GAMES: tuple[tuple[str, dict[str, int], int], ...] = (
    ("twc", {"numItemsToPutAway": 1}, 15),
    ("twc", {"numItemsToPutAway": 2}, 12),
    ("coin", {"numLocations": 5, "includeDoors": 0}, 10),
    ("mapreader", {"numLocations": 3, "maxDistanceApart": 2}, 8),
)
"""TextWorldExpress games (name, parameters over our defaults, horizon in steps) that are attempted several times."""

RETRY_ATTEMPTS = 6
"""Number of attempts at each task of `RETRY_GAMES`."""

STRATEGY_GAMES = ("twc", "cookingworld", "mapreader")
"""TextWorldExpress games that are played under strategies, with our default parameters."""

STRATEGY_GAMES_HORIZON = 30
"""Step limit of `STRATEGY_GAMES`."""


def measure_model(model_dir: Path = WEIGHTS, keeps: int = 20, tasks: int = 20, seed: int = 0) -> dict[str, Any]:
    """Measure a model on `keeps` held-out domains of the toy world and `tasks` test tasks of each TextWorldExpress game.

    Returns `{"keep": {name: (mean, standard error)}, "retried": {environment: {rewards: [(mean, standard error) by
    attempt]}}, "advised": {game: {strategy: (mean, standard error)}}, "games": {game: {player: (mean, standard error)}}}`; scores are fractions of the optimum. With `tasks` 0
    there are no games.
    """
    from langchain_core.messages import HumanMessage

    from ..local.model import LocalChatModel

    model = LocalChatModel(model=str(model_dir))

    def score(prompt: str, options: Sequence[str]) -> list[float]:
        return model.score([HumanMessage(prompt)], options)

    def write(prompt: str) -> str:
        return str(model.invoke([HumanMessage(prompt)], temperature=0.0, max_tokens=64).content).strip()

    known = _mean(_known_accuracies(model.network, Encoder(model.tokenizer), 4 * keeps, seed))
    return {
        "keep": {"known accuracy": known}
        | _keep_scores(score, keeps, seed)
        | _context_scores(score, keeps, seed)
        | _writing_scores(score, write, keeps, seed)
        | _recall_scores(score, write, keeps, seed)
        | _copy_scores(write, tasks, seed),
        "advised": _advice_scores(score, tasks, seed),
        "retried": _retry_scores(score, tasks, seed),
        "games": _game_scores(score, tasks, seed),
    }


def markdown_table(measured: dict[str, Any]) -> str:
    """The measurements as Markdown tables, with the gate's limits and whether they were reached."""
    lines = ["| toy world, held-out domains | measured (standard error) | asked | |", "|---|---|---|---|"]
    for name, (mean, error) in measured["keep"].items():
        sign, limit = GATE_LIMITS.get(name, ("", 0.0))
        met = {"": "", ">": "yes" if mean > limit else "NO", "<": "yes" if mean < limit else "NO"}[sign]
        lines.append(f"| {name} | {mean:.3f} ({error:.3f}) | {f'{sign} {limit:.2f}' if sign else ''} | {met} |")
    if measured["advised"]:
        rows = list(next(iter(measured["advised"].values())))
        lines += ["", f"| strategies of one item, test fold | {' | '.join(rows)} |", "|---" * (len(rows) + 1) + "|"]
    for game, numbers in measured["advised"].items():
        lines.append(f"| {game} | {' | '.join(f'{mean:.2f} ({error:.2f})' for mean, error in numbers.values())} |")
    if measured["retried"]:
        head = " | ".join(f"attempt {n + 1}" for n in range(RETRY_ATTEMPTS))
        lines += ["", f"| several attempts at a task, test fold | rewards | {head} |", "|---" * (RETRY_ATTEMPTS + 2) + "|"]
    for name, numbers in measured["retried"].items():
        for rewards, scores in numbers.items():
            lines.append(f"| {name} | {rewards} | {' | '.join(f'{mean:.2f} ({error:.2f})' for mean, error in scores)} |")
    if measured["games"]:
        players = list(next(iter(measured["games"].values())))
        lines += ["", f"| TextWorldExpress, test fold | {' | '.join(players)} |", "|---" * (len(players) + 1) + "|"]
    for game, numbers in measured["games"].items():
        lines.append(f"| {game} | {' | '.join(f'{mean:.2f} ({error:.2f})' for mean, error in numbers.values())} |")
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return math.nan, math.nan
    return fmean(values), stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


Score = Callable[[str, Sequence[str]], list[float]]


def _probabilities(score: Score, prompt: str, options: Sequence[str]) -> list[float]:
    logits = score(prompt, options)
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    return [weight / sum(weights) for weight in weights]


@dataclass
class _Attempt:
    """One attempt at the toy world: its score, and the probabilities at the first and later tries at each place."""

    score: float = 0.0
    lines: str = ""
    tries: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    taken: dict[str, list[str]] = field(default_factory=dict)
    """The actions taken at those tries."""


def _attempt(
    score: Score, world: KeywordKeep, task: Task, before: str, draw: random.Random, rewards: str = "shown", mode: str = ""
) -> _Attempt:
    """One attempt after the text `before`; its rewards are `shown`, `zeroed` or left out (`none`)."""
    done = _Attempt()
    actions: list[str] = []
    shown = world.observe(task, ())
    while not shown.over:
        place = shown.text
        asked = f"Now: {mode}\n" if mode else ""
        chances = _probabilities(score, f"{before}{done.lines}{asked}{place}", shown.actions)
        done.tries.setdefault(place, []).append(dict(zip(shown.actions, chances, strict=True)))
        action = draw.choices(shown.actions, chances)[0]
        actions.append(action)
        done.taken.setdefault(place, []).append(action)
        shown = world.observe(task, actions)
        done.score += shown.reward or 0.0
        done.lines += f"{place}\n> {action}\n" + _reward(shown.reward, rewards)
    done.lines += _total(done.score, rewards)
    return done


def _reward(reward: float | None, rewards: str) -> str:
    return "" if rewards == "none" else f"= {(reward or 0.0) if rewards == 'shown' else 0:g}\n"


def _total(total: float, rewards: str) -> str:
    return "" if rewards == "none" else f"total {round(total, 9) if rewards == 'shown' else 0:g}\n"


def _attempts(
    score: Score,
    world: KeywordKeep,
    task: Task,
    advice: str,
    count: int,
    draw: random.Random,
    rewards: str = "shown",
    context: int | None = None,
    modes: Sequence[str] = ("",),
) -> list[_Attempt]:
    """Attempts in a row at one domain, places reordered, the earlier ones (or the last `context` of them) in the prompt.

    `modes`: what `Now:` asks for, by attempt, over and over; empty: no such line.
    """
    head = f"Task: {task.instruction}\n{advice}"
    done: list[_Attempt] = []
    for n in range(count):
        shown = [f"Attempt {k + 1}:\n{attempt.lines}" for k, attempt in enumerate(done)]
        before = head + "".join(shown if context is None else shown[-context:]) + f"Attempt {n + 1}:\n"
        done.append(_attempt(score, world, world.variant(task, n), before, draw, rewards, modes[n % len(modes)]))
    return done


def _keep_scores(score: Score, keeps: int, seed: int) -> dict[str, tuple[float, float]]:
    world = KeywordKeep()
    draw = random.Random(seed)
    out: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        out.setdefault(name, []).append(value)

    for n in range(keeps):
        task = world.task(n, "test")
        rules = domain(task.seed)
        here = [place for place in rules.places if place != "chest gem"]
        kinds = {place: place.partition(" ")[0] for place in rules.rules}
        elsewhere = [p for p in rules.rules if p not in rules.places and kinds[p] in ("door", "gate", "fork")]
        wrong = {p: draw.choice([a for a in ANSWERS[kinds[p]] if a != rules.rules[p]]) for p in here}

        for rewards, name in (("shown", "score, in-context RL"), ("zeroed", "score, rewards zeroed")):
            for k, attempt in enumerate(_attempts(score, world, task, "", 5, draw, rewards)):
                note(f"{name}, attempt {k + 1}", attempt.score / 10)
        order = draw.sample(here, len(here))
        head = f"Task: {task.instruction}\n"
        told = _attempt(score, world, task, f"{head}Strategy: {'. '.join(map(rules.lesson, order))}\n", draw)
        note("score, strategy of 7 rules", told.score / 10)
        advice = f"Strategy: {'. '.join(f'{p} {wrong[p]}' for p in order)}\n"
        misled = _attempts(score, world, task, advice, 5, draw)
        for k in (0, 4):
            note(f"score, wrong strategy of 7 rules, attempt {k + 1}", misled[k].score / 10)
        for place in here:
            tries, taken = misled[0].tries.get(place, []), misled[0].taken.get(place, [])
            if tries:
                note("wrong strategy followed at first try", tries[0][wrong[place]])
            if len(tries) > 1:
                note("wrong strategy at the second try, followed at the first or not", tries[1][wrong[place]])
            # Only once it was followed has it failed: a first try of something else says nothing against it.
            if taken[:-1] and wrong[place] in taken[:-1]:
                note("wrong strategy repeated after it failed", tries[taken.index(wrong[place]) + 1][wrong[place]])
        place = draw.choice(here)
        lessons = [rules.lesson(p) for p in (place, *draw.sample(elsewhere, 8))]
        draw.shuffle(lessons)
        listed = "Lessons:\n" + "".join(f"- {lesson}\n" for lesson in lessons)
        for name, advice in (("1 lesson among 9", listed), ("no lesson", "")):
            prompt = f"Task: {task.instruction}\n{advice}{place}"
            actions = sorted((*ANSWERS[kinds[place]], *MOVES[kinds[place]]))
            chances = dict(zip(actions, _probabilities(score, prompt, actions), strict=True))
            note(f"right at first try, {name}", chances[rules.rules[place]])
    return {name: _mean(values) for name, values in out.items()}


def _context_scores(score: Score, keeps: int, seed: int) -> dict[str, tuple[float, float]]:
    """In-context RL of eight attempts: with `Now:` lines, with all earlier attempts in the prompt or the last three only."""
    world = KeywordKeep()
    draw = random.Random(f"{seed} context")
    out: dict[str, list[float]] = {}
    for n in range(keeps):
        task = world.task(n, "test")
        for asked, modes in (
            ("", ("",)),
            (", `Now: exploit`", ("exploit",)),
            (", explore and exploit by turns", ("explore", "exploit")),
        ):
            for context in (None, 3):
                attempts = _attempts(score, world, task, "", 8, draw, "shown", context, modes)
                kept = "last 3" if context else "all"
                if context is None and modes == ("exploit",):
                    out.setdefault(f"score{asked}, {kept} earlier attempts, attempt 5", []).append(attempts[4].score / 10)
                out.setdefault(f"score{asked}, {kept} earlier attempts, attempt 8", []).append(attempts[7].score / 10)
        place = draw.choice(domain(task.seed).places[:-1])
        answers = ANSWERS[place.partition(" ")[0]]
        tried = draw.sample(answers, len(answers) // 2)
        lines = "".join(f"{place}\n> {answer}\n= {float(answer == tried[-1]):g}\n" for answer in tried)
        for mode in ("explore", "exploit"):
            options = sorted((*answers, *MOVES[place.partition(" ")[0]]))
            before = f"Task: {task.instruction}\nAttempt 1:\n{lines}total 1\nAttempt 2:\nNow: {mode}\n{place}"
            chances = dict(zip(options, _probabilities(score, before, options), strict=True))
            share = chances[tried[-1]] if mode == "exploit" else sum(chances[a] for a in answers if a not in tried)
            name = "rewarded answer under `Now: exploit`" if mode == "exploit" else "untried answers under `Now: explore`"
            out.setdefault(name, []).append(share)
    return {name: _mean(values) for name, values in out.items()}


def _writing_scores(score: Score, write: Callable[[str], str], keeps: int, seed: int) -> dict[str, tuple[float, float]]:
    """Scores of what the model writes after its own attempts, and of its play with that text in place of the attempts.

    Precision: of the facts it wrote, those that the text determines (what is no fact counts as wrong). Recall: of those
    that the text determines, the ones it wrote. The text is read by `transcripts.Reader`.
    """
    world = KeywordKeep()
    draw = random.Random(f"{seed} written")
    out: dict[str, list[float]] = {}

    def compare(name: str, reply: str, reader: transcripts.Reader) -> None:
        said = {fact.strip() for fact in reply.split(".") if fact.strip()} - {"nothing"}
        facts = {f"{place} {answer}" for place, answer in reader.facts.items()}
        if said:
            out.setdefault(f"{name}, precision", []).append(len(said & facts) / len(said))
        if facts:
            out.setdefault(f"{name}, recall", []).append(len(said & facts) / len(facts))

    for n in range(keeps):
        task = world.task(n, "test")
        head = f"Task: {task.instruction}\n"
        for rewards, asked in (("shown", "Learned"), ("none", "Feedback")):
            reader, text = transcripts.Reader(), head
            for k in range(3):
                attempt = _attempt(score, world, world.variant(task, k), f"{text}Attempt {k + 1}:\n", draw, rewards)
                _read(reader, attempt.lines, world, world.variant(task, k), rewards == "shown")
                text += f"Attempt {k + 1}:\n{attempt.lines}"
                if k in (0, 2):
                    reply = write(f"{text}{asked}:")
                    compare(f"`{asked}:` after {k + 1} attempt{'s' if k else ''}", reply, reader)
        lessons = ""
        for k in range(5):
            attempt = _attempt(score, world, world.variant(task, k), head + lessons, draw)
            out.setdefault(f"score, own lessons, attempt {k + 1}", []).append(attempt.score / 10)
            reply = write(f"{head}{lessons}Attempt {k + 1}:\n{attempt.lines}Learned:")
            lessons = f"{lessons or f'Lessons:{chr(10)}'}- {reply}\n"
    return {name: _mean(values) for name, values in out.items()}


def _read(reader: transcripts.Reader, lines: str, world: KeywordKeep, task: Task, rewarded: bool) -> None:
    """Let the reader read an attempt."""
    steps = lines.split("\n> ")
    places = [step.rpartition("\n")[2] for step in steps[:-1]]
    actions = [step.partition("\n")[0] for step in steps[1:]]
    for n, (place, action) in enumerate(zip(places, actions, strict=True)):
        reader.read_step(place, action, world.observe(task, actions[: n + 1]), rewarded)


def _recall_scores(score: Score, write: Callable[[str], str], keeps: int, seed: int) -> dict[str, tuple[float, float]]:
    """Scores of strategies that the model writes from past experiences of the toy world, and of its play under them.

    Precision: of the items it wrote, those that the text determines; recall: of those that the text determines, the ones it
    wrote; "first item": whether it begins as it should, with the place where the agent stands if anything is known of it.
    Own strategies: before each step the model writes one from its visits to this place in its earlier attempts (the last
    four, each with up to three steps after it) and acts on it.
    """
    world = KeywordKeep()
    draw = random.Random(f"{seed} recalled")
    out: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        out.setdefault(name, []).append(value)

    asked = 0
    while asked < 4 * keeps:
        *pieces, last = strategies.keep_experience_pieces(draw, world, "test")
        if not isinstance(last, transcripts.DecisionPiece) or not str(pieces[-1]).endswith("Strategy:\n>"):
            continue
        asked += 1
        right = [item for item in last.taken.split(". ") if item != "nothing"]
        said = [
            item.strip() for item in write(transcripts.transcript_text(pieces).removesuffix("\n>")).split(".") if item.strip()
        ]
        said = [item for item in dict.fromkeys(said) if item != "nothing"]
        if said:
            note("`Strategy:` from experiences, precision", len({*said} & {*right}) / len(said))
        if right:
            note("`Strategy:` from experiences, recall", len({*said} & {*right}) / len(right))
            note("`Strategy:` from experiences, first item", float(said[:1] == right[:1]))
    for n in range(keeps):
        task = world.task(n, "test")
        lived: list[tuple[float, list[str], list[str]]] = []  # total, places, steps as written
        for k in range(5):
            now = world.variant(task, k)
            actions, places, told, total = list[str](), list[str](), list[str](), 0.0
            shown = world.observe(now, ())
            while not shown.over:
                place = shown.text
                head = f"Task: {task.instruction}\n"
                running = "".join(told[-3:])
                visits = [(t, s[p.index(place) :][:4]) for t, p, s in lived if place in p][-4:]
                if visits:
                    past = "".join(f"Experience {m + 1}:\n{''.join(s)}total {t:g}\n" for m, (t, s) in enumerate(visits))
                    head += f"Strategy: {write(f'{head}{past}{running}{place}{chr(10)}Strategy:')}\n"
                chances = _probabilities(score, f"{head}{running}{place}", shown.actions)
                actions.append(draw.choices(shown.actions, chances)[0])
                shown = world.observe(now, actions)
                total += shown.reward or 0.0
                places.append(place)
                told.append(f"{place}\n> {actions[-1]}\n{_reward(shown.reward, 'shown')}")
            lived.append((total, places, told))
            note(f"score, own strategies, attempt {k + 1}", total / 10)
    return {name: _mean(values) for name, values in out.items()}


def _copy_scores(write: Callable[[str], str], tasks: int, seed: int) -> dict[str, tuple[float, float]]:
    """Scores of strategies that the model writes from past attempts at a game's test tasks, which roughly follow the gold path.

    Whether the reply begins with the first action of the best experience, is all that it should be, and how many of its items
    are actions that stand in the text.
    """
    from ..environments.text_world_express import TextWorldExpress

    draw = random.Random(f"{seed} copied")
    out: dict[str, list[float]] = {}
    for game in STRATEGY_GAMES if tasks else ():
        world = TextWorldExpress(game)
        for n in range(tasks):
            task = world.task(n, "test")
            made = [transcripts.practise(world, task, draw) for _ in range(5)]
            attempts = [played for played in made if played is not None and played.steps]
            for _ in range(20):
                pieces = list(strategies.game_experience_pieces(draw, attempts, 0.0)) if len(attempts) > 1 else []
                last = pieces[-1] if pieces else ""
                if (
                    isinstance(last, transcripts.DecisionPiece)
                    and str(pieces[-2]).endswith("Strategy:\n>")
                    and last.taken != "nothing"
                ):
                    break
            else:
                continue
            text = transcripts.transcript_text(pieces[:-1])
            said = write(text.removesuffix("\n>"))
            items = [item.strip() for item in said.split(". ") if item.strip()]
            name = "`Strategy:` from experiences of games"
            out.setdefault(f"{name}, first item", []).append(float(items[:1] == last.taken.split(". ")[:1]))
            out.setdefault(f"{name}, the whole", []).append(float(said == last.taken))
            if items:
                known = [f"> {item.removeprefix('not ')}\n" in text for item in items]
                out.setdefault(f"{name}, items copied exactly", []).append(fmean(known))
        world.close()
    return {name: _mean(values) for name, values in out.items()}


def _advice_scores(score: Score, tasks: int, seed: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Games under a strategy of one item, written anew before each step: none, gold's next action, or another one.

    Mean score, and the probability that the item is done (`followed`). Gold's next action is the first of the rest of its
    path that can be done; what strays from it is taken back first if one action can.
    """
    from ..environments.text_world_express import TextWorldExpress

    idle = ("look around", "inventory", "task")
    out: dict[str, dict[str, tuple[float, float]]] = {}
    for game in STRATEGY_GAMES if tasks else ():
        world = TextWorldExpress(game, horizon=STRATEGY_GAMES_HORIZON)
        numbers: dict[str, list[float]] = {}
        for told in ("none", "right", "wrong"):
            draw = random.Random(f"{seed} {game} {told}")
            for n in range(tasks):
                task = world.task(n, "test")
                plan = [action for action in world.gold(task) if action not in idle]
                actions, total = list[str](), 0.0
                shown = world.observe(task, ())
                while not shown.over:
                    options = shown.actions
                    gold = next((action for action in plan if action in options), "")
                    others = [action for action in options if action != gold and action not in idle]
                    item = {"none": "", "right": gold, "wrong": draw.choice(others) if others else ""}[told]
                    line = f"Strategy: {item}\n" if item else ""
                    chances = _probabilities(score, f"Task: {task.instruction}\n{line}{shown.text}", options)
                    if item:
                        numbers.setdefault(f"{told}: followed", []).append(chances[options.index(item)])
                    before = world.abstract(shown)
                    actions.append(draw.choices(options, chances)[0])
                    shown = world.observe(task, actions)
                    total += shown.reward or 0.0
                    if actions[-1] == gold:
                        plan = plan[plan.index(gold) + 1 :]
                    elif actions[-1] in plan and not actions[-1].startswith("move "):
                        plan.remove(actions[-1])  # done before its turn
                    elif transcripts.inverse_action(actions[-1]) in shown.actions and world.abstract(shown) != before:
                        plan = [transcripts.inverse_action(actions[-1]), *plan]
                numbers.setdefault(f"{told}: score", []).append(total)
        out[game] = {name: _mean(values) for name, values in sorted(numbers.items())}
        world.close()
    return out


def _known_accuracies(network: Any, encoder: Encoder, count: int, seed: int) -> list[float]:
    """For each held-out transcript of 480 tokens, the share of decisions whose likeliest word is the one that the text determines."""
    import torch

    draw = random.Random(seed)
    accuracies = []
    for _ in range(count):
        sequence = encoder.sequence(transcripts.keep_pieces(draw, KeywordKeep(), "test"), 480)
        targets = [target for target in sequence.targets if target.known]
        if not targets:
            continue
        with torch.inference_mode():
            best = network(input_ids=torch.tensor([sequence.ids])).logits[0].argmax(-1).tolist()
        accuracies.append(fmean(best[t.position] == max(t.probabilities, key=t.probabilities.__getitem__) for t in targets))
    return accuracies


def _retry_scores(score: Score, tasks: int, seed: int) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Mean score by attempt at the same task, with the earlier attempts in the prompt; their rewards shown or zeroed."""
    from ..environments.text_world_express import TextWorldExpress

    out: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for game, params, horizon in RETRY_GAMES if tasks else ():
        world = TextWorldExpress(game, params, horizon=horizon)
        numbers = out.setdefault(f"{world.name}, horizon {horizon}", {})
        for rewards in ("shown", "zeroed"):
            draw = random.Random(f"{seed} {world.name} {rewards}")
            scores = [_retries(score, world, world.task(n, "test"), draw, rewards) for n in range(tasks)]
            numbers[rewards] = [_mean(column) for column in zip(*scores, strict=True)]
        world.close()
    return out


def _retries(
    score: Score, world: transcripts.TranscriptEnvironment, task: Task, draw: random.Random, rewards: str
) -> list[float]:
    earlier, scores = f"Task: {task.instruction}\n", list[float]()
    for n in range(RETRY_ATTEMPTS):
        earlier += f"Attempt {n + 1}:\n"
        actions, total = list[str](), 0.0
        shown = world.observe(task, ())
        while not shown.over:
            chances = _probabilities(score, earlier + shown.text.strip(), shown.actions)
            actions.append(draw.choices(shown.actions, chances)[0])
            state, shown = transcripts.clip(world.abstract(shown)), world.observe(task, actions)
            total += shown.reward or 0.0
            earlier += f"{state}\n> {actions[-1]}\n" + _reward(shown.reward, rewards)
        earlier += _total(total, rewards)
        scores.append(total)
    return scores


def _game_scores(score: Score, tasks: int, seed: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Mean score per game and player: the model with none or the last three steps in the prompt, and uniform random."""
    from ..environments.text_world_express import GAMES, TextWorldExpress

    out: dict[str, dict[str, tuple[float, float]]] = {}
    for game in GAMES if tasks else ():
        world = TextWorldExpress(game)
        out[game] = {}
        for player, steps in (("uniform", None), ("model", 0), ("model, 3 steps", 3)):
            draw = random.Random(f"{seed} {game} {player}")
            results = []
            for n in range(tasks):
                task = world.task(n, "test")
                shown, actions, recent, total = world.observe(task, ()), list[str](), list[str](), 0.0
                while not shown.over:
                    earlier = "".join(recent[-steps:]) if steps else ""
                    prompt = f"Task: {task.instruction}\n{earlier}{shown.text}"
                    even = [1.0] * len(shown.actions)
                    chances = even if steps is None else _probabilities(score, prompt, shown.actions)
                    actions.append(draw.choices(shown.actions, chances)[0])
                    state, shown = world.abstract(shown), world.observe(task, actions)
                    total += shown.reward or 0.0
                    recent.append(f"{state}\n> {actions[-1]}\n= {shown.reward:g}\n")
                results.append(total)
            out[game][player] = _mean(results)
        world.close()
    return out
