"""Does memory of one set of tickets help on another? JitRL on tau2-bench's official splits, without a language model.

    python -m learngraph.graphs.studies.tool_agents --out FILE

Every arm plays the train split's tickets again and again with a uniform prior over the listed tool calls, over one memory that all
tickets share. Then the memory is closed, and every ticket of the test split is played with it. Every finished arm is a line of FILE, and the
same command goes on from there. Scores are the benchmark's own, 0 or 1.

| arm | learns from |
|---|---|
| `static` | nothing: the prior alone |
| `jitrl` | the benchmark's reward at the end |
| `jitrl-share` | `reward=share`: the solution's calls are paid as they are made (a hint, on the train split alone) |
| `jitrl-share-shuffled` | the same, but the returns of an episode are given to its steps in random order |
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, cast

from ...memory.errors import UserError
from ...memory.experiences import Experiences, returns
from ...memory.records import Trajectory
from ...memory.storage.journal import Journal
from .. import jitrl
from ..baselines import static
from ..wiring.flags import parse_flags
from ..wiring.loop import PlainLoop
from ..wiring.parts import MethodInputs
from .benchmark import interval, markdown_table, mean, with_interval

ARMS: Mapping[str, str] = {"static": "official", "jitrl": "official", "jitrl-share": "share", "jitrl-share-shuffled": "share"}
"""Arm -> the reward that it learns from."""


@dataclass(frozen=True)
class ToolStudyOptions:
    """Options of the study."""

    out: Path
    """The file of finished arms, JSON lines. The command goes on from it."""
    arms: tuple[str, ...] = tuple(ARMS)
    """The arms."""
    env: str = "tau2:telecom"
    """The environment, without settings."""
    tasks: int = 74
    """Tasks of the train split."""
    tests: int = 40
    """Tasks of the test split."""
    rounds: int = 10
    """Episodes of each train task."""
    draws: int = 3
    """Episodes of each test task."""
    horizon: int = 30
    """Calls of an episode."""
    gamma: float = 0.95
    """JitRL's discount: the reward comes at the end of long episodes."""
    seed: int = 0
    """Seed of all random draws."""


@dataclass(frozen=True)
class ArmResult:
    """The official scores of one arm."""

    arm: str
    settings: str
    """The settings of the study, as JSON: a line with others belongs to another study."""
    rounds: list[float]
    """Mean score of each round on the train split."""
    tests: list[float]
    """Mean score of each test task."""


class _SharedMemory(Experiences):
    """A memory that can be closed: what comes later is not remembered."""

    closed = False

    def add(self, trajectory: Trajectory) -> None:
        if not self.closed:
            super().add(trajectory)


def play_arm(arm: str, options: ToolStudyOptions) -> ArmResult:
    """Play an arm on the train split, and then with what it remembers on the test split."""
    from ...tools.environments.catalogue import open_environment

    world: Any = open_environment(f"{options.env}?reward={ARMS[arm]}", options.horizon)
    journal, draw = Journal(), Random(f"{options.seed}/{arm}")

    def shuffle_returns(rewards: Sequence[float | None], gamma: float) -> Sequence[float | None]:
        found = returns(rewards, gamma)
        draw.shuffle(found)
        return found

    memory = _SharedMemory(gamma=options.gamma, credit=shuffle_returns if arm.endswith("shuffled") else returns)
    parts, settings = MethodInputs(world, journal), jitrl.JitRL(cross_task=True, gamma=options.gamma)
    graph = static.build(parts) if arm == "static" else jitrl.build(parts, settings, experiences=memory)
    loop = PlainLoop(graph)
    # The record of every decision is not read here.
    loop.links["act"] = tuple(
        link._replace(node=replace(cast(Any, link.node), journal_channels=())) for link in loop.links["act"]
    )

    def play(task: Any, phase: str, episode: int) -> float:
        return float(loop.play({"task": task, "run": f"{phase}-{options.seed}", "episode": episode}, None)["score"])

    train, rounds = [world.task(n, "train") for n in range(options.tasks)], list[float]()
    for number in range(0 if arm == "static" else options.rounds):
        first = number * len(train)
        rounds.append(mean([play(task, "train", first + n) for n, task in enumerate(train)]))
        print(f"{arm}: round {number + 1}: {rounds[-1]:.3f}", flush=True)  # noqa: T201
    memory.closed = True
    tests = [
        mean([play(world.task(n, "test"), "test", n * options.draws + k) for k in range(options.draws)])
        for n in range(options.tests)
    ]
    world.close()
    return ArmResult(arm, settings_text(options), rounds, tests)


def settings_text(options: ToolStudyOptions) -> str:
    """The settings that the results depend on, as JSON."""
    given = asdict(options)
    return json.dumps({name: value for name, value in given.items() if name not in ("out", "arms")})


def read_results(options: ToolStudyOptions) -> dict[str, ArmResult]:
    """The finished arms of this study in the file, by name."""
    lines = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
    found = [ArmResult(**json.loads(line)) for line in lines if line.endswith("}")]
    return {result.arm: result for result in found if result.settings == settings_text(options)}


def results_table(results: Mapping[str, ArmResult]) -> str:
    """A row per arm: first and last round of training, the test split, and the paired difference from `static`."""
    lines = [["arm", "train, first round", "last round", "test", "test, above static"]]
    base = results["static"].tests if "static" in results else None
    for result in results.values():
        ends = [f"{result.rounds[0]:.3f}", f"{result.rounds[-1]:.3f}"] if result.rounds else ["–", "–"]
        above = "–"
        if base is not None and result.arm != "static":
            differences = [mine - theirs for mine, theirs in zip(result.tests, base, strict=True)]
            above = with_interval(mean(differences), interval(differences))
        lines.append([result.arm, *ends, with_interval(mean(result.tests), interval(result.tests)), above])
    return markdown_table(lines)


def main(args: Sequence[str]) -> int:
    """Play what is missing, print the table, and return the exit status."""
    options = parse_flags(ToolStudyOptions, args, "tool_agents", "JitRL on a benchmark of tool calls, from train to test.")
    if wrong := [arm for arm in options.arms if arm not in ARMS]:
        raise UserError(f"there is no arm {wrong[0]!r}; there are {', '.join(ARMS)}")
    for arm in options.arms:
        if arm not in read_results(options):
            line = json.dumps(asdict(play_arm(arm, options)))
            options.out.parent.mkdir(parents=True, exist_ok=True)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
    print(results_table(read_results(options)))  # noqa: T201
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
