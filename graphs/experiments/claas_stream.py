"""CLaaS on a stream of adversarial scenarios, against arms that do not learn or learn otherwise; a TOML file names the arms.

    learngraph run graphs/experiments/benchmarks/claas/stream.toml --out runs/claas

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
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from ...memory.claas.adapters import Adapters
from ...memory.claas.replay import Replay
from ...memory.errors import CommandError, UserError, did_you_mean
from ...memory.records import ChatRequest, Exchange, Feedback, Reply, Sampling
from ...nodes.prompt import Prompt
from ..arms import check_value
from ..claas import CLaaS, Objective, build_learning, read_hindsight
from .continual import Trial, dynamics_table, matrix_table, phase_table, table
from .folder import claim_folder
from .pool import environment_defaults, run_workers
from .recorded import read_rows

if TYPE_CHECKING:
    from ...tools.environments.hierarchy import HierarchyTurn, Scenario
    from ...tools.environments.ih_challenge import Challenge
    from ...tools.pocket.guard import ScenarioTranscript

__all__ = ["is_stream", "play_stream", "read_stream"]

PROBE_STRIDE = 5
"""One of so many chats without rules is played, to save time."""
PROMPT_EXCHANGES = 4
"""Exchanges in the prompt of an arm that learns in context."""
EXAM_SALT = "exam"
"""Checkpoints meet other users than the learner met: their aims and questions are drawn anew."""
STEP_NUMBERS = ("loss", "entropy", "ess", "age")
"""Numbers of a gradient step that a trial keeps."""
SCOPE = ("study", "default")
"""Tenant and adapter of a trial."""


@dataclass(frozen=True)
class StreamArm:
    """One way to play the stream."""

    name: str = ""
    """Its name in the tables; `none` is what the others are compared with."""
    learns: bool = True
    """False: the weights stay as they are."""
    preset: Literal["mixed", "sdpo", "reinforce", "ppo", "paper", "paper-reinforce", "paper-ppo"] = "mixed"
    """The settings to start from: what is served (words by sdpo, numbers by reinforce), the same with one loss alone, or the paper's
    SDPO, REINFORCE++ or PPO."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of CLaaS that are not the preset's, group by group."""
    shows: Literal["nothing", "rewards", "feedback"] = "nothing"
    """The newest exchanges stand in the prompt, with their rewards, or with the text of the feedback as well."""


@dataclass(frozen=True)
class Stream:
    """The arms and trials of a study."""

    arms: tuple[StreamArm, ...] = ()
    """The arms."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of CLaaS for all arms; an arm's own go before."""
    model: str = "guard"
    """The model: `guard` (comes with the package, knows these scenarios), or `local:PATH`."""
    scenarios: str = ""
    """A file in the layout of IH-Challenge (tools/environments/ih_challenge.py); none: scenarios of our own, which `guard` knows."""
    attacker: str = ""
    """The chat model that attacks the scenarios of a file."""
    max_tokens: int = 20
    """Longest reply, in tokens."""
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
            preset = getattr(CLaaS, arm.preset.replace("-", "_"), lambda kind=arm.preset: CLaaS(loss=Objective(kind=kind)))()
            settings = change_settings(preset, self.settings, "settings")
            settings = replace(change_settings(settings, arm.settings, f"{arm.name}.settings"), seed=seed)
            job = StreamJob(arm.name, order, seed, self.model, self.scenarios_per_split, self.steps_per_scenario, arm.shows)
            job = replace(job, scenarios=self.scenarios, attacker=self.attacker, max_tokens=self.max_tokens)
            found.append(replace(job, settings=settings) if arm.learns else job)
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
    scenarios: str = ""
    attacker: str = ""
    max_tokens: int = 20


def is_stream(table: Mapping[str, Any]) -> bool:
    """True if a table of a file (experiments/spec.py) names arms of a stream; other tables are benchmarks of methods."""
    return "arms" in table


