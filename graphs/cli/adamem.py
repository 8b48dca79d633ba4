"""`learngraph adamem build | collect | filter | train`: banks of trajectories for AdaMEM, and Step-MFT from its runs.

    learngraph adamem build --env toy --source gold --tasks 40 --out bank.jsonl
    learngraph run adamem --mode high --bank bank.jsonl --env toy --split train --out runs/train
    learngraph adamem collect runs/train --out pairs.jsonl
    learngraph adamem filter pairs.jsonl --out data.jsonl
    learngraph adamem train data.jsonl --model pocket --out trained
    learngraph run adamem --mode high --bank bank.jsonl --env toy --model local:trained

Part of the command line: it joins tools to graphs. What takes time to import stands in the command that needs it.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Literal

from ...memory.errors import UserError
from ...memory.records import Task, Trajectory, Transition
from ..wiring.flags import CommandError, parse_flags, split_positional

if TYPE_CHECKING:
    from ...nodes.synthesize.mft import Pair

__all__ = ["adamem"]

USAGE = """\
usage: learngraph adamem build --env ENV --out FILE | collect RUN_FOLDER --out FILE | filter PAIRS --out FILE | train DATA --out DIR

build makes a bank of trajectories to start from; collect, filter and train fine-tune a local model on the strategies that its
own runs in mode high have borne out (Step-MFT). Each with --help."""


def adamem(args: Sequence[str]) -> int:
    """make a bank of trajectories, or fine-tune a model on its strategies: learngraph adamem build|collect|filter|train"""
    commands: Mapping[str, Callable[[Sequence[str]], int]] = {
        "build": build,
        "collect": collect,
        "filter": filter_pairs,
        "train": train,
    }
    if args and args[0] in ("-h", "--help"):
        _tell(USAGE)
        return 0
    if not args or args[0] not in commands:
        raise CommandError(USAGE.partition("\n")[0])
    return commands[args[0]](args[1:])


# learngraph adamem build


@dataclass(frozen=True)
class BuildOptions:
    """Which trajectories."""

    out: Path
    """The file: a trajectory a line, as `learngraph memory export` writes them. For `run adamem --bank`."""
    env: str | None = None
    """The environment, as for `learngraph run`; a run folder knows its own."""
    source: str = "gold"
    """`gold`: the environment's walkthroughs. `perturbed`: walkthroughs with wrong turns and ones cut short, in turns: some fail.
    `random`: random play. Or a run folder: what its agents did."""
    split: Literal["train", "dev", "test"] = "train"
    """The fold of the environment's tasks, if not of a run folder. Keep it apart from the one that is tested on."""
    tasks: int = 20
    """How many tasks, from the first one."""
    attempts_per_task: int = 2
    """At each task, if perturbed or random."""
    wrong_turn_rate: float = 0.3
    """Chance of a wrong turn at a step (perturbed)."""
    horizon: int | None = None
    """Steps after which an episode ends; the environment's own if not given."""
    success_threshold: float | None = None
    """The score from which a task counts as solved, to tell how many are; the environment's own if not given."""
    seed: int = 0
    """Of wrong turns, cuts and random play."""

    def __post_init__(self) -> None:
        if self.tasks < 1 or self.attempts_per_task < 1 or not 0 <= self.wrong_turn_rate <= 1:
            raise CommandError(
                f"--tasks and --attempts-per-task are at least 1 and --wrong-turn-rate from 0 to 1, got {self.tasks}, {self.attempts_per_task}, {self.wrong_turn_rate}"
            )


