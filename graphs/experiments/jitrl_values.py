"""The study of JitRL's values: the search for settings, and the comparison on seeds that nobody tuned on.

    python -m learngraph.graphs.experiments.jitrl_values search --out FILE     the table that the defaults were chosen from
    python -m learngraph.graphs.experiments.jitrl_values report --out FILE     all arms in all variants of the worlds

The search plays settings on the fold `train`, seeds 0 to 19 of the toy and 0 to 7 of the other worlds; the report plays the fold
`test`. Every finished run is a line of FILE, and the same command goes on from there. Seeds are tasks: arms are compared task by
task, over the same random numbers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, cast

from tyro.conf import Positional

from ...memory.display import markdown_table, with_interval
from ...memory.errors import CommandError, UserError
from ...memory.storage.cache import Cache
from ...nodes.act.policies import LocalPolicy, PromptView, Scorer
from ...nodes.evaluate.statistics import Interval, interval, mean
from ...nodes.prompt import Prompt
from ..cli.flags import parse_flags
from .benchmark import final_count
from .pool import environment_defaults, run_workers
from .recorded_worlds import RecordedScorer, RecordedWorld
from .reward_variants import VARIANTS
from .value_arms import ARMS, StudyArm, family, play_arm

WORLDS = (
    "toy",
    "twx:coin",
    "twx:twc",
    "twx:mapreader",
    "twx:cookingworld",
    "jericho:detective",
    "jericho:library",
    "jericho:zork1",
)
GRID: Mapping[str, Sequence[float]] = {
    "repeat_penalty": (0.0, 0.25, 0.5, 1.0),
    "exploration_bonus": (0.0, 0.1, 0.25, 0.5),
    "gamma": (0.7, 0.8, 0.9, 0.95),
    "beta": (5.0, 10.0, 20.0),
    "shrinkage_visits": (0.25, 0.5, 1.0),
    "min_prior": (0.001, 0.01, 0.1),
}
"""Setting of JitRL -> the values that the search plays: the first two together, each of the others with the rest at their defaults."""
ALPHAS = (0.01, 0.1, 0.5, 1.0, 5.0)
"""Values of alpha (`unseen_bonus`) of the paper's formulas that the search plays, with beta 1 and 10."""
INITIAL_VALUES = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Values of an untried action that the search plays for the table with optimism."""
_SAME = 1e-9


@dataclass(frozen=True)
class ValueStudyOptions:
    """Options of the study."""

    mode: Positional[Literal["report", "search"]]
    """`report`: all arms in all variants. `search`: settings on the fold that they are chosen on."""
    out: Path
    """The file of finished runs, JSON lines. The command goes on from it."""
    worlds: tuple[str, ...] = WORLDS
    """The worlds. One that is not installed is left out with a sentence."""
    variants: tuple[str, ...] = ("plain",)
    """The variants of the worlds: `all`, or names such as `plain judged`."""
    arms: tuple[str, ...] = ("all",)
    """The arms: `all`, or names such as `static tabular`; `jitrl`, which the others are compared with, is always played."""
    split: Literal["train", "dev", "test"] | None = None
    """The fold of tasks; `test` for a report and `train` for a search if not given."""
    seeds: str | None = None
    """The tasks, as in `0-19` or `0,3,7`. If not given: 0-19; in a search 0-7 outside the toy."""
    episodes: int = 30
    """Episodes of a run."""
    horizon: int | None = None
    """Steps after which an episode ends; the world's own limit if not given. JitRL's paper plays 50 episodes of 60 steps of Jericho."""
    jobs: int = 1
    """Number of processes."""
    cache: Path | None = None
    """A folder that keeps observations and scores of `pocket` from one command to the next. Several may share it."""

    def __post_init__(self) -> None:
        for given, known in ((self.variants, VARIANTS), (self.arms, ARMS), (self.worlds, WORLDS)):
            if wrong := [name for name in given if name not in known and name != "all"]:
                raise CommandError(f"there is no {wrong[0]!r}; there are {', '.join(known)} (or all)")
        for name in ("episodes", "jobs"):
            if getattr(self, name) < 1:
                raise CommandError(f"--{name} is at least 1, got {getattr(self, name)}")
        read_seed_range(self.seeds or "0")

    @property
    def fold(self) -> str:
        """The fold of tasks that is played."""
        return self.split or ("test" if self.mode == "report" else "train")

    def world_seeds(self, world: str) -> list[int]:
        """The seeds that are played in a world."""
        return read_seed_range(self.seeds or ("0-19" if self.mode == "report" or world == "toy" else "0-7"))


def read_seed_range(text: str) -> list[int]:
    """The numbers of a list of numbers and ranges: `0-3,7` is 0, 1, 2, 3 and 7.

    Raises:
        CommandError: it cannot be read.
    """
    found = set[int]()
    for part in text.split(","):
        low, _, high = part.partition("-")
        if not low.strip().isdecimal() or (high and not high.strip().isdecimal()):
            raise CommandError(f"--seeds is a list of numbers and ranges like 0-19 or 0,3,7; got {text!r}")
        found |= set(range(int(low), int(high or low) + 1))
    return sorted(found)


# Playing


@dataclass(frozen=True)
class StudyRun:
    """One arm on one task of a variant of a world."""

    world: str
    split: str
    variant: str
    arm: str
    seed: int
    episodes: int
    digest: str
    """Digest of the arm's settings: a run with other settings is another run."""
    horizon: int | None = None
    """Steps after which an episode ends; None: the world's own limit."""