def read_stream(table: Mapping[str, Any], place: str) -> Stream:
    """Check a table that names arms of a stream; `place` is what errors begin with.

    Raises:
        CommandError: something in it is wrong.
    """
    there = {name: value for name, value in table.items() if name not in ("arms", "title", "text", "needs")}
    try:
        arms = [change_settings(StreamArm(), one, f"arms[{number}]") for number, one in enumerate(table["arms"])]
        stream: Stream = replace(change_settings(Stream(), there, "the stream"), arms=tuple(arms))
        stream.jobs()
    except (ValueError, UserError) as error:
        raise CommandError(f"{place}: {error}") from None
    return stream


def change_settings(settings: Any, changes: Mapping[str, Any], place: str) -> Any:
    """Settings with some fields changed, group by group."""
    hints, values = get_type_hints(type(settings)), {}
    for name, value in changes.items():
        if name not in hints:
            raise CommandError(f"{place} has no {name!r}{did_you_mean(name, hints, 'it has')}")
        now, here = getattr(settings, name), f"{place}.{name}"
        is_group = is_dataclass(now) and isinstance(value, Mapping)
        values[name] = change_settings(now, value, here) if is_group else check_value(value, hints[name], here)
    return replace(settings, **values)


# A trial


class StreamLearner:
    """A learner with its buffer and versions in a folder; each step is a run of the learning graph that the service runs, too.

    The seconds that each node of that graph takes are added to `seconds`.
    """

    def __init__(self, settings: CLaaS, model: Any, folder: Path, seconds: defaultdict[str, float]) -> None:
        from ...tools.training.calls import LearnerSettings
        from ...tools.training.learner import InProcessLearner

        self.versions = Adapters(folder / "adapters", *SCOPE, keep_versions=settings.rollout.keep_versions)
        self.played = 0
        """Scenarios played so far: the time in the buffer's log."""
        self.replay = Replay(folder / "replay.sqlite", settings.replay, clock=lambda: float(self.played))
        self.seconds = seconds

        def keep(batch: Any, written: Path, about: dict[str, Any]) -> str:
            return self.versions.write(written, batch.step, batch.parent, self.learner.base, about)

        chosen = LearnerSettings(settings.lora, settings.loss, read_hindsight(model.model, settings.loss.teacher))
        self.learner = InProcessLearner(model, self.versions.folder, keep, chosen)
        self.graph = build_learning(self.learner, self.replay, lambda tenant, adapter: self.versions, settings)

    def network(self) -> Any:
        """The network of the newest version."""
        return self.learner.network(self.versions.current)

    def record(self, played: ScenarioTranscript, number: int, world: Any) -> None:
        """Append every turn of a played scenario of this world to the buffer, with the verifier's feedback."""
        label, self.played = self.versions.current, number
        for turn, (result, reply) in enumerate(zip(played.turns, played.replies, strict=True)):
            exchange = Exchange(
                f"{number}/{turn}",
                SCOPE[0],
                ChatRequest(tuple(world.chat_messages(played.scenario, played.turns[:turn], result.user)), Sampling()),
                Reply(result.reply, reply.prompt_ids, reply.token_ids, reply.token_logprobs, version=label),
                self.learner.base,
                step=self.versions.version(label).step if label else 0,
                feedback=Feedback(float(result.verdict.reward), result.verdict.feedback, "verifier"),
                family=played.scenario.family,
                scenario=played.scenario.id,
                turn=turn,
                created=float(number),
            )
            self.replay.append(exchange)

    async def step(self) -> str:
        """One gradient step, if the buffer has enough exchanges; returns the graph's outcome."""
        outcome, began = "", perf_counter()
        async for update in self.graph.astream({"tenant": SCOPE[0], "adapter": SCOPE[1]}, stream_mode="updates"):
            ((node, wrote),) = update.items()
            outcome = (wrote or {}).get("outcome", outcome)
            self.seconds[node] += perf_counter() - began
            began = perf_counter()
        self.versions.prune(protect=(self.replay.head(*SCOPE),))
        return str(outcome)