def build(args: Sequence[str]) -> int:
    """make a bank of trajectories"""
    from ...memory.storage.shelf import write_jsonl
    from ...tools.environments.catalogue import open_environment

    options: BuildOptions = parse_flags(
        BuildOptions, args, "learngraph adamem build", "A bank of trajectories, for run adamem --bank FILE."
    )
    if options.source not in SOURCES:
        if not Path(options.source).is_dir():
            raise CommandError(f"--source is {', '.join(SOURCES)} or a run folder; there is no folder {options.source}")
        if options.env is not None:
            raise CommandError(f"--env {options.env}: the run folder {options.source} says itself what was played")
        made, solved, split = _read_trajectories(Path(options.source))
    else:
        if options.env is None:
            raise CommandError("learngraph adamem build: --env says which environment's tasks; toy would do")
        environment = open_environment(options.env, horizon=options.horizon)
        try:
            if options.source != "random" and not hasattr(environment, "gold"):
                raise CommandError(f"{options.env} has no walkthroughs; --source random or a run folder would do")
            tasks = [environment.task(number, options.split) for number in range(options.tasks)]
            made = [trajectory for task in tasks for trajectory in SOURCES[options.source](environment, task, options)]
            solved, split = getattr(environment, "solved", None), options.split
        finally:
            environment.close()
    if not made:
        raise UserError(f"{options.source} has no finished episode; nothing was written")
    write_jsonl(made, options.out)
    steps, tasks_ = sum(len(t.transitions) for t in made), len({(t.domain, t.task.id) for t in made})
    least = solved if options.success_threshold is None else options.success_threshold
    if least is None:
        told = "how many of them succeeded nobody knows: give a score with --success-threshold"
    else:
        won = sum(t.score >= least for t in made)
        told = f"{won} succeeded and {len(made) - won} failed (a score of {least:g} is a success)"
    _tell(f"{len(made)} trajectories of {tasks_} tasks, {steps} steps; {told}\nwritten to {options.out}")
    if split == "test":
        _tell(f"note: these are tasks of the split test; a run that starts from {options.out} cannot be tested on them")
    return 0


def _play_gold(environment: Any, task: Task, options: BuildOptions) -> Iterator[Trajectory]:
    from ...nodes.act.episode import replay_actions

    yield replay_actions(environment, task, environment.gold(task), run=_run_name("gold", environment, task))


def _play_perturbed_walkthroughs(environment: Any, task: Task, options: BuildOptions) -> Iterator[Trajectory]:
    from ...nodes.act.episode import replay_actions

    path, name = environment.gold(task), _run_name("perturbed", environment, task)
    for n in range(options.attempts_per_task):
        draw = Random(f"{options.seed} {name}/{n}")
        if n % 2 == 0:
            actions = _play_wrong_turns(environment, task, path, draw, options.wrong_turn_rate)
        else:
            actions = list(path[: draw.randint(1, max(1, len(path) - 1))])
        yield replay_actions(environment, task, actions, run=name, episode=n)


def _play_random(environment: Any, task: Task, options: BuildOptions) -> Iterator[Trajectory]:
    from ...nodes.act.episode import replay_actions

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
    """Play on to the end: with chance `wrong` any other action that is listed, else what the walkthrough does in this state.

    In a state that the walkthrough never sees, its next action if it is admissible, and any action otherwise.
    """
    shown = environment.observe(task, ())
    known: dict[str, int] = {}
    for t in range(len(path)):
        known[environment.abstract(environment.observe(task, path[:t]))] = t
    taken: list[str] = []
    due = 0
    while not shown.over:
        if not shown.actions:
            raise UserError(f"{environment.name} lists no actions to go wrong with; --source gold or a run folder would do")
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


# Run folders


@dataclass(frozen=True)
class SavedRun:
    """One run of one method on one task, as it lies on the disk."""

    folder: Path
    method: str
    """As folders call it: `adamem-high` for `adamem:high`."""
    seed: int
    settings: Mapping[str, Any]
    """Of the sweep."""
    steps: Sequence[Mapping[str, Any]]
    episodes: Sequence[Mapping[str, Any]]
    """Those that have ended."""
    solved: float | None
    """The score from which the task counts as solved; None while the run goes on, or if there is no such thing."""

    @property
    def method_settings(self) -> Mapping[str, Any]:
        """The settings of the method."""
        methods = {name.replace(":", "-"): settings for name, settings in self.settings["methods"].items()}
        found: Mapping[str, Any] = methods.get(self.method, {})
        return found


