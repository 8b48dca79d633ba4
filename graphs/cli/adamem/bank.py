"""`learngraph adamem build`: a bank of trajectories to start from, of walkthroughs, of random play or of a run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

from ....memory.errors import CommandError, UserError, plural
from ....memory.records import Task, Trajectory
from ..flags import parse_flags
from .saved_runs import read_trajectories

__all__ = ["BuildOptions", "build"]


@dataclass(frozen=True)
class BuildOptions:
    """Options of `learngraph adamem build`: the trajectories of the bank."""

    out: Path
    """The output: a file with a trajectory a line, as `learngraph memory export` writes it. `run adamem --bank` reads it."""
    env: str | None = None
    """The environment, as for `learngraph run`. A run folder names its own."""
    source: str = "gold"
    """Source of the trajectories. `gold`: the environment's walkthroughs. `perturbed`: by turns a walkthrough with wrong turns
    and one that is cut short, so that some fail. `random`: random play. Or the path of a run folder: all that its agents did."""
    split: Literal["train", "dev", "test"] = "train"
    """The fold of the environment's tasks. Take another one than the fold that is tested on. A run folder names its own."""
    tasks: int = 20
    """Number of tasks, from the first one."""
    attempts_per_task: int = 2
    """Attempts at each task, if `--source` is perturbed or random."""
    wrong_turn_rate: float = 0.3
    """Probability of a wrong turn at a step, if `--source` is perturbed."""
    horizon: int | None = None
    """Steps after which an episode ends; the environment's own limit if not given."""
    success_threshold: float | None = None
    """The score from which an episode counts as a success; the environment's own if not given. Only for the count that is printed."""
    seed: int = 0
    """Seed of the random draws: wrong turns, cuts and random play."""

    def __post_init__(self) -> None:
        if self.tasks < 1 or self.attempts_per_task < 1 or not 0 <= self.wrong_turn_rate <= 1:
            raise CommandError(
                "--tasks and --attempts-per-task are at least 1 and --wrong-turn-rate is from 0 to 1, got "
                f"{self.tasks}, {self.attempts_per_task}, {self.wrong_turn_rate}"
            )


def build(args: Sequence[str]) -> int:
    """Write a bank of trajectories to a file."""
    from ....memory.storage.record_store import write_jsonl
    from ....tools.environments.catalogue import open_environment

    about = "Make a bank of trajectories, for learngraph run adamem --bank FILE."
    options = parse_flags(BuildOptions, args, "learngraph adamem build", about)
    if options.source not in SOURCES:
        if not Path(options.source).is_dir():
            raise CommandError(f"--source is {', '.join(SOURCES)} or a run folder; there is no folder {options.source}")
        if options.env is not None:
            raise CommandError(f"--env {options.env}: leave it out, the run folder {options.source} names its own environment")
        made, solved, split = read_trajectories(Path(options.source))
    else:
        if options.env is None:
            raise CommandError("learngraph adamem build needs --env, the environment whose tasks are played, such as toy")
        environment = open_environment(options.env, horizon=options.horizon)
        try:
            if options.source != "random" and not hasattr(environment, "gold"):
                raise CommandError(f"{options.env} has no walkthroughs; use --source random or a run folder")
            tasks = [environment.task(number, options.split) for number in range(options.tasks)]
            made = [trajectory for task in tasks for trajectory in SOURCES[options.source](environment, task, options)]
            solved, split = getattr(environment, "solved", None), options.split
        finally:
            environment.close()
    if not made:
        raise UserError(f"{options.source} has no finished episode; nothing was written")
    write_jsonl(made, options.out)
    steps = sum(len(t.transitions) for t in made)
    task_count = len({(t.domain, t.task.id) for t in made})
    threshold = solved if options.success_threshold is None else options.success_threshold
    if threshold is None:
        outcome = "how many succeeded is unknown: give a score with --success-threshold"
    else:
        won = sum(t.score >= threshold for t in made)
        outcome = f"{won} succeeded and {len(made) - won} failed (a score of {threshold:g} is a success)"
    print(
        f"{len(made)} trajectories of {plural(task_count, 'task')}, {plural(steps, 'step')}; {outcome}\nwritten to {options.out}"
    )
    if split == "test":
        print(f"note: these are tasks of the split test; a run that starts from {options.out} cannot be tested on them")
    return 0


def _play_gold(environment: Any, task: Task, options: BuildOptions) -> Iterator[Trajectory]:
    from ....nodes.act.episode import replay_actions

    yield replay_actions(environment, task, environment.gold(task), run=_run_name("gold", environment, task))


def _play_perturbed_walkthroughs(environment: Any, task: Task, options: BuildOptions) -> Iterator[Trajectory]:
    from ....nodes.act.episode import replay_actions

    path, name = environment.gold(task), _run_name("perturbed", environment, task)
    for n in range(options.attempts_per_task):
        draw = Random(f"{options.seed} {name}/{n}")
        if n % 2 == 0:
            actions = _play_wrong_turns(environment, task, path, draw, options.wrong_turn_rate)
        else:
            actions = list(path[: draw.randint(1, max(1, len(path) - 1))])
        yield replay_actions(environment, task, actions, run=name, episode=n)


def _play_random(environment: Any, task: Task, options: BuildOptions) -> Iterator[Trajectory]:
    from ....nodes.act.episode import replay_actions

    name = _run_name("random", environment, task)
    for n in range(options.attempts_per_task):
        actions = _play_wrong_turns(environment, task, (), Random(f"{options.seed} {name}/{n}"), 1.0)
        yield replay_actions(environment, task, actions, run=name, episode=n)


SOURCES: Mapping[str, Callable[[Any, Task, BuildOptions], Iterator[Trajectory]]] = {
    "gold": _play_gold,
    "perturbed": _play_perturbed_walkthroughs,
    "random": _play_random,
}


def _run_name(source: str, environment: Any, task: Task) -> str:
    return f"{source}:{environment.name}:{task.id}"


def _play_wrong_turns(environment: Any, task: Task, path: Sequence[str], draw: Random, wrong: float) -> list[str]:
    """The actions of an episode that follows a walkthrough and sometimes errs.

    At each step, with probability `wrong`, any other listed action; else the action of the walkthrough in this state. In a state
    that the walkthrough never reaches, its next action if that is admissible, and any action otherwise.

    Args:
        environment: the environment; it lists its actions.
        task: the task.
        path: the actions of the walkthrough.
        draw: the source of random draws.
        wrong: the probability of a wrong turn.
    """
    shown = environment.observe(task, ())
    known: dict[str, int] = {}
    for t in range(len(path)):
        known[environment.abstract(environment.observe(task, path[:t]))] = t
    taken: list[str] = []
    due = 0
    while not shown.over:
        if not shown.actions:
            raise UserError(f"{environment.name} lists no actions to go wrong with; use --source gold or a run folder")
        due = known.get(environment.abstract(shown), due)
        right = path[due] if due < len(path) and path[due] in shown.actions else None
        others = [action for action in shown.actions if action != right]
        if right is None or (others and draw.random() < wrong):
            taken.append(draw.choice(others))
        else:
            taken.append(right)
            due += 1
        shown = environment.observe(task, taken)
    return taken