def play_trial(job: StreamJob) -> Trial:
    """Play one trial, one pass over one stream, in this process."""
    return asyncio.run(_Stream(job).run())


class _Stream:
    """One trial: one order of the stream, one seed."""

    def __init__(self, job: StreamJob) -> None:
        from ...tools.models.models import open_model

        self.job = job
        self.world, self.scenarios = _open_scenarios(job)
        self.model: Any = open_model(job.model, threads=1)
        self.learner: StreamLearner | None = None
        self.past: list[Any] = []
        self.outcomes: list[str] = []
        self.first: int | None = None
        self.untrained: list[float] = []
        self.levels: list[int] = []
        self.seconds = defaultdict[str, float](float)

    async def run(self) -> Trial:
        job = self.job
        with ExitStack() as stack:
            if job.settings:
                shared = Path("/dev/shm")  # in memory where there is one
                folder = stack.enter_context(tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None))
                self.learner = StreamLearner(job.settings, self.model, Path(folder), self.seconds)
                stack.enter_context(self.learner.replay)
            rows, online = [self._success_rates(0)], []
            for number, scenario in enumerate(self.scenarios, 1):
                online.append(await self._play_and_learn(number, scenario))
                if number % job.size == 0:
                    rows.append(self._success_rates(number))
            log = self.learner.replay.updates(*SCOPE, limit=10**6) if self.learner is not None else []
            return Trial(
                arm=job.arm,
                order=job.order,
                seed=job.seed,
                matrix=tuple(map(tuple, rows)),
                online=tuple(online),
                first=self.first,
                steps=tuple({"scenario": row["time"], **{name: row[name] for name in STEP_NUMBERS}} for row in reversed(log)),
                levels=tuple(self.levels),
                phases={name: round(spent, 2) for name, spent in self.seconds.items()},
                retained=self._retention(self.learner.network()) if self.learner is not None and not job.scenarios else None,
                dropped=self.outcomes.count("dropped") if job.settings is not None and job.settings.gate.enabled else None,
            )

    async def _play_and_learn(self, number: int, scenario: Scenario) -> float:
        """Play a scenario once and learn from it; 1 if no rule broke, else 0."""
        from ...tools.pocket.guard_chats import PastExchange

        played = self._play([scenario], seed=1000 * self.job.seed + number, seconds=self.seconds)[0]
        self.past += [PastExchange(scenario, turn) for turn in played.turns]
        if self.learner is not None:
            began = perf_counter()
            self.learner.record(played, number, self.world)
            self.seconds["record"] += perf_counter() - began
            self.outcomes += [await self.learner.step() for _ in range(self.job.steps)]
            if self.first is None and "live" in self.outcomes:
                self.first = number
            self.levels.append(self.learner.replay.counts(*SCOPE).get("ready", 0))
        return float(played.is_won)

    def _success_rates(self, number: int) -> list[float]:
        """Share of each split's scenarios that are passed now."""
        if number and self.learner is None and self.job.shows == "nothing":
            return self.untrained  # the result would be the same
        began = perf_counter()
        played = self._play(self.scenarios, seed=10**6 * (1 + self.job.seed), salt=EXAM_SALT)
        self.seconds["examine"] += perf_counter() - began
        won = [float(one.is_won) for one in played]
        ends = range(0, len(won) + 1, self.job.size)
        self.untrained = [sum(won[a:b]) / (b - a) for a, b in pairwise(ends)]
        return self.untrained

    def _play(
        self, scenarios: Sequence[Scenario], seed: int, salt: str = "", seconds: defaultdict[str, float] | None = None
    ) -> list[ScenarioTranscript]:
        from ...tools.pocket import guard

        shown = [] if self.job.shows == "nothing" else self.past[-PROMPT_EXCHANGES:]
        network = self.model.network if self.learner is None else self.learner.network()
        return guard.play_scenarios(
            network,
            self.model.tokenizer,
            scenarios,
            seed=seed,
            salt=salt,
            past=lambda scenario: shown,
            show_feedback=self.job.shows == "feedback",
            seconds=seconds,
            world=self.world,
            max_tokens=self.job.max_tokens,
        )

    def _retention(self, learned: Any) -> float:
        """Share of chats without rules that a network answers as asked, divided by that of the base model."""
        from ...tools.pocket.guard import reply
        from ...tools.pocket.guard_chats import retention_probes

        def right(network: Any) -> float:
            chats = [chat for kind in retention_probes().values() for chat in kind][::PROBE_STRIDE]
            replies = reply(network, self.model.tokenizer, [said for said, _ in chats], seed=self.job.seed)
            return sum(given.text == wanted for given, (_, wanted) in zip(replies, chats, strict=True)) / len(chats)

        return right(learned) / right(self.model.network)


