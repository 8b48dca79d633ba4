"""The arms that train weights learn on the toy with `pocket`; their costs are in tests/graphs/cli/test_bench.py."""

from pathlib import Path
from typing import Any

import pytest

from learngraph.graphs.baselines.webrl import SelfEvolvingCurriculum
from learngraph.graphs.cli.main import main
from learngraph.graphs.methods import METHODS
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.claas.weights import TrainingLog
from learngraph.memory.records import Task
from learngraph.memory.storage.journal import Journal
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.models.models import open_model


def play(
    method: str, seed: int, episodes: int, folder: Path, world: Any = None, settings: Any = None
) -> tuple[list[float], TrainingLog]:
    """The scores of a run, on a task of the toy's train fold unless another world is given, and its log."""
    from learngraph.tools.training.trl_trainers import TrlTrainer

    split = "train" if world is None else "test"
    world, model, log = world or KeywordKeep(), open_model("pocket", threads=1), TrainingLog()
    inputs = MethodInputs.with_scoring_model(world, Journal(), model)  # type: ignore[arg-type]
    more: Any = {"training_log": log, "make_trainer": lambda settings: TrlTrainer(model, folder, settings)}
    graph = run.build(METHODS[method].build(inputs, settings, **more))
    plan = run.RunInput(task=world.task(seed, split), run=f"{method}-s{seed}", episode=0, episodes=episodes)
    out: dict[str, Any] = graph.invoke(plan, {"recursion_limit": 100_000})
    return out["scores"], log


@pytest.mark.long
@pytest.mark.parametrize("method", ["sft", "grpo"])
def test_it_learns(method: str, tmp_path: Path) -> None:
    """The last ten of 30 episodes score higher than the first ten, which the untrained model played for the most part."""
    pytest.importorskip("trl", reason="needs trl")
    gains = []
    for seed in (0, 3):
        scores, _ = play(method, seed, 30, tmp_path / str(seed))
        gains.append(sum(scores[-10:]) / 10 - sum(scores[:10]) / 10)
    assert sum(gains) / len(gains) > 1


class OneSetOfRules(KeywordKeep):
    """A toy whose practice tasks have the rules of task 2, in other orders: what is learned there helps here."""

    def task(self, seed: int, split: str = "test") -> Task:
        return self.variant(super().task(2), seed + 1 if split == "train" else 0)


@pytest.mark.long
def test_what_webrl_practises_helps_on_a_task_that_it_never_trained_on(tmp_path: Path) -> None:
    """After five phases of practice it is ahead of the model that practised one."""
    pytest.importorskip("trl", reason="needs trl")
    settings = SelfEvolvingCurriculum(every=6, tasks=10, success_threshold=5.0)
    scores, log = play("webrl", 0, 30, tmp_path, OneSetOfRules(), settings)
    assert sum(scores[-12:]) / 12 > sum(scores[:6]) / 6 + 1
    assert sum(row["practice"] for row in log.attempts("webrl-s0", 30)) == 50


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", ["--prior uniform", pytest.param("--model openai:none --base-url http://127.0.0.1:9", marks=pytest.mark.long)]
)
def test_a_model_without_weights_is_refused_in_a_sentence(
    more: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    command = f"run sft --env toy --seeds 1 --episodes 1 --workers 1 --out {tmp_path / 'run'}".split()
    assert main([*command, *more.split()]) == 2
    assert "sft trains the weights of the model that plays, and there are none here" in capsys.readouterr().err
