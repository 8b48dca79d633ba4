"""What a step keeps: the state that memory is searched by, and beside it what the agent read."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from learngraph.memory.records import Observation, Task, Trajectory
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.record_store import from_json, to_json
from learngraph.nodes.act.episode import Act, Begin, build_trajectory, replay_actions

TASK = Task("t", "read the postcard and say whose it is")
TEXTS = ("You are in the hall.\nA postcard lies here.", "The postcard says: yours, Ada.", "Right. You have won.")


class Postcard:
    """A world whose state key is only the room, whatever the game says."""

    name = "postcard"
    instant = True

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        over = len(actions) == 2
        return Observation(TEXTS[len(actions)], () if over else ("read", "say Ada"), float(over), over)

    def abstract(self, observation: Observation) -> str:
        return "hall" if observation.text == TEXTS[0] else observation.text


def played(journal: Journal) -> dict[str, Any]:
    """The state after both actions."""
    world = Postcard()
    state: dict[str, Any] = {"task": TASK, "run": "r", "episode": 0}
    state |= Begin(world)(state)  # type: ignore[arg-type]
    for action in ("read", "say Ada"):
        state |= Act(world, journal)({**state, "action": action})
    return state


def test_a_step_keeps_what_the_agent_read_beside_its_state(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    journal = Journal(path)
    state = played(journal)
    journal.close()
    steps = Journal(path).history(state["head"])
    assert [step.state for step in steps] == ["hall", TEXTS[1]]
    assert [step.observation_text for step in steps] == [TEXTS[0], TEXTS[1]]
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first["observation"] == TEXTS[0]
    assert "last_observation" not in first
    assert "observation" not in second, "a text that is the state word for word is stored once"
    assert second["last_observation"] == TEXTS[2]


def test_a_finished_attempt_keeps_the_texts_and_the_last_one() -> None:
    journal = Journal()
    state = played(journal)
    made = build_trajectory({**state, "rewards": [0.0, 5.0], "unjudged": ""}, Postcard(), journal)  # type: ignore[typeddict-item]
    assert [step.observation_text for step in made.transitions] == [TEXTS[0], TEXTS[1]]
    assert made.transitions[1].reward == 5.0
    assert made.last_observation == TEXTS[2]
    assert from_json(Trajectory, to_json(made)) == made
    replayed = replay_actions(Postcard(), TASK, ("read", "say Ada"), "gold")
    assert [step.observation for step in replayed.transitions] == [step.observation for step in made.transitions]
    assert replayed.last_observation == TEXTS[2]
