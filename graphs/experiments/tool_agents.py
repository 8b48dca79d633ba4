"""Do agents with tools learn without a language model? tau2-bench's telecom tickets: learned on the train split, played on the test split.

    python -m learngraph.graphs.experiments.tool_agents report --out runs/tools.jsonl --seeds 0-9
    python -m learngraph.graphs.experiments.tool_agents search --out runs/tools-search.jsonl --seeds 100-101

The agent goes through a checklist (tools/environments/support/checklist.py): the reading calls whose answers differ between train
tickets. After each answer it goes on, or makes one of the calls that change something, of which up to fifty are listed. A seed learns
on the 74 train tickets in random order, and then plays all 40 test tickets once with each arm, whose memory stays as it is.

| arm | what it knows |
|---|---|
| `static, any call` | nothing, and it has no checklist: all calls are listed at every step |
| `static` | nothing: it draws from the prior, the others take the best call |
| `jitrl` | the memory of the train episodes |
| `jitrl, shuffled states` | the same memory, each action with its reward in another state |
| `lessons` | lessons that a rule drew from the same memory (`line_lessons`), read by a rule, without that memory |
| `lessons, shuffled` | the same lessons, each with the call of another one |

Priors: `uniform`, and `words`, the similarity of what was read with a call's text and its tool's description (`WordsPolicy`).

The score is the benchmark's own, 0 or 1 at the end. *In training* a step earns 1 if it brings the data closer to what the official
solution leaves, or stands in that solution and was not made before; any other change earns -`penalty`, and the last step the official
score. A random walk over the calls hardly ever solves a ticket: `--reward official` shows what is learned from the score alone. The
test tickets' solutions are read for the table only: handing over every ticket solves 12 of 40, so `repaired` counts the other 28.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Literal

from tyro.conf import Positional

from ...memory.display import markdown_table, with_interval
from ...memory.errors import UserError
from ...memory.lessons.library import Library
from ...memory.records import Task, Trajectory, Transition
from ...memory.returns.experiences import Experiences
from ...memory.search.similarity import TokenSimilarity
from ...memory.storage.journal import Journal
from ...memory.storage.rows import Rows
from ...nodes.act.policies import UniformPolicy
from ...nodes.evaluate.judge import NoJudge, RuleJudge
from ...nodes.evaluate.statistics import interval, mean
from ...tools.environments.support.checklist import Checklist, informative_calls
from ...tools.environments.tau2_bench import TauBench
from .. import jitrl
from ..cli.flags import parse_flags
from ..wiring.parts import MethodInputs
from ..wiring.supersteps import merge_steps
from .evaluation import Outcome, difference
from .jitrl_values import read_seed_range
from .tool_lessons import LessonsPolicy, Step, WordsPolicy, line_lessons, shuffle_calls, state_tokens

__all__ = [
    "ARMS",
    "Learned",
    "Played",
    "Study",
    "memory_of",
    "outcomes",
    "play_missing",
    "shuffle_steps",
    "table",
    "training_rewards",
]

TRAIN, TEST = 74, 40
"""Tickets of the official splits."""
FOLD = 50
"""`search` learns on the first so many train tickets, and plays the others."""
HORIZON = 100
"""The benchmark's own limit of calls."""
ARMS = (
    "static, any call",
    "static",
    "jitrl",
    "jitrl, shuffled states",
    "lessons",
    "lessons, shuffled",
)
SETTINGS = jitrl.JitRL(cross_task=True, gamma=0.0, min_similarity=0.6)
"""JitRL's defaults but for three: tickets learn from each other, a step is worth what it earns at once, and
states are alike if the answer is the same, at home or abroad, whatever the kind of ticket (`state_tokens`)."""
SIMILARITY = TokenSimilarity(state_tokens)
GRID: Mapping[str, Mapping[str, Any]] = {
    "as reported": {},
    "each kind of ticket by itself": {"min_similarity": 0.95},
}
"""Settings of `search`: each differs from the reported ones in one thing."""


@dataclass(frozen=True)
class ToolStudyOptions:
    """The plays that are wanted."""

    mode: Positional[Literal["report", "search"]]
    """`report`: all train tickets, then the test split. `search`: the settings of `GRID` within the train split."""
    out: Path
    """The file of results. What stands in it is not played again."""
    seeds: str = "0-9"
    """Seeds, as `0-9` or `0,3`."""
    priors: tuple[Literal["uniform", "words"], ...] = ("uniform", "words")
    """The priors."""
    episodes: int = 120
    """Episodes of training."""
    penalty: float = 2.0
    """Taken, in training, for any other change: more than 1, or switching something off and on again would pay."""
    reward: Literal["solution", "official"] = "solution"
    """Rewards of training: by the official solution's calls, or the official score alone."""