def _open_scenarios(job: StreamJob) -> tuple[Any, list[Any]]:
    """Users, chats and verifier of a trial, and its scenarios in their order."""
    from ...tools.environments import hierarchy
    from ...tools.environments.ih_challenge import ChallengeWorld, challenge_stream, read_challenges

    if not job.scenarios:
        stream = hierarchy.scenario_stream(job.order, job.seed)
        return hierarchy, [one for n, one in enumerate(stream) if n % hierarchy.SPLIT_SIZE < job.size]
    challenges = read_challenges(Path(job.scenarios))
    return ChallengeWorld(_attacker(job.attacker, job.seed)), challenge_stream(challenges, job.size, job.order, job.seed)


def _attacker(name: str, seed: int) -> Callable[[Challenge, Sequence[HierarchyTurn]], str]:
    """A chat model that writes a user's messages, and reads how the ones before were judged."""
    from ...tools.models.models import open_model

    if not name:
        raise CommandError('scenarios of a file are attacked by a chat model: attacker = "openai:NAME"')
    model, prompt = open_model(name, temperature=1.0, seed=seed), Prompt.load("claas/attack")

    def attack(scenario: Challenge, turns: Sequence[HierarchyTurn]) -> str:
        attempts = "\n\n".join(f"You: {one.user}\nReply: {one.reply}\nSuccess: {1 - one.verdict.reward}" for one in turns)
        return model.invoke(
            prompt.messages(
                role=scenario.attacker_role,
                task=scenario.attacker_task,
                instructions=scenario.instructions,
                attempts=attempts or "none",
            )
        ).text.strip()

    return attack


# The study


def play_stream(stream: Stream, name: str, folder: Path, workers: int, engine: str = "processes") -> str:
    """Play the trials of a stream that its folder does not hold yet, and return the tables."""
    jobs, path = stream.jobs(), folder / "trials.jsonl"
    with claim_folder(folder, {"bench": name}), environment_defaults(OMP_NUM_THREADS="1"):
        missing = [(job, path) for job, trial in zip(jobs, _read_trials(path, jobs), strict=True) if trial is None]
        run_workers(missing, _play_and_save, workers, engine=engine)
    arms: dict[str, list[Trial]] = {}
    for trial in _read_trials(path, jobs):
        if trial is not None:
            arms.setdefault(trial.arm, []).append(trial)
    parts = [table(arms), phase_table(arms)]
    for arm, mine in arms.items():
        parts.append(f"{arm}: checkpoint by split\n\n{matrix_table(mine)}")
        parts += [dynamics_table(mine)] if any(one.steps for one in mine) else []
    return "\n\n".join(parts)


def _play_and_save(work: tuple[StreamJob, Path]) -> None:
    job, path = work
    row = json.dumps({"job": asdict(job), "trial": asdict(play_trial(job))}) + "\n"
    with path.open("ab", buffering=0) as file:  # one write: rows of several processes do not mix
        file.write(row.encode())


def _read_trials(path: Path, jobs: Sequence[StreamJob]) -> list[Trial | None]:
    """The finished trial of each job; None: it is not there. A row that was cut short is taken off the file."""
    rows = read_rows(path)
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    played = {json.dumps(row["job"]): Trial(**row["trial"]) for row in rows}
    return [played.get(json.dumps(asdict(job))) for job in jobs]