def _read_runs(folder: Path) -> list[SavedRun]:
    """The runs in a folder that `learngraph run` has made.

    Raises:
        UserError: it is none, or damaged.
    """
    from ..studies.sweep import read_rows

    if not (folder / "settings.json").is_file():
        raise UserError(f"{folder} is no run folder: it has no settings.json; one that 'learngraph run' has made would do")
    found = []
    try:
        settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
        for log in sorted(folder.glob("*/episodes.jsonl")):
            named = re.fullmatch(r"(.+)-s(\d+)", log.parent.name)
            if named is None or not (log.parent / "steps.jsonl").exists():
                continue
            result = log.parent / "result.json"
            solved = json.loads(result.read_text(encoding="utf-8")).get("solved") if result.exists() else None
            episodes = sorted(read_rows(log), key=lambda row: int(row["episode"]))
            found.append(
                SavedRun(log.parent, named[1], int(named[2]), settings, read_rows(log.parent / "steps.jsonl"), episodes, solved)
            )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder} cannot be read: {type(error).__name__}: {error}") from error
    return found


def _read_trajectories(folder: Path) -> tuple[list[Trajectory], float | None, str]:
    """What the agents of a run folder did, with the rewards that their memory holds, or else the environment's; from which
    score on it is solved; of which split the tasks are.

    Runs and ids begin with the folder's name: the next run of the same method uses the same names for its own.
    """
    from ...memory.storage.journal import Journal
    from ...tools.environments.catalogue import open_environment

    runs = _read_runs(folder)
    if not runs:
        raise UserError(f"{folder} has no run that has begun")
    remembered = _memory_trajectories(folder)
    settings = runs[0].settings
    environment = open_environment(settings["env"], horizon=settings["horizon"])
    made = []
    try:
        for run in runs:
            task, journal = environment.task(run.seed, settings["split"]), Journal()
            for row in run.steps:
                journal.append(row["parent"], Transition(row["state"], row["action"], row["reward"]))
            for row in run.episodes:
                if row["task"] != task.id:
                    raise UserError(
                        f"{run.folder} played {row['task']}, and task {run.seed} of {settings['env']} is {task.id} now"
                    )
                steps = journal.history(row["head"])
                made.append(
                    remembered.get(row["id"])
                    or Trajectory(row["id"], task, steps, row["run"], row["episode"], row["score"], environment.name)
                )
        own, name = {trajectory.id for trajectory in made}, folder.resolve().name
        renamed = [
            replace(
                trajectory,
                id=f"{name}:{trajectory.id}",
                run=f"{name}:{trajectory.run}",
                used=tuple(f"{name}:{id}" if id in own else id for id in trajectory.used),
            )
            for trajectory in made
        ]
        return renamed, getattr(environment, "solved", None), settings["split"]
    finally:
        environment.close()


def _memory_trajectories(folder: Path) -> dict[str, Trajectory]:
    """The trajectories in the memories of a run folder, by id."""
    places = sorted(path.parent for path in folder.rglob("chroma.sqlite3"))
    if not places:
        return {}
    from ...memory.storage.chroma_store import ChromaStore
    from ...memory.storage.shelf import RecordStore

    found: dict[str, Trajectory] = {}
    for place in places:
        with ChromaStore.open(str(place)) as store:
            for namespace in store.list_namespaces(prefix=("trajectories",), limit=100_000):
                found |= {t.id: t for t in RecordStore(store, namespace, Trajectory).all()}
    return found


# learngraph adamem collect


@dataclass(frozen=True)
class CollectOptions:
    """Where to."""

    out: Path
    """The file: a pair a line."""


