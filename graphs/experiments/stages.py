"""The stages of a run before its episodes: the bank that a method starts from, and a model fine-tuned on strategies that helped.

    bank=gold@40               the world's own walkthroughs of the first 40 tasks of the train fold
    bank=react@40              what react does there, played once, with the run's model
    bank=react@40@openai:NAME  the same, played by another model
    bank=runs/NAME             what all methods of a run folder did
    tuned=step@40              the model that plays is fine-tuned first (Step-MFT; AdaMEM, section 3.3): adamem plays the train fold in
                               mode high, strategies are kept as nodes/synthesize/mft.py says, tools/training/sft.py trains on them

`Sweep.job` puts the names of what is made in the settings' place, `make_stages` makes it, once for a folder:

    <sweep>/stages/<bank>/bank.jsonl        and runs/, the run folder that it is from
    <sweep>/stages/<tuned>/data.jsonl       the strategies, in the usual chat format
    <sweep>/stages/<tuned>/model/           the fine-tuned model, which `--model local:DIR` opens
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...memory.errors import UserError
from ...memory.records import Trajectory, Transition
from ...memory.storage.record_store import write_jsonl
from ...nodes.act.episode import replay_actions
from ...nodes.synthesize import mft
from ..adamem import AdaMEM
from ..arms import Arm, make_arm
from .folder import Sweep, is_recipe, resolve_stages, stage_folder
from .progress import say
from .recorded import RecordedFolder, RecordedRun

__all__ = []


def make_stages(sweep: Sweep, names: Iterable[str], play: Callable[[Sweep], None]) -> None:
    """Make the banks and the models of a sweep's methods, as far as they are not there.

    Raises:
        UserError: there is no such method, world or walkthrough, or nothing to learn from.
    """
    for name in names:
        settings, whole = sweep.arms[name].settings, resolve_stages(sweep.arms[name], sweep.options, sweep.folder)[0].settings
        bank, tuned = getattr(settings, "bank", ""), getattr(settings, "tuned", "")
        if is_recipe(bank) and not Path(whole.bank).exists():
            say(f"{sweep.name}: first the bank {bank}")
            write_jsonl(_make_bank(sweep, bank, Path(whole.bank).parent, play), whole.bank)
        if tuned and not (place := stage_folder(sweep.folder, settings)).joinpath("model").exists():
            say(f"{sweep.name}: first the model of {name}")
            _fine_tune(sweep, whole, place, play)


def _train_fold(sweep: Sweep, arm: Arm, folder: Path, tasks: str, model: str = "") -> Sweep:
    """A sweep over the first tasks of the train fold."""
    model = model or sweep.options.model
    options = replace(sweep.options, split="train", episodes=1, seeds=tasks, model=model, compare=(), out=None)
    return replace(sweep, options=options, arms={arm.name: arm}, folder=folder, seeds=tuple(range(int(tasks))), chosen=None)


def _make_bank(sweep: Sweep, recipe: str, place: Path, play: Callable[[Sweep], None]) -> list[Trajectory]:
    from ...tools.environments.catalogue import open_environment

    if Path(recipe).is_dir():
        played = Path(recipe)
    else:
        method, count, model = [*recipe.split("@", 2), ""][:3]
        if not count.isdecimal() or not int(count):
            raise UserError(f"bank={recipe}: a method and a number of tasks are needed, as in react@40; or gold@40")
        played = place / "runs"
        if method != "gold":
            play(_train_fold(sweep, make_arm(method), played, count, model))
    environment: Any = open_environment(sweep.options.env, horizon=sweep.options.horizon)
    try:
        if played.exists():
            return [*read_trajectories(played, environment)]
        if not hasattr(environment, "gold"):
            raise UserError(
                f"bank={recipe}: {environment.name} has no walkthroughs; have a method play it, as in react@{count}"
            )
        tasks = [environment.task(number, "train") for number in range(int(count))]
        return [
            replay_actions(environment, one, environment.gold(one), run=f"gold:{environment.name}:{one.id}") for one in tasks
        ]
    finally:
        environment.close()


def _fine_tune(sweep: Sweep, settings: AdaMEM, place: Path, play: Callable[[Sweep], None]) -> None:
    """Step-MFT: play, keep the strategies that helped, train, and write `data.jsonl` and `model`."""
    from ...tools.models.models import open_model
    from ...tools.training.sft import FineTuningSettings, train

    asked, (criterion, count) = sweep.options, settings.tuned.split("@")
    if asked.model.startswith("openai:"):
        raise UserError(f"tuned={settings.tuned}: the weights of {asked.model} cannot be trained; take pocket or local:PATH")
    play(_train_fold(sweep, Arm("adamem", replace(settings, mode="high", tuned=""), "adamem"), place / "runs", count))
    found, count_of_steps = read_strategies(place / "runs")
    outcome = mft.outcome_set(found, settings.success_threshold)
    kept = mft.step_set(outcome, settings.success_threshold)
    steps = len(kept)
    if criterion == "outcome":
        kept = mft.sample_pairs(outcome, steps)
    say(
        f"{len(found)} strategies in {count_of_steps} steps, {len(outcome)} of them in episodes that succeeded, {steps} of "
        f"these changed the action; {len(kept)} kept ({criterion})"
    )
    if not kept:
        raise UserError(f"tuned={settings.tuned}: no strategy in {place / 'runs'} passes; have more tasks played")
    write_jsonl(chats := [mft.chat(pair) for pair in kept], place / "data.jsonl")
    model: Any = open_model(asked.model, **asked.model_arguments())
    train([chat["messages"] for chat in chats], model, FineTuningSettings(), place / "model")


def read_runs(folder: RecordedFolder) -> list[tuple[RecordedRun, int, list[dict[str, Any]]]]:
    """The runs in a folder that `learngraph run` has made, each with its seed and the rows of its finished episodes."""
    _, found = folder.settings, []
    for run in map(folder.run, folder.names()):
        run.refresh()
        if any(run.damaged.values()):
            raise UserError(f"{run.path} cannot be read: damaged lines {run.damaged}")
        if run.seed is not None:
            found.append((run, run.seed, [*run.read_episodes().values()]))
    if not found:
        raise UserError(f"{folder.path} has no run that has begun")
    return found


def read_steps(run: RecordedRun, episode: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of the steps of a finished episode, in order."""
    rows = run.rows(int(episode["episode"]))
    if len(rows) != episode["steps"]:
        raise UserError(f"episode {episode['id']} has {episode['steps']} steps, and {len(rows)} of them are in {run.path}")
    return rows


