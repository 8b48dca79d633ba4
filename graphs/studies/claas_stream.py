"""`learngraph claas study`: CLaaS on a stream of adversarial scenarios, against arms that do not learn or learn otherwise.

The evaluation of the paper (arXiv:2606.05559), on scenarios of our own (tools/environments/hierarchy.py): 100 of them in 5 splits
of 20, each played once, up to 3 turns against an attacker that adapts. A verifier judges every turn: r in {0, 1}, and a text where
a rule broke. After every scenario the learner takes gradient steps from its replay buffer. Before the first split and after each one
it is copied. Every copy plays all splits again, against other users, with the same draws for all copies and arms: P[k][j]
(graphs/studies/continual.py).

    none              the model as it is
    icl               its newest exchanges with their rewards stand in the prompt; no weights change
    ppo, reinforce    learn from r alone
    sdpo              learns towards a teacher that reads which rule broke
    …+text, …-text    the same with the verifier's text, or for sdpo with no more than right and wrong: loss or text?
    age=A,C           REINFORCE++ with A_max = A and correction C (also by `--ages`, `--corrections`): the use of replay, and its
                      harm. A short memory seldom has B_min exchanges, and so takes fewer steps, as in the paper
    fresh             REINFORCE++ with A_max = 1 and B_min = 2: as many steps as the others, without replay

A trial is one order of the stream and one seed, played by one process; finished trials are not played again.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ...memory.claas.replay import ReplaySettings
from ...memory.claas.settings import LoRA, Objective, StalenessCorrection, TeacherSettings
from ...memory.errors import UserError
from ...nodes.learn.gate import GateSettings, ReleaseSettings
from ..claas import CLaaS
from ..wiring.flags import CommandError, parse_flags
from .claas_learner import StreamLearner, open_learner
from .claas_old_settings import current_settings
from .continual import Trial, draw_heat_maps, matrix_table, table
from .sweep import write_json
from .workers import environment_defaults, run_workers

if TYPE_CHECKING:
    from ...tools.environments.hierarchy import Scenario
    from ...tools.pocket.guard import ScenarioTranscript

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
    "sdpo": CLaaS.sdpo(),
    "sdpo-text": CLaaS(loss=Objective(teacher=TeacherSettings(reads_text=False))),
}
"""Name -> settings of the learner; None: the arm does not learn."""
FRESH = replace(CLaaS.reinforce(), replay=ReplaySettings(max_age=1, min_exchanges=2))
CORRECTIONS = ("none", "truncated", "decoupled", "rejection")
PROBE_STRIDE = 5
"""One of so many chats without rules is played, to save time."""
PROMPT_EXCHANGES = 4
"""Exchanges in the prompt of `icl`."""
EXAM_SALT = "exam"
"""Checkpoints meet other users than the learner met: their aims and questions are drawn anew."""


@dataclass(frozen=True)
class ClaasStudyOptions:
    """Arms, trials and settings of the study."""

    arms: tuple[str, ...] = tuple(ARMS)
    """The arms; `fresh` and `age=A,C` are played if they are named here."""
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
    """Gradient steps after every scenario. Paper: about 140 for 100 scenarios."""
    batch_size: int = 8
    """M, exchanges behind a step."""
    learning_rate: float = 5e-4
    """Learning rate of `reinforce` and `ppo`; both learning rates were chosen on an order and seed (101) that are not counted."""
    sdpo_learning_rate: float = 1e-3
    """Learning rate of `sdpo`."""
    rank: int = 8
    """r of LoRA."""
    max_age: int = 50
    """A_max of the arms without an age in their name. Paper: 25 for REINFORCE++ and PPO, 50 for SDPO, both without correction."""
    out: Path = Path("runs/claas-study")
    """The output: a folder for trials, tables and pictures. The same command continues the study in it."""
    workers: int = os.cpu_count() or 1
    """Processes that work at the same time. Each takes one thread."""
    json: bool = False
    """Print JSON, one trial a line, and nothing else."""


@dataclass(frozen=True)
class _Job:
    arm: str
    shuffle: int
    seed: int
    model: str
    size: int
    steps: int
    settings: CLaaS | None

    @property
    def name(self) -> str:
        """Name of the trial's file, without its ending."""
        return f"{self.arm.replace('=', '-').replace(',', '-')}-h{self.shuffle}-s{self.seed}"


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


