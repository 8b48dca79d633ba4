"""kill -9 at any point of a learning run, then the same again: the same library in the end, and no rollout played twice.

Once the policy is uniform and a rule compares, so that nothing but the graph, the cache, the versions and the log is at work; once
a scripted model plays and compares, and some of its calls fail.
"""

import importlib.util
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forks import start
from waiting import wait_at_random, wait_until

from learngraph.memory.lessons.versions import LibraryVersions
from learngraph.memory.storage.cache import Cache


def learn(folder: str, pause: float = 0.0) -> None:
    """A run whose files are all in a folder; goes on where an earlier process left off."""
    from learngraph.graphs.training_free_grpo import TrainingFreeGRPO
    from learngraph.graphs.wiring.inputs import MethodInputs
    from learngraph.memory.storage.journal import Journal
    from learngraph.tools.environments.keyword_keep import KeywordKeep

    class Slow(KeywordKeep):
        def observe(self, task: Any, actions: Any) -> Any:
            if not actions:
                (home / "played").open("a").write(f"{task.id}\n")
                wait_at_random(random.Random(task.id), pause)
            return super().observe(task, actions)

    home, toy = Path(folder), Slow()
    task = toy.task(3)
    play(
        home,
        lambda cache: MethodInputs(toy, Journal()),
        TrainingFreeGRPO(group_size=4, epochs=2, batch_size=2, patience=0, author="rule"),
        problems=[toy.variant(task, n) for n in range(4)],
        held_out=[toy.variant(task, n) for n in range(10, 13)],
    )


def write(folder: str, pause: float = 0.0) -> None:
    """The same with a model that writes: calls, some of which fail whenever they are made, are what a crash may lose."""
    from learngraph.graphs.training_free_grpo import TrainingFreeGRPO
    from learngraph.graphs.wiring.inputs import MethodInputs
    from learngraph.memory.storage.journal import Journal
    from learngraph.nodes.cached_model import CachedChatModel

    spec = importlib.util.spec_from_file_location("scripted", Path(__file__).parents[1] / "graphs/test_training_free_grpo.py")
    assert spec is not None
    assert spec.loader is not None
    scripted = importlib.util.module_from_spec(spec)
    sys.modules["scripted"] = scripted
    spec.loader.exec_module(scripted)

    class Slow(scripted.Chat):  # type: ignore[misc, name-defined]
        def _act(self, told: str, draw: random.Random) -> str:
            (home / "played").open("a").write("call\n")
            wait_at_random(draw, pause)
            if draw.random() < 0.15:
                raise ConnectionError("a call that fails")
            return str(super()._act(told, draw))

    home, world = Path(folder), scripted.Riddles()
    play(
        home,
        lambda cache: MethodInputs.with_chat_model(world, Journal(), CachedChatModel(Slow(), "scripted", cache, "rollout")),
        TrainingFreeGRPO(group_size=4, epochs=2, batch_size=3, patience=0),
        problems=[world.task(n) for n in range(6)],
        held_out=[world.task(n, "dev") for n in range(4)],
    )


def play(home: Path, inputs: Callable[[Cache], Any], settings: Any, **more: Any) -> None:
    """One process of a run."""
    from learngraph.graphs import training_free_grpo
    from learngraph.graphs.wiring.learning_run import RunResources
    from learngraph.memory.storage.checkpoints import open_checkpoints
    from learngraph.memory.storage.rows import Rows

    versions, log, cache = LibraryVersions(home / "library.jsonl"), Rows(home / "steps.jsonl"), Cache(home / "cache.db")
    with open_checkpoints(home / "checkpoints.db") as saver:
        graph = training_free_grpo.build(
            inputs(cache), settings, resources=RunResources(versions, cache, log), checkpointer=saver, **more
        )
        config: Any = {"configurable": {"thread_id": "run"}}
        begun = graph.get_state(config).values
        out = graph.invoke(None if begun else {"run": "run"}, config)
    (home / "result.json").write_text(
        json.dumps({name: out[name] for name in ("library", "best", "best_score", "step", "stopped")})
    )


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves behind, but for times."""
    versions, cache = LibraryVersions(folder / "library.jsonl"), Cache(folder / "cache.db")
    rows = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    found = {
        "result": json.loads((folder / "result.json").read_text()),
        "versions": {name: (versions.at(name).to_yaml(), versions.rulings(name)) for name in versions.names()},
        "head": versions.head,
        "moves": versions.moves(),
        "rows": [{**row, "seconds": None} for row in rows],
        "spent": cache.usage_by_stage(),
    }
    versions.close()
    cache.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("learn", "steps", "span"), [pytest.param(learn, 4, 1500, marks=pytest.mark.long), (write, 4, 250)])
def test_killed_again_and_again_it_learns_the_same_library(
    tmp_path: Path, learn: Callable[..., None], steps: int, span: int
) -> None:
    (whole := tmp_path / "whole").mkdir()
    learn(str(whole))
    expected = outcome(whole)
    assert expected["result"]["step"] == steps
    if learn is write:
        assert any("a call that fails" in failure for row in expected["rows"] for failure in row["failures"])
        del expected["spent"]  # two equal calls at once are both paid for
    assert len(expected["versions"]) > 2
    chance = random.Random("kill")
    kills = runs = 0
    while kills < (6 if learn is not write else 3):
        (folder := tmp_path / str(runs)).mkdir()
        lost = 0
        while not (folder / "result.json").exists():
            played = folder / "played"
            before = played.stat().st_size if played.exists() else 0
            process, until = start(learn, str(folder), 0.002), before + chance.randrange(0, span)
            wait_until(lambda: not process.is_alive() or (played.stat().st_size if played.exists() else 0) > until)
            wait_at_random(chance, 0.05)
            if process.is_alive():
                kills += 1
                lost += 1
                process.kill()
                if chance.random() < 0.3:  # what a power cut may leave
                    for name in ("library.jsonl", "steps.jsonl"):
                        if (folder / name).exists():
                            with (folder / name).open("ab") as file:
                                file.write(b'{"id": "half a ro')
            process.join()
        ended = outcome(folder)
        assert {name: ended[name] for name in expected} == expected
        # What was being played when the process ended is played again; as many at a time as LangGraph has threads.
        again = len(played.read_text().splitlines()) - len((whole / "played").read_text().splitlines())
        assert again <= lost * 64 * (os.cpu_count() or 1)
        runs += 1
