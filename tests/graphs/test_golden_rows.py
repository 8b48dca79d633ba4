"""The rows that every method had before the harness was made one: a change of the harness changes no number.

Weights that are trained may differ in their last bits from one machine to another, so that of the methods that train them only what
comes before the first gradient step is compared.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from learngraph.graphs.cli.main import main

GOLDEN = json.loads(Path(__file__).with_name("golden_rows.json").read_text(encoding="utf-8"))
TRAINED = ("sft", "grpo", "webrl")

pytestmark = pytest.mark.slow


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_episodes_of_every_method_are_those_of_before(here: Path) -> None:
    for episodes, trained in ((1, True), (3, False)):
        first, *others = (name for name in GOLDEN["episodes"] if (name in TRAINED) is trained)
        assert (
            main([*f"run {first} --env toy --seeds 1 --episodes {episodes} --out run{episodes} --compare".split(), *others])
            == 0
        )
    for method, rows in GOLDEN["episodes"].items():
        (path,) = here.rglob(f"{method}-s0/episodes.jsonl")
        found = [[row[name] for name in GOLDEN["columns"]] for row in lines(path)]
        assert (method, found) == (method, rows[:1] if method in TRAINED else rows)


def test_training_free_grpo_learns_and_earns_what_it_did(here: Path) -> None:
    asked = "run training-free-grpo --env toy --seeds 1 --problems 6 --held-out 4 --test-problems 4 --epochs 1"
    assert main([*asked.split(), "--compare", "training-free-grpo?arm=empty", "--out", "run"]) == 0
    for arm, rewards in GOLDEN["training_free_grpo"].items():
        (path,) = (here / "run").rglob(f"{arm}-s0/episodes.jsonl")
        assert (arm, [row["score"] for row in sorted(lines(path), key=lambda row: row["episode"])]) == (arm, rewards)
    (library,) = (here / "run").rglob("training-free-grpo-s0/library.yaml")
    assert [
        line.split(": ", 1)[1] for line in library.read_text(encoding="utf-8").splitlines() if "  text: " in line
    ] == GOLDEN["lessons"]