def collect(args: Sequence[str]) -> int:
    """the strategies of a run, with what came of them"""
    from ...memory.storage.shelf import write_jsonl
    from ...nodes.synthesize.mft import collect_pairs

    prog = "learngraph adamem collect RUN_FOLDER --out FILE"
    about = "One line for each strategy that was written in a run of adamem --mode high: prompt, reply, draft, action, score."
    if args and args[0] in ("-h", "--help"):
        parse_flags(CollectOptions, ["--help"], prog, about)
    place, rest = split_positional(args, prog)
    options: CollectOptions = parse_flags(CollectOptions, rest, prog, about)
    found, others = [], Counter[str]()
    for run in _read_runs(Path(place)):
        method = run.method_settings
        mode = method.get("mode", "")
        if mode != "high":
            others[f"mode {mode}" if mode else "other methods"] += 1
            continue
        solved = run.solved if method.get("success") is None else method["success"]
        told = {"seed": run.seed, "split": run.settings["split"], "domain": re.split("[?:]", run.settings["env"])[0]}
        found.append(collect_pairs(run.steps, run.episodes, solved=solved, **told))
        if told["split"] != "train" and len(found) == 1:
            _tell(f"note: {place} played tasks of the split {told['split']}; whoever trains on them cannot be tested on them")
    if others:
        left = ", ".join(f"{n} of {kind}" for kind, n in sorted(others.items()))
        _tell(f"runs left out: {left} (only in mode high a draft is what the agent would have done without the strategy)")
    if not found:
        raise UserError(f"{place} has no run of adamem in mode high, and so no strategies to collect; run adamem --mode high")
    pairs = [pair for one in found for pair in one.pairs]
    episodes, steps, undrafted = (sum(getattr(one, name) for one in found) for name in ("episodes", "steps", "undrafted"))
    _tell(f"{len(pairs)} strategies in {episodes} finished episodes of {len(found)} runs, {steps} steps{_authors(pairs)}")
    if undrafted:
        _tell(f"{undrafted} more were written without a draft before, so that nobody knows what they changed: left out")
    if not pairs:
        raise UserError(f"{place} has no strategies to collect; a run of adamem --mode high would do")
    write_jsonl(pairs, options.out)
    _tell(f"written to {options.out}")
    return 0


def _authors(pairs: Sequence[Pair]) -> str:
    counts = Counter(pair.author for pair in pairs)
    return f", by {' and '.join(f'{author} ({n})' for author, n in sorted(counts.items()))}" if counts else ""


# learngraph adamem filter


@dataclass(frozen=True)
class FilterOptions:
    """Which pairs to keep."""

    out: Path
    """The data set: a chat a line, {"messages": [...]}, the last one the strategy."""
    criterion: Literal["step", "outcome"] = "step"
    """`step`: the episode succeeded and the action changed. `outcome`: as many examples, drawn from all that succeeded."""
    success_threshold: float | None = None
    """The score from which an episode counts as a success; the environment's own if not given."""
    author: Literal["all", "model", "rule"] = "all"
    """Whose strategies: a model's own, or those that a rule wrote."""
    draws_per_pair: int = 0
    """m: draft and action are drawn so often again, with --env and --model; 0: not at all, as in the paper."""
    min_changed_share: float = 0.5
    """Of the m x m combinations of a draft and an action, the least share that differs."""
    rollouts_per_action: int = 0
    """Both actions are taken, and played on without memory, so often each, with --env and --model; 0: not at all."""
    min_advantage: float = 0.0
    """What the estimated advantage must exceed, in reward units."""
    # Pairs do not say how the run was set, so whoever asks for estimates repeats what was set there.
    env: str | None = None
    """The environment that the pairs are from."""
    horizon: int | None = None
    """As in the run."""
    model: str | None = None
    """The model that draws and plays on."""
    base_url: str | None = None
    """The server behind `openai:MODEL`."""
    temperature: float = 1.0
    """Of the draws from scored actions, as in the run."""
    history_steps: int | None = None
    """Earlier steps of the episode in prompts, as in the run."""
    window: int | None = None
    """Tokens of the model's window, as in the run."""
    prompts: Path | None = None
    """A directory of prompt files, as in the run."""
    seed: int = 0
    """Of the outcome arm and of all draws."""

    def __post_init__(self) -> None:
        if (
            self.draws_per_pair < 0
            or self.draws_per_pair == 1
            or self.rollouts_per_action < 0
            or not 0 <= self.min_changed_share <= 1
            or self.temperature < 0
        ):
            raise CommandError(
                "--draws-per-pair is 0, or 2 and more, --rollouts-per-action and --temperature at least 0, --min-changed-share from 0 to 1, "
                f"got {self.draws_per_pair}, {self.rollouts_per_action}, {self.temperature}, {self.min_changed_share}"
            )
        if (self.draws_per_pair or self.rollouts_per_action) and (self.env is None or self.model is None):
            raise CommandError(
                "--draws-per-pair and --rollouts-per-action play again: say where with --env, and with what --model"
            )