@dataclass(frozen=True)
class Played:
    """The test tickets, played by one arm."""

    prior: str
    seed: int
    arm: str
    scores: Sequence[float]
    """The official score of each ticket."""


def training_rewards(world: Checklist, penalty: float, task: Task, actions: Sequence[str]) -> list[float]:
    """The rewards of an episode's steps in training, by the task's official solution."""
    tools: Any = world.tools
    made = world.calls(task, actions)
    distance = tools.distances(task, [call for calls in made for call in calls])
    left, found, place = [*tools.gold(task)], list[float](), 0
    for number, (action, calls) in enumerate(zip(actions, made, strict=True), 1):
        before, place = place, place + len(calls)
        if action == tools.closing_call(task, ""):
            found.append(world.observe(task, actions[:number]).reward or 0.0)
        elif tools.only_reads(action):
            found.append(0.0)
        else:
            found.append(1.0 if action in left or distance[place] < distance[before] else -penalty)
        if action in left:
            left.remove(action)
    return found


def memory_of(steps: Sequence[Step], settings: jitrl.JitRL, domain: str) -> Experiences:
    """A memory of single steps with these rewards, for settings with gamma 0."""
    memory = settings.memory(similarity=SIMILARITY)
    for number, (state, action, reward) in enumerate(steps):
        step = Transition(state, action, reward)
        memory.add(Trajectory(f"learned/{number}", Task("learned", ""), (step,), "learned", number, reward, domain))
    return memory


def shuffle_steps(steps: Sequence[Step], seed: int) -> list[Step]:
    """The same actions with the same rewards, each in the state of another step."""
    states = [state for state, _, _ in steps]
    Random(f"states/{seed}").shuffle(states)
    return [(state, action, reward) for state, (_, action, reward) in zip(states, steps, strict=True)]


def official_rewards(world: Checklist, task: Task, actions: Sequence[str]) -> list[float]:
    """The rewards of an episode's steps by the official score alone: that of the last one."""
    return [0.0] * (len(actions) - 1) + [world.observe(task, actions).reward or 0.0]


def play(
    world: Any, policy: Any, settings: jitrl.JitRL, memory: Experiences, tasks: Sequence[Task], run: str, judge: Any = None
) -> list[float]:
    """Play tasks one after the other with JitRL's graph, and return the official scores. Without a judge nothing is learned."""
    journal = Journal()
    judge = NoJudge() if judge is None else RuleJudge(judge, journal)
    inputs = MethodInputs(world, journal, make_policy=lambda view: policy, judge=judge)
    graph = merge_steps(jitrl.build(inputs, settings, experiences=memory))
    config: Any = {"recursion_limit": 10_000}
    return [graph.invoke({"task": t, "run": run, "episode": n}, config)["score"] for n, t in enumerate(tasks)]


class Study:
    """The tickets and the worlds of a mode.

    Args:
        options: what is played.
    """

    def __init__(self, options: ToolStudyOptions) -> None:
        is_search = options.mode == "search"
        self.options, self.tools = options, TauBench(horizon=HORIZON)
        self.train = [self.tools.task(n, "train") for n in range(FOLD if is_search else TRAIN)]
        self.test = [
            self.tools.task(n, *(["train"] if is_search else [])) for n in (range(FOLD, TRAIN) if is_search else range(TEST))
        ]
        hand_over = "transfer_to_human_agents("
        self.repairs = [n for n, task in enumerate(self.test) if not self.tools.gold(task)[0].startswith(hand_over)]
        """Places of the test tickets that are solved by repairing something."""
        self.world = Checklist(self.tools, informative_calls(self.tools, self.train))

    def policy(self, prior: str) -> Any:
        """The node that gives the prior."""
        if prior == "uniform":
            return UniformPolicy()
        return WordsPolicy({tool.name: tool.description for tool in self.tools.describe_tools(self.train[0])})

    def learn(self, prior: str, seed: int, settings: jitrl.JitRL) -> dict[str, Any]:
        """Play train tickets: the steps with their rewards, and the share of solved episodes."""
        memory, draw, order = settings.memory(similarity=SIMILARITY), Random(seed), list[Task]()
        while len(order) < self.options.episodes:
            order += draw.sample(self.train, len(self.train))
        judge = partial(training_rewards, self.world, self.options.penalty)
        if self.options.reward == "official":
            judge = partial(official_rewards, self.world)
        tasks = order[: self.options.episodes]
        scores = play(self.world, self.policy(prior), settings, memory, tasks, f"train-{prior}-{seed}", judge)
        return {"solved": mean(scores), "steps": [(one.state, one.action, one.value) for one in memory]}

    def lessons(self, steps: Sequence[Step]) -> Library:
        """The lessons that a rule draws from these steps."""
        end = self.tools.closing_call(self.train[0], "")
        return line_lessons(steps, skip=lambda call: call == end or self.tools.only_reads(call))

    def play_arm(self, arm: str, prior: str, seed: int, steps: Sequence[Step], settings: jitrl.JitRL) -> list[float]:
        """Play the test tickets with an arm that knows these steps."""
        policy, run = self.policy(prior), f"test-{prior}-{seed}-{arm}"
        calm = replace(settings, exploration_bonus=0.0, temperature=1.0 if arm.startswith("static") else 0.0)
        known: Sequence[Step] = ()
        if arm.startswith("jitrl"):
            known = shuffle_steps(steps, seed) if "shuffled" in arm else steps
        elif arm.startswith("lessons"):
            lessons = self.lessons(steps)
            policy = LessonsPolicy(policy, shuffle_calls(lessons, seed) if "shuffled" in arm else lessons)
        world = self.tools if arm == "static, any call" else self.world
        return play(world, policy, calm, memory_of(known, settings, world.name), self.test, run)