@dataclass(frozen=True)
class StudyBatch:
    """The runs on one task, which share its observations."""

    runs: tuple[tuple[StudyRun, StudyArm], ...]
    out: Path
    cache: Path | None


_open_worlds: dict[tuple[str, int | None], RecordedWorld] = {}
_scorers: dict[Path | None, RecordedScorer] = {}


def play_batch(batch: StudyBatch) -> None:
    """Play the runs of a task one after the other; each that is finished becomes a line of the file."""
    first = batch.runs[0][0]
    world = open_world(first.world, batch.cache, first.horizon)
    task = world.task(first.seed, first.split)
    for run, arm in batch.runs:
        scores = play_arm(arm, VARIANTS[run.variant], world, task, run.episodes, _model_policy(batch.cache))
        line = "\n" + json.dumps({**asdict(run), "scores": scores})  # a line that a crash cut off must not spoil this one
        batch.out.parent.mkdir(parents=True, exist_ok=True)
        with batch.out.open("ab", buffering=0) as file:  # one write: lines of several processes do not mix
            file.write(line.encode())
    world.save()


def open_world(name: str, cache: Path | None, horizon: int | None = None) -> RecordedWorld:
    """A recorded world, opened once in a process. A game of Jericho has the walkthrough's random numbers in every task.

    Raises:
        UserError: something has to be installed first.
    """
    from ...tools.environments.catalogue import open_environment

    if (name, horizon) not in _open_worlds:
        folder = None if cache is None else cache / "worlds"
        settings = "?seed=0" + ("" if cache is None else f",cache={cache / 'actions'}")
        live = open_environment(name + (settings if family(name) == "jericho" else ""), horizon)
        _open_worlds[name, horizon] = RecordedWorld(live, folder)
    return _open_worlds[name, horizon]


def close_worlds() -> None:
    """Save and close the worlds that this process has opened."""
    for world in _open_worlds.values():
        world.close()
    _open_worlds.clear()


def _model_policy(cache: Path | None) -> Callable[[PromptView], Any]:
    """The function from a prompt view to the policy of `pocket`."""
    from ...tools.models.models import open_model

    if cache not in _scorers:
        kept = Cache(None if cache is None else cache / "scores.sqlite")
        _scorers[cache] = RecordedScorer("pocket", lambda: cast(Scorer, open_model("pocket", threads=1)), kept)
    scorer = _scorers[cache]
    return lambda view: LocalPolicy(scorer, view, Prompt.load("act/score"))