def filter_pairs(args: Sequence[str]) -> int:
    """a data set from the strategies that helped"""
    from ...memory.storage.shelf import read_jsonl, write_jsonl
    from ...nodes.synthesize import mft

    prog = "learngraph adamem filter PAIRS --out FILE"
    about = (
        "A data set for fine-tuning, in the usual chat format, from the pairs that adamem collect has written. Estimates "
        "(--draws-per-pair, --rollouts-per-action) ask the agent again: repeat the options marked 'as in the run' where the run had them, since "
        "pairs do not say; the defaults are those of a run without."
    )
    if args and args[0] in ("-h", "--help"):
        parse_flags(FilterOptions, ["--help"], prog, about)
    place, rest = split_positional(args, prog)
    options: FilterOptions = parse_flags(FilterOptions, rest, prog, about)
    pairs = [pair for _, pair in read_jsonl(mft.Pair, place) if options.author in ("all", pair.author)]
    outcome = mft.outcome_set(pairs, options.success_threshold)
    kept = mft.step_set(outcome, options.success_threshold)
    _tell(f"{len(pairs)} strategies{_authors(pairs)}")
    _tell(f"{len(outcome)} of them in episodes that succeeded")
    _tell(f"{len(kept)} of these changed the action")
    if options.draws_per_pair or options.rollouts_per_action:
        kept = _filter_by_estimates(kept, options)
    if options.criterion == "outcome":
        kept = mft.sample_pairs(outcome, len(kept), options.seed)
        _tell(f"{len(kept)} drawn from the {len(outcome)} that succeeded: as many")
    if not kept:
        raise UserError(f"no strategy in {place} passes; {options.out} was not written")
    write_jsonl([mft.chat(pair) for pair in kept], options.out)
    _tell(f"{len(kept)} examples written to {options.out}")
    return 0


