"""`learngraph win-rates RUN_FOLDER --judge MODEL`: a judge compares the answers of a run's methods, in both orders.

The answers are those that the methods chose themselves (of `best-of-n` its best by the reward it saw, of `self-refine` its last). The
judge is a model, or the world's own rule, which knows neither order nor length. Its replies are kept in the folder: the same command goes
on after an interruption, and asks nothing twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional

from ...memory.errors import CommandError, UserError
from ..experiments.folder import read_sweep_settings
from ..experiments.options import DRAW_OPTIONS, ModelOptions
from ..experiments.progress import say
from .flags import parse_flags

if TYPE_CHECKING:
    from ..experiments.win_rates import JudgedPair

__all__ = []

REPLIES = "win-rates.sqlite"
"""Name of the file with the judge's replies in a run folder."""


@dataclass(frozen=True)
class WinRateOptions(ModelOptions):
    """Options of `learngraph win-rates`: the run, the judge, and the method that is compared with the others."""

    run_folder: Positional[Path] = Path()
    """A folder that `learngraph run` has made, on tasks with one written answer such as `writing`."""
    judge: str = "rule"
    """The judge: a model (`openai:MODEL`, `local:PATH`), or `rule`, the world's own verifier."""
    first: str | None = None
    """The method that is compared with each other one; the run's own if not given."""
    prompts: Path | None = None
    """A directory with prompt files. They replace those of the same name (`judge/pairwise`)."""
    concurrency: int = 8
    """Comparisons that are asked for at the same time, of a model behind an API."""
    json: bool = False
    """Print JSON, one object a line, and nothing else."""


@dataclass(frozen=True)
class Answer:
    """A method's answer to a prompt."""

    instruction: str
    text: str
    """The answer as the judge reads it."""
    score: float | None
    """The world's own score of it, by its rule; None if it cannot be judged."""


def win_rates(args: Sequence[str]) -> int:
    """Print how often the answers of one method of a run folder are preferred to those of each other. Returns the exit status."""
    from ..experiments import folder
    from ..experiments import win_rates as study

    about = (
        "Whose answers are better? A judge compares two methods' answers to the same prompts in both orders, and the win rate is also "
        "given for answers of equal length."
    )
    options = parse_flags(WinRateOptions, args, "learngraph win-rates", about)
    if options.concurrency < 1:
        raise CommandError(f"--concurrency is at least 1, got {options.concurrency}")
    settings = read_sweep_settings(options.run_folder)
    methods = list(settings["methods"])
    first = options.first or methods[0]
    others = [name for name in methods if name != first]
    if first not in methods or not others:
        raise CommandError(
            f"{options.run_folder} has runs of {', '.join(methods)}; win rates compare one of them (--first) with at least one other"
        )
    answers = read_answers(options.run_folder, settings)
    rows, lost = [], []
    with _judge(options) as judge:
        for other in others:
            seeds = sorted(answers[first].keys() & answers[other].keys())
            pairs = _judge_pairs(judge, [(seed, answers[first][seed], answers[other][seed]) for seed in seeds], options)
            found = study.win_rate(first, other, pairs)
            rows += [found] if found else []
            lost += [] if found else [f"{first} and {other}: no prompt has a verdict; {len(seeds)} have answers of both"]
    if not rows:
        raise UserError("; ".join(lost))
    folder.write_json(options.run_folder / "win-rates.json", {"judge": options.judge, "rates": [asdict(row) for row in rows]})
    if options.json:
        for row in rows:
            print(json.dumps(asdict(row)))
    else:
        most = max(row.pairs for row in rows)
        print(f"{settings['env']}, judged by {options.judge}, {most} prompts; [95 % interval over prompts]\n")
        print(study.win_rate_table(rows))
    for line in [*lost, *_length_warnings(rows)]:
        say(line)
    return 0


def _length_warnings(rows: Sequence[Any]) -> list[str]:
    """A line for each comparison in which length and method cannot be told apart."""
    return [
        f"{row.method} and {row.over}: one is longer on nearly all prompts, so the rate at equal length is an extrapolation"
        for row in rows
        if not 0.05 <= row.longer <= 0.95
    ]