def table(played: Sequence[Played], repairs: Sequence[int]) -> str:
    """A Markdown table, a row per arm and prior. Differences are paired by ticket; intervals are over seeds.

    Args:
        played: all plays.
        repairs: places of the tickets that are solved by repairing something, not by handing them over.
    """
    lines = [["prior", "arm", "seeds", "solved", "repaired", "less `static, any call`", "`jitrl` less it"]]
    for prior in dict.fromkeys(one.prior for one in played):
        arms = {arm: outcomes(played, prior, arm) for arm in ARMS}
        for arm, found in arms.items():
            means = [mean([runs[0] or 0.0 for runs in one.rewards.values()]) for one in found]
            fixed = [mean([one.rewards[str(n)][0] or 0.0 for n in repairs]) for one in found]
            leads = [difference(found, arms[ARMS[0]]), difference(arms["jitrl"], found)]
            cells = [
                *(with_interval(mean(each), interval(each)) for each in (means, fixed)),
                *(with_interval(one.mean, one.over_seeds) for one in leads),
            ]
            lines.append([prior, arm, str(len(found)), *cells])
    return markdown_table(lines)


def outcomes(played: Sequence[Played], prior: str, arm: str) -> list[Outcome]:
    """The plays of an arm, one outcome per seed."""
    return [
        Outcome(arm, one.seed, {str(n): (score,) for n, score in enumerate(one.scores)}, (0,))
        for one in played
        if (one.prior, one.arm) == (prior, arm)
    ]


@dataclass(frozen=True)
class Learned:
    """The memory of a seed with a prior."""

    prior: str
    seed: int
    steps: Sequence[Step]
    solved: float
    """Share of its train episodes that the official score calls solved."""


def play_missing(study: Study, rows: Rows, name: str, settings: jitrl.JitRL) -> tuple[list[Learned], list[Played]]:
    """Play what is not in the file yet; returns what each seed learned, and all plays of these settings."""
    options, learned, played = study.options, list[Learned](), list[Played]()
    kind = f"{options.mode}/{name}/{options.reward}/{options.penalty:g}/{options.episodes}"
    for prior, seed in product(options.priors, read_seed_range(options.seeds)):
        id = f"{kind}/{prior}/{seed}"
        if (row := rows.get(id)) is None:
            rows.append(row := {"id": id, **study.learn(prior, seed, settings)})
        steps = [(str(state), str(action), float(reward)) for state, action, reward in row["steps"]]
        learned.append(Learned(prior, seed, steps, row["solved"]))
        for arm in ARMS:
            if (row := rows.get(f"{id}/{arm}")) is None:
                rows.append(row := {"id": f"{id}/{arm}", "scores": study.play_arm(arm, prior, seed, steps, settings)})
            played.append(Played(prior, seed, arm, row["scores"]))
    return learned, played


def training_line(learned: Sequence[Learned]) -> str:
    """A sentence per prior on what the training was like."""
    lines = []
    for prior in dict.fromkeys(one.prior for one in learned):
        own = [one for one in learned if one.prior == prior]
        rewards = [reward for one in own for _, _, reward in one.steps]
        lines.append(
            f"{prior}: {mean([one.solved for one in own]):.3f} of the train episodes were solved, "
            f"{sum(reward > 0 for reward in rewards) / max(len(rewards), 1):.3f} of their steps rewarded"
        )
    return "; ".join(lines)


def main(args: Sequence[str]) -> int:
    """Play what is missing, print the tables, and return the exit status."""
    options = parse_flags(ToolStudyOptions, args, "tool_agents", "Agents with tools that learn without a language model.")
    study, rows = Study(options), Rows(options.out)
    for name, changes in GRID.items() if options.mode == "search" else [("as reported", {})]:
        learned, played = play_missing(study, rows, name, replace(SETTINGS, **changes))
        print(f"### {name}\n\n{table(played, study.repairs)}\n\n{training_line(learned)}\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
