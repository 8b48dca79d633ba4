"""Two methods' advice in one prompt: AdaMEM's strategy of the moment under the lessons that Training-Free GRPO has learned.

`python notebooks/two_advisers.py` measures the child against both parents over 10 seeds and prints the table of compose.ipynb (about a
minute and a half a seed on a core of its own). In a seed one house is drawn, with its hidden rules. Training-Free GRPO learns a library on
eight variants of the house; then child and parents play the same eight other variants. The model is `pocket`, and rules write all advice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from learngraph.graphs import adamem
from learngraph.graphs import training_free_grpo as grpo
from learngraph.graphs.baselines import lesson_react
from learngraph.graphs.wiring.flow import rewire
from learngraph.graphs.wiring.inputs import THINK_THEN_ACT, MethodInputs
from learngraph.graphs.wiring.learning_run import RunResources
from learngraph.memory.display import markdown_table, with_interval
from learngraph.memory.lessons.versions import LibraryVersions
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.evaluate.statistics import interval, mean
from learngraph.nodes.synthesize.strategy import StrategyPart, route_precedents
from learngraph.tools.environments.catalogue import open_environment
from learngraph.tools.models.models import open_model

__all__ = ["FLOW", "lessons_alone", "lessons_and_strategy", "measure", "strategy_alone"]

FLOW = """
flowchart LR
  START --> begin --> recollect
  recollect -->|precedents| synthesize --> propose
  recollect -->|nothing alike| propose
  propose --> choose --> act
  act -->|next step| recollect
  act -->|over| judge --> remember --> END
"""
Agent = Callable[[MethodInputs, LibraryVersions], Any]


def strategy_alone(inputs: MethodInputs, versions: LibraryVersions) -> Any:
    """AdaMEM, which is shown no lessons."""
    return adamem.build(inputs, adamem.AdaMEM(mode="max", author="rule"))


def lessons_alone(inputs: MethodInputs, versions: LibraryVersions) -> Any:
    """The agent that Training-Free GRPO learns for, at AdaMEM's temperature."""
    return lesson_react.build(inputs, lesson_react.LessonReAct(temperature=1.0), lessons=versions)


def lessons_and_strategy(inputs: MethodInputs, versions: LibraryVersions) -> Any:
    """AdaMEM's nodes on the graph with lessons; the prompt shows the lessons first, then the strategy."""
    lent = strategy_alone(inputs, versions).builder.nodes
    view = inputs.episode_prompt(lesson_react.library_part(inputs, versions), StrategyPart())
    nodes = {name: lent[name] for name in ("begin", "recollect", "synthesize", "act", "judge", "remember")}
    propose = inputs.acting_policy(view, THINK_THEN_ACT)
    return rewire(lessons_alone(inputs, versions), FLOW, {"recollect": route_precedents}, propose=propose, **nodes)


ARMS: dict[str, Agent] = {"both": lessons_and_strategy, "lessons": lessons_alone, "strategy": strategy_alone}


def measure(seed: int, inputs: MethodInputs) -> dict[str, float]:
    """The mean share of the best score that each agent reaches in a house, after the lessons were learned there."""
    world: Any = inputs.environment
    house, versions = world.task(seed), LibraryVersions()
    learner = grpo.build(
        replace(inputs, journal=Journal()),
        grpo.TrainingFreeGRPO(epochs=1, batch_size=4, group_size=5, temperature=1.0),
        problems=[world.variant(house, n) for n in range(1, 9)],
        held_out=[world.variant(house, n) for n in range(50, 54)],
        resources=RunResources(versions),
    )
    library = learner.invoke({"run": "learn"})["best"]
    shares = dict[str, float]()
    for name, build in ARMS.items():
        agent, scores = build(replace(inputs, journal=Journal()), versions), []
        for n in range(8):
            task = world.variant(house, 100 + n)
            given = {"task": task, "run": f"{name}{seed}", "episode": n, "library": library}
            scores.append(agent.invoke(given)["score"] / world.optimum(task))
        shares[name] = mean(scores)
    return shares


def main(seeds: int = 10) -> None:
    """Print the table."""
    inputs = MethodInputs.with_scoring_model(open_environment("toy"), Journal(), open_model("pocket", threads=1))
    found = []
    for seed in range(seeds):
        found.append(measure(seed, inputs))
        print(seed, found[-1], flush=True)
    lines = [["agent", "share of the best score", "both is ahead by"]]
    for name in ARMS:
        ahead = [row["both"] - row[name] for row in found]
        shares = [row[name] for row in found]
        lead = "–" if name == "both" else with_interval(mean(ahead), interval(ahead))
        lines.append([name, with_interval(mean(shares), interval(shares)), lead])
    print(markdown_table(lines))


if __name__ == "__main__":
    main()