def _jobs(study: ClaasStudyOptions) -> list[_Job]:
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
                    _Job(
                        arm,
                        shuffle,
                        seed,
                        study.model,
                        study.scenarios_per_split,
                        study.steps_per_scenario,
                        settings and _study_settings(arm, settings, study, seed),
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
    if name == "fresh":
        return FRESH
    age, _, correction = name.removeprefix("age=").partition(",")
    if not name.startswith("age=") or not age.isdigit() or correction not in CORRECTIONS:
        known = ", ".join((*ARMS, "fresh", f"age=A,C with an age A and a correction C of {', '.join(CORRECTIONS)}"))
        raise CommandError(f"learngraph claas study: there is no arm {name}; there are {known}")
    kind: Any = correction
    return CLaaS(
        replay=ReplaySettings(max_age=int(age)),
        loss=Objective(kind="reinforce", correction=StalenessCorrection(kind=kind)),
    )


def _study_settings(arm: str, settings: CLaaS, study: ClaasStudyOptions, seed: int) -> CLaaS:
    """Settings of an arm with the study's own; nothing is held out and there is no gate, as in the paper."""
    rate = study.sdpo_learning_rate if settings.loss.kind == "sdpo" else study.learning_rate
    return replace(
        settings,
        replay=replace(
            settings.replay,
            batch_size=study.batch_size,
            max_samplings=1_000_000,  # only age ends an exchange's use, as in the paper
            max_age=study.max_age if arm in ARMS else settings.replay.max_age,
            held_out_share=0.0,
        ),
        loss=replace(settings.loss, learning_rate=rate),
        lora=LoRA(rank=study.rank),
        gate=GateSettings(enabled=False),
        rollout=ReleaseSettings(watch_rewards=0, keep_versions=2),
        seed=seed,
    )


def _parse_numbers(text: str, name: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()] if "," in text else list(range(int(text)))
    except ValueError:
        raise CommandError(f"learngraph claas study: --{name} is a number, or numbers joined by commas; got {text!r}") from None


def _play_all(jobs: Sequence[_Job], study: ClaasStudyOptions) -> list[Trial]:
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


def _play_and_save(work: tuple[_Job, Path]) -> None:
    job, folder = work
    write_json(folder / f"{job.name}.json", {"job": asdict(job), "trial": asdict(play_trial(job))})


def _load_trial(folder: Path, job: _Job) -> Trial | None:
    path = folder / f"{job.name}.json"
    if not path.exists():
        return None
    kept = json.loads(path.read_text(encoding="utf-8"))
    kept["job"]["settings"] = current_settings(kept["job"]["settings"])
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
    parts = [
        f"{study.model}, {len(trials) // len(arms)} trials an arm (orders of the stream x seeds); mean [95 % over trials, Student's t]\n",
        table(arms),
        *(
            f"\n{arm}: success of each checkpoint on each split, in the order of the stream\n\n{matrix_table(found)}"
            for arm, found in arms.items()
        ),
        f"\nmatrices  {paths[0]}  {paths[1].name}\ntrials    {study.out / 'trials'}\n",
    ]
    text = "\n".join(parts)
    (study.out / "report.md").write_text(text, encoding="utf-8")
    return text


# A trial


def play_trial(job: _Job) -> Trial:
    """Play one trial, one pass over one stream, in this process."""
    return asyncio.run(_Stream(job).run())


class _Stream:
    """One trial: one order of the stream, one seed."""

    def __init__(self, job: _Job) -> None:
        from ...tools.environments.hierarchy import SPLIT_SIZE, scenario_stream
        from ...tools.models.models import open_model

        self.job = job
        self.scenarios = [one for n, one in enumerate(scenario_stream(job.shuffle, job.seed)) if n % SPLIT_SIZE < job.size]
        self.model: Any = open_model(job.model, threads=1)
        self.past: list[Any] = []
        self.untrained: list[float] = []
        self.updates = self.skipped = 0
        self.first: int | None = None

    async def run(self) -> Trial:
        started, job = perf_counter(), self.job
        with ExitStack() as stack:
            learns = stack.enter_context(open_learner(job.settings, self.model)) if job.settings else None
            rows, online = [self._success_rates(learns, 0)], []
            for number, scenario in enumerate(self.scenarios, 1):
                online.append(await self._play_and_learn(number, scenario, learns))
                if number % self.job.size == 0:
                    rows.append(self._success_rates(learns, number))
            retained = self._retention(learns)
            drift = learns.mean_ess_and_age() if learns is not None else (None, None)
        shares = tuple(tuple(row) for row in rows)
        seconds = round(perf_counter() - started, 1)
        return Trial(
            job.arm,
            job.shuffle,
            job.seed,
            shares,
            tuple(online),
            self.first,
            self.updates,
            self.skipped,
            seconds,
            retained,
            *drift,
        )

    async def _play_and_learn(self, number: int, scenario: Scenario, learns: StreamLearner | None) -> float:
        """Play a scenario once and learn from it; 1 if no rule broke, else 0."""
        from ...tools.pocket.guard_chats import PastExchange

        played = self._play([scenario], learns, seed=1000 * self.job.seed + number)[0]
        self.past += [PastExchange(scenario, turn) for turn in played.turns]
        if learns is not None:
            learns.record(played, number)
            for _ in range(self.job.steps):
                outcome = await learns.step()
                self.updates += outcome == "live"
                self.skipped += outcome == "skipped"
            if self.updates and self.first is None:
                self.first = number
        return float(played.is_won)

    def _success_rates(self, learns: StreamLearner | None, number: int) -> list[float]:
        """Share of each split's scenarios that the current learner passes."""
        if number and learns is None and not self.job.arm.startswith("icl"):
            return self.untrained  # the result would be the same
        played = self._play(self.scenarios, learns, seed=10**6 * (1 + self.job.seed), salt=EXAM_SALT)
        won = [float(one.is_won) for one in played]
        ends = range(0, len(won) + 1, self.job.size)
        self.untrained = [sum(won[a:b]) / (b - a) for a, b in pairwise(ends)]
        return self.untrained

    def _play(
        self, scenarios: Sequence[Scenario], learns: StreamLearner | None, seed: int, salt: str = ""
    ) -> list[ScenarioTranscript]:
        from ...tools.pocket import guard

        network = self.model.network if learns is None else learns.network()
        shown = self.past[-PROMPT_EXCHANGES:] if self.job.arm.startswith("icl") else []
        return guard.play_scenarios(
            network,
            self.model.tokenizer,
            scenarios,
            seed=seed,
            salt=salt,
            past=lambda scenario: shown,
            show_feedback=self.job.arm == "icl+text",
        )

    def _retention(self, learns: StreamLearner | None) -> float | None:
        """Share of chats without rules that are answered as asked, after learning divided by before. None: the arm does not learn."""
        from ...tools.pocket.guard import reply
        from ...tools.pocket.guard_chats import retention_probes

        def right(network: Any) -> float:
            chats = [chat for kind in retention_probes().values() for chat in kind][::PROBE_STRIDE]
            replies = reply(network, self.model.tokenizer, [said for said, _ in chats], seed=self.job.seed)
            return sum(given.text == wanted for given, (_, wanted) in zip(replies, chats, strict=True)) / len(chats)

        return right(learns.network()) / right(self.model.network) if learns else None