def read_runs(path: Path) -> dict[StudyRun, list[float]]:
    """The finished runs of a file -> the score of each episode. Lines that were cut off are left out."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        scores = row.pop("scores")
        found[StudyRun(**row)] = scores
    return found


def plan_batches(options: ValueStudyOptions, arms: Mapping[str, StudyArm]) -> list[StudyBatch]:
    """The runs of the study, one batch per task. Worlds that are not installed are named and left out."""
    variants = [*VARIANTS] if "all" in options.variants else options.variants
    batches = []
    for world in options.worlds:
        try:
            open_world(world, options.cache, options.horizon).task(options.world_seeds(world)[0], options.fold)
            close_worlds()  # its games are played in the worker processes
        except UserError as missing:
            print(f"left out {world}: {missing}", file=sys.stderr)
            continue
        for seed in options.world_seeds(world):
            runs = []
            for variant, (name, arm) in product(variants, arms.items()):
                digest = arm.digest(world, VARIANTS[variant])
                run = StudyRun(world, options.fold, variant, name, seed, options.episodes, digest, options.horizon)
                runs.append((run, arm))
            batches.append(StudyBatch(tuple(runs), options.out, options.cache))
    return batches


def play_missing(batches: Sequence[StudyBatch], jobs: int) -> None:
    """Play what the file does not hold yet."""
    done = read_runs(batches[0].out) if batches else {}
    left = [replace(batch, runs=tuple(one for one in batch.runs if one[0] not in done)) for batch in batches]
    left = [batch for batch in left if batch.runs]
    if jobs == 1:
        for batch in left:
            play_batch(batch)
    elif left:
        with environment_defaults(OMP_NUM_THREADS="1"):
            run_workers(left, play_batch, jobs)


# Settings to choose from


def search_arms(settings: Any) -> dict[str, StudyArm]:
    """The arms of the search: JitRL with other settings than its defaults, the paper's formulas, and the table with optimism."""
    arms = {"jitrl": StudyArm("jitrl")}
    together, alone = [*GRID][:2], [*GRID][2:]
    changes: list[dict[str, float]] = [dict(zip(together, each, strict=True)) for each in product(*(GRID[n] for n in together))]
    changes += [{name: value} for name in alone for value in GRID[name]]
    for change in changes:
        if any(getattr(settings, name) != value for name, value in change.items()):
            arms[", ".join(f"{name}={value:g}" for name, value in change.items())] = StudyArm("jitrl", change)
    arms["former"] = ARMS["former"]
    for beta, alpha in product((1.0, 10.0), ALPHAS):
        arms[f"paper, beta={beta:g}, alpha={alpha:g}"] = StudyArm("jitrl", {"beta": beta, "unseen_bonus": alpha}, "paper")
    for value in INITIAL_VALUES:
        arms[f"optimistic table, {value:g}"] = StudyArm("tabular", {"epsilon": 0.0, "initial_value": value})
    return arms


# Tables


@dataclass(frozen=True)
class ArmComparison:
    """One arm in one variant of a world, over its tasks. Scores are in the world's units."""

    world: str
    variant: str
    arm: str
    tasks: int
    average: float
    """Mean score over all episodes."""
    average_ci: Interval | None
    """95 % interval by Student's t over the tasks."""
    final: float
    """Mean score of the last episodes."""
    final_ci: Interval | None
    lead: float
    """The first arm's mean score less this one's, task by task."""
    lead_ci: Interval | None

    @property
    def mark(self) -> str:
        """`ahead` or `behind` if the interval says that the first arm is; else empty."""
        if self.lead_ci is None or (self.lead_ci[0] <= _SAME and self.lead_ci[1] >= -_SAME):
            return ""
        return "ahead" if self.lead > 0 else "behind"


