"""`learngraph claas study`: CLaaS on a stream of adversarial scenarios, against arms that do not learn or learn otherwise.

The evaluation of the paper (arXiv:2606.05559), on scenarios of our own (tools/environments/hierarchy.py): 100 of them in 5 splits
of 20, each played once, up to 3 turns against an attacker that adapts. A verifier judges every turn: r in {0, 1}, and a text where
a rule broke. After every scenario the learner takes a gradient step from its replay buffer, with the settings and the gate of
`learngraph serve`. Before the first split and after each one it is copied. Every copy plays all splits again, against other users,
with the same draws for all copies and arms: P[k][j] (graphs/experiments/continual.py).

    none              the model as it is
    icl               its newest exchanges with their rewards stand in the prompt; no weights change
    ppo, reinforce    learn from r alone
    mixed             words by sdpo, numbers by reinforce, as the service does by default
    sdpo              learns towards a teacher that reads which rule broke
    …+text, …-text    the same with the verifier's text, or for sdpo with no more than right and wrong: loss or text?
    age=A,C           REINFORCE++ with A_max = A and correction C (also by `--ages`, `--corrections`): the use of replay, and its
                      harm. As in the paper, only age ends an exchange's use, and there is no gate; rate and rank are smaller than
                      those of the service. A short memory seldom has B_min exchanges, and so takes fewer steps, as in the paper
    fresh             the same with A_max = 1 and B_min = 2: as many steps as the others, without replay
    service:ARM       the same arm as users meet it: chats and feedback go through the service of `learngraph serve`, with its watch
                      over rewards, and nothing waits for the learner (graphs/experiments/claas_served.py)

A trial is one order of the stream and one seed, played by one process; finished trials are not played again.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...memory.claas.settings import LoRA, Objective, ReplaySettings, StalenessCorrection, TeacherSettings
from ...memory.errors import CommandError, UserError
from ...nodes.learn.gate import GateSettings, ReleaseSettings
from ..claas import CLaaS
from ..cli.flags import parse_flags
from .claas_curves import draw_curves
from .claas_trial import SERVICE, TrialJob, play_trial
from .continual import Trial, draw_heat_maps, matrix_table, table
from .pool import environment_defaults, run_workers
from .sweep import write_json

__all__ = ["ARMS", "ClaasStudyOptions", "claas", "play_trial"]

WITH_HINTS = TeacherSettings(hint_weight=1.0)
ARMS: dict[str, CLaaS | None] = {
    "none": None,
    "icl": None,
    "icl+text": None,
    "reinforce": CLaaS.reinforce(),
    "reinforce+text": CLaaS(loss=Objective(kind="reinforce", teacher=WITH_HINTS)),
    "ppo": CLaaS.ppo(),
    "ppo+text": CLaaS(loss=Objective(kind="ppo", teacher=WITH_HINTS)),
    "mixed": CLaaS(),
    "sdpo": CLaaS.sdpo(),
    "sdpo-text": CLaaS(loss=Objective(kind="sdpo", teacher=TeacherSettings(reads_text=False))),
}
"""Name -> settings of the learner; None: the arm does not learn."""
CORRECTIONS = ("none", "truncated", "decoupled", "rejection")


@dataclass(frozen=True)
class ClaasStudyOptions:
    """Arms, trials and settings of the study."""

    arms: tuple[str, ...] = tuple(ARMS)
    """The arms; `fresh`, `age=A,C` and `service:ARM` are played if they are named here."""
    ages: tuple[int, ...] = ()
    """A_max of the arms `age=A,C`, in gradient steps; default: no such arms."""
    corrections: tuple[str, ...] = CORRECTIONS
    """C of these arms."""
    shuffles: str = "3"
    """Number of orders of the stream, or their numbers: `3` is 0, 1, 2; `7,8` are these two."""
    seeds: str = "3"
    """Number of seeds, or a list of them: `5` means `0,1,2,3,4`; `7,` means seed 7 alone. A seed draws the scenarios, too."""
    model: str = "guard"
    """The model: `guard` (comes with the package, knows these scenarios), or `local:PATH`."""
    scenarios_per_split: int = 20
    """Scenarios of each split that are played, up to 20."""
    steps_per_scenario: int = 1
    """Gradient steps after every scenario. More than 1 are taken in the arms `fresh` and `age=A,C` only: the others wait for feedback on
    the newest version. Paper: about 140 for 100 scenarios."""
    seconds_per_scenario: float = 1.0
    """Least time from one scenario to the next in arms `service:ARM`, in which the learner works on. Paper: 30 to 60 s, a step 5 to 10."""
    out: Path = Path("runs/claas-study")
    """The output: a folder for trials, tables and pictures. The same command continues the study in it."""
    workers: int = os.cpu_count() or 1
    """Processes that work at the same time. Each takes one thread."""
    json: bool = False
    """Print JSON, one trial a line, and nothing else."""


def claas(args: Sequence[str]) -> int:
    """learn from feedback: `claas study` measures it on a stream of adversarial scenarios (`serve` is the service)"""
    if not args or args[0] != "study":
        raise CommandError(
            "learngraph claas study …: CLaaS on a stream of scenarios, against other arms; the service is `learngraph serve`"
        )
    study: ClaasStudyOptions = parse_flags(ClaasStudyOptions, args[1:], "learngraph claas study", str(__doc__))
    jobs = _jobs(study)
    trials = _play_all(jobs, study)
    if study.json:
        for trial in trials:
            sys.stdout.write(json.dumps(asdict(trial)) + "\n")
        return 0
    sys.stdout.write(report(trials, study))
    return 0


def _jobs(study: ClaasStudyOptions) -> list[TrialJob]:
    """The jobs of all arms, orders and seeds.

    Raises:
        CommandError: there is no such arm.
    """
    aged = [f"age={age},{correction}" for correction in study.corrections for age in study.ages]
    arms = {arm: _arm_settings(arm) for arm in (*study.arms, *aged)}
    if not 1 <= study.scenarios_per_split <= 20 or study.steps_per_scenario < 0 or study.workers < 1:
        raise CommandError(
            "learngraph claas study: --scenarios-per-split is from 1 to 20, --steps-per-scenario 0 or more and --workers 1 or "
            "more; "
            f"got {study.scenarios_per_split}, {study.steps_per_scenario} and {study.workers}"
        )
    jobs = []
    for shuffle in _parse_numbers(study.shuffles, "shuffles"):
        for seed in _parse_numbers(study.seeds, "seeds"):
            for arm, settings in arms.items():
                jobs.append(
                    TrialJob(
                        arm,
                        shuffle,
                        seed,
                        study.model,
                        study.scenarios_per_split,
                        study.steps_per_scenario,
                        settings and _trial_settings(arm, settings, seed),
                        study.seconds_per_scenario if arm.startswith(SERVICE) else 0.0,
                    )
                )
    return jobs


def _arm_settings(name: str) -> CLaaS | None:
    """Settings of an arm; None: it does not learn.

    Raises:
        CommandError: there is no such arm.
    """
    if name in ARMS:
        return ARMS[name]
    if name.startswith(SERVICE) and (served := ARMS.get(name.removeprefix(SERVICE))) is not None:
        return served
    if name == "fresh":
        return _aged(ReplaySettings(max_age=1, min_exchanges=2), StalenessCorrection())
    age, _, correction = name.removeprefix("age=").partition(",")
    if not name.startswith("age=") or not age.isdigit() or correction not in CORRECTIONS:
        more = (
            "fresh",
            "service:ARM of those that learn",
            f"age=A,C with an age A and a correction C of {', '.join(CORRECTIONS)}",
        )
        known = ", ".join((*ARMS, *more))
        raise CommandError(f"learngraph claas study: there is no arm {name}; there are {known}")
    kind: Any = correction
    return _aged(ReplaySettings(max_age=int(age)), StalenessCorrection(kind=kind))


def _aged(replay: ReplaySettings, correction: StalenessCorrection) -> CLaaS:
    """REINFORCE++ for the study of replay: only age ends an exchange's use, nothing is held out, and no gate hides a collapse. The rate
    was chosen on an order and seed (101) that are not counted."""
    return CLaaS(
        replay=replace(replay, max_samplings=1_000_000, held_out_share=0.0),
        loss=Objective(kind="reinforce", learning_rate=5e-4, warmup_steps=10, correction=correction),
        lora=LoRA(rank=8),
        gate=GateSettings(enabled=False),
        rollout=ReleaseSettings(watch_rewards=0, max_lead=None, keep_versions=2),
    )


def _trial_settings(arm: str, settings: CLaaS, seed: int) -> CLaaS:
    """Settings of an arm with a trial's seed. Through the service all versions are kept, for their exams."""
    rollout = replace(settings.rollout, keep_versions=100_000) if arm.startswith(SERVICE) else settings.rollout
    return replace(settings, rollout=rollout, seed=seed)