def _filter_by_estimates(pairs: Sequence[Pair], options: FilterOptions) -> list[Pair]:
    """Those of the pairs that the estimates bear out; what was estimated is told."""
    from ...nodes.synthesize import mft
    from ...tools.environments.catalogue import open_environment

    assert options.env is not None  # both were asked for
    kept = list(pairs)
    environment: Any = open_environment(options.env, horizon=options.horizon)
    try:
        tasks = {pair.id: _task(environment, pair, options.env) for pair in kept}
        again = CounterfactualAgent.open(environment, options)
        if options.draws_per_pair and kept:
            shares, chances, lasting = [], [], []
            for pair in kept:
                actions, drafts = again.sample_actions(tasks[pair.id], pair, options.draws_per_pair, str(options.seed))
                shares.append(mft.change_rate(actions, drafts, pair.domain))
                chances.append(mft.chance_change_rate(actions, drafts, pair.domain))
                if shares[-1] >= options.min_changed_share:
                    lasting.append(pair)
            _tell(
                f"{len(lasting)} of these change it in at least {options.min_changed_share:g} of {options.draws_per_pair} x {options.draws_per_pair} draws "
                f"(mean share {_mean(shares)}; two draws from one side differ in {_mean(chances)})"
            )
            kept = lasting
        if options.rollouts_per_action and kept:
            made = [
                (pair, mft.advantage(environment, tasks[pair.id], pair, again, options.rollouts_per_action, str(options.seed)))
                for pair in kept
            ]
            known = [(pair, found) for pair, found in made if found is not None]
            kept = [pair for pair, found in known if found.mean > options.min_advantage]
            worse, same = sum(found.mean < 0 for _, found in known), sum(found.mean == 0 for _, found in known)
            missing = f", {len(made) - len(known)} with missing rewards" if len(made) > len(known) else ""
            _tell(
                f"{len(kept)} of these have an advantage above {options.min_advantage:g} in {options.rollouts_per_action} paired rollouts "
                f"(mean of all {_mean([found.mean for _, found in known])}; {same} are 0, {worse} below{missing})"
            )
    finally:
        environment.close()
    return kept


def _task(environment: Any, pair: Pair, spec: str) -> Task:
    task: Task = environment.task(pair.seed, pair.split)
    if task.id != pair.task:
        raise UserError(f"pair {pair.id} is of task {pair.task}; task {pair.seed} of {spec}, {pair.split}, is {task.id}")
    return task


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.3g}" if values else "–"


@dataclass
class CounterfactualAgent:
    """The agent in any situation that it has been in: asked for a draft, or for an action under a strategy."""

    environment: Any
    parts: Any
    draft: Any
    """Node that proposes without a strategy."""
    act: Any
    """Node that proposes with one."""
    choose: Any
    _at: dict[tuple[str, ...], tuple[str, Any]] = field(default_factory=dict)
    """Actions -> the head of the journal and the observation after them, of the task played last."""
    _scored: dict[tuple[tuple[str, ...], str], Any] = field(default_factory=dict)
    """What a model that scores said: it would say the same again."""
    _task: str = ""

    @classmethod
    def open(cls, environment: Any, options: FilterOptions) -> CounterfactualAgent:
        """With the model, and prompts as in mode high."""
        from ...memory.storage.journal import Journal
        from ...nodes.act.choose import Choose
        from ...nodes.retrieve.attempts import EpisodePrompt
        from ...nodes.synthesize.strategy import StrategyPrompt
        from ...tools.models.models import open_model
        from ..adamem import ACT, DRAFT
        from ..wiring.parts import MethodInputs

        assert options.model is not None
        model: Any = open_model(options.model, base_url=options.base_url)
        more: dict[str, Any] = {"prompts": options.prompts}
        if options.window is not None:
            more["window"] = min(options.window, getattr(model, "window", options.window))
        if hasattr(model, "score"):
            parts = MethodInputs.with_scoring_model(environment, Journal(), model, **more)
        else:
            parts = MethodInputs.with_chat_model(environment, Journal(), model, stepwise=True, **more)
        seen: dict[str, Any] = {**parts.prompt_arguments(), "max_steps": options.history_steps}
        draft = parts.acting_policy(EpisodePrompt(**seen), DRAFT)
        return cls(environment, parts, draft, parts.acting_policy(StrategyPrompt(**seen), ACT), Choose(options.temperature))

    def __call__(self, task: Task, actions: Sequence[str], name: str, advice: str = "") -> str:
        """What the agent does after these actions; a `Policy` of nodes/synthesize/mft.py. `advice`: the strategy."""
        from langchain_core.runnables import Runnable

        from ...memory.records import Strategy, Usage

        if task.id != self._task:
            self._task = task.id
            self._at.clear()
            self._scored.clear()
        head, observation = self._after(task, tuple(actions))
        where = {"task": task, "run": name, "episode": 0, "step": len(actions), "head": head, "observation": observation}
        state = {**where, "strategy": Strategy(advice) if advice else None, "usage": Usage()}
        node = self.act if advice else self.draft
        if isinstance(node, Runnable):
            proposed = node.invoke(state)
        else:
            key = tuple(actions), advice
            if key not in self._scored:
                self._scored[key] = node(state)
            proposed = self._scored[key]
        chosen: str = self.choose({**state, **proposed})["action"]
        return chosen

    def sample_actions(self, task: Task, pair: Pair, count: int, name: str) -> tuple[list[str], list[str]]:
        """So many actions under the pair's strategy, and so many drafts, each drawn on its own."""
        return (
            [self(task, pair.before, f"{name}/{pair.id}/action/{i}", pair.strategy) for i in range(count)],
            [self(task, pair.before, f"{name}/{pair.id}/draft/{i}") for i in range(count)],
        )

    def _after(self, task: Task, actions: tuple[str, ...]) -> tuple[str, Any]:
        from ...memory.storage.journal import Journal

        if actions not in self._at:
            after = self.environment.observe(task, actions)
            if actions:
                head, before = self._after(task, actions[:-1])
                step = Transition(self.environment.abstract(before), actions[-1], after.reward)
                self._at[actions] = self.parts.journal.append(head, step), after
            else:
                self._at[actions] = Journal.start("again", 0, task.id), after
        return self._at[actions]


