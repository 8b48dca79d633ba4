"""What comes with the package opens in a line, says on what it rests, and is what it says."""

from __future__ import annotations

import gzip
import json
from importlib.resources import files
from pathlib import Path

import pytest

from learngraph.graphs.jitrl import JitRL
from learngraph.memory.errors import UserError
from learngraph.memory.lessons.library import Library
from learngraph.memory.records import Lesson
from learngraph.memory.shipped import EVIDENCE, open_shipped, shipped_names, write_shipped


@pytest.mark.parametrize("name", shipped_names())
def test_what_comes_with_the_package_says_on_what_it_rests(name: str) -> None:
    learned = open_shipped(name)
    assert set(EVIDENCE) <= learned.evidence.keys()
    for scores in learned.evidence["scores"].values():
        low, high = scores["interval"]
        assert low <= scores["mean"] <= high
        assert scores["seeds"] >= 5
        leads = [entry for key, entry in scores.items() if key.startswith("less ")]
        assert len(leads) == 2
        assert all(low <= lead["mean"] <= high for lead in leads for low, high in [lead["interval"]])
    assert learned.library.lessons
    assert learned.library.written_by == learned.evidence["model"]["writer"]
    sizes = [len((files("learngraph.memory.shipped") / f"{name}{end}").read_bytes()) for end in (".json", ".steps.gz")]
    assert max(sizes) < 50_000


@pytest.mark.parametrize("name", shipped_names())
def test_a_memory_begins_with_what_was_learned(name: str) -> None:
    learned = open_shipped(name)
    memory = JitRL(gamma=0.0, cross_task=True).memory()
    for one in learned.trajectories[:50]:
        memory.add(one)
    first = learned.trajectories[0]
    found = memory.neighbours(first.transitions[0].state, 1, task="other", domain=first.domain, cross_task=True)
    assert found[0].action == first.transitions[0].action


def test_the_telecom_lessons_are_there() -> None:
    texts = [lesson.text for lesson in open_shipped("tau2-telecom").library.lessons]
    assert any(text.endswith("Airplane Mode: ON -> toggle_airplane_mode()") for text in texts)


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UserError, match=r"no memory 'tau3' comes with the package; there are .*tau2-telecom"):
        open_shipped("tau3")


def test_steps_are_counted_and_evidence_is_asked_for(tmp_path: Path) -> None:
    evidence = dict.fromkeys(EVIDENCE, "")
    steps = [("s", "a", 1.0), ("s", "a", 1.0), ("t", "a", -0.5)]
    library = Library((Lesson("L0", "do a"),))
    write_shipped(tmp_path, "mine", evidence, library, "world", steps)
    met = json.loads(gzip.decompress((tmp_path / "mine.steps.gz").read_bytes()))
    assert met == {"domain": "world", "states": ["s", "t"], "actions": ["a"], "steps": [[0, 0, 1.0, 2], [1, 0, -0.5, 1]]}
    assert json.loads((tmp_path / "mine.json").read_text()) == {"evidence": evidence, "lessons": ["do a"]}
    with pytest.raises(UserError, match="gate, scores, command is missing"):
        write_shipped(tmp_path, "mine", dict.fromkeys(EVIDENCE[:4], ""), library, "world", steps)