def read_answers(folder: Path, settings: Mapping[str, Any]) -> dict[str, dict[int, Answer]]:
    """Method -> seed -> the answer that its run ended with; runs that are not finished are left out."""
    from ...tools.environments.catalogue import open_environment
    from ..experiments.recorded import RecordedFolder

    world: Any = open_environment(settings["env"], horizon=settings.get("horizon"))
    if not hasattr(world, "read"):
        raise CommandError(f"{settings['env']} has no written answers to compare; `learngraph run` compares scores")
    found: dict[str, dict[int, Answer]] = {method: {} for method in settings["methods"]}
    there = RecordedFolder(folder)
    for method, seed in product(found, settings["seeds"]):
        played = there.find(method, seed)
        if not played.is_finished:
            continue
        played.refresh()
        number, task = played.result()["answer"], world.task(seed, settings.get("split", "test"))
        row, path = played.read_episodes().get(number), played.rows(number)
        if row is None or not path or path[-1]["id"] != row["head"] or "/" not in path[0]["parent"]:
            raise UserError(
                f"{played.path} has lost episode {number}, which holds the answer; remove the folder and play it again"
            )
        actions = tuple(str(one["action"]) for one in path if one["action"])
        found[method][seed] = Answer(task.instruction, "\n".join(actions).strip(), row["score"] if actions else None)
    world.close()
    return found


Judge = Callable[[int, Answer, Answer], tuple[float | None, float | None]]
"""Prompt, answer, other answer -> the two scores that `preference` reads."""


@contextmanager
def _judge(options: WinRateOptions) -> Iterator[Judge]:
    if options.judge == "rule":
        yield _by_rule
        return
    from ...memory.storage.cache import Cache
    from ...nodes.cached_model import CachedChatModel
    from ...nodes.evaluate.preference import preference_judge
    from ...tools.models.models import open_model

    model: Any = open_model(options.judge, **options.model_arguments())
    if options.model_temperature is None and options.judge.startswith("openai:"):
        model = model.bind(temperature=0)
    with closing(Cache(options.run_folder / REPLIES)) as cache:
        name = json.dumps([options.judge, *(getattr(options, one) for one in DRAW_OPTIONS)])
        ask = preference_judge(CachedChatModel(model, name, cache, stage="win-rates"), options.prompts)

        def judge(seed: int, answer: Answer, other: Answer) -> tuple[float | None, float | None]:
            def score(first: Answer, second: Answer) -> float | None:
                found: float | None = ask.invoke(
                    {"instruction": first.instruction, "first": first.text, "second": second.text, "run": "judge", "step": seed}
                )["preferred"]
                return found

            return score(answer, other), score(other, answer)

        yield judge


def _by_rule(seed: int, answer: Answer, other: Answer) -> tuple[float | None, float | None]:
    if answer.score is None or other.score is None:
        return None, None
    gap = answer.score - other.score
    return 5.0 + gap, 5.0 - gap


def _judge_pairs(judge: Judge, pairs: Sequence[tuple[int, Answer, Answer]], options: WinRateOptions) -> list[JudgedPair]:
    """The verdicts on pairs of answers. Equal answers are a tie, and an empty one has lost: nobody is asked about them."""
    from ..experiments.win_rates import JudgedPair, preference

    def compare(pair: tuple[int, Answer, Answer]) -> JudgedPair:
        seed, answer, other = pair
        if answer.text == other.text:
            scores: tuple[float | None, float | None] = (5.0, 5.0)
        elif not answer.text or not other.text:
            scores = (10.0, 1.0) if answer.text else (1.0, 10.0)
        else:
            scores = judge(seed, answer, other)
        return JudgedPair(preference(*scores), len(answer.text), len(other.text))

    # A model in this process can do one thing at a time.
    at_once = options.concurrency if options.judge.startswith("openai:") else 1
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(compare, pairs))
