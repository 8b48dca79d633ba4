"""`learngraph claas study`: CLaaS on a stream of adversarial scenarios, against arms that do not learn or learn otherwise.

The evaluation of the paper (arXiv 2606.05559), on scenarios of our own (tools/environments/hierarchy.py): 100 of them in 5 splits
of 20, each played once, up to 3 turns against an attacker that adapts. A verifier judges every turn: r in {0, 1}, and words where
a rule broke. After every scenario the learner takes `steps` gradient steps from its replay buffer. Before the first split and
after each it is copied, and every copy plays all splits again, against other users, with the same draws for all copies and
arms: P[k][j] (graphs/studies/continual.py).

    none              the model as it is
    icl               its newest exchanges with their rewards stand in the prompt; no weights change
    ppo, reinforce    learn from r alone
    sdpo              learns towards what a teacher says that was told which rule broke
    …+text, …-text    the same with the verifier's words, or for sdpo with no more than right and wrong: is it the loss, or the words?
    age=A,C           REINFORCE++ with A_max = A and correction C (also by `--ages`, `--corrections`): what replay is worth, and
                      when it harms. A short memory is seldom filled up to B_min, and so takes fewer steps: as in the paper
    fresh             REINFORCE++ with A_max = 1 that learns from whatever is there, if it is two exchanges: as many steps as the
                      others, without replay

A trial is one order of the stream and one seed, played by one process; trials that were finished are not played again.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ...memory.errors import UserError
from ...memory.records import ChatRequest, Exchange, Feedback, Reply, Sampling
from ..claas import CLaaS, build_learning, pick_fields
from ..wiring.flags import CommandError, parse_flags
from .continual import Trial, draw_heat_maps, matrix_table, table
from .sweep import environment_defaults, run_workers, write_json

if TYPE_CHECKING:
    from ...memory.claas.replay import Replay

__all__ = ["ARMS", "ClaasStudyOptions", "claas", "play_trial"]

ARMS: dict[str, CLaaS | None] = {
    "none": None,
    "icl": None,
    "icl+text": None,
    "reinforce": CLaaS.reinforce(),
    "reinforce+text": replace(CLaaS.reinforce(), feedback=True, hint=1.0),
    "ppo": CLaaS.ppo(),
    "ppo+text": replace(CLaaS.ppo(), feedback=True, hint=1.0),
    "sdpo": CLaaS.sdpo(),
    "sdpo-text": replace(CLaaS.sdpo(), feedback=False),
}
"""Name -> how it learns; None: it does not."""
FRESH = replace(CLaaS.reinforce(), max_age=1, least=2)
CORRECTIONS = ("none", "truncated", "decoupled", "rejection")
PROBE_STRIDE = 5
"""Of the chats without rules every fifth is asked, for time's sake."""
PROMPT_EXCHANGES = 4
"""Exchanges in the prompt of `icl`."""
SCOPE = ("study", "default")
EXAM_SALT = "exam"
"""Checkpoints meet other users than the learner met: what they are after and how they ask is drawn anew."""


@dataclass(frozen=True)
class ClaasStudyOptions:
    """What to play, and how it learns."""

    arms: tuple[str, ...] = tuple(ARMS)
    """Which arms; `fresh` and `age=A,C` are played if they are named here."""
    ages: tuple[int, ...] = ()
    """A_max of the arms `age=A,C`, in gradient steps; none if not given."""
    corrections: tuple[str, ...] = CORRECTIONS
    """C of these arms."""
    shuffles: str = "3"
    """How many orders of the stream, or which: `3` is 0, 1, 2; `7,8` are these two."""
    seeds: str = "3"
    """How many seeds of each, or which. A seed draws the scenarios, too."""
    model: str = "guard"
    """The model: `guard` (comes with the package, knows these scenarios), or `local:PATH`."""
    scenarios_per_split: int = 20
    """Scenarios of each split that are played, up to 20."""
    steps_per_scenario: int = 1
    """Gradient steps after every scenario. Paper: about 140 for 100 scenarios."""
    batch_size: int = 8
    """M, exchanges behind a step."""
    learning_rate: float = 5e-4
    """Learning rate of `reinforce` and `ppo`; this and the next were chosen on another order and seed (101) than those counted."""
    sdpo_learning_rate: float = 1e-3
    """Learning rate of `sdpo`."""
    rank: int = 8
    """r of LoRA."""
    max_age: int = 50
    """A_max of the arms without an age in their name. Paper: 25 for REINFORCE++ and PPO, 50 for SDPO, both without correction."""
    out: Path = Path("runs/claas-study")
    """Where trials, tables and pictures go; the same command goes on from there."""
    workers: int = os.cpu_count() or 1
    """Processes that play at the same time, with one thread each."""
    json: bool = False
    """Print the trials as JSON lines, and nothing else."""


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
        """Of its file."""
        return f"{self.arm.replace('=', '-').replace(',', '-')}-h{self.shuffle}-s{self.seed}"


