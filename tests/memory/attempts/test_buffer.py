"""The buffer of attempts: one attempt is found as it stands among all of them, whatever was added, and in which order."""

from random import Random

from learngraph.memory.attempts.buffer import Buffer
from learngraph.memory.records import Task, Trajectory, Transition


def attempt(run: str, task: str, episode: int, word: str, name: str = "") -> Trajectory:
    steps = (Transition("door black", word, 1.0),)
    return Trajectory(name or f"{run}/{episode}", Task(task, "reach the exit"), steps, run, episode)


def test_one_attempt_is_the_one_among_all_of_the_run_and_task_before_an_episode() -> None:
    draw, buffer = Random(0), Buffer()
    names = [f"{run}/{n}" for run in "ab" for n in range(6)] + ["other"]
    for _ in range(60):
        name = "other" if draw.random() < 0.1 else ""
        buffer.add(attempt(draw.choice("ab"), draw.choice("tu"), draw.randrange(6), draw.choice(["mist", "fern"]), name))
        run, task, before = draw.choice("ab"), draw.choice("tu"), draw.randrange(7)
        among = {one.id: one for one in buffer.attempts(run, task, before)}
        found = {name: buffer.attempt(run, task, before, name) for name in names}
        assert {name: one for name, one in found.items() if one is not None}.keys() == among.keys()
        assert all(found[name] in buffer.attempts(run, task, before) for name in among)