def read_trajectories(folder: Path, environment: Any) -> Iterator[Trajectory]:
    """The trajectories of all finished episodes in a run folder, with the environment's rewards.

    Runs and ids begin with the folder's name, since the next run of the same method uses the same names for its own. What the
    agents' memory holds, with the rewards of a judge, is written by `learngraph memory export`.
    """
    there = RecordedFolder(folder)
    name = there.path.resolve().name
    for run, seed, episodes in read_runs(there):
        task = environment.task(seed, there.settings["split"])
        for episode in episodes:
            if episode["task"] != task.id:
                raise UserError(f"{run.path} played {episode['task']}, and task {seed} of {environment.name} is {task.id} now")
            rows = read_steps(run, episode)
            steps = [Transition(row["state"], row["action"], row["reward"], row.get("observation", "")) for row in rows]
            yield Trajectory(
                id=f"{name}:{episode['id']}",
                task=task,
                transitions=tuple(step for step in steps if not step.is_lost),
                run=f"{name}:{episode['run']}",
                episode=episode["episode"],
                score=episode["score"],
                domain=environment.name,
                last_observation=rows[-1].get("last_observation", "") if rows else "",
            )


# Strategies


def read_strategies(folder: Path) -> tuple[list[mft.Pair], int]:
    """The strategies that agents wrote in mode `high` in a run folder, each with draft, action and score, and the number of steps."""
    there, found, steps = RecordedFolder(folder), list[mft.Pair](), 0
    threshold = next(iter(there.settings["methods"].values())).get("success_threshold")
    for run, _, episodes in read_runs(there):
        for episode in episodes:
            rows = read_steps(run, episode)
            pairs, _ = mft.collect_pairs(
                rows,
                episode["id"],
                episode["score"],
                solved=run.result().get("solved") if threshold is None else threshold,
                domain=re.split("[?:]", there.settings["env"])[0],
            )
            found, steps = [*found, *pairs], steps + len(rows)
    return found, steps