# learngraph adamem train


@dataclass(frozen=True)
class TrainOptions:
    """What to train."""

    out: Path
    """Folder of the trained model, which must not be there yet: `--model local:DIR` opens it. The changes alone are in its
    folder `adapter`, in PEFT's format."""
    model: str = "pocket"
    """The model to start from: `pocket` or `local:PATH_OR_NAME`."""
    device: str = "cpu"
    """`cpu`, `cuda`, `cuda:1`, `mps`."""
    dtype: str = "float32"
    """Number format of the model; the changes are float32 always. bfloat16 takes half the memory."""


def train(args: Sequence[str]) -> int:
    """fine-tune a local model on a data set"""
    prog = "learngraph adamem train DATA --out DIR"
    about = "Fine-tune a local model with LoRA on chats, a line each: what adamem filter has written, or any others."
    wanted = bool(args) and args[0] in ("-h", "--help")
    place, rest = ("", ["--help"]) if wanted else split_positional(args, prog)
    import logging

    from ...tools.models.models import open_model
    from ...tools.training.sft import FineTuningSettings, read_chats
    from ...tools.training.sft import train as fine_tune

    form = make_dataclass(
        "form", [("options", TrainOptions), ("settings", FineTuningSettings, field(default_factory=FineTuningSettings))]
    )
    asked = parse_flags(form, rest, prog, about)
    options: TrainOptions = asked.options
    if options.model.startswith("openai:"):
        raise CommandError(f"--model {options.model}: weights behind an API cannot be trained; pocket or local:PATH would do")
    logging.basicConfig(format="%(message)s")  # to stderr
    logging.getLogger("learngraph").setLevel(logging.INFO)
    chats = read_chats(place)
    model: Any = open_model(options.model, device=options.device, dtype=options.dtype)
    done = fine_tune(chats, model, asked.settings, options.out, "pocket" if options.model == "pocket" else None)
    left = f"; {done.left_out} longer than the window of {model.window} tokens were left out" if done.left_out else ""
    _tell(
        f"{done.examples} examples, {len(done.losses)} updates in {done.seconds:.1f} s: loss {done.losses[0]:.4g} in the first, "
        f"{done.losses[-1]:.4g} in the last, in nats per token{left}\n"
        f"written to {options.out}; --model local:{options.out} plays with it"
    )
    return 0


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
