"""`learngraph calibrate RUN_FOLDER [METHOD]`: compare the rewards that a method saw with the true scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from ..experiments.progress import say
from .flags import parse_flags

__all__ = ["calibrate"]


@dataclass(frozen=True)
class CalibrateOptions:
    """Options of `learngraph calibrate`: the run and the method whose rewards are compared."""

    run_folder: Positional[Path]
    """A folder that `learngraph run` has made."""
    method: Positional[str | None] = None
    """The method, as the run called it; all of them if not given."""
    json: bool = False
    """Print JSON, one object a line, and nothing else."""


def calibrate(args: Sequence[str]) -> int:
    """Print how well rewards agree with scores, for each method of a run folder. Returns the exit status."""
    from ..experiments import calibration

    options = parse_flags(
        CalibrateOptions,
        args,
        "learngraph calibrate",
        "Do attempts with a higher reward also have a higher score? Rewards come from the judge of the run, scores from the "
        "environment.",
    )
    found = calibration.read_run_folder(options.run_folder, options.method)
    calibrations, remarks = calibration.calibrate_methods(found)
    for number, one in enumerate(calibrations):
        if options.json:
            print(json.dumps(one.as_dict()))
        else:
            print(("\n" if number else "") + calibration.report(one))
    for line in remarks:
        say(line)
    return 0
