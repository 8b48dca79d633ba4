"""`learngraph explain RUN_FOLDER --step N`: why a method took an action; with `--replay`: the runs played again without a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from ...memory.errors import CommandError
from .flags import parse_flags

__all__ = ["explain"]


@dataclass(frozen=True)
class ExplainOptions:
    """Options of `learngraph explain`: the run, and the step whose action is explained, or that it is played again."""

    run_folder: Positional[Path]
    """A folder that `learngraph run` has made."""
    step: int | None = None
    """Number of the step within its episode, from 0."""
    run_seed: int | None = None
    """The seed of the run; the first if not given, with --replay all."""
    episode: int | None = None
    """Number of the episode, from 0; the last one with a step if not given."""
    method: str | None = None
    """The method, as the run called it (`jitrl`, `jitrl:paper`); if not given, the first one that is JitRL, or else the first; with
    --replay all."""
    replay: bool = False
    """Play the runs again, with the model's recorded answers, and say where each first differs: step, field, was, is. Nothing is
    written into the folder."""


def explain(args: Sequence[str]) -> int:
    """Print why an action was taken, or how far a replay is the same.

    Returns:
        The exit status. Of a replay 1 if a run differs, and 2 if one cannot be played.
    """
    options = parse_flags(
        ExplainOptions,
        args,
        "learngraph explain",
        "Why did the agent take this action? What was remembered of states like this one, what that made of each action's value and "
        "logit, and what it would have done without. Of other methods than JitRL: as far as the run's journal tells.",
    )
    from ..experiments.recorded import RecordedFolder

    RecordedFolder(options.run_folder)  # that there is no such folder is said before all else
    if options.replay == (options.step is not None):
        raise CommandError("learngraph explain takes either --step N, the step to explain, or --replay")
    if options.step is not None:
        from ..experiments.explain import explain_step

        told = explain_step(
            options.run_folder, options.step, seed=options.run_seed, episode=options.episode, method=options.method
        )
        print(told)
        return 0
    from ..experiments.replay import replay_runs

    worst = 0
    for one in replay_runs(options.run_folder, options.method, options.run_seed):
        print(one, flush=True)
        worst = max(worst, 2 if one.problem else 1 if one.divergence else 0)
    return worst
