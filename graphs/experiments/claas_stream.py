"""CLaaS on a stream of adversarial scenarios, against arms that do not learn or learn otherwise; a TOML file names the arms.

    python -m learngraph.graphs.experiments.claas_stream graphs/experiments/benchmarks/claas/stream.toml --out runs/claas

The evaluation of the paper (arXiv:2606.05559), on scenarios of our own (tools/environments/hierarchy.py): up to 100 of them in 5
splits, each played once, up to 3 turns against an attacker that adapts. A verifier judges every turn: r in {0, 1}, and a text where
a rule broke. After every scenario the learner takes gradient steps from its replay buffer, with the settings and the gate of
`learngraph serve`. Before the first split and after each one it is copied. Every copy plays all splits again, against other users,
with the same draws for all copies and arms: P[k][j] (graphs/experiments/continual.py).

A trial is one order of the stream and one seed, played by one process. Finished trials are lines of `trials.jsonl`, and the same
command plays what is missing there.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from tyro.conf import Positional

from ...memory.errors import CommandError, UserError
from ..claas import CLaaS, Objective
from ..cli.flags import parse_flags
from .claas_learner import StreamLearner, mean_ess_and_age, open_learner, temporary_folder
from .continual import Trial, matrix_table, table
from .pool import environment_defaults, run_workers
from .steps import read_rows

if TYPE_CHECKING:
    from ...tools.environments.hierarchy import Scenario
    from ...tools.pocket.guard import ScenarioTranscript

__all__ = ["StreamArm", "StreamFile", "StreamJob"]

PROBE_STRIDE = 5
"""One of so many chats without rules is played, to save time."""
PROMPT_EXCHANGES = 4
"""Exchanges in the prompt of an arm that learns in context."""
EXAM_SALT = "exam"
"""Checkpoints meet other users than the learner met: their aims and questions are drawn anew."""


@dataclass(frozen=True)
class StreamArm:
    """One way to play the stream."""

    name: str
    """Its name in the tables; `none` is what the others are compared with."""
    learns: bool = True
    """False: the weights stay as they are."""
    preset: Literal["mixed", "sdpo", "reinforce", "ppo"] = "mixed"
    """The settings to start from: words by sdpo and numbers by reinforce (what is served), or one of them alone."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of CLaaS that are not the preset's, group by group."""
    shows: Literal["nothing", "rewards", "feedback"] = "nothing"
    """The newest exchanges stand in the prompt, with their rewards, or with the text of the feedback as well."""


@dataclass(frozen=True)
class StreamFile:
    """The arms and trials of a study."""

    arms: tuple[StreamArm, ...]
    """The arms."""
    model: str = "guard"
    """The model: `guard` (comes with the package, knows these scenarios), or `local:PATH`."""
    orders: int = 3
    """Number of orders of the stream."""
    seeds: int = 3
    """Number of seeds. A seed draws the scenarios, too."""
    scenarios_per_split: int = 20
    """Scenarios of each split that are played, from 1 to 20."""
    steps_per_scenario: int = 1
    """Gradient steps after every scenario. More than 1 are taken only where the learner need not wait for feedback on its newest
    version (`rollout.max_lead`). Paper: about 140 for 100 scenarios."""

    def __post_init__(self) -> None:
        if not 1 <= self.scenarios_per_split <= 20 or self.steps_per_scenario < 0 or self.orders < 1 or self.seeds < 1:
            raise UserError(
                "scenarios_per_split is from 1 to 20, steps_per_scenario 0 or more, orders and seeds 1 or more; got "
                f"{self.scenarios_per_split}, {self.steps_per_scenario}, {self.orders} and {self.seeds}"
            )

    def jobs(self) -> list[StreamJob]:
        """The trials of all arms, orders and seeds."""
        found = []
        for order, seed, arm in product(range(self.orders), range(self.seeds), self.arms):
            settings = change_settings(CLaaS(loss=Objective(kind=arm.preset)), arm.settings)
            job = StreamJob(arm.name, order, seed, self.model, self.scenarios_per_split, self.steps_per_scenario, arm.shows)
            found.append(replace(job, settings=replace(settings, seed=seed)) if arm.learns else job)
        return found


@dataclass(frozen=True)
class StreamJob:
    """A trial to play, with its settings."""

    arm: str
    order: int
    seed: int
    model: str
    size: int
    steps: int
    shows: str
    settings: CLaaS | None = None
    """None: the arm does not learn."""