def claas(args: Sequence[str]) -> int:
    """learn from feedback: `claas study` measures it on a stream of adversarial scenarios (`serve` is the service)"""
    if not args or args[0] != "study":
        raise CommandError(
            "learngraph claas study …: what CLaaS learns from a stream, against other arms; the service is `learngraph serve`"
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
    """One per arm, shuffle and seed.

    Raises:
        CommandError: there is no such arm.
    """
    aged = [f"age={age},{correction}" for correction in study.corrections if study.ages for age in study.ages]
    arms = {arm: _arm_settings(arm) for arm in (*study.arms, *aged)}
    if not 1 <= study.scenarios_per_split <= 20 or study.steps_per_scenario < 0 or study.workers < 1:
        raise CommandError(
            "learngraph claas study: --scenarios-per-split is from 1 to 20, --steps-per-scenario 0 or more and --workers 1 or more; "
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
    """How an arm learns.

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
    aged: Any = {"max_age": int(age), "correction": correction}
    return replace(CLaaS.reinforce(), **aged)


def _study_settings(arm: str, settings: CLaaS, study: ClaasStudyOptions, seed: int) -> CLaaS:
    """What the study says of all arms; nothing is held out and no gate is asked, as in the paper."""
    sdpo = settings.loss == "sdpo"
    age = study.max_age if arm in ARMS else settings.max_age
    return replace(
        settings,
        batch=study.batch_size,
        reuse=1_000_000,  # age alone ends an exchange's use, as in the paper
        rate=study.sdpo_learning_rate if sdpo else study.learning_rate,
        rank=study.rank,
        max_age=age,
        seed=seed,
        held_out=0.0,
        gate=False,
        watch=0,
        keep=2,
    )


def _parse_numbers(text: str, name: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()] if "," in text else list(range(int(text)))
    except ValueError:
        raise CommandError(f"learngraph claas study: --{name} is a number, or numbers joined by commas; got {text!r}") from None


def _play_all(jobs: Sequence[_Job], study: ClaasStudyOptions) -> list[Trial]:
    """All trials, in the order of the jobs. What lies in the folder under the same settings is not played again."""
    folder = study.out / "trials"
    folder.mkdir(parents=True, exist_ok=True)
    waiting = [job for job in jobs if _load_trial(folder, job) is None]
    told: set[str] = set()

    def tick() -> None:
        for job in waiting:
            if job.name not in told and (folder / f"{job.name}.json").exists():
                told.add(job.name)
                if not study.json:
                    sys.stderr.write(f"{len(told)} of {len(waiting)}: {job.name}\n")

    if waiting:
        with environment_defaults(OMP_NUM_THREADS="1"):  # torch's threads of two processes get into each other's way
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
    if kept["job"] != json.loads(json.dumps(asdict(job))):
        raise UserError(f"{path} was played with other settings; give another --out, or remove it")
    return Trial(**kept["trial"])


def report(trials: Sequence[Trial], study: ClaasStudyOptions) -> str:
    """Tables, and where the pictures are; writes both."""
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
    """One pass over one stream, in this process."""
    return asyncio.run(_Stream(job).run())


class _Stream:
    """One order of the stream, one seed."""

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
            learns = stack.enter_context(_open_learner(job, self.model)) if job.settings else None
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

    async def _play_and_learn(self, number: int, scenario: Any, learns: _StreamLearner | None) -> float:
        """Play a scenario for the first and only time, and learn. 1 if no rule broke."""
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
        return float(played.held)

    def _success_rates(self, learns: _StreamLearner | None, number: int) -> list[float]:
        """Share of each split's scenarios that the learner as it is now gets through."""
        if number and learns is None and not self.job.arm.startswith("icl"):
            return self.untrained  # it would be played to the same end again
        played = self._play(self.scenarios, learns, seed=10**6 * (1 + self.job.seed), salt=EXAM_SALT)
        won = [float(one.held) for one in played]
        ends = range(0, len(won) + 1, self.job.size)
        self.untrained = [sum(won[a:b]) / (b - a) for a, b in pairwise(ends)]
        return self.untrained

    def _play(self, scenarios: Sequence[Any], learns: _StreamLearner | None, seed: int, salt: str = "") -> list[Any]:
        from ...tools.pocket import guard

        network = self.model.network if learns is None else learns.network()
        shown = self.past[-PROMPT_EXCHANGES:] if self.job.arm.startswith("icl") else []
        told = self.job.arm == "icl+text"
        return guard.play_scenarios(
            network, self.model.tokenizer, scenarios, seed=seed, salt=salt, past=lambda scenario: shown, show_feedback=told
        )

    def _retention(self, learns: _StreamLearner | None) -> float | None:
        """Share of chats without rules that are answered as asked, after learning over before."""
        from ...tools.pocket.guard import reply
        from ...tools.pocket.guard_chats import retention_probes

        def right(network: Any) -> float:
            chats = [chat for kind in retention_probes().values() for chat in kind][::PROBE_STRIDE]
            replies = reply(network, self.model.tokenizer, [said for said, _ in chats], seed=self.job.seed)
            return sum(given.text == wanted for given, (_, wanted) in zip(replies, chats, strict=True)) / len(chats)

        return right(learns.network()) / right(self.model.network) if learns else None


class _StreamLearner:
    """A learner with its buffer and versions, driven step by step by the graph that the service runs."""

    def __init__(self, job: _Job, model: Any, folder: Path, replay: Replay) -> None:
        from ...memory.claas.adapters import Adapters
        from ...nodes.prompt import Prompt
        from ...tools.pocket import guard
        from ...tools.training.learner import InProcessLearner
        from ...tools.training.lora import LoRA, Objective

        assert job.settings is not None
        settings = job.settings
        self.versions = Adapters(folder / "adapters", *SCOPE, keep_versions=settings.keep)
        self.replay = replay

        def keep(batch: Any, written: Path, about: dict[str, Any]) -> str:
            return self.versions.write(written, batch.step, batch.parent, self.learner.base, about)

        self.learner = InProcessLearner(
            model,
            self.versions.folder,
            keep,
            pick_fields(LoRA, settings, alpha=2.0 * settings.rank),
            pick_fields(Objective, settings),
            measure_kl=False,  # nobody looks at entropy and KL here
            hindsight=Prompt.load("claas/hindsight", guard.PROMPTS).parts[0][1].template,
        )
        self.graph = build_learning(self.learner, replay, lambda tenant, adapter: self.versions, settings)

    def network(self) -> Any:
        """The network as it has been trained so far."""
        return self.learner.network(self.versions.current)

    def record(self, played: Any, number: int) -> None:
        """Every turn joins the buffer, with what the verifier said."""
        from ...tools.environments.hierarchy import chat_messages

        label = self.versions.current
        step = self.versions.version(label).step if label else 0
        for turn, (result, said) in enumerate(zip(played.turns, played.said, strict=True)):
            exchange = Exchange(
                f"{number}/{turn}",
                SCOPE[0],
                ChatRequest(tuple(chat_messages(played.scenario, played.turns[:turn], result.user)), Sampling()),
                Reply(result.reply, said.prompt_ids, said.token_ids, said.logprobs, version=label),
                self.learner.base,
                step=step,
                family=played.scenario.family,
                scenario=played.scenario.id,
                turn=turn,
                created=float(number),
            )
            self.replay.append(exchange)
            verdict = result.verdict
            self.replay.add_feedback(SCOPE[0], exchange.id, Feedback(float(verdict.reward), verdict.text, "verifier"))

    def mean_ess_and_age(self) -> tuple[float | None, float | None]:
        """Over all updates: the mean effective share of the samples, and their mean age in steps."""
        rows = self.replay.updates(*SCOPE, limit=10**6)
        return (fmean(row["ess"] for row in rows), fmean(row["age"] for row in rows)) if rows else (None, None)

    async def step(self) -> str:
        """One gradient step, if the buffer has enough for one."""
        state = await self.graph.ainvoke({"tenant": SCOPE[0], "adapter": SCOPE[1]})
        self.versions.prune(protect=(self.replay.head(*SCOPE),))
        return str(state["outcome"])


@contextmanager
def _open_learner(job: _Job, model: Any) -> Iterator[_StreamLearner]:
    from ...memory.claas.replay import Replay, ReplayLimits

    assert job.settings is not None
    shared = Path("/dev/shm")  # in memory, where there is such a place: nobody needs a trial's versions afterwards
    limits = pick_fields(ReplayLimits, job.settings)
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder, ExitStack() as stack:
        replay = stack.enter_context(Replay(Path(folder) / "replay.sqlite", limits, clock=lambda: 0.0))
        yield _StreamLearner(job, model, Path(folder), replay)
