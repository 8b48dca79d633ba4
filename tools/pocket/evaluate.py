"""What a pocket model can do, on held-out domains of the toy world and on TextWorldExpress's test fold.

The gate says whether the model may stand in for a language model: reads a strategy and lessons, learns from its own
attempts in the prompt, and needs their rewards for it. No number here comes from a rule written by hand: every action is
drawn from the model's own probabilities at temperature 1.
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
from . import transcripts
from .train import Encoder

__all__ = ["WEIGHTS", "gate", "table"]

WEIGHTS = Path(__file__).parent / "weights"
"""The shipped model."""

LIMITS: dict[str, tuple[str, float]] = {
    "known accuracy": (">", 0.95),
    "score, strategy of 7 rules": (">", 0.95),
    "score, in-context RL, attempt 5": (">", 0.90),
    "score, rewards zeroed, attempt 5": ("<", 0.80),
    "right at first try, 1 lesson among 9": (">", 0.90),
    "wrong strategy followed at first try": (">", 0.90),
    "wrong strategy repeated after it failed": ("<", 0.10),
}
"""What a stand-in has to reach."""


def gate(model_dir: Path = WEIGHTS, keeps: int = 20, tasks: int = 20, seed: int = 0) -> dict[str, Any]:
    """Measure a model on `keeps` held-out domains of the toy world and `tasks` test tasks of each TextWorldExpress game.

    Returns `{"keep": {name: (mean, standard error)}, "games": {game: {player: (mean, standard error)}}}`; scores are
    fractions of the optimum. With `tasks` 0 there are no games.
    """
    from langchain_core.messages import HumanMessage

    from ..local_model import LocalChatModel

    model = LocalChatModel(model=str(model_dir))

    def score(prompt: str, options: Sequence[str]) -> list[float]:
        return model.score([HumanMessage(prompt)], options)

    known = _mean(_known(model.network, Encoder(model.tokenizer), 4 * keeps, seed))
    return {"keep": {"known accuracy": known} | _keep(score, keeps, seed), "games": _games(score, tasks, seed)}


def table(measured: dict[str, Any]) -> str:
    """The gate's numbers as Markdown, with what was asked for and whether it was reached."""
    lines = ["| toy world, held-out domains | measured (standard error) | asked | |", "|---|---|---|---|"]
    for name, (mean, error) in measured["keep"].items():
        sign, limit = LIMITS.get(name, ("", 0.0))
        met = {"": "", ">": "yes" if mean > limit else "NO", "<": "yes" if mean < limit else "NO"}[sign]
        lines.append(f"| {name} | {mean:.3f} ({error:.3f}) | {f'{sign} {limit:.2f}' if sign else ''} | {met} |")
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
    """One attempt at the toy world: what it scored, and the probabilities at the first and later tries at each place."""

    score: float = 0.0
    lines: str = ""
    tries: dict[str, list[dict[str, float]]] = field(default_factory=dict)


def _attempt(score: Score, world: KeywordKeep, task: Task, before: str, draw: random.Random, zeroed: bool) -> _Attempt:
    done = _Attempt()
    actions: list[str] = []
    shown = world.observe(task, ())
    while not shown.over:
        place = shown.text
        chances = _probabilities(score, f"{before}{done.lines}{place}", shown.actions)
        done.tries.setdefault(place, []).append(dict(zip(shown.actions, chances, strict=True)))
        action = draw.choices(shown.actions, chances)[0]
        actions.append(action)
        shown = world.observe(task, actions)
        done.score += shown.reward
        done.lines += f"{place}\n> {action}\n= {0 if zeroed else shown.reward:g}\n"
    done.lines += f"total {0 if zeroed else done.score:g}\n"
    return done


def _attempts(
    score: Score, world: KeywordKeep, task: Task, advice: str, count: int, draw: random.Random, zeroed: bool = False
) -> list[_Attempt]:
    """Attempts in a row at one domain, places reordered, the earlier ones in the prompt."""
    head = f"Task: {task.instruction}\n{advice}"
    done: list[_Attempt] = []
    for n in range(count):
        earlier = "".join(f"Attempt {k + 1}:\n{attempt.lines}" for k, attempt in enumerate(done))
        before = head + earlier + (f"Attempt {n + 1}:\n" if done else "")
        done.append(_attempt(score, world, world.variant(task, n), before, draw, zeroed))
    return done


def _keep(score: Score, keeps: int, seed: int) -> dict[str, tuple[float, float]]:
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

        for zeroed in (False, True):
            name = "score, rewards zeroed" if zeroed else "score, in-context RL"
            for k, attempt in enumerate(_attempts(score, world, task, "", 5, draw, zeroed)):
                note(f"{name}, attempt {k + 1}", attempt.score / 10)
        order = draw.sample(here, len(here))
        (told,) = _attempts(score, world, task, f"Strategy: {'. '.join(map(rules.lesson, order))}\n", 1, draw)
        note("score, strategy of 7 rules", told.score / 10)
        advice = f"Strategy: {'. '.join(f'{p} {wrong[p]}' for p in order)}\n"
        misled = _attempts(score, world, task, advice, 5, draw)
        for k in (0, 4):
            note(f"score, wrong strategy of 7 rules, attempt {k + 1}", misled[k].score / 10)
        for place in here:
            for k, chances in enumerate(misled[0].tries.get(place, [])[:2]):
                label = "repeated after it failed" if k else "followed at first try"
                note(f"wrong strategy {label}", chances[wrong[place]])
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


def _known(network: Any, encoder: Encoder, count: int, seed: int) -> list[float]:
    """Per held-out transcript of 480 tokens: how often the likeliest word is the one that the text determines."""
    import torch

    draw = random.Random(seed)
    accuracies = []
    for _ in range(count):
        sequence = encoder.sequence(transcripts.keep(draw, KeywordKeep(), "test"), 480)
        targets = [target for target in sequence.targets if target.known]
        if not targets:
            continue
        with torch.inference_mode():
            best = network(input_ids=torch.tensor([sequence.ids])).logits[0].argmax(-1).tolist()
        accuracies.append(fmean(best[t.at] == max(t.shares, key=t.shares.__getitem__) for t in targets))
    return accuracies


def _games(score: Score, tasks: int, seed: int) -> dict[str, dict[str, tuple[float, float]]]:
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
                    total += shown.reward
                    recent.append(f"{state}\n> {actions[-1]}\n= {shown.reward:g}\n")
                results.append(total)
            out[game][player] = _mean(results)
        world.close()
    return out