def _parse_numbers(text: str, name: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()] if "," in text else list(range(int(text)))
    except ValueError:
        raise CommandError(f"learngraph claas study: --{name} is a number, or numbers joined by commas; got {text!r}") from None


def _play_all(jobs: Sequence[TrialJob], study: ClaasStudyOptions) -> list[Trial]:
    """All trials, in the order of the jobs. Those in the folder are not played again.

    Raises:
        UserError: one of them was played with other settings.
    """
    folder = study.out / "trials"
    folder.mkdir(parents=True, exist_ok=True)
    waiting = [job for job in jobs if _load_trial(folder, job) is None]
    finished: set[str] = set()

    def tick() -> None:
        for job in waiting:
            if job.name not in finished and (folder / f"{job.name}.json").exists():
                finished.add(job.name)
                if not study.json:
                    sys.stderr.write(f"{len(finished)} of {len(waiting)}: {job.name}\n")

    if waiting:
        with environment_defaults(OMP_NUM_THREADS="1"):  # threads of several processes would slow each other down
            run_workers([(job, folder) for job in waiting], _play_and_save, study.workers, tick)
        tick()
    found = [_load_trial(folder, job) for job in jobs]
    return [trial for trial in found if trial is not None]


def _play_and_save(work: tuple[TrialJob, Path]) -> None:
    job, folder = work
    write_json(folder / f"{job.name}.json", {"job": asdict(job), "trial": asdict(play_trial(job))})