def read_stream_file(path: Path) -> StreamFile:
    """Read and check a study's file. Its table `settings` holds for all arms.

    Raises:
        CommandError: it cannot be read, or something in it is wrong.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        there = tomllib.loads(path.read_text(encoding="utf-8"))
        common = there.pop("settings", {})
        for arm in there.get("arms", ()):
            arm["settings"] = _merge(common, arm.get("settings", {}))
        for form, table_ in ((StreamFile, there), *((StreamArm, arm) for arm in there.get("arms", ()))):
            if wrong := [key for key in table_ if key not in {one.name for one in fields(form)}]:
                raise UserError(f"there is no key {wrong[0]!r}; there are {', '.join(one.name for one in fields(form))}")
        file = TypeAdapter(StreamFile).validate_python(there)
        file.jobs()
    except OSError as error:
        raise CommandError(f"{path}: cannot be read ({error.strerror or error}); give a study's file in TOML") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise CommandError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}, got {first['input']!r}") from None
    except (ValueError, UserError) as error:
        raise CommandError(f"{path}: {error}") from None
    return file


def _merge(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The tables as one; where both have a value, the second one's."""
    shared = {
        key: _merge(one[key], other[key]) for key in one if isinstance(one[key], dict) and isinstance(other.get(key), dict)
    }
    return {**one, **other, **shared}


def change_settings(settings: Any, changes: Mapping[str, Any]) -> Any:
    """Settings with some fields changed, group by group.

    Raises:
        UserError: there is no such setting, or the value is not of its type.
    """
    from pydantic import TypeAdapter, ValidationError

    hints, values = get_type_hints(type(settings)), {}
    for name, value in changes.items():
        if name not in hints:
            raise UserError(f"there is no setting {name!r}; there are {', '.join(hints)}")
        now = getattr(settings, name)
        try:
            group = is_dataclass(now) and isinstance(value, Mapping)
            values[name] = change_settings(now, value) if group else TypeAdapter(hints[name]).validate_python(value)
        except ValidationError as error:
            raise UserError(f"{name}: {error.errors()[0]['msg']}, got {value!r}") from None
    return replace(settings, **values)


# A trial


def play_trial(job: StreamJob) -> Trial:
    """Play one trial, one pass over one stream, in this process."""
    return asyncio.run(_Stream(job).run())