def compare_arms(runs: Mapping[StudyRun, Sequence[float]]) -> list[ArmComparison]:
    """Compare the first arm of each variant of a world with the others, on the tasks that both have played."""
    places: dict[tuple[str, str], dict[str, dict[int, Sequence[float]]]] = {}
    for run, scores in runs.items():
        places.setdefault((run.world, run.variant), {}).setdefault(run.arm, {})[run.seed] = scores
    found = []
    for (world, variant), arms in places.items():
        first = next(iter(arms.values()))
        for arm, tasks in arms.items():
            averages = [mean(scores) for scores in tasks.values()]
            finals = [mean(scores[-final_count(len(scores)) :]) for scores in tasks.values()]
            leads = [mean(first[seed]) - mean(scores) for seed, scores in tasks.items() if seed in first]
            found.append(
                ArmComparison(
                    world=world,
                    variant=variant,
                    arm=arm,
                    tasks=len(tasks),
                    average=mean(averages),
                    average_ci=interval(averages),
                    final=mean(finals),
                    final_ci=interval(finals),
                    lead=mean(leads) if leads else 0.0,
                    lead_ci=interval(leads),
                )
            )
    return found


def comparison_tables(rows: Sequence[ArmComparison]) -> Iterator[str]:
    """A heading and a Markdown table for each variant of a world."""
    for place in dict.fromkeys((row.world, row.variant) for row in rows):
        here = [row for row in rows if (row.world, row.variant) == place]
        lines = [["arm", "tasks", "mean score", "last episodes", f"{here[0].arm} - arm", f"{here[0].arm} is"]]
        for row in here:
            lead = "–" if row is here[0] else with_interval(row.lead, row.lead_ci)
            means = [with_interval(row.average, row.average_ci), with_interval(row.final, row.final_ci)]
            lines.append([row.arm, str(row.tasks), *means, lead, row.mark])
        yield f"### {place[0]}, {place[1]}\n\n{markdown_table(lines)}"


def search_table(rows: Sequence[ArmComparison]) -> str:
    """A Markdown table with a line per arm and a column per variant of a world: its mean score, less that of the first arm.

    `all` is the mean over the columns, each in units of the first arm's mean score. The best arm stands first.
    """
    places = [*dict.fromkeys((row.world, row.variant) for row in rows)]
    cells = {(row.arm, row.world, row.variant): row for row in rows}
    first = rows[0].arm
    units = {place: abs(cells[first, *place].average) or 1.0 for place in places}
    totals = {}
    for arm in dict.fromkeys(row.arm for row in rows):
        if all((arm, *place) in cells for place in places):
            totals[arm] = -mean([cells[arm, *place].lead / units[place] for place in places]) + 0.0  # without the sign of -0
    lines = [["settings", "all", *(f"{world}, {variant}" for world, variant in places)]]
    for arm in sorted(totals, key=lambda arm: -totals[arm]):
        here = [cells[arm, *place] for place in places]
        lines.append(
            [arm, f"{totals[arm]:+.3f}", *(f"{r.average:.3g} ({0.0 - r.lead:+.3f}{'*' if r.mark else ''})" for r in here)]
        )
    return markdown_table(lines)


def main(args: Sequence[str]) -> int:
    """Play what is missing, print the tables, and return the exit status."""
    from ..jitrl import JitRL

    options = parse_flags(ValueStudyOptions, args, "jitrl_values", "Settings of JitRL, and what they are worth.")
    if options.mode == "search":
        arms: Mapping[str, StudyArm] = search_arms(JitRL())
    else:
        arms = {name: arm for name, arm in ARMS.items() if name in ("jitrl", *options.arms) or "all" in options.arms}
    try:
        batches = plan_batches(options, arms)
        play_missing(batches, options.jobs)
    finally:
        close_worlds()
    done = read_runs(options.out)
    found = {run: done[run] for batch in batches for run, _ in batch.runs if run in done}
    rows = compare_arms(found)
    if options.mode == "search" and rows:
        print(f"{search_table(rows)}\n\n* the interval of the paired difference excludes zero")
    else:
        print("\n\n".join(comparison_tables(rows)))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
