"""The warning about tasks that are played and are in the bank."""

from pathlib import Path

from learngraph.graphs.adamem import AdaMEM
from learngraph.graphs.arms import make_arm
from learngraph.graphs.experiments.harness import bank_overlap_warnings
from learngraph.memory.records import Task, Trajectory
from learngraph.memory.storage.record_store import write_jsonl


def test_a_game_is_known_by_its_seed_under_any_name(tmp_path: Path) -> None:
    bank = tmp_path / "bank.jsonl"
    held = Task("pick_heat_then_place_in_recep-valid_unseen-0", "heat a mug", 12345)
    write_jsonl([Trajectory("gold/0", held, (), "gold", domain="alfworld")], bank)
    arms = [make_arm("adamem", AdaMEM(bank=str(bank)))]
    (line,) = bank_overlap_warnings(arms, [("alfworld-valid_unseen-7", 12345), ("alfworld-valid_unseen-8", 6)])
    assert line == f"1 of 2 played tasks are in the bank {bank}: these scores are no test"
    assert bank_overlap_warnings(arms, [("alfworld-valid_unseen-8", 6), ("alfworld-valid_unseen-9", None)]) == []