class _Stream:
    """One trial: one order of the stream, one seed."""

    def __init__(self, job: StreamJob) -> None:
        from ...tools.environments.hierarchy import SPLIT_SIZE, scenario_stream
        from ...tools.models.models import open_model

        self.job = job
        self.scenarios = [one for n, one in enumerate(scenario_stream(job.order, job.seed)) if n % SPLIT_SIZE < job.size]
        self.model: Any = open_model(job.model, threads=1)
        self.past: list[Any] = []
        self.outcomes: list[str] = []
        self.first: int | None = None
        self.untrained: list[float] = []

    async def run(self) -> Trial:
        started, job = perf_counter(), self.job
        with ExitStack() as stack:
            learner = None
            if job.settings:
                folder = stack.enter_context(temporary_folder())
                learner = stack.enter_context(open_learner(job.settings, self.model, folder))
            rows, online = [self._success_rates(learner, 0)], []
            for number, scenario in enumerate(self.scenarios, 1):
                online.append(await self._play_and_learn(number, scenario, learner))
                if number % job.size == 0:
                    rows.append(self._success_rates(learner, number))
            has_gate = job.settings is not None and job.settings.gate.enabled
            ess, age = mean_ess_and_age(learner.replay) if learner is not None else (None, None)
            return Trial(
                arm=job.arm,
                order=job.order,
                seed=job.seed,
                matrix=tuple(map(tuple, rows)),
                online=tuple(online),
                first=self.first,
                updates=self.outcomes.count("live"),
                seconds=round(perf_counter() - started, 1),
                retained=self._retention(learner.network()) if learner is not None else None,
                ess=ess,
                age=age,
                dropped=self.outcomes.count("dropped") if has_gate else None,
            )

    async def _play_and_learn(self, number: int, scenario: Scenario, learner: StreamLearner | None) -> float:
        """Play a scenario once and learn from it; 1 if no rule broke, else 0."""
        from ...tools.pocket.guard_chats import PastExchange

        played = self._play([scenario], learner, seed=1000 * self.job.seed + number)[0]
        self.past += [PastExchange(scenario, turn) for turn in played.turns]
        if learner is not None:
            learner.record(played, number)
            self.outcomes += [await learner.step() for _ in range(self.job.steps)]
            if self.first is None and "live" in self.outcomes:
                self.first = number
        return float(played.is_won)

    def _success_rates(self, learner: StreamLearner | None, number: int) -> list[float]:
        """Share of each split's scenarios that are passed now."""
        if number and learner is None and self.job.shows == "nothing":
            return self.untrained  # the result would be the same
        played = self._play(self.scenarios, learner, seed=10**6 * (1 + self.job.seed), salt=EXAM_SALT)
        won = [float(one.is_won) for one in played]
        ends = range(0, len(won) + 1, self.job.size)
        self.untrained = [sum(won[a:b]) / (b - a) for a, b in pairwise(ends)]
        return self.untrained

    def _play(
        self, scenarios: Sequence[Scenario], learner: StreamLearner | None, seed: int, salt: str = ""
    ) -> list[ScenarioTranscript]:
        from ...tools.pocket import guard

        shown = [] if self.job.shows == "nothing" else self.past[-PROMPT_EXCHANGES:]
        network = self.model.network if learner is None else learner.network()
        show_feedback, past = self.job.shows == "feedback", (lambda scenario: shown)
        play = guard.play_scenarios
        return play(network, self.model.tokenizer, scenarios, seed=seed, salt=salt, past=past, show_feedback=show_feedback)

    def _retention(self, learned: Any) -> float:
        """Share of chats without rules that a network answers as asked, divided by that of the base model."""
        from ...tools.pocket.guard import reply
        from ...tools.pocket.guard_chats import retention_probes

        def right(network: Any) -> float:
            chats = [chat for kind in retention_probes().values() for chat in kind][::PROBE_STRIDE]
            replies = reply(network, self.model.tokenizer, [said for said, _ in chats], seed=self.job.seed)
            return sum(given.text == wanted for given, (_, wanted) in zip(replies, chats, strict=True)) / len(chats)

        return right(learned) / right(self.model.network)


# The study


@dataclass(frozen=True)
class ClaasStreamOptions:
    """Options of the command."""

    file: Positional[Path]
    """The study's file, in TOML."""
    out: Path = Path("runs/claas-stream")
    """The output: a folder for trials and tables. The same command continues the study in it."""
    workers: int = os.cpu_count() or 1
    """Processes that work at the same time. Each takes one thread."""


def main(args: Sequence[str]) -> int:
    """Play what is missing, print the tables, and return the exit status."""
    options = parse_flags(ClaasStreamOptions, args, "claas_stream", str(__doc__))
    jobs, path = read_stream_file(options.file).jobs(), options.out / "trials.jsonl"
    options.out.mkdir(parents=True, exist_ok=True)
    missing = [(job, path) for job, trial in zip(jobs, _read_trials(path, jobs), strict=True) if trial is None]
    with environment_defaults(OMP_NUM_THREADS="1"):  # threads of several processes would slow each other down
        run_workers(missing, _play_and_save, options.workers)
    arms: dict[str, list[Trial]] = {}
    for trial in _read_trials(path, jobs):
        if trial is not None:
            arms.setdefault(trial.arm, []).append(trial)
    parts = [table(arms), *(f"{arm}: checkpoint by split\n\n{matrix_table(trials)}" for arm, trials in arms.items())]
    sys.stdout.write("\n\n".join(parts) + "\n")
    return 0


def _play_and_save(work: tuple[StreamJob, Path]) -> None:
    job, path = work
    row = json.dumps({"job": asdict(job), "trial": asdict(play_trial(job))}) + "\n"
    with path.open("ab", buffering=0) as file:  # one write: rows of several processes do not mix
        file.write(row.encode())


def _read_trials(path: Path, jobs: Sequence[StreamJob]) -> list[Trial | None]:
    """The finished trial of each job; None: it is not there. A row that was cut short is taken off the file."""
    rows = read_rows(path) if path.exists() else []
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    played = {json.dumps(row["job"]): Trial(**row["trial"]) for row in rows}
    return [played.get(json.dumps(asdict(job))) for job in jobs]


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