def _load_trial(folder: Path, job: TrialJob) -> Trial | None:
    path = folder / f"{job.name}.json"
    if not path.exists():
        return None
    kept = json.loads(path.read_text(encoding="utf-8"))
    if kept["job"] != json.loads(json.dumps(asdict(job))):
        raise UserError(f"{path} was played with other settings; give another --out, or remove it")
    return Trial(**kept["trial"])


def report(trials: Sequence[Trial], study: ClaasStudyOptions) -> str:
    """Write the tables and pictures; returns the tables with the pictures' paths."""
    arms: dict[str, list[Trial]] = {}
    for trial in trials:
        arms.setdefault(trial.arm, []).append(trial)
    paths = [study.out / "matrices.png", study.out / "matrices.svg"]
    draw_heat_maps(arms, paths)
    curves = [study.out / "curves.png", study.out / "curves.svg"]
    draw_curves(arms, curves)
    parts = [
        f"{study.model}, {len(trials) // len(arms)} trials an arm (orders of the stream x seeds); mean [95 % over trials, Student's t]\n",
        table(arms),
        *(
            f"\n{arm}: success of each checkpoint on each split, in the order of the stream\n\n{matrix_table(found)}"
            for arm, found in arms.items()
        ),
        f"\nmatrices  {paths[0]}  {paths[1].name}\ncurves    {curves[0]}  {curves[1].name}\ntrials    {study.out / 'trials'}\n",
    ]
    text = "\n".join(parts)
    (study.out / "report.md").write_text(text, encoding="utf-8")
    return text
